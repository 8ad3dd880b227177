//! What a check says, and which finding comes first.
//!
//! Every check answers fine, guilty or unknown, and never nothing. Guilty findings are ranked in one currency: the
//! share of the examined time in which the cause kept work from going on. For a thread that waits for a processor that
//! is its waiting time over the window; for stolen time, throttling and pressure the counter of the kernel over the
//! window; for a slow disk the part of its time beyond the reference; for slow commands their execution time over the
//! window. What the server itself has suffered counts in full. A counter of the whole host tells only that somebody
//! suffered: it counts half, see [`HEARSAY`], and convicts nobody where the threads of a server were read and would
//! know. What costs nothing at present, but is wrong, has a share of zero and comes last, in the order of [`CHECKS`].

/// The part of its share by which a witness counts that saw the host and not the server.
pub const HEARSAY: f64 = 0.5;

/// What a check says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Looked at, and nothing is wrong.
    Fine,
    /// Looked at, and it is wrong.
    Guilty,
    /// Could not be looked at; the detail says why.
    Unknown,
}

impl Verdict {
    /// As tables and JSON have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Guilty => "guilty",
            Self::Unknown => "unknown",
        }
    }
}

/// The answer of one check.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Its name, one of [`CHECKS`].
    pub check: &'static str,
    /// What was looked at: [`HERE`], or the address of a server.
    pub place: String,
    /// What was measured, with its unit.
    pub value: String,
    /// What it was compared with.
    pub reference: String,
    /// The answer.
    pub verdict: Verdict,
    /// The evidence, or why nothing is known.
    pub detail: String,
    /// What to do. Behind a fine value: what to consider.
    pub advice: String,
    /// Share of the examined time that was lost to it; 0 for what costs nothing at present.
    pub stalled: f64,
}

/// The place of findings about this host.
pub const HERE: &str = "this host";

impl Finding {
    /// A check that found nothing.
    pub fn fine(check: &'static str, value: impl Into<String>, reference: impl Into<String>) -> Self {
        Self {
            check,
            place: HERE.to_owned(),
            value: value.into(),
            reference: reference.into(),
            verdict: Verdict::Fine,
            detail: String::new(),
            advice: String::new(),
            stalled: 0.0,
        }
    }

    /// A check that could not be made.
    pub fn unknown(check: &'static str, why: impl Into<String>) -> Self {
        Self { verdict: Verdict::Unknown, detail: why.into(), ..Self::fine(check, "", "") }
    }

    /// The same, guilty of so large a share of the time, if `is_so`.
    pub fn guilty_if(mut self, is_so: bool, stalled: f64, advice: impl Into<String>) -> Self {
        if is_so {
            self.verdict = Verdict::Guilty;
            self.stalled = if stalled.is_finite() { stalled.max(0.0) } else { 0.0 };
            self.advice = advice.into();
        }
        self
    }

    /// The same, with evidence.
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    /// The same, with something to consider, unless it is guilty.
    pub fn consider(mut self, advice: impl Into<String>) -> Self {
        if self.verdict == Verdict::Fine {
            self.advice = advice.into();
        }
        self
    }

    /// The same, about something else than this host.
    pub fn at(mut self, place: &str) -> Self {
        place.clone_into(&mut self.place);
        self
    }

    /// What it is guilty of, in words.
    pub fn title(&self) -> &'static str {
        CHECKS.iter().find(|(check, _)| *check == self.check).map_or(self.check, |(_, title)| title)
    }

    /// True if it was found guilty.
    pub fn is_guilty(&self) -> bool {
        self.verdict == Verdict::Guilty
    }
}

/// Guilty findings, what explains most of the lost time first.
pub fn ranked(findings: &[Finding]) -> Vec<&Finding> {
    let mut guilty: Vec<&Finding> = findings.iter().filter(|finding| finding.is_guilty()).collect();
    let order = |finding: &Finding| CHECKS.iter().position(|(name, _)| *name == finding.check);
    guilty.sort_by(|a, b| b.stalled.total_cmp(&a.stalled).then_with(|| order(a).cmp(&order(b))));
    guilty
}

/// Every check with what is said if it is guilty. Those of servers are made once for each server.
pub const CHECKS: &[(&str, &str)] = &[
    ("server.answers", "the server stalls"),
    ("server.stalls", "the server stood still in the last day, because of its host"),
    ("server.stops", "the process is stopped by signals"),
    ("cpu.waiting", "its threads wait for a processor"),
    ("cpu.quota", "the quota of its control group throttles it"),
    ("cpu.stolen", "the hypervisor gives the processors to others"),
    ("cpu.pressure", "work on the host waits for processors"),
    ("cpu.governor", "processors do not run at full speed"),
    ("timer.late", "timers fire late"),
    ("timer.pauses", "processors stand still for no reason inside the host"),
    ("clock.source", "the clock needs system calls"),
    ("clock.cost", "reading the clock is slow"),
    ("memory.pressure", "work on the host waits for memory"),
    ("memory.swap", "pages are read back from swap"),
    ("memory.reclaim", "processes have to free memory themselves"),
    ("memory.swapped", "the server is partly swapped out"),
    ("memory.limit", "the server is at its memory limit"),
    ("memory.fragmentation", "the server holds much more memory than it uses"),
    ("memory.huge_pages", "transparent huge pages are on"),
    ("memory.overcommit", "a large process may not be allowed to fork"),
    ("disk.sync", "writes to disk are slow"),
    ("disk.writers", "others use the disk"),
    ("disk.pressure", "work on the host waits for the disk"),
    ("disk.filesystem", "the file system does not suit a log"),
    ("disk.room", "the disk is nearly full"),
    ("persistence.sync", "the server waits for its own log"),
    ("persistence.fork", "the server stands still to fork"),
    ("persistence.durability", "the last write or save failed"),
    ("network.round_trip", "the server is far away"),
    ("network.throughput", "the network is narrow"),
    ("network.loss", "packets are lost"),
    ("network.backlog", "connections are turned away: the queue is full"),
    ("network.drops", "the kernel drops packets"),
    ("load.slow_commands", "commands are slow"),
    ("load.large_replies", "replies are large"),
    ("load.connections", "clients connect again and again"),
    ("load.big_keys", "there are very large keys"),
    ("load.hot_keys", "one key takes much of the time"),
    ("load.client_buffers", "a client leaves its replies unread"),
    ("limits.files", "the server may open too few files"),
    ("limits.backlog", "the queue of new connections is short"),
    ("limits.ports", "ports for outgoing connections run out"),
    ("host.hypervisor", "the host has a known trap"),
    ("fleet.versions", "servers run different versions"),
    ("fleet.configuration", "servers are configured differently"),
    ("fleet.round_trip", "one server is slower to reach than the others"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_of_most_lost_time_comes_first_and_risks_last() {
        let guilty = |check, stalled| Finding::fine(check, "", "").guilty_if(true, stalled, "act");
        let findings = [
            guilty("clock.source", 0.0),
            guilty("memory.huge_pages", f64::NAN),
            guilty("cpu.stolen", 0.1),
            Finding::fine("disk.room", "", ""),
            guilty("disk.sync", 0.4),
            Finding::unknown("cpu.quota", "no file"),
        ];
        let order: Vec<_> = ranked(&findings).iter().map(|finding| finding.check).collect();
        assert_eq!(order, ["disk.sync", "cpu.stolen", "clock.source", "memory.huge_pages"]);
    }

    #[test]
    fn advice_for_what_is_guilty_is_not_overwritten() {
        let finding = Finding::fine("disk.room", "1 %", "5 %").guilty_if(true, 0.0, "make room").consider("nothing");
        assert_eq!(finding.advice, "make room");
        assert_eq!(Finding::fine("disk.room", "", "").consider("watch it").advice, "watch it");
    }
}

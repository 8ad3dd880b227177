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

/// Every check with the question it answers. Those of servers are made once for each server.
pub const CHECKS: &[(&str, &str)] = &[
    ("server.answers", "does the server answer without stalls?"),
    ("server.stops", "is its process stopped by signals?"),
    ("cpu.waiting", "do its threads wait for a processor?"),
    ("cpu.quota", "is it throttled by a quota of its control group?"),
    ("cpu.stolen", "does the hypervisor give the processors to others?"),
    ("cpu.pressure", "does work on the host wait for processors?"),
    ("cpu.governor", "do processors run at full speed?"),
    ("timer.late", "do timers fire when they should?"),
    ("timer.pauses", "do processors stand still without a reason inside the host?"),
    ("clock.source", "is the clock a fast one?"),
    ("clock.cost", "what does reading the clock cost?"),
    ("memory.pressure", "does work wait for memory?"),
    ("memory.swap", "are pages read back from swap?"),
    ("memory.reclaim", "do processes have to free memory themselves?"),
    ("memory.swapped", "has the server been swapped out?"),
    ("memory.limit", "is the server at its memory limit?"),
    ("memory.fragmentation", "does the server hold much more memory than it uses?"),
    ("memory.huge_pages", "do transparent huge pages cost copies and compaction?"),
    ("memory.overcommit", "may a large process fork?"),
    ("disk.sync", "how long does a write to disk take?"),
    ("disk.writers", "who else writes to the disk?"),
    ("disk.pressure", "does work on the host wait for the disk?"),
    ("disk.filesystem", "does the file system suit a log?"),
    ("disk.room", "is there room on the disk?"),
    ("persistence.sync", "does the server wait for its own log?"),
    ("persistence.fork", "does the server stand still to fork?"),
    ("persistence.durability", "does an acknowledged write survive?"),
    ("network.round_trip", "how far away is the server?"),
    ("network.throughput", "how many bytes a second get through?"),
    ("network.loss", "are packets lost?"),
    ("network.backlog", "are connections turned away for want of room?"),
    ("network.drops", "does the kernel drop packets?"),
    ("load.slow_commands", "do single commands take long?"),
    ("load.large_replies", "are replies large?"),
    ("load.connections", "do clients connect again and again?"),
    ("load.big_keys", "are there very large keys?"),
    ("load.client_buffers", "do clients leave replies unread?"),
    ("limits.files", "may the server open enough files?"),
    ("limits.backlog", "is the queue of new connections long enough?"),
    ("limits.ports", "are there ports left for outgoing connections?"),
    ("host.hypervisor", "what does the host run on?"),
    ("fleet.versions", "do all servers run the same version?"),
    ("fleet.configuration", "are all servers configured alike?"),
    ("fleet.round_trip", "is one server slower to reach than the others?"),
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

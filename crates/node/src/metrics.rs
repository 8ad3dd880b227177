//! The same figures as INFO, in the text form that Prometheus collects.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::sync::Arc;

use stdx::{Duration, Instant};

use crate::commands::Figures;
use crate::core::Core;
use crate::event::{HostReport, Lane, NodeId, Room};
use crate::roster::Roster;

/// What one core has to say.
#[derive(Clone, Debug)]
pub struct Measured {
    figures: Figures,
    /// Of the first core.
    facts: Option<Facts>,
}

/// What concerns the node.
#[derive(Clone, Debug)]
struct Facts {
    node: NodeId,
    cluster: u128,
    core_count: u16,
    uptime: Duration,
    report: HostReport,
    roster: Arc<Roster>,
    has_room: bool,
    memory_bytes_max: u64,
    happenings: BTreeMap<&'static str, u64>,
}

impl Core {
    /// Its figures, for [`page`].
    pub fn measure(&self, now: Instant) -> Measured {
        let context = &self.context;
        let facts = (context.core.0 == 0).then(|| Facts {
            node: context.node,
            cluster: context.process.cluster,
            core_count: context.core_count,
            uptime: now.since(context.process.started_instant),
            report: context.report.clone(),
            roster: Arc::clone(&context.roster),
            has_room: context.room == Room::Enough,
            memory_bytes_max: context.settings.maxmemory_bytes,
            happenings: context.happened.clone(),
        });
        Measured { figures: self.figures(false), facts }
    }
}

/// The page, from what all cores have said. A core that has said nothing is missing from the sums.
pub fn page(measured: &[Measured]) -> String {
    let mut page = Page(String::new());
    let figures: Vec<&Figures> = measured.iter().map(|measured| &measured.figures).collect();
    if let Some(facts) = measured.iter().find_map(|measured| measured.facts.as_ref()) {
        write_node(facts, &mut page);
        write_log(facts, &mut page);
        write_links(facts, &mut page);
    }
    write_clients(&figures, &mut page);
    write_groups(&figures, &mut page);
    page.0
}

fn write_node(facts: &Facts, page: &mut Page) {
    let report = &facts.report;
    let version = env!("CARGO_PKG_VERSION");
    let cluster = format!("{:032x}", facts.cluster);
    page.gauge("info", "Which node of which cluster this is; always 1.")
        .of(&[("version", &version), ("node", &facts.node.0), ("cluster", &cluster)], 1);
    page.gauge("uptime_seconds", "Time since the process was started.").is(Seconds(facts.uptime.as_micros() as u64));
    page.gauge("cores", "Threads that serve clients.").is(facts.core_count);
    page.gauge("nodes", "Nodes of the cluster, as far as this one knows; 0 for a node by itself.")
        .is(facts.roster.present().count());
    page.gauge("memory_used_bytes", "Memory given out by the allocator.").is(report.used_memory_bytes);
    page.gauge("memory_resident_bytes", "Resident set of the process.").is(report.resident_bytes);
    page.gauge("memory_max_bytes", "maxmemory; 0 is no limit.").is(facts.memory_bytes_max);
    let mut cpu = page.counter("cpu_seconds_total", "CPU time of the process.");
    cpu.of(&[("mode", &"user")], Seconds(report.cpu_user_us));
    cpu.of(&[("mode", &"system")], Seconds(report.cpu_system_us));
    page.gauge("connected_clients", "Open connections of clients.").is(report.client_count);
    page.counter("rejected_connections_total", "Connections refused because of maxclients.").is(report.rejected_count);
    let mut happened = page.counter("events_total", "What this node has noted on the timeline, by kind.");
    for (kind, count) in &facts.happenings {
        happened.of(&[("kind", kind)], *count);
    }
}

fn write_log(facts: &Facts, page: &mut Page) {
    let journal = &facts.report.journal;
    page.counter("log_writes_total", "Writes to the log; each holds all that was waiting.").is(journal.write_count);
    page.counter("log_written_bytes_total", "Bytes written to the log.").is(journal.written_bytes);
    page.counter("log_syncs_total", "Syncs of the log.").is(journal.sync_count);
    page.gauge("log_sync_last_seconds", "Duration of the last sync of the log.").is(Seconds(journal.sync_last_us));
    page.gauge("log_sync_mean_seconds", "Mean duration of a sync of the log.").is(Seconds(journal.sync_mean_us));
    page.gauge("log_sync_max_seconds", "Longest sync of the log.").is(Seconds(journal.sync_max_us));
    page.gauge("log_queue_bytes", "Bytes waiting to be written to the log.").is(journal.queue_bytes);
    page.gauge("log_unsynced_seconds", "Age of the oldest write to the log that is not synced.")
        .is(Seconds(journal.unsynced_us));
    page.gauge("log_kept_bytes", "Bytes of log that a restart would read.").is(journal.kept_bytes);
    page.gauge("log_held_bytes", "Bytes of log kept only for members that lack them.").is(journal.held_bytes);
    page.gauge("log_held_bytes_max", "Most bytes of log that are kept for members.").is(journal.held_bytes_max);
    page.counter("checkpoint_written_bytes_total", "Bytes of checkpoints written.").is(journal.checkpoint_bytes);
    page.gauge("disk_has_room", "1 while the disk can take what may be admitted; writes are refused at 0.")
        .is(u8::from(facts.has_room));
}

fn write_links(facts: &Facts, page: &mut Page) {
    let links = || {
        facts.report.links.iter().map(|link| {
            let lane = match link.lane {
                Lane::Vital => "vital",
                Lane::Log => "log",
                Lane::Bulk => "bulk",
            };
            (link, lane)
        })
    };
    type Figure = fn(&crate::event::LinkReport) -> u64;
    let gauges: [(&str, &str, Figure); 2] = [
        ("link_up", "1 while the link to another node can be used.", |link| u64::from(link.is_up)),
        ("link_waiting_bytes", "Bytes waiting to be sent to another node.", |link| link.waiting_bytes),
    ];
    let counters: [(&str, &str, Figure); 5] = [
        ("link_made_total", "How often the link to another node came up.", |link| link.count),
        ("link_sent_bytes_total", "Bytes sent to another node.", |link| link.sent_bytes),
        ("link_carried_bytes_total", "The same before they were compressed.", |link| link.carried_bytes),
        ("link_messages_total", "Messages sent to another node.", |link| link.message_count),
        ("link_dropped_messages_total", "Messages dropped because the link was down or full.", |link| {
            link.dropped_count
        }),
    ];
    for (figures, is_counter) in [(&gauges[..], false), (&counters[..], true)] {
        for (name, help, figure) in figures {
            let mut family = if is_counter { page.counter(name, help) } else { page.gauge(name, help) };
            for (link, lane) in links() {
                family.of(&[("node", &link.node.0), ("lane", &lane)], figure(link));
            }
        }
    }
}

fn write_clients(figures: &[&Figures], page: &mut Page) {
    let sum = |figure: &dyn Fn(&Figures) -> u64| figures.iter().map(|figures| figure(figures)).sum::<u64>();
    page.gauge("blocked_clients", "Clients that wait for data.").is(sum(&|core| core.waiting_count));
    page.counter("connections_total", "Connections opened.").is(sum(&|core| core.statistics.connection_count));
    page.counter("commands_total", "Commands executed.")
        .is(sum(&|core| core.calls.commands().map(|(_, calls)| calls.calls).sum()));
    page.counter("input_bytes_total", "Bytes received from clients.").is(sum(&|core| core.statistics.input_bytes));
    page.counter("output_bytes_total", "Bytes sent to clients.").is(sum(&|core| core.statistics.output_bytes));
    page.counter("keyspace_hits_total", "Keys that commands looked up and that were there.")
        .is(sum(&|core| core.lookups().found));
    page.counter("keyspace_misses_total", "Keys that commands looked up and that were not there.")
        .is(sum(&|core| core.lookups().missed));
    page.counter("cut_clients_total", "Clients cut off because they left too much output unread.")
        .is(sum(&|core| core.statistics.cut_count));
    page.counter("replica_reads_total", "Reads answered by replicas of this node that do not lead (READONLY).")
        .is(sum(&|core| core.statistics.near_read_count));
    let mut codes: BTreeMap<&str, u64> = BTreeMap::new();
    for (code, count) in figures.iter().flat_map(|figures| figures.calls.errors()) {
        *codes.entry(code).or_default() += count;
    }
    let mut errors = page.counter("error_replies_total", "Error replies, by their first word.");
    for (code, count) in codes {
        errors.of(&[("code", &code)], count);
    }
    page.gauge("keyspace_bytes", "Bytes of keys and values.").is(sum(&|core| core.keyspace_bytes));
    let count = figures.iter().map(|figures| figures.databases.len()).max().unwrap_or(0);
    let of = |database: usize, figure: fn(&(u64, u64, u64, u64)) -> u64| {
        figures.iter().filter_map(|figures| figures.databases.get(database)).map(figure).sum::<u64>()
    };
    let used: Vec<usize> = (0..count).filter(|database| of(*database, |figures| figures.0) > 0).collect();
    let mut keys = page.gauge("keys", "Keys held by this node, by database.");
    used.iter().for_each(|database| keys.of(&[("database", database)], of(*database, |figures| figures.0)));
    let mut expiring = page.gauge("expiring_keys", "Keys with a deadline held by this node, by database.");
    used.iter().for_each(|database| expiring.of(&[("database", database)], of(*database, |figures| figures.1)));
}

fn write_groups(figures: &[&Figures], page: &mut Page) {
    let mut groups: Vec<_> = figures.iter().flat_map(|figures| &figures.groups).collect();
    groups.sort_by_key(|group| group.group);
    type Figure = fn(&crate::commands::GroupFigures) -> u64;
    let gauges: [(&str, &str, Figure); 5] = [
        ("group_leads", "1 if this node leads the group and serves.", |group| u64::from(group.bulletin.is_some())),
        ("group_term", "Raft's term of the group.", |group| group.term),
        ("group_applied_index", "Last entry of the group's log that is applied.", |group| group.applied),
        ("group_window_bytes", "Bytes of writes admitted and not yet applied.", |group| group.window_bytes),
        ("group_lock_holders", "Transactions that hold locks in the group.", |group| group.lock_count),
    ];
    let mut staleness = page.gauge("group_staleness_seconds", "How old what this node holds of the group may be.");
    for group in &groups {
        if let Some(staleness_ms) = group.staleness_ms {
            staleness.of(&[("group", &group.group)], staleness_ms as f64 / 1_000.0);
        }
    }
    let counters: [(&str, &str, Figure); 2] = [
        ("group_checkpoints_total", "Checkpoints of the group finished.", |group| group.checkpoint_count),
        ("group_evicted_keys_total", "Keys of the group evicted.", |group| group.evicted_count),
    ];
    for (figures, is_counter) in [(&gauges[..], false), (&counters[..], true)] {
        for (name, help, figure) in figures {
            let mut family = if is_counter { page.counter(name, help) } else { page.gauge(name, help) };
            groups.iter().for_each(|group| family.of(&[("group", &group.group)], figure(group)));
        }
    }
    let followers: Vec<_> = groups
        .iter()
        .filter_map(|group| group.bulletin.as_ref())
        .flat_map(|bulletin| bulletin.followers.iter().map(move |follower| (bulletin, follower)))
        .collect();
    let mut family = page.gauge("follower_active", "1 if the follower was heard within an election time-out.");
    for (bulletin, follower) in &followers {
        family.of(&[("group", &bulletin.group.0), ("node", &follower.node.0)], u8::from(follower.is_active));
    }
    let mut family = page.gauge("follower_feed", "How the log comes to the follower; always 1.");
    for (bulletin, follower) in &followers {
        let feed = follower.feed.name();
        family.of(&[("group", &bulletin.group.0), ("node", &follower.node.0), ("feed", &feed)], 1);
    }
    let mut family = page.gauge("follower_lag_entries", "Entries of the log that the follower lacks.");
    for (bulletin, follower) in &followers {
        family.of(&[("group", &bulletin.group.0), ("node", &follower.node.0)], bulletin.behind(follower));
    }
    let mut family = page.gauge("follower_lag_bytes", "Bytes of the log that the follower lacks.");
    for (bulletin, follower) in &followers {
        family.of(&[("group", &bulletin.group.0), ("node", &follower.node.0)], follower.behind_bytes);
    }
    let mut family = page.gauge("follower_lag_seconds", "How old the oldest entry is that the follower lacks.");
    for (bulletin, follower) in &followers {
        family.of(&[("group", &bulletin.group.0), ("node", &follower.node.0)], Seconds(follower.lag_ms * 1_000));
    }
    let mut family = page.gauge("follower_silent_seconds", "Time since the follower was heard.");
    for (bulletin, follower) in &followers {
        family.of(&[("group", &bulletin.group.0), ("node", &follower.node.0)], Seconds(follower.silent_ms * 1_000));
    }
    let mut family = page.counter("follower_resyncs_total", "Checkpoints given to the follower by this leader.");
    for (bulletin, follower) in &followers {
        family.of(&[("group", &bulletin.group.0), ("node", &follower.node.0)], follower.resync_count);
    }
}

/// Microseconds, shown as seconds.
struct Seconds(u64);

impl Display for Seconds {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// A page being written.
struct Page(String);

/// The samples of one metric.
struct Family<'p> {
    text: &'p mut String,
    name: String,
}

impl Page {
    fn gauge(&mut self, name: &str, help: &str) -> Family<'_> {
        self.family(name, "gauge", help)
    }

    fn counter(&mut self, name: &str, help: &str) -> Family<'_> {
        self.family(name, "counter", help)
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) -> Family<'_> {
        let name = format!("holdfast_{name}");
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        Family { text: &mut self.0, name }
    }
}

impl Family<'_> {
    fn is(&mut self, value: impl Display) {
        let _ = writeln!(self.text, "{} {value}", self.name);
    }

    fn of(&mut self, labels: &[(&str, &dyn Display)], value: impl Display) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, value)| {
                let value = value.to_string().replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                format!("{name}=\"{value}\"")
            })
            .collect();
        let _ = writeln!(self.text, "{}{{{}}} {value}", self.name, labels.join(","));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_every_metric_says_what_it_is() {
        let mut page = Page(String::new());
        page.counter("errors_total", "Errors.").of(&[("code", &"A\"B\\\n"), ("node", &7)], 3);
        page.gauge("uptime_seconds", "Time.").is(Seconds(1_500_000));
        let expected = "\
# HELP holdfast_errors_total Errors.
# TYPE holdfast_errors_total counter
holdfast_errors_total{code=\"A\\\"B\\\\\\n\",node=\"7\"} 3
# HELP holdfast_uptime_seconds Time.
# TYPE holdfast_uptime_seconds gauge
holdfast_uptime_seconds 1.500000
";
        assert_eq!(page.0, expected);
    }
}

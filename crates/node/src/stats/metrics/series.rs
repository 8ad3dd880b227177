//! The figures of a node that are kept second by second: what has changed since a second ago, as one whole number each.
//!
//! [`SERIES`] is the one list of them, in the order in which [`Totals::since`] tells them.

use std::array::from_fn;

use stdx::{Duration, Instant};

use super::{Facts, Gathered};
use crate::catalog::catalog;
use crate::commands::hottest_per_mille;
use crate::commands::question::Figures;
use crate::stats::timing::Histogram;

/// What a figure is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// So many.
    Count,
    /// So many a second.
    PerSecond,
    /// Bytes.
    Bytes,
    /// Bytes a second.
    BytesPerSecond,
    /// Microseconds.
    Micros,
    /// Nanoseconds.
    Nanos,
    /// Thousandths of one processor.
    PerMille,
}

impl Unit {
    /// As pages read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::PerSecond => "per_second",
            Self::Bytes => "bytes",
            Self::BytesPerSecond => "bytes_per_second",
            Self::Micros => "us",
            Self::Nanos => "ns",
            Self::PerMille => "per_mille",
        }
    }
}

/// A figure that is kept.
#[derive(Clone, Copy, Debug)]
pub struct Series {
    /// Its name.
    pub name: &'static str,
    /// What it is counted in.
    pub unit: Unit,
    /// True if of several seconds the highest value stands for all, and not their mean.
    pub is_peak: bool,
}

const fn mean(name: &'static str, unit: Unit) -> Series {
    Series { name, unit, is_peak: false }
}

const fn peak(name: &'static str, unit: Unit) -> Series {
    Series { name, unit, is_peak: true }
}

/// Families of commands with times of their own: those that read, those that write, scripts, and all others.
const FAMILY_COUNT: usize = 4;

/// All figures that are kept.
pub const SERIES: &[Series] = &[
    mean("commands", Unit::PerSecond),
    mean("errors", Unit::PerSecond),
    mean("input", Unit::BytesPerSecond),
    mean("output", Unit::BytesPerSecond),
    mean("clients", Unit::Count),
    mean("clients_waiting", Unit::Count),
    mean("clients_refused", Unit::PerSecond),
    mean("hits", Unit::PerSecond),
    mean("misses", Unit::PerSecond),
    mean("keys", Unit::Count),
    mean("expired", Unit::PerSecond),
    mean("evicted", Unit::PerSecond),
    mean("memory_used", Unit::Bytes),
    mean("memory_resident", Unit::Bytes),
    mean("memory_keys", Unit::Bytes),
    mean("memory_clients", Unit::Bytes),
    mean("cpu_user", Unit::PerMille),
    mean("cpu_system", Unit::PerMille),
    mean("log_writes", Unit::PerSecond),
    mean("log_bytes", Unit::BytesPerSecond),
    mean("log_syncs", Unit::PerSecond),
    peak("log_sync", Unit::Micros),
    peak("log_waiting", Unit::Bytes),
    mean("log_kept", Unit::Bytes),
    mean("checkpoint_bytes", Unit::BytesPerSecond),
    mean("link_bytes", Unit::BytesPerSecond),
    peak("link_waiting", Unit::Bytes),
    peak("follower_lag", Unit::Micros),
    peak("window", Unit::Bytes),
    mean("groups_led", Unit::Count),
    mean("read_calls", Unit::PerSecond),
    peak("read_p50", Unit::Nanos),
    peak("read_p99", Unit::Nanos),
    peak("read_max", Unit::Nanos),
    mean("write_calls", Unit::PerSecond),
    peak("write_p50", Unit::Nanos),
    peak("write_p99", Unit::Nanos),
    peak("write_max", Unit::Nanos),
    mean("script_calls", Unit::PerSecond),
    peak("script_p50", Unit::Nanos),
    peak("script_p99", Unit::Nanos),
    peak("script_max", Unit::Nanos),
    mean("other_calls", Unit::PerSecond),
    peak("other_p50", Unit::Nanos),
    peak("other_p99", Unit::Nanos),
    peak("other_max", Unit::Nanos),
    mean("stalls", Unit::PerSecond),
    mean("stalled", Unit::PerMille),
    mean("hottest_key", Unit::PerMille),
];

/// Of one family of commands: calls, and how long the measured ones took.
#[derive(Clone, Debug, Default)]
struct Family {
    calls: u64,
    times: Histogram,
}

/// What a node has counted, as far as it is kept: counts since the start of the process, and what is now.
#[derive(Clone, Debug)]
pub struct Totals {
    /// When the host measured what it alone knows.
    reported_at: Instant,
    commands: u64,
    errors: u64,
    refused: u64,
    input_bytes: u64,
    output_bytes: u64,
    hits: u64,
    misses: u64,
    expired: u64,
    evicted: u64,
    cpu_user_us: u64,
    cpu_system_us: u64,
    log_writes: u64,
    log_bytes: u64,
    log_syncs: u64,
    checkpoint_bytes: u64,
    link_bytes: u64,
    stalls: u64,
    stalled_us: u64,
    families: [Family; FAMILY_COUNT],
    /// Clients, waiting clients, keys, memory: used, resident, of keys, of clients; duration of the last sync, bytes of
    /// log that wait and that are kept, bytes that wait on links, the lag of the slowest follower in microseconds,
    /// bytes admitted and not applied, groups led, the part of a core's time that its hottest key takes.
    now: [u64; 15],
}

impl Totals {
    /// From what the cores and the node have said.
    pub fn of(gathered: &Gathered, facts: &Facts) -> Self {
        let figures = &gathered.figures[..];
        let sum = |figure: &dyn Fn(&Figures) -> u64| figures.iter().map(figure).sum::<u64>();
        let groups = || figures.iter().flat_map(|figures| &figures.groups);
        let (report, journal) = (&facts.report, &facts.report.journal);
        let lag_ms = groups()
            .filter_map(|group| group.group_status.as_ref())
            .flat_map(|group_status| {
                group_status.followers.iter().map(|follower| follower.lag_ms.max(follower.silent_ms))
            })
            .max();
        let mut families: [Family; FAMILY_COUNT] = from_fn(|_| Family::default());
        let mut commands = 0;
        for figures in figures {
            for (place, calls) in figures.calls.commands() {
                families[family_of(place)].calls += calls.calls;
                commands += calls.calls;
            }
            for (place, times) in &figures.times {
                families[family_of(*place)].times.add(&times.histogram);
            }
        }
        Self {
            reported_at: report.at,
            commands,
            errors: sum(&|figures| figures.calls.errors().values().sum()),
            refused: report.rejected_count,
            input_bytes: sum(&|figures| figures.statistics.input_bytes),
            output_bytes: sum(&|figures| figures.statistics.output_bytes),
            hits: sum(&|figures| figures.lookups().found),
            misses: sum(&|figures| figures.lookups().missed),
            expired: groups().map(|group| group.removals.expired).sum(),
            evicted: groups().map(|group| group.evicted_count).sum(),
            cpu_user_us: report.cpu_user_us,
            cpu_system_us: report.cpu_system_us,
            log_writes: journal.write_count,
            log_bytes: journal.written_bytes,
            log_syncs: journal.sync_count,
            checkpoint_bytes: journal.checkpoint_bytes,
            link_bytes: report.sent_to_nodes(),
            stalls: report.stalls.count,
            stalled_us: report.stalls.total_us,
            families,
            now: [
                report.client_count,
                sum(&|figures| figures.waiting_count),
                sum(&|figures| figures.databases.iter().map(|(keys, ..)| keys).sum()),
                report.used_memory_bytes,
                report.resident_bytes,
                sum(&|figures| figures.keyspace_bytes),
                report.client_bytes,
                journal.sync_last_us,
                journal.queue_bytes,
                journal.kept_bytes,
                report.links.iter().map(|link| link.waiting_bytes).sum(),
                lag_ms.unwrap_or(0) * 1_000,
                groups().map(|group| group.window_bytes).sum(),
                groups().filter(|group| group.group_status.is_some()).count() as u64,
                hottest_per_mille(figures).0,
            ],
        }
    }

    /// Leaves out stalls of so many microseconds in all since the start, which the caller shows by themselves.
    pub fn leave_out_stalls(&mut self, micros: u64) {
        self.stalled_us = self.stalled_us.saturating_sub(micros);
    }

    /// The figures of [`SERIES`] for the time that has passed since an earlier reading. Counts that were set back since
    /// then (CONFIG RESETSTAT) are told as none; so is the time of a family of which no call was measured.
    pub fn since(&self, earlier: &Self, elapsed: Duration) -> [Option<u64>; SERIES.len()] {
        let rate_in = |elapsed: Duration, before: u64, after: u64| {
            let more = u128::from(after.checked_sub(before)?) * 1_000_000;
            u64::try_from(more.checked_div(elapsed.as_micros())?).ok()
        };
        let rate = |count: fn(&Self) -> u64| rate_in(elapsed, count(earlier), count(self));
        // What the host has measured is as old as it says.
        let reported = self.reported_at.since(earlier.reported_at);
        let host = |count: fn(&Self) -> u64| rate_in(reported, count(earlier), count(self));
        // So many thousand microseconds of a second are as many thousandths.
        let share = |count: fn(&Self) -> u64| host(count).map(|us| us / 1_000);
        let now = |place: usize| Some(self.now[place]);
        // The host has not measured anything before it has said so.
        let has_reported = self.reported_at > Instant::ZERO;
        let host_now = |place: usize| has_reported.then_some(self.now[place]);
        let family = |place: usize| {
            let (own, before) = (&self.families[place], &earlier.families[place]);
            let calls = rate_in(elapsed, before.calls, own.calls);
            let times = own.times.since(&before.times);
            let percentile = |percent| (times.total() > 0).then(|| times.percentile(percent));
            [calls, percentile(50.0), percentile(99.0), percentile(100.0)]
        };
        let families: [_; FAMILY_COUNT] = from_fn(family);
        let told = [
            rate(|totals| totals.commands),
            rate(|totals| totals.errors),
            rate(|totals| totals.input_bytes),
            rate(|totals| totals.output_bytes),
            host_now(0),
            now(1),
            host(|totals| totals.refused),
            rate(|totals| totals.hits),
            rate(|totals| totals.misses),
            now(2),
            rate(|totals| totals.expired),
            rate(|totals| totals.evicted),
            host_now(3),
            host_now(4),
            now(5),
            host_now(6),
            share(|totals| totals.cpu_user_us),
            share(|totals| totals.cpu_system_us),
            host(|totals| totals.log_writes),
            host(|totals| totals.log_bytes),
            host(|totals| totals.log_syncs),
            host_now(7),
            host_now(8),
            host_now(9),
            host(|totals| totals.checkpoint_bytes),
            host(|totals| totals.link_bytes),
            host_now(10),
            now(11),
            now(12),
            now(13),
        ];
        let last = [host(|totals| totals.stalls), share(|totals| totals.stalled_us), now(14)];
        let mut all = told.into_iter().chain(families.into_iter().flatten()).chain(last);
        let told = from_fn(|_| all.next().expect("as many as there are series"));
        debug_assert!(all.next().is_none());
        told
    }
}

/// Which family a command belongs to, by its place in the catalog.
fn family_of(place: usize) -> usize {
    use command::Flag;
    let entry = &catalog().entries()[place];
    let is_script = ["eval", "fcall"].iter().any(|name| entry.full_name.starts_with(name));
    match entry.known {
        _ if is_script => 2,
        known if known.has(Flag::Readonly) => 0,
        known if known.has(Flag::Write) => 1,
        _ => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(commands: u64, nanos: &[u64]) -> Totals {
        let mut families: [Family; FAMILY_COUNT] = from_fn(|_| Family::default());
        families[0].calls = commands;
        nanos.iter().for_each(|nanos| families[0].times.note(*nanos));
        Totals {
            reported_at: Instant::ZERO + Duration::from_millis(commands),
            commands,
            errors: 0,
            refused: 0,
            input_bytes: 10 * commands,
            output_bytes: 0,
            hits: 0,
            misses: 0,
            expired: 0,
            evicted: 0,
            cpu_user_us: 1_000 * commands,
            cpu_system_us: 0,
            log_writes: 0,
            log_bytes: 0,
            log_syncs: 0,
            checkpoint_bytes: 0,
            link_bytes: 0,
            stalls: 0,
            stalled_us: 0,
            families,
            now: from_fn(|place| place as u64),
        }
    }

    fn figure(told: &[Option<u64>], name: &str) -> Option<u64> {
        told[SERIES.iter().position(|series| series.name == name).expect("a series")]
    }

    #[test]
    fn counts_are_told_by_the_second_and_times_of_what_was_measured_since() {
        let (earlier, later) = (totals(1_000, &[5_000_000; 90]), totals(1_500, &[[5_000_000; 90], [700; 90]].concat()));
        let told = later.since(&earlier, Duration::from_millis(500));
        assert_eq!(figure(&told, "commands"), Some(1_000));
        assert_eq!(figure(&told, "input"), Some(10_000));
        assert_eq!(figure(&told, "cpu_user"), Some(1_000), "one processor");
        assert_eq!(figure(&told, "clients"), Some(0));
        assert_eq!(figure(&told, "groups_led"), Some(13));
        assert_eq!(figure(&told, "read_calls"), Some(1_000));
        assert!(figure(&told, "read_p99").is_some_and(|nanos| (700..=720).contains(&nanos)), "{told:?}");
        assert_eq!(figure(&told, "write_p99"), None, "nothing was measured");
        assert_eq!(figure(&earlier.since(&later, Duration::from_secs(1)), "commands"), None, "set back");
    }

    #[test]
    fn commands_are_told_apart_by_what_they_do() {
        let place = |name| catalog().place_of(name).expect("a command");
        let families = ["get", "set", "eval", "ping"].map(|name| family_of(place(name)));
        assert_eq!(families, [0, 1, 2, 3]);
        assert_eq!(family_of(place("fcall_ro")), 2);
    }
}

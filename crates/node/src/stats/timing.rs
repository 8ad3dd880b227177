//! How long commands take: means and percentiles (INFO commandstats and latencystats), long delays by cause (LATENCY),
//! and slow commands (SLOWLOG).
//!
//! Reading the stopwatch twice costs as much as a tenth of a small command. So of calls that take a time that depends
//! hardly or not at all on the data, every sixteenth is measured, and stands for the others: those of constant time,
//! and those that take the same short time for each of a few words. All other calls are measured as long as somebody
//! wants to know of slow ones. When commands are carried out one behind the other, the end of one is the beginning of
//! the next.
//!
//! In a cluster the gateway of a request decides whether it is measured, and notes the time, which comes with the
//! answer: see `cost`. A delay is noted where it was.
//!
//! Nothing that is logged or replicated depends on what is measured here.

use std::collections::{BTreeMap, VecDeque};

use command::Flag;
use resp::Args;
use stdx::{Duration, Instant, UnixMillis};

use crate::catalog::{catalog, container_of, full_name};
use crate::known::Known;
use crate::limits::{HEAVY_WORK_COUNT_MAX, HEAVY_WORK_MIN};
use crate::settings::Settings;
use crate::stats::counters::{SlowEntry, shorten};
use crate::stats::hot::{Hot, HotKeys, Load, Plan, Recent};

/// Of calls that cannot be slow one in so many is measured.
const SAMPLE: u32 = 16;

/// A call of a fast command with no more words cannot be slow.
const QUICK_WORDS_MAX: usize = 8;

/// One command's times on one core.
#[derive(Clone, Debug, Default)]
pub struct TimeFigures {
    /// Calls measured.
    pub count: u64,
    /// Their time.
    pub nanos: u64,
    /// The same, each as often as there were calls since the one measured before. It never becomes less, as a product
    /// of the mean and of all calls may.
    pub all_nanos: u64,
    /// How they spread; empty while `latency-tracking` is off.
    pub histogram: Histogram,
}

impl TimeFigures {
    /// Adds another core's.
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.nanos += other.nanos;
        self.all_nanos += other.all_nanos;
        self.histogram.add(&other.histogram);
    }

    /// Mean time in microseconds.
    pub fn mean_us(&self) -> f64 {
        self.nanos as f64 / self.count.max(1) as f64 / 1_000.0
    }
}

/// A command that is being measured.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    place: usize,
    started: Instant,
}

#[derive(Clone, Debug)]
struct Timing {
    known: Known,
    /// Calls so far, measured or not.
    seen: u32,
    /// Of these, those up to the last one measured.
    seen_measured: u32,
    /// It takes the same time whatever the data.
    is_constant: bool,
    /// It takes little time for each of its words.
    is_fast: bool,
    figures: TimeFigures,
}

/// What one core has measured.
pub struct Timings {
    stopwatch: fn() -> Instant,
    /// By the command's place in the catalog.
    commands: Vec<Timing>,
    /// Places found lately, by where the command's record lies.
    places: Box<[(usize, usize); PLACES]>,
    /// Long delays.
    pub(crate) delays: Delays,
    /// The latest work that took long: what, when it ended, and how long it took.
    heavy: VecDeque<(&'static str, Instant, Duration)>,
    /// Slow commands with a client that has yet to be named.
    slow: Vec<SlowEntry>,
    /// The stopwatch was read when the previous command ended, and nothing has been done since.
    reading: Option<Instant>,
    /// Calls that take a short time whatever the data may be slow enough to be noted.
    wants_quick: bool,
    /// Others may.
    wants_others: bool,
    slow_us: i64,
    delay_ms: u64,
    has_histograms: bool,
    pub(crate) unix: UnixMillis,
    /// What keys take, if somebody wants to know.
    hot: Option<Box<Hot>>,
    /// Which have taken the most lately.
    recent: Recent,
}

const PLACES: usize = 512;

/// True for one call of each [`SAMPLE`]: at first the first, and then another one each time, so that requests that come
/// again and again in the same order are all measured.
#[inline]
fn is_sampled(seen: u32) -> bool {
    /// 2^32 over the golden ratio: its multiples spread evenly over all 32 bits.
    const SPREAD: u32 = 0x9E37_79B9;
    let (block, place) = (seen / SAMPLE, seen % SAMPLE);
    place == (block.wrapping_mul(SPREAD) >> (32 - SAMPLE.ilog2())) ^ 1
}

impl Timings {
    pub(crate) fn new(stopwatch: fn() -> Instant, settings: &Settings) -> Self {
        let is_constant = |known: Known| match known {
            Known::Data(command) => command.complexity == "O(1)",
            // What they do on the side is not always told.
            Known::Control(command) => command.complexity() == "O(1)" && command.has(Flag::Fast),
        };
        let timing = |known: Known| Timing {
            known,
            seen: 0,
            seen_measured: 0,
            is_constant: is_constant(known),
            is_fast: matches!(known, Known::Data(_)) && known.has(Flag::Fast),
            figures: TimeFigures::default(),
        };
        let mut this = Self {
            stopwatch,
            commands: catalog().entries().iter().map(|entry| timing(entry.known)).collect(),
            places: Box::new([(0, 0); PLACES]),
            delays: Delays::default(),
            heavy: VecDeque::new(),
            slow: Vec::new(),
            reading: None,
            wants_quick: false,
            wants_others: false,
            slow_us: -1,
            delay_ms: 0,
            has_histograms: false,
            unix: UnixMillis(0),
            hot: None,
            recent: Recent::new(),
        };
        this.obey(settings);
        this
    }

    /// Does as the configuration says.
    pub(crate) fn obey(&mut self, settings: &Settings) {
        /// Such a call takes no longer than this.
        const QUICK_US_MAX: i64 = 1_000;
        self.slow_us = settings.slow_us;
        self.delay_ms = settings.latency_threshold_ms;
        // An operator who monitors delays wants to know of those that should not be.
        self.wants_quick = (0..QUICK_US_MAX).contains(&self.slow_us) || self.delay_ms > 0;
        self.wants_others = self.slow_us >= 0 || self.delay_ms > 0;
        let had_histograms = std::mem::replace(&mut self.has_histograms, settings.tracks_latency);
        if had_histograms && !self.has_histograms {
            self.commands.iter_mut().for_each(|timing| timing.figures.histogram = Histogram::default());
        }
    }

    /// Sets everything measured by command to zero.
    pub(crate) fn reset(&mut self) {
        for timing in &mut self.commands {
            (timing.seen, timing.seen_measured) = (0, 0);
            timing.figures = TimeFigures::default();
        }
    }

    /// The place of a request's command in the catalog.
    #[inline]
    pub(crate) fn place_of(&mut self, known: Known, args: Args<'_>) -> usize {
        self.place_within(known, || container_of(known, args))
    }

    /// The place in the catalog of a command that may be within a container.
    #[inline]
    pub(crate) fn place_within(&mut self, known: Known, container: impl FnOnce() -> Option<&'static str>) -> usize {
        let address = known.address();
        let (found, place) = self.places[address / align_of::<usize>() % PLACES];
        if found == address { place } else { self.look_up(known, container()) }
    }

    #[cold]
    fn look_up(&mut self, known: Known, container: Option<&'static str>) -> usize {
        let name = full_name(known, container);
        let place = catalog().place_of(&name).expect("every command is in the catalog");
        let address = known.address();
        self.places[address / align_of::<usize>() % PLACES] = (address, place);
        place
    }

    /// The next command does not follow on the last one measured.
    #[inline]
    pub(crate) fn break_off(&mut self) {
        self.reading = None;
    }

    /// True if a call must be measured, no matter which node or core carries it out.
    #[inline]
    pub(crate) fn wants(&mut self, known: Known, args: Args<'_>) -> bool {
        let place = self.place_of(known, args);
        self.wants_at(place, args)
    }

    #[inline]
    fn wants_at(&mut self, place: usize, args: Args<'_>) -> bool {
        let timing = &mut self.commands[place];
        timing.seen = timing.seen.wrapping_add(1);
        let is_quick = timing.is_constant || (timing.is_fast && args.len() <= QUICK_WORDS_MAX);
        let is_wanted = if is_quick { self.wants_quick } else { self.wants_others };
        is_wanted || is_sampled(timing.seen) || self.hot.is_some()
    }

    /// A command begins. `None` if this call is not measured.
    #[inline]
    pub(crate) fn start(&mut self, known: Known, args: Args<'_>) -> Option<Watch> {
        let place = self.place_of(known, args);
        let last = self.reading.take();
        self.wants_at(place, args).then(|| Watch { place, started: last.unwrap_or_else(self.stopwatch) })
    }

    /// It has ended.
    #[inline]
    pub(crate) fn stop(&mut self, watch: Watch, args: Args<'_>) {
        let took = self.read(&watch);
        self.note_delay(watch.place, took);
        self.record(watch.place, took, args);
    }

    /// A command begins that a gateway has asked for, and may want to have measured.
    #[inline]
    pub(crate) fn start_for_gateway(&mut self, known: Known, args: Args<'_>, is_wanted: bool) -> Option<Watch> {
        let last = self.reading.take();
        // An operator who monitors delays wants to know of all that happen here.
        (is_wanted || self.delay_ms > 0)
            .then(|| Watch { place: self.place_of(known, args), started: last.unwrap_or_else(self.stopwatch) })
    }

    /// It has ended, and took so long.
    #[inline]
    pub(crate) fn stop_for_gateway(&mut self, watch: Watch) -> Duration {
        let took = self.read(&watch);
        self.note_delay(watch.place, took);
        took
    }

    /// The time since a command began; it may be when the next one does.
    #[inline]
    fn read(&mut self, watch: &Watch) -> Duration {
        let now = (self.stopwatch)();
        self.reading = Some(now);
        now.since(watch.started)
    }

    /// Notes a command that took so long here.
    pub(crate) fn note(&mut self, known: Known, args: Args<'_>, took: Duration) {
        let place = self.place_of(known, args);
        self.note_delay(place, took);
        self.record(place, took, args);
    }

    /// Notes a command that took so long, on whichever node it was carried out.
    pub(crate) fn note_answered(&mut self, known: Known, args: Args<'_>, took: Duration) {
        let place = self.place_of(known, args);
        self.record(place, took, args);
    }

    #[inline]
    fn record(&mut self, place: usize, took: Duration, args: Args<'_>) {
        let nanos = took.as_nanos() as u64;
        let timing = &mut self.commands[place];
        let stands_for = timing.seen.wrapping_sub(timing.seen_measured).max(1);
        timing.seen_measured = timing.seen;
        let figures = &mut timing.figures;
        figures.count += 1;
        figures.nanos += nanos;
        figures.all_nanos = figures.all_nanos.saturating_add(nanos.saturating_mul(u64::from(stands_for)));
        if self.has_histograms {
            figures.histogram.note(nanos);
        }
        let known = timing.known;
        self.recent.add(known, args, nanos, u64::from(stands_for), self.unix);
        if let Some(hot) = &mut self.hot {
            hot.add_time(known, args, nanos, self.unix);
        }
        if self.slow_us >= 0 && nanos / 1_000 >= self.slow_us.unsigned_abs() {
            self.record_slow(place, nanos, args);
        }
    }

    #[inline]
    fn note_delay(&mut self, place: usize, took: Duration) {
        if took >= HEAVY_WORK_MIN {
            self.note_heavy(catalog().entries()[place].full_name.as_str(), took);
        }
        if self.delay_ms > 0 {
            let known = self.commands[place].known;
            if !known.has(Flag::Blocking) {
                self.note_work(if known.has(Flag::Fast) { "fast-command" } else { "command" }, took);
            }
        }
    }

    #[cold]
    fn record_slow(&mut self, place: usize, nanos: u64, args: Args<'_>) {
        let known = self.commands[place].known;
        if !known.has(Flag::SkipSlowlog) && self.slow.len() < SLOW_COUNT_MAX {
            self.slow.push(SlowEntry {
                number: 0,
                ended: (self.stopwatch)(),
                unix_seconds: self.unix.0.div_euclid(1_000),
                took_us: nanos / 1_000,
                words: shorten(known, args),
                address: String::new(),
                name: Vec::new(),
            });
        }
    }

    /// True if slow commands wait for their client's name.
    #[inline]
    pub(crate) fn has_slow(&self) -> bool {
        !self.slow.is_empty()
    }

    /// These commands, which then wait no more.
    pub(crate) fn take_slow(&mut self) -> Vec<SlowEntry> {
        std::mem::take(&mut self.slow)
    }

    /// Remembers work that took so long and has just ended.
    #[cold]
    fn note_heavy(&mut self, what: &'static str, took: Duration) {
        if self.heavy.len() == HEAVY_WORK_COUNT_MAX {
            self.heavy.pop_front();
        }
        self.heavy.push_back((what, (self.stopwatch)(), took));
    }

    /// What took longest of the work that has ended since then, if any took long.
    pub(crate) fn heaviest_since(&self, since: Instant) -> Option<&'static str> {
        let recent = self.heavy.iter().filter(|(_, ended, _)| *ended >= since);
        recent.max_by_key(|(.., took)| *took).map(|(what, ..)| *what)
    }

    /// Begins to measure a slice of work that no command asked for.
    #[inline]
    pub(crate) fn start_work(&self) -> Instant {
        (self.stopwatch)()
    }

    /// Ends that.
    #[inline]
    pub(crate) fn stop_work(&mut self, cause: &'static str, started: Instant) {
        let took = (self.stopwatch)().since(started);
        if took >= HEAVY_WORK_MIN {
            self.note_heavy(cause, took);
        }
        self.note_work(cause, took);
    }

    /// Notes work that took so long.
    pub(crate) fn note_work(&mut self, cause: &'static str, took: Duration) {
        let millis = took.as_millis() as u64;
        if self.delay_ms > 0 && millis >= self.delay_ms {
            self.delays.note(cause, self.unix, millis);
        }
    }

    /// The keys that have taken the most lately.
    pub(crate) fn hot_keys(&self) -> HotKeys {
        self.recent.told(self.unix)
    }

    /// Begins to count what keys take. False if that is going on.
    pub(crate) fn start_hot(&mut self, plan: Plan) -> bool {
        let is_new = !self.hot_is_active();
        if is_new {
            self.hot = Some(Box::new(Hot::new(plan)));
        }
        is_new
    }

    /// Ends that. False if it was not going on.
    pub(crate) fn stop_hot(&mut self, cpu_us: (u64, u64)) -> bool {
        let unix = self.unix;
        let active = self.hot.as_mut().filter(|hot| hot.is_active(unix));
        active.map(|hot| hot.stopped = Some((unix, cpu_us))).is_some()
    }

    /// What has been counted.
    pub(crate) fn hot(&self) -> Option<Box<Hot>> {
        self.hot.clone()
    }

    /// Forgets that, unless it is going on.
    pub(crate) fn reset_hot(&mut self) {
        if !self.hot_is_active() {
            self.hot = None;
        }
    }

    /// True while what keys take is counted.
    #[inline]
    pub(crate) fn hot_is_active(&self) -> bool {
        self.hot.as_ref().is_some_and(|hot| hot.is_active(self.unix))
    }

    /// True while bytes are counted, for which requests are remembered until they are answered.
    #[inline]
    pub(crate) fn hot_weighs(&self) -> bool {
        self.hot.as_ref().is_some_and(|hot| hot.plan.counts_bytes && hot.is_active(self.unix))
    }

    /// A request and its reply have so many bytes.
    pub(crate) fn weigh(&mut self, load: &Load, reply_bytes: usize) {
        if let Some(hot) = self.hot.as_mut().filter(|hot| hot.stopped.is_none()) {
            hot.add_bytes(load, reply_bytes);
        }
    }

    /// What has been measured of each command, by place in the catalog.
    pub(crate) fn figures(&self, with_histograms: bool) -> Vec<(usize, TimeFigures)> {
        let measured = self.commands.iter().enumerate().filter(|(_, timing)| timing.figures.count > 0);
        let told = |figures: &TimeFigures| match with_histograms {
            true => figures.clone(),
            false => TimeFigures { histogram: Histogram::default(), ..*figures },
        };
        measured.map(|(place, timing)| (place, told(&timing.figures))).collect()
    }

    /// The stopwatch.
    pub(crate) fn stopwatch(&self) -> fn() -> Instant {
        self.stopwatch
    }
}

/// Slow commands of one step that are remembered.
const SLOW_COUNT_MAX: usize = 1_000;

// ---- how times spread -----------------------------------------------------------------------------------------------

/// Counts of times, in classes that are a sixty-fourth of their times wide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// As far as the longest time needs it.
    counts: Vec<u64>,
}

impl Histogram {
    const PARTS: u64 = 64;
    /// Longer times count as this.
    const NANOS_MAX: u64 = (1 << 40) - 1;

    fn class_of(nanos: u64) -> usize {
        let nanos = nanos.min(Self::NANOS_MAX);
        if nanos < Self::PARTS {
            return nanos as usize;
        }
        // Times from one power of two to the next are divided into as many classes.
        let shift = nanos.ilog2() - Self::PARTS.ilog2();
        (Self::PARTS * u64::from(shift) + (nanos >> shift)) as usize
    }

    /// The longest time of a class.
    fn longest(class: usize) -> u64 {
        let class = class as u64;
        if class < Self::PARTS {
            return class;
        }
        let shift = class / Self::PARTS - 1;
        (((class - Self::PARTS * shift) + 1) << shift) - 1
    }

    pub(crate) fn note(&mut self, nanos: u64) {
        let class = Self::class_of(nanos);
        if self.counts.len() <= class {
            self.counts.resize(class + 1, 0);
        }
        self.counts[class] += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        self.counts.iter_mut().zip(&other.counts).for_each(|(own, more)| *own += more);
    }

    /// What has been counted since an earlier state of the same counts. Counts that were set back start over.
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |class: usize| earlier.counts.get(class).copied().unwrap_or(0);
        let counts = self.counts.iter().enumerate().map(|(class, count)| count.saturating_sub(before(class)));
        Self { counts: counts.collect() }
    }

    /// How many times there are.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The nanoseconds that so many percent of all times do not exceed.
    pub fn percentile(&self, percent: f64) -> u64 {
        let wanted = ((self.total() as f64 * percent / 100.0).ceil() as u64).max(1);
        let mut sum = 0;
        let reached = self.counts.iter().position(|count| {
            sum += count;
            sum >= wanted
        });
        Self::longest(reached.unwrap_or(self.counts.len().saturating_sub(1)))
    }

    /// Times below these powers of two of a nanosecond, which are no less than a microsecond: how many there are. In
    /// ascending order.
    pub fn below(&self, powers: impl Iterator<Item = u32>) -> Vec<(u64, u64)> {
        let (mut class, mut sum) = (0, 0);
        powers
            .map(|power| {
                // Classes do not lie astride a power of two.
                while class < self.counts.len() && Self::longest(class) < 1 << power {
                    sum += self.counts[class];
                    class += 1;
                }
                (1 << power, sum)
            })
            .collect()
    }

    /// Times up to 1, 2, 4, … microseconds: the bound, and how many there are; only bounds that some come up to.
    pub fn doubling(&self) -> Vec<(u64, u64)> {
        let mut steps: Vec<(u64, u64)> = Vec::new();
        let mut sum = 0;
        for (class, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            sum += count;
            // A microsecond counts as 1,024 nanoseconds here, so that no class lies astride a bound.
            let bound = (Self::longest(class) + 1).next_power_of_two().max(1_024) >> 10;
            match steps.last_mut() {
                Some((last, reached)) if *last == bound => *reached = sum,
                _ => steps.push((bound, sum)),
            }
        }
        steps
    }
}

// ---- long delays ----------------------------------------------------------------------------------------------------

/// Delays longer than `latency-monitor-threshold`, by what caused them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    by_cause: BTreeMap<&'static str, Samples>,
}

/// Delays of one cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    /// Unix time in seconds, and the longest delay of that second in milliseconds; the oldest first.
    pub samples: VecDeque<(i64, u64)>,
    /// The longest ever.
    pub longest_ms: u64,
}

/// Seconds remembered of one cause.
const SAMPLES_MAX: usize = 160;

impl Delays {
    /// Notes a delay.
    pub(crate) fn note(&mut self, cause: &'static str, unix: UnixMillis, millis: u64) {
        self.by_cause.entry(cause).or_default().note(unix.0.div_euclid(1_000), millis, millis);
    }

    /// Adds another core's.
    pub(crate) fn add(&mut self, other: Self) {
        for (cause, theirs) in other.by_cause {
            let own = self.by_cause.entry(cause).or_default();
            for (second, millis) in theirs.samples {
                own.note(second, millis, theirs.longest_ms);
            }
        }
    }

    /// All of them, by cause.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Samples)> {
        self.by_cause.iter().map(|(cause, samples)| (*cause, samples))
    }

    /// Those of one cause.
    pub fn of(&self, cause: &[u8]) -> Option<&Samples> {
        self.by_cause.iter().find(|(name, _)| name.as_bytes() == cause).map(|(_, samples)| samples)
    }

    /// Forgets these causes, or all if none is named. Says which were known.
    pub(crate) fn reset(&mut self, causes: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let is_meant = |cause: &str| causes.is_empty() || causes.iter().any(|other| other == cause.as_bytes());
        let gone =
            self.by_cause.keys().filter(|cause| is_meant(cause)).map(|cause| cause.as_bytes().to_vec()).collect();
        self.by_cause.retain(|cause, _| !is_meant(cause));
        gone
    }
}

impl Samples {
    fn note(&mut self, second: i64, millis: u64, longest_ms: u64) {
        self.longest_ms = self.longest_ms.max(longest_ms);
        // Those of other cores may be older than the own.
        let place = self.samples.partition_point(|(other, _)| *other < second);
        match self.samples.get_mut(place) {
            Some((other, known)) if *other == second => *known = millis.max(*known),
            _ => self.samples.insert(place, (second, millis)),
        }
        if self.samples.len() > SAMPLES_MAX {
            self.samples.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_remembered_only_where_bytes_are_counted() {
        for (counts_time, counts_bytes) in [(true, false), (false, true)] {
            let mut timings = Timings::new(Instant::default, &Settings::default());
            let plan = Plan {
                counts_time,
                counts_bytes,
                key_count: 1,
                ratio: 1,
                slots: std::collections::BTreeSet::new(),
                began: UnixMillis(0),
                ends: None,
                cpu_us: (0, 0),
                seed: 1,
            };
            assert!(timings.start_hot(plan));
            assert_eq!(timings.hot_weighs(), counts_bytes);
        }
    }

    #[test]
    fn classes_of_times_are_narrow_and_without_gaps() {
        for class in 1..2_000 {
            let first = Histogram::longest(class - 1) + 1;
            let last = Histogram::longest(class);
            assert_eq!((Histogram::class_of(first), Histogram::class_of(last)), (class, class));
            assert!((last - first) * Histogram::PARTS <= last, "class {class}: {first}..={last}");
        }
    }

    #[test]
    fn percentiles_are_times_that_so_many_do_not_exceed() {
        let mut histogram = Histogram::default();
        (1..=1_000).for_each(|micros| histogram.note(micros * 1_000));
        for (percent, micros) in [(0.0, 1), (50.0, 500), (99.0, 990), (100.0, 1_000)] {
            let nanos = histogram.percentile(percent);
            let wanted = micros * 1_000;
            assert!((wanted..=wanted + wanted / 60 + 1).contains(&nanos), "{percent}: {nanos}");
        }
        assert_eq!(histogram.doubling().last(), Some(&(1_024, 1_000)));
        assert!(histogram.doubling().is_sorted());
        // 1 to 1,000 microseconds: one is below 1,024 nanoseconds, and all are below 2^20 of them.
        assert_eq!(
            histogram.below([10, 11, 20, 21].into_iter()),
            [(1 << 10, 1), (1 << 11, 2), (1 << 20, 1_000), (1 << 21, 1_000)]
        );
    }

    #[test]
    fn delays_of_one_second_count_as_the_longest() {
        let mut delays = Delays::default();
        for (millis, delay) in [(1_000, 20), (1_900, 30), (2_000, 10)] {
            delays.note("command", UnixMillis(millis), delay);
        }
        let mut others = Delays::default();
        others.note("command", UnixMillis(1_500), 40);
        others.note("expire-cycle", UnixMillis(1_500), 5);
        delays.add(others);
        let samples = delays.of(b"command").expect("noted");
        assert_eq!(samples.samples, [(1, 40), (2, 10)]);
        assert_eq!(samples.longest_ms, 40);
        assert_eq!(delays.reset(&[b"expire-cycle".to_vec(), b"nothing".to_vec()]), [b"expire-cycle".to_vec()]);
        assert_eq!(delays.reset(&[]), [b"command".to_vec()]);
    }
}

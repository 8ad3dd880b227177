//! The figures of a node, second by second, for a day.
//!
//! Samples are kept in chunks of a minute. A sample says which figures differ from the sample before it, and by how
//! much, so that a quiet second takes few bytes. The oldest chunk goes when it is a day old, or when all together take
//! more than their bound.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use node::metrics::{SERIES, Totals};
use stdx::leb128;

use crate::clock;
use crate::fault::Fault;
use crate::host::Host;
use crate::limits::{CONSOLE_SAMPLE_INTERVAL, HISTORY_BYTES_MAX, HISTORY_MAX, HISTORY_POINTS_MAX};
use crate::metrics;
use crate::run::start;

/// How far a second has got when it is measured: sleeps do not end exactly.
const SECOND_BEGUN: Duration = Duration::from_millis(50);

/// Stalls of so many microseconds are drawn over the time that they lasted. Where a sample is taken, shorter ones are
/// counted that have ended since the sample before.
const LONG_STALL_US: u64 = 100_000;

/// So many of them are remembered; more are counted like short ones.
const LONG_STALLS_MAX: usize = 4_096;

/// Samples in a chunk.
const CHUNK_COUNT: usize = 60;

/// The figures of one second, in the order of [`SERIES`].
type Sample = [Option<u64>; SERIES.len()];

const NOTHING: Sample = [None; SERIES.len()];

const _: () = assert!(SERIES.len() <= 64, "a word of 64 bits says which figures differ");

/// What is remembered.
#[derive(Default)]
pub struct History {
    chunks: VecDeque<Chunk>,
    byte_count: usize,
    /// The last sample, from which the next one differs.
    last: Option<(i64, Sample)>,
    /// Long stalls: when each ended, as Unix time in milliseconds, and how many microseconds it lasted.
    long_stalls: VecDeque<(i64, u64)>,
}

#[derive(Default)]
struct Chunk {
    first_ms: i64,
    last_ms: i64,
    count: usize,
    bytes: Vec<u8>,
}

/// Samples put together, so that there are no more than wanted.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Excerpt {
    /// How much time each of them stands for, in milliseconds.
    pub step_ms: i64,
    /// When each begins, as Unix time in milliseconds.
    pub at_ms: Vec<i64>,
    /// For each of [`SERIES`], a value for each of them.
    pub values: Vec<Vec<Option<u64>>>,
}

impl History {
    /// Adds what was measured at this time. A clock that was set back makes the history start over: of two samples for
    /// the same second nobody would know which is meant.
    pub fn note(&mut self, at_ms: i64, sample: &Sample) {
        if self.last.is_some_and(|(last_ms, _)| at_ms <= last_ms) {
            *self = Self::default();
        }
        if self.chunks.back().is_none_or(|chunk| chunk.count >= CHUNK_COUNT) {
            if let Some(full) = self.chunks.back_mut() {
                full.bytes.shrink_to_fit();
            }
            self.chunks.push_back(Chunk { first_ms: at_ms, last_ms: at_ms, ..Chunk::default() });
            self.last = Some((at_ms, NOTHING));
        }
        let (last_ms, last) = self.last.unwrap_or((at_ms, NOTHING));
        let chunk = self.chunks.back_mut().expect("one has just been put there");
        let before = chunk.bytes.len();
        leb128::put(&mut chunk.bytes, at_ms.abs_diff(last_ms));
        let differing = (0..SERIES.len()).filter(|place| sample[*place] != last[*place]);
        leb128::put(&mut chunk.bytes, differing.clone().fold(0, |mask, place| mask | 1 << place));
        for place in differing {
            let difference = code(sample[place]).wrapping_sub(code(last[place])).cast_signed();
            leb128::put(&mut chunk.bytes, (difference << 1 ^ difference >> 63).cast_unsigned());
        }
        (chunk.last_ms, chunk.count) = (at_ms, chunk.count + 1);
        self.byte_count += chunk.bytes.len() - before;
        self.last = Some((at_ms, *sample));
        self.forget(at_ms);
    }

    /// Adds a long stall. False if there are too many.
    pub fn note_stall(&mut self, ended_ms: i64, took_us: u64) -> bool {
        let has_room = self.long_stalls.len() < LONG_STALLS_MAX;
        if has_room {
            self.long_stalls.push_back((ended_ms, took_us));
        }
        has_room
    }

    /// Adds long stalls to values that begin at `from_ms`, one each `step_ms`: to each the part of the time of one core
    /// that was lost in it.
    fn draw_stalls(&self, from_ms: i64, step_ms: i64, values: &mut [Option<u64>]) {
        for (ended_ms, took_us) in &self.long_stalls {
            let began_ms = ended_ms - (took_us / 1_000).cast_signed();
            let first = (began_ms - from_ms).max(0) / step_ms;
            for (place, value) in values.iter_mut().enumerate().skip(first as usize) {
                let at_ms = from_ms + place as i64 * step_ms;
                let lost_ms = (at_ms + step_ms).min(*ended_ms) - at_ms.max(began_ms);
                if lost_ms <= 0 {
                    break;
                }
                *value = Some(value.unwrap_or(0) + (lost_ms * 1_000 / step_ms).cast_unsigned());
            }
        }
    }

    fn forget(&mut self, now_ms: i64) {
        let oldest_ms = now_ms - HISTORY_MAX.as_millis() as i64;
        self.long_stalls.retain(|(ended_ms, _)| *ended_ms >= oldest_ms);
        while self.chunks.len() > 1
            && self.chunks.front().is_some_and(|chunk| chunk.last_ms < oldest_ms || self.byte_count > HISTORY_BYTES_MAX)
        {
            let gone = self.chunks.pop_front().expect("there are two at least");
            self.byte_count -= gone.bytes.len();
        }
    }

    /// Bytes that samples take.
    pub fn byte_count(&self) -> usize {
        self.byte_count
    }

    /// What was from then to then, in no more than so many values each. Figures of several seconds are put together as
    /// [`SERIES`] says; what nobody has measured is `None`.
    pub fn between(&self, from_ms: i64, to_ms: i64, count_max: usize) -> Excerpt {
        let wanted = i64::try_from(count_max.clamp(1, HISTORY_POINTS_MAX)).unwrap_or(1);
        // No more than there is: an excerpt is made of what is here, whatever is asked for.
        let first_ms = self.chunks.front().map_or(to_ms, |chunk| chunk.first_ms);
        let last_ms = self.chunks.back().map_or(to_ms, |chunk| chunk.last_ms);
        let (from_ms, to_ms) = (from_ms.max(first_ms), to_ms.min(last_ms));
        if from_ms > to_ms || self.chunks.is_empty() {
            return Excerpt { step_ms: 1_000, at_ms: Vec::new(), values: vec![Vec::new(); SERIES.len()] };
        }
        let step_ms = ((to_ms - from_ms) / wanted / 1_000 + 1) * 1_000;
        // The same moments whatever the beginning, so that a line does not shiver while time goes by.
        let from_ms = from_ms.div_euclid(step_ms) * step_ms;
        let count = ((to_ms - from_ms) / step_ms + 1) as usize;
        let mut sums = vec![vec![(0_u128, 0_u64, 0_u64); count]; SERIES.len()];
        for chunk in self.chunks.iter().filter(|chunk| chunk.last_ms >= from_ms && chunk.first_ms <= to_ms) {
            chunk.read(|at_ms, sample| {
                if at_ms < from_ms || at_ms > to_ms {
                    return;
                }
                let place = ((at_ms - from_ms) / step_ms) as usize;
                for (sums, value) in sums.iter_mut().zip(sample) {
                    if let Some(value) = value {
                        let (sum, peak, count) = &mut sums[place];
                        (*sum, *peak, *count) = (*sum + u128::from(*value), (*peak).max(*value), *count + 1);
                    }
                }
            });
        }
        let values = SERIES.iter().zip(sums).map(|(series, sums)| {
            let value = |(sum, peak, count): (u128, u64, u64)| match (count, series.is_peak) {
                (0, _) => None,
                (_, true) => Some(peak),
                (_, false) => u64::try_from(sum / u128::from(count)).ok(),
            };
            sums.into_iter().map(value).collect()
        });
        let mut values: Vec<Vec<_>> = values.collect();
        if let Some(stalled) = SERIES.iter().position(|series| series.name == "stalled") {
            self.draw_stalls(from_ms, step_ms, &mut values[stalled]);
        }
        Excerpt { step_ms, at_ms: (0..count as i64).map(|place| from_ms + place * step_ms).collect(), values }
    }
}

/// A figure as a number; that nobody knows it is a number, too.
fn code(value: Option<u64>) -> u64 {
    value.map_or(0, |value| value.saturating_add(1))
}

impl Chunk {
    fn read(&self, mut see: impl FnMut(i64, &Sample)) {
        const OWN: &str = "what was written here is read as it was written";
        let mut rest = &self.bytes[..];
        let (mut at_ms, mut sample) = (self.first_ms, NOTHING);
        while !rest.is_empty() {
            at_ms += leb128::take(&mut rest).expect(OWN).cast_signed();
            let mut mask = leb128::take(&mut rest).expect(OWN);
            while mask != 0 {
                let place = mask.trailing_zeros() as usize;
                mask &= mask - 1;
                let folded = leb128::take(&mut rest).expect(OWN);
                let difference = folded >> 1 ^ (folded & 1).wrapping_neg();
                sample[place] = code(sample[place]).wrapping_add(difference).checked_sub(1);
            }
            see(at_ms, &sample);
        }
    }
}

/// Measures the node every second, as long as the process lives.
///
/// # Errors
/// If the thread cannot be started.
pub fn keep(host: Arc<Host>, history: Arc<Mutex<History>>) -> Result<(), Fault> {
    start("history", move || {
        let mut last: Option<(stdx::Instant, Totals)> = None;
        let (mut stall_count, mut drawn_us) = (0, 0);
        loop {
            let now = clock::now();
            // A core that is busy for a second leaves a gap, and that is what there was.
            let measured = metrics::measure(&host, CONSOLE_SAMPLE_INTERVAL);
            let totals = measured.map(|(gathered, facts)| {
                let stalls = facts.stalls();
                let fresh_count = usize::try_from(stalls.count.saturating_sub(stall_count)).unwrap_or(usize::MAX);
                stall_count = stalls.count;
                let mut history = history.lock().unwrap_or_else(PoisonError::into_inner);
                for stall in stalls.iter().rev().take(fresh_count).filter(|stall| stall.took_us >= LONG_STALL_US) {
                    if history.note_stall(stall.unix.0, stall.took_us) {
                        drawn_us += stall.took_us;
                    }
                }
                let mut totals = Totals::of(&gathered, &facts);
                totals.leave_out_stalls(drawn_us);
                totals
            });
            if let (Some((then, earlier)), Some(totals)) = (&last, &totals) {
                let sample = totals.since(earlier, now.instant.since(*then));
                history.lock().unwrap_or_else(PoisonError::into_inner).note(now.unix.0, &sample);
            }
            last = totals.map(|totals| (now.instant, totals));
            // Always as early in a second of the wall clock, so that each second has one sample.
            let past_ms = clock::unix_millis().0.rem_euclid(1_000).cast_unsigned();
            std::thread::sleep(CONSOLE_SAMPLE_INTERVAL - Duration::from_millis(past_ms) + SECOND_BEGUN);
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(first: u64, peak: Option<u64>) -> Sample {
        let mut sample = NOTHING;
        sample[0] = Some(first);
        sample[PEAK] = peak;
        sample
    }

    /// A figure of which the highest counts.
    const PEAK: usize = 21;

    #[test]
    fn what_was_noted_is_told_again() {
        assert!(SERIES[PEAK].is_peak && !SERIES[0].is_peak);
        let mut history = History::default();
        let odd = [0, 1, u64::MAX - 1, 7, u64::MAX / 2];
        for second in 0..200 {
            let peak = (second % 3 > 0).then(|| odd[second % 5]);
            history.note(1_000 * second as i64 + 17, &sample(second as u64 * 3, peak));
        }
        let all = history.between(0, 300_000, 1_000);
        assert_eq!((all.step_ms, all.at_ms.len()), (1_000, 200));
        for second in 0..200 {
            assert_eq!(all.values[0][second], Some(second as u64 * 3));
            assert_eq!(all.values[PEAK][second], (second % 3 > 0).then(|| odd[second % 5]), "{second}");
            assert_eq!(all.values[1][second], None);
        }
    }

    #[test]
    fn a_long_stall_is_drawn_over_the_time_that_it_lasted() {
        let stalled = SERIES.iter().position(|series| series.name == "stalled").expect("a series");
        let mut history = History::default();
        // While the core stands still nothing is measured.
        for second in (0..5).chain(10..20) {
            let mut sample = sample(1, None);
            sample[stalled] = Some(0);
            history.note(1_000 * second + 50, &sample);
        }
        assert!(history.note_stall(10_000, 5_000_000));
        assert!(history.note_stall(12_250, 500_000));
        // A second core, at the same time.
        assert!(history.note_stall(9_000, 1_000_000));
        let told = history.between(0, 19_999, 1_000).values[stalled].clone();
        let lost: Vec<u64> = told.iter().flatten().copied().collect();
        let expected = [0, 0, 0, 0, 0, 1000, 1000, 1000, 2000, 1000, 0, 250, 250, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(lost, expected);
        let told = history.between(0, 19_999, 2).values[stalled].clone();
        assert_eq!(told, [Some(600), Some(50)]);
        let beyond: Vec<bool> = (0..LONG_STALLS_MAX).map(|_| history.note_stall(19_000, 100_000)).collect();
        assert!(beyond[0] && !beyond[LONG_STALLS_MAX - 1]);
    }

    #[test]
    fn few_values_stand_for_many_by_their_mean_or_their_highest() {
        let mut history = History::default();
        for second in 0..120 {
            history.note(1_000 * second, &sample(second as u64, Some(second as u64)));
        }
        let some = history.between(0, 119_000, 12);
        assert_eq!((some.step_ms, some.at_ms.len()), (10_000, 12));
        assert_eq!((some.values[0][1], some.values[PEAK][1]), (Some(14), Some(19)));
        let end = history.between(100_000, i64::MAX, 1_000);
        assert_eq!((end.at_ms[0], end.at_ms.len()), (100_000, 20));
        for (from_ms, to_ms) in [(5, 4), (i64::MIN, -1), (i64::MAX, i64::MAX), (500_000, 600_000)] {
            assert!(history.between(from_ms, to_ms, 10).at_ms.is_empty());
        }
        assert!(history.between(0, 119_000, 0).at_ms.len() <= 2);
    }

    #[test]
    fn a_day_of_wild_figures_takes_no_more_than_the_bound() {
        let mut history = History::default();
        let mut prng = stdx::Prng::new(7);
        for second in 0..90_000 {
            let mut sample = NOTHING;
            sample.iter_mut().for_each(|value| *value = Some(prng.draw() >> 24));
            history.note(1_000 * second, &sample);
        }
        assert!(history.byte_count() <= HISTORY_BYTES_MAX);
        let held: usize = history.chunks.iter().map(|chunk| chunk.bytes.capacity()).sum();
        assert!(held <= HISTORY_BYTES_MAX + 2 * CHUNK_COUNT * SERIES.len() * 10, "{held}");
        let all = history.between(i64::MIN / 2, i64::MAX, HISTORY_POINTS_MAX);
        assert!(all.at_ms.len() <= HISTORY_POINTS_MAX + 1 && all.at_ms.len() > HISTORY_POINTS_MAX / 2);
    }

    #[test]
    fn a_quiet_day_takes_little_and_a_clock_that_was_set_back_begins_anew() {
        let mut history = History::default();
        for second in 0..100_000 {
            history.note(1_000 * second, &sample(5, Some(second as u64 % 7)));
        }
        assert!(history.byte_count() < 1 << 20, "{}", history.byte_count());
        let oldest_ms = history.chunks.front().expect("chunks").first_ms;
        assert!(100_000_000 - oldest_ms <= HISTORY_MAX.as_millis() as i64 + 1_000 * CHUNK_COUNT as i64);
        history.note(50_000_000, &sample(1, None));
        assert_eq!(history.between(0, i64::MAX, 10).at_ms, [50_000_000]);
    }
}

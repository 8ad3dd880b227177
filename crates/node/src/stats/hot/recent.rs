//! Which keys have taken the most lately, counted all the time (HOLDFAST HOTKEYS).
//!
//! Of the calls that are measured anyway a few are looked at, the longer the likelier: one in [`QUICK_RATIO`] of those
//! that are short, and each that takes [`NANOS_CERTAIN`]. What is looked at weighs as much more as it was unlikelier,
//! so that sums are right on average. Of a command with several keys one is taken at random for all.
//!
//! Sums begin again every [`WINDOW_MS`]; those before are kept until then.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use resp::Args;
use stdx::{Prng, UnixMillis};

use super::{Weights, keys_of};
use crate::known::Known;

/// Of short calls one in so many is looked at.
const QUICK_RATIO: u64 = 256;

/// A call that takes so long is always looked at.
const NANOS_CERTAIN: u64 = 100_000;

/// Of a shorter time a share says little.
const LEAST_WINDOW_MS: u64 = 10_000;

/// For how long sums grow.
const WINDOW_MS: i64 = 60_000;

/// Keys that have a counter, for each of the two measures.
const KEYS_MAX: usize = 64;

/// A key is told if it has one part in so many of all, twice what its counter may be too high, and ...
const SHARE_TOLD: u64 = 32;

/// ... so many calls, several times what one that was looked at stands for, or ...
const CALLS_TOLD: u64 = 4 * QUICK_RATIO;

/// ... so much time.
const NANOS_TOLD: u64 = 10 * NANOS_CERTAIN;

/// Chances are parts of this.
const WHOLE: u64 = 1 << 16;

/// What a core has counted lately.
#[derive(Clone, Debug)]
pub(crate) struct Recent {
    prng: Prng,
    current: Window,
    /// The window before, if something was counted in it.
    previous: Option<Window>,
}

#[derive(Clone, Debug, Default)]
struct Window {
    began: UnixMillis,
    calls: Weights,
    nanos: Weights,
}

impl Window {
    fn at(began: UnixMillis) -> Self {
        Self { began, ..Self::default() }
    }

    fn is_empty(&self) -> bool {
        self.calls.all == 0
    }
}

/// A key that has taken much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotKey {
    /// Its name.
    pub key: Vec<u8>,
    /// Calls, about.
    pub calls: u64,
    /// Their time in nanoseconds, about.
    pub nanos: u64,
}

/// What has been counted lately.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HotKeys {
    /// For how long, in milliseconds.
    pub window_ms: u64,
    /// All calls, with keys or without.
    pub calls: u64,
    /// Their time in nanoseconds.
    pub nanos: u64,
    /// Keys that have taken much of either, those first that have taken the most time.
    pub keys: Vec<HotKey>,
}

impl HotKeys {
    /// Adds what another core has counted.
    pub(crate) fn join(&mut self, other: Self) {
        self.window_ms = self.window_ms.max(other.window_ms);
        self.calls += other.calls;
        self.nanos += other.nanos;
        for theirs in other.keys {
            match self.keys.iter_mut().find(|ours| ours.key == theirs.key) {
                Some(ours) => (ours.calls, ours.nanos) = (ours.calls + theirs.calls, ours.nanos + theirs.nanos),
                None => self.keys.push(theirs),
            }
        }
        self.keys.sort_by_key(|key| Reverse((key.nanos, key.calls)));
    }

    /// The part of one core's time that the hottest key takes, in thousandths.
    pub(crate) fn time_per_mille(&self) -> u64 {
        let nanos = self.keys.iter().map(|key| key.nanos).max().unwrap_or(0);
        (nanos / 1_000 / self.window_ms.max(LEAST_WINDOW_MS)).min(1_000)
    }

    /// The part of all calls that are about the key with the most, in thousandths.
    pub(crate) fn calls_per_mille(&self) -> u64 {
        let calls = self.keys.iter().map(|key| key.calls).max().unwrap_or(0);
        calls.saturating_mul(1_000).checked_div(self.calls).unwrap_or(0).min(1_000)
    }
}

impl Recent {
    pub(crate) fn new() -> Self {
        Self { prng: Prng::new(1), current: Window::default(), previous: None }
    }

    /// A command has taken so long, and stands for so many.
    pub(crate) fn add(&mut self, known: Known, args: Args<'_>, nanos: u64, stands_for: u64, unix: UnixMillis) {
        self.turn(unix);
        let all_nanos = nanos.saturating_mul(stands_for);
        self.current.calls.all += stands_for;
        self.current.nanos.all += all_nanos;
        let chance = (stands_for * WHOLE / QUICK_RATIO).max(all_nanos.saturating_mul(WHOLE) / NANOS_CERTAIN);
        if chance < WHOLE && self.prng.below(WHOLE) >= chance {
            return;
        }
        let (keys, key_count) = keys_of(known, args);
        if keys.is_empty() {
            return;
        }
        let key = keys[self.prng.below(keys.len() as u64) as usize];
        // Each of its keys is asked for once, and they share the time.
        let weight = |of: u64| (u128::from(of) * u128::from(WHOLE) / u128::from(chance.clamp(1, WHOLE))) as u64;
        let calls = weight(stands_for.saturating_mul(key_count as u64));
        // Counters may be too high by a part of all that they were given, which is more than all calls.
        self.current.calls.sampled += calls;
        self.current.calls.add_key(key, calls, KEYS_MAX);
        self.current.nanos.add_key(key, weight(all_nanos), KEYS_MAX);
    }

    /// Begins a window if the last one is over. A clock that was set back begins one, too.
    fn turn(&mut self, unix: UnixMillis) {
        let age_ms = unix.0.saturating_sub(self.current.began.0);
        if (0..WINDOW_MS).contains(&age_ms) {
            return;
        }
        let last = std::mem::replace(&mut self.current, Window::at(unix));
        self.previous = ((0..2 * WINDOW_MS).contains(&age_ms) && !last.is_empty()).then_some(last);
    }

    /// What has been counted in this window and the one before.
    pub(crate) fn told(&self, unix: UnixMillis) -> HotKeys {
        let age_ms = unix.0.saturating_sub(self.current.began.0);
        let current = Some(&self.current).filter(|_| (0..2 * WINDOW_MS).contains(&age_ms));
        let previous = self.previous.as_ref().filter(|_| (0..WINDOW_MS).contains(&age_ms));
        let mut sum = Window::at(previous.or(current).map_or(unix, |first| first.began));
        for window in [previous, current].into_iter().flatten() {
            sum.calls.join(&window.calls);
            sum.nanos.join(&window.nanos);
        }
        let is_told = |weights: &Weights, key: &[u8], least: u64| {
            weights.of(key) >= (weights.all.max(weights.sampled) / SHARE_TOLD).max(least)
        };
        let is_hot = |key: &&[u8]| is_told(&sum.calls, key, CALLS_TOLD) || is_told(&sum.nanos, key, NANOS_TOLD);
        let names: BTreeSet<&[u8]> = sum.nanos.names().chain(sum.calls.names()).filter(is_hot).collect();
        let key = |key: &[u8]| HotKey { key: key.to_vec(), calls: sum.calls.of(key), nanos: sum.nanos.of(key) };
        let mut keys: Vec<HotKey> = names.into_iter().map(key).collect();
        keys.sort_by_key(|key| Reverse((key.nanos, key.calls)));
        HotKeys {
            window_ms: unix.0.saturating_sub(sum.began.0).unsigned_abs(),
            calls: sum.calls.all,
            nanos: sum.nanos.all,
            keys,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(recent: &mut Recent, words: &[&str], nanos: u64, stands_for: u64, at_ms: i64) {
        let (buffer, spans) = crate::blocking::lay_out(words.iter().map(|word| word.as_bytes()));
        let args = Args::new(&buffer, &spans);
        let known = crate::lookup::lookup(args).expect("a command");
        recent.add(known, args, nanos, stands_for, UnixMillis(at_ms));
    }

    #[test]
    fn a_hot_key_is_told_with_about_the_calls_and_the_time_that_it_took() {
        let mut recent = Recent::new();
        // A fifth of the calls are of one key; all are quick, and every sixteenth is measured.
        for nth in 0..60_000u64 {
            let key = if nth % 5 == 0 { "hot".to_owned() } else { format!("cold{nth}") };
            add(&mut recent, &["get", &key], 500, 16, 1_000_000 + nth as i64 / 2);
        }
        let told = recent.told(UnixMillis(1_030_000));
        assert_eq!((told.calls, told.nanos, told.window_ms), (960_000, 480_000_000, 30_000));
        assert_eq!(told.keys.len(), 1, "{told:?}");
        let hot = &told.keys[0];
        assert_eq!(hot.key, b"hot");
        assert!((150_000..260_000).contains(&hot.calls), "{hot:?}");
        assert!((75_000_000..130_000_000).contains(&hot.nanos), "{hot:?}");
        assert!((150..270).contains(&told.calls_per_mille()), "{told:?}");
        // A tenth of a second within thirty.
        assert!((2..5).contains(&told.time_per_mille()), "{told:?}");
    }

    #[test]
    fn few_slow_calls_are_not_missed_and_few_quick_ones_are_not_told() {
        let mut recent = Recent::new();
        for nth in 0..1_000 {
            add(&mut recent, &["get", "idle"], 400, 16, 5_000 + nth / 100);
        }
        add(&mut recent, &["hgetall", "whale"], 40_000_000, 1, 5_100);
        add(&mut recent, &["hgetall", "whale"], 60_000_000, 1, 5_200);
        let told = recent.told(UnixMillis(6_000));
        let whale = told.keys.first().expect("the slow one");
        assert_eq!((&whale.key[..], whale.nanos), (&b"whale"[..], 100_000_000));
        let mut quiet = Recent::new();
        add(&mut quiet, &["get", "once"], 400, 1, 5_000);
        assert!(quiet.told(UnixMillis(6_000)).keys.is_empty());
    }

    #[test]
    fn what_is_of_the_last_minutes_goes_and_a_clock_that_is_set_back_ends_nothing() {
        let mut recent = Recent::new();
        let slow = |recent: &mut Recent, key: &str, at_ms| add(recent, &["hgetall", key], 50_000_000, 1, at_ms);
        let names = |recent: &Recent, at_ms| {
            let keys = recent.told(UnixMillis(at_ms)).keys;
            keys.into_iter().map(|key| String::from_utf8_lossy(&key.key).into_owned()).collect::<Vec<_>>()
        };
        slow(&mut recent, "a", 100_000);
        slow(&mut recent, "b", 170_000);
        assert_eq!(names(&recent, 171_000), ["a", "b"]);
        assert_eq!(names(&recent, 240_000), ["b"]);
        assert!(names(&recent, 400_000).is_empty());
        slow(&mut recent, "c", 390_000);
        assert_eq!(names(&recent, 391_000), ["c"]);
    }

    #[test]
    fn commands_with_many_keys_count_for_each_of_them() {
        let mut recent = Recent::new();
        for nth in 0..40_000 {
            add(&mut recent, &["mget", "x", "y"], 1_000, 16, 1_000 + nth / 2);
        }
        let told = recent.told(UnixMillis(21_000));
        assert_eq!(told.keys.len(), 2, "{told:?}");
        for key in &told.keys {
            assert!((500_000..800_000).contains(&key.calls), "{told:?}");
            assert!((240_000_000..400_000_000).contains(&key.nanos), "{told:?}");
        }
    }

    #[test]
    fn commands_with_many_keys_of_which_none_is_hot_name_none() {
        let mut recent = Recent::new();
        let mut prng = Prng::new(7);
        for nth in 0..4_000 {
            let keys: Vec<String> = (0..100).map(|_| format!("key{}", prng.below(1_000_000))).collect();
            let words: Vec<&str> = std::iter::once("mget").chain(keys.iter().map(String::as_str)).collect();
            add(&mut recent, &words, 10_000, 16, 1_000 + nth);
        }
        let told = recent.told(UnixMillis(6_000));
        assert!(told.keys.is_empty(), "{told:?}");
    }

    #[test]
    fn what_cores_tell_is_put_together() {
        let key = |name: &str, calls, nanos| HotKey { key: name.as_bytes().to_vec(), calls, nanos };
        let mut sum = HotKeys { window_ms: 1_000, calls: 10, nanos: 90, keys: vec![key("a", 5, 50), key("b", 5, 40)] };
        sum.join(HotKeys { window_ms: 2_000, calls: 7, nanos: 70, keys: vec![key("b", 7, 70)] });
        assert_eq!(sum.keys, [key("b", 12, 110), key("a", 5, 50)]);
        assert_eq!((sum.window_ms, sum.calls, sum.nanos), (2_000, 17, 160));
    }
}

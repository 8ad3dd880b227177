//! How many threads the cores share.
//!
//! Cores cost least on one thread, which wakes once for the sockets of all of them and writes their log in one piece.
//! More threads bring nothing as long as one is enough, or as long as there is no processor for a second one, for
//! instance because the clients are on the same machine. So all cores begin on the thread of the first one (see
//! `calling` for how a thread waits for another core's sockets). They are spread over twice as many threads when those
//! are busy *and* processors are idle, and over half as many when that is enough, or when the threads wait for
//! processors instead of running.
//!
//! More threads make each request dearer: what clients ask travels, and each thread finds less to do at once. On many
//! processors there is a number beyond which they only heat. So each spread is on trial: if it brings less than a
//! tenth, and each request takes a quarter more, it is taken back.
//!
//! This is a rule of thumb about speed. Nothing depends on it but that: any thread may step any core at any time.

use std::time::Duration;

/// A thread that runs for so much of the time is busy, in thousandths. Waiting for a processor does not count: a second
/// thread would wait as well.
const BUSY: u64 = 850;

/// What the threads run, in thousandths of a processor for each of half as many: then those are enough.
const LEISURE: u64 = 500;

/// Waiting for processors, in thousandths of running, that says that there are too few.
const SCARCE: u64 = 400;

/// Idle processors, in thousandths of one, that are worth a second thread.
const ROOM: u64 = 600;

/// What is true for so long is acted on.
const BUSY_FOR: Duration = Duration::from_millis(400);
const LEISURE_FOR: Duration = Duration::from_secs(3);
const SCARCE_FOR: Duration = Duration::from_secs(1);

/// A spread is on trial for so long, and at first for so long that nothing more is spread.
const TRIAL: Duration = Duration::from_secs(10);
const TRIAL_MIN: Duration = Duration::from_secs(1);

/// It fails when, for so long, it does less than this much of what was done before, while a request takes this much
/// more than before; both in thousandths. Of a request that takes more than so many times as much it is not the spread
/// that is to blame: clients ask for something else.
const TRIAL_FAILS_FOR: Duration = Duration::from_secs(1);
const TRIAL_GAIN_MIN: u64 = 1_100;
const TRIAL_PRICE_MIN: u64 = 1_250;
const TRIAL_PRICE_MAX: u64 = 3_000;

/// Fewer requests in a millisecond do not tell what a request takes.
const REQUESTS_PER_MS_MIN: u64 = 1;

/// After processors were scarce, or a trial has failed, nothing is spread for so long, and twice as long each time soon
/// after, up to a bound.
const REST_MIN: Duration = Duration::from_secs(2);
const REST_MAX: Duration = Duration::from_secs(60);

/// What the kernel has counted in some time, in microseconds.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// How long that was.
    pub window_us: u64,
    /// Of the thread of each core: running, and waiting for a processor. Empty where the kernel does not tell.
    pub threads_us: Vec<(u64, u64)>,
    /// Of all processors together; `None` where the kernel does not tell.
    pub idle_us: Option<u64>,
    /// Requests taken from clients.
    pub request_count: u64,
}

/// Decides on the number of threads.
#[derive(Debug)]
pub struct Gathering {
    core_count: usize,
    thread_count: usize,
    busy_for: Duration,
    leisure_for: Duration,
    scarce_for: Duration,
    rest: Duration,
    /// What is left of it.
    rests_for: Duration,
    /// What a request takes of a processor lately, and how many are taken in a second.
    price: Option<(u64, u64)>,
    trial: Option<Trial>,
}

/// The threads have been spread lately.
#[derive(Debug)]
struct Trial {
    /// How many there were before.
    thread_count: usize,
    /// What a request took then, and how many were taken in a second.
    price_ns: u64,
    rate: u64,
    /// What is left of the trial.
    left: Duration,
    fails_for: Duration,
}

impl Trial {
    /// Whether the spread is worth what it costs is still open.
    fn is_open(&self) -> bool {
        TRIAL - self.left < TRIAL_MIN || !self.fails_for.is_zero()
    }
}

impl Gathering {
    /// For so many cores, all of which begin on one thread.
    pub fn new(core_count: usize) -> Self {
        let zero = Duration::ZERO;
        Self {
            core_count,
            thread_count: 1,
            busy_for: zero,
            leisure_for: zero,
            scarce_for: zero,
            rest: REST_MIN,
            rests_for: zero,
            price: None,
            trial: None,
        }
    }

    /// Looks at what has happened since it was last asked. Core `i` belongs on the thread of core `i % thread_count`.
    pub fn consider(&mut self, load: &Load) -> usize {
        if load.threads_us.is_empty() {
            // Nothing is known.
            self.change(self.core_count);
            return self.thread_count;
        }
        let window = Duration::from_micros(load.window_us);
        let per_mille = |us: u64| us.saturating_mul(1_000) / load.window_us.max(1);
        let active = &load.threads_us[..self.thread_count.min(load.threads_us.len())];
        let ran: u64 = per_mille(active.iter().map(|(ran, _)| ran).sum());
        let waited: u64 = per_mille(active.iter().map(|(_, waited)| waited).sum());
        let busiest = active.iter().map(|(ran, _)| per_mille(*ran)).max().unwrap_or(0);
        let has_room = load.idle_us.is_none_or(|idle| per_mille(idle) >= ROOM);
        let half = self.thread_count.div_ceil(2) as u64;

        self.rests_for = self.rests_for.saturating_sub(window);
        let lasts = |so_far: &mut Duration, is_so: bool| {
            *so_far = if is_so { *so_far + window } else { Duration::ZERO };
            *so_far
        };
        let busy_for = lasts(&mut self.busy_for, busiest >= BUSY && has_room);
        let leisure_for = lasts(&mut self.leisure_for, ran < LEISURE * half);
        let is_scarce = waited * 1_000 >= ran * SCARCE && ran >= LEISURE && !has_room;
        let scarce_for = lasts(&mut self.scarce_for, is_scarce);

        let ran_us: u64 = active.iter().map(|(ran, _)| ran).sum();
        let is_known = per_mille(load.request_count) >= REQUESTS_PER_MS_MIN;
        let latest = is_known.then(|| (ran_us * 1_000 / load.request_count, per_mille(load.request_count * 1_000)));
        let mut failed = None;
        if let Some(trial) = &mut self.trial {
            let fails = latest.is_some_and(|(price_ns, rate)| {
                rate * 1_000 < trial.rate * TRIAL_GAIN_MIN
                    && (trial.price_ns * TRIAL_PRICE_MIN..trial.price_ns * TRIAL_PRICE_MAX)
                        .contains(&(price_ns * 1_000))
            });
            if lasts(&mut trial.fails_for, fails) >= TRIAL_FAILS_FOR {
                failed = Some(trial.thread_count);
            }
            trial.left = trial.left.saturating_sub(window);
        }
        self.trial.take_if(|trial| trial.left.is_zero());
        self.price = match (self.price, latest) {
            (Some(before), Some(latest)) => Some((before.0.midpoint(latest.0), before.1.midpoint(latest.1))),
            (_, latest) => latest,
        };

        let is_on_trial = self.trial.as_ref().is_some_and(Trial::is_open);
        if let Some(thread_count) = failed {
            self.take_back(thread_count);
        } else if self.thread_count > 1 && scarce_for >= SCARCE_FOR {
            self.take_back(self.thread_count.div_ceil(2));
        } else if self.thread_count < self.core_count
            && busy_for >= BUSY_FOR
            && self.rests_for.is_zero()
            && !is_on_trial
        {
            let (thread_count, price) = (self.thread_count, self.price);
            self.change((self.thread_count * 2).min(self.core_count));
            self.trial = price.map(|(price_ns, rate)| Trial {
                thread_count,
                price_ns,
                rate,
                left: TRIAL,
                fails_for: Duration::ZERO,
            });
        } else if self.thread_count > 1 && leisure_for >= LEISURE_FOR {
            self.change(self.thread_count.div_ceil(2));
            self.rest = REST_MIN;
        }
        self.thread_count
    }

    fn take_back(&mut self, thread_count: usize) {
        self.change(thread_count);
        self.rests_for = self.rest;
        self.rest = (self.rest * 2).min(REST_MAX);
    }

    fn change(&mut self, thread_count: usize) {
        self.thread_count = thread_count;
        (self.busy_for, self.leisure_for, self.scarce_for) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        (self.price, self.trial) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A quarter of a second in which threads ran and waited, and processors were idle, in thousandths.
    fn quarter(threads: &[(u64, u64)], idle: u64) -> Load {
        let us = |per_mille: u64| per_mille * 250;
        Load {
            window_us: 250_000,
            threads_us: threads.iter().map(|&(ran, waited)| (us(ran), us(waited))).collect(),
            idle_us: Some(us(idle)),
            request_count: 0,
        }
    }

    /// What is decided in so many seconds of the same.
    fn after(gathering: &mut Gathering, seconds: usize, load: &Load) -> usize {
        (0..seconds * 4).for_each(|_| {
            gathering.consider(load);
        });
        gathering.thread_count
    }

    #[test]
    fn a_busy_thread_gets_company_if_processors_are_idle() {
        let mut gathering = Gathering::new(8);
        let alone = |idle| quarter(&[(950, 20), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0)], idle);
        assert_eq!(after(&mut gathering, 60, &alone(300)), 1, "the clients have the other processor");
        gathering.consider(&alone(6_000));
        assert_eq!(gathering.thread_count, 1, "a moment is not enough");
        assert_eq!(after(&mut gathering, 1, &alone(6_000)), 4);
        assert_eq!(after(&mut gathering, 1, &quarter(&[(900, 0); 8], 5_000)), 8);
        assert_eq!(after(&mut gathering, 60, &quarter(&[(900, 0); 8], 5_000)), 8, "there are no more");
    }

    #[test]
    fn threads_that_idle_are_given_up_one_half_at_a_time() {
        let mut gathering = Gathering::new(6);
        assert_eq!(after(&mut gathering, 3, &quarter(&[(950, 0); 6], 9_000)), 6);
        assert_eq!(after(&mut gathering, 2, &quarter(&[(100, 0); 6], 9_000)), 6);
        assert_eq!(after(&mut gathering, 2, &quarter(&[(100, 0); 6], 9_000)), 3);
        assert_eq!(after(&mut gathering, 20, &quarter(&[(200, 0); 6], 9_000)), 1);
        assert_eq!(after(&mut gathering, 20, &quarter(&[(700, 0), (0, 0)], 9_000)), 1, "busy is more than that");
    }

    #[test]
    fn threads_that_wait_for_processors_are_given_up_and_rarely_tried_again() {
        let mut gathering = Gathering::new(2);
        let busy = quarter(&[(950, 0), (0, 0)], 1_000);
        let crowded = quarter(&[(650, 350), (650, 350)], 0);
        let mut changes = 0;
        for _ in 0..240 * 4 {
            let before = gathering.thread_count;
            let load = if before == 1 { &busy } else { &crowded };
            changes += usize::from(gathering.consider(load) != before);
        }
        assert!((4..=20).contains(&changes), "{changes} changes in four minutes");
        // Two threads that fill two processors are no crowd.
        let mut gathering = Gathering::new(2);
        after(&mut gathering, 1, &busy);
        assert_eq!(after(&mut gathering, 60, &quarter(&[(900, 80), (900, 80)], 50)), 2);
    }

    #[test]
    fn a_spread_that_makes_requests_too_dear_is_taken_back_and_rarely_tried_again() {
        // Clients that ask as fast as they are answered. Eight threads do a sixth more than four, and sixteen no more.
        let load = |threads: usize| {
            let per_second = match threads {
                ..=4 => threads as u64 * 100_000,
                8 => 470_000,
                _ => 480_000,
            };
            Load { request_count: per_second / 4, ..quarter(&vec![(980, 0); threads], 4_000) }
        };
        let mut gathering = Gathering::new(16);
        let counts: Vec<usize> = (0..240 * 4).map(|_| gathering.consider(&load(gathering.thread_count))).collect();
        let quarters_at = |count| counts[40..].iter().filter(|&&now| now == count).count();
        assert_eq!(quarters_at(8) + quarters_at(16), counts.len() - 40);
        assert!((8..160).contains(&quarters_at(16)), "{} quarters of a second on trial", quarters_at(16));
        // A spread stays if requests cost the same, or if clients ask for something else that takes ten times as long.
        let cheap = Load { request_count: 25_000, ..quarter(&[(490, 0), (490, 0)], 4_000) };
        let different = Load { request_count: 5_000, ..quarter(&[(980, 0), (980, 0)], 4_000) };
        for load_at_two in [cheap, different] {
            let mut gathering = Gathering::new(2);
            assert_eq!(after(&mut gathering, 1, &load(1)), 2);
            assert_eq!(after(&mut gathering, 20, &load_at_two), 2);
        }
    }

    #[test]
    fn where_the_kernel_counts_nothing_the_threads_decide() {
        let mut gathering = Gathering::new(2);
        let busy = Load { idle_us: None, ..quarter(&[(950, 20), (0, 0)], 0) };
        assert_eq!(after(&mut gathering, 1, &busy), 2);
        assert_eq!(Gathering::new(4).consider(&Load::default()), 4);
    }
}

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
//! processors there is a number beyond which they only heat, and that a thread is busy does not say whether it is
//! reached: where clients wait for their answers, threads are as busy as clients let them. So each change is on
//! trial. A spread that brings less than a tenth is taken back, unless it costs nothing. And where the work would fit
//! on half of the threads, those are tried: if clients get as much from them, they stay.
//!
//! This is a rule of thumb about speed. Nothing depends on it but that: any thread may step any core at any time.

use std::collections::VecDeque;
use std::time::Duration;

/// A thread that runs for so much of the time is busy, in thousandths. Waiting for a processor does not count: a second
/// thread would wait as well.
const BUSY: u64 = 850;

/// What the threads run, in thousandths of a processor for each of half as many: then those are enough.
const LEISURE: u64 = 500;

/// What they would run if a request took what it takes with half as many, in the same measure: then those are tried.
const EASE: u64 = 1_000;

/// What a request takes with half as many threads, in thousandths of what it takes with all: what was measured last,
/// but within these bounds.
const RELIEF_MIN: u64 = 500;
const RELIEF_MAX: u64 = 1_000;

/// Waiting for processors, in thousandths of running, that says that there are too few.
const SCARCE: u64 = 400;

/// Idle processors, in thousandths of one, that are worth a second thread.
const ROOM: u64 = 600;

/// What is true for so long is acted on.
const BUSY_FOR: Duration = Duration::from_millis(400);
const LEISURE_FOR: Duration = Duration::from_secs(3);
const SCARCE_FOR: Duration = Duration::from_secs(1);

/// What has been measured for so long is judged: what is good at once, and everything else.
const TRIAL_MIN: Duration = Duration::from_millis(500);
const TRIAL: Duration = Duration::from_secs(1);

/// How long is looked back at most, and at least before fewer threads are tried.
const LOOK_BACK: Duration = Duration::from_secs(3);
const LOOK_BACK_MIN: Duration = Duration::from_millis(2_500);

/// Twice as many threads must do at least so much of what was done before, if a request takes at least so much of what
/// it took; both in thousandths.
const SPREAD_RATE_MIN: u64 = 1_100;
const SPREAD_PRICE_MIN: u64 = 1_050;

/// Half as many must do at least so much of what was done before, if they are that busy; both in thousandths.
const GATHER_RATE_MIN: u64 = 950;
const GATHER_BUSY_MIN: u64 = 700;

/// If a request takes so many times as much as before, or that much less, clients ask for something else, and nothing
/// is known.
const DIFFERENT: u64 = 3;

/// While nothing is spread because a trial has failed: the same, in thousandths.
const DIFFERENT_AT_REST: u64 = 1_500;

/// Fewer requests in a millisecond do not tell what a request takes.
const REQUESTS_PER_MS_MIN: u64 = 1;

/// After processors were scarce, or a spread has failed, nothing is spread for so long, and twice as long each time
/// soon after, up to a bound.
const REST_MIN: Duration = Duration::from_secs(2);
const REST_MAX: Duration = Duration::from_secs(60);

/// After fewer threads have failed, they are not tried for so long, and twice as long each time, up to a bound.
const GATHER_REST_MIN: Duration = Duration::from_secs(10);
const GATHER_REST_MAX: Duration = Duration::from_secs(300);

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
    /// The number of threads was not the one decided on: it is fixed, or something takes long. Nothing can be learned.
    pub is_forced: bool,
}

/// Decides on the number of threads.
#[derive(Debug)]
pub struct Gathering {
    core_count: usize,
    thread_count: usize,
    busy_for: Duration,
    leisure_for: Duration,
    scarce_for: Duration,
    spreading: Rest,
    gathering: Rest,
    /// What a request took when a spread failed.
    price_at_rest_ns: Option<u64>,
    /// The number has just changed: threads are still on their way to their places.
    is_settling: bool,
    recent: Recent,
    trial: Option<Trial>,
    /// By the number of threads, rounded up to a power of two: what a request takes with half as many, in thousandths.
    reliefs: [u64; usize::BITS as usize],
}

/// Something that failed is left alone for a while, and longer each time.
#[derive(Debug)]
struct Rest {
    next: Duration,
    left: Duration,
    bounds: (Duration, Duration),
}

impl Rest {
    fn new(min: Duration, max: Duration) -> Self {
        Self { next: min, left: Duration::ZERO, bounds: (min, max) }
    }

    fn begin(&mut self) {
        self.left = self.next;
        self.next = (self.next * 2).min(self.bounds.1);
    }

    fn forget(&mut self) {
        *self = Self::new(self.bounds.0, self.bounds.1);
    }
}

/// What was measured lately with the same number of threads.
#[derive(Debug, Default)]
struct Recent {
    /// Time, running of all threads, and requests of each window, the oldest first.
    windows: VecDeque<(Duration, u64, u64)>,
}

/// What a request takes of a processor, and how many are taken in a second.
#[derive(Clone, Copy, Debug)]
struct Pace {
    price_ns: u64,
    rate: u64,
}

impl Pace {
    /// What runs at this pace, in thousandths of a processor.
    fn runs(self) -> u64 {
        self.price_ns.saturating_mul(self.rate) / 1_000_000
    }
}

impl Recent {
    fn note(&mut self, window: Duration, ran_us: u64, request_count: u64) {
        self.windows.push_back((window, ran_us, request_count));
        while self.lasts() > LOOK_BACK && self.windows.len() > 1 {
            self.windows.pop_front();
        }
    }

    fn lasts(&self) -> Duration {
        self.windows.iter().map(|&(window, ..)| window).sum()
    }

    /// In the last so much of this time. `None` if that is too little to tell.
    fn pace(&self, last: Duration) -> Option<Pace> {
        let (mut time, mut ran_us, mut count) = (Duration::ZERO, 0, 0);
        for (window, ran_in_window_us, count_in_window) in self.windows.iter().rev() {
            if time >= last {
                break;
            }
            time += *window;
            ran_us += ran_in_window_us;
            count += count_in_window;
        }
        let ms = time.as_millis() as u64;
        (ms > 0 && count >= ms * REQUESTS_PER_MS_MIN)
            .then(|| Pace { price_ns: ran_us * 1_000 / count, rate: count * 1_000 / ms })
    }
}

/// The number of threads has been changed lately, and it is open whether that is worth what it costs.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// How many threads there were before, and how things were then.
    thread_count: usize,
    before: Pace,
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
            spreading: Rest::new(REST_MIN, REST_MAX),
            gathering: Rest::new(GATHER_REST_MIN, GATHER_REST_MAX),
            price_at_rest_ns: None,
            is_settling: false,
            recent: Recent::default(),
            trial: None,
            reliefs: [RELIEF_MAX; usize::BITS as usize],
        }
    }

    /// Looks at what has happened since it was last asked. Core `i` belongs on the thread of core `i % thread_count`.
    pub fn consider(&mut self, load: &Load) -> usize {
        let window = Duration::from_micros(load.window_us);
        self.spreading.left = self.spreading.left.saturating_sub(window);
        self.gathering.left = self.gathering.left.saturating_sub(window);
        if load.is_forced {
            // A trial that is interrupted has proven nothing. Where something takes long now and then, what is seen
            // between counts as if it had been seen at a stretch.
            let leisure_for = self.leisure_for;
            self.change(self.trial.map_or(self.thread_count, |trial| trial.thread_count));
            self.leisure_for = leisure_for;
            return self.thread_count;
        }
        if load.threads_us.is_empty() {
            // Nothing is known.
            self.change(self.core_count);
            return self.thread_count;
        }
        if std::mem::take(&mut self.is_settling) {
            return self.thread_count;
        }

        let per_mille = |us: u64| us.saturating_mul(1_000) / load.window_us.max(1);
        let active = &load.threads_us[..self.thread_count.min(load.threads_us.len())];
        let ran: u64 = per_mille(active.iter().map(|(ran, _)| ran).sum());
        let waited: u64 = per_mille(active.iter().map(|(_, waited)| waited).sum());
        let busiest = active.iter().map(|(ran, _)| per_mille(*ran)).max().unwrap_or(0);
        let has_room = load.idle_us.is_none_or(|idle| per_mille(idle) >= ROOM);
        let half = self.thread_count.div_ceil(2);
        let lasts = |so_far: &mut Duration, is_so: bool| {
            *so_far = if is_so { *so_far + window } else { Duration::ZERO };
            *so_far
        };
        let busy_for = lasts(&mut self.busy_for, busiest >= BUSY && has_room);
        let leisure_for = lasts(&mut self.leisure_for, ran < LEISURE * half as u64);
        let is_scarce = waited * 1_000 >= ran * SCARCE && ran >= LEISURE && !has_room;
        let scarce_for = lasts(&mut self.scarce_for, is_scarce);
        // Those that share a thread have some work for their own now and then, which belongs to the price.
        self.recent.note(window, load.threads_us.iter().map(|(ran, _)| ran).sum(), load.request_count);
        let pace = self.recent.pace(LOOK_BACK);
        self.rest_no_longer_if_different(pace);

        if self.thread_count > 1 && scarce_for >= SCARCE_FOR {
            self.spreading.begin();
            // For want of processors it is the same whatever clients ask for.
            self.price_at_rest_ns = None;
            self.change(half);
        } else if let Some(trial) = self.trial {
            self.judge(trial, pace, busiest);
        } else if self.thread_count < self.core_count && busy_for >= BUSY_FOR && self.spreading.left.is_zero() {
            // What was done while they were busy: load may come in bursts.
            let pace = self.recent.pace(busy_for);
            self.try_out((self.thread_count * 2).min(self.core_count), pace);
        } else if self.thread_count > 1 && leisure_for >= LEISURE_FOR {
            self.change(half);
            self.spreading.forget();
            self.price_at_rest_ns = None;
        } else if self.thread_count > 1
            && self.gathering.left.is_zero()
            && self.recent.lasts() >= LOOK_BACK_MIN
            && let Some(pace) = pace
            && pace.runs() * *self.relief(self.thread_count) < EASE * 1_000 * half as u64
        {
            self.try_out(half, Some(pace));
        }
        self.thread_count
    }

    /// Ends a trial when enough is known.
    fn judge(&mut self, trial: Trial, now: Option<Pace>, busiest: u64) {
        let lasts = self.recent.lasts();
        let is_spread = trial.thread_count < self.thread_count;
        let Some(now) = now.filter(|now| !is_different(trial.before.price_ns, now.price_ns, DIFFERENT * 1_000)) else {
            if lasts >= TRIAL {
                self.trial = None;
            }
            return;
        };
        let of_before = |now: u64, before: u64| now.saturating_mul(1_000) / before.max(1);
        if lasts >= TRIAL_MIN {
            let (few, many) =
                if is_spread { (trial.before.price_ns, now.price_ns) } else { (now.price_ns, trial.before.price_ns) };
            *self.relief(self.thread_count.max(trial.thread_count)) =
                of_before(few, many).clamp(RELIEF_MIN, RELIEF_MAX);
        }
        let rate = of_before(now.rate, trial.before.rate);
        if is_spread {
            let is_dearer = of_before(now.price_ns, trial.before.price_ns) >= SPREAD_PRICE_MIN;
            if rate >= SPREAD_RATE_MIN && lasts >= TRIAL_MIN {
                self.trial = None;
                self.spreading.forget();
            } else if lasts >= TRIAL && is_dearer {
                self.take_back(trial);
            } else if lasts >= TRIAL {
                self.trial = None;
            }
        } else if lasts >= TRIAL {
            if rate < GATHER_RATE_MIN && busiest >= GATHER_BUSY_MIN {
                self.gathering.begin();
                self.change(trial.thread_count);
            } else {
                self.trial = None;
                self.gathering.forget();
                if busiest >= GATHER_BUSY_MIN {
                    // As many as before are known not to be worth it.
                    self.spreading.begin();
                    self.price_at_rest_ns = Some(now.price_ns);
                } else {
                    // They suffice for what is asked now, which says nothing of more.
                    self.spreading.forget();
                    self.price_at_rest_ns = None;
                }
            }
        }
    }

    fn relief(&mut self, thread_count: usize) -> &mut u64 {
        &mut self.reliefs[thread_count.next_power_of_two().ilog2() as usize]
    }

    fn take_back(&mut self, trial: Trial) {
        self.spreading.begin();
        self.price_at_rest_ns = Some(trial.before.price_ns);
        self.change(trial.thread_count);
    }

    /// What has failed with other requests may be right with these.
    fn rest_no_longer_if_different(&mut self, pace: Option<Pace>) {
        if let (Some(then_ns), Some(pace)) = (self.price_at_rest_ns, pace)
            && self.trial.is_none()
            && is_different(then_ns, pace.price_ns, DIFFERENT_AT_REST)
        {
            self.price_at_rest_ns = None;
            self.spreading.forget();
            self.gathering.forget();
        }
    }

    fn try_out(&mut self, thread_count: usize, before: Option<Pace>) {
        let from = self.thread_count;
        self.change(thread_count);
        self.trial = before.map(|before| Trial { thread_count: from, before });
    }

    fn change(&mut self, thread_count: usize) {
        self.thread_count = thread_count;
        let zero = Duration::ZERO;
        (self.busy_for, self.leisure_for, self.scarce_for) = (zero, zero, zero);
        self.is_settling = true;
        self.recent = Recent::default();
        self.trial = None;
    }
}

/// True if one of these is more than so many thousandths of the other.
fn is_different(one: u64, other: u64, per_mille: u64) -> bool {
    one.max(other) * 1_000 > one.min(other) * per_mille
}

#[cfg(test)]
mod tests;

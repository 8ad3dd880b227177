//! The black box: when a core did not turn, for how long, and what the machine did meanwhile.
//!
//! A core finds a stall by comparing readings of the clock that a turn takes anyway, and puts it into a box. A thread
//! of its own reads the counters of the kernel four times a second, and again as soon as there is a stall in the box:
//! what has been added between the last reading before the stall and the first one behind it is what is told of it. So
//! a stall costs the core one lock, and a core that does not stall costs nothing.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use group::ids::CoreId;
use node::stalls::{Stall, Stalls, Surroundings};
use signal_hook::consts::SIGCONT;
use stdx::{Instant, UnixMillis};

use crate::clock;
use crate::fault::Fault;
use crate::gathering::{Gathering, Load};
use crate::host::Host;
use crate::limits::{STALL_MIN, STALL_READ_INTERVAL, STALL_READ_REST, STALL_READINGS_MAX, STALLS_WAITING_MAX};
use crate::run::{start, system};

/// The box, shared by the cores and the thread that looks into it.
#[derive(Default)]
pub struct BlackBox {
    waiting: Mutex<Waiting>,
    is_filled: Condvar,
    stalls: Mutex<Arc<Stalls>>,
}

#[derive(Default)]
struct Waiting {
    stalls: Vec<Found>,
    missed_count: u64,
    /// Threads of the cores, by their number, as far as they have said.
    threads: Vec<Option<i32>>,
}

/// A stall as its core has found it.
struct Found {
    core: usize,
    began: Instant,
    ended: Instant,
    work: &'static str,
}

/// The clock of a core's turns: notices stalls.
pub struct TurnClock {
    core: usize,
    /// When the turn began: at the end of the last wait.
    began: Instant,
    /// When the core went to sleep, and when it wanted to be woken.
    slept: Cell<Option<(Instant, Option<Instant>)>>,
}

/// What a core did that was woken late.
const SLEEP: &str = "sleep";

/// What it did if no command and no slice of work took long by itself.
const TURN: &str = "turn";

impl TurnClock {
    /// Of the core of this thread.
    pub fn new(core: usize, black_box: &BlackBox, now: Instant) -> Self {
        let mut waiting = black_box.lock();
        if waiting.threads.len() <= core {
            waiting.threads.resize(core + 1, None);
        }
        waiting.threads[core] = Some(nix::unistd::gettid().as_raw());
        Self { core, began: now, slept: Cell::default() }
    }

    /// The core goes to sleep now, and wants to be woken at that time at the latest.
    pub fn sleeps(&self, now: Instant, wake_at: Option<Instant>) {
        self.slept.set(Some((now, wake_at)));
    }

    /// The wait is over, and a turn begins. `heaviest` says what took long since a moment.
    pub fn begins(
        &mut self,
        now: Instant,
        black_box: &BlackBox,
        heaviest: impl FnOnce(Instant) -> Option<&'static str>,
    ) {
        let began = std::mem::replace(&mut self.began, now);
        let (ended, wake_at) = self.slept.take().unwrap_or((now, None));
        if ended.since(began) >= STALL_MIN {
            let work = heaviest(began).unwrap_or(TURN);
            black_box.put(Found { core: self.core, began, ended, work });
        }
        if let Some(wake_at) = wake_at
            && now.since(wake_at) >= STALL_MIN
        {
            black_box.put(Found { core: self.core, began: wake_at, ended: now, work: SLEEP });
        }
    }
}

impl BlackBox {
    /// The stalls so far.
    pub fn stalls(&self) -> Arc<Stalls> {
        Arc::clone(&self.stalls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn put(&self, found: Found) {
        let mut waiting = self.lock();
        if waiting.stalls.len() < STALLS_WAITING_MAX {
            waiting.stalls.push(found);
        } else {
            waiting.missed_count += 1;
        }
        drop(waiting);
        self.is_filled.notify_one();
    }

    /// Waits for stalls, but no longer than until the next reading.
    fn take(&self) -> (Vec<Found>, u64, Vec<Option<i32>>) {
        let waiting = self.lock();
        let waited =
            self.is_filled.wait_timeout_while(waiting, STALL_READ_INTERVAL, |waiting| waiting.stalls.is_empty());
        let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (std::mem::take(&mut waiting.stalls), std::mem::take(&mut waiting.missed_count), waiting.threads.clone())
    }
}

/// Looks into the box as long as the process lives.
///
/// # Errors
/// If the thread cannot be started, or the signal that ends a stop cannot be noticed.
pub fn watch(host: Arc<Host>, mut gathering: Gathering) -> Result<(), Fault> {
    let is_continued = Arc::<AtomicBool>::default();
    signal_hook::flag::register(SIGCONT, Arc::clone(&is_continued)).map_err(system("notice that a stop has ended"))?;
    start("black-box", move || {
        let black_box = Arc::clone(&host.black_box);
        let (mut last, mut was_forced) = (Reading::default(), false);
        let mut counters = Counters { is_continued, ..Counters::default() };
        let mut readings = Readings::new(counters.read(&[]));
        loop {
            let (found, missed_count, threads) = black_box.take();
            let mut next = counters.read(&threads);
            next.request_count = host.desks.iter().map(|desk| desk.request_count.load(Ordering::Relaxed)).sum();
            if next.at.since(last.at) >= STALL_READ_INTERVAL / 2 {
                let is_forced = host.forced_thread_count().is_some();
                let load = Load { is_forced: is_forced || was_forced, ..last.load_until(&next) };
                host.gather(gathering.consider(&load));
                (last, was_forced) = (next.clone(), is_forced);
            }
            if !found.is_empty() {
                let unix = clock::unix_millis();
                let mut stalls = Stalls::clone(&black_box.stalls());
                stalls.missed_count += missed_count;
                for found in found {
                    let ago_ms = next.at.since(found.ended).as_millis() as i64;
                    stalls.note(Stall {
                        unix: UnixMillis(unix.0 - ago_ms),
                        core: CoreId(u16::try_from(found.core).expect("cores are counted in 16 bits")),
                        took_us: found.ended.since(found.began).as_micros() as u64,
                        work: found.work,
                        around: readings.before(found.began).until(&next, found.core),
                    });
                }
                *black_box.stalls.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(stalls);
                // Looking at a storm of stalls must not make it worse.
                std::thread::sleep(STALL_READ_REST);
            }
            readings.note(next);
        }
    })?;
    Ok(())
}

/// The latest readings, one in [`STALL_READ_INTERVAL`], the oldest first. Never empty.
struct Readings(VecDeque<Reading>);

impl Readings {
    fn new(first: Reading) -> Self {
        Self(VecDeque::from([first]))
    }

    fn note(&mut self, next: Reading) {
        if self.0.back().is_some_and(|last| next.at.since(last.at) < STALL_READ_INTERVAL) {
            return;
        }
        self.0.push_back(next);
        if self.0.len() > STALL_READINGS_MAX {
            self.0.pop_front();
        }
    }

    /// The newest from before that moment; if all are younger, the oldest.
    fn before(&self, moment: Instant) -> &Reading {
        let older = self.0.iter().rev().find(|reading| reading.at <= moment);
        older.or(self.0.front()).expect("there is one at least")
    }
}

/// What the kernel has counted, in microseconds unless told.
#[derive(Clone, Debug, Default)]
struct Reading {
    at: Instant,
    /// Time that each core's thread ran, and was ready and waited.
    cores: Vec<(u64, u64)>,
    /// Of each processor.
    stolen_us: Vec<u64>,
    /// See [`Surroundings`].
    continue_count: u64,
    /// Of all processors; `None` where the kernel does not tell.
    idle_us: Option<u64>,
    major_faults: u64,
    pressure_us: [u64; 3],
    /// Requests that the server has taken from clients.
    request_count: u64,
}

impl Reading {
    /// What the threads of cores did until then.
    fn load_until(&self, later: &Self) -> Load {
        let before = |core: usize| self.cores.get(core).copied().unwrap_or_default();
        let threads_us = later.cores.iter().enumerate().map(|(core, (ran, waited))| {
            let (ran_before, waited_before) = before(core);
            (ran.saturating_sub(ran_before), waited.saturating_sub(waited_before))
        });
        let is_known = later.cores.iter().any(|&times| times != (0, 0));
        Load {
            window_us: later.at.since(self.at).as_micros() as u64,
            threads_us: if is_known { threads_us.collect() } else { Vec::new() },
            idle_us: later.idle_us.zip(self.idle_us).map(|(later, before)| later.saturating_sub(before)),
            request_count: later.request_count.saturating_sub(self.request_count),
            is_forced: false,
        }
    }

    fn until(&self, later: &Self, core: usize) -> Surroundings {
        let of = |reading: &Self| reading.cores.get(core).copied().unwrap_or_default();
        let ((ran, waited), (ran_later, waited_later)) = (of(self), of(later));
        let stolen = later.stolen_us.iter().zip(&self.stolen_us).map(|(later, before)| later.saturating_sub(*before));
        let pressure = |place: usize| later.pressure_us[place].saturating_sub(self.pressure_us[place]);
        Surroundings {
            window_us: later.at.since(self.at).as_micros() as u64,
            ran_us: ran_later.saturating_sub(ran),
            waited_us: waited_later.saturating_sub(waited),
            stolen_us: stolen.max().unwrap_or_default(),
            continue_count: later.continue_count.saturating_sub(self.continue_count),
            major_faults: later.major_faults.saturating_sub(self.major_faults),
            pressure_us: [pressure(0), pressure(1), pressure(2)],
        }
    }
}

/// Files of the kernel, kept open. One that is not there counts nothing.
#[derive(Default)]
struct Counters {
    files: BTreeMap<String, Option<File>>,
    text: String,
    /// Set when the process was told to go on since the last reading.
    is_continued: Arc<AtomicBool>,
    continue_count: u64,
}

impl Counters {
    fn read(&mut self, threads: &[Option<i32>]) -> Reading {
        let at = clock::instant();
        let cores = threads.iter().map(|thread| {
            let text = thread.map(|thread| self.text(&format!("/proc/self/task/{thread}/schedstat")));
            text.map(times_of_thread).unwrap_or_default()
        });
        let cores = cores.collect();
        let pressure = ["cpu", "io", "memory"].map(|kind| some_us(self.text(&format!("/proc/pressure/{kind}"))));
        let stat = self.text("/proc/stat");
        let stolen_us = stolen_us(stat);
        let idle = processors_us(stat, 3).zip(processors_us(stat, 4)).map(|(idle, waits)| idle + waits);
        self.continue_count += u64::from(self.is_continued.swap(false, Ordering::Relaxed));
        Reading {
            at,
            cores,
            stolen_us,
            continue_count: self.continue_count,
            idle_us: idle,
            major_faults: major_faults(self.text("/proc/self/stat")),
            pressure_us: pressure,
            request_count: 0,
        }
    }

    /// The beginning of a file.
    fn text(&mut self, path: &str) -> &str {
        // Lines of `/proc/stat` for two hundred processors.
        const BYTES_MAX: u64 = 16 << 10;
        self.text.clear();
        let file = self.files.entry(path.to_owned()).or_insert_with(|| File::open(path).ok());
        if let Some(file) = file
            && (file.seek(SeekFrom::Start(0)).is_err() || file.take(BYTES_MAX).read_to_string(&mut self.text).is_err())
        {
            self.text.clear();
        }
        &self.text
    }
}

/// Of a thread's schedstat: nanoseconds on a processor, and ready without one.
fn times_of_thread(text: &str) -> (u64, u64) {
    let mut numbers = text.split_whitespace().map(|word| word.parse::<u64>().unwrap_or_default() / 1_000);
    (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default())
}

/// Of `/proc/stat`: one of the numbers of the first line, which is about all processors together.
fn processors_us(text: &str, place: usize) -> Option<u64> {
    ticks_us(text.lines().next().filter(|line| line.starts_with("cpu "))?, place)
}

/// One of the numbers behind the name of a line, in ticks, of which there are a hundred a second everywhere.
fn ticks_us(line: &str, place: usize) -> Option<u64> {
    const TICK_US: u64 = 10_000;
    Some(line.split_whitespace().nth(place + 1)?.parse::<u64>().ok()? * TICK_US)
}

/// Of `/proc/stat`: what each processor lost to other machines.
fn stolen_us(text: &str) -> Vec<u64> {
    let each = text.lines().skip(1).take_while(|line| line.starts_with("cpu"));
    each.map(|line| ticks_us(line, 7).unwrap_or_default()).collect()
}

/// Of `/proc/self/stat`: the tenth field behind the name, which may hold anything.
fn major_faults(text: &str) -> u64 {
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    rest.split_whitespace().nth(9).and_then(|word| word.parse().ok()).unwrap_or_default()
}

/// Of a file of PSI: the total of its first line.
fn some_us(text: &str) -> u64 {
    let line = text.lines().next().filter(|line| line.starts_with("some "));
    line.and_then(|line| line.rsplit_once("total=")?.1.trim().parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long this thread has been on processors.
    fn own_thread_us() -> u64 {
        times_of_thread(&std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default()).0
    }

    #[test]
    fn counters_of_the_kernel_are_read_as_it_writes_them() {
        assert_eq!(times_of_thread("123456789 5000000 42\n"), (123_456, 5_000));
        let stat = "cpu  1 2 3 4 5 6 7 80 0 0\ncpu0 1 2 3 4 5 6 7 20 0 0\ncpu1 1 2 3 4 5 6 7 60 0 0\nintr 9\n";
        assert_eq!((stolen_us(stat), stolen_us("cpu  1\n")), (vec![200_000, 600_000], vec![]));
        assert_eq!((processors_us(stat, 7), processors_us(stat, 3)), (Some(800_000), Some(40_000)));
        assert_eq!(major_faults("4711 (hold) fast) S 1 2 3 4 5 6 7 8 9 10 11\n"), 9);
        assert_eq!(some_us("some avg10=0.00 avg60=0.00 avg300=0.00 total=17\nfull avg10=0.00 total=3\n"), 17);
        for nonsense in ["", "some", "cpu", "x) y", "\u{fffd}"] {
            let read =
                (times_of_thread(nonsense), processors_us(nonsense, 7), major_faults(nonsense), some_us(nonsense));
            assert_eq!(read, ((0, 0), None, 0, 0), "{nonsense}");
        }
    }

    #[test]
    fn a_turn_that_lasts_and_a_wake_up_that_is_late_are_stalls() {
        let black_box = BlackBox::default();
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let mut clock = TurnClock::new(0, &black_box, at(0));
        // A short turn, and a sleep that ends in time.
        clock.sleeps(at(4), Some(at(100)));
        clock.begins(at(101), &black_box, |_| unreachable!("there is nothing to explain"));
        assert!(black_box.lock().stalls.is_empty());
        // A long turn without a sleep behind it, then one with.
        clock.begins(at(111), &black_box, |since| (since == at(101)).then_some("keys"));
        clock.sleeps(at(131), None);
        clock.begins(at(900), &black_box, |_| None);
        // Nobody woke it.
        clock.sleeps(at(901), Some(at(950)));
        clock.begins(at(980), &black_box, |_| None);
        let waiting = black_box.lock();
        let told: Vec<_> =
            waiting.stalls.iter().map(|found| (found.work, found.ended.since(found.began).as_millis())).collect();
        assert_eq!(told, [("keys", 10), (TURN, 20), (SLEEP, 30)]);
    }

    #[test]
    fn more_stalls_than_can_be_looked_at_are_counted() {
        let black_box = BlackBox::default();
        for _ in 0..STALLS_WAITING_MAX + 7 {
            black_box.put(Found { core: 0, began: Instant::ZERO, ended: Instant::ZERO, work: TURN });
        }
        let (found, missed_count, _) = black_box.take();
        assert_eq!((found.len(), missed_count), (STALLS_WAITING_MAX, 7));
    }

    #[test]
    fn a_long_stall_is_compared_with_a_reading_from_before_it() {
        let at = |ms: u64| Reading { at: Instant::from_nanos(ms * 1_000_000), ..Reading::default() };
        let mut readings = Readings::new(at(0));
        (1..=1_000).for_each(|tick| readings.note(at(tick * 50)));
        assert_eq!(readings.0.len(), STALL_READINGS_MAX);
        let before = |ms: u64| readings.before(at(ms).at).at.as_nanos() / 1_000_000;
        assert_eq!((before(50_000), before(49_999), before(45_100)), (50_000, 49_750, 45_000));
        assert_eq!(before(1), 50_000 - 250 * (STALL_READINGS_MAX as u64 - 1), "the oldest");
    }

    #[test]
    fn a_thread_that_computes_is_seen_to_run() {
        let mut counters = Counters::default();
        let threads = [Some(nix::unistd::gettid().as_raw())];
        let before = counters.read(&threads);
        let begun = own_thread_us();
        while own_thread_us() - begun < 20_000 {
            std::hint::spin_loop();
        }
        let around = before.until(&counters.read(&threads), 0);
        assert!(around.ran_us >= 15_000 && around.window_us >= around.ran_us / 2, "{around:?}");
    }
}

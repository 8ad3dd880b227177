//! Short probes of the host: what no file of the kernel tells. All are bounded in time and bytes.

use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::{Pid, fdatasync};

use crate::parse;
use crate::thresholds::{PAUSE_MS, TIMER_LATE_MS};

/// Processors that are probed at most.
pub const PROCESSORS_MAX: usize = 8;
/// Bytes that the probe of the disk prepares.
pub const PREWRITTEN_BYTES: u64 = 4 << 20;
/// Bytes that it writes at most, whatever the disk.
pub const WRITTEN_BYTES_MAX: u64 = 64 << 20;
/// Syncs of each kind at most.
const SYNCS_MAX: usize = 150;
/// How long a processor is looped on at a time.
const LOOP: Duration = Duration::from_millis(10);

/// The processors that this process may run on, at most [`PROCESSORS_MAX`], spread over all.
pub fn processors() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
    let all: Vec<usize> = (0..CpuSet::count()).filter(|number| set.is_set(*number).unwrap_or(false)).collect();
    let step = all.len().div_ceil(PROCESSORS_MAX).max(1);
    all.into_iter().step_by(step).collect()
}

/// Binds the calling thread to a processor. It is no error if that is not allowed: the probe then runs anywhere.
fn bind(processor: usize) {
    let mut set = CpuSet::new();
    if set.set(processor).is_ok() {
        let _ = sched_setaffinity(Pid::from_raw(0), &set);
    }
}

/// Nanoseconds for which the calling thread has waited for a processor.
fn own_wait_ns(file: &mut Option<File>) -> Option<u64> {
    let mut text = String::new();
    // The file is opened again for each reading: the kernel makes its text when it is read from the start.
    *file = File::open("/proc/thread-self/schedstat").ok();
    file.as_mut()?.read_to_string(&mut text).ok()?;
    Some(parse::sched_stat(&text)?.wait_ns)
}

fn ms_since(moment: Instant) -> f64 {
    moment.elapsed().as_secs_f64() * 1e3
}

/// What short sleeps became.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timers {
    /// Sleeps.
    pub count: u64,
    /// Seconds watched, of one processor.
    pub seconds: f64,
    /// Sleeps that ended too late.
    pub late_count: u64,
    /// By how many milliseconds, added up.
    pub late_ms: f64,
    /// Of these, milliseconds in which another task had the processor.
    pub late_waiting_ms: f64,
    /// The worst of them, in milliseconds.
    pub worst_ms: f64,
}

impl Timers {
    /// Both together; the share of time is that of the worse one.
    #[must_use]
    pub fn worse(self, other: Self) -> Self {
        let share = |it: &Self| it.late_ms / it.seconds.max(1e-9);
        let count = self.count + other.count;
        let worse = if share(&self) >= share(&other) { self } else { other };
        Self { count, ..worse }
    }
}

/// Sleeps for about `pause` again and again on a processor until `ends`, and notes what comes late.
pub fn watch_timers(processor: usize, pause: Duration, ends: &AtomicBool) -> Timers {
    bind(processor);
    let (mut timers, mut file) = (Timers::default(), None);
    let began = Instant::now();
    let mut waited_ns = own_wait_ns(&mut file);
    while !ends.load(Ordering::Relaxed) {
        let slept = Instant::now();
        thread::sleep(pause);
        let late_ms = ms_since(slept) - pause.as_secs_f64() * 1e3;
        timers.count += 1;
        if late_ms > TIMER_LATE_MS {
            let now_ns = own_wait_ns(&mut file);
            if let (Some(before), Some(now)) = (waited_ns, now_ns) {
                // Waiting of the punctual sleeps before is in the difference, too, but is small and bounded by the
                // delay.
                timers.late_waiting_ms += (now.saturating_sub(before) as f64 / 1e6).min(late_ms);
            }
            waited_ns = now_ns;
            timers.late_count += 1;
            timers.late_ms += late_ms;
            timers.worst_ms = timers.worst_ms.max(late_ms);
        }
    }
    timers.seconds = began.elapsed().as_secs_f64();
    timers
}

/// Gaps in loops that read nothing but the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pauses {
    /// Milliseconds looped.
    pub looped_ms: f64,
    /// Milliseconds of gaps that no task of the host explains.
    pub unexplained_ms: f64,
    /// How many.
    pub count: u64,
    /// The longest of them, in milliseconds.
    pub worst_ms: f64,
}

impl Pauses {
    /// Both together.
    pub fn add(&mut self, other: Self) {
        self.looped_ms += other.looped_ms;
        self.unexplained_ms += other.unexplained_ms;
        self.count += other.count;
        self.worst_ms = self.worst_ms.max(other.worst_ms);
    }
}

/// Loops on a processor for a moment.
pub fn look_for_pauses(processor: usize) -> Pauses {
    bind(processor);
    let mut file = None;
    let mut pauses = Pauses::default();
    let mut waited_ns = own_wait_ns(&mut file);
    let began = Instant::now();
    let mut last = began;
    while began.elapsed() < LOOP {
        let now = Instant::now();
        let gap_ms = (now - last).as_secs_f64() * 1e3;
        last = now;
        if gap_ms > PAUSE_MS {
            let now_ns = own_wait_ns(&mut file);
            // What cannot be told apart from a neighbour is not held against the hypervisor.
            let explained_ms = match (waited_ns, now_ns) {
                (Some(before), Some(now)) => now.saturating_sub(before) as f64 / 1e6,
                _ => gap_ms,
            };
            let unexplained_ms = (gap_ms - explained_ms).max(0.0);
            if unexplained_ms > PAUSE_MS {
                pauses.unexplained_ms += unexplained_ms;
                pauses.count += 1;
                pauses.worst_ms = pauses.worst_ms.max(unexplained_ms);
            }
            waited_ns = now_ns;
            last = Instant::now();
        }
    }
    pauses.looped_ms = ms_since(began);
    pauses
}

/// Nanoseconds that one reading of the clock takes: the best of some rounds, since others may have had the processor.
pub fn clock_cost() -> f64 {
    const READS: u32 = 2_000;
    let round = || {
        let began = Instant::now();
        for _ in 0..READS {
            std::hint::black_box(Instant::now());
        }
        began.elapsed().as_nanos() as f64 / f64::from(READS)
    };
    (0..10).map(|_| round()).fold(f64::INFINITY, f64::min)
}

/// Times of syncs, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SyncTimes {
    sorted_ms: Vec<f64>,
}

impl SyncTimes {
    /// Of these.
    pub fn of(mut times_ms: Vec<f64>) -> Self {
        times_ms.sort_by(f64::total_cmp);
        Self { sorted_ms: times_ms }
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.sorted_ms.is_empty()
    }

    /// The time that so many percent do not exceed; 0 if there is none.
    pub fn percentile(&self, percent: f64) -> f64 {
        percentile(&self.sorted_ms, percent)
    }

    /// How many took longer.
    pub fn beyond(&self, reference_ms: f64) -> usize {
        self.sorted_ms.iter().filter(|time| **time > reference_ms).count()
    }

    /// The part of all time that lies beyond this reference.
    pub fn excess(&self, reference_ms: f64) -> f64 {
        let all: f64 = self.sorted_ms.iter().sum();
        let beyond: f64 = self.sorted_ms.iter().map(|time| (time - reference_ms).max(0.0)).sum();
        if all > 0.0 { beyond / all } else { 0.0 }
    }
}

/// The value that so many percent of sorted ones do not exceed; 0 if there is none.
pub fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let rank = (sorted.len() as f64 * percent / 100.0).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(0.0)
}

/// Times of syncs of several sizes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Syncs {
    /// 4 KiB into space that was written before, as a log in recycled segments does.
    pub prewritten_4k: SyncTimes,
    /// 4 KiB at the end of a file that grows, as an append-only file does.
    pub growing_4k: SyncTimes,
    /// 64 KiB into written space.
    pub large_64k: SyncTimes,
    /// 1 MiB into written space.
    pub large_1m: SyncTimes,
    /// Bytes written in all.
    pub written_bytes: u64,
}

/// A file that is removed when dropped, also after an error.
struct Temporary {
    file: File,
    path: PathBuf,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Writes and syncs in a temporary file of a folder, for no longer than `limit`, resting between syncs for as long as
/// they take: others keep at least half of the disk.
///
/// # Errors
/// If the file cannot be made or written.
pub fn measure_syncs(folder: &Path, limit: Duration, ends: &AtomicBool) -> Result<Syncs, String> {
    let path = folder.join(format!(".holdfast-doctor-{}", std::process::id()));
    let told = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    // A process of the same number, as in a container, may have been killed before it could remove its file.
    let _ = fs::remove_file(&path);
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
    let temporary = Temporary { file: file.map_err(|error| told(&error))?, path: path.clone() };
    let file = &temporary.file;
    let block = vec![0xA5_u8; 1 << 20];
    for offset in (0..PREWRITTEN_BYTES).step_by(block.len()) {
        file.write_all_at(&block, offset).map_err(|error| told(&error))?;
    }
    fdatasync(file).map_err(|error| told(&error))?;
    let mut syncs = Syncs { written_bytes: PREWRITTEN_BYTES, ..Syncs::default() };
    let began = Instant::now();
    // The sizes take turns, so that a disturbance meets all of them.
    let kinds: [(usize, bool); 4] = [(4 << 10, false), (4 << 10, true), (64 << 10, false), (1 << 20, false)];
    let mut times: [Vec<f64>; 4] = Default::default();
    let mut end = PREWRITTEN_BYTES;
    'all: for round in 0..SYNCS_MAX {
        for (kind, (size, grows)) in kinds.iter().enumerate() {
            let is_left_out = match size >> 10 {
                1024 => round % 15 != 0,
                64 => round % 3 != 0,
                _ => false,
            };
            if is_left_out {
                continue;
            }
            let is_over = began.elapsed() > limit || ends.load(Ordering::Relaxed);
            if is_over || syncs.written_bytes + *size as u64 > WRITTEN_BYTES_MAX {
                break 'all;
            }
            let offset =
                if *grows { end } else { (round as u64 * *size as u64) % (PREWRITTEN_BYTES - *size as u64 + 1) };
            if *grows {
                end += *size as u64;
            }
            let synced = Instant::now();
            file.write_all_at(&block[..*size], offset).map_err(|error| told(&error))?;
            fdatasync(file).map_err(|error| told(&error))?;
            times[kind].push(ms_since(synced));
            syncs.written_bytes += *size as u64;
            thread::sleep(synced.elapsed().min(Duration::from_millis(500)));
        }
    }
    [syncs.prewritten_4k, syncs.growing_4k, syncs.large_64k, syncs.large_1m] = times.map(SyncTimes::of);
    Ok(syncs)
}

/// Free bytes for users, and all bytes, of the file system of a folder.
///
/// # Errors
/// Of the system.
pub fn room(folder: &Path) -> Result<(u64, u64), String> {
    let stat = nix::sys::statvfs::statvfs(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok((stat.blocks_available() * stat.fragment_size(), stat.blocks() * stat.fragment_size()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_those_who_do_not_exceed_them() {
        let times = SyncTimes::of(vec![4.0, 1.0, 2.0, 3.0]);
        assert_eq!([25.0, 50.0, 99.0, 100.0].map(|percent| times.percentile(percent)), [1.0, 2.0, 4.0, 4.0]);
        assert_eq!((times.excess(2.0), times.beyond(2.0)), (0.3, 2));
        assert_eq!((SyncTimes::default().percentile(50.0), SyncTimes::default().excess(1.0)), (0.0, 0.0));
    }

    #[test]
    fn the_probe_of_the_disk_leaves_nothing_behind() {
        let folder = std::env::temp_dir().join(format!("doctor-syncs-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        // In containers processes have the same number again and again, and some are killed.
        fs::write(folder.join(format!(".holdfast-doctor-{}", std::process::id())), b"left").expect("a file");
        let syncs =
            measure_syncs(&folder, Duration::from_millis(200), &AtomicBool::new(false)).expect("a writable folder");
        assert!(syncs.written_bytes >= PREWRITTEN_BYTES && syncs.written_bytes <= WRITTEN_BYTES_MAX);
        assert_eq!(fs::read_dir(&folder).expect("the folder").count(), 0);
        let ended = measure_syncs(&folder, Duration::from_secs(9), &AtomicBool::new(true)).expect("a writable folder");
        assert!(ended.prewritten_4k.is_empty());
        fs::remove_dir_all(&folder).expect("an empty folder");
        let why = measure_syncs(&folder, Duration::from_secs(1), &AtomicBool::new(false)).expect_err("no folder");
        assert!(why.contains("No such file"), "{why}");
        assert!(room(&folder).is_err() && room(&std::env::temp_dir()).is_ok());
    }

    #[test]
    fn probes_of_processors_end_and_say_how_long_they_ran() {
        let first = *processors().first().expect("a processor");
        let ends = AtomicBool::new(false);
        let timers = thread::scope(|scope| {
            let watch = scope.spawn(|| watch_timers(first, Duration::from_millis(1), &ends));
            thread::sleep(Duration::from_millis(200));
            ends.store(true, Ordering::Relaxed);
            watch.join().expect("the probe")
        });
        // On a busy machine the probe begins late, and a sleep may be its only one.
        assert!(timers.seconds >= 1e-3 * timers.count as f64, "{timers:?}");
        let pauses = thread::spawn(move || look_for_pauses(first)).join().expect("the probe");
        assert!(pauses.looped_ms >= 10.0 && pauses.unexplained_ms <= pauses.looped_ms, "{pauses:?}");
        assert!(clock_cost() > 0.0);
    }

    #[test]
    fn the_worse_processor_speaks_for_both() {
        let one = Timers { count: 5, seconds: 2.0, late_ms: 10.0, ..Timers::default() };
        let other = Timers { count: 7, seconds: 2.0, late_ms: 30.0, ..Timers::default() };
        let both = one.worse(other);
        assert_eq!((both.count, both.late_ms), (12, 30.0));
    }
}

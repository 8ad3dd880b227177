//! `holdfast restore --archive`: makes a data directory out of an archive, as all was at a moment.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use keyspace::Moment;
use state::State;
use state::cut::{Settled, settle as settle_transactions};
use stdx::UnixMillis;

use super::replay::{Replayed, check_order, replay};
use super::view::{View, parse_moment};
use crate::backup::restore::{RestoreArguments, Restoring, UNFINISHED_EXTENSION};
use crate::backup::{Pace, counted, grouped, staging};

/// How often progress is shown.
const PACE: Duration = Duration::from_millis(100);

/// Runs `holdfast restore --archive`.
///
/// # Errors
/// What an operator must know.
pub fn run(arguments: &RestoreArguments, group_count: u32) -> Result<()> {
    let wanted = arguments.at.as_deref().map(parse_moment).transpose()?;
    let view =
        View::of(arguments.archive.as_deref().expect("there is no backup"), arguments.archive_key_file.as_deref())?;
    let moment = view.choose(wanted)?;
    let staging = staging(&arguments.data_dir, UNFINISHED_EXTENSION, "a data directory")?;
    let mut pace = Pace::new(arguments.quiet);
    let begun = Instant::now();
    let restored = restore(&view, moment, &staging, group_count, &mut pace)
        .and_then(|done| staging.settle(&arguments.data_dir).map(|()| done));
    pace.end();
    let done = restored.inspect_err(|_| {
        // What is left of it cannot be used, and hides the next attempt.
        let _ = fs::remove_dir_all(&staging);
    })?;
    for note in &done.notes {
        say_line!("note: {note}");
    }
    let seconds = begun.elapsed().as_secs_f64();
    say_line!(
        "{}: {} keys as of {}, in {}",
        arguments.data_dir.display(),
        grouped(done.key_count),
        edge::utc(moment),
        counted(group_count as usize, "group")
    );
    say_line!(
        "replayed {} entries with {} bytes in {seconds:.1} s; transactions that were in progress: {} committed, {} \
         aborted",
        grouped(done.entry_count),
        grouped(done.bytes),
        done.settled.committed.len(),
        done.settled.aborted.len()
    );
    Ok(())
}

struct Done {
    key_count: u64,
    entry_count: u64,
    bytes: u64,
    settled: Settled,
    notes: Vec<String>,
}

fn restore(view: &View, moment: UnixMillis, staging: &Path, group_count: u32, pace: &mut Pace) -> Result<Done> {
    let replayed = replay_all(view, moment, pace)?;
    check_order(&replayed).map_err(|why| anyhow!("{why}"))?;
    let there = replayed[0].state.roster().group_count(view.archive.manifest().groups);
    ensure!(
        there as usize <= replayed.len(),
        "the cluster had {there} groups at {}, and the archive holds nothing yet of those from {} on: choose an earlier \
         moment, or try again when it does",
        edge::utc(moment),
        replayed.len()
    );
    let entry_count = replayed.iter().map(|group| group.entry_count).sum();
    let bytes = replayed.iter().map(|group| group.bytes).sum();
    let notes = replayed.iter().flat_map(|group| group.notes.clone()).collect();
    let mut states: Vec<State> = replayed.into_iter().map(|group| group.state).collect();
    let settled = settle_transactions(&mut states, moment).map_err(|why| anyhow!("{why}"))?;
    let databases = view.archive.manifest().databases;
    let mut restoring = Restoring::new(staging, databases, group_count, Moment { unix: moment, seed: 0 })?;
    let of = states.len();
    let saved = states[0].save();
    for (group, state) in (0..).zip(states) {
        restoring.divide(state.keyspace(), (group, of), pace);
    }
    let key_count = restoring.finish(&saved, pace)?;
    Ok(Done { key_count, entry_count, bytes, settled, notes })
}

/// Replays all groups, as many at a time as there are processors.
fn replay_all(view: &View, moment: UnixMillis, pace: &mut Pace) -> Result<Vec<Replayed>> {
    let count = view.groups.len() as u32;
    let (next, read, done) = (AtomicU32::new(0), AtomicU64::new(0), AtomicU32::new(0));
    let found: Mutex<Vec<(u32, Result<Replayed>)>> = Mutex::new(Vec::new());
    let begun = Instant::now();
    let work = || {
        loop {
            let group = next.fetch_add(1, Ordering::Relaxed);
            if group >= count {
                break;
            }
            let replayed = replay(view, group, moment, |bytes| _ = read.fetch_add(bytes, Ordering::Relaxed));
            done.fetch_add(1, Ordering::Relaxed);
            found.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((group, replayed));
        }
    };
    thread::scope(|scope| {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..processors.min(count as usize)).map(|_| scope.spawn(work)).collect();
        while !workers.iter().all(thread::ScopedJoinHandle::is_finished) {
            thread::sleep(PACE);
            pace.show(|| {
                let bytes = read.load(Ordering::Relaxed) as f64 / 1e6;
                let rate = bytes / begun.elapsed().as_secs_f64();
                let groups = done.load(Ordering::Relaxed);
                format!("replays: {bytes:.0} MB of the archive, {rate:.0} MB/s, {groups} of {count} groups done")
            });
        }
    });
    let mut found = found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    found.sort_by_key(|(group, _)| *group);
    found.into_iter().map(|(_, replayed)| replayed).collect()
}

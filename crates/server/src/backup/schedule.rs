//! Scheduled backups: a server with `backup-dir` makes one every `backup-interval-s` seconds, and keeps `backup-keep`.
//!
//! Of a cluster the node makes them that leads the group of the metadata, so there is one at a time. When the next is
//! due goes by the newest that is whole in the directory, not by a clock of the process: a restart, or another leader
//! that writes to the same directory, neither skips one nor makes one too many. After a failure it is tried again
//! sooner than the next would be due. Old ones go only when a new one is whole, and only those that were made by a
//! schedule.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use edge::{HostSession, Inside};
use node::event::BackupFigures;
use stdx::UnixMillis;

use super::create::{self, UNFINISHED_EXTENSION};
use super::manifest::Manifest;
use super::{counted, grouped, staging};
use crate::cluster::door::{list, text, value_of};

/// Between two looks at whether one is due.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// A backup that came to nothing is tried again after a tenth of the interval, but within these bounds.
const RETRY_MIN: Duration = Duration::from_secs(5);
const RETRY_MAX: Duration = Duration::from_secs(15 * 60);

/// What a scheduled backup is called, with the moment at which it was begun.
const PREFIX: &str = "holdfast-";

/// Makes backups until the process ends.
pub fn run(inside: Inside, directory: PathBuf) {
    let mut schedule = Schedule {
        inside,
        directory,
        figures: BackupFigures::default(),
        failed: None,
        session: None,
        has_cleared: false,
    };
    loop {
        if let Err(why) = schedule.look() {
            schedule.fail(&why);
        }
        schedule.inside.show(schedule.figures.clone());
        thread::sleep(LOOK_INTERVAL);
    }
}

struct Schedule {
    inside: Inside,
    directory: PathBuf,
    figures: BackupFigures,
    failed: Option<Instant>,
    session: Option<HostSession>,
    /// What was left unfinished has been looked for since this node began to make them.
    has_cleared: bool,
}

impl Schedule {
    /// Makes one if it is this node's turn and one is due.
    fn look(&mut self) -> Result<()> {
        let found = found(&self.directory);
        let newest = found.as_ref().ok().and_then(|found| found.iter().map(|(_, moment)| *moment).max());
        self.figures.kept_count = found.as_ref().map_or(0, Vec::len) as u64;
        self.figures.newest_unix = newest.unwrap_or(UnixMillis(0));
        // A server that does not serve yet is asked again.
        let Ok(Terms { is_own, interval, keep }) = self.terms() else {
            self.session = None;
            return Ok(());
        };
        self.figures.is_own = is_own;
        if !is_own {
            (self.failed, self.has_cleared) = (None, false);
            return Ok(());
        }
        let retry = (interval / 10).clamp(RETRY_MIN, RETRY_MAX);
        let now = edge::unix_millis();
        let age_ms = newest.map(|newest| now.0.saturating_sub(newest.0));
        // One of the future was made by a clock that was wrong since.
        let is_due = age_ms.is_none_or(|age_ms| age_ms < 0 || age_ms.unsigned_abs() >= interval.as_millis() as u64);
        if !is_due || self.failed.is_some_and(|failed| failed.elapsed() < retry) {
            return Ok(());
        }
        found?;
        self.figures.is_running = true;
        self.inside.show(self.figures.clone());
        let made = self.make(now);
        self.figures.is_running = false;
        self.figures.last = made?;
        self.figures.made_count += 1;
        self.figures.fault.clear();
        self.failed = None;
        self.inside.notice(&format!("backup: {}", self.figures.last));
        self.forget(keep)
    }

    /// A backup came to nothing, or old ones could not be removed.
    fn fail(&mut self, why: &anyhow::Error) {
        self.figures.is_running = false;
        self.figures.failed_count += 1;
        self.figures.fault = format!("{why:#}");
        self.failed = Some(Instant::now());
        self.session = None;
        self.inside.warning(&format!("no backup: {:#}", why));
    }

    fn make(&mut self, now: UnixMillis) -> Result<String> {
        if !self.directory.exists() {
            let shown = self.directory.display();
            self.inside.warning(&format!(
                "backup: {shown} does not exist, and is created: if a disk was to be mounted there, it is not"
            ));
        }
        fs::create_dir_all(&self.directory)
            .with_context(|| format!("cannot make the directory {}", self.directory.display()))?;
        if !std::mem::replace(&mut self.has_cleared, true) {
            clear(&self.directory)?;
        }
        let begun = Instant::now();
        let path = self.directory.join(name_at(now));
        let staging = staging(&path, UNFINISHED_EXTENSION, "a backup")?;
        let session = self.session.as_mut().context("the server does not answer")?;
        let made =
            create::attempts(session, true, &staging).and_then(|manifest| staging.settle(&path).map(|()| manifest));
        let manifest = made.inspect_err(|_| {
            // What is left of it cannot be used.
            let _ = fs::remove_dir_all(&staging);
        })?;
        Ok(format!(
            "{}, {} as of {}, {} bytes in {:.1} s",
            path.display(),
            counted(manifest.parts.len(), "group"),
            edge::utc(manifest.moment),
            grouped(manifest.parts.iter().map(|part| part.bytes).sum()),
            begun.elapsed().as_secs_f64()
        ))
    }

    /// Removes the oldest.
    fn forget(&self, keep: usize) -> Result<()> {
        let mut found = found(&self.directory)?;
        found.sort_by_key(|(_, moment)| *moment);
        for path in surplus(&found, keep) {
            // It is no backup any more before the first of its files goes.
            let doomed = path.with_extension(UNFINISHED_EXTENSION);
            fs::rename(path, &doomed)
                .and_then(|()| fs::remove_dir_all(&doomed))
                .with_context(|| format!("cannot remove the old backup {}", path.display()))?;
            self.inside.notice(&format!("backup: {} is removed, as {keep} are kept", path.display()));
        }
        Ok(())
    }

    /// Whether this node makes them now, and what its parameters say.
    fn terms(&mut self) -> Result<Terms> {
        let session = match &mut self.session {
            Some(session) => session,
            none => {
                let mut session = self.inside.connect()?;
                // With names for what is answered.
                session.call(&["HELLO", "3"])?;
                none.insert(session)
            }
        };
        let status = value_of(&session.call(&["HOLDFAST", "CLUSTER"])?);
        let first = list(&status, "groups").first().context("the server does not serve yet")?;
        let leader = text(first, "leader");
        let is_own = !leader.is_empty() && leader == text(&status, "node");
        let mut number = |name: &str| -> Result<u64> {
            let reply = value_of(&session.call(&["CONFIG", "GET", name])?);
            text(&reply, name).parse().map_err(|_| anyhow!("{name} is no number: {reply}"))
        };
        let interval = Duration::from_secs(number("backup-interval-s")?);
        let keep = usize::try_from(number("backup-keep")?).unwrap_or(usize::MAX);
        Ok(Terms { is_own, interval, keep })
    }
}

struct Terms {
    is_own: bool,
    interval: Duration,
    keep: usize,
}

/// As in `holdfast-20260102T030405.678Z`.
fn name_at(now: UnixMillis) -> String {
    let digits: String = edge::utc(now).chars().filter(|at| !matches!(at, '-' | ':')).collect();
    format!("{PREFIX}{}", digits.replace(' ', "T"))
}

/// True for a name that a schedule gives.
fn is_scheduled(name: &str) -> bool {
    let Some(moment) = name.strip_prefix(PREFIX) else { return false };
    moment.len() >= 15
        && moment.bytes().next().is_some_and(|first| first.is_ascii_digit())
        && moment.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'T' | b'Z' | b'.'))
}

/// The whole ones in a directory that a schedule has made, with their moments. A directory that is not there holds
/// none.
fn found(directory: &Path) -> Result<Vec<(PathBuf, UnixMillis)>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(found),
        entries => entries.with_context(|| format!("cannot list {}", directory.display()))?,
    };
    for entry in entries {
        let path = entry.with_context(|| format!("cannot list {}", directory.display()))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // One that is damaged is none; it stays for anyone who looks into it.
        if is_scheduled(&name)
            && let Ok(manifest) = Manifest::read(&path)
        {
            found.push((path, manifest.moment));
        }
    }
    Ok(found)
}

/// What goes of so many, oldest first, of which so many stay; 0 keeps all.
fn surplus(found: &[(PathBuf, UnixMillis)], keep: usize) -> impl Iterator<Item = &Path> {
    let count = if keep == 0 { 0 } else { found.len().saturating_sub(keep) };
    found[..count].iter().map(|(path, _)| path.as_path())
}

/// Removes what a process left unfinished that has ended since. Another node may be at work in a directory that is
/// shared: what has changed lately is left alone.
fn clear(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))? {
        let path = entry.with_context(|| format!("cannot list {}", directory.display()))?.path();
        let is_unfinished = path.extension().is_some_and(|extension| extension == UNFINISHED_EXTENSION);
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if is_unfinished && is_scheduled(&name) && !staging::is_at_work(&path) {
            fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_the_moment_in_order_and_no_others_are_ours() {
        let names: Vec<String> =
            [0, 999, 1_000, 86_400_000, 1_767_323_045_678].map(|ms| name_at(UnixMillis(ms))).into();
        assert!(names.is_sorted() && names.iter().all(|name| is_scheduled(name)), "{names:?}");
        for other in [
            "monday",
            "holdfast-",
            "holdfast-data",
            "holdfast-2026",
            "holdfast-0.1.0",
            "holdfast-mine-20260102T030405Z",
        ] {
            assert!(!is_scheduled(other), "{other}");
        }
    }

    #[test]
    fn the_oldest_go_and_none_means_all() {
        let found: Vec<_> = (0..5).map(|number| (PathBuf::from(number.to_string()), UnixMillis(number))).collect();
        let gone = |keep| surplus(&found, keep).map(|path| path.display().to_string()).collect::<Vec<_>>();
        assert_eq!(gone(3), ["0", "1"]);
        assert!(gone(0).is_empty() && gone(5).is_empty() && gone(9).is_empty());
    }
}

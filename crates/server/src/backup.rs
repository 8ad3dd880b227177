//! `holdfast backup` and `holdfast restore`: all data of a server or a cluster at one moment, as files of their own.
//!
//! A backup is a directory of checkpoints, one for each group, and a manifest that is written last: see
//! `docs/formats/backup.md`. Suggested order of reading: [`manifest`], [`create`], [`restore`].

mod create;
pub mod export;
mod manifest;
pub mod restore;
pub mod schedule;
mod staging;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use edge::RealDisk;
use journal::{CheckpointReader, Fault};

pub use restore::RestoreArguments;
pub(crate) use staging::staging;

use crate::bench::Progress;
use crate::cluster::door::Door;
use crate::waiting::{self, LINE_INTERVAL, SILENCE};
use manifest::{MANIFEST_FILE, Manifest};

/// Create, list and verify backups.
#[derive(clap::Args, Clone, Debug)]
pub struct BackupArguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Clone, Debug)]
enum Verb {
    Create(Box<create::CreateArguments>),
    List(ListArguments),
    Verify(VerifyArguments),
}

/// List the backups in a directory.
#[derive(clap::Args, Clone, Debug)]
struct ListArguments {
    /// The directory that holds backups
    #[arg(value_name = "DIRECTORY", default_value = ".")]
    directory: PathBuf,
}

/// Read a whole backup, and verify every checksum.
#[derive(clap::Args, Clone, Debug)]
struct VerifyArguments {
    /// The backup
    #[arg(value_name = "BACKUP")]
    backup: PathBuf,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

/// Runs `holdfast backup`.
///
/// # Errors
/// What an operator must know.
pub fn run(arguments: BackupArguments) -> Result<()> {
    match arguments.verb {
        Verb::Create(arguments) => create::run(&arguments),
        Verb::List(arguments) => list(&arguments.directory),
        Verb::Verify(arguments) => verify(&arguments),
    }
}

/// Makes a backup of a server, or of its cluster.
///
/// # Errors
/// What an operator must know.
pub(crate) fn take(door: &Door, backup: &Path) -> Result<()> {
    create::run(&create::CreateArguments { backup: backup.to_owned(), door: door.clone(), quiet: true })
}

fn list(directory: &Path) -> Result<()> {
    let mut names: Vec<PathBuf> = fs::read_dir(directory)
        .with_context(|| format!("cannot list {}", directory.display()))?
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<_>>()
        .with_context(|| format!("cannot list {}", directory.display()))?;
    names.sort();
    let shown = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut rows = Vec::new();
    for path in names.iter().filter(|path| path.is_dir()) {
        if path.extension().is_some_and(|extension| extension == create::UNFINISHED_EXTENSION) {
            let is_left = staging::is_left_unfinished(path);
            let state = if is_left { "left unfinished" } else { "being made" };
            rows.push([shown(path), state.into(), String::new(), String::new()]);
        } else if path.join(MANIFEST_FILE).exists() {
            rows.push(match Manifest::read(path) {
                Ok(manifest) => [
                    shown(path),
                    edge::utc(manifest.moment),
                    manifest.parts.len().to_string(),
                    grouped(manifest.parts.iter().map(|part| part.bytes).sum()),
                ],
                Err(error) => [shown(path), format!("{error:#}"), String::new(), String::new()],
            });
        }
    }
    if rows.is_empty() {
        say_line!("no backups in {}", directory.display());
        return Ok(());
    }
    say_line!("{:<32} {:<24} {:>6} {:>16}", "backup", "moment", "groups", "bytes");
    for [name, moment, groups, bytes] in rows {
        say_line!("{}", format!("{name:<32} {moment:<24} {groups:>6} {bytes:>16}").trim_end());
    }
    Ok(())
}

fn verify(arguments: &VerifyArguments) -> Result<()> {
    let backup = &arguments.backup;
    let manifest = Manifest::read(backup)?;
    let mut pace = Pace::new(arguments.quiet);
    let mut total = 0;
    for group in 0..manifest.parts.len() as u32 {
        read_part(backup, &manifest, group, |chunk| {
            total += chunk.len() as u64;
            pace.show(|| format!("reads group {group}: {} MB so far", total / 1_000_000));
            Ok(())
        })?;
    }
    pace.end();
    say_line!(
        "{}: whole, {} as of {}, {} bytes",
        backup.display(),
        counted(manifest.parts.len(), "group"),
        edge::utc(manifest.moment),
        grouped(total)
    );
    Ok(())
}

/// Reads one group's part of a backup, chunk by chunk, and checks that it is whole.
fn read_part(
    backup: &Path,
    manifest: &Manifest,
    group: u32,
    mut take: impl FnMut(&[u8]) -> Result<(), String>,
) -> Result<()> {
    let told = |fault: Fault| told(backup, &fault);
    let disk = RealDisk::open_directory_to_read(backup).with_context(|| format!("cannot open {}", backup.display()))?;
    let mark = manifest::mark();
    let identity = manifest.identity();
    let mut reader = CheckpointReader::open(disk, &identity, group, &mark).map_err(told)?;
    let (mut chunks, mut bytes, mut offset) = (0, 0, 0);
    while let Some(chunk) = reader.next().map_err(told)? {
        chunks += 1;
        bytes += chunk.len() as u64;
        take(chunk)
            .map_err(|what| told(Fault::Damaged { file: journal::checkpoint_file(group, mark.index), offset, what }))?;
        (offset, _) = reader.progress();
    }
    let part = &manifest.parts[group as usize];
    if (part.chunks, part.bytes) != (chunks, bytes) {
        bail!(
            "backup {}: {} holds {bytes} bytes in {chunks} chunks, and {MANIFEST_FILE} says {} in {}",
            backup.display(),
            journal::checkpoint_file(group, mark.index),
            part.bytes,
            part.chunks
        );
    }
    Ok(())
}

/// A number as people read it.
pub fn grouped(number: u64) -> String {
    crate::bench::grouped(number as f64, 0)
}

/// What is wrong with a backup, with what to do about it.
fn told(backup: &Path, fault: &Fault) -> anyhow::Error {
    let advice = match fault {
        Fault::Damaged { .. } | Fault::Missing { .. } => ": this backup cannot be used; take another one",
        Fault::Newer { .. } => ": use the version that wrote it, or a later one",
        Fault::Full { .. } => ": make room and begin again",
        Fault::Io { .. } | Fault::Foreign { .. } | Fault::Level { .. } => "",
    };
    anyhow::anyhow!("backup {}: {fault}{advice}", backup.display())
}

/// Shows how far a long piece of work is: on a terminal all the time, elsewhere a line now and then.
pub struct Pace {
    progress: Progress,
    shown: Instant,
    told: Instant,
    /// How long after that the next line comes, where nobody watches a terminal.
    pause: Duration,
    is_quiet: bool,
}

impl Pace {
    /// With nothing shown yet.
    pub fn new(is_quiet: bool) -> Self {
        let now = Instant::now();
        Self { progress: Progress::new(is_quiet), shown: now, told: now, pause: SILENCE, is_quiet }
    }

    /// Shows a line, if it is time.
    pub fn show(&mut self, line: impl FnOnce() -> String) {
        if self.progress.is_wanted() {
            if self.shown.elapsed() >= SILENCE {
                self.progress.show(&line());
                // From the first line on it moves.
                self.shown = Instant::now().checked_sub(SILENCE * 9 / 10).unwrap_or_else(Instant::now);
            }
        } else if !self.is_quiet && self.is_due() {
            eprintln!("{}", line());
        }
    }

    /// Whether it is time for a line of its own, which is then told.
    fn is_due(&mut self) -> bool {
        let is_due = self.told.elapsed() >= self.pause;
        if is_due {
            self.told = Instant::now();
            self.pause = LINE_INTERVAL;
        }
        is_due
    }

    /// Does something that tells nothing of how far it is, and says what, if it takes long.
    pub fn during<T>(&mut self, what: &str, work: impl FnOnce() -> T) -> T {
        self.progress.clear();
        if self.is_quiet { work() } else { waiting::during(what, work) }
    }

    /// Clears what is shown.
    pub fn end(&mut self) {
        self.progress.clear();
    }
}

/// So many of something.
pub fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Gives a finished directory its name, durably.
pub(crate) fn settle(staging: &Path, path: &Path) -> Result<()> {
    fs::rename(staging, path)
        .and_then(|()| {
            let parent = path.components().as_path().parent().filter(|parent| !parent.as_os_str().is_empty());
            fs::File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
        })
        .with_context(|| format!("cannot give {} its name {}", staging.display(), path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_progress_comes_early_and_the_next_ones_seldom() {
        let mut pace = Pace::new(false);
        let mut is_due_after = |passed: Duration| {
            pace.told = Instant::now().checked_sub(passed).expect("the machine has run for longer");
            pace.is_due()
        };
        assert!(!is_due_after(Duration::ZERO));
        assert!(is_due_after(SILENCE));
        assert!(!is_due_after(SILENCE), "the first line was told");
        assert!(is_due_after(LINE_INTERVAL));
    }
}

//! `holdfast export`: all data at one moment as an RDB file, for a stock Redis or Valkey.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use group::backup;
use group::group_seed::GroupSeed;
use group::ids::{GroupId, NodeId};
use keyspace::rdb::{Dialect, VERSION_OF_VALKEY};
use keyspace::{Keyspace, Layout, Moment, Tuning};
use redis_files::write::RdbWriter;

use super::create::{self, CreateArguments};
use super::manifest::Manifest;
use super::{Pace, grouped, read_part};
use crate::cluster::door::Door;

/// The first version that has functions and listpacks.
const VERSION_WITH_LISTPACKS: u16 = 10;

/// The first in which fields of hashes have deadlines: Redis 7.4.
const VERSION_WITH_EXPIRING_FIELDS: u16 = 12;

/// Write all data of a server, of its cluster, or of a backup to an RDB file.
///
/// The file holds the data of one moment, between two transactions: a backup is made beside the file, converted, and
/// removed.
#[derive(clap::Args, Clone, Debug)]
pub struct ExportArguments {
    /// The file to write; it must not exist
    #[arg(value_name = "FILE.rdb")]
    file: PathBuf,
    /// Convert this backup instead of asking a server
    #[arg(long, value_name = "BACKUP", conflicts_with_all = ["server", "host", "port"])]
    backup: Option<PathBuf>,
    /// Version of the format: 9 for Redis 5.0 to 6.2, 10 for Redis 7.0 and later and Valkey, 11 for Redis 7.2 and
    /// later, 12 for Redis 7.4 and later, with deadlines of fields, 80 for Valkey 9.0 and later, with deadlines of
    /// fields
    #[arg(long, value_name = "VERSION", default_value_t = VERSION_WITH_LISTPACKS, value_parser = parse_version)]
    rdb_version: u16,
    #[command(flatten)]
    door: Door,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

fn parse_version(text: &str) -> Result<u16, String> {
    let known = |version: &u16| (9..=12).contains(version) || *version == VERSION_OF_VALKEY;
    text.parse().ok().filter(known).ok_or_else(|| format!("versions are 9 to 12, and {VERSION_OF_VALKEY}"))
}

/// Runs `holdfast export`.
///
/// # Errors
/// What an operator must know.
pub fn run(arguments: &ExportArguments) -> Result<()> {
    let file = &arguments.file;
    ensure!(!file.exists(), "{} already exists", file.display());
    if let Some(backup) = &arguments.backup {
        return write(arguments, backup, &Manifest::read(backup)?, false);
    }
    let mut name = file.clone().into_os_string();
    name.push(".backup");
    let request = CreateArguments { backup: PathBuf::from(name), door: arguments.door.clone(), quiet: arguments.quiet };
    let mut connection = request.connect()?;
    let staging = super::staging(&request.backup, create::UNFINISHED_EXTENSION, "the backup behind an export")?;
    let written = create::attempts(&mut connection, request.quiet, &staging)
        .and_then(|manifest| write(arguments, &staging, &manifest, true));
    // It has served its purpose, or hides the next attempt.
    let removed = fs::remove_dir_all(&staging);
    written?;
    removed.with_context(|| format!("cannot remove {}, which is not needed any more", staging.display()))
}

/// Writes the file. If nobody else does at this moment, `is_only_one`, what an earlier attempt has left there goes.
fn write(arguments: &ExportArguments, backup: &Path, manifest: &Manifest, is_only_one: bool) -> Result<()> {
    let file = &arguments.file;
    let mut name = file.clone().into_os_string();
    name.push(".unfinished");
    let unfinished = PathBuf::from(name);
    ensure!(
        is_only_one || !unfinished.exists(),
        "{} is there: it is being written at this moment, or was left unfinished; in that case remove it",
        unfinished.display()
    );
    let written =
        Export { arguments, backup, manifest, pace: Pace::new(arguments.quiet) }.write(&unfinished, is_only_one);
    let settled = written.and_then(|written| super::settle(&unfinished, file).map(|()| written));
    match settled {
        Ok(Written { keys, bytes, libraries_left_out, without_deadlines }) => {
            say_line!(
                "{}: {} keys as of {}, {} bytes, RDB version {}",
                file.display(),
                grouped(keys),
                edge::utc(manifest.moment),
                grouped(bytes),
                arguments.rdb_version
            );
            if libraries_left_out > 0 {
                say_line!("functions were left out: versions below {VERSION_WITH_LISTPACKS} have none");
            }
            if without_deadlines > 0 {
                say_line!(
                    "{} hashes were written without the deadlines of their fields: versions below \
                     {VERSION_WITH_EXPIRING_FIELDS} have none",
                    grouped(without_deadlines)
                );
            }
            Ok(())
        }
        Err(error) => {
            let _ = fs::remove_file(&unfinished);
            Err(error)
        }
    }
}

struct Export<'a> {
    arguments: &'a ExportArguments,
    backup: &'a Path,
    manifest: &'a Manifest,
    pace: Pace,
}

struct Written {
    keys: u64,
    bytes: u64,
    libraries_left_out: usize,
    without_deadlines: u64,
}

impl Export<'_> {
    fn write(mut self, path: &Path, is_only_one: bool) -> Result<Written> {
        let told = || format!("cannot write {}", path.display());
        let version = self.arguments.rdb_version;
        let dialect = match version {
            ..VERSION_WITH_LISTPACKS => Dialect::Plain,
            VERSION_WITH_LISTPACKS..VERSION_WITH_EXPIRING_FIELDS => Dialect::Listpacks,
            VERSION_OF_VALKEY => Dialect::Valkey,
            _ => Dialect::ExpiringFields,
        };
        let file = if is_only_one { File::create(path) } else { File::create_new(path) }.with_context(told)?;
        let mut writer = RdbWriter::new(file, dialect, version).with_context(told)?;
        writer.aux("redis-bits", "64");
        writer.aux("ctime", &(self.manifest.moment.0 / 1_000).to_string());
        writer.aux("holdfast-ver", env!("CARGO_PKG_VERSION"));
        let moment = Moment { unix: self.manifest.moment, seed: 0 };
        let (mut keys, mut libraries_left_out, mut without_deadlines) = (0, 0, 0);
        for group in 0..self.manifest.parts.len() as u32 {
            let seed = self.read(group)?;
            if group == 0 {
                let libraries = backup::libraries_of(&seed.state);
                if dialect != Dialect::Plain {
                    libraries.iter().for_each(|code| writer.library(code));
                } else {
                    libraries_left_out = libraries.len();
                }
            }
            let mut keyspace = seed.keyspace;
            keyspace.advance_to(moment);
            for database in 0..self.manifest.databases {
                let (count, expiring) = (keyspace.key_count(database), keyspace.expiring_count(database));
                if count == 0 {
                    continue;
                }
                writer.database(database, count as u64, expiring as u64);
                let mut outcome = Ok(());
                keyspace.for_each(database, moment, |entry| {
                    if outcome.is_ok() {
                        let deadline = entry.expires_at().map(|deadline| deadline.0);
                        outcome = writer.key(entry.key(), deadline, entry.value());
                        keys += 1;
                        without_deadlines +=
                            u64::from(version < VERSION_WITH_EXPIRING_FIELDS && entry.value().has_expiring_fields());
                        let bytes = writer.bytes();
                        self.pace.show(|| format!("writes {}: {} MB", path.display(), bytes / 1_000_000));
                    }
                });
                outcome.with_context(told)?;
            }
        }
        let bytes = writer.bytes() + 9;
        let file = writer.finish().with_context(told)?;
        file.sync_all().with_context(told)?;
        self.pace.end();
        Ok(Written { keys, bytes, libraries_left_out, without_deadlines })
    }

    fn read(&mut self, group: u32) -> Result<GroupSeed> {
        let options = keyspace::Options {
            databases: self.manifest.databases,
            hash_seed: 1,
            layout: Layout::Slots,
            tuning: Tuning::default(),
        };
        let mut seed = GroupSeed::new(GroupId(group), NodeId(1), Keyspace::new(options));
        let (mut bytes, parts) = (0, self.manifest.parts.len());
        let pace = &mut self.pace;
        read_part(self.backup, self.manifest, group, |chunk| {
            bytes += chunk.len() as u64;
            pace.show(|| format!("reads group {group} of {parts}: {} MB", bytes / 1_000_000));
            seed.restore(chunk).map_err(|corrupt| corrupt.to_string())
        })?;
        ensure!(
            !seed.keyspace.is_restore_incomplete(),
            "backup {}: group {group} ends in the middle of a value",
            self.backup.display()
        );
        Ok(seed)
    }
}

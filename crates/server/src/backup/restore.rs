//! `holdfast restore`: makes a data directory out of a backup, with as many groups as are wanted.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, anyhow, bail, ensure};
use edge::RealDisk;
use group::backup;
use group::checkpoint::CHUNK_KEYSPACE;
use group::group_seed::GroupSeed;
use group::ids::{GroupId, NodeId};
use journal::{CheckpointFile, CheckpointMark, Identity, Journal};
use keyspace::{Keyspace, Layout, Moment, Tuning};
use node::slots::SlotMap;
use stdx::log::{HardState, Membership};

use super::manifest::Manifest;
use super::{Pace, counted, grouped, read_part, staging, told};

/// Most groups that a data directory is made with.
const GROUPS_MAX: i64 = message::roster::GROUPS_MAX as i64;

/// Bytes of a chunk of the checkpoints that are written.
const CHUNK_BYTES: usize = 256 << 10;

/// What a directory's name ends in while it is being restored.
pub(crate) const UNFINISHED_EXTENSION: &str = "restoring";

/// Make a data directory from a backup or an archive, for the first node of a new cluster.
///
/// The number of groups may differ from that of the original cluster. The directory gets its name when all data are on
/// disk.
#[derive(clap::Args, Clone, Debug)]
pub struct RestoreArguments {
    /// The backup
    #[arg(value_name = "BACKUP", required_unless_present = "archive", conflicts_with = "archive")]
    pub(crate) backup: Option<PathBuf>,
    /// The archive, instead of a backup: file:///DIRECTORY or s3://BUCKET/PREFIX
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) archive: Option<String>,
    /// The file with the archive's key, if it is encrypted
    #[arg(long, value_name = "FILE", requires = "archive")]
    pub(crate) archive_key_file: Option<PathBuf>,
    /// The moment of the archive to go back to, in UTC: '2026-11-23 01:00:00' [default: the latest]
    #[arg(long, value_name = "TIME", requires = "archive")]
    pub(crate) at: Option<String>,
    /// The directory to make: new or empty
    #[arg(long, value_name = "DIRECTORY", default_value = "holdfast-data")]
    pub(crate) data_dir: PathBuf,
    /// Groups that keys are divided among: as many as the nodes will have cores [default: processors here]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=GROUPS_MAX))]
    pub(crate) groups: Option<u32>,
    /// Show no progress
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// Runs `holdfast restore`.
///
/// # Errors
/// What an operator must know.
pub fn run(arguments: &RestoreArguments) -> Result<()> {
    let group_count = match arguments.groups {
        Some(count) => count,
        None => thread::available_parallelism().map_or(1, |count| count.get() as u32),
    };
    let Some(backup) = &arguments.backup else {
        return crate::archiving::restore::run(arguments, group_count);
    };
    let manifest = Manifest::read(backup)?;
    let staging = staging(&arguments.data_dir, UNFINISHED_EXTENSION, "a data directory")?;
    let mut pace = Pace::new(arguments.quiet);
    let restored = restore(backup, &manifest, &staging, group_count, &mut pace)
        .and_then(|key_count| staging.settle(&arguments.data_dir).map(|()| key_count));
    pace.end();
    match restored {
        Ok(key_count) => {
            say_line!(
                "{}: {} keys as of {}, in {}",
                arguments.data_dir.display(),
                grouped(key_count),
                edge::utc(manifest.moment),
                counted(group_count as usize, "group")
            );
            Ok(())
        }
        Err(error) => {
            // What is left of it cannot be used, and hides the next attempt.
            let _ = fs::remove_dir_all(&staging);
            Err(error)
        }
    }
}

fn restore(backup: &Path, manifest: &Manifest, staging: &Path, group_count: u32, pace: &mut Pace) -> Result<u64> {
    let moment = latest_moment(backup, manifest);
    let mut restoring = Restoring::new(staging, manifest.databases, group_count, moment)?;
    let mut state = Vec::new();
    let parts = manifest.parts.len();
    for group in 0..parts as u32 {
        let mut seed = GroupSeed::new(GroupId(group), NodeId(1), restoring.keyspace(1));
        let mut bytes = 0;
        read_part(backup, manifest, group, |chunk| {
            bytes += chunk.len() as u64;
            pace.show(|| format!("reads group {group} of {parts}: {} MB", bytes / 1_000_000));
            seed.restore(chunk).map_err(|corrupt| corrupt.to_string())
        })?;
        let mut source = seed.keyspace;
        if source.is_restore_incomplete() {
            bail!("backup {}: group {group} ends in the middle of a value", backup.display());
        }
        source.advance_to(moment);
        restoring.divide(&source, (group, parts), pace);
        if group == 0 {
            // The first group keeps what all share: the libraries of functions.
            state = seed.state;
        }
    }
    restoring.finish(&state, pace)
}

/// The latest moment of any group's log: none of the new logs begins before it.
fn latest_moment(backup: &Path, manifest: &Manifest) -> Moment {
    let mut latest = manifest.moment;
    for group in 0..manifest.parts.len() as u32 {
        // Only the first chunk is wanted here; a file that is damaged is told of when it is read for its data.
        let _ = read_part(backup, manifest, group, |chunk| {
            latest = latest.max(chunk.get(1..).and_then(backup::moment_of_state).unwrap_or(latest));
            Err("this is enough".into())
        });
    }
    Moment { unix: latest, seed: 0 }
}

/// A data directory in the making: takes in groups of another cluster, and divides their keys again.
pub(crate) struct Restoring<'a> {
    staging: &'a Path,
    databases: u16,
    identity: Identity,
    moment: Moment,
    keyspaces: Vec<Keyspace>,
    /// Sum of what was taken in, to be found again in the end.
    expected: u64,
}

impl<'a> Restoring<'a> {
    /// One of so many groups with logs that begin at this moment.
    ///
    /// # Errors
    /// If there are no random numbers to be had.
    pub(crate) fn new(staging: &'a Path, databases: u16, group_count: u32, moment: Moment) -> Result<Self> {
        let random = || edge::random_id().context("cannot read random numbers");
        let wide = || edge::random_bytes().map(u128::from_le_bytes).context("cannot read random numbers");
        let identity = Identity {
            directory: wide()?,
            cluster: wide()?,
            // Ids stay clear of the bound that the protocol of nodes sets to numbers.
            node: (random()? >> 2).max(1),
            group_count,
            hash_seed: random()?,
            has_joined: false,
            level: stdx::Levels::KNOWN.highest,
        };
        let mut restoring = Self { staging, databases, identity, moment, keyspaces: Vec::new(), expected: 0 };
        restoring.keyspaces = (0..group_count).map(|_| restoring.keyspace(identity.hash_seed)).collect();
        Ok(restoring)
    }

    /// An empty keyspace.
    pub(crate) fn keyspace(&self, hash_seed: u64) -> Keyspace {
        let (databases, tuning) = (self.databases, Tuning::default());
        Keyspace::new(keyspace::Options { databases, hash_seed, layout: Layout::Slots, tuning })
    }

    /// Hands the keys of a group to the groups they belong to from now on. `source` has been brought to the moment.
    pub(crate) fn divide(&mut self, source: &Keyspace, (group, of): (u32, usize), pace: &mut Pace) {
        let (moment, keyspaces) = (self.moment, &mut self.keyspaces);
        let slots = SlotMap::even(keyspaces.len() as u32);
        for keyspace in keyspaces.iter_mut() {
            keyspace.set_limits(source.limits());
            keyspace.advance_to(moment);
        }
        let mut moved = 0_u64;
        for database in 0..self.databases {
            source.for_each(database, moment, |entry| {
                let key = entry.key();
                let exported = source.export(database, key, moment);
                keyspaces[slots.group_of(key).0 as usize]
                    .import(database, key, exported.as_deref(), moment)
                    .expect("just exported");
                moved += 1;
                pace.show(|| format!("divides group {group} of {of}: {moved} keys"));
            });
        }
        self.expected = self.expected.wrapping_add(source.digest());
    }

    /// Writes the directory; `state` is what the first group had beside its keys. How many keys there are.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn finish(mut self, state: &[u8], pace: &mut Pace) -> Result<u64> {
        let found = self.keyspaces.iter().fold(0, |sum: u64, keyspace| sum.wrapping_add(keyspace.digest()));
        ensure!(found == self.expected, "the keys were not divided as they were: this is a mistake of this program");
        let databases = 0..self.databases;
        let count = |keyspace: &Keyspace| databases.clone().map(|it| keyspace.key_count(it) as u64).sum::<u64>();
        let key_count = self.keyspaces.iter().map(count).sum();
        let keyspaces = std::mem::take(&mut self.keyspaces);
        self.write(state, keyspaces, pace)?;
        Ok(key_count)
    }

    fn write(&self, state: &[u8], keyspaces: Vec<Keyspace>, pace: &mut Pace) -> Result<()> {
        let (staging, identity, moment) = (self.staging, &self.identity, self.moment);
        let told = |fault: journal::Fault| told(staging, &fault);
        let disk = RealDisk::open_directory(staging).with_context(|| format!("cannot open {}", staging.display()))?;
        let (mut journal, _) = Journal::open(disk.clone(), &journal::Options::new(*identity)).map_err(told)?;
        let membership = Membership { voters: vec![identity.node], ..Membership::default() };
        let mark = CheckpointMark { index: 1, term: 1, membership };
        for (group, mut keyspace) in (0..).zip(keyspaces) {
            let mut file = CheckpointFile::begin(disk.clone(), identity, group, &mark).map_err(told)?;
            file.push(&backup::state_chunk(moment.unix, (group == 0).then_some(state)));
            keyspace.begin_checkpoint();
            let mut is_walked = false;
            while !is_walked {
                let mut chunk = vec![CHUNK_KEYSPACE];
                is_walked = keyspace.checkpoint_step(CHUNK_BYTES, &mut chunk);
                if chunk.len() > 1 {
                    file.push(&chunk);
                }
                while file.write(CHUNK_BYTES).map_err(told)? > 0 {}
                let (done, of) = (group + 1, identity.group_count);
                pace.show(|| format!("writes group {done} of {of}: {} MB", file.written_bytes() / 1_000_000));
            }
            file.finish().map_err(told)?;
            let hard_state = HardState { term: mark.term, vote: 0, commit: mark.index };
            journal.install(group, mark.clone(), Some(hard_state)).map_err(told)?;
        }
        journal.stop().map_err(told)?;
        // What is restored is a cluster of its own, and lets in only nodes that it has invited.
        edge::secure_directory(staging).map_err(|fault| anyhow!("{fault}"))?;
        Ok(())
    }
}

//! `holdfast restore`: makes a data directory out of a backup, with as many groups as are wanted.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, anyhow, bail, ensure};
use edge::RealDisk;
use journal::{CheckpointFile, CheckpointMark, Identity, Journal};
use keyspace::{Keyspace, Layout, Moment, Tuning};
use node::checkpoint::CHUNK_KEYSPACE;
use node::slots::SlotMap;
use node::{GroupId, GroupSeed, NodeId, backup};
use stdx::log::{HardState, Membership};

use super::manifest::Manifest;
use super::{Pace, counted, grouped, read_part, settle, staging, told};

/// Most groups that a data directory is made with.
const GROUPS_MAX: i64 = 1024;

/// Bytes of a chunk of the checkpoints that are written.
const CHUNK_BYTES: usize = 256 << 10;

/// What a directory's name ends in while it is being restored.
const UNFINISHED_EXTENSION: &str = "restoring";

/// Makes a data directory out of a backup: that of a cluster's first node, which others then join.
///
/// The number of groups may differ from that of the cluster that the backup was made of. Nothing has the directory's
/// name before all of it is on disk.
#[derive(clap::Args, Clone, Debug)]
pub struct RestoreArguments {
    /// The backup
    #[arg(value_name = "BACKUP")]
    backup: PathBuf,
    /// The directory to make: new or empty
    #[arg(long, value_name = "DIRECTORY", default_value = "holdfast-data")]
    data_dir: PathBuf,
    /// Groups that keys are divided among, for ever: as many as the nodes will have cores [default: processors here]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=GROUPS_MAX))]
    groups: Option<u32>,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

/// Runs `holdfast restore`.
///
/// # Errors
/// What an operator must know.
pub fn run(arguments: &RestoreArguments) -> Result<()> {
    let manifest = Manifest::read(&arguments.backup)?;
    let group_count = match arguments.groups {
        Some(count) => count,
        None => thread::available_parallelism().map_or(1, |count| count.get() as u32),
    };
    let staging = staging(&arguments.data_dir, UNFINISHED_EXTENSION, "a data directory")?;
    let mut pace = Pace::new(arguments.quiet);
    let restored = Restore { backup: &arguments.backup, manifest: &manifest, staging: &staging, pace: &mut pace }
        .run(group_count)
        .and_then(|key_count| settle(&staging, &arguments.data_dir).map(|()| key_count));
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

struct Restore<'a> {
    backup: &'a Path,
    manifest: &'a Manifest,
    staging: &'a Path,
    pace: &'a mut Pace,
}

impl Restore<'_> {
    fn run(&mut self, group_count: u32) -> Result<u64> {
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
        };
        let moment = self.latest_moment()?;
        let mut keyspaces: Vec<_> = (0..group_count).map(|_| self.keyspace(identity.hash_seed)).collect();
        let mut expected: u64 = 0;
        let mut state = Vec::new();
        for group in 0..self.manifest.parts.len() as u32 {
            let (digest, its_state) = self.divide(group, moment, &mut keyspaces)?;
            expected = expected.wrapping_add(digest);
            if group == 0 {
                // The first group keeps what all share: the libraries of functions.
                state = its_state;
            }
        }
        let found = keyspaces.iter().fold(0, |sum: u64, keyspace| sum.wrapping_add(keyspace.digest()));
        ensure!(found == expected, "the keys were not divided as they were: this is a mistake of this program");
        let databases = 0..self.manifest.databases;
        let count = |keyspace: &Keyspace| databases.clone().map(|it| keyspace.key_count(it) as u64).sum::<u64>();
        let key_count = keyspaces.iter().map(count).sum();
        self.write(&identity, moment, &state, keyspaces)?;
        Ok(key_count)
    }

    fn keyspace(&self, hash_seed: u64) -> Keyspace {
        let (databases, tuning) = (self.manifest.databases, Tuning::default());
        Keyspace::new(keyspace::Options { databases, hash_seed, layout: Layout::Slots, tuning })
    }

    /// The latest moment of any group's log: none of the new logs begins before it.
    fn latest_moment(&self) -> Result<Moment> {
        let mut latest = self.manifest.moment;
        for group in 0..self.manifest.parts.len() as u32 {
            // Only the first chunk is wanted here; a file that is damaged is told of when it is read for its data.
            let _ = read_part(self.backup, self.manifest, group, |chunk| {
                latest = latest.max(chunk.get(1..).and_then(backup::moment_of_state).unwrap_or(latest));
                Err("this is enough".into())
            });
        }
        Ok(Moment { unix: latest, seed: 0 })
    }

    /// Reads a group of the backup and hands its keys to the groups they belong to from now on. The digest of what it
    /// holds, and its own state.
    fn divide(&mut self, group: u32, moment: Moment, keyspaces: &mut [Keyspace]) -> Result<(u64, Vec<u8>)> {
        let mut seed = GroupSeed::new(GroupId(group), NodeId(1), self.keyspace(1));
        let (mut bytes, parts) = (0, self.manifest.parts.len());
        let pace = &mut *self.pace;
        read_part(self.backup, self.manifest, group, |chunk| {
            bytes += chunk.len() as u64;
            pace.show(|| format!("reads group {group} of {parts}: {} MB", bytes / 1_000_000));
            seed.restore(chunk).map_err(|corrupt| corrupt.to_string())
        })?;
        let mut source = seed.keyspace;
        if source.is_restore_incomplete() {
            bail!("backup {}: group {group} ends in the middle of a value", self.backup.display());
        }
        source.advance_to(moment);
        let slots = SlotMap::even(keyspaces.len() as u32);
        for keyspace in keyspaces.iter_mut() {
            keyspace.set_limits(source.limits());
            keyspace.advance_to(moment);
        }
        let mut moved = 0_u64;
        for database in 0..self.manifest.databases {
            source.for_each(database, moment, |entry| {
                let key = entry.key();
                let exported = source.export(database, key, moment);
                keyspaces[slots.group_of(key).0 as usize]
                    .import(database, key, exported.as_deref(), moment)
                    .expect("just exported");
                moved += 1;
                self.pace.show(|| format!("divides group {group} of {parts}: {moved} keys"));
            });
        }
        Ok((source.digest(), seed.state))
    }

    fn write(&mut self, identity: &Identity, moment: Moment, state: &[u8], keyspaces: Vec<Keyspace>) -> Result<()> {
        let staging = self.staging;
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
                self.pace.show(|| format!("writes group {done} of {of}: {} MB", file.written_bytes() / 1_000_000));
            }
            file.finish().map_err(told)?;
            let hard_state = HardState { term: mark.term, vote: 0, commit: mark.index };
            journal.install(group, mark.clone(), Some(hard_state)).map_err(told)?;
        }
        journal.stop().map_err(told)?;
        // What is restored is a cluster of its own, and lets in whom it has invited.
        edge::secure_directory(self.staging).map_err(|fault| anyhow!("{fault}"))?;
        Ok(())
    }
}

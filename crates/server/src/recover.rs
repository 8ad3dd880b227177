//! `holdfast recover`: goes on with what one node has, when too many of the others are lost for good.
//!
//! A group needs a quorum of its voters to acknowledge anything, so a node that is left alone serves nothing: it cannot
//! know what the others have acknowledged without it. This tool says what is in its directory and what may be missing,
//! and makes a new cluster of it if the operator accepts that. See `docs/decisions/0028-recovery-of-a-survivor.md`.

mod compare;
mod report;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use edge::recovery::{self, Successor};
use edge::{DirectoryLock, RealDisk};
use group::checkpoint::{CHUNK_KEYSPACE, CHUNK_STATE};
use group::group_seed::GroupSeed;
use group::ids::{GroupId, NodeId};
use group::{group_count, membership_of};
use journal::{CheckpointFile, CheckpointMark, CheckpointReader, Identity, Journal, Recovered, RecoveredGroup};
use keyspace::{Keyspace, Layout, Tuning};
use node::TransactionId;
use node::entry::Born;
use node::splitting::commit_splits;
use state::recovery::{Unresolved, judge};
use state::{Beginnings, State};
use stdx::log::{HardState, Membership};

use crate::backup::{Pace, counted};

/// Bytes of a chunk of the checkpoints that are written.
const CHUNK_BYTES: usize = 256 << 10;

/// As many as a server can be started with: one that is not used costs nothing.
const DATABASES: u16 = 1024;

/// Make a new cluster from the data of one node, when the others are lost permanently.
///
/// Without --accept-loss it reports what is in the directory and what may be missing, and changes nothing. No server
/// may use the directory.
#[derive(clap::Args, Clone, Debug)]
pub struct RecoverArguments {
    /// The data directory of the surviving node
    #[arg(long, value_name = "DIRECTORY", default_value = "holdfast-data", conflicts_with = "compare")]
    data_dir: PathBuf,
    /// Make a new cluster of it, without what only the lost nodes have
    #[arg(long, conflicts_with = "compare")]
    accept_loss: bool,
    /// Show which of several directories of the same cluster has the most
    #[arg(long, value_name = "DIRECTORY", num_args = 1..)]
    compare: Vec<PathBuf>,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

/// Runs `holdfast recover`.
///
/// # Errors
/// What an operator must know.
pub fn run(arguments: &RecoverArguments) -> Result<()> {
    if !arguments.compare.is_empty() {
        return compare::run(&arguments.compare, &mut Pace::new(arguments.quiet));
    }
    let mut pace = Pace::new(arguments.quiet);
    let outcome = Recovery::open(&arguments.data_dir, &mut pace).and_then(|recovery| {
        pace.end();
        say!("{}", report::page(&recovery));
        if arguments.accept_loss {
            return recovery.accept(&mut pace);
        }
        recovery.say_how();
        Ok(())
    });
    pace.end();
    outcome
}

/// A directory that nobody uses, and what is in it.
struct Found {
    directory: PathBuf,
    lock: DirectoryLock,
    disk: RealDisk,
    recovered: Recovered,
    /// Something may have been acknowledged before it was on the disk.
    acknowledges_early: bool,
}

impl Found {
    /// Looks into a directory, and changes nothing in it.
    fn look(directory: &Path) -> Result<Self> {
        let shown = directory.display();
        ensure!(
            directory.join(journal::IDENTITY_FILE).exists() || recovery::is_incomplete(directory),
            "{shown} is not a data directory: it has no file '{}'",
            journal::IDENTITY_FILE
        );
        let lock = DirectoryLock::acquire(directory).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => anyhow!("{shown} is in use by a server: stop that one first"),
            _ => anyhow!("cannot lock {shown}: {error}"),
        })?;
        if let Some(aside) = recovery::complete(directory, &lock).map_err(|fault| anyhow!("{fault}"))? {
            say_line!(
                "A recovery of {shown} had been cut short, and is complete now. The old files are in {}.",
                aside.display()
            );
        }
        let disk = RealDisk::open_directory_to_read(directory).with_context(|| format!("cannot open {shown}"))?;
        // What is damaged at the end of the log is a loss like others, and told as one.
        let options = journal::Options { has_peers: |_, _| true, ..journal::Options::new(NOBODY) };
        let recovered = Journal::look(&disk, &options).map_err(|fault| told(directory, &fault))?;
        let acknowledges_early =
            edge::acknowledges_early(directory).with_context(|| format!("cannot look into {shown}"))?;
        Ok(Self { directory: directory.to_owned(), lock, disk, recovered, acknowledges_early })
    }

    fn identity(&self) -> &Identity {
        &self.recovered.identity
    }

    fn groups(&self) -> impl Iterator<Item = (u32, Option<&RecoveredGroup>)> {
        (0..group_count(&self.recovered)).map(|group| (group, self.recovered.groups.get(&group)))
    }

    /// The end of the log may be missing although it was written.
    fn may_lack_its_end(&self) -> bool {
        self.recovered.tail_in_question.is_some() || (self.acknowledges_early && !self.recovered.was_stopped_cleanly)
    }
}

/// What a directory that has an identity is not stamped with.
const NOBODY: Identity = Identity {
    directory: 0,
    cluster: 0,
    node: 0,
    group_count: 0,
    hash_seed: 0,
    has_joined: false,
    level: stdx::Level::FIRST,
};

/// What is wrong with a directory, with what to do about it.
fn told(directory: &Path, fault: &journal::Fault) -> anyhow::Error {
    let advice = match fault {
        journal::Fault::Damaged { .. } | journal::Fault::Missing { .. } => {
            ": nothing has been changed; recover another node, or restore a backup"
        }
        journal::Fault::Newer { .. } => ": use the version that wrote it",
        journal::Fault::Full { .. } => ": make room and begin again; nothing has been changed",
        journal::Fault::Io { .. } | journal::Fault::Foreign { .. } | journal::Fault::Level { .. } => "",
    };
    anyhow!("data directory {}: {fault}{advice}", directory.display())
}

/// A group of the directory, with all of its log applied.
struct GroupFound {
    state: State,
    hard_state: HardState,
    membership: Membership,
}

impl GroupFound {
    /// Entries at the end of the log of which the node did not know whether they were committed.
    fn uncommitted_count(&self) -> u64 {
        self.state.applied().index.saturating_sub(self.hard_state.commit)
    }
}

/// What is known before anything is decided.
struct Recovery {
    found: Found,
    groups: Vec<GroupFound>,
    unresolved: BTreeMap<TransactionId, Unresolved>,
}

impl Recovery {
    fn open(directory: &Path, pace: &mut Pace) -> Result<Self> {
        let mut found = Found::look(directory)?;
        let identity = *found.identity();
        let needs_nobody = found
            .groups()
            .all(|(_, group)| group.is_some_and(|group| membership_of(&identity, group).voters == [identity.node]));
        ensure!(
            !needs_nobody || found.recovered.tail_in_question.is_some(),
            "{} needs no recovery: its node is the only one that votes in its groups, so it can be started as it is",
            directory.display()
        );
        let mut elsewhere: Vec<u32> = found
            .groups()
            .filter(|(_, group)| group.is_some_and(RecoveredGroup::is_vacated))
            .map(|(group, _)| group)
            .collect();
        let mut count = group_count(&found.recovered);
        let mut of_log = std::mem::take(&mut found.recovered.groups);
        commit_splits(&mut of_log);
        let (mut groups, mut beginnings) = (Vec::new(), Beginnings::default());
        let mut group = 0;
        while group < count {
            let of_log = of_log.remove(&group).unwrap_or_default();
            // Groups have higher numbers than those from which they split off.
            let split_from = |of: &GroupFound| {
                let index = of.state.split_index(GroupId(group))?;
                Some(Born { parent: of.state.group(), index })
            };
            let born = groups.iter().find_map(split_from);
            let replayed = found.replay(group, of_log, born, &mut beginnings, pace)?;
            // A group that has come into being just now may have no record yet, though others have given it what it
            // will hold.
            if group == 0 {
                let roster = replayed.state.roster();
                elsewhere.retain(|group| !roster.is_gone(GroupId(*group)));
                let named: Vec<String> = elsewhere.iter().map(u32::to_string).collect();
                ensure!(
                    named.is_empty(),
                    "{} holds nothing of group {}, which lived on other nodes: recover a node that holds every group, or \
                     restore a backup",
                    directory.display(),
                    named.join(", ")
                );
            }
            let known = if group == 0 { replayed.state.roster().group_count(identity.group_count) } else { 0 };
            let begun = replayed.state.split_groups().map(|new| new.0 + 1).max().unwrap_or_default();
            count = count.max(known).max(begun);
            groups.push(replayed);
            group += 1;
        }
        ensure!(
            groups.iter().any(|group| group.state.applied().index > 0),
            "{} holds nothing: its node had not been given any data yet",
            directory.display()
        );
        let unresolved = judge(groups.iter().map(|group| &group.state));
        Ok(Self { found, groups, unresolved })
    }

    fn say_how(&self) {
        let directory = self.found.directory.display();
        say_line!(
            "\nNothing has been changed. If the other nodes are lost permanently, and no other survivor has more"
        );
        say_line!("(holdfast recover --compare DIRECTORY…), a new cluster is made of what is here by");
        say_line!("  holdfast recover --data-dir {directory} --accept-loss");
    }

    fn accept(mut self, pace: &mut Pace) -> Result<()> {
        let identity = recovery::successor_identity(self.found.identity()).map_err(|fault| anyhow!("{fault}"))?;
        let former = NodeId(self.found.identity().node);
        for group in &mut self.groups {
            group.state.begin_anew(&self.unresolved, former);
        }
        let Found { directory, lock, .. } = &self.found;
        let successor = Successor::begin(directory, lock).map_err(|fault| anyhow!("{fault}"))?;
        if let Err(error) = write(&identity, &mut self.groups, successor.path(), pace) {
            successor.abandon();
            return Err(error);
        }
        let aside = successor.install(lock).map_err(|fault| anyhow!("{fault}"))?;
        pace.end();
        let directory = directory.display();
        say_line!(
            "\nRecovered: {directory} holds a new cluster {:032x} of one node, {}.",
            identity.cluster,
            identity.node
        );
        say_line!("What was there before is in {}; remove it when you are sure.", aside.display());
        say_line!("Start it as before, but without --join. Then invite others, each with an empty directory:");
        say_line!("  holdfast cluster invite --data-dir {directory}");
        Ok(())
    }
}

impl Found {
    /// Reads a group's checkpoint, and applies all of the log behind it. `split_from` is where it has split off, as far
    /// as the log of another group tells.
    fn replay(
        &self,
        group: u32,
        of_log: RecoveredGroup,
        split_from: Option<Born>,
        beginnings: &mut Beginnings,
        pace: &mut Pace,
    ) -> Result<GroupFound> {
        let identity = self.identity();
        let membership = membership_of(identity, &of_log);
        let tuning = Tuning::default();
        let options =
            keyspace::Options { databases: DATABASES, hash_seed: identity.hash_seed, layout: Layout::Slots, tuning };
        let mut seed = GroupSeed::new(GroupId(group), NodeId(identity.node), Keyspace::new(options));
        if let Some(mark) = &of_log.checkpoint {
            let told = |fault| told(&self.directory, &fault);
            let mut reader = CheckpointReader::open(self.disk.clone(), identity, group, mark).map_err(told)?;
            let mut offset = 0;
            while let Some(chunk) = reader.next().map_err(told)? {
                seed.restore(chunk).map_err(|corrupt| {
                    let file = journal::checkpoint_file(group, mark.index);
                    told(journal::Fault::Damaged { file, offset, what: corrupt.to_string() })
                })?;
                let (done, total) = reader.progress();
                offset = done;
                pace.show(|| format!("reads group {group}: {} of {} MB", done / 1_000_000, total / 1_000_000));
            }
            (seed.checkpoint_index, seed.checkpoint_term) = (mark.index, mark.term);
        }
        seed.entries = of_log.entries;
        // The node may have ended between the split and the first record of the group.
        let is_empty = of_log.checkpoint.is_none() && seed.entries.is_empty();
        if let Some(born) = seed.born() {
            let split = beginnings.take(GroupId(group), born).with_context(|| {
                format!("group {group} split off from group {}, and its log does not reach back to that", born.parent.0)
            })?;
            seed.beginning = Some(Box::new(split));
        } else if let Some(born) = split_from.filter(|_| is_empty) {
            // Or the node was given a checkpoint behind the split, and nothing of the group yet: the report says so.
            seed.beginning = beginnings.take(GroupId(group), born).map(Box::new);
        }
        let (mut state, entries) = seed.into_state(identity.group_count);
        for (done, entry) in entries.iter().enumerate() {
            state.apply(entry, beginnings);
            pace.show(|| format!("applies the log of group {group}: {done} of {} entries", entries.len()));
        }
        Ok(GroupFound { state, hard_state: of_log.hard_state, membership })
    }
}

/// Writes a data directory with groups that begin with these states.
fn write(identity: &Identity, groups: &mut [GroupFound], path: &Path, pace: &mut Pace) -> Result<()> {
    let told = |fault: journal::Fault| told(path, &fault);
    let disk = RealDisk::open_directory(path).with_context(|| format!("cannot open {}", path.display()))?;
    let (mut journal, _) = Journal::open(disk.clone(), &journal::Options::new(*identity)).map_err(told)?;
    for group in groups {
        let number = group.state.group().0;
        let applied = group.state.applied();
        // A group of which nothing is here begins with nothing.
        let (index, term) = (applied.index.max(1), applied.term.max(1));
        let membership = Membership { voters: vec![identity.node], ..Membership::default() };
        let mark = CheckpointMark { index, term, membership };
        let mut file = CheckpointFile::begin(disk.clone(), identity, number, &mark).map_err(told)?;
        let mut chunk = vec![CHUNK_STATE];
        chunk.extend_from_slice(&group.state.save());
        file.push(&chunk);
        group.state.upkeep().begin_checkpoint();
        let mut is_walked = false;
        while !is_walked {
            let mut chunk = vec![CHUNK_KEYSPACE];
            is_walked = group.state.upkeep().checkpoint_step(CHUNK_BYTES, &mut chunk);
            if chunk.len() > 1 {
                file.push(&chunk);
            }
            while file.write(CHUNK_BYTES).map_err(told)? > 0 {}
            pace.show(|| format!("writes group {number}: {} MB", file.written_bytes() / 1_000_000));
        }
        file.finish().map_err(told)?;
        let hard_state = HardState { term: group.hard_state.term.max(term), vote: 0, commit: index };
        journal.install(number, mark, Some(hard_state)).map_err(told)?;
    }
    journal.stop().map_err(told)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use keyspace::Moment;
    use message::entry::Builder;
    use resp::{Args, Protocol, Span};
    use stdx::log::{Entry, EntryKind};
    use stdx::slot::{Slot, slot_of};
    use stdx::{Level, UnixMillis};

    use super::*;

    fn entry(index: u64, fill: impl FnOnce(&mut Builder)) -> Entry {
        let mut builder = Builder::with_capacity(0);
        builder.set_level(Level(2));
        fill(&mut builder);
        let moment = Moment { unix: UnixMillis(1_700_000_000_000), seed: 0 };
        Entry { term: 1, index, kind: EntryKind::Normal, data: builder.finish(moment) }
    }

    /// The process ends between the entry by which a group split off and that group's own first record: what it was to
    /// begin with is in the log of the other one.
    #[test]
    fn a_group_that_split_off_and_left_no_record_is_found() {
        let folder = std::env::temp_dir().join(format!("holdfast-recover-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let identity = Identity {
            directory: 1,
            cluster: 1,
            node: 1,
            group_count: 1,
            hash_seed: 1,
            has_joined: false,
            level: Level(2),
        };
        let disk = RealDisk::open_directory(&folder).expect("a disk");
        let (mut journal, _) = Journal::open(disk, &journal::Options::new(identity)).expect("a journal");
        let words = "SETkeyvalue";
        let spans = [(0, 3), (3, 6), (6, 11)].map(|(start, end)| Span { start, end });
        let slot = slot_of(b"key");
        let written = entry(1, |builder| {
            builder.rise(Level(2));
            builder.command(Protocol::Resp2, 0, Args::new(words.as_bytes(), &spans));
        });
        let split = entry(2, |builder| builder.split(GroupId(1), &[(slot, Slot(slot.0 + 1))]));
        let append = journal::Append {
            group: 0,
            ticket: 1,
            hard_state: Some(HardState { term: 1, vote: 1, commit: 1 }),
            membership: Some(Membership { voters: vec![1, 2, 3], ..Membership::default() }),
            entries: vec![written, split],
        };
        journal.append_durably(&[append]).expect("it is written");
        journal.stop().expect("it is closed");
        let recovery = Recovery::open(&folder, &mut Pace::new(true)).expect("it can be recovered");
        let keys = |group: usize| recovery.groups[group].state.keyspace().slot_key_count(0, slot);
        assert_eq!((recovery.groups.len(), keys(0), keys(1)), (2, 0, 1));
        drop(recovery);
        fs::remove_dir_all(&folder).expect("it is there");
    }
}

//! A naive twin: what the groups are after a list of steps, and steps drawn at random.

use std::collections::BTreeMap;

use bytes::Bytes;
use journal::{Append, CheckpointMark, Disk, Fault, Identity, Journal, Options, RecoveredGroup, checkpoint_file};
use stdx::Prng;
use stdx::log::{Entry, EntryKind, HardState, Membership};

use crate::memory_disk::MemoryDisk;

pub const IDENTITY: Identity = Identity {
    directory: 0x1234_5678,
    cluster: 9,
    node: 1,
    group_count: 3,
    hash_seed: 77,
    has_joined: false,
    level: stdx::Level::FIRST,
};

pub fn options() -> Options {
    Options { segment_bytes: 64 << 10, ..Options::new(IDENTITY) }
}

/// As [`options`], of a node that has others to ask.
pub fn options_among_peers() -> Options {
    Options { has_peers: |_, _| true, ..options() }
}

/// One call of the journal.
#[derive(Clone, Debug)]
pub enum Step {
    Append {
        appends: Vec<Append>,
        is_durable: bool,
    },
    Sync,
    /// A sync during which more is written.
    SyncBeside {
        appends: Vec<Append>,
    },
    Seal,
    Checkpoint {
        group: u32,
        mark: CheckpointMark,
    },
    Chores,
}

pub type Groups = BTreeMap<u32, RecoveredGroup>;

/// What a step makes of the groups.
pub fn apply(groups: &mut Groups, step: &Step) {
    match step {
        Step::Append { appends, .. } | Step::SyncBeside { appends } => {
            for append in appends.iter().filter(|append| !append.is_empty()) {
                let group = groups.entry(append.group).or_default();
                if append.vacates() {
                    (group.checkpoint, group.entries) = (None, Vec::new());
                } else if group.is_vacated() && !append.entries.is_empty() {
                    group.membership = None;
                }
                if let Some(first) = append.entries.first() {
                    group.entries.retain(|entry| entry.index < first.index);
                }
                group.entries.extend(append.entries.iter().cloned());
                group.hard_state = append.hard_state.unwrap_or(group.hard_state);
                group.membership = append.membership.clone().or(group.membership.take());
            }
        }
        Step::Checkpoint { group, mark } => {
            let group = groups.entry(*group).or_default();
            group.entries.retain(|entry| entry.index > mark.index);
            group.hard_state.commit = group.hard_state.commit.max(mark.index);
            group.checkpoint = Some(mark.clone());
            if group.is_vacated() {
                group.membership = None;
            }
        }
        Step::Sync | Step::Seal | Step::Chores => {}
    }
}

/// Carries a step out.
pub fn perform(journal: &mut Journal<MemoryDisk>, step: &Step) -> Result<(), Fault> {
    match step {
        Step::Append { appends, is_durable: true } => journal.append_durably(appends),
        Step::Append { appends, is_durable: false } => journal.append(appends),
        Step::Sync => journal.sync(),
        Step::SyncBeside { appends } => {
            let syncing = journal.begin_sync();
            journal.append(appends)?;
            let Some(syncing) = syncing else { return Ok(()) };
            syncing.run(journal.disk())?;
            journal.end_sync(syncing)
        }
        Step::Seal => journal.seal(),
        Step::Checkpoint { group, mark } => {
            let name = checkpoint_file(*group, mark.index);
            let failed = |error| Fault::Io { action: "make", file: name.clone(), error };
            journal.disk().create(&name, 0).map_err(failed)?;
            let failed = |error| Fault::Io { action: "sync", file: name.clone(), error };
            journal.disk().sync_directory().map_err(failed)?;
            journal.checkpointed(*group, mark.clone())
        }
        Step::Chores => journal.prepare_spare(),
    }
}

/// True if everything before the step, and what it writes itself, is durable once it has returned.
pub fn is_barrier(step: &Step) -> bool {
    matches!(step, Step::Append { is_durable: true, .. } | Step::Sync | Step::Checkpoint { .. })
}

pub fn entry(prng: &mut Prng, term: u64, index: u64, bytes_max: u64) -> Entry {
    let length = match prng.below(20) {
        0 => bytes_max * 8,
        1..4 => bytes_max,
        _ => prng.below(bytes_max + 1),
    };
    let data: Vec<u8> = (0..length).map(|_| prng.draw() as u8).collect();
    let kind = if prng.chance(1, 10) { EntryKind::Membership } else { EntryKind::Normal };
    Entry { term, index, kind, data: Bytes::from(data) }
}

/// Draws the next step of a host with groups in this state.
pub fn draw(prng: &mut Prng, groups: &Groups, term: &mut u64) -> Step {
    let last = |group: u32| -> (u64, u64) {
        let Some(found) = groups.get(&group) else { return (0, 0) };
        let mark = found.checkpoint.as_ref().map_or(0, |mark| mark.index);
        (mark, found.entries.last().map_or(mark, |entry| entry.index))
    };
    match prng.below(20) {
        0 | 1 => Step::Sync,
        2 => Step::Seal,
        3 => Step::Chores,
        4 | 5 => {
            let group = prng.below(3) as u32;
            let (mark, last) = last(group);
            // Rarely a checkpoint beyond the log, as one that came from a leader.
            let index = if prng.chance(1, 8) { last + 5 } else { mark + prng.below(last - mark + 1) };
            let membership = Membership { voters: vec![1, 2, index], ..Membership::default() };
            Step::Checkpoint { group, mark: CheckpointMark { index, term: *term, membership } }
        }
        kind => {
            let first_group = prng.below(3) as u32;
            let appends = (first_group..first_group + 1 + prng.below(2) as u32)
                .map(|group| {
                    let (mark, last) = last(group);
                    if prng.chance(1, 12) {
                        let hard_state = Some(HardState { term: *term, vote: prng.below(4), commit: 0 });
                        let membership = Some(Membership::default());
                        return Append { group, hard_state, membership, ..Append::default() };
                    }
                    // Rarely entries that replace others.
                    let first = if last > mark && prng.chance(1, 10) {
                        *term += 1;
                        mark + 1 + prng.below(last - mark)
                    } else {
                        last + 1
                    };
                    let entries: Vec<Entry> =
                        (first..first + prng.below(4)).map(|index| entry(prng, *term, index, 700)).collect();
                    let hard_state =
                        prng.chance(1, 2).then(|| HardState { term: *term, vote: prng.below(4), commit: mark });
                    let membership = prng.chance(1, 10).then(|| Membership {
                        voters: vec![1],
                        learners: vec![*term],
                        ..Membership::default()
                    });
                    Append { group, ticket: 0, hard_state, membership, entries }
                })
                .collect();
            if kind == 6 {
                Step::SyncBeside { appends }
            } else {
                Step::Append { appends, is_durable: prng.chance(1, 2) }
            }
        }
    }
}

//! A group as it was at a moment: its newest base before that, and the log behind it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, anyhow, bail};
use archive::{BaseInfo, BaseReader, GroupReader, Next};
use group::group_seed::GroupSeed;
use group::ids::{GroupId, NodeId};
use keyspace::{DataCommand, Keyspace, Layout, Tuning};
use message::TransactionId;
use message::entry::Born;
use resp::Args;
use state::cut::moment_of_entry;
use state::{Applied, Beginnings, Effects, FIRST, Meter, State, What};
use stdx::UnixMillis;
use stdx::log::Entry;

use super::view::{View, check_levels, told};

/// Transactions are looked at that had been done in one group so long before the moment, in milliseconds: clocks may be
/// wrong by so much, and it is told.
const DISORDER_MAX_MS: i64 = 60 * 60 * 1_000;

/// A group at a moment.
pub(super) struct Replayed {
    pub(super) state: State,
    /// The moment of the base; the lowest of all if there was none.
    pub(super) base: UnixMillis,
    /// Entries that were replayed, and bytes of them.
    pub(super) entry_count: u64,
    pub(super) bytes: u64,
    /// What is known of transactions over groups.
    pub(super) fates: Fates,
    /// Bases that could not be read.
    pub(super) notes: Vec<String>,
}

/// What a group's log says of transactions over groups.
#[derive(Default)]
pub(super) struct Fates {
    /// Those that it knows.
    seen: BTreeSet<TransactionId>,
    participants: BTreeMap<TransactionId, Vec<u32>>,
    /// Those that it has done, with the moment.
    done: Vec<(TransactionId, UnixMillis)>,
    /// Before that nothing is noted.
    from: UnixMillis,
}

impl Meter for Fates {
    type Watch = ();

    fn start(&mut self, _: &'static DataCommand, _: Args<'_>) -> Option<()> {
        None
    }

    fn stop(&mut self, _: Option<()>, _: Args<'_>) {}
}

impl Effects for Fates {
    fn applied(&mut self, state: &mut State, applied: Applied) {
        let moment = state.moment().unix;
        if moment < self.from {
            return;
        }
        match applied.what {
            What::Prepared { transaction, .. } => {
                self.seen.insert(transaction);
                if let Some(prepared) = state.prepared().get(&transaction) {
                    self.participants.insert(transaction, prepared.participants().to_vec());
                }
            }
            What::Resolved { transaction, .. } => {
                self.seen.insert(transaction);
                if state.outcome(transaction) == Some(true) {
                    self.done.push((transaction, moment));
                }
            }
            _ => {}
        }
    }
}

/// Where a replay begins.
pub(super) fn keyspace(view: &View) -> Keyspace {
    let databases = view.archive.manifest().databases;
    Keyspace::new(keyspace::Options { databases, hash_seed: 1, layout: Layout::Slots, tuning: Tuning::default() })
}

/// The state of a group behind a base; with none the state before the first entry.
pub(super) fn begin(view: &View, group: u32, base: Option<&BaseInfo>) -> Result<State, archive::Fault> {
    let mut seed = GroupSeed::new(GroupId(group), NodeId(1), keyspace(view));
    if let Some(base) = base {
        (seed.checkpoint_index, seed.checkpoint_term) = (base.index, base.term);
        let mut reader = BaseReader::open(&view.archive, group, &base.path)?;
        while let Some(chunks) = reader.next_chunks()? {
            for chunk in chunks {
                seed.restore(&chunk).map_err(|corrupt| archive::Fault::wrong(&base.path, corrupt.to_string()))?;
            }
        }
        if seed.keyspace.is_restore_incomplete() {
            return Err(archive::Fault::wrong(&base.path, "it ends in the middle of a value"));
        }
    }
    Ok(seed.into_state(view.archive.manifest().groups).0)
}

/// What a group began with that split off from another one: what that one's log makes of it up to there.
///
/// # Errors
/// If that one's base before it, or the log behind, is damaged or missing.
pub(super) fn beginning(view: &View, group: u32, born: Born) -> Result<State> {
    let (parent, index) = (born.parent.0, born.index);
    let missing = || anyhow!("group {group} split off from group {parent}, of which the archive holds nothing");
    let listing = &view.groups.get(parent as usize).ok_or_else(missing)?.listing;
    let from_start = listing.logs.first().is_some_and(|log| log.first == 1);
    let bases = listing.bases.iter().rev().filter(|base| base.index < index).map(Some);
    for base in bases.chain(from_start.then_some(None)) {
        let Ok(mut state) = begin(view, parent, base) else { continue };
        let mut beginnings = Beginnings::default();
        let mut reader = GroupReader::new(&view.archive, parent, listing, state.applied().index + 1);
        while let Next::Entries(entries, ..) = reader.next().map_err(|problem| anyhow!("{}", told(parent, &problem)))? {
            check_levels(parent, &entries)?;
            for entry in entries.iter().filter(|entry| entry.index <= index) {
                apply(view, &mut state, entry, &mut beginnings)?;
            }
            if state.applied().index == index {
                let split = beginnings.take(GroupId(group), born);
                return split.map(|split| split.state).ok_or_else(|| {
                    anyhow!("group {parent}: entry {index} is not that by which group {group} split off")
                });
            }
        }
    }
    bail!("group {group} split off at entry {index} of group {parent}, and no base before that can be read")
}

/// Where a group split off, if this is the first entry of one that did. Entries of other kinds are further behind.
pub(super) fn born_of(entry: &Entry) -> Option<Born> {
    if entry.index == FIRST.index { Born::of_entry(&entry.data) } else { None }
}

/// Applies the next entry of a group's log. The first one of a group that split off brings what it began with.
///
/// # Errors
/// If that cannot be had.
pub(super) fn apply(view: &View, state: &mut State, entry: &Entry, effects: &mut impl Effects) -> Result<()> {
    match born_of(entry) {
        Some(born) => *state = beginning(view, state.group().0, born)?,
        None => state.apply(entry, effects),
    }
    Ok(())
}

/// Brings a group to a moment. `progress` is told bytes as they are replayed.
///
/// # Errors
/// If what that takes is damaged or missing, by name.
pub(super) fn replay(view: &View, group: u32, moment: UnixMillis, progress: impl Fn(u64)) -> Result<Replayed> {
    let listing = &view.groups[group as usize].listing;
    let from_start = listing.logs.first().is_some_and(|log| log.first == 1);
    let bases = listing.bases.iter().rev().filter(|base| base.moment <= moment).map(Some);
    let mut notes: Vec<String> = listing.faults.iter().map(ToString::to_string).collect();
    for base in bases.chain(from_start.then_some(None)) {
        let mut state = match begin(view, group, base) {
            Ok(state) => state,
            Err(fault) => {
                notes.push(format!("{fault}: an older base is read in its place"));
                continue;
            }
        };
        let mut fates = Fates { from: UnixMillis(moment.0.saturating_sub(DISORDER_MAX_MS)), ..Fates::default() };
        fates.seen.extend(state.prepared().keys());
        for (transaction, prepared) in state.prepared() {
            fates.participants.insert(*transaction, prepared.participants().to_vec());
        }
        let (mut entry_count, mut bytes) = (0, 0);
        let base_moment = base.map_or(UnixMillis(i64::MIN), |base| base.moment);
        let mut reader = GroupReader::new(&view.archive, group, listing, state.applied().index + 1);
        loop {
            match reader.next().map_err(|problem| anyhow!("{}", told(group, &problem)))? {
                // Of a group that has ended nothing is lacking.
                Next::End(_) if state.ended().is_some() => {
                    return Ok(Replayed { state, base: base_moment, entry_count, bytes, fates, notes });
                }
                Next::End(fault) => {
                    let why = fault.map_or_else(|| "the archive ends".to_owned(), |fault| fault.to_string());
                    bail!("group {group}: {why}, before {}", edge::utc(moment));
                }
                Next::Entries(entries, frame, path) => {
                    check_levels(group, &entries)?;
                    let is_within = |entry: &&Entry| moment_of_entry(entry).is_none_or(|unix| unix <= moment);
                    let within = entries.iter().take_while(is_within);
                    for entry in within {
                        if entry.term < state.applied().term {
                            bail!("group {group}: {}: terms go back at entry {}", path.display(), entry.index);
                        }
                        apply(view, &mut state, entry, &mut fates)?;
                        entry_count += 1;
                        bytes += entry.data.len() as u64;
                    }
                    progress(frame.bytes);
                    if entries.last().is_some_and(|last| state.applied().index < last.index) {
                        return Ok(Replayed { state, base: base_moment, entry_count, bytes, fates, notes });
                    }
                }
            }
        }
    }
    bail!("group {group}: no base before {} can be read: {}", edge::utc(moment), notes.join("; "))
}

/// Whether these are the groups at one moment: a transaction that one has done all others know of. Clocks that were
/// wrong by more than the cluster follows are the only reason why not.
///
/// # Errors
/// Names the groups.
pub(super) fn check_order(groups: &[Replayed]) -> Result<(), String> {
    let begun = groups.iter().map(|group| group.base).max().unwrap_or_default();
    for (number, group) in groups.iter().enumerate() {
        let is_there = |new: &GroupId| groups.get(new.0 as usize).is_some_and(|new| new.state.applied().index > 0);
        if let Some(new) = group.state.split_groups().find(|new| !is_there(new)) {
            return Err(format!(
                "group {} had split off from group {number} by then, and the archive holds nothing of it yet: choose a moment \
                 before that, or wait until it does",
                new.0
            ));
        }
        for (transaction, moment) in group.fates.done.iter().filter(|(_, moment)| *moment > begun) {
            let participants = group.fates.participants.get(transaction).into_iter().flatten();
            for other in participants {
                let knows = groups.get(*other as usize).is_some_and(|other| {
                    other.fates.seen.contains(transaction)
                        || other.state.prepared().contains_key(transaction)
                        || other.state.outcome(*transaction).is_some()
                });
                if !knows {
                    return Err(format!(
                        "group {number} has carried out a transaction at {} that group {other} has not heard of yet: the \
                         clocks of their nodes were further apart then than is followed, and this moment cannot be \
                         restored",
                        edge::utc(*moment)
                    ));
                }
            }
        }
    }
    Ok(())
}

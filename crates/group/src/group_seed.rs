//! What a group begins with when it is loaded, or founded.

use std::collections::BTreeSet;

use keyspace::{Corrupt, Keyspace};
use message::entry::Born;
use state::{Position, SplitOff, State};
use stdx::log::{Entry, HardState, Membership};

use crate::checkpoint::{CHUNK_KEYSPACE, CHUNK_STATE};
use crate::ids::{GroupId, *};

/// A group as found on disk, or a new one.
pub struct GroupSeed {
    /// Which.
    pub group: GroupId,
    /// State at `checkpoint_index`; empty for a new group.
    pub keyspace: Keyspace,
    /// What this replica promised.
    pub hard_state: HardState,
    /// Who takes part, as of the checkpoint or of the last applied change.
    pub membership: Membership,
    /// Log index of the checkpoint the keyspace was loaded from; 0 if none.
    pub checkpoint_index: u64,
    /// Term of the entry at that index.
    pub checkpoint_term: u64,
    /// The rest of the log.
    pub entries: Vec<Entry>,
    /// True if this replica may have lost the unsynced end of its log: it must not vote until it has caught up.
    pub is_recovering: bool,
    /// What the checkpoint holds of the group itself; filled by [`GroupSeed::restore`].
    pub state: Vec<u8>,
    /// What the group begins with, if it has split off from another one and has no checkpoint of its own yet.
    pub beginning: Option<Box<SplitOff>>,
    /// Groups that begin with what the log of this one makes of their slots: they have no checkpoint of their own here.
    pub unkept: BTreeSet<GroupId>,
    /// The replica has never been anything before.
    pub is_new: bool,
    /// The group has been given up here, and not been given a checkpoint since.
    pub was_given_up: bool,
}

impl GroupSeed {
    /// A group without data or log, with `node` as its only member.
    pub fn new(group: GroupId, node: NodeId, keyspace: Keyspace) -> Self {
        Self {
            group,
            keyspace,
            hard_state: HardState::default(),
            membership: Membership { voters: vec![node.0], ..Membership::default() },
            checkpoint_index: 0,
            checkpoint_term: 0,
            entries: Vec::new(),
            is_recovering: false,
            state: Vec::new(),
            beginning: None,
            unkept: BTreeSet::new(),
            is_new: false,
            was_given_up: false,
        }
    }

    /// Where the group has split off, if it needs [what it begins with](GroupSeed::beginning) and has not got it yet.
    pub fn born(&self) -> Option<Born> {
        let first = self.entries.first().filter(|first| first.index == state::FIRST.index)?;
        let is_needed = self.checkpoint_index == 0 && self.beginning.is_none();
        is_needed.then(|| Born::of_entry(&first.data)).flatten()
    }

    /// Takes one chunk of the group's checkpoint, as [`CheckpointStep::Chunk`](crate::host::CheckpointStep::Chunk) gave
    /// it. Chunks come in order.
    ///
    /// # Errors
    /// If the chunk is none.
    pub fn restore(&mut self, chunk: &[u8]) -> Result<(), Corrupt> {
        match chunk.split_first() {
            Some((&CHUNK_STATE, state)) => {
                self.state = state.to_vec();
                Ok(())
            }
            Some((&CHUNK_KEYSPACE, records)) => self.keyspace.restore(records),
            _ => Err(Corrupt { offset: 0 }),
        }
    }

    /// The group's state as its checkpoint has it, one of so many groups, and the log behind it: what is needed to look
    /// at a group, or to replay its log, without a node.
    pub fn into_state(self, group_count: u32) -> (State, Vec<Entry>) {
        if let Some(split) = self.beginning {
            let behind = self.entries.into_iter().filter(|entry| entry.index > state::FIRST.index);
            return (split.state, behind.collect());
        }
        let mut state = State::new(self.group, group_count, self.keyspace);
        state.load(&self.state, Position { index: self.checkpoint_index, term: self.checkpoint_term });
        (state, self.entries)
    }
}

/// A group that has split off from one of another core.
#[derive(Debug)]
pub struct NewGroup {
    /// What it begins with.
    pub split: SplitOff,
    /// Who takes part: those who took part in the other group when it split.
    pub membership: Membership,
    /// This node leads the other group, and stands for this one at once.
    pub leads: bool,
    /// This one may have been here before, and have promised what is not known any more.
    pub is_in_doubt: bool,
}

//! What goes into a journal and what comes back.

use std::collections::BTreeMap;

use stdx::Levels;
use stdx::log::{Entry, HardState, Membership};

use crate::Identity;
use crate::layout::SEGMENT_BYTES_DEFAULT;

/// What one group wants written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Append {
    /// The group of the log.
    pub group: u32,
    /// The caller's number for it; the journal does not look at it.
    pub ticket: u64,
    /// Its new hard state, if that changed.
    pub hard_state: Option<HardState>,
    /// Its new membership, if that changed. Nobody at all *vacates* the group: its log, its checkpoint and whatever was
    /// known of its members are given up, and only the hard state stays. A checkpoint of a leader's fills it again.
    pub membership: Option<Membership>,
    /// New entries with consecutive indexes. If the first index is already in the log, that entry and everything behind
    /// it is replaced.
    pub entries: Vec<Entry>,
}

impl Append {
    /// True if there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.hard_state.is_none() && self.membership.is_none() && self.entries.is_empty()
    }

    /// True if it gives up the group's log and its checkpoint.
    pub fn vacates(&self) -> bool {
        self.membership.as_ref().is_some_and(is_nobody)
    }

    /// Roughly what it takes up in memory and on disk.
    pub fn weight_bytes(&self) -> usize {
        64 + self.entries.iter().map(|entry| 64 + entry.data.len()).sum::<usize>()
    }
}

/// True for the membership of a group that has been given up.
pub(crate) fn is_nobody(membership: &Membership) -> bool {
    *membership == Membership::default()
}

/// A group's state at one log index, durable in a file of its own: see [`crate::checkpoint_file`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointMark {
    /// Log index of the last entry it contains.
    pub index: u64,
    /// Term of that entry.
    pub term: u64,
    /// Who took part in the group as of that entry.
    pub membership: Membership,
}

/// How to open a journal.
#[derive(Clone, Debug)]
pub struct Options {
    /// What a new directory is stamped with; one that has an identity keeps its own.
    pub new_identity: Identity,
    /// Size of a log segment. A multiple of [`crate::BLOCK_BYTES`], at least 64 KiB. A segment becomes larger if one
    /// record needs that.
    pub segment_bytes: u64,
    /// Bytes of segments that are kept only because somebody [holds](crate::Journal::hold) them.
    pub held_bytes_max: u64,
    /// Whether others know what a directory may lack of its groups, as far as they could be read. If so, a log that has
    /// lost its last record is opened all the same, and [`Recovered::tail_in_question`] says so. Otherwise that is
    /// refused if the record is known to have been synced.
    pub has_peers: fn(&Identity, &[&RecoveredGroup]) -> bool,
    /// Segments that are only kept for others stay when a directory is opened, as far as `held_bytes_max` goes: an
    /// archive may lack them. See [`hold_for_archive`](crate::Journal::hold_for_archive).
    pub is_archived: bool,
    /// The levels that a directory may be at: any other is refused.
    pub levels: Levels,
}

impl Options {
    /// The defaults, and the identity that a new directory gets. Nothing is held, and there is nobody to ask.
    pub fn new(new_identity: Identity) -> Self {
        Self {
            new_identity,
            segment_bytes: SEGMENT_BYTES_DEFAULT,
            held_bytes_max: 0,
            has_peers: |_, _| false,
            is_archived: false,
            levels: Levels::KNOWN,
        }
    }
}

/// What was found on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Who the directory belongs to.
    pub identity: Identity,
    /// True if the directory was empty and has just been made.
    pub is_new: bool,
    /// True if the last process ended in good order, so that nothing unsynced can have been lost. True for a new
    /// directory.
    pub was_stopped_cleanly: bool,
    /// Why every group may lack the end of its log, although what was acknowledged had been synced: a line for the
    /// operator. None if no group does, or if there is nobody to ask. It is said at every start until
    /// [`Journal::settle`](crate::Journal::settle) or an end in good order.
    pub tail_in_question: Option<String>,
    /// Every group the log speaks of.
    pub groups: BTreeMap<u32, RecoveredGroup>,
    /// Bytes of log read.
    pub log_bytes: u64,
    /// One line for the operator about each thing that was put in order: an unsynced end that was cut off, left-over
    /// files that were removed.
    pub notes: Vec<String>,
}

/// One group, as found on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveredGroup {
    /// What it promised last.
    pub hard_state: HardState,
    /// Its membership as last written, if it ever was. Nobody at all if the group has been vacated, and not been filled
    /// again: then there is nothing else but the hard state.
    pub membership: Option<Membership>,
    /// The newest checkpoint that counts.
    pub checkpoint: Option<CheckpointMark>,
    /// Every entry behind the checkpoint, without a gap. Their data share the memory the log was read into.
    pub entries: Vec<Entry>,
}

impl RecoveredGroup {
    /// True if the group has been vacated, and not been given a checkpoint since.
    pub fn is_vacated(&self) -> bool {
        self.membership.as_ref().is_some_and(is_nobody)
    }
}

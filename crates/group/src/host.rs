//! What a group asks of the host, and what the host says of it: appends, checkpoints, archives.

use journal::CheckpointMark;
use stdx::log::HardState;

use crate::ids::GroupId;

/// When an acknowledged write is on disk (`appendfsync`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AppendFsync {
    /// Before the acknowledgement.
    #[default]
    Always,
    /// Within a second.
    EverySecond,
    /// When the operating system likes.
    No,
}

/// What an archive needs to know of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveNews {
    /// Which.
    pub group: GroupId,
    /// True where it is led.
    pub is_leading: bool,
    /// The disk of the leader's node has no room.
    pub lacks_room: bool,
    /// Others vote: what the log of this node does not hold any more they may hold.
    pub has_others: bool,
    /// The last entry applied here: it is committed.
    pub index: u64,
    /// The terms of entries up to this one are not known.
    pub floor: u64,
    /// The terms of the entries behind it, where the group is led: each with the index from which it counts.
    pub terms: Vec<(u64, u64)>,
}

/// When an append counts as persisted; [`Group::persisted`](crate::Group::persisted) is called then, in the order of
/// the appends of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persist {
    /// When it is on disk.
    Synced,
    /// When it has been handed to the operating system, and so outlives the process. The journal syncs it as
    /// `appendfsync` says.
    Written,
}

/// A step in writing a checkpoint. Steps of one checkpoint come in order: `Begin`, chunks, then `Finish`; or for one of
/// a leader's `Keep` and `Install`; or `Abandon` at any time.
#[derive(Debug)]
pub enum CheckpointStep {
    /// Open a new file for it.
    Begin(CheckpointMark),
    /// Append a chunk; the host answers with [`CheckpointNews::Written`], and may take its time: that is the pacing.
    Chunk(Vec<u8>),
    /// All chunks have been given: make it durable and let it count. [`CheckpointNews::Finished`] follows.
    Finish,
    /// All chunks have been given, and they are a leader's: make it durable, without letting it count. Whatever may be
    /// lacking for it, as room, is found out here. [`CheckpointNews::Kept`] follows.
    Keep,
    /// Let what is kept count and take the place of the group's log, with this hard state, in one record, however long
    /// that takes: the group has no other log any more. [`CheckpointNews::Finished`] follows.
    Install(HardState),
    /// Throw it away.
    Abandon,
}

/// What a host tells of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckpointNews {
    /// So many bytes of its chunks have been written since the last such news.
    Written(usize),
    /// It is durable, and does not count yet.
    Kept,
    /// It is durable and counts; log before it may be dropped.
    Finished,
    /// It could not be written; it does not count, and the log is kept.
    Failed(String),
}

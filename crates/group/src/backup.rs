//! A backup's cut: the checkpoints that all groups begin at one moment, and that a client reads.
//!
//! ```text
//!   gateway                                     every group
//!     │ lock all keys                             │ no checkpoint is under way, and none begins
//!     ├──────────────────────────────────────────▶│ holds requests back
//!     │◀─────────────────────────────── granted ──┤
//!     │ cut (when all have granted)               │
//!     ├──────────────────────────────────────────▶│ begins its checkpoint between two entries
//!     │◀──────────────────────────────────── cut ─┤
//!     │ release (when all have)                   │
//!     ├──────────────────────────────────────────▶│ lets requests in; the checkpoint is written meanwhile
//! ```
//!
//! While the locks are held no transaction over groups is half-way anywhere, so the checkpoints together are the data
//! at one moment. They are checkpoints like any other: a start may count on them. What is special is that each is
//! kept, and the next one put off, until it has been read, or nobody has asked for it for a while.

use journal::CheckpointMark;
use message::TransactionId;
use resp::Protocol;
use stdx::{Instant, UnixMillis};

use crate::checkpoint::CHUNK_STATE;
use crate::ids::Now;
use crate::output::Output;
use crate::requests::Origin;

/// What a group knows of backups.
#[derive(Debug, Default)]
pub(crate) struct Backups {
    pub(crate) cut: Option<Cut>,
    /// Somebody waits for the checkpoint under way to end: no other begins before this.
    pub(crate) wished_until: Option<Instant>,
}

/// A group's part of a backup.
#[derive(Debug)]
pub(crate) struct Cut {
    /// The backup's name.
    pub(crate) name: u128,
    pub(crate) transaction: TransactionId,
    /// Number of the checkpoint.
    pub(crate) checkpoint: u64,
    pub(crate) mark: CheckpointMark,
    pub(crate) stage: Stage,
    pub(crate) heard: Instant,
    /// Who waits for which chunk.
    pub(crate) readers: Vec<(u64, Origin, Protocol)>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Writing,
    Durable,
    Failed(String),
}

impl Backups {
    /// True if no checkpoint may begin. A checkpoint that a member waits for is not put off for a client that only
    /// wishes to make a backup, and could be put off without end: without the checkpoint that member may not know which
    /// nodes there are.
    pub(crate) fn put_off_checkpoints(&self, is_awaited: bool, now: Now) -> bool {
        self.cut.as_ref().is_some_and(|cut| cut.stage == Stage::Durable)
            || (!is_awaited && self.wished_until.is_some_and(|until| now.instant < until))
    }

    /// A checkpoint has ended.
    pub fn settle(&mut self, checkpoint: u64, failure: Option<&str>) {
        if let Some(cut) = self.cut.as_mut().filter(|cut| cut.checkpoint == checkpoint) {
            cut.stage = failure.map_or(Stage::Durable, |reason| Stage::Failed(reason.to_owned()));
        }
    }

    /// True if the group's part of a backup is kept for a reader.
    pub fn is_kept(&self) -> bool {
        self.cut.is_some()
    }

    /// Another replica leads: what was begun here is of no use.
    pub fn give_up(&mut self, output: &mut impl Output) {
        self.wished_until = None;
        for (_, origin, _) in self.cut.take().into_iter().flat_map(|cut| cut.readers) {
            output.send_back(&origin);
        }
    }
}

/// The chunk of a checkpoint that holds what a group has beside its keys, for a group with a log that begins at this
/// moment. Of `state`, what a group of another cluster has saved, it keeps the libraries of functions and the users.
pub fn state_chunk(moment: UnixMillis, state: Option<&[u8]>) -> Vec<u8> {
    let libraries = state.map(state::libraries_of).unwrap_or_default();
    let users = state.map(state::users_of).unwrap_or_default();
    let mut chunk = vec![CHUNK_STATE];
    chunk.extend_from_slice(&state::save_of_new_group(moment, libraries, users));
    chunk
}

/// The code of the libraries of functions that are in a group's own state, as [`crate::GroupSeed::state`] holds it.
pub fn libraries_of(state: &[u8]) -> Vec<Vec<u8>> {
    if state.is_empty() {
        return Vec::new();
    }
    state::libraries_of(state).iter().map(|loaded| loaded.library.text.to_vec()).collect()
}

/// The time that a group's own state tells; none if it is too short.
pub use state::moment_of as moment_of_state;

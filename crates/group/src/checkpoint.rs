//! Writing a group's checkpoint in slices between other work.
//!
//! The cut is between two entries. From then on the keyspace writes out the old value of a key before it changes it, so
//! that the slices together hold exactly the state at the cut. The host paces the work: no more than a bounded number
//! of bytes is ever handed out and not yet written.

use journal::CheckpointMark;
use stdx::{Instant, UnixMillis};

use crate::ids::Now;
use crate::limits;

/// First byte of a chunk that holds the group's own state.
pub const CHUNK_STATE: u8 = 0;
/// First byte of a chunk that holds records of the keyspace.
pub const CHUNK_KEYSPACE: u8 = 1;

/// What a group knows of its checkpoints.
#[derive(Debug, Default)]
pub struct Checkpointing {
    pub(crate) run: Option<Run>,
    last_id: u64,
    /// Somebody asked for one as soon as the present one is finished.
    pub(crate) is_wanted: bool,
    /// There is log enough for one, and other nodes write theirs first.
    pub(crate) is_waiting: bool,
    /// When the last one failed, unless one has been finished since.
    pub(crate) failed: Option<Instant>,
    /// How the last one ended.
    pub last: Option<Outcome>,
    /// Checkpoints finished since the start.
    pub finished_count: u64,
}

/// How a checkpoint ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Wall clock at the end.
    pub ended: UnixMillis,
    /// Seconds it took.
    pub took_seconds: u64,
    /// Why it failed, if it did.
    pub failure: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) id: u64,
    pub(crate) mark: CheckpointMark,
    pub(crate) began: Now,
    pub(crate) chunk: Vec<u8>,
    pub(crate) outstanding_bytes: usize,
    pub(crate) is_walked: bool,
    pub(crate) altered_before: u64,
    pub(crate) log_bytes_before: u64,
}

impl Checkpointing {
    /// True while one is being written.
    pub fn is_running(&self) -> bool {
        self.run.is_some()
    }

    /// True while one is being written of which something has yet to be read.
    pub fn is_walking(&self) -> bool {
        self.run.as_ref().is_some_and(|run| !run.is_walked)
    }

    /// The number of the next one.
    pub fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// True if one has failed so recently that the next would hardly fare better.
    pub fn is_resting(&self, now: Now) -> bool {
        self.failed.is_some_and(|failed| now.instant.since(failed) < limits::CHECKPOINT_REST)
    }

    /// When the running one began.
    pub fn began(&self) -> Option<UnixMillis> {
        self.run.as_ref().map(|run| run.began.unix)
    }
}

pub(crate) fn new_chunk() -> Vec<u8> {
    let mut chunk = Vec::with_capacity(limits::CHECKPOINT_CHUNK_BYTES + limits::CHECKPOINT_BYTES_PER_TURN);
    chunk.push(CHUNK_KEYSPACE);
    chunk
}

#[cfg(test)]
mod tests {
    use consensus::Change;
    use keyspace::{Keyspace, Layout, Options, Tuning};
    use stdx::Prng;
    use stdx::log::{Entry, EntryKind, Membership};

    use crate::group::Group;

    use super::*;
    use crate::group_seed::GroupSeed;
    use crate::host::AppendFsync;
    use crate::ids::{GroupId, NodeId};

    #[test]
    fn a_checkpoint_says_who_took_part_at_its_index_no_matter_who_does_by_now() {
        let options = Options { databases: 1, hash_seed: 7, layout: Layout::Slots, tuning: Tuning::default() };
        let mut seed = GroupSeed::new(GroupId(0), NodeId(1), Keyspace::new(options));
        seed.membership.voters = vec![1, 2];
        (seed.checkpoint_index, seed.checkpoint_term) = (5, 1);
        let changes = [(6, Change::AddLearner(3)), (7, Change::AddVoter(3)), (8, Change::Remove(1))];
        let entry = |(index, change): (u64, Change)| {
            let (term, kind) = (1, EntryKind::Membership);
            Entry { term, index, kind, data: change.encode() }
        };
        seed.entries = changes.map(entry).to_vec();
        (seed.hard_state.term, seed.hard_state.commit) = (1, 8);
        let now = Now { instant: Instant::from_nanos(1), unix: UnixMillis(1) };
        let group = Group::new(seed, 1, NodeId(1), AppendFsync::Always, &mut Prng::new(1), now).expect("sound");
        assert_eq!(group.membership().voters, [2, 3], "all that is committed counts");
        let mark = group.mark_now();
        let membership = Membership { voters: vec![1, 2], ..Membership::default() };
        assert_eq!((mark.index, mark.membership), (5, membership));
    }
}

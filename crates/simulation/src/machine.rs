//! One false machine: its disk and clocks, and the process on it while there is one. What happens when is the
//! universe's business; here is only what there is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use group::group_seed::GroupSeed;
use group::host::{CheckpointNews, Persist};
use group::ids::{CoreId, GroupId, NodeId, Room, SessionId};
use journal::{Append, CheckpointFile, CheckpointMark, Chore, Journal};
use node::Core;
use node::core_messages::Envelope;
use node::event::Peer;
use node::lives::Lives;
use stdx::log::{Entry, HardState};
use stdx::{Level, Levels};

use crate::clock::FalseClock;
use crate::disk::FalseDisk;

/// One machine.
pub struct Machine {
    /// The node that runs on it.
    pub node: NodeId,
    /// Survives processes.
    pub disk: FalseDisk,
    /// Its clocks.
    pub clock: FalseClock,
    /// What its monotonic clock gains by nature, in millionths.
    pub drift: i64,
    /// Each sync takes up to so much longer.
    pub sync_extra: u64,
    /// It has been started at some time: it belongs to the cluster, or did.
    pub has_joined: bool,
    /// The levels that the program knows which is installed there.
    pub levels: Levels,
    /// It cannot go on, and never starts again.
    pub is_lost: bool,
    /// A bit of its log has turned at some time.
    pub has_rotted: bool,
    /// Grows with every start of a process; what was under way to an earlier life is lost.
    pub life: u64,
    /// True time of the last start.
    pub started: u64,
    /// True time at which the last process ended.
    pub ended: Option<u64>,
    /// True time of the last stop in which a power cut took the page cache, and from when on what was not on disk may
    /// have been lost in it.
    pub stopped: Option<(u64, u64)>,
    /// By group, when its replica here last heard of something committed. Only where a lapse is allowed.
    pub progress: BTreeMap<u32, ReplicaProgress>,
    /// Nothing of it moves before this time.
    pub paused_until: u64,
    /// The process, while there is one.
    pub process: Option<Process>,
}

/// How far a replica has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplicaProgress {
    life: u64,
    applied: u64,
    applied_max: u64,
    /// When it last applied something, and be it what it has read from its log after a start.
    at: u64,
    /// When it last applied something that it had not applied in any life.
    new_at: u64,
}

impl ReplicaProgress {
    /// Notes how far it is in this life of its machine.
    pub fn note(&mut self, life: u64, applied: u64, now: u64) {
        if life != self.life || applied > self.applied {
            self.at = now;
        }
        if applied > self.applied_max {
            self.applied_max = applied;
            self.new_at = now;
        }
        (self.life, self.applied) = (life, applied);
    }

    /// True if what it holds may have been lost by the others in this lapse: it has heard of something committed since
    /// writes were in memory only, and of nothing that was committed after the lapse.
    pub fn may_be_overtaken(&self, (lapse, window): (u64, u64), delay: u64) -> bool {
        self.at + delay >= window && self.new_at <= lapse + delay
    }
}

/// One process.
pub struct Process {
    /// The journal, used by one thread at a time.
    pub journal: Journal<FalseDisk>,
    /// Its cores.
    pub cores: Vec<CoreHost>,
    /// What the cores want written, in order.
    pub queue: VecDeque<Order>,
    /// Is a sync under way?
    pub journal_is_busy: bool,
    /// When the journal's thread looks at the queue next, if it is to.
    pub journal_at: Option<u64>,
    /// When the last envelope from one core to another arrives.
    pub letter_at: BTreeMap<(u16, u16), u64>,
    /// When the journal's last notice to a core arrives.
    pub notice_at: BTreeMap<u16, u64>,
    /// Appends written by the sync that is under way, to be told of when it is over.
    pub syncing: Vec<(u16, GroupId, u64)>,
    /// The disk had no room when it was last asked.
    pub is_full: bool,
    /// The disk has failed under a checkpoint: anyone who counted on that one may end the process.
    pub has_lost_checkpoint: bool,
    /// A chore is being done.
    pub chore: Option<Chore>,
    /// Checkpoints being written, by group.
    pub checkpoints: BTreeMap<u32, (u64, CheckpointMark, CheckpointFile<FalseDisk>)>,
    /// When it last gave a chunk of a checkpoint to another node.
    pub gave_chunk_at: Option<u64>,
    /// When it last read its log for another node.
    pub read_log_at: Option<u64>,
    /// Serial of the last session.
    pub last_serial: u64,
    /// Nodes that the cluster has removed, as far as this process knows: it refuses their calls.
    pub removed: BTreeSet<NodeId>,
    /// On which machines it looks for other nodes.
    pub places: BTreeMap<NodeId, usize>,
    /// On which others it looks for them in turn.
    pub other_places: BTreeMap<NodeId, Vec<usize>>,
    /// Which processes it takes for other nodes.
    pub lives: Lives,
    /// The highest level of anything in its logs.
    pub floor: Level,
    /// Machines that it is linked to, by the life of their process.
    pub linked: BTreeMap<usize, u64>,
}

/// Something for the journal's thread.
pub enum Order {
    /// Write to the log.
    Append(u16, Append, Persist),
    /// Note that a checkpoint counts, with the hard state that goes with it if it came from a leader.
    Mark(u16, GroupId, u64, CheckpointMark, Option<HardState>),
}

/// A core and what waits for it.
pub struct CoreHost {
    /// The core.
    pub core: Core,
    /// What has arrived since its last turn.
    pub inbox: VecDeque<Inbound>,
    /// When its next turn is, if one is planned.
    pub turn_at: Option<u64>,
    /// It cannot turn earlier: it is at work.
    pub busy_until: u64,
    /// Connections, by serial.
    pub connections: BTreeMap<u64, u64>,
    /// Session places in use.
    pub places: BTreeSet<u32>,
    /// Bytes of entries it has logged since the last checkpoint was asked for.
    pub logged_bytes: u64,
    /// Too much waits for the disk: clients are not read.
    pub is_held_up: bool,
    /// Sessions that get no bytes delivered for now, and the bytes.
    pub held: BTreeMap<u64, Vec<u8>>,
}

/// Something that has arrived for a core.
pub enum Inbound {
    Opened(SessionId, Peer),
    Bytes(SessionId, Vec<u8>),
    Closed(SessionId),
    Peer(NodeId, Vec<u8>),
    Envelope(CoreId, Envelope),
    Loaded(Box<GroupSeed>),
    Persisted(GroupId, u64),
    Checkpoint(GroupId, u64, CheckpointNews),
    LogRead(GroupId, u64, Result<Vec<Entry>, String>),
    CheckpointRead { group: GroupId, index: u64, chunk: u64, to: NodeId, read: Result<Option<Vec<u8>>, String> },
    Room(Room),
    Expelled,
    Reachable(NodeId, Levels),
    RecordAgain(GroupId),
    Found(NodeId, String),
}

impl Process {
    /// A process that has just started.
    pub fn new(journal: Journal<FalseDisk>, cores: Vec<CoreHost>) -> Self {
        let floor = journal.identity().level;
        Self {
            journal,
            cores,
            queue: VecDeque::new(),
            journal_is_busy: false,
            journal_at: None,
            letter_at: BTreeMap::new(),
            notice_at: BTreeMap::new(),
            syncing: Vec::new(),
            is_full: false,
            has_lost_checkpoint: false,
            chore: None,
            removed: BTreeSet::new(),
            places: BTreeMap::new(),
            other_places: BTreeMap::new(),
            lives: Lives::default(),
            floor,
            linked: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
            gave_chunk_at: None,
            read_log_at: None,
            last_serial: 0,
        }
    }
}

impl CoreHost {
    /// A core that has been told nothing yet.
    pub fn new(core: Core) -> Self {
        Self {
            core,
            inbox: VecDeque::new(),
            turn_at: None,
            busy_until: 0,
            connections: BTreeMap::new(),
            places: BTreeSet::new(),
            logged_bytes: 0,
            is_held_up: false,
            held: BTreeMap::new(),
        }
    }

    /// A free place for a session.
    pub fn take_place(&mut self) -> u32 {
        let place = (0..).find(|place| !self.places.contains(place)).expect("there are more places than sessions");
        self.places.insert(place);
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: u64 = 5;

    #[test]
    fn a_lapse_excuses_who_held_what_it_took_and_nobody_long_afterwards() {
        let lapse = (100, 90);
        let mut progress = ReplicaProgress::default();
        progress.note(1, 7, 80);
        assert!(!progress.may_be_overtaken(lapse, DELAY), "what it holds was on the disks of all");
        progress.note(1, 8, 95);
        assert!(progress.may_be_overtaken(lapse, DELAY));
        // It starts again long after that, and reads its log.
        progress.note(2, 3, 150);
        progress.note(2, 8, 151);
        assert!(progress.may_be_overtaken(lapse, DELAY));
        // It has heard of what was committed afterwards.
        progress.note(2, 9, 152);
        assert!(!progress.may_be_overtaken(lapse, DELAY));
        assert!(progress.may_be_overtaken((150, 140), DELAY), "another lapse");
    }
}

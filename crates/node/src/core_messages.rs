//! What sibling cores of one node tell each other. Letters are never lost and keep their order; the simulator may delay
//! them.

use std::ops::Range;
use std::sync::Arc;

use group::cost::Cost;
use group::group_seed::NewGroup;
use group::group_status::GroupStatus;
use group::ids::{CoreId, GroupId, NodeId, SessionId};
use group::proof::{Committed, Proof};
use group::published::Published;
use group::replica_reads::{AppliedPosition, ReplicaRead};
use group::requests::Author;
use group::requests::ScriptRequest;
use group::requests::{
    Claim, Declined, Origin, OutcomeQueryKind, ParticipantStatus, PlainRequest, Request, RequestBody, Route, Step,
};
use group::timeline;
use group::wait_queues::WaitQueueNote;
use message::TransactionId;
use resp::Protocol;
use script::Script;
use stdx::UnixMillis;

use crate::acl::Users;
use crate::commands::question::{Answer, Question};
use crate::libraries::Libraries;
use crate::neighbours::Neighbours;
use crate::parameters::Parameters;
use crate::roster::Roster;
use crate::slots::Moved;
use crate::stagger::Stage;
use crate::stats::counters::SlowEntry;
use crate::tracking::news::{Change, News, Presence};

/// All that one core had to tell another in one turn.
#[derive(Debug)]
pub struct Envelope {
    /// In order.
    pub pieces: Vec<Piece>,
    /// Words of requests and replies to which the pieces refer. They lie together because a piece of memory for each,
    /// taken by one thread and returned by another, costs more than what is in it.
    pub bytes: Vec<u8>,
    /// The latest moment of an entry that the sender knows of.
    pub moment: UnixMillis,
}

impl Default for Envelope {
    fn default() -> Self {
        Self { pieces: Vec::new(), bytes: Vec::new(), moment: UnixMillis(i64::MIN) }
    }
}

/// One piece of an envelope. Nearly all are requests and replies of clients, so those are small, and lie in the
/// envelope.
#[derive(Debug)]
pub enum Piece {
    /// Do this for a client of mine.
    Request(PlainRequest),
    /// Here is the reply to a client of yours.
    Reply {
        /// The session that gets it.
        session: SessionId,
        /// Which of the session's replies it is.
        ticket: u64,
        /// By what right it is given.
        proof: Proof,
        /// Where it lies in the envelope's bytes, in the session's protocol.
        bytes: Range<usize>,
    },
    /// The same, by itself because it is long.
    LongReply {
        /// The session that gets it.
        session: SessionId,
        /// Which of the session's replies it is.
        ticket: u64,
        /// By what right it is given.
        proof: Proof,
        /// In the session's protocol.
        bytes: Vec<u8>,
    },
    /// Something else.
    CoreMessage(Box<CoreMessage>),
}

const _: () = assert!(size_of::<Piece>() <= 64, "envelopes of many pieces are moved and copied all the time");

/// A script that has to become a transaction.
#[derive(Debug)]
pub struct DeclinedScript {
    /// Where the reply goes.
    pub origin: Origin,
    /// In which form.
    pub protocol: Protocol,
    /// What is called.
    pub script: Arc<ScriptRequest>,
    /// What it has reached for.
    pub declined: Declined,
    /// The group that keeps its client's later requests out meanwhile.
    pub home: Option<GroupId>,
}

/// One thing told.
#[derive(Debug)]
pub enum CoreMessage {
    /// Do this for a client.
    Request(Request),
    /// Your client has sent commands that were slow.
    Slow {
        /// Who.
        session: SessionId,
        /// What.
        entries: Vec<SlowEntry>,
    },
    /// Here is the answer to a numbered request.
    Answered {
        /// Which.
        claim: Claim,
        /// How far the group was.
        place: AppliedPosition,
        /// What it has taken.
        cost: Cost,
        /// By what right it is given.
        proof: Proof,
        /// As its body says.
        bytes: Vec<u8>,
    },
    /// This group is not served here, or a request before this one is missing.
    Refused {
        /// The request.
        claim: Claim,
    },
    /// The request has come again, and will be answered.
    Alive {
        /// The request.
        claim: Claim,
    },
    /// Where a group is led has changed.
    Route {
        /// Which.
        group: GroupId,
        /// Where.
        route: Route,
    },
    /// Answer this read of a client of mine, if your replica is not too old.
    ReadAtReplica(ReplicaRead),
    /// It is too old, or not as far as the client has seen: ask the leader.
    NotNearby(ReplicaRead),
    /// Run this script now, which has waited for locked keys on this core.
    Retry(Request),
    /// A script of your client cannot run on the keys of a group of mine: make a transaction of it. What the client
    /// sent behind it to this group waits until it is let in.
    Declined(DeclinedScript),
    /// Let in what a client sent behind its script.
    LetIn {
        /// The group where it waits.
        group: GroupId,
        /// The client.
        origin: Origin,
    },
    /// Slots have moved.
    Slots(Arc<Vec<Moved>>),
    /// A group of yours has split off from one of mine.
    SplitOff(Box<NewGroup>),
    /// A group of mine that has split off from one of yours is there, and has told what it does.
    SplitBegun {
        /// Yours.
        parent: GroupId,
        /// Mine.
        group: GroupId,
    },
    /// A group of mine that has split off from one of yours does not need the log of yours any more.
    SplitKept {
        /// Yours.
        parent: GroupId,
        /// Mine.
        group: GroupId,
    },
    /// A group of mine was given a checkpoint: I have nothing to begin with for these, which split off from it.
    SplitsPassed(Vec<GroupId>),
    /// Ask a group for a step of a move that a group of this core drives.
    Move {
        /// Who drives it.
        by: GroupId,
        /// Which.
        id: TransactionId,
        /// Who is asked.
        group: GroupId,
        /// Which step.
        step: Step,
        /// What.
        body: RequestBody,
    },
    /// Remember this script, which a client has brought.
    Learn(Arc<Script>),
    /// These are the libraries now. Each core tells the next, so that all know when it comes back to the first.
    Libraries {
        /// All of them.
        libraries: Arc<Libraries>,
        /// The first core.
        first: CoreId,
        /// Which client to tell in the end, and what.
        reply: Option<(Origin, Committed, Vec<u8>)>,
    },
    /// Every core knows the libraries of this version.
    LibrariesKnown {
        /// Which.
        version: u64,
    },
    /// A script has been running for long, or has ended.
    Busy {
        /// Where.
        core: CoreId,
        /// Whether it is a function; `None` when it has ended.
        is_function: Option<bool>,
    },
    /// A group that holds a prepared transaction without a gateway asks another participant.
    OutcomeQuery {
        /// Which.
        transaction: TransactionId,
        /// The group that asks.
        from: GroupId,
        /// The node on which that group is led.
        node: NodeId,
        /// Who is asked.
        group: GroupId,
        /// What is asked.
        question: OutcomeQueryKind,
    },
    /// The answer to an outcome query.
    ParticipantStatus {
        /// Which.
        transaction: TransactionId,
        /// Who had asked.
        group: GroupId,
        /// Who answers.
        from: GroupId,
        /// What it knows.
        status: ParticipantStatus,
    },
    /// A session has read these keys of yours.
    Remember {
        /// Who, on the core that tells this.
        session: SessionId,
        /// What.
        keys: Vec<Vec<u8>>,
    },
    /// Tell one of your sessions what is no longer as it has read it.
    Invalidate {
        /// The session to tell.
        session: SessionId,
        /// What.
        news: News,
        /// The author of the change, if a client of this node made it.
        by: Option<Author>,
    },
    /// These keys have changed, by the hand of these: tell those of your sessions that want to know of all.
    Changed(Arc<Vec<Change>>),
    /// Tell all your sessions that track: everything has changed.
    FlushCaches,
    /// Clients that are told of all changes must forget what they have read: some were not told here.
    FlushBroadcasters,
    /// Say when the news of before this is in your sessions' output; see [`crate::invalidation_barrier`].
    Hear {
        /// The core that asks.
        home: CoreId,
        /// Number of the question there.
        round: u64,
        /// Cores that must hear the same behind this one; `None` for those that its own sessions have named.
        left: Option<Vec<CoreId>>,
    },
    /// It is.
    Heard {
        /// Number of the question.
        round: u64,
    },
    /// Say when your replica of the group has applied this request of mine, and caches have been told of it.
    Tell {
        /// The core that asks, a gateway.
        gateway: CoreId,
        /// The request.
        claim: Claim,
    },
    /// It has, and they have.
    Told {
        /// The request.
        claim: Claim,
    },
    /// Tell this session of yours, which another has named.
    Redirected {
        /// The session to tell.
        session: SessionId,
        /// What.
        news: News,
        /// Who has named it.
        from: (CoreId, SessionId),
    },
    /// The session that one of yours has named is gone.
    RedirectBroken {
        /// Who has named it.
        session: SessionId,
        /// The number of the one that is gone.
        lost: u64,
    },
    /// Clients of this core track, or none does any more.
    Presence(CoreId, Presence),
    /// Show this to your sessions that watch.
    Monitored(Arc<[u8]>),
    /// Sessions of this core watch, or none does any more.
    Monitoring(CoreId, bool),
    /// These are the users now.
    Users(Arc<Users>),
    /// Hand this to your sessions that listen.
    Publish(Published),
    /// Nothing but the envelope's moment.
    Moment,
    /// Who belongs to the cluster has changed.
    Roster(Arc<Roster>),
    /// These are the cluster's parameters now.
    Parameters(Arc<Parameters>),
    /// The cluster is at this level.
    Level(stdx::Level),
    /// A leader tells how its group is.
    GroupStatus(GroupStatus),
    /// The leader of a group on another node has said this: for the core of the group.
    FromLeader(GroupStatus),
    /// The sender has loaded its groups.
    Loaded,
    /// Which other nodes are heard, and what they say of themselves.
    Neighbours(Arc<Neighbours>),
    /// What the sender does about checkpoints; for the first core.
    Checkpoint(Stage),
    /// Something for the timeline has happened.
    Happened {
        /// What kind of thing.
        kind: timeline::Kind,
        /// The group it is about.
        group: Option<GroupId>,
        /// What, and why.
        text: String,
    },
    /// A client waits for data, or does no longer.
    WaitQueue(WaitQueueNote),
    /// There may be something for a client that waits, or nothing ever again.
    Wake {
        /// The session that waits.
        session: SessionId,
        /// Which of the session's replies it waits for.
        ticket: u64,
        /// Who says so.
        group: GroupId,
    },
    /// Answer for a control command that concerns the whole node.
    Ask {
        /// Number of the question on the asking core.
        question_id: u64,
        /// What is asked.
        question: Question,
    },
    /// The answer.
    Answer {
        /// Number of the question on the asking core.
        question_id: u64,
        /// What was answered.
        answer: Answer,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_answered_by_a_proof_or_an_error_and_nothing_else() {
        let bodies = [
            (RequestBody::Write(Vec::new()), true),
            (RequestBody::Exec(Vec::new()), true),
            (RequestBody::Libraries(Vec::new()), true),
            (RequestBody::Configure(Vec::new()), true),
            (RequestBody::Read(Vec::new()), false),
            (RequestBody::ReadAtOnce(Vec::new()), false),
            (RequestBody::Admin(Vec::new()), false),
        ];
        let proof = |byte| Proof::take(byte).expect("it is one of three");
        for (body, is_change) in bodies {
            assert!(!body.is_answered_by(&proof(0), b"+OK\r\n"), "{body:?}: a refusal that is none");
            assert!(body.is_answered_by(&proof(0), b"-ERR no\r\n"), "{body:?}");
            assert_eq!(body.is_answered_by(&proof(1), b"+OK\r\n"), !is_change, "{body:?}");
            assert!(body.is_answered_by(&proof(2), b"+OK\r\n"), "{body:?}");
        }
    }
}

//! What gateways ask of groups, and what groups ask of each other.

use std::ops::Range;
use std::sync::Arc;

use keyspace::Moment;
use message::entry::{Durability, Effect, RequestId, Watch};
use message::{GatewayId, TransactionId};
use resp::Protocol;
use stdx::Duration;

use crate::ids::{CoreId, GroupId, NodeId, SessionId};
use crate::invocation::Invocation;
use crate::locks::FencingToken;
use crate::proof::Proof;

/// Where an answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The client's node.
    pub node: NodeId,
    /// The client's core on that node.
    pub core: CoreId,
    /// The client's session.
    pub session: SessionId,
    /// Which of the session's replies it is.
    pub ticket: u64,
    /// Its place among the requests of its gateway to the group, in a cluster. The answer then goes to the gateway.
    pub claim: Option<Claim>,
    /// True if the session keeps what it reads, and the group must remember that.
    pub tracks: bool,
    /// True if its keys are not used by what it does with them (CLIENT NO-TOUCH).
    pub is_silent: bool,
    /// True if its gateway wants to know how long it takes, and has numbered it.
    pub is_timed: bool,
    /// When what it changes counts as kept.
    pub durability: Durability,
    /// True if it may change data while this node follows a Redis. Never so for what comes from other nodes.
    pub writes_for_source: bool,
}

impl Origin {
    /// An origin of which no more is known than this.
    #[inline]
    pub fn new(node: NodeId, core: CoreId, session: SessionId, ticket: u64) -> Self {
        Self {
            node,
            core,
            session,
            ticket,
            claim: None,
            tracks: false,
            is_silent: false,
            is_timed: false,
            durability: Durability::Server,
            writes_for_source: false,
        }
    }

    /// The gateway that numbered it, if one did.
    #[inline]
    pub fn gateway(&self) -> Option<GatewayId> {
        self.claim.map(|claim| GatewayId { node: self.node.0, boot: claim.boot, core: self.core })
    }
}

/// A request's number in the stream of a gateway to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// The gateway's life.
    pub boot: u64,
    /// The group.
    pub group: GroupId,
    /// From 1.
    pub number: u64,
}

/// One command of a client for a group of another core of a node that is no cluster. Nearly all that cores ask each
/// other is this, so it is small.
#[derive(Debug)]
pub struct PlainRequest {
    /// The client's session.
    pub session: SessionId,
    /// Which of the session's replies it is.
    pub ticket: u64,
    /// Where the words lie in the envelope's bytes, as `entry::put_words` lays them out.
    pub words: Range<usize>,
    /// The group.
    pub group: GroupId,
    /// How it is carried out.
    pub kind: PlainKind,
    /// The session's protocol.
    pub protocol: Protocol,
    /// See [`Origin`].
    pub tracks: bool,
    /// See [`Origin`].
    pub is_silent: bool,
    /// See [`Origin`].
    pub is_timed: bool,
    /// See [`Origin`].
    pub durability: Durability,
}

/// How a command is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainKind {
    /// See [`RequestBody::Write`].
    Write,
    /// See [`RequestBody::Read`].
    Read,
    /// See [`RequestBody::ReadAtOnce`].
    ReadAtOnce,
}

impl PlainKind {
    /// What is asked for, with these words.
    #[inline]
    pub fn body(self, words: Vec<u8>) -> RequestBody {
        match self {
            Self::Write => RequestBody::Write(words),
            Self::Read => RequestBody::Read(words),
            Self::ReadAtOnce => RequestBody::ReadAtOnce(words),
        }
    }
}

impl PlainRequest {
    /// Where its reply goes, if a core of this node has sent it.
    #[inline]
    pub fn origin(&self, node: NodeId, core: CoreId) -> Origin {
        let Self { tracks, is_silent, is_timed, durability, .. } = *self;
        Origin { tracks, is_silent, is_timed, durability, ..Origin::new(node, core, self.session, self.ticket) }
    }

    /// The same request with words of its own.
    pub fn with_words(&self, origin: Origin, words: &[u8]) -> Request {
        Request::new(origin, self.group, self.protocol, self.kind.body(words.to_vec()))
    }
}

/// A client's request to a group on another core.
#[derive(Clone, Debug)]
pub struct Request {
    /// Where the reply goes.
    pub origin: Origin,
    /// The group.
    pub group: GroupId,
    /// The session's protocol.
    pub protocol: Protocol,
    /// What to do.
    pub body: RequestBody,
    /// All requests of the same stream below this number have their answers.
    pub floor: u64,
    /// Number of the request of the same stream that was sent before this one; 0 for the first of a run.
    pub previous: u64,
    /// It has come back from a group that does not hold all its keys any more, and all before it has been answered.
    pub is_anew: bool,
    /// An earlier request of its session has come back from this group, and this one must come back, too, unless it has
    /// been carried out: it would overtake the other.
    pub must_return: bool,
}

impl Request {
    /// A request by itself.
    #[inline]
    pub fn new(origin: Origin, group: GroupId, protocol: Protocol, body: RequestBody) -> Self {
        Self { origin, group, protocol, body, floor: 0, previous: 0, is_anew: false, must_return: false }
    }
}

/// For [`RequestBody::CopyCount`]: up to what has been applied.
pub const COPIES_APPLIED: u64 = 0;

/// For [`RequestBody::CopyCount`]: up to what has been taken into the log, also if it has not been applied. A leader of
/// a version that does not know this names a place that is never reached.
pub const COPIES_LOGGED: u64 = u64::MAX;

/// What a request asks for. Words are laid out by `entry::put_words`.
#[derive(Clone, Debug)]
pub enum RequestBody {
    /// Log and execute.
    Write(Vec<u8>),
    /// Execute, behind all changes that were asked for before.
    Read(Vec<u8>),
    /// Execute as soon as may be: the session awaits no change that this must see.
    ReadAtOnce(Vec<u8>),
    /// Log and execute as one; laid out by `entry::put_exec`.
    Exec(Vec<u8>),
    /// Run a script. A gateway that numbers its requests is told if it has to do so itself: `wire::put_declined`.
    Script(Arc<ScriptRequest>),
    /// Change the libraries; laid out by `libraries::Change`. For their home group only. A gateway that numbers its
    /// requests is told which version has the change: `message::answer::put_changed`.
    Libraries(Vec<u8>),
    /// Set parameters of the cluster; laid out by `parameters::encode`. For their home group only. The answer is which
    /// version has them: `message::answer::put_changed`.
    Configure(Vec<u8>),
    /// Answer when you obey this version of the cluster's parameters. The answer is empty.
    Obey(u64),
    /// Execute a query over all keys of the group. The answer is the number of keys in the database (LEB128), then the
    /// reply.
    Whole(Vec<u8>),
    /// How many other nodes hold your log up to this place, or up to [`COPIES_APPLIED`] or [`COPIES_LOGGED`]? The
    /// answer is the place and the number.
    CopyCount(u64),
    /// Do something about who belongs to the cluster, and who leads. Only group 0 does.
    Admin(Vec<u8>),
    /// Tell the versions of these keys. The answer is one number (LEB128) for each.
    Versions {
        /// Database and name.
        keys: Vec<(u16, Vec<u8>)>,
        /// First keep them for the session, and then for so long: see `group::reservations`. Since level 2.
        reserve_for: Option<Duration>,
    },
    /// The session does not need what was reserved for it any more. The answer is empty.
    EndReservation,
    /// Lock keys and tell what they hold: the answer is a [`Locked`].
    Lock(Box<Lock>),
    /// A transaction is still busy with the keys that it has locked. The answer is empty.
    Renew {
        /// Which.
        transaction: TransactionId,
    },
    /// Make these changes last; the keys are locked by the transaction. The answer is one byte, 0 if they will not.
    Prepare {
        /// Which.
        transaction: TransactionId,
        /// The fencing token by which it has the locks.
        token: FencingToken,
        /// All groups that it changes; if it is only this one, the changes are made at once; if there is none, the
        /// answer only tells whether the locks are held.
        participants: Vec<u32>,
        /// The changes.
        effects: Vec<Effect>,
    },
    /// All groups are locked for a backup: begin your part of it. The answer is one byte, 0 if it cannot be.
    Cut {
        /// Who holds the locks.
        transaction: TransactionId,
        /// By which fencing token.
        token: FencingToken,
        /// The backup's name.
        name: u128,
    },
    /// Give a chunk of your part of a backup.
    ReadCut {
        /// The backup's name.
        name: u128,
        /// Which chunk, from 0.
        chunk: u64,
    },
    /// Your part of a backup need not be kept.
    EndCut {
        /// The backup's name.
        name: u128,
    },
    /// The transaction's outcome; its locks on this group can go. The answer is empty.
    Resolve {
        /// Which.
        transaction: TransactionId,
        /// What to do with what was prepared.
        resolution: Resolution,
        /// See `Item::Resolve`.
        low_water: u64,
    },
}

impl RequestBody {
    /// True if a client can be given this answer. What changes data needs proof that it is committed, and what is
    /// refused can only be an error; other answers are not for clients.
    pub fn is_answered_by(&self, proof: &Proof, answer: &[u8]) -> bool {
        match (self, proof) {
            (Self::Write(_) | Self::Exec(_) | Self::Libraries(_) | Self::Configure(_), Proof::Observed(_)) => false,
            (
                Self::Write(_)
                | Self::Exec(_)
                | Self::Script(_)
                | Self::Libraries(_)
                | Self::Configure(_)
                | Self::Read(_)
                | Self::ReadAtOnce(_)
                | Self::Whole(_)
                | Self::Admin(_)
                | Self::ReadCut { .. }
                | Self::EndCut { .. },
                Proof::Refused,
            ) => answer.first() == Some(&b'-'),
            _ => true,
        }
    }

    /// Bytes that it takes up, roughly.
    pub fn byte_count(&self) -> usize {
        const FIXED_BYTES: usize = 128;
        FIXED_BYTES
            + match self {
                Self::Write(words) | Self::Read(words) | Self::ReadAtOnce(words) | Self::Exec(words) => words.len(),
                Self::Whole(words) | Self::Admin(words) => words.len(),
                Self::Libraries(change) | Self::Configure(change) => change.len(),
                Self::Script(script) => script.words.len() + script.invocation.code.text().len(),
                Self::Versions { keys, .. } => keys.iter().map(|(_, key)| 16 + key.len()).sum(),
                Self::Lock(lock) => lock.keys.iter().map(|(_, key)| 16 + key.len()).sum(),
                Self::Prepare { effects, .. } => effects.iter().map(Effect::byte_count).sum(),
                Self::Renew { .. }
                | Self::EndReservation
                | Self::CopyCount(_)
                | Self::Obey(_)
                | Self::Resolve { .. }
                | Self::Cut { .. }
                | Self::ReadCut { .. }
                | Self::EndCut { .. } => 0,
            }
    }
}

/// A script to be run.
#[derive(Clone, Debug)]
pub struct ScriptRequest {
    /// What is called.
    pub invocation: Invocation,
    /// All words of the request.
    pub words: Vec<u8>,
}

/// A request for locks.
#[derive(Clone, Debug)]
pub struct Lock {
    /// On behalf of this transaction.
    pub transaction: TransactionId,
    /// The group.
    pub group: GroupId,
    /// Keys to lock, each once.
    pub keys: Vec<(u16, Vec<u8>)>,
    /// True to lock every key of the group instead.
    pub whole: bool,
    /// With [`Lock::whole`]: every key of so many groups must be locked. These are all groups that the gateway knows.
    pub group_count: u32,
    /// What must not have changed.
    pub watches: Vec<Watch>,
    /// Queries over a whole database to answer under the lock, laid out by `entry::put_words`. They do not see what
    /// the same transaction does before them: the gateway adds that.
    pub queries: Vec<Vec<u8>>,
    /// The moment of the transaction, for expiry.
    pub moment: Moment,
    /// The name of the backup to cut under the lock.
    pub cut: Option<u128>,
    /// The client has given the transaction an id, and this group keeps the answer.
    pub request: Option<RequestId>,
}

/// What a group answers to a [`Lock`].
#[derive(Debug)]
pub enum Locked {
    /// They are locked.
    Granted {
        /// To be named when something is done under the locks.
        token: FencingToken,
        /// The keys' values in the order asked, as `Keyspace::export` gives them.
        values: Vec<Option<Vec<u8>>>,
        /// Replies to the queries, with the number of keys that the lock does not name.
        answers: Vec<(u64, Vec<u8>)>,
    },
    /// A watched key has changed.
    Changed,
    /// The request has been carried out before, with this answer.
    Answered(Vec<u8>),
    /// The group cannot lock now; the text is an error reply.
    Refused(String),
}

/// How a transaction ended for one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Nothing was prepared here: let go of the locks.
    Release,
    /// Make the changes that were prepared.
    Commit,
    /// Forget them.
    Abort,
}

/// What one participant of a transaction asks another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutcomeQueryKind {
    /// What becomes of it?
    ParticipantStatus,
    /// It was committed; have you ended it?
    Ended,
}

/// What a group knows of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParticipantStatus {
    /// It holds it prepared.
    Prepared,
    /// It made the changes.
    Committed,
    /// It will never make the changes.
    Refused,
    /// It has made the changes, which others have made, too, and will not ask about it. Since level 2, and only told to
    /// a group that asks for that.
    Ended,
}

/// Where a group is led.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The node that leads it, if that is known; a node that will lead but cannot serve yet is not named.
    pub leader: Option<NodeId>,
    /// Raft's term.
    pub term: u64,
    /// This node holds a replica of the group, which tells what changes.
    pub is_here: bool,
}

/// A step of a transaction in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Lock.
    Lock,
    /// Keep the locks.
    Renew,
    /// Prepare.
    Prepare,
    /// Resolve.
    Resolve,
}

/// A script cannot run on this group's keys alone, now, or in one turn. Nothing of it remains; these are the keys that
/// it has used, with their databases.
#[derive(Debug, Default)]
pub struct Declined {
    /// The keys.
    pub keys: Vec<(u16, Vec<u8>)>,
    /// It asks for all keys.
    pub whole: bool,
}

/// What a group says to its part of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrepareAnswer {
    /// It is logged; or the locks are held, where there is nothing to log.
    Accepted,
    /// The locks are lost. Nothing is logged, and nothing will be.
    Refused,
    /// Fewer other nodes are heard than `min-replicas-to-write` asks for. Nothing is logged, and nothing will be.
    LacksReplicas,
    /// The disk of the group's leader has no room. Nothing is logged, and nothing will be.
    NoRoom,
    /// The node follows a Redis, and this does not come from there. Nothing is logged, and nothing will be.
    ReadOnly,
}

impl PrepareAnswer {
    /// As a group answers.
    pub fn put(self) -> Vec<u8> {
        vec![match self {
            Self::Refused => 0,
            Self::Accepted => 1,
            Self::LacksReplicas => 2,
            Self::NoRoom => 3,
            Self::ReadOnly => 4,
        }]
    }

    /// The same where a group says at which place of its log it has cut.
    pub fn take_with_place(bytes: &[u8]) -> (Self, Option<u64>) {
        match bytes.split_first() {
            Some((1, place)) if !place.is_empty() => match place.try_into() {
                Ok(place) => (Self::Accepted, Some(u64::from_le_bytes(place))),
                Err(_) => (Self::Refused, None),
            },
            _ => (Self::take(bytes), None),
        }
    }

    /// What a group has answered; what is not known is a refusal.
    pub fn take(bytes: &[u8]) -> Self {
        match bytes {
            [1] => Self::Accepted,
            [2] => Self::LacksReplicas,
            [3] => Self::NoRoom,
            [4] => Self::ReadOnly,
            _ => Self::Refused,
        }
    }
}

/// The author of a change of a key, as the replicas of a node know it. Only the core of its session knows all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    /// The session of this number, with the request that is answered under this ticket.
    Session {
        /// Its number.
        serial: u64,
        /// Which of its replies.
        ticket: u64,
    },
    /// The one who asked for this on a core.
    Request {
        /// The core.
        core: CoreId,
        /// Its request.
        claim: Claim,
    },
    /// The transaction that this belongs to.
    Transaction(TransactionId),
}

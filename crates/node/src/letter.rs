//! What sibling cores of one node tell each other. Letters are never lost and keep their order; the simulator may delay
//! them.

use std::sync::Arc;

use keyspace::Moment;
use resp::Protocol;

use crate::acl::Users;
use crate::blocking::LineNote;
use crate::commands::{Answer, Question};
use crate::entry::{Effect, Watch};
use crate::event::{CoreId, GroupId, NodeId, SessionId};
use crate::pubsub::Message;
use crate::roster::Roster;
use crate::transaction::TransactionId;

/// All that one core had to tell another in one turn.
#[derive(Debug, Default)]
pub struct Letter {
    /// In order.
    pub mail: Vec<Mail>,
}

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
}

/// One thing told.
#[derive(Debug)]
pub enum Mail {
    /// Do this for a client.
    Request(Request),
    /// Send this request of one of your sessions on to the node that leads its group.
    Forward {
        /// Who leads.
        leader: NodeId,
        /// What.
        request: Request,
    },
    /// Here is the reply.
    Reply {
        /// Whose.
        session: SessionId,
        /// Which of the session's replies it is.
        ticket: u64,
        /// In the session's protocol.
        bytes: Vec<u8>,
    },
    /// Lock keys of a group and tell what they hold.
    Lock(Lock),
    /// They are locked, and hold this.
    Locked {
        /// For whom.
        transaction: TransactionId,
        /// Who answers.
        group: GroupId,
        /// What the keys hold.
        outcome: Locked,
    },
    /// Make these changes last; the keys are locked by the transaction.
    Prepare {
        /// Which.
        transaction: TransactionId,
        /// The group to change.
        group: GroupId,
        /// All groups that it changes; if it is only this one, the changes are made at once.
        participants: Vec<u32>,
        /// The changes.
        effects: Vec<Effect>,
    },
    /// They will last, whatever happens.
    Prepared {
        /// Which.
        transaction: TransactionId,
        /// Who answers.
        group: GroupId,
        /// False if it had been refused before.
        accepted: bool,
    },
    /// The transaction's outcome; its locks on this group can go.
    Resolve {
        /// Which.
        transaction: TransactionId,
        /// The group.
        group: GroupId,
        /// What to do with what was prepared.
        resolution: Resolution,
        /// See `Item::Resolve`.
        low_water: u64,
    },
    /// The outcome has been logged by this group.
    Resolved {
        /// Which.
        transaction: TransactionId,
        /// Who answers.
        group: GroupId,
    },
    /// A group that holds a prepared transaction without a gateway asks another participant.
    Inquire {
        /// Which.
        transaction: TransactionId,
        /// Who asks.
        from: GroupId,
        /// Who is asked.
        group: GroupId,
    },
    /// The answer to an inquiry.
    Testimony {
        /// Which.
        transaction: TransactionId,
        /// Who had asked.
        group: GroupId,
        /// Who answers.
        from: GroupId,
        /// What it knows.
        fate: Fate,
    },
    /// These are the users now.
    Users(Arc<Users>),
    /// Hand this to your sessions that listen.
    Publish(Message),
    /// Who belongs to the cluster has changed.
    Roster(Arc<Roster>),
    /// A client waits for data, or does no longer.
    Line(LineNote),
    /// There may be something for a client that waits, or nothing ever again.
    Wake {
        /// Whose.
        session: SessionId,
        /// Which of the session's replies it waits for.
        ticket: u64,
        /// Who says so.
        group: GroupId,
        /// The key is gone.
        is_gone: bool,
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
}

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
}

/// A request for locks.
#[derive(Clone, Debug)]
pub struct Lock {
    /// On behalf of this transaction.
    pub transaction: TransactionId,
    /// The core that drives it.
    pub gateway: CoreId,
    /// The group.
    pub group: GroupId,
    /// Keys to lock, each once.
    pub keys: Vec<(u16, Vec<u8>)>,
    /// True to lock every key of the group instead.
    pub whole: bool,
    /// What must not have changed.
    pub watches: Vec<Watch>,
    /// Queries over a whole database to answer under the lock, laid out by `entry::put_words`. They do not see what
    /// the same transaction does before them: the gateway adds that.
    pub queries: Vec<Vec<u8>>,
    /// The moment of the transaction, for expiry.
    pub moment: Moment,
}

/// What a group answers to a [`Lock`].
#[derive(Debug)]
pub enum Locked {
    /// They are locked.
    Granted {
        /// The keys' values in the order asked, as `Keyspace::export` gives them.
        values: Vec<Option<Vec<u8>>>,
        /// Replies to the queries, with the number of keys that the lock does not name.
        answers: Vec<(u64, Vec<u8>)>,
    },
    /// A watched key has changed.
    Changed,
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

/// What a group knows of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It holds it prepared.
    Prepared,
    /// It made the changes.
    Committed,
    /// It will never make the changes.
    Refused,
}

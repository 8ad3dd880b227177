//! Parts of a session that belong together.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use group::ids::GroupId;
use group::replica_reads::Reading;
use resp::{RequestParser, Writer};
use stdx::Instant;

use super::{ClientLibrary, Early, Replies};
use crate::entry::Durability;
use crate::pubsub::Subscriptions;
use crate::stats::calls::Asked;
use crate::stats::hot::Load;
use crate::tracking::Tracking;

/// What the client has said of itself, and how it wants to be served.
#[derive(Debug)]
pub struct ClientOptions {
    /// CLIENT SETNAME.
    pub name: Vec<u8>,
    /// CLIENT REPLY.
    pub replies: Replies,
    /// CLIENT SETINFO: what the client was written with. Stays after RESET.
    pub library: ClientLibrary,
    /// CLIENT NO-EVICT.
    pub no_evict: bool,
    /// CLIENT NO-TOUCH.
    pub no_touch: bool,
    /// CLIENT DURABILITY: when its changes count as kept.
    pub durability: Durability,
    /// CLIENT DURABILITY ALL: they are answered when every voter has them.
    pub by_all: bool,
    /// CLIENT DURABILITY … ONCE: both are for one request.
    pub once: Option<Once>,
    /// READONLY: it may be answered by replicas, if they are not too old.
    pub reading: Option<Box<Reading>>,
    /// What it wants to know of keys it has read; `None` if nothing.
    pub tracking: Option<Box<Tracking>>,
    /// What it listens to; `None` if to nothing.
    pub subscriptions: Option<Box<Subscriptions>>,
    /// It carries out what another cluster has done, where clients change nothing (SITE WRITER).
    pub writes_for_site: bool,
}

/// Bytes that come in and go out.
#[derive(Debug)]
pub struct Flow {
    /// Largest number of unparsed bytes seen.
    pub input_bytes_max: usize,
    pub(crate) parser: RequestParser,
    /// Bytes worth having room for, as the parser said.
    pub(crate) wanted_bytes: usize,
    pub(crate) input: Vec<u8>,
    pub(crate) out: Writer,
    /// Bytes of output that the host has been given since the session began.
    pub(crate) flushed_bytes: u64,
    /// Bytes that it did not ask for, since it had last taken all of its output.
    pub(super) pushed_bytes: usize,
    /// Since when it has had more output waiting than the soft limit allows.
    pub(super) over_soft_since: Option<Instant>,
    /// Bytes of the request being looked at and of those behind it.
    pub(crate) request_bytes: usize,
    /// Bytes of output that the host could not send yet.
    pub(crate) backlog_bytes: usize,
    /// Bytes of requests taken since nothing was owed.
    pub(crate) unanswered_bytes: usize,
}

/// A read sent to a group of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct NotedRead {
    /// The group that is asked.
    pub group: GroupId,
    /// Its number in the stream of requests to that group.
    pub number: u64,
    /// The answer says how a key was used, which is each replica's own.
    pub tells_use: bool,
}

/// Requests that have no reply yet, and replies that came before their turn.
#[derive(Debug)]
pub struct Owed {
    /// News for its cache that waits for a reply.
    pub(super) held_news: Vec<u8>,
    /// News of its own changes, by the ticket of the reply that it belongs behind.
    pub(super) own_news: BTreeMap<u64, Vec<u8>>,
    /// Of those that it is owed, with their tickets.
    pub(super) loads: Vec<(u64, Load)>,
    /// The same of the requests that are owed replies; the first belongs to `head`.
    pub(super) asked: VecDeque<Asked>,
    /// What transactions under way have queued, by the ticket of their EXEC.
    pub(super) queues: Vec<(u64, Box<[Asked]>)>,
    /// Of those that it is owed, the changes that every voter must have.
    pub(super) wanting: VecDeque<Wanting>,
    /// Ticket of the next reply to leave.
    pub(super) head: u64,
    /// Ticket of the next request.
    pub(super) next: u64,
    /// Ticket behind the last one that may stand for a change of data.
    pub(super) behind_changes: u64,
    /// Ticket behind the last one that stands for a read of the replica on this node.
    pub(super) behind_replica_reads: u64,
    /// Ticket behind the last one that does not.
    pub(super) behind_far: u64,
    /// Reads sent to groups of a cluster that had no answer when last looked at.
    pub(super) reads: Vec<NotedRead>,
    /// The last script sent to run on the keys of a group: the group, and the ticket behind the script's.
    pub(super) far_script: Option<(GroupId, u64)>,
    /// Replies that came before their turn; the first belongs to `head`.
    pub(super) early: VecDeque<Option<Early>>,
    pub(super) early_bytes: usize,
    /// Bytes of replies that every voter is waited for with.
    pub(super) kept_bytes: usize,
}

/// What is in force for one request, and before and behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Once {
    /// What was in force before it.
    pub before: (Durability, bool),
    /// The request has come.
    pub is_used: bool,
    /// The request may ask for its level again while it is under way: what comes next waits.
    pub holds: bool,
}

impl ClientOptions {
    /// CLIENT DURABILITY.
    pub(crate) fn set_durability(&mut self, level: Durability, by_all: bool, is_once: bool) {
        let before = self.once.map_or((self.durability, self.by_all), |once| once.before);
        (self.durability, self.by_all) = (level, by_all);
        self.once = is_once.then_some(Once { before, is_used: false, holds: false });
    }

    /// The request that the level is for is behind.
    pub(crate) fn end_once(&mut self) {
        if let Some(once) = self.once.take() {
            (self.durability, self.by_all) = once.before;
        }
    }
}

/// A request of a client that wants every voter to have what it changes.
#[derive(Debug)]
pub(crate) struct Wanting {
    pub(crate) ticket: u64,
    /// The groups that it is about, as far as is known.
    pub(crate) groups: BTreeSet<GroupId>,
}

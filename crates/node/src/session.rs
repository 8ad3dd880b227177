//! One client: what it has sent, what it is owed, and what it has said about itself.
//!
//! A client may send requests ahead of their replies. Each request that cannot be answered at once gets a *ticket*;
//! replies leave in the order of tickets, whichever core or group finishes first.

pub(crate) mod composition;
mod parts;
pub(crate) mod queued;
pub mod ticket;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Weak};

use group::ids::{GroupId, Now, SessionId};
use group::proof::{Committed, Observed, Proof};
use parts::Wanting;
use resp::{Protocol, RequestParser, Writer};
use stdx::Instant;

use crate::acl::User;
use crate::blocking::Waiting;
use crate::entry::{Durability, Watch};
use crate::event::Peer;
use crate::followers::Follower;
use crate::known::Known;
use crate::optimism::Optimism;
use crate::session::composition::Composition;
use crate::session::queued::Queued;
use crate::session::ticket::{OwnTicket, OwnWord, Right};
use crate::settings::{OutputLimit, OutputLimits};
use crate::stats::calls::{Asked, Calls};
use crate::stats::hot::Load;
use crate::thorough::Kept;
use crate::{catalog, limits};

pub use parts::{ClientOptions, Flow, NotedRead, Once, Owed};

/// One client's connection.
#[derive(Debug)]
pub struct Session {
    /// Who.
    pub id: SessionId,
    /// The other end.
    pub peer: Peer,
    /// When it connected.
    pub opened: Now,
    /// When it was last heard.
    pub heard: Now,
    /// What the client has said of itself, and how it wants to be served.
    pub options: ClientOptions,
    /// SELECT.
    pub database: u16,
    /// True once it may do more than AUTH.
    pub is_authenticated: bool,
    /// The user with the rules that it obeys.
    pub user: Arc<User>,
    /// The last command, and the container if it is a subcommand.
    pub last_command: Option<(Known, Option<&'static str>)>,
    /// Some of its changes may have been answered before they were on disk, whatever the server's level.
    pub(crate) had_less: bool,
    /// What it has told of itself, if it is a replica of another kind.
    pub follower: Option<Box<Follower>>,
    /// MULTI has begun: what has been queued.
    pub multi: Option<Multi>,
    /// CLIENT REQUESTID: the id of the next request.
    pub(crate) request_id: Option<Box<[u8]>>,
    /// WATCH: keys and what they looked like.
    pub watches: Vec<Watch>,
    /// How it has fared with them.
    pub(crate) optimism: Optimism,
    /// Requests executed.
    pub request_count: u64,
    /// Bytes that come in and go out.
    pub flow: Flow,
    /// A transaction over several groups, or with control commands, is under way for it.
    pub(crate) is_driving: bool,
    /// Requests that have no reply yet, and replies that came before their turn.
    owed: Owed,
    /// A transaction with control commands that is being carried out.
    pub(crate) composition: Option<Composition>,
    /// A request for what has changed, which the host has not answered.
    pub(crate) changes_wait: Option<ChangesWait>,
    /// A request that waits for data.
    pub(crate) waiting: Option<Box<Waiting>>,
    /// What the request being looked at counts as.
    pub(crate) asking: Asked,
    /// The same request, while what keys take is counted.
    pub(crate) load: Option<Load>,
    /// Version of the map of slots by which all that it is owed was sent.
    pub(crate) map_version: u64,
    /// Why no further request is parsed for now.
    pub(crate) hold: Hold,
    /// The host was told not to read from the socket.
    pub(crate) is_paused: bool,
    /// To be closed when everything owed has been written.
    pub(crate) is_closing: bool,
    /// To be cut off at once, and why.
    pub(crate) cut: Option<Cut>,
    is_dirty: bool,
}

/// That a session waits for what the host reads of changes. It ends with the session, and the host sees that.
#[derive(Debug)]
pub(crate) struct ChangesWait {
    asker: Arc<()>,
    /// It waits for what has not happened yet.
    pub(crate) is_blocking: bool,
}

impl ChangesWait {
    pub(crate) fn new(is_blocking: bool) -> Self {
        Self { asker: Arc::new(()), is_blocking }
    }

    /// What the host holds of it.
    pub(crate) fn asker(&self) -> Weak<()> {
        Arc::downgrade(&self.asker)
    }
}

/// Why a client is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// It does not read what it is sent.
    Output,
    /// All clients together take too much memory, and it takes most.
    Memory,
    /// It has not said who it is, and places for clients are scarce.
    Unauthenticated,
}

impl Cut {
    /// For the log.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Output => "has left too much output unread",
            Self::Memory => "takes too much memory",
            Self::Unauthenticated => "has not authenticated while maxclients is near",
        }
    }
}

/// A reply that came before its turn.
#[derive(Debug)]
struct Early {
    reply: Vec<u8>,
    /// What was pushed after it was made: it must not arrive before.
    pushed: Vec<u8>,
}

/// Why a session's next request is not parsed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// It is.
    None,
    /// Everything sent so far must be answered first.
    Answers,
    /// A group's window is full.
    Window,
    /// The client does not read its replies.
    Output,
    /// CLIENT PAUSE.
    Paused,
    /// It has had its share of this turn.
    Turn,
    /// Its last request waits for data.
    Blocked,
}

/// The library that a client was written with, as it says; empty where it has said nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientLibrary {
    /// Its name.
    pub name: Vec<u8>,
    /// Its version.
    pub version: Vec<u8>,
}

/// CLIENT REPLY.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replies {
    /// Every reply is sent.
    #[default]
    On,
    /// None is.
    Off,
    /// The next one is not.
    SkipNext,
    /// The present one is not, the next one is.
    Skipping,
}

/// A transaction being queued.
#[derive(Debug, Default)]
pub struct Multi {
    /// The commands so far.
    pub queue: Vec<Queued>,
    /// One was refused: EXEC will refuse all.
    pub is_broken: bool,
    /// Bytes of the queued words.
    pub byte_count: usize,
    /// The id that the client has given the transaction.
    pub(crate) request_id: Option<Box<[u8]>>,
    /// The user when the commands were allowed; rules that have changed since are looked at again.
    pub user: Option<Arc<User>>,
}

impl Session {
    /// Bytes of output since the session began, whether or not the host has been given them.
    pub(crate) fn put_out_bytes(&self) -> u64 {
        self.flow.flushed_bytes + self.flow.out.len() as u64
    }

    fn new(id: SessionId, peer: Peer, now: Now, user: Arc<User>) -> Self {
        Self {
            id,
            peer,
            opened: now,
            heard: now,
            options: ClientOptions {
                name: Vec::new(),
                replies: Replies::On,
                library: ClientLibrary::default(),
                no_evict: false,
                no_touch: false,
                durability: Durability::Server,
                by_all: false,
                once: None,
                reading: None,
                tracking: None,
                subscriptions: None,
                writes_for_site: false,
            },
            database: 0,
            is_authenticated: user.needs_no_password(),
            user,
            last_command: None,
            had_less: false,
            follower: None,
            multi: None,
            request_id: None,
            watches: Vec::new(),
            optimism: Optimism::default(),
            request_count: 0,
            flow: Flow {
                input_bytes_max: 0,
                parser: RequestParser::new(),
                wanted_bytes: 0,
                input: Vec::new(),
                out: Writer::new(Protocol::Resp2),
                flushed_bytes: 0,
                pushed_bytes: 0,
                over_soft_since: None,
                request_bytes: 0,
                backlog_bytes: 0,
                unanswered_bytes: 0,
            },
            is_driving: false,
            owed: Owed {
                held_news: Vec::new(),
                own_news: BTreeMap::new(),
                loads: Vec::new(),
                asked: VecDeque::new(),
                queues: Vec::new(),
                wanting: VecDeque::new(),
                head: 0,
                behind_changes: 0,
                behind_replica_reads: 0,
                behind_far: 0,
                next: 0,
                reads: Vec::new(),
                far_script: None,
                early: VecDeque::new(),
                early_bytes: 0,
                kept_bytes: 0,
            },
            composition: None,
            changes_wait: None,
            waiting: None,
            asking: Asked::NOTHING,
            load: None,
            map_version: 0,
            hold: Hold::None,
            is_paused: false,
            is_closing: false,
            cut: None,
            is_dirty: false,
        }
    }

    /// Protocol its replies are written in.
    pub fn protocol(&self) -> Protocol {
        self.flow.out.protocol()
    }

    /// Switches the protocol, as HELLO does.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.flow.out.set_protocol(protocol);
    }

    /// Requests that are still owed a reply.
    pub fn owed_count(&self) -> u64 {
        self.owed.next - self.owed.head
    }

    /// The last of the replies that it is owed, if it is owed any.
    pub(crate) fn latest_ticket(&self) -> Option<u64> {
        (self.owed.next > self.owed.head).then(|| self.owed.next - 1)
    }

    /// True if this is the next reply that it is owed: all requests before it have been answered.
    pub(crate) fn is_next_answer(&self, ticket: u64) -> bool {
        self.owed.head >= ticket
    }

    /// Bytes of replies not yet taken by the kernel.
    pub fn output_bytes(&self) -> usize {
        self.flow.backlog_bytes + self.flow.out.len() + self.owed.early_bytes + self.owed.kept_bytes
    }

    /// True while every voter is waited for with a reply to it.
    pub(crate) fn has_kept_replies(&self) -> bool {
        self.owed.kept_bytes > 0
    }

    /// Name of the last command as CLIENT LIST shows it.
    pub fn last_command_name(&self) -> std::borrow::Cow<'static, str> {
        self.last_command.map_or("NULL".into(), |(known, container)| catalog::full_name(known, container))
    }

    /// True if it can be told news for its cache. A RESP2 session understands them only where it listens to channels,
    /// and only news of others.
    pub(crate) fn can_be_told_news(&self, is_redirected: bool) -> bool {
        self.protocol() == Protocol::Resp3 || (is_redirected && self.is_subscribed())
    }

    /// True if the keys that its next command reads must be remembered.
    #[inline]
    pub fn tracks(&self) -> bool {
        self.options.tracking.as_ref().is_some_and(|tracking| tracking.remembers())
    }

    /// True while a request of its own is carried out that tells its changes before it is answered: news waits for the
    /// reply.
    fn holds_news(&self) -> bool {
        self.is_driving || self.waiting.as_ref().is_some_and(|waiting| waiting.is_trying())
    }

    /// True if it waits for data, or for the end of CLIENT PAUSE.
    pub fn is_blocked(&self) -> bool {
        self.hold == Hold::Paused || self.waiting.as_ref().is_some_and(|waiting| waiting.is_at_rest())
    }

    /// True if it listens to anything.
    pub fn is_subscribed(&self) -> bool {
        self.options.subscriptions.is_some()
    }

    /// True if it is in the mode in which RESP2 knows only messages and a few commands.
    pub fn is_in_subscribed_mode(&self) -> bool {
        self.is_subscribed() && self.protocol() == Protocol::Resp2
    }

    /// Sends what was not asked for. It comes behind every reply that has been made before, whether that can leave yet
    /// or not: what it says of the data must not overtake what they say.
    fn push(&mut self, write: impl FnOnce(&mut Writer)) {
        let length = match self.owed.early.back_mut() {
            Some(Some(early)) => {
                let mut writer = Writer::onto(std::mem::take(&mut early.pushed), self.flow.out.protocol());
                let before = writer.len();
                write(&mut writer);
                let length = writer.len() - before;
                early.pushed = writer.into_bytes();
                self.owed.early_bytes += length;
                length
            }
            _ => {
                let before = self.flow.out.len();
                write(&mut self.flow.out);
                self.flow.out.len() - before
            }
        };
        self.flow.pushed_bytes += length;
    }

    /// The limit of its kind.
    fn output_limit(&self, limits: &OutputLimits) -> OutputLimit {
        if self.is_subscribed() { limits.pubsub } else { limits.normal }
    }

    /// Looks whether more output waits for it than it may ever leave unread; if so it is cut off.
    fn check_hard_limit(&mut self, limits: &OutputLimits) {
        let bound = self.output_limit(limits).hard_bytes;
        // Replies wait for their client one at a time; what is pushed would pile up, also for an ordinary client.
        let is_flooded = !self.is_subscribed() && self.flow.pushed_bytes > limits::PUSHED_BYTES_MAX;
        if is_flooded || (bound > 0 && self.output_bytes() > bound) {
            self.cut(Cut::Output);
        }
    }

    /// The same, and whether too much of it has waited for too long.
    pub(crate) fn check_output(&mut self, limits: &OutputLimits, now: Instant) {
        let limit = self.output_limit(limits);
        let waiting = self.output_bytes();
        if waiting == 0 {
            self.flow.pushed_bytes = 0;
        }
        self.check_hard_limit(limits);
        if limit.soft_bytes == 0 || waiting <= limit.soft_bytes {
            self.flow.over_soft_since = None;
            return;
        }
        let since = *self.flow.over_soft_since.get_or_insert(now);
        if now.since(since).as_secs() >= limit.soft_seconds {
            self.cut(Cut::Output);
        }
    }

    /// Bytes of memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        let queued = self.multi.as_ref().map_or(0, |multi| multi.byte_count);
        size_of::<Self>() + self.flow.input.capacity() + self.output_bytes() + queued
    }

    /// Cuts it off at the end of the turn. What waits for it is dropped now.
    pub(crate) fn cut(&mut self, cut: Cut) {
        self.cut = Some(cut);
        if cut == Cut::Memory {
            self.flow.input = Vec::new();
        }
        self.is_closing = true;
        self.flow.out = Writer::new(self.protocol());
        self.owed.early_bytes = 0;
        for early in self.owed.early.iter_mut().flatten() {
            *early = Early { reply: Vec::new(), pushed: Vec::new() };
        }
    }

    /// True if it may be over its soft limit for too long soon.
    pub(crate) fn is_over_soft(&self) -> bool {
        self.flow.over_soft_since.is_some() && self.cut.is_none()
    }

    /// Bytes received and not yet parsed.
    pub fn input_bytes(&self) -> usize {
        self.flow.input.len()
    }

    /// Keeps bytes that cannot be parsed yet.
    pub(crate) fn keep_input(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let wanted = self.flow.wanted_bytes.max(self.flow.input.len() + bytes.len());
        self.flow.input.reserve(wanted - self.flow.input.len());
        self.flow.input.extend_from_slice(bytes);
        self.flow.input_bytes_max = self.flow.input_bytes_max.max(self.flow.input.len());
    }

    /// A ticket for a reply in which no group has a part.
    pub(crate) fn take_own_ticket(&mut self) -> OwnTicket {
        OwnTicket(self.take_ticket())
    }

    /// The same for a request that changes nothing.
    pub(crate) fn take_own_ticket_to_read(&mut self) -> OwnTicket {
        OwnTicket(self.take_ticket_to_read())
    }

    /// A ticket for a reply that comes later.
    pub(crate) fn take_ticket(&mut self) -> u64 {
        let ticket = self.take_ticket_to_read();
        self.owed.behind_changes = self.owed.next;
        if self.options.by_all {
            self.owed.wanting.push_back(Wanting { ticket, groups: BTreeSet::new() });
        }
        ticket
    }

    /// The same for a change in one group.
    #[inline]
    pub(crate) fn take_ticket_for(&mut self, group: GroupId) -> u64 {
        let ticket = self.take_ticket();
        self.set_groups(ticket, std::iter::once(group));
        ticket
    }

    /// Notes that the request with this ticket is about these groups, or about all if there are none, if every voter
    /// must have what it changes. What was sent before under this ticket was not done.
    pub(crate) fn set_groups(&mut self, ticket: u64, groups: impl Iterator<Item = GroupId>) {
        if let Some(wanting) = self.owed.wanting.iter_mut().rev().find(|wanting| wanting.ticket == ticket) {
            wanting.groups = groups.collect();
        }
    }

    /// The request with this ticket changes nothing.
    pub(crate) fn drop_wanting(&mut self, ticket: u64) {
        self.owed.wanting.retain(|wanting| wanting.ticket != ticket);
    }

    /// The same for a request that changes nothing.
    pub(crate) fn take_ticket_to_read(&mut self) -> u64 {
        let ticket = self.take_any_ticket();
        self.owed.behind_far = self.owed.next;
        ticket
    }

    /// The same for a read that the replica on this node should answer.
    pub(crate) fn take_ticket_to_read_nearby(&mut self) -> u64 {
        let ticket = self.take_any_ticket();
        self.owed.behind_replica_reads = self.owed.next;
        ticket
    }

    fn take_any_ticket(&mut self) -> u64 {
        self.owed.asked.push_back(self.asking);
        if let Some(load) = self.load.take() {
            self.owed.loads.push((self.owed.next, load));
        }
        self.owed.next += 1;
        self.owed.next - 1
    }

    /// True if reads of the replica on this node have no answer yet.
    #[inline]
    pub(crate) fn awaits_replica_read(&self) -> bool {
        self.owed.behind_replica_reads > self.owed.head
    }

    /// True if something else has none.
    pub(crate) fn awaits_far(&self) -> bool {
        self.owed.behind_far > self.owed.head
    }

    /// The replica has declined a read: the leader answers it.
    pub(crate) fn is_declined(&mut self, ticket: u64) {
        self.owed.behind_far = self.owed.behind_far.max(ticket + 1);
        if let Some(reading) = &mut self.options.reading {
            reading.run += 1;
        }
    }

    /// A ticket for EXEC, which carries out what has been queued.
    pub(crate) fn take_ticket_to_exec(&mut self, queue: Box<[Asked]>) -> OwnTicket {
        let ticket = self.take_own_ticket();
        self.owed.queues.push((ticket.number(), queue));
        ticket
    }

    /// True if a change that it asked for has not been answered: a read must not overtake it.
    pub(crate) fn awaits_change(&self) -> bool {
        self.owed.behind_changes > self.owed.head
    }

    /// Notes that the request with the last ticket taken is a script, sent to run on the keys of this group.
    pub(crate) fn note_script(&mut self, group: GroupId) {
        self.owed.far_script = Some((group, self.owed.next));
    }

    /// True if a script on the keys of another group has no answer yet. It may reach for keys that it has not named,
    /// and nothing that comes later may get there first.
    #[inline]
    pub(crate) fn awaits_script_beside(&self, group: GroupId) -> bool {
        self.owed.far_script.is_some_and(|(home, behind)| home != group && behind > self.owed.head)
    }

    /// Notes that it has asked a group of a cluster for something. Answers how many of these notes there are.
    pub(crate) fn note_read(&mut self, read: NotedRead) -> usize {
        // This one is owed, too.
        if self.owed_count() <= 1 {
            self.owed.reads.clear();
        }
        self.owed.reads.push(read);
        self.owed.reads.len()
    }

    /// Keeps those of the reads noted that `is_kept` picks.
    pub(crate) fn retain_reads(&mut self, is_kept: impl FnMut(&NotedRead) -> bool) {
        self.owed.reads.retain(is_kept);
    }

    /// The reads kept that are of this group.
    pub(crate) fn reads_of(&self, group: GroupId) -> impl Iterator<Item = NotedRead> {
        self.owed.reads.iter().filter(move |read| read.group == group).copied()
    }

    /// A request has been taken. CLIENT DURABILITY … ONCE is for one, or for one transaction; what CLIENT itself says
    /// between the two does not count.
    #[inline]
    pub(crate) fn use_once(&mut self) {
        let is_queued = self.multi.is_some();
        let Some(once) = self.options.once.as_mut().filter(|_| !is_queued) else { return };
        if self.last_command.is_none_or(|(_, container)| container != Some("client")) {
            once.is_used = true;
            let asks_again = |known: Known| known.script_naming().is_some() || known.name() == "exec";
            once.holds = self.last_command.is_some_and(|(known, _)| asks_again(known));
        }
    }

    /// Forgets what belongs to a transaction, as DISCARD does.
    pub fn discard(&mut self) {
        self.multi = None;
        self.watches.clear();
    }

    /// Moves the head over a reply just written, and over all that waited behind it.
    fn advance(&mut self) {
        self.owed.head += 1;
        self.owed.asked.pop_front();
        self.owed.early.pop_front();
        self.write_own_news();
        while let Some(Some(_)) = self.owed.early.front() {
            let Early { reply, pushed } = self.owed.early.pop_front().flatten().expect("just seen");
            self.owed.early_bytes -= reply.len() + pushed.len();
            write_muted(self, |writer| writer.raw(&reply));
            self.flow.out.raw(&pushed);
            self.owed.head += 1;
            self.owed.asked.pop_front();
            self.write_own_news();
        }
    }

    /// Writes news of its own changes behind the replies that have left.
    fn write_own_news(&mut self) {
        while let Some(first) = self.owed.own_news.first_entry().filter(|first| *first.key() < self.owed.head) {
            let news = first.remove();
            self.flow.pushed_bytes += news.len();
            self.flow.out.raw(&news);
        }
    }
}

/// All sessions of a core.
#[derive(Debug, Default)]
pub struct Sessions {
    slab: Vec<Option<Box<Session>>>,
    /// Sessions with output to hand to the host, or to be closed.
    dirty: Vec<SessionId>,
    /// Sessions that may go on parsing.
    resumable: Vec<SessionId>,
    /// Sessions with a transaction that can go on.
    composed: Vec<SessionId>,
    /// Sessions that wait for data and have tried.
    tried: Vec<SessionId>,
    /// Answers that are wanted although the session has gone, by its id and the ticket.
    orphans: BTreeMap<(SessionId, u64), Protocol>,
    /// Those that have come.
    orphans_answers: Vec<((SessionId, u64), Vec<u8>)>,
    count: usize,
    /// Replies that every voter must have the change of.
    kept: Vec<Kept>,
    /// Replies that waited for no disk, since what they say rests on nothing that had to be committed.
    pub(crate) prompt_reply_count: u64,
    /// What they have asked for.
    pub(crate) calls: Calls,
}

impl Sessions {
    pub(crate) fn open(&mut self, id: SessionId, peer: Peer, now: Now, user: Arc<User>) {
        let index = id.index as usize;
        if self.slab.len() <= index {
            self.slab.resize_with(index + 1, || None);
        }
        assert!(self.slab[index].is_none(), "a session's index was reused before it was closed");
        self.slab[index] = Some(Box::new(Session::new(id, peer, now, user)));
        self.count += 1;
    }

    pub(crate) fn close(&mut self, id: SessionId) -> Option<Box<Session>> {
        self.get(id)?;
        self.count -= 1;
        self.slab[id.index as usize].take()
    }

    /// Number of open sessions.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The session, unless it has been closed.
    #[inline]
    pub fn get(&self, id: SessionId) -> Option<&Session> {
        self.slab.get(id.index as usize)?.as_deref().filter(|session| session.id == id)
    }

    /// The session, unless it has been closed.
    #[inline]
    pub fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.get_to_count(id).map(|(session, _)| session)
    }

    /// The same, with what counts its requests.
    #[inline]
    pub(crate) fn get_to_count(&mut self, id: SessionId) -> Option<(&mut Session, &mut Calls)> {
        let session = self.slab.get_mut(id.index as usize)?.as_deref_mut().filter(|session| session.id == id)?;
        Some((session, &mut self.calls))
    }

    /// All open sessions.
    pub fn iter(&self) -> impl Iterator<Item = &Session> {
        self.slab.iter().flatten().map(|session| &**session)
    }

    /// All open sessions.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Session> {
        self.slab.iter_mut().flatten().map(|session| &mut **session)
    }

    /// Notes that a session has output to hand over.
    #[inline]
    pub(crate) fn mark(&mut self, id: SessionId) {
        if let Some(session) = self.get_mut(id)
            && !session.is_dirty
        {
            session.is_dirty = true;
            self.dirty.push(id);
        }
    }

    pub(crate) fn take_dirty(&mut self, mut visit: impl FnMut(&mut Session)) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for id in dirty.drain(..) {
            if let Some(session) = self.get_mut(id) {
                session.is_dirty = false;
                visit(session);
            }
        }
        self.dirty = dirty;
    }

    pub(crate) fn mark_resumable(&mut self, id: SessionId) {
        self.resumable.push(id);
    }

    pub(crate) fn take_resumable(&mut self) -> Vec<SessionId> {
        std::mem::take(&mut self.resumable)
    }

    pub(crate) fn mark_composed(&mut self, id: SessionId) {
        self.composed.push(id);
    }

    pub(crate) fn take_composed(&mut self) -> Vec<SessionId> {
        std::mem::take(&mut self.composed)
    }

    /// Sends a session what it did not ask for. One that leaves too much unread is cut off with the end of the turn.
    pub(crate) fn push(&mut self, id: SessionId, limits: &OutputLimits, write: impl FnOnce(&mut Writer)) {
        let Some(session) = self.get_mut(id) else { return };
        if session.is_closing {
            return;
        }
        session.push(write);
        session.check_hard_limit(limits);
        self.mark(id);
    }

    pub(crate) fn take_kept(&mut self) -> Vec<Kept> {
        std::mem::take(&mut self.kept)
    }

    /// A reply that was kept back goes to its client, or is given up. Returns the session, unless it is gone.
    pub(crate) fn release_kept(&mut self, kept: &Kept) -> Option<&mut Session> {
        let session = self.get_mut(kept.session)?;
        session.owed.kept_bytes -= kept.bytes.len();
        Some(session)
    }

    /// True if this reply has just been kept back.
    pub(crate) fn is_kept(&self, id: SessionId, ticket: u64) -> bool {
        self.kept.last().is_some_and(|kept| (kept.session, kept.ticket) == (id, ticket))
    }

    pub(crate) fn take_tried(&mut self) -> Vec<SessionId> {
        std::mem::take(&mut self.tried)
    }

    /// Sends news for a session's cache, behind the reply with this ticket; see also [`Session::holds_news`].
    pub(crate) fn push_news(
        &mut self,
        id: SessionId,
        behind: Option<u64>,
        limits: &OutputLimits,
        write: impl FnOnce(&mut Writer),
    ) {
        match self.get_mut(id) {
            Some(session) if behind.is_some_and(|ticket| session.owed.head <= ticket) => {
                let protocol = session.protocol();
                let held = session.owed.own_news.entry(behind.unwrap_or_default()).or_default();
                let mut writer = Writer::onto(std::mem::take(held), protocol);
                write(&mut writer);
                *held = writer.into_bytes();
            }
            Some(session) if session.holds_news() => {
                let mut writer = Writer::onto(std::mem::take(&mut session.owed.held_news), session.protocol());
                write(&mut writer);
                session.owed.held_news = writer.into_bytes();
            }
            _ => self.push(id, limits, write),
        }
    }

    /// The transaction has been answered.
    pub(crate) fn end_driving(&mut self, id: SessionId, limits: &OutputLimits) {
        let Some(session) = self.get_mut(id) else { return };
        session.is_driving = false;
        self.release_news(id, limits);
    }

    /// Sends the news that has been held, unless there is still a reason to hold it.
    pub(crate) fn release_news(&mut self, id: SessionId, limits: &OutputLimits) {
        let Some(session) = self.get_mut(id).filter(|session| !session.holds_news()) else { return };
        let news = std::mem::take(&mut session.owed.held_news);
        if !news.is_empty() {
            self.push(id, limits, |writer| writer.raw(&news));
        }
    }

    /// The answer under this ticket is wanted, although the session goes.
    pub(crate) fn expect_for_orphan(&mut self, id: SessionId, ticket: u64, protocol: Protocol) {
        self.orphans.insert((id, ticket), protocol);
    }

    /// Takes such answers.
    pub(crate) fn take_orphans_answers(&mut self) -> Vec<((SessionId, u64), Vec<u8>)> {
        std::mem::take(&mut self.orphans_answers)
    }

    #[cold]
    fn reply_to_orphan(&mut self, at: (SessionId, u64), write: impl FnOnce(&mut Writer)) {
        if let Some(protocol) = self.orphans.remove(&at) {
            let mut writer = Writer::new(protocol);
            write(&mut writer);
            self.orphans_answers.push((at, writer.into_bytes()));
        }
    }

    /// Answers a request in which no group has a part.
    ///
    /// The ticket of a request that groups carry out is a plain number, and cannot be answered so:
    ///
    /// ```
    /// # use group::ids::SessionId;
    /// # use node::session::{Sessions, ticket::OwnTicket};
    /// fn answer(sessions: &mut Sessions, id: SessionId, ticket: OwnTicket) {
    ///     sessions.reply_own(id, ticket, |writer| writer.ok());
    /// }
    /// ```
    ///
    /// ```compile_fail
    /// # use group::ids::SessionId;
    /// # use node::session::{Sessions, ticket::OwnTicket};
    /// fn answer(sessions: &mut Sessions, id: SessionId, ticket: u64) {
    ///     sessions.reply_own(id, ticket, |writer| writer.ok());
    /// }
    /// ```
    pub fn reply_own(&mut self, id: SessionId, ticket: OwnTicket, write: impl FnOnce(&mut Writer)) {
        self.put(id, ticket.0, Right::Own(OwnWord { _sealed: () }), write);
    }

    /// Answers a request that changed nothing.
    pub(crate) fn reply_observed(
        &mut self,
        id: SessionId,
        ticket: u64,
        observed: Observed,
        write: impl FnOnce(&mut Writer),
    ) {
        self.put(id, ticket, Proof::from(observed).into(), write);
    }

    /// Refuses a request, or says that nobody knows what has become of it.
    pub(crate) fn refuse(&mut self, id: SessionId, ticket: u64, text: &str) {
        self.put(id, ticket, Proof::Refused.into(), |writer| writer.error(text));
    }

    /// Gives a reply that has been kept, in the session's protocol.
    pub(crate) fn reply_proven(&mut self, id: SessionId, ticket: u64, proof: impl Into<Right>, bytes: &[u8]) {
        let right = proof.into();
        let is_error = bytes.first() == Some(&b'-');
        assert!(is_error || !matches!(right, Right::Group(Proof::Refused)), "what is not proved can only be refused");
        self.put(id, ticket, right, |writer| writer.raw(bytes));
    }

    /// Puts a reply where it belongs. `write` must write exactly one.
    fn put(&mut self, id: SessionId, ticket: u64, right: Right, write: impl FnOnce(&mut Writer)) {
        if self.get(id).is_none() {
            return self.reply_to_orphan((id, ticket), write);
        }
        self.prompt_reply_count += u64::from(!matches!(right, Right::Group(Proof::Committed(_))));
        let Some(session) = self.get_mut(id) else { return };
        if ticket < session.owed.head {
            return; // it was given up before
        }
        let protocol = session.protocol();
        if let Some(composition) = &mut session.composition
            && composition.ticket.number() == ticket
            && (composition.data.is_none() || composition.is_asking)
        {
            let mut writer = Writer::new(protocol);
            write(&mut writer);
            match &composition.data {
                None => composition.data = Some((right, writer.into_bytes())),
                Some(_) => composition.take_answer(writer.bytes()),
            }
            self.composed.push(id);
            return;
        }
        if let Some(waiting) = &mut session.waiting
            && waiting.takes(ticket)
        {
            let mut writer = Writer::new(protocol);
            write(&mut writer);
            waiting.answer = Some((right, writer.into_bytes()));
            self.tried.push(id);
            return;
        }
        if !session.owed.wanting.is_empty()
            && let Some(place) = session.owed.wanting.iter().position(|wanting| wanting.ticket == ticket)
            && let Some(Wanting { groups, .. }) = session.owed.wanting.remove(place)
            && let Right::Group(proof @ Proof::Committed(_)) = right
        {
            let mut writer = Writer::new(protocol);
            write(&mut writer);
            session.owed.kept_bytes += writer.len();
            self.kept.push(Kept { session: id, ticket, groups, proof, bytes: writer.into_bytes() });
            return;
        }
        let (session, calls) = self.get_to_count(id).expect("just seen");
        if ticket == session.owed.head {
            write_counted(session, calls, ticket, write);
            session.advance();
        } else {
            let place = (ticket - session.owed.head) as usize;
            if session.owed.early.len() <= place {
                session.owed.early.resize_with(place + 1, || None);
            }
            let mut writer = Writer::new(protocol);
            write(&mut writer);
            calls.count(session.owed.asked[place], writer.bytes());
            if !session.owed.queues.is_empty() {
                count_queue(&mut session.owed.queues, &mut session.optimism, ticket, writer.bytes(), calls);
            }
            if !session.owed.loads.is_empty() {
                weigh(&mut session.owed.loads, ticket, writer.bytes(), calls);
            }
            session.owed.early_bytes += writer.len();
            session.owed.early[place] = Some(Early { reply: writer.into_bytes(), pushed: Vec::new() });
        }
        if session.hold == Hold::Answers && session.owed_count() == 0 {
            self.resumable.push(id);
        }
        self.mark(id);
    }

    /// Ends a request that is answered by a push: CLIENT REPLY does not concern it.
    pub(crate) fn reply_pushed(&mut self, id: SessionId, ticket: OwnTicket, bytes: &[u8]) {
        self.reply_own(id, ticket, |_| {});
        if let Some(session) = self.get_mut(id) {
            session.push(|writer| writer.raw(bytes));
        }
        self.mark(id);
    }

    /// Answers a request that changed data: the proof is that its entry is safe at the level in force.
    ///
    /// ```
    /// # use group::proof::Committed;
    /// # use group::ids::SessionId;
    /// # use node::session::Sessions;
    /// fn acknowledge(sessions: &mut Sessions, id: SessionId, ticket: u64, proof: Committed) {
    ///     sessions.reply_committed(id, ticket, proof, |writer| writer.ok());
    /// }
    /// ```
    ///
    /// That it was looked at does not do:
    ///
    /// ```compile_fail
    /// # use group::proof::Observed;
    /// # use group::ids::SessionId;
    /// # use node::session::Sessions;
    /// fn acknowledge(sessions: &mut Sessions, id: SessionId, ticket: u64, proof: Observed) {
    ///     sessions.reply_committed(id, ticket, proof, |writer| writer.ok());
    /// }
    /// ```
    pub fn reply_committed(&mut self, id: SessionId, ticket: u64, proof: Committed, write: impl FnOnce(&mut Writer)) {
        // Writing the reply is executing the request: it must be done even if nobody is left to read it, as every other
        // replica does it.
        let mut write = Some(write);
        self.put(id, ticket, Proof::from(proof).into(), |writer| write.take().expect("called once")(writer));
        if let Some(write) = write {
            write(&mut Writer::new(Protocol::Resp2));
        }
    }
}

/// Writes the reply to the request being looked at, and counts it.
#[inline]
pub(crate) fn write_at_once(session: &mut Session, calls: &mut Calls, write: impl FnOnce(&mut Writer)) {
    let start = session.flow.out.len();
    write(&mut session.flow.out);
    calls.count(session.asking, &session.flow.out.bytes()[start..]);
    if let Some(load) = session.load.take() {
        calls.weigh(load, &session.flow.out.bytes()[start..]);
    }
    mute(session, start);
}

/// Writes a reply, and counts its request.
#[inline]
fn write_counted(session: &mut Session, calls: &mut Calls, ticket: u64, write: impl FnOnce(&mut Writer)) {
    let start = session.flow.out.len();
    write(&mut session.flow.out);
    let reply = &session.flow.out.bytes()[start..];
    calls.count(session.owed.asked[0], reply);
    if !session.owed.queues.is_empty() {
        count_queue(&mut session.owed.queues, &mut session.optimism, ticket, reply, calls);
    }
    if !session.owed.loads.is_empty() {
        weigh(&mut session.owed.loads, ticket, reply, calls);
    }
    mute(session, start);
}

/// Counts what a transaction has carried out, if this is its ticket.
#[cold]
fn count_queue(
    queues: &mut Vec<(u64, Box<[Asked]>)>,
    optimism: &mut Optimism,
    ticket: u64,
    reply: &[u8],
    calls: &mut Calls,
) {
    optimism.note_reply(ticket, reply);
    if let Some(place) = queues.iter().position(|(other, _)| *other == ticket) {
        let (_, queue) = queues.swap_remove(place);
        calls.count_queue(&queue, reply);
    }
}

/// Notes the bytes of the reply with this ticket, if its request is counted by its keys.
#[cold]
fn weigh(loads: &mut Vec<(u64, Load)>, ticket: u64, reply: &[u8], calls: &mut Calls) {
    if let Some(place) = loads.iter().position(|(other, _)| *other == ticket) {
        calls.weigh(loads.remove(place).1, reply);
    }
}

/// Writes a reply that has been counted.
fn write_muted(session: &mut Session, write: impl FnOnce(&mut Writer)) {
    let start = session.flow.out.len();
    write(&mut session.flow.out);
    mute(session, start);
}

/// Takes back the reply that begins here if CLIENT REPLY says that it is not wanted.
#[inline]
fn mute(session: &mut Session, start: usize) {
    match session.options.replies {
        Replies::On => {}
        Replies::Off => session.flow.out.truncate(start),
        // CLIENT REPLY SKIP itself answers nothing, and the request behind it neither.
        Replies::SkipNext => session.options.replies = Replies::Skipping,
        Replies::Skipping => {
            session.flow.out.truncate(start);
            session.options.replies = Replies::On;
        }
    }
}

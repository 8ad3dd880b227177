//! Requests that wait for data: BLPOP and its kin, XREAD BLOCK.
//!
//! Such a request is tried at once, as any other is; that it found nothing, its null reply says. Then its client waits
//! at the gateway, and joins a queue for each of its keys, at the group of the key. When something happens to a key
//! its group wakes the first in the queue, which tries again:
//!
//! ```text
//!  gateway                                  group of a key
//!     │── join the queue, and first try ──────▶│
//!     │◀── null ────────────────────────────────│
//!     │                                         │◀── somebody pushes
//!     │◀── wake ────────────────────────────────│
//!     │── second try ──────────────────────────▶│
//!     │◀── an element, or null ─────────────────│
//!     │── leave, or back in the queue ─────────▶│──▶ wakes the next if the key still exists
//! ```
//!
//! One at a time, first come first served. A try is an ordinary request: logged, executed once, atomic over groups. So
//! an element goes to exactly one client or stays. A client that would claim what is pending in a stream's group is
//! woken, too, when something has been idle for long enough. Wait Queues are the leader's own state and are not replicated: a
//! waiter with groups that are not all led from here takes its place again every [`limits::LINE_RENEWAL_INTERVAL`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use keyspace::{BlockingTimeout, Body, Claims, DataCommand, DatabaseKey, ValueRef};
use resp::{Args, Span};
use state::Upkeep;
use stdx::slot::{Slot, slot_of};
use stdx::{Duration, Instant, Level, UnixMillis};

use crate::commands::Known;
use crate::core::Core;
use crate::core_messages::{CoreMessage, Origin, Request, RequestBody};
use crate::dispatch::{Groups, Next};
use crate::entry::{Reader, put_words};
use crate::event::Action;
use crate::frame;
use crate::group::proof::{Observed, Proof};
use crate::group::{Group, Standing, is_null};
use crate::ids::{GroupId, Lane, Now, SessionId};
use crate::limits;
use crate::output::Output;
use crate::reports::SourceFigures;
use crate::router;
use crate::session::{Hold, Session};
use crate::transaction::Work;
use crate::undelivered::{Delivery, Orphan, takes_away};
use crate::wire;

// ---- the group's side -----------------------------------------------------------------------------------------------

/// What a gateway tells a group of a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitQueueNote {
    /// Who: its ticket tells one request of a session from the next.
    pub waiter: Origin,
    /// The group.
    pub group: GroupId,
    /// Those of its keys that live there.
    pub keys: Vec<DatabaseKey>,
    /// What.
    pub act: WaitQueueAct,
    /// What it would claim as soon as that has been idle for long enough.
    pub claims: Option<Claims>,
}

/// What a waiter does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitQueueAct {
    /// Takes its place at the end of the queue, unless it has one.
    Join {
        /// It is trying right now, and has to be woken only for what happens from here on.
        is_trying: bool,
        /// It wants to know, too, when a key is gone.
        wants_end: bool,
    },
    /// It has tried, and found nothing.
    Tried,
    /// It waits no longer.
    Leave,
}

/// Who waits for the keys of a group.
#[derive(Debug, Default)]
pub(crate) struct WaitQueues {
    queues: BTreeMap<DatabaseKey, WaitQueue>,
    /// Not later than the first moment at which there is something to claim for anybody.
    claims_from: Option<UnixMillis>,
}

#[derive(Debug, Default)]
struct WaitQueue {
    waiters: VecDeque<Waiter>,
    /// The waiter that is trying now; nobody else is woken until it has tried or left.
    awake: Option<Origin>,
    /// Something has happened to the key since that one was woken.
    is_touched: bool,
    /// For that reason the queue was started over, and has not come to its end since.
    has_begun_anew: bool,
}

#[derive(Debug)]
struct Waiter {
    origin: Origin,
    wants_end: bool,
    heard: Instant,
    claims: Option<Claims>,
    /// When there is something to claim, as far as was known when it last found nothing.
    claims_from: Option<UnixMillis>,
}

impl WaitQueue {
    fn place_of(&self, waiter: &Origin) -> Option<usize> {
        self.waiters.iter().position(|other| other.origin == *waiter)
    }

    /// Takes a waiter in, or hears that it still waits. Returns the waiter to wake.
    fn join(&mut self, waiter: Waiter, is_trying: bool, exists: bool) -> Option<Origin> {
        let origin = waiter.origin;
        if let Some(place) = self.place_of(&origin) {
            let known = &mut self.waiters[place];
            // At level 1 it is not told to other nodes what a waiter would claim.
            (known.heard, known.claims) = (waiter.heard, waiter.claims);
            // A waiter that joins is not trying: the word that woke it has been lost, or its answer has.
            return self.awake.filter(|awake| *awake == origin && !is_trying);
        }
        self.waiters.push_back(waiter);
        match self.awake {
            Some(_) => None,
            None if is_trying => {
                self.awake = Some(origin);
                None
            }
            // It may have missed something before it came to this leader.
            None => self.advance(0, exists),
        }
    }

    /// One has tried, and found nothing. If something has happened to the key meanwhile, it may have looked too early,
    /// and what there is now belongs to the first in the queue: the queue starts over. That is done once until all have been
    /// woken, since what happens all the time may be of use to the last of them only. Returns the waiter to wake.
    fn advance_behind(&mut self, tried: &Origin, exists: bool) -> Option<Origin> {
        if self.is_touched && !self.has_begun_anew {
            (self.is_touched, self.has_begun_anew) = (false, true);
            return self.advance(0, exists);
        }
        let behind = self.place_of(tried).map_or(0, |place| place + 1);
        self.advance(behind, exists)
    }

    /// Wakes the first from this place on who may have something to find. Returns who.
    fn advance(&mut self, from: usize, exists: bool) -> Option<Origin> {
        let next = self.waiters.iter().skip(from).find(|waiter| exists || waiter.wants_end);
        self.awake = next.map(|waiter| waiter.origin);
        if self.awake.is_some() {
            return self.awake;
        }
        self.has_begun_anew = false;
        if std::mem::take(&mut self.is_touched) {
            let first = self.waiters.iter().find(|waiter| exists || waiter.wants_end);
            self.awake = first.map(|waiter| waiter.origin);
        }
        self.awake
    }
}

impl WaitQueues {
    /// Forgets those who wait for keys of a slot that has gone: their gateways hear of it, and let them join a queue
    /// where it is now.
    pub(crate) fn leave_slot(&mut self, slot: Slot, keyspace: &mut Upkeep<'_>) {
        self.queues.retain(|(database, key), _| {
            let stays = slot_of(key) != slot;
            if !stays {
                keyspace.forget_key(*database, key);
            }
            stays
        });
    }

    /// Forgets everybody.
    pub(crate) fn clear(&mut self, keyspace: &mut Upkeep<'_>) {
        self.claims_from = None;
        for (database, key) in std::mem::take(&mut self.queues).into_keys() {
            keyspace.forget_key(database, &key);
        }
    }
}

impl Group {
    /// Takes a waiter's word. The group must be [`Standing::Serving`].
    pub(crate) fn queue(&mut self, note: WaitQueueNote, now: Now, output: &mut Output<'_>) {
        let WaitQueueNote { waiter, keys, act, claims, .. } = note;
        for key in keys {
            let exists = self.exists(&key);
            if act == WaitQueueAct::Tried {
                self.note_claim(&key, &waiter, now);
            }
            let woken = match act {
                WaitQueueAct::Join { is_trying, wants_end } => {
                    self.state.upkeep().await_key(key.0, &key.1);
                    let queue = self.leader.wait_queues.queues.entry(key.clone()).or_default();
                    let (claims, heard) = (claims.clone(), now.instant);
                    let claims_now = claims.is_some() && !is_trying;
                    let standing = Waiter { origin: waiter, wants_end, heard, claims, claims_from: None };
                    let woken = queue.join(standing, is_trying, exists);
                    if claims_now && woken.is_none() {
                        self.note_claim(&key, &waiter, now);
                    }
                    woken
                }
                WaitQueueAct::Tried => match self.leader.wait_queues.queues.get_mut(&key) {
                    Some(queue) if queue.awake == Some(waiter) => queue.advance_behind(&waiter, exists),
                    _ => None,
                },
                WaitQueueAct::Leave => {
                    let Some(queue) = self.leader.wait_queues.queues.get_mut(&key) else { continue };
                    let Some(place) = queue.place_of(&waiter) else { continue };
                    queue.waiters.remove(place);
                    let woken = if queue.awake == Some(waiter) { queue.advance(place, exists) } else { None };
                    if queue.waiters.is_empty() {
                        self.leader.wait_queues.queues.remove(&key);
                        self.state.upkeep().forget_key(key.0, &key.1);
                    }
                    woken
                }
            };
            if let Some(origin) = woken {
                output.wake(&origin, self.id());
            }
        }
    }

    /// Finds out when there will be something to claim for a waiter that has found nothing.
    fn note_claim(&mut self, key: &DatabaseKey, waiter: &Origin, now: Now) {
        let moment = self.moment();
        let queues = &mut self.leader.wait_queues;
        let waiters = queues.queues.get_mut(key).map(|queue| &mut queue.waiters);
        let Some(waiter) = waiters.and_then(|all| all.iter_mut().find(|other| other.origin == *waiter)) else { return };
        let Some(claims) = &waiter.claims else { return };
        let stream = self.state.keyspace().view(key.0, moment).peek(&key.1).map(|entry| entry.value());
        let Some(ValueRef::Stream(stream)) = stream else { return };
        // A try may be stamped by a clock that is behind: then it is repeated, and not at once.
        let soonest = UnixMillis(now.unix.0.saturating_add(limits::CLAIM_RETRY_INTERVAL.as_millis() as i64));
        let from = stream.idle_from(&claims.group, claims.idle_ms_min).map(UnixMillis);
        let from = from.map(|from| if from > now.unix { from } else { soonest });
        waiter.claims_from = from;
        queues.claims_from = [queues.claims_from, from].into_iter().flatten().min();
    }

    /// When there will be something to claim for a waiter.
    #[inline]
    pub(crate) fn claims_from(&self) -> Option<UnixMillis> {
        self.leader.wait_queues.claims_from
    }

    /// Wakes those that now have something to claim.
    pub(crate) fn wake_claimants(&mut self, now: Now, output: &mut Output<'_>) {
        if self.leader.wait_queues.claims_from.is_none_or(|from| from > now.unix) {
            return;
        }
        let (group, mut next, mut woken) = (self.id(), None, Vec::new());
        for queue in self.leader.wait_queues.queues.values_mut() {
            for waiter in &mut queue.waiters {
                let Some(from) = waiter.claims_from else { continue };
                if from > now.unix {
                    next = Some(next.map_or(from, |next: UnixMillis| next.min(from)));
                    continue;
                }
                waiter.claims_from = None;
                match queue.awake {
                    // The one that is trying finds what there is; the others try after it.
                    Some(_) => queue.is_touched = true,
                    None => {
                        queue.awake = Some(waiter.origin);
                        woken.push(waiter.origin);
                    }
                }
            }
        }
        self.leader.wait_queues.claims_from = next;
        woken.iter().for_each(|origin| output.wake(origin, group));
    }

    /// Wakes those who wait for keys that something has happened to.
    #[inline]
    pub(crate) fn wake_waiters(&mut self, output: &mut Output<'_>) {
        if self.state.keyspace().is_awaited_touched() {
            self.wake_touched(output);
        }
    }

    fn wake_touched(&mut self, output: &mut Output<'_>) {
        for key in self.state.upkeep().take_touched() {
            let exists = self.exists(&key);
            let Some(queue) = self.leader.wait_queues.queues.get_mut(&key) else { continue };
            if queue.awake.is_some() {
                queue.is_touched = true;
            } else if let Some(origin) = queue.advance(0, exists) {
                output.wake(&origin, self.id());
            }
        }
    }

    /// Forgets waiters of other nodes that have not been heard of for long: their gateway is gone.
    pub(crate) fn forget_silent_waiters(&mut self, now: Now, output: &mut Output<'_>) {
        let node = output.context.node;
        let is_silent = |waiter: &Waiter| {
            waiter.origin.node != node && now.instant.since(waiter.heard) >= limits::LINE_RENEWAL_INTERVAL * 4
        };
        let silent: Vec<_> = self
            .leader
            .wait_queues
            .queues
            .iter()
            .flat_map(|(key, queue)| {
                queue.waiters.iter().filter(|waiter| is_silent(waiter)).map(move |w| (w.origin, key))
            })
            .map(|(waiter, key)| (waiter, key.clone()))
            .collect();
        for (waiter, key) in silent {
            let note =
                WaitQueueNote { waiter, group: self.id(), keys: vec![key], act: WaitQueueAct::Leave, claims: None };
            self.queue(note, now, output);
        }
    }

    fn exists(&self, (database, key): &DatabaseKey) -> bool {
        self.state.keyspace().version(*database, key, self.moment()) != 0
    }
}

impl Output<'_> {
    /// Tells a waiter that it may get an answer: there may be something for it, or its stream or group has gone.
    fn wake(&mut self, waiter: &Origin, group: GroupId) {
        if waiter.node == self.context.node {
            let message = CoreMessage::Wake { session: waiter.session, ticket: waiter.ticket, group };
            self.outbox.push(self.context.core, waiter.core, message);
        } else {
            let bytes = wire::encode_wake(waiter, group);
            self.send(waiter.node, GroupId(u32::from(waiter.core.0)), Lane::Log, bytes);
        }
    }
}

// ---- the gateway's side ---------------------------------------------------------------------------------------------

/// A request that has found nothing yet.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) ticket: u64,
    command: &'static DataCommand,
    /// Laid out by `entry::put_words`.
    words: Vec<u8>,
    keys: BTreeMap<GroupId, Vec<DatabaseKey>>,
    claims: Option<Claims>,
    until: Option<Instant>,
    stage: Stage,
    /// Ids that are still to be found.
    unresolved: Vec<Dollar>,
    /// What the try under way was answered.
    pub(crate) answer: Option<(Proof, Vec<u8>)>,
    /// That the last try has found nothing.
    nothing: Option<Observed>,
    /// Groups that wait to hear how the try under way went.
    awake_at: BTreeSet<GroupId>,
    /// Groups that have woken it since the try under way began.
    woken_at: BTreeSet<GroupId>,
    /// Ends when the try under way has found nothing.
    end: Option<WaitEnd>,
    try_count: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It asks for the ids that `$` stands for.
    Resolving,
    /// A try is under way.
    Trying,
    /// It waits in queues.
    Standing,
}

/// Why a request waits no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// Its time is up, or somebody said so (CLIENT UNBLOCK … TIMEOUT).
    Timeout,
    /// Somebody ended it (CLIENT UNBLOCK … ERROR).
    Error,
    /// This node follows a Redis from now on, and what the request would take away is not this node's any more.
    Follows,
}

impl WaitEnd {
    const FOLLOWS: &str =
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";

    const ERROR: &str = "UNBLOCKED client unblocked via CLIENT UNBLOCK";
}

impl Waiting {
    /// True if a reply to this ticket is an answer to a try.
    #[inline]
    pub(crate) fn takes(&self, ticket: u64) -> bool {
        self.ticket == ticket && self.stage != Stage::Standing
    }

    /// True if nothing is under way for it.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.stage == Stage::Standing
    }

    /// The command, the ticket and the words of a try that has not been answered.
    pub(crate) fn try_under_way(&self) -> Option<(&'static str, u64, Vec<u8>)> {
        (self.stage == Stage::Trying).then(|| (self.command.name, self.ticket, self.words.clone()))
    }

    /// True while it is being carried out.
    pub(crate) fn is_trying(&self) -> bool {
        self.stage == Stage::Trying
    }
}

/// What a try's reply means for the wait.
enum Meaning {
    /// There was nothing: the wait goes on.
    Nothing,
    /// It is what the client has waited for, or a refusal.
    Answer,
}

impl Waiting {
    fn meaning_of(&self, reply: &[u8]) -> Meaning {
        if is_null(reply) {
            return Meaning::Nothing;
        }
        let is_first = self.try_count <= 1;
        let is_wrong_type = reply.starts_with(b"-WRONGTYPE");
        match self.command.name {
            _ if is_first => Meaning::Answer,
            // Of another type may be the destination, and then somebody has to be told. Who reads for a group waits no
            // longer either when its stream or the group has gone: as in Redis 7.2, the next try says what there is.
            "blmove" | "brpoplpush" | "xreadgroup" => Meaning::Answer,
            // A client that waits for a list is not interested in a string that has taken its name.
            _ if is_wrong_type => Meaning::Nothing,
            _ => Meaning::Answer,
        }
    }
}

impl Core {
    /// A request that may wait. Its session does nothing else until it has been answered.
    pub(crate) fn dispatch_waiting(
        &mut self,
        id: SessionId,
        command: &'static DataCommand,
        args: Args<'_>,
        timeout: BlockingTimeout,
        actions: &mut Vec<Action>,
    ) -> Next {
        let now = self.now.instant;
        let session = self.sessions.get_mut(id).expect("its request is being looked at");
        if session.owed_count() > 0 {
            return Next::Postponed(Hold::Answers);
        }
        let until = match timeout {
            BlockingTimeout::Millis(millis) => Some(now + Duration::from_millis(millis).min(limits::WAIT_MAX)),
            BlockingTimeout::None | BlockingTimeout::Endless => None,
        };
        let database = session.database;
        let mut keys: BTreeMap<GroupId, Vec<DatabaseKey>> = BTreeMap::new();
        command.for_each_key(args, |index, _| {
            let key = args.at(index);
            let own = keys.entry(self.context.slots.group_of(key)).or_default();
            if !own.iter().any(|(_, other)| other == key) {
                own.push((database, key.to_vec()));
            }
        });
        let mut words = Vec::new();
        put_words(&mut words, database, args);
        let unresolved = dollars(command, args);
        session.hold = Hold::Blocked;
        session.waiting = Some(Box::new(Waiting {
            ticket: session.take_ticket(),
            command,
            words,
            keys,
            claims: keyspace::claims(command, args),
            until,
            stage: Stage::Trying,
            unresolved,
            answer: None,
            nothing: None,
            awake_at: BTreeSet::new(),
            woken_at: BTreeSet::new(),
            end: None,
            try_count: 0,
        }));
        self.waits.sessions.insert(id);
        if let Some(until) = until {
            self.waits.ends.insert((until, id));
        }
        self.resolve_or_try(id, actions);
        Next::Taken
    }

    /// Asks for the next id that `$` stands for, or begins to wait if there is none.
    fn resolve_or_try(&mut self, id: SessionId, actions: &mut Vec<Action>) {
        let Some(waiting) = self.sessions.get_mut(id).and_then(|session| session.waiting.as_mut()) else { return };
        let Some(dollar) = waiting.unresolved.last().copied() else {
            self.join(id, true, actions);
            return self.try_waiting(id, actions);
        };
        waiting.stage = Stage::Resolving;
        let words = waiting.words.clone();
        let mut spans: Vec<Span> = Vec::new();
        let (database, args) = Reader::new(&words).words(&mut spans);
        // The last entry will do, also where later ones have been deleted: those never come back.
        let question: [&[u8]; 6] = [b"xrevrange", args.at(dollar.key), b"+", b"-", b"COUNT", b"1"];
        let (buffer, spans) = lay_out(question.into_iter());
        let question = keyspace::find(b"xrevrange").expect("it is declared beside XREAD");
        self.submit(id, question, database, Args::new(&buffer, &spans), actions);
    }

    /// Takes, or keeps, the place in every queue.
    fn join(&mut self, id: SessionId, is_trying: bool, actions: &mut Vec<Action>) {
        let slots = Arc::clone(&self.context.slots);
        let Some(waiting) = self.sessions.get_mut(id).and_then(|session| session.waiting.as_mut()) else { return };
        if !slots.is_even() {
            let keys: Vec<_> = std::mem::take(&mut waiting.keys).into_values().flatten().collect();
            for key in keys {
                waiting.keys.entry(slots.group_of(&key.1)).or_default().push(key);
            }
        }
        let wants_end = waiting.command.name == "xreadgroup";
        if is_trying {
            waiting.awake_at = waiting.keys.keys().copied().collect();
        }
        self.tell_lines(id, None, WaitQueueAct::Join { is_trying, wants_end }, actions);
    }

    /// Tells the groups of a waiter's keys, or some of them.
    fn tell_lines(
        &mut self,
        id: SessionId,
        only: Option<&BTreeSet<GroupId>>,
        act: WaitQueueAct,
        actions: &mut Vec<Action>,
    ) {
        let Some(waiting) = self.sessions.get(id).and_then(|session| session.waiting.as_ref()) else { return };
        let waiter = Origin { ticket: waiting.ticket, ..self.origin_of(id) };
        let claims = waiting.claims.clone().filter(|_| matches!(act, WaitQueueAct::Join { .. }));
        let notes: Vec<_> = waiting
            .keys
            .iter()
            .filter(|(group, _)| only.is_none_or(|only| only.contains(group)))
            .map(|(group, keys)| WaitQueueNote {
                waiter,
                group: *group,
                keys: keys.clone(),
                act,
                claims: claims.clone(),
            })
            .collect();
        for note in notes {
            self.send_line(note, actions);
        }
    }

    fn send_line(&mut self, note: WaitQueueNote, actions: &mut Vec<Action>) {
        let to = router::core_of(note.group, self.context.core_count);
        if to == self.context.core {
            self.take_wait_queue_note(note, actions);
        } else {
            self.outbox.push(self.context.core, to, CoreMessage::WaitQueue(note));
        }
    }

    /// A waiter's word to a group of this core, from any node or core.
    pub(crate) fn take_wait_queue_note(&mut self, note: WaitQueueNote, actions: &mut Vec<Action>) {
        let now = self.now;
        match self.group_mut(note.group).map(|group| group.standing()) {
            Some(Standing::Serving) => {
                self.with_group(note.group, actions, |group, output| group.queue(note, now, output));
            }
            Some(Standing::Follower(leader)) if note.waiter.node == self.context.node => {
                // A node that knows level 1 alone does not understand what is claimed.
                let claims = note.claims.clone().filter(|_| self.context.levels.in_force > Level::FIRST);
                let bytes = wire::encode_wait_queue_note(&WaitQueueNote { claims, ..note.clone() });
                actions.push(Action::Send { to: leader, group: note.group, lane: Lane::Log, bytes });
            }
            // It comes again with the next renewal.
            _ => {}
        }
    }

    /// Executes the request once more.
    fn try_waiting(&mut self, id: SessionId, actions: &mut Vec<Action>) {
        let Some(waiting) = self.sessions.get_mut(id).and_then(|session| session.waiting.as_mut()) else { return };
        waiting.stage = Stage::Trying;
        waiting.try_count += 1;
        let (command, words) = (waiting.command, waiting.words.clone());
        let mut spans: Vec<Span> = Vec::new();
        let (database, args) = Reader::new(&words).words(&mut spans);
        self.submit(id, command, database, args, actions);
    }

    /// Sends a command of a waiting session on its way, under the session's ticket.
    fn submit(
        &mut self,
        id: SessionId,
        command: &'static DataCommand,
        database: u16,
        args: Args<'_>,
        actions: &mut Vec<Action>,
    ) {
        let session = self.sessions.get(id).expect("it waits");
        let protocol = session.protocol();
        let tracks = session.tracks() && matches!(command.body, Body::Query(_));
        let ticket = session.waiting.as_ref().expect("it waits").ticket;
        let mut words = Vec::new();
        put_words(&mut words, database, args);
        if let Groups::One(group) = self.groups_of(command, args) {
            let answerable = match self.check_quorum(group) {
                Ok(answerable) => answerable,
                Err(refusal) => return self.sessions.refuse(id, ticket, refusal.text()),
            };
            let body = match command.body {
                Body::Query(_) => RequestBody::Read(words),
                Body::Mutate(_) | Body::Container => RequestBody::Write(words),
            };
            if matches!(command.body, Body::Mutate(_))
                && let Err(refusal) = self.check_voters(id, group)
            {
                return self.sessions.refuse(id, ticket, refusal.text());
            }
            if let Some(session) = self.sessions.get_mut(id) {
                session.set_groups(ticket, std::iter::once(group));
            }
            let is_timed = self.wants_time(Known::Data(command), args);
            let origin = Origin { ticket, tracks, is_timed, ..self.origin_of(id) };
            self.send_request(Request::new(origin, group, protocol, body), answerable, actions);
            return;
        }
        let origin = Origin { ticket, tracks, ..self.origin_of(id) };
        let mut work = Work { commands: vec![words], ..Work::new(origin, protocol, self.now.instant) };
        self.add_keys(&mut work, command, database, args);
        self.begin_work(work, actions);
    }

    /// A group says that there may be something for a waiter.
    pub(crate) fn woken(&mut self, id: SessionId, ticket: u64, group: GroupId, actions: &mut Vec<Action>) {
        let waiting = self.sessions.get_mut(id).and_then(|session| session.waiting.as_mut());
        let Some(waiting) = waiting.filter(|waiting| waiting.ticket == ticket) else {
            // It has left, and the group will hear of it.
            return;
        };
        if waiting.stage == Stage::Standing {
            waiting.awake_at.insert(group);
            self.try_waiting(id, actions);
        } else {
            waiting.woken_at.insert(group);
        }
    }

    /// Goes on with waiters after their tries have been answered.
    pub(crate) fn settle_waiting(&mut self, actions: &mut Vec<Action>) -> bool {
        let tried = self.sessions.take_tried();
        let any = !tried.is_empty();
        for id in tried {
            self.settle(id, actions);
        }
        any
    }

    fn settle(&mut self, id: SessionId, actions: &mut Vec<Action>) {
        let now = self.now.instant;
        let Some(waiting) = self.sessions.get_mut(id).and_then(|session| session.waiting.as_mut()) else { return };
        let Some((proof, answer)) = waiting.answer.take() else { return };
        if waiting.stage == Stage::Resolving {
            if answer.first() == Some(&b'-') {
                return self.finish_waiting(id, proof, &answer, actions);
            }
            let dollar = waiting.unresolved.pop().expect("its id was asked for");
            waiting.words = with_id(&waiting.words, dollar.word, last_id(&answer));
            return self.resolve_or_try(id, actions);
        }
        match (waiting.meaning_of(&answer), proof.observed()) {
            (Meaning::Nothing, Some(observed)) => waiting.nothing = Some(observed),
            (Meaning::Nothing | Meaning::Answer, _) => return self.finish_waiting(id, proof, &answer, actions),
        }
        waiting.stage = Stage::Standing;
        let (end, until) = (waiting.end, waiting.until);
        self.sessions.release_news(id, &self.context.settings.output_limits);
        if let Some(end) = end {
            return self.end_waiting(id, end, actions);
        }
        if until.is_some_and(|until| until <= now) {
            return self.end_waiting(id, WaitEnd::Timeout, actions);
        }
        let Some(waiting) = self.sessions.get_mut(id).and_then(|session| session.waiting.as_mut()) else { return };
        let tried_at = std::mem::take(&mut waiting.awake_at);
        let woken_at = std::mem::take(&mut waiting.woken_at);
        self.tell_lines(id, Some(&tried_at), WaitQueueAct::Tried, actions);
        for group in woken_at {
            let Some(session) = self.sessions.get_mut(id) else { return };
            let Some(waiting) = &mut session.waiting else { return };
            waiting.awake_at.insert(group);
        }
        let is_woken = self
            .sessions
            .get(id)
            .and_then(|session| session.waiting.as_ref())
            .is_some_and(|waiting| waiting.stage == Stage::Standing && !waiting.awake_at.is_empty());
        if is_woken {
            self.try_waiting(id, actions);
        }
    }

    /// Ends a wait from outside: now, or when the try under way has found nothing.
    pub(crate) fn end_waiting(&mut self, id: SessionId, end: WaitEnd, actions: &mut Vec<Action>) {
        let Some(waiting) = self.sessions.get_mut(id).and_then(|session| session.waiting.as_mut()) else { return };
        if waiting.stage != Stage::Standing {
            waiting.end.get_or_insert(end);
            return;
        }
        let nothing = waiting.nothing.expect("what waits has found nothing");
        let mut writer = resp::Writer::new(self.sessions.get(id).expect("just seen").protocol());
        let proof = match end {
            WaitEnd::Timeout => {
                writer.null_array();
                nothing.into()
            }
            WaitEnd::Error => {
                writer.error(WaitEnd::ERROR);
                Proof::Refused
            }
            WaitEnd::Follows => {
                writer.error(WaitEnd::FOLLOWS);
                Proof::Refused
            }
        };
        self.finish_waiting(id, proof, writer.bytes(), actions);
    }

    fn finish_waiting(&mut self, id: SessionId, proof: Proof, reply: &[u8], actions: &mut Vec<Action>) {
        self.tell_lines(id, None, WaitQueueAct::Leave, actions);
        let Some(waiting) = self.stop_waiting(id) else { return };
        let Some(start) = self.sessions.get(id).map(Session::put_out_bytes) else { return };
        self.sessions.reply_proven(id, waiting.ticket, proof, reply);
        // With CLIENT REPLY OFF nobody wants to see it.
        if takes_away(waiting.command.name)
            && let is_kept = self.sessions.is_kept(id, waiting.ticket)
            && let Some(session) = self.sessions.get(id).filter(|session| is_kept || session.put_out_bytes() > start)
        {
            let orphan = Orphan::new(waiting.command.name, waiting.words, session.protocol());
            let (ticket, reply) = (waiting.ticket, reply.to_vec());
            // A reply that is kept has not been put out, whatever else has.
            let start = if is_kept { u64::MAX } else { start };
            self.waits.deliveries.insert(id, Delivery { start, orphan, ticket, reply });
        }
        self.sessions.release_news(id, &self.context.settings.output_limits);
        self.sessions.mark_resumable(id);
    }

    fn stop_waiting(&mut self, id: SessionId) -> Option<Box<Waiting>> {
        let session = self.sessions.get_mut(id)?;
        let waiting = session.waiting.take()?;
        session.hold = Hold::None;
        self.waits.sessions.remove(&id);
        if let Some(until) = waiting.until {
            self.waits.ends.remove(&(until, id));
        }
        Some(waiting)
    }

    /// A session is about to be closed.
    pub(crate) fn give_up_waiting(&mut self, id: SessionId, actions: &mut Vec<Action>) {
        self.tell_lines(id, None, WaitQueueAct::Leave, actions);
        self.stop_waiting(id);
    }

    /// CLIENT UNBLOCK. True if that client waits.
    pub(crate) fn unblock(&mut self, serial: u64, end: WaitEnd, actions: &mut Vec<Action>) -> bool {
        let id = self.waits.sessions.iter().find(|id| id.serial == serial).copied();
        if let Some(id) = id {
            self.end_waiting(id, end, actions);
        }
        id.is_some()
    }

    /// This node follows a Redis from now on, which is doing so, or none any more.
    pub(crate) fn hear_of_source(&mut self, source: Option<Arc<SourceFigures>>, actions: &mut Vec<Action>) {
        let begins = source.is_some() && self.context.host.source.is_none();
        self.context.host.source = source;
        if begins {
            let waits = |id: &SessionId| {
                let waiting = self.sessions.get(*id).and_then(|session| session.waiting.as_ref());
                waiting.is_some_and(|waiting| matches!(waiting.command.body, Body::Mutate(_)))
            };
            let ended: Vec<_> = self.waits.sessions.iter().copied().filter(waits).collect();
            for id in ended {
                self.end_waiting(id, WaitEnd::Follows, actions);
            }
        }
        // What was taken for a client, and may have to go back, would be refused from now on.
        let owes = begins && !(self.waits.deliveries.is_empty() && self.waits.orphans.is_empty());
        actions.push(Action::SourceHeard { owes });
    }

    /// Number of sessions that wait for data, or for the end of CLIENT PAUSE.
    pub(crate) fn waiting_count(&self) -> usize {
        let paused_count = match self.context.pause {
            Some(_) => self.sessions.iter().filter(|session| session.hold == Hold::Paused).count(),
            None => 0,
        };
        // A waiter that is still trying may not be in the queue yet, and may find something.
        let is_at_rest = |id: &&SessionId| {
            let session = self.sessions.get(**id);
            session.and_then(|session| session.waiting.as_ref()).is_some_and(|waiting| waiting.is_at_rest())
        };
        paused_count + self.waits.sessions.iter().filter(is_at_rest).count()
    }

    /// Waits that end at some time, keys that are waited for, and those of them that consumers of groups wait for.
    pub(crate) fn waits_counted(&self) -> (usize, usize, usize) {
        let (mut keys, mut of_groups) = (BTreeSet::new(), BTreeSet::new());
        for waiting in self.waits.sessions.iter().filter_map(|id| self.sessions.get(*id)?.waiting.as_ref()) {
            keys.extend(waiting.keys.values().flatten());
            if waiting.command.name == "xreadgroup" {
                of_groups.extend(waiting.keys.values().flatten());
            }
        }
        (self.waits.ends.len(), keys.len(), of_groups.len())
    }

    /// When there is next something to claim for somebody.
    pub(crate) fn next_claim(&self) -> Option<Instant> {
        let from = self.groups.iter().flatten().filter_map(Group::claims_from).min()?;
        let ms = from.0.saturating_sub(self.now.unix.0).max(0) as u64;
        Some(self.now.instant + Duration::from_millis(ms).min(limits::WAIT_MAX))
    }

    fn wake_claimants(&mut self, actions: &mut Vec<Action>) {
        let now = self.now;
        let mut output = Self::output(&mut self.context, &mut self.sessions, &mut self.outbox, actions);
        self.groups.iter_mut().flatten().for_each(|group| group.wake_claimants(now, &mut output));
    }

    /// When the next wait ends.
    pub(crate) fn next_wait_end(&self) -> Option<Instant> {
        self.waits.ends.first().map(|(until, _)| *until)
    }

    /// Ends waits that have timed out, and keeps the places of the others.
    pub(crate) fn pass_time_waiting(&mut self, actions: &mut Vec<Action>) {
        let now = self.now.instant;
        while let Some((until, id)) = self.waits.ends.first().copied()
            && until <= now
        {
            self.waits.ends.pop_first();
            self.end_waiting(id, WaitEnd::Timeout, actions);
        }
        self.wake_claimants(actions);
        let has_moved = std::mem::take(&mut self.waits.must_stand_anew);
        if !has_moved && now.since(self.waits.renewed) < limits::LINE_RENEWAL_INTERVAL {
            return;
        }
        self.waits.renewed = now;
        self.forget_silent_waiters(actions);
        // A queue that only this node can ever keep needs no care.
        if !has_moved && self.groups.iter().all(|group| group.as_ref().is_some_and(Group::can_read)) {
            return;
        }
        for id in self.waits.sessions.iter().copied().collect::<Vec<_>>() {
            let is_standing = self
                .sessions
                .get(id)
                .and_then(|session| session.waiting.as_ref())
                .is_some_and(|waiting| waiting.stage == Stage::Standing);
            if is_standing {
                self.join(id, false, actions);
            }
        }
    }

    fn forget_silent_waiters(&mut self, actions: &mut Vec<Action>) {
        let now = self.now;
        let mut output = Self::output(&mut self.context, &mut self.sessions, &mut self.outbox, actions);
        for group in self.groups.iter_mut().flatten() {
            group.forget_silent_waiters(now, &mut output);
        }
    }
}

/// A `$` among the words of an XREAD, and the key it belongs to.
#[derive(Clone, Copy, Debug)]
struct Dollar {
    key: usize,
    word: usize,
}

/// Every `$` of an XREAD: it stands for the last entry there is when the wait begins.
fn dollars(command: &DataCommand, args: Args<'_>) -> Vec<Dollar> {
    if command.name != "xread" {
        return Vec::new();
    }
    let mut keys = Vec::new();
    command.for_each_key(args, |index, _| keys.push(index));
    let count = keys.len();
    let all = keys.into_iter().map(|key| Dollar { key, word: key + count });
    all.filter(|dollar| args.get(dollar.word) == Some(b"$")).collect()
}

/// The id in a reply of at most one entry.
fn last_id(reply: &[u8]) -> &[u8] {
    let entry = frame::elements(reply).into_iter().next().map(frame::elements);
    let id = entry.and_then(|entry| frame::bulk_bytes(entry.first()?));
    id.unwrap_or(b"0-0")
}

/// The request with another word in one place.
fn with_id(words: &[u8], place: usize, id: &[u8]) -> Vec<u8> {
    let mut spans: Vec<Span> = Vec::new();
    let (database, args) = Reader::new(words).words(&mut spans);
    let (buffer, spans) = lay_out(args.iter().enumerate().map(|(index, word)| if index == place { id } else { word }));
    let mut out = Vec::new();
    put_words(&mut out, database, Args::new(&buffer, &spans));
    out
}

/// Words as they would have come from a client.
pub(crate) fn lay_out<'a>(words: impl Iterator<Item = &'a [u8]>) -> (Vec<u8>, Vec<Span>) {
    let mut buffer = Vec::new();
    let mut spans = Vec::new();
    for word in words {
        let start = buffer.len() as u32;
        buffer.extend_from_slice(word);
        spans.push(Span { start, end: buffer.len() as u32 });
    }
    (buffer, spans)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{CoreId, NodeId};

    fn waiter(serial: u64) -> Waiter {
        let session = SessionId { serial, index: serial as u32 };
        let origin = Origin::new(NodeId(2), CoreId(0), session, 1);
        Waiter { origin, wants_end: false, heard: Instant::ZERO, claims: None, claims_from: None }
    }

    #[test]
    fn a_waiter_whose_call_was_lost_is_called_again_when_it_is_heard_of() {
        let (first, second) = (waiter(1).origin, waiter(2).origin);
        let mut queue = WaitQueue::default();
        assert_eq!(queue.join(waiter(1), true, false), None, "it is trying by itself");
        assert_eq!(queue.join(waiter(2), true, false), None);
        assert_eq!(queue.advance(1, false), None, "the first has found nothing, and there is nothing");
        assert_eq!(queue.advance(0, true), Some(first));
        assert_eq!(queue.join(waiter(2), false, true), None, "it is not its turn");
        assert_eq!(queue.join(waiter(1), false, true), Some(first));
        assert_eq!(queue.advance(1, true), Some(second));
    }

    #[test]
    fn what_comes_while_the_first_is_trying_is_for_the_first() {
        let mut queue = WaitQueue::default();
        (1..=3).for_each(|serial| _ = queue.join(waiter(serial), true, false));
        // The first has tried too early. What happens all the time and is nothing to it does not keep the last from
        // trying.
        let mut tried = Vec::new();
        let mut awake = waiter(1).origin;
        for _ in 0..12 {
            tried.push(awake.session.serial);
            queue.is_touched = true;
            awake = queue.advance_behind(&awake, true).expect("it was touched");
        }
        assert_eq!(tried, [1, 1, 2, 3, 1, 1, 2, 3, 1, 1, 2, 3]);
        // What comes while the second is trying is for the first as well.
        let mut queue = WaitQueue::default();
        (1..=3).for_each(|serial| _ = queue.join(waiter(serial), true, false));
        assert_eq!(queue.advance_behind(&waiter(1).origin, true), Some(waiter(2).origin));
        queue.is_touched = true;
        assert_eq!(queue.advance_behind(&waiter(2).origin, true), Some(waiter(1).origin));
        assert_eq!(queue.advance_behind(&waiter(1).origin, true), Some(waiter(2).origin));
        assert_eq!(queue.advance_behind(&waiter(2).origin, true), Some(waiter(3).origin));
        assert_eq!(queue.advance_behind(&waiter(3).origin, true), None);
    }

    #[test]
    fn a_waiter_that_stands_already_says_later_what_it_would_claim() {
        let claims = Some(Claims { group: b"g".to_vec(), idle_ms_min: 5 });
        let mut queue = WaitQueue::default();
        queue.join(waiter(1), true, false);
        queue.advance(1, false);
        queue.join(Waiter { claims: claims.clone(), ..waiter(1) }, false, false);
        assert_eq!((queue.waiters.len(), &queue.waiters[0].claims), (1, &claims));
    }
}

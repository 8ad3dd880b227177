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

use keyspace::{Claims, DataCommand, DatabaseKey, ValueRef};
use resp::{Args, Span};
use state::Upkeep;
use stdx::slot::{Slot, slot_of};
use stdx::{Instant, UnixMillis};

use crate::core_messages::CoreMessage;
use crate::entry::{Reader, put_words};
use crate::frame;
use crate::group::proof::{Observed, Proof};
use crate::group::{Group, is_null};
use crate::ids::{GroupId, Lane, Now};
use crate::limits;
use crate::output::Output;
use crate::requests::Origin;
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
pub(crate) struct WaitQueue {
    waiters: VecDeque<Waiter>,
    /// The waiter that is trying now; nobody else is woken until it has tried or left.
    awake: Option<Origin>,
    /// Something has happened to the key since that one was woken.
    is_touched: bool,
    /// For that reason the queue was started over, and has not come to its end since.
    has_begun_anew: bool,
}

#[derive(Debug)]
pub(crate) struct Waiter {
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
    pub(crate) command: &'static DataCommand,
    /// Laid out by `entry::put_words`.
    pub(crate) words: Vec<u8>,
    pub(crate) keys: BTreeMap<GroupId, Vec<DatabaseKey>>,
    pub(crate) claims: Option<Claims>,
    pub(crate) until: Option<Instant>,
    pub(crate) stage: Stage,
    /// Ids that are still to be found.
    pub(crate) unresolved: Vec<Dollar>,
    /// What the try under way was answered.
    pub(crate) answer: Option<(Proof, Vec<u8>)>,
    /// That the last try has found nothing.
    pub(crate) nothing: Option<Observed>,
    /// Groups that wait to hear how the try under way went.
    pub(crate) awake_at: BTreeSet<GroupId>,
    /// Groups that have woken it since the try under way began.
    pub(crate) woken_at: BTreeSet<GroupId>,
    /// Ends when the try under way has found nothing.
    pub(crate) end: Option<WaitEnd>,
    pub(crate) try_count: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
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
    pub(crate) const FOLLOWS: &str =
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";

    pub(crate) const ERROR: &str = "UNBLOCKED client unblocked via CLIENT UNBLOCK";
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
pub(crate) enum Meaning {
    /// There was nothing: the wait goes on.
    Nothing,
    /// It is what the client has waited for, or a refusal.
    Answer,
}

impl Waiting {
    pub(crate) fn meaning_of(&self, reply: &[u8]) -> Meaning {
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

/// A `$` among the words of an XREAD, and the key it belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dollar {
    pub(crate) key: usize,
    pub(crate) word: usize,
}

/// Every `$` of an XREAD: it stands for the last entry there is when the wait begins.
pub(crate) fn dollars(command: &DataCommand, args: Args<'_>) -> Vec<Dollar> {
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
pub(crate) fn last_id(reply: &[u8]) -> &[u8] {
    let entry = frame::elements(reply).into_iter().next().map(frame::elements);
    let id = entry.and_then(|entry| frame::bulk_bytes(entry.first()?));
    id.unwrap_or(b"0-0")
}

/// The request with another word in one place.
pub(crate) fn with_id(words: &[u8], place: usize, id: &[u8]) -> Vec<u8> {
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
    use crate::ids::SessionId;
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

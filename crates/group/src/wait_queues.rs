//! Who waits for the keys of a group, in the order in which they came.

use std::collections::{BTreeMap, VecDeque};

use keyspace::{Claims, DatabaseKey};
use state::Upkeep;
use stdx::slot::{Slot, slot_of};
use stdx::{Instant, UnixMillis};

use crate::ids::GroupId;
use crate::requests::Origin;

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
    pub queues: BTreeMap<DatabaseKey, WaitQueue>,
    /// Not later than the first moment at which there is something to claim for anybody.
    pub claims_from: Option<UnixMillis>,
}

#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    pub waiters: VecDeque<Waiter>,
    /// The waiter that is trying now; nobody else is woken until it has tried or left.
    pub awake: Option<Origin>,
    /// Something has happened to the key since that one was woken.
    pub is_touched: bool,
    /// For that reason the queue was started over, and has not come to its end since.
    has_begun_anew: bool,
}

#[derive(Debug)]
pub(crate) struct Waiter {
    pub origin: Origin,
    pub wants_end: bool,
    pub heard: Instant,
    pub claims: Option<Claims>,
    /// When there is something to claim, as far as was known when it last found nothing.
    pub claims_from: Option<UnixMillis>,
}

impl WaitQueue {
    pub fn place_of(&self, waiter: &Origin) -> Option<usize> {
        self.waiters.iter().position(|other| other.origin == *waiter)
    }

    /// Takes a waiter in, or hears that it still waits. Returns the waiter to wake.
    pub fn join(&mut self, waiter: Waiter, is_trying: bool, exists: bool) -> Option<Origin> {
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
    /// and what there is now belongs to the first in the queue: the queue starts over. That is done once until all have
    /// been woken, since what happens all the time may be of use to the last of them only. Returns the waiter to wake.
    pub(crate) fn advance_behind(&mut self, tried: &Origin, exists: bool) -> Option<Origin> {
        if self.is_touched && !self.has_begun_anew {
            (self.is_touched, self.has_begun_anew) = (false, true);
            return self.advance(0, exists);
        }
        let behind = self.place_of(tried).map_or(0, |place| place + 1);
        self.advance(behind, exists)
    }

    /// Wakes the first from this place on who may have something to find. Returns who.
    pub fn advance(&mut self, from: usize, exists: bool) -> Option<Origin> {
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
    pub fn clear(&mut self, keyspace: &mut Upkeep<'_>) {
        self.claims_from = None;
        for (database, key) in std::mem::take(&mut self.queues).into_keys() {
            keyspace.forget_key(database, &key);
        }
    }
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

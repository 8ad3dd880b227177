//! Waiters for keys of the group: they queue, are woken, and leave. See [`crate::wait_queues`].

use keyspace::{DatabaseKey, ValueRef};
use stdx::UnixMillis;

use crate::group::Group;
use crate::ids::Now;
use crate::limits;
use crate::output::{NodeView, Output};
use crate::requests::Origin;
use crate::wait_queues::{WaitQueueAct, WaitQueueNote, Waiter};

impl Group {
    /// Takes a waiter's word. The group must be [`Standing::Serving`].
    pub fn queue(&mut self, note: WaitQueueNote, now: Now, output: &mut impl Output) {
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
    pub fn claims_from(&self) -> Option<UnixMillis> {
        self.leader.wait_queues.claims_from
    }

    /// Wakes those that now have something to claim.
    pub fn wake_claimants(&mut self, now: Now, output: &mut impl Output) {
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
    pub(crate) fn wake_waiters(&mut self, output: &mut impl Output) {
        if self.state.keyspace().is_awaited_touched() {
            self.wake_touched(output);
        }
    }

    fn wake_touched(&mut self, output: &mut impl Output) {
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
    pub fn forget_silent_waiters(&mut self, now: Now, output: &mut impl Output) {
        let node = output.view().node();
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

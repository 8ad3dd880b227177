//! The end of a universe: nothing goes wrong any more. What is under way has to come to its end within bounds, nobody
//! may keep a lock, everybody is answered, and the replicas agree.

use std::collections::{BTreeMap, VecDeque};

use node::TransactionId;
use node::limits;
use stdx::Duration;

use super::{LIVENESS_MAX, Universe, What, say, shares_streams};
use crate::SECOND;
use crate::client::{LAST_READS, LAST_READS_OF_STREAMS};
use crate::invariants::Invariant;

/// A lock as seen from outside: group, term of its leader, owner, and whether the owner is prepared.
pub(super) type SeenLock = (u32, u64, TransactionId, bool);

/// When each lock was first seen since peace began.
pub(super) type SeenLocks = BTreeMap<SeenLock, u64>;

const fn ns(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// The longest that a leader lets somebody keep a lock who has prepared nothing, with what its clock may be slow by.
const LOCK_MAX: u64 = ns(group::limits::LOCK_PATIENCE) * 21 / 20 + SECOND;

/// The longest that something stays prepared when all groups are led.
const PREPARED_MAX: u64 = ns(group::limits::PREPARED_PATIENCE) + 3 * SECOND;

/// The longest that a leader keeps keys for a client that has watched them, with what its clock may be slow by.
const RESERVATION_MAX: u64 =
    ns(group::limits::RESERVATION_BEGIN_MAX) * 21 / 20 + ns(group::limits::RESERVATION_MAX) + SECOND;

/// The longest until nothing is under way any more when nobody asks for anything: who waits for the lock of a gateway
/// that is gone gets it, or starts over.
const SETTLED_MAX: u64 = LOCK_MAX + ns(group::limits::LOCK_WAIT_RENEWAL) + ns(limits::REQUEST_PATIENCE);

/// The longest that groups take that are to go: all their slots move, several at a time, and what is known of
/// transactions is forgotten.
const MERGES_MAX: u64 = 120 * SECOND;

/// Within this time after a group has gone, every node has heard of it and given up its replica.
const BURIED_MAX: u64 = 2 * ns(group::limits::GONE_PATIENCE);

/// Within this time after slots have moved, every node knows where they are.
const SLOTS_KNOWN_MAX: u64 = 20 * SECOND;

/// The longest that a lease is believed in which a clock at half speed measures.
pub(super) const UNSOUND_LEASE_MAX: u64 = 3 * SECOND;

impl Universe {
    pub(super) fn peace_begins(&mut self) {
        say!(self, "peace");
        self.peace_since = Some(self.now);
        self.is_calm = true;
        self.clients_run = false;
        self.faults.calm();
        self.network.cut.clear();
        self.network.slow.clear();
        self.end_lies();
        for machine in 0..self.machines.len() {
            self.machines[machine].sync_extra = 0;
            if !self.rates_were_sound {
                self.set_clock_rate(machine, self.machines[machine].drift);
            }
            let disk = &self.machines[machine].disk;
            disk.set_full(false);
            disk.set_syncs_fail(false);
            self.machines[machine].paused_until = self.now;
            if self.machines[machine].process.is_none() && self.machines[machine].has_joined {
                self.at(self.now, What::Boot { machine });
            }
        }
        self.perhaps_readdress();
        if self.plan.levels {
            self.upgrade_all();
        }
        let deadline = self.now + LIVENESS_MAX;
        // Those who still wait are answered, or give up by themselves.
        self.live_until(deadline, |this| this.clients.iter().all(|client| !client.is_waiting()));
        if !self.live_until(deadline, Self::has_finished_changes) {
            return self.fail_in_peace("and a node still leaves");
        }
        if !self.live_until(deadline + MERGES_MAX, Self::has_finished_merges) {
            return self.fail_in_peace("and a group that is to go has not gone");
        }
        let buried = self.now + BURIED_MAX;
        if !self.live_until(deadline + MERGES_MAX, Self::is_led) {
            return self.fail_in_peace("and a group has no leader");
        }
        if self.plan.levels && !self.live_until(deadline, Self::is_risen) {
            return self.fail_in_peace("and a group is not at the highest level");
        }
        if !self.rates_were_sound {
            // Leases from before are over.
            self.live_until(self.now + UNSOUND_LEASE_MAX, |_| false);
        }
        self.led_since = Some(self.now);
        if !self.live_until(self.now + SETTLED_MAX, Self::is_settled) {
            let reason = format!(
                "{} s after all groups were led something is still under way: {}",
                SETTLED_MAX / SECOND,
                self.standing()
            );
            return self.fail(Invariant::LocksBounded, reason);
        }
        // Everything is read through every node.
        for machine in self.members() {
            self.disconnect(0);
            let streams = if shares_streams(&self.plan) { LAST_READS_OF_STREAMS } else { 0..0 };
            self.clients[0].last_reads = Some(LAST_READS.chain(streams).collect());
            self.history.lists.push(BTreeMap::new());
            self.clients[0].node = machine;
            self.clients_run = true;
            self.at(self.now, What::ClientAsks { client: 0 });
            let is_done = |this: &Self| this.clients[0].last_reads.as_ref().is_some_and(VecDeque::is_empty);
            // What was asked of the cluster before the peace may only now be carried out.
            let is_gone = |this: &Self| {
                this.machines[machine].is_lost || (this.plan.changes && !this.members().contains(&machine))
            };
            if !self.live_until(deadline + SETTLED_MAX, |this| is_done(this) || is_gone(this)) {
                return self.fail_in_peace(&format!("and node {} does not answer", machine + 1));
            }
            if !is_done(self) {
                self.history.lists.pop();
            }
        }
        if !self.live_until(deadline + SETTLED_MAX, |this| this.crowded_zone().is_none()) && self.failure.is_none() {
            let reason = self.crowded_zone().unwrap_or_default();
            return self.fail(Invariant::Zoned, format!("{} s of peace, and {reason}", LIVENESS_MAX / SECOND));
        }
        let has_converged = self.live_until((deadline + SETTLED_MAX).max(buried), Self::has_converged);
        if has_converged && self.roster().is_some_and(|roster| roster.gone().next().is_some()) {
            self.probes.reach("a group was gone at the end");
        }
        if !has_converged && self.failure.is_none() && !self.may_lack_a_quorum() {
            let reason =
                format!("{} s of peace, and the replicas do not agree: {}", LIVENESS_MAX / SECOND, self.standing());
            return self.fail(Invariant::Converged, reason);
        }
        if !self.live_until(self.now + SLOTS_KNOWN_MAX, |this| this.lost_in_slots().is_none())
            && self.failure.is_none()
            && !self.may_lack_a_quorum()
        {
            let what = self.lost_in_slots().unwrap_or_default();
            let reason = format!("{} s after the replicas agreed, {what}", SLOTS_KNOWN_MAX / SECOND);
            self.fail(Invariant::Converged, reason);
        }
    }

    /// True if most of those who vote in a group are lost for good, one by damage and one overtaken, say, or if the
    /// only one that has the end of its log does not know yet that it votes. What is left of it answers nobody, as it
    /// must; an operator has to recover it.
    pub(super) fn may_lack_a_quorum(&self) -> bool {
        self.may_lack_most_voters() || self.has_its_end_at_a_learner()
    }

    fn may_lack_most_voters(&self) -> bool {
        let is_lost = |node: &&u64| self.machines.get(**node as usize - 1).is_some_and(|machine| machine.is_lost);
        let processes = self.machines.iter().filter_map(|machine| machine.process.as_ref());
        processes.flat_map(|process| &process.cores).flat_map(|host| host.core.groups()).any(|group| {
            let voters = &group.membership().voters;
            !voters.is_empty() && voters.iter().filter(is_lost).count() * 2 >= voters.len()
        })
    }

    fn fail_in_peace(&mut self, what: &str) {
        if self.may_lack_a_quorum() {
            return self.probes.reach("most of those who vote in a group were lost for good");
        }
        let reason = format!("{} s of peace, {what}: {}", LIVENESS_MAX / SECOND, self.standing());
        self.fail(Invariant::Lives, reason);
    }

    /// Looks how long locks are kept by the leaders of this core, once all groups are led. Their own account of that is
    /// not asked.
    pub(crate) fn watch_locks(&mut self, machine: usize, core: u16) {
        let Some(led_since) = self.led_since else { return };
        let process = self.machines[machine].process.as_ref().expect("it is alive");
        let mut failure = None;
        for group in process.cores[usize::from(core)].core.groups().filter(|group| group.is_leader()) {
            let (id, term) = (group.id().0, group.term());
            let reservations: Vec<u64> = group.reservations().collect();
            self.seen_reservations.retain(|(of, ..), _| *of != id || !reservations.is_empty());
            for number in reservations {
                let first = *self.seen_reservations.entry((id, term, number)).or_insert(self.now);
                let age = self.now - first.max(led_since);
                if age > RESERVATION_MAX {
                    failure = Some(format!("group {id} keeps keys for a client for {} ms", age / 1_000_000));
                }
            }
            let holders: Vec<(TransactionId, bool)> = group.lock_holders().collect();
            if holders.is_empty() && self.seen_locks.is_empty() {
                continue;
            }
            self.seen_locks.retain(|(of, _, transaction, is_prepared), _| {
                *of != id || holders.contains(&(*transaction, *is_prepared))
            });
            for (transaction, is_prepared) in holders {
                let first = *self.seen_locks.entry((id, term, transaction, is_prepared)).or_insert(self.now);
                let (kind, bound) = if is_prepared { ("prepared", PREPARED_MAX) } else { ("taken", LOCK_MAX) };
                let age = self.now - first.max(led_since);
                if age > bound {
                    let ms = 1_000_000;
                    failure = Some(format!(
                        "a lock of {transaction:?} on group {id} is {kind} for {} ms, which may be {}",
                        age / ms,
                        bound / ms
                    ));
                }
            }
        }
        if let Some(failure) = failure {
            self.fail(Invariant::LocksBounded, failure);
        }
    }
}

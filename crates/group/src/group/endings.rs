//! When it can be forgotten how transactions over groups have ended.
//!
//! A gateway says with each transaction that it ends up to which number all groups have ended theirs; what lies below
//! is forgotten. One that dies leaves what it had not come to. Nothing but the other participants can tell that
//! nobody will ask about that: one that still holds such a transaction prepared asks as soon as it has a leader,
//! which may be after days. So the leader asks them, and when each has said that it has ended the transaction, an
//! item of the log says that it can be forgotten. A participant that does not answer keeps it.
//!
//! A refusal is different. A participant that asks about a forgotten one is refused once more. A refusal is kept for
//! the transaction itself, in case it still comes to be prepared; but that takes the locks that it was granted here,
//! which only the leader that has granted them knows. When the leader has none, the transaction always comes too late.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use message::TransactionId;
use stdx::Instant;

use super::{Group, ReadWhat, Waiter};
use crate::defect::Defect;
use crate::ids::{GroupId, NodeId, Now, Room};
use crate::limits;
use crate::output::{NodeView, Output};
use crate::requests::ParticipantStatus;

/// The level at which participants are asked, and the log takes the item.
const SINCE: stdx::Level = stdx::Level(2);

/// What a leader knows of transactions that have ended in its group.
#[derive(Debug, Default)]
pub(super) struct Endings {
    looked: Option<Instant>,
    /// Behind which the next look begins.
    looked_to: Option<TransactionId>,
    known: BTreeMap<TransactionId, Ending>,
}

#[derive(Debug)]
struct Ending {
    /// Since when this leader knows that it has ended here.
    since: Instant,
    /// Other participants that have ended it.
    ended_in: BTreeSet<u32>,
    /// The log says that it can be forgotten, or soon will.
    is_logged: bool,
}

impl Group {
    /// Asks about what has ended here some time ago, and lets go of what nobody will ask about.
    pub(super) fn look_after_endings(&mut self, now: Now, output: &mut impl Output) {
        let endings = &mut self.leader.endings;
        let is_due = endings.looked.is_none_or(|looked| now.instant.since(looked) >= limits::ENDINGS_INTERVAL);
        if !is_due || output.view().levels().in_force < SINCE || self.state.level() < SINCE {
            return;
        }
        endings.looked = Some(now.instant);
        // A part of them each time: where a participant has no leader there may be very many.
        let behind = endings.looked_to.take();
        let (mut forgotten, mut asked_count, mut looked_count) = (Vec::new(), 0, 0);
        for (transaction, is_committed, participants) in self.state.outcomes_behind(behind) {
            if looked_count >= limits::ENDINGS_LOOKED_AT_MAX || asked_count >= limits::ENDINGS_ASKED_MAX {
                break;
            }
            looked_count += 1;
            endings.looked_to = Some(transaction);
            let new = || Ending { since: now.instant, ended_in: BTreeSet::new(), is_logged: false };
            let ending = endings.known.entry(transaction).or_insert_with(new);
            let age = now.instant.since(ending.since);
            if ending.is_logged {
                continue;
            }
            let is_over = if !is_committed {
                age >= limits::REFUSAL_PATIENCE && !self.leader.locks.is_held_by(transaction)
            } else if self.defect == Some(Defect::ForgottenOutcome) {
                true
            } else if participants.is_empty() || age < limits::COMMIT_PATIENCE {
                false // it is from a time when participants were not kept, or its gateway will see to it
            } else {
                let is_open = |group: &&u32| **group != self.id.0 && !ending.ended_in.contains(*group);
                let open: Vec<u32> = participants.iter().filter(is_open).copied().collect();
                asked_count += open.len();
                open.iter().for_each(|group| output.ask_whether_ended(transaction, self.id, GroupId(*group)));
                open.is_empty()
            };
            if is_over {
                forgotten.push(transaction);
            }
        }
        if looked_count < limits::ENDINGS_LOOKED_AT_MAX && asked_count < limits::ENDINGS_ASKED_MAX {
            endings.looked_to = None;
        }
        // What is known of others that the log has ended meanwhile goes with them.
        let first = behind.map_or(Bound::Unbounded, Bound::Excluded);
        let last = endings.looked_to.map_or(Bound::Unbounded, Bound::Included);
        let looked_at = endings.known.range((first, last)).map(|(transaction, _)| *transaction);
        let gone: Vec<_> = looked_at.filter(|transaction| self.state.outcome(*transaction).is_none()).collect();
        gone.iter().for_each(|transaction| _ = endings.known.remove(transaction));
        if forgotten.is_empty() || *output.view().room() != Room::Enough {
            return;
        }
        for transaction in &forgotten {
            if let Some(ending) = endings.known.get_mut(transaction) {
                ending.is_logged = true;
            }
        }
        self.leader.builder.forget(&forgotten);
        self.leader.waiters.push(Waiter::Silent);
    }

    /// Another participant has ended a transaction.
    pub(super) fn note_ending(&mut self, transaction: TransactionId, from: GroupId) {
        if let Some(ending) = self.leader.endings.known.get_mut(&transaction) {
            ending.ended_in.insert(from.0);
        }
    }

    /// A participant that has committed a transaction asks whether this one has ended it, too. It is told as soon as
    /// it is sure that this replica leads: under a lease, or when a quorum has confirmed it. A leader that has
    /// failed to hand over has no lease for the rest of its term.
    pub fn asked_for_ending(
        &mut self,
        transaction: TransactionId,
        (asker, node): (GroupId, NodeId),
        now: Now,
        output: &mut impl Output,
    ) {
        self.read_for_node(node, ReadWhat::Ended(transaction, asker), now, output);
    }

    /// Tells a participant whether this one has ended a transaction. There is no answer until it has; the asker asks
    /// again.
    ///
    /// What was committed had been prepared here before. All that was committed when the question came is applied, so
    /// if there is nothing prepared, it has ended.
    pub(super) fn tell_ending(&self, transaction: TransactionId, asker: (GroupId, NodeId), output: &mut impl Output) {
        if !self.state.prepared().contains_key(&transaction) {
            output.tell_status(transaction, asker, self.id, ParticipantStatus::Ended);
        }
    }

    /// How many transactions there are with an end that the group keeps.
    pub fn outcome_count(&self) -> usize {
        self.state.outcome_count()
    }
}

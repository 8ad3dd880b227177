//! All groups as they were at one moment.
//!
//! Moments order across groups: what follows from an entry has no earlier moment than it, in whatever group. So the
//! entries up to a moment, of each group, leave nothing out that one of them follows from. What is left to do is to end
//! the transactions over groups that are prepared at that moment and not resolved. Such a transaction is *done* if all
//! its participants had prepared it by then: it could be told to its client, and the locks on its keys let nobody see
//! anything else. Otherwise none of its participants has resolved it by then, since that follows from the last of the
//! preparations, and nobody has seen any of it: it never was.
//!
//! See decision 0027.

use bytes::Bytes;
use keyspace::Moment;
use message::TransactionId;
use message::entry::{self, Builder};
use stdx::UnixMillis;
use stdx::log::{Entry, EntryKind};

use crate::{Ignored, State};

/// What became of the transactions that were prepared at a cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// All participants had prepared them: they are done.
    pub committed: Vec<TransactionId>,
    /// Some had not: they never were.
    pub aborted: Vec<TransactionId>,
}

/// The moment of an entry; none if it is a change of membership or marks a new leader.
pub fn moment_of_entry(entry: &Entry) -> Option<UnixMillis> {
    if entry.kind == EntryKind::Membership {
        return None;
    }
    entry::open(&entry.data).map(|(moment, _)| moment.unix)
}

/// Ends the transactions that are prepared in any of these states, which are those of all groups at this moment, in the
/// order of their numbers.
///
/// # Errors
/// If a transaction has been done in one group that another neither holds nor has done: then the states are not those
/// of one moment.
pub fn settle(states: &mut [State], moment: UnixMillis) -> Result<Settled, String> {
    let mut open: Vec<(TransactionId, Vec<u32>)> = states
        .iter()
        .flat_map(|state| state.prepared())
        .map(|(transaction, prepared)| (*transaction, prepared.participants().to_vec()))
        .collect();
    open.sort();
    open.dedup();
    let mut settled = Settled::default();
    for (transaction, participants) in open {
        let fate = |group: &u32| {
            let state = states.get(*group as usize)?;
            if state.prepared().contains_key(&transaction) { Some(true) } else { state.outcome(transaction) }
        };
        let fates: Vec<Option<bool>> = participants.iter().map(fate).collect();
        let is_done = fates.iter().all(|fate| *fate == Some(true));
        let was_done =
            |group: &u32| states.get(*group as usize).is_some_and(|state| state.outcome(transaction) == Some(true));
        if !is_done && let Some(group) = participants.iter().find(|group| was_done(group)) {
            return Err(format!(
                "group {group} has carried out a transaction that another of its groups has not even prepared: these are \
                 not the groups at one moment"
            ));
        }
        for state in states.iter_mut().filter(|state| state.prepared().contains_key(&transaction)) {
            add(state, state.moment().unix, |builder| builder.resolve(transaction, is_done, 0));
        }
        if is_done { &mut settled.committed } else { &mut settled.aborted }.push(transaction);
    }
    // What has expired by then has expired.
    states.iter_mut().for_each(|state| add(state, moment, Builder::tick));
    Ok(settled)
}

/// Applies an entry that no log has.
fn add(state: &mut State, unix: UnixMillis, fill: impl FnOnce(&mut Builder)) {
    let mut builder = Builder::with_capacity(0);
    fill(&mut builder);
    let data: Bytes = builder.finish(Moment { unix, seed: 0 });
    let (index, term) = (state.applied().index + 1, state.applied().term);
    state.apply(&Entry { term, index, kind: EntryKind::Normal, data }, &mut Ignored);
}

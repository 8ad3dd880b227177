//! Answers that wait until what they stand for has been told to clients that cache.
//!
//! Once a change has been answered, every later reply to a client of the same node comes behind the news of it. The
//! client may be connected to another core than the one that holds the key: so that core says when it has the news in
//! its sessions' output, and only then does the answer leave. One round for all answers of a turn; none for changes of
//! which nobody had to be told.
//!
//! ```text
//!   core of the key        cores of the readers
//!     change, news ──────▶ in the readers' output
//!     Hear ──────────────▶ (and on to cores that readers have named, one after the other)
//!     answer      ◀─────── Heard
//! ```
//!
//! In a cluster the reply may come from another node before the replica here has applied the change. Then the gateway
//! keeps it until that replica says `Told`; if it does not in time, all caches of the node are emptied instead.

use std::collections::{BTreeMap, BTreeSet};

use group::ids::CoreId;
use group::proof::Committed;
use group::requests::{Claim, Origin};

/// An answer that waits.
#[derive(Debug)]
pub(crate) enum Withheld {
    /// A client's reply.
    Reply { origin: Origin, proof: Committed, bytes: Vec<u8> },
    /// The answer to a step of a transaction.
    Answer { origin: Origin, proof: Committed, bytes: Vec<u8> },
    /// The word to a gateway of this node that the replica here has applied its request.
    Told { gateway: CoreId, claim: Claim },
}

/// Answers of one turn.
#[derive(Debug)]
struct Round {
    awaited_count: usize,
    answers: Vec<Withheld>,
}

/// What waits on one core.
#[derive(Debug, Default)]
pub(crate) struct InvalidationBarrier {
    /// The answer to the change that is being told.
    pending: Option<Withheld>,
    /// Cores that have been told of it.
    told: BTreeSet<CoreId>,
    /// Answers of this turn that wait, and the cores they wait for.
    answers: Vec<Withheld>,
    awaited: BTreeSet<CoreId>,
    rounds: BTreeMap<u64, Round>,
    next_round: u64,
}

impl InvalidationBarrier {
    /// A core has been told of the change at hand.
    pub(crate) fn note(&mut self, core: CoreId) {
        self.told.insert(core);
    }

    /// This is the answer to the change at hand.
    pub(crate) fn put(&mut self, answer: Withheld) {
        debug_assert!(self.pending.is_none(), "an answer was left behind");
        self.pending = Some(answer);
    }

    /// All have been told of the change at hand. Its answer, unless it has to wait.
    #[inline]
    pub(crate) fn settle(&mut self) -> Option<Withheld> {
        if self.told.is_empty() {
            return self.pending.take();
        }
        let told = std::mem::take(&mut self.told);
        if let Some(answer) = self.pending.take() {
            self.awaited.extend(told);
            self.answers.push(answer);
        }
        None
    }

    /// The end of a turn: the number of a round, and the cores that must say that they have heard.
    pub(crate) fn begin_round(&mut self) -> Option<(u64, BTreeSet<CoreId>)> {
        if self.answers.is_empty() {
            return None;
        }
        let (number, awaited) = (self.next_round, std::mem::take(&mut self.awaited));
        self.next_round += 1;
        let round = Round { awaited_count: awaited.len(), answers: std::mem::take(&mut self.answers) };
        self.rounds.insert(number, round);
        Some((number, awaited))
    }

    /// A core has heard. The answers that nothing holds any more.
    pub(crate) fn heard(&mut self, number: u64) -> Vec<Withheld> {
        let Some(round) = self.rounds.get_mut(&number) else { return Vec::new() };
        round.awaited_count -= 1;
        if round.awaited_count > 0 {
            return Vec::new();
        }
        self.rounds.remove(&number).map(|round| round.answers).unwrap_or_default()
    }
}

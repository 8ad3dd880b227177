//! Is there an order in which one register could have answered as it did?
//!
//! The algorithm is Wing and Gong's search ("Testing and verifying concurrent objects", 1993) with Lowe's memory of
//! configurations already tried ("Testing for linearizability", 2017): take any operation that no finished, untaken one
//! wholly precedes, try its effect, and go on; a pair of (operations taken, value) that failed once fails always.
//!
//! An operation whose outcome is not known may have taken effect at any time after its call, or never. Operations of
//! one session that were answered take effect in the order in which they were asked, although they overlap in time: a
//! pipeline is not a crowd.

use foldhash::fast::FixedState;
use hashbrown::HashSet;

/// What the register holds: all values are integers, which suits SET and INCR alike. `None` is an absent key.
pub type Value = Option<i64>;

/// What was asked of the register, and what the answer said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// GET.
    Get {
        /// What it answered.
        found: Value,
    },
    /// SET.
    Set {
        /// The new value.
        to: i64,
    },
    /// SET … GET.
    Swap {
        /// The new value.
        to: i64,
        /// What it answered, if it did.
        found: Option<Value>,
    },
    /// SET … NX: sets only an absent key.
    SetIfAbsent {
        /// The new value.
        to: i64,
        /// Whether it said that it did, if it said anything.
        done: Option<bool>,
    },
    /// INCRBY.
    Add {
        /// How much.
        by: i64,
        /// What it answered, if it did.
        sum: Option<i64>,
    },
    /// DEL.
    Remove {
        /// Whether it said that there was something, if it said anything.
        found: Option<bool>,
    },
}

/// One operation on one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When it was asked, in any unit that grows.
    pub called: u64,
    /// When the answer came; `None` if the outcome is not known.
    pub answered: Option<u64>,
    /// The session that asked, whose operations stand in the history in the order of its requests; 0 for one without
    /// order.
    pub session: u64,
    /// What and how.
    pub operation: Operation,
}

impl Operation {
    /// The same, if what it answered is not known. `None` if it then says nothing.
    pub fn without_answer(self) -> Option<Self> {
        Some(match self {
            Self::Get { .. } => return None,
            Self::Set { to } => Self::Set { to },
            Self::Swap { to, .. } => Self::Swap { to, found: None },
            Self::SetIfAbsent { to, .. } => Self::SetIfAbsent { to, done: None },
            Self::Add { by, .. } => Self::Add { by, sum: None },
            Self::Remove { .. } => Self::Remove { found: None },
        })
    }

    /// The value after the operation, if the answer fits.
    fn apply(self, value: Value) -> Option<Value> {
        match self {
            Self::Get { found } => (found == value).then_some(value),
            Self::Set { to } => Some(Some(to)),
            Self::Swap { to, found } => found.is_none_or(|found| found == value).then_some(Some(to)),
            Self::SetIfAbsent { to, done } => {
                done.is_none_or(|done| done == value.is_none()).then_some(value.or(Some(to)))
            }
            Self::Add { by, sum } => {
                let after = value.unwrap_or(0).wrapping_add(by);
                sum.is_none_or(|sum| sum == after).then_some(Some(after))
            }
            Self::Remove { found } => found.is_none_or(|found| found == value.is_some()).then_some(None),
        }
    }
}

/// What the search found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is such an order.
    Linearizable,
    /// There is none.
    Broken,
    /// The search was given up after its share of steps.
    Undecided,
}

/// Steps after which the search is given up.
const STEPS_MAX: usize = 2_000_000;

type Taken = Vec<u64>;

/// Judges the history of one register that held one of `initial` at first.
pub fn check(initial: &[Value], history: &[Record]) -> Verdict {
    let mut undecided = false;
    for value in initial {
        match Search::new(history).run(*value) {
            Verdict::Linearizable => return Verdict::Linearizable,
            Verdict::Undecided => undecided = true,
            Verdict::Broken => {}
        }
    }
    if undecided { Verdict::Undecided } else { Verdict::Broken }
}

struct Search {
    /// In order of call; operations that could not have had an effect anybody saw are left out.
    records: Vec<Record>,
    taken: Taken,
    /// Finished operations not yet taken.
    open_count: usize,
    tried: HashSet<(Taken, Value), FixedState>,
    steps: usize,
}

impl Search {
    fn new(history: &[Record]) -> Self {
        let mut records: Vec<Record> = history
            .iter()
            .filter(|record| record.answered.is_some() || !matches!(record.operation, Operation::Get { .. }))
            .copied()
            .collect();
        records.sort_by_key(|record| record.called);
        let open_count = records.iter().filter(|record| record.answered.is_some()).count();
        let taken = vec![0; records.len().div_ceil(64)];
        Self { records, taken, open_count, tried: HashSet::default(), steps: 0 }
    }

    fn is_taken(&self, at: usize) -> bool {
        self.taken[at / 64] >> (at % 64) & 1 == 1
    }

    /// Operations that may come next: called before any open one was answered. Finished ones first: they must be taken
    /// some time, the others need not.
    fn candidates(&self) -> Vec<usize> {
        let mut horizon = u64::MAX;
        let mut open = Vec::new();
        for (at, record) in self.records.iter().enumerate() {
            if record.called > horizon {
                break;
            }
            if !self.is_taken(at) {
                horizon = horizon.min(record.answered.unwrap_or(u64::MAX));
                open.push(at);
            }
        }
        open.retain(|at| self.records[*at].called <= horizon);
        let all = open.clone();
        open.retain(|at| !all.iter().take_while(|before| *before < at).any(|before| self.is_before(*before, *at)));
        open.sort_by_key(|at| self.records[*at].answered.unwrap_or(u64::MAX));
        open
    }

    /// True if the session that asked both was answered what it asked first.
    fn is_before(&self, first: usize, second: usize) -> bool {
        let (first, second) = (&self.records[first], &self.records[second]);
        first.session != 0 && first.session == second.session && first.answered.is_some()
    }

    fn run(mut self, initial: Value) -> Verdict {
        let mut value = initial;
        // (candidates left, value before, operation taken)
        let mut path: Vec<(std::vec::IntoIter<usize>, Value, Option<usize>)> =
            vec![(self.candidates().into_iter(), value, None)];
        while self.open_count > 0 {
            self.steps += 1;
            if self.steps > STEPS_MAX {
                return Verdict::Undecided;
            }
            let Some((candidates, before, _)) = path.last_mut() else { return Verdict::Broken };
            let before = *before;
            let Some(at) = candidates.next() else {
                let (_, _, undone) = path.pop().expect("it was just seen");
                if let Some(at) = undone {
                    self.taken[at / 64] &= !(1 << (at % 64));
                    self.open_count += usize::from(self.records[at].answered.is_some());
                }
                continue;
            };
            let Some(after) = self.records[at].operation.apply(before) else { continue };
            self.taken[at / 64] |= 1 << (at % 64);
            if !self.tried.insert((self.taken.clone(), after)) {
                self.taken[at / 64] &= !(1 << (at % 64));
                continue;
            }
            self.open_count -= usize::from(self.records[at].answered.is_some());
            value = after;
            path.push((self.candidates().into_iter(), value, Some(at)));
        }
        Verdict::Linearizable
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::Prng;

    fn record(called: u64, answered: u64, operation: Operation) -> Record {
        Record { called, answered: (answered > 0).then_some(answered), session: 0, operation }
    }

    #[test]
    fn a_session_that_sends_ahead_is_answered_in_its_order() {
        let of = |session, operation| Record { called: 1, answered: Some(9), session, operation };
        let late = Operation::Get { found: Some(1) };
        let history = |reader| [of(reader, late), of(7, Operation::Add { by: 1, sum: Some(1) })];
        assert_eq!(check(&[None], &history(8)), Verdict::Linearizable, "another session's");
        assert_eq!(check(&[None], &history(7)), Verdict::Broken, "it saw what it had not asked for yet");
        let twice = [of(7, late), of(7, Operation::Get { found: None }), of(6, Operation::Set { to: 1 })];
        assert_eq!(check(&[None], &twice), Verdict::Broken, "it went back in time");
        let unanswered =
            [Record { answered: None, ..of(7, Operation::Set { to: 2 }) }, of(7, Operation::Set { to: 1 })];
        let read = Record { called: 10, ..of(8, Operation::Get { found: Some(2) }) };
        assert_eq!(
            check(&[None], &[unanswered[0], unanswered[1], Record { answered: Some(12), ..read }]),
            Verdict::Linearizable
        );
    }

    /// Times are (call, answer); an answer of 0 never came.
    #[test]
    fn small_histories_are_judged_rightly() {
        use Operation::{Add, Get, Remove, Set, SetIfAbsent, Swap};
        let table: &[(&str, &[Record], Verdict)] = &[
            ("nothing", &[], Verdict::Linearizable),
            ("an absent key", &[record(1, 2, Get { found: None })], Verdict::Linearizable),
            ("a value from nowhere", &[record(1, 2, Get { found: Some(1) })], Verdict::Broken),
            (
                "a write is read",
                &[record(1, 2, Set { to: 1 }), record(3, 4, Get { found: Some(1) })],
                Verdict::Linearizable,
            ),
            ("a lost write", &[record(1, 2, Set { to: 1 }), record(3, 4, Get { found: None })], Verdict::Broken),
            (
                "a read beside a write may see either",
                &[record(1, 5, Set { to: 1 }), record(2, 3, Get { found: None }), record(4, 6, Get { found: Some(1) })],
                Verdict::Linearizable,
            ),
            (
                "reads beside a write may not go back",
                &[record(1, 9, Set { to: 1 }), record(2, 3, Get { found: Some(1) }), record(4, 5, Get { found: None })],
                Verdict::Broken,
            ),
            (
                "an unknown outcome may show late",
                &[record(1, 0, Set { to: 1 }), record(2, 3, Get { found: None }), record(4, 5, Get { found: Some(1) })],
                Verdict::Linearizable,
            ),
            (
                "an unknown outcome takes effect once",
                &[
                    record(1, 0, Set { to: 1 }),
                    record(2, 3, Get { found: Some(1) }),
                    record(4, 5, Set { to: 2 }),
                    record(6, 7, Get { found: Some(1) }),
                ],
                Verdict::Broken,
            ),
            (
                "sums show a doubled increment",
                &[record(1, 0, Add { by: 1, sum: None }), record(2, 3, Add { by: 1, sum: Some(3) })],
                Verdict::Broken,
            ),
            (
                "swaps chain",
                &[
                    record(1, 9, Swap { to: 1, found: Some(Some(2)) }),
                    record(1, 9, Swap { to: 2, found: Some(None) }),
                    record(10, 11, Get { found: Some(1) }),
                ],
                Verdict::Linearizable,
            ),
            (
                "two cannot both be first",
                &[
                    record(1, 9, SetIfAbsent { to: 1, done: Some(true) }),
                    record(1, 9, SetIfAbsent { to: 2, done: Some(true) }),
                ],
                Verdict::Broken,
            ),
            (
                "unless a removal came between",
                &[
                    record(1, 9, SetIfAbsent { to: 1, done: Some(true) }),
                    record(1, 9, SetIfAbsent { to: 2, done: Some(true) }),
                    record(1, 9, Remove { found: Some(true) }),
                ],
                Verdict::Linearizable,
            ),
        ];
        for (name, history, expected) in table {
            assert_eq!(check(&[None], history), *expected, "{name}");
        }
    }

    /// A naive twin: a register that is stepped one operation at a time inside each operation's span is linearizable by
    /// construction; the same history with one answer changed to a value never written is not.
    #[test]
    fn histories_of_a_true_register_pass_and_forged_ones_do_not() {
        for seed in 0..200 {
            let mut prng = Prng::new(seed);
            let mut value: Value = None;
            let mut history = Vec::new();
            for step in 0..60_u64 {
                let at = 10 * step + 100;
                let operation = match prng.below(4) {
                    0 => Operation::Set { to: step as i64 },
                    1 => Operation::Swap { to: step as i64, found: Some(value) },
                    2 => Operation::Add { by: 7, sum: Some(value.unwrap_or(0) + 7) },
                    _ => Operation::Get { found: value },
                };
                value = operation.apply(value).expect("it answers truly");
                let answered = (!prng.chance(1, 10)).then(|| at + prng.below(60));
                history.push(Record { called: at - prng.below(60), answered, session: 0, operation });
            }
            assert_eq!(check(&[None], &history), Verdict::Linearizable, "seed {seed}");
            let forged = history.iter_mut().rev().find(|record| record.answered.is_some()).expect("most were answered");
            forged.operation = Operation::Get { found: Some(-1) };
            assert_eq!(check(&[None], &history), Verdict::Broken, "seed {seed}");
        }
    }
}

//! Is there an order in which one register could have answered as it did?
//!
//! The algorithm is Wing and Gong's search ("Testing and verifying concurrent objects", 1993) with Lowe's memory of
//! configurations already tried ("Testing for linearizability", 2017): take any operation that no finished, untaken one
//! wholly precedes, try its effect, and go on; a pair of (operations taken, value) that failed once fails always.
//!
//! An operation with an unknown outcome may have taken effect at any time after its call, or never. Operations of one
//! session that were answered take effect in the order in which they were asked, although they overlap in time: a
//! pipeline is not a crowd.
//!
//! Crashes leave many operations of unknown outcome, and each doubles what there is to try. So as few as possible are
//! taken, and no two that amount to the same:
//!
//! * One with an unknown outcome is taken only if it changes the value, and only for somebody who looks at it: not
//!   before a blind write, which would hide it.
//! * Of several that do the same, the first asked for is taken.
//! * Values that nobody ever found are all one value.

use std::collections::BTreeSet;

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
    /// The session that asked. Its operations stand in the history in the order of its requests; 0 for one without
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
    /// The search was given up when the budget was spent.
    Undecided,
}

/// Steps after which a search is given up that nothing else limits.
pub const STEPS_MAX: u64 = 2_000_000;

/// Stands for all values that nobody ever found.
const UNSEEN: i64 = i64::MIN / 2;

/// Whatever is added to [`UNSEEN`] stays below.
const UNSEEN_MAX: i64 = i64::MIN / 4;

/// Judges the history of one register that held one of `initial` at first. What the search takes goes off the budget.
pub fn check(initial: &[Value], history: &[Record], budget: &mut u64) -> Verdict {
    let sight = Sight::new(history);
    let mut search = Search::new(history, &sight);
    let initial: BTreeSet<Value> = initial.iter().map(|value| sight.blur(*value)).collect();
    for value in initial {
        match search.run(value, budget) {
            Verdict::Broken => {}
            verdict => return verdict,
        }
    }
    Verdict::Broken
}

/// Which values anybody found.
struct Sight {
    found: BTreeSet<i64>,
    /// What increments may add to a value before it is found; `None` if they may take away.
    added_max: Option<i64>,
}

impl Sight {
    fn new(history: &[Record]) -> Self {
        let found = history.iter().filter_map(|record| match record.operation {
            Operation::Get { found } if record.answered.is_some() => found,
            Operation::Swap { found: Some(found), .. } => found,
            Operation::Add { sum: Some(sum), .. } => Some(sum),
            _ => None,
        });
        let mut added = history.iter().filter_map(|record| match record.operation {
            Operation::Add { by, .. } => Some(by),
            _ => None,
        });
        let added_max = added.try_fold(0_i64, |sum, by| if by < 0 { None } else { sum.checked_add(by) });
        Self { found: found.collect(), added_max }
    }

    /// The value, or what stands for those that nobody found.
    fn blur(&self, value: Value) -> Value {
        let (Some(number), Some(added_max)) = (value, self.added_max) else { return value };
        let is_found = self.found.range(number..=number.saturating_add(added_max)).next().is_some();
        Some(if is_found { number } else { UNSEEN })
    }

    fn blur_operation(&self, operation: Operation) -> Operation {
        let blur = |to| self.blur(Some(to)).expect("a value");
        match operation {
            Operation::Set { to } | Operation::Swap { to, found: None } => Operation::Set { to: blur(to) },
            Operation::Swap { to, found } => Operation::Swap { to: blur(to), found },
            Operation::SetIfAbsent { to, done } => Operation::SetIfAbsent { to: blur(to), done },
            other => other,
        }
    }
}

impl Operation {
    /// True if the effect does not depend on the value before, and nothing is told of it.
    fn is_blind(self) -> bool {
        matches!(self, Self::Set { .. } | Self::Swap { found: None, .. } | Self::Remove { found: None })
    }
}

/// One of the two kinds of operations, by place.
#[derive(Clone, Copy, Debug)]
enum Candidate {
    /// It was answered: it must be taken some time.
    Sure(usize),
    /// Nobody knows.
    Doubtful(usize),
}

/// A record with its place among all, by when they were called.
type Placed = (usize, Record);

struct Search {
    /// Answered ones, in order of call, and those that are taken.
    sure: Vec<Placed>,
    taken: Vec<u64>,
    /// The first that is not taken.
    first: usize,
    /// The others; those that could not have had an effect anybody saw are left out.
    doubtful: Vec<Placed>,
    used: Vec<u64>,
    tried: HashSet<Box<[u64]>, FixedState>,
}

/// A step on the way: what may come next, and what was before.
struct Frame {
    candidates: std::vec::IntoIter<Candidate>,
    value: Value,
    taken: Option<Candidate>,
}

fn has_bit(bits: &[u64], at: usize) -> bool {
    bits[at / 64] >> (at % 64) & 1 == 1
}

fn flip_bit(bits: &mut [u64], at: usize) {
    bits[at / 64] ^= 1 << (at % 64);
}

impl Search {
    fn new(history: &[Record], sight: &Sight) -> Self {
        let mut records: Vec<Record> = history
            .iter()
            .filter(|record| record.answered.is_some() || !matches!(record.operation, Operation::Get { .. }))
            .map(|record| Record { operation: sight.blur_operation(record.operation), ..*record })
            .collect();
        records.sort_by_key(|record| record.called);
        let placed = records.into_iter().enumerate();
        let (sure, doubtful): (Vec<_>, Vec<_>) = placed.partition(|(_, record)| record.answered.is_some());
        let bits = |count: usize| vec![0; count.div_ceil(64)];
        let (taken, used) = (bits(sure.len()), bits(doubtful.len()));
        Self { sure, taken, first: 0, doubtful, used, tried: HashSet::default() }
    }

    /// Operations that may come next: called before any sure one that is not taken was answered. Sure ones come first:
    /// they must be taken some time, the others need not. Behind a doubtful one comes one that looks at what it did.
    fn candidates(&self, is_doubtful: bool) -> Vec<Candidate> {
        let mut horizon = u64::MAX;
        let mut open = Vec::new();
        for (at, (_, record)) in self.sure.iter().enumerate().skip(self.first) {
            if record.called > horizon {
                break;
            }
            if !has_bit(&self.taken, at) {
                horizon = horizon.min(record.answered.expect("it is sure"));
                open.push(at);
            }
        }
        open.retain(|at| self.sure[*at].1.called <= horizon);
        // What a session asked first, and was answered, comes first.
        let waits = |(place, record): &Placed| {
            let mut before = open.iter().map(|at| &self.sure[*at]).take_while(|(other, _)| other < place);
            record.session != 0 && before.any(|(_, other)| other.session == record.session)
        };
        let may_follow = |record: &Record| !is_doubtful || !record.operation.is_blind();
        let mut sure: Vec<usize> =
            open.iter().copied().filter(|at| !waits(&self.sure[*at]) && may_follow(&self.sure[*at].1)).collect();
        sure.sort_by_key(|at| self.sure[*at].1.answered);
        let mut candidates: Vec<Candidate> = sure.into_iter().map(Candidate::Sure).collect();
        let mut kinds: Vec<Operation> = Vec::new();
        for (at, placed) in self.doubtful.iter().enumerate() {
            let record = &placed.1;
            if record.called > horizon {
                break;
            }
            if !has_bit(&self.used, at) && may_follow(record) && !kinds.contains(&record.operation) && !waits(placed) {
                kinds.push(record.operation);
                candidates.push(Candidate::Doubtful(at));
            }
        }
        candidates
    }

    fn flip(&mut self, candidate: Candidate) {
        match candidate {
            Candidate::Doubtful(at) => flip_bit(&mut self.used, at),
            Candidate::Sure(at) => {
                flip_bit(&mut self.taken, at);
                if has_bit(&self.taken, at) {
                    while self.first < self.sure.len() && has_bit(&self.taken, self.first) {
                        self.first += 1;
                    }
                } else {
                    self.first = self.first.min(at);
                }
            }
        }
    }

    /// Where the search is, in few words: all that decides how it goes on.
    fn place(&self, value: Value, is_doubtful: bool) -> Box<[u64]> {
        let flags = u64::from(value.is_some()) | u64::from(is_doubtful) << 1;
        let mut place = vec![self.first as u64, flags, value.unwrap_or(0).cast_unsigned()];
        place.extend(&self.used);
        place.extend(&self.taken[(self.first / 64).min(self.taken.len())..]);
        let end = place.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        place.truncate(end.max(3 + self.used.len()));
        place.into_boxed_slice()
    }

    fn run(&mut self, initial: Value, budget: &mut u64) -> Verdict {
        let begin = Frame { candidates: self.candidates(false).into_iter(), value: initial, taken: None };
        let mut path = vec![begin];
        while self.first < self.sure.len() {
            if *budget == 0 {
                return Verdict::Undecided;
            }
            *budget -= 1;
            let Some(frame) = path.last_mut() else { return Verdict::Broken };
            let before = frame.value;
            let Some(candidate) = frame.candidates.next() else {
                let frame = path.pop().expect("it was just seen");
                if let Some(candidate) = frame.taken {
                    self.flip(candidate);
                }
                continue;
            };
            let (operation, is_doubtful) = match candidate {
                Candidate::Sure(at) => (self.sure[at].1.operation, false),
                Candidate::Doubtful(at) => (self.doubtful[at].1.operation, true),
            };
            let Some(value) = operation.apply(before) else { continue };
            let value = value.map(|number| if number < UNSEEN_MAX { UNSEEN } else { number });
            if is_doubtful && value == before {
                continue;
            }
            self.flip(candidate);
            if !self.tried.insert(self.place(value, is_doubtful)) {
                self.flip(candidate);
                continue;
            }
            let candidates = self.candidates(is_doubtful).into_iter();
            path.push(Frame { candidates, value, taken: Some(candidate) });
        }
        Verdict::Linearizable
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::Prng;

    fn judge(initial: &[Value], history: &[Record]) -> Verdict {
        let mut budget = STEPS_MAX;
        check(initial, history, &mut budget)
    }

    fn record(called: u64, answered: u64, operation: Operation) -> Record {
        Record { called, answered: (answered > 0).then_some(answered), session: 0, operation }
    }

    #[test]
    fn a_session_that_sends_ahead_is_answered_in_its_order() {
        let of = |session, operation| Record { called: 1, answered: Some(9), session, operation };
        let late = Operation::Get { found: Some(1) };
        let history = |reader| [of(reader, late), of(7, Operation::Add { by: 1, sum: Some(1) })];
        assert_eq!(judge(&[None], &history(8)), Verdict::Linearizable, "another session's");
        assert_eq!(judge(&[None], &history(7)), Verdict::Broken, "it saw what it had not asked for yet");
        let twice = [of(7, late), of(7, Operation::Get { found: None }), of(6, Operation::Set { to: 1 })];
        assert_eq!(judge(&[None], &twice), Verdict::Broken, "it went back in time");
        let unanswered =
            [Record { answered: None, ..of(7, Operation::Set { to: 2 }) }, of(7, Operation::Set { to: 1 })];
        let read = Record { called: 10, ..of(8, Operation::Get { found: Some(2) }) };
        assert_eq!(
            judge(&[None], &[unanswered[0], unanswered[1], Record { answered: Some(12), ..read }]),
            Verdict::Linearizable
        );
    }

    /// Many operations of unknown outcome, as a crash leaves them, and a value at the end that none of them explains.
    #[test]
    fn what_crashes_leave_is_decided_soon() {
        let mut history = Vec::new();
        for number in 0..200_u64 {
            let operation = match number % 4 {
                0 => Operation::Set { to: 1_000 * number as i64 },
                1 => Operation::Add { by: 1, sum: None },
                2 => Operation::Remove { found: None },
                _ => Operation::SetIfAbsent { to: 1_000 * number as i64, done: None },
            };
            history.push(record(number + 1, 0, operation));
        }
        for number in 0..40_u64 {
            history.push(record(1_000 + 10 * number, 1_005 + 10 * number, Operation::Set { to: 5_000_000 }));
            history.push(record(1_001 + 10 * number, 1_006 + 10 * number, Operation::Get { found: Some(5_000_000) }));
        }
        let mut budget = 100_000;
        assert_eq!(check(&[None, Some(7), Some(9)], &history, &mut budget), Verdict::Linearizable);
        history.push(record(2_000, 2_001, Operation::Get { found: Some(77_777_777) }));
        assert_eq!(check(&[None, Some(7), Some(9)], &history, &mut budget), Verdict::Broken);
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
            assert_eq!(judge(&[None], history), *expected, "{name}");
        }
    }

    /// Every order there is, one after the other.
    fn try_all(value: Value, history: &[Record], taken: &mut Vec<bool>) -> bool {
        let is_open = |taken: &[bool], at: usize| !taken[at] && history[at].answered.is_some();
        if !(0..history.len()).any(|at| is_open(taken, at)) {
            return true;
        }
        for at in 0..history.len() {
            let record = &history[at];
            let precedes = |other: usize| {
                let before = &history[other];
                before.answered.is_some_and(|answered| answered < record.called)
                    || other < at && before.session != 0 && before.session == record.session
            };
            if taken[at] || (0..history.len()).any(|other| is_open(taken, other) && precedes(other)) {
                continue;
            }
            if let Some(after) = record.operation.apply(value) {
                taken[at] = true;
                if try_all(after, history, taken) {
                    return true;
                }
                taken[at] = false;
            }
        }
        false
    }

    #[test]
    fn what_is_left_out_of_the_search_changes_no_verdict() {
        let mut counts = [0, 0];
        for seed in 0..30_000 {
            let mut prng = Prng::new(seed);
            let mut history = Vec::new();
            for number in 0..3 + prng.below(5) {
                let called = prng.below(20);
                let answered = prng.chance(1, 2).then(|| called + prng.below(12));
                let is_told = answered.is_some() || prng.chance(1, 8);
                let value =
                    |prng: &mut Prng| (prng.below(4) > 0).then(|| 10 * prng.below(3) as i64 + prng.below(2) as i64);
                let to = 10 * prng.below(3) as i64;
                let operation = match prng.below(7) {
                    0 => Operation::Get { found: value(&mut prng) },
                    1 | 2 => Operation::Set { to },
                    3 => Operation::Swap { to, found: is_told.then(|| value(&mut prng)) },
                    4 => Operation::SetIfAbsent { to, done: is_told.then(|| prng.chance(1, 2)) },
                    5 => Operation::Add { by: 1, sum: is_told.then(|| value(&mut prng).unwrap_or(0) + 1) },
                    _ => Operation::Remove { found: is_told.then(|| prng.chance(1, 2)) },
                };
                history.push(Record { called, answered, session: prng.below(3) * (number % 2), operation });
            }
            history.sort_by_key(|record| record.called);
            // A read without an answer says nothing.
            history.retain(|record| record.answered.is_some() || !matches!(record.operation, Operation::Get { .. }));
            let initial = [None, Some(1), Some(20)];
            let expected = initial.iter().any(|value| try_all(*value, &history, &mut vec![false; history.len()]));
            counts[usize::from(expected)] += 1;
            let expected = if expected { Verdict::Linearizable } else { Verdict::Broken };
            assert_eq!(judge(&initial, &history), expected, "seed {seed}: {history:?}");
        }
        assert!(counts.iter().all(|count| *count > 3_000), "of either kind there are many: {counts:?}");
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
            assert_eq!(judge(&[None], &history), Verdict::Linearizable, "seed {seed}");
            let forged = history.iter_mut().rev().find(|record| record.answered.is_some()).expect("most were answered");
            forged.operation = Operation::Get { found: Some(-1) };
            assert_eq!(judge(&[None], &history), Verdict::Broken, "seed {seed}");
        }
    }
}

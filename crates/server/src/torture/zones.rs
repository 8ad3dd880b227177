//! Could one register have answered as it did, in an order that respects the clock?
//!
//! In general that takes a search, which grows beyond any patience when many requests overlap and the answer is no (the
//! simulator has one, in `simulation::linearizable`, for its short histories and richer operations). Here every write
//! has a value of its own, so that each read names its write, and then sorting is enough (Gibbons and Korach, "Testing
//! shared memories", 1997):
//!
//! ```text
//!   the cluster of a value: its write and all its reads; in any right order they stand together
//!   first end: when the first of them was answered        last start: when the last of them was called
//!
//!   forward    first end ──────────── last start          the register held the value all this time
//!   backward   last start ─ ─ ─ ─ ─ ─ first end           the value may have been there for a moment in between
//! ```
//!
//! One cluster must come before another if one of its members was answered before one of the other's was called. Two
//! that must each come before the other contradict: forward zones that overlap, or a backward zone inside a forward
//! one. Nothing else can go wrong between clusters: in a longer circle, the cluster with the latest start contradicts
//! its follower. Within a cluster no read may end before its write begins.
//!
//! A write without an answer may have happened at any time after its call, so that it counts only if it has been read.

use std::collections::HashMap;

/// A request to one register, with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// When it was called, in any unit that grows; above 0.
    pub called: u64,
    /// When it was answered; `u64::MAX` if the outcome is unknown.
    pub answered: u64,
    /// What it wrote or found; 0 is a register without a value.
    pub value: u64,
    /// Whether it is the one write of its value.
    pub is_write: bool,
}

/// Why there is no order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// A value was read that nobody wrote.
    FromNowhere { value: u64 },
    /// A value was read before its write was called.
    FromTheFuture { value: u64 },
    /// Each of the two values was seen after the other had been replaced.
    Contradiction { one: u64, other: u64 },
}

#[derive(Clone, Copy)]
struct Cluster {
    value: u64,
    first_end: u64,
    last_start: u64,
    write_called: Option<u64>,
    read_first_end: u64,
}

/// Judges the history of one register without a value at first.
///
/// # Errors
/// A reason why no order of these operations explains their answers.
pub fn check(history: &[Operation]) -> Result<(), Conflict> {
    let mut clusters = clusters(history)?;
    // Forward zones by their beginning: each must end before the next begins.
    clusters.sort_by_key(|cluster| (cluster.first_end, cluster.value));
    let mut forward: Vec<Cluster> = Vec::new();
    for cluster in clusters.iter().filter(|cluster| cluster.first_end < cluster.last_start) {
        if let Some(last) = forward.last().filter(|last| cluster.first_end < last.last_start) {
            return Err(Conflict::Contradiction { one: last.value, other: cluster.value });
        }
        forward.push(*cluster);
    }
    for cluster in clusters.iter().filter(|cluster| cluster.first_end >= cluster.last_start) {
        // The only forward zone that could hold this one is the last that began before it.
        let before = forward.partition_point(|zone| zone.first_end < cluster.last_start);
        if let Some(zone) = forward[..before].last().filter(|zone| cluster.first_end < zone.last_start) {
            return Err(Conflict::Contradiction { one: zone.value, other: cluster.value });
        }
    }
    Ok(())
}

fn clusters(history: &[Operation]) -> Result<Vec<Cluster>, Conflict> {
    let nobody =
        |value| Cluster { value, first_end: u64::MAX, last_start: 0, write_called: None, read_first_end: u64::MAX };
    let mut clusters: HashMap<u64, Cluster> = HashMap::new();
    // What was there at first was written before everything.
    clusters.insert(0, Cluster { first_end: 0, write_called: Some(0), ..nobody(0) });
    let is_unread_doubt = {
        let mut read: Vec<u64> = history.iter().filter(|it| !it.is_write).map(|it| it.value).collect();
        read.sort_unstable();
        read.dedup();
        move |it: &Operation| it.is_write && it.answered == u64::MAX && read.binary_search(&it.value).is_err()
    };
    for operation in history.iter().filter(|it| !is_unread_doubt(it)) {
        let cluster = clusters.entry(operation.value).or_insert_with(|| nobody(operation.value));
        cluster.first_end = cluster.first_end.min(operation.answered);
        cluster.last_start = cluster.last_start.max(operation.called);
        if operation.is_write {
            cluster.write_called = Some(operation.called);
        } else {
            cluster.read_first_end = cluster.read_first_end.min(operation.answered);
        }
    }
    let clusters: Vec<Cluster> = clusters.into_values().collect();
    for cluster in &clusters {
        let value = cluster.value;
        match cluster.write_called {
            None => return Err(Conflict::FromNowhere { value }),
            Some(called) if cluster.read_first_end < called => return Err(Conflict::FromTheFuture { value }),
            Some(_) => {}
        }
    }
    Ok(clusters)
}

#[cfg(test)]
mod tests {
    use super::*;
    use simulation::linearizable::{self, Record, Verdict};
    use stdx::Prng;

    const UNKNOWN: u64 = u64::MAX;

    fn write(called: u64, answered: u64, value: u64) -> Operation {
        Operation { called, answered, value, is_write: true }
    }

    fn read(called: u64, answered: u64, value: u64) -> Operation {
        Operation { called, answered, value, is_write: false }
    }

    #[test]
    fn small_histories_are_judged_rightly() {
        let fine = Ok(());
        let clash = |one, other| Err(Conflict::Contradiction { one, other });
        let table: &[(&str, &[Operation], Result<(), Conflict>)] = &[
            ("nothing", &[], fine),
            ("no value yet", &[read(1, 2, 0)], fine),
            ("a value from nowhere", &[read(1, 2, 7)], Err(Conflict::FromNowhere { value: 7 })),
            ("read before it was written", &[read(1, 2, 7), write(3, 4, 7)], Err(Conflict::FromTheFuture { value: 7 })),
            ("a write is read", &[write(1, 2, 7), read(3, 4, 7)], fine),
            ("a lost write", &[write(1, 2, 7), read(3, 4, 0)], clash(0, 7)),
            ("a write that went back", &[write(1, 2, 7), write(3, 4, 8), read(5, 6, 7)], clash(7, 8)),
            ("a stale read", &[write(1, 2, 7), write(3, 4, 8), read(5, 6, 8), read(7, 8, 7)], clash(7, 8)),
            ("a read beside a write may see either", &[write(1, 5, 7), read(2, 3, 0), read(4, 6, 7)], fine),
            ("reads beside a write may not go back", &[write(1, 9, 7), read(2, 3, 7), read(4, 5, 0)], clash(0, 7)),
            ("an unknown outcome may show late", &[write(1, UNKNOWN, 7), read(2, 3, 0), read(4, 5, 7)], fine),
            ("an unknown outcome may never show", &[write(1, UNKNOWN, 7), write(2, 3, 8), read(4, 5, 8)], fine),
            (
                "an unknown outcome takes effect once",
                &[write(1, UNKNOWN, 7), read(2, 3, 7), write(4, 5, 8), read(6, 7, 8), read(8, 9, 7)],
                clash(7, 8),
            ),
            (
                "a doubled write comes back",
                &[write(1, 2, 7), write(3, 4, 8), read(5, 6, 8), read(7, 8, 7), read(9, 10, 8)],
                clash(7, 8),
            ),
        ];
        for (name, history, expected) in table {
            assert_eq!(check(history), *expected, "{name}");
        }
    }

    /// The search of the simulator is the slow twin: both must say the same of any history.
    #[test]
    fn a_search_through_all_orders_agrees() {
        let (mut fine, mut broken) = (0, 0);
        for seed in 0..4_000 {
            let mut prng = Prng::new(seed);
            let mut history = Vec::new();
            let writes = 1 + prng.below(4);
            for value in 1..=writes {
                let called = 1 + prng.below(24);
                let answered = if prng.chance(1, 5) { UNKNOWN } else { called + 1 + prng.below(12) };
                history.push(write(called, answered, value));
            }
            for _ in 0..prng.below(6) {
                let called = 1 + prng.below(30);
                history.push(read(called, called + 1 + prng.below(10), prng.below(writes + 1)));
            }
            let records: Vec<Record> = history
                .iter()
                .map(|it| Record {
                    called: it.called,
                    answered: (it.answered != UNKNOWN).then_some(it.answered),
                    session: 0,
                    operation: match it.is_write {
                        true => linearizable::Operation::Set { to: it.value as i64 },
                        false => linearizable::Operation::Get { found: (it.value > 0).then_some(it.value as i64) },
                    },
                })
                .collect();
            let mut budget = linearizable::STEPS_MAX;
            let expected = linearizable::check(&[None], &records, &mut budget) == Verdict::Linearizable;
            assert_eq!(check(&history).is_ok(), expected, "seed {seed}: {history:?}");
            *(if expected { &mut fine } else { &mut broken }) += 1;
        }
        assert!(fine > 400 && broken > 400, "{fine} fine, {broken} broken");
    }
}

//! What the checkers make of what clients were told.

use super::peace::UNSOUND_LEASE_MAX;
use super::{Universe, say};
use crate::client::{ACCOUNT_COUNT, BrokenWatch, History, OPENING_BALANCE, REGISTER_COUNT, register_name};
use crate::cycles::{self, End};
use crate::invariants::Invariant;
use crate::linearizable::{self, Operation, Record, Value, Verdict, check};
use crate::{Durability, SECOND};

impl Universe {
    pub(super) fn judge(&mut self) {
        // Logs of different groups may have lost ends of different length.
        let has_several = self.machines.len() > 1 && self.groups() > 1;
        let is_torn = |when: u64| {
            let cut = self.lapses.first().filter(|_| has_several);
            cut.is_some_and(|(lapse, _)| when >= lapse.saturating_sub(CARRIED_MAX))
        };
        let is_told_right = |asked: u64| {
            self.rates_were_sound || self.peace_since.is_some_and(|since| asked >= since + UNSOUND_LEASE_MAX)
        };
        let mut audits: Vec<_> = std::mem::take(&mut self.history.audits);
        audits.retain(|(asked, _)| is_told_right(*asked));
        for records in &mut self.history.registers {
            records.retain(|record| !matches!(record.operation, Operation::Get { .. }) || is_told_right(record.called));
        }
        for (when, sum) in audits.into_iter().filter(|(when, _)| !is_torn(*when)).collect::<Vec<_>>() {
            let expected = OPENING_BALANCE * ACCOUNT_COUNT as i64;
            if sum != expected {
                let reason = format!("all accounts held {sum} and not {expected}, as an audit asked at {when} saw");
                return self.fail(Invariant::Conserved, reason);
            }
        }
        // Transactions read under leases, too.
        if self.has_lost_nothing() && self.rates_were_sound {
            if let Some(reason) = self.judge_lists() {
                return self.fail(Invariant::Serializable, reason);
            }
            if let Some(reason) = self.judge_nil() {
                return self.fail(Invariant::TrueNil, reason);
            }
        }
        let mut budget = linearizable::STEPS_MAX;
        for register in 0..REGISTER_COUNT {
            let records = std::mem::take(&mut self.history.registers[register as usize]);
            if let Some(reason) = self.judge_register(&records, &mut budget) {
                let history: Vec<String> = records.iter().map(describe).collect();
                say!(self, "history of {}:\n{}", register_name(register), history.join("\n"));
                return self.fail(Invariant::Linearizable, format!("{}: {reason}", register_name(register)));
            }
        }
    }

    /// True if no quorum stopped while acknowledged writes were in memory only.
    pub(crate) fn has_lost_nothing(&self) -> bool {
        self.plan.durability == Durability::Always || self.lapses.is_empty()
    }

    /// Could all transactions on lists have run one after the other?
    fn judge_lists(&mut self) -> Option<String> {
        let lists = self.history.lists.last()?.clone();
        // What nobody knows the outcome of may come late, between the nodes.
        for earlier in &self.history.lists {
            if let Some((list, _)) = earlier.iter().find(|(list, found)| !lists[*list].starts_with(found)) {
                return Some(format!("list {list} is not the same through all nodes"));
            }
        }
        let transactions = &self.history.transactions;
        let is_any_aborted = transactions.iter().any(|transaction| transaction.end == End::Aborted);
        let anomalies = cycles::check(transactions, &lists);
        if !anomalies.counts.is_empty() {
            let history: Vec<String> = transactions.iter().map(|transaction| format!("{transaction:?}")).collect();
            say!(self, "transactions on lists:\n{}\nlists: {lists:?}", history.join("\n"));
            return Some(format!("transactions on lists: {}", anomalies.examples.join("; ")));
        }
        if is_any_aborted {
            self.probes.reach("a watched list was changed by another");
        }
        None
    }

    /// Was there a change wherever EXEC said that there was?
    fn judge_nil(&mut self) -> Option<String> {
        // Which keys have come and gone is no part of checkpoints: that a replica has started over from one counts as a
        // change of a key that was absent, and so may the arrival of a slot.
        let is_forgotten = |watch: &BrokenWatch| {
            let during = watch.watched.saturating_sub(FORGETTING_MAX)..watch.answered + FORGETTING_MAX;
            self.plan.moves || self.plan.growth || self.forgotten_at.iter().any(|at| during.contains(at))
        };
        let broken = &self.history.broken_watches;
        let untrue = broken.iter().find(|watch| {
            let is_excused = watch.may_have_been_absent() && is_forgotten(watch);
            !is_excused && !may_have_been_broken(watch, &self.history)
        });
        let reason =
            untrue.map(|watch| format!("EXEC answered nil, and nobody had changed what it watched: {watch:?}"));
        if !broken.is_empty() {
            self.probes.reach("a watch was broken");
        }
        reason
    }

    /// Where the durability in force allows a lapse, the register starts over after it with any value that was not
    /// surely overwritten before the window opened.
    fn judge_register(&mut self, records: &[Record], budget: &mut u64) -> Option<String> {
        let mut begin = 0;
        let mut initial: Vec<Value> = vec![None];
        let ends: Vec<(u64, u64)> = self.lapses.iter().copied().chain([(u64::MAX, u64::MAX)]).collect();
        for (end, window) in ends {
            let mut epoch: Vec<Record> = records
                .iter()
                .filter(|record| record.called >= begin && record.called < end)
                .map(|record| Record { answered: record.answered.filter(|answered| *answered < end), ..*record })
                .collect();
            if self.machines.len() > 1 {
                // What was under way through nodes that went on may take effect on either side of the lapse.
                let is_carried = |record: &&Record| {
                    record.called < begin
                        && record.called + CARRIED_MAX >= begin
                        && record.answered.is_none_or(|answered| answered >= begin)
                };
                let carried = records.iter().filter(is_carried);
                epoch.extend(carried.filter_map(|record| {
                    Some(Record {
                        called: begin,
                        answered: None,
                        operation: record.operation.without_answer()?,
                        ..*record
                    })
                }));
            }
            self.tally.judged += 1;
            match check(&initial, &epoch, budget) {
                Verdict::Linearizable => {}
                Verdict::Undecided => self.tally.undecided += 1,
                Verdict::Broken => {
                    let allowed = if initial.len() > 1 { " after a lapse that was allowed" } else { "" };
                    return Some(format!("no order of its operations explains the answers{allowed}"));
                }
            }
            initial = survivors(&initial, &epoch, window);
            begin = end;
        }
        None
    }
}

/// True if something that was under way between WATCH and the answer to EXEC may have changed what was watched.
fn may_have_been_broken(watch: &BrokenWatch, history: &History) -> bool {
    let is_between = |called: u64, answered: u64| called <= watch.answered && answered >= watch.watched;
    let in_registers = watch.registers.iter().any(|(register, _)| {
        history.registers[*register as usize].iter().any(|record| {
            let changes = match record.operation {
                Operation::Get { .. } => false,
                Operation::SetIfAbsent { done, .. } => done != Some(false),
                Operation::Remove { found } => found != Some(false),
                Operation::Set { .. } | Operation::Swap { .. } | Operation::Add { .. } => true,
            };
            changes && is_between(record.called, record.answered.unwrap_or(u64::MAX))
        })
    });
    in_registers
        || history.transactions.iter().any(|transaction| {
            let answered = match transaction.end {
                End::Aborted => return false,
                End::Committed(answered) => answered,
                End::Unknown => u64::MAX,
            };
            let appends = |step: &cycles::Step| match step {
                cycles::Step::Append { list, .. } => watch.lists.iter().any(|(watched, _)| watched == list),
                cycles::Step::Read { .. } => false,
            };
            is_between(transaction.called, answered) && transaction.steps.iter().any(appends)
        })
}

/// What may be in a register after a lapse: any value that was written, and not surely overwritten by something
/// acknowledged before the window.
fn survivors(initial: &[Value], epoch: &[Record], window: u64) -> Vec<Value> {
    // Values written, with the time after which they were surely there.
    let mut written: Vec<(Value, u64, u64)> = initial.iter().map(|value| (*value, 0, 0)).collect();
    for record in epoch {
        let value = match record.operation {
            Operation::Set { to } | Operation::Swap { to, .. } => Some(Some(to)),
            Operation::SetIfAbsent { to, done } if done != Some(false) => Some(Some(to)),
            Operation::Add { sum: Some(sum), .. } => Some(Some(sum)),
            Operation::Remove { found } if found != Some(false) => Some(None),
            _ => None,
        };
        if let Some(value) = value {
            written.push((value, record.called, record.answered.unwrap_or(u64::MAX)));
        }
    }
    // Increments nobody answered make values nobody can list: allow each found value some steps more.
    let unanswered = epoch
        .iter()
        .filter(|record| record.answered.is_none() && matches!(record.operation, Operation::Add { .. }))
        .count() as i64;
    let secured = written.iter().filter(|(_, _, answered)| *answered < window).map(|(_, called, _)| *called).max();
    let mut values: Vec<Value> = written
        .iter()
        .filter(|(_, _, answered)| secured.is_none_or(|secured| *answered >= secured))
        .map(|(value, _, _)| *value)
        .flat_map(|value| {
            let steps = (1..=unanswered).map(move |step| Some(value.unwrap_or(0) + step));
            std::iter::once(value).chain(steps)
        })
        .collect();
    values.sort_unstable();
    values.dedup();
    values
}

fn describe(record: &Record) -> String {
    let answered = record.answered.map_or("never".to_owned(), |answered| format!("{:.6}", answered as f64 / 1e9));
    format!("    {:.6} .. {answered} {:?}", record.called as f64 / 1e9, record.operation)
}

/// The longest that a request is under way after its client may have given it up.
const CARRIED_MAX: u64 = 10 * SECOND;
/// A replica starts over from a checkpoint within this time of when that is seen.
const FORGETTING_MAX: u64 = 5 * SECOND;

//! Cut at a moment, the logs of all groups give a state that was: what an archive is restored to, and what a far reader
//! is shown.

use std::collections::{BTreeMap, BTreeSet};

use journal::{Journal, Options};
use keyspace::Moment;
use node::entry::Born;
use resp::Writer;
use state::cut::{moment_of_entry, settle};
use state::{Beginnings, FIRST, State};
use stdx::UnixMillis;
use stdx::log::Entry;

use super::{Universe, say};
use crate::Canary;
use crate::client::{ACCOUNT_COUNT, LIST_COUNT, OPENING_BALANCE, account_name, list_name};
use crate::cycles::{End, Step, Transaction};
use crate::invariants::Invariant;
use crate::reply::{Reply, parse, with_args};

/// Moments at which the logs of a universe are cut.
const CUTS: u64 = 6;

impl Universe {
    /// Cuts the logs that one machine holds at some moments, and looks at what is there. [`Universe::replay_logs`] has
    /// ended the processes.
    pub(super) fn cut_logs(&mut self) {
        if !self.has_lost_nothing() || !self.rates_were_sound {
            return;
        }
        let holds_all = |machine: &usize| {
            let process = self.machines[*machine].process.as_ref();
            process
                .is_some_and(|it| it.cores.iter().flat_map(|host| host.core.groups()).count() == self.groups() as usize)
        };
        let Some(machine) = (0..self.machines.len()).find(holds_all) else { return };
        for _ in 0..CUTS {
            if let Err(reason) = self.cut_logs_of(machine) {
                return self.fail(Invariant::OneMoment, reason);
            }
        }
    }

    fn cut_logs_of(&mut self, machine: usize) -> Result<(), String> {
        let process = self.machines[machine].process.as_ref().expect("the caller has looked");
        let mut applied = vec![0; self.groups() as usize];
        for group in process.cores.iter().flat_map(|host| host.core.groups()) {
            applied[group.id().0 as usize] = group.applied();
        }
        let disk = self.machines[machine].disk.clone();
        let identity = *process.journal.identity();
        let (_, recovered) = Journal::open(disk, &Options::new(identity)).map_err(|fault| fault.to_string())?;
        let settings = self.settings();
        let mut groups: Vec<(State, Vec<Entry>)> = Vec::new();
        for group in 0..self.groups() {
            let found = recovered.groups.get(&group).cloned().unwrap_or_default();
            let seed = self.read_group(machine, group, found, &settings, &identity)?;
            let (state, mut entries) = seed.into_state(identity.group_count);
            entries.retain(|entry| entry.index <= applied[group as usize]);
            groups.push((state, entries));
        }
        // Of each log a reader has the beginning.
        for (_, entries) in &mut groups {
            let count = entries.len() as u64;
            entries.truncate((count - self.prng.below(count / 4 + 1)) as usize);
        }
        let first = groups.iter().map(|(state, _)| state.moment().unix.0).max().unwrap_or_default();
        let latest = groups.iter().filter_map(|(_, entries)| entries.iter().rev().find_map(moment_of_entry));
        // Of the latest moment more may come.
        let mut ends: Vec<i64> = latest.map(|unix| unix.0 - 1).collect();
        ends.sort_unstable();
        let end = if self.plan.canary == Some(Canary::OpenCut) { ends.last() } else { ends.first() };
        let Some(end) = end.copied().filter(|end| ends.len() == groups.len() && *end >= first) else { return Ok(()) };
        let moment = UnixMillis(first + self.prng.below((end - first) as u64 + 1) as i64);
        let mut states: Vec<State> = Vec::new();
        let mut beginnings = Beginnings::default();
        for (mut state, entries) in groups {
            let is_before = |entry: &&Entry| moment_of_entry(entry).is_none_or(|unix| unix <= moment);
            for entry in entries.iter().take_while(is_before) {
                let first = Some(entry).filter(|entry| entry.index == FIRST.index);
                match first.and_then(|first| Born::of_entry(&first.data)) {
                    Some(born) => {
                        let split = beginnings.take(state.group(), born);
                        state = split.ok_or_else(|| format!("no log makes what was {born:?}"))?.state;
                    }
                    None => state.apply(entry, &mut beginnings),
                }
            }
            states.push(state);
        }
        let settled = settle(&mut states, moment)?;
        self.probes.reach("logs were cut at a moment");
        if !settled.committed.is_empty() || !settled.aborted.is_empty() {
            self.probes.reach("a cut found a transaction half-way");
        }
        say!(self, "cut at {}: {settled:?}", moment.0);
        self.look_at_cut(&mut states).map_err(|reason| format!("cut at {}: {reason}", moment.0))
    }

    fn look_at_cut(&self, states: &mut [State]) -> Result<(), String> {
        let mut balances = Vec::new();
        for account in 0..ACCOUNT_COUNT {
            let held = ask(states, &[b"GET", account_name(account).as_bytes()])?;
            balances.extend(held.into_iter().filter_map(|reply| match reply {
                Reply::Bulk(Some(text)) => std::str::from_utf8(&text).ok()?.parse::<i64>().ok(),
                _ => None,
            }));
        }
        let mut present = BTreeSet::new();
        for list in 0..LIST_COUNT as u32 {
            for reply in ask(states, &[b"LRANGE", list_name(list).as_bytes(), b"0", b"-1"])? {
                let Reply::Array(Some(elements)) = reply else { continue };
                present.extend(elements.into_iter().filter_map(|element| match element {
                    Reply::Bulk(Some(text)) => std::str::from_utf8(&text).ok()?.parse::<u32>().ok(),
                    _ => None,
                }));
            }
        }
        self.look_at_state(&balances, &present)
    }

    /// A state that was: no transaction is torn, and nothing is there without what its session was told before it.
    pub(super) fn look_at_state(&self, balances: &[i64], present: &BTreeSet<u32>) -> Result<(), String> {
        let sum: i64 = balances.iter().sum();
        if balances.len() as u64 > ACCOUNT_COUNT {
            return Err("two groups hold the same account".into());
        }
        // Before all of them have been opened nothing moves between them.
        if balances.len() as u64 == ACCOUNT_COUNT && sum != OPENING_BALANCE * ACCOUNT_COUNT as i64 {
            return Err(format!("all accounts hold {sum}"));
        }
        let appended = |transaction: &Transaction| -> Vec<bool> {
            let elements = transaction.steps.iter().filter_map(|step| match step {
                Step::Append { element, .. } => Some(present.contains(element)),
                Step::Read { .. } => None,
            });
            elements.collect()
        };
        // Lists only grow: who has read the last element that was there has read all others.
        let has_read_more = |transaction: &Transaction| {
            transaction.steps.iter().any(|step| match step {
                Step::Read { found, .. } => found.last().is_some_and(|last| !present.contains(last)),
                Step::Append { .. } => false,
            })
        };
        // When each session was first told of something that is not there: that it was done, or that it was seen.
        let mut lacking: BTreeMap<u64, u64> = BTreeMap::new();
        for (transaction, session) in self.history.transactions.iter().zip(&self.history.transaction_sessions) {
            let appended = appended(transaction);
            if appended.contains(&true) && appended.contains(&false) {
                return Err(format!("a transaction is torn: {transaction:?}"));
            }
            if appended.contains(&true) && has_read_more(transaction) {
                return Err(format!("what it has read is not there: {transaction:?}"));
            }
            if let End::Committed(answered) = transaction.end
                && (appended.contains(&false) || has_read_more(transaction))
            {
                let first = lacking.entry(*session).or_insert(answered);
                *first = answered.min(*first);
            }
        }
        for (transaction, session) in self.history.transactions.iter().zip(&self.history.transaction_sessions) {
            let is_late = lacking.get(session).is_some_and(|answered| *answered < transaction.called);
            if is_late && appended(transaction).contains(&true) {
                return Err(format!("what its session was told before this is not there: {transaction:?}"));
            }
        }
        Ok(())
    }
}

/// What each group answers to a query: those that do not hold the key find nothing.
fn ask(states: &mut [State], words: &[&[u8]]) -> Result<Vec<Reply>, String> {
    let answer = |state: &mut State| {
        let mut writer = Writer::default();
        let moment = Moment { unix: state.moment().unix, seed: 0 };
        with_args(words, |args| {
            let command = keyspace::resolve(args).expect("a command of ours");
            state.read(0, command, args, moment, &mut writer);
        });
        let (reply, _) = parse(&writer.into_bytes())?.ok_or("an answer that does not end")?;
        Ok(reply)
    };
    states.iter_mut().map(answer).collect()
}

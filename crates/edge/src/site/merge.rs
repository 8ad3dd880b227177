//! What all groups have done, as batches that each lead from one state of the whole cluster to a later one.
//!
//! A batch ends at a *closed* moment: of it and all earlier ones no group logs anything any more. Moments order across
//! groups (decision 0027), so what is in a batch follows from nothing that is not in it or before it. A transaction
//! over groups counts from the moment at which the last of its groups has prepared it; by then nobody can have read
//! it, as its keys are locked until it is done.
//!
//! Which batches are made is of no importance: a place is an index of each group's log, and any node of the cluster
//! goes on from any place. What was done behind it is taken, and what was before it is only looked at for the parts of
//! transactions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use node::{Phase, Requests, Step, Tape, TransactionId};
use stdx::UnixMillis;

/// A batch has at most so many requests or bytes, unless one moment has more.
const BATCH_REQUESTS: u64 = 2_000;
const BATCH_BYTES: usize = 1 << 20;

/// What leads from one state to a later one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The moment of that later state.
    pub moment: UnixMillis,
    /// Of all groups: up to which index of its log it reaches.
    pub places: Vec<u64>,
    pub requests: u64,
    /// Changes that belong together: transactions, and single ones.
    pub transactions: u64,
    /// Requests in the form of the protocol, the first of which selects a database.
    pub bytes: Vec<u8>,
}

/// What was done cannot go on from there: a part of a transaction was told as done that nobody has prepared, as the
/// backlog begins behind that; or what was taken before has another moment, as a log has lost its end since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unprepared;

/// Brings together what groups have done.
#[derive(Debug)]
pub struct Merger {
    queues: Vec<VecDeque<Step>>,
    /// Of groups: nothing of an earlier moment comes any more.
    moments: Vec<UnixMillis>,
    /// Of groups: up to here it was taken before.
    start: Vec<u64>,
    /// Nothing of that is of a later moment.
    start_moment: UnixMillis,
    /// Of groups: up to here it has been taken.
    places: Vec<u64>,
    transactions: BTreeMap<TransactionId, Transaction>,
    /// Where in the queue of its group a part stands is of no importance: what it has done is here as soon as told.
    parts: BTreeMap<TransactionId, BTreeMap<u32, (Requests, Requests)>>,
    draft: Draft,
}

/// A transaction over groups that is under way.
#[derive(Debug, Default)]
struct Transaction {
    groups: Vec<u32>,
    prepared: BTreeMap<u32, BTreeSet<(u16, Vec<u8>)>>,
    ended: BTreeSet<u32>,
    /// It is in a batch.
    is_taken: bool,
    /// Something of it is behind the start.
    is_new: bool,
}

/// The batch that is being made.
#[derive(Debug, Default)]
struct Draft {
    pieces: Vec<Piece>,
    requests: u64,
    bytes: usize,
    /// It is complete but for parts of transactions that have not been told yet.
    end: Option<UnixMillis>,
}

#[derive(Debug)]
enum Piece {
    Plain(Requests),
    Transaction(TransactionId, usize),
}

enum Taken {
    Step,
    /// It must wait for other groups.
    Blocked,
}

impl Merger {
    /// One that goes on behind these places.
    pub fn new(places: Vec<u64>, start_moment: UnixMillis) -> Self {
        Self {
            queues: places.iter().map(|_| VecDeque::new()).collect(),
            moments: places.iter().map(|_| UnixMillis(i64::MIN)).collect(),
            start: places.clone(),
            start_moment,
            places,
            transactions: BTreeMap::new(),
            parts: BTreeMap::new(),
            draft: Draft::default(),
        }
    }

    /// Takes what a group has told.
    pub fn push(&mut self, tape: Tape) {
        let group = tape.group as usize;
        if group >= self.queues.len() {
            // It has been founded, and has no keys before a transaction brings them, of which both groups tell.
            self.queues.resize_with(group + 1, VecDeque::new);
            self.moments.resize(group + 1, tape.moment);
            self.start.resize(group + 1, 0);
            self.places.resize(group + 1, 0);
        }
        self.moments[group] = self.moments[group].max(tape.moment);
        let place = self.start[group];
        for mut step in tape.steps {
            if let (Some((transaction, _)), Phase::Done) = (&step.transaction, step.phase)
                && step.index > place
            {
                let done = (std::mem::take(&mut step.wide), std::mem::take(&mut step.requests));
                self.parts.entry(*transaction).or_default().insert(tape.group, done);
            }
            self.queues[group].push_back(step);
        }
    }

    /// True if all that was told is in batches.
    pub fn is_empty(&self) -> bool {
        self.draft.pieces.is_empty() && self.queues.iter().all(VecDeque::is_empty)
    }

    /// Of all earlier moments and of this one all groups have told everything.
    pub fn closed(&self) -> UnixMillis {
        UnixMillis(self.moments.iter().min().map_or(i64::MIN, |moment| moment.0.saturating_sub(1)))
    }

    /// Steps that wait here.
    pub fn waiting(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    /// The next batch, if it is complete.
    ///
    /// # Errors
    /// If the backlog does not reach back far enough.
    pub fn next(&mut self) -> Result<Option<Batch>, Unprepared> {
        if self.draft.end.is_none() {
            self.fill()?;
        }
        let Some(moment) = self.draft.end else { return Ok(None) };
        let is_told = |piece: &Piece| match piece {
            Piece::Plain(_) => true,
            Piece::Transaction(id, count) => self.parts.get(id).is_some_and(|parts| parts.len() == *count),
        };
        if !self.draft.pieces.iter().all(is_told) {
            return Ok(None);
        }
        let draft = std::mem::take(&mut self.draft);
        if draft.pieces.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.write(draft, moment)))
    }

    /// Takes steps until the batch is large enough, or all that is closed has been taken.
    fn fill(&mut self) -> Result<(), Unprepared> {
        let closed = self.closed();
        let mut last = None;
        loop {
            let is_ahead = |moment: &UnixMillis| last.is_none_or(|last| *moment > last) && *moment <= closed;
            let fronts = self.queues.iter().filter_map(|queue| queue.front()).map(|step| step.moment);
            let (is_blocked, next) =
                (fronts.clone().any(|moment| last.is_some_and(|last| moment <= last)), fronts.filter(is_ahead).min());
            let is_large = self.draft.requests >= BATCH_REQUESTS || self.draft.bytes >= BATCH_BYTES;
            if let (Some(last), false) = (last, is_blocked)
                && (is_large || next.is_none())
                && !self.draft.pieces.is_empty()
            {
                // What comes next is of a later moment than all that was taken.
                self.draft.end = Some(if next.is_none() { closed } else { last });
                return Ok(());
            }
            let Some(next) = next else { return Ok(()) };
            self.take_until(next)?;
            last = Some(next);
        }
    }

    /// Takes all that can be taken up to a moment.
    fn take_until(&mut self, moment: UnixMillis) -> Result<(), Unprepared> {
        loop {
            let mut has_taken = false;
            for group in 0..self.queues.len() {
                while self.queues[group].front().is_some_and(|step| step.moment <= moment) {
                    match self.take(group)? {
                        Taken::Step => has_taken = true,
                        Taken::Blocked => break,
                    }
                }
            }
            if !has_taken {
                return Ok(());
            }
        }
    }

    /// Takes the first step of a group.
    fn take(&mut self, group: usize) -> Result<Taken, Unprepared> {
        let number = group as u32;
        let step = self.queues[group].front().expect("the caller has looked");
        let is_old = step.index <= self.start[group];
        if is_old && step.moment > self.start_moment {
            return Err(Unprepared);
        }
        match (&step.transaction, step.phase) {
            (Some((id, groups)), Phase::Prepared) => {
                let (id, groups) = (*id, groups.clone());
                // It may have taken a key over from one that was committed, which comes first.
                let keys: BTreeSet<_> = step.keys.iter().cloned().collect();
                let waits = |other: &Transaction| {
                    !other.is_taken
                        && !other.ended.contains(&number)
                        && other.prepared.get(&number).is_some_and(|held| !held.is_disjoint(&keys))
                };
                if self.transactions.iter().any(|(other, transaction)| *other != id && waits(transaction)) {
                    return Ok(Taken::Blocked);
                }
                let transaction = self.transactions.entry(id).or_default();
                transaction.groups = groups;
                transaction.prepared.insert(number, keys);
                transaction.is_new |= !is_old;
                if transaction.prepared.len() == transaction.groups.len() {
                    transaction.is_taken = true;
                    let count = transaction.groups.len();
                    // Otherwise it was in a batch before.
                    if transaction.is_new {
                        self.draft.pieces.push(Piece::Transaction(id, count));
                        self.draft.requests += count as u64;
                    }
                }
            }
            (Some((id, _)), Phase::Dropped) => {
                let id = *id;
                if let Some(transaction) = self.transactions.get_mut(&id) {
                    transaction.prepared.remove(&number);
                    if transaction.prepared.is_empty() {
                        self.transactions.remove(&id);
                    }
                }
            }
            (Some((id, _)), Phase::Done) => {
                let id = *id;
                match self.transactions.get_mut(&id) {
                    None if is_old => {}
                    None => return Err(Unprepared),
                    Some(transaction) if !transaction.prepared.contains_key(&number) => return Err(Unprepared),
                    Some(transaction) if !transaction.is_taken => return Ok(Taken::Blocked),
                    Some(transaction) => {
                        if !transaction.is_new {
                            self.parts.remove(&id);
                        }
                        transaction.ended.insert(number);
                        if transaction.ended.len() == transaction.groups.len() {
                            self.transactions.remove(&id);
                        }
                    }
                }
            }
            (_, phase) => {
                let is_locked = |key: &(u16, Vec<u8>)| {
                    let holds = |transaction: &Transaction| {
                        !transaction.ended.contains(&number)
                            && transaction.prepared.get(&number).is_some_and(|keys| keys.contains(key))
                    };
                    self.transactions.values().any(holds)
                };
                // The transaction puts another value in the place of what has been swept away, or removes it.
                let is_void = phase == Phase::Swept && step.keys.iter().any(is_locked);
                if !is_old && !is_void {
                    let step = self.queues[group].front_mut().expect("just seen");
                    for requests in [std::mem::take(&mut step.wide), std::mem::take(&mut step.requests)] {
                        if requests.count > 0 {
                            self.draft.requests += requests.count as u64;
                            self.draft.bytes += requests.bytes.len();
                            self.draft.pieces.push(Piece::Plain(requests));
                        }
                    }
                }
            }
        }
        let step = self.queues[group].pop_front().expect("just seen");
        self.places[group] = self.places[group].max(step.index);
        Ok(Taken::Step)
    }

    fn write(&mut self, draft: Draft, moment: UnixMillis) -> Batch {
        let mut batch = Batch { moment, places: self.places.clone(), ..Batch::default() };
        let mut selected = None;
        for piece in draft.pieces {
            batch.transactions += 1;
            match piece {
                Piece::Plain(requests) => put(&mut batch, &mut selected, &requests),
                Piece::Transaction(id, _) => {
                    let parts = self.parts.remove(&id).unwrap_or_default();
                    // All parts have the same to say of whole databases.
                    if let Some((wide, _)) = parts.values().find(|(wide, _)| wide.count > 0) {
                        put(&mut batch, &mut selected, wide);
                    }
                    parts.values().for_each(|(_, requests)| put(&mut batch, &mut selected, requests));
                }
            }
        }
        batch
    }
}

fn put(batch: &mut Batch, selected: &mut Option<u16>, requests: &Requests) {
    let mut begin = 0;
    for &(database, end) in &requests.runs {
        if selected.replace(database) != Some(database) {
            resp::encode_request(&mut batch.bytes, &["SELECT".to_owned(), database.to_string()]);
        }
        batch.bytes.extend_from_slice(&requests.bytes[begin..end]);
        begin = end;
    }
    batch.requests += requests.count as u64;
}

#[cfg(test)]
mod tests {
    use node::GatewayId;
    use node::event::CoreId;
    use stdx::Prng;

    use super::*;

    fn requests(line: &str) -> Requests {
        let mut bytes = Vec::new();
        resp::encode_request(&mut bytes, &line.split(' ').collect::<Vec<_>>());
        let end = bytes.len();
        Requests { bytes, runs: vec![(0, end)], count: 1 }
    }

    fn id(number: u64) -> TransactionId {
        TransactionId { gateway: GatewayId { node: 1, boot: 1, core: CoreId(0) }, number }
    }

    fn step(index: u64, moment: i64, phase: Phase, of: Option<u64>, key: &str, line: &str) -> Step {
        Step {
            index,
            moment: UnixMillis(moment),
            phase,
            transaction: of.map(|number| (id(number), vec![0, 1])),
            keys: vec![(0, key.as_bytes().to_vec())],
            requests: if line.is_empty() { Requests::default() } else { requests(line) },
            ..Step::default()
        }
    }

    fn tape(group: u32, moment: i64, steps: Vec<Step>) -> Tape {
        let index = steps.last().map_or(0, |step| step.index);
        Tape { group, index, moment: UnixMillis(moment), steps, ..Tape::default() }
    }

    /// Words of all requests of a batch.
    fn words(batch: &Batch) -> Vec<String> {
        let mut decoder = resp::FrameDecoder::new();
        decoder.extend(&batch.bytes);
        let mut lines = Vec::new();
        while let Some(frame) = decoder.next_frame().expect("requests") {
            let words = frame.elements().expect("an array").iter();
            let words: Vec<_> = words.map(|word| String::from_utf8_lossy(word.as_bytes().expect("a word"))).collect();
            lines.push(words.join(" "));
        }
        lines.retain(|line| !line.starts_with("SELECT"));
        lines
    }

    #[test]
    fn a_batch_ends_where_all_groups_have_closed() {
        let mut merger = Merger::new(vec![0, 0], UnixMillis(0));
        merger.push(tape(0, 10, vec![step(1, 10, Phase::Done, None, "a", "SET a 1")]));
        assert_eq!(merger.next(), Ok(None), "the other group may still log something earlier");
        merger.push(tape(1, 10, vec![]));
        assert_eq!(merger.next(), Ok(None), "or something of that moment");
        merger.push(tape(0, 12, vec![]));
        merger.push(tape(1, 11, vec![]));
        let batch = merger.next().expect("sound").expect("it is closed");
        assert_eq!(
            (batch.moment, batch.places.clone(), words(&batch)),
            (UnixMillis(10), vec![1, 0], vec!["SET a 1".to_owned()])
        );
    }

    #[test]
    fn a_transaction_counts_when_all_have_prepared_it() {
        let mut merger = Merger::new(vec![0, 0], UnixMillis(0));
        merger.push(tape(
            0,
            20,
            vec![
                step(1, 5, Phase::Prepared, Some(1), "a", ""),
                step(2, 15, Phase::Done, Some(1), "a", "SET a 1"),
                step(3, 15, Phase::Done, None, "a", "INCR a"),
            ],
        ));
        merger.push(tape(1, 8, vec![]));
        assert_eq!(merger.next(), Ok(None), "half of it is nothing");
        merger.push(tape(1, 14, vec![step(1, 9, Phase::Prepared, Some(1), "b", "")]));
        assert_eq!(merger.next(), Ok(None), "what the other half does is not known yet");
        merger.push(tape(
            1,
            30,
            vec![step(2, 20, Phase::Swept, None, "b", "DEL b"), step(3, 21, Phase::Done, Some(1), "b", "SET b 1")],
        ));
        let batch = merger.next().expect("sound").expect("all is there");
        assert_eq!(words(&batch), ["SET a 1", "SET b 1"]);
        assert_eq!(batch.places, [1, 1]);
        let batch = merger.next().expect("sound").expect("what came behind it");
        assert_eq!(words(&batch), ["INCR a"]);
    }

    #[test]
    fn the_beginning_of_a_transaction_must_be_known() {
        let mut merger = Merger::new(vec![0, 0], UnixMillis(0));
        merger.push(tape(0, 20, vec![step(2, 15, Phase::Done, Some(1), "a", "SET a 1")]));
        merger.push(tape(1, 20, vec![]));
        assert_eq!(merger.next(), Err(Unprepared));
    }

    /// Two groups that carry out transfers between two accounts, and single changes, in any order that locks allow.
    fn history(prng: &mut Prng) -> [Vec<Step>; 2] {
        let mut logs = [Vec::new(), Vec::new()];
        let (mut moment, mut balance) = (1, 100_i64);
        for number in 0..40 {
            let log = |logs: &mut [Vec<Step>; 2], group: usize, moment, phase, of, line: &str| {
                let index = logs[group].len() as u64 + 1;
                let key = if group == 0 { "a" } else { "b" };
                logs[group].push(step(index, moment, phase, of, key, line));
            };
            balance += prng.below(9) as i64 - 4;
            let order = if prng.below(2) == 0 { [0, 1] } else { [1, 0] };
            let is_kept = prng.below(5) > 0;
            // One that both have prepared is never dropped.
            let parts = if is_kept { &order[..] } else { &order[..1] };
            for &group in parts {
                log(&mut logs, group, moment, Phase::Prepared, Some(number), "");
                moment += prng.below(2) as i64;
            }
            for &group in parts {
                let value = if group == 0 { balance } else { 200 - balance };
                let (phase, line) = if is_kept {
                    (Phase::Done, format!("SET {} {value}", ["a", "b"][group]))
                } else {
                    (Phase::Dropped, String::new())
                };
                moment += prng.below(2) as i64;
                log(&mut logs, group, moment, phase, Some(number), &line);
            }
            for group in 0..2 {
                log(&mut logs, group, moment, Phase::Done, None, &format!("SET count:{group} {number}"));
            }
            moment += prng.below(2) as i64;
        }
        logs
    }

    #[test]
    fn batches_are_whole_wherever_one_goes_on() {
        for seed in 0..300 {
            let mut prng = Prng::new(seed);
            let logs = history(&mut prng);
            let mut places = vec![0, 0];
            let mut values = BTreeMap::new();
            let mut last = UnixMillis(0);
            // Each life takes some tapes, hands out some batches, and ends.
            let is_complete =
                |values: &BTreeMap<String, i64>| ["count:0", "count:1"].iter().all(|key| values.get(*key) == Some(&39));
            while !is_complete(&values) {
                let mut merger = Merger::new(places.clone(), last);
                let mut told = [0, 0];
                for _ in 0..prng.below(30) + 8 {
                    let group = prng.below(2) as usize;
                    let until = (told[group] + prng.below(25) as usize).min(logs[group].len());
                    let steps: Vec<Step> = logs[group][told[group]..until].to_vec();
                    let next = logs[group].get(until).map_or(UnixMillis(i64::MAX), |step| step.moment);
                    told[group] = until;
                    merger.push(tape(group as u32, next.0, steps));
                    let Some(batch) = merger.next().expect("all is there from the beginning") else { continue };
                    assert!(batch.moment >= last, "seed {seed}: the state goes back");
                    (last, places) = (batch.moment, batch.places.clone());
                    for line in words(&batch) {
                        let mut line = line.split(' ').skip(1);
                        let (key, value) = (line.next().expect("a key"), line.next().expect("a value"));
                        values.insert(key.to_owned(), value.parse::<i64>().expect("a number"));
                    }
                    let sum: i64 = ["a", "b"].iter().filter_map(|key| values.get(*key)).sum();
                    assert!(sum == 0 || sum == 200, "seed {seed}: torn: {values:?}");
                }
            }
        }
    }
}

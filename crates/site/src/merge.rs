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

use node::roster::GROUPS_MAX;
use node::{NO_LATER, Phase, Requests, Step, Tape, TransactionId};
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
    /// How many requests it holds.
    pub requests: u64,
    /// Changes that belong together: transactions, and single ones.
    pub transactions: u64,
    /// Requests in the form of the protocol, the first of which selects a database.
    pub bytes: Vec<u8>,
}

/// What has been done at once: a transaction, or something single.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// When it counts.
    pub moment: UnixMillis,
    /// Which of the events of that moment it is, from 1 on. All nodes count them alike. Sweeps do not count, and have
    /// the number of the event before them.
    pub number: u64,
    /// A key, or fields of it, were swept away because their time had come.
    pub is_sweep: bool,
    /// What it has done, in order.
    pub requests: Vec<Requests>,
}

/// Events that lead from one state to a later one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// The moment of that later state.
    pub moment: UnixMillis,
    /// Of all groups: up to which index of its log they reach.
    pub places: Vec<u64>,
    /// In the order of moments and numbers.
    pub events: Vec<Event>,
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
    start: Start,
    /// Nothing of what was taken before is of a later moment.
    start_moment: UnixMillis,
    /// Of groups: up to here it has been taken.
    places: Vec<u64>,
    transactions: BTreeMap<TransactionId, Transaction>,
    /// Transactions of which a part is known to be done, and the moment of that: all had been prepared by then.
    committed: BTreeMap<TransactionId, UnixMillis>,
    /// Where in the queue of its group a part stands is of no importance: what it has done is here as soon as told.
    parts: BTreeMap<TransactionId, BTreeMap<u32, (Requests, Requests)>>,
    draft: Draft,
}

/// What was taken before.
#[derive(Debug)]
enum Start {
    /// What is up to these places of groups.
    Places(Vec<u64>),
    /// What is up to a moment. As far as it is known, that was up to these places.
    Moment(Vec<u64>),
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
    /// With the moments at which they count.
    pieces: Vec<(UnixMillis, Piece)>,
    /// What is being taken counts then.
    moment: UnixMillis,
    requests: u64,
    bytes: usize,
    /// It is complete but for parts of transactions that have not been told yet.
    end: Option<UnixMillis>,
}

#[derive(Debug)]
enum Piece {
    /// What it does to whole databases, and then to keys.
    Plain([Requests; 2]),
    Swept(Requests),
    Transaction(TransactionId, usize),
}

/// True if no group is less far in the first than in the second.
pub fn reaches(places: &[u64], others: &[u64]) -> bool {
    others.iter().enumerate().all(|(group, other)| places.get(group).copied().unwrap_or(0) >= *other)
}

enum Taken {
    Step,
    /// It must wait for other groups.
    Blocked,
}

impl Merger {
    /// One that goes on behind these places.
    pub fn new(places: Vec<u64>, start_moment: UnixMillis) -> Self {
        Self::begin(Start::Places(places.clone()), start_moment, places)
    }

    /// One that goes on behind this moment, and is given what comes behind `places`: nothing before them is later. If
    /// it is known up to which places that moment was taken before, a log that has lost its end since is found out.
    pub fn behind(moment: UnixMillis, known: Vec<u64>, places: Vec<u64>) -> Self {
        Self::begin(Start::Moment(known), moment, places)
    }

    fn begin(start: Start, start_moment: UnixMillis, places: Vec<u64>) -> Self {
        Self {
            queues: places.iter().map(|_| VecDeque::new()).collect(),
            moments: places.iter().map(|_| UnixMillis(i64::MIN)).collect(),
            start,
            start_moment,
            places,
            transactions: BTreeMap::new(),
            committed: BTreeMap::new(),
            parts: BTreeMap::new(),
            draft: Draft::default(),
        }
    }

    /// Takes what a group has told.
    pub fn push(&mut self, tape: Tape) {
        let group = tape.group as usize;
        if group >= self.queues.len() {
            // It has been founded, and has no keys before a transaction brings them, of which both groups tell. Or it
            // has split off: then the other group has told nothing behind that.
            // Of those before it nothing follows from one that has ended.
            self.expect(group + 1, if tape.moment < NO_LATER { tape.moment } else { UnixMillis(i64::MIN) });
        }
        self.moments[group] = self.moments[group].max(tape.moment);
        for mut step in tape.steps {
            if let (Some((_, groups)), Phase::Prepared) = (&step.transaction, step.phase)
                && let Some(last) = groups.iter().max().filter(|last| **last < GROUPS_MAX)
            {
                // That transaction: nothing later is taken before the new group has told of its part.
                self.expect(*last as usize + 1, UnixMillis(i64::MIN));
            }
            if let (Some((transaction, _)), Phase::Done) = (&step.transaction, step.phase) {
                self.committed.entry(*transaction).or_insert(step.moment);
                if !self.is_old(group, &step) {
                    let done = (std::mem::take(&mut step.wide), std::mem::take(&mut step.requests));
                    self.parts.entry(*transaction).or_default().insert(tape.group, done);
                }
            }
            self.queues[group].push_back(step);
        }
    }

    /// There are so many groups at least. Those that were not known are at this moment.
    fn expect(&mut self, count: usize, moment: UnixMillis) {
        if count > self.queues.len() {
            self.queues.resize_with(count, VecDeque::new);
            self.moments.resize(count, moment);
            self.places.resize(count, 0);
        }
    }

    /// True if it was taken before.
    fn is_old(&self, group: usize, step: &Step) -> bool {
        match &self.start {
            Start::Places(places) => places.get(group).is_some_and(|place| step.index <= *place),
            Start::Moment(_) => step.moment <= self.start_moment,
        }
    }

    /// True if the log that was taken before had something else there.
    fn has_other_past(&self, group: usize, step: &Step) -> bool {
        if step.phase == Phase::Swept {
            // Sweeps are told where a replica likes.
            return false;
        }
        let is_old = self.is_old(group, step);
        match &self.start {
            Start::Places(_) => is_old && step.moment > self.start_moment,
            Start::Moment(known) => {
                let is_before = known.get(group).map_or(is_old, |place| step.index <= *place);
                is_before != is_old
            }
        }
    }

    /// True if all that was told is in batches.
    pub fn is_empty(&self) -> bool {
        self.draft.pieces.is_empty() && self.queues.iter().all(VecDeque::is_empty)
    }

    /// True if what was read up to these places of groups is no less than what was taken before. A node with a
    /// log that lacks what another one has told cannot say that nothing is lacking.
    pub fn is_ahead_of_start(&self, read: &[u64]) -> bool {
        match &self.start {
            Start::Places(places) => reaches(read, places),
            Start::Moment(_) => self.closed() >= self.start_moment,
        }
    }

    /// Of all earlier moments and of this one all groups have told everything.
    pub fn closed(&self) -> UnixMillis {
        UnixMillis(self.moments.iter().min().map_or(i64::MIN, |moment| moment.0.saturating_sub(1)))
    }

    /// Steps that wait here.
    pub fn waiting(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    /// Bytes of what was told and has not been handed out.
    pub fn held_bytes(&self) -> usize {
        let bytes = |requests: &Requests| requests.bytes.len();
        let steps = self.queues.iter().flatten();
        let steps: usize = steps.map(|step| size_of::<Step>() + bytes(&step.wide) + bytes(&step.requests)).sum();
        let parts = self.parts.values().flat_map(BTreeMap::values);
        steps + parts.map(|(wide, requests)| bytes(wide) + bytes(requests)).sum::<usize>() + self.draft.bytes
    }

    /// The group for which the others wait: nothing is complete before it has told more.
    pub fn awaited(&self) -> Option<u32> {
        if self.draft.end.is_some() {
            for (_, piece) in &self.draft.pieces {
                let Piece::Transaction(id, _) = piece else { continue };
                let told = self.parts.get(id);
                let groups = self.transactions.get(id).map_or(&[][..], |transaction| &transaction.groups);
                let lacks = |group: &&u32| told.is_none_or(|told| !told.contains_key(group));
                if let Some(group) = groups.iter().find(lacks) {
                    return Some(*group);
                }
            }
        }
        (0..).zip(&self.moments).min_by_key(|(_, moment)| **moment).map(|(group, _)| group)
    }

    /// The next batch, if it is complete.
    ///
    /// # Errors
    /// If the backlog does not reach back far enough.
    pub fn next_batch(&mut self) -> Result<Option<Batch>, Unprepared> {
        Ok(self.complete()?.map(|(draft, moment)| self.write(draft, moment)))
    }

    /// The same one by one, as all nodes number them.
    ///
    /// # Errors
    /// As above.
    pub fn next_events(&mut self) -> Result<Option<Events>, Unprepared> {
        Ok(self.complete()?.map(|(draft, moment)| self.tell(draft, moment)))
    }

    fn complete(&mut self) -> Result<Option<(Draft, UnixMillis)>, Unprepared> {
        if self.draft.end.is_none() {
            self.fill()?;
        }
        let Some(moment) = self.draft.end else { return Ok(None) };
        let is_told = |(_, piece): &(UnixMillis, Piece)| match piece {
            Piece::Plain(_) | Piece::Swept(_) => true,
            Piece::Transaction(id, count) => self.parts.get(id).is_some_and(|parts| parts.len() == *count),
        };
        if !self.draft.pieces.iter().all(is_told) {
            return Ok(None);
        }
        let draft = std::mem::take(&mut self.draft);
        if draft.pieces.is_empty() {
            return Ok(None);
        }
        Ok(Some((draft, moment)))
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
        self.draft.moment = moment;
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
            if !has_taken && !self.suppose_prepared(moment) && !self.suppose_lost()? {
                return Ok(());
            }
        }
    }

    /// Where a backlog begins, a part may be done of which it is not known that it was prepared: that was before. Who
    /// goes on behind a moment has not been told of such a transaction only if another part was prepared behind it.
    /// True if there was one.
    fn suppose_prepared(&mut self, moment: UnixMillis) -> bool {
        if let Start::Places(_) = self.start {
            return false;
        }
        let mut has_any = false;
        for queue in &self.queues {
            let Some(step) = queue.front().filter(|step| step.moment <= moment && step.phase == Phase::Done) else {
                continue;
            };
            let Some((id, groups)) = &step.transaction else { continue };
            let transaction = self.transactions.entry(*id).or_default();
            if transaction.is_taken {
                continue;
            }
            transaction.groups.clone_from(groups);
            for group in groups {
                transaction.prepared.entry(*group).or_default();
            }
            transaction.is_taken = true;
            if transaction.is_new {
                self.draft.pieces.push((self.draft.moment, Piece::Transaction(*id, groups.len())));
                self.draft.requests += groups.len() as u64;
            }
            has_any = true;
        }
        has_any
    }

    /// A transaction that was committed may have a part that was never told, as it had ended where the backlog of its
    /// group begins: that was before the start, and so was all of it. True if there was one.
    fn suppose_lost(&mut self) -> Result<bool, Unprepared> {
        let mut has_any = false;
        for (id, transaction) in self.transactions.iter_mut().filter(|(_, transaction)| !transaction.is_taken) {
            let Some(committed) = self.committed.get(id) else { continue };
            for group in &transaction.groups {
                let place = *group as usize;
                let is_past = self.moments.get(place).is_some_and(|moment| moment > committed);
                let is_waiting = |step: &Step| step.transaction.as_ref().is_some_and(|(other, _)| other == id);
                if transaction.prepared.contains_key(group) || !is_past || self.queues[place].iter().any(is_waiting) {
                    continue;
                }
                transaction.prepared.insert(*group, BTreeSet::new());
                transaction.ended.insert(*group);
            }
            if transaction.prepared.len() == transaction.groups.len() {
                if transaction.is_new {
                    return Err(Unprepared);
                }
                transaction.is_taken = true;
                has_any = true;
            }
        }
        Ok(has_any)
    }

    /// Takes the first step of a group.
    fn take(&mut self, group: usize) -> Result<Taken, Unprepared> {
        let number = group as u32;
        let step = self.queues[group].front().expect("the caller has looked");
        if self.has_other_past(group, step) {
            return Err(Unprepared);
        }
        let (is_old, is_by_moment) = (self.is_old(group, step), matches!(self.start, Start::Moment(_)));
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
                // What was taken before had nothing to wait for.
                if !is_old && self.transactions.iter().any(|(other, transaction)| *other != id && waits(transaction)) {
                    return Ok(Taken::Blocked);
                }
                let transaction = self.transactions.entry(id).or_default();
                if transaction.is_taken && !is_old && !is_by_moment {
                    // A part of it was done before the start, by when this one should have been prepared.
                    return Err(Unprepared);
                }
                transaction.groups = groups;
                transaction.prepared.insert(number, keys);
                transaction.is_new |= !is_old;
                if transaction.prepared.len() == transaction.groups.len() && !transaction.is_taken {
                    transaction.is_taken = true;
                    let count = transaction.groups.len();
                    // Otherwise it was in a batch before.
                    if transaction.is_new {
                        self.draft.pieces.push((self.draft.moment, Piece::Transaction(id, count)));
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
                    None if is_old => {
                        self.committed.remove(&id);
                    }
                    // All of a transaction with a part that was done before the start has been taken: places move over
                    // such a part only together with the whole, and copies are cut where nothing is half-way.
                    Some(transaction) if is_old && !is_by_moment => {
                        if transaction.is_new {
                            return Err(Unprepared);
                        }
                        transaction.is_taken = true;
                        transaction.prepared.entry(number).or_default();
                        self.end(id, number);
                    }
                    None if is_by_moment => return Ok(Taken::Blocked),
                    None => return Err(Unprepared),
                    Some(transaction) if !transaction.prepared.contains_key(&number) => {
                        return if is_by_moment { Ok(Taken::Blocked) } else { Err(Unprepared) };
                    }
                    Some(transaction) if !transaction.is_taken => return Ok(Taken::Blocked),
                    Some(_) => self.end(id, number),
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
                    let done = [std::mem::take(&mut step.wide), std::mem::take(&mut step.requests)];
                    let count: usize = done.iter().map(|requests| requests.count).sum();
                    if count > 0 {
                        self.draft.requests += count as u64;
                        self.draft.bytes += done.iter().map(|requests| requests.bytes.len()).sum::<usize>();
                        let piece = match (phase, done) {
                            (Phase::Swept, [_, requests]) => Piece::Swept(requests),
                            (_, done) => Piece::Plain(done),
                        };
                        self.draft.pieces.push((self.draft.moment, piece));
                    }
                }
            }
        }
        let step = self.queues[group].pop_front().expect("just seen");
        self.places[group] = self.places[group].max(step.index);
        Ok(Taken::Step)
    }

    /// A part of a transaction that was taken is done.
    fn end(&mut self, id: TransactionId, group: u32) {
        let Some(transaction) = self.transactions.get_mut(&id) else { return };
        if !transaction.is_new {
            self.parts.remove(&id);
        }
        transaction.ended.insert(group);
        if transaction.ended.len() == transaction.groups.len() {
            self.transactions.remove(&id);
            self.committed.remove(&id);
        }
    }

    fn write(&mut self, draft: Draft, moment: UnixMillis) -> Batch {
        let mut batch = Batch { moment, places: self.places.clone(), ..Batch::default() };
        let mut selected = None;
        for (_, piece) in draft.pieces {
            batch.transactions += 1;
            self.done_by(piece).iter().for_each(|requests| put(&mut batch, &mut selected, requests));
        }
        batch
    }

    fn tell(&mut self, draft: Draft, moment: UnixMillis) -> Events {
        let mut told = Events { moment, places: self.places.clone(), ..Events::default() };
        let mut last = (UnixMillis(i64::MIN), 0);
        for (moment, piece) in draft.pieces {
            if last.0 != moment {
                last = (moment, 0);
            }
            let is_sweep = matches!(piece, Piece::Swept(_));
            if !is_sweep {
                last.1 += 1;
            }
            told.events.push(Event { moment, number: last.1, is_sweep, requests: self.done_by(piece) });
        }
        told
    }

    /// What a piece has done, in order.
    fn done_by(&mut self, piece: Piece) -> Vec<Requests> {
        let mut done = match piece {
            Piece::Plain(requests) => Vec::from(requests),
            Piece::Swept(requests) => vec![requests],
            Piece::Transaction(id, _) => {
                let parts = self.parts.remove(&id).unwrap_or_default();
                // All parts have the same to say of whole databases.
                let wide = parts.values().find(|(wide, _)| wide.count > 0).map(|(wide, _)| wide.clone());
                wide.into_iter().chain(parts.into_values().map(|(_, requests)| requests)).collect()
            }
        };
        done.retain(|requests| requests.count > 0);
        done
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
    use group::ids::CoreId;
    use node::GatewayId;
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
        assert_eq!(merger.next_batch(), Ok(None), "the other group may still log something earlier");
        merger.push(tape(1, 10, vec![]));
        assert_eq!(merger.next_batch(), Ok(None), "or something of that moment");
        merger.push(tape(0, 12, vec![]));
        merger.push(tape(1, 11, vec![]));
        let batch = merger.next_batch().expect("sound").expect("it is closed");
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
        assert_eq!(merger.next_batch(), Ok(None), "half of it is nothing");
        merger.push(tape(1, 14, vec![step(1, 9, Phase::Prepared, Some(1), "b", "")]));
        assert_eq!(merger.next_batch(), Ok(None), "what the other half does is not known yet");
        merger.push(tape(
            1,
            30,
            vec![step(2, 20, Phase::Swept, None, "b", "DEL b"), step(3, 21, Phase::Done, Some(1), "b", "SET b 1")],
        ));
        let batch = merger.next_batch().expect("sound").expect("all is there");
        assert_eq!(words(&batch), ["SET a 1", "SET b 1"]);
        assert_eq!(batch.places, [1, 1]);
        let batch = merger.next_batch().expect("sound").expect("what came behind it");
        assert_eq!(words(&batch), ["INCR a"]);
    }

    #[test]
    fn the_beginning_of_a_transaction_must_be_known() {
        let mut merger = Merger::new(vec![0, 0], UnixMillis(0));
        merger.push(tape(0, 20, vec![step(2, 15, Phase::Done, Some(1), "a", "SET a 1")]));
        merger.push(tape(1, 20, vec![]));
        assert_eq!(merger.next_batch(), Err(Unprepared));
    }

    /// What has been told of events: moment, number, and the words of what they did.
    fn told(events: &Events) -> Vec<(i64, u64, String)> {
        let line = |event: &Event| {
            let batch = Batch {
                bytes: event.requests.iter().flat_map(|requests| requests.bytes.clone()).collect(),
                ..Batch::default()
            };
            (event.moment.0, event.number, words(&batch).join(", "))
        };
        events.events.iter().map(line).collect()
    }

    #[test]
    fn events_of_a_moment_have_numbers_and_sweeps_have_none() {
        let mut merger = Merger::behind(UnixMillis(4), vec![], vec![0, 0]);
        let steps = vec![
            step(1, 4, Phase::Done, None, "old", "SET old 1"),
            step(2, 5, Phase::Swept, None, "s", "DEL s"),
            step(2, 5, Phase::Done, None, "a", "SET a 1"),
            step(3, 5, Phase::Done, None, "a", "SET a 2"),
            step(3, 5, Phase::Swept, None, "t", "DEL t"),
            step(4, 6, Phase::Done, None, "a", "SET a 3"),
        ];
        merger.push(tape(0, 20, steps));
        merger.push(tape(1, 20, vec![step(1, 5, Phase::Done, None, "b", "SET b 1")]));
        let events = merger.next_events().expect("sound").expect("closed");
        let expected = [
            (5, 0, "DEL s"),
            (5, 1, "SET a 1"),
            (5, 2, "SET a 2"),
            (5, 2, "DEL t"),
            (5, 3, "SET b 1"),
            (6, 1, "SET a 3"),
        ];
        assert_eq!(told(&events), expected.map(|(moment, number, line)| (moment, number, line.to_owned())));
        assert_eq!((events.moment, events.places), (UnixMillis(19), vec![4, 1]));
    }

    #[test]
    fn nothing_later_is_taken_before_a_group_that_was_founded_has_told_of_its_part() {
        let moved = |index, moment, phase| Step {
            transaction: Some((id(1), vec![0, 1])),
            ..step(index, moment, phase, None, "a", "SET a 1")
        };
        let mut merger = Merger::behind(UnixMillis(0), vec![], vec![0]);
        merger.push(tape(0, 100, vec![moved(1, 90, Phase::Prepared)]));
        assert_eq!(merger.next_events(), Ok(None));
        // What the first group does next does not wait for the other one to be known.
        merger.push(tape(0, 200, vec![step(2, 150, Phase::Done, None, "b", "SET b 1")]));
        assert_eq!(merger.next_events(), Ok(None), "the new group may have logged something earlier");
        let steps = vec![
            moved(2, 95, Phase::Prepared),
            moved(3, 97, Phase::Done),
            step(4, 98, Phase::Done, None, "a", "SET a 2"),
        ];
        merger.push(tape(1, 300, steps));
        merger.push(tape(0, 300, vec![moved(3, 160, Phase::Done)]));
        let mut events = Vec::new();
        while let Some(next) = merger.next_events().expect("sound") {
            events.extend(told(&next).into_iter().map(|(moment, _, line)| (moment, line)));
        }
        let expected = [(95, "SET a 1, SET a 1"), (98, "SET a 2"), (150, "SET b 1")];
        assert_eq!(events, expected.map(|(moment, line)| (moment, line.to_owned())));
    }

    #[test]
    fn a_transaction_that_was_taken_before_holds_nothing_up_where_a_part_of_it_is_not_known() {
        let mut merger = Merger::new(vec![11, 20], UnixMillis(30));
        let known = [step(10, 5, Phase::Prepared, Some(1), "a", ""), step(11, 8, Phase::Done, Some(1), "a", "SET a 1")];
        merger.push(tape(0, 30, known.to_vec()));
        merger.push(tape(0, 40, vec![step(12, 31, Phase::Done, None, "a", "INCR a")]));
        merger.push(tape(1, 40, vec![]));
        let batch = merger.next_batch().expect("sound").expect("it is closed");
        assert_eq!((words(&batch), batch.places), (vec!["INCR a".to_owned()], vec![12, 20]));
    }

    #[test]
    fn what_was_committed_before_holds_nothing_up_although_a_part_was_never_told() {
        // The place lies between the two steps of the part that is known.
        let mut merger = Merger::new(vec![10, 20], UnixMillis(7));
        let known = [step(10, 5, Phase::Prepared, Some(1), "a", ""), step(11, 8, Phase::Done, Some(1), "a", "SET a 1")];
        merger.push(tape(0, 30, known.to_vec()));
        merger.push(tape(0, 40, vec![step(12, 31, Phase::Done, None, "a", "INCR a")]));
        assert_eq!(merger.next_batch(), Ok(None), "the other part may still be told");
        merger.push(tape(1, 40, vec![]));
        let batch = merger.next_batch().expect("sound").expect("it is closed");
        assert_eq!((words(&batch), batch.places), (vec!["INCR a".to_owned()], vec![12, 20]));
        // Another transaction took the key over before the first one was done here.
        let mut merger = Merger::new(vec![12, 20], UnixMillis(12));
        merger.push(tape(
            0,
            40,
            vec![
                step(10, 5, Phase::Prepared, Some(1), "a", ""),
                step(11, 6, Phase::Prepared, Some(2), "a", ""),
                step(12, 8, Phase::Done, Some(1), "a", "SET a 1"),
                step(13, 13, Phase::Done, Some(2), "a", "SET a 2"),
                step(14, 31, Phase::Done, None, "a", "INCR a"),
            ],
        ));
        merger.push(tape(1, 40, vec![step(20, 7, Phase::Prepared, Some(2), "b", "")]));
        let batch = merger.next_batch().expect("sound").expect("it is closed");
        assert_eq!((words(&batch), batch.places), (vec!["INCR a".to_owned()], vec![14, 20]));
    }

    #[test]
    fn a_part_that_is_done_before_and_another_that_is_new_show_another_past() {
        let mut merger = Merger::new(vec![11, 20], UnixMillis(30));
        let known = [step(10, 5, Phase::Prepared, Some(1), "a", ""), step(11, 8, Phase::Done, Some(1), "a", "SET a 1")];
        merger.push(tape(0, 40, known.to_vec()));
        merger.push(tape(1, 40, vec![step(21, 31, Phase::Prepared, Some(1), "b", "")]));
        assert_eq!(merger.next_batch(), Err(Unprepared));
    }

    #[test]
    fn who_lacks_what_was_taken_before_is_not_ahead_of_it() {
        let mut merger = Merger::new(vec![80, 150], UnixMillis(9));
        assert!(reaches(&[3, 0], &[3]) && reaches(&[4], &[3, 0]) && !reaches(&[2, 9], &[3]) && !reaches(&[3], &[3, 1]));
        // A node that was away, and has logged what the others have for one group only.
        merger.push(tape(0, 6, vec![step(50, 5, Phase::Done, None, "a", "SET a 1")]));
        merger.push(tape(1, 20, vec![]));
        assert_eq!(merger.next_batch(), Ok(None));
        assert!(merger.is_empty() && !merger.is_ahead_of_start(&[50, 160]), "all that it has was taken before");
        assert!(merger.is_ahead_of_start(&[80, 160]) && !merger.is_ahead_of_start(&[90]));
    }

    #[test]
    fn a_key_that_was_swept_away_behind_all_that_was_taken_shows_no_other_log() {
        // All up to entry 2 was taken when the other group was at moment 5.
        let mut merger = Merger::new(vec![2, 7], UnixMillis(5));
        merger.push(tape(0, 8, vec![step(2, 8, Phase::Swept, None, "a", "DEL a")]));
        merger.push(tape(1, 20, vec![step(8, 19, Phase::Done, None, "b", "SET b 1")]));
        assert_eq!(merger.next_batch(), Ok(None));
        merger.push(tape(0, 30, vec![step(3, 30, Phase::Done, None, "a", "SET a 1")]));
        assert_eq!(merger.next_batch().map(|batch| batch.map(|batch| batch.requests)), Ok(Some(1)));
    }

    #[test]
    fn it_is_known_for_which_group_the_others_wait() {
        let mut merger = Merger::behind(UnixMillis(0), vec![], vec![0, 0]);
        let steps = (1..=100).map(|index| step(index, 10, Phase::Done, None, "a", "SET a 1")).collect();
        merger.push(tape(0, 50, steps));
        assert_eq!((merger.next_events(), merger.awaited()), (Ok(None), Some(1)));
        assert!(merger.held_bytes() > 100 * 20);
        merger.push(tape(1, 60, vec![]));
        assert!(merger.next_events().is_ok_and(|events| events.is_some()));
        assert_eq!((merger.held_bytes(), merger.awaited()), (0, Some(0)));
        // A part of a transaction that all have prepared.
        merger.push(tape(0, 70, vec![step(101, 61, Phase::Prepared, Some(1), "a", "")]));
        let steps =
            vec![step(1, 62, Phase::Prepared, Some(1), "b", ""), step(2, 63, Phase::Done, Some(1), "b", "SET b 1")];
        merger.push(tape(1, 65, steps));
        assert_eq!(
            (merger.next_events(), merger.awaited()),
            (Ok(None), Some(0)),
            "the other group is behind, and waits"
        );
    }

    #[test]
    fn a_log_that_has_lost_what_was_read_is_found_out() {
        let reread = |known: Vec<u64>, steps: Vec<Step>| {
            let mut merger = Merger::behind(UnixMillis(10), known, vec![0]);
            merger.push(tape(0, 30, steps));
            merger.next_events()
        };
        let step = |index, moment| step(index, moment, Phase::Done, None, "a", "SET a 1");
        assert!(reread(vec![2], vec![step(1, 9), step(2, 10), step(3, 11)]).is_ok_and(|events| events.is_some()));
        assert!(reread(vec![], vec![step(2, 11)]).is_ok(), "nothing is known of places");
        assert_eq!(reread(vec![2], vec![step(1, 9), step(2, 11)]), Err(Unprepared), "another entry is in that place");
        assert_eq!(reread(vec![2], vec![step(2, 9), step(3, 10)]), Err(Unprepared), "it was not there");
    }

    #[test]
    fn what_was_under_way_where_a_backlog_begins_is_told_if_it_counts_later() {
        let of_two = |number, index, moment, phase, line: &str| step(index, moment, phase, Some(number), "a", line);
        let mut merger = Merger::behind(UnixMillis(10), vec![], vec![0, 0]);
        // Of the first nobody has been seen to prepare it, of the second one part, and it counts at 12.
        let steps = vec![
            of_two(1, 5, 11, Phase::Done, "SET a 1"),
            of_two(2, 6, 14, Phase::Done, "SET a 2"),
            step(7, 15, Phase::Done, None, "a", "SET a 3"),
        ];
        merger.push(tape(0, 30, steps));
        let steps = vec![of_two(2, 4, 12, Phase::Prepared, ""), of_two(2, 5, 16, Phase::Done, "SET b 2")];
        merger.push(tape(1, 30, steps));
        let events = merger.next_events().expect("sound").expect("closed");
        let lines: Vec<_> = told(&events).into_iter().map(|(_, _, line)| line).collect();
        assert_eq!(lines, ["SET a 2, SET b 2", "SET a 3"]);
        assert!(merger.is_empty());
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
    fn events_are_the_same_wherever_one_goes_on() {
        for seed in 0..200 {
            let mut prng = Prng::new(seed);
            let logs = history(&mut prng);
            let whole = |merger: &mut Merger| {
                for group in 0..2 {
                    merger.push(tape(group, i64::MAX, logs[group as usize].clone()));
                }
                merger.next_events().expect("all is there from the beginning").map_or(Vec::new(), |all| told(&all))
            };
            let all = whole(&mut Merger::behind(UnixMillis(0), vec![], vec![0, 0]));
            assert!(all.windows(2).all(|pair| (pair[0].0, pair[0].1) < (pair[1].0, pair[1].1)), "seed {seed}");
            // From every moment on, the rest is the same, and every piece in which it is told.
            let last = all.last().expect("there are events").0;
            for moment in 0..=last {
                let rest: Vec<_> = all.iter().filter(|event| event.0 > moment).cloned().collect();
                assert_eq!(whole(&mut Merger::behind(UnixMillis(moment), vec![], vec![0, 0])), rest, "seed {seed}");
            }
            let mut merger = Merger::behind(UnixMillis(0), vec![], vec![0, 0]);
            let (mut told_until, mut pieces) = ([0, 0], Vec::new());
            while told_until != [logs[0].len(), logs[1].len()] || pieces.len() < all.len() {
                let group = prng.below(2) as usize;
                let until = (told_until[group] + prng.below(12) as usize).min(logs[group].len());
                let next = logs[group].get(until).map_or(UnixMillis(i64::MAX), |step| step.moment);
                merger.push(tape(group as u32, next.0, logs[group][told_until[group]..until].to_vec()));
                told_until[group] = until;
                if let Some(events) = merger.next_events().expect("all is there from the beginning") {
                    pieces.extend(told(&events));
                }
            }
            assert_eq!(pieces, all, "seed {seed}");
        }
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
                    let Some(batch) = merger.next_batch().expect("all is there from the beginning") else { continue };
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

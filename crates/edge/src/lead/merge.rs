//! One stream of what several groups have done.
//!
//! Each group tells in the order of its own log. Between groups there is no order but this: parts of one transaction
//! belong together, and what comes behind a part on the same keys stays behind it. So a part waits until all parts are
//! there, what touches its keys waits with it, and everything else passes. That order exists, as transactions lock
//! their keys: nothing ever waits in a circle.
//!
//! A group that has split off has keys of another one. What it does comes behind all that the other one had done by
//! then.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use node::entry::Born;
use node::{DatabaseKey, Phase, Step, Tape, TransactionId};

/// Brings together what groups tell.
#[derive(Debug, Default)]
pub struct Merger {
    queues: Vec<Queue>,
    /// The database that anyone who reads the stream has selected, if that is known.
    selected: Option<u16>,
    /// Nothing is taken.
    is_frozen: bool,
}

/// What one group has told and is not in the stream yet.
#[derive(Debug, Default)]
struct Queue {
    steps: VecDeque<Step>,
    /// Up to this index of its log it has told everything; none if it has told nothing yet.
    index: Option<u64>,
    /// Up to this index, what it has done is in the stream, or not known here: a cut must not be before.
    floor: u64,
    /// Steps behind this index are not taken yet.
    bound: Option<u64>,
    /// The group has split off there: nothing is taken before all is that the other one has done up to there.
    born: Option<Born>,
    /// Transactions of which a part was prepared at this index, and is neither in the stream nor dropped. Their clients
    /// may have been answered: a transaction is committed once all its parts are prepared.
    open: BTreeMap<TransactionId, u64>,
}

/// Where a part stands: the place of its group, and its place in the queue.
type Place = (usize, usize);

impl Merger {
    /// One for so many groups.
    pub fn new(group_count: usize) -> Self {
        Self { queues: (0..group_count).map(|_| Queue::default()).collect(), ..Self::default() }
    }

    /// Takes what a group has told. False if something is missing before it, and it has told of that before.
    pub fn push(&mut self, tape: Tape) -> bool {
        if self.queues.len() <= tape.group as usize {
            // A group has come into being. All that it has done is behind a cut that others have been told of.
            let bound = self.queues.iter().any(|queue| queue.bound.is_some()).then_some(0);
            self.queues.resize_with(tape.group as usize + 1, || Queue { bound, ..Queue::default() });
        }
        let queue = &mut self.queues[tape.group as usize];
        let is_whole = !tape.has_gap || queue.index.is_none();
        if tape.has_gap {
            queue.floor = queue.floor.max(tape.index);
        }
        queue.index = Some(tape.index);
        queue.born = queue.born.or(tape.born);
        for step in tape.steps {
            match (step.phase, &step.transaction) {
                (Phase::Done | Phase::Swept, _) => queue.steps.push_back(step),
                (Phase::Prepared, Some((transaction, _))) => _ = queue.open.insert(*transaction, step.index),
                (Phase::Dropped, Some((transaction, _))) => _ = queue.open.remove(transaction),
                (Phase::Prepared | Phase::Dropped, None) => {}
            }
        }
        is_whole
    }

    /// True if all groups have told something.
    pub fn has_heard_all(&self) -> bool {
        self.queues.iter().all(|queue| queue.index.is_some())
    }

    /// Begins again: what is here is in no stream. Groups go on telling.
    pub fn clear(&mut self) {
        for queue in &mut self.queues {
            let (index, born) = (queue.index, queue.born);
            *queue = Queue { index, born, floor: index.unwrap_or(0), ..Queue::default() };
        }
        (self.selected, self.is_frozen) = (None, false);
    }

    /// Forgets that groups have told anything.
    pub fn forget(&mut self) {
        *self = Self::new(self.queues.len());
    }

    /// Nothing is taken until [`Self::cut`] or [`Self::thaw`]: a cut may be made anywhere from here on.
    pub fn freeze(&mut self) {
        self.is_frozen = true;
    }

    /// There was no cut.
    pub fn thaw(&mut self) {
        self.is_frozen = false;
        self.queues.iter_mut().for_each(|queue| queue.bound = None);
    }

    /// All groups were cut behind these indices of their logs, when no transaction was half-way. What comes behind is
    /// taken after all that comes before. False if that is too late, or of other groups.
    pub fn cut(&mut self, places: &[u64]) -> bool {
        let is_possible = places.len() == self.queues.len()
            && self.queues.iter().zip(places).all(|(queue, place)| queue.floor <= *place);
        self.is_frozen = false;
        if is_possible {
            self.queues.iter_mut().zip(places).for_each(|(queue, place)| queue.bound = Some(*place));
        }
        is_possible
    }

    /// True once the stream holds all that comes before the cut, and nothing behind it. From then on all is taken
    /// again, and the stream says again which database it is about.
    pub fn take_cut(&mut self) -> bool {
        let is_there = |queue: &Queue| {
            let Some(bound) = queue.bound else { return false };
            queue.index.is_some_and(|index| index >= bound) && queue.steps.front().is_none_or(|step| step.index > bound)
        };
        let is_cut = !self.queues.is_empty() && self.queues.iter().all(is_there);
        if is_cut {
            // No transaction was half-way there: of one that seems open, the end was dropped with an earlier stream.
            for queue in &mut self.queues {
                queue.open.retain(|_, prepared| queue.bound.is_some_and(|bound| *prepared > bound));
            }
            self.thaw();
            self.selected = None;
        }
        is_cut
    }

    /// Up to which places of the logs of groups everything has been told here.
    pub fn places(&self) -> Vec<u64> {
        self.queues.iter().map(|queue| queue.index.unwrap_or(0)).collect()
    }

    /// True if all that was done, or prepared, up to these places has been told here, and taken or dropped.
    pub fn has_taken(&self, places: &[u64]) -> bool {
        let is_past = |(queue, place): (&Queue, &u64)| {
            queue.index.is_some_and(|index| index >= *place)
                && queue.steps.front().is_none_or(|step| step.index > *place)
                && queue.open.values().all(|prepared| prepared > place)
        };
        places.len() <= self.queues.len() && self.queues.iter().zip(places).all(is_past)
    }

    /// Bytes that wait here.
    pub fn waiting_bytes(&self) -> usize {
        self.queues.iter().flat_map(|queue| &queue.steps).map(step_bytes).sum()
    }

    /// True if anything waits for parts that have not come.
    pub fn is_waiting(&self) -> bool {
        self.queues.iter().any(|queue| !queue.steps.is_empty())
    }

    /// Appends to `out` all that can be taken now.
    pub fn take(&mut self, out: &mut Vec<u8>) {
        while !self.is_frozen && (self.take_fronts(out) || self.take_some(out)) {}
    }

    /// True if nothing from before a group split off is still to be taken.
    fn is_born(&self, group: usize) -> bool {
        self.queues.get(group).and_then(|queue| queue.born).is_none_or(|Born { parent, index }| {
            let parent = &self.queues[parent.0 as usize];
            parent.index.is_some_and(|told| told >= index) && parent.steps.front().is_none_or(|step| step.index > index)
        })
    }

    /// The step that a group has told first, if it may be taken.
    fn front(&self, group: usize) -> Option<&Step> {
        let queue = self.queues.get(group).filter(|_| self.is_born(group))?;
        queue.steps.front().filter(|step| queue.bound.is_none_or(|bound| step.index <= bound))
    }

    /// Takes what stands in front everywhere, which is nearly everything; false if that was nothing.
    fn take_fronts(&mut self, out: &mut Vec<u8>) -> bool {
        let mut has_taken = false;
        for group in 0..self.queues.len() {
            while let Some(step) = self.front(group) {
                let places: Vec<Place> = match &step.transaction {
                    None => vec![(group, 0)],
                    Some((transaction, groups)) => {
                        let is_in_front = |other: &u32| {
                            let front = self.front(*other as usize).and_then(|step| step.transaction.as_ref());
                            front.is_some_and(|(first, _)| first == transaction)
                        };
                        if !groups.iter().all(is_in_front) {
                            break;
                        }
                        groups.iter().map(|group| (*group as usize, 0)).collect()
                    }
                };
                let steps: Vec<Step> = places.into_iter().map(|place| self.remove(place)).collect();
                self.write(&steps, out);
                has_taken = true;
            }
        }
        has_taken
    }

    /// Takes what can be taken without another look at the queues; false if that was nothing.
    fn take_some(&mut self, out: &mut Vec<u8>) -> bool {
        let mut has_taken = false;
        let mut parts: BTreeMap<_, (usize, Vec<Place>)> = BTreeMap::new();
        for group in (0..self.queues.len()).filter(|group| self.is_born(*group)).collect::<Vec<_>>() {
            let mut blocked: BTreeSet<DatabaseKey> = BTreeSet::new();
            let mut place = 0;
            while let Some(step) = self.queues[group].steps.get(place) {
                if self.queues[group].bound.is_some_and(|bound| step.index > bound) {
                    break;
                }
                let is_free = place == 0 || !step.is_whole && step.keys.iter().all(|key| !blocked.contains(key));
                match &step.transaction {
                    None if is_free => {
                        let step = self.remove((group, place));
                        self.write(&[step], out);
                        has_taken = true;
                        continue;
                    }
                    Some((transaction, groups)) if is_free => {
                        parts.entry(*transaction).or_insert((groups.len(), Vec::new())).1.push((group, place));
                    }
                    _ => {}
                }
                let step = &self.queues[group].steps[place];
                if step.is_whole {
                    break;
                }
                blocked.extend(step.keys.iter().cloned());
                place += 1;
            }
        }
        let mut whole: Vec<Vec<Place>> =
            parts.into_values().filter(|(count, places)| places.len() == *count).map(|(_, places)| places).collect();
        // Places shift when something before them goes: the rest is found again.
        if let Some(places) = whole.pop() {
            let steps: Vec<Step> = places.into_iter().map(|place| self.remove(place)).collect();
            self.write(&steps, out);
            has_taken = true;
        }
        has_taken
    }

    fn remove(&mut self, (group, place): Place) -> Step {
        let queue = &mut self.queues[group];
        let step = queue.steps.remove(place).expect("it was just looked at");
        queue.floor = queue.floor.max(step.index);
        if let Some((transaction, _)) = &step.transaction {
            queue.open.remove(transaction);
        }
        step
    }

    /// Appends steps that belong together.
    fn write(&mut self, steps: &[Step], out: &mut Vec<u8>) {
        let wide = steps.first().map(|step| &step.wide);
        let all: Vec<_> = wide.into_iter().chain(steps.iter().map(|step| &step.requests)).collect();
        let is_many = all.iter().map(|requests| requests.count).sum::<usize>() > 1;
        if is_many {
            resp::encode_request(out, &["MULTI"]);
        }
        for requests in all {
            let mut begin = 0;
            for &(database, end) in &requests.runs {
                if self.selected != Some(database) {
                    resp::encode_request(out, &["SELECT".to_owned(), database.to_string()]);
                    self.selected = Some(database);
                }
                out.extend_from_slice(&requests.bytes[begin..end]);
                begin = end;
            }
        }
        if is_many {
            resp::encode_request(out, &["EXEC"]);
        }
    }
}

/// What a tape takes in memory, about.
pub fn tape_bytes(tape: &Tape) -> usize {
    const ITSELF: usize = 128;
    ITSELF + tape.steps.iter().map(step_bytes).sum::<usize>()
}

/// What a step takes in memory, about.
fn step_bytes(step: &Step) -> usize {
    const BLOCKS: usize = 256;
    let keys: usize = step.keys.iter().map(|(_, key)| key.len() + 48).sum();
    step.requests.bytes.len() + step.wide.bytes.len() + keys + BLOCKS
}

#[cfg(test)]
mod tests {
    use node::{CoreId, GatewayId, GroupId, Requests, TransactionId};

    use super::*;

    fn requests(line: &str) -> Requests {
        let mut bytes = Vec::new();
        resp::encode_request(&mut bytes, &line.split(' ').collect::<Vec<_>>());
        let end = bytes.len();
        Requests { bytes, runs: vec![(0, end)], count: 1 }
    }

    fn step(index: u64, line: &str) -> Step {
        let keys = line.split(' ').skip(1).map(|key| (0, key.as_bytes().to_vec())).collect();
        Step { index, keys, requests: requests(line), ..Step::default() }
    }

    fn part(index: u64, number: u64, groups: &[u32], line: &str) -> Step {
        let gateway = GatewayId { node: 1, boot: 1, core: CoreId(0) };
        Step { transaction: Some((TransactionId { gateway, number }, groups.to_vec())), ..step(index, line) }
    }

    fn push(merger: &mut Merger, group: u32, steps: Vec<Step>) {
        let index = steps.last().map_or(0, |step| step.index);
        assert!(merger.push(Tape { group, index, steps, ..Tape::default() }));
    }

    /// What comes out, a line for each request.
    fn told(merger: &mut Merger) -> Vec<String> {
        let mut out = Vec::new();
        merger.take(&mut out);
        let mut decoder = resp::FrameDecoder::new();
        decoder.extend(&out);
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
    fn a_transaction_comes_whole_and_others_pass_it() {
        let mut merger = Merger::new(2);
        push(&mut merger, 0, vec![part(1, 1, &[0, 1], "DEL a"), step(2, "INCR a"), step(3, "INCR b")]);
        assert_eq!(told(&mut merger), ["INCR b"]);
        push(&mut merger, 1, vec![step(1, "INCR c"), part(2, 1, &[0, 1], "DEL c"), step(3, "INCR c")]);
        assert_eq!(told(&mut merger), ["INCR c", "MULTI", "DEL a", "DEL c", "EXEC", "INCR c", "INCR a"]);
        assert!(!merger.is_waiting());
    }

    #[test]
    fn transactions_that_groups_end_in_different_orders_do_not_wait_for_each_other() {
        let mut merger = Merger::new(2);
        push(&mut merger, 0, vec![part(1, 1, &[0, 1], "DEL a"), part(2, 2, &[0, 1], "DEL b")]);
        push(&mut merger, 1, vec![part(1, 2, &[0, 1], "DEL c"), part(2, 1, &[0, 1], "DEL d")]);
        let told = told(&mut merger);
        assert_eq!(told.len(), 8, "{told:?}");
        let at = |line: &str| told.iter().position(|other| other == line).expect("it comes");
        assert_eq!(at("DEL a").abs_diff(at("DEL d")), 1);
        assert_eq!(at("DEL b").abs_diff(at("DEL c")), 1);
    }

    #[test]
    fn what_concerns_all_keys_waits_for_all_before_it_and_holds_all_behind_it() {
        let mut merger = Merger::new(2);
        let flush = |index, number| Step {
            is_whole: true,
            wide: requests("FLUSHDB"),
            requests: Requests::default(),
            ..part(index, number, &[0, 1], "FLUSHDB")
        };
        push(&mut merger, 0, vec![part(1, 1, &[0, 1], "DEL a"), flush(2, 2), step(3, "INCR b")]);
        push(&mut merger, 1, vec![flush(2, 2)]);
        assert_eq!(told(&mut merger), [""; 0]);
        push(&mut merger, 1, vec![part(3, 1, &[0, 1], "DEL c")]);
        // The second group has it in the other order, which cannot be: nothing is told rather than something wrong.
        assert_eq!(told(&mut merger), [""; 0]);
        assert!(merger.is_waiting());
    }

    #[test]
    fn what_is_awaited_is_taken_once_all_groups_have_told_it() {
        let mut merger = Merger::new(2);
        assert!(!merger.has_taken(&[0, 0]), "nobody has told anything");
        push(&mut merger, 0, vec![step(1, "INCR a"), part(2, 1, &[0, 1], "DEL b")]);
        push(&mut merger, 1, vec![]);
        told(&mut merger);
        assert_eq!(merger.places(), [2, 0]);
        assert!(merger.has_taken(&[1, 0]));
        assert!(!merger.has_taken(&[2, 0]), "the other part has not come");
        assert!(!merger.has_taken(&[1, 1]), "the other group is not as far");
        push(&mut merger, 1, vec![part(1, 1, &[0, 1], "DEL c"), step(2, "INCR d")]);
        merger.freeze();
        told(&mut merger);
        assert!(!merger.has_taken(&[2, 1]), "nothing is taken meanwhile");
        merger.thaw();
        told(&mut merger);
        assert!(merger.has_taken(&[2, 2]));
        assert!(!merger.has_taken(&[2, 2, 0]), "a group of which nothing was heard");
    }

    #[test]
    fn what_a_group_does_that_has_split_off_comes_behind_all_from_before() {
        let mut merger = Merger::new(2);
        push(&mut merger, 0, vec![part(1, 1, &[0, 1], "SET a old")]);
        push(&mut merger, 1, vec![]);
        let born = Some(Born { parent: GroupId(0), index: 3 });
        let steps = vec![step(2, "SET a new"), part(3, 2, &[1, 2], "SET b new")];
        assert!(merger.push(Tape { group: 2, index: 3, has_gap: true, born, steps, ..Tape::default() }));
        push(&mut merger, 1, vec![part(1, 2, &[1, 2], "SET c new")]);
        assert_eq!(told(&mut merger), [""; 0], "the other group has not told of the split");
        push(&mut merger, 0, vec![step(4, "SET d new")]);
        assert_eq!(told(&mut merger), ["SET d new"], "a part from before the split has not come");
        push(&mut merger, 1, vec![part(2, 1, &[0, 1], "SET e old")]);
        let told = told(&mut merger);
        let at = |line: &str| told.iter().position(|other| other == line).expect("it comes");
        assert!(at("SET a old") < at("SET a new") && at("SET e old") < at("SET a new"), "{told:?}");
        assert!(!merger.is_waiting());
    }

    /// A transaction over groups is answered when all its parts are prepared, before any of them is done.
    #[test]
    fn what_is_prepared_is_awaited_until_it_is_done_or_dropped() {
        let mut merger = Merger::new(2);
        let prepared = |index, number| Step { phase: Phase::Prepared, ..part(index, number, &[0, 1], "DEL a") };
        push(&mut merger, 0, vec![prepared(1, 1), prepared(2, 2)]);
        push(&mut merger, 1, vec![prepared(1, 1), prepared(2, 2)]);
        let places = merger.places();
        told(&mut merger);
        assert!(merger.has_taken(&[0, 0]));
        assert!(!merger.has_taken(&places), "neither has been done");
        push(&mut merger, 0, vec![part(3, 1, &[0, 1], "DEL a")]);
        told(&mut merger);
        assert!(!merger.has_taken(&places), "a part has not come");
        push(&mut merger, 1, vec![part(3, 1, &[0, 1], "DEL b")]);
        assert_eq!(told(&mut merger).len(), 4);
        assert!(!merger.has_taken(&places), "the other transaction is open");
        for group in 0..2 {
            push(&mut merger, group, vec![Step { phase: Phase::Dropped, ..part(4, 2, &[0, 1], "DEL a") }]);
        }
        assert!(merger.has_taken(&places));
        // What became of a third one is never told. A cut was made when it had ended.
        push(&mut merger, 0, vec![prepared(5, 3)]);
        assert!(!merger.has_taken(&[5, 4]));
        merger.freeze();
        assert!(merger.cut(&[5, 4]) && merger.take_cut());
        assert!(merger.has_taken(&[5, 4]));
        // What was told of in an earlier stream is in the copy with which the next one begins.
        push(&mut merger, 0, vec![prepared(6, 4)]);
        merger.clear();
        assert!(merger.has_taken(&[6, 4]));
    }

    #[test]
    fn a_cut_parts_what_is_before_it_from_what_is_behind() {
        let mut merger = Merger::new(2);
        push(&mut merger, 0, vec![step(1, "INCR a")]);
        push(&mut merger, 1, vec![]);
        told(&mut merger);
        merger.freeze();
        push(&mut merger, 0, vec![step(2, "INCR a"), step(5, "INCR b")]);
        assert_eq!(told(&mut merger), [""; 0]);
        assert!(merger.cut(&[4, 7]));
        assert_eq!(told(&mut merger), ["INCR a"]);
        assert!(!merger.take_cut());
        push(&mut merger, 1, vec![step(7, "INCR c"), step(8, "INCR d")]);
        assert_eq!(told(&mut merger), ["INCR c"]);
        assert!(merger.take_cut());
        assert_eq!(told(&mut merger), ["INCR b", "INCR d"]);
        merger.freeze();
        assert!(!merger.cut(&[4, 9]), "what is behind the cut has been told already");
    }
}

//! One stream of what several groups have done.
//!
//! Each group tells in the order of its own log. Between groups there is no order but this: parts of one transaction
//! belong together, and what comes behind a part on the same keys stays behind it. So a part waits until all parts are
//! there, what touches its keys waits with it, and everything else passes. That order exists, as transactions lock
//! their keys: nothing ever waits in a circle.
//!
//! A group that has split off has keys of another one. What it does comes behind all that the other one had done by
//! then.
//!
//! A stream may go on after a restart. Groups then tell again what they did since their checkpoints: see `resume`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use node::entry::Born;
use node::{DatabaseKey, NO_LATER, Phase, Step, Tape, TransactionId};
use stdx::UnixMillis;

use super::resume::{Mark, Resumed, Sifted, UNCOUNTED};

/// Brings together what groups tell.
#[derive(Debug, Default)]
pub struct Merger {
    pub(super) queues: Vec<Queue>,
    /// The database that anyone who reads the stream has selected, if that is known.
    pub(super) selected: Option<u16>,
    /// Nothing is taken.
    is_frozen: bool,
    /// The stream was there before this process: a group that it does not know must tell from its beginning on.
    is_resumed: bool,
    /// Somebody may have some of the stream. Before its first cut nobody has.
    is_begun: bool,
}

/// A step that waits, and where it stands.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) mark: Mark,
    pub(super) step: Step,
}

/// What one group has told and is not in the stream yet.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) steps: VecDeque<Queued>,
    /// Up to this index of its log it has told everything; none if it has told nothing yet.
    index: Option<u64>,
    /// How far it has told, and the moment of that.
    pub(super) told: (Mark, UnixMillis),
    /// The last that is in the stream. What stands before that and is not in the stream waits in `steps`.
    pub(super) taken: (Mark, UnixMillis),
    /// What it tells again, as an earlier process has taken it.
    resumed: Option<Box<Resumed>>,
    /// So far an earlier process has taken what it did.
    known: Mark,
    /// Up to this index, what it has done is in the stream, or not known here: a cut must not be before.
    floor: u64,
    /// Steps behind this index are not taken yet.
    bound: Option<u64>,
    /// The group has split off there: nothing is taken before all is that the other one has done up to there.
    born: Option<Born>,
    /// Transactions of which a part was prepared at this index, and is neither in the stream nor dropped. Their clients
    /// may have been answered: a transaction is committed once all its parts are prepared.
    pub(super) open: BTreeMap<TransactionId, u64>,
}

/// Where a part stands: the place of its group, and its place in the queue.
type Place = (usize, usize);

impl Merger {
    /// One for so many groups.
    pub fn new(group_count: usize) -> Self {
        Self { queues: (0..group_count).map(|_| Queue::default()).collect(), ..Self::default() }
    }

    /// One that goes on where an earlier process was: for each group, how far it was taken, and what it had open.
    pub(super) fn resumed(
        selected: Option<u16>,
        groups: Vec<(Resumed, BTreeMap<TransactionId, u64>)>,
        group_count: usize,
    ) -> Self {
        let mut queues: Vec<Queue> = Vec::new();
        for (resumed, open) in groups {
            let known = resumed.known;
            queues.push(Queue { floor: known.0, known, resumed: Some(Box::new(resumed)), open, ..Queue::default() });
        }
        queues.resize_with(queues.len().max(group_count), Queue::default);
        Self { queues, selected, is_frozen: false, is_resumed: true, is_begun: true }
    }

    /// Takes what a group has told.
    ///
    /// # Errors
    /// If the stream cannot go on with that, and why. What comes behind it can be taken for another stream.
    pub fn push(&mut self, tape: Tape) -> Result<(), &'static str> {
        if self.queues.len() <= tape.group as usize {
            // A group has come into being. All that it has done is behind a cut that others have been told of.
            let bound = self.queues.iter().any(|queue| queue.bound.is_some()).then_some(0);
            self.queues.resize_with(tape.group as usize + 1, || Queue { bound, ..Queue::default() });
        }
        let queue = &mut self.queues[tape.group as usize];
        if tape.has_gap && tape.moment == NO_LATER && tape.steps.is_empty() && queue.has_all(tape.from) {
            queue.end(tape.index);
            return Ok(());
        }
        let joined = self.join(&tape);
        let queue = &mut self.queues[tape.group as usize];
        let (index, moment) = (tape.index, tape.moment);
        if tape.has_gap {
            queue.told.0 = (tape.from, UNCOUNTED);
        }
        queue.index = Some(index);
        queue.born = queue.born.or(tape.born);
        let mut outcome = joined;
        for step in tape.steps {
            if step.phase != Phase::Swept {
                queue.told = (next_mark(queue.told.0, step.index), step.moment);
            }
            if outcome.is_ok() {
                outcome = queue.push(step);
            }
        }
        queue.told = (queue.told.0.max((index, 0)), queue.told.1.max(moment));
        if queue.resumed.as_ref().is_some_and(|resumed| resumed.is_over(queue.told.0)) {
            queue.end_resumption();
        }
        queue.note_rest();
        outcome
    }

    /// Whether what a group tells comes right behind what is known of it.
    fn join(&mut self, tape: &Tape) -> Result<(), &'static str> {
        let queue = &self.queues[tape.group as usize];
        if !tape.has_gap {
            return Ok(());
        }
        if queue.index.is_some() {
            return Err("a group was given a checkpoint");
        }
        match (&queue.resumed, tape.born) {
            (Some(resumed), _) if !resumed.reaches(tape.from) => {
                return Err("a checkpoint has taken the place of what it lacks");
            }
            (Some(_), _) => {}
            // It has split off in this life, or what it did before is not known.
            (None, Some(Born { parent, index }))
                if self.is_resumed && self.queues[parent.0 as usize].known.0 < index => {}
            (None, _) if self.is_resumed => return Err("it lacks what a group has done that it does not know"),
            (None, _) => {
                let queue = &mut self.queues[tape.group as usize];
                queue.floor = queue.floor.max(tape.index);
            }
        }
        Ok(())
    }

    /// True if all groups have told something, and nothing again any more.
    pub fn has_heard_all(&self) -> bool {
        self.queues.iter().all(|queue| queue.index.is_some() && queue.resumed.is_none())
    }

    /// Begins again: what is here is in no stream. Groups go on telling.
    pub fn clear(&mut self) {
        for queue in &mut self.queues {
            let (index, born, told) = (queue.index, queue.born, queue.told);
            *queue = Queue { index, born, told, taken: told, floor: index.unwrap_or(0), ..Queue::default() };
        }
        (self.selected, self.is_frozen, self.is_resumed, self.is_begun) = (None, false, false, false);
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
        // A group that has ended does nothing more: where its log stands behind the end does not matter.
        let is_possible = places.len() == self.queues.len()
            && self.queues.iter().zip(places).all(|(queue, place)| queue.floor <= *place || queue.has_ended());
        self.is_frozen = false;
        if is_possible {
            self.queues.iter_mut().zip(places).for_each(|(queue, place)| queue.bound = Some(queue.floor.max(*place)));
        }
        is_possible
    }

    /// True once the stream holds all that comes before the cut, and nothing behind it. From then on all is taken
    /// again, and the stream says again which database it is about.
    ///
    /// What still waits before the first cut of a stream waits for parts that never come: they were told before the
    /// stream began, or by a group of which nothing is left. It is in the copy, and is dropped. Behind the first cut
    /// somebody would lack it.
    pub fn take_cut(&mut self) -> bool {
        let is_begun = self.is_begun;
        let is_there = |queue: &Queue| {
            let Some(bound) = queue.bound else { return false };
            queue.has_told(bound) && (!is_begun || queue.front_index().is_none_or(|front| front > bound))
        };
        let is_cut = !self.queues.is_empty() && self.queues.iter().all(is_there);
        if is_cut {
            for queue in &mut self.queues {
                queue.drop_before_cut();
            }
            self.thaw();
            (self.selected, self.is_begun) = (None, true);
        }
        is_cut
    }

    /// Up to which places of the logs of groups everything has been told here.
    pub fn places(&self) -> Vec<u64> {
        self.queues.iter().map(|queue| queue.index.unwrap_or(0)).collect()
    }

    /// True if all that was done, or prepared, up to these places has been told here, and taken or dropped.
    pub fn has_taken(&self, places: &[u64]) -> bool {
        let is_resolved = |(queue, place): (&Queue, &u64)| queue.open.values().all(|prepared| prepared > place);
        self.has_taken_done(places) && self.queues.iter().zip(places).all(is_resolved)
    }

    /// True if all that was done up to these places has been told here, and taken.
    pub fn has_taken_done(&self, places: &[u64]) -> bool {
        let is_past = |(queue, place): (&Queue, &u64)| {
            queue.resumed.is_none() && queue.has_told(*place) && queue.front_index().is_none_or(|front| front > *place)
        };
        places.len() <= self.queues.len() && self.queues.iter().zip(places).all(is_past)
    }

    /// Bytes that wait here.
    pub fn waiting_bytes(&self) -> usize {
        self.queues.iter().flat_map(|queue| &queue.steps).map(|queued| step_bytes(&queued.step)).sum()
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
    pub(super) fn is_born(&self, group: usize) -> bool {
        self.queues.get(group).and_then(|queue| queue.born).is_none_or(|Born { parent, index }| {
            let parent = &self.queues[parent.0 as usize];
            parent.index.is_some_and(|told| told >= index) && parent.front_index().is_none_or(|front| front > index)
        })
    }

    /// The step that a group has told first, if it may be taken.
    fn front(&self, group: usize) -> Option<&Step> {
        let queue = self.queues.get(group).filter(|_| self.is_born(group))?;
        let front = queue.steps.front().map(|queued| &queued.step);
        front.filter(|step| queue.bound.is_none_or(|bound| step.index <= bound))
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
            while let Some(Queued { step, .. }) = self.queues[group].steps.get(place) {
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
                let step = &self.queues[group].steps[place].step;
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
        let Queued { mark, step } = queue.steps.remove(place).expect("it was just looked at");
        queue.floor = queue.floor.max(step.index);
        if queue.resumed.is_none() {
            queue.taken = queue.taken.max((mark, step.moment));
            queue.note_rest();
        }
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

impl Queue {
    fn front_index(&self) -> Option<u64> {
        self.steps.front().map(|queued| queued.step.index)
    }

    /// Takes a step that stands at the place up to which it has told.
    fn push(&mut self, step: Step) -> Result<(), &'static str> {
        let mark = self.told.0;
        let sifted = match &mut self.resumed {
            Some(resumed) => resumed.sift(mark, &step),
            None if mark <= self.known && step.phase != Phase::Swept => Sifted::Taken,
            None => Sifted::Behind,
        };
        match sifted {
            Sifted::Behind => self.end_resumption(),
            Sifted::Waited(sweeps) => self.steps.extend(sweeps.into_iter().map(|step| Queued { mark, step })),
            Sifted::Taken => return Ok(()),
            Sifted::Broken(why) => return Err(why),
        }
        match (step.phase, &step.transaction) {
            (Phase::Done | Phase::Swept, _) => self.steps.push_back(Queued { mark, step }),
            (Phase::Prepared, Some((transaction, _))) => _ = self.open.insert(*transaction, step.index),
            (Phase::Dropped, Some((transaction, _))) => _ = self.open.remove(transaction),
            (Phase::Prepared | Phase::Dropped, None) => {}
        }
        Ok(())
    }

    /// True if it has told everything up to this place, or will never tell more.
    fn has_told(&self, place: u64) -> bool {
        self.has_ended() || self.index.is_some_and(|index| index >= place)
    }

    /// True if it has told the end of the group.
    fn has_ended(&self) -> bool {
        self.told.1 >= NO_LATER
    }

    /// True if nothing that was done up to this index is lacking.
    fn has_all(&self, index: u64) -> bool {
        let told = self.told.0.0.max(self.index.unwrap_or(0));
        self.resumed.as_ref().map_or(told >= index, |resumed| resumed.reaches(index))
    }

    /// The group has ended at this index, and nothing is left of it that could tell anything again. What is known of
    /// its log may reach further: leaders begin with an entry of no effect, also behind the end.
    fn end(&mut self, index: u64) {
        if let Some(resumed) = &self.resumed {
            self.told.0 = self.told.0.max(resumed.known);
        }
        self.end_resumption();
        self.told = (self.told.0.max((index, 0)), NO_LATER);
        self.index = self.index.max(Some(self.told.0.0));
        self.note_rest();
    }

    /// All that is before the cut is in the stream, or in the copy that was cut.
    fn drop_before_cut(&mut self) {
        let Some(bound) = self.bound else { return };
        self.steps.retain(|queued| queued.step.index > bound);
        // No transaction was half-way there: of one that seems open, the end was dropped with an earlier stream.
        self.open.retain(|_, prepared| *prepared > bound);
        self.floor = self.floor.max(bound);
        self.note_rest();
    }

    /// If nothing waits, all that it has told is in the stream.
    fn note_rest(&mut self) {
        if self.steps.is_empty() && self.resumed.is_none() {
            // Of the entry that it tells again, more may be in the stream than it has told yet.
            self.taken = self.taken.max(self.told);
        }
    }

    /// What comes now was not told before.
    fn end_resumption(&mut self) {
        if let Some(resumed) = self.resumed.take() {
            let (known, moment, sweeps) = resumed.end();
            self.steps.extend(sweeps.into_iter().map(|step| Queued { mark: known, step }));
            self.taken = (known, moment);
        }
    }

    /// How far it was taken, and what before that waits: for another process, which is told again what comes behind
    /// that, and what it is told of before that.
    pub(super) fn progress(&self) -> (Mark, UnixMillis, Vec<Mark>) {
        if let Some(resumed) = &self.resumed {
            // What has been taken of what waited would be taken again.
            return resumed.progress(self.steps.iter());
        }
        let waiting = || self.steps.iter().filter(|queued| queued.step.phase != Phase::Swept).map(|queued| queued.mark);
        let (taken, moment) = match waiting().next() {
            None => self.taken.max(self.told),
            // There may be entries without steps between what was taken and what waits.
            Some((first, _)) => (self.taken.0.max((first.saturating_sub(1), UNCOUNTED)), self.taken.1),
        };
        (taken, moment, waiting().filter(|mark| *mark <= taken).collect())
    }
}

/// Where the next step of a group stands that is one of this entry.
fn next_mark(told: Mark, index: u64) -> Mark {
    if index == told.0 { (index, told.1.saturating_add(1)) } else { (index, 1) }
}

/// What a tape takes in memory, about.
pub fn tape_bytes(tape: &Tape) -> usize {
    const ITSELF: usize = 128;
    ITSELF + tape.steps.iter().map(step_bytes).sum::<usize>()
}

/// What a step takes in memory, about.
pub(super) fn step_bytes(step: &Step) -> usize {
    const BLOCKS: usize = 256;
    let keys: usize = step.keys.iter().map(|(_, key)| key.len() + 48).sum();
    step.requests.bytes.len() + step.wide.bytes.len() + keys + BLOCKS
}

#[cfg(test)]
mod tests {
    use group::ids::{CoreId, GroupId};
    use node::{GatewayId, Requests, TransactionId};

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
        merger.push(Tape { group, index, steps, ..Tape::default() }).expect("nothing is missing");
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
        merger.push(Tape { group: 2, index: 3, has_gap: true, born, steps, ..Tape::default() }).expect("it is new");
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

    /// Another process that is told again since these places, up to where the first one was told of.
    fn resume(merger: &Merger) -> Merger {
        let mut progress = Vec::new();
        assert!(crate::lead::resume::put(merger, &mut progress));
        crate::lead::resume::take(&progress, 0).expect("it was just written")
    }

    fn tell_again(merger: &mut Merger, group: u32, from: u64, steps: Vec<Step>) -> Result<(), &'static str> {
        let index = steps.last().map_or(from, |step| step.index);
        let moment = UnixMillis(index as i64);
        merger.push(Tape { group, from, index, moment, has_gap: true, born: None, steps, standing: Vec::new() })
    }

    /// Logs of two groups with transactions over both, and processes that end anywhere: whatever each of them was told,
    /// every step comes once, in the order of its log.
    #[test]
    fn a_stream_that_goes_on_has_everything_once() {
        for seed in 0..2_000 {
            let mut prng = stdx::Prng::new(seed);
            let mut logs = [Vec::new(), Vec::new()];
            let (mut indices, mut transactions) = ([0, 0], 0);
            for _ in 0..30 {
                let group = prng.below(2) as usize;
                if prng.below(3) == 0 {
                    transactions += 1;
                    for group in 0..2 {
                        indices[group] += 1;
                        let line = format!("DEL {group}-{} t{transactions}", prng.below(4));
                        logs[group].push(part(indices[group], transactions, &[0, 1], &line));
                    }
                } else {
                    indices[group] += 1;
                    for nth in 0..prng.below(3) {
                        let line = format!("INCR {group}-{} n{}.{nth}", prng.below(4), indices[group]);
                        logs[group].push(step(indices[group], &line));
                    }
                }
            }
            for step in logs.iter_mut().flatten() {
                step.moment = UnixMillis(step.index as i64);
            }
            let mut merger = Merger::new(2);
            let (mut lines, mut checkpoints) = (Vec::new(), [0, 0]);
            // Where each group is, in steps; a tape may end within an entry.
            let (mut is_over, mut lives) = (false, 0);
            while !is_over {
                lives += 1;
                let mut told = [0, 0];
                for group in 0..2 {
                    let from = checkpoints[group];
                    told[group] = logs[group].iter().take_while(|step| step.index <= from).count();
                    tell_again(&mut merger, group as u32, from, Vec::new()).expect("nothing is missing");
                }
                // Longer and longer, as no checkpoint is made before all is told again.
                for _ in 0..prng.below(10) + lives {
                    let group = prng.below(2) as usize;
                    let steps = &logs[group][told[group]..];
                    let count = (prng.below(6) as usize).min(steps.len());
                    told[group] += count;
                    let before = told[group].checked_sub(1).map_or(0, |last| logs[group][last].index);
                    let index = before.max(checkpoints[group]);
                    let tape = Tape { group: group as u32, index, steps: steps[..count].to_vec(), ..Tape::default() };
                    merger.push(Tape { moment: UnixMillis(index as i64), ..tape }).expect("nothing is missing");
                    lines.extend(self::told(&mut merger));
                }
                is_over = (0..2).all(|group| told[group] == logs[group].len());
                // No checkpoint takes the place of what the stream lacks.
                for group in 0..2 {
                    let place = prng.below(indices[group] + 1);
                    let is_ended = logs[group].get(told[group]).is_none_or(|next| next.index > place);
                    if is_ended && merger.queues[group].told.0.0 >= place && {
                        let mut places = [0, 0];
                        places[group] = place;
                        merger.has_taken_done(&places)
                    } {
                        checkpoints[group] = checkpoints[group].max(place);
                    }
                }
                merger = resume(&merger);
            }
            let requests: Vec<_> = lines.iter().filter(|line| !matches!(&line[..], "MULTI" | "EXEC")).collect();
            let all: usize = logs.iter().map(Vec::len).sum();
            assert_eq!(requests.len(), all, "seed {seed}: {lines:?}");
            for (group, log) in logs.iter().enumerate() {
                for key in 0..4 {
                    let key = format!("{group}-{key}");
                    let of_key = |line: &str| line.split(' ').nth(1) == Some(&key[..]);
                    let came: Vec<_> =
                        requests.iter().filter(|line| of_key(line)).map(|line| (**line).clone()).collect();
                    let expected: Vec<_> = log
                        .iter()
                        .map(|step| {
                            let mut decoder = resp::FrameDecoder::new();
                            decoder.extend(&step.requests.bytes);
                            let frame = decoder.next_frame().expect("a request").expect("whole");
                            let words = frame.elements().expect("an array").iter();
                            let words: Vec<_> =
                                words.map(|word| String::from_utf8_lossy(word.as_bytes().expect("a word"))).collect();
                            words.join(" ")
                        })
                        .filter(|line| of_key(line))
                        .collect();
                    assert_eq!(came, expected, "seed {seed}, key {key}");
                }
            }
        }
    }

    #[test]
    fn what_is_swept_again_is_told_again_unless_it_was_changed_since() {
        let sweep = |index, line| Step { phase: Phase::Swept, ..step(index, line) };
        let mut merger = Merger::new(1);
        tell_again(&mut merger, 0, 0, vec![step(1, "SET a"), step(2, "SET b"), step(3, "SET c"), step(4, "SET a")])
            .expect("nothing is missing");
        told(&mut merger);
        let mut merger = resume(&merger);
        // It had been swept elsewhere, or not at all; and it was set since.
        let steps = vec![
            step(1, "SET a"),
            sweep(1, "DEL a"),
            step(2, "SET b"),
            step(3, "SET c"),
            sweep(3, "DEL b"),
            step(4, "SET a"),
            step(5, "SET d"),
            sweep(5, "DEL c"),
        ];
        tell_again(&mut merger, 0, 0, steps).expect("nothing is missing");
        assert_eq!(told(&mut merger), ["DEL b", "SET d", "DEL c"]);
    }

    #[test]
    fn a_stream_goes_on_with_nothing_missing_and_with_no_other_past() {
        let mut merger = Merger::new(2);
        tell_again(&mut merger, 0, 3, vec![step(4, "SET a"), part(5, 1, &[0, 1], "SET b"), step(6, "SET c")])
            .expect("it begins");
        tell_again(&mut merger, 1, 0, vec![]).expect("it begins");
        assert_eq!(told(&mut merger), ["SET a", "SET c"]);
        let at = |index: u64, moment: i64| Step { moment: UnixMillis(moment), ..step(index, "SET x") };
        // A checkpoint behind what the stream has, or behind what waits.
        assert!(tell_again(&mut resume(&merger), 0, 7, vec![]).is_err());
        assert!(tell_again(&mut resume(&merger), 0, 5, vec![]).is_err());
        let mut other = resume(&merger);
        assert!(tell_again(&mut other, 0, 4, vec![]).is_ok());
        assert!(!other.has_taken(&[0, 0]), "not all has been told again");
        // A log that lost its end, and has another one.
        assert!(tell_again(&mut resume(&merger), 0, 3, vec![at(4, 999)]).is_err());
        // A group that nobody knows, or that split off before.
        assert!(tell_again(&mut resume(&merger), 2, 9, vec![]).is_err());
        let born = |index| Some(Born { parent: GroupId(0), index });
        let split = |index| Tape { group: 2, from: 1, index: 1, has_gap: true, born: born(index), ..Tape::default() };
        assert!(resume(&merger).push(split(6)).is_err());
        assert!(resume(&merger).push(split(7)).is_ok());
        // What waited comes when the rest does.
        let mut other = resume(&merger);
        let again = vec![step(4, "SET a"), part(5, 1, &[0, 1], "SET b"), step(6, "SET c"), step(7, "SET d")];
        tell_again(&mut other, 0, 3, again).expect("nothing is missing");
        assert_eq!(told(&mut other), ["SET d"]);
        tell_again(&mut other, 1, 0, vec![part(1, 1, &[0, 1], "SET e")]).expect("nothing is missing");
        assert_eq!(told(&mut other), ["MULTI", "SET b", "SET e", "EXEC"]);
        assert!(other.has_taken(&[7, 1]));
    }

    /// A stream starts over while groups tell: parts of some transactions went with the earlier one.
    #[test]
    fn what_lacks_a_part_is_in_the_first_copy() {
        let mut merger = Merger::new(2);
        push(&mut merger, 0, vec![step(1, "INCR a"), part(2, 1, &[0, 1], "DEL a")]);
        push(&mut merger, 1, vec![]);
        told(&mut merger);
        merger.clear();
        push(&mut merger, 1, vec![part(1, 1, &[0, 1], "DEL b"), step(2, "INCR b"), step(3, "INCR c")]);
        assert_eq!(told(&mut merger), ["INCR c"], "what waits for the part waits, too");
        assert!(merger.is_waiting());
        merger.freeze();
        push(&mut merger, 0, vec![step(3, "INCR a")]);
        push(&mut merger, 1, vec![step(4, "INCR b")]);
        assert!(merger.cut(&[2, 3]));
        assert_eq!(told(&mut merger), [""; 0]);
        assert!(merger.take_cut(), "it is in the copy");
        assert_eq!(told(&mut merger), ["INCR a", "INCR b"]);
        assert!(!merger.is_waiting() && merger.has_taken(&[3, 4]));
        // Those who follow by now would lack it.
        push(&mut merger, 0, vec![part(4, 2, &[0, 1], "DEL a")]);
        push(&mut merger, 1, vec![step(5, "INCR b")]);
        merger.freeze();
        assert!(merger.cut(&[4, 5]));
        told(&mut merger);
        assert!(!merger.take_cut());
    }

    /// A process goes on where nothing is left of a group but where it ended.
    #[test]
    fn a_stream_goes_on_with_a_group_that_has_gone() {
        let mut merger = Merger::new(2);
        push(&mut merger, 0, vec![step(1, "INCR a"), part(2, 1, &[0, 1], "DEL a")]);
        push(&mut merger, 1, vec![part(3, 1, &[0, 1], "DEL b")]);
        told(&mut merger);
        assert!(resume(&merger).push(Tape::ended(1, 4)).is_err(), "what came behind the transaction is not known");
        // It ends at 4. A later leader has logged an entry of no effect.
        let end = Tape { group: 1, from: 3, index: 5, moment: NO_LATER, ..Tape::default() };
        merger.push(end).expect("nothing is missing");
        let mut merger = resume(&merger);
        let again = vec![step(1, "INCR a"), part(2, 1, &[0, 1], "DEL a"), step(3, "INCR c")];
        tell_again(&mut merger, 0, 0, again).expect("nothing is missing");
        // The roster was not known when it was first asked.
        tell_again(&mut merger, 1, 0, Vec::new()).expect("nothing is missing");
        assert!(!merger.has_heard_all());
        merger.push(Tape::ended(1, 4)).expect("nothing is missing");
        assert_eq!(told(&mut merger), ["INCR c"]);
        assert!(merger.has_heard_all() && merger.has_taken(&[3, 5]));
        assert_eq!(merger.places(), [3, 5]);
        merger.freeze();
        assert!(merger.cut(&[3, 4]) && merger.take_cut(), "the copy was cut where the group ended");
        // The next one knows the same, and it may be told twice.
        let mut merger = resume(&merger);
        merger.push(Tape::ended(1, 4)).expect("nothing is missing");
        merger.push(Tape::ended(1, 4)).expect("nothing is missing");
        tell_again(&mut merger, 0, 3, vec![part(4, 2, &[0, 1], "DEL a")]).expect("nothing is missing");
        assert!(merger.has_heard_all());
        // A stream that begins here needs nothing of it, whatever is told again of transactions with it.
        merger.clear();
        push(&mut merger, 0, vec![part(5, 3, &[0, 1], "DEL a")]);
        merger.freeze();
        assert!(merger.cut(&[5, 4]));
        told(&mut merger);
        assert!(merger.take_cut() && !merger.is_waiting());
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

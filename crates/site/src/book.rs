//! What a backlog knows of what it holds: how far each group is, and which transactions are under way.
//!
//! A backlog is a row of files. Each begins with the places of all groups and with the parts of transactions that are
//! under way there, and holds tapes. After a start what lies behind a checkpoint is told again: the book takes out of
//! it what is there already.

use std::collections::{BTreeMap, BTreeSet};

use node::{Phase, Requests, Step, Tape, TransactionId};
use stdx::UnixMillis;

/// The log of a group that has been founded while the cluster served begins with an empty entry of this index, which
/// nobody needs to be told of.
pub const FOUNDING_INDEX: u64 = 1;

/// A part of a transaction that is under way: a step of a group.
pub type Part = (u32, Step);

/// How far a group is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Up to this index of its log its steps are here.
    pub index: u64,
    /// So many of the steps of that entry: a tape may end in the middle of one. Sweeps do not count, as replicas sweep
    /// where they like.
    pub count: u32,
    /// Nothing of an earlier moment comes any more.
    pub moment: UnixMillis,
}

impl Place {
    /// Where a group begins that has been founded, and of which this is the first tape.
    pub fn founded(tape: &Tape) -> Self {
        Self { index: tape.from.min(FOUNDING_INDEX), ..Self::default() }
    }

    /// Takes out of a tape what lies before this place, and moves on to its end. `told` is how far the teller of the
    /// tape has come: the index of an entry, and how many of its steps.
    pub fn pass(&mut self, told: &mut (u64, u32), tape: &mut Tape) {
        let known = (self.index, self.count);
        tape.steps.retain(|step| {
            if step.phase == Phase::Swept {
                return *told >= known;
            }
            *told = if step.index == told.0 { (told.0, told.1 + 1) } else { (step.index, 1) };
            *told > known
        });
        *told = (*told).max((tape.index, 0));
        (self.index, self.count) = known.max(*told);
        self.moment = self.moment.max(tape.moment);
    }

    /// True if the tape is of a log that has lost its end since it was told, and has another one: what is told again
    /// has the moments that it had. Sweeps are told where a replica likes, also before a group that has split off has
    /// logged anything.
    pub fn has_other_past(&self, tape: &Tape) -> bool {
        let is_other =
            |step: &Step| step.phase != Phase::Swept && step.index <= self.index && step.moment > self.moment;
        tape.steps.iter().any(is_other)
    }

    /// Moves on behind what a file holds.
    fn read(&mut self, tape: &Tape) {
        for step in tape.steps.iter().filter(|step| step.phase != Phase::Swept) {
            self.count = if step.index == self.index { self.count + 1 } else { 1 };
            self.index = step.index;
        }
        if tape.index > self.index {
            (self.index, self.count) = (tape.index, 0);
        }
        self.moment = self.moment.max(tape.moment);
    }
}

/// True if what begins behind `begin` has all that comes behind `places`, which lack groups that were founded since.
pub fn reaches_back(begin: &[Place], places: &[u64]) -> bool {
    let place = |group: usize| places.get(group).copied().unwrap_or(FOUNDING_INDEX);
    begin.iter().enumerate().all(|(group, begin)| begin.index <= place(group))
}

/// What a merger is given first: how far groups were where a file begins, and the parts of transactions that were under
/// way there.
pub fn beginning(places: &[Place], parts: Vec<Part>) -> Vec<Tape> {
    let places = (0..).zip(places);
    let mut tapes: Vec<Tape> =
        places.map(|(group, place)| Tape { group, moment: place.moment, ..Tape::default() }).collect();
    tapes.extend(parts.into_iter().map(|(group, step)| Tape {
        group,
        steps: vec![step],
        moment: UnixMillis(i64::MIN),
        ..Tape::default()
    }));
    tapes
}

/// What a backlog makes of what a group tells next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It goes on where the group was.
    GoesOn,
    /// Something before it is missing, or the log has another past: the backlog begins there, and all files before it
    /// must go before the tape is [passed](Book::pass).
    Begins,
    /// As [`Begins`](Self::Begins), but the tape does not say which transactions are prepared there. It must be thrown
    /// away, and the group be asked to begin to tell once more; until then no tape of that group is taken.
    IsRefused,
}

/// How far a backlog is.
#[derive(Clone, Debug, Default)]
pub struct Book {
    places: Vec<Place>,
    /// What groups have told since the process began, as in [`Place`]: they begin with what is here already.
    told: Vec<(u64, u32)>,
    /// Parts of transactions of which not all have ended, with their place in the order in which they were told.
    open: BTreeMap<TransactionId, Vec<(u64, Part)>>,
    part_count: u64,
    /// Groups of which a tape was refused, and which have not begun to tell once more.
    refused: BTreeSet<u32>,
}

impl Book {
    /// That of a new backlog.
    pub fn new(group_count: u32) -> Self {
        let count = group_count as usize;
        Self { places: vec![Place::default(); count], told: vec![(0, 0); count], ..Self::default() }
    }

    /// That of a file with this beginning.
    pub fn behind(places: &[Place], parts: &[Part]) -> Self {
        let mut book = Self { places: places.to_vec(), told: vec![(0, 0); places.len()], ..Self::default() };
        parts.iter().for_each(|(group, step)| book.note_part(*group, step));
        book
    }

    /// How far groups are.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// A file begins: with these places, and these parts of transactions that are under way, in the order of the logs.
    pub fn begin_file(&mut self) -> (&[Place], Vec<&Part>) {
        self.open.retain(|_, parts| !has_ended(parts, &self.places));
        let mut parts: Vec<&(u64, Part)> = self.open.values().flatten().collect();
        parts.sort_by_key(|(number, _)| *number);
        (&self.places, parts.into_iter().map(|(_, part)| part).collect())
    }

    /// Moves on behind a tape that is in a file.
    pub fn read(&mut self, tape: &Tape) {
        self.expect(tape.group, Place::default());
        self.places[tape.group as usize].read(tape);
        tape.steps.iter().for_each(|step| self.note_part(tape.group, step));
    }

    /// There are groups up to this one at least. Those that were not known are at this place.
    fn expect(&mut self, group: u32, place: Place) {
        let count = group as usize + 1;
        if count > self.places.len() {
            self.places.resize(count, place);
            self.told.resize(count, (place.index, 0));
        }
    }

    /// Looks at what a group tells next. If the backlog begins there, so does the book.
    #[must_use]
    pub fn admit(&mut self, tape: &Tape) -> Admission {
        let group = tape.group as usize;
        // If it has been founded, what it told first is all that it has done.
        self.expect(tape.group, Place::founded(tape));
        let place = &mut self.places[group];
        let is_whole = tape.from <= place.index && !place.has_other_past(tape) && !self.refused.contains(&tape.group);
        if !is_whole && !tape.has_gap {
            self.refused.insert(tape.group);
            return Admission::IsRefused;
        }
        self.refused.remove(&tape.group);
        if !is_whole {
            // What came before is not here, and none of it is later than the first thing that is.
            let moment = tape.steps.first().map_or(tape.moment, |step| step.moment);
            *place = Place { index: tape.from, count: 0, moment: place.moment.max(moment) };
            // What has ended in between is not known; what has not is told.
            for parts in self.open.values_mut() {
                parts.retain(|(_, (other, _))| *other != tape.group);
            }
            self.open.retain(|_, parts| !parts.is_empty());
            tape.standing.iter().for_each(|step| self.note_part(tape.group, step));
        }
        if tape.has_gap {
            self.told[group] = (tape.from, 0);
        }
        if is_whole { Admission::GoesOn } else { Admission::Begins }
    }

    /// Takes out of a tape that was [admitted](Self::admit) what is there already, and moves on to its end.
    pub fn pass(&mut self, tape: &mut Tape) {
        let group = tape.group as usize;
        self.places[group].pass(&mut self.told[group], tape);
        tape.steps.iter().for_each(|step| self.note_part(tape.group, step));
    }

    /// Keeps parts of transactions until all have ended: a file begins with them.
    fn note_part(&mut self, group: u32, step: &Step) {
        let Some((transaction, groups)) = &step.transaction else { return };
        let parts = self.open.entry(*transaction).or_default();
        match step.phase {
            Phase::Dropped => parts.retain(|(_, (other, _))| *other != group),
            // What it has done was told where it was done.
            _ => {
                self.part_count += 1;
                let step = Step { requests: Requests::default(), wide: Requests::default(), ..step.clone() };
                parts.push((self.part_count, (group, step)));
            }
        }
        let done_count = parts.iter().filter(|(_, (_, step))| step.phase == Phase::Done).count();
        if parts.is_empty() || done_count == groups.len() {
            self.open.remove(transaction);
        }
    }
}

/// True if no part is under way any more, as far as that can be known: each has ended, or is behind a hole, as
/// something that is not prepared where its group begins here and was not prepared since. All parts were prepared
/// before one could be done.
fn has_ended(parts: &[(u64, Part)], places: &[Place]) -> bool {
    let mut told = parts.iter().map(|(_, part)| part);
    let Some((_, done)) = told.find(|(_, step)| step.phase == Phase::Done) else { return false };
    let Some((_, groups)) = &done.transaction else { return false };
    groups.iter().all(|group| {
        let mut own = parts.iter().filter(|(_, (other, _))| other == group).map(|(_, (_, step))| step.phase).peekable();
        let is_known = own.peek().is_some();
        let is_past = places.get(*group as usize).is_some_and(|place| place.moment > done.moment);
        own.any(|phase| phase == Phase::Done) || !is_known && is_past
    })
}

#[cfg(test)]
mod tests {
    use group::ids::CoreId;
    use node::GatewayId;

    use super::*;

    fn part(index: u64, phase: Phase) -> Step {
        part_of(vec![0, 1], index, phase)
    }

    fn part_of(groups: Vec<u32>, index: u64, phase: Phase) -> Step {
        let gateway = GatewayId { node: 1, boot: 1, core: CoreId(0) };
        let transaction = Some((TransactionId { gateway, number: 1 }, groups));
        Step { index, moment: UnixMillis(index as i64), phase, transaction, ..Step::default() }
    }

    fn tape(group: u32, from: u64, index: u64, steps: Vec<Step>) -> Tape {
        Tape { group, from, index, moment: UnixMillis(index as i64), steps, ..Tape::default() }
    }

    /// True if the tape goes on where its group was.
    fn tell(book: &mut Book, mut tape: Tape) -> bool {
        let admission = book.admit(&tape);
        assert_ne!(admission, Admission::IsRefused);
        book.pass(&mut tape);
        admission == Admission::GoesOn
    }

    /// A group begins to tell, with these transactions prepared there.
    fn first(group: u32, index: u64, standing: Vec<Step>) -> Tape {
        Tape { standing, has_gap: true, ..tape(group, index, index, Vec::new()) }
    }

    #[test]
    fn a_transaction_is_under_way_until_all_parts_have_ended() {
        let mut book = Book::new(2);
        assert!(tell(&mut book, tape(0, 0, 5, vec![part(5, Phase::Prepared)])));
        assert!(tell(&mut book, tape(1, 0, 6, vec![part(6, Phase::Prepared)])));
        assert_eq!(book.begin_file().1.len(), 2);
        assert!(tell(&mut book, tape(0, 5, 9, vec![part(9, Phase::Done)])));
        assert_eq!(book.begin_file().1.len(), 3);
        assert!(tell(&mut book, tape(1, 6, 20, vec![part(20, Phase::Done)])));
        assert_eq!(book.begin_file().1.len(), 0);
    }

    #[test]
    fn a_transaction_that_is_half_in_a_hole_is_not_kept_for_ever() {
        let mut book = Book::new(2);
        // The other group was given a checkpoint, behind its own part.
        assert!(!tell(&mut book, first(1, 20, Vec::new())));
        assert!(tell(&mut book, tape(0, 0, 5, vec![part(5, Phase::Prepared)])));
        assert_eq!(book.begin_file().1.len(), 1, "the other one may be told later");
        assert!(tell(&mut book, tape(0, 5, 9, vec![part(9, Phase::Done)])));
        assert_eq!(book.begin_file().1.len(), 0);
    }

    #[test]
    fn a_hole_of_one_group_takes_nothing_of_others() {
        let groups = vec![0, 1, 2];
        let mut book = Book::new(3);
        for (group, index) in [(0, 5), (2, 7)] {
            let steps = vec![part_of(groups.clone(), index, Phase::Prepared)];
            assert!(tell(&mut book, tape(group, 0, index, steps)));
        }
        assert!(!tell(&mut book, first(1, 20, Vec::new())));
        assert!(tell(&mut book, tape(0, 5, 9, vec![part_of(groups, 9, Phase::Done)])));
        let (_, parts) = book.begin_file();
        let told: Vec<(u32, u64)> = parts.iter().map(|(group, step)| (*group, step.index)).collect();
        assert_eq!(told, [(0, 5), (2, 7), (0, 9)], "a part is prepared and not done");
    }

    #[test]
    fn what_is_prepared_behind_a_hole_is_known() {
        let mut book = Book::new(2);
        assert!(tell(&mut book, tape(0, 0, 5, vec![part(5, Phase::Prepared)])));
        let standing = vec![part(20, Phase::Prepared)];
        assert!(!tell(&mut book, first(1, 20, standing)));
        assert!(tell(&mut book, tape(0, 5, 9, vec![part(9, Phase::Done)])));
        assert_eq!(book.begin_file().1.len(), 3);
        assert!(tell(&mut book, tape(1, 20, 23, vec![part(23, Phase::Done)])));
        assert_eq!(book.begin_file().1.len(), 0);
    }

    /// More has changed than could be written in time: tapes were thrown away.
    #[test]
    fn a_group_of_which_something_is_missing_begins_to_tell_once_more() {
        let mut book = Book::new(2);
        assert!(tell(&mut book, tape(0, 0, 5, vec![part(5, Phase::Prepared)])));
        // The tape with the part of the other group, prepared at 15, is lost.
        for from in [16, 17] {
            assert_eq!(book.admit(&tape(1, from, from + 1, Vec::new())), Admission::IsRefused);
        }
        assert_eq!(book.places()[1].index, 0, "nothing of it was taken");
        // Even what would go on is not taken before the group has said what is prepared.
        assert_eq!(book.admit(&tape(1, 0, 1, Vec::new())), Admission::IsRefused);
        assert!(!tell(&mut book, first(1, 18, vec![part(0, Phase::Prepared)])));
        assert!(tell(&mut book, tape(0, 5, 9, vec![part(9, Phase::Done)])));
        assert_eq!(book.begin_file().1.len(), 3, "both parts, and that one of them is done");
        assert!(tell(&mut book, tape(1, 18, 20, vec![part(20, Phase::Done)])));
        assert_eq!(book.begin_file().1.len(), 0);
    }

    #[test]
    fn a_group_that_began_once_more_where_it_was_has_a_hole_all_the_same() {
        let mut book = Book::new(1);
        assert!(tell(&mut book, tape(0, 0, 5, Vec::new())));
        let other_past = Step { index: 4, moment: UnixMillis(9), ..Step::default() };
        assert_eq!(book.admit(&tape(0, 3, 6, vec![other_past])), Admission::IsRefused);
        assert!(!tell(&mut book, first(0, 5, Vec::new())));
        assert!(tell(&mut book, tape(0, 5, 6, Vec::new())));
    }
}

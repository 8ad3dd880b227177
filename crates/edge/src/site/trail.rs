//! What groups have done, from some moment on, from any place that keeps it: from the archive as long as the backlog of
//! this node does not reach back so far, and then from the backlog.
//!
//! ```text
//!   archive:  ├─ file ─┤         of one node
//!                   ├─ file ─┤   of another one, which begins earlier than the first ends
//!   backlog:               ├─ file ─┼─ file ─┼─ …
//! ```
//!
//! Logs are the same at all nodes, and so are the steps of their entries, in number and order. So a place is an index
//! and a number within the entry, and what comes next is whatever begins at that place or before it; of that, what
//! was passed is left out. If nothing does, something is missing, and it is told.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use node::{NO_LATER, Tape};
use site::{FOUNDING_INDEX, Place};
use stdx::UnixMillis;

use super::Site;
use super::backlog::Segment;
use super::reading::{Lacking, Reading};
use super::shelf::{Found, Wanted, Wish};
use crate::limits::CHANGES_FETCH_PATIENCE;

/// What comes next.
pub enum Next {
    Tape(Tape),
    /// Nothing, as yet.
    End,
    /// It is being fetched.
    Wait,
}

/// Why nothing comes any more.
#[derive(Debug)]
pub enum Stop {
    Lacking(Lacking),
    /// Neither the backlog of this node nor the archive reaches back so far.
    TooOld,
    /// The archive does not answer.
    Slow,
}

impl From<Lacking> for Stop {
    fn from(lacking: Lacking) -> Self {
        Self::Lacking(lacking)
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Lacking(error.into())
    }
}

/// Where it is read. Copies read on from the same place, each for itself.
#[derive(Clone)]
pub struct Trail {
    source: Source,
    passed: Passed,
    /// How far groups had been passed when the present file of the archive was begun.
    before: Vec<Place>,
    /// Files of the archive in which nothing new was found since something was.
    fruitless: Vec<PathBuf>,
}

#[derive(Clone)]
enum Source {
    Backlog(Reading),
    Archive(Found),
    Waits(Arc<Wish>, Instant),
}

/// What a reader begins with.
pub struct Beginning {
    /// How far groups were there, and the parts of transactions that were under way.
    pub tapes: Vec<Tape>,
    /// Of groups: behind which index it begins.
    pub places: Vec<u64>,
}

/// True if what begins there has all that comes behind `places`.
pub fn follows(begin: &[Place], places: &[Place]) -> bool {
    let founded = Place { index: FOUNDING_INDEX, ..Place::default() };
    begin.iter().enumerate().all(|(group, begin)| {
        let place = places.get(group).unwrap_or(&founded);
        (begin.index, begin.count) <= (place.index, place.count)
    })
}

/// Where the backlog of this node, or a file of it, begins, for a reader that goes on behind a moment: of groups that
/// were told of at different moments, behind the latest of these.
pub fn first_moment(places: &[Place]) -> UnixMillis {
    latest_moment(places)
}

/// The latest moment of any group. Of one that has ended nothing more comes: it has none.
pub fn latest_moment(places: &[Place]) -> UnixMillis {
    places.iter().map(|place| place.moment).filter(|moment| *moment < NO_LATER).max().unwrap_or_default()
}

impl Trail {
    /// What comes behind a moment; none if it is not kept here, and there is no archive.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn behind(site: &Site, moment: UnixMillis) -> io::Result<Option<Self>> {
        let holds_all = |segment: &Segment| first_moment(&segment.places) <= moment;
        let source = match (Reading::open(site, holds_all)?, &site.shelf) {
            (Some(reading), _) => Source::Backlog(reading),
            (None, Some(shelf)) => Source::Waits(shelf.ask(Wanted::Behind(moment)), Instant::now()),
            (None, None) => return Ok(None),
        };
        Ok(Some(Self { source, passed: Passed::default(), before: Vec::new(), fruitless: Vec::new() }))
    }

    /// What it begins with, when that is there. To be asked before anything else.
    ///
    /// # Errors
    /// If it is not kept.
    pub fn begin(&mut self) -> Result<Option<Beginning>, Stop> {
        if let Source::Waits(..) = self.source {
            match self.fetched()? {
                None => return Ok(None),
                Some(None) => return Err(Stop::TooOld),
                Some(Some(found)) => self.source = Source::Archive(found),
            }
        }
        let reader = match &mut self.source {
            Source::Backlog(reading) => &mut reading.reader,
            Source::Archive(found) => &mut found.reader,
            Source::Waits(..) => unreachable!("just replaced"),
        };
        let beginning =
            Beginning { tapes: reader.beginning(), places: reader.places.iter().map(|place| place.index).collect() };
        self.passed.known.clone_from(&reader.places);
        self.passed.reached = first_moment(&reader.places);
        self.passed.enter(&reader.places);
        self.before.clone_from(&reader.places);
        Ok(Some(beginning))
    }

    /// Another one has handed out what a group has done, up to where that one is: it does not come again.
    pub fn leave_out(&mut self, group: u32, ahead: &Self) {
        let group = group as usize;
        let Some(place) = ahead.passed.known.get(group) else { return };
        if group >= self.passed.known.len() {
            let founded = Place { index: FOUNDING_INDEX, ..Place::default() };
            self.passed.known.resize(group + 1, founded);
        }
        self.passed.known[group] = *place;
    }

    /// True if the other one has handed out more of what a group has done.
    pub fn is_behind(&self, group: u32, other: &Self) -> bool {
        let place = |trail: &Self| trail.passed.known.get(group as usize).map(|place| (place.index, place.count));
        place(self) < place(other)
    }

    /// Bytes of the present file that were read.
    pub fn offset(&self) -> u64 {
        match &self.source {
            Source::Backlog(reading) => reading.reader.offset(),
            Source::Archive(found) => found.reader.offset(),
            Source::Waits(..) => 0,
        }
    }

    /// What comes next.
    ///
    /// # Errors
    /// If it is not there any more, or cannot be read.
    pub fn next(&mut self, site: &Site) -> Result<Next, Stop> {
        loop {
            let tape = match &mut self.source {
                Source::Backlog(reading) => match reading.next(site) {
                    Ok(None) => return Ok(Next::End),
                    Ok(tape) => tape,
                    Err(Lacking::Gone(_)) if site.shelf.is_some() => None,
                    Err(lacking) => return Err(lacking.into()),
                },
                Source::Archive(found) => found.reader.next(found.length)?,
                Source::Waits(..) => {
                    match self.fetched()? {
                        None => return Ok(Next::Wait),
                        Some(None) => {
                            const WHY: &str = "neither the backlog of this node nor the archive has what comes next";
                            return Err(Lacking::Gone(WHY).into());
                        }
                        Some(Some(found)) => self.enter(found),
                    }
                    continue;
                }
            };
            match tape {
                Some(tape) => return Ok(Next::Tape(self.passed.pass(tape)?)),
                None => self.go_on(site)?,
            }
        }
    }

    /// A file has been read to its end.
    fn go_on(&mut self, site: &Site) -> Result<(), Stop> {
        let place = match &self.source {
            Source::Archive(found) => {
                if self.before != self.passed.known {
                    self.fruitless.clear();
                }
                self.fruitless.push(found.info.path.clone());
                Some(found.info.span)
            }
            _ => None,
        };
        if let Some(reading) = Reading::open(site, |segment| follows(&segment.places, &self.passed.known))? {
            self.passed.enter(&reading.reader.places);
            self.source = Source::Backlog(reading);
            return Ok(());
        }
        let shelf = site.shelf.as_ref().expect("the caller has looked, or what was read came from there");
        let Passed { known, reached, .. } = self.passed.clone();
        let wanted = Wanted::Next { known, reached, last: place, but: self.fruitless.clone() };
        self.source = Source::Waits(shelf.ask(wanted), Instant::now());
        Ok(())
    }

    fn enter(&mut self, found: Found) {
        self.passed.enter(&found.reader.places);
        self.before.clone_from(&self.passed.known);
        self.source = Source::Archive(found);
    }

    /// What was asked for, if it is known by now whether there is such a file.
    fn fetched(&mut self) -> Result<Option<Option<Found>>, Stop> {
        let Source::Waits(wish, since) = &self.source else { return Ok(None) };
        match wish.take() {
            None if since.elapsed() >= CHANGES_FETCH_PATIENCE => Err(Stop::Slow),
            None => Ok(None),
            Some(Ok(found)) => Ok(Some(found)),
            Some(Err(why)) => Err(io::Error::other(why).into()),
        }
    }
}

/// What was handed out: nothing comes twice when another file tells it again.
#[derive(Clone, Debug, Default)]
struct Passed {
    known: Vec<Place>,
    /// The latest moment of what was read.
    reached: UnixMillis,
    /// How far the present file has told: it may begin with what is known already.
    told: Vec<(u64, u32)>,
}

impl Passed {
    /// A file begins there.
    fn enter(&mut self, places: &[Place]) {
        self.told = places.iter().map(|place| (place.index, place.count)).collect();
    }

    /// What of it is new.
    fn pass(&mut self, mut tape: Tape) -> Result<Tape, Lacking> {
        let group = tape.group as usize;
        let founded = Place::founded(&tape);
        if group >= self.known.len() {
            self.known.resize(group + 1, founded);
        }
        if group >= self.told.len() {
            self.told.resize(group + 1, (founded.index, 0));
        }
        let (place, told) = (&mut self.known[group], &mut self.told[group]);
        if place.has_other_past(&tape) {
            return Err(Lacking::Gone("a log of the cluster has lost its end, and has another one since"));
        }
        place.pass(told, &mut tape);
        if tape.moment < NO_LATER {
            self.reached = self.reached.max(tape.moment);
        }
        Ok(tape)
    }
}

#[cfg(test)]
mod tests {
    use node::{Requests, Step};
    use stdx::Prng;

    use super::*;

    fn step(index: u64, nth: usize) -> Step {
        let requests = Requests { bytes: vec![nth as u8], runs: vec![(0, 1)], count: 1 };
        Step { index, moment: UnixMillis(index as i64 * 10), requests, ..Step::default() }
    }

    /// A log of a group with entries of some steps each, cut into tapes anywhere.
    fn tapes(steps: &[Step], from: usize, prng: &mut Prng) -> Vec<Tape> {
        let (mut tapes, mut begin) = (Vec::new(), from);
        while begin < steps.len() {
            let end = (begin + 1 + prng.below(4) as usize).min(steps.len());
            let steps = steps[begin..end].to_vec();
            let (first, last) = (steps[0].index, steps[steps.len() - 1].clone());
            tapes.push(Tape {
                group: 0,
                from: first - 1,
                index: last.index,
                moment: last.moment,
                has_gap: false,
                born: None,
                steps,
                standing: Vec::new(),
            });
            begin = end;
        }
        tapes
    }

    fn place(steps: &[Step], at: usize) -> Place {
        let Some(last) = at.checked_sub(1).map(|last| &steps[last]) else { return Place::default() };
        let count = steps[..at].iter().filter(|step| step.index == last.index).count() as u32;
        Place { index: last.index, count, moment: last.moment }
    }

    #[test]
    fn a_group_that_has_ended_has_no_moment() {
        let at = |moment| Place { index: 1, count: 0, moment };
        assert_eq!(latest_moment(&[at(UnixMillis(3)), at(NO_LATER), at(UnixMillis(2))]), UnixMillis(3));
    }

    #[test]
    fn what_several_files_tell_is_passed_on_once_wherever_they_begin() {
        for seed in 0..300 {
            let mut prng = Prng::new(seed);
            let mut steps = Vec::new();
            for index in 1..30 {
                (0..1 + prng.below(3) as usize).for_each(|nth| steps.push(step(index, nth)));
            }
            let mut passed = Passed { known: vec![Place::default()], ..Passed::default() };
            let (mut found, mut end) = (Vec::new(), 0);
            while end < steps.len() {
                let begin = prng.below(end as u64 + 1) as usize;
                end = (end + prng.below(20) as usize).min(steps.len());
                passed.enter(&[place(&steps, begin)]);
                for tape in tapes(&steps[..end], begin, &mut prng) {
                    found.extend(passed.pass(tape).expect("one history").steps);
                }
                assert_eq!((passed.known[0].index, passed.known[0].count), {
                    let place = place(&steps, end);
                    (place.index, place.count)
                });
            }
            assert_eq!(found, steps, "seed {seed}");
        }
    }

    #[test]
    fn a_file_that_begins_too_late_and_a_log_with_another_past_are_found_out() {
        let at = |index, count, moment| Place { index, count, moment: UnixMillis(moment) };
        assert!(follows(&[at(4, 2, 1)], &[at(4, 2, 1)]) && follows(&[at(4, 1, 1)], &[at(4, 2, 1)]));
        assert!(!follows(&[at(4, 3, 1)], &[at(4, 2, 1)]), "a step of the entry lacks");
        assert!(!follows(&[at(5, 0, 1)], &[at(4, 2, 1)]));
        assert!(follows(&[at(4, 2, 1), at(1, 0, 0)], &[at(4, 2, 1)]), "a group that was founded since");
        assert!(!follows(&[at(4, 2, 1), at(7, 0, 0)], &[at(4, 2, 1)]));
        let mut passed = Passed { known: vec![at(9, 1, 90)], ..Passed::default() };
        passed.enter(&[at(7, 0, 70)]);
        let tape = |step: Step| Tape { index: step.index, moment: step.moment, steps: vec![step], ..Tape::default() };
        assert!(passed.pass(tape(step(8, 0))).is_ok_and(|tape| tape.steps.is_empty()));
        assert!(passed.pass(tape(Step { moment: UnixMillis(95), ..step(9, 0) })).is_err());
    }
}

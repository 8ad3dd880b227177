//! What becomes of streams when the nodes of the source change: one fails and another has its slots, one gets slots for
//! the first time, one has none any more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anyhow::{Result, ensure};

use super::settle::{SLOTS_AT_ONCE, is_kept, read, standings};
use super::topology::{Claim, Topology};
use super::{End, Follower, Line, READING_BYTES_MAX};
use crate::backup::grouped;
use crate::migrate::follow::PAUSE_MIN;
use crate::migrate::source::Beginning;
use crate::migrate::target::Place;

impl Follower<'_, '_> {
    /// Notes which history a stream is in, and where.
    pub(super) fn stand(&mut self, number: u32, id: String, offset: u64) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        let Some(Some(place)) = self.places.get_mut(&number) else { return };
        if place.id != id {
            self.slots.restart(number);
        }
        (place.id, place.offset) = (id, offset);
        place.node.clone_from(&stream.node);
        place.place.clone_from(&stream.place);
        (stream.base, stream.line, stream.pause) = (offset, Line::Open, PAUSE_MIN);
    }

    /// A link is there: the stream goes on where it was, or with another copy.
    pub(super) fn opened(&mut self, number: u32, beginning: Beginning) -> Result<Option<End>> {
        let (Some(stream), Some(Some(place))) = (self.streams.get_mut(&number), self.places.get(&number)) else {
            return Ok(None);
        };
        if std::mem::take(&mut stream.is_told) {
            note_line!("{} is followed again", stream.place);
        }
        match beginning {
            Beginning::Continued { id } => {
                let offset = place.offset;
                self.stand(number, id, offset);
            }
            Beginning::Copy { id, offset } => {
                if !place.id.is_empty() {
                    // Another node took over from what it had. The same one has lost data, or its backlog is too short:
                    // then it is in the same history still.
                    let is_later = place.id == id && offset >= place.offset;
                    ensure!(
                        place.node != stream.node || self.may_empty || is_later,
                        "{} cannot continue its stream from offset {}: its backlog is gone, or it has lost its data; \
                         --resync copies its slots again",
                        stream.place,
                        place.offset
                    );
                    let own: Vec<u16> = self.slots.of(number).collect();
                    note_line!(
                        "{} cannot continue the stream of {} from offset {}: its {} slots are copied again",
                        stream.place,
                        place.place,
                        place.offset,
                        grouped(own.len() as u64)
                    );
                    own.into_iter().for_each(|slot| _ = self.slots.unsettle(slot));
                }
                // Also if it has the name of the history before.
                self.slots.restart(number);
                self.stand(number, id, offset);
            }
        }
        self.commit()
    }

    /// Opens links again that have broken, when it is time.
    pub(super) fn open_again(&mut self) -> Result<()> {
        let now = Instant::now();
        let is_due = |line: &Line| matches!(line, Line::Closed(at) if *at <= now);
        let due: Vec<u32> =
            self.streams.iter().filter(|(_, stream)| is_due(&stream.line)).map(|(number, _)| *number).collect();
        due.into_iter().try_for_each(|number| self.open(number, false))
    }

    /// Compares what the nodes say with what is followed.
    pub(super) fn look(&mut self, topology: Topology) -> Result<()> {
        let owners = topology.owners();
        let mut owning: BTreeMap<&str, &Claim> = BTreeMap::new();
        owners.iter().flatten().for_each(|claim| _ = owning.insert(&claim.node, claim));
        for (node, claim) in &owning {
            self.follow_node(node, claim, &owning)?;
        }
        let numbers: BTreeMap<String, u32> =
            self.streams.iter().map(|(number, stream)| (stream.node.clone(), *number)).collect();
        for slot in topology.open() {
            self.slots.unsettle(slot);
        }
        for (slot, claim) in (0..).zip(&owners) {
            let number = claim.and_then(|claim| numbers.get(&claim.node).copied());
            if number.is_some() && number != self.slots.owner(slot) && !self.slots.unsettled().contains(&slot) {
                self.slots.unsettle(slot);
            }
        }
        self.drop_streams(&owning);
        self.topology = topology;
        Ok(())
    }

    /// Makes sure that a node that has slots is followed.
    fn follow_node(&mut self, node: &str, claim: &Claim, owning: &BTreeMap<&str, &Claim>) -> Result<()> {
        if let Some(stream) = self.streams.values_mut().find(|stream| stream.node == node) {
            // A link that is there goes on.
            stream.place.clone_from(&claim.place);
            return Ok(());
        }
        let own: BTreeSet<u16> = claim.slots.iter().copied().collect();
        let shared = |number: u32| self.slots.of(number).filter(|slot| own.contains(slot)).count();
        let orphans = self.streams.iter().filter(|(_, stream)| !owning.contains_key(&*stream.node));
        let successor_of = orphans
            .map(|(number, _)| (shared(*number), *number))
            .filter(|(shared, _)| *shared > 0)
            .max_by_key(|(shared, number)| (*shared, u32::MAX - *number));
        let number = match successor_of {
            Some((_, number)) => {
                if let Some(stream) = self.streams.get_mut(&number) {
                    note_line!("{} has the slots of {} now", claim.place, stream.place);
                    node.clone_into(&mut stream.node);
                    stream.place.clone_from(&claim.place);
                }
                number
            }
            None => {
                note_line!("{} has slots now, and is followed, too", claim.place);
                let number = self.places.keys().next_back().map_or(0, |last| last + 1);
                let place = Place { node: node.to_owned(), place: claim.place.clone(), ..Place::default() };
                self.places.insert(number, Some(place));
                self.add(number, node, &claim.place);
                number
            }
        };
        self.open(number, false)
    }

    /// Ends streams of nodes that have no slots any more, and do not answer.
    fn drop_streams(&mut self, owning: &BTreeMap<&str, &Claim>) {
        let (slots, places) = (&self.slots, &mut self.places);
        self.streams.retain(|number, stream| {
            let is_needed = !matches!(stream.line, Line::Closed(_))
                || owning.contains_key(&*stream.node)
                || slots.of(*number).next().is_some();
            if !is_needed {
                note_line!("{} has no slots any more, and is not followed any longer", stream.place);
                places.insert(*number, None);
            }
            is_needed
        });
    }

    /// Reads slots that have moved. What cannot be read now is read later.
    pub(super) fn read_slots(&mut self) {
        if self.slots.unread().next().is_none() || self.slots.reading_bytes() > READING_BYTES_MAX {
            return;
        }
        let is_open = |number: &u32| self.streams.get(number).is_some_and(|it| matches!(it.line, Line::Open));
        let numbers: BTreeMap<&str, u32> =
            self.streams.iter().map(|(number, stream)| (&*stream.node, *number)).collect();
        let (owners, open) = (self.topology.owners(), self.topology.open());
        let mut wanted: BTreeMap<u32, Vec<u16>> = BTreeMap::new();
        for slot in self.slots.unread().filter(|slot| !open.contains(slot)) {
            let owner = owners[usize::from(slot)].and_then(|claim| numbers.get(&*claim.node).copied());
            if let Some(number) = owner.filter(is_open) {
                wanted.entry(number).or_default().push(slot);
            }
        }
        for (number, mut slots) in wanted {
            if self.slots.reading_bytes() > READING_BYTES_MAX {
                break;
            }
            slots.truncate(SLOTS_AT_ONCE);
            // What cannot be read now is read later: a node that is away is told of by its link.
            let _ = self.read_of(number, &slots);
        }
    }

    /// Reads slots of the node of a stream.
    fn read_of(&mut self, number: u32, slots: &[u16]) -> Result<()> {
        let open = self.streams.iter().filter(|(_, stream)| matches!(stream.line, Line::Open));
        let places: BTreeMap<u32, String> = open.map(|(number, stream)| (*number, stream.place.clone())).collect();
        let Some(place) = places.get(&number) else { return Ok(()) };
        let before = standings(&mut self.survey, &places)?;
        let slots: Vec<u16> = slots.iter().copied().filter(|slot| is_kept(*slot, number, &before, &before)).collect();
        if slots.is_empty() {
            return Ok(());
        }
        let found = read(self.survey.connection(place)?, number, &slots).inspect_err(|_| self.survey.forget(place))?;
        let after = standings(&mut self.survey, &places)?;
        let id_of = |number: &u32| Some(&self.places.get(number)?.as_ref()?.id);
        for (slot, id, reading) in found {
            if !is_kept(slot, number, &before, &after) || id_of(&number) != Some(&id) {
                continue;
            }
            let others =
                before.iter().filter(|(other, standing)| **other != number && id_of(other) == Some(&standing.id));
            let fences = others.map(|(other, standing)| (*other, standing.offset)).collect();
            self.slots.read(slot, reading, fences);
        }
        Ok(())
    }
}

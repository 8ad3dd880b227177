//! Reads the backlog from some place on, file after file, while it is written.

use std::io::{self, ErrorKind};
use std::time::Duration;

use node::Tape;
use site::reaches_back;

use super::backlog::{Segment, SegmentReader};
use super::{Site, lock};

const TOO_SLOW: &str = "it is too slow: what it lacks is not in the backlog any more";

/// How often, and how soon again, a file is looked for that has just gone.
const TRIES_MAX: u32 = 100;
const TRY_INTERVAL: Duration = Duration::from_millis(10);

/// Where the backlog is read.
#[derive(Clone)]
pub struct Reading {
    pub reader: SegmentReader,
    pub sequence: u64,
    /// Of groups: how far it was read.
    pub read: Vec<u64>,
}

/// Why it cannot be read on.
#[derive(Debug)]
pub enum Lacking {
    /// The disk is at fault.
    Fault(io::Error),
    /// What comes next is not in the backlog any more, or never was.
    Gone(&'static str),
}

impl From<io::Error> for Lacking {
    fn from(error: io::Error) -> Self {
        Self::Fault(error)
    }
}

impl Reading {
    /// Begins as late as it can so that all behind these places comes; none if something of that is missing.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn open_behind(site: &Site, places: &[u64]) -> io::Result<Option<Self>> {
        let Some(mut reading) = Self::open(site, |segment| reaches_back(&segment.places, places))? else {
            return Ok(None);
        };
        let kept = lock(&site.kept);
        let segment = kept.segments.iter().find(|segment| segment.sequence == reading.sequence);
        if let Some(mark) = segment.and_then(|segment| segment.mark_before(places)) {
            reading.reader.begin_at(mark);
            reading.read = reading.reader.places.iter().map(|place| place.index).collect();
        }
        Ok(Some(reading))
    }

    /// Begins with the newest file that holds all that is wanted; none if there is no such file.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn open(site: &Site, holds_all: impl Fn(&Segment) -> bool) -> io::Result<Option<Self>> {
        let mut tried_count = 0;
        loop {
            let (directory, segment) = {
                let kept = lock(&site.kept);
                let segment = kept.segments.iter().rev().find(|segment| holds_all(segment)).cloned();
                (kept.directory.clone(), segment)
            };
            let Some(segment) = segment else { return Ok(None) };
            match SegmentReader::open(&directory, segment.sequence, site.cluster) {
                // The oldest file goes first, and then it is said that it has.
                Err(error) if error.kind() == ErrorKind::NotFound && tried_count < TRIES_MAX => {
                    tried_count += 1;
                    std::thread::sleep(TRY_INTERVAL);
                }
                reader => {
                    let reader = reader?;
                    let read = reader.places.iter().map(|place| place.index).collect();
                    return Ok(Some(Self { reader, sequence: segment.sequence, read }));
                }
            }
        }
    }

    /// What comes next; none if there is no more yet.
    ///
    /// # Errors
    /// If it cannot be read, or is not there any more.
    pub fn next(&mut self, site: &Site) -> Result<Option<Tape>, Lacking> {
        loop {
            let (end, next, directory) = {
                let kept = lock(&site.kept);
                let own = kept.segments.iter().position(|segment| segment.sequence == self.sequence);
                let next = own.and_then(|own| kept.segments.get(own + 1));
                let next = next.map(|next| (next.sequence, next.places.clone()));
                (own.map(|own| kept.segments[own].bytes), next, kept.directory.clone())
            };
            let end = end.ok_or(Lacking::Gone(TOO_SLOW))?;
            if let Some(tape) = self.reader.next(end)? {
                let group = tape.group as usize;
                if group >= self.read.len() {
                    self.read.resize(group + 1, 0);
                }
                self.read[group] = self.read[group].max(tape.index);
                return Ok(Some(tape));
            }
            let Some((sequence, places)) = next else { return Ok(None) };
            if !reaches_back(&places, &self.read) {
                return Err(Lacking::Gone("something is missing in the backlog of this node"));
            }
            self.reader = match SegmentReader::open(&directory, sequence, site.cluster) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Err(Lacking::Gone(TOO_SLOW)),
                reader => reader?,
            };
            self.sequence = sequence;
        }
    }
}

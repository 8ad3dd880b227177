//! What a near node tells one far cluster: batches as soon as they are complete, and how far it is.

use node::Tape;
use stdx::UnixMillis;

use crate::merge::{Batch, Merger, Unprepared};
use crate::wire::State;

/// Tells what comes behind a place.
#[derive(Debug)]
pub struct Teller {
    merger: Merger,
    /// So many steps are read ahead, to make large batches of them,
    ahead_min: usize,
    /// and now so many.
    ahead: usize,
}

impl Teller {
    /// One that tells what comes behind these places, of which nothing is later than this moment, from files with this
    /// beginning. It reads so many steps ahead.
    pub fn new(places: Vec<u64>, moment: UnixMillis, beginning: Vec<Tape>, ahead_min: usize) -> Self {
        let mut merger = Merger::new(places, moment);
        beginning.into_iter().for_each(|tape| merger.push(tape));
        Self { merger, ahead_min, ahead: ahead_min }
    }

    /// True if it should read on before it makes batches.
    pub fn wants_more(&self) -> bool {
        self.merger.waiting() < self.ahead
    }

    /// Takes what was read.
    pub fn push(&mut self, tape: Tape) {
        self.merger.push(tape);
    }

    /// The next batch, if one is complete.
    ///
    /// # Errors
    /// If the backlog begins behind the place, or a log has lost what the far cluster has.
    pub fn batch(&mut self) -> Result<Option<Batch>, Unprepared> {
        self.merger.next_batch()
    }

    /// All that was complete has been sent. What was read and is not may all belong behind something that was not read.
    pub fn settle(&mut self, has_sent: bool, is_at_end: bool) {
        self.ahead = if has_sent || is_at_end { self.ahead_min } else { self.ahead + self.ahead_min };
    }

    /// True if the far cluster lacks nothing of what was read up to these places, which is all there is if `is_at_end`.
    pub fn is_level(&self, read: &[u64], is_at_end: bool) -> bool {
        is_at_end && self.merger.is_empty() && self.merger.is_ahead_of_start(read)
    }

    /// How far the near side is.
    pub fn state(&self, read: &[u64], is_at_end: bool, now: UnixMillis, (bytes, steps): (u64, u64)) -> State {
        State {
            now,
            moment: self.merger.closed(),
            places: if self.is_level(read, is_at_end) { read.to_vec() } else { Vec::new() },
            pending_bytes: bytes,
            pending_steps: steps + self.merger.waiting() as u64,
            level: None,
        }
    }
}

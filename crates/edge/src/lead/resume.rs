//! A stream that goes on after a restart.
//!
//! What is in the stream is known by places in the logs of groups ([`Mark`]). A group that starts again tells again all
//! that it did since its checkpoint, and of that only what is not in the stream is taken: what comes behind the last
//! place that was, and the few steps before it that waited for parts of their transactions.
//!
//! Sweeps are no part of a log: replicas remove at places of their own what has expired. Of a sweep that is told again
//! it is not known whether the stream has it. So it is told once more where the stream went on, unless its key was
//! changed in between: there it removes, or sets, what is so already.

use std::collections::{BTreeMap, BTreeSet};

use node::{DatabaseKey, Phase, Step, TransactionId};
use stdx::UnixMillis;

use super::merge::{Merger, Queued, step_bytes};
use crate::fields::{Fields, put_u64};
use crate::limits::STREAM_WAITING_BYTES_MAX;

/// Where a step stands in the log of its group: the index of its entry, and its number among the steps of that.
pub type Mark = (u64, u32);

/// Steps of the entry at which a group begins to tell: how many came before is not known. It is more than any entry
/// has.
pub const UNCOUNTED: u32 = 1 << 31;

/// How far a group was taken, and what it tells again.
#[derive(Debug, Default)]
pub struct Resumed {
    /// Up to here all is in the stream but what has waited.
    pub known: Mark,
    /// Nothing up to there is of a later moment.
    pub moment: UnixMillis,
    /// What has waited.
    pub waiting: BTreeSet<Mark>,
    /// What was swept away so far, as it was last told.
    swept: BTreeMap<DatabaseKey, Step>,
    swept_bytes: usize,
}

/// What becomes of a step that is told.
#[derive(Debug)]
pub enum Sifted {
    /// It comes behind all that is told again.
    Behind,
    /// It has waited. These sweeps come before it.
    Waited(Vec<Step>),
    /// It is in the stream, or is kept until all is told again.
    Taken,
    /// The stream cannot go on, and why.
    Broken(&'static str),
}

impl Resumed {
    /// One that was taken up to there.
    pub fn new(known: Mark, moment: UnixMillis, waiting: BTreeSet<Mark>) -> Self {
        Self { known, moment, waiting, ..Self::default() }
    }

    /// True if a group that tells what it did behind this index tells all that is not in the stream.
    pub fn reaches(&self, from: u64) -> bool {
        // All steps of an entry are told, or none.
        from <= self.known.0 && self.waiting.first().is_none_or(|(index, _)| from < *index)
    }

    /// True if a group that has told so far has told all again.
    pub fn is_over(&self, told: Mark) -> bool {
        told >= self.known || told.0 == self.known.0 && self.known.1 >= UNCOUNTED
    }

    /// What becomes of a step that stands there.
    pub fn sift(&mut self, mark: Mark, step: &Step) -> Sifted {
        if step.phase == Phase::Swept {
            if mark >= self.known {
                return Sifted::Behind;
            }
            let [key] = &step.keys[..] else { return Sifted::Broken("a sweep of several keys") };
            self.swept_bytes += step_bytes(step);
            if let Some(earlier) = self.swept.insert(key.clone(), step.clone()) {
                self.swept_bytes -= step_bytes(&earlier);
            }
            if self.swept_bytes > STREAM_WAITING_BYTES_MAX {
                return Sifted::Broken("too much has expired that is told again");
            }
            return Sifted::Taken;
        }
        if mark > self.known {
            return Sifted::Behind;
        }
        if step.moment > self.moment {
            return Sifted::Broken("a log has lost its end");
        }
        if step.is_whole && !self.swept.is_empty() {
            return Sifted::Broken("databases were emptied or exchanged, or slots moved, after keys had expired");
        }
        let is_done = step.phase == Phase::Done;
        let mut sweeps = Vec::new();
        for key in step.keys.iter().filter(|_| is_done) {
            if let Some(sweep) = self.swept.remove(key) {
                self.swept_bytes -= step_bytes(&sweep);
                sweeps.push(sweep);
            }
        }
        if self.waiting.remove(&mark) { Sifted::Waited(sweeps) } else { Sifted::Taken }
    }

    /// All has been told again: how far, and what was swept away meanwhile.
    pub fn end(self) -> (Mark, UnixMillis, Vec<Step>) {
        (self.known, self.moment, self.swept.into_values().collect())
    }

    /// How far it is, for another process, if these wait again.
    pub fn progress<'q>(&self, steps: impl Iterator<Item = &'q Queued>) -> (Mark, UnixMillis, Vec<Mark>) {
        let again = steps.filter(|queued| queued.step.phase != Phase::Swept).map(|queued| queued.mark);
        (self.known, self.moment, self.waiting.iter().copied().chain(again).collect())
    }
}

/// Writes how far groups were taken, so that another process can go on. False if none can.
pub fn put(merger: &Merger, out: &mut Vec<u8>) -> bool {
    if (0..merger.queues.len()).any(|group| !merger.is_born(group)) {
        return false;
    }
    put_u64(out, merger.selected.map_or(0, |database| u64::from(database) + 1));
    put_u64(out, merger.queues.len() as u64);
    for queue in &merger.queues {
        let ((index, nth), moment, waiting) = queue.progress();
        put_u64(out, index);
        put_u64(out, u64::from(nth));
        put_u64(out, moment.0.cast_unsigned());
        put_u64(out, waiting.len() as u64);
        for (index, nth) in waiting {
            put_u64(out, index);
            put_u64(out, u64::from(nth));
        }
        put_u64(out, queue.open.len() as u64);
        for (TransactionId { gateway, number }, index) in &queue.open {
            for number in [gateway.node, gateway.boot, u64::from(gateway.core.0), *number, *index] {
                put_u64(out, number);
            }
        }
    }
    true
}

/// Reads it; `None` if that is not what it is.
pub fn take(bytes: &[u8], group_count: usize) -> Option<Merger> {
    let mut fields = Fields(bytes);
    let selected = match fields.u64()? {
        0 => None,
        database => Some(u16::try_from(database - 1).ok()?),
    };
    let mut groups = Vec::new();
    for _ in 0..fields.u64()? {
        let known = mark(&mut fields)?;
        let moment = UnixMillis(fields.u64()?.cast_signed());
        let count = fields.u64()?;
        let waiting = (0..count).map(|_| mark(&mut fields)).collect::<Option<BTreeSet<_>>>()?;
        let count = fields.u64()?;
        let open = (0..count).map(|_| open(&mut fields)).collect::<Option<BTreeMap<_, _>>>()?;
        groups.push((Resumed::new(known, moment, waiting), open));
    }
    fields.0.is_empty().then(|| Merger::resumed(selected, groups, group_count))
}

fn mark(fields: &mut Fields<'_>) -> Option<Mark> {
    Some((fields.u64()?, u32::try_from(fields.u64()?).ok()?))
}

fn open(fields: &mut Fields<'_>) -> Option<(TransactionId, u64)> {
    let (node, boot) = (fields.u64()?, fields.u64()?);
    let core = group::ids::CoreId(u16::try_from(fields.u64()?).ok()?);
    let number = fields.u64()?;
    Some((TransactionId { gateway: node::GatewayId { node, boot, core }, number }, fields.u64()?))
}

//! A replica of another kind: it knows no log, no moment and no chance, only what it is told a group has done, and
//! holds what the group holds.

use keyspace::debug::value_digest;
use keyspace::{Keyspace, Layout, Limits, Moment, Options, ValueRef};
use resp::{Frame, FrameDecoder, Writer};
use state::{Reader, Requests, State};

use crate::reply::with_args;

/// Follows one group.
pub(super) struct Follower {
    keyspace: Keyspace,
    /// Requests carried out.
    pub(super) count: u64,
}

/// Carries out a request as one who follows; false if it is none on keys, as libraries of functions are none.
pub(super) fn carry_out(keyspace: &mut Keyspace, database: u16, request: &Frame) -> Result<bool, String> {
    let words = request.elements().unwrap_or_default();
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes().unwrap_or_default()).collect();
    with_args(&words, |args| {
        let Some(command) = keyspace::resolve(args) else { return Ok(false) };
        let mut writer = Writer::default();
        keyspace.mutate(database, command, args, Moment::default(), &mut writer);
        match writer.bytes() {
            refusal @ [b'-', ..] => Err(format!("{request} was refused: {}", String::from_utf8_lossy(refusal))),
            _ => Ok(true),
        }
    })
}

/// A Redis without the modules is not told of documents of JSON and of sketches.
fn is_told(value: ValueRef<'_>) -> bool {
    !value.is_of_module()
}

impl Follower {
    /// One that has a copy of what the state holds. From now on the state tells what it does.
    pub(super) fn of(state: &mut State) -> Self {
        let keyspace = Self::copy(state);
        state.record(Some(Reader::Redis7));
        Self { keyspace, count: 0 }
    }

    fn copy(state: &State) -> Keyspace {
        let ours = state.keyspace();
        let (databases, tuning) = (ours.database_count(), ours.tuning());
        let mut keyspace = Keyspace::new(Options { databases, hash_seed: 1, layout: Layout::Scratch, tuning });
        // As a replica does, it lets nothing expire unless it is told to.
        keyspace.set_limits(Limits { keeps_expired: true, ..ours.limits() });
        let moment = state.moment();
        for database in 0..databases {
            ours.for_each(database, moment, |entry| {
                if is_told(entry.value()) {
                    ours.copy_key(database, entry.key(), moment, &mut keyspace);
                }
            });
        }
        keyspace
    }

    /// Carries out what the state has done since it was last asked.
    pub(super) fn follow(&mut self, state: &mut State) -> Result<(), String> {
        let steps = state.take_tape().map(|tape| tape.steps).unwrap_or_default();
        if steps.iter().any(|step| step.is_move) {
            // Of slots that move, the other group tells: who follows this one alone must look.
            self.keyspace = Self::copy(state);
            return Ok(());
        }
        steps.iter().flat_map(|step| [&step.wide, &step.requests]).try_for_each(|requests| self.carry_out(requests))
    }

    fn carry_out(&mut self, requests: &Requests) -> Result<(), String> {
        let mut begin = 0;
        for &(database, end) in &requests.runs {
            let mut decoder = FrameDecoder::new();
            decoder.extend(&requests.bytes[begin..end]);
            begin = end;
            while let Some(frame) = decoder.next_frame().map_err(|malformed| malformed.to_string())? {
                self.count += u64::from(carry_out(&mut self.keyspace, database, &frame)?);
            }
        }
        Ok(())
    }

    /// Compares the two, once the state has removed what has expired.
    pub(super) fn compare(&mut self, state: &mut State) -> Result<(), String> {
        let moment = state.moment();
        while state.upkeep().collect(moment, 1_000) {}
        self.follow(state)?;
        for database in 0..self.keyspace.database_count() {
            let (ours, theirs) = (state.keyspace().view(database, moment), self.keyspace.view(database, moment));
            let (mut count, mut differs) = (0, None);
            ours.for_each(|entry| {
                if !is_told(entry.value()) {
                    return;
                }
                count += 1;
                // Their groups and fields carry times, and a follower is told less of those.
                let is_told_less = matches!(entry.value(), ValueRef::Stream(_) | ValueRef::Hash(_));
                let key = entry.key();
                let is_same = match is_told_less {
                    true => theirs.contains(key),
                    false => value_digest(&ours, key) == value_digest(&theirs, key),
                };
                if !is_same {
                    differs = Some(format!("{} of database {database}", String::from_utf8_lossy(key)));
                }
            });
            let mut told = 0;
            theirs.for_each(|_| told += 1);
            if let Some(key) = differs {
                return Err(format!("{key} is not what it is here"));
            }
            if count != told {
                return Err(format!("{told} keys in database {database}, and here {count}"));
            }
        }
        Ok(())
    }
}

//! What the keys of a group will hold once everything that has been logged is applied, for the keys that scripts have
//! changed.
//!
//! A script runs before its changes are logged. It must see those of the scripts before it, which are logged and not
//! yet applied. So what a script changes is kept here until its entry is applied: a later script's entry stands behind
//! it in the log, and cannot be committed without it. Changes that are logged as clients sent them are not known here
//! before they are applied: a script that meets such a key is turned away, and takes the way of a transaction. Which
//! keys these are is remembered roughly: a key may be taken for changed that is not, never the other way round.

use std::collections::VecDeque;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use hashbrown::hash_map::EntryRef;
use keyspace::{Keyspace, Layout, Lookups, Moment};
use stdx::Level;

/// See the module. Batches are numbered as they are proposed.
pub(crate) struct Speculation {
    scratch: Keyspace,
    databases: u16,
    /// The keys that are here, by database, with the batch that brings them to this state.
    keys: Vec<Keys>,
    /// The same in the order of batches; a key changed again is there again.
    order: VecDeque<(u64, u16, Arc<[u8]>)>,
    /// Keys that others change: of the latest batches, and of those before.
    recent: Marks,
    older: Marks,
    /// Until this batch has been applied every key counts as changed by others.
    everything_until: u64,
    /// False while nobody uses scripts: then nothing is remembered.
    pub is_active: bool,
}

/// Nothing ever depends on its order.
type Keys = HashMap<Arc<[u8]>, u64, FixedState>;

/// A rough set of keys.
struct Marks {
    bits: Vec<u64>,
    /// The last batch that one of them belongs to.
    until: u64,
}

const MARK_WORDS: usize = 1024;

impl Marks {
    fn new() -> Self {
        Self { bits: Vec::new(), until: 0 }
    }

    fn insert(&mut self, key: &[u8], number: u64) {
        if self.bits.is_empty() {
            self.bits.resize(MARK_WORDS, 0);
        }
        let place = place_of(key);
        self.bits[place / 64] |= 1 << (place % 64);
        self.until = number;
    }

    fn covers(&self, key: &[u8]) -> bool {
        if self.until == 0 {
            return false;
        }
        let place = place_of(key);
        self.bits[place / 64] >> (place % 64) & 1 == 1
    }

    fn clear(&mut self) {
        if self.until > 0 {
            self.bits.fill(0);
            self.until = 0;
        }
    }
}

/// FNV-1a (Fowler, Noll, Vo), folded.
fn place_of(key: &[u8]) -> usize {
    let hash = key
        .iter()
        .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3));
    (hash ^ (hash >> 32)) as usize % (MARK_WORDS * 64)
}

/// What one run of a script has done here.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    touched: Vec<Touched>,
    /// It has seen what is not applied yet.
    pub(crate) saw_pending: bool,
}

#[derive(Debug)]
struct Touched {
    database: u16,
    key: Arc<[u8]>,
    /// It was not here before.
    is_fresh: bool,
    /// It may have been changed.
    is_altered: bool,
}

impl Trace {
    /// This key of a database, if it is among these.
    fn find(&mut self, database: u16, key: &[u8]) -> Option<&mut Touched> {
        self.touched.iter_mut().find(|touched| touched.database == database && *touched.key == *key)
    }
}

impl Speculation {
    pub fn new(databases: u16) -> Self {
        Self {
            scratch: scratch(databases),
            databases,
            keys: (0..databases).map(|_| Keys::with_hasher(FixedState::with_seed(0))).collect(),
            order: VecDeque::new(),
            recent: Marks::new(),
            older: Marks::new(),
            everything_until: 0,
            is_active: false,
        }
    }

    /// Begins to remember what others change. What they have changed up to now is not known; `number` is the last batch
    /// that is not applied, 0 if there is none. What is run here is logged at `level`.
    pub(crate) fn activate(&mut self, number: u64, level: Level) {
        self.scratch.set_level(level);
        if !self.is_active {
            self.is_active = true;
            self.note_everything(number);
        }
    }

    /// Somebody else changes this key with batch `number`.
    pub fn note(&mut self, key: &[u8], number: u64) {
        if !self.is_active {
            return;
        }
        self.recent.insert(key, number);
        for keys in self.keys.iter_mut().filter(|keys| !keys.is_empty()) {
            // The state kept here is not the last one any more.
            keys.remove(key);
        }
    }

    /// Somebody else may change any key with batch `number`.
    pub(crate) fn note_everything(&mut self, number: u64) {
        if self.is_active {
            self.everything_until = number;
            self.forget_keys();
        }
    }

    /// True if somebody else's change of this key may be logged and not applied.
    pub(crate) fn is_changing(&self, key: &[u8]) -> bool {
        self.everything_until > 0 || self.recent.covers(key) || self.older.covers(key)
    }

    /// True if nothing is logged and not applied, as far as is known here.
    pub fn is_settled(&self) -> bool {
        self.everything_until == 0
            && self.recent.until == 0
            && self.older.until == 0
            && self.keys.iter().all(HashMap::is_empty)
    }

    /// All batches up to `number` have been applied.
    pub fn settle(&mut self, number: u64) {
        if self.everything_until <= number {
            self.everything_until = 0;
        }
        if self.older.until <= number {
            self.older.clear();
            std::mem::swap(&mut self.older, &mut self.recent);
            if self.older.until <= number {
                self.older.clear();
            }
        }
        // Mostly everything that scripts have changed is applied by now, and need not be looked up to go.
        if self.order.back().is_some_and(|(until, ..)| *until <= number) {
            self.order.clear();
            self.keys.iter_mut().for_each(HashMap::clear);
            self.scratch.empty();
        }
        while self.order.front().is_some_and(|(until, ..)| *until <= number) {
            let (until, database, key) = self.order.pop_front().expect("just seen");
            // Changed again by a later script, it stays. Taken out because somebody else has changed it, it is still to
            // go from the scratch keyspace.
            match self.keys[usize::from(database)].entry_ref(&*key) {
                EntryRef::Occupied(entry) if *entry.get() > until => continue,
                EntryRef::Occupied(entry) => _ = entry.remove(),
                EntryRef::Vacant(_) => {}
            }
            self.scratch.edit(database, Moment::default()).remove(&key);
        }
        self.scratch.collect(Moment::default(), COLLECT_PER_BATCH);
        if self.order.is_empty() && self.scratch.memory_bytes() > KEPT_BYTES_MAX {
            self.scratch = scratch(self.databases);
            self.keys.iter_mut().for_each(HashMap::shrink_to_fit);
        }
    }

    /// Forgets everything, when leadership is lost.
    pub fn clear(&mut self) {
        *self = Self::new(self.databases);
    }

    fn forget_keys(&mut self) {
        if self.keys.iter().any(|keys| !keys.is_empty()) || !self.order.is_empty() {
            self.keys.iter_mut().for_each(HashMap::clear);
            self.order.clear();
            self.scratch = scratch(self.databases);
        }
    }

    /// True if a key is here.
    pub fn holds(&self, database: u16, key: &[u8]) -> bool {
        self.keys[usize::from(database)].contains_key(key)
    }

    /// The keys that are here, with what brings them here.
    pub fn scratch(&mut self) -> &mut Keyspace {
        &mut self.scratch
    }

    /// What has been looked up here since that was last asked.
    pub(crate) fn take_lookups(&mut self) -> Lookups {
        let lookups = self.scratch.lookups();
        self.scratch.set_lookups(Lookups::default());
        lookups
    }

    /// Brings a key here, unless it is; false if it was not. `number` is the batch that the script belongs to.
    pub fn bring(
        &mut self,
        from: &Keyspace,
        database: u16,
        key: &[u8],
        moment: Moment,
        number: u64,
        trace: &mut Trace,
    ) -> bool {
        let EntryRef::Vacant(entry) = self.keys[usize::from(database)].entry_ref(key) else { return true };
        let name: Arc<[u8]> = key.into();
        entry.insert_entry_with_key(Arc::clone(&name), number);
        trace.touched.push(Touched { database, key: name, is_fresh: true, is_altered: false });
        self.scratch.set_limits(from.limits());
        from.copy_key(database, key, moment, &mut self.scratch);
        false
    }

    /// Notes that a script of batch `number` may have changed a key that is here.
    pub(crate) fn alter(&mut self, database: u16, key: &[u8], number: u64, trace: &mut Trace) {
        if let Some(touched) = trace.find(database, key) {
            touched.is_altered = true;
            return;
        }
        let EntryRef::Occupied(mut entry) = self.keys[usize::from(database)].entry_ref(key) else {
            unreachable!("a key is brought before it is altered")
        };
        entry.insert(number);
        let key = Arc::clone(entry.key());
        trace.touched.push(Touched { database, key, is_fresh: false, is_altered: true });
    }

    /// A script has ended, and its changes are part of batch `number`.
    pub fn keep(&mut self, trace: Trace, number: u64) {
        for Touched { database, key, is_altered, .. } in trace.touched {
            if is_altered {
                self.order.push_back((number, database, key));
            } else {
                self.drop_key(database, &key);
            }
        }
    }

    /// A script is given up, and what it did here must not be seen. `number` is the last batch that is not applied, 0
    /// if there is none.
    pub fn undo(&mut self, trace: Trace, number: u64) {
        for Touched { database, key, is_fresh, is_altered } in trace.touched {
            if is_fresh || is_altered {
                self.drop_key(database, &key);
            }
            // What an earlier script made of it is lost here, and will be known again when it has been applied.
            if is_altered && !is_fresh && number > 0 {
                self.recent.insert(&key, number);
            }
        }
    }

    fn drop_key(&mut self, database: u16, key: &[u8]) {
        self.keys[usize::from(database)].remove(key);
        self.scratch.edit(database, Moment::default()).remove(key);
    }
}

/// Large values are freed in pieces.
const COLLECT_PER_BATCH: usize = 16;

/// Memory that an emptied scratch keyspace may keep.
const KEPT_BYTES_MAX: usize = 1 << 20;

fn scratch(databases: u16) -> Keyspace {
    Keyspace::new(keyspace::Options {
        databases,
        hash_seed: 0,
        layout: Layout::Scratch,
        tuning: keyspace::Tuning::default(),
    })
}

#[cfg(test)]
mod tests {
    use stdx::{Levels, UnixMillis};

    use super::*;
    use crate::one_command::run_one;

    const MOMENT: Moment = Moment { unix: UnixMillis(1_000), seed: 0 };

    fn run(keyspace: &mut Keyspace, words: &[&[u8]]) -> String {
        let (mut buffer, mut spans) = (Vec::new(), Vec::new());
        for word in words {
            let start = buffer.len() as u32;
            buffer.extend_from_slice(word);
            spans.push(resp::Span { start, end: buffer.len() as u32 });
        }
        let mut writer = resp::Writer::default();
        run_one(keyspace, 0, resp::Args::new(&buffer, &spans), MOMENT, &mut writer);
        String::from_utf8_lossy(writer.bytes()).into_owned()
    }

    #[test]
    fn a_script_sees_the_one_before_it_until_both_are_applied() {
        let base = scratch(1);
        let mut ahead = Speculation::new(1);
        ahead.activate(0, Levels::KNOWN.highest);
        ahead.settle(0);
        for number in [1, 2] {
            let mut trace = Trace::default();
            ahead.bring(&base, 0, b"n", MOMENT, number, &mut trace);
            ahead.alter(0, b"n", number, &mut trace);
            assert_eq!(run(ahead.scratch(), &[b"incr", b"n"]), format!(":{number}\r\n"));
            ahead.keep(trace, number);
        }
        ahead.settle(1);
        assert!(ahead.holds(0, b"n"));
        ahead.settle(2);
        assert!(!ahead.holds(0, b"n"));
        assert!(ahead.is_settled());
    }

    #[test]
    fn a_change_of_somebody_else_hides_what_scripts_have_made() {
        let base = scratch(1);
        let mut ahead = Speculation::new(1);
        ahead.activate(0, Levels::KNOWN.highest);
        ahead.settle(0);
        let mut trace = Trace::default();
        ahead.bring(&base, 0, b"n", MOMENT, 1, &mut trace);
        ahead.alter(0, b"n", 1, &mut trace);
        run(ahead.scratch(), &[b"set", b"n", b"5"]);
        ahead.keep(trace, 1);
        ahead.note(b"n", 2);
        assert!(!ahead.holds(0, b"n"));
        assert!(ahead.is_changing(b"n"));
        ahead.settle(1);
        assert!(ahead.is_changing(b"n"), "the second batch is not applied");
        ahead.settle(2);
        assert!(!ahead.is_changing(b"n"));
    }

    #[test]
    fn what_a_script_did_before_it_was_given_up_is_not_seen() {
        let base = scratch(1);
        let mut ahead = Speculation::new(1);
        ahead.activate(0, Levels::KNOWN.highest);
        ahead.settle(0);
        let mut trace = Trace::default();
        ahead.bring(&base, 0, b"a", MOMENT, 1, &mut trace);
        ahead.alter(0, b"a", 1, &mut trace);
        run(ahead.scratch(), &[b"set", b"a", b"1"]);
        ahead.keep(trace, 1);
        let mut trace = Trace::default();
        for key in [b"a", b"b"] {
            ahead.bring(&base, 0, key, MOMENT, 2, &mut trace);
            ahead.alter(0, key, 2, &mut trace);
            run(ahead.scratch(), &[b"set", key, b"2"]);
        }
        ahead.undo(trace, 2);
        assert!(!ahead.holds(0, b"a") && !ahead.holds(0, b"b"));
        assert!(ahead.is_changing(b"a"), "the first script's change is not applied");
        assert!(!ahead.is_changing(b"b"));
    }

    #[test]
    fn nobody_knows_what_was_logged_before_scripts_were_used() {
        let mut ahead = Speculation::new(1);
        ahead.activate(3, Levels::KNOWN.highest);
        assert!(ahead.is_changing(b"x"));
        ahead.settle(2);
        assert!(ahead.is_changing(b"x"));
        ahead.settle(3);
        assert!(!ahead.is_changing(b"x"));
    }
}

//! Which keys the commands of a batch work on: found out only when a transaction over groups asks, because it need not
//! wait for changes to other keys.

use std::collections::BTreeSet;

use command::Group;
use resp::{Args, Span};

use message::entry::{Bookmark, Effect, Item, Reader};

/// What a batch works on. It may say so of a key that it does not work on, never the other way round.
#[derive(Debug, Default)]
pub(crate) struct WriteSet {
    read_to: Bookmark,
    /// Hashes of keys.
    keys: BTreeSet<u64>,
    /// It is too long to be looked through, or works on keys that its words do not tell.
    is_all: bool,
}

/// Bytes of a batch that are looked through.
const BYTES_MAX: usize = 64 << 10;

impl WriteSet {
    /// Takes in what has come to the batch since the last time. What transactions over groups prepare and resolve is
    /// passed over: the keys are locked until it is done, or known.
    pub(crate) fn read_on(&mut self, payload: &[u8], spans: &mut Vec<Span>) {
        self.is_all |= payload.len() > BYTES_MAX;
        if self.is_all {
            return;
        }
        let mut reader = Reader::resume(payload, self.read_to);
        while let Some(item) = reader.item(spans) {
            match item {
                Item::Command { args, .. } => self.note(args),
                Item::Exec(exec) | Item::Script { commands: exec, .. } => {
                    let mut words = Vec::new();
                    exec.for_each(&mut words, |_, args| self.note(args));
                }
                Item::Install { effects, .. } => effects.iter().for_each(|effect| match effect {
                    Effect::Key { key, .. } => _ = self.keys.insert(hash(key)),
                    Effect::Flush { .. } | Effect::Swap { .. } => self.is_all = true,
                    // Slots move by what two groups prepare; an answer is no key.
                    Effect::Give(_) | Effect::Take(_) | Effect::Answer(_) => {}
                }),
                Item::Prepare { .. }
                | Item::Resolve { .. }
                | Item::Refuse { .. }
                | Item::Forget(_)
                | Item::Tick
                | Item::Limits(_)
                | Item::Libraries(_)
                | Item::Configure(_)
                | Item::Enlist { .. }
                | Item::Prefer { .. }
                | Item::Moved(_)
                | Item::Want { .. }
                | Item::Place { .. }
                | Item::Balance(_)
                | Item::Found { .. }
                | Item::Divide { .. }
                // Its slots are locked.
                | Item::Split { .. }
                | Item::Born(_)
                | Item::Merge { .. }
                | Item::Retire { .. }
                | Item::End
                | Item::Rise(_) => {}
            }
        }
        self.read_to = reader.bookmark();
    }

    fn note(&mut self, args: Args<'_>) {
        let Some(command) = keyspace::resolve(args) else { return self.is_all = true };
        let mut has_key = false;
        command.for_each_key(args, |index, _| {
            has_key = true;
            self.keys.insert(hash(args.at(index)));
        });
        // A script may work on keys that it does not name.
        self.is_all |= !has_key || command.group == Group::Scripting;
    }

    /// True if the batch may work on the key.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.is_all || self.keys.contains(&hash(key))
    }
}

/// FNV-1a, as defined by Fowler, Noll and Vo.
fn hash(key: &[u8]) -> u64 {
    key.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3))
}

#[cfg(test)]
mod tests {
    use message::entry::Builder;
    use resp::Protocol;

    use super::*;

    fn add(builder: &mut Builder, words: &[&[u8]]) {
        let (mut buffer, mut spans) = (Vec::new(), Vec::new());
        for word in words {
            let start = buffer.len() as u32;
            buffer.extend_from_slice(word);
            spans.push(Span { start, end: buffer.len() as u32 });
        }
        builder.command(Protocol::Resp2, 0, Args::new(&buffer, &spans));
    }

    #[test]
    fn a_batch_that_grows_tells_all_keys_of_its_commands() {
        let (mut builder, mut write_set, mut spans) = (Builder::default(), WriteSet::default(), Vec::new());
        write_set.read_on(builder.payload(), &mut spans);
        assert!(!write_set.covers(b"a"));
        add(&mut builder, &[b"mset", b"a", b"1", b"b", b"2"]);
        builder.tick();
        write_set.read_on(builder.payload(), &mut spans);
        add(&mut builder, &[b"incr", b"c"]);
        write_set.read_on(builder.payload(), &mut spans);
        for (key, is_covered) in [(&b"a"[..], true), (b"b", true), (b"c", true), (b"d", false), (b"1", false)] {
            assert_eq!(write_set.covers(key), is_covered);
        }
        add(&mut builder, &[b"flushall"]);
        write_set.read_on(builder.payload(), &mut spans);
        assert!(write_set.covers(b"d"));
    }

    #[test]
    fn a_long_batch_is_taken_to_work_on_everything() {
        let (mut builder, mut write_set) = (Builder::default(), WriteSet::default());
        add(&mut builder, &[b"set", b"a", &[b'x'; BYTES_MAX]]);
        write_set.read_on(builder.payload(), &mut Vec::new());
        assert!(write_set.covers(b"b"));
    }
}

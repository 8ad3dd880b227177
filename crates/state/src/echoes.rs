//! Clients of a cluster send changes of functions to every node that leads, as Redis's cluster wants it. Here the first
//! has done it for all, and the others are its *echoes*: they get the same answer, and change nothing.
//!
//! An echo is told from a conflict by the log alone, so that every replica decides alike: it is the same change, byte
//! by byte, it comes through a node that has not sent it yet, within [`ECHO_MS`] of the first by the log's moments, and
//! what the first has done is still so. A change that is repeated on one node is refused as in Redis.

use std::collections::BTreeSet;

use keyspace::Moment;
use resp::Writer;
use stdx::leb128;
use stdx::sha1::sha1;

use message::entry::{Reader, put_bytes};
use message::libraries::{Change, Libraries};

/// For how long after a change its echoes are known, in milliseconds.
const ECHO_MS: i64 = 10_000;

/// How many changes are known at a time. Of more than so many within [`ECHO_MS`] the earliest are not.
const ECHO_COUNT_MAX: usize = 1_000;

/// A change that was made a moment ago.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Made {
    /// SHA-1 of the change as it is logged.
    digest: [u8; 20],
    /// When it was made, in milliseconds of the log's clock.
    unix_ms: i64,
    /// The nodes through which it has come.
    nodes: BTreeSet<u64>,
    reply: Vec<u8>,
}

/// Changes of functions that were made a moment ago: replicated state of the libraries' group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Echoes(Vec<Made>);

impl Echoes {
    /// Makes a change that has come through a node, unless it is an echo, and writes the reply.
    pub(crate) fn apply(
        &mut self,
        libraries: &mut Libraries,
        change: Change,
        node: u64,
        moment: Moment,
        writer: &mut Writer,
    ) {
        let now_ms = moment.unix.0;
        self.0.retain(|made| now_ms - made.unix_ms < ECHO_MS);
        if !change.fails_if_repeated() {
            return libraries.apply(change, writer);
        }
        let digest = sha1(&change.encode());
        if libraries.reflect(&change)
            && let Some(made) = self.0.iter_mut().find(|made| made.digest == digest)
            && made.nodes.insert(node)
        {
            return writer.raw(&made.reply);
        }
        let start = writer.len();
        libraries.apply(change, writer);
        let reply = writer.bytes()[start..].to_vec();
        if reply.first() != Some(&b'-') {
            self.0.retain(|made| made.digest != digest);
            if self.0.len() == ECHO_COUNT_MAX {
                self.0.remove(0);
            }
            self.0.push(Made { digest, unix_ms: now_ms, nodes: BTreeSet::from([node]), reply });
        }
    }

    /// Appends it to a checkpoint.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        leb128::put(out, self.0.len() as u64);
        for made in &self.0 {
            put_bytes(out, &made.digest);
            leb128::put(out, made.unix_ms.cast_unsigned());
            leb128::put(out, made.nodes.len() as u64);
            made.nodes.iter().for_each(|node| leb128::put(out, *node));
            put_bytes(out, &made.reply);
        }
    }

    /// Reads it back.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Self {
        let made = (0..reader.number()).map(|_| Made {
            digest: reader.bytes().try_into().expect("a SHA-1 is 20 bytes"),
            unix_ms: reader.number().cast_signed(),
            nodes: (0..reader.number()).map(|_| reader.number()).collect(),
            reply: reader.bytes().to_vec(),
        });
        Self(made.collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use message::libraries::{Loaded, Policy};
    use stdx::UnixMillis;

    use super::*;

    fn load(name: usize) -> Change {
        let library = script::Library::parse(format!("#!lua name=lib{name}\ncode").as_bytes()).expect("a library");
        Change::Load { policy: Policy::Append, library: Arc::new(Loaded { library, functions: Vec::new() }) }
    }

    /// True if a change that comes through this node at so many milliseconds is answered without an error.
    fn is_taken(echoes: &mut Echoes, libraries: &mut Libraries, change: Change, node: u64, unix_ms: i64) -> bool {
        let mut writer = Writer::default();
        let moment = Moment { unix: UnixMillis(unix_ms), seed: 0 };
        echoes.apply(libraries, change, node, moment, &mut writer);
        writer.bytes().first() != Some(&b'-')
    }

    #[test]
    fn a_change_is_taken_once_from_each_node_and_for_a_time() {
        let (mut echoes, mut libraries) = (Echoes::default(), Libraries::default());
        assert!(is_taken(&mut echoes, &mut libraries, load(1), 1, 1_000));
        assert!(is_taken(&mut echoes, &mut libraries, load(1), 2, 2_000), "an echo");
        assert_eq!(libraries.version, 1, "which changes nothing");
        assert!(!is_taken(&mut echoes, &mut libraries, load(1), 2, 2_000), "a conflict");
        assert!(!is_taken(&mut echoes, &mut libraries, load(1), 3, 1_000 + ECHO_MS), "too late");
    }

    #[test]
    fn only_so_many_changes_are_known() {
        let (mut echoes, mut libraries) = (Echoes::default(), Libraries::default());
        for name in 0..=ECHO_COUNT_MAX {
            assert!(is_taken(&mut echoes, &mut libraries, load(name), 1, 1_000));
        }
        assert_eq!(echoes.0.len(), ECHO_COUNT_MAX);
        assert!(!is_taken(&mut echoes, &mut libraries, load(0), 2, 1_000), "the earliest is not known any more");
        assert!(is_taken(&mut echoes, &mut libraries, load(1), 2, 1_000));
        let mut saved = Vec::new();
        echoes.put(&mut saved);
        assert_eq!(Echoes::read(&mut Reader::new(&saved)), echoes);
    }
}

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

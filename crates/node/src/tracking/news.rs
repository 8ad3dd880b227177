//! What caches of clients are told, and who has made the changes.

use group::requests::Author;
use std::sync::Arc;

use resp::{Protocol, Writer};

/// News for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// These keys are no longer as they were.
    Keys(Vec<Arc<[u8]>>),
    /// No key is.
    Everything,
}

impl News {
    /// Writes it, for a session that can be told it.
    pub(crate) fn write(&self, writer: &mut Writer) {
        if writer.protocol() == Protocol::Resp3 {
            writer.push(2);
            writer.bulk(b"invalidate");
        } else {
            writer.array(3);
            writer.bulk(b"message");
            writer.bulk(b"__redis__:invalidate");
        }
        match self {
            Self::Everything => writer.null(),
            Self::Keys(keys) => {
                writer.array(keys.len());
                keys.iter().for_each(|key| writer.bulk(key));
            }
        }
    }
}

/// A request of a session: the session's number, and the ticket under which it is answered.
pub type Asked = (u64, u64);

/// A key that has changed, and the author of the change, if that was a client of this node.
pub type Change = (Arc<[u8]>, Option<Author>);

/// Which cores have clients that track.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    /// Any.
    pub tracks: bool,
    /// Any that broadcast.
    pub broadcasts: bool,
    /// It remembers by itself what its clients have read, and must hear of every change: so it is in a cluster, where
    /// reads go to other nodes. The node that is asked there knows nothing of caches; the replica here tells what has
    /// changed.
    pub gathers: bool,
}

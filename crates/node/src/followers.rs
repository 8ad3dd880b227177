//! A session that has become the stream of a follower.

/// A replica of another kind, such as a stock Redis, that wants to be told what changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Follower {
    /// What it asks for; nothing yet while it only tells of itself.
    pub wish: Option<Wish>,
    /// Its end of the connection, `ADDRESS:PORT`.
    pub address: String,
    /// Where it is found, if it has said so; empty if not.
    pub host: String,
    /// The port on which it serves clients; 0 if it has not said so.
    pub port: u16,
    /// It takes a copy with a marked end (`capa eof`). Others want to know its length first.
    pub takes_marked: bool,
    /// Its version, if it has said so, which only Valkey does; empty if not.
    pub version: String,
    /// It wants nothing behind the copy.
    pub wants_copy_only: bool,
    /// What it wants to be in the copy.
    pub content: CopyContent,
}

/// What a copy for a replica of another kind holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyContent {
    /// Keys and libraries of functions.
    #[default]
    All,
    /// Libraries of functions, and no keys.
    Functions,
    /// Neither: it has them, or wants only what comes next.
    Nothing,
}

/// What a replica of another kind asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// What comes at this offset of this stream.
    Continue {
        /// The stream: 40 hexadecimal digits.
        id: String,
        /// The first byte that it lacks; the first of all has 1.
        offset: u64,
    },
    /// Everything (`PSYNC ? -1`).
    Copy,
    /// Everything, without a word on the stream before it (SYNC).
    OldCopy,
    /// All that all groups do, for another cluster.
    Site {
        /// Behind this place of each group's log, if it has that much of this cluster; otherwise a copy first.
        place: Option<(u128, Vec<u64>)>,
        /// It can go on with a copy: with the one of this name from this byte on, if that is still there.
        copy: Option<(u128, u64)>,
    },
}

//! What a request that waits took, and its client cannot have got: it goes back where it was.
//!
//! BLPOP and its kin take an element in an entry of the log, and the reply is all there is of it then. If the client's
//! connection ends before one byte of that reply has been handed to the system, nobody can have seen the element, and
//! the gateway puts it back, in an entry of its own: at the end of the list that it came from, in the order in which
//! it was, or into the sorted set unless its member has come back meanwhile. A byte that has been handed to the system
//! may have arrived, so from there on the element is the client's.
//!
//! ```text
//!   try ──▶ answer ──▶ output of the session ──▶ socket
//!    └─ connection ends ─┴─ connection ends ─┘     └ from the first byte on: gone
//!              the element goes back
//! ```
//!
//! BLMOVE and BRPOPLPUSH are left alone: what they took is in the destination, where others may have seen it, which is
//! what they are for. So is XREADGROUP: an entry that it delivered is pending until somebody acknowledges it.

use std::collections::BTreeMap;

use group::ids::SessionId;
use resp::{Protocol, Span};
use state::is_null;
use stdx::Instant;

use crate::blocking::lay_out;
use crate::entry::{Reader, put_words};
use crate::frame;

/// A request and its reply, of which no byte may have been handed to the system yet.
#[derive(Debug)]
pub(crate) struct Delivery {
    /// Place of the reply in all that the session has ever put out.
    pub(crate) start: u64,
    pub(crate) orphan: Orphan,
    pub(crate) ticket: u64,
    pub(crate) reply: Vec<u8>,
}

/// A request of a client that has gone.
#[derive(Debug)]
pub(crate) struct Orphan {
    pub(crate) name: &'static str,
    /// The request; later the one that puts back what it took. Laid out by `entry::put_words`.
    pub(crate) words: Vec<u8>,
    pub(crate) protocol: Protocol,
    /// It is being put back, since this time.
    pub(crate) returning: Option<Instant>,
    /// Nothing is under way: when to ask.
    pub(crate) retry_at: Option<Instant>,
}

impl Orphan {
    pub(crate) fn new(name: &'static str, words: Vec<u8>, protocol: Protocol) -> Self {
        Self { name, words, protocol, returning: None, retry_at: None }
    }
}

/// Orphans by session and ticket: the session's index may belong to another one by now, its serial never does.
pub(crate) type Orphans = BTreeMap<(SessionId, u64), Orphan>;

/// True if a request takes something that is nowhere else than in its reply.
pub(crate) fn takes_away(name: &str) -> bool {
    matches!(name, "blpop" | "brpop" | "blmpop" | "bzpopmin" | "bzpopmax" | "bzmpop")
}

/// The words of a request that puts back what a reply holds; none if the reply holds nothing.
pub(crate) fn request_to_return(words: &[u8], reply: &[u8]) -> Option<Vec<u8>> {
    if is_null(reply) || reply.first() == Some(&b'-') {
        return None;
    }
    let mut spans: Vec<Span> = Vec::new();
    let (database, args) = Reader::new(words).words(&mut spans);
    let name = args.at(0).to_ascii_lowercase();
    let parts = frame::elements(reply);
    let key = frame::bulk_bytes(parts.first()?)?;
    let mut request: Vec<&[u8]> = Vec::new();
    match &name[..] {
        b"blpop" | b"brpop" => {
            request.extend([if name == b"blpop" { &b"LPUSH"[..] } else { b"RPUSH" }, key]);
            request.push(frame::bulk_bytes(parts.get(1)?)?);
        }
        b"blmpop" => {
            let key_count: usize = str::from_utf8(args.at(2)).ok()?.parse().ok()?;
            let is_left = args.get(3 + key_count)?.eq_ignore_ascii_case(b"left");
            request.extend([if is_left { &b"LPUSH"[..] } else { b"RPUSH" }, key]);
            // The first that was taken was the outermost.
            let taken = frame::elements(parts.get(1)?);
            request.extend(taken.iter().rev().filter_map(|element| frame::bulk_bytes(element)));
        }
        b"bzpopmin" | b"bzpopmax" => {
            request.extend([&b"ZADD"[..], key, b"NX", score(parts.get(2)?)?, frame::bulk_bytes(parts.get(1)?)?]);
        }
        b"bzmpop" => {
            request.extend([&b"ZADD"[..], key, b"NX"]);
            for pair in frame::elements(parts.get(1)?) {
                let pair = frame::elements(pair);
                request.extend([score(pair.get(1)?)?, frame::bulk_bytes(pair.first()?)?]);
            }
        }
        _ => return None,
    }
    let (buffer, spans) = lay_out(request.into_iter());
    let mut out = Vec::new();
    put_words(&mut out, database, resp::Args::new(&buffer, &spans));
    Some(out)
}

/// The text of a score, in either protocol.
pub(crate) fn score(reply: &[u8]) -> Option<&[u8]> {
    match reply.first()? {
        b',' => reply[1..].strip_suffix(b"\r\n"),
        _ => frame::bulk_bytes(reply),
    }
}

/// True for a refusal that promises that nothing was done, and may not come again.
pub(crate) fn may_be_repeated(refusal: &[u8]) -> bool {
    const PASSING: [&[u8]; 6] = [b"-TRYAGAIN", b"-CLUSTERDOWN", b"-MISCONF", b"-NOREPLICAS", b"-LOADING", b"-OOM"];
    let is_passing = PASSING.iter().any(|beginning| refusal.starts_with(beginning));
    is_passing && !refusal.windows(7).any(|words| words == b"unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn returned(request: &str, reply: &[u8]) -> Option<String> {
        let (buffer, spans) = lay_out(request.split(' ').map(str::as_bytes));
        let mut words = Vec::new();
        put_words(&mut words, 3, resp::Args::new(&buffer, &spans));
        let words = request_to_return(&words, reply)?;
        let mut spans = Vec::new();
        let (database, args) = Reader::new(&words).words(&mut spans);
        let words: Vec<_> = args.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        Some(format!("{database}: {}", words.join(" ")))
    }

    #[test]
    fn what_was_taken_goes_back_to_the_end_it_came_from_in_its_order() {
        let one = b"*2\r\n$1\r\nk\r\n$1\r\na\r\n";
        assert_eq!(returned("BLPOP j k 0", one).as_deref(), Some("3: LPUSH k a"));
        assert_eq!(returned("brpop j k 0", one).as_deref(), Some("3: RPUSH k a"));
        let two = b"*2\r\n$1\r\nk\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n";
        assert_eq!(returned("BLMPOP 0 2 j k LEFT COUNT 2", two).as_deref(), Some("3: LPUSH k b a"));
        assert_eq!(returned("BLMPOP 0 1 k right COUNT 2", two).as_deref(), Some("3: RPUSH k b a"));
        let scored = b"*3\r\n$1\r\nk\r\n$1\r\na\r\n$3\r\n1.5\r\n";
        assert_eq!(returned("BZPOPMIN k 0", scored).as_deref(), Some("3: ZADD k NX 1.5 a"));
        let scored = b"*3\r\n$1\r\nk\r\n$1\r\na\r\n,inf\r\n";
        assert_eq!(returned("BZPOPMAX k 0", scored).as_deref(), Some("3: ZADD k NX inf a"));
        let pairs = b"*2\r\n$1\r\nk\r\n*2\r\n*2\r\n$1\r\na\r\n$1\r\n1\r\n*2\r\n$1\r\nb\r\n$1\r\n2\r\n";
        assert_eq!(returned("BZMPOP 0 1 k MIN COUNT 2", pairs).as_deref(), Some("3: ZADD k NX 1 a 2 b"));
        assert_eq!(returned("BLPOP k 0", b"*-1\r\n"), None);
        assert_eq!(returned("BLPOP k 0", b"-WRONGTYPE of another kind\r\n"), None);
    }

    #[test]
    fn a_refusal_that_leaves_it_open_is_not_repeated() {
        assert!(may_be_repeated(b"-TRYAGAIN The leader was lost before this request took effect\r\n"));
        assert!(!may_be_repeated(b"-CLUSTERDOWN The leader was lost: whether this write took effect is unknown\r\n"));
        assert!(!may_be_repeated(b"-WRONGTYPE Operation against a key\r\n"));
    }
}

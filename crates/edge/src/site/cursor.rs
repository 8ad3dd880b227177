//! How far somebody has read the changes of a cluster, as a word that any node of it understands.
//!
//! ```text
//!   cursor = base64url( version u8, cluster 16, base i64, moment i64, number, places…, checksum u32 )
//! ```
//!
//! All events of moments up to `base` have been read, and of the later ones those up to `number` of `moment`. Moments
//! and numbers are the same at all nodes, so that says it all. The places of groups at `base` are there to find out a
//! log that has lost its end since. Numbers are LEB128, everything else is little-endian.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use node::roster::GROUPS_MAX;
use stdx::{UnixMillis, leb128};

const VERSION: u8 = 1;

/// Version, cluster, base, moment.
const HEAD_BYTES: usize = 1 + 16 + 8 + 8;
const CHECKSUM_BYTES: usize = 4;

/// No cursor is longer: places of as many groups as there may be.
const TEXT_BYTES_MAX: usize = (HEAD_BYTES + 10 * (GROUPS_MAX as usize + 2) + CHECKSUM_BYTES) * 2;

/// A place among the changes of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The cluster with these changes.
    pub cluster: u128,
    /// All of earlier moments and of this one has been read.
    pub base: UnixMillis,
    /// Of groups: up to which index of its log that was. None if that is not known.
    pub places: Vec<u64>,
    /// Behind that, what comes before this moment, and of this moment
    pub moment: UnixMillis,
    /// events up to this number.
    pub number: u64,
}

impl Cursor {
    /// One that has read all up to a moment.
    pub fn behind(cluster: u128, moment: UnixMillis, places: Vec<u64>) -> Self {
        Self { cluster, base: moment, places, moment, number: u64::MAX }
    }

    /// As a word.
    pub fn encode(&self) -> String {
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&self.cluster.to_le_bytes());
        bytes.extend_from_slice(&self.base.0.to_le_bytes());
        bytes.extend_from_slice(&self.moment.0.to_le_bytes());
        leb128::put(&mut bytes, self.number);
        leb128::put(&mut bytes, self.places.len() as u64);
        self.places.iter().for_each(|place| leb128::put(&mut bytes, *place));
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads a word; none if it is no cursor.
    pub fn decode(text: &[u8]) -> Option<Self> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (body, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>()?;
        if crc32c::crc32c(body).to_le_bytes() != *checksum {
            return None;
        }
        let (head, mut rest) = body.split_first_chunk::<HEAD_BYTES>()?;
        let moment = |at: usize| UnixMillis(i64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes")));
        let cluster = u128::from_le_bytes(head[1..17].try_into().expect("sixteen bytes"));
        let number = leb128::take(&mut rest)?;
        let count = leb128::take(&mut rest)?;
        if head[0] != VERSION || count > u64::from(GROUPS_MAX) {
            return None;
        }
        let places = (0..count).map(|_| leb128::take(&mut rest)).collect::<Option<Vec<u64>>>()?;
        let cursor = Self { cluster, base: moment(17), places, moment: moment(25), number };
        (rest.is_empty() && cursor.base <= cursor.moment).then_some(cursor)
    }
}

#[cfg(test)]
mod tests {
    use fuzzing::Fuzz;

    use super::*;

    fn some() -> Cursor {
        Cursor { cluster: 77 << 90, base: UnixMillis(5), places: vec![1, 0, 1 << 60], moment: UnixMillis(9), number: 3 }
    }

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        let everything = Cursor::behind(1, UnixMillis(-4), Vec::new());
        for cursor in [some(), everything] {
            let text = cursor.encode();
            assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'), "{text}");
            assert_eq!(Cursor::decode(text.as_bytes()), Some(cursor));
        }
    }

    #[test]
    fn what_is_no_cursor_is_refused() {
        let text = some().encode().into_bytes();
        for length in 0..text.len() {
            assert_eq!(Cursor::decode(&text[..length]), None, "cut at {length}");
        }
        for at in 0..text.len() {
            for other in [b'A', b'z', b'=', b'+', 0, 255] {
                let mut damaged = text.clone();
                damaged[at] = other;
                assert!(damaged == text || Cursor::decode(&damaged).is_none(), "damaged at {at}");
            }
        }
        assert_eq!(Cursor::decode(&vec![b'A'; 100 << 20]), None);
        // With a checksum that holds: too many places, too few, something behind them, and a moment before the base.
        let sealed = |mut bytes: Vec<u8>| {
            let checksum = crc32c::crc32c(&bytes);
            bytes.extend_from_slice(&checksum.to_le_bytes());
            Cursor::decode(URL_SAFE_NO_PAD.encode(bytes).as_bytes())
        };
        let head = [&[VERSION][..], &[0; 32], &[1]].concat();
        assert!(sealed([&head[..], &[1, 7]].concat()).is_some());
        for tail in [&[2, 7][..], &[1, 7, 7], &[255, 255, 255, 255, 255, 255, 255, 255, 255, 1], &[]] {
            assert_eq!(sealed([&head[..], tail].concat()), None, "{tail:?}");
        }
        assert_eq!(sealed([&[2][..], &head[1..], &[0]].concat()), None, "of another version");
        assert_eq!(Cursor::decode(Cursor { moment: UnixMillis(4), ..some() }.encode().as_bytes()), None);
    }

    #[test]
    fn fuzz_cursors() {
        let corpus = [some(), Cursor::behind(1, UnixMillis(-4), Vec::new())].map(|cursor| {
            let bytes = URL_SAFE_NO_PAD.decode(cursor.encode()).expect("just encoded");
            bytes[..bytes.len() - CHECKSUM_BYTES].to_vec()
        });
        Fuzz::new("changes-cursors", corpus).run(|input| {
            // An attacker knows how to make a checksum.
            let mut bytes = input.to_vec();
            bytes.extend_from_slice(&crc32c::crc32c(input).to_le_bytes());
            let Some(cursor) = Cursor::decode(URL_SAFE_NO_PAD.encode(&bytes).as_bytes()) else { return 0 };
            assert_eq!(Cursor::decode(cursor.encode().as_bytes()).as_ref(), Some(&cursor));
            cursor.places.len() as u64 + 1
        });
    }
}

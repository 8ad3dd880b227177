//! What a near site tells a far one: frames in one Zstandard stream.
//!
//! ```text
//!   frame = kind u8, length u32, body        (little-endian)
//! ```
//!
//! The far site answers with moments, eight bytes each: what it has kept.
//!
//! [`Frame::Hello`] and [`Frame::State`] end with the level of the near site, which versions before did not tell and do
//! not read. It is told before anything that was done at that level.

use std::io::{self, Read};

use stdx::{Level, UnixMillis};

use crate::merge::Batch;

/// No frame is longer: a batch is as large as what one moment has changed.
const FRAME_BYTES_MAX: usize = 1 << 30;

/// Repetitions are found at this distance, as a power of two: regular keys come again soon, and values later.
pub const WINDOW_LOG: u32 = 23;

/// A cluster has no more groups than this.
const GROUPS_MAX: usize = 1 << 16;

/// How far a near site is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// What its clock shows.
    pub now: UnixMillis,
    /// Up to this moment all has been sent.
    pub moment: UnixMillis,
    /// Up to these places all has been sent; none if something is under way.
    pub places: Vec<u64>,
    /// Bytes and steps of its backlog that have not been sent yet.
    pub pending_bytes: u64,
    /// See above.
    pub pending_steps: u64,
    /// Nothing that has been sent, or comes before the next state, is of a higher level. None if it is not told.
    pub level: Option<Level>,
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The cluster with the changes that follow.
    Hello {
        /// Its identity.
        cluster: u128,
        /// As in a [`State`].
        level: Option<Level>,
    },
    /// A copy of so many bytes follows, of what groups held behind these places.
    Copy {
        /// Of all groups: up to which index of its log it reaches.
        places: Vec<u64>,
        /// Nothing before them is of a later moment.
        moment: UnixMillis,
        /// Its length.
        bytes: u64,
    },
    /// The same for who can go on in the middle of a copy: its name, and from which byte on it follows.
    CopyFrom {
        /// Its name.
        id: u128,
        /// The first byte that follows.
        offset: u64,
        /// As in a copy.
        places: Vec<u64>,
        /// As in a copy.
        moment: UnixMillis,
        /// The length of the whole copy.
        bytes: u64,
    },
    /// A piece of it: requests, cut anywhere.
    Piece(Vec<u8>),
    /// What leads from one state to a later one.
    Batch(Batch),
    /// How far the near site is.
    State(State),
    /// It cannot go on, for this reason; with a copy it could if `needs_copy`.
    Refused {
        /// With a copy it could go on.
        needs_copy: bool,
        /// One line.
        why: String,
    },
}

impl Frame {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; 5]);
        let kind = match self {
            Self::Hello { cluster, level } => {
                out.extend_from_slice(&cluster.to_le_bytes());
                out.extend(level.map(|level| level.0));
                1
            }
            Self::Copy { places, moment, bytes } => {
                put_places(out, places);
                out.extend_from_slice(&moment.0.to_le_bytes());
                out.extend_from_slice(&bytes.to_le_bytes());
                2
            }
            Self::Piece(bytes) => {
                out.extend_from_slice(bytes);
                3
            }
            Self::Batch(batch) => {
                put_places(out, &batch.places);
                out.extend_from_slice(&batch.moment.0.to_le_bytes());
                out.extend_from_slice(&batch.requests.to_le_bytes());
                out.extend_from_slice(&batch.transactions.to_le_bytes());
                out.extend_from_slice(&batch.bytes);
                4
            }
            Self::State(State { now, moment, places, pending_bytes, pending_steps, level }) => {
                put_places(out, places);
                out.extend_from_slice(&now.0.to_le_bytes());
                out.extend_from_slice(&moment.0.to_le_bytes());
                out.extend_from_slice(&pending_bytes.to_le_bytes());
                out.extend_from_slice(&pending_steps.to_le_bytes());
                out.extend(level.map(|level| level.0));
                5
            }
            Self::Refused { needs_copy, why } => {
                out.push(u8::from(*needs_copy));
                out.extend_from_slice(why.as_bytes());
                6
            }
            Self::CopyFrom { id, offset, places, moment, bytes } => {
                out.extend_from_slice(&id.to_le_bytes());
                out.extend_from_slice(&offset.to_le_bytes());
                put_places(out, places);
                out.extend_from_slice(&moment.0.to_le_bytes());
                out.extend_from_slice(&bytes.to_le_bytes());
                7
            }
        };
        out[start] = kind;
        let length = (out.len() - start - 5) as u32;
        out[start + 1..start + 5].copy_from_slice(&length.to_le_bytes());
    }

    /// Reads the next.
    ///
    /// # Errors
    /// Those of the stream, or if there is something else.
    pub fn read(stream: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; 5];
        stream.read_exact(&mut head)?;
        let length = u32::from_le_bytes(head[1..].try_into().expect("four bytes")) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(strange());
        }
        let mut body = Vec::new();
        // A length that is wrong takes no more memory than what comes.
        stream.take(length as u64).read_to_end(&mut body)?;
        if body.len() != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Self::decode(head[0], body).ok_or_else(strange)
    }

    fn decode(kind: u8, body: Vec<u8>) -> Option<Self> {
        let mut rest = &body[..];
        Some(match kind {
            1 => Self::Hello { cluster: u128::from_le_bytes(take(&mut rest)?), level: level(rest) },
            2 => Self::Copy {
                places: places(&mut rest)?,
                moment: UnixMillis(i64::from_le_bytes(take(&mut rest)?)),
                bytes: u64::from_le_bytes(take(&mut rest)?),
            },
            3 => Self::Piece(body),
            4 => Self::Batch(Batch {
                places: places(&mut rest)?,
                moment: UnixMillis(i64::from_le_bytes(take(&mut rest)?)),
                requests: u64::from_le_bytes(take(&mut rest)?),
                transactions: u64::from_le_bytes(take(&mut rest)?),
                bytes: rest.to_vec(),
            }),
            5 => Self::State(State {
                places: places(&mut rest)?,
                now: UnixMillis(i64::from_le_bytes(take(&mut rest)?)),
                moment: UnixMillis(i64::from_le_bytes(take(&mut rest)?)),
                pending_bytes: u64::from_le_bytes(take(&mut rest)?),
                pending_steps: u64::from_le_bytes(take(&mut rest)?),
                level: level(rest),
            }),
            6 => Self::Refused {
                needs_copy: take::<1>(&mut rest)? != [0],
                why: String::from_utf8_lossy(rest).into_owned(),
            },
            7 => Self::CopyFrom {
                id: u128::from_le_bytes(take(&mut rest)?),
                offset: u64::from_le_bytes(take(&mut rest)?),
                places: places(&mut rest)?,
                moment: UnixMillis(i64::from_le_bytes(take(&mut rest)?)),
                bytes: u64::from_le_bytes(take(&mut rest)?),
            },
            _ => return None,
        })
    }
}

fn strange() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the followed site has sent something that is not known here")
}

fn put_places(out: &mut Vec<u8>, places: &[u64]) {
    out.extend_from_slice(&(places.len() as u32).to_le_bytes());
    places.iter().for_each(|place| out.extend_from_slice(&place.to_le_bytes()));
}

fn places(rest: &mut &[u8]) -> Option<Vec<u64>> {
    let count = u32::from_le_bytes(take(rest)?) as usize;
    if count > GROUPS_MAX {
        return None;
    }
    (0..count).map(|_| take(rest).map(u64::from_le_bytes)).collect()
}

/// What may stand at the end.
fn level(rest: &[u8]) -> Option<Level> {
    rest.first().map(|level| Level(*level))
}

fn take<const COUNT: usize>(rest: &mut &[u8]) -> Option<[u8; COUNT]> {
    let (taken, left) = rest.split_first_chunk()?;
    *rest = left;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use stdx::Prng;

    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written() {
        let batch =
            Batch { moment: UnixMillis(-4), places: vec![1, 2], requests: 3, transactions: 2, bytes: b"x".to_vec() };
        let frames = [
            Frame::Hello { cluster: 77, level: Some(Level(2)) },
            Frame::Hello { cluster: 77, level: None },
            Frame::Copy { places: vec![9], moment: UnixMillis(5), bytes: 6 },
            Frame::CopyFrom { id: 3 << 100, offset: 2, places: vec![9], moment: UnixMillis(5), bytes: 6 },
            Frame::Piece(b"abc".to_vec()),
            Frame::Batch(batch),
            Frame::State(State { now: UnixMillis(8), places: vec![4], pending_bytes: 9, ..State::default() }),
            Frame::State(State { level: Some(Level(3)), ..State::default() }),
            Frame::Refused { needs_copy: true, why: "gone".to_owned() },
        ];
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.encode(&mut bytes));
        let mut stream = &bytes[..];
        for frame in frames {
            assert_eq!(Frame::read(&mut stream).expect("sound"), frame);
        }
        assert!(Frame::read(&mut stream).is_err());
    }

    #[test]
    fn whatever_comes_is_read_or_refused() {
        let mut prng = Prng::new(1);
        for _ in 0..20_000 {
            let length = prng.below(60);
            let mut bytes = vec![prng.below(8) as u8];
            bytes.extend_from_slice(&(length as u32).to_le_bytes());
            bytes.extend((0..prng.below(70)).map(|_| prng.below(256) as u8));
            let _ = Frame::read(&mut &bytes[..]);
        }
    }
}

//! The bytes of answers that only gateways read: locks, scripts that were declined, parts of queries over all keys.

use message::answer::FOR_GATEWAY;
use message::entry::put_bytes;
use stdx::leb128;

use crate::locks::FencingToken;
use crate::requests::{Declined, Locked};

/// Appends keys with their databases.
pub fn put_keys(out: &mut Vec<u8>, keys: &[(u16, Vec<u8>)]) {
    leb128::put(out, keys.len() as u64);
    for (database, key) in keys {
        leb128::put(out, u64::from(*database));
        put_bytes(out, key);
    }
}

/// Appends a fencing token.
pub fn put_token(out: &mut Vec<u8>, token: FencingToken) {
    leb128::put(out, token.term);
    leb128::put(out, token.number);
}

/// Reads it back.
pub fn take_token(bytes: &mut &[u8]) -> Option<FencingToken> {
    Some(FencingToken { term: leb128::take(bytes)?, number: leb128::take(bytes)? })
}

/// What a group answers to a lock.
pub fn put_locked(locked: &Locked) -> Vec<u8> {
    let mut out = Vec::new();
    match locked {
        Locked::Granted { token, values, answers } => {
            out.push(1);
            put_token(&mut out, *token);
            leb128::put(&mut out, values.len() as u64);
            for value in values {
                out.push(u8::from(value.is_some()));
                if let Some(value) = value {
                    put_bytes(&mut out, value);
                }
            }
            leb128::put(&mut out, answers.len() as u64);
            for (count, reply) in answers {
                leb128::put(&mut out, *count);
                put_bytes(&mut out, reply);
            }
        }
        Locked::Changed => out.push(2),
        Locked::Refused(text) => {
            out.push(3);
            out.extend_from_slice(text.as_bytes());
        }
        Locked::Answered(reply) => {
            out.push(4);
            out.extend_from_slice(reply);
        }
    }
    out
}

/// Reads it back; `None` if it is none.
pub fn take_locked(bytes: &[u8]) -> Option<Locked> {
    view_locked(bytes).map(|view| match view {
        LockedView::Granted { token, values, answers } => {
            let values = values.into_iter().map(|value| value.map(<[u8]>::to_vec)).collect();
            let answers = answers.into_iter().map(|(count, reply)| (count, reply.to_vec())).collect();
            Locked::Granted { token, values, answers }
        }
        LockedView::Changed => Locked::Changed,
        LockedView::Refused(text) => Locked::Refused(String::from_utf8_lossy(text).into_owned()),
        LockedView::Answered(reply) => Locked::Answered(reply.to_vec()),
    })
}

/// A [`Locked`] where it lies.
#[derive(Debug)]
pub enum LockedView<'a> {
    /// See there.
    Granted {
        /// The fencing token.
        token: FencingToken,
        /// Values of the keys.
        values: Vec<Option<&'a [u8]>>,
        /// Answers to queries over all keys, with the number of keys.
        answers: Vec<(u64, &'a [u8])>,
    },
    /// See there.
    Changed,
    /// See there.
    Refused(&'a [u8]),
    /// See there.
    Answered(&'a [u8]),
}

/// The same, without a copy of the values: they are what is large.
pub fn view_locked(mut bytes: &[u8]) -> Option<LockedView<'_>> {
    let rest = &mut bytes;
    Some(match take_byte(rest)? {
        1 => {
            let token = take_token(rest)?;
            let value_count = leb128::take(rest)?;
            let values = (0..value_count).map(|_| match take_byte(rest)? {
                0 => Some(None),
                _ => take_slice(rest).map(Some),
            });
            let values = values.collect::<Option<_>>()?;
            let answer_count = leb128::take(rest)?;
            let answers = (0..answer_count).map(|_| Some((leb128::take(rest)?, take_slice(rest)?)));
            let answers = answers.collect::<Option<_>>()?;
            LockedView::Granted { token, values, answers }
        }
        2 => LockedView::Changed,
        3 => LockedView::Refused(bytes),
        4 => LockedView::Answered(bytes),
        _ => return None,
    })
}

/// What a group answers in place of a script's reply, if it has to be run as a transaction.
///
/// ```text
/// declined = 1 whole:u8 count(key) key*      key = database len bytes
/// ```
pub fn put_declined(declined: &Declined) -> Vec<u8> {
    let mut out = vec![FOR_GATEWAY, u8::from(declined.whole)];
    put_keys(&mut out, &declined.keys);
    out
}

/// Reads what [`put_declined`] wrote; nothing if it is a reply.
pub fn take_declined(bytes: &[u8]) -> Option<Declined> {
    let rest = &mut bytes.strip_prefix(&[FOR_GATEWAY])?;
    let whole = take_byte(rest)? == 1;
    Some(Declined { keys: take_keys(rest)?, whole })
}

/// A group's part of the answer to a query over all keys.
///
/// ```text
/// part = key_count cover:u64le reply
/// ```
pub struct Part<'a> {
    /// Keys of the database.
    pub key_count: u64,
    /// See `SlotMap::cover_of`.
    pub cover: u64,
    /// The reply.
    pub reply: &'a [u8],
}

/// Writes it.
pub fn put_whole(part: &Part<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(part.reply.len() + 24);
    leb128::put(&mut out, part.key_count);
    out.extend_from_slice(&part.cover.to_le_bytes());
    out.extend_from_slice(part.reply);
    out
}

/// Reads it back.
pub fn take_whole(mut bytes: &[u8]) -> Option<Part<'_>> {
    let rest = &mut bytes;
    let key_count = leb128::take(rest)?;
    let (cover, reply) = rest.split_at_checked(8)?;
    Some(Part { key_count, cover: u64::from_le_bytes(cover.try_into().expect("eight bytes")), reply })
}

/// Reads back what [`put_keys`] wrote.
pub fn take_keys(rest: &mut &[u8]) -> Option<Vec<(u16, Vec<u8>)>> {
    let key = |rest: &mut &[u8]| Some((u16::try_from(leb128::take(rest)?).ok()?, take_bytes(rest)?));
    (0..leb128::take(rest)?).map(|_| key(rest)).collect()
}

/// Reads bytes with their length before them.
pub fn take_bytes(rest: &mut &[u8]) -> Option<Vec<u8>> {
    take_slice(rest).map(<[u8]>::to_vec)
}

/// The same, where they lie.
pub fn take_slice<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(leb128::take(rest)?).ok()?;
    let (bytes, tail) = rest.split_at_checked(length)?;
    *rest = tail;
    Some(bytes)
}

/// Reads one byte.
pub fn take_byte(rest: &mut &[u8]) -> Option<u8> {
    let (byte, tail) = rest.split_first()?;
    *rest = tail;
    Some(*byte)
}

//! What an entry is known by: the millisecond at which it was added, and a number within that.

use crate::tree::Element;
use crate::value::canonical_integer;

/// The id of an entry. Ids of a stream only rise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    /// Milliseconds since the Unix epoch, as a rule.
    pub ms: u64,
    /// Tells entries of one millisecond apart.
    pub seq: u64,
}

/// Longest word that is looked at as an id, in bytes, as in Redis.
const WORD_BYTES_MAX: usize = 127;

impl Id {
    /// Before every entry: none has this id.
    pub const MIN: Self = Self { ms: 0, seq: 0 };
    /// The last one that there can be.
    pub const MAX: Self = Self { ms: u64::MAX, seq: u64::MAX };

    /// The id from `ms` or `ms-seq`.
    pub(crate) fn parse(word: &[u8], missing_seq: u64) -> Option<Self> {
        let (ms, seq) = split(word)?;
        let seq = seq.map_or(Some(missing_seq), parse_number)?;
        Some(Self { ms: parse_number(ms)?, seq })
    }

    /// The milliseconds of `ms-*`.
    pub(crate) fn parse_open(word: &[u8]) -> Option<u64> {
        match split(word)? {
            (ms, Some(b"*")) => parse_number(ms),
            _ => None,
        }
    }

    /// The one behind it.
    pub(crate) fn next(self) -> Option<Self> {
        match self.seq.checked_add(1) {
            Some(seq) => Some(Self { seq, ..self }),
            None => Some(Self { ms: self.ms.checked_add(1)?, seq: 0 }),
        }
    }

    /// The one before it.
    pub(crate) fn previous(self) -> Option<Self> {
        match self.seq.checked_sub(1) {
            Some(seq) => Some(Self { seq, ..self }),
            None => Some(Self { ms: self.ms.checked_sub(1)?, seq: u64::MAX }),
        }
    }

    /// Both numbers with the highest byte first, so that the order of bytes is that of ids.
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        (u128::from(self.ms) << 64 | u128::from(self.seq)).to_be_bytes()
    }

    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        let number = u128::from_be_bytes(bytes);
        Self { ms: (number >> 64) as u64, seq: number as u64 }
    }

    /// `ms-seq`.
    pub(crate) fn text(self) -> Text {
        let mut text = Text { bytes: [0; 41], start: 41 };
        text.put_number(self.seq);
        text.put(b'-');
        text.put_number(self.ms);
        text
    }
}

/// The part before the first dash, and what is behind it if there is one.
fn split(word: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    if word.len() > WORD_BYTES_MAX {
        return None;
    }
    Some(match word.iter().position(|&byte| byte == b'-') {
        Some(dash) => (&word[..dash], Some(&word[dash + 1..])),
        None => (word, None),
    })
}

/// A number as Redis reads those of ids: its canonical text or, failing that, whatever C's `strtoull` makes sense of.
fn parse_number(text: &[u8]) -> Option<u64> {
    if let Some(number) = canonical_integer(text) {
        return u64::try_from(number).ok();
    }
    let blanks = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t'..=b'\r')).count();
    let (is_negative, digits) = match &text[blanks..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    let magnitude = digits.iter().try_fold(0u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })?;
    Some(if is_negative { magnitude.wrapping_neg() } else { magnitude })
}

/// An id as clients read it.
pub(crate) struct Text {
    bytes: [u8; 41],
    start: usize,
}

impl Text {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    fn put(&mut self, byte: u8) {
        self.start -= 1;
        self.bytes[self.start] = byte;
    }

    fn put_number(&mut self, mut number: u64) {
        loop {
            self.put(b'0' + (number % 10) as u8);
            number /= 10;
            if number == 0 {
                return;
            }
        }
    }
}

impl Element for Id {
    type Key = Self;

    fn key(&self) -> Self {
        *self
    }

    fn heap_bytes(&self) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_redis_reads_them() {
        let max = "18446744073709551615";
        let table = [
            ("5", Some((5, 9))),
            ("5-3", Some((5, 3))),
            ("0-0", Some((0, 0))),
            ("007-08", Some((7, 8))),
            (" 5-+3", Some((5, 3))),
            (max, Some((u64::MAX, 9))),
            ("18446744073709551616", None),
            ("1-18446744073709551615", Some((1, u64::MAX))),
            ("5--3", None),
            ("5--03", Some((5, u64::MAX - 2))),
            ("-5", None),
            ("-", None),
            ("+", None),
            ("5-", None),
            ("5-*", None),
            ("", None),
            ("x", None),
            ("5-3x", None),
            ("5 -3", None),
        ];
        for (word, expected) in table {
            assert_eq!(Id::parse(word.as_bytes(), 9), expected.map(|(ms, seq)| Id { ms, seq }), "{word:?}");
        }
        assert_eq!(Id::parse_open(b"5-*"), Some(5));
        assert_eq!(Id::parse_open(b"5-3"), None);
        assert_eq!(Id::parse(&[b'1'; 128], 0), None);
    }

    #[test]
    fn neighbours_and_bytes_keep_the_order() {
        let ids = [Id::MIN, Id { ms: 0, seq: 1 }, Id { ms: 0, seq: u64::MAX }, Id { ms: 1, seq: 0 }, Id::MAX];
        for pair in ids.windows(2) {
            assert!(pair[0] < pair[1] && pair[0].to_bytes() < pair[1].to_bytes());
            assert!(pair[0].next().unwrap() <= pair[1] && pair[1].previous().unwrap() >= pair[0]);
        }
        for id in ids {
            assert_eq!(Id::from_bytes(id.to_bytes()), id);
            assert_eq!(Id::parse(id.text().as_bytes(), 0), Some(id));
        }
        assert_eq!((Id::MAX.next(), Id::MIN.previous()), (None, None));
    }
}

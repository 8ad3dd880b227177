//! Words to values, as strictly as Redis reads them.
//!
//! What is accepted here decides what is stored everywhere: two replicas must read the same word alike, so nothing
//! depends on a locale, a platform's C library, or the width of its floating-point registers.

use std::ops::{Range, RangeInclusive};

use command::Refusal;
use stdx::UnixMillis;

use crate::Moment;
pub use crate::value::canonical_integer as parse_integer;

/// Longest string a command may make, in bytes (Redis's default of `proto-max-bulk-len`).
pub const STRING_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// True if `word` is `keyword`, which is given in lower case; the case of the word does not matter.
#[inline]
pub fn is(word: &[u8], keyword: &str) -> bool {
    word.eq_ignore_ascii_case(keyword.as_bytes())
}

/// An integer argument.
///
/// # Errors
/// [`Refusal::NOT_AN_INTEGER`] unless [`parse_integer`] accepts it.
#[inline]
pub fn integer(word: &[u8]) -> Result<i64, Refusal> {
    parse_integer(word).ok_or(Refusal::NOT_AN_INTEGER)
}

/// An integer argument that lies outside the range that Redis names.
pub fn out_of_range(low: i64, high: i64) -> Refusal {
    Refusal::new(format!("ERR value is out of range, value must between {low} and {high}"))
}

/// Offset of a bit within a string of at most [`STRING_BYTES_MAX`] bytes; bit 0 is the highest of the first byte.
///
/// # Errors
/// [`Refusal::BIT_OFFSET`] if it is no integer, negative, or too large.
pub fn bit_offset(word: &[u8]) -> Result<u64, Refusal> {
    scaled_bit_offset(word, 1)
}

/// Offset of a bit as [`bit_offset`] reads it, counted in steps of `scale` bits.
///
/// # Errors
/// [`Refusal::BIT_OFFSET`] as there.
pub fn scaled_bit_offset(word: &[u8], scale: u64) -> Result<u64, Refusal> {
    let number = parse_integer(word).and_then(|number| u64::try_from(number).ok());
    let offset = number.and_then(|number| number.checked_mul(scale));
    offset.filter(|&offset| offset / 8 < STRING_BYTES_MAX).ok_or(Refusal::BIT_OFFSET)
}

/// Which span a pair of inclusive indexes marks in a sequence of `length` elements; negative indexes count from the
/// end, and those before the beginning mean the first element, even for `end`. `None` if the span is empty.
pub fn index_range(start: i64, end: i64, length: u64) -> Option<RangeInclusive<u64>> {
    let length = i64::try_from(length).ok()?;
    let from_front = |index: i64| if index < 0 { (index + length).max(0) } else { index };
    let (start, end) = (from_front(start), from_front(end).min(length - 1));
    (start <= end).then_some(start as u64..=end as u64)
}

/// A count that is not below `least`; anything else is refused with `complaint`.
///
/// # Errors
/// `complaint`, which begins with its code.
pub fn at_least(least: usize, word: &[u8], complaint: &'static str) -> Result<usize, Refusal> {
    let number = parse_integer(word).and_then(|number| usize::try_from(number).ok());
    number.filter(|&number| number >= least).ok_or_else(|| Refusal::new(complaint))
}

/// The ranks that a pair of inclusive indexes marks in a sequence of `len` elements; negative indexes count from the
/// end. Unlike [`index_range`], where both ends lie before the first element there is nothing.
pub fn ranks_between(start: i64, end: i64, len: usize) -> Range<usize> {
    let from_front = |index: i64| if index < 0 { index.saturating_add(len as i64) } else { index };
    let (start, end) = (from_front(start).max(0), from_front(end));
    let Ok(end) = usize::try_from(end) else { return 0..0 };
    let (start, end) = (start as usize, end.saturating_add(1).min(len));
    if start < end { start..end } else { 0..0 }
}

/// How a time to live is written: `EX`, `PX`, `EXAT` or `PXAT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryForm {
    /// Seconds from now.
    Seconds,
    /// Milliseconds from now.
    Millis,
    /// Seconds since the Unix epoch.
    UnixSeconds,
    /// Milliseconds since the Unix epoch.
    UnixMillis,
}

impl ExpiryForm {
    /// The form that an option word announces.
    pub fn named(word: &[u8]) -> Option<Self> {
        match word {
            [b'e' | b'E', b'x' | b'X'] => Some(Self::Seconds),
            [b'p' | b'P', b'x' | b'X'] => Some(Self::Millis),
            _ if is(word, "exat") => Some(Self::UnixSeconds),
            _ if is(word, "pxat") => Some(Self::UnixMillis),
            _ => None,
        }
    }

    /// True if the time is counted from the moment of the command.
    pub fn is_relative(self) -> bool {
        matches!(self, Self::Seconds | Self::Millis)
    }

    /// When `word`, written in this form, falls due. The result is after the epoch, though it may be in the past.
    ///
    /// # Errors
    /// [`Refusal::NOT_AN_INTEGER`]; [`Refusal::invalid_expire`] for `command` if it is zero, negative, or does not
    /// fit 64 bits in milliseconds.
    pub fn deadline(self, word: &[u8], moment: Moment, command: &str) -> Result<UnixMillis, Refusal> {
        let number = integer(word)?;
        let in_millis = match self {
            Self::Seconds | Self::UnixSeconds => number.checked_mul(1000),
            Self::Millis | Self::UnixMillis => Some(number),
        };
        let base = if self.is_relative() { moment.unix.0 } else { 0 };
        in_millis
            .filter(|&millis| millis > 0)
            .and_then(|millis| millis.checked_add(base))
            .map(UnixMillis)
            .ok_or_else(|| Refusal::invalid_expire(command))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_offset_stays_inside_the_longest_string() {
        assert_eq!(bit_offset(b"0"), Ok(0));
        assert_eq!(bit_offset(b"4294967295"), Ok(u64::from(u32::MAX)));
        for text in ["4294967296", "-1", "x", "", "9223372036854775807"] {
            assert_eq!(bit_offset(text.as_bytes()), Err(Refusal::BIT_OFFSET), "{text}");
        }
        assert_eq!(scaled_bit_offset(b"3", 7), Ok(21));
        assert_eq!(scaled_bit_offset(b"4611686018427387905", 4), Err(Refusal::BIT_OFFSET));
    }

    #[test]
    fn index_ranges_are_those_of_a_naive_list() {
        // The twin: look at every index and ask whether it lies between the two ends.
        for length in 0..5i64 {
            for start in -7..7i64 {
                for end in -7..7i64 {
                    let place = |index: i64| if index < 0 { index + length } else { index };
                    let naive: Vec<u64> = (0..length)
                        .filter(|&index| place(start) <= index && index <= place(end).max(0))
                        .map(|index| index as u64)
                        .collect();
                    let range: Vec<u64> = index_range(start, end, length as u64).into_iter().flatten().collect();
                    assert_eq!(range, naive, "{start}..={end} of {length}");
                }
            }
        }
        assert_eq!(index_range(i64::MIN, i64::MAX, 3), Some(0..=2));
    }

    #[test]
    fn deadlines_are_after_the_epoch_and_fit() {
        use ExpiryForm::{Millis, Seconds, UnixMillis as AtMillis, UnixSeconds};
        let moment = Moment { unix: UnixMillis(1_000), seed: 0 };
        let invalid = Err(Refusal::invalid_expire("set"));
        let table = [
            (Seconds, "10", Ok(UnixMillis(11_000))),
            (Millis, "10", Ok(UnixMillis(1_010))),
            (UnixSeconds, "10", Ok(UnixMillis(10_000))),
            (AtMillis, "10", Ok(UnixMillis(10))),
            (Seconds, "0", invalid.clone()),
            (Millis, "-1", invalid.clone()),
            (Seconds, "9223372036854775", invalid.clone()),
            (Seconds, "9223372036854776", invalid.clone()),
            (UnixSeconds, "9223372036854775", Ok(UnixMillis(9_223_372_036_854_775_000))),
            (Millis, "9223372036854775807", invalid.clone()),
            (AtMillis, "9223372036854775807", Ok(UnixMillis(i64::MAX))),
            (Seconds, "1.5", Err(Refusal::NOT_AN_INTEGER)),
        ];
        for (form, word, expected) in table {
            assert_eq!(form.deadline(word.as_bytes(), moment, "set"), expected, "{form:?} {word}");
        }
    }
}

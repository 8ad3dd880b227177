//! Scores and other numbers of 64 bits: text to number and back, as Redis 7.0 does it with the C library.

use crate::value::ItoaBuffer;

/// The number that a word is. `None` for what Redis refuses: nothing, spaces, no number, and what is too large or too
/// small to be told from infinity or zero.
pub(crate) fn parse(word: &[u8]) -> Option<f64> {
    if word.first().is_none_or(u8::is_ascii_whitespace) {
        return None;
    }
    scan(word).filter(|scanned| !scanned.is_out_of_range).map(|scanned| scanned.number)
}

/// The number at an end of a range. Redis is more generous here: nothing is zero, spaces may stand in front, what is
/// too large is infinite, and what follows a zero byte is not looked at.
pub(crate) fn parse_bound(word: &[u8]) -> Option<f64> {
    scan_generously(word).map(|scanned| scanned.number)
}

/// The number by which SORT orders: as generous, but what is too large or too small is refused.
pub(crate) fn parse_weight(word: &[u8]) -> Option<f64> {
    scan_generously(word).filter(|scanned| !scanned.is_out_of_range).map(|scanned| scanned.number)
}

fn scan_generously(word: &[u8]) -> Option<Scanned> {
    let text = word.split(|&byte| byte == 0).next().unwrap_or_default();
    if text.is_empty() {
        return Some(Scanned { number: 0.0, is_out_of_range: false });
    }
    scan(text.trim_ascii_start())
}

struct Scanned {
    number: f64,
    /// The number is infinite or zero although the text is not.
    is_out_of_range: bool,
}

/// Reads what `strtod` reads, but for what is no number.
fn scan(text: &[u8]) -> Option<Scanned> {
    let (is_negative, rest) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let (magnitude, is_zero) = if rest.eq_ignore_ascii_case(b"inf") || rest.eq_ignore_ascii_case(b"infinity") {
        return Some(Scanned {
            number: if is_negative { -f64::INFINITY } else { f64::INFINITY },
            is_out_of_range: false,
        });
    } else if let [b'0', b'x' | b'X', digits @ ..] = rest {
        scan_hexadecimal(digits)?
    } else {
        scan_decimal(rest)?
    };
    let is_out_of_range = magnitude.is_infinite() || (magnitude == 0.0 && !is_zero);
    Some(Scanned { number: if is_negative { -magnitude } else { magnitude }, is_out_of_range })
}

/// The magnitude, and whether it was written as zero.
fn scan_decimal(text: &[u8]) -> Option<(f64, bool)> {
    let (mantissa, exponent) = match text.iter().position(|byte| byte.eq_ignore_ascii_case(&b'e')) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let digits = mantissa.iter().filter(|byte| byte.is_ascii_digit()).count();
    let points = mantissa.iter().filter(|&&byte| byte == b'.').count();
    if digits == 0 || points > 1 || digits + points != mantissa.len() {
        return None;
    }
    if let Some(exponent) = exponent {
        let exponent = exponent.strip_prefix(b"-").or_else(|| exponent.strip_prefix(b"+")).unwrap_or(exponent);
        if exponent.is_empty() || !exponent.iter().all(u8::is_ascii_digit) {
            return None;
        }
    }
    let number = std::str::from_utf8(text).ok()?.parse().ok()?;
    Some((number, !mantissa.iter().any(|byte| (b'1'..=b'9').contains(byte))))
}

/// What stands behind `0x`: the magnitude, and whether it was written as zero.
fn scan_hexadecimal(text: &[u8]) -> Option<(f64, bool)> {
    let (mantissa, exponent) = match text.iter().position(|byte| byte.eq_ignore_ascii_case(&b'p')) {
        Some(at) => (&text[..at], std::str::from_utf8(&text[at + 1..]).ok()?.parse::<i64>().ok()?),
        None => (text, 0),
    };
    let (mut bits, mut power, mut behind_point, mut digits) = (0u64, exponent.clamp(-100_000, 100_000), false, 0);
    for &byte in mantissa {
        if byte == b'.' && !behind_point {
            behind_point = true;
            continue;
        }
        let digit = u64::from(char::from(byte).to_digit(16)?);
        digits += 1;
        if bits >> 60 == 0 {
            bits = bits << 4 | digit;
            power -= if behind_point { 4 } else { 0 };
        } else {
            // Beyond what counts, but for rounding.
            bits |= u64::from(digit != 0);
            power += if behind_point { 0 } else { 4 };
        }
    }
    if digits == 0 {
        return None;
    }
    let mut number = bits as f64;
    while power != 0 && number != 0.0 && number.is_finite() {
        let step = power.clamp(-1000, 1000);
        number *= 2f64.powi(step as i32);
        power -= step;
    }
    Some((number, bits == 0))
}

/// The text of a number, on the stack.
pub(crate) struct Text {
    bytes: [u8; 32],
    len: u8,
}

impl Text {
    pub(crate) fn new(text: &[u8]) -> Self {
        let mut bytes = [0; 32];
        bytes[..text.len()].copy_from_slice(text);
        Self { bytes, len: text.len() as u8 }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).expect("numbers are written in ASCII")
    }
}

/// The number with 17 significant digits at most, as `%.17g` writes it.
pub(crate) fn print(number: f64) -> Text {
    if let Some(integer) = exact_integer(number).filter(|integer| integer.unsigned_abs() < 100_000_000_000_000_000)
        && (integer != 0 || number.is_sign_positive())
    {
        return Text::new(ItoaBuffer::new().format(integer));
    }
    if number.is_infinite() {
        return Text::new(if number > 0.0 { b"inf" } else { b"-inf" });
    }
    let scientific = format!("{number:.16e}");
    let (mantissa, exponent) = scientific.split_once('e').expect("the form has an exponent");
    let exponent: i32 = exponent.parse().expect("it is a number");
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |rest| ("-", rest));
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let digits = digits.trim_end_matches('0');
    let digits = if digits.is_empty() { "0" } else { digits };
    let text = if !(-4..17).contains(&exponent) {
        let (first, rest) = digits.split_at(1);
        let point = if rest.is_empty() { "" } else { "." };
        let direction = if exponent < 0 { '-' } else { '+' };
        format!("{sign}{first}{point}{rest}e{direction}{:02}", exponent.abs())
    } else if exponent < 0 {
        format!("{sign}0.{}{digits}", "0".repeat(exponent.unsigned_abs() as usize - 1))
    } else {
        let whole = exponent as usize + 1;
        match digits.len() {
            len if len > whole => format!("{sign}{}.{}", &digits[..whole], &digits[whole..]),
            len => format!("{sign}{digits}{}", "0".repeat(whole - len)),
        }
    };
    Text::new(text.as_bytes())
}

/// The same number as an integer, if it is one that 64 bits hold exactly.
#[inline]
pub(crate) fn exact_integer(number: f64) -> Option<i64> {
    // As Redis: half the range is safe without a doubt.
    const SAFE: f64 = (i64::MAX / 2) as f64;
    let integer = number as i64;
    ((-SAFE..=SAFE).contains(&number) && integer as f64 == number).then_some(integer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_printed_as_the_c_library_prints_them() {
        for (number, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (-17.5, "-17.5"),
            (0.1, "0.10000000000000001"),
            (1.1, "1.1000000000000001"),
            (3.3, "3.2999999999999998"),
            (0.000_1, "0.0001"),
            (0.000_01, "1.0000000000000001e-05"),
            (1e16, "10000000000000000"),
            (1e17, "1e+17"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
            (9_007_199_254_740_992.0, "9007199254740992"),
            (1e300, "1.0000000000000001e+300"),
            (f64::MAX, "1.7976931348623157e+308"),
            (f64::MIN_POSITIVE, "2.2250738585072014e-308"),
            (5e-324, "4.9406564584124654e-324"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (99.5e-3, "0.099500000000000005"),
            (-3.5e20, "-3.5e+20"),
        ] {
            assert_eq!(print(number).as_str(), text);
        }
    }

    #[test]
    fn words_are_read_as_the_c_library_reads_them() {
        for (word, number) in [
            ("0", Some(0.0)),
            ("-0", Some(-0.0)),
            ("+1.5", Some(1.5)),
            (".5", Some(0.5)),
            ("5.", Some(5.0)),
            ("1e3", Some(1000.0)),
            ("1E-3", Some(0.001)),
            ("inf", Some(f64::INFINITY)),
            ("-Infinity", Some(f64::NEG_INFINITY)),
            ("+inf", Some(f64::INFINITY)),
            ("0x10", Some(16.0)),
            ("-0x1.8p1", Some(-3.0)),
            ("0x1p-1074", Some(5e-324)),
            ("0e999", Some(0.0)),
            ("1e400", None),
            ("1e-400", None),
            ("0x1p5000", None),
            ("nan", None),
            ("", None),
            (" 1", None),
            ("1 ", None),
            ("1e", None),
            ("1e+", None),
            ("--1", None),
            (".", None),
            ("1.2.3", None),
            ("0x", None),
            ("infinit", None),
            ("1_0", None),
            ("abc", None),
        ] {
            let read = parse(word.as_bytes());
            assert_eq!(read.map(f64::to_bits), number.map(f64::to_bits), "{word}");
        }
        assert_eq!(parse_bound(b""), Some(0.0));
        assert_eq!(parse_bound(b" 2"), Some(2.0));
        assert_eq!(parse_bound(b"1e400"), Some(f64::INFINITY));
        assert_eq!(parse_bound(b"2 "), None);
        assert_eq!(parse_bound(b"2\0x"), Some(2.0));
        assert_eq!((parse_weight(b""), parse_weight(b"1e400")), (Some(0.0), None));
    }

    #[test]
    fn what_is_printed_is_read_back() {
        let mut prng = stdx::Prng::new(11);
        for _ in 0..20_000 {
            let number = f64::from_bits(prng.draw());
            if !number.is_nan() {
                assert_eq!(parse(print(number).as_bytes()).map(f64::to_bits), Some(number.to_bits()));
            }
        }
    }
}

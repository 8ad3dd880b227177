//! Numbers with the precision and range of x87's 80-bit extended format, in integer arithmetic.
//!
//! INCRBYFLOAT is defined by what Redis does on x86-64: read decimal text into a `long double` (64 bits of mantissa,
//! 15 of exponent), add, print with seventeen digits behind the point. An `f64` would give other digits (0.1 + 0.2),
//! and decimal arithmetic yet others (a third, three times). So the format is built here from integers: every operation
//! is exact and then rounded once, to nearest, ties to even, which is what the hardware and the C library do. The
//! result is the same on every machine.

use std::cmp::Ordering;

/// Longest text that is read as a number, in bytes; Redis's `MAX_LONG_DOUBLE_CHARS` less its terminator.
const TEXT_BYTES_MAX: usize = 5 * 1024 - 1;

/// Digits behind the decimal point that are printed, trailing zeros aside.
const FRACTION_DIGITS: u32 = 17;

/// Exponents of the lowest mantissa bit: that of the largest finite number, and that of the smallest above zero.
const EXPONENT_MAX: i64 = 16_383 - 63;
const EXPONENT_MIN: i64 = -16_445;

/// A finite number `±mantissa × 2^exponent`, or an infinity. Never NaN.
///
/// Unless it is zero or subnormal, the mantissa's highest bit is set.
#[derive(Clone, Copy, Debug)]
pub struct Extended {
    negative: bool,
    magnitude: Magnitude,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Magnitude {
    Finite { mantissa: u64, exponent: i64 },
    Infinite,
}

use Magnitude::{Finite, Infinite};

const ZERO: Magnitude = Finite { mantissa: 0, exponent: EXPONENT_MIN };

impl From<i64> for Extended {
    /// Exact: sixty-four bits of mantissa hold every integer of sixty-four bits.
    fn from(value: i64) -> Self {
        Self { negative: value < 0, magnitude: round(u128::from(value.unsigned_abs()), 0, false) }
    }
}

impl PartialEq for Extended {
    fn eq(&self, other: &Self) -> bool {
        self.partial_cmp(other) == Some(Ordering::Equal)
    }
}

impl PartialOrd for Extended {
    /// By value: zeros of either sign are equal.
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        let key = |number: &Self| match number.magnitude {
            Infinite => (EXPONENT_MAX + 1, 0),
            // If two mantissas do not have their highest bits set, both exponents are the least.
            Finite { mantissa, exponent } => (exponent, mantissa),
        };
        let is_zero = |number: &Self| number.magnitude == ZERO;
        let of_magnitudes = key(self).cmp(&key(other));
        Some(match (self.negative, other.negative) {
            _ if is_zero(self) && is_zero(other) => Ordering::Equal,
            (false, false) => of_magnitudes,
            (true, true) => of_magnitudes.reverse(),
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
        })
    }
}

impl Extended {
    /// The largest finite number.
    pub const MAX: Self = Self { negative: false, magnitude: Finite { mantissa: u64::MAX, exponent: EXPONENT_MAX } };

    /// The same with the other sign.
    pub fn negated(self) -> Self {
        Self { negative: !self.negative, ..self }
    }

    /// Reads what C's `strtold` reads to its end: an optional sign, decimal or hexadecimal digits with an optional
    /// point and exponent, or `inf`, `infinity`. Leading blanks, NaN, and magnitudes that round to infinity or from
    /// above zero to zero are refused, as Redis does.
    pub fn parse(text: &[u8]) -> Option<Self> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let (negative, unsigned) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        if unsigned.eq_ignore_ascii_case(b"inf") || unsigned.eq_ignore_ascii_case(b"infinity") {
            return Some(Self { negative, magnitude: Infinite });
        }
        let magnitude = match unsigned {
            [b'0', b'x' | b'X', rest @ ..] => parse_hexadecimal(rest)?,
            rest => parse_decimal(rest)?,
        };
        (magnitude != Infinite).then_some(Self { negative, magnitude })
    }

    /// True if it is no infinity.
    pub fn is_finite(self) -> bool {
        self.magnitude != Infinite
    }

    /// The sum, or `None` if it is infinite or, of opposite infinities, no number at all.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        let (Finite { mantissa: a, exponent: a_exponent }, Finite { mantissa: b, exponent: b_exponent }) =
            (self.magnitude, other.magnitude)
        else {
            return None;
        };
        if a == 0 || b == 0 {
            return Some(match (a, b) {
                (0, 0) => Self { negative: self.negative && other.negative, magnitude: ZERO },
                (0, _) => other,
                _ => self,
            });
        }
        // `high` has the larger exponent, so it moves left by what is free, and `low` right by the rest; what `low`
        // loses there is far below the last bit kept and matters only as being there or not.
        let (high, high_mantissa, high_exponent, low, low_mantissa, low_exponent) = if a_exponent >= b_exponent {
            (self, a, a_exponent, other, b, b_exponent)
        } else {
            (other, b, b_exponent, self, a, a_exponent)
        };
        let gap = high_exponent - low_exponent;
        let left = gap.min(62);
        let right = gap - left;
        let high_part = u128::from(high_mantissa) << left;
        let (low_part, lost) = match right {
            0 => (u128::from(low_mantissa), false),
            1..=63 => (u128::from(low_mantissa >> right), low_mantissa & ((1 << right) - 1) != 0),
            _ => (0, true),
        };
        let exponent = high_exponent - left;
        let (negative, sum, lost) = if high.negative == low.negative {
            (high.negative, high_part + low_part, lost)
        } else {
            match high_part.cmp(&low_part) {
                // What was lost makes the subtrahend a little larger than `low_part`.
                Ordering::Greater => (high.negative, high_part - low_part - u128::from(lost), lost),
                Ordering::Less => (low.negative, low_part - high_part, lost),
                Ordering::Equal => (false, 0, false),
            }
        };
        let magnitude = round(sum, exponent, lost);
        (magnitude != Infinite).then_some(Self { negative, magnitude })
    }

    /// Seventeen digits behind the point, without trailing zeros, as C's `%.17Lf` prints them; `0` never has a sign.
    ///
    /// # Panics
    /// If it is infinite; a sum never is.
    pub fn print(self) -> String {
        let Finite { mantissa, exponent } = self.magnitude else { unreachable!("an infinity is never printed") };
        let sign = if self.negative { "-" } else { "" };
        if exponent >= 0 {
            let mut number = Natural::from(mantissa);
            number.shift_left(exponent as u32);
            return format!("{sign}{}", number.print());
        }
        // The mantissa times ten to the seventeenth has 121 bits at most, so everything below fits.
        let scale = 10u128.pow(FRACTION_DIGITS);
        let scaled = match exponent.unsigned_abs() {
            shift @ 1..=127 => shift_right_to_nearest(u128::from(mantissa) * scale, shift as u32, false),
            _ => 0,
        };
        if scaled == 0 {
            return "0".into();
        }
        let (whole, fraction) = (scaled / scale, scaled % scale);
        if fraction == 0 {
            return format!("{sign}{whole}");
        }
        let digits = format!("{fraction:017}");
        format!("{sign}{whole}.{}", digits.trim_end_matches('0'))
    }
}

/// `number × 2^exponent` as a magnitude; `lost` says that the true number is larger by less than one unit.
fn round(mut number: u128, mut exponent: i64, mut lost: bool) -> Magnitude {
    if number == 0 {
        return ZERO;
    }
    // Down to 64 bits, or fewer if the lowest bit would fall below the smallest subnormal's.
    let mut shift = (64 - i64::from(number.leading_zeros())).max(EXPONENT_MIN - exponent);
    if shift > 64 {
        lost |= number as u64 != 0;
        number >>= 64;
        exponent += 64;
        shift -= 64;
    }
    let (mut mantissa, mut exponent) = match shift {
        128.. => return ZERO,
        1.. => (shift_right_to_nearest(number, shift as u32, lost), exponent + shift),
        // Only anyone who has lost nothing comes here with so few bits.
        _ => (number, exponent),
    };
    if mantissa == 1 << 64 {
        mantissa >>= 1;
        exponent += 1;
    }
    // Few bits, large exponent: normalise, so that equal numbers look equal and the range check sees the true exponent.
    let room = i64::from(mantissa.leading_zeros()) - 64;
    let left = room.min(exponent - EXPONENT_MIN).max(0);
    mantissa <<= left;
    exponent -= left;
    if exponent > EXPONENT_MAX { Infinite } else { Finite { mantissa: mantissa as u64, exponent } }
}

/// `number / 2^shift` to the nearest integer, a tie to the even one; `lost` as in [`round`]. `shift` is in `1..=127`.
fn shift_right_to_nearest(number: u128, shift: u32, lost: bool) -> u128 {
    let kept = number >> shift;
    let half = 1u128 << (shift - 1);
    let rest = number & ((half << 1) - 1);
    let up = match rest.cmp(&half) {
        Ordering::Greater => true,
        Ordering::Equal => lost || kept & 1 == 1,
        Ordering::Less => false,
    };
    kept + u128::from(up)
}

/// Digits with an optional point, then an optional exponent behind a letter: what both bases have in common.
struct Scanned {
    /// Values of the digits, leading zeros left out.
    digits: Vec<u8>,
    /// How many of them stand behind the point, leading zeros included.
    fraction_digits: i64,
    /// What the exponent says; clamped where no digit count could make up for it.
    exponent: i64,
}

fn scan(text: &[u8], base: u32, exponent_letter: u8) -> Option<Scanned> {
    let (mut digits, mut fraction_digits, mut seen, mut point) = (Vec::new(), 0, false, false);
    let mut rest = text;
    while let [byte, tail @ ..] = rest {
        if *byte == b'.' && !point {
            point = true;
        } else if let Some(digit) = char::from(*byte).to_digit(base) {
            seen = true;
            fraction_digits += i64::from(point);
            if digit != 0 || !digits.is_empty() {
                digits.push(digit as u8);
            }
        } else {
            break;
        }
        rest = tail;
    }
    let exponent = match rest {
        [] => 0,
        [letter, tail @ ..] if letter.eq_ignore_ascii_case(&exponent_letter) => parse_exponent(tail)?,
        _ => return None,
    };
    seen.then_some(Scanned { digits, fraction_digits, exponent })
}

fn parse_exponent(text: &[u8]) -> Option<i64> {
    let (sign, digits) = match text {
        [b'-', digits @ ..] => (-1, digits),
        [b'+', digits @ ..] => (1, digits),
        digits => (1, digits),
    };
    if digits.is_empty() {
        return None;
    }
    let mut number = 0i64;
    for &byte in digits {
        if !byte.is_ascii_digit() {
            return None;
        }
        number = (number * 10 + i64::from(byte - b'0')).min(1_000_000);
    }
    Some(sign * number)
}

fn parse_decimal(text: &[u8]) -> Option<Magnitude> {
    let Scanned { mut digits, fraction_digits, exponent } = scan(text, 10, b'e')?;
    if digits.is_empty() {
        return Some(ZERO);
    }
    let mut power = exponent - fraction_digits;
    while digits.last() == Some(&0) {
        digits.pop();
        power += 1;
    }
    // The number is below 10^top and not below 10^(top - 1). Beyond these bounds it is surely infinite or nothing, and
    // within them the integers below have some 35,000 bits at most.
    let top = digits.len() as i64 + power;
    if !(-4_951..=4_934).contains(&top) {
        return None;
    }
    let mut number = Natural::default();
    for chunk in digits.chunks(19) {
        let value = chunk.iter().fold(0, |value, &digit| value * 10 + u64::from(digit));
        number.multiply_add(10u64.pow(chunk.len() as u32), value);
    }
    let mut binary_exponent = 0;
    let mut lost = false;
    if power >= 0 {
        number.for_each_power_of_ten(power as u32, |number, factor| number.multiply_add(factor, 0));
    } else {
        // Enough bits in front that the quotient has 66 at least: then the last ones, and whether anything was lost,
        // decide the rounding. A power of ten has less than 10/3 bits per digit.
        let divisor_bits = power.unsigned_abs() as u32 * 10 / 3 + 1;
        let shift = (divisor_bits + 66).saturating_sub(number.bits());
        number.shift_left(shift);
        binary_exponent = -i64::from(shift);
        number.for_each_power_of_ten(power.unsigned_abs() as u32, |number, divisor| {
            lost |= number.divide(divisor) != 0;
        });
    }
    let (head, dropped, cut) = number.head();
    let magnitude = round(head, binary_exponent + i64::from(dropped), lost || cut);
    (magnitude != ZERO).then_some(magnitude)
}

fn parse_hexadecimal(text: &[u8]) -> Option<Magnitude> {
    let Scanned { digits, fraction_digits, exponent } = scan(text, 16, b'p')?;
    if digits.is_empty() {
        return Some(ZERO);
    }
    let (head, tail) = digits.split_at(digits.len().min(31));
    let number = head.iter().fold(0, |number, &digit| number << 4 | u128::from(digit));
    let exponent = exponent + 4 * (tail.len() as i64 - fraction_digits);
    let magnitude = round(number, exponent, tail.iter().any(|&digit| digit != 0));
    (magnitude != ZERO).then_some(magnitude)
}

/// A natural number of any size, least significant word first, no leading zero word.
#[derive(Default)]
struct Natural(Vec<u64>);

impl From<u64> for Natural {
    fn from(value: u64) -> Self {
        let mut number = Self(vec![value]);
        number.trim();
        number
    }
}

impl Natural {
    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn bits(&self) -> u32 {
        self.0.last().map_or(0, |word| self.0.len() as u32 * 64 - word.leading_zeros())
    }

    fn multiply_add(&mut self, factor: u64, summand: u64) {
        let mut carry = u128::from(summand);
        for word in &mut self.0 {
            carry += u128::from(*word) * u128::from(factor);
            *word = carry as u64;
            carry >>= 64;
        }
        if carry > 0 {
            self.0.push(carry as u64);
        }
    }

    /// Leaves the quotient and returns the remainder.
    fn divide(&mut self, divisor: u64) -> u64 {
        let mut rest = 0u128;
        for word in self.0.iter_mut().rev() {
            rest = rest << 64 | u128::from(*word);
            *word = (rest / u128::from(divisor)) as u64;
            rest %= u128::from(divisor);
        }
        self.trim();
        rest as u64
    }

    fn shift_left(&mut self, bits: u32) {
        self.multiply_add(1 << (bits % 64), 0);
        self.0.splice(0..0, std::iter::repeat_n(0, bits as usize / 64));
        self.trim();
    }

    /// Calls `change` with factors of at most nineteen digits; their product is ten to the `power`.
    fn for_each_power_of_ten(&mut self, mut power: u32, mut change: impl FnMut(&mut Self, u64)) {
        while power > 0 {
            let step = power.min(19);
            change(self, 10u64.pow(step));
            power -= step;
        }
    }

    /// The highest 128 bits at most, how many bits stand below them, and whether any of those is set.
    fn head(&self) -> (u128, u32, bool) {
        let low = self.0.len().saturating_sub(2);
        let head = self.0[low..].iter().rev().fold(0, |head, &word| head << 64 | u128::from(word));
        (head, low as u32 * 64, self.0[..low].iter().any(|&word| word != 0))
    }

    fn print(mut self) -> String {
        let mut groups = Vec::new();
        while !self.0.is_empty() {
            groups.push(self.divide(10u64.pow(19)));
        }
        let mut text = groups.pop().unwrap_or(0).to_string();
        for group in groups.into_iter().rev() {
            text.push_str(&format!("{group:019}"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum as text; `refused` if one of the words is not read, `infinite` if the sum has no finite value.
    fn add(left: &str, right: &str) -> String {
        match (Extended::parse(left.as_bytes()), Extended::parse(right.as_bytes())) {
            (Some(left), Some(right)) => left.checked_add(right).map_or("infinite".into(), Extended::print),
            _ => "refused".into(),
        }
    }

    #[test]
    fn sums_are_those_of_an_x87_long_double() {
        // Expected: what strtold, addition and printf("%.17Lf") give on x86-64 Linux.
        let table = [
            ("0.1", "0.2", "0.3"),
            ("1.23", "-1.1", "0.13"),
            ("10.5", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("1", "-1.1", "-0.1"),
            ("17179869185", "1.5", "17179869186.5"),
            ("-1", "1", "0"),
            ("-0", "-0", "0"),
            ("+5", ".5", "5.5"),
            ("5.", "0", "5"),
            ("0.333333333333333333", "0.333333333333333333", "0.66666666666666667"),
            ("1e17", "0.00000000000000001", "100000000000000000"),
            ("9007199254740993", "0.5", "9007199254740993.5"),
            ("9223372036854775807", "-0.5", "9223372036854775806.5"),
            ("18446744073709551615", "1", "18446744073709551616"),
            ("18446744073709551615", "0.5", "18446744073709551616"),
            ("18446744073709551616", "1", "18446744073709551616"),
            ("1e40", "1", "9999999999999999999783686092270256259072"),
            ("1e-20", "0", "0"),
            ("-1e-20", "0", "0"),
            ("0.000000000000000005", "0", "0"),
            ("0.000000000000000015", "0", "0.00000000000000002"),
            ("0x1.8p3", "0x.8", "12.5"),
            ("1e-4950", "1", "1"),
            ("1.189731495357231765e4932", "1.189731495357231765e4932", "infinite"),
            ("inf", "1", "infinite"),
            ("-Infinity", "inf", "infinite"),
        ];
        for (left, right, sum) in table {
            assert_eq!(add(left, right), sum, "{left} + {right}");
            assert_eq!(add(right, left), sum, "{right} + {left}");
        }
    }

    #[test]
    fn text_that_is_no_finite_number_or_not_only_a_number_is_refused() {
        let words = [
            "",
            " 1",
            "1 ",
            "abc",
            "1x",
            "+",
            "-",
            ".",
            "1e",
            "1e+",
            "0x",
            "0x1p",
            "+-1",
            "--1",
            "nan",
            "-nan",
            "infinit",
            "1,5",
            "1.2.3",
            "1e5000",
            "1e-5000",
            "0x1p16384",
            "0x1p-16447",
            "1e99999999999",
            "1.19e4932",
        ];
        for word in words {
            assert_eq!(Extended::parse(word.as_bytes()), None, "{word}");
        }
        assert_eq!(Extended::parse(&[b'1'; TEXT_BYTES_MAX + 1]), None);
    }

    #[test]
    fn integers_of_sixty_four_bits_are_exact() {
        for value in [0, 1, -1, 10, i64::MAX, i64::MIN, i64::MAX - 1] {
            assert_eq!(Extended::from(value).print(), value.to_string());
            assert_eq!(Extended::parse(value.to_string().as_bytes()), Some(Extended::from(value)));
        }
    }

    #[test]
    fn what_is_printed_without_loss_reads_back_as_the_same_number() {
        let mut prng = stdx::Prng::new(1);
        for _ in 0..10_000 {
            let (whole, fraction) = (prng.below(1 << 10), prng.below(1 << 17));
            let number = Extended::parse(format!("{whole}.{fraction}").as_bytes()).expect("a plain decimal");
            let dyadic =
                Extended::parse(format!("0x{whole:x}.{fraction:05x}").as_bytes()).expect("a plain hexadecimal");
            assert_eq!(Extended::parse(number.print().as_bytes()), Some(number));
            // Seventeen binary digits behind the point are seventeen decimal ones.
            let halves = dyadic.print();
            assert!(Extended::parse(halves.as_bytes()).is_some_and(|back| back.print() == halves));
        }
    }

    #[test]
    fn the_largest_number_prints_all_its_digits() {
        let largest = Extended::parse(b"0x1.fffffffffffffffep16383").expect("the largest finite number");
        let text = largest.print();
        assert_eq!(text.len(), 4_933);
        assert!(text.starts_with("1189731495357231765"));
        assert_eq!(Extended::parse(text.as_bytes()), Some(largest));
    }
}

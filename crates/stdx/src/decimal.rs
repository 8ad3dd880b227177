//! Numbers with a fraction as text.

/// The number with as few digits as tell it from every other, as Redis 7.2 and later answer it. One that is very large
/// or very small, or has many digits on both sides of its point, is written with an exponent.
pub fn shortest(number: f64) -> String {
    // As Redis: half the range of integers is safe without a doubt, and these are written with all their digits.
    const SAFE: f64 = (i64::MAX / 2) as f64;
    if number == 0.0 {
        return if number.is_sign_negative() { "-0" } else { "0" }.to_owned();
    }
    if !number.is_finite() {
        return number.to_string().to_ascii_lowercase();
    }
    let integer = number as i64;
    if (-SAFE..=SAFE).contains(&number) && integer as f64 == number {
        return integer.to_string();
    }
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').expect("the form has an exponent");
    let exponent: i32 = exponent.parse().expect("it is a number");
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |rest| ("-", rest));
    let digits = mantissa.replace('.', "");
    let count = digits.len() as i32;
    // Digits behind the point; negative if zeros stand before it.
    let behind = count - 1 - exponent;
    if behind <= 0 && exponent < count + 7 {
        format!("{sign}{digits}{}", "0".repeat(behind.unsigned_abs() as usize))
    } else if behind > 0 && (behind < 7 || exponent.abs() < 4) {
        if exponent < 0 {
            format!("{sign}0.{}{digits}", "0".repeat(exponent.unsigned_abs() as usize - 1))
        } else {
            let (whole, fraction) = digits.split_at(exponent as usize + 1);
            format!("{sign}{whole}.{fraction}")
        }
    } else {
        let (first, rest) = digits.split_at(1);
        let point = if rest.is_empty() { "" } else { "." };
        let direction = if exponent < 0 { '-' } else { '+' };
        format!("{sign}{first}{point}{rest}e{direction}{}", exponent.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_answered_with_as_few_digits_as_redis_needs() {
        // As Redis 8.6 answers ZSCORE.
        for (number, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (-17.5, "-17.5"),
            (0.1, "0.1"),
            (3.3, "3.3"),
            (0.000_1, "0.0001"),
            (0.000_01, "0.00001"),
            (0.000_000_1, "1e-7"),
            (0.000_000_123, "1.23e-7"),
            (1e16, "10000000000000000"),
            (123_456_789_012_345_680.0, "123456789012345680"),
            (1e18, "1000000000000000000"),
            (1e19, "1e+19"),
            (12_345_678_901_234_567_890.0, "12345678901234567000"),
            (0.000_123_456_789_012_34, "1.2345678901234e-4"),
            (12_345.678_901_234_567, "1.2345678901234567e+4"),
            (1_234.567_890_123_456_7, "1234.5678901234567"),
            (1e300, "1e+300"),
            (1.5e22, "1.5e+22"),
            (5e-324, "5e-324"),
            (f64::MAX, "1.7976931348623157e+308"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
            (99.5e-3, "0.0995"),
        ] {
            assert_eq!(shortest(number), text);
        }
    }
}

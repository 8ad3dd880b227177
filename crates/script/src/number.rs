//! Numbers as C's `printf` writes them.

/// `%.<precision>g`.
pub(crate) fn general(value: f64, precision: usize) -> String {
    if value.is_nan() {
        return if value.is_sign_negative() { "-nan".to_owned() } else { "nan".to_owned() };
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".to_owned() } else { "-inf".to_owned() };
    }
    if value == 0.0 {
        return if value.is_sign_negative() { "-0".to_owned() } else { "0".to_owned() };
    }
    let scientific = format!("{value:.*e}", precision - 1);
    let (mantissa, exponent) = scientific.split_once('e').expect("the scientific form has an exponent");
    let exponent: i32 = exponent.parse().expect("an exponent is a number");
    if exponent < -4 || exponent >= precision as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trim(mantissa), exponent.abs());
    }
    let decimals = (precision as i32 - 1 - exponent) as usize;
    trim(&format!("{value:.decimals$}")).to_owned()
}

fn trim(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_c_does() {
        for (value, precision, text) in [
            (1.0, 17, "1"),
            (0.1, 17, "0.10000000000000001"),
            (0.1, 14, "0.1"),
            (1e20, 14, "1e+20"),
            (1e15, 14, "1e+15"),
            (1e13, 14, "10000000000000"),
            (12_345_678_901_234_567.0, 14, "1.2345678901235e+16"),
            (-0.000_012_5, 14, "-1.25e-05"),
            (0.000_125, 14, "0.000125"),
            (9_007_199_254_740_993.0, 17, "9007199254740992"),
            (f64::INFINITY, 17, "inf"),
            (-0.0, 14, "-0"),
        ] {
            assert_eq!(general(value, precision), text);
        }
    }
}

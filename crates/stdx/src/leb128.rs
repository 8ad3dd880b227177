//! Numbers of as many bytes as they need: seven bits in each, the lowest first, and a mark on all but the last
//! (little-endian base 128).

/// Appends a number.
#[inline]
pub fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Takes a number off the front. None, with nothing said about what is left, if it does not end or has more than 64
/// bits.
#[inline]
pub fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7F);
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if *byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_take_seven_bits_a_byte() {
        for (number, length) in [(0, 1), (127, 1), (128, 2), (16_383, 2), (16_384, 3), (1 << 62, 9), (u64::MAX, 10)] {
            let mut bytes = Vec::new();
            put(&mut bytes, number);
            assert_eq!(bytes.len(), length);
            bytes.push(9);
            let mut rest = &bytes[..];
            assert_eq!((take(&mut rest), rest), (Some(number), &[9][..]));
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for mut bytes in
            [&[][..], &[0x80], &[0xFF; 9], &[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2], &[0x80; 11]]
        {
            assert_eq!(take(&mut bytes), None);
        }
    }
}

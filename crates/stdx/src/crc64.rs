//! CRC-64/Jones as Redis computes it: reflected, starting from zero, nothing inverted at the end.

/// The checksum of `bytes`, continued from `crc` (0 at the beginning).
pub fn crc64(mut crc: u64, bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        let mixed = crc ^ u64::from_le_bytes(word.try_into().expect("chunks of eight"));
        crc = mixed
            .to_le_bytes()
            .iter()
            .enumerate()
            .fold(0, |sum, (place, &byte)| sum ^ TABLES[7 - place][byte as usize]);
    }
    words.remainder().iter().fold(crc, |crc, &byte| TABLES[0][usize::from(crc as u8 ^ byte)] ^ (crc >> 8))
}

/// 0xAD93_D235_94C9_35A9 (Jones, 2002) with its bits reversed.
const POLYNOMIAL: u64 = 0x95AC_9329_AC4B_C9B5;

/// `TABLES[n][byte]` is the checksum of `byte` followed by `n` zero bytes. Because the checksum of a sum is the sum of
/// the checksums, eight look-ups that do not wait for each other replace eight steps that do.
static TABLES: [[u64; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 0 { crc >> 1 } else { (crc >> 1) ^ POLYNOMIAL };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut zeros = 1;
    while zeros < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[zeros - 1][byte];
            tables[zeros][byte] = tables[0][(before & 0xFF) as usize] ^ (before >> 8);
            byte += 1;
        }
        zeros += 1;
    }
    tables
};

#[cfg(test)]
mod tests {
    use crate::Prng;

    use super::*;

    #[test]
    fn the_check_value_is_the_published_one() {
        assert_eq!(crc64(0, b"123456789"), 0xE9C6_D914_C4B8_D9CA);
        assert_eq!(crc64(0, b""), 0);
    }

    #[test]
    fn any_length_cut_anywhere_agrees_with_the_bitwise_definition() {
        let mut prng = Prng::new(64);
        for length in 0..200 {
            let bytes: Vec<u8> = (0..length).map(|_| prng.draw() as u8).collect();
            let bitwise = bytes.iter().fold(0u64, |crc, &byte| {
                (0..8)
                    .fold(crc ^ u64::from(byte), |crc, _| if crc & 1 == 0 { crc >> 1 } else { (crc >> 1) ^ POLYNOMIAL })
            });
            let (head, tail) = bytes.split_at(prng.below(length + 1) as usize);
            assert_eq!(crc64(crc64(0, head), tail), bitwise, "{length} bytes cut at {}", head.len());
        }
    }
}

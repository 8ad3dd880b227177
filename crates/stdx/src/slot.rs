//! Which of the 16,384 slots a key belongs to, as Redis Cluster counts them.

/// Number of slots.
pub const SLOT_COUNT: usize = 16_384;

/// A hash slot, below [`SLOT_COUNT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u16);

/// The slot of a key: CRC-16/XMODEM of the key, or of what stands between its first `{` and the next `}` if that is
/// not empty (Redis Cluster specification, "Hash tags").
pub fn slot_of(key: &[u8]) -> Slot {
    Slot(crc16(hash_tag(key)) & (SLOT_COUNT as u16 - 1))
}

fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|&byte| byte == b'{') else { return key };
    let inside = &key[open + 1..];
    match inside.iter().position(|&byte| byte == b'}') {
        Some(length) if length > 0 => &inside[..length],
        _ => key,
    }
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_agree_with_redis_cluster() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot_of(b"foo"), Slot(12_182));
        assert_eq!(slot_of(b"bar"), Slot(5_061));
    }

    #[test]
    fn a_hash_tag_decides_alone_unless_it_is_empty() {
        assert_eq!(slot_of(b"{foo}.a"), slot_of(b"foo"));
        assert_ne!(slot_of(b"{}foo"), slot_of(b""));
        assert_eq!(slot_of(b"a{foo}{bar}"), slot_of(b"foo"));
        assert_eq!(hash_tag(b"a{foo"), b"a{foo");
    }
}

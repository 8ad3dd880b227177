//! The hashes of RedisBloom's sketches: MurmurHash2 (Appleby, 2008) in its forms of 32 and 64 bits. What is stored
//! depends on them, so they stay as they are.

/// MurmurHash2 with 32 bits.
pub(crate) fn hash_32(bytes: &[u8], seed: u32) -> u32 {
    const FACTOR: u32 = 0x5BD1_E995;
    let mut hash = seed ^ bytes.len() as u32;
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        let mut word = u32::from_le_bytes(*word).wrapping_mul(FACTOR);
        word ^= word >> 24;
        hash = hash.wrapping_mul(FACTOR) ^ word.wrapping_mul(FACTOR);
    }
    if !rest.is_empty() {
        let mut word = [0; 4];
        word[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u32::from_le_bytes(word)).wrapping_mul(FACTOR);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(FACTOR);
    hash ^ hash >> 15
}

/// MurmurHash64A.
pub(crate) fn hash_64(bytes: &[u8], seed: u64) -> u64 {
    const FACTOR: u64 = 0xC6A4_A793_5BD1_E995;
    let mut hash = seed ^ (bytes.len() as u64).wrapping_mul(FACTOR);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let mut word = u64::from_le_bytes(*word).wrapping_mul(FACTOR);
        word ^= word >> 47;
        hash = (hash ^ word.wrapping_mul(FACTOR)).wrapping_mul(FACTOR);
    }
    if !rest.is_empty() {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(FACTOR);
    }
    hash = (hash ^ hash >> 47).wrapping_mul(FACTOR);
    hash ^ hash >> 47
}

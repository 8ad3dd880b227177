//! SHA-1 (FIPS 180-4), which Redis's digests of data are made of. A fingerprint, no longer a protection.

/// The digest of `message`.
pub fn sha1(message: &[u8]) -> [u8; 20] {
    let mut state = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476, 0xC3D2_E1F0];
    let blocks = message.chunks_exact(BLOCK_BYTES);
    // What is left over is followed by a one bit, zeros, and the length in bits at the end of a block.
    let mut tail = blocks.remainder().to_vec();
    tail.push(0x80);
    let padding = (2 * BLOCK_BYTES - LENGTH_BYTES - tail.len()) % BLOCK_BYTES;
    tail.resize(tail.len() + padding, 0);
    tail.extend_from_slice(&(message.len() as u64 * 8).to_be_bytes());
    for block in blocks.chain(tail.chunks_exact(BLOCK_BYTES)) {
        mix(&mut state, block);
    }
    let mut digest = [0; 20];
    for (bytes, word) in digest.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    digest
}

const BLOCK_BYTES: usize = 64;
const LENGTH_BYTES: usize = 8;

fn mix(state: &mut [u32; 5], block: &[u8]) {
    let mut schedule = [0u32; 80];
    for (word, bytes) in schedule.iter_mut().zip(block.chunks_exact(4)) {
        *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    for round in 16..80 {
        let mixed = schedule[round - 3] ^ schedule[round - 8] ^ schedule[round - 14] ^ schedule[round - 16];
        schedule[round] = mixed.rotate_left(1);
    }
    let [mut a, mut b, mut c, mut d, mut e] = *state;
    for (round, word) in schedule.into_iter().enumerate() {
        let (function, constant) = match round {
            0..20 => ((b & c) | (!b & d), 0x5A82_7999),
            20..40 => (b ^ c ^ d, 0x6ED9_EBA1),
            40..60 => ((b & c) | (b & d) | (c & d), 0x8F1B_BCDC),
            _ => (b ^ c ^ d, 0xCA62_C1D6u32),
        };
        let next = a.rotate_left(5).wrapping_add(function).wrapping_add(e).wrapping_add(constant).wrapping_add(word);
        (a, b, c, d, e) = (next, a, b.rotate_left(30), c, d);
    }
    for (sum, word) in state.iter_mut().zip([a, b, c, d, e]) {
        *sum = sum.wrapping_add(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hexadecimal(message: &[u8]) -> String {
        sha1(message).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_published_examples_hold() {
        assert_eq!(hexadecimal(b""), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
        assert_eq!(hexadecimal(b"abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert_eq!(
            hexadecimal(b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "84983e441c3bd26ebaae4aa1f95129e5e54670f1"
        );
        assert_eq!(hexadecimal(&b"a".repeat(1_000_000)), "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
    }

    #[test]
    fn every_length_around_a_block_is_padded_rightly() {
        // The digest of the digests of 0 to 199 letters, computed with coreutils' sha1sum.
        let all: String = (0..200).map(|length| hexadecimal(&b"x".repeat(length))).collect();
        assert_eq!(hexadecimal(all.as_bytes()), "f024a06f9df4db3a81e536a8d16895eb9a9defb5");
    }
}

//! SHA-1 (FIPS 180-4), which Redis's digests of data are made of. A fingerprint, no longer a protection.

use sha1::{Digest, Sha1};

/// The digest of `message`.
pub fn sha1(message: &[u8]) -> [u8; 20] {
    Sha1::digest(message).into()
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

//! The key of an archive that is encrypted.
//!
//! What a frame holds is sealed with ChaCha20-Poly1305 (RFC 8439) under a nonce drawn for it, which stands before it.
//! The headers of the frame and its file are authenticated with it, so nobody without the key can change what is read,
//! or put a frame in another place. What they say can be read: indices, moments, sizes.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, hmac};

/// Bytes of a key.
const KEY_BYTES: usize = 32;

/// A key, which opens all of an archive.
#[derive(Clone)]
pub struct Key {
    seal: Arc<LessSafeKey>,
    /// Tells keys apart without giving them away.
    mark: hmac::Key,
    random: SystemRandom,
}

impl fmt::Debug for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Key")
    }
}

impl Key {
    /// The key of a file that holds 64 hexadecimal digits, as `openssl rand -hex 32` prints them.
    ///
    /// # Errors
    /// If it cannot be read, or holds something else.
    pub fn read(path: &Path) -> Result<Self, String> {
        let told = |what: &dyn fmt::Display| format!("the archive's key, {}: {what}", path.display());
        let text = std::fs::read_to_string(path).map_err(|cause| told(&cause))?;
        Self::parse(text.trim()).ok_or_else(|| told(&"it does not hold 64 hexadecimal digits and nothing else"))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; KEY_BYTES];
        if text.len() != 2 * KEY_BYTES || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
        }
        let seal = UnboundKey::new(&CHACHA20_POLY1305, &bytes).ok()?;
        // Not the key itself: the mark is written down.
        let mark = digest::digest(&digest::SHA256, &[b"holdfast archive mark".as_slice(), &bytes].concat());
        let mark = hmac::Key::new(hmac::HMAC_SHA256, mark.as_ref());
        Some(Self { seal: Arc::new(LessSafeKey::new(seal)), mark, random: SystemRandom::new() })
    }

    /// What the manifest of an archive says of its key.
    pub(crate) fn mark(&self, archive: u128) -> u64 {
        let tag = hmac::sign(&self.mark, &archive.to_le_bytes());
        u64::from_le_bytes(tag.as_ref()[..8].try_into().expect("eight of 32 bytes"))
    }

    /// Seals a body; `place` says where it belongs.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub(crate) fn seal(&self, place: &[u8], body: Vec<u8>) -> std::io::Result<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        self.random.fill(&mut nonce).map_err(|_| std::io::Error::other("the system has no random numbers"))?;
        let mut sealed = body;
        let tag = self.seal.seal_in_place_separate_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(place),
            sealed.as_mut_slice(),
        );
        let tag = tag.map_err(|_| std::io::Error::other("a frame is too large to be encrypted"))?;
        Ok([&nonce, sealed.as_slice(), tag.as_ref()].concat())
    }

    /// What has been sealed for this place; none if it has not been, or not with this key.
    pub(crate) fn open(&self, place: &[u8], mut sealed: Vec<u8>) -> Option<Vec<u8>> {
        let nonce: [u8; NONCE_LEN] = sealed.get(..NONCE_LEN)?.try_into().ok()?;
        let body =
            self.seal.open_within(Nonce::assume_unique_for_key(nonce), Aad::from(place), &mut sealed, NONCE_LEN..);
        let length = body.ok()?.len();
        sealed.truncate(length);
        Some(sealed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_at_its_place_with_its_key_and_nowhere_else() {
        let key = Key::parse(&"0123456789abcdef".repeat(4)).unwrap();
        let other = Key::parse(&"fedcba9876543210".repeat(4)).unwrap();
        let sealed = key.seal(b"here", b"secret".to_vec()).unwrap();
        assert_eq!(sealed.len(), 6 + NONCE_LEN + CHACHA20_POLY1305.tag_len());
        assert_eq!(key.open(b"here", sealed.clone()).as_deref(), Some(b"secret".as_slice()));
        assert!(key.open(b"there", sealed.clone()).is_none() && other.open(b"here", sealed.clone()).is_none());
        for at in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1;
            assert!(key.open(b"here", damaged).is_none(), "byte {at}");
        }
        assert!(key.open(b"here", sealed[..5].to_vec()).is_none());
        assert_ne!(key.seal(b"here", b"secret".to_vec()).unwrap(), sealed, "no nonce is used twice");
        assert_ne!(key.mark(1), other.mark(1));
        assert_ne!(key.mark(1), key.mark(2));
        assert!(Key::parse("0123").is_none() && Key::parse(&"x".repeat(64)).is_none());
    }
}

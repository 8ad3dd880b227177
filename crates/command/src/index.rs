//! Finds a command by its name without looking at every record.

use crate::Command;

/// An index of a list of commands, built by the compiler. `SIZE` is at least twice the number of commands, so that
/// probes are short.
pub struct Index<const SIZE: usize> {
    /// Position in the list plus one, by hash of the name with linear probing.
    places: [u16; SIZE],
}

impl<const SIZE: usize> Index<SIZE> {
    /// Indexes a list. A name given twice does not build.
    pub const fn of<Body>(commands: &[&Command<Body>]) -> Self {
        assert!(commands.len() * 2 <= SIZE, "the index of names is more than half full");
        let mut places = [0; SIZE];
        let mut nth = 0;
        while nth < commands.len() {
            let name = commands[nth].name.as_bytes();
            let mut place = Digest::of(name).hash() % SIZE;
            while places[place] != 0 {
                let other = commands[places[place] as usize - 1].name.as_bytes();
                assert!(!other.eq_ignore_ascii_case(name), "a command is listed twice");
                place = (place + 1) % SIZE;
            }
            places[place] = nth as u16 + 1;
            nth += 1;
        }
        Self { places }
    }

    /// The command of this name, in whatever case, in the list that was indexed.
    #[inline]
    pub fn find<Body>(&self, commands: &[&'static Command<Body>], name: &[u8]) -> Option<&'static Command<Body>> {
        let digest = Digest::of(name);
        let mut place = digest.hash() % SIZE;
        loop {
            let command = commands[usize::from(self.places[place]).checked_sub(1)?];
            if digest.is_of(name, command.name.as_bytes()) {
                return Some(command);
            }
            place = (place + 1) % SIZE;
        }
    }
}

/// A name in lower case: its length, its first eight bytes and its last eight. A shorter one is all in the first.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Digest {
    len: usize,
    first: u64,
    last: u64,
}

impl Digest {
    #[inline]
    const fn of(name: &[u8]) -> Self {
        // The two ends may overlap, which does no harm.
        let (first, last) = if let (Some(first), Some(last)) = (name.first_chunk::<8>(), name.last_chunk::<8>()) {
            (u64::from_le_bytes(*first), u64::from_le_bytes(*last))
        } else if let (Some(first), Some(last)) = (name.first_chunk::<4>(), name.last_chunk::<4>()) {
            (u32::from_le_bytes(*first) as u64 | (u32::from_le_bytes(*last) as u64) << 32, 0)
        } else {
            match name {
                [] => (0, 0),
                [only] => (*only as u64, 0),
                [first, .., last] => (*first as u64 | (name[1] as u64) << 8 | (*last as u64) << 16, 0),
            }
        };
        Self { len: name.len(), first: in_lower_case(first), last: in_lower_case(last) }
    }

    /// By one multiplication (Knuth, "The Art of Computer Programming" 3, section 6.4).
    #[inline]
    const fn hash(self) -> usize {
        let mixed = (self.first ^ self.last.rotate_left(29) ^ self.len as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> 40) as usize
    }

    /// True if `name`, of which this is the digest, is this command's.
    #[inline]
    fn is_of(self, name: &[u8], command: &[u8]) -> bool {
        self == Self::of(command) && (self.len <= 16 || name.eq_ignore_ascii_case(command))
    }
}

/// Eight letters at once: the high bit of each byte says whether it is one from A to Z, and is then moved to where the
/// cases differ (Mycroft's way of testing bytes side by side; Warren, "Hacker's Delight", section 6-1).
#[inline]
const fn in_lower_case(bytes: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let low = bytes & (0x7F * EACH);
    let from_a = low + (0x80 - b'A' as u64) * EACH;
    let behind_z = low + (0x7F - b'Z' as u64) * EACH;
    let is_letter = (from_a ^ behind_z) & !bytes & (0x80 * EACH);
    bytes | is_letter >> 2
}

#[cfg(test)]
mod tests {
    use super::{Digest, in_lower_case};

    #[test]
    fn every_byte_gets_into_lower_case_as_the_standard_has_it() {
        for byte in 0..=u8::MAX {
            for at in 0..8 {
                let mut bytes = *b"aZ@[0_\xFFz";
                bytes[at] = byte;
                let expected = bytes.map(|byte| byte.to_ascii_lowercase());
                assert_eq!(in_lower_case(u64::from_le_bytes(bytes)).to_le_bytes(), expected);
            }
        }
    }

    #[test]
    fn names_are_the_same_if_all_their_letters_are() {
        let long = "a-name-of-more-than-sixteen";
        for len in 0..=long.len() {
            let name = &long[..len];
            let upper = name.to_uppercase();
            assert!(Digest::of(upper.as_bytes()).is_of(upper.as_bytes(), name.as_bytes()), "{name}");
            for at in 0..len {
                let mut other = upper.clone().into_bytes();
                other[at] ^= 0x40;
                assert!(!Digest::of(&other).is_of(&other, name.as_bytes()), "{name} differs at {at}");
            }
            assert!(!Digest::of(upper.as_bytes()).is_of(upper.as_bytes(), &long.as_bytes()[len.min(1)..]));
        }
    }
}

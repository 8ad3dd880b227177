//! Which of the 16,384 slots a key belongs to, as Redis Cluster counts them.

use std::sync::OnceLock;

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

/// The shortest tag of a slot, of letters and digits: the keys with `{tag}` in them are in that slot. It is the one
/// that the tables of other servers have.
pub fn tag_of(slot: Slot) -> &'static str {
    static TAGS: OnceLock<Vec<String>> = OnceLock::new();
    &TAGS.get_or_init(shortest_tags)[usize::from(slot.0)]
}

fn shortest_tags() -> Vec<String> {
    let letters = || ('0'..='9').chain('a'..='z').chain('A'..='Z');
    let mut tags = vec![String::new(); SLOT_COUNT];
    let mut shorter = vec![String::new()];
    // Three letters make sixteen times as many texts as there are slots.
    for _ in 0..3 {
        shorter = shorter.iter().flat_map(|text| letters().map(move |letter| format!("{text}{letter}"))).collect();
        for text in &shorter {
            let tag = &mut tags[usize::from(slot_of(text.as_bytes()).0)];
            if tag.is_empty() {
                tag.clone_from(text);
            }
        }
    }
    tags
}

/// The slot of all keys that a glob pattern may select, if there is only one: the pattern has a tag, with nothing
/// before its end that stands for something else, or nothing of the kind at all.
pub fn slot_of_pattern(pattern: &[u8]) -> Option<Slot> {
    let is_special = |byte: &u8| b"*?[\\".contains(byte);
    let tag = hash_tag(pattern);
    // It is a part of the pattern, or the pattern.
    let end =
        if tag.len() == pattern.len() { tag.len() } else { tag.as_ptr_range().end.addr() - pattern.as_ptr().addr() };
    (!pattern[..end].iter().any(is_special)).then(|| slot_of(pattern))
}

/// Slots in ascending order as runs of neighbours: the first and the last of each.
pub fn runs_of(slots: impl IntoIterator<Item = Slot>) -> Vec<(Slot, Slot)> {
    let mut runs: Vec<(Slot, Slot)> = Vec::new();
    for slot in slots {
        match runs.last_mut() {
            Some((_, last)) if last.0.checked_add(1) == Some(slot.0) => *last = slot,
            _ => runs.push((slot, slot)),
        }
    }
    runs
}

/// Slots in ascending order as they are written for people: `0-5,7`.
pub fn text_of(slots: impl IntoIterator<Item = Slot>) -> String {
    let text = |(first, last): (Slot, Slot)| match first == last {
        true => format!("{}", first.0),
        false => format!("{}-{}", first.0, last.0),
    };
    runs_of(slots).into_iter().map(text).collect::<Vec<_>>().join(",")
}

fn hash_tag(key: &[u8]) -> &[u8] {
    // Most keys have no tag.
    if !has_brace(key) {
        return key;
    }
    let open = key.iter().position(|&byte| byte == b'{').expect("just seen");
    let inside = &key[open + 1..];
    match inside.iter().position(|&byte| byte == b'}') {
        Some(length) if length > 0 => &inside[..length],
        _ => key,
    }
}

/// True if there is a `{`. Eight bytes at a time: a search for long texts, as `slice::contains` is, takes longer to
/// begin than to look through a key.
fn has_brace(key: &[u8]) -> bool {
    const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);
    const BRACES: u64 = u64::from_ne_bytes([b'{'; 8]);
    let has = |eight: &[u8; 8]| {
        // Zero where a brace was: only there, and above such a place, a bit is borrowed into the highest one.
        let others = u64::from_ne_bytes(*eight) ^ BRACES;
        others.wrapping_sub(ONES) & !others & HIGHS != 0
    };
    match key.last_chunk::<8>() {
        Some(last) => key.as_chunks::<8>().0.iter().any(has) || has(last),
        None => key.contains(&b'{'),
    }
}

/// Works on eight bytes at a time, and on the rest in the same way: a byte's share of the sum depends only on how many
/// bytes follow it, so that eight look-ups need not wait for each other (Kounavis, Berry: "Novel table lookup-based
/// algorithms for high-performance CRC generation", 2008).
fn crc16(bytes: &[u8]) -> u16 {
    let (eights, rest) = bytes.as_chunks::<8>();
    let crc = eights.iter().fold(0u16, |crc, eight| {
        let [high, low] = crc.to_be_bytes();
        TABLES[7][usize::from(eight[0] ^ high)]
            ^ TABLES[6][usize::from(eight[1] ^ low)]
            ^ TABLES[5][usize::from(eight[2])]
            ^ TABLES[4][usize::from(eight[3])]
            ^ TABLES[3][usize::from(eight[4])]
            ^ TABLES[2][usize::from(eight[5])]
            ^ TABLES[1][usize::from(eight[6])]
            ^ TABLES[0][usize::from(eight[7])]
    });
    let [high, low] = crc.to_be_bytes();
    match rest {
        [] => crc,
        [only] => (crc << 8) ^ TABLES[0][usize::from(only ^ high)],
        [first, second, others @ ..] => {
            let count = others.len();
            let sum = TABLES[count + 1][usize::from(first ^ high)] ^ TABLES[count][usize::from(second ^ low)];
            others.iter().enumerate().fold(sum, |sum, (at, &byte)| sum ^ TABLES[count - 1 - at][usize::from(byte)])
        }
    }
}

/// `TABLES[n][byte]`: the sum of a byte with `n` zero bytes behind it.
static TABLES: [[u16; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 64 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
            if bit % 8 == 0 {
                tables[bit / 8 - 1][byte] = crc;
            }
        }
        byte += 1;
    }
    tables
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
    fn every_slot_has_a_tag() {
        for slot in (0..SLOT_COUNT as u16).map(Slot) {
            assert_eq!(slot_of(format!("0-{{{}}}-0", tag_of(slot)).as_bytes()), slot);
        }
        assert_eq!([0, 1, 2, 16_383].map(|slot| tag_of(Slot(slot))), ["06S", "Qi", "5L5", "6ZJ"]);
    }

    #[test]
    fn a_pattern_has_a_slot_if_all_that_it_selects_is_there() {
        let slot = |pattern: &str| slot_of_pattern(pattern.as_bytes());
        assert_eq!(slot("{foo}.*"), Some(slot_of(b"foo")));
        assert_eq!(slot("a{foo}[b]"), Some(slot_of(b"foo")));
        assert_eq!(slot("foo"), Some(slot_of(b"foo")));
        for pattern in ["*{foo}", "a?{foo}", "{f*o}", "{foo*", "foo*", "[a]{foo}", "\\{foo}", "*", "{}*"] {
            assert_eq!(slot(pattern), None, "{pattern}");
        }
    }

    #[test]
    fn neighbours_are_one_run() {
        let of = |slots: &[u16]| slots.iter().copied().map(Slot).collect::<Vec<_>>();
        assert_eq!(runs_of(of(&[0, 1, 2, 5, 7, 8])), [(0, 2), (5, 5), (7, 8)].map(|(a, b)| (Slot(a), Slot(b))));
        assert_eq!(text_of(of(&[3, 4, 5, 9])), "3-5,9");
        assert_eq!(text_of(of(&[u16::MAX, 0])), "65535,0", "whatever another server says");
        assert_eq!(text_of([]), "");
    }

    #[test]
    fn eight_bytes_at_a_time_give_the_sum_of_one_bit_at_a_time() {
        let naive = |bytes: &[u8]| {
            bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| u16::from(byte >> bit & 1))).fold(
                0u16,
                |crc, bit| {
                    if crc >> 15 == bit { crc << 1 } else { (crc << 1) ^ 0x1021 }
                },
            )
        };
        let mut prng = crate::Prng::new(1);
        for len in 0..100 {
            let bytes: Vec<u8> = (0..len).map(|_| prng.draw() as u8).collect();
            assert_eq!(crc16(&bytes), naive(&bytes), "{len} bytes");
        }
    }

    #[test]
    fn a_hash_tag_decides_alone_unless_it_is_empty() {
        assert_eq!(slot_of(b"{foo}.a"), slot_of(b"foo"));
        assert_ne!(slot_of(b"{}foo"), slot_of(b""));
        assert_eq!(slot_of(b"a{foo}{bar}"), slot_of(b"foo"));
        assert_eq!(hash_tag(b"a{foo"), b"a{foo");
        // At any place in a key, and with any other bytes.
        for length in 3..40 {
            for open in 0..length - 2 {
                for other in [b'z', b'|', 0, 0x7a, 0xfb, 0xff] {
                    let mut key = vec![other; length];
                    assert_eq!(hash_tag(&key), key);
                    (key[open], key[length - 1]) = (b'{', b'}');
                    assert_eq!(hash_tag(&key), vec![other; length - open - 2], "{key:?}");
                }
            }
        }
    }
}

//! LZF, the compression inside RDB strings (Marc Lehmann's liblzf format).
//!
//! A compressed string is a row of two kinds of item:
//!
//! ```text
//! 000lllll                    l + 1 literal bytes follow (1 to 32)
//! 111ooooo llllllll oooooooo  copy l + 9 bytes from o + 1 bytes back (9 to 264)
//! lllooooo oooooooo           copy l + 2 bytes from o + 1 bytes back (3 to 8; l is neither 0 nor 7)
//! ```
//!
//! Any row of such items is readable by everyone. The compressor goes further and chooses the very items that Redis
//! 7.0 chooses, so that a DUMP of the same value has the same bytes on both.

use std::cell::RefCell;

const LITERALS_MAX: usize = 32;
const DISTANCE_MAX: usize = 1 << 13;
const COPY_MAX: usize = 264;
const HASH_BITS: u32 = 16;

/// Places where three bytes with the same hash were last seen. Kept from one string to the next: clearing a quarter
/// of a megabyte for every string of twenty bytes would cost more than compressing it. Instead each string counts its
/// positions from a `base` above everything that earlier ones have left behind.
struct Places {
    latest: Box<[u32]>,
    base: u32,
}

impl Places {
    fn new() -> Self {
        Self { latest: vec![0; 1 << HASH_BITS].into_boxed_slice(), base: 0 }
    }

    /// Makes room for a string of `length` bytes; returns its base.
    fn open(&mut self, length: u32) -> u32 {
        let base = match self.base.checked_add(length) {
            Some(next) => std::mem::replace(&mut self.base, next),
            None => {
                self.latest.fill(0);
                self.base = length;
                0
            }
        };
        debug_assert!(self.base - base == length);
        base
    }

    /// Notes the three bytes at `position` and returns where the same hash was seen before.
    fn exchange(&mut self, input: &[u8], base: u32, position: usize) -> Option<usize> {
        let bytes = [input[position], input[position + 1], input[position + 2]];
        let word = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]);
        let hash = (word >> (24 - HASH_BITS)).wrapping_sub(word.wrapping_mul(5)) & ((1 << HASH_BITS) - 1);
        let earlier = std::mem::replace(&mut self.latest[hash as usize], base + position as u32);
        // Redis never copies from the very first byte, which this comparison shares.
        (earlier > base).then(|| (earlier - base) as usize)
    }
}

thread_local! {
    // What is kept here never changes what is written, only how fast.
    static PLACES: RefCell<Places> = RefCell::new(Places::new());
}

/// Appends `input` to `output`, compressed, and returns how many bytes that took; `None`, with `output` as it was, if
/// the result would not keep within `limit_bytes` or `input` has 4 GiB or more.
pub fn compress(input: &[u8], output: &mut Vec<u8>, limit_bytes: usize) -> Option<usize> {
    let length = u32::try_from(input.len()).ok().filter(|&length| length > 0)?;
    let start = output.len();
    let written = PLACES.with_borrow_mut(|places| {
        let base = places.open(length);
        Items { output, start, limit_bytes, literals: 0 }.write(input, base, places)
    });
    if written.is_none() {
        output.truncate(start);
    }
    written
}

/// Items being written. The last byte of `output`, `literals` bytes back, is always the head of an open literal run.
struct Items<'a> {
    output: &'a mut Vec<u8>,
    start: usize,
    limit_bytes: usize,
    literals: usize,
}

impl Items<'_> {
    /// Greedy, left to right. Where it gives up for lack of room is part of what has to agree with Redis: the tests
    /// against the limit are the original's, conservative by a few bytes.
    fn write(mut self, input: &[u8], base: u32, places: &mut Places) -> Option<usize> {
        self.open_run();
        let mut position = 0;
        while position + 2 < input.len() {
            let earlier = places.exchange(input, base, position).filter(|&earlier| {
                position - earlier <= DISTANCE_MAX && input[earlier..earlier + 3] == input[position..position + 3]
            });
            let Some(earlier) = earlier else {
                if self.written() >= self.limit_bytes {
                    return None;
                }
                self.literal(input[position]);
                position += 1;
                continue;
            };
            if self.written() - usize::from(self.literals == 0) + 4 >= self.limit_bytes {
                return None;
            }
            let copied = common_length(input, earlier, position);
            self.copy(position - earlier - 1, copied);
            position += copied;
            if position + 2 >= input.len() {
                break;
            }
            // Of the bytes just copied only the last two are noted: the trade of speed against ratio that Redis made.
            places.exchange(input, base, position - 2);
            places.exchange(input, base, position - 1);
        }
        if self.written() + 3 > self.limit_bytes {
            return None;
        }
        for &byte in &input[position..] {
            self.literal(byte);
        }
        self.close_run();
        Some(self.written())
    }

    fn written(&self) -> usize {
        self.output.len() - self.start
    }

    fn open_run(&mut self) {
        self.literals = 0;
        self.output.push(0);
    }

    fn close_run(&mut self) {
        let head = self.output.len() - self.literals - 1;
        if self.literals == 0 {
            self.output.pop();
        } else {
            self.output[head] = self.literals as u8 - 1;
        }
    }

    fn literal(&mut self, byte: u8) {
        self.output.push(byte);
        self.literals += 1;
        if self.literals == LITERALS_MAX {
            self.close_run();
            self.open_run();
        }
    }

    fn copy(&mut self, distance: usize, length: usize) {
        self.close_run();
        let (high, low) = ((distance >> 8) as u8, distance as u8);
        let length = length - 2;
        if length < 7 {
            self.output.push(high | (length as u8) << 5);
        } else {
            self.output.extend_from_slice(&[high | 7 << 5, (length - 7) as u8]);
        }
        self.output.push(low);
        self.open_run();
    }
}

/// How many bytes at `position` to take from `earlier`. Three are known to agree. The last two bytes of the input are
/// left alone, except close to its end, where the original's unrolled comparison reaches them.
fn common_length(input: &[u8], earlier: usize, position: usize) -> usize {
    let mut limit = (input.len() - position - 2).min(COPY_MAX);
    if limit > 16 {
        limit = limit.max(19);
    }
    let mut length = 3;
    while length < limit && input[earlier + length] == input[position + length] {
        length += 1;
    }
    length
}

/// The bytes that `input` stands for, if it is well formed and they are `length_bytes` in number. Nothing is allocated
/// before both are known.
pub fn decompress(input: &[u8], length_bytes: usize) -> Option<Vec<u8>> {
    if measure(input)? != length_bytes {
        return None;
    }
    let mut output = Vec::with_capacity(length_bytes);
    let mut rest = input;
    while let Some((item, behind)) = Item::read(rest) {
        rest = behind;
        match item {
            Item::Literals(bytes) => output.extend_from_slice(bytes),
            Item::Copy { distance, length } => {
                let from = output.len() - distance;
                if distance >= length {
                    output.extend_from_within(from..from + length);
                } else {
                    // The copy overlaps what it writes: a pattern of `distance` bytes is repeated.
                    for index in from..from + length {
                        output.push(output[index]);
                    }
                }
            }
        }
    }
    Some(output)
}

/// Number of bytes that `input` stands for; `None` if it ends within an item or copies from before the beginning.
fn measure(input: &[u8]) -> Option<usize> {
    let mut length_bytes = 0;
    let mut rest = input;
    while !rest.is_empty() {
        let (item, behind) = Item::read(rest)?;
        rest = behind;
        length_bytes += match item {
            Item::Literals(bytes) => bytes.len(),
            Item::Copy { distance, .. } if distance > length_bytes => return None,
            Item::Copy { length, .. } => length,
        };
    }
    Some(length_bytes)
}

enum Item<'a> {
    Literals(&'a [u8]),
    /// `length` bytes from `distance` bytes back; the distance is at least 1.
    Copy {
        distance: usize,
        length: usize,
    },
}

impl<'a> Item<'a> {
    /// The first item and what follows it; `None` if there is no whole one.
    fn read(input: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (&head, rest) = input.split_first()?;
        if usize::from(head) < LITERALS_MAX {
            let (bytes, rest) = rest.split_at_checked(usize::from(head) + 1)?;
            return Some((Self::Literals(bytes), rest));
        }
        let (extra, rest) = if head >> 5 == 7 { rest.split_first()? } else { (&0, rest) };
        let (&low, rest) = rest.split_first()?;
        let distance = (usize::from(head & 0x1F) << 8) + usize::from(low) + 1;
        Some((Self::Copy { distance, length: usize::from(head >> 5) + usize::from(*extra) + 2 }, rest))
    }
}

#[cfg(test)]
mod tests {
    use stdx::Prng;

    use super::*;

    fn compressed(input: &[u8]) -> Option<Vec<u8>> {
        let mut output = b"before".to_vec();
        let written = compress(input, &mut output, input.len().checked_sub(4)?);
        assert_eq!(&output[..6], b"before");
        assert_eq!(output.len() - 6, written.unwrap_or(0));
        written.map(|_| output.split_off(6))
    }

    /// Text of few words, long runs, noise, and mixtures of them.
    fn sample(prng: &mut Prng, length: usize) -> Vec<u8> {
        let alphabet = [1, 2, 4, 256][prng.below(4) as usize];
        let mut bytes = Vec::new();
        while bytes.len() < length {
            if bytes.len() > 4 && prng.chance(1, 8) {
                let from = prng.below(bytes.len() as u64) as usize;
                let length = 1 + prng.below(400) as usize;
                for index in from..from + length {
                    bytes.push(bytes[index]);
                }
            }
            bytes.push(prng.below(alphabet) as u8);
        }
        bytes.truncate(length);
        bytes
    }

    #[test]
    fn what_was_compressed_comes_back() {
        let mut prng = Prng::new(1);
        let mut smaller = 0;
        for round in 0..3_000 {
            let length = if round % 50 == 0 { prng.below(40_000) } else { prng.below(300) } as usize;
            let input = sample(&mut prng, length);
            let Some(output) = compressed(&input) else { continue };
            smaller += 1;
            assert!(output.len() + 4 <= input.len(), "{} bytes became {}", input.len(), output.len());
            assert_eq!(decompress(&output, input.len()).as_deref(), Some(input.as_slice()), "round {round}");
        }
        assert!(smaller > 1_000, "only {smaller} samples were compressible");
    }

    #[test]
    fn what_earlier_strings_left_behind_changes_nothing() {
        let input = b"never the same river twice, never the same river twice".as_slice();
        let fresh = compressed(input);
        let mut prng = Prng::new(2);
        for _ in 0..50 {
            compressed(&sample(&mut prng, 5_000));
            assert_eq!(compressed(input), fresh);
        }
        // Positions are about to exceed 32 bits: the table is cleared once.
        PLACES.with_borrow_mut(|places| places.base = u32::MAX - 10);
        assert_eq!(compressed(input), fresh);
        assert_eq!(PLACES.with_borrow(|places| places.base), input.len() as u32);
    }

    #[test]
    fn hostile_items_are_refused() {
        for (input, length, why) in [
            (b"\x05abc".as_slice(), 6, "literals cut short"),
            (b"\x20", 3, "a copy without its distance"),
            (b"\x00a\xE0\x01", 11, "a long copy without its distance"),
            (b"\x00a\xE0", 10, "a long copy without its length"),
            (b"\x00a\x20\x01", 4, "a copy from before the beginning"),
            (b"\x20\x00", 3, "a copy from nothing"),
            (b"\x00a", 2, "fewer bytes than announced"),
            (b"\x01ab", 1, "more bytes than announced"),
            (b"\x00a\xE0\xFF\x00", usize::MAX, "an absurd announcement"),
        ] {
            assert_eq!(decompress(input, length), None, "{why}");
        }
        assert_eq!(decompress(b"", 0), Some(Vec::new()));
        assert_eq!(decompress(b"\x00a\xE0\xFF\x00", 265), Some(vec![b'a'; 265]));
    }

    #[test]
    fn no_bytes_make_the_reader_panic() {
        let mut prng = Prng::new(3);
        let mut accepted = 0;
        for _ in 0..20_000 {
            let input: Vec<u8> =
                (0..prng.below(40)).map(|_| prng.draw() as u8 & if prng.chance(1, 2) { 0x27 } else { 0xFF }).collect();
            if let Some(length) = measure(&input) {
                assert_eq!(decompress(&input, length).map(|bytes| bytes.len()), Some(length));
                accepted += 1;
            }
            assert_eq!(decompress(&input, 1 << 40), None);
        }
        assert!(accepted > 100, "{accepted}");
    }
}

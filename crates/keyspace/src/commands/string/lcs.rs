//! LCS: the longest common subsequence of two strings.

use command::{Access, Begin, Find, Flag, Group, KeySpec, Refusal, Span};
use resp::{Args, Writer};

use crate::commands::arguments::{STRING_BYTES_MAX, integer, is};
use crate::commands::{Body, DataCommand};
use crate::{ItoaBuffer, View};

pub(super) const LCS: DataCommand = DataCommand {
    name: "lcs",
    since: "7.0.0",
    group: Group::String,
    summary: "Finds the longest common subsequence of two strings.",
    complexity: "O(N*M) where N and M are the lengths of the strings.",
    syntax: "key1 key2 [LEN] [IDX] [MINMATCHLEN min-match-len] [WITHMATCHLEN]",
    arity: -3,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[KeySpec {
        access: Access::Read,
        begin: Begin::Index(1),
        find: Find::Range { last: 1, step: 1, limit: 0 },
        notes: &["access"],
    }],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(lcs),
};

fn lcs(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let not_strings = |_| Refusal::new("ERR The specified keys must contain string values");
    let left = view.string(args.at(1)).map_err(not_strings)?;
    let right = view.string(args.at(2)).map_err(not_strings)?;
    let options = Options::parse(args)?;
    let (mut left_buffer, mut right_buffer) = (ItoaBuffer::new(), ItoaBuffer::new());
    let left = left.as_ref().map_or(b"".as_slice(), |value| value.to_bytes(&mut left_buffer));
    let right = right.as_ref().map_or(b"".as_slice(), |value| value.to_bytes(&mut right_buffer));
    check_size(left.len(), right.len())?;

    if options.length_only {
        writer.count(length(left, right));
        return Ok(());
    }
    let table = Table::fill(left, right);
    if !options.ranges {
        let common = table.common(left, right);
        writer.bulk(&common);
        return Ok(());
    }
    let matches = table.matches(left, right);
    let shown = |found: &&Match| options.length_min == 0 || found.length as u64 >= options.length_min;
    writer.map(2);
    writer.bulk(b"matches");
    writer.array(matches.iter().filter(shown).count());
    for Match { left, right, length } in matches.iter().filter(shown) {
        writer.array(if options.with_length { 3 } else { 2 });
        for start in [left, right] {
            writer.array(2);
            writer.count(*start);
            writer.count(start + length - 1);
        }
        if options.with_length {
            writer.count(*length);
        }
    }
    writer.bulk(b"len");
    writer.count(matches.iter().map(|found| found.length).sum());
    Ok(())
}

struct Options {
    length_only: bool,
    ranges: bool,
    length_min: u64,
    with_length: bool,
}

impl Options {
    fn parse(args: Args<'_>) -> Result<Self, Refusal> {
        let mut options = Self { length_only: false, ranges: false, length_min: 0, with_length: false };
        let mut index = 3;
        while let Some(word) = args.get(index) {
            index += 1;
            if is(word, "idx") {
                options.ranges = true;
            } else if is(word, "len") {
                options.length_only = true;
            } else if is(word, "withmatchlen") {
                options.with_length = true;
            } else if is(word, "minmatchlen")
                && let Some(length) = args.get(index)
            {
                options.length_min = integer(length)?.max(0) as u64;
                index += 1;
            } else {
                return Err(Refusal::SYNTAX);
            }
        }
        if options.length_only && options.ranges {
            return Err(Refusal::new("ERR If you want both the length and indexes, please just use IDX."));
        }
        Ok(options)
    }
}

/// Bounds the work. Redis bounds the memory of its table, four bytes a cell; ours is a bit a cell, so that the same
/// bound is a matter of milliseconds and some ten megabytes.
fn check_size(left: usize, right: usize) -> Result<(), Refusal> {
    let cells = (left as u128 + 1) * (right as u128 + 1);
    if cells * 4 > u128::from(STRING_BYTES_MAX) {
        return Err(Refusal::new("ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len"));
    }
    Ok(())
}

// The classic table holds, for every pair of prefixes, the length of their longest common subsequence; along a row it
// grows by nothing or by one from cell to cell. One bit a cell is therefore enough, and a row follows from the one
// above by a handful of operations on whole words:
//
//     bit j of `row` is CLEAR where the length grows from column j to column j + 1
//     hits = row & places[byte]         where the byte of this row stands in `right`
//     row' = (row + hits) | (row & !hits)
//
// The sum's carries move each growth left to the first hit behind the growth before it. (Hyyrö: "Bit-parallel
// LCS-length computation revisited", 2004.)

/// For every byte of `left`, where it stands in `right`, a bit per place.
struct Places {
    words_per_row: usize,
    /// Number of the row of bits for a byte; bytes that `left` lacks have none.
    row_of: [u16; 256],
    words: Vec<u64>,
}

impl Places {
    fn find(left: &[u8], right: &[u8]) -> Self {
        const NONE: u16 = u16::MAX;
        let words_per_row = right.len().div_ceil(64);
        let mut row_of = [NONE; 256];
        let mut rows = 0;
        for &byte in left {
            if row_of[usize::from(byte)] == NONE {
                row_of[usize::from(byte)] = rows;
                rows += 1;
            }
        }
        let mut words = vec![0; usize::from(rows) * words_per_row];
        for (place, &byte) in right.iter().enumerate() {
            let row = row_of[usize::from(byte)];
            if row != NONE {
                words[usize::from(row) * words_per_row + place / 64] |= 1 << (place % 64);
            }
        }
        Self { words_per_row, row_of, words }
    }

    fn of(&self, byte: u8) -> &[u64] {
        let start = usize::from(self.row_of[usize::from(byte)]) * self.words_per_row;
        &self.words[start..start + self.words_per_row]
    }
}

/// Writes the row behind `above` for a byte that stands at `places`.
fn next_row(above: &[u64], places: &[u64], row: &mut [u64]) {
    let mut carry = false;
    for ((&above, &places), word) in above.iter().zip(places).zip(row) {
        let hits = above & places;
        let (sum, first) = above.overflowing_add(hits);
        let (sum, second) = sum.overflowing_add(u64::from(carry));
        carry = first || second;
        *word = sum | (above & !hits);
    }
}

/// Length of the longest common subsequence.
fn length(left: &[u8], right: &[u8]) -> usize {
    let places = Places::find(left, right);
    let mut row = vec![u64::MAX; places.words_per_row];
    let mut next = row.clone();
    for &byte in left {
        next_row(&row, places.of(byte), &mut next);
        std::mem::swap(&mut row, &mut next);
    }
    // Bits behind the last column are never hit and so stay set.
    row.iter().map(|word| word.count_zeros() as usize).sum()
}

/// All rows, to walk back through.
struct Table {
    words_per_row: usize,
    words: Vec<u64>,
}

/// Bytes that stand side by side in both strings and in the subsequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Match {
    /// Where it starts in the left string.
    left: usize,
    /// Where it starts in the right string.
    right: usize,
    /// Bytes in it.
    length: usize,
}

impl Table {
    fn fill(left: &[u8], right: &[u8]) -> Self {
        let places = Places::find(left, right);
        let width = places.words_per_row;
        let mut words = vec![u64::MAX; (left.len() + 1) * width];
        for (nth, &byte) in left.iter().enumerate() {
            let (above, row) = words[nth * width..(nth + 2) * width].split_at_mut(width);
            next_row(above, places.of(byte), row);
        }
        Self { words_per_row: width, words }
    }

    /// True if the length grows from prefix `column - 1` to prefix `column` of the right string, for the first `row`
    /// bytes of the left one.
    fn grows(&self, row: usize, column: usize) -> bool {
        let place = column - 1;
        self.words[row * self.words_per_row + place / 64] >> (place % 64) & 1 == 0
    }

    /// Walks from the ends to the beginning, calling `visit` with the places of every byte of the subsequence.
    ///
    /// Where the last bytes differ, the walk drops the left one if that keeps more than dropping the right one would.
    /// The cell's length is the larger of the two, so this is so exactly where dropping the right one loses: where the
    /// length grows in this column.
    fn walk(&self, left: &[u8], right: &[u8], mut visit: impl FnMut(usize, usize)) {
        let (mut row, mut column) = (left.len(), right.len());
        while row > 0 && column > 0 {
            if left[row - 1] == right[column - 1] {
                row -= 1;
                column -= 1;
                visit(row, column);
            } else if self.grows(row, column) {
                row -= 1;
            } else {
                column -= 1;
            }
        }
    }

    fn common(&self, left: &[u8], right: &[u8]) -> Vec<u8> {
        let mut common = Vec::new();
        self.walk(left, right, |row, _| common.push(left[row]));
        common.reverse();
        common
    }

    /// The subsequence as runs, the last one first.
    fn matches(&self, left: &[u8], right: &[u8]) -> Vec<Match> {
        let mut matches: Vec<Match> = Vec::new();
        self.walk(left, right, |row, column| match matches.last_mut() {
            Some(last) if (last.left, last.right) == (row + 1, column + 1) => {
                *last = Match { left: row, right: column, length: last.length + 1 };
            }
            _ => matches.push(Match { left: row, right: column, length: 1 }),
        });
        matches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The classic table and the walk as the definition has it.
    fn naive(left: &[u8], right: &[u8]) -> (usize, Vec<(usize, usize)>) {
        let mut table = vec![vec![0; right.len() + 1]; left.len() + 1];
        for (i, a) in left.iter().enumerate() {
            for (j, b) in right.iter().enumerate() {
                table[i + 1][j + 1] = if a == b { table[i][j] + 1 } else { table[i][j + 1].max(table[i + 1][j]) };
            }
        }
        let (mut i, mut j, mut places) = (left.len(), right.len(), Vec::new());
        while i > 0 && j > 0 {
            if left[i - 1] == right[j - 1] {
                places.push((i - 1, j - 1));
                (i, j) = (i - 1, j - 1);
            } else if table[i - 1][j] > table[i][j - 1] {
                i -= 1;
            } else {
                j -= 1;
            }
        }
        (table[left.len()][right.len()], places)
    }

    #[test]
    fn a_bit_a_cell_says_as_much_as_the_classic_table() {
        let mut prng = stdx::Prng::new(3);
        for round in 0..500 {
            let letters = 1 + prng.below(6);
            let mut text = |max| (0..prng.below(max)).map(|_| b'a' + prng.below(letters) as u8).collect::<Vec<_>>();
            let (left, right) = (text(150), text(if round % 2 == 0 { 150 } else { 65 }));
            let (expected_length, expected_places) = naive(&left, &right);
            assert_eq!(length(&left, &right), expected_length);
            let table = Table::fill(&left, &right);
            let mut places = Vec::new();
            table.walk(&left, &right, |row, column| places.push((row, column)));
            assert_eq!(places, expected_places);
            assert_eq!(table.common(&left, &right).len(), expected_length);
            let matched: usize = table.matches(&left, &right).iter().map(|found| found.length).sum();
            assert_eq!(matched, expected_length);
        }
    }

    #[test]
    fn two_strings_are_refused_by_the_size_of_the_classic_table() {
        assert_eq!(check_size(11_584, 11_584), Ok(()));
        assert!(check_size(11_585, 11_585).is_err());
        assert_eq!(check_size(0, (1 << 27) - 1), Ok(()));
        assert!(check_size(0, 1 << 27).is_err());
    }
}

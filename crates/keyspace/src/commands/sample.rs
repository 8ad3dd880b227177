//! Choosing by chance, as SRANDMEMBER, SPOP and HRANDFIELD do: what is chosen are ranks.

use std::collections::BTreeSet;

use command::Refusal;
use stdx::Prng;

use super::arguments::{integer, out_of_range};

/// Most elements that are drawn with repetition: each adds to the reply, and nothing else bounds it.
const REPEATS_MAX: u64 = 1 << 24;

/// How many elements are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    /// That many different ones, or all if there are fewer.
    Distinct(usize),
    /// That many, of which some may be the same.
    Repeated(usize),
}

impl Count {
    /// The count in a request; a negative one means repetition.
    ///
    /// # Errors
    /// What is no integer, or too many.
    pub(super) fn parse(word: &[u8]) -> Result<Self, Refusal> {
        let number = integer(word)?;
        match usize::try_from(number.unsigned_abs()) {
            Ok(count) if number >= 0 => Ok(Self::Distinct(count)),
            Ok(count) if number.unsigned_abs() <= REPEATS_MAX => Ok(Self::Repeated(count)),
            _ => Err(out_of_range(-i64::MAX, i64::MAX)),
        }
    }
}

/// `count` different ranks below `len`, in rising order; all sets of them are equally likely.
///
/// Floyd's algorithm (Bentley, Floyd: "A sample of brilliance", 1987): as many draws as ranks, however many there are.
pub(super) fn distinct_ranks(prng: &mut Prng, len: usize, count: usize) -> BTreeSet<usize> {
    let mut ranks = BTreeSet::new();
    for last in len - count.min(len)..len {
        let rank = prng.below(last as u64 + 1) as usize;
        if !ranks.insert(rank) {
            ranks.insert(last);
        }
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_distinct_below_the_length_and_evenly_spread() {
        let mut prng = Prng::new(3);
        let mut drawn = [0u32; 10];
        for _ in 0..10_000 {
            let ranks = distinct_ranks(&mut prng, 10, 3);
            assert_eq!(ranks.len(), 3);
            ranks.iter().for_each(|&rank| drawn[rank] += 1);
        }
        assert!(drawn.iter().all(|count| (2_800..3_200).contains(count)), "{drawn:?}");
        assert_eq!(distinct_ranks(&mut prng, 4, 4), (0..4).collect());
        assert_eq!(distinct_ranks(&mut prng, 4, 9), (0..4).collect());
    }

    #[test]
    fn a_count_below_zero_repeats_within_bounds() {
        assert_eq!(Count::parse(b"3"), Ok(Count::Distinct(3)));
        assert_eq!(Count::parse(b"-3"), Ok(Count::Repeated(3)));
        assert_eq!(Count::parse(b"x"), Err(Refusal::NOT_AN_INTEGER));
        assert!(Count::parse(b"-9223372036854775808").is_err());
        assert!(Count::parse(b"-16777217").is_err());
    }
}

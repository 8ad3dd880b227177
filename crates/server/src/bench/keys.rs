//! Which key comes next.

use clap::ValueEnum;
use stdx::Prng;

/// How often each key is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Distribution {
    /// Every key as often as any other.
    Uniform,
    /// A few keys very often: the n-th most popular in proportion to n to the power -0.99, scattered over the keys.
    Zipf,
    /// One after the other, from the first again after the last.
    Sequential,
}

/// Draws key numbers below a bound.
pub struct KeyChooser {
    bound: u64,
    prng: Prng,
    kind: Kind,
}

enum Kind {
    Uniform,
    Zipf(Zipf),
    Sequential { next: u64, step: u64 },
}

impl KeyChooser {
    /// Keys from 0 to below `bound`. The chooser `share` of `shares` walks its own part of a sequence.
    pub fn new(distribution: Distribution, bound: u64, seed: u64, share: u64, shares: u64) -> Self {
        let kind = match distribution {
            Distribution::Uniform => Kind::Uniform,
            Distribution::Zipf => Kind::Zipf(Zipf::new(bound)),
            Distribution::Sequential => Kind::Sequential { next: share % bound, step: shares },
        };
        Self { bound, prng: Prng::new(Prng::new(seed.wrapping_add(share)).draw()), kind }
    }

    /// The next key's number.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        match &mut self.kind {
            Kind::Uniform => self.prng.below(self.bound),
            Kind::Zipf(zipf) => scatter(zipf.draw(&mut self.prng), self.bound),
            Kind::Sequential { next, step } => {
                let key = *next;
                *next = (*next + *step) % self.bound;
                key
            }
        }
    }

    /// The next key that suits, of a few that are drawn; the last of them if none does.
    pub fn draw_until(&mut self, suits: impl Fn(u64) -> bool) -> u64 {
        const DRAWS_MAX: usize = 64;
        let mut key = self.draw();
        for _ in 1..DRAWS_MAX {
            if suits(key) {
                break;
            }
            key = self.draw();
        }
        key
    }

    /// True with a probability of `share`.
    #[inline]
    pub fn chance(&mut self, share: f64) -> bool {
        unit(&mut self.prng) < share
    }
}

fn unit(prng: &mut Prng) -> f64 {
    (prng.draw() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// Ranks to keys, so that popular keys are not neighbours. Two ranks may meet on one key, as in YCSB.
fn scatter(rank: u64, bound: u64) -> u64 {
    let mut mixed = rank.wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^= mixed >> 33;
    mixed.wrapping_mul(0xc4ce_b9fe_1a85_ec53) % bound
}

/// Ranks with Zipf's distribution, by rejection-inversion: no table and no sum over all ranks, however many there are.
///
/// W. Hörmann, G. Derflinger: "Rejection-inversion to generate variates from monotone discrete distributions", ACM
/// TOMACS 6.3 (1996). `h` is the density's continuous majorant, `integral` its integral and `inverse` that integral's
/// inverse; a point drawn under the integral is kept if it falls into the bar of the rank it rounds to.
struct Zipf {
    ranks: f64,
    integral_of_first: f64,
    integral_of_last: f64,
    always_kept: f64,
}

const EXPONENT: f64 = 0.99;

impl Zipf {
    fn new(ranks: u64) -> Self {
        let ranks = ranks as f64;
        Self {
            ranks,
            integral_of_first: Self::integral(1.5) - 1.0,
            integral_of_last: Self::integral(ranks + 0.5),
            always_kept: 2.0 - Self::inverse(Self::integral(2.5) - Self::density(2.0)),
        }
    }

    /// A rank from 0, the most popular.
    fn draw(&self, prng: &mut Prng) -> u64 {
        loop {
            let point = self.integral_of_last + unit(prng) * (self.integral_of_first - self.integral_of_last);
            let position = Self::inverse(point);
            let rank = position.round().clamp(1.0, self.ranks);
            if rank - position <= self.always_kept || point >= Self::integral(rank + 0.5) - Self::density(rank) {
                return rank as u64 - 1;
            }
        }
    }

    fn density(position: f64) -> f64 {
        position.powf(-EXPONENT)
    }

    fn integral(position: f64) -> f64 {
        (position.powf(1.0 - EXPONENT) - 1.0) / (1.0 - EXPONENT)
    }

    fn inverse(point: f64) -> f64 {
        (point * (1.0 - EXPONENT) + 1.0).powf(1.0 / (1.0 - EXPONENT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_follows_its_law() {
        let (zipf, mut prng, draws) = (Zipf::new(1000), Prng::new(1), 200_000);
        let mut counts = vec![0u32; 1000];
        for _ in 0..draws {
            counts[zipf.draw(&mut prng) as usize] += 1;
        }
        let sum: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-EXPONENT)).sum();
        for rank in [1, 2, 3, 10, 100] {
            let expected = f64::from(draws) * f64::from(rank).powf(-EXPONENT) / sum;
            let found = f64::from(counts[rank as usize - 1]);
            assert!((found - expected).abs() < 5.0 * expected.sqrt(), "rank {rank}: {found} of {expected}");
        }
    }

    #[test]
    fn every_distribution_stays_below_its_bound() {
        for distribution in [Distribution::Uniform, Distribution::Zipf, Distribution::Sequential] {
            for bound in [1, 2, 7, 1_000_000] {
                let mut keys = KeyChooser::new(distribution, bound, 3, 1, 2);
                assert!((0..1000).all(|_| keys.draw() < bound), "{distribution:?} below {bound}");
            }
        }
    }

    #[test]
    fn sequences_of_all_threads_together_visit_every_key() {
        let mut seen: Vec<u64> = (0..3)
            .flat_map(|share| {
                let mut keys = KeyChooser::new(Distribution::Sequential, 9, 0, share, 3);
                (0..3).map(move |_| keys.draw())
            })
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..9).collect::<Vec<_>>());
    }
}

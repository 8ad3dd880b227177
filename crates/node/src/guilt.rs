//! Whether a host is so much slower than another one that it should not lead.
//!
//! Every node says with its vitals for how long its host has kept its cores from turning within the last minute, as the
//! black box has found it ([`crate::stalls`]). A leader with a host that is guilty beyond a bound hands over to a voter
//! with a host that is not nearly as bad. Where all hosts are alike, because they share one machine or are all
//! overloaded, nobody is better off elsewhere, and nothing happens.
//!
//! What a core does by itself is nobody's guilt: that work would go along. And leadership does not move back and forth:
//! a host is trusted with it again when it has had a good minute.

use stdx::UnixMillis;

use crate::limits;
use crate::stalls::{Cause, Stalls};

/// What a host has done to a node within the last minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guilt {
    /// How long the stalls were that are its doing, in milliseconds; 0 if they were too few to mean anything.
    pub stalled_ms: u64,
    /// How many there were.
    pub count: u64,
    /// The longest, in milliseconds.
    pub worst_ms: u64,
    /// What most of the time went by.
    pub cause: Option<Cause>,
}

impl Guilt {
    /// Looks at the black box. Stalls that are told late, or come from a clock that was set, are outside of the minute.
    pub fn of(stalls: &Stalls, now: UnixMillis) -> Self {
        let window_ms = limits::GUILT_WINDOW.as_millis() as i64;
        let mut guilt = Self::default();
        let mut by_cause =
            [Cause::Processor, Cause::Stolen, Cause::Stopped, Cause::Paging, Cause::Blocked].map(|cause| (cause, 0));
        for stall in stalls.iter().rev() {
            let age_ms = now.0 - stall.unix.0;
            if age_ms > window_ms {
                break;
            }
            let is_long = u128::from(stall.took_us) >= limits::GUILT_STALL.as_micros();
            let Some((_, sum)) = by_cause.iter_mut().find(|(cause, _)| *cause == stall.cause()).filter(|_| is_long)
            else {
                continue;
            };
            *sum += stall.took_us / 1_000;
            guilt.count += 1;
            guilt.stalled_ms += stall.took_us / 1_000;
            guilt.worst_ms = guilt.worst_ms.max(stall.took_us / 1_000);
        }
        if guilt.count < limits::GUILT_COUNT {
            return Self::default();
        }
        guilt.cause = by_cause.iter().max_by_key(|(_, sum)| *sum).map(|(cause, _)| *cause);
        guilt
    }

    /// As the timeline tells it.
    pub fn text(&self) -> String {
        let cause = match self.cause {
            Some(Cause::Stolen) => "a hypervisor gave its processors to others",
            Some(Cause::Processor) => "other threads had its processors",
            Some(Cause::Paging) => "it waited for pages from a disk",
            Some(Cause::Stopped) => "a signal stopped it",
            _ => "it waited in the kernel",
        };
        format!(
            "its host has stalled {} times within a minute, {} ms together and at worst {} ms: {cause}",
            self.count, self.stalled_ms, self.worst_ms
        )
    }
}

#[cfg(test)]
mod tests {
    use group::hosts::{is_innocent, outweighs};
    use group::ids::CoreId;
    use stdx::Prng;

    use super::*;
    use crate::stalls::{Stall, Surroundings};

    const NOW: UnixMillis = UnixMillis(1_000_000);

    fn stall(age_ms: i64, took_ms: u64, around: Surroundings) -> Stall {
        let around = Surroundings { window_us: took_ms * 1_000, ..around };
        Stall { unix: UnixMillis(NOW.0 - age_ms), core: CoreId(0), took_us: took_ms * 1_000, work: "", around }
    }

    fn stalls(each: &[(i64, u64)], around: Surroundings) -> Stalls {
        let mut stalls = Stalls::default();
        each.iter().for_each(|(age_ms, took_ms)| stalls.note(stall(*age_ms, *took_ms, around)));
        stalls
    }

    #[test]
    fn many_long_stalls_of_the_host_within_a_minute_are_guilt() {
        let blocked = Surroundings::default();
        let five = [(59_000, 400), (40_000, 300), (30_000, 200), (20_000, 200), (1_000, 200)];
        let guilt = Guilt::of(&stalls(&five, blocked), NOW);
        assert_eq!((guilt.stalled_ms, guilt.count, guilt.worst_ms), (1_300, 5, 400));
        assert_eq!(guilt.cause, Some(Cause::Blocked));
        assert!(guilt.text().contains("5 times within a minute, 1300 ms together and at worst 400 ms"), "{guilt:?}");
        // One that was long, some that were short, and those of the minute before are none.
        assert_eq!(Guilt::of(&stalls(&[(5_000, 9_000)], blocked), NOW), Guilt::default());
        assert_eq!(Guilt::of(&stalls(&[(5_000, 20); 500], blocked), NOW), Guilt::default());
        assert_eq!(Guilt::of(&stalls(&[(61_000, 300); 20], blocked), NOW), Guilt::default());
        // Nor is what a core did itself.
        let worked = Surroundings { ran_us: 1_000_000, ..blocked };
        assert_eq!(Guilt::of(&stalls(&five, worked), NOW), Guilt::default());
        let stolen = Surroundings { stolen_us: 1_000_000, ..blocked };
        assert_eq!(Guilt::of(&stalls(&five, stolen), NOW).cause, Some(Cause::Stolen));
        let stopped = Guilt::of(&stalls(&five, Surroundings { continue_count: 1, ..stolen }), NOW);
        assert_eq!(stopped.cause, Some(Cause::Stopped));
        assert!(stopped.text().ends_with("a signal stopped it"), "{}", stopped.text());
    }

    /// Three hosts over an hour, of which each may turn bad for a while: how often leadership moves.
    #[test]
    fn leadership_does_not_go_to_and_fro() {
        for seed in 0..50 {
            let mut prng = Prng::new(seed);
            let (mut leader, preferred) = (0, 0);
            let mut boxes = [Stalls::default(), Stalls::default(), Stalls::default()];
            let mut bad_until = [0_i64; 3];
            let (mut moves, mut spells, mut last_move) = (0, 0, -1_000_000);
            for second in 0..3_600_i64 {
                let now = UnixMillis(second * 1_000);
                for host in 0..3 {
                    if prng.draw().is_multiple_of(600) {
                        bad_until[host] = second + 20 + (prng.draw() % 100) as i64;
                        spells += 1;
                    }
                    if second < bad_until[host] && prng.draw().is_multiple_of(2) {
                        let took_us = 100_000 + prng.draw() % 400_000;
                        let around = Surroundings { window_us: took_us, ..Surroundings::default() };
                        boxes[host].note(Stall { unix: now, core: CoreId(0), took_us, work: "", around });
                    }
                }
                let stalled: Vec<u64> = boxes.iter().map(|stalls| Guilt::of(stalls, now).stalled_ms).collect();
                let better =
                    (0..3).filter(|host| outweighs(stalled[leader], stalled[*host])).min_by_key(|host| stalled[*host]);
                let back = (leader != preferred && is_innocent(stalled[preferred])).then_some(preferred);
                if let Some(next) = better.or(back.filter(|_| !outweighs(stalled[preferred], stalled[leader]))) {
                    assert!(stalled[next] <= stalled[leader] || is_innocent(stalled[next]));
                    (leader, last_move, moves) = (next, second, moves + 1);
                }
            }
            assert!(moves <= 2 * spells + 1, "seed {seed}: {moves} moves in {spells} spells, the last at {last_move}");
        }
    }
}

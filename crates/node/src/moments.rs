//! Moments that order across groups: a hybrid of the wall clock and of what has been heard.
//!
//! The moment of an entry is the wall clock of its leader, unless something that the leader's core has heard of is
//! later: then it is that. Letters between cores and what nodes say to each other about requests carry the latest
//! moment that the sender knows of an entry. So an entry that follows from another, in whatever group, has no earlier
//! moment:
//!
//! - a session's next request is logged behind what it has been told, also in another group;
//! - a transaction over groups is resolved nowhere before the latest moment at which one of them has prepared it.
//!
//! Cut at any moment, the logs of all groups give a state that was, if what all participants had prepared by then is
//! taken for done (decision 0027). After Kulkarni et al., "Logical physical clocks" (2014), without the counter: equal
//! moments fall on the same side of a cut.
//!
//! A clock that is wrong would take all others with it. So what is further ahead of the own wall clock than
//! [`limits::MOMENT_LEAP_MAX_MS`] is not followed, and told: then moments of different groups say nothing of their
//! order until the clock is put right.

use group::ids::{Level, Now};
use stdx::{Instant, UnixMillis};

use crate::event::Action;
use crate::limits;

/// The latest moment that a core knows of.
#[derive(Debug)]
pub(crate) struct Moments {
    latest: UnixMillis,
    /// The furthest that was not followed since that was last told.
    refused: Option<UnixMillis>,
    told: Option<Instant>,
    /// What was last passed on for its own sake, and when.
    passed_on: (UnixMillis, Instant),
}

impl Default for Moments {
    fn default() -> Self {
        Self {
            latest: UnixMillis(i64::MIN),
            refused: None,
            told: None,
            passed_on: (UnixMillis(i64::MIN), Instant::ZERO),
        }
    }
}

impl Moments {
    /// The latest known.
    #[inline]
    pub(crate) fn latest(&self) -> UnixMillis {
        self.latest
    }

    /// There is an entry of this moment. `wall` is what the own clock shows.
    #[inline]
    pub(crate) fn hear(&mut self, moment: UnixMillis, wall: UnixMillis) {
        if moment <= self.latest {
            return;
        }
        if moment.0 <= wall.0.saturating_add(limits::MOMENT_LEAP_MAX_MS) {
            self.latest = moment;
        } else {
            self.refused = self.refused.max(Some(moment));
        }
    }

    /// True, now and then, if the latest has changed since.
    pub(crate) fn is_to_be_passed_on(&mut self, now: Instant) -> bool {
        let (passed_on, when) = self.passed_on;
        let is_due = passed_on != self.latest && now.since(when) >= group::limits::ARCHIVE_INTERVAL;
        if is_due {
            self.passed_on = (self.latest, now);
        }
        is_due
    }

    /// Tells, now and then, what was not followed.
    pub(crate) fn tell(&mut self, now: Now, actions: &mut Vec<Action>) {
        let Some(refused) = self.refused else { return };
        if self.told.is_some_and(|told| now.instant.since(told) < limits::MOMENT_LEAP_TOLD_INTERVAL) {
            return;
        }
        (self.refused, self.told) = (None, Some(now.instant));
        let ahead_s = (refused.0 - now.unix.0) / 1_000;
        let line = format!(
            "a log of this cluster is {ahead_s} s ahead of this node's clock, more than the {} s that are followed: \
             moments of groups do not order until the clocks of all nodes are right",
            limits::MOMENT_LEAP_MAX_MS / 1_000
        );
        actions.push(Action::Log { level: Level::Warning, line });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Now {
        Now { instant: Instant::from_nanos(ms.cast_unsigned() * 1_000_000), unix: UnixMillis(ms) }
    }

    #[test]
    fn what_is_heard_is_followed_as_far_as_the_bound() {
        let mut moments = Moments::default();
        moments.hear(UnixMillis(500), UnixMillis(100));
        moments.hear(UnixMillis(400), UnixMillis(100));
        assert_eq!(moments.latest(), UnixMillis(500));
        moments.hear(UnixMillis(100 + limits::MOMENT_LEAP_MAX_MS), UnixMillis(100));
        assert_eq!(moments.latest(), UnixMillis(100 + limits::MOMENT_LEAP_MAX_MS));
        let mut actions = Vec::new();
        moments.tell(at(100), &mut actions);
        assert!(actions.is_empty());
        moments.hear(UnixMillis(101 + limits::MOMENT_LEAP_MAX_MS), UnixMillis(100));
        assert_eq!(moments.latest(), UnixMillis(100 + limits::MOMENT_LEAP_MAX_MS));
        for _ in 0..2 {
            moments.tell(at(100), &mut actions);
            moments.hear(UnixMillis(i64::MAX), UnixMillis(100));
        }
        assert_eq!(actions.len(), 1, "{actions:?}");
    }
}

//! Whether anybody can answer for a group. All code that refuses, waits or tells the user because a leader is missing
//! asks here: that a group has none, since when, and which nodes are missed.
//!
//! A group without a leader is waited for: elections take a fraction of a second. When it has had none for as long as a
//! request waits ([`limits::REQUEST_PATIENCE`]), whatever comes next is refused at once.

mod checks;

use std::collections::BTreeMap;

use group::ids::GroupId;
use stdx::{Duration, Instant};

use crate::limits;

/// Somebody has asked whether a group can answer. Nothing is asked of a group without this, or without saying that it
/// is [under way](Self::UNDER_WAY).
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct Answerable(());

impl Answerable {
    /// For the next step of what was admitted when it came, and for what has an end of its own where nobody answers.
    pub(crate) const UNDER_WAY: Self = Self(());
}

/// Groups that nobody is known to lead.
#[derive(Debug, Default)]
pub(crate) struct Leaderless {
    since: BTreeMap<GroupId, Silence>,
}

#[derive(Debug)]
pub(crate) struct Silence {
    since: Instant,
    /// Clients that cache have been told that they may miss changes.
    is_told: bool,
}

impl Leaderless {
    /// A leader of a group is known, or none is. True if one is known again after clients that cache were told.
    pub(crate) fn note(&mut self, group: GroupId, is_led: bool, now: Instant) -> bool {
        if is_led {
            return self.since.remove(&group).is_some_and(|silence| silence.is_told);
        }
        self.since.entry(group).or_insert(Silence { since: now, is_told: false });
        false
    }

    /// True if clients that cache must be told now: a group that has had no leader for a while may have one elsewhere.
    pub(crate) fn must_tell_caches(&mut self, now: Instant) -> bool {
        let is_due = |silence: &&mut Silence| !silence.is_told && now.since(silence.since) >= limits::TOUCH_PATIENCE;
        self.since.values_mut().filter(is_due).fold(false, |_, silence| {
            silence.is_told = true;
            true
        })
    }

    /// True if every group is led, as far as is known.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.since.is_empty()
    }

    /// How long a group has had no leader; `None` if it has one.
    #[inline]
    pub(crate) fn lasts(&self, group: GroupId, now: Instant) -> Option<Duration> {
        self.since.get(&group).map(|silence| now.since(silence.since))
    }
}

/// How every such refusal begins: no quorum confirms that this node leads, or what came as the answer of a group is
/// none.
pub(crate) const NO_QUORUM: &str = "CLUSTERDOWN No quorum of the group answers";

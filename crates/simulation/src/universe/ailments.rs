//! Nodes ail, and do not die: two do not hear each other although a third hears both, or a disk is full. Whoever leads
//! and had better not hands over, and no client of any node notices more than a pause.

use std::collections::BTreeMap;

use super::{Universe, say};
use crate::invariants::Invariant;
use crate::{MILLISECOND, SECOND};

/// How often that happens in one universe.
pub const AILMENTS_PER_UNIVERSE: u64 = 10;

/// The longest that an ailment lasts.
const AILMENT_MAX: u64 = 15 * SECOND;

/// How long leaders may take to be where they were.
const RECOVERY_MAX: u64 = 60 * SECOND;

/// How long leaders must stay where they are before the next.
const QUIET: u64 = 12 * SECOND;

impl Universe {
    pub(super) fn nodes_ail(&mut self) {
        self.live_until(self.now + QUIET, |_| false);
        self.history.errors.clear();
        let layout = self.layout();
        for cycle in 0..AILMENTS_PER_UNIVERSE {
            let before = self.leader_changes.clone();
            let count = self.machines.len() as u64;
            let victim = self.some(count) as usize;
            let other = (victim + 1 + self.some(count - 1) as usize) % count as usize;
            let ailing = match self.some(3) {
                0 => {
                    say!(self, "cycle {cycle}: the disk of node {} is full, {layout:?}", victim + 1);
                    self.probes.reach("a disk was full while others had room");
                    self.machines[victim].disk.set_full(true);
                    vec![Some(victim)]
                }
                kind => {
                    say!(self, "cycle {cycle}: nodes {} and {} are cut off, {layout:?}", victim + 1, other + 1);
                    self.probes.reach("two nodes did not hear each other, and others heard both");
                    self.cut.insert((victim, other));
                    if kind == 2 {
                        self.cut.insert((other, victim));
                    }
                    vec![Some(victim), Some(other)]
                }
            };
            let over = self.now + 500 * MILLISECOND + self.some(AILMENT_MAX);
            self.live_until(over, |_| false);
            say!(self, "cycle {cycle}: all is well again");
            self.cut.clear();
            self.machines[victim].disk.set_full(false);
            if !self.live_until(self.now + RECOVERY_MAX, |this| this.layout() == layout) {
                let now = self.layout();
                return self
                    .fail_ailment(&format!("leaders were {layout:?}, and a minute after an ailment are {now:?}"));
            }
            self.live_until(self.now + QUIET, |_| false);
            if self.failure.is_none() && self.layout() != layout {
                let now = self.layout();
                return self.fail_ailment(&format!("leaders were {layout:?}, did not stay, and are {now:?}"));
            }
            for (group, leader) in layout.iter().enumerate() {
                let group = group as u32;
                let changes_of = |changes: &BTreeMap<u32, u64>| changes.get(&group).copied().unwrap_or(0);
                let changes = changes_of(&self.leader_changes) - changes_of(&before);
                // One away from it, and one back.
                let allowed = if ailing.contains(leader) { 2 } else { 0 };
                if changes > allowed {
                    let reason = format!("group {group} changed its leader {changes} times, of which {allowed} may be");
                    return self.fail_ailment(&reason);
                }
            }
            if let Some(error) = self.history.errors.first() {
                let reason = format!("{} errors for clients, first: {error}", self.history.errors.len());
                return self.fail_ailment(&reason);
            }
            if self.failure.is_some() {
                return;
            }
        }
    }

    fn fail_ailment(&mut self, reason: &str) {
        let reason = format!("{reason}; {}", self.standing());
        self.fail(Invariant::Ailments, reason);
    }
}

//! Which node writes a checkpoint next: nodes of one cluster take turns, so that the disks that a write waits for are
//! not all busy at once.
//!
//! Each node says with its vitals whether one of its groups has log enough for a checkpoint, or writes one. It begins
//! when nobody it hears writes one, and nobody with a lower number wants to. That is no lock: two that do not hear each
//! other in time both write, which is what they all did before. Nothing that is replicated depends on it.
//!
//! Nobody waits without end: a group with a log that has grown by another half of its bound begins no matter who writes
//! ([`limits::CHECKPOINT_LATE_PERCENT`]). Checkpoints that somebody asks for, a client, a backup, or a member that
//! lacks one, wait for nobody.

use group::ids::NodeId;
use stdx::Instant;

use crate::limits;

/// What a node does about checkpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Nothing.
    #[default]
    Idle,
    /// A group has log enough for one.
    Due,
    /// It writes one.
    Writing,
}

impl Stage {
    /// As status reports name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Due => "due",
            Self::Writing => "writing",
        }
    }

    /// In two bits of a message.
    pub(crate) fn bits(self) -> u8 {
        self as u8
    }

    /// Reads it back.
    pub(crate) fn of_bits(bits: u8) -> Option<Self> {
        [Self::Idle, Self::Due, Self::Writing].into_iter().find(|stage| stage.bits() == bits)
    }
}

/// The node that goes first, by what the others say: one that writes, or the first in the order of numbers that wants
/// to.
pub fn who_goes_first(own: NodeId, said: impl Iterator<Item = (NodeId, Stage)> + Clone) -> Option<NodeId> {
    let of = |wanted: Stage| said.clone().filter(move |(_, stage)| *stage == wanted).map(|(node, _)| node);
    of(Stage::Writing).min().or_else(|| of(Stage::Due).filter(|node| *node < own).min())
}

/// What one core knows of its own checkpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Since when a group has been due.
    due_since: Option<Instant>,
}

impl Turn {
    /// Whether a group may begin by itself; `first` is who goes first among the others.
    pub fn may_begin(&mut self, first: Option<NodeId>, now: Instant) -> bool {
        let since = *self.due_since.get_or_insert(now);
        // The others must have had the time to say that they want to as well.
        first.is_none() && now.since(since) >= limits::CHECKPOINT_NOTICE
    }

    /// No group is due.
    pub fn end(&mut self) {
        self.due_since = None;
    }
}

/// True if so much log must not wait for anybody.
pub fn is_late(log_bytes: u64, log_bytes_max: u64) -> bool {
    log_bytes > log_bytes_max.saturating_add(log_bytes_max / 100 * limits::CHECKPOINT_LATE_PERCENT)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use stdx::{Duration, Prng};

    use super::*;

    #[test]
    fn who_writes_goes_first_and_then_the_lowest_number() {
        let said = |said: &[(u64, Stage)], own: u64| {
            let said: Vec<_> = said.iter().map(|(node, stage)| (NodeId(*node), *stage)).collect();
            who_goes_first(NodeId(own), said.into_iter()).map(|node| node.0)
        };
        let (idle, due, writing) = (Stage::Idle, Stage::Due, Stage::Writing);
        assert_eq!(said(&[], 2), None);
        assert_eq!(said(&[(1, idle), (3, due)], 2), None);
        assert_eq!(said(&[(1, due), (3, due)], 2), Some(1));
        assert_eq!(said(&[(1, due), (3, writing)], 2), Some(3));
        for stage in [idle, due, writing] {
            assert_eq!(Stage::of_bits(stage.bits()), Some(stage));
        }
        assert_eq!(Stage::of_bits(3), None);
    }

    #[test]
    fn a_log_that_is_half_again_as_long_as_it_should_be_waits_for_nobody() {
        assert!(!is_late(1_500, 1_000) && is_late(1_501, 1_000));
        assert!(!is_late(u64::MAX - 1, u64::MAX));
    }

    /// A node of the little world below.
    struct Node {
        log_bytes: u64,
        turn: Turn,
        writes_until: Option<Instant>,
        written: u32,
        late: u32,
        said: VecDeque<(Instant, Stage)>,
    }

    impl Node {
        fn stage(&self) -> Stage {
            match (self.writes_until, self.turn.due_since) {
                (Some(_), _) => Stage::Writing,
                (None, Some(_)) => Stage::Due,
                (None, None) => Stage::Idle,
            }
        }

        /// What the others have heard of it by now.
        fn heard(&self, now: Instant) -> Stage {
            self.said.iter().rev().find(|(arrives, _)| *arrives <= now).map_or(Stage::Idle, |(_, stage)| *stage)
        }
    }

    /// Nodes under the same load become due together. Words travel for up to a fifth of the notice. Returns how many
    /// checkpoints were written, in how many steps two nodes wrote, and how many began late.
    fn live(seed: u64, count: u64, writing: Duration, bytes_a_step: u64) -> (u32, u32, u32) {
        let mut prng = Prng::new(seed);
        let step = Duration::from_millis(20);
        let log_bytes_max = 100_000;
        let mut nodes: Vec<Node> = (0..count)
            .map(|_| Node {
                log_bytes: 0,
                turn: Turn::default(),
                writes_until: None,
                written: 0,
                late: 0,
                said: VecDeque::new(),
            })
            .collect();
        let mut now = Instant::ZERO;
        let mut overlaps = 0;
        for _ in 0..30_000 {
            now = now + step;
            for place in 0..nodes.len() {
                let heard: Vec<(NodeId, Stage)> = (0..nodes.len())
                    .filter(|other| *other != place)
                    .map(|other| (NodeId(other as u64), nodes[other].heard(now)))
                    .collect();
                let node = &mut nodes[place];
                node.log_bytes += bytes_a_step / 2 + prng.draw() % bytes_a_step.max(1);
                assert!(node.log_bytes < log_bytes_max * 3, "node {place} of {count} waits without end");
                if node.writes_until.is_some_and(|until| until <= now) {
                    node.writes_until = None;
                    node.written += 1;
                }
                if node.writes_until.is_none() && node.log_bytes > log_bytes_max {
                    let is_late = is_late(node.log_bytes, log_bytes_max);
                    let first = who_goes_first(NodeId(place as u64), heard.into_iter());
                    if node.turn.may_begin(first, now) || is_late {
                        node.late += u32::from(is_late);
                        node.writes_until = Some(now + writing);
                        node.log_bytes = 0;
                        node.turn.end();
                    }
                }
                let arrives = now + Duration::from_millis(prng.draw() % 100);
                let stage = node.stage();
                node.said.push_back((arrives, stage));
                if node.said.len() > 50 {
                    node.said.pop_front();
                }
            }
            overlaps += u32::from(nodes.iter().filter(|node| node.writes_until.is_some()).count() > 1);
        }
        let sum = |of: fn(&Node) -> u32| nodes.iter().map(of).sum();
        (sum(|node| node.written), overlaps, sum(|node| node.late))
    }

    #[test]
    fn nodes_that_are_due_together_write_one_after_the_other() {
        for seed in 0..20 {
            for count in [2, 3, 5] {
                // A twentieth of the time is spent writing on each node.
                let (written, overlaps, late) = live(seed, count, Duration::from_millis(1_000), 100);
                assert!(written >= 20, "seed {seed}, {count} nodes: {written} written");
                assert_eq!((overlaps, late), (0, 0), "seed {seed}, {count} nodes, {written} written");
            }
        }
    }

    #[test]
    fn nodes_that_write_more_than_there_is_time_for_do_not_wait_for_ever() {
        for seed in 0..20 {
            // Each needs more than half of the time for itself.
            let (written, overlaps, late) = live(seed, 3, Duration::from_secs(12), 100);
            assert!(written >= 40 && overlaps > 0 && late > 0, "seed {seed}: {written} {overlaps} {late}");
        }
    }
}

//! How late followers are, how fast the disks of the members are, and what a new leader says of itself.

use std::collections::{BTreeMap, VecDeque};

use consensus::Replica;
use message::roster::Member;
use stdx::{Duration, Instant};

use super::Group;
use crate::ids::{NodeId, Now};
use crate::limits;
use crate::output::Output;
use crate::timeline::Kind;

/// What a leader measures as it proposes, and at every tick.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the log reached a place, ascending.
    reached: VecDeque<(Instant, u64)>,
    /// Entries that are on their way to the disks of all.
    probe: Option<Probe>,
    /// When the next are followed.
    next_probe: Instant,
    /// How long the latest probes took until this node had them on its disk, and until each other had told that it
    /// does.
    own: Samples,
    others: BTreeMap<u64, Samples>,
}

#[derive(Debug)]
struct Probe {
    index: u64,
    sent: Instant,
    own: Option<Duration>,
    others: BTreeMap<u64, Duration>,
}

/// How long the latest writes took.
#[derive(Clone, Debug, Default)]
struct Samples(VecDeque<Duration>);

impl Samples {
    fn add(&mut self, took: Duration) {
        self.0.push_back(took);
        if self.0.len() > limits::PACE_SAMPLES {
            self.0.pop_front();
        }
    }

    /// As half of them took at most, once there are enough: a stall now and then says nothing of a host.
    fn median(&self) -> Option<Duration> {
        let mut sorted: Vec<Duration> = self.0.iter().copied().collect();
        sorted.sort_unstable();
        (sorted.len() == limits::PACE_SAMPLES).then(|| sorted[limits::PACE_SAMPLES / 2])
    }
}

impl Pace {
    /// Notes that the log has reached a place. How old an entry is decides whether a disk is blocked: with what a tick
    /// sees alone it would seem up to a tick younger.
    pub(super) fn reach(&mut self, now: Instant, last: u64) {
        if self.reached.back().is_some_and(|(_, reached)| *reached == last) {
            return;
        }
        self.reached.push_back((now, last));
        if self.reached.len() > limits::PACE_COUNT_MAX {
            // Of the past every second one will do.
            let mut keeps = false;
            self.reached.retain(|_| {
                keeps = !keeps;
                keeps
            });
        }
    }

    /// How long ago the oldest entry behind this one was there.
    fn late(&self, now: Instant, matched: u64) -> Duration {
        let position = self.reached.partition_point(|(_, reached)| *reached <= matched);
        self.reached.get(position).map_or(Duration::ZERO, |(when, _)| now.since(*when))
    }

    /// A batch has been proposed: sees how long it takes to be everywhere.
    pub(super) fn proposed(&mut self, now: Instant, index: u64) {
        self.reach(now, index);
        if self.probe.is_none() && now >= self.next_probe {
            self.next_probe = now + limits::PACE_INTERVAL;
            self.probe = Some(Probe { index, sent: now, own: None, others: BTreeMap::new() });
        }
    }

    /// Looks how far the probe has come. One that a member does not get ends after a while, and tells that it took so
    /// long.
    pub(super) fn watch(&mut self, now: Instant, replica: &Replica) {
        let Some(probe) = &mut self.probe else { return };
        let took = now.since(probe.sent);
        if probe.own.is_none() && replica.persisted_index() >= probe.index {
            probe.own = Some(took);
        }
        let progress = replica.progress();
        for other in progress.iter().filter(|other| other.matched >= probe.index) {
            probe.others.entry(other.node).or_insert(took);
        }
        let is_over = took >= limits::PACE_PATIENCE;
        if is_over || probe.own.is_some() && probe.others.len() == progress.len() {
            self.own.add(probe.own.unwrap_or(took));
            for other in &progress {
                let took = probe.others.get(&other.node).copied().unwrap_or(took);
                self.others.entry(other.node).or_default().add(took);
            }
            self.probe = None;
        }
    }

    /// True if writes are much faster on the disk of another than here.
    pub(super) fn is_slower_than(&self, other: u64) -> Option<(Duration, Duration)> {
        let (own, other) = (self.own.median()?, self.others.get(&other)?.median()?);
        (own >= limits::SLOW_LEADER && own >= other * limits::SLOW_LEADER_TIMES).then_some((own, other))
    }

    /// True if the disk of another is known to be slow, so that it should not lead.
    pub(super) fn is_slow(&self, other: u64) -> bool {
        let (Some(own), Some(other)) = (self.own.median(), self.others.get(&other).and_then(Samples::median)) else {
            return false;
        };
        other >= limits::SLOW_LEADER && other >= own * 2
    }
}

impl Group {
    /// How long ago the oldest entry was there that a member lacks.
    pub(super) fn lag(&self, matched: u64) -> Duration {
        self.leader.pace.late(self.last_tick, matched)
    }

    /// A new leader says why it leads.
    pub(super) fn tell_lead(&mut self, now: Now, output: &mut impl Output) {
        if self.is_alone() {
            return;
        }
        let is_asked = std::mem::take(&mut self.leadership.is_asked);
        let (node, term) = (self.node.0, self.replica.term());
        let why = match self.leadership.before.take() {
            Some((before, _)) if is_asked => format!("node {before} has handed over"),
            Some((before, heard)) => {
                format!("node {before} had been silent for {} ms", now.instant.since(heard).as_millis())
            }
            None => "nobody led that it knew of".to_owned(),
        };
        output.happened(Kind::Leader, Some(self.id), format!("node {node} leads in term {term}: {why}"));
    }

    /// Somebody has come, will go, or has gone.
    pub(super) fn tell_member(&self, node: NodeId, before: Option<&Member>, output: &mut impl Output) {
        let Some(member) = self.roster().get(node) else { return };
        let text = match before {
            _ if member.is_removed => format!("node {} has been removed", node.0),
            _ if member.is_leaving => format!("node {} is leaving", node.0),
            None => format!("node {} at {} has joined", node.0, member.client_address),
            Some(before) if before.zone != member.zone => match member.zone.as_str() {
                "" => format!("node {} is in no zone any more", node.0),
                zone => format!("node {} is in zone {zone} now", node.0),
            },
            Some(_) => format!("node {} is found at {} now", node.0, member.client_address),
        };
        output.happened(Kind::Member, None, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(pace: &Pace, ms: u64, matched: u64) -> u128 {
        pace.late(Instant::ZERO + Duration::from_millis(ms), matched).as_millis()
    }

    #[test]
    fn who_lacks_nothing_is_not_late_and_who_lacks_much_is_as_late_as_the_oldest_of_it() {
        let mut pace = Pace::default();
        for step in 1..=5_u64 {
            pace.reached.push_back((Instant::ZERO + Duration::from_millis(100 * step), 10 * step));
        }
        assert_eq!(after(&pace, 600, 50), 0);
        assert_eq!(after(&pace, 600, 49), 100);
        assert_eq!(after(&pace, 600, 10), 400);
        assert_eq!(after(&pace, 600, 0), 500);
    }

    #[test]
    fn a_leader_is_slow_only_by_comparison_and_after_a_while() {
        let mut pace = Pace::default();
        let ms = Duration::from_millis;
        for round in 0..2 * limits::PACE_SAMPLES {
            assert_eq!(pace.is_slower_than(2).is_some(), round >= limits::PACE_SAMPLES);
            pace.own.add(ms(200));
            pace.others.entry(2).or_default().add(ms(5));
            pace.others.entry(3).or_default().add(ms(190));
        }
        assert!(pace.is_slower_than(3).is_none() && !pace.is_slow(3) && !pace.is_slow(2));
        (0..limits::PACE_SAMPLES / 2 + 1).for_each(|_| pace.own.add(ms(3)));
        assert!(pace.is_slow(3) && !pace.is_slow(2) && pace.is_slower_than(2).is_none());
        (0..limits::PACE_SAMPLES / 2 - 1).for_each(|_| pace.own.add(ms(2_000)));
        assert!(pace.is_slower_than(2).is_none(), "a few stalls are no slow disk");
    }
}

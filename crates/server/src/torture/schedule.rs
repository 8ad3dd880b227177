//! Which faults, when, on which nodes, and for how long: drawn from a seed before anything runs.

use std::fmt;
use std::time::Duration;

use stdx::Prng;

/// What is done to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// SIGKILL, and a start with the same data a moment later.
    Kill,
    /// SIGSTOP, and SIGCONT after a while.
    Stop,
    /// Cut off from its peers and from the clients.
    CutOff,
    /// Cut off from its peers, but not from the clients.
    CutFromPeers,
    /// What it sends no longer arrives, but it hears the others.
    Mute,
    /// It and the next node do not reach each other; the others and the clients reach both.
    CutPair,
    /// What it sends goes through a narrow line.
    Slow,
}

impl Kind {
    /// In the order in which they are told.
    pub const ALL: [Self; 7] =
        [Self::Kill, Self::Stop, Self::CutOff, Self::CutFromPeers, Self::Mute, Self::CutPair, Self::Slow];

    /// Whether clients of the node have to bear with errors while it lasts.
    pub fn hurts_its_clients(self) -> bool {
        !matches!(self, Self::CutPair | Self::Slow)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Kill => "kill -9",
            Self::Stop => "stop",
            Self::CutOff => "cut off",
            Self::CutFromPeers => "cut from peers",
            Self::Mute => "mute",
            Self::CutPair => "pair cut",
            Self::Slow => "slow link",
        })
    }
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: Kind,
    /// Not before this, from the beginning of the load.
    pub at: Duration,
    /// How long it lasts; for a kill, how long the node stays away.
    pub length: Duration,
    /// Chooses the node, modulo their number.
    pub node: u64,
    /// How long before a kill a checkpoint is asked for, if one is.
    pub checkpoint: Option<Duration>,
}

/// How many of what.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    pub kills: u64,
    pub stops: u64,
    pub partitions: u64,
    pub slow_links: u64,
    pub nodes: u64,
    pub duration: Duration,
    /// Shortest and longest stop, partition and slow link.
    pub lengths: (Duration, Duration),
}

/// A killed node stays away no longer than this.
const AWAY_MS_MAX: u64 = 1_000;
/// A checkpoint before a kill begins no earlier than this before it.
const CHECKPOINT_LEAD_MS_MAX: u64 = 400;

/// The faults in order of time: one in each of as many equal parts of the run, in the first half of its part.
pub fn draw(wishes: &Wishes, seed: u64) -> Vec<Fault> {
    let mut prng = Prng::new(seed);
    let mut kinds = vec![Kind::Kill; wishes.kills as usize];
    kinds.extend(vec![Kind::Stop; wishes.stops as usize]);
    kinds.extend((0..wishes.partitions).map(|_| match prng.below(4) {
        _ if wishes.nodes == 1 => Kind::CutOff,
        0 => Kind::CutOff,
        1 => Kind::CutFromPeers,
        // Of two nodes, a pair that is cut has nobody between.
        2 if wishes.nodes > 2 => Kind::CutPair,
        _ => Kind::Mute,
    }));
    kinds.extend(vec![Kind::Slow; wishes.slow_links as usize]);
    for last in (1..kinds.len()).rev() {
        kinds.swap(last, prng.below(last as u64 + 1) as usize);
    }
    let part = wishes.duration / kinds.len().max(1) as u32;
    let (shortest, longest) = wishes.lengths;
    let mut begin = Duration::ZERO;
    let draws = kinds.into_iter().map(|kind| {
        let at = begin + Duration::from_millis(prng.below((part.as_millis() as u64 / 2).max(1)));
        begin += part;
        let spread = longest.saturating_sub(shortest).as_millis() as u64;
        let length = shortest + Duration::from_millis(prng.below(spread + 1));
        let away = Duration::from_millis(prng.below(AWAY_MS_MAX));
        let (node, with_checkpoint) = (prng.draw(), prng.chance(1, 2));
        let lead = Duration::from_millis(prng.below(CHECKPOINT_LEAD_MS_MAX));
        match kind {
            Kind::Kill => Fault { kind, at, length: away, node, checkpoint: with_checkpoint.then_some(lead) },
            _ => Fault { kind, at, length, node, checkpoint: None },
        }
    });
    draws.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wishes() -> Wishes {
        Wishes {
            kills: 5,
            stops: 4,
            partitions: 9,
            slow_links: 2,
            nodes: 3,
            duration: Duration::from_secs(60),
            lengths: (Duration::from_secs(1), Duration::from_secs(3)),
        }
    }

    #[test]
    fn a_seed_decides_everything() {
        assert_eq!(draw(&wishes(), 7), draw(&wishes(), 7));
        assert_ne!(draw(&wishes(), 7), draw(&wishes(), 8));
    }

    #[test]
    fn every_wish_is_granted_once_and_in_order() {
        let faults = draw(&wishes(), 1);
        let count = |kinds: &[Kind]| faults.iter().filter(|fault| kinds.contains(&fault.kind)).count();
        assert_eq!(count(&[Kind::Kill]), 5);
        assert_eq!(count(&[Kind::Stop]), 4);
        assert_eq!(count(&[Kind::CutOff, Kind::CutFromPeers, Kind::Mute, Kind::CutPair]), 9);
        assert_eq!(count(&[Kind::Slow]), 2);
        assert!(faults.is_sorted_by_key(|fault| fault.at));
        assert!(faults.iter().all(|fault| fault.at < Duration::from_secs(60)));
        let (shortest, longest) = wishes().lengths;
        let lasting = faults.iter().filter(|fault| fault.kind != Kind::Kill);
        assert!(lasting.clone().all(|fault| (shortest..=longest).contains(&fault.length)));
    }

    #[test]
    fn a_single_node_has_no_peers_to_lose() {
        let faults = draw(&Wishes { nodes: 1, ..wishes() }, 3);
        assert!(faults.iter().all(|fault| !matches!(fault.kind, Kind::CutFromPeers | Kind::Mute | Kind::CutPair)));
    }

    #[test]
    fn partitions_of_three_nodes_are_of_every_kind() {
        let faults = draw(&Wishes { partitions: 40, ..wishes() }, 5);
        for kind in [Kind::CutOff, Kind::CutFromPeers, Kind::Mute, Kind::CutPair] {
            assert!(faults.iter().any(|fault| fault.kind == kind), "{kind}");
        }
        let faults = draw(&Wishes { partitions: 40, nodes: 2, ..wishes() }, 5);
        assert!(faults.iter().all(|fault| fault.kind != Kind::CutPair));
    }
}

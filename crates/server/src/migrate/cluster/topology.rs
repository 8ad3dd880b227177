//! What the nodes of a Redis Cluster say of themselves: who is a primary, which slots each has, and which are being
//! moved.
//!
//! Only what a node says of itself counts: it learns of its own changes first. Of two that claim one slot the one with
//! the higher epoch is right (Redis Cluster specification, "Hash slots configuration propagation").

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use stdx::slot::{self, SLOT_COUNT, Slot};

use crate::connection::Connection;
use crate::migrate::source::{Address, ask};

/// A node that does not answer for so long is left out.
const PATIENCE: Duration = Duration::from_millis(1_500);

/// What a node says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    pub node: String,
    /// `HOST:PORT`, as it announces itself.
    pub place: String,
    pub is_primary: bool,
    pub epoch: u64,
    pub slots: Vec<u16>,
    /// Slots that it gives away or takes over at this moment.
    pub open: BTreeSet<u16>,
}

/// What all nodes say that answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// By the names of the nodes.
    pub claims: BTreeMap<String, Claim>,
    /// Places of nodes that others name, and that do not answer.
    pub silent: BTreeSet<String>,
}

impl Topology {
    /// The name of each slot's node; `None` if no node claims it.
    pub fn owners(&self) -> Vec<Option<&Claim>> {
        let mut owners: Vec<Option<&Claim>> = vec![None; SLOT_COUNT];
        for claim in self.primaries() {
            for &slot in &claim.slots {
                let owner = &mut owners[usize::from(slot)];
                if owner.is_none_or(|owner| owner.epoch < claim.epoch) {
                    *owner = Some(claim);
                }
            }
        }
        owners
    }

    /// Those that have slots.
    pub fn primaries(&self) -> impl Iterator<Item = &Claim> {
        self.claims.values().filter(|claim| claim.is_primary && !claim.slots.is_empty())
    }

    /// Slots that are being moved.
    pub fn open(&self) -> BTreeSet<u16> {
        self.claims.values().filter(|claim| claim.is_primary).flat_map(|claim| claim.open.iter().copied()).collect()
    }
}

/// Connections to the nodes of a cluster.
pub struct Survey {
    address: Address,
    connections: BTreeMap<String, Connection>,
    /// Places at which a node was seen.
    known: BTreeSet<String>,
}

impl Survey {
    /// Begins with the node at `address` and these others.
    pub fn new(address: &Address, others: impl IntoIterator<Item = String>) -> Self {
        let mut known: BTreeSet<String> = others.into_iter().collect();
        known.insert(address.place.clone());
        Self { address: address.clone(), connections: BTreeMap::new(), known }
    }

    /// Asks every node that is known, and those that these name.
    ///
    /// # Errors
    /// If none answers.
    pub fn look(&mut self) -> Result<Topology> {
        let mut topology = Topology::default();
        let mut asked = BTreeSet::new();
        let mut named = BTreeSet::new();
        let mut last = None;
        while let Some(place) = self.known.iter().find(|place| !asked.contains(*place)).cloned() {
            asked.insert(place.clone());
            match self.claim_of(&place) {
                Ok((claim, others)) => {
                    self.known.extend(others.iter().cloned());
                    named.extend(others);
                    named.insert(claim.place.clone());
                    topology.claims.insert(claim.node.clone(), claim);
                }
                Err(error) => {
                    self.connections.remove(&place);
                    topology.silent.insert(place);
                    last = Some(error);
                }
            }
        }
        if topology.claims.is_empty() {
            return Err(last.unwrap_or_else(|| anyhow::anyhow!("no node of the source is known")));
        }
        // The place that the user has named may be another name of one of them, and others may have gone for good.
        topology.silent.retain(|place| named.contains(place));
        self.known = named;
        self.known.insert(self.address.place.clone());
        Ok(topology)
    }

    /// What the node at a place says of itself, and the places of the others.
    fn claim_of(&mut self, place: &str) -> Result<(Claim, Vec<String>)> {
        let reply = ask(self.connection(place)?, &["CLUSTER", "NODES"])?;
        read_nodes(&String::from_utf8_lossy(reply.as_bytes().unwrap_or_default()), place)
    }

    /// A connection to the node at a place, kept for the next time.
    ///
    /// # Errors
    /// If nobody is there.
    pub fn connection(&mut self, place: &str) -> Result<&mut Connection> {
        if !self.connections.contains_key(place) {
            let connection = self.address.at(place).connect(PATIENCE)?;
            self.connections.insert(place.to_owned(), connection);
        }
        self.connections.get_mut(place).context("just made")
    }

    /// Makes another connection the next time: what comes over this one may be late.
    pub fn forget(&mut self, place: &str) {
        self.connections.remove(place);
    }
}

/// Reads a reply to CLUSTER NODES of the node that was reached at `reached`: what it says of itself, and the places of
/// the others that are members.
///
/// # Errors
/// If it is none.
pub fn read_nodes(text: &str, reached: &str) -> Result<(Claim, Vec<String>)> {
    let (mut claim, mut others) = (None, Vec::new());
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        ensure!(words.len() >= 8, "CLUSTER NODES is answered with '{line}'");
        let flags: Vec<&str> = words[2].split(',').collect();
        let place = place_of(words[1], reached);
        if !flags.contains(&"myself") {
            if !flags.iter().any(|flag| ["handshake", "noaddr"].contains(flag)) {
                others.push(place);
            }
            continue;
        }
        let mut own = Claim {
            node: words[0].to_owned(),
            place,
            is_primary: flags.contains(&"master"),
            epoch: words[6].parse().with_context(|| format!("CLUSTER NODES is answered with '{line}'"))?,
            ..Claim::default()
        };
        for word in &words[8..] {
            match word.strip_prefix('[') {
                None => own.slots.extend(read_ranges(word)?),
                // [slot->-node] or [slot-<-node]
                Some(moving) => {
                    let slot = moving.split('-').next().and_then(|slot| slot.parse().ok());
                    own.open.insert(slot.with_context(|| format!("CLUSTER NODES tells of a slot {word}"))?);
                }
            }
        }
        claim = Some(own);
    }
    let mut claim = claim.context("a node does not tell of itself in CLUSTER NODES")?;
    claim.slots.sort_unstable();
    Ok((claim, others))
}

/// `HOST:PORT` of `HOST:PORT@BUS,NAME`. A node that does not know its own host is where it was reached.
fn place_of(text: &str, reached: &str) -> String {
    let place = text.split(['@', ',']).next().unwrap_or_default();
    match place.rsplit_once(':') {
        Some(("", port)) => format!("{}:{port}", reached.rsplit_once(':').map_or(reached, |(host, _)| host)),
        // An address of IPv6 stands without brackets there.
        Some((host, port)) if host.contains(':') && !host.starts_with('[') => format!("[{host}]:{port}"),
        _ => place.to_owned(),
    }
}

/// Slots as ranges: `0-5460,7000`.
pub fn ranges_of(slots: impl IntoIterator<Item = u16>) -> String {
    slot::text_of(slots.into_iter().map(Slot))
}

/// Reads what [`ranges_of`] has written.
///
/// # Errors
/// If it is something else.
pub fn read_ranges(text: &str) -> Result<Vec<u16>> {
    let mut slots = Vec::new();
    for range in text.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        match (first.parse::<u16>(), last.parse::<u16>()) {
            (Ok(first), Ok(last)) if first <= last && usize::from(last) < SLOT_COUNT => slots.extend(first..=last),
            _ => bail!("'{text}' names no slots"),
        }
    }
    Ok(slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_tells_of_itself_and_of_others() {
        let text = "aa :7000@17000 myself,master - 0 0 3 connected 0-2 5 [93->-bb] [77-<-cc]\n\
                    bb 10.0.0.2:7001@17001,name master - 0 1 2 connected 3-4 [7->-aa]\n\
                    cc ::1:7002@17002 slave,fail bb 0 1 2 connected\n\
                    dd :0@0 master,noaddr - 0 1 2 disconnected\n";
        let (claim, others) = read_nodes(text, "10.0.0.1:7000").expect("sound");
        assert_eq!((&*claim.place, claim.is_primary, claim.epoch), ("10.0.0.1:7000", true, 3));
        assert_eq!((claim.slots, claim.open), (vec![0, 1, 2, 5], BTreeSet::from([77, 93])));
        assert_eq!(others, ["10.0.0.2:7001", "[::1]:7002"]);
        assert!(read_nodes("nothing", "a:1").is_err());
        assert!(read_nodes("aa :7000@17000 myself,master - 0 0 3 connected 0-16384", "a:1").is_err());
    }

    #[test]
    fn a_slot_is_that_of_the_higher_epoch() {
        let claim = |node: &str, epoch, slots: &[u16]| Claim {
            node: node.to_owned(),
            is_primary: true,
            epoch,
            slots: slots.to_vec(),
            ..Claim::default()
        };
        let claims = [claim("a", 3, &[1, 2]), claim("b", 4, &[2, 3]), claim("c", 1, &[3])];
        let claims = claims.into_iter().map(|claim| (claim.node.clone(), claim)).collect();
        let topology = Topology { claims, silent: BTreeSet::new() };
        let owners: Vec<_> = topology.owners()[..4].iter().map(|owner| owner.map(|claim| &*claim.node)).collect();
        assert_eq!(owners, [None, Some("a"), Some("b"), Some("b")]);
    }

    #[test]
    fn ranges_are_read_as_they_were_written() {
        let slots = [0, 1, 2, 7, 16_382, 16_383];
        assert_eq!(ranges_of(slots), "0-2,7,16382-16383");
        assert_eq!(read_ranges("0-2,7,16382-16383").expect("sound"), slots);
        assert_eq!((ranges_of([]), read_ranges("").expect("none")), (String::new(), Vec::new()));
        assert!(read_ranges("3-1").is_err() && read_ranges("x").is_err());
    }
}

//! How several Holdfasts become one cluster. Nobody else here knows.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};
use stdx::Prng;

use crate::cluster::invite::if_possible;

/// Ports of servers: none that the system gives to clients, or a client would sooner or later hold the port of a
/// server that is just away, or even connect to itself.
const PORTS: std::ops::Range<u64> = 22_000..32_000;

/// Where a node calls the others, and is called by them.
pub fn cluster_address(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port() + 1)
}

/// A port for a server on this machine, with the one behind it for its cluster.
pub fn free_port(prng: &mut Prng) -> Result<u16> {
    for _ in 0..1_000 {
        let port = (PORTS.start + prng.below(PORTS.end - PORTS.start)) as u16;
        let is_free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
        if is_free(port) && is_free(port + 1) {
            return Ok(port);
        }
    }
    bail!("no free port from {} to {}", PORTS.start, PORTS.end)
}

/// The same for a caller that need not repeat its choice.
pub fn some_free_port() -> Result<u16> {
    static ASKED: AtomicU64 = AtomicU64::new(0);
    let nth = ASKED.fetch_add(1, Ordering::Relaxed);
    free_port(&mut Prng::new(u64::from(std::process::id()) << 32 | nth))
}

/// What a node is told at every start about the others: all but the first join it.
///
/// A single one is told its port, too: the usual one, far above that of clients, may be a client's of somebody else.
/// The first must have made the cluster, in `first_data`, before the others are started: they are let in by a token
/// that is made from it.
///
/// # Errors
/// If that cannot be read.
pub fn words(node: usize, addresses: &[SocketAddr], first_data: &Path) -> Result<Vec<String>> {
    let port = cluster_address(addresses[node]).port().to_string();
    let mut words = vec!["--cluster-port".to_owned(), port, "--replicas".to_owned(), addresses.len().to_string()];
    if node > 0 {
        words.extend(["--join".to_owned(), cluster_address(addresses[0]).to_string()]);
        let token = if_possible(first_data)?.context("the first node has made no cluster")?;
        words.extend(["--token".to_owned(), token.to_text()]);
    }
    Ok(words)
}

/// True if every node has said of every group that as many vote as there are nodes.
pub fn is_formed(logs: &[String]) -> bool {
    let told: Vec<BTreeMap<u32, usize>> = logs.iter().map(|log| voters(log)).collect();
    let groups = told.iter().flat_map(BTreeMap::keys).max().map_or(0, |last| last + 1);
    groups > 0 && told.iter().all(|told| (0..groups).all(|group| told.get(&group) == Some(&logs.len())))
}

/// How many voters a node last told of, for each group.
fn voters(log: &str) -> BTreeMap<u32, usize> {
    let mut voters = BTreeMap::new();
    for line in log.lines() {
        let Some((before, list)) = line.split_once(": voters [") else { continue };
        let group = before.rsplit_once("group ").and_then(|(_, number)| number.parse().ok());
        let count = list.split(']').next().map_or(0, |list| list.split(", ").count());
        if let Some(group) = group {
            voters.insert(group, count);
        }
    }
    voters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_formed_when_all_have_told_of_all_voters_of_all_groups() {
        let log = |groups: &[&str]| -> String {
            let line = |(group, voters)| format!("2026-01-01 notice  group {group}: voters [{voters}], learners []\n");
            groups.iter().enumerate().map(line).collect()
        };
        let whole = log(&["1, 2, 3", "1, 2, 3"]);
        assert!(is_formed(&[whole.clone(), whole.clone(), whole.clone()]));
        assert!(!is_formed(&[whole.clone(), whole.clone(), log(&["1, 2, 3"])]), "a group is missing");
        assert!(!is_formed(&[whole.clone(), whole.clone(), log(&["1, 2, 3", "1, 2"])]), "a voter is missing");
        assert!(is_formed(&[log(&["1"]) + &whole, whole.clone(), whole]), "what was told last counts");
        assert!(!is_formed(&[String::new(), String::new(), String::new()]), "nobody has told anything");
    }
}

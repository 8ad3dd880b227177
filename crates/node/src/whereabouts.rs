//! At which host this node is found, where nobody has configured that: by an address of this machine, or by a guess
//! that others know better.
//!
//! The roster knows it from before, but a member may have lied to the cluster about it. So it is believed only where it
//! names an address of this machine. Otherwise the node does not contradict it, since its guess is worse, until a link
//! to another node shows by which way the two find each other.

use std::net::IpAddr;
use std::sync::Arc;

use crate::core::Context;
use crate::roster::{Member, Roster};

/// What is known of that.
#[derive(Debug)]
pub(crate) struct Whereabouts {
    /// The host is a guess.
    pub(crate) is_guess: bool,
    /// The addresses of this machine, as far as they are known.
    pub(crate) machine_addresses: Arc<[IpAddr]>,
}

impl Whereabouts {
    fn is_of_machine(&self, host: &str) -> bool {
        let address = host.trim_start_matches('[').trim_end_matches(']').parse();
        address.is_ok_and(|address: IpAddr| self.machine_addresses.contains(&address))
    }
}

impl Context {
    /// Knows the cluster from now on, and maybe at which host this node is found.
    pub(crate) fn take_roster(&mut self, roster: Arc<Roster>) {
        self.roster = roster;
        if self.whereabouts.is_guess
            && let Some(host) = self.host_in_roster().filter(|host| self.whereabouts.is_of_machine(host))
        {
            let host = host.to_owned();
            self.own.move_to(&host);
        }
    }

    /// The host at which the roster says that this node is found.
    fn host_in_roster(&self) -> Option<&str> {
        let known = self.roster.get(self.node)?;
        known.cluster_address.rsplit_once(':').map(|(host, _)| host)
    }

    /// Another node and this one are linked by way of this host: it is found there, unless the cluster knows of another
    /// address of this machine at which other machines reach it. One caller may come by a way that others do not have.
    ///
    /// Gives what is to be logged if something else is announced from now on.
    pub(crate) fn found_at(&mut self, host: &str) -> Option<String> {
        let is_placed =
            self.host_in_roster().is_some_and(|host| !is_loopback(host) && self.whereabouts.is_of_machine(host));
        if is_placed {
            return None;
        }
        let before = self.whereabouts_to_announce().cluster_address;
        self.whereabouts.is_guess = false;
        self.own.move_to(host);
        let after = &self.own.cluster_address;
        (before != *after).then(|| {
            format!(
                "a link to another node shows that this one is found at {host}, and not at {before}, as was assumed: \
                 nodes and clients are told {after}. Set cluster-announce-ip if they are to use another address"
            )
        })
    }

    /// Where this node says that it is found. It does not contradict the cluster by a guess.
    pub(crate) fn whereabouts_to_announce(&self) -> Member {
        let mut own = self.own.clone();
        if self.whereabouts.is_guess
            && let Some(host) = self.host_in_roster().filter(|host| !is_loopback(host))
        {
            own.move_to(host);
        }
        own
    }
}

fn is_loopback(host: &str) -> bool {
    ["127.", "[::1]", "localhost"].iter().any(|start| host.starts_with(start))
}

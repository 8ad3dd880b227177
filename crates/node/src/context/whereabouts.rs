//! Where this node is found. See [`crate::whereabouts`].

use std::net::IpAddr;
use std::sync::Arc;

use crate::context::Context;
use crate::roster::{Member, Roster};
use crate::whereabouts::is_loopback;

impl Context {
    /// Knows the cluster from now on, and maybe at which host this node is found.
    pub(crate) fn take_roster(&mut self, roster: Arc<Roster>) {
        self.roster = roster;
        let is_open = self.whereabouts.is_guess || std::mem::take(&mut self.whereabouts.was_found_early);
        if let Some(host) = self.host_of_machine_in_roster().filter(|_| is_open) {
            // From now on no other one is believed.
            self.whereabouts.is_guess = is_loopback(&host);
            self.own.move_to(&host);
        }
    }

    /// The host in the roster, if it is an address of this machine.
    fn host_of_machine_in_roster(&self) -> Option<String> {
        self.host_in_roster().filter(|host| self.whereabouts.is_of_machine(host)).map(str::to_owned)
    }

    /// The host at which the roster says that this node is found.
    fn host_in_roster(&self) -> Option<&str> {
        let known = self.roster.get(self.node)?;
        known.cluster_address.rsplit_once(':').map(|(host, _)| host)
    }

    /// Another node and this one are linked by way of this host: it is found there, unless the cluster knows of another
    /// address of this machine at which other machines reach it. One caller may come by a way that others do not have.
    ///
    /// `machine_addresses` are those of this machine at that time: there may have been fewer when it started.
    ///
    /// Gives a line for the log if something else is announced from now on.
    pub(crate) fn found_at(&mut self, host: &str, machine_addresses: &Arc<[IpAddr]>) -> Option<String> {
        self.whereabouts.machine_addresses = Arc::clone(machine_addresses);
        let before = self.whereabouts_to_announce().cluster_address;
        let placed = self.host_of_machine_in_roster().filter(|host| !is_loopback(host));
        self.whereabouts.is_guess = false;
        self.whereabouts.was_found_early = self.roster.is_empty();
        self.own.move_to(placed.as_deref().unwrap_or(host));
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

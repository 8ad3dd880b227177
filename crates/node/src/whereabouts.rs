//! At which host this node is found, where nobody has configured that: by an address of this machine, or by a guess
//! that others know better.
//!
//! The roster knows it from before, but a member may have lied to the cluster about it. So it is believed only where it
//! names an address of this machine. Otherwise the node does not contradict it, since its guess is worse, until a link
//! to another node shows by which way the two find each other.

use std::net::IpAddr;
use std::sync::Arc;

/// What is known of that.
#[derive(Debug)]
pub(crate) struct Whereabouts {
    /// The host is a guess.
    pub(crate) is_guess: bool,
    /// A link has shown the host before the cluster was known, which may know of a better one.
    pub(crate) was_found_early: bool,
    /// The addresses of this machine, as far as they are known.
    pub(crate) machine_addresses: Arc<[IpAddr]>,
}

impl Whereabouts {
    pub(crate) fn is_of_machine(&self, host: &str) -> bool {
        let address = host.trim_start_matches('[').trim_end_matches(']').parse();
        address.is_ok_and(|address: IpAddr| self.machine_addresses.contains(&address))
    }
}

pub(crate) fn is_loopback(host: &str) -> bool {
    ["127.", "[::1]", "localhost"].iter().any(|start| host.starts_with(start))
}

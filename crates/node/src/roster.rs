//! Who belongs to the cluster and where to find them: replicated by group 0.

use std::collections::BTreeMap;

use stdx::leb128;

use crate::entry::{Reader, put_bytes};
use crate::event::NodeId;

/// One node of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// `HOST:PORT` where other nodes reach it.
    pub cluster_address: String,
    /// `HOST:PORT` where clients reach it.
    pub client_address: String,
    /// It has been removed, for ever: its groups are to do without it.
    pub is_removed: bool,
}

impl Member {
    /// Appends it to an entry or a message.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.is_removed));
        put_bytes(out, self.cluster_address.as_bytes());
        put_bytes(out, self.client_address.as_bytes());
    }

    /// Reads it back.
    pub fn read(reader: &mut Reader<'_>) -> Self {
        let is_removed = reader.byte() == 1;
        let mut text = || String::from_utf8_lossy(reader.bytes()).into_owned();
        Self { cluster_address: text(), client_address: text(), is_removed }
    }
}

/// All nodes that ever belonged to the cluster. Those that were removed stay listed, so that an old list never brings
/// one of them back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    members: BTreeMap<u64, Member>,
}

impl Roster {
    /// Enters a node, or what is new of it. A node that has been removed stays removed. True if that changed anything.
    pub fn enlist(&mut self, node: NodeId, member: Member) -> bool {
        let known = self.members.get(&node.0);
        if known == Some(&member) || known.is_some_and(|known| known.is_removed) {
            return false;
        }
        self.members.insert(node.0, member);
        true
    }

    /// What is known of a node.
    pub fn get(&self, node: NodeId) -> Option<&Member> {
        self.members.get(&node.0)
    }

    /// The nodes that belong to the cluster now.
    pub fn present(&self) -> impl Iterator<Item = (NodeId, &Member)> {
        self.members.iter().filter(|(_, member)| !member.is_removed).map(|(node, member)| (NodeId(*node), member))
    }

    /// True if the node has been removed.
    pub fn is_removed(&self, node: NodeId) -> bool {
        self.get(node).is_some_and(|member| member.is_removed)
    }

    /// True if nobody has been entered: a node by itself.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Appends it to a checkpoint.
    pub fn put(&self, out: &mut Vec<u8>) {
        leb128::put(out, self.members.len() as u64);
        for (node, member) in &self.members {
            leb128::put(out, *node);
            member.put(out);
        }
    }

    /// Reads it back.
    pub fn read(reader: &mut Reader<'_>) -> Self {
        let count = reader.number();
        Self { members: (0..count).map(|_| (reader.number(), Member::read(reader))).collect() }
    }
}

/// Forty hexadecimal digits by which clients of a Redis cluster know a node. They begin with its number.
pub fn name_of(node: NodeId) -> String {
    let more = stdx::Prng::new(node.0).draw();
    format!("{:016x}{more:016x}{:08x}", node.0, more >> 32)
}

/// The parts of `HOST:PORT`; brackets around an IPv6 address are no part of it.
pub fn host_and_port(address: &str) -> (&str, &str) {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "0"));
    (host.trim_start_matches('[').trim_end_matches(']'), port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_removed_does_not_come_back() {
        let mut roster = Roster::default();
        let member = Member { cluster_address: "a:1".into(), client_address: "a:2".into(), is_removed: false };
        assert!(roster.enlist(NodeId(7), member.clone()));
        assert!(!roster.enlist(NodeId(7), member.clone()));
        assert!(roster.enlist(NodeId(7), Member { is_removed: true, ..member.clone() }));
        assert!(!roster.enlist(NodeId(7), member));
        assert_eq!(roster.present().count(), 0);
        let mut bytes = Vec::new();
        roster.put(&mut bytes);
        assert_eq!(Roster::read(&mut Reader::new(&bytes)), roster);
    }
}

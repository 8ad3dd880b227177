//! Names of nodes, cores, groups, gateways and transactions.

use stdx::leb128;

use crate::entry::Reader;

/// A node of the cluster; never reused once its log is lost. 0 is no node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// One of a node's cores: a thread with its sessions and groups. Counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoreId(pub u16);

/// A group: a set of slots with one replicated log. Counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// One life of one core as a driver of transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GatewayId {
    /// Its node.
    pub node: u64,
    /// Which life of the node: drawn at its start.
    pub boot: u64,
    /// Its core.
    pub core: CoreId,
}

/// A transaction. Its id is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId {
    /// Who drives it.
    pub gateway: GatewayId,
    /// Its number there, growing.
    pub number: u64,
}

impl GatewayId {
    /// Appends it to an entry.
    pub fn put(&self, out: &mut Vec<u8>) {
        leb128::put(out, self.node);
        leb128::put(out, self.boot);
        leb128::put(out, u64::from(self.core.0));
    }

    /// Reads it back.
    pub fn read(reader: &mut Reader<'_>) -> Self {
        Self { node: reader.number(), boot: reader.number(), core: CoreId(reader.number() as u16) }
    }
}

impl TransactionId {
    /// Appends it to an entry.
    pub fn put(&self, out: &mut Vec<u8>) {
        self.gateway.put(out);
        leb128::put(out, self.number);
    }

    /// Reads it back.
    pub fn read(reader: &mut Reader<'_>) -> Self {
        Self { gateway: GatewayId::read(reader), number: reader.number() }
    }
}

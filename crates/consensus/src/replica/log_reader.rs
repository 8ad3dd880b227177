//! What a replica reads of its log, in memory and back from the disk.

use stdx::log::Entry;

use raft::RawNode;

use super::{Fetch, Replica, inner_entry};
use crate::log::Log;

impl Replica {
    /// Gives up entries up to `index`, which must have been applied: the host does not hold them any more. A member
    /// that still needs them will need a checkpoint.
    pub fn compact(&mut self, index: u64) {
        assert!(index <= self.raft.raft.raft_log.applied(), "compacting to {index} what is not applied");
        self.raft.mut_store().compact(index);
    }

    /// Drops from memory what has been applied: entries up to `index`, and the oldest behind it while there are more
    /// than `bytes_max`. The host holds them; for members that need them they are fetched.
    pub fn forget(&mut self, index: u64, bytes_max: usize) {
        let applied = self.raft.raft.raft_log.applied();
        let log = self.raft.mut_store();
        log.forget(index.min(applied).max(log.memory_index()));
        log.forget_beyond(bytes_max, applied);
    }

    /// Entries that members lack and that are not in memory: the host must read them and hand them to
    /// [`Replica::fetched`].
    pub fn take_fetches(&mut self) -> Vec<Fetch> {
        self.send_fetched();
        let log = self.raft.mut_store();
        let firsts = log.take_wanted();
        let last = log.memory_index();
        firsts.into_iter().map(|first| Fetch { first, last, terms: log.terms_from(first) }).collect()
    }

    /// The index below which nothing is known, and the terms of all entries of the log behind it: each with the index
    /// from which it counts.
    pub fn terms(&self) -> (u64, Vec<(u64, u64)>) {
        self.raft.store().terms()
    }

    /// The host has read entries for [`Fetch::first`]; as many as it liked to, in order. None, if they are not there
    /// yet: they are asked for again.
    pub fn fetched(&mut self, first: u64, entries: &[Entry]) {
        self.raft.mut_store().take_fetched(first, entries.iter().map(inner_entry).collect());
        self.send_fetched();
    }

    /// The host does not hold the entry [`Fetch::first`] any more: who lacks it is given a checkpoint.
    pub fn fetch_failed(&mut self, first: u64) {
        let log = self.raft.mut_store();
        log.take_fetched(first, Vec::new());
        if first <= log.memory_index() {
            log.compact(first);
        }
    }

    pub(super) fn send_fetched(&mut self) {
        if !self.raft.store().has_fetched() {
            return;
        }
        if !self.is_leader() {
            return self.raft.mut_store().keep_fetched(&[]);
        }
        let next_of = |raft: &RawNode<Log>, node| raft.raft.prs().get(node).map_or(0, |progress| progress.next_idx);
        let own = self.options.node;
        let mut others: Vec<u64> =
            self.raft.raft.prs().iter().map(|(node, _)| *node).filter(|node| *node != own).collect();
        others.sort_unstable();
        for node in &others {
            // One message a round, until it has caught up with what is at hand, or has enough under way.
            loop {
                let before = next_of(&self.raft, *node);
                if before > self.raft.store().memory_index() {
                    break;
                }
                self.raft.raft.send_append(*node);
                if next_of(&self.raft, *node) == before {
                    break;
                }
            }
        }
        let next: Vec<u64> = others.iter().map(|node| next_of(&self.raft, *node)).collect();
        self.raft.mut_store().keep_fetched(&next);
    }

    /// Index of the last entry of its log.
    pub fn last_index(&self) -> u64 {
        self.raft.raft.raft_log.last_index()
    }

    /// Index of the last entry that it has given up; 0 when it has them all.
    pub fn floor_index(&self) -> u64 {
        self.raft.store().floor_index()
    }

    /// Term of the entry at `index`, if it is still known.
    pub fn term_at(&self, index: u64) -> Option<u64> {
        // What has been replaced, and is not on its way to the disk yet, is still in the store. The library says 0 of
        // what it does not know.
        self.raft.raft.raft_log.term(index).ok().filter(|term| *term > 0)
    }

    /// Index up to which this replica's own log is safe, as the policy in force has it.
    pub fn persisted_index(&self) -> u64 {
        self.raft.raft.raft_log.persisted
    }

    /// Highest index known to be committed.
    pub fn committed_index(&self) -> u64 {
        self.raft.raft.raft_log.committed
    }

    /// An index that every member holds: as counted by a leader, as last heard by a follower. Compacting beyond it
    /// leaves someone behind.
    pub fn match_index_min(&self) -> u64 {
        if !self.is_leader() {
            return self.everywhere;
        }
        self.raft.raft.prs().iter().map(|(_, progress)| progress.matched).min().unwrap_or(0)
    }

    /// An index that every member held when an earlier leader said so last.
    pub fn everywhere_before(&self) -> u64 {
        self.everywhere
    }

    /// Bytes of entries held in memory.
    pub fn log_bytes(&self) -> usize {
        self.raft.store().bytes()
    }

    /// Bytes of entries behind `index`; roughly, where they are not in memory any more.
    pub fn log_bytes_after(&self, index: u64) -> u64 {
        self.raft.store().bytes_after(index)
    }
}

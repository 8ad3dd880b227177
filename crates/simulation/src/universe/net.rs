//! The net between nodes, with all that can happen to a message on the way.

use super::{Universe, What};
use crate::machine::Inbound;

impl Universe {
    /// A message between nodes, with all that can happen to it on the way. Both ends' lives are those of a connection:
    /// what one life sent never reaches another.
    pub(crate) fn carry(&mut self, from: usize, to: usize, (link, core): (u16, u16), bytes: Vec<u8>) {
        if self.network.cut.contains(&(from, to)) {
            return;
        }
        if self.luck(self.faults.net_loss) {
            self.probes.reach("a message was lost");
            return;
        }
        // Links are streams: only what Raft is built to bear is doubled and reordered.
        let is_raft = bytes.first() == Some(&1);
        let copies = if is_raft && self.luck(self.faults.net_duplication) { 2 } else { 1 };
        if copies == 2 {
            self.probes.reach("a message came twice");
        }
        let life = self.machines[to].life;
        let Some(process) = &self.machines[to].process else { return };
        let speaker = self.machines[from].node;
        if process.removed.contains(&speaker) {
            // It hears so when it calls.
            return self.expel(from);
        }
        if !self.is_the_node(from, to) {
            return;
        }
        for _ in 0..copies {
            let mut delay = self.faults.net_delay_min + self.some(self.faults.net_jitter);
            if is_raft && self.luck(self.faults.net_straggler) {
                delay += self.some(100 * self.faults.net_jitter);
            }
            delay += self.network.slow.get(&(from, to)).copied().unwrap_or(0);
            let mut when = self.now + delay;
            if !is_raft {
                let last = self.network.stream_at.entry((from, to, link, core)).or_insert(0);
                when = when.max(*last + 1);
                *last = when;
            }
            let from = self.machines[from].node;
            let inbound = Inbound::Peer(from, bytes.clone());
            self.at(when, What::Arrive { machine: to, life, core, inbound });
        }
    }
}

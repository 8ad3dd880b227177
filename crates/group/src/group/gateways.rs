//! Whether those who hold locks here are still there.
//!
//! Locks of what is not yet prepared are in the hands of a gateway. One that dies leaves them behind, and all who want
//! the same keys would wait until such locks lapse by their age, which has to be long: an honest transaction may wait
//! for a lock in another group. So a leader asks the gateways on other nodes, as long as they hold or want locks. Who
//! says nothing for a few questions, or says that it has another life now, loses them. It is only a guess that may be
//! wrong: a gateway that lives after all finds its transaction refused, and begins it again.

use std::collections::{BTreeMap, BTreeSet};

use message::GatewayId;
use stdx::Instant;

use super::{Group, Held};
use crate::defect::Defect;
use crate::ids::Now;
use crate::limits;
use crate::output::Output;

/// What a leader knows of the gateways that hold or want locks.
#[derive(Debug, Default)]
pub(super) struct Gateways {
    asked: BTreeMap<GatewayId, Asked>,
}

#[derive(Debug)]
struct Asked {
    /// When last; at first when it was first seen.
    at: Instant,
    /// How often since it has answered.
    unanswered_count: u32,
}

impl Group {
    /// Asks the gateways that hold or want locks whether they live, and takes the locks of those who say nothing.
    pub(super) fn look_after_gateways(&mut self, now: Now, output: &mut impl Output) {
        let own = self.node.0;
        let holders = self.leader.locks.lapsable().filter(|holder| !self.state.prepared().contains_key(holder));
        let wanting = self.leader.held.iter().filter_map(|held| match held {
            Held::Lock(lock, ..) => Some(lock.transaction),
            Held::Request(_) => None,
        });
        let gateways = holders.chain(wanting).map(|transaction| transaction.gateway);
        let present: BTreeSet<GatewayId> = gateways.filter(|gateway| gateway.node != own).collect();
        self.leader.gateways.asked.retain(|gateway, _| present.contains(gateway));
        for gateway in present {
            let first = Asked { at: now.instant, unanswered_count: 0 };
            let asked = self.leader.gateways.asked.entry(gateway).or_insert(first);
            if now.instant.since(asked.at) < limits::GATEWAY_ASK_INTERVAL {
                continue;
            }
            if asked.unanswered_count >= limits::GATEWAY_ASKS_MAX {
                self.let_go_of(gateway, now, output);
                continue;
            }
            asked.at = now.instant;
            asked.unanswered_count += 1;
            output.ask_gateway(gateway, self.id);
        }
    }

    /// A gateway has answered, or another life of it has in its place.
    pub fn told_life(&mut self, gateway: GatewayId, is_alive: bool, now: Now, output: &mut impl Output) {
        if !is_alive {
            self.let_go_of(gateway, now, output);
        } else if let Some(asked) = self.leader.gateways.asked.get_mut(&gateway) {
            asked.unanswered_count = 0;
        }
    }

    /// Takes from a gateway all locks of what it has not prepared, and its places in the line for others.
    fn let_go_of(&mut self, gateway: GatewayId, now: Now, output: &mut impl Output) {
        self.leader.gateways.asked.remove(&gateway);
        if self.defect == Some(Defect::ForgottenLock) {
            return;
        }
        self.leader.held.retain(|held| match held {
            Held::Lock(lock, origin, _) if lock.transaction.gateway == gateway => {
                output.send_back(origin);
                false
            }
            _ => true,
        });
        let holders = self.leader.locks.lapsable().filter(|holder| holder.gateway == gateway);
        let lost: Vec<_> = holders.filter(|holder| !self.state.prepared().contains_key(holder)).collect();
        for transaction in lost {
            self.take_away(transaction, output);
        }
        self.admit_held(now, output);
    }
}

//! Which process is a node: one at a time.
//!
//! A data directory that is copied and started elsewhere speaks under the number of the node that it was copied from,
//! with a certificate as good as that one's. Nothing that it holds shows this: a node that has moved to another address
//! looks the same. What tells them apart is the other one. A process draws a number when it starts, its *life*. While
//! the life that is known is still heard, a second one is a copy: it is kept waiting until that is certain, and then
//! refused. Once the known one is silent, or has closed its connections, another life is the same node again.
//!
//! Every node judges by what it hears itself. See `docs/decisions/0029-one-life-of-a-node.md`.

use std::collections::{BTreeMap, VecDeque};

use group::ids::NodeId;
use stdx::Instant;

use crate::limits::{LIFE_PROOF, LIFE_PROOF_YOUNG, LIFE_SILENCE, LIFE_YOUNG, LIVES_MAX, LIVES_REFUSED_MAX};

/// What becomes of a process that speaks under a node's number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It is the node.
    Welcome,
    /// Another process was the node a moment ago: this one must ask again.
    Wait,
    /// Another process is the node, and speaks from this address.
    Copy {
        /// `HOST:PORT`; the port is that of a connection.
        address: String,
        /// It has not been told before.
        is_news: bool,
    },
}

/// The processes that are heard.
#[derive(Clone, Debug, Default)]
pub struct Lives {
    known: BTreeMap<NodeId, Known>,
}

#[derive(Clone, Debug)]
struct Known {
    life: u64,
    address: String,
    since: Instant,
    heard: Instant,
    /// It has closed its connections.
    is_gone: bool,
    /// Another life, and when it came.
    challenger: Option<(u64, Instant)>,
    /// Other lives that were copies, oldest first.
    refused: VecDeque<u64>,
}

impl Known {
    fn new(life: u64, address: &str, now: Instant) -> Self {
        Self {
            life,
            address: address.to_owned(),
            since: now,
            heard: now,
            is_gone: false,
            challenger: None,
            refused: VecDeque::new(),
        }
    }
}

impl Lives {
    /// A process greets under the number of a node, from this address.
    pub fn greet(&mut self, node: NodeId, life: u64, address: &str, now: Instant) -> Judgement {
        if self.known.len() > LIVES_MAX {
            self.known.retain(|_, known| !known.is_gone && now.since(known.heard) < LIFE_SILENCE);
        }
        let known = self.known.entry(node).or_insert_with(|| Known::new(life, address, now));
        if known.life == life {
            known.is_gone = false;
            known.heard = known.heard.max(now);
            address.clone_into(&mut known.address);
            return Judgement::Welcome;
        }
        if known.is_gone || now.since(known.heard) >= LIFE_SILENCE {
            *known = Known::new(life, address, now);
            return Judgement::Welcome;
        }
        if known.refused.contains(&life) {
            return Judgement::Copy { address: known.address.clone(), is_news: false };
        }
        let came = match known.challenger {
            Some((challenger, came)) if challenger == life => came,
            _ => {
                known.challenger = Some((life, now));
                now
            }
        };
        // One that has come a moment ago itself may be a copy that others are about to refuse.
        let is_young = came.since(known.since) < LIFE_YOUNG;
        let proof = if is_young { LIFE_PROOF_YOUNG } else { LIFE_PROOF };
        if known.heard.since(came) < proof {
            return Judgement::Wait;
        }
        known.challenger = None;
        if known.refused.len() == LIVES_REFUSED_MAX {
            known.refused.pop_front();
        }
        known.refused.push_back(life);
        Judgement::Copy { address: known.address.clone(), is_news: true }
    }

    /// A process that was welcome has said something.
    pub fn hear(&mut self, node: NodeId, life: u64, now: Instant) {
        if let Some(known) = self.known.get_mut(&node).filter(|known| known.life == life) {
            known.heard = known.heard.max(now);
        }
    }

    /// A process has closed all its connections.
    pub fn gone(&mut self, node: NodeId, life: u64) {
        if let Some(known) = self.known.get_mut(&node).filter(|known| known.life == life) {
            known.is_gone = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use stdx::Duration;

    use super::*;

    const NODE: NodeId = NodeId(7);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(1_000_000_000_000 + ms * 1_000_000)
    }

    /// Lets a life be heard every hundred milliseconds while another one greets, and answers when that is refused.
    fn contest(lives: &mut Lives, (heard, other): (u64, u64), from_ms: u64) -> Option<u64> {
        for ms in (from_ms..from_ms + 10_000).step_by(100) {
            lives.hear(NODE, heard, at(ms));
            match lives.greet(NODE, other, "b:2", at(ms)) {
                Judgement::Wait => {}
                Judgement::Welcome => return None,
                Judgement::Copy { address, is_news } => {
                    assert!(is_news && address == "a:1");
                    return Some(ms - from_ms);
                }
            }
        }
        panic!("it waits without end");
    }

    #[test]
    fn a_second_life_beside_one_that_is_heard_is_a_copy() {
        let mut lives = Lives::default();
        assert_eq!(lives.greet(NODE, 1, "a:1", at(0)), Judgement::Welcome);
        assert_eq!(contest(&mut lives, (1, 2), 20_000), Some(LIFE_PROOF.as_millis() as u64));
        let told = Judgement::Copy { address: "a:1".into(), is_news: false };
        assert_eq!(lives.greet(NODE, 2, "b:2", at(21_300)), told);
        assert_eq!(lives.greet(NODE, 1, "c:3", at(21_300)), Judgement::Welcome, "the node itself goes where it likes");
        // A copy of the copy is no better.
        lives.hear(NODE, 1, at(22_000));
        lives.greet(NODE, 1, "a:1", at(22_000));
        assert!(contest(&mut lives, (1, 3), 22_000).is_some());
    }

    #[test]
    fn a_node_that_starts_again_or_moves_is_the_same_node() {
        let mut lives = Lives::default();
        lives.greet(NODE, 1, "a:1", at(0));
        lives.hear(NODE, 1, at(5_000));
        // It has ended, and its connections with it.
        lives.gone(NODE, 1);
        assert_eq!(lives.greet(NODE, 2, "b:2", at(5_001)), Judgement::Welcome);
        // Its machine has lost power: nobody has closed anything.
        lives.hear(NODE, 2, at(20_000));
        for ms in (20_100..20_000 + LIFE_SILENCE.as_millis() as u64).step_by(100) {
            assert_eq!(lives.greet(NODE, 3, "c:3", at(ms)), Judgement::Wait);
        }
        assert_eq!(lives.greet(NODE, 3, "c:3", at(20_000) + LIFE_SILENCE), Judgement::Welcome);
        // What the old one had sent before is read late, and in one go.
        lives.hear(NODE, 2, at(21_500));
        assert_eq!(lives.greet(NODE, 3, "c:3", at(21_600)), Judgement::Welcome);
    }

    #[test]
    fn words_of_an_old_life_that_come_late_prove_nothing() {
        let mut lives = Lives::default();
        lives.greet(NODE, 1, "a:1", at(0));
        lives.hear(NODE, 1, at(30_000));
        assert_eq!(lives.greet(NODE, 2, "b:2", at(30_100)), Judgement::Wait);
        lives.hear(NODE, 1, at(30_000 + LIFE_PROOF.as_millis() as u64));
        assert_eq!(lives.greet(NODE, 2, "b:2", at(31_050)), Judgement::Wait);
        assert_eq!(lives.greet(NODE, 2, "b:2", at(32_500)), Judgement::Welcome);
    }

    #[test]
    fn one_that_has_just_come_itself_is_believed_less() {
        let mut lives = Lives::default();
        lives.greet(NODE, 1, "a:1", at(0));
        assert_eq!(contest(&mut lives, (1, 2), 100), Some(LIFE_PROOF_YOUNG.as_millis() as u64));
        assert_eq!(Duration::from_millis(0), at(1).since(at(2)), "clocks that are read on several threads");
    }
}

//! A change of membership: one member at a time, so that any two quorums before and after it share a member.

use bytes::Bytes;
use stdx::log::Membership;

/// A change of membership, as an entry of kind `Membership` holds it: one byte that says what, then the node in LEB128.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The node receives the log and does not vote.
    AddLearner(u64),
    /// The node votes.
    AddVoter(u64),
    /// The node takes no part any more.
    Remove(u64),
}

const ADD_LEARNER: u8 = 1;
const ADD_VOTER: u8 = 2;
const REMOVE: u8 = 3;

impl Change {
    /// The data of an entry.
    pub fn encode(self) -> Bytes {
        let (kind, mut node) = match self {
            Self::AddLearner(node) => (ADD_LEARNER, node),
            Self::AddVoter(node) => (ADD_VOTER, node),
            Self::Remove(node) => (REMOVE, node),
        };
        let mut out = vec![kind];
        while node >= 0x80 {
            out.push(node as u8 | 0x80);
            node >>= 7;
        }
        out.push(node as u8);
        out.into()
    }

    /// Reads the data of an entry.
    pub fn decode(data: &[u8]) -> Option<Self> {
        let (kind, rest) = data.split_first()?;
        let mut node = 0u64;
        for (place, byte) in rest.iter().enumerate() {
            let shift = 7 * u32::try_from(place).ok()?;
            node |= u64::from(byte & 0x7F).checked_shl(shift)?;
            if *byte < 0x80 {
                let is_all = place + 1 == rest.len() && node != 0;
                return match *kind {
                    _ if !is_all => None,
                    ADD_LEARNER => Some(Self::AddLearner(node)),
                    ADD_VOTER => Some(Self::AddVoter(node)),
                    REMOVE => Some(Self::Remove(node)),
                    _ => None,
                };
            }
        }
        None
    }

    /// Who takes part after it.
    pub fn fold(self, membership: &Membership) -> Membership {
        let mut after = membership.clone();
        let (Self::AddLearner(node) | Self::AddVoter(node) | Self::Remove(node)) = self;
        // As the library has it: a group is never left without a voter.
        if matches!(self, Self::Remove(_) | Self::AddLearner(_)) && after.voters == [node] {
            return after;
        }
        after.voters.retain(|other| *other != node);
        after.learners.retain(|other| *other != node);
        match self {
            Self::AddLearner(node) => after.learners.push(node),
            Self::AddVoter(node) => after.voters.push(node),
            Self::Remove(_) => {}
        }
        after.voters.sort_unstable();
        after.learners.sort_unstable();
        after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_read_as_it_was_written() {
        for node in [1, 127, 128, 1 << 40, u64::MAX >> 2] {
            for change in [Change::AddLearner(node), Change::AddVoter(node), Change::Remove(node)] {
                assert_eq!(Change::decode(&change.encode()), Some(change));
            }
        }
        for bytes in [&[][..], &[1], &[4, 1], &[1, 0], &[1, 0x81], &[1, 1, 1]] {
            assert_eq!(Change::decode(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn members_come_and_go_one_at_a_time() {
        let mut membership = Membership { voters: vec![1], ..Membership::default() };
        for (change, voters, learners) in [
            (Change::AddLearner(2), vec![1], vec![2]),
            (Change::AddVoter(2), vec![1, 2], vec![]),
            (Change::Remove(1), vec![2], vec![]),
            (Change::Remove(2), vec![2], vec![]),
        ] {
            membership = change.fold(&membership);
            assert_eq!((&membership.voters, &membership.learners), (&voters, &learners));
        }
    }
}

//! Who can be elected, worked out from what is on the nodes. A group of which half of the voters are damaged may have
//! to wait for its operator: the rules are those of decisions 0012 and 0023.

use std::collections::BTreeMap;

use consensus::Change;
use group::Group;

use super::Universe;

/// What decides who a replica votes for, and who votes for it.
#[derive(Clone, Debug)]
struct Elector {
    node: u64,
    /// Those who vote as far as it knows.
    voters: Vec<u64>,
    /// Nodes that vote once an entry of its log is committed, which it does not know to be: index, node.
    coming: Vec<(u64, u64)>,
    /// All of what its log would change is in `coming`.
    is_simple: bool,
    /// Term and index of the last entry of its log.
    end: (u64, u64),
    is_in_doubt: bool,
    /// Bits of its disk have turned.
    is_damaged: bool,
    leads: bool,
}

impl Elector {
    fn of(node: u64, group: &Group, is_damaged: bool) -> Option<Self> {
        let membership = group.membership();
        let changes: Vec<_> = group.changes_to_come().collect();
        let coming = changes.iter().filter_map(|(index, change)| match change {
            Some(Change::AddVoter(node)) => Some((*index, *node)),
            _ => None,
        });
        let coming: Vec<(u64, u64)> = coming.collect();
        Some(Self {
            node,
            is_simple: coming.len() == changes.len() && membership.voters_outgoing.is_empty(),
            coming,
            voters: membership.voters.clone(),
            end: group.end_of_log()?,
            is_in_doubt: group.may_lack_its_end(),
            is_damaged,
            leads: group.is_leader(),
        })
    }

    fn votes(&self) -> bool {
        self.voters.contains(&self.node)
    }
}

/// True if nobody of a group can be elected, for one reason only: half of those who vote or more have damaged logs, so
/// that all must agree to a leader; all of them are there; and one that was about to vote, and has not heard that it
/// does, has more than any of them.
fn waits_for_its_operator(electors: &[Elector]) -> bool {
    let by_node: BTreeMap<u64, &Elector> = electors.iter().map(|elector| (elector.node, elector)).collect();
    let Some(furthest) = electors.iter().filter(|elector| elector.votes()).max_by_key(|elector| elector.end) else {
        return false;
    };
    let voters: Option<Vec<&Elector>> = furthest.voters.iter().map(|node| by_node.get(node).copied()).collect();
    // Anything else than one voter that comes is another state.
    let (Some(voters), [(index, newcomer)], true) = (voters, furthest.coming.as_slice(), furthest.is_simple) else {
        return false;
    };
    let Some(newcomer) = by_node.get(newcomer) else { return false };
    let is_known_to_all = voters.iter().all(|voter| voter.votes() && voter.voters == furthest.voters);
    let doubtful = voters.iter().filter(|voter| voter.is_in_doubt);
    let has_lost_a_quorum = doubtful.clone().count() * 2 >= voters.len() && doubtful.clone().all(|it| it.is_damaged);
    // Otherwise it cannot have been committed that the newcomer votes, and the voters can do without it.
    let may_be_committed = voters.iter().filter(|voter| voter.end.1 >= *index).count() * 2 > voters.len();
    is_known_to_all
        && has_lost_a_quorum
        && may_be_committed
        && !newcomer.votes()
        && newcomer.end > furthest.end
        && electors.iter().all(|elector| !elector.leads)
}

impl Universe {
    /// True if there is a group that rightly has no leader although all of its voters are there.
    pub(super) fn has_its_end_at_a_learner(&self) -> bool {
        let mut electors: BTreeMap<u32, Vec<Elector>> = BTreeMap::new();
        for machine in &self.machines {
            let cores = machine.process.iter().flat_map(|process| &process.cores);
            for group in cores.flat_map(|host| host.core.groups()) {
                let elector = Elector::of(machine.node.0, group, machine.has_rotted);
                electors.entry(group.id().0).or_default().extend(elector);
            }
        }
        electors.values().any(|electors| waits_for_its_operator(electors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elector(node: u64, end: (u64, u64)) -> Elector {
        let (voters, coming) = (vec![1, 2], vec![(43, 3)]);
        Elector { node, voters, coming, is_simple: true, end, is_in_doubt: false, is_damaged: false, leads: false }
    }

    /// The first of two voters has lost the entry behind 47, which only the node has that was about to be the third.
    fn stranded() -> [Elector; 3] {
        let damaged = Elector { is_in_doubt: true, is_damaged: true, ..elector(1, (1, 47)) };
        [damaged, elector(2, (1, 44)), elector(3, (1, 48))]
    }

    #[test]
    fn a_group_whose_end_only_a_learner_has_waits_for_its_operator() {
        assert!(waits_for_its_operator(&stranded()));
    }

    #[test]
    fn a_group_that_only_differs_from_that_in_one_thing_does_not() {
        let without = |change: &dyn Fn(&mut [Elector; 3])| {
            let mut electors = stranded();
            change(&mut electors);
            waits_for_its_operator(&electors)
        };
        assert!(!without(&|all| all[0].is_in_doubt = false), "a quorum of whole logs");
        assert!(!without(&|all| all[0].is_damaged = false), "nothing explains the doubt");
        assert!(!without(&|all| all[1].end = (1, 48)), "all can vote for the second");
        assert!(!without(&|all| all[2].end = (1, 47)), "all can vote for the first");
        assert!(!without(&|all| all[1].end = (1, 42)), "the third cannot have become a voter");
        assert!(!without(&|all| all[2].voters.push(3)), "the third knows that it votes");
        assert!(!without(&|all| all[0].coming.clear()), "nobody asks the third");
        assert!(!without(&|all| all[2].leads = true), "there is a leader");
        let thirds = |all: &mut [Elector; 3]| all.iter_mut().for_each(|elector| elector.voters = vec![1, 2, 4]);
        assert!(!without(&thirds), "one of three is damaged, and one is not there");
    }

    #[test]
    fn nobody_waits_without_voters() {
        assert!(!waits_for_its_operator(&[]));
        let learners = stranded().map(|elector| Elector { voters: Vec::new(), ..elector });
        assert!(!waits_for_its_operator(&learners));
    }
}

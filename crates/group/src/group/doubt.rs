//! A replica that may lack the end of its log, since its node stopped uncleanly while acknowledgements did not wait for
//! the disk, or since the last record on its disk is damaged. Until a leader has told it the rest, its vote counts only
//! together with those of all voters: see `docs/decisions/0012-doubt.md` and `0023-damage-at-the-end.md`. Here is what
//! it says of that, and what an operator can do.

use consensus::Change;
use journal::{Identity, Recovered, RecoveredGroup};
use stdx::Instant;
use stdx::log::{EntryKind, Membership};

use super::Group;
use crate::ids::{Level, Now};
use crate::limits;
use crate::output::Output;

/// Who takes part in a group that was found in a data directory, as long as no checkpoint and no entry of its log says
/// more: who founded it, if this node was one of them.
pub fn first_membership(identity: &Identity, group: u32, found: &RecoveredGroup) -> Membership {
    match &found.membership {
        // Nobody, if it has been given up.
        Some(membership) => membership.clone(),
        None if identity.has_joined || group >= identity.group_count => Membership::default(),
        None => Membership { voters: vec![identity.node], ..Membership::default() },
    }
}

/// How many groups there are, as far as a data directory knows.
pub fn group_count(recovered: &Recovered) -> u32 {
    let last = recovered.groups.last_key_value().map_or(0, |(group, _)| group + 1);
    recovered.identity.group_count.max(last)
}

/// Who takes part in a group that was found in a data directory, by all of its log, whether or not it is committed.
pub fn membership_of(identity: &Identity, found: &RecoveredGroup) -> Membership {
    let founder = || first_membership(identity, 0, found);
    let membership = found.checkpoint.as_ref().map_or_else(founder, |mark| mark.membership.clone());
    let changes = found.entries.iter().filter(|entry| entry.kind == EntryKind::Membership);
    changes
        .filter_map(|entry| Change::decode(&entry.data))
        .fold(membership, |membership, change| change.fold(&membership))
}

/// True if every group that was found in a data directory has voters on other nodes, as far as it could be read: these
/// know what the directory lacks. Where nothing was found it goes by whether the node has joined others.
pub fn others_can_tell(identity: &Identity, groups: &[&RecoveredGroup]) -> bool {
    let has_others = |found: &&RecoveredGroup| {
        if found.is_vacated() {
            return true; // it holds nothing that could be lacking
        }
        let membership = membership_of(identity, found);
        // A member that has been told of nobody yet is told by the node that it joins.
        membership.voters.is_empty() || membership.voters.iter().any(|voter| *voter != identity.node)
    };
    if groups.is_empty() { identity.has_joined } else { groups.iter().all(has_others) }
}

impl Group {
    /// True if this replica may lack the end of its log, or has lost all of it.
    pub fn may_lack_its_end(&self) -> bool {
        self.replica.is_recovering() && (!self.is_vacant() || self.loss.commit > 0)
    }

    /// True if this replica may lack the end of its log, and nobody leads who could tell it the rest. One that holds
    /// nothing is no help to anybody, and is given a checkpoint.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.replica.is_recovering() && !self.is_vacant() && !self.is_led()
    }

    /// True if somebody leads, as far as this replica has heard lately. One that does not know yet that it votes asks
    /// nobody for a vote, and believes for good in the leader that it had last.
    fn is_led(&self) -> bool {
        let is_recent = |(_, heard): (u64, Instant)| self.last_tick.since(heard) < limits::MEMBER_SILENCE_MAX;
        self.replica.is_leader() || (self.replica.leader().is_some() && self.leadership.before.is_some_and(is_recent))
    }

    /// Tells what is waited for.
    pub(super) fn look_after_doubt(&mut self, now: Now, output: &mut impl Output) {
        if self.loss.is_overtaken {
            let line = format!(
                "group {}: the cluster has lost entries up to {} that this node holds: all nodes that vote stopped \
                 before they were on disk. This node cannot follow any more. Remove it from the cluster, and let it \
                 join again with an empty directory; what it holds stays in the directory it has now",
                self.id.0,
                self.applied()
            );
            output.fatal(line);
            return;
        }
        if !self.is_in_doubt() {
            self.loss.doubt_told = now.instant;
            return;
        }
        if now.instant.since(self.loss.doubt_told) < limits::DOUBT_TOLD_INTERVAL {
            return;
        }
        self.loss.doubt_told = now.instant;
        let missing: Vec<String> = self.replica.missing_voters().iter().map(u64::to_string).collect();
        let missing = missing.join(", ");
        let line = format!(
            "group {}: nobody leads, and this node may lack the end of its log: what was not on its disk when it \
             stopped, or was damaged there. It needs all nodes that vote, to find who has most; not heard, or ahead of \
             this node: {missing}. If one of them is lost for good, HOLDFAST TRUST on the others lets them go on with \
             what they have",
            self.id.0
        );
        output.log(Level::Warning, line);
    }

    /// An operator says that what this replica has is whole, even if it is nothing. False if that is not in question.
    pub fn trust(&mut self) -> bool {
        let is_question = self.replica.is_recovering() && self.replica.may_vote() && !self.is_led();
        if is_question {
            self.replica.trust();
        }
        is_question
    }
}

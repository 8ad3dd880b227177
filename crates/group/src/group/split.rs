//! A group's part in splits: as the one from which another group splits off, and as that one.

use std::collections::BTreeSet;

use consensus::Role;
use message::GroupId;
use message::entry::Born;
use message::roster::Roster;
use state::SplitOff;
use stdx::log::HardState;
use stdx::slot::{SLOT_COUNT, Slot};
use stdx::{Duration, Instant};

use super::{Group, LEVEL_OF_SPLITS};
use crate::defect::Defect;
use crate::group_seed::NewGroup;
use crate::group_status::Halves;
use crate::ids::Now;
use crate::output::NodeView;
use crate::output::Output;
use crate::timeline::Kind;

/// For how long a leader's node stands for a group that has split off, at every tick, unless somebody leads it.
const STANDS_FOR: Duration = Duration::from_secs(2);

/// What a replica knows of splits, beside what all replicas agree on.
#[derive(Debug, Default)]
pub(super) struct Splits {
    /// Groups that have split off and begin with what the log of this one has made of their slots: they have no
    /// checkpoint of their own here.
    unkept: BTreeSet<GroupId>,
    /// Groups that have split off and are not there yet on this node.
    unborn: BTreeSet<GroupId>,
    /// Turns of this group since it began by a split, up to two.
    turns: u8,
    /// The group from which this one has split off, as long as this one has no checkpoint here.
    pub(super) parent: Option<GroupId>,
    /// Where it has split off, until that has been told along with what it does.
    withheld: Option<Born>,
    /// It has been given up here before: what it began with is not what it is.
    pub(super) was_given_up: bool,
    /// Until then this replica stands for the group.
    stands_until: Instant,
    /// This replica may have lacked the end of its log when that was looked at last.
    was_in_doubt: bool,
    /// What is behind this entry came after that.
    doubted_until: u64,
    /// A checkpoint has come: nobody here comes with the beginnings of groups that had split off before it.
    pub(super) has_passed: bool,
}

impl Splits {
    /// Of a group that has split off there, if it has and has no checkpoint of its own yet, and from which these have,
    /// which have none.
    pub(super) fn new(born: Option<Born>, unkept: BTreeSet<GroupId>, was_given_up: bool) -> Self {
        Self { unkept, parent: born.map(|born| born.parent), withheld: born, was_given_up, ..Self::default() }
    }

    /// The group has been given up here.
    pub(super) fn give_up(&mut self) {
        (self.was_given_up, self.stands_until) = (true, Instant::ZERO);
    }
}

impl Group {
    // ---- the one from which another splits off ----------------------------------------------------------------------

    /// True while the beginning of another group is in this one's log alone: then no checkpoint may pass over it.
    pub(crate) fn holds_beginnings(&self) -> bool {
        !self.splits.unkept.is_empty()
    }

    /// Where the group would be split, if it is too large, and nothing is under way with which a split would meet.
    pub(super) fn halves(&self, context: &impl NodeView) -> Option<Halves> {
        let bytes_max = context.balance_split_bytes();
        let is_too_large = bytes_max > 0 && self.state.keyspace().memory_bytes() as u64 > bytes_max;
        let is_understood = self.leader.builder.level() >= LEVEL_OF_SPLITS;
        if !is_too_large || !is_understood || !context.roster().is_balancing() || context.roster().is_ending(self.id) {
            return None;
        }
        // What is to go elsewhere goes first: afterwards there may be nothing to split.
        let is_at_rest = !self.replica.is_changing()
            && !self.is_giving_slots(context.roster())
            && !self.holds_beginnings()
            && !self.has_unborn()
            && !self.rests_on_parent();
        if !is_at_rest {
            return None;
        }
        let held = (0..SLOT_COUNT as u16).map(Slot).filter(|slot| self.state.slots().group_of_slot(*slot) == self.id);
        let sizes: Vec<_> = held.map(|slot| (slot, self.state.keyspace().slot_bytes(slot) as u64)).collect();
        Halves::of(&sizes)
    }

    /// The next group that must split off from this one, and with which slots.
    pub(super) fn next_split(&self, roster: &Roster) -> Option<(GroupId, Vec<Slot>)> {
        let group = roster.children(self.id).find(|group| self.state.split_index(*group).is_none())?;
        let wanted = roster.wanted().filter(|(.., wanted)| *wanted == group);
        let wanted = wanted.flat_map(|(first, last, _)| (first..=last).map(Slot));
        Some((group, wanted.filter(|slot| self.state.slots().group_of_slot(*slot) == self.id).collect()))
    }

    /// A group has split off here, or could not.
    pub(super) fn note_split(&mut self, group: GroupId, split: Option<SplitOff>, output: &mut impl Output) {
        let Some(mut split) = split else { return };
        if self.defect == Some(Defect::LostTail) {
            split.lose_tail();
        }
        let slot_count = split.moved.len();
        if self.checkpointing.is_walking() {
            // What it has not written yet has gone.
            self.stop_checkpoint(output);
            self.want_checkpoint();
        }
        // One that a leader is giving would pass over what the new group begins with.
        if !self.is_installing() {
            self.stop_taking(output);
        }
        self.note_moved(split.moved.clone());
        self.splits.unkept.insert(group);
        self.splits.unborn.insert(group);
        if self.is_serving {
            let text = format!("splits off from group {}, with {slot_count} slots", self.id.0);
            output.happened(Kind::Placement, Some(group), text);
        }
        // If what this replica lacked was behind the split, the other group may have been here, and have said
        // something.
        let is_in_doubt =
            self.replica.is_recovering() || self.splits.was_in_doubt || split.born.index <= self.splits.doubted_until;
        let membership = self.members.applied.clone();
        let new = NewGroup { split, membership, leads: self.is_serving, is_in_doubt };
        output.split_off(group, new);
    }

    /// A group that had split off does not need this one's log any more.
    pub fn beginning_kept(&mut self, group: GroupId) {
        // One of its own spares the next start the keys that have gone, which are in the older one as well.
        if self.splits.unkept.remove(&group) && self.splits.unkept.is_empty() {
            self.want_checkpoint();
        }
        self.splits.unborn.remove(&group);
    }

    /// A group that had split off is there on this node.
    pub fn note_begun(&mut self, group: GroupId) {
        self.splits.unborn.remove(&group);
    }

    /// True while a group that has split off is not there yet on this node.
    pub fn has_unborn(&self) -> bool {
        !self.splits.unborn.is_empty()
    }

    // ---- the one that has split off ---------------------------------------------------------------------------------

    /// True as long as what this group began with is in the log of the other one alone.
    pub(crate) fn rests_on_parent(&self) -> bool {
        self.splits.parent.is_some()
    }

    /// Where this group has split off, for readers of what it does: once.
    pub fn take_untold(&mut self) -> Option<Born> {
        self.splits.withheld.take()
    }

    /// True if this replica has never held anything of the group: it can begin with what another group gives it.
    pub fn was_never_anything(&self) -> bool {
        self.replica.is_vacant()
            && !self.is_vacating()
            && !self.is_installing()
            && !self.splits.was_given_up
            && self.loss.commit == 0
    }

    /// Makes room for a replica that begins with what another group gives it: what this one has promised. None if it
    /// stays, being more than nothing.
    pub fn leave_for_split(&mut self, now: Now, output: &mut impl Output) -> Option<HardState> {
        if !self.was_never_anything() {
            return None;
        }
        self.stop_taking(output);
        self.decline_all(now, output);
        Some(self.replica.vacated_hard_state())
    }

    /// The node stands for this group. The group's other members begin about now.
    pub fn stand(&mut self, now: Now) {
        self.splits.stands_until = now.instant + STANDS_FOR;
        self.replica.campaign();
    }

    /// Time passes for a group that has split off, or from which others have.
    pub(super) fn look_after_splits(&mut self, now: Now, output: &mut impl Output) {
        let is_in_doubt = self.replica.is_recovering();
        if std::mem::replace(&mut self.splits.was_in_doubt, is_in_doubt) || is_in_doubt {
            self.splits.doubted_until = self.replica.committed_index();
        }
        let has_none = self.splits.parent.is_some() && self.log.marked_index == 0;
        if has_none && !self.checkpointing.is_running() && !self.checkpointing.is_resting(now) {
            self.want_checkpoint(); // it may have failed, or been stopped
        }
        if let Some(parent) = self.splits.parent
            && self.splits.turns < 2
        {
            // In the first of them it has told what it does.
            self.splits.turns += 1;
            if self.splits.turns == 2 {
                output.split_begun(parent, self.id);
            }
        }
        if self.log.marked_index > 0
            && let Some(parent) = self.splits.parent.take()
        {
            output.split_kept(parent, self.id);
        }
        if std::mem::take(&mut self.splits.has_passed) {
            let groups: Vec<GroupId> =
                self.state.split_groups().filter(|group| !self.splits.unkept.contains(group)).collect();
            output.splits_passed(&groups);
        }
    }

    /// A tick of a group that has just split off.
    pub(super) fn stand_again(&mut self) {
        let is_open = self.replica.leader().is_none() && self.replica.role() == Role::Follower;
        if self.last_tick < self.splits.stands_until && is_open {
            self.replica.campaign();
        }
    }
}

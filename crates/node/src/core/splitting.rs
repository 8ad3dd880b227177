//! Groups that split off from groups of this core. See [`crate::splitting`].

use group::group_seed::{GroupSeed, NewGroup};
use group::host::Persist;
use group::ids::GroupId;
use group::router;
use journal::Append;
use keyspace::Moment;
use state::FIRST;
use stdx::log::HardState;

use crate::core::Core;
use crate::core_messages::CoreMessage;
use crate::event::Action;
use crate::founding::{Begun, FIRST_TICKET};
use crate::limits;
use crate::splitting::{Splitting, first_entry};

impl Core {
    /// A group of this core has split off from another one.
    pub(crate) fn take_split_off(&mut self, new: NewGroup, actions: &mut Vec<Action>) {
        let group = new.split.state.group();
        self.make_room_for(group.0 + 1);
        if let Some(seed) = self.splitting.waiting.remove(&group) {
            self.splitting.early.insert(group, new);
            return self.load(seed, actions);
        }
        let is_there = self.group_mut(group).is_some();
        if !is_there && group.0 < self.splitting.host_count {
            self.splitting.early.insert(group, new);
            return;
        }
        let parent = new.split.born.parent;
        let (mut hard_state, mut is_new) = (HardState::default(), true);
        if is_there {
            let now = self.now;
            let mut left = None;
            self.with_group(group, actions, |group, output| left = group.leave_for_split(now, output));
            let Some(known) = left else {
                // It is more than a beginning already, or becomes so by a checkpoint.
                self.context.free_later(new.split.state.into_keyspace());
                let home = router::core_of(parent, self.context.core_count);
                return self.outbox.push(self.context.core, home, CoreMessage::SplitKept { parent, group });
            };
            (hard_state, is_new) = (known, known == HardState::default());
            let place = group.0 as usize / usize::from(self.context.core_count);
            self.groups[place] = None;
        }
        let entry = first_entry(&new, new.split.state.level());
        hard_state = HardState { term: hard_state.term.max(FIRST.term), commit: FIRST.index, ..hard_state };
        actions.push(Action::Append {
            append: Append {
                group: group.0,
                ticket: FIRST_TICKET,
                hard_state: Some(hard_state),
                membership: Some(new.membership.clone()),
                entries: vec![entry.clone()],
            },
            persist: Persist::Synced,
        });
        let membership = new.membership.clone();
        self.founding.begun.insert(group, Begun { membership, hard_state, entry, is_new, new: Some(new) });
    }

    /// Bytes of keyspaces that no group uses any more, and that have not been freed yet.
    pub(crate) fn unused_bytes(&self) -> u64 {
        self.context.memory.unused.iter().map(|keyspace| keyspace.memory_bytes() as u64).sum()
    }

    /// Frees a part of the keyspaces that no group uses any more. True if there is more. While groups are loaded nobody
    /// waits for anything here: all of it goes at once.
    pub(crate) fn free_unused(&mut self) -> bool {
        let is_loaded = self.is_loaded();
        let unused = &mut self.context.memory.unused;
        if !is_loaded {
            unused.clear();
        }
        if let Some(keyspace) = unused.last_mut()
            && !keyspace.collect(Moment::default(), limits::FREED_PER_TURN)
        {
            unused.pop();
        }
        !unused.is_empty()
    }

    /// Gives a group that was found on the disk what it begins with, if it needs that. None if that has yet to come.
    pub(crate) fn with_beginning(&mut self, mut seed: GroupSeed, actions: &mut Vec<Action>) -> Option<GroupSeed> {
        let Some(born) = seed.born() else { return Some(seed) };
        match self.splitting.early.remove(&seed.group) {
            Some(new) if new.split.born == born => {
                seed.beginning = Some(Box::new(new.split));
                Some(seed)
            }
            // The split that it began with was lost by all others, and came again.
            Some(new) => {
                let line = format!(
                    "group {}: it began at entry {} of group {}, which has been lost: it splits off at entry {} now. \
                     Remove this node from the cluster, and let it join again with an empty directory",
                    seed.group.0, born.index, born.parent.0, new.split.born.index
                );
                actions.push(Action::Fatal { line });
                None
            }
            None => {
                let group = seed.group;
                self.splitting.waiting.insert(group, seed);
                self.refuse_passed(actions);
                None
            }
        }
    }

    /// A group has been loaded: if its beginning has come meanwhile, that is seen to.
    pub(crate) fn settle_early(&mut self, group: GroupId, actions: &mut Vec<Action>) {
        if let Some(new) = self.splitting.early.remove(&group) {
            self.take_split_off(new, actions);
        }
    }

    /// Whether a new group may have promised something before that is not known any more.
    pub(crate) fn may_have_promised(&self) -> bool {
        self.splitting.is_in_doubt
    }

    /// The replica here of the group from which these split off was given a checkpoint that passes over it.
    pub(crate) fn pass_over_splits(&mut self, groups: &[GroupId], actions: &mut Vec<Action>) {
        self.splitting.passed.extend(groups.iter().copied());
        self.refuse_passed(actions);
    }

    /// The log that a group rests on is kept until the group has a checkpoint of its own. If a group waits for its
    /// beginning after that has been passed over, it would wait without end: the directory is damaged.
    fn refuse_passed(&self, actions: &mut Vec<Action>) {
        let Splitting { passed, waiting, .. } = &self.splitting;
        if let Some(group) = passed.iter().find(|group| waiting.contains_key(group)) {
            let line =
                format!("group {}: what it began with when it split off is not in this directory any more", group.0);
            actions.push(Action::Fatal { line });
        }
    }

    /// True if this node may be among those that vote since a group began, whether or not it holds anything of it: a
    /// founder, or any that held the group from which this one split off.
    pub(crate) fn may_vote_first(&self, group: GroupId) -> bool {
        let (roster, node) = (&self.context.roster, self.context.node);
        roster.parent(group).is_some() || roster.founders(group).is_some_and(|voters| voters.contains(&node.0))
    }

    /// True if the replica of a group takes no part: it hears nobody, and says nothing.
    ///
    /// One that begins with a split waits until the replica of the other group, which is behind, has applied that. One
    /// that was given up since the group was merged is not filled again: its leader may not have heard of that, and
    /// would give it a checkpoint from before the end. With enough of them the group would go on without its end. For
    /// the same reason an empty replica waits until this node knows the cluster.
    pub(crate) fn stays_out(&mut self, group: GroupId) -> bool {
        let roster = &self.context.roster;
        let may_be_gone = roster.is_gone(group) || roster.is_empty() && group != GroupId(0);
        if may_be_gone && self.group_mut(group).is_some_and(|group| group.is_vacant()) {
            return true;
        }
        let Some(parent) = self.context.roster.parent(group) else { return false };
        let is_here = self.context.routes.get(parent.0 as usize).is_some_and(|route| route.is_here);
        is_here
            && !self.splitting.passed.contains(&group)
            && self.group_mut(group).is_some_and(|group| group.was_never_anything())
    }
}

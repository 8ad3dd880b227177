//! Groups that come into being while the node runs. See [`crate::founding`].

use std::collections::BTreeSet;
use std::sync::Arc;

use group::group_seed::GroupSeed;
use group::host::Persist;
use group::ids::GroupId;
use group::replica_reads::AppliedPosition;
use group::requests::Route;
use group::router;
use journal::Append;
use keyspace::{Keyspace, Layout};
use stdx::log::Membership;

use crate::core::Core;
use crate::event::Action;
use crate::founding::{Begun, FIRST_TICKET, beginning};

impl Core {
    /// There are at least so many groups.
    pub(crate) fn make_room_for(&mut self, group_count: u32) {
        let context = &mut self.context;
        if group_count <= context.group_count {
            return;
        }
        context.group_count = group_count;
        let count = group_count as usize;
        context.routes.resize(count, Route::default());
        context.places.resize(count, AppliedPosition::default());
        self.heard_positions.resize(count, AppliedPosition::default());
        self.relay.grow(group_count);
        let (core, core_count) = (usize::from(context.core.0), usize::from(context.core_count));
        self.groups.resize_with(count.saturating_sub(core).div_ceil(core_count), || None);
    }

    /// A group counts for clients as soon as it is led.
    pub(crate) fn count_led(&mut self) {
        let gone = |group: u32| self.context.roster.is_gone(GroupId(group));
        let led = |count: u32| {
            self.context.routes.get(count as usize).is_some_and(|route| route.leader.is_some() || gone(count))
        };
        let known = self.context.slots.group_count();
        let count = (known..).find(|count| !led(*count)).unwrap_or(known);
        if count > known {
            Arc::make_mut(&mut self.context.slots).grow(count);
        }
    }

    /// Makes replicas of the groups that the roster names and that are not here yet.
    pub(crate) fn look_for_founded(&mut self, actions: &mut Vec<Action>) {
        let roster = Arc::clone(&self.context.roster);
        let group_count = roster.group_count(self.context.slots.first_count());
        self.make_room_for(group_count);
        for group in (self.founding.looked_at..group_count).map(GroupId) {
            self.founding.looked_at = group.0 + 1;
            if router::core_of(group, self.context.core_count) != self.context.core {
                continue;
            }
            if self.group_mut(group).is_some() || self.founding.begun.contains_key(&group) {
                continue; // it has split off before the roster told of it
            }
            let is_first = |voters: &&BTreeSet<u64>| voters.contains(&self.context.node.0) && !roster.is_gone(group);
            match roster.founders(group).filter(is_first) {
                Some(voters) => {
                    let voters = voters.iter().copied().collect();
                    self.begin_group(group, Membership { voters, ..Membership::default() }, actions);
                }
                None => {
                    // One that splits off may vote before it holds anything.
                    let is_recovering = roster.parent(group).is_some() && self.may_have_promised();
                    let seed = GroupSeed { is_recovering, ..self.empty_seed(group) };
                    self.load(seed, actions);
                }
            }
        }
    }

    /// Writes down with what a group begins.
    fn begin_group(&mut self, group: GroupId, membership: Membership, actions: &mut Vec<Action>) {
        let (hard_state, entry) = beginning();
        actions.push(Action::Append {
            append: Append {
                group: group.0,
                ticket: FIRST_TICKET,
                hard_state: Some(hard_state),
                membership: Some(membership.clone()),
                entries: vec![entry.clone()],
            },
            persist: Persist::Synced,
        });
        self.founding.begun.insert(group, Begun { membership, hard_state, entry, is_new: false, new: None });
    }

    /// The beginning of a group is durable.
    pub(crate) fn finish_founding(&mut self, group: GroupId, ticket: u64, actions: &mut Vec<Action>) {
        if ticket != FIRST_TICKET {
            return; // of the vacant replica that was there before
        }
        let Some(Begun { membership, hard_state, entry, is_new, new }) = self.founding.begun.remove(&group) else {
            return;
        };
        let (beginning, leads, is_recovering) = match new {
            Some(new) => (Some(Box::new(new.split)), new.leads, new.is_in_doubt),
            None => (None, false, false),
        };
        let seed = GroupSeed {
            membership,
            hard_state,
            entries: vec![entry],
            beginning,
            is_new,
            is_recovering,
            ..self.empty_seed(group)
        };
        self.load(seed, actions);
        let now = self.now;
        if leads && let Some(group) = self.group_mut(group) {
            group.stand(now);
        }
    }

    /// A group of which nothing is here.
    fn empty_seed(&self, group: GroupId) -> GroupSeed {
        let keyspace = Keyspace::new(keyspace::Options {
            databases: self.context.settings.databases,
            hash_seed: self.founding.hash_seed,
            layout: Layout::Slots,
            tuning: self.context.settings.tuning(),
        });
        GroupSeed { membership: Membership::default(), ..GroupSeed::new(group, self.context.node, keyspace) }
    }
}

//! Groups that split off from others while the cluster serves, without a copy of what they hold.
//!
//! That there is such a group, and from which it splits off, is an item of the log of group 0. Every node makes a
//! vacant replica of it, which serves nobody. It votes as any voter with an empty log, as long as it has never held
//! anything of the group: the others may count it among their voters. The split itself is an entry of the other
//! group's log:
//!
//! ```text
//!   core of the other group                      core of the new group
//!     │ applies the split: tables, answers to        │ a vacant replica
//!     │ requests with an id, … of the slots          │
//!     │────────────── what it begins with ──────────▶│ its first entry, voters, commitment: to the disk
//!     │ makes no checkpoint, takes none,             │ durable: the replica is made, with what has come
//!     │ and is not given up                          │ makes a checkpoint
//!     │◀───────────── has a checkpoint ──────────────│
//! ```
//!
//! Until the new group has a checkpoint of its own on this node, its beginning is what the other group's log has
//! made of the slots up to the split. So that log is kept, by making no checkpoint behind the split. A start finds
//! the first entry of the new group, which says where that is, counts the other group's log as committed up to
//! there ([`commit_splits`]), applies it, and comes by the same tables again.
//!
//! A replica that is behind gets the new group's beginning when it applies the split, and stays out until then. If
//! it was given a checkpoint that passes over the split, the new group's leader gives it one as well, as to any
//! member that has nothing.

use std::collections::{BTreeMap, BTreeSet};

use journal::RecoveredGroup;
use keyspace::Moment;
use message::entry::{Born, Builder};
use state::FIRST;
use stdx::Level;
use stdx::log::{Entry, EntryKind};

use group::group_seed::{GroupSeed, NewGroup};
use group::ids::GroupId;

/// What a core knows of groups that split off.
#[derive(Default)]
pub(crate) struct Splitting {
    /// Groups below this number are brought by the host.
    pub(crate) host_count: u32,
    /// What groups begin with that the host has not brought yet.
    pub(crate) early: BTreeMap<GroupId, NewGroup>,
    /// Groups that were found on the disk and wait for what they begin with.
    pub(crate) waiting: BTreeMap<GroupId, GroupSeed>,
    /// Groups that nobody here begins: the replica of the other group was given a checkpoint from behind the split.
    pub(crate) passed: BTreeSet<GroupId>,
    /// This node may have lost what it had acknowledged before it was started.
    pub(crate) is_in_doubt: bool,
}

impl Splitting {
    /// The host brings so many groups.
    pub(crate) fn new(host_count: u32) -> Self {
        Self { host_count, ..Self::default() }
    }
}

/// Where each of these groups has split off counts as committed in the log of the other one: its own first entry was
/// written when that was so. Answers by the other one which groups rest on its log: see [`GroupSeed::unkept`].
pub fn commit_splits(groups: &mut BTreeMap<u32, RecoveredGroup>) -> BTreeMap<u32, BTreeSet<GroupId>> {
    let born: Vec<(u32, Born)> = groups.iter().filter_map(|(group, found)| Some((*group, born_of(found)?))).collect();
    let mut unkept: BTreeMap<u32, BTreeSet<GroupId>> = BTreeMap::new();
    for (group, Born { parent, index }) in born {
        if let Some(found) = groups.get_mut(&parent.0)
            && found.entries.last().is_some_and(|last| last.index >= index)
        {
            found.hard_state.commit = found.hard_state.commit.max(index);
            if found.checkpoint.as_ref().is_none_or(|mark| mark.index < index) {
                unkept.entry(parent.0).or_default().insert(GroupId(group));
            }
        }
    }
    unkept
}

/// Where a group has split off that has no checkpoint of its own yet.
pub(crate) fn born_of(found: &RecoveredGroup) -> Option<Born> {
    let first = found.entries.first().filter(|first| first.index == FIRST.index && found.checkpoint.is_none())?;
    Born::of_entry(&first.data)
}

/// The first entry of the log of a group that has split off.
pub(crate) fn first_entry(new: &NewGroup, level: Level) -> Entry {
    let mut builder = Builder::with_capacity(0);
    builder.set_level(level);
    builder.born(new.split.born);
    let moment = Moment { unix: new.split.state.moment().unix, seed: 0 };
    Entry { term: FIRST.term, index: FIRST.index, kind: EntryKind::Normal, data: builder.finish(moment) }
}

#[cfg(test)]
mod tests {
    use keyspace::Keyspace;
    use state::SplitOff;
    use std::sync::Arc;
    use stdx::log::Membership;

    use crate::core::Core;
    use crate::limits;

    use group::ids::{CoreId, NodeId, Now};
    use keyspace::{Layout, Options, Tuning};
    use resp::{Args, Protocol, Span};
    use state::{Beginnings, Position, State};
    use stdx::{Instant, Levels, UnixMillis};

    use super::*;
    use crate::event::{CoreOptions, Event};
    use crate::reports::ProcessFacts;
    use crate::settings::Settings;

    fn empty_keyspace() -> Keyspace {
        Keyspace::new(Options { databases: 1, hash_seed: 7, layout: Layout::Slots, tuning: Tuning::default() })
    }

    /// What a replica that is behind comes by: the group has been given a checkpoint before it applies the split.
    #[test]
    fn what_a_group_that_is_there_was_to_begin_with_is_freed_in_steps() {
        let now = Now { instant: Instant::from_nanos(1), unix: UnixMillis(1_700_000_000_000) };
        let mut core = Core::new(CoreOptions {
            levels: Levels::KNOWN,
            floor: Levels::KNOWN.highest,
            node: NodeId(1),
            core: CoreId(0),
            core_count: 1,
            group_count: 2,
            hash_seed: 7,
            founds_groups: false,
            seed: 1,
            settings: Arc::new(Settings::default()),
            process: Arc::new(ProcessFacts::default()),
            is_own_host_unknown: false,
            own: crate::roster::Member::default(),
            machine_addresses: [].into(),
            seeds: Vec::new(),
            stopwatch: || Instant::ZERO,
        });
        let mut actions = Vec::new();
        for group in [0, 1] {
            let seed = GroupSeed::new(GroupId(group), NodeId(1), empty_keyspace());
            core.step(now, Event::Loaded(Box::new(seed)), &mut actions);
        }
        core.pretend_loaded();
        let mut builder = Builder::default();
        for number in 0..3 * limits::FREED_PER_TURN {
            let words = format!("setkey{number}1").into_bytes();
            let last = words.len() as u32 - 1;
            let spans = [(0, 3), (3, last), (last, last + 1)].map(|(start, end)| Span { start, end });
            builder.command(Protocol::Resp2, 0, Args::new(&words, &spans));
        }
        let data = builder.finish(Moment { unix: now.unix, seed: 0 });
        let mut state = State::new(GroupId(1), 2, empty_keyspace());
        state.load(&[], Position::default());
        state.apply(&Entry { term: 1, index: 1, kind: EntryKind::Normal, data }, &mut Beginnings::default());
        let split = SplitOff { born: Born { parent: GroupId(0), index: 9 }, state, moved: Vec::new() };
        let membership = Membership { voters: vec![1], ..Membership::default() };
        let new = NewGroup { split, membership, leads: true, is_in_doubt: false };
        core.take_split_off(new, &mut actions);
        let mut sizes = vec![core.unused_bytes()];
        assert!(sizes[0] > 1 << 20, "{sizes:?}");
        while !core.context.memory.unused.is_empty() {
            core.step(now, Event::Turn, &mut actions);
            sizes.push(core.unused_bytes());
        }
        assert!((3..20).contains(&sizes.len()) && sizes.is_sorted_by(|more, less| more > less), "{sizes:?}");
    }
}

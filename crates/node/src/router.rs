//! From words to groups.

use command::Refusal;
use resp::Args;
use stdx::slot::{SLOT_COUNT, Slot, slot_of};

use crate::event::{CoreId, GroupId};

/// The group that holds a slot: slots are divided evenly, in order.
#[inline]
pub fn group_of_slot(slot: Slot, group_count: u32) -> GroupId {
    GroupId(u32::from(slot.0) * group_count / SLOT_COUNT as u32)
}

/// The group that holds a key.
#[inline]
pub fn group_of(key: &[u8], group_count: u32) -> GroupId {
    if group_count == 1 { GroupId(0) } else { group_of_slot(slot_of(key), group_count) }
}

/// Refuses a SORT whose patterns may name keys of other groups than that of the key that is sorted. A hash tag before
/// the star tells where all keys of a pattern live.
///
/// # Errors
/// Redis's words for a cluster.
pub fn check_sort(args: Args<'_>, group_count: u32) -> Result<(), Refusal> {
    for (option, pattern) in keyspace::sort_patterns(args).filter(|_| group_count > 1) {
        let before = pattern.split(|&byte| byte == b'*').next().unwrap_or_default();
        let tag = before.iter().position(|&byte| byte == b'{').map(|open| &before[open + 1..]);
        let is_tagged = tag.is_some_and(|tag| tag.iter().position(|&byte| byte == b'}').is_some_and(|len| len > 0));
        if !is_tagged || group_of(before, group_count) != group_of(args.at(1), group_count) {
            return Err(Refusal::new(format!("ERR {option} option of SORT denied in Cluster mode.")));
        }
    }
    Ok(())
}

/// The first slot of a group.
pub fn first_slot_of(group: GroupId, group_count: u32) -> u32 {
    (group.0 * SLOT_COUNT as u32).div_ceil(group_count)
}

/// The core of a node on which a group lives.
#[inline]
pub fn core_of(group: GroupId, core_count: u16) -> CoreId {
    CoreId((group.0 % u32::from(core_count)) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_one_group_and_groups_are_runs_of_slots() {
        for group_count in [1, 2, 3, 5, 8, 64] {
            let mut last = GroupId(0);
            for slot in 0..SLOT_COUNT as u16 {
                let group = group_of_slot(Slot(slot), group_count);
                assert!(group == last || group.0 == last.0 + 1);
                if group != last {
                    assert_eq!(first_slot_of(group, group_count), u32::from(slot));
                }
                last = group;
            }
            assert_eq!(last.0, group_count - 1);
        }
    }
}

//! From words to groups.

use command::Flag;
use keyspace::DataCommand;
use message::slots::SlotMap;
use resp::Args;

use crate::ids::{CoreId, GroupId};

/// True for SORT and its like, if patterns name other keys.
#[inline]
pub fn is_sort_by_keys(command: &DataCommand, args: Args<'_>) -> bool {
    command.has(Flag::MovableKeys)
        && matches!(command.name, "sort" | "sort_ro")
        && keyspace::sort_patterns(args).next().is_some()
}

/// The option of a SORT with a pattern that may name keys of other groups than that of the key that is sorted. A hash
/// tag before the star tells where all keys of a pattern live.
pub fn far_option_of_sort(args: Args<'_>, slots: &SlotMap) -> Option<&'static str> {
    let mut patterns = keyspace::sort_patterns(args).filter(|_| slots.group_count() > 1);
    patterns.find(|(_, pattern)| is_far(pattern, args, slots)).map(|(option, _)| option)
}

/// What stands before the star of the first such pattern.
pub fn far_pattern_of_sort<'a>(args: Args<'a>, slots: &SlotMap) -> Option<&'a [u8]> {
    let mut patterns = keyspace::sort_patterns(args).filter(|_| slots.group_count() > 1);
    let (_, pattern) = patterns.find(|(_, pattern)| is_far(pattern, args, slots))?;
    pattern.split(|&byte| byte == b'*').next()
}

fn is_far(pattern: &[u8], args: Args<'_>, slots: &SlotMap) -> bool {
    let before = pattern.split(|&byte| byte == b'*').next().unwrap_or_default();
    let tag = before.iter().position(|&byte| byte == b'{').map(|open| &before[open + 1..]);
    let is_tagged = tag.is_some_and(|tag| tag.iter().position(|&byte| byte == b'}').is_some_and(|len| len > 0));
    !is_tagged || slots.group_of(before) != slots.group_of(args.at(1))
}

/// True for a SORT that reads keys which may lie in any group: it is a transaction, which finds out as it runs.
#[inline]
pub fn is_far_sort(command: &DataCommand, args: Args<'_>, slots: &SlotMap) -> bool {
    is_sort_by_keys(command, args) && far_option_of_sort(args, slots).is_some()
}

/// The core of a node on which a group lives.
#[inline]
pub fn core_of(group: GroupId, core_count: u16) -> CoreId {
    CoreId((group.0 % u32::from(core_count)) as u16)
}

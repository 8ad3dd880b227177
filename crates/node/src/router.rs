//! From words to groups.

use command::Refusal;
use resp::Args;

use crate::event::{CoreId, GroupId};
use crate::slots::SlotMap;

/// Refuses a SORT whose patterns may name keys of other groups than that of the key that is sorted. A hash tag before
/// the star tells where all keys of a pattern live.
///
/// # Errors
/// Redis's words for a cluster.
pub fn check_sort(args: Args<'_>, slots: &SlotMap) -> Result<(), Refusal> {
    for (option, pattern) in keyspace::sort_patterns(args).filter(|_| slots.group_count() > 1) {
        let before = pattern.split(|&byte| byte == b'*').next().unwrap_or_default();
        let tag = before.iter().position(|&byte| byte == b'{').map(|open| &before[open + 1..]);
        let is_tagged = tag.is_some_and(|tag| tag.iter().position(|&byte| byte == b'}').is_some_and(|len| len > 0));
        if !is_tagged || slots.group_of(before) != slots.group_of(args.at(1)) {
            return Err(Refusal::new(format!("ERR {option} option of SORT denied in Cluster mode.")));
        }
    }
    Ok(())
}

/// The core of a node on which a group lives.
#[inline]
pub fn core_of(group: GroupId, core_count: u16) -> CoreId {
    CoreId((group.0 % u32::from(core_count)) as u16)
}

//! Answers to numbered requests that a group keeps, where they are no reply of the protocol.
//!
//! Clients' replies begin with a letter or a sign of the protocol; these begin with a byte that none of them has.

use stdx::leb128;
use stdx::slot::{SLOT_COUNT, Slot};

use crate::GroupId;
use crate::slots::Moved;

/// First byte of an answer that says where a slot is.
const MOVED: u8 = 0;

/// First byte of an answer that is for the gateway and not for its client.
pub const FOR_GATEWAY: u8 = 1;

/// Says that libraries or parameters have been changed, or not, with the reply for the client.
pub fn put_changed(version: u64, reply: &[u8]) -> Vec<u8> {
    let mut out = vec![FOR_GATEWAY];
    leb128::put(&mut out, version);
    out.extend_from_slice(reply);
    out
}

/// Reads what [`put_changed`] wrote; a reply alone is about no change.
pub fn take_changed(bytes: &[u8]) -> (u64, &[u8]) {
    let Some(mut rest) = bytes.strip_prefix(&[FOR_GATEWAY]) else { return (0, bytes) };
    (leb128::take(&mut rest).unwrap_or(0), rest)
}

/// Says where a slot is.
pub fn put_moved(moved: &Moved) -> Vec<u8> {
    let mut out = vec![MOVED];
    moved.put(&mut out);
    out
}

/// Reads what [`put_moved`] wrote; nothing if it is something else.
pub fn take_moved(bytes: &[u8]) -> Option<Moved> {
    read_moved(&mut bytes.strip_prefix(&[MOVED])?)
}

/// Reads what [`Moved::put`] wrote, from bytes of another node; nothing if it is something else.
pub fn read_moved(rest: &mut &[u8]) -> Option<Moved> {
    let slot = u16::try_from(leb128::take(rest)?).ok().filter(|slot| usize::from(*slot) < SLOT_COUNT)?;
    let group = u32::try_from(leb128::take(rest)?).ok()?;
    Some(Moved { slot: Slot(slot), group: GroupId(group), epoch: leb128::take(rest)? })
}

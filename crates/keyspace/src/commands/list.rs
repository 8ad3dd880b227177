//! Commands on lists.

mod block;
mod change;
mod pop;
mod push;
mod read;

use command::Refusal;

use super::DataCommand;
use super::arguments::{integer, is};
use crate::End;

pub(super) const COMMANDS: &[&DataCommand] = &[
    &block::BLMOVE,
    &block::BLMOVEM,
    &block::BLMPOP,
    &block::BLPOP,
    &block::BRPOP,
    &block::BRPOPLPUSH,
    &change::LINSERT,
    &change::LREM,
    &change::LSET,
    &change::LTRIM,
    &pop::LMOVE,
    &pop::LMOVEM,
    &pop::LMPOP,
    &pop::LPOP,
    &pop::RPOP,
    &pop::RPOPLPUSH,
    &push::LPUSH,
    &push::LPUSHX,
    &push::RPUSH,
    &push::RPUSHX,
    &read::LINDEX,
    &read::LLEN,
    &read::LPOS,
    &read::LRANGE,
];

/// `LEFT` or `RIGHT`.
pub(super) fn end(word: &[u8]) -> Result<End, Refusal> {
    match () {
        () if is(word, "left") => Ok(End::Left),
        () if is(word, "right") => Ok(End::Right),
        () => Err(Refusal::SYNTAX),
    }
}

/// The index of an item of a list of `len`, of which negative ones count from the end.
fn index(word: &[u8], len: usize) -> Result<Option<usize>, Refusal> {
    let index = integer(word)?;
    let index = if index < 0 { index.saturating_add(len as i64) } else { index };
    Ok(usize::try_from(index).ok().filter(|&index| index < len))
}

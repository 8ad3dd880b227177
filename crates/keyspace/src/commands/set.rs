//! Sets: members, each once.

mod algebra;
mod member;
mod random;

use command::{Access, Begin, Find, KeySpec};

use super::DataCommand;

/// Every set command.
pub(super) const COMMANDS: &[&DataCommand] = &[
    &member::SADD,
    &member::SREM,
    &member::SMOVE,
    &member::SISMEMBER,
    &member::SMISMEMBER,
    &member::SCARD,
    &member::SMEMBERS,
    &member::SSCAN,
    &random::SPOP,
    &random::SRANDMEMBER,
    &algebra::SINTER,
    &algebra::SINTERCARD,
    &algebra::SINTERSTORE,
    &algebra::SUNION,
    &algebra::SUNIONSTORE,
    &algebra::SDIFF,
    &algebra::SDIFFSTORE,
];

/// The word at `index` is a key.
const fn key_at(index: usize, access: Access, notes: &'static [&'static str]) -> KeySpec {
    KeySpec { access, begin: Begin::Index(index), find: Find::Range { last: 0, step: 1, limit: 0 }, notes }
}

/// Every word from `index` on is a key.
const fn keys_from(index: usize, access: Access, notes: &'static [&'static str]) -> KeySpec {
    KeySpec { access, begin: Begin::Index(index), find: Find::Range { last: -1, step: 1, limit: 0 }, notes }
}

#[cfg(test)]
mod tests;

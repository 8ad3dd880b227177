//! Sets: members, each once.

mod algebra;
mod member;
mod random;

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
    &algebra::SUNIONCARD,
    &algebra::SDIFFCARD,
    &algebra::SINTERSTORE,
    &algebra::SUNION,
    &algebra::SUNIONSTORE,
    &algebra::SDIFF,
    &algebra::SDIFFSTORE,
];

#[cfg(test)]
mod tests;

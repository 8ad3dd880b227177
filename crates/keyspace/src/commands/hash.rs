//! Hashes: fields, each with a value.

mod get;
mod incr;
mod random;
mod set;

use super::DataCommand;

/// Every hash command.
pub(super) const COMMANDS: &[&DataCommand] = &[
    &set::HSET,
    &set::HMSET,
    &set::HSETNX,
    &set::HDEL,
    &get::HGET,
    &get::HMGET,
    &get::HGETALL,
    &get::HKEYS,
    &get::HVALS,
    &get::HLEN,
    &get::HSTRLEN,
    &get::HEXISTS,
    &get::HSCAN,
    &incr::HINCRBY,
    &incr::HINCRBYFLOAT,
    &random::HRANDFIELD,
];

#[cfg(test)]
mod tests;

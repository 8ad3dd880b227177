//! Hashes: fields, each with a value, and with a deadline if it has been given one.

mod expire;
mod fields;
mod get;
mod incr;
mod random;
mod set;
mod together;
mod ttl;

use super::DataCommand;

pub(super) use expire::{HEXPIRE_OF_LEVEL_1, HEXPIREAT_OF_LEVEL_1, HPEXPIRE_OF_LEVEL_1, HPEXPIREAT_OF_LEVEL_1};
pub(super) use together::{HGETEX_OF_LEVEL_1, HSETEX_OF_LEVEL_1};

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
    &expire::HEXPIRE,
    &expire::HPEXPIRE,
    &expire::HEXPIREAT,
    &expire::HPEXPIREAT,
    &expire::HPERSIST,
    &ttl::HTTL,
    &ttl::HPTTL,
    &ttl::HEXPIRETIME,
    &ttl::HPEXPIRETIME,
    &together::HGETEX,
    &together::HSETEX,
    &together::HGETDEL,
];

#[cfg(test)]
mod tests;

#[cfg(test)]
mod expiry_tests;

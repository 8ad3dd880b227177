//! Strings: values that are bytes, or numbers written in decimal.

mod compare;
mod get;
mod incr;
mod increx;
mod lcs;
mod mset;
mod range;
mod set;

use command::{Access, Begin, Find, KeySpec};

use super::key_specs::key_at;

use super::DataCommand;

/// Every string command.
pub(super) const COMMANDS: &[&DataCommand] = &[
    &set::SET,
    &set::SETNX,
    &set::SETEX,
    &set::PSETEX,
    &set::GETSET,
    &compare::DIGEST,
    &compare::DELEX,
    &compare::DELIFEQ,
    &get::GET,
    &get::GETDEL,
    &get::GETEX,
    &get::STRLEN,
    &mset::MGET,
    &mset::MSET,
    &mset::MSETNX,
    &mset::MSETEX,
    &range::APPEND,
    &range::GETRANGE,
    &range::SUBSTR,
    &range::SETRANGE,
    &incr::INCR,
    &incr::DECR,
    &incr::INCRBY,
    &incr::DECRBY,
    &incr::INCRBYFLOAT,
    &increx::INCREX,
    &lcs::LCS,
];

/// The word behind the name is the only key.
pub(super) const fn first_key(access: Access, notes: &'static [&'static str]) -> KeySpec {
    key_at(1, access, notes)
}

/// Every `step`th word behind the name is a key.
const fn every_key(access: Access, step: usize, notes: &'static [&'static str]) -> KeySpec {
    KeySpec { access, begin: Begin::Index(1), find: Find::Range { last: -1, step, limit: 0 }, notes }
}

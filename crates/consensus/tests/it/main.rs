//! What a group's replicas do, told as plays and checked at the edges.

#![expect(clippy::disallowed_methods, reason = "the test reads its plays from files; the crate does not")]

mod cluster;
mod cost;
mod hostile;
mod plays;
mod reproducible;

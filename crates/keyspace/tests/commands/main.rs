//! Does every data command behave as Redis does?
//!
//! One corpus of stories under `scenarios/commands`, told to a keyspace and to a reference Redis; the records compared
//! with what Redis says of its commands; every valid invocation that a record's syntax allows; and long random
//! conversations in which both must say the same. Whatever needs a reference is passed over, with a notice, where no
//! `redis-server` is installed.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the tests read stories from files and start a reference server; what they test does neither"
)]

mod conversation;
mod dumps;
mod fuzz;
mod keys;
mod local;
mod newer;
mod records;
mod reference;
mod sketches;
mod stories;
mod successors;
mod syntax;
mod versions;
mod words;

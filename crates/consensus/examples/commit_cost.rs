//! Prints what one propose → persist → commit cycle of a single voter costs:
//! `cargo run --release -p consensus --example commit_cost`.
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "a measurement needs a clock")]

use std::time::Instant;

use bytes::Bytes;
use consensus::{Options, Replica, Seed};
use stdx::log::Membership;

fn main() {
    let membership = Membership { voters: vec![1], ..Membership::default() };
    let mut replica = Replica::new(Options::new(1, 0, 1), Seed { membership, ..Seed::default() }).expect("a new voter");
    let data = Bytes::from(vec![7; 160]);
    let rounds = 2_000_000_u32;
    for pass in 0..3 {
        let start = Instant::now();
        let mut committed = 0;
        for round in 0..rounds {
            replica.propose(data.clone()).expect("a single voter leads");
            while let Some(ready) = replica.take_ready() {
                if let Some(append) = ready.append {
                    replica.persisted(append.ticket);
                }
                committed = ready.committed.last().map_or(committed, |entry| entry.index);
            }
            if round % 1_024 == 0 {
                replica.compact(committed);
            }
        }
        println!(
            "pass {pass}: {:.0} ns a cycle, {committed} committed",
            start.elapsed().as_nanos() as f64 / f64::from(rounds)
        );
    }
}

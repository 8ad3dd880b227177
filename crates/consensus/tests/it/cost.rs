//! What a commit costs where nobody else must agree.

use bytes::Bytes;
use consensus::{Options, Replica, Seed};
use stdx::log::Membership;

/// One proposal, durable at once, through to its commitment. Returns the index committed.
fn cycle(replica: &mut Replica, data: &Bytes) -> u64 {
    replica.propose(data.clone()).expect("a single voter leads");
    let mut committed = 0;
    while let Some(ready) = replica.take_ready() {
        if let Some(append) = ready.append {
            replica.persisted(append.ticket);
        }
        committed = ready.committed.last().map_or(committed, |entry| entry.index);
    }
    committed
}

fn single() -> Replica {
    let membership = Membership { voters: vec![1], ..Membership::default() };
    let mut replica = Replica::new(Options::new(1, 0, 1), Seed { membership, ..Seed::default() }).expect("a new voter");
    while let Some(ready) = replica.take_ready() {
        if let Some(append) = ready.append {
            replica.persisted(append.ticket);
        }
    }
    replica
}

/// The count is exact, so the test needs no clock: each proposal is committed by the cycle that made it, in two
/// readies.
#[test]
fn a_single_voter_commits_what_it_proposes_at_once() {
    let mut replica = single();
    let data = Bytes::from_static(b"SET city Lisbon");
    for round in 0..10_000 {
        assert_eq!(cycle(&mut replica, &data), round + 2, "entry 1 is the new leader's own");
        if round % 1_000 == 0 {
            replica.compact(replica.committed_index());
        }
    }
    assert!(replica.log_bytes() < 1_000 * 100, "compaction frees memory");
}

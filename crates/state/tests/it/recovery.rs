//! What becomes of a group when all other nodes are lost.

use message::entry::Effect;
use message::roster::Member;
use message::{GroupId, NodeId, TransactionId};
use state::recovery::judge;
use state::{Ignored, Lookup, State};

use crate::{Claimed, GATEWAY, Log, command, key_of_first_group, keyspace};

/// What a group knows of a transaction.
#[derive(Clone, Copy, Debug)]
enum Knows {
    Nothing,
    Prepared,
    Committed,
    Aborted,
}

fn group(number: u32, knows: Knows, transaction: TransactionId) -> State {
    let mut log = Log::default();
    log.entry(1_000, |builder| {
        let key = format!("key-of-{number}").into_bytes();
        let effects = [Effect::Key { database: 0, key, exported: None }];
        match knows {
            Knows::Nothing => builder.tick(),
            Knows::Prepared => builder.prepare(transaction, &[0, 1], &effects),
            Knows::Committed => {
                builder.prepare(transaction, &[0, 1], &effects);
                builder.resolve(transaction, true, 0);
            }
            Knows::Aborted => builder.refuse(transaction),
        }
    });
    let mut state = State::new(GroupId(number), 2, keyspace());
    log.entries.iter().for_each(|entry| state.apply(entry, &mut Ignored));
    state
}

#[test]
fn a_prepared_transaction_ends_in_the_same_way_in_all_groups_that_still_have_their_part() {
    let transaction = TransactionId { gateway: GATEWAY, number: 5 };
    let mut rows = String::new();
    for other in [Knows::Nothing, Knows::Prepared, Knows::Committed, Knows::Aborted] {
        let mut states = [group(0, Knows::Prepared, transaction), group(1, other, transaction)];
        let judged = judge(&states);
        let verdict = &judged[&transaction];
        rows += &format!("{other:?}: committed {} torn {}\n", verdict.is_committed(), verdict.is_torn());
        for state in &mut states {
            state.begin_anew(&judged, NodeId(3));
            assert!(state.prepared().is_empty());
        }
    }
    assert_eq!(
        rows,
        "\
Nothing: committed false torn false
Prepared: committed true torn false
Committed: committed true torn false
Aborted: committed false torn false
"
    );
    // A group of which nothing is there has lost its part of what another one has committed.
    let third = TransactionId { gateway: GATEWAY, number: 6 };
    let mut log = Log::default();
    let effects = [Effect::Key { database: 0, key: b"key".to_vec(), exported: None }];
    log.entry(1_000, |builder| builder.prepare(third, &[0, 1, 2], &effects));
    let mut first = State::new(GroupId(0), 3, keyspace());
    first.apply(&log.entries[0], &mut Ignored);
    let mut log = Log::default();
    log.entry(1_000, |builder| {
        builder.prepare(third, &[0, 1, 2], &effects);
        builder.resolve(third, true, 0);
    });
    let mut second = State::new(GroupId(1), 3, keyspace());
    second.apply(&log.entries[0], &mut Ignored);
    let judged = judge([&first, &second]);
    assert!(judged[&third].is_committed() && judged[&third].is_torn());
    assert_eq!(judged[&third].unknown, [GroupId(2)]);
}

#[test]
fn what_was_kept_for_the_old_cluster_goes_and_the_data_stay() {
    let (key, _) = key_of_first_group();
    let mut log = Log::default();
    log.entry(1_000, |builder| {
        for node in [3, 7, 8] {
            let member = Member { cluster_address: format!("host:{node}"), ..Member::default() };
            builder.enlist(NodeId(node), &member);
        }
        builder.prefer(GroupId(1), Some(NodeId(7)));
        builder.configure(&message::parameters::encode([("maxmemory", "1")].into_iter()));
        builder.claim(Claimed { gateway: GATEWAY, number: 9, floor: 3 });
        command(builder, &format!("set {key} value"));
    });
    let mut state = State::new(GroupId(0), 2, keyspace());
    state.apply(&log.entries[0], &mut Ignored);
    let keys = state.keyspace().digest();
    state.begin_anew(&judge([&state]), NodeId(3));
    assert_eq!(state.keyspace().digest(), keys);
    assert!([3, 7, 8].iter().all(|node| state.roster().is_removed(NodeId(*node))));
    assert_eq!((state.roster().present().count(), state.roster().preferred(GroupId(1))), (0, None));
    assert_eq!(state.parameters().iter().collect::<Vec<_>>(), [("maxmemory", "1")]);
    assert!(matches!(state.replies().look(GATEWAY, 9), Lookup::New));
}

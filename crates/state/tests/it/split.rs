//! A group splits off from another one, as an entry of that one's log.

use std::collections::{BTreeMap, BTreeSet};

use message::entry::{self, Born, Durability};
use state::{Beginnings, FIRST, SplitOff};
use stdx::slot::SLOT_COUNT;

use super::*;

const NEW: GroupId = GroupId(2);

/// Key by key what a state holds: database, key, version, exported value.
fn contents(state: &State) -> BTreeMap<(u16, Vec<u8>), (u64, Vec<u8>)> {
    let (keyspace, moment) = (state.keyspace(), state.moment());
    let mut found = BTreeMap::new();
    for database in 0..keyspace.database_count() {
        keyspace.for_each(database, moment, |entry| {
            let exported = keyspace.export(database, entry.key(), moment).expect("it exists");
            found.insert((database, entry.key().to_vec()), (entry.version(), exported));
        });
    }
    found
}

/// A log that fills the slots of group 0 of two with keys of all kinds.
fn filled() -> (Log, State) {
    let (mut log, mut state) = (Log::default(), state());
    let mut number = 0;
    for round in 0..40 {
        log.entry(1_000 + round, |builder| {
            builder.set_level(Level(2));
            if round == 0 {
                builder.rise(Level(2));
            }
            for _ in 0..25 {
                number += 1;
                let key = format!("key{number}");
                if slot_of(key.as_bytes()).0 >= 8_192 {
                    continue;
                }
                match number % 6 {
                    0 => command(builder, &format!("SET {key} {number}")),
                    1 => command(builder, &format!("SET {key} {number} PXAT {}", 2_000 + number % 7)),
                    2 => (0..200).for_each(|field| command(builder, &format!("HSET {key} field{field} {number}"))),
                    3 => {
                        command(builder, &format!("HSET {key} a 1 b 2"));
                        command(builder, &format!("HPEXPIREAT {key} 2003 FIELDS 1 a"));
                    }
                    4 => command(builder, &format!("RPUSH {key} a b c")),
                    _ => {
                        command(builder, &format!("SET {key} 1"));
                        command(builder, &format!("DEL {key}"));
                    }
                }
            }
        });
        state.apply(log.entries.last().expect("just pushed"), &mut Ignored);
    }
    (log, state)
}

fn split(log: &mut Log, state: &mut State, unix_ms: i64, runs: &[(Slot, Slot)]) -> Option<SplitOff> {
    let mut beginnings = Beginnings::default();
    let entry = log.entry(unix_ms, |builder| {
        builder.set_level(Level(2));
        builder.split(NEW, runs);
    });
    state.apply(entry, &mut beginnings);
    beginnings.take(NEW, Born { parent: GroupId(0), index: state.applied().index })
}

#[test]
fn both_hold_together_what_one_held_and_each_what_is_of_its_slots() {
    let (mut log, mut state) = filled();
    let before = contents(&state);
    let memory = state.keyspace().memory_bytes();
    let sequence = state.keyspace().sequence();
    let runs = [(Slot(100), Slot(100)), (Slot(4_096), Slot(8_191))];
    let SplitOff { born, state: mut new, moved } =
        split(&mut log, &mut state, 1_100, &runs).expect("nothing is in the way");
    assert_eq!((born, new.group(), new.applied()), (Born { parent: GroupId(0), index: 41 }, NEW, FIRST));
    assert_eq!((moved.len(), state.split_index(NEW)), (4_097, Some(41)));
    let is_gone = |key: &[u8]| slot_of(key).0 == 100 || slot_of(key).0 >= 4_096;
    let (kept, gone) = (contents(&state), contents(&new));
    assert!(kept.keys().all(|(_, key)| !is_gone(key)) && gone.keys().all(|(_, key)| is_gone(key)));
    assert!(!kept.is_empty() && !gone.is_empty());
    let mut both = kept.clone();
    both.extend(gone);
    assert_eq!(both, before);
    // All sums divide: keys, deadlines, bytes.
    let count_of = |state: &State| (state.keyspace().key_count(0), state.keyspace().expiring_count(0));
    let (mine, its) = (count_of(&state), count_of(&new));
    assert!(mine.1 > 0 && its.1 > 0);
    assert_eq!(mine.0 + its.0, before.len());
    assert_eq!(state.keyspace().sequence(), sequence);
    assert_eq!(new.keyspace().sequence(), sequence);
    // The slots of one more table.
    let overhead = 16_384 * 96;
    assert!((state.keyspace().memory_bytes() + new.keyspace().memory_bytes()).abs_diff(memory) < overhead);
    for slot in (0..SLOT_COUNT as u16).map(Slot) {
        let holder = state.slots().group_of_slot(slot);
        assert_eq!(holder, new.slots().group_of_slot(slot));
        let is_new = slot.0 == 100 || (4_096..8_192).contains(&slot.0);
        assert_eq!(holder == NEW, is_new, "{slot:?}");
        assert_eq!(state.slots().epoch_of(slot), u64::from(is_new));
    }
    // What has a deadline goes in both, by the clock of each log.
    for state in [&mut state, &mut new] {
        let moment = Moment { unix: UnixMillis(3_000), seed: 0 };
        while state.upkeep().collect(moment, 100) {}
        assert_eq!((state.keyspace().expiring_count(0), state.keyspace().expiring_hash_count(0)), (0, 0));
    }
}

#[test]
fn a_replay_and_a_checkpoint_come_by_the_same() {
    let (mut log, mut state) = filled();
    let runs = [(Slot(0), Slot(3_000))];
    let new = split(&mut log, &mut state, 1_100, &runs).expect("nothing is in the way").state;
    // From the beginning of the log, and from a checkpoint in its middle.
    for from in [0, 20] {
        let mut again = super::state();
        let mut beginnings = Beginnings::default();
        for entry in &log.entries {
            if entry.index == from {
                let mut records = Vec::new();
                again.upkeep().begin_checkpoint();
                while !again.upkeep().checkpoint_step(1_000, &mut records) {}
                let mut copy = keyspace();
                copy.restore(&records).expect("just written");
                let mut loaded = State::new(GroupId(0), 2, copy);
                loaded.load(&again.save(), again.applied());
                again = loaded;
            }
            again.apply(entry, &mut beginnings);
        }
        let born = Born { parent: GroupId(0), index: again.applied().index };
        assert!(beginnings.take(NEW, Born { index: 3, ..born }).is_none(), "it was not born there");
        let mut second = Beginnings::default();
        let mut again = super::state();
        log.entries.iter().for_each(|entry| again.apply(entry, &mut second));
        let found = second.take(NEW, born).expect("it split off").state;
        assert_eq!((again.digest(), found.digest()), (state.digest(), new.digest()));
    }
    // A checkpoint of the new group holds all of it, and one of the other that it has split off.
    for (state, group) in [(&mut state, GroupId(0)), (&mut { new }, NEW)] {
        let mut records = Vec::new();
        state.upkeep().begin_checkpoint();
        while !state.upkeep().checkpoint_step(1_000, &mut records) {}
        let mut copy = keyspace();
        copy.restore(&records).expect("just written");
        let mut loaded = State::new(group, 2, copy);
        loaded.load(&state.save(), state.applied());
        assert_eq!(loaded.digest(), state.digest(), "{group:?}");
        assert_eq!(loaded.split_groups().count(), usize::from(group == GroupId(0)));
    }
}

#[test]
fn a_checkpoint_under_way_is_given_up_and_the_next_one_holds_what_is_left() {
    let (mut log, mut state) = filled();
    state.upkeep().begin_checkpoint();
    assert!(!state.upkeep().checkpoint_step(10, &mut Vec::new()));
    split(&mut log, &mut state, 1_100, &[(Slot(0), Slot(3_000))]).expect("nothing is in the way");
    assert_eq!(state.keyspace().checkpoint_progress(), None);
}

#[test]
fn nothing_splits_off_while_a_prepared_transaction_touches_it_or_what_is_held_elsewhere() {
    let (mut log, mut state) = (Log::default(), state());
    let (key, slot) = key_of_first_group();
    let transaction = TransactionId { gateway: GATEWAY, number: 1 };
    let effect = |key: &str| Effect::Key { database: 0, key: key.into(), exported: None };
    state.apply(log.entry(1, |builder| builder.rise(Level(2))), &mut Ignored);
    let prepare = |builder: &mut Builder, effects: &[Effect]| builder.prepare(transaction, &[0, 1], effects);
    for effects in [vec![effect(&key)], vec![Effect::Flush { database: 3 }]] {
        state.apply(log.entry(2, |builder| prepare(builder, &effects)), &mut Ignored);
        let before = state.digest();
        assert!(split(&mut log, &mut state, 3, &[(slot, slot)]).is_none());
        assert_eq!((state.digest(), state.split_index(NEW)), (before, None));
        state.apply(log.entry(4, |builder| builder.resolve(transaction, false, 2)), &mut Ignored);
    }
    assert!(split(&mut log, &mut state, 5, &[(Slot(8_192), Slot(8_192))]).is_none(), "group 1 holds it");
    assert!(split(&mut log, &mut state, 5, &[(slot, slot)]).is_some());
    assert!(split(&mut log, &mut state, 5, &[(Slot(1), Slot(1))]).is_none(), "it is there");
    let known: BTreeSet<GroupId> = state.split_groups().collect();
    assert_eq!(known, [NEW].into());
}

#[test]
fn answers_to_requests_with_an_id_go_with_their_slots_and_the_book_stays() {
    let (mut log, mut state) = (Log::default(), state());
    let (key, slot) = key_of_first_group();
    let other = Slot(if slot.0 == 0 { 1 } else { 0 });
    state.apply(log.entry(1, |builder| builder.rise(Level(2))), &mut Ignored);
    let request = |slot: Slot| RequestId { slot, id: format!("id{}", slot.0).into(), digest: 7 };
    let answers = [slot, other].map(|slot| {
        Effect::Answer(Box::new(Answered { request: request(slot), ms: 1_000, reply: b"+OK\r\n".to_vec() }))
    });
    let transaction = TransactionId { gateway: GATEWAY, number: 1 };
    state.apply(log.entry(2, |builder| builder.install(transaction, &answers)), &mut Ignored);
    let claimed = Claimed { gateway: GATEWAY, number: 5, floor: 1 };
    let write = |builder: &mut Builder| {
        builder.claim(claimed);
        command(builder, &format!("SET {key} 1"));
    };
    state.apply(log.entry(3, write), &mut Ignored);
    let new = split(&mut log, &mut state, 4, &[(slot, slot)]).expect("nothing is in the way").state;
    assert_eq!((state.request_ids().count(), new.request_ids().count()), (1, 1));
    assert!(state.request_ids().byte_count() > 0 && new.request_ids().byte_count() > 0);
    assert_eq!(new.request_ids().look(&request(slot)), state::Known::Answered(b"+OK\r\n"));
    assert_eq!(state.request_ids().look(&request(other)), state::Known::Answered(b"+OK\r\n"));
    assert_eq!(state.replies().look(GATEWAY, 5), Lookup::Answered(b"+OK\r\n"));
    assert_eq!(new.replies().look(GATEWAY, 5), Lookup::New);
}

/// Adds an item to an entry.
type Fill<'a> = &'a dyn Fn(&mut Builder);

#[test]
fn what_says_which_group_holds_what_is_on_disk_before_it_counts() {
    let durability_of = |fill: Fill<'_>| {
        let mut builder = Builder::default();
        builder.set_level(Level(2));
        builder.set_durability(Durability::Memory);
        fill(&mut builder);
        entry::durability(&builder.finish(Moment { unix: UnixMillis(5), seed: 6 }))
    };
    let transaction = TransactionId { gateway: GATEWAY, number: 4 };
    let give = Effect::Give(Moved { slot: Slot(7), group: GroupId(1), epoch: 1 });
    let flush = Effect::Flush { database: 0 };
    let (slots, nodes) = ([(Slot(1), Slot(2))], BTreeSet::from([1]));
    let kept: [(&str, Fill<'_>); 7] = [
        ("a move", &|builder| builder.prepare(transaction, &[0, 1], std::slice::from_ref(&give))),
        ("what its maker wants kept", &|builder| {
            builder.must_be_kept();
            builder.resolve(transaction, true, 0);
        }),
        ("want", &|builder| builder.want(slots[0], GroupId(1))),
        ("place", &|builder| builder.place(GroupId(1), &nodes)),
        ("found", &|builder| builder.found(GroupId(1), &nodes)),
        ("divide", &|builder| builder.divide(GroupId(1), GroupId(0), &slots)),
        ("split", &|builder| builder.split(GroupId(1), &slots)),
    ];
    for (what, fill) in kept {
        assert_eq!(durability_of(fill), Durability::Disk, "{what}");
    }
    let prepare = |builder: &mut Builder| builder.prepare(transaction, &[0, 1], std::slice::from_ref(&flush));
    assert_eq!(durability_of(&prepare), Durability::Memory);
}

//! Flipped bits, cut files, missing files: told with file and offset, or harmless.

use bytes::Bytes;
use journal::{Append, CheckpointMark, Disk, Fault, Journal};
use stdx::Prng;
use stdx::log::{Entry, EntryKind, HardState};

use crate::memory_disk::MemoryDisk;
use crate::model::{Groups, Step, apply, draw, options, options_among_peers, perform};

fn simple(index: u64, bytes: usize) -> Append {
    let data = Bytes::from(vec![index as u8; bytes]);
    Append {
        group: 1,
        hard_state: Some(HardState { term: 1, vote: 1, commit: index - 1 }),
        entries: vec![Entry { term: 1, index, kind: EntryKind::Normal, data }],
        ..Append::default()
    }
}

/// A log at rest: a few records, sealed, not stopped.
fn at_rest() -> (MemoryDisk, Groups, usize) {
    let disk = MemoryDisk::default();
    let (mut journal, _) = Journal::open(disk.clone(), &options()).unwrap();
    let mut groups = Groups::new();
    for index in 1..=3 {
        let step = Step::Append { appends: vec![simple(index, 20 * index as usize)], is_durable: true };
        perform(&mut journal, &step).unwrap();
        apply(&mut groups, &step);
    }
    let end = journal.log_bytes() as usize;
    journal.seal().unwrap();
    assert!(journal.is_sealed());
    (disk, groups, end)
}

const FIRST: &str = "log-0000000000000001";

/// Opens a damaged disk. None if nothing is missing; otherwise the file and the offset that were told.
fn tell(disk: MemoryDisk, groups: &Groups) -> Option<(String, u64)> {
    match Journal::open(disk, &options()) {
        Ok((_, recovered)) => {
            assert_eq!(recovered.groups, *groups, "something is missing, and nothing was told");
            None
        }
        Err(Fault::Damaged { file, offset, .. }) => Some((file, offset)),
        Err(fault) => panic!("{fault}"),
    }
}

#[test]
fn every_flipped_bit_of_a_log_at_rest_is_told_or_harmless() {
    let (disk, groups, end) = at_rest();
    let mut told = 0;
    for bit in 0..(end + 64) * 8 {
        // A log at a format version we do not know is refused in words of its own.
        if (8..12).contains(&(bit / 8)) {
            continue;
        }
        let disk = disk.copy();
        disk.flip(FIRST, bit);
        match tell(disk, &groups) {
            Some((file, offset)) => {
                told += 1;
                assert_eq!(file, FIRST);
                // The offset is that of the header or of the record with the flipped bit.
                assert!(offset <= bit as u64 / 8, "bit {bit} told at offset {offset}");
                assert!(offset >= 4096 || bit < 4096 * 8, "bit {bit} told at offset {offset}");
            }
            None => {
                let byte = bit / 8;
                let is_padding = (4096..end).contains(&byte);
                assert!(byte >= end || is_padding, "bit {bit} was not told");
            }
        }
    }
    assert!(told > (end - 64) * 8, "only {told} flips were told");
}

#[test]
fn every_truncation_is_told() {
    let (disk, groups, end) = at_rest();
    let content = disk.content(FIRST);
    for length in (0..end + 100).chain([content.len() - 1]) {
        let disk = disk.copy();
        disk.replace(FIRST, &content[..length]);
        let (file, _) = tell(disk, &groups).expect("a shorter file is told");
        assert_eq!(file, FIRST);
    }
}

#[test]
fn a_tail_overwritten_with_zeros_from_any_byte_on_is_told_unless_only_the_seal_is_gone() {
    let (disk, groups, end) = at_rest();
    let content = disk.content(FIRST);
    for start in 4096..end + 64 {
        let disk = disk.copy();
        // The seal stays: this is damage in the middle.
        let mut zeroed = content.clone();
        zeroed[start..end.max(start)].fill(0);
        disk.replace(FIRST, &zeroed);
        let told = tell(disk, &groups);
        assert_eq!(told.is_some(), zeroed != content, "from byte {start}");
    }
}

#[test]
fn an_old_segments_damage_is_told_wherever_it_is() {
    // Several segments, of which the first is not the last: every record counts, sealed or not.
    let mut prng = Prng::new(11);
    let disk = MemoryDisk::default();
    let (mut journal, _) = Journal::open(disk.clone(), &options()).unwrap();
    let mut groups = Groups::new();
    let mut term = 1;
    while journal.segment_sequence() < 3 {
        let step = draw(&mut prng, &groups, &mut term);
        // A group that is given up frees segments.
        if matches!(&step, Step::Append { appends, .. } if !appends.iter().any(Append::vacates)) {
            perform(&mut journal, &step).unwrap();
            apply(&mut groups, &step);
        }
    }
    journal.sync().unwrap();
    drop(journal);
    let used = disk.content(FIRST).iter().rposition(|byte| *byte != 0).unwrap() + 1;
    for _ in 0..2000 {
        let bit = prng.below(used as u64 * 8) as usize;
        let damaged = disk.copy();
        damaged.flip(FIRST, bit);
        match Journal::open(damaged, &options()) {
            Ok((_, recovered)) => assert_eq!(recovered.groups, groups, "bit {bit}"),
            Err(Fault::Damaged { file, offset, .. }) => {
                assert_eq!(file, FIRST);
                assert!(offset <= bit as u64 / 8);
            }
            Err(Fault::Newer { file, .. }) => assert!(file == FIRST && (8..12).contains(&(bit / 8))),
            Err(fault) => panic!("bit {bit}: {fault}"),
        }
    }
    for (missing, told) in [
        ("log-0000000000000001", "log-0000000000000001"),
        ("log-0000000000000002", "log-0000000000000002"),
        ("log-0000000000000003", "log-0000000000000003"),
    ] {
        let disk = disk.copy();
        disk.remove(missing).unwrap();
        match Journal::open(disk, &options()) {
            Err(Fault::Missing { file, .. }) => assert_eq!(file, told),
            other => panic!("without {missing}: {other:?}"),
        }
    }
}

#[test]
fn the_unsynced_end_is_cut_with_a_note_and_never_comes_back() {
    let disk = MemoryDisk::default();
    let (mut journal, _) = Journal::open(disk.clone(), &options()).unwrap();
    journal.append_durably(&[simple(1, 10)]).unwrap();
    let end = journal.log_bytes() as usize;
    // Two records that nobody was promised: the first is damaged, the second is whole.
    journal.append(&[simple(2, 10)]).unwrap();
    journal.append(&[simple(3, 10)]).unwrap();
    drop(journal);
    disk.flip(FIRST, (end + 40) * 8);
    let (mut journal, recovered) = Journal::open(disk.clone(), &options()).unwrap();
    assert_eq!(recovered.groups[&1].entries.len(), 1);
    assert_eq!(
        recovered.notes,
        [format!("{FIRST} ends at offset {end}: what follows had not been synced and is cut off")]
    );
    assert!(!recovered.was_stopped_cleanly);
    // A record of the same size as the lost one now ends exactly where the old second one began.
    let mut other = simple(2, 10);
    other.entries[0].data = Bytes::from_static(b"otherwords");
    journal.append_durably(&[other.clone()]).unwrap();
    drop(journal);
    let (_, recovered) = Journal::open(disk, &options()).unwrap();
    assert_eq!(recovered.groups[&1].entries.len(), 2);
    assert_eq!(recovered.groups[&1].entries[1], other.entries[0]);
}

/// A log in the middle of work: all of it acknowledged, and the last record with nothing behind it. Returns the groups
/// before and after that record, and where it begins and ends.
fn at_work() -> (MemoryDisk, [Groups; 2], [usize; 2]) {
    let disk = MemoryDisk::default();
    let (mut journal, _) = Journal::open(disk.clone(), &options()).unwrap();
    let mut groups = [Groups::new(), Groups::new()];
    let mut place = [0, 0];
    for index in 1..=4 {
        let step = Step::Append { appends: vec![simple(index, 90 * index as usize)], is_durable: true };
        place[0] = journal.log_bytes() as usize;
        perform(&mut journal, &step).unwrap();
        place[1] = journal.log_bytes() as usize;
        groups[0] = groups[1].clone();
        apply(&mut groups[1], &step);
    }
    disk.kill_process();
    (disk, groups, place)
}

/// The bytes of a record that mean something: the rest fills it up to a multiple of eight.
fn meant(disk: &MemoryDisk, [start, _]: [usize; 2]) -> std::ops::Range<usize> {
    let content = disk.content(FIRST);
    let body_bytes = u32::from_le_bytes(content[start + 8..start + 12].try_into().unwrap()) as usize;
    start..start + 32 + body_bytes
}

#[test]
fn every_flipped_bit_of_the_last_synced_record_is_refused_where_there_is_nobody_to_ask() {
    let (disk, [_, groups], place) = at_work();
    let meant = meant(&disk, place);
    for bit in 4096 * 8..place[1] * 8 {
        let disk = disk.copy();
        disk.flip(FIRST, bit);
        match tell(disk, &groups) {
            Some((file, offset)) => assert!(file == FIRST && offset <= bit as u64 / 8, "bit {bit} told at {offset}"),
            None => assert!(!meant.contains(&(bit / 8)), "bit {bit} was not told"),
        }
    }
}

#[test]
fn a_lost_last_record_leaves_the_log_in_question_until_others_have_made_good_for_it() {
    let (disk, [before, groups], place) = at_work();
    let meant = meant(&disk, place);
    for bit in place[0] * 8..place[1] * 8 {
        let disk = disk.copy();
        disk.flip(FIRST, bit);
        let (_, recovered) = Journal::open(disk.clone(), &options_among_peers()).unwrap();
        if !meant.contains(&(bit / 8)) {
            assert_eq!((recovered.groups, recovered.tail_in_question), (groups.clone(), None));
            continue;
        }
        assert_eq!(recovered.groups, before, "bit {bit}");
        let why = recovered.tail_in_question.expect("it is in question");
        assert!(why.starts_with(&format!("{FIRST} is damaged at offset {}: ", place[0])), "{why}");
        // The damage is gone now, and the question is not: neither by a start nor by a power cut.
        disk.cut_power(&mut Prng::new(bit as u64));
        for _ in 0..2 {
            let (mut journal, recovered) = Journal::open(disk.clone(), &options_among_peers()).unwrap();
            assert!(recovered.tail_in_question.is_some() && !recovered.was_stopped_cleanly && journal.is_in_question());
            journal.append_durably(&[simple(4, 1)]).unwrap();
            disk.kill_process();
        }
        let (mut journal, _) = Journal::open(disk.clone(), &options_among_peers()).unwrap();
        if bit % 2 == 0 {
            journal.settle().unwrap();
            drop(journal);
        } else {
            journal.stop().unwrap();
        }
        let (_, recovered) = Journal::open(disk, &options_among_peers()).unwrap();
        assert_eq!(recovered.tail_in_question, None);
    }
}

#[test]
fn what_remains_of_a_last_record_is_told_though_the_mark_was_lost_with_the_power() {
    let (disk, [before, groups], place) = at_work();
    let meant = meant(&disk, place);
    disk.replace("tail", &[0; 4096]);
    for bit in meant.start * 8..meant.end * 8 {
        let disk = disk.copy();
        disk.flip(FIRST, bit);
        let (_, recovered) = Journal::open(disk.copy(), &options()).unwrap();
        assert_eq!((recovered.groups, recovered.tail_in_question), (before.clone(), None), "bit {bit}");
        assert_eq!(
            recovered.notes,
            [format!("{FIRST} ends at offset {}: the record there is torn and is cut off", place[0])]
        );
        let (_, recovered) = Journal::open(disk, &options_among_peers()).unwrap();
        assert_eq!(recovered.groups, before);
        let why = recovered.tail_in_question.expect("it is in question");
        assert!(why.starts_with(&format!("{FIRST} ends at offset {}: ", place[0])), "{why}");
    }
    // If a record's header never arrived, nothing of the record remains, and nothing is asked.
    let mut content = disk.content(FIRST);
    content[place[0]..place[0] + 32].fill(0);
    disk.replace(FIRST, &content);
    let (_, recovered) = Journal::open(disk, &options_among_peers()).unwrap();
    assert_eq!((recovered.groups, recovered.tail_in_question), (before, None));
    assert_ne!(groups.len(), 0);
}

/// The record of a mark frees files that are gone then: it is not the one that a start may cut off.
#[test]
fn a_lost_last_record_costs_no_checkpoint() {
    let disk = MemoryDisk::default();
    let (mut journal, _) = Journal::open(disk.clone(), &options()).unwrap();
    let mut groups = Groups::new();
    for index in 1..=3 {
        for step in [
            Step::Append { appends: vec![simple(index, 40)], is_durable: true },
            Step::Checkpoint { group: 1, mark: CheckpointMark { index, term: 1, ..CheckpointMark::default() } },
            Step::Chores,
        ] {
            perform(&mut journal, &step).unwrap();
            apply(&mut groups, &step);
        }
    }
    let (file, record) = journal.last_content();
    drop(journal);
    assert!(disk.names().iter().filter(|name| name.starts_with("checkpoint-")).count() == 1);
    for bit in record.start * 8..record.end * 8 {
        let disk = disk.copy();
        disk.flip(&file, bit as usize);
        let (_, recovered) = Journal::open(disk, &options_among_peers()).unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(recovered.groups, groups, "bit {bit}");
    }
}

#[test]
fn a_damaged_seal_or_stop_is_no_loss() {
    for stops in [false, true] {
        let (disk, [_, groups], place) = at_work();
        let (mut journal, _) = Journal::open(disk.clone(), &options()).unwrap();
        journal.append_durably(&[]).unwrap();
        let start = journal.log_bytes() as usize;
        journal.seal().unwrap();
        if stops {
            journal.stop().unwrap();
        }
        assert!(start > place[1]);
        for bit in start * 8..(start + 32) * 8 {
            let disk = disk.copy();
            disk.flip(FIRST, bit);
            let (_, recovered) = Journal::open(disk, &options()).unwrap_or_else(|fault| panic!("bit {bit}: {fault}"));
            assert_eq!((&recovered.groups, recovered.was_stopped_cleanly), (&groups, false), "bit {bit}");
        }
    }
}

#[test]
fn a_damaged_mark_is_told_and_a_directory_without_one_gets_one() {
    let (disk, [_, groups], place) = at_work();
    for is_damaged in [true, false] {
        let disk = disk.copy();
        if is_damaged {
            disk.flip("tail", 40 * 8);
        } else {
            disk.remove("tail").unwrap();
        }
        let (mut journal, recovered) = Journal::open(disk.clone(), &options()).unwrap();
        let note = "tail does not verify and is written again: it says how far the log was synced";
        assert_eq!(recovered.notes, if is_damaged { vec![note.to_owned()] } else { Vec::new() });
        assert_eq!(recovered.groups, groups);
        journal.append_durably(&[simple(5, 10)]).unwrap();
        drop(journal);
        disk.flip(FIRST, (place[1] + 40) * 8);
        assert_eq!(tell(disk, &groups), Some((FIRST.to_owned(), place[1] as u64)));
    }
}

#[test]
fn garbage_behind_the_end_is_harmless() {
    let (disk, groups, end) = at_rest();
    for seed in 0..50 {
        let disk = disk.copy();
        let mut prng = Prng::new(seed);
        let mut content = disk.content(FIRST);
        for byte in &mut content[end + 32..] {
            *byte = prng.draw() as u8;
        }
        disk.replace(FIRST, &content);
        assert_eq!(tell(disk, &groups), None);
    }
}

//! Keeping log for members that lack it, and reading it back.

use bytes::Bytes;
use journal::{Append, CheckpointMark, Journal, LogReader, Options, Span, Unread, checkpoint_file};
use stdx::log::{Entry, EntryKind};

use crate::memory_disk::MemoryDisk;
use crate::model::options;

fn entry(term: u64, index: u64) -> Entry {
    let data = Bytes::from(vec![(term * 31 + index) as u8; 3_000]);
    Entry { term, index, kind: EntryKind::Normal, data }
}

fn append(group: u32, entries: Vec<Entry>) -> Append {
    Append { group, entries, ..Append::default() }
}

fn write(journal: &mut Journal<MemoryDisk>, appends: &[Append]) {
    journal.prepare_spare().unwrap();
    journal.append_durably(appends).unwrap();
}

/// A checkpoint of a group that has nothing but its name.
fn mark(disk: &MemoryDisk, journal: &mut Journal<MemoryDisk>, group: u32, index: u64) {
    disk.replace(&checkpoint_file(group, index), b"");
    journal.checkpointed(group, CheckpointMark { index, term: 1, ..CheckpointMark::default() }).unwrap();
}

fn holding(held_bytes_max: u64) -> Options {
    Options { held_bytes_max, ..options() }
}

/// Reads on until there is no more, in small pieces.
fn read_all(journal: &Journal<MemoryDisk>, mut span: Span) -> Result<Vec<Entry>, Unread> {
    let mut reader = LogReader::new(journal.disk().clone());
    let mut all = Vec::new();
    loop {
        let piece = reader.read(&journal.map(), &span)?;
        let Some(last) = piece.last() else { return Ok(all) };
        span.first = last.index + 1;
        all.extend(piece);
        if span.first > span.last {
            return Ok(all);
        }
    }
}

fn span(group: u32, first: u64, last: u64, terms: &[(u64, u64)]) -> Span {
    Span { group, first, last, terms: terms.to_vec(), bytes_max: 7_000 }
}

#[test]
fn what_is_held_is_read_back_and_what_replaced_it_instead_of_it() {
    let disk = MemoryDisk::default();
    let (mut journal, _) = Journal::open(disk.clone(), &holding(100 << 20)).unwrap();
    journal.hold(0, 40);
    for index in 1..=60 {
        write(&mut journal, &[append(0, vec![entry(1, index)]), append(1, vec![entry(1, index)])]);
    }
    // Another leader's entries take the place of the last ten.
    write(&mut journal, &[append(0, vec![entry(2, 51), entry(2, 52)])]);
    for index in 53..=200 {
        write(&mut journal, &[append(0, vec![entry(2, index)]), append(1, vec![entry(1, index + 8)])]);
    }
    mark(&disk, &mut journal, 0, 190);
    mark(&disk, &mut journal, 1, 190);
    assert!(journal.held_bytes() > 0);
    let expected: Vec<Entry> =
        (41..=200).map(|index| if index < 51 { entry(1, index) } else { entry(2, index) }).collect();
    assert_eq!(read_all(&journal, span(0, 41, 200, &[(30, 1), (51, 2)])).unwrap(), expected);
    // No more than is asked for, and nothing that has not been written.
    assert_eq!(read_all(&journal, span(0, 41, 100, &[(30, 1), (51, 2)])).unwrap(), expected[..60]);
    assert_eq!(read_all(&journal, span(0, 201, 300, &[(51, 2)])).unwrap(), []);
    // What nobody has asked to be kept is gone.
    assert!(matches!(read_all(&journal, span(0, 1, 200, &[(1, 1), (51, 2)])), Err(Unread::Gone)));

    journal.hold(0, 200);
    assert_eq!(journal.held_bytes(), 0);
    journal.prepare_spare().unwrap();
    assert!(matches!(read_all(&journal, span(0, 41, 200, &[(30, 1), (51, 2)])), Err(Unread::Gone)));
}

#[test]
fn a_record_with_later_entries_that_have_been_replaced_does_not_end_the_search() {
    let disk = MemoryDisk::default();
    let (mut journal, _) = Journal::open(disk.clone(), &holding(100 << 20)).unwrap();
    journal.hold(0, 0);
    write(&mut journal, &[append(0, vec![entry(1, 1)])]);
    // None of these counts, and the last stands behind the end of what is looked for.
    write(&mut journal, &[append(0, (2..=9).map(|index| entry(1, index)).collect())]);
    for index in 2..=5 {
        write(&mut journal, &[append(0, vec![entry(2, index)])]);
    }
    let expected: Vec<Entry> = (1..=5).map(|index| entry(1 + u64::from(index > 1), index)).collect();
    assert_eq!(read_all(&journal, span(0, 1, 5, &[(1, 1), (2, 2)])).unwrap(), expected);
    // A span that ends within a record goes on from there.
    write(&mut journal, &[append(0, (6..=9).map(|index| entry(2, index)).collect())]);
    let mut reader = LogReader::new(journal.disk().clone());
    let terms = [(1, 1), (2, 2)];
    assert_eq!(reader.read(&journal.map(), &span(0, 5, 7, &terms)).unwrap().len(), 3);
    assert_eq!(reader.read(&journal.map(), &span(0, 8, 9, &terms)).unwrap(), [entry(2, 8), entry(2, 9)]);
}

/// A reader that took these entries for not written yet would wait for them without end.
#[test]
fn what_a_checkpoint_covers_and_is_not_there_is_gone_whatever_stands_behind_it() {
    let disk = MemoryDisk::default();
    let (mut journal, _) = Journal::open(disk.clone(), &holding(100 << 20)).unwrap();
    for index in 1..=200 {
        write(&mut journal, &[append(0, vec![entry(1, index)])]);
    }
    for index in 1..=200 {
        write(&mut journal, &[append(1, vec![entry(1, index)])]);
    }
    mark(&disk, &mut journal, 0, 200);
    mark(&disk, &mut journal, 1, 200);
    journal.prepare_spare().unwrap();
    let lacked = || span(0, 141, 200, &[(1, 1)]);
    assert!(matches!(read_all(&journal, lacked()), Err(Unread::Gone)), "nothing stands behind it");
    write(&mut journal, &[append(0, vec![entry(2, 201)])]);
    assert!(matches!(read_all(&journal, lacked()), Err(Unread::Gone)), "what does is of a later term");
    assert_eq!(read_all(&journal, span(0, 202, 202, &[(201, 2)])).unwrap(), [], "that is still to come");
}

#[test]
fn no_more_is_held_than_allowed() {
    let disk = MemoryDisk::default();
    let (mut journal, _) = Journal::open(disk.clone(), &holding(200 << 10)).unwrap();
    journal.hold(0, 0);
    for index in 1..=500 {
        write(&mut journal, &[append(0, vec![entry(1, index)])]);
        if index % 20 == 0 {
            mark(&disk, &mut journal, 0, index);
            assert!(journal.held_bytes() <= 200 << 10);
        }
    }
    assert!(journal.held_bytes() > 100 << 10, "{}", journal.held_bytes());
    assert!(matches!(read_all(&journal, span(0, 1, 500, &[(1, 1)])), Err(Unread::Gone)));
    let rest = read_all(&journal, span(0, 470, 500, &[(1, 1)])).unwrap();
    assert_eq!(rest.len(), 31);
    journal.let_go();
    assert_eq!(journal.held_bytes(), 0);
}

#[test]
fn a_start_does_not_read_what_was_only_held() {
    let disk = MemoryDisk::default();
    let (mut journal, _) = Journal::open(disk.clone(), &holding(100 << 20)).unwrap();
    journal.hold(0, 0);
    for index in 1..=300 {
        write(&mut journal, &[append(0, vec![entry(1, index)])]);
    }
    mark(&disk, &mut journal, 0, 290);
    let held = journal.held_bytes();
    for index in 301..=340 {
        write(&mut journal, &[append(0, vec![entry(1, index)])]);
    }
    let needed = journal.log_bytes();
    drop(journal);
    let (mut journal, recovered) = Journal::open(disk.clone(), &holding(100 << 20)).unwrap();
    assert!(recovered.log_bytes <= needed && held > needed, "{} {needed} {held}", recovered.log_bytes);
    assert_eq!(recovered.notes, [""; 0]);
    assert_eq!(recovered.groups[&0].entries.first().map(|entry| entry.index), Some(291));
    assert_eq!(recovered.groups[&0].entries.len(), 50);
    // The files go in the background, and a start before that is no different.
    drop(journal);
    (journal, _) = Journal::open(disk.clone(), &holding(100 << 20)).unwrap();
    journal.prepare_spare().unwrap();
    drop(journal);
    let segments = disk.names().iter().filter(|name| name.starts_with("log-")).count();
    assert!(segments as u64 <= 3 + needed / (64 << 10), "{:?}", disk.names());
    let (_, recovered) = Journal::open(disk, &holding(100 << 20)).unwrap();
    assert_eq!(recovered.groups[&0].entries.len(), 50);
}

#[test]
fn what_an_archive_lacks_outlives_a_start_and_tells_its_terms() {
    let disk = MemoryDisk::default();
    let archived = || Options { is_archived: true, ..holding(100 << 20) };
    let (mut journal, _) = Journal::open(disk.clone(), &archived()).unwrap();
    journal.hold_for_archive(0, 40);
    for index in 1..=60 {
        write(&mut journal, &[append(0, vec![entry(1, index)])]);
    }
    // Another leader's entries take the place of the last ten.
    write(&mut journal, &[append(0, vec![entry(2, 51), entry(2, 52)])]);
    for index in 53..=300 {
        write(&mut journal, &[append(0, vec![entry(2, index)])]);
    }
    mark(&disk, &mut journal, 0, 290);
    assert_eq!(journal.map().marks[0].1.index, 290);
    drop(journal);
    let (mut journal, recovered) = Journal::open(disk, &archived()).unwrap();
    assert_eq!(recovered.groups[&0].entries.len(), 10, "what is covered is not read");
    // Until the archive says what it has, it may lack anything.
    assert!(journal.held_bytes() > 0);
    let mut reader = LogReader::new(journal.disk().clone());
    let terms = reader.terms(&journal.map(), 0, 41).unwrap();
    assert_eq!(terms, [(41, 1), (51, 2)]);
    let expected: Vec<Entry> =
        (41..=300).map(|index| if index < 51 { entry(1, index) } else { entry(2, index) }).collect();
    assert_eq!(read_all(&journal, span(0, 41, 300, &terms)).unwrap(), expected);
    assert!(matches!(reader.terms(&journal.map(), 0, 301), Err(Unread::Gone)));
    journal.hold_for_archive(0, 300);
    assert_eq!(journal.held_bytes(), 0);
    assert!(matches!(reader.terms(&journal.map(), 0, 41), Err(Unread::Gone)));
}

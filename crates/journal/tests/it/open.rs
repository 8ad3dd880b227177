//! What opening makes of a directory, and what the journal does besides crashing.

use bytes::Bytes;
use journal::{Append, CheckpointMark, Disk, Fault, Journal, Options, checkpoint_file};
use stdx::log::{Entry, EntryKind, HardState, Membership};

use crate::memory_disk::MemoryDisk;
use crate::model::{IDENTITY, options};

fn append(group: u32, index: u64, bytes: usize) -> Append {
    let data = Bytes::from(vec![b'x'; bytes]);
    Append { group, entries: vec![Entry { term: 1, index, kind: EntryKind::Normal, data }], ..Append::default() }
}

fn refusal(disk: &MemoryDisk) -> String {
    let before = disk.names();
    let fault = Journal::open(disk.clone(), &options()).map(drop).unwrap_err();
    assert_eq!(disk.names(), before, "a refused directory is left as it is");
    fault.to_string()
}

#[test]
fn an_empty_directory_becomes_ours_and_keeps_its_identity() {
    let disk = MemoryDisk::default();
    disk.replace("lost+found", b"");
    disk.replace("lock", b"");
    let (journal, recovered) = Journal::open(disk.clone(), &options()).unwrap();
    assert!(recovered.is_new && recovered.was_stopped_cleanly && recovered.groups.is_empty());
    drop(journal);
    let mut other = options();
    other.new_identity.node = 99;
    let (_, recovered) = Journal::open(disk, &other).unwrap();
    assert_eq!(recovered.identity, IDENTITY);
    assert!(!recovered.is_new);
}

#[test]
fn foreign_newer_and_broken_directories_are_refused_in_clear_words() {
    let disk = MemoryDisk::default();
    disk.replace("dump.rdb", b"REDIS0010");
    assert_eq!(
        refusal(&disk),
        "the data directory holds dump.rdb but no identity, so it is not a data directory of Holdfast; give an empty one"
    );

    let ours = MemoryDisk::default();
    let (mut journal, _) = Journal::open(ours.clone(), &options()).unwrap();
    journal.append_durably(&[append(0, 1, 100)]).unwrap();
    drop(journal);

    let disk = ours.copy();
    disk.remove("identity").unwrap();
    assert_eq!(
        refusal(&disk),
        "identity is missing: the directory holds log-0000000000000001, so it was a data directory of Holdfast"
    );

    let disk = ours.copy();
    disk.replace("identity", IDENTITY.encode().replace("format 1", "format 7").as_bytes());
    assert_eq!(refusal(&disk), "identity has format 7, and this version of Holdfast knows formats up to 2");

    let disk = ours.copy();
    disk.remove("log-0000000000000001").unwrap();
    assert_eq!(refusal(&disk), "log-0000000000000001 is missing: the directory has an identity and no log");

    let disk = ours.copy();
    let mut segment = disk.content("log-0000000000000001");
    segment[8] = 2;
    disk.replace("log-0000000000000001", &segment);
    assert_eq!(refusal(&disk), "log-0000000000000001 has format 2, and this version of Holdfast knows formats up to 1");

    // A segment of another directory, under a good name.
    let disk = ours.copy();
    let other = MemoryDisk::default();
    let mut other_options = options();
    other_options.new_identity.directory = 4;
    Journal::open(other.clone(), &other_options).unwrap();
    disk.replace("log-0000000000000001", &other.content("log-0000000000000001"));
    assert_eq!(refusal(&disk), "log-0000000000000001 is damaged at offset 16: it belongs to another data directory");

    let disk = ours.copy();
    disk.replace("log-0000000000000002", &disk.content("log-0000000000000001"));
    disk.remove("log-0000000000000001").unwrap();
    assert_eq!(
        refusal(&disk),
        "log-0000000000000002 is damaged at offset 32: it is segment 0000000000000001 under another name"
    );
}

#[test]
fn a_checkpoint_that_the_log_counts_on_must_be_there() {
    let disk = MemoryDisk::default();
    let (mut journal, _) = Journal::open(disk.clone(), &options()).unwrap();
    journal.append_durably(&[append(0, 1, 100)]).unwrap();
    let mark = CheckpointMark { index: 1, term: 1, membership: Membership { voters: vec![1], ..Default::default() } };
    let file = checkpoint_file(0, 1);
    disk.replace(&file, b"");
    // One that does not count: the process ended before it was marked.
    disk.replace(&checkpoint_file(0, 7), b"");
    journal.checkpointed(0, mark.clone()).unwrap();
    drop(journal);
    let (_, recovered) = Journal::open(disk.clone(), &options()).unwrap();
    assert_eq!(recovered.groups[&0].checkpoint, Some(mark));
    assert_eq!(recovered.notes, [format!("{} was left over and has been removed", checkpoint_file(0, 7))]);
    disk.remove(&file).unwrap();
    assert_eq!(
        refusal(&disk),
        "checkpoint-00000-0000000000000001 is missing: the log counts on this checkpoint of group 0"
    );
}

#[test]
fn segments_are_freed_by_checkpoints_and_used_again() {
    let disk = MemoryDisk::default();
    let (mut journal, _) = Journal::open(disk.clone(), &options()).unwrap();
    let mut index = 0;
    while journal.segment_sequence() < 7 {
        index += 1;
        journal.append_durably(&[append(0, index, 3000), append(1, index, 10)]).unwrap();
        journal.prepare_spare().unwrap();
    }
    assert_eq!(journal.pinning_group(), Some(0));
    for group in [0, 1] {
        disk.replace(&checkpoint_file(group, index - 1), b"");
        let mark = CheckpointMark { index: index - 1, term: 1, membership: Membership::default() };
        journal.checkpointed(group, mark).unwrap();
    }
    assert_eq!(journal.pinning_group(), None);
    journal.prepare_spare().unwrap();
    let logs = |disk: &MemoryDisk| {
        let numbers =
            disk.names().into_iter().filter_map(|name| u64::from_str_radix(name.strip_prefix("log-")?, 16).ok());
        numbers.collect::<Vec<_>>()
    };
    assert_eq!(logs(&disk), [1, 2, 3, 4, 7, 8], "four are kept to be used again, the others are gone");
    let copy = disk.copy();
    let (_, recovered) = Journal::open(copy.clone(), &options()).unwrap();
    assert_eq!(recovered.groups[&0].entries.last().unwrap().index, index, "what is kept is in nobody's way");
    // From here on no new file is made.
    disk.limit_room(Some(0));
    while journal.segment_sequence() < 12 {
        index += 1;
        journal.append_durably(&[append(0, index, 3000)]).unwrap();
        journal.prepare_spare().unwrap_or_else(|fault| assert!(fault.is_full()));
    }
    assert_eq!(logs(&disk), [7, 8, 9, 10, 11, 12]);
    drop(journal);
    let (_, recovered) = Journal::open(disk, &options()).unwrap();
    assert_eq!(recovered.groups[&0].entries.last().unwrap().index, index);
    assert_eq!(
        recovered.groups[&0].entries.len() as u64,
        index - recovered.groups[&0].checkpoint.as_ref().unwrap().index
    );
}

#[test]
fn a_record_larger_than_a_segment_gets_a_segment_of_its_size() {
    let disk = MemoryDisk::default();
    let (mut journal, _) = Journal::open(disk.clone(), &options()).unwrap();
    journal.append_durably(&[append(0, 1, 10)]).unwrap();
    journal.prepare_spare().unwrap();
    // Larger than what is gathered in one piece, at several lengths around the padding.
    for index in 2..10 {
        journal.append_durably(&[append(0, index, (5 << 20) + index as usize)]).unwrap();
        journal.append_durably(&[append(1, index - 1, 10)]).unwrap();
    }
    drop(journal);
    let mut large = Options::new(IDENTITY);
    large.segment_bytes = 1 << 20;
    let (mut journal, recovered) = Journal::open(disk, &large).unwrap();
    let lengths: Vec<usize> = recovered.groups[&0].entries.iter().map(|entry| entry.data.len()).collect();
    assert_eq!(lengths[1..], (2..10).map(|index| (5 << 20) + index).collect::<Vec<_>>());
    assert!(recovered.groups[&0].entries.iter().all(|entry| entry.data.iter().all(|byte| *byte == b'x')));
    assert_eq!(recovered.groups[&1].entries.len(), 8);
    journal.append_durably(&[append(1, 9, 10)]).unwrap();
}

#[test]
fn the_calls_say_where_entries_must_go() {
    let disk = MemoryDisk::default();
    let (mut journal, _) = Journal::open(disk, &options()).unwrap();
    journal.append(&[append(0, 1, 1), append(0, 2, 1)]).unwrap();
    assert_eq!((journal.last_index(0), journal.last_index(1)), (2, 0));
    let gap = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| journal.append(&[append(0, 4, 1)])));
    assert!(gap.is_err(), "a gap is a bug of the caller");
}

#[test]
fn the_fault_of_a_failing_disk_names_the_file() {
    let disk = MemoryDisk::default();
    let (mut journal, _) = Journal::open(disk.clone(), &options()).unwrap();
    disk.fail_after(0);
    let fault = journal.append_durably(&[append(0, 1, 1)]).unwrap_err();
    assert!(matches!(fault, Fault::Io { .. }));
    assert_eq!(fault.to_string(), "cannot write to log-0000000000000001: the power is off");
}

#[test]
fn a_log_at_rest_is_sealed_once() {
    let disk = MemoryDisk::default();
    let (mut journal, _) = Journal::open(disk.clone(), &options()).unwrap();
    journal.seal().unwrap();
    assert_eq!(journal.written_bytes(), 0, "an empty log needs none");
    journal.append_durably(&[append(0, 1, 1)]).unwrap();
    assert!(!journal.is_sealed());
    let unsealed_bytes = journal.written_bytes();
    for _ in 0..3 {
        journal.seal().unwrap();
        assert!(journal.is_sealed());
        assert_eq!(journal.written_bytes(), unsealed_bytes + 32);
    }
    journal.append_durably(&[append(0, 2, 1)]).unwrap();
    assert!(!journal.is_sealed());
}

#[test]
fn a_mark_fits_where_appends_no_longer_do_and_frees_a_segment() {
    let disk = MemoryDisk::default();
    let (mut journal, _) = Journal::open(disk.clone(), &options()).unwrap();
    journal.prepare_spare().unwrap();
    disk.limit_room(Some(0));
    let mut index = 1;
    while journal.append_durably(&[append(0, index, 3000)]).is_ok() {
        index += 1;
    }
    assert!(!journal.fits(3100));
    disk.replace(&checkpoint_file(0, index - 1), b"");
    let mark = CheckpointMark { index: index - 1, term: 1, membership: Membership::default() };
    journal.checkpointed(0, mark).unwrap();
    journal.append_durably(&[append(0, index, 3000)]).unwrap();
    drop(journal);
    let (_, recovered) = Journal::open(disk, &options()).unwrap();
    assert_eq!(recovered.groups[&0].entries.len(), 1);
}

#[test]
fn to_look_finds_what_opening_finds_and_changes_nothing() {
    let disk = MemoryDisk::default();
    assert!(Journal::look(&disk, &options()).unwrap_err().to_string().starts_with("identity is missing"));
    let (mut journal, _) = Journal::open(disk.clone(), &options()).unwrap();
    for index in 1..40 {
        journal.append_durably(&[append(0, index, 5_000)]).unwrap();
    }
    drop(journal);
    // A crash while the next segment was being made, and a segment with a torn last record.
    let last = disk.names().into_iter().filter(|name| name.starts_with("log-")).max().unwrap();
    let torn = disk.copy();
    let mut segment = torn.content(&last);
    let end = segment.iter().rposition(|byte| *byte != 0).unwrap();
    segment[end] ^= 1;
    torn.replace(&last, &segment);
    for disk in [disk, torn] {
        let among_peers = || Options { has_peers: |_, _| true, ..options() };
        let content = |disk: &MemoryDisk| -> Vec<_> {
            disk.names().into_iter().map(|name| (disk.content(&name), name)).collect()
        };
        let before = content(&disk);
        let looked = Journal::look(&disk, &among_peers()).unwrap();
        assert!(content(&disk) == before);
        let (_, opened) = Journal::open(disk.clone(), &among_peers()).unwrap();
        assert_eq!((looked.groups, looked.tail_in_question), (opened.groups, opened.tail_in_question));
        assert_eq!((looked.was_stopped_cleanly, looked.log_bytes), (opened.was_stopped_cleanly, opened.log_bytes));
    }
}

#[test]
fn a_vacated_group_keeps_its_vote_and_pins_nothing() {
    let disk = MemoryDisk::default();
    let (mut journal, _) = Journal::open(disk.clone(), &options()).unwrap();
    let file = checkpoint_file(1, 1);
    disk.replace(&file, b"");
    let mut index = 0;
    while journal.segment_sequence() < 5 {
        index += 1;
        journal.append_durably(&[append(0, index, 3000), append(1, index, 10)]).unwrap();
        if index == 1 {
            journal.checkpointed(1, CheckpointMark { index, term: 1, membership: Membership::default() }).unwrap();
        }
        journal.prepare_spare().unwrap();
    }
    disk.replace(&checkpoint_file(0, index), b"");
    journal.checkpointed(0, CheckpointMark { index, term: 1, membership: Membership::default() }).unwrap();
    assert_eq!(journal.pinning_group(), Some(1));
    let hard_state = HardState { term: 9, vote: 2, commit: 0 };
    let vacate =
        Append { group: 1, hard_state: Some(hard_state), membership: Some(Membership::default()), ..Append::default() };
    journal.append(&[vacate]).unwrap();
    assert_eq!((journal.pinning_group(), journal.last_index(1)), (None, 0));
    journal.prepare_spare().unwrap();
    assert!(!disk.names().contains(&file), "its checkpoint is gone");
    // A record that is cut off at the end costs nothing: it has been said twice.
    let find = |disk: &MemoryDisk| Journal::open(disk.copy(), &options()).unwrap().1.groups[&1].clone();
    let found = find(&disk);
    assert!(found.is_vacated() && found.entries.is_empty() && found.checkpoint.is_none());
    assert_eq!(found.hard_state, hard_state);
    // It stays so in later segments, until a leader's checkpoint fills it again.
    while journal.segment_sequence() < 9 {
        index += 1;
        journal.append_durably(&[append(0, index, 3000)]).unwrap();
        journal.prepare_spare().unwrap();
    }
    assert_eq!(find(&disk), found);
    disk.replace(&checkpoint_file(1, 500), b"");
    let mark = CheckpointMark { index: 500, term: 9, membership: Membership { voters: vec![1], ..Default::default() } };
    journal.install(1, mark.clone(), Some(HardState { commit: 500, ..hard_state })).unwrap();
    journal.append_durably(&[append(1, 501, 10)]).unwrap();
    drop(journal);
    let (mut journal, recovered) = Journal::open(disk.clone(), &options()).unwrap();
    let found = &recovered.groups[&1];
    assert_eq!((&found.checkpoint, found.entries.len(), found.is_vacated()), (&Some(mark), 1, false));
    journal.append_durably(&[append(1, 502, 10)]).unwrap();
}

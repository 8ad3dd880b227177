//! Whatever is in a file, reading it ends with an item or a fault, and takes no more memory than it should.

use fuzzing::Fuzz;
use keyspace::Limits;
use keyspace::rdb::{dump, restore};
use redis_files::aof::{self, AofReader};
use redis_files::rdb::{Item, Part, RdbReader, dump_of};
use redis_files::{Fault, Source};

/// A file with records of every kind, by hand.
fn rdb(magic: &[u8]) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    bytes.extend_from_slice(b"\xFA\x09redis-ver\x057.0.0\xFE\x00\xFB\x05\x01");
    bytes.extend_from_slice(b"\xF5\x05#!lua\xF4\x01\x02\x03");
    bytes.extend_from_slice(b"\xFC\0\0\0\0\0\0\0\x7F\xF8\x05\x00\x01a\x05value");
    bytes.extend_from_slice(b"\xFD\0\0\0\x7F\xF9\x07\x00\x01i\xC0\x05");
    bytes.extend_from_slice(b"\x01\x01l\x03\x01a\x01b\xC1\x00\x10");
    bytes.extend_from_slice(b"\x02\x01s\x02\x01a\x01b\x04\x01h\x01\x01f\x01v");
    bytes.extend_from_slice(b"\x03\x01y\x02\x01a\xFF\x01b\x031.5\x05\x01z\x01\x01a\0\0\0\0\0\0\0\0");
    bytes.extend_from_slice(b"\x12\x01q\x01\x02\x0a\x0a\0\0\0\x01\0\x81a\x02\xff\x0e\x01r\x01\x03abc");
    bytes.extend_from_slice(b"\x0f\x01x\x01\x03abc\x03abc\x00\x01\x01\x01\x01g\x01\x01\x01");
    bytes.extend_from_slice(&[7; 24]);
    bytes.extend_from_slice(b"\x01\x01\x01c\0\0\0\0\0\0\0\0\x00");
    bytes.extend_from_slice(b"\x07\x01m\x81\0\0\0\0\0\0\0\x01\x05\x02ab\x01\x05\x04\0\0\0\0\0\0\0\0\x00");
    bytes.extend_from_slice(b"\xF7\x81\0\0\0\0\0\0\0\x01\x02\x01\x00");
    bytes.extend_from_slice(b"\x00\x01c\xC3\x06\x15\x01aa\xE0\x0a\x00\xFF\0\0\0\0\0\0\0\0");
    bytes
}

fn read_rdb(bytes: &[u8]) -> Result<u64, Fault> {
    let mut source = Source::new(bytes);
    let mut reader = RdbReader::new(&mut source)?.with_part_bytes(4);
    let mut count = 0;
    loop {
        count += 1;
        match reader.next_item()? {
            Item::End { .. } => return Ok(count),
            Item::Key(key) => assert!(key.value.len() <= bytes.len() + 16, "more memory than the file has"),
            _ => {}
        }
    }
}

fn read_aof(bytes: &[u8]) -> Result<u64, Fault> {
    let mut source = Source::new(bytes);
    let mut reader = AofReader::new(&mut source);
    let mut count = 1;
    while !matches!(reader.next_item()?, aof::Item::End { .. }) {
        count += 1;
    }
    Ok(count)
}

/// What reading came to, as a number.
fn outcome(read: Result<u64, Fault>, input: &[u8]) -> u64 {
    match read {
        Ok(count) => count,
        Err(fault) => {
            assert!(fault.offset <= input.len() as u64 && !fault.to_string().is_empty());
            1_000 + fault.offset % 256 + 256 * (fault.to_string().len() as u64 % 64)
        }
    }
}

#[test]
fn fuzz_rdb() {
    let corpus = [rdb(b"REDIS0011"), rdb(b"VALKEY080"), rdb(b"REDIS0014")];
    assert_eq!(read_rdb(&corpus[0]).expect("a file"), 17);
    Fuzz::new("rdb", corpus).run(|input| outcome(read_rdb(input), input));
}

#[test]
fn fuzz_aof() {
    let aof = b"#TS:5\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n*1\r\n$5\r\nMULTI\r\n*1\r\n$4\r\nEXEC\r\n".to_vec();
    assert!(read_aof(&aof).is_ok());
    let with_base = [rdb(b"REDIS0011"), aof.clone()].concat();
    let words: [&[u8]; 4] = [b"\r\n", b"*1\r\n", b"$5\r\nMULTI\r\n", b"$4\r\nEXEC\r\n"];
    Fuzz::new("aof", [aof, with_base]).words(&words).run(|input| outcome(read_aof(input), input));
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let golden = rdb(b"REDIS0011");
    assert!((0..golden.len()).all(|length| read_rdb(&golden[..length]).is_err()));
}

#[test]
fn a_collection_in_parts_has_all_its_elements() {
    let mut bytes = b"REDIS0004\x01\x01l\x41\x00".to_vec();
    (0..256).for_each(|nth| bytes.extend_from_slice(&[2, b'a' + (nth / 26) as u8, b'a' + (nth % 26) as u8]));
    bytes.push(0xFF);
    let mut source = Source::new(&bytes[..]);
    let mut reader = RdbReader::new(&mut source).expect("a file").with_part_bytes(100);
    let (mut count, mut parts) = (0, 0);
    while let Item::Key(key) = reader.next_item().expect("an item") {
        parts += 1;
        count += u64::from(key.value[1]);
        assert_eq!(key.value.len() as u64, 2 + 3 * u64::from(key.value[1]));
    }
    assert_eq!((count, parts), (256, 8));
}

#[test]
fn hashes_with_fields_that_expire_come_with_their_deadlines_no_matter_who_has_written_them() {
    const DEADLINE_MS: u64 = 2_000_000_000_000;
    let mut redis = b"REDIS0012\x18\x01h".to_vec();
    redis.extend_from_slice(&DEADLINE_MS.to_le_bytes());
    redis.extend_from_slice(b"\x03\x01\x01e\x01v\x00\x01f\x01w\x02\x01g\x01x\xFF\0\0\0\0\0\0\0\0");
    let mut valkey = b"VALKEY080\x16\x01h\x03".to_vec();
    for (field, deadline) in [(b"\x01e\x01v", DEADLINE_MS), (b"\x01f\x01w", u64::MAX), (b"\x01g\x01x", DEADLINE_MS + 1)]
    {
        valkey.extend_from_slice(field);
        valkey.extend_from_slice(&deadline.to_le_bytes());
    }
    valkey.extend_from_slice(b"\xFF\0\0\0\0\0\0\0\0");
    let value_in = |bytes: &[u8]| {
        let mut source = Source::new(bytes);
        let mut reader = RdbReader::new(&mut source).expect("a file").with_part_bytes(1);
        let Ok(Item::Key(key)) = reader.next_item() else { panic!("a key") };
        assert_eq!((&key.name[..], key.part), (&b"h"[..], Part::Whole));
        assert!(matches!(reader.next_item(), Ok(Item::End { .. })));
        restore(&dump_of(key.value, key.vendor), &Limits::default()).expect("a value")
    };
    let (theirs, ours) = (dump(value_in(&valkey).as_ref()), dump(value_in(&redis).as_ref()));
    assert_eq!(theirs, ours);
    assert!(ours.windows(8).any(|bytes| bytes == DEADLINE_MS.to_le_bytes()), "the earliest deadline is there");
}

#[test]
fn a_node_of_valkey_9_to_which_slots_move_says_so_before_its_keys() {
    let mut bytes = b"VALKEY080\xF3\x28".to_vec();
    bytes.extend_from_slice(&[b'a'; 40]);
    // Two ranges of slots.
    bytes.extend_from_slice(b"\x02\x00\x05\x40\x64\x7f\xff\x00\x01k\x01v\xFF\0\0\0\0\0\0\0\0");
    let mut source = Source::new(&bytes[..]);
    let mut reader = RdbReader::new(&mut source).expect("a file");
    let Ok(Item::Key(key)) = reader.next_item() else { panic!("a key") };
    assert_eq!(key.name, b"k");
    assert!(matches!(reader.next_item(), Ok(Item::End { .. })));
}

#[test]
fn streams_of_redis_8_6_and_8_8_come_whole() {
    let value_of = |kind: u8| {
        // No entries, the last id 0-5, the first and the highest deleted 0-0, five added.
        let mut value = vec![kind, 0, 0, 0, 5, 0, 0, 0, 0, 5];
        // A group with two entries pending, of which one belongs to nobody in the later kind.
        value.extend_from_slice(b"\x01\x01g\x00\x05\x05\x02");
        for seq in [1, 2] {
            value.extend_from_slice(&[&[0; 15][..], &[seq], &[7; 8], &[3]].concat());
        }
        let ids = |seqs: &[u8]| seqs.iter().flat_map(|&seq| [&[0; 15][..], &[seq]].concat()).collect::<Vec<u8>>();
        value.extend_from_slice(b"\x01\x01c");
        value.extend_from_slice(&[9; 16]);
        let (owned, released): (&[u8], &[u8]) = if kind == 27 { (&[1], &[2]) } else { (&[1, 2], &[]) };
        value.push(owned.len() as u8);
        value.extend_from_slice(&ids(owned));
        if kind == 27 {
            value.push(released.len() as u8);
            value.extend_from_slice(&ids(released));
        }
        // A minute and seven ids; one producer with an id; three added, and two that were there already.
        value.extend_from_slice(b"\x3C\x07\x01\x01p\x01\x01i\x00\x04\x03\x02");
        value
    };
    for (kind, magic) in [(26, b"REDIS0013"), (27, b"REDIS0014")] {
        let value = value_of(kind);
        let file = [&magic[..], &[kind], b"\x01x", &value[1..], b"\xFF\0\0\0\0\0\0\0\0"].concat();
        let mut source = Source::new(&file[..]);
        let mut reader = RdbReader::new(&mut source).expect("a file").with_part_bytes(1);
        let Ok(Item::Key(key)) = reader.next_item() else { panic!("a key") };
        assert_eq!((&key.name[..], key.part), (&b"x"[..], Part::Whole));
        assert!(matches!(reader.next_item(), Ok(Item::End { .. })));
        let again = dump(restore(&dump_of(key.value, key.vendor), &Limits::default()).expect("a value").as_ref());
        // What was released has no time.
        let expected = String::from_utf8_lossy(&again[..again.len() - 10]).replace("\0\0\0\0\0\0\0\0\x03", "time\x03");
        let value = String::from_utf8_lossy(&value).replace("\x07\x07\x07\x07\x07\x07\x07\x07\x03", "time\x03");
        assert_eq!(expected.replace("\x07\x07\x07\x07\x07\x07\x07\x07\x03", "time\x03"), value);
        assert!((10..file.len() - 9).all(|length| read_rdb(&file[..length]).is_err()));
    }
}

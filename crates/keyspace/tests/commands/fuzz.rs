//! Checkpoints and dumps that no keyspace has written.

use fuzzing::Fuzz;
use keyspace::rdb::{dump, restore};
use keyspace::{Keyspace, Layout, Limits, Options, Tuning};
use resp::Frame;
use stdx::crc64::crc64;

use crate::local::Local;
use crate::words;

/// Keys of every form, small and large.
fn local() -> Local {
    let mut local = Local::new();
    let large = |command: &str, of_one: fn(u32) -> String| {
        let words: Vec<String> = (0..600).map(of_one).collect();
        format!("{command} {}", words.join(" "))
    };
    let lines = [
        "SET text value EX 100".to_owned(),
        "SET number 12345".to_owned(),
        format!("SET long {}", "abc".repeat(50)),
        "HSET hash field value other 7".to_owned(),
        "HEXPIRE hash 100 FIELDS 1 field".to_owned(),
        "SADD integers 1 2 70000".to_owned(),
        "SADD set a b c".to_owned(),
        "RPUSH list a 2 c".to_owned(),
        "ZADD sorted 1 a 2.5 b".to_owned(),
        "XADD stream 1-1 field value".to_owned(),
        "XADD stream 1-2 field other".to_owned(),
        "XGROUP CREATE stream group 0".to_owned(),
        "XREADGROUP GROUP group consumer COUNT 1 STREAMS stream >".to_owned(),
        "PFADD log a b c".to_owned(),
        "JSON.SET document $ {\"a\":[1,null,\"x\"]}".to_owned(),
        large("HSET large-hash", |nth| format!("field{nth} {nth}")),
        large("SADD large-set", |nth| format!("member{nth}")),
        large("ZADD large-sorted", |nth| format!("{nth} member{nth}")),
        large("RPUSH large-list", |nth| format!("element{nth}")),
    ];
    for line in &lines {
        let reply = local.call(&words::split(line));
        assert!(!reply.is_error(), "{line} => {reply}");
    }
    local
}

fn empty() -> Keyspace {
    Keyspace::new(Options { databases: 16, hash_seed: 7, layout: Layout::Slots, tuning: Tuning::default() })
}

/// All that a checkpoint of it holds, in chunks of about so many bytes.
fn checkpoint(keyspace: &mut Keyspace, chunk_bytes: usize) -> Vec<Vec<u8>> {
    let mut chunks = Vec::new();
    keyspace.begin_checkpoint();
    loop {
        let mut chunk = Vec::new();
        let is_over = keyspace.checkpoint_step(chunk_bytes, &mut chunk);
        if !chunk.is_empty() {
            chunks.push(chunk);
        }
        if is_over {
            return chunks;
        }
    }
}

#[test]
fn fuzz_checkpoints() {
    let mut corpus = checkpoint(local().keyspace(), 200);
    corpus.extend(checkpoint(local().keyspace(), 1 << 20));
    Fuzz::new("checkpoint", corpus).rounds(4_000).run(|input| {
        let mut keyspace = empty();
        match keyspace.restore(input) {
            Err(corrupt) => {
                assert!(corrupt.offset <= input.len());
                corrupt.offset as u64 % 512
            }
            Ok(()) if keyspace.is_restore_incomplete() => 1_000,
            // What is accepted can be written again.
            Ok(()) => {
                let again = checkpoint(&mut keyspace, 1 << 20);
                let mut copy = empty();
                again.iter().for_each(|chunk| copy.restore(chunk).expect("just written"));
                1_001 + copy.key_count(0) as u64
            }
        }
    });
}

/// Puts the checksum behind a dump right.
fn verify(bytes: &mut [u8]) {
    let Some(body_bytes) = bytes.len().checked_sub(8) else { return };
    let check = crc64(0, &bytes[..body_bytes]);
    bytes[body_bytes..].copy_from_slice(&check.to_le_bytes());
}

#[test]
fn fuzz_restore() {
    let mut local = local();
    let keys = ["text", "number", "long", "hash", "integers", "set", "list", "sorted", "stream", "log", "document"];
    let corpus: Vec<_> = keys
        .into_iter()
        .chain(["large-hash", "large-set", "large-sorted", "large-list"])
        .map(|key| match local.call(&["DUMP", key]) {
            Frame::Bulk(bytes) => bytes,
            other => panic!("{key}: {other}"),
        })
        .collect();
    let limits = Limits::default();
    Fuzz::new("restore", corpus).repair(verify).run(|input| match restore(input, &limits) {
        Err(malformed) => malformed as u64,
        // What is accepted can be dumped, and that is accepted, too.
        Ok(value) => {
            let again = dump(value.as_ref());
            assert!(restore(&again, &limits).is_ok(), "{again:?}");
            2 + 16 * u64::from(again[0]) + 4_096 * (again.len() as u64).min(64)
        }
    });
}

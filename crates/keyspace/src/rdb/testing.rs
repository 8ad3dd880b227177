//! Dumps of collections against those of Redis, for the tests of each type.

use super::{Malformed, VERSION, restore};
use crate::collection::Limits;
use crate::crc64::crc64;
use crate::testing::Harness;

/// Each command makes the key `h`, of which DUMP of Redis 7.0.15 answered the bytes, in hexadecimal.
pub(crate) fn check_golden(cases: &[(&str, &str)]) {
    for (command, golden) in cases {
        let golden: Vec<u8> = golden
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("two digits"))
            .collect();
        let mut harness = Harness::new();
        harness.run(command);
        let mut expected = format!("${}\r\n", golden.len()).into_bytes();
        expected.extend_from_slice(&golden);
        expected.extend_from_slice(b"\r\n");
        assert_eq!(harness.run_words(&[b"DUMP", b"h"]), expected, "{command}");
        assert_eq!(harness.run_words(&[b"RESTORE", b"i", b"0", &golden]), b"+OK\r\n", "{command}");
        let [old, new] = ["h", "i"].map(|key| harness.run(&format!("OBJECT ENCODING {key}")));
        assert_eq!(old, new, "{command}");
        assert_eq!(harness.run_words(&[b"DUMP", b"i"]), expected, "{command}");
    }
}

/// Each encoded value is none, for a reason.
pub(crate) fn check_refused(cases: &[(&[u8], &str)]) {
    for (value, why) in cases {
        let mut bytes = value.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        let checksum = crc64(0, &bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        assert_eq!(restore(&bytes, &Limits::default()), Err(Malformed::Value), "{why}");
    }
}

/// Each encoded value is the one that the command makes at the key `h`.
pub(crate) fn check_same(command: &str, values: &[&[u8]]) {
    let mut harness = Harness::new();
    harness.run(command);
    let expected = harness.run_words(&[b"DUMP", b"h"]);
    for value in values {
        // Redis 6.2's version.
        let mut bytes = [*value, b"\x09\x00"].concat();
        let checksum = crc64(0, &bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        assert_eq!(harness.run_words(&[b"RESTORE", b"i", b"0", &bytes, b"REPLACE"]), b"+OK\r\n", "{value:?}");
        assert_eq!(harness.run_words(&[b"DUMP", b"i"]), expected, "{value:?}");
    }
}

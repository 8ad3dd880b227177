//! What a backup says of itself: see `docs/formats/backup.md`.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, bail};
use journal::{CheckpointMark, Identity};
use stdx::{Level, Levels, UnixMillis};

/// Written last: a directory without it is no backup.
pub const MANIFEST_FILE: &str = "backup";

const TITLE: &str = "holdfast backup";
const FORMAT_VERSION: u64 = 1;

/// Format of the file above level 1: versions that know nothing of levels refuse the backup by it.
const LEVELLED_VERSION: u64 = 2;

/// The manifest of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Random; part of every checksum in the backup, so that no file of another one verifies.
    pub name: u128,
    /// The moment of the data that it holds, as the node that was asked had it.
    pub moment: UnixMillis,
    /// Databases that there may be keys in.
    pub databases: u16,
    /// Nothing in it is of a higher level.
    pub level: Level,
    /// One for each group, in order.
    pub parts: Vec<Part>,
}

/// What a group's file holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Number of chunks.
    pub chunks: u64,
    /// Bytes in all chunks.
    pub bytes: u64,
}

/// What every file of a backup is marked with: the index of an entry means nothing outside of its cluster.
pub fn mark() -> CheckpointMark {
    CheckpointMark { index: 1, term: 1, ..CheckpointMark::default() }
}

impl Manifest {
    /// The identity that the checkpoints in a backup belong to.
    pub fn identity(&self) -> Identity {
        identity(self.name, self.parts.len() as u32)
    }

    /// The content of the file.
    pub fn encode(&self) -> String {
        let Self { name, moment, databases, level, parts } = self;
        let format = if *level == Level::FIRST { FORMAT_VERSION } else { LEVELLED_VERSION };
        let mut text = format!(
            "{TITLE}\nformat {format}\nname {name:032x}\nmoment {}\ndatabases {databases}\ngroups {}\n",
            moment.0,
            parts.len()
        );
        if *level != Level::FIRST {
            text.push_str(&format!("level {level}\n"));
        }
        for (group, Part { chunks, bytes }) in parts.iter().enumerate() {
            text.push_str(&format!("group {group} chunks {chunks} bytes {bytes}\n"));
        }
        let checksum = crc32c::crc32c(text.as_bytes());
        text.push_str(&format!("checksum {checksum:08x}\n"));
        text
    }

    /// Reads the manifest of a backup.
    ///
    /// # Errors
    /// If there is none, or it is not what was written.
    pub fn read(backup: &Path) -> Result<Self> {
        let path = backup.join(MANIFEST_FILE);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound && backup.is_dir() => {
                bail!(
                    "{} is not a backup: it has no file '{MANIFEST_FILE}'; `holdfast backup list` shows the backups in a directory",
                    backup.display()
                )
            }
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        Self::decode(&bytes).with_context(|| format!("{}", path.display()))
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let Some(text) = std::str::from_utf8(bytes).ok().filter(|text| text.starts_with(TITLE)) else {
            bail!("this is no manifest of a backup");
        };
        let fact = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let number = |name: &str| fact(name).and_then(|text| text.parse::<u64>().ok());
        if let Some(version) = number("format").filter(|version| *version > LEVELLED_VERSION) {
            bail!("it has format {version}, and this version of Holdfast knows formats up to {LEVELLED_VERSION}");
        }
        let level = number("level").map_or(Some(Level::FIRST), |level| u8::try_from(level).ok().map(Level));
        let read = || {
            let part = |line: &str| {
                let words: Vec<_> = line.strip_prefix("group ")?.split(' ').collect();
                let [_, "chunks", chunks, "bytes", bytes] = words[..] else { return None };
                Some(Part { chunks: chunks.parse().ok()?, bytes: bytes.parse().ok()? })
            };
            Some(Self {
                name: u128::from_str_radix(fact("name")?, 16).ok()?,
                moment: UnixMillis(fact("moment")?.parse().ok()?),
                databases: u16::try_from(number("databases")?).ok()?,
                level: level?,
                parts: text.lines().filter_map(part).collect(),
            })
        };
        // Whatever differs from what we would write is damage: this covers the checksum and the number of groups.
        let found = read().filter(|manifest| manifest.encode().as_bytes() == bytes);
        let found = found.context("it is damaged: it does not verify")?;
        if !Levels::KNOWN.contains(found.level) {
            let (level, known) = (found.level, Levels::KNOWN);
            bail!("it was written at level {level}, and this version of Holdfast knows {known}: use a later version");
        }
        Ok(found)
    }
}

/// See [`Manifest::identity`].
pub fn identity(name: u128, group_count: u32) -> Identity {
    Identity { directory: name, cluster: 0, node: 0, group_count, hash_seed: 0, has_joined: false, level: Level::FIRST }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let parts = vec![Part { chunks: 3, bytes: 70_000 }, Part { chunks: 1, bytes: 11 }];
        let moment = UnixMillis(1_700_000_000_123);
        Manifest { name: 0xfeed << 64, moment, databases: 16, level: Level::FIRST, parts }
    }

    #[test]
    fn a_level_is_told_and_one_that_is_not_known_is_named() {
        let risen = Manifest { level: Level(2), ..manifest() };
        let text = risen.encode();
        assert!(text.contains("\nformat 2\n") && text.contains("\ngroups 2\nlevel 2\n"), "{text}");
        assert_eq!(Manifest::decode(text.as_bytes()).unwrap(), risen);
        let later = Manifest { level: Level(3), ..manifest() }.encode();
        let error = Manifest::decode(later.as_bytes()).unwrap_err().to_string();
        assert!(
            error.starts_with("it was written at level 3, and this version of Holdfast knows levels 1 to 2"),
            "{error}"
        );
    }

    #[test]
    fn the_file_is_text_and_reads_back() {
        let text = manifest().encode();
        assert!(
            text.starts_with(
                "holdfast backup\nformat 1\nname 000000000000feed0000000000000000\nmoment 1700000000123\ndatabases 16\n\
                 groups 2\ngroup 0 chunks 3 bytes 70000\ngroup 1 chunks 1 bytes 11\nchecksum "
            ),
            "{text}"
        );
        assert_eq!(Manifest::decode(text.as_bytes()).unwrap(), manifest());
    }

    #[test]
    fn every_truncation_and_every_flipped_bit_is_refused() {
        let bytes = manifest().encode().into_bytes();
        for length in 0..bytes.len() {
            assert!(Manifest::decode(&bytes[..length]).is_err(), "cut to {length} bytes");
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(&flipped).is_err(), "bit {bit} flipped");
        }
    }

    #[test]
    fn a_newer_format_is_named() {
        let text = manifest().encode().replace("format 1\n", "format 3\n");
        let error = Manifest::decode(text.as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), "it has format 3, and this version of Holdfast knows formats up to 2");
    }
}

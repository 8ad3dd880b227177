//! What a data directory says of itself: see `docs/formats/data-directory.md`.

use stdx::Level;

use crate::fault::Fault;
use crate::layout::{FORMAT_VERSION, IDENTITY_FILE};

/// Format of the file above level 1: versions that know nothing of levels refuse the directory by it.
const LEVELLED_VERSION: u32 = 2;

/// Which node a directory belongs to, and what can never change in it. Only the level may rise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Random; different for every directory ever made. Part of every checksum, so that nothing from elsewhere
    /// verifies.
    pub directory: u128,
    /// The cluster it belongs to.
    pub cluster: u128,
    /// The node it belongs to. Never reused once the directory is lost.
    pub node: u64,
    /// Number of groups, numbered from 0.
    pub group_count: u32,
    /// Seed of the keyspace's hash, on which the order of SCAN rests.
    pub hash_seed: u64,
    /// The node came to a cluster that was there before: without a checkpoint it knows nobody, not even itself.
    pub has_joined: bool,
    /// No log in the directory holds anything of a higher level. It is on disk before the first entry of it is.
    pub level: Level,
}

const TITLE: &str = "holdfast data directory";

impl Identity {
    /// The content of the identity file.
    pub fn encode(&self) -> String {
        let format = if self.level == Level::FIRST { FORMAT_VERSION } else { LEVELLED_VERSION };
        let mut text = format!(
            "{TITLE}\nformat {format}\ndirectory {:032x}\ncluster {:032x}\nnode {}\ngroups {}\nhash-seed {:016x}\n",
            self.directory, self.cluster, self.node, self.group_count, self.hash_seed
        );
        if self.has_joined {
            text.push_str("origin joined\n");
        }
        if self.level != Level::FIRST {
            text.push_str(&format!("level {}\n", self.level));
        }
        let checksum = crc32c::crc32c(text.as_bytes());
        text.push_str(&format!("checksum {checksum:08x}\n"));
        text
    }

    /// Reads the content of the identity file. Anything but what [`encode`](Self::encode) writes is refused.
    ///
    /// # Errors
    /// [`Fault::Newer`] for a later format, [`Fault::Damaged`] otherwise.
    pub fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let damaged = |offset: usize, what: &str| Fault::damaged(IDENTITY_FILE, offset as u64, what);
        let text = str::from_utf8(bytes).map_err(|error| damaged(error.valid_up_to(), "not text"))?;
        let mut offset = 0;
        let mut line = |name: &str| -> Result<&str, Fault> {
            let rest = &text[offset..];
            let end = rest.find('\n').ok_or_else(|| damaged(offset, "the file ends too early"))?;
            let value = rest[..end]
                .strip_prefix(name)
                .and_then(|value| if name == TITLE { Some(value) } else { value.strip_prefix(' ') })
                .ok_or_else(|| damaged(offset, &format!("expected a line '{name}'")))?;
            offset += end + 1;
            Ok(value)
        };
        line(TITLE)?;
        let version: u64 = line("format")?.parse().map_err(|_| damaged(TITLE.len() + 1, "no format number"))?;
        if version > u64::from(LEVELLED_VERSION) {
            return Err(Fault::Newer { file: IDENTITY_FILE.into(), version, known: LEVELLED_VERSION });
        }
        let numbers = |name: &str, value: &str, radix: u32| {
            u128::from_str_radix(value, radix).map_err(|_| damaged(0, &format!("'{name}' is no number")))
        };
        let mut identity = Self {
            directory: numbers("directory", line("directory")?, 16)?,
            cluster: numbers("cluster", line("cluster")?, 16)?,
            node: numbers("node", line("node")?, 10)? as u64,
            group_count: numbers("groups", line("groups")?, 10)? as u32,
            hash_seed: numbers("hash-seed", line("hash-seed")?, 16)? as u64,
            has_joined: text.contains("\norigin joined\n"),
            level: Level::FIRST,
        };
        if identity.has_joined {
            line("origin")?;
        }
        if version == u64::from(LEVELLED_VERSION) {
            let level = numbers("level", line("level")?, 10)?;
            identity.level = Level(u8::try_from(level).map_err(|_| damaged(0, "'level' is no level"))?);
        }
        line("checksum")?;
        // Whatever differs from what we would write is damage: this covers the checksum, spare bytes and number ranges.
        if identity.encode().as_bytes() != bytes {
            return Err(damaged(0, "the checksum does not match"));
        }
        Ok(identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity = Identity {
        directory: 0xfeed << 64,
        cluster: 7,
        node: 3,
        group_count: 2,
        hash_seed: 0xdead_beef,
        has_joined: false,
        level: Level::FIRST,
    };

    #[test]
    fn the_file_is_text_and_reads_back() {
        let text = IDENTITY.encode();
        assert_eq!(
            text,
            "holdfast data directory\nformat 1\ndirectory 000000000000feed0000000000000000\n\
             cluster 00000000000000000000000000000007\nnode 3\ngroups 2\nhash-seed 00000000deadbeef\nchecksum 6848c420\n"
        );
        assert_eq!(Identity::decode(text.as_bytes()).unwrap(), IDENTITY);
        let joined = Identity { has_joined: true, ..IDENTITY };
        assert_eq!(Identity::decode(joined.encode().as_bytes()).unwrap(), joined);
        let risen = Identity { level: Level(3), ..joined };
        assert!(risen.encode().contains("\nformat 2\n") && risen.encode().contains("\norigin joined\nlevel 3\n"));
        assert_eq!(
            Identity::decode(risen.encode().as_bytes()).unwrap(),
            risen,
            "whether it may be opened is said later"
        );
    }

    #[test]
    fn every_truncation_and_every_flipped_bit_is_refused() {
        let bytes = Identity { has_joined: true, level: Level(2), ..IDENTITY }.encode().into_bytes();
        for length in 0..bytes.len() {
            assert!(Identity::decode(&bytes[..length]).is_err(), "cut to {length} bytes");
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Identity::decode(&flipped).is_err(), "bit {bit} flipped");
        }
    }

    #[test]
    fn a_newer_format_is_named() {
        let text = IDENTITY.encode().replace("format 1\n", "format 3\n");
        let fault = Identity::decode(text.as_bytes()).unwrap_err();
        assert_eq!(fault.to_string(), "identity has format 3, and this version of Holdfast knows formats up to 2");
    }
}

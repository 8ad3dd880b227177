//! Names and sizes of what is in a data directory.

use crate::disk::BLOCK_BYTES;

/// Version of all formats in a data directory. A directory of a newer version is refused.
pub const FORMAT_VERSION: u32 = 1;

/// Size of a log segment unless configured.
pub const SEGMENT_BYTES_DEFAULT: u64 = 64 << 20;

/// Smallest segment that may be configured.
pub const SEGMENT_BYTES_MIN: u64 = 64 << 10;

/// Largest body of a log record: one value of 512 MiB with room for its company.
pub const RECORD_BODY_BYTES_MAX: u64 = 1 << 30;

/// The file that a process locks while it uses the directory. Its content means nothing.
pub const LOCK_FILE: &str = "lock";

/// The file that says what the directory is.
pub const IDENTITY_FILE: &str = "identity";

/// The file that says how far the log was on stable storage.
pub const TAIL_FILE: &str = "tail";

/// What faults call the directory itself.
pub const DIRECTORY: &str = "the data directory";

/// The identity while it is being written.
pub const IDENTITY_FILE_NEW: &str = "identity.new";

const _: () = assert!(SEGMENT_BYTES_MIN.is_multiple_of(BLOCK_BYTES as u64));
const _: () = assert!(SEGMENT_BYTES_DEFAULT.is_multiple_of(BLOCK_BYTES as u64));

/// Name of a group's checkpoint at a log index.
pub fn checkpoint_file(group: u32, index: u64) -> String {
    format!("checkpoint-{group:05}-{index:016x}")
}

/// The group that a checkpoint file belongs to, by the file's name.
pub fn group_of_checkpoint(name: &str) -> Option<u32> {
    match classify(name) {
        FileKind::Checkpoint { group, .. } => Some(group),
        _ => None,
    }
}

/// Name of a checkpoint while it is being written. There is at most one a group.
pub fn checkpoint_file_new(group: u32) -> String {
    format!("checkpoint-{group:05}.new")
}

/// Name of a log segment.
pub fn segment_file(sequence: u64) -> String {
    format!("log-{sequence:016x}")
}

/// Name of a segment that is being prepared for use.
pub fn segment_file_new(sequence: u64) -> String {
    format!("log-{sequence:016x}.new")
}

/// What a file in the directory is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A log segment.
    Segment { sequence: u64 },
    /// A checkpoint.
    Checkpoint { group: u32, index: u64 },
    /// Something that was being made when the process ended. Worth nothing.
    Unfinished,
    /// The identity.
    Identity,
    /// How far the log was on stable storage.
    Tail,
    /// The lock, or what a file system puts there by itself.
    Ignored,
    /// Not ours.
    Unknown,
}

/// Reads a name.
pub fn classify(name: &str) -> FileKind {
    let hex = |digits: &str| -> Option<u64> {
        let is_plain = digits.len() == 16 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
    };
    if name == IDENTITY_FILE {
        return FileKind::Identity;
    }
    if name == TAIL_FILE {
        return FileKind::Tail;
    }
    if name == LOCK_FILE || name == CONFIGURATION_FILE || name == "lost+found" || name.starts_with('.') {
        return FileKind::Ignored;
    }
    let is_ours = name == IDENTITY_FILE_NEW || name.starts_with("log-") || name.starts_with("checkpoint-");
    if is_ours && name.ends_with(".new") {
        return FileKind::Unfinished;
    }
    if let Some(sequence) = name.strip_prefix("log-").and_then(hex) {
        return FileKind::Segment { sequence };
    }
    if let Some((group, index)) = name.strip_prefix("checkpoint-").and_then(|rest| rest.split_once('-'))
        && let (Ok(group), Some(index)) = (group.parse(), hex(index))
        && checkpoint_file(group, index) == name
    {
        return FileKind::Checkpoint { group, index };
    }
    FileKind::Unknown
}

/// What CONFIG REWRITE has written, where there was no other file.
pub const CONFIGURATION_FILE: &str = "holdfast.conf";

/// True for a file that keeps a directory without an identity from being made new.
pub fn is_foreign_file(name: &str) -> bool {
    classify(name) == FileKind::Unknown
}

/// True for a file that belongs to the node, and not to the directory that the node uses.
pub fn is_own_file(name: &str) -> bool {
    !matches!(classify(name), FileKind::Ignored | FileKind::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_were_made() {
        for (name, kind) in [
            (segment_file(0x1f), FileKind::Segment { sequence: 0x1f }),
            (segment_file_new(3), FileKind::Unfinished),
            (checkpoint_file(70_000, 9), FileKind::Checkpoint { group: 70_000, index: 9 }),
            (checkpoint_file_new(2), FileKind::Unfinished),
            (IDENTITY_FILE.to_owned(), FileKind::Identity),
            (IDENTITY_FILE_NEW.to_owned(), FileKind::Unfinished),
            (TAIL_FILE.to_owned(), FileKind::Tail),
            (LOCK_FILE.to_owned(), FileKind::Ignored),
            ("lost+found".to_owned(), FileKind::Ignored),
            ("dump.rdb".to_owned(), FileKind::Unknown),
            ("log-1".to_owned(), FileKind::Unknown),
            ("log-+00000000000001f".to_owned(), FileKind::Unknown),
            ("checkpoint-1-0000000000000001".to_owned(), FileKind::Unknown),
        ] {
            assert_eq!(classify(&name), kind, "{name}");
        }
    }
}

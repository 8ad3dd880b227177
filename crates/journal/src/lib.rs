//! What is on disk: the logs of all groups in one stream, checkpoints, and what to make of them after a crash.
//!
//! The crate decides and encodes; it opens no file. Everything goes through [`Disk`], of which there are two: the real
//! one in `edge`, and the one in `simulation` that loses power. It knows nothing of commands or keys: an entry's data
//! and a checkpoint's chunks are bytes. The formats are written down in `docs/formats`.
//!
//! The promise: what was synced is found again, or the fault names the file and the offset. Nothing is skipped.

mod buffer;
mod checkpoint;
mod chore;
mod disk;
mod fault;
mod frame;
mod identity;
mod journal;
mod layout;
mod reader;
mod record;
mod recovery;
mod tail;
mod types;

pub use checkpoint::{CHUNK_BYTES_MAX, CheckpointFile, CheckpointReader};
pub use chore::Chore;
pub use disk::{BLOCK_BYTES, Disk};
pub use fault::Fault;
pub use identity::Identity;
pub use journal::{Journal, Syncing, raise_level};
pub use layout::{
    FORMAT_VERSION, IDENTITY_FILE, LOCK_FILE, SEGMENT_BYTES_DEFAULT, checkpoint_file, group_of_checkpoint,
    is_foreign_file, is_own_file,
};
pub use reader::{LogMap, LogReader, Span, Unread};
pub use types::{Append, CheckpointMark, Options, Recovered, RecoveredGroup};

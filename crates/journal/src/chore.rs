//! Work of a journal that may as well be done in the background, on another thread and another handle of the disk.

use crate::buffer::BlockBuffer;
use crate::disk::Disk;
use crate::fault::{self, Fault};
use crate::identity::Identity;
use crate::layout::{DIRECTORY, segment_file, segment_file_new};
use crate::record::encode_segment_header;

/// One piece of such work. See [`crate::Journal::chore`].
#[derive(Debug)]
pub struct Chore(Work);

#[derive(Debug)]
enum Work {
    /// Make the segment `sequence`, from an old one if that is given.
    Prepare { directory: u128, sequence: u64, bytes: u64, recycle: Option<u64> },
    /// Remove files.
    Remove { names: Vec<String> },
}

impl Chore {
    pub(crate) fn prepare(identity: &Identity, sequence: u64, bytes: u64, recycle: Option<u64>) -> Self {
        Self(Work::Prepare { directory: identity.directory, sequence, bytes, recycle })
    }

    pub(crate) fn remove(names: Vec<String>) -> Self {
        Self(Work::Remove { names })
    }

    /// Sequence and size of the segment it prepares.
    pub(crate) fn prepared(&self) -> Option<(u64, u64)> {
        match &self.0 {
            Work::Prepare { sequence, bytes, .. } => Some((*sequence, *bytes)),
            Work::Remove { .. } => None,
        }
    }

    /// Does it.
    ///
    /// # Errors
    /// [`Fault::Full`] if there is no room; any error of the disk.
    pub fn run<D: Disk>(&self, disk: &D) -> Result<(), Fault> {
        match &self.0 {
            Work::Prepare { .. } => self.prepare_now(disk).map(drop),
            Work::Remove { names } => {
                for name in names {
                    disk.remove(name).map_err(Fault::io("remove", name))?;
                }
                Ok(())
            }
        }
    }

    /// Makes a segment under a name of its own, and gives it its real name when it is ready in all respects: a file
    /// with a segment's name has a good header.
    pub(crate) fn prepare_now<D: Disk>(&self, disk: &D) -> Result<D::File, Fault> {
        let Work::Prepare { directory, sequence, bytes, recycle } = &self.0 else {
            unreachable!("only a segment is prepared");
        };
        let (name, name_new) = (segment_file(*sequence), segment_file_new(*sequence));
        let file = match recycle {
            Some(old) => {
                let old = segment_file(*old);
                disk.rename(&old, &name_new).map_err(Fault::io("rename", &old))?;
                // The old name must be gone for good before its content is.
                disk.sync_directory().map_err(Fault::io("sync", DIRECTORY))?;
                disk.open(&name_new).map_err(Fault::io("open", &name_new))?
            }
            None => disk.create(&name_new, *bytes).map_err(|error| {
                if fault::is_full(&error) {
                    Fault::Full { file: name.clone(), bytes: *bytes }
                } else {
                    Fault::io("make", &name_new)(error)
                }
            })?,
        };
        let mut buffer = BlockBuffer::new(crate::disk::BLOCK_BYTES);
        buffer.push(&encode_segment_header(*directory, *sequence, *bytes));
        disk.write_at(&file, 0, buffer.blocks()).map_err(Fault::io("write to", &name_new))?;
        disk.sync(&file).map_err(Fault::io("sync", &name_new))?;
        disk.rename(&name_new, &name).map_err(Fault::io("rename", &name_new))?;
        disk.sync_directory().map_err(Fault::io("sync", DIRECTORY))?;
        // A disk may open a file once more, by the name it knows, to write it in another way.
        disk.open(&name).map_err(Fault::io("open", &name))
    }
}

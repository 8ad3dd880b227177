//! Copies for second sites, kept on disk while a line that was cut may go on with them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use stdx::UnixMillis;

use super::lock;
use crate::limits::{SITE_COPIES_MAX, SITE_COPY_KEPT_FOR};

/// All that groups held behind some places, as requests.
#[derive(Debug)]
pub struct SiteCopy {
    /// Its name, which no other copy has.
    pub id: u128,
    /// A file without a name: it goes with the process.
    pub file: File,
    pub bytes: u64,
    /// Behind which places it was cut.
    pub places: Vec<u64>,
    /// Nothing before them is later.
    pub moment: UnixMillis,
}

impl SiteCopy {
    /// Reads what comes from there on.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn read(&self, piece: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(piece, offset)
    }
}

/// Those that may be gone on with.
#[derive(Debug, Default)]
pub struct Copies {
    /// With the times at which they were used last; the one that was used last is behind the others.
    kept: Mutex<Vec<(Instant, Arc<SiteCopy>)>>,
}

impl Copies {
    /// Keeps one; too many are not kept.
    pub fn keep(&self, copy: &Arc<SiteCopy>) {
        let mut kept = lock(&self.kept);
        kept.retain(|(_, other)| other.id != copy.id);
        kept.push((Instant::now(), Arc::clone(copy)));
        let excess = kept.len().saturating_sub(SITE_COPIES_MAX);
        kept.drain(..excess);
    }

    /// The copy of this name, if it is there and has so many bytes.
    pub fn find(&self, id: u128, offset: u64) -> Option<Arc<SiteCopy>> {
        let found = lock(&self.kept).iter().find(|(_, copy)| copy.id == id && offset <= copy.bytes).cloned();
        found.map(|(_, copy)| copy)
    }

    /// Nobody needs it any more.
    pub fn forget(&self, id: u128) {
        lock(&self.kept).retain(|(_, copy)| copy.id != id);
    }

    /// Forgets those that nobody has asked for in a long time.
    pub fn forget_old(&self) {
        self.forget_unused_for(SITE_COPY_KEPT_FOR);
    }

    fn forget_unused_for(&self, duration: Duration) {
        lock(&self.kept).retain_mut(|(used, copy)| {
            if Arc::strong_count(copy) > 1 {
                // It is being sent.
                *used = Instant::now();
            }
            used.elapsed() < duration
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(id: u128) -> Arc<SiteCopy> {
        let path = std::env::temp_dir().join(format!("holdfast-copies-{}-{id}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).expect("a disk");
        std::fs::remove_file(path).expect("it is there");
        file.write_all_at(b"abcdef", 0).expect("a disk");
        Arc::new(SiteCopy { id, file, bytes: 6, places: vec![1], moment: UnixMillis(2) })
    }

    #[test]
    fn copies_are_found_until_nobody_asks_for_them() {
        let copies = Copies::default();
        let first = copy(1);
        copies.keep(&first);
        assert!(copies.find(1, 7).is_none() && copies.find(2, 0).is_none());
        let found = copies.find(1, 6).expect("kept");
        let mut piece = [0; 2];
        found.read(&mut piece, 3).expect("a disk");
        assert_eq!(&piece, b"de");
        assert!(found.read(&mut piece, 5).is_err(), "behind its end");
        copies.forget_unused_for(Duration::from_secs(60));
        drop((first, found));
        assert!(copies.find(1, 0).is_some());
        (2..10).for_each(|id| copies.keep(&copy(id)));
        assert!(copies.find(1, 0).is_none() && copies.find(9, 0).is_some());
        copies.forget(9);
        assert!(copies.find(9, 0).is_none());
    }
}

//! A disk that keeps only what it must.
//!
//! Every file has two images: what a process reads (the page cache) and what the platter holds. `sync` copies one to
//! the other. When the power fails, each 512-byte sector written since then is kept or lost by itself, and so is each
//! change of a name since the last sync of the directory; a killed process loses nothing. A sync that fails may have
//! written some sectors, and the others are never written again by a later sync unless they are written to first: that
//! is what Linux does.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;

use journal::{BLOCK_BYTES, Disk};
use stdx::Prng;

const SECTOR_BYTES: usize = 512;

/// Shared by everything on one node that touches its disk.
#[derive(Clone)]
pub struct FalseDisk(Rc<RefCell<State>>);

/// An open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FalseFile(u64);

/// How much of what was not synced survives a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// Nothing.
    Nothing,
    /// Everything: a battery, or luck.
    Everything,
    /// Each sector by the toss of a coin.
    AnySubset,
    /// What was written first, up to some point, which may lie inside a write.
    Prefix,
}

#[derive(Debug, Default)]
struct Content {
    cached: Vec<u8>,
    stored: Vec<u8>,
    /// Sectors written and not synced, with the place of the last write to each in the order of all writes.
    dirty: BTreeMap<usize, u64>,
}

/// A change of names, atomic in itself.
#[derive(Clone, Debug)]
struct Renaming {
    removed: Option<String>,
    added: Option<(String, u64)>,
}

struct State {
    files: BTreeMap<u64, Content>,
    names: BTreeMap<String, u64>,
    stored_names: BTreeMap<String, u64>,
    renamings: Vec<Renaming>,
    next_file: u64,
    write_count: u64,
    prng: Prng,
    is_full: bool,
    syncs_fail: bool,
    /// Operations that still succeed before the power fails in the middle of things.
    fuse: Option<u64>,
    is_dark: bool,
    /// Operations that changed something.
    operation_count: u64,
}

impl FalseDisk {
    /// An empty disk.
    pub fn new(prng: Prng) -> Self {
        Self(Rc::new(RefCell::new(State {
            files: BTreeMap::new(),
            names: BTreeMap::new(),
            stored_names: BTreeMap::new(),
            renamings: Vec::new(),
            next_file: 1,
            write_count: 0,
            prng,
            is_full: false,
            syncs_fail: false,
            fuse: None,
            is_dark: false,
            operation_count: 0,
        })))
    }

    /// No file can be made or grow while this is so.
    pub fn set_full(&self, is_full: bool) {
        self.0.borrow_mut().is_full = is_full;
    }

    /// Whether new content finds no room.
    pub fn is_full(&self) -> bool {
        self.0.borrow().is_full
    }

    /// Syncs fail while this is so.
    pub fn set_syncs_fail(&self, syncs_fail: bool) {
        self.0.borrow_mut().syncs_fail = syncs_fail;
    }

    /// The power will fail after so many more operations, in the middle of whatever is being done then.
    pub fn set_fuse(&self, operations: u64) {
        self.0.borrow_mut().fuse = Some(operations);
    }

    /// One bit of a file turns, if the file is there and so long.
    pub fn rot(&self, name: &str, offset: u64, bit: u32) {
        let state = &mut *self.0.borrow_mut();
        let Some(content) = state.names.get(name).and_then(|id| state.files.get_mut(id)) else { return };
        for image in [&mut content.cached, &mut content.stored] {
            if let Some(byte) = image.get_mut(offset as usize) {
                *byte ^= 1 << (bit % 8);
            }
        }
    }

    /// Everything written so far reaches the platter, as the system sees to in time.
    pub fn write_back(&self) {
        let state = &mut *self.0.borrow_mut();
        for content in state.files.values_mut() {
            for sector in std::mem::take(&mut content.dirty).into_keys() {
                content.store(sector);
            }
        }
        state.renamings.clear();
        state.stored_names = state.names.clone();
    }

    /// True while operations may fail through no fault of their caller.
    pub fn is_ill(&self) -> bool {
        let state = self.0.borrow();
        state.is_full || state.syncs_fail || state.is_dark
    }

    /// Has the fuse blown?
    pub fn is_dark(&self) -> bool {
        self.0.borrow().is_dark
    }

    /// Operations so far that changed something.
    pub fn operation_count(&self) -> u64 {
        self.0.borrow().operation_count
    }

    /// What somebody gets who copies all files at this moment, as they are read, to another disk.
    pub fn copy(&self, prng: Prng) -> Self {
        let copy = Self::new(prng);
        {
            let (from, to) = (self.0.borrow(), &mut *copy.0.borrow_mut());
            let content_of = |content: &Content| {
                let cached = content.cached.clone();
                Content { stored: cached.clone(), cached, dirty: BTreeMap::new() }
            };
            to.files = from.files.iter().map(|(id, content)| (*id, content_of(content))).collect();
            (to.names, to.stored_names) = (from.names.clone(), from.names.clone());
            to.next_file = from.next_file;
        }
        copy
    }

    /// The process is gone. What it wrote stays in the page cache.
    pub fn kill(&self) {
        let mut state = self.0.borrow_mut();
        (state.fuse, state.is_dark) = (None, false);
    }

    /// The power fails and comes back. Returns the number of sectors lost.
    pub fn cut_power(&self, survival: Survival) -> usize {
        let state = &mut *self.0.borrow_mut();
        (state.fuse, state.is_dark) = (None, false);
        let horizon = state.prng.below(state.write_count + 1);
        let mut lost_count = 0;
        let prng = &mut state.prng;
        let mut survives = |order: u64| match survival {
            Survival::Nothing => false,
            Survival::Everything => true,
            Survival::AnySubset => prng.chance(1, 2),
            Survival::Prefix => order < horizon,
        };
        for content in state.files.values_mut() {
            for (sector, order) in std::mem::take(&mut content.dirty) {
                if survives(order) {
                    content.store(sector);
                } else {
                    lost_count += 1;
                }
            }
            content.cached.clone_from(&content.stored);
        }
        // A change of a name that was lost takes with it all later changes of the same names.
        let mut stuck = BTreeSet::new();
        for renaming in std::mem::take(&mut state.renamings) {
            let names = renaming.removed.iter().chain(renaming.added.iter().map(|(name, _)| name));
            let names: Vec<String> = names.cloned().collect();
            let kept = survives(u64::MAX - 1) || survival == Survival::Prefix && horizon.is_multiple_of(2);
            if !kept || names.iter().any(|name| stuck.contains(name)) {
                stuck.extend(names);
            } else {
                renaming.apply(&mut state.stored_names);
            }
        }
        state.names.clone_from(&state.stored_names);
        let reachable: BTreeSet<u64> = state.names.values().copied().collect();
        state.files.retain(|id, _| reachable.contains(id));
        lost_count
    }

    fn change<T>(&self, action: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let state = &mut *self.0.borrow_mut();
        if let Some(fuse) = &mut state.fuse {
            if *fuse == 0 {
                state.is_dark = true;
            } else {
                *fuse -= 1;
            }
        }
        if state.is_dark {
            return Err(io::Error::other("the power is gone"));
        }
        state.operation_count += 1;
        action(state)
    }
}

impl Content {
    fn store(&mut self, sector: usize) {
        let start = sector * SECTOR_BYTES;
        let end = (start + SECTOR_BYTES).min(self.cached.len());
        if self.stored.len() < end {
            self.stored.resize(end, 0);
        }
        self.stored[start..end].copy_from_slice(&self.cached[start..end]);
    }
}

impl Renaming {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        if let Some(removed) = &self.removed {
            names.remove(removed);
        }
        if let Some((name, id)) = &self.added {
            names.insert(name.clone(), *id);
        }
    }
}

impl State {
    fn rename(&mut self, renaming: Renaming) {
        renaming.apply(&mut self.names);
        self.renamings.push(renaming);
    }

    fn content(&mut self, file: FalseFile) -> &mut Content {
        self.files.get_mut(&file.0).expect("an open file")
    }

    fn write(&mut self, file: FalseFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
        assert!(offset.is_multiple_of(BLOCK_BYTES as u64), "a write at {offset}, which is no multiple of a block");
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        if self.is_full && end > self.content(file).cached.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.write_count += 1;
        let order = self.write_count;
        let content = self.content(file);
        if content.cached.len() < end {
            content.cached.resize(end, 0);
        }
        content.cached[start..end].copy_from_slice(bytes);
        content.dirty.extend((start / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES)).map(|sector| (sector, order)));
        Ok(())
    }

    fn sync(&mut self, file: FalseFile) -> io::Result<()> {
        let dirty = std::mem::take(&mut self.content(file).dirty);
        let fails = self.syncs_fail;
        for sector in dirty.into_keys() {
            if !fails || self.prng.chance(1, 2) {
                self.content(file).store(sector);
            }
        }
        if fails { Err(io::Error::other("input/output error")) } else { Ok(()) }
    }
}

impl Disk for FalseDisk {
    type File = FalseFile;

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.borrow().names.keys().cloned().collect())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<FalseFile> {
        self.change(|state| {
            if state.is_full {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let id = state.next_file;
            state.next_file += 1;
            let zeros = vec![0; bytes as usize];
            state.files.insert(id, Content { cached: zeros.clone(), stored: zeros, dirty: BTreeMap::new() });
            state.rename(Renaming { removed: None, added: Some((name.to_owned(), id)) });
            Ok(FalseFile(id))
        })
    }

    fn open(&self, name: &str) -> io::Result<FalseFile> {
        let state = self.0.borrow();
        state.names.get(name).map(|id| FalseFile(*id)).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn length(&self, file: &FalseFile) -> io::Result<u64> {
        Ok(self.0.borrow_mut().content(*file).cached.len() as u64)
    }

    fn read_at(&self, file: &FalseFile, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let state = &mut *self.0.borrow_mut();
        let cached = &state.content(*file).cached;
        let start = (offset as usize).min(cached.len());
        let count = buffer.len().min(cached.len() - start);
        buffer[..count].copy_from_slice(&cached[start..start + count]);
        Ok(count)
    }

    fn write_at(&self, file: &FalseFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.change(|state| state.write(*file, offset, bytes))
    }

    fn write_at_durably(&self, file: &FalseFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.change(|state| state.write(*file, offset, bytes))?;
        // Two operations: the power may fail between them.
        self.change(|state| {
            if state.syncs_fail {
                return state.sync(*file);
            }
            let content = state.content(*file);
            for sector in offset as usize / SECTOR_BYTES..(offset as usize + bytes.len()).div_ceil(SECTOR_BYTES) {
                content.dirty.remove(&sector);
                content.store(sector);
            }
            Ok(())
        })
    }

    fn sync(&self, file: &FalseFile) -> io::Result<()> {
        self.change(|state| state.sync(*file))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.change(|state| {
            if state.names.contains_key(name) {
                state.rename(Renaming { removed: Some(name.to_owned()), added: None });
            }
            Ok(())
        })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change(|state| {
            let id = *state.names.get(from).ok_or(io::ErrorKind::NotFound)?;
            state.rename(Renaming { removed: Some(from.to_owned()), added: Some((to.to_owned(), id)) });
            Ok(())
        })
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.change(|state| {
            if state.syncs_fail {
                return Err(io::Error::other("input/output error"));
            }
            state.renamings.clear();
            state.stored_names = state.names.clone();
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> (FalseDisk, FalseFile) {
        let disk = FalseDisk::new(Prng::new(5));
        let file = disk.create("log", 2 * BLOCK_BYTES as u64).unwrap();
        disk.sync_directory().unwrap();
        (disk, file)
    }

    fn read(disk: &FalseDisk) -> Vec<u8> {
        let file = disk.open("log").unwrap();
        let mut bytes = vec![0; disk.length(&file).unwrap() as usize];
        disk.read_at(&file, 0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_kill_loses_nothing_and_a_power_cut_what_was_not_synced() {
        let (disk, file) = disk();
        disk.write_at(&file, 0, &[1; BLOCK_BYTES]).unwrap();
        disk.kill();
        assert_eq!(read(&disk)[..BLOCK_BYTES], [1; BLOCK_BYTES]);
        disk.sync(&file).unwrap();
        disk.write_at(&file, 0, &[2; BLOCK_BYTES]).unwrap();
        assert_eq!(disk.cut_power(Survival::Nothing), BLOCK_BYTES / SECTOR_BYTES);
        assert_eq!(read(&disk)[..BLOCK_BYTES], [1; BLOCK_BYTES]);
    }

    #[test]
    fn sectors_are_lost_one_by_one_and_never_in_part() {
        let (disk, file) = disk();
        disk.write_at(&file, 0, &[7; 2 * BLOCK_BYTES]).unwrap();
        let lost_count = disk.cut_power(Survival::AnySubset);
        let bytes = read(&disk);
        let sectors: Vec<u8> = bytes.chunks(SECTOR_BYTES).map(|sector| sector[0]).collect();
        assert!(bytes.chunks(SECTOR_BYTES).all(|sector| sector.iter().all(|byte| *byte == sector[0])));
        assert_eq!(sectors.iter().filter(|byte| **byte == 0).count(), lost_count);
        assert!(sectors.contains(&0) && sectors.contains(&7));
    }

    #[test]
    fn a_durable_write_says_nothing_about_earlier_ones() {
        let (disk, file) = disk();
        disk.write_at(&file, 0, &[1; BLOCK_BYTES]).unwrap();
        disk.write_at_durably(&file, BLOCK_BYTES as u64, &[2; BLOCK_BYTES]).unwrap();
        disk.cut_power(Survival::Nothing);
        assert_eq!(read(&disk)[..BLOCK_BYTES], [0; BLOCK_BYTES]);
        assert_eq!(read(&disk)[BLOCK_BYTES..], [2; BLOCK_BYTES]);
    }

    #[test]
    fn names_are_lost_until_the_directory_is_synced() {
        let (disk, _) = disk();
        disk.create("new", 0).unwrap();
        disk.rename("log", "old").unwrap();
        assert_eq!(disk.list().unwrap(), ["new", "old"]);
        disk.cut_power(Survival::Nothing);
        assert_eq!(disk.list().unwrap(), ["log"]);
    }

    #[test]
    fn after_a_failed_sync_another_proves_nothing() {
        let (disk, file) = disk();
        disk.write_at(&file, 0, &[1; BLOCK_BYTES]).unwrap();
        disk.set_syncs_fail(true);
        disk.sync(&file).unwrap_err();
        disk.set_syncs_fail(false);
        disk.sync(&file).unwrap();
        assert_eq!(read(&disk)[..BLOCK_BYTES], [1; BLOCK_BYTES], "the page cache still shows it");
        disk.cut_power(Survival::Everything);
        assert!(read(&disk)[..BLOCK_BYTES].contains(&0), "some of it never reached the platter");
    }

    #[test]
    fn a_full_disk_takes_writes_into_what_is_there_and_nothing_else() {
        let (disk, file) = disk();
        disk.set_full(true);
        assert_eq!(disk.create("more", 1).unwrap_err().kind(), io::ErrorKind::StorageFull);
        disk.write_at(&file, 0, &[1; BLOCK_BYTES]).unwrap();
        let beyond = disk.write_at(&file, 2 * BLOCK_BYTES as u64, &[1; BLOCK_BYTES]);
        assert_eq!(beyond.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn a_fuse_blows_in_the_middle_of_things() {
        let (disk, file) = disk();
        disk.set_fuse(1);
        disk.write_at(&file, 0, &[1; BLOCK_BYTES]).unwrap();
        disk.write_at(&file, 0, &[2; BLOCK_BYTES]).unwrap_err();
        assert!(disk.is_dark());
        disk.sync(&file).unwrap_err();
        disk.cut_power(Survival::Nothing);
        assert!(!disk.is_dark());
        assert_eq!(read(&disk)[..BLOCK_BYTES], [0; BLOCK_BYTES]);
    }
}

//! A disk in memory that loses power: what was not synced is lost in any subset of sectors, as the seed decides.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use journal::{BLOCK_BYTES, Disk};
use stdx::Prng;

const SECTOR_BYTES: usize = 512;

#[derive(Clone, Default)]
struct Inode {
    data: Vec<u8>,
    /// What has been synced.
    durable: Vec<u8>,
    /// Everything that was ever in a sector since it was synced.
    unsynced: BTreeMap<usize, Vec<[u8; SECTOR_BYTES]>>,
}

#[derive(Clone)]
enum NameChange {
    Link(String, usize),
    Unlink(String),
    Rename(String, String),
}

#[derive(Default)]
struct State {
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    names_durable: BTreeMap<String, usize>,
    pending: Vec<NameChange>,
    /// Changes left until the power fails; none is never.
    changes_left: Option<u64>,
    room_bytes: Option<u64>,
    /// Decides what a sync that fails has brought to the platter; none while syncs succeed.
    failing_syncs: Option<Prng>,
}

/// Handles share one disk.
#[derive(Clone, Default)]
pub struct MemoryDisk(Rc<RefCell<State>>);

fn no_power() -> io::Error {
    io::Error::other("the power is off")
}

fn apply(names: &mut BTreeMap<String, usize>, change: &NameChange) {
    match change {
        NameChange::Link(name, inode) => {
            names.insert(name.clone(), *inode);
        }
        NameChange::Unlink(name) => {
            names.remove(name);
        }
        NameChange::Rename(from, to) => {
            if let Some(inode) = names.remove(from) {
                names.insert(to.clone(), inode);
            }
        }
    }
}

impl State {
    /// Allows or refuses something that changes the disk.
    fn change(&mut self) -> io::Result<()> {
        match &mut self.changes_left {
            Some(0) => Err(no_power()),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn change_name(&mut self, change: NameChange) {
        apply(&mut self.names, &change);
        self.pending.push(change);
    }
}

impl Inode {
    fn sector(bytes: &[u8], number: usize) -> [u8; SECTOR_BYTES] {
        let mut sector = [0; SECTOR_BYTES];
        let start = number * SECTOR_BYTES;
        if start < bytes.len() {
            let part = &bytes[start..bytes.len().min(start + SECTOR_BYTES)];
            sector[..part.len()].copy_from_slice(part);
        }
        sector
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.data.len() < end {
            self.data.resize(end, 0);
        }
        self.data[offset..end].copy_from_slice(bytes);
        for number in offset / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES) {
            let sector = Self::sector(&self.data, number);
            self.unsynced.entry(number).or_default().push(sector);
        }
    }

    fn store(&mut self, number: usize) {
        let (start, end) = (number * SECTOR_BYTES, ((number + 1) * SECTOR_BYTES).min(self.data.len()));
        if self.durable.len() < end {
            self.durable.resize(end, 0);
        }
        self.durable[start..end].copy_from_slice(&self.data[start..end]);
    }

    /// Only what has been written since the last sync goes out: the rest is thought to be there.
    fn sync(&mut self) {
        for number in std::mem::take(&mut self.unsynced).into_keys() {
            self.store(number);
        }
    }

    /// Some of it reaches the platter, and the system forgets that the rest did not.
    fn fail_to_sync(&mut self, prng: &mut Prng) {
        for number in std::mem::take(&mut self.unsynced).into_keys() {
            if prng.chance(1, 2) {
                self.store(number);
            }
        }
    }

    fn cut_power(&mut self, prng: &mut Prng) {
        let mut left = self.durable.clone();
        // Half the time all or nothing, which random subsets of many sectors would hardly ever give.
        let mode = prng.below(4);
        for (number, versions) in &self.unsynced {
            let is_kept = match mode {
                0 => false,
                1 => true,
                _ => prng.chance(1, 2),
            };
            if is_kept {
                let version = versions[prng.below(versions.len() as u64) as usize];
                let end = (number + 1) * SECTOR_BYTES;
                if left.len() < end {
                    left.resize(end.min(self.data.len()).max(left.len()), 0);
                }
                let end = end.min(left.len());
                let start = number * SECTOR_BYTES;
                if start < end {
                    left[start..end].copy_from_slice(&version[..end - start]);
                }
            }
        }
        self.data.clone_from(&left);
        self.durable = left;
        self.unsynced.clear();
    }
}

impl MemoryDisk {
    /// The power fails after so many more changes.
    pub fn fail_after(&self, changes: u64) {
        self.0.borrow_mut().changes_left = Some(changes);
    }

    /// Syncs fail from now on until the process ends, and lose what the seed decides.
    pub fn fail_syncs(&self, seed: u64) {
        self.0.borrow_mut().failing_syncs = Some(Prng::new(seed));
    }

    /// Limits how many bytes files can still be created with, or grow by.
    pub fn limit_room(&self, bytes: Option<u64>) {
        self.0.borrow_mut().room_bytes = bytes;
    }

    /// The power is gone and comes back.
    pub fn cut_power(&self, prng: &mut Prng) {
        let state = &mut *self.0.borrow_mut();
        state.changes_left = None;
        state.failing_syncs = None;
        for inode in &mut state.inodes {
            inode.cut_power(prng);
        }
        let pending = std::mem::take(&mut state.pending);
        let is_ordered = prng.chance(1, 2);
        let kept = prng.below(pending.len() as u64 + 1) as usize;
        for (position, change) in pending.iter().enumerate() {
            if if is_ordered { position < kept } else { prng.chance(1, 2) } {
                apply(&mut state.names_durable, change);
            }
        }
        state.names = state.names_durable.clone();
    }

    /// The process ends; the kernel lives and loses nothing.
    pub fn kill_process(&self) {
        let state = &mut *self.0.borrow_mut();
        state.changes_left = None;
        state.failing_syncs = None;
    }

    /// A second disk with the same content.
    pub fn copy(&self) -> Self {
        let state = self.0.borrow();
        Self(Rc::new(RefCell::new(State {
            inodes: state.inodes.clone(),
            names: state.names.clone(),
            names_durable: state.names_durable.clone(),
            pending: state.pending.clone(),
            ..State::default()
        })))
    }

    pub fn content(&self, name: &str) -> Vec<u8> {
        let state = self.0.borrow();
        state.inodes[state.names[name]].data.clone()
    }

    pub fn replace(&self, name: &str, data: &[u8]) {
        let state = &mut *self.0.borrow_mut();
        let inode = Inode { data: data.to_vec(), durable: data.to_vec(), unsynced: BTreeMap::new() };
        state.inodes.push(inode);
        state.change_name(NameChange::Link(name.into(), state.inodes.len() - 1));
    }

    pub fn flip(&self, name: &str, bit: usize) {
        let state = &mut *self.0.borrow_mut();
        let inode = state.names[name];
        state.inodes[inode].data[bit / 8] ^= 1 << (bit % 8);
    }

    pub fn names(&self) -> Vec<String> {
        self.0.borrow().names.keys().cloned().collect()
    }
}

impl Disk for MemoryDisk {
    type File = usize;

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.names())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<usize> {
        let state = &mut *self.0.borrow_mut();
        state.change()?;
        if let Some(room) = &mut state.room_bytes {
            *room = room.checked_sub(bytes).ok_or(io::ErrorKind::StorageFull)?;
        }
        let zeros = vec![0; bytes as usize];
        state.inodes.push(Inode { data: zeros.clone(), durable: zeros, unsynced: BTreeMap::new() });
        let inode = state.inodes.len() - 1;
        state.change_name(NameChange::Link(name.into(), inode));
        Ok(inode)
    }

    fn open(&self, name: &str) -> io::Result<usize> {
        self.0.borrow().names.get(name).copied().ok_or(io::ErrorKind::NotFound.into())
    }

    fn length(&self, file: &usize) -> io::Result<u64> {
        Ok(self.0.borrow().inodes[*file].data.len() as u64)
    }

    fn read_at(&self, file: &usize, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let state = self.0.borrow();
        let data = &state.inodes[*file].data;
        let start = data.len().min(offset as usize);
        let count = buffer.len().min(data.len() - start);
        buffer[..count].copy_from_slice(&data[start..start + count]);
        Ok(count)
    }

    fn write_at(&self, file: &usize, offset: u64, bytes: &[u8]) -> io::Result<()> {
        assert_eq!(offset % BLOCK_BYTES as u64, 0, "offsets are block boundaries");
        assert_eq!(bytes.as_ptr().align_offset(BLOCK_BYTES), 0, "addresses are aligned");
        let state = &mut *self.0.borrow_mut();
        let offset = offset as usize;
        let is_growing = offset + bytes.len() > state.inodes[*file].data.len();
        assert!(is_growing || bytes.len().is_multiple_of(BLOCK_BYTES), "lengths are whole blocks");
        let growth = (offset + bytes.len()).saturating_sub(state.inodes[*file].data.len()) as u64;
        if let Some(room) = &mut state.room_bytes {
            *room = room.checked_sub(growth).ok_or(io::ErrorKind::StorageFull)?;
        }
        let is_powered = state.change();
        // The write during which the power fails may leave anything.
        if is_powered.is_ok() || state.changes_left == Some(0) {
            state.inodes[*file].write(offset, bytes);
        }
        is_powered
    }

    fn sync(&self, file: &usize) -> io::Result<()> {
        let state = &mut *self.0.borrow_mut();
        state.change()?;
        if let Some(prng) = &mut state.failing_syncs {
            state.inodes[*file].fail_to_sync(prng);
            return Err(io::Error::other("a sync failed"));
        }
        state.inodes[*file].sync();
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let state = &mut *self.0.borrow_mut();
        state.change()?;
        state.change_name(NameChange::Unlink(name.into()));
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let state = &mut *self.0.borrow_mut();
        state.change()?;
        if !state.names.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.change_name(NameChange::Rename(from.into(), to.into()));
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        let state = &mut *self.0.borrow_mut();
        state.change()?;
        state.names_durable = state.names.clone();
        state.pending.clear();
        Ok(())
    }
}

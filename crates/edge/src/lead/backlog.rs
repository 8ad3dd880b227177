//! The end of the stream, on disk: a file of fixed size that is written round and round, and a second one that says
//! what is in it. See `docs/formats/redis-stream.md`.
//!
//! ```text
//!   .redis-stream        = the bytes of the stream, each at its offset modulo the size
//!   .redis-stream-state  = two slots
//!   a slot               = magic, version, length, checksum │ number, directory, offsets, how far groups are
//! ```
//!
//! They outlive the process, and only the process: what is read soon after it was written comes from the system's
//! cache, and nothing waits for the disk. So a stream goes on if the same kernel runs that ran when it was written, or
//! if all was synced at an orderly end. What followers may have read is always in a slot: it is written after the
//! bytes and before anyone is sent them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use journal::Identity;
use node::Reader;

use crate::fields::{Fields, put_bytes, put_u32, put_u64};

const FILE: &str = ".redis-stream";
const STATE_FILE: &str = ".redis-stream-state";

const MAGIC: &[u8; 8] = b"HOLDSTR\n";
const VERSION: u32 = 1;

/// Magic, version, length and checksum.
const PREAMBLE_BYTES: usize = 20;

/// Room for one slot. If what must be said takes more, another process cannot go on from there.
const SLOT_BYTES: usize = 256 << 10;

/// What is too old goes in such parts of the whole, so that it need not be said each time.
const OLDEST_PART: u64 = 16;

/// Makes a file without a name.
///
/// # Errors
/// If it cannot be made in this directory.
pub fn nameless(directory: &Path) -> io::Result<File> {
    let path = directory.join(format!(".stream-{}", crate::entropy::random_hex::<8>()?));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    fs::remove_file(path)?;
    Ok(file)
}

/// What the stream ends in.
#[derive(Debug)]
pub struct Backlog {
    directory: PathBuf,
    file: File,
    state_file: File,
    about: About,
    /// Where it ended when it was last said how far groups are. What comes behind that is of no use to another process.
    kept_end: u64,
    /// Of the slot that was written last.
    number: u64,
    /// The checksum of what an earlier process has left, if it has not been compared yet.
    expected: Option<u32>,
}

/// What a slot says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// The data directory that it belongs to.
    whose: u128,
    /// The kernel's life.
    boot: String,
    /// The checksum of all that is kept, if all was synced.
    synced: Option<u32>,
    /// The name of the stream.
    pub id: String,
    /// The version of RDB files that those who follow read.
    pub reader: Reader,
    size: u64,
    /// The first byte that is kept, counted from the beginning of the stream.
    begin: u64,
    /// Behind the last.
    end: u64,
    /// Behind the last change, if there has been a copy.
    pub told: Option<u64>,
    /// How far groups are; none if nobody can go on from there.
    pub progress: Option<Vec<u8>>,
}

impl Backlog {
    /// An empty one of at most so many bytes.
    ///
    /// # Errors
    /// If there can be no file.
    pub fn new(directory: &Path, identity: &Identity, (id, reader): (String, Reader), size: u64) -> io::Result<Self> {
        discard(directory)?;
        let open = |name| File::options().read(true).write(true).create_new(true).open(directory.join(name));
        let about = About {
            whose: identity.directory,
            boot: boot(),
            synced: None,
            id,
            reader,
            size: size.max(1),
            begin: 0,
            end: 0,
            told: None,
            progress: None,
        };
        let (file, state_file) = (open(FILE)?, open(STATE_FILE)?);
        Ok(Self { directory: directory.to_owned(), file, state_file, about, kept_end: 0, number: 0, expected: None })
    }

    /// The one that an earlier process has left, if another can go on with it.
    ///
    /// # Errors
    /// Why it cannot, if there is one.
    pub fn reopen(directory: &Path, identity: &Identity) -> Result<Option<Self>, String> {
        let open = |name| File::options().read(true).write(true).open(directory.join(name));
        let state_file = match open(STATE_FILE) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let slots = [read_slot(&state_file, 0), read_slot(&state_file, 1)];
        let newest = slots.into_iter().flatten().max_by_key(|(number, _)| *number);
        let (number, about) = newest.ok_or("its state cannot be read")?;
        if about.whose != identity.directory {
            return Err("it is of another data directory".to_owned());
        }
        if about.progress.is_none() || about.told.is_none() {
            return Err("it was at a place from which it cannot go on".to_owned());
        }
        if about.synced.is_none() && (about.boot.is_empty() || about.boot != boot()) {
            return Err("the host was restarted, and its end may be lost".to_owned());
        }
        let io = |error: io::Error| error.to_string();
        let file = open(FILE).map_err(io)?;
        let (kept_end, expected) = (about.end, about.synced);
        let about = About { synced: None, ..about };
        let directory = directory.to_owned();
        let mut this = Self { directory, file, state_file, about, kept_end, number, expected };
        // From here on it is true for this life of the kernel only, also if what is written from now on is lost.
        this.about.boot = boot();
        this.write_state().map_err(io)?;
        this.write_state().map_err(io)?;
        this.state_file.sync_data().map_err(io)?;
        Ok(Some(this))
    }

    /// False if what an earlier process has left is not what it wrote. To be asked before anything is appended.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn is_sound(&mut self) -> io::Result<bool> {
        Ok(match self.expected.take() {
            Some(expected) => self.checksum()? == expected,
            None => true,
        })
    }

    /// What is said of it.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// The first byte that is kept.
    pub fn begin(&self) -> u64 {
        self.about.begin
    }

    /// Behind the last byte.
    pub fn end(&self) -> u64 {
        self.about.end
    }

    /// Most bytes that are kept.
    pub fn size(&self) -> u64 {
        self.about.size
    }

    /// True if what comes at this offset is here, or is the next to come.
    pub fn reaches(&self, offset: u64) -> bool {
        (self.about.begin..=self.about.end).contains(&offset)
    }

    /// Appends. What is too old to be kept goes.
    ///
    /// # Errors
    /// If it cannot be written: then nothing that is here can be relied on.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let size = self.about.size;
        // Of more than fits, the last stays.
        let skipped = (bytes.len() as u64).saturating_sub(size);
        let mut rest = &bytes[skipped as usize..];
        let mut at = self.about.end + skipped;
        let end = self.about.end + bytes.len() as u64;
        let oldest = end.saturating_sub(size);
        if oldest > self.about.begin {
            self.about.begin = (oldest + size / OLDEST_PART).min(self.about.end);
            // Another process must not take for old bytes what is written over them.
            self.write_state()?;
        }
        while !rest.is_empty() {
            let place = at % size;
            let fits = rest.len().min(usize::try_from(size - place).unwrap_or(usize::MAX));
            self.file.write_all_at(&rest[..fits], place)?;
            at += fits as u64;
            rest = &rest[fits..];
        }
        self.about.end = end;
        self.about.begin = self.about.begin.max(oldest);
        Ok(())
    }

    /// Reads from this offset as much as is there and `buffer` holds, or less.
    ///
    /// # Errors
    /// If it is not kept, or cannot be read.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.reaches(offset) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let place = offset % self.about.size;
        let there = (self.about.end - offset).min(self.about.size - place);
        let count = buffer.len().min(usize::try_from(there).unwrap_or(usize::MAX));
        self.file.read_exact_at(&mut buffer[..count], place)?;
        Ok(count)
    }

    /// Says what is here now, so that another process can go on.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep(&mut self, told: Option<u64>, progress: Option<Vec<u8>>) -> io::Result<()> {
        (self.about.told, self.about.progress, self.kept_end) = (told, progress, self.about.end);
        self.write_state()
    }

    /// Brings all to the disk, so that it may go on after a restart of the host.
    ///
    /// # Errors
    /// If that cannot be.
    pub fn close(mut self) -> io::Result<()> {
        self.file.sync_data()?;
        self.about.synced = Some(self.checksum()?);
        self.write_state()?;
        self.state_file.sync_data()?;
        File::open(&self.directory)?.sync_all()
    }

    /// Nobody goes on with it.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn end_it(self) -> io::Result<()> {
        discard(&self.directory)
    }

    fn checksum(&self) -> io::Result<u32> {
        let (mut offset, mut checksum) = (self.about.begin, 0);
        let mut buffer = vec![0; 1 << 20];
        while offset < self.about.end {
            let count = self.read(offset, &mut buffer)?;
            checksum = crc32c::crc32c_append(checksum, &buffer[..count]);
            offset += count as u64;
        }
        Ok(checksum)
    }

    fn write_state(&mut self) -> io::Result<()> {
        self.number += 1;
        let (begin, end) = (self.about.begin.min(self.kept_end), self.kept_end);
        let mut about = About { begin, end, ..self.about.clone() };
        let mut body = encode(self.number, &about);
        if PREAMBLE_BYTES + body.len() > SLOT_BYTES {
            about.progress = None;
            body = encode(self.number, &about);
        }
        let mut bytes = MAGIC.to_vec();
        put_u32(&mut bytes, VERSION);
        put_u32(&mut bytes, body.len() as u32);
        put_u32(&mut bytes, crc32c::crc32c(&body));
        bytes.extend_from_slice(&body);
        self.state_file.write_all_at(&bytes, (self.number % 2) * SLOT_BYTES as u64)
    }
}

/// Removes what an earlier process has left.
///
/// # Errors
/// If it cannot be removed.
pub fn discard(directory: &Path) -> io::Result<()> {
    for name in [STATE_FILE, FILE] {
        match fs::remove_file(directory.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// The kernel's life; empty if it does not say.
fn boot() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim_end().to_owned()
}

fn read_slot(file: &File, slot: u64) -> Option<(u64, About)> {
    let at = slot * SLOT_BYTES as u64;
    let mut preamble = [0; PREAMBLE_BYTES];
    file.read_exact_at(&mut preamble, at).ok()?;
    let field = |place: usize| u32::from_le_bytes(preamble[place..place + 4].try_into().expect("four bytes"));
    let length = field(12) as usize;
    if !preamble.starts_with(MAGIC) || field(8) != VERSION || PREAMBLE_BYTES + length > SLOT_BYTES {
        return None;
    }
    let mut body = vec![0; length];
    file.read_exact_at(&mut body, at + PREAMBLE_BYTES as u64).ok()?;
    if crc32c::crc32c(&body) != field(16) {
        return None;
    }
    decode(&body)
}

fn encode(number: u64, about: &About) -> Vec<u8> {
    let mut out = Vec::new();
    put_u64(&mut out, number);
    out.extend_from_slice(&about.whose.to_le_bytes());
    put_bytes(&mut out, about.boot.as_bytes());
    put_u64(&mut out, about.synced.map_or(0, |checksum| u64::from(checksum) + 1));
    put_bytes(&mut out, about.id.as_bytes());
    put_u32(&mut out, u32::from(about.reader.rdb_version()));
    for number in [about.size, about.begin, about.end, about.told.map_or(0, |told| told + 1)] {
        put_u64(&mut out, number);
    }
    out.push(u8::from(about.progress.is_some()));
    out.extend_from_slice(about.progress.as_deref().unwrap_or_default());
    out
}

fn decode(bytes: &[u8]) -> Option<(u64, About)> {
    let mut fields = Fields(bytes);
    let number = fields.u64()?;
    let whose = fields.u128()?;
    let boot = fields.text()?;
    let synced = match fields.u64()? {
        0 => None,
        checksum => Some(u32::try_from(checksum - 1).ok()?),
    };
    let id = fields.text()?;
    let reader = match fields.u32()? {
        9 => Reader::Redis5,
        10 => Reader::Redis7,
        12 => Reader::Redis74,
        80 => Reader::Valkey9,
        _ => return None,
    };
    let (size, begin, end, told) = (fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?);
    let told = told.checked_sub(1);
    let has_progress = fields.u8()? == 1;
    let progress = has_progress.then(|| fields.0.to_vec());
    let is_sound = size > 0 && begin <= end && end - begin <= size && told.is_none_or(|told| told <= end);
    is_sound.then_some((number, About { whose, boot, synced, id, reader, size, begin, end, told, progress }))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("holdfast-stream-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).expect("a directory");
            Self(path)
        }

        fn make(&self, size: u64) -> Backlog {
            Backlog::new(&self.0, &IDENTITY, ("a stream".to_owned(), Reader::Redis7), size).expect("a file")
        }

        fn reopen(&self) -> Result<Option<Backlog>, String> {
            Backlog::reopen(&self.0, &IDENTITY)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const IDENTITY: Identity = Identity {
        directory: 1,
        cluster: 2,
        node: 3,
        group_count: 1,
        hash_seed: 4,
        has_joined: false,
        level: stdx::Level::FIRST,
    };

    #[test]
    fn the_newest_bytes_stay_where_they_are_counted() {
        let scratch = Scratch::new("newest");
        for size in [10, 40] {
            let mut backlog = scratch.make(size);
            let mut all = Vec::new();
            for round in 0..60u8 {
                let piece: Vec<u8> = (0..round % 13).map(|byte| byte + round).collect();
                backlog.append(&piece).expect("room on disk");
                all.extend_from_slice(&piece);
                assert_eq!(backlog.end(), all.len() as u64);
                let oldest = backlog.end().saturating_sub(size);
                assert!((oldest..=oldest + size / OLDEST_PART).contains(&backlog.begin()), "{}", backlog.begin());
                for offset in backlog.begin()..backlog.end() {
                    let mut buffer = [0; 4];
                    let count = backlog.read(offset, &mut buffer).expect("kept");
                    assert!(count > 0);
                    assert_eq!(buffer[..count], all[offset as usize..offset as usize + count]);
                }
            }
            assert_eq!(backlog.read(backlog.end(), &mut [0; 4]).expect("the end"), 0);
            assert!(backlog.read(backlog.begin() - 1, &mut [0; 4]).is_err());
            assert!(backlog.read(backlog.end() + 1, &mut [0; 4]).is_err());
        }
    }

    /// Another process finds what was said last, and no byte that has been written over since.
    #[test]
    fn another_process_goes_on_where_it_was_said_last() {
        let scratch = Scratch::new("another");
        assert!(scratch.reopen().expect("nothing is wrong").is_none());
        let mut backlog = scratch.make(100);
        let (mut all, mut kept) = (Vec::new(), 0);
        for round in 0..200u64 {
            let piece = vec![round as u8; (round % 37) as usize];
            backlog.append(&piece).expect("room on disk");
            all.extend_from_slice(&piece);
            if round % 3 == 0 {
                let end = backlog.end();
                backlog.keep(Some(end), Some(round.to_le_bytes().to_vec())).expect("room on disk");
                kept = round;
            } else if round % 7 == 0 {
                drop(backlog);
                backlog = scratch.reopen().expect("it goes on").expect("it is there");
                assert_eq!(backlog.about().progress.as_deref(), Some(&kept.to_le_bytes()[..]));
                assert_eq!(backlog.about().told, Some(backlog.end()));
                all.truncate(backlog.end() as usize);
                for offset in backlog.begin()..backlog.end() {
                    let mut byte = [0];
                    assert_eq!(backlog.read(offset, &mut byte).expect("kept"), 1);
                    assert_eq!(byte[0], all[offset as usize], "round {round}, offset {offset}");
                }
            }
        }
    }

    #[test]
    fn what_may_be_lost_damaged_or_of_others_is_not_gone_on_with() {
        let scratch = Scratch::new("lost");
        let why = |text: &str| {
            let error = scratch.reopen().expect_err("it cannot be");
            assert!(error.contains(text), "{error}");
        };
        let mut backlog = scratch.make(100);
        backlog.append(b"some bytes").expect("room on disk");
        backlog.keep(None, Some(Vec::new())).expect("room on disk");
        why("cannot go on");
        backlog.keep(Some(10), None).expect("room on disk");
        why("cannot go on");
        backlog.keep(Some(10), Some(vec![0; SLOT_BYTES])).expect("room on disk");
        why("cannot go on");
        // Another life of the kernel: only what was synced is there.
        backlog.about.boot = "earlier".to_owned();
        backlog.keep(Some(10), Some(vec![1])).expect("room on disk");
        why("the host was restarted");
        backlog.close().expect("a disk");
        let mut backlog = scratch.reopen().expect("it goes on").expect("it is there");
        assert_eq!((backlog.end(), backlog.about().synced), (10, None));
        assert!(backlog.is_sound().expect("a disk"));
        backlog.close().expect("a disk");
        let mut bytes = fs::read(scratch.0.join(FILE)).expect("it is there");
        bytes[3] ^= 1;
        fs::write(scratch.0.join(FILE), &bytes).expect("room on disk");
        let mut backlog = scratch.reopen().expect("it goes on").expect("it is there");
        assert!(!backlog.is_sound().expect("a disk"));
        let other = Identity { directory: 4, ..IDENTITY };
        assert!(Backlog::reopen(&scratch.0, &other).is_err_and(|why| why.contains("another data directory")));
        // No flipped bit of what is said is believed: the slot before that counts, if there is one.
        let about = backlog.about().clone();
        let whole = fs::read(scratch.0.join(STATE_FILE)).expect("it is there");
        for at in (0..200).chain(SLOT_BYTES..SLOT_BYTES + 200).filter(|at| *at < whole.len()) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            fs::write(scratch.0.join(STATE_FILE), &bytes).expect("room on disk");
            let found = scratch.reopen().expect("the other slot is whole").expect("it is there");
            assert_eq!(*found.about(), about, "byte {at}");
        }
        discard(&scratch.0).expect("it can be removed");
        assert!(scratch.reopen().expect("nothing is wrong").is_none());
    }
}

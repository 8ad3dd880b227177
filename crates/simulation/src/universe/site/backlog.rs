//! The backlog of a machine: files in memory, the end of which a power cut takes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use node::Tape;
use site::{Admission, Book, Part, Place, reaches_back};
use stdx::Prng;

/// Where a reader can begin.
pub(super) struct Header {
    pub(super) places: Vec<Place>,
    pub(super) parts: Vec<Part>,
}

impl Header {
    fn of(book: &mut Book) -> Self {
        let (places, parts) = book.begin_file();
        Self { places: places.to_vec(), parts: parts.into_iter().cloned().collect() }
    }
}

/// A file.
struct File {
    sequence: u64,
    /// It is synced when the file is made.
    header: Header,
    tapes: Vec<Tape>,
    /// Behind so many tapes a reader can begin as well, with this header.
    marks: Vec<(usize, Header)>,
}

/// Tapes from one place where a reader can begin to the next.
const MARK_INTERVAL: usize = 5;

/// All files.
pub(super) struct Backlog {
    /// What groups have told and is in no file yet, by core: it dies with the process.
    pub(super) told: BTreeMap<u16, VecDeque<Tape>>,
    /// Groups that must begin to tell once more.
    pub(super) refused: BTreeSet<u32>,
    /// Until when threads of cores do not get to write.
    pub(super) stalled: BTreeMap<u16, u64>,
    book: Book,
    files: VecDeque<File>,
    /// So many tapes of the newest file are on disk.
    synced: usize,
    /// Tapes of a file, and files, at most.
    size: (usize, usize),
}

impl Backlog {
    pub(super) fn new(group_count: u32, size: (usize, usize)) -> Self {
        let book = Book::new(group_count);
        let mut backlog = Self {
            told: BTreeMap::new(),
            refused: BTreeSet::new(),
            stalled: BTreeMap::new(),
            book,
            files: VecDeque::new(),
            synced: 0,
            size,
        };
        backlog.next_file();
        backlog
    }

    /// A process begins: it reads the newest file, and writes a new one.
    pub(super) fn open(&mut self) {
        let newest = self.files.back().expect("there is one to write to");
        self.book = Book::behind(&newest.header.places, &newest.header.parts);
        newest.tapes.iter().for_each(|tape| self.book.read(tape));
        self.next_file();
    }

    pub(super) fn places(&self) -> &[Place] {
        self.book.places()
    }

    /// Writes what these cores have told.
    pub(super) fn write(&mut self, mut is_heard: impl FnMut(u16) -> bool) {
        let heard: Vec<u16> = self.told.keys().copied().filter(|core| is_heard(*core)).collect();
        let tapes = heard.into_iter().filter_map(|core| self.told.remove(&core)).flatten();
        for mut tape in tapes.collect::<Vec<_>>() {
            match self.book.admit(&tape) {
                Admission::GoesOn => {}
                Admission::Begins => {
                    let old_count = self.files.len();
                    self.add_file();
                    self.files.drain(..old_count);
                }
                Admission::IsRefused => {
                    self.refused.insert(tape.group);
                    continue;
                }
            }
            self.book.pass(&mut tape);
            let file = self.files.back_mut().expect("there is one to write to");
            file.tapes.push(Tape { has_gap: false, born: None, standing: Vec::new(), ..tape });
            if file.tapes.len() >= self.size.0 {
                self.next_file();
            } else if file.tapes.len().is_multiple_of(MARK_INTERVAL) {
                file.marks.push((file.tapes.len(), Header::of(&mut self.book)));
            }
        }
    }

    pub(super) fn sync(&mut self) {
        self.synced = self.files.back().expect("there is one to write to").tapes.len();
    }

    /// What was not synced is there or not, up to some place.
    pub(super) fn cut_power(&mut self, prng: &mut Prng) {
        let newest = self.files.back_mut().expect("there is one to write to");
        let unsynced = newest.tapes.len() - self.synced;
        let kept = self.synced + prng.below(unsynced as u64 + 1) as usize;
        newest.tapes.truncate(kept);
        newest.marks.retain(|(count, ..)| *count <= kept);
        self.synced = kept;
    }

    fn next_file(&mut self) {
        self.add_file();
        while self.files.len() > self.size.1 {
            self.files.pop_front();
        }
    }

    fn add_file(&mut self) {
        let sequence = self.files.back().map_or(0, |file| file.sequence + 1);
        let header = Header::of(&mut self.book);
        self.files.push_back(File { sequence, header, tapes: Vec::new(), marks: Vec::new() });
        self.synced = 0;
    }

    /// The newest place in a file from which all comes that is behind these places: the file, how many tapes of it are
    /// passed over, and what its header would say there.
    pub(super) fn newest_behind(&self, places: &[u64]) -> Option<((u64, usize), &Header)> {
        let holds_all = |header: &Header| reaches_back(&header.places, places);
        let file = self.files.iter().rev().find(|file| holds_all(&file.header))?;
        let mark = file.marks.iter().rev().find(|(_, header)| holds_all(header));
        let (count, header) = mark.map_or((0, &file.header), |(count, header)| (*count, header));
        Some(((file.sequence, count), header))
    }

    /// What comes next; none if there is no more yet.
    pub(super) fn next(&self, at: &mut (u64, usize), read: &mut Vec<u64>) -> Result<Option<Tape>, &'static str> {
        loop {
            let own = self.files.iter().position(|file| file.sequence == at.0);
            let own = own.ok_or("the backlog does not reach back so far any more")?;
            if let Some(tape) = self.files[own].tapes.get(at.1) {
                at.1 += 1;
                let group = tape.group as usize;
                if group >= read.len() {
                    read.resize(group + 1, 0);
                }
                read[group] = read[group].max(tape.index);
                return Ok(Some(tape.clone()));
            }
            let Some(next) = self.files.get(own + 1) else { return Ok(None) };
            if !reaches_back(&next.header.places, read) {
                return Err("something is missing in the backlog");
            }
            *at = (next.sequence, 0);
        }
    }
}

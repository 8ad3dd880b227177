//! What an archive holds of one group, in the order of the log.

use std::path::PathBuf;

use stdx::UnixMillis;
use stdx::log::Entry;

use crate::fault::Fault;
use crate::file::{BaseReader, FrameInfo, LogFile};
use crate::manifest::Archive;
use crate::place::Name;

/// A base: all that a group held behind an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseInfo {
    /// The file.
    pub path: PathBuf,
    /// Bytes of it.
    pub bytes: u64,
    /// The last entry that it has in it.
    pub index: u64,
    /// The term of that.
    pub term: u64,
    /// The group's moment there.
    pub moment: UnixMillis,
}

/// A part of a group's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogInfo {
    /// The file.
    pub path: PathBuf,
    /// Bytes of it.
    pub bytes: u64,
    /// Index of its first entry.
    pub first: u64,
    /// See [`LogFile::previous`].
    pub previous: u64,
}

/// The files of a group.
#[derive(Debug, Default)]
pub struct Listing {
    /// Oldest first.
    pub bases: Vec<BaseInfo>,
    /// In the order of the log.
    pub logs: Vec<LogInfo>,
    /// Files with headers that do not verify.
    pub faults: Vec<Fault>,
}

/// Where the archive of a group ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Index of the last entry of a log, or that a base has in it; 0 if there is nothing yet.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// The latest moment of an entry; the lowest of all if there is none.
    pub moment: UnixMillis,
    /// Index of the last entry that is in a log. That of the first base if there is none.
    pub log_index: u64,
    /// Index of the first entry of the last log; 0 if there is none.
    pub log_first: u64,
}

impl Default for End {
    fn default() -> Self {
        Self { index: 0, term: 0, moment: UnixMillis(i64::MIN), log_index: 0, log_first: 0 }
    }
}

impl Archive {
    /// The files of a group.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub fn list(&self, group: u32) -> Result<Listing, Fault> {
        let mut listing = Listing::default();
        self.list_into(group, "", "", &mut listing)?;
        listing.bases.sort_by_key(|base| base.index);
        listing.logs.sort_by_key(|log| log.first);
        Ok(listing)
    }

    /// Adds the files with names that begin with `prefix` and, where that spares work, come behind `after`.
    fn list_into(&self, group: u32, prefix: &str, after: &str, listing: &mut Listing) -> Result<(), Fault> {
        let directory = self.group_directory(group);
        let files = self.place().list(&directory, prefix, after);
        for (path, bytes) in files.map_err(|error| Fault::io("list", &directory, error))? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.contains(".new-") {
                continue; // being made, or never finished
            }
            if self.place().is_remote() {
                match Name::decode(&name) {
                    Some(Name::Base { index, term, moment }) => {
                        listing.bases.push(BaseInfo { path, bytes, index, term, moment });
                    }
                    Some(Name::Log { first, previous }) => {
                        listing.logs.push(LogInfo { path, bytes, first, previous });
                    }
                    Some(Name::Changes { .. }) | None => {}
                }
                continue;
            }
            let found = if name.starts_with("base-") {
                BaseReader::open(self, group, &path).map(|base| {
                    let ((index, term), moment) = (base.position(), base.moment());
                    listing.bases.push(BaseInfo { path, bytes, index, term, moment });
                })
            } else if name.starts_with("log-") {
                LogFile::open(self, group, &path).map(|log| {
                    let (first, previous) = (log.first(), log.previous());
                    listing.logs.push(LogInfo { path, bytes, first, previous });
                })
            } else {
                Ok(())
            };
            listing.faults.extend(found.err());
        }
        Ok(())
    }

    /// Where the archive of a group ends.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn end(&self, group: u32) -> Result<End, Fault> {
        self.end_behind(group, 0)
    }

    /// The same, and what is damaged there with more behind it: that is no write which was cut short.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn end_and_damage(&self, group: u32) -> Result<(End, Option<Fault>), Fault> {
        let (end, unread) = self.find_end(group, 0)?;
        let Some((log, fault)) = unread else { return Ok((end, None)) };
        let is_damage = log.is_damaged_by(&fault);
        Ok((end, is_damage.then_some(fault)))
    }

    /// The same, for one who knows that the archive holds a log that begins with the entry `known`, or earlier.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn end_behind(&self, group: u32, known: u64) -> Result<End, Fault> {
        Ok(self.find_end(group, known)?.0)
    }

    /// Where it ends, and why the last log ends there if that is not the end of its file.
    fn find_end(&self, group: u32, known: u64) -> Result<(End, Option<(LogFile, Fault)>), Fault> {
        let mut listing = Listing::default();
        self.list_into(group, "base-", "", &mut listing)?;
        self.list_into(group, "log-", &format!("log-{known:016x}"), &mut listing)?;
        let mut end = End::default();
        if let Some(base) = listing.bases.iter().max_by_key(|base| base.index) {
            let log_index = listing.bases.iter().map(|base| base.index).min().unwrap_or(0);
            end = End { index: base.index, term: base.term, moment: base.moment, log_index, log_first: 0 };
        }
        if let Some(last) = listing.logs.iter().max_by_key(|log| log.first) {
            let mut log = LogFile::open(self, group, &last.path)?;
            end.log_first = last.first;
            loop {
                match log.next() {
                    Ok(Some(frame)) => {
                        if frame.last > end.index {
                            (end.index, end.term) = (frame.last, frame.term);
                        }
                        end.moment = end.moment.max(frame.moment);
                        end.log_index = frame.last;
                    }
                    Ok(None) => break,
                    // What does not verify is the end. What cannot be read may be anything.
                    Err(fault) if fault.offset().is_some() => return Ok((end, Some((log, fault)))),
                    Err(fault) => return Err(fault),
                }
            }
        }
        Ok((end, None))
    }
}

impl Archive {
    /// Removes what need not be kept of a group: what is only good for moments before `horizon`, and of the rest the
    /// oldest, while all of it is more than `bytes_max` (0 is without bound). The newest base and all behind it stay.
    /// What has been removed.
    ///
    /// # Errors
    /// If something cannot be read or removed.
    pub fn expire(&self, group: u32, horizon: Option<UnixMillis>, bytes_max: u64) -> Result<Vec<PathBuf>, Fault> {
        let listing = self.list(group)?;
        let logs_of = |base: &BaseInfo| {
            // A log belongs to what is behind a base if its entries are: the next file says where it ends.
            let index = base.index;
            let end = |position: usize| listing.logs.get(position + 1).map_or(u64::MAX, |next| next.first - 1);
            (0..listing.logs.len()).filter(move |position| end(*position) <= index)
        };
        let total = |base: &BaseInfo| -> u64 {
            let bases = listing.bases.iter().filter(|other| other.index >= base.index).map(|other| other.bytes);
            let gone: u64 = logs_of(base).map(|position| listing.logs[position].bytes).sum();
            bases.sum::<u64>() + listing.logs.iter().map(|log| log.bytes).sum::<u64>() - gone
        };
        let mut first = 0;
        if let Some(horizon) = horizon {
            first = listing.bases.partition_point(|base| base.moment <= horizon).saturating_sub(1);
        }
        while bytes_max > 0 && first + 1 < listing.bases.len() && total(&listing.bases[first]) > bytes_max {
            first += 1;
        }
        let Some(base) = listing.bases.get(first) else { return Ok(Vec::new()) };
        if horizon.is_none_or(|horizon| base.moment > horizon) && first == 0 {
            return Ok(Vec::new());
        }
        // Bases first: no base may be left behind when part of its log is gone.
        let bases = listing.bases[..first].iter().map(|base| base.path.clone());
        let logs = logs_of(base).map(|position| listing.logs[position].path.clone());
        let doomed: Vec<PathBuf> = bases.chain(logs).collect();
        for path in &doomed {
            self.place().remove(path).map_err(|error| Fault::io("remove", path, error))?;
        }
        Ok(doomed)
    }
}

/// Why a group's log cannot be read on.
#[derive(Debug)]
pub enum Problem {
    /// These entries were not archived: the log did not hold them any more when the archive could be written again.
    Gap(u64, u64),
    /// These entries are in no file.
    Missing(u64, u64),
    /// A file is damaged, and what is behind that place is in no other file.
    Fault(Fault),
}

/// What comes next.
pub enum Next {
    /// These entries, of this frame of this file.
    Entries(Vec<Entry>, FrameInfo, PathBuf),
    /// Nothing: the archive ends here. With what does not verify behind it: a write that is under way, or was cut
    /// short, or damage to the last that was written.
    End(Option<Fault>),
}

/// Reads the log of a group entry by entry, from whatever files hold it.
pub struct GroupReader {
    archive: Archive,
    group: u32,
    logs: Vec<LogInfo>,
    /// Index of the entry that comes next.
    next: u64,
    open: Option<(usize, LogFile)>,
    /// The last file that was read to its end, and why that was its end.
    done: Option<(usize, Option<Fault>)>,
    /// That has more behind what does not verify.
    is_damaged: bool,
}

impl GroupReader {
    /// Reads from this entry on.
    pub fn new(archive: &Archive, group: u32, listing: &Listing, first: u64) -> Self {
        let logs = listing.logs.clone();
        Self { archive: archive.clone(), group, logs, next: first, open: None, done: None, is_damaged: false }
    }

    /// Index of the entry that comes next.
    pub fn next_index(&self) -> u64 {
        self.next
    }

    /// Passes over what is before this entry: after a [`Problem`], to see what else there is.
    pub fn skip_to(&mut self, index: u64) {
        self.next = index;
        (self.open, self.done, self.is_damaged) = (None, None, false);
    }

    /// Index of the first entry of a file behind the present place.
    pub fn later(&self) -> Option<u64> {
        self.logs.iter().map(|log| log.first).find(|first| *first > self.next)
    }

    /// The next entries, whole frames but for the first.
    ///
    /// # Errors
    /// Why there are none, although there are later ones.
    #[expect(clippy::should_implement_trait, reason = "it may fail")]
    pub fn next(&mut self) -> Result<Next, Problem> {
        loop {
            let Some((position, log)) = &mut self.open else {
                if let Some(end) = self.open_next()? {
                    return Ok(end);
                }
                continue;
            };
            let path = self.logs[*position].path.clone();
            match log.next() {
                Ok(Some(frame)) if frame.last < self.next => {}
                Ok(Some(frame)) if frame.first > self.next => {
                    let what = format!("a frame begins with entry {} where {} should be", frame.first, self.next);
                    self.close(Some(Fault::damaged(&path, frame.offset, what)));
                }
                Ok(Some(frame)) => match log.entries(&frame) {
                    Ok(mut entries) => {
                        entries.retain(|entry| entry.index >= self.next);
                        self.next = frame.last + 1;
                        return Ok(Next::Entries(entries, frame, path));
                    }
                    Err(fault) => self.close(Some(fault)),
                },
                Ok(None) => self.close(None),
                Err(fault) => self.close(Some(fault)),
            }
        }
    }

    fn close(&mut self, fault: Option<Fault>) {
        let (position, log) = self.open.take().expect("it was open");
        self.is_damaged = fault.as_ref().is_some_and(|fault| log.is_damaged_by(fault));
        self.done = Some((position, fault));
    }

    /// Opens the file that has the next entry, as its name says; or says that there is nothing more.
    fn open_next(&mut self) -> Result<Option<Next>, Problem> {
        let position = self.logs.partition_point(|log| log.first <= self.next);
        let done = self.done.take();
        if let Some(position) = position.checked_sub(1)
            && done.as_ref().is_none_or(|(last, _)| position > *last)
        {
            let log = LogFile::open(&self.archive, self.group, &self.logs[position].path).map_err(Problem::Fault)?;
            self.open = Some((position, log));
            return Ok(None);
        }
        let fault = done.and_then(|(_, fault)| fault);
        match (self.logs.get(position), fault) {
            (None, Some(fault)) if self.is_damaged => Err(Problem::Fault(fault)),
            (None, fault) => Ok(Some(Next::End(fault))),
            (Some(_), Some(fault)) => Err(Problem::Fault(fault)),
            (Some(later), None) if later.previous < self.next => Err(Problem::Gap(self.next, later.first - 1)),
            (Some(later), None) => Err(Problem::Missing(self.next, later.first - 1)),
        }
    }
}

//! Files of the archive with what changed, for readers that want more than the backlog of this node has.
//!
//! An archive may take long to answer, or never answer. So a thread of its own fetches files onto the disk of this
//! node, and a reader looks now and then whether its is there. A file has no name any more when it is handed over: it
//! takes up its place until the reader is done with it, or the process ends.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use archive::{Archive, BaseReader, ChangesInfo, ChangesSpan, Key};
use node::settings::Settings;
use site::Place;
use stdx::UnixMillis;

use super::backlog::SegmentReader;
use super::trail::{first_moment, follows};
use super::{Site, lock};
use crate::host::Host;
use crate::limits::CHANGES_FETCHED_MAX;

/// The file that is being fetched.
const DRAFT_FILE: &str = ".changes-fetched";

/// So many files are looked into for one that goes on where it should: names say too little where nodes take turns.
const CANDIDATES_MAX: usize = 6;

/// Which file is wanted.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// One that has everything behind a moment.
    Behind(UnixMillis),
    /// One that goes on.
    Next {
        /// Where groups are,
        known: Vec<Place>,
        /// and up to which moment has been read,
        reached: UnixMillis,
        /// behind this file if it was one of the archive.
        last: Option<ChangesSpan>,
        /// These have been read, and had nothing new.
        but: Vec<PathBuf>,
    },
}

/// A file that was fetched.
#[derive(Clone)]
pub struct Found {
    pub reader: SegmentReader,
    pub length: u64,
    pub info: ChangesInfo,
    _permit: Arc<Permit>,
}

/// None if there is no such file.
type Answer = Result<Option<Found>, String>;

/// A reader's wish.
pub struct Wish {
    wanted: Wanted,
    answer: Mutex<Option<Answer>>,
}

impl Wish {
    /// What has become of it, once that is known.
    pub fn take(&self) -> Option<Answer> {
        lock(&self.answer).take()
    }
}

/// How readers reach the thread.
pub struct Shelf {
    place: archive::Place,
    key: Option<Key>,
    wishes: Mutex<VecDeque<Arc<Wish>>>,
    wished: Condvar,
    fetched_count: Arc<AtomicUsize>,
}

/// As many files are on the disk as there are of these.
struct Permit(Arc<AtomicUsize>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Shelf {
    /// That of the archive which the settings name. What is wrong with them is told where the archive is written.
    pub fn of(settings: &Settings) -> Option<Self> {
        let address = Some(settings.get("archive")).filter(|address| !address.is_empty())?;
        let key = match settings.get("archive-key-file") {
            "" => None,
            path => Some(Key::read(Path::new(path)).ok()?),
        };
        let place = archive::Place::parse(address).ok()?;
        let (wishes, wished) = (Mutex::default(), Condvar::new());
        Some(Self { place, key, wishes, wished, fetched_count: Arc::default() })
    }

    /// Asks for a file. Anyone who forgets the wish does not get one.
    pub fn ask(&self, wanted: Wanted) -> Arc<Wish> {
        let wish = Arc::new(Wish { wanted, answer: Mutex::default() });
        lock(&self.wishes).push_back(Arc::clone(&wish));
        self.wished.notify_one();
        wish
    }

    fn next_wish(&self) -> Arc<Wish> {
        let mut wishes = lock(&self.wishes);
        loop {
            match wishes.pop_front() {
                // Nobody else holds a wish after its reader has gone.
                Some(wish) if Arc::strong_count(&wish) == 1 => {}
                Some(wish) => return wish,
                None => {
                    wishes = self.wished.wait(wishes).unwrap_or_else(std::sync::PoisonError::into_inner);
                }
            }
        }
    }

    fn permit(&self) -> Result<Permit, String> {
        let permit = Permit(Arc::clone(&self.fetched_count));
        match self.fetched_count.fetch_add(1, Ordering::AcqRel) {
            CHANGES_FETCHED_MAX.. => Err(format!("{CHANGES_FETCHED_MAX} readers of the archive are served already")),
            _ => Ok(permit),
        }
    }
}

/// Fetches files until the process ends.
pub fn run(host: &Host, directory: &Path) {
    let Some(shelf) = host.site.shelf.as_ref().filter(|_| host.site.is_on) else { return };
    let mut archive = None;
    loop {
        let wish = shelf.next_wish();
        let answer = fetch(&host.site, shelf, &mut archive, &wish.wanted, &directory.join(DRAFT_FILE));
        if answer.is_err() {
            // It may be another one when it is there again.
            archive = None;
        }
        *lock(&wish.answer) = Some(answer);
        drop(wish);
        host.site.note_news();
    }
}

fn fetch(site: &Site, shelf: &Shelf, known: &mut Option<Archive>, wanted: &Wanted, draft: &Path) -> Answer {
    let archive = match known {
        Some(archive) => archive,
        None => {
            let archive = Archive::open(&shelf.place, shelf.key.as_ref()).map_err(|fault| fault.to_string())?;
            if archive.manifest().cluster != site.cluster {
                return Err(format!("{}: it is the archive of another cluster", shelf.place));
            }
            known.insert(archive)
        }
    };
    let files = archive.list_changes().map_err(|fault| fault.to_string())?;
    let mut fault = None;
    for info in candidates(files, wanted) {
        let permit = shelf.permit()?;
        match bring(archive, &info, draft, site.cluster) {
            Ok((reader, length)) if fits(&reader.places, wanted) => {
                return Ok(Some(Found { reader, length, info, _permit: Arc::new(permit) }));
            }
            Ok(_) => {}
            // Another node may have written the same.
            Err(why) => fault = Some(why),
        }
    }
    // One that could not be read may have been the one.
    fault.map_or(Ok(None), Err)
}

/// Files with names that say that they may be what is wanted, the likeliest in front.
fn candidates(files: Vec<ChangesInfo>, wanted: &Wanted) -> Vec<ChangesInfo> {
    let mut found: Vec<ChangesInfo> = match wanted {
        Wanted::Behind(moment) => files.into_iter().filter(|file| file.span.from <= *moment).collect(),
        Wanted::Next { reached, but, .. } => {
            let is_near = |span: &ChangesSpan| span.from <= *reached && span.until >= *reached;
            files.into_iter().filter(|file| is_near(&file.span) && !but.contains(&file.path)).collect()
        }
    };
    let goes_on = |file: &ChangesInfo| match wanted {
        Wanted::Next { last: Some(last), .. } => (file.span.writer, file.span.from) == (last.writer, last.until),
        _ => false,
    };
    found.sort_by_key(|file| (goes_on(file), file.span.from, file.span.until));
    found.reverse();
    found.truncate(CANDIDATES_MAX);
    found
}

/// Whether a file that begins there is what is wanted.
fn fits(begin: &[Place], wanted: &Wanted) -> bool {
    match wanted {
        Wanted::Behind(moment) => first_moment(begin) <= *moment,
        Wanted::Next { known, .. } => follows(begin, known),
    }
}

/// Copies a file here.
fn bring(archive: &Archive, info: &ChangesInfo, draft: &Path, cluster: u128) -> Result<(SegmentReader, u64), String> {
    let brought = copy(archive, info, draft).and_then(|length| {
        let reader = SegmentReader::open_path(draft, cluster);
        Ok((reader.map_err(|error| format!("{}: {error}", info.path.display()))?, length))
    });
    // Anyone who has opened it reads on.
    let _ = fs::remove_file(draft);
    brought
}

fn copy(archive: &Archive, info: &ChangesInfo, draft: &Path) -> Result<u64, String> {
    let own = |error: std::io::Error| format!("cannot write {}: {error}", draft.display());
    let mut reader = BaseReader::open_changes(archive, &info.path).map_err(|fault| fault.to_string())?;
    let mut file = File::create(draft).map_err(own)?;
    let mut length = 0;
    while let Some(chunks) = reader.next_chunks().map_err(|fault| fault.to_string())? {
        for chunk in chunks {
            file.write_all(&chunk).map_err(own)?;
            length += chunk.len() as u64;
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(from: i64, until: i64, writer: u64) -> ChangesInfo {
        let [from, until] = [from, until].map(UnixMillis);
        let path = PathBuf::from(format!("{}-{writer}", from.0));
        ChangesInfo { path, bytes: 1, span: ChangesSpan { from, until, closed: until, writer } }
    }

    fn names(wanted: &Wanted) -> Vec<String> {
        let files = vec![file(10, 20, 1), file(15, 25, 2), file(20, 30, 1), file(25, 35, 2)];
        candidates(files, wanted).into_iter().map(|file| file.path.display().to_string()).collect()
    }

    #[test]
    fn the_likeliest_files_come_first() {
        assert_eq!(names(&Wanted::Behind(UnixMillis(22))), ["20-1", "15-2", "10-1"]);
        assert!(names(&Wanted::Behind(UnixMillis(9))).is_empty());
        let known = vec![Place { index: 7, count: 1, moment: UnixMillis(20) }];
        let next = |last: Option<ChangesInfo>, but: &[ChangesInfo]| Wanted::Next {
            known: known.clone(),
            reached: UnixMillis(20),
            last: last.map(|file| file.span),
            but: but.iter().map(|file| file.path.clone()).collect(),
        };
        assert_eq!(names(&next(Some(file(10, 20, 1)), &[file(10, 20, 1)])), ["20-1", "15-2"]);
        assert_eq!(names(&next(None, &[])), ["20-1", "15-2", "10-1"]);
        assert_eq!(names(&next(Some(file(10, 20, 1)), &[file(10, 20, 1), file(20, 30, 1)])), ["15-2"]);
    }
}

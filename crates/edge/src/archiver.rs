//! The thread that writes the archive.
//!
//! Cores tell it how far their groups are; what is committed it reads back from the log, compresses it, and writes it
//! to the archive. Nobody waits for it: while it cannot write, the log is kept on disk for it, up to a bound. If even
//! that is not enough, a base takes the place of what is lost, and that is told.
//!
//! Only where a group is led its log is archived. A leader that does not know yet that it has been replaced writes
//! nothing but what is committed, so anyone who replaces it writes the same.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use archive::{Archive, BaseWriter, GroupReader, GroupWriter, Key, Listing, Manifest, Next, Place, Problem};
use group::host::ArchiveNews;
use journal::{CheckpointMark, CheckpointReader, Identity, LogReader, Span, Unread};
use node::entry::Born;
use node::event::ArchiveFigures;
use state::cut::moment_of_entry;

use crate::disk::RealDisk;
use crate::entropy;
use crate::host::Host;
use crate::journal_thread::JournalQueue;
use crate::limits::{
    ARCHIVE_BASE_BYTES, ARCHIVE_EXPIRY_INTERVAL, ARCHIVE_FLUSH_INTERVAL, ARCHIVE_LET_GO_PATIENCE,
    ARCHIVE_LOOK_INTERVAL, ARCHIVE_LOOK_INTERVAL_REMOTE, ARCHIVE_READ_BYTES, ARCHIVE_RETRY, ARCHIVE_STOP_TIMEOUT,
    ARCHIVE_SYNC_PATIENCE,
};
use crate::site::sealed::Copying;

/// How hard is compressed: what a core can do while others serve.
const LEVEL: i32 = 1;

/// What the thread needs of the node.
pub(crate) struct Surroundings {
    /// The archive.
    pub place: Place,
    pub key: Option<Key>,
    pub disk: RealDisk,
    pub identity: Identity,
    pub databases: u16,
    pub journal: JournalQueue,
    pub host: Arc<Host>,
    pub keep_days: u64,
    pub keep_bytes: u64,
}

/// A handle of the thread.
#[derive(Clone)]
pub(crate) struct ArchiveQueue {
    stop: Sender<Stop>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// What is new of groups, by their numbers. However long the archive keeps the thread waiting, there is no more.
    told: Mutex<BTreeMap<u32, Told>>,
    figures: Mutex<ArchiveFigures>,
    /// Since when the thread has been at work without a pause. The archive may keep it without limit.
    busy_since: Mutex<Option<Instant>>,
    keep_days: AtomicU64,
    keep_bytes: AtomicU64,
}

/// What is behind a lock that no panic leaves half changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The latest news of a group.
struct Told {
    news: ArchiveNews,
    at: Instant,
    /// Another node has led, or this one, since the thread last looked.
    has_changed_hands: bool,
}

/// Tells the thread to end.
#[derive(Debug, PartialEq, Eq)]
struct Stop;

/// The thread.
pub(crate) struct ArchiveThread {
    queue: ArchiveQueue,
    /// Says nothing, and is cut when the thread ends.
    alive: Receiver<Never>,
    thread: JoinHandle<()>,
    host: Arc<Host>,
}

/// There is none.
enum Never {}

impl ArchiveThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn start(surroundings: Surroundings) -> std::io::Result<Self> {
        let (stop, stops) = mpsc::channel();
        let shared = Arc::new(Shared::default());
        shared.keep_days.store(surroundings.keep_days, Ordering::Relaxed);
        shared.keep_bytes.store(surroundings.keep_bytes, Ordering::Relaxed);
        let queue = ArchiveQueue { stop, shared: Arc::clone(&shared) };
        let host = Arc::clone(&surroundings.host);
        let (name, mark) = (entropy::random_bytes()?, entropy::random_bytes()?);
        let archiver = Archiver {
            name: u128::from_le_bytes(name),
            mark: u128::from_le_bytes(mark),
            reader: LogReader::new(surroundings.disk.clone()),
            surroundings,
            shared,
            archive: None,
            known: None,
            groups: BTreeMap::new(),
            figures: ArchiveFigures::default(),
            faulty_since: None,
            trouble: None,
            base: None,
            changes: Copying::default(),
            changes_trouble: None,
            expired: Instant::now(),
            expiry_trouble: None,
        };
        let (ends, alive) = mpsc::channel();
        let run = move || {
            let _ends = ends;
            archiver.run(&stops);
        };
        let thread = thread::Builder::new().name("archive".into()).spawn(run)?;
        Ok(Self { queue, alive, thread, host })
    }

    /// A handle.
    pub(crate) fn queue(&self) -> &ArchiveQueue {
        &self.queue
    }

    /// Ends the thread. What is lacking is archived by the next leader, or after the next start. If the archive does
    /// not answer, the thread is left to end with the process.
    pub(crate) fn stop(self) {
        // The thread lives until it is told this.
        let _ = self.queue.stop.send(Stop);
        if let Err(RecvTimeoutError::Timeout) = self.alive.recv_timeout(ARCHIVE_STOP_TIMEOUT) {
            self.host.log.warning("the archive does not answer: what it lacks is written after the next start");
            return;
        }
        assert!(self.thread.join().is_ok(), "the archive's thread does not panic");
    }
}

impl ArchiveQueue {
    /// A group is so far.
    pub(crate) fn tell(&self, news: ArchiveNews) {
        let mut told = locked(&self.shared.told);
        let before = told.get(&news.group.0);
        let has_changed_hands =
            before.is_some_and(|before| before.has_changed_hands || before.news.is_leading != news.is_leading);
        told.insert(news.group.0, Told { news, at: Instant::now(), has_changed_hands });
    }

    /// How the archive is. What the thread has waited for since it said so counts as lag.
    pub(crate) fn figures(&self) -> ArchiveFigures {
        let mut figures = locked(&self.shared.figures).clone();
        if let Some(since) = *locked(&self.shared.busy_since) {
            let waited = since.elapsed();
            if waited >= ARCHIVE_FLUSH_INTERVAL {
                figures.lag_ms += waited.as_millis() as u64;
            }
        }
        figures
    }

    /// How many days back a restore must be possible; 0 means all.
    pub(crate) fn set_keep_days(&self, days: u64) {
        self.shared.keep_days.store(days, Ordering::Relaxed);
    }

    /// How large the archive may become; 0 is without bound.
    pub(crate) fn set_keep_bytes(&self, bytes: u64) {
        self.shared.keep_bytes.store(bytes, Ordering::Relaxed);
    }
}

/// A group of this node.
struct Work {
    news: ArchiveNews,
    /// What was applied when, where it is not known to be on disk yet.
    unsynced: VecDeque<(Instant, u64)>,
    /// Up to here it is.
    limit: u64,
    /// Of what is led here.
    writer: Option<GroupWriter>,
    /// Terms of what lies before that which the core knows, and up to where that was when they were read.
    old_terms: Vec<(u64, u64)>,
    old_floor: u64,
    /// The newest base, and bytes of log behind it.
    base_index: Option<u64>,
    /// The log cannot be read without one that is not there.
    lacks_base: bool,
    base_bytes: u64,
    behind_base_bytes: u64,
    /// When the archive was last looked at, where another node writes it, and what its last log began with then.
    looked: Option<Instant>,
    log_first: u64,
    /// Since when something has been lacking.
    lacking: Option<Instant>,
    trouble: Option<Trouble>,
}

/// Why a part of the work could not be done, and when it is tried again.
struct Trouble {
    what: String,
    until: Instant,
}

impl Trouble {
    /// What came of an attempt just now.
    fn of(outcome: Result<(), String>) -> Option<Self> {
        outcome.err().map(|what| Self { what, until: Instant::now() + ARCHIVE_RETRY })
    }

    /// True if it is time for another attempt.
    fn is_over(trouble: Option<&Self>) -> bool {
        trouble.is_none_or(|trouble| trouble.until <= Instant::now())
    }
}

/// A base on its way.
struct BaseJob {
    group: u32,
    index: u64,
    outcome: Receiver<Result<u64, String>>,
}

struct Archiver {
    surroundings: Surroundings,
    /// Of an archive that is made.
    name: u128,
    /// Tells drafts of this process from others.
    mark: u128,
    reader: LogReader<RealDisk>,
    shared: Arc<Shared>,
    archive: Option<Archive>,
    /// The name of the archive that was there.
    known: Option<u128>,
    groups: BTreeMap<u32, Work>,
    figures: ArchiveFigures,
    faulty_since: Option<Instant>,
    /// With the archive as a whole: then nothing else is tried.
    trouble: Option<Trouble>,
    base: Option<BaseJob>,
    /// What changes, besides.
    changes: Copying,
    changes_trouble: Option<Trouble>,
    expired: Instant,
    expiry_trouble: Option<Trouble>,
}

impl Archiver {
    fn run(mut self, stops: &Receiver<Stop>) {
        while stops.recv_timeout(ARCHIVE_FLUSH_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            *locked(&self.shared.busy_since) = Some(Instant::now());
            let told = std::mem::take(&mut *locked(&self.shared.told));
            for told in told.into_values() {
                self.take(told);
            }
            self.turn();
            *locked(&self.shared.busy_since) = None;
        }
    }

    fn take(&mut self, Told { news, at, has_changed_hands }: Told) {
        let work = self.groups.entry(news.group.0).or_insert_with(|| Work::new(&news));
        if work.news.is_leading != news.is_leading || has_changed_hands {
            (work.writer, work.looked, work.trouble) = (None, None, None);
        }
        work.unsynced.push_back((at, news.index));
        work.news = news;
    }

    fn turn(&mut self) {
        let now = Instant::now();
        // Also of groups that are led elsewhere, and while the archive cannot be written.
        let unsynced_for = Duration::from_micros(self.surroundings.journal.counters().unsynced_us);
        self.groups.values_mut().for_each(|work| work.note_synced(unsynced_for));
        self.take_base_back();
        if Trouble::is_over(self.trouble.as_ref()) {
            self.trouble = Trouble::of(self.archive().map(drop));
            if self.trouble.is_none() {
                self.work_on_all(now);
            }
            let groups = self.groups.values().map(|work| work.trouble.as_ref());
            let all = [&self.trouble, &self.changes_trouble, &self.expiry_trouble].map(Option::as_ref);
            let fault = all.into_iter().chain(groups).flatten().next().map(|trouble| trouble.what.clone());
            self.tell(fault);
        }
        self.publish();
    }

    /// What cannot be done for one group holds up no other.
    fn work_on_all(&mut self, now: Instant) {
        for group in self.groups.keys().copied().collect::<Vec<_>>() {
            if Trouble::is_over(self.groups[&group].trouble.as_ref()) {
                let trouble = Trouble::of(self.work(group));
                let work = self.groups.get_mut(&group).expect("just seen");
                if trouble.is_some() {
                    // It may be another's turn: what it has written is found when this is opened again.
                    (work.writer, self.archive) = (None, None);
                }
                work.trouble = trouble;
            }
        }
        if Trouble::is_over(self.changes_trouble.as_ref()) {
            self.changes_trouble = Trouble::of(self.keep_changes());
        }
        if now.duration_since(self.expired) >= ARCHIVE_EXPIRY_INTERVAL {
            self.expired = now;
            self.expiry_trouble = Trouble::of(self.expire());
        }
        if self.changes_trouble.is_some() || self.expiry_trouble.is_some() {
            self.archive = None;
        }
    }

    /// Says when it stops to work, and when it works again.
    fn tell(&mut self, fault: Option<String>) {
        let log = &self.surroundings.host.log;
        match fault {
            Some(what) => {
                if self.figures.fault != what {
                    log.warning(&format!("the archive cannot be written: {what}. The log is kept for it meanwhile"));
                }
                if self.faulty_since.is_none() {
                    self.faulty_since = Some(Instant::now());
                    self.figures.fault_count += 1;
                }
                self.figures.fault = what;
            }
            None => {
                if let Some(since) = self.faulty_since.take() {
                    self.figures.fault.clear();
                    log.notice(&format!("the archive is written again after {} s", since.elapsed().as_secs()));
                }
            }
        }
    }

    fn publish(&mut self) {
        let now = Instant::now();
        let mut lacking_count = 0;
        let mut lag = Duration::ZERO;
        for work in self.groups.values_mut() {
            let end = work.writer.as_ref().map(|writer| writer.end().index);
            let lacks = work.news.is_leading && end.is_none_or(|end| end < work.news.index);
            if !lacks {
                work.lacking = None;
                continue;
            }
            lag = lag.max(now.duration_since(*work.lacking.get_or_insert(now)));
            lacking_count += work.news.index - end.unwrap_or(work.news.index);
        }
        (self.figures.lacking_count, self.figures.lag_ms) = (lacking_count, lag.as_millis() as u64);
        *locked(&self.shared.figures) = self.figures.clone();
    }

    /// Copies what changed into the archive, if this node keeps it.
    fn keep_changes(&mut self) -> Result<(), String> {
        if !self.surroundings.host.site.keeps_changes() {
            return Ok(());
        }
        let archive = self.archive()?;
        let is_leading = self.leads_first();
        let Surroundings { host, identity, .. } = &self.surroundings;
        self.figures.written_bytes += self.changes.turn(&archive, host, (identity.node, self.mark), is_leading)?;
        Ok(())
    }

    fn leads_first(&self) -> bool {
        self.groups.get(&0).is_some_and(|work| work.news.is_leading)
    }

    fn archive(&mut self) -> Result<Archive, String> {
        let Surroundings { place, key, identity, databases, .. } = &self.surroundings;
        // Files that are open can be written to although the archive is gone, and nobody would find that again.
        if let Some(archive) = self.archive.as_ref().filter(|archive| archive.is_there()) {
            return Ok(archive.clone());
        }
        let Identity { cluster, group_count, .. } = *identity;
        let wanted = Manifest { name: self.name, cluster, groups: group_count, databases: *databases, key: None };
        let archive = match self.known {
            None => Archive::open_or_make(place, &wanted, key.as_ref()),
            // An empty directory now is one where a disk is not mounted.
            Some(_) => Archive::open(place, key.as_ref()),
        };
        let archive = archive.map_err(|fault| fault.to_string())?;
        let name = archive.manifest().name;
        if *self.known.get_or_insert(name) != name {
            return Err(format!("{place}: it is another archive than before"));
        }
        self.archive = Some(archive.clone());
        Ok(archive)
    }

    fn work(&mut self, group: u32) -> Result<(), String> {
        let archive = self.archive()?;
        let work = self.groups.get_mut(&group).expect("it is one of these");
        if work.news.is_leading {
            return self.write(&archive, group);
        }
        // The leader writes. What it has need not be kept here.
        let interval = if archive.place().is_remote() { ARCHIVE_LOOK_INTERVAL_REMOTE } else { ARCHIVE_LOOK_INTERVAL };
        if work.looked.is_none_or(|looked| looked.elapsed() >= interval) {
            work.looked = Some(Instant::now());
            let end = archive.end_behind(group, work.log_first).map_err(|fault| fault.to_string())?;
            work.log_first = end.log_first;
            self.surroundings.journal.hold_for_archive(group, end.index);
        }
        Ok(())
    }

    /// Writes what a group that is led here has committed.
    fn write(&mut self, archive: &Archive, group: u32) -> Result<(), String> {
        let told = |fault: archive::Fault| fault.to_string();
        let Self { surroundings, reader, groups, figures, .. } = self;
        let Surroundings { journal, host, .. } = &*surroundings;
        let work = groups.get_mut(&group).expect("it is one of these");
        if work.writer.is_none() {
            let writer = GroupWriter::open(archive, group, self.mark, LEVEL).map_err(told)?;
            if let Some(fault) = writer.damage() {
                host.log.warning(&format!(
                    "the archive is damaged: {fault}. What follows of group {group} is archived again, as far as the log \
                     holds it"
                ));
            }
            work.look(&archive.list(group).map_err(told)?);
            // It may have split off from another one, and the archive may have dropped what that one began with.
            work.lacks_base |= work.base_index.is_none() && group >= surroundings.identity.group_count;
            work.writer = Some(writer);
        }
        let limit = work.limit;
        let map = journal.map();
        let mark = map.marks.iter().find(|(whose, _)| *whose == group).map(|(_, mark)| mark);
        let writer = work.writer.as_mut().expect("just opened");
        while writer.end().index < limit {
            let (end, first) = (writer.end(), writer.end().index + 1);
            let mut terms = Vec::new();
            if first <= work.news.floor {
                let is_known =
                    work.old_floor == work.news.floor && work.old_terms.first().is_some_and(|(from, _)| *from <= first);
                if !is_known {
                    work.old_terms = match reader.terms(&map, group, first) {
                        Ok(terms) => terms,
                        Err(Unread::Gone) => Vec::new(),
                        Err(Unread::Fault(fault)) => return Err(fault.to_string()),
                    };
                    work.old_floor = work.news.floor;
                }
                terms.extend(work.old_terms.iter().filter(|(from, _)| *from <= work.news.floor));
            }
            terms.extend(&work.news.terms);
            check(group, end, &terms)?;
            let span = Span { group, first, last: limit, terms, bytes_max: ARCHIVE_READ_BYTES };
            let read = if span.terms.is_empty() { Err(Unread::Gone) } else { reader.read(&map, &span) };
            match read {
                Ok(entries) if entries.is_empty() => break,
                Ok(entries) => {
                    if end.index == 0
                        && let Some(mark) = mark
                    {
                        // The archive begins with the checkpoint. But what a group that has split off did before that
                        // is needed for what both groups were at that time.
                        work.lacks_base = true;
                        if Born::of_entry(&entries[0].data).is_none() {
                            writer.skip_to(mark.index, mark.term);
                            continue;
                        }
                    }
                    let moment = entries.iter().filter_map(moment_of_entry).max();
                    let written = writer.append(&entries, moment).map_err(told)?;
                    figures.entry_count += entries.len() as u64;
                    figures.raw_bytes += entries.iter().map(|entry| entry.data.len() as u64).sum::<u64>();
                    figures.written_bytes += written;
                    work.behind_base_bytes += written;
                }
                // What came before is in the checkpoint alone.
                Err(Unread::Gone) if end.index == 0 && mark.is_some() => {
                    let mark = mark.expect("just seen");
                    writer.skip_to(mark.index, mark.term);
                    work.lacks_base = true;
                }
                Err(Unread::Gone) => {
                    // Asked behind the attempt to read: the journal notes it before it lets go.
                    let is_short = work.news.lacks_room || journal.let_go_within(ARCHIVE_LET_GO_PATIENCE);
                    let mark = lost_up_to(&work.news, end.index, mark, is_short && work.news.has_others)?;
                    let lost = mark.index - end.index;
                    figures.lost_count += lost;
                    host.log.warning(&format!(
                        "group {group}: the log does not hold entries {first} to {} any more, and they are not in the \
                         archive. It goes on with a base; no moment between can be restored",
                        mark.index
                    ));
                    writer.skip_to(mark.index, mark.term);
                    work.lacks_base = true;
                }
                Err(Unread::Fault(fault)) => return Err(fault.to_string()),
            }
        }
        let end = writer.end().index;
        // What is lacking after the end of a log that was lost is told rather than written over.
        if end > work.news.index && writer.end().log_index > work.news.index {
            return Err(ahead(group, end, work.news.index));
        }
        journal.hold_for_archive(group, end);
        if let Some(mark) = mark.filter(|mark| self.base.is_none() && work.wants_base(mark)) {
            self.begin_base(archive, group, mark.clone())?;
        }
        Ok(())
    }

    /// Copies a checkpoint into the archive, on a thread of its own: entries go on being written meanwhile.
    fn begin_base(&mut self, archive: &Archive, group: u32, mark: CheckpointMark) -> Result<(), String> {
        let Surroundings { disk, identity, .. } = &self.surroundings;
        let (archive, disk, identity, draft) = (archive.clone(), disk.clone(), *identity, self.mark);
        let (done, outcome) = mpsc::channel();
        let index = mark.index;
        let copy = move || {
            // Nobody listens when the server stops.
            let _ = done.send(copy_base(&archive, disk, &identity, group, &mark, draft));
        };
        thread::Builder::new().name("archive base".into()).spawn(copy).map_err(|error| error.to_string())?;
        self.base = Some(BaseJob { group, index, outcome });
        Ok(())
    }

    fn take_base_back(&mut self) {
        let Some(job) = &self.base else { return };
        let Ok(outcome) = job.outcome.try_recv() else { return };
        let BaseJob { group, index, .. } = self.base.take().expect("just seen");
        match outcome {
            Ok(bytes) => {
                self.figures.base_count += 1;
                self.figures.base_bytes += bytes;
                if let Some(work) = self.groups.get_mut(&group) {
                    (work.base_index, work.base_bytes, work.behind_base_bytes) = (Some(index), bytes, 0);
                    work.lacks_base = false;
                }
            }
            // Another checkpoint may have taken its place: the next turn looks again.
            Err(what) => {
                self.surroundings.host.log.notice(&format!("group {group}: no base at index {index} yet: {what}"))
            }
        }
    }

    /// Removes what need not be kept any more, of groups that are led here.
    fn expire(&mut self) -> Result<(), String> {
        let days = self.shared.keep_days.load(Ordering::Relaxed);
        let bytes = self.shared.keep_bytes.load(Ordering::Relaxed);
        if days == 0 && bytes == 0 {
            return Ok(());
        }
        let archive = self.archive()?;
        let day_ms = 24 * 60 * 60 * 1_000;
        let horizon = (days > 0).then(|| crate::clock::unix_millis().0 - (days * day_ms).cast_signed());
        let group_count = u64::from(self.surroundings.identity.group_count).max(self.groups.len() as u64);
        let founded = self.surroundings.identity.group_count;
        let (rested_on, mut fault) =
            rested_on(&archive, founded..archive.group_count().map_err(|fault| fault.to_string())?);
        // What changes has as much room as a group.
        let share = bytes / (group_count + u64::from(self.surroundings.host.site.keeps_changes()));
        let horizon = horizon.map(stdx::UnixMillis);
        let log = &self.surroundings.host.log;
        let mut note = |removed: Result<Vec<_>, archive::Fault>| match removed {
            Ok(paths) => {
                paths
                    .iter()
                    .for_each(|path: &PathBuf| log.notice(&format!("the archive is rid of {}", path.display())));
            }
            Err(what) => fault = Some(what.to_string()),
        };
        for (group, work) in &self.groups {
            if work.news.is_leading && !rested_on.contains(group) {
                note(archive.expire(*group, horizon, share));
            }
        }
        if self.leads_first() {
            note(archive.expire_changes(horizon, share));
        }
        fault.map_or(Ok(()), Err)
    }
}

/// Groups that others rest on: one that has split off and has no base yet begins with what a base of the other one has
/// of its slots. And what could not be read, if something could not: then the groups from which it
/// may have split off, those with lower numbers, are among them.
fn rested_on(archive: &Archive, split_off: Range<u32>) -> (BTreeSet<u32>, Option<String>) {
    let (mut groups, mut fault) = (BTreeSet::new(), None);
    for group in split_off {
        match rest_of(archive, group) {
            Ok(Rest::Nothing) => {}
            Ok(Rest::On(parent)) => {
                groups.insert(parent);
            }
            Ok(Rest::Unknown) => groups.extend(0..group),
            Err(what) => {
                groups.extend(0..group);
                fault = Some(what.to_string());
            }
        }
    }
    (groups, fault)
}

/// On which group the beginning of another one rests.
#[derive(Debug, PartialEq, Eq)]
enum Rest {
    Nothing,
    On(u32),
    /// Its first entry cannot be seen: a file that is being written or listed may come to hold it, and what has been
    /// removed is gone.
    Unknown,
}

fn rest_of(archive: &Archive, group: u32) -> Result<Rest, archive::Fault> {
    let mut listing = archive.list(group)?;
    if !listing.bases.is_empty() {
        return Ok(Rest::Nothing);
    }
    if let Some(fault) = listing.faults.pop() {
        return Err(fault);
    }
    if listing.logs.is_empty() {
        return Ok(Rest::Nothing);
    }
    match GroupReader::new(archive, group, &listing, state::FIRST.index).next() {
        Ok(Next::Entries(entries, ..)) => {
            Ok(Born::of_entry(&entries[0].data).map_or(Rest::Nothing, |born| Rest::On(born.parent.0)))
        }
        Ok(Next::End(Some(fault))) | Err(Problem::Fault(fault)) => Err(fault),
        Ok(Next::End(None)) | Err(Problem::Missing(..)) => Ok(Rest::Unknown),
        Err(Problem::Gap(..)) => Ok(Rest::Nothing),
    }
}

impl Work {
    fn new(news: &ArchiveNews) -> Self {
        Self {
            news: ArchiveNews { is_leading: false, ..news.clone() },
            unsynced: VecDeque::new(),
            limit: 0,
            writer: None,
            old_terms: Vec::new(),
            old_floor: 0,
            base_index: None,
            lacks_base: false,
            base_bytes: 0,
            behind_base_bytes: 0,
            looked: None,
            log_first: 0,
            lacking: None,
            trouble: None,
        }
    }

    /// What the archive has already.
    fn look(&mut self, listing: &Listing) {
        let base = listing.bases.last();
        let is_first = |log: &archive::LogInfo| listing.logs.first().is_some_and(|first| first.first == log.first);
        self.base_index = base.map(|base| base.index);
        self.base_bytes = base.map_or(0, |base| base.bytes);
        // A log that does not begin with the first entry, or that has a gap, needs a base to begin from.
        let needing = listing.logs.iter().rfind(|log| log.first > 1 && (log.previous + 1 < log.first || is_first(log)));
        self.lacks_base = needing.is_some_and(|log| base.is_none_or(|base| base.index + 1 < log.first));
        let is_behind = |first: u64| base.is_none_or(|base| first > base.index);
        self.behind_base_bytes = listing.logs.iter().filter(|log| is_behind(log.first)).map(|log| log.bytes).sum();
    }

    /// True if the newest checkpoint should become a base: there is none that the log goes on from, or so much log has
    /// come behind it that reading the base again takes no longer.
    fn wants_base(&self, mark: &CheckpointMark) -> bool {
        let end = self.writer.as_ref().map_or(0, |writer| writer.end().index);
        let is_new = self.base_index.is_none_or(|index| mark.index > index) && mark.index <= end;
        is_new && (self.lacks_base || self.behind_base_bytes >= ARCHIVE_BASE_BYTES.max(self.base_bytes))
    }

    /// Notes up to where the log may be archived. What the own disk may still lose may not, unless the system takes
    /// long with it: it would be in the archive, and something else in its place in the log.
    fn note_synced(&mut self, unsynced_for: Duration) {
        let synced = Instant::now().checked_sub(unsynced_for.min(ARCHIVE_SYNC_PATIENCE));
        while let (Some((when, index)), Some(synced)) = (self.unsynced.front(), synced)
            && *when < synced
        {
            self.limit = *index;
            self.unsynced.pop_front();
        }
    }
}

fn ahead(group: u32, end: u64, index: u64) -> String {
    format!(
        "group {group}: the archive holds entries up to {end}, and the log only up to {index}. The data directory is older \
         than the archive: give it an archive of its own"
    )
}

/// The checkpoint up to which entries behind the end of the archive are lost to it: the log does not hold them any
/// more. Fails as long as that need not be so: a log that is shortened for want of room is not shortened at other
/// voters, which may come to lead.
fn lost_up_to<'m>(
    news: &ArchiveNews,
    end: u64,
    mark: Option<&'m CheckpointMark>,
    may_be_elsewhere: bool,
) -> Result<&'m CheckpointMark, String> {
    let (group, first) = (news.group.0, end + 1);
    match mark.filter(|mark| mark.index > end) {
        Some(mark) if may_be_elsewhere => Err(format!(
            "group {group}: the log of this node has been shortened because its disk is full, and does not hold entries \
             {first} to {} any more. Other voters may hold them: the archive waits until one of them leads, or there has \
             been room for {} s",
            mark.index,
            ARCHIVE_LET_GO_PATIENCE.as_secs()
        )),
        Some(mark) => Ok(mark),
        None => Err(format!("group {group}: the log does not hold entry {first}")),
    }
}

/// Looks whether the archive ends with an entry of this log.
fn check(group: u32, end: archive::End, terms: &[(u64, u64)]) -> Result<(), String> {
    let position = terms.partition_point(|(from, _)| *from <= end.index);
    let term = position.checked_sub(1).map(|position| terms[position].1);
    match term {
        Some(term) if end.index > 0 && term != end.term => Err(format!(
            "group {group}: entry {} of the archive is of term {}, and that of the log of term {term}. The log has lost \
             its end since: give it an archive of its own",
            end.index, end.term
        )),
        _ => Ok(()),
    }
}

fn copy_base(
    archive: &Archive,
    disk: RealDisk,
    identity: &Identity,
    group: u32,
    mark: &CheckpointMark,
    draft: u128,
) -> Result<u64, String> {
    let mut reader = CheckpointReader::open(disk, identity, group, mark).map_err(|fault| fault.to_string())?;
    let mut base: Option<BaseWriter> = None;
    let copied = (|| {
        while let Some(chunk) = reader.next().map_err(|fault| fault.to_string())? {
            let base = match &mut base {
                Some(base) => base,
                None => {
                    let moment = chunk.get(1..).and_then(group::backup::moment_of_state);
                    let moment = moment.ok_or("the checkpoint does not begin with the state of its group")?;
                    let begun = BaseWriter::begin(archive, group, (mark.index, mark.term, moment), draft, LEVEL);
                    base.insert(begun.map_err(|fault| fault.to_string())?)
                }
            };
            base.push(chunk).map_err(|fault| fault.to_string())?;
        }
        Ok(())
    })();
    match (copied, base) {
        (Ok(()), Some(base)) => base.finish().map_err(|fault| fault.to_string()),
        (Ok(()), None) => Err("the checkpoint is empty".into()),
        (Err(what), base) => {
            base.into_iter().for_each(BaseWriter::abandon);
            Err(what)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use group::ids::GroupId;
    use node::entry::Builder;
    use stdx::log::{Entry, EntryKind};

    fn news(index: u64, is_leading: bool) -> ArchiveNews {
        let (group, floor, terms) = (GroupId(3), 0, Vec::new());
        ArchiveNews { group, is_leading, lacks_room: false, has_others: true, index, floor, terms }
    }

    #[test]
    fn what_other_voters_may_hold_is_not_lost_to_the_archive_yet() {
        let mark = CheckpointMark { index: 50, term: 2, membership: stdx::log::Membership::default() };
        let news = news(60, true);
        assert_eq!(lost_up_to(&news, 40, Some(&mark), false), Ok(&mark));
        let why = lost_up_to(&news, 40, Some(&mark), true).unwrap_err();
        assert!(why.contains("does not hold entries 41 to 50 any more. Other voters may hold them"), "{why}");
        for (end, mark) in [(50, Some(&mark)), (40, None)] {
            assert!(lost_up_to(&news, end, mark, false).is_err());
        }
    }

    #[test]
    fn an_archive_that_keeps_the_thread_waiting_costs_no_memory() {
        let (stop, _stops) = mpsc::channel();
        let queue = ArchiveQueue { stop, shared: Arc::default() };
        (1..=10_000).for_each(|index| queue.tell(news(index, true)));
        let told = std::mem::take(&mut *queue.shared.told.lock().unwrap());
        assert_eq!(told.len(), 1);
        assert!(!told[&3].has_changed_hands && told[&3].news.index == 10_000);
        // That another node has led meanwhile is not forgotten.
        [true, false, true, true].into_iter().for_each(|is_leading| queue.tell(news(10_001, is_leading)));
        assert!(queue.shared.told.lock().unwrap()[&3].has_changed_hands);
    }

    #[test]
    fn what_is_on_disk_is_not_remembered_no_matter_who_leads() {
        let mut work = Work::new(&news(1, false));
        let at = Instant::now() - ARCHIVE_SYNC_PATIENCE * 2;
        work.unsynced.extend((1..=100).map(|index| (at, index)));
        work.unsynced.push_back((Instant::now(), 101));
        work.note_synced(ARCHIVE_SYNC_PATIENCE);
        assert_eq!((work.limit, work.unsynced.len()), (100, 1));
    }

    #[test]
    fn a_group_whose_beginning_cannot_be_seen_may_rest_on_another() {
        let directory = std::env::temp_dir().join(format!("holdfast-archiver-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let place = Place::Directory(directory.clone());
        let wanted = Manifest { name: 7, cluster: 8, groups: 1, databases: 16, key: None };
        let archive = Archive::open_or_make(&place, &wanted, None).unwrap();
        let entry = |index, data| Entry { term: 1, index, kind: EntryKind::Normal, data };
        let mut builder = Builder::default();
        builder.set_level(stdx::Level(2));
        builder.born(Born { parent: GroupId(0), index: 9 });
        let born = builder.finish(keyspace::Moment { unix: stdx::UnixMillis(5), seed: 0 });
        let write = |group, from: u64, data| {
            let mut writer = GroupWriter::open(&archive, group, 1, LEVEL).unwrap();
            if from > 1 {
                writer.skip_to(from - 1, 1);
            }
            writer.append(&[entry(from, data)], None).unwrap();
            archive.list(group).unwrap().logs[0].path.clone()
        };
        let split_off = write(1, 1, born);
        write(2, 1, bytes::Bytes::new());
        write(3, 20, bytes::Bytes::new());
        let rests = |group| rest_of(&archive, group);
        assert_eq!(rests(1).unwrap(), Rest::On(0), "it has split off");
        assert_eq!(rests(2).unwrap(), Rest::Nothing, "it was founded");
        assert_eq!(rests(3).unwrap(), Rest::Unknown, "the file with its first entries is not there, or not yet");
        assert_eq!(rests(4).unwrap(), Rest::Nothing, "nothing is there");
        let of = |split_off: Range<u32>| {
            (rested_on(&archive, split_off.clone()).0.into_iter().collect::<Vec<_>>(), split_off)
        };
        assert_eq!(of(1..3), (vec![0], 1..3), "others go on");
        assert_eq!(of(1..5), (vec![0, 1, 2], 1..5), "it may have split off from any of these");
        // One byte of the entry, and of the header.
        for offset in [-1, 0] {
            let mut content = std::fs::read(&split_off).unwrap();
            let length = content.len();
            content[if offset < 0 { length - 1 } else { 0 }] ^= 1;
            std::fs::write(&split_off, &content).unwrap();
            assert!(rests(1).is_err(), "nobody knows, at {offset}");
            assert!(rested_on(&archive, 1..2) == (BTreeSet::from([0]), rests(1).err().map(|fault| fault.to_string())));
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}

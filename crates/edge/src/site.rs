//! Two clusters: what one does is kept on disk for others, and one follows another.
//!
//! ```text
//!   cores ── tapes ──▶ backlog (disk) ──▶ merge ──▶ zstd ──▶ line ──▶ follow ── MULTI … place … EXEC ──▶ cores
//!   └───────────────── the near cluster ──────────────────┘         └──────────── the far cluster ───────────┘
//! ```
//!
//! Cores hand over what their groups have done, and no more than that. One thread writes it to the backlog. Each
//! cluster that follows has a thread that reads the backlog, brings groups together, compresses and sends: anyone who
//! is slow or away costs disk, and nobody waits for it. See decision 0034.

mod backlog;
mod changes;
mod copies;
mod cursor;
mod filter;
mod follow;
mod reading;
pub(crate) mod sealed;
mod serve;
mod shelf;
mod trail;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use group::ids::GroupId;
use journal::Identity;
use node::Tape;
use node::event::{ChangesRequest, Event, Follower, SiteFigures, SiteFollowing};
use node::settings::Settings;
use site::Admission;
use stdx::UnixMillis;

use crate::connection::Stream;
use crate::host::Host;
use crate::lead::tape_bytes;
use crate::limits::{SITE_KEPT_PATIENCE, SITE_SILENCE_MIN, SITE_SYNC_INTERVAL, STREAM_WAITING_BYTES_MAX};
use crate::mailbox::Mail;
use backlog::{Backlog, Segment};

pub(crate) use changes::run as tell_changes;
pub(crate) use follow::start as start_following;
pub(crate) use shelf::run as fetch_changes;

/// How other threads reach the site's.
pub struct Site {
    /// What changes is kept.
    is_on: bool,
    /// The cluster that it belongs to.
    pub(crate) cluster: u128,
    words: Sender<Word>,
    /// Bytes of tapes that have not been taken yet.
    told_bytes: AtomicUsize,
    /// Groups of which something was dropped that the thread has not heard of yet.
    dropped: Mutex<BTreeSet<u32>>,
    level: AtomicU64,
    next_follower: AtomicU64,
    kept: Mutex<Kept>,
    changed: Condvar,
    /// What the archive has of changes, if there is one.
    shelf: Option<shelf::Shelf>,
    copies: copies::Copies,
    figures: Mutex<SiteFigures>,
    /// When the near site was heard last by the thread that follows it, or that thread began.
    near_heard: Mutex<Option<Instant>>,
}

/// What the thread is told.
enum Word {
    Tape(Tape),
    /// Something that this group has done was dropped.
    Dropped(u32),
    /// All that was told before must be brought to the disk.
    Sync(Sender<()>),
    End,
}

/// What of the backlog can be read.
#[derive(Debug, Default)]
struct Kept {
    directory: PathBuf,
    segments: Vec<Segment>,
    /// So many bytes may all of them have.
    size_max: u64,
    /// The latest moment of any group.
    latest: UnixMillis,
    /// Of this moment and all earlier ones all groups have told everything.
    closed: UnixMillis,
    /// Changes whenever there is more to read.
    version: u64,
    /// Clients that want to know what has changed, and have not been looked at yet.
    asked: Vec<ChangesRequest>,
    /// It can be written no more, or the process ends.
    is_over: bool,
}

/// What the thread is made of.
pub struct Prepared(Receiver<Word>);

/// Makes both ends.
pub fn prepare(settings: &Settings, cluster: u128) -> (Site, Prepared) {
    let (words, heard) = mpsc::channel();
    let site = Site {
        is_on: settings.keeps_site_backlog,
        cluster,
        words,
        told_bytes: AtomicUsize::new(0),
        dropped: Mutex::default(),
        level: AtomicU64::new(settings.number("site-compression-level").cast_unsigned()),
        next_follower: AtomicU64::new(0),
        kept: Mutex::default(),
        changed: Condvar::new(),
        shelf: shelf::Shelf::of(settings),
        copies: copies::Copies::default(),
        figures: Mutex::default(),
        near_heard: Mutex::default(),
    };
    (site, Prepared(heard))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Site {
    /// True if what changes is kept.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// A group has done something.
    pub fn hear(&self, tape: Tape) {
        let bytes = tape_bytes(&tape);
        if self.told_bytes.fetch_add(bytes, Ordering::AcqRel) + bytes <= STREAM_WAITING_BYTES_MAX {
            // At the end of the process nobody listens.
            let _ = self.words.send(Word::Tape(tape));
            return;
        }
        self.told_bytes.fetch_sub(bytes, Ordering::AcqRel);
        // The next tape that is taken would show that something is missing; it may be long in coming. Once is enough:
        // what is dropped until the thread hears of it, was done before the group begins to tell once more.
        if lock(&self.dropped).insert(tape.group) {
            let _ = self.words.send(Word::Dropped(tape.group));
        }
    }

    /// A checkpoint is about to take the place of log: what the log has done before must be kept first. After a while
    /// it goes on all the same, as the disk of the backlog may be at fault.
    pub fn wait_until_kept(&self) {
        if !self.is_on {
            return;
        }
        let (told, done) = mpsc::channel();
        let _ = self.words.send(Word::Sync(told));
        // If nobody answers the backlog has a hole at the next start, and finds that out.
        let _ = done.recv_timeout(SITE_KEPT_PATIENCE);
    }

    /// Another cluster wants to be told what changes.
    pub fn follow(host: &Arc<Host>, stream: Stream, follower: Follower) {
        let number = host.site.next_follower.fetch_add(1, Ordering::Relaxed);
        let served = Arc::clone(host);
        let spawned = std::thread::Builder::new()
            .name("site".to_owned())
            .spawn(move || serve::serve(&served, number, stream, follower));
        if let Err(error) = spawned {
            host.log.warning(&format!("a second site is turned away, as there is no thread for it: {error}"));
        }
    }

    /// `site-compression-level` has been changed.
    pub fn set_level(&self, level: u64) {
        self.level.store(level, Ordering::Relaxed);
    }

    /// How things are.
    pub fn report(&self) -> SiteFigures {
        let mut figures = lock(&self.figures).clone();
        let silence = lock(&self.near_heard).map(|heard| heard.elapsed());
        if let (Some(following), Some(silence)) = (&mut figures.following, silence) {
            age(following, silence);
        }
        figures
    }

    /// How the cluster is that this one follows, and when it was heard last.
    fn tell_following(&self, following: &SiteFollowing, heard: Instant) {
        lock(&self.figures).following = Some(following.clone());
        *lock(&self.near_heard) = Some(heard);
    }

    /// The moment behind which changes are kept here, and the one up to which they are known. None until all groups
    /// have told where they go on: what came before may be lacking.
    fn bounds(&self) -> Option<(UnixMillis, UnixMillis)> {
        let kept = lock(&self.kept);
        let first = kept.segments.first().map(|segment| trail::first_moment(&segment.places))?;
        (kept.closed >= UnixMillis(0)).then(|| (first, kept.closed.max(first)))
    }

    /// Readers must look again.
    fn note_news(&self) {
        lock(&self.kept).version += 1;
        self.changed.notify_all();
    }

    /// There is nothing to read any more.
    fn become_over(&self) {
        {
            let mut kept = lock(&self.kept);
            kept.is_over = true;
            kept.version += 1;
        }
        self.changed.notify_all();
    }

    /// Ends the threads.
    pub fn end(&self) {
        self.become_over();
        let _ = self.words.send(Word::End);
    }
}

/// Keeps what groups do, until it is told to end.
pub fn run(host: &Arc<Host>, heard: &Prepared, directory: &Path, identity: &Identity, size_max: u64) {
    let site = &host.site;
    if !site.is_on {
        // What cores were told to hand over nobody hears.
        return;
    }
    let opened = Backlog::open(directory, (identity.cluster, identity.group_count), size_max);
    let mut backlog = match opened {
        Ok((backlog, news)) => {
            if let Some(news) = news {
                host.log.warning(&format!("the backlog for a second site starts over: {news}"));
            }
            backlog
        }
        Err(error) => return give_up(host, heard, &error),
    };
    {
        let mut kept = lock(&site.kept);
        (kept.directory, kept.size_max) = (backlog.directory().to_owned(), size_max);
    }
    publish(site, &backlog, true);
    let mut synced = Instant::now();
    // When groups were asked to begin to tell once more.
    let mut asked: BTreeMap<u32, Instant> = BTreeMap::new();
    let ask_again = |group: u32| {
        let event = Event::RecordAgain(GroupId(group));
        host.desks[host.core_of(group)].mailbox.post(Mail::Event(event));
    };
    loop {
        let first = match heard.0.recv_timeout(SITE_SYNC_INTERVAL.saturating_sub(synced.elapsed())) {
            Ok(word) => Some(word),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let mut next = first;
        let segment_count = backlog.segments().len();
        let newest = backlog.segments().back().map(|segment| segment.sequence);
        while let Some(word) = next {
            match word {
                Word::End => {
                    // What is lost here is told again at the next start.
                    let _ = backlog.sync();
                    return;
                }
                Word::Sync(told) => {
                    if let Err(error) = backlog.sync() {
                        return give_up(host, heard, &error);
                    }
                    synced = Instant::now();
                    publish(site, &backlog, true);
                    let _ = told.send(());
                }
                Word::Dropped(group) => {
                    lock(&site.dropped).remove(&group);
                    asked.insert(group, Instant::now());
                    ask_again(group);
                }
                Word::Tape(tape) => {
                    site.told_bytes.fetch_sub(tape_bytes(&tape), Ordering::AcqRel);
                    let group = tape.group;
                    match backlog.append(tape) {
                        Ok(Admission::GoesOn) => {}
                        Ok(Admission::IsRefused) => {
                            // What it tells then may be thrown away as well, so it is asked again after a while.
                            let is_due = |asked: &Instant| asked.elapsed() >= SITE_SYNC_INTERVAL;
                            if asked.get(&group).is_none_or(is_due) {
                                asked.insert(group, Instant::now());
                                ask_again(group);
                            }
                        }
                        Ok(Admission::Begins) => {
                            // A group that had to be asked has told more than was kept.
                            let why = if asked.remove(&group).is_some() {
                                "more has changed than could be written in time"
                            } else {
                                "what came before is not known here"
                            };
                            host.log.notice(&format!("the backlog for a second site starts over: {why}"));
                        }
                        Err(error) => return give_up(host, heard, &error),
                    }
                }
            }
            next = heard.0.try_recv().ok();
        }
        let is_new = backlog.segments().len() != segment_count
            || backlog.segments().back().map(|segment| segment.sequence) != newest;
        publish(site, &backlog, is_new);
        if synced.elapsed() >= SITE_SYNC_INTERVAL {
            synced = Instant::now();
            site.copies.forget_old();
            if let Err(error) = backlog.sync() {
                return give_up(host, heard, &error);
            }
        }
    }
}

/// Lets readers see what is new.
fn publish(site: &Site, backlog: &Backlog, is_new: bool) {
    {
        let mut kept = lock(&site.kept);
        kept.version += 1;
        let earliest = backlog.places().iter().map(|place| place.moment.0).min().unwrap_or_default();
        kept.closed = UnixMillis(earliest.saturating_sub(1));
        kept.latest = trail::latest_moment(backlog.places());
        if is_new {
            kept.segments = backlog.segments().iter().cloned().collect();
        } else if let (Some(last), Some(now)) = (kept.segments.last_mut(), backlog.segments().back()) {
            (last.bytes, last.steps) = (now.bytes, now.steps);
            last.marks.extend_from_slice(&now.marks[last.marks.len()..]);
        }
    }
    site.changed.notify_all();
    let mut figures = lock(&site.figures);
    figures.keeps_backlog = true;
    figures.backlog_bytes = backlog.bytes();
    figures.written_bytes = backlog.written_bytes;
    figures.places = backlog.places().iter().map(|place| place.index).collect();
    figures.moment_ms = backlog.places().iter().map(|place| place.moment.0).min().unwrap_or(0);
    figures.oldest_ms = backlog.segments().front().map_or(0, |segment| trail::latest_moment(&segment.places).0);
}

/// The backlog cannot be written: nobody can follow from here until the next start.
fn give_up(host: &Host, heard: &Prepared, error: &io::Error) {
    host.log.warning(&format!(
        "the backlog for a second site cannot be written: {error}. Nobody can follow from this node until it is started \
         again"
    ));
    let site = &host.site;
    lock(&site.figures).fault = error.to_string();
    site.become_over();
    while let Ok(word) = heard.0.recv() {
        match word {
            Word::Tape(tape) => {
                site.told_bytes.fetch_sub(tape_bytes(&tape), Ordering::AcqRel);
            }
            Word::Dropped(_) | Word::Sync(_) => {}
            Word::End => return,
        }
    }
}

/// Figures of those who follow, by their numbers.
type Followers = BTreeMap<u64, node::event::SiteFollower>;

impl Site {
    /// Changes the figures of one who follows.
    fn note_follower(&self, change: impl FnOnce(&mut Followers)) {
        change(&mut lock(&self.figures).followers);
    }

    /// Waits until there may be more to read, or for so long.
    fn wait(&self, patience: Duration) {
        let kept = lock(&self.kept);
        if !kept.is_over {
            // How long it was is of no importance.
            drop(self.changed.wait_timeout(kept, patience));
        }
    }
}

/// What is shown grows older while the near site is not heard, whatever it lacked then.
fn age(following: &mut SiteFollowing, silence: Duration) {
    let is_following = matches!(following.state, "connecting" | "copying" | "following");
    if is_following && silence >= SITE_SILENCE_MIN {
        following.lag_ms = following.lag_ms.saturating_add(u64::try_from(silence.as_millis()).unwrap_or(u64::MAX));
        following.catch_up_ms = -1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_grows_older_while_the_near_site_is_not_heard() {
        for (state, silence_ms, expected) in [
            ("following", 1_900, (7, 0)),
            ("following", 9_000, (9_007, -1)),
            ("connecting", 9_000, (9_007, -1)),
            ("standing-by", 9_000, (7, 0)),
            ("promoted", 9_000, (7, 0)),
        ] {
            let mut following = SiteFollowing { state, lag_ms: 7, ..SiteFollowing::default() };
            age(&mut following, Duration::from_millis(silence_ms));
            assert_eq!((following.lag_ms, following.catch_up_ms), expected, "{state}, {silence_ms}");
        }
    }
}

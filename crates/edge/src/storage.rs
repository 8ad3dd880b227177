//! The data directory as the rest of the host sees it: one handle that takes what cores want written, and sends the
//! news to their mailboxes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use archive::{Key, Place};
use group::host::AppendFsync;
use group::host::{ArchiveNews, CheckpointStep};
use group::ids::{GroupId, NodeId, Room};
use group::others_can_tell;
use journal::{Append, CheckpointMark, Identity, Journal, Recovered, Span};
use node::event::{ArchiveFigures, Event, JournalFigures};
use node::settings::Settings;

use crate::archiver::{ArchiveQueue, ArchiveThread, Surroundings};
use crate::checkpoint_writer::{CheckpointQueue, CheckpointThread, NewsListener, RATE_DEFAULT};
use crate::disk::{DirectoryLock, RealDisk};
use crate::fault::Fault;
use crate::host::{End, Host};
use crate::journal_thread::{JournalQueue, JournalThread, LazySync, Listener, Notice};
use crate::limits::LOG_HELD_BYTES_MAX;
use crate::log_reader::{ReadQueue, ReadThread};
use crate::mailbox::Mail;
use crate::run::system;

/// A handle of the open data directory.
#[derive(Clone)]
pub struct Storage {
    journal: JournalQueue,
    checkpoints: CheckpointQueue,
    reads: ReadQueue,
    archive: Option<ArchiveQueue>,
    disk: RealDisk,
    shared: Arc<Shared>,
}

type Threads = (JournalThread, CheckpointThread, ReadThread, Option<ArchiveThread>);

struct Shared {
    directory: PathBuf,
    /// Taken when they are stopped.
    threads: Mutex<Option<Threads>>,
    /// Held until the process has let go of everything in the directory.
    _lock: DirectoryLock,
}

impl Storage {
    /// Locks and opens a data directory; a new one becomes that of `identity`. Starts the threads that write to it.
    ///
    /// # Errors
    /// If it is in use, foreign, damaged, or cannot be read; nothing has been changed then.
    pub fn open(
        host: &Arc<Host>,
        directory: &Path,
        identity: Identity,
        settings: &Settings,
    ) -> Result<(Self, Recovered), Fault> {
        let lock = DirectoryLock::acquire(directory).map_err(|cause| in_use_or(directory, cause))?;
        let disk = RealDisk::open_directory(directory).map_err(|cause| Fault::File {
            path: directory.to_owned(),
            purpose: "open",
            cause,
        })?;
        let options = journal::Options {
            held_bytes_max: LOG_HELD_BYTES_MAX,
            has_peers: others_can_tell,
            is_archived: settings.is_archived,
            levels: host.floor.voice().levels,
            ..journal::Options::new(identity)
        };
        let (journal, recovered) = match Journal::open(disk.clone(), &options) {
            Ok(opened) => opened,
            Err(fault) => {
                if matches!(fault, journal::Fault::Foreign { .. }) {
                    lock.abandon();
                }
                return Err(Fault::data(directory, &fault));
            }
        };
        let lazy_sync = lazy_sync(settings.append_fsync);
        let listener = listener(Arc::clone(host), directory.to_owned());
        let journal = JournalThread::start(journal, host.desks.len(), lazy_sync, listener)
            .map_err(system("start the journal's threads"))?;
        let checkpoints = CheckpointThread::start(
            disk.clone(),
            recovered.identity,
            journal.queue().clone(),
            news_listener(Arc::clone(host)),
            {
                let host = Arc::clone(host);
                Box::new(move || {
                    host.site.wait_until_kept();
                    host.lead.wait_until_kept();
                })
            },
        )
        .map_err(system("start the checkpoint writer"))?;
        let reads = ReadThread::start(disk.clone(), journal.queue().clone(), news_listener(Arc::clone(host)))
            .map_err(system("start the log reader"))?;
        let archive = match settings.get("archive") {
            "" => None,
            address => {
                let place = Place::parse(address).map_err(|cause| Fault::Setting { name: "archive", cause })?;
                let key = match settings.get("archive-key-file") {
                    "" => None,
                    path => Some(
                        Key::read(Path::new(path))
                            .map_err(|cause| Fault::Setting { name: "archive-key-file", cause })?,
                    ),
                };
                let surroundings = Surroundings {
                    place,
                    key,
                    disk: disk.clone(),
                    identity: recovered.identity,
                    databases: settings.databases,
                    journal: journal.queue().clone(),
                    host: Arc::clone(host),
                    keep_days: settings.number("archive-keep-days").cast_unsigned(),
                    keep_bytes: settings.number("archive-keep-bytes").cast_unsigned(),
                };
                Some(ArchiveThread::start(surroundings).map_err(system("start the archive's thread"))?)
            }
        };
        let storage = Self {
            archive: archive.as_ref().map(|archive| archive.queue().clone()),
            journal: journal.queue().clone(),
            checkpoints: checkpoints.queue().clone(),
            reads: reads.queue().clone(),
            disk,
            shared: Arc::new(Shared {
                directory: directory.to_owned(),
                threads: Mutex::new(Some((journal, checkpoints, reads, archive))),
                _lock: lock,
            }),
        };
        storage.set_checkpoint_rate(u64::try_from(settings.number("checkpoint-rate-bytes")).unwrap_or(0));
        Ok((storage, recovered))
    }

    /// Hands in what a core wants appended in a turn; those marked `true` are waited for. Leaves `appends` empty.
    /// [`Storage::write`] or [`Storage::announce`] must follow: what several cores hand in before becomes one write.
    pub fn append(&self, core: usize, appends: &mut Vec<(Append, bool)>) {
        self.journal.leave(core, appends);
    }

    /// Writes what has been handed in, if that does not keep the core that calls this, or has it written. True if it is
    /// written: the caller is then to look into its mailbox, and to see to the cores in `called`. `may_sync` says
    /// that a short wait for the disk keeps nobody else.
    pub fn write(&self, may_sync: bool, called: &mut Vec<usize>) -> bool {
        self.journal.write_or_announce(may_sync, called)
    }

    /// The journal must write what has been handed in.
    pub fn announce(&self) {
        self.journal.announce_appends();
    }

    /// True while more is waiting for the disk than should be. [`Mail::StorageTakesMore`] follows.
    pub fn is_full(&self) -> bool {
        self.journal.is_full()
    }

    /// Hands in a step of a group's checkpoint.
    pub fn checkpoint(&self, group: GroupId, id: u64, step: CheckpointStep) {
        self.checkpoints.submit(group, id, step);
    }

    /// Asks for a chunk of a checkpoint on disk.
    pub fn read_checkpoint(&self, group: GroupId, mark: CheckpointMark, chunk: u64, to: NodeId) {
        self.checkpoints.read(group, mark, chunk, to);
    }

    /// Asks for entries of the log.
    pub fn read_log(&self, span: Span) {
        self.reads.read(span);
    }

    /// Entries of a group behind `index` must be kept for members that lack them.
    pub fn keep_log(&self, group: GroupId, index: u64) {
        self.journal.hold(group.0, index);
    }

    /// Tells the archive how far a group is.
    pub fn archive(&self, news: ArchiveNews) {
        if let Some(archive) = &self.archive {
            archive.tell(news);
        }
    }

    /// Changes `archive-keep-days`.
    pub fn set_archive_days(&self, days: u64) {
        self.archive.iter().for_each(|archive| archive.set_keep_days(days));
    }

    /// Changes `archive-keep-bytes`.
    pub fn set_archive_bytes(&self, bytes: u64) {
        self.archive.iter().for_each(|archive| archive.set_keep_bytes(bytes));
    }

    /// How the archive is, if there is one.
    pub fn archive_figures(&self) -> Option<ArchiveFigures> {
        self.archive.as_ref().map(ArchiveQueue::figures)
    }

    /// The others have made good for what the log may have lacked when it was opened.
    pub fn settle(&self) {
        self.journal.settle();
    }

    /// Changes `appendfsync`. Cores wait for their appends or not by themselves.
    pub fn set_policy(&self, policy: &str) {
        self.journal.set_lazy_sync(lazy_sync(match policy {
            "no" => AppendFsync::No,
            "everysec" => AppendFsync::EverySecond,
            _ => AppendFsync::Always,
        }));
    }

    /// Changes `checkpoint-rate-bytes`; 0 is the rate that suits most disks.
    pub fn set_checkpoint_rate(&self, bytes_per_second: u64) {
        self.checkpoints.set_rate(if bytes_per_second == 0 { RATE_DEFAULT } else { bytes_per_second });
    }

    /// What the journal has counted.
    pub fn figures(&self) -> JournalFigures {
        let counters = self.journal.counters();
        JournalFigures {
            write_count: counters.write_count,
            written_bytes: counters.written_bytes,
            sync_count: counters.sync_count,
            sync_last_us: counters.sync_last_us,
            sync_mean_us: counters.sync_mean_us,
            sync_max_us: counters.sync_max_us,
            queue_count: counters.queue_count,
            queue_bytes: counters.queue_bytes,
            kept_bytes: counters.kept_bytes,
            held_bytes: counters.held_bytes,
            held_bytes_max: LOG_HELD_BYTES_MAX,
            segment: counters.segment,
            unsynced_us: counters.unsynced_us,
            checkpoint_bytes: self.checkpoints.written_bytes(),
        }
    }

    /// For reading checkpoints.
    pub fn disk(&self) -> &RealDisk {
        &self.disk
    }

    /// Waits until all that was handed in before is on disk, but for what a full one does not take.
    pub fn flush(&self) {
        self.journal.flush();
    }

    /// Writes what is left, notes that the process stopped in good order if it may, and ends the threads. Nothing may
    /// be handed in any more. Without the note, the next start asks itself whether the logs lack their ends.
    ///
    /// # Errors
    /// If the log could not be brought to that point.
    pub fn close(self, may_note: bool) -> Result<(), Fault> {
        let threads = self.shared.threads.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((journal, checkpoints, reads, archive)) = threads else { return Ok(()) };
        archive.into_iter().for_each(ArchiveThread::stop);
        reads.stop();
        checkpoints.stop();
        journal.stop(may_note).map_err(|fault| Fault::data(&self.shared.directory, &fault))
    }
}

fn in_use_or(directory: &Path, cause: io::Error) -> Fault {
    if cause.kind() == io::ErrorKind::WouldBlock {
        return Fault::Data(format!(
            "data directory {} is in use by another server: stop that one, or choose another directory with --data-dir",
            directory.display()
        ));
    }
    Fault::File { path: directory.to_owned(), purpose: "lock", cause }
}

fn lazy_sync(policy: AppendFsync) -> LazySync {
    match policy {
        // With `always` all is waited for.
        AppendFsync::Always | AppendFsync::EverySecond => LazySync::EverySecond,
        AppendFsync::No => LazySync::Never,
    }
}

/// Sends what the journal tells to the cores that it concerns: one lock and at most one wake-up for each.
fn listener(host: Arc<Host>, directory: PathBuf) -> Listener {
    Box::new(move |notice| match notice {
        Notice::Persisted(tickets) => {
            let mut called = Vec::new();
            tell_persisted(&host, tickets, |core| called.push(core));
            host.wake_called(&called);
        }
        Notice::WrittenOnCore(tickets, called) => tell_persisted(&host, tickets, |core| called.push(core)),
        Notice::TakesMore => host.desks.iter().for_each(|desk| desk.mailbox.post(Mail::StorageTakesMore)),
        Notice::Room(room) => {
            let room = match room {
                Ok(()) => {
                    host.log.notice("the disk has room again: writes are accepted");
                    Room::Enough
                }
                Err(reason) => {
                    host.log.warning(&format!("writes are refused until there is room again: {reason}"));
                    Room::None(reason)
                }
            };
            for desk in &host.desks {
                desk.mailbox.post(Mail::Event(Event::Room(room.clone())));
            }
        }
        Notice::Failed(fault) => host.end(End::Fault(Fault::data(&directory, &fault))),
    })
}

/// Leaves to each core its tickets; `call` gets those to which the caller is called by that.
fn tell_persisted(host: &Host, tickets: &[(u32, u64)], mut call: impl FnMut(usize)) {
    for (core, desk) in host.desks.iter().enumerate() {
        let mut of_core = tickets.iter().filter(|(group, _)| host.core_of(*group) == core).peekable();
        if of_core.peek().is_none() {
            continue;
        }
        let is_called = desk.mailbox.leave_with(|mail| {
            mail.extend(
                of_core.map(|&(group, ticket)| Mail::Event(Event::Persisted { group: GroupId(group), ticket })),
            );
        });
        if is_called {
            call(core);
        }
    }
}

fn news_listener(host: Arc<Host>) -> NewsListener {
    Arc::new(move |group, event| host.desks[host.core_of(group.0)].mailbox.post(Mail::Event(event)))
}

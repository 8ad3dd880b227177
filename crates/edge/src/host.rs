//! What the host's threads share: log, each core's desk, and the few settings that the host itself carries out.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use node::Core;
use node::event::BackupFigures;
use stdx::Instant;

use crate::black_box::BlackBox;
use crate::calling::Sockets;
use crate::carrier::Carrier;
use crate::clock;
use crate::core_thread::CoreWork;
use crate::early::EarlyMark;
use crate::fault::Fault;
use crate::floor::Floor;
use crate::lead::Lead;
use crate::limits::{READ_MEMORY, SPREAD_REST};
use crate::log::Log;
use crate::mailbox::{Mail, Mailbox};
use crate::peers::PeerQueue;
use crate::replicator::Replicator;
use crate::run::Invited;
use crate::site::Site;
use crate::storage::Storage;
use crate::tls::{Credentials, Security};

/// Shared by all threads of the process.
pub struct Host {
    /// For the operator.
    pub log: Arc<Log>,
    /// One per core.
    pub desks: Box<[Desk]>,
    /// Settings.
    pub knobs: Knobs,
    /// When cores did not turn.
    pub black_box: Arc<BlackBox>,
    /// The number of the next session; the first is 1.
    pub next_serial: AtomicU64,
    /// Each core has a thread of its own until then.
    spread_until_ns: AtomicU64,
    /// When a client was last answered without the disk, about; 0 is never.
    read_at_ns: AtomicU64,
    /// Connections refused because of `maxclients`.
    pub rejected_count: AtomicU64,
    /// What is for other nodes.
    pub peers: PeerQueue,
    /// What is for replicas of other kinds.
    pub lead: Lead,
    /// What is for other clusters.
    pub site: Site,
    /// Keys that go to other servers.
    pub carrier: Carrier,
    /// Follows a Redis, if a client wishes that.
    pub replicator: Replicator,
    security: Mutex<Arc<Security>>,
    /// What this node shows to others, if its cluster has an authority of its own.
    pub credentials: Option<Credentials>,
    has_stopped_accepting: AtomicBool,
    /// Whether anything is acknowledged before it is on the disk.
    pub early: EarlyMark,
    /// What the data directory says of levels.
    pub floor: Floor,
    /// This start began with logs that may lack their ends.
    begins_in_doubt: AtomicBool,
    /// A core has ended that may lack the end of a log.
    ends_in_doubt: AtomicBool,
    /// Cores that have not been told yet what their groups may lack, where the log on disk was found to lack its end.
    unsettled_count: AtomicUsize,
    /// How scheduled backups are doing, if there are any.
    backups: Mutex<Option<BackupFigures>>,
    /// Cores that have ended, and had nothing that would be lost with them.
    blank_count: AtomicUsize,
    news: Sender<News>,
}

/// What the main thread is told.
pub enum News {
    /// The data directory is open.
    Opened(Storage),
    /// All data are loaded: clients are served.
    Loaded,
    /// The process must end.
    End(End),
}

/// Why the process must end.
#[derive(Debug)]
pub enum End {
    /// A signal asked for it.
    Signal(&'static str),
    /// A client asked for it.
    Command,
    /// It must join the cluster of the node at this address.
    Join(Invited),
    /// It cannot go on.
    Fault(Fault),
}

/// What others may touch of a core. Cores write here at every connect, so each has a cache line of its own (two, as
/// processors fetch them in pairs).
#[repr(align(128))]
pub struct Desk {
    /// What the core is told.
    pub mailbox: Mailbox,
    /// The core itself: for its own thread, and while that sleeps, for the one who has been called to it. Not there
    /// before the thread has begun, and after it has ended. Nobody holds two of them.
    pub work: Mutex<Option<Box<CoreWork>>>,
    /// Its sockets, and which thread waits for them.
    pub sockets: Sockets,
    /// How often a thread other than its own has stepped it.
    pub helped_count: AtomicU64,
    /// Connections dealt to it that are not gone yet.
    pub client_count: AtomicU64,
    /// Bytes that its clients take, as the core has last found.
    pub client_bytes: AtomicU64,
    /// Requests that it has taken from clients.
    pub request_count: AtomicU64,
}

/// Settings that the host carries out, changed by `Action::Configured`.
#[derive(Debug)]
pub struct Knobs {
    /// `maxclients`.
    pub clients_max: AtomicU64,
    /// `timeout`: seconds after which an idle client is disconnected; 0 is never.
    pub idle_s: AtomicU64,
    /// `tcp-keepalive` in seconds; 0 is off.
    pub keepalive_s: AtomicU64,
    /// `core-threads`; 0 leaves it to the server.
    pub core_threads: AtomicU64,
    /// `sync-on-core`: 1 is yes.
    pub sync_on_core: AtomicU64,
}

impl Host {
    /// The core with the thread that waits for this core's sockets.
    pub fn watcher(&self, core: usize) -> usize {
        self.desks[core].sockets.watcher()
    }

    /// A client was answered without the disk.
    pub fn note_read(&self, now: Instant) {
        // Cores share this: it is written now and then.
        if now.since(Instant::from_nanos(self.read_at_ns.load(Ordering::Relaxed))) > READ_MEMORY / 8 {
            self.read_at_ns.store(now.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Clients have been answered without the disk a short time ago.
    pub fn is_being_read(&self, now: Instant) -> bool {
        let at_ns = self.read_at_ns.load(Ordering::Relaxed);
        at_ns > 0 && now.since(Instant::from_nanos(at_ns)) < READ_MEMORY
    }

    /// Wakes few threads that step all these cores, to which the caller has been called: those that wait for their
    /// sockets, and of two others that rest one, which steps the other one as well.
    pub fn wake_called(&self, cores: &[usize]) {
        let (own, guests): (Vec<usize>, Vec<usize>) = cores.iter().partition(|&&core| self.watcher(core) == core);
        for guest in guests {
            self.desks[self.watcher(guest)].mailbox.post(Mail::Call(guest));
        }
        for pair in own.chunks(2) {
            let mailbox = &self.desks[pair[0]].mailbox;
            if let Some(&other) = pair.get(1) {
                mailbox.post(Mail::Call(other));
            }
            mailbox.wake();
        }
    }

    /// This core keeps its thread for long: for a while no other core shares one.
    pub fn spread(&self, core: usize, now: Instant) {
        if (0..self.desks.len()).any(|other| other != core && self.watcher(other) == core) {
            self.spread_until_ns.store((now + SPREAD_REST).as_nanos(), Ordering::Relaxed);
            self.gather(1);
        }
    }

    /// How many threads the cores share.
    pub fn thread_count(&self) -> usize {
        (0..self.desks.len()).filter(|&core| self.watcher(core) == core).count()
    }

    /// How many threads the cores share, if that is not to be decided by load.
    pub fn forced_thread_count(&self) -> Option<usize> {
        match self.knobs.core_threads.load(Ordering::Relaxed) {
            // Something takes long, and others are not to wait for it.
            0 if clock::instant().as_nanos() < self.spread_until_ns.load(Ordering::Relaxed) => Some(self.desks.len()),
            0 => None,
            fixed => Some(usize::try_from(fixed).unwrap_or(usize::MAX)),
        }
    }

    /// The cores share so many threads from now on, unless `core-threads` says how many. A core that needs a thread of
    /// its own has it until this is called again.
    pub fn gather(&self, thread_count: usize) {
        let thread_count = self.forced_thread_count().unwrap_or(thread_count);
        for (core, desk) in self.desks.iter().enumerate() {
            if desk.sockets.entrust(core % thread_count) {
                desk.mailbox.wake();
            }
        }
    }

    /// A host with a main thread that listens to `news`.
    pub fn new(
        log: Arc<Log>,
        mailboxes: Vec<(Mailbox, Sockets)>,
        knobs: Knobs,
        (security, credentials): (Security, Option<Credentials>),
        (peers, lead, site, carrier): (PeerQueue, Lead, Site, Carrier),
        (early, floor): (EarlyMark, Floor),
        news: Sender<News>,
    ) -> Self {
        let desks = mailboxes
            .into_iter()
            .map(|(mailbox, sockets)| Desk {
                mailbox,
                sockets,
                work: Mutex::default(),
                helped_count: AtomicU64::new(0),
                client_count: AtomicU64::new(0),
                client_bytes: AtomicU64::new(0),
                request_count: AtomicU64::new(0),
            })
            .collect();
        Self {
            log,
            desks,
            knobs,
            black_box: Arc::default(),
            next_serial: AtomicU64::new(1),
            spread_until_ns: AtomicU64::new(0),
            read_at_ns: AtomicU64::new(0),
            rejected_count: AtomicU64::new(0),
            peers,
            lead,
            site,
            carrier,
            replicator: Replicator::default(),
            security: Mutex::new(Arc::new(security)),
            credentials,
            has_stopped_accepting: AtomicBool::new(false),
            early,
            floor,
            begins_in_doubt: AtomicBool::new(false),
            ends_in_doubt: AtomicBool::new(false),
            unsettled_count: AtomicUsize::new(0),
            backups: Mutex::default(),
            blank_count: AtomicUsize::new(0),
            news,
        }
    }

    /// What connections that begin now are secured with.
    pub fn security(&self) -> Arc<Security> {
        Arc::clone(&self.security.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// From now on connections begin with this.
    pub fn secure(&self, security: Security) {
        *self.security.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(security);
    }

    /// From now on links begin with a newer certificate, if those of the cluster's own authority are used.
    pub fn renew_certificate(&self) {
        let Some(credentials) = &self.credentials else { return };
        let mut security = self.security.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(renewed) = security.renewed(credentials) {
            *security = Arc::new(renewed);
        }
    }

    /// From now on scheduled backups are told to be so.
    pub fn show_backups(&self, figures: BackupFigures) {
        *self.backups.lock().unwrap_or_else(PoisonError::into_inner) = Some(figures);
    }

    /// How scheduled backups are.
    pub fn backups(&self) -> Option<BackupFigures> {
        self.backups.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Connected clients over all cores.
    pub fn client_count(&self) -> u64 {
        self.desks.iter().map(|desk| desk.client_count.load(Ordering::Relaxed)).sum()
    }

    /// Place of the core on which a group lives, as `node` counts.
    pub fn core_of(&self, group: u32) -> usize {
        group as usize % self.desks.len()
    }

    /// Tells the acceptor to end; it must be woken after that.
    pub fn stop_accepting(&self) {
        self.has_stopped_accepting.store(true, Ordering::Release);
    }

    /// Whether the acceptor must end.
    pub fn has_stopped_accepting(&self) -> bool {
        self.has_stopped_accepting.load(Ordering::Acquire)
    }

    /// The data directory has been read as far as to say whether logs may lack their ends, and whether that is because
    /// of what is on the disk.
    pub fn begin(&self, is_in_doubt: bool, is_tail_in_question: bool) {
        self.begins_in_doubt.store(is_in_doubt, Ordering::Release);
        self.unsettled_count.store(if is_tail_in_question { self.desks.len() } else { 0 }, Ordering::Release);
    }

    /// True until all cores have said that their groups lack nothing, if the log on disk was found to lack its end.
    pub fn is_unsettled(&self) -> bool {
        self.unsettled_count.load(Ordering::Acquire) > 0
    }

    /// A core has been told what its groups may have lacked. True for the last one.
    pub fn settle_core(&self) -> bool {
        self.unsettled_count.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// A core has ended: nothing is acknowledged by it any more.
    pub fn note_end(&self, core: &Core) {
        self.blank_count.fetch_add(usize::from(core.is_blank()), Ordering::Release);
        // One that is still loading does not know of all its groups what they lack.
        let may_not_know = self.begins_in_doubt.load(Ordering::Acquire) && !core.is_loaded();
        self.ends_in_doubt.fetch_or(core.is_in_doubt() || may_not_know, Ordering::Release);
    }

    /// True if a core has ended that may lack the end of a log.
    pub fn has_ended_in_doubt(&self) -> bool {
        self.ends_in_doubt.load(Ordering::Acquire)
    }

    /// True if all cores have ended, and none had anything that would be lost with it.
    pub fn has_ended_blank(&self) -> bool {
        self.blank_count.load(Ordering::Acquire) == self.desks.len()
    }

    /// Tells the main thread that the data directory is open.
    pub fn opened(&self, storage: Storage) {
        let _ = self.news.send(News::Opened(storage));
    }

    /// Tells the main thread that clients are served.
    pub fn loaded(&self) {
        let _ = self.news.send(News::Loaded);
    }

    /// Asks the main thread to end the process.
    pub fn end(&self, end: End) {
        // Nobody listens any more once the end has begun.
        let _ = self.news.send(News::End(end));
    }
}

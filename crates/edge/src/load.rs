//! From a data directory to serving groups: opens the journal, reads checkpoints in parallel, hands groups to their
//! cores.
//!
//! Clients are connected meanwhile: a group that has not been loaded answers so, one that has been loaded serves.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use group::group_seed::GroupSeed;
use group::host::AppendFsync;
use group::ids::{GroupId, NodeId};
use group::{first_membership, group_count};
use journal::{CheckpointMark, CheckpointReader, Identity, RecoveredGroup};
use keyspace::{Keyspace, Layout};
use node::event::Event;
use node::metrics::Measured;
use node::settings::Settings;
use node::splitting::commit_splits;

use crate::contacts;
use crate::fault::Fault;
use crate::host::{End, Host};
use crate::limits::{APPLY_INTERVAL, LEADER_INTERVAL, PROGRESS_INTERVAL};
use crate::mailbox::Mail;
use crate::run;
use crate::storage::Storage;

/// What a directory says of itself, or `None` if it says nothing yet.
///
/// # Errors
/// If what it says cannot be read or is damaged.
pub fn read_identity(directory: &Path) -> Result<Option<Identity>, Fault> {
    let path = directory.join(journal::IDENTITY_FILE);
    match fs::read(&path) {
        Ok(bytes) => Identity::decode(&bytes).map(Some).map_err(|fault| Fault::data(directory, &fault)),
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(Fault::File { path, purpose: "read", cause }),
    }
}

/// Starts the thread that loads. It tells the main thread how it went.
///
/// # Errors
/// If the thread cannot be started.
pub fn start(host: Arc<Host>, directory: PathBuf, identity: Identity, settings: Settings) -> Result<(), Fault> {
    let load = Load { host: Arc::clone(&host), directory, identity, settings, begun: Instant::now() };
    run::start("load", move || {
        if let Err(fault) = load.run() {
            host.end(End::Fault(fault));
        }
    })?;
    Ok(())
}

struct Load {
    host: Arc<Host>,
    directory: PathBuf,
    identity: Identity,
    settings: Settings,
    begun: Instant,
}

/// How far a load is.
#[derive(Default)]
struct Progress {
    bytes_total: AtomicU64,
    bytes_done: AtomicU64,
    /// All checkpoints have been read: what they say is handed to the cores, with the log behind them.
    has_read_checkpoints: AtomicBool,
}

impl Progress {
    fn words(&self) -> String {
        let total = self.bytes_total.load(Ordering::Relaxed);
        let done = self.bytes_done.load(Ordering::Relaxed);
        match (done * 100).checked_div(total) {
            _ if self.has_read_checkpoints.load(Ordering::Relaxed) => "applies the log".to_owned(),
            None => "reads the log".to_owned(),
            Some(percent) => {
                format!("loads checkpoints: {:.1} of {:.1} MB, {percent} %", done as f64 / 1e6, total as f64 / 1e6)
            }
        }
    }
}

/// A group of the data directory.
struct Found {
    group: u32,
    recovered: RecoveredGroup,
    /// Groups that rest on its log.
    unkept: BTreeSet<GroupId>,
}

impl Load {
    fn run(&self) -> Result<(), Fault> {
        let progress = Progress::default();
        let loaded = thread::scope(|scope| {
            // Dropped at the end of the load, which ends the thread that tells about it.
            let (_loading, is_loading) = mpsc::channel::<()>();
            thread::Builder::new()
                .name("progress".into())
                .spawn_scoped(scope, || self.tell(&progress, is_loading))
                .map_err(run::system("start a thread"))?;
            self.load(&progress)
        })?;
        if let Some(loaded) = loaded {
            self.wait_for_leaders(&loaded);
        }
        Ok(())
    }

    /// A line every second.
    fn tell(&self, progress: &Progress, is_loading: mpsc::Receiver<()>) {
        while is_loading.recv_timeout(PROGRESS_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            self.host.log.notice(&format!("{}, {} s so far", progress.words(), self.begun.elapsed().as_secs()));
        }
    }

    /// Answers what it has loaded, in words, or `None` if the server ends meanwhile.
    fn load(&self, progress: &Progress) -> Result<Option<String>, Fault> {
        let (storage, mut recovered) = Storage::open(&self.host, &self.directory, self.identity, &self.settings)?;
        for note in &recovered.notes {
            self.host.log.notice(note);
        }
        if let Some(why) = &recovered.tail_in_question {
            self.host.log.warning(why);
        }
        let is_tail_in_question = recovered.tail_in_question.is_some();
        let is_recovering = self.may_lack_its_end(recovered.was_stopped_cleanly)? || is_tail_in_question;
        self.host.begin(is_recovering, is_tail_in_question);
        for desk in &self.host.desks {
            desk.mailbox.post(Mail::Storage(storage.clone()));
        }
        self.host.opened(storage.clone());

        if recovered.groups.get(&0).is_some_and(|group| group.checkpoint.is_some()) {
            contacts::forget(&self.directory);
        }
        let mut unkept = commit_splits(&mut recovered.groups);
        let count = group_count(&recovered);
        for desk in &self.host.desks {
            desk.mailbox.post(Mail::Event(Event::Groups { count, is_recovering }));
        }
        let mut groups = recovered.groups;
        let entry_count: usize = groups.values().map(|group| group.entries.len()).sum();
        let mut found: VecDeque<Found> = VecDeque::new();
        for group in 0..count {
            let recovered = groups.remove(&group).unwrap_or_default();
            if let Some(mark) = &recovered.checkpoint {
                let path = self.directory.join(journal::checkpoint_file(group, mark.index));
                // A file that is missing is told of when it is read.
                let bytes = fs::metadata(path).map_or(0, |metadata| metadata.len());
                progress.bytes_total.fetch_add(bytes, Ordering::Relaxed);
            }
            found.push_back(Found { group, recovered, unkept: unkept.remove(&group).unwrap_or_default() });
        }
        let worker_count = self.host.desks.len().min(found.len());
        let queue = Mutex::new(found);
        thread::scope(|scope| {
            let workers: Vec<_> = (0..worker_count)
                .map(|_| scope.spawn(|| self.load_groups(&queue, &storage, is_recovering, progress)))
                .collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("a loader does not panic"))
        })?;
        progress.has_read_checkpoints.store(true, Ordering::Relaxed);
        if !self.wait_for_cores(Measured::is_loaded, APPLY_INTERVAL, || ()) {
            return Ok(None);
        }
        Ok(Some(format!(
            "has loaded {} MB of checkpoints and {entry_count} entries of the log in {:.3} s",
            progress.bytes_total.load(Ordering::Relaxed) / 1_000_000,
            self.begun.elapsed().as_secs_f64()
        )))
    }

    fn wait_for_leaders(&self, loaded: &str) {
        // Anyone who starts the nodes of a cluster one after the other waits for none of them.
        self.host.loaded();
        let mut waits = false;
        let tell = || {
            if !std::mem::replace(&mut waits, true) {
                self.host.log.notice(&format!("{loaded}; waits for the other nodes of its cluster to find leaders"));
            }
        };
        if self.wait_for_cores(Measured::is_served, LEADER_INTERVAL, tell) {
            let before = if waits { "has found who leads each group" } else { loaded };
            self.host.log.notice(&format!("{before}; ready to accept commands"));
        }
    }

    /// Waits until all cores have got so far, and looks in this interval. False if the server ends.
    fn wait_for_cores(&self, is_there: fn(&Measured) -> bool, interval: Duration, mut waits: impl FnMut()) -> bool {
        for desk in &self.host.desks {
            loop {
                let (told, answer) = mpsc::channel();
                desk.mailbox.post(Mail::Measure(told));
                match answer.recv() {
                    Ok(measured) if is_there(&measured) => break,
                    Ok(_) => {
                        waits();
                        thread::sleep(interval);
                    }
                    // A core that has ended drops its mail.
                    Err(_) => return false,
                }
            }
        }
        true
    }

    /// Whether what was acknowledged may be lacking, by what was in force when it was; and remembers what is from now
    /// on.
    fn may_lack_its_end(&self, was_stopped_cleanly: bool) -> Result<bool, Fault> {
        let early = &self.host.early;
        let fault = |cause| Fault::File {
            path: self.directory.clone(),
            purpose: "note in it what acknowledgements mean",
            cause,
        };
        let was_early = early.is_there().map_err(fault)?;
        let is_early = self.settings.append_fsync != AppendFsync::Always || self.settings.allows_memory;
        if is_early {
            early.set().map_err(fault)?;
        } else if was_early && was_stopped_cleanly {
            early.clear().map_err(fault)?;
        }
        // A directory that lacks the file, being a copy or older than the file, is believed what it is started with.
        Ok((was_early || is_early) && !was_stopped_cleanly)
    }

    fn load_groups(
        &self,
        queue: &Mutex<VecDeque<Found>>,
        storage: &Storage,
        is_recovering: bool,
        progress: &Progress,
    ) -> Result<(), Fault> {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(Found { group, recovered, unkept }) = next else { return Ok(()) };
            let mut seed = self.load_group(group, recovered, storage, progress)?;
            (seed.is_recovering, seed.unkept) = (is_recovering, unkept);
            self.host.desks[self.host.core_of(group)].mailbox.post(Mail::Event(Event::Loaded(Box::new(seed))));
        }
    }

    fn load_group(
        &self,
        group: u32,
        recovered: RecoveredGroup,
        storage: &Storage,
        progress: &Progress,
    ) -> Result<GroupSeed, Fault> {
        let keyspace = Keyspace::new(keyspace::Options {
            databases: self.settings.databases,
            hash_seed: self.identity.hash_seed,
            layout: Layout::Slots,
            tuning: self.settings.tuning(),
        });
        let mut seed = GroupSeed::new(GroupId(group), NodeId(self.identity.node), keyspace);
        seed.membership = first_membership(&self.identity, group, &recovered);
        seed.was_given_up = recovered.is_vacated();
        if let Some(mark) = recovered.checkpoint {
            self.read_checkpoint(group, &mark, &mut seed, storage, progress)?;
            seed.checkpoint_index = mark.index;
            seed.checkpoint_term = mark.term;
            seed.membership = mark.membership;
        }
        seed.hard_state = recovered.hard_state;
        seed.entries = recovered.entries;
        Ok(seed)
    }

    fn read_checkpoint(
        &self,
        group: u32,
        mark: &CheckpointMark,
        seed: &mut GroupSeed,
        storage: &Storage,
        progress: &Progress,
    ) -> Result<(), Fault> {
        let told = |fault| Fault::data(&self.directory, &fault);
        let mut reader = CheckpointReader::open(storage.disk().clone(), &self.identity, group, mark).map_err(told)?;
        let mut done_before = 0;
        while let Some(chunk) = reader.next().map_err(told)? {
            seed.restore(chunk).map_err(|corrupt| {
                told(journal::Fault::Damaged {
                    file: journal::checkpoint_file(group, mark.index),
                    offset: done_before,
                    what: corrupt.to_string(),
                })
            })?;
            let (done, _) = reader.progress();
            progress.bytes_done.fetch_add(done - done_before, Ordering::Relaxed);
            done_before = done;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stage_of_a_load_is_told_as_what_it_is() {
        let progress = Progress::default();
        assert_eq!(progress.words(), "reads the log");
        progress.bytes_total.store(2_000_000, Ordering::Relaxed);
        progress.bytes_done.store(1_800_000, Ordering::Relaxed);
        assert_eq!(progress.words(), "loads checkpoints: 1.8 of 2.0 MB, 90 %");
        // The last piece of a checkpoint has been read before its size is counted.
        progress.has_read_checkpoints.store(true, Ordering::Relaxed);
        assert_eq!(progress.words(), "applies the log");
    }
}

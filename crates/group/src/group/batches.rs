//! Batches: gathered, proposed as one entry each, appended, and failed where another leader has taken over.

use journal::Append;
use keyspace::{Limits, Moment};
use message::entry::{self, Builder, Durability};
use resp::{Args, Protocol, Span};
use stdx::log::{Entry, EntryKind};
use stdx::{Level, Prng, UnixMillis};

use super::reads::fail_read;
use super::{Batch, Group, LEADER_LOST, OUTCOME_UNKNOWN, Waiter};
use crate::defect::Defect;
use crate::host::AppendFsync;
use crate::host::Persist;
use crate::ids::Now;
use crate::limits;
use crate::output::{NodeView, Output};
use crate::requests::Origin;

/// Before, which sets and lists are called listpacks was no part of the log.
const LEVEL_OF_NAMES: Level = Level(2);

impl Group {
    /// Adds the removal of a key chosen for eviction; false if it is under way already.
    pub fn evict(&mut self, database: u16, key: &[u8], byte_count: usize) -> bool {
        // What moves is counted where it arrives.
        if self.holds_lock_on(key) || !self.evictions.keys.insert((database, key.to_vec())) {
            return false;
        }
        let name = b"unlink";
        let mut buffer = name.to_vec();
        buffer.extend_from_slice(key);
        let spans =
            [Span { start: 0, end: name.len() as u32 }, Span { start: name.len() as u32, end: buffer.len() as u32 }];
        self.leader.speculation.note(key, self.batch.number);
        self.leader.builder.command(Protocol::Resp2, database, Args::new(&buffer, &spans));
        self.leader.waiters.push(Waiter::Eviction(database, key.to_vec(), byte_count));
        self.evictions.bytes += byte_count;
        true
    }

    /// Sets when collections change their form. That is replicated data: the log tells it to every replica, before any
    /// command that comes later. Whether keys expire is left as it is.
    pub fn set_limits(&mut self, limits: Limits) {
        self.wanted.limits = limits;
        self.log_limits();
    }

    /// Sets whether keys expire, in the same way. An import outlives the process: a node with settings that say nothing
    /// of it goes on as the log says.
    pub fn set_import_mode(&mut self, import_mode: bool) {
        self.wanted.import_mode = Some(import_mode);
        self.log_limits();
    }

    /// True if no key expires, as far as this replica knows.
    pub fn is_in_import_mode(&self) -> bool {
        self.wanted.import_mode.unwrap_or(self.state.keyspace().limits().keeps_expired)
    }

    /// Raises the level of the group.
    pub fn rise(&mut self, level: Level) {
        self.wanted.level_logged = level;
        self.leader.builder.rise(level);
        self.leader.waiters.push(Waiter::Silent);
        // Some of them could not be said before.
        self.log_limits();
    }

    pub(super) fn log_limits(&mut self) {
        let mut limits = Limits { keeps_expired: self.is_in_import_mode(), ..self.wanted.limits };
        if self.level_to_log() < LEVEL_OF_NAMES {
            limits = limits.with_usual_names();
        }
        if self.is_serving && limits != self.wanted.limits_logged {
            self.wanted.limits_logged = limits;
            self.leader.builder.limits(&limits);
            self.leader.waiters.push(Waiter::Silent);
        }
    }

    /// The moment of what is logged now. Moments of a log never go back, and some of it may be proposed and not yet
    /// applied; nor is it earlier than what this core has heard of.
    pub(super) fn next_unix(&self, now: Now, heard: UnixMillis) -> UnixMillis {
        now.unix.max(self.moment().unix).max(self.batch.unix).max(heard)
    }

    /// Proposes what has been gathered if its moment is fixed and earlier than what has been heard: what follows from
    /// that must not have the same moment. While leadership is being handed over nothing can be proposed.
    pub fn close_batch(&mut self, now: Now, heard: UnixMillis, prng: &mut Prng) {
        if self.leader.builder_moment.is_some_and(|moment| moment.unix < heard) {
            self.propose(now, heard, prng);
        }
    }

    pub(super) fn propose(&mut self, now: Now, heard: UnixMillis, prng: &mut Prng) -> bool {
        // While leadership is being handed over the log takes nothing. Whether this replica leads on is not known, so
        // what has been taken waits: some of it counts already, such as the end of a transaction with keys that others
        // take over.
        if self.leader.builder.is_empty() || self.replica.is_handing_over() {
            return false;
        }
        // The next batch is probably like this one: room made now need not be made again step by step.
        let byte_count = self.leader.builder.byte_count() - std::mem::take(&mut self.leader.sliced_bytes);
        let mut next = Builder::with_capacity(byte_count.min(limits::BATCH_BYTES_RESERVED_MAX));
        next.set_level(self.level_to_log());
        let mut builder = std::mem::replace(&mut self.leader.builder, next);
        let next = Vec::with_capacity(self.leader.waiters.len().min(limits::BATCH_WAITERS_RESERVED_MAX));
        let waiters = std::mem::replace(&mut self.leader.waiters, next);
        let moment = match self.leader.builder_moment.take() {
            Some(moment) => moment,
            None => Moment { unix: self.next_unix(now, heard), seed: prng.draw() },
        };
        builder.set_durability(strictest(&waiters));
        assert!(moment.unix >= self.batch.unix, "moments of a log never go back");
        self.batch.unix = moment.unix;
        let (number, late) = (self.batch.number, Vec::new());
        self.batch.number += 1;
        let data = builder.finish(moment);
        let write_set = std::mem::take(&mut self.leader.write_set);
        match self.replica.propose(data.clone()) {
            Ok(()) => {
                self.window.inflight_bytes += byte_count;
                let (index, term) = (self.replica.last_index(), self.replica.term());
                assert!(index > self.applied(), "what is proposed comes behind what is applied");
                let before = self.window.inflight.iter().rev().find(|batch| batch.index > 0);
                let is_behind = before.is_none_or(|before| before.term < term || before.index < index);
                assert!(is_behind, "a place of the log is given once in a term");
                self.window.inflight.push_back(Batch {
                    number,
                    index,
                    term,
                    waiters,
                    late,
                    byte_count,
                    data,
                    write_set,
                });
                self.leader.pace.proposed(now.instant, index);
            }
            Err(_) => {
                // Leadership was lost in this very turn: the batch never entered the log.
                let (index, term, byte_count) = (0, 0, 0);
                self.window.inflight.push_back(Batch {
                    number,
                    index,
                    term,
                    waiters,
                    late,
                    byte_count,
                    data,
                    write_set,
                });
            }
        }
        true
    }

    pub(super) fn append(&mut self, append: consensus::Append, output: &mut impl Output) {
        let normal = append.entries.iter().filter(|entry| entry.kind == EntryKind::Normal);
        let level = normal.map(|entry| entry::level(&entry.data)).max().unwrap_or_default();
        if self.defect == Some(Defect::EarlyLevel) && level <= output.view().levels().known.highest {
            // Nobody is told.
        } else if !output.keep_level(level) {
            return;
        }
        let hard_state = append.hard_state.unwrap_or(self.hard_state);
        self.hard_state = hard_state;
        self.log.bytes += append.entries.iter().map(|entry| entry.data.len() as u64).sum::<u64>();
        let is_always = self.append_fsync == AppendFsync::Always;
        let is_synced = |entry: &Entry| match (entry.kind, entry::durability(&entry.data)) {
            (EntryKind::Normal, Durability::Memory) => is_always && !self.allows_memory,
            (EntryKind::Normal, Durability::Disk) => true,
            (EntryKind::Normal | EntryKind::Membership, _) => is_always,
        };
        let is_synced = match append.entries.as_slice() {
            [] => is_always,
            entries => entries.iter().any(is_synced),
        };
        let is_synced = is_synced || append.election;
        let ticket = append.ticket;
        let is_election = append.election;
        let append = Append {
            group: self.id.0,
            ticket,
            hard_state: append.hard_state,
            membership: None,
            entries: append.entries,
        };
        output.append(append, if is_synced { Persist::Synced } else { Persist::Written });
        if self.acknowledges_early && !is_election {
            self.replica.persisted(ticket);
        }
    }

    /// Tells those who wait for a batch that it will never be applied: its entry was never made, or another leader's
    /// stands in its place. That is certain, so the refusal may be retried without doubling anything.
    pub(super) fn fail(&mut self, waiters: Vec<Waiter>, output: &mut impl Output) {
        for waiter in waiters {
            if let Some(origin) = waiter.origin() {
                self.lose_place(origin);
            }
            match waiter {
                Waiter::Write(origin) => fail(&origin, Protocol::Resp2, LEADER_LOST, output),
                Waiter::Read(read) => fail_read(&read, LEADER_LOST, output),
                Waiter::Step(origin) => output.send_back(&origin),
                Waiter::Fetch(fetch) => output.send_back(&fetch.origin),
                Waiter::Eviction(database, key, byte_count) => {
                    self.evictions.keys.remove(&(database, key));
                    self.evictions.bytes -= byte_count;
                }
                Waiter::Script(origin, _) | Waiter::Told(origin, _) => {
                    fail(&origin, Protocol::Resp2, LEADER_LOST, output);
                }
                Waiter::Silent => {}
            }
        }
    }

    /// Tells those who wait for a batch that nobody here will ever know what became of it.
    pub(super) fn fail_unknown(&mut self, batch: Batch, output: &mut impl Output) {
        let (writes, others) =
            batch.waiters.into_iter().partition(|waiter| matches!(waiter, Waiter::Write(_) | Waiter::Script(..)));
        for waiter in writes {
            if let Waiter::Write(origin) | Waiter::Script(origin, _) = waiter {
                fail(&origin, Protocol::Resp2, OUTCOME_UNKNOWN, output);
            }
        }
        self.fail_batch(Batch { waiters: others, ..batch }, output);
    }

    pub(super) fn fail_batches_never_proposed(&mut self, output: &mut impl Output) {
        while self.window.inflight.front().is_some_and(|batch| batch.index == 0) {
            let batch = self.window.inflight.pop_front().expect("just seen");
            self.fail_batch(batch, output);
        }
    }

    pub(super) fn fail_batch(&mut self, batch: Batch, output: &mut impl Output) {
        self.fail(batch.waiters, output);
        for read in &batch.late {
            self.lose_place(&read.origin);
            fail_read(read, LEADER_LOST, output);
        }
    }
}

/// When an entry that these wait for counts as kept: as the strictest of those asks that it changes something for. What
/// nobody waits for is as durable as the servers are set.
pub(super) fn strictest(waiters: &[Waiter]) -> Durability {
    let of_item = |waiter: &Waiter| match waiter {
        Waiter::Write(origin) | Waiter::Step(origin) | Waiter::Script(origin, _) => Some(origin.durability),
        Waiter::Silent | Waiter::Eviction(..) => Some(Durability::Server),
        Waiter::Read(_) | Waiter::Fetch(_) | Waiter::Told(..) => None,
    };
    waiters.iter().filter_map(of_item).max().unwrap_or_default()
}

/// A request was not carried out here. A gateway that numbers its requests sends it again; who does not is told.
pub fn fail(origin: &Origin, protocol: Protocol, text: &str, output: &mut impl Output) {
    if origin.claim.is_some() {
        output.send_back(origin);
    } else {
        output.refuse(origin, protocol, text);
    }
}

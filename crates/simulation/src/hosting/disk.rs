//! The disks of simulated machines: what the journal writes and syncs, checkpoints, and what is read back.

use std::collections::VecDeque;
use stdx::log::Entry;

use group::host::{CheckpointNews, CheckpointStep, Persist};
use group::ids::{GroupId, Room};
use journal::{Append, CheckpointFile, CheckpointMark, CheckpointReader, Fault, LogReader, Span, Unread};

use super::{BATCH_BYTES_MAX, ROOM_BYTES_MIN};
use crate::invariants::Invariant;
use crate::machine::{CoreHost, Inbound, Order};
use crate::universe::{Universe, WRITE_BACK_INTERVAL, What, say};
use crate::{Durability, MICROSECOND, MILLISECOND, SECOND};

impl Universe {
    pub(super) fn kick_journal(&mut self, machine: usize) {
        let Some(process) = &self.machines[machine].process else { return };
        if process.journal_is_busy || process.queue.is_empty() {
            return;
        }
        let delay = MICROSECOND + self.some(20 * MICROSECOND);
        self.plan_journal(machine, self.now + delay);
    }

    pub(super) fn plan_journal(&mut self, machine: usize, when: u64) {
        let state = &mut self.machines[machine];
        let Some(process) = &mut state.process else { return };
        let when = when.max(state.paused_until);
        if process.journal_at.is_none_or(|planned| when < planned) {
            process.journal_at = Some(when);
            let life = state.life;
            self.at(when, What::JournalTakes { machine, life });
        }
    }

    /// A core that has had something queued writes all that is in the queue itself, if nothing of it is waited for
    /// until it is durable. Its own part of the news is in its inbox then.
    pub(super) fn write_on_core(&mut self, machine: usize) -> bool {
        let now = self.now;
        if !self.luck(self.faults.core_writes) || now < self.machines[machine].paused_until {
            return false;
        }
        let Some(process) = &mut self.machines[machine].process else { return false };
        let is_idle = !process.journal_is_busy && !process.is_full && process.notice_at.values().all(|at| *at < now);
        if !is_idle || process.queue.is_empty() {
            return false;
        }
        let mut appends: Vec<Append> = Vec::new();
        let mut tickets = Vec::new();
        for order in &process.queue {
            match order {
                Order::Append(core, append, persist) if *persist != Persist::Synced && !append.vacates() => {
                    tickets.push((*core, GroupId(append.group), append.ticket));
                    appends.push(append.clone());
                }
                _ => return false,
            }
        }
        let weight: usize = appends.iter().map(Append::weight_bytes).sum();
        if !process.journal.fits_segment(weight as u64) {
            return false;
        }
        let result = process.journal.append(&appends);
        if !self.journal_went_well(machine, result) {
            return true;
        }
        self.probes.reach("a core wrote the log itself");
        self.take_orders(machine, tickets.len());
        self.tell_room(machine);
        for (core, group, ticket) in tickets {
            let process = self.machines[machine].process.as_mut().expect("it is alive");
            process.cores[usize::from(core)].inbox.push_back(Inbound::Persisted(group, ticket));
            let when = now + MICROSECOND + self.some(20 * MICROSECOND);
            self.plan_turn(machine, core, when);
        }
        true
    }

    pub(crate) fn journal_takes(&mut self, machine: usize) {
        let paused_until = self.machines[machine].paused_until;
        let now = self.now;
        let process = self.machines[machine].process.as_mut().expect("it is alive");
        if process.journal_at != Some(now) {
            return;
        }
        process.journal_at = None;
        if now < paused_until {
            return self.plan_journal(machine, paused_until);
        }
        if process.journal_is_busy || process.queue.is_empty() {
            return;
        }
        let mut appends: Vec<Append> = Vec::new();
        let mut tickets = Vec::new();
        let mut needs_sync = false;
        let mut weight = 0;
        let mut mark = None;
        let mut taken = 0;
        for order in &process.queue {
            match order {
                Order::Append(core, append, persist) => {
                    if weight > 0 && weight + append.weight_bytes() > BATCH_BYTES_MAX {
                        break;
                    }
                    weight += append.weight_bytes();
                    needs_sync |= *persist == Persist::Synced;
                    tickets.push((*core, GroupId(append.group), append.ticket));
                    appends.push(append.clone());
                }
                Order::Mark(core, group, id, order_mark, hard_state) => {
                    if appends.is_empty() {
                        mark = Some((*core, *group, *id, order_mark.clone(), *hard_state));
                        taken += 1;
                    }
                    break;
                }
            }
            taken += 1;
        }
        if !process.journal.fits(weight as u64) && process.chore.is_some() {
            // The next segment is being prepared: there is nothing to do but wait for it.
            return self.plan_journal(machine, now + MILLISECOND);
        }
        if let Some((core, group, id, mark, hard_state)) = mark {
            let result = process.journal.install(group.0, mark, hard_state);
            if self.journal_went_well(machine, result) {
                self.take_orders(machine, taken);
                self.probes.reach(match hard_state {
                    None => "a checkpoint was finished",
                    Some(_) => "a leader's checkpoint was installed",
                });
                self.tell(machine, core, Inbound::Checkpoint(group, id, CheckpointNews::Finished));
                self.start_chore(machine);
                self.kick_journal(machine);
            }
            return;
        }
        let result = process.journal.append(&appends);
        if !self.journal_went_well(machine, result) {
            return;
        }
        self.take_orders(machine, taken);
        self.tell_room(machine);
        let process = self.machines[machine].process.as_mut().expect("it is alive");
        if process.journal.segment_sequence() > 3 {
            self.probes.reach("a segment was recycled");
        }
        if !needs_sync {
            // The system has it, which outlives the process.
            for (core, group, ticket) in tickets {
                self.tell(machine, core, Inbound::Persisted(group, ticket));
            }
            self.kick_journal(machine);
        } else {
            let mut delay = self.faults.sync_min + self.some(self.faults.sync_jitter);
            if self.luck(self.faults.sync_stall) {
                delay += self.some(2 * SECOND);
            }
            let extra = self.machines[machine].sync_extra;
            if extra > 0 {
                delay += self.some(extra);
            }
            let life = self.machines[machine].life;
            let process = self.machines[machine].process.as_mut().expect("it is alive");
            process.journal_is_busy = true;
            process.syncing = tickets;
            self.at(now + delay, What::JournalSynced { machine, life });
        }
        self.start_chore(machine);
    }

    pub(super) fn take_orders(&mut self, machine: usize, count: usize) {
        let process = self.machines[machine].process.as_mut().expect("it is alive");
        process.queue.drain(..count);
        let held_up = |(core, host): (usize, &CoreHost)| host.is_held_up.then_some(core as u16);
        for core in process.cores.iter().enumerate().filter_map(held_up).collect::<Vec<u16>>() {
            self.plan_turn(machine, core, self.now + MICROSECOND);
        }
    }

    pub(crate) fn journal_synced(&mut self, machine: usize) {
        let process = self.machines[machine].process.as_mut().expect("it is alive");
        process.journal_is_busy = false;
        let result = process.journal.sync();
        if !self.journal_went_well(machine, result) {
            return;
        }
        let process = self.machines[machine].process.as_mut().expect("it is alive");
        for (core, group, ticket) in std::mem::take(&mut process.syncing) {
            self.tell(machine, core, Inbound::Persisted(group, ticket));
        }
        self.kick_journal(machine);
    }

    /// Deals with a fault of the journal. False if the call has to be made again, or nobody is left to make it.
    pub(super) fn journal_went_well(&mut self, machine: usize, result: Result<(), Fault>) -> bool {
        let Err(fault) = result else { return true };
        let disk = self.machines[machine].disk.clone();
        say!(self, "node {}: {fault}", machine + 1);
        if disk.is_dark() {
            self.probes.reach("power failed inside a disk operation");
            self.cut_power(machine);
        } else if fault.is_full() {
            self.probes.reach("the disk was full");
            self.tell_room(machine);
            let when = self.now + 100 * MILLISECOND + self.some(SECOND);
            self.plan_journal(machine, when);
            return false;
        } else if matches!(fault, Fault::Io { .. }) && disk.is_ill() {
            // An error of a sync says that nothing is known: the process ends, and recovery finds out.
            self.probes.reach("a sync failed");
            self.kill(machine);
        } else {
            self.fail(Invariant::Recovers, format!("node {}: {fault}", machine + 1));
            return false;
        }
        let when = self.now + self.some(2 * SECOND);
        self.at(when, What::Boot { machine });
        false
    }

    pub(super) fn tell_room(&mut self, machine: usize) {
        let process = self.machines[machine].process.as_mut().expect("it is alive");
        let is_full = process.journal.room_bytes() < ROOM_BYTES_MIN && !process.journal.is_spare_ready();
        if is_full != process.is_full {
            process.is_full = is_full;
            for core in 0..process.cores.len() as u16 {
                let room = if is_full { Room::None("the disk is full".into()) } else { Room::Enough };
                self.tell(machine, core, Inbound::Room(room));
            }
        }
    }

    pub(crate) fn flush(&mut self, machine: usize) {
        let (life, paused_until) = (self.machines[machine].life, self.machines[machine].paused_until);
        if self.plan.durability == Durability::No {
            self.machines[machine].disk.write_back();
            return self.at(self.now + WRITE_BACK_INTERVAL, What::Flush { machine, life });
        }
        if self.now < paused_until {
            return self.at(paused_until, What::Flush { machine, life });
        }
        let process = self.machines[machine].process.as_mut().expect("it is alive");
        // As if by another thread, which leaves the journal free to be written.
        let syncing = if process.journal_is_busy { None } else { process.journal.begin_sync() };
        let result = syncing.map_or(Ok(()), |syncing| {
            syncing.run(process.journal.disk()).and_then(|()| process.journal.end_sync(syncing))
        });
        if self.journal_went_well(machine, result) {
            self.at(self.now + SECOND, What::Flush { machine, life });
        }
    }

    pub(super) fn start_chore(&mut self, machine: usize) {
        let life = self.machines[machine].life;
        let process = self.machines[machine].process.as_mut().expect("it is alive");
        if process.chore.is_none() {
            process.chore = process.journal.chore();
            if process.chore.is_some() {
                let when = self.now + self.some(50 * MILLISECOND);
                self.at(when, What::ChoreDone { machine, life });
            }
        }
    }

    pub(crate) fn chore_done(&mut self, machine: usize) {
        let disk = self.machines[machine].disk.clone();
        let process = self.machines[machine].process.as_mut().expect("it is alive");
        let Some(chore) = process.chore.take() else { return };
        let result = chore.run(&disk);
        let is_full = result.as_ref().is_err_and(Fault::is_full);
        let result = process.journal.chore_done(chore, result);
        if is_full {
            self.probes.reach("the disk was full");
            self.tell_room(machine);
            let life = self.machines[machine].life;
            let process = self.machines[machine].process.as_mut().expect("it is alive");
            process.chore = process.journal.chore();
            if process.chore.is_some() {
                let when = self.now + 100 * MILLISECOND + self.some(SECOND);
                self.at(when, What::ChoreDone { machine, life });
            }
        } else if self.journal_went_well(machine, result) {
            self.tell_room(machine);
            self.start_chore(machine);
            self.kick_journal(machine);
        }
    }

    pub(super) fn checkpoint_step(&mut self, machine: usize, core: u16, group: GroupId, id: u64, step: CheckpointStep) {
        let life = self.machines[machine].life;
        let disk = self.machines[machine].disk.clone();
        let process = self.machines[machine].process.as_mut().expect("it is alive");
        let identity = *process.journal.identity();
        let failed = match step {
            CheckpointStep::Begin(mark) => match CheckpointFile::begin(disk.clone(), &identity, group.0, &mark) {
                Ok(file) => {
                    process.checkpoints.insert(group.0, (id, mark, file));
                    None
                }
                Err(fault) => Some(fault),
            },
            CheckpointStep::Chunk(chunk) => {
                let Some((known, _, file)) = process.checkpoints.get_mut(&group.0) else { return };
                if *known != id {
                    return;
                }
                file.push(&chunk);
                let written = file.write(usize::MAX);
                if written.is_ok() {
                    let when = self.now + self.prng.below(5 * MILLISECOND);
                    let inbound = Inbound::Checkpoint(group, id, CheckpointNews::Written(chunk.len()));
                    self.at(when, What::Arrive { machine, life, core, inbound });
                }
                written.err()
            }
            CheckpointStep::Keep => {
                let Some((known, _, file)) = process.checkpoints.get_mut(&group.0) else { return };
                if *known != id {
                    return;
                }
                let kept = file.complete();
                if kept.is_ok() {
                    let is_young = group.0 >= self.group_count;
                    let wait = if is_young { self.faults.young_checkpoint_wait } else { 5 * MILLISECOND };
                    let when = self.now + self.prng.below(wait);
                    let inbound = Inbound::Checkpoint(group, id, CheckpointNews::Kept);
                    self.at(when, What::Arrive { machine, life, core, inbound });
                }
                kept.err()
            }
            CheckpointStep::Finish | CheckpointStep::Install(_) => {
                let Some((known, mark, file)) = process.checkpoints.remove(&group.0) else { return };
                if let Some(site) = &mut self.site {
                    site.keep(machine, Some(core));
                }
                assert_eq!(known, id, "one checkpoint of a group at a time");
                let hard_state = match step {
                    CheckpointStep::Install(hard_state) => {
                        self.forgotten_at.push(self.now);
                        Some(hard_state)
                    }
                    _ => None,
                };
                match file.finish() {
                    Ok(_) => {
                        process.queue.push_back(Order::Mark(core, group, id, mark, hard_state));
                        None
                    }
                    Err(fault) => Some(fault),
                }
            }
            CheckpointStep::Abandon => match process.checkpoints.remove(&group.0) {
                Some((known, _, file)) if known == id => file.abandon().err(),
                Some(other) => {
                    process.checkpoints.insert(group.0, other);
                    None
                }
                None => None,
            },
        };
        let Some(fault) = failed else { return };
        let reason = fault.to_string();
        say!(self, "node {}: checkpoint of group {}: {reason}", machine + 1, group.0);
        if disk.is_dark() {
            self.probes.reach("power failed inside a disk operation");
            self.cut_power(machine);
            let when = self.now + self.some(2 * SECOND);
            self.at(when, What::Boot { machine });
        } else if disk.is_ill() {
            let process = self.machines[machine].process.as_mut().expect("it is alive");
            process.checkpoints.remove(&group.0);
            process.has_lost_checkpoint = true;
            self.probes.reach("a checkpoint failed");
            self.tell(machine, core, Inbound::Checkpoint(group, id, CheckpointNews::Failed(reason)));
        } else {
            let reason = format!("node {}: checkpoint of group {}: {reason}", machine + 1, group.0);
            self.fail(Invariant::Recovers, reason);
        }
    }

    /// Reads one chunk of a checkpoint, as far as the disk has it.
    pub(super) fn read_chunk(
        &self,
        machine: usize,
        group: GroupId,
        mark: &CheckpointMark,
        chunk: u64,
    ) -> Result<Option<Vec<u8>>, String> {
        let disk = self.machines[machine].disk.clone();
        let process = self.machines[machine].process.as_ref().expect("it is alive");
        let identity = *process.journal.identity();
        let told = |fault: Fault| fault.to_string();
        let mut reader = CheckpointReader::open(disk, &identity, group.0, mark).map_err(told)?;
        for _ in 0..chunk {
            reader.next().map_err(told)?;
        }
        Ok(reader.next().map_err(told)?.map(<[u8]>::to_vec))
    }

    /// Reads entries of the log, as far as the disk has them.
    pub(super) fn read_log(&mut self, machine: usize, span: &Span) -> Result<Vec<Entry>, String> {
        let process = self.machines[machine].process.as_ref().expect("it is alive");
        let read = LogReader::new(self.machines[machine].disk.clone()).read(&process.journal.map(), span);
        self.probes.reach(match &read {
            Ok(_) => "a member was fed from the disk",
            Err(Unread::Gone) => "the log on disk did not reach back to a member",
            Err(Unread::Fault(_)) => "the log could not be read",
        });
        read.map_err(|unread| match unread {
            Unread::Gone => "gone".to_owned(),
            Unread::Fault(fault) => fault.to_string(),
        })
    }
}

/// Bytes of log that the journal has not taken yet.
pub(super) fn waiting_bytes(queue: &VecDeque<Order>) -> usize {
    let bytes = |order: &Order| match order {
        Order::Append(_, append, _) => append.weight_bytes(),
        Order::Mark(..) => 0,
    };
    queue.iter().map(bytes).sum()
}

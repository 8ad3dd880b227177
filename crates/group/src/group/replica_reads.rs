//! Reads answered by a replica that does not lead; see [`crate::replica_reads`].

use keyspace::DataCommand;
use state::Prepared;
use stdx::slot::slot_of;

use super::*;
use crate::replica_reads::{AppliedPosition, ReplicaRead};

/// What a replica knows of how old it may be, and who wants to read from it.
#[derive(Debug)]
pub(super) struct ReplicaReads {
    /// Number of the next sounding. Lives begin with a number of their own, so that no answer to an earlier one counts.
    next: u64,
    /// Soundings without an answer, with when they were taken.
    asked: VecDeque<(u64, Instant, NodeId)>,
    /// Answers to soundings taken then. Their places have not been applied yet.
    told: VecDeque<(Instant, AppliedPosition)>,
    /// The latest sounding with an applied place, and the leader's wall clock then.
    fresh: Option<(Instant, UnixMillis)>,
    last: Instant,
    /// When somebody last wanted to read here.
    wanted: Option<Instant>,
    reads: Vec<ReplicaRead>,
    /// Sessions that have been declined, by serial: in which run, and when.
    declined: BTreeMap<u64, (u64, Instant)>,
    /// So many of them, and the old ones are looked for.
    declined_max: usize,
}

impl ReplicaReads {
    pub(super) fn new(first: u64) -> Self {
        Self {
            next: first,
            asked: VecDeque::new(),
            told: VecDeque::new(),
            fresh: None,
            last: Instant::ZERO,
            wanted: None,
            reads: Vec::new(),
            declined: BTreeMap::new(),
            declined_max: limits::DECLINED_MAX,
        }
    }

    /// What has been applied tells more.
    fn settle(&mut self, applied: u64) {
        let fresh = &mut self.fresh;
        self.told.retain(|(asked, place)| {
            let is_reached = place.index <= applied;
            if is_reached && fresh.is_none_or(|(before, _)| before < *asked) {
                *fresh = Some((*asked, place.unix));
            }
            !is_reached
        });
    }
}

impl Group {
    // ---- soundings ------------------------------------------------------------------------------------------------

    /// Asks the leader now and then how far the group is.
    pub(super) fn take_sounding(&mut self, now: Now, output: &mut impl Output) {
        if self.is_vacant() {
            return;
        }
        let Standing::Follower(leader) = self.standing() else { return };
        let replica_reads = &mut self.replica_reads;
        let is_wanted = replica_reads.wanted.is_some_and(|wanted| now.instant.since(wanted) < limits::SOUNDING_WANTED);
        let interval = if is_wanted { limits::SOUNDING_INTERVAL } else { limits::SOUNDING_INTERVAL_AT_REST };
        if now.instant.since(replica_reads.last) < interval {
            return;
        }
        replica_reads.last = now.instant;
        if replica_reads.asked.len() == limits::SOUNDINGS_MAX {
            replica_reads.asked.pop_front();
        }
        replica_reads.asked.push_back((replica_reads.next, now.instant, leader));
        output.send_to_replica(leader, self.id, PeerMessage::Sound(replica_reads.next));
        replica_reads.next += 1;
    }

    /// A replica asks how far the group is. It is told like a client who reads.
    pub fn sounded(&mut self, from: NodeId, number: u64, now: Now, output: &mut impl Output) {
        self.read_for_node(from, ReadWhat::AppliedPosition(number), now, output);
    }

    /// Takes a read that a node asks for itself. If this replica turns out not to lead, there is no answer.
    pub(super) fn read_for_node(&mut self, from: NodeId, what: ReadWhat, now: Now, output: &mut impl Output) {
        if !self.is_serving {
            return;
        }
        let session = SessionId { serial: 0, index: 0 };
        let origin = Origin::new(from, CoreId(0), session, 0);
        let read = DeferredRead { origin, protocol: Protocol::Resp2, what, before: self.batch.number };
        self.read(read, false, now, output);
    }

    /// Tells a replica how far the group is.
    pub(super) fn tell_applied_position(&self, to: NodeId, number: u64, now: Now, output: &mut impl Output) {
        let position = AppliedPosition { index: self.applied(), unix: self.read_moment(now).unix };
        output.send_to_replica(to, self.id, PeerMessage::AppliedPosition { number, position });
    }

    /// The leader has answered a sounding.
    pub fn told_applied_position(&mut self, from: NodeId, number: u64, place: AppliedPosition) {
        let replica_reads = &mut self.replica_reads;
        let Some(at) = replica_reads.asked.iter().position(|(asked, _, whom)| *asked == number && *whom == from) else {
            return;
        };
        let (_, asked, _) = replica_reads.asked.remove(at).expect("just found");
        // One that is far behind comes closer with those it knows already.
        if replica_reads.told.len() < limits::SOUNDINGS_MAX {
            replica_reads.told.push_back((asked, place));
        }
    }

    /// How old what this replica holds may be, as far as that is known.
    pub fn staleness(&self, now: Instant) -> Option<Duration> {
        if self.leads_surely(now) {
            return Some(Duration::ZERO);
        }
        self.replica_reads.fresh.map(|(asked, _)| now.since(asked))
    }

    /// True if nobody else can lead at this instant.
    fn leads_surely(&self, now: Instant) -> bool {
        self.is_serving && (self.is_alone() || self.replica.has_lease(now))
    }

    // ---- reads ----------------------------------------------------------------------------------------------------

    /// Takes a read of a client of this node. It is answered or declined at the end of the turn, before which the host
    /// reads its clock.
    pub fn read_at_replica(&mut self, read: ReplicaRead) {
        self.replica_reads.reads.push(read);
    }

    pub(super) fn answer_replica_reads(&mut self, now: Now, output: &mut impl Output) {
        if self.leads_surely(now.instant) {
            // Should it lead no longer, it knows how old it is.
            self.replica_reads.fresh = Some((now.instant, self.read_moment(now).unix));
        }
        self.replica_reads.settle(self.applied());
        if self.replica_reads.reads.is_empty() {
            return;
        }
        self.replica_reads.wanted = Some(now.instant);
        let mut spans = std::mem::take(&mut self.spans);
        for read in std::mem::take(&mut self.replica_reads.reads) {
            let (database, args) = entry::Reader::new(&read.words).words(&mut spans);
            let command = keyspace::resolve(args).expect("a read was checked by its gateway");
            match self.replica_moment(&read, command, args, now) {
                Some(moment) => {
                    let watch = output.start_watch(command, args);
                    let state = &mut self.state;
                    output.reply_observed(&read.origin, read.protocol, Observed::of_state(), |writer| {
                        state.keyspace().set_silent(read.origin.is_silent);
                        state.read(database, command, args, moment, writer);
                        state.keyspace().set_silent(false);
                    });
                    output.stop_watch(watch, &read.origin, args);
                    output.count_replica_read();
                }
                None => self.decline(read, now, output),
            }
        }
        self.spans = spans;
        self.tell(output, None);
    }

    /// Nothing can be read here: all go to the leader.
    pub(super) fn decline_all(&mut self, now: Now, output: &mut impl Output) {
        for read in std::mem::take(&mut self.replica_reads.reads) {
            self.decline(read, now, output);
        }
    }

    /// The moment of a read that this replica may answer.
    fn replica_moment(&self, read: &ReplicaRead, command: &DataCommand, args: Args<'_>, now: Now) -> Option<Moment> {
        let (asked, unix) = self.replica_reads.fresh?;
        let is_fresh = now.instant.since(asked) <= read.allowed || self.defect == Some(Defect::BoundlessRead);
        let was_declined =
            self.replica_reads.declined.get(&read.origin.session.serial).is_some_and(|(run, _)| *run == read.run);
        let may_answer = !self.is_serving
            && is_fresh
            && !was_declined
            && self.applied() >= read.floor.index
            && read.floor.unix.0 <= unix.0.max(self.moment().unix.0) + limits::REPLICA_CLOCK_LEAP_MAX_MS
            && self.has_come_to(read.epoch, command, args)
            && !self.is_unsettled(command, args);
        let unix = unix.max(self.moment().unix).max(read.floor.unix);
        may_answer.then_some(Moment { unix, seed: now.instant.as_nanos() ^ self.moment().seed })
    }

    /// True if the group holds the keys, and since no earlier a move than this.
    fn has_come_to(&self, epoch: u64, command: &DataCommand, args: Args<'_>) -> bool {
        let mut holds = self.state.foreign_of(command, args).is_none();
        if epoch > 0 {
            command
                .for_each_key(args, |index, _| holds &= self.state.slots().epoch_of(slot_of(args.at(index))) >= epoch);
        }
        holds
    }

    /// True if a transaction is prepared that changes one of the keys: its client may have been told that it is
    /// committed.
    fn is_unsettled(&self, command: &DataCommand, args: Args<'_>) -> bool {
        let mut effects = self.state.prepared().values().flat_map(Prepared::effects);
        effects.any(|effect| {
            let mut is_touched = false;
            command.for_each_key(args, |index, _| {
                is_touched |= match effect {
                    Effect::Key { key, .. } => key.as_slice() == args.at(index),
                    Effect::Flush { .. } | Effect::Swap { .. } => true,
                    Effect::Answer(_) => false,
                    Effect::Give(_) | Effect::Take(_) => effect.slot() == Some(slot_of(args.at(index))),
                };
            });
            is_touched
        })
    }

    /// Its gateway asks the leader. What the session has sent behind it to this group must not be answered from here.
    fn decline(&mut self, read: ReplicaRead, now: Now, output: &mut impl Output) {
        let ReplicaReads { declined, declined_max, .. } = &mut self.replica_reads;
        if declined.len() >= *declined_max {
            declined.retain(|_, (_, when)| now.instant.since(*when) < limits::SOUNDING_WANTED);
            // If most are young, the next look is far enough away to be paid for by those who come until then.
            *declined_max = (2 * declined.len()).max(limits::DECLINED_MAX);
        }
        declined.insert(read.origin.session.serial, (read.run, now.instant));
        output.decline(read);
    }
}

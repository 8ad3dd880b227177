//! What follows from an entry that is applied: replies leave, clients that wait are woken, and cores are told.

use std::sync::Arc;

use consensus::Change;
use keyspace::{Class, Notice};
use message::entry::{self, Claimed};
use message::{GatewayId, TransactionId};
use resp::{Protocol, Writer};
use state::observe;
use state::{Applied, Cursor, Lookup, What};
use stdx::Instant;
use stdx::log::{Entry, EntryKind, Membership};

use super::witness::Witness;
use super::{Batch, Finished, Group, Standing, Waiter};
use crate::cost::Cost;
use crate::ids::{CoreId, Level, Now};
use crate::limits;
use crate::output::Output;
use crate::proof::{Committed, Observed};
use crate::requests::Author;
use crate::requests::{Claim, Origin};
use crate::timeline::Kind;

impl Group {
    /// Applies what is committed. False if some of it has to wait for the next turn: an entry holds large values, or it
    /// is too much. Anyone who serves has seen to that before the entries were logged, and applies all of it.
    pub(super) fn apply_committed(&mut self, applied_bytes: &mut usize, now: Now, output: &mut impl Output) -> bool {
        while !self.window.committed.is_empty() {
            if !self.is_serving && (*applied_bytes > limits::APPLY_BYTES_PER_TURN || !self.unpack_next()) {
                return false;
            }
            let entry = self.window.committed.pop_front().expect("just seen");
            self.window.committed_bytes -= entry.data.len();
            *applied_bytes += entry.data.len();
            self.apply(entry, now, output);
        }
        true
    }

    /// True if nothing more is taken from the replica until some of what is committed has been applied. More than usual
    /// may gather behind an entry with large values, so that a replica that takes it in goes on answering its leader.
    pub(super) fn has_enough_to_apply(&self) -> bool {
        let Some(first) = self.window.committed.front() else { return false };
        let max = if self.is_unpacking() { limits::BEHIND_LARGE_BYTES_MAX } else { limits::APPLY_BYTES_PER_TURN };
        self.window.committed_bytes - first.data.len() > max
    }

    pub(super) fn apply(&mut self, entry: Entry, now: Now, output: &mut impl Output) {
        assert!(entry.index <= self.replica.committed_index(), "nothing is applied before it is committed");
        let cursor = self.state.open(&entry);
        output.applied_position(self.id).index = entry.index;
        let batch = self.batch_of(&entry, output);
        let (number, waiters, late) = match batch {
            Some(Batch { number, waiters, late, .. }) => {
                self.answer_reads_before(number, now, output);
                (number, waiters, late)
            }
            None => (0, Vec::new(), Vec::new()),
        };
        if entry.kind == EntryKind::Membership {
            return self.change_membership(&entry, output);
        }
        let Some(cursor) = cursor else {
            self.begin_serving(&entry);
            return;
        };
        output.applied_position(self.id).unix = self.moment().unix;
        // What follows from an entry that only says that time has passed follows from the clock.
        if !entry::is_tick(&entry.data) {
            output.hear_moment(self.moment().unix);
        }
        let lookups = self.state.keyspace().lookups();
        self.apply_items(cursor, waiters, now, output);
        if !self.is_serving {
            // Nobody has read them here.
            self.state.keyspace().set_lookups(lookups);
        }
        for read in late {
            self.read_now(read, now, output);
        }
        if self.leader.speculation.is_active {
            self.leader.speculation.settle(number);
        }
        if self.end_reservations_of_batch(number) {
            self.admit_held(now, output);
        }
        self.wake_waiters(output);
        if !self.is_serving {
            self.begin_serving(&entry);
        }
    }

    pub(super) fn change_membership(&mut self, entry: &Entry, output: &mut impl Output) {
        let change = Change::decode(&entry.data).expect("the replica has looked at it");
        self.members.applied = change.fold(&self.members.applied);
        // What was there at the start may have lost its end.
        self.members.are_by_log |= entry.index > self.members.acknowledged_before;
        if let Change::Remove(node) = change {
            // That it held nothing was true of the time before it was a member.
            self.leader.vacant.remove(&node);
        }
        self.due.group_status = Instant::ZERO;
        let Membership { voters, learners, .. } = &self.members.applied;
        let line = format!("group {}: voters {voters:?}, learners {learners:?}", self.id.0);
        output.log(Level::Notice, line);
        if self.is_serving {
            let text = format!("voters {voters:?}, learners {learners:?}");
            output.note(Kind::Member, Some(self.id), text);
        }
    }

    /// A leader serves from the moment when it has applied an entry of its own term.
    pub(super) fn begin_serving(&mut self, entry: &Entry) {
        if self.replica.is_leader() && entry.term == self.replica.term() && !self.is_serving {
            assert_eq!(self.applied(), entry.index, "a leader serves with all that earlier ones have acknowledged");
            self.is_serving = true;
            self.leadership.is_new = true;
            // What was seen in an earlier reign, or never, would make members seem well that have nothing of this.
            self.committed_seen = entry.index;
            self.due.group_status = Instant::ZERO;
            // First of all: what is asked for is logged behind it.
            self.wanted.level_logged = self.state.level();
            self.leader.builder.set_level(self.wanted.level_logged);
            self.rise_as_wanted();
            self.wanted.limits_logged = self.state.keyspace().limits();
            self.log_limits();
            self.adopt_prepared();
        }
    }

    /// Takes the batch that this entry is, with those who wait for it, and fails those that are in no log which can win
    /// any more: their place is taken, or an entry of a later term stands before it. Their place may stay empty for
    /// long, and reads and clients would wait for it.
    pub(super) fn batch_of(&mut self, entry: &Entry, output: &mut impl Output) -> Option<Batch> {
        while let Some(batch) = self.window.inflight.front() {
            if batch.index > entry.index && batch.term >= entry.term {
                break;
            }
            let batch = self.window.inflight.pop_front().expect("just seen");
            self.window.inflight_bytes -= batch.byte_count;
            if batch.index == entry.index && batch.term == entry.term {
                assert_eq!(batch.data.len(), entry.data.len(), "what was proposed here is what is applied");
                return Some(batch);
            }
            self.fail_batch(batch, output);
        }
        None
    }

    pub(super) fn apply_items(
        &mut self,
        mut cursor: Cursor<'_>,
        waiters: Vec<Waiter>,
        now: Now,
        output: &mut impl Output,
    ) {
        output.break_off();
        let mut waiters = waiters.into_iter();
        let mut unlocks = false;
        while !cursor.is_done() {
            let waiter = self.next_item_waiter(&mut waiters, now, output);
            let imports = &mut self.slices.unpacked;
            let mut witness =
                Witness { waiter, output, imports, cost: Cost::default(), is_first: true, existed: false };
            let applied = self.state.apply_next(&mut cursor, &mut witness);
            let Witness { waiter, cost, existed, .. } = witness;
            unlocks |= self.is_serving && matches!(applied.what, What::Resolved { .. } | What::Split { .. });
            self.follow_up(applied, waiter, (cost, existed), output);
            output.settle();
        }
        let end = self.next_item_waiter(&mut waiters, now, output);
        assert!(end.is_none(), "somebody waits for an item that is not there");
        if unlocks {
            self.admit_held(now, output);
        }
    }

    /// Serves the reads up to the next waiter that belongs to an item.
    #[inline]
    pub(super) fn next_item_waiter(
        &mut self,
        waiters: &mut std::vec::IntoIter<Waiter>,
        now: Now,
        output: &mut impl Output,
    ) -> Option<Waiter> {
        for waiter in waiters.by_ref() {
            match waiter {
                Waiter::Told(origin, finished) => {
                    let Finished { reply, reads, published } = *finished;
                    published.iter().for_each(|message| output.publish(message));
                    let observed = Observed::of_state();
                    output.reply_observed(&origin, Protocol::Resp2, observed, |out| out.raw(&reply));
                    output.remember_reads(&origin, &reads);
                }
                // It was there before the entry was proposed, and that is committed.
                Waiter::Read(read) | Waiter::Fetch(read) => self.execute_read(*read, now, output),
                waiter => return Some(waiter),
            }
        }
        None
    }

    /// Does what follows from an item that has been applied: tells those who listen, answers who has asked, and keeps
    /// up what this replica has beside the state.
    #[inline]
    pub(super) fn follow_up(
        &mut self,
        Applied { claimed, answer, what }: Applied,
        waiter: Option<Waiter>,
        (cost, existed): (Cost, bool),
        output: &mut impl Output,
    ) {
        let Some(Claimed { gateway, number, .. }) = claimed else {
            return self.follow_up_unnumbered(what, waiter, existed, output);
        };
        let mut all = self.leader.scripts_under_way.remove(&(gateway, number)).unwrap_or_default();
        all.times.extend(cost.times);
        let (origin, published) = match waiter {
            Some(Waiter::Write(origin) | Waiter::Step(origin)) => (Some(origin), Box::default()),
            Some(Waiter::Script(origin, finished)) => (Some(origin), finished.published),
            _ => (None, Box::default()),
        };
        let claim = Claim { boot: gateway.boot, group: self.id, number };
        let is_repeated = matches!(what, What::Repeated { .. });
        match what {
            What::Command | What::Exec | What::Script => {
                let by = (gateway.node == self.node.0).then_some(Author::Request { core: gateway.core, claim });
                self.tell(output, by);
            }
            what => self.follow_up_rare(what, None, output),
        }
        let Some(answer) = answer else { return };
        if !is_repeated {
            published.iter().for_each(|message| output.publish(message));
        }
        if let Some(origin) = origin {
            assert_eq!(origin.claim, Some(claim), "who waits for an item has asked for it");
            output.answer_committed(&origin, Committed::of_applied(), all, answer);
        }
        if self.awaited.remove(&(gateway, number)) {
            output.settle();
            output.settle_told(gateway.core, claim);
        }
    }

    #[inline]
    pub(super) fn follow_up_unnumbered(
        &mut self,
        what: What,
        waiter: Option<Waiter>,
        existed: bool,
        output: &mut impl Output,
    ) {
        let by = match &waiter {
            Some(Waiter::Write(origin) | Waiter::Script(origin, _)) => self.author_of(origin),
            _ => None,
        };
        match (what, waiter) {
            (What::Command, Some(Waiter::Eviction(database, key, byte_count))) => {
                self.follow_up_eviction((database, key), byte_count, existed, output);
            }
            (What::Script, waiter) => {
                if let Some(Waiter::Script(origin, finished)) = waiter {
                    let Finished { reply, reads, published } = *finished;
                    published.iter().for_each(|message| output.publish(message));
                    let proof = Committed::of_applied();
                    output.reply_committed(&origin, Protocol::Resp2, proof, |out| out.raw(&reply));
                    // Remembered before its own changes are told: it may have read what it then changed.
                    output.remember_reads(&origin, &reads);
                }
                self.tell(output, by);
            }
            (What::Command | What::Exec, _) => self.tell(output, by),
            (what, waiter) => self.follow_up_rare(what, waiter, output),
        }
    }

    /// To those who listen the key was evicted, not deleted by anybody.
    pub(super) fn follow_up_eviction(
        &mut self,
        (database, key): (u16, Vec<u8>),
        byte_count: usize,
        existed: bool,
        output: &mut impl Output,
    ) {
        let mut notices = self.state.upkeep().take_notices();
        notices.retain(|notice| notice.class != Class::Generic);
        if existed {
            notices.push(Notice { class: Class::Evicted, name: "evicted", database, key: key.as_slice().into() });
        }
        self.tell_notices(notices, output, None);
        self.evictions.keys.remove(&(database, key));
        self.evictions.bytes -= byte_count;
        self.evictions.count += 1;
    }

    /// The same for what is not a client's command, MULTI or script. Without a waiter the answer is given elsewhere.
    pub(super) fn follow_up_rare(&mut self, what: What, waiter: Option<Waiter>, output: &mut impl Output) {
        let proof = Committed::of_applied();
        match what {
            What::Command | What::Exec | What::Script => unreachable!("followed up by the caller"),
            What::Nothing | What::Moved => {}
            What::Repeated { transaction } => {
                if let Some(transaction) = transaction {
                    self.leader.locks.set_logged(transaction, false);
                }
            }
            What::Installed { transaction, moved } => {
                self.leader.locks.set_logged(transaction, false);
                self.note_moved(moved);
                self.tell(output, self.author_of_transaction(transaction));
            }
            What::Prepared { transaction, is_accepted } => {
                self.leader.locks.set_logged(transaction, false);
                if is_accepted {
                    self.tell(output, self.author_of_transaction(transaction));
                }
            }
            What::Resolved { transaction, moved } => {
                self.leader.open_outcomes.remove(&transaction);
                self.prepared_since.remove(&transaction);
                self.note_moved(moved);
                if self.is_serving {
                    self.unlock(transaction);
                }
            }
            What::Libraries(reply) => {
                let reply = match waiter {
                    Some(Waiter::Write(origin)) => Some((origin, proof, reply)),
                    _ => None,
                };
                // Anyone who hears of the change must find it made on every core.
                let libraries = Arc::clone(self.state.libraries());
                output.libraries_changed(libraries, reply);
            }
            What::Parameters => {
                output.parameters_changed(self.state.parameters());
            }
            What::Enlisted { node, before, is_news } => {
                self.news.has_roster |= is_news;
                if is_news && self.is_serving {
                    self.tell_member(node, before.as_ref(), output);
                }
                answer_governed(waiter, proof, output);
            }
            What::Wished(is_news) => {
                self.news.has_roster |= is_news;
                answer_governed(waiter, proof, output);
            }
            What::Split { group, split } => {
                self.end_split(group);
                self.note_split(group, split.map(|split| *split), output);
            }
            What::Ended => self.note_end(output),
            What::Risen { level, is_news } => {
                self.news.has_level |= is_news;
                if is_news {
                    let line = format!("group {}: is at level {level}", self.id.0);
                    output.log(Level::Notice, line);
                }
                answer_governed(waiter, proof, output);
            }
        }
    }

    /// A gateway of this node wants to know when a request of its has been applied here, and told to caches. A replica
    /// without a leader learns of nothing: its caches have been told so.
    pub fn tell_when_applied(&mut self, core: CoreId, claim: Claim, output: &mut impl Output) {
        let gateway = GatewayId { node: self.node.0, boot: claim.boot, core };
        let is_cut_off = self.standing() == Standing::Leaderless;
        if self.is_vacant() {
            // Nobody has kept what was read of it, but for those who are told of everything.
            output.flush_broadcasters();
            output.settle_told(core, claim);
        } else if is_cut_off || !matches!(self.state.replies().look(gateway, claim.number), Lookup::New) {
            output.settle_told(core, claim);
        } else {
            self.awaited.insert((gateway, claim.number));
        }
    }

    /// The client behind a request, if it is one of this node.
    pub(super) fn author_of(&self, origin: &Origin) -> Option<Author> {
        let (serial, ticket) = (origin.session.serial, origin.ticket);
        (origin.node == self.node).then_some(Author::Session { serial, ticket })
    }

    /// The same for a transaction over several groups.
    pub(super) fn author_of_transaction(&self, transaction: TransactionId) -> Option<Author> {
        (transaction.gateway.node == self.node.0).then_some(Author::Transaction(transaction))
    }

    /// Tells what has happened to keys, by the hand of this client of the node or of none.
    #[inline]
    pub fn tell(&mut self, output: &mut impl Output, by: Option<Author>) {
        if self.state.keyspace().notice_count() > 0 {
            let notices = self.state.upkeep().take_notices();
            self.tell_notices(notices, output, by);
        }
    }

    /// Those who listen are told by the replica that leads. Clients that cache are told by the replica on their own
    /// node, which lacks nothing that they may have read.
    pub(super) fn tell_notices(&self, notices: Vec<Notice>, output: &mut impl Output, by: Option<Author>) {
        for notice in notices {
            match notice.class {
                Class::Changed if notice.name == observe::FLUSHED => output.flushed(self.id),
                Class::Changed => output.changed(&notice.key, by),
                Class::Expired => output.changed(&notice.key, None),
                _ => {}
            }
            if self.is_serving && notice.class != Class::Changed {
                output.tell(&notice);
            }
        }
    }
}

/// True for an entry that only marks a new leader.
pub(super) fn is_mark_of_leader(entry: &Entry) -> bool {
    entry.kind == EntryKind::Normal && entry.data.is_empty()
}

/// Tells an operator that it is done.
pub(super) fn answer_governed(waiter: Option<Waiter>, proof: Committed, output: &mut impl Output) {
    if let Some(Waiter::Write(origin)) = waiter {
        output.reply_committed(&origin, Protocol::Resp2, proof, Writer::ok);
    }
}

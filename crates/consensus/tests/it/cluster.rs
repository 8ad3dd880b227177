//! A few replicas, a net that delivers when told to, and disks that lose what was not synced.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use bytes::Bytes;
use consensus::{Append, Change, Message, Options, Ready, Replica, Seed, Transfer, limits};
use stdx::Instant;
use stdx::log::{Entry, EntryKind, HardState, Membership};

/// One node: its replica while it runs, and what its disk holds.
pub struct Node {
    pub replica: Option<Replica>,
    hard_state: HardState,
    entries: Vec<Entry>,
    /// The checkpoint that the log goes on behind, and who took part as of it.
    checkpoint: (u64, u64),
    membership: Membership,
    unsynced: Vec<Append>,
    /// Does `persisted` follow at once?
    syncs: bool,
    incarnation: u64,
    now: Instant,
    pub applied: Vec<String>,
}

/// The stage of a play.
pub struct Cluster {
    pub nodes: BTreeMap<u64, Node>,
    membership: Membership,
    pub in_flight: Vec<Message>,
    /// Checkpoints under way to members.
    transfers: Vec<Transfer>,
    cut: BTreeSet<(u64, u64)>,
    group: u32,
    seed: u64,
    pub transcript: String,
    /// Replicas are told all that is delivered before they are asked what to do, as a host does.
    pub settles_late: bool,
}

impl Cluster {
    pub fn new(voters: u64, learners: u64, seed: u64) -> Self {
        Self::of_group(0, voters, learners, seed)
    }

    /// Others than group 0 do not take nodes back as they are.
    pub fn of_group(group: u32, voters: u64, learners: u64, seed: u64) -> Self {
        let membership = Membership {
            voters: (1..=voters).collect(),
            learners: (voters + 1..=voters + learners).collect(),
            ..Membership::default()
        };
        let mut cluster = Self {
            nodes: BTreeMap::new(),
            membership,
            in_flight: Vec::new(),
            transfers: Vec::new(),
            cut: BTreeSet::new(),
            group,
            seed,
            transcript: String::new(),
            settles_late: false,
        };
        for id in 1..=voters + learners {
            let membership = cluster.membership.clone();
            cluster.add(id, membership);
        }
        cluster
    }

    fn add(&mut self, id: u64, membership: Membership) {
        let node = Node {
            replica: None,
            hard_state: HardState::default(),
            entries: Vec::new(),
            checkpoint: (0, 0),
            membership,
            unsynced: Vec::new(),
            syncs: true,
            incarnation: 0,
            now: Instant::ZERO,
            applied: Vec::new(),
        };
        self.nodes.insert(id, node);
        self.start(id, false);
    }

    /// A node that nobody knows yet, and that knows nobody.
    pub fn join(&mut self, id: u64) {
        self.add(id, Membership::default());
    }

    pub fn change(&mut self, id: u64, change: Change) {
        if let Err(dropped) = self.replica(id).propose_change(change) {
            self.say(format_args!("{id} refuses: {dropped}"));
        }
        self.settle(id);
    }

    pub fn hand_over(&mut self, id: u64, to: u64) {
        self.replica(id).transfer_leadership(to);
        self.settle(id);
    }

    /// The leader has a checkpoint at an index.
    pub fn offer(&mut self, id: u64, index: u64) {
        let replica = self.replica(id);
        let (term, membership) = (replica.term_at(index).expect("it holds that"), replica.membership().clone());
        replica.offer_checkpoint(index, term, membership);
    }

    /// Checkpoints under way arrive.
    pub fn transfer(&mut self) {
        for Transfer { to, message, .. } in std::mem::take(&mut self.transfers) {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            assert_eq!(Message::decode(&bytes).as_ref(), Ok(&message));
            self.replica(to).step(message).expect("a leader's checkpoint");
            self.settle(to);
        }
    }

    fn say(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.transcript, "{line}").expect("a string grows");
    }

    pub fn node(&mut self, id: u64) -> &mut Node {
        self.nodes.get_mut(&id).unwrap_or_else(|| panic!("no node {id}"))
    }

    pub fn replica(&mut self, id: u64) -> &mut Replica {
        self.node(id).replica.as_mut().unwrap_or_else(|| panic!("node {id} is down"))
    }

    /// Starts a node from its disk.
    pub fn start(&mut self, id: u64, recovering: bool) {
        let (group, seed) = (self.group, self.seed);
        let node = self.node(id);
        let membership = node.membership.clone();
        node.incarnation += 1;
        node.applied.clear();
        let options = Options { incarnation: node.incarnation, recovering, ..Options::new(id, group, seed) };
        let hard_state = node.hard_state;
        let entries = node.entries.clone();
        let (checkpoint_index, checkpoint_term) = node.checkpoint;
        match Replica::new(options, Seed { hard_state, membership, checkpoint_index, checkpoint_term, entries }) {
            Ok(replica) => node.replica = Some(replica),
            Err(fault) => self.say(format_args!("{id} does not start: {fault}")),
        }
        self.settle(id);
    }

    /// Stops a node at once. With `power`, unsynced writes are gone.
    pub fn crash(&mut self, id: u64, power: bool) {
        let node = self.node(id);
        node.replica = None;
        let unsynced = std::mem::take(&mut node.unsynced);
        if power {
            let lost: usize = unsynced.iter().map(|append| append.entries.len()).sum();
            if lost > 0 {
                self.say(format_args!("{id} loses {lost} entries"));
            }
        } else {
            unsynced.into_iter().for_each(|append| self.node(id).write(append));
        }
    }

    /// The disk of a node that is down holds nothing any more, but that something had been committed.
    pub fn empty(&mut self, id: u64) {
        let node = self.node(id);
        assert!(node.replica.is_none(), "it runs");
        let last = node.entries.last().map_or(node.checkpoint.0, |entry| entry.index);
        node.hard_state = HardState { vote: 0, commit: last, ..node.hard_state };
        node.membership = Membership::default();
        node.checkpoint = (0, 0);
        node.entries.clear();
    }

    /// The disk of a node that is down holds nothing, and never seems to have held anything.
    pub fn blank(&mut self, id: u64) {
        self.empty(id);
        self.node(id).hard_state = HardState::default();
    }

    /// Carries out everything a replica wants done.
    pub fn settle(&mut self, id: u64) {
        let node = self.node(id);
        if let Some(replica) = &mut node.replica {
            replica.tell_time(node.now);
        }
        while let Some(ready) = self.node(id).replica.as_mut().and_then(Replica::take_ready) {
            let Ready { messages, append, restored, committed, transfers, reads, became } = ready;
            if let Some(role) = became {
                let term = self.replica(id).term();
                self.say(format_args!("{id} becomes {role:?} in term {term}"));
            }
            self.in_flight.extend(messages);
            for transfer in transfers {
                self.say(format_args!("{id} gives {} its checkpoint at {}", transfer.to, transfer.index));
                self.transfers.push(transfer);
            }
            if let Some(restored) = restored {
                self.say(format_args!("{id} takes over the checkpoint at {}", restored.index));
                let node = self.node(id);
                node.entries.clear();
                node.checkpoint = (restored.index, restored.term);
                node.membership = restored.membership;
            }
            if let Some(append) = append {
                let (ticket, syncs) = (append.ticket, self.node(id).syncs);
                self.node(id).unsynced.push(append);
                if syncs {
                    self.sync(id, ticket);
                }
            }
            for entry in committed {
                if entry.kind == EntryKind::Membership {
                    let Membership { voters, learners, .. } = self.replica(id).membership().clone();
                    self.say(format_args!("{id} applies {}: voters {voters:?} learners {learners:?}", entry.index));
                    continue;
                }
                let text = String::from_utf8_lossy(&entry.data).into_owned();
                if !text.is_empty() {
                    self.say(format_args!("{id} applies {}: {text}", entry.index));
                    self.node(id).applied.push(text);
                }
            }
            for read in reads {
                self.say(format_args!("{id} may answer read {} at {}", read.context, read.index));
            }
        }
    }

    fn sync(&mut self, id: u64, ticket: u64) {
        let node = self.node(id);
        for append in std::mem::take(&mut node.unsynced) {
            node.write(append);
        }
        self.replica(id).persisted(ticket);
    }

    /// The disk has caught up with all that was written.
    pub fn persist(&mut self, id: u64) {
        if let Some(ticket) = self.node(id).unsynced.last().map(|append| append.ticket) {
            self.sync(id, ticket);
            self.settle(id);
        }
    }

    /// Whether syncs take effect at once, or wait for [`Cluster::persist`].
    pub fn set_syncs(&mut self, id: u64, syncs: bool) {
        self.node(id).syncs = syncs;
    }

    /// Acknowledges everything although nothing has been synced.
    pub fn pretend(&mut self, id: u64) {
        if let Some(ticket) = self.node(id).unsynced.last().map(|append| append.ticket) {
            self.replica(id).persisted(ticket);
            self.settle(id);
        }
    }

    pub fn propose(&mut self, id: u64, text: &str) {
        if let Err(dropped) = self.replica(id).propose(Bytes::copy_from_slice(text.as_bytes())) {
            self.say(format_args!("{id} refuses: {dropped}"));
        }
        self.settle(id);
    }

    pub fn read(&mut self, id: u64, context: u64) {
        if let Err(dropped) = self.replica(id).read_index(context) {
            self.say(format_args!("{id} refuses: {dropped}"));
        }
        self.settle(id);
    }

    /// Tells whether a node may answer reads without asking.
    pub fn lease(&mut self, id: u64) {
        let now = self.node(id).now;
        let has_lease = self.replica(id).has_lease(now);
        self.say(format_args!("{id} has {} lease", if has_lease { "a" } else { "no" }));
    }

    /// The host has lost a message of this node to a member.
    pub fn unreachable(&mut self, id: u64, member: u64) {
        self.replica(id).report_unreachable(member);
        self.settle(id);
    }

    /// Tells how a leader feeds the others.
    pub fn feed(&mut self, id: u64) {
        for other in self.replica(id).progress() {
            let feed = if other.is_streaming { "streamed to" } else { "probed" };
            self.say(format_args!("{} is {feed}, and holds {}", other.node, other.matched));
        }
    }

    pub fn tick(&mut self, id: u64, count: u64) {
        for _ in 0..count {
            let node = self.node(id);
            node.now = node.now + limits::TICK_INTERVAL;
            if let Some(replica) = &mut node.replica {
                replica.tell_time(node.now);
                replica.tick();
            }
            self.settle(id);
        }
    }

    pub fn campaign(&mut self, id: u64) {
        self.replica(id).campaign();
        self.settle(id);
    }

    pub fn cut(&mut self, from: u64, to: u64) {
        self.cut.insert((from, to));
    }

    pub fn heal(&mut self) {
        self.cut.clear();
    }

    /// Delivers what `wanted` picks of the messages now in flight, in order, as bytes. Returns how many were picked.
    pub fn deliver(&mut self, show: bool, wanted: impl FnMut(&Message) -> bool) -> usize {
        let (picked, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.in_flight).into_iter().partition(wanted);
        self.in_flight = rest;
        let count = picked.len();
        for message in picked {
            let (from, to) = (message.from(), message.to());
            if self.cut.contains(&(from, to)) || self.nodes.get(&to).is_none_or(|node| node.replica.is_none()) {
                if show {
                    self.say(format_args!("lost: {message}"));
                }
                continue;
            }
            if show {
                self.say(format_args!("{message}"));
            }
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            let arrived = Message::decode(&bytes).expect("what was encoded can be decoded");
            assert_eq!(arrived, message);
            if let Err(refused) = self.replica(to).step(arrived) {
                self.say(format_args!("{to} refuses: {refused}"));
            }
            if !self.settles_late {
                self.settle(to);
            }
        }
        if self.settles_late {
            (1..=self.nodes.len() as u64).for_each(|id| self.settle(id));
        }
        count
    }

    /// Delivers until nothing is in flight.
    pub fn stabilize(&mut self, show: bool) {
        for _ in 0..1_000 {
            if self.deliver(show, |_| true) == 0 {
                return;
            }
        }
        panic!("the replicas never stop talking");
    }

    pub fn status(&mut self) {
        for (id, node) in &self.nodes {
            let line = match &node.replica {
                None => format!("{id} down"),
                Some(replica) => format!(
                    "{id} {:?} term {} log {}..{} committed {} leader {}{}",
                    replica.role(),
                    replica.term(),
                    replica.floor_index() + 1,
                    replica.last_index(),
                    replica.committed_index(),
                    replica.leader().map_or("-".to_owned(), |leader| leader.to_string()),
                    if replica.is_recovering() { " recovering" } else { "" }
                ),
            };
            writeln!(self.transcript, "{line}").expect("a string grows");
        }
    }
}

impl Node {
    fn write(&mut self, append: Append) {
        if let Some(first) = append.entries.first() {
            self.entries.retain(|entry| entry.index < first.index);
            self.entries.extend(append.entries);
        }
        if let Some(hard_state) = append.hard_state {
            self.hard_state = hard_state;
        }
    }
}

//! Machines, clients and the net between them, on one thread and in virtual time.
//!
//! First a *safety phase*: clients ask, faults come. Then a *liveness phase*: no more faults, everything is started and
//! healed, and within a bounded time every client must be answered, and the replicas of each group must agree. Then the
//! checkers judge what the clients saw.

mod addresses;
mod ailments;
mod cuts;
mod follower;
mod judge;
mod levels;
mod lies;
mod net;
mod operator;
mod parts;
mod peace;
mod phases;
mod replay;
mod returns;
mod site;
mod stranded;
mod waits;
mod zones;

use std::collections::BTreeMap;

use stdx::{Levels, Prng};

use crate::client::{ACCOUNT_COUNT, Client, Heard, History};
use crate::clock::FalseClock;
use crate::coverage::{Coverage, Fault};
use crate::disk::{FalseDisk, Survival};
use crate::faults::Faults;
use crate::invariants::Invariant;
use crate::machine::{Inbound, Machine};
use crate::probes::Probes;
use crate::{Canary, Durability, MICROSECOND, MILLISECOND, Outcome, Plan, SECOND};
pub use ailments::AILMENTS_PER_UNIVERSE;
use group::ids::{NodeId, SessionId};
pub(crate) use lies::Lies;
use node::event::Peer;
use node::settings::Settings;
use peace::SeenLocks;
pub use returns::RETURNS_PER_UNIVERSE;
pub(crate) use site::SecondSite;
pub use waits::{HARMS_PER_UNIVERSE, Harm, Wait};
pub(crate) use zones::Zones;

/// Everything that is going to happen.
pub(crate) enum What {
    /// A machine's process starts.
    Boot { machine: usize },
    /// A core takes a turn.
    Turn { machine: usize, life: u64, core: u16 },
    /// Something reaches a core.
    Arrive { machine: usize, life: u64, core: u16, inbound: Inbound },
    /// The journal's thread takes what has been queued.
    JournalTakes { machine: usize, life: u64 },
    /// Its sync is over.
    JournalSynced { machine: usize, life: u64 },
    /// A second has passed for `everysec`, or the system writes back.
    Flush { machine: usize, life: u64 },
    /// A background chore of the journal is done.
    ChoreDone { machine: usize, life: u64 },
    /// A client may ask.
    ClientAsks { client: usize },
    /// A client's patience is tried.
    ClientDeadline { client: usize, deadline: u64 },
    /// Bytes reach a client; none mean that its connection is gone.
    ClientHears { client: usize, connection: u64, bytes: Option<Vec<u8>> },
    /// A fault strikes.
    Strike(Trouble),
    /// A machine dies at a step of a transaction: it loses its power, or the process is killed.
    StepCrash { machine: usize, life: u64, power: bool },
    /// A process ends because it cannot go on.
    Ends { machine: usize, life: u64 },
    /// A process ends because it holds what all who vote have lost, and can follow nobody any more.
    Overtaken { machine: usize, life: u64 },
    /// A process hears that another one is the node that it says it is, and ends.
    Refused { machine: usize, life: u64 },
    /// An operator looks whether a node that cannot go on has been let go.
    OperatorLooks { machine: usize },
    /// Nodes look for others where an operator has shown them.
    Shows(addresses::Shown),
    /// An operator asks once more for a higher level.
    OperatorUpgrades,
    /// A fault of limited duration is over.
    Over(Trouble, usize),
    /// The second site does something.
    SiteTurns,
}

/// Faults that come by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    Partition,
    Kill,
    PowerCut,
    Pause,
    SyncFailure,
    FullDisk,
    SlowDisk,
    SlowLink,
    ClockJump,
    ClockRate,
    Reset,
    Change,
    Move,
    Place,
    Growth,
    Upgrade,
    ZoneLost,
}

const TROUBLES: [Trouble; 17] = [
    Trouble::Partition,
    Trouble::Kill,
    Trouble::PowerCut,
    Trouble::Pause,
    Trouble::SyncFailure,
    Trouble::FullDisk,
    Trouble::SlowDisk,
    Trouble::SlowLink,
    Trouble::ClockJump,
    Trouble::ClockRate,
    Trouble::Reset,
    Trouble::Change,
    Trouble::Move,
    Trouble::Place,
    Trouble::Growth,
    Trouble::Upgrade,
    Trouble::ZoneLost,
];

/// One client's connection to one node.
#[derive(Debug)]
pub(crate) struct Connection {
    pub client: usize,
    pub machine: usize,
    pub life: u64,
    pub core: u16,
    pub session: SessionId,
    /// When the last bytes under way arrive: a stream keeps its order.
    pub to_server: u64,
    pub to_client: u64,
}

/// Most groups that a world has.
const GROUPS_MAX: u64 = 4;

/// Clocks that may be off by so many millionths are said to run apart.
const CLOCKS_APART: u64 = 10_000;

/// Clocks at double and at half speed: no lease bears that.
pub(crate) const BEYOND_FAST: i64 = 1_000_000;
pub(crate) const BEYOND_SLOW: i64 = -500_000;

/// Chance of clients that share streams, apart from all other chance.
const STREAMS_SEED: u64 = 0x5EED_0F57_2EA4;

/// The same for worlds of a second site in which clients change one key at a time.
const NARROW_SEED: u64 = 0x6E61_7272_6F77;

/// In one world in three clients share streams, too, if what they are told must last. The other worlds are what they
/// would be without.
fn shares_streams(plan: &Plan) -> bool {
    let is_usual = !plan.calm && !plan.is_orderly() && plan.canary.is_none();
    is_usual && plan.durability == Durability::Always && Prng::new(plan.seed ^ STREAMS_SEED).chance(1, 3)
}

/// Longest pause of a client where nothing goes wrong.
const CALM_THINK: u64 = 10 * MILLISECOND;

/// The same where nodes return, which takes long.
const RETURNS_THINK: u64 = 300 * MILLISECOND;

/// The same where it is measured how long clients wait.
const WAITS_THINK: u64 = 100 * MILLISECOND;

/// How much longer clients wait there before they give up.
const WAITS_PATIENCE: u64 = 20 * SECOND;

/// All there is.
pub struct Universe {
    pub(crate) plan: Plan,
    pub(crate) faults: Faults,
    pub(crate) prng: Prng,
    pub(crate) now: u64,
    queue: BTreeMap<(u64, u64), What>,
    sequence: u64,
    pub(crate) machines: Vec<Machine>,
    pub(crate) connections: BTreeMap<u64, Connection>,
    last_connection: u64,
    pub(crate) clients: Vec<Client>,
    pub(crate) history: History,
    /// How many replicas a group should have. Kept, because it is asked at every turn, and settings are dear to make.
    pub(crate) replica_count: usize,
    /// Links between machines.
    network: Network,
    /// (when, from when on acknowledged writes may be gone), where the durability in force allows that.
    pub(crate) lapses: Vec<(u64, u64)>,
    /// When a replica started over from a checkpoint, and did not know any more which keys had come and gone.
    pub(crate) forgotten_at: Vec<u64>,
    /// Groups of the cluster when it is founded.
    pub(crate) group_count: u32,
    /// Groups that were founded while the cluster served, and have served since.
    pub(crate) has_served: std::collections::BTreeSet<u32>,
    pub(crate) probes: Probes,
    pub(crate) coverage: Coverage,
    pub(crate) failure: Option<String>,
    is_calm: bool,
    /// Clients may ask.
    clients_run: bool,
    digest: u64,
    /// What has been counted.
    tally: Tally,
    pub(crate) trace: Option<Box<dyn FnMut(String)>>,
    /// Digests of groups at log indexes, as first seen on any replica.
    pub(crate) digests: BTreeMap<(u32, u64), (u64, u64)>,
    /// Who leads which group, and has led it.
    pub(crate) leading: Leading,
    pub(crate) zones: Zones,
    pub(crate) lies: Lies,
    /// No clock has run at a rate that leases do not bear. Where one has, it is not looked what reads were told.
    pub(crate) rates_were_sound: bool,
    /// When peace began.
    pub(crate) peace_since: Option<u64>,
    /// Since when all groups have been led, in peace.
    led_since: Option<u64>,
    seen_locks: SeenLocks,
    /// Since when a leader is seen to keep keys for a client: group, term, which.
    seen_reservations: BTreeMap<(u32, u64, u64), u64>,
    /// A node that is away, and returns: clients choose others.
    away: Option<usize>,
    /// The last machine is a copy of this one.
    copy: Option<usize>,
    returns_ns: Vec<u64>,
    waits: Vec<Wait>,
    watch: waits::Watch,
    /// A far cluster that follows, if there is one.
    pub(crate) site: Option<Box<SecondSite>>,
}

/// A line of the trace, made only if somebody reads it.
macro_rules! say {
    ($universe:expr, $($argument:tt)*) => {
        if let Some(trace) = &mut $universe.trace {
            let (at, line) = ($universe.now, format!($($argument)*));
            trace(format!("{:>6}.{:06} {line}", at / crate::SECOND, at % crate::SECOND / crate::MICROSECOND));
        }
    };
}
use parts::{Leading, Network, Tally};
pub(crate) use say;

/// As many machines, with clocks that go as the plan and its faults have it.
fn machines(plan: &Plan, count: usize, faults: &Faults, prng: &mut Prng) -> Vec<Machine> {
    (0..count)
        .map(|index| {
            let drift = faults.clock_drift as i64;
            let drift = match plan.canary {
                // One with a lease that lasts too long, and others who are free too soon.
                Some(Canary::LongLease) => {
                    if index == 0 {
                        -drift
                    } else {
                        drift
                    }
                }
                _ => prng.below(2 * drift as u64 + 1) as i64 - drift,
            };
            Machine {
                drift,
                sync_extra: 0,
                node: NodeId(index as u64 + 1),
                disk: FalseDisk::new(prng.fork()),
                clock: FalseClock::new(drift, SECOND + prng.below(SECOND), prng.below(1_000) as i64 - 500),
                has_joined: false,
                levels: Levels::KNOWN,
                is_lost: false,
                has_rotted: false,
                life: 0,
                started: 0,
                ended: None,
                stopped: None,
                progress: BTreeMap::new(),
                paused_until: 0,
                process: None,
            }
        })
        .collect()
}

/// Clients that do what the plan wants of them.
fn accustomed(mut clients: Vec<Client>, plan: &Plan, zones: &Zones) -> Vec<Client> {
    // How old an answer is a replica tells by its clock.
    if plan.durability == Durability::Always && !plan.calm && plan.nodes > 1 && !plan.clocks {
        clients.iter_mut().for_each(Client::perhaps_read_nearby);
        if plan.canary == Some(Canary::BoundlessRead) {
            clients.iter_mut().for_each(Client::read_nearby);
        }
        // The first one is also the one that reads everything in the end. Worlds in which the waits of clients are
        // measured remain comparable.
        if !plan.is_orderly() {
            clients.iter_mut().skip(1).for_each(Client::perhaps_only_read);
        }
    }
    if plan.canary.is_none() && (plan.levels || zones.are_there()) {
        clients.iter_mut().for_each(Client::use_vectors);
    }
    // A transaction over groups keeps back what comes after it on the line to a second site, in order or not.
    if plan.site && Prng::new(plan.seed ^ NARROW_SEED).chance(1, 3) {
        clients.iter_mut().for_each(Client::be_narrow);
    }
    if plan.repeats {
        clients.iter_mut().zip(0..).for_each(|(client, number)| client.repeat(number));
    }
    if plan.optimists {
        clients.iter_mut().zip(0..).for_each(|(client, number)| client.be_optimistic(number % 2 == 0));
    }
    if shares_streams(plan) {
        let mut prng = Prng::new(plan.seed ^ STREAMS_SEED);
        clients.iter_mut().zip(0..).for_each(|(client, number)| client.share_streams(number, prng.fork()));
    }
    if plan.calm {
        clients.iter_mut().for_each(|client| client.calm(CALM_THINK));
    }
    if plan.is_orderly() {
        let think_max = if plan.waits { WAITS_THINK } else { RETURNS_THINK };
        clients.iter_mut().for_each(|client| client.be_patient(think_max));
    }
    clients
}

impl Universe {
    /// The universe of a plan. `trace` is told a line for every event.
    pub fn new(plan: &Plan, trace: Option<Box<dyn FnMut(String)>>) -> Self {
        let mut prng = Prng::new(plan.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x484F_4C44_4641_5354);
        let faults = Faults::draw(plan, &mut prng.fork());
        let drawn = 1 + prng.below(GROUPS_MAX) as u32;
        let group_count = if plan.calm { GROUPS_MAX as u32 } else { drawn };
        let spares = if plan.changes { SPARES } else { 0 };
        let machines = machines(plan, plan.nodes + spares, &faults, &mut prng);
        let mut probes = Probes::default();
        if faults.clock_drift >= CLOCKS_APART {
            probes.reach("clocks ran apart");
        }
        let client_count = 2 + prng.below(5);
        let spans = true;
        let transfers = plan.durability == Durability::Always || prng.chance(1, 2);
        // Where no answer waits for the disk, clients without rest would make histories of many thousands.
        let think_min = if plan.durability == Durability::Always { 0 } else { 5 };
        let think_max = MILLISECOND << prng.below(8).max(think_min);
        let zones = Zones::draw(plan, plan.nodes + spares);
        let clients = (0..client_count).map(|_| Client::new(prng.fork(), think_max, transfers, spans)).collect();
        let clients = accustomed(clients, plan, &zones);
        Self {
            plan: plan.clone(),
            faults,
            prng,
            now: 0,
            queue: BTreeMap::new(),
            sequence: 0,
            machines,
            connections: BTreeMap::new(),
            last_connection: 0,
            clients,
            history: History::new(),
            replica_count: Settings::default().replica_count,
            network: Network {
                cut: Default::default(),
                slow: BTreeMap::new(),
                stream_at: BTreeMap::new(),
                generation: 0,
            },
            lapses: Vec::new(),
            forgotten_at: Vec::new(),
            group_count,
            has_served: Default::default(),
            probes,
            coverage: Coverage::default(),
            failure: None,
            is_calm: true,
            clients_run: false,
            digest: 0xCBF2_9CE4_8422_2325,
            tally: Tally { steps: 0, judged: 0, undecided: 0 },
            trace,
            digests: BTreeMap::new(),
            leading: Leading { leaders: BTreeMap::new(), whole_since: BTreeMap::new(), changes: BTreeMap::new() },
            zones,
            lies: Lies::new(plan),
            rates_were_sound: true,
            peace_since: None,
            led_since: None,
            seen_locks: SeenLocks::new(),
            seen_reservations: BTreeMap::new(),
            away: None,
            copy: None,
            returns_ns: Vec::new(),
            waits: Vec::new(),
            watch: Default::default(),
            site: plan.site.then(|| Box::new(SecondSite::new(plan, group_count))),
        }
    }

    /// Lives through it.
    pub fn run(mut self) -> Outcome {
        say!(self, "{:?} {} groups, {:?}", self.plan, self.group_count, self.faults);
        for machine in 0..self.plan.nodes {
            self.at(self.now, What::Boot { machine });
        }
        if self.site.is_some() {
            self.at(self.now, What::SiteTurns);
        }
        self.open_accounts();
        if self.failure.is_none() && (self.plan.calm || self.plan.is_orderly() || self.plan.levels) {
            self.wait_for_layout();
        }
        if self.failure.is_none() {
            self.trouble_begins();
            if self.plan.returns {
                self.nodes_return();
            } else if self.plan.ailments {
                self.nodes_ail();
            } else if self.plan.waits {
                self.nodes_are_harmed();
            } else {
                let end = self.now + SECOND * (4 + self.prng.below(12));
                self.live_until(end, |_| false);
            }
        }
        if self.failure.is_none() {
            self.peace_begins();
        }
        if self.failure.is_none() {
            self.site_settles();
        }
        if self.failure.is_none() {
            self.replay_logs();
        }
        if self.failure.is_none() {
            self.cut_logs();
        }
        if self.failure.is_none() {
            self.judge();
        }
        (0..self.history.backup_count).for_each(|_| self.probes.reach("a backup was read"));
        if self.history.transfer_count > 0 && self.groups() > 1 {
            self.probes.reach("a transaction spanned groups");
        }
        let next_number = self.prng.draw();
        self.mix(next_number);
        self.mix(self.now);
        Outcome {
            seed: self.plan.seed,
            failure: self.failure,
            digest: self.digest,
            step_count: self.tally.steps,
            answered_count: self.history.answered_count,
            virtual_ns: self.now,
            probes: self.probes,
            coverage: self.coverage,
            transfers_ns: self.history.transfers_ns,
            returns_ns: self.returns_ns,
            waits: self.waits,
            judged_count: self.tally.judged,
            undecided_count: self.tally.undecided,
        }
    }

    // ---- time -----------------------------------------------------------------------------------------------------

    pub(crate) fn at(&mut self, when: u64, what: What) {
        self.sequence += 1;
        self.queue.insert((when.max(self.now), self.sequence), what);
    }

    /// What was promised did not hold.
    pub(crate) fn fail(&mut self, invariant: Invariant, reason: String) {
        say!(self, "FAILURE {invariant}: {reason}");
        self.failure.get_or_insert_with(|| format!("{invariant}: {reason}"));
    }

    /// Everything that happens leaves a mark in the digest: two runs of a seed differ if anything differs.
    pub(crate) fn mix(&mut self, number: u64) {
        self.digest = (self.digest ^ number).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(23);
    }

    pub(crate) fn mix_bytes(&mut self, bytes: &[u8]) {
        self.mix(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut number = [0; 8];
            number[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(number));
        }
    }

    /// Lets things happen until a time, or until `enough`. True if it was enough.
    fn live_until(&mut self, end: u64, enough: impl Fn(&Self) -> bool) -> bool {
        while self.failure.is_none() {
            if enough(self) {
                return true;
            }
            let Some(((when, _), what)) = self.queue.pop_first() else { break };
            if when > end {
                self.sequence += 1;
                self.queue.insert((when, self.sequence), what);
                break;
            }
            self.now = when;
            self.tally.steps += 1;
            self.mix(when);
            self.happen(what);
            let is_long = self.plan.is_orderly();
            let steps_max = if is_long { RETURNS_PER_UNIVERSE * STEPS_MAX } else { STEPS_MAX };
            if self.tally.steps > steps_max {
                self.fail(Invariant::Lives, format!("{steps_max} steps and no end: something spins"));
            }
        }
        if self.failure.is_none() {
            self.now = end;
        }
        false
    }

    /// Between zero and `range`, exclusive.
    pub(crate) fn some(&mut self, range: u64) -> u64 {
        self.prng.below(range.max(1))
    }

    /// True for so many of a thousand.
    pub(crate) fn luck(&mut self, thousandths: u64) -> bool {
        thousandths > 0 && self.prng.below(1_000) < thousandths
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Boot { machine } => self.boot(machine),
            What::Turn { machine, life, core } if self.is_alive(machine, life) => self.turn(machine, core),
            What::Arrive { machine, life, core, inbound } if self.is_alive(machine, life) => {
                self.arrive(machine, core, inbound);
            }
            What::JournalTakes { machine, life } if self.is_alive(machine, life) => self.journal_takes(machine),
            What::JournalSynced { machine, life } if self.is_alive(machine, life) => self.journal_synced(machine),
            What::Flush { machine, life } if self.is_alive(machine, life) => self.flush(machine),
            What::ChoreDone { machine, life } if self.is_alive(machine, life) => self.chore_done(machine),
            What::Turn { .. }
            | What::Arrive { .. }
            | What::JournalTakes { .. }
            | What::JournalSynced { .. }
            | What::Flush { .. }
            | What::ChoreDone { .. } => {}
            What::ClientAsks { client } => self.client_asks(client),
            What::ClientDeadline { client, deadline } => self.client_deadline(client, deadline),
            What::ClientHears { client, connection, bytes } => self.client_hears(client, connection, bytes),
            What::Strike(trouble) => self.strike(trouble),
            What::StepCrash { machine, life, power } => {
                if !self.is_calm && self.is_alive(machine, life) {
                    self.probes.reach("a node died at a step of a transaction");
                    self.meet(Fault::StepCrash, machine);
                    if power {
                        self.cut_power(machine)
                    } else {
                        self.kill(machine)
                    }
                    self.boot_later(machine);
                }
            }
            What::Ends { machine, life } => {
                if self.is_alive(machine, life) {
                    self.probes.reach("a process ended for lack of a checkpoint");
                    self.kill(machine);
                    self.boot_later(machine);
                }
            }
            What::Overtaken { machine, life } if self.is_alive(machine, life) => self.lose_overtaken(machine),
            What::Overtaken { .. } => {}
            What::Refused { machine, life } => {
                if self.is_alive(machine, life) {
                    self.be_refused(machine);
                }
            }
            What::OperatorLooks { machine } => self.operator_looks(machine),
            What::Shows(shown) => self.show(shown),
            What::OperatorUpgrades => self.operator_upgrades(),
            What::Over(trouble, machine) => self.over(trouble, machine),
            What::SiteTurns => self.site_turns(),
        }
    }

    fn is_alive(&self, machine: usize, life: u64) -> bool {
        let machine = self.machines.get(machine);
        machine.is_some_and(|machine| machine.life == life && machine.process.is_some())
    }

    // ---- phases ---------------------------------------------------------------------------------------------------

    fn open_accounts(&mut self) {
        let deadline = self.now + 60 * SECOND;
        loop {
            if !self.connect(0, 0) {
                let soon = self.now + 10 * MILLISECOND;
                self.live_until(soon, |_| false);
                continue;
            }
            let bytes = self.clients[0].open_accounts();
            self.send_to_server(0, &bytes);
            let attempt = self.now + 3 * SECOND;
            let opened = self.live_until(attempt.min(deadline), |this| !this.clients[0].is_waiting());
            if opened && self.history.answered_count >= ACCOUNT_COUNT || self.failure.is_some() {
                break;
            }
            if self.now >= deadline {
                self.fail(Invariant::Lives, "60 s without trouble, and the accounts could not be opened".to_owned());
                break;
            }
            self.history.answered_count = 0;
            self.disconnect(0);
        }
        self.disconnect(0);
        if self.plan.durability != Durability::Always {
            // Until every policy's window has passed.
            let settled = self.now + WRITE_BACK_INTERVAL + 2 * SECOND;
            self.live_until(settled, |_| false);
        } else if self.clients.iter().any(Client::reads_nearby) {
            // Until no replica may answer that they are not open.
            let settled = self.now + 2 * SECOND;
            self.live_until(settled, |_| false);
        }
    }

    fn trouble_begins(&mut self) {
        self.is_calm = false;
        self.clients_run = true;
        for trouble in TROUBLES {
            self.next_strike(trouble);
        }
        for client in 0..self.clients.len() {
            let when = self.now + self.some(MILLISECOND);
            self.at(when, What::ClientAsks { client });
        }
    }

    // ---- clients --------------------------------------------------------------------------------------------------

    /// Connects a client to a machine, if a process listens there.
    fn connect(&mut self, client: usize, machine: usize) -> bool {
        let life = self.machines[machine].life;
        let Some(process) = &mut self.machines[machine].process else { return false };
        let core = self.prng.below(process.cores.len() as u64) as u16;
        process.last_serial += 1;
        let serial = process.last_serial;
        self.last_connection += 1;
        let number = self.last_connection;
        let host = &mut process.cores[usize::from(core)];
        let session = SessionId { serial, index: host.take_place() };
        host.connections.insert(serial, number);
        let arrival = self.now + 20 * MICROSECOND + self.some(100 * MICROSECOND);
        let connection = Connection { client, machine, life, core, session, to_server: arrival, to_client: self.now };
        self.connections.insert(number, connection);
        self.clients[client].connection = Some(number);
        self.clients[client].node = machine;
        let peer = Peer {
            address: "127.0.0.1:7".into(),
            local_address: "127.0.0.1:6379".into(),
            is_local: true,
            descriptor: 9,
            is_host: false,
        };
        self.at(arrival, What::Arrive { machine, life, core, inbound: Inbound::Opened(session, peer) });
        true
    }

    /// A client goes away without a word.
    fn disconnect(&mut self, client: usize) {
        if let Some(number) = self.clients[client].connection
            && let Some(connection) = self.connections.remove(&number)
        {
            let Connection { machine, life, core, session, to_server, .. } = connection;
            self.at(to_server, What::Arrive { machine, life, core, inbound: Inbound::Closed(session) });
        }
        self.clients[client].disconnect(&mut self.history);
    }

    fn send_to_server(&mut self, client: usize, bytes: &[u8]) {
        let Some(number) = self.clients[client].connection else { return };
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let (machine, life, core, session) = (connection.machine, connection.life, connection.core, connection.session);
        let mut rest = bytes;
        while !rest.is_empty() {
            // Streams know no messages: bytes arrive in pieces that mean nothing.
            let count =
                if self.prng.chance(1, 4) { 1 + self.prng.below(rest.len() as u64) as usize } else { rest.len() };
            let (piece, tail) = rest.split_at(count);
            rest = tail;
            connection.to_server =
                connection.to_server.max(self.now) + 10 * MICROSECOND + self.prng.below(100 * MICROSECOND);
            let when = connection.to_server;
            self.sequence += 1;
            let inbound = Inbound::Bytes(session, piece.to_vec());
            self.queue.insert((when, self.sequence), What::Arrive { machine, life, core, inbound });
        }
    }

    fn client_asks(&mut self, client: usize) {
        if !self.clients_run || self.clients[client].is_waiting() {
            return;
        }
        if self.is_calm && client != 0 {
            return;
        }
        if self.clients[client].connection.is_none() {
            let last = self.clients[client].last_reads.is_some();
            let count = self.machines.len() - usize::from(self.copy.is_some());
            let mut machine = if last { self.clients[client].node } else { self.some(count as u64) as usize };
            if self.away == Some(machine) {
                machine = (machine + 1) % count;
            }
            if !self.connect(client, machine) {
                let when = self.now + 10 * MILLISECOND + self.some(200 * MILLISECOND);
                self.at(when, What::ClientAsks { client });
                return;
            }
        }
        let bytes = self.clients[client].ask(self.now, &mut self.history);
        if bytes.is_empty() {
            return;
        }
        self.mix_bytes(&bytes);
        say!(self, "client {client} asks {}", String::from_utf8_lossy(&bytes).escape_debug());
        self.send_to_server(client, &bytes);
        self.note_asked(client);
        let patience = if self.plan.waits { WAITS_PATIENCE } else { 0 };
        let deadline = self.now + 2 * SECOND + self.some(3 * SECOND) + patience;
        self.clients[client].deadline = deadline;
        self.at(deadline, What::ClientDeadline { client, deadline });
    }

    fn client_deadline(&mut self, client: usize, deadline: u64) {
        if self.clients[client].deadline == deadline && self.clients[client].is_waiting() {
            say!(self, "client {client} gives up waiting");
            // Not if its node is gone, and nobody told it.
            if self.clients[client].connection.is_some_and(|number| self.connections.contains_key(&number)) {
                self.history.note_error("no answer");
            }
            self.probes.reach("a client gave up waiting");
            self.note_answered(client);
            self.disconnect(client);
            self.at(self.now, What::ClientAsks { client });
        }
    }

    fn client_hears(&mut self, client: usize, connection: u64, bytes: Option<Vec<u8>>) {
        if self.clients[client].connection != Some(connection) {
            return;
        }
        let Some(bytes) = bytes else {
            self.probes.reach("a client lost its connection");
            self.connections.remove(&connection);
            self.clients[client].disconnect(&mut self.history);
            let when = self.now + self.some(100 * MILLISECOND);
            self.at(when, What::ClientAsks { client });
            return;
        };
        self.mix_bytes(&bytes);
        say!(self, "client {client} hears {}", String::from_utf8_lossy(&bytes).escape_debug());
        let (refused, unknown) = (self.history.refused_count, self.history.unknown_count);
        let awaited = self.clients[client].awaited_count();
        let heard = self.clients[client].hear(self.now, &bytes, &mut self.history);
        if self.clients[client].awaited_count() < awaited {
            self.note_answered(client);
            if self.clients[client].is_waiting() {
                self.note_asked(client);
            }
        }
        match heard {
            Heard::Absurd(reason) => self.fail(Invariant::Honest, format!("client {client}: {reason}")),
            Heard::Fine => {}
            Heard::Idle => {
                let think = self.clients[client].think_max;
                let mut when = self.now + self.clients[client].prng().below(think + 1);
                if self.history.refused_count > refused {
                    when += 20 * MILLISECOND;
                    // A node that refuses may be behind a partition: another may do better.
                    if self.clients[client].last_reads.is_none() && self.prng.chance(1, 2) {
                        self.disconnect(client);
                    }
                }
                self.at(when, What::ClientAsks { client });
            }
        }
        if self.clients[client].has_follow_up() {
            self.at(self.now, What::ClientAsks { client });
        }
        if self.history.refused_count > refused {
            self.probes.reach("a write was refused");
        }
        if self.history.unknown_count > unknown {
            self.probes.reach("an outcome is unknown");
        }
    }

    // ---- faults ---------------------------------------------------------------------------------------------------

    fn mean_of(&self, trouble: Trouble) -> u64 {
        match trouble {
            Trouble::Partition => self.faults.partition_every,
            Trouble::Kill => self.faults.kill_every,
            Trouble::PowerCut => self.faults.power_cut_every,
            Trouble::Pause => self.faults.pause_every,
            Trouble::SyncFailure => self.faults.sync_failure_every,
            Trouble::FullDisk => self.faults.full_every,
            Trouble::SlowDisk => self.faults.slow_disk_every,
            Trouble::SlowLink => self.faults.slow_link_every,
            Trouble::ClockJump => self.faults.clock_jump_every,
            Trouble::ClockRate => self.faults.clock_rate_every,
            Trouble::Reset => self.faults.reset_every,
            Trouble::Change => self.faults.change_every,
            Trouble::Move => self.faults.move_every,
            Trouble::Place => self.faults.place_every,
            Trouble::Growth => self.faults.growth_every,
            Trouble::Upgrade => self.faults.upgrade_every,
            Trouble::ZoneLost => self.zones.lost_every,
        }
    }

    fn next_strike(&mut self, trouble: Trouble) {
        let mean = self.mean_of(trouble);
        if mean > 0 {
            let when = self.now + self.some(2 * mean);
            self.at(when, What::Strike(trouble));
        }
    }

    fn strike(&mut self, trouble: Trouble) {
        if self.is_calm {
            return;
        }
        let machine = self.some(self.machines.len() as u64) as usize;
        say!(self, "{trouble:?} strikes {}", machine + 1);
        let is_operators =
            matches!(trouble, Trouble::Change | Trouble::Move | Trouble::Place | Trouble::Growth | Trouble::Upgrade);
        if !is_operators && !self.machines[machine].has_joined {
            return self.next_strike(trouble);
        }
        match trouble {
            Trouble::Partition if self.plan.canary == Some(Canary::EarlyVote) => self.tempt(machine),
            Trouble::Partition => {
                self.probes.reach("a partition began");
                // Sometimes two do not hear each other, and a third hears both.
                let count = self.machines.len() as u64;
                let wants_pairs = matches!(self.plan.canary, Some(Canary::LongLease | Canary::OpenMoment));
                let is_pair = wants_pairs || self.prng.chance(1, 3);
                let only = is_pair.then(|| (machine + 1 + self.prng.below(count - 1) as usize) % count as usize);
                match only {
                    Some(only) => self.meet_pair(Fault::PairCut, machine, only),
                    None => self.meet(Fault::CutOff, machine),
                }
                let others = (0..self.machines.len()).filter(|other| *other != machine);
                for other in others.filter(|other| only.is_none_or(|only| only == *other)) {
                    let direction = self.prng.below(4);
                    if direction != 0 {
                        self.network.cut.insert((machine, other));
                    }
                    if direction != 1 {
                        self.network.cut.insert((other, machine));
                    }
                }
                let when = self.now + self.some(5 * SECOND);
                self.at(when, What::Over(trouble, machine));
            }
            Trouble::Kill => {
                self.probes.reach("a process was killed");
                self.meet(Fault::Kill, machine);
                self.kill(machine);
                self.boot_later(machine);
            }
            Trouble::PowerCut => self.power_cut_strikes(machine),
            Trouble::Pause => {
                self.probes.reach("a process paused");
                self.meet(Fault::Pause, machine);
                self.machines[machine].paused_until = self.now + self.prng.below(4 * SECOND);
            }
            Trouble::SyncFailure => {
                self.meet(Fault::SyncFailure, machine);
                self.machines[machine].disk.set_syncs_fail(true);
                let when = self.now + self.some(SECOND);
                self.at(when, What::Over(trouble, machine));
            }
            Trouble::FullDisk => {
                self.meet(Fault::FullDisk, machine);
                self.machines[machine].disk.set_full(true);
                let when = self.now + self.some(4 * SECOND);
                self.at(when, What::Over(trouble, machine));
            }
            Trouble::ClockJump => {
                self.probes.reach("a wall clock jumped");
                self.meet(Fault::ClockJump, machine);
                let error = self.prng.below(20_000) as i64 - 10_000;
                self.machines[machine].clock.set_error_ms(error);
            }
            Trouble::SlowDisk => {
                self.meet(Fault::SlowDisk, machine);
                self.machines[machine].sync_extra = 20 * MILLISECOND + self.some(SECOND);
                let when = self.now + self.some(5 * SECOND);
                self.at(when, What::Over(trouble, machine));
            }
            Trouble::SlowLink => {
                let count = self.machines.len() as u64;
                let other = (machine + 1 + self.prng.below(count - 1) as usize) % count as usize;
                self.meet_pair(Fault::SlowLink, machine, other);
                let extra = 10 * MILLISECOND + self.some(SECOND / 2);
                self.network.slow.extend([((machine, other), extra), ((other, machine), extra)]);
                let when = self.now + self.some(5 * SECOND);
                self.at(when, What::Over(trouble, machine));
            }
            Trouble::ClockRate => {
                self.meet(Fault::ClockRate, machine);
                let drift = if self.plan.clocks {
                    [BEYOND_FAST, BEYOND_SLOW, self.machines[machine].drift][self.some(3) as usize]
                } else {
                    let most = self.faults.clock_drift as i64;
                    self.some(2 * most as u64 + 1) as i64 - most
                };
                self.set_clock_rate(machine, drift);
            }
            Trouble::Change => self.change_members(machine),
            Trouble::Move => self.move_slots(machine),
            Trouble::Place => self.place_group(machine),
            Trouble::Growth => self.found_groups(machine),
            Trouble::Upgrade => self.tell_as_operator(machine, b"HOLDFAST UPGRADE\r\n".to_vec()),
            Trouble::ZoneLost => self.lose_zone(machine),
            Trouble::Reset => {
                let client = self.some(self.clients.len() as u64) as usize;
                if let Some(number) = self.clients[client].connection {
                    self.probes.reach("a client lost its connection");
                    let node = self.clients[client].node;
                    self.meet(Fault::Reset, node);
                    say!(self, "client {client} loses connection {number}");
                    self.disconnect(client);
                    let when = self.now + self.some(50 * MILLISECOND);
                    self.at(when, What::ClientAsks { client });
                }
            }
        }
        self.next_strike(trouble);
    }

    /// A node that leads and another one do not hear each other. The other asks who would elect it; and the third node,
    /// which has promised the leader not to, starts just then.
    fn tempt(&mut self, machine: usize) {
        let count = self.machines.len();
        let groups = |machine: usize| {
            let process = self.machines[machine].process.iter();
            process.flat_map(|process| &process.cores).flat_map(|host| host.core.groups())
        };
        let in_turn = (0..count).map(|step| (machine + step) % count);
        let Some(leader) = in_turn.into_iter().find(|machine| groups(*machine).any(|group| group.is_leader())) else {
            return;
        };
        if !self.network.cut.is_empty() {
            return;
        }
        let (other, third) = ((leader + 1) % count, (leader + 2) % count);
        self.meet_pair(Fault::PairCut, leader, other);
        self.network.cut.extend([(leader, other), (other, leader)]);
        // Before the leader hands over to the one that hears all.
        let when = self.now + 3 * SECOND / 4 + self.some(3 * SECOND / 10);
        self.at(when, What::StepCrash { machine: third, life: self.machines[third].life, power: false });
        self.at(self.now + 3 * SECOND / 2, What::Over(Trouble::Partition, leader));
    }

    fn over(&mut self, trouble: Trouble, machine: usize) {
        say!(self, "{trouble:?} is over for {}", machine + 1);
        match trouble {
            Trouble::Partition => self.network.cut.retain(|(from, to)| *from != machine && *to != machine),
            Trouble::SyncFailure => self.machines[machine].disk.set_syncs_fail(false),
            Trouble::FullDisk => self.machines[machine].disk.set_full(false),
            Trouble::SlowDisk => self.machines[machine].sync_extra = 0,
            Trouble::SlowLink => self.network.slow.retain(|(from, to), _| *from != machine && *to != machine),
            _ => {}
        }
    }

    /// A machine's clock runs at another rate from now on.
    pub(crate) fn set_clock_rate(&mut self, machine: usize, drift: i64) {
        say!(self, "the clock of node {} gains {drift} millionths", machine + 1);
        if drift.unsigned_abs() > u64::from(consensus::limits::CLOCK_DRIFT_MAX_MILLIONTHS) {
            self.probes.reach("a clock ran at a rate that leases do not bear");
            self.rates_were_sound = false;
        }
        self.machines[machine].clock.set_drift(drift, self.now);
    }

    fn power_cut_strikes(&mut self, machine: usize) {
        if self.luck(self.faults.power_cut_of_all) {
            self.probes.reach("all nodes lost power at once");
            self.meet_all(Fault::PowerCutOfAll);
            for machine in 0..self.machines.len() {
                self.cut_power(machine);
                self.boot_later(machine);
            }
        } else if self.luck(self.faults.power_cut_inside) && self.machines[machine].process.is_some() {
            self.meet(Fault::PowerCutInside, machine);
            let operations = self.some(12);
            self.machines[machine].disk.set_fuse(operations);
        } else {
            self.meet(Fault::PowerCut, machine);
            self.cut_power(machine);
            self.boot_later(machine);
        }
    }

    fn boot_later(&mut self, machine: usize) {
        let patience = match self.plan.canary {
            Some(Canary::EarlyVote) => SECOND / 20,
            Some(Canary::ForgottenDoubt | Canary::ForgottenTail) => SECOND / 5,
            _ => 3 * SECOND,
        };
        let when = self.now + self.some(patience);
        self.at(when, What::Boot { machine });
    }

    /// The power of one machine fails.
    pub(crate) fn cut_power(&mut self, machine: usize) {
        self.probes.reach("a node lost power");
        self.stop_process(machine, true);
        let survival = match self.prng.below(4) {
            0 => Survival::Nothing,
            1 => Survival::Everything,
            2 => Survival::Prefix,
            _ => Survival::AnySubset,
        };
        let lost_count = self.machines[machine].disk.cut_power(survival);
        say!(self, "node {} loses power and {lost_count} sectors ({survival:?})", machine + 1);
        self.mix(lost_count as u64);
        if lost_count > 0 {
            self.probes.reach("unsynced sectors were lost");
        }
    }

    /// The process of one machine is gone, and its page cache is not.
    pub(crate) fn kill(&mut self, machine: usize) {
        say!(self, "node {} is killed", machine + 1);
        self.stop_process(machine, false);
        self.machines[machine].disk.kill();
    }

    fn stop_process(&mut self, machine: usize, power: bool) {
        self.note_stop(machine, power);
        if !power {
            self.close_links(machine);
        }
        if let Some(site) = &mut self.site {
            site.end(machine, power);
        }
        let phases = self.phases_of(machine);
        let Some(process) = self.machines[machine].process.take() else { return };
        // A node that is alone in a group has nobody who could make up for it.
        let replicas = || process.cores.iter().flat_map(|host| host.core.groups()).filter(|group| !group.is_vacant());
        let has_others = replicas().all(|group| group.membership().voters.len() > 1);
        let is_chosen = machine as u64 == self.plan.seed % self.plan.nodes as u64;
        if is_chosen && has_others && self.luck(self.faults.rot) {
            // A start may be refused if it is not the last record, and two voters do not do without one of them.
            let is_minority = replicas().map(|group| group.membership().voters.len()).all(|voters| voters > 2);
            let behind = if is_minority && self.prng.chance(1, 4) { ROT_BYTES } else { 0 };
            self.coverage.meet(Fault::Rot, phases);
            self.rot(machine, process.journal.last_content(), behind);
        }
        drop(process);
        let numbers: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.machine == machine)
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            let connection = self.connections.remove(&number).expect("it was just seen");
            // Sometimes nobody tells the client.
            if !self.prng.chance(1, 8) {
                let when = connection.to_client.max(self.now) + self.some(2 * MILLISECOND);
                self.at(when, What::ClientHears { client: connection.client, connection: number, bytes: None });
            }
        }
    }

    /// A bit turns at the end of the log of a machine: in its last record, or in so many bytes.
    fn rot(&mut self, machine: usize, (file, record): (String, std::ops::Range<u64>), behind: u64) {
        let start = record.start.min(record.end.saturating_sub(behind));
        let (offset, bit) = (start + self.some(record.end - start), self.prng.draw() as u32);
        say!(
            self,
            "a bit turns in {file} of node {} at offset {offset}, the last record is at {record:?}",
            machine + 1
        );
        self.probes.reach("a log rotted at its end");
        self.machines[machine].has_rotted = true;
        self.machines[machine].disk.rot(&file, offset, bit);
        // It may lack its end, or never start again, however long ago that was written. Where others lose what is not
        // on their disks yet, this was perhaps the one that had it.
        if let Some(window) = self.window_max(machine).filter(|_| self.quorum_min() > 1) {
            self.note_loss(machine, 0, window);
        }
    }

    /// Works out what a stop may cost where acknowledgements do not wait for the disk. What was acknowledged is in the
    /// memory of a quorum, so it may be lost only if so many nodes stop before it is on their disks.
    fn note_stop(&mut self, machine: usize, power: bool) {
        if self.machines[machine].process.is_some() {
            self.machines[machine].ended = Some(self.now);
        }
        // What is acknowledged is with the system, which a process that dies takes nothing from.
        if let Some(window) = self.window_max(machine).filter(|_| power)
            && let Some(stopped) = self.machines[machine].ended
        {
            self.note_loss(machine, stopped.saturating_sub(window), window);
        }
    }

    /// For how long what is acknowledged may not be on the disk of a machine; `None` if it always is.
    fn window_max(&self, machine: usize) -> Option<u64> {
        let window = match self.plan.durability {
            Durability::Always => return None,
            Durability::EverySecond => SECOND,
            Durability::No => WRITE_BACK_INTERVAL,
        };
        // Slow syncs, and pauses of the whole process, come on top.
        Some(window + 2 * SECOND + self.machines[machine].paused_until.saturating_sub(self.now))
    }

    /// A machine has stopped, and may have lost what it had acknowledged since then.
    fn note_loss(&mut self, machine: usize, since: u64, window: u64) {
        let Some(stopped) = self.machines[machine].ended else { return };
        self.machines[machine].stopped = Some((stopped, since));
        let quorum = self.quorum_min();
        let near = |when: u64| self.now.saturating_sub(when) <= window + COMMIT_DELAY_MAX;
        let stops = self.machines.iter().filter_map(|other| other.stopped).filter(|(when, _)| near(*when));
        let mut windows: Vec<u64> = stops.map(|(_, window)| window).collect();
        windows.sort_unstable();
        if let Some(window) = windows.get(quorum - 1) {
            if quorum > 1 {
                self.probes.reach("a quorum lost what was not on disk");
            }
            self.lapses.push((self.now, *window));
        }
    }

    /// True if a lapse that was allowed explains that this core has a replica that was overtaken.
    pub(crate) fn explains_overtaken(&self, machine: usize, core: u16) -> bool {
        let machine = &self.machines[machine];
        let Some(process) = &machine.process else { return false };
        let mut overtaken = process.cores[usize::from(core)].core.groups().filter(|group| group.is_overtaken());
        overtaken.all(|group| {
            let progress = machine.progress.get(&group.id().0).copied().unwrap_or_default();
            self.lapses.iter().any(|lapse| progress.may_be_overtaken(*lapse, COMMIT_DELAY_MAX))
        })
    }
}

/// The longest that an acknowledgement between nodes is under way, a pause of its reader included.
const COMMIT_DELAY_MAX: u64 = 5 * SECOND;

/// How often the system writes back dirty pages by itself, which matters where nobody syncs.
pub(crate) const WRITE_BACK_INTERVAL: u64 = 5 * SECOND;

/// How far before the end of a log bits turn.
const ROT_BYTES: u64 = 6_000;

/// Machines that may join.
const SPARES: usize = 2;

/// Peace after which everything must be answered and agreed on.
const LIVENESS_MAX: u64 = 60 * SECOND;

/// More than any universe needs.
const STEPS_MAX: u64 = 3_000_000;

//! The false world: the same cores as in the real one, under a net that loses, a disk that forgets, clocks that lie and
//! power that fails, on one thread and in virtual time. A seed decides everything, so that what failed once fails
//! again.
//!
//! It knows no thread, no real time and no real file. Suggested order of reading: [`universe`], `hosting`, [`faults`],
//! [`disk`], [`client`], [`invariants`], [`coverage`], [`linearizable`], [`cycles`]; and [`work`], where nothing fails
//! and everything takes time.

pub mod client;
pub mod clock;
pub mod coverage;
pub mod cycles;
pub mod disk;
pub mod faults;
mod hosting;
pub mod invariants;
pub mod linearizable;
mod machine;
mod probes;
mod reply;
mod universe;
pub mod work;

pub use probes::{EXPECTED, Probes};
pub use universe::{AILMENTS_PER_UNIVERSE, HARMS_PER_UNIVERSE, Harm, RETURNS_PER_UNIVERSE, Universe, Wait};

/// Databases of every universe.
pub(crate) const DATABASES: u16 = 2;

pub(crate) const MICROSECOND: u64 = 1_000;
pub(crate) const MILLISECOND: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;

/// What an acknowledgement means: `appendfsync`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// On disk.
    #[default]
    Always,
    /// On disk within a second.
    EverySecond,
    /// With the operating system.
    No,
}

/// A defect put in on purpose, which the checkers must catch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// Writes are acknowledged before they are on disk.
    EarlyAcknowledgement,
    /// A transaction over groups counts as committed when the first group has prepared it.
    EarlyCommit,
    /// Groups forget to look at what a transaction over groups watches.
    ForgottenWatch,
    /// Transactions over groups neither lock nor look at what they watch and do not touch.
    ForgottenRead,
    /// Groups forget what they have answered: a request that comes again is carried out again.
    ForgottenAnswer,
    /// Locks of a gateway that is gone are kept.
    ForgottenLock,
    /// What is reserved for a client that has watched it stays reserved until its EXEC.
    EndlessReservation,
    /// It is forgotten that a transaction was committed without asking who may still ask.
    ForgottenOutcome,
    /// Checkpoints leave out the transactions that are prepared.
    ForgottenPrepared,
    /// Checkpoints leave out what requests with an id were answered.
    ForgottenRequestIds,
    /// Leases outlast the promises that they rest on.
    LongLease,
    /// A voter that has just started votes at once, whatever it may have promised.
    EarlyVote,
    /// A voter that may have lost the end of its log votes as if it had not.
    ForgottenDoubt,
    /// A record that is damaged at the end of a log is taken for one that nobody was promised.
    ForgottenTail,
    /// The keys of a slot that moves are read before the latest changes to them have been made.
    EarlyCopy,
    /// A group that has given a slot away does not look whether it had carried out what it is asked for.
    ForgottenBook,
    /// A replica answers reads however old it is.
    BoundlessRead,
    /// Every process that says it is a node is heard.
    CountedCopy,
    /// Nobody carries on what moment it has heard of.
    DeafMoments,
    /// Logs are cut at a moment that not all of them have reached.
    OpenCut,
    /// A replica is let go before another one has taken its place.
    EarlyRemoval,
    /// The balancer takes no notice of zones.
    ForgottenZones,
    /// A start takes no notice of groups that have been founded since the cluster was, and founds them once more.
    FoundedTwice,
    /// A start lets a group that has split off begin with nothing, although the log of the other one, on which its
    /// beginning rests, is there.
    ForgottenBeginning,
    /// A group that splits off begins without what was changed last of its slots.
    LostTail,
    /// The balancer splits a group again before the first split has come about.
    RepeatedSplit,
    /// A group that is to go is given up before its slots have moved.
    EarlyEnd,
    /// A group that is to go is believed to have ended although slots of it have not moved.
    FalseEnd,
    /// The balancer names one node less than are to hold a group.
    ThinPlacement,
    /// A group that goes answers reads of slots that it has given away.
    KeptLease,
    /// Leaders log what is new with a level before it has been raised, and give it to anyone who follows.
    EarlyLevel,
    /// The level is raised without asking which nodes know it.
    BlindRise,
    /// Whatever term a node says is believed.
    BelievedTerms,
    /// An answer is taken from anyone who gives it.
    BelievedAnswers,
    /// A far site is told that moments are closed which are not.
    OpenMoment,
    /// A far site notes its position before it has carried out what leads there.
    AheadPosition,
}

/// Which universe to live through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Decides everything that the rest leaves open.
    pub seed: u64,
    /// 1, or 3 and more. Of more than three each holds some groups only.
    pub nodes: usize,
    /// Nothing goes wrong, and every such world has the same net and disks: to see how long things take.
    pub calm: bool,
    /// Nodes die and return, one after the other, and nothing else goes wrong.
    pub returns: bool,
    /// Two nodes do not hear each other, a disk is full, or a copy of a node is started, one after the other, and
    /// nothing else goes wrong.
    pub ailments: bool,
    /// Something happens to one node after another, and nothing else goes wrong: to see how long clients of the others
    /// wait.
    pub waits: bool,
    /// What acknowledgements mean.
    pub durability: Durability,
    /// Nodes join, and are removed.
    pub changes: bool,
    /// Slots move between groups.
    pub moves: bool,
    /// Groups come into being, and get their share of the slots; in some worlds they split as well.
    pub growth: bool,
    /// Clients give some requests ids, and repeat them until they are answered. Acknowledged must mean on disk.
    pub repeats: bool,
    /// Clients change one register again and again, some of them by EXEC after WATCH. The cluster is new, so that they
    /// are helped.
    pub optimists: bool,
    /// Nodes run one of two versions, change it when they start, and the level is raised.
    pub levels: bool,
    /// One node lies to the others in all that they can find out, or that harms nobody's data.
    pub liars: bool,
    /// A far cluster follows over a thin line that is cut again and again. Acknowledged must mean on disk.
    pub site: bool,
    /// Clocks run at double and at half speed for a while, which leases do not bear: it is not looked what reads were
    /// told then, nor whether transactions read what was so.
    pub clocks: bool,
    /// A defect to plant, if any.
    pub canary: Option<Canary>,
}

impl Plan {
    /// Whether things go wrong one after the other, and nothing else does.
    pub const fn is_orderly(&self) -> bool {
        self.returns || self.ailments || self.waits
    }
}

/// What became of a universe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Its seed.
    pub seed: u64,
    /// What went wrong, if anything did.
    pub failure: Option<String>,
    /// Of everything that happened: equal for two runs of the same plan.
    pub digest: u64,
    /// Events lived through.
    pub step_count: u64,
    /// Requests that clients got an answer to.
    pub answered_count: u64,
    /// Virtual time that passed.
    pub virtual_ns: u64,
    /// Rare situations reached.
    pub probes: Probes,
    /// Which faults met which phases.
    pub coverage: coverage::Coverage,
    /// How long each transfer between two accounts took that was carried out.
    pub transfers_ns: Vec<u64>,
    /// How long leaders took to be where they were, after each return of a node.
    pub returns_ns: Vec<u64>,
    /// The longest wait for an answer of clients of unhurt nodes, each time that something happened.
    pub waits: Vec<Wait>,
    /// Histories of registers that were judged.
    pub judged_count: u64,
    /// Those among them of which it could not be told in time whether they are linearizable.
    pub undecided_count: u64,
}

/// Lives through a universe.
pub fn run(plan: &Plan) -> Outcome {
    Universe::new(plan, None).run()
}

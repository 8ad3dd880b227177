//! Which troubles a universe knows. Each seed draws which of them exist at all, and how often they come: a universe
//! with every fault all the time never gets far enough for the rare ones to matter.

use group::limits::Slicing;
use stdx::Prng;

use crate::{Canary, MILLISECOND, Plan, SECOND};

/// Log that calls for a checkpoint where nothing goes wrong.
const CALM_LOG_BYTES: u64 = 200_000;

/// The troubles of one universe. Probabilities are in thousandths; times in nanoseconds of true time.
#[derive(Clone, Debug)]
pub struct Faults {
    /// Shortest time a message takes between nodes.
    pub net_delay_min: u64,
    /// What may come on top, evenly.
    pub net_jitter: u64,
    /// A message takes up to a hundred times longer.
    pub net_straggler: u64,
    /// A message is lost.
    pub net_loss: u64,
    /// A message comes twice.
    pub net_duplication: u64,
    /// Mean time between partitions; 0 is never.
    pub partition_every: u64,
    /// Mean time between kills of a process; 0 is never.
    pub kill_every: u64,
    /// Mean time between power cuts of one node; 0 is never.
    pub power_cut_every: u64,
    /// A power cut comes in the middle of the next disk operations instead of between them.
    pub power_cut_inside: u64,
    /// A power cut hits all nodes.
    pub power_cut_of_all: u64,
    /// Mean time between long pauses of a process (SIGSTOP, a swapping machine); 0 is never.
    pub pause_every: u64,
    /// Shortest time a sync takes.
    pub sync_min: u64,
    /// What may come on top, evenly.
    pub sync_jitter: u64,
    /// A sync takes up to two seconds.
    pub sync_stall: u64,
    /// A core writes to the log itself what need not be durable to be acknowledged, and goes on in the same turn.
    pub core_writes: u64,
    /// Mean time between periods in which syncs fail; 0 is never.
    pub sync_failure_every: u64,
    /// Mean time between periods in which the disk is full; 0 is never.
    pub full_every: u64,
    /// Mean time between periods in which syncs of one disk take long; 0 is never.
    pub slow_disk_every: u64,
    /// Mean time between periods in which a link is slow; 0 is never.
    pub slow_link_every: u64,
    /// A bit turns at the end of the log when a process ends: on one machine only, less than half of the voters.
    pub rot: u64,
    /// Mean time between jumps of a wall clock; 0 is never.
    pub clock_jump_every: u64,
    /// Largest error of a clock's rate, in millionths.
    pub clock_drift: u64,
    /// Mean time between changes of a clock's rate; 0 is never.
    pub clock_rate_every: u64,
    /// Mean time between resets of a client's connection; 0 is never.
    pub reset_every: u64,
    /// Mean time between changes of the cluster's members; 0 is never.
    pub change_every: u64,
    /// Mean time between moves of slots; 0 is never.
    pub move_every: u64,
    /// An operator lets a group live on other nodes.
    pub place_every: u64,
    /// Mean time between the foundings of groups; 0 is never.
    pub growth_every: u64,
    /// Groups split as well: such a world begins at the level that allows it.
    pub splits: bool,
    /// Groups must go again as well: such a world begins at the level that allows it, too.
    pub merges: bool,
    /// `balance-split-bytes`: groups that hold more are split by the balancer as well; 0: none are.
    pub split_bytes: u64,
    /// A node dies right behind a step of a split: at the entry by which a group splits, or at the new one's first.
    pub split_crash: u64,
    /// For how long at most a checkpoint waits until it is on the disk, of groups that came into being on the way: as
    /// long as a group that has split off has none, it rests on the log of another one.
    pub young_checkpoint_wait: u64,
    /// Mean time between attempts to raise the level; 0 is never.
    pub upgrade_every: u64,
    /// A turn of a core takes up to this long.
    pub turn_cost: u64,
    /// A node dies at a step of a transaction over groups: while it is being written, or a little later.
    pub step_crash: u64,
    /// Bytes of log that call for a checkpoint.
    pub checkpoint_log_bytes: u64,
    /// Bytes of log that stay in memory once applied.
    pub log_memory_bytes: usize,
    /// Bytes of requests that a group takes at a time, and that a gateway lets be under way to it.
    pub window_bytes: usize,
    /// Bytes of log that wait for the disk from which on cores read no clients.
    pub disk_queue_bytes: usize,
    /// Bytes of log that are kept on disk for members that lack them.
    pub log_held_bytes_max: u64,
    /// Beside a message that it sends the node that lies sends a lie.
    pub lies: u64,
    /// How values of transactions come and go in steps: real ones of this world would all be too short.
    pub slicing: Slicing,
}

impl Faults {
    /// Draws the troubles of a universe. Those of a defect that shows only under some are made so that it does.
    pub fn draw(plan: &Plan, prng: &mut Prng) -> Self {
        let mut faults = Self::draw_freely(plan, prng);
        if matches!(
            plan.canary,
            Some(Canary::LongLease | Canary::EarlyVote | Canary::ForgottenDoubt | Canary::ForgottenTail)
        ) {
            faults.partition_every = SECOND;
        }
        if matches!(plan.canary, Some(Canary::LongLease | Canary::EarlyVote)) {
            faults.clock_drift = u64::from(consensus::limits::CLOCK_DRIFT_MAX_MILLIONTHS);
        }
        if plan.canary == Some(Canary::EarlyVote) {
            // Two are cut off from each other at a time, and the third starts in the middle of it.
            faults.partition_every = 2 * SECOND;
            (faults.kill_every, faults.power_cut_every, faults.pause_every) = (0, 0, 0);
        }
        if plan.canary == Some(Canary::BoundlessRead) {
            // Who is cut off stays so for longer than clients allow, and does not forget by a restart.
            faults.partition_every = SECOND;
            (faults.kill_every, faults.power_cut_every, faults.pause_every) = (0, 0, 0);
        }
        if plan.canary == Some(Canary::OpenMoment) {
            // A near node hears the leader of one group, and not that of another; and most clients are answered.
            faults.partition_every = 2 * SECOND;
            (faults.kill_every, faults.power_cut_every, faults.pause_every) = (0, 0, 0);
        }
        if plan.canary == Some(Canary::ForgottenDoubt) {
            // One loses the end of its log while another cannot be heard and a third knows less.
            faults.power_cut_every = SECOND;
            (faults.power_cut_inside, faults.power_cut_of_all) = (0, 0);
            (faults.kill_every, faults.pause_every) = (0, 0);
        }
        if plan.canary == Some(Canary::ForgottenTail) {
            // One is killed, and finds its last record damaged, while another cannot be heard and a third knows less.
            (faults.kill_every, faults.rot) = (SECOND, 1_000);
            (faults.power_cut_every, faults.pause_every) = (0, 0);
        }
        if plan.canary == Some(Canary::EarlyRemoval) {
            faults.place_every = SECOND;
        }
        if plan.canary == Some(Canary::FoundedTwice) {
            (faults.growth_every, faults.kill_every) = (SECOND / 2, 2 * SECOND);
            // A journal does not take what comes before a checkpoint.
            (faults.checkpoint_log_bytes, faults.step_crash) = (u64::MAX, 0);
        }
        if plan.canary == Some(Canary::ForgottenBeginning) {
            (faults.splits, faults.growth_every, faults.split_crash) = (true, SECOND / 2, 500);
            (faults.checkpoint_log_bytes, faults.young_checkpoint_wait) = (u64::MAX, 10 * SECOND);
        }
        if plan.canary == Some(Canary::LostTail) {
            (faults.splits, faults.growth_every) = (true, SECOND / 2);
        }
        if matches!(plan.canary, Some(Canary::EarlyEnd | Canary::FalseEnd | Canary::KeptLease)) {
            (faults.merges, faults.growth_every) = (true, SECOND);
        }
        if plan.canary == Some(Canary::RepeatedSplit) {
            (faults.splits, faults.split_bytes) = (true, 1_000);
        }
        if plan.levels {
            // Anyone who starts may be another version.
            faults.kill_every = 2 * SECOND;
        }
        if plan.canary == Some(Canary::BlindRise) {
            // A node that is there has been there for long.
            (faults.kill_every, faults.power_cut_every, faults.pause_every) = (0, 0, 0);
        }
        if plan.is_orderly() {
            faults.calm();
        }
        if plan.calm {
            faults.calm();
            faults.net_delay_min = MILLISECOND / 10;
            faults.net_jitter = MILLISECOND / 10;
            faults.sync_min = MILLISECOND / 2;
            faults.sync_jitter = MILLISECOND / 2;
            faults.turn_cost = MILLISECOND / 50;
            faults.checkpoint_log_bytes = CALM_LOG_BYTES;
        }
        faults
    }

    fn draw_freely(plan: &Plan, prng: &mut Prng) -> Self {
        let several = plan.nodes > 1;
        // Each fault exists in some universes only; where it does, its rate is drawn over a decade.
        let mut every = |exists: u64, mean: u64| {
            if prng.chance(exists, 100) { mean / 3 + prng.below(mean * 3) } else { 0 }
        };
        let partition_every = if several { every(50, 5 * SECOND) } else { 0 };
        let kill_every = every(50, 6 * SECOND);
        let power_cut_every = every(50, 6 * SECOND);
        let pause_every = every(25, 8 * SECOND);
        let sync_failure_every = every(15, 10 * SECOND);
        let full_every = every(20, 8 * SECOND);
        let clock_jump_every = every(25, 4 * SECOND);
        let reset_every = every(40, 2 * SECOND);
        let change_every = if plan.changes { every(100, SECOND) } else { 0 };
        let move_every = if plan.moves { every(100, SECOND / 4) } else { 0 };
        let place_every = if plan.nodes > REPLICAS { every(60, SECOND) } else { 0 };
        let mut of_growth = Prng::new(plan.seed ^ 0x6772_6F77);
        let growth_every = if plan.growth { SECOND / 2 + of_growth.below(4 * SECOND) } else { 0 };
        let splits = plan.growth && !plan.levels && plan.canary.is_none() && of_growth.chance(2, 3);
        // Worlds without merges are what they were.
        let merges =
            plan.growth && !plan.levels && plan.canary.is_none() && Prng::new(plan.seed ^ 0x6D65_7267).chance(1, 2);
        // A split waits for much, and is refused meanwhile.
        let growth_every = if splits { growth_every / 3 } else { growth_every };
        let mut of_balancer = Prng::new(plan.seed ^ 0x73_6861_7265);
        // While versions are mixed there is such a limit, and no group may split.
        let is_halved = (splits || plan.growth && plan.levels && plan.canary.is_none()) && of_balancer.chance(1, 2);
        let split_bytes = if is_halved { 300 + of_balancer.below(SPLIT_BYTES_MORE) } else { 0 };
        // The balancer has its turn only while no operator lets groups come into being.
        let growth_every = if is_halved && splits { 6 * growth_every } else { growth_every };
        let split_crash = if splits && of_growth.chance(2, 3) { 300 + of_growth.below(700) } else { 0 };
        let young_checkpoint_wait =
            if splits && of_growth.chance(2, 3) { SECOND + of_growth.below(9 * SECOND) } else { 5 * MILLISECOND };
        let upgrade_every = if plan.levels { 2 * SECOND } else { 0 };
        let mut thousandths = |exists: u64, most: u64| {
            if prng.chance(exists, 100) { 1 + prng.below(most) } else { 0 }
        };
        let net_loss = thousandths(50, 100);
        let net_duplication = thousandths(40, 50);
        let net_straggler = thousandths(40, 30);
        let power_cut_inside = thousandths(60, 1_000);
        let power_cut_of_all = thousandths(40, 500);
        let sync_stall = thousandths(25, 20);
        let step_crash = thousandths(40, 10);
        let drift_max = u64::from(consensus::limits::CLOCK_DRIFT_MAX_MILLIONTHS);
        // Mostly less than a member lacks after a while away. Those who look for a defect want no other troubles.
        let mut of_log = Prng::new(plan.seed ^ 0x6C6F67);
        let log_memory_bytes = if plan.canary.is_some() { usize::MAX } else { of_log.below(20_000) as usize };
        let log_held_bytes_max = of_log.below(400_000);
        let is_narrow = plan.canary.is_none() && !plan.calm && of_log.chance(1, 2);
        // A batch that holds nothing has a few bytes, too.
        let narrow_bytes = (1 + of_log.below(2_000) as usize).max(64);
        let window_bytes = if is_narrow { narrow_bytes } else { group::limits::STREAM_BYTES_MAX };
        let is_sliced = plan.canary.is_none() && of_log.chance(1, 3);
        let slicing = if is_sliced {
            Slicing { bytes_min: 1, step_bytes: 50 + of_log.below(450) as usize }
        } else {
            Slicing::default()
        };
        let is_slow = plan.canary.is_none() && !plan.calm && of_log.chance(1, 2);
        let disk_queue_bytes = if is_slow { of_log.below(3_000) as usize } else { usize::MAX };
        // Of the whole process: in some universes never, in some nearly always.
        let mut of_writes = Prng::new(plan.seed ^ 0x7772_6974_6573);
        let core_writes = if plan.canary.is_none() { of_writes.below(1_500).saturating_sub(500) } else { 0 };
        let mut of_rot = Prng::new(plan.seed ^ 0x726F74);
        let may_rot = several && plan.canary.is_none();
        let rot = if may_rot && of_rot.chance(1, 2) { 200 + of_rot.below(800) } else { 0 };
        // Worlds that are seen to be right with what they know keep it: these three have a chance of their own.
        let mut of_pace = Prng::new(plan.seed ^ 0x7061_6365);
        let is_usual = plan.canary.is_none();
        let mut sometimes = |part: u64, mean: u64| {
            if is_usual && of_pace.chance(1, part) { mean / 3 + of_pace.below(mean * 3) } else { 0 }
        };
        let slow_disk_every = sometimes(3, 3 * SECOND);
        let slow_link_every = if several { sometimes(3, 3 * SECOND) } else { 0 };
        let clock_rate_every = sometimes(3, 3 * SECOND);
        let clock_rate_every = if plan.clocks { SECOND + clock_rate_every / 4 } else { clock_rate_every };
        Self {
            net_delay_min: 20_000 + prng.below(MILLISECOND),
            net_jitter: 10_000 + prng.below(5 * MILLISECOND),
            net_straggler,
            net_loss,
            net_duplication,
            partition_every,
            kill_every,
            power_cut_every,
            power_cut_inside,
            power_cut_of_all,
            pause_every,
            sync_min: 50_000 + prng.below(2 * MILLISECOND),
            sync_jitter: 10_000 + prng.below(10 * MILLISECOND),
            sync_stall,
            core_writes,
            sync_failure_every,
            full_every,
            slow_disk_every,
            slow_link_every,
            rot,
            clock_jump_every,
            clock_drift: if several && prng.chance(1, 3) { prng.below(drift_max) } else { prng.below(200) },
            clock_rate_every,
            reset_every,
            change_every,
            move_every,
            place_every,
            growth_every,
            splits,
            merges,
            split_bytes,
            split_crash,
            young_checkpoint_wait,
            upgrade_every,
            turn_cost: 1_000 + prng.below(100_000),
            step_crash,
            checkpoint_log_bytes: 2_000 + prng.below(200_000),
            log_memory_bytes,
            window_bytes,
            disk_queue_bytes,
            log_held_bytes_max,
            lies: if plan.liars { 20 + Prng::new(plan.seed ^ 0x6C696573).below(300) } else { 0 },
            slicing,
        }
    }

    /// Nothing goes wrong any more.
    pub fn calm(&mut self) {
        for rate in [
            &mut self.net_straggler,
            &mut self.net_loss,
            &mut self.net_duplication,
            &mut self.partition_every,
            &mut self.kill_every,
            &mut self.power_cut_every,
            &mut self.pause_every,
            &mut self.sync_stall,
            &mut self.sync_failure_every,
            &mut self.full_every,
            &mut self.slow_disk_every,
            &mut self.slow_link_every,
            &mut self.rot,
            &mut self.clock_jump_every,
            &mut self.clock_rate_every,
            &mut self.reset_every,
            &mut self.change_every,
            &mut self.move_every,
            &mut self.place_every,
            &mut self.growth_every,
            &mut self.step_crash,
            &mut self.split_crash,
            &mut self.lies,
        ] {
            *rate = 0;
        }
    }
}

/// What a group may hold beyond some bytes before the balancer splits it, at most: clients write more than that.
const SPLIT_BYTES_MORE: u64 = 3_000;

/// Nodes beyond which groups live on some of them only.
const REPLICAS: usize = 3;

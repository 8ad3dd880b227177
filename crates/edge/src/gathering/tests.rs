//! The rule among models of servers and clients, with the prices that were measured on a machine with 16 processors.

use super::*;

/// A quarter of a second in which threads ran and waited, and processors were idle, in thousandths.
fn quarter(threads: &[(u64, u64)], idle: u64) -> Load {
    let us = |per_mille: u64| per_mille * 250;
    Load {
        window_us: 250_000,
        threads_us: threads.iter().map(|&(ran, waited)| (us(ran), us(waited))).collect(),
        idle_us: Some(us(idle)),
        ..Load::default()
    }
}

/// What is decided in so many seconds of the same.
fn after(gathering: &mut Gathering, seconds: usize, load: &Load) -> usize {
    (0..seconds * 4).for_each(|_| {
        gathering.consider(load);
    });
    gathering.thread_count
}

/// A machine on which a server with 16 cores and its clients run.
struct Model {
    /// What a request takes of the server's threads in nanoseconds, with 1, 2, 4, 8 and 16 of them.
    prices_ns: [u64; 5],
    /// Threads that clients have, and what they take of a processor for a request: with that, how many they can ask at
    /// most. Clients that wait for their answers also ask no more than they are answered.
    client_threads: u64,
    client_price_ns: u64,
    processors: u64,
    /// What is measured is more or less by so many thousandths.
    noise: u64,
    prng: stdx::Prng,
}

/// The prices of a server with 16 cores that takes a turn for each core, and those of servers with as many cores as
/// threads.
const SET: [u64; 5] = [7_000, 8_500, 9_500, 13_500, 18_900];
/// Of a server with requests that cost much because there are so many cores, and hardly more because there are so many
/// threads.
const SET_FLAT: [u64; 5] = [14_000, 15_000, 16_000, 17_500, 18_900];
const SET_PIPELINED: [u64; 5] = [1_700, 2_400, 2_700, 3_800, 4_800];
const GET_PIPELINED: [u64; 5] = [1_000, 1_550, 2_100, 2_900, 3_530];

impl Model {
    fn new(prices_ns: [u64; 5], client_threads: u64, client_price_ns: u64) -> Self {
        let prng = stdx::Prng::new(7);
        Self { prices_ns, client_threads, client_price_ns, processors: 16, noise: 0, prng }
    }

    fn noisy(self) -> Self {
        Self { noise: 60, ..self }
    }

    fn price_ns(&self, threads: usize) -> u64 {
        self.prices_ns[threads.ilog2() as usize]
    }

    /// Requests per second that so many threads can answer.
    fn capacity(&self, threads: usize) -> u64 {
        threads as u64 * 1_000_000_000 / self.price_ns(threads)
    }

    /// Requests per second that are answered if clients ask as fast as they can.
    fn closed(&self, threads: usize) -> u64 {
        self.capacity(threads).min(self.client_threads * 1_000_000_000 / self.client_price_ns)
    }

    /// A quarter of a second in which so many are answered in a second.
    fn quarter(&mut self, threads: usize, rate: u64) -> Load {
        let price_ns = self.price_ns(threads);
        let mut noisy = |value: u64| value * (1_000 - self.noise + self.prng.below(2 * self.noise + 1)) / 1_000;
        let (rate, price_ns) = (noisy(rate), noisy(price_ns));
        let per_thread = (rate * price_ns / 1_000_000 / threads as u64).min(1_000);
        let clients = (rate * self.client_price_ns / 1_000_000).min(self.client_threads * 1_000);
        let idle = (self.processors * 1_000).saturating_sub(per_thread * threads as u64 + clients);
        let mut all = vec![(per_thread, 0); threads];
        all.resize(16, (2, 0));
        Load { request_count: rate / 4, ..quarter(&all, idle) }
    }

    /// The number of threads in each quarter of a second in which clients ask as fast as they are answered.
    fn play_closed(&mut self, gathering: &mut Gathering, seconds: usize) -> Vec<usize> {
        let play = |_| {
            let threads = gathering.thread_count;
            let rate = self.closed(threads);
            gathering.consider(&self.quarter(threads, rate));
            threads
        };
        (0..seconds * 4).map(play).collect()
    }

    /// The same for clients that ask so many times a second, whether they are answered or not.
    fn play_open(&mut self, gathering: &mut Gathering, quarters: usize, wanted: u64, waiting: &mut u64) -> Vec<usize> {
        let play = |_| {
            let threads = gathering.thread_count;
            let asked = *waiting + wanted / 4;
            let answered = asked.min(self.capacity(threads) / 4);
            *waiting = asked - answered;
            gathering.consider(&self.quarter(threads, answered * 4));
            threads
        };
        (0..quarters).map(play).collect()
    }
}

/// How much of the time so many threads were used, in thousandths.
fn share(counts: &[usize], is_meant: impl Fn(usize) -> bool) -> usize {
    counts.iter().filter(|&&count| is_meant(count)).count() * 1_000 / counts.len()
}

fn changes(counts: &[usize]) -> usize {
    counts.windows(2).filter(|pair| pair[0] != pair[1]).count()
}

#[test]
fn a_busy_thread_gets_company_if_processors_are_idle() {
    let mut gathering = Gathering::new(8);
    let alone = |idle| quarter(&[(950, 20), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0)], idle);
    assert_eq!(after(&mut gathering, 60, &alone(300)), 1, "the clients have the other processor");
    gathering.consider(&alone(6_000));
    assert_eq!(gathering.thread_count, 1, "a moment is not enough");
    assert_eq!(after(&mut gathering, 1, &alone(6_000)), 4);
    assert_eq!(after(&mut gathering, 1, &quarter(&[(900, 0); 8], 5_000)), 8);
    assert_eq!(after(&mut gathering, 60, &quarter(&[(900, 0); 8], 5_000)), 8, "there are no more");
}

#[test]
fn threads_that_idle_are_given_up_one_half_at_a_time() {
    let mut gathering = Gathering::new(6);
    assert_eq!(after(&mut gathering, 3, &quarter(&[(950, 0); 6], 9_000)), 6);
    assert_eq!(after(&mut gathering, 2, &quarter(&[(100, 0); 6], 9_000)), 6);
    assert_eq!(after(&mut gathering, 2, &quarter(&[(100, 0); 6], 9_000)), 3);
    assert_eq!(after(&mut gathering, 20, &quarter(&[(200, 0); 6], 9_000)), 1);
    assert_eq!(after(&mut gathering, 20, &quarter(&[(700, 0), (0, 0)], 9_000)), 1, "busy is more than that");
}

#[test]
fn threads_that_wait_for_processors_are_given_up_and_rarely_tried_again() {
    let mut gathering = Gathering::new(2);
    let busy = quarter(&[(950, 0), (0, 0)], 1_000);
    let crowded = quarter(&[(650, 350), (650, 350)], 0);
    let mut counts = Vec::new();
    for _ in 0..240 * 4 {
        let load = if gathering.thread_count == 1 { &busy } else { &crowded };
        counts.push(gathering.consider(load));
    }
    assert!((4..=20).contains(&changes(&counts)), "{} changes in four minutes", changes(&counts));
    // Two threads that fill two processors are no crowd.
    let mut gathering = Gathering::new(2);
    after(&mut gathering, 1, &busy);
    assert_eq!(after(&mut gathering, 60, &quarter(&[(900, 80), (900, 80)], 50)), 2);
}

#[test]
fn clients_that_are_the_limit_are_served_by_the_fewest_threads_that_give_them_what_they_can_take() {
    // Eight threads of clients, which take all of their time for 400,000 requests a second, or 1.5 million pipelined.
    for (prices_ns, client_price_ns, enough) in [
        (SET, 20_000, 4),
        (SET_PIPELINED, 5_300, 4),
        (GET_PIPELINED, 4_500, 4),
        (SET, 65_000, 1),
        (SET_FLAT, 20_000, 8),
    ] {
        for noise in [false, true] {
            let mut model = Model::new(prices_ns, 8, client_price_ns);
            if noise {
                model = model.noisy();
            }
            let mut gathering = Gathering::new(16);
            let begun = model.play_closed(&mut gathering, 10);
            assert!(begun.iter().all(|&count| count <= 2 * enough), "one step beyond is tried: {begun:?}");
            let counts = model.play_closed(&mut gathering, 240);
            let meant = share(&counts, |count| count == enough);
            assert!(meant >= 930, "{meant} of 1,000 at {enough} of {prices_ns:?}, noise {noise}");
        }
    }
}

#[test]
fn threads_that_are_all_needed_stay() {
    // Clients on other machines that ask for all that a server can answer.
    for noise in [false, true] {
        let mut model = Model::new(SET_PIPELINED, 1_000, 1);
        if noise {
            model = model.noisy();
        }
        let mut gathering = Gathering::new(16);
        let begun = model.play_closed(&mut gathering, 6);
        assert_eq!(begun.last(), Some(&16), "{begun:?}");
        let counts = model.play_closed(&mut gathering, 240);
        assert_eq!(share(&counts, |count| count == 16), 1_000, "noise {noise}");
    }
}

#[test]
fn more_threads_than_clients_can_use_are_given_up_whatever_they_were_for() {
    // All 16 were needed, then the clients change: what they ask now keeps 16 threads half busy, and four suffice.
    let mut model = Model::new(SET, 1_000, 1).noisy();
    let mut gathering = Gathering::new(16);
    assert_eq!(model.play_closed(&mut gathering, 10).last(), Some(&16));
    let mut model = Model::new(SET, 8, 20_000).noisy();
    let fallen = model.play_closed(&mut gathering, 20);
    assert!(share(&fallen[40..], |count| count == 4) >= 600, "{fallen:?}");
    let counts = model.play_closed(&mut gathering, 120);
    assert!(share(&counts, |count| count == 4) >= 900, "{counts:?}");
    // And when hardly anybody asks any more, one.
    let mut waiting = 0;
    assert_eq!(model.play_open(&mut gathering, 80, 20_000, &mut waiting).last(), Some(&1));
}

#[test]
fn clients_that_ask_without_waiting_get_the_threads_that_keep_up() {
    for (wanted, least) in [(100_000, 1), (150_000, 2), (220_000, 2), (350_000, 4), (700_000, 16)] {
        let mut model = Model::new(SET, 1_000, 1).noisy();
        let mut gathering = Gathering::new(16);
        let mut waiting = 0;
        model.play_open(&mut gathering, 400, wanted, &mut waiting);
        let mut waiting_max = 0;
        for _ in 0..120 {
            model.play_open(&mut gathering, 4, wanted, &mut waiting);
            waiting_max = waiting_max.max(waiting);
        }
        assert!(waiting_max < wanted * 5, "{waiting_max} wait of {wanted} that are asked in a second");
        let counts = model.play_open(&mut gathering, 1_000, wanted, &mut waiting);
        let meant = share(&counts, |count| (least..=2 * least).contains(&count));
        assert!(meant >= 900, "{meant} of 1,000 at {least} threads or twice that, for {wanted} requests a second");
    }
}

#[test]
fn bursts_and_load_that_comes_and_goes_bring_few_changes() {
    // Half a second of all that can be answered in each second and a half.
    let mut model = Model::new(SET, 8, 20_000).noisy();
    let mut gathering = Gathering::new(16);
    let mut counts = Vec::new();
    let mut waiting = 0;
    for _ in 0..160 {
        counts.extend(model.play_closed(&mut gathering, 1).into_iter().take(2));
        counts.extend(model.play_open(&mut gathering, 4, 30_000, &mut waiting));
    }
    assert!(changes(&counts) <= 80, "{} changes in four minutes", changes(&counts));
    // A minute of work, a minute of rest, and each time what is needed is there within seconds.
    let mut gathering = Gathering::new(16);
    for _ in 0..5 {
        let counts = model.play_closed(&mut gathering, 60);
        assert!(share(&counts, |count| count == 4) >= 750, "{counts:?}");
        assert_eq!(model.play_open(&mut gathering, 240, 10_000, &mut waiting).last(), Some(&1));
    }
}

#[test]
fn after_a_lull_what_was_needed_is_there_at_once() {
    // A request takes the same with any number of threads, so nothing tells the lull from the time before but the rate.
    let mut model = Model::new([10_000; 5], 1_000, 1);
    let mut gathering = Gathering::new(16);
    let mut waiting = 0;
    for lull_quarters in [8, 20, 48, 60, 100] {
        let counts = model.play_closed(&mut gathering, 8);
        assert_eq!(counts[20..], [16; 12], "{counts:?}");
        let counts = model.play_open(&mut gathering, lull_quarters, 20_000, &mut waiting);
        assert!(lull_quarters < 60 || counts.last() == Some(&1), "{counts:?}");
    }
}

#[test]
fn a_number_that_is_forced_now_and_then_still_falls() {
    let mut gathering = Gathering::new(8);
    assert_eq!(after(&mut gathering, 3, &quarter(&[(900, 0); 8], 5_000)), 8);
    // A long command every four and a half seconds gives each core its own thread for half of that time.
    let light = quarter(&[(50, 0); 8], 9_000);
    let forced = Load { is_forced: true, ..light.clone() };
    let mut play = |seconds: usize| {
        for quarter in 0..seconds * 4 {
            gathering.consider(if quarter % 18 < 9 { &light } else { &forced });
        }
        gathering.thread_count
    };
    assert_eq!(play(60), 1);
    // A spread that is interrupted while it is on trial is none.
    let mut gathering = Gathering::new(4);
    let busy = Load { request_count: 25_000, ..quarter(&[(980, 0), (0, 0), (0, 0), (0, 0)], 4_000) };
    (0..2).for_each(|_| _ = gathering.consider(&busy));
    assert_eq!(gathering.thread_count, 2, "it is tried");
    assert_eq!(gathering.consider(&Load { is_forced: true, ..busy }), 1);
}

#[test]
fn other_requests_are_not_judged_by_those_before() {
    let mut gathering = Gathering::new(16);
    // One thread is enough for what these clients ask, and they have found that out several times.
    let mut model = Model::new(SET, 8, 65_000);
    let counts = model.play_closed(&mut gathering, 120);
    assert_eq!(counts.last(), Some(&1));
    // Now they ask for something for which threads are needed: at once, not when a rest of a minute is over.
    let mut model = Model::new(SET_PIPELINED, 1_000, 1);
    let counts = model.play_closed(&mut gathering, 8);
    assert_eq!(counts.last(), Some(&16), "{counts:?}");
    // In the middle of a trial clients begin to ask for what takes ten times as long: that says nothing of threads.
    let mut gathering = Gathering::new(2);
    let before = Load { request_count: 25_000, ..quarter(&[(980, 0), (0, 0)], 4_000) };
    let different = Load { request_count: 3_000, ..quarter(&[(980, 0), (980, 0)], 4_000) };
    assert_eq!(after(&mut gathering, 1, &before), 2);
    assert_eq!(after(&mut gathering, 20, &different), 2);
}

#[test]
fn a_number_that_was_forced_teaches_nothing() {
    let mut model = Model::new(SET, 8, 20_000);
    let mut gathering = Gathering::new(16);
    model.play_closed(&mut gathering, 30);
    let count = gathering.thread_count;
    // Something takes long for a minute, or somebody tries all threads.
    for _ in 0..240 {
        let rate = model.closed(16);
        assert_eq!(gathering.consider(&Load { is_forced: true, ..model.quarter(16, rate) }), count);
    }
}

#[test]
fn where_the_kernel_counts_nothing_the_threads_decide() {
    let mut gathering = Gathering::new(2);
    let busy = Load { idle_us: None, ..quarter(&[(950, 20), (0, 0)], 0) };
    assert_eq!(after(&mut gathering, 1, &busy), 2);
    assert_eq!(Gathering::new(4).consider(&Load::default()), 4);
}

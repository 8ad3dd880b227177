//! Small fleets: enough to see that cores take the time that is charged, and that a run repeats itself.

use simulation::work::costs::{Costs, Surroundings};
use simulation::work::{Found, Shape, Trial, Workload, find};

const TRIAL: Trial = Trial {
    workloads: Vec::new(),
    clients_per_core: 8,
    pipeline: 1,
    is_aware: false,
    value_bytes: 128,
    milliseconds: 5,
    load_percent: 50,
};

fn shape(nodes: usize) -> Shape {
    Shape { nodes, cores: 2, groups: 2 * nodes as u32, replicas: 3, is_durable: false, seed: 1 }
}

fn found(shape: &Shape, costs: &Costs, workloads: &[Workload]) -> (Vec<Found>, u64) {
    let mut rows = Vec::new();
    let trial = Trial { workloads: workloads.to_vec(), ..TRIAL };
    let outcome = find(shape, &trial, (costs, &Surroundings::RACK), |row| rows.push(row.clone()));
    (rows, outcome.expect("nobody is told an error").1)
}

#[test]
fn cores_that_saturate_do_as_much_as_their_costs_allow() {
    // Everything but requests is free.
    let costs = Costs { requests: 10_000, ..Costs::NONE };
    let trial = Trial { workloads: vec![Workload::Get], clients_per_core: 64, ..TRIAL };
    let mut rows = Vec::new();
    find(&shape(1), &trial, (&costs, &Surroundings::RACK), |row| rows.push(row.clone())).expect("no errors");
    let full = &rows[0].full;
    let busy: u64 = full.busy.iter().sum();
    let priced = full.counts.requests * 10_000;
    assert!(busy.abs_diff(priced) * 10 < priced, "{busy} ns at work, for {priced} ns of requests");
    let (busiest, median) = full.busy_thousandths();
    assert!(busiest <= 1_000 && median > 850, "{busiest} {median}");
    let rate = full.rate();
    assert!((170_000..=210_000).contains(&rate), "two cores, 10 us for each request: {rate} a second");
    let half = rows[0].part.rate();
    assert!(half.abs_diff(rate / 2) * 5 < rate / 2, "half of that at times of their own: {half} of {rate}");
    assert!(rows[0].part.latency_us(500) < full.latency_us(500), "who does not saturate waits less");
}

#[test]
fn three_nodes_carry_writes_reads_and_pairs_and_a_run_repeats_itself() {
    let workloads = [Workload::Set, Workload::Get, Workload::Pair];
    let (rows, digest) = found(&shape(3), &Costs::SUPPOSED, &workloads);
    let [set, get, pair] = &rows[..] else { panic!("three rows") };
    let (set, get, pair) = (&set.full, &get.full, &pair.full);
    assert!(get.rate() > set.rate() && set.rate() > pair.rate(), "{} {} {}", get.rate(), set.rate(), pair.rate());
    // Each write is logged by three replicas, and no read by any.
    let applied = set.hundredths_per_operation(set.counts.items);
    assert!((280..=320).contains(&applied), "{applied}");
    assert!(get.hundredths_per_operation(get.counts.items) < 5);
    // Two of three groups are led elsewhere: a request goes there and an answer comes back.
    let messages = get.hundredths_per_operation(get.counts.messages_out);
    assert!((120..=150).contains(&messages), "{messages}");
    assert!(pair.counts.transactions > 0 && pair.counts.taken >= 6 * pair.answered * 9 / 10);
    assert_eq!(found(&shape(3), &Costs::SUPPOSED, &workloads).1, digest, "the same seed, another run");
}

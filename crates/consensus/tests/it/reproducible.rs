//! The library draws election time-outs from the thread's generator; here the seed alone must decide.

use stdx::Prng;

use crate::cluster::Cluster;

/// Five replicas with loss, crashes and proposals, for a while; everything said and applied.
fn story(seed: u64) -> String {
    let mut cluster = Cluster::new(4, 1, seed);
    let mut prng = Prng::new(seed);
    for step in 0..2_000 {
        let id = 1 + prng.below(5);
        match prng.below(40) {
            0 => {
                cluster.crash(id, prng.chance(1, 2));
                cluster.start(id, false);
            }
            1..=3 => cluster.in_flight.retain(|_| !prng.chance(1, 4)),
            4..=8 if cluster.replica(id).is_leader() => cluster.propose(id, &format!("{step}")),
            9 => cluster.read(id, step),
            _ => (1..=5).for_each(|id| cluster.tick(id, 1)),
        }
        cluster.deliver(true, |_| true);
    }
    cluster.status();
    cluster.transcript
}

#[test]
fn the_same_seed_tells_the_same_story() {
    for seed in 1..=8 {
        let story_once = story(seed);
        assert!(story_once.contains("becomes Leader") && story_once.contains("applies"), "nothing happened: {seed}");
        assert_eq!(story_once, story(seed));
    }
    assert_ne!(story(1), story(2));
}

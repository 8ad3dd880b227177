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

/// A net that loses, doubles and reorders, with slow disks: every replica must apply the same, in the same order. (The
/// library's own joining of append messages does not survive this, which is why it is off.)
#[test]
fn storms_do_not_part_the_replicas() {
    for seed in 0..60 {
        let mut prng = Prng::new(seed);
        let mut cluster = Cluster::new(3, 0, seed);
        cluster.settles_late = true;
        (1..=3).for_each(|id| cluster.tick(id, 10));
        for step in 0..1_500 {
            let id = 1 + prng.below(3);
            match prng.below(12) {
                0..=3 if cluster.replica(id).is_leader() => cluster.propose(id, &format!("{step}")),
                4 => cluster.set_syncs(id, prng.chance(1, 2)),
                5 => cluster.persist(id),
                6 => (1..=3).for_each(|id| cluster.tick(id, 1)),
                _ => {}
            }
            let copies: Vec<_> = cluster.in_flight.iter().filter(|_| prng.chance(1, 30)).cloned().collect();
            cluster.in_flight.extend(copies);
            let count = cluster.in_flight.len();
            for at in (1..count).rev() {
                if prng.chance(1, 3) {
                    cluster.in_flight.swap(at, prng.below(at as u64 + 1) as usize);
                }
            }
            let chosen = prng.draw();
            let mut position = 0;
            cluster.deliver(false, |_| {
                position += 1;
                chosen >> (position % 64) & 1 == 1
            });
            cluster.in_flight.retain(|_| !prng.chance(1, 40));
        }
        let mut longest: Vec<String> = Vec::new();
        for node in cluster.nodes.values() {
            let shared = longest.len().min(node.applied.len());
            assert_eq!(longest[..shared], node.applied[..shared], "seed {seed}");
            if node.applied.len() > longest.len() {
                longest.clone_from(&node.applied);
            }
        }
        assert!(longest.len() > 20, "seed {seed}: hardly anything happened");
    }
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

//! kill -9 at a random moment under load, restart, audit: what was acknowledged is there, as far as the policy
//! promises.
//!
//! A plain test run makes a few cycles; `cargo xtask crash --cycles 200 --policy always` makes as many as asked for.

use std::thread;
use std::time::{Duration, Instant};

use stdx::Prng;

use crate::harness::{
    Audit, Folder, Load, LoadOptions, Policy, Server, ServerOptions, new_ledgers, number_from_environment, say,
};

/// What `everysec` may lose; the manual says so. A killed process under `no` keeps what the system already has, which
/// is handed over far more often than that.
const WINDOW: Duration = Duration::from_secs(1);

const CLIENTS: u64 = 8;

#[test]
fn kill_nine_with_always_loses_nothing_acknowledged() {
    kill_nine(Policy::Always, 6);
}

#[test]
fn kill_nine_with_everysec_loses_at_most_its_window() {
    kill_nine(Policy::Everysec, 4);
}

#[test]
fn kill_nine_with_no_loses_at_most_what_the_system_had_not_been_given() {
    kill_nine(Policy::No, 4);
}

fn kill_nine(policy: Policy, cycles_default: u64) {
    let cycles = number_from_environment("HOLDFAST_CRASH_CYCLES", cycles_default);
    let seed = number_from_environment("HOLDFAST_CRASH_SEED", 1);
    let mut prng = Prng::new(seed);
    let folder = Folder::new();
    let options = ServerOptions::new(&folder.path().join("data")).policy(policy);
    std::fs::create_dir_all(&options.data_folder).expect("a data folder");
    let mut ledgers = new_ledgers(CLIENTS);
    let mut server = Server::start(&options);
    let (mut acknowledged, mut lost, mut lost_before, mut restart_max) = (0, 0, Duration::ZERO, Duration::ZERO);
    for cycle in 1..=cycles {
        let life = Duration::from_millis(match policy {
            Policy::Always => 30 + prng.draw() % 600,
            // Longer than the window, or nothing would be promised.
            Policy::Everysec | Policy::No => 200 + prng.draw() % 2_300,
        });
        let load = LoadOptions { port: options.port, pipeline_max: 1 + prng.draw() % 24, seed: prng.draw() };
        let load = Load::start(&load, ledgers);
        let checkpoint = prng.draw().is_multiple_of(2);
        if checkpoint {
            thread::sleep(life / 2);
            server.client().call(&["BGSAVE"]);
            thread::sleep(life / 2);
        } else {
            thread::sleep(life);
        }
        let crash = Instant::now();
        server.kill();
        ledgers = load.join();
        let restarted = Instant::now();
        server = Server::start(&options);
        restart_max = restart_max.max(restarted.elapsed());
        let horizon = if policy == Policy::Always { Instant::now() } else { crash - WINDOW };
        let mut audit = Audit::default();
        let mut client = server.client();
        for ledger in &mut ledgers {
            assert_eq!(ledger.refusal, None, "a write was refused in cycle {cycle}");
            ledger.audit(&mut client, horizon, crash, &mut audit);
        }
        let name = policy.name();
        say(&format!(
            "{name} cycle {cycle}/{cycles}: lived {:>4} ms, acknowledged {:>6}, lost {}{}",
            life.as_millis(),
            audit.acknowledged,
            audit.lost,
            if checkpoint { ", with a checkpoint" } else { "" },
        ));
        assert!(
            audit.violations.is_empty(),
            "cycle {cycle} of seed {seed}:\n{}\nserver log:\n{}",
            audit.violations.join("\n"),
            server.log()
        );
        acknowledged += audit.acknowledged;
        lost += audit.lost;
        lost_before = lost_before.max(audit.lost_before);
    }
    assert!(acknowledged > cycles * 10, "next to nothing was written: {acknowledged}");
    say(&format!(
        "{}: {cycles} kills, {acknowledged} writes acknowledged, {lost} lost, the oldest {} ms before its crash; \
         longest restart {} ms; seed {seed}",
        policy.name(),
        lost_before.as_millis(),
        restart_max.as_millis()
    ));
}

//! Accidents of the disk: power cuts, no room, flushes that fail or take long. The promise is the same as for a killed
//! process: what was acknowledged is there, and what cannot be kept is refused, in words.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use resp::Frame;
use stdx::Prng;

use crate::harness::{
    Audit, Client, CrashDisk, DiskFaults, Folder, Ledger, Load, LoadOptions, Policy, Server, ServerOptions,
    new_ledgers, number_from_environment, say, wait_for,
};

const MEBIBYTE: u64 = 1 << 20;

/// States that are acknowledged at least before something happens.
const SOME: u64 = 100;

#[test]
fn a_power_cut_with_always_loses_nothing_acknowledged() {
    cut_power(Policy::Always, 3);
}

#[test]
fn a_power_cut_with_everysec_loses_at_most_its_window() {
    cut_power(Policy::Everysec, 2);
}

#[test]
fn a_power_cut_with_no_leaves_a_state_that_once_was() {
    cut_power(Policy::No, 2);
}

/// A server that answers before it flushes, and connections that ask it not to.
#[test]
fn a_power_cut_with_everysec_loses_nothing_that_was_acknowledged_with_disk() {
    let mut prng = Prng::new(number_from_environment("HOLDFAST_CRASH_SEED", 1));
    let Some(mut disk) = CrashDisk::try_make(640 * MEBIBYTE) else { return };
    for cycle in 1..=2 {
        let mut options = ServerOptions::new(&disk.path().join("data")).policy(Policy::Everysec);
        std::fs::create_dir_all(&options.data_folder).expect("a data folder");
        let server = Server::start(&options);
        // Others do not wait for the disk, and fill the entries between.
        let load = LoadOptions { port: options.port, pipeline_max: 16, seed: prng.draw() };
        let load = Load::start(&load, new_ledgers(4));
        let port = options.port;
        let strict = |name: &'static str| {
            let count = Arc::new(AtomicI64::new(0));
            let counted = Arc::clone(&count);
            let counting = thread::spawn(move || {
                let mut client = Client::try_connect(port).expect("a connection");
                assert_eq!(client.show("CLIENT DURABILITY disk"), "OK");
                while let Some(Frame::Integer(count)) = client.try_call(&["INCR", name]) {
                    counted.store(count, Ordering::Relaxed);
                }
            });
            (name, count, counting)
        };
        let clients = ["strict:one", "strict:two"].map(strict);
        thread::sleep(Duration::from_millis(500 + prng.draw() % 1_500));
        load.wait_for(SOME);
        wait_for("both are answered", || clients.iter().all(|(_, count, _)| count.load(Ordering::Relaxed) > 5));
        server.signal("STOP");
        let cut = disk.cut_power();
        server.kill();
        load.join();
        let data_folder = std::mem::replace(&mut options.data_folder, cut.join("data"));
        let survivor = Server::start(&options);
        for (name, count, counting) in clients {
            counting.join().expect("it does not panic");
            let acknowledged = count.load(Ordering::Relaxed);
            let reply = survivor.client().call(&["GET", name]);
            let kept = reply.as_bytes().and_then(|bytes| std::str::from_utf8(bytes).ok()?.parse::<i64>().ok());
            say(&format!("cycle {cycle}: {name} acknowledged {acknowledged}, kept {kept:?}"));
            // One more may have been on its way.
            assert!(
                kept.is_some_and(|kept| kept == acknowledged || kept == acknowledged + 1),
                "{acknowledged}, {kept:?}"
            );
        }
        survivor.kill();
        disk.forget_cut(&cut);
        std::fs::remove_dir_all(&data_folder).expect("the old data goes");
    }
}

/// Waits until what was acknowledged up to now is on disk under `everysec`, and answers up to when that was: a flush
/// has begun since, and is done. How long that takes is a matter of the disk.
fn wait_for_flush(client: &mut Client) -> Instant {
    let begun = Instant::now();
    // Figures may be a little old, and one flush may have been under way.
    let before = figure(client, "log_syncs");
    wait_for("flushes come by themselves", || figure(client, "log_syncs") >= before + 3);
    begun
}

/// A figure of the log.
fn figure(client: &mut Client, name: &str) -> u64 {
    let info = client.call(&["INFO", "persistence"]);
    let text = String::from_utf8_lossy(info.as_bytes().expect("a text")).into_owned();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect("a figure");
    value.parse().expect("a number")
}

fn cut_power(policy: Policy, cycles_default: u64) {
    let cycles = number_from_environment("HOLDFAST_CRASH_CYCLES", cycles_default);
    let mut prng = Prng::new(number_from_environment("HOLDFAST_CRASH_SEED", 1));
    let Some(mut disk) = CrashDisk::try_make(640 * MEBIBYTE) else { return };
    for cycle in 1..=cycles {
        let mut options = ServerOptions::new(&disk.path().join("data")).policy(policy);
        std::fs::create_dir_all(&options.data_folder).expect("a data folder");
        let server = Server::start(&options);
        let seed = prng.draw();
        let load = Load::start(&LoadOptions { port: options.port, pipeline_max: 16, seed }, new_ledgers(8));
        let life = Duration::from_millis(match policy {
            Policy::Always | Policy::Everysec => 100 + prng.draw() % 900,
            Policy::No => 1_000 + prng.draw() % 2_500,
        });
        thread::sleep(life);
        load.wait_for(SOME);
        let flushed = if policy == Policy::Everysec { wait_for_flush(&mut server.client()) } else { Instant::now() };
        if prng.draw().is_multiple_of(2) {
            server.client().call(&["BGSAVE"]);
            thread::sleep(Duration::from_millis(prng.draw() % 300));
        }
        server.signal("STOP");
        let crash = Instant::now();
        let cut = disk.cut_power();
        server.kill();
        let mut ledgers = load.join();

        let data_folder = std::mem::replace(&mut options.data_folder, cut.join("data"));
        let survivor = Server::start(&options);
        let horizon = match policy {
            Policy::Always => Instant::now(),
            Policy::Everysec => flushed,
            // Nothing is promised, but what is there must be what once was asked for.
            Policy::No => crash - Duration::from_secs(3_600),
        };
        let audit = audit_all(&survivor, &mut ledgers, horizon, crash);
        say(&format!(
            "power cut {cycle}/{cycles} with {}: {} acknowledged, {} lost, the oldest {} ms before",
            policy.name(),
            audit.acknowledged,
            audit.lost,
            audit.lost_before.as_millis()
        ));
        assert_kept(&audit, &survivor);
        survivor.kill();
        disk.forget_cut(&cut);
        std::fs::remove_dir_all(&data_folder).expect("the old data goes");
    }
}

#[test]
fn a_full_disk_refuses_writes_serves_reads_and_loses_nothing() {
    let Some(disk) = CrashDisk::try_make(512 * MEBIBYTE) else { return };
    let options = ServerOptions::new(&disk.path().join("data"));
    std::fs::create_dir_all(&options.data_folder).expect("a data folder");
    let server = Server::start(&options);
    let mut ledgers = load_for(&server, Duration::from_millis(300), new_ledgers(4), 1);
    disk.fill();

    let mut client = server.client();
    client.call(&["SET", "before", "kept"]);
    let value = vec![b'x'; 256 * 1024];
    let mut written = 0;
    let refusal = loop {
        match client.call(&[b"SET".as_slice(), format!("filler:{written}").as_bytes(), &value]) {
            Frame::Error(text) => break String::from_utf8_lossy(&text).into_owned(),
            _ => written += 1,
        }
        assert!(written < 4_000, "a gigabyte was written to a disk of half of that");
    };
    say(&format!("full after {written} values of 256 KiB: {refusal}"));
    let words = refusal.to_lowercase();
    assert!(words.contains("disk") || words.contains("space") || words.contains("room"), "unclear: {refusal}");
    assert_eq!(client.show("GET before"), "\"kept\"", "reads go on");
    assert_eq!(client.show("EXISTS filler:0"), "(integer) 1");
    let refused = format!("EXISTS filler:{written}");
    assert_eq!(client.show(&refused), "(integer) 0", "what was refused is not there");
    let log = server.log().to_lowercase();
    assert!(log.contains("disk") || log.contains("space"), "the operator is not told:\n{log}");

    disk.drain();
    wait_for_writes(&mut client);
    assert_eq!(client.show(&refused), "(integer) 0", "what was refused does not come back");
    ledgers = load_for(&server, Duration::from_millis(300), ledgers, 2);
    let crash = Instant::now();
    server.kill();
    let survivor = Server::start(&options);
    let audit = audit_all(&survivor, &mut ledgers, Instant::now(), crash);
    assert_kept(&audit, &survivor);
    assert_eq!(survivor.client().show(&format!("EXISTS filler:{}", written - 1)), "(integer) 1");
    assert_eq!(survivor.client().show(&refused), "(integer) 0");
}

#[test]
fn a_killed_server_starts_on_a_full_disk_and_serves_reads() {
    let Some(disk) = CrashDisk::try_make(512 * MEBIBYTE) else { return };
    let options = ServerOptions::new(&disk.path().join("data"));
    std::fs::create_dir_all(&options.data_folder).expect("a data folder");
    let server = Server::start(&options);
    let mut ledgers = load_for(&server, Duration::from_millis(300), new_ledgers(4), 3);
    server.kill();
    disk.fill();
    let crash = Instant::now();
    let survivor = Server::start(&options);
    let audit = audit_all(&survivor, &mut ledgers, Instant::now(), crash);
    assert_kept(&audit, &survivor);
    disk.drain();
    wait_for_writes(&mut survivor.client());
}

#[test]
fn a_log_that_cannot_grow_refuses_writes_and_takes_them_again_when_it_can() {
    let folder = Folder::new();
    let (options, faults) = options_with_faults(&folder, Policy::Always);
    let server = Server::start(&options);
    let mut ledgers = load_for(&server, Duration::from_millis(200), new_ledgers(4), 4);
    faults.set("create fail ENOSPC");
    let mut client = server.client();
    say(&format!("refused: {}", first_refusal(&mut client)));
    assert_eq!(client.show("GET nothing"), "(nil)", "reads go on");
    faults.clear();
    wait_for_writes(&mut client);
    ledgers = load_for(&server, Duration::from_millis(200), ledgers, 5);
    let crash = Instant::now();
    server.kill();
    let survivor = Server::start(&options);
    let audit = audit_all(&survivor, &mut ledgers, Instant::now(), crash);
    assert_kept(&audit, &survivor);
}

#[test]
fn a_server_whose_log_cannot_grow_ends_when_it_is_told_to() {
    let folder = Folder::new();
    let (options, faults) = options_with_faults(&folder, Policy::Everysec);
    let server = Server::start(&options);
    let mut client = server.client();
    client.call(&["SET", "before", "kept"]);
    faults.set("create fail ENOSPC");
    say(&format!("refused: {}", first_refusal(&mut client)));
    let exit = server.stop();
    say(&format!("ended with {}", exit.status));
    faults.clear();
    let survivor = Server::start(&options);
    assert_eq!(survivor.client().show("GET before"), "\"kept\"");
}

/// After a flush has failed nobody can know what the disk holds, so the server ends instead of guessing: the pages that
/// could not be written may have been dropped, and a second flush would say that all is well (the fsync error of
/// PostgreSQL, 2018).
#[test]
fn a_failed_flush_ends_the_server_before_it_acknowledges() {
    fail_for_good("sync fail EIO", "nput/output error");
}

#[test]
fn a_failed_write_ends_the_server_before_it_acknowledges() {
    fail_for_good("write fail EIO", "nput/output error");
    // The log's space was written once already, so there is no reason to hope that a second try finds room.
    fail_for_good("write fail ENOSPC", "No space left on device");
}

fn fail_for_good(rule: &str, words: &str) {
    let folder = Folder::new();
    let (options, faults) = options_with_faults(&folder, Policy::Always);
    let mut server = Server::start(&options);
    let load = Load::start(&LoadOptions { port: options.port, pipeline_max: 8, seed: 6 }, new_ledgers(4));
    load.wait_for(SOME);
    faults.set(rule);
    let exit = server.wait();
    let crash = Instant::now();
    let mut ledgers = load.join();
    assert!(!exit.status.success(), "ended with {}", exit.status);
    // Which of the two comes first is chance: a segment of the log, or the mark of how far it is durable.
    let is_named = exit.log.contains("log-") || exit.log.contains("cannot write to tail");
    assert!(exit.log.contains(words) && is_named, "the operator is not told:\n{}", exit.log);
    faults.clear();
    let survivor = Server::start(&options);
    let audit = audit_all(&survivor, &mut ledgers, Instant::now(), crash);
    assert_kept(&audit, &survivor);
}

#[test]
fn a_torn_write_is_not_acknowledged_and_not_seen_later() {
    let folder = Folder::new();
    let (options, faults) = options_with_faults(&folder, Policy::Always);
    let mut server = Server::start(&options);
    let load = Load::start(&LoadOptions { port: options.port, pipeline_max: 8, seed: 7 }, new_ledgers(4));
    load.wait_for(SOME);
    faults.set("write torn EIO");
    wait_for("it finds out", || !server.is_running() || server.log().to_lowercase().contains("error"));
    // Whether it ends by itself or goes on refusing is the server's choice; acknowledging is not.
    let crash = Instant::now();
    if server.is_running() {
        server.signal("KILL");
    }
    let exit = server.wait();
    let mut ledgers = load.join();
    faults.clear();
    assert!(exit.log.to_lowercase().contains("error"), "the operator is not told:\n{}", exit.log);
    let survivor = Server::start(&options);
    let audit = audit_all(&survivor, &mut ledgers, Instant::now(), crash);
    assert_kept(&audit, &survivor);
}

#[test]
fn a_slow_flush_delays_writes_under_always_but_no_reads() {
    let folder = Folder::new();
    let (options, faults) = options_with_faults(&folder, Policy::Always);
    let server = Server::start(&options);
    server.client().call(&["SET", "city", "Lisbon"]);
    let mut reader = server.client();
    // Reads are answered while the write is under way. On a busy machine so few are that a slower flush is needed.
    for slow_ms in [700, 3_000, 20_000] {
        faults.set(&format!("sync slow {slow_ms}"));
        let mut writer = server.client();
        let asked = Instant::now();
        let waiting = thread::spawn(move || {
            assert_eq!(writer.show("SET city Porto"), "OK");
            asked.elapsed()
        });
        // When all of these have been answered, the write has begun long ago.
        let mut count = 0;
        while !waiting.is_finished() {
            reader.call(&["GET", "city"]);
            count += 1;
            thread::sleep(Duration::from_millis(2));
        }
        let took = waiting.join().expect("it is answered");
        assert!(took >= Duration::from_millis(slow_ms - 50), "acknowledged before the flush: {took:?}");
        say(&format!("{count} reads were answered during a write of {took:?}"));
        // If reads waited for the flush as well, it would be one or two.
        if count > 20 {
            assert_eq!(reader.show("GET city"), "\"Porto\"");
            return;
        }
    }
    panic!("reads wait for somebody else's flush");
}

#[test]
fn a_slow_flush_delays_nothing_under_everysec() {
    let folder = Folder::new();
    let (options, faults) = options_with_faults(&folder, Policy::Everysec);
    let server = Server::start(&options);
    let mut client = server.client();
    client.call(&["SET", "city", "Lisbon"]);
    faults.set("sync slow 700");
    let before = figure(&mut client, "log_syncs");
    let mut count = 0;
    let mut syncs = 0;
    wait_for("some flushes", || {
        client.call(&["SET", "city", "Porto"]);
        count += 1;
        syncs = figure(&mut client, "log_syncs") - before;
        syncs >= 3
    });
    // If writes waited for flushes, there would be a flush for each.
    say(&format!("{count} writes were answered during {syncs} flushes"));
    assert!(count > 5 * syncs, "writes wait for flushes that they need not wait for: {count} in {syncs} flushes");
}

/// While nobody leads yet, nobody knows what is kept of changes.
#[test]
fn who_asks_for_changes_waits_until_a_slow_server_has_begun() {
    let folder = Folder::new();
    let (options, faults) = options_with_faults(&folder, Policy::Everysec);
    let options = options.extra(&["--cores", "2", "--site-backlog-size", "64mb"]);
    for beginning in ["new", "again"] {
        faults.set("sync slow 400");
        let server = Server::start(&options);
        let told = server.client().call(&["CHANGES", "READ", "0"]);
        assert_eq!(told.elements().map(<[_]>::len), Some(2), "{beginning}: {told}");
        server.stop();
    }
}

fn options_with_faults(folder: &Folder, policy: Policy) -> (ServerOptions, DiskFaults) {
    let mut options = ServerOptions::new(&folder.path().join("data")).policy(policy);
    std::fs::create_dir_all(&options.data_folder).expect("a data folder");
    let faults = DiskFaults::arrange(folder, &mut options);
    (options, faults)
}

/// Writes for a while, and stops writing.
fn load_for(server: &Server, time: Duration, ledgers: Vec<Ledger>, seed: u64) -> Vec<Ledger> {
    let load = Load::start(&LoadOptions { port: server.port(), pipeline_max: 8, seed }, ledgers);
    thread::sleep(time);
    load.wait_for(SOME);
    load.stop()
}

fn first_refusal(client: &mut Client) -> String {
    let value = vec![b'x'; 64 * 1024];
    for number in 0..4_000 {
        if let Frame::Error(text) = client.call(&[b"SET".as_slice(), format!("f:{number}").as_bytes(), &value]) {
            return String::from_utf8_lossy(&text).into_owned();
        }
    }
    panic!("256 MiB were acknowledged although no write reaches the disk");
}

fn wait_for_writes(client: &mut Client) {
    let since = Instant::now();
    wait_for("writes are taken again", || !client.call(&["SET", "after", "room"]).is_error());
    say(&format!("writes again {} ms after there was room", since.elapsed().as_millis()));
}

fn audit_all(server: &Server, ledgers: &mut [Ledger], horizon: Instant, crash: Instant) -> Audit {
    let mut audit = Audit::default();
    let mut client = server.client();
    for ledger in ledgers {
        ledger.audit(&mut client, horizon, crash, &mut audit);
    }
    audit
}

#[track_caller]
fn assert_kept(audit: &Audit, server: &Server) {
    assert!(audit.acknowledged > 0, "nothing was written");
    assert!(audit.violations.is_empty(), "{}\nserver log:\n{}", audit.violations.join("\n"), server.log());
}

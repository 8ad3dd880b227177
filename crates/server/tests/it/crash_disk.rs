//! Accidents of the disk: power cuts, no room, flushes that fail or take long. The promise is the same as for a killed
//! process: what was acknowledged is there, and what cannot be kept is refused, in words.

use std::thread;
use std::time::{Duration, Instant};

use resp::Frame;
use stdx::Prng;

use crate::harness::{
    Audit, Client, CrashDisk, DiskFaults, Folder, Ledger, Load, LoadOptions, Policy, Server, ServerOptions,
    new_ledgers, number_from_environment, say,
};

const MEBIBYTE: u64 = 1 << 20;

/// What `everysec` may lose when the power goes, beside the time of flushes: a second, and what a busy machine adds.
const POWER_WINDOW: Duration = Duration::from_millis(1_500);

/// How soon a server must take writes again once the disk has room.
const RECOVERY_LIMIT: Duration = Duration::from_secs(15);

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
            thread::spawn(move || {
                let mut client = Client::try_connect(port).expect("a connection");
                assert_eq!(client.show("CLIENT DURABILITY disk"), "OK");
                let counts = |client: &mut Client| match client.try_call(&["INCR", name]) {
                    Some(Frame::Integer(count)) => Some(count),
                    _ => None,
                };
                std::iter::from_fn(|| counts(&mut client)).last().unwrap_or(0)
            })
        };
        let clients = ["strict:one", "strict:two"].map(|name| (name, strict(name)));
        thread::sleep(Duration::from_millis(500 + prng.draw() % 1_500));
        server.signal("STOP");
        let cut = disk.cut_power();
        server.kill();
        load.join();
        let data_folder = std::mem::replace(&mut options.data_folder, cut.join("data"));
        let survivor = Server::start(&options);
        for (name, client) in clients {
            let acknowledged = client.join().expect("it does not panic");
            assert!(acknowledged > 0, "nothing was acknowledged");
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

/// How long a sync of the log has taken at most: a busy disk makes the window of `everysec` longer.
fn longest_sync(client: &mut Client) -> Duration {
    let info = client.call(&["INFO", "persistence"]);
    let text = String::from_utf8_lossy(info.as_bytes().expect("a text")).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("log_sync_max_usec:")).expect("a figure");
    Duration::from_micros(line.parse().expect("a number"))
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
            Policy::Always => 100 + prng.draw() % 900,
            Policy::Everysec | Policy::No => 1_000 + prng.draw() % 2_500,
        });
        thread::sleep(life);
        if prng.draw().is_multiple_of(2) {
            server.client().call(&["BGSAVE"]);
            thread::sleep(Duration::from_millis(prng.draw() % 300));
        }
        let longest_sync = longest_sync(&mut server.client());
        server.signal("STOP");
        let crash = Instant::now();
        let cut = disk.cut_power();
        server.kill();
        let mut ledgers = load.join();

        let data_folder = std::mem::replace(&mut options.data_folder, cut.join("data"));
        let survivor = Server::start(&options);
        let horizon = match policy {
            Policy::Always => Instant::now(),
            // One sync may be under way, and what came meanwhile waits for the next.
            Policy::Everysec => crash - POWER_WINDOW - longest_sync * 2,
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
    thread::sleep(Duration::from_millis(300));
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
    thread::sleep(Duration::from_millis(200));
    faults.set("write torn EIO");
    thread::sleep(Duration::from_millis(500));
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
    faults.set("sync slow 700");
    let mut writer = server.client();
    let asked = Instant::now();
    writer.send(&["SET", "city", "Porto"]).expect("a connection");
    let mut reader = server.client();
    let slowest = slowest_reads(&mut reader, Duration::from_millis(400));
    writer.receive().expect("a reply");
    assert!(asked.elapsed() >= Duration::from_millis(650), "acknowledged before the flush: {:?}", asked.elapsed());
    assert!(slowest < Duration::from_millis(200), "a read waited {slowest:?} for somebody else's flush");
    assert_eq!(reader.show("GET city"), "\"Porto\"");
}

#[test]
fn a_slow_flush_delays_nothing_under_everysec() {
    let folder = Folder::new();
    let (options, faults) = options_with_faults(&folder, Policy::Everysec);
    let server = Server::start(&options);
    let mut client = server.client();
    client.call(&["SET", "city", "Lisbon"]);
    faults.set("sync slow 700");
    let started = Instant::now();
    let mut slowest = Duration::ZERO;
    while started.elapsed() < Duration::from_millis(2_500) {
        let asked = Instant::now();
        client.call(&["SET", "city", "Porto"]);
        slowest = slowest.max(asked.elapsed());
        thread::sleep(Duration::from_millis(5));
    }
    assert!(slowest < Duration::from_millis(350), "a write waited {slowest:?} for a flush it need not wait for");
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
    loop {
        let reply = client.call(&["SET", "after", "room"]);
        if !reply.is_error() {
            say(&format!("writes again {} ms after there was room", since.elapsed().as_millis()));
            return;
        }
        assert!(since.elapsed() < RECOVERY_LIMIT, "still refused: {reply}");
        thread::sleep(Duration::from_millis(50));
    }
}

fn slowest_reads(client: &mut Client, time: Duration) -> Duration {
    let started = Instant::now();
    let mut slowest = Duration::ZERO;
    while started.elapsed() < time {
        let asked = Instant::now();
        client.call(&["GET", "city"]);
        slowest = slowest.max(asked.elapsed());
        thread::sleep(Duration::from_millis(2));
    }
    slowest
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

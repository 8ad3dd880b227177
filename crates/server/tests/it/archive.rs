//! `serve --archive`, `holdfast archive` and `holdfast restore --archive`: back to any moment, whatever has befallen
//! the server.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use resp::Frame;

use crate::cluster::Cluster;
use crate::harness::{
    Client, Environment, Folder, Mood, ObjectStore, PATIENCE, Server, ServerOptions, fail, fail_in, free_port, succeed,
    succeed_in, text, wait_for,
};

const ACCOUNTS: i64 = 20;
const BALANCE: i64 = 1_000;

/// An archive's directory, and its address.
fn archive(folder: &Folder) -> (PathBuf, String) {
    let directory = folder.path().join("archive");
    fs::create_dir_all(&directory).expect("a directory");
    let address = format!("file://{}", text(&directory));
    (directory, address)
}

fn options(folder: &Folder, address: &str) -> ServerOptions {
    ServerOptions::new(&folder.path().join("data")).extra(&["--cores", "3", "--archive", address])
}

fn open_accounts(client: &mut Client) {
    client.show("SET count 0");
    for account in 0..ACCOUNTS {
        assert_eq!(client.show(&format!("SET account:{account} {BALANCE}")), "OK");
    }
}

/// What all accounts hold together, and how many transfers there have been.
#[track_caller]
fn total(client: &mut Client) -> (i64, i64) {
    let keys: Vec<String> = (0..ACCOUNTS).map(|account| format!("account:{account}")).collect();
    let words: Vec<&str> = ["MGET", "count"].into_iter().chain(keys.iter().map(String::as_str)).collect();
    let reply = client.call(&words);
    let balances = reply.elements().unwrap_or_else(|| panic!("MGET answered {reply}"));
    let number = |frame: &Frame| String::from_utf8_lossy(frame.as_bytes().unwrap_or_default()).parse::<i64>();
    let numbers: Vec<i64> = balances.iter().map(|frame| number(frame).expect("every account has a balance")).collect();
    (numbers[1..].iter().sum(), numbers[0])
}

/// Clients that move money between accounts, over groups, until told to stop; they come again when the server is gone.
struct Transfers {
    stop: Arc<AtomicBool>,
    /// Transfers that were acknowledged.
    done: Arc<AtomicU64>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Transfers {
    fn start(ports: &[u16]) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads = (0..3)
            .map(|player: i64| {
                let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
                let port = ports[player as usize % ports.len()];
                thread::spawn(move || Self::play(player, port, &stop, &done))
            })
            .collect();
        Self { stop, done, threads }
    }

    /// Goes on for half a second, and until so many more have been made.
    #[track_caller]
    fn go_on(&self, count: u64) {
        thread::sleep(Duration::from_millis(500));
        let before = self.done.load(Ordering::Relaxed);
        wait_for("transfers are made", || self.done.load(Ordering::Relaxed) >= before + count);
    }

    fn play(player: i64, port: u16, stop: &AtomicBool, done: &AtomicU64) {
        let mut connection = None;
        for step in 0.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let Some(client) = &mut connection else {
                thread::sleep(Duration::from_millis(20));
                connection = Client::try_connect(port);
                continue;
            };
            let (from, to) = ((player * 7 + step * 13) % ACCOUNTS, (player + step * 5 + 1) % ACCOUNTS);
            let (from, to) = (format!("account:{from}"), format!("account:{to}"));
            let words: [&[&str]; 5] =
                [&["MULTI"], &["DECRBY", &from, "3"], &["INCRBY", &to, "3"], &["INCR", "count"], &["EXEC"]];
            let mut last = None;
            for words in words {
                last = client.try_call(words);
                if last.is_none() {
                    connection = None;
                    break;
                }
            }
            done.fetch_add(u64::from(last.is_some_and(|reply| reply.elements().is_some())), Ordering::Relaxed);
        }
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("a client"));
    }
}

/// The moments that an archive can be restored to, in milliseconds.
#[track_caller]
fn range(address: &str) -> (String, String) {
    let told = succeed(&["archive", "list", address]);
    let line = told.lines().find_map(|line| line.strip_prefix("can be restored to any moment from "));
    let (first, last) = line.and_then(|line| line.split_once(" to ")).unwrap_or_else(|| panic!("{told}"));
    (first.to_owned(), last.to_owned())
}

/// Waits until the archive lacks nothing.
fn wait_until_archived(client: &mut Client) {
    // What was written a moment ago is not known to be lacking yet.
    thread::sleep(Duration::from_millis(1_000));
    wait_for("the archive lacks nothing", || {
        let told = client.show("INFO persistence");
        told.contains("archive_lag_ms:0\\r") && told.contains("archive_lacking_entries:0\\r")
    });
}

/// Waits until an archive can be restored to a moment.
fn wait_until_closed(address: &str, moment: &str) {
    wait_until_closed_in(&[], &[address], moment);
}

fn wait_until_closed_in(environment: &Environment, which: &[&str], moment: &str) {
    let begun = Instant::now();
    loop {
        let told = succeed_in(environment, &[&["archive", "list"], which].concat());
        let last = told.lines().find_map(|line| line.strip_prefix("can be restored ")?.split_once(" to 20"));
        if last.is_some_and(|(_, last)| format!("20{last}").as_str() >= moment) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{told}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// The present moment, as it is written, and not within the same millisecond as what was done before: a restore to it
/// has that.
fn now() -> String {
    thread::sleep(Duration::from_millis(2));
    let ms = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock").as_millis();
    edge::utc(stdx::UnixMillis(ms as i64))
}

/// Some moment between two.
fn between(first: &str, last: &str, nth: u64, of: u64) -> String {
    let read = |text: &str| {
        let (_, time) = text.trim_end_matches('Z').split_once(' ').expect("date and time");
        let parts: Vec<f64> = time.split(':').map(|part| part.parse().expect("a number")).collect();
        ((parts[0] * 3_600.0 + parts[1] * 60.0 + parts[2]) * 1_000.0) as u64
    };
    // A test that runs over midnight goes on as if it were still the day before.
    let (begin, mut end) = (read(first), read(last));
    if end < begin {
        end = 24 * 3_600_000 - 1;
    }
    let at = begin + (end - begin) * nth / of;
    let (date, _) = first.split_once(' ').expect("date and time");
    let (hours, minutes, ms) = (at / 3_600_000, at / 60_000 % 60, at % 60_000);
    format!("{date} {hours:02}:{minutes:02}:{:02}.{:03}", ms / 1_000, ms % 1_000)
}

/// Restores to a moment, and looks at the accounts.
#[track_caller]
fn restored_total(folder: &Folder, address: &str, at: &str, groups: u64) -> (i64, i64) {
    restored_total_in(&[], folder, &[address], at, groups)
}

#[track_caller]
fn restored_total_in(env: &Environment, folder: &Folder, which: &[&str], at: &str, groups: u64) -> (i64, i64) {
    let data = folder.path().join("restored");
    let (groups, to) = (groups.to_string(), text(&data));
    let words: &[&str] = &["--quiet", "--at", at, "--data-dir", to, "--groups", &groups];
    succeed_in(env, &[&["restore", "--archive"], which, words].concat());
    let server = Server::start(&ServerOptions::new(&data).extra(&["--cores", "2"]));
    let totals = total(&mut server.client());
    server.kill();
    fs::remove_dir_all(&data).expect("it is there");
    totals
}

#[test]
fn an_archive_is_restored_to_any_moment_although_the_server_was_killed_twice() {
    let folder = Folder::new();
    let (_, address) = archive(&folder);
    let options = options(&folder, &address);
    let mut server = Server::start(&options);
    open_accounts(&mut server.client());
    let opened = now();
    let transfers = Transfers::start(&[options.port]);
    for _ in 0..2 {
        transfers.go_on(100);
        server.kill();
        server = Server::start(&options);
    }
    transfers.go_on(100);
    transfers.stop();
    let mut client = server.client();
    let (sum, last) = total(&mut client);
    assert_eq!(sum, ACCOUNTS * BALANCE);
    wait_until_archived(&mut client);
    let stopped = now();
    // Not within the same millisecond.
    thread::sleep(Duration::from_millis(5));
    client.show("SET count 0");
    wait_until_closed(&address, &stopped);

    let told = succeed(&["archive", "verify", "--quiet", &address]);
    assert!(told.contains(": whole, "), "{told}");
    let mut before = 0;
    for nth in 0..=12 {
        let at = between(&opened, &stopped, nth, 12);
        let (sum, count) = restored_total(&folder, &address, &at, 1 + nth % 4);
        assert_eq!(sum, ACCOUNTS * BALANCE, "at {at}");
        assert!(count >= before, "{count} transfers at {at}, and {before} earlier");
        before = count;
    }
    assert_eq!(before, last, "the last moment has all of them");

    let told = succeed(&["archive", "show", &address, "count", "--from", &stopped]);
    assert!(told.contains(&format!("\"{last}\" -> \"0\"  SET count 0")), "{told}");
    let told = fail(&["restore", "--archive", &address, "--at", "2020-01-01", "--data-dir", "nowhere"]);
    assert!(told.contains("it begins at 20") && told.contains("the nearest moment is --at '20"), "{told}");
    let told = fail(&["restore", "--archive", &address, "--at", "2999-01-01", "--data-dir", "nowhere"]);
    assert!(told.contains("it ends at "), "{told}");
    let told = fail(&["restore", "--archive", &address, "--at", "noon", "--data-dir", "nowhere"]);
    assert!(told.contains("'noon' is not a time"), "{told}");
}

/// A group splits while transfers go on, and the server is killed right behind that: the beginning of the new group
/// is in the archive of the other one alone.
#[test]
fn a_group_that_has_split_off_is_restored_to_any_moment() {
    let folder = Folder::new();
    let (directory, address) = archive(&folder);
    let cluster_port = free_port().to_string();
    let options = options(&folder, &address).extra(&["--cluster-port", &cluster_port]);
    let server = Server::start(&options);
    open_accounts(&mut server.client());
    let begun = now();
    let transfers = Transfers::start(&[server.port()]);
    let port = server.port().to_string();
    // Which of the twenty accounts go does not matter: these are half of the slots of the first of three groups.
    succeed(&["cluster", "split", "0", "--slots", "2700-5460", "--port", &port]);
    server.kill();
    let server = Server::start(&options);
    transfers.go_on(20);
    transfers.stop();
    wait_until_archived(&mut server.client());
    let (_, last) = range(&address);
    server.kill();
    for nth in 1..=5 {
        let at = if nth == 5 { last.clone() } else { between(&begun, &last, nth, 5) };
        let (sum, _) = restored_total(&folder, &address, &at, 2);
        assert_eq!(sum, ACCOUNTS * BALANCE, "at {at}");
    }
    // Of a group of which the archive holds nothing nobody says that it was empty.
    fs::remove_dir_all(directory.join("group-0003")).expect("the new group has a folder");
    let to = folder.path().join("lost");
    let told = fail(&["restore", "--quiet", "--archive", &address, "--data-dir", text(&to), "--groups", "2"]);
    assert!(told.contains("group 3 had split off from group 0 by then"), "{told}");
}

/// A group goes while transfers go on, and the server is killed behind that: once while something of the group is left,
/// and once when nothing is.
#[test]
fn an_archive_is_restored_to_moments_before_and_after_a_group_has_gone() {
    let folder = Folder::new();
    let (_, address) = archive(&folder);
    let cluster_port = free_port().to_string();
    let options = options(&folder, &address).extra(&["--cluster-port", &cluster_port]);
    let server = Server::start(&options);
    open_accounts(&mut server.client());
    let begun = now();
    let transfers = Transfers::start(&[server.port()]);
    let port = server.port().to_string();
    transfers.go_on(20);
    let told = succeed(&["cluster", "merge", "1", "2", "--port", &port]);
    assert!(told.contains("group 1 has been merged into group 2"), "{told}");
    server.kill();
    let server = Server::start(&options);
    transfers.go_on(20);
    server.wait_for_log("has given up its replica: the group has been merged");
    server.kill();
    let server = Server::start(&options);
    transfers.go_on(20);
    transfers.stop();
    let mut client = server.client();
    let (sum, count) = total(&mut client);
    assert_eq!(sum, ACCOUNTS * BALANCE);
    wait_until_archived(&mut client);
    let stopped = now();
    thread::sleep(Duration::from_millis(5));
    client.show("SET count 0");
    wait_until_closed(&address, &stopped);
    let told = succeed(&["archive", "verify", "--quiet", &address]);
    assert!(told.contains(": whole, "), "{told}");
    server.kill();
    for nth in 1..=6 {
        let at = if nth == 6 { stopped.clone() } else { between(&begun, &stopped, nth, 6) };
        let (sum, restored) = restored_total(&folder, &address, &at, 1 + nth % 3);
        assert_eq!(sum, ACCOUNTS * BALANCE, "at {at}");
        assert!(nth < 6 || restored == count, "{restored} of {count} transfers at {at}");
    }
}

#[test]
fn damage_and_missing_files_are_named() {
    let folder = Folder::new();
    let (directory, address) = archive(&folder);
    let options = options(&folder, &address);
    for round in 0..3 {
        let server = Server::start(&options);
        let mut client = server.client();
        client.call(&["SET".as_bytes(), b"{a}x", format!("value {round}").repeat(300).as_bytes()]);
        client.show(&format!("SET {{a}}y {round}"));
        wait_until_archived(&mut client);
        server.kill();
    }
    succeed(&["archive", "verify", "--quiet", &address]);
    let (_, last) = range(&address);
    // The group of {a} has a file of each start, and more in them than the others.
    let bytes = |path: &PathBuf| fs::metadata(path).map_or(0, |file| file.len());
    let logs_of = |group: u32| -> Vec<PathBuf> {
        let directory = directory.join(format!("group-{group:04}"));
        let files = fs::read_dir(directory).expect("a directory of the archive");
        files.map(|entry| entry.expect("a file").path()).collect()
    };
    let mut logs = (0..3).map(logs_of).max_by_key(|logs| logs.iter().map(bytes).sum::<u64>()).expect("three groups");
    logs.sort();
    assert!(logs.len() >= 3, "{logs:?}");
    let middle = &logs[logs.len() / 2];
    let name = text(middle).to_owned();
    let whole = fs::read(middle).expect("the file");
    let mut damaged = whole.clone();
    damaged[64 + 48 + 3] ^= 1;
    fs::write(middle, damaged).expect("the file");
    let told = fail(&["archive", "verify", "--quiet", &address]);
    assert!(told.contains(&format!("{name} at offset 64: a frame does not verify")), "{told}");
    let nowhere = folder.path().join("nowhere");
    let told = fail(&["restore", "--quiet", "--archive", &address, "--at", &last, "--data-dir", text(&nowhere)]);
    assert!(told.contains(&format!("{name} at offset 64")), "{told}");
    assert!(!nowhere.exists());
    fs::write(middle, whole).expect("the file");

    fs::remove_file(middle).expect("the file");
    let told = fail(&["archive", "verify", "--quiet", &address]);
    assert!(told.contains("are in no file: a file of the archive is missing"), "{told}");
    let told = fail(&["restore", "--quiet", "--archive", &address, "--at", &last, "--data-dir", text(&nowhere)]);
    assert!(told.contains("are in no file"), "{told}");
}

#[test]
fn an_archive_that_is_gone_costs_disk_and_nothing_else() {
    let folder = Folder::new();
    let (directory, address) = archive(&folder);
    let options = options(&folder, &address).extra(&["--checkpoint-log-bytes", "1mb"]);
    let server = Server::start(&options);
    let mut client = server.client();
    client.show("SET first 1");
    wait_until_archived(&mut client);
    let aside = folder.path().join("aside");
    fs::rename(&directory, &aside).expect("it is there");
    // Checkpoints are made meanwhile, segments of the log are full and would be used again, and the process ends.
    for number in 0..200 {
        let key = format!("key:{number}");
        client.call(&["SET".as_bytes(), key.as_bytes(), &vec![b'x'; 1_000_000]]);
    }
    server.wait_for_log("the archive cannot be written: ");
    let told = client.show("INFO persistence");
    assert!(told.contains("archive_state:fault"), "{told}");
    server.kill();
    fs::rename(&aside, &directory).expect("it is there");
    let server = Server::start(&options);
    let mut client = server.client();
    wait_until_archived(&mut client);
    let told = client.show("INFO persistence");
    assert!(told.contains("archive_state:ok") && told.contains("archive_lost_entries:0"), "{told}");
    let at = now();
    thread::sleep(Duration::from_millis(5));
    client.show("SET last 1");
    wait_until_closed(&address, &at);
    succeed(&["archive", "verify", "--quiet", &address]);
    let data = folder.path().join("restored");
    succeed(&["restore", "--quiet", "--archive", &address, "--at", &at, "--data-dir", text(&data)]);
    let server = Server::start(&ServerOptions::new(&data));
    assert_eq!(server.client().show("DBSIZE"), "(integer) 201");
}

#[test]
fn what_cannot_be_an_archive_is_refused() {
    let folder = Folder::new();
    let refused = |archive: &str| {
        let data = folder.path().join("data");
        fail(&["serve", "--data-dir", text(&data), "--port", "0", "--archive", archive])
    };
    let told = refused("/somewhere");
    assert!(
        told.contains("an archive is named file:///DIRECTORY, with the whole path of a directory, or s3://BUCKET/"),
        "{told}"
    );
    let told = refused("s3://bucket/here");
    assert!(told.contains("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"), "{told}");
    let told = refused("file:///not/there");
    assert!(told.contains("/not/there is no directory: make it, or mount the disk"), "{told}");
    let told = fail(&["archive", "list", &format!("file://{}", text(folder.path()))]);
    assert!(told.contains("this is no archive"), "{told}");
}

#[test]
fn three_nodes_archive_through_changes_of_leader() {
    let folder = Folder::new();
    let (_, address) = archive(&folder);
    let mut cluster = Cluster::start(3);
    for node in 0..3 {
        let options = cluster.options_of(node).extra(&["--archive", &address]);
        *cluster.options_mut(node) = options;
        cluster.kill(node);
        cluster.restart(node);
    }
    let ports: Vec<u16> = (0..3).map(|node| cluster.options_of(node).port).collect();
    open_accounts(&mut cluster.client(0));
    let opened = now();
    let transfers = Transfers::start(&ports);
    for node in 0..3 {
        transfers.go_on(20);
        cluster.kill(node);
        // Those at the other nodes go on behind an election.
        transfers.go_on(20);
        cluster.restart(node);
    }
    transfers.stop();
    let mut client = cluster.client(0);
    let (sum, last) = total(&mut client);
    assert_eq!(sum, ACCOUNTS * BALANCE);
    thread::sleep(Duration::from_millis(100));
    let stopped = now();
    // Not within the same millisecond.
    thread::sleep(Duration::from_millis(5));
    client.show("SET count 0");
    wait_until_closed(&address, &stopped);
    succeed(&["archive", "verify", "--quiet", &address]);
    let mut before = 0;
    for nth in 0..=6 {
        let at = between(&opened, &stopped, nth, 6);
        let (sum, count) = restored_total(&folder, &address, &at, 2);
        assert_eq!(sum, ACCOUNTS * BALANCE, "at {at}");
        assert!(count >= before, "{count} transfers at {at}, and {before} earlier");
        before = count;
    }
    assert_eq!(before, last);
}

const BUCKET: &str = "s3://bucket/of/ours";

fn options_in(environment: &Environment, folder: &Folder) -> ServerOptions {
    let mut options = options(folder, BUCKET);
    options.environment.extend_from_slice(environment);
    options
}

#[test]
fn an_archive_in_a_bucket_is_restored_although_the_store_failed_and_the_server_was_killed() {
    let folder = Folder::new();
    let store = ObjectStore::start();
    let environment = store.environment();
    let key = folder.path().join("key");
    fs::write(&key, "0123456789abcdef".repeat(4) + "\n").expect("a file");
    let key = ["--archive-key-file", text(&key)];
    // What was there before the archive comes into it as a base, of more parts than one.
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")).extra(&["--cores", "3"]));
    let mut client = server.client();
    let mut noise = 1_u64;
    let mut value = || -> Vec<u8> {
        let next = || {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            noise as u8
        };
        std::iter::repeat_with(next).take(200_000).collect()
    };
    for number in 0..60 {
        client.call(&["SET".as_bytes(), format!("{{same}}:{number}").as_bytes(), &value()]);
    }
    client.show("SAVE");
    server.stop();
    let options = options_in(&environment, &folder).extra(&key);
    let mut server = Server::start(&options);
    open_accounts(&mut server.client());
    let begun = Instant::now();
    while !store.objects().iter().any(|(name, bytes)| name.contains("/base-") && *bytes > 10_000_000) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", store.objects());
        thread::sleep(Duration::from_millis(50));
    }
    wait_until_archived(&mut server.client());
    let opened = now();
    let transfers = Transfers::start(&[options.port]);
    let mut client = server.client();
    // More than one object holds.
    for number in 0..20 {
        client.call(&["SET".as_bytes(), format!("key:{}", number % 5).as_bytes(), &value()]);
    }
    for mood in [Mood::Busy, Mood::Forgetful, Mood::Silent] {
        store.set_mood(mood);
        let (before, begun) = (store.request_count(), Instant::now());
        while store.request_count() < before + 3 && (mood != Mood::Silent || store.request_count() == before) {
            assert!(begun.elapsed() < PATIENCE, "nothing is asked of a store that is {mood:?}");
            thread::sleep(Duration::from_millis(20));
        }
        if mood == Mood::Forgetful {
            server.kill();
            server = Server::start(&options);
        }
        store.set_mood(Mood::Well);
        wait_until_archived(&mut server.client());
    }
    transfers.go_on(50);
    transfers.stop();
    let mut client = server.client();
    let (sum, last) = total(&mut client);
    assert_eq!(sum, ACCOUNTS * BALANCE);
    wait_until_archived(&mut client);
    let stopped = now();
    thread::sleep(Duration::from_millis(5));
    client.show("SET count 0");
    let told = fail_in(&environment, &["archive", "list", BUCKET]);
    assert!(told.contains("it is encrypted: name the file with its key, with --archive-key-file"), "{told}");
    wait_until_closed_in(&environment, &[BUCKET, key[0], key[1]], &stopped);

    let told = succeed_in(&environment, &["archive", "verify", "--quiet", BUCKET, key[0], key[1]]);
    assert!(told.contains(": whole, "), "{told}");
    let mut before = 0;
    for nth in 0..=4 {
        let at = between(&opened, &stopped, nth, 4);
        let (sum, count) = restored_total_in(&environment, &folder, &[BUCKET, key[0], key[1]], &at, 1 + nth % 4);
        assert_eq!(sum, ACCOUNTS * BALANCE, "at {at}");
        assert!(count >= before, "{count} transfers at {at}, and {before} earlier");
        before = count;
    }
    assert_eq!(before, last, "the last moment has all of them");

    let objects = store.objects();
    assert!(objects.len() >= 10, "{objects:?}");
    let (largest, _) = objects.iter().max_by_key(|(name, bytes)| (name.contains("/log-"), *bytes)).expect("objects");
    store.change(largest, |bytes| bytes[64 + 48 + 3] ^= 1);
    let told = fail_in(&environment, &["archive", "verify", "--quiet", BUCKET, key[0], key[1]]);
    assert!(told.contains(&format!("s3://bucket/{largest} at offset 64: a frame does not verify")), "{told}");
}

#[test]
fn a_store_that_does_not_answer_holds_up_neither_clients_nor_the_end() {
    let folder = Folder::new();
    let store = ObjectStore::start();
    let server = Server::start(&options_in(&store.environment(), &folder));
    let mut client = server.client();
    client.show("SET first 1");
    wait_until_archived(&mut client);
    store.set_mood(Mood::Silent);
    let begun = Instant::now();
    let lag_ms = |client: &mut Client| -> u64 {
        let told = client.show("INFO persistence");
        let (_, rest) = told.split_once("archive_lag_ms:").expect("a line of INFO");
        rest.split(|it: char| !it.is_ascii_digit()).next().and_then(|it| it.parse().ok()).expect("a number")
    };
    while lag_ms(&mut client) < 2_000 {
        assert_eq!(client.show("INCR count").split_once(' ').map(|(kind, _)| kind), Some("(integer)"));
        assert!(begun.elapsed() < PATIENCE, "the lag is not told");
        thread::sleep(Duration::from_millis(20));
    }
    let exit = server.stop();
    assert!(
        exit.log.contains("the archive does not answer: what it lacks is written after the next start"),
        "{exit:?}"
    );
}

//! Damage to what is on disk: it is told, it is named with file and offset, and nothing is skipped or served in
//! silence.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use stdx::Prng;

use crate::cluster::Cluster;
use crate::harness::{
    Client, Exit, Folder, PATIENCE, Server, ServerOptions, copy_folder, files_beneath, number_from_environment, say,
    wait_for,
};

/// Keys that the damaged directories hold, each written and acknowledged by itself under `always`.
const KEYS: usize = 120;

fn value(number: usize) -> String {
    format!("value {number} {}", "abcdefgh".repeat(20))
}

/// A directory as a killed server left it.
struct Specimen {
    folder: Folder,
}

impl Specimen {
    fn new(checkpoint_at: Option<usize>) -> Self {
        let folder = Folder::new();
        let options = ServerOptions::new(&folder.path().join("original")).extra(&["--cores", "1"]);
        let server = Server::start(&options);
        let mut client = server.client();
        for number in 0..KEYS {
            assert_eq!(client.call(&["SET", &format!("d:{number}"), &value(number)]).to_string(), "OK");
            if checkpoint_at == Some(number) {
                assert_eq!(client.show("SAVE"), "OK");
            }
        }
        server.kill();
        Self { folder }
    }

    /// A copy to damage, and a server that would open it.
    fn copy(&self, name: &str) -> ServerOptions {
        let target = self.folder.path().join(name);
        copy_folder(&self.folder.path().join("original"), &target);
        ServerOptions::new(&target).extra(&["--cores", "1"])
    }
}

/// The files with names that begin so, oldest first.
pub(crate) fn files(options: &ServerOptions, prefix: &str) -> Vec<PathBuf> {
    let all = files_beneath(&options.data_folder).into_iter().map(|(path, _)| path);
    all.filter(|path| name(path).starts_with(prefix) && !name(path).ends_with(".new")).collect()
}

pub(crate) fn name(path: &Path) -> String {
    path.file_name().expect("a file has a name").to_string_lossy().into_owned()
}

pub(crate) fn flip(path: &Path, offset: u64, bit: u32) {
    let file = File::options().read(true).write(true).open(path).expect("a file to damage");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).expect("a byte to damage");
    byte[0] ^= 1 << (bit % 8);
    file.write_all_at(&byte, offset).expect("a damaged byte");
}

/// The newest log segment that holds a record: the one behind it may have been made ready in advance.
pub(crate) fn newest_log(options: &ServerOptions) -> PathBuf {
    files(options, "log-").into_iter().rfind(|path| !all_records(path).is_empty()).expect("a log segment")
}

fn records(path: &Path) -> Vec<(u64, u64)> {
    let records = all_records(path);
    assert!(records.len() > KEYS / 2, "only {} records in {}", records.len(), path.display());
    records
}

/// Where the records of a log segment begin and end, by their lengths alone: see `docs/formats/log.md`.
pub(crate) fn all_records(path: &Path) -> Vec<(u64, u64)> {
    let bytes = fs::read(path).expect("a log segment");
    let mut records = Vec::new();
    let mut offset = 4096;
    while offset + 32 <= bytes.len() && (1..=4).contains(&bytes[offset + 12]) {
        let length = u32::from_le_bytes(bytes[offset + 8..offset + 12].try_into().expect("four bytes")) as usize;
        let end = offset + (32 + length).next_multiple_of(8);
        records.push((offset as u64, end as u64));
        offset = end;
    }
    records
}

pub(crate) fn names_the_place(log: &str, file: &str) -> bool {
    log.lines().any(|line| line.contains(file) && line.contains("offset"))
}

/// The server must not start, and say why.
#[track_caller]
fn refused(options: &ServerOptions, file: &str) -> Exit {
    match Server::try_start(options) {
        Ok(server) => panic!("it serves from a damaged {file}:\n{}", server.log()),
        Err(exit) => {
            assert!(!exit.status.success(), "ended with {}", exit.status);
            assert!(exit.log.contains(file), "{file} is not named:\n{}", exit.log);
            exit
        }
    }
}

/// The first key that is not there; those behind it must not be there either.
#[track_caller]
fn first_missing(client: &mut Client) -> usize {
    let there: Vec<bool> = (0..KEYS)
        .map(|number| match client.call(&["GET", &format!("d:{number}")]) {
            resp::Frame::Null => false,
            reply => {
                assert_eq!(reply.as_bytes(), Some(value(number).as_bytes()), "d:{number}");
                true
            }
        })
        .collect();
    let first = there.iter().position(|there| !there).unwrap_or(KEYS);
    assert!(!there[first..].contains(&true), "a hole in the middle, at d:{first}");
    first
}

/// Without a mark the tail may have been torn by the crash, before anybody was told that it was kept. So the server
/// starts without it, and says so; or it refuses. It must not keep quiet.
#[track_caller]
fn torn(options: &ServerOptions, file: &str) {
    match Server::try_start(options) {
        Ok(server) => {
            let missing = first_missing(&mut server.client());
            assert!(missing + 3 >= KEYS, "more than the tail is gone: from d:{missing}");
            assert!(missing == KEYS || names_the_place(&server.log(), file), "not told:\n{}", server.log());
        }
        Err(exit) => assert!(names_the_place(&exit.log, file), "not told:\n{}", exit.log),
    }
}

/// Overwrites the body of the last record, as a power cut does that comes while it is written.
fn tear(log: &Path) {
    let (offset, end) = *records(log).last().expect("a record");
    let file = File::options().write(true).open(log).expect("a log segment");
    file.write_all_at(&vec![0; (end - offset - 40) as usize], offset + 40).expect("zeros");
}

/// The mark outside of the log is never synced: a power cut may take it away.
fn forget_mark(options: &ServerOptions) {
    fs::write(options.data_folder.join("tail"), [0; 4096]).expect("a mark that says nothing");
}

#[test]
fn a_torn_tail_is_told() {
    let specimen = Specimen::new(None);
    let options = specimen.copy("zeroed");
    let log = newest_log(&options);
    tear(&log);
    forget_mark(&options);
    torn(&options, &name(&log));

    let options = specimen.copy("flipped");
    let log = newest_log(&options);
    let (_, end) = *records(&log).last().expect("a record");
    flip(&log, end - 12, 3);
    forget_mark(&options);
    torn(&options, &name(&log));
}

/// The process was killed, and every write was acknowledged: what is damaged now had been synced.
#[test]
fn a_flipped_bit_in_the_last_six_kilobytes_is_refused_or_harmless() {
    let rounds = number_from_environment("HOLDFAST_CRASH_CYCLES", 24);
    let specimen = Specimen::new(None);
    let mut prng = Prng::new(number_from_environment("HOLDFAST_CRASH_SEED", 3));
    let mut refusals = 0;
    for round in 0..rounds {
        let options = specimen.copy("flipped");
        let log = newest_log(&options);
        let end = all_records(&log).last().expect("a record").1;
        let offset = end - 1 - prng.draw() % 6_000;
        flip(&log, offset, prng.draw() as u32);
        match Server::try_start(&options) {
            Err(exit) => {
                assert!(names_the_place(&exit.log, &name(&log)), "round {round}: not named:\n{}", exit.log);
                refusals += 1;
            }
            Ok(server) => {
                let missing = first_missing(&mut server.client());
                assert_eq!(missing, KEYS, "round {round}: lost by offset {offset} of {end}:\n{}", server.log());
            }
        }
        fs::remove_dir_all(&options.data_folder).expect("the damaged copy goes");
    }
    assert!(refusals >= rounds * 3 / 4, "only {refusals} of {rounds} flipped bits were refused");
    say(&format!("{rounds} bits flipped in the last 6 kB: {refusals} refused, the others in unused bytes"));

    let options = specimen.copy("torn");
    let log = newest_log(&options);
    tear(&log);
    let exit = refused(&options, &name(&log));
    assert!(names_the_place(&exit.log, &name(&log)), "no offset is named:\n{}", exit.log);
}

/// Where a value stands that was written last, in the newest segment of a node's log.
fn place_of(log: &Path, value: &str) -> u64 {
    let bytes = fs::read(log).expect("a log segment");
    let found = bytes.windows(value.len()).rposition(|window| window == value.as_bytes());
    found.expect("the value is in the log") as u64
}

/// A follower with a damaged last record and one that knows less are a quorum. They do not lead without the third.
#[test]
fn a_follower_whose_last_record_is_damaged_waits_for_the_others() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader_of("f");
    let (follower, laggard) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.node(laggard).signal("STOP");
    let mut client = cluster.client(leader);
    for number in 0..20 {
        assert_eq!(
            cluster.ask(&mut client, &format!("SET {{f}}:{number} written-as-number-{number}-{}", "z".repeat(50))),
            "OK"
        );
    }
    cluster.kill(follower);
    cluster.kill(leader);
    let options = cluster.options_of(follower);
    let log = newest_log(&options);
    flip(&log, place_of(&log, "written-as-number-19-"), 3);
    cluster.node(laggard).signal("CONT");
    cluster.nodes[follower] = Some(cluster.spawn_again(follower));
    let begun = Instant::now();
    let mut refusal_count = 0;
    // Longer than an election takes, and until they have answered.
    while begun.elapsed() < Duration::from_secs(8) || refusal_count == 0 {
        assert!(begun.elapsed() < PATIENCE, "they led without the third, or do not answer");
        for node in [follower, laggard] {
            let Some(mut client) = cluster.try_client(node) else { continue };
            let answer = client.show("GET {f}:19");
            assert!(answer.contains("written-as") || answer.starts_with("(error)"), "node {node}: {answer}");
            refusal_count += usize::from(answer.starts_with("(error)"));
        }
        thread::sleep(Duration::from_millis(200));
    }
    wait_for("the damage is named", || {
        let told = cluster.node(follower).log();
        names_the_place(&told, &name(&log)) && told.contains("is damaged")
    });
    cluster.restart(leader);
    for node in [leader, follower, laggard] {
        cluster.wait_for_answer(node);
        let mut client = cluster.client(node);
        for number in 0..20 {
            let answer = cluster.ask(&mut client, &format!("GET {{f}}:{number}"));
            assert!(answer.contains(&format!("written-as-number-{number}-")), "node {node}, f:{number}: {answer}");
        }
    }
    cluster.wait_until("the follower lacks nothing", |this| {
        this.node(follower).log().contains("lacks nothing at the end of its log any more")
    });
    // And it knows that after the next crash, too.
    cluster.kill(follower);
    cluster.restart(follower);
    let told = cluster.node(follower).log();
    assert_eq!(told.matches("this node is in doubt").count(), 1, "{told}");
}

/// If any bit turns at the end of a follower's log, the follower says so, and nothing is lost.
#[test]
fn a_follower_with_a_flipped_bit_in_the_last_six_kilobytes_loses_nothing() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader_of("f");
    let follower = (leader + 1) % 3;
    let mut prng = Prng::new(number_from_environment("HOLDFAST_CRASH_SEED", 5));
    let mut client = cluster.client(leader);
    let (mut refusals, mut doubts) = (0, 0);
    let mut round = 0;
    // Which of the two comes of a bit depends on where in a record it is.
    while round < 8 || (round < 40 && (refusals == 0 || doubts == 0)) {
        for number in 0..30 {
            let key = round * 30 + number;
            assert_eq!(cluster.ask(&mut client, &format!("SET {{f}}:{key} {key}-{}", "y".repeat(150))), "OK");
        }
        cluster.kill(follower);
        let log = newest_log(&cluster.options_of(follower));
        let end = all_records(&log).last().expect("a record").1;
        let reach = if round % 2 == 0 { 300 } else { 6_000 };
        let (offset, bit) = (end - 1 - prng.draw() % reach.min(end - 4096), prng.draw() as u32);
        flip(&log, offset, bit);
        match Server::try_start(&cluster.options_of(follower)) {
            Ok(server) => {
                doubts = server.log().matches("It is cut off, and this node is in doubt").count();
                cluster.nodes[follower] = Some(server);
            }
            Err(exit) => {
                assert!(names_the_place(&exit.log, &name(&log)), "round {round}: not named:\n{}", exit.log);
                refusals += 1;
                flip(&log, offset, bit);
                cluster.restart(follower);
            }
        }
        cluster.wait_for_answer(follower);
        round += 1;
    }
    assert!(refusals > 0 && doubts > 0, "{refusals} refused, {doubts} in doubt");
    say(&format!(
        "{round} bits flipped at the end of a follower's log: {refusals} refused, {doubts} made good by the others"
    ));
    let mut client = cluster.client(follower);
    for key in 0..30 * round {
        assert!(cluster.ask(&mut client, &format!("GET {{f}}:{key}")).contains(&format!("{key}-y")), "f:{key}");
    }
}

#[test]
fn a_flipped_bit_in_the_body_of_the_log_is_refused() {
    let specimen = Specimen::new(None);
    for (case, at_record, beyond) in [("body", KEYS / 2, 60), ("header", KEYS / 2, 9), ("early", 2, 40)] {
        let options = specimen.copy(case);
        let log = newest_log(&options);
        let (offset, _) = records(&log)[at_record];
        flip(&log, offset + beyond, 5);
        let exit = refused(&options, &name(&log));
        assert!(names_the_place(&exit.log, &name(&log)), "no offset is named:\n{}", exit.log);
    }
}

#[test]
fn a_log_cut_short_is_refused() {
    let specimen = Specimen::new(None);
    let options = specimen.copy("cut");
    let log = newest_log(&options);
    let (offset, _) = records(&log)[KEYS / 2];
    File::options().write(true).open(&log).expect("a log segment").set_len(offset + 10).expect("a shorter file");
    refused(&options, &name(&log));
}

#[test]
fn a_log_that_is_gone_is_missed() {
    let specimen = Specimen::new(Some(KEYS / 2));
    let options = specimen.copy("gone");
    for log in files(&options, "log-") {
        fs::remove_file(log).expect("a log segment to remove");
    }
    refused(&options, "log");
}

#[test]
fn a_log_of_another_directory_is_refused() {
    let (specimen, other) = (Specimen::new(None), Specimen::new(None));
    let (options, others) = (specimen.copy("mixed"), other.copy("other"));
    let logs = files(&options, "log-");
    for (mine, foreign) in logs.iter().zip(files(&others, "log-")) {
        fs::copy(foreign, mine).expect("a foreign log segment");
    }
    refused(&options, &name(&logs[0]));
}

#[test]
fn a_damaged_checkpoint_is_refused_or_done_without() {
    let specimen = Specimen::new(Some(KEYS - 10));
    let intact = specimen.copy("intact");
    assert_eq!(first_missing(&mut Server::start(&intact).client()), KEYS);
    let mut prng = Prng::new(11);
    for round in 0..6 {
        let options = specimen.copy(&format!("flipped-{round}"));
        let checkpoint = files(&options, "checkpoint-").pop().expect("a checkpoint");
        let length = fs::metadata(&checkpoint).expect("its size").len();
        flip(&checkpoint, prng.draw() % length, prng.draw() as u32);
        match Server::try_start(&options) {
            Ok(server) => assert_eq!(first_missing(&mut server.client()), KEYS, "{}", server.log()),
            Err(exit) => assert!(exit.log.contains(&name(&checkpoint)), "not named:\n{}", exit.log),
        }
    }
    let options = specimen.copy("gone");
    let checkpoint = files(&options, "checkpoint-").pop().expect("a checkpoint");
    fs::remove_file(&checkpoint).expect("a checkpoint to remove");
    match Server::try_start(&options) {
        Ok(server) => assert_eq!(first_missing(&mut server.client()), KEYS, "{}", server.log()),
        Err(exit) => assert!(exit.log.contains("checkpoint"), "not named:\n{}", exit.log),
    }
}

#[test]
fn a_damaged_identity_is_refused() {
    let specimen = Specimen::new(None);
    let options = specimen.copy("flipped");
    let identity = options.data_folder.join("identity");
    let length = fs::metadata(&identity).expect("an identity").len();
    flip(&identity, length / 2, 1);
    refused(&options, "identity");
    let options = specimen.copy("gone");
    fs::remove_file(options.data_folder.join("identity")).expect("an identity to remove");
    refused(&options, "identity");
}

/// If any bit flips, no wrong value is served, and none is missing without a word.
#[test]
fn no_flipped_bit_is_served() {
    let rounds = number_from_environment("HOLDFAST_CRASH_CYCLES", 24);
    let specimen = Specimen::new(Some(KEYS / 2));
    let mut prng = Prng::new(number_from_environment("HOLDFAST_CRASH_SEED", 1));
    let (mut refusals, mut harmless) = (0, 0);
    for round in 0..rounds {
        let options = specimen.copy("flipped");
        let used: Vec<_> = files_beneath(&options.data_folder).into_iter().filter(|(_, length)| *length > 0).collect();
        let (path, length) = &used[prng.draw() as usize % used.len()];
        // What lies behind the end of a log holds nothing that could be lost.
        let end = if name(path).starts_with("log-") && !name(path).ends_with(".new") {
            fs::read(path).expect("a log").iter().rposition(|byte| *byte != 0).map_or(1, |last| last as u64 + 1)
        } else {
            *length
        };
        let (offset, bit) = (prng.draw() % end, prng.draw() as u32);
        flip(path, offset, bit);
        match Server::try_start(&options) {
            Err(exit) => {
                assert!(
                    exit.log.contains(&name(path)),
                    "round {round}: {}:{offset} not named:\n{}",
                    name(path),
                    exit.log
                );
                refusals += 1;
            }
            Ok(server) => {
                let missing = first_missing(&mut server.client());
                assert_eq!(missing, KEYS, "round {round}: lost by {}:{offset}:\n{}", name(path), server.log());
                harmless += 1;
            }
        }
        fs::remove_dir_all(&options.data_folder).expect("the damaged copy goes");
    }
    say(&format!("{rounds} flipped bits: {refusals} refused, {harmless} in unused bytes"));
}

//! Two of three nodes are lost for good: what the third has becomes a cluster again, and the lost stay out of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::cluster::Cluster;
use crate::harness::{
    Client, Folder, IsOver, PATIENCE, Server, binary, both, copy_folder, files_beneath, say, token_of, wait_for,
};

/// `holdfast recover` with these words: what it prints, and whether it did what it should.
fn recover(words: &[&str]) -> (bool, String) {
    let output = Command::new(binary()).arg("recover").args(words).output().expect("the binary runs");
    (output.status.success(), both(&output))
}

fn recover_directory(directory: &Path, words: &[&str]) -> (bool, String) {
    let directory = directory.display().to_string();
    recover(&[&["--data-dir", &directory], words].concat())
}

/// What every file of a directory holds.
fn content(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = files_beneath(directory).into_iter().map(|(path, _)| path);
    files.map(|path| (path.display().to_string(), fs::read(&path).expect("a file"))).collect()
}

/// Writes until told to stop, or until nobody answers, and counts how many writes all nodes had.
fn write_on(port: u16, is_over: &AtomicBool, replicated: &AtomicU64) {
    let Some(mut client) = Client::try_connect(port) else { return };
    client.is_patient_for(PATIENCE);
    for number in 1.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        // Keys of both groups, in one transaction.
        let (number_text, mut is_done) = (number.to_string(), true);
        for words in [
            &["MSET", "many:a", &number_text, "many:b", &number_text, "many:c", &number_text][..],
            &["SET", &format!("one:{number}"), &number_text],
        ] {
            is_done &= client.try_call(words).is_some_and(|reply| !reply.is_error());
        }
        let Some(reply) = client.try_call(&["WAIT", "2", "2000"]) else { break };
        if is_done && format!("{reply:?}").contains('2') {
            replicated.store(number, Ordering::Relaxed);
        }
    }
}

#[test]
fn what_one_of_three_has_becomes_a_cluster_again_and_the_lost_are_refused_by_name() {
    let mut cluster = Cluster::start(3);
    let directory = cluster.data_folder(0);
    let mut client = cluster.client(0);
    assert_eq!(cluster.ask(&mut client, "SET before yes"), "OK");
    let (is_over, replicated) = (&AtomicBool::new(false), &AtomicU64::new(0));
    let kept = Folder::new();
    thread::scope(|scope| {
        let _is_over = IsOver(is_over);
        let port = cluster.options_of(0).port;
        scope.spawn(move || write_on(port, is_over, replicated));
        wait_for("some writes are everywhere", || replicated.load(Ordering::Relaxed) > 10);
        cluster.kill(1);
        cluster.kill(2);
        thread::sleep(Duration::from_millis(200));
        is_over.store(true, Ordering::Relaxed);
    });
    let replicated = replicated.load(Ordering::Relaxed);

    let (is_done, told) = recover_directory(&directory, &["--accept-loss"]);
    assert!(!is_done && told.contains("is in use by a server"), "{told}");
    cluster.kill(0);

    // Which of two has most.
    copy_folder(&cluster.data_folder(1), kept.path());
    let (is_done, told) = recover(&["--compare", &directory.display().to_string(), &kept.path().display().to_string()]);
    assert!(is_done && told.contains("has most of"), "{told}");

    // To look changes nothing.
    let before = content(&directory);
    let (is_done, told) = recover_directory(&directory, &[]);
    assert!(is_done && told.contains("Nothing has been changed"), "{told}");
    assert!(told.contains("without this node is lost"), "{told}");
    assert!(content(&directory) == before);

    dies_within(&directory);
    let (is_done, told) = recover_directory(&directory, &["--accept-loss"]);
    assert!(is_done && told.contains("Recovered: "), "{told}");
    let (is_done, told) = recover_directory(&directory, &["--accept-loss"]);
    assert!(!is_done && told.contains("needs no recovery"), "{told}");

    let options = cluster.options_mut(0);
    options.environment.clear();
    cluster.restart(0);
    let mut client = cluster.client(0);
    assert_eq!(cluster.ask(&mut client, "GET before"), "\"yes\"");
    for number in 1..=replicated {
        assert_eq!(cluster.ask(&mut client, &format!("GET one:{number}")), format!("\"{number}\""));
    }
    // What was written to several groups at once is in all of them or in none.
    let many: Vec<String> = ["a", "b", "c"].map(|key| cluster.ask(&mut client, &format!("GET many:{key}"))).to_vec();
    assert!(many.iter().all(|value| *value == many[0]), "{many:?}");
    let last: u64 = many[0].trim_matches('"').parse().expect("a number");
    assert!(last >= replicated, "{last} {replicated}");
    assert_eq!(cluster.ask(&mut client, "SET after yes"), "OK");

    for count in 2..=3 {
        cluster.join_by(&token_of(&directory, Duration::from_secs(600)));
        cluster.wait_until("it has joined", |this| {
            this.try_client(0)
                .is_some_and(|mut client| client.show("INFO cluster").contains(&format!("cluster_nodes:{count}")))
        });
    }
    let joined = cluster.nodes.len() - 1;
    cluster.wait_for_answer(joined);
    let mut client = cluster.client(joined);
    assert_eq!(cluster.ask(&mut client, "GET after"), "\"yes\"");

    // One of the lost comes back, and with it a copy of what the survivor was.
    let lost = cluster.spawn_again(1);
    lost.wait_for_log("the cluster was recovered from another node while this one was lost");
    let number = identity_of(&cluster.data_folder(1), "node");
    let words = format!("node {number} is of the cluster that this one was recovered from, and was given up");
    cluster.node(0).wait_for_log(&words);
    let mut stranger = lost.client();
    // It may still load its data when it hears that.
    wait_for("it answers", || !stranger.show("GET before").contains("LOADING"));
    let told = stranger.show("GET before");
    assert!(told.contains("has been removed from its cluster"), "{told}");
    drop(lost);
    let mut client = cluster.client(0);
    assert_eq!(cluster.ask(&mut client, "INCR counter"), "(integer) 1");
    assert!(client.show("INFO cluster").contains("cluster_nodes:3"));
}

/// Kills the tool at several moments: a copy of the directory is the old one then, or the new one.
fn dies_within(directory: &Path) {
    let (mut old_count, mut new_count) = (0, 0);
    for round in 0..8_u64 {
        let copy = Folder::new();
        let path = copy.path().join("data");
        copy_folder(directory, &path);
        let mut tool = Command::new(binary());
        let tool = tool.args(["recover", "--accept-loss", "--data-dir"]).arg(&path).stdout(Stdio::null());
        let mut tool = tool.stderr(Stdio::null()).spawn().expect("the binary runs");
        thread::sleep(Duration::from_millis(round * round * 12));
        // It may have ended before.
        let _ = tool.kill();
        tool.wait().expect("a child");
        let (is_done, told) = recover_directory(&path, &[]);
        let is_old = is_done && told.contains("Nothing has been changed");
        let is_new = !is_done && told.contains("needs no recovery");
        assert!(is_old != is_new, "killed after {} ms: {told}", round * round * 12);
        let is_same = identity_of(&path, "cluster") == identity_of(directory, "cluster");
        assert_eq!(is_same, is_old, "{told}");
        if is_old {
            old_count += 1;
        } else {
            new_count += 1;
            let aside = fs::read_dir(&path).expect("a folder").map(|entry| entry.expect("an entry").path());
            let aside: Vec<_> = aside.filter(|path| path.display().to_string().contains(".before-recovery-")).collect();
            assert_eq!(identity_of(&aside[0], "cluster"), identity_of(directory, "cluster"));
        }
    }
    say(&format!("killed within: {old_count} times the old directory, {new_count} times the new one"));
}

fn identity_of(directory: &Path, name: &str) -> String {
    let text = fs::read_to_string(directory.join("identity")).expect("an identity");
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} "))).expect("a line");
    line.to_owned()
}

#[test]
fn what_cannot_be_recovered_is_refused_and_left_as_it_is() {
    let folder = Folder::new();
    let (is_done, told) = recover_directory(folder.path(), &["--accept-loss"]);
    assert!(!is_done && told.contains("is not a data directory"), "{told}");
    fs::write(folder.path().join("dump.rdb"), b"REDIS0011").expect("a folder");
    let (is_done, told) = recover_directory(folder.path(), &["--accept-loss"]);
    assert!(!is_done && told.contains("is not a data directory"), "{told}");
    assert_eq!(content(folder.path()).len(), 1);

    let mut cluster = Cluster::start(3);
    let mut client = cluster.client(2);
    for number in 0..50 {
        assert_eq!(cluster.ask(&mut client, &format!("SET key:{number} {}", "x".repeat(500))), "OK");
    }
    let nodes: Vec<Server> = cluster.nodes.iter_mut().filter_map(Option::take).collect();
    nodes.into_iter().for_each(Server::kill);
    let directory = cluster.data_folder(2);
    let log = files_beneath(&directory).into_iter().map(|(path, _)| path);
    let log = log.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log-"))).min();
    let log = log.expect("a log");
    let mut bytes = fs::read(&log).expect("a file");
    // Among the first records: many follow.
    bytes[4_200] ^= 1;
    fs::write(&log, &bytes).expect("a file");
    let before = content(&directory);
    for words in [&[][..], &["--accept-loss"]] {
        let (is_done, told) = recover_directory(&directory, words);
        assert!(!is_done && told.contains("is damaged at offset") && told.contains("recover another node"), "{told}");
    }
    assert!(content(&directory) == before);

    // A node that was started after two had been recovered from knows nothing of them.
    let other = cluster.data_folder(0).display().to_string();
    let alone = Folder::new();
    let server = Server::start(&crate::harness::ServerOptions::new(&alone.path().join("data")));
    server.stop();
    let alone = alone.path().join("data").display().to_string();
    let (is_done, told) = recover(&["--compare", &other, &alone]);
    assert!(!is_done && told.contains("is of another cluster than"), "{told}");
    let (is_done, told) = recover(&["--data-dir", &alone, "--accept-loss"]);
    assert!(!is_done && told.contains("needs no recovery"), "{told}");
}

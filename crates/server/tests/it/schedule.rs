//! Backups that servers make by themselves: so many are kept, one node of a cluster makes them, and after a failure it
//! goes on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cluster::Cluster;
use crate::harness::{Client, Folder, Server, ServerOptions, binary, both, wait_for};

/// The whole backups in a directory, the oldest first.
fn backups(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = entries
        .filter(|path| path.join("backup").exists() && path.extension().is_none_or(|end| end != "unfinished"))
        .collect();
    found.sort();
    found
}

fn tool(words: &[&str]) -> (bool, String) {
    let output = Command::new(binary()).args(words).output().expect("the binary runs");
    (output.status.success(), both(&output))
}

/// A number of INFO's.
fn number(client: &mut Client, name: &str) -> i64 {
    let info = client.show("INFO persistence");
    // The lines of a reply are shown as one.
    let value = info.split(&format!("{name}:")).nth(1).unwrap_or_default();
    let end = value.find(|at: char| !at.is_ascii_digit() && at != '-').unwrap_or(value.len());
    value[..end].parse().unwrap_or(-2)
}

#[test]
fn a_server_makes_backups_keeps_so_many_and_goes_on_after_a_failure() {
    let folder = Folder::new();
    let directory = folder.path().join("backups");
    let shown = directory.display().to_string();
    let words = ["--cores", "2", "--backup-dir", &shown, "--backup-interval-s", "1", "--backup-keep", "2"];
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")).extra(&words));
    server.wait_for_log("backups does not exist, and is created: if a disk was to be mounted there, it is not");
    let mut client = server.client();
    assert_eq!(client.show("SET kept yes"), "OK");
    let made = number(&mut client, "backups_made");
    wait_for("some backups", || number(&mut client, "backups_made") >= made + 4);
    wait_for("old ones to go", || (1..=2).contains(&backups(&directory).len()));
    assert!((0..600).contains(&number(&mut client, "backup_last_good_age_s")), "{}", client.show("INFO persistence"));
    assert_eq!(number(&mut client, "backup_maker"), 1);
    let (is_done, told) = tool(&["backup", "list", &shown]);
    assert!(is_done && told.contains("holdfast-"), "{told}");
    assert!(client.show("HOLDFAST TIMELINE 100").contains("a scheduled backup was made"));

    // A file stands where the directory was: there is no backup, and it is told.
    assert_eq!(client.show("CONFIG SET backup-keep 0"), "OK");
    let aside = folder.path().join("aside");
    fs::rename(&directory, &aside).expect("a directory");
    fs::write(&directory, "in the way").expect("a file");
    wait_for("a failure", || number(&mut client, "backups_failed") >= 1);
    assert!(client.show("INFO persistence").contains("backup_last_fault:cannot"));
    wait_for("the timeline", || client.show("HOLDFAST TIMELINE 100").contains("a scheduled backup came to nothing"));
    fs::remove_file(&directory).expect("a file");
    let made = number(&mut client, "backups_made");
    wait_for("it to go on", || number(&mut client, "backups_made") > made);
    assert_eq!(client.show("CONFIG SET backup-interval-s 100000"), "OK");

    // What is there can be restored.
    drop(server);
    let newest = backups(&directory).pop().expect("a backup").display().to_string();
    let restored = folder.path().join("restored");
    let (is_done, told) = tool(&["restore", &newest, "--data-dir", &restored.display().to_string(), "--groups", "1"]);
    assert!(is_done, "{told}");
    let server = Server::start(&ServerOptions::new(&restored).extra(&["--cores", "1"]));
    assert_eq!(server.client().show("GET kept"), "\"yes\"");
}

#[test]
fn one_node_of_a_cluster_makes_them_and_another_one_when_that_is_gone() {
    let folder = Folder::new();
    let directory = folder.path().join("backups");
    let mut cluster = Cluster::start(3);
    for node in 0..3 {
        let words = ["--backup-dir", &directory.display().to_string(), "--backup-interval-s", "1"];
        let options = cluster.options_of(node).extra(&words);
        *cluster.options_mut(node) = options;
        cluster.kill(node);
        cluster.restart(node);
    }
    let makers = |cluster: &Cluster| -> Vec<usize> {
        let is_maker = |node: &usize| {
            let mut client = cluster.try_client(*node)?;
            (number(&mut client, "backup_maker") == 1).then_some(())
        };
        (0..3).filter(|node| cluster.nodes[*node].is_some() && is_maker(node).is_some()).collect()
    };
    let mut first = 0;
    cluster.wait_until("one node makes backups", |this| {
        let makers = makers(this);
        first = makers.first().copied().unwrap_or(first);
        makers.len() == 1 && backups(&directory).len() > 1
    });
    cluster.kill(first);
    let count = backups(&directory).len();
    cluster.wait_until("another one does", |this| {
        let makers = makers(this);
        makers.len() == 1 && makers[0] != first && backups(&directory).len() > count + 1
    });
    let newest = backups(&directory).pop().expect("a backup").display().to_string();
    let (is_done, told) = tool(&["backup", "verify", &newest]);
    assert!(is_done && told.contains("whole, 2 groups"), "{told}");
}

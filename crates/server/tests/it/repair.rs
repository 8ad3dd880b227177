//! Files of one node are damaged: it is named, set aside, and filled again from the others; nothing acknowledged is
//! lost by it, and where something could be lost it is refused.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use stdx::Prng;

use crate::cluster::Cluster;
use crate::damage::{all_records, files, flip, name, names_the_place, newest_log};
use crate::harness::{Exit, Server, binary, both, files_beneath, number_from_environment};

/// `holdfast repair` of a node's directory, which asks at the port of another: what it prints, and whether it did
/// what it should.
fn repair(cluster: &Cluster, node: usize, asked: usize, words: &[&str]) -> (bool, String) {
    let directory = cluster.data_folder(node);
    let mut tool = Command::new(binary());
    tool.arg("repair").arg("--data-dir").arg(&directory);
    let output = tool.args(["--server", &cluster.address(asked)]).args(words).output().expect("the binary runs");
    (output.status.success(), both(&output))
}

fn value(number: usize) -> String {
    format!("value-{number}-{}", "z".repeat(120))
}

/// Writes keys of both groups, each acknowledged by itself.
fn write(cluster: &Cluster, node: usize, numbers: std::ops::Range<usize>) {
    let mut client = cluster.client(node);
    for number in numbers {
        assert_eq!(cluster.ask(&mut client, &format!("SET r:{number} {}", value(number))), "OK");
    }
}

#[track_caller]
fn verify(cluster: &Cluster, node: usize, count: usize) {
    let mut client = cluster.client(node);
    for number in 0..count {
        assert_eq!(cluster.ask(&mut client, &format!("GET r:{number}")), format!("\"{}\"", value(number)));
    }
}

/// The node does not start, and says which file is damaged where, and what to do.
fn refused(cluster: &Cluster, node: usize, file: &Path) -> Exit {
    let exit = Server::try_start(&cluster.options_of(node)).err().expect("a damaged node does not start");
    assert!(names_the_place(&exit.log, &name(file)), "not named:\n{}", exit.log);
    assert!(exit.log.contains("holdfast repair"), "{}", exit.log);
    exit
}

/// All groups have all voters, and nobody lacks anything. What another node tells of one that has just started may be
/// from before. So the node itself must have noted that the end of its log is no longer in question, in a mark outside
/// of the log.
fn wait_until_filled(cluster: &mut Cluster, node: usize, asked: usize) {
    cluster.wait_until("the node has been filled, and knows so", |this| {
        if fs::read(this.data_folder(node).join("tail")).is_ok_and(|mark| mark.get(12) != Some(&0)) {
            return false;
        }
        let (_, json) = this.tool(asked, &["status", "--json"]);
        let all = |name: &str, is_fine: &dyn Fn(&str) -> bool| {
            let beginning = format!("\"{name}\": ");
            let mut values = json.split(&beginning).skip(1).map(|rest| rest.split([',', '\n']).next().unwrap_or(""));
            json.contains(&beginning) && values.all(|value| is_fine(value.trim_matches('"')))
        };
        all("behind_entries", &|value| value == "0") && all("active", &|value| value == "1")
    });
}

#[test]
fn a_node_with_a_flipped_bit_in_its_log_or_checkpoint_is_filled_again_by_the_others() {
    let mut cluster = Cluster::start(3);
    let mut prng = Prng::new(number_from_environment("HOLDFAST_CRASH_SEED", 3));
    let mut written = 0;
    // The founder, with a membership that stands in no log, and one that has joined.
    for (node, asked, of_checkpoint) in [(0, 1, false), (2, 0, true)] {
        write(&cluster, asked, written..written + 80);
        written += 80;
        if of_checkpoint {
            assert_eq!(cluster.client(node).show("SAVE"), "OK");
        }
        let (is_done, told) = repair(&cluster, node, asked, &[]);
        assert!(!is_done && told.contains("is in use by a server"), "{told}");
        cluster.kill(node);
        let (is_done, told) = repair(&cluster, node, asked, &[]);
        assert!(is_done && told.contains("No file is damaged"), "{told}");

        let options = cluster.options_of(node);
        let damaged = if of_checkpoint {
            let checkpoint = files(&options, "checkpoint-").pop().expect("a checkpoint");
            let length = fs::metadata(&checkpoint).expect("its size").len();
            flip(&checkpoint, 4096 + prng.draw() % (length - 8192).max(1), prng.draw() as u32);
            checkpoint
        } else {
            let log = newest_log(&options);
            let mut records = all_records(&log);
            // Some have a head alone.
            records.retain(|(start, end)| end - start > 40);
            let (start, end) = records[records.len() / 2];
            flip(&log, start + 32 + prng.draw() % (end - start - 40), prng.draw() as u32);
            log
        };
        let exit = refused(&cluster, node, &damaged);
        assert_eq!(exit.log.contains("(group "), of_checkpoint, "{}", exit.log);

        // The others go on meanwhile.
        write(&cluster, asked, written..written + 20);
        written += 20;
        let before = files_beneath(&options.data_folder).len();
        let (is_done, told) = repair(&cluster, node, asked, &["--check"]);
        assert!(is_done && told.contains("DAMAGED") && told.contains(&name(&damaged)), "{told}");
        assert!(told.contains("Nothing has been changed"), "{told}");
        assert_eq!(files_beneath(&options.data_folder).len(), before);
        let (is_done, told) = repair(&cluster, node, asked, &[]);
        assert!(is_done && told.contains("Repaired: "), "{told}");
        let kept = files_beneath(&options.data_folder).into_iter().map(|(path, _)| path);
        let is_kept =
            |path: &Path| path.display().to_string().contains(".before-repair-") && path.ends_with(name(&damaged));
        assert!(kept.into_iter().any(|path| is_kept(&path)), "the damaged file is gone");

        // It need not be told again which cluster to join, and may be killed before it has everything.
        let options = cluster.options_mut(node);
        options.environment.clear();
        for round in 0..3 {
            let server = Server::spawn(&cluster.options_of(node));
            thread::sleep(std::time::Duration::from_millis(150 * round));
            server.kill();
        }
        cluster.restart(node);
        wait_until_filled(&mut cluster, node, asked);

        // It is needed for a majority now, and has everything.
        cluster.kill(asked);
        write(&cluster, node, written..written + 5);
        written += 5;
        verify(&cluster, node, written);
        cluster.restart(asked);
        wait_until_filled(&mut cluster, asked, asked);
    }
    verify(&cluster, 1, written);
}

#[test]
fn a_node_is_filled_again_in_a_cluster_in_which_groups_came_and_went() {
    let mut cluster = Cluster::start_with_groups(3, 2);
    write(&cluster, 0, 0..80);
    let (is_done, told) = cluster.tool(0, &["groups", "3"]);
    assert!(is_done, "{told}");
    // Now there are as many as at first, with other numbers.
    let (is_done, told) = cluster.tool(0, &["merge", "1", "0"]);
    assert!(is_done && told.contains("group 1 has been merged"), "{told}");
    write(&cluster, 0, 80..120);
    cluster.kill(2);
    let log = newest_log(&cluster.options_of(2));
    let records = all_records(&log);
    flip(&log, records[records.len() / 2].0 + 40, 3);
    refused(&cluster, 2, &log);
    let (is_done, told) = repair(&cluster, 2, 0, &[]);
    assert!(is_done && told.contains("The other nodes hold all of 2 groups") && told.contains("Repaired: "), "{told}");
    cluster.restart(2);
    wait_until_filled(&mut cluster, 2, 0);
    cluster.kill(0);
    write(&cluster, 2, 120..125);
    verify(&cluster, 2, 125);
    cluster.restart(0);
}

#[test]
fn a_second_damaged_node_is_refused_and_left_as_it_is() {
    let mut cluster = Cluster::start(3);
    write(&cluster, 0, 0..60);
    for node in [1, 2] {
        cluster.kill(node);
        let log = newest_log(&cluster.options_of(node));
        let records = all_records(&log);
        flip(&log, records[records.len() / 2].0 + 40, 3);
    }
    let before = files_beneath(&cluster.data_folder(1));
    // Each asks for half a minute whether the others come back.
    let of = &cluster;
    let asked = thread::scope(|scope| {
        [1, 2].map(|node| scope.spawn(move || repair(of, node, 0, &[]))).map(|asked| asked.join().expect("a tool"))
    });
    for (node, (is_done, told)) in [1, 2].into_iter().zip(asked) {
        assert!(!is_done && told.contains("has no leader") && told.contains("nothing has been changed"), "{told}");
        assert!(told.contains("holdfast recover"), "{told}");
        let (is_done, told) = repair(&cluster, node, node, &[]);
        assert!(!is_done && told.contains("another node of the cluster must say"), "{told}");
    }
    assert_eq!(files_beneath(&cluster.data_folder(1)), before);
}

#[test]
fn a_server_that_is_alone_is_told_what_to_do_instead() {
    let mut cluster = Cluster::start(1);
    write(&cluster, 0, 0..60);
    cluster.kill(0);
    let log = newest_log(&cluster.options_of(0));
    let records = all_records(&log);
    flip(&log, records[records.len() / 2].0 + 40, 3);
    refused(&cluster, 0, &log);
    let (is_done, told) = repair(&cluster, 0, 0, &[]);
    assert!(!is_done && told.contains("DAMAGED, all groups") && told.contains("holdfast restore"), "{told}");
    // One that runs, of another cluster, says nothing for it.
    let other = Cluster::start(1);
    let mut tool = Command::new(binary());
    tool.arg("repair").arg("--data-dir").arg(cluster.data_folder(0)).args(["--server", &other.address(0)]);
    let output = tool.output().expect("the binary runs");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains("is of another cluster"), "{told}");
}

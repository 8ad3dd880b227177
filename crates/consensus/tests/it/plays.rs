//! Runs every play in `scenarios/consensus`. A play is blocks of commands, each followed by `----` and what happened.
//! `UPDATE_EXPECT=1` writes down what happens now.

use std::path::{Path, PathBuf};

use consensus::Change;

use crate::cluster::Cluster;

/// Words of the plays. Node lists are separated by spaces.
///
/// ```text
/// cluster VOTERS [LEARNERS]   tick NODE|all COUNT      campaign NODE           propose NODE TEXT
/// read NODE CONTEXT           deliver [FROM>TO [KIND]] drop [FROM>TO [KIND]]   stabilize [silently]
/// crash NODE  (process)       power-cut NODE           restart NODE [recovering]
/// partition A… | B…           heal                     status                  applied NODE
/// hold-syncs NODE             persist NODE             pretend NODE            compact NODE INDEX
/// lag NODE                    join NODE                offer NODE INDEX        transfer
/// lease NODE                  trust NODE               feed NODE
/// unreachable NODE MEMBER     empty NODE (which is down)
/// change NODE add-learner|add-voter|remove MEMBER      hand-over NODE MEMBER
/// ```
fn perform(cluster: &mut Option<Cluster>, line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |at: usize| -> u64 { words[at].parse().unwrap_or_else(|_| panic!("{line}: word {at} is no number")) };
    if words[0] == "cluster" {
        let learners = words.get(2).map_or(0, |_| number(2));
        *cluster = Some(Cluster::new(number(1), learners, 42));
        return;
    }
    let stage = cluster.as_mut().expect("a play begins with a cluster");
    let link = |message: &consensus::Message| {
        words.get(1).is_none_or(|link| *link == format!("{}>{}", message.from(), message.to()))
            && words.get(2).is_none_or(|kind| *kind == format!("{:?}", message.kind()))
    };
    match words[0] {
        "tick" if words[1] == "all" => {
            let ids: Vec<u64> = stage.nodes.keys().copied().collect();
            (0..number(2)).for_each(|_| ids.iter().for_each(|id| stage.tick(*id, 1)));
        }
        "tick" => stage.tick(number(1), number(2)),
        "campaign" => stage.campaign(number(1)),
        "propose" => stage.propose(number(1), words[2]),
        "read" => stage.read(number(1), number(2)),
        "deliver" => drop(stage.deliver(true, link)),
        "drop" => stage.in_flight.retain(|message| !link(message)),
        "stabilize" => stage.stabilize(words.get(1) != Some(&"silently")),
        "crash" => stage.crash(number(1), false),
        "power-cut" => stage.crash(number(1), true),
        "empty" => stage.empty(number(1)),
        "restart" => stage.start(number(1), words.get(2) == Some(&"recovering")),
        "partition" => {
            let sides: Vec<Vec<u64>> = line["partition".len()..]
                .split('|')
                .map(|side| side.split_whitespace().map(|id| id.parse().expect("a node")).collect())
                .collect();
            for (left, right) in sides[0].iter().flat_map(|left| sides[1].iter().map(move |right| (*left, *right))) {
                stage.cut(left, right);
                stage.cut(right, left);
            }
        }
        "heal" => stage.heal(),
        "join" => stage.join(number(1)),
        "change" => {
            let node = number(3);
            let change = match words[2] {
                "add-learner" => Change::AddLearner(node),
                "add-voter" => Change::AddVoter(node),
                "remove" => Change::Remove(node),
                other => panic!("no such change: {other}"),
            };
            stage.change(number(1), change);
        }
        "hand-over" => stage.hand_over(number(1), number(2)),
        "offer" => stage.offer(number(1), number(2)),
        "transfer" => stage.transfer(),
        "trust" => stage.replica(number(1)).trust(),
        "lease" => stage.lease(number(1)),
        "unreachable" => stage.unreachable(number(1), number(2)),
        "feed" => stage.feed(number(1)),
        "status" => stage.status(),
        "applied" => {
            let applied = stage.node(number(1)).applied.join(" ");
            stage.transcript.push_str(&format!("in all: {applied}\n"));
        }
        "hold-syncs" => stage.set_syncs(number(1), false),
        "persist" => {
            stage.set_syncs(number(1), true);
            stage.persist(number(1));
        }
        "pretend" => stage.pretend(number(1)),
        "compact" => stage.replica(number(1)).compact(number(2)),
        "lag" => {
            let everywhere = stage.replica(number(1)).match_index_min();
            stage.transcript.push_str(&format!("everyone holds {everywhere}\n"));
        }
        other => panic!("no such word: {other}"),
    }
}

fn play(text: &str) -> String {
    let mut cluster = None;
    let mut told = String::new();
    let mut skipping = false;
    for line in text.lines() {
        if skipping {
            skipping = !line.is_empty();
            if !skipping {
                told.push('\n');
            }
        } else if line == "----" {
            told.push_str("----\n");
            let stage: &mut Cluster = cluster.as_mut().expect("a play begins with a cluster");
            told.push_str(&std::mem::take(&mut stage.transcript));
            skipping = true;
        } else {
            if !line.is_empty() && !line.starts_with('#') {
                perform(&mut cluster, line);
            }
            told.push_str(line);
            told.push('\n');
        }
    }
    told
}

#[test]
fn every_play_goes_as_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/consensus");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&folder).expect("the plays").map(|file| file.expect("a file").path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let written = std::fs::read_to_string(&file).expect("a play is text");
        let told = play(&written);
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::write(&file, &told).expect("the play is rewritten");
        } else {
            assert_eq!(told, written, "{} went otherwise (left: now, right: as written)", file.display());
        }
    }
}

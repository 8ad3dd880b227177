//! CLUSTER: the cluster in the terms of Redis, for clients that look for leaders themselves.
//!
//! A node that leads groups is a master of their slots. One that leads none is a replica of one master, of which it
//! holds the groups, though it may hold those of others.

use command::{Flag, Group, Refusal};
use group::ids::NodeId;
use group::replica_reads::Reading;
use resp::{Args, Writer};
use stdx::Duration;
use stdx::slot::{SLOT_COUNT, slot_of};

use super::{Absent, Answer, Body, ControlCommand, Local, Outcome, Question, container, local, node, number, plain};
use crate::context::Context;
use crate::limits::READ_STALENESS_MS_MAX;
use crate::masters::{Health, Map, check_enabled};
use crate::roster::{Member, host_and_port, name_of};

const FLAGS: &[Flag] = &[Flag::Loading, Flag::Stale];
const TIPS: &[&str] = &["nondeterministic_output"];

pub(super) const CLUSTER: ControlCommand = ControlCommand {
    since: "3.0.0",
    group: Group::Cluster,
    summary: "Commands on the cluster, for clients that look for leaders themselves.",
    subcommands: &[
        ControlCommand { summary: "Returns whether all slots are served.", tips: TIPS, ..about("info", 2, info) },
        ControlCommand {
            summary: "Returns this node's name.",
            ..about("myid", 2, |local, _, writer| {
                writer.bulk(name_of(local.core.node).as_bytes());
                Ok(())
            })
        },
        ControlCommand {
            since: "7.2.0",
            summary: "Returns the name of the shard that this node belongs to: its master's.",
            tips: TIPS,
            ..about("myshardid", 2, |local, _, writer| {
                let map = Map::of(local.core);
                writer.bulk(name_of(map.master_of(local.core.node).unwrap_or(local.core.node)).as_bytes());
                Ok(())
            })
        },
        ControlCommand {
            summary: "Lists nodes with what they serve, one line each.",
            complexity: "O(N) where N is the total number of Cluster nodes",
            tips: TIPS,
            ..about("nodes", 2, nodes)
        },
        ControlCommand {
            summary: "Returns which node serves which slots.",
            complexity: "O(N) where N is the total number of Cluster nodes",
            tips: TIPS,
            ..about("slots", 2, slots)
        },
        ControlCommand {
            since: "7.0.0",
            summary: "Returns which nodes serve which slots, with their roles and health.",
            complexity: "O(N) where N is the total number of cluster nodes",
            tips: TIPS,
            ..about("shards", 2, shards)
        },
        ControlCommand {
            since: "7.0.0",
            summary: "Lists the links to other nodes.",
            complexity: "O(N) where N is the total number of Cluster nodes",
            tips: TIPS,
            ..about("links", 2, links)
        },
        ControlCommand {
            summary: "Returns the slot of a key.",
            complexity: "O(N) where N is the number of bytes in the key",
            syntax: "key",
            ..about("keyslot", 3, |_, args, writer| {
                writer.integer(i64::from(slot_of(args.at(2)).0));
                Ok(())
            })
        },
        ControlCommand {
            summary: "Returns how many keys of a slot this node has.",
            syntax: "slot",
            group: Group::Cluster,
            flags: FLAGS,
            ..node("countkeysinslot", 3, count_question, |_, _, answers, writer| {
                writer.count(keys_of(answers).len());
                Ok(())
            })
        },
        ControlCommand {
            summary: "Returns some keys of a slot that this node has.",
            complexity: "O(log(N)) where N is the number of requested keys",
            syntax: "slot count",
            group: Group::Cluster,
            flags: FLAGS,
            tips: TIPS,
            ..node("getkeysinslot", 4, keys_question, |_, _, answers, writer| {
                let keys = keys_of(answers);
                writer.array(keys.len());
                keys.iter().for_each(|key| writer.bulk(key));
                Ok(())
            })
        },
        ControlCommand {
            since: "8.2.0",
            summary: "Returns how many keys the slots of this node have.",
            complexity: "O(N) where N is the number of slots and of the keys in them",
            syntax: "<SLOTSRANGE start-slot end-slot | ORDERBY metric [LIMIT limit] [ASC | DESC]>",
            group: Group::Cluster,
            flags: FLAGS,
            tips: &["nondeterministic_output", "request_policy:all_shards"],
            ..node("slot-stats", -4, slot_stats_question, slot_stats)
        },
        ControlCommand {
            summary: "Lists the nodes that follow a master, one line each as in NODES.",
            syntax: "node-id",
            complexity: "O(1)",
            since: "5.0.0",
            ..administers("replicas", 3, replicas)
        },
        ControlCommand {
            summary: "The old name of REPLICAS.",
            syntax: "node-id",
            ..administers("slaves", 3, replicas)
        },
        ControlCommand {
            summary: "Returns 0: nodes do not report failures, each relies on its own link.",
            complexity: "O(N) where N is the number of failure reports",
            syntax: "node-id",
            ..administers("count-failure-reports", 3, |local, args, writer| {
                check_enabled(local.core)?;
                named(&Map::of(local.core), args.at(2))?;
                writer.integer(0);
                Ok(())
            })
        },
        ControlCommand {
            since: "3.0.0",
            group: Group::Cluster,
            summary: "Makes this node, which is shown as a replica, the preferred leader of what its master leads.",
            syntax: "[FORCE|TAKEOVER]",
            flags: &[Flag::Admin, Flag::NoAsyncLoading, Flag::Stale],
            ..plain("failover", -2, Body::Admin)
        },
        ControlCommand {
            summary: "Returns the epoch of the cluster, which stays as it is: groups count it themselves.",
            complexity: "O(1)",
            tips: &["nondeterministic_output"],
            flags: &[Flag::Admin, Flag::NoAsyncLoading, Flag::Stale],
            ..administers("bumpepoch", 2, |local, _, writer| {
                check_enabled(local.core)?;
                writer.simple(&format!("STILL {}", current_epoch(local.core)));
                Ok(())
            })
        },
        ControlCommand {
            summary: "Accepted, without effect: what nodes know of the cluster is in the log of group 0, on disk.",
            tips: &[],
            flags: &[Flag::Admin, Flag::NoAsyncLoading, Flag::Stale],
            ..administers("saveconfig", 2, |local, _, writer| {
                check_enabled(local.core)?;
                writer.ok();
                Ok(())
            })
        },
        ControlCommand {
            since: "5.0.0",
            summary: "Lists the subcommands.",
            ..about("help", 2, |_, _, writer| {
                super::write_help(writer, "CLUSTER", CLUSTER.subcommands);
                Ok(())
            })
        },
    ],
    body: Body::Container(ABSENT),
    ..container("cluster")
};

/// How clusters of Redis are administrated, also by `redis-cli --cluster`.
const ABSENT: &[Absent] = &[
    (
        &["meet"],
        "ERR Nodes join by an invitation: holdfast cluster create makes one cluster of several servers, holdfast cluster \
         add lets one join",
    ),
    (
        &["forget", "reset"],
        "ERR holdfast cluster remove lets a node leave, alive or dead: others take over its groups first",
    ),
    (
        &["addslots", "addslotsrange", "delslots", "delslotsrange", "flushslots", "setslot"],
        "ERR Slots belong to groups from the beginning: holdfast cluster move moves them, holdfast cluster rebalance spreads \
         leaders",
    ),
    (
        &["migrateslots", "migration", "getslotmigrations", "cancelslotmigrations"],
        "ERR holdfast cluster move moves slots, and holdfast cluster status shows how far it is",
    ),
    (
        &["replicate"],
        "ERR Each group chooses its replicas by itself: --replicas says how many vote, holdfast cluster prefer who leads",
    ),
    (&["set-config-epoch"], "ERR Epochs are counted by the groups themselves, and cannot be set"),
];

pub(super) const ASKING: ControlCommand = ControlCommand {
    since: "3.0.0",
    group: Group::Cluster,
    summary: "Announces that a redirection is followed; without effect, since no slot is between two nodes.",
    categories: &["@connection"],
    flags: &[Flag::Fast],
    ..local("asking", 1, |local, _, writer| {
        check_enabled(local.core)?;
        writer.ok();
        Ok(())
    })
};

pub(super) const READONLY: ControlCommand = ControlCommand {
    since: "3.0.0",
    group: Group::Cluster,
    summary: "Allows the replica on this node to answer reads of this connection, if it is not too old.",
    syntax: "[MAXSTALENESS milliseconds]",
    categories: &["@connection"],
    flags: &[Flag::Loading, Flag::Stale, Flag::Fast],
    ..local("readonly", -1, read_only)
};

fn read_only(local: &mut Local<'_>, args: Args<'_>, writer: &mut Writer) -> Outcome {
    check_enabled(local.core)?;
    let allowed = match args.len() {
        1 => None,
        3 if args.at(1).eq_ignore_ascii_case(b"maxstaleness") => {
            let given = number(args.at(2)).and_then(|given| u64::try_from(given).ok());
            let ms = given.ok_or(Refusal::NOT_AN_INTEGER)?;
            // What is younger than the most that can be asked for is younger than whatever is more.
            Some(Duration::from_millis(ms.min(READ_STALENESS_MS_MAX)))
        }
        _ => return Err(Refusal::SYNTAX),
    };
    local.session.options.reading = Some(Box::new(Reading::new(allowed)));
    writer.ok();
    Ok(())
}

pub(super) const READWRITE: ControlCommand = ControlCommand {
    since: "3.0.0",
    group: Group::Cluster,
    summary: "Undoes READONLY.",
    categories: &["@connection"],
    flags: &[Flag::Loading, Flag::Stale, Flag::Fast],
    ..local("readwrite", 1, |local, _, writer| {
        check_enabled(local.core)?;
        local.session.options.reading = None;
        writer.ok();
        Ok(())
    })
};

const fn about(name: &'static str, arity: i32, run: super::Run) -> ControlCommand {
    ControlCommand { since: "3.0.0", group: Group::Cluster, flags: FLAGS, ..local(name, arity, run) }
}

/// What operators ask.
const fn administers(name: &'static str, arity: i32, run: super::Run) -> ControlCommand {
    ControlCommand { flags: &[Flag::Admin, Flag::Stale], tips: TIPS, ..about(name, arity, run) }
}

fn info(local: &mut Local<'_>, _: Args<'_>, writer: &mut Writer) -> Outcome {
    check_enabled(local.core)?;
    writer.verbatim("txt", info_text(local.core).as_bytes());
    Ok(())
}

/// The largest term among the groups.
fn current_epoch(core: &Context) -> u64 {
    core.routes.iter().map(|route| route.term).max().unwrap_or(0)
}

/// What CLUSTER INFO answers, whether or not the cluster's commands are enabled.
pub(crate) fn info_text(core: &Context) -> String {
    let map = Map::of(core);
    let served = map.slot_count();
    let failing = SLOT_COUNT as u32 - served;
    let is_whole = failing == 0 && !core.is_expelled;
    let epoch = current_epoch(core);
    let sent: u64 = core.host.report.links.iter().map(|link| link.message_count).sum();
    format!(
        "cluster_state:{}\r\ncluster_slots_assigned:{SLOT_COUNT}\r\ncluster_slots_ok:{served}\r\n\
         cluster_slots_pfail:0\r\ncluster_slots_fail:{failing}\r\ncluster_known_nodes:{}\r\ncluster_size:{}\r\n\
         cluster_current_epoch:{epoch}\r\ncluster_my_epoch:{}\r\ncluster_stats_messages_sent:{sent}\r\n\
         cluster_stats_messages_received:0\r\ntotal_cluster_links_buffer_limit_exceeded:0\r\n",
        if is_whole { "ok" } else { "fail" },
        map.nodes().len(),
        map.served.len(),
        map.epoch(core.node),
    )
}

fn nodes(local: &mut Local<'_>, _: Args<'_>, writer: &mut Writer) -> Outcome {
    check_enabled(local.core)?;
    let map = Map::of(local.core);
    let mut text = String::new();
    for (node, member) in map.nodes() {
        text.push_str(&map.line(node, member, local.now.unix));
        text.push('\n');
    }
    writer.verbatim("txt", text.as_bytes());
    Ok(())
}

/// The node that CLUSTER REPLICAS and its kin name.
fn named<'a>(map: &Map<'a>, name: &[u8]) -> Result<(NodeId, &'a Member), Refusal> {
    let found = map.nodes().into_iter().find(|(node, _)| name_of(*node).as_bytes().eq_ignore_ascii_case(name));
    found.ok_or_else(|| Refusal::new(format!("ERR Unknown node {}", String::from_utf8_lossy(name))))
}

fn replicas(local: &mut Local<'_>, args: Args<'_>, writer: &mut Writer) -> Outcome {
    check_enabled(local.core)?;
    let map = Map::of(local.core);
    let (master, _) = named(&map, args.at(2))?;
    if map.master_of(master).is_some() {
        return Err(Refusal::new("ERR The specified node is not a master"));
    }
    let replicas = map.nodes().into_iter().filter(|(node, _)| map.master_of(*node) == Some(master));
    let lines: Vec<_> = replicas.map(|(node, member)| map.line(node, member, local.now.unix)).collect();
    writer.array(lines.len());
    lines.iter().for_each(|line| writer.bulk(line.as_bytes()));
    Ok(())
}

fn slots(local: &mut Local<'_>, _: Args<'_>, writer: &mut Writer) -> Outcome {
    check_enabled(local.core)?;
    let map = Map::of(local.core);
    let nodes = map.nodes();
    let mut ranges: Vec<_> =
        map.served.iter().flat_map(|(node, ranges)| ranges.iter().map(move |range| (*range, *node))).collect();
    ranges.sort_unstable();
    writer.array(ranges.len());
    for ((first, last), leader) in ranges {
        let member = nodes.iter().copied().filter(|(node, _)| *node == leader);
        let serving: Vec<_> = member.chain(map.readers_of(leader, &[(first, last)])).collect();
        writer.array(2 + serving.len());
        writer.integer(first.into());
        writer.integer(last.into());
        for (node, member) in serving {
            let (host, port) = host_and_port(&member.client_address);
            writer.array(4);
            writer.bulk(host.as_bytes());
            writer.integer(port.parse().unwrap_or(0));
            writer.bulk(name_of(node).as_bytes());
            writer.array(0);
        }
    }
    Ok(())
}

fn shards(local: &mut Local<'_>, _: Args<'_>, writer: &mut Writer) -> Outcome {
    check_enabled(local.core)?;
    let map = Map::of(local.core);
    let nodes = map.nodes();
    writer.array(map.served.len());
    for (leader, ranges) in &map.served {
        writer.map(2);
        writer.bulk(b"slots");
        writer.array(2 * ranges.len());
        for (first, last) in ranges {
            writer.integer((*first).into());
            writer.integer((*last).into());
        }
        writer.bulk(b"nodes");
        let is_of_shard = |node: NodeId| node == *leader || map.master_of(node) == Some(*leader);
        let mut serving: Vec<_> = nodes.iter().copied().filter(|(node, _)| is_of_shard(*node)).collect();
        serving.extend(map.readers_of(*leader, ranges).into_iter().filter(|(node, _)| !is_of_shard(*node)));
        serving.sort_by_key(|(node, _)| (node != leader, *node));
        writer.array(serving.len());
        for (node, member) in serving {
            let (host, port) = host_and_port(&member.client_address);
            writer.map(7);
            writer.bulk(b"id");
            writer.bulk(name_of(node).as_bytes());
            writer.bulk(b"port");
            writer.integer(port.parse().unwrap_or(0));
            for name in ["ip", "endpoint"] {
                writer.bulk(name.as_bytes());
                writer.bulk(host.as_bytes());
            }
            writer.bulk(b"role");
            writer.bulk(if node == *leader { b"master" } else { b"replica" });
            writer.bulk(b"replication-offset");
            writer.integer(0);
            writer.bulk(b"health");
            writer.bulk(if map.health(node) == Health::Well { b"online" } else { b"fail" });
        }
    }
    Ok(())
}

fn links(local: &mut Local<'_>, _: Args<'_>, writer: &mut Writer) -> Outcome {
    let core = &*local.core;
    check_enabled(core)?;
    let started_ms = core.process.started.0;
    let up: Vec<_> = core.host.report.links.iter().filter(|link| link.is_up).collect();
    // Each of two nodes has a connection of its own to the other one; clients pair them.
    writer.array(up.len() * 2);
    for link in up {
        let directions = [("to", "w", link.waiting_bytes as i64), ("from", "r", 0)];
        for (direction, events, waiting_bytes) in directions {
            writer.map(6);
            writer.bulk(b"direction");
            writer.bulk(direction.as_bytes());
            writer.bulk(b"node");
            writer.bulk(name_of(link.node).as_bytes());
            writer.bulk(b"create-time");
            writer.integer(started_ms + link.since_s as i64 * 1_000);
            writer.bulk(b"events");
            writer.bulk(events.as_bytes());
            for name in ["send-buffer-allocated", "send-buffer-used"] {
                writer.bulk(name.as_bytes());
                writer.integer(waiting_bytes);
            }
        }
    }
    Ok(())
}

pub(super) fn slot_number(word: &[u8]) -> Option<u16> {
    number(word).and_then(|slot| u16::try_from(slot).ok()).filter(|slot| usize::from(*slot) < SLOT_COUNT)
}

fn count_question(local: &mut Local<'_>, args: Args<'_>) -> Result<Question, Refusal> {
    check_enabled(local.core)?;
    let slot = slot_number(args.at(2)).ok_or_else(|| Refusal::new("ERR Invalid slot"))?;
    Ok(Question::KeysOfSlot { slot, database: local.session.database, count: usize::MAX })
}

fn keys_question(local: &mut Local<'_>, args: Args<'_>) -> Result<Question, Refusal> {
    check_enabled(local.core)?;
    let count = number(args.at(3)).and_then(|count| usize::try_from(count).ok());
    match (slot_number(args.at(2)), count) {
        (Some(slot), Some(count)) => Ok(Question::KeysOfSlot { slot, database: local.session.database, count }),
        _ => Err(Refusal::new("ERR Invalid slot or number of keys")),
    }
}

fn keys_of(answers: Vec<Answer>) -> Vec<Vec<u8>> {
    answers
        .into_iter()
        .flat_map(|answer| match answer {
            Answer::Names(keys) => keys,
            other => unreachable!("a core told {other:?} for its keys"),
        })
        .collect()
}

/// Which slots CLUSTER SLOT-STATS is about, and in which order.
struct SlotStats {
    first: u16,
    last: u16,
    by_key_count: bool,
    is_ascending: bool,
    limit: usize,
}

impl SlotStats {
    fn parse(args: Args<'_>) -> Result<Self, Refusal> {
        const LAST: u16 = SLOT_COUNT as u16 - 1;
        let mut asked = Self { first: 0, last: LAST, by_key_count: false, is_ascending: false, limit: SLOT_COUNT };
        if args.len() == 5 && args.at(2).eq_ignore_ascii_case(b"slotsrange") {
            let slot = |word| slot_number(word).ok_or_else(|| Refusal::new("ERR Invalid or out of range slot"));
            (asked.first, asked.last) = (slot(args.at(3))?, slot(args.at(4))?);
            asked.is_ascending = true;
            if asked.first > asked.last {
                let (first, last) = (asked.first, asked.last);
                let text = format!("ERR Start slot number {first} is greater than end slot number {last}");
                return Err(Refusal::new(text));
            }
            return Ok(asked);
        }
        if !args.at(2).eq_ignore_ascii_case(b"orderby") {
            return Err(super::subcommand_syntax(args));
        }
        if !args.at(3).eq_ignore_ascii_case(b"key-count") {
            return Err(Refusal::new("ERR Unrecognized sort metric for ORDERBY."));
        }
        asked.by_key_count = true;
        let (mut limits, mut orders) = (0, 0);
        let mut next = 4;
        while let Some(word) = args.get(next) {
            match (word.to_ascii_lowercase().as_slice(), args.get(next + 1)) {
                (b"limit", Some(limit)) => {
                    let limit = number(limit).and_then(|limit| usize::try_from(limit).ok());
                    asked.limit = limit.filter(|limit| (1..=SLOT_COUNT).contains(limit)).ok_or_else(|| {
                        Refusal::new("ERR Limit has to lie in between 1 and 16384 (maximum number of slots).")
                    })?;
                    limits += 1;
                    next += 1;
                }
                (order @ (b"asc" | b"desc"), _) => {
                    asked.is_ascending = order == b"asc";
                    orders += 1;
                }
                _ => return Err(Refusal::SYNTAX),
            }
            next += 1;
            if limits > 1 || orders > 1 {
                return Err(Refusal::new("ERR Multiple filters of the same type are disallowed."));
            }
        }
        Ok(asked)
    }
}

fn slot_stats_question(local: &mut Local<'_>, args: Args<'_>) -> Result<Question, Refusal> {
    check_enabled(local.core)?;
    let SlotStats { first, last, .. } = SlotStats::parse(args)?;
    Ok(Question::SlotKeys { first, last, database: local.session.database })
}

fn slot_stats(local: &mut Local<'_>, args: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    let asked = SlotStats::parse(args)?;
    let map = Map::of(local.core);
    let ranges = map.served.get(&local.core.node).map(Vec::as_slice).unwrap_or_default();
    let is_served = |slot: u16| ranges.iter().any(|(first, last)| (*first..=*last).contains(&u32::from(slot)));
    let mut slots: Vec<(u16, u64)> = (asked.first..=asked.last).map(|slot| (slot, 0)).collect();
    for answer in answers {
        let Answer::Counts(counts) = answer else { unreachable!("a core told {answer:?} for the keys of its slots") };
        slots.iter_mut().zip(counts).for_each(|((_, sum), count)| *sum += count);
    }
    slots.retain(|(slot, _)| is_served(*slot));
    if asked.by_key_count {
        let weight = |count: u64| if asked.is_ascending { count } else { u64::MAX - count };
        slots.sort_by_key(|(slot, count)| (weight(*count), *slot));
    }
    slots.truncate(asked.limit);
    writer.array(slots.len());
    for (slot, count) in slots {
        writer.array(2);
        writer.integer(slot.into());
        writer.map(1);
        writer.bulk(b"key-count");
        writer.integer(count as i64);
    }
    Ok(())
}

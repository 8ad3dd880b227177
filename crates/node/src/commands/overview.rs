//! What a node says of its cluster: ROLE, the sections of INFO on replication and the cluster, and HOLDFAST CLUSTER.

use std::collections::{BTreeMap, BTreeSet};

use command::{Flag, Refusal};
use group::balance;
use group::figures::GroupFigures;
use group::group_status::{Feed, Follower, GroupStatus};
use group::ids::{GroupId, Lane, NodeId};
use resp::{Args, Writer};

use super::cluster::slot_number;
use super::info::{Line, figures_of};
use super::{Answer, Body, ControlCommand, Figures, Local, Outcome, Question, container, local, node, plain};
use crate::context::Context;
use crate::event::{Action, FollowersForm};
use crate::replication_wait;
use crate::reports::{FollowerReport, LinkReport, SourceFigures};
use crate::roster::{Member, host_and_port, name_of};
use crate::stagger::Stage;
use crate::stats::hot::HotKeys;

pub(super) const ROLE: ControlCommand = ControlCommand {
    since: "2.8.12",
    summary: "Returns the node's role: master if it leads a group.",
    flags: &[Flag::Noscript, Flag::Loading, Flag::Stale, Flag::Fast],
    categories: &["@admin", "@dangerous"],
    ..node("role", 1, |_, _| Ok(Question::Figures), role)
};

pub(super) const HOLDFAST: ControlCommand = ControlCommand {
    since: "7.0.0",
    summary: "Commands of Holdfast's own.",
    subcommands: &[
        ControlCommand {
            summary: "Shows the state of the cluster: nodes, links, groups, and how far followers are behind.",
            flags: &[Flag::Admin, Flag::Noscript, Flag::Loading, Flag::Stale],
            ..node("cluster", 2, |_, _| Ok(Question::Figures), cluster)
        },
        ControlCommand {
            summary: "Removes a node from the cluster permanently; refuses what would cost a quorum.",
            syntax: "node",
            flags: GOVERNS,
            ..plain("remove", 3, Body::Admin)
        },
        ControlCommand {
            summary: "Makes this node, which is empty and by itself, join the cluster of another one: it restarts.",
            syntax: "host:port [token]",
            flags: &[Flag::Admin, Flag::Noscript, Flag::NoMulti, Flag::SkipMonitor, Flag::SkipSlowlog],
            ..node("join", -3, |_, _| Ok(Question::Figures), join)
        },
        ControlCommand {
            summary: "Creates a token that lets one node into the cluster; valid for an hour, or so many seconds.",
            syntax: "[seconds]",
            flags: &[Flag::Admin, Flag::Noscript, Flag::NoMulti, Flag::Loading, Flag::Stale],
            ..local("invite", -2, invite)
        },
        ControlCommand {
            summary: "Names the preferred leader of a group; none undoes that.",
            syntax: "group node|NONE",
            flags: GOVERNS,
            ..plain("prefer", 4, Body::Admin)
        },
        ControlCommand {
            summary: "Moves slots to a group while clients continue.",
            syntax: "first-slot last-slot group",
            flags: GOVERNS,
            ..plain("move", 5, Body::Admin)
        },
        ControlCommand {
            summary: "Splits a group: a new one is created on the same nodes, with these slots.",
            syntax: "group slots",
            flags: GOVERNS,
            ..plain("split", 4, Body::Admin)
        },
        ControlCommand {
            summary: "Lets a group go: its slots move to another group, and then it ends.",
            syntax: "group into",
            flags: GOVERNS,
            ..plain("merge", 4, Body::Admin)
        },
        ControlCommand {
            summary: "Returns the bytes that the keys of slots take, one figure for each slot, as this node has them.",
            syntax: "first-slot last-slot",
            flags: &[Flag::Admin, Flag::Noscript],
            ..node("slots", 4, slots_question, slot_bytes)
        },
        ControlCommand {
            summary: "Spreads the leaders of groups evenly over the nodes.",
            flags: GOVERNS,
            ..plain("rebalance", 2, Body::Admin)
        },
        ControlCommand {
            summary: "Sets whether groups move between nodes so that each holds its share, or stay where they are.",
            syntax: "ON|OFF",
            flags: GOVERNS,
            ..plain("balance", 3, Body::Admin)
        },
        ControlCommand {
            summary: "Creates groups until there are so many; each gets its share of the slots while clients continue.",
            syntax: "count",
            flags: GOVERNS,
            ..plain("groups", 3, Body::Admin)
        },
        ControlCommand {
            summary: "Raises the level of the cluster permanently if all nodes know the next one; CHECK only reports.",
            syntax: "[CHECK]",
            flags: GOVERNS,
            ..plain("upgrade", -2, Body::Admin)
        },
        ControlCommand {
            summary: "Moves a group to nodes while clients continue.",
            syntax: "group node [node ...]",
            flags: GOVERNS,
            ..plain("place", -4, Body::Admin)
        },
        ControlCommand {
            summary: "Shows which groups would move between nodes next, why, and how many bytes are copied.",
            flags: &[Flag::Admin, Flag::Noscript, Flag::Loading, Flag::Stale],
            ..node("plan", 2, |_, _| Ok(Question::Figures), plan)
        },
        ControlCommand {
            summary: "Accepts the log of this node as complete, if its end may be missing and nobody leads.",
            flags: &[Flag::Admin, Flag::Noscript, Flag::NoMulti, Flag::Loading, Flag::Stale],
            ..node("trust", 2, |_, _| Ok(Question::Trust), trust)
        },
        ControlCommand {
            summary: "Shows the events of the cluster, the latest first.",
            syntax: "[count]",
            flags: &[Flag::Admin, Flag::Noscript, Flag::Loading, Flag::Stale],
            ..node("timeline", -2, |_, _| Ok(Question::Timeline), timeline)
        },
        ControlCommand {
            summary: "Shows when a core of this node stalled, the latest first, and what the host did meanwhile.",
            syntax: "[count]",
            flags: &[Flag::Admin, Flag::Noscript, Flag::Loading, Flag::Stale],
            ..local("stalls", -2, stalls)
        },
        ControlCommand {
            summary: "Shows the keys that took the most time and calls of this node in the last minutes.",
            syntax: "[count]",
            flags: &[Flag::Admin, Flag::Noscript, Flag::Loading, Flag::Stale],
            ..node("hotkeys", -2, |_, _| Ok(Question::HotKeys), hot_keys)
        },
        ControlCommand {
            summary: "Returns the offset of the Redis stream after earlier writes, once so many have acknowledged it.",
            syntax: "numreplicas timeout",
            flags: GOVERNS,
            ..plain(
                "stream",
                4,
                Body::Driven(|core, session, ticket, args, actions| {
                    let (wanted, timeout_ms) = replication_wait::numbers(args, 2)?;
                    core.begin_holder_wait((session, ticket), wanted, timeout_ms, FollowersForm::Stream, actions);
                    Ok(())
                }),
            )
        },
        ControlCommand {
            summary: "Lists the subcommands.",
            flags: &[Flag::Loading, Flag::Stale],
            ..local("help", 2, |_, _, writer| {
                super::write_help(writer, "HOLDFAST", HOLDFAST.subcommands);
                Ok(())
            })
        },
    ],
    ..container("holdfast")
};

const GOVERNS: &[Flag] = &[Flag::Admin, Flag::Noscript, Flag::NoMulti];

/// What is there would be lost, so there must be nothing.
fn join(local: &mut Local<'_>, args: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    let address = std::str::from_utf8(args.at(2)).ok().filter(|address| address.contains(':'));
    let address = address.ok_or_else(|| Refusal::new("ERR another node's HOST:PORT for nodes is needed"))?;
    let is_clustered = local.core.is_clustered || !local.core.roster.is_empty();
    if is_clustered && !local.core.is_cluster_of_one() {
        return Err(Refusal::new("ERR This node belongs to a cluster of several: it would have to be removed there"));
    }
    let figures = figures_of(answers);
    let keys: u64 = figures.iter().flat_map(|figures| &figures.databases).map(|(keys, ..)| keys).sum();
    let functions = local.core.scripting.libraries.len();
    if keys > 0 || functions > 0 {
        return Err(Refusal::new(format!(
            "ERR This node has data of its own, {keys} keys and {functions} libraries of functions: only an empty one can \
             join another cluster"
        )));
    }
    let token = (args.len() > 3).then(|| String::from_utf8_lossy(args.at(3)).into_owned());
    local.actions.push(Action::Join { address: address.to_owned(), token });
    writer.ok();
    Ok(())
}

/// How long an invitation is good unless told, and at most, in seconds.
const INVITATION_S: u64 = 60 * 60;
const INVITATION_MAX_S: u64 = 30 * 24 * 60 * 60;

fn invite(local: &mut Local<'_>, args: Args<'_>, writer: &mut Writer) -> Outcome {
    let duration_s = match args.len() {
        2 => Some(INVITATION_S),
        3 => std::str::from_utf8(args.at(2)).ok().and_then(|text| text.parse().ok()),
        _ => return Err(Refusal::new("ERR wrong number of arguments for 'holdfast|invite' command")),
    };
    let duration_s = duration_s.filter(|duration_s| (1..=INVITATION_MAX_S).contains(duration_s));
    let duration_s = duration_s
        .ok_or_else(|| Refusal::new(format!("ERR an invitation is good for 1 to {INVITATION_MAX_S} seconds")))?;
    let Some(inviter) = &local.core.process.inviter else {
        return Err(Refusal::new(
            "ERR This cluster has no certificate authority of its own, and knows no invitations (tls-cluster)",
        ));
    };
    let token = inviter.invite(duration_s).map_err(|why| Refusal::new(format!("ERR no invitation: {why}")))?;
    writer.bulk(token.as_bytes());
    Ok(())
}

/// Slots that are asked about at a time: all their keys are looked at.
const SLOTS_MAX: u16 = 16;

fn slots_question(_: &mut Local<'_>, args: Args<'_>) -> Result<Question, Refusal> {
    match (slot_number(args.at(2)), slot_number(args.at(3))) {
        (Some(first), Some(last)) if first <= last && last - first < SLOTS_MAX => {
            Ok(Question::SlotBytes { first, last })
        }
        _ => Err(Refusal::new(format!("ERR no slots, or more than {SLOTS_MAX} of them"))),
    }
}

fn slot_bytes(_: &mut Local<'_>, _: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    let mut sums: Vec<u64> = Vec::new();
    for answer in answers {
        let Answer::Counts(counts) = answer else { unreachable!("a core told {answer:?} for its slots") };
        sums.resize(counts.len(), 0);
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    writer.array(sums.len());
    sums.iter().for_each(|sum| writer.integer(*sum as i64));
    Ok(())
}

/// Answers for how many groups that was a question.
fn trust(_: &mut Local<'_>, _: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    let count = |answer: &Answer| match answer {
        Answer::Count(count) => *count,
        other => unreachable!("a core told {other:?} for its groups"),
    };
    writer.count(answers.iter().map(count).sum::<u64>() as usize);
    Ok(())
}

/// The cluster as this node knows it.
pub(super) struct Overview<'a> {
    core: &'a Context,
    /// The latest word on each group, and how many milliseconds old it is.
    told: BTreeMap<GroupId, (&'a GroupStatus, u64)>,
    /// Entries applied by this node's own replicas.
    own_applied: u64,
    /// What this node does about checkpoints.
    own_checkpoint: Option<Stage>,
}

/// Another node, seen by a leader.
pub(super) struct Replica<'a> {
    host: &'a str,
    port: &'a str,
    state: &'static str,
    offset: u64,
    lag_s: u64,
}

impl<'a> Overview<'a> {
    pub(super) fn of(core: &'a Context, figures: &'a [Figures]) -> Self {
        let mut told: BTreeMap<GroupId, (&GroupStatus, u64)> = BTreeMap::new();
        for (group_status, age_ms) in figures.iter().flat_map(|figures| &figures.group_statuses) {
            told.insert(group_status.group, (group_status, *age_ms));
        }
        let groups = || figures.iter().flat_map(|figures| &figures.groups);
        // What this node leads it knows itself.
        for group_status in groups().filter_map(|group| group.group_status.as_ref()) {
            told.insert(group_status.group, (group_status, 0));
        }
        let stage = |group: &GroupFigures| match (group.checkpoint_began, group.is_checkpoint_waiting) {
            (Some(_), _) => Stage::Writing,
            (None, true) => Stage::Due,
            (None, false) => Stage::Idle,
        };
        let own_checkpoint = groups().map(stage).max();
        Self { core, told, own_applied: groups().map(|group| group.applied).sum(), own_checkpoint }
    }

    /// Who leads a group now, as far as this node knows.
    fn leader_of(&self, group: GroupId) -> Option<NodeId> {
        self.core.routes.get(group.0 as usize).and_then(|route| route.leader)
    }

    /// Words on groups from those that lead them now: those of leaders that are gone say nothing of which nodes are
    /// there.
    fn of_leaders(&self) -> impl Iterator<Item = &'a GroupStatus> {
        let told = self.told.values().map(|(group_status, _)| *group_status);
        told.filter(|group_status| self.leader_of(group_status.group) == Some(group_status.leader))
    }

    /// Whether a member is there: as its leader says, or without one as this node hears it.
    fn is_active(&self, told: &GroupStatus, follower: &Follower) -> bool {
        match self.leader_of(told.group) {
            Some(leader) if leader == told.leader => follower.is_active,
            _ => follower.node == self.own() || self.core.neighbours.hears(follower.node),
        }
    }

    fn own(&self) -> NodeId {
        self.core.node
    }

    /// Where a node is found.
    fn member(&self, node: NodeId) -> Option<&'a Member> {
        if node == self.own() { Some(&self.core.own) } else { self.core.roster.get(node) }
    }

    fn led(&self) -> impl Iterator<Item = &'a GroupStatus> {
        let own = self.own();
        // What it said while it led counts no longer than it leads.
        let leads = move |group_status: &&'a GroupStatus| {
            group_status.leader == own && self.leader_of(group_status.group) == Some(own)
        };
        self.told.values().map(|(group_status, _)| *group_status).filter(leads)
    }

    /// What this node follows, if it leads nothing.
    fn master(&self) -> Option<NodeId> {
        if self.led().next().is_some() || !self.core.is_clustered {
            return None;
        }
        let leaders = self.core.routes.iter().filter_map(|route| route.leader);
        crate::masters::master_of_this(self.core).or_else(|| leaders.into_iter().find(|leader| *leader != self.own()))
    }

    /// Sum of the places in the logs of the groups that this node leads; of one that leads nothing, of all.
    fn offset(&self) -> u64 {
        match self.led().next() {
            Some(_) => self.led().map(|group_status| group_status.applied).sum(),
            None => self.own_applied,
        }
    }

    /// The offset that replicas are to reach. A node by itself counts only the stream for replicas of Redis, and has 0
    /// as long as nothing asked for one, as a Redis without replicas has; or it has that of the Redis that it follows.
    fn offset_of_master(&self) -> u64 {
        let following = &self.core.host.report.following;
        match &self.core.host.source {
            _ if self.core.is_clustered => self.offset(),
            Some(source) if following.id.is_empty() => source.offset,
            _ => following.offset,
        }
    }

    /// The nodes that receive what this one leads.
    pub(super) fn replicas(&self) -> Vec<Replica<'a>> {
        let mut replicas = Vec::new();
        for (node, member) in self.core.roster.present().filter(|(node, _)| *node != self.own()) {
            let followers: Vec<_> =
                self.led().flat_map(|led| led.followers.iter().filter(|follower| follower.node == node)).collect();
            if followers.is_empty() || !followers.iter().any(|follower| follower.is_active) {
                continue;
            }
            let is_restoring = followers.iter().any(|follower| follower.feed == Feed::Checkpoint);
            let (host, port) = host_and_port(&member.client_address);
            replicas.push(Replica {
                host,
                port,
                state: if is_restoring { "send_bulk" } else { "online" },
                offset: followers.iter().map(|follower| follower.matched).sum(),
                lag_s: followers.iter().map(|follower| follower.silent_ms).max().unwrap_or(0) / 1_000,
            });
        }
        replicas
    }
}

/// Forty hexadecimal digits that stay the same as long as the cluster: what Redis calls a replication id.
fn replication_id(core: &Context) -> String {
    format!("{:032x}{:08x}", core.process.cluster, core.slots.first_count())
}

/// INFO replication.
pub(super) fn write_replication(core: &Context, figures: &[Figures], line: &mut Line<'_>) {
    let overview = Overview::of(core, figures);
    let (offset, own_id) = (overview.offset(), replication_id(core));
    match (&core.host.source, overview.master()) {
        (Some(source), _) => write_source(core, source, line),
        (None, Some(master)) => {
            let address = overview.member(master).map_or("", |member| member.client_address.as_str());
            let (host, port) = host_and_port(address);
            line("role", &"slave");
            line("master_host", &host);
            line("master_port", &port);
            line("master_link_status", &if is_linked(core, master) { "up" } else { "down" });
            let heard = overview.told.values().filter(|(group_status, _)| group_status.leader == master);
            let age_ms = heard.map(|(_, age_ms)| *age_ms).min();
            line("master_last_io_seconds_ago", &age_ms.map_or(-1, |age_ms| (age_ms / 1_000) as i64));
            line("master_sync_in_progress", &u8::from(groups_of(figures).any(|group| group.is_taking)));
            line("slave_read_repl_offset", &offset);
            line("slave_repl_offset", &offset);
            line("slave_priority", &core.settings.get("replica-priority"));
            line("slave_read_only", &1);
            line("replica_announced", &1);
            write_followers(core, &[], line);
        }
        (None, None) => {
            let replicas = overview.replicas();
            line("role", &"master");
            write_followers(core, &replicas, line);
        }
    }
    let following = &core.host.report.following;
    let tells_stream = !core.is_clustered && !following.id.is_empty();
    line("master_failover_state", &"no-failover");
    line("master_replid", if tells_stream { &following.id } else { &own_id });
    line("master_replid2", &"0000000000000000000000000000000000000000");
    line("master_repl_offset", &overview.offset_of_master());
    line("second_repl_offset", &-1);
    line("repl_backlog_active", &u8::from(!following.id.is_empty()));
    line("repl_backlog_size", &following.kept_bytes_max);
    line("repl_backlog_first_byte_offset", &following.first);
    line("repl_backlog_histlen", &(following.offset + 1).saturating_sub(following.first.max(1)));
    line("stream_replid", &following.id);
    line("stream_offset", &following.offset);
    line("stream_full_copies", &following.copy_count);
    line("stream_continued", &following.continued_count);
}

/// The Redis that this node follows.
fn write_source(core: &Context, source: &SourceFigures, line: &mut Line<'_>) {
    let is_up = source.is_linked && !source.is_copying;
    line("role", &"slave");
    line("master_host", &source.host);
    line("master_port", &source.port);
    line("master_link_status", if is_up { &"up" } else { &"down" });
    line("master_last_io_seconds_ago", &source.silent_s.filter(|_| source.is_linked).map_or(-1, |s| s as i64));
    line("master_sync_in_progress", &u8::from(source.is_linked && source.is_copying));
    line("slave_read_repl_offset", &source.offset);
    line("slave_repl_offset", &source.offset);
    if source.is_linked && source.is_copying {
        let SourceFigures { copy_bytes, copied_bytes, .. } = source;
        line("master_sync_total_bytes", copy_bytes);
        line("master_sync_read_bytes", copied_bytes);
        line("master_sync_left_bytes", &copy_bytes.saturating_sub(*copied_bytes));
    }
    if !is_up {
        line("master_link_down_since_seconds", &source.down_s);
    }
    if !source.fault.is_empty() {
        line("master_link_fault", &source.fault);
    }
    line("master_copy", &source.copy_state());
    line("slave_priority", &core.settings.get("replica-priority"));
    line("slave_read_only", &1);
    line("replica_announced", &1);
    write_followers(core, &[], line);
}

/// Nodes that are given what this one leads, and replicas of other kinds.
fn write_followers(core: &Context, replicas: &[Replica<'_>], line: &mut Line<'_>) {
    let followers = &core.host.report.following.followers;
    line("connected_slaves", &(replicas.len() + followers.len()));
    for (number, replica) in replicas.iter().enumerate() {
        let Replica { host, port, state, offset, lag_s } = replica;
        line(&format!("slave{number}"), &format!("ip={host},port={port},state={state},offset={offset},lag={lag_s}"));
    }
    for (number, follower) in (replicas.len()..).zip(followers) {
        let FollowerReport { host, port, state, offset, lag_s } = follower;
        line(
            &format!("slave{number}"),
            &format!("ip={host},port={port},state={state},offset={offset},lag={lag_s},type=stream"),
        );
    }
}

/// INFO cluster.
pub(super) fn write_cluster(core: &Context, figures: &[Figures], line: &mut Line<'_>) {
    line("cluster_enabled", &u8::from(core.settings.cluster_enabled));
    line("cluster_level", &core.levels.in_force);
    line("cluster_level_lowest", &core.levels.known.lowest);
    line("cluster_level_highest", &core.levels.known.highest);
    let behind = groups_of(figures).filter(|own| !is_elsewhere(own) && own.level < core.levels.in_force).count();
    line("cluster_groups_below_level", &behind);
    if !core.is_clustered {
        return;
    }
    let overview = Overview::of(core, figures);
    line("cluster_state", &if core.is_expelled { "removed" } else { "member" });
    line("cluster_nodes", &core.roster.present().count());
    line("cluster_groups", &core.groups().count());
    line("cluster_zone", &core.own.zone);
    let zones: BTreeSet<&str> = core.roster.staying().filter_map(|node| core.roster.zone(node)).collect();
    line("cluster_zones", &zones.len());
    line("cluster_nodes_replaced", &core.neighbours.lost().len());
    for (group_status, age_ms) in overview.told.values() {
        let names = |nodes: &[u64]| nodes.iter().map(u64::to_string).collect::<Vec<_>>().join("|");
        let behind: Vec<_> = group_status
            .followers
            .iter()
            .map(|other| format!("{}:{}", other.node.0, group_status.behind(other)))
            .collect();
        line(
            &format!("cluster_group{}", group_status.group.0),
            &format!(
                "leader={},term={},applied={},voters={},learners={},behind={},told_ms={age_ms}",
                overview.leader_of(group_status.group).map_or("none".to_owned(), |leader| leader.0.to_string()),
                group_status.term,
                group_status.applied,
                names(&group_status.voters),
                names(&group_status.learners),
                behind.join("|"),
            ),
        );
        for follower in &group_status.followers {
            line(
                &format!("cluster_group{}_node{}", group_status.group.0, follower.node.0),
                &format!(
                    "active={},feed={},lag_entries={},lag_bytes={},lag_ms={},silent_ms={},resyncs={}",
                    u8::from(overview.is_active(group_status, follower)),
                    follower.feed.name(),
                    group_status.behind(follower),
                    follower.behind_bytes,
                    follower.lag_ms,
                    follower.silent_ms,
                    follower.resync_count,
                ),
            );
        }
    }
    let links = &core.host.report.links;
    for link in links.iter().filter(|link| link.lane == Lane::Log) {
        // Checkpoints and heartbeats go by other connections: they are bytes between the two nodes all the same.
        let of_all_lanes = |figure: fn(&LinkReport) -> u64| {
            links.iter().filter(|other| other.node == link.node).map(figure).sum::<u64>()
        };
        line(
            &format!("cluster_link_node{}", link.node.0),
            &format!(
                "up={},tls={},compressed={},made={},sent_bytes={},carried_bytes={},waiting_bytes={},dropped={},last_cut={}",
                u8::from(link.is_up),
                u8::from(link.is_encrypted),
                u8::from(link.is_compressed),
                link.count,
                of_all_lanes(|link| link.sent_bytes),
                of_all_lanes(|link| link.carried_bytes),
                of_all_lanes(|link| link.waiting_bytes),
                of_all_lanes(|link| link.dropped_count),
                link.last_cause.replace(',', ";"),
            ),
        );
    }
}

fn groups_of(figures: &[Figures]) -> impl Iterator<Item = &GroupFigures> {
    figures.iter().flat_map(|figures| &figures.groups)
}

/// True for a group of which this node holds nothing.
fn is_elsewhere(own: &GroupFigures) -> bool {
    own.standing == "elsewhere"
}

fn link_of(core: &Context, node: NodeId) -> Option<&LinkReport> {
    core.host.report.links.iter().find(|link| link.node == node && link.lane == Lane::Log)
}

fn is_linked(core: &Context, node: NodeId) -> bool {
    link_of(core, node).is_some_and(|link| link.is_up)
}

fn role(local: &mut Local<'_>, _: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    let figures = figures_of(answers);
    let overview = Overview::of(local.core, &figures);
    if let Some(source) = &local.core.host.source {
        writer.array(5);
        writer.bulk(b"slave");
        writer.bulk(source.host.as_bytes());
        writer.integer(source.port.into());
        writer.bulk(match (source.is_linked, source.is_copying) {
            (true, false) => b"connected",
            (true, true) => b"sync",
            (false, _) => b"connect",
        });
        writer.integer(if source.is_copying { -1 } else { source.offset as i64 });
        return Ok(());
    }
    if let Some(master) = overview.master() {
        let address = overview.member(master).map_or("", |member| member.client_address.as_str());
        let (host, port) = host_and_port(address);
        writer.array(5);
        writer.bulk(b"slave");
        writer.bulk(host.as_bytes());
        writer.integer(port.parse().unwrap_or(0));
        writer.bulk(if is_linked(local.core, master) { b"connected" } else { b"connect" });
        writer.integer(overview.offset() as i64);
        return Ok(());
    }
    let replicas = overview.replicas();
    let following = &local.core.host.report.following;
    writer.array(3);
    writer.bulk(b"master");
    writer.integer(overview.offset_of_master() as i64);
    writer.array(replicas.len() + following.followers.len());
    for replica in replicas {
        writer.array(3);
        writer.bulk(replica.host.as_bytes());
        writer.bulk(replica.port.as_bytes());
        writer.bulk(replica.offset.to_string().as_bytes());
    }
    for follower in &following.followers {
        writer.array(3);
        writer.bulk(follower.host.as_bytes());
        writer.bulk(follower.port.to_string().as_bytes());
        writer.bulk(follower.offset.to_string().as_bytes());
    }
    Ok(())
}

/// Writes a map one field at a time.
struct Fields<'w> {
    writer: &'w mut Writer,
    /// So many of those that were announced are still to come.
    left: usize,
}

impl Drop for Fields<'_> {
    fn drop(&mut self) {
        debug_assert!(self.left == 0 || std::thread::panicking(), "{} fields fewer than announced", self.left);
    }
}

impl<'w> Fields<'w> {
    fn new(writer: &'w mut Writer, count: usize) -> Self {
        writer.map(count);
        Self { writer, left: count }
    }

    fn name(&mut self, name: &str) -> &mut Writer {
        debug_assert!(self.left > 0, "'{name}' is one field more than announced");
        self.left = self.left.saturating_sub(1);
        self.writer.bulk(name.as_bytes());
        self.writer
    }

    fn text(&mut self, name: &str, text: &str) {
        self.name(name).bulk(text.as_bytes());
    }

    fn number(&mut self, name: &str, number: u64) {
        self.name(name).integer(number as i64);
    }

    fn flag(&mut self, name: &str, is_so: bool) {
        self.name(name).integer(i64::from(is_so));
    }

    fn node(&mut self, name: &str, node: Option<NodeId>) {
        match node {
            Some(NodeId(node)) => self.text(name, &node.to_string()),
            None => self.name(name).null(),
        }
    }

    fn nodes(&mut self, name: &str, nodes: &[u64]) {
        let writer = self.name(name);
        writer.array(nodes.len());
        nodes.iter().for_each(|node| writer.bulk(node.to_string().as_bytes()));
    }
}

fn cluster(local: &mut Local<'_>, _: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    let figures = figures_of(answers);
    let core = &*local.core;
    let overview = Overview::of(core, &figures);
    let mut fields = Fields::new(writer, 10);
    fields.node("node", Some(core.node));
    fields.number("level", u64::from(core.levels.in_force.0));
    fields.text("cluster", &format!("{:032x}", core.process.cluster));
    fields.flag("clustered", core.is_clustered);
    fields.number("replicas", core.settings.replica_count as u64);
    fields.flag("balancing", core.roster.is_balancing());
    let nodes: BTreeSet<NodeId> =
        core.roster.present().map(|(node, _)| node).chain(std::iter::once(core.node)).collect();
    let removed = core.roster.all().filter(|(_, member)| member.is_removed).map(|(node, _)| node.0);
    fields.nodes("removed", &removed.collect::<Vec<_>>());
    fields.name("nodes").array(nodes.len());
    for node in nodes {
        write_node(&overview, node, fields.writer);
    }
    fields.name("groups").array(core.groups().count());
    for group in core.groups() {
        write_group(&overview, group, &figures, fields.writer);
    }
    fields.name("gone").array(core.roster.gone().count());
    for (group, gone) in core.roster.gone() {
        let mut fields = Fields::new(fields.writer, 2);
        fields.number("group", u64::from(group.0));
        fields.number("end", gone.index);
    }
    Ok(())
}

fn plan(local: &mut Local<'_>, _: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    let figures = figures_of(answers);
    let core = &*local.core;
    let overview = Overview::of(core, &figures);
    let mut view = balance::view_of(core, &core.roster, local.now.instant);
    // Whichever core is asked: the first has told what it has heard.
    let is_fresh = |age_ms: u64| age_ms < group::limits::BULLETIN_STALE.as_millis() as u64;
    let told = overview.told.values().filter(|(_, age_ms)| is_fresh(*age_ms));
    view.groups = told.map(|(told, _)| (told.group.0, balance::Held::from(*told))).collect();
    let steps = balance::preview(&view, &balance::splitting_of(core));
    writer.array(steps.len());
    for step in steps {
        let mut fields = Fields::new(writer, 5);
        fields.number("group", u64::from(step.group.0));
        fields.nodes("nodes", &step.nodes.iter().copied().collect::<Vec<_>>());
        fields.number("bytes", step.bytes);
        let rate = core.settings.balance_rate_bytes;
        fields.number("seconds", if rate == 0 { 0 } else { step.bytes.div_ceil(rate) });
        fields.text("reason", &step.reason);
    }
    Ok(())
}

fn timeline(_: &mut Local<'_>, args: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    let count = wanted_count(args)?;
    let mut happenings = answers.into_iter().find_map(|answer| match answer {
        Answer::Timeline(happenings) if !happenings.is_empty() => Some(happenings),
        _ => None,
    });
    let happenings = happenings.get_or_insert_default();
    happenings.reverse();
    happenings.truncate(count);
    writer.array(happenings.len());
    for happening in happenings {
        let mut fields = Fields::new(writer, 5);
        fields.name("unix_ms").integer(happening.unix.0);
        fields.node("node", Some(happening.node));
        fields.text("kind", happening.kind.name());
        match happening.group {
            Some(group) => fields.number("group", u64::from(group.0)),
            None => fields.name("group").null(),
        }
        fields.text("text", &happening.text);
    }
    Ok(())
}

fn hot_keys(_: &mut Local<'_>, args: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    let count = wanted_count(args)?;
    let mut sum = HotKeys::default();
    for answer in answers {
        if let Answer::HotKeys(told) = answer {
            sum.join(told);
        }
    }
    let us = |nanos: u64| nanos / 1_000;
    let mut fields = Fields::new(writer, 4);
    fields.number("window_ms", sum.window_ms);
    fields.number("calls", sum.calls);
    fields.number("time_us", us(sum.nanos));
    sum.keys.truncate(count);
    fields.name("keys").array(sum.keys.len());
    for key in &sum.keys {
        let mut fields = Fields::new(fields.writer, 3);
        fields.name("key").bulk(&key.key);
        fields.number("calls", key.calls);
        fields.number("time_us", us(key.nanos));
    }
    Ok(())
}

/// Happenings, stalls or keys that are told unless a number is given.
const LATEST_COUNT: usize = 100;

/// How many are wanted: the only argument, if there is one.
fn wanted_count(args: Args<'_>) -> Result<usize, Refusal> {
    match args.get(2).map(|word| std::str::from_utf8(word).ok()?.parse::<usize>().ok()) {
        None => Ok(LATEST_COUNT),
        Some(Some(count)) if args.len() == 3 => Ok(count),
        Some(_) => Err(Refusal::new("ERR value is not an integer or out of range")),
    }
}

fn stalls(local: &mut Local<'_>, args: Args<'_>, writer: &mut Writer) -> Outcome {
    let count = wanted_count(args)?;
    let stalls = &local.core.host.report.stalls;
    let told: Vec<_> = stalls.iter().rev().take(count).collect();
    let mut fields = Fields::new(writer, 4);
    fields.number("count", stalls.count);
    fields.number("total_us", stalls.total_us);
    fields.number("missed", stalls.missed_count);
    fields.name("latest").array(told.len());
    for stall in told {
        let around = &stall.around;
        let mut fields = Fields::new(fields.writer, 14);
        fields.name("unix_ms").integer(stall.unix.0);
        fields.number("core", u64::from(stall.core.0));
        fields.number("took_us", stall.took_us);
        fields.text("work", stall.work);
        fields.text("cause", stall.cause().name());
        fields.number("window_us", around.window_us);
        fields.number("ran_us", around.ran_us);
        fields.number("waited_us", around.waited_us);
        fields.number("stolen_us", around.stolen_us);
        fields.number("continue_count", around.continue_count);
        fields.number("major_faults", around.major_faults);
        let [cpu_us, io_us, memory_us] = around.pressure_us;
        fields.number("pressure_cpu_us", cpu_us);
        fields.number("pressure_io_us", io_us);
        fields.number("pressure_memory_us", memory_us);
    }
    Ok(())
}

fn write_node(overview: &Overview<'_>, node: NodeId, writer: &mut Writer) {
    let core = overview.core;
    let is_own = node == core.node;
    let member = overview.member(node).cloned().unwrap_or_default();
    let link = link_of(core, node);
    let told = || overview.told.values().map(|(group_status, _)| group_status);
    let led = core.groups().filter(|group| overview.leader_of(*group) == Some(node));
    let leads: Vec<u64> = led.map(|group| u64::from(group.0)).collect();
    let votes = told().filter(|told| told.voters.contains(&node.0)).count();
    let learns = told().filter(|told| told.learners.contains(&node.0)).count();
    // Of other nodes those who lead know best; a leader hears itself.
    let seen: Vec<bool> = overview
        .of_leaders()
        .flat_map(|told| told.followers.iter().filter(|other| other.node == node).map(|other| other.is_active))
        .collect();
    let state = match () {
        () if is_own && core.is_expelled => "removed",
        () if member.is_leaving || core.roster.is_going(node) => "leaving",
        () if is_own => "here",
        () if core.neighbours.hears(node) && (votes + learns > 0 || !leads.is_empty()) => "up",
        () if seen.iter().any(|is_active| *is_active) || !leads.is_empty() && link.is_some_and(|link| link.is_up) => {
            "up"
        }
        () if !seen.is_empty() || votes + learns > 0 || link.is_some_and(|link| !link.is_up) => "down",
        () => "joining",
    };
    let mut fields = Fields::new(writer, 16);
    fields.node("id", Some(node));
    let levels = if is_own { Some(core.levels.known) } else { core.levels.of_nodes.get(&node).copied() };
    fields.number("level_lowest", levels.map_or(0, |levels| u64::from(levels.lowest.0)));
    fields.number("level_highest", levels.map_or(0, |levels| u64::from(levels.highest.0)));
    fields.text("name", &name_of(node));
    fields.text("clients", &member.client_address);
    fields.text("cluster", &member.cluster_address);
    fields.text("zone", &member.zone);
    fields.text("state", state);
    fields.flag("replaced", !is_own && core.neighbours.lost().contains(&node.0));
    fields.nodes("leads", &leads);
    fields.number("votes", votes as u64);
    fields.number("learns", learns as u64);
    fields.flag("linked", is_own || link.is_some_and(|link| link.is_up));
    fields.number("links", link.map_or(0, |link| link.count));
    fields.text("last_cut", link.map_or("", |link| link.last_cause.as_str()));
    let stage = if is_own { overview.own_checkpoint } else { core.neighbours.checkpoint_stage(node) };
    fields.text("checkpoint", stage.map_or("", Stage::name));
}

fn write_group(overview: &Overview<'_>, group: GroupId, figures: &[Figures], writer: &mut Writer) {
    let core = overview.core;
    let own = groups_of(figures).find(|own| own.group == group.0);
    let told = overview.told.get(&group).copied();
    // A leader that has gone is not shown as one.
    let leader = overview.leader_of(group);
    // A node that has heard no leader since its start knows from its log.
    let here = own.filter(|own| !is_elsewhere(own));
    let voters = told.map(|(told, _)| &told.voters[..]).or(here.map(|own| &own.voters[..])).unwrap_or_default();
    let is_missing = |node: &u64| *node != core.node.0 && !core.neighbours.hears(NodeId(*node));
    let missing: Vec<u64> = voters.iter().copied().filter(is_missing).collect();
    let mut fields = Fields::new(writer, 20);
    fields.number("group", u64::from(group.0));
    fields.text("merges_into", &core.roster.merges_into(group).map_or(String::new(), |into| into.0.to_string()));
    fields.number("level", own.filter(|own| !is_elsewhere(own)).map_or(0, |own| u64::from(own.level.0)));
    fields.text("slots", &core.slots.text_of(group));
    fields.node("leader", leader);
    fields.node("preferred", core.roster.preferred(group));
    fields.text("here", own.map_or("loading", |own| own.standing));
    // Of a group that lives on other nodes its leader tells.
    let of_leader = |figure: fn(&GroupStatus) -> u64| told.map_or(0, |(told, _)| figure(told));
    fields.number("term", here.map_or_else(|| of_leader(|told| told.term), |own| own.term));
    fields.number("applied", here.map_or_else(|| of_leader(|told| told.applied), |own| own.applied));
    fields.number("last", told.map_or(0, |(told, _)| told.last));
    fields.number("told_ms", told.map_or(0, |(_, age_ms)| age_ms));
    fields.number("to_give", core.slots_to_give(group));
    fields.number("to_split", core.slots_to_split(group));
    fields.number("leaderless_ms", own.and_then(|own| own.leaderless_ms).unwrap_or(0));
    fields.nodes("voters", voters);
    fields.nodes("not_heard", &missing);
    fields.nodes("learners", told.map_or(&[], |(told, _)| &told.learners[..]));
    let placed = core.roster.placement(group).into_iter().flatten();
    fields.nodes("placed", &placed.copied().collect::<Vec<_>>());
    fields.number("bytes", told.map_or(0, |(told, _)| told.bytes));
    let followers = told.map_or(&[][..], |(told, _)| &told.followers[..]);
    fields.name("followers").array(followers.len());
    for follower in followers {
        let mut fields = Fields::new(fields.writer, 8);
        fields.node("node", Some(follower.node));
        fields.flag("active", told.is_some_and(|(told, _)| overview.is_active(told, follower)));
        fields.text("feed", follower.feed.name());
        fields.number("behind_entries", told.map_or(0, |(told, _)| told.behind(follower)));
        fields.number("behind_bytes", follower.behind_bytes);
        fields.number("lag_ms", follower.lag_ms);
        fields.number("resyncs", follower.resync_count);
        fields.number("silent_ms", follower.silent_ms);
    }
}

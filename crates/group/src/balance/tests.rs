//! What the balancer does step by step, and that it comes to an end.

use message::roster::Member;
use stdx::Prng;

use super::*;

const MIB: u64 = 1 << 20;

struct World {
    roster: Roster,
    groups: BTreeMap<u32, Held>,
    heard: BTreeSet<u64>,
    replicas: usize,
    group_count: u32,
    /// Of each node; none: nothing is founded.
    cores: u16,
    lost: BTreeSet<u64>,
}

impl World {
    fn new(nodes: u64, group_count: u32, replicas: usize, mut bytes: impl FnMut(u32) -> u64) -> Self {
        let mut roster = Roster::default();
        (1..=nodes).for_each(|node| _ = roster.enlist(NodeId(node), Member::default()));
        let voters: BTreeSet<u64> = (1..=nodes.min(replicas as u64)).collect();
        let learners = BTreeSet::new();
        let mut held = |group| {
            let (voters, learners) = (voters.clone(), learners.clone());
            Held { leader: 1, voters, learners, bytes: bytes(group), halves: None }
        };
        let groups = (0..group_count).map(|group| (group, held(group))).collect();
        let heard = (1..=nodes).collect();
        Self { roster, groups, heard, replicas, group_count, cores: 0, lost: BTreeSet::new() }
    }

    /// The nodes are in these zones, one after the other.
    fn zoned(mut self, zones: &[&str]) -> Self {
        let nodes: Vec<u64> = self.staying().into_iter().collect();
        nodes.iter().zip(zones.iter().cycle()).for_each(|(node, zone)| self.enter(*node, zone));
        self
    }

    fn enter(&mut self, node: u64, zone: &str) {
        self.roster.enlist(NodeId(node), Member { zone: zone.to_owned(), ..Member::default() });
    }

    /// How many copies of a group each zone holds.
    fn copies(&self, nodes: &BTreeSet<u64>) -> BTreeMap<String, usize> {
        let mut copies = BTreeMap::new();
        for node in nodes {
            let zone = self.roster.zone(NodeId(*node)).map_or_else(|| format!("of {node}"), str::to_owned);
            *copies.entry(zone).or_default() += 1;
        }
        copies
    }

    /// No zone with a node to spare holds two copies of a group less than another.
    fn assert_zones_respected(&self, what: &str) {
        for (group, nodes) in self.roster.placements() {
            let copies = self.copies(nodes);
            let most = copies.values().max().copied().unwrap_or(0);
            for node in self.heard.intersection(&self.staying()).filter(|node| !nodes.contains(node)) {
                let zone = self.copies(&BTreeSet::from([*node])).into_keys().next().unwrap();
                let here = copies.get(&zone).copied().unwrap_or(0);
                assert!(here + 2 > most, "{what}: {group:?} has {copies:?}, and node {node} of {zone} is free");
            }
        }
    }

    fn view(&self) -> View<'_> {
        let Self { roster, groups, heard, replicas, group_count, .. } = self;
        let (groups, heard) = (groups.clone(), heard.clone());
        let silent = self.staying().difference(&heard).copied().collect();
        let cores = heard.iter().map(|node| (*node, self.cores)).collect();
        View {
            roster,
            replicas: *replicas,
            group_count: roster.group_count(*group_count),
            first_count: *group_count,
            founds_groups: self.cores > 0,
            cores,
            groups,
            heard,
            silent,
            lost: self.lost.clone(),
        }
    }

    fn staying(&self) -> BTreeSet<u64> {
        self.roster.staying().map(|node| node.0).collect()
    }

    fn join(&mut self, node: u64) {
        self.roster.enlist(NodeId(node), Member::default());
        self.heard.insert(node);
    }

    fn leave(&mut self, node: u64) {
        self.roster.enlist(NodeId(node), Member { is_leaving: true, ..Member::default() });
    }

    /// What is wanted has come about.
    fn settle(&mut self) {
        for (group, nodes) in self.roster.placements() {
            // One that is about to split off is nowhere yet.
            let Some(held) = self.groups.get_mut(&group.0) else { continue };
            held.voters.clone_from(nodes);
            held.learners.clear();
            held.leader = if nodes.contains(&held.leader) { held.leader } else { *nodes.first().unwrap() };
        }
    }

    /// Takes steps until there are none; every one must come to its end, and none may return to where it was.
    fn rest(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut seen = BTreeSet::new();
        self.settle();
        while let Some(step) = next_step(&self.view()) {
            assert!(self.roster.place(step.group, step.nodes.clone()), "nothing changes: {step:?}");
            let placements: Vec<_> = self.roster.placements().map(|(_, nodes)| nodes.clone()).collect();
            assert!(seen.insert(placements), "this has been so before: {step:?}");
            self.settle();
            steps.push(step);
        }
        steps
    }

    fn counts(&self) -> Vec<usize> {
        self.view().shares().values().map(|(count, _)| *count).collect()
    }
}

#[test]
fn up_to_so_many_nodes_as_hold_a_group_nothing_is_placed() {
    for nodes in 1..=3 {
        assert_eq!(next_step(&World::new(nodes, 8, 3, |_| MIB).view()), None);
    }
}

#[test]
fn newcomers_get_their_share_and_who_leaves_is_drained() {
    let mut world = World::new(3, 9, 3, |_| MIB);
    world.join(4);
    let steps = world.rest();
    assert_eq!(world.counts(), [6, 6, 6, 6]);
    // What has been placed where it was has cost nothing; each other step moves one replica.
    assert_eq!(steps.iter().map(|step| step.bytes).sum::<u64>(), 6 * MIB);
    world.join(5);
    world.rest();
    assert!(world.counts().iter().all(|count| (4..=5).contains(count)), "{:?}", world.counts());
    world.leave(1);
    world.leave(2);
    world.rest();
    assert_eq!(world.counts(), [8, 8, 8], "all on the three that stay");
    assert!(world.roster.placements().all(|(_, nodes)| nodes.iter().all(|node| *node > 2)));
}

#[test]
fn one_move_is_under_way_at_a_time_and_counts_as_done() {
    let mut world = World::new(3, 5, 3, |_| MIB);
    world.join(4);
    while let Some(step) = next_step(&world.view()).filter(|step| step.bytes == 0) {
        world.roster.place(step.group, step.nodes);
    }
    let first = next_step(&world.view()).expect("node 4 holds nothing");
    world.roster.place(first.group, first.nodes.clone());
    assert_eq!(next_step(&world.view()), None, "the first has not come to its end");
    // Nor has it while the newcomer only listens.
    world.groups.get_mut(&first.group.0).unwrap().learners.insert(4);
    assert_eq!(next_step(&world.view()), None);
    world.settle();
    assert_ne!(next_step(&world.view()).expect("more is to come").group, first.group);
}

#[test]
fn a_node_that_is_away_keeps_what_it_holds_and_gets_nothing() {
    let mut world = World::new(4, 9, 3, |_| MIB);
    world.rest();
    let before: Vec<_> = world.roster.placements().map(|(_, nodes)| nodes.clone()).collect();
    world.heard.remove(&2);
    assert_eq!(next_step(&world.view()), None);
    world.join(5);
    let steps = world.rest();
    assert!(steps.iter().all(|step| step.nodes.contains(&5)), "{steps:?}");
    let lost = before
        .iter()
        .zip(world.roster.placements())
        .filter(|(before, (_, after))| before.contains(&2) && !after.contains(&2));
    assert_eq!(lost.count(), 0, "nothing is taken from it");
}

#[test]
fn a_newcomer_that_falls_silent_before_it_votes_is_passed_over() {
    let mut world = World::new(3, 3, 3, |_| MIB);
    world.join(4);
    while world.roster.placements().all(|(_, nodes)| !nodes.contains(&4)) {
        let step = next_step(&world.view()).unwrap();
        world.roster.place(step.group, step.nodes);
    }
    world.heard.remove(&4);
    let step = next_step(&world.view()).unwrap();
    assert_eq!(step.nodes, (1..=3).collect(), "who held it holds it on: {step:?}");
    assert_eq!(step.bytes, 0);
}

#[test]
fn switched_off_nothing_moves_but_what_leaves() {
    let mut world = World::new(4, 6, 3, |_| MIB);
    world.rest();
    world.join(5);
    world.roster.balance(false);
    assert_eq!(next_step(&world.view()), None);
    world.leave(1);
    let steps = world.rest();
    assert!(!steps.is_empty());
    assert!(world.roster.placements().all(|(_, nodes)| nodes.len() == 3 && !nodes.contains(&1)));
}

#[test]
fn more_or_fewer_replicas_are_made_where_there_is_room() {
    let mut world = World::new(5, 6, 3, |_| MIB);
    world.rest();
    world.replicas = 4;
    world.rest();
    assert!(world.roster.placements().all(|(_, nodes)| nodes.len() == 4));
    world.replicas = 1;
    world.rest();
    assert!(world.roster.placements().all(|(_, nodes)| nodes.len() == 1));
    assert_eq!(world.counts(), [1; 5]);
}

fn leader(world: &World, group: u32, zones: &[String], is_fit: impl Fn(u64) -> bool) -> u64 {
    let (roster, replicas, group_count) = (&world.roster, world.replicas, world.group_count);
    let spreading = Spreading { roster, replicas, group_count, zones };
    spreading.leader_of(GroupId(group), &world.groups[&group].voters, is_fit).expect("somebody can lead it")
}

#[test]
fn leaders_are_spread_over_those_who_hold_the_groups() {
    let mut world = World::new(5, 11, 3, |_| MIB);
    world.rest();
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    for group in 1..11 {
        let leader = leader(&world, group, &[], |_| true);
        assert!(world.roster.is_placed(GroupId(group), NodeId(leader)));
        *counts.entry(leader).or_default() += 1;
    }
    assert_eq!(counts.len(), 5, "{counts:?}");
    assert!(counts.values().all(|count| (1..=3).contains(count)), "{counts:?}");
}

/// Leaders were spread by an operator, so that each group prefers a node, and then one of these nodes leaves: the
/// group that has lost the node it preferred goes to the one that leads nothing, and not to one that leads already.
#[test]
fn after_a_spreading_and_a_removal_no_node_leads_both_groups() {
    for (gone, preferred) in [(1, [1, 2]), (2, [2, 1]), (1, [2, 1]), (3, [3, 1]), (3, [2, 3]), (2, [1, 2])] {
        let mut world = World::new(3, 2, 3, |_| MIB);
        for (group, node) in (0..).zip(preferred) {
            world.roster.prefer(GroupId(group), Some(NodeId(node)));
        }
        world.leave(gone);
        for held in world.groups.values_mut() {
            held.voters.remove(&gone);
        }
        let leaders: BTreeSet<u64> = (0..2)
            .map(|group| match world.roster.preferred(GroupId(group)) {
                Some(node) => node.0,
                None => leader(&world, group, &[], |_| true),
            })
            .collect();
        assert_eq!(leaders.len(), 2, "node {gone} leaves of {preferred:?}: {leaders:?} leads both");
    }
}

#[test]
fn leaders_are_in_the_zone_that_is_preferred_while_it_has_fit_nodes() {
    let mut world = World::new(6, 13, 3, |_| MIB).zoned(&["a", "b", "c"]);
    world.rest();
    let zones = ["b", "a"].map(str::to_owned);
    let zone_of = |node: u64| world.roster.zone(NodeId(node)).unwrap().to_owned();
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    for group in 1..13 {
        let leader = leader(&world, group, &zones, |_| true);
        *counts.entry(leader).or_default() += 1;
        assert_eq!(zone_of(leader), "b");
    }
    assert_eq!(counts.len(), 2, "both nodes of the zone lead: {counts:?}");
    for group in 1..13 {
        assert_eq!(zone_of(leader(&world, group, &zones, |node| zone_of(node) != "b")), "a");
        assert_eq!(zone_of(leader(&world, group, &zones, |node| zone_of(node) == "c")), "c");
    }
}

#[test]
fn copies_are_in_different_zones_as_far_as_there_are_zones() {
    let mut world = World::new(3, 9, 3, |_| MIB).zoned(&["a", "a", "b"]);
    assert_eq!(world.rest(), [], "each node holds everything");
    world.join(4);
    world.enter(4, "c");
    let steps = world.rest();
    world.assert_zones_respected("a node came to a third zone");
    assert!(steps.iter().any(|step| step.reason.starts_with("zone c has no copy of group")), "{steps:?}");
    assert_eq!(world.counts()[2..], [8, 8], "zones b and c have one node each: {:?}", world.counts());
    // Two zones for three copies: two and one, or one and two.
    let mut world = World::new(6, 9, 3, |_| MIB).zoned(&["a", "b"]);
    world.rest();
    world.assert_zones_respected("two zones");
    assert_eq!(world.counts(), [4; 6]);
    // A node that is carried to another zone.
    world.enter(1, "b");
    world.enter(2, "c");
    world.rest();
    world.assert_zones_respected("zones changed");
}

#[test]
fn a_zone_that_is_gone_for_long_is_replaced_and_gets_its_copies_back() {
    let mut world = World::new(6, 7, 3, |_| MIB).zoned(&["a", "b", "c"]);
    world.rest();
    world.assert_zones_respected("at the start");
    let before = world.counts();
    for node in [3, 6] {
        world.heard.remove(&node);
    }
    assert_eq!(next_step(&world.view()), None, "they are away, and not gone");
    world.lost = [3, 6].into();
    world.roster.balance(false);
    assert_eq!(next_step(&world.view()), None, "switched off nothing is replaced");
    world.roster.balance(true);
    let steps = world.rest();
    assert_eq!(steps.len(), 6, "a copy of each group that is placed: {steps:?}");
    assert!(world.roster.placements().all(|(_, nodes)| nodes.len() == 3 && nodes.is_disjoint(&world.lost)));
    world.lost.clear();
    world.heard.extend([3, 6]);
    world.rest();
    world.assert_zones_respected("the zone has returned");
    assert_eq!(world.counts(), before);
}

#[test]
fn one_group_after_the_other_is_replaced_and_only_where_there_is_room() {
    let mut world = World::new(4, 5, 3, |_| MIB);
    world.rest();
    world.heard.remove(&2);
    world.lost.insert(2);
    let step = next_step(&world.view()).expect("node 2 is gone");
    world.roster.place(step.group, step.nodes.clone());
    assert!(!step.nodes.contains(&2) && step.nodes.len() == 3, "{step:?}");
    assert_eq!(next_step(&world.view()), None, "the first is on its way");
    world.settle();
    world.rest();
    assert!(world.roster.placements().all(|(_, nodes)| nodes.len() == 3 && !nodes.contains(&2)));
    // Of three nodes each holds everything: nobody is there who could take the place of one.
    let mut world = World::new(3, 5, 3, |_| MIB);
    (world.heard, world.lost) = ([1, 3].into(), [2].into());
    assert_eq!(next_step(&world.view()), None);
}

#[test]
fn votes_of_the_metadata_go_to_other_zones_and_from_who_is_gone() {
    let mut world = World::new(5, 1, 3, |_| MIB).zoned(&["a", "a", "a", "b", "c"]);
    let mut voters: BTreeSet<u64> = [1, 2, 3].into();
    let mut changes = Vec::new();
    let none = BTreeSet::new();
    for lost in [&none, &BTreeSet::from([4])] {
        let staying = world.staying();
        loop {
            let ready: BTreeSet<u64> = &(&staying - &voters) - lost;
            match vote_change(&world.roster, 3, (1, &voters), &ready, lost, lost.is_empty()) {
                Some(VoteChange::Give(node)) => assert!(voters.insert(node), "{node} votes"),
                Some(VoteChange::Take(node)) => assert!(voters.len() > 3 && voters.remove(&node)),
                None => break,
            }
            changes.push(voters.clone());
            assert!(changes.len() < 20, "it goes round: {changes:?}");
        }
        assert_eq!(voters.len(), 3);
        assert!(voters.is_disjoint(lost) && voters.contains(&5) && voters.contains(&1), "{voters:?}");
        assert_eq!(voters.contains(&4), lost.is_empty(), "{voters:?}");
    }
    world.roster.balance(false);
    let (voters, ready) = ([1, 2, 3].into(), [4, 5].into());
    assert_eq!(vote_change(&world.roster, 3, (1, &voters), &ready, &none, true), None);
}

#[test]
fn whatever_happens_every_group_keeps_its_nodes_and_all_comes_to_rest() {
    for seed in 0..400 {
        let mut prng = Prng::new(seed);
        let (nodes, groups) = (1 + prng.below(6), 1 + prng.below(24) as u32);
        let replicas = 1 + prng.below(4) as usize;
        let mut sizes = prng.fork();
        let mut world = World::new(nodes, groups, replicas, |_| sizes.below(600) * MIB);
        let mut last = nodes;
        let mut zones = prng.fork();
        let zone_count = zones.below(5);
        let mut zone = || {
            if zone_count > 0 && zones.chance(4, 5) { zones.below(zone_count).to_string() } else { String::new() }
        };
        (1..=nodes).for_each(|node| world.enter(node, &zone()));
        for _ in 0..8 {
            match prng.below(7) {
                0 | 1 => {
                    last += 1;
                    world.join(last);
                    world.enter(last, &zone());
                }
                5 => {
                    let node = 1 + prng.below(last);
                    world.enter(node, &zone());
                }
                6 => world.lost = &world.staying() - &world.heard,
                2 if world.roster.staying().count() > 1 => {
                    let staying: Vec<_> = world.roster.staying().collect();
                    world.leave(staying[prng.below(staying.len() as u64) as usize].0);
                }
                3 => _ = world.heard.remove(&(1 + prng.below(last))),
                _ => world.heard = (1..=last).collect(),
            }
            world.lost = &world.lost - &world.heard;
            // Some of it is interrupted half-way.
            if prng.chance(1, 3)
                && let Some(step) = next_step(&world.view())
            {
                world.roster.place(step.group, step.nodes);
                continue;
            }
            world.rest();
            let staying = world.view().staying();
            let all_heard = staying.iter().all(|node| world.heard.contains(node));
            for (group, placed) in world.roster.placements() {
                assert_ne!(group.0, 0, "seed {seed}");
                if all_heard {
                    assert_eq!(placed.len(), replicas.min(staying.len()), "seed {seed} group {group:?}");
                    assert!(placed.is_subset(&staying), "seed {seed}: {placed:?} of {staying:?}");
                }
            }
            let counts = world.counts();
            let has_placements = world.roster.placements().next().is_some();
            if all_heard {
                world.assert_zones_respected(&format!("seed {seed}"));
            }
            let is_gone_replaced = |nodes: &BTreeSet<u64>| nodes.is_disjoint(&world.lost);
            let has_room = staying.intersection(&world.heard).count() >= replicas;
            if has_room && 2 * world.heard.intersection(&staying).count() > staying.len() {
                let placed = world.roster.placements().map(|(_, nodes)| nodes);
                assert!(placed.into_iter().all(is_gone_replaced), "seed {seed}: {:?} is gone", world.lost);
            }
            if all_heard && has_placements && groups > 1 && zone_count == 0 {
                let apart = counts.iter().max().unwrap() - counts.iter().min().unwrap();
                assert!(apart <= 1, "seed {seed}: {counts:?}");
            }
        }
    }
}

/// Founds what is to be founded, and fills it.
fn grow(world: &mut World) -> Vec<Step> {
    let planned = growth(&world.view()).0;
    let (view, count) = (world.view(), wanted_count(&world.view()));
    let founded = foundings(&view, count);
    for Founding { group, voters } in founded {
        assert!(world.roster.found(group, voters.clone()));
        assert_eq!(next_filling(&world.view()).map(|filling| filling.group), None, "it has no leader yet");
        world.groups.insert(group.0, Held { leader: *voters.first().unwrap(), voters, ..Held::default() });
        let filling = next_filling(&world.view()).expect("it has voters");
        for (first, last) in filling.slots {
            assert!(world.roster.want((Slot(first), Slot(last)), filling.group));
        }
    }
    planned
}

fn slot_counts(world: &World) -> Vec<usize> {
    let wished = wished(&world.roster, world.group_count);
    let groups = world.roster.group_count(world.group_count);
    (0..groups).map(|group| wished.iter().filter(|of| **of == group).count()).collect()
}

#[test]
fn every_core_gets_a_group_and_every_group_its_share_of_slots() {
    for (nodes, groups, replicas, cores, wanted) in
        [(1, 2, 3, 16, 16), (1, 2, 3, 2, 2), (3, 2, 3, 4, 4), (6, 3, 3, 4, 8), (1, 3, 3, 2, 3), (4, 2, 3, 2, 2)]
    {
        let mut world = World::new(nodes, groups, replicas, |_| MIB);
        world.cores = cores;
        world.rest();
        let planned = grow(&mut world);
        let counts = slot_counts(&world);
        assert_eq!(counts.len(), wanted, "{nodes} nodes of {cores} cores");
        // All copies of the first group, which lives on all nodes, are as large as those of another one.
        let copies = |group: usize| if group == 0 { nodes as usize } else { replicas.min(nodes as usize) };
        let weights = counts.iter().enumerate().map(|(group, count)| count * copies(group));
        let (least, most) = (weights.clone().min().unwrap(), weights.max().unwrap());
        assert!(planned.is_empty() || most - least <= wanted * copies(0), "{counts:?}");
        assert_eq!(counts.iter().sum::<usize>(), SLOT_COUNT);
        assert_eq!(planned.len(), 2 * (wanted - groups as usize), "{planned:?}");
        assert_eq!(growth(&world.view()).0, [], "and comes to rest");
        world.rest();
        assert!(world.roster.placements().all(|(_, nodes)| nodes.len() == replicas.min(world.heard.len())));
    }
}

/// The bytes of each node, of 3/n of the whole.
fn parts_of_share(world: &World) -> Vec<f64> {
    let whole: u64 = world.groups.values().map(|held| held.bytes).sum();
    let nodes = world.staying();
    let share = whole as f64 * world.replicas.min(nodes.len()) as f64 / nodes.len() as f64;
    let first = world.groups[&0].bytes;
    world.view().shares().values().map(|(_, bytes)| (bytes + first) as f64 / share).collect()
}

#[test]
fn a_cluster_that_grows_gives_every_node_its_share_of_the_bytes() {
    // Nodes of eight cores, from three on: every slot holds as much as any other.
    let slot_bytes = 2_000_000_000 / SLOT_COUNT as u64;
    let mut world = World::new(3, 8, 3, |_| slot_bytes * 2_048);
    world.cores = 8;
    for newcomers in [vec![4], vec![5, 6], vec![7, 8]] {
        newcomers.iter().for_each(|node| world.join(*node));
        while let Some(step) = place_only(&world) {
            world.roster.place(step.group, step.nodes);
        }
        grow(&mut world);
        let counts = slot_counts(&world);
        world.groups.iter_mut().for_each(|(group, held)| held.bytes = counts[*group as usize] as u64 * slot_bytes);
        world.rest();
        let parts = parts_of_share(&world);
        assert!(parts.iter().all(|part| (0.9..=1.1).contains(part)), "{} nodes: {parts:.3?}", parts.len());
    }
}

/// The next group that gets a placement, if one has none.
fn place_only(world: &World) -> Option<Step> {
    let view = world.view();
    let step = next_step(&view)?;
    view.roster.placement(step.group).is_none().then_some(step)
}

#[test]
fn nothing_moves_for_evenness_before_new_groups_have_their_slots() {
    let mut world = World::new(3, 8, 3, |_| 250 * MIB);
    world.cores = 8;
    world.join(4);
    while let Some(step) = place_only(&world) {
        world.roster.place(step.group, step.nodes);
        world.settle();
    }
    assert_eq!(next_step(&world.view()), None, "groups are to be founded first");
    let planned = preview(&world.view(), &by(&SlotMap::even(8)));
    let moves = planned.iter().filter(|step| step.reason.starts_with("from node")).count();
    assert_eq!((moves, planned.len()), (4, 10), "and the plan says so: {planned:?}");
    grow(&mut world);
    assert!(next_step(&world.view()).is_some());
}

#[test]
fn nothing_is_founded_while_anybody_is_away_or_the_balancer_is_off() {
    let mut world = World::new(3, 2, 3, |_| MIB);
    world.cores = 8;
    world.heard.remove(&2);
    assert_eq!(growth(&world.view()).0, [], "nobody knows what cores node 2 has");
    world.heard.insert(2);
    world.groups.remove(&1);
    assert_eq!(growth(&world.view()).0, [], "a group has no leader");
    world.groups.insert(1, Held { leader: 1, voters: (1..=3).collect(), ..Held::default() });
    world.roster.balance(false);
    assert_eq!(growth(&world.view()).0, []);
    // An operator may ask for groups all the same; they get slots when the balancer may move them.
    assert_eq!(foundings(&world.view(), 4).len(), 2);
    world.roster.balance(true);
    assert_eq!(growth(&world.view()).0.len(), 12);
}

#[test]
fn a_group_without_voters_enough_gets_no_slots() {
    let mut world = World::new(3, 2, 3, |_| MIB);
    world.roster.found(GroupId(2), (1..=3).collect());
    world.groups.insert(2, Held { leader: 1, voters: [1, 2].into(), ..Held::default() });
    assert_eq!(next_filling(&world.view()), None);
    world.groups.insert(2, Held { leader: 1, voters: (1..=3).collect(), ..Held::default() });
    let filling = next_filling(&world.view()).unwrap();
    assert_eq!((filling.slot_count(), filling.givers.into_keys().collect()), (SLOT_COUNT / 3, BTreeSet::from([0, 1])));
}

#[test]
fn a_plan_says_what_would_come() {
    let mut world = World::new(3, 9, 3, |_| MIB);
    world.join(4);
    let planned = plan(&world.view());
    assert_eq!(planned, world.rest());
    assert_eq!(plan(&world.view()), []);
}

const GIB: u64 = 1 << 30;

/// What the leader of a group says that holds these slots, each of so many bytes.
fn measure(world: &mut World, slots: &SlotMap, group: u32, bytes_of: impl Fn(u16) -> u64) {
    let held = (0..SLOT_COUNT as u16).filter(|slot| slots.group_of_slot(Slot(*slot)).0 == group);
    let sizes: Vec<_> = held.map(|slot| (Slot(slot), bytes_of(slot))).collect();
    let held = world.groups.get_mut(&group).unwrap();
    held.bytes = sizes.iter().map(|(_, bytes)| bytes).sum();
    held.halves = Halves::of(&sizes);
}

/// A cluster with a group 1 that is too large, and which nodes hold what.
fn with_large_group(nodes: u64) -> (World, SlotMap) {
    let mut world = World::new(nodes, 3, 3, |_| GIB);
    world.cores = 1;
    if nodes > 3 {
        world.rest();
    }
    let slots = SlotMap::even(3);
    measure(&mut world, &slots, 1, |_| 2 << 20);
    (world, slots)
}

fn by(slots: &SlotMap) -> Splitting<'_> {
    Splitting { slots, bytes_max: 8 * GIB, level: LEVEL_OF_SPLITS }
}

/// The group has split off, is led, and nobody has measured anything since.
fn come_about(world: &mut World, slots: &mut SlotMap, split: &Split) {
    let Split { group, parent, slots: runs, bytes, .. } = split;
    assert!(world.roster.split(*group, *parent, runs, world.group_count));
    for slot in runs.iter().flat_map(|(first, last)| first.0..=last.0).map(Slot) {
        slots.learn(message::slots::Moved { slot, group: *group, epoch: slots.epoch_of(slot) + 1 });
    }
    let parent = world.groups.get_mut(&parent.0).unwrap();
    (parent.bytes, parent.halves) = (parent.bytes - bytes, None);
    let new = Held { bytes: *bytes, ..parent.clone() };
    world.groups.insert(group.0, new);
}

#[test]
fn a_group_that_is_too_large_is_split_in_halves() {
    for nodes in [1, 3, 5] {
        let (mut world, mut slots) = with_large_group(nodes);
        let split = next_split(&world.view(), &by(&slots)).expect("group 1 holds 10.7 GiB");
        assert_eq!((split.group, split.parent), (GroupId(3), GroupId(1)));
        assert_eq!((split.slot_count(), split.slots.len()), (2_731, 1), "half of 5461, in a run");
        assert_eq!(split.bytes, 2_731 << 21);
        assert_eq!(
            split.text(),
            "will split off from group 1, with 2731 slots and 5462 MiB of keys: that one holds 10922 MiB, and \
             balance-split-bytes is 8192 MiB"
        );
        let steps = splits(&world.view(), &by(&slots));
        assert_eq!(steps.len(), 1, "{steps:?}");
        assert_eq!((steps[0].group, steps[0].bytes), (GroupId(3), 0));
        assert_eq!(steps[0].nodes, world.groups[&1].voters);
        come_about(&mut world, &mut slots, &split);
        for group in [1, 3] {
            measure(&mut world, &slots, group, |_| 2 << 20);
        }
        assert_eq!(next_split(&world.view(), &by(&slots)), None, "and comes to rest");
        assert_eq!(next_filling(&world.view()), None, "the new group has its slots");
    }
}

#[test]
fn halves_are_of_bytes_and_no_group_is_split_for_the_sake_of_one_slot() {
    let (mut world, slots) = with_large_group(3);
    let first = (0..SLOT_COUNT as u16).find(|slot| slots.group_of_slot(Slot(*slot)).0 == 1).unwrap();
    // Two slots hold nearly all, and one of them is the second of the group.
    let large = [first + 1, first + 3_000];
    measure(&mut world, &slots, 1, |slot| if large.contains(&slot) { 5 * GIB } else { 1_000 });
    let split = next_split(&world.view(), &by(&slots)).unwrap();
    let goes = |slot: u16| split.slots.iter().any(|(first, last)| (first.0..=last.0).contains(&slot));
    assert_eq!(large.map(goes), [false, true]);
    assert!((5 * GIB..6 * GIB).contains(&split.bytes), "{split:?}");
    measure(&mut world, &slots, 1, |slot| if slot == large[0] { 20 * GIB } else { 1_000 });
    assert_eq!(next_split(&world.view(), &by(&slots)), None, "it would be as large afterwards");
    // One slot is all that it holds.
    let mut alone = slots.clone();
    for slot in (first + 1..first + 5_461).map(Slot) {
        alone.learn(message::slots::Moved { slot, group: GroupId(0), epoch: 1 });
    }
    measure(&mut world, &alone, 1, |_| 20 * GIB);
    assert_eq!(next_split(&world.view(), &by(&alone)), None);
}

#[test]
fn no_group_is_split_unless_that_is_allowed() {
    let (mut world, slots) = with_large_group(3);
    assert!(next_split(&world.view(), &by(&slots)).is_some());
    assert_eq!(next_split(&world.view(), &Splitting { level: Level(1), ..by(&slots) }), None);
    assert_eq!(next_split(&world.view(), &Splitting { bytes_max: 0, ..by(&slots) }), None);
    assert_eq!(next_split(&world.view(), &Splitting { bytes_max: 11 * GIB, ..by(&slots) }), None);
    world.roster.balance(false);
    assert_eq!(next_split(&world.view(), &by(&slots)), None);
    world.roster.balance(true);
    // Its leader is of a version that measures nothing, or has something under way.
    world.groups.get_mut(&1).unwrap().halves = None;
    assert_eq!(next_split(&world.view(), &by(&slots)), None);
}

#[test]
fn what_has_begun_is_not_begun_again() {
    let (mut world, mut slots) = with_large_group(3);
    let before = world.groups.clone();
    let split = next_split(&world.view(), &by(&slots)).unwrap();
    assert!(world.roster.split(split.group, split.parent, &split.slots, 3));
    assert_eq!(next_split(&world.view(), &by(&slots)), None, "the new group has not been heard");
    world.roster = Roster::default();
    (1..=3).for_each(|node| _ = world.roster.enlist(NodeId(node), Member::default()));
    come_about(&mut world, &mut slots, &split);
    // What the leader of the group said before it split is still there.
    world.groups.insert(1, before[&1].clone());
    assert_eq!(next_split(&world.view(), &by(&slots)), None, "it tells of more slots than it has");
    let old = SlotMap::even(3);
    assert_eq!(next_split(&world.view(), &by(&old)), None, "nobody here has heard that the slots have gone");
}

#[test]
fn nothing_is_split_while_replicas_change_or_anybody_is_away() {
    let change: [fn(&mut World); 6] = [
        |world| _ = world.heard.remove(&2),
        |world| _ = world.groups.get_mut(&1).unwrap().learners.insert(5),
        |world| _ = world.groups.get_mut(&1).unwrap().voters.insert(5),
        |world| _ = world.groups.remove(&2),
        |world| world.leave(1),
        |world| _ = world.roster.place(GroupId(2), [3, 4, 5].into()),
    ];
    for (place, change) in change.into_iter().enumerate() {
        let (mut world, slots) = with_large_group(5);
        let nodes = [1, 2, 3];
        for group in 1..3 {
            world.roster.place(GroupId(group), nodes.into());
            world.groups.get_mut(&group).unwrap().voters = nodes.into();
        }
        world.groups.get_mut(&0).unwrap().learners = [4, 5].into();
        assert!(next_split(&world.view(), &by(&slots)).is_some());
        change(&mut world);
        assert_eq!(next_split(&world.view(), &by(&slots)), None, "change {place}");
    }
}

#[test]
fn no_more_groups_come_of_splits_than_cores_can_look_after() {
    for (cores, count) in [(1, 4), (2, 8)] {
        let (mut world, mut slots) = with_large_group(3);
        world.cores = cores;
        let most = Splitting { bytes_max: 1, ..by(&slots) }.bytes_max;
        for round in 0.. {
            assert!(round < 20, "it goes on for ever");
            for group in world.groups.keys().copied().collect::<Vec<_>>() {
                measure(&mut world, &slots, group, |_| MIB);
            }
            let by = Splitting { bytes_max: most, ..by(&slots) };
            let Some(split) = next_split(&world.view(), &by) else { break };
            assert_eq!(
                split.parent,
                GroupId(
                    (0..world.groups.len() as u32)
                        .max_by_key(|group| { (world.groups[group].bytes, std::cmp::Reverse(*group)) })
                        .unwrap()
                ),
                "the largest first"
            );
            come_about(&mut world, &mut slots, &split);
        }
        assert_eq!(world.groups.len(), count);
    }
}

/// What one node knows of the groups: as leaders have told it, and some of that a while ago.
struct Hearsay {
    told: BTreeMap<u32, Held>,
    slots: SlotMap,
    /// Bytes of each group when its leader told of it.
    bytes: BTreeMap<u32, u64>,
}

/// A cluster in which anything may happen, and two nodes that lead the metadata by turns.
struct Adversary {
    world: World,
    prng: Prng,
    slots: SlotMap,
    sizes: Vec<u64>,
    leaders: [Hearsay; 2],
    /// Groups that have split off.
    born: BTreeSet<u32>,
    bytes_max: u64,
}

impl Adversary {
    fn new(seed: u64) -> Self {
        let mut prng = Prng::new(seed);
        let (nodes, groups) = (1 + prng.below(6), 1 + prng.below(3) as u32);
        let mut world = World::new(nodes, groups, 3, |_| 0);
        world.cores = 1 + prng.below(3) as u16;
        let slots = SlotMap::even(groups);
        let leaders = [(); 2].map(|()| Hearsay { told: BTreeMap::new(), slots: slots.clone(), bytes: BTreeMap::new() });
        let bytes_max = 1_000 + prng.below(100_000);
        let sizes = vec![0; SLOT_COUNT];
        let mut all = Self { world, prng, slots, sizes, leaders, born: BTreeSet::new(), bytes_max };
        all.live_where_they_are_to_live();
        all
    }

    fn count(&self) -> u32 {
        self.world.roster.group_count(self.world.group_count)
    }

    fn held_by(&self, group: u32) -> Vec<(Slot, u64)> {
        let slots = (0..SLOT_COUNT as u16).map(Slot).filter(|slot| self.slots.group_of_slot(*slot).0 == group);
        slots.map(|slot| (slot, self.sizes[usize::from(slot.0)])).collect()
    }

    fn unborn(&self) -> Option<GroupId> {
        (0..self.count())
            .map(GroupId)
            .find(|group| self.world.roster.parent(*group).is_some() && !self.born.contains(&group.0))
    }

    /// Some are replaced, learn, and vote.
    fn live_where_they_are_to_live(&mut self) {
        self.world.settle();
        let staying = self.world.staying();
        let voters: BTreeSet<u64> = staying.iter().copied().take(3).collect();
        for (group, held) in &mut self.world.groups {
            if self.world.roster.placement(GroupId(*group)).is_none() {
                held.learners = if *group == 0 { &staying - &voters } else { BTreeSet::new() };
                held.voters.clone_from(&voters);
                held.leader = *voters.first().unwrap();
            }
        }
    }

    /// The split that is under way comes about.
    fn split_off(&mut self) {
        let Some(group) = self.unborn() else { return };
        let parent = self.world.roster.parent(group).unwrap();
        let runs: Vec<_> = self.world.roster.wanted().filter(|(.., to)| *to == group).collect();
        for slot in runs.iter().flat_map(|(first, last, _)| *first..=*last).map(Slot) {
            assert_eq!(self.slots.group_of_slot(slot), parent, "slots of another group were to split off");
            let epoch = self.slots.epoch_of(slot) + 1;
            self.slots.learn(message::slots::Moved { slot, group, epoch });
        }
        let new = self.world.groups[&parent.0].clone();
        self.world.groups.insert(group.0, new);
        self.born.insert(group.0);
    }

    /// A leader of the metadata hears of a group, or where the slots are.
    fn hear(&mut self, leader: usize, group: u32) {
        let sizes = self.held_by(group);
        let Some(held) = self.world.groups.get(&group) else { return };
        let bytes: u64 = sizes.iter().map(|(_, bytes)| bytes).sum();
        let is_splitting = self.unborn().and_then(|group| self.world.roster.parent(group)) == Some(GroupId(group));
        let halves = if bytes > self.bytes_max && !is_splitting { Halves::of(&sizes) } else { None };
        self.leaders[leader].told.insert(group, Held { bytes, halves, ..held.clone() });
        self.leaders[leader].bytes.insert(group, bytes);
    }

    /// Groups come into being by splits alone.
    fn view(&self, told: &BTreeMap<u32, Held>) -> View<'_> {
        View { groups: told.clone(), founds_groups: false, ..self.world.view() }
    }

    /// What this leader of the metadata would let split.
    fn decide(&self, leader: usize, level: Level) -> Option<Split> {
        let Hearsay { told, slots, .. } = &self.leaders[leader];
        let by = Splitting { slots, bytes_max: self.bytes_max, level };
        next_split(&self.view(told), &by)
    }

    /// It does. Whatever it has not heard, this is allowed.
    fn begin(&mut self, leader: usize, split: &Split) {
        assert_eq!(self.unborn(), None, "one at a time: {split:?}");
        assert_eq!(split.group.0, self.count());
        let told = self.leaders[leader].bytes[&split.parent.0];
        assert!(told > self.bytes_max, "{split:?} of {told}, of {}", self.bytes_max);
        assert!(split.bytes >= told / HALF_PART && split.bytes <= told - told / HALF_PART, "{split:?} of {told}");
        let staying = self.world.staying();
        let cores = u64::from(self.world.cores) * staying.len() as u64;
        let replicas = 3.min(staying.len() as u64);
        assert!(u64::from(split.group.0 + 1) * replicas <= cores * u64::from(GROUPS_PER_CORE), "{split:?}");
        let held = &self.leaders[leader].told[&split.parent.0];
        assert!(held.voters.is_subset(&staying) && held.voters.is_subset(&self.world.heard), "{held:?}");
        assert!(split.slot_count() < self.held_by(split.parent.0).len(), "it keeps no slot");
        let Split { group, parent, slots, .. } = split;
        assert!(self.world.roster.split(*group, *parent, slots, self.world.group_count));
    }

    /// Keys come and go: everywhere, in one slot, or not at all any more.
    fn change_keys(&mut self) {
        let most = 1 + self.prng.below(self.bytes_max);
        match self.prng.below(5) {
            0 => self.sizes.fill(0),
            1 => self.sizes.fill(most / 1_000),
            2 => self.sizes[self.prng.below(SLOT_COUNT as u64) as usize] = 3 * most,
            _ => {
                let first = self.prng.below(SLOT_COUNT as u64) as usize;
                let last = (first + self.prng.below(4_000) as usize).min(SLOT_COUNT);
                self.sizes[first..last].fill(self.prng.below(2 + most / 1_000));
            }
        }
    }

    fn change_nodes(&mut self) {
        let last = self.world.roster.all().map(|(node, _)| node.0).max().unwrap();
        let node = 1 + self.prng.below(last);
        match self.prng.below(6) {
            0 if last < 8 => self.world.join(last + 1),
            1 if self.world.staying().len() > 1 && self.world.staying().contains(&node) => self.world.leave(node),
            2 => _ = self.world.heard.remove(&node),
            3 => self.world.cores = 1 + self.prng.below(3) as u16,
            _ => self.world.heard = (1..=last).collect(),
        }
    }

    fn step(&mut self, level: Level) {
        let leader = self.prng.below(2) as usize;
        let group = self.prng.below(u64::from(self.count())) as u32;
        match self.prng.below(16) {
            0 | 1 => self.change_keys(),
            2 => self.change_nodes(),
            3 => self.live_where_they_are_to_live(),
            4 | 5 => self.split_off(),
            6 => self.leaders[leader].slots = self.slots.clone(),
            // It has not been led, and nobody tells of it.
            7 => _ = self.leaders[leader].told.remove(&group),
            8..12 => self.hear(leader, group),
            12 => {
                let told = self.leaders[leader].told.clone();
                if let Some(step) = next_step(&self.view(&told)) {
                    self.world.roster.place(step.group, step.nodes);
                }
            }
            _ => {
                if let Some(split) = self.decide(leader, level) {
                    assert!(level >= LEVEL_OF_SPLITS, "{split:?}");
                    self.begin(leader, &split);
                }
            }
        }
    }

    /// All is heard, and nothing changes any more: how many groups still split.
    fn rest(&mut self) -> usize {
        let last = self.world.roster.all().map(|(node, _)| node.0).max().unwrap();
        self.world.heard = (1..=last).collect();
        for split_count in 0.. {
            self.split_off();
            for leader in [0, 1] {
                self.leaders[leader].slots = self.slots.clone();
            }
            loop {
                self.live_where_they_are_to_live();
                (0..self.count()).for_each(|group| self.hear(0, group));
                let told = self.leaders[0].told.clone();
                let Some(step) = next_step(&self.view(&told)) else { break };
                self.world.roster.place(step.group, step.nodes);
            }
            let Some(split) = self.decide(0, LEVEL_OF_SPLITS) else { return split_count };
            self.begin(0, &split);
            assert_eq!(self.decide(0, LEVEL_OF_SPLITS), None, "it has only begun");
            assert_eq!(self.decide(1, LEVEL_OF_SPLITS), None, "either leader knows");
        }
        unreachable!("it comes to rest")
    }
}

#[test]
fn whatever_leaders_have_heard_groups_split_one_at_a_time_and_come_to_rest() {
    let (mut begun, mut at_rest) = (0, 0);
    for seed in 0..80 {
        let mut all = Adversary::new(seed);
        for step in 0..400 {
            all.step(if step < 100 { Level(1) } else { LEVEL_OF_SPLITS });
        }
        begun += all.born.len();
        at_rest += all.rest();
        assert_eq!(all.rest(), 0, "seed {seed}");
        // What is too large now is so for want of cores, or because of a single slot.
        let is_full = all.count() >= split_count_max(&all.world.view());
        for group in 0..all.count() {
            let sizes = all.held_by(group);
            let bytes: u64 = sizes.iter().map(|(_, bytes)| bytes).sum();
            let is_even = Halves::of(&sizes).is_some_and(|of| of.bytes[0].min(of.bytes[1]) >= of.all() / HALF_PART);
            let holds = (bytes, all.bytes_max, is_even);
            assert!(is_full || !is_even || bytes <= all.bytes_max, "seed {seed} group {group}: {holds:?}");
        }
    }
    assert!(begun > 40 && at_rest > 40, "{begun} and {at_rest} splits: they try little");
}

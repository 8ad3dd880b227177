//! Bytes and messages that no honest peer would send.

use bytes::Bytes;
use consensus::{Change, Dropped, Fault, Malformed, Message, Options, Refused, Replica, Seed};
use stdx::log::{Entry, EntryKind, HardState, Membership};
use stdx::{Duration, Instant, Prng};

use crate::cluster::Cluster;

/// Bytes of every message a small group exchanges while it elects, replicates, confirms reads and readmits a node.
fn corpus() -> Vec<Vec<u8>> {
    let mut cluster = Cluster::new(3, 0, 1);
    (1..=3).for_each(|id| cluster.tick(id, 10));
    cluster.campaign(1);
    let mut corpus = Vec::new();
    for step in 0..12 {
        match step {
            4 => cluster.propose(1, "first"),
            5 => {
                cluster.propose(1, "second");
                cluster.propose(1, "third");
            }
            7 => cluster.read(1, 9),
            8 => {
                cluster.crash(2, true);
                cluster.start(2, true);
                cluster.tick(1, 2);
            }
            9 => cluster.tick(2, 2),
            _ => {}
        }
        corpus.extend(cluster.in_flight.iter().map(|message| {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            bytes
        }));
        cluster.deliver(false, |_| true);
    }
    corpus
}

/// Three voters, of which the first leads.
fn led_by_one() -> Cluster {
    let mut cluster = Cluster::new(3, 0, 1);
    (1..=3).for_each(|id| cluster.tick(id, 10));
    cluster.campaign(1);
    cluster.stabilize(false);
    cluster
}

/// An answer to a heartbeat, as bytes.
fn heartbeat_reply() -> Vec<u8> {
    corpus().into_iter().find(|bytes| bytes[0] == 8).expect("it is there")
}

#[test]
fn the_corpus_shows_every_kind() {
    let kinds: std::collections::BTreeSet<u8> = corpus().iter().map(|bytes| bytes[0]).collect();
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), (1..=10).collect::<Vec<_>>());
}

#[test]
fn cut_bytes_are_refused() {
    for bytes in corpus() {
        for length in 0..bytes.len() {
            assert!(Message::decode(&bytes[..length]).is_err());
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(Message::decode(&longer), Err(Malformed::Length));
    }
}

#[test]
fn a_count_beyond_the_bytes_costs_no_memory() {
    // An append from 2 to 1 in term 1 that promises 65,536 entries, or more, and holds none.
    let header = [1, 0, 2, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(Message::decode(&[&header[..], &[0x80, 0x80, 0x04]].concat()), Err(Malformed::Length));
    assert_eq!(Message::decode(&[&header[..], &[0x81, 0x80, 0x04]].concat()), Err(Malformed::Number));
}

#[test]
fn whatever_decodes_can_be_stepped() {
    let corpus = corpus();
    let mut prng = Prng::new(11);
    let (mut taken, mut refused) = (0_u32, 0_u32);
    for round in 0..60_u64 {
        let mut cluster = Cluster::new(3, 0, round);
        (1..=3).for_each(|id| cluster.tick(id, 10));
        cluster.campaign(1 + round % 3);
        cluster.stabilize(false);
        for _ in 0..500 {
            let mut bytes = corpus[prng.below(corpus.len() as u64) as usize].clone();
            for _ in 0..prng.below(4) {
                let at = prng.below(bytes.len() as u64) as usize;
                bytes[at] = prng.draw() as u8;
            }
            let Ok(message) = Message::decode(&bytes) else {
                refused += 1;
                continue;
            };
            let mut again = Vec::new();
            message.encode(&mut again);
            assert_eq!(Message::decode(&again).as_ref(), Ok(&message), "one meaning, one reading");
            let to = 1 + prng.below(3);
            match cluster.replica(to).step(message) {
                Ok(()) => taken += 1,
                Err(_) => refused += 1,
            }
            cluster.settle(to);
            cluster.in_flight.clear();
        }
    }
    assert!(taken > 1_000 && refused > 1_000, "both ways must be walked: {taken} taken, {refused} refused");
}

#[test]
fn what_a_leader_sends_twice_at_once_overtakes_nobody() {
    let mut cluster = led_by_one();
    // What the first leader has alone is replaced by others.
    (2..=3).for_each(|other| cluster.cut(1, other));
    cluster.propose(1, "lost");
    cluster.stabilize(false);
    cluster.crash(1, false);
    (2..=3).for_each(|id| cluster.tick(id, 10));
    cluster.campaign(2);
    cluster.stabilize(false);
    cluster.propose(2, "kept");
    cluster.stabilize(false);
    cluster.start(1, false);
    cluster.heal();
    let last = cluster.replica(2).last_index();
    for _ in 0..20 {
        cluster.tick(2, 2);
        cluster.deliver(false, |message| message.to() != 1);
        for message in cluster.in_flight.extract_if(.., |message| message.to() == 1).collect::<Vec<_>>() {
            // Both come before the replica has carried out anything.
            assert_eq!(cluster.replica(1).step(message.clone()), Ok(()));
            assert_eq!(cluster.replica(1).step(message), Ok(()));
        }
        cluster.settle(1);
    }
    assert_eq!(cluster.replica(1).committed_index(), last);
}

#[test]
fn a_misdelivery_is_refused() {
    let mut three = Cluster::new(3, 0, 1);
    (1..=3).for_each(|id| three.tick(id, 10));
    three.in_flight.clear();
    three.campaign(3);
    let message = three.in_flight.pop().expect("a request for a pre-vote");
    let mut two = Cluster::new(2, 0, 1);
    let other = 3 - message.to();
    assert_eq!(two.replica(other).step(message), Err(Refused::Misdelivered));
}

/// A member that lies: it says a term near the end of all numbers, in every kind of message that it sends.
#[test]
fn a_term_absurdly_far_ahead_leaves_a_group_its_leader() {
    let mut cluster = led_by_one();
    let (term, mut count) = (cluster.replica(1).term(), 0);
    for bytes in corpus() {
        for ahead in [1 << 21, 1 << 40, 1 << 61] {
            // Kind, flags, from, to and incarnation stand before the term, each number of a small cluster in one byte.
            let mut reader = &bytes[2..];
            let mut head = bytes[..2].to_vec();
            for _ in 0..3 {
                stdx::leb128::put(&mut head, take_number(&mut reader));
            }
            take_number(&mut reader);
            stdx::leb128::put(&mut head, term + ahead);
            head.extend_from_slice(reader);
            let Ok(message) = Message::decode(&head) else { continue };
            let to = message.to();
            assert_eq!(cluster.replica(to).step(message), Err(Refused::Implausible));
            assert_eq!(cluster.replica(to).term(), term);
            count += 1;
        }
    }
    assert!(count > 20, "{count}");
    cluster.propose(1, "still led");
    cluster.stabilize(false);
    assert!((1..=3).all(|id| cluster.replica(id).leader() == Some(1)));
}

/// A node with a certificate of the cluster that is no member of the group cost it an election every seven seconds.
#[test]
fn a_stranger_far_ahead_costs_a_group_that_is_led_no_election() {
    let mut cluster = led_by_one();
    let term = cluster.replica(1).term();
    let reply = heartbeat_reply();
    let far_ahead = |cluster: &mut Cluster, from| {
        for _ in 0..150 {
            (1..=3).for_each(|id| cluster.tick(id, 1));
            cluster.stabilize(false);
        }
        let message = reply_in(&reply, from, 1, term + (1 << 61));
        assert_eq!(cluster.replica(1).step(message), Err(Refused::Implausible));
    };
    for _ in 0..3 {
        far_ahead(&mut cluster, 9);
        assert!(cluster.replica(1).is_leader());
        assert_eq!(cluster.replica(1).term(), term);
    }
    // A member may have been led there, and would never be heard otherwise.
    far_ahead(&mut cluster, 3);
    assert!(cluster.replica(1).term() > term);
}

/// A node that lies leads one member far ahead while that one hears nobody else. When it is gone the other two find a
/// term in which they can elect somebody.
#[test]
fn who_was_led_far_ahead_is_followed_when_the_liar_is_gone() {
    let mut cluster = led_by_one();
    [(1, 2), (2, 1)].into_iter().for_each(|(from, to)| cluster.cut(from, to));
    let reply = heartbeat_reply();
    for _ in 0..5 {
        (1..=2).for_each(|id| cluster.tick(id, 10));
        for _ in 0..100 {
            // Each says as much as may be believed.
            let message = reply_in(&reply, 3, 2, cluster.replica(2).term() + (1 << 20));
            let _ = cluster.replica(2).step(message);
        }
        cluster.settle(2);
        cluster.in_flight.clear();
    }
    let (first, second) = (cluster.replica(1).term(), cluster.replica(2).term());
    assert!(second > first + (3 << 20), "it has not been led ahead: {first} and {second}");
    assert!(second <= first + (6 << 20), "there is no bound: {first} and {second}");
    cluster.heal();
    (1..=2).for_each(|id| {
        cluster.cut(id, 3);
        cluster.cut(3, id);
    });
    let mut rounds = 0;
    while !(1..=2).any(|id| cluster.replica(id).is_leader() && cluster.replica(id).term() >= second) {
        rounds += 1;
        assert!(rounds < 1_000, "they never agree: {} and {}", cluster.replica(1).term(), cluster.replica(2).term());
        (1..=2).for_each(|id| cluster.tick(id, 1));
        cluster.stabilize(false);
    }
}

/// A learner's term deposes the only voter, which has a slow disk. Nobody else is asked for a vote: the request would
/// wait for that disk.
#[test]
fn who_is_alone_leads_again_when_what_it_holds_is_on_its_disk() {
    let mut cluster = Cluster::new(1, 1, 1);
    cluster.stabilize(false);
    cluster.set_syncs(1, false);
    cluster.propose(1, "text");
    let reply = heartbeat_reply();
    let message = reply_in(&reply, 2, 1, cluster.replica(1).term() + 1);
    assert_eq!(cluster.replica(1).step(message), Ok(()));
    cluster.settle(1);
    assert!(!cluster.replica(1).is_leader(), "it is deposed");
    cluster.tick(1, 100);
    cluster.replica(1).campaign();
    assert!(!cluster.replica(1).is_leader(), "its disk has not taken what it holds");
    cluster.set_syncs(1, true);
    cluster.persist(1);
    cluster.tick(1, 100);
    cluster.stabilize(false);
    assert!(cluster.replica(1).is_leader());
    assert_eq!(cluster.node(1).applied, ["text"]);
}

#[test]
fn only_who_leads_hands_over() {
    let mut cluster = led_by_one();
    let term = cluster.replica(1).term();
    let reply = heartbeat_reply();
    for (from, term) in [(3, term), (3, term + 1), (1, term + 1)] {
        let mut bytes = Vec::new();
        reply_in(&reply, from, 2, term).encode(&mut bytes);
        bytes[0] = 12;
        let message = Message::decode(&bytes).expect("a hand-over");
        assert_eq!(cluster.replica(2).step(message), Err(Refused::NotLeader), "from {from} in {term}");
    }
    assert_eq!(cluster.replica(2).term(), term);
}

/// An answer to a heartbeat in this term, without a context.
fn reply_in(reply: &[u8], from: u64, to: u64, term: u64) -> Message {
    let mut bytes = vec![reply[0], 0];
    let life = 1;
    for number in [from, to, life, term, 0, 0, 0, 0, 0, 0] {
        stdx::leb128::put(&mut bytes, number);
    }
    bytes.extend_from_slice(&[0, 0]);
    Message::decode(&bytes).expect("an answer to a heartbeat")
}

/// A number as messages have it.
fn take_number(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..).step_by(7) {
        let (byte, rest) = bytes.split_first().expect("a whole message");
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    number
}

fn seed(commit: u64, checkpoint: (u64, u64), entries: &[(u64, u64)]) -> Seed {
    let entry = |&(index, term)| Entry { term, index, kind: EntryKind::Normal, data: Bytes::from_static(b"x") };
    Seed {
        hard_state: HardState { term: 9, vote: 1, commit },
        membership: Membership { voters: vec![1], ..Membership::default() },
        checkpoint_index: checkpoint.0,
        checkpoint_term: checkpoint.1,
        entries: entries.iter().map(entry).collect(),
    }
}

/// The whole of what recovery may hand in, sound and unsound.
#[test]
fn a_seed_that_contradicts_itself_does_not_start() {
    let table: &[(&str, Seed, Result<u64, Fault>)] = &[
        ("nothing", seed(0, (0, 0), &[]), Ok(0)),
        ("a log", seed(1, (0, 0), &[(1, 1), (2, 1)]), Ok(2)),
        ("a checkpoint", seed(0, (7, 3), &[]), Ok(7)),
        ("a log behind a checkpoint", seed(8, (7, 3), &[(8, 3), (9, 4)]), Ok(9)),
        ("a log around a checkpoint", seed(8, (7, 3), &[(6, 3), (7, 3), (8, 3)]), Ok(8)),
        ("a log that ends before the checkpoint", seed(5, (7, 3), &[(4, 3), (5, 3)]), Ok(7)),
        ("no first entry", seed(0, (0, 0), &[(2, 1)]), Err(Fault::Hole { after: 0, next: 2 })),
        ("a hole behind the checkpoint", seed(0, (7, 3), &[(9, 3)]), Err(Fault::Hole { after: 7, next: 9 })),
        ("a hole inside", seed(0, (0, 0), &[(1, 1), (3, 1)]), Err(Fault::Hole { after: 1, next: 3 })),
        ("another entry under the checkpoint", seed(0, (7, 3), &[(7, 2)]), Err(Fault::Diverged { index: 7 })),
        (
            "lost entries that were committed",
            seed(3, (0, 0), &[(1, 1), (2, 1)]),
            Err(Fault::LostCommitted { commit: 3, last: 2 }),
        ),
    ];
    for (name, seed, expected) in table {
        // A new leader adds one entry of its own.
        let got = Replica::new(Options::new(1, 0, 1), seed.clone()).map(|replica| replica.last_index() - 1);
        assert_eq!(got, *expected, "{name}");
    }
}

/// Where nobody votes, any candidate would win.
#[test]
fn a_replica_that_does_not_vote_stands_for_nothing() {
    let elsewhere = Membership { voters: vec![2, 3], ..Membership::default() };
    for membership in [Membership::default(), elsewhere] {
        let mut replica =
            Replica::new(Options::new(1, 0, 1), Seed { membership, ..Seed::default() }).expect("no voter");
        // Whatever it may have promised before is over.
        replica.tell_time(Instant::ZERO);
        replica.tell_time(Instant::ZERO + Duration::from_secs(60));
        replica.campaign();
        assert!(!replica.is_leader());
        assert!(replica.take_ready().is_none_or(|ready| ready.append.is_none()), "it has voted");
    }
}

/// Whatever replicas have promised is over, and nobody has heard anything since.
fn pass(cluster: &mut Cluster) {
    let ids: Vec<u64> = cluster.nodes.keys().copied().collect();
    ids.into_iter().for_each(|id| cluster.tick(id, 100));
    cluster.in_flight.clear();
}

/// Of three that vote, one has never held anything, and one is away.
#[test]
fn one_that_has_never_held_anything_votes_where_it_may() {
    for (may_vote, is_in_doubt) in [(false, false), (true, false), (true, true)] {
        let mut cluster = Cluster::new(3, 0, 1);
        cluster.crash(3, true);
        cluster.blank(3);
        cluster.crash(1, true);
        cluster.start(1, is_in_doubt);
        cluster.start(3, false);
        pass(&mut cluster);
        cluster.crash(2, true);
        cluster.replica(3).let_vote_vacant(may_vote);
        cluster.campaign(1);
        cluster.stabilize(false);
        // One in doubt needs all of them.
        assert_eq!(cluster.replica(1).is_leader(), may_vote && !is_in_doubt);

        cluster.start(2, false);
        pass(&mut cluster);
        cluster.campaign(1);
        cluster.stabilize(false);
        assert_eq!(cluster.replica(1).is_leader(), may_vote || !is_in_doubt);
    }
}

/// A learner is being made a voter, and has more than the leader, which loses the end of its log. Whether the learner
/// votes by now depends on which replica holds that change.
#[test]
fn a_change_that_cannot_be_committed_makes_no_voter() {
    for holds_change in [false, true] {
        let mut cluster = Cluster::new(2, 1, 1);
        pass(&mut cluster);
        cluster.campaign(1);
        cluster.stabilize(false);
        cluster.propose(1, "one");
        cluster.stabilize(false);
        if !holds_change {
            cluster.cut(1, 2);
        }
        cluster.cut(2, 1);
        cluster.change(1, Change::AddVoter(3));
        cluster.stabilize(false);
        cluster.cut(1, 2);
        cluster.set_syncs(1, false);
        cluster.propose(1, "two");
        cluster.stabilize(false);
        cluster.crash(1, true);
        cluster.set_syncs(1, true);
        cluster.heal();
        cluster.start(1, true);
        pass(&mut cluster);
        assert!(cluster.replica(1).last_index() < cluster.replica(3).last_index(), "the learner has more");

        cluster.campaign(1);
        cluster.stabilize(false);
        assert_eq!(cluster.replica(1).is_leader(), !holds_change);
        if holds_change {
            assert_eq!(cluster.replica(1).missing_voters(), [3]);
        }
    }
}

/// A member was let go, and was made one again before it heard so: then it gives up what the leader knows of it.
#[test]
fn a_member_that_has_emptied_itself_is_fed_again() {
    for says_so in [false, true] {
        let mut cluster = Cluster::new(3, 0, 1);
        pass(&mut cluster);
        cluster.campaign(1);
        cluster.stabilize(false);
        cluster.propose(1, "one");
        cluster.stabilize(false);
        let last = cluster.replica(1).last_index();
        cluster.offer(1, last);
        cluster.crash(3, true);
        cluster.blank(3);
        cluster.start(3, false);
        if says_so {
            cluster.replica(1).note_emptied(3);
        }
        for _ in 0..100 {
            (1..=3).for_each(|id| cluster.tick(id, 1));
            cluster.stabilize(false);
            cluster.transfer();
        }
        assert_eq!(cluster.replica(3).last_index(), if says_so { last } else { 0 });
    }
}

/// Time passes, checkpoints arrive, and the leader writes something: in the end node 2 holds it as well.
fn everybody_is_fed(cluster: &mut Cluster) {
    for round in 0..200 {
        (1..=4).for_each(|id| cluster.tick(id, 1));
        cluster.stabilize(false);
        let Some(leader) = (1..=4).find(|id| cluster.replica(*id).is_leader()) else { continue };
        let last = cluster.replica(leader).last_index();
        cluster.offer(leader, last);
        cluster.transfer();
        if round == 150 {
            cluster.propose(leader, "at last");
        }
    }
    let lasts: Vec<u64> = (1..=4).map(|id| cluster.replica(id).last_index()).collect();
    assert!(lasts.iter().all(|last| *last == lasts[0]), "{lasts:?}\n{}", cluster.transcript);
}

/// Node 2 is let go and comes back, and node 3 hears of both only after it has heard node 2 again. Then node 3 leads.
#[test]
fn a_node_that_has_come_back_is_fed_by_a_leader_that_was_behind() {
    let mut cluster = Cluster::of_group(1, 4, 0, 1);
    pass(&mut cluster);
    cluster.campaign(1);
    cluster.stabilize(false);
    cluster.cut(1, 3);
    cluster.change(1, Change::Remove(2));
    cluster.stabilize(false);
    cluster.crash(2, true);
    cluster.blank(2);
    cluster.start(2, false);
    cluster.change(1, Change::AddLearner(2));
    // A log begins with a checkpoint that says who takes part.
    (0..5).for_each(|_| _ = cluster.deliver(false, |message| message.to() != 2));
    let last = cluster.replica(1).committed_index();
    cluster.in_flight.clear();
    cluster.offer(1, last);
    cluster.replica(1).compact(last);
    (0..50).for_each(|_| {
        cluster.tick(1, 1);
        cluster.stabilize(false);
        cluster.transfer();
    });
    cluster.change(1, Change::AddVoter(2));
    cluster.stabilize(false);
    assert_eq!(cluster.replica(2).last_index(), cluster.replica(1).last_index());
    pass(&mut cluster);
    cluster.campaign(2);
    assert_eq!(cluster.deliver(false, |message| message.to() == 3), 1, "node 3 hears it");
    cluster.heal();
    pass(&mut cluster);
    // Node 4 has a log in which node 3 finds both.
    cluster.campaign(4);
    everybody_is_fed(&mut cluster);
    let leader = (1..=4).find(|id| cluster.replica(*id).is_leader()).expect("a leader");
    if leader != 3 {
        cluster.hand_over(leader, 3);
        cluster.stabilize(false);
    }
    assert!(cluster.replica(3).is_leader(), "{}", cluster.transcript);
    cluster.propose(3, "one");
    cluster.stabilize(false);
    everybody_is_fed(&mut cluster);
}

/// The leader that lets node 2 go is no more before another one knows that this holds, and that one hears what node 2
/// says as one that is to come back.
#[test]
fn a_node_that_has_come_back_is_fed_by_a_leader_that_finds_that_it_was_let_go() {
    let mut cluster = Cluster::of_group(1, 4, 0, 1);
    pass(&mut cluster);
    cluster.campaign(1);
    cluster.stabilize(false);
    cluster.change(1, Change::Remove(2));
    cluster.deliver(false, |_| true);
    cluster.cut(1, 3);
    cluster.stabilize(false);
    assert_eq!(cluster.replica(1).membership().voters, [1, 3, 4]);
    assert_eq!(cluster.replica(3).membership().voters, [1, 2, 3, 4]);
    cluster.crash(1, true);
    cluster.crash(2, true);
    cluster.blank(2);
    cluster.heal();
    [1, 2].into_iter().for_each(|id| cluster.start(id, false));
    pass(&mut cluster);
    cluster.campaign(3);
    cluster.stabilize(false);
    assert!(cluster.replica(3).is_leader());
    assert_eq!(cluster.replica(3).membership().voters, [1, 3, 4]);
    cluster.change(3, Change::AddLearner(2));
    everybody_is_fed(&mut cluster);
}

#[test]
fn a_full_window_refuses_until_something_is_committed() {
    let options = Options { uncommitted_bytes_max: 100, ..Options::new(1, 0, 1) };
    let mut replica = Replica::new(options, seed(0, (0, 0), &[])).expect("a new voter");
    let cycle = |replica: &mut Replica| {
        while let Some(ready) = replica.take_ready() {
            if let Some(append) = ready.append {
                replica.persisted(append.ticket);
            }
        }
    };
    cycle(&mut replica);
    let large = Bytes::from(vec![1; 300]);
    assert_eq!(replica.propose(large.clone()), Ok(()), "one entry beyond the bound is taken alone");
    assert_eq!(replica.propose(large.clone()), Err(Dropped::WindowFull));
    cycle(&mut replica);
    assert_eq!(replica.propose(large), Ok(()));
}

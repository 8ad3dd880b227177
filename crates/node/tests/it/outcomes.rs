//! Stories of gateways that die: how the transactions that they leave behind ended is kept as long as somebody may ask.

use group::ids::GroupId;
use keyspace::Moment;
use message::entry::{Builder, Effect};
use message::{CoreId, GatewayId, TransactionId};
use resp::{Args, Protocol, Span};
use stdx::log::{Entry, EntryKind};
use stdx::{Duration, Level, UnixMillis};

use crate::host::Host;
use crate::settings;

/// Longer than any participant waits before it asks.
fn pass_a_minute(host: &mut Host) {
    for _ in 0..60 {
        host.pass(Duration::from_secs(1));
    }
}

fn transaction(life: u64) -> TransactionId {
    TransactionId { gateway: GatewayId { node: 1, boot: life, core: CoreId(0) }, number: 7 }
}

fn entry(entries: &mut Vec<Entry>, level: Level, fill: impl FnOnce(&mut Builder)) {
    let mut builder = Builder::default();
    builder.set_level(level);
    fill(&mut builder);
    let index = entries.len() as u64 + 1;
    let data = builder.finish(Moment { unix: UnixMillis(1_700_000_000_000), seed: index });
    entries.push(Entry { term: 1, index, kind: EntryKind::Normal, data });
}

/// The log of a group that is at this level.
fn log(level: Level) -> Vec<Entry> {
    let mut entries = Vec::new();
    if level > Level::FIRST {
        entry(&mut entries, level, |builder| builder.rise(level));
    }
    entry(&mut entries, level, Builder::tick);
    entries
}

fn prepare(entries: &mut Vec<Entry>, level: Level, transaction: TransactionId, keys: &[&str]) {
    prepare_with(entries, level, transaction, &[0, 1], keys);
}

fn prepare_with(entries: &mut Vec<Entry>, level: Level, transaction: TransactionId, groups: &[u32], keys: &[&str]) {
    let gone = |key: &&str| Effect::Key { database: 0, key: key.as_bytes().to_vec(), exported: None };
    let effects: Vec<_> = keys.iter().map(gone).collect();
    entry(entries, level, |builder| builder.prepare(transaction, groups, &effects));
}

fn resolve(entries: &mut Vec<Entry>, level: Level, transaction: TransactionId) {
    entry(entries, level, |builder| builder.resolve(transaction, true, 0));
}

/// A host of two cores, each with a group, which has read nothing yet.
fn unloaded() -> Host {
    Host::unloaded(2, settings("always"), 1)
}

#[test]
fn what_a_thousand_gateways_left_behind_is_forgotten_when_nobody_can_ask() {
    let level = Level(2);
    let mut host = unloaded();
    for core in 0..2 {
        let mut entries = log(level);
        for life in 0..1_000 {
            prepare(&mut entries, level, transaction(life), &[]);
            resolve(&mut entries, level, transaction(life));
            entry(&mut entries, level, |builder| builder.refuse(transaction(1_000 + life)));
        }
        host.load_log(core, 1, entries);
    }
    host.settle();
    let count = |host: &Host| [0, 1].map(|group| host.outcome_count(GroupId(group)));
    assert_eq!(count(&host), [2_000, 2_000]);
    pass_a_minute(&mut host);
    assert_eq!(count(&host), [0, 0]);
}

#[test]
fn a_participant_that_was_cut_off_for_a_month_learns_that_its_transaction_was_committed() {
    let level = Level(2);
    let mut host = unloaded();
    let mut ended = log(level);
    prepare(&mut ended, level, transaction(1), &[]);
    resolve(&mut ended, level, transaction(1));
    host.load_log(0, 1, ended);
    host.settle();
    for _ in 0..30 {
        host.pass(Duration::from_secs(86_400));
        pass_a_minute(&mut host);
    }
    assert_eq!(host.outcome_count(GroupId(0)), 1, "the other participant may still ask");
    // A key of the second of two groups.
    let mut open = log(level);
    let spans = [Span { start: 0, end: 3 }, Span { start: 3, end: 6 }, Span { start: 6, end: 7 }];
    entry(&mut open, level, |builder| builder.command(Protocol::Resp2, 0, Args::new(b"setfoo1", &spans)));
    prepare(&mut open, level, transaction(1), &["foo"]);
    host.load_log(1, 1, open);
    host.settle();
    host.pass(Duration::from_secs(3));
    let client = host.connect(0);
    assert_eq!(host.run(client, "EXISTS foo"), ":0", "what it had prepared is done");
    pass_a_minute(&mut host);
    assert_eq!([0, 1].map(|group| host.outcome_count(GroupId(group))), [0, 0]);
}

/// The log of a group can be further than what this node knows of the cluster.
#[test]
fn a_participant_that_is_not_known_here_yet_is_asked_later() {
    let level = Level(2);
    let mut host = unloaded();
    let mut open = log(level);
    prepare_with(&mut open, level, transaction(1), &[0, 7], &[]);
    host.load_log(0, 1, open);
    host.load_log(1, 1, log(level));
    host.settle();
    pass_a_minute(&mut host);
    let client = host.connect(0);
    assert_eq!(host.run(client, "PING"), "+PONG");
}

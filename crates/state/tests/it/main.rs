//! A bare state, given entries by hand.

mod effects;
mod recovery;
mod split;

use std::panic::{AssertUnwindSafe, catch_unwind};

use keyspace::{Keyspace, Layout, Moment, Options, Tuning};
use message::entry::{Answered, Builder, Claimed, Effect, RequestId, Taken};
use message::roster::Member;
use message::slots::Moved;
use message::{CoreId, GatewayId, GroupId, NodeId, TransactionId};
use resp::{Args, Protocol, Span};
use state::{Applied, CommandRun, Effects, Ignored, Lookup, Meter, Position, State};
use stdx::log::{Entry, EntryKind};
use stdx::slot::{Slot, slot_of};
use stdx::{Level, UnixMillis};

const GATEWAY: GatewayId = GatewayId { node: 1, boot: 2, core: CoreId(0) };

fn keyspace() -> Keyspace {
    Keyspace::new(Options { databases: 16, hash_seed: 7, layout: Layout::Slots, tuning: Tuning::default() })
}

fn state() -> State {
    State::new(GroupId(0), 2, keyspace())
}

/// A log in the making.
#[derive(Default)]
struct Log {
    entries: Vec<Entry>,
}

impl Log {
    /// Appends an entry of what `fill` puts into it, at so many milliseconds.
    fn entry(&mut self, unix_ms: i64, fill: impl FnOnce(&mut Builder)) -> &Entry {
        let mut builder = Builder::default();
        fill(&mut builder);
        let index = self.entries.len() as u64 + 1;
        let data = builder.finish(Moment { unix: UnixMillis(unix_ms), seed: index });
        self.entries.push(Entry { term: 1, index, kind: EntryKind::Normal, data });
        self.entries.last().expect("just pushed")
    }
}

fn command(builder: &mut Builder, line: &str) {
    let (mut buffer, mut spans) = (Vec::new(), Vec::new());
    for word in line.split(' ') {
        let start = buffer.len() as u32;
        buffer.extend_from_slice(word.as_bytes());
        spans.push(Span { start, end: buffer.len() as u32 });
    }
    builder.command(Protocol::Resp2, 0, Args::new(&buffer, &spans));
}

/// A key of group 0 of two, and its slot.
fn key_of_first_group() -> (String, Slot) {
    let mut keys = (0..).map(|number| format!("key{number}"));
    let key = keys.find(|key| slot_of(key.as_bytes()).0 < 8_192).expect("half of all keys");
    let slot = slot_of(key.as_bytes());
    (key, slot)
}

/// Writes down what is told.
#[derive(Default)]
struct Witness {
    replies: Vec<String>,
    seen: Vec<String>,
}

impl Meter for Witness {
    type Watch = ();

    fn start(&mut self, _: &'static keyspace::DataCommand, _: Args<'_>) -> Option<()> {
        None
    }

    fn stop(&mut self, _: Option<()>, _: Args<'_>) {}
}

impl Effects for Witness {
    fn command(&mut self, run: CommandRun<'_>) {
        let mut writer = resp::Writer::new(run.protocol);
        run.run(&mut writer);
        self.replies.push(String::from_utf8_lossy(writer.bytes()).replace("\r\n", " ").trim_end().to_owned());
    }

    fn applied(&mut self, _: &mut State, Applied { answer, what, .. }: Applied) {
        if let Some(answer) = answer {
            self.replies.push(String::from_utf8_lossy(&answer).replace("\r\n", " ").trim_end().to_owned());
        }
        let what = format!("{what:?}");
        self.seen.push(what.split([' ', '(']).next().unwrap_or_default().to_owned());
    }
}

#[test]
fn replies_go_to_the_one_who_asks_and_change_nothing() {
    let mut log = Log::default();
    log.entry(1_000, |builder| {
        command(builder, "set a 1");
        command(builder, "incr a");
        command(builder, "spop nothing");
    });
    let (mut told, mut silent, mut witness) = (state(), state(), Witness::default());
    told.apply(&log.entries[0], &mut witness);
    silent.apply(&log.entries[0], &mut Ignored);
    assert_eq!(witness.replies, ["+OK", ":2", "$-1"]);
    assert_eq!(witness.seen, ["Command", "Command", "Command"]);
    assert_eq!(told.digest(), silent.digest());
    assert_ne!(told.digest(), state().digest());
}

#[test]
fn a_numbered_request_is_carried_out_once() {
    let mut log = Log::default();
    let claimed = Claimed { gateway: GATEWAY, number: 5, floor: 1 };
    for _ in 0..2 {
        log.entry(1_000, |builder| {
            builder.claim(claimed);
            command(builder, "incr counter");
        });
    }
    let (mut state, mut witness) = (state(), Witness::default());
    log.entries.iter().for_each(|entry| state.apply(entry, &mut witness));
    assert_eq!(witness.replies, [":1", ":1"]);
    assert_eq!(witness.seen, ["Command", "Repeated"]);
    assert_eq!(state.replies().look(GATEWAY, 5), Lookup::Answered(b":1\r\n"));
}

#[test]
fn what_is_saved_is_loaded_and_what_was_there_before_is_gone() {
    let (key, slot) = key_of_first_group();
    let transaction = TransactionId { gateway: GATEWAY, number: 1 };
    let other = TransactionId { gateway: GATEWAY, number: 2 };
    let mut log = Log::default();
    log.entry(1_000, |builder| {
        let member = Member { cluster_address: "a:1".into(), client_address: "a:2".into(), ..Member::default() };
        builder.enlist(NodeId(7), &member);
        builder.prefer(GroupId(1), Some(NodeId(7)));
        builder.want((Slot(1), Slot(2)), GroupId(1));
        builder.configure(&message::parameters::encode([("maxmemory", "1")].into_iter()));
    });
    log.entry(2_000, |builder| {
        builder.claim(Claimed { gateway: GATEWAY, number: 9, floor: 3 });
        command(builder, &format!("set {key} value"));
        let effects = [Effect::Key { database: 0, key: b"prepared".to_vec(), exported: None }];
        builder.prepare(transaction, &[0, 1], &effects);
        builder.refuse(other);
    });
    let moved = Moved { slot: Slot(slot.0 ^ 1), group: GroupId(1), epoch: 1 };
    log.entry(3_000, |builder| {
        let third = TransactionId { gateway: GATEWAY, number: 3 };
        builder.prepare(third, &[0, 1], &[Effect::Give(moved)]);
        builder.resolve(third, true, 1);
    });
    let mut first = state();
    log.entries.iter().for_each(|entry| first.apply(entry, &mut Ignored));
    assert_eq!(first.slots().known(moved.slot), moved);

    let saved = first.save();
    let mut records = Vec::new();
    first.upkeep().begin_checkpoint();
    while !first.upkeep().checkpoint_step(100, &mut records) {}
    let mut copied = keyspace();
    copied.restore(&records).expect("just written");
    let mut second = state();
    let before = TransactionId { gateway: GATEWAY, number: 77 };
    second.apply(Log::default().entry(9_000, |builder| builder.refuse(before)), &mut Ignored);
    assert_eq!(second.outcome(before), Some(false));
    drop(second.replace(copied, &saved, first.applied()));
    assert_eq!(second.digest(), first.digest());
    assert_eq!(second.applied(), Position { index: 3, term: 1 });
    assert_eq!(second.moment().unix, UnixMillis(3_000), "the clock of what was there before does not count");
    assert_eq!(second.prepared()[&transaction].participants(), [0, 1]);
    assert_eq!((second.outcome(other), second.outcome(transaction)), (Some(false), None));
    assert_eq!(second.outcome(before), None);
    assert_eq!(second.roster().preferred(GroupId(1)), Some(NodeId(7)));
    assert_eq!(second.parameters().iter().collect::<Vec<_>>(), [("maxmemory", "1")]);
    assert_eq!(second.replies().look(GATEWAY, 2), Lookup::Forgotten);
    assert_eq!(second.slots().known(moved.slot), moved);
}

#[test]
fn a_level_comes_with_the_log_and_is_saved_where_an_older_version_expects_nothing() {
    let mut log = Log::default();
    log.entry(1_000, |builder| command(builder, "set a 1"));
    log.entry(2_000, |builder| builder.rise(Level(2)));
    log.entry(3_000, |builder| {
        builder.set_level(Level(2));
        command(builder, "set b 2");
    });
    let levels: Vec<u8> = log.entries.iter().map(|entry| message::entry::level(&entry.data).0).collect();
    assert_eq!(levels, [1, 2, 2], "each entry says at which level it was written");
    let mut first = state();
    first.apply(&log.entries[0], &mut Ignored);
    let (saved_before, digest_before) = (first.save(), first.digest());
    assert_eq!(first.level(), Level(1));
    log.entries[1..].iter().for_each(|entry| first.apply(entry, &mut Ignored));
    assert_eq!(first.level(), Level(2));
    assert_ne!(first.digest(), digest_before);
    let saved = first.save();
    // The level, that no participants of transactions are kept, that no group has split off, and that this one goes on.
    assert_eq!(saved.len(), saved_before.len() + 4, "at level 1 there is nothing that an older version does not know");
    let mut second = state();
    assert_eq!(second.replace(keyspace(), &saved, first.applied()).digest(), keyspace().digest());
    assert_eq!(second.level(), Level(2));
    drop(second.replace(keyspace(), &saved_before, Position { index: 1, term: 1 }));
    assert_eq!(second.level(), Level(1));
}

#[test]
fn kept_replies_and_what_is_refused_are_those_of_the_level() {
    let claimed = |number| Claimed { gateway: GATEWAY, number, floor: 1 };
    let lines = [
        "zincrby z 0.1 a",
        "rpush l a",
        "object encoding l",
        "sadd s a",
        "object encoding s",
        "hset h a 1",
        "hexpire h 100 fields 1 a nx",
        "hgetex h fields 1 a persist",
        "hsetex h fields 1 a 1 keepttl",
        "xadd x 1-1 f v",
        "xadd x 2-1 f v",
        "xdel x 2-1",
        "xgroup create x g 0 entriesread 9",
        "xsetid x 1-5",
    ];
    let replies_at = |level: Level| {
        let (mut log, mut first) = (Log::default(), state());
        if level > Level::FIRST {
            log.entry(1_000, |builder| builder.rise(level));
        }
        for (number, line) in (1..).zip(lines) {
            log.entry(2_000, |builder| {
                builder.set_level(level);
                builder.claim(claimed(number));
                command(builder, line);
            });
        }
        // One of them begins with a checkpoint, as after a start.
        let (before, after) = log.entries.split_at(5);
        before.iter().for_each(|entry| first.apply(entry, &mut Ignored));
        let mut records = Vec::new();
        let mut second = keyspace();
        first.upkeep().begin_checkpoint();
        while !first.upkeep().checkpoint_step(1_000, &mut records) {}
        second.restore(&records).expect("sound");
        let mut second = State::new(GroupId(0), 2, second);
        second.load(&first.save(), first.applied());
        for state in [&mut first, &mut second] {
            after.iter().for_each(|entry| state.apply(entry, &mut Ignored));
        }
        assert_eq!(first.digest(), second.digest());
        let reply = |number| match first.replies().look(GATEWAY, number) {
            Lookup::Answered(reply) => String::from_utf8_lossy(reply).replace("\r\n", " ").trim_end().to_owned(),
            other => panic!("{other:?}"),
        };
        [1, 3, 5, 7, 8, 9, 14].map(reply).to_vec()
    };
    let mismatched = "-ERR The `numfields` parameter must match the number of arguments";
    assert_eq!(
        replies_at(Level::FIRST),
        [
            "$19 0.10000000000000001",
            "$9 quicklist",
            "$9 hashtable",
            mismatched,
            mismatched,
            "-ERR wrong number of arguments for 'hsetex' command",
            "+OK",
        ]
    );
    assert_eq!(
        replies_at(Level(2)),
        [
            "$3 0.1",
            "$8 listpack",
            "$8 listpack",
            "*1 :1",
            "*1 $1 1",
            ":1",
            "-ERR The ID specified in XSETID is smaller than current max_deleted_entry_id",
        ]
    );
}

#[test]
fn an_entry_of_an_unknown_level_is_named() {
    let mut log = Log::default();
    let entry = log.entry(1_000, |builder| {
        builder.set_level(Level(3));
        command(builder, "set a 1");
    });
    let text = panic_of(|| state().apply(entry, &mut Ignored));
    assert!(text.contains("a log entry written at level 3, and this version knows levels 1 to 2"), "{text}");
}

#[test]
fn a_checkpoint_of_an_unknown_level_is_named() {
    let mut saved = state().save();
    saved.push(3);
    let text = panic_of(|| state().load(&saved, Position::default()));
    assert!(text.contains("written at level 3, and this version knows levels 1 to 2"), "{text}");
}

#[test]
fn every_part_is_part_of_the_digest() {
    type Change = fn(&mut Builder);
    let changes: [(&str, Change); 9] = [
        ("a key", |builder| command(builder, "set a 1")),
        ("a prepared transaction", |builder| builder.prepare(TransactionId { gateway: GATEWAY, number: 1 }, &[0], &[])),
        ("an outcome", |builder| builder.refuse(TransactionId { gateway: GATEWAY, number: 1 })),
        ("the roster", |builder| builder.enlist(NodeId(7), &Member::default())),
        ("a reply", |builder| {
            builder.claim(Claimed { gateway: GATEWAY, number: 1, floor: 1 });
            builder.moved(Slot(0));
        }),
        ("parameters", |builder| {
            builder.configure(&message::parameters::encode([("maxmemory", "1")].into_iter()));
        }),
        ("slots", |builder| {
            let third = TransactionId { gateway: GATEWAY, number: 3 };
            let taken = Taken {
                slot: Slot(16_000),
                epoch: 1,
                sequence: 0,
                gone: 0,
                unix: UnixMillis(1),
                records: keyspace().export_slot(Slot(16_000)),
                answered: Vec::new(),
            };
            builder.prepare(third, &[0, 1], &[Effect::Take(Box::new(taken))]);
            builder.resolve(third, true, 4);
        }),
        ("libraries", |builder| builder.libraries(&message::libraries::Change::Flush.encode())),
        ("an answer to a request with an id", |builder| {
            let request = RequestId { slot: Slot(1), id: b"id".to_vec(), digest: 2 };
            let answered = Answered { request, ms: 1_000, reply: b"+OK\r\n".to_vec() };
            let fourth = TransactionId { gateway: GATEWAY, number: 4 };
            builder.install(fourth, &[Effect::Answer(Box::new(answered))]);
        }),
    ];
    let mut digests = vec![state().digest()];
    for (name, change) in changes {
        let (mut log, mut state) = (Log::default(), state());
        state.apply(log.entry(1_000, change), &mut Ignored);
        assert!(!digests.contains(&state.digest()), "{name}");
        digests.push(state.digest());
    }
}

/// What a panic says.
fn panic_of(act: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(act)).expect_err("it must panic");
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default().to_owned()
}

#[test]
fn an_entry_is_not_applied_twice() {
    let (mut log, mut state) = (Log::default(), state());
    let entry = log.entry(1_000, |builder| command(builder, "incr a")).clone();
    state.apply(&entry, &mut Ignored);
    let text = panic_of(|| state.apply(&entry, &mut Ignored));
    assert!(text.contains("entries are applied in order"), "{text}");
}

#[test]
fn a_read_cannot_change_anything() {
    let (buffer, spans) = (b"incra", [Span { start: 0, end: 4 }, Span { start: 4, end: 5 }]);
    let args = Args::new(buffer, &spans);
    let command = keyspace::resolve(args).expect("a command");
    let text = panic_of(|| state().read(0, command, args, Moment::default(), &mut resp::Writer::default()));
    assert!(text.contains("is no query"), "{text}");
}

#[test]
fn a_transaction_that_was_refused_is_not_prepared() {
    let transaction = TransactionId { gateway: GATEWAY, number: 1 };
    let (mut log, mut state, mut witness) = (Log::default(), state(), Witness::default());
    log.entry(1_000, |builder| {
        builder.refuse(transaction);
        let effects = [Effect::Key { database: 0, key: b"a".to_vec(), exported: None }];
        builder.prepare(transaction, &[0, 1], &effects);
    });
    state.apply(&log.entries[0], &mut witness);
    assert!(state.prepared().is_empty());
    assert_eq!(state.outcome(transaction), Some(false));
    assert_eq!(witness.seen, ["Nothing", "Prepared"]);
}

#[test]
fn how_transactions_ended_is_kept_until_nobody_asks_with_participants_above_level_1() {
    for level in [Level::FIRST, Level(2)] {
        let mut log = Log::default();
        let mut state = state();
        if level > Level::FIRST {
            state.apply(log.entry(1, |builder| builder.rise(level)), &mut Ignored);
        }
        let transaction = |number| TransactionId { gateway: GATEWAY, number };
        let effects = [Effect::Key { database: 0, key: b"a".to_vec(), exported: None }];
        for (number, is_committed) in [(3, true), (4, false), (5, true)] {
            let prepared = log.entry(1, |builder| builder.prepare(transaction(number), &[0, 1], &effects));
            state.apply(prepared, &mut Ignored);
            let resolved = log.entry(1, |builder| builder.resolve(transaction(number), is_committed, 0));
            state.apply(resolved, &mut Ignored);
        }
        let kept = |state: &State| -> Vec<_> {
            let outcomes = state.outcomes_behind(None);
            outcomes.map(|(id, is_committed, groups)| (id.number, is_committed, groups.to_vec())).collect()
        };
        let groups = if level > Level::FIRST { vec![0, 1] } else { Vec::new() };
        assert_eq!(kept(&state), [(3, true, groups.clone()), (4, false, Vec::new()), (5, true, groups.clone())]);
        let mut copy = State::new(GroupId(0), 2, keyspace());
        copy.load(&state.save(), state.applied());
        assert_eq!((kept(&copy), copy.digest()), (kept(&state), state.digest()));
        if level > Level::FIRST {
            let forgotten = log.entry(1, |builder| {
                builder.set_level(level);
                builder.forget(&[transaction(4), transaction(5)]);
            });
            state.apply(forgotten, &mut Ignored);
            assert_eq!(kept(&state), [(3, true, groups)]);
        }
        state.apply(log.entry(1, |builder| builder.resolve(transaction(9), true, 9)), &mut Ignored);
        assert_eq!(kept(&state), [], "its gateway has said that all groups have ended them");
        copy.load(&state.save(), state.applied());
        assert_eq!(copy.digest(), state.digest());
    }
}

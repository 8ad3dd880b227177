//! CHANGES: what has changed, told once and whole, from cursor to cursor, at whichever node.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use resp::Frame;
use stdx::Prng;

use crate::cluster::Cluster;
use crate::harness::{
    Client, Folder, ObjectStore, PATIENCE, Server, ServerOptions, Writers, number_from_environment, say, succeed,
    succeed_in, text, wait_for,
};

const ACCOUNTS: u64 = 12;
const ACCOUNT_START: i64 = 100;

fn start(folder: &Folder, words: &[&str]) -> Server {
    let options = ServerOptions::new(&folder.path().join("data"));
    Server::start(&options.extra(&["--cores", "2", "--site-backlog-size", "64mb"]).extra(words))
}

/// The words of a CHANGES READ.
fn read(client: &mut Client, words: &[&str]) -> (String, Vec<String>) {
    let reply = client.call(&[&["CHANGES", "READ"], words].concat());
    let elements = reply.elements().unwrap_or_else(|| panic!("{reply}"));
    let cursor = String::from_utf8_lossy(elements[0].as_bytes().expect("a cursor")).into_owned();
    let effects = |event: &Frame| {
        let [_, kind, effects] = event.elements().expect("an event") else { panic!("{event}") };
        let lines = effects.elements().expect("effects").iter().map(|effect| {
            let [database, _, words] = effect.elements().expect("an effect") else { panic!("{effect}") };
            let text = |word: &Frame| String::from_utf8_lossy(word.as_bytes().expect("a word")).into_owned();
            let words: Vec<String> = words.elements().expect("words").iter().map(text).collect();
            match database {
                Frame::Integer(0) => words.join(" "),
                other => format!("{other} {}", words.join(" ")),
            }
        });
        let lines = lines.collect::<Vec<_>>().join(", ");
        if kind.as_bytes() == Some(b"change") { lines } else { format!("{kind} {lines}") }
    };
    (cursor, elements[1].elements().expect("events").iter().map(effects).collect())
}

/// Reads until there are so many events.
fn read_until(client: &mut Client, cursor: &str, count: usize, words: &[&str]) -> (String, Vec<String>) {
    let (begun, mut cursor, mut all) = (Instant::now(), cursor.to_owned(), Vec::new());
    while all.len() < count {
        assert!(begun.elapsed() < PATIENCE, "only {all:?}");
        let (next, events) = read(client, &[&[&cursor, "BLOCK", "1000"], words].concat());
        cursor = next;
        all.extend(events);
    }
    (cursor, all)
}

#[test]
fn a_client_reads_what_changes_in_the_words_of_effects() {
    let folder = Folder::new();
    let server = start(&folder, &[]);
    let mut client = server.client();
    let (begin, events) = read(&mut client, &["0"]);
    assert_eq!(events, [""; 0]);
    // What different groups do within one millisecond is told in the order of the groups.
    let show = |client: &mut Client, line: &str| {
        thread::sleep(Duration::from_millis(3));
        client.show(line)
    };
    for line in ["SET a 1", "INCR a", "SADD s m", "SPOP s", "SET t 1 PXAT 99999999999999", "GET a", "DEL nothing"] {
        show(&mut client, line);
    }
    show(&mut client, "EVAL return{redis.call('SET','{a}x',1),redis.call('SET','{a}y',2)} 0");
    client.show("MULTI");
    (0..8).for_each(|number| drop(client.show(&format!("SET many:{number} 1"))));
    show(&mut client, "EXEC");
    client.show("SELECT 3");
    show(&mut client, "RPUSH l v");
    let (end, events) = read_until(&mut client, &begin, 8, &[]);
    let expected = ["SET a 1", "INCR a", "SADD s m", "DEL s", "SET t 1 PXAT 99999999999999", "SET {a}x 1, SET {a}y 2"];
    assert_eq!(events[..6], expected);
    assert_eq!(events[6].matches("SET many:").count(), 8, "{events:?}");
    assert_eq!(events[7], "(integer) 3 RPUSH l v");
    // In pages of any size they are the same, and a cursor holds what it held.
    let (mut cursor, mut pages) = (begin.clone(), Vec::new());
    while pages.len() < 8 {
        let (next, page) = read(&mut client, &[&cursor, "COUNT", "3"]);
        assert!(page.len() <= 3 && !page.is_empty());
        assert_eq!(read(&mut client, &[&cursor, "COUNT", "3"]).1, page, "read again");
        (cursor, pages) = (next, [pages, page].concat());
    }
    assert_eq!(pages, events);
    assert_eq!(read(&mut client, &[&end]).1, [""; 0]);
    // Filters; the cursor passes what they leave out.
    assert_eq!(read(&mut client, &[&begin, "MATCH", "l*", "MATCH", "{a}y"]).1, ["SET {a}y 2", "(integer) 3 RPUSH l v"]);
    assert_eq!(read(&mut client, &[&begin, "TYPE", "set", "TYPE", "list"]).1.len(), 3);
    let (cursor, none) = read(&mut client, &[&begin, "MATCH", "nothing*"]);
    assert_eq!((none.len(), read(&mut client, &[&cursor]).1.len()), (0, 0));
    // A client that waits is told at once, and others are served meanwhile.
    let (now, _) = read(&mut client, &["$"]);
    let mut reader = server.client();
    reader.send(&["CHANGES", "READ", &now, "BLOCK", "0", "MATCH", "awaited"]).expect("a connection");
    thread::sleep(Duration::from_millis(300));
    client.show("SELECT 0");
    client.show("SET other 1");
    client.show("SET awaited 1");
    let told = reader.receive().expect("a reply").to_string();
    assert!(told.contains("awaited") && !told.contains("other"), "{told}");
    // A cursor survives the server.
    let data = folder.path().join("data");
    server.kill();
    let server = Server::start(&ServerOptions::new(&data).extra(&["--cores", "2", "--site-backlog-size", "64mb"]));
    let mut client = server.client();
    let (_, again) = read_until(&mut client, &begin, 9, &[]);
    assert_eq!(again[..8], events);
    assert!(client.show("CHANGES INFO").contains("first-cursor"));
    server.stop();
}

/// The value at this field of an entry.
fn field(entry: &Frame, name: &str) -> String {
    let fields = entry.elements().expect("an entry")[1].elements().expect("fields");
    let text = |word: &Frame| String::from_utf8_lossy(word.as_bytes().expect("a word")).into_owned();
    let found = fields.chunks(2).find(|pair| text(&pair[0]) == name);
    found.map(|pair| text(&pair[1])).unwrap_or_else(|| panic!("{entry} lacks {name}"))
}

#[test]
fn xread_reads_changes_as_a_stream() {
    let folder = Folder::new();
    let server = start(&folder, &[]);
    let mut client = server.client();
    let stream = "{holdfast}:changes";
    assert_eq!(client.call(&["XREAD", "STREAMS", stream, "0"]).to_string(), "(nil)");
    client.show("SET a 1");
    client.show("INCR a");
    client.show("MULTI");
    client.show("SET b 1");
    client.show("SET c 2");
    client.show("EXEC");
    let (mut id, mut lines, begun) = ("0-0".to_owned(), Vec::new(), Instant::now());
    while lines.len() < 3 {
        assert!(begun.elapsed() < PATIENCE, "only {lines:?}");
        let reply = client.call(&["XREAD", "COUNT", "2", "BLOCK", "500", "STREAMS", stream, &id]);
        let Some(streams) = reply.elements() else { continue };
        let [name, entries] = streams[0].elements().expect("a stream") else { panic!("{reply}") };
        assert_eq!(name.as_bytes(), Some(stream.as_bytes()));
        let entries = entries.elements().expect("entries");
        assert!(!entries.is_empty() && entries.len() <= 2, "{reply}");
        for entry in entries {
            let next =
                String::from_utf8_lossy(entry.elements().expect("an entry")[0].as_bytes().expect("an id")).into_owned();
            let parts = |id: &str| -> Vec<u64> { id.split('-').map(|part| part.parse().expect("a number")).collect() };
            assert!(parts(&next) > parts(&id), "{next} behind {id}");
            id = next;
            let effects: usize = field(entry, "effects").parse().expect("a number");
            let line = |effect: usize| {
                let count: usize = field(entry, &format!("{effect}.words")).parse().expect("a number");
                let words: Vec<_> = (0..count).map(|word| field(entry, &format!("{effect}.{word}"))).collect();
                words.join(" ")
            };
            lines.push((0..effects).map(line).collect::<Vec<_>>().join(", "));
        }
    }
    // Those of different groups within a millisecond may come in any order.
    let place = |text: &str| lines.iter().position(|line| line.contains(text)).unwrap_or_else(|| panic!("{lines:?}"));
    assert!(place("SET a 1") < place("INCR a"), "{lines:?}");
    assert_eq!(place("SET b 1"), place("SET c 2"), "{lines:?}");
    // The same ids as CHANGES tells, and any of them goes on behind it, also after a restart.
    let told = client.show("CHANGES READ 0");
    assert!(told.contains(&id), "{told}");
    server.kill();
    let data = folder.path().join("data");
    let server = Server::start(&ServerOptions::new(&data).extra(&["--cores", "2", "--site-backlog-size", "64mb"]));
    let mut client = server.client();
    let mut reader = server.client();
    reader.show("HELLO 3");
    reader.send(&["XREAD", "BLOCK", "0", "STREAMS", stream, &id]).expect("a connection");
    thread::sleep(Duration::from_millis(300));
    client.show("SET after 1");
    let told = reader.receive().expect("a reply").to_string();
    assert!(told.contains("after") && !told.contains("INCR"), "{told}");
    for (request, text) in [
        (
            "XREAD STREAMS {holdfast}:changes other 0 0",
            "ERR {holdfast}:changes cannot be read together with other streams",
        ),
        ("XREAD STREAMS {holdfast}:changes x", "ERR Invalid stream ID specified as stream command argument"),
    ] {
        assert_eq!(client.show(request), format!("(error) {text}"), "{request}");
    }
    assert_eq!(client.show("MULTI"), "OK");
    assert_eq!(
        client.show("XREAD STREAMS {holdfast}:changes 0"),
        "(error) ERR Command not allowed inside a transaction"
    );
    assert!(client.show("EXEC").starts_with("(error) EXECABORT"));
    // A user who may not read changes may not read them as a stream.
    client.show("ACL SETUSER reader reset on >p ~* +@all -changes");
    let mut reader = server.client();
    assert_eq!(reader.show("AUTH reader p"), "OK");
    let told = reader.show("XREAD STREAMS {holdfast}:changes 0");
    assert!(told.starts_with("(error) NOPERM") && told.contains("changes|read"), "{told}");
    client.show("ACL SETUSER reader reset on >p ~{holdfast}:* +@all");
    assert!(reader.show("XREAD STREAMS {holdfast}:changes 0").starts_with("(error) NOPERM"));
    server.stop();
    // Elsewhere it is a key like others.
    let other = Folder::new();
    let other = Server::start(&ServerOptions::new(&other.path().join("data")));
    assert_eq!(other.client().show("XREAD STREAMS {holdfast}:changes 0"), "(nil)");
    other.stop();
}

#[test]
fn keys_whose_time_has_come_are_told_to_who_asks_for_them() {
    let folder = Folder::new();
    let server = start(&folder, &[]);
    let mut client = server.client();
    let (begin, _) = read(&mut client, &["0"]);
    client.show("SET gone 1 PX 20");
    // Time passes in logs with what is written.
    let (mut cursor, mut events) = (begin.clone(), Vec::new());
    let begun = Instant::now();
    while events.len() < 2 {
        assert!(begun.elapsed() < PATIENCE, "only {events:?}");
        client.show("SET other 1");
        let (next, more) = read(&mut client, &[&cursor, "MATCH", "gone", "EXPIRED", "BLOCK", "300"]);
        cursor = next;
        events.extend(more);
    }
    assert!(events[0].starts_with("SET gone 1 PXAT ") && events[1] == "\"expired\" DEL gone", "{events:?}");
    assert_eq!(read(&mut client, &[&begin, "MATCH", "gone"]).1.len(), 1);
    server.stop();
}

#[test]
fn who_may_not_read_every_key_is_told_of_none() {
    let folder = Folder::new();
    let server = start(&folder, &[]);
    let mut client = server.client();
    let refused = "NOPERM No permissions to access a key";
    for (rules, is_allowed) in [
        ("~foo:* +@all", false),
        ("%W~* +@all", false),
        ("~foo:* +changes", false),
        ("%R~* +changes|read", true),
        ("~* +changes", true),
        ("~foo:* +get (~* +changes)", true),
        ("~* +get (~foo:* +changes)", false),
    ] {
        let words: Vec<&str> = "ACL SETUSER reader reset on >p".split(' ').collect();
        let selectors: Vec<&str> = match rules.split_once(" (") {
            Some((root, selector)) => root.split(' ').chain([selector.trim_end_matches(')')]).collect::<Vec<_>>(),
            None => rules.split(' ').collect(),
        };
        let last = selectors.last().map(|selector| format!("({selector})")).filter(|_| rules.contains('('));
        let mut words = [words, selectors].concat();
        if let Some(last) = &last {
            *words.last_mut().expect("several") = last;
        }
        assert_eq!(client.call(&words), Frame::Simple(b"OK".to_vec()), "{rules}");
        let mut reader = server.client();
        assert_eq!(reader.show("AUTH reader p"), "OK");
        let told = reader.show("CHANGES READ 0 MATCH foo:*");
        assert_eq!(!told.starts_with("(error)"), is_allowed, "{rules}: {told}");
        assert!(is_allowed || told.contains(refused), "{rules}: {told}");
    }
    // A client that waits, and loses its right meanwhile, hears nothing either.
    client.show("ACL SETUSER reader reset on >p ~* +changes");
    let mut reader = server.client();
    assert_eq!(reader.show("AUTH reader p"), "OK");
    reader.send(&["CHANGES", "READ", "$", "BLOCK", "0"]).expect("a connection");
    thread::sleep(Duration::from_millis(200));
    client.show("ACL SETUSER reader resetkeys ~foo:*");
    client.show("SET secret 1");
    let told = reader.receive().map(|reply| reply.to_string()).unwrap_or_default();
    assert!(!told.contains("secret"), "{told}");
    // Nor does one that is killed, or loses its user: it goes at once, whatever it waits for.
    for ending in ["CLIENT KILL USER reader", "ACL DELUSER reader"] {
        client.show("ACL SETUSER reader reset on >p ~* +changes");
        let mut reader = server.client();
        assert_eq!(reader.show("AUTH reader p"), "OK");
        reader.send(&["CHANGES", "READ", "$", "BLOCK", "0"]).expect("a connection");
        thread::sleep(Duration::from_millis(200));
        client.show(ending);
        assert!(reader.is_closed_within(PATIENCE), "{ending}");
    }
    server.stop();
}

#[test]
fn what_cannot_be_read_is_refused_with_a_word_on_what_can() {
    let folder = Folder::new();
    let server = start(&folder, &["--site-backlog-size", "1mb"]);
    let mut client = server.client();
    for (request, text) in [
        ("CHANGES READ nonsense", "ERR invalid cursor"),
        ("CHANGES READ 1-1", "ERR invalid cursor"),
        ("CHANGES READ AAAA", "ERR invalid cursor"),
        ("CHANGES READ", "ERR wrong number of arguments for 'changes|read' command"),
        ("CHANGES READ 0 COUNT 0", "ERR COUNT must be > 0"),
        ("CHANGES NOTHING", "ERR unknown subcommand 'NOTHING'. Try CHANGES HELP."),
    ] {
        assert_eq!(client.show(request), format!("(error) {text}"), "{request}");
    }
    assert_eq!(client.show("MULTI"), "OK");
    assert!(client.show("CHANGES READ 0").starts_with("(error) "));
    client.show("DISCARD");
    let (begin, _) = read(&mut client, &["0"]);
    let value = "x".repeat(20_000);
    let is_too_old = |told: &str| told.starts_with("(error) TOOOLD ");
    wait_for("what has changed first is gone", || {
        for number in 0..20 {
            client.call(&["SET", &format!("key:{number}"), &value]);
        }
        let told = client.call(&["CHANGES", "READ", &begin, "MATCH", "none"]);
        assert!(told.elements().is_some() || is_too_old(&told.to_string()), "{told}");
        // Otherwise it had begun in time, and was stopped.
        told.to_string().starts_with("(error) TOOOLD What changed between ")
    });
    // What is dropped is dropped a little later than it is written, so the beginning may go on while it is read.
    let mut cursor = String::new();
    wait_for("from the beginning of what is kept it goes on", || {
        let page = client.call(&["CHANGES", "READ", "0", "COUNT", "1"]);
        let Some([begin, events]) = page.elements() else {
            assert!(is_too_old(&page.to_string()), "{page}");
            return false;
        };
        let Some([_]) = events.elements() else { return false };
        cursor = String::from_utf8_lossy(begin.as_bytes().expect("a cursor")).into_owned();
        let told = client.call(&["CHANGES", "READ", &cursor, "COUNT", "1"]);
        assert!(told.elements().is_some() || is_too_old(&told.to_string()), "{told}");
        told.elements().is_some()
    });
    let other = Folder::new();
    let other = start(&other, &[]);
    let told = other.client().call(&["CHANGES", "READ", &cursor]).to_string();
    assert_eq!(told, "(error) ERR The cursor is one of another cluster");
    other.stop();
    server.stop();
    let without = Folder::new();
    let without = Server::start(&ServerOptions::new(&without.path().join("data")));
    let told = without.client().show("CHANGES READ 0");
    assert_eq!(told, "(error) ERR This node does not keep what changes: see site-backlog-size");
    without.stop();
}

/// Reads everything behind a cursor, from page to page; or the refusal.
fn read_all(client: &mut Client, cursor: &str, count: &str) -> Result<Vec<String>, String> {
    let (mut cursor, mut all) = (cursor.to_owned(), Vec::new());
    loop {
        let reply = client.call(&["CHANGES", "READ", &cursor, "COUNT", count]);
        if reply.elements().is_none() {
            return Err(reply.to_string());
        }
        let elements = reply.elements().expect("just seen");
        let events = elements[1].elements().expect("events");
        if events.is_empty() {
            return Ok(all);
        }
        cursor = String::from_utf8_lossy(elements[0].as_bytes().expect("a cursor")).into_owned();
        // Of each effect the key, which says which one it was.
        for event in events {
            let effects = event.elements().expect("an event")[2].elements().expect("effects");
            let keys = effects.iter().map(|effect| effect.elements().expect("an effect")[1].to_string());
            all.push(keys.collect::<Vec<_>>().join(" "));
        }
    }
}

/// What the backlog has no more is read on from an archive, and what comes then from the backlog.
fn go_from_the_archive_to_the_backlog(
    folder: &Folder,
    (address, backlog): (&str, &str),
    options: impl Fn(&[&str]) -> ServerOptions,
) {
    let key = folder.path().join("key");
    std::fs::write(&key, "0123456789abcdef".repeat(4) + "\n").expect("a file");
    let key = text(&key);
    let words = ["--cores", "2", "--site-backlog-size", backlog, "--archive", address, "--archive-key-file", key];
    let server = Server::start(&options(&words));
    let mut client = server.client();
    let (begin, _) = read(&mut client, &["0"]);
    let begun = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
    let value = "x".repeat(12_000);
    let mut expected = Vec::new();
    for number in 0..400 {
        if number % 10 == 0 {
            let keys = [format!("first:{number}"), format!("second:{number}"), format!("third:{number}")];
            let words = ["MSET", &keys[0], &value, &keys[1], "2", &keys[2], "3"];
            assert_eq!(client.call(&words), Frame::Simple(b"OK".to_vec()));
        } else {
            client.call(&["SET", &format!("key:{number}"), &value]);
        }
        expected.push(number);
        thread::sleep(Duration::from_millis(4));
    }
    let numbers = |events: Vec<String>| -> Vec<u64> {
        let number = |event: &String| {
            let digits = event.split_once(':').expect("a number").1.split(|it: char| !it.is_ascii_digit()).next();
            assert!(!event.contains("first") || event.matches(':').count() == 3, "torn: {event}");
            digits.and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("{event}"))
        };
        events.iter().map(number).collect()
    };
    let patient = Instant::now();
    let read_on = |client: &mut Client, cursor: &str, count: &str| loop {
        // The last of it may not be closed yet, or on its way to the archive.
        match read_all(client, cursor, count).map(numbers) {
            Ok(events) if events.last() == expected.last() => return events,
            Ok(_) => assert!(patient.elapsed() < PATIENCE, "the end is not told"),
            Err(refusal) => assert!(patient.elapsed() < PATIENCE && refusal.contains("TOOOLD"), "{refusal}"),
        }
        thread::sleep(Duration::from_millis(100));
    };
    assert!(client.show("CHANGES READ 0 COUNT 1").len() > 10, "what is oldest here is a later one");
    assert_eq!(read_on(&mut client, &begin, "1000"), expected);
    // From anywhere, in small pages, by several clients.
    let (middle, page) = read(&mut client, &[&begin, "COUNT", "57"]);
    assert_eq!(page.len(), 57);
    let mut others: Vec<Client> = (0..3).map(|_| server.client()).collect();
    for other in &mut others {
        assert_eq!(read_on(other, &middle, "7"), expected[57..]);
    }
    assert_eq!(read_on(&mut client, &format!("@{}", begun - 1), "100"), expected, "from a moment");
    // After a loss of the backlog what is in neither is not passed over.
    let archived = succeed_in(&options(&words).environment, &["archive", "verify", address, "--archive-key-file", key]);
    assert!(archived.contains("of changes"), "{archived}");
    client.show("SET lacking 1");
    assert_eq!(client.show("SAVE"), "OK");
    server.kill();
    std::fs::remove_dir_all(folder.path().join("data/.site-backlog")).expect("it is there");
    let server = Server::start(&options(&words));
    let mut client = server.client();
    client.show("SET later 1");
    let refusal = read_all(&mut client, &begin, "100").expect_err("the end of the backlog was lost");
    assert!(refusal.contains("TOOOLD") && refusal.contains("nor the archive"), "{refusal}");
    server.stop();
}

#[test]
fn what_the_backlog_has_no_more_comes_from_an_archive_in_a_directory() {
    let folder = Folder::new();
    let directory = folder.path().join("archive");
    std::fs::create_dir(&directory).expect("a directory");
    let address = format!("file://{}", text(&directory));
    let options = |words: &[&str]| ServerOptions::new(&folder.path().join("data")).extra(words);
    go_from_the_archive_to_the_backlog(&folder, (&address, "3mb"), options);
}

#[test]
fn what_the_backlog_has_no_more_comes_from_an_archive_in_a_bucket() {
    let folder = Folder::new();
    let store = ObjectStore::start();
    let options = |words: &[&str]| {
        let mut options = ServerOptions::new(&folder.path().join("data")).extra(words);
        options.environment.extend_from_slice(&store.environment());
        options
    };
    // A store takes longer than a disk: the backlog must last for that.
    go_from_the_archive_to_the_backlog(&folder, ("s3://bucket/of/changes", "3mb"), options);
}

/// One change, of those that the consumer knows.
fn change(client: &mut Client, prng: &mut Prng, writer: u64) -> Option<()> {
    let (key, number) = (prng.below(60), prng.below(1_000));
    let line = match prng.below(10) {
        0..=3 => {
            let (from, to) = (prng.below(ACCOUNTS), prng.below(ACCOUNTS));
            client.try_call(&["MULTI"])?;
            client.try_call(&["DECR", &format!("account:{from}")])?;
            client.try_call(&["INCR", &format!("account:{to}")])?;
            return client.try_call(&["EXEC"]).map(drop);
        }
        4 => {
            let script = "redis.call('DECR', KEYS[1]) redis.call('INCR', KEYS[2])";
            let (from, to) = (prng.below(ACCOUNTS), prng.below(ACCOUNTS));
            let keys = [format!("account:{from}"), format!("account:{to}")];
            return client.try_call(&["EVAL", script, "2", &keys[0], &keys[1]]).map(drop);
        }
        5 => format!("SET short:{key} {number} PX {}", 1 + prng.below(300)),
        6 => format!("INCR short:{key}"),
        7 => format!("HSET hash:{key} f{} {number}", prng.below(5)),
        8 => {
            let queue = format!("queue:{writer}");
            client.try_call(&["RPUSH", &queue, &number.to_string()])?;
            return client.try_call(&["BLPOP", &queue, "0.1"]).map(drop);
        }
        _ => format!("INCR counter:{key}"),
    };
    client.try_call(&line.split(' ').collect::<Vec<_>>()).map(drop)
}

/// A consumer in Python follows a cluster of which nodes are killed, slots move and groups are founded. False if there
/// is no Python for it.
/// `HOLDFAST_CHANGES_ROUNDS` makes it longer, and `HOLDFAST_CHANGES_WRITERS` writes more.
fn follow_in_python(words: &[&str]) -> bool {
    let python = std::env::var_os("HOLDFAST_PYTHON").unwrap_or_else(|| "python3".into());
    let imports = Command::new(&python).args(["-c", "import redis"]).stderr(Stdio::null()).status();
    if !imports.is_ok_and(|status| status.success()) {
        say("SKIPPED: python3 cannot import redis; cargo xtask test sees to it");
        return false;
    }
    let rounds = number_from_environment("HOLDFAST_CHANGES_ROUNDS", 3);
    let words = words.to_vec();
    let mut cluster = Cluster::start_as(&[words.clone(), words.clone(), words]);
    let ports: Vec<u16> = (0..3).map(|node| cluster.options_of(node).port).collect();
    let sum = ACCOUNTS as i64 * ACCOUNT_START;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/clients/redis_py_changes.py");
    let mut command = Command::new(&python);
    command.arg(&script).args([ACCOUNTS.to_string(), sum.to_string(), "7".to_owned()]);
    command.args(ports.iter().map(u16::to_string)).stdout(Stdio::piped());
    let mut consumer = command.spawn().expect("python starts");
    let mut lines = BufReader::new(consumer.stdout.take().expect("a pipe")).lines();
    assert_eq!(lines.next().and_then(Result::ok).as_deref(), Some("ready"));
    let mut open = vec!["MSET".to_owned()];
    open.extend((0..ACCOUNTS).flat_map(|number| [format!("account:{number}"), ACCOUNT_START.to_string()]));
    assert_eq!(cluster.client(0).call(&open), Frame::Simple(b"OK".to_vec()));
    let writer_count = number_from_environment("HOLDFAST_CHANGES_WRITERS", 4);
    let writers = Writers::start(&ports, writer_count, Duration::from_millis(1), change);
    let groups = 2 + rounds.min(2);
    let mut kill_count = 0;
    for round in 0..rounds {
        thread::sleep(Duration::from_millis(300));
        let leader = cluster.leader_of("account:1");
        cluster.kill(leader);
        kill_count += 1;
        thread::sleep(Duration::from_millis(500));
        cluster.restart(leader);
        let (slots, to) = [("0-400", "1"), ("0-400", "0"), ("16000-16383", "0")][round as usize % 3];
        cluster.wait_until("slots move", |this| this.tool(leader, &["move", "--slots", slots, "--to", to]).0);
        if round < 2 {
            let wanted = (3 + round).to_string();
            let port = ports[leader].to_string();
            succeed(&["cluster", "groups", &wanted, "--port", &port]);
        }
        // One of those that have come into being goes again.
        if round == 1 {
            succeed(&["cluster", "merge", "2", "1", "--port", &ports[leader].to_string()]);
        }
    }
    let count = writers.stop();
    // Everything that would expire has.
    thread::sleep(Duration::from_millis(400));
    cluster.wait_until("the last write is taken", |this| {
        this.try_client(0).is_some_and(|mut client| client.show("SET end 1") == "OK")
    });
    let said = lines.next().and_then(Result::ok).unwrap_or_default();
    assert!(consumer.wait().expect("it ends").success() && said.starts_with("all well"), "{said}");
    say(&format!("{count} changes over {kill_count} kills and {groups} groups: {said}"));
    true
}

#[test]
fn a_python_consumer_is_told_everything_once_while_leaders_die_and_slots_move() {
    let _ = follow_in_python(&["--site-backlog-size", "1gb"]);
}

/// Each node tells it again afterwards, of which its own backlog has the least.
#[test]
fn a_python_consumer_is_told_everything_once_by_an_archive_that_nodes_wrote_in_turns() {
    let folder = Folder::new();
    let directory = folder.path().join("archive");
    std::fs::create_dir(&directory).expect("a directory");
    let address = format!("file://{}", text(&directory));
    if !follow_in_python(&["--site-backlog-size", "1mb", "--archive", &address]) {
        return;
    }
    let listed = succeed(&["archive", "list", &address]);
    say(listed.lines().find(|line| line.contains("of changes")).unwrap_or_else(|| panic!("{listed}")));
}

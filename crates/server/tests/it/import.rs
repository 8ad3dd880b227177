//! `holdfast import` and `holdfast export`: files of a stock Redis come in, and go back, with every value as it was.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use resp::Frame;

use crate::harness::{Client, Folder, PATIENCE, Server, ServerOptions, Stock, binary, fail, free_port, succeed, text};

fn serve(folder: &Folder) -> Server {
    Server::start(&ServerOptions::new(&folder.path().join("data")).extra(&["--cores", "3"]))
}

fn address(server: &Server) -> String {
    format!("127.0.0.1:{}", server.port())
}

/// Keys of every type, in small and large forms.
fn fill(client: &mut Client) {
    for line in [
        "SET text value",
        "SET number 12345",
        "SET fleeting value EX 5000",
        "RPUSH list a 1 -5 70000 text",
        "SADD integers 1 2 3",
        "SADD words a b c",
        "HSET hash field value number 5",
        "ZADD zset 1.5 a -2 b inf c 0.1 d",
        "XADD stream 1-1 field value",
        "XADD stream 2-1 field other",
        "XGROUP CREATE stream group 0",
        "XREADGROUP GROUP group alice COUNT 1 STREAMS stream >",
        "PFADD sketch a b c",
        "SELECT 3",
        "SET other database",
        "SELECT 0",
    ] {
        let reply = client.show(line);
        assert!(!reply.contains("ERR"), "{line}: {reply}");
    }
    client.call(&["SET".as_bytes(), b"long", &vec![b'x'; 3 << 20]]);
    for chunk in 0..60 {
        for (command, key) in
            [("RPUSH", "large:list"), ("SADD", "large:set"), ("HSET", "large:hash"), ("ZADD", "large:zset")]
        {
            let mut words = vec![command.to_owned(), key.to_owned()];
            for nth in 0..1_000 {
                let nth = chunk * 1_000 + nth;
                match command {
                    "HSET" => words.extend([format!("field:{nth}"), format!("{nth:0100}")]),
                    "ZADD" => words.extend([format!("{}.25", nth * 7), format!("member:{nth:060}")]),
                    _ => words.push(format!("element:{nth:090}")),
                }
            }
            let reply = client.call(&words);
            assert!(!reply.is_error(), "{reply}");
        }
    }
    for nth in 0..300 {
        client.show(&format!("XADD large:stream {}-1 n {nth} text some", nth + 1));
    }
    client.show("PEXPIREAT large:list 4102444800000");
    let library = "#!lua name=lib\nredis.register_function{function_name='answer', callback=function() return 42 end}";
    let reply = client.call(&["FUNCTION", "LOAD", library]);
    assert!(!reply.is_error(), "{reply}");
}

/// Every key of two databases with its digest and the time at which it expires.
fn contents(client: &mut Client) -> Vec<String> {
    let mut lines = Vec::new();
    for database in [0, 3] {
        client.show(&format!("SELECT {database}"));
        let keys = client.call(&["KEYS", "*"]);
        for key in keys.elements().expect("keys").iter().filter_map(Frame::as_bytes) {
            let key = String::from_utf8_lossy(key);
            // The digest of a stream here is about its groups, too, which that of Redis is not.
            let digest = match client.show(&format!("TYPE {key}")).as_str() {
                "stream" => client.show(&format!("XRANGE {key} - +")) + &client.show(&format!("XLEN {key}")),
                _ => client.show(&format!("DEBUG DIGEST-VALUE {key}")),
            };
            let expires = client.show(&format!("PEXPIRETIME {key}"));
            lines.push(format!("{database} {key} {digest} {expires}"));
        }
    }
    client.show("SELECT 0");
    lines.sort();
    lines
}

/// What `serve --import` is told when it does not come to serve.
fn refused(words: &[&str]) -> String {
    let output = Command::new(binary()).arg("serve").args(words).output().expect("the binary runs");
    assert!(!output.status.success(), "{words:?} should not serve");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_new_directory_is_filled_before_anybody_is_served() {
    let folder = Folder::new();
    let Some(stock) = Stock::start(&folder.path().join("redis"), &[]) else { return };
    let mut theirs = stock.client();
    fill(&mut theirs);
    assert_eq!(theirs.show("DEBUG POPULATE 200000 many 20"), "OK");
    assert_eq!(theirs.show("SAVE"), "OK");
    let redis = folder.path().join("redis");
    let (path, data) = (text(&redis).to_owned(), folder.path().join("data"));
    let port = free_port().to_string();
    let words = ["--data-dir", text(&data), "--port", port.as_str()];

    // What is no such file leaves nothing behind.
    let told = refused(&[&words[..], &["--import", text(&data)]].concat());
    assert!(told.contains("No such file") && !data.exists(), "{told}");

    let empty = folder.path().join("empty.rdb");
    fs::write(&empty, b"").expect("a file");
    let told = refused(&[&words[..], &["--import", text(&empty)]].concat());
    assert!(told.contains("is empty") && !data.exists(), "{told}");

    // Nor is the directory of that Redis filled.
    let told = refused(&["--data-dir", &path, "--port", &port, "--import", &path]);
    assert!(told.contains("none of Holdfast's") && !redis.join(".import").exists(), "{told}");

    // It is killed on the way: nobody is served a part of the data.
    let mut child = Command::new(binary())
        .arg("serve")
        .args(words)
        .args(["--import", &path])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    let begun = Instant::now();
    while !data.join("identity").exists() {
        assert!(begun.elapsed() < PATIENCE, "it does not begin");
        thread::sleep(Duration::from_millis(2));
    }
    child.kill().expect("a process to be killed");
    child.wait().expect("its end");
    let told = refused(&words);
    assert!(told.contains("has not come to its end") && told.contains(&format!("--import {path}")), "{told}");

    let options = ServerOptions::new(&data).extra(&["--cores", "3", "--import", &path]);
    let server = Server::start(&options);
    let mut ours = server.client();
    assert_eq!(ours.show("DBSIZE"), "(integer) 200016");
    for line in ["DEBUG DIGEST-VALUE large:hash large:zset text many:77", "GET number", "XPENDING stream group"] {
        assert_eq!(ours.show(line), theirs.show(line), "{line}");
    }
    assert_eq!(ours.show("FCALL answer 0"), "(integer) 42");
    assert_eq!(ours.show("CONFIG GET appendfsync"), "[\"appendfsync\", \"always\"]");

    // With the same words it goes on with what it has.
    ours.show("SET text changed");
    server.stop();
    let server = Server::start(&options);
    assert_eq!(server.client().show("GET text"), "\"changed\"");
}

#[test]
fn an_rdb_file_comes_in_and_goes_back_with_every_value_as_it_was() {
    let folder = Folder::new();
    let Some(stock) = Stock::start(&folder.path().join("redis"), &[]) else { return };
    let mut theirs = stock.client();
    fill(&mut theirs);
    assert_eq!(theirs.show("SAVE"), "OK");
    let dump = folder.path().join("redis/dump.rdb");
    let expected = contents(&mut theirs);
    assert_eq!(expected.len(), 17, "{expected:?}");

    let server = serve(&folder);
    let address = address(&server);
    let found = succeed(&["import", "--check", text(&dump)]);
    assert!(found.contains("17 keys found"), "{found}");
    let told = succeed(&["import", text(&dump), "--server", &address]);
    assert!(told.contains("17 keys imported"), "{told}");
    let mut ours = server.client();
    assert_eq!(contents(&mut ours), expected);
    assert_eq!(ours.show("FCALL answer 0"), "(integer) 42");
    assert_eq!(ours.show("XPENDING stream group"), theirs.show("XPENDING stream group"));

    // A second time it would overwrite what is there.
    let told = fail(&["import", text(&dump), "--server", &address]);
    assert!(told.contains("import into an empty server"), "{told}");
    ours.show("SET text changed");
    succeed(&["import", "--replace", text(&dump), "--server", &address]);
    assert_eq!(contents(&mut ours), expected);

    // Damage is found before anything is sent.
    let mut bytes = fs::read(&dump).expect("the file");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let damaged = folder.path().join("damaged.rdb");
    fs::write(&damaged, &bytes).expect("a file");
    ours.show("FLUSHALL");
    let told = fail(&["import", text(&damaged), "--server", &address]);
    assert!(told.contains("damaged.rdb: at byte"), "{told}");
    assert_eq!(ours.show("DBSIZE"), "(integer) 0");

    // And back.
    ours.show("FUNCTION FLUSH");
    succeed(&["import", text(&dump), "--server", &address]);
    for version in ["9", "10"] {
        let target = folder.path().join(format!("back-{version}"));
        fs::create_dir_all(&target).expect("a folder");
        let file = target.join("dump.rdb");
        let told = succeed(&["export", text(&file), "--server", &address, "--rdb-version", version, "--quiet"]);
        assert!(told.contains("17 keys as of"), "{told}");
        let other = Stock::start(&target, &[]).expect("there was one before");
        let mut client = other.client();
        assert_eq!(contents(&mut client), expected, "version {version}");
        if version == "10" {
            assert_eq!(client.show("FCALL answer 0"), "(integer) 42");
        }
        assert_eq!(client.show("XPENDING stream group"), theirs.show("XPENDING stream group"));
    }
    server.stop();
}

#[test]
fn an_interrupted_import_is_continued() {
    let folder = Folder::new();
    let Some(stock) = Stock::start(&folder.path().join("redis"), &[]) else { return };
    let mut theirs = stock.client();
    fill(&mut theirs);
    assert_eq!(theirs.show("SAVE"), "OK");
    let expected = contents(&mut theirs);
    let dump = folder.path().join("redis/dump.rdb");
    let state = folder.path().join("redis/dump.rdb.import-state");
    let server = serve(&folder);
    let address = address(&server);
    let mut ours = server.client();

    // Without room for the large keys it stops half-way, and says so.
    let begun = Instant::now();
    let used = loop {
        let memory = ours.show("INFO memory");
        let used = memory.split("\\r\\n").find_map(|line| line.strip_prefix("used_memory:")?.parse::<u64>().ok());
        let used = used.unwrap_or_else(|| panic!("no used_memory in {memory}"));
        // The server measures it now and then.
        if used > 0 {
            break used;
        }
        assert!(begun.elapsed() < PATIENCE, "no memory in use");
        thread::sleep(Duration::from_millis(50));
    };
    ours.show(&format!("CONFIG SET maxmemory {}", used + 8_000_000));
    let told = fail(&["import", text(&dump), "--server", &address]);
    assert!(told.contains("--resume continues it") && told.contains("OOM"), "{told}");
    assert!(state.exists());
    let told = fail(&["import", text(&dump), "--server", &address]);
    assert!(told.contains("continue it with --resume"), "{told}");
    ours.show("CONFIG SET maxmemory 0");
    succeed(&["import", "--resume", text(&dump), "--server", &address]);
    assert_eq!(contents(&mut ours), expected);
    assert!(!state.exists());
    server.stop();
}

#[test]
fn an_aof_comes_in_whole_and_torn() {
    let folder = Folder::new();
    let redis = folder.path().join("redis");
    let words = ["--appendonly", "yes", "--aof-timestamp-enabled", "yes"];
    let Some(stock) = Stock::start(&redis, &words) else { return };
    let mut theirs = stock.client();
    fill(&mut theirs);
    theirs.show("BGREWRITEAOF");
    let begun = Instant::now();
    while !theirs.show("INFO persistence").contains("aof_rewrite_in_progress:0") {
        assert!(begun.elapsed() < PATIENCE, "no end of BGREWRITEAOF");
        thread::sleep(Duration::from_millis(50));
    }
    // Redis notes the time once a second, and may have done so in the file before.
    thread::sleep(Duration::from_millis(1_100));
    theirs.show("SET after rewrite");
    theirs.show("MULTI");
    theirs.show("INCR counter");
    theirs.show("INCR counter");
    theirs.show("EXEC");
    theirs.show("SET kept 1 EX 5000");
    // It expires before it is imported; what was done with it in time must not start over.
    while theirs.show("SET brief 5 PX 300") != "OK" || theirs.show("INCR brief") != "(integer) 6" {}
    let expected: Vec<_> = contents(&mut theirs).into_iter().filter(|line| !line.contains(" brief ")).collect();
    drop(stock);
    thread::sleep(Duration::from_millis(400));

    let server = serve(&folder);
    let address = address(&server);
    let mut ours = server.client();
    succeed(&["import", text(&redis), "--server", &address]);
    // What expired on the way goes with the entry that ends import mode, which CONFIG SET does not wait for.
    let begun = Instant::now();
    while contents(&mut ours) != expected && begun.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(contents(&mut ours), expected);

    // A transaction without its end, and then half a request.
    let incremental: PathBuf = fs::read_dir(redis.join("appendonlydir"))
        .expect("the directory")
        .map(|entry| entry.expect("an entry").path())
        .find(|path| text(path).ends_with(".incr.aof"))
        .expect("an incremental file");
    let whole = fs::read(&incremental).expect("the file");
    for tail in [&b"*1\r\n$5\r\nMULTI\r\n*2\r\n$4\r\nINCR\r\n$7\r\ncounter\r\n"[..], b"*2\r\n$4\r\nINCR\r\n$7\r\ncoun"]
    {
        fs::write(&incremental, [&whole, tail].concat()).expect("a file");
        ours.show("FLUSHALL");
        ours.show("FUNCTION FLUSH");
        let told = succeed(&["import", text(&redis), "--server", &address]);
        assert!(told.contains(&format!("{} bytes from byte {} on are left out", tail.len(), whole.len())), "{told}");
        let begun = Instant::now();
        while contents(&mut ours) != expected && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(contents(&mut ours), expected);
    }
    fs::write(&incremental, &whole).expect("a file");

    // Up to a time before the first request of the log only what was rewritten is there.
    ours.show("FLUSHALL");
    ours.show("FUNCTION FLUSH");
    succeed(&["import", "--until", "1", text(&redis), "--server", &address]);
    assert_eq!(ours.show("EXISTS after"), "(integer) 0");
    server.stop();
}

#[test]
fn what_is_no_file_of_redis_is_refused_by_name() {
    let folder = Folder::new();
    let path = folder.path().join("file");
    for (bytes, expected) in [
        (&b"hello"[..], "is neither an RDB nor an AOF file"),
        (b"REDIS9999", "RDB version 9999 is not known"),
        (b"REDIS0011\xFF", "the file ends in the middle of a record"),
        (b"REDIS0011\x63\x01a", "records of type 99 are not known"),
        (b"REDIS0011\x00\x01a\x81\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", "longer than 512 MiB"),
        (b"*1\r\nhello\r\n", "this is no request of an AOF file"),
    ] {
        fs::write(&path, bytes).expect("a file");
        let told = fail(&["import", "--check", text(&path)]);
        assert!(told.contains(expected), "{told}");
    }
    // A key of a module is left out by name unless its type is known in that version. Each has one string.
    for (module, version, is_known) in [("ReJSON-RL", 3, true), ("ReJSON-RL", 4, false), ("MBbloom--", 5, false)] {
        let id = module.bytes().fold(0_u64, |id, letter| {
            let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
            id << 6 | letters.iter().position(|known| *known == letter).expect("a letter") as u64
        });
        let mut bytes = b"REDIS0011\x07\x03doc\x81".to_vec();
        bytes.extend_from_slice(&(id << 10 | version).to_be_bytes());
        bytes.extend_from_slice(b"\x05\x02{}\x00\x00\x01k\x01v\xFF\0\0\0\0\0\0\0\0");
        fs::write(&path, bytes).expect("a file");
        let told = succeed(&["import", "--check", text(&path)]);
        let found = if is_known { "2 keys found" } else { "1 key found" };
        let named = format!("doc (database 0, module type {module})");
        assert!(told.contains(found) && told.contains(&named) != is_known, "{told}");
    }
    // Redis Enterprise puts hints between keys.
    fs::write(&path, b"REDIS0012\x6b\x40\x43\x00\x01a\x01b\x79\x05\x6b\x32\x00\x01c\x01d\xFF\0\0\0\0\0\0\0\0")
        .expect("a file");
    let told = succeed(&["import", "--check", text(&path)]);
    assert!(told.contains("2 keys found"), "{told}");
    // An array of Redis 8.8, a type that does not exist here: three elements, of each form, and a place for the next.
    let array = b"REDIS0014\x1C\x02ar\x03\x01\x09\x00\x00\x01s\x05\x01\x07\0\0\0\0\0\0\0\x06\x02\0\0\0\0\0\0\xF8\x3F\x00\x01k\x01v";
    fs::write(&path, [&array[..], b"\xFF\0\0\0\0\0\0\0\0"].concat()).expect("a file");
    let told = succeed(&["import", "--check", text(&path)]);
    assert!(told.contains("1 key found") && told.contains("ar (database 0, type array)"), "{told}");
}

/// A request as it stands in an AOF.
fn in_a_log(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let words = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect::<String>();
    format!("*{}\r\n{words}", line.split(' ').count())
}

/// As Redis 8.6.3 has written them: what was added with the id that it got, what was there already as it was sent.
#[test]
fn entries_of_producers_in_a_log_keep_their_ids_and_are_known_again() {
    let folder = Folder::new();
    let path = folder.path().join("appendonly.aof");
    let begun = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_millis();
    let lines = [
        "SELECT 0".to_owned(),
        format!("XADD x IDMP p1 i1 {begun}-0 a 1"),
        "XADD x IDMP p1 i1 * a 1".to_owned(),
        format!("XADD x NOMKSTREAM IDMPAUTO p2 MAXLEN = 2 {begun}-1 a 2 b 3"),
        "MULTI".to_owned(),
        format!("XADD x KEEPREF IDMP p1 i2 MAXLEN = 2 {begun}-2 a 4"),
        "SET k v".to_owned(),
        "EXEC".to_owned(),
    ];
    fs::write(&path, lines.iter().map(|line| in_a_log(line)).collect::<String>()).expect("a file");
    let server = serve(&folder);
    succeed(&["import", text(&path), "--server", &address(&server), "--quiet"]);
    let mut ours = server.client();
    assert_eq!(ours.show("XLEN x"), "(integer) 2", "the first has gone");
    for (line, nth) in [("IDMP p1 i1 * a 9", 0), ("IDMP p1 i2 * a 9", 2), ("IDMPAUTO p2 * b 3 a 2", 1)] {
        assert_eq!(ours.show(&format!("XADD x {line}")), format!("\"{begun}-{nth}\""), "{line}");
    }
    assert_eq!(ours.show("GET k"), "\"v\"");
    server.stop();
}

#[test]
fn data_of_redis_in_the_data_directory_is_not_passed_over_in_silence() {
    let folder = Folder::new();
    let options = ServerOptions::new(&folder.path().join("data"));
    fs::create_dir_all(&options.data_folder).expect("a folder");
    fs::write(options.data_folder.join("dump.rdb"), b"REDIS0011").expect("a file");
    let Err(exit) = Server::try_start(&options) else { panic!("it is no directory of ours") };
    assert!(exit.log.contains("holds dump.rdb") && exit.log.contains("holdfast import"), "{}", exit.log);
    fs::remove_file(options.data_folder.join("dump.rdb")).expect("it is there");
    Server::start(&options).stop();
    fs::create_dir(options.data_folder.join("appendonlydir")).expect("a folder");
    let server = Server::start(&options);
    assert!(server.log().contains("appendonlydir is not read: holdfast import"), "{}", server.log());
    server.stop();
}

//! Scripts and functions on a real process: what was acknowledged is there after it has been killed.

use crate::harness::{Client, Folder, Server, ServerOptions};

const TRANSFER: &str = "redis.call('DECRBY', KEYS[1], ARGV[1]) redis.call('INCRBY', KEYS[2], ARGV[1]) \
                        return redis.call('INCR', KEYS[3])";

const LIBRARY: &str =
    "#!lua name=counters\nredis.register_function('bump', function(keys) return redis.call('INCR', keys[1]) end)";

fn number(client: &mut Client, key: &str) -> i64 {
    client.show(&format!("GET {key}")).trim_matches('"').parse().unwrap_or(0)
}

#[test]
fn what_scripts_did_and_libraries_survive_a_kill() {
    let folder = Folder::new();
    let options = ServerOptions::new(&folder.path().join("data"));
    let server = Server::start(&options);
    let mut client = server.client();
    assert_eq!(client.call(&["FUNCTION", "LOAD", LIBRARY]).to_string(), "\"counters\"");
    let mut last = 0;
    for turn in 0..200 {
        let (from, to) = (format!("account:{}", turn % 7), format!("account:{}", (turn + 3) % 7));
        last = client
            .call(&["EVAL", TRANSFER, "3", &from, &to, "turns", "5"])
            .to_string()
            .trim_start_matches("(integer) ")
            .parse()
            .expect("a number of turns");
        client.show("FCALL bump 1 bumps");
    }
    server.kill();
    let server = Server::start(&options);
    let mut client = server.client();
    assert_eq!((last, number(&mut client, "turns"), number(&mut client, "bumps")), (200, 200, 200));
    let sum: i64 = (0..7).map(|account| number(&mut client, &format!("account:{account}"))).sum();
    assert_eq!(sum, 0, "a transfer was made by half");
    assert_eq!(client.show("FCALL bump 1 bumps"), "(integer) 201");
    client.show("BGSAVE");
    client.show("SAVE");
    server.kill();
    let server = Server::start(&options);
    assert_eq!(server.client().show("FCALL bump 1 bumps"), "(integer) 202", "a checkpoint keeps libraries, too");
}

#[test]
fn a_script_without_an_end_leaves_the_server_responsive() {
    let folder = Folder::new();
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")));
    let (mut looping, mut other) = (server.client(), server.client());
    other.show("CONFIG SET busy-reply-threshold 60000");
    looping.send(&["EVAL", "while true do pcall(function() while true do end end) end", "1", "mine"]).expect("sent");
    // It never ends by itself: a client that waited for it would never be answered.
    for turn in 0..100 {
        assert_eq!(other.show(&format!("SET key:{turn} 1")), "OK");
    }
    // It may take a moment until the script has found out that it is a long one.
    while other.show("SCRIPT KILL") != "OK" {}
    let told = looping.receive().expect("an answer").to_string();
    assert!(told.contains("Script killed by user with SCRIPT KILL."), "{told}");
    assert_eq!(looping.show("PING"), "PONG");
}

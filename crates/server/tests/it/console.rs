//! The console from outside: who is let in, what they are shown, and what they may not see.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Authority, Folder, PATIENCE, Server, ServerOptions, free_port, wait_for};

/// An answer: status, head and body.
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn of(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
        let head = String::from_utf8(bytes[..end].to_vec()).expect("text");
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).expect("a status");
        Self { status, head, body: bytes[end + 4..].to_vec() }
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("no JSON: {}", String::from_utf8_lossy(&self.body)))
    }

    fn error(&self) -> (u16, String) {
        (self.status, self.json()["error"].as_str().unwrap_or_default().to_owned())
    }
}

fn exchange(stream: &mut (impl Read + Write), request: &[u8]) -> Answer {
    stream.write_all(request).expect("a request is taken");
    let mut bytes = Vec::new();
    // TLS without a farewell is an error, and all has come.
    let _ = stream.read_to_end(&mut bytes);
    Answer::of(&bytes)
}

/// A browser, as far as it matters.
struct Browser {
    port: u16,
    cookie: String,
}

impl Browser {
    fn new(port: u16) -> Self {
        Self { port, cookie: String::new() }
    }

    fn send(&self, method: &str, path: &str, more: &str, body: &str) -> Answer {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\nCookie: {}\r\n{more}\
             Content-Length: {}\r\n\r\n{body}",
            self.port,
            self.cookie,
            body.len()
        );
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the console's port is open");
        stream.set_read_timeout(Some(PATIENCE)).expect("a bound");
        exchange(&mut stream, request.as_bytes())
    }

    fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "", "")
    }

    /// As the console's own page changes a key.
    fn change(&self, form: &str) -> Answer {
        self.post_from_page("/api/change", form)
    }

    fn post_from_page(&self, path: &str, form: &str) -> Answer {
        let token = self.get("/api/session").json()["token"].as_str().unwrap_or_default().to_owned();
        let more = format!("Origin: http://127.0.0.1:{}\r\nX-Holdfast-Token: {token}\r\n", self.port);
        self.send("POST", path, &more, form)
    }

    fn log_in(&mut self, form: &str) -> Answer {
        let answer = self.send("POST", "/api/login", "", form);
        let line = answer.head.lines().find_map(|line| line.strip_prefix("Set-Cookie: "));
        if let Some(cookie) = line {
            assert!(cookie.contains("; HttpOnly; SameSite=Strict"), "{cookie}");
            self.cookie = cookie.split(';').next().unwrap_or_default().to_owned();
        }
        answer
    }
}

fn server(words: &[&str]) -> (Folder, Server, Browser) {
    let (folder, port) = (Folder::new(), free_port());
    let options = ServerOptions::new(&folder.path().join("data"));
    let options = options.extra(&["--cores", "1", "--console-port", &port.to_string()]).extra(words);
    let server = Server::start(&options);
    (folder, server, Browser::new(port))
}

#[test]
fn the_page_comes_from_here_alone_and_strangers_see_nothing_else() {
    let (_folder, server, browser) = server(&[]);
    let mut packed_bytes = 0;
    for (path, kind) in [("/", "text/html"), ("/console.css", "text/css"), ("/console.js", "text/javascript")] {
        let answer = browser.send("GET", path, "Accept-Encoding: gzip\r\n", "");
        assert!(answer.status == 200 && answer.head.contains(&format!("Content-Type: {kind}; charset=utf-8")));
        assert!(answer.head.contains("Content-Security-Policy: default-src 'self'; "), "{}", answer.head);
        assert!(answer.head.contains("Content-Encoding: gzip") && answer.head.contains("X-Frame-Options: DENY"));
        assert!(!answer.head.contains("Set-Cookie"));
        packed_bytes += answer.body.len();
        let text = String::from_utf8(browser.get(path).body).expect("text");
        assert!(!text.contains("http://") && !text.contains("https://") && !text.contains("//cdn"), "{path}");
        // What the policy forbids would not work, and what it does not, must not be there: names of keys are text.
        for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "style=", "onclick=\""]
        {
            assert!(!text.contains(word), "{path}: {word}");
        }
    }
    assert!(packed_bytes < 300 << 10, "{packed_bytes}");
    for path in [
        "/api/session",
        "/api/history",
        "/api/cluster",
        "/api/timeline",
        "/api/stalls",
        "/api/slowlog",
        "/api/clients",
        "/api/info",
        "/api/plan",
        "/api/hotkeys",
        "/api/keys",
        "/api/key?name=a",
        "/api/doctor",
        "/api/nothing",
    ] {
        assert_eq!(browser.get(path).status, 401, "{path}");
    }
    assert_eq!(browser.get("/nothing").status, 404);
    assert_eq!(browser.send("PUT", "/", "", "").status, 405);
    assert_eq!(browser.send("POST", "/api/cluster", "", "").status, 405);
    assert_eq!(browser.send("GET", "/", "X: y\r\nTransfer-Encoding: chunked\r\n", "").status, 411);
    assert!(server.stop().status.success());
}

#[test]
fn pages_of_others_and_requests_without_end_are_refused() {
    let (_folder, server, mut browser) = server(&["--console-hosts", "db.example.com other"]);
    let raw = |text: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", browser.port)).expect("the console's port is open");
        exchange(&mut stream, text.as_bytes()).status
    };
    let host = |name: &str| raw(&format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"));
    for name in
        ["127.0.0.1", "127.0.0.1:80", "[::1]:80", "10.0.0.7:1", "localhost", "LocalHost:9", "DB.example.com:1", "other"]
    {
        assert_eq!(host(name), 200, "{name}");
    }
    for name in ["evil.example.com", "", "example.com:1", "127.0.0.1.example.com", ":80", "db.example.com.evil", "[::1"]
    {
        assert_eq!(host(name), 421, "{name}");
    }
    assert_eq!(raw("GET / HTTP/1.1\r\n\r\n"), 421);
    assert_eq!(raw("*1\r\n$4\r\nPING\r\n\r\n\r\n"), 400);
    assert_eq!(raw(&format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(20 << 10))), 431);
    assert_eq!(raw("POST /api/login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"), 413);
    // Another place's page may not log anybody in or out.
    for path in ["/api/login", "/api/logout"] {
        assert_eq!(browser.send("POST", path, "Origin: http://evil.example.com\r\n", "").status, 403);
    }
    // Protected mode goes by where the browser is, not by where its proxy is.
    let (status, why) = browser.send("POST", "/api/login", "X-Forwarded-For: 192.0.2.1\r\n", "").error();
    assert!(status == 403 && why.starts_with("DENIED"), "{status} {why}");
    assert_eq!(browser.log_in("").status, 200);
    assert_eq!(browser.get("/api/session").json()["user"], "default");
    assert!(server.stop().status.success());
}

#[test]
fn a_user_sees_what_that_user_may_and_only_while_there_is_one() {
    let (_folder, server, mut browser) = server(&["--requirepass", "secret"]);
    server.wait_for_log("ready to accept");
    let mut client = server.client();
    assert_eq!(client.show("AUTH secret"), "OK");
    let look = "+holdfast|cluster +holdfast|timeline +holdfast|stalls";
    for request in [
        &format!("ACL SETUSER watcher on >look -@all {look} +scan +type ~pub:*"),
        "ACL SETUSER blind on >look -@all +get ~*",
        "SET pub:a 1",
        "SET private 2",
    ] {
        assert_eq!(client.show(request), "OK", "{request}");
    }
    assert_eq!(browser.log_in("").status, 401, "a password is needed");
    let (status, why) = browser.log_in("user=watcher&password=wrong").error();
    assert!(status == 401 && why.starts_with("WRONGPASS"), "{status} {why}");
    let (status, why) = browser.log_in("user=blind&password=look").error();
    assert!(status == 403 && why.starts_with("NOPERM") && why.contains("holdfast|cluster"), "{status} {why}");
    assert!(browser.cookie.is_empty());
    assert_eq!(browser.log_in("user=watcher&password=look").json()["user"], "watcher");

    assert_eq!(browser.get("/api/cluster").json()["reply"]["groups"][0]["here"], "serving");
    for path in ["/api/session", "/api/history", "/api/timeline", "/api/stalls"] {
        assert_eq!(browser.get(path).status, 200, "{path}");
    }
    for path in ["/api/slowlog", "/api/clients", "/api/info", "/api/plan", "/api/hotkeys", "/api/keys?db=1"] {
        let (status, why) = browser.get(path).error();
        assert!(status == 403 && why.starts_with("NOPERM"), "{path}: {status} {why}");
    }
    let keys = browser.get("/api/keys").json();
    let kind = |name: &str| {
        let keys = keys["keys"].as_array().expect("keys");
        keys.iter().find(|key| key["name"] == name).expect("the name of each").clone()
    };
    assert_eq!(kind("pub:a")["type"], "string");
    assert!(kind("private")["type"].as_str().is_some_and(|text| text.starts_with("NOPERM")), "{keys}");
    assert!(browser.get("/api/key?name=pub:a").json()["is_refused"] == true, "the value is not for this user");
    let (status, why) = browser.get("/api/key?name=private").error();
    assert!(status == 403 && why.starts_with("NOPERM"), "{status} {why}");

    // What a token opens ends with the logout, and with the user.
    let cookie = browser.cookie.clone();
    assert_eq!(browser.send("POST", "/api/logout", "", "").status, 200);
    assert_eq!(browser.get("/api/cluster").status, 401);
    browser.cookie = cookie.replace(|digit: char| digit.is_ascii_digit(), "0");
    assert_eq!(browser.get("/api/cluster").status, 401);
    assert_eq!(browser.log_in("user=watcher&password=look").status, 200);
    assert_eq!(client.show("ACL DELUSER watcher"), "(integer) 1");
    let (status, why) = browser.get("/api/cluster").error();
    assert!(status == 401 && why.contains("log in again"), "{status} {why}");
    assert!(server.stop().status.success());
}

#[test]
fn keys_of_all_types_and_names_are_shown_as_what_they_are() {
    let (_folder, server, mut browser) = server(&[]);
    let mut client = server.client();
    let name = b"<script>alert('\xff')</script>&=%41";
    client.call(&[&b"SET"[..], name, b"<img src=x onerror=alert(1)>"]);
    for request in [
        "RPUSH list a b c",
        "HSET hash f v g w",
        "SADD set m",
        "ZADD zset 1.5 one 2 two",
        "XADD stream 1-1 f v",
        "EXPIRE list 1000",
    ] {
        client.show(request);
    }
    client.call(&["SET", "long", &"x".repeat(100_000)]);
    assert_eq!(browser.log_in("").status, 200);
    let found = browser.get("/api/keys?match=*").json();
    assert_eq!(found["cursor"], "0");
    let keys = found["keys"].as_array().expect("keys");
    assert_eq!(keys.len(), 7);
    let odd = keys.iter().find(|key| key["type"] == "string" && key["name"] != "long").expect("the odd one");
    assert_eq!(odd["name"], "<script>alert('\\xff')</script>&=%41");
    let show = |id: &str| browser.get(&format!("/api/key?name={id}")).json();
    let shown = show(odd["id"].as_str().expect("an id"));
    assert_eq!((&shown["value"], &shown["length"]), (&Value::from("<img src=x onerror=alert(1)>"), &Value::from(28)));
    assert_eq!(show("list")["value"].to_string(), r#"["a","b","c"]"#);
    assert!(show("list")["ttl_ms"].as_i64().is_some_and(|ms| (1..=1_000_000).contains(&ms)));
    assert_eq!(show("hash")["value"].to_string(), r#"["0",["f","v","g","w"]]"#);
    assert_eq!(show("set")["value"].to_string(), r#"["0",["m"]]"#);
    assert_eq!(show("zset")["value"].to_string(), r#"[["one",1.5],["two",2.0]]"#);
    client.call(&[&b"HSET"[..], b"hash", b"\xfe", b"\\xfe"]);
    assert_eq!(show("hash")["value"][1][4].to_string(), r#"{"id":"%FE","text":"\\xfe"}"#);
    assert_eq!(show("hash")["value"][1][5], "\\xfe", "what looks the same is not");
    assert_eq!(show("stream")["value"].to_string(), r#"[["1-1",["f","v"]]]"#);
    let sized = browser.get("/api/keys?match=long&sizes=1").json();
    assert!(sized["keys"][0]["memory"].as_i64().is_some_and(|bytes| bytes >= 100_000), "{sized}");
    assert!(found["keys"][0]["memory"].is_null(), "nobody has asked for sizes: {found}");
    let long = show("long");
    assert!(long["length"] == 100_000 && long["value"].as_str().is_some_and(|text| text.len() == 65_536));
    assert_eq!(browser.get("/api/key?name=nothing").error().1, "ERR no such key");
    assert_eq!(browser.get("/api/keys?match=l*").json()["keys"].as_array().map(Vec::len), Some(2));
    assert!(server.stop().status.success());
}

/// Everything that can be changed, with bytes that are no text, and what is left of it.
#[test]
fn keys_are_changed_if_they_are_still_as_shown() {
    let (_folder, server, mut browser) = server(&[]);
    let mut client = server.client();
    client.call(&[&b"SET"[..], b"s\xff", b"\xff\x00\r\n=&+%"]);
    for request in [
        "HSET hash f v g w",
        "HEXPIRE hash 1000 FIELDS 1 f",
        "RPUSH list a b a",
        "SADD set m",
        "ZADD zset 1.5 one inf two",
        "SELECT 1",
        "SET other 1 EX 1000",
        "SELECT 0",
    ] {
        client.show(request);
    }
    assert_eq!(browser.log_in("").status, 200);
    let show = |id: &str| browser.get(&format!("/api/key?name={id}")).json();
    let may = |id: &str| show(id)["may"].to_string();
    assert_eq!(may("s%FF"), r#"["set","expire","persist","delete"]"#);
    assert_eq!(may("list"), r#"["set-element","append","remove-element","expire","persist","delete"]"#);
    let done = |form: &str| {
        let answer = browser.change(form);
        assert_eq!((answer.status, answer.json()["done"].as_bool()), (200, Some(true)), "{form}: {}", answer.json());
    };
    let refused = |form: &str, status: u16, why: &str| {
        let (found, told) = browser.change(form).error();
        assert!(found == status && told.starts_with(why), "{form}: {found} {told}");
    };
    let was = show("s%FF")["value"]["id"].as_str().expect("bytes").to_owned();
    assert_eq!(was, "%FF%00%0D%0A%3D%26%2B%25");
    done(&format!("do=set&name=s%FF&was={was}&value=%FE%00%0D%0A"));
    assert_eq!(client.call(&[&b"GET"[..], b"s\xff"]).as_bytes(), Some(&b"\xfe\0\r\n"[..]));
    // Somebody else has changed it: nothing is lost.
    refused(&format!("do=set&name=s%FF&was={was}&value=mine"), 409, "CONFLICT");
    refused("do=set&name=list&was=&value=mine", 409, "CONFLICT");
    refused("do=set&name=nothing&was=&value=mine", 409, "CONFLICT");
    assert_eq!(client.call(&[&b"GET"[..], b"s\xff"]).as_bytes(), Some(&b"\xfe\0\r\n"[..]));

    done("do=set-field&name=hash&field=f&was=v&value=v2");
    assert_ne!(client.show("HTTL hash FIELDS 1 f"), "[(integer) -1]", "the field keeps its deadline");
    done("do=add-field&name=hash&field=%F0&value=new");
    done("do=remove-field&name=hash&field=g&was=w");
    refused("do=add-field&name=hash&field=f&value=x", 409, "CONFLICT");
    refused("do=set-field&name=hash&field=gone&was=v&value=x", 409, "CONFLICT");
    refused("do=remove-field&name=hash&field=f&was=v", 409, "CONFLICT");
    assert_eq!(client.show("HLEN hash"), "(integer) 2");
    assert_eq!(client.show("HGET hash f"), "\"v2\"");

    done("do=set-element&name=list&index=1&was=b&value=B");
    done("do=append&name=list&value=c");
    // The one that was shown, not the first that is equal.
    done("do=remove-element&name=list&index=2&was=a");
    refused("do=remove-element&name=list&index=2&was=a", 409, "CONFLICT");
    refused("do=set-element&name=list&index=-1&was=c&value=d", 503, "ERR 'index' is not a number");
    assert_eq!(client.show("LRANGE list 0 -1"), "[\"a\", \"B\", \"c\"]");

    done("do=add-member&name=set&value=n");
    done("do=remove-member&name=set&was=m");
    refused("do=add-member&name=nothing&value=n", 409, "CONFLICT");
    assert_eq!(client.show("SMEMBERS set"), "[\"n\"]");

    assert_eq!(show("zset")["value"].to_string(), r#"[["one",1.5],["two","inf"]]"#);
    done("do=set-score&name=zset&field=two&was=inf&score=1e3");
    done("do=add-scored&name=zset&field=three&score=-inf");
    done("do=remove-scored&name=zset&field=one&was=1.5");
    refused("do=set-score&name=zset&field=two&was=1&score=2", 409, "CONFLICT");
    refused("do=set-score&name=zset&field=two&was=1000&score=nan", 503, "ERR 'score' is not a number");
    assert_eq!(client.show("ZRANGE zset 0 -1 WITHSCORES"), "[\"three\", \"-inf\", \"two\", \"1000\"]");

    assert_eq!(show("set")["deadline_ms"], -1);
    refused("do=expire&name=set&was=17&ttl_ms=1000000", 409, "CONFLICT");
    refused("do=expire&name=set&was=-1&ttl_ms=0", 503, "ERR a time to live is at least a millisecond");
    done("do=expire&name=set&was=-1&ttl_ms=1000000");
    let deadline = show("set")["deadline_ms"].as_i64().expect("a deadline");
    done(&format!("do=persist&name=set&was={deadline}"));
    assert_eq!(client.show("TTL set"), "(integer) -1");

    let shown = show("set")["shown"].as_str().expect("a word").to_owned();
    client.show("SADD set late");
    refused(&format!("do=delete&name=set&shown={shown}"), 409, "CONFLICT");
    let shown = show("set")["shown"].as_str().expect("a word").to_owned();
    done(&format!("do=delete&name=set&shown={shown}"));
    done("do=delete&name=zset");
    refused("do=delete&name=zset", 409, "CONFLICT");
    done("do=set&db=1&name=other&was=1&value=2");
    client.show("SELECT 1");
    assert_eq!(client.show("GET other"), "\"2\"");
    assert_ne!(client.show("TTL other"), "(integer) -1", "it keeps its deadline");
    client.show("SELECT 0");
    assert_eq!(client.show("DBSIZE"), "(integer) 3");
    refused("do=flush&name=a", 503, "ERR there is no change of this name");
    refused("do=set&name=a&was=b", 503, "ERR a change of this kind needs 'value'");
    // A refusal leaves no transaction behind.
    client.call(&["SET", "long", &"x".repeat(60_000)]);
    done(&format!("do=set&name=long&was={}&value={}", "x".repeat(60_000), "%79".repeat(60_000)));
    refused(&format!("do=set&name=long&was=y&value={}", "x".repeat(65_537)), 503, "ERR the value is too long");
    assert_eq!(client.show("STRLEN long"), "(integer) 60000");
    assert!(server.stop().status.success());
}

/// What a user may not do is not offered, and is refused with the words of Redis when it is asked for all the same.
#[test]
fn keys_are_changed_by_users_who_may() {
    let (_folder, server, mut browser) = server(&["--requirepass", "secret"]);
    server.wait_for_log("ready to accept");
    let mut client = server.client();
    assert_eq!(client.show("AUTH secret"), "OK");
    let look = "-@all +holdfast|cluster +scan +type +pttl +pexpiretime +strlen +getrange +watch +multi +exec";
    for request in [
        format!("ACL SETUSER watcher on >look {look} ~*"),
        format!("ACL SETUSER writer on >look {look} +set +del %R~* %W~own:*"),
        format!("ACL SETUSER bare on >look {look} +set -watch ~*"),
        "SET own:a 1".to_owned(),
        "SET a 1".to_owned(),
    ] {
        assert_eq!(client.show(&request), "OK", "{request}");
    }
    let may = |browser: &Browser, name: &str| browser.get(&format!("/api/key?name={name}")).json()["may"].to_string();
    for (user, own, other) in [("watcher", "[]", "[]"), ("writer", r#"["set","delete"]"#, "[]"), ("bare", "[]", "[]")] {
        assert_eq!(browser.log_in(&format!("user={user}&password=look")).status, 200);
        assert_eq!((may(&browser, "own:a"), may(&browser, "a")), (own.to_owned(), other.to_owned()), "{user}");
        for form in ["do=set&name=a&was=1&value=2", "do=delete&name=a", "do=expire&name=a&was=-1&ttl_ms=5"] {
            let (status, why) = browser.change(form).error();
            assert!(status == 403 && why.starts_with("NOPERM "), "{user} {form}: {status} {why}");
            let is_told = why.contains("User ") || why.contains("No permissions to access a key");
            assert!(is_told, "{user} {form}: {why}");
        }
        let status = browser.change("do=set&name=own:a&was=1&value=2").status;
        assert_eq!(status, if user == "writer" { 200 } else { 403 }, "{user}");
        assert_eq!(client.show("GET a"), "\"1\"");
        assert_eq!(client.show("SET own:a 1"), "OK");
    }
    assert_eq!(client.show("ACL LOG RESET"), "OK");
    assert!(server.stop().status.success());
}

/// A page of another place, or of another port of this host, has the cookie sent by the browser, and nothing more.
#[test]
fn forged_requests_change_nothing() {
    let (_folder, server, mut browser) = server(&[]);
    let mut client = server.client();
    assert_eq!(client.show("SET a 1"), "OK");
    assert_eq!(browser.log_in("").status, 200);
    let token = browser.get("/api/session").json()["token"].as_str().expect("a token").to_owned();
    let mut other = Browser::new(browser.port);
    assert_eq!(other.log_in("").status, 200);
    let others = other.get("/api/session").json()["token"].as_str().expect("a token").to_owned();
    assert!(token.len() == 64 && token != others && !browser.cookie.contains(&token));
    let (own, form) = (format!("http://127.0.0.1:{}", browser.port), "do=set&name=a&was=1&value=2");
    let lines = [
        format!("Origin: http://evil.example.com\r\nX-Holdfast-Token: {token}\r\n"),
        format!("Origin: http://127.0.0.1:1\r\nX-Holdfast-Token: {token}\r\n"),
        format!("Origin: null\r\nX-Holdfast-Token: {token}\r\n"),
        format!("X-Holdfast-Token: {token}\r\n"),
        format!("Origin: {own}\r\n"),
        format!("Origin: {own}\r\nX-Holdfast-Token: {others}\r\n"),
        format!("Origin: {own}\r\nX-Holdfast-Token: \r\n"),
    ];
    for more in &lines {
        assert_eq!(browser.send("POST", "/api/change", more, form).status, 403, "{more}");
    }
    let all = format!("Origin: {own}\r\nX-Holdfast-Token: {token}\r\n");
    assert_eq!(Browser::new(browser.port).send("POST", "/api/change", &all, form).status, 401, "without the cookie");
    assert_eq!(browser.send("GET", &format!("/api/change?{form}"), &all, "").status, 404);
    assert_eq!(client.show("GET a"), "\"1\"");
    assert_eq!(browser.send("POST", "/api/change", &all, form).status, 200);
    assert_eq!(client.show("GET a"), "\"2\"");
    assert!(server.stop().status.success());
}

#[test]
fn figures_and_stalls_are_kept_and_shown_while_a_core_is_busy() {
    let (_folder, server, mut browser) = server(&[]);
    let mut client = server.client();
    assert_eq!(browser.log_in("").status, 200);
    (0..2_000).for_each(|_| _ = client.show("SET a 1"));
    let history = |name: &str| -> Vec<Option<u64>> {
        let told = browser.get("/api/history").json();
        let series = told["series"].as_array().expect("series");
        let place = series.iter().position(|series| series[0] == name).expect("a series");
        told["values"][place].as_array().expect("values").iter().map(Value::as_u64).collect()
    };
    wait_for("commands are seen", || history("write_calls").iter().flatten().sum::<u64>() >= 1_000);
    assert!(history("memory_resident").iter().flatten().all(|bytes| *bytes > 1 << 20));
    assert!(history("script_p99").iter().all(Option::is_none), "no script was run");

    // The only core is busy for longer than the console waits.
    wait_for("it finds the core busy", || {
        client.send(&["DEBUG", "SLEEP", "5"]).expect("a connection");
        // The core may not have begun, or be done, when the console asks.
        thread::sleep(Duration::from_millis(300));
        let answer = browser.get("/api/cluster");
        assert_eq!(browser.get("/api/history").status, 200, "what is kept here needs no core");
        client.receive().expect("it has slept");
        answer.status != 200 && {
            let (status, why) = answer.error();
            assert!(status == 503 && why.starts_with("BUSY"), "{status} {why}");
            true
        }
    });
    // What came too late is no answer to another question.
    assert!(browser.get("/api/timeline").json()["reply"].is_array());
    assert_eq!(browser.get("/api/cluster").json()["reply"]["clustered"], 0);

    let slept = || {
        let told = browser.get("/api/stalls").json()["reply"].clone();
        let latest = told["latest"].as_array().expect("stalls").clone();
        latest.into_iter().find(|stall| stall["took_us"].as_u64() >= Some(4_900_000))
    };
    wait_for("the stall is told", || slept().is_some());
    let stall = slept().expect("just seen");
    assert_eq!((&stall["cause"], &stall["core"]), (&Value::from("blocked"), &Value::from(0)), "{stall}");
    assert!(stall["window_us"].as_u64() >= stall["took_us"].as_u64(), "{stall}");
    // It is drawn over the time that it lasted.
    wait_for("it is drawn", || history("stalled").iter().flatten().sum::<u64>() >= 4_000);
    let drawn = history("stalled");
    assert!(drawn.iter().flatten().all(|share| *share < 2_000), "of one core: {drawn:?}");
    assert!(server.stop().status.success());
}

#[test]
fn hot_keys_are_known_without_having_been_asked_for() {
    let (_folder, server, mut browser) = server(&[]);
    let mut client = server.client();
    assert_eq!(client.show("HOLDFAST PLAN"), "[]");
    let name = b"hot\xff";
    for _ in 0..50 {
        (0..200).for_each(|_| client.send(&[&b"GET"[..], name]).expect("a connection"));
        (0..200).for_each(|_| _ = client.receive().expect("a reply"));
    }
    assert_eq!(browser.log_in("").status, 200);
    assert_eq!(browser.get("/api/plan").json()["reply"], Value::Array(Vec::new()));
    let told = browser.get("/api/hotkeys").json();
    let keys = told["keys"].as_array().expect("keys");
    let hot = keys.iter().find(|key| key["name"] == "hot\\xff").unwrap_or_else(|| panic!("it is not in {told}"));
    assert_eq!(hot["id"], "hot%FF", "{told}");
    // One call in so many is looked at: the figure is an estimate.
    assert!(hot["calls"].as_u64().is_some_and(|calls| (2_000..50_000).contains(&calls)), "{told}");
    assert!(told["calls"].as_u64().is_some_and(|calls| (9_000..12_000).contains(&calls)), "{told}");
    let info = client.show("INFO stats");
    let percent = info.split("hottest_key_calls_percent:").nth(1).unwrap_or_default();
    let end = percent.find(|at: char| !at.is_ascii_digit() && at != '.').unwrap_or(percent.len());
    assert!(percent[..end].parse::<f64>().is_ok_and(|percent| percent > 20.0), "{info}");
    assert_eq!(client.show("HOLDFAST HOTKEYS x"), "(error) ERR value is not an integer or out of range");
    assert!(server.stop().status.success());
}

#[test]
fn a_node_is_examined_for_who_may_and_once_at_a_time() {
    let (folder, server, mut browser) = server(&["--requirepass", "secret"]);
    server.wait_for_log("ready to accept");
    let mut client = server.client();
    assert_eq!(client.show("AUTH secret"), "OK");
    for request in [
        "ACL SETUSER watcher on >look -@all +holdfast|cluster +info",
        "ACL SETUSER second on >look ~* +@all",
        "ACL SETUSER short on >look ~* +@all -slowlog",
    ] {
        assert_eq!(client.show(request), "OK", "{request}");
    }
    assert_eq!(browser.log_in("user=watcher&password=look").status, 200);
    for answer in [browser.get("/api/doctor"), browser.post_from_page("/api/doctor", "seconds=1")] {
        let (status, why) = answer.error();
        assert!(status == 403 && why.starts_with("NOPERM") && why.contains("config|get"), "{status} {why}");
    }
    assert_eq!(browser.log_in("user=default&password=secret").status, 200);
    assert_eq!(browser.send("POST", "/api/doctor", "", "").status, 403, "from nowhere");
    assert_eq!(browser.get("/api/doctor").json()["state"], "none");
    assert_eq!(browser.post_from_page("/api/doctor", "seconds=3").status, 200);
    assert_eq!(browser.post_from_page("/api/doctor", "seconds=3").status, 409);
    let told = browser.get("/api/doctor").json();
    assert!(told["state"] == "running" && told["is_own"] == true && told["window_s"] == 3.0, "{told}");
    let mut other = Browser::new(browser.port);
    assert_eq!(other.log_in("user=second&password=look").status, 200);
    assert_eq!(other.get("/api/doctor").json()["is_own"], false);
    for _ in 0..3 {
        assert_eq!(client.show("DEBUG SLEEP 0.4"), "OK");
    }
    wait_for("the examination has ended", || browser.get("/api/doctor").json()["state"] == "done");
    let told = browser.get("/api/doctor").json();
    let report = &told["report"];
    assert!(report["verdict"].as_str().is_some_and(|line| line.starts_with("guilty: ")), "{report}");
    let verdict = |name: &str| {
        let checks = report["checks"].as_array().expect("checks");
        let check = checks.iter().find(|check| check["check"] == name).expect("every check is told").clone();
        check["verdict"].as_str().expect("a verdict").to_owned()
    };
    assert_eq!(verdict("load.slow_commands"), "guilty", "{report}");
    for name in ["cpu.waiting", "server.answers", "disk.sync", "disk.filesystem", "limits.files", "network.round_trip"]
    {
        assert_ne!(verdict(name), "unknown", "{name}: {report}");
    }
    assert!(report["processor_share"].is_null(), "the process has done more than the examination");
    let left = std::fs::read_dir(folder.path().join("data")).expect("the data directory");
    let left = left.flatten().filter(|file| file.file_name().to_string_lossy().contains("doctor"));
    assert_eq!(left.count(), 0, "the probe's file is gone");
    wait_for("its sessions end", || !client.show("CLIENT LIST").contains("holdfast-doctor"));
    // What it tells is for who has asked.
    assert_eq!(other.get("/api/doctor").json()["state"], "none");
    // What the user may not ask for, the examination does not know.
    assert_eq!(other.log_in("user=short&password=look").status, 200);
    assert_eq!(other.post_from_page("/api/doctor", "seconds=1").status, 200);
    wait_for("the examination has ended", || other.get("/api/doctor").json()["state"] == "done");
    let told = other.get("/api/doctor").json();
    let checks = told["report"]["checks"].as_array().expect("checks").clone();
    let slow = checks.iter().find(|check| check["check"] == "load.slow_commands").expect("every check is told");
    assert!(slow["detail"].as_str().is_some_and(|why| why.contains("NOPERM")), "{slow}");
    assert!(server.stop().status.success());
}

#[test]
fn what_kept_a_core_busy_is_named() {
    let (_folder, server, _) = server(&[]);
    let mut client = server.client();
    // Long enough on any machine, and carried out in one piece.
    let words: Vec<String> =
        ["RPUSH".to_owned(), "long".to_owned()].into_iter().chain((0..200_000).map(|n| n.to_string())).collect();
    assert_eq!(client.call(&words).to_string(), "(integer) 200000");
    let begun = Instant::now();
    loop {
        client.show("SORT long ALPHA LIMIT 0 1");
        let told = client.show("HOLDFAST STALLS 1000");
        if told.contains("\"sort\"") {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{told}");
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(client.show("HOLDFAST STALLS x"), "(error) ERR value is not an integer or out of range");
    assert!(server.stop().status.success());
}

#[test]
fn the_console_is_encrypted_where_clients_are() {
    let authority = Authority::new("console");
    let (own, port) = (authority.sign("server"), free_port().to_string());
    let words = [
        "--tls-port",
        &port,
        "--tls-cert-file",
        &own.certificate,
        "--tls-key-file",
        &own.key,
        "--tls-auth-clients",
        "no",
    ];
    let (_folder, server, browser) = server(&words);
    let socket = TcpStream::connect(("127.0.0.1", browser.port)).expect("the console's port is open");
    let mut stream = authority.client(None).connect(socket).expect("a certificate of the authority");
    let request = "POST /api/login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    let answer = exchange(&mut stream, request.as_bytes());
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("; SameSite=Strict; Secure\r\n"), "{}", answer.head);
    // Without keys nothing is answered.
    let mut plain = TcpStream::connect(("127.0.0.1", browser.port)).expect("the console's port is open");
    plain.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("bytes");
    let mut bytes = Vec::new();
    let _ = plain.read_to_end(&mut bytes);
    assert!(!bytes.starts_with(b"HTTP"), "{bytes:?}");
    assert!(server.stop().status.success());
}

#[test]
fn who_holds_many_connections_keeps_nobody_from_the_server() {
    let (_folder, server, browser) = server(&[]);
    let idle: Vec<TcpStream> =
        (0..40).map(|_| TcpStream::connect(("127.0.0.1", browser.port)).expect("a connection")).collect();
    assert_eq!(server.client().show("PING"), "PONG");
    // Those who ask for nothing are cut, and others are served.
    let begun = Instant::now();
    loop {
        let stream = TcpStream::connect(("127.0.0.1", browser.port));
        let mut answer = Vec::new();
        if let Ok(mut stream) = stream
            && stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").is_ok()
        {
            let _ = stream.read_to_end(&mut answer);
        }
        if answer.starts_with(b"HTTP/1.1 200 ") {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "nobody is let in any more");
        thread::sleep(Duration::from_millis(200));
    }
    drop(idle);
    assert!(server.stop().status.success());
}

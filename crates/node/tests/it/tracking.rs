//! Stories of clients that cache what they read.

use group::ids::{NodeId, SessionId};
use node::settings::Settings;
use stdx::Duration;

use crate::host::Host;
use crate::{everywhere, settings};

/// A client that caches, on the first core, and another on the last.
fn caching(host: &mut Host, options: &str) -> [SessionId; 2] {
    let last = host.core_count() - 1;
    let [reader, writer] = [host.connect(0), host.connect(last)];
    host.run(reader, "HELLO 3");
    assert_eq!(host.run(reader, &format!("CLIENT TRACKING ON {options}")), "+OK", "{options}");
    [reader, writer]
}

/// What a client hears when only these keys have changed.
fn news(keys: &[&str]) -> String {
    let messages: Vec<_> = keys.iter().map(|key| format!(">2 $10 invalidate *1 ${} {key}", key.len())).collect();
    messages.join(" ")
}

#[test]
fn one_who_has_read_a_key_is_told_once_when_it_changes() {
    everywhere(|host| {
        let [reader, writer] = caching(host, "");
        for key in ["a", "b", "c", "d"] {
            host.run(writer, &format!("SET {key} 1"));
            assert_eq!(host.received(reader), "", "it has not been read");
            host.run(reader, &format!("GET {key}"));
            host.run(writer, &format!("INCR {key}"));
            assert_eq!(host.received(reader), news(&[key]));
            host.run(writer, &format!("INCR {key}"));
            assert_eq!(host.received(reader), "", "it has not been read again");
        }
    });
}

#[test]
fn what_changes_nothing_is_no_news() {
    everywhere(|host| {
        let [reader, writer] = caching(host, "");
        host.run(writer, "SET a 1");
        host.run(reader, "GET a");
        for line in ["SETNX a 2", "GET a", "INCR b", "EXPIRE none 10", "DEL none"] {
            host.run(writer, line);
            assert_eq!(host.received(reader), "", "{line}");
        }
        for line in ["EXPIRE a 100", "PERSIST a", "APPEND a x", "RENAME a z", "SET a 1", "DEL a"] {
            host.run(reader, "GET a");
            host.run(writer, line);
            assert_eq!(host.received(reader), news(&["a"]), "{line}");
        }
    });
}

#[test]
fn its_own_changes_are_told_behind_the_reply_unless_they_are_not_wanted() {
    everywhere(|host| {
        let [reader, _] = caching(host, "");
        host.run(reader, "SET a 1");
        host.run(reader, "GET a");
        assert_eq!(host.run(reader, "INCR a"), format!(":2 {}", news(&["a"])));
        host.run(reader, "GET a");
        for line in ["MULTI", "INCR a", "GET none"] {
            host.run(reader, line);
        }
        assert_eq!(host.run(reader, "EXEC").replace("$-1", "_"), format!("*2 :3 _ {}", news(&["a"])));
        let [reader, writer] = caching(host, "NOLOOP");
        host.run(reader, "GET a");
        assert_eq!(host.run(reader, "INCR a"), ":4");
        host.run(reader, "GET a");
        host.run(writer, "INCR a");
        assert_eq!(host.received(reader), news(&["a"]));
    });
}

#[test]
fn one_who_waited_reads_its_answer_before_the_news_of_it() {
    everywhere(|host| {
        let [reader, writer] = caching(host, "");
        host.run(reader, "LRANGE there{t} 0 -1");
        host.run(reader, "LRANGE here{t} 0 -1");
        assert_eq!(host.run(reader, "BLMOVE here{t} there{t} LEFT RIGHT 0"), "");
        host.run(writer, "RPUSH here{t} foo");
        let heard = host.received(reader);
        assert_eq!(heard.find("$3 foo"), Some(heard.find(&news(&["there{t}"])).expect("it is told") - 7), "{heard}");
        // While it only waits it is told at once.
        host.run(reader, "LRANGE other 0 -1");
        assert_eq!(host.run(reader, "BLMOVE here{t} there{t} LEFT RIGHT 0"), "");
        host.run(writer, "RPUSH other x");
        assert_eq!(host.received(reader), news(&["other"]));
    });
}

#[test]
fn reads_over_several_cores_and_in_transactions_are_remembered() {
    everywhere(|host| {
        let [reader, writer] = caching(host, "");
        host.run(writer, "MSET a 1 b 2 c 3 d 4");
        host.run(reader, "MGET a b c d");
        for key in ["a", "b", "c", "d"] {
            host.run(writer, &format!("INCR {key}"));
            assert_eq!(host.received(reader), news(&[key]));
        }
        for keys in [vec!["a"], vec!["a", "b", "c", "d"]] {
            host.run(reader, "MULTI");
            keys.iter().for_each(|key| {
                host.run(reader, &format!("GET {key}"));
            });
            host.run(reader, "EXEC");
            host.run(writer, "MSET a 1 b 2 c 3 d 4");
            let heard = host.received(reader);
            let mut heard: Vec<_> = heard.split(" >").map(|one| one.rsplit(' ').next().unwrap_or_default()).collect();
            heard.sort_unstable();
            assert_eq!(heard, keys);
        }
    });
}

#[test]
fn news_of_what_a_transaction_has_read_and_changed_comes_behind_its_reply() {
    everywhere(|host| {
        let [reader, writer] = caching(host, "");
        host.run(writer, "MSET a 1 b 1 c 1 d 1");
        for line in ["MULTI", "GET a", "INCR a", "PING", "INCR b", "INCR c", "INCR d", "EXEC"] {
            host.send(reader, format!("{line}\r\n").as_bytes());
            host.settle();
        }
        let heard = host.received(reader);
        let reply = heard.find("*6 $1 1 :2 +PONG :2 :2 :2").unwrap_or_else(|| panic!("{heard}"));
        assert!(heard.find(">2").is_none_or(|news| news > reply), "{heard}");
        host.run(reader, "MGET a b c d");
        let heard = host.run(reader, "FLUSHALL");
        assert_eq!(heard, "+OK >2 $10 invalidate _");
    });
}

#[test]
fn an_acknowledged_change_over_several_cores_has_been_told() {
    everywhere(|host| {
        let [reader, writer] = caching(host, "");
        host.run(writer, "MSET a 1 b 1 c 1 d 1");
        host.run(reader, "MGET a b c d");
        host.run(writer, "MSET a 2 b 2 c 2 d 2");
        assert_eq!(host.received(reader).matches("invalidate").count(), 4);
        assert!(host.run(writer, "INFO stats").contains("tracking_total_keys:0"));
        host.run(writer, "MSET a 3 b 3 c 3 d 3");
        assert_eq!(host.received(reader), "");
    });
}

#[test]
fn news_never_overtakes_the_value_it_replaces() {
    // The read waits behind a write of its own that the disk has not taken; the other client's write is kept before.
    let mut settings = Settings::default();
    settings.set("appendfsync", "always").unwrap();
    let mut host = Host::new(3, settings);
    let [reader, writer] = caching(&mut host, "");
    for key in 0..20 {
        host.run(writer, &format!("SET key{key} old"));
    }
    host.holds_disk = true;
    for key in 0..20 {
        host.send(reader, format!("SET own{key} x\r\nGET key{key}\r\n").as_bytes());
        host.settle();
        host.send(writer, format!("SET key{key} new\r\n").as_bytes());
    }
    host.settle();
    host.holds_disk = false;
    host.settle();
    let heard = host.received(reader);
    for key in 0..20 {
        let changed = heard
            .find(&format!("{} ", news(&[&format!("key{key}")])))
            .or_else(|| heard.find(&news(&[&format!("key{key}")])));
        if let Some(changed) = changed {
            // The reply to its GET is the 2·key+1st; what stands before the news must hold it.
            let replies = heard[..changed].matches("$3 ").count();
            assert!(replies > key, "news of key{key} before its value: {heard}");
        }
    }
}

#[test]
fn a_change_is_answered_when_the_cores_of_those_who_cache_it_have_the_news() {
    for options in ["", "BCAST", "BCAST NOLOOP", "REDIRECT"] {
        let mut host = Host::new(4, settings("no"));
        let [reader, listener, writer] = [host.connect(0), host.connect(3), host.connect(2)];
        [reader, listener].into_iter().for_each(|client| assert!(host.run(client, "HELLO 3").starts_with('%')));
        let id = host.run(listener, "CLIENT ID").trim_start_matches(':').to_owned();
        let (options, held, told) = match options {
            "REDIRECT" => (format!("REDIRECT {id}"), 3, listener),
            options => (options.to_owned(), 0, reader),
        };
        host.run(listener, "SUBSCRIBE __redis__:invalidate");
        assert_eq!(host.run(reader, &format!("CLIENT TRACKING ON {options}")), "+OK");
        for key in 0..12 {
            host.run(writer, &format!("SET key{key} 1"));
            host.run(reader, &format!("GET key{key}"));
            host.received(told);
            host.send(writer, format!("SET key{key} 2\r\n").as_bytes());
            for _ in 0..5 {
                (0..4).filter(|core| *core != held).for_each(|core| host.turn_core(core));
            }
            let mut heard = String::new();
            while heard.is_empty() {
                assert_eq!(host.received(writer), "", "{options}: key{key} has not been told");
                host.turn_core(held);
                heard = host.received(told);
                (0..4).filter(|core| *core != held).for_each(|core| host.turn_core(core));
            }
            assert_eq!(heard, news(&[&format!("key{key}")]), "{options}");
            host.settle();
            assert_eq!(host.received(writer), "+OK");
            // Of what nobody has read nobody has to hear.
            if options.is_empty() {
                host.send(writer, format!("SET other{key} 2\r\n").as_bytes());
                for _ in 0..5 {
                    (1..4).for_each(|core| host.turn_core(core));
                }
                let is_far = host.received(writer).is_empty();
                host.settle();
                assert_eq!(host.received(writer).is_empty(), !is_far);
            }
        }
    }
}

#[test]
fn those_who_broadcast_are_told_of_all_keys_with_their_prefixes_at_once() {
    everywhere(|host| {
        let [all, writer] = caching(host, "BCAST");
        let [some, _] = caching(host, "BCAST PREFIX a: PREFIX b:");
        host.run(writer, "MSET a:{t}1 1 a:{t}2 1 b:{t}1 1 c:{t}1 1");
        assert_eq!(host.received(all), ">2 $10 invalidate *4 $6 a:{t}1 $6 a:{t}2 $6 b:{t}1 $6 c:{t}1");
        assert_eq!(host.received(some), ">2 $10 invalidate *2 $6 a:{t}1 $6 a:{t}2 >2 $10 invalidate *1 $6 b:{t}1");
        host.run(some, "CLIENT TRACKING ON BCAST PREFIX c:");
        host.run(writer, "SET c:x 1");
        assert_eq!(host.received(some), news(&["c:x"]));
        let told = host.run(writer, "INFO");
        assert!(told.contains("tracking_clients:2") && told.contains("tracking_total_prefixes:4"), "{told}");
        host.run(some, "CLIENT TRACKING OFF");
        host.run(writer, "SET c:x 2");
        assert_eq!(host.received(some), "");
        let [other, _] = caching(host, "BCAST NOLOOP");
        assert_eq!(host.run(other, "SET own 1"), "+OK");
        host.run(writer, "SET other 1");
        assert_eq!(host.received(other), news(&["other"]));
    });
}

#[test]
fn a_client_may_opt_in_or_out_of_single_commands() {
    everywhere(|host| {
        let [opting, writer] = caching(host, "OPTIN");
        host.run(writer, "MSET a 1 b 1");
        host.run(opting, "GET a");
        host.run(writer, "INCR a");
        assert_eq!(host.received(opting), "");
        assert_eq!(host.run(opting, "CLIENT CACHING YES"), "+OK");
        assert!(host.run(opting, "CLIENT TRACKINGINFO").contains("caching-yes"));
        host.run(opting, "GET a");
        host.run(opting, "GET b");
        host.run(writer, "INCR a");
        host.run(writer, "INCR b");
        assert_eq!(host.received(opting), news(&["a"]));
        let [out, _] = caching(host, "OPTOUT");
        host.run(out, "CLIENT CACHING NO");
        host.run(out, "GET a");
        host.run(out, "GET b");
        host.run(writer, "INCR a");
        host.run(writer, "INCR b");
        assert_eq!(host.received(out), news(&["b"]));
        assert!(host.run(out, "CLIENT CACHING YES").contains("only valid when tracking is enabled in OPTIN mode"));
    });
}

#[test]
fn news_can_go_to_another_connection() {
    everywhere(|host| {
        let last = host.core_count() - 1;
        let [reader, listener, writer] = [host.connect(0), host.connect(last), host.connect(0)];
        let id = host.run(listener, "CLIENT ID").trim_start_matches(':').to_owned();
        host.run(listener, "SUBSCRIBE __redis__:invalidate");
        assert_eq!(host.run(reader, &format!("CLIENT TRACKING ON REDIRECT {id}")), "+OK");
        assert_eq!(host.run(reader, "CLIENT GETREDIR"), format!(":{id}"));
        host.run(writer, "SET a 1");
        host.run(reader, "GET a");
        host.run(writer, "INCR a");
        assert_eq!(host.received(reader), "");
        assert_eq!(host.received(listener), "*3 $7 message $20 __redis__:invalidate *1 $1 a");
        host.run(writer, "FLUSHALL");
        assert_eq!(host.received(listener), "*3 $7 message $20 __redis__:invalidate $-1");
        // When that is gone, a RESP3 client is told so.
        host.run(reader, "HELLO 3");
        host.run(writer, "SET a 1");
        host.run(reader, "GET a");
        host.run(listener, "QUIT");
        host.run(writer, "INCR a");
        assert_eq!(host.received(reader), format!(">2 $21 tracking-redir-broken :{id}"));
        let told = host.run(reader, "CLIENT TRACKINGINFO");
        assert!(told.contains("broken_redirect"), "{told}");
        let text = "-ERR The client ID you want redirect to does not exist";
        assert_eq!(host.run(writer, &format!("CLIENT TRACKING ON REDIRECT {id}")), text);
    });
}

#[test]
fn expiry_eviction_and_flushes_are_news() {
    everywhere(|host| {
        let [reader, writer] = caching(host, "");
        host.run(writer, "SET a 1 PX 50");
        host.run(reader, "GET a");
        host.pass(Duration::from_millis(400));
        assert_eq!(host.received(reader), news(&["a"]));
        host.run(writer, "MSET a 1 b 2 c 3");
        host.run(reader, "MGET a b c");
        for flush in ["FLUSHALL", "FLUSHDB"] {
            host.run(writer, flush);
            assert_eq!(host.received(reader), ">2 $10 invalidate _", "{flush}");
        }
        let told = host.run(writer, "INFO stats");
        assert!(told.contains("tracking_total_keys:0 tracking_total_items:0"), "{told}");
    });
}

#[test]
fn a_field_that_expires_is_news() {
    everywhere(|host| {
        let [reader, writer] = caching(host, "");
        host.run(writer, "HSET a f 1 g 2");
        host.run(writer, "HSETEX b PX 50 FIELDS 1 f 1");
        host.run(writer, "HPEXPIRE a 50 FIELDS 1 f");
        host.run(reader, "HGETALL a");
        host.run(reader, "HGET b f");
        assert_eq!(host.received(reader), "");
        host.pass(Duration::from_millis(300));
        let told = host.received(reader);
        assert!(told.contains(&news(&["a"])) && told.contains(&news(&["b"])), "{told}");
    });
}

#[test]
fn what_is_remembered_is_bounded() {
    everywhere(|host| {
        let [reader, writer] = caching(host, "");
        for key in 0..90 {
            host.run(writer, &format!("SET key{key} 1"));
            host.run(reader, &format!("GET key{key}"));
        }
        assert!(host.run(writer, "INFO stats").contains("tracking_total_keys:90"));
        host.run(writer, "CONFIG SET tracking-table-max-keys 30");
        host.settle();
        let told = host.received(reader).matches("invalidate").count();
        assert!((60..=80).contains(&told), "{told} forgotten");
        let kept = 90 - told;
        assert!(host.run(writer, "INFO stats").contains(&format!("tracking_total_keys:{kept}")));
    });
}

#[test]
fn nothing_is_noted_when_nobody_tracks_any_more() {
    everywhere(|host| {
        let [reader, writer] = caching(host, "");
        host.run(writer, "SET a 1");
        host.run(reader, "GET a");
        assert!(host.run(writer, "INFO clients").contains("tracking_clients:1"));
        assert!(host.run(writer, "CLIENT LIST").contains("flags=t "));
        host.run(reader, "QUIT");
        let told = host.run(writer, "INFO");
        assert!(told.contains("tracking_clients:0") && told.contains("tracking_total_keys:0"), "{told}");
    });
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let mut host = Host::new(1, Settings::default());
    let client = host.connect(0);
    for (options, why) in [
        ("ON PREFIX a", "ERR PREFIX option requires BCAST mode to be enabled"),
        ("ON BCAST OPTIN", "ERR OPTIN and OPTOUT are not compatible with BCAST"),
        ("ON OPTIN OPTOUT", "ERR You can't specify both OPTIN mode and OPTOUT mode"),
        ("ON REDIRECT 1 REDIRECT 1", "ERR A client can only redirect to a single other client"),
        ("ON REDIRECT 999", "ERR The client ID you want redirect to does not exist"),
        ("ON REDIRECT x", "ERR value is not an integer or out of range"),
        ("MAYBE", "ERR syntax error"),
        ("ON NONSENSE", "ERR syntax error"),
        (
            "ON BCAST PREFIX ab PREFIX a",
            "ERR Prefix 'ab' overlaps with another provided prefix 'a'. Prefixes for a single client must not overlap.",
        ),
    ] {
        assert_eq!(host.run(client, &format!("CLIENT TRACKING {options}")), format!("-{why}"), "{options}");
    }
    host.run(client, "CLIENT TRACKING ON BCAST PREFIX ab");
    assert!(host.run(client, "CLIENT TRACKING ON").starts_with("-ERR You can't switch BCAST mode on/off"));
    assert!(host.run(client, "CLIENT TRACKING ON BCAST PREFIX a").contains("overlaps with an existing prefix 'ab'"));
    host.run(client, "CLIENT TRACKING OFF");
    host.run(client, "CLIENT TRACKING ON OPTIN");
    assert!(host.run(client, "CLIENT TRACKING ON OPTOUT").starts_with("-ERR You can't switch OPTIN/OPTOUT mode"));
    assert_eq!(host.run(client, "RESET"), "+RESET");
    assert_eq!(host.run(client, "CLIENT GETREDIR"), ":-1");
}

/// Three nodes on one thread, each of two cores.
struct Trio {
    hosts: Vec<Host>,
}

impl Trio {
    fn new() -> Self {
        let nodes = [1, 2, 3];
        let hosts = nodes.iter().map(|node| Host::of_nodes(2, Settings::default(), *node, &nodes)).collect();
        let mut trio = Self { hosts };
        // Until every group has a leader.
        for _ in 0..40 {
            trio.pass(Duration::from_millis(100));
        }
        trio
    }

    fn settle(&mut self) {
        self.settle_but(|_, _, _| false);
    }

    /// What is lost goes from a node to a node, and begins with its kind.
    fn settle_but(&mut self, mut is_lost: impl FnMut(usize, usize, u8) -> bool) {
        for _ in 0..24 {
            for place in 0..self.hosts.len() {
                self.hosts[place].settle();
                let from = NodeId(place as u64 + 1);
                for (to, group, bytes) in std::mem::take(&mut self.hosts[place].sent) {
                    let other = to.0 as usize - 1;
                    if !is_lost(place, other, bytes[0]) {
                        self.hosts[other].hear(from, group, &bytes);
                    }
                }
            }
        }
    }

    /// So much time passes, and nothing comes to a node or from it.
    fn cut_off(&mut self, node: usize, duration: Duration) {
        let step = Duration::from_millis(100);
        for _ in 0..duration.as_millis() / 100 {
            self.hosts.iter_mut().for_each(|host| host.pass(step));
            self.settle_but(|from, to, _| from == node || to == node);
        }
    }

    /// A client of a node that caches, and another.
    fn caching(&mut self, node: usize, options: &str) -> [(usize, SessionId); 2] {
        let [reader, other] = [0, 1].map(|core| (node, self.hosts[node].connect(core)));
        self.run(reader, "HELLO 3");
        assert_eq!(self.run(reader, &format!("CLIENT TRACKING ON {options}")), "+OK");
        [reader, other]
    }

    fn pass(&mut self, duration: Duration) {
        self.hosts.iter_mut().for_each(|host| host.pass(duration));
        self.settle();
    }

    fn run(&mut self, (node, session): (usize, SessionId), line: &str) -> String {
        self.hosts[node].send(session, format!("{line}\r\n").as_bytes());
        self.settle();
        self.hosts[node].received(session)
    }
}

#[test]
fn changes_on_any_node_are_told_on_every_node() {
    let mut trio = Trio::new();
    for node in 0..3 {
        for core in 0..2 {
            let reader = (node, trio.hosts[node].connect(core));
            let own = (node, trio.hosts[node].connect(1 - core));
            let other = ((node + 1) % 3, trio.hosts[(node + 1) % 3].connect(0));
            assert_eq!(trio.run(own, "MSET a 1 b 1 c 1 d 1"), "+OK");
            assert!(trio.run(reader, "HELLO 3").starts_with('%'));
            assert_eq!(trio.run(reader, "CLIENT TRACKING ON NOLOOP"), "+OK");
            for (key, writer) in ["a", "b", "c", "d"].into_iter().flat_map(|key| [(key, own), (key, other)]) {
                assert_eq!(trio.run(reader, &format!("GET {key}")).split(' ').next(), Some("$1"));
                let value = trio.run(writer, &format!("INCR {key}"));
                assert_eq!(trio.hosts[node].received(reader.1), news(&[key]));
                trio.run(writer, &format!("INCR {key}"));
                assert_eq!(trio.hosts[node].received(reader.1), "", "it has not been read again since {value}");
            }
            for exec in [true, false] {
                if exec {
                    for line in ["MULTI", "GET a", "GET b", "GET c", "GET d", "EXEC"] {
                        trio.run(reader, line);
                    }
                } else {
                    trio.run(reader, "MGET a b c d");
                }
                trio.run(other, "MSET a 1 b 1 c 1 d 1");
                assert_eq!(trio.hosts[node].received(reader.1).matches("invalidate").count(), 4);
            }
            trio.run(other, "FLUSHALL");
            assert_eq!(trio.hosts[node].received(reader.1), ">2 $10 invalidate _");
            trio.run(reader, "QUIT");
        }
    }
}

#[test]
fn a_change_that_overtakes_a_reply_of_another_node_is_told_again_behind_it() {
    for options in ["", "BCAST"] {
        let mut trio = Trio::new();
        let mut late_count = 0;
        for (key, writing) in ["a", "b", "c", "d"].into_iter().flat_map(|key| [(key, 1), (key, 2)]) {
            let reader = (0, trio.hosts[0].connect(0));
            let writer = (writing, trio.hosts[writing].connect(0));
            trio.run(writer, &format!("SET {key} old"));
            trio.run(reader, "HELLO 3");
            trio.run(reader, &format!("CLIENT TRACKING ON {options}"));
            // The request comes to the leader; the answer does not come back before the change.
            trio.hosts[0].send(reader.1, format!("GET {key}\r\n").as_bytes());
            trio.hosts[0].settle();
            let mut late = Vec::new();
            for _ in 0..6 {
                for place in 0..3 {
                    trio.hosts[place].settle();
                    let from = NodeId(place as u64 + 1);
                    for (to, group, bytes) in std::mem::take(&mut trio.hosts[place].sent) {
                        if to == NodeId(1) && String::from_utf8_lossy(&bytes).contains("$3\r\nold") {
                            late.push((from, group, bytes));
                        } else {
                            trio.hosts[to.0 as usize - 1].hear(from, group, &bytes);
                        }
                    }
                }
            }
            if late.is_empty() {
                continue; // it is led here
            }
            late_count += late.len();
            assert_eq!(trio.hosts[0].received(reader.1), "");
            assert_eq!(trio.run(writer, &format!("SET {key} new")), "+OK");
            for (leader, group, bytes) in late {
                trio.hosts[0].hear(leader, group, &bytes);
            }
            trio.settle();
            let heard = trio.hosts[0].received(reader.1);
            assert!(heard.ends_with(&format!("$3 old {}", news(&[key]))), "{options}: {heard}");
            trio.run(reader, "QUIT");
        }
        assert!(late_count > 0, "no group is led elsewhere");
    }
}

#[test]
fn a_client_of_a_cluster_is_not_told_of_its_own_changes_unless_it_wants_to_be() {
    for options in ["NOLOOP", "BCAST NOLOOP", ""] {
        let mut trio = Trio::new();
        for node in 0..3 {
            let [reader, _] = trio.caching(node, options);
            let own = |reply: &str, keys: &[&str]| match options {
                "" => format!("{reply} {}", news(keys)),
                _ => reply.to_owned(),
            };
            for key in ["a", "b", "c", "d"] {
                trio.run(reader, &format!("DEL {key}"));
                trio.run(reader, &format!("GET {key}"));
                assert_eq!(trio.run(reader, &format!("INCR {key}")), own(":1", &[key]), "{options}");
                trio.run(reader, &format!("GET {key}"));
                let script = format!("EVAL \"return redis.call('incr', KEYS[1])\" 1 {key}");
                assert_eq!(trio.run(reader, &script), own(":2", &[key]), "{options}");
            }
            trio.run(reader, "MGET a b c d");
            let heard = trio.run(reader, "MSET a 1 b 1 c 1 d 1");
            assert!(heard.starts_with("+OK"), "{heard}");
            assert_eq!(heard.matches("invalidate").count(), if options.is_empty() { 4 } else { 0 }, "{heard}");
            trio.run(reader, "QUIT");
        }
    }
}

#[test]
fn a_change_that_another_node_leads_is_answered_behind_the_news_of_it() {
    const RAFT: u8 = 1;
    const REQUEST: u8 = 2;
    let mut trio = Trio::new();
    let [reader, writer] = trio.caching(0, "");
    let mut late_count = 0;
    for key in ["a", "b", "c", "d"] {
        trio.run(writer, &format!("SET {key} 1"));
        trio.run(reader, &format!("GET {key}"));
        trio.hosts[0].send(writer.1, format!("INCR {key}\r\n").as_bytes());
        trio.hosts[0].settle();
        let is_led_here = trio.hosts[0].sent.iter().all(|(.., bytes)| bytes[0] != REQUEST);
        trio.settle_but(|_, to, kind| to == 0 && kind == RAFT && !is_led_here);
        if !is_led_here {
            assert_eq!(trio.hosts[0].received(reader.1), "");
            assert_eq!(trio.hosts[0].received(writer.1), "");
            late_count += 1;
            // The replica hears of it after all, or does not for long.
            if late_count % 2 == 1 {
                (0..5).for_each(|_| trio.pass(Duration::from_millis(100)));
                assert_eq!(trio.hosts[0].received(reader.1), news(&[key]));
            } else {
                for _ in 0..11 {
                    trio.hosts.iter_mut().for_each(|host| host.pass(Duration::from_millis(100)));
                    trio.settle_but(|_, to, kind| to == 0 && kind == RAFT);
                }
                assert!(trio.hosts[0].received(reader.1).contains(">2 $10 invalidate _"));
                trio.pass(Duration::from_secs(1));
            }
        }
        assert_eq!(trio.hosts[0].received(writer.1), ":2");
        trio.hosts[0].received(reader.1);
    }
    assert!(late_count > 1, "no group is led elsewhere");
}

#[test]
fn a_node_without_touch_tells_its_clients_to_forget_what_they_have_read() {
    let mut trio = Trio::new();
    let [reader, _] = trio.caching(0, "");
    let [broadcast, _] = trio.caching(0, "BCAST PREFIX none:");
    trio.run(reader, "MGET a b c d");
    trio.cut_off(0, Duration::from_secs(3));
    for client in [reader, broadcast] {
        assert!(trio.hosts[0].received(client.1).contains(">2 $10 invalidate _"), "it has been cut off");
    }
    for _ in 0..30 {
        trio.pass(Duration::from_millis(100));
    }
    for client in [reader, broadcast] {
        assert!(trio.hosts[0].received(client.1).contains(">2 $10 invalidate _"), "it is back");
    }
}

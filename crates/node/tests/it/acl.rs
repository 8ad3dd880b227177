//! Stories of users and what they may do.

use group::ids::SessionId;
use node::event::Peer;
use node::settings::Settings;
use stdx::Duration;

use crate::everywhere;
use crate::host::Host;

/// An administrator and a user named `worker` with these rules, on different cores if there are several.
fn worker(host: &mut Host, rules: &str) -> [SessionId; 2] {
    let last = host.core_count() - 1;
    let [admin, worker] = [host.connect(0), host.connect(last)];
    assert_eq!(host.run(admin, &format!("ACL SETUSER worker on >secret {rules}")), "+OK", "{rules}");
    assert_eq!(host.run(worker, "AUTH worker secret"), "+OK");
    [admin, worker]
}

const NO_KEY: &str = "-NOPERM No permissions to access a key";
const NO_CHANNEL: &str = "-NOPERM No permissions to access a channel";

fn no_command(name: &str) -> String {
    format!("-NOPERM User worker has no permissions to run the '{name}' command")
}

/// The bulk string that is a reply's only word.
fn text(reply: &str) -> &str {
    reply.split_once(' ').map_or("", |(_, text)| text)
}

#[test]
fn a_connection_begins_as_the_default_user_who_may_do_everything() {
    everywhere(|host| {
        let client = host.connect(0);
        assert_eq!(host.run(client, "ACL WHOAMI"), "$7 default");
        assert_eq!(host.run(client, "ACL LIST"), "*1 $51 user default on nopass sanitize-payload ~* &* +@all");
        assert_eq!(host.run(client, "ACL USERS"), "*1 $7 default");
        assert!(host.run(client, "CLIENT INFO").contains(" user=default "));
    });
}

#[test]
fn a_new_user_may_do_nothing_and_learns_by_rules() {
    everywhere(|host| {
        let [admin, worker] = worker(host, "");
        assert_eq!(host.run(worker, "ACL WHOAMI"), no_command("acl|whoami"));
        assert_eq!(host.run(worker, "GET a"), no_command("get"));
        assert_eq!(host.run(worker, "CONFIG GET port"), no_command("config|get"));
        host.run(admin, "ACL SETUSER worker +get +set");
        assert_eq!(host.run(worker, "GET a"), NO_KEY);
        host.run(admin, "ACL SETUSER worker ~a ~b:*");
        assert_eq!(host.run(worker, "SET a 1"), "+OK");
        assert_eq!(host.run(worker, "SET b:1 1"), "+OK");
        assert_eq!(host.run(worker, "SET c 1"), NO_KEY);
        assert_eq!(host.run(worker, "MSET a 1 b:2 2"), no_command("mset"));
        host.run(admin, "ACL SETUSER worker +mset");
        assert_eq!(host.run(worker, "MSET a 1 c 2"), NO_KEY);
        assert_eq!(host.run(worker, "MSET a 1 b:2 2"), "+OK");
        host.run(admin, "ACL SETUSER worker -set");
        assert_eq!(host.run(worker, "SET a 1"), no_command("set"));
    });
}

#[test]
fn passwords_are_kept_as_digests_and_compared() {
    everywhere(|host| {
        let (admin, client) = (host.connect(0), host.connect(0));
        let wrong = "-WRONGPASS invalid username-password pair or user is disabled.";
        host.run(admin, "ACL SETUSER u >one +@all");
        assert_eq!(host.run(client, "AUTH u one"), wrong, "off");
        host.run(admin, "ACL SETUSER u on >two");
        assert_eq!(host.run(client, "AUTH u one"), "+OK");
        assert_eq!(host.run(client, "AUTH u two"), "+OK");
        assert_eq!(host.run(client, "AUTH u three"), wrong);
        assert_eq!(host.run(client, "AUTH nobody one"), wrong);
        host.run(admin, "ACL SETUSER u <one");
        assert_eq!(host.run(client, "AUTH u one"), wrong);
        // The digest of `three`.
        let digest = "8b5b9db0c13db24256c829aa364aa90c6d2eba318b9232a4ab9313b954d3555f";
        assert_eq!(host.run(admin, &format!("ACL SETUSER u #{digest}")), "+OK");
        assert_eq!(host.run(client, "AUTH u three"), "+OK");
        assert!(host.run(admin, "ACL GETUSER u").contains(digest));
        assert_eq!(host.run(admin, &format!("ACL SETUSER u !{digest}")), "+OK");
        assert_eq!(host.run(client, "AUTH u three"), wrong);
        assert!(host.run(admin, "ACL SETUSER u #123").contains("must be exactly 64 characters"));
        assert!(host.run(admin, "ACL SETUSER u <four").ends_with("trying to remove from the user does not exist"));
        host.run(admin, "ACL SETUSER u nopass");
        assert_eq!(host.run(client, "AUTH u anything"), "+OK");
        host.run(admin, "ACL SETUSER u resetpass");
        assert_eq!(host.run(client, "AUTH u anything"), wrong);
    });
}

#[test]
fn patterns_tell_reading_from_writing() {
    everywhere(|host| {
        let [admin, worker] = worker(host, "+@all %R~r:* %W~w:* ~rw:*");
        host.run(admin, "MSET r:1 1 w:1 1 rw:1 1");
        assert_eq!(host.run(worker, "GET r:1"), "$1 1");
        assert_eq!(host.run(worker, "SET r:1 2"), NO_KEY);
        assert_eq!(host.run(worker, "SET w:1 2"), "+OK");
        assert_eq!(host.run(worker, "GET w:1"), NO_KEY);
        // SET with GET reads as well.
        assert_eq!(host.run(worker, "SET w:1 2 GET"), NO_KEY);
        assert_eq!(host.run(worker, "SET rw:1 2 GET"), "$1 1");
        assert_eq!(host.run(worker, "COPY r:1 w:2"), ":1");
        assert_eq!(host.run(worker, "COPY w:1 r:2"), NO_KEY);
        assert_eq!(host.run(worker, "BITFIELD r:1 GET u8 0"), "*1 :49");
        assert_eq!(host.run(worker, "BITFIELD r:1 SET u8 0 1"), NO_KEY);
        // That a key exists is no secret to those who may do anything with it.
        assert_eq!(host.run(worker, "EXISTS w:1"), ":1");
    });
}

#[test]
fn one_selector_must_allow_all_of_a_command() {
    everywhere(|host| {
        let [admin, worker] = worker(host, "+get ~a (+set +mset ~b ~d) (%R~c +@read)");
        host.run(admin, "MSET a 1 b 1 c 1");
        assert_eq!(host.run(worker, "GET a"), "$1 1");
        assert_eq!(host.run(worker, "SET b 2"), "+OK");
        assert_eq!(host.run(worker, "SET a 2"), NO_KEY);
        assert_eq!(host.run(worker, "GET c"), "$1 1");
        assert_eq!(host.run(worker, "MGET a c"), NO_KEY);
        assert_eq!(host.run(worker, "MSET b 1 d 1"), "+OK");
        assert_eq!(host.run(worker, "DEL b"), no_command("del"));
        let described = host.run(admin, "ACL LIST");
        assert!(described.contains("~a resetchannels -@all +get (~b ~d resetchannels -@all"), "{described}");
        host.run(admin, "ACL SETUSER worker clearselectors");
        assert_eq!(host.run(worker, "SET b 2"), no_command("set"));
        let unmatched = "-ERR Unmatched parenthesis in acl selector starting at '(+get'.";
        assert_eq!(host.run(admin, "ACL SETUSER worker (+get ~x"), unmatched);
    });
}

#[test]
fn channels_have_patterns_too() {
    everywhere(|host| {
        let [admin, worker] = worker(host, "+@pubsub &news:* &exact");
        assert_eq!(host.run(worker, "PUBLISH news:1 x"), ":0");
        assert_eq!(host.run(worker, "PUBLISH other x"), NO_CHANNEL);
        assert_eq!(host.run(worker, "SPUBLISH other x"), NO_CHANNEL);
        assert_eq!(host.run(worker, "SUBSCRIBE news:1 other"), NO_CHANNEL);
        assert_eq!(host.run(worker, "PSUBSCRIBE news:1*"), NO_CHANNEL, "a pattern counts as it stands");
        assert_eq!(host.run(worker, "PSUBSCRIBE news:*"), "*3 $10 psubscribe $6 news:* :1");
        assert_eq!(host.run(worker, "SUBSCRIBE exact"), "*3 $9 subscribe $5 exact :2");
        assert_eq!(host.run(worker, "UNSUBSCRIBE other"), "*3 $11 unsubscribe $5 other :2");
        // More changes nothing for a client that listens; less ends the connection.
        host.run(admin, "ACL SETUSER worker &more");
        assert_eq!(host.run(admin, "PUBLISH exact x"), ":1");
        host.run(admin, "ACL SETUSER worker resetchannels &news:*");
        assert_eq!(host.run(admin, "PUBLISH exact x"), ":0");
    });
}

#[test]
fn subcommands_and_first_arguments_are_allowed_one_by_one() {
    everywhere(|host| {
        let [admin, worker] = worker(host, "-@all +client|id +config|get +select|0 +client|setname");
        assert!(host.run(worker, "CLIENT ID").starts_with(':'));
        assert_eq!(host.run(worker, "CLIENT LIST"), no_command("client|list"));
        assert!(host.run(worker, "CONFIG GET port").starts_with("*2"));
        assert_eq!(host.run(worker, "CONFIG SET port 1"), no_command("config|set"));
        assert_eq!(host.run(worker, "SELECT 0"), "+OK");
        assert_eq!(host.run(worker, "SELECT 1"), no_command("select"));
        host.run(admin, "ACL SETUSER worker +client -client|kill");
        assert!(host.run(worker, "CLIENT LIST").contains("user=worker"));
        assert_eq!(host.run(worker, "CLIENT KILL ID 1"), no_command("client|kill"));
        let described = host.run(admin, "ACL GETUSER worker");
        assert!(described.contains("+select|0"), "{described}");
        for (rule, why) in [
            ("+nosuch", "Unknown command or category name in ACL"),
            ("+@nosuch", "Unknown command or category name in ACL"),
            ("-select|0", "Unknown command or category name in ACL"),
            ("+config|nosuch", "Unknown command or category name in ACL"),
            ("+config|get|port", "Allowing first-arg of a subcommand is not supported"),
            ("+select|", "Syntax error"),
            ("nosuch", "Syntax error"),
            ("%~a", "Syntax error"),
            ("%RX~a", "Syntax error"),
        ] {
            let expected = format!("-ERR Error in ACL SETUSER modifier '{rule}': {why}");
            assert_eq!(host.run(admin, &format!("ACL SETUSER worker {rule}")), expected);
        }
    });
}

#[test]
fn rules_apply_all_or_none() {
    everywhere(|host| {
        let admin = host.connect(0);
        host.run(admin, "ACL SETUSER u on +get ~a");
        let before = host.run(admin, "ACL LIST");
        assert!(host.run(admin, "ACL SETUSER u +set ~b nonsense").starts_with("-ERR Error in ACL SETUSER modifier"));
        assert_eq!(host.run(admin, "ACL LIST"), before);
        assert!(host.run(admin, "ACL SETUSER u allkeys ~x").contains("Try 'resetkeys'"));
        assert!(host.run(admin, "ACL SETUSER u allchannels &x").contains("Try 'resetchannels'"));
        assert_eq!(host.run(admin, "ACL SETUSER \"a b\" on"), "-ERR Usernames can't contain spaces or null characters");
    });
}

#[test]
fn every_described_user_can_be_made_again_from_the_description() {
    let mut host = Host::new(1, Settings::default());
    let admin = host.connect(0);
    for (number, rules) in [
        "+@all -@dangerous +keys ~* &*",
        "-@all +@read +@string -get ~a",
        "+@all -client|kill -config -debug",
        "+@read +@write -@string +client|id +select|0",
        "allcommands allkeys allchannels nopass",
        "on >pw %R~a %W~b ~c &ch (+get ~x) (+@all -set %RW~y)",
        "reset",
        "+@admin -acl|list skip-sanitize-payload",
    ]
    .iter()
    .enumerate()
    {
        host.run(admin, &format!("ACL SETUSER a{number} {rules}"));
        let list = host.run(admin, "ACL LIST");
        let marker = format!("user a{number} ");
        let line = list.split(&marker).nth(1).expect("it is listed");
        let line = line.split(" $").next().expect("up to the next");
        host.run(admin, &format!("ACL SETUSER b{number} {line}"));
        let list = host.run(admin, "ACL LIST");
        assert!(list.contains(&format!("user b{number} {line}")), "{rules}: {line}\n{list}");
        host.run(admin, &format!("ACL DELUSER a{number} b{number}"));
    }
}

#[test]
fn rules_are_told_in_the_order_in_which_they_were_given() {
    let mut host = Host::new(1, Settings::default());
    let admin = host.connect(0);
    // As Redis 7.4 tells them, which was asked.
    for (rules, told) in [
        ("reset +@set +@hash -@geo +get -hset", "-@all +@set +@hash -@geo +get -hset"),
        ("+HSET", "-@all +@set +@hash -@geo +get +hset"),
        ("-get +@all", "+@all"),
        ("-@dangerous +flushall +config|get -config", "+@all -@dangerous +flushall -config"),
        ("+config", "+@all -@dangerous +flushall +config"),
        ("reset +@read +get -get -@read +get +@read +client|list +client", "-@all +get +@read +client"),
        ("-@all", "-@all"),
        ("reset +select|0 +select|1 +config|get", "-@all +select|0 +select|1 +config|get"),
        ("reset +select|0 +select|1 +select|0", "-@all +select|1 +select|0"),
    ] {
        assert_eq!(host.run(admin, &format!("ACL SETUSER u {rules}")), "+OK", "{rules}");
        let list = host.run(admin, "ACL LIST");
        assert!(
            list.contains(&format!("resetchannels {told} $")) || list.ends_with(&format!("resetchannels {told}")),
            "{rules}: {list}"
        );
    }
    assert!(host.run(admin, "ACL SETUSER u \"+select|a b\"").contains("Syntax error"));
}

#[test]
fn categories_hold_what_the_records_say() {
    let mut host = Host::new(1, Settings::default());
    let client = host.connect(0);
    let categories = host.run(client, "ACL CAT");
    assert!(categories.starts_with("*27 $8 keyspace $4 read $5 write $3 set"), "{categories}");
    let scripting = host.run(client, "ACL CAT pubsub");
    assert!(scripting.contains("$9 subscribe") && scripting.contains("$15 pubsub|channels"), "{scripting}");
    assert!(!scripting.contains("$3 get"), "{scripting}");
    assert_eq!(host.run(client, "ACL CAT nosuch"), "-ERR Unknown category 'nosuch'");
}

#[test]
fn a_removed_user_is_ended_and_the_default_user_stays() {
    everywhere(|host| {
        let [admin, worker] = worker(host, "+@all ~*");
        assert_eq!(host.run(admin, "ACL DELUSER default"), "-ERR The 'default' user cannot be removed");
        assert_eq!(host.run(admin, "ACL DELUSER worker nobody"), ":1");
        assert_eq!(host.run(worker, "PING"), "");
        assert!(!host.run(admin, "CLIENT LIST").contains("user=worker"));
        assert_eq!(host.run(admin, "ACL GETUSER worker"), "$-1");
    });
}

#[test]
fn one_who_removes_itself_still_reads_the_answer() {
    everywhere(|host| {
        let [admin, worker] = worker(host, "+@all ~*");
        assert_eq!(host.run(worker, "ACL DELUSER worker"), ":1");
        assert_eq!(host.run(worker, "PING"), "");
        assert!(!host.run(admin, "CLIENT LIST").contains("user=worker"));
    });
}

#[test]
fn a_transaction_is_refused_when_queued_and_looked_at_again_when_executed() {
    everywhere(|host| {
        let [admin, worker] = worker(host, "+@all ~a ~b");
        host.run(worker, "MULTI");
        assert_eq!(host.run(worker, "SET c 1"), NO_KEY);
        assert!(host.run(worker, "EXEC").starts_with("-EXECABORT"));
        for line in ["MULTI", "SET a 1", "SET b 2", "PING", "GET a"] {
            host.run(worker, line);
        }
        host.run(admin, "ACL SETUSER worker resetkeys ~a");
        let refusal = "-NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. \
                       This command is no longer allowed for the following reason: no permission to touch the specified \
                       keys";
        assert_eq!(host.run(worker, "EXEC"), format!("*4 +OK {refusal} +PONG $1 1"));
        assert_eq!(host.run(admin, "GET b"), "$-1");
    });
}

#[test]
fn the_log_tells_what_was_denied() {
    everywhere(|host| {
        let [admin, worker] = worker(host, "+get +multi +exec +discard ~a");
        for line in ["SET a 1", "GET b", "GET b", "AUTH worker wrong"] {
            host.run(worker, line);
        }
        let log = host.run(admin, "ACL LOG");
        assert!(
            log.starts_with("*3 *20 $5 count :1 $6 reason $4 auth $7 context $8 toplevel $6 object $4 AUTH"),
            "{log}"
        );
        assert!(
            log.contains("$5 count :2 $6 reason $3 key $7 context $8 toplevel $6 object $1 b $8 username"),
            "{log}"
        );
        assert!(log.contains("$6 reason $7 command $7 context $8 toplevel $6 object $3 set"), "{log}");
        assert!(log.contains("user=worker"), "{log}");
        for name in ["$17 timestamp-created :", "$22 timestamp-last-updated :"] {
            assert_eq!(log.matches(name).count(), 3, "{log}");
        }
        let ids: std::collections::BTreeSet<_> =
            log.split("$8 entry-id ").skip(1).filter_map(|rest| rest.split(' ').next()).collect();
        assert_eq!(ids.len(), 3, "{log}");
        assert_eq!(host.run(admin, "ACL LOG RESET"), "+OK");
        assert_eq!(host.run(admin, "ACL LOG"), "*0");
        host.run(worker, "MULTI");
        host.run(worker, "SET a 1");
        assert!(host.run(admin, "ACL LOG 1").contains("$7 context $5 multi"));
        host.run(worker, "DISCARD");
        host.run(worker, "DEL x");
        host.run(admin, "CONFIG SET acllog-max-len 1");
        assert!(host.run(admin, "ACL LOG").starts_with("*1 "));
    });
}

#[test]
fn dryrun_explains() {
    everywhere(|host| {
        let [admin, _] = worker(host, "+get +publish ~a");
        let run = |host: &mut Host, line: &str| host.run(admin, &format!("ACL DRYRUN {line}"));
        assert_eq!(run(host, "worker GET a"), "+OK");
        assert_eq!(text(&run(host, "worker GET b")), "User worker has no permissions to access the 'b' key");
        assert_eq!(text(&run(host, "worker SET a 1")), "User worker has no permissions to run the 'set' command");
        assert_eq!(text(&run(host, "worker PUBLISH c x")), "User worker has no permissions to access the 'c' channel");
        assert_eq!(run(host, "nobody GET a"), "-ERR User 'nobody' not found");
        assert_eq!(run(host, "worker NOSUCH a"), "-ERR Command 'NOSUCH' not found");
        assert_eq!(run(host, "worker GET"), "-ERR wrong number of arguments for 'get' command");
    });
}

/// The host has had a password accepted once, and opens more sessions of the same user without it.
#[test]
fn sessions_of_the_host_become_users_who_are_on() {
    everywhere(|host| {
        let admin = host.connect(0);
        assert_eq!(host.run(admin, "ACL SETUSER worker on >secret ~a +get"), "+OK");
        let of_host = || Peer { is_local: true, is_host: true, ..Peer::default() };
        let inside = host.connect_as(0, of_host());
        assert_eq!(host.run(inside, "AUTH worker anything"), "+OK");
        assert_eq!(host.run(inside, "GET a"), "$-1");
        assert!(host.run(inside, "SET a 1").starts_with("-NOPERM"));
        let outside = host.connect(0);
        assert!(host.run(outside, "AUTH worker anything").starts_with("-WRONGPASS"));
        assert_eq!(host.run(admin, "ACL SETUSER worker off"), "+OK");
        let late = host.connect_as(0, of_host());
        assert!(host.run(late, "AUTH worker secret").starts_with("-WRONGPASS"), "the user is off");
        assert!(host.run(late, "AUTH nobody secret").starts_with("-WRONGPASS"));
    });
}

#[test]
fn passwords_can_be_made() {
    let mut host = Host::new(2, Settings::default());
    let (first, second) = (host.connect(0), host.connect(1));
    let mut seen = std::collections::BTreeSet::new();
    for client in [first, second] {
        for _ in 0..3 {
            let password = host.run(client, "ACL GENPASS");
            assert!(password.starts_with("$64 "), "{password}");
            assert!(seen.insert(password), "the same twice");
        }
    }
    assert!(host.run(first, "ACL GENPASS 5").starts_with("$2 "));
    assert!(host.run(first, "ACL GENPASS 4096").starts_with("$1024 "));
    assert!(host.run(first, "ACL GENPASS 0").starts_with("-ERR ACL GENPASS argument must be the number of bits"));
}

#[test]
fn requirepass_is_the_password_of_the_default_user() {
    everywhere(|host| {
        let last = host.core_count() - 1;
        let (admin, early) = (host.connect(0), host.connect(last));
        let text = "-ERR AUTH <password> called without any password configured for the default user. Are you sure your \
                    configuration is correct?";
        assert_eq!(host.run(admin, "AUTH x"), text);
        assert_eq!(host.run(admin, "CONFIG SET requirepass sesame"), "+OK");
        // A client that was there before stays.
        assert_eq!(host.run(early, "PING"), "+PONG");
        let late = host.connect(last);
        assert_eq!(host.run(late, "GET a"), "-NOAUTH Authentication required.");
        assert!(host.run(late, "AUTH wrong").starts_with("-WRONGPASS"));
        assert_eq!(host.run(late, "AUTH default sesame"), "+OK");
        assert_eq!(host.run(late, "RESET"), "+RESET");
        assert_eq!(host.run(late, "GET a"), "-NOAUTH Authentication required.");
        assert_eq!(host.run(late, "AUTH sesame"), "+OK");
        let list = host.run(admin, "ACL LIST");
        assert!(
            list.contains(
                "user default on sanitize-payload #d0c04f4b1951e4aeaaec8223ed2039e542f3aae805a6fa7f6d794e5afff5d272"
            ),
            "{list}"
        );
        host.run(admin, "CONFIG SET requirepass \"\"");
        let other = host.connect(0);
        assert_eq!(host.run(other, "GET a"), "$-1");
    });
}

#[test]
fn hello_logs_in_as_well() {
    everywhere(|host| {
        let [admin, _] = worker(host, "+@all ~*");
        let client = host.connect(0);
        assert!(host.run(client, "HELLO 3 AUTH worker wrong").starts_with("-WRONGPASS"));
        assert!(host.run(client, "HELLO 3 AUTH worker secret").starts_with("%7"));
        assert_eq!(host.run(client, "ACL WHOAMI"), "$6 worker");
        assert_eq!(host.run(admin, "CLIENT KILL USER worker"), ":2");
        assert_eq!(host.run(admin, "CLIENT KILL USER nobody"), "-ERR No such user 'nobody'");
    });
}

#[test]
fn connections_are_ended_by_their_age() {
    everywhere(|host| {
        let (old, also_old) = (host.connect(0), host.connect(0));
        host.pass(Duration::from_secs(60));
        let young = host.connect(0);
        assert_eq!(host.run(young, "CLIENT KILL MAXAGE 61"), ":0");
        assert_eq!(host.run(young, "CLIENT KILL TYPE normal MAXAGE 60 SKIPME no"), ":2");
        let list = host.run(young, "CLIENT LIST");
        assert!(list.contains(&format!("id={} ", young.serial)), "{list}");
        for gone in [old, also_old] {
            assert!(!list.contains(&format!("id={} ", gone.serial)), "{list}");
        }
        assert_eq!(host.run(young, "CLIENT KILL MAXAGE 0"), "-ERR maxage should be greater than 0");
        assert_eq!(host.run(young, "CLIENT KILL MAXAGE x"), "-ERR maxage is not an integer or out of range");
    });
}

#[test]
fn without_a_file_of_users_nothing_is_saved() {
    let mut host = Host::new(1, Settings::default());
    let client = host.connect(0);
    for line in ["ACL SAVE", "ACL LOAD"] {
        assert!(host.run(client, line).starts_with("-ERR This Redis instance is not configured to use an ACL file."));
    }
}

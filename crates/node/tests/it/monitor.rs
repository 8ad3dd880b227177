//! Stories of those who watch what others send.

use crate::everywhere;
use crate::host::Host;

/// What a watcher has seen, without times and addresses.
fn seen(host: &mut Host, watcher: group::ids::SessionId) -> Vec<String> {
    let received = host.received(watcher);
    let lines = received.split('+').filter(|line| !line.is_empty());
    lines.map(|line| line.split_once("] ").map_or(line, |(_, words)| words).trim().to_owned()).collect()
}

#[test]
fn who_watches_sees_what_others_send_on_whatever_core() {
    everywhere(|host| {
        let last = host.core_count() - 1;
        let [watcher, first, second] = [host.connect(0), host.connect(0), host.connect(last)];
        assert_eq!(host.run(watcher, "MONITOR"), "+OK");
        assert!(host.run(first, "CLIENT LIST").contains("flags=O "));
        host.run(first, "SET foo bar");
        assert_eq!(seen(host, watcher), [r#""SET" "foo" "bar""#]);
        host.run(second, "SELECT 3");
        host.run(second, "GET \"a b\"");
        assert_eq!(seen(host, watcher), [r#""SELECT" "3""#, r#""GET" "a b""#]);
        host.run(second, "GET x");
        assert!(host.received(watcher).starts_with("+1700000000.000000 [3 ]"));
    });
}

#[test]
fn a_transaction_is_seen_when_it_is_executed() {
    everywhere(|host| {
        let [watcher, client] = [host.connect(0), host.connect(0)];
        host.run(watcher, "MONITOR");
        for line in ["MULTI", "SET foo bar", "PING", "EXEC", "MULTI", "NOSUCH", "EXEC"] {
            host.run(client, line);
        }
        assert_eq!(
            seen(host, watcher),
            [r#""MULTI""#, r#""SET" "foo" "bar""#, r#""PING""#, r#""EXEC""#, r#""MULTI""#, r#""EXEC""#]
        );
    });
}

#[test]
fn secrets_and_what_administrators_do_are_not_seen() {
    everywhere(|host| {
        let [watcher, client] = [host.connect(0), host.connect(0)];
        host.run(watcher, "MONITOR");
        for line in
            ["AUTH x", "AUTH default pw", "HELLO 3 AUTH default pw", "CONFIG SET maxclients 77", "ACL SETUSER u >p"]
        {
            host.run(client, line);
        }
        assert_eq!(
            seen(host, watcher),
            [
                r#""AUTH" "(redacted)""#,
                r#""AUTH" "(redacted)" "(redacted)""#,
                r#""HELLO" "3" "AUTH" "(redacted)" "(redacted)""#
            ]
        );
    });
}

#[test]
fn watching_ends_with_reset() {
    everywhere(|host| {
        let [watcher, client] = [host.connect(0), host.connect(host.core_count() - 1)];
        host.run(watcher, "MONITOR");
        assert_eq!(host.run(watcher, "RESET").split(' ').next(), Some("+RESET"));
        host.received(watcher);
        host.run(client, "SET a 1");
        assert_eq!(host.received(watcher), "");
        host.run(client, "MULTI");
        host.run(client, "MONITOR");
        assert_eq!(host.run(client, "EXEC"), "*1 -ERR MONITOR isn't allowed for DENY BLOCKING client");
    });
}

//! MIGRATE: keys go to another server, and are deleted here when it has them.
//!
//! Here only the words are read. A thread of the host reads the keys as a client of this node would, sends them, and
//! deletes what the other server has taken and nobody has changed since: no core waits for another server.

use std::collections::BTreeSet;

use command::{Access, Begin, Find, Flag, Group, KeySpec, Refusal};
use group::ids::SessionId;
use resp::{Args, Writer};

use super::{Body, ControlCommand, number, plain};
use crate::core::Core;
use crate::entry::Durability;
use crate::event::{Action, MigrateRequest, MigrateWish};
use crate::session::ticket::OwnTicket;

/// Milliseconds for which the other server may be silent if none or fewer are named.
const TIMEOUT_MS_DEFAULT: u64 = 1000;

/// The word of the key, which is empty where several are named.
const KEY: usize = 3;

pub(super) const MIGRATE: ControlCommand = ControlCommand {
    since: "2.6.0",
    group: Group::Generic,
    summary: "Atomically transfer a key from a Redis instance to another one.",
    complexity: "This command actually executes a DUMP+DEL in the source instance, and a RESTORE in the target \
                 instance. See the pages of these commands for time complexity. Also an O(N) data transfer between \
                 the two instances is performed.",
    syntax: "host port <key | \"\"> destination-db timeout [COPY] [REPLACE] [AUTH password | AUTH2 username password] \
             [KEYS key [key ...]]",
    flags: &[Flag::Write, Flag::MovableKeys, Flag::Noscript, Flag::NoMulti],
    categories: &["@keyspace", "@dangerous"],
    keys: &[
        KeySpec {
            access: Access::ReadWrite,
            begin: Begin::Found(&Begin::Index(KEY), the_key),
            find: Find::Range { last: 0, step: 1, limit: 0 },
            notes: &["access", "delete"],
        },
        KeySpec {
            access: Access::ReadWrite,
            begin: Begin::Found(&Begin::Keyword("KEYS", -2), first_of_keys),
            find: Find::Range { last: -1, step: 1, limit: 0 },
            notes: &["access", "delete", "incomplete"],
        },
    ],
    tips: &["nondeterministic_output"],
    ..plain("migrate", -6, Body::Driven(migrate))
};

/// The place of the word KEYS, where keys follow.
fn keyword(args: Args<'_>) -> Option<usize> {
    if !args.get(KEY)?.is_empty() {
        return None;
    }
    let mut index = 6;
    loop {
        let word = args.get(index)?.to_ascii_lowercase();
        index += match word.as_slice() {
            b"keys" => return (index + 1 < args.len()).then_some(index),
            b"auth" => 2,
            b"auth2" => 3,
            _ => 1,
        };
    }
}

fn the_key(args: Args<'_>) -> Option<usize> {
    keyword(args).is_none().then_some(KEY)
}

fn first_of_keys(args: Args<'_>) -> Option<usize> {
    keyword(args).map(|index| index + 1)
}

fn migrate(
    core: &mut Core,
    id: SessionId,
    ticket: OwnTicket,
    args: Args<'_>,
    actions: &mut Vec<Action>,
) -> Result<(), Refusal> {
    let session = core.sessions.get(id).expect("its request is being looked at");
    let is_synced = session.options.durability == Durability::Disk;
    let wish = MigrateWish { database: session.database, is_synced, ..parse(args)? };
    if !wish.is_copy {
        // What cannot be deleted here is not sent.
        core.check_write(keyspace::find(b"del").expect("a command of ours"))?;
    }
    let request = MigrateRequest { core: core.context.core, session: id, ticket, wish };
    actions.push(Action::Migrate(Box::new(request)));
    Ok(())
}

/// What is asked.
fn parse(args: Args<'_>) -> Result<MigrateWish, Refusal> {
    let text = |index: usize| String::from_utf8_lossy(args.at(index)).into_owned();
    let mut wish = MigrateWish { host: text(1), port: text(2), ..MigrateWish::default() };
    let (mut index, mut has_keys) = (6, false);
    while let Some(word) = args.get(index) {
        let words_behind = args.len() - index - 1;
        match word.to_ascii_lowercase().as_slice() {
            b"copy" => wish.is_copy = true,
            b"replace" => wish.replaces = true,
            b"auth" if words_behind >= 1 => {
                wish.login = vec![args.at(index + 1).to_vec()];
                index += 1;
            }
            b"auth2" if words_behind >= 2 => {
                wish.login = vec![args.at(index + 1).to_vec(), args.at(index + 2).to_vec()];
                index += 2;
            }
            b"keys" => {
                if !args.at(KEY).is_empty() {
                    return Err(Refusal::new(
                        "ERR When using MIGRATE KEYS option, the key argument must be set to the empty string",
                    ));
                }
                // Each once: what has gone from here by its first name is not to be missed by its second.
                let mut seen = BTreeSet::new();
                let keys = args.iter().skip(index + 1).filter(|key| seen.insert(*key));
                wish.keys = keys.map(<[u8]>::to_vec).collect();
                has_keys = true;
                break;
            }
            _ => return Err(Refusal::SYNTAX),
        }
        index += 1;
    }
    if !has_keys {
        wish.keys = vec![args.at(KEY).to_vec()];
    }
    let timeout = number(args.at(5)).ok_or(Refusal::NOT_AN_INTEGER)?;
    wish.target_database = number(args.at(4)).ok_or(Refusal::NOT_AN_INTEGER)?;
    wish.timeout_ms = u64::try_from(timeout).ok().filter(|timeout| *timeout > 0).unwrap_or(TIMEOUT_MS_DEFAULT);
    Ok(wish)
}

impl Core {
    /// The host has carried keys to another server, or has not.
    pub(crate) fn answer_migrate(&mut self, id: SessionId, ticket: OwnTicket, answer: Result<&'static str, String>) {
        let mut written = Writer::default();
        if let Ok(reply) = &answer {
            written.simple(reply);
        }
        self.finish_control(id, ticket, answer.map(|_| ()).map_err(Refusal::new), written);
    }
}

#[cfg(test)]
mod tests {
    use resp::Span;

    use super::*;

    /// A word `''` is empty.
    fn with_args<T>(line: &str, look: impl FnOnce(Args<'_>) -> T) -> T {
        let (mut bytes, mut spans) = (Vec::new(), Vec::new());
        for word in line.split(' ') {
            let start = bytes.len() as u32;
            bytes.extend_from_slice(if word == "''" { b"" } else { word.as_bytes() });
            spans.push(Span { start, end: bytes.len() as u32 });
        }
        look(Args::new(&bytes, &spans))
    }

    fn parsed(line: &str) -> Result<MigrateWish, String> {
        with_args(line, |args| parse(args).map_err(|refusal| refusal.text().to_owned()))
    }

    #[test]
    fn options_in_any_order_and_keys_behind_them() {
        let found = parsed("MIGRATE far 6379 '' 9 0 replace AUTH2 keys keys COPY KEYS keys auth").expect("sound");
        assert_eq!((found.host.as_str(), found.port.as_str(), found.target_database), ("far", "6379", 9));
        assert_eq!((found.is_copy, found.replaces, found.timeout_ms), (true, true, 1000));
        assert_eq!(found.login, [b"keys".to_vec(), b"keys".to_vec()]);
        assert_eq!(found.keys, [b"keys".to_vec(), b"auth".to_vec()]);
        assert_eq!(parsed("MIGRATE far 6379 '' 0 9 KEYS b a b").expect("sound").keys, [b"b".to_vec(), b"a".to_vec()]);
        let found = parsed("MIGRATE far 6379 k -1 7 auth copy").expect("sound");
        assert_eq!((found.login, found.keys, found.timeout_ms), (vec![b"copy".to_vec()], vec![b"k".to_vec()], 7));
    }

    #[test]
    fn what_is_wrong_is_refused_as_redis_does() {
        const NOT_EMPTY: &str = "ERR When using MIGRATE KEYS option, the key argument must be set to the empty string";
        for (line, text) in [
            ("MIGRATE h 1 k 0 9 NONSENSE", "ERR syntax error"),
            ("MIGRATE h 1 k 0 9 AUTH", "ERR syntax error"),
            ("MIGRATE h 1 k 0 9 AUTH2 a", "ERR syntax error"),
            ("MIGRATE h 1 k 0 9 KEYS a", NOT_EMPTY),
            ("MIGRATE h 1 k x 9", "ERR value is not an integer or out of range"),
            ("MIGRATE h 1 k 0 x", "ERR value is not an integer or out of range"),
            ("MIGRATE h 1 k x y NONSENSE", "ERR syntax error"),
        ] {
            assert_eq!(parsed(line).expect_err(line), text, "{line}");
        }
    }

    #[test]
    fn keys_are_those_that_travel() {
        for (line, expected) in [
            ("MIGRATE h 1 k 0 9 COPY", vec!["k"]),
            ("MIGRATE h 1 '' 0 9 KEYS a b", vec!["a", "b"]),
            ("MIGRATE h 1 '' 0 9 AUTH keys KEYS keys b", vec!["keys", "b"]),
            ("MIGRATE h 1 '' 0 9 AUTH2 keys keys keys a", vec!["a"]),
            ("MIGRATE h 1 '' 0 9 COPY", vec![""]),
            ("MIGRATE h 1 keys 0 9", vec!["keys"]),
        ] {
            with_args(line, |args| {
                let mut found = Vec::new();
                MIGRATE.for_each_key(args, |index, _| found.push(String::from_utf8_lossy(args.at(index)).into_owned()));
                assert_eq!(found, expected, "{line}");
            });
        }
    }
}

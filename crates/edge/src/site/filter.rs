//! Which changes a client is told of, and in which form.
//!
//! ```text
//!   event  = [ id, kind, [ effect … ] ]
//!   effect = [ database, [ key … ], [ word … ] ]
//! ```

use command::{Access, Group};
use keyspace::glob;
use node::Requests;
use resp::{Args, Limits, Parsed, Protocol, RequestParser, Writer};
use site::merge::Event;

/// What a client wants to be told of.
pub struct Filter<'a> {
    /// Effects on keys that match one of these; on all if there is none.
    pub patterns: &'a [Vec<u8>],
    /// Effects on values of one of these types; on all if there is none.
    pub types: &'a [&'static str],
    /// Sweeps.
    pub wants_expired: bool,
    /// In the form of an entry of a stream.
    pub is_stream: bool,
}

/// What is known of the values that an effect concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    /// They may be of any type.
    Any,
    /// They are of this one.
    One(&'static str),
    /// They are of one that has no name here.
    Other,
}

impl Filter<'_> {
    /// Appends what of an event is wanted; false if that is nothing.
    pub fn put(&self, event: &Event, out: &mut Vec<u8>) -> bool {
        if event.is_sweep && !self.wants_expired {
            return false;
        }
        if self.is_stream {
            put_entry(event, out);
            return true;
        }
        let (mut effects, mut count) = (Writer::new(Protocol::Resp2), 0);
        for requests in &event.requests {
            for_each_request(requests, |database, args, bytes| {
                count += usize::from(self.put_effect(database, args, bytes, &mut effects))
            });
        }
        if count == 0 {
            return false;
        }
        let mut writer = Writer::onto(std::mem::take(out), Protocol::Resp2);
        writer.array(3);
        writer.bulk(format!("{}-{}", event.moment.0, event.number).as_bytes());
        writer.bulk(if event.is_sweep { b"expired" } else { b"change" });
        writer.array(count);
        writer.raw(effects.bytes());
        *out = writer.into_bytes();
        true
    }

    fn put_effect(&self, database: u16, args: Args<'_>, bytes: &[u8], out: &mut Writer) -> bool {
        let command = keyspace::resolve(args);
        let mut keys = Vec::new();
        if let Some(command) = command {
            command.for_each_key(args, |index, access| {
                if access != Access::NotKey {
                    keys.push(args.at(index));
                }
            });
        }
        let name = command.map_or("", |command| command.name);
        let concerns_all = matches!(name, "flushall" | "flushdb" | "swapdb");
        let is_key_wanted = |key: &&[u8]| self.patterns.iter().any(|pattern| glob::matches(pattern, key));
        let is_wanted = self.patterns.is_empty() || concerns_all || keys.iter().any(is_key_wanted);
        let is_type_wanted = self.types.is_empty()
            || match command.map_or(Type::Other, |command| type_of(command.group, name, args)) {
                Type::Any => true,
                Type::One(name) => self.types.contains(&name),
                Type::Other => false,
            };
        if !is_wanted || !is_type_wanted {
            return false;
        }
        out.array(3);
        out.integer(i64::from(database));
        out.array(keys.len());
        keys.iter().for_each(|key| out.bulk(key));
        out.raw(bytes);
        true
    }
}

/// An event as an entry of a stream: `effects` says how many effects there are, and of that with the number N, from 0
/// on, `N.db` is the database, `N.words` how many words there are, and `N.0`, `N.1`, … the words. No field comes twice,
/// since clients make a dictionary of them.
fn put_entry(event: &Event, out: &mut Vec<u8>) {
    let (mut fields, mut field_count, mut effect_count) = (Writer::new(Protocol::Resp2), 1, 0);
    for requests in &event.requests {
        for_each_request(requests, |database, args, _| {
            let mut put = |name: &str, value: &[u8]| {
                fields.bulk(format!("{effect_count}.{name}").as_bytes());
                fields.bulk(value);
            };
            put("db", database.to_string().as_bytes());
            put("words", args.len().to_string().as_bytes());
            (0..).zip(args.iter()).for_each(|(nth, word): (usize, _)| put(&nth.to_string(), word));
            field_count += 2 + args.len();
            effect_count += 1;
        });
    }
    let mut writer = Writer::onto(std::mem::take(out), Protocol::Resp2);
    writer.array(2);
    writer.bulk(format!("{}-{}", event.moment.0, event.number).as_bytes());
    writer.array(field_count * 2);
    writer.bulk(b"effects");
    writer.bulk(effect_count.to_string().as_bytes());
    writer.raw(fields.bytes());
    *out = writer.into_bytes();
}

/// Calls `visit` with each request: its database, its words, and its bytes.
fn for_each_request(requests: &Requests, mut visit: impl FnMut(u16, Args<'_>, &[u8])) {
    // Clients may be allowed less than what a command of theirs does: one SPOP of millions is told as one SREM.
    let limits = Limits { bulk_bytes_max: usize::MAX, words_max: usize::MAX, ..Limits::default() };
    let (mut begin, mut spans) = (0, Vec::new());
    for &(database, end) in &requests.runs {
        while begin < end {
            let rest = &requests.bytes[begin..end];
            let Ok(Parsed::Request { consumed }) = RequestParser::new().parse(rest, &limits, &mut spans) else {
                panic!("a request of the backlog had the right checksum and is none: what follows would be left out");
            };
            visit(database, Args::new(rest, &spans), &rest[..consumed]);
            begin += consumed;
        }
    }
}

fn type_of(group: Group, name: &str, args: Args<'_>) -> Type {
    match group {
        Group::String | Group::Bitmap | Group::Hyperloglog => Type::One("string"),
        Group::List => Type::One("list"),
        Group::Set => Type::One("set"),
        Group::SortedSet | Group::Geo => Type::One("zset"),
        Group::Hash => Type::One("hash"),
        Group::Stream => Type::One("stream"),
        // RESTORE key ttl value: the first byte of the value says of which type it is, in all forms of RDB files.
        Group::Generic if name == "restore" => match args.get(3).and_then(|value| value.first()) {
            Some(0) => Type::One("string"),
            Some(1 | 10 | 14 | 18) => Type::One("list"),
            Some(2 | 11 | 20) => Type::One("set"),
            Some(3 | 5 | 12 | 17) => Type::One("zset"),
            Some(4 | 9 | 13 | 16 | 22..=25) => Type::One("hash"),
            Some(15 | 19 | 21) => Type::One("stream"),
            _ => Type::Other,
        },
        Group::Generic | Group::Server => Type::Any,
        _ => Type::Other,
    }
}

#[cfg(test)]
mod tests {
    use stdx::UnixMillis;

    use super::*;

    fn event(is_sweep: bool, lines: &[(u16, &[&[u8]])]) -> Event {
        let mut requests = Requests::default();
        for (database, words) in lines {
            resp::encode_request(&mut requests.bytes, words);
            requests.count += 1;
            requests.runs.push((*database, requests.bytes.len()));
        }
        Event { moment: UnixMillis(7), number: 2, is_sweep, requests: vec![requests] }
    }

    fn told(filter: &Filter<'_>, event: &Event) -> Option<String> {
        let mut out = Vec::new();
        let is_told = filter.put(event, &mut out);
        assert_eq!(is_told, !out.is_empty());
        let mut decoder = resp::FrameDecoder::new();
        decoder.extend(&out);
        decoder.next_frame().expect("sound").map(|frame| frame.to_string())
    }

    const ALL: Filter<'_> = Filter { patterns: &[], types: &[], wants_expired: false, is_stream: false };

    #[test]
    fn an_event_is_an_entry_of_a_stream() {
        let event = event(false, &[(0, &[b"SET", b"a", b"1"]), (3, &[b"DEL", b"b"])]);
        let filter = Filter { is_stream: true, ..ALL };
        assert_eq!(
            told(&filter, &event).as_deref(),
            Some(
                r#"["7-2", ["effects", "2", "0.db", "0", "0.words", "3", "0.0", "SET", "0.1", "a", "0.2", "1", "1.db", "3", "1.words", "2", "1.0", "DEL", "1.1", "b"]]"#
            )
        );
    }

    #[test]
    fn an_event_says_what_was_done_where() {
        let event = event(false, &[(0, &[b"SET", b"a", b"1"]), (3, &[b"RENAME", b"b", b"c"])]);
        assert_eq!(
            told(&ALL, &event).as_deref(),
            Some(
                r#"["7-2", "change", [[(integer) 0, ["a"], ["SET", "a", "1"]], [(integer) 3, ["b", "c"], ["RENAME", "b", "c"]]]]"#
            )
        );
    }

    #[test]
    fn a_request_of_more_words_than_a_client_may_send_is_told_with_all_behind_it() {
        let members = vec![b"m".as_slice(); 1_100_000];
        let words = [&[b"SREM".as_slice(), b"set"], members.as_slice()].concat();
        let mut out = Vec::new();
        assert!(ALL.put(&event(false, &[(0, words.as_slice()), (0, &[b"DEL", b"other"])]), &mut out));
        assert!(out.len() > 1_100_000 && out.ends_with(b"$3\r\nDEL\r\n$5\r\nother\r\n"));
    }

    #[test]
    fn patterns_and_types_choose_effects() {
        let event = event(
            false,
            &[
                (0, &[b"SET", b"a:1", b"1"]),
                (0, &[b"HSET", b"b:1", b"f", b"1"]),
                (0, &[b"DEL", b"c:1"]),
                (0, &[b"RESTORE", b"d:1", b"0", b"\x04rest"]),
                (0, &[b"FUNCTION", b"FLUSH"]),
            ],
        );
        let names = |patterns: &[&str], types: &[&'static str]| {
            let patterns: Vec<Vec<u8>> = patterns.iter().map(|pattern| pattern.as_bytes().to_vec()).collect();
            let told = told(&Filter { patterns: &patterns, types, ..ALL }, &event).unwrap_or_default();
            ["SET", "HSET", "DEL", "RESTORE", "FUNCTION"]
                .into_iter()
                .filter(|name| told.contains(&format!("[\"{name}\"")))
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(names(&[], &[]), "SET HSET DEL RESTORE FUNCTION");
        assert_eq!(names(&["a:*", "d*"], &[]), "SET RESTORE");
        assert_eq!(names(&[], &["hash"]), "HSET DEL RESTORE");
        assert_eq!(names(&["[ab]:*"], &["hash", "list"]), "HSET");
        assert_eq!(names(&["x*"], &[]), "");
    }

    #[test]
    fn what_concerns_all_keys_is_told_to_all() {
        let patterns = [b"x*".to_vec()];
        let filter = Filter { patterns: &patterns, types: &["hash"], ..ALL };
        assert!(told(&filter, &event(false, &[(1, &[b"FLUSHDB"])])).is_some());
        assert!(told(&filter, &event(false, &[(1, &[b"FUNCTION", b"FLUSH"])])).is_none());
    }

    #[test]
    fn sweeps_are_told_to_who_wants_them() {
        let sweep = event(true, &[(0, &[b"DEL", b"a"])]);
        assert_eq!(told(&ALL, &sweep), None);
        let told = told(&Filter { wants_expired: true, ..ALL }, &sweep).expect("wanted");
        assert!(told.contains("expired") && told.contains("7-2"), "{told}");
    }
}

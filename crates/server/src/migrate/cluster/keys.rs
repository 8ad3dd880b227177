//! Which slots a request of a stream is about.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use redis_files::aof::Request;
use resp::Frame;
use stdx::slot::slot_of;

use crate::connection::Connection;
use crate::migrate::source::ask;

/// Where the keys of a request are, as COMMAND tells: the first, the last (negative: from the end), and the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    first: i64,
    last: i64,
    step: i64,
}

/// Where the keys of all commands are, by their names in lower case; those of subcommands as `xgroup|create`.
#[derive(Debug, Default)]
pub struct Keys {
    spans: BTreeMap<Vec<u8>, Span>,
}

/// Commands that tell how many keys there are, and what position that has.
const COUNTED: [(&str, usize); 8] = [
    ("eval", 2),
    ("evalsha", 2),
    ("fcall", 2),
    ("eval_ro", 2),
    ("evalsha_ro", 2),
    ("fcall_ro", 2),
    ("lmpop", 1),
    ("zmpop", 1),
];

impl Keys {
    /// Asks a server.
    ///
    /// # Errors
    /// If it does not tell.
    pub fn of(connection: &mut Connection) -> Result<Self> {
        let mut keys = Self::default();
        keys.add_all(&ask(connection, &["COMMAND"])?);
        Ok(keys)
    }

    /// As a reply to COMMAND tells.
    #[cfg(test)]
    pub fn told(commands: &Frame) -> Self {
        let mut keys = Self::default();
        keys.add_all(commands);
        keys
    }

    fn add_all(&mut self, commands: &Frame) {
        for command in commands.elements().unwrap_or_default() {
            let Some(facts) = command.elements() else { continue };
            let number = |at: usize| match facts.get(at) {
                Some(Frame::Integer(number)) => *number,
                _ => 0,
            };
            if let Some(name) = facts.first().and_then(Frame::as_bytes) {
                let span = Span { first: number(3), last: number(4), step: number(5).max(1) };
                self.spans.insert(name.to_ascii_lowercase(), span);
            }
            if let Some(below) = facts.get(9) {
                self.add_all(below);
            }
        }
    }

    /// The slots of a request's keys; none if it has no keys or is not known.
    pub fn slots_of(&self, request: &Request) -> BTreeSet<u16> {
        self.positions(request).into_iter().map(|at| slot_of(&request[at]).0).collect()
    }

    /// Which words of a request are keys; none if it has no keys or is not known.
    pub fn positions(&self, request: &Request) -> Vec<usize> {
        let Some(name) = request.first().map(|name| name.to_ascii_lowercase()) else { return Vec::new() };
        let counted = COUNTED.iter().find(|(known, _)| known.as_bytes() == name);
        if let Some((_, at)) = counted {
            let count = request.get(*at).and_then(|count| std::str::from_utf8(count).ok()?.parse().ok()).unwrap_or(0);
            return (at + 1..request.len()).take(count).collect();
        }
        let own = self.spans.get(&name).copied().filter(|span| span.first > 0);
        let span = own.or_else(|| {
            let full = [&name, &request.get(1)?.to_ascii_lowercase()[..]].join(&b'|');
            self.spans.get(&full).copied().filter(|span| span.first > 0)
        });
        let Some(Span { first, last, step }) = span else { return Vec::new() };
        let length = i64::try_from(request.len()).unwrap_or(i64::MAX);
        let last = if last < 0 { length + last } else { last.min(length - 1) };
        let positions = (first..=last).step_by(usize::try_from(step).unwrap_or(1));
        positions.filter_map(|at| usize::try_from(at).ok().filter(|at| *at < request.len())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_where_the_command_says() {
        let bulk = |text: &str| Frame::Bulk(text.as_bytes().to_vec());
        let about = |name: &str, span: [i64; 3], below: Vec<Frame>| {
            let mut facts = vec![bulk(name), Frame::Integer(0), Frame::Array(Vec::new())];
            facts.extend(span.map(Frame::Integer));
            facts.extend([Frame::Array(Vec::new()), Frame::Array(Vec::new()), Frame::Array(Vec::new())]);
            facts.push(Frame::Array(below));
            Frame::Array(facts)
        };
        let create = about("xgroup|create", [2, 2, 1], Vec::new());
        let mut keys = Keys::default();
        keys.add_all(&Frame::Array(vec![
            about("set", [1, 1, 1], Vec::new()),
            about("mset", [1, -1, 2], Vec::new()),
            about("xgroup", [0, 0, 0], vec![create]),
            about("ping", [0, 0, 0], Vec::new()),
        ]));
        let slots = |text: &str| keys.slots_of(&text.split(' ').map(|word| word.as_bytes().to_vec()).collect());
        let of = |names: &[&str]| names.iter().map(|name| slot_of(name.as_bytes()).0).collect::<BTreeSet<_>>();
        assert_eq!(slots("SET a b"), of(&["a"]));
        assert_eq!(slots("MSET a 1 b 2"), of(&["a", "b"]));
        assert_eq!(slots("XGROUP CREATE a g 0"), of(&["a"]));
        assert_eq!(slots("EVAL x 2 a b c"), of(&["a", "b"]));
        assert!(slots("PING a").is_empty() && slots("NONE a").is_empty() && slots("SET").is_empty());
    }
}

//! A client that gives requests an id, and sends what it has no answer to again under the same id; now and then also
//! something that was answered long ago. Whatever happens in between, each of them counts once.

use std::collections::VecDeque;

use super::{Client, Expected};
use crate::reply::Reply;

/// What it counts, and how far it is.
#[derive(Debug)]
pub(super) struct Repeats {
    /// Its number: nobody else counts what it counts.
    client: u64,
    /// Requests so far, which is the number in the last one's id.
    number: u64,
    /// What is asked for, until it has been answered.
    pending: Option<Asked>,
    /// What has been answered, the latest last.
    answered: VecDeque<Asked>,
    /// What its counters hold, with the pending request.
    counted: [i64; 2],
}

/// A request.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// In its id.
    number: u64,
    kind: Kind,
    /// What its counter holds when it has been carried out.
    wanted: i64,
}

/// Requests that are remembered to be sent again.
const ANSWERED_MAX: usize = 20;

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One command.
    Command,
    /// A script.
    Script,
    /// A transaction over two keys, which may be of two groups.
    Transaction,
}

impl Kind {
    /// Which counter it counts: transactions have theirs.
    fn counter(self) -> usize {
        usize::from(self == Self::Transaction)
    }
}

impl Client {
    /// Makes it one that repeats what it asks for under an id.
    pub fn repeat(&mut self, client: u64) {
        self.repeats = Some(Repeats { client, number: 0, pending: None, answered: VecDeque::new(), counted: [0; 2] });
    }

    /// Asks for what has not been answered, or now and then for something new; false if it does neither.
    pub(super) fn ask_once(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(mut repeats) = self.repeats.take() else { return false };
        if repeats.pending.is_none() && !repeats.answered.is_empty() && self.prng.chance(1, 6) {
            let place = self.prng.below(repeats.answered.len() as u64) as usize;
            repeats.pending = Some(repeats.answered[place]);
        }
        let is_due = repeats.pending.is_some() || self.prng.chance(1, 3);
        if is_due {
            let Asked { number, kind, .. } = *repeats.pending.get_or_insert_with(|| {
                let kind = [Kind::Command, Kind::Script, Kind::Transaction][self.prng.below(3) as usize];
                repeats.number += 1;
                repeats.counted[kind.counter()] += 1;
                Asked { number: repeats.number, kind, wanted: repeats.counted[kind.counter()] }
            });
            let names = ["one", "left", "right"].map(|name| format!("counter:{name}:{}", repeats.client));
            let [one, left, right] = names.each_ref().map(String::as_bytes);
            let id = format!("{}:{number}", repeats.client);
            self.command(&[b"CLIENT", b"REQUESTID", id.as_bytes()], Expected::Acknowledgement, out);
            match kind {
                Kind::Command => self.command(&[b"INCR", one], Expected::Counted, out),
                Kind::Script => {
                    let text = b"return redis.call('incr',KEYS[1])";
                    self.command(&[b"EVAL", text, b"1", one], Expected::Counted, out);
                }
                Kind::Transaction => {
                    self.command(&[b"MULTI"], Expected::Acknowledgement, out);
                    self.command(&[b"INCR", left], Expected::Queued, out);
                    self.command(&[b"INCR", right], Expected::Queued, out);
                    self.command(&[b"EXEC"], Expected::Counted, out);
                }
            }
        }
        self.repeats = Some(repeats);
        is_due
    }

    /// The answer to it has come.
    pub(super) fn counted(&mut self, reply: &Reply) -> Result<(), String> {
        let Some(repeats) = &mut self.repeats else { unreachable!("it has asked") };
        let Some(asked) = repeats.pending.take() else { unreachable!("it has asked once") };
        let Asked { number, kind, wanted } = asked;
        if repeats.answered.iter().all(|earlier| earlier.number != number) {
            repeats.answered.push_back(asked);
            if repeats.answered.len() > ANSWERED_MAX {
                repeats.answered.pop_front();
            }
        }
        let is_right = match reply {
            Reply::Array(Some(replies)) if kind == Kind::Transaction => {
                replies.len() == 2 && replies.iter().all(|reply| *reply == Reply::Integer(wanted))
            }
            reply => kind != Kind::Transaction && *reply == Reply::Integer(wanted),
        };
        let client = repeats.client;
        is_right.then_some(()).ok_or_else(|| format!("not once: request {client}:{number} counts {wanted}: {reply:?}"))
    }
}

//! Transactions that append to lists and read them, for [`crate::cycles`]: some under a watch of lists that they only
//! read, which is how write skew comes about where a watch is forgotten.

use super::{BrokenWatch, Client, Expected, FollowUp, History, Outcome};
use crate::cycles::{End, Step, Transaction};
use crate::reply::Reply;

/// Lists. They are never removed.
pub const LIST_COUNT: u64 = 5;

/// Commands of one transaction, at most.
const STEPS_MAX: u64 = 4;

/// Name of a list.
pub fn list_name(list: u32) -> String {
    format!("list:{list}")
}

/// What a transaction is about to do.
#[derive(Clone, Copy, Debug)]
pub(super) enum Planned {
    Append { list: u32, element: u32 },
    Read { list: u32 },
}

impl Planned {
    fn list(&self) -> u32 {
        match *self {
            Self::Append { list, .. } | Self::Read { list } => list,
        }
    }
}

/// What waits for the reply of a transaction on lists.
#[derive(Clone, Debug)]
pub(super) struct Awaited {
    /// Its place in the history.
    place: usize,
    /// What it found under its watch, which must still hold, and when it asked for that.
    watched: Vec<Step>,
    watched_at: u64,
    planned: Vec<Planned>,
    /// EXEC's reply is an array, a single command's is its own.
    is_exec: bool,
}

impl Client {
    /// Something done to lists. True if it has a second step, so that nothing may be asked in between.
    pub(super) fn list_operation(&mut self, now: u64, history: &mut History, out: &mut Vec<u8>) -> bool {
        match self.prng.below(5) {
            0 => {
                self.single_list_operation(now, history, out);
                false
            }
            1 | 2 => {
                let planned = (0..1 + self.prng.below(STEPS_MAX)).map(|_| self.plan_step(history)).collect();
                self.list_commands(now, Vec::new(), planned, true, history, out);
                false
            }
            _ => {
                let first = self.some_list();
                let mut lists = vec![first];
                if self.prng.chance(1, 2) {
                    lists.push((first + 1 + self.prng.below(LIST_COUNT - 1) as u32) % LIST_COUNT as u32);
                }
                let names: Vec<String> = lists.iter().map(|list| list_name(*list)).collect();
                let words: Vec<&[u8]> =
                    std::iter::once(&b"WATCH"[..]).chain(names.iter().map(|name| name.as_bytes())).collect();
                (self.is_watching, self.watched_at) = (true, now);
                self.watched.clear();
                self.command(&words, Expected::Watch, out);
                for list in lists {
                    write_step(Planned::Read { list }, out);
                    self.expected.push_back(Expected::WatchedList { list });
                }
                true
            }
        }
    }

    /// A command on one list.
    pub(super) fn single_list_operation(&mut self, now: u64, history: &mut History, out: &mut Vec<u8>) {
        let planned = vec![self.plan_step(history)];
        self.list_commands(now, Vec::new(), planned, false, history, out);
    }

    fn some_list(&mut self) -> u32 {
        self.prng.below(LIST_COUNT) as u32
    }

    fn plan_step(&mut self, history: &mut History) -> Planned {
        let list = self.some_list();
        if self.prng.chance(1, 2) {
            history.next_element += 1;
            Planned::Append { list, element: history.next_element }
        } else {
            Planned::Read { list }
        }
    }

    /// The second step under a watch: at least one append, mostly to a list that is not watched.
    pub(super) fn append_watching(&mut self, now: u64, watched: Vec<Step>, history: &mut History, out: &mut Vec<u8>) {
        history.next_element += 1;
        let mut planned = vec![Planned::Append { list: self.some_list(), element: history.next_element }];
        if self.prng.chance(1, 3) {
            planned.push(self.plan_step(history));
        }
        self.list_commands(now, watched, planned, true, history, out);
    }

    fn list_commands(
        &mut self,
        now: u64,
        watched: Vec<Step>,
        planned: Vec<Planned>,
        is_exec: bool,
        history: &mut History,
        out: &mut Vec<u8>,
    ) {
        let appends = planned.iter().filter_map(|step| match *step {
            Planned::Append { list, element } => Some(Step::Append { list, element, length: None }),
            Planned::Read { .. } => None,
        });
        let place = history.transactions.len();
        // What a replica may have answered is as good as one asked for earlier, but not before what its session has
        // asked for before, which may have been as good as one asked for earlier itself.
        let may_be_old = !is_exec && matches!(planned[..], [Planned::Read { .. }]);
        let asked_before = planned.iter().filter_map(|step| self.lists_asked.get(&step.list())).max().copied();
        let called = if may_be_old { now.saturating_sub(self.age()).max(asked_before.unwrap_or(0)) } else { now };
        self.lists_asked.extend(planned.iter().map(|step| (step.list(), called)));
        history.transactions.push(Transaction { called, end: End::Unknown, steps: appends.collect() });
        history.transaction_sessions.push(self.session());
        if is_exec {
            self.command(&[b"MULTI"], Expected::Acknowledgement, out);
        }
        for step in &planned {
            write_step(*step, out);
            if is_exec {
                self.expected.push_back(Expected::Queued);
            }
        }
        let awaited = Expected::Lists(Awaited { place, watched, watched_at: self.watched_at, planned, is_exec });
        if is_exec {
            self.command(&[b"EXEC"], awaited, out);
        } else {
            self.expected.push_back(awaited);
        }
    }

    /// What a watched list holds. With the last one the second step can be made.
    pub(super) fn watched_list(&mut self, list: u32, reply: &Reply) -> Result<(), String> {
        self.watched.push(Step::Read { list, found: elements(reply)? });
        if self.expected.is_empty() {
            let watched = std::mem::take(&mut self.watched);
            self.follow_up = Some(if self.is_watching { FollowUp::Append { watched } } else { FollowUp::Unwatch });
        }
        Ok(())
    }

    /// Asks for all of a list, when nothing is changed any more.
    pub(super) fn last_list(&mut self, list: u32, out: &mut Vec<u8>) {
        write_step(Planned::Read { list }, out);
        self.expected.push_back(Expected::LastList { list });
    }
}

impl Awaited {
    /// The transaction has been answered.
    pub(super) fn answered(&self, now: u64, reply: &Reply, history: &mut History) -> Result<(), String> {
        let record = &mut history.transactions[self.place];
        let single = std::slice::from_ref(reply);
        let replies = match (self.is_exec, reply) {
            (false, _) => single,
            (true, Reply::Array(Some(replies))) => replies,
            (true, Reply::Array(None)) if !self.watched.is_empty() => {
                record.end = End::Aborted;
                let length = |step: &Step| match step {
                    Step::Read { list, found } => Some((*list, found.len())),
                    Step::Append { .. } => None,
                };
                history.broken_watches.push(BrokenWatch {
                    watched: self.watched_at,
                    answered: now,
                    registers: Vec::new(),
                    lists: self.watched.iter().filter_map(length).collect(),
                });
                return Ok(());
            }
            _ => return Err(format!("to a transaction on lists the server said {reply:?}")),
        };
        if replies.len() != self.planned.len() {
            return Err(format!("{} replies to {} commands", replies.len(), self.planned.len()));
        }
        let mut steps = self.watched.clone();
        for (planned, reply) in self.planned.iter().zip(replies) {
            steps.push(match (*planned, reply) {
                (Planned::Read { list }, reply) => Step::Read { list, found: elements(reply)? },
                (Planned::Append { list, element }, Reply::Integer(length)) => {
                    Step::Append { list, element, length: u32::try_from(*length).ok() }
                }
                (_, reply) => return Err(format!("to RPUSH the server said {reply:?}")),
            });
        }
        history.transfer_count += u64::from(steps.len() > 1);
        (record.end, record.steps) = (End::Committed(now), steps);
        Ok(())
    }

    pub(super) fn refused(&self, outcome: Outcome, history: &mut History) {
        match outcome {
            Outcome::Nothing => {
                history.refused_count += 1;
                history.transactions[self.place].end = End::Aborted;
            }
            Outcome::Unknown => history.unknown_count += 1,
        }
    }
}

/// The elements of a list as a reply tells them.
pub(crate) fn elements(reply: &Reply) -> Result<Vec<u32>, String> {
    let Reply::Array(Some(items)) = reply else { return Err(format!("no list: {reply:?}")) };
    let element = |item: &Reply| match item {
        Reply::Bulk(Some(bytes)) => std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok()),
        _ => None,
    };
    items.iter().map(|item| element(item).ok_or_else(|| format!("an element that nobody appended: {item:?}"))).collect()
}

fn write_step(step: Planned, out: &mut Vec<u8>) {
    match step {
        Planned::Append { list, element } => {
            crate::reply::encode(&[b"RPUSH", list_name(list).as_bytes(), element.to_string().as_bytes()], out);
        }
        Planned::Read { list } => crate::reply::encode(&[b"LRANGE", list_name(list).as_bytes(), b"0", b"-1"], out),
    }
}

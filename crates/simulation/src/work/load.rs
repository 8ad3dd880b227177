//! Clients that do nothing but ask: as soon as they are answered, or at times of their own.

use std::collections::VecDeque;

use group::ids::SessionId;
use stdx::Prng;
use stdx::slot::{SLOT_COUNT, Slot, tag_of};

use super::{Asking, Shape, Workload};

/// What a client sends at once, and what is known of it.
pub struct Ask {
    /// The requests.
    pub bytes: Vec<u8>,
    /// How many there are.
    pub requests: u64,
    /// How many steps of groups they take.
    pub steps: u64,
    /// How many of these steps the client's own core takes.
    pub taken_here: u64,
    /// Transactions over several groups among them.
    pub transactions: u64,
}

struct Client {
    seat: usize,
    session: SessionId,
    prng: Prng,
    /// Bytes of a reply that is not whole.
    input: Vec<u8>,
    /// What has no answer yet: when it was asked, and how many replies it lacks.
    asked: VecDeque<(u64, u64)>,
    is_over: bool,
}

/// All clients.
pub struct Load {
    cores: usize,
    seats: usize,
    groups: u32,
    /// The node that leads each group, and the groups that each node leads.
    leaders: Vec<u16>,
    led: Vec<Vec<u32>>,
    asking: Option<Asking>,
    prng: Prng,
    clients: Vec<Client>,
    answered: u64,
    errors: u64,
    error: Option<String>,
    is_measured: bool,
    latencies: Vec<u64>,
}

impl Load {
    /// Nobody asks yet.
    pub fn new(shape: &Shape, leaders: Vec<u16>, prng: Prng) -> Self {
        let mut led = vec![Vec::new(); shape.nodes];
        (0..).zip(&leaders).for_each(|(group, node)| led[usize::from(*node)].push(group));
        Self {
            cores: usize::from(shape.cores),
            seats: shape.nodes * usize::from(shape.cores),
            groups: shape.groups,
            leaders,
            led,
            asking: None,
            prng,
            clients: Vec::new(),
            answered: 0,
            errors: 0,
            error: None,
            is_measured: false,
            latencies: Vec::new(),
        }
    }

    /// New clients ask in this way, and those before no more. Answers their numbers.
    pub fn begin(&mut self, asking: Asking) -> std::ops::Range<usize> {
        self.end();
        let first = self.clients.len();
        for _ in 0..self.seats * asking.clients_per_core {
            self.clients.push(Client {
                seat: 0,
                session: SessionId { serial: 0, index: 0 },
                prng: self.prng.fork(),
                input: Vec::new(),
                asked: VecDeque::new(),
                is_over: false,
            });
        }
        self.asking = Some(asking);
        first..self.clients.len()
    }

    /// Nobody asks anything more.
    pub fn end(&mut self) {
        self.clients.iter_mut().for_each(|client| client.is_over = true);
    }

    /// Where a client is connected.
    pub fn seat(&mut self, client: usize, seat: usize, session: SessionId) {
        (self.clients[client].seat, self.clients[client].session) = (seat, session);
    }

    /// When a client asks next whatever is answered, if it goes by time.
    pub fn next_at(&mut self, client: usize, now: u64) -> Option<u64> {
        let every = self.asking.as_ref()?.every?;
        let client = &mut self.clients[client];
        // Evenly between nothing and twice the mean.
        (!client.is_over).then(|| now + client.prng.below(2 * every + 1))
    }

    /// What a client asks next, and which node it asks.
    pub fn ask(&mut self, number: usize, now: u64) -> Option<(usize, SessionId, Ask)> {
        let asking = self.asking.clone()?;
        if self.clients[number].is_over {
            return None;
        }
        let mut ask = Ask { bytes: Vec::new(), requests: 0, steps: 0, taken_here: 0, transactions: 0 };
        let mut replies = 0;
        for _ in 0..asking.pipeline {
            replies += self.one(number, &asking, &mut ask);
        }
        let client = &mut self.clients[number];
        client.asked.push_back((now, replies));
        Some((client.seat, client.session, ask))
    }

    /// One operation. Answers how many replies it gets.
    fn one(&mut self, number: usize, asking: &Asking, ask: &mut Ask) -> u64 {
        let first = self.group(number, asking.is_aware, None);
        let prng = &mut self.clients[number].prng;
        let is_read = match asking.workload {
            Workload::Get => true,
            Workload::Mixed => prng.chance(4, 5),
            Workload::Set | Workload::Pair => false,
        };
        let value = vec![b'x'; asking.value_bytes];
        if asking.workload != Workload::Pair {
            let key = self.key(number, first, asking.keys_per_group);
            match is_read {
                true => put(&mut ask.bytes, &[b"GET", &key]),
                false => put(&mut ask.bytes, &[b"SET", &key, &value]),
            }
            self.count(number, &[first], 1, ask);
            ask.requests += 1;
            return 1;
        }
        let second = self.group(number, false, Some(first));
        let keys = [first, second].map(|group| self.key(number, group, asking.keys_per_group));
        put(&mut ask.bytes, &[b"MULTI"]);
        keys.iter().for_each(|key| put(&mut ask.bytes, &[b"SET", key, &value]));
        put(&mut ask.bytes, &[b"EXEC"]);
        ask.requests += 4;
        if first == second {
            // Where there is one group, it does all of it in one step.
            self.count(number, &[first], 1, ask);
        } else {
            // Each group locks, prepares and resolves.
            self.count(number, &[first, second], 3, ask);
            ask.transactions += 1;
        }
        4
    }

    fn count(&self, client: usize, groups: &[u32], steps: u64, ask: &mut Ask) {
        for group in groups {
            let home = usize::from(self.leaders[*group as usize]) * self.cores + *group as usize % self.cores;
            ask.steps += steps;
            ask.taken_here += if home == self.clients[client].seat { steps } else { 0 };
        }
    }

    /// A group at random: of those that the client's node leads if the client knows which these are.
    fn group(&mut self, client: usize, is_aware: bool, but: Option<u32>) -> u32 {
        let led = &self.led[self.clients[client].seat / self.cores];
        let prng = &mut self.clients[client].prng;
        if is_aware && !led.is_empty() {
            return led[prng.below(led.len() as u64) as usize];
        }
        loop {
            let group = prng.below(u64::from(self.groups)) as u32;
            if but != Some(group) || self.groups == 1 {
                return group;
            }
        }
    }

    /// A key of a group at random.
    fn key(&mut self, client: usize, group: u32, keys_per_group: u64) -> Vec<u8> {
        let count = self.groups as usize;
        let first = (group as usize * SLOT_COUNT).div_ceil(count) as u64;
        let end = ((group as usize + 1) * SLOT_COUNT).div_ceil(count) as u64;
        let number = self.clients[client].prng.below(keys_per_group);
        let slot = Slot((first + number % (end - first)) as u16);
        format!("{{{}}}:{number}", tag_of(slot)).into_bytes()
    }

    /// A client hears something. True if it may ask again.
    pub fn hear(&mut self, number: usize, bytes: &[u8], now: u64) -> bool {
        let goes_by_time = self.asking.as_ref().is_some_and(|asking| asking.every.is_some());
        let pipeline = self.asking.as_ref().map_or(1, |asking| asking.pipeline);
        let client = &mut self.clients[number];
        client.input.extend_from_slice(bytes);
        let mut taken = 0;
        let mut is_done = false;
        while let Some(length) = reply_length(&client.input[taken..]) {
            if client.input[taken] == b'-' {
                self.errors += 1;
                self.error.get_or_insert_with(|| {
                    String::from_utf8_lossy(&client.input[taken..taken + length]).trim().to_owned()
                });
            }
            taken += length;
            let Some((asked, lacking)) = client.asked.front_mut() else {
                self.errors += 1;
                break;
            };
            *lacking -= 1;
            if *lacking == 0 {
                if self.is_measured {
                    self.latencies.push(now - *asked);
                }
                client.asked.pop_front();
                self.answered += pipeline;
                is_done = true;
            }
        }
        client.input.drain(..taken);
        is_done && !goes_by_time && !client.is_over && client.asked.is_empty()
    }

    /// Something has gone wrong.
    pub fn fail(&mut self, what: &str) {
        self.errors += 1;
        self.error.get_or_insert_with(|| what.to_owned());
    }

    /// Operations answered so far.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// From here on latencies count.
    pub fn measure(&mut self) {
        self.is_measured = true;
        self.latencies.clear();
        (self.errors, self.error) = (0, None);
    }

    /// Errors, one of them, and how long answers took, sorted.
    pub fn measured(&mut self) -> (u64, Option<String>, Vec<u64>) {
        self.is_measured = false;
        let mut latencies = std::mem::take(&mut self.latencies);
        latencies.sort_unstable();
        (self.errors, self.error.take(), latencies)
    }
}

/// Writes a request.
fn put(out: &mut Vec<u8>, words: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// How long the reply is that the bytes begin with; `None` if it is not whole.
fn reply_length(bytes: &[u8]) -> Option<usize> {
    let line_end = bytes.windows(2).position(|pair| pair == b"\r\n")? + 2;
    let number = || std::str::from_utf8(&bytes[1..line_end - 2]).ok()?.parse::<i64>().ok();
    match bytes[0] {
        b'$' => {
            let length = number().filter(|length| *length >= 0).map_or(0, |length| length as usize + 2);
            (bytes.len() >= line_end + length).then_some(line_end + length)
        }
        b'*' => {
            let mut at = line_end;
            for _ in 0..number().unwrap_or(0).max(0) {
                at += reply_length(&bytes[at..])?;
            }
            Some(at)
        }
        _ => Some(line_end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_of_one_group_takes_one_step() {
        for (groups, steps, transactions) in [(1, 1, 0), (2, 6, 1)] {
            let shape = Shape { nodes: 1, cores: 1, groups, replicas: 1, is_durable: false, seed: 1 };
            let mut load = Load::new(&shape, vec![0; groups as usize], Prng::new(1));
            let asking = Asking {
                workload: Workload::Pair,
                clients_per_core: 1,
                pipeline: 1,
                is_aware: false,
                every: None,
                value_bytes: 8,
                keys_per_group: 10,
            };
            assert_eq!(load.begin(asking), 0..1);
            let (_, _, ask) = load.ask(0, 0).expect("it asks");
            assert_eq!((ask.requests, ask.steps, ask.transactions), (4, steps, transactions), "{groups} groups");
        }
    }

    #[test]
    fn replies_are_counted_when_they_are_whole() {
        assert_eq!(reply_length(b"+OK\r\n+"), Some(5));
        assert_eq!(reply_length(b"$3\r\nabc\r\n"), Some(9));
        assert_eq!(reply_length(b"$3\r\nabc"), None);
        assert_eq!(reply_length(b"$-1\r\n"), Some(5));
        assert_eq!(reply_length(b"*2\r\n+OK\r\n+OK\r\n"), Some(14));
        assert_eq!(reply_length(b"*2\r\n+OK\r\n"), None);
    }
}

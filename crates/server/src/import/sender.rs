//! Sends what is in files to a server, many requests ahead of their replies, in bounded memory.

use std::collections::VecDeque;

use anyhow::{Context, Result, anyhow, bail};
use keyspace::rdb::{self as codec, Malformed};
use keyspace::{ItoaBuffer, Limits, Str, ValueRef};
use redis_files::aof::Request;
use redis_files::rdb::{Key, Part, dump_of};
use resp::{Frame, encode_request};

use super::files::Event;
use crate::connection::{Connection, Refused};

/// A batch of requests is sent when it has so many bytes,
const BATCH_BYTES: usize = 1 << 20;

/// or so many requests.
const BATCH_REQUESTS: usize = 1_000;

/// Words of a request that adds elements to a key.
const WORDS_MAX: usize = 10_000;

/// Strings from this length on are sent with SET, which has room for the longest.
const LONG_STRING_BYTES: usize = 64 << 20;

/// A request that has been sent.
struct Sent {
    /// Number of the item that it belongs to.
    item: u64,
    /// Bytes of the files up to its end.
    place: u64,
    /// What it is about, for anyone who must be told.
    about: Vec<u8>,
}

/// See the module.
pub struct Sender<'a> {
    connection: &'a mut Connection,
    replaces: bool,
    database: Option<u64>,
    batch: Vec<u8>,
    batch_sent: Vec<Sent>,
    /// Batches with replies that have not been read.
    ahead: VecDeque<Vec<Sent>>,
    /// Of the batch that is being heard: replies that have not been read.
    unread: usize,
    acknowledged: u64,
    /// The item that begins a key while the key's parts are being sent.
    first_item: u64,
    /// Requests of a log have begun.
    is_in_log: bool,
}

impl<'a> Sender<'a> {
    /// Sends over `connection`. Keys that are there are replaced, or refused.
    pub fn new(connection: &'a mut Connection, replaces: bool) -> Self {
        Self {
            connection,
            replaces,
            database: None,
            batch: Vec::new(),
            batch_sent: Vec::new(),
            ahead: VecDeque::new(),
            unread: 0,
            acknowledged: 0,
            first_item: 0,
            is_in_log: false,
        }
    }

    /// Items that the server has wholly acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Sends item number `item`.
    ///
    /// # Errors
    /// If the server is gone, or refuses what was sent earlier.
    pub fn send(&mut self, item: u64, place: u64, event: Event) -> Result<()> {
        match event {
            Event::Key(key) => self.send_key(item, place, key)?,
            Event::Library(code) => {
                let mut words = vec![b"FUNCTION".to_vec(), b"LOAD".to_vec()];
                words.extend(self.replaces.then(|| b"REPLACE".to_vec()));
                words.push(code);
                self.push(item, place, b"a library of functions", &words)?;
            }
            Event::Script(code) => {
                self.push(item, place, b"a script", &[b"SCRIPT".to_vec(), b"LOAD".to_vec(), code])?;
            }
            Event::Requests { requests, is_transaction } => {
                self.send_requests(item, place, requests, is_transaction)?
            }
            Event::Foreign { .. } | Event::ModuleAux(_) | Event::About(..) | Event::Time => {}
        }
        Ok(())
    }

    fn send_requests(&mut self, item: u64, place: u64, requests: Vec<Request>, is_transaction: bool) -> Result<()> {
        if !self.is_in_log {
            // From here on the requests select databases.
            self.is_in_log = true;
            self.push(item, place, b"SELECT", &[b"SELECT", &b"0"[..]])?;
        }
        if is_transaction {
            self.push(item, place, b"MULTI", &[b"MULTI"])?;
        }
        for request in requests {
            let about = request.iter().take(2).cloned().collect::<Vec<_>>().join(&b' ');
            self.push(item, place, &about, &request)?;
        }
        if is_transaction {
            self.push(item, place, b"EXEC", &[b"EXEC"])?;
        }
        Ok(())
    }

    fn send_key(&mut self, item: u64, place: u64, key: Key) -> Result<()> {
        // A key that is interrupted half-way is sent from its beginning.
        if matches!(key.part, Part::Whole | Part::First) {
            self.first_item = item;
        }
        let item = self.first_item;
        if self.database != Some(key.database) {
            self.database = Some(key.database);
            self.push(item, place, b"SELECT", &[&b"SELECT"[..], key.database.to_string().as_bytes()])?;
        }
        let deadline = key.expires_at_ms.map(|deadline| deadline.max(1).to_string());
        match key.part {
            Part::Whole if key.value[0] == 0 && key.value.len() >= LONG_STRING_BYTES => {
                let mut reader = codec::Reader::new(&key.value[1..]);
                let text = codec::read_text(&mut reader).map_err(|_| damaged(&key))?;
                let mut words: Vec<&[u8]> = vec![b"SET", &key.name, &text];
                words.extend(deadline.iter().flat_map(|deadline| [&b"PXAT"[..], deadline.as_bytes()]));
                words.extend((!self.replaces).then_some(&b"NX"[..]));
                self.push(item, place, &key.name, &words)
            }
            Part::Whole => self.restore(item, place, key, deadline),
            // It must not expire while it is being put together.
            Part::First => self.restore(item, place, key, None),
            Part::Middle => self.add(item, place, &key),
            Part::Last => {
                self.add(item, place, &key)?;
                match deadline {
                    Some(deadline) => {
                        self.push(item, place, &key.name, &[b"PEXPIREAT", &key.name[..], deadline.as_bytes()])
                    }
                    None => Ok(()),
                }
            }
        }
    }

    fn restore(&mut self, item: u64, place: u64, key: Key, deadline: Option<String>) -> Result<()> {
        let idle = key.idle_seconds.map(|seconds| seconds.to_string());
        let frequency = key.frequency.map(|frequency| frequency.to_string());
        let value = dump_of(key.value, key.vendor);
        let deadline = deadline.unwrap_or_else(|| "0".to_owned());
        let mut words: Vec<&[u8]> = vec![b"RESTORE", &key.name, deadline.as_bytes(), &value, b"ABSTTL"];
        words.extend(self.replaces.then_some(&b"REPLACE"[..]));
        words.extend(idle.iter().flat_map(|idle| [&b"IDLETIME"[..], idle.as_bytes()]));
        words.extend(frequency.iter().flat_map(|frequency| [&b"FREQ"[..], frequency.as_bytes()]));
        self.push(item, place, &key.name, &words)
    }

    /// Adds a further part of a collection to what is there.
    fn add(&mut self, item: u64, place: u64, key: &Key) -> Result<()> {
        let value = codec::restore(&dump_of(key.value.clone(), key.vendor), &Limits::default())
            .map_err(|_: Malformed| damaged(key))?;
        let mut words: Vec<Vec<u8>> = Vec::new();
        let mut put = |this: &mut Self, command: &[u8], element: &[&[u8]], is_last: bool| -> Result<()> {
            if words.is_empty() {
                words.extend([command.to_vec(), key.name.clone()]);
            }
            words.extend(element.iter().map(|word| word.to_vec()));
            if words.len() > 2 && (is_last || words.len() >= WORDS_MAX) {
                this.push(item, place, &key.name, &words)?;
                words.clear();
            }
            Ok(())
        };
        match value.as_ref() {
            ValueRef::List(list) => {
                list.iter().try_for_each(|element| put(self, b"RPUSH", &[element], false))?;
            }
            ValueRef::Set(set) => {
                let mut buffer = ItoaBuffer::new();
                set.iter()
                    .try_for_each(|element: Str<'_>| put(self, b"SADD", &[element.to_bytes(&mut buffer)], false))?;
            }
            ValueRef::Hash(hash) => {
                hash.iter().try_for_each(|(field, value)| put(self, b"HSET", &[field, value], false))?;
            }
            ValueRef::SortedSet(set) => set
                .iter()
                .try_for_each(|(member, score)| put(self, b"ZADD", &[score.to_string().as_bytes(), member], false))?,
            ValueRef::String(_)
            | ValueRef::Stream(_)
            | ValueRef::Json(_)
            | ValueRef::Sketch(_)
            | ValueRef::Vectors(_) => {
                bail!(damaged(key))
            }
        }
        put(self, b"", &[], true)
    }

    fn push<W: AsRef<[u8]>>(&mut self, item: u64, place: u64, about: &[u8], words: &[W]) -> Result<()> {
        encode_request(&mut self.batch, words);
        self.batch_sent.push(Sent { item, place, about: about[..about.len().min(256)].to_vec() });
        if self.batch.len() >= BATCH_BYTES || self.batch_sent.len() >= BATCH_REQUESTS {
            self.flush()?;
            if self.ahead.len() > 1 {
                self.hear()?;
            }
        }
        Ok(())
    }

    /// Sends nothing more, and waits until all that was sent has been answered, or nothing comes any more: what is on
    /// its way would be written after whatever comes next.
    pub fn abandon(&mut self) {
        let replies = self.unread + self.ahead.drain(..).map(|batch| batch.len()).sum::<usize>();
        for _ in 0..replies {
            if self.connection.receive().is_err() {
                return;
            }
        }
    }

    fn flush(&mut self) -> Result<()> {
        self.connection.send(&self.batch).context("the server has hung up, or takes nothing")?;
        self.batch.clear();
        self.batch.shrink_to(2 * BATCH_BYTES);
        self.ahead.push_back(std::mem::take(&mut self.batch_sent));
        Ok(())
    }

    /// Reads the replies to the oldest batch.
    fn hear(&mut self) -> Result<()> {
        let Some(batch) = self.ahead.pop_front() else { return Ok(()) };
        self.unread = batch.len();
        for sent in batch {
            let reply = self.connection.receive().context("the server has hung up, or does not answer")?;
            self.unread -= 1;
            let about = String::from_utf8_lossy(&sent.about);
            let refused = |why: &Frame| {
                let shown = format!("{about}, before byte {}: the server refuses it: {why}", sent.place);
                Refused::new(shown, why.as_bytes().unwrap_or_default())
            };
            match &reply {
                Frame::Error(text) if text.starts_with(b"BUSYKEY") => {
                    bail!("{about} is there already: another client writes, or use --replace")
                }
                reply if reply.is_error() => bail!(refused(reply)),
                Frame::Null if !self.is_in_log => {
                    bail!("{about}, before byte {}: the server refuses it: there is such a key already", sent.place)
                }
                // An EXEC answers with what became of each request.
                reply => {
                    if let Some(error) =
                        reply.elements().and_then(|replies| replies.iter().find(|reply| reply.is_error()))
                    {
                        bail!(refused(error));
                    }
                }
            }
            // An item is acknowledged when the next one is: it may consist of several requests.
            self.acknowledged = self.acknowledged.max(sent.item - 1);
        }
        Ok(())
    }

    /// Sends what is left and reads all replies.
    ///
    /// # Errors
    /// As for [`Sender::send`].
    pub fn finish(&mut self) -> Result<()> {
        self.flush()?;
        while !self.ahead.is_empty() {
            self.hear()?;
        }
        Ok(())
    }
}

fn damaged(key: &Key) -> anyhow::Error {
    anyhow!(
        "{}, at byte {}: its value cannot be read: the file is damaged",
        String::from_utf8_lossy(&key.name),
        key.offset
    )
}

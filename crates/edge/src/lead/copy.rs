//! A copy of all data at one moment, as an RDB file: a backup, made over a connection of our own to ourselves, and
//! turned into another form chunk by chunk. Neither the data nor a group of them is ever in memory a second time.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use group::group_seed::GroupSeed;
use group::ids::{GroupId, NodeId};
use keyspace::{Keyspace, Layout, Moment, Tuning};
use node::Reader;
use redis_files::write::RdbWriter;
use resp::{Frame, encode_request};
use stdx::UnixMillis;

use super::backlog::nameless;
use crate::host::Host;
use crate::host_session::HostSession;
use crate::limits::COPY_POLL;

/// What all groups hold at one moment.
#[derive(Debug)]
pub struct Copy {
    /// All of it.
    pub file: File,
    /// Its length.
    pub bytes: u64,
    /// The same without keys.
    pub functions: Vec<u8>,
    /// The same with neither keys nor functions.
    pub nothing: Vec<u8>,
    /// Keys left out, since their types belong to modules.
    pub left_out: u64,
    /// Hashes written without the deadlines of their fields, since the reader knows none.
    pub without_deadlines: u64,
}

/// A copy that has begun.
#[derive(Debug)]
pub struct Begun {
    connection: HostSession,
    name: String,
    databases: u16,
    moment: UnixMillis,
    /// Behind which entries the logs of groups were cut, in the order of groups.
    pub places: Vec<u64>,
    /// Whether groups have parts: those have none that had gone by then.
    has_part: Vec<bool>,
}

/// What takes what groups hold.
trait Sink {
    /// Libraries of functions.
    fn libraries(&mut self, codes: Vec<Vec<u8>>);

    /// Some keys of a database.
    fn keys(&mut self, keyspace: &Keyspace, database: u16, moment: Moment) -> io::Result<()>;
}

/// Writes an RDB file.
struct RdbSink {
    writer: RdbWriter<File>,
    functions: RdbWriter<Vec<u8>>,
    selected: Option<u16>,
    /// The reader that it is written for.
    reader: Reader,
    /// Keys left out.
    left_out: u64,
    /// See [`Copy::without_deadlines`].
    without_deadlines: u64,
}

/// Writes requests that another cluster carries out.
struct RequestSink {
    writer: io::BufWriter<File>,
    /// Of the first request that could not be written.
    fault: Option<io::Error>,
}

impl Begun {
    /// Cuts all groups.
    ///
    /// # Errors
    /// Why that cannot be done now.
    pub fn begin(host: &Host) -> Result<Self, String> {
        let io = |error: io::Error| error.to_string();
        let name = crate::entropy::random_hex::<16>().map_err(io)?;
        let mut connection = HostSession::open(host).map_err(io)?;
        let reply = connection.call(&["BACKUP", "BEGIN", &name]).map_err(io)?;
        let strange = || format!("BACKUP BEGIN answered {reply}");
        let mut numbers = Vec::new();
        for element in reply.elements().ok_or_else(strange)? {
            let Frame::Integer(number) = element else { return Err(strange()) };
            numbers.push(*number);
        }
        let [groups, databases, moment, places @ ..] = &numbers[..] else { return Err(strange()) };
        if places.len() as i64 != *groups {
            return Err(strange());
        }
        Ok(Self {
            connection,
            name,
            databases: u16::try_from(*databases).map_err(|_| strange())?,
            moment: UnixMillis(*moment),
            places: places.iter().map(|place| place.unsigned_abs()).collect(),
            has_part: places.iter().map(|place| *place >= 0).collect(),
        })
    }

    /// Reads all of it, and writes it as such a reader wants it.
    ///
    /// # Errors
    /// One line.
    pub fn copy(mut self, directory: &Path, reader: Reader) -> Result<Copy, String> {
        let copied = self.read(directory, reader);
        self.end();
        copied
    }

    /// The moment at which groups were cut.
    pub fn moment(&self) -> UnixMillis {
        self.moment
    }

    /// Reads all of it, and writes it as requests for another cluster: a file, and its length.
    ///
    /// # Errors
    /// One line.
    pub fn requests(mut self, directory: &Path) -> Result<(File, u64), String> {
        let io = |error: io::Error| format!("the copy cannot be written: {error}");
        let writer = io::BufWriter::new(nameless(directory).map_err(io)?);
        let mut sink = RequestSink { writer, fault: None };
        let read = self.read_into(&mut sink, true);
        self.end();
        read?;
        sink.fault.map_or(Ok(()), Err).map_err(io)?;
        let mut file = sink.writer.into_inner().map_err(|error| io(error.into_error()))?;
        let bytes = io::Seek::stream_position(&mut file).map_err(io)?;
        Ok((file, bytes))
    }

    /// Anyone who keeps the parts finds out by itself if it does not hear this.
    fn end(&mut self) {
        for group in 0..self.places.len() {
            let _ = self.connection.call(&["BACKUP", "END", &self.name, &group.to_string()]);
        }
    }

    fn read(&mut self, directory: &Path, reader: Reader) -> Result<Copy, String> {
        let io = |error: io::Error| format!("the copy cannot be written: {error}");
        let mut sink = RdbSink {
            writer: begin_file(nameless(directory).map_err(io)?, reader, self.moment).map_err(io)?,
            functions: begin_file(Vec::new(), reader, self.moment).map_err(io)?,
            selected: None,
            reader,
            left_out: 0,
            without_deadlines: 0,
        };
        self.read_into(&mut sink, reader >= Reader::Redis7)?;
        let mut file = sink.writer.finish().map_err(io)?;
        let bytes = io::Seek::stream_position(&mut file).map_err(io)?;
        let functions = sink.functions.finish().map_err(io)?;
        let nothing = begin_file(Vec::new(), reader, self.moment).and_then(RdbWriter::finish).map_err(io)?;
        let RdbSink { left_out, without_deadlines, .. } = sink;
        Ok(Copy { file, bytes, functions, nothing, left_out, without_deadlines })
    }

    fn read_into(&mut self, sink: &mut impl Sink, wants_functions: bool) -> Result<(), String> {
        let io = |error: io::Error| format!("the copy cannot be written: {error}");
        let part = |(group, has_part): (u32, &bool)| has_part.then(|| (self.seed(group), 0));
        let mut parts: Vec<_> = (0..).zip(&self.has_part).map(part).collect();
        // A chunk of each group in turn, so that none waits long enough to be given up.
        while parts.iter().any(Option::is_some) {
            let mut is_waiting = true;
            for (group, place) in (0..).zip(&mut parts) {
                let Some((seed, number)) = place else { continue };
                let chunk = match self.chunk(group, *number)? {
                    Part::Chunk(chunk) => chunk,
                    Part::Awaited => continue,
                    Part::End if seed.keyspace.is_restore_incomplete() => {
                        return Err(format!("group {group} ends in the middle of a value"));
                    }
                    Part::End => {
                        *place = None;
                        continue;
                    }
                };
                (is_waiting, *number) = (false, *number + 1);
                seed.restore(&chunk).map_err(|corrupt| format!("group {group}: {corrupt}"))?;
                if group == 0 && !seed.state.is_empty() && wants_functions {
                    sink.libraries(group::backup::libraries_of(&std::mem::take(&mut seed.state)));
                }
                if !seed.keyspace.is_restore_incomplete() {
                    self.write_keys(seed, sink).map_err(io)?;
                }
            }
            if is_waiting {
                thread::sleep(COPY_POLL);
            }
        }
        Ok(())
    }

    fn seed(&self, group: u32) -> GroupSeed {
        let options = keyspace::Options {
            databases: self.databases,
            hash_seed: 1,
            layout: Layout::Scratch,
            tuning: Tuning::default(),
        };
        GroupSeed::new(GroupId(group), NodeId(1), Keyspace::new(options))
    }

    /// Writes the keys that have been read, and forgets them.
    fn write_keys(&self, seed: &mut GroupSeed, sink: &mut impl Sink) -> io::Result<()> {
        // The group's own moment, and not that of the copy: what has expired by another clock may still be changed.
        let moment = Moment { unix: seed.keyspace.latest(), seed: 0 };
        let mut empty = seed.keyspace.new_like();
        empty.advance_to(moment);
        let keyspace = std::mem::replace(&mut seed.keyspace, empty);
        (0..self.databases)
            .filter(|database| keyspace.key_count(*database) > 0)
            .try_for_each(|database| sink.keys(&keyspace, database, moment))
    }

    fn chunk(&mut self, group: u32, number: u64) -> Result<Part, String> {
        let words = ["BACKUP", "READ", &self.name, &group.to_string(), &number.to_string()];
        match self.connection.call(&words).map_err(|error| error.to_string())? {
            // So many percent are on disk.
            Frame::Integer(_) => Ok(Part::Awaited),
            Frame::Bulk(chunk) => Ok(Part::Chunk(chunk)),
            Frame::Null => Ok(Part::End),
            Frame::Error(text) => Err(String::from_utf8_lossy(&text).into_owned()),
            other => Err(format!("BACKUP READ answered {other}")),
        }
    }
}

impl Sink for RdbSink {
    fn libraries(&mut self, codes: Vec<Vec<u8>>) {
        for code in codes {
            self.writer.library(&code);
            self.functions.library(&code);
        }
    }

    fn keys(&mut self, keyspace: &Keyspace, database: u16, moment: Moment) -> io::Result<()> {
        if self.selected.replace(database) != Some(database) {
            self.writer.select(database);
        }
        let mut outcome = Ok(());
        keyspace.for_each(database, moment, |entry| {
            // A Redis without the module would not read the file.
            if entry.value().is_of_module() {
                self.left_out += 1;
            } else if outcome.is_ok() {
                let deadline = entry.expires_at().map(|deadline| deadline.0);
                let is_stripped = self.reader < Reader::Redis74 && entry.value().has_expiring_fields();
                self.without_deadlines += u64::from(is_stripped);
                outcome = self.writer.key(entry.key(), deadline, entry.value());
            }
        });
        outcome
    }
}

impl RequestSink {
    fn put(&mut self, words: &[&[u8]]) {
        let mut bytes = Vec::new();
        encode_request(&mut bytes, words);
        if self.fault.is_none() {
            self.fault = self.writer.write_all(&bytes).err();
        }
    }
}

impl Sink for RequestSink {
    fn libraries(&mut self, codes: Vec<Vec<u8>>) {
        for code in codes {
            // Who was cut off may hear it again.
            self.put(&[b"FUNCTION", b"LOAD", b"REPLACE", &code]);
        }
    }

    fn keys(&mut self, keyspace: &Keyspace, database: u16, moment: Moment) -> io::Result<()> {
        self.put(&[b"SELECT", database.to_string().as_bytes()]);
        keyspace.for_each(database, moment, |entry| {
            let deadline = entry.expires_at().map_or(0, |deadline| deadline.0).to_string();
            let dump = keyspace::rdb::dump(entry.value());
            self.put(&[b"RESTORE", entry.key(), deadline.as_bytes(), &dump, b"REPLACE", b"ABSTTL"]);
        });
        self.fault.take().map_or(Ok(()), Err)
    }
}

/// What there is of a group's part at some place.
enum Part {
    Chunk(Vec<u8>),
    /// It is not on disk yet.
    Awaited,
    End,
}

fn begin_file<W: io::Write>(file: W, reader: Reader, moment: UnixMillis) -> io::Result<RdbWriter<W>> {
    let mut writer = RdbWriter::new(file, reader.dialect(), reader.rdb_version())?;
    writer.aux("redis-bits", "64");
    writer.aux("ctime", &(moment.0 / 1_000).to_string());
    writer.aux("holdfast-ver", env!("CARGO_PKG_VERSION"));
    Ok(writer)
}

/// Begins a copy on a thread of its own, tells `begun` where it was cut, and `copied` when it is there.
pub fn start(
    host: &Arc<Host>,
    directory: &Path,
    reader: Reader,
    begun: impl FnOnce(Result<Vec<u64>, String>) + Send + 'static,
    copied: impl FnOnce(Result<Copy, String>) + Send + 'static,
) -> io::Result<()> {
    let (host, directory) = (Arc::clone(host), directory.to_owned());
    thread::Builder::new().name("copy".to_owned()).spawn(move || match Begun::begin(&host) {
        Ok(copy) => {
            begun(Ok(copy.places.clone()));
            copied(copy.copy(&directory, reader));
        }
        Err(why) => begun(Err(why)),
    })?;
    Ok(())
}

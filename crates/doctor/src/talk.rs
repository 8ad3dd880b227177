//! What is asked of a server. How a connection is made, secured and authenticated is the caller's: see [`Dialer`].

use std::collections::BTreeMap;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use resp::Frame;

use crate::parse;

/// One connection to a server.
pub trait Link: Send {
    /// Sends one request.
    ///
    /// # Errors
    /// If the connection is gone.
    fn send(&mut self, words: &[&[u8]]) -> io::Result<()>;

    /// The next reply. After an error of the kind `WouldBlock` or `TimedOut` it can be called again, and goes on with
    /// the same reply.
    ///
    /// # Errors
    /// If none has come in so long, or the connection is gone.
    fn receive(&mut self, patience: Duration) -> io::Result<Frame>;
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DialError {
    /// Nobody listens, or the listener turns us away.
    Refused(String),
    /// Somebody listens, and says nothing.
    Silent(String),
}

/// How servers are reached.
pub trait Dialer: Sync {
    /// A connection on which commands can be given.
    ///
    /// # Errors
    /// Names the place and the cause.
    fn dial(&self, place: &str) -> Result<Box<dyn Link>, DialError>;

    /// How long the network takes to agree on a connection. The kernel at the other end does that by itself, so it is
    /// the distance alone, however busy the server is.
    ///
    /// # Errors
    /// Of the system.
    fn reach(&self, place: &str) -> io::Result<Duration>;
}

/// Longer no single answer is waited for.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// True if a reply has not come yet.
pub fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// The reply to one request; one that is an error is an error.
///
/// # Errors
/// What the server or the system says, on one line.
pub fn ask(link: &mut dyn Link, words: &[&str]) -> Result<Frame, String> {
    let told = |why: String| format!("{}: {why}", words.join(" "));
    let bytes: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    match link.send(&bytes).and_then(|()| link.receive(PATIENCE)) {
        Ok(Frame::Error(text)) => Err(told(String::from_utf8_lossy(&text).into_owned())),
        Ok(reply) => Ok(reply),
        Err(error) if is_late(&error) => Err(told(format!("no answer in {} s", PATIENCE.as_secs()))),
        Err(error) => Err(told(error.to_string())),
    }
}

/// The text of a reply.
pub fn text(frame: &Frame) -> String {
    match frame {
        Frame::Integer(number) => number.to_string(),
        other => String::from_utf8_lossy(other.as_bytes().unwrap_or_default()).into_owned(),
    }
}

/// INFO at a moment.
#[derive(Clone, Debug)]
pub struct Info {
    /// When it came.
    pub moment: Instant,
    /// Its fields.
    pub fields: BTreeMap<String, String>,
}

impl Info {
    /// Asks for all of it.
    ///
    /// # Errors
    /// See [`ask`].
    pub fn of(link: &mut dyn Link) -> Result<Self, String> {
        let reply = ask(link, &["INFO"])?;
        Ok(Self { moment: Instant::now(), fields: parse::info(&text(&reply)) })
    }

    /// A field; empty if there is none.
    pub fn text(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    /// A field that is a number.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.text(name).parse().ok().filter(|number: &f64| number.is_finite())
    }

    /// A field that counts.
    pub fn count(&self, name: &str) -> Option<u64> {
        self.text(name).parse().ok()
    }

    /// True for Holdfast.
    pub fn is_holdfast(&self) -> bool {
        self.fields.contains_key("holdfast_version")
    }

    /// What it is, such as `Redis 7.0.15`.
    pub fn product(&self) -> String {
        let named = [("holdfast_version", "Holdfast"), ("valkey_version", "Valkey"), ("redis_version", "Redis")];
        let found = named.iter().find(|(field, _)| self.fields.contains_key(*field));
        found.map_or("a server of unknown kind".to_owned(), |(field, name)| format!("{name} {}", self.text(field)))
    }
}

/// Names and values of CONFIG GET.
///
/// # Errors
/// See [`ask`].
pub fn configuration(link: &mut dyn Link) -> Result<BTreeMap<String, String>, String> {
    Ok(match ask(link, &["CONFIG", "GET", "*"])? {
        Frame::Map(pairs) => pairs.iter().map(|(name, value)| (text(name), text(value))).collect(),
        other => {
            let pairs = other.elements().unwrap_or_default().chunks_exact(2);
            pairs.map(|pair| (text(&pair[0]), text(&pair[1]))).collect()
        }
    })
}

/// A command that was slow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowCommand {
    /// Its number; later ones have larger ones.
    pub id: i64,
    /// Unix seconds of its beginning.
    pub at: u64,
    /// Microseconds it took.
    pub micros: u64,
    /// Its first words.
    pub words: String,
}

/// Characters of a command that are shown.
const WORDS_SHOWN: usize = 60;

/// The latest entries of the slow log.
///
/// # Errors
/// See [`ask`].
pub fn slow_log(link: &mut dyn Link) -> Result<Vec<SlowCommand>, String> {
    let reply = ask(link, &["SLOWLOG", "GET", "128"])?;
    Ok(reply.elements().unwrap_or_default().iter().filter_map(slow_command).collect())
}

fn slow_command(entry: &Frame) -> Option<SlowCommand> {
    let [Frame::Integer(id), Frame::Integer(at), Frame::Integer(micros), words, ..] = entry.elements()? else {
        return None;
    };
    let words = words.elements()?.iter().map(text).collect::<Vec<_>>().join(" ");
    Some(SlowCommand {
        id: *id,
        at: u64::try_from(*at).ok()?,
        micros: u64::try_from(*micros).ok()?,
        words: shortened(&words),
    })
}

/// A time in which a core of the server stood still.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PastStall {
    /// Unix milliseconds of its end.
    pub ended_ms: u64,
    /// Microseconds it took.
    pub micros: u64,
    /// What the server blames: `work` is the server itself.
    pub cause: String,
    /// What it did.
    pub work: String,
}

/// What the black box of a server has kept. Only Holdfast has one.
///
/// # Errors
/// See [`ask`].
pub fn black_box(link: &mut dyn Link) -> Result<Vec<PastStall>, String> {
    let reply = ask(link, &["HOLDFAST", "STALLS", "1024"])?;
    let latest = field(&reply, "latest").and_then(Frame::elements).unwrap_or_default();
    Ok(latest.iter().filter_map(past_stall).collect())
}

fn past_stall(entry: &Frame) -> Option<PastStall> {
    let number = |name| match field(entry, name)? {
        Frame::Integer(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    let words = |name| field(entry, name).map(text).map(|words| shortened(&words));
    Some(PastStall {
        ended_ms: number("unix_ms")?,
        micros: number("took_us")?,
        cause: words("cause")?,
        work: words("work")?,
    })
}

/// A key that has taken much lately.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HotKey {
    /// Its name, shortened.
    pub name: String,
    /// The part of one core's time that its commands took.
    pub share: f64,
    /// Its part of the calls of the node.
    pub calls_share: f64,
    /// Calls in a second.
    pub calls_per_second: f64,
}

/// The keys that a server has found to take much in the last minutes, what takes most time first. Only Holdfast counts
/// them all the time.
///
/// # Errors
/// See [`ask`].
pub fn hot_keys(link: &mut dyn Link) -> Result<Vec<HotKey>, String> {
    Ok(parse_hot_keys(&ask(link, &["HOLDFAST", "HOTKEYS", "10"])?))
}

fn parse_hot_keys(reply: &Frame) -> Vec<HotKey> {
    let number = |map: &Frame, name| match field(map, name) {
        Some(Frame::Integer(number)) => *number as f64,
        _ => 0.0,
    };
    let seconds = (number(reply, "window_ms") / 1e3).max(1.0);
    let calls = number(reply, "calls").max(1.0);
    let key = |key: &Frame| {
        Some(HotKey {
            name: shortened(&text(field(key, "key")?)),
            share: number(key, "time_us") / 1e6 / seconds,
            calls_share: number(key, "calls") / calls,
            calls_per_second: number(key, "calls") / seconds,
        })
    };
    field(reply, "keys").and_then(Frame::elements).unwrap_or_default().iter().filter_map(key).collect()
}

/// A field of a map, in the form of either version of the protocol.
fn field<'a>(map: &'a Frame, name: &str) -> Option<&'a Frame> {
    let is_name = |frame: &Frame| frame.as_bytes() == Some(name.as_bytes());
    match map {
        Frame::Map(pairs) => pairs.iter().find(|(key, _)| is_name(key)).map(|(_, value)| value),
        other => other.elements()?.chunks_exact(2).find(|pair| is_name(&pair[0])).map(|pair| &pair[1]),
    }
}

/// Text that fits into a line and moves no cursor.
pub fn shortened(text: &str) -> String {
    let clean: String = text.chars().map(|it| if it.is_control() { ' ' } else { it }).take(WORDS_SHOWN + 1).collect();
    if clean.chars().count() > WORDS_SHOWN {
        format!("{}…", clean.chars().take(WORDS_SHOWN).collect::<String>())
    } else {
        clean
    }
}

/// A client that has left replies unread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// Where it comes from.
    pub address: String,
    /// Its name, if it has told one.
    pub name: String,
    /// Its last command.
    pub command: String,
    /// Bytes of replies that wait for it.
    pub unread_bytes: u64,
}

/// Clients by CLIENT LIST.
///
/// # Errors
/// See [`ask`].
pub fn clients(link: &mut dyn Link) -> Result<Vec<Client>, String> {
    Ok(parse_clients(&text(&ask(link, &["CLIENT", "LIST"])?)))
}

/// A line for each, of fields with `=`.
pub fn parse_clients(text: &str) -> Vec<Client> {
    let client = |line: &str| {
        let fields: BTreeMap<&str, &str> = line.split(' ').filter_map(|field| field.split_once('=')).collect();
        let field = |name: &str| fields.get(name).copied().unwrap_or_default().to_owned();
        let unread_bytes = field("omem").parse().ok()?;
        Some(Client { address: field("addr"), name: field("name"), command: field("cmd"), unread_bytes })
    };
    text.lines().filter_map(client).collect()
}

/// A key and what it takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySize {
    /// Its name, shortened.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
}

/// Keys that were looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySample {
    /// How many.
    pub count: u64,
    /// How many there are.
    pub all: u64,
    /// The largest, the largest first.
    pub largest: Vec<KeySize>,
}

/// Keys looked at most.
const SAMPLE_MAX: u64 = 20_000;
/// Keys asked for at a time.
const BATCH: &str = "100";
/// The sampling rests so many times as long as it took: a server gives at most a tenth of a thread to it.
const REST: u32 = 9;

/// Looks at the sizes of keys until `until`.
///
/// # Errors
/// If a command that it needs is refused.
pub fn sample_keys(link: &mut dyn Link, info: &Info, until: Instant) -> Result<KeySample, String> {
    let mut sample = KeySample::default();
    let databases: Vec<(u32, u64)> = info
        .fields
        .iter()
        .filter_map(|(name, value)| {
            let keys = value.split(',').find_map(|part| part.strip_prefix("keys="))?.parse().ok()?;
            Some((name.strip_prefix("db")?.parse().ok()?, keys))
        })
        .collect();
    sample.all = databases.iter().map(|(_, keys)| keys).sum();
    for (database, _) in databases {
        if database > 0 {
            ask(link, &["SELECT", &database.to_string()])?;
        }
        let mut cursor = "0".to_owned();
        loop {
            let began = Instant::now();
            let page = ask(link, &["SCAN", &cursor, "COUNT", BATCH])?;
            let [next, keys] = page.elements().unwrap_or_default() else {
                return Err("SCAN: a reply of no page".into());
            };
            cursor = text(next);
            let keys: Vec<&[u8]> = keys.elements().unwrap_or_default().iter().filter_map(Frame::as_bytes).collect();
            weigh(link, &keys, &mut sample)?;
            if cursor == "0" {
                break;
            }
            if sample.count >= SAMPLE_MAX || Instant::now() >= until {
                return Ok(sample);
            }
            let rest = began.elapsed() * REST;
            thread::sleep(rest.max(Duration::from_millis(1)).min(until.saturating_duration_since(Instant::now())));
        }
    }
    Ok(sample)
}

/// Largest keys that are remembered.
const LARGEST: usize = 5;

fn weigh(link: &mut dyn Link, keys: &[&[u8]], sample: &mut KeySample) -> Result<(), String> {
    let told = |error: io::Error| format!("MEMORY USAGE: {error}");
    for key in keys {
        link.send(&[b"MEMORY", b"USAGE", *key, b"SAMPLES", b"5"]).map_err(told)?;
    }
    let mut refusal = None;
    for key in keys {
        match link.receive(PATIENCE).map_err(told)? {
            Frame::Integer(size) => {
                sample.count += 1;
                let name = shortened(&String::from_utf8_lossy(key));
                sample.largest.push(KeySize { name, bytes: u64::try_from(size).unwrap_or(0) });
            }
            // It has expired since, or moved away.
            Frame::Error(text) if !text.starts_with(b"MOVED") => refusal = Some(text),
            _ => {}
        }
    }
    sample.largest.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    sample.largest.truncate(LARGEST);
    match refusal {
        Some(text) => Err(format!("MEMORY USAGE: {}", String::from_utf8_lossy(&text))),
        None => Ok(()),
    }
}

/// Bytes that are sent back and forth to measure the network.
pub const ECHO_BYTES: usize = 64 * 1024;
/// How often.
const ECHOES: usize = 5;

/// The bytes a second that pass in both directions, beyond the round trip of a small request: the best of some tries.
///
/// # Errors
/// If ECHO is refused or not answered.
pub fn throughput(link: &mut dyn Link, round_trip: Duration) -> Result<f64, String> {
    let payload = vec![b'x'; ECHO_BYTES];
    let mut best: f64 = 0.0;
    let begun = Instant::now();
    for _ in 0..ECHOES {
        let sent = Instant::now();
        let reply = link.send(&[b"ECHO", &payload]).and_then(|()| link.receive(PATIENCE));
        match reply {
            Ok(Frame::Error(text)) => return Err(format!("ECHO: {}", String::from_utf8_lossy(&text))),
            Ok(_) => {}
            Err(error) => return Err(format!("ECHO: {error}")),
        }
        let seconds = sent.elapsed().saturating_sub(round_trip).as_secs_f64().max(1e-6);
        best = best.max(2.0 * ECHO_BYTES as f64 / seconds);
        if begun.elapsed() > Duration::from_secs(3) {
            break;
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_the_slow_log_are_read_and_odd_ones_left_out() {
        let bulk = |text: &str| Frame::Bulk(text.as_bytes().to_vec());
        let words = Frame::Array(vec![bulk("KEYS"), bulk("*\r\n")]);
        let entry = Frame::Array(vec![Frame::Integer(3), Frame::Integer(100), Frame::Integer(250_000), words.clone()]);
        let expected = SlowCommand { id: 3, at: 100, micros: 250_000, words: "KEYS *  ".into() };
        assert_eq!(slow_command(&entry), Some(expected));
        let negative = Frame::Array(vec![Frame::Integer(3), Frame::Integer(-1), Frame::Integer(2), words]);
        assert_eq!(slow_command(&negative), None);
        assert_eq!(slow_command(&Frame::Null), None);
        assert_eq!(slow_command(&Frame::Array(vec![Frame::Null])), None);
        assert_eq!(shortened(&"é".repeat(70)).chars().count(), 61);
    }

    #[test]
    fn hot_keys_are_told_as_parts_of_a_cores_time_and_of_all_calls() {
        let bulk = |text: &str| Frame::Bulk(text.into());
        let map = |fields: &[(&str, Frame)]| {
            Frame::Array(fields.iter().flat_map(|(name, value)| [bulk(name), value.clone()]).collect())
        };
        let key = map(&[("key", bulk("a\n")), ("calls", Frame::Integer(40)), ("time_us", Frame::Integer(500_000))]);
        let reply = map(&[
            ("window_ms", Frame::Integer(2_000)),
            ("calls", Frame::Integer(80)),
            ("keys", Frame::Array(vec![key, Frame::Null])),
        ]);
        let expected = HotKey { name: "a ".into(), share: 0.25, calls_share: 0.5, calls_per_second: 20.0 };
        assert_eq!(parse_hot_keys(&reply), [expected]);
        assert!(parse_hot_keys(&Frame::Null).is_empty());
    }

    #[test]
    fn clients_are_lines_of_fields() {
        let text = "id=6 addr=127.0.0.1:34352 name=app omem=70 cmd=get user=default\nid=7 addr=x\nomem=y\n\n";
        let expected =
            Client { address: "127.0.0.1:34352".into(), name: "app".into(), command: "get".into(), unread_bytes: 70 };
        assert_eq!(parse_clients(text), [expected]);
    }

    /// Answers by a table, and otherwise with an error.
    pub(crate) struct Scripted {
        pub replies: Vec<Frame>,
    }

    impl Link for Scripted {
        fn send(&mut self, _: &[&[u8]]) -> io::Result<()> {
            Ok(())
        }

        fn receive(&mut self, _: Duration) -> io::Result<Frame> {
            if self.replies.is_empty() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(self.replies.remove(0)) }
        }
    }

    #[test]
    fn the_largest_keys_come_first_and_refusals_are_told() {
        let info = |text: &str| Info { moment: Instant::now(), fields: parse::info(text) };
        let until = Instant::now() + Duration::from_secs(120);
        let keys = Frame::Array(["a", "b", "c"].map(|key| Frame::Bulk(key.into())).to_vec());
        let page = Frame::Array(vec![Frame::Bulk(b"0".to_vec()), keys]);
        let sizes = [Frame::Integer(10), Frame::Null, Frame::Integer(50)];
        let mut link = Scripted { replies: [vec![page.clone()], sizes.to_vec()].concat() };
        let sample = sample_keys(&mut link, &info("db0:keys=3,expires=0"), until).expect("a sample");
        assert_eq!((sample.count, sample.all), (2, 3));
        assert_eq!(sample.largest[0], KeySize { name: "c".into(), bytes: 50 });
        let refused = Frame::Error(b"NOPERM no".to_vec());
        let mut link = Scripted { replies: [vec![page], vec![refused; 3]].concat() };
        let why = sample_keys(&mut link, &info("db0:keys=3"), until).expect_err("a refusal");
        assert_eq!(why, "MEMORY USAGE: NOPERM no");
        let mut odd = Scripted { replies: vec![Frame::Null] };
        assert!(sample_keys(&mut odd, &info("db0:keys=3"), until).is_err());
        assert_eq!(sample_keys(&mut odd, &info("db0:nothing\ndbx:keys=1"), until), Ok(KeySample::default()));
        assert!(ask(&mut odd, &["PING"]).is_err_and(|why| why.starts_with("PING: no answer")));
    }
}

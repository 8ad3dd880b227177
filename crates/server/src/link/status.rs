//! How a link is: what both ends measure, as JSON, as metrics for Prometheus, and in words.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use super::line::Carried;
use crate::migrate::check::bytes;

/// Rates are means over so many seconds.
const RATE_SAMPLES: usize = 30;

/// A request that is longer or slower is not answered.
const REQUEST_BYTES_MAX: usize = 8_192;
const REQUEST_PATIENCE: Duration = Duration::from_secs(2);

/// What an end knows of itself.
pub struct Measured {
    pub role: &'static str,
    pub stream: Option<String>,
    pub start: u64,
    pub end: u64,
    pub kept: u64,
    pub applied: u64,
    pub is_progress_known: bool,
    pub lag: Duration,
    pub file_bytes: u64,
    pub bytes_max: u64,
    pub received_bytes: u64,
    pub copy_bytes: u64,
    pub copy_done_bytes: u64,
    pub copies: u64,
    pub is_redis_there: bool,
    pub redis_cuts: u64,
    pub redis_fault: String,
    pub replicas: u64,
}

/// What is known of the line.
#[derive(Default)]
pub struct LineReport {
    pub sent: Arc<Carried>,
    pub received: Arc<Carried>,
    state: Mutex<LineState>,
}

#[derive(Default)]
struct LineState {
    up_since: Option<Instant>,
    /// The connection that is up, or was last.
    session: u64,
    cuts: u64,
    last_cut: Option<(SystemTime, Instant, String)>,
    /// Each second: when, bytes from the source, bytes kept by the far end.
    samples: VecDeque<(Instant, u64, u64)>,
}

impl LineReport {
    fn lock(&self) -> std::sync::MutexGuard<'_, LineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The line is up, with the connection of this number.
    pub fn note_up(&self, session: u64) {
        let mut state = self.lock();
        (state.up_since, state.session) = (Some(Instant::now()), session);
    }

    /// The connection of this number is cut, or none could be made. True if that is news: another one may have taken
    /// its place before.
    pub fn note_cut(&self, session: Option<u64>, why: &str) -> bool {
        let mut state = self.lock();
        if session.is_some_and(|session| session != state.session) {
            return false;
        }
        let was_up = state.up_since.take().is_some();
        let is_news = was_up || state.last_cut.as_ref().is_none_or(|(_, _, before)| before != why);
        if was_up || state.last_cut.is_none() {
            state.cuts += u64::from(was_up);
            state.last_cut = Some((SystemTime::now(), Instant::now(), why.to_owned()));
        } else if let Some((_, _, before)) = &mut state.last_cut {
            why.clone_into(before);
        }
        is_news
    }

    /// Called each second.
    pub fn sample(&self, measured: &Measured) {
        let mut state = self.lock();
        if state.samples.len() == RATE_SAMPLES {
            state.samples.pop_front();
        }
        state.samples.push_back((Instant::now(), measured.end, measured.kept));
    }
}

/// What is told: its name, what it means, whether it only grows, and its value.
struct Figure(&'static str, &'static str, bool, Value);

/// An end of a link as it is now.
pub struct Report(Vec<Figure>);

impl Report {
    /// Of what has been measured.
    pub fn new(measured: &Measured, line: &LineReport) -> Self {
        let state = line.lock();
        let is_near = measured.role == "near";
        let (data, answers) = if is_near { (&line.sent, &line.received) } else { (&line.received, &line.sent) };
        let (raw, carried) = (data.raw_bytes.load(Ordering::Relaxed), data.line_bytes.load(Ordering::Relaxed));
        let ratio = if carried > 0 { json!(rounded(raw as f64 / carried as f64)) } else { Value::Null };
        let backlog = if is_near && measured.is_progress_known {
            measured.end.saturating_sub(measured.kept)
        } else {
            measured.file_bytes
        };
        let backlog = backlog.min(measured.file_bytes);
        let (gain, loss) = rates(&state.samples);
        let net = if is_near { gain - loss } else { 0.0 };
        let room = measured.bytes_max.saturating_sub(backlog);
        // What wavers about nothing is no growth.
        let exhausted_s = if net > gain / 20.0 { json!(rounded(room as f64 / net)) } else { Value::Null };
        let lag = measured.end.saturating_sub(measured.applied);
        let (lag_bytes, lag_s) = match (is_near, measured.is_progress_known) {
            (true, true) => (json!(lag), json!(rounded(measured.lag.as_secs_f64()))),
            (false, true) => (json!(lag), Value::Null),
            _ => (Value::Null, Value::Null),
        };
        let unix = |time: &SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let figures = vec![
            Figure("role", "near or far", false, json!(measured.role)),
            Figure("stream", "Replication id of the near Redis", false, json!(measured.stream)),
            Figure("line_up", "1 while the line is up", false, json!(u8::from(state.up_since.is_some()))),
            Figure(
                "line_up_seconds",
                "For how long the line has been up",
                false,
                json!(state.up_since.map(|since| since.elapsed().as_secs())),
            ),
            Figure("line_cuts_total", "How often the line was cut", true, json!(state.cuts)),
            Figure(
                "last_cut_unix_seconds",
                "When the line was cut last",
                false,
                json!(state.last_cut.as_ref().map(|(time, _, _)| unix(time))),
            ),
            Figure(
                "last_cut_age_seconds",
                "How long ago that was",
                false,
                json!(state.last_cut.as_ref().map(|(_, at, _)| at.elapsed().as_secs())),
            ),
            Figure("last_cut_cause", "Why", false, json!(state.last_cut.as_ref().map(|(_, _, why)| why))),
            Figure(
                "redis_up",
                "1 while the Redis beside this end is connected",
                false,
                json!(u8::from(measured.is_redis_there)),
            ),
            Figure("redis_cuts_total", "How often that connection failed", true, json!(measured.redis_cuts)),
            Figure(
                "redis_fault",
                "Why it failed last",
                false,
                json!(Some(&measured.redis_fault).filter(|why| !why.is_empty())),
            ),
            Figure("replicas", "Redis servers that follow the far end", false, json!(measured.replicas)),
            Figure("stream_offset_bytes", "Up to where this end has the stream", false, json!(measured.end)),
            Figure("kept_offset_bytes", "Up to where the far end has it on disk", false, json!(measured.kept)),
            Figure(
                "applied_offset_bytes",
                "Up to where the far Redis has carried it out",
                false,
                json!(measured.applied),
            ),
            Figure("lag_bytes", "Bytes that this end has and the far Redis has not carried out", false, lag_bytes),
            Figure("lag_seconds", "Age of the first of them", false, lag_s),
            Figure("raw_bytes_total", "Bytes from near to far before compression", true, json!(raw)),
            Figure("carried_bytes_total", "The same as they went over the line", true, json!(carried)),
            Figure(
                "answer_bytes_total",
                "Bytes from far to near as they went over the line",
                true,
                json!(answers.line_bytes.load(Ordering::Relaxed)),
            ),
            Figure("ratio", "Raw bytes for each byte carried", false, ratio),
            Figure("stream_bytes_total", "Bytes of the stream that have come", true, json!(measured.received_bytes)),
            Figure("stream_bytes_per_second", "How many come each second", false, json!(rounded(gain))),
            Figure("kept_bytes_per_second", "How many the far end takes each second", false, json!(rounded(loss))),
            Figure("backlog_bytes", "Bytes that wait for the far end; at that end, bytes kept", false, json!(backlog)),
            Figure("backlog_start_bytes", "From where on the stream is on disk", false, json!(measured.start)),
            Figure("backlog_disk_bytes", "Bytes of the files of the stream", false, json!(measured.file_bytes)),
            Figure("backlog_max_bytes", "Most of them", false, json!(measured.bytes_max)),
            Figure(
                "backlog_exhausted_in_seconds",
                "When the backlog is full if it goes on like this; absent if it does not grow",
                false,
                exhausted_s,
            ),
            Figure("copies_total", "Copies of everything that were begun", true, json!(measured.copies)),
            Figure("copy_bytes", "Bytes of the copy that is here", false, json!(measured.copy_bytes)),
            Figure("copy_done_bytes", "How many have crossed the line", false, json!(measured.copy_done_bytes)),
        ];
        Self(figures)
    }

    /// As a JSON object.
    pub fn json(&self) -> Value {
        let mut map = Map::new();
        for Figure(name, _, _, value) in &self.0 {
            map.insert((*name).to_owned(), value.clone());
        }
        Value::Object(map)
    }

    /// As Prometheus reads it: numbers, with the role as a label.
    pub fn metrics(&self) -> String {
        let role = self.0.first().and_then(|figure| figure.3.as_str()).unwrap_or_default();
        let mut page = String::new();
        for Figure(name, help, is_counter, value) in &self.0 {
            if value.is_number() {
                let kind = if *is_counter { "counter" } else { "gauge" };
                let _ = writeln!(page, "# HELP holdfast_link_{name} {help}.\n# TYPE holdfast_link_{name} {kind}");
                let _ = writeln!(page, "holdfast_link_{name}{{role=\"{role}\"}} {value}");
            }
        }
        page
    }

    /// A line for a log.
    pub fn line(&self) -> String {
        let value = self.json();
        let number = |name: &str| value[name].as_f64();
        let size = |name: &str| bytes(value[name].as_u64().unwrap_or(0));
        let mut line = if value["line_up"] == 1 {
            "line up".to_owned()
        } else {
            let why = value["last_cut_cause"].as_str().unwrap_or("not made yet");
            format!("LINE DOWN ({why})")
        };
        if value["redis_up"] != 1 {
            line.push_str(", NO REDIS");
        }
        let _ = write!(line, ", byte {}", value["stream_offset_bytes"]);
        if let Some(lag) = number("lag_seconds") {
            let _ = write!(line, ", {lag:.1} s and {} behind", size("lag_bytes"));
        }
        if let Some(ratio) = number("ratio") {
            let _ =
                write!(line, ", {} carried as {} ({ratio:.1}x)", size("raw_bytes_total"), size("carried_bytes_total"));
        }
        let _ = write!(line, ", backlog {} of {}", size("backlog_bytes"), size("backlog_max_bytes"));
        if let Some(seconds) = number("backlog_exhausted_in_seconds") {
            let _ = write!(line, ", FULL IN {seconds:.0} s");
        }
        line
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

/// Bytes each second that have come, and that the far end has taken.
fn rates(samples: &VecDeque<(Instant, u64, u64)>) -> (f64, f64) {
    let (Some((begun, came, taken)), Some((ended, came_last, taken_last))) = (samples.front(), samples.back()) else {
        return (0.0, 0.0);
    };
    let seconds = (*ended - *begun).as_secs_f64();
    if seconds <= 0.0 {
        return (0.0, 0.0);
    }
    (came_last.saturating_sub(*came) as f64 / seconds, taken_last.saturating_sub(*taken) as f64 / seconds)
}

/// Answers `GET /status`, `/metrics` and `/health`, one after the other, without end.
pub fn serve(listener: &TcpListener, report: &(dyn Fn() -> Report + Sync)) {
    loop {
        match listener.accept() {
            // A client that asks and hangs up loses nothing.
            Ok((socket, _)) => drop(answer(socket, report)),
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn answer(mut socket: TcpStream, report: &dyn Fn() -> Report) -> std::io::Result<()> {
    socket.set_read_timeout(Some(REQUEST_PATIENCE))?;
    socket.set_write_timeout(Some(REQUEST_PATIENCE))?;
    let (begun, mut request) = (Instant::now(), Vec::new());
    while !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        let mut chunk = [0; 1_024];
        let length = socket.read(&mut chunk)?;
        request.extend_from_slice(&chunk[..length]);
        if length == 0 || request.len() > REQUEST_BYTES_MAX || begun.elapsed() > REQUEST_PATIENCE {
            return Ok(());
        }
    }
    let first = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let first = String::from_utf8_lossy(first).into_owned();
    let path = first.strip_prefix("GET ").and_then(|rest| rest.split(' ').next()).unwrap_or_default();
    let (status, kind, body) = match path {
        "/" | "/status" => ("200 OK", "application/json", format!("{:#}\n", report().json())),
        "/metrics" => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", report().metrics()),
        "/health" => {
            let report = report();
            let value = report.json();
            let is_well = value["line_up"] == 1 && value["redis_up"] == 1;
            let status = if is_well { "200 OK" } else { "503 Service Unavailable" };
            (status, "text/plain", format!("{}\n", report.line()))
        }
        _ => ("404 Not Found", "text/plain", "there are /status, /metrics and /health\n".to_owned()),
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    socket.write_all((head + &body).as_bytes())
}

/// Asks an end at its status port, and prints what it says.
///
/// # Errors
/// If it does not answer, or is not well.
pub fn show(place: &str, is_json: bool) -> Result<()> {
    let mut stream = crate::login::dial(place, REQUEST_PATIENCE, None)
        .with_context(|| format!("no link tells its status at {place} (--status)"))?;
    stream.write_all(format!("GET /status HTTP/1.1\r\nHost: {place}\r\n\r\n").as_bytes())?;
    let mut reply = String::new();
    stream.take(1 << 20).read_to_string(&mut reply)?;
    let body = reply.split_once("\r\n\r\n").map(|(_, body)| body).context("no status came")?;
    let value: Value = serde_json::from_str(body).context("what came is no status")?;
    if is_json {
        say_line!("{value:#}");
    } else {
        for (name, value) in value.as_object().context("what came is no status")? {
            match value {
                Value::Null => {}
                Value::String(text) => say_line!("{name:<30} {text}"),
                value => say_line!("{name:<30} {value}"),
            }
        }
    }
    ensure!(
        value["line_up"] == 1,
        "the line is down: {}",
        value["last_cut_cause"].as_str().unwrap_or("it was not made yet")
    );
    ensure!(value["redis_up"] == 1, "no Redis is connected to this end");
    Ok(())
}

//! The console: a page, at a port of its own, that shows what holds a cluster back.
//!
//! It is a client. Behind everybody who has logged in there is a session at a core ([`sessions`]), and what the page
//! shows is what the user of that session is answered; only the figures of the last day ([`history`]) are kept here, by
//! a thread that asks what the page of metrics asks. Every request for data is one of a fixed list of commands that
//! read. Keys can be changed ([`change`]) by users who may, from the console's own page only: see [`check_own`].
//!
//! Each connection has a thread, and there are few of them. A stranger gets a page that asks for a name and a password,
//! and nothing else.

mod change;
mod examination;
mod history;
mod http;
mod json;
mod sessions;

use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use node::metrics::SERIES;
use resp::Frame;
use serde_json::{Value, json};

use self::examination::Examinations;
use self::history::History;
use self::http::{CHANGE, Connection, Refused, Request, Response, parse_form};
use self::json::{encode, exact, of_frame, text};
use self::sessions::{LOOK, Session, Sessions, Unanswered};
use crate::clock;
use crate::fault::Fault;
use crate::host::Host;
use crate::limits::{
    ACCEPT_REST, CONSOLE_COLLECTION_BYTES_MAX, CONSOLE_CONNECTIONS_MAX, CONSOLE_EDIT_BYTES_MAX, CONSOLE_ELEMENTS_MAX,
    CONSOLE_FAILURE_REST, CONSOLE_REQUEST_MAX, CONSOLE_VALUE_BYTES_MAX,
};
use crate::run::{start, system};

const PAGE: &[u8] = include_bytes!("console/page/console.html");
const STYLE: &[u8] = include_bytes!("console/page/console.css");
const ICON: &[u8] = include_bytes!("console/page/icon.svg");
const SCRIPT: &[u8] = include_bytes!("console/page/console.js");

/// What the console has to know beside the host.
pub struct ConsoleOptions {
    /// TCP port; 0 is none.
    pub port: u16,
    /// Names under which browsers may come, beside addresses, `localhost`, and the name of the machine.
    pub hosts: Vec<String>,
}

/// The console of a node.
struct Console {
    host: Arc<Host>,
    port: u16,
    hosts: Vec<String>,
    sessions: Sessions,
    history: Arc<Mutex<History>>,
    examinations: Examinations,
    connection_count: AtomicUsize,
    /// Held by a browser that has shown a wrong password, for as long as it has to wait.
    failure: Mutex<()>,
}

/// Serves on these sockets, and keeps the history, as long as the process lives. Nothing is done if there are none.
///
/// # Errors
/// If a thread cannot be started.
pub fn serve(host: &Arc<Host>, listeners: Vec<mio::net::TcpListener>, options: &ConsoleOptions) -> Result<(), Fault> {
    if listeners.is_empty() {
        return Ok(());
    }
    let mut hosts: Vec<String> = options.hosts.iter().map(|name| name.to_ascii_lowercase()).collect();
    hosts.push("localhost".to_owned());
    if let Ok(name) = nix::unistd::gethostname() {
        hosts.push(name.to_string_lossy().to_ascii_lowercase());
    }
    let history = Arc::new(Mutex::new(History::default()));
    history::keep(Arc::clone(host), Arc::clone(&history))?;
    let console = Arc::new(Console {
        host: Arc::clone(host),
        port: options.port,
        hosts,
        sessions: Sessions::default(),
        history,
        examinations: Examinations::default(),
        connection_count: AtomicUsize::new(0),
        failure: Mutex::new(()),
    });
    for listener in listeners {
        let listener = TcpListener::from(OwnedFd::from(listener));
        listener.set_nonblocking(false).map_err(system("wait for connections"))?;
        let console = Arc::clone(&console);
        start("console", move || {
            for stream in listener.incoming() {
                match stream {
                    Ok(stream) => receive(&console, stream),
                    Err(_) => std::thread::sleep(ACCEPT_REST),
                }
            }
        })?;
    }
    Ok(())
}

/// Gives a connection a thread, if there may be one more. A connection too many is cut: the next try may be lucky.
fn receive(console: &Arc<Console>, stream: TcpStream) {
    if console.connection_count.fetch_add(1, Ordering::AcqRel) >= CONSOLE_CONNECTIONS_MAX {
        console.connection_count.fetch_sub(1, Ordering::AcqRel);
        return;
    }
    let own = Arc::clone(console);
    let body = move || {
        // Anyone who goes before it is answered has no use for the answer.
        let _ = own.converse(stream);
        own.connection_count.fetch_sub(1, Ordering::AcqRel);
    };
    if std::thread::Builder::new().name("console".to_owned()).spawn(body).is_err() {
        console.connection_count.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Where a browser comes from.
struct Origin {
    address: String,
    local_address: String,
    is_local: bool,
    is_encrypted: bool,
}

/// An answer that is given at once: what it is, or why it is not.
type Answer = Result<Response, Response>;

impl Console {
    fn converse(&self, stream: TcpStream) -> std::io::Result<()> {
        let _ = stream.set_nodelay(true);
        let (peer, local) = (stream.peer_addr()?, stream.local_addr()?);
        let socket = stream.try_clone()?;
        // Until keys are agreed each read and each write may take so long, and there are few.
        socket.set_read_timeout(Some(CONSOLE_REQUEST_MAX))?;
        socket.set_write_timeout(Some(CONSOLE_REQUEST_MAX))?;
        let security = self.host.security();
        let origin = Origin {
            address: peer.to_string(),
            local_address: local.to_string(),
            is_local: peer.ip().is_loopback(),
            is_encrypted: security.clients.is_some(),
        };
        let mut connection = match &security.clients {
            Some(config) => {
                let session = rustls::ServerConnection::new(Arc::clone(config)).map_err(std::io::Error::other)?;
                Connection::new(Box::new(rustls::StreamOwned::new(session, stream)), socket)
            }
            None => Connection::new(Box::new(stream), socket),
        };
        loop {
            let request = match connection.read() {
                Ok(Some(request)) => request,
                Ok(None) => return Ok(()),
                Err(refused) => {
                    return connection.write(&refused.to_response().to_bytes(false, false));
                }
            };
            let takes_gzip = request
                .header("accept-encoding")
                .split(',')
                .any(|word| word.split(';').next().is_some_and(|name| name.trim() == "gzip"));
            let response = self.answer(&request, &origin).unwrap_or_else(|refusal| refusal);
            connection.write(&response.to_bytes(takes_gzip, request.is_kept))?;
            if !request.is_kept {
                return Ok(());
            }
        }
    }

    fn answer(&self, request: &Request, origin: &Origin) -> Answer {
        self.check_host(request)?;
        let page =
            |content_type, body: &[u8]| Ok(Response { status: 200, content_type, body: body.to_vec(), cookie: None });
        match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/") => page("text/html", PAGE),
            ("GET", "/console.css") => page("text/css", STYLE),
            ("GET", "/icon.svg") => page("image/svg+xml", ICON),
            ("GET", "/console.js") => page("text/javascript", SCRIPT),
            ("POST", "/api/login") => self.log_in(request, origin),
            ("POST", "/api/logout") => {
                check_origin(request)?;
                self.sessions.end(request.cookie(&self.cookie_name()));
                let cookie = Some(self.cookie("", origin.is_encrypted));
                Ok(Response { cookie, ..Response::json(200, &json!({})) })
            }
            ("POST", CHANGE) => self.change(request),
            ("POST", "/api/doctor") => self.examine(request),
            ("GET", path) if path.starts_with("/api/") => self.look(path, request),
            ("GET", _) => Err(Response::error(404, "there is nothing here: the console is at /")),
            _ => Err(Response::error(405, "only GET, and POST to log in, log out, change keys and examine")),
        }
    }

    /// Another party's page may come under a name that now leads here ("DNS rebinding"). It is not answered.
    fn check_host(&self, request: &Request) -> Result<(), Response> {
        let host = request.header("host");
        let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
        let name = match host.rsplit_once(':') {
            Some((name, port)) if is_port(port) && !name.is_empty() => name,
            _ => host,
        };
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        if bare.parse::<IpAddr>().is_ok() || self.hosts.iter().any(|own| own.eq_ignore_ascii_case(name)) {
            return Ok(());
        }
        Err(Response::error(421, "the console does not answer to this name: use an address, or set console-hosts"))
    }

    /// Cookies know no ports: consoles of several nodes of a machine must not overwrite one another's.
    fn cookie_name(&self) -> String {
        format!("holdfast_console_{}", self.port)
    }

    fn cookie(&self, token: &str, is_encrypted: bool) -> String {
        let (name, secure) = (self.cookie_name(), if is_encrypted { "; Secure" } else { "" });
        let end = if token.is_empty() { "; Max-Age=0" } else { "" };
        format!("{name}={token}; Path=/; HttpOnly; SameSite=Strict{secure}{end}")
    }

    fn log_in(&self, request: &Request, origin: &Origin) -> Answer {
        check_origin(request)?;
        let form = parse_form(&request.body);
        let field = |name: &str| form.get(name).map_or(&[][..], Vec::as_slice);
        let (user, password) = (field("user"), field("password"));
        // Anyone who comes through a proxy is not of this machine because the proxy is.
        let is_forwarded = ["forwarded", "x-forwarded-for"].iter().any(|name| !request.header(name).is_empty());
        let is_local = origin.is_local && !is_forwarded;
        let opened = Session::open(&self.host, origin.address.clone(), origin.local_address.clone(), is_local);
        let mut session = opened.map_err(|error| Response::error(503, &format!("no session: {error}")))?;
        let user: &[u8] = if user.is_empty() { b"default" } else { user };
        let mut words: Vec<&[u8]> = vec![b"HELLO", b"3"];
        if user != b"default" || !password.is_empty() {
            words.extend([b"AUTH", user, password]);
        }
        words.extend([&b"SETNAME"[..], b"holdfast-console"]);
        let greeting = session.ask_one(&words).map_err(unanswered)?;
        if let Frame::Error(why) = &greeting {
            let why = text(why, CONSOLE_VALUE_BYTES_MAX);
            // Nobody has been refused who has not shown anything.
            if words.len() > 4 {
                let _held = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                std::thread::sleep(CONSOLE_FAILURE_REST);
            }
            return Err(Response::error(if why.starts_with("DENIED") { 403 } else { 401 }, &why));
        }
        match session.ask_one(LOOK).map_err(unanswered)? {
            // Protected mode, and a default user that needs a password, are told now.
            Frame::Error(why) if why.starts_with(b"NOAUTH") => Err(Response::error(401, &text(&why, 1_024))),
            Frame::Error(why) if !why.starts_with(b"LOADING") => Err(Response::error(403, &text(&why, 1_024))),
            _ => {
                session.user = user.to_vec();
                let token = self.sessions.keep(session).map_err(|error| Response::error(503, &error.to_string()))?;
                let cookie = Some(self.cookie(&token, origin.is_encrypted));
                Ok(Response { cookie, ..Response::json(200, &json!({ "user": text(user, 256) })) })
            }
        }
    }

    /// Answers what somebody wants to see who has logged in.
    fn look(&self, path: &str, request: &Request) -> Answer {
        let token = request.cookie(&self.cookie_name());
        let session = self.sessions.of(token).ok_or_else(|| Response::error(401, "log in first"))?;
        let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = match path {
            "/api/session" => permitted(&mut session).map(|refusal| match refusal {
                Some(refusal) => refusal,
                None => json!({ "user": text(&session.user, 256), "token": session.token }),
            }),
            "/api/history" => permitted(&mut session).map(|refusal| match refusal {
                Some(refusal) => refusal,
                None => self.excerpt(request),
            }),
            "/api/cluster" => replied(&mut session, LOOK),
            "/api/timeline" => replied(&mut session, &[b"HOLDFAST", b"TIMELINE", b"1000"]),
            "/api/stalls" => replied(&mut session, &[b"HOLDFAST", b"STALLS", b"256"]),
            "/api/slowlog" => replied(&mut session, &[b"SLOWLOG", b"GET", b"128"]),
            "/api/clients" => replied(&mut session, &[b"CLIENT", b"LIST"]),
            "/api/info" => replied(&mut session, &[b"INFO", b"everything"]),
            "/api/plan" => replied(&mut session, &[b"HOLDFAST", b"PLAN"]),
            "/api/hotkeys" => hot_keys(&mut session),
            "/api/keys" => keys(&mut session, request),
            "/api/key" => key(&self.host, &mut session, request),
            "/api/doctor" => self.examinations.show(&mut session),
            _ => return Err(Response::error(404, "there is nothing of this name")),
        };
        self.respond(token, answered)
    }

    /// Changes a key.
    fn change(&self, request: &Request) -> Answer {
        let token = request.cookie(&self.cookie_name());
        let session = self.sessions.of(token).ok_or_else(|| Response::error(401, "log in first"))?;
        let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
        check_own(request, &session)?;
        self.respond(token, change::change(&mut session, &parse_form(&request.body)))
    }

    /// Begins an examination of this node; `seconds` is how long it takes.
    fn examine(&self, request: &Request) -> Answer {
        /// As `holdfast doctor` without `--seconds`.
        const SECONDS: u64 = 20;
        /// As long as that takes at most.
        const SECONDS_MAX: u64 = 45;
        let token = request.cookie(&self.cookie_name());
        let session = self.sessions.of(token).ok_or_else(|| Response::error(401, "log in first"))?;
        let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
        check_own(request, &session)?;
        let form = parse_form(&request.body);
        let seconds = form.get("seconds").and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
        let window = Duration::from_secs(seconds.unwrap_or(SECONDS).clamp(1, SECONDS_MAX));
        self.respond(token, self.examinations.begin(&self.host, &mut session, window))
    }

    fn respond(&self, token: &str, answered: Result<Value, Unanswered>) -> Answer {
        let value = answered.map_err(|why| {
            if why == Unanswered::Gone {
                self.sessions.end(token);
            }
            unanswered(why)
        })?;
        let status = match value.get("error").and_then(Value::as_str) {
            None => 200,
            Some(why) if why.starts_with("NOPERM") => 403,
            Some(why) if why.starts_with("NOAUTH") => 401,
            Some(why) if why.starts_with("CONFLICT") => 409,
            Some(_) => 503,
        };
        Ok(Response::json(status, &value))
    }

    /// Figures: `from` and `to` in Unix milliseconds, at most `points` of each.
    fn excerpt(&self, request: &Request) -> Value {
        let number = |name: &str| request.text(name).parse::<i64>().ok();
        let now_ms = clock::unix_millis().0;
        let from_ms = number("from").unwrap_or(now_ms - 15 * 60_000);
        let to_ms = number("to").unwrap_or(now_ms);
        let points = request.text("points").parse().unwrap_or(600);
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let excerpt = history.between(from_ms, to_ms, points);
        let series: Vec<_> = SERIES.iter().map(|series| json!([series.name, series.unit.name()])).collect();
        json!({
            "now_ms": now_ms, "step_ms": excerpt.step_ms, "at_ms": excerpt.at_ms, "series": series,
            "values": excerpt.values, "kept_bytes": history.byte_count(),
        })
    }
}

/// A page of somebody else cannot log anybody in or out.
fn check_origin(request: &Request) -> Result<(), Response> {
    let origin = request.header("origin");
    let place = origin.split_once("://").map_or("", |(_, place)| place);
    if origin.is_empty() || place.eq_ignore_ascii_case(request.header("host")) {
        return Ok(());
    }
    Err(FOREIGN.to_response())
}

const FOREIGN: Refused = Refused(403, "this comes from a page of another place");

/// Nothing is changed but by the console's own page. Browsers say where each POST comes from, and only a page of this
/// origin can read the token of its session, or send a header with it without this server's consent. The cookie alone
/// would not do: pages of other ports of this host are of the same site.
fn check_own(request: &Request, session: &Session) -> Result<(), Response> {
    check_origin(request)?;
    if request.header("origin").is_empty() {
        return Err(FOREIGN.to_response());
    }
    if session.token.is_empty() || request.header("x-holdfast-token") != session.token {
        return Err(Response::error(403, "this does not show the token of its session: load the console again"));
    }
    Ok(())
}

fn unanswered(why: Unanswered) -> Response {
    match why {
        Unanswered::Busy => Response::error(503, "BUSY the core of this session does not answer"),
        Unanswered::Gone => Response::error(401, "the session has ended: log in again"),
    }
}

fn error_of(frame: &Frame) -> Option<Value> {
    match frame {
        Frame::Error(why) => Some(json!({ "error": text(why, CONSOLE_VALUE_BYTES_MAX) })),
        _ => None,
    }
}

/// Nothing, if the user may look; otherwise why not.
fn permitted(session: &mut Session) -> Result<Option<Value>, Unanswered> {
    Ok(session.may_look()?.as_ref().and_then(error_of))
}

/// The reply to one request.
fn replied(session: &mut Session, words: &[&[u8]]) -> Result<Value, Unanswered> {
    let frame = session.ask_one(words)?;
    // The list of clients is one string, of which nothing is cut.
    Ok(error_of(&frame).unwrap_or_else(|| json!({ "reply": of_frame(&frame, usize::MAX) })))
}

/// The keys that have taken the most lately.
fn hot_keys(session: &mut Session) -> Result<Value, Unanswered> {
    let frame = session.ask_one(&[b"HOLDFAST", b"HOTKEYS", b"100"])?;
    if let Some(refusal) = error_of(&frame) {
        return Ok(refusal);
    }
    let field = |map: &Frame, name: &str| match map {
        Frame::Map(pairs) => {
            pairs.iter().find(|(key, _)| key.as_bytes() == Some(name.as_bytes())).map(|(_, it)| it.clone())
        }
        _ => None,
    };
    let shown = |map: &Frame, name: &str| field(map, name).map_or(Value::Null, |frame| of_frame(&frame, 64));
    let list = field(&frame, "keys").unwrap_or(Frame::Null);
    let keys = list.elements().unwrap_or_default().iter().map(|key| {
        let name = field(key, "key").unwrap_or(Frame::Null);
        let name = name.as_bytes().unwrap_or_default();
        json!({ "name": text(name, 512), "id": encode(name), "calls": shown(key, "calls"), "time_us": shown(key, "time_us") })
    });
    let keys: Vec<_> = keys.collect();
    let [window_ms, calls, time_us] = ["window_ms", "calls", "time_us"].map(|name| shown(&frame, name));
    Ok(json!({ "window_ms": window_ms, "calls": calls, "time_us": time_us, "keys": keys }))
}

/// One step through the keys that match a pattern: `match`, `cursor`, `db`; with `sizes` the bytes of each as well. A
/// name that is shown may be no text: `id` is what leads to the key.
fn keys(session: &mut Session, request: &Request) -> Result<Value, Unanswered> {
    /// Keys looked at in a step: few enough that others wait for less than a millisecond.
    const COUNT: &[u8] = b"500";
    /// The same, where each of them is asked for its size.
    const SIZES_COUNT: &[u8] = b"100";
    if let Some(refusal) = choose_database(session, request.text("db"))? {
        return Ok(refusal);
    }
    let cursor = match request.text("cursor") {
        "" => "0",
        cursor => cursor,
    };
    let pattern = request.query.get("match").filter(|pattern| !pattern.is_empty());
    let pattern = pattern.map_or(&b"*"[..], Vec::as_slice);
    let has_sizes = request.text("sizes") == "1";
    let count = if has_sizes { SIZES_COUNT } else { COUNT };
    let frame = session.ask_one(&[b"SCAN", cursor.as_bytes(), b"MATCH", pattern, b"COUNT", count])?;
    let Some([next, Frame::Array(names)]) = frame.elements() else {
        return Ok(error_of(&frame).unwrap_or_else(|| json!({ "error": "ERR no step of a scan" })));
    };
    let names: Vec<&[u8]> = names.iter().filter_map(Frame::as_bytes).collect();
    let questions = names.iter().flat_map(|name| {
        let size = has_sizes.then(|| vec![&b"MEMORY"[..], b"USAGE", name]);
        [vec![&b"TYPE"[..], name], vec![&b"PTTL"[..], name]].into_iter().chain(size)
    });
    let replies = session.ask(&questions.collect::<Vec<_>>())?;
    let keys = names.iter().zip(replies.chunks(2 + usize::from(has_sizes))).map(|(name, replies)| {
        json!({
            "name": text(name, 512), "id": encode(name),
            "type": of_frame(&replies[0], 256), "ttl_ms": of_frame(&replies[1], 256),
            "memory": replies.get(2).map_or(Value::Null, |reply| of_frame(reply, 256)),
        })
    });
    let keys: Vec<_> = keys.collect();
    Ok(json!({ "cursor": of_frame(next, 64), "keys": keys }))
}

/// One key: `name`, `db`. Of its value the beginning, and what the user may change.
fn key(host: &Host, session: &mut Session, request: &Request) -> Result<Value, Unanswered> {
    if let Some(refusal) = choose_database(session, request.text("db"))? {
        return Ok(refusal);
    }
    let name = request.query.get("name").map_or(&[][..], Vec::as_slice);
    let facts = session.ask(&[
        vec![b"TYPE", name],
        vec![b"PTTL", name],
        vec![b"MEMORY", b"USAGE", name],
        vec![b"PEXPIRETIME", name],
    ])?;
    if let Some(error) = error_of(&facts[0]) {
        return Ok(error);
    }
    let kind = text(facts[0].as_bytes().unwrap_or_default(), 64);
    if kind == "none" {
        return Ok(json!({ "error": "ERR no such key" }));
    }
    let replies = read_value(session, name, &kind)?;
    let bytes_max = if kind == "string" { CONSOLE_EDIT_BYTES_MAX } else { CONSOLE_VALUE_BYTES_MAX };
    let shown = |place: usize| replies.get(place).map_or(Value::Null, |reply| exact(reply, bytes_max));
    Ok(json!({
        "name": text(name, CONSOLE_VALUE_BYTES_MAX), "id": encode(name), "type": kind,
        "ttl_ms": of_frame(&facts[1], 256), "deadline_ms": of_frame(&facts[3], 256),
        "memory": of_frame(&facts[2], 256), "length": shown(0), "value": shown(1),
        "is_refused": replies.iter().any(Frame::is_error), "shown": change::fingerprint(&kind, &replies),
        "may": change::permitted(host, &session.user, name, &kind), "edit_bytes_max": CONSOLE_EDIT_BYTES_MAX,
    }))
}

/// How long a value is, and its beginning: the second is left out if it would be much, and both where nothing can be
/// shown of a type.
fn read_value(session: &mut Session, name: &[u8], kind: &str) -> Result<Vec<Frame>, Unanswered> {
    let count = CONSOLE_ELEMENTS_MAX.to_string();
    let last = (CONSOLE_ELEMENTS_MAX - 1).to_string();
    let end = (CONSOLE_EDIT_BYTES_MAX - 1).to_string();
    let (count, last, end) = (count.as_bytes(), last.as_bytes(), end.as_bytes());
    let mut questions: Vec<Vec<&[u8]>> = match kind {
        "string" => vec![vec![b"STRLEN", name], vec![b"GETRANGE", name, b"0", end]],
        "list" => vec![vec![b"LLEN", name], vec![b"LRANGE", name, b"0", last]],
        "hash" => vec![vec![b"HLEN", name], vec![b"HSCAN", name, b"0", b"COUNT", count]],
        "set" => vec![vec![b"SCARD", name], vec![b"SSCAN", name, b"0", b"COUNT", count]],
        "zset" => vec![vec![b"ZCARD", name], vec![b"ZRANGE", name, b"0", last, b"WITHSCORES"]],
        "stream" => vec![vec![b"XLEN", name], vec![b"XREVRANGE", name, b"+", b"-", b"COUNT", count]],
        _ => Vec::new(),
    };
    if kind != "string" {
        let memory = session.ask_one(&[b"MEMORY", b"USAGE", name])?;
        if matches!(memory, Frame::Integer(bytes) if bytes > CONSOLE_COLLECTION_BYTES_MAX) {
            questions.truncate(1);
        }
    }
    session.ask(&questions)
}

fn choose_database(session: &mut Session, database: &str) -> Result<Option<Value>, Unanswered> {
    Ok(session.select(database.parse().unwrap_or(0))?.as_ref().and_then(error_of))
}

//! An examination of this node by the checks of `holdfast doctor`, as the user who has logged in.

use std::io;
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use doctor::host::{EXAMINER, Host as Machine};
use doctor::probes;
use doctor::talk::{DialError, Dialer, Link};
use doctor::{Plan, examine};
use resp::{Frame, encode_request};
use serde_json::{Value, json};

use super::error_of;
use super::sessions::{Session, Unanswered};
use crate::clock;
use crate::host::Host;

/// How this node is named in a report.
const PLACE: &str = "this node";

/// The disk is not probed if less is free: the probe writes up to 64 MiB.
const ROOM_MIN: u64 = 1 << 30;

/// Beyond its window an examination waits at most so long for answers; one that has not ended by then never does.
const LATE_MAX: Duration = Duration::from_secs(60);

/// The time a connection to a port of this host may take.
const REACH_MAX: Duration = Duration::from_secs(3);

/// The examination that is being made, or was made last. There is one at a time: two would measure one another.
#[derive(Clone, Default)]
pub struct Examinations(Arc<Mutex<Option<Examination>>>);

struct Examination {
    /// Who has asked, and is shown the report: others may not be permitted what it tells.
    user: Vec<u8>,
    began: Instant,
    began_unix_ms: i64,
    window: Duration,
    outcome: Option<Result<Value, String>>,
}

impl Examination {
    fn is_running(&self) -> bool {
        self.outcome.is_none() && self.began.elapsed() < self.window + LATE_MAX
    }
}

impl Examinations {
    fn lock(&self) -> MutexGuard<'_, Option<Examination>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far it is, and what it has found.
    ///
    /// # Errors
    /// If the session does not answer.
    pub fn show(&self, session: &mut Session) -> Result<Value, Unanswered> {
        if let Err(refusal) = permitted(session)? {
            return Ok(refusal);
        }
        let current = self.lock();
        let Some(examination) = current.as_ref() else { return Ok(json!({ "state": "none" })) };
        if examination.is_running() {
            return Ok(json!({
                "state": "running", "passed_s": examination.began.elapsed().as_secs_f64(),
                "window_s": examination.window.as_secs_f64(), "is_own": examination.user == session.user,
            }));
        }
        if examination.user != session.user {
            return Ok(json!({ "state": "none" }));
        }
        Ok(match &examination.outcome {
            Some(Ok(report)) => json!({ "state": "done", "at_ms": examination.began_unix_ms, "report": report }),
            Some(Err(why)) => json!({ "state": "failed", "why": why }),
            None => json!({ "state": "failed", "why": "the examination did not end" }),
        })
    }

    /// Begins one, if none is being made. `window` is bounded by the caller.
    ///
    /// # Errors
    /// If the session does not answer.
    pub fn begin(&self, host: &Arc<Host>, session: &mut Session, window: Duration) -> Result<Value, Unanswered> {
        let folder = match permitted(session)? {
            Ok(folder) => folder,
            Err(refusal) => return Ok(refusal),
        };
        let mut current = self.lock();
        if current.as_ref().is_some_and(Examination::is_running) {
            return Ok(json!({ "error": "CONFLICT an examination is being made" }));
        }
        let began = Instant::now();
        let dialer = Within { host: Arc::clone(host), pattern: session.pattern() };
        let data_dir = folder.filter(|folder| probes::room(folder).is_ok_and(|(free, _)| free >= ROOM_MIN));
        let plan = Plan { servers: vec![PLACE.to_owned()], data_dir, window, host: Machine::here() };
        let own = self.clone();
        let body = move || {
            let outcome = examine(&plan, &dialer, &|_| {}).map(|report| {
                let mut report = report.json();
                // What the process took was not for the examination alone.
                report.as_object_mut().and_then(|fields| fields.remove("processor_share"));
                report
            });
            if let Some(examination) = own.lock().as_mut().filter(|examination| examination.began == began) {
                examination.outcome = Some(outcome);
            }
        };
        if let Err(error) = thread::Builder::new().name(EXAMINER.to_owned()).spawn(body) {
            return Ok(json!({ "error": format!("ERR no thread for an examination: {error}") }));
        }
        let (user, began_unix_ms) = (session.user.clone(), clock::unix_millis().0);
        *current = Some(Examination { user, began, began_unix_ms, window, outcome: None });
        Ok(json!({ "state": "running" }))
    }
}

/// The data directory, if the user may know what an examination cannot do without; otherwise what the user is told.
fn permitted(session: &mut Session) -> Result<Result<Option<PathBuf>, Value>, Unanswered> {
    let replies = session.ask(&[vec![b"INFO", b"server"], vec![b"CONFIG", b"GET", b"data-dir"]])?;
    if let Some(refusal) = replies.iter().find_map(error_of) {
        return Ok(Err(refusal));
    }
    let folder = match &replies[1] {
        Frame::Map(pairs) => pairs.first().and_then(|(_, value)| value.as_bytes()),
        _ => None,
    };
    Ok(Ok(folder.map(|bytes| PathBuf::from(String::from_utf8_lossy(bytes).into_owned()))))
}

/// Who a session is of, to open more of the same user.
#[derive(Clone)]
pub struct Pattern {
    /// The user. Its password was shown when the first session was opened.
    pub user: Vec<u8>,
    /// Where the browser is.
    pub address: String,
    /// Where it has come to.
    pub local_address: String,
}

/// Sessions at cores of this node.
struct Within {
    host: Arc<Host>,
    pattern: Pattern,
}

impl Dialer for Within {
    fn dial(&self, place: &str) -> Result<Box<dyn Link>, DialError> {
        let refused = |why: String| DialError::Refused(format!("{place}: {why}"));
        let opened = Session::open_like(&self.host, &self.pattern);
        let mut session = opened.map_err(|error| refused(format!("no session: {error}")))?;
        let user = self.pattern.user.as_slice();
        let words: [&[u8]; 7] = [b"HELLO", b"3", b"AUTH", user, b"", b"SETNAME", b"holdfast-doctor"];
        match session.ask_one(&words) {
            Ok(Frame::Error(why)) => Err(refused(String::from_utf8_lossy(&why).into_owned())),
            Ok(_) => Ok(Box::new(session)),
            Err(Unanswered::Busy) => Err(DialError::Silent(format!("{place}: its core does not answer"))),
            Err(Unanswered::Gone) => Err(refused("the session has ended".to_owned())),
        }
    }

    /// The console's own port is on this host as the port for clients is.
    fn reach(&self, _: &str) -> io::Result<Duration> {
        let address = self.pattern.local_address.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
        let began = Instant::now();
        TcpStream::connect_timeout(&address, REACH_MAX)?;
        Ok(began.elapsed())
    }
}

impl Link for Session {
    fn send(&mut self, words: &[&[u8]]) -> io::Result<()> {
        let mut bytes = Vec::new();
        encode_request(&mut bytes, words);
        self.send_bytes(&bytes)
    }

    fn receive(&mut self, patience: Duration) -> io::Result<Frame> {
        self.reply(Instant::now() + patience).map_err(|why| match why {
            Unanswered::Busy => io::ErrorKind::TimedOut.into(),
            Unanswered::Gone => io::ErrorKind::UnexpectedEof.into(),
        })
    }
}

//! What a server says at its doors while it looks for the cluster to join: before that it knows neither its own number
//! nor how many cores clients find, so nothing else answers yet.
//!
//! A client hears LOADING to whatever it asks. A node hears that there is nobody to join here: two servers that are
//! told to join each other would otherwise wait for each other without a word. Those who begin with TLS get their
//! connection closed: there is no certificate yet.

use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use mio::net::TcpListener;
use resp::{Limits, Parsed, RequestParser};

use crate::limits::{DOORMAN_BYTES_MAX, DOORMAN_INTERVAL, DOORMAN_VISITORS_MAX};
use crate::listener::Listener;
use crate::peers;

/// What clients hear.
const LOADING: &[u8] = b"-LOADING Holdfast looks for the cluster to join\r\n";

/// Does some work, and sees to the doors meanwhile. Connections end with it.
pub fn stand_in<T>(clients: &[Listener], nodes: &[TcpListener], work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        let doorman = || Doorman { clients, nodes, visitors: Vec::new() }.run(&is_over);
        // Without a thread for it nobody is answered, as if there were no server yet.
        let _ = thread::Builder::new().name("doorman".into()).spawn_scoped(scope, doorman);
        work()
    })
}

/// Ends the doorman, however the work ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A stream that does not wait.
trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

struct Visitor {
    stream: Box<dyn Stream>,
    is_node: bool,
    input: Vec<u8>,
    parser: RequestParser,
}

struct Doorman<'a> {
    clients: &'a [Listener],
    nodes: &'a [TcpListener],
    visitors: Vec<Visitor>,
}

impl Doorman<'_> {
    fn run(mut self, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Acquire) {
            self.accept();
            self.visitors.retain_mut(Visitor::serve);
            thread::sleep(DOORMAN_INTERVAL);
        }
    }

    fn accept(&mut self) {
        let mut arrived: Vec<(Box<dyn Stream>, bool)> = Vec::new();
        for listener in self.clients {
            match listener {
                Listener::Tcp(listener) => {
                    while let Ok((stream, _)) = listener.accept() {
                        arrived.push((Box::new(stream), false));
                    }
                }
                Listener::Unix(listener, _) => {
                    while let Ok((stream, _)) = listener.accept() {
                        arrived.push((Box::new(stream), false));
                    }
                }
                Listener::Tls(listener) => while listener.accept().is_ok() {},
            }
        }
        for listener in self.nodes {
            while let Ok((stream, _)) = listener.accept() {
                arrived.push((Box::new(stream), true));
            }
        }
        arrived.truncate(DOORMAN_VISITORS_MAX.saturating_sub(self.visitors.len()));
        let visitor = |(stream, is_node)| Visitor { stream, is_node, input: Vec::new(), parser: RequestParser::new() };
        self.visitors.extend(arrived.into_iter().map(visitor));
    }
}

impl Visitor {
    /// Answers what has come; false if the connection must be closed.
    fn serve(&mut self) -> bool {
        let mut buffer = [0; 4_096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(count) => self.input.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
            if self.input.len() > DOORMAN_BYTES_MAX {
                return false;
            }
        }
        if self.is_node { self.answer_node() } else { self.answer_client() }
    }

    fn answer_node(&mut self) -> bool {
        match peers::turn_away(&self.input) {
            None => true,
            Some(answer) => {
                // What cannot be said at once is not said.
                let _ = self.stream.write_all(&answer);
                false
            }
        }
    }

    fn answer_client(&mut self) -> bool {
        let mut spans = Vec::new();
        loop {
            let consumed = match self.parser.parse(&self.input, &Limits::default(), &mut spans) {
                Ok(Parsed::Incomplete { .. }) => return true,
                Ok(Parsed::Empty { consumed }) => consumed,
                Ok(Parsed::Request { consumed } | Parsed::Inline { consumed }) => {
                    if self.stream.write_all(LOADING).is_err() {
                        return false;
                    }
                    consumed
                }
                Err(_) => return false,
            };
            self.input.drain(..consumed);
        }
    }
}

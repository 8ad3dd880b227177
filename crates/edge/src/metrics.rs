//! The page of figures that Prometheus collects, at a port of its own.
//!
//! A thread for each address answers one request at a time and gives every client two seconds, so it needs no bound but
//! that. Cores are asked by mail and answer between two turns, with what INFO would tell.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use node::metrics::{Facts, Gathered, page};

use crate::fault::Fault;
use crate::host::Host;
use crate::mailbox::Mail;
use crate::run::{start, system};

/// How long a client may take to ask, and again to take its answer; and how long cores may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Longest request.
const REQUEST_BYTES_MAX: usize = 8 << 10;

/// Serves on these sockets as long as the process lives.
///
/// # Errors
/// If a thread cannot be started.
pub fn serve(host: &Arc<Host>, listeners: Vec<mio::net::TcpListener>) -> Result<(), Fault> {
    for listener in listeners {
        let listener = TcpListener::from(OwnedFd::from(listener));
        listener.set_nonblocking(false).map_err(system("wait for connections"))?;
        let host = Arc::clone(host);
        start("metrics", move || {
            for stream in listener.incoming() {
                match stream {
                    // Anyone who goes before it is answered has no use for the answer.
                    Ok(stream) => _ = answer(stream, &host),
                    Err(_) => std::thread::sleep(crate::limits::ACCEPT_REST),
                }
            }
        })?;
    }
    Ok(())
}

fn answer(mut stream: TcpStream, host: &Host) -> std::io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = read_request(&mut stream)?;
    let (status, body) = match path_of(&request) {
        Some("/metrics") => match measure(host, PATIENCE) {
            Some((gathered, facts)) => ("200 OK", page(&gathered, &facts)),
            None => ("503 Service Unavailable", "a core is busy: try again\n".to_owned()),
        },
        Some(_) => ("404 Not Found", "the figures are at /metrics\n".to_owned()),
        None => ("400 Bad Request", "this port answers GET /metrics\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// Reads up to the empty line behind the headers.
fn read_request(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let deadline = Instant::now() + PATIENCE;
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while request.len() < REQUEST_BYTES_MAX && !request.windows(4).any(|four| four == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        request.extend_from_slice(&buffer[..count]);
    }
    Ok(request)
}

/// What is asked for, without a query.
fn path_of(request: &[u8]) -> Option<&str> {
    let line = request.split(|byte| *byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let (method, path, version) = (words.next()?, words.next()?, words.next()?);
    let is_known = method == "GET" && version.starts_with("HTTP/1.") && words.next().is_none();
    is_known.then(|| path.split('?').next().unwrap_or(path))
}

/// Asks all cores, then the first one about the node; none if one of them does not answer in time.
pub fn measure(host: &Host, patience: Duration) -> Option<(Arc<Gathered>, Facts)> {
    let deadline = Instant::now() + patience;
    let left = || deadline.saturating_duration_since(Instant::now());
    let (told, answers) = mpsc::channel();
    for desk in &host.desks {
        desk.mailbox.post(Mail::Measure(told.clone()));
    }
    drop(told);
    let measured: Option<Vec<_>> = host.desks.iter().map(|_| answers.recv_timeout(left()).ok()).collect();
    let gathered = Arc::new(Gathered::new(measured?));
    let (told, answer) = mpsc::channel();
    host.desks.first()?.mailbox.post(Mail::Describe(Arc::clone(&gathered), told));
    let facts = answer.recv_timeout(left()).ok()?;
    Some((gathered, facts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_line_asks_for_something() {
        assert_eq!(path_of(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"), Some("/metrics"));
        assert_eq!(path_of(b"GET /metrics?x=1 HTTP/1.0\r\n\r\n"), Some("/metrics"));
        assert_eq!(path_of(b"GET / HTTP/1.1\r\n\r\n"), Some("/"));
        for other in
            [&b"POST /metrics HTTP/1.1\r\n\r\n"[..], b"GET /metrics", b"*1\r\n$4\r\nPING\r\n", b"", b"\xFF \xFF a"]
        {
            assert_eq!(path_of(other), None);
        }
    }
}

use std::collections::VecDeque;
use std::sync::Arc;

use node::settings::Settings;

use super::*;
use crate::tls::testing::{Authority, Files};
use crate::tls::{ClientOptions, ClientSecurity, Credentials, Security, accept};

/// One direction of a connection: bytes under way, and how many may be.
#[derive(Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    is_closed: bool,
}

/// An end of a connection in memory that gives and takes only so much.
struct End {
    incoming: std::rc::Rc<RefCell<Pipe>>,
    outgoing: std::rc::Rc<RefCell<Pipe>>,
    /// Most bytes read at once.
    gulp: usize,
    /// Most bytes under way.
    room: usize,
}

impl Read for End {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut pipe = self.incoming.borrow_mut();
        if pipe.bytes.is_empty() {
            return if pipe.is_closed { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) };
        }
        let count = buffer.len().min(self.gulp).min(pipe.bytes.len());
        for place in &mut buffer[..count] {
            *place = pipe.bytes.pop_front().expect("counted");
        }
        Ok(count)
    }
}

impl Write for End {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut pipe = self.outgoing.borrow_mut();
        let count = bytes.len().min(self.room.saturating_sub(pipe.bytes.len()));
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        pipe.bytes.extend(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.outgoing.borrow_mut().is_closed = true;
    }
}

fn ends(gulp: usize, room: usize) -> (End, End) {
    let (one, other): (std::rc::Rc<RefCell<Pipe>>, std::rc::Rc<RefCell<Pipe>>) = Default::default();
    let end = |incoming: &std::rc::Rc<RefCell<Pipe>>, outgoing: &std::rc::Rc<RefCell<Pipe>>| End {
        incoming: incoming.clone(),
        outgoing: outgoing.clone(),
        gulp,
        room,
    };
    (end(&one, &other), end(&other, &one))
}

struct Stand {
    files: Files,
    security: Security,
}

impl Stand {
    fn new(name: &str) -> Self {
        let files = Files::new(name);
        let authority = Authority::new("authority");
        authority.write(&files.path("ca.pem"));
        authority.sign(&files.0, "server", 4000);
        authority.sign(&files.0, "client", 4000);
        authority.sign(&files.0, "late", 2001);
        authority.write_pair(&files.0, "itself");
        let stranger = Authority::new("stranger");
        stranger.write(&files.path("stranger-ca.pem"));
        stranger.sign(&files.0, "stranger", 4000);
        let mut settings = Settings::default();
        let path = |name: &str| files.path(name).display().to_string();
        for (name, value) in [
            ("tls-port", "1".to_owned()),
            ("tls-cert-file", path("server.pem")),
            ("tls-key-file", path("server.key")),
            ("tls-ca-cert-file", path("ca.pem")),
        ] {
            settings.set(name, &value).expect("a parameter");
        }
        let security = Security::new(&settings, None).expect("good files");
        Self { files, security }
    }

    fn client(&self, own: Option<&str>, authority: &str) -> ClientSecurity {
        let own = own.map(|name| (self.files.path(&format!("{name}.pem")), self.files.path(&format!("{name}.key"))));
        let authorities = Some(self.files.path(authority));
        ClientSecurity::new(&ClientOptions { authorities, own, ..ClientOptions::default() }).expect("good files")
    }

    fn pair(&self, client: &ClientSecurity, gulp: usize, room: usize) -> (TlsStream<End>, TlsStream<End>) {
        let (one, other) = ends(gulp, room);
        let server = accept(self.security.clients.as_ref().expect("a port"), one).expect("a connection");
        (server, client.wrap(other))
    }
}

/// Lets both sides agree on keys, or says why they cannot: the server's reason, then the client's.
fn agree(server: &mut TlsStream<End>, client: &mut TlsStream<End>) -> Result<(), [String; 2]> {
    let mut reasons = [String::new(), String::new()];
    for _ in 0..20_000 {
        let both = [server.shake_hands(), client.shake_hands()];
        if let [Ok(true), Ok(true)] = both {
            // What the server thinks of the client's certificate is told behind the keys.
            return match client.read(&mut [0]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
                other => panic!("{other:?}"),
            };
        }
        for (reason, outcome) in reasons.iter_mut().zip(both) {
            if let Err(error) = outcome {
                reason.clone_from(&error.to_string());
            }
        }
        if !reasons[0].is_empty() {
            if let Err(error) = client.read(&mut [0])
                && error.kind() == ErrorKind::InvalidData
            {
                reasons[1] = error.to_string();
            }
            return Err(reasons);
        }
        if !reasons[1].is_empty() {
            if let Err(error) = server.shake_hands() {
                reasons[0] = error.to_string();
            }
            return Err(reasons);
        }
    }
    panic!("they do not come to an end");
}

/// Sends all of `bytes` to the other side, which reads into a buffer of `length`.
fn carry(from: &mut TlsStream<End>, to: &mut TlsStream<End>, bytes: &[u8], length: usize) -> Vec<u8> {
    let (mut written, mut read) = (0, Vec::new());
    let mut buffer = vec![0; length];
    while read.len() < bytes.len() {
        if written < bytes.len() {
            match from.write(&bytes[written..]) {
                Ok(count) => written += count,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        match to.read(&mut buffer) {
            Ok(count) => read.extend_from_slice(&buffer[..count]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    // If all was taken, the writer can be told so by now, if not at once.
    while written < bytes.len() {
        written += from.write(&bytes[written..]).expect("room");
    }
    read
}

#[test]
fn bytes_arrive_however_the_socket_cuts_them() {
    let stand = Stand::new("cuts");
    let bytes: Vec<u8> = (0..100_000u32).map(|number| (number * 7 % 251) as u8).collect();
    for (gulp, room) in [(1, 1), (3, 7), (100, 16_384), (16_389, 5), (1 << 20, 1 << 20)] {
        let (mut server, mut client) = stand.pair(&stand.client(Some("client"), "ca.pem"), gulp, room);
        agree(&mut server, &mut client).expect("they know each other");
        for length in [1, 1000, 40_000] {
            let part = &bytes[..length.min(bytes.len())];
            assert!(carry(&mut client, &mut server, part, length) == part, "{gulp} {room} {length}");
            assert!(carry(&mut server, &mut client, &bytes, 64 << 10) == bytes, "{gulp} {room}");
        }
    }
}

#[test]
fn a_read_that_leaves_room_has_drained_the_socket() {
    let stand = Stand::new("drain");
    let (mut server, mut client) = stand.pair(&stand.client(Some("client"), "ca.pem"), 1 << 20, 1 << 20);
    agree(&mut server, &mut client).expect("they know each other");
    let bytes = vec![7; 150_000];
    assert_eq!(client.write(&bytes).expect("room"), bytes.len());
    let mut buffer = vec![0; 64 << 10];
    let mut counts = Vec::new();
    loop {
        let count = server.read(&mut buffer).expect("bytes");
        counts.push(count);
        if count < buffer.len() {
            break;
        }
    }
    assert_eq!(counts.iter().sum::<usize>(), bytes.len());
    assert!(server.rest.is_empty());
    assert_eq!(server.read(&mut buffer).expect_err("all is read").kind(), ErrorKind::WouldBlock);
}

#[test]
fn what_has_not_left_does_not_count_as_written() {
    let stand = Stand::new("owed");
    let (mut server, mut client) = stand.pair(&stand.client(Some("client"), "ca.pem"), 1 << 20, 20_000);
    agree(&mut server, &mut client).expect("they know each other");
    let bytes = vec![1; 300_000];
    // The first pieces are larger than the socket's room.
    assert_eq!(server.write(&bytes).expect_err("no room").kind(), ErrorKind::WouldBlock);
    assert!(server.owed > 0);
    assert!(carry(&mut server, &mut client, &bytes, 64 << 10) == bytes);
    assert_eq!(server.owed, 0);
}

#[test]
fn the_end_is_told_once_all_has_been_read() {
    let stand = Stand::new("end");
    for closes_well in [true, false] {
        let (mut server, mut client) = stand.pair(&stand.client(Some("client"), "ca.pem"), 1 << 20, 1 << 20);
        agree(&mut server, &mut client).expect("they know each other");
        client.write(b"PING\r\n").expect("room");
        if closes_well {
            drop(client);
        } else {
            // Cut in the middle of a record.
            client.write(b"PING\r\n").expect("room");
            server.socket.incoming.borrow_mut().bytes.pop_back();
            client.socket.room = 0;
            drop(client);
        }
        let mut buffer = [0; 100];
        assert_eq!(server.read(&mut buffer).expect("what was whole"), 6);
        assert!(server.has_ended());
        assert_eq!(server.read(&mut buffer).expect("the end"), 0);
    }
}

#[test]
fn damaged_bytes_end_the_connection() {
    let stand = Stand::new("damage");
    let (mut server, mut client) = stand.pair(&stand.client(Some("client"), "ca.pem"), 1 << 20, 1 << 20);
    agree(&mut server, &mut client).expect("they know each other");
    client.write(b"PING\r\n").expect("room");
    client.write(b"FLUSHALL\r\n").expect("room");
    *server.socket.incoming.borrow_mut().bytes.back_mut().expect("bytes") ^= 1;
    let mut buffer = [0; 100];
    assert_eq!(server.read(&mut buffer).expect("what was whole"), 6);
    assert!(server.has_ended());
    assert_eq!(server.read(&mut buffer).expect_err("the rest is damaged").kind(), ErrorKind::InvalidData);
}

#[test]
fn either_side_says_why_they_cannot_come_together() {
    let stand = Stand::new("reasons");
    let reasons = |own: Option<&str>, authority: &str| {
        let (mut server, mut client) = stand.pair(&stand.client(own, authority), 1 << 20, 1 << 20);
        agree(&mut server, &mut client).expect_err("they do not know each other")
    };
    assert_eq!(
        reasons(None, "ca.pem"),
        ["the other side shows no certificate", "the other side asks for a certificate, and this side has none"]
    );
    assert_eq!(
        reasons(Some("stranger"), "ca.pem"),
        [
            "the other side's certificate is signed by nobody who is trusted here",
            "the other side does not trust who has signed this side's certificate"
        ]
    );
    assert_eq!(
        reasons(Some("late"), "ca.pem"),
        ["the other side's certificate has expired", "the other side finds that this side's certificate has expired"]
    );
    assert_eq!(
        reasons(Some("itself"), "ca.pem"),
        [
            "the other side shows the certificate of an authority (CA:TRUE) as its own: it needs one that an authority \
             has signed",
            "the other side does not take this side's certificate"
        ]
    );
    assert_eq!(
        reasons(Some("client"), "stranger-ca.pem"),
        [
            "the other side does not trust who has signed this side's certificate",
            "the other side's certificate is signed by nobody who is trusted here"
        ]
    );
}

#[test]
fn plain_text_is_known_by_its_first_bytes() {
    let stand = Stand::new("plain");
    for text in ["*1\r\n$4\r\nPING\r\n", "PING\r\n", "GET / HTTP/1.1\r\n\r\n"] {
        let (one, mut other) = ends(1 << 20, 1 << 20);
        let mut server = accept(stand.security.clients.as_ref().expect("a port"), one).expect("a connection");
        other.write_all(text.as_bytes()).expect("room");
        assert_eq!(server.shake_hands().expect_err("no TLS").to_string(), "the other side speaks no TLS");
    }
}

#[test]
fn a_renewed_certificate_is_shown_by_new_links_and_those_that_are_up_go_on() {
    let authority = Arc::new(crate::trust::Authority::make().expect("a key"));
    let node = |node| Credentials { authority: Arc::clone(&authority), node, former: None };
    let settings = Settings::default();
    let (own, other) = (node(1), node(2));
    let before = Security::new(&settings, Some(&own)).expect("an authority");
    let dial = Security::new(&settings, Some(&other)).expect("an authority").links.expect("links");
    let link = |security: &Security| {
        let (one, other) = ends(1_000, 100_000);
        let mut accepted = accept(&security.links.as_ref().expect("links").accept, one).expect("a connection");
        let mut dialled = dial.dial(1, other);
        agree(&mut accepted, &mut dialled).expect("both belong to the cluster");
        (accepted, dialled)
    };
    let (mut accepted, mut dialled) = link(&before);
    let renewed = before.renewed(&own).expect("it is the cluster's own");
    let (mut later, mut newer) = link(&renewed);
    let shown = |stream: &TlsStream<End>| stream.certificate().expect("a certificate").to_vec();
    assert_ne!(shown(&dialled), shown(&newer));
    let text = b"both go on".repeat(1_000);
    assert_eq!(carry(&mut dialled, &mut accepted, &text, text.len()), text);
    assert_eq!(carry(&mut newer, &mut later, &text, text.len()), text);
    // Where the operator has files for that, they are not replaced.
    assert!(Security { clients: None, links: None }.renewed(&own).is_none());
}

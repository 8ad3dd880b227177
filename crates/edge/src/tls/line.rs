//! A connection between two processes that share a secret or an authority: TLS 1.3, read by one thread and written by
//! another.
//!
//! With a secret no certificates are needed. Each side proves that it has the secret with a code over key material that
//! only the two ends of this very TLS session have (RFC 5705); somebody in the middle has two sessions, and therefore
//! no proof that is good for either.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::ring::hmac;
use rcgen::{CertificateParams, KeyPair};
use rustls::Connection;
use rustls::client::{ClientConfig, ClientConnection, Resumption};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, ServerConfig, ServerConnection, WebPkiClientVerifier};
use rustls::version::TLS13;

use super::{ANYBODY, Authorities, SignedBy, in_words, read_chain, read_key, unusable};

/// A secret shorter than this could be guessed by anyone who has seen a proof.
const SECRET_BYTES_MIN: usize = 16;

const PROOF_BYTES: usize = 32;

/// What names the key material of a session that proofs are made of.
const PROOF_LABEL: &[u8] = b"EXPORTER-holdfast-line";

/// Bytes taken from the socket at once.
const CHUNK_BYTES: usize = 64 << 10;

/// What a line is secured with.
#[derive(Clone, Debug, Default)]
pub struct LineOptions {
    /// What both ends know.
    pub secret: Option<Vec<u8>>,
    /// File of authorities; the other end must show a certificate of one of them.
    pub authorities: Option<PathBuf>,
    /// Certificate and private key to show; without them the end that listens makes a certificate for itself.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// Secures lines, whichever end calls.
#[derive(Clone)]
pub struct LineSecurity {
    secret: Option<hmac::Key>,
    dial: Arc<ClientConfig>,
    accept: Arc<ServerConfig>,
}

impl LineSecurity {
    /// What these options ask for.
    ///
    /// # Errors
    /// One line that says what cannot be used.
    pub fn new(options: &LineOptions) -> Result<Self, String> {
        if options.secret.is_none() && options.authorities.is_none() {
            return Err("neither a secret nor an authority says whom to trust".to_owned());
        }
        if options.secret.as_ref().is_some_and(|secret| secret.len() < SECRET_BYTES_MIN) {
            return Err(format!("the secret is shorter than {SECRET_BYTES_MIN} bytes, and could be guessed"));
        }
        let provider = Arc::new(ring::default_provider());
        let authorities = match &options.authorities {
            Some(file) => Some(Authorities::read(Some(file), None).map_err(|unfit| unfit.cause)?),
            None => None,
        };
        let own = match &options.own {
            Some((chain, key)) => Some((read_chain(chain)?, read_key(key)?)),
            None => None,
        };
        let name = |error: &rustls::Error| {
            let file = options.own.as_ref().map_or_else(|| "a certificate".into(), |own| own.0.display().to_string());
            format!("{file}: {}", unusable(error))
        };
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .expect("all suites are spoken")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(SignedBy::new(authorities.as_ref(), &provider)));
        let mut dial = match &own {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                builder.with_client_auth_cert(chain.clone(), key.clone_key()).map_err(|error| name(&error))?
            }
        };
        dial.enable_sni = false;
        dial.resumption = Resumption::disabled();
        let verifier = match &authorities {
            None => WebPkiClientVerifier::no_client_auth(),
            Some(authorities) => authorities.of_clients(&provider, false),
        };
        let (chain, key) = own.map_or_else(make_own, Ok)?;
        let mut accept = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .expect("all suites are spoken")
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(|error| name(&error))?;
        accept.session_storage = Arc::new(NoServerSessionStorage {});
        accept.send_tls13_tickets = 0;
        let secret = options.secret.as_ref().map(|secret| hmac::Key::new(hmac::HMAC_SHA256, secret));
        Ok(Self { secret, dial: Arc::new(dial), accept: Arc::new(accept) })
    }

    /// Secures a connection that this process has made (`is_caller`), or accepted. The socket's time limits hold.
    ///
    /// # Errors
    /// If that is not to be done with the other side; says why.
    pub fn secure(&self, mut socket: TcpStream, is_caller: bool) -> io::Result<(LineReader, LineWriter)> {
        let mut connection: Connection = if is_caller {
            let name = ServerName::try_from(ANYBODY).expect("letters, digits and dots");
            ClientConnection::new(Arc::clone(&self.dial), name).map_err(io::Error::other)?.into()
        } else {
            ServerConnection::new(Arc::clone(&self.accept)).map_err(io::Error::other)?.into()
        };
        while connection.is_handshaking() {
            connection.complete_io(&mut socket).map_err(in_words)?;
        }
        let binding = connection
            .export_keying_material([0; PROOF_BYTES], PROOF_LABEL, None)
            .map_err(|error| io::Error::other(format!("the session has no key material: {error}")))?;
        let (mut reader, mut writer) = halves(Some(connection), socket);
        if let Some(secret) = &self.secret {
            prove(secret, &binding, &mut reader, &mut writer, is_caller)?;
        }
        Ok((reader, writer))
    }
}

/// A line that is not secured, in the same form.
pub fn plain_line(socket: TcpStream) -> (LineReader, LineWriter) {
    halves(None, socket)
}

fn make_own() -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), String> {
    let made = KeyPair::generate().and_then(|key| {
        let certificate = CertificateParams::new(vec![ANYBODY.to_owned()])?.self_signed(&key)?;
        Ok((certificate, key))
    });
    let (certificate, key) = made.map_err(|error| format!("no certificate can be made: {error}"))?;
    Ok((vec![certificate.der().clone()], PrivatePkcs8KeyDer::from(key.serialize_der()).into()))
}

/// Shows that this side has the secret, and lets the other side show it. The caller begins.
fn prove(
    secret: &hmac::Key,
    binding: &[u8],
    reader: &mut LineReader,
    writer: &mut LineWriter,
    is_caller: bool,
) -> io::Result<()> {
    // The two differ, so that nobody can send back what it was sent.
    let text = |of_caller: bool| [if of_caller { &b"caller"[..] } else { b"callee" }, binding].concat();
    if is_caller {
        writer.write_all(hmac::sign(secret, &text(true)).as_ref())?;
    }
    let mut proof = [0; PROOF_BYTES];
    match reader.read_exact(&mut proof) {
        Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
            let why = "the other end has hung up instead of showing that it has the secret: do both have the same?";
            return Err(io::Error::new(ErrorKind::PermissionDenied, why));
        }
        read => read?,
    }
    if hmac::verify(secret, &text(!is_caller), &proof).is_err() {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "the other end does not have the secret"));
    }
    if !is_caller {
        writer.write_all(hmac::sign(secret, &text(false)).as_ref())?;
    }
    Ok(())
}

struct Shared {
    /// None on a line that is not secured.
    connection: Option<Mutex<Connection>>,
    socket: TcpStream,
}

impl Shared {
    fn lock(&self) -> Option<MutexGuard<'_, Connection>> {
        self.connection.as_ref().map(|connection| connection.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The end of a line that is read.
pub struct LineReader {
    shared: Arc<Shared>,
    chunk: Vec<u8>,
    /// Of these, so many have been taken.
    taken: usize,
}

/// The end of a line that is written.
pub struct LineWriter {
    shared: Arc<Shared>,
    packed: Vec<u8>,
}

fn halves(connection: Option<Connection>, socket: TcpStream) -> (LineReader, LineWriter) {
    let shared = Arc::new(Shared { connection: connection.map(Mutex::new), socket });
    let reader = LineReader { shared: Arc::clone(&shared), chunk: Vec::new(), taken: 0 };
    (reader, LineWriter { shared, packed: Vec::new() })
}

impl LineReader {
    /// The socket beneath.
    pub fn socket(&self) -> &TcpStream {
        &self.shared.socket
    }
}

impl Read for LineReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(mut connection) = self.shared.lock() else {
                return (&self.shared.socket).read(buffer);
            };
            match connection.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read.map_err(in_words),
            }
            if self.taken < self.chunk.len() {
                let mut rest = &self.chunk[self.taken..];
                self.taken += connection.read_tls(&mut rest)?;
                connection.process_new_packets().map_err(|error| in_words(io::Error::other(error)))?;
                continue;
            }
            drop(connection);
            self.chunk.resize(CHUNK_BYTES, 0);
            self.taken = 0;
            let read = (&self.shared.socket).read(&mut self.chunk);
            self.chunk.truncate(*read.as_ref().unwrap_or(&0));
            if read? == 0 {
                return Ok(0);
            }
        }
    }
}

impl Write for LineWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.packed.clear();
        let Some(mut connection) = self.shared.lock() else {
            return (&self.shared.socket).write(bytes);
        };
        let length = connection.writer().write(bytes)?;
        while connection.wants_write() {
            connection.write_tls(&mut self.packed)?;
        }
        // The line may be slow: who reads does not wait for it.
        drop(connection);
        (&self.shared.socket).write_all(&self.packed)?;
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    type Made = io::Result<(LineReader, LineWriter)>;

    fn both(caller: &LineOptions, callee: &LineOptions) -> (Made, Made) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let callee = LineSecurity::new(callee).expect("good options");
        let accepting = thread::spawn(move || callee.secure(listener.accept().expect("a caller").0, false));
        let caller = LineSecurity::new(caller).expect("good options");
        let called = caller.secure(TcpStream::connect(address).expect("a connection"), true);
        (called, accepting.join().expect("no panic"))
    }

    fn secret(text: &str) -> LineOptions {
        LineOptions { secret: Some(text.as_bytes().to_vec()), ..LineOptions::default() }
    }

    #[test]
    fn who_shares_a_secret_talks_in_both_directions_at_once() {
        let options = secret("0123456789abcdef");
        let (caller, callee) = both(&options, &options);
        let ((mut reader, mut writer), (mut other_reader, mut other_writer)) =
            (caller.expect("a line"), callee.expect("a line"));
        let bytes: Vec<u8> = (0..1_000_000_u32).map(|number| (number % 251) as u8).collect();
        let (there, back) = (bytes.clone(), bytes.clone());
        let sending = thread::spawn(move || writer.write_all(&there));
        let answering = thread::spawn(move || other_writer.write_all(&back));
        let reading = thread::spawn(move || {
            let mut read = vec![0; 1_000_000];
            other_reader.read_exact(&mut read).map(|()| read)
        });
        let mut read = vec![0; 1_000_000];
        reader.read_exact(&mut read).expect("all of it");
        assert!(read == bytes && reading.join().expect("no panic").expect("all of it") == bytes);
        sending.join().expect("no panic").expect("sent");
        answering.join().expect("no panic").expect("sent");
    }

    #[test]
    fn another_secret_or_a_short_one_is_refused() {
        let (caller, callee) = both(&secret("0123456789abcdef"), &secret("0123456789abcdeX"));
        assert!(caller.is_err_and(|why| why.to_string().contains("secret")));
        assert!(callee.is_err_and(|why| why.to_string().contains("secret")));
        assert!(LineSecurity::new(&secret("short")).is_err_and(|why| why.contains("guessed")));
        assert!(LineSecurity::new(&LineOptions::default()).is_err_and(|why| why.contains("whom to trust")));
    }
}

//! One encrypted connection, over a socket that does not wait.
//!
//! It reads and writes like the socket beneath it: what can be had without waiting, an edge of the socket when there is
//! more. Two things are different. A read that leaves room in the buffer has drained the socket, as with a plain one,
//! but what it found there may be nothing but the protocol's own: then there is nothing to read. And bytes count as
//! written only when what holds them has left for the socket; a caller that writes keeps the others, as it does anyway,
//! and gives them again.

use std::cell::RefCell;
use std::io::{self, ErrorKind, Read, Write};

use rustls::pki_types::CertificateDer;
use rustls::{AlertDescription, CertificateError, Connection, Error, InvalidMessage, PeerIncompatible};

/// Bytes taken from a socket at once.
const READ_BYTES: usize = 64 << 10;

/// Bytes encrypted before they are sent, which bounds what waits in encrypted form. Four full records.
const WRITE_BYTES: usize = 64 << 10;

thread_local! {
    /// Where bytes of the socket wait to be decrypted, mostly not longer than a call.
    static RAW: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// See the module.
pub struct TlsStream<S: Read + Write> {
    tls: Connection,
    socket: S,
    /// Bytes of the socket that have not been decrypted, as nobody had room for what is in them.
    rest: Vec<u8>,
    /// Bytes that have been encrypted and have not been told as written.
    owed: usize,
    has_ended: bool,
}

impl<S: Read + Write> TlsStream<S> {
    pub(super) fn new(mut tls: Connection, socket: S) -> Self {
        // Bounded here.
        tls.set_buffer_limit(None);
        Self { tls, socket, rest: Vec::new(), owed: 0, has_ended: false }
    }

    /// The socket.
    pub fn socket(&self) -> &S {
        &self.socket
    }

    /// See [`Self::socket`].
    pub fn socket_mut(&mut self) -> &mut S {
        &mut self.socket
    }

    /// What the other side has shown, if it has shown a certificate; it has been verified.
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.tls.peer_certificates().and_then(<[_]>::first)
    }

    /// The other side will send nothing more, or nothing that could be read: the next read tells.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Goes on with agreeing on keys as far as the socket lets it. True when that is done.
    ///
    /// # Errors
    /// Those of the socket, and one with [`ErrorKind::InvalidData`] that says why the two sides cannot come together.
    pub fn shake_hands(&mut self) -> io::Result<bool> {
        loop {
            // What is left of it leaves with what is written next.
            self.flush()?;
            if !self.tls.is_handshaking() {
                return Ok(true);
            }
            match self.fetch() {
                Ok(true) => {}
                Ok(false) => {
                    let why = "the other side closed the connection before keys were agreed";
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, why));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads as a socket does.
    ///
    /// # Errors
    /// As [`Self::shake_hands`].
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut count = 0;
        loop {
            count += self.take(&mut buffer[count..]);
            if count == buffer.len() {
                return Ok(count);
            }
            match self.fetch() {
                Ok(true) => {}
                Ok(false) => return Ok(count),
                Err(error) => {
                    // What came before bytes that cannot be decrypted is sound.
                    count += self.take(&mut buffer[count..]);
                    return if count > 0 { Ok(count) } else { Err(error) };
                }
            }
        }
    }

    /// Bytes that have been decrypted. Neither their end nor their want is news: the socket tells the one and the
    /// other.
    fn take(&mut self, buffer: &mut [u8]) -> usize {
        self.tls.reader().read(buffer).unwrap_or(0)
    }

    /// Writes as a socket does. What it does not take must come again, first thing in the next call.
    ///
    /// # Errors
    /// As [`Self::shake_hands`].
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut written = 0;
        loop {
            let is_ready = if self.tls.is_handshaking() { self.shake_hands()? } else { self.flush()? };
            if !is_ready {
                return if written > 0 { Ok(written) } else { Err(ErrorKind::WouldBlock.into()) };
            }
            written += std::mem::take(&mut self.owed);
            debug_assert!(written <= bytes.len(), "what was not written comes again");
            let rest = &bytes[written..];
            if rest.is_empty() {
                return Ok(written);
            }
            let piece = &rest[..rest.len().min(WRITE_BYTES)];
            self.tls.writer().write_all(piece)?;
            self.owed = piece.len();
        }
    }

    /// Sends what is encrypted. True if nothing of it is left.
    fn flush(&mut self) -> io::Result<bool> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Takes bytes from the socket and decrypts them. False at their end.
    fn fetch(&mut self) -> io::Result<bool> {
        if !self.rest.is_empty() {
            let rest = std::mem::take(&mut self.rest);
            let taken = self.decrypt(&rest)?;
            self.rest.extend_from_slice(&rest[taken..]);
            return Ok(true);
        }
        if self.has_ended {
            // An error that has been told is told again.
            return self.tls.process_new_packets().map(|_| false).map_err(told);
        }
        RAW.with_borrow_mut(|raw| {
            let count = loop {
                match self.socket.read(raw) {
                    Ok(count) => break count,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == ErrorKind::NotConnected && self.tls.is_handshaking() => {
                        return Err(ErrorKind::WouldBlock.into());
                    }
                    Err(error) => return Err(error),
                }
            };
            if count == 0 {
                self.has_ended = true;
                return Ok(false);
            }
            let taken = self.decrypt(&raw[..count])?;
            self.rest.extend_from_slice(&raw[taken..count]);
            Ok(true)
        })
    }

    /// Decrypts as much of these bytes as there is room for, and says how much that was.
    fn decrypt(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut left = bytes;
        while !left.is_empty() {
            match self.tls.read_tls(&mut left) {
                // The other side has said that it was all.
                Ok(0) => {
                    self.has_ended = true;
                    return Ok(bytes.len());
                }
                Ok(_) => {}
                // What has been decrypted must be taken first.
                Err(_) => break,
            }
            match self.tls.process_new_packets() {
                Ok(state) => self.has_ended |= state.peer_has_closed(),
                Err(error) => {
                    self.has_ended = true;
                    // The other side is told why, if it still listens.
                    let _ = self.flush();
                    return Err(told(error));
                }
            }
        }
        // Answers of the protocol's own leave with what is written next, if they cannot now.
        self.flush()?;
        Ok(bytes.len() - left.len())
    }
}

impl<S: Read + Write> Drop for TlsStream<S> {
    fn drop(&mut self) {
        if !self.tls.is_handshaking() {
            // So that the other side knows that nobody has cut off what came last. It may be gone.
            self.tls.send_close_notify();
            let _ = self.flush();
        }
    }
}

fn told(error: Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, cause(&error))
}

/// Why a connection cannot be secured, from this side's point of view.
pub fn cause(error: &Error) -> String {
    let text = match error {
        Error::InvalidMessage(InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion) => {
            "the other side speaks no TLS"
        }
        Error::NoCertificatesPresented => "the other side shows no certificate",
        Error::InvalidCertificate(invalid) => match invalid {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "the other side's certificate is signed by nobody who is trusted here"
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the other side's certificate has expired"
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the other side's certificate is not valid yet"
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                "the other side's certificate is not for this purpose (extended key usage)"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "another node answers there: its certificate has another number"
            }
            CertificateError::Revoked => "the other side's certificate has been revoked",
            // Errors of the verifier come in a box of a type that is not ours to name.
            CertificateError::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
                "the other side shows the certificate of an authority (CA:TRUE) as its own: it needs one that an \
                 authority has signed"
            }
            other => return format!("the other side's certificate is not good: {other}"),
        },
        Error::AlertReceived(alert) => match *alert {
            AlertDescription::UnknownCA => "the other side does not trust who has signed this side's certificate",
            AlertDescription::CertificateExpired => "the other side finds that this side's certificate has expired",
            AlertDescription::CertificateRequired => "the other side asks for a certificate, and this side has none",
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::AccessDenied => "the other side does not take this side's certificate",
            AlertDescription::ProtocolVersion => "the two sides have no version of TLS in common",
            AlertDescription::HandshakeFailure | AlertDescription::InsufficientSecurity => {
                "the two sides have no way to encrypt in common"
            }
            other => return format!("the other side ended TLS with {other:?}"),
        },
        Error::PeerIncompatible(
            PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
            | PeerIncompatible::SupportedVersionsExtensionRequired
            | PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled,
        ) => "the two sides have no version of TLS in common",
        Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon | PeerIncompatible::NoKxGroupsInCommon) => {
            "the two sides have no way to encrypt in common"
        }
        other => return format!("TLS: {other}"),
    };
    text.to_owned()
}

#[cfg(test)]
mod tests;

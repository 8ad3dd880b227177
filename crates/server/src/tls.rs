//! TLS as a client of servers, with the options that redis-cli has for it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow};
use edge::{ClientOptions, ClientSecurity, SecureStream};

use crate::connection::in_time;

/// How connections to servers are secured.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TlsArguments {
    /// Use TLS
    #[arg(long)]
    pub tls: bool,
    /// File with the certificates of trusted authorities, in PEM format
    #[arg(long, value_name = "FILE", requires = "tls")]
    pub cacert: Option<PathBuf>,
    /// Directory with such files
    #[arg(long, value_name = "DIR", requires = "tls")]
    pub cacertdir: Option<PathBuf>,
    /// Client certificate, in PEM format
    #[arg(long, value_name = "FILE", requires_all = ["tls", "key"])]
    pub cert: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", requires_all = ["tls", "cert"])]
    pub key: Option<PathBuf>,
    /// Do not verify the certificate of the server
    #[arg(long, requires = "tls")]
    pub insecure: bool,
}

impl TlsArguments {
    /// What to secure connections with, if at all.
    pub fn security(&self) -> Result<Option<ClientSecurity>> {
        if !self.tls {
            return Ok(None);
        }
        let options = ClientOptions {
            authorities: self.cacert.clone(),
            authorities_directory: self.cacertdir.clone(),
            own: self.cert.clone().zip(self.key.clone()),
            is_insecure: self.insecure,
        };
        ClientSecurity::new(&options).map(Some).map_err(|why| anyhow!(why))
    }
}

/// A connection with reads and writes that wait.
pub enum Stream {
    Plain(TcpStream),
    Tls(Box<SecureStream>),
    /// To the server of this very process.
    Local(UnixStream),
}

impl Stream {
    /// Connects; nothing takes longer than `patience`.
    pub fn connect(address: SocketAddr, patience: Duration, security: Option<&ClientSecurity>) -> io::Result<Self> {
        let socket = TcpStream::connect_timeout(&address, patience)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(patience))?;
        socket.set_write_timeout(Some(patience))?;
        Ok(match security {
            None => Self::Plain(socket),
            Some(security) => {
                let late = "there was no answer in time: does this port speak TLS?";
                Self::Tls(Box::new(security.connect(socket).map_err(|error| in_time(error, late))?))
            }
        })
    }

    /// Another handle of the connection, with which it can be cut from another thread.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn handle(&self) -> io::Result<TcpStream> {
        match self {
            Self::Plain(socket) => socket.try_clone(),
            Self::Tls(stream) => stream.sock.try_clone(),
            Self::Local(_) => Err(io::Error::other("a connection within the process is not cut")),
        }
    }

    /// No read waits for longer.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.set_read_timeout(Some(timeout)),
            Self::Tls(stream) => stream.sock.set_read_timeout(Some(timeout)),
            Self::Local(socket) => socket.set_read_timeout(Some(timeout)),
        }
    }

    /// No write waits for longer.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.set_write_timeout(Some(timeout)),
            Self::Tls(stream) => stream.sock.set_write_timeout(Some(timeout)),
            Self::Local(socket) => socket.set_write_timeout(Some(timeout)),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Local(socket) => socket.read(buffer),
            Self::Tls(stream) => stream.read(buffer).map_err(edge::in_words),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Local(socket) => socket.write(bytes),
            Self::Tls(stream) => stream.write(bytes).map_err(edge::in_words),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Local(socket) => socket.flush(),
            Self::Tls(stream) => stream.flush().map_err(edge::in_words),
        }
    }
}

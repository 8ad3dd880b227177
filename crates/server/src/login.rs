//! How tools get into a server: who they are, and how the connection is secured.

use std::net::ToSocketAddrs;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use edge::ClientSecurity;
use resp::Frame;

use crate::connection::{Connection, Refused};
use crate::tls::{Stream, TlsArguments};
use crate::waiting;

/// The user that the tool acts as, and how the connection is secured.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Login {
    /// User to authenticate as
    #[arg(long)]
    pub user: Option<String>,
    /// Password to authenticate with; REDISCLI_AUTH is read as well
    #[arg(long, short = 'a', alias = "pass", env = "HOLDFAST_PASSWORD", hide_env_values = true)]
    pub password: Option<String>,
    #[command(flatten)]
    pub tls: TlsArguments,
}

impl Login {
    /// The password that was given, or that of redis-cli's environment.
    pub fn password(&self) -> Option<String> {
        password_of(self.password.as_deref())
    }

    /// Connects to `HOST:PORT`. Every reply is waited for no longer than `patience`.
    ///
    /// # Errors
    /// If there is no server, or it does not let the user in.
    pub fn connect(&self, server: &str, patience: Duration) -> Result<Connection> {
        let security = self.tls.security()?;
        let dialled = waiting::during(&format!("connects to {server}"), || dial(server, patience, security.as_ref()));
        let stream = dialled.with_context(|| format!("no server answers at {server}"))?;
        let mut connection = Connection::over(stream).tell_of(server);
        if let Some(password) = self.password() {
            let user = self.user.as_deref().unwrap_or("default");
            let reply = connection.call(&["AUTH", user, &password]).with_context(|| format!("{server} hung up"))?;
            if let Frame::Error(text) = &reply {
                return Err(Refused::new(format!("{server} refuses the user {user}: {reply}"), text).into());
            }
        }
        Ok(connection)
    }

    /// The user, if one was named, and the password.
    pub fn secret(&self) -> Option<(Option<&str>, &str)> {
        self.password.as_deref().map(|password| (self.user.as_deref(), password))
    }
}

/// The password that was given, or that of redis-cli's environment.
pub fn password_of(given: Option<&str>) -> Option<String> {
    given.map(str::to_owned).or_else(|| std::env::var("REDISCLI_AUTH").ok().filter(|password| !password.is_empty()))
}

/// A stream to the first address of `HOST:PORT` that answers.
///
/// # Errors
/// Why the last does not.
pub fn dial(place: &str, patience: Duration, security: Option<&ClientSecurity>) -> Result<Stream> {
    let mut last = None;
    for address in place.to_socket_addrs().with_context(|| format!("{place} is no HOST:PORT"))? {
        match Stream::connect(address, patience, security) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    Err(last.map_or_else(|| anyhow!("{place} has no address"), anyhow::Error::from))
}

//! Which node is asked, and how.

use std::net::ToSocketAddrs;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use resp::Frame;
use serde_json::{Map, Value};

use crate::connection::{Connection, Refused, named};
use crate::login::Login;
use crate::waiting;

/// A node that says nothing for so long is not asked further.
const PATIENCE: Duration = Duration::from_secs(10);

/// The node to be asked.
#[derive(Clone, Debug, Args)]
pub struct Door {
    /// Any node of the cluster, at its port for clients; instead of --host and --port.
    #[arg(long, short, value_name = "HOST:PORT", conflicts_with_all = ["host", "port"])]
    pub server: Option<String>,
    /// Host of any node of the cluster.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Its port for clients.
    #[arg(long, short, default_value_t = 6379)]
    pub port: u16,
    #[command(flatten)]
    pub login: Login,
}

impl Door {
    /// That of the server at `HOST:PORT`.
    pub fn at(place: &str, login: &Login) -> Self {
        Self { server: Some(place.to_owned()), host: String::new(), port: 0, login: login.clone() }
    }

    /// Connects, in the third version of the protocol. A wait that takes long is told.
    pub fn open(&self) -> Result<Connection> {
        let place = self.place();
        let connection = waiting::during(&format!("connects to {place}"), || self.dial())?.tell_of(&place);
        self.greet(connection)
    }

    /// The same, and says nothing meanwhile.
    pub fn open_in_silence(&self) -> Result<Connection> {
        self.greet(self.dial()?)
    }

    /// `HOST:PORT`.
    pub fn place(&self) -> String {
        self.server.clone().unwrap_or_else(|| place_of(&self.host, self.port))
    }

    /// Connects, in the second version of the protocol. Every reply is waited for no longer than `patience`.
    ///
    /// # Errors
    /// If there is no server, or it does not let the user in.
    pub fn connect(&self, patience: Duration) -> Result<Connection> {
        self.login.connect(&self.place(), patience)
    }

    /// Connects and says nothing yet.
    pub fn dial(&self) -> Result<Connection> {
        let place = self.place();
        let told = || format!("no answer from {place}");
        let security = self.login.tls.security()?;
        let addresses = place.to_socket_addrs().with_context(told)?;
        let mut last = None;
        for address in addresses {
            match Connection::open_secured(address, PATIENCE, security.as_ref()) {
                Ok(connection) => return Ok(connection),
                Err(error) => last = Some(error),
            }
        }
        match last {
            Some(error) => Err(error).with_context(told),
            None => bail!("{place} has no address"),
        }
    }

    fn greet(&self, mut connection: Connection) -> Result<Connection> {
        let mut words = vec!["HELLO", "3"];
        let password = self.login.password();
        if password.is_some() || self.login.user.is_some() {
            let user = self.login.user.as_deref().unwrap_or("default");
            words.extend(["AUTH", user, password.as_deref().unwrap_or_default()]);
        }
        let place = self.place();
        let reply = connection.call(&words).with_context(|| format!("no answer from {place}"))?;
        let Frame::Error(text) = &reply else { return Ok(connection) };
        let shown = match text.starts_with(b"NOAUTH") {
            true => format!("{place} asks for a password (NOAUTH): use --password, or HOLDFAST_PASSWORD"),
            false => format!("{place} refuses: {}", String::from_utf8_lossy(text)),
        };
        Err(Refused::new(shown, text).into())
    }
}

/// `HOST:PORT`, with an IPv6 address in brackets.
pub fn place_of(host: &str, port: u16) -> String {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The answer to one request; an error reply is an error, of the type [`Refused`].
pub fn ask(connection: &mut Connection, words: &[&str]) -> Result<Frame> {
    match connection.call(words).with_context(|| format!("{} was not answered", named(words)))? {
        Frame::Error(text) if is_of_another_product(&text) => {
            let shown = format!("this server is not a Holdfast: it does not know the command {}", words[0]);
            Err(Refused::new(shown, &text).into())
        }
        Frame::Error(text) => Err(Refused::new(String::from_utf8_lossy(&text).into_owned(), &text).into()),
        reply => Ok(reply),
    }
}

/// Whether an error reply says that a command of Holdfast's own is not known.
fn is_of_another_product(text: &[u8]) -> bool {
    text.to_ascii_lowercase().starts_with(b"err unknown command 'holdfast'")
}

/// Whether a server that answers with this error does so however long it is asked.
pub fn is_final(error: &anyhow::Error) -> bool {
    let Some(refused) = error.downcast_ref::<Refused>() else { return false };
    matches!(refused.code(), b"NOAUTH" | b"WRONGPASS" | b"NOPERM") || is_of_another_product(refused.reply())
}

/// How the cluster is, as a node tells it.
pub fn ask_status(connection: &mut Connection) -> Result<Value> {
    Ok(value_of(&ask(connection, &["HOLDFAST", "CLUSTER"])?))
}

/// The latest happenings, the latest first.
pub fn ask_timeline(connection: &mut Connection, count: usize) -> Result<Vec<Value>> {
    let reply = ask(connection, &["HOLDFAST", "TIMELINE", &count.to_string()])?;
    Ok(value_of(&reply).as_array().cloned().unwrap_or_default())
}

/// A reply as JSON has it.
pub fn value_of(frame: &Frame) -> Value {
    match frame {
        Frame::Integer(number) => (*number).into(),
        Frame::Boolean(is_so) => (*is_so).into(),
        Frame::Double(number) => (*number).into(),
        Frame::Null => Value::Null,
        Frame::Array(elements) | Frame::Set(elements) | Frame::Push(elements) => {
            elements.iter().map(value_of).collect::<Vec<_>>().into()
        }
        Frame::Map(pairs) => {
            let pairs = pairs.iter().map(|(name, value)| (text_of(name), value_of(value)));
            pairs.collect::<Map<_, _>>().into()
        }
        other => text_of(other).into(),
    }
}

fn text_of(frame: &Frame) -> String {
    String::from_utf8_lossy(frame.as_bytes().unwrap_or_default()).into_owned()
}

/// A field of a status.
pub fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// See [`text`].
pub fn number(value: &Value, name: &str) -> u64 {
    value.get(name).and_then(Value::as_u64).unwrap_or_default()
}

/// See [`text`].
pub fn list<'v>(value: &'v Value, name: &str) -> &'v [Value] {
    value.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_answers_are_the_same_however_long_one_asks() {
        let is_final = |text: &str| {
            let error = anyhow::Error::from(Refused::new(text.to_owned(), text.as_bytes()));
            is_final(&error.context("it cannot be asked"))
        };
        for text in
            ["NOAUTH x", "WRONGPASS x", "NOPERM x", "ERR unknown command 'HOLDFAST', with args beginning with: "]
        {
            assert!(is_final(text), "{text}");
        }
        for text in ["LOADING x", "CLUSTERDOWN x", "ERR unknown command 'holdout'"] {
            assert!(!is_final(text), "{text}");
        }
    }
}

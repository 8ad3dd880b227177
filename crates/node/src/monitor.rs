//! MONITOR: every command that clients send, shown to those who ask.
//!
//! Every core knows which cores have sessions that watch. While there is none, a command costs one test of a bit.

use std::sync::Arc;

use group::ids::{CoreId, SessionId};

/// Which sessions of this core watch, and which cores have such sessions.
#[derive(Debug, Default)]
pub struct Monitors {
    pub(crate) sessions: Vec<SessionId>,
    pub(crate) cores: Vec<bool>,
    is_watched: bool,
}

impl Monitors {
    /// True if anybody on the node watches.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// Notes whether sessions of a core watch.
    pub fn set_core(&mut self, core: CoreId, watches: bool) {
        let place = usize::from(core.0);
        if self.cores.len() <= place {
            self.cores.resize(place + 1, false);
        }
        self.cores[place] = watches;
        self.is_watched = self.cores.contains(&true);
    }

    /// Lets a session of this core watch.
    pub fn add(&mut self, session: SessionId) {
        if !self.sessions.contains(&session) {
            self.sessions.push(session);
        }
    }

    /// A session watches no more, or is gone.
    pub fn remove(&mut self, session: SessionId) {
        self.sessions.retain(|other| *other != session);
    }

    /// True if the session watches.
    pub fn contains(&self, session: SessionId) -> bool {
        self.sessions.contains(&session)
    }

    /// True if other cores still believe that sessions of this one watch, and none does.
    pub(crate) fn is_to_be_taken_back(&self, own: CoreId) -> bool {
        self.sessions.is_empty() && self.cores.get(usize::from(own.0)) == Some(&true)
    }
}

/// A command as it is shown: when, in which database, from which client, and its words.
pub(crate) fn line<'a>(unix_ms: i64, database: u16, by: &str, words: impl Iterator<Item = &'a [u8]>) -> Arc<[u8]> {
    let (seconds, micros) = (unix_ms.div_euclid(1_000), unix_ms.rem_euclid(1_000) * 1_000);
    let mut line = format!("+{seconds}.{micros:06} [{database} {by}]").into_bytes();
    for word in words {
        line.push(b' ');
        quote(word, &mut line);
    }
    line.extend_from_slice(b"\r\n");
    line.into()
}

/// Appends a word in quotes, readable whatever it holds.
pub(crate) fn quote(word: &[u8], line: &mut Vec<u8>) {
    line.push(b'"');
    for byte in word {
        match byte {
            b'\\' | b'"' => line.extend_from_slice(&[b'\\', *byte]),
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\r' => line.extend_from_slice(b"\\r"),
            b'\t' => line.extend_from_slice(b"\\t"),
            0x07 => line.extend_from_slice(b"\\a"),
            0x08 => line.extend_from_slice(b"\\b"),
            b' '..=b'~' => line.push(*byte),
            _ => line.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
        }
    }
    line.push(b'"');
}

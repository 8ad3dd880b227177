//! Which session listens to which channel, and how a message reaches everybody.
//!
//! A core knows what its own sessions listen to, and nothing of the others': a message is handed to every core of the
//! node and to every other node. So subscribing costs no envelope, and a subscription that has been acknowledged misses
//! nothing that is published after that.
//!
//! A message is delivered at most once, as in Redis: a subscriber that does not read is cut off (see
//! `client-output-buffer-limit`), and one that is away misses what is said meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use group::ids::SessionId;
use group::published::Published;
use keyspace::glob;

use crate::session::{Session, Sessions};
use crate::settings::OutputLimits;

/// What a subscription names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One channel (SUBSCRIBE).
    Channel,
    /// All channels that match (PSUBSCRIBE).
    Pattern,
    /// One shard channel (SSUBSCRIBE): a name space of its own, without patterns.
    Shard,
}

/// What one session listens to.
#[derive(Debug, Default)]
pub struct Subscriptions {
    names: [BTreeSet<Arc<[u8]>>; 3],
}

impl Subscriptions {
    /// The names of one kind, in order.
    pub fn names(&self, kind: Kind) -> &BTreeSet<Arc<[u8]>> {
        &self.names[kind as usize]
    }

    /// The number that clients are told behind each confirmation: channels and patterns count together.
    pub fn told_count(&self, kind: Kind) -> usize {
        match kind {
            Kind::Channel | Kind::Pattern => self.names(Kind::Channel).len() + self.names(Kind::Pattern).len(),
            Kind::Shard => self.names(Kind::Shard).len(),
        }
    }

    fn is_empty(&self) -> bool {
        self.names.iter().all(BTreeSet::is_empty)
    }
}

/// What the sessions of one core listen to.
#[derive(Debug, Default)]
pub struct Pubsub {
    listeners: [BTreeMap<Arc<[u8]>, BTreeSet<SessionId>>; 3],
}

impl Pubsub {
    /// Lets a session listen; nothing changes if it does already.
    pub fn subscribe(&mut self, session: &mut Session, kind: Kind, name: &[u8]) {
        let subscriptions = session.options.subscriptions.get_or_insert_default();
        if subscriptions.names(kind).contains(name) {
            return;
        }
        let listeners = &mut self.listeners[kind as usize];
        let name = match listeners.get_key_value(name) {
            Some((known, _)) => Arc::clone(known),
            None => name.into(),
        };
        listeners.entry(Arc::clone(&name)).or_default().insert(session.id);
        subscriptions.names[kind as usize].insert(name);
    }

    /// Ends a subscription, if there is one.
    pub fn unsubscribe(&mut self, session: &mut Session, kind: Kind, name: &[u8]) {
        let Some(subscriptions) = &mut session.options.subscriptions else { return };
        if !subscriptions.names[kind as usize].remove(name) {
            return;
        }
        let listeners = &mut self.listeners[kind as usize];
        let those = listeners.get_mut(name).expect("both sides know of a subscription");
        those.remove(&session.id);
        if those.is_empty() {
            listeners.remove(name);
        }
        if subscriptions.is_empty() {
            session.options.subscriptions = None;
        }
    }

    /// Ends all subscriptions of a session.
    pub fn forget(&mut self, session: &mut Session) {
        for kind in [Kind::Channel, Kind::Pattern, Kind::Shard] {
            let names = session.options.subscriptions.as_ref().map(|subscriptions| subscriptions.names(kind).clone());
            for name in names.into_iter().flatten() {
                self.unsubscribe(session, kind, &name);
            }
        }
    }

    /// All names of one kind that somebody listens to, in order.
    pub fn names(&self, kind: Kind) -> impl Iterator<Item = &[u8]> {
        self.listeners[kind as usize].keys().map(|name| &**name)
    }

    /// How many sessions listen to a name.
    pub fn listener_count(&self, kind: Kind, name: &[u8]) -> usize {
        self.listeners[kind as usize].get(name).map_or(0, BTreeSet::len)
    }

    /// Hands a message to the sessions that listen, and says how many there are: one that listens twice counts twice.
    pub(crate) fn deliver(&self, message: &Published, sessions: &mut Sessions, limits: &OutputLimits) -> u64 {
        let (kind, word) = if message.is_shard {
            (Kind::Shard, b"smessage".as_slice())
        } else {
            (Kind::Channel, b"message".as_slice())
        };
        let mut count = 0;
        for session in self.listeners[kind as usize].get(&message.channel).into_iter().flatten() {
            count += 1;
            sessions.push(*session, limits, |writer| {
                writer.push(3);
                writer.bulk(word);
                writer.bulk(&message.channel);
                writer.bulk(&message.body);
            });
        }
        if message.is_shard {
            return count;
        }
        for (pattern, listeners) in &self.listeners[Kind::Pattern as usize] {
            if !glob::matches(pattern, &message.channel) {
                continue;
            }
            for session in listeners {
                count += 1;
                sessions.push(*session, limits, |writer| {
                    writer.push(4);
                    writer.bulk(b"pmessage");
                    writer.bulk(pattern);
                    writer.bulk(&message.channel);
                    writer.bulk(&message.body);
                });
            }
        }
        count
    }
}

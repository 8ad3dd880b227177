//! REPLICAOF, as far as it concerns the host: requests go to the thread that follows a Redis, and what it says of that
//! goes to all cores.
//!
//! A core that has heard that this node follows a Redis takes no writes of clients from then on. The thread waits until
//! all of them have heard it before it looks at the data, or changes them.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use node::event::{Event, ReplicateRequest, SourceFigures};

use crate::host::Host;
use crate::mailbox::Mail;

/// Between the host's cores and the thread that follows.
#[derive(Debug, Default)]
pub struct Replicator {
    shared: Mutex<Shared>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Shared {
    /// Where requests go; none if this server was started for something else.
    wishes: Option<Sender<ReplicateRequest>>,
    /// So many events went to cores, and so many of them have taken effect.
    told_count: u64,
    heard_count: u64,
    /// A Redis is followed.
    follows: bool,
    /// As it began, a core had elements that clients took and may not get.
    owes: bool,
}

impl Replicator {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests go there from now on.
    pub fn send_to(&self, wishes: Sender<ReplicateRequest>) {
        self.lock().wishes = Some(wishes);
    }

    /// Takes a client's request.
    pub fn take(&self, host: &Host, request: ReplicateRequest) {
        let refused = match self.lock().wishes.as_ref() {
            None => Some(request),
            Some(wishes) => wishes.send(request).err().map(|unsent| unsent.0),
        };
        if let Some(request) = refused {
            answer(host, &request, Err("ERR this server cannot follow a Redis now".to_owned()));
        }
    }

    /// A core has heard what it was told, and owes its clients elements that would have to go back, or does not.
    pub fn heard(&self, owes: bool) {
        let mut shared = self.lock();
        shared.heard_count += 1;
        shared.owes |= owes;
        drop(shared);
        self.changed.notify_all();
    }

    /// Tells all cores which Redis is followed, and how that is going.
    pub fn tell(&self, host: &Host, source: Option<SourceFigures>) {
        let source = source.map(Arc::new);
        // Cores are told in the same order by all who tell them.
        let mut shared = self.lock();
        shared.owes &= shared.follows;
        shared.follows = source.is_some();
        for desk in &host.desks {
            shared.told_count += 1;
            desk.mailbox.post(Mail::Event(Event::Source(source.clone())));
        }
    }

    /// True if, as it began, a core had elements that clients took and may not get. To be asked when all have heard.
    pub fn owes(&self) -> bool {
        self.lock().owes
    }

    /// True while a Redis is followed.
    pub fn follows(&self) -> bool {
        self.lock().follows
    }

    /// Waits until all cores have heard all that they were told. False if that takes longer than `patience`.
    pub fn is_heard_within(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut shared = self.lock();
        let told_count = shared.told_count;
        while shared.heard_count < told_count {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            shared = self.changed.wait_timeout(shared, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// Answers a client.
pub fn answer(host: &Host, request: &ReplicateRequest, answer: Result<&'static str, String>) {
    let event = Event::Migrated { session: request.session, ticket: request.ticket, answer };
    host.desks[usize::from(request.core.0)].mailbox.post(Mail::Event(event));
}

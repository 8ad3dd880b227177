//! How threads reach a core: a box of mail, and a wake-up only when the core sleeps.
//!
//! A sender takes the lock once per turn for all it has to say. Only the sender that finds the core parked pays for an
//! `eventfd` write; while the core works, mail costs no system call on either side. The box has no bound of its own: a
//! core's mail answers or carries on what its clients and its disk have been admitted to do, and those are bounded.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mio::Waker;
use node::event::{Event, NodeId};

use crate::listener::Arrival;
use crate::peers::Inbound;
use crate::storage::Storage;

/// What a core finds in its box.
pub enum Mail {
    /// Something for the state machine, as it is.
    Event(Event<'static>),
    /// Another node spoke.
    Peer {
        /// Who.
        from: NodeId,
        /// One message.
        bytes: Vec<u8>,
    },
    /// A connection on which another node speaks to this core's groups: the core reads it from now on.
    Inbound(Box<Inbound>),
    /// Connections of this node are to be dropped.
    HearNoMore(NodeId),
    /// A client has connected.
    Arrival(Box<Arrival>),
    /// The data directory is open: this writes to it. Comes before any group.
    Storage(Storage),
    /// What waits for the disk has become less: clients may be read again.
    StorageTakesMore,
    /// Tell your figures.
    Measure(std::sync::mpsc::Sender<node::metrics::Measured>),
    /// To the first core: tell what concerns the node, beside these figures of all cores.
    Describe(Arc<node::metrics::Gathered>, std::sync::mpsc::Sender<node::metrics::Facts>),
    /// No more requests are to be read; what is under way goes on.
    StopReading,
    /// Say on this channel that everything posted before has been stepped and carried out.
    Fence(std::sync::mpsc::Sender<()>),
    /// End the thread.
    End,
}

/// One core's box.
pub struct Mailbox {
    state: Mutex<State>,
    waker: Waker,
}

#[derive(Default)]
struct State {
    mail: Vec<Mail>,
    is_parked: bool,
    /// How often the core has taken its mail.
    collected_count: u64,
}

impl Mailbox {
    /// An empty box of a core that `waker` wakes.
    pub fn new(waker: Waker) -> Self {
        Self { state: Mutex::default(), waker }
    }

    /// Puts one thing in.
    pub fn post(&self, mail: Mail) {
        self.post_with(|box_| box_.push(mail));
    }

    /// Puts in all that `fill` pushes, under one lock and with at most one wake-up.
    pub fn post_with(&self, fill: impl FnOnce(&mut Vec<Mail>)) {
        let mut state = self.lock();
        fill(&mut state.mail);
        let must_wake = !state.mail.is_empty() && std::mem::take(&mut state.is_parked);
        drop(state);
        if must_wake {
            // An eventfd write fails only if its counter is full, and then the wake-up is already due.
            let _ = self.waker.wake();
        }
    }

    /// Tells senders that the core is about to sleep; false if it must not, because there is mail.
    pub fn park(&self) -> bool {
        let mut state = self.lock();
        state.is_parked = state.mail.is_empty();
        state.is_parked
    }

    /// Tells senders that the core is awake, and moves all mail to the end of `into`.
    pub fn collect(&self, into: &mut Vec<Mail>) {
        let mut state = self.lock();
        state.is_parked = false;
        state.collected_count += 1;
        if into.is_empty() {
            std::mem::swap(into, &mut state.mail);
        } else {
            into.append(&mut state.mail);
        }
    }

    /// How often the core has taken its mail.
    pub fn collected_count(&self) -> u64 {
        self.lock().collected_count
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mio::{Events, Poll, Token};
    use std::time::Duration;

    fn with_box() -> (Poll, Mailbox) {
        let poll = Poll::new().expect("epoll");
        let waker = Waker::new(poll.registry(), Token(0)).expect("eventfd");
        (poll, Mailbox::new(waker))
    }

    fn was_woken(poll: &mut Poll) -> bool {
        let mut events = Events::with_capacity(4);
        poll.poll(&mut events, Some(Duration::ZERO)).expect("epoll_wait");
        !events.is_empty()
    }

    #[test]
    fn a_core_at_work_is_not_woken() {
        let (mut poll, mailbox) = with_box();
        mailbox.post(Mail::StopReading);
        assert!(!was_woken(&mut poll));
        let mut mail = Vec::new();
        mailbox.collect(&mut mail);
        assert_eq!(mail.len(), 1);
    }

    #[test]
    fn a_parked_core_is_woken_once() {
        let (mut poll, mailbox) = with_box();
        assert!(mailbox.park());
        mailbox.post(Mail::StopReading);
        assert!(was_woken(&mut poll));
        mailbox.post(Mail::StopReading);
        assert!(!was_woken(&mut poll));
    }

    #[test]
    fn a_core_with_mail_must_not_sleep() {
        let (_poll, mailbox) = with_box();
        mailbox.post(Mail::End);
        assert!(!mailbox.park());
    }

    #[test]
    fn mail_keeps_its_order() {
        let (_poll, mailbox) = with_box();
        mailbox.post(Mail::StopReading);
        mailbox.post_with(|mail| mail.push(Mail::End));
        let mut mail = Vec::new();
        mailbox.collect(&mut mail);
        assert!(matches!(mail[..], [Mail::StopReading, Mail::End]));
    }
}

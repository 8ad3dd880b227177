//! How threads reach a core: a box of mail, and a promise that somebody sees to it.
//!
//! A sender takes the lock once per turn for all it has to say. While the core works, mail costs no system call on
//! either side. The one who finds the core resting is *called*: it wakes the core's own thread by an `eventfd` write,
//! or, being a core's thread itself, steps the core in its place (see `core_thread`). Until one of them has come the
//! others leave the core alone. The box has no bound of its own: a core's mail answers or carries on what its clients
//! and its disk have been admitted to do, and those are bounded.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use group::ids::NodeId;
use node::event::Event;

use crate::core_waker::CoreWaker;
use crate::listener::Arrival;
use crate::peers::Inbound;
use crate::storage::Storage;

/// What a core finds in its box.
pub enum Mail {
    /// Something for the state machine, as it is.
    Event(Event<'static>),
    /// The thread that steps this core has been called to this other one, too.
    Call(usize),
    /// Another node spoke.
    Peer {
        /// Who.
        from: NodeId,
        /// One message.
        bytes: Vec<u8>,
    },
    /// A connection on which another node speaks to this core's groups: the core reads it from now on.
    Inbound(Box<Inbound>),
    /// Connections of this node must be dropped.
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
    /// To the first core: tell what the node sees of its cluster.
    Look(std::sync::mpsc::Sender<node::landscape::Landscape>),
    /// No more requests must be read; what is under way goes on.
    StopReading,
    /// Say on this channel that everything posted before has been stepped and carried out.
    Fence(std::sync::mpsc::Sender<()>),
    /// End the thread.
    End,
}

/// One core's box.
pub struct Mailbox {
    state: Mutex<State>,
    waker: CoreWaker,
    woken_count: AtomicU64,
}

/// Whether somebody sees to the mail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stance {
    /// A thread steps the core, and looks for mail before it releases it; or its own thread has been woken to do so.
    #[default]
    Working,
    /// Nobody does, and there is no mail.
    Resting,
    /// Nobody does, but the one who put in the first mail has been called.
    Called,
}

/// Who sees to a core that somebody is to see to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// The caller is called to it.
    Yours,
    /// Somebody has been called before, and has not come yet.
    Others,
    /// Somebody has it, and may not look again.
    InHands,
}

#[derive(Default)]
struct State {
    mail: Vec<Mail>,
    stance: Stance,
    /// How often the core has taken its mail.
    collected_count: u64,
}

impl Mailbox {
    /// An empty box of a core with a thread of its own, which `waker` wakes.
    pub fn new(waker: CoreWaker) -> Self {
        Self { state: Mutex::default(), waker, woken_count: AtomicU64::new(0) }
    }

    /// Puts one thing in.
    pub fn post(&self, mail: Mail) {
        self.post_with(|box_| box_.push(mail));
    }

    /// Puts in all that `fill` pushes, under one lock and with at most one wake-up.
    pub fn post_with(&self, fill: impl FnOnce(&mut Vec<Mail>)) {
        if self.leave_with(fill) {
            self.wake();
        }
    }

    /// Puts one thing in, and wakes nobody. True if the sender is called: it must step the core, or wake its thread.
    #[must_use]
    pub fn leave(&self, mail: Mail) -> bool {
        self.leave_with(|box_| box_.push(mail))
    }

    /// The same for all that `fill` pushes.
    #[must_use]
    pub fn leave_with(&self, fill: impl FnOnce(&mut Vec<Mail>)) -> bool {
        let mut state = self.lock();
        fill(&mut state.mail);
        let is_called = !state.mail.is_empty() && state.stance == Stance::Resting;
        if is_called {
            state.stance = Stance::Called;
        }
        is_called
    }

    /// Wakes the core's own thread: it will look for mail, no matter who else does.
    pub fn wake(&self) {
        self.woken_count.fetch_add(1, Ordering::Relaxed);
        self.waker.wake();
    }

    /// Somebody must read the core's sockets, although there may be no mail.
    #[must_use]
    pub fn call(&self) -> Call {
        let mut state = self.lock();
        match state.stance {
            Stance::Resting => {
                state.stance = Stance::Called;
                Call::Yours
            }
            Stance::Called => Call::Others,
            Stance::Working => Call::InHands,
        }
    }

    /// What wakes the core's own thread.
    pub fn waker(&self) -> &CoreWaker {
        &self.waker
    }

    /// The thread that has stepped the core is about to let go of it; false if it must not, because there is mail.
    pub fn rest(&self) -> bool {
        let mut state = self.lock();
        let is_empty = state.mail.is_empty();
        state.stance = if is_empty { Stance::Resting } else { Stance::Working };
        is_empty
    }

    /// The thread that has stepped the core is about to let go of it, but will come again for the mail that there is.
    pub fn stay_called(&self) {
        self.lock().stance = Stance::Called;
    }

    /// The core's own thread steps it now, and will look for mail.
    pub fn take_up(&self) {
        self.lock().stance = Stance::Working;
    }

    /// True if there is no mail.
    pub fn is_empty(&self) -> bool {
        self.lock().mail.is_empty()
    }

    /// True if there is mail to which nobody sees but the one who has been called.
    pub fn awaits_the_called(&self) -> bool {
        self.lock().stance == Stance::Called
    }

    /// The thread that steps the core now sees to its mail: moves all of it to the end of `into`.
    pub fn collect(&self, into: &mut Vec<Mail>) {
        let mut state = self.lock();
        state.stance = Stance::Working;
        state.collected_count += 1;
        if into.is_empty() {
            std::mem::swap(into, &mut state.mail);
        } else {
            into.append(&mut state.mail);
        }
    }

    /// How often the core's own thread has been woken.
    pub fn woken_count(&self) -> u64 {
        self.woken_count.load(Ordering::Relaxed)
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
        let waker = CoreWaker::new().expect("eventfd");
        waker.register(poll.registry(), Token(0)).expect("epoll_ctl");
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
    fn a_resting_core_is_woken_once() {
        let (mut poll, mailbox) = with_box();
        assert!(mailbox.rest());
        mailbox.post(Mail::StopReading);
        assert!(was_woken(&mut poll));
        mailbox.post(Mail::StopReading);
        assert!(!was_woken(&mut poll));
    }

    #[test]
    fn a_core_with_mail_is_not_let_go_of() {
        let (_poll, mailbox) = with_box();
        mailbox.post(Mail::End);
        assert!(!mailbox.rest());
    }

    #[test]
    fn the_first_who_leaves_mail_is_called_and_nobody_is_woken() {
        let (mut poll, mailbox) = with_box();
        assert!(mailbox.rest());
        assert!(mailbox.leave(Mail::StopReading));
        assert!(mailbox.awaits_the_called());
        assert!(!mailbox.leave(Mail::StopReading));
        mailbox.post(Mail::StopReading);
        assert!(!was_woken(&mut poll));
        let mut mail = Vec::new();
        mailbox.collect(&mut mail);
        assert_eq!(mail.len(), 3);
        assert!(!mailbox.awaits_the_called());
        assert!(!mailbox.leave(Mail::End), "it is being stepped");
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

//! Keys that are reserved for transactions that have failed. See [`crate::optimism`].

use group::ids::SessionId;
use group::requests::{Request, RequestBody};
use stdx::Duration;

use crate::core::Core;
use crate::event::Action;
use crate::optimism::SINCE;
use crate::quorum::Answerable;
use crate::relay::Purpose;

impl Core {
    /// A session forgets what it has watched, and tells those who keep something of it.
    pub(crate) fn abandon_watches(&mut self, id: SessionId) {
        let now = self.now.instant;
        if let Some(session) = self.sessions.get_mut(id) {
            self.context.give_up_reserved(id, &mut session.optimism, now);
        }
    }

    /// For how long what a session is about to watch should be kept for it.
    pub(crate) fn wish_of(&mut self, id: SessionId) -> Option<Duration> {
        if self.context.level_for_clients() < SINCE {
            return None;
        }
        let now = self.now.instant;
        self.sessions.get_mut(id).and_then(|session| session.optimism.wish(now))
    }

    /// Tells groups what need not be kept any more.
    pub(crate) fn end_reservations(&mut self, actions: &mut Vec<Action>) {
        if self.context.reservations_given_up.is_empty() {
            return;
        }
        for (session, group) in std::mem::take(&mut self.context.reservations_given_up) {
            let request =
                Request::new(self.origin_of(session), group, resp::Protocol::Resp2, RequestBody::EndReservation);
            self.relay.submit(request, Purpose::Reservation, Answerable::UNDER_WAY, self.now.instant);
        }
        self.flush_relay(actions);
    }
}

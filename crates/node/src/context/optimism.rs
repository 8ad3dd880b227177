//! Reservations for transactions that have failed. See [`crate::optimism`].

use group::ids::SessionId;
use stdx::Instant;

use crate::context::Context;
use crate::optimism::Optimism;

impl Context {
    /// A session does not try to change what it has watched.
    pub(crate) fn give_up_reserved(&mut self, session: SessionId, optimism: &mut Optimism, now: Instant) {
        self.reservations_given_up.extend(optimism.abandon(now).into_iter().map(|group| (session, group)));
    }
}

//! Waiters are woken on whatever core or node their session is. See [`crate::blocking`].

use group::ids::{GroupId, Lane};
use group::requests::Origin;

use crate::core_messages::CoreMessage;
use crate::output::Output;
use crate::wire;

impl Output<'_> {
    /// Tells a waiter that it may get an answer: there may be something for it, or its stream or group has gone.
    pub(crate) fn wake(&mut self, waiter: &Origin, group: GroupId) {
        if waiter.node == self.context.node {
            let message = CoreMessage::Wake { session: waiter.session, ticket: waiter.ticket, group };
            self.outbox.push(self.context.core, waiter.core, message);
        } else {
            let bytes = wire::encode_wake(waiter, group);
            self.send(waiter.node, GroupId(u32::from(waiter.core.0)), Lane::Log, bytes);
        }
    }
}

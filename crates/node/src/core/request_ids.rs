//! Requests that name an id, by which their first reply is kept. See [`crate::request_ids`].

use command::{Flag, Refusal, Span as KeySpan};
use group::ids::SessionId;
use keyspace::{BlockingTimeout, Body};
use resp::Args;

use crate::commands::{self, Flow, Record};
use crate::core::Core;
use crate::dispatch::{Groups, Next};
use crate::event::Action;
use crate::known::Known;
use crate::request_ids::is_naming;

impl Core {
    /// A request with an id.
    pub(crate) fn dispatch_named(
        &mut self,
        id: SessionId,
        known: Known,
        args: Args<'_>,
        actions: &mut Vec<Action>,
    ) -> Next {
        let refuse = |this: &mut Self, why: &str| {
            let text = format!("ERR '{}' {why}", known.name());
            this.fail(id, &Refusal::new(text))
        };
        match known.record() {
            Record::Control(command) => match command.body {
                commands::Body::Script { .. } | commands::Body::Flow(Flow::Multi) => {
                    self.dispatch_control(id, command, args, actions)
                }
                _ if is_naming(known) => self.dispatch_control(id, command, args, actions),
                _ => refuse(self, "cannot be given a request id: it changes no keys"),
            },
            // What only reads may be repeated.
            Record::Data(command) if matches!(command.body, Body::Query(_)) => {
                self.dispatch_data(id, command, args, actions)
            }
            Record::Data(command) => {
                let waits = command.has(Flag::Blocking)
                    && keyspace::blocking_timeout(command, args)
                        .is_ok_and(|timeout| !matches!(timeout, BlockingTimeout::None));
                let is_nowhere = match command.span {
                    KeySpan::Nothing => true,
                    KeySpan::Keys => self.groups_of(command, args) == Groups::None,
                    KeySpan::Whole(_) => false,
                };
                match (waits, is_nowhere) {
                    // It will be refused.
                    (_, true) => self.dispatch_data(id, command, args, actions),
                    (true, false) => refuse(self, "cannot be given a request id: it waits"),
                    (false, false) => self.dispatch_to_several(id, command, args, actions),
                }
            }
        }
    }
}

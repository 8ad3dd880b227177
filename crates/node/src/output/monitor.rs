//! Clients that said MONITOR see what others send. See [`crate::monitor`].

use std::sync::Arc;

use group::ids::CoreId;

use crate::context::Context;
use crate::core_messages::CoreMessage;
use crate::entry::Reader;
use crate::monitor::line;
use crate::output::{Outbox, Output};

impl Output<'_> {
    /// Shows what a script has called, each laid out by `entry::put_words`.
    pub(crate) fn show_calls(&mut self, calls: &[Vec<u8>], unix_ms: i64) {
        let mut spans = Vec::new();
        for words in calls {
            let (database, args) = Reader::new(words).words(&mut spans);
            show_line(&line(unix_ms, database, "lua", args.iter()), self.context, self.outbox);
        }
    }
}

pub(crate) fn show_line(line: &Arc<[u8]>, context: &Context, outbox: &mut Outbox) {
    for (core, _) in (0..).zip(&context.monitors.cores).filter(|(_, watches)| **watches) {
        outbox.push(context.core, CoreId(core), CoreMessage::Monitored(Arc::clone(line)));
    }
}

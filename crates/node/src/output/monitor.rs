//! Clients that said MONITOR see what others send. See [`crate::monitor`].

use crate::entry::Reader;
use crate::monitor::{line, show_line};
use crate::output::Output;

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

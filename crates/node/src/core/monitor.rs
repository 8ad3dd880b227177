//! Sends commands to clients that said MONITOR. See [`crate::monitor`].

use command::Flag;
use group::ids::{CoreId, SessionId};
use resp::Args;

use crate::core::Core;
use crate::core_messages::CoreMessage;
use crate::known::Known;
use crate::monitor::line;
use crate::output::monitor::show_line;
use crate::redaction::is_secret;

impl Core {
    /// Shows a command to those who watch. What administrators do is not shown, nor are passwords.
    pub(crate) fn show_command(&mut self, id: SessionId, database: u16, known: Known, args: Args<'_>) {
        if known.has(Flag::Admin) || (known.has(Flag::SkipMonitor) && known.script_naming().is_none()) {
            return;
        }
        let Some(session) = self.sessions.get(id) else { return };
        let words = args.iter().enumerate();
        let words = words.map(|(place, word)| if is_secret(known, args, place) { &b"(redacted)"[..] } else { word });
        let line = line(self.now.unix.0, database, &session.peer.address, words);
        show_line(&line, &self.context, &mut self.outbox);
    }

    /// A core shows a command.
    pub(crate) fn see_command(&mut self, line: &[u8]) {
        for session in &self.context.monitors.sessions {
            self.sessions.push(*session, &self.context.settings.output_limits, |writer| writer.raw(line));
        }
    }

    /// Tells the other cores when the last session of this one that watched is gone.
    pub(crate) fn turn_monitors(&mut self) {
        let own = self.context.core;
        if self.context.monitors.is_to_be_taken_back(own) {
            for core in (0..self.context.core_count).map(CoreId) {
                self.outbox.push(own, core, CoreMessage::Monitoring(own, false));
            }
        }
    }
}

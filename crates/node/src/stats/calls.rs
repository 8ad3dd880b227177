//! Calls and what came of them, by command (INFO commandstats and errorstats).
//!
//! The core of a session counts a request when its reply is made, no matter who has carried it out. So a request counts
//! once, also if it has waited, was a transaction over several groups, or had to be sent to a second leader.

use std::collections::BTreeMap;

use resp::Args;
use stdx::leb128;

use crate::catalog::{catalog, container_of, full_name};
use crate::entry::put_bytes;
use crate::frame;
use crate::known::Known;
use crate::stats::hot::Load;

/// What a request counts as: the place of its command in the catalog, and a mark or two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked(u16);

impl Asked {
    /// It does not count: no such command, or one that is only queued.
    pub const NOTHING: Self = Self(Self::PLACES);

    const PLACES: u16 = 0x3FFF;
    const IS_SCRIPT: u16 = 0x4000;
    const IS_REJECTED: u16 = 0x8000;

    /// A request for the command at this place.
    pub(crate) fn at(place: usize, is_script: bool) -> Self {
        Self(place as u16 | if is_script { Self::IS_SCRIPT } else { 0 })
    }

    /// It has been refused without being carried out.
    pub(crate) fn rejected(self) -> Self {
        Self(self.0 | Self::IS_REJECTED)
    }

    fn place(self) -> usize {
        usize::from(self.0 & Self::PLACES)
    }

    fn is_rejected(self) -> bool {
        self.0 & Self::IS_REJECTED != 0
    }

    /// A script's errors are counted where it runs, since one of a command that it has called is not to count twice.
    pub(crate) fn counts_errors(self) -> bool {
        self.0 & Self::IS_SCRIPT == 0 || self.is_rejected()
    }
}

/// One command's calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallFigures {
    /// Carried out.
    pub calls: u64,
    /// Refused before that.
    pub rejected: u64,
    /// Carried out and answered with an error.
    pub failed: u64,
}

impl CallFigures {
    /// Adds another core's.
    pub fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.rejected += other.rejected;
        self.failed += other.failed;
    }
}

/// What one core has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// By the command's place in the catalog.
    commands: Vec<CallFigures>,
    /// Error replies, by their code.
    errors: BTreeMap<String, u64>,
    /// Requests that have been answered, with the bytes of the replies, until somebody counts what keys take.
    weighed: Vec<(Load, usize)>,
}

impl Calls {
    /// A request that is counted by its keys has been answered.
    #[cold]
    pub(crate) fn weigh(&mut self, load: Load, reply: &[u8]) {
        self.weighed.push((load, reply.len()));
    }

    /// These requests, which are then forgotten.
    pub(crate) fn take_weighed(&mut self) -> Vec<(Load, usize)> {
        std::mem::take(&mut self.weighed)
    }

    /// Counts a request with its reply.
    #[inline]
    pub fn count(&mut self, asked: Asked, reply: &[u8]) {
        let is_error = reply.first() == Some(&b'-');
        match self.commands.get_mut(asked.place()) {
            Some(figures) if !is_error => figures.calls += 1,
            _ => self.count_rarity(asked, reply),
        }
    }

    #[cold]
    fn count_rarity(&mut self, asked: Asked, reply: &[u8]) {
        let is_error = reply.first() == Some(&b'-');
        if asked.place() != Asked::NOTHING.place() {
            let figures = self.figures_at(asked.place());
            if asked.is_rejected() {
                figures.rejected += 1;
            } else {
                figures.calls += 1;
                figures.failed += u64::from(is_error);
            }
        }
        if is_error && asked.counts_errors() {
            self.count_error_reply(reply);
        }
    }

    fn figures_at(&mut self, place: usize) -> &mut CallFigures {
        if self.commands.len() <= place {
            self.commands.resize(catalog().entries().len(), CallFigures::default());
        }
        &mut self.commands[place]
    }

    /// Counts what EXEC has carried out, if it has.
    pub fn count_queue(&mut self, queue: &[Asked], reply: &[u8]) {
        if reply.first() != Some(&b'*') || reply.starts_with(b"*-1") {
            return;
        }
        let (count, mut at) = frame::aggregate(reply);
        for asked in queue.iter().take(count) {
            let length = frame::len(&reply[at..]);
            self.count(*asked, &reply[at..at + length]);
            at += length;
        }
    }

    /// Counts an error reply by its code.
    pub fn count_error_reply(&mut self, reply: &[u8]) {
        if let Some(text) = reply.strip_prefix(b"-") {
            self.count_error(&String::from_utf8_lossy(text.trim_ascii_end()));
        }
    }

    /// Counts an error by its code, the first word of its text.
    pub fn count_error(&mut self, text: &str) {
        self.add_errors(text.split(' ').next().unwrap_or_default(), 1);
    }

    fn add_errors(&mut self, code: &str, more: u64) {
        const CODES_MAX: usize = 128;
        if let Some(count) = self.errors.get_mut(code) {
            *count += more;
        } else if self.errors.len() < CODES_MAX {
            self.errors.insert(code.to_owned(), more);
        }
    }

    /// Adds what a script has called. `place_of` finds a command's place in the catalog.
    pub(crate) fn add_script(
        &mut self,
        script: ScriptCalls,
        mut place_of: impl FnMut(Known, Option<&'static str>) -> usize,
    ) {
        for Called { known, container, figures } in script.commands {
            self.figures_at(place_of(known, container)).add(figures);
        }
        script.errors.iter().for_each(|(code, count)| self.add_errors(code, *count));
    }

    /// Adds what a script has called on another node.
    pub(crate) fn add_far_script(&mut self, script: FarCalls) {
        for (name, figures) in script.commands {
            // A newer node may know more commands.
            if let Some(place) = catalog().place_of(&name) {
                self.figures_at(place).add(figures);
            }
        }
        script.errors.iter().for_each(|(code, count)| self.add_errors(code, *count));
    }

    /// Commands carried out, all together.
    pub(crate) fn total(&self) -> u64 {
        self.commands.iter().map(|figures| figures.calls).sum()
    }

    /// Commands that have been called or refused, by their place in the catalog.
    pub fn commands(&self) -> impl Iterator<Item = (usize, CallFigures)> {
        self.commands.iter().copied().enumerate().filter(|(_, figures)| *figures != CallFigures::default())
    }

    /// Error replies, by their code.
    pub fn errors(&self) -> &BTreeMap<String, u64> {
        &self.errors
    }
}

/// What a script calls.
#[derive(Debug, Default)]
pub(crate) struct ScriptCalls {
    commands: Vec<Called>,
    errors: BTreeMap<String, u64>,
    /// The last error among the replies that it was given.
    last_error: Vec<u8>,
}

#[derive(Debug)]
struct Called {
    known: Known,
    container: Option<&'static str>,
    figures: CallFigures,
}

impl ScriptCalls {
    fn figures_of(&mut self, known: Known, args: Args<'_>) -> &mut CallFigures {
        let address = known.address();
        // Scripts call the same few commands again and again.
        let place = self.commands.iter().position(|called| called.known.address() == address);
        let place = place.unwrap_or_else(|| {
            let figures = CallFigures::default();
            self.commands.push(Called { known, container: container_of(known, args), figures });
            self.commands.len() - 1
        });
        &mut self.commands[place].figures
    }

    /// A command was carried out.
    pub(crate) fn note(&mut self, known: Known, args: Args<'_>, reply: &[u8]) {
        let is_error = reply.first() == Some(&b'-');
        let figures = self.figures_of(known, args);
        figures.calls += 1;
        figures.failed += u64::from(is_error);
        if is_error {
            self.note_error(&reply[1..]);
        }
    }

    /// A command was refused.
    pub(crate) fn note_rejected(&mut self, known: Known, args: Args<'_>, text: &str) {
        self.figures_of(known, args).rejected += 1;
        self.note_error(text.as_bytes());
    }

    /// The script was told of an error that it has not caused by a command.
    pub(crate) fn note_error(&mut self, text: &[u8]) {
        let text = text.trim_ascii_end();
        let code = text.split(|byte| *byte == b' ').next().unwrap_or_default();
        *self.errors.entry(String::from_utf8_lossy(code).into_owned()).or_default() += 1;
        self.last_error = text.to_vec();
    }

    /// It has ended. An error that it passes on has been counted before.
    pub(crate) fn end(&mut self, reply: &[u8]) {
        let Some(text) = reply.strip_prefix(b"-") else { return };
        if self.last_error.is_empty() || !text.starts_with(&self.last_error) {
            self.note_error(text);
        }
    }
}

impl ScriptCalls {
    /// Lays it out for another node, with numbers as LEB128 and texts behind their lengths.
    ///
    /// ```text
    /// counts = count (name calls rejected failed)* count (code count)*
    /// ```
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        leb128::put(out, self.commands.len() as u64);
        for Called { known, container, figures } in &self.commands {
            put_bytes(out, full_name(*known, *container).as_bytes());
            [figures.calls, figures.rejected, figures.failed].iter().for_each(|count| leb128::put(out, *count));
        }
        leb128::put(out, self.errors.len() as u64);
        for (code, count) in &self.errors {
            put_bytes(out, code.as_bytes());
            leb128::put(out, *count);
        }
    }
}

/// The same as another node tells it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FarCalls {
    commands: Vec<(String, CallFigures)>,
    errors: Vec<(String, u64)>,
}

impl FarCalls {
    /// Reads what [`ScriptCalls::put`] wrote; nothing if it is something else.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        fn text(rest: &mut &[u8]) -> Option<String> {
            let length = usize::try_from(leb128::take(rest)?).ok()?;
            let (text, behind) = rest.split_at_checked(length)?;
            *rest = behind;
            String::from_utf8(text.to_vec()).ok()
        }
        let rest = &mut &*bytes;
        let mut this = Self::default();
        for _ in 0..leb128::take(rest)? {
            let name = text(rest)?;
            let [calls, rejected, failed] = [leb128::take(rest)?, leb128::take(rest)?, leb128::take(rest)?];
            this.commands.push((name, CallFigures { calls, rejected, failed }));
        }
        for _ in 0..leb128::take(rest)? {
            this.errors.push((text(rest)?, leb128::take(rest)?));
        }
        rest.is_empty().then_some(this)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(name: &str) -> Asked {
        Asked::at(catalog().place_of(name).expect("it is in the catalog"), name == "eval")
    }

    fn figures(calls: &Calls, name: &str) -> (u64, u64, u64) {
        let place = catalog().place_of(name).expect("it is in the catalog");
        let found = calls.commands().find(|(other, _)| *other == place);
        found.map_or((0, 0, 0), |(_, CallFigures { calls, rejected, failed })| (calls, rejected, failed))
    }

    #[test]
    fn what_was_refused_is_not_a_call() {
        let mut calls = Calls::default();
        calls.count(asked("get"), b"$-1\r\n");
        calls.count(asked("get"), b"-WRONGTYPE Operation\r\n");
        calls.count(asked("get").rejected(), b"-NOPERM no\r\n");
        calls.count(Asked::NOTHING, b"-ERR unknown command\r\n");
        calls.count(Asked::NOTHING, b"+QUEUED\r\n");
        assert_eq!(figures(&calls, "get"), (2, 1, 1));
        let codes: Vec<_> = calls.errors().iter().map(|(code, count)| (code.as_str(), *count)).collect();
        assert_eq!(codes, [("ERR", 1), ("NOPERM", 1), ("WRONGTYPE", 1)]);
    }

    #[test]
    fn commands_of_a_transaction_count_when_it_is_carried_out() {
        let mut calls = Calls::default();
        let queue = [asked("set"), asked("config|get"), asked("lpush")];
        calls.count_queue(&queue, b"*-1\r\n");
        calls.count_queue(&queue, b"-EXECABORT no\r\n");
        assert_eq!(figures(&calls, "set"), (0, 0, 0));
        calls.count_queue(&queue, b"*3\r\n+OK\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n-WRONGTYPE it is\r\n");
        assert_eq!(figures(&calls, "set"), (1, 0, 0));
        assert_eq!(figures(&calls, "config|get"), (1, 0, 0));
        assert_eq!(figures(&calls, "lpush"), (1, 0, 1));
    }

    #[test]
    fn what_a_script_has_called_far_away_counts_alike() {
        let words = [&b"lpush"[..], b"key", b"x"];
        let (buffer, spans) = crate::blocking::lay_out(words.into_iter());
        let args = Args::new(&buffer, &spans);
        let known = crate::lookup::lookup(args).expect("a command");
        let mut script = ScriptCalls::default();
        script.note(known, args, b":1\r\n");
        script.note(known, args, b"-WRONGTYPE it is\r\n");
        script.note_rejected(known, args, "OOM no");
        let mut bytes = Vec::new();
        script.put(&mut bytes);
        for end in 0..bytes.len() {
            assert_eq!(FarCalls::read(&bytes[..end]), None, "{end} bytes");
        }
        let (mut near, mut far) = (Calls::default(), Calls::default());
        near.add_script(script, |known, container| {
            catalog().place_of(&full_name(known, container)).expect("it is in the catalog")
        });
        far.add_far_script(FarCalls::read(&bytes).expect("just written"));
        assert_eq!(near, far);
        assert_eq!(figures(&far, "lpush"), (2, 1, 1));
    }

    #[test]
    fn an_error_that_a_script_passes_on_counts_once() {
        let mut script = ScriptCalls::default();
        script.note_error(b"OOM command not allowed");
        script.end(b"-OOM command not allowed script: abc, on @user_script:1.\r\n");
        let mut calls = Calls::default();
        calls.add_script(script, |_, _| unreachable!("it has called nothing"));
        calls.count(asked("eval"), b"-OOM command not allowed script: abc, on @user_script:1.\r\n");
        assert_eq!(calls.errors().get("OOM"), Some(&1));
        assert_eq!(figures(&calls, "eval"), (1, 0, 1));
        let mut script = ScriptCalls::default();
        script.note_error(b"OOM command not allowed");
        script.end(b"-MINE is another\r\n");
        calls.add_script(script, |_, _| unreachable!("it has called nothing"));
        assert_eq!(calls.errors().get("MINE"), Some(&1));
    }
}

//! What a core does for client-side caches; what it knows of them is in [`crate::tracking`].

use group::ids::{CoreId, SessionId};
use group::proof::Proof;
use group::requests::{Request, RequestBody};
use keyspace::DataCommand;
use resp::{Args, Span};
use stdx::Instant;

use crate::entry::Reader;
use crate::relay::Purpose;
use crate::tracking::Tracker;

impl Tracker {
    /// Remembers that a session has read the keys of a command that only reads.
    pub(crate) fn remember_command(&mut self, core: CoreId, session: SessionId, command: &DataCommand, args: Args<'_>) {
        if command.has(command::Flag::Readonly) && !command.walks() {
            command.for_each_key(args, |index, _| self.remember(core, session, args.at(index)));
        }
    }

    /// The same for all commands of a transaction, laid out by `entry::put_exec`.
    pub(crate) fn remember_exec(&mut self, core: CoreId, session: SessionId, packed: &[u8]) {
        let mut spans: Vec<Span> = Vec::new();
        let exec = Reader::new(packed).exec(resp::Protocol::Resp2, &mut spans);
        exec.for_each(&mut spans, |_, args| {
            let command = keyspace::resolve(args).expect("checked when it was queued");
            self.remember_command(core, session, command, args);
        });
    }
}

/// True if an answer of this core, `own`, must wait until another has heard. What is told on the own core is in its
/// sessions' output before the turn's answers leave, unless it goes on to others.
pub(crate) fn must_hear(tracker: &Tracker, core: CoreId, own: CoreId) -> bool {
    core != own || !tracker.redirect_cores(own).is_empty()
}

/// The answer to a change that caches of this node have yet to be told of.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) purpose: Purpose,
    pub(crate) proof: Proof,
    pub(crate) bytes: Vec<u8>,
    pub(crate) since: Instant,
    /// Caches are being emptied for it.
    pub(crate) is_late: bool,
}

/// The keys that a request only reads.
pub(crate) fn for_each_key_read(request: &Request, mut visit: impl FnMut(&[u8])) {
    let mut spans: Vec<Span> = Vec::new();
    let mut visit_command = |args: Args<'_>| {
        let command = keyspace::resolve(args).expect("checked when it was sent");
        if command.has(command::Flag::Readonly) {
            command.for_each_key(args, |index, _| visit(args.at(index)));
        }
    };
    match &request.body {
        // A read may have been given a place in the log.
        RequestBody::Read(words) | RequestBody::ReadAtOnce(words) | RequestBody::Write(words) => {
            visit_command(Reader::new(words).words(&mut spans).1);
        }
        RequestBody::Exec(packed) => {
            let exec = Reader::new(packed).exec(resp::Protocol::Resp2, &mut spans);
            exec.for_each(&mut Vec::new(), |_, args| visit_command(args));
        }
        _ => {}
    }
}

//! What a core does for client-side caches; what it knows of them is in [`crate::tracking`].

use std::sync::Arc;

use keyspace::{Class, Classes, DataCommand};
use resp::{Args, Span};
use stdx::Instant;

use crate::context::Context;
use crate::core_messages::CoreMessage;
use crate::entry::Reader;
use crate::group::proof::Proof;
use crate::ids::{CoreId, GroupId, SessionId};
use crate::invalidation_barrier::Withheld;
use crate::output::Output;
use crate::relay::Purpose;
use crate::requests::{Claim, Origin, Request, RequestBody};
use crate::tracking::{Author, News, Tracker};

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

impl Output<'_> {
    /// A script of this session has read these keys, which live here.
    pub(crate) fn remember_reads(&mut self, origin: &Origin, keys: &[Vec<u8>]) {
        keys.iter().for_each(|key| self.context.tracker.remember(origin.core, origin.session, key));
    }

    /// A key has changed, by the hand of this client of the node or of none.
    pub(crate) fn changed(&mut self, key: &[u8], by: Option<Author>) {
        let shared = self.tell_readers(key, by);
        if self.context.tracker.hearing_cores().next().is_some() {
            let key = shared.unwrap_or_else(|| key.into());
            self.context.tracker.changed.push((key, by));
            self.await_hearing_cores();
        }
    }

    /// The answer at hand waits for the cores that hear of every change.
    fn await_hearing_cores(&mut self) {
        let Context { tracker, invalidation_barrier, core, .. } = &mut *self.context;
        for hearing in tracker.hearing_cores().filter(|hearing| must_hear(tracker, *hearing, *core)) {
            invalidation_barrier.note(hearing);
        }
    }

    /// All have been told of a change: its answer leaves, or waits until they have heard.
    #[inline]
    pub(crate) fn settle(&mut self) {
        if let Some(answer) = self.context.invalidation_barrier.settle() {
            self.release(answer);
        }
    }

    /// The same for the word that this node's replica has applied a request of a gateway of its own.
    pub(crate) fn settle_told(&mut self, gateway: CoreId, claim: Claim) {
        self.context.invalidation_barrier.put(Withheld::Told { gateway, claim });
        // Also the own core: who has changed the keys is known as long as the answer is kept.
        let Context { tracker, invalidation_barrier, .. } = &mut *self.context;
        tracker.hearing_cores().for_each(|hearing| invalidation_barrier.note(hearing));
        self.settle();
    }

    /// An answer has waited long enough.
    pub(crate) fn release(&mut self, answer: Withheld) {
        match answer {
            Withheld::Reply { origin, proof, bytes } => self.reply_proven(&origin, proof.into(), bytes),
            Withheld::Answer { origin, proof, bytes } => self.answer(&origin, proof, bytes),
            Withheld::Told { gateway, claim } => self.post(gateway, CoreMessage::Told { claim }),
        }
    }

    /// Tells those who have read a key that it is no longer as it was.
    fn tell_readers(&mut self, key: &[u8], by: Option<Author>) -> Option<Arc<[u8]>> {
        let (key, readers) = self.context.tracker.take_readers(key)?;
        for (core, session) in readers {
            // The session that has changed it is told behind its reply.
            let is_author = matches!(by, Some(Author::Session { serial, .. }) if serial == session.serial);
            if !is_author && must_hear(&self.context.tracker, core, self.context.core) {
                self.context.invalidation_barrier.note(core);
            }
            let news = News::Keys(vec![Arc::clone(&key)]);
            self.post(core, CoreMessage::Invalidate { session, news, by });
        }
        Some(key)
    }

    /// All keys of a database are gone, in this group. Every group tells of it; since they are flushed under locks on
    /// all of them, the first one's word is enough for the clients.
    pub(crate) fn flushed(&mut self, group: GroupId) {
        self.context.tracker.forget_readers();
        if group == GroupId(0) {
            self.flush_caches();
        }
    }

    /// Tells every client that hears of all changes to forget what it has read: of a group that does not live here
    /// nobody tells which keys change.
    pub(crate) fn flush_broadcasters(&mut self) {
        for core in self.context.tracker.hearing_cores().collect::<Vec<_>>() {
            self.context.invalidation_barrier.note(core);
            self.post(core, CoreMessage::FlushBroadcasters);
        }
    }

    /// Tells every client that tracks to forget all it has read.
    pub(crate) fn flush_caches(&mut self) {
        for core in (0..self.context.core_count).map(CoreId) {
            if self.context.tracker.is_wanted() && must_hear(&self.context.tracker, core, self.context.core) {
                self.context.invalidation_barrier.note(core);
            }
            self.post(core, CoreMessage::FlushCaches);
        }
    }
}

/// True if an answer of this core, `own`, must wait until another has heard. What is told on the own core is in its
/// sessions' output before the turn's answers leave, unless it goes on to others.
pub(crate) fn must_hear(tracker: &Tracker, core: CoreId, own: CoreId) -> bool {
    core != own || !tracker.redirect_cores(own).is_empty()
}

impl Context {
    /// What the keyspaces of this core must note.
    pub(crate) fn noted(&self) -> Classes {
        let told = self.settings.notify.noted();
        if self.tracker.is_wanted() { told.with(Class::Changed).with(Class::Expired) } else { told }
    }
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

//! News of changes to the caches of clients of this node. See [`crate::caches`].

use std::sync::Arc;

use group::ids::{CoreId, GroupId};
use group::requests::Author;
use group::requests::{Claim, Origin};

use crate::caches::must_hear;
use crate::context::Context;
use crate::core_messages::CoreMessage;
use crate::invalidation_barrier::Withheld;
use crate::output::Output;
use crate::tracking::news::News;

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

//! Whether a core may answer a request now: the only maker of [`Answerable`].

use command::Refusal;
use group::ids::{GroupId, SessionId};
use group::replica_reads;
use resp::Args;

use crate::core::Core;
use crate::entry::Reader;
use crate::known::Known;
use crate::lookup::lookup;
use crate::quorum::Answerable;

impl Core {
    /// True if a group has had no leader for so long that a request does not wait for one.
    pub(crate) fn has_no_quorum(&self, group: GroupId) -> bool {
        self.context.has_no_quorum(group, self.now.instant)
    }

    /// Why a request to a group is refused when nobody answers it.
    pub(crate) fn no_quorum(&self, group: GroupId) -> String {
        self.context.no_quorum(group, self.now.instant)
    }

    /// Refuses what is asked of a group that nobody can answer for.
    ///
    /// # Errors
    /// If the group has had no leader for so long that a request does not wait for one.
    #[inline]
    pub(crate) fn check_quorum(&self, group: GroupId) -> Result<Answerable, Refusal> {
        if self.has_no_quorum(group) { Err(Refusal::new(self.no_quorum(group))) } else { Ok(Answerable(())) }
    }

    /// The same for several groups.
    ///
    /// # Errors
    /// For the first that has had no leader for so long.
    pub(crate) fn check_quorums(&self, groups: impl IntoIterator<Item = GroupId>) -> Result<Answerable, Refusal> {
        if !self.context.leaderless.is_empty() {
            groups.into_iter().try_for_each(|group| self.check_quorum(group).map(|_| ()))?;
        }
        Ok(Answerable(()))
    }

    /// The same for a read, which the replica of this node may have been asked for before.
    ///
    /// # Errors
    /// The words of the refusal.
    #[inline]
    pub(crate) fn check_quorum_to_read(
        &self,
        session: SessionId,
        group: GroupId,
        known: Known,
        args: Args<'_>,
    ) -> Result<Answerable, Refusal> {
        if self.has_no_quorum(group) {
            return Err(Refusal::new(self.no_quorum_to_read(session, group, known, args)));
        }
        Ok(Answerable(()))
    }

    /// The same for what is laid out by `entry::put_words`.
    ///
    /// # Errors
    /// The words of the refusal.
    pub(crate) fn check_quorum_to_read_words(
        &self,
        session: SessionId,
        group: GroupId,
        words: &[u8],
    ) -> Result<Answerable, Refusal> {
        if self.has_no_quorum(group) {
            return Err(Refusal::new(self.no_quorum_to_read_words(session, group, words)));
        }
        Ok(Answerable(()))
    }

    /// Why a read is refused when nobody answers it. Where the replica of this node may answer, that was too old, and
    /// the refusal names the bound.
    pub(crate) fn no_quorum_to_read(&self, session: SessionId, group: GroupId, known: Known, args: Args<'_>) -> String {
        let reading = self.sessions.get(session).and_then(|session| session.options.reading.as_ref());
        match reading {
            Some(reading) if self.group_with_replica(session, known, args).is_some() => {
                replica_reads::too_old(self.context.allowed(reading))
            }
            _ => self.no_quorum(group),
        }
    }

    /// The same for what is laid out by `entry::put_words`.
    pub(crate) fn no_quorum_to_read_words(&self, session: SessionId, group: GroupId, words: &[u8]) -> String {
        let mut spans = Vec::new();
        let (_, args) = Reader::new(words).words(&mut spans);
        match lookup(args) {
            Ok(known) => self.no_quorum_to_read(session, group, known, args),
            Err(_) => self.no_quorum(group),
        }
    }
}

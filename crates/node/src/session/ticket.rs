//! What the session says by itself, without a group, and by what right it gives a reply.

use group::proof::{Observed, Proof};

/// Which of a session's replies it is, for a request in which no group has a part: the gateway answers it by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnTicket(pub(super) u64);

impl OwnTicket {
    /// For a request to a group after all: from there on the group's proof is needed.
    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

/// That a reply is a gateway's own word. Only what answers an [`OwnTicket`] makes one.
#[derive(Debug)]
pub struct OwnWord {
    pub(super) _sealed: (),
}

/// By what right a session gives a reply. A group's proof is checked by the compiler, and so is the session's own word.
#[derive(Debug)]
pub(crate) enum Right {
    /// What a group has said, or a refusal.
    Group(Proof),
    /// No group has a part in it.
    Own(OwnWord),
}

impl Right {
    /// Proof that a group was looked at, if one was.
    pub(crate) fn observed(&self) -> Option<Observed> {
        match self {
            Self::Group(proof) => proof.observed(),
            Self::Own(_) => None,
        }
    }
}

impl From<Proof> for Right {
    fn from(proof: Proof) -> Self {
        Self::Group(proof)
    }
}

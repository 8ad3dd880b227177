//! What the session says by itself, without a group.

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

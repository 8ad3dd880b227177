//! What makes a reply true, as types: which replies a client may be given is checked by the compiler.
//!
//! | The reply to … | needs … | which is made by … |
//! |---|---|---|
//! | a write | [`Committed`] | a group that has applied the entry, and [`Proof::take`] |
//! | a read | [`Observed`] | a group that has been looked at, and [`Proof::take`] |
//! | either, if it is refused | [`Proof::Refused`] and an error | anybody |
//!
//! A proof goes the way of the reply: to a sibling core, to another node, into what waits for caches, for the other
//! groups of a transaction, or for the control commands of an EXEC. It takes no room where it is passed on at once, and
//! one byte where it is kept.
//!
//! Nobody but this crate can make one up:
//!
//! ```compile_fail
//! let proof = group::proof::Committed { _sealed: () };
//! ```

/// Proof that an entry is safe at the level in force and has been applied.
#[derive(Debug)]
pub struct Committed {
    _sealed: (),
}

impl Committed {
    /// Of the entry that is being applied, or that the reply cache remembers.
    #[inline]
    pub(crate) fn of_applied() -> Self {
        Self { _sealed: () }
    }
}

/// Proof that a reply says what a group's state holds, and stands for no change.
#[derive(Clone, Copy, Debug)]
pub struct Observed {
    _sealed: (),
}

impl Observed {
    /// Of a group that is being looked at.
    #[inline]
    pub(crate) fn of_state() -> Self {
        Self { _sealed: () }
    }
}

/// By what right a reply is given that is kept, or comes from elsewhere.
#[derive(Debug)]
pub enum Proof {
    /// What it says is done, and safe.
    Committed(Committed),
    /// Nothing was changed.
    Observed(Observed),
    /// It is an error, and promises nothing.
    Refused,
}

impl Proof {
    /// Encodes it for the gateway of another node.
    pub fn put(&self) -> u8 {
        match self {
            Self::Refused => REFUSED,
            Self::Observed(_) => OBSERVED,
            Self::Committed(_) => COMMITTED,
        }
    }

    /// What the leader of a group on another node says of its answer. Only what decodes such answers calls this.
    pub fn take(byte: u8) -> Option<Self> {
        match byte {
            REFUSED => Some(Self::Refused),
            OBSERVED => Some(Self::Observed(Observed::of_state())),
            COMMITTED => Some(Self::Committed(Committed::of_applied())),
            _ => None,
        }
    }

    /// Proof that a group was looked at, if one was. One that has applied an entry was.
    #[inline]
    pub fn observed(&self) -> Option<Observed> {
        match self {
            Self::Committed(_) => Some(Observed::of_state()),
            Self::Observed(observed) => Some(*observed),
            Self::Refused => None,
        }
    }

    /// Proof of a change, if it is one.
    #[inline]
    pub fn committed(self) -> Option<Committed> {
        match self {
            Self::Committed(committed) => Some(committed),
            Self::Observed(_) | Self::Refused => None,
        }
    }
}

impl From<Committed> for Proof {
    fn from(committed: Committed) -> Self {
        Self::Committed(committed)
    }
}

impl From<Observed> for Proof {
    fn from(observed: Observed) -> Self {
        Self::Observed(observed)
    }
}

const REFUSED: u8 = 0;
const OBSERVED: u8 = 1;
const COMMITTED: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_takes_one_byte_where_it_is_kept_and_none_where_it_is_passed_on() {
        assert_eq!((size_of::<Committed>(), size_of::<Observed>(), size_of::<Proof>()), (0, 0, 1));
    }

    #[test]
    fn what_another_node_says_of_its_answer_is_one_of_three_things() {
        for byte in 0..=u8::MAX {
            assert_eq!(Proof::take(byte).map(|proof| proof.put()), (byte <= 2).then_some(byte));
        }
    }
}

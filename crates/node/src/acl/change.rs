//! A change of users.

/// A change of users, as it is put to the first core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// These rules for this user.
    Set {
        /// Who.
        name: Vec<u8>,
        /// What.
        rules: Vec<Vec<u8>>,
    },
    /// No such users any more.
    Remove(Vec<Vec<u8>>),
}

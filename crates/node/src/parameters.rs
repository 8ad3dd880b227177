//! How a core sets parameters that are the cluster's and not a node's, and obeys them.
//!
//! A client that sets one is answered when the leaders of all groups obey it, and all cores of its own node.

pub use message::parameters::{HOME, Pairs, Parameters};

/// The parameter that gives the default user its password.
pub(crate) const PASSWORD: &str = "requirepass";

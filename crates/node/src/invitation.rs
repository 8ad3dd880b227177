//! Invitations to the cluster, which the host makes.

use std::fmt;
use std::sync::Arc;

/// Makes tokens that let in other nodes.
#[derive(Clone)]
pub struct Inviter(Arc<Make>);

type Make = dyn Fn(u64) -> Result<String, String> + Send + Sync;

impl Inviter {
    /// `make` is given for how many seconds a token must be valid, and answers the token or why there is none.
    pub fn new(make: impl Fn(u64) -> Result<String, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(make))
    }

    /// A token that is good for so many seconds.
    ///
    /// # Errors
    /// Why there is none.
    pub fn invite(&self, duration_s: u64) -> Result<String, String> {
        (self.0)(duration_s)
    }
}

impl fmt::Debug for Inviter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Inviter")
    }
}

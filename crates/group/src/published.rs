//! A published message.

use std::sync::Arc;

/// Something published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// True if its channel is a shard channel.
    pub is_shard: bool,
    /// Where.
    pub channel: Arc<[u8]>,
    /// What.
    pub body: Arc<[u8]>,
}

impl Published {
    /// A message to an ordinary channel.
    pub fn new(channel: &[u8], body: &[u8]) -> Self {
        Self { is_shard: false, channel: channel.into(), body: body.into() }
    }
}

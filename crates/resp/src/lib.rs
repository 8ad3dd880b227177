//! Bytes to requests, replies to bytes: the Redis serialization protocol, versions 2 and 3, and inline commands.
//!
//! Knows no command: what a request means, and which reply is right, is decided elsewhere.

mod args;
mod request;
mod writer;

pub use args::{Args, Span};
pub use request::{Limits, Parsed, ProtocolError, RequestParser};
pub use writer::{Protocol, Writer};

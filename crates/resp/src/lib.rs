//! Bytes to requests, replies to bytes: the Redis serialization protocol, versions 2 and 3, and inline commands.
//!
//! Knows no command: what a request means, and which reply is right, is decided elsewhere.

mod args;
mod frame;
mod request;
mod writer;

pub use args::{Args, Span};
pub use frame::{Frame, FrameDecoder, Malformed, ReplyScanner, Scanned, encode_request};
pub use request::{BULK_BYTES_MAX, GLANCE_WORDS, Glance, Limits, Parsed, ProtocolError, RequestParser, glance};
pub use writer::{Digits, Protocol, Writer};

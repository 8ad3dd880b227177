//! Lua 5.1 as Redis offers it to scripts: sandbox, libraries, conversions, error texts. Knows no keyspace and no
//! session: commands go out through [`Host`], and it is the host who decides what a script may do and for how long.
//!
//! Time and chance come with each call, so that a script's result is a function of its text, its words, the call's
//! moment and the host's answers.

mod api;
mod bits;
mod cjson;
mod cmsgpack;
mod code;
mod convert;
mod engine;
mod library;
mod lua;
mod number;
mod structs;
mod task;

pub use code::{Flags, Library, Script, Signature};
pub use engine::{Call, Ending, Engine};
pub use task::{Pause, Task};

use resp::{Args, Writer};

/// The Redis that scripts, `INFO` and `HELLO` speak of: client libraries choose features by it.
pub const REDIS_VERSION: &str = "7.4.0";

/// The same as a number, a byte for each part, as scripts compare it.
pub const REDIS_VERSION_NUMBER: u32 = 0x0007_0400;

/// Bytes that one Lua may hold before the running script is stopped.
pub const MEMORY_BYTES_MAX: usize = 512 << 20;

/// Whether a script goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// It does.
    On,
    /// It ends at once, whatever it catches, and its reply is the host's business.
    Stop,
}

/// What a running script can ask for.
pub trait Host {
    /// Carries out a command and appends exactly one reply, in the protocol of the writer. What the script may not do
    /// is an error reply, too.
    fn call(&mut self, args: Args<'_>, reply: &mut Writer) -> Flow;

    /// Asked every hundred thousand instructions or so. A host that wants to do other work in between runs the script
    /// in a [`Task`] and pauses here.
    fn tick(&mut self) -> Flow;

    /// `redis.log`; level 0 is for debugging, 3 a warning.
    fn log(&mut self, level: u8, text: &[u8]);

    /// `redis.acl_check_cmd`: whether the user may carry this out; `None` if there is no such command.
    fn may_call(&mut self, args: Args<'_>) -> Option<bool>;
}

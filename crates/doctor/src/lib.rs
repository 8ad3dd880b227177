//! Why a server stalls: the host, the disk, the network or the load.
//!
//! An examination reads the kernel's counters at both ends of a window, and meanwhile probes timers, processors and, if
//! a folder is named, the disk; it asks servers again and again, and looks at their threads while an answer is late.
//! Then each check judges its readings as fine, guilty or unknown. It changes nothing: its only file is temporary, and
//! its only commands read.
//!
//! Suggested order of reading: [`finding`] (what a check says, and which comes first), [`examine`] (what happens when),
//! [`watch`] (how a stall gets its cause), [`host_checks`] and [`server_checks`] (the judgements), [`thresholds`].

pub mod finding;
pub mod fleet;
pub mod host;
pub mod host_checks;
pub mod html;
pub mod parse;
pub mod probes;
pub mod report;
pub mod server_checks;
pub mod talk;
pub mod thresholds;
pub mod watch;

mod examine;
mod server;

pub use examine::{Plan, examine};
pub use report::Report;

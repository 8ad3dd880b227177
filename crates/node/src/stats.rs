//! What a core counts and measures: calls and errors of commands, how long they take, hot keys, and the metrics that
//! are derived from them.

pub(crate) mod calls;
pub(crate) mod cost;
pub(crate) mod counters;
pub(crate) mod hot;
pub mod metrics;
pub(crate) mod timing;

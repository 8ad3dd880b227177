//! What the tools say on the standard output.
//!
//! A reader who has seen enough (`holdfast torture … | head`) ends nothing: a tool goes on in good order, ends the
//! servers that it has started, and its exit code still tells. Any other failure is remembered, for the end.

use std::fmt;
use std::io::{ErrorKind, Write};
use std::sync::OnceLock;

static FAILURE: OnceLock<String> = OnceLock::new();

/// Prints as `print!` does.
macro_rules! say {
    ($($argument:tt)*) => { $crate::output::put(format_args!($($argument)*)) };
}

/// Prints as `println!` does.
macro_rules! say_line {
    ($($argument:tt)*) => { $crate::output::put(format_args!("{}\n", format_args!($($argument)*))) };
}

/// Prints this, unless printing has failed before.
pub fn put(text: fmt::Arguments<'_>) {
    let mut output = std::io::stdout().lock();
    if FAILURE.get().is_some() {
        return;
    }
    match output.write_fmt(text).and_then(|()| output.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            // Somebody else may have failed first, which is told as well.
            let _ = FAILURE.set(format!("cannot write to the standard output: {error}"));
        }
        _ => {}
    }
}

/// Why not all that was said could be written.
pub fn failure() -> Option<&'static str> {
    FAILURE.get().map(String::as_str)
}

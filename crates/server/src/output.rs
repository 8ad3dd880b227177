//! What the tools say on the standard output.
//!
//! A reader who has seen enough (`holdfast torture … | head`) ends nothing: a tool goes on in good order, ends the
//! servers that it has started, and its exit code still tells. Any other failure is remembered, for the end.

use std::fmt::{self, Write as _};
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

/// Prints a line as `eprintln!` does. If that fails, for instance since the disk is full, nobody is the worse for it.
macro_rules! note_line {
    ($($argument:tt)*) => { $crate::output::note(format_args!("{}\n", format_args!($($argument)*))) };
}

/// See `note_line`.
pub fn note(text: fmt::Arguments<'_>) {
    let _ = std::io::stderr().lock().write_fmt(text);
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

/// Appends rows with columns of even width. All have as many columns as the first.
pub fn table<R: AsRef<[String]>>(rows: &[R], page: &mut String) {
    let cells = || rows.iter().map(AsRef::as_ref);
    let width = |column: usize| cells().map(|row| row[column].len()).max().unwrap_or(0);
    for row in cells() {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = width(column);
            let _ = write!(line, "{cell:<width$}  ");
        }
        page.push_str(line.trim_end());
        page.push('\n');
    }
}

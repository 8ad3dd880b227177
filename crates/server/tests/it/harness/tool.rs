//! Tools of the binary, run to their end.

use std::path::Path;
use std::process::{Command, Output};

use super::binary;

fn holdfast(words: &[&str]) -> Output {
    Command::new(binary()).args(words).output().expect("the binary runs")
}

/// What it prints on both outputs, the standard output first. It has to succeed.
#[track_caller]
pub fn succeed(words: &[&str]) -> String {
    let output = holdfast(words);
    let told = both(&output);
    assert!(output.status.success(), "holdfast {words:?}: {told}");
    told
}

/// What it prints on both outputs, the standard output first. It has to fail.
#[track_caller]
pub fn fail(words: &[&str]) -> String {
    let output = holdfast(words);
    let told = both(&output);
    assert!(!output.status.success(), "holdfast {words:?} succeeded: {told}");
    told
}

/// What a tool has printed, the standard output first.
pub fn both(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A path as a word of the command line.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

//! Tools of the binary, run to their end.

use std::path::Path;
use std::process::{Command, Output};

use super::binary;

/// Variables that a process is given, beside those that all have.
pub type Environment = [(String, String)];

fn holdfast(environment: &Environment, words: &[&str]) -> Output {
    let environment = environment.iter().map(|(name, value)| (name, value));
    Command::new(binary()).args(words).envs(environment).output().expect("the binary runs")
}

/// What it prints on both outputs, the standard output first. It has to succeed.
#[track_caller]
pub fn succeed(words: &[&str]) -> String {
    succeed_in(&[], words)
}

/// The same, with variables of its own.
#[track_caller]
pub fn succeed_in(environment: &Environment, words: &[&str]) -> String {
    let output = holdfast(environment, words);
    let told = both(&output);
    assert!(output.status.success(), "holdfast {words:?}: {told}");
    told
}

/// What it prints on both outputs, the standard output first. It has to fail.
#[track_caller]
pub fn fail(words: &[&str]) -> String {
    fail_in(&[], words)
}

/// The same, with variables of its own.
#[track_caller]
pub fn fail_in(environment: &Environment, words: &[&str]) -> String {
    let output = holdfast(environment, words);
    let told = both(&output);
    assert!(!output.status.success(), "holdfast {words:?} succeeded: {told}");
    told
}

/// What a tool has printed, the standard output first, without what it says of a wait that takes long: whether there is
/// one depends on the machine.
pub fn both(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    let is_of_wait = |line: &str| {
        let seconds = line.trim_end().strip_suffix(" s)").and_then(|rest| Some(rest.rsplit_once(" (")?.1));
        seconds.is_some_and(|seconds| !seconds.is_empty() && seconds.bytes().all(|digit| digit.is_ascii_digit()))
    };
    let errors = errors.split_inclusive('\n').filter(|line| !is_of_wait(line));
    String::from_utf8_lossy(&output.stdout).into_owned() + &errors.collect::<String>()
}

/// A path as a word of the command line.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

//! Runs the programs that `cargo test` builds, two suites at a time: tests of servers mostly wait, for disks, timers
//! and each other, and tests that only compute take what they leave of the processors.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process::{cargo, exists, run, words};

/// Crates of which the tests have no clock, no socket and no process: how long they take says nothing of them.
const COMPUTING: [&str; 4] = ["simulation", "node", "state", "consensus"];

/// A program with tests.
pub struct Suite {
    /// The crate, and the name of the program.
    name: (String, String),
    program: PathBuf,
    /// Where the crate is, which its tests run in.
    folder: PathBuf,
}

impl Suite {
    fn computes(&self) -> bool {
        COMPUTING.contains(&self.name.0.as_str())
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(&self.folder);
        command
    }

    fn title(&self) -> String {
        format!("{} {} ({})", self.name.0, self.name.1, self.program.display())
    }
}

/// Builds all tests of the workspace.
///
/// # Errors
/// If one cannot be built.
pub fn build() -> Result<Vec<Suite>> {
    let mut command = cargo();
    command.args(["test", "--workspace", "--no-run", "--quiet", "--message-format", "json-render-diagnostics"]);
    let output = command.stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("{} ended with {}", words(&command), output.status);
    }
    let suites: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().filter_map(suite_of).collect();
    if suites.is_empty() {
        bail!("{} named no program with tests", words(&command));
    }
    Ok(suites)
}

/// The suite that a message of cargo is about.
fn suite_of(message: &str) -> Option<Suite> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = folder.file_name()?.to_str()?.to_owned();
    let target = message["target"]["name"].as_str()?.to_owned();
    Some(Suite { name: (package, target), program: message["executable"].as_str()?.into(), folder })
}

/// Runs all suites, and the examples in documentation. What computes runs beside the rest and beside `then`, with the
/// lowest priority there is; what it printed is shown when it has ended.
///
/// # Errors
/// Which have failed, after all have run.
pub fn run_all(suites: &[Suite], environment: &[(&str, String)], then: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut failures: Vec<String> = Vec::new();
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| compute(suites, environment));
        for suite in suites.iter().filter(|suite| !suite.computes()) {
            eprintln!("     Running {}", suite.title());
            if let Err(error) = run(suite.command().envs(environment.iter().cloned())) {
                failures.push(format!("{error:#}"));
            }
        }
        if let Err(error) = then() {
            failures.push(format!("{error:#}"));
        }
        failures.extend(beside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    });
    if failures.is_empty() {
        return Ok(());
    }
    bail!("{}", failures.join("; "))
}

/// Runs what computes, and answers which have failed.
fn compute(suites: &[Suite], environment: &[(&str, String)]) -> Vec<String> {
    let mut documentation = cargo();
    documentation.args(["test", "--workspace", "--doc", "--no-fail-fast"]);
    let suites = suites.iter().filter(|suite| suite.computes()).map(|suite| (suite.title(), suite.command()));
    let all = suites.chain([("examples in documentation".to_owned(), documentation)]);
    let mut failures = Vec::new();
    for (title, command) in all {
        let begun = Instant::now();
        let mut command = idle(&command);
        command.envs(environment.iter().cloned());
        let output = match command.stdin(Stdio::null()).output() {
            Ok(output) => output,
            Err(error) => {
                failures.push(format!("cannot start {}: {error}", words(&command)));
                continue;
            }
        };
        let Output { status, stdout, stderr } = &output;
        let (stdout, stderr) = (String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr));
        let seconds = begun.elapsed().as_secs();
        eprintln!("     Beside the others, in {seconds} s: {title}\n{}\n{}", stderr.trim_end(), stdout.trim_end());
        if !status.success() {
            failures.push(format!("{} ended with {status}", words(&command)));
        }
    }
    failures
}

/// The same command, for processors that nobody else wants.
fn idle(command: &Command) -> Command {
    let prefix: &[&str] = if exists("chrt") { &["chrt", "--idle", "0"] } else { &["nice", "-n", "19"] };
    let mut idle = Command::new(prefix[0]);
    idle.args(&prefix[1..]).arg(command.get_program()).args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        idle.current_dir(folder);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => idle.env(name, value),
            None => idle.env_remove(name),
        };
    }
    idle
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_with_tests_are_told_from_what_else_cargo_builds() {
        let artifact = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/a/node/Cargo.toml","target":{{"name":"it"}},
                "profile":{{"test":{test}}},"executable":{executable}}}"#
            )
            .replace('\n', " ")
        };
        let suite = suite_of(&artifact(true, r#""/a/target/it-1""#)).expect("a program with tests");
        assert_eq!((suite.name.0.as_str(), suite.folder.as_path()), ("node", Path::new("/a/node")));
        assert!(suite.computes());
        for other in [artifact(false, r#""/a/target/node""#), artifact(true, "null"), r#"{"reason":"x"}"#.to_owned()] {
            assert!(suite_of(&other).is_none(), "{other}");
        }
    }
}

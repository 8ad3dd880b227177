//! Runs the programs that `cargo test` builds, two suites at a time: tests of servers mostly wait, for disks, timers
//! and each other, and tests that only compute take what they leave of the processors.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process::{cargo, exists, run, words};

/// Crates of which the tests have no clock, no socket and no process: how long they take says nothing of them.
const COMPUTING: [&str; 5] = ["simulation", "node", "group", "state", "consensus"];

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

/// Builds all tests of the workspace, and answers them and where the server is.
///
/// # Errors
/// If one cannot be built.
pub fn build() -> Result<(Vec<Suite>, PathBuf)> {
    let mut command = cargo();
    command.args(["test", "--workspace", "--no-run", "--quiet", "--message-format", "json-render-diagnostics"]);
    let output = command.stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("{} ended with {}", words(&command), output.status);
    }
    let (mut suites, mut server) = (Vec::new(), None);
    for message in String::from_utf8_lossy(&output.stdout).lines() {
        match Built::of(message) {
            Some(Built::Suite(suite)) => suites.push(suite),
            Some(Built::Server(program)) => server = Some(program),
            None => {}
        }
    }
    if suites.is_empty() {
        bail!("{} named no program with tests", words(&command));
    }
    let server = server.with_context(|| format!("{} named no server", words(&command)))?;
    Ok((suites, server))
}

/// What a message of cargo is about.
enum Built {
    Suite(Suite),
    Server(PathBuf),
}

impl Built {
    fn of(message: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(message).ok()?;
        if message["reason"] != "compiler-artifact" {
            return None;
        }
        let program: PathBuf = message["executable"].as_str()?.into();
        let target = message["target"]["name"].as_str()?.to_owned();
        if message["profile"]["test"] != true {
            return (target == "holdfast").then_some(Self::Server(program));
        }
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
        let package = folder.file_name()?.to_str()?.to_owned();
        Some(Self::Suite(Suite { name: (package, target), program, folder }))
    }
}

/// Runs all suites. Those that compute, and the commands `beside`, run beside the rest and beside `then`, with the
/// lowest priority there is; what they printed is shown when they have ended.
///
/// # Errors
/// Which have failed, after all have run.
pub fn run_all(
    suites: &[Suite],
    beside: Vec<(&str, Command)>,
    environment: &[(&str, String)],
    then: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let computing = suites.iter().filter(|suite| suite.computes()).map(|suite| (suite.title(), suite.command()));
    let beside = computing.chain(beside.into_iter().map(|(title, command)| (title.to_owned(), command)));
    let mut failures: Vec<String> = Vec::new();
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| run_idle(beside, environment));
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

/// Runs commands in turn on processors that nobody else wants, and answers which have failed.
fn run_idle(commands: impl Iterator<Item = (String, Command)>, environment: &[(&str, String)]) -> Vec<String> {
    let mut failures = Vec::new();
    for (title, command) in commands {
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
        let artifact = |test: bool, name: &str, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/a/node/Cargo.toml","target":{{"name":"{name}"}},
                "profile":{{"test":{test}}},"executable":{executable}}}"#
            )
            .replace('\n', " ")
        };
        let Some(Built::Suite(suite)) = Built::of(&artifact(true, "it", r#""/a/target/it-1""#)) else {
            panic!("a program with tests");
        };
        assert_eq!((suite.name.0.as_str(), suite.folder.as_path()), ("node", Path::new("/a/node")));
        assert!(suite.computes());
        let server = Built::of(&artifact(false, "holdfast", r#""/a/target/holdfast""#));
        assert!(matches!(server, Some(Built::Server(program)) if program == Path::new("/a/target/holdfast")));
        let library = artifact(true, "it", "null");
        for other in [artifact(false, "xtask", r#""/a/target/xtask""#), library, r#"{"reason":"x"}"#.to_owned()] {
            assert!(Built::of(&other).is_none(), "{other}");
        }
    }
}

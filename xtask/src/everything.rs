//! `test`: every test there is, on all cores until the last one has ended.
//!
//! Half of the tests wait most of the time, for a disk, a clock or another process, and fail if they are kept waiting
//! for long. The other half, and the compiler, only compute. Each half by itself leaves cores idle: a test that waits
//! needs none, and the compiler has one large crate at the end. So they run beside each other: what waits goes first
//! wherever both could run, and what computes takes what is left (`nice`).
//!
//! ```text
//! waits:     tools, learn from a stock Redis . image, Tcl suite, Tcl suite on three nodes . . tests of servers
//! computes:  build the server, build the tests . . . . . . . . . . tests that compute, examples in comments
//! ```

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::process::{cargo, run as run_program};
use crate::{image, needs, step, target, tcl};

/// Packages whose tests ask no clock, no disk and no network, or do not mind how long these take.
const COMPUTING: &[&str] = &[
    "command",
    "consensus",
    "fuzzing",
    "journal",
    "keyspace",
    "message",
    "node",
    "redis-files",
    "resp",
    "script",
    "simulation",
    "state",
    "stdx",
];

/// Packages whose tests take longest, of both kinds.
const LONGEST: &[&str] = &["simulation", "server"];

/// How much later than others what computes is served; 19 is the most there is.
const PATIENCE: &str = "15";

/// A test program.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    package: String,
    /// The crate within the package.
    name: String,
    file: PathBuf,
    /// Where cargo would start it.
    folder: PathBuf,
}

/// What the lane that computes has ready for the one that waits.
struct Ready {
    server: Receiver<PathBuf>,
    tests: Receiver<Vec<Program>>,
}

/// Runs them all. Tests that fail keep no others from being run.
///
/// # Errors
/// If a test fails, or something cannot be built or provided.
pub fn run(options: &[String]) -> Result<()> {
    if let Some(unknown) = options.first() {
        bail!("test takes no option '{unknown}'");
    }
    let (give_server, server) = mpsc::channel();
    let (give_tests, tests) = mpsc::channel();
    step("release build, then tests that compute; beside them tools, Redis's Tcl suite, and tests of servers");
    thread::scope(|scope| {
        let computing = scope.spawn(|| compute(give_server, give_tests));
        let waiting = wait(Ready { server, tests });
        let computing = computing.join().unwrap_or_else(|_| bail!("the lane that computes panicked"));
        waiting.and(computing)
    })
}

/// The lane of what waits. When it ends early, the other one ends with what it is building.
fn wait(ready: Ready) -> Result<()> {
    let python = needs::provide_all()?;
    let learnt = tcl::learn();
    // No server means that it could not be built; the other lane says why.
    let Ok(server) = ready.server.recv() else { return learnt };
    let image = image::test(&server);
    let suite = learnt.and_then(|()| {
        step("Redis's Tcl suite");
        let one = tcl::run_against(&server, &[]);
        step("Redis's Tcl suite on three nodes");
        let three = tcl::run_against(&server, &["--nodes", "3", "--files", tcl::CLUSTER_FILES].map(str::to_owned));
        one.and(three)
    });
    let mut outcome = image.and(suite);
    for program in ready.tests.recv().unwrap_or_default() {
        // One more than there are cores, because they wait.
        let threads = thread::available_parallelism().map_or(1, usize::from) + 1;
        step(&program.title());
        let ended = run_program(
            program
                .command()
                .env("HOLDFAST_BINARY", &server)
                .env("HOLDFAST_PYTHON", &python)
                .env("RUST_TEST_THREADS", threads.to_string()),
        );
        outcome = outcome.and(ended);
    }
    outcome
}

/// The lane of what computes. What its tests print is shown when all have ended, for the other lane prints meanwhile.
fn compute(give_server: Sender<PathBuf>, give_tests: Sender<Vec<Program>>) -> Result<()> {
    run_program(&mut patiently(cargo().args(["build", "--release", "--package", "server"])))?;
    give_server.send(target().join("release/holdfast")).context("nobody waits for the server")?;
    let arguments = ["test", "--workspace", "--no-run", "--quiet", "--message-format", "json-render-diagnostics"];
    let built = patiently(cargo().args(arguments)).stderr(Stdio::inherit()).output()?;
    ensure!(built.status.success(), "the tests cannot be built: {}", built.status);
    let (computing, waiting) = programs(&String::from_utf8(built.stdout)?)?;
    give_tests.send(waiting).context("nobody waits for the tests")?;
    let mut story = Vec::new();
    let mut outcome = Ok(());
    for program in &computing {
        let ended = told(&program.title(), &mut patiently(&program.command()), &mut story);
        outcome = outcome.and(ended);
    }
    let examples = ["test", "--workspace", "--doc", "--quiet", "--no-fail-fast"];
    let ended = told("examples in comments", &mut patiently(cargo().args(examples)), &mut story);
    std::io::stderr().write_all(&story)?;
    outcome.and(ended)
}

/// Runs to the end; what it prints and how long it took goes into the story.
fn told(title: &str, command: &mut Command, story: &mut Vec<u8>) -> Result<()> {
    let started = Instant::now();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {title}"))?;
    writeln!(story, "\n== {title}, {} s", started.elapsed().as_secs())?;
    story.extend(output.stdout);
    story.extend(output.stderr);
    ensure!(output.status.success(), "{title} ended with {}", output.status);
    Ok(())
}

/// The same command, served after all others.
fn patiently(command: &Command) -> Command {
    let mut patient = Command::new("nice");
    patient.args(["-n", PATIENCE]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => patient.env(name, value),
            None => patient.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        patient.current_dir(folder);
    }
    patient
}

/// The test programs among what cargo says that it has built: those that compute, and those that wait.
fn programs(told: &str) -> Result<(Vec<Program>, Vec<Program>)> {
    let mut programs = Vec::new();
    for line in told.lines() {
        let message: Value =
            serde_json::from_str(line).with_context(|| format!("cargo says what is no JSON: {line}"))?;
        let Some(file) = message["executable"].as_str().filter(|_| message["profile"]["test"] == true) else {
            continue;
        };
        let manifest = Path::new(message["manifest_path"].as_str().context("an artifact has a manifest")?);
        let folder = manifest.parent().context("a manifest lies in a folder")?;
        let package = folder.file_name().context("a folder has a name")?.to_string_lossy().into_owned();
        let name = message["target"]["name"].as_str().context("an artifact has a name")?.to_owned();
        programs.push(Program { package, name, file: file.into(), folder: folder.into() });
    }
    for package in COMPUTING {
        ensure!(programs.iter().any(|program| program.package == *package), "the package {package} has no tests");
    }
    // The longest first, so that in the end no core waits for one that was begun last.
    let rank = |package: &str| LONGEST.iter().position(|other| *other == package).unwrap_or(LONGEST.len());
    programs.sort_by(|one, other| (rank(&one.package), &one.file).cmp(&(rank(&other.package), &other.file)));
    let (computing, waiting): (Vec<_>, Vec<_>) =
        programs.into_iter().partition(|program| COMPUTING.contains(&program.package.as_str()));
    ensure!(!waiting.is_empty(), "cargo names no tests that wait");
    Ok((computing, waiting))
}

impl Program {
    fn title(&self) -> String {
        format!("tests of {}: {}", self.package, self.name)
    }

    /// The command that runs it, as cargo would.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.file);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder).stdin(Stdio::null());
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(package: &str, name: &str, is_test: bool) -> String {
        let file = format!("/t/{package}-{name}");
        format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/w/{package}/Cargo.toml","target":{{"name":"{name}"}},
            "profile":{{"test":{is_test}}},"executable":"{file}"}}"#
        )
        .replace('\n', "")
    }

    fn told(packages: &[&str]) -> String {
        let mut lines: Vec<String> = packages.iter().map(|package| artifact(package, package, true)).collect();
        lines.push(artifact("server", "it", true));
        lines.push(artifact("server", "holdfast", false));
        lines.push(r#"{"reason":"build-finished","success":true}"#.to_owned());
        lines.join("\n")
    }

    #[test]
    fn every_test_program_is_run_once_and_what_waits_apart() {
        let (computing, waiting) = programs(&told(&[COMPUTING, &["edge"]].concat())).expect("all are there");
        assert_eq!(computing.len(), COMPUTING.len());
        assert_eq!(computing[0].package, "simulation", "the longest goes first");
        let titles: Vec<String> = waiting.iter().map(Program::title).collect();
        assert_eq!(titles, ["tests of server: it", "tests of edge: edge"]);
        assert_eq!(waiting[0].folder, Path::new("/w/server"));
    }

    #[test]
    fn a_package_that_is_missing_is_no_success() {
        let error = programs(&told(&COMPUTING[1..])).expect_err("one is missing");
        assert!(error.to_string().contains(COMPUTING[0]), "{error}");
        assert!(programs("Compiling").is_err());
    }

    #[test]
    fn a_command_that_is_served_last_is_the_same_otherwise() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $HOLDFAST_X; pwd; nice"]).env("HOLDFAST_X", "kept").current_dir("/");
        let output = patiently(&command).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["kept", "/"]);
        assert!(lines[2].parse::<u32>().expect("a number") >= 15, "{text}");
    }
}

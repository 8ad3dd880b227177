//! The verbs of the project. `cargo xtask test` is the one command that runs every test.

mod advisories;
mod bill;
mod console;
mod crash;
mod doctor;
mod fuzz;
mod guided;
mod image;
mod interrupt;
mod machine;
mod miri;
mod needs;
mod package;
mod process;
mod release;
mod suites;
mod tcl;
mod tidy;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::OnceLock;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::process::{cargo, run};

const USAGE: &str = "\
usage: cargo xtask VERB [OPTIONS]

  test [--release] [--lint]
                         run every test: unit and integration tests, then Redis's own Tcl suite;
                         installs what they need from the system's package manager when it is missing;
                         --release tests servers of the build that users run, which takes some ten minutes more;
                         --lint does what the verb lint does, clippy beside the tests
  lint                   formatting, tidy, clippy without warnings; writes nothing
  ci                     test --lint
  tidy                   the house rules alone
  advisories [DIRECTORY] known faults of libraries that we use, from docs/advisories.toml; with a checkout of
                         github.com/rustsec/advisory-db, that list is made first
  tcl [--files A,B] [--redis] [--audit] [--nodes N]
                         Redis's Tcl suite against a Holdfast started for it (--redis: against a stock redis-server);
                         --audit runs only what tests/tcl/left-out.toml leaves out and names what passes by now
                         --nodes tests a cluster of so many nodes, through its first
  release [--profile FILE | --binary FILE [--native FILE]] [--version V] [--check]
                         the server for production: compiled, put under load, and compiled again with what that taught;
                         takes as long as four plain builds, and leaves target/guided/holdfast. With a profile of an
                         earlier release it is built once. Then target/release-files: .deb, .rpm, image, archive, bill
                         of materials, profile, checksums; --check makes them twice and compares
  package [--format deb|rpm] [--binary FILE [--native FILE]] [--version V]
                         target/package/holdfast_V_ARCH.deb or .rpm, of a release build or of this program; for a
                         program of another processor --native names the same for this one, which prints its man pages
  image [--binary FILE [--native FILE]] [--version V] [--try]
                         target/package/holdfast_V_ARCH.oci.tar, an image for container engines, made without one;
                         --try runs its server in namespaces, on a root file system that it cannot write to
  crash [--cycles N] [--seed N]
                         power cuts under load, a full disk, failing flushes: audits what was acknowledged (root and
                         loop devices); for kills see holdfast torture
  doctor [--binary FILE] [--redis] [--seconds N] [--healthy N] [--only A,B] [--directory DIRECTORY]
                         thirteen faults made on purpose (some need root): does `holdfast doctor` name each on its
                         first line? Then 20 examinations of a healthy server, in which it must find nothing; those
                         need a host with nothing else to do. --redis examines a stock redis-server
  console [--binary FILE] [--directory DIRECTORY]
                         the console in a real browser, Chromium without a window: opens every page in the light, in
                         the dark and on a phone, changes keys and examines the node by clicks, and leaves screenshots
                         in target/console
  fuzz [--seconds N] [--seed N] [--input FILE] [TARGET ...]
                         mutated bytes for whatever reads bytes from outside, a minute for each target; --input reads
                         one file again
  miri [TEST ...]        tests of the code with unsafe under Miri, an interpreter that sees undefined behaviour;
                         installs a nightly compiler for it
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (verb, options) = match words.split_first() {
        Some((verb, options)) => (verb.as_str(), options),
        None => ("help", [].as_slice()),
    };
    let started = Instant::now();
    let outcome = match verb {
        "test" => test(options),
        "lint" => lint(),
        "ci" => test(&[&["--lint".to_owned()], options].concat()),
        "tidy" => tidy::run(),
        "advisories" => advisories::run_verb(options),
        "tcl" => tcl::run(options),
        "release" => release::run(options),
        "package" => package::run_verb(options),
        "image" => image::run_verb(options),
        "crash" => crash::run(options),
        "doctor" => doctor::run(options),
        "console" => console::run(options),
        "fuzz" => fuzz::run_verb(options),
        "miri" => miri::run_verb(options),
        "help" | "-h" | "--help" => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprint!("unknown verb '{verb}'\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\ncargo xtask {verb} failed after {} s: {error:#}", started.elapsed().as_secs());
            ExitCode::FAILURE
        }
    }
}

/// Where the workspace is.
fn root() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("xtask lies in the workspace").to_path_buf()
}

/// Where downloaded and unpacked things are kept between runs; git ignores it.
fn cache() -> PathBuf {
    root().join(".cache")
}

fn lint() -> Result<()> {
    format_and_tidy()?;
    step("clippy");
    run(&mut clippy())
}

fn format_and_tidy() -> Result<()> {
    step("formatting");
    run(cargo().args(["fmt", "--all", "--check"]))?;
    step("tidy");
    tidy::run()
}

/// Everything that can be tested. Servers come from the build that the tests come from, with its assertions; with
/// `--release`, from the build that users run. With `--lint`, what `lint` does: clippy beside the tests.
fn test(options: &[String]) -> Result<()> {
    let (mut released, mut linted) = (false, false);
    for option in options {
        match option.as_str() {
            "--release" => released = true,
            "--lint" => linted = true,
            unknown => bail!("test takes no option '{unknown}'"),
        }
    }
    if linted {
        format_and_tidy()?;
    }
    step("tools that the tests need");
    let python = needs::provide_all()?;
    step("tests and the server");
    let (suites, binary) = if released {
        // Each waits for one large crate after another, and leaves a processor idle while it does: together they take
        // far less time than in turn. They share no directory, and so no lock.
        std::thread::scope(|scope| {
            let release = scope.spawn(build_release);
            let built = suites::build();
            let binary = release.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            built.and_then(|(suites, _)| Ok((suites, binary?)))
        })?
    } else {
        suites::build()?
    };
    step("image");
    image::test(&binary)?;
    step("unit and integration tests");
    // Tests of servers mostly wait.
    let threads = std::thread::available_parallelism().map_or(1, usize::from) + 1;
    let environment = [
        ("RUST_TEST_THREADS", threads.to_string()),
        ("HOLDFAST_BINARY", binary.display().to_string()),
        ("HOLDFAST_PYTHON", python.display().to_string()),
    ];
    let mut beside = vec![("examples in documentation", examples())];
    if linted {
        beside.insert(0, ("clippy", clippy()));
    }
    suites::run_all(&suites, beside, &environment, || {
        step("Redis's Tcl suite");
        let suite = tcl::run_with(&[], Some(&binary));
        step("Redis's Tcl suite on three nodes");
        let words = ["--nodes", "3", "--files", tcl::CLUSTER_FILES].map(str::to_owned);
        let cluster = tcl::run_with(&words, Some(&binary));
        step("what ran beside these");
        suite.and(cluster)
    })
}

fn clippy() -> Command {
    let mut clippy = cargo();
    clippy.args(["clippy", "--workspace", "--all-targets", "--quiet", "--", "--deny", "warnings"]);
    clippy
}

fn examples() -> Command {
    let mut examples = cargo();
    examples.args(["test", "--workspace", "--doc", "--no-fail-fast"]);
    examples
}

/// Builds the server as users run it and answers where it is.
fn build_release() -> Result<PathBuf> {
    run(cargo().args(["build", "--release", "--package", "server"]))?;
    Ok(target().join("release/holdfast"))
}

/// Where cargo puts what it builds.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Tells what comes next, and when it begins.
fn step(name: &str) {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    let seconds = BEGUN.get_or_init(Instant::now).elapsed().as_secs();
    eprintln!("\n== {name} (after {seconds} s)");
}

//! `cargo xtask miri`: code with `unsafe` under an interpreter that sees undefined behaviour.

use std::process::Command;

use anyhow::{Result, bail};

use crate::process::{output, run};
use crate::{root, step};

/// Packages, and which of their tests: the blocks in which keys are kept are the only code of ours with `unsafe` that
/// Miri can follow; the rest calls the C code of Lua and the operating system.
const RUNS: &[(&str, &[&str])] = &[("keyspace", &["record::"])];

/// Runs these tests, or those named.
pub fn run_verb(options: &[String]) -> Result<()> {
    if let Some(unknown) = options.iter().find(|option| option.starts_with('-')) {
        bail!("miri takes no option '{unknown}', but names of tests");
    }
    provide()?;
    for (package, tests) in RUNS {
        step(package);
        let mut command = Command::new("cargo");
        command.current_dir(root()).args(["+nightly", "miri", "test", "--package", package, "--lib", "--"]);
        if options.is_empty() {
            command.args(*tests);
        } else {
            command.args(options);
        }
        // Clocks and files are the real ones; the build does not disturb that of the stable compiler.
        command.env("MIRIFLAGS", "-Zmiri-disable-isolation").env("CARGO_TARGET_DIR", root().join("target/miri"));
        command.env_remove("RUSTUP_TOOLCHAIN").env_remove("RUSTC").env_remove("CARGO");
        run(&mut command)?;
    }
    Ok(())
}

/// Installs a nightly compiler with Miri where there is none.
fn provide() -> Result<()> {
    let installed = output(Command::new("rustup").args(["component", "list", "--toolchain", "nightly"]));
    let is_there =
        installed.is_ok_and(|list| list.lines().any(|line| line.starts_with("miri") && line.ends_with("(installed)")));
    if is_there {
        return Ok(());
    }
    step("a nightly compiler with Miri");
    let words = ["toolchain", "install", "nightly", "--profile", "minimal", "--component", "miri,rust-src"];
    run(Command::new("rustup").args(words))
}

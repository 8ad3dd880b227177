//! The disk accidents of `crates/server/tests/it`, with more cycles than a plain test run can afford.

use anyhow::{Context, Result, bail};

use crate::process::{cargo, run as run_program};

/// Runs the tests on a disk that loses power, fills up and fails.
pub fn run(options: &[String]) -> Result<()> {
    let binary = crate::build_release()?;
    let mut command = cargo();
    command.env("HOLDFAST_CRASH_CYCLES", "20").env("HOLDFAST_BINARY", binary);
    let mut words = options.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} wants a value"));
        match word.as_str() {
            "--cycles" => _ = command.env("HOLDFAST_CRASH_CYCLES", value()?),
            "--seed" => _ = command.env("HOLDFAST_CRASH_SEED", value()?),
            _ => bail!("crash takes no option '{word}'"),
        }
    }
    command.args(["test", "--package", "server", "--test", "it", "--"]);
    command.args(["--nocapture", "--test-threads", "1", "crash_disk::"]);
    run_program(&mut command)
}

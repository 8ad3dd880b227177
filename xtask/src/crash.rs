//! The crash tests of `crates/server/tests/it`, with more cycles than a plain test run can afford.

use anyhow::{Context, Result, bail};

use crate::process::{cargo, run as run_program};

/// Runs the crash tests: `--policy` picks one of three (all by default), `--disk` those on a disk that loses power.
pub fn run(options: &[String]) -> Result<()> {
    let binary = crate::build_release()?;
    let mut filter = "crash::kill".to_owned();
    let mut command = cargo();
    command.env("HOLDFAST_CRASH_CYCLES", "200");
    let mut words = options.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} wants a value"));
        match word.as_str() {
            "--cycles" => _ = command.env("HOLDFAST_CRASH_CYCLES", value()?),
            "--seed" => _ = command.env("HOLDFAST_CRASH_SEED", value()?),
            "--policy" => match value()?.as_str() {
                policy @ ("always" | "everysec" | "no") => filter = format!("crash::kill_nine_with_{policy}"),
                other => bail!("no policy '{other}'; there are always, everysec and no"),
            },
            "--disk" => filter = "crash_disk::".to_owned(),
            _ => bail!("crash takes no option '{word}'"),
        }
    }
    command.env("HOLDFAST_BINARY", binary);
    command.args(["test", "--package", "server", "--test", "it", "--", "--nocapture", "--test-threads", "1", &filter]);
    run_program(&mut command)
}

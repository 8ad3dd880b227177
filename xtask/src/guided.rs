//! The server for production: compiled, put under load, and compiled again with what that taught.
//!
//! The compiler cannot know which of the many branches of a server are taken a million times a second. A first build
//! counts them while it is compared with a stock Redis, on one node and on three, and while it lives through some
//! simulated worlds, so that the rare paths are seen, too. The second build lays out and inlines by these counts
//! (<https://doc.rust-lang.org/rustc/profile-guided-optimization.html>).

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process::{cargo, exists, output, run as run_program};
use crate::{needs, step, target};

/// What the build that counts is put through: words for the program, and why.
const LESSONS: &[(&[&str], &str)] = &[
    (&["compare", "--commands", "--rounds", "1", "--seconds", "1"], "commands of every type, and scripts"),
    (&["compare", "--rounds", "1", "--seconds", "2"], "one node, with and without fsync, and transactions"),
    (&["compare", "--replicated", "--rounds", "1", "--seconds", "2"], "three nodes"),
    (&["simulate", "--nodes", "3", "--changes", "--moves", "--seeds", "0..10"], "what happens seldom"),
];

/// What is built, and by what.
pub struct Built {
    /// The program.
    pub program: PathBuf,
    /// What it has learnt: with this, the same commit and the same compiler, it is built again without being put under
    /// load.
    pub profile: PathBuf,
}

/// Builds it into the target directory: with a profile that there is already, or with one that it makes.
///
/// # Errors
/// If a build or a lesson fails.
pub fn build_program(known: Option<&Path>) -> Result<Built> {
    let folder = std::path::absolute(target().join("guided"))?;
    let known = match known {
        // It may lie in the folder that is cleared.
        Some(path) => Some(fs::read(path).with_context(|| format!("cannot read {}", path.display()))?),
        None => None,
    };
    // Cargo does not notice that a profile has changed.
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot clear {}", folder.display()))?;
    }
    let profile = folder.join("profile");
    if let Some(known) = &known {
        fs::create_dir_all(&folder)?;
        fs::write(&profile, known)?;
    } else {
        learn(&folder, &profile)?;
    }

    step("the build that has learnt");
    let built = build(&folder, &format!("-Cprofile-use={}", profile.display()))?;
    let program = folder.join("holdfast");
    fs::rename(&built, &program)?;
    fs::remove_dir_all(folder.join("build"))?;

    if known.is_none() {
        step("what it costs now");
        run_program(Command::new(&program).args(["compare", "--commands", "--quick"]))?;
    }
    eprintln!("\n{} is ready", program.display());
    Ok(Built { program, profile })
}

/// Makes a profile of a build that counts.
fn learn(folder: &Path, profile: &Path) -> Result<()> {
    step("tools that this needs");
    needs::provide_programs()?;
    let merger = provide_merger()?;
    let counts = folder.join("counts");
    step("a build that counts which branches are taken");
    let counting = build(folder, &format!("-Cprofile-generate={}", counts.display()))?;
    for (lesson, purpose) in LESSONS {
        step(&format!("load to learn from: {purpose}"));
        run_program(Command::new(&counting).args(*lesson))?;
    }
    run_program(Command::new(merger).arg("merge").arg("--output").arg(profile).arg(&counts))?;
    fs::remove_dir_all(&counts)?;
    Ok(())
}

/// The program that puts counts together. It must be of the compiler's own LLVM.
fn provide_merger() -> Result<PathBuf> {
    let libraries = output(Command::new("rustc").args(["--print", "target-libdir"]).current_dir(crate::root()))?;
    let folder = Path::new(libraries.trim()).parent().context("the compiler's libraries lie in no directory")?;
    let merger = folder.join("bin/llvm-profdata");
    if !merger.exists() {
        ensure!(exists("rustup"), "{} is missing: install the LLVM tools of this compiler", merger.display());
        eprintln!("llvm-profdata is missing (puts profiles together); adding the component llvm-tools");
        run_program(Command::new("rustup").args(["component", "add", "llvm-tools"]).current_dir(crate::root()))?;
    }
    ensure!(merger.exists(), "the component llvm-tools has brought no {}", merger.display());
    Ok(merger)
}

/// Builds the server with one more flag for the compiler. With a target named, the flag does not concern programs that
/// run during the build.
fn build(folder: &Path, flag: &str) -> Result<PathBuf> {
    let version = output(Command::new("rustc").arg("-vV").current_dir(crate::root()))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
    let place = folder.join("build");
    run_program(
        cargo()
            .args(["build", "--release", "--package", "server", "--target", host, "--target-dir"])
            .arg(&place)
            .env("RUSTFLAGS", with_flag(std::env::var_os("RUSTFLAGS"), flag)),
    )?;
    Ok(place.join(host).join("release/holdfast"))
}

fn with_flag(flags: Option<OsString>, flag: &str) -> OsString {
    let mut flags = flags.unwrap_or_default();
    if !flags.is_empty() {
        flags.push(" ");
    }
    flags.push(flag);
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_own_flags_are_kept() {
        assert_eq!(with_flag(None, "-Cx=1"), "-Cx=1");
        assert_eq!(with_flag(Some("-Ctarget-cpu=native".into()), "-Cx=1"), "-Ctarget-cpu=native -Cx=1");
    }
}

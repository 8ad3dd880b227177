//! Starting other programs, and ending them for certain.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use anyhow::{Context, Result, bail};

/// The cargo that runs this, in the workspace. It does not inherit what `cargo run` says of this program: build scripts
/// of C libraries watch these variables, and would build them and all that rests on them again at each switch between
/// the two.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(crate::root());
    for (name, _) in std::env::vars_os() {
        let is_of_this_program = name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") || name == "CARGO_BIN_NAME"
        });
        if is_of_this_program {
            command.env_remove(name);
        }
    }
    command
}

/// Runs to the end; an exit code other than 0 is an error that names the program and its words.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", words(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", words(command));
    }
    Ok(())
}

/// Runs to the end and answers what it printed; an exit code other than 0 is an error with its words.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {}", words(command)))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("{} ended with {}: {}", words(command), output.status, complaint.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// True if a program of this name is on the path.
pub fn exists(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

/// A child with all its descendants, ended when this is dropped.
pub struct Family {
    child: Child,
}

impl Family {
    /// Starts `command` in a process group of its own.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let child = command.process_group(0).spawn().with_context(|| format!("cannot start {}", words(command)))?;
        Ok(Self { child })
    }

    /// The child itself.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        // The group outlives its leader as long as one member is there, so this also reaches grandchildren.
        let group = format!("-{}", self.child.id());
        let mut kill = Command::new("kill");
        // Ctrl-C at a terminal does not reach it in a group of its own.
        kill.args(["-KILL", "--", &group]).stderr(std::process::Stdio::null()).process_group(0);
        let _ = kill.status();
        let _ = self.child.wait();
    }
}

/// A command as it is typed.
pub fn words(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
    words.join(" ")
}

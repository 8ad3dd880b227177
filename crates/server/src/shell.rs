//! What helps in a shell: the version, completions, man pages. All come from the declarations of the command line.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_complete::Shell;

/// The version, and the commit if the build was told of it: nothing else, so that builds can be repeated.
pub fn version() -> String {
    let version = env!("CARGO_PKG_VERSION");
    match option_env!("HOLDFAST_COMMIT") {
        Some(commit) => format!("{version} (commit {commit})"),
        None => version.to_owned(),
    }
}

/// Print a completion script for a shell.
///
/// For bash: holdfast completions bash > ~/.local/share/bash-completion/completions/holdfast
#[derive(Debug, Args)]
pub struct CompletionsArguments {
    shell: Shell,
}

/// Write man pages, one for each verb.
#[derive(Debug, Args)]
pub struct ManArguments {
    /// Directory for them: holdfast.1, holdfast-serve.1 and so on.
    directory: PathBuf,
}

/// Prints completions.
pub fn complete(arguments: &CompletionsArguments, mut command: Command) {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "holdfast", &mut script);
    say!("{}", String::from_utf8_lossy(&script));
}

/// Writes man pages.
///
/// # Errors
/// If one cannot be written.
pub fn man(arguments: &ManArguments, command: Command) -> Result<()> {
    std::fs::create_dir_all(&arguments.directory)
        .with_context(|| format!("cannot make {}", arguments.directory.display()))?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_page(&command, "holdfast", &arguments.directory)
}

fn write_page(command: &Command, name: &str, directory: &Path) -> Result<()> {
    let named = command.clone().name(name.to_owned()).display_name(name.to_owned());
    let mut page = Vec::new();
    clap_mangen::Man::new(named)
        .manual("Holdfast")
        .source(format!("Holdfast {}", env!("CARGO_PKG_VERSION")))
        .render(&mut page)?;
    let path = directory.join(format!("{name}.1"));
    std::fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
    command.get_subcommands().try_for_each(|verb| write_page(verb, &format!("{name}-{}", verb.get_name()), directory))
}

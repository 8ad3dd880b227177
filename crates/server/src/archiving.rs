//! `holdfast archive`, and `holdfast restore --archive`: what an archive holds, and the way back to any moment of it.
//!
//! An archive is the logs of all groups, with bases: see `docs/formats/archive.md` and the crate `archive`, which knows
//! its files. Here is what knows what is in them. Suggested order of reading: [`view`], [`replay`], [`restore`].

mod history;
mod list;
mod replay;
pub mod restore;
mod verify;
mod view;

use anyhow::Result;
use clap::Subcommand;

/// Lists and checks an archive, and shows what has become of a key.
#[derive(clap::Args, Clone, Debug)]
pub struct ArchiveArguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Clone, Debug)]
enum Verb {
    List(ListArguments),
    Verify(VerifyArguments),
    Show(history::ShowArguments),
}

/// Tells which moments an archive can be restored to, and what it holds of each group.
#[derive(clap::Args, Clone, Debug)]
struct ListArguments {
    /// The archive: file:///DIRECTORY
    #[arg(value_name = "ADDRESS")]
    archive: String,
}

/// Reads all of an archive back, and names what is damaged or missing.
#[derive(clap::Args, Clone, Debug)]
struct VerifyArguments {
    /// The archive: file:///DIRECTORY
    #[arg(value_name = "ADDRESS")]
    archive: String,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

/// Runs `holdfast archive`.
///
/// # Errors
/// What an operator must know.
pub fn run(arguments: &ArchiveArguments) -> Result<()> {
    match &arguments.verb {
        Verb::List(arguments) => list::run(&arguments.archive),
        Verb::Verify(arguments) => verify::run(&arguments.archive, arguments.quiet),
        Verb::Show(arguments) => history::run(arguments),
    }
}

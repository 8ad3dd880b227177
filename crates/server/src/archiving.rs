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

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;

/// List and verify an archive, and show the history of a key.
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

/// Which archive.
#[derive(clap::Args, Clone, Debug)]
struct Which {
    /// The archive: file:///DIRECTORY or s3://BUCKET/PREFIX
    #[arg(value_name = "ADDRESS")]
    archive: String,
    /// The file with its key, if it is encrypted
    #[arg(long, value_name = "FILE")]
    archive_key_file: Option<PathBuf>,
}

impl Which {
    fn view(&self) -> Result<view::View> {
        view::View::of(&self.archive, self.archive_key_file.as_deref())
    }
}

/// List the moments that an archive can be restored to, and what it holds of each group.
#[derive(clap::Args, Clone, Debug)]
struct ListArguments {
    #[command(flatten)]
    which: Which,
}

/// Read a whole archive, and name what is damaged or missing.
#[derive(clap::Args, Clone, Debug)]
struct VerifyArguments {
    #[command(flatten)]
    which: Which,
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
        Verb::List(arguments) => list::run(&arguments.which.view()?),
        Verb::Verify(arguments) => verify::run(&arguments.which.view()?, arguments.quiet),
        Verb::Show(arguments) => history::run(arguments),
    }
}

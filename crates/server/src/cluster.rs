//! `holdfast cluster`: how a cluster is, and what is to become of it. Any node can be asked, at the port of clients.

mod door;
mod status;

use anyhow::Result;
use clap::{Args, Subcommand};

/// See how a cluster is, and change it.
#[derive(Debug, Args)]
pub struct ClusterArguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Status(status::StatusArguments),
}

/// Does what was asked for.
pub fn run(arguments: ClusterArguments) -> Result<()> {
    match arguments.verb {
        Verb::Status(arguments) => status::run(&arguments),
    }
}

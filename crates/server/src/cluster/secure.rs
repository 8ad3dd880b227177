//! `holdfast cluster secure`: an authority for a cluster from before clusters had one.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use clap::Args;
use edge::AUTHORITY_FILE;

/// Make a certificate authority for a cluster that has none, in the data directory of one of its nodes. All nodes must
/// be stopped; then copy the file into the directories of the others. New clusters have one.
#[derive(Debug, Args)]
pub struct SecureArguments {
    /// The data directory of one node.
    #[arg(value_name = "DIR")]
    data_dir: PathBuf,
}

/// Makes it.
pub fn run(arguments: &SecureArguments) -> Result<()> {
    let SecureArguments { data_dir } = arguments;
    let name = edge::secure_directory(data_dir).map_err(|fault| anyhow!("{fault}"))?;
    say_line!("{} holds the authority {name} now.", data_dir.join(AUTHORITY_FILE).display());
    say_line!(
        "Copy this file, with its permissions, into the data directory of every other node of the cluster, then start all."
    );
    say_line!("Anyone who has it is a member of the cluster: keep no other copy.");
    Ok(())
}

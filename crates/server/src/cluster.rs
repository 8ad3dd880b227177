//! `holdfast cluster`: the state of a cluster, and changes to it. Any node can be asked, at the port of clients.

mod add;
mod balance;
mod create;
pub mod door;
mod groups;
pub mod invite;
pub mod lead;
mod merge;
mod remove;
mod secure;
mod slots;
mod split;
mod status;
mod timeline;
mod trial;
mod upgrade;

pub(crate) use trial::watch_signals;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Show and change a cluster.
#[derive(Debug, Args)]
pub struct ClusterArguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Status(status::StatusArguments),
    Timeline(timeline::TimelineArguments),
    Invite(invite::InviteArguments),
    Secure(secure::SecureArguments),
    Create(create::CreateArguments),
    Add(add::AddArguments),
    Remove(remove::RemoveArguments),
    Rebalance(lead::RebalanceArguments),
    Prefer(lead::PreferArguments),
    Plan(balance::PlanArguments),
    Balance(balance::BalanceArguments),
    Place(balance::PlaceArguments),
    Groups(groups::GroupsArguments),
    Move(slots::MoveArguments),
    Merge(merge::MergeArguments),
    Split(split::SplitArguments),
    Upgrade(upgrade::UpgradeArguments),
    Try(trial::TryArguments),
}

/// Does what was asked for.
pub fn run(arguments: ClusterArguments) -> Result<()> {
    match arguments.verb {
        Verb::Status(arguments) => status::run(&arguments),
        Verb::Timeline(arguments) => timeline::run(&arguments),
        Verb::Invite(arguments) => invite::run(&arguments),
        Verb::Secure(arguments) => secure::run(&arguments),
        Verb::Create(arguments) => create::run(&arguments),
        Verb::Add(arguments) => add::run(&arguments),
        Verb::Remove(arguments) => remove::run(&arguments),
        Verb::Rebalance(arguments) => lead::rebalance(&arguments),
        Verb::Prefer(arguments) => lead::prefer(&arguments),
        Verb::Plan(arguments) => balance::plan(&arguments),
        Verb::Balance(arguments) => balance::switch(&arguments),
        Verb::Place(arguments) => balance::place(&arguments),
        Verb::Groups(arguments) => groups::run(&arguments),
        Verb::Move(arguments) => slots::run(&arguments),
        Verb::Merge(arguments) => merge::run(&arguments),
        Verb::Split(arguments) => split::run(&arguments),
        Verb::Upgrade(arguments) => upgrade::run(&arguments),
        Verb::Try(arguments) => trial::run(&arguments),
    }
}

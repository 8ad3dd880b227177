//! The `holdfast` binary: a server and its tools.

#[macro_use]
mod output;

mod allocator;
mod archiving;
mod audit;
mod backup;
mod bench;
mod cli;
mod cluster;
mod compare;
mod connection;
mod doctor;
mod health;
mod import;
mod link;
mod login;
mod metrics;
mod migrate;
mod recover;
mod repair;
mod serve;
mod shell;
mod simulate;
mod site;
mod tls;
mod torture;
mod waiting;
mod words;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// A durable, replicated, transactional in-memory store that speaks the Redis protocol.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version = shell::version(), max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run a server.
    // Its words are those of redis-server, with any number of values behind a name: they are read by `serve`.
    #[command(disable_help_flag = true)]
    Serve {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "[FILE] [--name value [value …]]")]
        words: Vec<String>,
    },
    Bench(bench::BenchArguments),
    Cli(cli::CliArguments),
    Cluster(cluster::ClusterArguments),
    Config(serve::check::ConfigArguments),
    Compare(compare::CompareArguments),
    Archive(archiving::ArchiveArguments),
    Audit(audit::AuditArguments),
    Backup(backup::BackupArguments),
    Doctor(doctor::DoctorArguments),
    Health(health::HealthArguments),
    Metrics(metrics::MetricsArguments),
    Import(import::ImportArguments),
    Migrate(migrate::MigrateArguments),
    Link(link::LinkArguments),
    Site(site::SiteArguments),
    Export(backup::export::ExportArguments),
    Restore(backup::RestoreArguments),
    Recover(recover::RecoverArguments),
    Repair(repair::RepairArguments),
    Simulate(simulate::SimulateArguments),
    Torture(torture::TortureArguments),
    Completions(shell::CompletionsArguments),
    Man(shell::ManArguments),
    /// Print the version.
    Version,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().verb {
        Verb::Serve { words } => serve::run(&words),
        Verb::Bench(arguments) => bench::run(arguments).map_err(|error| format!("{error:#}")),
        Verb::Audit(arguments) => match audit::run(&arguments) {
            Ok(code) if output::failure().is_none() => return code,
            Ok(_) => Ok(()),
            Err(error) => {
                complain(&format!("{error:#}"));
                return audit::CANNOT_RUN.into();
            }
        },
        Verb::Cli(arguments) => match cli::run(&arguments) {
            Ok(code) if output::failure().is_none() => return code,
            Ok(_) => Ok(()),
            Err(error) => Err(format!("{error:#}")),
        },
        Verb::Doctor(arguments) => match doctor::run(&arguments) {
            Ok(code) if output::failure().is_none() => return code,
            Ok(_) => Ok(()),
            Err(error) => {
                complain(&format!("{error:#}"));
                return doctor::CANNOT_RUN.into();
            }
        },
        Verb::Health(arguments) => health::run(&arguments).map_err(|error| format!("{error:#}")),
        Verb::Completions(arguments) => {
            shell::complete(&arguments, Arguments::command());
            Ok(())
        }
        Verb::Man(arguments) => shell::man(&arguments, Arguments::command()).map_err(|error| format!("{error:#}")),
        Verb::Version => {
            say_line!("holdfast {}", shell::version());
            Ok(())
        }
        Verb::Metrics(arguments) => {
            metrics::run(&arguments);
            Ok(())
        }
        Verb::Archive(arguments) => archiving::run(&arguments).map_err(|error| format!("{error:#}")),
        Verb::Backup(arguments) => backup::run(arguments).map_err(|error| format!("{error:#}")),
        Verb::Import(arguments) => import::run(&arguments).map_err(|error| format!("{error:#}")),
        Verb::Link(arguments) => link::run(&arguments).map_err(|error| format!("{error:#}")),
        Verb::Migrate(arguments) => migrate::run(&arguments).map_err(|error| format!("{error:#}")),
        Verb::Site(arguments) => site::run(&arguments).map_err(|error| format!("{error:#}")),
        Verb::Export(arguments) => backup::export::run(&arguments).map_err(|error| format!("{error:#}")),
        Verb::Restore(arguments) => backup::restore::run(&arguments).map_err(|error| format!("{error:#}")),
        Verb::Recover(arguments) => recover::run(&arguments).map_err(|error| format!("{error:#}")),
        Verb::Config(arguments) => match serve::check::run(&arguments) {
            Ok(code) if output::failure().is_none() => return code,
            Ok(_) => Ok(()),
            Err(error) => Err(format!("{error:#}")),
        },
        Verb::Repair(arguments) => repair::run(&arguments).map_err(|error| format!("{error:#}")),
        Verb::Cluster(arguments) => cluster::run(arguments).map_err(|error| format!("{error:#}")),
        Verb::Compare(arguments) => compare::run(arguments).map_err(|error| format!("{error:#}")),
        Verb::Simulate(arguments) => simulate::run(arguments).map_err(|error| format!("{error:#}")),
        Verb::Torture(arguments) => match torture::run(arguments) {
            Ok(verdict) if output::failure().is_none() => return verdict.exit_code(),
            Ok(_) => Ok(()),
            Err(error) => Err(format!("{error:#}")),
        },
    };
    match outcome.and_then(|()| output::failure().map_or(Ok(()), |why| Err(why.to_owned()))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            complain(&why);
            ExitCode::FAILURE
        }
    }
}

/// Says why nothing came of it, in one piece: a log that is written to the same terminal does not get in between.
fn complain(why: &str) {
    let _ = std::io::stderr().write_all(format!("holdfast: {why}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_all_verbs_go_together() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn who_takes_a_server_takes_a_host_and_a_port() {
        fn look(command: &clap::Command, seen: &mut usize) {
            let has = |name: &str| command.get_arguments().any(|argument| argument.get_long() == Some(name));
            if has("server") {
                *seen += 1;
                assert!(has("host") && has("port"), "{}", command.get_name());
            }
            command.get_subcommands().for_each(|verb| look(verb, seen));
        }
        let mut seen = 0;
        look(&Arguments::command(), &mut seen);
        assert!(seen > 20, "{seen} verbs take a server");
    }
}

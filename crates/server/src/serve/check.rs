//! `holdfast config check`: what becomes of a `redis.conf`, line by line, before a server is started with it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

use super::directives::Class;
use super::{Plan, SECRETS, Verdict};

/// Check a configuration file.
#[derive(Debug, Args)]
pub struct ConfigArguments {
    #[command(subcommand)]
    verb: ConfigVerb,
}

#[derive(Debug, Subcommand)]
enum ConfigVerb {
    /// Report the effect of each line of a redis.conf. Fails if a server would not start with it.
    Check {
        /// The file; what it includes is read as well.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Leave out lines that take effect.
        #[arg(long)]
        quiet: bool,
    },
}

/// Runs `holdfast config`.
///
/// # Errors
/// If the file cannot be read.
pub fn run(arguments: &ConfigArguments) -> Result<ExitCode> {
    let ConfigVerb::Check { file, quiet } = &arguments.verb;
    let mut plan = Plan::new().map_err(anyhow::Error::msg)?;
    plan.is_trial = true;
    let words = ["--config".to_owned(), file.display().to_string()];
    plan.fill(&words).map_err(anyhow::Error::msg)?;
    let users = plan.users().err();
    let verdicts = &plan.verdicts;
    for verdict in verdicts.iter().filter(|verdict| !quiet || verdict.class != Class::Obeyed) {
        say_line!("{}", line(verdict));
    }
    let count = |wanted: &[Class]| verdicts.iter().filter(|verdict| wanted.contains(&verdict.class)).count();
    let refused = count(&[Class::Refused]) + usize::from(users.is_some());
    if let Some(why) = &users {
        say_line!("{:<9}  {why}", Class::Refused.word());
    }
    say_line!(
        "{}: {} obeyed, {} without effect, {refused} refused",
        file.display(),
        count(&[Class::Obeyed, Class::Told]),
        count(&[Class::WithoutEffect]),
    );
    Ok(if refused == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One line of the table.
fn line(verdict: &Verdict) -> String {
    let Verdict { directive, class, text } = verdict;
    let name = directive.words.first().map_or("", String::as_str);
    let shown = match verdict.value() {
        value if value.is_empty() => name.to_owned(),
        _ if SECRETS.contains(&name) => format!("{name} …"),
        value => format!("{name} {value}"),
    };
    let place = directive.place.rsplit_once(", ").map_or(directive.place.as_str(), |(_, line)| line);
    let line = format!("{:<9}  {place}: {shown}", class.word());
    if text.is_empty() { line } else { format!("{line}\n           {text}") }
}

//! CONFIG: parameters at run time.

use std::sync::Arc;

use command::{Flag, Refusal};
use keyspace::glob;
use resp::{Args, Writer};

use super::{ControlCommand, Local, Outcome, Question, container, local, node};
use crate::context::Context;
use crate::event::UsersFile;
use crate::parameters::Pairs;
use crate::settings::Settings;

const FLAGS: &[Flag] = &[Flag::Admin, Flag::Noscript, Flag::Loading, Flag::Stale];

pub(super) const CONFIG: ControlCommand = ControlCommand {
    since: "2.0.0",
    summary: "Commands on the configuration.",
    subcommands: &[GET, SET, RESETSTAT, REWRITE, HELP],
    ..container("config")
};

const GET: ControlCommand = ControlCommand {
    since: "2.0.0",
    summary: "Returns the values of parameters.",
    complexity: "O(N) when N is the number of configuration parameters provided",
    syntax: "parameter [parameter ...]",
    flags: FLAGS,
    ..local("get", -3, get)
};

fn get(local: &mut Local<'_>, args: Args<'_>, writer: &mut Writer) -> Outcome {
    let patterns: Vec<Vec<u8>> = args.iter().skip(2).map(<[u8]>::to_ascii_lowercase).collect();
    let found: Vec<_> = local
        .core
        .settings
        .iter()
        .filter(|(name, _)| patterns.iter().any(|pattern| glob::matches(pattern, name.as_bytes())))
        .collect();
    writer.map(found.len());
    for (name, value) in found {
        writer.bulk(name.as_bytes());
        writer.bulk(value.as_bytes());
    }
    Ok(())
}

const SET: ControlCommand = ControlCommand {
    since: "2.0.0",
    summary: "Sets parameters, all or none.",
    complexity: "O(N) when N is the number of configuration parameters provided",
    syntax: "parameter value [parameter value ...]",
    flags: FLAGS,
    tips: super::ON_ALL_NODES,
    ..node("set", -4, set, super::join_done)
};

fn set(local: &mut Local<'_>, args: Args<'_>) -> Result<Question, Refusal> {
    if args.len() % 2 == 1 {
        return Err(Refusal::wrong_arity("config|set"));
    }
    let mut pairs = Pairs::new();
    let mut trial = Settings::clone(&local.core.settings);
    for at in (2..args.len()).step_by(2) {
        let name = String::from_utf8_lossy(args.at(at)).to_ascii_lowercase();
        let value = String::from_utf8_lossy(args.at(at + 1)).into_owned();
        let refuse =
            |why: &str| Refusal::new(format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"));
        let Some(parameter) = Settings::parameter(&name) else {
            return Err(Refusal::new(format!(
                "ERR Unknown option or number of arguments for CONFIG SET - '{}'",
                String::from_utf8_lossy(args.at(at))
            )));
        };
        if pairs.iter().any(|(other, _)| *other == name) {
            return Err(refuse("duplicate parameter"));
        }
        if !parameter.is_mutable {
            return Err(refuse("can't set immutable config"));
        }
        trial.set(&name, &value).map_err(|why| refuse(&why))?;
        let most = local.core.process.client_count_max;
        if name == "maxclients" && most > 0 && trial.number("maxclients").cast_unsigned() > most {
            return Err(refuse(&format!(
                "The operating system is not able to handle the specified number of clients, try with {most}"
            )));
        }
        pairs.push((name, value));
    }
    Ok(Question::Configure { pairs, version: 0 })
}

const RESETSTAT: ControlCommand = ControlCommand {
    since: "2.0.0",
    summary: "Sets the counters of INFO to zero.",
    flags: FLAGS,
    tips: super::ON_ALL_NODES,
    ..node("resetstat", 2, |_, _| Ok(Question::ResetStatistics), super::join_done)
};

const REWRITE: ControlCommand = ControlCommand {
    since: "2.8.0",
    summary: "Writes the parameters in force into the configuration file.",
    flags: FLAGS,
    tips: super::ON_ALL_NODES,
    ..node(
        "rewrite",
        2,
        |local, _| {
            let Context { settings, access, .. } = local.core;
            // Users that have a file of their own are saved there.
            let users = settings.get("aclfile").is_empty().then(|| Arc::clone(&access.users));
            Ok(Question::UsersFile(UsersFile::Rewrite { settings: Arc::clone(settings), users }))
        },
        super::join_done,
    )
};

const HELP: ControlCommand = ControlCommand {
    since: "5.0.0",
    summary: "Lists the subcommands.",
    flags: &[Flag::Loading, Flag::Stale],
    ..local("help", 2, |_, _, writer| {
        super::write_help(writer, "CONFIG", CONFIG.subcommands);
        Ok(())
    })
};

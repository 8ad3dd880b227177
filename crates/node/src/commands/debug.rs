//! DEBUG, as far as test suites and operators use it.

use command::{Flag, Refusal};
use keyspace::debug::{Digest, dataset_digest};
use keyspace::glob;
use resp::{Args, Writer};

use super::{Answer, ControlCommand, DebugQuestion, Local, Outcome, Question, container, local, node, number};
use crate::debug_replies::{sleep_duration, write_sample};
use crate::event::Action;

const FLAGS: &[Flag] = &[Flag::Admin, Flag::Noscript, Flag::Loading, Flag::Stale];

const fn debug(name: &'static str, arity: i32, run: super::Run) -> ControlCommand {
    ControlCommand { flags: FLAGS, ..local(name, arity, run) }
}

pub(super) const DEBUG: ControlCommand = ControlCommand {
    summary: "Commands for tests.",
    subcommands: &[
        ControlCommand {
            summary: "Lists the subcommands.",
            ..debug("help", 2, |_, _, writer| {
                super::write_help(writer, "DEBUG", DEBUG.subcommands);
                Ok(())
            })
        },
        SLEEP,
        SET_ACTIVE_EXPIRE,
        SET_DISABLE_DENY_SCRIPTS,
        STRINGMATCH_LEN,
        LOG,
        ERROR,
        PROTOCOL,
        ControlCommand {
            summary: "Writes out all data and reads it back.",
            flags: FLAGS,
            ..node("reload", -2, |_, _| Ok(Question::Reload), super::join_done)
        },
        ControlCommand {
            summary: "Applies the log again: here the same as RELOAD.",
            flags: FLAGS,
            ..node("loadaof", 2, |_, _| Ok(Question::Reload), super::join_done)
        },
        ControlCommand {
            summary: "Returns a digest of all data.",
            flags: FLAGS,
            ..node("digest", 2, |_, _| Ok(Question::Digest), digest)
        },
        ControlCommand {
            summary: "Returns digests of values.",
            syntax: "key [key ...]",
            flags: FLAGS,
            ..node("digest-value", -2, |local, args| Ok(ask_keys(local, args, DebugQuestion::Digest)), digest_value)
        },
        ControlCommand {
            summary: "Describes a value.",
            syntax: "key",
            flags: FLAGS,
            ..node("object", -3, |local, args| Ok(ask_keys(local, args, DebugQuestion::Object)), object)
        },
        ControlCommand {
            summary: "Accepted, without effect: there are no quicklists here.",
            syntax: "size",
            ..debug("quicklist-packed-threshold", 3, accept)
        },
        ControlCommand {
            summary: "Accepted, without effect: nothing here runs by a clock that could be paused.",
            syntax: "<0 | 1>",
            ..debug("pause-cron", 3, accept)
        },
        ControlCommand {
            summary: "Accepted, without effect: no replication id.",
            ..debug("change-repl-id", 2, accept)
        },
        ControlCommand { summary: "Accepted, without effect: no such cache.", ..debug("jmap", 2, accept) },
    ],
    flags: FLAGS,
    ..container("debug")
};

fn accept(_: &mut Local<'_>, _: Args<'_>, writer: &mut Writer) -> Outcome {
    writer.ok();
    Ok(())
}

const SLEEP: ControlCommand = ControlCommand {
    summary: "Stops this session's core for so many seconds.",
    syntax: "seconds",
    ..debug("sleep", 3, |local, args, writer| {
        let duration = sleep_duration(args)?;
        local.sleeps = Some(duration);
        local.actions.push(Action::Sleep { duration });
        writer.ok();
        Ok(())
    })
};

const SET_ACTIVE_EXPIRE: ControlCommand = ControlCommand {
    summary: "Sets whether expired keys are removed before somebody asks for them.",
    syntax: "0|1",
    flags: FLAGS,
    ..node(
        "set-active-expire",
        3,
        |_, args| Ok(Question::SetActiveExpire(number(args.at(2)).ok_or(Refusal::NOT_AN_INTEGER)? != 0)),
        super::join_done,
    )
};

const SET_DISABLE_DENY_SCRIPTS: ControlCommand = ControlCommand {
    summary: "Sets whether scripts may call DEBUG PROTOCOL and DEBUG SLEEP, which sleeps when the script has ended.",
    syntax: "0|1",
    flags: FLAGS,
    ..node(
        "set-disable-deny-scripts",
        3,
        |_, args| Ok(Question::LetScriptsDebug(number(args.at(2)).ok_or(Refusal::NOT_AN_INTEGER)? != 0)),
        super::join_done,
    )
};

const STRINGMATCH_LEN: ControlCommand = ControlCommand {
    summary: "Matches a long string against a pattern.",
    syntax: "length pattern",
    ..debug("stringmatch-len", 4, |_, args, writer| {
        const LENGTH_MAX: i64 = 1 << 29;
        let length =
            number(args.at(2)).filter(|length| (0..=LENGTH_MAX).contains(length)).ok_or(Refusal::NOT_AN_INTEGER)?;
        let matches = glob::matches(args.at(3), &vec![b'a'; length as usize]);
        writer.integer(i64::from(matches));
        Ok(())
    })
};

const ERROR: ControlCommand = ControlCommand {
    summary: "Returns an error with this text, to test how a client handles it.",
    syntax: "message",
    ..debug("error", 3, |_, args, _| {
        let text: String = String::from_utf8_lossy(args.at(2)).replace(['\r', '\n'], " ");
        Err(Refusal::new(text))
    })
};

const LOG: ControlCommand = ControlCommand {
    summary: "Writes a line to the node's log.",
    syntax: "message",
    ..debug("log", 3, |local, args, writer| {
        let line = format!("DEBUG LOG: {}", String::from_utf8_lossy(args.at(2)));
        local.actions.push(Action::Log { level: group::ids::Level::Notice, line });
        writer.ok();
        Ok(())
    })
};

const PROTOCOL: ControlCommand = ControlCommand {
    summary: "Returns a reply of the given type.",
    syntax: "string|integer|double|bignum|null|array|set|map|attrib|push|verbatim|true|false",
    ..debug("protocol", 3, |_, args, writer| write_sample(args, writer))
};

fn digest(_: &mut Local<'_>, _: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    let mut databases: std::collections::BTreeMap<u16, Digest> = std::collections::BTreeMap::new();
    for answer in answers {
        let Answer::Digest(parts) = answer else { unreachable!("a core digested to {answer:?}") };
        for (database, digest) in parts {
            databases.entry(database).or_default().join(digest);
        }
    }
    writer.simple(&dataset_digest(databases).to_string());
    Ok(())
}

fn ask_keys(local: &Local<'_>, args: Args<'_>, kind: DebugQuestion) -> Question {
    let database = local.session.database;
    Question::Debug { kind, keys: args.iter().skip(2).map(|key| (database, key.to_vec())).collect() }
}

/// The cores' answers by place in the question.
fn by_place(answers: Vec<Answer>) -> std::collections::BTreeMap<usize, String> {
    answers
        .into_iter()
        .flat_map(|answer| match answer {
            Answer::Described(parts) => parts,
            other => unreachable!("a core described keys as {other:?}"),
        })
        .collect()
}

fn digest_value(_: &mut Local<'_>, args: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    let digests = by_place(answers);
    writer.array(args.len() - 2);
    for place in 0..args.len() - 2 {
        let digest = digests.get(&place).cloned().unwrap_or_else(|| Digest::default().to_string());
        writer.simple(&digest);
    }
    Ok(())
}

fn object(_: &mut Local<'_>, _: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    match by_place(answers).remove(&0) {
        Some(text) => writer.simple(&text),
        None => return Err(Refusal::NO_SUCH_KEY),
    }
    Ok(())
}

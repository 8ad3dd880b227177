//! EVAL and its kin, and SCRIPT.

use command::{Access, Begin, Find, Flag, Group, KeySpec, Refusal, Span};
use script::Script;

use super::{
    Answer, Body, ControlCommand, Naming, Question, container, join_done, local, node, plain, sum_counts, write_help,
};

const CALL_FLAGS: &[Flag] = &[Flag::Noscript, Flag::Stale, Flag::SkipMonitor, Flag::NoMandatoryKeys, Flag::MovableKeys];
const CALL_RO_FLAGS: &[Flag] =
    &[Flag::Readonly, Flag::Noscript, Flag::Stale, Flag::SkipMonitor, Flag::NoMandatoryKeys, Flag::MovableKeys];

const fn keys(access: Access, notes: &'static [&'static str]) -> KeySpec {
    KeySpec { access, begin: Begin::Index(2), find: Find::Counted { count: 0, first: 1, step: 1 }, notes }
}

const KEYS: &[KeySpec] = &[keys(
    Access::ReadWrite,
    &["access", "update", "We cannot tell how the keys will be used so we assume the worst, RW and UPDATE"],
)];
const KEYS_RO: &[KeySpec] = &[keys(
    Access::Read,
    &["access", "We cannot tell how the keys will be used so we assume the worst, RO and ACCESS"],
)];
const KEYS_OF_DIGEST: &[KeySpec] = &[keys(Access::ReadWrite, &["access", "update"])];
const KEYS_OF_DIGEST_RO: &[KeySpec] = &[keys(Access::Read, &["access"])];

pub(super) const fn call(name: &'static str, naming: Naming) -> ControlCommand {
    ControlCommand {
        since: "2.6.0",
        group: Group::Scripting,
        complexity: "Depends on the script that is executed.",
        flags: CALL_FLAGS,
        keys: KEYS,
        span: Span::Keys,
        ..plain(name, -3, Body::Script { naming, is_read_only: false })
    }
}

pub(super) const fn call_ro(name: &'static str, naming: Naming) -> ControlCommand {
    ControlCommand {
        since: "7.0.0",
        flags: CALL_RO_FLAGS,
        keys: KEYS_RO,
        body: Body::Script { naming, is_read_only: true },
        ..call(name, naming)
    }
}

pub(super) const EVAL: ControlCommand = ControlCommand {
    summary: "Runs a script in Lua.",
    syntax: "script numkeys [key [key ...]] [arg [arg ...]]",
    ..call("eval", Naming::Text)
};

pub(super) const EVAL_RO: ControlCommand = ControlCommand {
    summary: "Runs a script in Lua that may write nothing.",
    syntax: "script numkeys [key [key ...]] [arg [arg ...]]",
    ..call_ro("eval_ro", Naming::Text)
};

pub(super) const EVALSHA: ControlCommand = ControlCommand {
    summary: "Runs a cached script, by the SHA-1 of its text.",
    syntax: "sha1 numkeys [key [key ...]] [arg [arg ...]]",
    keys: KEYS_OF_DIGEST,
    ..call("evalsha", Naming::Digest)
};

pub(super) const EVALSHA_RO: ControlCommand = ControlCommand {
    summary: "Runs a cached script, by the SHA-1 of its text, which may write nothing.",
    syntax: "sha1 numkeys [key [key ...]] [arg [arg ...]]",
    keys: KEYS_OF_DIGEST_RO,
    ..call_ro("evalsha_ro", Naming::Digest)
};

/// SCRIPT KILL while a function runs, or the other way round.
pub(super) const fn of_other_kind(asked_for_function: bool) -> &'static str {
    if asked_for_function {
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
    } else {
        "BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE."
    }
}

pub(super) const NOT_BUSY: &str = "NOTBUSY No scripts in execution right now.";

const SUBCOMMANDS: &[ControlCommand] = &[
    ControlCommand {
        since: "3.2.0",
        group: Group::Scripting,
        summary: "Refused: there is no debugger.",
        syntax: "YES | SYNC | NO",
        flags: &[Flag::Noscript],
        ..local("debug", 3, |_, args, writer| {
            if args.at(2).eq_ignore_ascii_case(b"no") {
                writer.ok();
                return Ok(());
            }
            if !args.at(2).eq_ignore_ascii_case(b"yes") && !args.at(2).eq_ignore_ascii_case(b"sync") {
                return Err(Refusal::new("ERR Use SCRIPT DEBUG YES/SYNC/NO"));
            }
            Err(Refusal::new("ERR There is no debugger for scripts"))
        })
    },
    ControlCommand {
        since: "2.6.0",
        group: Group::Scripting,
        summary: "Returns which scripts are cached.",
        syntax: "sha1 [sha1 ...]",
        complexity: "O(N log M) for N digests and M scripts.",
        flags: &[Flag::Noscript],
        tips: &["request_policy:all_shards", "response_policy:agg_logical_and"],
        ..local("exists", -3, |local, args, writer| {
            writer.array(args.len() - 2);
            for name in args.iter().skip(2) {
                writer.integer(i64::from(local.core.scripting.cache.named(name).is_some()));
            }
            Ok(())
        })
    },
    ControlCommand {
        since: "2.6.0",
        group: Group::Scripting,
        summary: "Forgets all scripts.",
        syntax: "[ASYNC | SYNC]",
        complexity: "O(N) for N scripts.",
        flags: &[Flag::Noscript],
        tips: super::ON_ALL_NODES,
        ..node(
            "flush",
            -2,
            |_, args| {
                let is_known = |word: &[u8]| word.eq_ignore_ascii_case(b"sync") || word.eq_ignore_ascii_case(b"async");
                if args.len() > 3 || args.get(2).is_some_and(|word| !is_known(word)) {
                    return Err(Refusal::new("ERR SCRIPT FLUSH only support SYNC|ASYNC option"));
                }
                Ok(Question::ForgetScripts)
            },
            join_done,
        )
    },
    ControlCommand {
        since: "5.0.0",
        group: Group::Scripting,
        summary: "Lists the subcommands.",
        flags: &[Flag::Loading, Flag::Stale],
        ..local("help", 2, |_, _, writer| {
            write_help(writer, "SCRIPT", SUBCOMMANDS);
            Ok(())
        })
    },
    ControlCommand {
        since: "2.6.0",
        group: Group::Scripting,
        summary: "Ends the script that is running. Nothing of it remains.",
        flags: &[Flag::Noscript, Flag::AllowBusy],
        tips: &["request_policy:all_shards", "response_policy:one_succeeded"],
        ..node(
            "kill",
            2,
            |_, _| Ok(Question::KillScript { is_function: false }),
            |_, _, answers, writer| {
                join_kill(answers)?;
                writer.ok();
                Ok(())
            },
        )
    },
    ControlCommand {
        since: "2.6.0",
        group: Group::Scripting,
        summary: "Compiles a script and caches it.",
        syntax: "script",
        complexity: "O(N) for a text of N bytes.",
        flags: &[Flag::Noscript, Flag::Stale],
        tips: super::ON_ALL_NODES,
        ..node(
            "load",
            3,
            |_, args| Ok(Question::LoadScript(Script::parse(args.at(2)).map_err(Refusal::new)?)),
            |_, args, answers, writer| {
                super::all_done(answers)?;
                let script = Script::parse(args.at(2)).map_err(Refusal::new)?;
                writer.bulk(script.name().as_bytes());
                Ok(())
            },
        )
    },
    ControlCommand {
        since: "8.0.0",
        group: Group::Scripting,
        summary: "Returns the text of a script.",
        syntax: "sha1",
        flags: &[Flag::Noscript],
        ..local("show", 3, |local, args, writer| {
            let script = local.core.scripting.cache.named(args.at(2)).ok_or_else(crate::scripts::route::no_script)?;
            writer.bulk(&script.text);
            Ok(())
        })
    },
];

pub(super) const SCRIPT: ControlCommand = ControlCommand {
    since: "2.6.0",
    group: Group::Scripting,
    summary: "Commands on cached scripts.",
    subcommands: SUBCOMMANDS,
    ..container("script")
};

/// Done if a script was ended somewhere.
pub(super) fn join_kill(answers: Vec<Answer>) -> Result<(), Refusal> {
    let (refused, counted): (Vec<_>, Vec<_>) =
        answers.into_iter().partition(|answer| matches!(answer, Answer::Refused(_)));
    if sum_counts(counted) > 0 {
        return Ok(());
    }
    super::all_done(refused)?;
    Err(Refusal::new(NOT_BUSY))
}

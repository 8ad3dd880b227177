//! FCALL and FUNCTION.

use command::{Flag, Group, Refusal};

use super::scripting::{call, call_ro, join_kill};
use super::{Answer, Body, Changing, ControlCommand, Naming, Question, container, local, node, plain, write_help};
use crate::libraries;

pub(super) const FCALL: ControlCommand = ControlCommand {
    since: "7.0.0",
    summary: "Calls a function.",
    syntax: "function numkeys [key [key ...]] [arg [arg ...]]",
    complexity: "Depends on the function that is executed.",
    ..call("fcall", Naming::Function)
};

pub(super) const FCALL_RO: ControlCommand = ControlCommand {
    summary: "Calls a function that may write nothing.",
    syntax: "function numkeys [key [key ...]] [arg [arg ...]]",
    complexity: "Depends on the function that is executed.",
    ..call_ro("fcall_ro", Naming::Function)
};

const fn changing(name: &'static str, arity: i32, changing: Changing) -> ControlCommand {
    ControlCommand {
        group: Group::Scripting,
        since: "7.0.0",
        flags: &[Flag::Write, Flag::Noscript],
        tips: &["request_policy:all_shards", "response_policy:all_succeeded"],
        ..plain(name, arity, Body::Libraries(changing))
    }
}

const SUBCOMMANDS: &[ControlCommand] = &[
    ControlCommand { summary: "Removes a library.", syntax: "library-name", ..changing("delete", 3, Changing::Delete) },
    ControlCommand {
        since: "7.0.0",
        group: Group::Scripting,
        summary: "Returns all libraries in a form that RESTORE understands.",
        complexity: "O(N) for N bytes of code.",
        flags: &[Flag::Noscript],
        ..local("dump", 2, |local, _, writer| {
            writer.bulk(&libraries::dump(&local.core.scripting.libraries));
            Ok(())
        })
    },
    ControlCommand {
        summary: "Removes all libraries.",
        syntax: "[ASYNC | SYNC]",
        complexity: "O(N) for N libraries.",
        ..changing("flush", -2, Changing::Flush)
    },
    ControlCommand {
        since: "7.0.0",
        group: Group::Scripting,
        summary: "Lists the subcommands.",
        flags: &[Flag::Loading, Flag::Stale],
        ..local("help", 2, |_, _, writer| {
            write_help(writer, "FUNCTION", SUBCOMMANDS);
            Ok(())
        })
    },
    ControlCommand {
        since: "7.0.0",
        group: Group::Scripting,
        summary: "Ends the function that is running. Nothing of it remains.",
        flags: &[Flag::Noscript, Flag::AllowBusy],
        tips: &["request_policy:all_shards", "response_policy:one_succeeded"],
        ..node(
            "kill",
            2,
            |_, _| Ok(Question::KillScript { is_function: true }),
            |_, _, answers, writer| {
                join_kill(answers)?;
                writer.ok();
                Ok(())
            },
        )
    },
    ControlCommand {
        since: "7.0.0",
        group: Group::Scripting,
        summary: "Lists libraries with their functions.",
        syntax: "[LIBRARYNAME library-name-pattern] [WITHCODE]",
        complexity: "O(N) for N functions.",
        flags: &[Flag::Noscript],
        tips: &["nondeterministic_output_order"],
        ..local("list", -2, list)
    },
    ControlCommand {
        summary: "Loads a library.",
        syntax: "[REPLACE] function-code",
        flags: &[Flag::Write, Flag::Denyoom, Flag::Noscript],
        ..changing("load", -3, Changing::Load)
    },
    ControlCommand {
        summary: "Restores the libraries that DUMP returned.",
        syntax: "serialized-value [FLUSH | APPEND | REPLACE]",
        complexity: "O(N) for N functions.",
        flags: &[Flag::Write, Flag::Denyoom, Flag::Noscript],
        ..changing("restore", -3, Changing::Restore)
    },
    ControlCommand {
        since: "7.0.0",
        group: Group::Scripting,
        summary: "Returns which function is running, and how many functions there are.",
        flags: &[Flag::Noscript, Flag::AllowBusy],
        tips: &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"],
        ..node("stats", 2, |_, _| Ok(Question::RunningScript), stats)
    },
];

pub(super) const FUNCTION: ControlCommand = ControlCommand {
    since: "7.0.0",
    group: Group::Scripting,
    summary: "Commands on libraries of functions.",
    subcommands: SUBCOMMANDS,
    ..container("function")
};

fn list(local: &mut super::Local<'_>, args: resp::Args<'_>, writer: &mut resp::Writer) -> super::Outcome {
    let mut pattern = None;
    let mut with_code = false;
    let mut words = args.iter().skip(2);
    while let Some(word) = words.next() {
        if !with_code && word.eq_ignore_ascii_case(b"withcode") {
            with_code = true;
        } else if pattern.is_none() && word.eq_ignore_ascii_case(b"libraryname") {
            pattern = Some(words.next().ok_or(Refusal::new("ERR library name argument was not given"))?);
        } else {
            return Err(Refusal::new(format!("ERR Unknown argument {}", String::from_utf8_lossy(word))));
        }
    }
    let is_wanted = |name: &str| pattern.is_none_or(|pattern| keyspace::glob::matches(pattern, name.as_bytes()));
    let wanted: Vec<_> =
        local.core.scripting.libraries.iter().filter(|loaded| is_wanted(&loaded.library.name)).collect();
    writer.array(wanted.len());
    for loaded in wanted {
        writer.map(if with_code { 4 } else { 3 });
        writer.bulk(b"library_name");
        writer.bulk(loaded.library.name.as_bytes());
        writer.bulk(b"engine");
        writer.bulk(b"LUA");
        writer.bulk(b"functions");
        writer.array(loaded.functions.len());
        for function in &loaded.functions {
            writer.map(3);
            writer.bulk(b"name");
            writer.bulk(function.name.as_bytes());
            writer.bulk(b"description");
            writer.bulk_or_null(function.description.as_deref());
            writer.bulk(b"flags");
            let flags: Vec<_> = function.flags.names().collect();
            writer.set(flags.len());
            flags.iter().for_each(|flag| writer.simple(flag));
        }
        if with_code {
            writer.bulk(b"library_code");
            writer.bulk(&loaded.library.text);
        }
    }
    Ok(())
}

fn stats(
    local: &mut super::Local<'_>,
    _: resp::Args<'_>,
    answers: Vec<Answer>,
    writer: &mut resp::Writer,
) -> super::Outcome {
    let running = answers.into_iter().find_map(|answer| match answer {
        Answer::Running(running) => running,
        other => unreachable!("a core told of a running script {other:?}"),
    });
    writer.map(2);
    writer.bulk(b"running_script");
    match running {
        None => writer.null(),
        Some(running) => {
            writer.map(3);
            writer.bulk(b"name");
            writer.bulk(running.name.as_bytes());
            writer.bulk(b"command");
            writer.array(running.words.len());
            running.words.iter().for_each(|word| writer.bulk(word));
            writer.bulk(b"duration_ms");
            writer.integer(running.duration_ms as i64);
        }
    }
    writer.bulk(b"engines");
    writer.map(1);
    writer.bulk(b"LUA");
    writer.map(2);
    writer.bulk(b"libraries_count");
    writer.count(local.core.scripting.libraries.len());
    writer.bulk(b"functions_count");
    writer.count(local.core.scripting.libraries.function_count());
    Ok(())
}

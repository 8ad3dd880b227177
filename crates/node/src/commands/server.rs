//! Commands on the node: persistence, time, slow commands, and what clients ask for when they connect.

use command::{Flag, Group, Refusal};
use group::host::AppendFsync;
use group::ids::Level;
use resp::{Args, Writer};

use super::info::{figures_of, last_save_seconds};
use super::{Answer, Body, ControlCommand, Local, Outcome, Question, container, local, node, number, plain};
use crate::event::{Action, FollowersForm};
use crate::limits;
use crate::replication_wait;

const ADMIN: &[Flag] = &[Flag::Admin, Flag::Noscript, Flag::NoAsyncLoading];

pub(super) const TIME: ControlCommand = ControlCommand {
    since: "2.6.0",
    summary: "Returns the node's wall clock: seconds and microseconds.",
    flags: &[Flag::Loading, Flag::Stale, Flag::Fast],
    tips: &["nondeterministic_output"],
    ..local("time", 1, |local, _, writer| {
        let unix_ms = local.now.unix.0;
        writer.array(2);
        writer.bulk((unix_ms / 1_000).to_string().as_bytes());
        writer.bulk((unix_ms % 1_000 * 1_000).to_string().as_bytes());
        Ok(())
    })
};

pub(super) const MONITOR: ControlCommand = ControlCommand {
    summary: "Shows every command that clients send, until RESET or the end of the connection.",
    flags: &[Flag::Admin, Flag::Noscript, Flag::Loading, Flag::Stale],
    ..node(
        "monitor",
        1,
        |local, _| {
            if local.is_in_transaction {
                return Err(Refusal::new("ERR MONITOR isn't allowed for DENY BLOCKING client"));
            }
            local.core.monitors.add(local.session.id);
            Ok(Question::Monitoring(local.core.core))
        },
        super::join_done,
    )
};

pub(super) const LASTSAVE: ControlCommand = ControlCommand {
    summary: "Returns when the last checkpoint of all data was finished.",
    flags: &[Flag::Loading, Flag::Stale, Flag::Fast],
    categories: &["@admin", "@dangerous"],
    tips: &["nondeterministic_output"],
    ..node(
        "lastsave",
        1,
        |_, _| Ok(Question::Figures),
        |local, _, answers, writer| {
            writer.integer(last_save_seconds(local.core.process.started.0, &figures_of(answers)));
            Ok(())
        },
    )
};

pub(super) const BGSAVE: ControlCommand = ControlCommand {
    summary: "Begins a checkpoint of all data.",
    syntax: "[SCHEDULE]",
    flags: ADMIN,
    ..node(
        "bgsave",
        -1,
        |_, args| match args.get(1) {
            None => Ok(Question::Checkpoint),
            Some(word) if word.eq_ignore_ascii_case(b"schedule") && args.len() == 2 => Ok(Question::Checkpoint),
            Some(_) => Err(Refusal::SYNTAX),
        },
        |_, _, answers, writer| {
            super::all_done(answers)?;
            writer.simple("Background saving started");
            Ok(())
        },
    )
};

pub(super) const BGREWRITEAOF: ControlCommand = ControlCommand {
    summary: "Begins a checkpoint of all data, and drops the log before it afterwards.",
    flags: ADMIN,
    ..node(
        "bgrewriteaof",
        1,
        |_, _| Ok(Question::Checkpoint),
        |_, _, answers, writer| {
            super::all_done(answers)?;
            writer.simple("Background append only file rewriting started");
            Ok(())
        },
    )
};

pub(super) const SAVE: ControlCommand = ControlCommand {
    summary: "Makes a checkpoint of all data and replies when it is finished. Other clients continue.",
    complexity: "O(N) where N is the total number of keys in all databases",
    flags: &[Flag::Admin, Flag::Noscript, Flag::NoAsyncLoading, Flag::NoMulti],
    ..node("save", 1, |_, _| Ok(Question::FinishCheckpoint), super::join_done)
};

pub(super) const SHUTDOWN: ControlCommand = ControlCommand {
    summary: "Stops the server. Acknowledged writes are kept, with any option.",
    syntax: "[NOSAVE | SAVE] [NOW] [FORCE] [ABORT]",
    flags: &[Flag::Admin, Flag::Noscript, Flag::Loading, Flag::Stale, Flag::NoMulti, Flag::AllowBusy],
    ..local("shutdown", -1, |local, args, _| {
        let (mut waits, mut saves, mut aborts) = (true, [false; 2], false);
        for word in args.iter().skip(1) {
            match word.to_ascii_lowercase().as_slice() {
                b"save" => saves[0] = true,
                b"nosave" => saves[1] = true,
                b"force" => {}
                b"now" => waits = false,
                b"abort" => aborts = true,
                _ => return Err(Refusal::SYNTAX),
            }
        }
        let is_plain_abort = args.iter().skip(1).all(|word| word.eq_ignore_ascii_case(b"abort"));
        if saves == [true; 2] || (aborts && !is_plain_abort) {
            return Err(Refusal::SYNTAX);
        }
        if aborts {
            return Err(Refusal::new("ERR No shutdown in progress."));
        }
        local.actions.push(Action::Shutdown { waits });
        local.session.is_closing = true;
        Ok(())
    })
};

// ---- slow commands ------------------------------------------------------------------------------------------------

pub(super) const SLOWLOG: ControlCommand = ControlCommand {
    since: "2.2.12",
    summary: "Commands on the log of slow commands.",
    subcommands: &[
        ControlCommand {
            summary: "Returns the latest slow commands.",
            syntax: "[count]",
            flags: &[Flag::Admin, Flag::Loading, Flag::Stale],
            tips: &["request_policy:all_nodes", "nondeterministic_output"],
            ..node("get", -2, slowlog_question, slowlog_get)
        },
        ControlCommand {
            summary: "Returns how many slow commands are remembered.",
            flags: &[Flag::Admin, Flag::Loading, Flag::Stale],
            tips: &["request_policy:all_nodes", "response_policy:agg_sum", "nondeterministic_output"],
            ..node("len", 2, |_, _| Ok(Question::Slowlog), slowlog_len)
        },
        ControlCommand {
            summary: "Forgets all slow commands.",
            flags: &[Flag::Admin, Flag::Loading, Flag::Stale],
            tips: super::ON_ALL_NODES,
            ..node("reset", 2, |_, _| Ok(Question::ResetSlowlog), super::join_done)
        },
        ControlCommand {
            summary: "Lists the subcommands.",
            flags: &[Flag::Loading, Flag::Stale],
            ..local("help", 2, |_, _, writer| {
                super::write_help(writer, "SLOWLOG", SLOWLOG.subcommands);
                Ok(())
            })
        },
    ],
    ..container("slowlog")
};

pub(super) const COMMANDLOG: ControlCommand = ControlCommand {
    since: "8.1.0",
    summary: "Commands on the log of slow commands, as Valkey names it.",
    subcommands: &[
        ControlCommand {
            since: "8.1.0",
            summary: "Returns the latest slow commands.",
            syntax: "count type",
            flags: &[Flag::Admin, Flag::Loading, Flag::Stale],
            tips: &["request_policy:all_nodes", "nondeterministic_output"],
            ..node(
                "get",
                4,
                |local, args| {
                    check_log_type(args.at(3))?;
                    slowlog_question(local, args)
                },
                slowlog_get,
            )
        },
        ControlCommand {
            since: "8.1.0",
            summary: "Lists the subcommands.",
            flags: &[Flag::Loading, Flag::Stale],
            ..local("help", 2, |_, _, writer| {
                super::write_help(writer, "COMMANDLOG", COMMANDLOG.subcommands);
                Ok(())
            })
        },
        ControlCommand {
            since: "8.1.0",
            summary: "Returns how many slow commands are remembered.",
            syntax: "type",
            flags: &[Flag::Admin, Flag::Loading, Flag::Stale],
            tips: &["request_policy:all_nodes", "response_policy:agg_sum", "nondeterministic_output"],
            ..node("len", 3, log_of_type, slowlog_len)
        },
        ControlCommand {
            since: "8.1.0",
            summary: "Forgets all slow commands.",
            syntax: "type",
            flags: &[Flag::Admin, Flag::Loading, Flag::Stale],
            tips: super::ON_ALL_NODES,
            ..node(
                "reset",
                3,
                |_, args| {
                    check_log_type(args.at(2))?;
                    Ok(Question::ResetSlowlog)
                },
                super::join_done,
            )
        },
    ],
    ..container("commandlog")
};

fn log_of_type(_: &mut Local<'_>, args: Args<'_>) -> Result<Question, Refusal> {
    check_log_type(args.at(2))?;
    Ok(Question::Slowlog)
}

/// There is one log, that of slow commands.
fn check_log_type(word: &[u8]) -> Outcome {
    match word.to_ascii_lowercase().as_slice() {
        b"slow" => Ok(()),
        b"large-request" | b"large-reply" => {
            Err(Refusal::new("ERR Large requests and replies are not logged; the type that is kept is slow"))
        }
        _ => Err(Refusal::new("ERR type should be one of the following: slow, large-request, large-reply")),
    }
}

fn slowlog_len(local: &mut Local<'_>, _: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    writer.count(slow_entries(local, answers).len());
    Ok(())
}

fn slowlog_question(_: &mut Local<'_>, args: Args<'_>) -> Result<Question, Refusal> {
    let is_slowlog = args.at(0).eq_ignore_ascii_case(b"slowlog");
    if is_slowlog && args.len() > 3 {
        return Err(Refusal::wrong_arity("slowlog|get"));
    }
    if let Some(count) = args.get(2)
        && number(count).is_none_or(|count| count < -1)
    {
        return Err(Refusal::new("ERR count should be greater than or equal to -1"));
    }
    Ok(Question::Slowlog)
}

/// The entries of all cores, the latest first, as many as are kept.
fn slow_entries(local: &Local<'_>, answers: Vec<Answer>) -> Vec<crate::stats::counters::SlowEntry> {
    let mut entries: Vec<_> = answers
        .into_iter()
        .flat_map(|answer| match answer {
            Answer::Slowlog(entries) => entries,
            other => unreachable!("a core told {other:?} for its slow commands"),
        })
        .collect();
    entries.sort_by_key(|entry| std::cmp::Reverse((entry.ended, entry.number)));
    entries.truncate(local.core.settings.slow_count_max);
    entries
}

fn slowlog_get(local: &mut Local<'_>, args: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    let mut entries = slow_entries(local, answers);
    let count = args.get(2).and_then(number).unwrap_or(10);
    if count >= 0 {
        entries.truncate(count as usize);
    }
    writer.array(entries.len());
    for entry in entries {
        writer.array(6);
        writer.integer(entry.number as i64);
        writer.integer(entry.unix_seconds);
        writer.integer(entry.took_us as i64);
        writer.array(entry.words.len());
        for word in &entry.words {
            writer.bulk(word);
        }
        writer.bulk(entry.address.as_bytes());
        writer.bulk(&entry.name);
    }
    Ok(())
}

pub(super) const MEMORY: ControlCommand = ControlCommand {
    since: "4.0.0",
    summary: "Commands on memory.",
    complexity: "Depends on subcommand.",
    subcommands: &[
        ControlCommand {
            since: "4.0.0",
            summary: "Shows what is unusual about the use of memory.",
            tips: &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"],
            ..node("doctor", 2, |_, _| Ok(Question::Figures), memory_doctor)
        },
        ControlCommand {
            since: "4.0.0",
            summary: "Lists the subcommands.",
            flags: &[Flag::Loading, Flag::Stale],
            ..local("help", 2, |_, _, writer| {
                super::write_help(writer, "MEMORY", MEMORY.subcommands);
                Ok(())
            })
        },
        ControlCommand {
            since: "4.0.0",
            summary: "Shows what the allocator has given out, and what it holds.",
            tips: &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"],
            ..local("malloc-stats", 2, |local, _, writer| {
                let report = &local.core.host.report;
                let text = format!(
                    "___ Begin jemalloc statistics ___\nAllocated: {}, active: {}, resident: {}\n\
                     --- End jemalloc statistics ---\n",
                    report.used_memory_bytes, report.allocator_active_bytes, report.allocator_resident_bytes
                );
                writer.verbatim("txt", text.as_bytes());
                Ok(())
            })
        },
        ControlCommand {
            since: "4.0.0",
            summary: "Accepted, without effect: the allocator gives memory back to the system by itself.",
            tips: &["request_policy:all_shards", "response_policy:all_succeeded"],
            ..local("purge", 2, |_, _, writer| {
                writer.ok();
                Ok(())
            })
        },
        ControlCommand {
            since: "4.0.0",
            summary: "Shows what memory is used for.",
            tips: &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"],
            ..node("stats", 2, |_, _| Ok(Question::Figures), memory_stats)
        },
    ],
    ..container("memory")
};

/// A value of MEMORY STATS.
enum Measure {
    /// Bytes, or a number of keys.
    Count(u64),
    /// A difference of bytes.
    Difference(i64),
    /// A ratio, or a share in percent.
    Ratio(f64),
}

fn memory_stats(local: &mut Local<'_>, _: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    use Measure::{Count, Difference, Ratio};
    let figures = figures_of(answers);
    let core = &*local.core;
    let report = &core.host.report;
    let sum = |field: fn(&super::question::Figures) -> u64| figures.iter().map(field).sum::<u64>();
    let keys: u64 = figures.iter().flat_map(|figures| &figures.databases).map(|(keys, ..)| keys).sum();
    let dataset = sum(|figures| figures.keyspace_bytes);
    // The host measures once a second; what has changed since is known for keys.
    let used = (report.used_memory_bytes + dataset).saturating_sub(sum(|figures| figures.reported_keyspace_bytes));
    let peak = core.memory.peak_bytes.max(used);
    let links: u64 = report.links.iter().map(|link| link.waiting_bytes).sum();
    let lua = sum(|figures| figures.lua_bytes);
    let percent = |part: u64, whole: u64| Ratio(part as f64 * 100.0 / whole.max(1) as f64);
    let mut lines = vec![
        ("peak.allocated", Count(peak)),
        ("total.allocated", Count(used)),
        ("startup.allocated", Count(core.memory.startup_bytes)),
        ("replication.backlog", Count(0)),
        ("clients.slaves", Count(0)),
        ("clients.normal", Count(sum(|figures| figures.session_bytes))),
        ("cluster.links", Count(links)),
        ("aof.buffer", Count(report.journal.queue_bytes)),
        ("lua.caches", Count(lua)),
        ("functions.caches", Count(0)),
        ("overhead.total", Count(used.saturating_sub(dataset))),
        ("keys.count", Count(keys)),
        ("keys.bytes-per-key", Count(dataset.checked_div(keys).unwrap_or(0))),
        ("dataset.bytes", Count(dataset)),
        ("dataset.percentage", percent(dataset, used)),
        ("peak.percentage", percent(used, peak)),
        ("allocator.allocated", Count(report.used_memory_bytes)),
        ("allocator.active", Count(report.allocator_active_bytes)),
        ("allocator.resident", Count(report.allocator_resident_bytes)),
    ];
    for (ratio, difference, more, less) in [
        (
            "allocator-fragmentation.ratio",
            "allocator-fragmentation.bytes",
            report.allocator_active_bytes,
            report.used_memory_bytes,
        ),
        ("allocator-rss.ratio", "allocator-rss.bytes", report.allocator_resident_bytes, report.allocator_active_bytes),
        ("rss-overhead.ratio", "rss-overhead.bytes", report.resident_bytes, report.allocator_resident_bytes),
        ("fragmentation", "fragmentation.bytes", report.resident_bytes, report.used_memory_bytes),
    ] {
        lines.push((ratio, Ratio(more as f64 / less.max(1) as f64)));
        lines.push((difference, Difference(more.cast_signed().saturating_sub(less.cast_signed()))));
    }
    writer.map(lines.len());
    for (name, measure) in lines {
        writer.bulk(name.as_bytes());
        match measure {
            Count(count) => writer.integer(count.cast_signed()),
            Difference(difference) => writer.integer(difference),
            Ratio(ratio) => writer.double_text(&ratio.to_string()),
        }
    }
    Ok(())
}

fn memory_doctor(local: &mut Local<'_>, _: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    /// Below this, ratios of memory say nothing.
    const LITTLE_BYTES: u64 = 5 << 20;
    let figures = figures_of(answers);
    let report = &local.core.host.report;
    let used = report.used_memory_bytes;
    let dataset: u64 = figures.iter().map(|figures| figures.keyspace_bytes).sum();
    let sessions: u64 = figures.iter().map(|figures| figures.session_bytes).sum();
    let mut text = String::new();
    if dataset < LITTLE_BYTES {
        text.push_str("The data take less than 5 MiB: too little to tell anything of how memory is used.\n");
    } else {
        let peak = local.core.memory.peak_bytes;
        let found = [
            (peak > used + used / 2, "Peak: more than 150% of what is used now was used before."),
            (
                report.resident_bytes > used / 5 * 7,
                "Fragmentation: the process holds more than 140% of what is allocated.",
            ),
            (sessions > dataset / 2, "Clients: their buffers take more than half of what the data take."),
            (used > dataset * 3, "Overhead: two thirds of what is allocated are no data."),
        ];
        for (_, line) in found.into_iter().filter(|(is_so, _)| *is_so) {
            text.push_str(line);
            text.push('\n');
        }
        if text.is_empty() {
            text.push_str("Nothing is unusual about the memory that is used.\n");
        }
    }
    writer.verbatim("txt", text.as_bytes());
    Ok(())
}

// ---- modules --------------------------------------------------------------------------------------------------------

/// Modules of which the commands are built in, each with the version after which they are made: 2.8.0, and the only one
/// of Redis 8's own module.
pub(super) const MODULES: [(&str, i64); 3] = [("ReJSON", 20_800), ("bf", 20_800), ("vectorset", 1)];

/// Writes which modules there are, as MODULE LIST and HELLO answer it.
pub(super) fn write_modules(writer: &mut Writer) {
    writer.array(MODULES.len());
    for (name, version) in MODULES {
        writer.map(4);
        writer.bulk(b"name");
        writer.bulk(name.as_bytes());
        writer.bulk(b"ver");
        writer.integer(version);
        writer.bulk(b"path");
        writer.bulk(b"");
        writer.bulk(b"args");
        writer.array(0);
    }
}

pub(super) const MODULE: ControlCommand = ControlCommand {
    since: "4.0.0",
    summary: "Commands on modules; some are built in.",
    complexity: "Depends on subcommand.",
    subcommands: &[
        ControlCommand {
            since: "5.0.0",
            summary: "Lists the subcommands.",
            flags: &[Flag::Loading, Flag::Stale],
            ..local("help", 2, |_, _, writer| {
                super::write_help(writer, "MODULE", MODULE.subcommands);
                Ok(())
            })
        },
        ControlCommand {
            since: "4.0.0",
            summary: "Lists modules: those with built-in commands.",
            complexity: "O(N) where N is the number of loaded modules.",
            flags: &[Flag::Admin, Flag::Noscript],
            tips: &["nondeterministic_output_order"],
            ..local("list", 2, |_, _, writer| {
                write_modules(writer);
                Ok(())
            })
        },
        ControlCommand {
            summary: "Refused: modules of Redis are not loaded.",
            syntax: "path [arg [arg ...]]",
            ..on_modules("load", -3, load_module)
        },
        ControlCommand {
            since: "7.0.0",
            summary: "Refused: modules of Redis are not loaded.",
            syntax: "path [CONFIG name value [CONFIG name value ...]] [ARGS arg [arg ...]]",
            ..on_modules("loadex", -3, load_module)
        },
        ControlCommand {
            summary: "Refused: what is built in stays.",
            syntax: "name",
            ..on_modules("unload", 3, |_, args, _| {
                let is_built_in = MODULES.iter().any(|(name, _)| name.as_bytes() == args.at(2));
                Err(Refusal::new(match is_built_in {
                    true => "ERR Error unloading module: the module can't be unloaded",
                    false => "ERR Error unloading module: no such module with that name",
                }))
            })
        },
    ],
    ..container("module")
};

const fn on_modules(name: &'static str, arity: i32, run: super::Run) -> ControlCommand {
    ControlCommand { since: "4.0.0", flags: ADMIN, ..local(name, arity, run) }
}

/// What a module that does not load is answered with; clients know the text. Why stands in the log, as it says.
fn load_module(local: &mut Local<'_>, args: Args<'_>, _: &mut Writer) -> Outcome {
    let path = args.at(2);
    let path = String::from_utf8_lossy(&path[..path.len().min(limits::LOGGED_PATH_BYTES_MAX)]);
    let line =
        format!("module {path:?} is not loaded: no modules are; JSON, filters, sketches and vector sets are built in");
    local.actions.push(Action::Log { level: Level::Warning, line });
    Err(Refusal::new("ERR Error loading the extension. Please check the server logs."))
}

// ---- replication --------------------------------------------------------------------------------------------------

pub(super) const FAILOVER: ControlCommand = ControlCommand {
    since: "6.2.0",
    summary: "Refused: leaders change by themselves, and HOLDFAST PREFER names preferred ones.",
    syntax: "[TO host port [FORCE]] [ABORT] [TIMEOUT milliseconds]",
    flags: &[Flag::Admin, Flag::Noscript, Flag::Stale],
    ..local("failover", -1, failover)
};

fn failover(local: &mut Local<'_>, args: Args<'_>, _: &mut Writer) -> Outcome {
    if local.core.settings.cluster_enabled || local.core.is_clustered {
        return Err(Refusal::new("ERR FAILOVER not allowed in cluster mode."));
    }
    if args.len() == 2 && args.at(1).eq_ignore_ascii_case(b"abort") {
        return Err(Refusal::new("ERR No failover in progress."));
    }
    let mut at = 1;
    while let Some(word) = args.get(at) {
        if word.eq_ignore_ascii_case(b"timeout") && at + 1 < args.len() {
            let timeout = number(args.at(at + 1)).ok_or(Refusal::NOT_AN_INTEGER)?;
            if timeout <= 0 {
                return Err(Refusal::new("ERR FAILOVER timeout must be greater than 0"));
            }
            at += 2;
        } else if word.eq_ignore_ascii_case(b"to") && at + 2 < args.len() {
            number(args.at(at + 2)).ok_or(Refusal::NOT_AN_INTEGER)?;
            at += 3;
        } else if word.eq_ignore_ascii_case(b"force") {
            at += 1;
        } else {
            return Err(Refusal::SYNTAX);
        }
    }
    Err(Refusal::new("ERR FAILOVER requires connected replicas."))
}

pub(super) const WAIT: ControlCommand = ControlCommand {
    since: "3.0.0",
    group: Group::Generic,
    summary: "Waits until enough others hold this connection's writes, or the time is up, and returns how many do.",
    syntax: "numreplicas timeout",
    flags: &[Flag::Blocking],
    categories: &["@connection"],
    tips: &["request_policy:all_shards", "response_policy:agg_min"],
    ..plain(
        "wait",
        3,
        Body::Driven(|core, session, ticket, args, actions| {
            let (wanted, timeout_ms) = replication_wait::numbers(args, 1)?;
            core.begin_holder_wait((session, ticket), wanted, timeout_ms, FollowersForm::Count, actions);
            Ok(())
        }),
    )
};

pub(super) const WAITAOF: ControlCommand = ControlCommand {
    since: "7.2.0",
    group: Group::Generic,
    summary: "Returns whether this connection's writes are on disk here, and on how many others.",
    syntax: "numlocal numreplicas timeout",
    flags: &[Flag::Blocking],
    categories: &["@connection"],
    tips: &["request_policy:all_shards", "response_policy:agg_min"],
    ..plain(
        "waitaof",
        4,
        Body::Driven(|core, session, ticket, args, actions| {
            let local_count = number(args.at(1)).ok_or(Refusal::NOT_AN_INTEGER)?;
            if !(0..=1).contains(&local_count) {
                return Err(Refusal::new("ERR value is out of range, value must between 0 and 1"));
            }
            if number(args.at(2)).is_none_or(|wanted| wanted < 0) {
                return Err(Refusal::new("ERR value is out of range, must be positive"));
            }
            let (wanted, timeout_ms) = replication_wait::numbers(args, 2)?;
            // Every write of this connection has been answered, and with `always` that means: it is on disk.
            let had_less = core.sessions.get(session).is_some_and(|session| session.had_less);
            let is_synced = core.context.settings.append_fsync == AppendFsync::Always && !had_less;
            let form = FollowersForm::OnDisk(i64::from(is_synced));
            core.begin_holder_wait((session, ticket), wanted, timeout_ms, form, actions);
            Ok(())
        }),
    )
};

// ---- the rest -----------------------------------------------------------------------------------------------------

pub(super) const LOLWUT: ControlCommand = ControlCommand {
    since: "5.0.0",
    summary: "Returns the version.",
    syntax: "[VERSION version]",
    flags: &[Flag::Readonly, Flag::Fast],
    ..local("lolwut", -1, |_, _, writer| {
        // Tests of client libraries look for the words that Redis ends its picture with.
        let text = format!("Holdfast {}\nRedis ver. {}\n", env!("CARGO_PKG_VERSION"), super::REDIS_VERSION);
        writer.verbatim("txt", text.as_bytes());
        Ok(())
    })
};

//! CLIENT: looking at connections and ending them.

use command::{Flag, Group, Refusal};
use group::host::AppendFsync;
use group::ids::Now;
use resp::{Args, Writer};
use stdx::{Duration, Level};

use super::connection::{check_name, describe};
use super::question::ClientKind;
use super::{Answer, ControlCommand, Local, Outcome, Question, SessionFilter, container, local, node, number};
use crate::blocking::WaitEnd;
use crate::core::Core;
use crate::entry::Durability;
use crate::event::Action;
use crate::request_ids;
use crate::session::Replies;

const FLAGS: &[Flag] = &[Flag::Noscript, Flag::Loading, Flag::Stale];
const ADMIN: &[Flag] = &[Flag::Admin, Flag::Noscript, Flag::Loading, Flag::Stale];

const fn client(name: &'static str, arity: i32, run: super::Run) -> ControlCommand {
    ControlCommand { group: Group::Connection, flags: FLAGS, categories: &["@connection"], ..local(name, arity, run) }
}

pub(super) const CLIENT: ControlCommand = ControlCommand {
    group: Group::Connection,
    summary: "Commands on connections.",
    subcommands: &[
        ID,
        GETNAME,
        SETNAME,
        INFO,
        LIST,
        KILL,
        PAUSE,
        UNPAUSE,
        REPLY,
        NO_EVICT,
        NO_TOUCH,
        SETINFO,
        UNBLOCK,
        DURABILITY,
        REQUESTID,
        super::tracking::GETREDIR,
        super::tracking::TRACKINGINFO,
        super::tracking::CACHING,
        super::tracking::TRACKING,
        HELP,
    ],
    ..container("client")
};

const ID: ControlCommand = ControlCommand {
    summary: "Returns the connection's number.",
    ..client("id", 2, |local, _, writer| {
        writer.integer(local.session.id.serial as i64);
        Ok(())
    })
};

const GETNAME: ControlCommand = ControlCommand {
    summary: "Returns the connection's name.",
    ..client("getname", 2, |local, _, writer| {
        match local.session.options.name.as_slice() {
            b"" => writer.null(),
            name => writer.bulk(name),
        }
        Ok(())
    })
};

const SETNAME: ControlCommand = ControlCommand {
    summary: "Names the connection.",
    syntax: "connection-name",
    tips: super::ON_ALL_NODES,
    ..client("setname", 3, |local, args, writer| {
        check_name(args.at(2))?;
        local.session.options.name = args.at(2).to_vec();
        writer.ok();
        Ok(())
    })
};

const INFO: ControlCommand = ControlCommand {
    summary: "Describes this connection.",
    tips: &["nondeterministic_output"],
    ..client("info", 2, |local, _, writer| {
        let line = describe(local.session, local.core, local.now) + "\n";
        writer.verbatim("txt", line.as_bytes());
        Ok(())
    })
};

const DURABILITY: ControlCommand = ControlCommand {
    summary: "Sets when changes of this connection count as kept.",
    syntax: "<SERVER | DISK | MEMORY | ALL> [ONCE]",
    since: "0.1.0",
    ..client("durability", -3, durability)
};

fn durability(local: &mut Local<'_>, args: Args<'_>, writer: &mut Writer) -> Outcome {
    let settings = &local.core.settings;
    let (level, by_all) = match args.at(2).to_ascii_lowercase().as_slice() {
        b"server" => (Durability::Server, false),
        b"disk" => (Durability::Disk, false),
        b"all" if local.core.level_for_clients() == Level::FIRST => {
            return Err(Refusal::new(
                "ERR CLIENT DURABILITY ALL needs level 2, and the cluster is at level 1: when every node runs a version \
                 that knows level 2, raise it (holdfast cluster upgrade)",
            ));
        }
        b"all" => (Durability::Disk, true),
        b"memory" if settings.allows_memory || settings.append_fsync != AppendFsync::Always => {
            (Durability::Memory, false)
        }
        b"memory" => {
            return Err(Refusal::new(
                "ERR This server keeps changes on disk before it answers, and client-durability-min allows no less",
            ));
        }
        _ => return Err(Refusal::SYNTAX),
    };
    let is_once = match args.get(3) {
        None => false,
        Some(word) if args.len() == 4 && word.eq_ignore_ascii_case(b"once") => true,
        Some(_) => return Err(Refusal::SYNTAX),
    };
    if is_once && local.is_in_transaction {
        return Err(Refusal::new(
            "ERR CLIENT DURABILITY ... ONCE comes before MULTI: a transaction has one level, that of its EXEC",
        ));
    }
    local.session.options.set_durability(level, by_all, is_once);
    local.session.had_less |= level == Durability::Memory;
    writer.ok();
    Ok(())
}

const REQUESTID: ControlCommand = ControlCommand {
    summary: "Gives the next request an id: it is executed once, however often it is sent.",
    syntax: "id",
    since: "0.1.0",
    ..client("requestid", 3, |local, args, writer| {
        let id = args.at(2);
        if id.is_empty() || id.len() > request_ids::ID_BYTES_MAX {
            return Err(Refusal::new(request_ids::BAD_ID));
        }
        local.session.request_id = Some(id.into());
        writer.ok();
        Ok(())
    })
};

const SETINFO: ControlCommand = ControlCommand {
    summary: "Sets the name or the version of the client's library.",
    syntax: "<LIB-NAME libname | LIB-VER libver>",
    since: "7.2.0",
    tips: super::ON_ALL_NODES,
    ..client("setinfo", 4, |local, args, writer| {
        let option = args.at(2);
        let shown = String::from_utf8_lossy(option);
        let library = &mut local.session.options.library;
        let kept = match option.to_ascii_lowercase().as_slice() {
            b"lib-name" => &mut library.name,
            b"lib-ver" => &mut library.version,
            _ => return Err(Refusal::new(format!("ERR Unrecognized option '{shown}'"))),
        };
        check_name(args.at(3))
            .map_err(|_| Refusal::new(format!("ERR {shown} cannot contain spaces, newlines or special characters.")))?;
        *kept = args.at(3).to_vec();
        writer.ok();
        Ok(())
    })
};

const LIST: ControlCommand = ControlCommand {
    summary: "Describes connections, one line each.",
    complexity: "O(N) where N is the number of client connections",
    syntax: "[TYPE <NORMAL | MASTER | REPLICA | PUBSUB>] [ID client-id [client-id ...]]",
    group: Group::Connection,
    flags: ADMIN,
    tips: &["nondeterministic_output"],
    ..node("list", -2, list_question, list_join)
};

fn list_question(_: &mut Local<'_>, args: Args<'_>) -> Result<Question, Refusal> {
    let mut filter = SessionFilter::default();
    match args.get(2) {
        None => {}
        Some(word) if word.eq_ignore_ascii_case(b"type") && args.len() == 4 => {
            filter.kind = Some(parse_type(args.at(3))?);
        }
        Some(word) if word.eq_ignore_ascii_case(b"id") && args.len() > 3 => {
            for word in args.iter().skip(3) {
                filter.serials.push(
                    number(word)
                        .and_then(|number| u64::try_from(number).ok())
                        .ok_or_else(|| Refusal::new("ERR Invalid client ID"))?,
                );
            }
        }
        Some(_) => return Err(Refusal::SYNTAX),
    }
    Ok(Question::Sessions(filter))
}

fn parse_type(word: &[u8]) -> Result<ClientKind, Refusal> {
    match word.to_ascii_lowercase().as_slice() {
        b"normal" => Ok(ClientKind::Normal),
        b"pubsub" => Ok(ClientKind::Pubsub),
        b"master" | b"replica" | b"slave" => Ok(ClientKind::Server),
        _ => Err(Refusal::new(format!("ERR Unknown client type '{}'", String::from_utf8_lossy(word)))),
    }
}

fn list_join(_: &mut Local<'_>, _: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    let mut lines: Vec<(u64, String)> = answers
        .into_iter()
        .flat_map(|answer| match answer {
            Answer::Sessions(lines) => lines,
            other => unreachable!("a core described its sessions as {other:?}"),
        })
        .collect();
    lines.sort();
    let text: String = lines.into_iter().map(|(_, line)| line + "\n").collect();
    writer.verbatim("txt", text.as_bytes());
    Ok(())
}

const KILL: ControlCommand = ControlCommand {
    summary: "Ends connections.",
    complexity: "O(N) where N is the number of client connections",
    syntax: "<ip:port | <[ID client-id] | [TYPE <NORMAL | MASTER | REPLICA | PUBSUB>] | [USER username] | [ADDR ip:port] | \
             [LADDR ip:port] | [SKIPME <YES | NO>] | [MAXAGE maxage] [...]>>",
    group: Group::Connection,
    flags: ADMIN,
    ..node("kill", -3, kill_question, kill_join)
};

fn kill_question(local: &mut Local<'_>, args: Args<'_>) -> Result<Question, Refusal> {
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let mut filter = SessionFilter::default();
    if args.len() == 3 {
        filter.address = Some(text(args.at(2)));
        return Ok(Question::Kill(filter));
    }
    if !args.len().is_multiple_of(2) {
        return Err(Refusal::SYNTAX);
    }
    let mut skips_me = true;
    for at in (2..args.len()).step_by(2) {
        let value = args.at(at + 1);
        match args.at(at).to_ascii_lowercase().as_slice() {
            b"id" => filter.serials.push(
                number(value)
                    .and_then(|number| u64::try_from(number).ok())
                    .filter(|number| *number > 0)
                    .ok_or_else(|| Refusal::new("ERR client-id should be greater than 0"))?,
            ),
            b"type" => filter.kind = Some(parse_type(value)?),
            b"addr" => filter.address = Some(text(value)),
            b"laddr" => filter.local_address = Some(text(value)),
            b"user" if local.core.access.users.get(value).is_some() => filter.user = Some(value.to_vec()),
            b"user" => return Err(Refusal::new(format!("ERR No such user '{}'", text(value)))),
            b"maxage" => {
                let seconds = number(value)
                    .ok_or_else(|| Refusal::new("ERR maxage is not an integer or out of range"))
                    .map(|seconds| u64::try_from(seconds).unwrap_or(0))?;
                if seconds == 0 {
                    return Err(Refusal::new("ERR maxage should be greater than 0"));
                }
                filter.age_min = Some(Duration::from_secs(seconds));
            }
            b"skipme" if value.eq_ignore_ascii_case(b"yes") => skips_me = true,
            b"skipme" if value.eq_ignore_ascii_case(b"no") => skips_me = false,
            _ => return Err(Refusal::SYNTAX),
        }
    }
    if skips_me {
        filter.except = Some(local.session.id.serial);
    }
    Ok(Question::Kill(filter))
}

fn kill_join(_: &mut Local<'_>, args: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    let count = super::sum_counts(answers);
    if args.len() > 3 {
        writer.integer(count as i64);
    } else if count > 0 {
        writer.ok();
    } else {
        return Err(Refusal::new("ERR No such client"));
    }
    Ok(())
}

fn kind_of(session: &crate::session::Session) -> ClientKind {
    if session.is_subscribed() { ClientKind::Pubsub } else { ClientKind::Normal }
}

impl SessionFilter {
    fn passes(&self, session: &crate::session::Session, now: Now) -> bool {
        let serial = session.id.serial;
        (self.serials.is_empty() || self.serials.contains(&serial))
            && self.kind.is_none_or(|kind| kind == kind_of(session))
            && self.address.as_ref().is_none_or(|address| *address == session.peer.address)
            && self.local_address.as_ref().is_none_or(|address| *address == session.peer.local_address)
            && self.user.as_ref().is_none_or(|user| *user == session.user.name)
            && self.except != Some(serial)
            && self.age_min.is_none_or(|age_min| now.instant - session.opened.instant >= age_min)
    }
}

/// The lines of CLIENT LIST for this core's sessions.
pub(super) fn describe_sessions(core: &Core, filter: &SessionFilter) -> Vec<(u64, String)> {
    core.sessions
        .iter()
        .filter(|session| filter.passes(session, core.now))
        .map(|session| (session.id.serial, describe(session, &core.context, core.now)))
        .collect()
}

/// Ends sessions of this core; the one that asked still gets its reply.
pub(super) fn kill_sessions(core: &mut Core, filter: &SessionFilter, actions: &mut Vec<Action>) -> u64 {
    let mut count = 0;
    let mut closing = Vec::new();
    for session in core.sessions.iter_mut().filter(|session| !session.is_closing) {
        if filter.passes(session, core.now) {
            count += 1;
            session.is_closing = true;
            if session.owed_count() == 0 || session.waiting.is_some() || session.changes_wait.is_some() {
                actions.push(Action::Close { session: session.id });
            }
            closing.push(session.id);
        }
    }
    for id in closing {
        core.sessions.mark(id);
    }
    count
}

const PAUSE: ControlCommand = ControlCommand {
    summary: "Makes clients wait for a while.",
    syntax: "timeout [WRITE | ALL]",
    group: Group::Connection,
    flags: ADMIN,
    ..node(
        "pause",
        -3,
        |_, args| {
            let timeout =
                number(args.at(2)).ok_or_else(|| Refusal::new("ERR timeout is not an integer or out of range"))?;
            let timeout = u64::try_from(timeout).map_err(|_| Refusal::new("ERR timeout is negative"))?;
            let only_writes = match args.get(3) {
                None => false,
                Some(word) if word.eq_ignore_ascii_case(b"all") => false,
                Some(word) if word.eq_ignore_ascii_case(b"write") => true,
                Some(_) => return Err(Refusal::new("ERR CLIENT PAUSE mode must be WRITE or ALL")),
            };
            Ok(Question::Pause(Some((Duration::from_millis(timeout), only_writes))))
        },
        super::join_done,
    )
};

const UNPAUSE: ControlCommand = ControlCommand {
    summary: "Ends the pause of clients.",
    group: Group::Connection,
    flags: ADMIN,
    ..node("unpause", 2, |_, _| Ok(Question::Pause(None)), super::join_done)
};

const REPLY: ControlCommand = ControlCommand {
    summary: "Sets whether the client wants replies.",
    syntax: "<ON | OFF | SKIP>",
    ..client("reply", 3, |local, args, writer| {
        match args.at(2).to_ascii_lowercase().as_slice() {
            b"on" => {
                local.session.options.replies = Replies::On;
                writer.ok();
            }
            b"off" => local.session.options.replies = Replies::Off,
            b"skip" if local.session.options.replies != Replies::Off => {
                local.session.options.replies = Replies::SkipNext
            }
            b"skip" => {}
            _ => return Err(Refusal::SYNTAX),
        }
        Ok(())
    })
};

pub(super) fn on_off(word: &[u8]) -> Result<bool, Refusal> {
    match word.to_ascii_lowercase().as_slice() {
        b"on" => Ok(true),
        b"off" => Ok(false),
        _ => Err(Refusal::SYNTAX),
    }
}

const NO_EVICT: ControlCommand = ControlCommand {
    summary: "Keeps the connection when clients use too much memory.",
    syntax: "<ON | OFF>",
    flags: ADMIN,
    ..client("no-evict", 3, |local, args, writer| {
        local.session.options.no_evict = on_off(args.at(2))?;
        writer.ok();
        Ok(())
    })
};

const NO_TOUCH: ControlCommand = ControlCommand {
    summary: "Sets whether reads of the connection count as uses of keys.",
    syntax: "<ON | OFF>",
    since: "7.2.0",
    ..client("no-touch", 3, |local, args, writer| {
        local.session.options.no_touch = on_off(args.at(2))?;
        writer.ok();
        Ok(())
    })
};

const UNBLOCK: ControlCommand = ControlCommand {
    summary: "Ends another connection's wait in a blocking command.",
    syntax: "client-id [TIMEOUT | ERROR]",
    flags: ADMIN,
    group: Group::Connection,
    categories: &["@connection"],
    ..node("unblock", -3, unblock_question, |_, _, answers, writer| {
        writer.integer(super::sum_counts(answers) as i64);
        Ok(())
    })
};

fn unblock_question(_: &mut Local<'_>, args: Args<'_>) -> Result<Question, Refusal> {
    let serial = number(args.at(2)).ok_or(Refusal::NOT_AN_INTEGER)?;
    let end = match args.get(3) {
        None => WaitEnd::Timeout,
        Some(word) if word.eq_ignore_ascii_case(b"timeout") => WaitEnd::Timeout,
        Some(word) if word.eq_ignore_ascii_case(b"error") => WaitEnd::Error,
        Some(_) => return Err(Refusal::new("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")),
    };
    Ok(Question::Unblock { serial: serial.max(0) as u64, end })
}

const HELP: ControlCommand = ControlCommand {
    summary: "Lists the subcommands.",
    flags: &[Flag::Loading, Flag::Stale],
    ..client("help", 2, |_, _, writer| {
        super::write_help(writer, "CLIENT", CLIENT.subcommands);
        Ok(())
    })
};

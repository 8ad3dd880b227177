//! Commands on the connection itself: who is there, what it speaks, which database it means.

use std::sync::Arc;

use command::{Flag, Group, Refusal};
use resp::{Args, Protocol, Writer};

use super::{ControlCommand, Local, Outcome, local, number};
use crate::acl::{DEFAULT, Denial, Denied, LogEntry, Where};
use crate::context::Context;
use crate::entry::Durability;
use crate::lookup::selected;
use crate::monitor::Monitors;
use crate::pubsub::Kind;
use crate::session::Session;

/// Version of Redis that these commands and words come from. Client libraries choose their behaviour by it.
pub const REDIS_VERSION: &str = script::REDIS_VERSION;

const fn connection(name: &'static str, arity: i32, run: super::Run) -> ControlCommand {
    ControlCommand {
        group: Group::Connection,
        flags: &[Flag::Noscript, Flag::Loading, Flag::Stale, Flag::Fast, Flag::NoAuth, Flag::AllowBusy],
        categories: &["@connection"],
        ..local(name, arity, run)
    }
}

pub(super) const PING: ControlCommand = ControlCommand {
    summary: "Returns PONG, or the message.",
    syntax: "[message]",
    flags: &[Flag::Fast],
    tips: &["request_policy:all_shards", "response_policy:all_succeeded"],
    ..connection("ping", -1, ping)
};

fn ping(local: &mut Local<'_>, args: Args<'_>, writer: &mut Writer) -> Outcome {
    match args.len() {
        1 | 2 if local.session.is_in_subscribed_mode() => {
            writer.array(2);
            writer.bulk(b"pong");
            writer.bulk(args.get(1).unwrap_or_default());
        }
        1 => writer.simple("PONG"),
        2 => writer.bulk(args.at(1)),
        _ => return Err(Refusal::wrong_arity("ping")),
    }
    Ok(())
}

pub(super) const ECHO: ControlCommand = ControlCommand {
    summary: "Returns the message.",
    syntax: "message",
    flags: &[Flag::Loading, Flag::Stale, Flag::Fast],
    ..connection("echo", 2, |_, args, writer| {
        writer.bulk(args.at(1));
        Ok(())
    })
};

pub(super) const SELECT: ControlCommand = ControlCommand {
    summary: "Changes the database for later commands.",
    syntax: "index",
    flags: &[Flag::Loading, Flag::Stale, Flag::Fast],
    ..connection("select", 2, select)
};

fn select(local: &mut Local<'_>, args: Args<'_>, writer: &mut Writer) -> Outcome {
    local.session.database = selected(args, local.core.settings.databases)?;
    writer.ok();
    Ok(())
}

pub(super) const QUIT: ControlCommand = ControlCommand {
    summary: "Closes the connection.",
    ..connection("quit", -1, |local, _, writer| {
        local.session.is_closing = true;
        writer.ok();
        Ok(())
    })
};

pub(super) const RESET: ControlCommand = ControlCommand {
    since: "6.2.0",
    summary: "Resets the connection to the state in which it was opened.",
    ..connection("reset", 1, |local, _, writer| {
        let user = Arc::clone(local.core.access.users.default_user());
        let session = &mut *local.session;
        local.core.pubsub.forget(session);
        local.core.monitors.remove(session.id);
        local.core.tracker.set_session(session.id, None);
        session.options.tracking = None;
        local.core.give_up_reserved(session.id, &mut session.optimism, local.now.instant);
        session.discard();
        session.database = 0;
        session.set_protocol(Protocol::Resp2);
        writer.set_protocol(Protocol::Resp2);
        session.options.name.clear();
        session.options.replies = crate::session::Replies::On;
        session.options.no_evict = false;
        session.options.no_touch = false;
        session.options.reading = None;
        session.request_id = None;
        session.options.set_durability(Durability::Server, false, false);
        session.is_authenticated = user.needs_no_password();
        session.user = user;
        writer.simple("RESET");
        Ok(())
    })
};

pub(super) const AUTH: ControlCommand = ControlCommand {
    summary: "Authenticates the connection.",
    complexity: "O(N) where N is the number of passwords defined for the user",
    syntax: "[username] password",
    ..connection("auth", -2, auth)
};

fn auth(local: &mut Local<'_>, args: Args<'_>, writer: &mut Writer) -> Outcome {
    let (user, password) = match args.len() {
        2 if local.core.access.users.default_user().is_open => {
            return Err(Refusal::new(
                "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
                 configuration is correct?",
            ));
        }
        2 => (DEFAULT, args.at(1)),
        3 => (args.at(1), args.at(2)),
        _ => return Err(Refusal::SYNTAX),
    };
    authenticate(local, args, user, password)?;
    writer.ok();
    Ok(())
}

fn authenticate(local: &mut Local<'_>, args: Args<'_>, name: &[u8], password: &[u8]) -> Outcome {
    // The host has had the password of this user accepted before, when it opens another session.
    let is_vouched_for = local.session.peer.is_host;
    if let Some(user) = local.core.access.users.get(name)
        && (is_vouched_for && user.is_on || user.accepts(password))
    {
        local.session.user = Arc::clone(user);
        local.session.is_authenticated = true;
        return Ok(());
    }
    let denial = Denial { what: Denied::Login, object: args.at(0).to_vec() };
    let place = if local.is_in_transaction { Where::Transaction } else { Where::TopLevel };
    let client = describe(local.session, local.core, local.now);
    let entry = LogEntry::new(denial, place, name, local.now.unix, client);
    local.core.access.log.push(entry, local.core.settings.acl_log_count_max);
    Err(Refusal::WRONG_PASS)
}

pub(super) const HELLO: ControlCommand = ControlCommand {
    since: "6.0.0",
    summary: "Chooses the version of the protocol.",
    syntax: "[protover [AUTH username password] [SETNAME clientname]]",
    ..connection("hello", -1, hello)
};

fn hello(local: &mut Local<'_>, args: Args<'_>, writer: &mut Writer) -> Outcome {
    let mut protocol = None;
    if let Some(version) = args.get(1) {
        let version =
            number(version).ok_or_else(|| Refusal::new("ERR Protocol version is not an integer or out of range"))?;
        protocol = Some(match version {
            2 => Protocol::Resp2,
            3 => Protocol::Resp3,
            _ => return Err(Refusal::new("NOPROTO unsupported protocol version")),
        });
    }
    let mut credentials = None;
    let mut name = None;
    let mut at = 2;
    while let Some(word) = args.get(at) {
        if word.eq_ignore_ascii_case(b"auth") && at + 2 < args.len() {
            credentials = Some((args.at(at + 1), args.at(at + 2)));
            at += 3;
        } else if word.eq_ignore_ascii_case(b"setname") && at + 1 < args.len() {
            check_name(args.at(at + 1))?;
            name = Some(args.at(at + 1));
            at += 2;
        } else {
            return Err(Refusal::new(format!("ERR Syntax error in HELLO option '{}'", String::from_utf8_lossy(word))));
        }
    }
    if let Some((user, password)) = credentials {
        authenticate(local, args, user, password)?;
    }
    if !local.session.is_authenticated && !local.core.access.users.default_user().needs_no_password() {
        return Err(Refusal::new(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> \
             <pass> option can be used to authenticate the client and select the RESP protocol version at the same time",
        ));
    }
    if let Some(name) = name {
        local.session.options.name = name.to_vec();
    }
    if let Some(protocol) = protocol {
        local.session.set_protocol(protocol);
        writer.set_protocol(protocol);
    }
    writer.map(7);
    writer.bulk(b"server");
    writer.bulk(b"redis");
    writer.bulk(b"version");
    writer.bulk(REDIS_VERSION.as_bytes());
    writer.bulk(b"proto");
    writer.integer(if writer.protocol() == Protocol::Resp3 { 3 } else { 2 });
    writer.bulk(b"id");
    writer.integer(local.session.id.serial as i64);
    writer.bulk(b"mode");
    writer.bulk(local.core.settings.mode().as_bytes());
    writer.bulk(b"role");
    writer.bulk(if local.core.host.source.is_some() { b"replica" } else { b"master" });
    writer.bulk(b"modules");
    super::server::write_modules(writer);
    Ok(())
}

/// A client's name holds no spaces or line ends, so that CLIENT LIST can be parsed.
pub(super) fn check_name(name: &[u8]) -> Outcome {
    if name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        Ok(())
    } else {
        Err(Refusal::new("ERR Client names cannot contain spaces, newlines or special characters."))
    }
}

/// Letters for what a client is and does, as CLIENT LIST shows them.
fn flags(session: &Session, monitors: &Monitors) -> String {
    let letters = [
        (monitors.contains(session.id), 'O'),
        (session.is_subscribed(), 'P'),
        (session.multi.is_some(), 'x'),
        (session.is_blocked(), 'b'),
        (session.options.reading.is_some(), 'r'),
        (session.options.tracking.is_some(), 't'),
        (session.options.tracking.as_ref().is_some_and(|tracking| tracking.is_broken), 'R'),
        (session.options.tracking.as_ref().is_some_and(|tracking| tracking.broadcasts()), 'B'),
        (session.is_closing, 'c'),
        (session.options.no_evict, 'e'),
        (session.options.no_touch, 'T'),
    ];
    let shown: String = letters.iter().filter(|(is_so, _)| *is_so).map(|(_, letter)| letter).collect();
    if shown.is_empty() { "N".to_owned() } else { shown }
}

/// One line of CLIENT LIST.
pub(crate) fn describe(session: &Session, context: &Context, now: group::ids::Now) -> String {
    let multi = session.multi.as_ref().map_or(-1, |multi| multi.queue.len() as i64);
    // Some clients refuse a line with a field that they do not know.
    let durability = match session.options.durability {
        Durability::Server => String::new(),
        _ if session.options.by_all => " durability=all".to_owned(),
        asked => format!(" durability={}", context.settings.durability_in_force(asked)),
    };
    let told = |kind| session.options.subscriptions.as_ref().map_or(0, |all| all.names(kind).len());
    format!(
        "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={} db={} sub={} psub={} ssub={} multi={multi} \
         qbuf={} qbuf-free=0 argv-mem=0 multi-mem={} rbs=0 rbp=0 obl={} oll=0 omem={} tot-mem={} events=r cmd={} \
         user={} redir={} resp={} lib-name={} lib-ver={}{durability}",
        session.id.serial,
        session.peer.address,
        session.peer.local_address,
        session.peer.descriptor,
        String::from_utf8_lossy(&session.options.name),
        now.instant.since(session.opened.instant).as_secs(),
        now.instant.since(session.heard.instant).as_secs(),
        flags(session, &context.monitors),
        session.database,
        told(Kind::Channel),
        told(Kind::Pattern),
        told(Kind::Shard),
        session.input_bytes() + session.flow.request_bytes,
        session.multi.as_ref().map_or(0, |multi| multi.byte_count),
        session.output_bytes(),
        session.flow.backlog_bytes,
        session.input_bytes() + session.output_bytes() + size_of::<Session>(),
        session.last_command_name(),
        String::from_utf8_lossy(&session.user.name),
        super::tracking::redirect_id(session.options.tracking.as_deref()),
        if session.protocol() == Protocol::Resp3 { 3 } else { 2 },
        String::from_utf8_lossy(&session.options.library.name),
        String::from_utf8_lossy(&session.options.library.version),
    )
}

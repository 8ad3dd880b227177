//! REPLCONF, PSYNC and SYNC: what a stock Redis says that wants to follow this node; and REPLICAOF, with which a client
//! makes this node follow a Redis.
//!
//! Here only the words are read. A client that asks for a copy is handed to the host with its connection: the stream is
//! as long as the connection lives, and no core may wait for its reader.

use command::{Flag, Refusal};
use group::ids::SessionId;
use resp::{Args, Writer};

use super::{Body, ControlCommand, Local, Outcome, local, number, plain};
use crate::core::Core;
use crate::event::{Action, ReplicateRequest};
use crate::followers::{CopyContent, Follower, Wish};
use crate::session::ticket::OwnTicket;

const FLAGS: &[Flag] = &[Flag::Admin, Flag::Noscript, Flag::NoMulti, Flag::NoAsyncLoading];

pub(super) const REPLCONF: ControlCommand = ControlCommand {
    since: "3.0.0",
    summary: "Takes what a Redis replica says of itself before it follows this node.",
    syntax: "[name value [name value ...]]",
    flags: &[Flag::Admin, Flag::Noscript, Flag::Loading, Flag::Stale, Flag::AllowBusy],
    ..local("replconf", -1, replconf)
};

pub(super) const PSYNC: ControlCommand = ControlCommand {
    since: "2.8.0",
    summary: "Turns the connection into that of a Redis replica: a copy if need be, and then all changes.",
    syntax: "replicationid offset",
    flags: FLAGS,
    ..local("psync", -3, psync)
};

pub(super) const SYNC: ControlCommand = ControlCommand {
    summary: "Like PSYNC, for replicas before Redis 2.8 and redis-cli: a copy, and then all changes.",
    flags: FLAGS,
    ..local("sync", 1, sync)
};

pub(super) const SITE: ControlCommand = ControlCommand {
    since: "7.0.0",
    summary: "Sends another cluster what happens here, or carries out what happens there.",
    syntax: "<FOLLOW cluster places | FOLLOW ? copy | WRITER>",
    flags: FLAGS,
    ..local("site", -2, site)
};

const FLAGS_OF_REPLICAOF: &[Flag] = &[Flag::Admin, Flag::Noscript, Flag::NoMulti, Flag::Stale, Flag::NoAsyncLoading];

pub(super) const REPLICAOF: ControlCommand = ControlCommand {
    since: "5.0.0",
    summary: "Makes a node by itself that holds nothing follow a Redis, or ends that.",
    syntax: "host port",
    flags: FLAGS_OF_REPLICAOF,
    ..plain("replicaof", 3, Body::Driven(replicaof))
};

pub(super) const SLAVEOF: ControlCommand = ControlCommand {
    summary: "The old name of REPLICAOF.",
    syntax: "host port",
    flags: FLAGS_OF_REPLICAOF,
    ..plain("slaveof", 3, Body::Driven(replicaof))
};

/// Asks the host to follow a Redis. What can be told here is refused here.
fn replicaof(
    core: &mut Core,
    id: SessionId,
    ticket: OwnTicket,
    args: Args<'_>,
    actions: &mut Vec<Action>,
) -> Result<(), Refusal> {
    let is_none = args.at(1).eq_ignore_ascii_case(b"no") && args.at(2).eq_ignore_ascii_case(b"one");
    let mut source = None;
    if !is_none {
        let settings = &core.context.settings;
        if core.context.is_clustered || settings.cluster_enabled || core.context.roster.present().count() > 1 {
            return Err(Refusal::new(
                "ERR REPLICAOF is for a node by itself, and this one is a member of a cluster: `holdfast migrate start` \
                 copies a Redis into a cluster, and follows it",
            ));
        }
        if !settings.get("follow").is_empty() || settings.keeps_site_backlog {
            return Err(Refusal::new("ERR REPLICAOF is not for a node of a site that follows or is followed"));
        }
        let port = number(args.at(2)).and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
        let port = port.ok_or_else(|| Refusal::new("ERR Invalid master port"))?;
        let host = std::str::from_utf8(args.at(1)).ok().filter(|host| host.len() <= ADDRESS_BYTES_MAX);
        let is_name = |host: &&str| !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic());
        let host = host.filter(is_name).ok_or_else(|| Refusal::new("ERR Invalid master host"))?;
        source = Some((host.to_owned(), port));
    }
    let request = ReplicateRequest { core: core.context.core, session: id, ticket, source };
    actions.push(Action::Replicate(Box::new(request)));
    Ok(())
}

fn replconf(local: &mut Local<'_>, args: Args<'_>, writer: &mut Writer) -> Outcome {
    if args.len().is_multiple_of(2) {
        return Err(Refusal::SYNTAX);
    }
    let follower = local.session.follower.get_or_insert_default();
    for index in (1..args.len()).step_by(2) {
        let (name, value) = (args.at(index).to_ascii_lowercase(), args.at(index + 1));
        let number = || number(value).ok_or(Refusal::NOT_AN_INTEGER);
        match name.as_slice() {
            b"listening-port" => {
                follower.port = u16::try_from(number()?).map_err(|_| Refusal::NOT_AN_INTEGER)?;
            }
            b"ip-address" => {
                if value.len() > ADDRESS_BYTES_MAX || !value.is_ascii() || value.iter().any(u8::is_ascii_control) {
                    return Err(Refusal::new(format!(
                        "ERR REPLCONF ip-address provided by replica instance is too long: {} bytes",
                        value.len()
                    )));
                }
                follower.host = String::from_utf8_lossy(value).into_owned();
            }
            b"capa" => follower.takes_marked |= value.eq_ignore_ascii_case(b"eof"),
            b"version" if value.len() <= VERSION_BYTES_MAX && value.iter().all(u8::is_ascii_graphic) => {
                follower.version = String::from_utf8_lossy(value).into_owned();
            }
            b"rdb-only" => follower.wants_copy_only = number()? != 0,
            b"rdb-filter-only" => {
                let wanted = String::from_utf8_lossy(value).to_ascii_lowercase();
                follower.content = match wanted.as_str() {
                    "functions" => CopyContent::Functions,
                    "" => CopyContent::Nothing,
                    _ => return Err(Refusal::new("ERR Unsupported rdb-filter-only option: only functions is known")),
                };
            }
            // Before it follows there is nothing to acknowledge, and anyone who follows does not speak to a core.
            b"ack" | b"fack" | b"getack" => return Ok(()),
            // Replicas of other makers tell more of themselves than anybody needs to know.
            _ => {}
        }
    }
    writer.ok();
    Ok(())
}

/// Longest address that a replica may give of itself, in bytes: longer names do not exist in DNS.
const ADDRESS_BYTES_MAX: usize = 255;

/// Longest version that is believed: `255.255.255` and a word behind it.
const VERSION_BYTES_MAX: usize = 32;

fn psync(local: &mut Local<'_>, args: Args<'_>, _: &mut Writer) -> Outcome {
    let offset = number(args.at(2)).ok_or(Refusal::NOT_AN_INTEGER)?;
    let id = args.at(1);
    let is_id = id.len() == ID_DIGITS && id.iter().all(u8::is_ascii_hexdigit);
    let wish = match u64::try_from(offset) {
        Ok(offset) if is_id => Wish::Continue { id: String::from_utf8_lossy(id).into_owned(), offset },
        _ => Wish::Copy,
    };
    follow(local, wish)
}

/// Digits of the name of a stream.
const ID_DIGITS: usize = 40;

fn sync(local: &mut Local<'_>, _: Args<'_>, _: &mut Writer) -> Outcome {
    follow(local, Wish::OldCopy)
}

/// Begins to tell another cluster what happens here, behind what it has, or lets a session write for one.
fn site(local: &mut Local<'_>, args: Args<'_>, writer: &mut Writer) -> Outcome {
    let is = |index: usize, word: &str| args.get(index).is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()));
    if is(1, "writer") && args.len() == 2 {
        local.session.options.writes_for_site = true;
        writer.ok();
        return Ok(());
    }
    if !is(1, "follow") || args.len() != 4 {
        return Err(Refusal::SYNTAX);
    }
    if !local.core.settings.keeps_site_backlog {
        return Err(Refusal::new("ERR This node keeps nothing for a second site: see site-backlog-size"));
    }
    let text = |index: usize| std::str::from_utf8(args.at(index)).ok();
    let mut copy = None;
    let place = if is(2, "?") {
        if !is(3, "?") {
            let parts = text(3).and_then(|text| text.split_once(':')).ok_or(Refusal::SYNTAX)?;
            let id = u128::from_str_radix(parts.0, 16).map_err(|_| Refusal::SYNTAX)?;
            copy = Some((id, parts.1.parse().map_err(|_| Refusal::SYNTAX)?));
        }
        None
    } else {
        let cluster = text(2).and_then(|text| u128::from_str_radix(text, 16).ok()).ok_or(Refusal::SYNTAX)?;
        let places = text(3).map(|text| text.split(',').map(str::parse).collect::<Result<Vec<u64>, _>>());
        Some((cluster, places.and_then(Result::ok).ok_or(Refusal::SYNTAX)?))
    };
    hand_over(local, Wish::Site { place, copy })
}

fn follow(local: &mut Local<'_>, wish: Wish) -> Outcome {
    if local.core.settings.keeps_site_backlog {
        return Err(Refusal::new(
            "ERR This node keeps what changes for a second site, in words that a Redis does not know: follow another one",
        ));
    }
    hand_over(local, wish)
}

fn hand_over(local: &mut Local<'_>, wish: Wish) -> Outcome {
    if local.session.options.subscriptions.is_some() || local.session.owed_count() > 1 {
        return Err(Refusal::new("ERR SYNC and PSYNC are invalid with pending output"));
    }
    if !local.core.holds_all_that_changes() {
        return Err(Refusal::new(
            "ERR This node holds only some of the groups of its cluster, and cannot tell what happens to the others",
        ));
    }
    let address = local.session.peer.address.clone();
    let follower = local.session.follower.take().unwrap_or_default();
    local.session.follower = Some(Box::new(Follower { wish: Some(wish), address, ..*follower }));
    local.session.is_closing = true;
    Ok(())
}

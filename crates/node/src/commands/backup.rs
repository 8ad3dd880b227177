//! BACKUP: what `holdfast backup create` asks a server for.

use command::{Flag, Refusal};
use group::ids::{GroupId, SessionId};
use group::requests::{Origin, Request, RequestBody};
use resp::{Args, Writer};

use super::{Body, ControlCommand, container, local, number, plain};
use crate::core::Core;
use crate::event::Action;
use crate::relay::Purpose;
use crate::session::ticket::OwnTicket;
use crate::transaction::Work;

const FLAGS: &[Flag] = &[Flag::Admin, Flag::Noscript, Flag::NoMulti];

const fn driven(name: &'static str, arity: i32, run: super::Drive) -> ControlCommand {
    ControlCommand { since: "0.1.0", flags: FLAGS, ..plain(name, arity, Body::Driven(run)) }
}

pub(super) const BACKUP: ControlCommand = ControlCommand {
    since: "0.1.0",
    summary: "Reads all data as of one moment; see holdfast backup.",
    subcommands: &[
        ControlCommand {
            summary: "Begins a backup of all groups at one moment.",
            complexity: "O(N) over time, when N is the number of keys",
            syntax: "name",
            ..driven("begin", 3, begin)
        },
        ControlCommand {
            summary: "Returns a chunk of a group's part: percent while it is written, null behind the last.",
            syntax: "name group chunk",
            ..driven("read", 5, read)
        },
        ControlCommand {
            summary: "Ends a group's part of a backup: it need not be kept.",
            syntax: "name group",
            ..driven("end", 4, end)
        },
        ControlCommand {
            since: "0.1.0",
            summary: "Lists the subcommands.",
            flags: &[Flag::Loading, Flag::Stale],
            ..local("help", 2, |_, _, writer| {
                super::write_help(writer, "BACKUP", BACKUP.subcommands);
                Ok(())
            })
        },
    ],
    flags: FLAGS,
    ..container("backup")
};

/// The reply: number of groups, of databases, and the moment in milliseconds; then for each group the index of the last
/// entry of its log that is part of the backup. Of a group that had gone by then it is the negative index of the entry
/// that ended it: there is no part of it.
fn begin(
    core: &mut Core,
    id: SessionId,
    ticket: OwnTicket,
    args: Args<'_>,
    actions: &mut Vec<Action>,
) -> Result<(), Refusal> {
    let name = name(args)?;
    let protocol = core.sessions.get(id).expect("its request is being looked at").protocol();
    let origin = Origin { ticket: ticket.number(), ..core.origin_of(id) };
    let work = Work { whole: true, cut: Some(name), ..Work::new(origin, protocol, core.now.instant) };
    core.begin_work(work, actions);
    Ok(())
}

fn read(core: &mut Core, id: SessionId, ticket: OwnTicket, args: Args<'_>, _: &mut Vec<Action>) -> Result<(), Refusal> {
    let chunk = number(args.at(4)).and_then(|chunk| u64::try_from(chunk).ok()).ok_or(Refusal::NOT_AN_INTEGER)?;
    ask(core, id, ticket, args, RequestBody::ReadCut { name: name(args)?, chunk })
}

fn end(core: &mut Core, id: SessionId, ticket: OwnTicket, args: Args<'_>, _: &mut Vec<Action>) -> Result<(), Refusal> {
    ask(core, id, ticket, args, RequestBody::EndCut { name: name(args)? })
}

/// Asks the group that the words name, on the node that leads it.
fn ask(core: &mut Core, id: SessionId, ticket: OwnTicket, args: Args<'_>, body: RequestBody) -> Result<(), Refusal> {
    let group = number(args.at(3))
        .and_then(|group| u32::try_from(group).ok())
        .filter(|group| *group < core.context.slots.group_count())
        .ok_or_else(|| Refusal::new("ERR There is no such group"))?;
    let protocol = core.sessions.get(id).expect("its request is being looked at").protocol();
    if core.context.slots.gone_at(GroupId(group)).is_some() {
        // If it was part of the backup, nobody keeps that any more: what it held then is not complete without it.
        if let RequestBody::ReadCut { .. } = body {
            return Err(Refusal::new(format!(
                "ERR Group {group} has been merged, and nobody keeps its part of a backup"
            )));
        }
        core.sessions.reply_own(id, ticket, Writer::ok);
        return Ok(());
    }
    let request = Request::new(core.origin_of(id), GroupId(group), protocol, body);
    let answerable = core.check_quorum(GroupId(group))?;
    core.relay.submit(request, Purpose::Client { session: id, ticket: ticket.number() }, answerable, core.now.instant);
    Ok(())
}

fn name(args: Args<'_>) -> Result<u128, Refusal> {
    std::str::from_utf8(args.at(2))
        .ok()
        .filter(|text| text.len() == NAME_DIGITS)
        .and_then(|text| u128::from_str_radix(text, 16).ok())
        .ok_or_else(|| Refusal::new("ERR The name of a backup is 32 hexadecimal digits"))
}

const NAME_DIGITS: usize = 32;

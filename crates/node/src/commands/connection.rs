//! Commands on the connection itself.

use command::{Flag, Group, Refusal, Span};

use super::{Body, ControlCommand};

pub(super) const PING: ControlCommand = ControlCommand {
    name: "ping",
    since: "1.0.0",
    group: Group::Connection,
    summary: "Returns the server's liveliness response.",
    complexity: "O(1)",
    syntax: "[message]",
    arity: -1,
    flags: &[Flag::Fast],
    categories: &["@connection"],
    keys: &[],
    tips: &["request_policy:all_shards", "response_policy:all_succeeded"],
    span: Span::Nothing,
    subcommands: &[],
    body: Body::Local(|_, args, writer| {
        match args.len() {
            1 => writer.simple("PONG"),
            2 => writer.bulk(args.at(1)),
            _ => return Err(Refusal::wrong_arity("ping")),
        }
        Ok(())
    }),
};

pub(super) const SELECT: ControlCommand = ControlCommand {
    name: "select",
    since: "1.0.0",
    group: Group::Connection,
    summary: "Changes the selected database.",
    complexity: "O(1)",
    syntax: "index",
    arity: 2,
    flags: &[Flag::Loading, Flag::Stale, Flag::Fast],
    categories: &["@connection"],
    keys: &[],
    tips: &[],
    span: Span::Nothing,
    subcommands: &[],
    body: Body::Local(|local, args, writer| {
        let number: i64 = std::str::from_utf8(args.at(1))
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| Refusal::new("ERR value is not an integer or out of range"))?;
        let databases = i64::from(local.core.settings.databases);
        if !(0..databases).contains(&number) {
            return Err(Refusal::DATABASE_RANGE);
        }
        local.session.database = number as u16;
        writer.ok();
        Ok(())
    }),
};

//! MULTI, EXEC, DISCARD, WATCH, UNWATCH: declarations. `crate::exec` carries them out.

use command::{Access, Begin, Find, Flag, Group, KeySpec, Span};

use super::{Body, ControlCommand, Flow};

const fn flow(name: &'static str, flow: Flow) -> ControlCommand {
    ControlCommand {
        name,
        since: "1.2.0",
        group: Group::Transactions,
        summary: "",
        complexity: "",
        syntax: "",
        arity: 1,
        flags: &[Flag::Noscript, Flag::Loading, Flag::Stale, Flag::Fast, Flag::AllowBusy],
        categories: &[],
        keys: &[],
        tips: &[],
        span: Span::Nothing,
        subcommands: &[],
        body: Body::Flow(flow),
    }
}

pub(super) const MULTI: ControlCommand =
    ControlCommand { summary: "Starts a transaction.", complexity: "O(1)", ..flow("multi", Flow::Multi) };

pub(super) const EXEC: ControlCommand = ControlCommand {
    summary: "Executes all commands in a transaction.",
    complexity: "Depends on commands in the transaction",
    flags: &[Flag::Noscript, Flag::Loading, Flag::Stale, Flag::SkipSlowlog],
    ..flow("exec", Flow::Exec)
};

pub(super) const DISCARD: ControlCommand = ControlCommand {
    since: "2.0.0",
    summary: "Discards a transaction.",
    complexity: "O(N), when N is the number of queued commands",
    ..flow("discard", Flow::Discard)
};

pub(super) const WATCH: ControlCommand = ControlCommand {
    since: "2.2.0",
    summary: "Monitors changes to keys to determine the execution of a transaction.",
    complexity: "O(1) for every key.",
    syntax: "key [key ...]",
    arity: -2,
    keys: &[KeySpec {
        access: Access::Read,
        begin: Begin::Index(1),
        find: Find::Range { last: -1, step: 1, limit: 0 },
        notes: &[],
    }],
    span: Span::Keys,
    ..flow("watch", Flow::Watch)
};

pub(super) const UNWATCH: ControlCommand = ControlCommand {
    since: "2.2.0",
    summary: "Forgets about watched keys of a transaction.",
    complexity: "O(1)",
    ..flow("unwatch", Flow::Unwatch)
};

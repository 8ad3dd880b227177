//! DEL and UNLINK: remove keys.

use command::{Access, Command, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use super::all_words;
use crate::commands::{Body, DataCommand};
use crate::context::Edit;
use crate::notice::Class;

pub const DEL: DataCommand = Command {
    name: "del",
    since: "1.0.0",
    group: Group::Generic,
    summary: "Delete a key.",
    complexity: "O(N) where N is the number of keys; memory of large values is given back later, in slices.",
    syntax: "key [key ...]",
    arity: -2,
    flags: &[Flag::Write],
    categories: &["keyspace"],
    keys: &[all_words(Access::Remove, &["delete"])],
    tips: &["request_policy:multi_shard", "response_policy:agg_sum"],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(delete),
};

/// The same as DEL: nothing here is removed at length.
pub const UNLINK: DataCommand = Command {
    name: "unlink",
    since: "4.0.0",
    summary: "Delete a key asynchronously in another thread. Otherwise it is just as DEL, but non blocking.",
    complexity: "O(N) where N is the number of keys.",
    flags: &[Flag::Write, Flag::Fast],
    ..DEL
};

fn delete(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let mut removed = 0;
    for key in args.iter().skip(1) {
        if edit.remove(key) {
            edit.notify(Class::Generic, "del", key);
            removed += 1;
        }
    }
    writer.count(removed);
    Ok(())
}

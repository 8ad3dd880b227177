//! The names under which people know commands and subcommands.

use std::borrow::Cow;

use resp::Args;

use crate::commands::{self, Known};

/// The name of the container whose subcommand a request names; `None` if it names a command.
#[inline]
pub fn container_of(known: Known, args: Args<'_>) -> Option<&'static str> {
    let (name, word) = (known.name().as_bytes(), args.at(0));
    if name.len() == word.len() && name.eq_ignore_ascii_case(word) {
        return None;
    }
    let data = keyspace::find(word).map(|command| command.name);
    data.or_else(|| commands::find(word).map(|command| command.name))
}

/// `get`, or `config|get` for a subcommand.
pub fn full_name(known: Known, container: Option<&str>) -> Cow<'static, str> {
    match container {
        None => Cow::Borrowed(known.name()),
        Some(container) => Cow::Owned(format!("{container}|{}", known.name())),
    }
}

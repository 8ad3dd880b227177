//! Whether a request of another node is one that a gateway sends.
//!
//! A gateway checks what its own clients ask for, and groups rely on that: what is logged must be possible to apply, or
//! every replica would stop at it. So the same is checked of what other nodes send, before a group hears of it. Values
//! that travel between groups (`Effect::Key`, `Effect::Take`) are left to the checksums of the link.

use command::Span as KeySpan;
use keyspace::{Body, DataCommand};
use resp::{Args, Span};

use crate::dispatch;
use crate::entry::{self, Effect};
use crate::letter::{Request, RequestBody};
use crate::libraries;
use crate::roster::GROUPS_MAX;

/// True if it is. This node knows of so many groups, and each of them has so many databases. Others may know more
/// groups: these may take part in a transaction, or get slots.
pub(crate) fn is_valid(request: &Request, group_count: u32, databases: u16) -> bool {
    let has = |database: &u16| *database < databases;
    let are_words = |words: &[u8], is_right: fn(&DataCommand) -> bool| {
        let (mut rest, mut spans) = (words, Vec::new());
        let Some((database, args)) = entry::take_words(&mut rest, &mut spans) else { return false };
        rest.is_empty() && has(&database) && command_of(args).is_some_and(is_right)
    };
    let can_be = |group: &u32| *group < GROUPS_MAX;
    if request.group.0 >= group_count {
        return false;
    }
    match &request.body {
        // A read that was given its place in the log is one, too.
        RequestBody::Write(words) => are_words(words, |command| !matches!(command.body, Body::Container)),
        RequestBody::Read(words) | RequestBody::ReadAtOnce(words) => are_words(words, is_query),
        RequestBody::Whole(words) => are_words(words, is_whole_query),
        RequestBody::Exec(packed) => {
            let mut spans = Vec::new();
            entry::check_exec(packed, &mut spans, |database, args| {
                // A watch has no words.
                has(&database) && args.is_none_or(|args| command_of(args).is_some())
            })
        }
        RequestBody::Script(script) => {
            let (mut rest, mut spans) = (&script.words[..], Vec::new());
            let key_count = script.invocation.key_count;
            entry::take_words(&mut rest, &mut spans).is_some_and(|(database, args)| {
                let is_script = dispatch::lookup(args).is_ok_and(|known| known.script_naming().is_some());
                // The name, the script, the number of keys, the keys.
                let has_keys = args.len().checked_sub(3).is_some_and(|behind| key_count <= behind);
                rest.is_empty() && has(&database) && is_script && has_keys
            })
        }
        RequestBody::Govern(words) => {
            let (mut rest, mut spans) = (&words[..], Vec::<Span>::new());
            entry::take_words(&mut rest, &mut spans).is_some() && rest.is_empty()
        }
        RequestBody::Libraries(change) => libraries::Change::is_one(change),
        RequestBody::Configure(pairs) => message::parameters::are_pairs(pairs),
        RequestBody::Versions(keys) => keys.iter().all(|(database, _)| has(database)),
        RequestBody::Lock(lock) => {
            lock.keys.iter().all(|(database, _)| has(database))
                && lock.watches.iter().all(|watch| has(&watch.database))
                && lock.queries.iter().all(|words| are_words(words, is_whole_query))
        }
        RequestBody::Prepare { participants, effects, .. } => {
            participants.iter().all(can_be)
                && effects.iter().all(|effect| match effect {
                    Effect::Key { database, .. } | Effect::Flush { database } => has(database),
                    Effect::Swap { first, second } => has(first) && has(second),
                    Effect::Give(moved) => can_be(&moved.group.0),
                    Effect::Take(_) | Effect::Answer(_) => true,
                })
        }
        RequestBody::Obey(_)
        | RequestBody::Holders(_)
        | RequestBody::Renew { .. }
        | RequestBody::Cut { .. }
        | RequestBody::ReadCut { .. }
        | RequestBody::EndCut { .. }
        | RequestBody::Resolve { .. } => true,
    }
}

fn command_of(args: Args<'_>) -> Option<&'static DataCommand> {
    keyspace::resolve(args).filter(|command| command.accepts(args.len()))
}

fn is_query(command: &DataCommand) -> bool {
    matches!(command.body, Body::Query(_))
}

fn is_whole_query(command: &DataCommand) -> bool {
    is_query(command) && matches!(command.span, KeySpan::Whole(_))
}

//! SUBSCRIBE, PUBLISH and their kin; PUBSUB.

use std::collections::BTreeSet;
use std::sync::Arc;

use command::{Access, Begin, Find, Flag, Group, KeySpec, Refusal};
use group::published::Published;
use keyspace::glob;
use resp::{Args, Writer};

use super::{Answer, Body, ControlCommand, Local, Outcome, Question, container, local, node};
use crate::pubsub::Kind;

const FLAGS: &[Flag] = &[Flag::Pubsub, Flag::Noscript, Flag::Loading, Flag::Stale];

const fn subscribing(name: &'static str, arity: i32, run: super::Run) -> ControlCommand {
    ControlCommand {
        since: "2.0.0",
        group: Group::Pubsub,
        complexity: "O(N) where N is the number of names",
        flags: FLAGS,
        ..local(name, arity, run)
    }
}

/// A shard channel is found among the words as a key is, so that clients of a cluster know which node to ask.
const fn shard_channels(last: i32) -> KeySpec {
    KeySpec {
        access: Access::NotKey,
        begin: Begin::Index(1),
        find: Find::Range { last, step: 1, limit: 0 },
        notes: &[],
    }
}

pub(super) const SUBSCRIBE: ControlCommand = ControlCommand {
    summary: "Listens to channels.",
    syntax: "channel [channel ...]",
    ..subscribing("subscribe", -2, |local, args, writer| {
        subscribe(local, args, Kind::Channel, "subscribe", writer);
        Ok(())
    })
};

pub(super) const PSUBSCRIBE: ControlCommand = ControlCommand {
    summary: "Listens to all channels that match patterns.",
    syntax: "pattern [pattern ...]",
    ..subscribing("psubscribe", -2, |local, args, writer| {
        subscribe(local, args, Kind::Pattern, "psubscribe", writer);
        Ok(())
    })
};

pub(super) const SSUBSCRIBE: ControlCommand = ControlCommand {
    since: "7.0.0",
    summary: "Listens to shard channels.",
    syntax: "shardchannel [shardchannel ...]",
    keys: &[shard_channels(-1)],
    ..subscribing("ssubscribe", -2, |local, args, writer| {
        if local.is_in_transaction {
            return Err(Refusal::new("ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client"));
        }
        subscribe(local, args, Kind::Shard, "ssubscribe", writer);
        Ok(())
    })
};

pub(super) const UNSUBSCRIBE: ControlCommand = ControlCommand {
    summary: "Stops listening to channels, or to all.",
    syntax: "[channel [channel ...]]",
    ..subscribing("unsubscribe", -1, |local, args, writer| {
        unsubscribe(local, args, Kind::Channel, "unsubscribe", writer);
        Ok(())
    })
};

pub(super) const PUNSUBSCRIBE: ControlCommand = ControlCommand {
    summary: "Stops listening to patterns, or to all.",
    syntax: "[pattern [pattern ...]]",
    ..subscribing("punsubscribe", -1, |local, args, writer| {
        unsubscribe(local, args, Kind::Pattern, "punsubscribe", writer);
        Ok(())
    })
};

pub(super) const SUNSUBSCRIBE: ControlCommand = ControlCommand {
    since: "7.0.0",
    summary: "Stops listening to shard channels, or to all.",
    syntax: "[shardchannel [shardchannel ...]]",
    keys: &[shard_channels(-1)],
    ..subscribing("sunsubscribe", -1, |local, args, writer| {
        unsubscribe(local, args, Kind::Shard, "sunsubscribe", writer);
        Ok(())
    })
};

/// Each name is confirmed on its own, as a push: to CLIENT REPLY these are no replies.
fn subscribe(local: &mut Local<'_>, args: Args<'_>, kind: Kind, word: &str, writer: &mut Writer) {
    for name in args.iter().skip(1) {
        local.core.pubsub.subscribe(local.session, kind, name);
        confirm(local, kind, word, Some(name), writer);
    }
    local.is_pushed = true;
}

fn unsubscribe(local: &mut Local<'_>, args: Args<'_>, kind: Kind, word: &str, writer: &mut Writer) {
    local.is_pushed = true;
    if args.len() > 1 {
        for name in args.iter().skip(1) {
            local.core.pubsub.unsubscribe(local.session, kind, name);
            confirm(local, kind, word, Some(name), writer);
        }
        return;
    }
    let names: BTreeSet<Arc<[u8]>> =
        local.session.options.subscriptions.as_ref().map(|all| all.names(kind).clone()).unwrap_or_default();
    if names.is_empty() {
        confirm(local, kind, word, None, writer);
    }
    for name in names {
        local.core.pubsub.unsubscribe(local.session, kind, &name);
        confirm(local, kind, word, Some(&name), writer);
    }
}

fn confirm(local: &Local<'_>, kind: Kind, word: &str, name: Option<&[u8]>, writer: &mut Writer) {
    writer.push(3);
    writer.bulk(word.as_bytes());
    writer.bulk_or_null(name);
    writer.count(local.session.options.subscriptions.as_ref().map_or(0, |all| all.told_count(kind)));
}

const fn publishing(name: &'static str, ask: super::Ask) -> ControlCommand {
    ControlCommand {
        group: Group::Pubsub,
        complexity: "O(N+M) where N is the number of clients that listen to the channel and M is the number of patterns",
        flags: &[Flag::Pubsub, Flag::Loading, Flag::Stale, Flag::Fast],
        body: Body::Tell {
            ask,
            join: |_, _, answers, writer| {
                writer.integer(super::sum_counts(answers) as i64);
                Ok(())
            },
        },
        ..container(name)
    }
}

pub(super) const PUBLISH: ControlCommand = ControlCommand {
    since: "2.0.0",
    arity: 3,
    summary: "Sends a message to the listeners of a channel, and returns how many there are on this node.",
    syntax: "channel message",
    ..publishing("publish", |_, args| Ok(Question::Publish(Published::new(args.at(1), args.at(2)))))
};

pub(super) const SPUBLISH: ControlCommand = ControlCommand {
    since: "7.0.0",
    arity: 3,
    summary: "Sends a message to the listeners of a shard channel, and returns how many there are on this node.",
    complexity: "O(N) where N is the number of clients that listen to the shard channel",
    syntax: "shardchannel message",
    keys: &[shard_channels(0)],
    ..publishing("spublish", |_, args| {
        Ok(Question::Publish(Published { is_shard: true, ..Published::new(args.at(1), args.at(2)) }))
    })
};

const ABOUT: &[Flag] = &[Flag::Pubsub, Flag::Loading, Flag::Stale];

const fn about(name: &'static str, arity: i32, ask: super::Ask, join: super::JoinAnswers) -> ControlCommand {
    ControlCommand { since: "2.8.0", group: Group::Pubsub, flags: ABOUT, ..node(name, arity, ask, join) }
}

pub(super) const PUBSUB: ControlCommand = ControlCommand {
    since: "2.8.0",
    group: Group::Pubsub,
    summary: "Commands on channels and their listeners.",
    complexity: "Depends on subcommand.",
    subcommands: &[
        ControlCommand {
            summary: "Lists the channels that somebody listens to.",
            complexity: "O(N) where N is the number of channels",
            syntax: "[pattern]",
            ..about("channels", -2, |_, args| names_question(Kind::Channel, args), write_names)
        },
        ControlCommand {
            summary: "Returns how many clients listen to channels, without those that listen to patterns.",
            complexity: "O(N) where N is the number of channels asked about",
            syntax: "[channel [channel ...]]",
            ..about("numsub", -2, |_, args| Ok(counts_question(Kind::Channel, args)), write_counts)
        },
        ControlCommand {
            summary: "Returns how many different patterns clients listen to.",
            ..about(
                "numpat",
                2,
                |_, _| Ok(Question::Names { kind: Kind::Pattern, filter: None }),
                |_, _, answers, writer| {
                    writer.count(joined_names(answers).len());
                    Ok(())
                },
            )
        },
        ControlCommand {
            since: "7.0.0",
            summary: "Lists the shard channels that somebody listens to.",
            complexity: "O(N) where N is the number of shard channels",
            syntax: "[pattern]",
            ..about("shardchannels", -2, |_, args| names_question(Kind::Shard, args), write_names)
        },
        ControlCommand {
            since: "7.0.0",
            summary: "Returns how many clients listen to shard channels.",
            complexity: "O(N) where N is the number of shard channels asked about",
            syntax: "[shardchannel [shardchannel ...]]",
            ..about("shardnumsub", -2, |_, args| Ok(counts_question(Kind::Shard, args)), write_counts)
        },
        ControlCommand {
            since: "6.2.0",
            group: Group::Pubsub,
            summary: "Lists the subcommands.",
            flags: &[Flag::Loading, Flag::Stale],
            ..local("help", 2, |_, _, writer| {
                super::write_help(writer, "PUBSUB", PUBSUB.subcommands);
                Ok(())
            })
        },
    ],
    ..container("pubsub")
};

fn names_question(kind: Kind, args: Args<'_>) -> Result<Question, Refusal> {
    if args.len() > 3 {
        return Err(super::subcommand_syntax(args));
    }
    Ok(Question::Names { kind, filter: args.get(2).map(<[u8]>::to_vec) })
}

fn counts_question(kind: Kind, args: Args<'_>) -> Question {
    Question::Listeners { kind, names: args.iter().skip(2).map(<[u8]>::to_vec).collect() }
}

/// This core's part of the answer to [`Question::Names`].
pub(super) fn names(core: &crate::context::Context, kind: Kind, filter: Option<&[u8]>) -> Answer {
    let names = core.pubsub.names(kind).filter(|name| filter.is_none_or(|filter| glob::matches(filter, name)));
    Answer::Names(names.map(<[u8]>::to_vec).collect())
}

fn joined_names(answers: Vec<Answer>) -> BTreeSet<Vec<u8>> {
    let names = answers.into_iter().flat_map(|answer| match answer {
        Answer::Names(names) => names,
        other => unreachable!("a core named {other:?}"),
    });
    names.collect()
}

fn write_names(_: &mut Local<'_>, _: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    let names = joined_names(answers);
    writer.array(names.len());
    for name in names {
        writer.bulk(&name);
    }
    Ok(())
}

fn write_counts(_: &mut Local<'_>, args: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    let mut totals = vec![0; args.len() - 2];
    for answer in answers {
        let Answer::Counts(counts) = answer else { unreachable!("a core counted {answer:?}") };
        for (total, count) in totals.iter_mut().zip(counts) {
            *total += count;
        }
    }
    writer.array(totals.len() * 2);
    for (name, total) in args.iter().skip(2).zip(totals) {
        writer.bulk(name);
        writer.integer(total as i64);
    }
    Ok(())
}

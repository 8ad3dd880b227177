//! DUMP and RESTORE: a value as bytes that any Redis understands, and back.

use command::{Access, Command, Flag, Group, Refusal, Span};
use resp::{Args, Writer};
use stdx::UnixMillis;

use super::key_at;
use crate::ValueRef;
use crate::commands::arguments::{integer, is};
use crate::commands::{Body, DataCommand};
use crate::context::{self, Edit, View};
use crate::notice::Class;
use crate::rdb::{self, Malformed};

pub const DUMP: DataCommand = Command {
    name: "dump",
    since: "2.6.0",
    group: Group::Generic,
    summary: "Return a serialized version of the value stored at the specified key.",
    complexity: "O(N) where N is the size of the value.",
    syntax: "key",
    arity: 2,
    flags: &[Flag::Readonly],
    categories: &["keyspace"],
    keys: &[key_at(1, Access::Read, &["access"])],
    tips: &["nondeterministic_output"],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(dump),
};

pub const RESTORE: DataCommand = Command {
    name: "restore",
    since: "2.6.0",
    group: Group::Generic,
    summary: "Create a key using the provided serialized value, previously obtained using DUMP.",
    complexity: "O(N) where N is the size of the value.",
    syntax: "key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds | FREQ frequency]",
    arity: -4,
    flags: &[Flag::Write, Flag::Denyoom],
    categories: &["keyspace", "dangerous"],
    keys: &[key_at(1, Access::Overwrite, &["update"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(restore),
};

fn dump(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    match view.entry(args.at(1)) {
        Some(entry) => writer.bulk(&rdb::dump(entry.value())),
        None => writer.null(),
    }
    Ok(())
}

/// What the words behind the value ask for.
#[derive(Default)]
struct Options {
    replace: bool,
    absolute: bool,
    access: Option<context::Access>,
}

impl Options {
    fn parse(args: Args<'_>) -> Result<Self, Refusal> {
        let mut options = Self::default();
        let (mut idle_seconds, mut frequency) = (None, None);
        let mut next = 4;
        while let Some(word) = args.get(next) {
            let value = args.get(next + 1);
            match value {
                _ if is(word, "replace") => options.replace = true,
                _ if is(word, "absttl") => options.absolute = true,
                Some(value) if is(word, "idletime") && frequency.is_none() => {
                    let invalid = |_| Refusal::new("ERR Invalid IDLETIME value, must be >= 0");
                    idle_seconds = Some(u64::try_from(integer(value)?).map_err(invalid)?);
                    next += 1;
                }
                Some(value) if is(word, "freq") && idle_seconds.is_none() => {
                    let invalid = |_| Refusal::new("ERR Invalid FREQ value, must be >= 0 and <= 255");
                    frequency = Some(u8::try_from(integer(value)?).map_err(invalid)?);
                    next += 1;
                }
                _ => return Err(Refusal::SYNTAX),
            }
            next += 1;
        }
        options.access = idle_seconds.map(context::Access::IdleSeconds).or(frequency.map(context::Access::Frequency));
        Ok(options)
    }
}

fn restore(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let options = Options::parse(args)?;
    let key = args.at(1);
    if !options.replace && edit.entry(key).is_some() {
        return Err(Refusal::BUSY_KEY);
    }
    let time_to_live = integer(args.at(2))?;
    if time_to_live < 0 {
        return Err(Refusal::new("ERR Invalid TTL value, must be >= 0"));
    }
    let value = rdb::restore(args.at(3), &edit.keyspace().limits()).map_err(|malformed| match malformed {
        Malformed::Footer => Refusal::new("ERR DUMP payload version or checksum are wrong"),
        Malformed::Value => Refusal::new("ERR Bad data format"),
    })?;
    let (now, expired_until) = (edit.moment().unix.0, edit.expired_until());
    let expires_at = match time_to_live {
        0 => None,
        deadline if options.absolute => Some(deadline),
        // A time too far away to be counted is as good as the last one that can.
        time_to_live => Some(time_to_live.saturating_add(now)),
    };
    // Of a hash all fields may have expired on the way.
    let is_gone = matches!(value.as_ref(), ValueRef::Hash(hash) if !hash.at(expired_until).is_living());
    if is_gone || expires_at.is_some_and(|deadline| deadline <= expired_until) {
        if edit.remove(key) {
            edit.notify(Class::Generic, "del", key);
        }
    } else {
        let database = edit.database();
        edit.put(database, key, value, expires_at.map(UnixMillis), options.access);
        edit.notify(Class::Generic, "restore", key);
    }
    writer.ok();
    Ok(())
}

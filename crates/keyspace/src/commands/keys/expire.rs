//! EXPIRE and its kin, and PERSIST: when a key expires.

use command::{Access, Command, Flag, Group, Refusal, Span};
use resp::{Args, Writer};
use stdx::UnixMillis;

use super::key_at;
use crate::commands::arguments::integer;
use crate::commands::{Body, DataCommand};
use crate::context::Edit;
use crate::notice::Class;

pub const EXPIRE: DataCommand = Command {
    name: "expire",
    since: "1.0.0",
    group: Group::Generic,
    summary: "Set a key's time to live in seconds.",
    complexity: "O(1)",
    syntax: "key seconds [NX | XX | GT | LT]",
    arity: -3,
    flags: &[Flag::Write, Flag::Fast],
    categories: &["keyspace"],
    keys: &[key_at(1, Access::ReadWrite, &["update"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(|edit, args, writer| expire(edit, args, writer, "expire", From::Now, Unit::Seconds)),
};

pub const PEXPIRE: DataCommand = Command {
    name: "pexpire",
    since: "2.6.0",
    summary: "Set a key's time to live in milliseconds.",
    syntax: "key milliseconds [NX | XX | GT | LT]",
    body: Body::Mutate(|edit, args, writer| expire(edit, args, writer, "pexpire", From::Now, Unit::Milliseconds)),
    ..EXPIRE
};

pub const EXPIREAT: DataCommand = Command {
    name: "expireat",
    since: "1.2.0",
    summary: "Set the expiration for a key as a UNIX timestamp.",
    syntax: "key unix-time-seconds [NX | XX | GT | LT]",
    body: Body::Mutate(|edit, args, writer| expire(edit, args, writer, "expireat", From::Epoch, Unit::Seconds)),
    ..EXPIRE
};

pub const PEXPIREAT: DataCommand = Command {
    name: "pexpireat",
    since: "2.6.0",
    summary: "Set the expiration for a key as a UNIX timestamp specified in milliseconds.",
    syntax: "key unix-time-milliseconds [NX | XX | GT | LT]",
    body: Body::Mutate(|edit, args, writer| expire(edit, args, writer, "pexpireat", From::Epoch, Unit::Milliseconds)),
    ..EXPIRE
};

pub const PERSIST: DataCommand = Command {
    name: "persist",
    since: "2.2.0",
    summary: "Remove the expiration from a key.",
    syntax: "key",
    arity: 2,
    body: Body::Mutate(persist),
    ..EXPIRE
};

#[derive(Clone, Copy)]
enum From {
    Now,
    Epoch,
}

#[derive(Clone, Copy)]
enum Unit {
    Seconds,
    Milliseconds,
}

/// When to set the new expiry.
#[derive(Clone, Copy, Default)]
struct Condition {
    /// Only if there is none yet.
    absent: bool,
    /// Only if there is one already.
    present: bool,
    /// Only if it is later.
    later: bool,
    /// Only if it is earlier.
    earlier: bool,
}

impl Condition {
    fn parse(args: Args<'_>) -> Result<Self, Refusal> {
        let mut condition = Self::default();
        for word in args.iter().skip(3) {
            match word.to_ascii_lowercase().as_slice() {
                b"nx" => condition.absent = true,
                b"xx" => condition.present = true,
                b"gt" => condition.later = true,
                b"lt" => condition.earlier = true,
                _ => return Err(Refusal::new(format!("ERR Unsupported option {}", String::from_utf8_lossy(word)))),
            }
        }
        let Self { absent, present, later, earlier } = condition;
        if absent && (present || later || earlier) {
            return Err(Refusal::new("ERR NX and XX, GT or LT options at the same time are not compatible"));
        }
        if later && earlier {
            return Err(Refusal::new("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(condition)
    }

    /// A key that never vanishes counts as one that vanishes last.
    fn holds(self, current: Option<UnixMillis>, wanted: UnixMillis) -> bool {
        !(self.absent && current.is_some()
            || self.present && current.is_none()
            || self.later && current.is_none_or(|current| wanted <= current)
            || self.earlier && current.is_some_and(|current| wanted >= current))
    }
}

fn expire(
    edit: &mut Edit<'_>,
    args: Args<'_>,
    writer: &mut Writer,
    name: &str,
    from: From,
    unit: Unit,
) -> Result<(), Refusal> {
    let condition = Condition::parse(args)?;
    let now = edit.moment().unix;
    let number = integer(args.at(2))?;
    let deadline = match unit {
        Unit::Seconds => number.checked_mul(1000),
        Unit::Milliseconds => Some(number),
    }
    .and_then(|millis| match from {
        From::Now => millis.checked_add(now.0),
        From::Epoch => Some(millis),
    });
    let deadline = deadline.map(UnixMillis).ok_or_else(|| Refusal::invalid_expire(name))?;

    let key = args.at(1);
    let current = edit.entry(key).map(|entry| entry.expires_at());
    let set = current.is_some_and(|current| condition.holds(current, deadline));
    if set && deadline.0 <= edit.expired_until() {
        edit.remove(key);
        edit.notify(Class::Generic, "del", key);
    } else if set {
        edit.set_expiry(key, Some(deadline));
        edit.notify(Class::Generic, "expire", key);
    }
    writer.integer(i64::from(set));
    Ok(())
}

fn persist(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let key = args.at(1);
    let volatile = edit.entry(key).is_some_and(|entry| entry.expires_at().is_some());
    if volatile {
        edit.set_expiry(key, None);
        edit.notify(Class::Generic, "persist", key);
    }
    writer.integer(i64::from(volatile));
    Ok(())
}

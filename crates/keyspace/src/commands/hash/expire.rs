//! HEXPIRE and its kin, and HPERSIST: when fields expire.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use super::fields::{Fields, deadline, unknown};
use crate::collection::hash::HashMut;
use crate::collection::hash::expiring::NEVER;
use crate::commands::arguments::{ExpiryForm, is};
use crate::commands::string::first_key;
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit};

pub(super) const HEXPIRE: DataCommand = DataCommand {
    name: "hexpire",
    since: "7.4.0",
    group: Group::Hash,
    summary: "Sets the time to live of fields, in seconds.",
    complexity: "O(N) where N is the number of fields named.",
    syntax: "key seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]",
    arity: -6,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["update"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(|edit, args, writer| expire(edit, args, writer, (ExpiryForm::Seconds, "hexpire"), in_any_order)),
};

pub(super) const HPEXPIRE: DataCommand = DataCommand {
    name: "hpexpire",
    summary: "Sets the time to live of fields, in milliseconds.",
    syntax: "key milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]",
    body: Body::Mutate(|edit, args, writer| expire(edit, args, writer, (ExpiryForm::Millis, "hpexpire"), in_any_order)),
    ..HEXPIRE
};

pub(super) const HEXPIREAT: DataCommand = DataCommand {
    name: "hexpireat",
    summary: "Sets when fields expire, as a Unix time in seconds.",
    syntax: "key unix-time-seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]",
    body: Body::Mutate(|edit, args, writer| {
        expire(edit, args, writer, (ExpiryForm::UnixSeconds, "hexpireat"), in_any_order)
    }),
    ..HEXPIRE
};

pub(super) const HPEXPIREAT: DataCommand = DataCommand {
    name: "hpexpireat",
    summary: "Sets when fields expire, as a Unix time in milliseconds.",
    syntax: "key unix-time-milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]",
    body: Body::Mutate(|edit, args, writer| {
        expire(edit, args, writer, (ExpiryForm::UnixMillis, "hpexpireat"), in_any_order)
    }),
    ..HEXPIRE
};

/// HEXPIRE before its options could stand behind the fields.
pub(crate) const HEXPIRE_OF_LEVEL_1: DataCommand = DataCommand {
    body: Body::Mutate(|edit, args, writer| expire(edit, args, writer, (ExpiryForm::Seconds, "hexpire"), in_order)),
    ..HEXPIRE
};

/// The same of HPEXPIRE.
pub(crate) const HPEXPIRE_OF_LEVEL_1: DataCommand = DataCommand {
    body: Body::Mutate(|edit, args, writer| expire(edit, args, writer, (ExpiryForm::Millis, "hpexpire"), in_order)),
    ..HPEXPIRE
};

/// The same of HEXPIREAT.
pub(crate) const HEXPIREAT_OF_LEVEL_1: DataCommand = DataCommand {
    body: Body::Mutate(|edit, args, writer| {
        expire(edit, args, writer, (ExpiryForm::UnixSeconds, "hexpireat"), in_order)
    }),
    ..HEXPIREAT
};

/// The same of HPEXPIREAT.
pub(crate) const HPEXPIREAT_OF_LEVEL_1: DataCommand = DataCommand {
    body: Body::Mutate(|edit, args, writer| {
        expire(edit, args, writer, (ExpiryForm::UnixMillis, "hpexpireat"), in_order)
    }),
    ..HPEXPIREAT
};

/// What must hold of the deadline that a field has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    None,
    Nx,
    Xx,
    Gt,
    Lt,
}

impl Condition {
    fn named(word: &[u8]) -> Self {
        let named = [("nx", Self::Nx), ("xx", Self::Xx), ("gt", Self::Gt), ("lt", Self::Lt)];
        named.into_iter().find(|(name, _)| is(word, name)).map_or(Self::None, |(_, condition)| condition)
    }

    /// True if a field with this deadline may get the new one. No deadline is later than any.
    fn accepts(self, old: Option<i64>, new: i64) -> bool {
        match self {
            Self::None => true,
            Self::Nx => old.is_none(),
            Self::Xx => old.is_some(),
            Self::Gt => old.is_some_and(|old| new > old),
            Self::Lt => old.is_none_or(|old| new < old),
        }
    }
}

/// What HEXPIRE answers of a field.
mod outcome {
    pub(super) const NO_FIELD: i64 = -2;
    pub(super) const CONDITION_NOT_MET: i64 = 0;
    pub(super) const SET: i64 = 1;
    pub(super) const DELETED: i64 = 2;
    /// HPERSIST's answer.
    pub(super) const NO_DEADLINE: i64 = -1;
}

/// How the words behind the time are read.
type Parse = for<'a> fn(Args<'a>) -> Result<(Condition, Fields<'a>), Refusal>;

const NUMBER_NOT_POSITIVE: &str = "ERR Parameter `numFields` should be greater than 0";

/// The condition, if there is one, and then the fields: as in Redis up to 8.2.
fn in_order(args: Args<'_>) -> Result<(Condition, Fields<'_>), Refusal> {
    let condition = Condition::named(args.at(3));
    let place = if condition == Condition::None { 3 } else { 4 };
    Ok((condition, Fields::parse(args, place, NUMBER_NOT_POSITIVE)?))
}

/// The condition in front of the fields or behind them: as in Redis since 8.4.
fn in_any_order(args: Args<'_>) -> Result<(Condition, Fields<'_>), Refusal> {
    let (mut condition, mut is_one, mut fields) = (Condition::None, true, None);
    let mut place = 3;
    while let Some(word) = args.get(place) {
        if is(word, "fields") {
            if fields.is_some() {
                return Err(Refusal::new(Fields::TWICE));
            }
            if place + 2 >= args.len() {
                return Err(Refusal::new("ERR FIELDS requires at least numfields and one field argument"));
            }
            let found = Fields::counted(args, place, 1, NUMBER_NOT_POSITIVE)?;
            place = found.places().end;
            fields = Some(found);
            continue;
        }
        let named = Condition::named(word);
        if named == Condition::None {
            return Err(unknown(word));
        }
        is_one &= condition == Condition::None || condition == named;
        condition = named;
        place += 1;
    }
    let fields = fields.ok_or_else(|| Refusal::new(Fields::MISSING))?;
    if !is_one {
        return Err(Refusal::new("ERR Multiple condition flags specified"));
    }
    Ok((condition, fields))
}

fn expire(
    edit: &mut Edit<'_>,
    args: Args<'_>,
    writer: &mut Writer,
    (form, command): (ExpiryForm, &str),
    parse: Parse,
) -> Result<(), Refusal> {
    let key = args.at(1);
    let exists = edit.view().hash(key)?.is_some();
    let new = deadline(form, args.at(2), edit.moment(), command)?;
    let (condition, fields) = parse(args)?;
    if !exists {
        fields.answer_all(writer, outcome::NO_FIELD);
        return Ok(());
    }
    let now = edit.expired_until();
    let set = |hash: &mut HashMut<'_, '_>, field: &[u8]| match hash.as_ref().get_with_deadline(field) {
        None => outcome::NO_FIELD,
        Some((_, old)) if !condition.accepts(old, new) => outcome::CONDITION_NOT_MET,
        Some(_) if new <= now => {
            hash.remove(field);
            outcome::DELETED
        }
        Some(_) => {
            hash.set_deadline(field, new);
            outcome::SET
        }
    };
    let outcomes: Vec<i64> = edit.modify_hash(key, |hash| fields.iter().map(|field| set(hash, field)).collect())?;
    if outcomes.contains(&outcome::DELETED) {
        edit.notify_taken(Class::Hash, "hdel", key);
    } else if outcomes.contains(&outcome::SET) {
        edit.notify(Class::Hash, "hexpire", key);
    }
    writer.array(outcomes.len());
    outcomes.into_iter().for_each(|outcome| writer.integer(outcome));
    Ok(())
}

pub(super) const HPERSIST: DataCommand = DataCommand {
    name: "hpersist",
    summary: "Removes the deadlines of fields.",
    syntax: "key FIELDS numfields field [field ...]",
    arity: -5,
    flags: &[Flag::Write, Flag::Fast],
    body: Body::Mutate(persist),
    ..HEXPIRE
};

fn persist(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let key = args.at(1);
    let exists = edit.view().hash(key)?.is_some();
    let fields = Fields::parse(args, 2, Fields::NOT_POSITIVE)?;
    if !exists {
        fields.answer_all(writer, outcome::NO_FIELD);
        return Ok(());
    }
    let persist = |hash: &mut HashMut<'_, '_>, field: &[u8]| match hash.as_ref().get_with_deadline(field) {
        None => outcome::NO_FIELD,
        Some((_, None)) => outcome::NO_DEADLINE,
        Some((_, Some(_))) => {
            hash.set_deadline(field, NEVER);
            outcome::SET
        }
    };
    let outcomes: Vec<i64> = edit.modify_hash(key, |hash| fields.iter().map(|field| persist(hash, field)).collect())?;
    if outcomes.contains(&outcome::SET) {
        edit.notify(Class::Hash, "hpersist", key);
    }
    writer.array(outcomes.len());
    outcomes.into_iter().for_each(|outcome| writer.integer(outcome));
    Ok(())
}

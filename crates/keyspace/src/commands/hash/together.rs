//! HGETEX, HSETEX and HGETDEL: values and deadlines of fields in one step.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use super::fields::{Fields, deadline, unknown};
use crate::collection::hash::expiring::{Keeping, NEVER};
use crate::commands::arguments::{ExpiryForm, is, parse_integer};
use crate::commands::string::first_key;
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit, Moment};

pub(super) const HGETDEL: DataCommand = DataCommand {
    name: "hgetdel",
    since: "8.0.0",
    group: Group::Hash,
    summary: "Returns the values of fields and removes the fields, and the key with the last one.",
    complexity: "O(N) where N is the number of fields named.",
    syntax: "key FIELDS numfields field [field ...]",
    arity: -5,
    flags: &[Flag::Write, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["access", "delete"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(hgetdel),
};

fn hgetdel(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let key = args.at(1);
    let exists = edit.view().hash(key)?.is_some();
    let fields = Fields::parse(args, 2, Fields::NOT_POSITIVE)?;
    if !exists {
        fields.answer_nulls(writer);
        return Ok(());
    }
    writer.array(fields.len());
    let removed_count = edit.modify_hash(key, |hash| {
        let take = |field: &&[u8]| {
            writer.bulk_or_null(hash.as_ref().get(field));
            hash.remove(field)
        };
        fields.iter().filter(take).count()
    })?;
    if removed_count > 0 {
        edit.notify_taken(Class::Hash, "hdel", key);
    }
    Ok(())
}

pub(super) const HGETEX: DataCommand = DataCommand {
    name: "hgetex",
    summary: "Returns the values of fields and sets, or removes, their deadlines.",
    syntax: "key [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST] \
             FIELDS numfields field [field ...]",
    keys: &[first_key(Access::ReadWrite, &["access", "update"])],
    body: Body::Mutate(|edit, args, writer| hgetex(edit, args, writer, read_in_any_order)),
    ..HGETDEL
};

/// HGETEX before its options could stand behind the fields.
pub(crate) const HGETEX_OF_LEVEL_1: DataCommand =
    DataCommand { body: Body::Mutate(|edit, args, writer| hgetex(edit, args, writer, read_in_order)), ..HGETEX };

/// How the words of HGETEX are read: the new deadline, if there is one, and the fields.
type Parse = for<'a> fn(Args<'a>, Moment) -> Result<(Option<i64>, Fields<'a>), Refusal>;

/// One option, if any, and then the fields: as in Redis up to 8.2.
fn read_in_order(args: Args<'_>, moment: Moment) -> Result<(Option<i64>, Fields<'_>), Refusal> {
    let (new, place) = match ExpiryForm::named(args.at(2)) {
        Some(form) => (Some(deadline(form, args.at(3), moment, "hgetex")?), 4),
        None if is(args.at(2), "persist") => (Some(NEVER), 3),
        None => (None, 2),
    };
    Ok((new, Fields::parse(args, place, Fields::NOT_POSITIVE)?))
}

/// Options in front of the fields or behind them: as in Redis since 8.4.
fn read_in_any_order(args: Args<'_>, moment: Moment) -> Result<(Option<i64>, Fields<'_>), Refusal> {
    let Words { lifetime, fields, must_exist, is_foreign } = Words::parse(args, moment, &OF_HGETEX)?;
    if is_foreign || must_exist.is_some() {
        return Err(Refusal::new(UNKNOWN));
    }
    let new = match lifetime {
        Some(Lifetime::Until(deadline)) => Some(deadline),
        Some(Lifetime::Persist) => Some(NEVER),
        Some(Lifetime::Keep) | None => None,
    };
    Ok((new, fields))
}

/// What tells HGETEX from HSETEX, where both read their words in any order.
struct Manner {
    name: &'static str,
    words_each: usize,
    /// Of PERSIST and KEEPTTL the one that it does not know.
    foreign: Lifetime,
    /// What it says to two lifetimes.
    complaint: &'static str,
}

const OF_HGETEX: Manner = Manner {
    name: "hgetex",
    words_each: 1,
    foreign: Lifetime::Keep,
    complaint: "ERR Only one of EX, PX, EXAT, PXAT or PERSIST arguments can be specified",
};

const OF_HSETEX: Manner = Manner {
    name: "hsetex",
    words_each: 2,
    foreign: Lifetime::Persist,
    complaint: "ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified",
};

const UNKNOWN: &str = "ERR unknown argument";

/// What becomes of deadlines.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lifetime {
    Until(i64),
    Persist,
    Keep,
}

/// The words of HGETEX or HSETEX, read in any order.
struct Words<'a> {
    lifetime: Option<Lifetime>,
    /// Whether all fields must exist, or none.
    must_exist: Option<bool>,
    fields: Fields<'a>,
    /// There is an option that only the other one knows.
    is_foreign: bool,
}

impl<'a> Words<'a> {
    fn parse(args: Args<'a>, moment: Moment, manner: &Manner) -> Result<Self, Refusal> {
        let (mut lifetime, mut must_exist, mut fields, mut is_foreign) = (None, None, None, false);
        let mut place = 2;
        while let Some(word) = args.get(place) {
            place += 1;
            if is(word, "fields") {
                if fields.is_some() {
                    return Err(Refusal::new(Fields::TWICE));
                }
                if place == args.len() {
                    return Err(Refusal::wrong_arity(manner.name));
                }
                let found = Fields::counted(args, place - 1, manner.words_each, "ERR invalid number of fields")?;
                place = found.places().end;
                fields = Some(found);
            } else if let Some(form) = ExpiryForm::named(word) {
                if lifetime.is_some() {
                    return Err(Refusal::new(manner.complaint));
                }
                let word = args.get(place).ok_or_else(|| Refusal::new("ERR missing expire time"))?;
                lifetime = Some(Lifetime::Until(deadline(form, word, moment, manner.name)?));
                place += 1;
            } else if is(word, "persist") || is(word, "keepttl") {
                let wanted = if is(word, "persist") { Lifetime::Persist } else { Lifetime::Keep };
                // That of the other command is refused at the end, whatever else there is.
                if lifetime.is_some_and(|known| known == wanted || matches!(known, Lifetime::Until(_))) {
                    return Err(Refusal::new(manner.complaint));
                }
                is_foreign |= wanted == manner.foreign;
                lifetime = Some(wanted);
            } else if !reads_condition(word, &mut must_exist)? {
                return Err(unknown(word));
            }
        }
        let fields = fields.ok_or_else(|| Refusal::new(Fields::MISSING))?;
        Ok(Self { lifetime, must_exist, fields, is_foreign })
    }
}

fn hgetex(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer, parse: Parse) -> Result<(), Refusal> {
    let key = args.at(1);
    let exists = edit.view().hash(key)?.is_some();
    let (new, fields) = parse(args, edit.moment())?;
    if !exists {
        fields.answer_nulls(writer);
        return Ok(());
    }
    let now = edit.expired_until();
    writer.array(fields.len());
    let (mut updated, mut deleted) = (false, false);
    edit.modify_hash(key, |hash| {
        for field in fields.iter() {
            let found = hash.as_ref().get_with_deadline(field);
            writer.bulk_or_null(found.map(|(value, _)| value));
            match (found.map(|(_, old)| old), new) {
                (None, _) | (_, None) | (Some(None), Some(NEVER)) => {}
                (Some(_), Some(new)) if new <= now => deleted |= hash.remove(field),
                (Some(_), Some(new)) => updated |= hash.set_deadline(field, new),
            }
        }
    })?;
    if deleted {
        edit.notify_taken(Class::Hash, "hdel", key);
    } else if updated {
        edit.notify(Class::Hash, if new == Some(NEVER) { "hpersist" } else { "hexpire" }, key);
    }
    Ok(())
}

pub(super) const HSETEX: DataCommand = DataCommand {
    name: "hsetex",
    summary: "Sets fields of a hash and their deadline; on request only if all, or none, of them exist.",
    syntax: "key [FNX | FXX] [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | \
             KEEPTTL] FIELDS numfields field value [field value ...]",
    arity: -6,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    keys: &[first_key(Access::ReadWrite, &["update"])],
    body: Body::Mutate(|edit, args, writer| hsetex(edit, args, writer, Request::in_any_order)),
    ..HGETDEL
};

/// HSETEX before its options could stand behind the fields.
pub(crate) const HSETEX_OF_LEVEL_1: DataCommand =
    DataCommand { body: Body::Mutate(|edit, args, writer| hsetex(edit, args, writer, Request::in_order)), ..HSETEX };

/// Reads FXX or FNX: whether all fields must exist, or none. False if the word is neither.
fn reads_condition(word: &[u8], must_exist: &mut Option<bool>) -> Result<bool, Refusal> {
    let wanted = is(word, "fxx");
    if !wanted && !is(word, "fnx") {
        return Ok(false);
    }
    if must_exist.replace(wanted).is_some() {
        return Err(Refusal::new("ERR Only one of FXX or FNX arguments can be specified"));
    }
    Ok(true)
}

/// What the words beside the fields ask for.
struct Request {
    /// Whether all fields must exist, or none.
    must_exist: Option<bool>,
    keeping: Keeping,
    /// Where the first field is, and the end of the last one's value.
    fields: std::ops::Range<usize>,
}

impl Request {
    /// Options in front of the fields or behind them: as in Redis since 8.4.
    fn in_any_order(args: Args<'_>, moment: Moment) -> Result<Self, Refusal> {
        let Words { lifetime, must_exist, fields, is_foreign } = Words::parse(args, moment, &OF_HSETEX)?;
        if is_foreign {
            return Err(Refusal::new(UNKNOWN));
        }
        let keeping = match lifetime {
            Some(Lifetime::Until(deadline)) => Keeping::Until(deadline),
            Some(Lifetime::Keep) => Keeping::Deadline,
            Some(Lifetime::Persist) | None => Keeping::Nothing,
        };
        Ok(Self { must_exist, keeping, fields: fields.places() })
    }

    /// All options in front of the fields: as in Redis 8.0 and 8.2.
    fn in_order(args: Args<'_>, moment: Moment) -> Result<Self, Refusal> {
        let (mut must_exist, mut keeping) = (None, None);
        let mut place = 2;
        while let Some(word) = args.get(place) {
            if is(word, "fields") {
                let first = place + 2;
                if first + 1 >= args.len() {
                    return Err(Refusal::wrong_arity("hsetex"));
                }
                let number =
                    parse_integer(args.at(place + 1)).filter(|number| (1..=i64::from(i32::MAX)).contains(number));
                let number = number.ok_or_else(|| Refusal::new("ERR invalid number of fields"))?;
                let words = args.len() - first;
                if !words.is_multiple_of(2) || number != words as i64 / 2 {
                    return Err(Refusal::wrong_arity("hsetex"));
                }
                let keeping = keeping.unwrap_or(Keeping::Nothing);
                return Ok(Self { must_exist, keeping, fields: first..args.len() });
            }
            let form = ExpiryForm::named(word);
            if form.is_some() || is(word, "keepttl") {
                if keeping.is_some() {
                    return Err(Refusal::new(OF_HSETEX.complaint));
                }
                keeping = Some(match form {
                    None => Keeping::Deadline,
                    Some(form) => {
                        place += 1;
                        let word = args.get(place).ok_or_else(|| Refusal::new("ERR missing expire time"))?;
                        Keeping::Until(deadline(form, word, moment, "hsetex")?)
                    }
                });
            } else if !reads_condition(word, &mut must_exist)? {
                return Err(unknown(word));
            }
            place += 1;
        }
        Err(Refusal::wrong_arity("hsetex"))
    }
}

fn hsetex(
    edit: &mut Edit<'_>,
    args: Args<'_>,
    writer: &mut Writer,
    parse: fn(Args<'_>, Moment) -> Result<Request, Refusal>,
) -> Result<(), Refusal> {
    let Request { must_exist, keeping, fields } = parse(args, edit.moment())?;
    let key = args.at(1);
    let hash = edit.view().hash(key)?;
    let fields = fields.step_by(2);
    let exists = |at: usize| hash.is_some_and(|hash| hash.get(args.at(at)).is_some());
    if must_exist.is_some_and(|wanted| fields.clone().any(|at| exists(at) != wanted)) {
        writer.integer(0);
        return Ok(());
    }
    let is_past = matches!(keeping, Keeping::Until(deadline) if deadline <= edit.expired_until());
    edit.modify_hash(key, |hash| {
        for at in fields {
            if is_past {
                hash.remove(args.at(at));
            } else {
                hash.put(args.at(at), args.at(at + 1), keeping);
            }
        }
    })?;
    edit.notify(Class::Hash, "hset", key);
    if is_past {
        edit.notify_taken(Class::Hash, "hdel", key);
    } else if matches!(keeping, Keeping::Until(_)) {
        edit.notify(Class::Hash, "hexpire", key);
    }
    writer.integer(1);
    Ok(())
}

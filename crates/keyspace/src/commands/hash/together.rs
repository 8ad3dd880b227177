//! HGETEX, HSETEX and HGETDEL: values and deadlines of fields in one step.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use super::fields::{Fields, deadline};
use crate::collection::hash::expiring::{Keeping, NEVER};
use crate::commands::arguments::{ExpiryForm, is, parse_integer};
use crate::commands::string::first_key;
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit};

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
    body: Body::Mutate(hgetex),
    ..HGETDEL
};

fn hgetex(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let key = args.at(1);
    let exists = edit.view().hash(key)?.is_some();
    let (new, place) = match ExpiryForm::named(args.at(2)) {
        Some(form) => (Some(deadline(form, args.at(3), edit.moment(), "hgetex")?), 4),
        None if is(args.at(2), "persist") => (Some(NEVER), 3),
        None => (None, 2),
    };
    let fields = Fields::parse(args, place, Fields::NOT_POSITIVE)?;
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
    body: Body::Mutate(hsetex),
    ..HGETDEL
};

/// What the words before the fields ask for.
struct Request {
    /// Whether all fields must exist, or none.
    must_exist: Option<bool>,
    keeping: Keeping,
    /// Where the first field is.
    first: usize,
}

impl Request {
    fn parse(args: Args<'_>, edit: &Edit<'_>) -> Result<Self, Refusal> {
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
                return Ok(Self { must_exist, keeping: keeping.unwrap_or(Keeping::Nothing), first });
            }
            let form = ExpiryForm::named(word);
            if form.is_some() || is(word, "keepttl") {
                if keeping.is_some() {
                    return Err(Refusal::new(
                        "ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified",
                    ));
                }
                keeping = Some(match form {
                    None => Keeping::Deadline,
                    Some(form) => {
                        place += 1;
                        let word = args.get(place).ok_or_else(|| Refusal::new("ERR missing expire time"))?;
                        Keeping::Until(deadline(form, word, edit.moment(), "hsetex")?)
                    }
                });
            } else if is(word, "fxx") || is(word, "fnx") {
                if must_exist.is_some() {
                    return Err(Refusal::new("ERR Only one of FXX or FNX arguments can be specified"));
                }
                must_exist = Some(is(word, "fxx"));
            } else {
                return Err(Refusal::new(format!("ERR unknown argument: {}", String::from_utf8_lossy(word))));
            }
            place += 1;
        }
        Err(Refusal::wrong_arity("hsetex"))
    }
}

fn hsetex(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let Request { must_exist, keeping, first } = Request::parse(args, edit)?;
    let key = args.at(1);
    let hash = edit.view().hash(key)?;
    let fields = (first..args.len()).step_by(2);
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

//! SET and its older kin: bind a key to a string, under conditions, with an expiry.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use super::compare::Comparison;
use super::first_key;
use crate::commands::arguments::{ExpiryForm, is};
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit, Expiry};

pub(super) const SET: DataCommand = DataCommand {
    name: "set",
    since: "1.0.0",
    group: Group::String,
    summary: "Sets the string under a key, and replaces any value.",
    complexity: "O(1)",
    syntax: "key value [NX | XX | IFEQ ifeq-value | IFNE ifne-value | IFDEQ ifdeq-digest | IFDNE ifdne-digest] [GET] \
             [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL]",
    arity: -3,
    flags: &[Flag::Write, Flag::Denyoom],
    categories: &[],
    keys: &[first_key(
        Access::ReadWrite,
        &["access", "update", "variable_flags", "RW and ACCESS due to the optional `GET` argument"],
    )],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(set),
};

fn set(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    if args.len() == 3 {
        edit.set_string(args.at(1), args.at(2), Expiry::Clear);
        edit.notify(Class::String, "set", args.at(1));
        writer.ok();
        return Ok(());
    }
    let options = Options::parse(args)?;
    let expiry = options.lifetime.expiry(edit, "set")?;
    let key = args.at(1);
    let old = if options.get { edit.reading().string(key)? } else { None };
    let allowed = options.condition.holds(edit, key)?;
    if options.get {
        match old {
            Some(value) => value.write_bulk(writer),
            None => writer.null(),
        }
    }
    if allowed {
        store(edit, key, args.at(2), expiry);
    }
    match (options.get, allowed) {
        (true, _) => {}
        (false, true) => writer.ok(),
        (false, false) => writer.null(),
    }
    Ok(())
}

/// Stores the value and reports it.
pub(super) fn store(edit: &mut Edit<'_>, key: &[u8], value: &[u8], expiry: Expiry) {
    edit.set_string(key, value, expiry);
    edit.notify(Class::String, "set", key);
    if let Expiry::At(deadline) = expiry {
        edit.notify(Class::Generic, "expire", key);
        if deadline.0 <= edit.expired_until() {
            edit.notify(Class::Expired, "expired", key);
        }
    }
}

/// What may follow the value. Options come in any order, and the same one twice counts as once, the last time said.
struct Options<'a> {
    condition: Condition<'a>,
    get: bool,
    lifetime: Lifetime<'a>,
}

/// Whether the key must or must not be there, or what it must or must not hold.
#[derive(Clone, Copy)]
enum Condition<'a> {
    Always,
    IfAbsent,
    IfPresent,
    IfHolds(Comparison<'a>),
}

/// What is said about when the value ends: at most one of several words.
pub(super) enum Lifetime<'a> {
    /// Nothing: SET removes the value's deadline, GETEX leaves it as it is.
    Unsaid,
    /// The one word without a time: KEEPTTL for SET, PERSIST for GETEX.
    Word,
    /// A time in one of four forms.
    Until(ExpiryForm, &'a [u8]),
}

impl<'a> Options<'a> {
    fn parse(args: Args<'a>) -> Result<Self, Refusal> {
        let mut options = Self { condition: Condition::Always, get: false, lifetime: Lifetime::Unsaid };
        let mut index = 3;
        while let Some(word) = args.get(index) {
            if options.lifetime.take(args, &mut index, "keepttl") {
                continue;
            }
            let comparison = args.get(index + 1).and_then(|operand| Comparison::named(word, operand));
            let condition = match options.condition {
                Condition::Always | Condition::IfAbsent if is(word, "nx") => Some(Condition::IfAbsent),
                Condition::Always | Condition::IfPresent if is(word, "xx") => Some(Condition::IfPresent),
                Condition::Always => comparison.map(Condition::IfHolds),
                Condition::IfHolds(said) => {
                    comparison.filter(|other| said.is_same_kind(*other)).map(Condition::IfHolds)
                }
                Condition::IfAbsent | Condition::IfPresent => None,
            };
            match condition {
                Some(condition) => {
                    index += if let Condition::IfHolds(_) = condition { 2 } else { 1 };
                    options.condition = condition;
                }
                None if is(word, "get") => {
                    options.get = true;
                    index += 1;
                }
                None => return Err(Refusal::SYNTAX),
            }
        }
        Ok(options)
    }
}

impl Condition<'_> {
    /// Asking counts as a use of the key, whatever the answer.
    fn holds(self, edit: &Edit<'_>, key: &[u8]) -> Result<bool, Refusal> {
        match self {
            Self::Always => Ok(true),
            Self::IfAbsent => Ok(edit.entry(key).is_none()),
            Self::IfPresent => Ok(edit.entry(key).is_some()),
            Self::IfHolds(comparison) => match edit.string(key)? {
                Some(value) => comparison.holds(value),
                // What is not there is unlike everything.
                None => Ok(comparison.is_negative()),
            },
        }
    }
}

impl<'a> Lifetime<'a> {
    /// Reads the option at `index` if it is about the value's life and does not clash with what was said before, and
    /// moves `index` behind it. `keyword` is the command's word without a time.
    pub(super) fn take(&mut self, args: Args<'a>, index: &mut usize, keyword: &str) -> bool {
        let Some(word) = args.get(*index) else { return false };
        if is(word, keyword) && !matches!(self, Self::Until(..)) {
            *self = Self::Word;
            *index += 1;
            return true;
        }
        let (Some(form), Some(time)) = (ExpiryForm::named(word), args.get(*index + 1)) else { return false };
        let fits = match self {
            Self::Unsaid => true,
            Self::Word => false,
            Self::Until(said, _) => *said == form,
        };
        if fits {
            *self = Self::Until(form, time);
            *index += 2;
        }
        fits
    }
}

impl Lifetime<'_> {
    /// What becomes of the deadline of a key that is stored, where the word without a time is KEEPTTL.
    ///
    /// # Errors
    /// If the time is none, in the words of `command`.
    pub(super) fn expiry(&self, edit: &Edit<'_>, command: &str) -> Result<Expiry, Refusal> {
        match *self {
            Self::Unsaid => Ok(Expiry::Clear),
            Self::Word => Ok(Expiry::Keep),
            Self::Until(form, word) => form.deadline(word, edit.moment(), command).map(Expiry::At),
        }
    }
}

pub(super) const SETNX: DataCommand = DataCommand {
    name: "setnx",
    since: "1.0.0",
    group: Group::String,
    summary: "Sets the string under a key that does not exist yet.",
    complexity: "O(1)",
    syntax: "key value",
    arity: 3,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::Overwrite, &["insert"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(setnx),
};

fn setnx(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let allowed = edit.entry(args.at(1)).is_none();
    if allowed {
        store(edit, args.at(1), args.at(2), Expiry::Clear);
    }
    writer.integer(i64::from(allowed));
    Ok(())
}

pub(super) const SETEX: DataCommand = DataCommand {
    name: "setex",
    since: "2.0.0",
    group: Group::String,
    summary: "Sets the string under a key for some seconds.",
    complexity: "O(1)",
    syntax: "key seconds value",
    arity: 4,
    flags: &[Flag::Write, Flag::Denyoom],
    categories: &[],
    keys: &[first_key(Access::Overwrite, &["update"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(setex),
};

fn setex(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    set_for(edit, args, ExpiryForm::Seconds, "setex", writer)
}

pub(super) const PSETEX: DataCommand = DataCommand {
    name: "psetex",
    since: "2.6.0",
    group: Group::String,
    summary: "Sets the string under a key for some milliseconds.",
    complexity: "O(1)",
    syntax: "key milliseconds value",
    arity: 4,
    flags: &[Flag::Write, Flag::Denyoom],
    categories: &[],
    keys: &[first_key(Access::Overwrite, &["update"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(psetex),
};

fn psetex(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    set_for(edit, args, ExpiryForm::Millis, "psetex", writer)
}

fn set_for(
    edit: &mut Edit<'_>,
    args: Args<'_>,
    form: ExpiryForm,
    command: &str,
    writer: &mut Writer,
) -> Result<(), Refusal> {
    let deadline = form.deadline(args.at(2), edit.view().moment(), command)?;
    store(edit, args.at(1), args.at(3), Expiry::At(deadline));
    writer.ok();
    Ok(())
}

pub(super) const GETSET: DataCommand = DataCommand {
    name: "getset",
    since: "1.0.0",
    group: Group::String,
    summary: "Sets the string under a key and returns the one before.",
    complexity: "O(1)",
    syntax: "key value",
    arity: 3,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["access", "update"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(getset),
};

fn getset(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    match edit.reading().string(args.at(1))? {
        Some(value) => value.write_bulk(writer),
        None => writer.null(),
    }
    store(edit, args.at(1), args.at(2), Expiry::Clear);
    Ok(())
}

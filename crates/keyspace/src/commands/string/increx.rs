//! INCREX: a number under a key, changed within bounds and given a time to live in one step.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Protocol, Writer};
use stdx::UnixMillis;

use super::first_key;
use crate::commands::arguments::{ExpiryForm, is, parse_integer};
use crate::commands::extended::Extended;
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit, Expiry, Str};

pub(super) const INCREX: DataCommand = DataCommand {
    name: "increx",
    since: "8.8.0",
    group: Group::String,
    summary: "Adds a number to the one under a key within bounds, and may set or remove its time to live.",
    complexity: "O(1)",
    syntax: "key [BYFLOAT increment | BYINT increment] [LBOUND lowerbound] [UBOUND upperbound] [SATURATE] \
             [<EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds> [ENX] | PERSIST]",
    arity: -2,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["access", "update"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(increx),
};

/// What may follow the key. Options come in any order, each of them once.
#[derive(Default)]
struct Options<'a> {
    increment: Option<&'a [u8]>,
    is_float: bool,
    lower: Option<&'a [u8]>,
    upper: Option<&'a [u8]>,
    /// What would leave the bounds ends at them.
    saturates: bool,
    until: Option<(ExpiryForm, &'a [u8])>,
    /// A deadline that is there stays.
    keeps_deadline: bool,
    persists: bool,
}

impl<'a> Options<'a> {
    fn parse(args: Args<'a>) -> Result<Self, Refusal> {
        let mut options = Self::default();
        let mut index = 2;
        while let Some(word) = args.get(index) {
            let value = args.get(index + 1);
            let width = match value {
                Some(value) if options.increment.is_none() && (is(word, "byint") || is(word, "byfloat")) => {
                    (options.increment, options.is_float) = (Some(value), is(word, "byfloat"));
                    2
                }
                Some(value) if options.lower.is_none() && is(word, "lbound") => {
                    options.lower = Some(value);
                    2
                }
                Some(value) if options.upper.is_none() && is(word, "ubound") => {
                    options.upper = Some(value);
                    2
                }
                _ if !options.saturates && is(word, "saturate") => {
                    options.saturates = true;
                    1
                }
                _ if !options.keeps_deadline && !options.persists && is(word, "enx") => {
                    options.keeps_deadline = true;
                    1
                }
                _ if !options.persists && !options.keeps_deadline && options.until.is_none() && is(word, "persist") => {
                    options.persists = true;
                    1
                }
                Some(value) if options.until.is_none() && !options.persists => {
                    options.until = Some((ExpiryForm::named(word).ok_or(Refusal::SYNTAX)?, value));
                    2
                }
                _ => return Err(Refusal::SYNTAX),
            };
            index += width;
        }
        if options.keeps_deadline && options.until.is_none() {
            return Err(Refusal::new("ERR ENX flag requires an expiration"));
        }
        Ok(options)
    }
}

/// What becomes of a number that something is added to.
enum Sum<N> {
    /// The new number, and what was really added.
    Within(N, N),
    /// It would leave the bounds, and stays as it is.
    Outside(N),
}

fn increx(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let options = Options::parse(args)?;
    if options.is_float { add_float(edit, args, &options, writer) } else { add_integer(edit, args, &options, writer) }
}

fn add_integer(edit: &mut Edit<'_>, args: Args<'_>, options: &Options<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let number = |word: Option<&[u8]>, name: &str, unsaid: i64| match word {
        Some(word) => {
            parse_integer(word).ok_or_else(|| Refusal::new(format!("ERR {name} is not an integer or out of range")))
        }
        None => Ok(unsaid),
    };
    let increment = number(options.increment, "Increment", 1)?;
    let (lower, upper) = (number(options.lower, "LBOUND", i64::MIN)?, number(options.upper, "UBOUND", i64::MAX)?);
    if lower > upper {
        return Err(crossed_bounds());
    }
    let deadline = deadline(edit, options)?;
    let key = args.at(1);
    let old = match edit.reading().string(key)? {
        Some(Str::Integer(number)) => number,
        Some(Str::Bytes(text)) => parse_integer(text).ok_or(Refusal::NOT_AN_INTEGER)?,
        None => 0,
    };
    let sum = match add_within(old, increment, lower, upper) {
        (new, true) => Sum::Within(new, increment),
        (new, false) if options.saturates => {
            let added = new.checked_sub(old).ok_or_else(|| Refusal::new("ERR applied increment would overflow"))?;
            Sum::Within(new, added)
        }
        _ => Sum::Outside(old),
    };
    let (shown, added) = match sum {
        Sum::Within(new, added) => {
            finish(edit, key, options, deadline, "incrby", |edit, expiry| edit.set_integer(key, new, expiry));
            (new, added)
        }
        Sum::Outside(old) => (old, 0),
    };
    writer.array(2);
    writer.integer(shown);
    writer.integer(added);
    Ok(())
}

/// The sum, or the bound beyond which it lies, and whether it lies within them.
fn add_within(old: i64, increment: i64, lower: i64, upper: i64) -> (i64, bool) {
    let sum = i128::from(old) + i128::from(increment);
    let bounded = sum.clamp(lower.into(), upper.into());
    (bounded as i64, bounded == sum)
}

fn add_float(edit: &mut Edit<'_>, args: Args<'_>, options: &Options<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let number = |word: Option<&[u8]>, name: &str, unsaid: Extended| match word {
        Some(word) => Extended::parse(word).ok_or_else(|| Refusal::new(format!("ERR {name} is not a valid float"))),
        None => Ok(unsaid),
    };
    let increment = number(options.increment, "Increment", 1.into())?;
    if !increment.is_finite() {
        return Err(Refusal::new("ERR BYFLOAT increment cannot be Infinity"));
    }
    let lower = number(options.lower, "LBOUND", Extended::MAX.negated())?;
    let upper = number(options.upper, "UBOUND", Extended::MAX)?;
    if lower > upper {
        return Err(crossed_bounds());
    }
    let deadline = deadline(edit, options)?;
    let key = args.at(1);
    let old = match edit.reading().string(key)? {
        Some(Str::Integer(number)) => number.into(),
        Some(Str::Bytes(text)) => Extended::parse(text).ok_or(Refusal::NOT_A_FLOAT)?,
        None => 0.into(),
    };
    if !old.is_finite() {
        return Err(Refusal::new("ERR value cannot be Infinity"));
    }
    // A sum that is too large lies beyond every bound on the side of the increment.
    let sum = old.checked_add(increment);
    let bound = match sum {
        Some(sum) if sum > upper => Some(upper),
        Some(sum) if sum < lower => Some(lower),
        Some(_) => None,
        None if increment > Extended::from(0) => Some(upper),
        None => Some(lower),
    };
    let sum = match (sum, bound) {
        (Some(sum), None) => Sum::Within(sum, increment),
        (_, Some(bound)) if options.saturates => {
            let added = bound.checked_add(old.negated());
            Sum::Within(bound, added.ok_or_else(|| Refusal::new("ERR applied increment would be Infinity"))?)
        }
        _ => Sum::Outside(old),
    };
    let (shown, added) = match sum {
        Sum::Within(new, added) => {
            let text = new.print();
            finish(edit, key, options, deadline, "incrbyfloat", |edit, expiry| {
                // Kept as text even if it looks like an integer, as INCRBYFLOAT does.
                edit.set_text(key, text.as_bytes(), expiry);
            });
            (text, added.print())
        }
        Sum::Outside(old) => (old.print(), "0".to_owned()),
    };
    writer.array(2);
    for text in [shown, added] {
        match writer.protocol() {
            Protocol::Resp2 => writer.bulk(text.as_bytes()),
            Protocol::Resp3 => writer.double_text(&text),
        }
    }
    Ok(())
}

fn crossed_bounds() -> Refusal {
    Refusal::new("ERR LBOUND can't be greater than UBOUND")
}

/// When the key expires, if that is said.
fn deadline(edit: &Edit<'_>, options: &Options<'_>) -> Result<Option<UnixMillis>, Refusal> {
    options.until.map(|(form, word)| form.deadline(word, edit.moment(), "increx")).transpose()
}

/// Stores the number, with its deadline, and reports what was done.
fn finish(
    edit: &mut Edit<'_>,
    key: &[u8],
    options: &Options<'_>,
    deadline: Option<UnixMillis>,
    event: &'static str,
    store: impl FnOnce(&mut Edit<'_>, Expiry),
) {
    let ends = edit.peek(key).is_some_and(|entry| entry.expires_at().is_some());
    match deadline.filter(|_| !(options.keeps_deadline && ends)) {
        Some(deadline) if deadline.0 <= edit.expired_until() => {
            if edit.remove(key) {
                edit.notify(Class::Generic, "del", key);
            }
        }
        Some(deadline) => {
            store(edit, Expiry::At(deadline));
            edit.notify(Class::String, event, key);
            edit.notify(Class::Generic, "expire", key);
        }
        None if options.persists => {
            store(edit, Expiry::Clear);
            edit.notify(Class::String, event, key);
            if ends {
                edit.notify(Class::Generic, "persist", key);
            }
        }
        None => {
            store(edit, Expiry::Keep);
            edit.notify(Class::String, event, key);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Harness;

    #[test]
    fn numbers_stay_within_their_bounds() {
        let mut harness = Harness::new();
        for (before, line, reply) in [
            ("DEL k", "INCREX k", "*2\r\n:1\r\n:1\r\n"),
            ("SET k 50", "INCREX k BYINT 100 UBOUND 80 SATURATE", "*2\r\n:80\r\n:30\r\n"),
            ("SET k 10", "INCREX k BYINT -100 LBOUND 0", "*2\r\n:10\r\n:0\r\n"),
            (
                "SET k 9223372036854775800",
                "INCREX k BYINT 9223372036854775800 SATURATE",
                "*2\r\n:9223372036854775807\r\n:7\r\n",
            ),
            (
                "SET k 9223372036854775800",
                "INCREX k SATURATE UBOUND -9223372036854775808",
                "-ERR applied increment would overflow\r\n",
            ),
            ("SET k 50", "INCREX k BYINT 5 UBOUND 30", "*2\r\n:50\r\n:0\r\n"),
            ("SET k 50", "INCREX k BYINT 5 UBOUND 30 SATURATE", "*2\r\n:30\r\n:-20\r\n"),
            ("SET k 50", "INCREX k BYINT -25 UBOUND 30", "*2\r\n:25\r\n:-25\r\n"),
            ("SET k 1.5", "INCREX k BYFLOAT 0.25", "*2\r\n$4\r\n1.75\r\n$4\r\n0.25\r\n"),
            ("SET k 10", "INCREX k BYFLOAT 100 UBOUND 42.5 SATURATE", "*2\r\n$4\r\n42.5\r\n$4\r\n32.5\r\n"),
            ("SET k 10", "INCREX k BYFLOAT 1 LBOUND inf", "-ERR LBOUND can't be greater than UBOUND\r\n"),
            ("SET k 10", "INCREX k BYFLOAT 1 UBOUND inf", "*2\r\n$2\r\n11\r\n$1\r\n1\r\n"),
            (
                "SET k 10",
                "INCREX k BYFLOAT 1 LBOUND inf UBOUND inf SATURATE",
                "-ERR applied increment would be Infinity\r\n",
            ),
            ("SET k 10", "INCREX k BYFLOAT 1 LBOUND -inf UBOUND -inf", "*2\r\n$2\r\n10\r\n$1\r\n0\r\n"),
            ("SET k 10", "INCREX k BYFLOAT 1e4932 UBOUND 100 SATURATE", "*2\r\n$3\r\n100\r\n$2\r\n90\r\n"),
            ("SET k inf", "INCREX k BYFLOAT 1", "-ERR value cannot be Infinity\r\n"),
            ("SET k 1", "INCREX k BYFLOAT -inf", "-ERR BYFLOAT increment cannot be Infinity\r\n"),
            ("SET k 1.5", "INCREX k", "-ERR value is not an integer or out of range\r\n"),
        ] {
            harness.run(before);
            assert_eq!(harness.run(line), reply, "{before}; {line}");
        }
        harness.run("SET k 1.1e4932");
        let doubled = harness.run("INCREX k BYFLOAT 1.1e4932 SATURATE");
        assert!(doubled.starts_with("*2\r\n$4933\r\n11897314953572317650212638530309702051"), "{doubled}");
        harness.protocol = resp::Protocol::Resp3;
        harness.run("SET k 1");
        assert_eq!(harness.run("INCREX k BYFLOAT 0.5"), "*2\r\n,1.5\r\n,0.5\r\n");
    }
}

//! XNACK: what was given out goes back to the group, and may be had by anybody.

use command::{Access, Flag, Refusal};
use resp::{Args, Writer};

use super::{ON_STREAM, no_group, strict_id};
use crate::Edit;
use crate::collection::stream::Id;
use crate::collection::stream::group::{GIVEN_UP, Pending};
use crate::commands::arguments::{integer, is, parse_integer};
use crate::commands::string::first_key;
use crate::commands::{Body, DataCommand};

pub(super) const XNACK: DataCommand = DataCommand {
    name: "xnack",
    since: "8.8.0",
    summary: "Releases pending entries, so that other consumers of the group may have them at once.",
    complexity: "O(log N) for each id, where N is the number of pending entries.",
    syntax: "key group <SILENT | FAIL | FATAL> IDS numids id [id ...] [RETRYCOUNT count] [FORCE]",
    arity: -7,
    flags: &[Flag::Write, Flag::Fast],
    keys: &[first_key(Access::ReadWrite, &["update"])],
    body: Body::Mutate(xnack),
    ..ON_STREAM
};

/// Why entries are released.
#[derive(Clone, Copy)]
enum Mode {
    /// It was not for their sake: the last time they were given out does not count.
    Silent,
    /// Somebody else may do better with them.
    Fail,
    /// Nobody will.
    Fatal,
}

/// What is asked for.
struct Request {
    mode: Mode,
    ids: Vec<Id>,
    /// How often the entries are said to have been given out, whatever the mode.
    count: Option<u64>,
    /// Entries that are not pending become so.
    is_forced: bool,
}

impl Request {
    fn parse(args: Args<'_>) -> Result<Self, Refusal> {
        let modes = [("silent", Mode::Silent), ("fail", Mode::Fail), ("fatal", Mode::Fatal)];
        let mode = modes.into_iter().find_map(|(name, mode)| is(args.at(3), name).then_some(mode));
        let mode = mode.ok_or(Refusal::new("ERR mode must be SILENT, FAIL, or FATAL"))?;
        let (mut words, mut count, mut is_forced) = (None, None, false);
        let mut index = 4;
        while index < args.len() {
            let word = args.at(index);
            match args.get(index + 1) {
                Some(number) if is(word, "ids") => {
                    let number = parse_integer(number).filter(|number| (1..=i64::from(i32::MAX)).contains(number));
                    let number = number.ok_or(Refusal::new("ERR numids must be a positive integer"))? as usize;
                    if number > args.len() - index - 2 {
                        return Err(Refusal::new("ERR number of IDs doesn't match numids"));
                    }
                    words = Some(args.iter().skip(index + 2).take(number));
                    index += 2 + number;
                }
                _ if is(word, "force") => {
                    is_forced = true;
                    index += 1;
                }
                Some(number) if is(word, "retrycount") => {
                    let number = u64::try_from(integer(number)?);
                    count = Some(number.map_err(|_| Refusal::new("ERR Invalid RETRYCOUNT value, must be >= 0"))?);
                    index += 2;
                }
                _ => {
                    let word = String::from_utf8_lossy(word);
                    return Err(Refusal::new(format!("ERR Unrecognized XNACK option '{word}'")));
                }
            }
        }
        let words = words.ok_or(Refusal::new("ERR syntax error, expected IDS keyword"))?;
        let ids = words.map(|word| strict_id(word, 0)).collect::<Result<_, _>>()?;
        Ok(Self { mode, ids, count, is_forced })
    }

    /// How often an entry has been given out once it is released.
    fn count_of(&self, pending: Option<&Pending>) -> u64 {
        let before = pending.map_or(0, |pending| pending.count);
        self.count.unwrap_or(match self.mode {
            // What was given up has no count but the one that is shown.
            Mode::Silent => before.min(i64::MAX as u64).saturating_sub(1),
            Mode::Fail => before,
            Mode::Fatal => GIVEN_UP,
        })
    }
}

fn xnack(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (key, name) = (args.at(1), args.at(2));
    if edit.reading().stream(key)?.is_none_or(|stream| stream.group(name).is_none()) {
        return Err(no_group(key, name));
    }
    let request = Request::parse(args)?;
    let count = edit.modify_stream(key, |stream| {
        let mut count = 0;
        for &id in &request.ids {
            let pending = stream.as_ref().group(name).and_then(|group| group.pending(id)).cloned();
            if pending.is_some() || request.is_forced && stream.as_ref().get(id).is_some() {
                let times = request.count_of(pending.as_ref());
                stream.change().change_group(name, |group| group.release(id, times));
                count += 1;
            }
        }
        count
    })?;
    if count > 0 {
        edit.wake_waiters(key);
    }
    writer.count(count);
    Ok(())
}

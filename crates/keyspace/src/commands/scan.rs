//! What HSCAN, SSCAN and ZSCAN have in common: one step of a walk through a collection.

use command::Refusal;
use resp::{Args, Writer};

use super::arguments::{integer, is};
use super::keys::parse_cursor;
use crate::glob::Filter;

/// Elements that one step looks at unless COUNT says otherwise.
const COUNT_DEFAULT: usize = 10;

/// One step: what it was asked for, and what it has found.
pub(super) struct Step<'a> {
    filter: Filter<'a>,
    count: usize,
    found: Writer,
    found_count: usize,
}

impl<'a> Step<'a> {
    /// The cursor, which is looked at before the key is.
    ///
    /// # Errors
    /// As [`parse_cursor`].
    pub(super) fn cursor(args: Args<'_>) -> Result<u64, Refusal> {
        parse_cursor(args.at(2))
    }

    /// Reads the options from word 3 on; of a key that is absent they are not looked at.
    ///
    /// # Errors
    /// What is no option, or no positive count.
    pub(super) fn new(args: Args<'a>, writer: &Writer) -> Result<Self, Refusal> {
        Self::with_flag(args, writer, None).map(|(step, _)| step)
    }

    /// The same for a command with an option that is one word. Tells if that is there.
    ///
    /// # Errors
    /// As there.
    pub(super) fn with_flag(args: Args<'a>, writer: &Writer, flag: Option<&str>) -> Result<(Self, bool), Refusal> {
        let (mut filter, mut count, mut has_flag) = (Filter::All, COUNT_DEFAULT, false);
        let mut next = 3;
        while let Some(option) = args.get(next) {
            if flag.is_some_and(|flag| is(option, flag)) {
                has_flag = true;
                next += 1;
                continue;
            }
            let value = args.get(next + 1).ok_or(Refusal::SYNTAX)?;
            if is(option, "count") {
                count = usize::try_from(integer(value)?).ok().filter(|&count| count > 0).ok_or(Refusal::SYNTAX)?;
            } else if is(option, "match") {
                filter = Filter::new(value);
            } else {
                return Err(Refusal::SYNTAX);
            }
            next += 2;
        }
        Ok((Self { filter, count, found: Writer::new(writer.protocol()), found_count: 0 }, has_flag))
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn selects(&self, element: &[u8]) -> bool {
        self.filter.selects(element)
    }

    pub(super) fn push(&mut self, text: &[u8]) {
        self.found.bulk(text);
        self.found_count += 1;
    }

    /// Writes the reply, with the cursor to go on from.
    pub(super) fn write(self, next: u64, writer: &mut Writer) {
        writer.array(2);
        writer.bulk(next.to_string().as_bytes());
        writer.array(self.found_count);
        writer.raw(self.found.bytes());
    }

    /// The reply where there is nothing to walk through.
    pub(super) fn write_end(writer: &mut Writer) {
        writer.array(2);
        writer.bulk(b"0");
        writer.array(0);
    }
}

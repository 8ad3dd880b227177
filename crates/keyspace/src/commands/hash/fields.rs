//! The words that commands on deadlines of fields have in common.

use command::Refusal;
use resp::{Args, Writer};

use crate::Moment;
use crate::commands::arguments::{ExpiryForm, integer, is, parse_integer};

/// The latest deadline of a field, in milliseconds since the epoch: Redis keeps two of 48 bits for other purposes.
const DEADLINE_MAX: i64 = (1 << 46) - 1;

/// When fields expire: `word` in this form, in milliseconds since the epoch. It may have passed.
///
/// # Errors
/// [`Refusal::NOT_AN_INTEGER`], a negative time, and [`Refusal::invalid_expire`] for `command` if it is too late.
pub(super) fn deadline(form: ExpiryForm, word: &[u8], moment: Moment, command: &str) -> Result<i64, Refusal> {
    let number = integer(word)?;
    if number < 0 {
        return Err(Refusal::new("ERR invalid expire time, must be >= 0"));
    }
    let millis = match form {
        ExpiryForm::Seconds | ExpiryForm::UnixSeconds => number.checked_mul(1000),
        ExpiryForm::Millis | ExpiryForm::UnixMillis => Some(number),
    };
    let base = if form.is_relative() { moment.unix.0 } else { 0 };
    let deadline = millis.and_then(|millis| millis.checked_add(base));
    deadline.filter(|deadline| *deadline <= DEADLINE_MAX).ok_or_else(|| Refusal::invalid_expire(command))
}

/// The fields that a command names behind `FIELDS` and their number: all words to the end.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    args: Args<'a>,
    first: usize,
}

impl<'a> Fields<'a> {
    /// What most commands say of a number that is not positive.
    pub(super) const NOT_POSITIVE: &'static str = "ERR Number of fields must be a positive integer";

    /// Reads `FIELDS` at `place`, the number, and the fields.
    ///
    /// # Errors
    /// What stands elsewhere, a number that is not positive (`complaint`), or not that of the fields.
    pub(super) fn parse(args: Args<'a>, place: usize, complaint: &'static str) -> Result<Self, Refusal> {
        if !args.get(place).is_some_and(|word| is(word, "fields")) {
            return Err(Refusal::new("ERR Mandatory argument FIELDS is missing or not at the right position"));
        }
        let number = args.get(place + 1).and_then(parse_integer).filter(|number| *number > 0);
        let number = number.ok_or_else(|| Refusal::new(complaint))?;
        let first = place + 2;
        if usize::try_from(number) != Ok(args.len().saturating_sub(first)) {
            return Err(Refusal::new("ERR The `numfields` parameter must match the number of arguments"));
        }
        Ok(Self { args, first })
    }

    pub(super) fn len(self) -> usize {
        self.args.len() - self.first
    }

    pub(super) fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        self.args.iter().skip(self.first)
    }

    /// Answers with the same number for each.
    pub(super) fn answer_all(self, writer: &mut Writer, number: i64) {
        writer.array(self.len());
        self.iter().for_each(|_| writer.integer(number));
    }

    /// Answers with null for each.
    pub(super) fn answer_nulls(self, writer: &mut Writer) {
        writer.array(self.len());
        self.iter().for_each(|_| writer.null());
    }
}

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

/// The fields that a command names behind `FIELDS` and their number.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    args: Args<'a>,
    first: usize,
    end: usize,
}

impl<'a> Fields<'a> {
    /// What most commands say of a number that is not positive.
    pub(super) const NOT_POSITIVE: &'static str = "ERR Number of fields must be a positive integer";

    /// Reads `FIELDS` at `place`, the number, and the fields: all words to the end.
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
        Ok(Self { args, first, end: args.len() })
    }

    /// Reads the number behind `FIELDS` at `place`, and the fields, each of so many words. Others may follow.
    ///
    /// # Errors
    /// A number that is not positive (`complaint`), and too few words.
    pub(super) fn counted(
        args: Args<'a>,
        place: usize,
        words_each: usize,
        complaint: &'static str,
    ) -> Result<Self, Refusal> {
        let number = args.get(place + 1).and_then(parse_integer).and_then(|number| i32::try_from(number).ok());
        let number = number.filter(|number| *number > 0).ok_or_else(|| Refusal::new(complaint))?;
        let first = place + 2;
        let end = first + number as usize * words_each;
        if end > args.len() {
            return Err(Refusal::new("ERR wrong number of arguments"));
        }
        Ok(Self { args, first, end })
    }

    /// The place of the first field, and that behind the last.
    pub(super) fn places(self) -> std::ops::Range<usize> {
        self.first..self.end
    }

    pub(super) fn len(self) -> usize {
        self.end - self.first
    }

    pub(super) fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        self.args.iter().take(self.end).skip(self.first)
    }

    /// Answers with the same number for each.
    pub(super) fn answer_all(self, writer: &mut Writer, number: i64) {
        writer.array(self.len());
        self.iter().for_each(|_| writer.integer(number));
    }

    /// FIELDS stands once.
    pub(super) const TWICE: &'static str = "ERR FIELDS keyword specified multiple times";
    /// And must stand.
    pub(super) const MISSING: &'static str = "ERR missing FIELDS argument";

    /// Answers with null for each.
    pub(super) fn answer_nulls(self, writer: &mut Writer) {
        writer.array(self.len());
        self.iter().for_each(|_| writer.null());
    }
}

/// Refuses a word that is no option.
pub(super) fn unknown(word: &[u8]) -> Refusal {
    Refusal::new(format!("ERR unknown argument: {}", String::from_utf8_lossy(word)))
}

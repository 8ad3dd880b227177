//! Which command a request names.

use command::Refusal;
use resp::Args;

use crate::catalog::catalog;
use crate::known::Known;

/// Finds a request's command, or says in Redis's words that there is none.
#[inline]
pub(crate) fn lookup(args: Args<'_>) -> Result<Known, Refusal> {
    let name = args.at(0);
    if let Some(command) = keyspace::find(name) {
        if command.subcommands.is_empty() || args.len() == 1 {
            return Ok(Known::Data(command));
        }
        if let Some(command) = keyspace::resolve(args) {
            return Ok(Known::Data(command));
        }
        // MEMORY has subcommands of both kinds.
    }
    let Some(command) = catalog().find_control(name) else {
        return Err(if keyspace::find(name).is_some() { unknown_subcommand(args) } else { unknown_command(args) });
    };
    if !command.has_subcommands() || args.len() == 1 {
        return Ok(Known::Control(command));
    }
    let word = args.at(1);
    command
        .subcommand(word)
        .map(Known::Control)
        .ok_or_else(|| command.instead_of(word).map_or_else(|| unknown_subcommand(args), Refusal::new))
}

pub(crate) fn unknown_command(args: Args<'_>) -> Refusal {
    const SHOWN_BYTES_MAX: usize = 128;
    let shown = |word: &[u8], max: usize| String::from_utf8_lossy(&word[..word.len().min(max)]).into_owned();
    let mut beginning = String::new();
    for word in args.iter().skip(1) {
        if beginning.len() >= SHOWN_BYTES_MAX {
            break;
        }
        let max = SHOWN_BYTES_MAX - beginning.len();
        beginning.push_str(&format!("'{}' ", shown(word, max)));
    }
    Refusal::new(format!(
        "ERR unknown command '{}', with args beginning with: {beginning}",
        shown(args.at(0), SHOWN_BYTES_MAX)
    ))
}

pub(crate) fn unknown_subcommand(args: Args<'_>) -> Refusal {
    Refusal::new(format!(
        "ERR unknown subcommand '{:.128}'. Try {} HELP.",
        String::from_utf8_lossy(args.at(1)),
        String::from_utf8_lossy(args.at(0)).to_uppercase()
    ))
}

/// The database that a SELECT names.
pub(crate) fn selected(args: Args<'_>, databases: u16) -> Result<u16, Refusal> {
    let index = number(args.at(1)).ok_or(Refusal::NOT_AN_INTEGER)?;
    if i32::try_from(index).is_err() {
        return Err(Refusal::new("ERR value is out of range, value must between -2147483648 and 2147483647"));
    }
    let index = u16::try_from(index).ok().filter(|index| *index < databases);
    index.ok_or(Refusal::DATABASE_RANGE)
}

/// A whole number as clients write it.
pub(crate) fn number(word: &[u8]) -> Option<i64> {
    std::str::from_utf8(word).ok().filter(|text| !text.starts_with('+'))?.parse().ok()
}

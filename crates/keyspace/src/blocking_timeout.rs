//! How long a request is willing to wait for data.
//!
//! A command that can wait is executed like any other: it answers null if there is nothing for it. Its words say
//! whether its client then waits, and for how long; the code that runs the command sees to that.

use command::{Flag, Refusal};
use resp::Args;

use crate::DataCommand;
use crate::commands::arguments::{is, parse_integer};
use crate::double;

/// How long a request is willing to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockingTimeout {
    /// Not at all.
    None,
    /// For so many milliseconds.
    Millis(u64),
    /// Without limit.
    Endless,
}

/// Where the words say it.
enum Place {
    /// Seconds, at this word.
    Word(usize),
    /// Seconds, at the last word.
    Last,
    /// Milliseconds, behind the word BLOCK.
    Block,
}

fn place_of(name: &str) -> Option<Place> {
    Some(match name {
        "blpop" | "brpop" | "bzpopmin" | "bzpopmax" => Place::Last,
        "blmpop" | "bzmpop" => Place::Word(1),
        "brpoplpush" => Place::Word(3),
        "blmove" | "blmovem" => Place::Word(5),
        "xread" | "xreadgroup" => Place::Block,
        _ => return None,
    })
}

/// How long the client of this request waits if there is nothing for it.
///
/// # Errors
/// If the words name no time.
#[inline]
pub fn blocking_timeout(command: &DataCommand, args: Args<'_>) -> Result<BlockingTimeout, Refusal> {
    if !command.has(Flag::Blocking) {
        return Ok(BlockingTimeout::None);
    }
    place_of(command.name).map_or(Ok(BlockingTimeout::None), |place| timeout_at(&place, args))
}

fn timeout_at(place: &Place, args: Args<'_>) -> Result<BlockingTimeout, Refusal> {
    let word = match place {
        Place::Word(index) => args.get(*index).ok_or(Refusal::SYNTAX)?,
        Place::Last => args.at(args.len() - 1),
        Place::Block => return block_option(args),
    };
    let seconds = double::parse(word).ok_or_else(|| Refusal::new("ERR timeout is not a float or out of range"))?;
    // Redis rounds up, so that a very short time does not become 0, which means no limit.
    let millis = (seconds * 1000.0).ceil();
    if millis >= i64::MAX as f64 {
        return Err(Refusal::new("ERR timeout is out of range"));
    }
    if millis < 0.0 || seconds < 0.0 {
        return Err(Refusal::new("ERR timeout is negative"));
    }
    Ok(if seconds == 0.0 { BlockingTimeout::Endless } else { BlockingTimeout::Millis(millis as u64) })
}

fn block_option(args: Args<'_>) -> Result<BlockingTimeout, Refusal> {
    let mut index = 1;
    // XREADGROUP's group and consumer may be called anything.
    if is(args.at(0), "xreadgroup") && args.get(1).is_some_and(|word| is(word, "group")) {
        index = 4;
    }
    while let Some(word) = args.get(index) {
        if is(word, "streams") {
            break;
        }
        if is(word, "block") {
            let Some(word) = args.get(index + 1) else { break };
            let millis =
                parse_integer(word).ok_or_else(|| Refusal::new("ERR timeout is not an integer or out of range"))?;
            let millis = u64::try_from(millis).map_err(|_| Refusal::new("ERR timeout is negative"))?;
            return Ok(if millis == 0 { BlockingTimeout::Endless } else { BlockingTimeout::Millis(millis) });
        }
        let has_value = ["count", "claim", "maxcount", "maxsize"].iter().any(|option| is(word, option));
        index += if has_value { 2 } else { 1 };
    }
    Ok(BlockingTimeout::None)
}

/// What a request would take over that is pending in a group, once it has been idle for long enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// The group's name.
    pub group: Vec<u8>,
    /// For how many milliseconds.
    pub idle_ms_min: u64,
}

/// What XREADGROUP would claim, if it is one and says so.
pub fn claims(command: &DataCommand, args: Args<'_>) -> Option<Claims> {
    if command.name != "xreadgroup" {
        return None;
    }
    let (mut group, mut idle_ms_min, mut index) = (None, None, 1);
    while let Some(word) = args.get(index) {
        if is(word, "streams") {
            break;
        }
        let value = args.get(index + 1);
        if is(word, "group") {
            group = value;
            index += 3;
        } else if is(word, "claim") {
            idle_ms_min = value.and_then(parse_integer).and_then(|number| u64::try_from(number).ok());
            index += 2;
        } else {
            index += if is(word, "noack") { 1 } else { 2 };
        }
    }
    Some(Claims { group: group?.to_vec(), idle_ms_min: idle_ms_min? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::words_of;

    fn told(line: &str) -> String {
        let (bytes, spans) = words_of(line);
        let args = Args::new(&bytes, &spans);
        // The commands themselves come with their types: only the words matter here.
        let result = match place_of(std::str::from_utf8(args.at(0)).unwrap()) {
            None => Ok(BlockingTimeout::None),
            Some(place) => timeout_at(&place, args),
        };
        match result {
            Ok(patience) => format!("{patience:?}"),
            Err(refusal) => refusal.text().to_owned(),
        }
    }

    #[test]
    fn a_time_is_found_where_the_command_has_it() {
        for (line, expected) in [
            ("blpop a b 0", "Endless"),
            ("brpop a 1.5", "Millis(1500)"),
            ("bzpopmin a 0.0001", "Millis(1)"),
            ("blmpop 2 1 a left", "Millis(2000)"),
            ("brpoplpush a b 3", "Millis(3000)"),
            ("blmove a b left right 0", "Endless"),
            ("blmovem a b left right 2 exactly 3 obo", "Millis(2000)"),
            ("xread block 100 streams block 0", "Millis(100)"),
            ("xread count 2 block 0 streams s $", "Endless"),
            ("xread streams block 5", "None"),
            ("xreadgroup group block block block 7 streams s >", "Millis(7)"),
            ("xreadgroup group g c claim block block 5 streams s >", "Millis(5)"),
            ("xread maxcount block maxsize block block 6 streams s 0", "Millis(6)"),
            ("get a", "None"),
            ("blpop a x", "ERR timeout is not a float or out of range"),
            ("blpop a nan", "ERR timeout is not a float or out of range"),
            ("blpop a -1", "ERR timeout is negative"),
            ("blpop a -0.0001", "ERR timeout is negative"),
            ("blpop a inf", "ERR timeout is out of range"),
            ("blpop a 1e300", "ERR timeout is out of range"),
            ("xread block x streams s 0", "ERR timeout is not an integer or out of range"),
            ("xread block -1 streams s 0", "ERR timeout is negative"),
        ] {
            assert_eq!(told(line), expected, "{line}");
        }
    }
}

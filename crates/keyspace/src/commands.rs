//! Every data command, declared beside its handler and listed here.

pub(crate) mod arguments;
mod bitmap;
mod extended;
mod geo;
mod hash;
mod hyperloglog;
mod json;
mod key_specs;
mod keys;
mod list;
mod sample;
mod scan;
mod set;
mod sketch;
mod sorted_set;
mod stream;
mod string;
mod vector;

use command::{Command, Group, Index, Refusal, Span};
use resp::{Args, Digits, Writer};

use crate::double::Text;
use crate::{Edit, View, double};

pub use keys::{parse_cursor, scan_count, sort_keys, sort_patterns, tells_use};

/// What runs a data command.
///
/// A handler returns a refusal with nothing written and nothing changed, or writes exactly one reply. The number of
/// words has been checked before; word 0 is the command's name.
#[derive(Debug)]
pub enum Body {
    /// Reads. May run without a log entry.
    Query(fn(&View<'_>, Args<'_>, &mut Writer) -> Result<(), Refusal>),
    /// May change data. Runs when its log entry is applied, on every replica.
    Mutate(fn(&mut Edit<'_>, Args<'_>, &mut Writer) -> Result<(), Refusal>),
    /// Has subcommands, and does nothing by itself.
    Container,
}

/// A command on data.
pub type DataCommand = Command<Body>;

/// Every data command; the order means nothing.
pub static COMMANDS: &[&DataCommand] = &ALL;

const LISTS: &[&[&DataCommand]] = &[
    string::COMMANDS,
    bitmap::COMMANDS,
    hyperloglog::COMMANDS,
    hash::COMMANDS,
    list::COMMANDS,
    set::COMMANDS,
    sorted_set::COMMANDS,
    geo::COMMANDS,
    stream::COMMANDS,
    json::COMMANDS,
    sketch::BLOOM_COMMANDS,
    sketch::CUCKOO_COMMANDS,
    sketch::COUNT_MIN_COMMANDS,
    sketch::TOP_K_COMMANDS,
    sketch::DIGEST_COMMANDS,
    vector::COMMANDS,
    keys::COMMANDS,
];

const COUNT: usize = {
    let mut count = 0;
    let mut list = 0;
    while list < LISTS.len() {
        count += LISTS[list].len();
        list += 1;
    }
    count
};

/// A record that says nothing yet. What the commands of a family have in common is written over it.
const BLANK: DataCommand = DataCommand {
    name: "",
    since: "",
    group: Group::Generic,
    summary: "",
    complexity: "",
    syntax: "",
    arity: 0,
    flags: &[],
    categories: &[],
    keys: &[],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Container,
};

const ALL: [&DataCommand; COUNT] = {
    let mut all = [&BLANK; COUNT];
    let mut filled = 0;
    let mut list = 0;
    while list < LISTS.len() {
        let mut at = 0;
        while at < LISTS[list].len() {
            all[filled] = LISTS[list][at];
            filled += 1;
            at += 1;
        }
        list += 1;
    }
    all
};

/// The text of a number with a fraction.
fn print_double(number: f64, digits: Digits) -> Text {
    match digits {
        Digits::Shortest => Text::new(stdx::decimal::shortest(number).as_bytes()),
        Digits::Seventeen => double::print(number),
    }
}

/// Writes a number with a fraction.
fn write_double(writer: &mut Writer, number: f64) {
    writer.double_text(print_double(number, writer.digits()).as_str());
}

static INDEX: Index<1024> = Index::of(&ALL);

/// The data command of this name, in whatever case.
#[inline]
pub fn find(name: &[u8]) -> Option<&'static DataCommand> {
    INDEX.find(COMMANDS, name)
}

/// The command as it was at level 1, for what is logged there.
#[inline]
pub fn as_of_level_1(command: &'static DataCommand) -> &'static DataCommand {
    match (command.name, command.group) {
        ("pfcount", _) if matches!(command.body, Body::Query(_)) => &hyperloglog::PFCOUNT_OF_LEVEL_1,
        ("xsetid", _) => &stream::XSETID_OF_LEVEL_1,
        ("create", Group::Stream) => &stream::CREATE_OF_LEVEL_1,
        ("setid", Group::Stream) => &stream::SETID_OF_LEVEL_1,
        ("hexpire", _) => &hash::HEXPIRE_OF_LEVEL_1,
        ("hpexpire", _) => &hash::HPEXPIRE_OF_LEVEL_1,
        ("hexpireat", _) => &hash::HEXPIREAT_OF_LEVEL_1,
        ("hpexpireat", _) => &hash::HPEXPIREAT_OF_LEVEL_1,
        ("hgetex", _) => &hash::HGETEX_OF_LEVEL_1,
        ("hsetex", _) => &hash::HSETEX_OF_LEVEL_1,
        _ => command,
    }
}

/// The command that a request names: of a container, the subcommand. `None` if there is no such command or subcommand.
#[inline]
pub fn resolve(args: Args<'_>) -> Option<&'static DataCommand> {
    let command = find(args.get(0)?)?;
    if command.subcommands.is_empty() {
        return Some(command);
    }
    let word = args.get(1)?;
    command.subcommands.iter().find(|subcommand| subcommand.name.as_bytes().eq_ignore_ascii_case(word))
}

//! Every command of both kinds, by the names under which people know them.

use std::borrow::Cow;
use std::collections::{BTreeMap, btree_map};

use resp::Args;

use crate::known::{ControlRecord, Known};

/// Categories of access control, in the order in which Redis lists them. Every command is in some of them, by what its
/// record says.
pub const CATEGORIES: [&str; 27] = [
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
    "json",
    "bloom",
    "cuckoo",
    "cms",
    "topk",
    "tdigest",
];

/// One command or subcommand.
#[derive(Debug)]
pub struct Entry {
    /// What runs it.
    pub known: Known,
    /// `get`, or `config|get` for a subcommand.
    pub full_name: String,
    /// Place of the command that it is a subcommand of.
    pub container: Option<usize>,
    /// A bit for each of [`CATEGORIES`].
    categories: u32,
}

impl Entry {
    /// True if it is in the category at this place in [`CATEGORIES`].
    pub fn is_in(&self, category: usize) -> bool {
        self.categories & (1 << category) != 0
    }
}

/// All of them, each name once; a container comes before its subcommands.
#[derive(Debug)]
pub struct Catalog {
    entries: Vec<Entry>,
    by_name: BTreeMap<String, usize>,
    find: fn(&[u8]) -> Option<&'static dyn ControlRecord>,
}

/// What control commands there are. Their records name their handlers, so they are above what counts and permits
/// commands: the root of the crate joins the two.
pub struct Source {
    /// The control command of this name.
    pub find: fn(&[u8]) -> Option<&'static dyn ControlRecord>,
    /// All of them, each with its subcommands.
    pub control: Vec<(&'static dyn ControlRecord, Vec<&'static dyn ControlRecord>)>,
    /// The categories of access control that a command is in.
    pub categories: fn(Known) -> Vec<&'static str>,
}

/// The one there is.
pub fn catalog() -> &'static Catalog {
    &crate::CATALOG
}

/// The name of the container that a request names a subcommand of; `None` if it names a command.
#[inline]
pub fn container_of(known: Known, args: Args<'_>) -> Option<&'static str> {
    let (name, word) = (known.name().as_bytes(), args.at(0));
    if name.len() == word.len() && name.eq_ignore_ascii_case(word) {
        return None;
    }
    let data = keyspace::find(word).map(|command| command.name);
    data.or_else(|| catalog().find_control(word).map(|command| command.name()))
}

/// `get`, or `config|get` for a subcommand.
pub fn full_name(known: Known, container: Option<&str>) -> Cow<'static, str> {
    match container {
        None => Cow::Borrowed(known.name()),
        Some(container) => Cow::Owned(format!("{container}|{}", known.name())),
    }
}

impl Catalog {
    pub(crate) fn new(source: &Source) -> Self {
        let mut this = Self { entries: Vec::new(), by_name: BTreeMap::new(), find: source.find };
        for command in keyspace::COMMANDS {
            let container = this.add(source, Known::Data(command), command.name.to_owned(), None);
            for subcommand in command.subcommands {
                let full_name = format!("{}|{}", command.name, subcommand.name);
                this.add(source, Known::Data(subcommand), full_name, Some(container));
            }
        }
        for (command, subcommands) in &source.control {
            // MEMORY has subcommands of either kind.
            let container = this.add(source, Known::Control(*command), command.name().to_owned(), None);
            for subcommand in subcommands {
                let full_name = format!("{}|{}", command.name(), subcommand.name());
                this.add(source, Known::Control(*subcommand), full_name, Some(container));
            }
        }
        this
    }

    fn add(&mut self, source: &Source, known: Known, full_name: String, container: Option<usize>) -> usize {
        match self.by_name.entry(full_name.clone()) {
            btree_map::Entry::Occupied(known) => *known.get(),
            btree_map::Entry::Vacant(vacant) => {
                let place = self.entries.len();
                vacant.insert(place);
                let names = (source.categories)(known);
                let is_in = |category: &&str| names.contains(category);
                let bits = (0..).zip(CATEGORIES).filter(|(_, category)| is_in(category)).map(|(bit, _)| 1 << bit).sum();
                self.entries.push(Entry { known, full_name, container, categories: bits });
                place
            }
        }
    }

    /// The control command of this name, in either case.
    pub fn find_control(&self, name: &[u8]) -> Option<&'static dyn ControlRecord> {
        (self.find)(name)
    }

    /// All entries.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Where a command stands, by its full name in lower case.
    pub fn place_of(&self, full_name: &str) -> Option<usize> {
        self.by_name.get(full_name).copied()
    }
}

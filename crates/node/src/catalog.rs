//! Every command of both kinds, by the names under which people know them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map;
use std::sync::LazyLock;

use resp::Args;

use crate::commands::{self, Known};

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
}

static CATALOG: LazyLock<Catalog> = LazyLock::new(Catalog::new);

/// The one there is.
pub fn catalog() -> &'static Catalog {
    &CATALOG
}

/// The name of the container that a request names a subcommand of; `None` if it names a command.
#[inline]
pub fn container_of(known: Known, args: Args<'_>) -> Option<&'static str> {
    let (name, word) = (known.name().as_bytes(), args.at(0));
    if name.len() == word.len() && name.eq_ignore_ascii_case(word) {
        return None;
    }
    let data = keyspace::find(word).map(|command| command.name);
    data.or_else(|| commands::find(word).map(|command| command.name))
}

/// `get`, or `config|get` for a subcommand.
pub fn full_name(known: Known, container: Option<&str>) -> Cow<'static, str> {
    match container {
        None => Cow::Borrowed(known.name()),
        Some(container) => Cow::Owned(format!("{container}|{}", known.name())),
    }
}

impl Catalog {
    fn new() -> Self {
        let mut this = Self { entries: Vec::new(), by_name: BTreeMap::new() };
        for command in keyspace::COMMANDS {
            let container = this.add(Known::Data(command), command.name.to_owned(), None);
            for subcommand in command.subcommands {
                this.add(Known::Data(subcommand), format!("{}|{}", command.name, subcommand.name), Some(container));
            }
        }
        for command in commands::COMMANDS {
            // MEMORY has subcommands of either kind.
            let container = this.add(Known::Control(command), command.name.to_owned(), None);
            for subcommand in command.subcommands {
                this.add(Known::Control(subcommand), format!("{}|{}", command.name, subcommand.name), Some(container));
            }
        }
        this
    }

    fn add(&mut self, known: Known, full_name: String, container: Option<usize>) -> usize {
        match self.by_name.entry(full_name.clone()) {
            btree_map::Entry::Occupied(known) => *known.get(),
            btree_map::Entry::Vacant(vacant) => {
                let place = self.entries.len();
                vacant.insert(place);
                let names = commands::categories_of(known);
                let is_in = |category: &&str| names.contains(category);
                let bits = (0..).zip(CATEGORIES).filter(|(_, category)| is_in(category)).map(|(bit, _)| 1 << bit).sum();
                self.entries.push(Entry { known, full_name, container, categories: bits });
                place
            }
        }
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

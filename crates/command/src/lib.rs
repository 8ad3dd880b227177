//! What a command is: its name, arity, keys, flags and words. Knows no data and executes nothing.
//!
//! A command is declared once, as a [`Command`] record beside its handler; `COMMAND`, routing, access control, the
//! manual and the generators of the tests are derived from the records.

pub mod history;
mod index;
pub mod level;
mod refusal;
pub mod syntax;

pub use index::Index;
pub use refusal::Refusal;
use resp::Args;

/// One command, or one subcommand of a container such as `CONFIG`. `Body` is what runs it.
#[derive(Debug)]
pub struct Command<Body: 'static> {
    /// Lower-case name; a subcommand's is its own word only (`get` in `config get`).
    pub name: &'static str,
    /// The Redis version that brought it.
    pub since: &'static str,
    /// Its chapter in the reference.
    pub group: Group,
    /// One sentence with a full stop.
    pub summary: &'static str,
    /// Big-O of time, in the reference's words.
    pub complexity: &'static str,
    /// What follows the name, in the reference's notation: `key value [NX | XX] [EX seconds | PX milliseconds]`.
    pub syntax: &'static str,
    /// Number of words, the name included; negative: at least that many. For a subcommand the container's name counts.
    pub arity: i32,
    /// Properties, as `COMMAND INFO` prints them.
    pub flags: &'static [Flag],
    /// Access-control categories beyond those that follow from flags and group.
    pub categories: &'static [&'static str],
    /// Where the keys are among the words.
    pub keys: &'static [KeySpec],
    /// Hints for clients, as `COMMAND INFO` prints them.
    pub tips: &'static [&'static str],
    /// What it works on.
    pub span: Span,
    /// Subcommands of a container; empty otherwise.
    pub subcommands: &'static [Self],
    /// What runs it.
    pub body: Body,
}

/// Chapter of the command reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the reference's own")]
pub enum Group {
    Bitmap,
    Connection,
    Generic,
    Server,
    String,
    Transactions,
    Scripting,
    Pubsub,
    Cluster,
    Hash,
    List,
    Set,
    SortedSet,
    Stream,
    Hyperloglog,
    Geo,
    Json,
    Bloom,
    Cuckoo,
    CountMin,
    TopK,
    Digest,
    VectorSet,
}

/// A property of a command, as `COMMAND INFO` names it in lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the reference's own")]
pub enum Flag {
    Write,
    Readonly,
    Denyoom,
    Admin,
    Pubsub,
    Noscript,
    Blocking,
    Loading,
    Stale,
    SkipMonitor,
    SkipSlowlog,
    Fast,
    NoAuth,
    MayReplicate,
    NoMulti,
    MovableKeys,
    AllowBusy,
    NoMandatoryKeys,
    NoAsyncLoading,
}

/// Where some of the keys stand among a command's words (index 0 is the name), after Redis's key specifications.
#[derive(Clone, Copy, Debug)]
pub struct KeySpec {
    /// What the command does to these keys.
    pub access: Access,
    /// Where the first one is looked for.
    pub begin: Begin,
    /// How the others follow.
    pub find: Find,
    /// Further flags as printed by `COMMAND INFO`, such as `ACCESS`, `UPDATE`, `INSERT`, `DELETE`, `variable_flags`.
    pub notes: &'static [&'static str],
}

/// What a command does to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads only (`RO`).
    Read,
    /// Reads and writes (`RW`).
    ReadWrite,
    /// Overwrites without looking (`OW`).
    Overwrite,
    /// Removes (`RM`).
    Remove,
    /// It is none, but a shard channel or a cursor, which clients of a cluster look for in the same way.
    NotKey,
}

/// Where the first key of a [`KeySpec`] is looked for.
#[derive(Clone, Copy, Debug)]
pub enum Begin {
    /// At this word.
    Index(usize),
    /// At this word, a cursor with a tag that names a slot, unless it is a bare 0: a walk that begins is at home
    /// anywhere.
    Cursor(usize),
    /// Behind this keyword, searched from a word on (negative: from the end).
    Keyword(&'static str, i32),
    /// At the word that this function finds, by its index, such as the last `STORE` of SORT. Like [`Begin::Unknown`] to
    /// clients, since COMMAND INFO has no words for it.
    Computed(fn(Args<'_>) -> Option<usize>),
    /// At the word that this function finds, by its index. Clients are told of another place, which is right for most
    /// requests.
    Found(&'static Self, fn(Args<'_>) -> Option<usize>),
    /// Cannot be told without running the command.
    Unknown,
}

/// How the other keys of a [`KeySpec`] follow the first.
#[derive(Clone, Copy, Debug)]
pub enum Find {
    /// Up to a last word (relative to the first key; -1 is the last word of all, -2 the one before it), by steps; a
    /// positive limit means: of the remaining words only one in that many.
    Range {
        /// Last key, relative to the first, or counted from the end.
        last: i32,
        /// Words from one key to the next.
        step: usize,
        /// 0 or 1: no limit.
        limit: usize,
    },
    /// A count stands at `count`, the first key at `first` (both relative to the beginning).
    Counted {
        /// Word that holds the number of keys.
        count: usize,
        /// First key.
        first: usize,
        /// Words from one key to the next.
        step: usize,
    },
    /// Cannot be told without running the command.
    Unknown,
}

/// What a command works on when the keyspace is divided among several groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// The keys it names; if these live in several groups it becomes a transaction.
    Keys,
    /// Every key of every group, answered by joining the groups' answers.
    Whole(Join),
    /// No key at all.
    Nothing,
}

/// How answers of all groups become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// Sum of integers (DBSIZE).
    Sum,
    /// Arrays one behind the other (KEYS).
    Concatenate,
    /// A cursor walks through one group after the other (SCAN).
    Cursor,
    /// One group answers, chosen by chance and weight (RANDOMKEY).
    Any,
    /// Every group does it, or none (FLUSHALL, SWAPDB).
    All,
}

impl<Body> Command<Body> {
    /// True if it has this flag.
    pub fn has(&self, flag: Flag) -> bool {
        self.flags.contains(&flag)
    }

    /// True if a request of `words` words, the name included, has the right number.
    #[inline]
    pub fn accepts(&self, words: usize) -> bool {
        if self.arity >= 0 { words == self.arity as usize } else { words >= self.arity.unsigned_abs() as usize }
    }

    /// True for a command on data that walks through all keys of the group that holds a slot, which a word that is no
    /// key names (CLUSTERSCAN).
    pub fn walks(&self) -> bool {
        self.keys.iter().any(|spec| matches!(spec.begin, Begin::Cursor(_)))
    }

    /// Calls `visit` with the index of every word that is a key. Words that do not fit the specification (a count that
    /// is no number, or reaches beyond the request) name no keys here; the handler refuses them later.
    #[inline]
    pub fn for_each_key(&self, args: Args<'_>, mut visit: impl FnMut(usize, Access)) {
        for spec in self.keys {
            spec.for_each(args, &mut visit);
        }
    }
}

impl KeySpec {
    /// Calls `visit` with the index of every word that this specification names as a key.
    pub fn for_each(&self, args: Args<'_>, visit: &mut impl FnMut(usize, Access)) {
        let Some(begin) = self.begin.locate(args) else { return };
        match self.find {
            Find::Range { last, step, limit } => {
                let last = if last >= 0 {
                    begin + last as usize
                } else if limit > 1 {
                    begin + (args.len() - begin) / limit - 1
                } else {
                    (args.len() as i64 + i64::from(last)).max(0) as usize
                };
                let mut index = begin;
                while index <= last && index < args.len() {
                    visit(index, self.access);
                    index += step;
                }
            }
            Find::Counted { count, first, step } => {
                let Some(count) = args.get(begin + count).and_then(parse_count) else { return };
                let first = begin + first;
                if count > args.len() {
                    return;
                }
                for nth in 0..count {
                    let index = first + nth * step;
                    if index < args.len() {
                        visit(index, self.access);
                    }
                }
            }
            Find::Unknown => {}
        }
    }
}

impl Begin {
    fn locate(self, args: Args<'_>) -> Option<usize> {
        match self {
            Self::Index(index) => (index < args.len()).then_some(index),
            Self::Cursor(index) => args.get(index).filter(|&cursor| cursor != b"0").map(|_| index),
            Self::Keyword(word, from) => {
                let matches = |index: &usize| args.at(*index).eq_ignore_ascii_case(word.as_bytes());
                let found = if from >= 0 {
                    (from as usize..args.len()).find(matches)
                } else {
                    let last = args.len().checked_sub(from.unsigned_abs() as usize)?;
                    (1..=last).rev().find(matches)
                };
                found.map(|index| index + 1).filter(|&index| index < args.len())
            }
            Self::Computed(find) | Self::Found(_, find) => find(args).filter(|&index| index < args.len()),
            Self::Unknown => None,
        }
    }
}

fn parse_count(word: &[u8]) -> Option<usize> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

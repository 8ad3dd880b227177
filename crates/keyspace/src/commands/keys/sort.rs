//! SORT and SORT_RO: the elements of a list or set in order.
//!
//! Patterns name other keys, one for every element: what they hold decides the order (BY) or is returned (GET).

use command::{Access, Begin, Command, Find, Flag, Group, KeySpec, Refusal, Span};
use resp::{Args, Writer};

use std::borrow::Cow;
use std::cmp::Ordering;

use super::{key_at, unknown_keys};
use crate::collection::list;
use crate::commands::arguments::{integer, is};
use crate::commands::{Body, DataCommand};
use crate::context::{Edit, View};
use crate::double;
use crate::notice::Class;
use crate::value::{ItoaBuffer, Str, Value, ValueRef};

const BY_AND_GET: &str = "For the optional BY/GET keyword. It is marked 'unknown' because the key names derive from the \
                         content of the key we sort";
const STORE: &str = "For the optional STORE keyword. It is marked 'unknown' because the keyword can appear anywhere in \
                     the argument array";

pub const SORT: DataCommand = Command {
    name: "sort",
    since: "1.0.0",
    group: Group::Generic,
    summary: "Sort the elements in a list, set or sorted set.",
    complexity: "O(N+M*log(M)) where N is the number of elements and M the number of those returned.",
    syntax: "key [BY pattern] [LIMIT offset count] [GET pattern [GET pattern ...]] [ASC | DESC] [ALPHA] \
             [STORE destination]",
    arity: -2,
    flags: &[Flag::Write, Flag::Denyoom, Flag::MovableKeys],
    categories: &["set", "sortedset", "list", "dangerous"],
    keys: &[
        key_at(1, Access::Read, &["access"]),
        unknown_keys(Access::Read, &["access", BY_AND_GET]),
        KeySpec {
            access: Access::Overwrite,
            begin: Begin::Computed(destination_index),
            find: Find::Range { last: 0, step: 1, limit: 0 },
            notes: &["update", STORE],
        },
    ],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(sort),
};

pub const SORT_RO: DataCommand = Command {
    name: "sort_ro",
    since: "7.0.0",
    summary: "Sort the elements in a list, set or sorted set. Read-only variant of SORT.",
    syntax: "key [BY pattern] [LIMIT offset count] [GET pattern [GET pattern ...]] [ASC | DESC] [ALPHA]",
    flags: &[Flag::Readonly, Flag::MovableKeys],
    keys: &[key_at(1, Access::Read, &["access"]), unknown_keys(Access::Read, &["access", BY_AND_GET])],
    body: Body::Query(sort_read_only),
    ..SORT
};

/// Where the result goes: the word behind the last STORE that is an option and not the argument of one.
fn destination_index(args: Args<'_>) -> Option<usize> {
    let mut found = None;
    let mut next = 2;
    while let Some(word) = args.get(next) {
        let arguments = match () {
            () if is(word, "limit") => 2,
            () if is(word, "get") || is(word, "by") => 1,
            () if is(word, "store") => {
                found = Some(next + 1).filter(|&index| index < args.len()).or(found);
                1
            }
            () => 0,
        };
        next += 1 + arguments;
    }
    found
}

/// The patterns of a SORT that name other keys, each with the option that it belongs to.
pub fn sort_patterns(args: Args<'_>) -> impl Iterator<Item = (&'static str, &[u8])> {
    let mut next = 2;
    std::iter::from_fn(move || {
        loop {
            let word = args.get(next)?;
            let option = ["BY", "GET"].into_iter().find(|option| is(word, option));
            let arguments = if is(word, "limit") { 2 } else { usize::from(option.is_some() || is(word, "store")) };
            next += 1 + arguments;
            let pattern = args.get(next - 1).filter(|pattern| pattern.contains(&b'*'));
            if let (Some(option), Some(pattern)) = (option, pattern) {
                return Some((option, pattern));
            }
        }
    })
}

/// The keys to which the patterns of a SORT lead: it reads these, too. None if it will be refused.
pub fn sort_keys(view: &View<'_>, args: Args<'_>) -> Vec<Vec<u8>> {
    // Whether the result may be stored is for the command itself to say.
    let Ok(request) = Request::parse(args, true) else { return Vec::new() };
    let gets = request.gets.iter().filter_map(|get| match get {
        Get::Pattern(pattern) => Some(pattern),
        Get::Element | Get::Nothing => None,
    });
    let patterns: Vec<_> = request.by.iter().chain(gets).collect();
    let plain = Request { is_unsorted: true, ..Request::default() };
    let elements = plain.elements(view, args.at(1)).unwrap_or_default();
    patterns.iter().flat_map(|pattern| elements.iter().map(|element| pattern.key(element))).collect()
}

/// What is asked for.
#[derive(Default)]
struct Request<'a> {
    by: Option<Pattern<'a>>,
    /// A pattern without a star is the same for all: the order stays.
    is_unsorted: bool,
    gets: Vec<Get<'a>>,
    /// The first element and how many; a negative count is all.
    limit: Option<(i64, i64)>,
    is_descending: bool,
    is_alphabetic: bool,
    destination: Option<&'a [u8]>,
}

enum Get<'a> {
    /// The element itself: `#`.
    Element,
    Pattern(Pattern<'a>),
    /// A pattern without a star: nothing lies there.
    Nothing,
}

/// A key with an element's place in it, and perhaps a field of the hash there.
#[derive(Clone, Copy)]
struct Pattern<'a> {
    before: &'a [u8],
    behind: &'a [u8],
    field: Option<&'a [u8]>,
}

impl<'a> Pattern<'a> {
    /// `None` if there is no star for the element.
    fn parse(text: &'a [u8]) -> Option<Self> {
        let star = text.iter().position(|&byte| byte == b'*')?;
        let (before, rest) = (&text[..star], &text[star + 1..]);
        let arrow = rest.windows(2).position(|pair| pair == b"->").filter(|arrow| arrow + 2 < rest.len());
        Some(match arrow {
            Some(arrow) => Self { before, behind: &rest[..arrow], field: Some(&rest[arrow + 2..]) },
            None => Self { before, behind: rest, field: None },
        })
    }

    /// Where the pattern leads an element.
    fn key(&self, element: &[u8]) -> Vec<u8> {
        [self.before, element, self.behind].concat()
    }

    /// What lies there.
    fn look_up<'v>(&self, view: &View<'v>, element: &[u8]) -> Option<Str<'v>> {
        match (view.entry(&self.key(element))?.value(), self.field) {
            (ValueRef::Hash(hash), Some(field)) => hash.get(field).map(Str::Bytes),
            (ValueRef::String(text), None) => Some(text),
            _ => None,
        }
    }
}

impl<'a> Request<'a> {
    /// Reads the options from word 2 on, as strictly as Redis.
    fn parse(args: Args<'a>, may_store: bool) -> Result<Self, Refusal> {
        let mut request = Self::default();
        let mut next = 2;
        while let Some(word) = args.get(next) {
            let left = args.len() - next - 1;
            match () {
                () if is(word, "asc") => request.is_descending = false,
                () if is(word, "desc") => request.is_descending = true,
                () if is(word, "alpha") => request.is_alphabetic = true,
                () if is(word, "limit") && left >= 2 => {
                    request.limit = Some((integer(args.at(next + 1))?, integer(args.at(next + 2))?));
                    next += 2;
                }
                () if may_store && is(word, "store") && left >= 1 => {
                    request.destination = args.get(next + 1);
                    next += 1;
                }
                () if is(word, "by") && left >= 1 => {
                    request.by = Pattern::parse(args.at(next + 1));
                    request.is_unsorted |= request.by.is_none();
                    next += 1;
                }
                () if is(word, "get") && left >= 1 => {
                    request.gets.push(match args.at(next + 1) {
                        b"#" => Get::Element,
                        text => Pattern::parse(text).map_or(Get::Nothing, Get::Pattern),
                    });
                    next += 1;
                }
                () => return Err(Refusal::SYNTAX),
            }
            next += 1;
        }
        Ok(request)
    }

    /// The elements asked for, in order.
    fn elements<'v>(&self, view: &View<'v>, key: &[u8]) -> Result<Vec<Cow<'v, [u8]>>, Refusal> {
        let (mut is_set, mut is_of_integers) = (false, false);
        let mut elements: Vec<Cow<'v, [u8]>> = match view.entry(key).map(|entry| entry.value()) {
            None => Vec::new(),
            Some(ValueRef::List(list)) if self.is_unsorted && self.is_descending => {
                list.iter_back_from(list.len()).map(Cow::Borrowed).collect()
            }
            Some(ValueRef::List(list)) => list.iter().map(Cow::Borrowed).collect(),
            Some(ValueRef::SortedSet(set)) if self.is_unsorted && self.is_descending => {
                set.range_back(0..set.len()).map(|(member, _)| Cow::Borrowed(member)).collect()
            }
            Some(ValueRef::SortedSet(set)) => set.iter().map(|(member, _)| Cow::Borrowed(member)).collect(),
            Some(ValueRef::Set(set)) => {
                is_set = true;
                is_of_integers = set.as_integers().is_some();
                set.iter().map(owned_integer).collect()
            }
            Some(_) => return Err(Refusal::WRONG_TYPE),
        };
        // What is stored, and what a script decides by, must not depend on how a set happens to lie in memory. A small
        // set of integers is shown in their order, whichever is asked for, as in Redis.
        let by_name = self.is_unsorted && is_set && !(is_of_integers && self.destination.is_none());
        if by_name {
            elements.sort_unstable();
            if self.is_descending {
                elements.reverse();
            }
        } else if !self.is_unsorted {
            elements = self.sorted(view, elements)?;
        }
        if let Some((offset, count)) = self.limit {
            let start = usize::try_from(offset).unwrap_or(0).min(elements.len());
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            elements.drain(..start);
            elements.truncate(count);
        }
        Ok(elements)
    }

    fn sorted<'v>(&self, view: &View<'v>, elements: Vec<Cow<'v, [u8]>>) -> Result<Vec<Cow<'v, [u8]>>, Refusal> {
        let weight = |element: &Cow<'v, [u8]>| match &self.by {
            Some(pattern) => pattern.look_up(view, element).map(owned_integer),
            None => Some(element.clone()),
        };
        let in_direction = |order: Ordering| if self.is_descending { order.reverse() } else { order };
        if self.is_alphabetic {
            let mut weighed: Vec<_> = elements.into_iter().map(|element| (weight(&element), element)).collect();
            weighed.sort_by(|left, right| in_direction(left.0.cmp(&right.0)));
            return Ok(weighed.into_iter().map(|(_, element)| element).collect());
        }
        let mut weighed = Vec::with_capacity(elements.len());
        for element in elements {
            let number = match weight(&element) {
                None => 0.0,
                Some(text) => double::parse_weight(&text)
                    .ok_or_else(|| Refusal::new("ERR One or more scores can't be converted into double"))?,
            };
            weighed.push((number, element));
        }
        weighed.sort_by(|left, right| {
            let by_weight = left.0.partial_cmp(&right.0).unwrap_or(Ordering::Equal);
            in_direction(by_weight.then_with(|| left.1.cmp(&right.1)))
        });
        Ok(weighed.into_iter().map(|(_, element)| element).collect())
    }

    /// Calls `visit` with each part of the result: with nothing where a pattern leads nowhere.
    fn for_each_result(&self, view: &View<'_>, elements: &[Cow<'_, [u8]>], mut visit: impl FnMut(Option<Str<'_>>)) {
        for element in elements {
            if self.gets.is_empty() {
                visit(Some(Str::Bytes(element)));
            }
            for get in &self.gets {
                match get {
                    Get::Element => visit(Some(Str::Bytes(element))),
                    Get::Pattern(pattern) => visit(pattern.look_up(view, element)),
                    Get::Nothing => visit(None),
                }
            }
        }
    }

    fn answer(&self, view: &View<'_>, key: &[u8], writer: &mut Writer) -> Result<(), Refusal> {
        let elements = self.elements(view, key)?;
        writer.array(elements.len() * self.gets.len().max(1));
        self.for_each_result(view, &elements, |result| match result {
            Some(text) => text.write_bulk(writer),
            None => writer.null(),
        });
        Ok(())
    }
}

/// The text, which is borrowed unless it is kept as a number.
fn owned_integer(text: Str<'_>) -> Cow<'_, [u8]> {
    match text {
        Str::Bytes(bytes) => Cow::Borrowed(bytes),
        Str::Integer(number) => Cow::Owned(ItoaBuffer::new().format(number).to_vec()),
    }
}

fn sort(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let request = Request::parse(args, true)?;
    let Some(destination) = request.destination else {
        return request.answer(&edit.reading(), args.at(1), writer);
    };
    let mut items: Vec<Vec<u8>> = Vec::new();
    let view = edit.reading();
    let elements = request.elements(&view, args.at(1))?;
    request.for_each_result(&view, &elements, |result| items.push(result.map_or(Vec::new(), |text| text.to_vec())));
    writer.count(items.len());
    if let Some(list) = list::from_items(items.iter().map(Vec::as_slice)) {
        edit.put(edit.database(), destination, Value::Collection(list), None, None);
        edit.notify(Class::List, "sortstore", destination);
    } else if edit.remove(destination) {
        edit.notify(Class::Generic, "del", destination);
    }
    Ok(())
}

fn sort_read_only(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    Request::parse(args, false)?.answer(view, args.at(1), writer)
}

//! Paths: which values of a document are meant.
//!
//! JSONPath as RedisJSON understands it, read here because its answers, their order and its older form are its own:
//!
//! ```text
//! $                   the document        .name ['name', 'other']   by name
//! [0, -1] [1:9:2]     by place            .* [*]                    all
//! ..name ..[0] ..*    also further down   [?(@.price < $.limit)]    those that a filter accepts
//! ```
//!
//! A path that does not begin with `$` is of the older form: `.`, `name` and `.name` mean the same from the document
//! on, and answers are about one value.

mod filter;
mod read;

use std::collections::BTreeMap;

use command::Refusal;
use regex::Regex;

use self::filter::Filter;
use super::limits::VISITS_MAX;
use super::{Json, Place, Step, Text};

/// A path that has been read.
#[derive(Debug)]
pub(crate) struct Path {
    segments: Vec<Segment>,
    /// Of the older form.
    is_legacy: bool,
}

#[derive(Debug)]
enum Segment {
    Names(Vec<Text>),
    Indexes(Vec<i64>),
    Slice {
        start: Option<i64>,
        end: Option<i64>,
        step: usize,
    },
    All,
    Filter(Filter),
    /// The value itself and all below it: what follows is asked of each.
    Descend,
}

/// A value that a path means.
#[derive(Debug)]
pub(crate) struct Found<'a> {
    pub(crate) value: &'a Json,
    pub(crate) place: Place,
}

/// Where a path that means at most one value could add one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Addition {
    /// Under this name, in the object that the place is of.
    Name(Place, Text),
    /// Nowhere: it ends in a place of an array.
    Index,
}

impl Path {
    /// Reads a path.
    ///
    /// # Errors
    /// Where it stops being one, and what is expected there.
    pub(crate) fn read(text: &[u8]) -> Result<Self, Refusal> {
        let is_legacy = !matches!(text, [b'$'] | [b'$', b'.' | b'[', ..]);
        Ok(Self { segments: read::segments(text, is_legacy)?, is_legacy })
    }

    /// The document, in the older form.
    pub(crate) fn legacy_root() -> Self {
        Self { segments: Vec::new(), is_legacy: true }
    }

    /// True if it is of the older form.
    pub(crate) fn is_legacy(&self) -> bool {
        self.is_legacy
    }

    /// True if it means the document.
    pub(crate) fn is_root(&self) -> bool {
        self.segments.is_empty()
    }

    /// The values that the path means, in the order of the document.
    ///
    /// # Errors
    /// If more values would have to be looked at than a path may.
    pub(crate) fn find<'a>(&'a self, document: &'a Json) -> Result<Vec<Found<'a>>, Refusal> {
        let mut search = Search::new(document);
        let mut found = Vec::new();
        search.walk(&self.segments, document, None, &mut |value, trail| {
            found.push(Found { value, place: place(trail) })
        })?;
        Ok(found)
    }

    /// The same without their places.
    ///
    /// # Errors
    /// As [`Path::find`].
    pub(crate) fn values<'a>(&'a self, document: &'a Json) -> Result<Vec<&'a Json>, Refusal> {
        let mut search = Search::new(document);
        let mut found = Vec::new();
        search.walk(&self.segments, document, None, &mut |value, _| found.push(value))?;
        Ok(found)
    }

    /// Where the path, which has found nothing, could add a value.
    ///
    /// # Errors
    /// If it may mean several values, or the document.
    pub(crate) fn additions(&self, document: &Json) -> Result<Vec<Addition>, Refusal> {
        let is_static = self.segments.iter().all(|segment| match segment {
            Segment::Names(names) => names.len() == 1,
            Segment::Indexes(indexes) => indexes.len() == 1,
            _ => false,
        });
        if !is_static {
            return Err(Refusal::new("ERR wrong static path"));
        }
        let Some((last, above)) = self.segments.split_last() else {
            return Err(Refusal::new("ERR path must end with object key to set"));
        };
        let Segment::Names(names) = last else { return Ok(vec![Addition::Index]) };
        let mut found = Vec::new();
        Search::new(document).walk(above, document, None, &mut |_, trail| {
            found.push(Addition::Name(place(trail), names[0].clone()));
        })?;
        Ok(found)
    }
}

/// The way from the document to a value, its last step first.
struct Trail<'t> {
    above: Option<&'t Self>,
    step: Taken<'t>,
}

#[derive(Clone, Copy)]
enum Taken<'t> {
    Name(&'t Text),
    Index(usize),
}

fn place(mut trail: Option<&Trail<'_>>) -> Place {
    let mut steps = Vec::new();
    while let Some(Trail { above, step }) = trail {
        steps.push(match step {
            Taken::Name(name) => Step::Name((*name).clone()),
            Taken::Index(index) => Step::Index(*index),
        });
        trail = *above;
    }
    steps.reverse();
    steps
}

/// One evaluation of a path.
struct Search<'a> {
    document: &'a Json,
    /// Values that may still be looked at.
    visits_left: usize,
    /// Patterns that have been compiled; `None` for those that are none.
    patterns: BTreeMap<Text, Option<Regex>>,
}

/// Told of each value that is meant.
type Visit<'v, 'a> = &'v mut dyn FnMut(&'a Json, Option<&Trail<'_>>);

impl<'a> Search<'a> {
    fn new(document: &'a Json) -> Self {
        Self { document, visits_left: VISITS_MAX, patterns: BTreeMap::new() }
    }

    fn walk(
        &mut self,
        segments: &'a [Segment],
        value: &'a Json,
        trail: Option<&Trail<'_>>,
        visit: Visit<'_, 'a>,
    ) -> Result<(), Refusal> {
        self.visits_left = self
            .visits_left
            .checked_sub(1)
            .ok_or_else(|| Refusal::new("ERR the path looks at too many values; name more of what is meant"))?;
        let Some((segment, rest)) = segments.split_first() else {
            visit(value, trail);
            return Ok(());
        };
        let down = |step| Some(Trail { above: trail, step });
        match (segment, value) {
            (Segment::Names(names), Json::Object(object)) => {
                for name in names {
                    if let Some(child) = object.get(name) {
                        self.walk(rest, child, down(Taken::Name(name)).as_ref(), visit)?;
                    }
                }
            }
            (Segment::Indexes(indexes), Json::Array(array)) => {
                for &index in indexes {
                    let index = absolute(index, array.len());
                    if let Some(child) = array.items.get(index) {
                        self.walk(rest, child, down(Taken::Index(index)).as_ref(), visit)?;
                    }
                }
            }
            (Segment::Slice { start, end, step }, Json::Array(array)) => {
                let len = array.len();
                let end = end.map_or(len, |end| absolute(end, len));
                let start = start.map_or(0, |start| absolute(start, len));
                for index in (start..end).step_by(*step) {
                    self.walk(rest, &array.items[index], down(Taken::Index(index)).as_ref(), visit)?;
                }
            }
            (Segment::All, _) => {
                for (step, child) in children(value) {
                    self.walk(rest, child, down(step).as_ref(), visit)?;
                }
            }
            (Segment::Filter(filter), _) => {
                for (step, child) in children(value) {
                    if self.accepts(filter, child)? {
                        self.walk(rest, child, down(step).as_ref(), visit)?;
                    }
                }
            }
            (Segment::Descend, _) => {
                self.walk(rest, value, trail, visit)?;
                for (step, child) in children(value) {
                    self.walk(segments, child, down(step).as_ref(), visit)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// What an array or an object holds, in order.
fn children(value: &Json) -> impl Iterator<Item = (Taken<'_>, &Json)> {
    let items = value.as_array().unwrap_or_default().iter().enumerate();
    let entries = value.as_object().into_iter().flat_map(|object| object.iter());
    items
        .map(|(index, item)| (Taken::Index(index), item))
        .chain(entries.map(|(name, value)| (Taken::Name(name), value)))
}

/// The place that an index means among so many; the length if there is none, and the first for one before that.
fn absolute(index: i64, len: usize) -> usize {
    match usize::try_from(index) {
        Ok(index) => index.min(len),
        Err(_) => len.saturating_sub(usize::try_from(index.unsigned_abs()).unwrap_or(usize::MAX)),
    }
}

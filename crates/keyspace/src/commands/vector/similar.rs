//! VSIM: what is most similar to a vector.

use command::{Flag, Refusal};
use resp::{Args, Protocol, Writer};

use super::add::EFFORT_WORD_MAX;
use super::{Given, READING, option, write_double, wrong_dimensions, wrong_given_dimensions};
use crate::View;
use crate::commands::arguments::{at_least, is};
use crate::commands::{Body, DataCommand};
use crate::vector::filter::{Expression, Wrong};
use crate::vector::graph::{EFFORT_MAX, Filter, SEARCH_EFFORT_DEFAULT};
use crate::vector::measure::{self, Encoded};
use crate::vector::{Body as Element, Near, VectorSet};

/// Elements that are found if nothing else is said.
const COUNT_DEFAULT: usize = 10;
/// How many times as many as are wanted a filter is asked about, if nothing else is said.
const FILTER_EFFORT_FACTOR: usize = 100;
/// Most bytes of a wrong expression that an error repeats.
const REPEATED_BYTES_MAX: usize = 128;

pub(super) const VSIM: DataCommand = DataCommand {
    name: "vsim",
    summary: "Returns the elements of a vector set that are most similar to a vector.",
    complexity: "O(log(N)) where N is the number of elements of the set.",
    syntax: "key <ELE element | FP32 vector | VALUES num value [value ...]> [WITHSCORES] [WITHATTRIBS] [COUNT num] \
             [EPSILON delta] [EF search-exploration-factor] [FILTER expression] [FILTER-EF max-filtering-effort] \
             [TRUTH] [NOTHREAD]",
    arity: -4,
    flags: &[Flag::Readonly],
    body: Body::Query(similar),
    ..READING
};

struct Options {
    with_scores: bool,
    with_attributes: bool,
    count: usize,
    /// Half of the largest distance.
    epsilon: f64,
    effort: Option<usize>,
    filter: Option<Expression>,
    filter_effort: Option<usize>,
    is_exact: bool,
}

impl Options {
    fn read(args: Args<'_>, first: usize) -> Result<Self, Refusal> {
        let mut options = Self {
            with_scores: false,
            with_attributes: false,
            count: COUNT_DEFAULT,
            epsilon: 2.0,
            effort: None,
            filter: None,
            filter_effort: None,
            is_exact: false,
        };
        let mut at = first;
        while let Some(word) = args.get(at) {
            at += 1;
            match () {
                () if is(word, "withscores") => options.with_scores = true,
                () if is(word, "withattribs") => options.with_attributes = true,
                () if is(word, "truth") => options.is_exact = true,
                // There are no threads that could be done without.
                () if is(word, "nothread") => {}
                () => {
                    let value = args.get(at).ok_or(Refusal::new("ERR syntax error in VSIM command"))?;
                    at += 1;
                    options.set(word, value)?;
                }
            }
        }
        Ok(options)
    }

    fn set(&mut self, word: &[u8], value: &[u8]) -> Result<(), Refusal> {
        if is(word, "count") {
            self.count = at_least(1, value, "ERR invalid COUNT")?;
        } else if is(word, "epsilon") {
            let epsilon = crate::double::parse(value).filter(|epsilon| *epsilon > 0.0);
            self.epsilon = epsilon.ok_or(Refusal::new("ERR invalid EPSILON"))?;
        } else if is(word, "ef") {
            self.effort = Some(option(value, 1, EFFORT_WORD_MAX, "ERR invalid EF")?);
        } else if is(word, "filter-ef") {
            self.filter_effort = Some(at_least(1, value, "ERR invalid FILTER-EF")?);
        } else if is(word, "filter") {
            self.filter = Some(Expression::read(value).map_err(|wrong| no_expression(value, wrong))?);
        } else {
            return Err(Refusal::new("ERR syntax error in VSIM command"));
        }
        Ok(())
    }
}

/// Names the place from which an expression is wrong, or its beginning if that is its end.
fn no_expression(text: &[u8], Wrong(at): Wrong) -> Refusal {
    let rest = text.get(at..).filter(|rest| !rest.is_empty()).unwrap_or(text);
    let rest = &rest[..rest.len().min(REPEATED_BYTES_MAX)];
    let rest = String::from_utf8_lossy(rest).replace(['\r', '\n'], " ");
    Refusal::new(format!("ERR syntax error in FILTER expression near: {rest}"))
}

/// What is sought, and how many words say it.
fn query(set: &VectorSet, args: Args<'_>) -> Result<(Encoded, usize), Refusal> {
    let shape = set.shape();
    if is(args.at(2), "ele") {
        let slot = set.find(args.at(3)).ok_or(Refusal::new("ERR element not found in set"))?;
        return Ok((set.body(slot).encoded(), 2));
    }
    let Given { mut vector, words, .. } = Given::read(args, 2, false)?;
    if shape.given_dimensions > 0 && vector.len() != shape.dimensions as usize {
        if vector.len() != shape.given_dimensions as usize {
            return Err(wrong_given_dimensions(vector.len(), shape.given_dimensions));
        }
        vector = measure::project(&vector, shape.dimensions as usize);
    }
    if vector.len() != shape.dimensions as usize {
        return Err(wrong_dimensions(vector.len(), shape.dimensions));
    }
    Ok((measure::encode(&vector, shape.quantization), words))
}

fn similar(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let Some(set) = view.vectors(args.at(1))? else {
        writer.array(0);
        return Ok(());
    };
    let (query, words) = query(set, args)?;
    let options = Options::read(args, 2 + words)?;
    let found = find(set, &query, &options);
    let is_resp3 = writer.protocol() == Protocol::Resp3;
    let has_more = options.with_scores || options.with_attributes;
    match is_resp3 && has_more {
        true => writer.map(found.len()),
        false => {
            let words = 1 + usize::from(options.with_scores) + usize::from(options.with_attributes);
            writer.array(found.len() * words);
        }
    }
    for near in found {
        let element = set.body(near.slot());
        writer.bulk(element.name());
        if is_resp3 && options.with_scores && options.with_attributes {
            writer.array(2);
        }
        if options.with_scores {
            write_double(writer, 1.0 - f64::from(near.distance()) / 2.0);
        }
        if options.with_attributes {
            writer.bulk_or_null(element.attributes());
        }
    }
    Ok(())
}

fn find(set: &VectorSet, query: &Encoded, options: &Options) -> Vec<Near> {
    let count = options.count.min(set.len());
    let accepts = |element: &Element| options.filter.as_ref().is_none_or(|filter| filter.accepts(element.attributes()));
    let mut found = if options.is_exact {
        set.scan(query, count, options.filter.is_some().then_some(&accepts))
    } else {
        let effort = options.effort.unwrap_or(SEARCH_EFFORT_DEFAULT).min(EFFORT_MAX).max(count).min(set.len());
        let asked = options.filter_effort.unwrap_or(options.count.saturating_mul(FILTER_EFFORT_FACTOR));
        let filter = Filter { accepts: &accepts, effort: asked };
        set.search(query, effort, options.filter.is_some().then_some(&filter))
    };
    found.truncate(count);
    let is_near = |near: &Near| f64::from(near.distance() / 2.0) <= options.epsilon;
    found.truncate(found.partition_point(is_near));
    found
}

//! Filters of paths: conditions on a value, `@`, and on the document, `$`.

use std::cmp::Ordering;

use command::Refusal;
use regex::RegexBuilder;

use super::{Json, Search, Segment, Text};
use crate::json::limits::PATTERN_BYTES_MAX;

#[derive(Debug)]
pub(super) enum Filter {
    /// One of these.
    Any(Vec<Self>),
    /// All of these.
    All(Vec<Self>),
    Not(Box<Self>),
    /// Something is there.
    Exists(Term),
    Compare(Term, Operator, Term),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    /// A pattern is found in a text.
    Matches,
}

#[derive(Debug)]
pub(super) enum Term {
    /// From the value on that is looked at.
    Current(Vec<Segment>),
    /// From the document on.
    Root(Vec<Segment>),
    Literal(Json),
}

/// What a term is.
enum Operand<'a> {
    Literal(&'a Json),
    /// Values of the document: none, one, or several of which any will do.
    Values(Vec<&'a Json>),
}

impl<'a> Operand<'a> {
    fn values(&self) -> &[&'a Json] {
        match self {
            Self::Literal(value) => std::slice::from_ref(value),
            Self::Values(values) => values,
        }
    }
}

impl<'a> Search<'a> {
    pub(super) fn accepts(&mut self, filter: &'a Filter, value: &'a Json) -> Result<bool, Refusal> {
        match filter {
            Filter::Any(filters) => {
                for filter in filters {
                    if self.accepts(filter, value)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Filter::All(filters) => {
                for filter in filters {
                    if !self.accepts(filter, value)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Filter::Not(filter) => Ok(!self.accepts(filter, value)?),
            Filter::Exists(Term::Literal(literal)) => Ok(!matches!(literal, Json::Bool(false))),
            Filter::Exists(term) => Ok(!self.evaluate(term, value)?.values().is_empty()),
            Filter::Compare(left, operator, right) => {
                let (left, right) = (self.evaluate(left, value)?, self.evaluate(right, value)?);
                Ok(self.holds(&left, *operator, &right))
            }
        }
    }

    fn evaluate(&mut self, term: &'a Term, value: &'a Json) -> Result<Operand<'a>, Refusal> {
        let (segments, from) = match term {
            Term::Literal(literal) => return Ok(Operand::Literal(literal)),
            Term::Current(segments) => (segments, value),
            Term::Root(segments) => (segments, self.document),
        };
        let mut found = Vec::new();
        self.walk(segments, from, None, &mut |value, _| found.push(value))?;
        Ok(Operand::Values(found))
    }

    fn holds(&mut self, left: &Operand<'a>, operator: Operator, right: &Operand<'a>) -> bool {
        // Two values of the document are alike if they are of one type; with a literal, numbers are.
        let is_strict = matches!((left, right), (Operand::Values(_), Operand::Values(_)));
        let is_equal =
            |left: &Json, right: &Json| left == right || !is_strict && left.compare(right) == Some(Ordering::Equal);
        let any = |holds: &mut dyn FnMut(&Json, &Json) -> bool| {
            left.values().iter().any(|left| right.values().iter().any(|right| holds(left, right)))
        };
        let ordered = |accepts: fn(Ordering) -> bool| any(&mut |left, right| left.compare(right).is_some_and(accepts));
        match operator {
            Operator::Equal => any(&mut |left, right| is_equal(left, right)),
            Operator::NotEqual => !any(&mut |left, right| is_equal(left, right)),
            Operator::Less => ordered(Ordering::is_lt),
            Operator::LessOrEqual => ordered(Ordering::is_le),
            Operator::Greater => ordered(Ordering::is_gt),
            Operator::GreaterOrEqual => ordered(Ordering::is_ge),
            Operator::Matches => any(&mut |left, right| match (left, right) {
                (Json::String(text), Json::String(pattern)) => self.matches(text, pattern),
                _ => false,
            }),
        }
    }

    /// True if a pattern is found in a text; what is no pattern is found nowhere.
    fn matches(&mut self, text: &str, pattern: &Text) -> bool {
        let compile = || RegexBuilder::new(pattern).size_limit(PATTERN_BYTES_MAX).build().ok();
        let compiled = self.patterns.entry(pattern.clone()).or_insert_with(compile);
        compiled.as_ref().is_some_and(|pattern| pattern.is_match(text))
    }
}

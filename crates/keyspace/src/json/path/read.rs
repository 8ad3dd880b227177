//! The text of a path to its segments.

use command::Refusal;

use super::filter::{Filter, Operator, Term};
use super::{Json, Segment, Text};
use crate::json::limits::NESTING_MAX;

/// The segments of a path. Of the older form, it begins at the document without saying so.
pub(super) fn segments(text: &[u8], is_legacy: bool) -> Result<Vec<Segment>, Refusal> {
    let mut reader = Reader { text, at: 0, nesting: 0 };
    let segments = if is_legacy {
        match text {
            b"." => return Ok(Vec::new()),
            [b'.', ..] => reader.segments(false)?,
            _ => reader.segments(true)?,
        }
    } else {
        reader.at = 1;
        reader.segments(false)?
    };
    reader.skip_spaces();
    if reader.at < text.len() || text.is_empty() {
        return Err(reader.expected("'.', '..' or '['"));
    }
    Ok(segments)
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    /// Parentheses and filters around.
    nesting: usize,
}

/// What may stand in a name without quotes.
fn is_literal(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_`+#%$^/:~".contains(&byte)
}

impl Reader<'_> {
    fn expected(&self, what: &str) -> Refusal {
        let at = self.at;
        Refusal::new(format!("ERR Error occurred at position {at}, expected one of the following: {what}"))
    }

    fn skip_spaces(&mut self) {
        while self.text.get(self.at) == Some(&b' ') {
            self.at += 1;
        }
    }

    /// Passes over `token`, and spaces before it. False if something else is there.
    fn takes(&mut self, token: &str) -> bool {
        self.skip_spaces();
        let is_there = self.text[self.at..].starts_with(token.as_bytes());
        self.at += if is_there { token.len() } else { 0 };
        is_there
    }

    fn must_take(&mut self, token: &str) -> Result<(), Refusal> {
        if self.takes(token) { Ok(()) } else { Err(self.expected(&format!("'{token}'"))) }
    }

    /// The segments up to where there are no more. The first may be a name without a dot.
    fn segments(&mut self, begins_with_name: bool) -> Result<Vec<Segment>, Refusal> {
        let mut segments = Vec::new();
        if begins_with_name && !self.text[self.at..].starts_with(b"[") {
            segments.push(self.name_or_all()?);
        }
        loop {
            if self.takes("..") {
                segments.push(Segment::Descend);
                segments.push(if self.takes("[") { self.bracket()? } else { self.name_or_all()? });
            } else if self.takes(".") {
                segments.push(if self.takes("[") { self.bracket()? } else { self.name_or_all()? });
            } else if self.takes("[") {
                segments.push(self.bracket()?);
            } else {
                return Ok(segments);
            }
        }
    }

    fn name_or_all(&mut self) -> Result<Segment, Refusal> {
        if self.takes("*") {
            return Ok(Segment::All);
        }
        let len = self.text[self.at..].iter().take_while(|byte| is_literal(**byte)).count();
        let name = &self.text[self.at..self.at + len];
        if name.is_empty() {
            return Err(self.expected("a name or '*'"));
        }
        self.at += len;
        Ok(Segment::Names(vec![Text::from(std::str::from_utf8(name).expect("these are characters of ASCII"))]))
    }

    /// What stands behind an opening bracket, and the closing one.
    fn bracket(&mut self) -> Result<Segment, Refusal> {
        let segment = if self.takes("*") {
            Segment::All
        } else if self.takes("?") {
            Segment::Filter(self.nested(Self::any)?)
        } else if matches!(self.peek(), Some(b'\'' | b'"')) {
            let mut names = vec![self.string()?];
            while self.takes(",") {
                self.skip_spaces();
                names.push(self.string()?);
            }
            Segment::Names(names)
        } else {
            self.indexes_or_slice()?
        };
        self.must_take("]")?;
        Ok(segment)
    }

    fn peek(&mut self) -> Option<u8> {
        self.skip_spaces();
        self.text.get(self.at).copied()
    }

    fn indexes_or_slice(&mut self) -> Result<Segment, Refusal> {
        let start = self.number();
        if self.takes(":") {
            let end = self.number();
            let step = if self.takes(":") { self.number() } else { None };
            let step = usize::try_from(step.unwrap_or(1)).ok().filter(|&step| step > 0);
            return Ok(Segment::Slice { start, end, step: step.ok_or_else(|| self.expected("a positive step"))? });
        }
        let what = "a name in quotes, an index, a slice, '*' or '?'";
        let mut indexes = vec![start.ok_or_else(|| self.expected(what))?];
        while self.takes(",") {
            indexes.push(self.number().ok_or_else(|| self.expected("an index"))?);
        }
        Ok(Segment::Indexes(indexes))
    }

    /// A whole number; the nearest that there is, if it is too large.
    fn number(&mut self) -> Option<i64> {
        self.skip_spaces();
        let rest = &self.text[self.at..];
        let sign = usize::from(rest.first() == Some(&b'-'));
        let digits = rest[sign..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return None;
        }
        self.at += sign + digits;
        let text = std::str::from_utf8(&rest[..sign + digits]).expect("these are digits");
        Some(text.parse().unwrap_or(if sign == 1 { i64::MIN } else { i64::MAX }))
    }

    /// A text in quotes. A backslash stands before a quote of the same kind, and before another backslash.
    fn string(&mut self) -> Result<Text, Refusal> {
        let quote = self.text.get(self.at).copied().filter(|byte| matches!(byte, b'\'' | b'"'));
        let quote = quote.ok_or_else(|| self.expected("a text in quotes"))?;
        self.at += 1;
        let mut text = Vec::new();
        loop {
            match self.text.get(self.at..).unwrap_or_default() {
                [] => return Err(self.expected("the end of a text in quotes")),
                [byte, ..] if *byte == quote => break,
                [b'\\', byte, ..] if *byte == quote || *byte == b'\\' => {
                    text.push(*byte);
                    self.at += 2;
                }
                [b'\\', ..] => return Err(self.expected("a quote or a backslash behind a backslash")),
                [byte, ..] => {
                    text.push(*byte);
                    self.at += 1;
                }
            }
        }
        let text = std::str::from_utf8(&text).map_err(|_| self.expected("a text in UTF-8"))?;
        self.at += 1;
        Ok(Text::from(text))
    }

    /// Reads what lies one level deeper.
    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, Refusal>) -> Result<T, Refusal> {
        if self.nesting == NESTING_MAX {
            return Err(self.expected(&format!("at most {NESTING_MAX} filters and parentheses within each other")));
        }
        self.nesting += 1;
        let read = read(self);
        self.nesting -= 1;
        read
    }

    fn any(&mut self) -> Result<Filter, Refusal> {
        let mut filters = vec![self.all()?];
        while self.takes("||") {
            filters.push(self.all()?);
        }
        Ok(Filter::Any(filters))
    }

    fn all(&mut self) -> Result<Filter, Refusal> {
        let mut filters = vec![self.condition()?];
        while self.takes("&&") {
            filters.push(self.condition()?);
        }
        Ok(Filter::All(filters))
    }

    fn condition(&mut self) -> Result<Filter, Refusal> {
        if self.takes("!") {
            return self.nested(|reader| Ok(Filter::Not(Box::new(reader.condition()?))));
        }
        if self.takes("(") {
            return self.nested(|reader| {
                let filter = reader.any()?;
                reader.must_take(")")?;
                Ok(filter)
            });
        }
        let left = self.term()?;
        let operators = [
            ("==", Operator::Equal),
            ("!=", Operator::NotEqual),
            ("<=", Operator::LessOrEqual),
            (">=", Operator::GreaterOrEqual),
            ("=~", Operator::Matches),
            ("<", Operator::Less),
            (">", Operator::Greater),
        ];
        match operators.into_iter().find(|(token, _)| self.takes(token)) {
            Some((_, operator)) => Ok(Filter::Compare(left, operator, self.term()?)),
            None => Ok(Filter::Exists(left)),
        }
    }

    fn term(&mut self) -> Result<Term, Refusal> {
        if self.takes("@") {
            let begins_with_name = self.begins_with_name();
            return Ok(Term::Current(self.segments(begins_with_name)?));
        }
        if self.takes("$") {
            let begins_with_name = self.begins_with_name();
            return Ok(Term::Root(self.segments(begins_with_name)?));
        }
        let words = [("true", Json::Bool(true)), ("false", Json::Bool(false)), ("null", Json::Null)];
        if let Some((_, value)) = words.into_iter().find(|(word, _)| self.takes(word)) {
            return Ok(Term::Literal(value));
        }
        if matches!(self.peek(), Some(b'\'' | b'"')) {
            return Ok(Term::Literal(Json::String(self.string()?)));
        }
        let start = self.at;
        let whole = self.number().ok_or_else(|| self.expected("'@', '$', a number, a text, true, false or null"))?;
        let fraction = match &self.text[self.at..] {
            [b'.', digits @ ..] => digits.iter().take_while(|byte| byte.is_ascii_digit()).count(),
            _ => 0,
        };
        if fraction == 0 {
            return Ok(Term::Literal(Json::Integer(whole)));
        }
        self.at += 1 + fraction;
        let text = std::str::from_utf8(&self.text[start..self.at]).expect("these are digits");
        let number = text.parse().ok().filter(|number: &f64| number.is_finite());
        Ok(Term::Literal(Json::Double(number.ok_or_else(|| self.expected("a smaller number"))?)))
    }

    /// A name may stand behind `@` and `$` without a dot.
    fn begins_with_name(&self) -> bool {
        self.text.get(self.at).is_some_and(|&byte| is_literal(byte) || byte == b'*')
    }
}

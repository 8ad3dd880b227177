//! Values to text.

use command::Refusal;

use super::Json;
use super::limits::ANSWER_BYTES_MAX;

/// What stands between the parts of a text; nothing unless a client asks for it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Style<'a> {
    /// In front of each line, once for each level.
    pub(crate) indent: &'a [u8],
    /// Where a line ends.
    pub(crate) newline: &'a [u8],
    /// Behind the colon of a name.
    pub(crate) space: &'a [u8],
}

impl Json {
    /// The text of the value.
    ///
    /// # Errors
    /// If it would be longer than an answer may be.
    pub(crate) fn print(&self, style: Style<'_>) -> Result<Vec<u8>, Refusal> {
        let mut out = Vec::new();
        self.print_to(&mut out, style, 0);
        if out.len() > ANSWER_BYTES_MAX {
            return Err(Refusal::new("ERR the answer exceeds maximum allowed size (proto-max-bulk-len)"));
        }
        Ok(out)
    }

    /// Appends the text without anything between its parts.
    pub(crate) fn print_plain(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.print_to(&mut out, Style::default(), 0);
        out
    }

    fn print_to(&self, out: &mut Vec<u8>, style: Style<'_>, level: usize) {
        // What is too long is not completed; the one who asked looks at the length.
        if out.len() > ANSWER_BYTES_MAX {
            return;
        }
        let new_line = |out: &mut Vec<u8>, level: usize| {
            out.extend_from_slice(style.newline);
            (0..level).for_each(|_| out.extend_from_slice(style.indent));
        };
        match self {
            Self::Null => out.extend_from_slice(b"null"),
            Self::Bool(true) => out.extend_from_slice(b"true"),
            Self::Bool(false) => out.extend_from_slice(b"false"),
            Self::Integer(number) => scalar(out, number),
            Self::Unsigned(number) => scalar(out, number),
            Self::Double(number) => double(out, *number),
            Self::String(text) => scalar(out, &text[..]),
            Self::Array(array) => {
                out.push(b'[');
                for (nth, item) in array.items.iter().enumerate() {
                    if nth > 0 {
                        out.push(b',');
                    }
                    new_line(out, level + 1);
                    item.print_to(out, style, level + 1);
                }
                if array.len() > 0 {
                    new_line(out, level);
                }
                out.push(b']');
            }
            Self::Object(object) => {
                out.push(b'{');
                for (nth, (name, value)) in object.iter().enumerate() {
                    if nth > 0 {
                        out.push(b',');
                    }
                    new_line(out, level + 1);
                    scalar(out, &name[..]);
                    out.push(b':');
                    out.extend_from_slice(style.space);
                    value.print_to(out, style, level + 1);
                }
                if object.len() > 0 {
                    new_line(out, level);
                }
                out.push(b'}');
            }
        }
    }
}

/// A number with a fraction or an exponent, in the shortest form; a positive exponent has no sign, as in RedisJSON.
fn double(out: &mut Vec<u8>, number: f64) {
    let start = out.len();
    scalar(out, &number);
    if let Some(place) = out[start..].windows(2).position(|pair| pair == b"e+") {
        out.remove(start + place + 1);
    }
}

fn scalar<T: serde::Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(out, value).expect("memory takes every number and text");
}

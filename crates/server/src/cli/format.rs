//! How replies look: as redis-cli shows them, to people and to programs.

use resp::Frame;
use serde_json::json;

use crate::cluster::door::value_of;

/// The reader that replies are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Quoted, numbered, with types: for people.
    Typed,
    /// The bytes as they are, one element a line: for programs.
    Raw,
    /// One line of JSON.
    Json,
}

/// A reply with the line end behind it.
pub fn format(frame: &Frame, style: Style) -> Vec<u8> {
    let mut out = Vec::new();
    match style {
        Style::Typed => put_typed(&mut out, frame, 0),
        Style::Raw => {
            put_raw(&mut out, frame);
            out.push(b'\n');
        }
        Style::Json => {
            let value = match frame {
                Frame::Error(text) => json!({ "error": String::from_utf8_lossy(text) }),
                other => value_of(other),
            };
            out.extend_from_slice(value.to_string().as_bytes());
            out.push(b'\n');
        }
    }
    out
}

/// Elements of a nested reply are indented by the width of the numbers above them.
fn put_typed(out: &mut Vec<u8>, frame: &Frame, indent: usize) {
    let mut line = |text: &str, rest: &[u8]| {
        out.extend_from_slice(text.as_bytes());
        out.extend_from_slice(rest);
        out.push(b'\n');
    };
    match frame {
        Frame::Simple(text) | Frame::BigNumber(text) | Frame::Verbatim { text, .. } => line("", text),
        Frame::Error(text) => line("(error) ", text),
        Frame::Integer(number) => line(&format!("(integer) {number}"), b""),
        Frame::Double(number) => line(&format!("(double) {number}"), b""),
        Frame::Null => line("(nil)", b""),
        Frame::Boolean(value) => line(if *value { "(true)" } else { "(false)" }, b""),
        Frame::Bulk(bytes) => line(&quoted(bytes), b""),
        Frame::Array(elements) => put_list(out, elements, indent, ')', "(empty array)"),
        Frame::Set(elements) => put_list(out, elements, indent, '~', "(empty set)"),
        Frame::Push(elements) => put_list(out, elements, indent, '>', "(empty push)"),
        Frame::Map(pairs) => put_map(out, pairs, indent),
    }
}

fn put_list(out: &mut Vec<u8>, elements: &[Frame], indent: usize, mark: char, empty: &str) {
    if elements.is_empty() {
        out.extend_from_slice(format!("{empty}\n").as_bytes());
    }
    let width = elements.len().to_string().len();
    for (index, element) in elements.iter().enumerate() {
        put_number(out, index, (width, indent), mark);
        put_typed(out, element, indent + width + 2);
    }
}

fn put_map(out: &mut Vec<u8>, pairs: &[(Frame, Frame)], indent: usize) {
    if pairs.is_empty() {
        out.extend_from_slice(b"(empty hash)\n");
    }
    let width = pairs.len().to_string().len();
    for (index, (key, value)) in pairs.iter().enumerate() {
        put_number(out, index, (width, indent), '#');
        put_typed(out, key, indent + width + 2);
        out.pop();
        out.extend_from_slice(b" => ");
        let indent = indent + width + 2;
        if has_elements(value) {
            out.extend_from_slice(format!("\n{:indent$}", "").as_bytes());
        }
        put_typed(out, value, indent);
    }
}

fn has_elements(frame: &Frame) -> bool {
    match frame {
        Frame::Map(pairs) => !pairs.is_empty(),
        other => other.elements().is_some_and(|elements| !elements.is_empty()),
    }
}

/// The first element stands on the line of what it is an element of.
fn put_number(out: &mut Vec<u8>, index: usize, (width, indent): (usize, usize), mark: char) {
    let indent = if index == 0 { 0 } else { indent };
    out.extend_from_slice(format!("{:indent$}{:>width$}{mark} ", "", index + 1).as_bytes());
}

fn put_raw(out: &mut Vec<u8>, frame: &Frame) {
    match frame {
        Frame::Array(elements) | Frame::Set(elements) | Frame::Push(elements) => {
            for (index, element) in elements.iter().enumerate() {
                out.extend_from_slice(if index > 0 { b"\n" } else { b"" });
                put_raw(out, element);
            }
        }
        Frame::Map(pairs) => {
            for (index, (key, value)) in pairs.iter().enumerate() {
                out.extend_from_slice(if index > 0 { b"\n" } else { b"" });
                put_raw(out, key);
                out.push(b' ');
                put_raw(out, value);
            }
        }
        Frame::Null => {}
        // A line of its own, also within an array.
        Frame::Error(text) => {
            out.extend_from_slice(text);
            out.push(b'\n');
        }
        Frame::Integer(number) => out.extend_from_slice(number.to_string().as_bytes()),
        Frame::Double(number) => out.extend_from_slice(number.to_string().as_bytes()),
        Frame::Boolean(value) => out.extend_from_slice(if *value { b"(true)" } else { b"(false)" }),
        other => out.extend_from_slice(other.as_bytes().unwrap_or_default()),
    }
}

/// In double quotes, with everything escaped that is not printable ASCII.
fn quoted(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() + 2);
    text.push('"');
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => text.extend(['\\', char::from(byte)]),
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            b'\t' => text.push_str("\\t"),
            7 => text.push_str("\\a"),
            8 => text.push_str("\\b"),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(frame: &Frame) -> String {
        String::from_utf8(format(frame, Style::Typed)).expect("text")
    }

    #[test]
    fn nested_replies_are_numbered_and_indented() {
        let inner = Frame::Array(vec![Frame::Bulk(b"a".to_vec()), Frame::Null]);
        let elements = (0..9).map(Frame::Integer).chain([inner.clone()]).collect();
        let lines: Vec<String> = typed(&Frame::Array(elements)).lines().map(str::to_owned).collect();
        assert_eq!(lines[0], " 1) (integer) 0");
        assert_eq!(&lines[9..], ["10) 1) \"a\"", "    2) (nil)"]);
        let map = Frame::Map(vec![(Frame::Bulk(b"field".to_vec()), inner)]);
        assert_eq!(typed(&map), "1# \"field\" => \n   1) \"a\"\n   2) (nil)\n");
        assert_eq!(typed(&Frame::Set(Vec::new())), "(empty set)\n");
    }

    #[test]
    fn bytes_are_escaped_for_people_only() {
        let frame = Frame::Bulk(b"a\"\\\n\x00\xff".to_vec());
        assert_eq!(typed(&frame), "\"a\\\"\\\\\\n\\x00\\xff\"\n");
        assert_eq!(format(&frame, Style::Raw), b"a\"\\\n\x00\xff\n");
        assert_eq!(format(&Frame::Error(b"ERR no".to_vec()), Style::Json), b"{\"error\":\"ERR no\"}\n");
    }
}

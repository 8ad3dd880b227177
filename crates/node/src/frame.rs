//! Looking into replies that this very node has written.
//!
//! The bytes come from [`resp::Writer`], so what does not fit is a defect of ours.

/// Bytes of the first reply in `bytes`, with all its elements.
pub fn len(bytes: &[u8]) -> usize {
    let line = line_len(bytes);
    match bytes[0] {
        b'$' | b'=' => match number(bytes) {
            -1 => line,
            length => line + length as usize + 2,
        },
        kind @ (b'*' | b'~' | b'>' | b'%') => {
            let count = number(bytes).max(0) as usize * if kind == b'%' { 2 } else { 1 };
            (0..count).fold(line, |at, _| at + len(&bytes[at..]))
        }
        _ => line,
    }
}

/// Number of elements of an array or set, and where the first begins.
pub fn aggregate(bytes: &[u8]) -> (usize, usize) {
    (number(bytes).max(0) as usize, line_len(bytes))
}

/// The elements of an array or set, as they were written.
pub fn elements(bytes: &[u8]) -> Vec<&[u8]> {
    let (count, mut at) = aggregate(bytes);
    let element = |_| {
        let element = &bytes[at..at + len(&bytes[at..])];
        at += element.len();
        element
    };
    (0..count).map(element).collect()
}

/// An integer reply.
pub fn integer(bytes: &[u8]) -> i64 {
    number(bytes)
}

/// The bytes of a bulk string.
pub fn bulk_bytes(bytes: &[u8]) -> Option<&[u8]> {
    let length = usize::try_from(number(bytes)).ok()?;
    let start = line_len(bytes);
    Some(&bytes[start..start + length])
}

/// The text of a bulk string.
pub fn bulk(bytes: &[u8]) -> Option<&str> {
    let length = usize::try_from(number(bytes)).ok()?;
    let start = line_len(bytes);
    std::str::from_utf8(&bytes[start..start + length]).ok()
}

fn line_len(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| *byte == b'\n').expect("a reply ends with a line end") + 1
}

fn number(bytes: &[u8]) -> i64 {
    std::str::from_utf8(&bytes[1..line_len(bytes) - 2]).ok().and_then(|text| text.parse().ok()).unwrap_or(-1)
}

#[cfg(test)]
mod tests {
    use resp::{Protocol, Writer};

    use super::*;

    #[test]
    fn a_reply_is_as_long_as_it_was_written() {
        for protocol in [Protocol::Resp2, Protocol::Resp3] {
            let mut writer = Writer::new(protocol);
            writer.array(5);
            writer.bulk(b"a\r\nb");
            writer.null();
            writer.map(1);
            writer.integer(-7);
            writer.boolean(true);
            writer.array(0);
            writer.double_text("1.5");
            let whole = writer.len();
            writer.ok();
            assert_eq!(len(writer.bytes()), whole);
            assert_eq!(aggregate(writer.bytes()), (5, 4));
        }
    }
}

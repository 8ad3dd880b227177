//! Looking into replies.
//!
//! Most have been written by this very node; those of other nodes are looked through by [`is_one`] when they come. So
//! what does not fit is a defect, here or there. It is nobody's reason to stop: what cannot be read is not there.

/// Bytes of the first reply in `bytes`, with all its elements; all of them if they are none.
pub fn len(bytes: &[u8]) -> usize {
    first_len(bytes).unwrap_or(bytes.len())
}

/// True if these are the bytes of one reply and nothing else.
pub fn is_one(bytes: &[u8]) -> bool {
    first_len(bytes) == Some(bytes.len())
}

fn first_len(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut wanted = 1;
    while wanted > 0 {
        // The shortest has a kind and the end of a line.
        const BYTES_MIN: usize = 3;
        let rest = bytes.get(at..).filter(|rest| wanted <= rest.len() / BYTES_MIN)?;
        let line = line_len(rest)?;
        let count = || usize::try_from(number(rest).max(0)).ok();
        wanted -= 1;
        at += line;
        match rest[0] {
            b'$' | b'=' => match number(rest) {
                -1 => {}
                length => {
                    let end = usize::try_from(length).ok()?.checked_add(2)?;
                    at += rest[line..].get(..end).filter(|text| text.ends_with(b"\r\n"))?.len();
                }
            },
            b'*' | b'~' | b'>' => wanted = wanted.checked_add(count()?)?,
            b'%' => wanted = wanted.checked_add(count()?.checked_mul(2)?)?,
            // What they are about follows.
            b'|' => wanted = wanted.checked_add(count()?.checked_mul(2)?.checked_add(1)?)?,
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => {}
            _ => return None,
        }
    }
    Some(at)
}

/// Number of elements of an array or set, and where the first begins.
pub fn aggregate(bytes: &[u8]) -> (usize, usize) {
    let count = match bytes.first() {
        Some(b'*' | b'~' | b'>' | b'%') => usize::try_from(number(bytes).max(0)).unwrap_or(0),
        _ => 0,
    };
    (count, line_len(bytes).unwrap_or(bytes.len()))
}

/// The elements of an array or set, as they were written.
pub fn elements(bytes: &[u8]) -> Vec<&[u8]> {
    let (count, mut at) = aggregate(bytes);
    let mut elements = Vec::new();
    while elements.len() < count && at < bytes.len() {
        let element = &bytes[at..at + len(&bytes[at..])];
        at += element.len();
        elements.push(element);
    }
    elements
}

/// An integer reply.
pub fn integer(bytes: &[u8]) -> i64 {
    number(bytes)
}

/// The bytes of a bulk string.
pub fn bulk_bytes(bytes: &[u8]) -> Option<&[u8]> {
    if !matches!(bytes.first(), Some(b'$' | b'=')) {
        return None;
    }
    let length = usize::try_from(number(bytes)).ok()?;
    bytes.get(line_len(bytes)?..)?.get(..length)
}

/// The text of a bulk string.
pub fn bulk(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bulk_bytes(bytes)?).ok()
}

/// Bytes of the first line, with its end.
fn line_len(bytes: &[u8]) -> Option<usize> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    bytes[..end].ends_with(b"\r").then_some(end + 1)
}

fn number(bytes: &[u8]) -> i64 {
    let text = line_len(bytes).and_then(|end| std::str::from_utf8(bytes.get(1..end - 2)?).ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(-1)
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

    #[test]
    fn what_is_not_one_reply_is_told_from_one() {
        for one in [
            "+OK\r\n",
            "$-1\r\n",
            "$0\r\n\r\n",
            "*-1\r\n",
            "*0\r\n",
            "*2\r\n:1\r\n*1\r\n$1\r\na\r\n",
            "%1\r\n+a\r\n_\r\n",
            "|1\r\n+a\r\n#t\r\n,1.5\r\n",
        ] {
            assert!(is_one(one.as_bytes()), "{one:?}");
            for end in 0..one.len() {
                assert!(!is_one(&one.as_bytes()[..end]), "{one:?} up to {end}");
                // Whatever is asked of what is left is answered.
                let left = &one.as_bytes()[..end];
                _ = (len(left), aggregate(left), elements(left), integer(left), bulk(left));
            }
            assert!(!is_one(format!("{one}+OK\r\n").as_bytes()), "{one:?} and another one");
        }
        for none in [
            "",
            "\r\n",
            "OK\r\n",
            "+OK\n",
            "$5\r\nabc\r\n",
            "$2\r\nabcd",
            "$-2\r\n",
            "$99999999999999999999\r\n\r\n",
            "*9223372036854775807\r\n:1\r\n",
            "%9223372036854775807\r\n",
        ] {
            assert!(!is_one(none.as_bytes()), "{none:?}");
        }
        let deep = b"*1\r\n".repeat(1 << 20);
        assert!(!is_one(&deep));
        assert!(is_one(&[&deep[..], b":1\r\n"].concat()), "no stack is needed");
    }
}

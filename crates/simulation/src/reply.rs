//! A client's half of RESP2, written apart from the server's so that the two cannot be wrong together.

use resp::{Args, Span};

/// One reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+OK`
    Simple(String),
    /// `-ERR …`
    Error(String),
    /// `:1`
    Integer(i64),
    /// `$3 abc`, or the null bulk.
    Bulk(Option<Vec<u8>>),
    /// `*2 …`, or the null array.
    Array(Option<Vec<Reply>>),
}

/// Reads one reply from the front; `None` if it is not complete.
///
/// # Errors
/// If the bytes cannot be the beginning of a reply.
pub fn parse(bytes: &[u8]) -> Result<Option<(Reply, usize)>, String> {
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let line = std::str::from_utf8(&bytes[1..end.max(1)]).map_err(|_| "a line that is no text".to_owned())?;
    let number = || line.parse::<i64>().map_err(|_| format!("'{line}' is no number"));
    let after = end + 2;
    Ok(match bytes[0] {
        b'+' => Some((Reply::Simple(line.to_owned()), after)),
        b'-' => Some((Reply::Error(line.to_owned()), after)),
        b':' => Some((Reply::Integer(number()?), after)),
        b'$' => match number()? {
            -1 => Some((Reply::Bulk(None), after)),
            length => {
                let length = usize::try_from(length).map_err(|_| "a negative length".to_owned())?;
                match bytes.get(after..after + length + 2) {
                    None => None,
                    Some(content) if content.ends_with(b"\r\n") => {
                        Some((Reply::Bulk(Some(content[..length].to_vec())), after + length + 2))
                    }
                    Some(_) => return Err("a bulk without its end".to_owned()),
                }
            }
        },
        b'*' => match number()? {
            -1 => Some((Reply::Array(None), after)),
            count => {
                let (mut items, mut at) = (Vec::new(), after);
                for _ in 0..count {
                    let Some((item, length)) = parse(&bytes[at..])? else { return Ok(None) };
                    items.push(item);
                    at += length;
                }
                Some((Reply::Array(Some(items)), at))
            }
        },
        other => return Err(format!("a reply that begins with {other:#x}")),
    })
}

/// A command as clients send it.
pub fn encode(words: &[&[u8]], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// Lays the words of a request out as a command takes them.
pub fn with_args<R>(words: &[&[u8]], run: impl FnOnce(Args<'_>) -> R) -> R {
    let buffer = words.concat();
    let mut spans: Vec<Span> = Vec::new();
    for word in words {
        let start = spans.last().map_or(0, |span| span.end);
        spans.push(Span { start, end: start + word.len() as u32 });
    }
    run(Args::new(&buffer, &spans))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_when_they_are_whole() {
        let bytes = b"*3\r\n$1\r\na\r\n$-1\r\n*2\r\n:-4\r\n+OK\r\n-ERR no\r\n";
        let whole = bytes.len() - 9;
        for cut in 0..whole {
            assert_eq!(parse(&bytes[..cut]), Ok(None), "cut at {cut}");
        }
        let inner = Reply::Array(Some(vec![Reply::Integer(-4), Reply::Simple("OK".into())]));
        let expected = Reply::Array(Some(vec![Reply::Bulk(Some(b"a".to_vec())), Reply::Bulk(None), inner]));
        assert_eq!(parse(bytes), Ok(Some((expected, whole))));
        assert_eq!(parse(&bytes[whole..]), Ok(Some((Reply::Error("ERR no".into()), 9))));
        assert!(parse(b"?\r\n").is_err());
    }
}

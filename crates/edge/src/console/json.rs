//! Replies as JSON.

use resp::Frame;
use serde_json::{Map, Value, json};

/// A reply as JSON. Maps with text as keys become objects. Bytes that are no text stand as `\xNN`, and longer strings
/// than `bytes_max` are cut, which is said behind them.
pub fn of_frame(frame: &Frame, bytes_max: usize) -> Value {
    let list = |frames: &[Frame]| frames.iter().map(|frame| of_frame(frame, bytes_max)).collect::<Vec<_>>().into();
    match frame {
        Frame::Null => Value::Null,
        Frame::Integer(number) => (*number).into(),
        // JSON has no numbers without end.
        Frame::Double(number) if !number.is_finite() => number.to_string().to_ascii_lowercase().into(),
        Frame::Double(number) => json!(number),
        Frame::Boolean(value) => (*value).into(),
        Frame::Array(frames) | Frame::Set(frames) | Frame::Push(frames) => list(frames),
        Frame::Map(pairs) => {
            let name = |frame: &Frame| text(frame.as_bytes().unwrap_or_default(), usize::MAX);
            let pairs = pairs.iter().map(|(key, value)| (name(key), of_frame(value, bytes_max)));
            Value::Object(pairs.collect::<Map<_, _>>())
        }
        Frame::Simple(bytes)
        | Frame::Error(bytes)
        | Frame::Bulk(bytes)
        | Frame::BigNumber(bytes)
        | Frame::Verbatim { text: bytes, .. } => text(bytes, bytes_max).into(),
    }
}

/// The same, but nothing is lost: bytes that are no text are an object with what is shown (`text`) and what they are
/// (`id`, see [`encode`]). If they are cut, they are an object with `text` and how many are missing (`more`).
pub fn exact(frame: &Frame, bytes_max: usize) -> Value {
    match frame {
        Frame::Array(frames) | Frame::Set(frames) => {
            frames.iter().map(|frame| exact(frame, bytes_max)).collect::<Vec<_>>().into()
        }
        Frame::Bulk(bytes) if bytes.len() > bytes_max => {
            json!({ "text": text(&bytes[..bytes_max], bytes_max), "more": bytes.len() - bytes_max })
        }
        Frame::Bulk(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => text.into(),
            Err(_) => json!({ "text": text(bytes, bytes_max), "id": encode(bytes) }),
        },
        other => of_frame(other, bytes_max),
    }
}

/// Bytes as people read them: text as it is, other bytes as `\xNN`.
pub fn text(bytes: &[u8], bytes_max: usize) -> String {
    let shown = &bytes[..bytes.len().min(bytes_max)];
    let mut text = String::new();
    for chunk in shown.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    if shown.len() < bytes.len() {
        text.push_str(&format!("… ({} bytes more)", bytes.len() - shown.len()));
    }
    text
}

/// Bytes as a word of an address.
pub fn encode(bytes: &[u8]) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    let word = |byte: &u8| if is_plain(*byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") };
    bytes.iter().map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_is_shown_and_what_is_long_is_cut() {
        assert_eq!(text(b"<script>\xff\x00", 100), "<script>\\xff\0");
        assert_eq!(text("grün".as_bytes(), 3), "gr\\xc3… (2 bytes more)");
        let bulk = |text: &str| Frame::Bulk(text.as_bytes().to_vec());
        let frame = Frame::Map(vec![
            (bulk("a"), Frame::Array(vec![Frame::Integer(-1), Frame::Null, Frame::Double(f64::INFINITY)])),
            (bulk("b"), bulk("</script>")),
        ]);
        assert_eq!(of_frame(&frame, 100).to_string(), r#"{"a":[-1,null,"inf"],"b":"</script>"}"#);
        assert_eq!(encode(b"a b/\xff<"), "a%20b%2F%FF%3C");
        let frame =
            Frame::Array(vec![bulk("grün"), bulk("grüner"), Frame::Bulk(b"\xff\\".to_vec()), Frame::Integer(1)]);
        let told = r#"["grün",{"more":1,"text":"grüne"},{"id":"%FF%5C","text":"\\xff\\"},1]"#;
        assert_eq!(exact(&frame, 6).to_string(), told);
    }
}

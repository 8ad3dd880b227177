use super::*;
use crate::{Limits, Parsed, Protocol, RequestParser, Writer};

fn bulk(text: &str) -> Frame {
    Frame::Bulk(text.as_bytes().to_vec())
}

fn decode(pieces: &[&[u8]]) -> Result<Vec<Frame>, Malformed> {
    let mut decoder = FrameDecoder::new();
    let mut frames = Vec::new();
    for piece in pieces {
        decoder.extend(piece);
        while let Some(frame) = decoder.next_frame()? {
            frames.push(frame);
        }
    }
    Ok(frames)
}

const EVERY_KIND: &[u8] = b"+OK\r\n-ERR no\r\n:-42\r\n$5\r\na\r\nb \r\n$-1\r\n*-1\r\n_\r\n\
    *2\r\n:1\r\n*0\r\n%1\r\n+k\r\n$0\r\n\r\n~2\r\n+a\r\n+b\r\n>1\r\n+message\r\n#t\r\n#f\r\n,1.5\r\n,inf\r\n\
    (123456789012345678901234567890\r\n=8\r\ntxt:text\r\n!5\r\nERR x\r\n\
    |1\r\n+ttl\r\n:3\r\n*1\r\n|1\r\n+a\r\n+b\r\n:9\r\n";

#[test]
fn every_kind_of_reply_is_decoded_however_it_was_cut() {
    let expected = vec![
        Frame::Simple(b"OK".to_vec()),
        Frame::Error(b"ERR no".to_vec()),
        Frame::Integer(-42),
        bulk("a\r\nb "),
        Frame::Null,
        Frame::Null,
        Frame::Null,
        Frame::Array(vec![Frame::Integer(1), Frame::Array(vec![])]),
        Frame::Map(vec![(Frame::Simple(b"k".to_vec()), bulk(""))]),
        Frame::Set(vec![Frame::Simple(b"a".to_vec()), Frame::Simple(b"b".to_vec())]),
        Frame::Push(vec![Frame::Simple(b"message".to_vec())]),
        Frame::Boolean(true),
        Frame::Boolean(false),
        Frame::Double(1.5),
        Frame::Double(f64::INFINITY),
        Frame::BigNumber(b"123456789012345678901234567890".to_vec()),
        Frame::Verbatim { format: *b"txt", text: b"text".to_vec() },
        Frame::Error(b"ERR x".to_vec()),
        Frame::Array(vec![Frame::Integer(9)]),
    ];
    assert_eq!(decode(&[EVERY_KIND]).as_ref(), Ok(&expected));
    for first in 0..EVERY_KIND.len() {
        for second in first..EVERY_KIND.len().min(first + 40) {
            let pieces = [&EVERY_KIND[..first], &EVERY_KIND[first..second], &EVERY_KIND[second..]];
            assert_eq!(decode(&pieces).as_ref(), Ok(&expected), "cut at {first} and {second}");
        }
    }
    assert_eq!(decode(&EVERY_KIND.chunks(1).collect::<Vec<_>>()).as_ref(), Ok(&expected));
}

#[test]
fn what_the_writer_writes_the_decoder_reads() {
    for (protocol, null) in [(Protocol::Resp2, b"$-1\r\n".as_slice()), (Protocol::Resp3, b"_\r\n")] {
        let mut writer = Writer::new(protocol);
        writer.null();
        assert_eq!(writer.bytes(), null);
        writer.array(2);
        writer.integer(i64::MIN);
        writer.verbatim("txt", b"words");
        writer.map(1);
        writer.bulk(b"key");
        writer.double_text("0.5");
        let frames = decode(&[writer.bytes()]).expect("our own replies are well formed");
        let (verbatim, map) = match protocol {
            Protocol::Resp2 => (bulk("words"), Frame::Array(vec![bulk("key"), bulk("0.5")])),
            Protocol::Resp3 => (
                Frame::Verbatim { format: *b"txt", text: b"words".to_vec() },
                Frame::Map(vec![(bulk("key"), Frame::Double(0.5))]),
            ),
        };
        assert_eq!(frames, [Frame::Null, Frame::Array(vec![Frame::Integer(i64::MIN), verbatim]), map]);
    }
}

#[test]
fn the_scanner_tells_kind_and_null() {
    let mut scanner = ReplyScanner::new();
    for (input, len, kind, null) in [
        (b"+OK\r\n+".as_slice(), 5, b'+', false),
        (b"*-1\r\n", 5, b'*', true),
        (b"$-1\r\n", 5, b'$', true),
        (b"_\r\n", 3, b'_', true),
        (b"*1\r\n$-1\r\n", 9, b'*', false),
        (b"|1\r\n+a\r\n+b\r\n-ERR\r\n", 18, b'-', false),
    ] {
        assert_eq!(scanner.scan(input), Ok(Some(Scanned { len, kind, null })), "{}", input.escape_ascii());
    }
    assert_eq!(scanner.scan(b""), Ok(None));
}

#[test]
fn what_no_server_says_is_refused() {
    for (input, error) in [
        (b"hello\r\n".as_slice(), Malformed::Kind(b'h')),
        (b"\r\n", Malformed::Line),
        (b"+OK\n", Malformed::Line),
        (b"$x\r\n", Malformed::Number),
        (b"$-2\r\n", Malformed::Number),
        (b"$99999999999\r\n", Malformed::Number),
        (b"%-1\r\n", Malformed::Number),
        (b"$1\r\nabc\r\n", Malformed::Ending),
        (b":12a\r\n", Malformed::Number),
        (b"#x\r\n", Malformed::Number),
    ] {
        assert_eq!(decode(&[input]), Err(error), "{}", input.escape_ascii());
    }
    assert_eq!(decode(&["*1\r\n".repeat(100).as_bytes(), b":1\r\n"]), Err(Malformed::Nesting));
    assert_eq!(decode(&[&vec![b'+'; REPLY_LINE_BYTES_MAX + 2]]), Err(Malformed::Line));
}

#[test]
fn random_bytes_never_panic() {
    let pieces: [&[u8]; 16] = [
        b"*", b"$", b"\r\n", b"+", b"-1", b"%", b"|", b"3", b"=", b"txt:", b":", b"_", b"#t", b"~1\r\n", b"\xff", b",",
    ];
    let mut seed = 1u64;
    let mut draw = |bound: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % bound
    };
    for _ in 0..20_000 {
        let mut stream = Vec::new();
        for _ in 0..draw(24) {
            stream.extend_from_slice(pieces[draw(pieces.len())]);
        }
        let cut = draw(stream.len() + 1);
        // What follows an error differs with the pieces, the error does not.
        assert_eq!(decode(&[&stream[..cut], &stream[cut..]]), decode(&[&stream]), "{} at {cut}", stream.escape_ascii());
    }
}

#[test]
fn a_request_encoded_is_the_request_parsed() {
    let long = "v".repeat(12_345);
    let words = ["SET", "", "k\r\n", &long];
    let mut bytes = Vec::new();
    encode_request(&mut bytes, &words);
    let mut spans = Vec::new();
    let parsed = RequestParser::new().parse(&bytes, &Limits::default(), &mut spans);
    assert_eq!(parsed, Ok(Parsed::Request { consumed: bytes.len() }));
    let parsed: Vec<&[u8]> = crate::Args::new(&bytes, &spans).iter().collect();
    assert_eq!(parsed, words.map(str::as_bytes));
}

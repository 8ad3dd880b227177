use super::*;

const OPEN: Limits = Limits {
    bulk_bytes_max: BULK_BYTES_MAX,
    words_max: WORDS_MAX,
    request_bytes_max: REQUEST_BYTES_MAX,
    authenticated: true,
};

/// What a stream says, whatever pieces it came in.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Words(Vec<Vec<u8>>),
    Empty,
    Error(ProtocolError),
}

/// Feeds `pieces` as a session would: bytes gather in one buffer, requests are taken off its front.
fn hear(pieces: &[&[u8]], limits: &Limits) -> (Vec<Heard>, usize) {
    let mut parser = RequestParser::new();
    let (mut buffer, mut heard) = (Vec::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        let mut taken = 0;
        loop {
            let mut spans = vec![Span { start: 7, end: 3 }]; // a shared vector comes with another session's words
            let input = &buffer[taken..];
            let cut = |source: &[u8], spans: &[Span]| {
                Heard::Words(spans.iter().map(|span| source[span.start as usize..span.end as usize].to_vec()).collect())
            };
            match parser.parse(input, limits, &mut spans) {
                Ok(Parsed::Incomplete { need }) => {
                    assert!(need > input.len(), "needs {need} of {}", input.len());
                    assert!(spans.is_empty());
                    break;
                }
                Ok(Parsed::Empty { consumed }) => {
                    taken += consumed;
                    heard.push(Heard::Empty);
                }
                Ok(Parsed::Request { consumed }) => {
                    heard.push(cut(input, &spans));
                    taken += consumed;
                }
                Ok(Parsed::Inline { consumed }) => {
                    heard.push(cut(parser.line(), &spans));
                    taken += consumed;
                }
                Err(error) => {
                    heard.push(Heard::Error(error));
                    return (heard, 0);
                }
            }
        }
        buffer.drain(..taken);
    }
    (heard, buffer.len())
}

fn words(list: &[&str]) -> Heard {
    Heard::Words(list.iter().map(|word| word.as_bytes().to_vec()).collect())
}

#[track_caller]
fn check(stream: &[u8], expected: &[Heard]) {
    let (heard, _) = hear(&[stream], &OPEN);
    assert_eq!(heard, expected, "{}", stream.escape_ascii());
}

#[track_caller]
fn check_error(stream: &[u8], limits: &Limits, text: &str) {
    match hear(&[stream], limits).0.as_slice() {
        [Heard::Error(error)] => assert_eq!(error.to_string(), format!("Protocol error: {text}")),
        other => panic!("{}: {other:?}", stream[..stream.len().min(80)].escape_ascii()),
    }
}

#[test]
fn pipelined_requests_are_told_apart() {
    check(
        b"*1\r\n$4\r\nPING\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n*0\r\n*-1\r\nGET k\r\n\r\n",
        &[words(&["PING"]), words(&["SET", "k", ""]), Heard::Empty, Heard::Empty, words(&["GET", "k"]), Heard::Empty],
    );
}

#[test]
fn however_a_stream_is_cut_it_says_the_same() {
    let long = format!("*2\r\n$4\r\nECHO\r\n$300\r\n{}\r\n", "v".repeat(300));
    let streams: [&[u8]; 7] = [
        b"*3\r\n$3\r\nSET\r\n$10\r\n0123456789\r\n$2\r\n\r\n\r\nPING\r\n*1\r\n$4\r\nQUIT\r\n",
        b"set 'a b' \"c\\x41\\n\" d\r\n*0\r\n  \n*2\r\n$1\r\na\r\n$12\r\nabcdefghijkl\r\n",
        b"*2\r\n$1\r\nx\r\n!oops\r\n",
        b"*1\r\n$-5\r\n",
        b"*x\r\n",
        b"get \"unfinished\r\n",
        long.as_bytes(),
    ];
    for stream in streams {
        let whole = hear(&[stream], &OPEN);
        for first in 0..=stream.len() {
            assert_eq!(hear(&[&stream[..first], &stream[first..]], &OPEN), whole, "cut at {first}");
            for second in first..=stream.len().min(first + 24) {
                let pieces = [&stream[..first], &stream[first..second], &stream[second..]];
                assert_eq!(hear(&pieces, &OPEN), whole, "cut at {first} and {second}");
            }
        }
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(hear(&bytes, &OPEN), whole, "byte by byte");
    }
}

#[test]
fn errors_are_told_in_redis_words() {
    for (stream, text) in [
        (b"*3000000000\r\n".as_slice(), "invalid multibulk length"),
        (b"*1048577\r\n", "invalid multibulk length"),
        (b"*\r\n", "invalid multibulk length"),
        (b"*01\r\n", "invalid multibulk length"),
        (b"*+1\r\n", "invalid multibulk length"),
        (b"*-0\r\n", "invalid multibulk length"),
        (b"*99999999999999999999\r\n", "invalid multibulk length"),
        (b"*1\r\nfoo\r\n", "expected '$', got 'f'"),
        (b"*1\r\n\r\n", "expected '$', got '\r'"),
        (b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\nfooz\r\n", "expected '$', got 'f'"),
        (b"*1\r\n$\r\n", "invalid bulk length"),
        (b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$-10\r\n", "invalid bulk length"),
        (b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$2000000000\r\n", "invalid bulk length"),
        (b"*1\r\n$blabla\r\n", "invalid bulk length"),
        (b"*1\r\n$629145600\r\n", "invalid bulk length"),
        (b"set \"\"\"test-key\"\"\" test-value\r\n", "unbalanced quotes in request"),
        (b"get 'x\r\n", "unbalanced quotes in request"),
        (b"get \"x\\\r\n", "unbalanced quotes in request"),
    ] {
        check_error(stream, &OPEN, text);
    }
}

#[test]
fn lines_that_do_not_end_are_cut_off() {
    for (head, text) in [
        ("", "too big inline request"),
        ("*", "too big mbulk count string"),
        ("*1\r\n$", "too big bulk count string"),
        ("\0\n", "too big inline request"),
        ("*\0\r\n", "too big mbulk count string"),
        ("*1\r\n$\0\r\n", "too big bulk count string"),
    ] {
        let mut stream = head.as_bytes().to_vec();
        stream.resize(LINE_BYTES_MAX + head.len() + 1, b'A');
        check_error(&stream, &OPEN, text);
        // The same bytes, one less than the limit: not yet.
        let line = head.rfind('$').unwrap_or(0);
        assert_eq!(hear(&[&stream[..line + LINE_BYTES_MAX]], &OPEN).0, [], "{head:?}");
    }
    let mut line = vec![b'A'; LINE_BYTES_MAX + 1];
    line.push(b'\n');
    check_error(&line, &OPEN, "too big inline request");
}

#[test]
fn a_stranger_is_kept_short() {
    let stranger = Limits { authenticated: false, ..OPEN };
    check_error(b"*11\r\n", &stranger, "unauthenticated multibulk length");
    check_error(b"*1\r\n$16385\r\n", &stranger, "unauthenticated bulk length");
    let full = format!("*10\r\n{}", "$1\r\nw\r\n".repeat(10));
    assert_eq!(hear(&[full.as_bytes()], &stranger).0, [words(&["w"; 10])]);
    let large = format!("*1\r\n$16384\r\n{}\r\n", "w".repeat(16_384));
    assert_eq!(hear(&[large.as_bytes()], &stranger).0, [words(&["w".repeat(16_384).as_str()])]);
}

#[test]
fn an_announcement_alone_reserves_little() {
    let mut parser = RequestParser::new();
    let mut spans = Vec::new();
    let mut input = b"*1000000\r\n$524288000\r\n".to_vec();
    assert_eq!(parser.parse(&input, &OPEN, &mut spans), Ok(Parsed::Incomplete { need: 65_536 }));
    input.resize(1_000_000, b'x');
    assert_eq!(parser.parse(&input, &OPEN, &mut spans), Ok(Parsed::Incomplete { need: 2_000_000 }));
    assert!(spans.capacity() + parser.spans.capacity() <= 2 * SPANS_KEPT_MAX);
}

#[test]
fn what_is_needed_is_exact_when_it_is_near() {
    let mut parser = RequestParser::new();
    let mut spans = Vec::new();
    let input = b"*2\r\n$3\r\nGET\r\n$10\r\nabc";
    assert_eq!(parser.parse(input, &OPEN, &mut spans), Ok(Parsed::Incomplete { need: 13 + 5 + 12 }));
    assert!(!parser.is_idle());
}

#[test]
fn a_request_is_bounded_as_a_whole() {
    let small = Limits { request_bytes_max: 40, ..OPEN };
    check_error(b"*3\r\n$10\r\n0123456789\r\n$10\r\n0123456789\r\n$1\r\n", &small, "too big request");
    assert_eq!(hear(&[b"*2\r\n$10\r\n0123456789\r\n$10\r\n01234567\r\n\r\n"], &small).0.len(), 1);
}

#[test]
fn inline_words_are_quoted_as_in_redis() {
    check(b"set foo bar\n", &[words(&["set", "foo", "bar"])]);
    check(b" \t set\x0b \"\" '' \r\n", &[words(&["set\u{b}", "", ""])]);
    check(br#"a"b c"  'it\'s' "\x41\x4g\q\"\n""#, &[]);
    let line = b"a\"b c\"  'it\\'s \\n' \"\\x41\\x4g\\q\\\"\\n\\t\\a\\b\\r\"\r\n";
    check(line, &[words(&["ab c", "it's \\n", "Ax4gq\"\n\t\u{7}\u{8}\r"])]);
    check(b"\"\\xff\"\r\n", &[Heard::Words(vec![vec![0xff]])]);
}

#[test]
fn a_request_of_many_words_is_understood_in_one_pass() {
    // Quadratic work would make this test take minutes.
    let count = 300_000;
    let mut stream = format!("*{count}\r\n").into_bytes();
    for word in 0..count {
        let word = word.to_string();
        stream.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    let mut parser = RequestParser::new();
    let mut spans = Vec::new();
    let mut calls = 0;
    for end in (0..stream.len()).step_by(64) {
        assert!(matches!(parser.parse(&stream[..end], &OPEN, &mut spans), Ok(Parsed::Incomplete { .. })));
        calls += 1;
    }
    assert!(calls > 40_000);
    assert_eq!(parser.parse(&stream, &OPEN, &mut spans), Ok(Parsed::Request { consumed: stream.len() }));
    assert_eq!(spans.len(), count);
    assert!(
        spans
            .iter()
            .enumerate()
            .all(|(index, span)| { stream[span.start as usize..span.end as usize] == *index.to_string().as_bytes() })
    );
}

#[test]
fn hostile_bytes_never_panic_and_pieces_never_matter() {
    let pieces: [&[u8]; 18] = [
        b"*",
        b"$",
        b"\r\n",
        b"\r",
        b"\n",
        b"1",
        b"2",
        b"3",
        b"-",
        b"0",
        b"GET",
        b"\"",
        b"'",
        b"\\x4",
        b" ",
        b"\0",
        b"*2\r\n$1\r\na\r\n",
        b"\xff",
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
        let whole = hear(&[&stream], &OPEN);
        let cut = draw(stream.len() + 1);
        assert_eq!(hear(&[&stream[..cut], &stream[cut..]], &OPEN), whole, "{} at {cut}", stream.escape_ascii());
    }
}

#[test]
fn a_glance_sees_what_the_parser_sees_or_nothing() {
    let whole = b"*3\r\n$3\r\nSET\r\n$10\r\n0123456789\r\n$0\r\n\r\n*1\r\n$4\r\nPING\r\n";
    for end in 0..whole.len() {
        let input = &whole[..end];
        let mut spans = Vec::new();
        let parsed = RequestParser::new().parse(input, &Limits::default(), &mut spans).unwrap();
        match (glance(input), parsed) {
            (Some(glance), Parsed::Request { consumed }) => {
                assert_eq!((glance.consumed, &glance.words[..3]), (consumed, &spans[..]));
            }
            (None, Parsed::Incomplete { .. }) => {}
            (glance, parsed) => panic!("{glance:?} beside {parsed:?}"),
        }
    }
    for other in [
        &b"*1\r\n$4\r\nPING\r\n"[..],
        b"PING\r\n",
        b"*2\r\n:1\r\n",
        b"*2\r\n$-1\r\n",
        b"*-1\r\n",
        b"*2\r\n$99999999999\r\n",
    ] {
        assert_eq!(glance(other), None);
    }
}

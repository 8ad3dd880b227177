//! Bytes that no client would send, whole and in pieces.

use fuzzing::Fuzz;
use resp::{Args, FrameDecoder, Limits, Parsed, RequestParser, Span, glance};

/// What a stream of requests comes to: the words of each, and how it ends.
type Read = (Vec<Vec<Vec<u8>>>, Option<String>);

/// Reads a stream that comes in pieces of this many bytes.
fn read_requests(stream: &[u8], limits: &Limits, piece_bytes: usize) -> Read {
    let (mut parser, mut spans) = (RequestParser::new(), Vec::<Span>::new());
    let (mut requests, mut start, mut end) = (Vec::new(), 0, 0);
    while end < stream.len() {
        end = (end + piece_bytes).min(stream.len());
        loop {
            let input = &stream[start..end];
            if input.is_empty() {
                break;
            }
            match parser.parse(input, limits, &mut spans) {
                Ok(Parsed::Incomplete { need }) => {
                    assert!(need <= (2 * input.len()).max(64 << 10), "an announcement costs {need} bytes of memory");
                    break;
                }
                Ok(Parsed::Empty { consumed }) => start += consumed,
                Ok(Parsed::Request { consumed }) => {
                    let args = Args::new(input, &spans);
                    assert!(!args.is_empty());
                    requests.push(args.iter().map(<[u8]>::to_vec).collect());
                    start += consumed;
                }
                Ok(Parsed::Inline { consumed }) => {
                    let args = Args::new(parser.line(), &spans);
                    requests.push(args.iter().map(<[u8]>::to_vec).collect());
                    start += consumed;
                }
                Err(error) => return (requests, Some(error.to_string())),
            }
        }
    }
    (requests, None)
}

fn corpus() -> Vec<Vec<u8>> {
    vec![
        b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nvalue\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n".to_vec(),
        b"PING\r\nSET \"a b\" 'c\\'d' \"\\x41\\n\"\r\n\r\n*0\r\n*-1\r\n*1\r\n$4\r\nPING\r\n".to_vec(),
        b"*5\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n$1\r\n1\r\n$1\r\nk\r\n$0\r\n\r\n".to_vec(),
    ]
}

#[test]
fn fuzz_requests() {
    let words: [&[u8]; 8] = [b"\r\n", b"\n", b"$", b"*", b"\"", b"'", b"\\x", b"$1\r\na\r\n"];
    Fuzz::new("resp-requests", corpus()).words(&words).run(|input| {
        let limits = Limits { authenticated: input.len() % 2 == 0, ..Limits::default() };
        let whole = read_requests(input, &limits, input.len().max(1));
        let piece_bytes = 1 + input.len() % 7;
        assert_eq!(whole, read_requests(input, &limits, piece_bytes), "in pieces of {piece_bytes}");
        let mut seen = 0;
        while let Some(found) = glance(&input[seen..]) {
            assert!(found.consumed > 0 && seen + found.consumed <= input.len());
            seen += found.consumed;
        }
        let (requests, error) = whole;
        let words: usize = requests.iter().map(Vec::len).sum();
        (requests.len() * 64 + words) as u64 * 4_096 + error.map_or(0, |error| error.len() as u64)
    });
}

#[test]
fn fuzz_replies() {
    let corpus = [
        &b"+OK\r\n-ERR no\r\n:12\r\n$3\r\nabc\r\n*2\r\n$1\r\na\r\n*-1\r\n$-1\r\n"[..],
        b"%1\r\n+a\r\n:1\r\n~2\r\n_\r\n#t\r\n,1.5\r\n(123\r\n=7\r\ntxt:abc\r\n>2\r\n+a\r\n+b\r\n|1\r\n+a\r\n:1\r\n+OK\r\n",
    ];
    let words: [&[u8]; 6] = [b"\r\n", b"*1\r\n", b"%1\r\n", b"|1\r\n", b"$?\r\n", b"*2147483647\r\n"];
    Fuzz::new("resp-replies", corpus.map(<[u8]>::to_vec)).words(&words).run(|input| {
        let read = |piece_bytes: usize| {
            let (mut decoder, mut frames) = (FrameDecoder::new(), Vec::new());
            for piece in input.chunks(piece_bytes) {
                decoder.extend(piece);
                loop {
                    match decoder.next_frame() {
                        Ok(Some(frame)) => frames.push(format!("{frame:?}")),
                        Ok(None) => break,
                        Err(_) => return (frames, true),
                    }
                }
            }
            (frames, false)
        };
        let whole = read(input.len().max(1));
        assert_eq!(whole, read(1 + input.len() % 5));
        whole.0.iter().map(|frame| frame.len() as u64 % 64).sum::<u64>() * 64
            + whole.0.len() as u64 * 2
            + u64::from(whole.1)
    });
}

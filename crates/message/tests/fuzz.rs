//! Requests that no gateway would lay out: what the checks let through can be read, and is all there is.

use fuzzing::Fuzz;
use message::entry::{self, Reader, Watch};
use message::libraries::{Change, Loaded, Policy};
use message::parameters;
use resp::{Args, Protocol, Span};
use script::{Library, Signature};

fn words(line: &str) -> Vec<u8> {
    let (mut buffer, mut spans, mut out) = (Vec::new(), Vec::new(), Vec::new());
    for word in line.split(' ') {
        let start = buffer.len() as u32;
        buffer.extend_from_slice(word.as_bytes());
        spans.push(Span { start, end: buffer.len() as u32 });
    }
    entry::put_words(&mut out, 3, Args::new(&buffer, &spans));
    out
}

#[test]
fn fuzz_words() {
    let mut exec = Vec::new();
    let watch = Watch { database: 1, key: b"watched".to_vec(), version: 7 };
    entry::put_exec(&mut exec, [watch].iter(), 2, &[words("SET k v"), words("GET k")].concat());
    let text = b"#!lua name=lib\nredis.register_function('f', function() return 1 end)".to_vec();
    let library = Library::parse(&text).expect("a library");
    let signature =
        Signature { name: "f".to_owned(), flags: script::Flags::default(), description: Some(b"d".to_vec()) };
    let loaded = Loaded { library, functions: vec![signature] };
    let corpus = [
        words("MSET a 1 b 2"),
        exec,
        Change::Load { policy: Policy::Replace, library: loaded.into() }.encode(),
        Change::Delete { name: "lib".to_owned() }.encode(),
        parameters::encode([("maxmemory", "100mb"), ("appendfsync", "always")].into_iter()),
    ];
    let mut spans = Vec::new();
    Fuzz::new("entry-words", corpus).run(|input| {
        let mut outcome = 0;
        let mut rest = input;
        let taken = entry::take_words(&mut rest, &mut spans)
            .map(|(database, args)| (database, args.iter().map(<[u8]>::to_vec).collect::<Vec<_>>()));
        if let Some((database, args)) = taken {
            let mut reader = Reader::new(input);
            let (same_database, same_args) = reader.words(&mut spans);
            assert_eq!((database, args), (same_database, same_args.iter().map(<[u8]>::to_vec).collect()));
            assert_eq!(reader.rest(), rest);
            outcome |= 1 + 16 * (input.len() - rest.len()) as u64;
        }
        if entry::check_exec(input, &mut spans, |_, _| true) {
            let mut reader = Reader::new(input);
            let exec = reader.exec(Protocol::Resp2, &mut spans);
            assert!(reader.is_done());
            let count = exec.command_count();
            let mut run_count = 0;
            exec.for_each(&mut spans, |_, args| run_count += usize::from(!args.is_empty()));
            assert_eq!(run_count, count);
            outcome |= 2 + 16 * count as u64;
        }
        if Change::is_one(input) {
            let mut reader = Reader::new(input);
            let _ = Change::read(&mut reader);
            assert!(reader.is_done());
            outcome |= 4;
        }
        if parameters::are_pairs(input) {
            let mut reader = Reader::new(input);
            let count = parameters::read(&mut reader).len();
            assert!(reader.is_done());
            outcome |= 8 + 16 * count as u64;
        }
        outcome
    });
}

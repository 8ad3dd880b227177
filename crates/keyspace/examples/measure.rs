//! Measures memory per key and processor time per operation:
//! `cargo run --release -p keyspace --features jemalloc --example measure -- 10000000`.
//!
//! Keys have 16 bytes, values 32. Nothing is replicated, parsed or sent: this is the floor under the server's figures.

use keyspace::{Keyspace, Layout, Moment, Options, Tuning, find};
use resp::{Args, Protocol, Span, Writer};
use stdx::Prng;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const VALUE: [u8; 32] = [b'v'; 32];

fn main() {
    let count: u64 = std::env::args().nth(1).map_or(1_000_000, |word| word.parse().expect("a number of keys"));
    let mut keyspace = new_keyspace();
    let before = resident_bytes();

    let mut runner = Runner { writer: Writer::new(Protocol::Resp2), buffer: Vec::new() };
    let mut order = Prng::new(1);
    time("SET, new keys in order", count, || (0..count).for_each(|key| runner.set(&mut keyspace, key)));
    println!("{:>40}  {:.1} bytes", "resident per key", (resident_bytes() - before) as f64 / count as f64);
    println!("{:>40}  {:.1} bytes", "counted per key", keyspace.memory_bytes() as f64 / count as f64);
    let rounds = 3_000_000;
    time("SET, overwriting at random", rounds, || {
        (0..rounds).for_each(|_| runner.set(&mut keyspace, order.below(count)));
    });
    time("GET, at random", rounds, || (0..rounds).for_each(|_| runner.get(&keyspace, order.below(count))));
    time("GET, at random, absent", rounds, || {
        (0..rounds).for_each(|_| runner.get(&keyspace, count + order.below(count)));
    });
    time("GET, one key", rounds, || (0..rounds).for_each(|_| runner.get(&keyspace, 7)));
    time("SET, one key", rounds, || (0..rounds).for_each(|_| runner.set(&mut keyspace, 7)));
    time("hash slot of a key", rounds, || {
        let key = *b"0123456789abcdef";
        (0..rounds).for_each(|_| _ = std::hint::black_box(stdx::slot::slot_of(std::hint::black_box(&key))));
    });

    let mut records = Vec::new();
    let mut longest = 0.0f64;
    keyspace.begin_checkpoint();
    time("checkpoint, per key", count, || {
        loop {
            let start = std::time::Instant::now();
            let done = keyspace.checkpoint_step(64 << 10, &mut records);
            longest = longest.max(start.elapsed().as_secs_f64());
            if done {
                break;
            }
        }
    });
    println!("{:>40}  {:.3} ms", "longest slice of 64 KiB", longest * 1e3);
    println!("{:>40}  {:.1} bytes", "checkpoint per key", records.len() as f64 / count as f64);
    let mut restored = new_keyspace();
    time("restore, per key", count, || restored.restore(&records).expect("records just written"));
    assert_eq!(restored.key_count(0) as u64, count);
    time("SCAN COUNT 10, a call", 100_000, || {
        let mut cursor = 0;
        for _ in 0..100_000 {
            cursor = keyspace.scan(0, cursor, 10, Moment::default(), |entry| _ = std::hint::black_box(entry.key()));
        }
    });
}

fn new_keyspace() -> Keyspace {
    Keyspace::new(Options { databases: 16, hash_seed: 1, layout: Layout::Slots, tuning: Tuning::default() })
}

struct Runner {
    writer: Writer,
    buffer: Vec<u8>,
}

impl Runner {
    fn set(&mut self, keyspace: &mut Keyspace, key: u64) {
        let set = find(b"SET").expect("SET is listed");
        self.buffer.clear();
        self.buffer.extend_from_slice(b"SETkey:");
        push_digits(&mut self.buffer, key);
        self.buffer.extend_from_slice(&VALUE);
        let spans = [Span { start: 0, end: 3 }, Span { start: 3, end: 19 }, Span { start: 19, end: 51 }];
        self.writer.truncate(0);
        keyspace.mutate(0, set, Args::new(&self.buffer, &spans), Moment::at(1_700_000_000_000, 1), &mut self.writer);
    }

    fn get(&mut self, keyspace: &Keyspace, key: u64) {
        let get = find(b"GET").expect("GET is listed");
        self.buffer.clear();
        self.buffer.extend_from_slice(b"GETkey:");
        push_digits(&mut self.buffer, key);
        let spans = [Span { start: 0, end: 3 }, Span { start: 3, end: 19 }];
        self.writer.truncate(0);
        keyspace.query(0, get, Args::new(&self.buffer, &spans), Moment::at(1_700_000_000_000, 1), &mut self.writer);
    }
}

/// Twelve digits of `number`.
fn push_digits(buffer: &mut Vec<u8>, mut number: u64) {
    let mut digits = [b'0'; 12];
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    buffer.extend_from_slice(&digits);
}

fn time(what: &str, operations: u64, run: impl FnOnce()) {
    let start = processor_nanos();
    run();
    println!("{what:>40}  {:.1} ns", (processor_nanos() - start) / operations as f64);
}

/// Time this process has been running on a processor: also on a busy machine about that of its own work.
fn processor_nanos() -> f64 {
    let status = std::fs::read_to_string("/proc/self/schedstat").expect("Linux accounts for a process's time");
    status.split(' ').next().and_then(|nanos| nanos.parse().ok()).expect("a number of nanoseconds")
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").expect("Linux tells a process its size");
    status.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a number of pages") * 4096
}

//! What is counted and measured, per second and in all.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// Longest latency that is told apart from longer ones, in nanoseconds.
const LATENCY_NS_MAX: u64 = 1000 * 1_000_000_000;

/// Latencies in nanoseconds, to three digits, with an exact sum and maximum.
#[derive(Clone)]
pub struct Latencies {
    histogram: Histogram<u64>,
    sum_ns: u128,
    max_ns: u64,
}

impl Latencies {
    /// None measured yet.
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("the bounds are in order");
        Self { histogram, sum_ns: 0, max_ns: 0 }
    }

    /// Counts one.
    #[inline]
    pub fn record(&mut self, latency_ns: u64) {
        self.histogram.saturating_record(latency_ns);
        self.sum_ns += u128::from(latency_ns);
        self.max_ns = self.max_ns.max(latency_ns);
    }

    /// Counts all of another's.
    pub fn merge(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("the bounds are the same");
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// All of them, for another process to add: the sum and the longest in nanoseconds, and how many there are of each
    /// latency.
    pub fn to_json(&self) -> Value {
        let counts = self.histogram.iter_recorded();
        let counts: Vec<_> = counts.map(|step| [step.value_iterated_to(), step.count_since_last_iteration()]).collect();
        json!({
            "sum_ns": u64::try_from(self.sum_ns).unwrap_or(u64::MAX),
            "max_ns": self.max_ns,
            "counts_by_ns": counts,
        })
    }

    /// What `to_json` wrote; none if it is something else.
    pub fn from_json(value: &Value) -> Option<Self> {
        let mut latencies = Self::new();
        latencies.sum_ns = u128::from(value["sum_ns"].as_u64()?);
        latencies.max_ns = value["max_ns"].as_u64()?;
        for step in value["counts_by_ns"].as_array()? {
            latencies.histogram.saturating_record_n(step[0].as_u64()?, step[1].as_u64()?);
        }
        Some(latencies)
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// All together, in seconds.
    pub fn sum_seconds(&self) -> f64 {
        self.sum_ns as f64 / 1e9
    }

    /// The average, in milliseconds; 0 if there is none.
    pub fn average_ms(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.sum_ns as f64 / self.count() as f64 / 1e6 }
    }

    /// The longest, in milliseconds.
    pub fn max_ms(&self) -> f64 {
        self.max_ns as f64 / 1e6
    }

    /// The latency that `percent` of all stay within, in milliseconds.
    pub fn percentile_ms(&self, percent: f64) -> f64 {
        if self.count() == 0 {
            return 0.0;
        }
        self.histogram.value_at_percentile(percent).min(self.max_ns) as f64 / 1e6
    }
}

/// Things that are only counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Replies received, those within a transaction included.
    pub requests: u64,
    /// Operations completed: a transaction is one, aborted or not.
    pub operations: u64,
    /// EXECs answered with nil because a watched key had changed.
    pub aborts: u64,
    /// GETs that found nothing.
    pub misses: u64,
    /// Error replies.
    pub errors: u64,
    /// Connections lost, each of which was made again.
    pub connections_lost: u64,
    /// Operations that lost their reply with a connection.
    pub unanswered: u64,
}

impl Counts {
    /// Adds another's.
    pub fn merge(&mut self, other: &Self) {
        let Self { requests, operations, aborts, misses, errors, connections_lost, unanswered } = other;
        self.requests += requests;
        self.operations += operations;
        self.aborts += aborts;
        self.misses += misses;
        self.errors += errors;
        self.connections_lost += connections_lost;
        self.unanswered += unanswered;
    }
}

/// What one thread saw in one second.
#[derive(Clone)]
pub struct Interval {
    /// GETs and PINGs.
    pub reads: Latencies,
    /// SETs, INCRs and transactions.
    pub writes: Latencies,
    /// The rest.
    pub counts: Counts,
}

impl Interval {
    /// Nothing seen.
    pub fn new() -> Self {
        Self { reads: Latencies::new(), writes: Latencies::new(), counts: Counts::default() }
    }

    /// Adds another's.
    pub fn merge(&mut self, other: &Self) {
        self.reads.merge(&other.reads);
        self.writes.merge(&other.writes);
        self.counts.merge(&other.counts);
    }

    /// Reads and writes together.
    pub fn all(&self) -> Latencies {
        let mut all = self.reads.clone();
        all.merge(&self.writes);
        all
    }
}

/// One second of a measurement, as it is reported.
#[derive(Clone, Copy, Debug, Default)]
pub struct Second {
    /// Operations per second: the last second may be short.
    pub operations_per_second: f64,
    /// Half of the operations took at most this, in milliseconds.
    pub p50_ms: f64,
    /// 99 %.
    pub p99_ms: f64,
    /// 99.9 %.
    pub p999_ms: f64,
    /// All.
    pub max_ms: f64,
    /// Error replies.
    pub errors: u64,
    /// Aborted transactions.
    pub aborts: u64,
}

impl Second {
    /// The second with this number, from 0, of a measurement of this length.
    pub fn of(interval: &Interval, second: usize, length_seconds: f64) -> Self {
        let all = interval.all();
        let length = (length_seconds - second as f64).clamp(1e-3, 1.0);
        Self {
            operations_per_second: interval.counts.operations as f64 / length,
            p50_ms: all.percentile_ms(50.0),
            p99_ms: all.percentile_ms(99.0),
            p999_ms: all.percentile_ms(99.9),
            max_ms: all.max_ms(),
            errors: interval.counts.errors,
            aborts: interval.counts.aborts,
        }
    }
}

/// A measurement.
pub struct Outcome {
    /// What the servers are and when what they acknowledge is on disk; empty if one does not tell.
    pub servers: Vec<String>,
    /// When the load began, before the warm-up, in milliseconds of Unix time.
    pub begun_at_unix_ms: u64,
    /// From the end of the warm-up to the end.
    pub elapsed_seconds: f64,
    /// All of it.
    pub total: Interval,
    /// Second by second.
    pub seconds: Vec<Second>,
    /// The same with all latencies, if the load is a part of one.
    pub intervals: Vec<Interval>,
    /// At a fixed rate: operations that were due before the end and had not even been sent.
    pub unsent: u64,
    /// The first few different errors.
    pub error_texts: Vec<String>,
    /// CPU that this process used, user and system, in seconds.
    pub client_cpu_seconds: f64,
    /// CPU that the watched process used, user and system, in seconds.
    pub server_cpu_seconds: Option<f64>,
}

impl Outcome {
    /// Operations per second.
    pub fn rate(&self) -> f64 {
        self.total.counts.operations as f64 / self.elapsed_seconds
    }

    /// CPU of the watched process per operation, in microseconds.
    pub fn server_cpu_us_per_operation(&self) -> Option<f64> {
        let operations = self.total.counts.operations.max(1) as f64;
        self.server_cpu_seconds.map(|seconds| seconds * 1e6 / operations)
    }
}

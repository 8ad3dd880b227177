//! A measurement as text, as JSON and as a page.

use std::fmt::Write;

use serde_json::{Value, json};

use super::page::{Chart, Page, Series};
use super::record::{Latencies, Outcome, Second};
use super::{BenchArguments, Workload};

const PERCENTS: [f64; 7] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99];

/// The report that is printed.
pub fn text(arguments: &BenchArguments, outcome: &Outcome) -> String {
    let mut out = String::new();
    let counts = &outcome.total.counts;
    let all = outcome.total.all();
    let transactional = arguments.workload.is_transactional();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<22}{value}");
    };
    line("workload:", description(arguments));
    for server in outcome.servers.iter().filter(|server| !server.is_empty()) {
        line("server:", server.clone());
    }
    if transactional {
        line("total transactions:", grouped(counts.operations as f64, 0));
    }
    line("total requests:", grouped(counts.requests as f64, 0));
    line("total latency:", format!("{} s", grouped(all.sum_seconds(), 3)));
    line("average latency:", milliseconds(all.average_ms()));
    line("maximum latency:", milliseconds(all.max_ms()));
    line("elapsed time:", format!("{:.2} s", outcome.elapsed_seconds));
    if transactional {
        line("transactions/s:", grouped(outcome.rate(), 1));
        line("committed/s:", grouped((counts.operations - counts.aborts) as f64 / outcome.elapsed_seconds, 1));
    }
    line("requests/s:", grouped(counts.requests as f64 / outcome.elapsed_seconds, 1));
    if transactional {
        let percent = counts.aborts as f64 * 100.0 / counts.operations.max(1) as f64;
        line("aborts:", format!("{} ({percent:.2} %)", grouped(counts.aborts as f64, 0)));
    }
    line("errors:", grouped(counts.errors as f64, 0));
    if counts.misses > 0 {
        let name = if arguments.command.is_some() { "answered with nil:" } else { "keys not found:" };
        line(name, grouped(counts.misses as f64, 0));
    }
    if counts.connections_lost > 0 {
        let lost = grouped(counts.connections_lost as f64, 0);
        line("connections lost:", format!("{lost}, with {} unanswered operations", counts.unanswered));
    }
    if let Some(rate) = arguments.rate {
        line("asked for:", format!("{} operations/s", grouped(rate, 1)));
        line("never sent in time:", grouped(outcome.unsent as f64, 0));
    }
    if counts.operations > 0 {
        let cpu = outcome.client_cpu_seconds * 1e6 / counts.operations as f64;
        line("client CPU:", format!("{cpu:.2} µs per operation"));
        if let Some(cpu) = outcome.server_cpu_us_per_operation() {
            line("server CPU:", format!("{cpu:.2} µs per operation"));
        }
    }
    let _ = writeln!(
        out,
        "\nlatency (ms){:>10}{}{:>10}",
        "average",
        PERCENTS.map(|p| format!("{:>10}", format!("p{p}"))).concat(),
        "max"
    );
    let (reads, writes) = (&outcome.total.reads, &outcome.total.writes);
    let mut row = |name: &str, latencies: &Latencies| {
        let values = PERCENTS.map(|percent| format!("{:>10.3}", latencies.percentile_ms(percent))).concat();
        let _ = writeln!(out, "{name:<12}{:>10.3}{values}{:>10.3}", latencies.average_ms(), latencies.max_ms());
    };
    if reads.count() > 0 && writes.count() > 0 {
        row("reads", reads);
        row("writes", writes);
    }
    row("all", &all);
    if !outcome.error_texts.is_empty() {
        out.push_str("\nfirst errors:\n");
        for text in &outcome.error_texts {
            let _ = writeln!(out, "  {text}");
        }
    }
    out
}

/// The report to be processed: everything that was asked for and measured.
pub fn json(arguments: &BenchArguments, outcome: &Outcome) -> Value {
    let counts = &outcome.total.counts;
    let latencies = |latencies: &Latencies| {
        let mut value = json!({
            "count": latencies.count(),
            "total_s": latencies.sum_seconds(),
            "average": latencies.average_ms(),
            "max": latencies.max_ms(),
        });
        for percent in PERCENTS {
            value[format!("p{percent}")] = json!(latencies.percentile_ms(percent));
        }
        value
    };
    json!({
        "hosts": arguments.hosts,
        "servers": outcome.servers,
        "workload": arguments.workload.name(),
        "command": arguments.command,
        "clients_per_host": arguments.clients,
        "pipeline": arguments.pipeline,
        "value_bytes": arguments.value_bytes,
        "keys": arguments.keys,
        "distribution": format!("{:?}", arguments.distribution).to_lowercase(),
        "read_ratio": arguments.read_ratio,
        "rate": arguments.rate,
        "elapsed_s": outcome.elapsed_seconds,
        "operations": counts.operations,
        "operations_per_s": outcome.rate(),
        "requests": counts.requests,
        "requests_per_s": counts.requests as f64 / outcome.elapsed_seconds,
        "aborts": counts.aborts,
        "misses": counts.misses,
        "errors": counts.errors,
        "error_texts": outcome.error_texts,
        "connections_lost": counts.connections_lost,
        "unanswered": counts.unanswered,
        "unsent": outcome.unsent,
        "client_cpu_s": outcome.client_cpu_seconds,
        "server_cpu_s": outcome.server_cpu_seconds,
        "server_cpu_us_per_operation": outcome.server_cpu_us_per_operation(),
        "latency_ms": {
            "all": latencies(&outcome.total.all()),
            "reads": latencies(&outcome.total.reads),
            "writes": latencies(&outcome.total.writes),
        },
        "seconds": outcome.seconds.iter().map(|second| json!({
            "operations_per_s": second.operations_per_second,
            "p50_ms": second.p50_ms,
            "p99_ms": second.p99_ms,
            "p999_ms": second.p999_ms,
            "max_ms": second.max_ms,
            "errors": second.errors,
            "aborts": second.aborts,
        })).collect::<Vec<_>>(),
    })
}

/// The report to be looked at.
pub fn html(arguments: &BenchArguments, outcome: &Outcome) -> String {
    let over = |value: fn(&Second) -> f64| -> Vec<f64> { outcome.seconds.iter().map(value).collect() };
    let unit = if arguments.workload.is_transactional() { "transactions/s" } else { "requests/s" };
    let hosts = arguments.hosts.join(", ");
    let mut page = Page::new("Holdfast bench", &format!("{hosts} · {}", description(arguments)));
    let all = outcome.total.all();
    page.figures(&[
        (unit, grouped(outcome.rate(), 0)),
        ("average", milliseconds(all.average_ms())),
        ("p50", milliseconds(all.percentile_ms(50.0))),
        ("p99", milliseconds(all.percentile_ms(99.0))),
        ("p99.9", milliseconds(all.percentile_ms(99.9))),
        ("maximum", milliseconds(all.max_ms())),
        ("errors", grouped(outcome.total.counts.errors as f64, 0)),
        ("aborts", grouped(outcome.total.counts.aborts as f64, 0)),
    ]);
    page.chart(&Chart {
        title: "Throughput",
        unit,
        logarithmic: false,
        step_seconds: 1.0,
        marks: Vec::new(),
        series: vec![Series { name: unit, values: over(|second| second.operations_per_second) }],
    });
    page.chart(&Chart {
        title: "Latency",
        unit: "ms",
        logarithmic: true,
        step_seconds: 1.0,
        marks: Vec::new(),
        series: vec![
            Series { name: "p50", values: over(|second| second.p50_ms) },
            Series { name: "p99", values: over(|second| second.p99_ms) },
            Series { name: "p99.9", values: over(|second| second.p999_ms) },
            Series { name: "max", values: over(|second| second.max_ms) },
        ],
    });
    page.preformatted("Report", &text(arguments, outcome));
    page.finish()
}

/// One line while it runs.
pub fn progress_line(second: usize, arguments: &BenchArguments, row: &Second) -> String {
    let mut line = format!(
        "{second:>4}/{:.0} s {:>12}/s   p50 {:.3} ms   p99 {:.3} ms   p99.9 {:.3} ms   max {:.3} ms",
        arguments.seconds,
        grouped(row.operations_per_second, 0),
        row.p50_ms,
        row.p99_ms,
        row.p999_ms,
        row.max_ms
    );
    if row.aborts > 0 {
        let _ = write!(line, "   aborts {}", row.aborts);
    }
    if row.errors > 0 {
        let _ = write!(line, "   errors {}", row.errors);
    }
    line
}

fn description(arguments: &BenchArguments) -> String {
    let BenchArguments { workload, command, clients, pipeline, value_bytes, keys, distribution, .. } = arguments;
    let each = if arguments.hosts.len() > 1 { " to each server" } else { "" };
    let distribution = format!("{distribution:?}").to_lowercase();
    let mut text = format!(
        "{}, {clients} clients{each}, pipeline {pipeline}, {value_bytes}-byte values, {} keys ({distribution})",
        command.as_deref().unwrap_or(workload.name()),
        grouped(*keys as f64, 0)
    );
    if *workload == Workload::Mixed {
        let _ = write!(text, ", {:.0} % reads", arguments.read_ratio * 100.0);
    }
    if let Some(rate) = arguments.rate {
        let _ = write!(text, ", {} operations/s", grouped(rate, 0));
    }
    text
}

fn milliseconds(value: f64) -> String {
    format!("{} ms", grouped(value, 3))
}

/// A number with commas between its thousands.
pub fn grouped(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let (whole, fraction) = text.split_once('.').map_or((text.as_str(), None), |(whole, rest)| (whole, Some(rest)));
    let mut out = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) && !out.ends_with('-') {
            out.push(',');
        }
        out.push(digit);
    }
    if let Some(fraction) = fraction {
        out.push('.');
        out.push_str(fraction);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_grouped() {
        for (value, decimals, text) in [
            (0.0, 0, "0"),
            (999.0, 0, "999"),
            (1000.0, 0, "1,000"),
            (1_234_567.891, 2, "1,234,567.89"),
            (-123.0, 0, "-123"),
        ] {
            assert_eq!(grouped(value, decimals), text);
        }
    }
}

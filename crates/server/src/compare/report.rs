//! A comparison as text, as JSON and as a page.

use std::fmt::Write;

use serde_json::{Value, json};

use super::contender::{Contender, Durability};
use super::{Figures, Runs, VALUE_BYTES};
use crate::bench::page::{Bars, Page};

/// All that was measured.
pub struct Comparison<'a> {
    /// Holdfast first; if it has several cores, Holdfast with one core last.
    pub contenders: &'a [Contender],
    pub results: &'a [Runs],
    pub rounds: usize,
    pub seconds: f64,
    /// There was but one processor: the load took the server's time.
    pub shared_processor: bool,
    /// The data were on no disk.
    pub on_memory_disk: bool,
}

/// Ratios of Holdfast's figures to a peer's.
struct Ratios {
    throughput: f64,
    p50: f64,
    p99: f64,
    p999: f64,
    cpu: f64,
}

impl Ratios {
    fn new(ours: &Figures, theirs: &Figures) -> Self {
        let ratio = |ours: f64, theirs: f64| if theirs > 0.0 { ours / theirs } else { f64::NAN };
        Self {
            throughput: ratio(ours.operations_per_second, theirs.operations_per_second),
            p50: ratio(ours.p50_ms, theirs.p50_ms),
            p99: ratio(ours.p99_ms, theirs.p99_ms),
            p999: ratio(ours.p999_ms, theirs.p999_ms),
            cpu: ratio(ours.server_cpu_us, theirs.server_cpu_us),
        }
    }
}

/// How often it was measured, and what that is worth.
pub fn rounds_of(rounds: usize, seconds: f64) -> String {
    match rounds {
        1 => format!("ONE ROUND of {seconds} s, in which noise looks like a difference: use --rounds"),
        _ => format!("medians of {rounds} rounds of {seconds} s, in turns"),
    }
}

/// Where server and load ran.
pub fn processors(is_shared: bool) -> &'static str {
    if is_shared {
        "ONE processor for server and load: figures say little"
    } else {
        "Holdfast as serve starts it on all processors, servers of one core on one, load on another"
    }
}

impl Comparison<'_> {
    /// The report that is printed.
    pub fn text(&self) -> String {
        let mut out = format!("{}\n", self.conditions());
        for result in self.results {
            let medians = self.medians(result);
            let _ = writeln!(out, "\n{}", result.scenario.name());
            let _ = writeln!(
                out,
                "  {:<22}{:>12}{:>10}{:>10}{:>10}{:>12}",
                "", "ops/s", "p50 ms", "p99 ms", "p99.9 ms", "CPU µs/op"
            );
            for (contender, figures) in self.contenders.iter().zip(&medians) {
                let _ = write!(
                    out,
                    "  {:<22}{:>12.0}{:>10.3}{:>10.3}{:>10.3}{:>12.2}",
                    contender.name,
                    figures.operations_per_second,
                    figures.p50_ms,
                    figures.p99_ms,
                    figures.p999_ms,
                    figures.server_cpu_us
                );
                let _ = if figures.errors > 0 { writeln!(out, "   {} errors", figures.errors) } else { writeln!(out) };
            }
            for (peer, figures) in self.contenders.iter().zip(&medians).skip(1) {
                let Ratios { throughput, p50, p99, p999, cpu } = Ratios::new(&medians[0], figures);
                let _ = writeln!(
                    out,
                    "  {:<22}{throughput:>11.2}x{p50:>9.2}x{p99:>9.2}x{p999:>9.2}x{cpu:>11.2}x",
                    format!("to {}", peer.name)
                );
            }
        }
        out
    }

    /// The report to be processed, with every run.
    pub fn json(&self) -> Value {
        let scenario = |result: &Runs| {
            let medians = self.medians(result);
            let contenders = self.contenders.iter().zip(&medians).zip(&result.runs).map(|((contender, median), runs)| {
                let mut value = json!({
                    "name": contender.name,
                    "median": median.json(),
                    "runs": runs.iter().map(Figures::json).collect::<Vec<_>>(),
                });
                if contender.name != self.contenders[0].name {
                    let Ratios { throughput, p50, p99, p999, cpu } = Ratios::new(&medians[0], median);
                    value["holdfast_to_this"] =
                        json!({ "throughput": throughput, "p50": p50, "p99": p99, "p999": p999, "server_cpu": cpu });
                }
                value
            });
            json!({
                "name": result.scenario.name(),
                "workload": result.scenario.workload.name(),
                "clients": result.scenario.clients,
                "pipeline": result.scenario.pipeline,
                "fsync_always": result.scenario.durability == Durability::Always,
                "contenders": contenders.collect::<Vec<_>>(),
            })
        };
        json!({
            "rounds": self.rounds,
            "seconds": self.seconds,
            "value_bytes": VALUE_BYTES,
            "shared_processor": self.shared_processor,
            "on_memory_disk": self.on_memory_disk,
            "scenarios": self.results.iter().map(scenario).collect::<Vec<_>>(),
        })
    }

    /// The report to be looked at.
    pub fn html(&self) -> String {
        let mut page = Page::new("Holdfast compare", &self.conditions());
        let names: Vec<String> = self.results.iter().map(|result| result.scenario.name()).collect();
        let medians: Vec<Vec<Figures>> = self.results.iter().map(|result| self.medians(result)).collect();
        let bars = |figure: fn(&Figures) -> f64| -> Vec<Bars<'_>> {
            let mut groups = Vec::new();
            for (name, medians) in names.iter().zip(&medians) {
                // Scenarios differ by orders of magnitude: each is drawn against its first peer.
                let peer = figure(&medians[1]);
                let share = |figures| if peer > 0.0 { figure(figures) / peer } else { 0.0 };
                let contenders = self.contenders.iter().map(|contender| contender.name.as_str());
                groups.push(Bars { name, values: contenders.zip(medians.iter().map(share)).collect() });
            }
            groups
        };
        let peer = &self.contenders[1].name;
        page.bars(&format!("Throughput, {peer} = 1 (more is better)"), &bars(|figures| figures.operations_per_second));
        page.bars(
            &format!("Server CPU per operation, {peer} = 1 (less is better)"),
            &bars(|figures| figures.server_cpu_us),
        );
        page.bars(&format!("p99 latency, {peer} = 1 (less is better)"), &bars(|figures| figures.p99_ms));
        for (name, medians) in names.iter().zip(&medians) {
            page.heading(name);
            let mut rows = Vec::new();
            for (contender, figures) in self.contenders.iter().zip(medians) {
                rows.push((
                    contender.is_holdfast,
                    vec![
                        contender.name.clone(),
                        format!("{:.0}", figures.operations_per_second),
                        format!("{:.3}", figures.p50_ms),
                        format!("{:.3}", figures.p99_ms),
                        format!("{:.3}", figures.p999_ms),
                        format!("{:.2}", figures.server_cpu_us),
                        figures.errors.to_string(),
                    ],
                ));
            }
            for (contender, figures) in self.contenders.iter().zip(medians).skip(1) {
                let Ratios { throughput, p50, p99, p999, cpu } = Ratios::new(&medians[0], figures);
                let mut cells = vec![format!("to {}", contender.name)];
                cells.extend([throughput, p50, p99, p999, cpu].map(|ratio| format!("{ratio:.2}×")));
                cells.push(String::new());
                rows.push((false, cells));
            }
            page.table(&["", "ops/s", "p50 ms", "p99 ms", "p99.9 ms", "server CPU µs/op", "errors"], &rows);
        }
        page.finish()
    }

    fn medians(&self, result: &Runs) -> Vec<Figures> {
        result.runs.iter().map(|runs| Figures::median(runs)).collect()
    }

    fn conditions(&self) -> String {
        let mut text = format!("{VALUE_BYTES}-byte values; {}; ", rounds_of(self.rounds, self.seconds));
        text.push_str(processors(self.shared_processor));
        text.push_str("; without fsync the peers keep no log at all, Holdfast writes its own");
        if self.on_memory_disk {
            text.push_str("; data on a MEMORY DISK, where fsync is no work: use --directory");
        }
        text
    }
}

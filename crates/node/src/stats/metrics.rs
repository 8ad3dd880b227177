//! Figures in the text form that Prometheus collects: under the names of redis_exporter, so that dashboards and alerts
//! made for it read them, and beside them what is Holdfast's own.
//!
//! [`METRICS`] is the one list of what is told. The page, the manual, the dashboard and the alert rules that we
//! ship come from it or are compared with it. What INFO knows comes from INFO's own text, as with redis_exporter.

mod series;
mod table;

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::sync::Arc;

use group::ids::{NodeId, Room};
use stdx::{Duration, Instant};

use crate::commands::question::Figures;
use crate::commands::{cluster_info_text, info_fields};
use crate::core::Core;
use crate::reports::HostReport;
use crate::roster::Roster;
use crate::stalls::Stalls;

pub use series::{SERIES, Series, Totals, Unit};
pub use table::METRICS;

/// What a metric counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It rises and falls.
    Gauge,
    /// It only rises, until the process ends or CONFIG RESETSTAT.
    Counter,
    /// Counts of what is at most so long, as `NAME_bucket`, with `NAME_sum` and `NAME_count`.
    Histogram,
    /// Percentiles, by a label `quantile`, with `NAME_sum` and `NAME_count`.
    Summary,
}

impl Kind {
    /// As Prometheus writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Histogram => "histogram",
            Self::Summary => "summary",
        }
    }
}

/// Something that is told.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its full name.
    pub name: &'static str,
    /// What it counts.
    pub kind: Kind,
    /// One sentence.
    pub help: &'static str,
    /// Names of its labels. Buckets have `le` besides, percentiles `quantile`.
    pub labels: &'static [&'static str],
    source: Source,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// A field of INFO, or of CLUSTER INFO.
    Field(&'static str),
    /// A function that writes the samples.
    Own(fn(&View<'_>, &mut Samples<'_>)),
}

/// What one core has to say.
#[derive(Clone, Debug)]
pub struct Measured {
    figures: Figures,
    slow: Slow,
    is_loaded: bool,
    is_served: bool,
    can_hand_over: bool,
}

impl Measured {
    /// True if the core leads a group that another node could lead.
    pub fn can_hand_over(&self) -> bool {
        self.can_hand_over
    }

    /// True once the core knows who leads each group, so that its clients wait for nobody to be found.
    pub fn is_served(&self) -> bool {
        self.is_served
    }

    /// True once all groups of the node are loaded: until then its clients are answered LOADING.
    pub fn is_loaded(&self) -> bool {
        self.is_loaded
    }
}

/// The slow log of a core.
#[derive(Clone, Copy, Debug, Default)]
struct Slow {
    count: usize,
    /// When the latest slow command ended, and how many microseconds it took.
    latest: Option<(Instant, u64)>,
}

/// What all cores have said.
#[derive(Clone, Debug)]
pub struct Gathered {
    figures: Vec<Figures>,
    slow: Vec<Slow>,
}

impl Gathered {
    /// Of what each core has said.
    pub fn new(measured: Vec<Measured>) -> Self {
        let (figures, slow) = measured.into_iter().map(|measured| (measured.figures, measured.slow)).unzip();
        Self { figures, slow }
    }
}

/// What concerns the node, as its first core knows it.
#[derive(Clone, Debug)]
pub struct Facts {
    node: NodeId,
    cluster: u128,
    core_count: u16,
    started_unix_ms: i64,
    uptime: Duration,
    report: HostReport,
    roster: Arc<Roster>,
    has_room: bool,
    memory_bytes_max: u64,
    happenings: BTreeMap<&'static str, u64>,
    percentiles: Vec<f64>,
    /// Fields of INFO and of CLUSTER INFO.
    fields: BTreeMap<String, String>,
}

impl Facts {
    /// The stalls that the host has told of.
    pub fn stalls(&self) -> &Stalls {
        &self.report.stalls
    }
}

/// Sections of INFO with fields that are metrics.
const SECTIONS: &[&str] = &["server", "clients", "memory", "persistence", "stats", "replication", "cpu", "cluster"];

impl Core {
    /// This core's figures, for [`page`].
    pub fn measure(&self) -> Measured {
        let slowlog = &self.context.slowlog;
        let latest = slowlog.latest().map(|entry| (entry.ended, entry.took_us));
        let slow = Slow { count: slowlog.len(), latest };
        Measured {
            figures: self.figures(true),
            slow,
            is_loaded: self.is_loaded(),
            is_served: self.is_served(),
            can_hand_over: self.can_hand_over(),
        }
    }

    /// What concerns the node, beside figures of all cores; asked of the first core.
    pub fn describe(&self, gathered: &Gathered) -> Facts {
        let context = &self.context;
        let mut fields = info_fields(context, self.now, &gathered.figures, SECTIONS);
        let cluster = cluster_info_text(context);
        fields
            .extend(cluster.lines().filter_map(|line| line.split_once(':')).map(|(a, b)| (a.to_owned(), b.to_owned())));
        let percentiles = context.settings.get("latency-tracking-info-percentiles");
        Facts {
            node: context.node,
            cluster: context.process.cluster,
            core_count: context.core_count,
            started_unix_ms: context.process.started.0,
            uptime: self.now.instant.since(context.process.started_instant),
            report: context.host.report.clone(),
            roster: Arc::clone(&context.roster),
            has_room: context.host.room == Room::Enough,
            memory_bytes_max: context.settings.maxmemory_bytes,
            happenings: context.history.counts.clone(),
            percentiles: percentiles.split_whitespace().filter_map(|percent| percent.parse().ok()).collect(),
            fields,
        }
    }
}

/// The page, from what all cores have said.
pub fn page(gathered: &Gathered, facts: &Facts) -> String {
    let view = View { figures: &gathered.figures, slow: &gathered.slow, facts };
    let mut text = String::new();
    for metric in METRICS {
        let (name, help, kind) = (metric.name, metric.help, metric.kind.name());
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        let mut samples = Samples { text: &mut text, metric };
        match metric.source {
            Source::Own(write) => write(&view, &mut samples),
            Source::Field(field) => {
                if let Some(value) = view.field(field).and_then(number) {
                    samples.is(value);
                }
            }
        }
    }
    text
}

/// A field of INFO as a number: words that say how something went are 1 if it went well.
fn number(text: &str) -> Option<f64> {
    match text {
        "ok" | "up" | "yes" => Some(1.0),
        "err" | "fail" | "down" | "no" => Some(0.0),
        _ => text.parse().ok(),
    }
}

/// What the values are taken from.
struct View<'a> {
    figures: &'a [Figures],
    slow: &'a [Slow],
    facts: &'a Facts,
}

impl View<'_> {
    fn field(&self, name: &str) -> Option<&str> {
        self.facts.fields.get(name).map(String::as_str)
    }

    /// The same for a label, which may be empty.
    fn text(&self, name: &str) -> &str {
        self.field(name).unwrap_or_default()
    }

    fn sum(&self, figure: impl Fn(&Figures) -> u64) -> u64 {
        self.figures.iter().map(figure).sum()
    }
}

/// Microseconds, shown as seconds.
struct Seconds(u64);

impl Display for Seconds {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// The samples of one metric, being written.
struct Samples<'p> {
    text: &'p mut String,
    metric: &'static Metric,
}

impl Samples<'_> {
    /// The only sample.
    fn is(&mut self, value: impl Display) {
        self.of(&[], value);
    }

    /// A sample with values for the metric's labels, in their order.
    fn of(&mut self, labels: &[&dyn Display], value: impl Display) {
        self.line("", labels, None, &value);
    }

    /// A histogram: how many times are below each bound in nanoseconds, how many there are, and their sum.
    fn histogram(&mut self, labels: &[&dyn Display], below: &[(u64, u64)], count: u64, sum_nanos: u64) {
        for (bound, count) in below {
            self.line("_bucket", labels, Some(("le", &(*bound as f64 / 1e9))), count);
        }
        self.line("_bucket", labels, Some(("le", &"+Inf")), &count);
        self.line("_sum", labels, None, &(sum_nanos as f64 / 1e9));
        self.line("_count", labels, None, &count);
    }

    /// A summary: percentiles with their values, how many there are, and their sum.
    fn summary(&mut self, labels: &[&dyn Display], quantiles: &[(f64, f64)], count: u64, sum: f64) {
        for (percent, value) in quantiles {
            self.line("", labels, Some(("quantile", &(percent / 100.0))), value);
        }
        self.line("_sum", labels, None, &sum);
        self.line("_count", labels, None, &count);
    }

    fn line(
        &mut self,
        suffix: &str,
        labels: &[&dyn Display],
        more: Option<(&'static str, &dyn Display)>,
        value: &dyn Display,
    ) {
        let name = self.metric.name;
        assert_eq!(labels.len(), self.metric.labels.len(), "{name}: a value for each label");
        let all = self.metric.labels.iter().copied().zip(labels.iter().copied()).chain(more);
        let all: Vec<String> = all
            .map(|(name, value)| {
                let value = value.to_string().replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                format!("{name}=\"{value}\"")
            })
            .collect();
        let labels = if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) };
        let _ = writeln!(self.text, "{name}{suffix}{labels} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metric(kind: Kind, labels: &'static [&'static str]) -> &'static Metric {
        Box::leak(Box::new(Metric { name: "holdfast_x", kind, help: "X.", labels, source: Source::Field("x") }))
    }

    #[test]
    fn labels_are_escaped_and_histograms_have_their_parts() {
        let mut text = String::new();
        Samples { text: &mut text, metric: metric(Kind::Counter, &["code", "node"]) }.of(&[&"A\"B\\\n", &7], 3);
        Samples { text: &mut text, metric: metric(Kind::Gauge, &[]) }.is(Seconds(1_500_000));
        Samples { text: &mut text, metric: metric(Kind::Histogram, &["cmd"]) }.histogram(
            &[&"get"],
            &[(1_024, 2)],
            3,
            5_000_000_000,
        );
        Samples { text: &mut text, metric: metric(Kind::Summary, &[]) }.summary(&[], &[(99.9, 7.5)], 3, 9.0);
        let expected = "\
holdfast_x{code=\"A\\\"B\\\\\\n\",node=\"7\"} 3
holdfast_x 1.500000
holdfast_x_bucket{cmd=\"get\",le=\"0.000001024\"} 2
holdfast_x_bucket{cmd=\"get\",le=\"+Inf\"} 3
holdfast_x_sum{cmd=\"get\"} 5
holdfast_x_count{cmd=\"get\"} 3
holdfast_x{quantile=\"0.9990000000000001\"} 7.5
holdfast_x_sum 9
holdfast_x_count 3
";
        assert_eq!(text, expected.replace("0.9990000000000001", &(99.9 / 100.0).to_string()));
    }

    #[test]
    fn every_metric_is_named_as_prometheus_wants_it() {
        let mut names = std::collections::BTreeSet::new();
        for metric in METRICS {
            let Metric { name, kind, help, .. } = metric;
            let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
            assert!(is_name && (name.starts_with("redis_") || name.starts_with("holdfast_")), "{name}");
            assert!(names.insert(name), "{name} comes twice");
            assert!(help.ends_with('.') && !help.contains('\n') && !help.contains('|'), "{name}: {help}");
            // Names of redis_exporter are as they are.
            if name.starts_with("holdfast_") {
                assert_eq!(*kind == Kind::Counter, name.ends_with("_total"), "{name}");
            }
        }
    }
}

//! `holdfast metrics`: what `/metrics` tells, and a dashboard and alert rules made for it.
//!
//! All of it comes from [`node::metrics::METRICS`] and from the panels and rules below. The files in
//! `packaging/grafana` and the table in the manual are what these verbs print; tests compare them.

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use node::metrics::{METRICS, Metric};
use serde_json::{Value, json};

/// Print the list of metrics, a dashboard for Grafana, or alert rules for Prometheus.
#[derive(Debug, Args)]
pub struct MetricsArguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum Verb {
    /// The metrics with their types, labels and meanings, as a table in Markdown.
    List,
    /// A dashboard for Grafana 9 and later, to be imported as JSON.
    Dashboard,
    /// Alert rules for Prometheus, as a file of rules in YAML.
    Alerts,
}

/// Runs `holdfast metrics`.
pub fn run(arguments: &MetricsArguments) {
    match arguments.verb {
        Verb::List => say!("{}", list()),
        Verb::Dashboard => say!("{}\n", serde_json::to_string_pretty(&dashboard()).expect("plain JSON")),
        Verb::Alerts => say!("{}", alerts()),
    }
}

fn list() -> String {
    let mut text = "| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n".to_owned();
    for Metric { name, kind, help, labels, .. } in METRICS {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let _ = writeln!(text, "| `{name}` | {} | {} | {help} |", kind.name(), labels.join(", "));
    }
    text
}

/// A chart.
struct Panel {
    title: &'static str,
    /// Grafana's name of the unit.
    unit: &'static str,
    /// Expressions with what their lines are called. `$where` becomes the selection of instances.
    queries: &'static [(&'static str, &'static str)],
}

const PANELS: &[(&str, &[Panel])] = &[
    (
        "Service",
        &[
            Panel {
                title: "Commands a second",
                unit: "ops",
                queries: &[(
                    "sum by (instance) (rate(holdfast_commands_total{$where}[$__rate_interval]))",
                    "{{instance}}",
                )],
            },
            Panel {
                title: "Commands a second, by command",
                unit: "ops",
                queries: &[(
                    "topk(10, sum by (cmd) (rate(redis_commands_total{$where}[$__rate_interval])))",
                    "{{cmd}}",
                )],
            },
            Panel {
                title: "99th percentile of the time to carry a command out",
                unit: "s",
                queries: &[(
                    "topk(10, histogram_quantile(0.99, sum by (cmd, le) \
                     (rate(holdfast_command_duration_seconds_bucket{$where}[$__rate_interval]))))",
                    "{{cmd}}",
                )],
            },
            Panel {
                title: "Error replies a second",
                unit: "ops",
                queries: &[(
                    "sum by (code) (rate(holdfast_error_replies_total{$where}[$__rate_interval]))",
                    "{{code}}",
                )],
            },
            Panel {
                title: "Clients",
                unit: "short",
                queries: &[
                    ("sum by (instance) (holdfast_connected_clients{$where})", "connected, {{instance}}"),
                    ("sum by (instance) (holdfast_blocked_clients{$where})", "waiting for data, {{instance}}"),
                ],
            },
            Panel {
                title: "Connections opened and refused a second",
                unit: "ops",
                queries: &[
                    (
                        "sum by (instance) (rate(holdfast_connections_total{$where}[$__rate_interval]))",
                        "opened, {{instance}}",
                    ),
                    (
                        "sum by (instance) (rate(holdfast_rejected_connections_total{$where}[$__rate_interval]))",
                        "refused, {{instance}}",
                    ),
                ],
            },
        ],
    ),
    (
        "Memory and processors",
        &[
            Panel {
                title: "Memory",
                unit: "bytes",
                queries: &[
                    ("holdfast_memory_used_bytes{$where}", "given out, {{instance}}"),
                    ("holdfast_memory_resident_bytes{$where}", "resident, {{instance}}"),
                    ("holdfast_memory_max_bytes{$where} > 0", "maxmemory, {{instance}}"),
                ],
            },
            Panel {
                title: "Keys",
                unit: "short",
                queries: &[("sum by (instance) (holdfast_keys{$where})", "{{instance}}")],
            },
            Panel {
                title: "Processors in use",
                unit: "short",
                queries: &[(
                    "sum by (instance) (rate(holdfast_cpu_seconds_total{$where}[$__rate_interval]))",
                    "{{instance}}",
                )],
            },
            Panel {
                title: "Keys found, of those looked up",
                unit: "percentunit",
                queries: &[(
                    "sum by (instance) (rate(holdfast_keyspace_hits_total{$where}[$__rate_interval])) / \
                     (sum by (instance) (rate(holdfast_keyspace_hits_total{$where}[$__rate_interval])) + \
                     sum by (instance) (rate(holdfast_keyspace_misses_total{$where}[$__rate_interval])))",
                    "{{instance}}",
                )],
            },
        ],
    ),
    (
        "Log and checkpoints",
        &[
            Panel {
                title: "Bytes written a second",
                unit: "Bps",
                queries: &[
                    ("rate(holdfast_log_written_bytes_total{$where}[$__rate_interval])", "log, {{instance}}"),
                    (
                        "rate(holdfast_checkpoint_written_bytes_total{$where}[$__rate_interval])",
                        "checkpoints, {{instance}}",
                    ),
                ],
            },
            Panel {
                title: "Sync of the log",
                unit: "s",
                queries: &[
                    ("holdfast_log_sync_mean_seconds{$where}", "mean, {{instance}}"),
                    ("holdfast_log_sync_last_seconds{$where}", "last, {{instance}}"),
                ],
            },
            Panel {
                title: "Waiting for the disk",
                unit: "bytes",
                queries: &[("holdfast_log_queue_bytes{$where}", "{{instance}}")],
            },
            Panel {
                title: "Log kept",
                unit: "bytes",
                queries: &[
                    ("holdfast_log_kept_bytes{$where}", "for a restart, {{instance}}"),
                    ("holdfast_log_held_bytes{$where}", "for other nodes, {{instance}}"),
                ],
            },
            Panel {
                title: "Groups that write a checkpoint",
                unit: "short",
                queries: &[("sum by (instance) (holdfast_group_checkpoint_running{$where})", "{{instance}}")],
            },
        ],
    ),
    (
        "Cluster",
        &[
            Panel {
                title: "Groups led",
                unit: "short",
                queries: &[("sum by (instance) (holdfast_group_leads{$where})", "{{instance}}")],
            },
            Panel {
                title: "How far followers are behind",
                unit: "s",
                queries: &[(
                    "max by (instance, node) (holdfast_follower_lag_seconds{$where})",
                    "{{node}}, of {{instance}}",
                )],
            },
            Panel {
                title: "Links that are down",
                unit: "short",
                queries: &[("sum by (instance) (1 - holdfast_link_up{$where})", "{{instance}}")],
            },
            Panel {
                title: "Bytes sent to other nodes a second",
                unit: "Bps",
                queries: &[(
                    "sum by (instance) (rate(holdfast_link_sent_bytes_total{$where}[$__rate_interval]))",
                    "{{instance}}",
                )],
            },
            Panel {
                title: "Events on the timeline, by kind",
                unit: "short",
                queries: &[("sum by (kind) (increase(holdfast_events_total{$where}[$__rate_interval]))", "{{kind}}")],
            },
        ],
    ),
];

/// The metrics of an expression, without the endings of parts of histograms.
fn metrics_of(expression: &str) -> Vec<&str> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = expression.split(|letter: char| !is_part(letter));
    let names = words.filter(|word| word.starts_with("holdfast_") || word.starts_with("redis_"));
    names
        .map(|name| {
            let known = |name: &str| METRICS.iter().any(|metric| metric.name == name);
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            base.filter(|base| known(base)).unwrap_or(name)
        })
        .collect()
}

fn help_of(name: &str) -> Option<&'static str> {
    METRICS.iter().find(|metric| metric.name == name).map(|metric| metric.help)
}

const WHERE: &str = "job=~\"$job\", instance=~\"$instance\"";

fn dashboard() -> Value {
    let source = json!({ "type": "prometheus", "uid": "${source}" });
    let mut panels = Vec::new();
    let mut number = 0;
    let mut next = || {
        number += 1;
        number
    };
    let mut top = 0;
    for (title, charts) in PANELS {
        panels.push(json!({
            "id": next(), "type": "row", "title": title, "collapsed": false, "panels": [],
            "gridPos": { "h": 1, "w": 24, "x": 0, "y": top },
        }));
        top += 1;
        for (place, chart) in charts.iter().enumerate() {
            let names = chart.queries.iter().flat_map(|(expression, _)| metrics_of(expression));
            let mut help: Vec<String> =
                names.filter_map(|name| help_of(name).map(|help| format!("`{name}`: {help}"))).collect();
            help.dedup();
            let targets: Vec<Value> = (b'A'..)
                .zip(chart.queries)
                .map(|(letter, (expression, legend))| {
                    json!({
                        "refId": char::from(letter).to_string(), "datasource": source, "legendFormat": legend,
                        "expr": expression.replace("$where", WHERE),
                    })
                })
                .collect();
            panels.push(json!({
                "id": next(), "type": "timeseries", "title": chart.title, "description": help.join("\n\n"),
                "datasource": source, "targets": targets,
                "gridPos": { "h": 8, "w": 8, "x": place % 3 * 8, "y": top + place / 3 * 8 },
                "fieldConfig": { "defaults": { "unit": chart.unit, "min": 0 }, "overrides": [] },
                "options": { "tooltip": { "mode": "multi", "sort": "desc" } },
            }));
        }
        top += charts.len().div_ceil(3) * 8;
    }
    let choice = |name: &str, query: &str| {
        json!({
            "name": name, "type": "query", "datasource": source, "query": query, "refresh": 2, "sort": 1,
            "multi": true, "includeAll": true, "current": { "text": "All", "value": "$__all" },
        })
    };
    json!({
        "title": "Holdfast", "uid": "holdfast", "tags": ["holdfast"], "schemaVersion": 39, "version": 1,
        "editable": true, "graphTooltip": 1, "refresh": "10s",
        "time": { "from": "now-1h", "to": "now" },
        "templating": { "list": [
            { "name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus" },
            choice("job", "label_values(holdfast_info, job)"),
            choice("instance", "label_values(holdfast_info{job=~\"$job\"}, instance)"),
        ] },
        "panels": panels,
    })
}

/// Something to be told of.
struct Alert {
    name: &'static str,
    expression: &'static str,
    /// How long it has to last.
    lasts: &'static str,
    severity: &'static str,
    summary: &'static str,
    /// What to look at.
    description: &'static str,
}

const ALERTS: &[Alert] = &[
    Alert {
        name: "HoldfastNodeAbsent",
        expression: "last_over_time(holdfast_info[1h]) unless on (job, instance) holdfast_info",
        lasts: "2m",
        severity: "critical",
        summary: "{{ $labels.instance }} answers no requests for metrics",
        description: "The node was there within the last hour. It has stopped, its host cannot be reached, or its cores \
                      are busy. Its log tells, and `holdfast cluster status` asked of another node.",
    },
    Alert {
        name: "HoldfastGroupWithoutLeader",
        expression: "max by (job, group) (holdfast_group_leads) == 0",
        lasts: "1m",
        severity: "critical",
        summary: "Nobody leads group {{ $labels.group }}",
        description: "Keys of this group can neither be written nor read. A majority of its voters is missing: see \
                      `holdfast cluster status`.",
    },
    Alert {
        name: "HoldfastDiskFull",
        expression: "holdfast_disk_has_room == 0",
        lasts: "0m",
        severity: "critical",
        summary: "{{ $labels.instance }} refuses writes: its disk has no room",
        description: "Make room on the file system of the data directory: writes are taken again by themselves.",
    },
    Alert {
        name: "HoldfastCheckpointFailed",
        expression: "holdfast_group_checkpoint_last_ok == 0",
        lasts: "0m",
        severity: "critical",
        summary: "{{ $labels.instance }} could not write a checkpoint of group {{ $labels.group }}",
        description: "Nothing is lost, but the log grows until one succeeds. The log of the node tells why.",
    },
    Alert {
        name: "HoldfastFollowerSilent",
        expression: "holdfast_follower_active == 0",
        lasts: "2m",
        severity: "warning",
        summary: "Node {{ $labels.node }} is not heard by the leader of group {{ $labels.group }}",
        description: "One more node less and the group may be without a majority.",
    },
    Alert {
        name: "HoldfastFollowerBehind",
        expression: "holdfast_follower_lag_seconds > 10",
        lasts: "5m",
        severity: "warning",
        summary: "Node {{ $labels.node }} is {{ $value }} s behind in group {{ $labels.group }}",
        description: "Its disk, its processors or the network to it are slower than what is written.",
    },
    Alert {
        name: "HoldfastLinkDown",
        expression: "holdfast_link_up == 0",
        lasts: "2m",
        severity: "warning",
        summary: "{{ $labels.instance }} has no link to node {{ $labels.node }} ({{ $labels.lane }})",
        description: "`INFO cluster` and `holdfast cluster timeline` tell why it was cut.",
    },
    Alert {
        name: "HoldfastArchiveBehind",
        expression: "holdfast_archive_up == 0 or holdfast_archive_lag_seconds > 60",
        lasts: "2m",
        severity: "warning",
        summary: "{{ $labels.instance }} does not write its archive",
        description: "The log is kept for it up to a bound: `INFO persistence` tells why in archive_fault.",
    },
    Alert {
        name: "HoldfastSiteBehind",
        expression: "holdfast_site_lag_seconds > 60",
        lasts: "2m",
        severity: "warning",
        summary: "The second site at {{ $labels.instance }} is {{ $value }} s behind",
        description: "A promotion now would lose as much. `holdfast site status` tells whether the line is up.",
    },
    Alert {
        name: "HoldfastSyncSlow",
        expression: "holdfast_log_unsynced_seconds > 2",
        lasts: "1m",
        severity: "warning",
        summary: "The disk of {{ $labels.instance }} is {{ $value }} s behind",
        description: "With `appendfsync always` clients wait as long.",
    },
    Alert {
        name: "HoldfastMemoryNearLimit",
        expression: "holdfast_memory_used_bytes / (holdfast_memory_max_bytes > 0) > 0.9",
        lasts: "5m",
        severity: "warning",
        summary: "{{ $labels.instance }} uses {{ $value | humanizePercentage }} of its maxmemory",
        description: "At the limit keys are evicted, or writes are refused, as maxmemory-policy says.",
    },
    Alert {
        name: "HoldfastConnectionsRefused",
        expression: "rate(holdfast_rejected_connections_total[5m]) > 0",
        lasts: "2m",
        severity: "warning",
        summary: "{{ $labels.instance }} refuses connections",
        description: "More clients want to connect than `maxclients` allows.",
    },
];

fn alerts() -> String {
    let mut text = "groups:\n  - name: holdfast\n    rules:\n".to_owned();
    // Text in double quotes is a string in YAML as it is in JSON.
    let quoted = |text: &str| Value::from(text).to_string();
    for alert in ALERTS {
        let _ = write!(
            text,
            "      - alert: {}\n        expr: {}\n        for: {}\n        labels:\n          severity: {}\n        \
             annotations:\n          summary: {}\n          description: {}\n",
            alert.name,
            quoted(alert.expression),
            alert.lasts,
            alert.severity,
            quoted(alert.summary),
            quoted(alert.description)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_and_alerts_name_metrics_that_are_told() {
        let panels = PANELS.iter().flat_map(|(_, panels)| *panels).flat_map(|panel| panel.queries);
        let expressions: Vec<&str> =
            panels.map(|(expression, _)| *expression).chain(ALERTS.iter().map(|alert| alert.expression)).collect();
        for expression in expressions {
            let names = metrics_of(expression);
            assert!(!names.is_empty(), "{expression}");
            for name in names {
                assert!(help_of(name).is_some(), "{name} of {expression} is not told");
            }
            assert_eq!(expression.matches('(').count(), expression.matches(')').count(), "{expression}");
        }
        assert_eq!(metrics_of("holdfast_command_duration_seconds_bucket{le}"), ["holdfast_command_duration_seconds"]);
        assert_eq!(metrics_of("rate(holdfast_nothing_bucket[1m])"), ["holdfast_nothing_bucket"]);
    }
}

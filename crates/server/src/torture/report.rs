//! The verdict, and how it is told: a table, a JSON document, a page with a timeline.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use serde_json::json;

use super::crew::{Gap, Notes, STEP, Step};
use super::findings::seconds;
use super::schedule::Kind;
use super::stand::Event;
use super::{Against, Outcome, Policy, TortureArguments, Verdict, Workload};
use crate::bench::grouped;
use crate::bench::page::{Chart, Mark, Page, Series};

/// Points of a chart; longer timelines are drawn in wider steps.
const POINTS_MAX: usize = 1_500;
/// Error texts in the table.
const TEXTS_SHOWN: usize = 6;

/// Whether what was promised was kept, as far as this run can tell.
pub fn judge(arguments: &TortureArguments, outcome: &Outcome) -> Verdict {
    let findings = &outcome.findings;
    let is_kept = outcome.mishaps.is_empty()
        && findings.acknowledged > 0
        && findings.lost_beyond(window_ns(arguments), &faults(outcome)) == 0
        && findings.altered == 0
        && findings.doubled == 0
        && findings.anomalies.is_empty();
    if is_kept { Verdict::Kept } else { Verdict::Broken }
}

/// Prints the table, and writes what files were asked for.
pub fn publish(arguments: &TortureArguments, outcome: &Outcome, verdict: Verdict) -> Result<()> {
    let json_alone = arguments.json.as_ref().is_some_and(|path| path.as_os_str() == "-");
    if json_alone {
        say_line!("{:#}", json(arguments, outcome, verdict));
    } else {
        say!("{}", text(arguments, outcome, verdict));
    }
    if let Some(path) = arguments.json.as_ref().filter(|_| !json_alone) {
        let text = format!("{:#}\n", json(arguments, outcome, verdict));
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &arguments.html {
        let page = html(arguments, outcome, verdict);
        std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// What is done, in a line.
pub fn description(arguments: &TortureArguments) -> String {
    let nodes = arguments.node_count();
    let what = match arguments.against {
        Against::Holdfast => "holdfast",
        Against::Redis => "redis",
    };
    let servers = if nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") };
    let policy = match (arguments.appendfsync, arguments.against) {
        (Some(policy), _) => policy.name(),
        (None, Against::Holdfast) => Policy::Always.name(),
        (None, Against::Redis) => "as Redis has it",
    };
    let load = match arguments.workload {
        Workload::Register => format!(
            "register, values of {} bytes, {:.0} % reads",
            grouped(arguments.value_bytes as f64, 0),
            arguments.read_ratio * 100.0
        ),
        Workload::Transfer => format!("transfer, {} accounts", arguments.accounts),
        Workload::Append => "append".to_owned(),
    };
    let pipeline = if arguments.workload == Workload::Transfer { 1 } else { arguments.pipeline };
    format!("{what}, {servers}, appendfsync {policy}; {load}, {} clients, pipeline {pipeline}", arguments.clients)
}

/// A fault that was inflicted, in a line.
pub fn event_line(event: &Event) -> String {
    let length = (event.until_ns - event.from_ns) as f64 / 1e9;
    let note = if event.note.is_empty() { String::new() } else { format!("; {}", event.note) };
    format!(
        "{:>9}   node {}: {}, well again after {length:.2} s{note}",
        seconds(event.from_ns),
        event.node + 1,
        event.kind
    )
}

/// Longest times without a success, one for each client and fault, in ascending order.
#[derive(Default)]
struct Pauses {
    all_ms: Vec<f64>,
    /// Of clients of nodes that were not hurt meanwhile.
    spared_ms: Vec<f64>,
}

impl Pauses {
    /// By faults of these kinds.
    fn of(outcome: &Outcome, kinds: &[Kind]) -> Self {
        Self::among(&outcome.events, &outcome.clients, kinds)
    }

    fn among(events: &[Event], clients: &[Notes], kinds: &[Kind]) -> Self {
        // By any fault: a pause that one caused may end when the next, of another node, has begun.
        let was_hurt = |gap: &Gap| {
            let hurts = |event: &&Event| event.kind.hurts_its_clients() && event.node == gap.node;
            events.iter().filter(hurts).any(|event| gap.until_ns >= event.from_ns && gap.from_ns <= event.until_ns)
        };
        let length_ms = |gap: &Gap| (gap.until_ns - gap.from_ns) as f64 / 1e6;
        let mut pauses = Self::default();
        for (index, event) in events.iter().enumerate().filter(|(_, event)| kinds.contains(&event.kind)) {
            let next_ns = events.get(index + 1).map_or(u64::MAX, |next| next.from_ns);
            for client in clients {
                let during = |gap: &&Gap| gap.until_ns >= event.from_ns && gap.from_ns < next_ns;
                let gaps = || client.gaps.iter().filter(during);
                let longest_ms = |gaps: &mut dyn Iterator<Item = &Gap>| gaps.map(length_ms).fold(0.0, f64::max);
                pauses.all_ms.push(longest_ms(&mut gaps()));
                // A client that was away only from the hurt node says nothing of the others.
                let mut spared = gaps().filter(|gap| !was_hurt(gap)).peekable();
                if spared.peek().is_some() || gaps().next().is_none() {
                    pauses.spared_ms.push(longest_ms(&mut spared));
                }
            }
        }
        pauses.all_ms.sort_by(f64::total_cmp);
        pauses.spared_ms.sort_by(f64::total_cmp);
        pauses
    }
}

/// Median, 99th percentile and largest; each 0 of nothing.
fn spread(sorted: &[f64]) -> [f64; 3] {
    let at = |share: f64| {
        let index = (sorted.len() as f64 * share).ceil() as usize;
        sorted.get(index.max(1) - 1).copied().unwrap_or(0.0)
    };
    [at(0.5), at(0.99), at(1.0)]
}

fn spread_words(sorted: &[f64]) -> String {
    let [median, p99, max] = spread(sorted).map(|ms| grouped(ms, 0));
    format!("p50 {median} ms, p99 {p99} ms, max {max} ms")
}

/// Faults that stop something. Over a slow link all goes on.
const STOPPING: [Kind; 6] = [Kind::Kill, Kind::Stop, Kind::CutOff, Kind::CutFromPeers, Kind::Mute, Kind::CutPair];

fn window_ns(arguments: &TortureArguments) -> u64 {
    (arguments.window * 1e9) as u64
}

/// The spans of faults. A loss is counted back from the beginning of each.
fn faults(outcome: &Outcome) -> Vec<(u64, u64)> {
    outcome.events.iter().map(|event| (event.from_ns, event.silent_ns)).collect()
}

fn totals(outcome: &Outcome) -> Notes {
    let mut total = Notes::new();
    outcome.clients.iter().for_each(|client| total.merge(client));
    total
}

fn fault_counts(outcome: &Outcome) -> String {
    let counted = Kind::ALL.map(|kind| (kind, outcome.events.iter().filter(|event| event.kind == kind).count()));
    let words: Vec<String> =
        counted.iter().filter(|(_, count)| *count > 0).map(|(kind, count)| format!("{count} × {kind}")).collect();
    let words = if words.is_empty() { "none".to_owned() } else { words.join(", ") };
    match outcome.faults_planned - outcome.events.len() {
        0 => words,
        left => format!("{words}; {left} of {} not inflicted", outcome.faults_planned),
    }
}

fn lost_words(arguments: &TortureArguments, outcome: &Outcome) -> String {
    let findings = &outcome.findings;
    let count = grouped(findings.lost.len() as f64, 0);
    if findings.lost.is_empty() {
        return count;
    }
    let oldest = match findings.oldest_loss_ns(&faults(outcome)) {
        Some(age_ns) => format!("the oldest acknowledged {:.3} s before a fault", age_ns as f64 / 1e9),
        None => "some with no fault after them".to_owned(),
    };
    let forgiven = findings.lost.len() as u64 - findings.lost_beyond(window_ns(arguments), &faults(outcome));
    match arguments.window > 0.0 {
        true => {
            format!("{count}, {oldest}; {} within the window of {} s", grouped(forgiven as f64, 0), arguments.window)
        }
        false => format!("{count}, {oldest}"),
    }
}

/// The one line that counts.
fn verdict_line(arguments: &TortureArguments, outcome: &Outcome, verdict: Verdict) -> String {
    let findings = &outcome.findings;
    let number = |count: u64| grouped(count as f64, 0);
    let lost = findings.lost.len() as u64;
    let beyond = findings.lost_beyond(window_ns(arguments), &faults(outcome));
    let lost = match lost - beyond {
        0 => format!("{} lost", number(lost)),
        forgiven => format!("{} lost and {} within the window", number(beyond), number(forgiven)),
    };
    let mut line = format!(
        "verdict: {}: {lost}, {} altered, {} doubled of {} acknowledged writes",
        if verdict == Verdict::Kept { "KEPT" } else { "BROKEN" },
        number(findings.altered),
        number(findings.doubled),
        number(findings.acknowledged),
    );
    for (name, count) in &findings.anomalies {
        let _ = write!(line, ", {} × {name}", number(*count));
    }
    if findings.acknowledged == 0 {
        line.push_str(", which proves nothing");
    }
    if !outcome.mishaps.is_empty() {
        let _ = write!(line, ", {} mishaps", outcome.mishaps.len());
    }
    if outcome.interrupted {
        line.push_str(" (ended early)");
    }
    line
}

fn text(arguments: &TortureArguments, outcome: &Outcome, verdict: Verdict) -> String {
    let total = totals(outcome);
    let findings = &outcome.findings;
    let number = |count: u64| grouped(count as f64, 0);
    let answered = total.reads.count() + total.writes.count();
    let (mut all, pauses) = (total.reads.clone(), Pauses::of(outcome, &STOPPING));
    all.merge(&total.writes);
    let mut rows: Vec<(&str, String)> = vec![
        ("servers", format!("{}: {}", outcome.version, description(arguments))),
        ("seed", outcome.seed.to_string()),
        ("faults", format!("{} in {:.1} s", fault_counts(outcome), outcome.elapsed.as_secs_f64())),
        (
            "answered",
            format!("{} requests, {}/s", number(answered), grouped(answered as f64 / outcome.elapsed.as_secs_f64(), 0)),
        ),
        (
            "latency",
            format!(
                "p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms, max {:.0} ms",
                all.percentile_ms(50.0),
                all.percentile_ms(99.0),
                all.percentile_ms(99.9),
                all.max_ms()
            ),
        ),
        ("pause after a fault", spread_words(&pauses.all_ms)),
    ];
    if arguments.node_count() > 1 {
        rows.push(("  at other nodes", spread_words(&pauses.spared_ms)));
        let inflicted = |kind: &Kind| outcome.events.iter().any(|event| event.kind == *kind);
        for kind in Kind::ALL.into_iter().filter(inflicted) {
            let spared = Pauses::of(outcome, &[kind]).spared_ms;
            rows.push(("", format!("by {kind}: {}", spread_words(&spared))));
        }
    }
    rows.push(("connections lost", number(total.lost)));
    rows.push(("requests refused", number(total.refused)));
    if total.aborted > 0 {
        rows.push(("aborted by WATCH", number(total.aborted)));
    }
    rows.push(("errors at unhurt nodes", number(total.undeserved)));
    rows.push(("writes acknowledged", number(findings.acknowledged)));
    rows.push(("  lost", lost_words(arguments, outcome)));
    rows.push(("  altered", number(findings.altered)));
    rows.push(("  doubled", number(findings.doubled)));
    rows.push((
        "outcome unknown",
        format!("{}, of which {} are in effect", number(findings.unknown), number(findings.unknown_in_effect)),
    ));
    for (name, count) in &findings.anomalies {
        rows.push((name, number(*count)));
    }
    for (index, check) in findings.checks.iter().enumerate() {
        rows.push((if index == 0 { "checked" } else { "" }, check.clone()));
    }
    let mut text = String::new();
    for (name, value) in rows {
        let _ = writeln!(text, "{name:<23} {value}");
    }
    let mut texts: Vec<(&String, &u64)> = total.texts.iter().collect();
    texts.sort_by_key(|(text, count)| (std::cmp::Reverse(**count), *text));
    for (line, count) in texts.into_iter().take(TEXTS_SHOWN) {
        let _ = writeln!(text, "  {:>9} × {line}", number(*count));
    }
    let heading = if findings.examples.is_empty() { "" } else { "what was found, in examples\n" };
    text.push_str(heading);
    for example in &findings.examples {
        let _ = writeln!(text, "  {example}");
    }
    for mishap in &outcome.mishaps {
        let _ = writeln!(text, "mishap: {mishap}");
    }
    if let Some(path) = &outcome.kept_at {
        let _ = writeln!(text, "data and logs are left in {}", path.display());
    }
    let _ = writeln!(text, "{}", verdict_line(arguments, outcome, verdict));
    text
}

fn json(arguments: &TortureArguments, outcome: &Outcome, verdict: Verdict) -> serde_json::Value {
    let total = totals(outcome);
    let (findings, pauses) = (&outcome.findings, Pauses::of(outcome, &STOPPING));
    let latencies = |it: &crate::bench::record::Latencies| {
        json!({
            "count": it.count(),
            "p50_ms": it.percentile_ms(50.0),
            "p99_ms": it.percentile_ms(99.0),
            "p999_ms": it.percentile_ms(99.9),
            "max_ms": it.max_ms(),
        })
    };
    let events: Vec<_> = outcome
        .events
        .iter()
        .map(|event| {
            json!({
                "kind": event.kind.to_string(),
                "node": event.node + 1,
                "from_s": event.from_ns as f64 / 1e9,
                "until_s": event.until_ns as f64 / 1e9,
                "note": event.note,
            })
        })
        .collect();
    let timeline: Vec<_> = outcome
        .timeline
        .iter()
        .map(|step| {
            json!({
                "answered": step.answered,
                "refused": step.refused,
                "connections_lost": step.lost,
                "p99_ms": step.quantile_ms(0.99),
                "max_ms": step.max_ns as f64 / 1e6,
            })
        })
        .collect();
    let [all_p50, all_p99, all_max] = spread(&pauses.all_ms);
    let [spared_p50, spared_p99, spared_max] = spread(&pauses.spared_ms);
    let by_kind: serde_json::Map<String, serde_json::Value> = Kind::ALL
        .into_iter()
        .filter_map(|kind| {
            let count = outcome.events.iter().filter(|event| event.kind == kind).count();
            let [p50, p99, max] = spread(&Pauses::of(outcome, &[kind]).spared_ms);
            let pauses = json!({
                "count": count,
                "at_other_nodes_p50_ms": p50,
                "at_other_nodes_p99_ms": p99,
                "at_other_nodes_max_ms": max,
            });
            (count > 0).then(|| (kind.to_string(), pauses))
        })
        .collect();
    json!({
        "verdict": if verdict == Verdict::Kept { "kept" } else { "broken" },
        "line": verdict_line(arguments, outcome, verdict),
        "servers": outcome.version,
        "description": description(arguments),
        "seed": outcome.seed,
        "seconds": outcome.elapsed.as_secs_f64(),
        "ended_early": outcome.interrupted,
        "acknowledged": findings.acknowledged,
        "lost": findings.lost.len(),
        "lost_beyond_window": findings.lost_beyond(window_ns(arguments), &faults(outcome)),
        "window_s": arguments.window,
        "oldest_loss_s": findings.oldest_loss_ns(&faults(outcome)).map(|age_ns| age_ns as f64 / 1e9),
        "altered": findings.altered,
        "doubled": findings.doubled,
        "unknown": findings.unknown,
        "unknown_in_effect": findings.unknown_in_effect,
        "anomalies": findings.anomalies,
        "checks": findings.checks,
        "examples": findings.examples,
        "mishaps": outcome.mishaps,
        "reads": latencies(&total.reads),
        "writes": latencies(&total.writes),
        "aborted": total.aborted,
        "refused": total.refused,
        "connections_lost": total.lost,
        "errors_at_unhurt_nodes": total.undeserved,
        "error_texts": total.texts,
        "pause_p50_ms": all_p50,
        "pause_p99_ms": all_p99,
        "pause_max_ms": all_max,
        "pause_at_other_nodes_p50_ms": spared_p50,
        "pause_at_other_nodes_p99_ms": spared_p99,
        "pause_at_other_nodes_max_ms": spared_max,
        "pauses_by_fault": by_kind,
        "faults": events,
        "timeline_step_s": STEP.as_secs_f64(),
        "timeline": timeline,
    })
}

fn html(arguments: &TortureArguments, outcome: &Outcome, verdict: Verdict) -> String {
    let (findings, pauses) = (&outcome.findings, Pauses::of(outcome, &STOPPING));
    let [pause_p50, _, pause_max] = spread(&pauses.all_ms);
    let number = |count: u64| grouped(count as f64, 0);
    let subtitle = format!("{}: {} · seed {}", outcome.version, description(arguments), outcome.seed);
    let mut page = Page::new("Holdfast torture", &subtitle);
    page.heading(&verdict_line(arguments, outcome, verdict));
    page.figures(&[
        ("acknowledged writes", number(findings.acknowledged)),
        ("lost", number(findings.lost.len() as u64)),
        ("altered", number(findings.altered)),
        ("doubled", number(findings.doubled)),
        ("unknown", number(findings.unknown)),
        ("faults", outcome.events.len().to_string()),
        ("pause p50", format!("{pause_p50:.0} ms")),
        ("pause max", format!("{pause_max:.0} ms")),
    ]);
    let width = outcome.timeline.len().div_ceil(POINTS_MAX).max(1);
    let step_seconds = STEP.as_secs_f64() * width as f64;
    let steps: Vec<Step> = outcome
        .timeline
        .chunks(width)
        .map(|chunk| {
            let mut sum = Step::new();
            chunk.iter().for_each(|step| sum.merge(step));
            sum
        })
        .collect();
    let over = |value: &dyn Fn(&Step) -> f64| -> Vec<f64> { steps.iter().map(value).collect() };
    let per_second = |count: u64| count as f64 / step_seconds;
    page.chart(&Chart {
        title: "Throughput",
        unit: "requests/s; faults are shaded",
        logarithmic: false,
        step_seconds,
        marks: marks(outcome),
        series: vec![
            Series { name: "answered", values: over(&|step| per_second(step.answered)) },
            Series { name: "refused", values: over(&|step| per_second(step.refused)) },
            Series { name: "connections lost", values: over(&|step| per_second(step.lost)) },
        ],
    });
    page.chart(&Chart {
        title: "Latency",
        unit: "ms",
        logarithmic: true,
        step_seconds,
        marks: marks(outcome),
        series: vec![
            Series { name: "p50", values: over(&|step| step.quantile_ms(0.5)) },
            Series { name: "p99", values: over(&|step| step.quantile_ms(0.99)) },
            Series { name: "max", values: over(&|step| step.max_ns as f64 / 1e6) },
        ],
    });
    page.heading("Faults");
    let rows: Vec<(bool, Vec<String>)> = outcome
        .events
        .iter()
        .map(|event| {
            let length = format!("{:.2} s", (event.until_ns - event.from_ns) as f64 / 1e9);
            let node = (event.node + 1).to_string();
            (false, vec![event.kind.to_string(), node, seconds(event.from_ns), length, event.note.clone()])
        })
        .collect();
    page.table(&["fault", "node", "at", "well again after", ""], &rows);
    page.preformatted("Report", &text(arguments, outcome, verdict));
    page.finish()
}

fn marks(outcome: &Outcome) -> Vec<Mark> {
    let mark = |event: &Event| Mark {
        from: event.from_ns as f64 / 1e9,
        until: event.until_ns as f64 / 1e9,
        name: format!("{} of node {}", event.kind, event.node + 1),
    };
    outcome.events.iter().map(mark).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_of_a_hurt_node_that_outlasts_its_fault_is_not_one_of_the_others_in_the_next() {
        let ms = |count: u64| count * 1_000_000;
        let fault = |kind, node, from_ms, until_ms| {
            let (from_ns, until_ns) = (ms(from_ms), ms(until_ms));
            Event { kind, node, from_ns, silent_ns: until_ns, until_ns, note: String::new() }
        };
        let client = |gaps: &[(usize, u64, u64)]| {
            let gap = |&(node, from_ms, until_ms): &(usize, u64, u64)| Gap {
                node,
                from_ns: ms(from_ms),
                until_ns: ms(until_ms),
            };
            Notes { gaps: gaps.iter().map(gap).collect(), ..Notes::new() }
        };
        let events = [fault(Kind::Stop, 1, 1_000, 21_000), fault(Kind::Kill, 0, 21_010, 23_000)];
        // The first waits for the stopped node, into the next fault; the second has a node that is never hurt.
        let clients = [client(&[(1, 999, 21_020)]), client(&[(2, 999, 1_800), (2, 21_009, 21_300)])];
        let pauses = Pauses::among(&events, &clients, &STOPPING);
        assert_eq!(pauses.all_ms, [291.0, 801.0, 20_021.0, 20_021.0]);
        assert_eq!(pauses.spared_ms, [291.0, 801.0]);
        assert_eq!(Pauses::among(&events, &clients, &[Kind::Stop]).spared_ms, [801.0]);
        assert_eq!(Pauses::among(&events, &clients, &[Kind::Kill]).spared_ms, [291.0]);
        // Nobody has to bear with a pair that is cut.
        let events = [fault(Kind::CutPair, 1, 1_000, 21_000)];
        let pauses = Pauses::among(&events, &clients[..1], &STOPPING);
        assert_eq!(pauses.spared_ms, [20_021.0]);
    }

    #[test]
    fn a_spread_is_of_what_was_measured() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(spread(&hundred), [50.0, 99.0, 100.0]);
        assert_eq!(spread(&[7.0]), [7.0; 3]);
        assert_eq!(spread(&[]), [0.0; 3]);
    }
}

//! What a sweep says in the end: for people, or as JSON.

use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Value, json};
use simulation::coverage::{Coverage, Fault, Phase};
use simulation::{EXPECTED, Harm, Wait};

use super::{SimulateArguments, Totals};

/// One history in so many may be left undecided.
const UNDECIDED_ONE_IN: u64 = 1_000;

/// Says what became of a sweep.
///
/// # Errors
/// If a seed failed, or a canary survived.
pub(super) fn report(arguments: &SimulateArguments, totals: &Totals, done: u64, took: Duration) -> Result<()> {
    if arguments.json {
        say_line!("{:#}", as_json(arguments, totals, done, took));
    } else {
        show(arguments, totals, done, took);
    }
    let (judged, undecided) = (totals.judged_count, totals.undecided_count);
    if arguments.canary.is_some() {
        let Some((seed, failure)) = totals.failures.first_key_value() else {
            bail!("the defect was not caught in {}: a defect may need more seeds", seeds(done));
        };
        if !arguments.json {
            let caught = totals.failures.len();
            say_line!("the defect was caught in {caught} of {}, first in seed {seed}: {failure}", seeds(done));
        }
        return Ok(());
    }
    match totals.failures.first_key_value() {
        None if undecided * UNDECIDED_ONE_IN > judged => {
            bail!("{undecided} of {judged} histories are not decided: no more than one in {UNDECIDED_ONE_IN} may be")
        }
        None => Ok(()),
        Some((seed, _)) => bail!("{} of {} failed; {}", totals.failures.len(), seeds(done), arguments.replay(*seed)),
    }
}

fn show(arguments: &SimulateArguments, totals: &Totals, done: u64, took: Duration) {
    let seconds = took.as_secs_f64();
    say_line!(
        "{}, {} failed, in {seconds:.1} s, {:.1} a second, {:.0} s for 1,000; {:.0} s of virtual time, {} events, \
         {} answers",
        seeds(done),
        totals.failures.len(),
        done as f64 / seconds,
        for_thousand(done, took),
        totals.virtual_ns as f64 / 1e9,
        totals.step_count,
        totals.answered_count
    );
    for (name, count) in totals.probes.iter() {
        say_line!("{count:>10} × {name}");
    }
    for name in EXPECTED.iter().filter(|name| totals.probes.count(name) == 0) {
        say_line!("{:>10}   {name}", "never");
    }
    if !arguments.calm {
        show_coverage(arguments, &totals.coverage);
    }
    show_times("transfers, begun when all nodes had joined and leaders were spread", &totals.transfers_ns);
    show_times("returns of a node until leaders were where they had been", &totals.returns_ns);
    show_waits(&totals.waits);
    let (judged, undecided) = (totals.judged_count, totals.undecided_count);
    if undecided > 0 {
        say_line!("NOT DECIDED: {undecided} of {judged} histories of registers, in the time that a world has for them");
    }
}

/// A number of seeds, in words.
fn seeds(count: u64) -> String {
    if count == 1 { "1 seed".to_owned() } else { format!("{count} seeds") }
}

/// Seconds that a thousand seeds take at this pace.
fn for_thousand(done: u64, took: Duration) -> f64 {
    took.as_secs_f64() * 1_000.0 / done.max(1) as f64
}

/// Which faults met which phases, a row for each fault, and what is lacking.
fn show_coverage(arguments: &SimulateArguments, coverage: &Coverage) {
    let plan = arguments.plan(0);
    let phases: Vec<Phase> = Phase::ALL.into_iter().filter(|phase| phase.is_in(&plan)).collect();
    say_line!("faults, and how many of them met which phase of the node hit:");
    for (phase, letter) in phases.iter().zip('a'..) {
        say_line!("  {letter}: {}", phase.name());
    }
    let head: String = phases.iter().zip('a'..).map(|(_, letter)| format!("{letter:>6}")).collect();
    say_line!("{:>20}{:>7}{head}", "", "struck");
    let mut unmet_count = 0;
    let mut lacking = Vec::new();
    for fault in Fault::ALL.into_iter().filter(|fault| fault.is_in(&plan)) {
        let cell = |phase: &Phase| match coverage.met(fault, *phase) {
            0 => format!("{:>6}", "."),
            count => format!("{:>6}", shortened(count)),
        };
        let cells: String = phases.iter().map(cell).collect();
        say_line!("{:>20}{:>7}{cells}", fault.name(), shortened(coverage.struck(fault)));
        let unmet: Vec<&str> =
            phases.iter().filter(|phase| coverage.met(fault, **phase) == 0).map(|phase| phase.name()).collect();
        unmet_count += unmet.len();
        if coverage.struck(fault) == 0 {
            lacking.push(format!("{}: never struck", fault.name()));
        } else if !unmet.is_empty() {
            lacking.push(format!("{}: {}", fault.name(), unmet.join(", ")));
        }
    }
    let seen: String = phases.iter().map(|phase| format!("{:>6}", shortened(coverage.seen(*phase)))).collect();
    say_line!("{:>20}{:>7}{seen}", "no fault (sampled)", "");
    say_line!("not seen: {unmet_count} of {} pairs", Coverage::possible(&plan).count());
    for line in lacking {
        say_line!("  {line}");
    }
}

/// A number of at most five characters.
fn shortened(count: u64) -> String {
    match count {
        0..100_000 => count.to_string(),
        100_000..10_000_000 => format!("{}k", count / 1_000),
        _ => format!("{}M", count / 1_000_000),
    }
}

/// The longest waits by what happened, and what those were made of.
fn show_waits(sorted: &[Wait]) {
    if sorted.is_empty() {
        return;
    }
    say_line!("longest wait of a client of an unhurt node each time, in virtual ms, and what the longest was made of:");
    say_line!(
        "{:>18}{:>7}{:>8}{:>8}{:>8}{:>12}{:>14}{:>8}{:>8}{:>8}",
        "",
        "times",
        "p50",
        "p99",
        "max",
        "no leader",
        "not serving",
        "locks",
        "rest",
        "errors"
    );
    for harm in Harm::ALL {
        let Some(summary) = Summary::of(sorted, harm) else { continue };
        let ms = |ns: u64| ns / 1_000_000;
        let Wait { longest_ns, unled_ns, unserved_ns, locked_ns, .. } = summary.longest;
        let rest_ns = longest_ns.saturating_sub(unled_ns + unserved_ns + locked_ns);
        say_line!(
            "{:>18}{:>7}{:>8}{:>8}{:>8}{:>12}{:>14}{:>8}{:>8}{:>8}",
            harm.name(),
            summary.count,
            ms(summary.p50_ns),
            ms(summary.p99_ns),
            ms(*longest_ns),
            ms(*unled_ns),
            ms(*unserved_ns),
            ms(*locked_ns),
            ms(rest_ns),
            summary.error_count
        );
    }
}

/// The waits of one kind.
struct Summary<'a> {
    count: usize,
    p50_ns: u64,
    p99_ns: u64,
    longest: &'a Wait,
    error_count: u64,
}

impl<'a> Summary<'a> {
    fn of(sorted: &'a [Wait], harm: Harm) -> Option<Self> {
        let waits: Vec<&Wait> = sorted.iter().filter(|wait| wait.harm == harm).collect();
        let longest = *waits.last()?;
        let at = |percent: usize| waits[(waits.len() - 1) * percent / 100].longest_ns;
        let error_count = waits.iter().map(|wait| wait.error_count).sum();
        Some(Self { count: waits.len(), p50_ns: at(50), p99_ns: at(99), longest, error_count })
    }
}

fn as_json(arguments: &SimulateArguments, totals: &Totals, done: u64, took: Duration) -> Value {
    let plan = arguments.plan(0);
    let phases = || Phase::ALL.into_iter().filter(|phase| phase.is_in(&plan));
    let coverage = &totals.coverage;
    let faults = Fault::ALL.into_iter().filter(|fault| fault.is_in(&plan)).map(|fault| {
        let met = phases().map(|phase| (phase.name().to_owned(), json!(coverage.met(fault, phase))));
        let met: serde_json::Map<String, Value> = met.collect();
        (fault.name().to_owned(), json!({ "struck": coverage.struck(fault), "met": met }))
    });
    let faults: serde_json::Map<String, Value> = faults.collect();
    let sampled = phases().map(|phase| (phase.name().to_owned(), json!(coverage.seen(phase))));
    let sampled: serde_json::Map<String, Value> = sampled.collect();
    let unmet: Vec<Value> = coverage.unmet(&plan).map(|(fault, phase)| json!([fault.name(), phase.name()])).collect();
    let probes = totals.probes.iter().map(|(name, count)| (name.to_owned(), json!(count)));
    let expected = EXPECTED.iter().map(|name| ((*name).to_owned(), json!(totals.probes.count(name))));
    let probes: serde_json::Map<String, Value> = expected.chain(probes).collect();
    let failures = totals
        .failures
        .iter()
        .map(|(seed, failure)| json!({ "seed": seed, "failure": failure, "replay": arguments.replay(*seed) }));
    let waits = Harm::ALL.into_iter().filter_map(|harm| {
        let Summary { count, p50_ns, p99_ns, longest, error_count } = Summary::of(&totals.waits, harm)?;
        let ms = |ns: u64| ns as f64 / 1e6;
        let made_of = json!({
            "no_leader_ms": ms(longest.unled_ns),
            "not_serving_ms": ms(longest.unserved_ns),
            "locks_ms": ms(longest.locked_ns),
        });
        let summary = json!({
            "count": count, "p50_ms": ms(p50_ns), "p99_ms": ms(p99_ns), "max_ms": ms(longest.longest_ns),
            "longest": made_of, "errors": error_count,
        });
        Some((harm.name().to_owned(), summary))
    });
    let waits: serde_json::Map<String, Value> = waits.collect();
    json!({
        "seeds": done,
        "wall_seconds": took.as_secs_f64(),
        "wall_seconds_per_1000_seeds": for_thousand(done, took),
        "virtual_seconds": totals.virtual_ns as f64 / 1e9,
        "events": totals.step_count,
        "answers": totals.answered_count,
        "failures": failures.collect::<Vec<_>>(),
        "histories": { "judged": totals.judged_count, "undecided": totals.undecided_count },
        "waits": waits,
        "situations": probes,
        "coverage": { "faults": faults, "sampled": sampled, "not_seen": unmet },
    })
}

/// How long something took, in order, in virtual time.
fn show_times(what: &str, sorted_ns: &[u64]) {
    let Some(last) = sorted_ns.last() else { return };
    let ms = |thousandths: usize| sorted_ns[(sorted_ns.len() - 1) * thousandths / 1_000] as f64 / 1e6;
    say_line!(
        "{} {what}, in virtual time: p50 {:.2} ms, p99 {:.2}, p99.9 {:.2}, max {:.2}",
        sorted_ns.len(),
        ms(500),
        ms(990),
        ms(999),
        *last as f64 / 1e6
    );
}

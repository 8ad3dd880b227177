//! LATENCY: long delays by their cause, and how long commands take.
//!
//! A delay is noted when it is longer than `latency-monitor-threshold`, under the name of its cause: `command` and
//! `fast-command`, `expire-cycle`, `eviction-cycle`, `checkpoint` (a slice of one) and `log-sync`.

use std::fmt::Write as _;

use command::{Flag, Refusal};
use resp::{Args, Writer};

use super::info::{figures_of, total_calls, total_times};
use super::{Answer, ControlCommand, Local, Outcome, Question, container, local, node};
use crate::catalog::catalog;
use crate::stats::timing::{Delays, Samples};

const FLAGS: &[Flag] = &[Flag::Admin, Flag::Noscript, Flag::Loading, Flag::Stale];
const TIPS: &[&str] = &["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"];

pub(super) const LATENCY: ControlCommand = ControlCommand {
    since: "2.8.13",
    summary: "Commands on latencies.",
    subcommands: &[LATEST, HISTORY, RESET, GRAPH, DOCTOR, HISTOGRAM, HELP],
    ..container("latency")
};

const LATEST: ControlCommand = ControlCommand {
    since: "2.8.13",
    summary: "Returns the latest long delay of each cause, and the longest.",
    flags: FLAGS,
    tips: TIPS,
    ..node("latest", 2, |_, _| Ok(Question::Delays), latest)
};

fn latest(_: &mut Local<'_>, _: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    let delays = join_delays(answers);
    writer.array(delays.iter().count());
    for (cause, samples) in delays.iter() {
        let (second, millis) = samples.samples.back().copied().unwrap_or_default();
        writer.array(4);
        writer.bulk(cause.as_bytes());
        writer.integer(second);
        writer.integer(millis as i64);
        writer.integer(samples.longest_ms as i64);
    }
    Ok(())
}

const HISTORY: ControlCommand = ControlCommand {
    since: "2.8.13",
    summary: "Returns when there were long delays of a cause, and how long they were.",
    syntax: "event",
    flags: FLAGS,
    tips: TIPS,
    ..node("history", 3, |_, _| Ok(Question::Delays), history)
};

fn history(_: &mut Local<'_>, args: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    let delays = join_delays(answers);
    let samples = delays.of(args.at(2)).map(|samples| &samples.samples);
    writer.array(samples.map_or(0, |samples| samples.len()));
    for (second, millis) in samples.into_iter().flatten() {
        writer.array(2);
        writer.integer(*second);
        writer.integer(*millis as i64);
    }
    Ok(())
}

const RESET: ControlCommand = ControlCommand {
    since: "2.8.13",
    summary: "Forgets long delays, and returns of how many causes.",
    syntax: "[event [event ...]]",
    flags: FLAGS,
    tips: &["request_policy:all_nodes", "response_policy:agg_sum"],
    ..node(
        "reset",
        -2,
        |_, args| Ok(Question::ResetDelays(args.iter().skip(2).map(<[u8]>::to_vec).collect())),
        |_, _, answers, writer| {
            let mut causes: Vec<_> = answers
                .into_iter()
                .flat_map(|answer| match answer {
                    Answer::Names(causes) => causes,
                    other => unreachable!("a core told {other:?} for what it has forgotten"),
                })
                .collect();
            causes.sort();
            causes.dedup();
            writer.count(causes.len());
            Ok(())
        },
    )
};

const GRAPH: ControlCommand = ControlCommand {
    since: "2.8.13",
    summary: "Draws the long delays of a cause.",
    syntax: "event",
    flags: FLAGS,
    tips: TIPS,
    ..node("graph", 3, |_, _| Ok(Question::Delays), graph)
};

fn graph(local: &mut Local<'_>, args: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    let delays = join_delays(answers);
    let Some(samples) = delays.of(args.at(2)) else {
        let cause = String::from_utf8_lossy(args.at(2));
        return Err(Refusal::new(format!("ERR No samples available for event '{cause}'")));
    };
    let cause = String::from_utf8_lossy(args.at(2));
    writer.verbatim("txt", draw(&cause, samples, local.now.unix.0.div_euclid(1_000)).as_bytes());
    Ok(())
}

/// A column for each delay, as high as it was long, and how long ago it was below it.
fn draw(cause: &str, samples: &Samples, now: i64) -> String {
    const ROWS: u64 = 4;
    let lengths = || samples.samples.iter().map(|(_, millis)| *millis);
    let (low, high) = (lengths().min().unwrap_or(0), lengths().max().unwrap_or(0));
    let mut text = format!("{cause} - high {high} ms, low {low} ms (all time high {} ms)\n", samples.longest_ms);
    text.push_str(&"-".repeat(80));
    text.push('\n');
    // Half rows: a delay fills from one to twice as many as there are rows.
    let height = |millis: u64| 1 + (millis - low) * (2 * ROWS - 1) / (high - low).max(1);
    for row in (0..ROWS).rev() {
        let cell = |millis: u64| match height(millis).saturating_sub(2 * row) {
            0 => ' ',
            1 => '_',
            2 => '#',
            _ => '|',
        };
        text.push_str(lengths().map(cell).collect::<String>().trim_end());
        text.push('\n');
    }
    text.push('\n');
    let ages: Vec<String> = samples.samples.iter().map(|(second, _)| age(now - second)).collect();
    for row in 0..ages.iter().map(String::len).max().unwrap_or(0) {
        let line: String =
            ages.iter().map(|age| age.as_bytes().get(row).map_or(' ', |byte| char::from(*byte))).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Seconds as short as possible.
fn age(seconds: i64) -> String {
    match seconds.max(0) {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3_600 => format!("{}m", seconds / 60),
        seconds @ 3_600..86_400 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

const DOCTOR: ControlCommand = ControlCommand {
    since: "2.8.13",
    summary: "Shows what caused the longest delays.",
    flags: FLAGS,
    tips: TIPS,
    ..node("doctor", 2, |_, _| Ok(Question::Delays), doctor)
};

fn doctor(local: &mut Local<'_>, _: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    let delays = join_delays(answers);
    let journal = &local.core.host.report.journal;
    let settings = &local.core.settings;
    let mut text = format!(
        "The log has been synced {} times, in {} microseconds on average and {} at most, the last time in {}.\n\
         Commands that took longer than {} microseconds are in SLOWLOG.\n",
        journal.sync_count, journal.sync_mean_us, journal.sync_max_us, journal.sync_last_us, settings.slow_us,
    );
    if settings.latency_threshold_ms == 0 {
        text.push_str("Delays are not watched: CONFIG SET latency-monitor-threshold <milliseconds> begins that.\n");
    } else if delays.iter().next().is_none() {
        let _ = writeln!(text, "No delay was longer than {} milliseconds.", settings.latency_threshold_ms);
    }
    for (cause, samples) in delays.iter() {
        let count = samples.samples.len();
        let mean = samples.samples.iter().map(|(_, millis)| millis).sum::<u64>() / (count as u64).max(1);
        let _ = writeln!(
            text,
            "{cause}: {count} delays, {mean} milliseconds on average and {} at most. {}",
            samples.longest_ms,
            advice(cause)
        );
    }
    writer.verbatim("txt", text.as_bytes());
    Ok(())
}

/// What can be done about delays of a cause.
fn advice(cause: &str) -> &'static str {
    match cause {
        "command" => "SLOWLOG shows which commands; look for large values, and for what walks through many keys.",
        "fast-command" => "These do little: the machine was busy with something else, or short of memory.",
        "log-sync" => "The disk took so long to make writes durable; `appendfsync everysec` does not wait for it.",
        "expire-cycle" | "eviction-cycle" => "Many keys, or large ones, went at once.",
        "checkpoint" => "A slice of a checkpoint took so long; look for keys with very large values.",
        _ => "",
    }
}

const HISTOGRAM: ControlCommand = ControlCommand {
    since: "7.0.0",
    summary: "Returns how many calls of commands took at most so many microseconds, for powers of two.",
    complexity: "O(N) where N is the number of commands with latency information being retrieved",
    syntax: "[command [command ...]]",
    flags: FLAGS,
    tips: TIPS,
    ..node("histogram", -2, |_, _| Ok(Question::FiguresWithTimes), histogram)
};

fn histogram(_: &mut Local<'_>, args: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    let figures = figures_of(answers);
    let calls = total_calls(&figures);
    let times = total_times(&figures);
    let known: Vec<&str> =
        times.iter().filter(|(_, times)| times.histogram.total() > 0).map(|(name, _)| *name).collect();
    let mut told = Vec::new();
    if args.len() == 2 {
        told.clone_from(&known);
    }
    for word in args.iter().skip(2) {
        let word = String::from_utf8_lossy(word).to_ascii_lowercase();
        let Some(place) = catalog().place_of(&word) else { continue };
        let is_meant = |name: &&str| {
            let entry = catalog().place_of(name).map(|place| &catalog().entries()[place]);
            **name == word || entry.is_some_and(|entry| entry.container == Some(place))
        };
        told.extend(known.iter().filter(|name| is_meant(name)).copied());
    }
    writer.map(told.len());
    for name in told {
        let histogram = &times[name].histogram;
        // Not all calls are measured; those that are stand for the others.
        let measured = histogram.total();
        let all = calls.get(name).map_or(measured, |figures| figures.calls);
        writer.bulk(name.as_bytes());
        writer.map(2);
        writer.bulk(b"calls");
        writer.integer(all as i64);
        writer.bulk(b"histogram_usec");
        let steps = histogram.doubling();
        writer.map(steps.len());
        for (bound, count) in steps {
            writer.integer(bound as i64);
            writer.integer((u128::from(count) * u128::from(all) / u128::from(measured)) as i64);
        }
    }
    Ok(())
}

const HELP: ControlCommand = ControlCommand {
    since: "2.8.13",
    summary: "Lists the subcommands.",
    flags: &[Flag::Loading, Flag::Stale],
    ..local("help", 2, |_, _, writer| {
        super::write_help(writer, "LATENCY", LATENCY.subcommands);
        Ok(())
    })
};

/// Delays of all cores.
fn join_delays(answers: Vec<Answer>) -> Delays {
    let mut joined = Delays::default();
    for answer in answers {
        match answer {
            Answer::Delays(delays) => joined.add(delays),
            other => unreachable!("a core told {other:?} for its delays"),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_has_a_column_for_each_delay() {
        let samples = Samples { samples: [(100, 10), (170, 45), (171, 80)].into(), longest_ms: 90 };
        let drawn = draw("command", &samples, 172);
        let lines: Vec<&str> = drawn.lines().collect();
        assert_eq!(lines[0], "command - high 80 ms, low 10 ms (all time high 90 ms)");
        assert_eq!(lines[2..], ["  #", "  |", " #|", "_||", "", "121", "mss"]);
    }
}

//! HOTKEYS: which keys take the most time and bytes.

use std::collections::BTreeSet;

use command::{Flag, Refusal};
use resp::{Args, Writer};
use stdx::UnixMillis;
use stdx::slot::{SLOT_COUNT, Slot, runs_of};

use super::{Answer, ControlCommand, Local, Outcome, Question, all_done, container, local, node, number};
use crate::stats::hot::{Hot, Plan, Weights};

/// Most keys that GET answers.
const KEY_COUNT_MAX: i64 = 64;
const KEY_COUNT_DEFAULT: i64 = 10;

const FLAGS: &[Flag] = &[Flag::Admin, Flag::Noscript];
const TIPS: &[&str] = &["request_policy:special", "response_policy:special"];

pub(super) const HOTKEYS: ControlCommand = ControlCommand {
    since: "8.6.0",
    summary: "Commands on the keys that take the most time and bytes.",
    subcommands: &[
        ControlCommand {
            since: "8.6.0",
            summary: "Returns the keys that have taken the most since START.",
            complexity: "O(K) where K is the number of keys.",
            flags: FLAGS,
            tips: TIPS,
            ..node("get", 2, |_, _| Ok(Question::Hot), get)
        },
        ControlCommand {
            since: "8.6.0",
            summary: "Lists the subcommands.",
            flags: &[Flag::Loading, Flag::Stale],
            ..local("help", 2, |_, _, writer| {
                super::write_help(writer, "HOTKEYS", HOTKEYS.subcommands);
                Ok(())
            })
        },
        ControlCommand {
            since: "8.6.0",
            summary: "Forgets what was counted.",
            flags: FLAGS,
            tips: TIPS,
            ..node("reset", 2, reset, super::join_done)
        },
        ControlCommand {
            since: "8.6.0",
            summary: "Begins to count what keys take of time and bytes.",
            syntax: "METRICS count [CPU] [NET] [COUNT k] [DURATION seconds] [SAMPLE ratio] [SLOTS count slot [slot ...]]",
            flags: FLAGS,
            tips: TIPS,
            ..node("start", -2, start, super::join_done)
        },
        ControlCommand {
            since: "8.6.0",
            summary: "Ends counting, and keeps what was counted.",
            flags: FLAGS,
            tips: TIPS,
            ..node("stop", 2, |local, _| Ok(Question::StopHot(cpu_us(local))), stop)
        },
    ],
    ..container("hotkeys")
};

/// What the process has used of processors so far: for its own work, and in the system.
fn cpu_us(local: &Local<'_>) -> (u64, u64) {
    (local.core.host.report.cpu_user_us, local.core.host.report.cpu_system_us)
}

fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

fn start(local: &mut Local<'_>, args: Args<'_>) -> Result<Question, Refusal> {
    let mut plan = Plan {
        counts_time: false,
        counts_bytes: false,
        key_count: KEY_COUNT_DEFAULT as usize,
        ratio: 1,
        slots: BTreeSet::new(),
        began: local.now.unix,
        ends: None,
        cpu_us: cpu_us(local),
        seed: local.now.instant.as_nanos(),
    };
    if !args.get(2).is_some_and(|word| is(word, "metrics")) {
        return Err(Refusal::new("ERR METRICS parameter is required"));
    }
    let mut next = parse_metrics(&mut plan, args)?;
    while let Some(option) = args.get(next) {
        let value = args.get(next + 1).ok_or(Refusal::SYNTAX)?;
        let within = |first: i64, last: i64, text: &'static str| {
            number(value).filter(|number| (first..=last).contains(number)).ok_or(Refusal::new(text))
        };
        next += 2;
        if is(option, "count") {
            plan.key_count = within(1, KEY_COUNT_MAX, "ERR COUNT must be between 1 and 64")? as usize;
        } else if is(option, "duration") {
            let seconds = within(1, 1_000_000, "ERR DURATION must be between 1 and 1000000")?;
            plan.ends = Some(UnixMillis(plan.began.0 + seconds * 1_000));
        } else if is(option, "sample") {
            plan.ratio = within(1, i64::from(i32::MAX), "ERR SAMPLE ratio must be positive")?.unsigned_abs();
        } else if is(option, "slots") {
            if !local.core.settings.cluster_enabled {
                return Err(Refusal::new("ERR SLOTS parameter cannot be used in non-cluster mode"));
            }
            if !plan.slots.is_empty() {
                return Err(Refusal::new("ERR SLOTS parameter already specified"));
            }
            let count = within(1, SLOT_COUNT as i64, "ERR SLOTS count must be between 1 and 16384")? as usize;
            next = parse_slots(&mut plan.slots, args, next, count)?;
        } else {
            return Err(Refusal::SYNTAX);
        }
    }
    Ok(Question::StartHot(Box::new(plan)))
}

/// METRICS, a number, and so many words. Words that this version does not know are passed over. Where it goes on.
fn parse_metrics(plan: &mut Plan, args: Args<'_>) -> Result<usize, Refusal> {
    let count = args.get(3).ok_or(Refusal::SYNTAX)?;
    let count = number(count).filter(|count| *count > 0).ok_or(Refusal::new("ERR METRICS count must be positive"))?;
    let words: Vec<&[u8]> = args.iter().skip(4).take(usize::try_from(count).unwrap_or(usize::MAX)).collect();
    for word in &words {
        let (counts, name) = match () {
            () if is(word, "cpu") => (&mut plan.counts_time, "CPU"),
            () if is(word, "net") => (&mut plan.counts_bytes, "NET"),
            () => continue,
        };
        if std::mem::replace(counts, true) {
            return Err(Refusal::new(format!("ERR METRICS {name} defined more than once")));
        }
    }
    if words.len() as i64 != count {
        return Err(Refusal::new("ERR METRICS count does not match number of metric types provided"));
    }
    if !plan.counts_time && !plan.counts_bytes {
        return Err(Refusal::new("ERR METRICS no valid metrics passed"));
    }
    Ok(4 + words.len())
}

fn parse_slots(slots: &mut BTreeSet<u16>, args: Args<'_>, first: usize, count: usize) -> Result<usize, Refusal> {
    for index in first..first + count {
        let word = args.get(index).ok_or(Refusal::new("ERR not enough slot numbers provided"))?;
        let slot = number(word).and_then(|slot| u16::try_from(slot).ok());
        let slot = slot.filter(|slot| usize::from(*slot) < SLOT_COUNT);
        if !slots.insert(slot.ok_or(Refusal::new("ERR Invalid or out of range slot"))?) {
            return Err(Refusal::new("ERR duplicate slot number"));
        }
    }
    Ok(first + count)
}

fn reset(local: &mut Local<'_>, _: Args<'_>) -> Result<Question, Refusal> {
    if local.core.timings.hot_is_active() {
        return Err(Refusal::new("ERR hotkey tracking session in progress, stop tracking first"));
    }
    Ok(Question::ResetHot)
}

fn stop(_: &mut Local<'_>, _: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    if super::sum_counts(answers) > 0 {
        writer.ok()
    } else {
        writer.null()
    }
    Ok(())
}

fn get(local: &mut Local<'_>, _: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    let mut joined: Option<Hot> = None;
    let mut rest = Vec::new();
    for answer in answers {
        match answer {
            Answer::Hot(None) => {}
            Answer::Hot(Some(hot)) => match &mut joined {
                None => joined = Some(*hot),
                Some(joined) => {
                    joined.time.join(&hot.time);
                    joined.bytes.join(&hot.bytes);
                }
            },
            other => rest.push(other),
        }
    }
    all_done(rest)?;
    match joined {
        None => writer.null(),
        Some(hot) => write(&hot, local.now.unix, cpu_us(local), writer),
    }
    Ok(())
}

/// An array of one map, so that those of several nodes can be put one behind the other.
fn write(hot: &Hot, unix: UnixMillis, cpu_us: (u64, u64), writer: &mut Writer) {
    let Plan { slots, ratio, .. } = &hot.plan;
    let (until, cpu_us) = hot.stopped.unwrap_or((unix, cpu_us));
    let until = hot.plan.ends.map_or(until, |end| end.min(until));
    let mut fields: Vec<(&str, u64)> = Vec::new();
    let us = |nanos: u64| nanos / 1_000;
    let with_slots = |fields: &mut Vec<_>, names: [&'static str; 3], weights: &Weights, unit: fn(u64) -> u64| {
        if !slots.is_empty() && *ratio > 1 {
            fields.push((names[0], unit(weights.sampled)));
        }
        if !slots.is_empty() {
            fields.push((names[1], unit(weights.selected)));
        }
        fields.push((names[2], unit(weights.all)));
    };
    let names = ["sampled-commands-selected-slots-us", "all-commands-selected-slots-us", "all-commands-all-slots-us"];
    with_slots(&mut fields, names, &hot.time, us);
    let names = [
        "net-bytes-sampled-commands-selected-slots",
        "net-bytes-all-commands-selected-slots",
        "net-bytes-all-commands-all-slots",
    ];
    with_slots(&mut fields, names, &hot.bytes, |bytes| bytes);
    fields.push(("collection-start-time-unix-ms", hot.plan.began.0.unsigned_abs()));
    fields.push(("collection-duration-ms", until.0.saturating_sub(hot.plan.began.0).unsigned_abs()));
    if hot.plan.counts_time {
        fields.push(("total-cpu-time-user-ms", cpu_us.0.saturating_sub(hot.plan.cpu_us.0) / 1_000));
        fields.push(("total-cpu-time-sys-ms", cpu_us.1.saturating_sub(hot.plan.cpu_us.1) / 1_000));
    }
    if hot.plan.counts_bytes {
        fields.push(("total-net-bytes", hot.bytes.all));
    }
    let lists = usize::from(hot.plan.counts_time) + usize::from(hot.plan.counts_bytes);
    writer.array(1);
    writer.map(3 + fields.len() + lists);
    writer.bulk(b"tracking-active");
    writer.integer(i64::from(hot.is_active(unix)));
    writer.bulk(b"sample-ratio");
    writer.integer(*ratio as i64);
    writer.bulk(b"selected-slots");
    write_slots(slots, writer);
    for (name, value) in fields {
        writer.bulk(name.as_bytes());
        writer.integer(value as i64);
    }
    if hot.plan.counts_time {
        write_keys("by-cpu-time-us", &hot.time, hot.plan.key_count, us, writer);
    }
    if hot.plan.counts_bytes {
        write_keys("by-net-bytes", &hot.bytes, hot.plan.key_count, |bytes| bytes, writer);
    }
}

fn write_keys(name: &str, weights: &Weights, count: usize, unit: impl Fn(u64) -> u64, writer: &mut Writer) {
    let heaviest = weights.heaviest(count);
    writer.bulk(name.as_bytes());
    writer.array(2 * heaviest.len());
    for (key, weight) in heaviest {
        writer.bulk(key);
        writer.integer(unit(weight) as i64);
    }
}

/// Runs of slots, each by its ends, or by its only slot. All slots are one run.
fn write_slots(slots: &BTreeSet<u16>, writer: &mut Writer) {
    let mut runs = runs_of(slots.iter().copied().map(Slot));
    if runs.is_empty() {
        runs.push((Slot(0), Slot(SLOT_COUNT as u16 - 1)));
    }
    writer.array(runs.len());
    for (first, last) in runs {
        writer.array(if first == last { 1 } else { 2 });
        writer.integer(first.0.into());
        if first != last {
            writer.integer(last.0.into());
        }
    }
}

//! Judgements about one server, each a function of readings.

use std::collections::BTreeMap;

use crate::finding::{Finding, HEARSAY};
use crate::host::{Consumer, Thread};
use crate::host_checks::{bytes, millis, name_consumers, percent};
use crate::parse;
use crate::probes::percentile;
use crate::talk::{Client, HotKey, Info, KeySample, PastStall, SlowCommand};
use crate::thresholds::*;
use crate::watch::{Shares, Watch};

/// How the server answered. `explained` is the share of time that other findings account for, `events` what the server
/// itself has noted as delays.
pub fn answers(watch: &Watch, explained: f64, is_local: bool, events: &str) -> Finding {
    if watch.answers_ms.is_empty() {
        let why = watch.failure.clone().unwrap_or_else(|| "no PING was answered in the time allowed".to_owned());
        return Finding::unknown("server.answers", why);
    }
    let shares = watch.stalls();
    let worst_ms = watch.answers_ms.last().copied().unwrap_or(0.0);
    let p99_ms = percentile(&watch.answers_ms, 99.0);
    let value = format!("p50 {}, p99 {}, max {}", millis(watch.median_ms()), millis(p99_ms), millis(worst_ms));
    let mut detail = format!(
        "{} of {} answers stalled, for {} of the time",
        shares.count,
        watch.answers_ms.len(),
        percent(shares.total)
    );
    if is_local && shares.count > 0 {
        let part = |share: f64| percent(share / shares.total.max(1e-9));
        let [running, waiting] = [shares.running, shares.waiting].map(part);
        let [stopped, disk] = [shares.stopped, shares.disk].map(part);
        detail += &format!(
            "; meanwhile its busiest thread ran for {running} and waited for a processor for {waiting}; \
             it was stopped for {stopped}, a thread waited for a disk for {disk}"
        );
    }
    if !events.is_empty() {
        detail += &format!("; it has noted delays: {events}");
    }
    if let Some(why) = &watch.failure {
        detail += &format!("; then: {why}");
    }
    let advice = if is_local && shares.running > shares.total / 2.0 {
        "it is busy with commands: lower slowlog-log-slower-than, and see which take long and which are many"
    } else if is_local {
        "see what its threads wait for: the other findings, and the log of the server"
    } else {
        "run doctor on the host of the server: from here its threads cannot be seen"
    };
    Finding::fine("server.answers", value, format!("stalls at most {} of the time", percent(STALL_SHARE_MAX)))
        .detail(detail)
        .guilty_if(
            shares.total > STALL_SHARE_MAX || watch.failure.is_some(),
            // It is a symptom: what it has a cause for stands before it.
            (shares.total - explained).max(0.0) * HEARSAY,
            advice,
        )
}

/// What the black box of a server tells of the last day, beside what this window shows.
pub fn past_stalls(stalls: Result<&[PastStall], &str>, now_seconds: u64, up_seconds: u64) -> Finding {
    let stalls = match stalls {
        Ok(stalls) => stalls,
        Err(why) => return Finding::unknown("server.stalls", why),
    };
    if up_seconds <= START_SECONDS {
        let why = format!(
            "the server started {up_seconds} s ago, and what stalls in its first {START_SECONDS} s says nothing of its \
             host; HOLDFAST STALLS lists them"
        );
        return Finding::unknown("server.stalls", why);
    }
    let seconds = (PAST_STALL_HOURS * 3_600).min(up_seconds - START_SECONDS);
    let since_ms = now_seconds.saturating_sub(seconds) * 1_000;
    let recent: Vec<&PastStall> = stalls.iter().filter(|stall| stall.ended_ms >= since_ms).collect();
    let reference = format!("none of {} because of the host", millis(PAST_STALL_MS as f64));
    let total_ms = recent.iter().map(|stall| stall.micros).sum::<u64>() as f64 / 1e3;
    let value = format!("{} stalls, {}", recent.len(), millis(total_ms));
    let of_host = recent.iter().filter(|stall| stall.cause != "work").max_by_key(|stall| stall.micros);
    let worst = of_host.or(recent.iter().max_by_key(|stall| stall.micros));
    let detail = worst.map(|worst| {
        let ago_s = (now_seconds * 1_000).saturating_sub(worst.ended_ms) / 1_000;
        let of_cause = recent.iter().filter(|stall| stall.cause == worst.cause).map(|stall| stall.micros).sum::<u64>();
        format!(
            "the longest of cause '{}' {ago_s} s ago: {} while its core did '{}'; all of this cause: {}",
            worst.cause,
            millis(worst.micros as f64 / 1e3),
            worst.work,
            millis(of_cause as f64 / 1e3)
        )
    });
    let is_guilty = of_host.is_some_and(|worst| worst.micros >= PAST_STALL_MS * 1_000);
    Finding::fine("server.stalls", value, reference)
        .detail(detail.unwrap_or_else(|| match stalls.len() {
            0 => "the server has kept none".to_owned(),
            _ => format!("none of the last day; those of the first {START_SECONDS} s after its start do not count"),
        }))
        // It is over: what holds the server back now stands before it.
        .guilty_if(is_guilty, 0.0, "see HOLDFAST STALLS: when, and what the host did each time")
}

/// Whether the process was stopped while it had to answer.
pub fn stops(shares: Option<&Shares>) -> Finding {
    match shares {
        None => Finding::unknown("server.stops", NOT_HERE),
        Some(shares) => Finding::fine("server.stops", percent(shares.stopped), "never")
            .detail(format!("the state of its process (T) while {} answers stalled", shares.count))
            .guilty_if(
                shares.stopped > 0.0,
                shares.stopped,
                "something sends it SIGSTOP: a debugger, a backup tool, a freezer of containers, or a shell",
            ),
    }
}

/// Why nothing is known of a process.
pub const NOT_HERE: &str = "the server does not run on this host: run doctor there";

/// Threads by their numbers.
pub type Threads = BTreeMap<u32, Thread>;

/// What the threads of a server have waited for a processor. `throttled` is the share that a quota explains.
pub fn waiting(threads: Option<(&Threads, &Threads)>, seconds: f64, throttled: f64, consumers: &[Consumer]) -> Finding {
    let Some((before, after)) = threads else { return Finding::unknown("cpu.waiting", NOT_HERE) };
    let each = after.iter().filter_map(|(id, after)| {
        let before = before.get(id)?;
        let run = after.times.run_ns.saturating_sub(before.times.run_ns) as f64 / 1e9;
        let wait = after.times.wait_ns.saturating_sub(before.times.wait_ns) as f64 / 1e9;
        Some((wait, run, after))
    });
    let Some((wait, run, thread)) = each.max_by(|a, b| a.0.total_cmp(&b.0)) else {
        return Finding::unknown("cpu.waiting", "/proc shows no thread of it with schedstat");
    };
    let ratio = if wait > 0.0 { wait / (run + wait) } else { 0.0 };
    let of_window = (wait / seconds).min(1.0);
    // A thread that is throttled waits, too.
    let stalled = (of_window - throttled).max(0.0);
    let detail = format!(
        "thread {} ran for {} and waited for {} of the time; {}",
        thread.name,
        percent(run / seconds),
        percent(of_window),
        name_consumers(consumers)
    );
    let reference =
        format!("at most {} of wanted time, or {} of all", percent(WAITING_MAX), percent(WAITING_WINDOW_MIN));
    Finding::fine("cpu.waiting", percent(ratio), reference).detail(detail).guilty_if(
        ratio > WAITING_MAX && stalled > WAITING_WINDOW_MIN,
        stalled,
        "give the server processors of its own (taskset, cpuset, CPUAffinity=), or move the others away",
    )
}

/// What of the server is in swap, by `/proc/PID/status`.
pub fn swapped(status: Result<&str, &str>) -> Finding {
    let text = match status {
        Ok(text) => text,
        Err(why) => return Finding::unknown("memory.swapped", why),
    };
    let Some(kilobytes) = parse::status_number(text, "VmSwap") else {
        return Finding::unknown("memory.swapped", "the kernel does not tell VmSwap of the process");
    };
    let reference = format!("at most {}", bytes(SWAPPED_KB_MAX as f64 * 1024.0));
    Finding::fine("memory.swapped", bytes(kilobytes as f64 * 1024.0), reference).guilty_if(
        kilobytes > SWAPPED_KB_MAX,
        0.0,
        "requests for these keys wait for the disk: free memory, and set vm.swappiness to 1",
    )
}

/// Files that the process may open, for so many clients.
pub fn files(limits: Result<&str, &str>, clients_max: Option<u64>) -> Finding {
    let text = match limits {
        Ok(text) => text,
        Err(why) => return Finding::unknown("limits.files", why),
    };
    match (parse::soft_limit(text, "Max open files"), clients_max) {
        (Some(limit), Some(clients)) => {
            let needed = clients.saturating_add(FILES_RESERVED);
            let value = if limit == u64::MAX { "unlimited".to_owned() } else { limit.to_string() };
            Finding::fine("limits.files", value, format!("at least {needed} (maxclients and {FILES_RESERVED})"))
                .guilty_if(limit < needed, 0.0, "raise LimitNOFILE= of the unit, or ulimit -n: clients will be refused")
        }
        _ => Finding::unknown("limits.files", "the limit or maxclients is not told"),
    }
}

/// Calls and microseconds of each command by INFO commandstats.
pub fn command_times(fields: &BTreeMap<String, String>) -> BTreeMap<String, (u64, u64)> {
    let times = fields.iter().filter_map(|(name, value)| {
        let field = |wanted: &str| value.split(',').find_map(|part| part.strip_prefix(wanted))?.parse().ok();
        Some((name.strip_prefix("cmdstat_")?.to_owned(), (field("calls=")?, field("usec=")?)))
    });
    times.collect()
}

/// The slow log and the times of commands.
#[derive(Debug)]
pub struct Commands<'a> {
    /// The slow log.
    pub slow: Result<&'a [SlowCommand], &'a str>,
    /// Unix seconds of the server's clock, at the end.
    pub now: u64,
    /// Seconds of the window.
    pub seconds: f64,
    /// INFO commandstats at both ends.
    pub before: &'a BTreeMap<String, (u64, u64)>,
    /// See `before`.
    pub after: &'a BTreeMap<String, (u64, u64)>,
}

/// Commands that took long: in the window, or shortly before it.
pub fn slow_commands(commands: &Commands<'_>) -> Finding {
    let slow = match commands.slow {
        Ok(slow) => slow,
        Err(why) => return Finding::unknown("load.slow_commands", why),
    };
    let begin = commands.now.saturating_sub(commands.seconds.ceil() as u64);
    let share = |seconds: f64, since: u64| {
        let micros: u64 = slow.iter().filter(|it| it.at + it.micros / 1_000_000 >= since).map(|it| it.micros).sum();
        micros as f64 / 1e6 / seconds
    };
    let within = share(commands.seconds, begin).min(1.0);
    let earlier_seconds = SLOW_LOG_SECONDS as f64 + commands.seconds;
    let since = commands.now.saturating_sub(earlier_seconds as u64);
    let recently = share(earlier_seconds, since).min(1.0);
    let worst = slow.iter().filter(|it| it.at >= since).max_by_key(|it| it.micros);
    let worst_ms = worst.map_or(0.0, |it| it.micros as f64 / 1e3);
    // Many calls that each stay below the slow log's limit.
    let costly = commands.after.iter().filter_map(|(name, after)| {
        let before = commands.before.get(name).copied().unwrap_or_default();
        let (calls, micros) = (after.0.checked_sub(before.0)?, after.1.checked_sub(before.1)?);
        let mean_ms = micros as f64 / 1e3 / calls.max(1) as f64;
        (mean_ms * 1e3 > COSTLY_CALL_MICROS).then_some((micros as f64 / 1e6 / commands.seconds, mean_ms, name))
    });
    let costly = costly.max_by(|a, b| a.0.total_cmp(&b.0));
    let costly_share = costly.map_or(0.0, |(share, ..)| share.min(1.0));
    let count = slow.iter().filter(|it| it.at >= since).count();
    let value = match worst {
        Some(_) => format!("longest {}, {} of the window", millis(worst_ms), percent(within.max(costly_share))),
        None => format!("none in the log, {} of the window", percent(costly_share)),
    };
    let mut detail = match worst {
        Some(worst) => format!("{count} in the last {earlier_seconds:.0} s; the longest: {}", worst.words),
        None => "the slow log of the last minutes is empty".to_owned(),
    };
    if let Some((share, mean_ms, name)) = costly.filter(|(share, ..)| *share > SLOW_SHARE_MAX) {
        detail += &format!("; {name} takes {} a call, {} of the window", millis(mean_ms), percent(share));
    }
    let is_guilty = worst_ms >= SLOW_COMMAND_MS || within > SLOW_SHARE_MAX || costly_share > SLOW_SHARE_MAX;
    let reference = format!("each below {}, {} of the window", millis(SLOW_COMMAND_MS), percent(SLOW_SHARE_MAX));
    Finding::fine("load.slow_commands", value, reference).detail(detail).guilty_if(
        is_guilty,
        within.max(costly_share).max(recently),
        "replace it by SCAN and its kin, split its data or its work, or send it to a replica",
    )
}

/// A call that takes longer on average is no small command, in microseconds.
const COSTLY_CALL_MICROS: f64 = 1_000.0;

/// How large replies are. `own_requests` are those of the examination, `largest_key` has so many bytes, and `commands`
/// is the share of time that slow commands took: if they made so many bytes in it, they were slow because they did.
pub fn large_replies(first: &Info, last: &Info, own_requests: u64, largest_key: u64, commands: f64) -> Finding {
    let rise = |name: &str| Some((last.number(name)? - first.number(name)?).max(0.0));
    let (Some(sent), Some(calls)) = (rise("total_net_output_bytes"), rise("total_commands_processed")) else {
        return Finding::unknown("load.large_replies", "INFO does not count bytes and commands");
    };
    let seconds = (last.moment - first.moment).as_secs_f64().max(1e-3);
    let calls = (calls - own_requests as f64).max(1.0);
    let (mean, rate) = (sent / calls, sent / seconds);
    let share = (rate / REPLY_BYTES_PER_SECOND).min(1.0);
    let copied = if rate > commands * COPY_BYTES_PER_SECOND_MIN { commands * 1.01 } else { 0.0 };
    Finding::fine(
        "load.large_replies",
        format!("{} a reply, {}/s", bytes(mean), bytes(rate)),
        format!(
            "at most {} on average, or {}/s in all",
            bytes(REPLY_BYTES_MAX),
            bytes(REPLY_SHARE_MAX * REPLY_BYTES_PER_SECOND)
        ),
    )
    .detail(match largest_key {
        0 => String::new(),
        size => format!("the largest key that was looked at has {}", bytes(size as f64)),
    })
    .guilty_if(
        share > REPLY_SHARE_MAX && (mean > REPLY_BYTES_MAX || largest_key > BIG_KEY_BYTES),
        share.max(copied),
        "ask for parts (GETRANGE, HMGET, LRANGE, SCAN), or store large values in pieces or elsewhere",
    )
}

/// Commands that make more bytes than this in a second of their time do little else.
const COPY_BYTES_PER_SECOND_MIN: f64 = 1e8;

/// Clients that connect again and again. `own` are connections of the examination.
pub fn connections(first: &Info, last: &Info, own: u64) -> Finding {
    let rise = |name: &str| Some(last.count(name)?.saturating_sub(first.count(name)?));
    let Some(count) = rise("total_connections_received") else {
        return Finding::unknown("load.connections", "INFO does not count connections");
    };
    let seconds = (last.moment - first.moment).as_secs_f64().max(1e-3);
    let rate = count.saturating_sub(own) as f64 / seconds;
    let rejected = rise("rejected_connections").unwrap_or(0);
    Finding::fine("load.connections", format!("{rate:.0}/s"), format!("at most {CONNECTIONS_PER_SECOND_MAX:.0}/s"))
        .detail(format!("{} are connected; {rejected} were refused meanwhile", last.text("connected_clients")))
        .guilty_if(
            rate > CONNECTIONS_PER_SECOND_MAX || rejected > 0,
            (rate * CONNECTION_COST_SECONDS).min(1.0),
            "use a pool of connections in each client process; CLIENT LIST shows by age and address who has none",
        )
}

/// Very large keys among those looked at.
pub fn big_keys(keys: Result<&KeySample, &str>) -> Finding {
    let sample = match keys {
        Ok(sample) => sample,
        Err(why) => return Finding::unknown("load.big_keys", why),
    };
    let reference = format!("at most {}", bytes(BIG_KEY_BYTES as f64));
    let looked = format!("{} of {} keys were looked at", sample.count, sample.all);
    let Some(largest) = sample.largest.first() else {
        return Finding::fine("load.big_keys", "no keys", reference).detail(looked);
    };
    let big = sample.largest.iter().filter(|key| key.bytes > BIG_KEY_BYTES);
    let named: Vec<String> = big.map(|key| format!("{} ({})", key.name, bytes(key.bytes as f64))).collect();
    let detail = if named.is_empty() { looked } else { format!("{looked}; {}", named.join(", ")) };
    Finding::fine("load.big_keys", bytes(largest.bytes as f64), reference).detail(detail).guilty_if(
        !named.is_empty(),
        0.0,
        "split it into many keys; read parts of it; remove it with UNLINK, not DEL",
    )
}

/// Keys that many commands are about, by the counts of the server.
pub fn hot_keys(keys: Result<&[HotKey], &str>) -> Finding {
    let keys = match keys {
        Ok(keys) => keys,
        Err(why) => return Finding::unknown("load.hot_keys", why),
    };
    let reference = format!("at most {} of one core's time", percent(HOT_KEY_SHARE_MAX));
    let Some(hottest) = keys.first() else {
        return Finding::fine("load.hot_keys", "none stands out", reference);
    };
    let told = |key: &HotKey| {
        format!(
            "{}: {} of a core's time, {} of the calls, {:.0}/s",
            key.name,
            percent(key.share),
            percent(key.calls_share),
            key.calls_per_second
        )
    };
    // Few calls that take long are slow commands, whatever the key.
    let is_hot = |key: &&HotKey| key.share > HOT_KEY_SHARE_MAX && key.calls_per_second > HOT_KEY_CALLS_MIN;
    let worst = keys.iter().find(is_hot);
    let detail = keys.iter().take(3).map(told).collect::<Vec<_>>().join("; ");
    Finding::fine("load.hot_keys", percent(worst.unwrap_or(hottest).share), reference).detail(detail).guilty_if(
        worst.is_some(),
        worst.map_or(0.0, |key| key.share.min(1.0)),
        "one key is served by one core, however many there are: cache it in the clients (CLIENT TRACKING), spread it over \
         several keys, or read it from replicas",
    )
}

/// Clients that do not read their replies.
pub fn client_buffers(clients: Result<&[Client], &str>) -> Finding {
    let clients = match clients {
        Ok(clients) => clients,
        Err(why) => return Finding::unknown("load.client_buffers", why),
    };
    let worst = clients.iter().max_by_key(|client| client.unread_bytes).cloned().unwrap_or_default();
    let all: u64 = clients.iter().map(|client| client.unread_bytes).fold(0, u64::saturating_add);
    let value = format!("{} for one, {} for all", bytes(worst.unread_bytes as f64), bytes(all as f64));
    let named = if worst.name.is_empty() { String::new() } else { format!(" ({})", worst.name) };
    let detail = match worst.unread_bytes {
        0 => format!("{} clients", clients.len()),
        _ => format!("{}{named}, last command {}", worst.address, worst.command),
    };
    Finding::fine("load.client_buffers", value, format!("at most {} for one", bytes(UNREAD_BYTES as f64)))
        .detail(detail)
        .guilty_if(
            worst.unread_bytes > UNREAD_BYTES,
            0.0,
            "that client reads too slowly or asks for too much: CLIENT KILL it, and set client-output-buffer-limit",
        )
}

/// How much memory is held in vain.
pub fn fragmentation(info: &Info) -> Finding {
    let (Some(resident), Some(used)) = (info.count("used_memory_rss"), info.count("used_memory")) else {
        return Finding::unknown("memory.fragmentation", "INFO does not tell the memory");
    };
    let ratio = resident as f64 / used.max(1) as f64;
    let vain = resident.saturating_sub(used);
    let reference = format!("at most {FRAGMENTATION_MAX}, or {} unused", bytes(FRAGMENTATION_BYTES_MIN as f64));
    Finding::fine("memory.fragmentation", format!("{ratio:.2}"), reference)
        .detail(format!("{} resident, {} used", bytes(resident as f64), bytes(used as f64)))
        .guilty_if(
            ratio > FRAGMENTATION_MAX && vain > FRAGMENTATION_BYTES_MIN,
            0.0,
            "CONFIG SET activedefrag yes, MEMORY PURGE, or restart it in a quiet hour",
        )
}

/// How near the server is to its memory limit.
pub fn memory_limit(first: &Info, last: &Info) -> Finding {
    let (Some(used), Some(limit)) = (last.count("used_memory"), last.count("maxmemory")) else {
        return Finding::unknown("memory.limit", "INFO does not tell the memory");
    };
    if limit == 0 {
        let finding = Finding::fine("memory.limit", format!("{} used, no limit", bytes(used as f64)), "a limit");
        return finding.consider("set maxmemory: without it the kernel ends the server when memory is full");
    }
    let share = used as f64 / limit as f64;
    let evicted = last.count("evicted_keys").unwrap_or(0).saturating_sub(first.count("evicted_keys").unwrap_or(0));
    let policy = last.text("maxmemory_policy");
    let is_refusing = policy == "noeviction" && share > MEMORY_USED_MAX;
    Finding::fine("memory.limit", percent(share), format!("at most {}", percent(MEMORY_USED_MAX)))
        .detail(format!("{evicted} keys were evicted meanwhile; maxmemory-policy {policy}"))
        // A cache at its limit evicts, as it should.
        .guilty_if(is_refusing, 0.0, "raise maxmemory, delete keys, or choose an eviction policy: writes are refused")
}

/// What forks cost.
pub fn fork(first: &Info, last: &Info) -> Finding {
    if last.is_holdfast() {
        return Finding::fine("persistence.fork", "never forks", "never");
    }
    let Some(micros) = last.number("latest_fork_usec") else {
        return Finding::unknown("persistence.fork", "INFO does not tell latest_fork_usec");
    };
    let ms = micros / 1e3;
    let seconds = (last.moment - first.moment).as_secs_f64().max(1e-3);
    let forks = last.count("total_forks").unwrap_or(0).saturating_sub(first.count("total_forks").unwrap_or(0));
    let busy: Vec<&str> = ["rdb_bgsave_in_progress", "aof_rewrite_in_progress"]
        .into_iter()
        .filter(|field| last.text(field) == "1" || first.text(field) == "1")
        .collect();
    let gigabytes = last.number("used_memory").unwrap_or(0.0) / 1e9;
    let per_gb = if gigabytes > 0.1 { format!(", {:.0} ms/GB", ms / gigabytes) } else { String::new() };
    let under_way = if busy.is_empty() { String::new() } else { format!("; under way: {}", busy.join(", ")) };
    Finding::fine("persistence.fork", format!("{}{per_gb}", millis(ms)), format!("at most {}", millis(FORK_MS)))
        .detail(format!("{forks} forks meanwhile{under_way}"))
        .guilty_if(
            ms > FORK_MS,
            (forks as f64 * micros / 1e6 / seconds).min(1.0),
            "save on a replica, keep instances small, or switch transparent huge pages off",
        )
}

/// Waiting for the server's own log. `disk` is the share of the window for which answers were late while one of its
/// threads waited for a disk.
pub fn own_syncs(first: &Info, last: &Info, disk: f64) -> Finding {
    let is_waiting = disk > STALL_SHARE_MAX;
    let advice = "the disk is too slow for the log: see disk.sync and disk.writers";
    if last.is_holdfast() {
        let (Some(count), Some(mean)) = (last.number("log_syncs"), last.number("log_sync_mean_usec")) else {
            return Finding::unknown("persistence.sync", "INFO does not tell the syncs of its log");
        };
        let before = (first.number("log_syncs").unwrap_or(0.0), first.number("log_sync_mean_usec").unwrap_or(0.0));
        let rise = count - before.0;
        // Means of all syncs since the start, of which those before the window are taken away.
        let spent = (count * mean - before.0 * before.1).max(0.0);
        let seconds = (last.moment - first.moment).as_secs_f64().max(1e-3);
        let mean_ms = if rise > 0.0 { spent / rise / 1e3 } else { mean / 1e3 };
        let is_slow = mean_ms > LOG_SYNC_MEAN_MS && rise > 0.0;
        let worst = last.number("log_sync_max_usec").unwrap_or(0.0) / 1e3;
        let excess = (1.0 - LOG_SYNC_MEAN_MS / mean_ms.max(LOG_SYNC_MEAN_MS)) * (spent / 1e6 / seconds).min(1.0);
        return Finding::fine("persistence.sync", millis(mean_ms), format!("at most {}", millis(LOG_SYNC_MEAN_MS)))
            .detail(format!("{rise:.0} syncs meanwhile; the longest since the start took {}", millis(worst)))
            .guilty_if(is_slow || is_waiting, excess.max(disk), advice);
    }
    if last.text("aof_enabled") != "1" {
        let finding = Finding::fine("persistence.sync", "no append-only file", "none");
        return finding.guilty_if(is_waiting, disk, "its threads wait for the disk: see disk.sync, memory.swap");
    }
    let rise = |name: &str| last.count(name).unwrap_or(0).saturating_sub(first.count(name).unwrap_or(0));
    let delayed = rise("aof_delayed_fsync");
    let value = format!("{delayed} writes waited for a sync, {} of the time", percent(disk));
    Finding::fine("persistence.sync", value, "none").guilty_if(delayed > 0 || is_waiting, disk, advice)
}

/// What an acknowledgement means. It is not judged, but told: many want it so, and many do not know.
pub fn durability(info: &Info, configuration: Result<&BTreeMap<String, String>, &str>) -> Finding {
    const CHECK: &str = "persistence.durability";
    const REFERENCE: &str = "as you have decided";
    if info.text("aof_last_write_status") == "err" || info.text("rdb_last_bgsave_status") == "err" {
        let finding = Finding::fine(CHECK, "the last write or save failed", "ok");
        return finding.guilty_if(true, 0.0, "the log of the server says why: room, permissions, or memory to fork");
    }
    if info.is_holdfast() {
        return Finding::fine(CHECK, info.text("durability"), REFERENCE);
    }
    let configuration = match configuration {
        Ok(configuration) => configuration,
        Err(why) => return Finding::unknown(CHECK, why),
    };
    let value = |name: &str| configuration.get(name).map_or("", String::as_str);
    let (told, advice) = match (value("appendonly"), value("save"), value("appendfsync")) {
        ("yes", _, "always") => ("synced before the reply", ""),
        ("yes", _, "no") => ("synced when the system likes", "appendfsync everysec bounds a loss to about two seconds"),
        ("yes", ..) => ("synced within a second", "a crash loses about two seconds of acknowledged writes"),
        (_, "", _) => {
            ("nothing is kept", "a restart loses everything: fine for a cache alone; appendonly yes keeps it")
        }
        _ => ("saved at times", "a crash loses all since the last save: appendonly yes keeps it"),
    };
    Finding::fine(CHECK, told, REFERENCE).consider(advice)
}

/// A server that stalls for a larger share of the time says nothing of the network.
const STALLED_TOO_OFTEN: f64 = 0.2;

/// How far away the server is.
pub fn round_trip(watch: &Watch) -> Finding {
    if watch.reach_ms.is_empty() {
        return Finding::unknown("network.round_trip", "no connection was made in the time allowed");
    }
    let [min, median, max] = [0.0, 50.0, 100.0].map(|percent| percentile(&watch.reach_ms, percent));
    let value = format!("min {}, median {}, max {}", millis(min), millis(median), millis(max));
    let answer_ms = watch.median_ms().max(median);
    Finding::fine("network.round_trip", value, format!("median at most {}", millis(ROUND_TRIP_MS)))
        .detail(format!("of {} connections, {} more failed", watch.reach_ms.len(), watch.unreached))
        .guilty_if(
            // One that is far away is so each time. If it was near once, packets wait or are lost on the way.
            median > ROUND_TRIP_MS && min > ROUND_TRIP_FREE_MS,
            ((median - ROUND_TRIP_FREE_MS) / answer_ms).clamp(0.0, 1.0),
            "bring clients nearer to it, or send many commands at a time (pipelines, MGET); if it is near, the network \
             delays",
        )
}

/// Bytes a second through one connection. `wanted` is what clients send and receive in a second, `stalled` the share of
/// the time for which the server did not answer: then it is not the network that is measured.
pub fn throughput(rate: Result<f64, &str>, wanted: f64, stalled: f64) -> Finding {
    let rate = match rate {
        Ok(rate) => rate,
        Err(why) => return Finding::unknown("network.throughput", why),
    };
    if rate < THROUGHPUT_MIN && stalled > STALLED_TOO_OFTEN {
        return Finding::unknown("network.throughput", "the server stalled too often for a measurement");
    }
    let value = if rate > 1e9 { "over 1 GB/s".to_owned() } else { format!("{}/s", bytes(rate)) };
    let used = (wanted / rate.max(1.0)).min(1.0);
    let lacking = (1.0 - rate / THROUGHPUT_MIN).max(0.0) * HEARSAY;
    Finding::fine("network.throughput", value, format!("at least {}/s", bytes(THROUGHPUT_MIN)))
        .detail(format!("clients move {}/s", bytes(wanted)))
        .guilty_if(
            rate < THROUGHPUT_MIN,
            used.max(lacking),
            "the network is limited: look at the kind of instance, at traffic control (tc -s qdisc), at the switch",
        )
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::finding::Verdict::{self, Fine, Guilty, Unknown};
    use crate::parse::SchedStat;
    use crate::talk::KeySize;
    use crate::watch::Late;

    #[track_caller]
    fn check(finding: &Finding, verdict: Verdict, stalled: f64) {
        assert_eq!(finding.verdict, verdict, "{finding:?}");
        assert!((finding.stalled - stalled).abs() < 1e-3, "{finding:?}");
        assert!(finding.verdict != Guilty || !finding.advice.is_empty(), "{finding:?}");
        assert!(finding.verdict != Unknown || !finding.detail.is_empty(), "{finding:?}");
    }

    /// INFO at both ends of a window of ten seconds.
    fn window(first: &str, last: &str) -> (Info, Info) {
        let moment = Instant::now();
        let info = |text: &str, moment| Info { moment, fields: parse::info(&text.replace(' ', "\n")) };
        (info(first, moment), info(last, moment + Duration::from_secs(10)))
    }

    fn watched(slow_ms: f64, late: Late) -> Watch {
        let mut answers_ms = vec![0.1; 99];
        answers_ms.push(slow_ms);
        Watch { answers_ms, late: vec![late], seconds: 10.0, ..Watch::default() }
    }

    #[test]
    fn late_answers_are_a_symptom_that_counts_where_no_cause_was_found() {
        check(&answers(&watched(3.0, Late::default()), 0.0, true, ""), Fine, 0.0);
        let busy = Late { total_ms: 2_000.0, running_ms: 1_900.0, ..Late::default() };
        let found = answers(&watched(2_000.0, busy), 0.0, true, "command 900 ms");
        check(&found, Guilty, 0.1);
        assert!(found.detail.contains("ran for 95.0 %") && found.detail.ends_with("command 900 ms"), "{found:?}");
        check(&answers(&watched(2_000.0, busy), 0.5, true, ""), Guilty, 0.0);
        assert!(answers(&watched(2_000.0, busy), 0.0, false, "").advice.contains("on the host of the server"));
        let lost = Watch { failure: Some("PING: broken pipe".into()), ..Watch::default() };
        check(&answers(&lost, 0.0, true, ""), Unknown, 0.0);
        let gone = Watch { failure: Some("PING: broken pipe".into()), ..watched(3.0, Late::default()) };
        assert!(answers(&gone, 0.0, true, "").is_guilty());
    }

    #[test]
    fn a_stopped_process_is_named() {
        check(&stops(None), Unknown, 0.0);
        check(&stops(Some(&Shares { total: 0.5, running: 0.5, ..Shares::default() })), Fine, 0.0);
        check(&stops(Some(&Shares { total: 0.5, stopped: 0.4, ..Shares::default() })), Guilty, 0.4);
    }

    #[test]
    fn waiting_for_a_processor_is_what_no_quota_explains() {
        let thread = |run_ms: u64, wait_ms: u64| {
            let times = SchedStat { run_ns: run_ms * 1_000_000, wait_ns: wait_ms * 1_000_000 };
            BTreeMap::from([(1, Thread { name: "core-0".into(), processor: 0, times })])
        };
        let judge =
            |after: &BTreeMap<u32, Thread>, throttled| waiting(Some((&thread(10, 10), after)), 10.0, throttled, &[]);
        check(&judge(&thread(1_010, 20), 0.0), Fine, 0.0);
        check(&judge(&thread(1_010, 1_010), 0.0), Guilty, 0.1);
        check(&judge(&thread(1_010, 1_010), 0.1), Fine, 0.0);
        // Half of next to nothing.
        check(&judge(&thread(20, 20), 0.0), Fine, 0.0);
        check(&waiting(None, 10.0, 0.0, &[]), Unknown, 0.0);
        check(&waiting(Some((&BTreeMap::new(), &BTreeMap::new())), 10.0, 0.0, &[]), Unknown, 0.0);
    }

    #[test]
    fn the_process_has_limits_and_memory() {
        check(&swapped(Ok("VmSwap: 0 kB")), Fine, 0.0);
        check(&swapped(Ok("VmSwap: 5000 kB")), Guilty, 0.0);
        check(&swapped(Ok("")), Unknown, 0.0);
        check(&swapped(Err(NOT_HERE)), Unknown, 0.0);
        let limits = "Max open files            1024                20000                files";
        check(&files(Ok(limits), Some(900)), Fine, 0.0);
        check(&files(Ok(limits), Some(10_000)), Guilty, 0.0);
        check(&files(Ok("Max open files unlimited"), Some(u64::MAX)), Fine, 0.0);
        check(&files(Ok(limits), None), Unknown, 0.0);
        check(&files(Err(NOT_HERE), Some(1)), Unknown, 0.0);
    }

    fn commands<'a>(slow: &'a [SlowCommand], before: &'a Times, after: &'a Times) -> Commands<'a> {
        Commands { slow: Ok(slow), now: 10_000, seconds: 10.0, before, after }
    }

    type Times = BTreeMap<String, (u64, u64)>;

    #[test]
    fn what_the_host_did_last_night_is_told_and_what_the_server_did_itself_is_not_held_against_it() {
        let stall = |ended_ms, micros, cause: &str| PastStall {
            ended_ms,
            micros,
            cause: cause.to_owned(),
            work: "sleep".to_owned(),
        };
        let now = 1_000_000;
        let judge = |stalls: &[PastStall]| past_stalls(Ok(stalls), now, 900_000);
        check(&judge(&[]), Fine, 0.0);
        check(&judge(&[stall(999_000_000, 5_000_000, "work"), stall(999_000_000, 900_000, "stolen")]), Fine, 0.0);
        check(&judge(&[stall(now * 1_000 - 25 * 3_600_000, 5_000_000, "stolen")]), Fine, 0.0);
        let found = judge(&[stall(999_000_000, 9_000_000, "work"), stall(999_990_000, 1_500_000, "stolen")]);
        check(&found, Guilty, 0.0);
        assert!(found.detail.contains("'stolen' 10 s ago: 1500 ms"), "{}", found.detail);
        // What happened while it started says nothing.
        check(&past_stalls(Ok(&[stall(999_950_000, 1_500_000, "stolen")]), now, 100), Fine, 0.0);
        check(&past_stalls(Err("NOPERM"), now, 100), Unknown, 0.0);
        check(&past_stalls(Ok(&[stall(999_950_000, 1_500_000, "stolen")]), now, START_SECONDS), Unknown, 0.0);
    }

    #[test]
    fn slow_commands_count_by_their_time() {
        let none = Times::new();
        let slow = |at, micros| [SlowCommand { id: 1, at, micros, words: "KEYS *".into() }];
        check(&slow_commands(&commands(&[], &none, &none)), Fine, 0.0);
        check(&slow_commands(&commands(&slow(9_995, 20_000), &none, &none)), Fine, 0.0);
        let found = slow_commands(&commands(&slow(9_995, 5_000_000), &none, &none));
        check(&found, Guilty, 0.5);
        assert!(found.detail.ends_with("KEYS *"));
        // Some minutes ago, and yesterday.
        check(&slow_commands(&commands(&slow(9_500, 6_100_000), &none, &none)), Guilty, 0.01);
        check(&slow_commands(&commands(&slow(5_000, 6_100_000), &none, &none)), Fine, 0.0);
        // Each below the limit of the slow log, but many.
        let fields = |text: &str| command_times(&parse::info(text));
        let before = fields("cmdstat_keys:calls=10,usec=50000,usec_per_call=5\ncmdstat_get:calls=1,usec=1\n");
        let after = fields("cmdstat_keys:calls=1010,usec=5050000,x=1\ncmdstat_get:calls=900000,usec=9000000\nodd:1\n");
        let found = slow_commands(&commands(&[], &before, &after));
        check(&found, Guilty, 0.5);
        assert!(found.detail.contains("keys takes 5.0 ms a call"), "{found:?}");
        let refused = Commands { slow: Err("NOPERM"), ..commands(&[], &none, &none) };
        check(&slow_commands(&refused), Unknown, 0.0);
    }

    #[test]
    fn a_key_is_hot_if_many_calls_take_much_of_a_core() {
        let key = |name: &str, share, calls_per_second| HotKey {
            name: name.to_owned(),
            share,
            calls_share: 0.5,
            calls_per_second,
        };
        check(&hot_keys(Err("only Holdfast counts them")), Unknown, 0.0);
        check(&hot_keys(Ok(&[])), Fine, 0.0);
        check(&hot_keys(Ok(&[key("a", 0.15, 90_000.0)])), Fine, 0.0);
        // Ten calls a second that take half of the time are slow, and not many.
        check(&hot_keys(Ok(&[key("slow", 0.5, 10.0)])), Fine, 0.0);
        let found = hot_keys(Ok(&[key("slow", 0.5, 10.0), key("hot", 0.3, 90_000.0)]));
        check(&found, Guilty, 0.3);
        assert!(found.detail.contains("hot: 30.0 % of a core's time, 50.0 % of the calls, 90000/s"), "{found:?}");
    }

    #[test]
    fn large_replies_are_those_of_others() {
        let judge = |last: &str, own| {
            let (first, last) = window("total_net_output_bytes:0 total_commands_processed:0", last);
            large_replies(&first, &last, own, 0, 0.0)
        };
        check(&judge("total_net_output_bytes:2000000000 total_commands_processed:2000000", 500), Fine, 0.0);
        check(&judge("total_net_output_bytes:2000000000 total_commands_processed:520", 500), Guilty, 0.2);
        // A few large ones among very many small ones betray themselves by a key of that size.
        let many = "total_net_output_bytes:2000000000 total_commands_processed:2000000";
        let (first, last) = window("total_net_output_bytes:0 total_commands_processed:0", many);
        check(&large_replies(&first, &last, 500, 100 << 20, 0.0), Guilty, 0.2);
        // Slow because of their bytes; and slow for another reason.
        check(&large_replies(&first, &last, 500, 100 << 20, 0.5), Guilty, 0.505);
        let (first, last) = window(many, many);
        check(&large_replies(&first, &last, 500, 100 << 20, 0.5), Fine, 0.0);
        check(&judge("total_net_output_bytes:9000000 total_commands_processed:501", 500), Fine, 0.0);
        let (first, last) = window("", "");
        check(&large_replies(&first, &last, 0, 0, 0.0), Unknown, 0.0);
    }

    #[test]
    fn storms_of_connections_are_rates() {
        let judge = |count: u64, more: &str| {
            let last = format!("total_connections_received:{count} connected_clients:5 {more}");
            let (first, last) = window("total_connections_received:100 rejected_connections:0", &last);
            connections(&first, &last, 30)
        };
        check(&judge(130, ""), Fine, 0.0);
        check(&judge(1_000, ""), Fine, 0.0);
        check(&judge(20_130, ""), Guilty, 0.2);
        assert!(judge(130, "rejected_connections:3").is_guilty());
        let (first, last) = window("", "");
        check(&connections(&first, &last, 0), Unknown, 0.0);
    }

    #[test]
    fn big_keys_and_unread_replies_are_named() {
        let sample = |bytes| KeySample { count: 5, all: 9, largest: vec![KeySize { name: "cart".into(), bytes }] };
        check(&big_keys(Ok(&sample(1_000))), Fine, 0.0);
        let found = big_keys(Ok(&sample(50 << 20)));
        check(&found, Guilty, 0.0);
        assert_eq!(found.detail, "5 of 9 keys were looked at; cart (52.4 MB)");
        check(&big_keys(Ok(&KeySample::default())), Fine, 0.0);
        check(&big_keys(Err("NOPERM")), Unknown, 0.0);
        let client = |unread_bytes| Client { address: "10.0.0.9:4".into(), unread_bytes, ..Client::default() };
        check(&client_buffers(Ok(&[client(0)])), Fine, 0.0);
        let found = client_buffers(Ok(&[client(5), client(64 << 20)]));
        check(&found, Guilty, 0.0);
        assert!(found.detail.starts_with("10.0.0.9:4"));
        check(&client_buffers(Ok(&[])), Fine, 0.0);
        check(&client_buffers(Err("NOPERM")), Unknown, 0.0);
    }

    #[test]
    fn memory_is_judged_where_it_is_much() {
        let of = |text: &str| window(text, text);
        check(&fragmentation(&of("used_memory:900000 used_memory_rss:7000000").1), Fine, 0.0);
        check(&fragmentation(&of("used_memory:1000000000 used_memory_rss:2000000000").1), Guilty, 0.0);
        check(&fragmentation(&of("").1), Unknown, 0.0);
        let limit = |text: &str| {
            let (first, last) = of(text);
            memory_limit(&first, &last)
        };
        check(&limit("used_memory:96 maxmemory:100 maxmemory_policy:allkeys-lru"), Fine, 0.0);
        check(&limit("used_memory:96 maxmemory:100 maxmemory_policy:noeviction"), Guilty, 0.0);
        assert!(limit("used_memory:96 maxmemory:0").advice.contains("maxmemory"));
        check(&limit(""), Unknown, 0.0);
    }

    #[test]
    fn forks_cost_a_stock_server_and_holdfast_nothing() {
        let of = |first: &str, last: &str| {
            let (first, last) = window(first, last);
            fork(&first, &last)
        };
        check(&of("", "latest_fork_usec:4000 total_forks:1 used_memory:1"), Fine, 0.0);
        check(&of("total_forks:1", "latest_fork_usec:500000 total_forks:3 used_memory:1"), Guilty, 0.1);
        check(&of("total_forks:3", "latest_fork_usec:500000 total_forks:3 used_memory:1"), Guilty, 0.0);
        check(&of("", "holdfast_version:1 latest_fork_usec:0"), Fine, 0.0);
        check(&of("", ""), Unknown, 0.0);
    }

    #[test]
    fn a_server_waits_for_its_own_log() {
        let of = |first: &str, last: &str, disk| {
            let (first, last) = window(first, last);
            own_syncs(&first, &last, disk)
        };
        let holdfast = "holdfast_version:1 log_syncs:100 log_sync_mean_usec:1000";
        check(&of(holdfast, "holdfast_version:1 log_syncs:1100 log_sync_mean_usec:1000", 0.0), Fine, 0.0);
        // A hundred of 1 ms, then a hundred of 40 ms: four of ten seconds, three quarters of them beyond the reference.
        check(&of(holdfast, "holdfast_version:1 log_syncs:200 log_sync_mean_usec:20500", 0.0), Guilty, 0.3);
        check(&of(holdfast, holdfast, 0.2), Guilty, 0.2);
        check(&of("", "holdfast_version:1", 0.0), Unknown, 0.0);
        check(&of("", "aof_enabled:0", 0.0), Fine, 0.0);
        check(&of("", "aof_enabled:0", 0.2), Guilty, 0.2);
        check(&of("aof_delayed_fsync:1", "aof_enabled:1 aof_delayed_fsync:1", 0.0), Fine, 0.0);
        check(&of("aof_delayed_fsync:1", "aof_enabled:1 aof_delayed_fsync:4", 0.05), Guilty, 0.05);
    }

    #[test]
    fn what_an_acknowledgement_means_is_told() {
        let of = |info: &str, pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            durability(&window(info, info).1, Ok(&pairs))
        };
        assert_eq!(of("holdfast_version:1 durability:synced-before-reply", &[]).value, "synced-before-reply");
        assert_eq!(of("", &[("appendonly", "yes"), ("appendfsync", "always")]).advice, "");
        for (appendonly, save, sync) in
            [("yes", "", "everysec"), ("yes", "", "no"), ("no", "", "no"), ("no", "900 1", "no")]
        {
            let told = of("", &[("appendonly", appendonly), ("save", save), ("appendfsync", sync)]);
            assert_eq!((told.verdict, told.advice.is_empty()), (Fine, false), "{told:?}");
        }
        check(&of("rdb_last_bgsave_status:err", &[]), Guilty, 0.0);
        check(&durability(&window("", "").1, Err("NOPERM")), Unknown, 0.0);
    }

    #[test]
    fn distance_and_width_of_the_network_are_judged_apart() {
        let far = |ms: f64| Watch { reach_ms: vec![ms; 5], answers_ms: vec![ms; 5], ..Watch::default() };
        check(&round_trip(&far(0.3)), Fine, 0.0);
        check(&round_trip(&far(50.0)), Guilty, 0.98);
        check(&round_trip(&Watch::default()), Unknown, 0.0);
        let at_times =
            Watch { reach_ms: vec![0.2, 8.0, 8.0, 9.0, 1_000.0], answers_ms: vec![8.0; 5], ..Watch::default() };
        check(&round_trip(&at_times), Fine, 0.0);
        check(&throughput(Ok(2e9), 0.0, 0.5), Fine, 0.0);
        check(&throughput(Ok(1.25e6), 0.0, 0.1), Guilty, 0.45);
        check(&throughput(Ok(1.25e6), 1.2e6, 0.1), Guilty, 0.96);
        check(&throughput(Err("ECHO: NOPERM"), 0.0, 0.0), Unknown, 0.0);
        check(&throughput(Ok(1.25e6), 1.2e6, 0.5), Unknown, 0.0);
    }
}

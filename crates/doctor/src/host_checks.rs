//! Judgements about the host, each a function of readings.

use std::collections::BTreeMap;

use crate::finding::{Finding, HEARSAY};
use crate::host::{Consumer, Window};
use crate::parse::{self, Mount, Throttling};
use crate::probes::{Pauses, SyncTimes, Syncs, Timers};
use crate::thresholds::*;

/// A share as a percentage.
pub fn percent(share: f64) -> String {
    if share > 0.0 && share < 0.001 { format!("{:.2} %", share * 100.0) } else { format!("{:.1} %", share * 100.0) }
}

/// Milliseconds with two or more digits that count.
pub fn millis(ms: f64) -> String {
    match ms {
        ms if ms >= 100.0 => format!("{ms:.0} ms"),
        ms if ms >= 1.0 => format!("{ms:.1} ms"),
        ms => format!("{ms:.3} ms"),
    }
}

/// Bytes as people write them.
pub fn bytes(count: f64) -> String {
    match count {
        count if count >= 1e9 => format!("{:.1} GB", count / 1e9),
        count if count >= 1e6 => format!("{:.1} MB", count / 1e6),
        count if count >= 1e3 => format!("{:.1} kB", count / 1e3),
        count => format!("{count:.0} B"),
    }
}

/// Others that took much processor time, the first two by name.
pub fn name_consumers(consumers: &[Consumer]) -> String {
    let named: Vec<String> = consumers
        .iter()
        .filter(|consumer| consumer.cores >= 0.05)
        .take(2)
        .map(|it| format!("{} (process {}) took {:.2} processors, last on {}", it.name, it.pid, it.cores, it.processor))
        .collect();
    if named.is_empty() { "no other process took a twentieth of a processor".to_owned() } else { named.join(", ") }
}

/// Time that the hypervisor gave to others, on the processor that lost most.
pub fn stolen(window: &Window<'_>) -> Finding {
    let (before, after) = match (&window.before.cpus, &window.after.cpus) {
        (Ok(before), Ok(after)) if !after.is_empty() => (before, after),
        (Err(why), _) | (_, Err(why)) => return Finding::unknown("cpu.stolen", why),
        _ => return Finding::unknown("cpu.stolen", "/proc/stat names no processor"),
    };
    let worst = after.iter().filter_map(|(number, after)| {
        let before = before.get(number)?;
        let total = after.total.checked_sub(before.total).filter(|total| *total > 0)?;
        Some((after.steal.saturating_sub(before.steal) as f64 / total as f64, *number))
    });
    let Some((share, number)) = worst.max_by(|a, b| a.0.total_cmp(&b.0)) else {
        return Finding::unknown("cpu.stolen", "no processor has counted any time");
    };
    let reference = format!("at most {}", percent(STEAL_MAX));
    Finding::fine("cpu.stolen", percent(share), reference).detail(format!("processor {number} lost most")).guilty_if(
        share > STEAL_MAX,
        share * HEARSAY,
        "ask for dedicated processors, or move the machine: another guest of the same physical host takes them",
    )
}

/// Work of the host that waited for processors. If a server's own threads have told how long they waited, this convicts
/// nobody: `is_witnessed`.
pub fn cpu_pressure(window: &Window<'_>, consumers: &[Consumer], is_witnessed: bool) -> Finding {
    let (before, after) = match (&window.before.cpu_pressure, &window.after.cpu_pressure) {
        (Ok(before), Ok(after)) => (before, after),
        (Err(why), _) | (_, Err(why)) => return Finding::unknown("cpu.pressure", why),
    };
    let share = share_of(before.some_us, after.some_us, window.seconds);
    let reference = match is_witnessed {
        true => "see cpu.waiting for the server itself".to_owned(),
        false => format!("at most {}", percent(CPU_PRESSURE_MAX)),
    };
    Finding::fine("cpu.pressure", percent(share), reference).detail(name_consumers(consumers)).guilty_if(
        share > CPU_PRESSURE_MAX && !is_witnessed,
        share * HEARSAY,
        "run less on this host, or give the server processors of its own",
    )
}

/// Microseconds between two totals as a share of the window.
fn share_of(before_us: u64, after_us: u64, seconds: f64) -> f64 {
    (after_us.saturating_sub(before_us) as f64 / 1e6 / seconds).min(1.0)
}

/// Work of the host that waited for the disk. `is_witnessed` as in [`cpu_pressure`]: a server here was looked at.
pub fn io_pressure(window: &Window<'_>, is_witnessed: bool) -> Finding {
    let (before, after) = match (&window.before.io_pressure, &window.after.io_pressure) {
        (Ok(before), Ok(after)) => (before, after),
        (Err(why), _) | (_, Err(why)) => return Finding::unknown("disk.pressure", why),
    };
    let full = share_of(before.full_us, after.full_us, window.seconds);
    let some = share_of(before.some_us, after.some_us, window.seconds);
    // The probe of the disk waits, too: what all work waited for is judged, not what some did.
    Finding::fine("disk.pressure", percent(full), format!("all work at most {}", percent(IO_FULL_MAX)))
        .detail(format!("some work waited for {} of the time", percent(some)))
        .guilty_if(
            full > IO_FULL_MAX && !is_witnessed,
            full * HEARSAY,
            "find who uses the disk (disk.writers), or use a faster one",
        )
}

/// Work of the host that waited for memory.
pub fn memory_pressure(window: &Window<'_>) -> Finding {
    let (before, after) = match (&window.before.memory_pressure, &window.after.memory_pressure) {
        (Ok(before), Ok(after)) => (before, after),
        (Err(why), _) | (_, Err(why)) => return Finding::unknown("memory.pressure", why),
    };
    let full = share_of(before.full_us, after.full_us, window.seconds);
    let some = share_of(before.some_us, after.some_us, window.seconds);
    Finding::fine("memory.pressure", percent(full), format!("all work at most {}", percent(MEMORY_FULL_MAX)))
        .detail(format!("some work waited for {} of the time", percent(some)))
        .guilty_if(
            full > MEMORY_FULL_MAX,
            some.max(full) * HEARSAY,
            "the host has too little memory: free some, or add some",
        )
}

/// Events a second of `/proc/vmstat`, added up over all counters with such a name.
fn vmstat_rate(window: &Window<'_>, is_counted: impl Fn(&str) -> bool) -> Result<f64, String> {
    let (before, after) = match (&window.before.vmstat, &window.after.vmstat) {
        (Ok(before), Ok(after)) => (before, after),
        (Err(why), _) | (_, Err(why)) => return Err(why.clone()),
    };
    let counted: Vec<(&String, &u64)> = after.iter().filter(|(name, _)| is_counted(name)).collect();
    if counted.is_empty() {
        return Err("/proc/vmstat of this kernel does not count it".to_owned());
    }
    let rise = |(name, after): &(&String, &u64)| after.saturating_sub(before.get(*name).copied().unwrap_or(0)) as f64;
    Ok(counted.iter().map(rise).sum::<f64>() / window.seconds)
}

/// Milliseconds that a page read back from swap takes, about: that of a read from an SSD with its queue.
const SWAP_IN_MS: f64 = 0.5;

/// Pages read back from swap.
pub fn swap(window: &Window<'_>) -> Finding {
    match vmstat_rate(window, |name| name == "pswpin") {
        Err(why) => Finding::unknown("memory.swap", why),
        Ok(rate) => Finding::fine("memory.swap", format!("{rate:.1} pages/s"), "none").guilty_if(
            rate > SWAP_IN_PER_SECOND_MAX,
            (rate * SWAP_IN_MS / 1e3).min(1.0),
            "give the host more memory, or the server less to hold; switch swap off for a host that only runs it",
        ),
    }
}

/// Processes that had to free memory themselves.
pub fn reclaim(window: &Window<'_>) -> Finding {
    match vmstat_rate(window, |name| matches!(name, "pgscan_direct" | "pgscan_direct_dma" | "pgscan_direct_normal")) {
        Err(why) => Finding::unknown("memory.reclaim", why),
        Ok(rate) => Finding::fine(
            "memory.reclaim",
            format!("{rate:.0} pages/s"),
            format!("at most {DIRECT_RECLAIM_PER_SECOND_MAX:.0} pages/s"),
        )
        .guilty_if(
            rate > DIRECT_RECLAIM_PER_SECOND_MAX,
            // Scanning a page takes about a microsecond, and writing it out more.
            (rate * 1e-5).min(1.0) * HEARSAY,
            "free memory on the host, or raise vm.min_free_kbytes so that the kernel frees it ahead of need",
        ),
    }
}

/// Transparent huge pages. `uses` tells of each server of this host whether it lets the kernel use them.
pub fn huge_pages(window: &Window<'_>, enabled: Result<String, String>, uses: &[bool]) -> Finding {
    let text = match enabled {
        Ok(text) => text,
        Err(why) => return Finding::unknown("memory.huge_pages", why),
    };
    let Some(chosen) = parse::chosen(&text) else {
        return Finding::unknown("memory.huge_pages", "transparent_hugepage/enabled is malformed");
    };
    let compactions = vmstat_rate(window, |name| name == "compact_stall").unwrap_or(0.0);
    // A process that has switched them off for itself, as Redis does from 6.2 on, is not concerned.
    let is_concerned = uses.is_empty() || uses.contains(&true);
    let is_guilty = chosen == "always" && is_concerned || compactions > COMPACTION_PER_SECOND_MAX;
    let finding = Finding::fine("memory.huge_pages", chosen, "madvise or never")
        .detail(format!("{compactions:.1} compactions/s made a process wait"))
        .guilty_if(
            is_guilty,
            (compactions * 1e-3).min(1.0) * HEARSAY,
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, and make it last over a start",
        );
    if chosen == "always" && !is_concerned {
        finding.consider("set madvise: the server has opted out by itself")
    } else {
        finding
    }
}

/// Whether a large process may fork. `forks` is true if a server of this host does, to save.
pub fn overcommit(setting: Result<String, String>, forks: bool) -> Finding {
    match setting.as_deref().map(str::trim) {
        Err(why) => Finding::unknown("memory.overcommit", why),
        Ok(value) => {
            Finding::fine("memory.overcommit", value, "1 where a server forks, 0 or 1 elsewhere")
                // With 2 a fork fails as soon as twice the memory is not there.
                .guilty_if(
                    value == "2" && forks,
                    0.0,
                    "sysctl vm.overcommit_memory=1: saving may fail for lack of memory",
                )
                .consider(if value == "0" && forks {
                    "sysctl vm.overcommit_memory=1: a fork of a server that holds half of the memory may be refused"
                } else {
                    ""
                })
        }
    }
}

/// What governs the processors' frequency.
pub fn governor(governors: &[String]) -> Finding {
    if governors.is_empty() {
        return Finding::unknown("cpu.governor", "the host shows no frequency governor, as most guests");
    }
    let is_slow = governors.iter().any(|name| name == "powersave" || name == "conservative");
    // The driver of recent processors calls its ordinary mode powersave, so this alone convicts nobody.
    Finding::fine("cpu.governor", governors.join(", "), "performance").consider(if is_slow {
        "cpupower frequency-set -g performance: processors that sleep wake up slowly"
    } else {
        ""
    })
}

/// Sources that a processor reads by itself.
const FAST_CLOCKS: [&str; 8] = [
    "tsc",
    "kvm-clock",
    "arch_sys_counter",
    "hyperv_clocksource_tsc_page",
    "hyperv_clocksource",
    "timebase",
    "tod",
    "riscv_clocksource",
];

/// The source of the clock.
pub fn clock_source(current: Result<String, String>, available: Result<String, String>) -> Finding {
    match current.as_deref().map(str::trim) {
        Err(why) => Finding::unknown("clock.source", why),
        Ok(source) => Finding::fine("clock.source", source, "one that needs no system call, such as tsc or kvm-clock")
            .detail(available.map(|names| format!("available: {}", names.trim())).unwrap_or_default())
            .guilty_if(
                !FAST_CLOCKS.contains(&source),
                0.0,
                "write tsc to /sys/devices/system/clocksource/clocksource0/current_clocksource",
            ),
    }
}

/// The cost of reading the clock, in nanoseconds; `None` if it was not measured.
pub fn clock_cost(nanos: Option<f64>) -> Finding {
    let Some(nanos) = nanos else { return Finding::unknown("clock.cost", "the probe did not run") };
    // A command of a store reads the clock about twice and takes two microseconds.
    let stalled = ((nanos - CLOCK_NANOS_MAX) * 2.0 / 2_000.0).clamp(0.0, 1.0) * HEARSAY;
    Finding::fine("clock.cost", format!("{nanos:.0} ns"), format!("at most {CLOCK_NANOS_MAX:.0} ns")).guilty_if(
        nanos > CLOCK_NANOS_MAX,
        stalled,
        "use a clock source that needs no system call: see clock.source",
    )
}

/// Sleeps that ended too late. `is_witnessed` as in [`cpu_pressure`]: then only what no neighbour explains counts.
pub fn timers(timers: Option<&Timers>, consumers: &[Consumer], is_witnessed: bool) -> Finding {
    let Some(timers) = timers.filter(|timers| timers.seconds > 0.0) else {
        return Finding::unknown("timer.late", "the probe did not run");
    };
    let share = timers.late_ms / 1e3 / timers.seconds;
    let waited = if timers.late_ms > 0.0 { (timers.late_waiting_ms / timers.late_ms).min(1.0) } else { 0.0 };
    // The waiting of its own threads is known already.
    let judged = if is_witnessed { share * (1.0 - waited) } else { share };
    let detail = format!(
        "{} of {} sleeps were late by more than {}, the worst by {}; for {} of that time others had the processor; {}",
        timers.late_count,
        timers.count,
        millis(TIMER_LATE_MS),
        millis(timers.worst_ms),
        percent(waited),
        name_consumers(consumers)
    );
    Finding::fine("timer.late", percent(share), format!("at most {} of the time", percent(TIMER_LATE_SHARE_MAX)))
        .detail(detail)
        .guilty_if(
            judged > TIMER_LATE_SHARE_MAX,
            judged * HEARSAY,
            if waited > 0.5 {
                "other processes keep the processors: give the server its own, or run less here"
            } else {
                "the host as a whole stands still at times: ask who runs the hypervisor"
            },
        )
}

/// Gaps in a loop that nothing inside the host explains.
pub fn pauses(pauses: Option<&Pauses>) -> Finding {
    let Some(pauses) = pauses.filter(|pauses| pauses.looped_ms > 0.0) else {
        return Finding::unknown("timer.pauses", "the probe did not run");
    };
    let share = pauses.unexplained_ms / pauses.looped_ms;
    let value = format!("{} of {} looped", millis(pauses.unexplained_ms), millis(pauses.looped_ms));
    Finding::fine("timer.pauses", value, format!("at most {}", percent(PAUSE_SHARE_MAX)))
        .detail(format!("{} without a reason inside the host, the longest {}", pauses.count, millis(pauses.worst_ms)))
        .guilty_if(
            // One pause in so short a time may be the only one of the day.
            share > PAUSE_SHARE_MAX && pauses.count >= PAUSES_MIN,
            share * HEARSAY,
            "the hypervisor or the firmware stops the processors: move the machine, or ask who runs the host",
        )
}

/// Segments that were sent again.
pub fn loss(window: &Window<'_>) -> Finding {
    let (before, after) = match (&window.before.tcp, &window.after.tcp) {
        (Ok(before), Ok(after)) => (before, after),
        (Err(why), _) | (_, Err(why)) => return Finding::unknown("network.loss", why),
    };
    let (Some(again), Some(sent)) = (rise(before, after, "RetransSegs"), rise(before, after, "OutSegs")) else {
        return Finding::unknown("network.loss", "/proc/net/snmp of this kernel does not count segments");
    };
    let share = again as f64 / sent.max(1) as f64;
    let more = |name: &str| match (&window.before.tcp_more, &window.after.tcp_more) {
        (Ok(before), Ok(after)) => rise(before, after, name).unwrap_or(0),
        _ => 0,
    };
    let detail = format!("{again} of {sent} segments were sent again; {} timers ran out", more("TCPTimeouts"));
    // What is sent again waits for at least 200 ms if a timer has to run out, and a round trip otherwise.
    let stalled = (more("TCPTimeouts").max(again / 4) as f64 * 0.2 / window.seconds).min(1.0);
    Finding::fine("network.loss", percent(share), format!("at most {}", percent(RETRANSMITS_MAX)))
        .detail(detail)
        .guilty_if(
            share > RETRANSMITS_MAX && again >= RETRANSMITS_MIN,
            stalled,
            "packets are lost: look at the interface's errors (ip -s link), the switch, and limits of the provider",
        )
}

fn rise(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>, name: &str) -> Option<u64> {
    Some(after.get(name)?.saturating_sub(before.get(name).copied().unwrap_or(0)))
}

/// Connections that found the queue of a listener full.
pub fn backlog_overflows(window: &Window<'_>) -> Finding {
    let (before, after) = match (&window.before.tcp_more, &window.after.tcp_more) {
        (Ok(before), Ok(after)) => (before, after),
        (Err(why), _) | (_, Err(why)) => return Finding::unknown("network.backlog", why),
    };
    match rise(before, after, "ListenOverflows") {
        None => Finding::unknown("network.backlog", "/proc/net/netstat of this kernel does not count it"),
        Some(count) => Finding::fine("network.backlog", format!("{count} connections"), "none").guilty_if(
            count > 0,
            // A client that is turned away so tries again after a second.
            (count as f64 / window.seconds).min(1.0) * HEARSAY,
            "raise net.core.somaxconn and the server's tcp-backlog; make clients keep their connections",
        ),
    }
}

/// Packets dropped because a processor did not take them in time.
pub fn drops(window: &Window<'_>) -> Finding {
    match (&window.before.softnet_drops, &window.after.softnet_drops) {
        (Ok(before), Ok(after)) => {
            let count = after.saturating_sub(*before);
            Finding::fine("network.drops", format!("{count} packets"), "none").guilty_if(
                count > 0,
                0.0,
                "raise net.core.netdev_max_backlog, or spread interrupts of the network over processors",
            )
        }
        (Err(why), _) | (_, Err(why)) => Finding::unknown("network.drops", why),
    }
}

/// The longest queue of connections that the kernel grants.
pub fn backlog_limit(setting: Result<String, String>) -> Finding {
    match setting.map(|text| text.trim().parse::<u64>()) {
        Err(why) => Finding::unknown("limits.backlog", why),
        Ok(Err(_)) => Finding::unknown("limits.backlog", "net.core.somaxconn is not a number"),
        Ok(Ok(length)) => Finding::fine("limits.backlog", length.to_string(), format!("at least {BACKLOG_MIN}"))
            .guilty_if(length < BACKLOG_MIN, 0.0, format!("sysctl net.core.somaxconn={BACKLOG_MIN} or more")),
    }
}

/// Ports for outgoing connections.
pub fn ports(range: Result<String, String>, sockets: Result<String, String>) -> Finding {
    let (range, sockets) = match (range, sockets) {
        (Ok(range), Ok(sockets)) => (range, sockets),
        (Err(why), _) | (_, Err(why)) => return Finding::unknown("limits.ports", why),
    };
    let bounds: Vec<u64> = range.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
    let (&[first, last], Some(waiting)) = (bounds.as_slice(), parse::time_wait_count(&sockets)) else {
        return Finding::unknown("limits.ports", "the range of ports or the table of sockets is malformed");
    };
    let count = last.saturating_sub(first).saturating_add(1);
    let value = format!("{waiting} of {count} in TIME_WAIT");
    Finding::fine("limits.ports", value, format!("at most {}", percent(TIME_WAIT_MAX))).guilty_if(
        waiting as f64 > count as f64 * TIME_WAIT_MAX,
        0.0,
        "keep connections open instead of connecting for each request; widen net.ipv4.ip_local_port_range",
    )
}

/// What the host runs on, and the trap that it is known for.
pub fn hypervisor(name: Option<String>) -> Finding {
    let name = name.unwrap_or_else(|| "none that shows itself".to_owned());
    let is_xen = name.to_ascii_lowercase().contains("xen");
    Finding::fine("host.hypervisor", name, "any").consider(if is_xen {
        "forks are slow on older instances of Xen: look at persistence.fork, and use a newer kind of instance"
    } else {
        ""
    })
}

/// Times of syncs. `witnessed` is the share of time that slow syncs have cost a server of this host, 0 if none: that
/// server knows better than a probe what the disk costs it. Without one the probe stands for a server that does nothing
/// but sync.
pub fn syncs(syncs: Result<&Syncs, String>, witnessed: Option<f64>) -> Finding {
    let syncs = match syncs {
        Ok(syncs) => syncs,
        Err(why) => return Finding::unknown("disk.sync", why),
    };
    let small = &syncs.prewritten_4k;
    if small.is_empty() {
        return Finding::unknown("disk.sync", "no sync has ended in the time allowed");
    }
    let (p50, p99) = (small.percentile(50.0), small.percentile(99.0));
    let told = |name: &str, times: &SyncTimes| match times.is_empty() {
        true => format!("{name} not measured"),
        false => format!("{name} {} / {}", millis(times.percentile(50.0)), millis(times.percentile(99.0))),
    };
    let detail = [
        told("4 KiB into written space", small),
        told("4 KiB appended", &syncs.growing_4k),
        told("64 KiB", &syncs.large_64k),
        told("1 MiB", &syncs.large_1m),
    ]
    .join(", ");
    let excess = small.excess(SYNC_P50_MS);
    // One late sync may be the only one of the day.
    let is_slow = p50 > SYNC_P50_MS || p99 > SYNC_P99_MS && small.beyond(SYNC_P99_MS) >= SYNCS_LATE_MIN;
    Finding::fine("disk.sync", format!("p50 {}, p99 {}", millis(p50), millis(p99)), sync_reference())
        .detail(format!("p50 / p99 of each: {detail}"))
        .guilty_if(
            is_slow && excess > SYNC_EXCESS_MIN,
            // As the cause it stands before what it does to the server.
            witnessed.map_or(excess, |share| share * 1.005),
            "use a faster disk (power-loss protection makes syncs fast), or keep others off it",
        )
}

fn sync_reference() -> String {
    format!("p50 at most {}, p99 at most {}", millis(SYNC_P50_MS), millis(SYNC_P99_MS))
}

/// What was written to a disk, and by which process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiskUse {
    /// The device, by name.
    pub device: String,
    /// Bytes a second written to it.
    pub written_per_second: f64,
    /// Of these, by the servers that are examined; `None` if that may not be read.
    pub by_servers_per_second: Option<f64>,
    /// Of these, by the probe.
    pub by_probe_per_second: f64,
    /// Share of the window in which the disk was busy.
    pub busy: f64,
    /// The process that wrote most, other than servers, with bytes a second.
    pub top: Option<(String, f64)>,
}

/// Others who write to the disk of the data directory. `slow` is how much of the time slow syncs have cost, of the
/// probe or of a server, if they were slow; `is_witnessed` as in [`cpu_pressure`].
pub fn writers(used: Result<&DiskUse, String>, slow: Option<f64>, is_witnessed: bool) -> Finding {
    let used = match used {
        Ok(used) => used,
        Err(why) => return Finding::unknown("disk.writers", why),
    };
    let servers = used.by_servers_per_second.unwrap_or(0.0);
    let others = (used.written_per_second - servers - used.by_probe_per_second).max(0.0);
    let share = others / used.written_per_second.max(1.0);
    let top = match &used.top {
        Some((name, rate)) if *rate > 0.0 => format!("most by {name}, {}/s", bytes(*rate)),
        _ => "by processes that may not be read here".to_owned(),
    };
    let value = format!("{}/s by others, {} of all", bytes(others), percent(share));
    let is_load = others > WRITERS_BYTES_PER_SECOND_MIN && share > OTHERS_SHARE_MAX;
    let is_limit = used.busy > DISK_BUSY_MAX;
    Finding::fine("disk.writers", value, format!("at most {} where syncs are slow", percent(OTHERS_SHARE_MAX)))
        .detail(format!("{} was busy for {} of the time; {top}", used.device, percent(used.busy)))
        .guilty_if(
            is_load && (slow.is_some() || is_limit && !is_witnessed),
            // What makes the syncs slow explains them, and ranks before them.
            slow.map_or(used.busy * HEARSAY, |slow| slow * 1.01),
            "move the other writer to another disk, or limit it (ionice, io.max of its control group)",
        )
}

/// The file system of the data directory.
pub fn filesystem(mount: Option<&Mount>) -> Finding {
    let Some(mount) = mount else {
        return Finding::unknown("disk.filesystem", "no mount point leads to the data directory");
    };
    let has = |option: &str| mount.options.split(',').any(|it| it == option);
    let is_memory = matches!(mount.kind.as_str(), "tmpfs" | "ramfs");
    let is_remote = matches!(mount.kind.as_str(), "nfs" | "nfs4" | "cifs" | "smb3" | "9p" | "ceph" | "glusterfs");
    let is_program = mount.kind.starts_with("fuse");
    let is_unsafe = has("nobarrier") || has("barrier=0");
    let is_read_only = has("ro");
    let advice = if is_memory {
        "use a disk: everything here is lost when the machine stops"
    } else if is_read_only {
        "mount it for writing"
    } else if is_unsafe {
        "mount with barriers: without them a power cut loses what was synced"
    } else if is_remote || is_program {
        "use a local file system: its syncs go over a network or through a program"
    } else {
        "mount without sync: every single write waits for the disk"
    };
    let slow = if matches!(mount.kind.as_str(), "overlay" | "aufs") {
        "use a volume: files of a container's own layer are copied when they are first written"
    } else if has("data=journal") {
        "data=ordered writes everything once instead of twice"
    } else {
        ""
    };
    let is_guilty = is_memory || is_remote || is_program || is_unsafe || is_read_only || has("sync");
    Finding::fine("disk.filesystem", &mount.kind, "a local one such as ext4 or xfs, with barriers")
        .detail(format!("{} at {}, {}", mount.source, mount.point, mount.options))
        .guilty_if(is_guilty, 0.0, advice)
        .consider(slow)
}

/// Free and all bytes of the file system.
pub fn room(room: Result<(u64, u64), String>) -> Finding {
    match room {
        Err(why) => Finding::unknown("disk.room", why),
        Ok((_, 0)) => Finding::unknown("disk.room", "the file system does not tell its size"),
        Ok((free, all)) => {
            let share = free as f64 / all as f64;
            let value = format!("{} free, {}", bytes(free as f64), percent(share));
            Finding::fine("disk.room", value, format!("at least {}", percent(ROOM_MIN))).guilty_if(
                share < ROOM_MIN,
                0.0,
                "make room: a server that cannot write its log refuses writes",
            )
        }
    }
}

/// Throttling within the window.
pub fn quota(before: Result<Throttling, String>, after: Result<Throttling, String>, seconds: f64) -> Finding {
    let (before, after) = match (before, after) {
        (Ok(before), Ok(after)) => (before, after),
        (Err(why), _) | (_, Err(why)) => return Finding::unknown("cpu.quota", why),
    };
    let periods = after.periods.saturating_sub(before.periods);
    if periods == 0 {
        return Finding::fine("cpu.quota", "no quota", format!("at most {}", percent(THROTTLED_PERIODS_MAX)));
    }
    let throttled = after.throttled.saturating_sub(before.throttled);
    let share = throttled as f64 / periods as f64;
    let stood = (after.throttled_us.saturating_sub(before.throttled_us) as f64 / 1e6 / seconds).min(1.0);
    Finding::fine("cpu.quota", percent(share), format!("at most {} of periods", percent(THROTTLED_PERIODS_MAX)))
        .detail(format!("{throttled} of {periods} periods were throttled, for {} of the time", percent(stood)))
        .guilty_if(
            share > THROTTLED_PERIODS_MAX,
            stood,
            "raise or remove the limit of processors (cpu.max, CPUQuota=, limits.cpu of the container)",
        )
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::finding::Verdict::{self, Fine, Guilty, Unknown};
    use crate::host::{Counters, Process};
    use crate::parse::{CpuTimes, Pressure, TaskStat};

    const GONE: &str = "/proc/x: No such file or directory";

    /// Counters of a host on which nothing can be read.
    fn blind(moment: Instant) -> Counters {
        let gone = || GONE.to_owned();
        Counters {
            moment,
            cpus: Err(gone()),
            cpu_pressure: Err(gone()),
            io_pressure: Err(gone()),
            memory_pressure: Err(gone()),
            vmstat: Err(gone()),
            tcp: Err(gone()),
            tcp_more: Err(gone()),
            softnet_drops: Err(gone()),
            disks: Err(gone()),
            processes: BTreeMap::new(),
        }
    }

    /// Counters of a host that has done nothing yet.
    fn idle(moment: Instant) -> Counters {
        let count = |names: &[&str]| Ok(names.iter().map(|name| ((*name).to_owned(), 0)).collect());
        Counters {
            cpus: Ok(BTreeMap::from([(0, CpuTimes::default()), (1, CpuTimes::default())])),
            cpu_pressure: Ok(Pressure::default()),
            io_pressure: Ok(Pressure::default()),
            memory_pressure: Ok(Pressure::default()),
            vmstat: count(&["pswpin", "pgscan_direct", "compact_stall"]),
            tcp: count(&["RetransSegs", "OutSegs"]),
            tcp_more: count(&["ListenOverflows", "TCPTimeouts"]),
            softnet_drops: Ok(0),
            ..blind(moment)
        }
    }

    /// A window of ten seconds; `change` has happened at its end.
    fn after(change: impl Fn(&mut Counters), judge: impl Fn(&Window<'_>) -> Finding) -> Finding {
        let moment = Instant::now();
        let before = idle(moment);
        let mut after = idle(moment + Duration::from_secs(10));
        change(&mut after);
        judge(&Window::between(&before, &after))
    }

    #[track_caller]
    fn check(finding: &Finding, verdict: Verdict, stalled: f64) {
        assert_eq!(finding.verdict, verdict, "{finding:?}");
        assert!((finding.stalled - stalled).abs() < 1e-3, "{finding:?}");
        assert_eq!(finding.verdict == Guilty, !finding.advice.is_empty(), "{finding:?}");
        assert_eq!(finding.verdict == Unknown, finding.value.is_empty() && !finding.detail.is_empty(), "{finding:?}");
    }

    #[test]
    fn what_cannot_be_read_is_unknown_with_its_cause() {
        let moment = Instant::now();
        let (before, after) = (blind(moment), blind(moment + Duration::from_secs(1)));
        let window = Window::between(&before, &after);
        let gone = || Err(GONE.to_owned());
        let findings = [
            stolen(&window),
            cpu_pressure(&window, &[], false),
            io_pressure(&window, false),
            memory_pressure(&window),
            swap(&window),
            reclaim(&window),
            loss(&window),
            backlog_overflows(&window),
            drops(&window),
            huge_pages(&window, gone(), &[]),
            overcommit(gone(), true),
            clock_source(gone(), gone()),
            backlog_limit(gone()),
            ports(gone(), gone()),
            syncs(gone_syncs(), None),
            writers(Err(GONE.to_owned()), None, false),
            room(Err(GONE.to_owned())),
            quota(Err(GONE.to_owned()), Ok(Throttling::default()), 1.0),
        ];
        for finding in findings {
            check(&finding, Unknown, 0.0);
            assert_eq!(finding.detail, GONE);
        }
        for finding in [governor(&[]), clock_cost(None), timers(None, &[], false), pauses(None), filesystem(None)] {
            check(&finding, Unknown, 0.0);
        }
    }

    fn gone_syncs() -> Result<&'static Syncs, String> {
        Err(GONE.to_owned())
    }

    #[test]
    fn stolen_time_is_judged_by_the_processor_that_lost_most() {
        let spend = |steal: u64| {
            move |counters: &mut Counters| {
                let times = CpuTimes { total: 1_000, idle: 900, steal };
                counters.cpus = Ok(BTreeMap::from([(0, CpuTimes { steal: 0, ..times }), (1, times)]));
            }
        };
        check(&after(spend(20), stolen), Fine, 0.0);
        let guilty = after(spend(300), stolen);
        check(&guilty, Guilty, 0.15);
        assert_eq!(guilty.detail, "processor 1 lost most");
        // No time has passed.
        check(&after(|_| {}, stolen), Unknown, 0.0);
    }

    #[test]
    fn pressure_is_a_share_of_the_window() {
        let press = |some_us, full_us| {
            move |counters: &mut Counters| {
                let pressure = Ok(Pressure { some_us, full_us });
                counters.cpu_pressure = pressure.clone();
                counters.io_pressure = pressure.clone();
                counters.memory_pressure = pressure;
            }
        };
        let cpu = |window: &Window<'_>| cpu_pressure(window, &[], false);
        let io = |window: &Window<'_>| io_pressure(window, false);
        check(&after(press(4_000_000, 0), cpu), Fine, 0.0);
        check(&after(press(8_000_000, 0), cpu), Guilty, 0.4);
        check(&after(press(8_000_000, 400_000), io), Fine, 0.0);
        check(&after(press(8_000_000, 2_000_000), io), Guilty, 0.1);
        // A server that was looked at has told itself how much of it was its own.
        check(&after(press(8_000_000, 2_000_000), |window| io_pressure(window, true)), Fine, 0.0);
        check(&after(press(8_000_000, 0), |window| cpu_pressure(window, &[], true)), Fine, 0.0);
        check(&after(press(8_000_000, 40_000), memory_pressure), Fine, 0.0);
        check(&after(press(8_000_000, 60_000), memory_pressure), Guilty, 0.4);
        // However the counters leap, the share is one at most.
        check(&after(press(u64::MAX, u64::MAX), memory_pressure), Guilty, 0.5);
    }

    fn count(name: &'static str, value: u64) -> impl Fn(&mut Counters) {
        move |counters| {
            for table in [&mut counters.vmstat, &mut counters.tcp, &mut counters.tcp_more].into_iter().flatten() {
                table.insert(name.to_owned(), value);
            }
        }
    }

    #[test]
    fn swapping_and_reclaim_are_rates() {
        check(&after(count("pswpin", 5), swap), Fine, 0.0);
        check(&after(count("pswpin", 2_000), swap), Guilty, 0.1);
        check(&after(count("pgscan_direct", 900), reclaim), Fine, 0.0);
        check(&after(count("pgscan_direct", 200_000), reclaim), Guilty, 0.1);
    }

    #[test]
    fn huge_pages_matter_to_those_who_let_the_kernel_use_them() {
        let pages = |text: &'static str, uses: &'static [bool]| {
            move |window: &Window<'_>| huge_pages(window, Ok(text.to_owned()), uses)
        };
        check(&after(|_| {}, pages("always [madvise] never", &[true])), Fine, 0.0);
        check(&after(|_| {}, pages("[always] madvise never", &[false, true])), Guilty, 0.0);
        check(&after(|_| {}, pages("[always] madvise never", &[])), Guilty, 0.0);
        let opted_out = after(|_| {}, pages("[always] madvise never", &[false]));
        assert_eq!((opted_out.verdict, opted_out.advice.is_empty()), (Fine, false));
        check(&after(count("compact_stall", 1_000), pages("always [madvise] never", &[])), Guilty, 0.05);
        check(&after(|_| {}, pages("always", &[])), Unknown, 0.0);
    }

    #[test]
    fn overcommit_matters_to_those_who_fork() {
        let of = |value: &str, forks| overcommit(Ok(format!("{value}\n")), forks);
        check(&of("1", true), Fine, 0.0);
        check(&of("2", false), Fine, 0.0);
        check(&of("2", true), Guilty, 0.0);
        assert_eq!((of("0", true).verdict, of("0", true).advice.is_empty()), (Fine, false));
    }

    #[test]
    fn slow_clocks_are_named() {
        let source = |name: &str| clock_source(Ok(format!("{name}\n")), Ok("tsc hpet".to_owned()));
        check(&source("tsc"), Fine, 0.0);
        check(&source("kvm-clock"), Fine, 0.0);
        check(&source("hpet"), Guilty, 0.0);
        check(&source("xen"), Guilty, 0.0);
        check(&clock_cost(Some(35.0)), Fine, 0.0);
        check(&clock_cost(Some(1_100.0)), Guilty, 0.5);
        assert!(governor(&["powersave".to_owned()]).advice.contains("performance"));
        check(&governor(&["performance".to_owned()]), Fine, 0.0);
    }

    #[test]
    fn late_timers_tell_neighbours_from_the_hypervisor() {
        let of = |late_ms: f64, late_waiting_ms: f64| {
            let found = Timers { count: 900, seconds: 10.0, late_count: 9, late_ms, late_waiting_ms, worst_ms: 30.0 };
            timers(Some(&found), &[], false)
        };
        check(&of(100.0, 0.0), Fine, 0.0);
        let neighbour = of(2_000.0, 1_900.0);
        check(&neighbour, Guilty, 0.1);
        assert!(neighbour.advice.contains("other processes"));
        assert!(of(2_000.0, 0.0).advice.contains("hypervisor"));
        check(&timers(Some(&Timers::default()), &[], false), Unknown, 0.0);
        let found = Timers {
            count: 9,
            seconds: 10.0,
            late_count: 9,
            late_ms: 2_000.0,
            late_waiting_ms: 1_500.0,
            worst_ms: 9.0,
        };
        check(&timers(Some(&found), &[], true), Guilty, 0.025);
        let gaps = |unexplained_ms, count| Pauses { looped_ms: 200.0, unexplained_ms, count, worst_ms: 3.0 };
        check(&pauses(Some(&gaps(2.0, 3))), Fine, 0.0);
        check(&pauses(Some(&gaps(40.0, 1))), Fine, 0.0);
        check(&pauses(Some(&gaps(40.0, 3))), Guilty, 0.1);
    }

    #[test]
    fn the_network_is_judged_by_what_is_lost() {
        let lose = |again: u64, timeouts: u64| {
            move |counters: &mut Counters| {
                count("OutSegs", 10_000)(counters);
                count("RetransSegs", again)(counters);
                count("TCPTimeouts", timeouts)(counters);
            }
        };
        check(&after(lose(20, 2), loss), Fine, 0.0);
        check(&after(lose(200, 10), loss), Guilty, 1.0);
        check(&after(lose(60, 5), loss), Guilty, 0.3);
        // Two of a hundred prove nothing.
        let few = |counters: &mut Counters| {
            count("OutSegs", 100)(counters);
            count("RetransSegs", 2)(counters);
        };
        check(&after(few, loss), Fine, 0.0);
        check(&after(|_| {}, backlog_overflows), Fine, 0.0);
        check(&after(count("ListenOverflows", 4), backlog_overflows), Guilty, 0.2);
        check(&after(|_| {}, drops), Fine, 0.0);
        check(&after(|counters| counters.softnet_drops = Ok(3), drops), Guilty, 0.0);
    }

    #[test]
    fn limits_of_the_host_are_numbers_in_files() {
        check(&backlog_limit(Ok("4096\n".to_owned())), Fine, 0.0);
        check(&backlog_limit(Ok("128\n".to_owned())), Guilty, 0.0);
        check(&backlog_limit(Ok("many".to_owned())), Unknown, 0.0);
        let waiting = |count: u64| {
            let sockets = format!("TCP: inuse 1 orphan 0 tw {count} alloc 1 mem 8\n");
            ports(Ok("32768\t60999\n".to_owned()), Ok(sockets))
        };
        check(&waiting(100), Fine, 0.0);
        check(&waiting(28_000), Guilty, 0.0);
        check(&ports(Ok("x".to_owned()), Ok(String::new())), Unknown, 0.0);
        assert!(hypervisor(Some("xen, HVM domU".to_owned())).advice.contains("forks"));
        check(&hypervisor(None), Fine, 0.0);
    }

    fn sync_times(ms: f64) -> Syncs {
        Syncs { prewritten_4k: SyncTimes::of(vec![ms; 50]), written_bytes: 1 << 20, ..Syncs::default() }
    }

    #[test]
    fn the_disk_is_judged_by_the_time_of_small_syncs() {
        check(&syncs(Ok(&sync_times(1.2)), None), Fine, 0.0);
        check(&syncs(Ok(&sync_times(50.0)), None), Guilty, 0.9);
        check(&syncs(Ok(&sync_times(50.0)), Some(0.2)), Guilty, 0.201);
        check(&syncs(Ok(&sync_times(50.0)), Some(0.0)), Guilty, 0.0);
        check(&syncs(Ok(&Syncs::default()), None), Unknown, 0.0);
        // One slow sync proves nothing.
        let mut times = vec![2.0; 49];
        times.push(150.0);
        let one = Syncs { prewritten_4k: SyncTimes::of(times), ..Syncs::default() };
        check(&syncs(Ok(&one), None), Fine, 0.0);
    }

    #[test]
    fn who_writes_beside_the_server_explains_slow_syncs() {
        let slow = syncs(Ok(&sync_times(50.0)), None);
        let used = DiskUse {
            device: "vda".to_owned(),
            written_per_second: 100e6,
            by_servers_per_second: Some(5e6),
            by_probe_per_second: 1e6,
            busy: 0.5,
            top: Some(("dd (process 7)".to_owned(), 90e6)),
        };
        check(&writers(Ok(&used), None, false), Fine, 0.0);
        let found = writers(Ok(&used), Some(slow.stalled), false);
        assert!(
            found.is_guilty() && found.stalled > slow.stalled && found.detail.contains("dd (process 7)"),
            "{found:?}"
        );
        let full = DiskUse { busy: 1.0, ..used.clone() };
        check(&writers(Ok(&full), None, false), Guilty, 0.5);
        check(&writers(Ok(&full), None, true), Fine, 0.0);
        let own = DiskUse { by_servers_per_second: Some(95e6), ..used };
        check(&writers(Ok(&own), Some(0.9), false), Fine, 0.0);
    }

    #[test]
    fn file_systems_that_do_not_suit_a_log_are_named() {
        let of = |kind: &str, options: &str| {
            let [kind, options] = [kind, options].map(str::to_owned);
            filesystem(Some(&Mount {
                device: "8:1".into(),
                point: "/".into(),
                source: "/dev/sda".into(),
                kind,
                options,
            }))
        };
        check(&of("ext4", "rw,relatime"), Fine, 0.0);
        for (kind, options) in [
            ("tmpfs", "rw"),
            ("nfs4", "rw"),
            ("fuse.sshfs", "rw"),
            ("ext4", "ro"),
            ("ext4", "rw,nobarrier"),
            ("xfs", "rw,sync"),
        ] {
            check(&of(kind, options), Guilty, 0.0);
        }
        assert!(of("overlay", "rw").advice.contains("volume"));
        check(&room(Ok((50, 100))), Fine, 0.0);
        check(&room(Ok((1, 100))), Guilty, 0.0);
        check(&room(Ok((0, 0))), Unknown, 0.0);
    }

    #[test]
    fn throttling_counts_within_the_window() {
        let at = |periods, throttled, throttled_us| Ok(Throttling { periods, throttled, throttled_us });
        check(&quota(at(10, 5, 100), at(10, 5, 100), 10.0), Fine, 0.0);
        check(&quota(at(10, 5, 100), at(110, 5, 100), 10.0), Fine, 0.0);
        check(&quota(at(10, 5, 0), at(110, 55, 4_000_000), 10.0), Guilty, 0.4);
    }

    #[test]
    fn who_takes_the_processors_is_named() {
        let process = |ticks| Process {
            stat: TaskStat { name: "cc1".into(), state: 'R', ticks, began_ticks: 0, processor: 1 },
            written_bytes: None,
        };
        let moment = Instant::now();
        let (mut before, mut after) = (idle(moment), idle(moment + Duration::from_secs(10)));
        before.processes.insert(9, process(100));
        after.processes.insert(9, process(600));
        after.processes.insert(10, process(10));
        let consumers = Window::between(&before, &after).busiest(&[]);
        assert_eq!(name_consumers(&consumers), "cc1 (process 9) took 0.50 processors, last on 1");
        assert!(name_consumers(&[]).starts_with("no other process"));
        assert_eq!([0.0001, 0.5].map(percent), ["0.01 %", "50.0 %"]);
        assert_eq!([0.05, 1.25, 120.0].map(millis), ["0.050 ms", "1.2 ms", "120 ms"]);
        assert_eq!([5.0, 5e3, 5e6, 5e9].map(bytes), ["5 B", "5.0 kB", "5.0 MB", "5.0 GB"]);
    }
}

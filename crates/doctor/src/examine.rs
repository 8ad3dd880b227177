//! What happens when: readings at both ends of a window, probes within it, and then judgement.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use crate::finding::{CHECKS, Finding, Verdict};
use crate::fleet;
use crate::host::{Consumer, Counters, Host, Window};
use crate::host_checks::{self as checks, DiskUse};
use crate::probes::{self, Pauses, Syncs, Timers};
use crate::report::Report;
use crate::server::{Examination, Reading};
use crate::talk::{DialError, Dialer};

/// What is examined.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Addresses of servers.
    pub servers: Vec<String>,
    /// A folder on the disk to be probed.
    pub data_dir: Option<PathBuf>,
    /// How long the window is.
    pub window: Duration,
    /// Where the kernel's files are.
    pub host: Host,
}

/// Between two requests to a server, for one server; with several each is asked less often.
const REQUEST_PAUSE: Duration = Duration::from_millis(20);
/// A sleep of the probe of timers, for one processor; with several each sleeps longer.
const TIMER_PAUSE: Duration = Duration::from_millis(4);
/// Short loops that look for pauses, in a window.
const LOOPS: u32 = 10;
/// The longest that the disk is probed for.
const DISK_LIMIT: Duration = Duration::from_secs(5);

/// Examines, and tells `progress` now and then how much of the window has passed.
///
/// # Errors
/// If servers were named and none can be talked to; each with its cause.
pub fn examine(plan: &Plan, dialer: &dyn Dialer, progress: &(dyn Fn(Duration) + Sync)) -> Result<Report, String> {
    let processor_began = processor_time();
    let began = Instant::now();
    let until = began + plan.window;
    let before = plan.host.counters();
    let processors = probes::processors();
    let ends = &AtomicBool::new(false);
    let refused_count = &AtomicUsize::new(0);
    let seen = thread::scope(|scope| {
        let pause = TIMER_PAUSE * u32::try_from(processors.len().max(1)).unwrap_or(1);
        let timers: Vec<_> = processors
            .iter()
            .map(|processor| scope.spawn(move || probes::watch_timers(*processor, pause, ends)))
            .collect();
        let disk = plan.data_dir.as_deref().map(|folder| {
            scope.spawn(move || {
                let first = began + plan.window.mul_f64(0.1);
                while Instant::now() < first && !ends.load(Ordering::Relaxed) {
                    thread::sleep(first.saturating_duration_since(Instant::now()).min(Duration::from_millis(100)));
                }
                probes::measure_syncs(folder, plan.window.mul_f64(0.6).min(DISK_LIMIT), ends)
            })
        });
        let request_pause = REQUEST_PAUSE * u32::try_from(plan.servers.len().max(1)).unwrap_or(1);
        let servers: Vec<_> = plan
            .servers
            .iter()
            .map(|place| {
                let examination = Examination { place, host: &plan.host, began, until, pause: request_pause };
                scope.spawn(move || {
                    let reading = Reading::of(&examination, dialer);
                    if matches!(reading, Err(DialError::Refused(_))) {
                        refused_count.fetch_add(1, Ordering::Relaxed);
                    }
                    reading
                })
            })
            .collect();
        // Without any of the servers that were named there is nothing to wait for.
        let is_vain = || !plan.servers.is_empty() && refused_count.load(Ordering::Relaxed) == plan.servers.len();
        let pauses = wait(plan.window, began, &processors, progress, &is_vain);
        let servers = servers.into_iter().map(|server| {
            server.join().unwrap_or_else(|_| Err(DialError::Refused("the examination of a server ended".to_owned())))
        });
        let servers: Vec<_> = servers.collect();
        ends.store(true, Ordering::Relaxed);
        let timers = timers.into_iter().filter_map(|timers| timers.join().ok()).reduce(Timers::worse);
        let disk = disk.map(|disk| disk.join().unwrap_or_else(|_| Err("the probe of the disk ended".to_owned())));
        Seen { servers, timers, pauses, disk }
    });
    let after = plan.host.counters();
    let refused: Vec<&str> = seen
        .servers
        .iter()
        .filter_map(|server| match server {
            Err(DialError::Refused(why)) => Some(why.as_str()),
            _ => None,
        })
        .collect();
    if !plan.servers.is_empty() && refused.len() == plan.servers.len() {
        return Err(refused.join("; "));
    }
    let window = Window::between(&before, &after);
    let (findings, servers) = judge(plan, &window, &seen);
    let seconds = began.elapsed().as_secs_f64();
    let looped = Duration::from_secs_f64(seen.pauses.looped_ms / 1e3);
    let processor_share = (processor_time() - processor_began).saturating_sub(looped).as_secs_f64() / seconds;
    Ok(Report { findings, servers, seconds, processor_share, looped })
}

/// What servers and probes have shown.
struct Seen {
    servers: Vec<Result<Reading, DialError>>,
    timers: Option<Timers>,
    pauses: Pauses,
    disk: Option<Result<Syncs, String>>,
}

fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

/// Waits for the end of the window, and loops on the processors in turn for a moment each. Ends early if `is_vain`.
fn wait(
    window: Duration,
    began: Instant,
    processors: &[usize],
    progress: &(dyn Fn(Duration) + Sync),
    is_vain: &dyn Fn() -> bool,
) -> Pauses {
    let mut pauses = Pauses::default();
    for round in 0..LOOPS {
        let next = began + window * (round + 1) / (LOOPS + 1);
        while Instant::now() < next {
            if is_vain() {
                return pauses;
            }
            thread::sleep(next.saturating_duration_since(Instant::now()).min(Duration::from_millis(500)));
            progress(began.elapsed());
        }
        if let Some(processor) = processors.get(round as usize % processors.len().max(1)).copied() {
            // In a thread of its own, which alone is bound to the processor.
            pauses.add(thread::scope(|scope| {
                scope.spawn(move || probes::look_for_pauses(processor)).join().unwrap_or_default()
            }));
        }
    }
    while began.elapsed() < window && !is_vain() {
        thread::sleep(window.saturating_sub(began.elapsed()).min(Duration::from_millis(500)));
        progress(began.elapsed());
    }
    pauses
}

fn judge(plan: &Plan, window: &Window<'_>, seen: &Seen) -> (Vec<Finding>, Vec<(String, String)>) {
    let host = &plan.host;
    let own_pid = std::process::id();
    let readings: Vec<&Reading> = seen.servers.iter().filter_map(|server| server.as_ref().ok()).collect();
    let mut findings = vec![checks::stolen(window), checks::memory_pressure(window), checks::loss(window)];
    // What these have cost made answers late, too.
    let explained = findings.iter().map(|finding| finding.stalled).sum();
    for (place, server) in plan.servers.iter().zip(&seen.servers) {
        match server {
            Ok(reading) => findings.extend(reading.judge(window, own_pid, explained)),
            Err(DialError::Silent(why)) => findings.push(silent(place, why, window)),
            Err(DialError::Refused(why)) => {
                let advice = "start it, or name another address, user or password";
                let finding = Finding::fine("server.answers", "no connection", "an answer").detail(why);
                findings.push(finding.guilty_if(true, 1.0, advice).at(place));
            }
        }
    }
    let members: Vec<fleet::Member> = readings.iter().map(|reading| reading.member()).collect();
    findings.extend([fleet::versions(&members), fleet::configuration(&members), fleet::round_trip(&members)]);
    let known: Vec<u32> = readings.iter().filter_map(|reading| reading.pid()).chain([own_pid]).collect();
    // If a server's threads were read, the server is a better witness of its own time than the counters of the host.
    let is_witnessed = findings.iter().any(|it| it.check == "cpu.waiting" && it.verdict != Verdict::Unknown);
    let consumers = window.busiest(&known);
    let huge_pages = host.read("sys/kernel/mm/transparent_hugepage/enabled");
    let uses: Vec<bool> = readings.iter().filter_map(|reading| reading.uses_huge_pages()).collect();
    let clock = |name: &str| host.read(&format!("sys/devices/system/clocksource/clocksource0/{name}_clocksource"));
    findings.extend([
        checks::cpu_pressure(window, &consumers, is_witnessed),
        checks::governor(&host.governors()),
        checks::timers(seen.timers.as_ref(), &consumers, is_witnessed),
        checks::pauses(Some(&seen.pauses)),
        checks::clock_source(clock("current"), clock("available")),
        checks::clock_cost(Some(probes::clock_cost())),
        checks::swap(window),
        checks::reclaim(window),
        checks::huge_pages(window, huge_pages, &uses),
        checks::overcommit(host.read("proc/sys/vm/overcommit_memory"), readings.iter().any(|it| it.forks_here())),
        checks::io_pressure(window, is_witnessed),
        checks::backlog_overflows(window),
        checks::drops(window),
        checks::backlog_limit(host.read("proc/sys/net/core/somaxconn")),
        checks::ports(host.read("proc/sys/net/ipv4/ip_local_port_range"), host.read("proc/net/sockstat")),
        checks::hypervisor(host.hypervisor()),
    ]);
    let own_syncs = findings.iter().filter(|it| it.check == "persistence.sync" && it.is_guilty());
    let own_syncs = own_syncs.map(|it| it.stalled).reduce(f64::max);
    let disk = DiskWitnesses { own_syncs, is_witnessed };
    findings.extend(judge_disk(plan, window, seen, &readings, &consumers, &disk));
    let why = if plan.servers.is_empty() { "no server was named (--server)" } else { "the server was not examined" };
    for (check, _) in CHECKS {
        if !findings.iter().any(|finding| finding.check == *check) {
            findings.push(Finding::unknown(check, why));
        }
    }
    let order = |finding: &Finding| CHECKS.iter().position(|(check, _)| *check == finding.check);
    findings.sort_by_key(order);
    (findings, readings.iter().map(|reading| (reading.place().to_owned(), reading.product())).collect())
}

/// A server that takes connections and says nothing. A process that is stopped is its likely cause.
fn silent(place: &str, why: &str, window: &Window<'_>) -> Finding {
    let is_stopped = |state: char| matches!(state, 'T' | 't');
    let stopped = window.after.processes.iter().filter(|(_, process)| is_stopped(process.stat.state));
    let names: Vec<String> = stopped.map(|(pid, process)| format!("{} (process {pid})", process.stat.name)).collect();
    let (detail, advice) = if names.is_empty() {
        (why.to_owned(), "see what it does: its log, its processor time, its disk")
    } else {
        (format!("{why}; stopped on this host: {}", names.join(", ")), "kill -CONT the process, if it is the server's")
    };
    let finding = Finding::fine("server.answers", "no answer", "an answer").detail(detail);
    finding.guilty_if(true, 1.0, advice).at(place)
}

/// What servers have told of the disk.
struct DiskWitnesses {
    /// The share of time that slow syncs of a server have cost, if they were slow.
    own_syncs: Option<f64>,
    /// The threads of a server here were looked at.
    is_witnessed: bool,
}

fn judge_disk(
    plan: &Plan,
    window: &Window<'_>,
    seen: &Seen,
    readings: &[&Reading],
    consumers: &[Consumer],
    witnesses: &DiskWitnesses,
) -> Vec<Finding> {
    let told = readings.iter().find_map(|reading| reading.data_folder());
    let folder = plan.data_dir.clone().or_else(|| told.map(PathBuf::from));
    let unnamed = || "no folder was named (--data-dir)".to_owned();
    let syncs = match &seen.disk {
        Some(syncs) => syncs.as_ref().map_err(Clone::clone),
        None => Err(unnamed()),
    };
    let witnessed = witnesses.is_witnessed.then(|| witnesses.own_syncs.unwrap_or(0.0));
    let probed_bytes = syncs.as_ref().map_or(0, |syncs| syncs.written_bytes);
    let sync = checks::syncs(syncs, witnessed);
    let Some(folder) = folder.map(|folder| folder.canonicalize().unwrap_or(folder)) else {
        return ["disk.writers", "disk.filesystem", "disk.room"]
            .into_iter()
            .map(|check| Finding::unknown(check, unnamed()))
            .chain([sync])
            .collect();
    };
    let pids: Vec<u32> = readings.iter().filter_map(|reading| reading.pid()).collect();
    // Where the probe was fast on the same disk, others who write there are not what makes the server's own syncs slow.
    let is_cleared = sync.verdict == Verdict::Fine && told.is_none_or(|told| is_on_one_device(plan, &folder, told));
    let own_syncs = witnesses.own_syncs.filter(|_| !is_cleared);
    let slow = own_syncs.into_iter().chain(sync.is_guilty().then_some(sync.stalled)).reduce(f64::max);
    let used = disk_use(plan, &folder, window, &pids, consumers, probed_bytes);
    vec![
        checks::writers(used.as_ref().map_err(Clone::clone), slow, witnesses.is_witnessed),
        checks::filesystem(plan.host.mount(&folder).as_ref()),
        checks::room(probes::room(&folder)),
        sync,
    ]
}

fn is_on_one_device(plan: &Plan, folder: &Path, told: &str) -> bool {
    let told = Path::new(told);
    let told = told.canonicalize().unwrap_or_else(|_| told.to_path_buf());
    let device = |folder: &Path| plan.host.mount(folder).map(|mount| mount.device);
    device(folder) == device(&told)
}

fn disk_use(
    plan: &Plan,
    folder: &Path,
    window: &Window<'_>,
    pids: &[u32],
    consumers: &[Consumer],
    probed_bytes: u64,
) -> Result<DiskUse, String> {
    let mount = plan.host.mount(folder).ok_or("no mount point leads to the folder")?;
    let disks = |counters: &Counters| -> Result<_, String> {
        let disks = counters.disks.as_ref().map_err(Clone::clone)?;
        disks.get(&mount.device).cloned().ok_or_else(|| {
            format!("/proc/diskstats has no device {} ({}), as with file systems in memory", mount.device, mount.source)
        })
    };
    let (before, after) = (disks(window.before)?, disks(window.after)?);
    let per_second = |bytes: u64| bytes as f64 / window.seconds;
    let written = |pid: &u32| {
        let of = |counters: &Counters| counters.processes.get(pid)?.written_bytes;
        Some(per_second(of(window.after)?.saturating_sub(of(window.before)?)))
    };
    let by_servers: Option<Vec<f64>> = pids.iter().map(written).collect();
    let top = consumers.iter().max_by(|a, b| a.written_per_second.total_cmp(&b.written_per_second));
    Ok(DiskUse {
        device: after.name.clone(),
        written_per_second: per_second(after.written_bytes.saturating_sub(before.written_bytes)),
        by_servers_per_second: by_servers.map(|rates| rates.iter().sum()),
        by_probe_per_second: per_second(probed_bytes),
        busy: (after.busy_ms.saturating_sub(before.busy_ms) as f64 / 1e3 / window.seconds).min(1.0),
        top: top.map(|top| (format!("{} (process {})", top.name, top.pid), top.written_per_second)),
    })
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::talk::Link;

    /// No server is anywhere.
    struct Nobody;

    impl Dialer for Nobody {
        fn dial(&self, place: &str) -> Result<Box<dyn Link>, DialError> {
            Err(DialError::Refused(format!("no answer from {place}")))
        }

        fn reach(&self, _: &str) -> io::Result<Duration> {
            Err(io::ErrorKind::ConnectionRefused.into())
        }
    }

    #[test]
    fn an_examination_without_a_server_ends_before_its_window() {
        let servers = vec!["a:1".to_owned(), "b:2".to_owned()];
        let day = Duration::from_secs(86_400);
        let plan = Plan { servers, data_dir: Some(std::env::temp_dir()), window: day, host: Host::here() };
        let told = examine(&plan, &Nobody, &|_| {}).map(|_| ()).expect_err("nobody can be examined");
        assert_eq!(told, "no answer from a:1; no answer from b:2");
    }
}

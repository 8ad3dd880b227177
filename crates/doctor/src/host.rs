//! Readings of a host: files of the kernel below a root, which tests replace by a folder of their own.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::parse::{self, CpuGroup, CpuTimes, DiskStat, Mount, Pressure, SchedStat, TaskStat, Throttling};

/// More processes are not looked at one by one.
const PROCESSES_MAX: usize = 20_000;
/// More threads of a server are not looked at.
const THREADS_MAX: usize = 512;

/// The name of the thread of an examination that is made within a server. Threads that it starts have the same name,
/// and are not looked at as threads of the server: they wait for processors so that others need not.
pub const EXAMINER: &str = "doctor";

/// Where the files of the kernel are.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
}

impl Host {
    /// This host.
    pub fn here() -> Self {
        Self::under(Path::new("/"))
    }

    /// A folder that holds `proc` and `sys`.
    pub fn under(root: &Path) -> Self {
        Self { root: root.to_path_buf() }
    }

    /// A file, by its path from the root.
    ///
    /// # Errors
    /// Names the file and the cause, on one line.
    pub fn read(&self, path: &str) -> Result<String, String> {
        let full = self.root.join(path);
        let bytes = fs::read(&full).map_err(|error| format!("/{path}: {error}"))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Names of the entries of a folder that are numbers: processes, threads.
    fn numbers(&self, path: &str, max: usize) -> Vec<u32> {
        let entries = fs::read_dir(self.root.join(path)).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).take(max).collect()
    }

    /// What the counters are now.
    pub fn counters(&self) -> Counters {
        let pressure = |name: &str| {
            let path = format!("proc/pressure/{name}");
            self.read(&path).and_then(|text| parse::pressure(&text).ok_or(format!("/{path} is malformed")))
        };
        let vmstat = self.read("proc/vmstat").map(|text| parse::counters(&text));
        Counters {
            moment: Instant::now(),
            cpus: self.read("proc/stat").map(|text| parse::cpu_times(&text)),
            cpu_pressure: pressure("cpu"),
            io_pressure: pressure("io"),
            memory_pressure: pressure("memory"),
            vmstat,
            tcp: self.read("proc/net/snmp").map(|text| parse::protocol_counters(&text, "Tcp")),
            tcp_more: self.read("proc/net/netstat").map(|text| parse::protocol_counters(&text, "TcpExt")),
            softnet_drops: self.read("proc/net/softnet_stat").map(|text| parse::softnet_drops(&text)),
            disks: self.read("proc/diskstats").map(|text| parse::disk_stats(&text)),
            processes: self.processes(),
        }
    }

    fn processes(&self) -> BTreeMap<u32, Process> {
        let mut processes = BTreeMap::new();
        for pid in self.numbers("proc", PROCESSES_MAX) {
            let Some(stat) = self.task(&format!("proc/{pid}")) else { continue };
            let written_bytes = self.read(&format!("proc/{pid}/io")).ok().and_then(|text| parse::written_bytes(&text));
            processes.insert(pid, Process { stat, written_bytes });
        }
        processes
    }

    fn task(&self, folder: &str) -> Option<TaskStat> {
        parse::task_stat(&self.read(&format!("{folder}/stat")).ok()?)
    }

    /// The state of a process, `T` if it is stopped.
    pub fn state(&self, pid: u32) -> Option<char> {
        Some(self.task(&format!("proc/{pid}"))?.state)
    }

    /// Seconds since a process of this host began.
    pub fn age_seconds(&self, pid: u32) -> Option<f64> {
        let up: f64 = self.read("proc/uptime").ok()?.split_ascii_whitespace().next()?.parse().ok()?;
        Some(up - self.task(&format!("proc/{pid}"))?.began_ticks as f64 / TICKS_PER_SECOND)
    }

    /// True if a thread of the process waits for a disk at this moment.
    pub fn waits_for_disk(&self, pid: u32, threads: &[u32]) -> bool {
        threads.iter().any(|id| self.task(&format!("proc/{pid}/task/{id}")).is_some_and(|task| task.state == 'D'))
    }

    /// How long each thread of a process has run and waited.
    pub fn threads(&self, pid: u32) -> BTreeMap<u32, Thread> {
        let own_pid = std::process::id();
        let mut threads = BTreeMap::new();
        for id in self.numbers(&format!("proc/{pid}/task"), THREADS_MAX) {
            let folder = format!("proc/{pid}/task/{id}");
            let times = self.read(&format!("{folder}/schedstat")).ok().and_then(|text| parse::sched_stat(&text));
            if let (Some(times), Some(stat)) = (times, self.task(&folder))
                && (pid != own_pid || stat.name != EXAMINER)
            {
                threads.insert(id, Thread { name: stat.name, processor: stat.processor, times });
            }
        }
        threads
    }

    /// How long one thread has run and waited.
    pub fn thread_times(&self, pid: u32, id: u32) -> Option<SchedStat> {
        parse::sched_stat(&self.read(&format!("proc/{pid}/task/{id}/schedstat")).ok()?)
    }

    /// The throttling of a process by its control group or one above it: the worst of them.
    ///
    /// # Errors
    /// Why nothing is known.
    pub fn throttling(&self, pid: u32) -> Result<Throttling, String> {
        let text = self.read(&format!("proc/{pid}/cgroup"))?;
        let group = parse::cpu_group(&text).ok_or("the process is in no control group for processors")?;
        // Where a container does not see the tree above it, its own group is the root of what is mounted.
        let (bases, path): (&[&str], _) = match group {
            CpuGroup::V1(path) => (&["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"], path),
            CpuGroup::V2(path) => (&["sys/fs/cgroup", "sys/fs/cgroup/unified"], path),
        };
        let mut worst: Option<Throttling> = None;
        for base in bases {
            let mut folder = format!("{base}{}", path.trim_end_matches('/'));
            while folder.len() >= base.len() {
                let stat = self.read(&format!("{folder}/cpu.stat")).ok().and_then(|text| parse::throttling(&text));
                worst = worst.into_iter().chain(stat).max_by_key(|it| (it.throttled_us, it.periods));
                let Some((parent, _)) = folder.rsplit_once('/') else { break };
                folder = parent.to_owned();
            }
        }
        worst.ok_or_else(|| "no cpu.stat of its control group tells of a quota".to_owned())
    }

    /// The file system that a folder is on. Links in the path must have been followed.
    pub fn mount(&self, folder: &Path) -> Option<Mount> {
        parse::mount_of(&self.read("proc/self/mountinfo").ok()?, folder.to_str()?)
    }

    /// What the processors' frequencies are governed by, each name once.
    pub fn governors(&self) -> Vec<String> {
        let numbers = self.read("proc/stat").map(|text| parse::cpu_times(&text).into_keys().collect::<Vec<_>>());
        let read = |number: u32| {
            let path = format!("sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor");
            self.read(&path).ok().map(|text| text.trim().to_owned())
        };
        let mut governors: Vec<String> = numbers.unwrap_or_default().into_iter().filter_map(read).collect();
        governors.sort();
        governors.dedup();
        governors
    }

    /// What the host runs on: the hypervisor's own file, what the firmware says, and whether the processor says that it
    /// is a guest.
    pub fn hypervisor(&self) -> Option<String> {
        let line = |path: &str| self.read(path).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let firmware: Vec<String> =
            ["sys/class/dmi/id/sys_vendor", "sys/class/dmi/id/product_name"].into_iter().filter_map(line).collect();
        let kind = line("sys/hypervisor/type");
        let is_guest = line("proc/cpuinfo").is_some_and(|text| {
            let flags = text.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
            flags.split_ascii_whitespace().any(|flag| flag == "hypervisor")
        });
        let mut names: Vec<String> = kind.into_iter().chain(firmware).collect();
        if names.is_empty() && is_guest {
            // Firecracker has no firmware: its guests find their devices on the kernel's command line.
            let command_line = line("proc/cmdline").unwrap_or_default();
            let is_micro = command_line.contains("virtio_mmio.device") || command_line.contains("pci=off");
            names.push(if is_micro { "a micro virtual machine (KVM)" } else { "a virtual machine" }.to_owned());
        }
        (!names.is_empty()).then(|| names.join(", "))
    }
}

/// A process of the host.
#[derive(Clone, Debug)]
pub struct Process {
    /// Name, state, processor time.
    pub stat: TaskStat,
    /// Bytes it has caused to be written; `None` where we may not know.
    pub written_bytes: Option<u64>,
}

/// A thread of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its name.
    pub name: String,
    /// The processor it ran on last.
    pub processor: u32,
    /// How long it has run and waited since it began.
    pub times: SchedStat,
}

/// All counters of a host at one moment; an error says why one cannot be read.
#[derive(Clone, Debug)]
pub struct Counters {
    /// When they were read.
    pub moment: Instant,
    /// `/proc/stat`
    pub cpus: Result<BTreeMap<u32, CpuTimes>, String>,
    /// `/proc/pressure/cpu`
    pub cpu_pressure: Result<Pressure, String>,
    /// `/proc/pressure/io`
    pub io_pressure: Result<Pressure, String>,
    /// `/proc/pressure/memory`
    pub memory_pressure: Result<Pressure, String>,
    /// `/proc/vmstat`
    pub vmstat: Result<BTreeMap<String, u64>, String>,
    /// `/proc/net/snmp`, TCP.
    pub tcp: Result<BTreeMap<String, u64>, String>,
    /// `/proc/net/netstat`, TCP.
    pub tcp_more: Result<BTreeMap<String, u64>, String>,
    /// `/proc/net/softnet_stat`
    pub softnet_drops: Result<u64, String>,
    /// `/proc/diskstats`
    pub disks: Result<BTreeMap<String, DiskStat>, String>,
    /// `/proc/PID/stat` and `io`
    pub processes: BTreeMap<u32, Process>,
}

/// Two readings and the time between them.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    /// The first.
    pub before: &'a Counters,
    /// The last.
    pub after: &'a Counters,
    /// Between them.
    pub seconds: f64,
}

impl<'a> Window<'a> {
    /// The time between two readings.
    pub fn between(before: &'a Counters, after: &'a Counters) -> Self {
        let seconds = after.moment.saturating_duration_since(before.moment).as_secs_f64().max(1e-3);
        Self { before, after, seconds }
    }

    /// The processes other than these that took most processor time, with processors' worth of it and where they ran
    /// last; and of each what they wrote, in bytes a second.
    pub fn busiest(&self, but: &[u32]) -> Vec<Consumer> {
        let mut consumers: Vec<Consumer> = Vec::new();
        for (pid, after) in self.after.processes.iter().filter(|(pid, _)| !but.contains(pid)) {
            let before = self.before.processes.get(pid);
            let ticks = after.stat.ticks.saturating_sub(before.map_or(0, |before| before.stat.ticks));
            let written = after.written_bytes.unwrap_or(0);
            let written = written.saturating_sub(before.and_then(|before| before.written_bytes).unwrap_or(0));
            consumers.push(Consumer {
                pid: *pid,
                name: after.stat.name.clone(),
                processor: after.stat.processor,
                // A process that began within the window is counted from its own beginning.
                cores: ticks as f64 / TICKS_PER_SECOND / self.seconds,
                written_per_second: written as f64 / self.seconds,
            });
        }
        consumers.sort_by(|a, b| b.cores.total_cmp(&a.cores));
        consumers
    }
}

/// Ticks of `/proc/PID/stat`: the kernel's interface to programs has had a hundred a second on all processors in use.
const TICKS_PER_SECOND: f64 = 100.0;

/// What a process took of the host within a window.
#[derive(Clone, Debug, PartialEq)]
pub struct Consumer {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Where it ran last.
    pub processor: u32,
    /// Processors' worth of time.
    pub cores: f64,
    /// Bytes a second.
    pub written_per_second: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str, files: &[(&str, &str)]) -> (PathBuf, Host) {
        let root = std::env::temp_dir().join(format!("doctor-host-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        let host = Host::under(&root);
        (root, host)
    }

    #[test]
    fn a_host_is_read_below_its_root() {
        let stat = format!("7 (server) T 1 1 1 0 -1 0 0 0 0 0 30 12 {}", vec!["0"; 40].join(" "));
        let (root, host) = folder(
            "files",
            &[
                ("proc/stat", "cpu0 1 2 3 4 5 6 7 8\n"),
                ("proc/7/stat", &stat),
                ("proc/7/cgroup", "1:cpu:/outer/inner\n0::/\n"),
                ("proc/7/task/8/stat", &stat),
                ("proc/7/task/8/schedstat", "5 6 7\n"),
                ("sys/fs/cgroup/cpu/outer/cpu.stat", "nr_periods 9\nnr_throttled 3\nthrottled_time 4000\n"),
                ("sys/fs/cgroup/cpu/outer/inner/cpu.stat", "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n"),
                ("proc/cpuinfo", "flags\t: fpu hypervisor\n"),
            ],
        );
        let counters = host.counters();
        assert_eq!(counters.cpus.as_ref().map(BTreeMap::len), Ok(1));
        assert!(counters.io_pressure.as_ref().is_err_and(|why| why.starts_with("/proc/pressure/io: ")));
        assert_eq!(host.state(7), Some('T'));
        assert_eq!(host.threads(7)[&8].times, SchedStat { run_ns: 5, wait_ns: 6 });
        assert_eq!(host.throttling(7), Ok(Throttling { periods: 9, throttled: 3, throttled_us: 4 }));
        assert!(host.throttling(9).is_err());
        assert_eq!(host.hypervisor().as_deref(), Some("a virtual machine"));
        let later = host.counters();
        let window = Window::between(&counters, &later);
        assert_eq!(window.busiest(&[]).len(), 1);
        assert!(window.busiest(&[7]).is_empty());
        fs::remove_dir_all(root).expect("the folder");
    }
}

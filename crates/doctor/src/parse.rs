//! The files of the kernel as numbers. Every parser takes text, never panics, and leaves out what it does not find.

use std::collections::BTreeMap;

/// Times of a processor from `/proc/stat`, in ticks since the boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// All states together. Guests are part of `user` already and are not counted twice.
    pub total: u64,
    /// Idle, also while a disk is waited for.
    pub idle: u64,
    /// Given to others by the hypervisor.
    pub steal: u64,
}

/// Each processor by its number.
pub fn cpu_times(stat: &str) -> BTreeMap<u32, CpuTimes> {
    let mut processors = BTreeMap::new();
    for line in stat.lines() {
        let mut words = line.split_ascii_whitespace();
        let number = words.next().and_then(|name| name.strip_prefix("cpu")).and_then(|number| number.parse().ok());
        let Some(number) = number else { continue };
        let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).take(8).collect();
        if ticks.len() < 4 {
            continue;
        }
        let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
        let total = ticks.iter().fold(0, |sum: u64, ticks| sum.saturating_add(*ticks));
        processors.insert(number, CpuTimes { total, idle: at(3).saturating_add(at(4)), steal: at(7) });
    }
    processors
}

/// `schedstat` of a thread, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedStat {
    /// It ran.
    pub run_ns: u64,
    /// It could have run, and waited for a processor.
    pub wait_ns: u64,
}

/// One line: run, wait, number of slices.
pub fn sched_stat(text: &str) -> Option<SchedStat> {
    let mut words = text.split_ascii_whitespace();
    let mut next = || words.next()?.parse().ok();
    Some(SchedStat { run_ns: next()?, wait_ns: next()? })
}

/// Totals of a pressure file: microseconds in which some work, and in which all work, stood still.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// At least one task waited.
    pub some_us: u64,
    /// All tasks that were not idle waited.
    pub full_us: u64,
}

/// `/proc/pressure/*`. A line that is missing counts as nothing; without `some` there is no answer.
pub fn pressure(text: &str) -> Option<Pressure> {
    let total = |kind: &str| {
        let line = text.lines().find(|line| line.split_ascii_whitespace().next() == Some(kind))?;
        line.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
    };
    Some(Pressure { some_us: total("some")?, full_us: total("full").unwrap_or(0) })
}

/// Lines of a name and a number: `/proc/vmstat`, `cpu.stat`, `memory.events`.
pub fn counters(text: &str) -> BTreeMap<String, u64> {
    let pairs = text.lines().filter_map(|line| line.split_once(char::is_whitespace));
    pairs.filter_map(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?))).collect()
}

/// Figures of one kind, such as `Tcp`, from `/proc/net/snmp` or `/proc/net/netstat`: a line of names, one of numbers.
pub fn protocol_counters(text: &str, kind: &str) -> BTreeMap<String, u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':')).filter(|(name, _)| *name == kind);
    let (Some((_, names)), Some((_, values))) = (lines.next(), lines.next()) else { return BTreeMap::new() };
    let pairs = names.split_ascii_whitespace().zip(values.split_ascii_whitespace());
    pairs.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()
}

/// A device in `/proc/diskstats`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskStat {
    /// Such as `vda`.
    pub name: String,
    /// Bytes written since the boot.
    pub written_bytes: u64,
    /// Writes that were completed.
    pub writes: u64,
    /// Milliseconds that writes took, added up.
    pub write_ms: u64,
    /// Milliseconds in which anything was under way.
    pub busy_ms: u64,
}

/// Devices by `major:minor`. A sector of this file has 512 bytes, whatever the device says.
pub fn disk_stats(text: &str) -> BTreeMap<String, DiskStat> {
    let mut devices = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [major, minor, name, numbers @ ..] = words.as_slice() else { continue };
        let at = |index: usize| numbers.get(index).and_then(|word| word.parse::<u64>().ok());
        if let (Some(writes), Some(sectors), Some(write_ms), Some(busy_ms)) = (at(4), at(6), at(7), at(9)) {
            let written_bytes = sectors.saturating_mul(512);
            let stat = DiskStat { name: (*name).to_owned(), written_bytes, writes, write_ms, busy_ms };
            devices.insert(format!("{major}:{minor}"), stat);
        }
    }
    devices
}

/// A mounted file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    /// `major:minor` of its device.
    pub device: String,
    /// Where it is mounted.
    pub point: String,
    /// Such as `ext4`.
    pub kind: String,
    /// What it is made of, such as `/dev/vda`.
    pub source: String,
    /// Options of the mount and of the file system, with commas.
    pub options: String,
}

/// The file system that a path of `/proc/self/mountinfo` is on: the longest mount point that leads to it, the latest of
/// equal ones.
pub fn mount_of(mountinfo: &str, path: &str) -> Option<Mount> {
    let mut best: Option<Mount> = None;
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let left: Vec<&str> = left.split(' ').collect();
        let right: Vec<&str> = right.split(' ').collect();
        let ([_, _, device, _, point, own, ..], [kind, source, rest @ ..]) = (left.as_slice(), right.as_slice()) else {
            continue;
        };
        let point = unescape(point);
        let leads = path == point || path.starts_with(&format!("{}/", point.trim_end_matches('/')));
        if leads && best.as_ref().is_none_or(|best| best.point.len() <= point.len()) {
            let options = [*own].into_iter().chain(rest.first().copied()).collect::<Vec<_>>().join(",");
            let [device, kind, source] = [device, kind, source].map(|word| (*word).to_owned());
            best = Some(Mount { device, point, kind, source, options });
        }
    }
    best
}

/// Blanks and the like are written as three octal digits.
fn unescape(word: &str) -> String {
    let mut text = word.to_owned();
    for (code, character) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        text = text.replace(code, character);
    }
    text
}

/// Where the files of a control group of processors are, as folders from the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CpuGroup {
    /// Version 1, below where the controller `cpu` is mounted.
    V1(String),
    /// Version 2.
    V2(String),
}

/// The group of `/proc/PID/cgroup`. The processors of a process are looked after by version 1 if that has the
/// controller `cpu`, and otherwise by version 2.
pub fn cpu_group(text: &str) -> Option<CpuGroup> {
    let mut unified = None;
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        if controllers.split(',').any(|controller| controller == "cpu") {
            return Some(CpuGroup::V1(path.to_owned()));
        }
        if number == "0" && controllers.is_empty() {
            unified = Some(CpuGroup::V2(path.to_owned()));
        }
    }
    unified
}

/// What throttling a `cpu.stat` tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttling {
    /// Periods in which the group had work.
    pub periods: u64,
    /// Of these, periods in which its quota ran out.
    pub throttled: u64,
    /// Time for which it stood still, added up over processors, in microseconds.
    pub throttled_us: u64,
}

/// Both versions: the first counts nanoseconds in `throttled_time`, the second microseconds in `throttled_usec`. `None`
/// where the file tells nothing of a quota, as at the root of version 2.
pub fn throttling(text: &str) -> Option<Throttling> {
    let counters = counters(text);
    let throttled_us = match (counters.get("throttled_usec"), counters.get("throttled_time")) {
        (Some(micros), _) => *micros,
        (None, Some(nanos)) => nanos / 1_000,
        (None, None) => return None,
    };
    Some(Throttling { periods: *counters.get("nr_periods")?, throttled: *counters.get("nr_throttled")?, throttled_us })
}

/// The value in brackets of a file such as `transparent_hugepage/enabled`.
pub fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(chosen, _)| chosen)
}

/// A field of `/proc/PID/status` or `/proc/meminfo`, without its unit.
pub fn status_number(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(field, _)| *field == name)?;
    value.split_ascii_whitespace().next()?.parse().ok()
}

/// The soft limit behind a name in `/proc/PID/limits`; no limit is the largest number.
pub fn soft_limit(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    match rest.split_ascii_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

/// What `/proc/PID/stat` tells of a process or thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskStat {
    /// Its name; may hold any character, also brackets and blanks.
    pub name: String,
    /// `R`, `S`, `D`, `T` and so on.
    pub state: char,
    /// Processor time in the program and in the kernel, in ticks.
    pub ticks: u64,
    /// When it began, in ticks since the boot.
    pub began_ticks: u64,
    /// The processor it ran on last.
    pub processor: u32,
}

/// The name ends at the last bracket.
pub fn task_stat(text: &str) -> Option<TaskStat> {
    let (head, tail) = text.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    let words: Vec<&str> = tail.split_ascii_whitespace().collect();
    let number = |index: usize| words.get(index).and_then(|word| word.parse::<u64>().ok());
    let ticks = number(11)?.saturating_add(number(12)?);
    let processor = words.get(36).and_then(|word| word.parse().ok()).unwrap_or(0);
    let state = words.first()?.chars().next()?;
    Some(TaskStat { name: name.to_owned(), state, ticks, began_ticks: number(19).unwrap_or(0), processor })
}

/// Bytes that a process has caused to be written, from `/proc/PID/io`.
pub fn written_bytes(text: &str) -> Option<u64> {
    status_number(text, "write_bytes")
}

/// Connections in TIME_WAIT, from `/proc/net/sockstat`.
pub fn time_wait_count(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("TCP:"))?;
    let mut words = line.split_ascii_whitespace();
    words.by_ref().find(|word| *word == "tw")?;
    words.next()?.parse().ok()
}

/// Packets that were dropped because a processor's queue was full, from `/proc/net/softnet_stat`.
pub fn softnet_drops(text: &str) -> u64 {
    let dropped = text.lines().filter_map(|line| line.split_ascii_whitespace().nth(1));
    dropped.filter_map(|word| u64::from_str_radix(word, 16).ok()).fold(0, u64::saturating_add)
}

/// Fields of INFO and of other texts with a colon in each line.
pub fn info(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(':'));
    lines.map(|(name, value)| (name.to_owned(), value.trim_end().to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_have_times_and_the_sum_of_all_is_left_out() {
        let stat = "cpu  9 9 9 9\ncpu0 10 1 2 30 4 5 6 7 8 9\ncpu1 1 2 3 4\ncpux 1 2 3 4\ncpu3 1 2\nintr 5\n";
        let times = cpu_times(stat);
        assert_eq!(times.keys().copied().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(times[&0], CpuTimes { total: 65, idle: 34, steal: 7 });
        assert_eq!(times[&1].steal, 0);
    }

    #[test]
    fn threads_have_run_and_waited() {
        assert_eq!(sched_stat("2928081 2242026 18\n"), Some(SchedStat { run_ns: 2_928_081, wait_ns: 2_242_026 }));
        assert_eq!(sched_stat("5"), None);
        assert_eq!(sched_stat("x y z"), None);
    }

    #[test]
    fn pressure_has_totals() {
        let text = "some avg10=13.21 avg60=15.86 avg300=8.32 total=40054400\nfull avg10=0.00 total=7\n";
        assert_eq!(pressure(text), Some(Pressure { some_us: 40_054_400, full_us: 7 }));
        assert_eq!(pressure("some avg10=1 total=4"), Some(Pressure { some_us: 4, full_us: 0 }));
        assert_eq!(pressure("some total=many"), None);
    }

    #[test]
    fn counters_are_names_and_numbers() {
        let text = "pswpin 3\nbroken\nbad x\npgmajfault  17\n";
        assert_eq!(counters(text), BTreeMap::from([("pswpin".to_owned(), 3), ("pgmajfault".to_owned(), 17)]));
        let snmp = "Ip: a b\nIp: 1 2\nTcp: OutSegs RetransSegs MaxConn\nTcp: 100 3 -1\n";
        assert_eq!(protocol_counters(snmp, "Tcp").get("RetransSegs"), Some(&3));
        assert_eq!(protocol_counters(snmp, "Tcp").get("MaxConn"), None);
        assert!(protocol_counters("Tcp: a b", "Tcp").is_empty());
    }

    #[test]
    fn disks_count_in_sectors_of_512_bytes() {
        let text =
            " 254  0 vda 32309 6343 3371178 12568 9718 27535 80 94401 0 10292 109894 5085 63 0\n 7 0 loop0 0 0\n";
        let disks = disk_stats(text);
        let expected =
            DiskStat { name: "vda".into(), written_bytes: 40_960, writes: 9_718, write_ms: 94_401, busy_ms: 10_292 };
        assert_eq!(disks, BTreeMap::from([("254:0".to_owned(), expected)]));
    }

    #[test]
    fn the_longest_mount_point_wins() {
        let text = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n\
                    28 27 0:30 / /dev/shm rw - tmpfs tmpfs rw,size=4k\n\
                    29 27 8:1 / /mnt/my\\040disk rw shared:1 - xfs /dev/sda1 rw,nobarrier\nbroken line\n30 - -\n";
        assert_eq!(mount_of(text, "/tmp/x").map(|mount| mount.kind).as_deref(), Some("ext4"));
        assert_eq!(mount_of(text, "/dev/shmx").map(|mount| mount.kind).as_deref(), Some("ext4"));
        assert_eq!(mount_of(text, "/dev/shm").map(|mount| mount.device).as_deref(), Some("0:30"));
        let disk = mount_of(text, "/mnt/my disk/data").expect("a mount");
        assert_eq!((disk.source.as_str(), disk.options.as_str()), ("/dev/sda1", "rw,rw,nobarrier"));
        assert_eq!(mount_of("", "/"), None);
    }

    #[test]
    fn groups_of_both_versions_are_found() {
        assert_eq!(cpu_group("1:cpu:/a\n0::/b\n"), Some(CpuGroup::V1("/a".into())));
        assert_eq!(cpu_group("4:cpu,cpuacct:/a:b\n"), Some(CpuGroup::V1("/a:b".into())));
        assert_eq!(cpu_group("2:cpuacct:/\n0::/user.slice\n"), Some(CpuGroup::V2("/user.slice".into())));
        assert_eq!(cpu_group("nonsense"), None);
    }

    #[test]
    fn throttling_is_in_microseconds_in_both_versions() {
        let expected = Some(Throttling { periods: 10, throttled: 4, throttled_us: 5 });
        assert_eq!(throttling("nr_periods 10\nnr_throttled 4\nthrottled_time 5000\n"), expected);
        assert_eq!(throttling("usage_usec 1\nnr_periods 10\nnr_throttled 4\nthrottled_usec 5\n"), expected);
        assert_eq!(throttling("usage_usec 1\n"), None);
    }

    #[test]
    fn tasks_may_have_any_name() {
        let tail = (0..34).map(|_| "0").collect::<Vec<_>>().join(" ");
        let line = format!("12 (a) b) S 1 1 1 0 -1 0 0 0 0 0 30 12 {tail}");
        let stat = task_stat(&line).expect("a line");
        assert_eq!((stat.name.as_str(), stat.state, stat.ticks), ("a) b", 'S', 42));
        assert_eq!(task_stat("12 (a"), None);
        assert_eq!(task_stat("12 (a) S"), None);
        assert_eq!(task_stat(") ("), None);
    }

    #[test]
    fn small_files_are_read() {
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
        assert_eq!(chosen("always"), None);
        assert_eq!(status_number("VmSwap:\t  12 kB\n", "VmSwap"), Some(12));
        assert_eq!(status_number("VmSwap: kB", "VmSwap"), None);
        let limits =
            "Max open files            20000                20000                files\nMax x   unlimited  u\n";
        assert_eq!(soft_limit(limits, "Max open files"), Some(20_000));
        assert_eq!(soft_limit(limits, "Max x"), Some(u64::MAX));
        assert_eq!(soft_limit(limits, "Max y"), None);
        assert_eq!(written_bytes("rchar: 1\nwrite_bytes: 77\ncancelled_write_bytes: 0\n"), Some(77));
        assert_eq!(time_wait_count("sockets: used 15\nTCP: inuse 1 orphan 0 tw 5 alloc 1 mem 8\n"), Some(5));
        assert_eq!(time_wait_count("TCP: inuse 1 tw\n"), None);
        assert_eq!(softnet_drops("00003296 0000000a 0\n00004bb2 00000001 0\nzz zz\n"), 11);
        let info = info("# Server\r\nredis_version:7.0.15\r\nos:Linux: x\r\nnothing\r\n");
        assert_eq!(info.get("redis_version").map(String::as_str), Some("7.0.15"));
        assert_eq!(info.get("os").map(String::as_str), Some("Linux: x"));
    }

    #[test]
    fn no_parser_panics_on_anything() {
        let mut texts = vec![String::new(), "\n\n".into(), ":".into(), "::::".into(), "[".into(), "][".into()];
        texts.extend(
            ["cpu0 18446744073709551615 18446744073709551615 1 1", "Tcp: \u{fffd}\nTcp:", "(", ")", "-1 -2"]
                .map(String::from),
        );
        // Every prefix of something real, and it with each byte made another.
        let real = "12 (a) S 1 1 1 0 -1 0 0 0 0 0 30 12\nTcp: a\nTcp: 1\nsome total=1\n27 1 254:0 / / rw - ext4 x rw\n";
        texts.extend((0..real.len()).map(|end| real[..end].to_owned()));
        texts.extend((0..real.len()).map(|at| format!("{}\u{e9}{}", &real[..at], &real[at + 1..])));
        for text in texts {
            let _ = (cpu_times(&text), sched_stat(&text), pressure(&text), counters(&text), disk_stats(&text));
            let _ = (protocol_counters(&text, "Tcp"), mount_of(&text, "/a"), cpu_group(&text), throttling(&text));
            let _ = (chosen(&text), status_number(&text, "Tcp"), soft_limit(&text, "some"), task_stat(&text));
            let _ = (written_bytes(&text), time_wait_count(&text), softnet_drops(&text), info(&text));
        }
    }
}

//! What only the host can know of the process: memory and CPU time.

use std::fs;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::time::TimeValLike;
use node::event::{HostReport, JournalFigures};

use crate::clock;
use crate::host::Host;

/// What the allocator says of itself, in bytes. The binary chooses the allocator, so it hands in the function that asks
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allocated {
    /// Given out to the program.
    pub allocated_bytes: u64,
    /// In pages that hold anything given out.
    pub active_bytes: u64,
    /// In pages that are in memory.
    pub resident_bytes: u64,
}

/// Measures the process.
pub fn measure(host: &Host, allocated: Allocated, journal: JournalFigures) -> HostReport {
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok();
    let micros = |time: Option<nix::sys::time::TimeVal>| {
        time.and_then(|time| u64::try_from(time.num_microseconds()).ok()).unwrap_or_default()
    };
    HostReport {
        at: clock::instant(),
        used_memory_bytes: allocated.allocated_bytes,
        resident_bytes: resident_bytes().unwrap_or_default(),
        allocator_active_bytes: allocated.active_bytes,
        allocator_resident_bytes: allocated.resident_bytes,
        system_memory_bytes: *SYSTEM_MEMORY_BYTES,
        cpu_user_us: micros(usage.map(|usage| usage.user_time())),
        cpu_system_us: micros(usage.map(|usage| usage.system_time())),
        journal,
        client_count: host.client_count(),
        client_bytes: host.desks.iter().map(|desk| desk.client_bytes.load(Ordering::Relaxed)).sum(),
        rejected_count: host.rejected_count.load(Ordering::Relaxed),
        core_wake_count: host.desks.iter().map(|desk| desk.mailbox.woken_count()).sum(),
        core_help_count: host.desks.iter().map(|desk| desk.helped_count.load(Ordering::Relaxed)).sum(),
        core_thread_count: host.thread_count() as u64,
        links: host.peers.reports(),
        gone_link_bytes: host.peers.gone_bytes(),
        migrate_line_count: host.carrier.line_count(),
        following: host.lead.report(),
        archive: None,
        site: host.site.report(),
        backups: host.backups(),
        stalls: host.black_box.stalls(),
    }
}

/// Resident set, from `/proc/self/statm` (proc(5): second number, in pages).
fn resident_bytes() -> Option<u64> {
    let page_bytes = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok()??;
    let pages: u64 = fs::read_to_string("/proc/self/statm").ok()?.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * u64::try_from(page_bytes).ok()?)
}

/// Memory of the machine, which is read once (proc(5), `/proc/meminfo`: in kibibytes).
static SYSTEM_MEMORY_BYTES: LazyLock<u64> = LazyLock::new(|| {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).unwrap_or_default() * 1024
});

/// Memory that the process may have: the machine's, or what its control group (version 2) is allowed.
pub fn memory_allowed_bytes() -> u64 {
    let group = fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse::<u64>().ok());
    group.map_or(*SYSTEM_MEMORY_BYTES, |group| group.min(*SYSTEM_MEMORY_BYTES))
}

/// Asks for so many open files, and says how many there may be.
pub fn allow_descriptors(wanted: u64) -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return wanted };
    if soft >= wanted {
        return soft;
    }
    // A privileged process may raise the hard limit as well.
    for (soft, hard) in [(wanted, hard.max(wanted)), (hard.min(wanted), hard)] {
        if setrlimit(Resource::RLIMIT_NOFILE, soft, hard).is_ok() {
            return soft;
        }
    }
    soft
}

/// Files that the process may come to have open, after [`allow_descriptors`].
pub fn descriptors_max() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return u64::MAX };
    let ceiling = fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|text| text.trim().parse().ok());
    // Only a privileged process may raise the hard limit, and the way to know is to do it.
    match ceiling {
        Some(ceiling) if ceiling > hard && setrlimit(Resource::RLIMIT_NOFILE, soft, ceiling).is_ok() => ceiling,
        _ => hard,
    }
}

/// Operating system, release and machine, as INFO tells them.
pub fn operating_system() -> String {
    let Ok(name) = nix::sys::utsname::uname() else { return std::env::consts::OS.to_owned() };
    [name.sysname(), name.release(), name.machine()].map(|part| part.to_string_lossy()).join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_has_memory() {
        let resident = resident_bytes().expect("/proc is mounted");
        let all = *SYSTEM_MEMORY_BYTES;
        assert!(0 < resident && resident < all);
    }

    #[test]
    fn what_is_allowed_already_is_not_asked_for() {
        assert!(allow_descriptors(1) >= 1);
    }
}

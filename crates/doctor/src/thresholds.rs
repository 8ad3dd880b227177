//! Where fine ends. Each number names its source. "Estimated" is what it says, and "measured" means that faults were
//! injected, on a virtual machine of two processors.

/// Share of a processor's time that the hypervisor gave to others, estimated: below it the kernel's own ticks, a
/// hundred a second, decide. Measured: 0.02 to 0.3 on an oversubscribed host.
pub const STEAL_MAX: f64 = 0.02;
/// Share of waiting in the time that a thread ran or wanted to. Measured: above 0.6 with neighbours on its core, 0.08
/// to 0.2 on a host with five times as much work as processors, 0.01 to 0.04 for threads that go before others.
pub const WAITING_MAX: f64 = 0.05;
/// A thread that waited for less than this share of the whole window has lost nothing that a client would notice.
pub const WAITING_WINDOW_MIN: f64 = 0.01;
/// Share of a group's periods in which the quota ran out. The alert `CPUThrottlingHigh` of kubernetes-mixin fires at
/// 25 % of periods; a store with a deadline notices one in a hundred, since each costs up to a period of 100 ms.
pub const THROTTLED_PERIODS_MAX: f64 = 0.01;
/// Share of the window in which some task waited for a processor. Short queues are normal on a busy host; only what
/// lasts is named.
pub const CPU_PRESSURE_MAX: f64 = 0.5;
/// Share of the window in which all work waited for the disk: `io full` above 5 %.
pub const IO_FULL_MAX: f64 = 0.05;
/// Share of the window in which all work waited for memory. There is no healthy reason for it: `memory full`
/// above 0.5 %.
pub const MEMORY_FULL_MAX: f64 = 0.005;
/// Pages read back from swap in a second. redis.io's page on latency: any swapping while serving is a cause.
pub const SWAP_IN_PER_SECOND_MAX: f64 = 1.0;
/// Pages that processes scanned in a second because they had to free memory themselves.
pub const DIRECT_RECLAIM_PER_SECOND_MAX: f64 = 100.0;
/// Compactions of memory in a second that made a process wait.
pub const COMPACTION_PER_SECOND_MAX: f64 = 1.0;
/// Nanoseconds to read the clock. A read through the vDSO takes 20 to 50, a system call for a slow source hundreds;
/// Redis's `--check-system` calls sources slow that need system calls.
pub const CLOCK_NANOS_MAX: f64 = 100.0;
/// A short sleep that ended so much too late is a stall, in milliseconds.
pub const TIMER_LATE_MS: f64 = 5.0;
/// Share of the window in which timers were late. Measured: 0.01 on a host with much work, 0.04 and more where the
/// hypervisor took its processors away.
pub const TIMER_LATE_SHARE_MAX: f64 = 0.02;
/// A gap in a loop that only reads the clock, longer than this many milliseconds, is a pause. `redis-cli
/// --intrinsic-latency` on a physical host shows tenths of a millisecond.
pub const PAUSE_MS: f64 = 1.0;
/// Share of the looped time that was lost in pauses for which the host had no reason of its own.
pub const PAUSE_SHARE_MAX: f64 = 0.02;
/// Fewer pauses than this prove nothing.
pub const PAUSES_MIN: u64 = 3;

/// A host that let a server stand still for so many milliseconds at once has cost its clients an answer in time:
/// estimated, from the time-outs of a second and below that clients of Redis are given.
pub const PAST_STALL_MS: u64 = 1_000;
/// Of stalls so many hours ago and later is told: a night.
pub const PAST_STALL_HOURS: u64 = 24;
/// Seconds after the start of a server in which it loads, and stalls say nothing of its host.
pub const START_SECONDS: u64 = 60;

/// Milliseconds that 99 of 100 syncs of a few kilobytes must not exceed: etcd's documentation of hardware.
pub const SYNC_P99_MS: f64 = 10.0;
/// And the median: a disk without a volatile cache takes tenths, a network disk one or two milliseconds, a rotating
/// disk eight to ten.
pub const SYNC_P50_MS: f64 = 5.0;
/// Fewer late syncs than this prove nothing.
pub const SYNCS_LATE_MIN: usize = 3;
/// Syncs beyond the reference matter once they cost this share of all time spent in syncs.
pub const SYNC_EXCESS_MIN: f64 = 0.1;
/// A disk that is busy for a larger share of the window is at its limit.
pub const DISK_BUSY_MAX: f64 = 0.8;
/// Others who write a larger share of a slow disk's bytes than the server are why it is slow.
pub const OTHERS_SHARE_MAX: f64 = 0.5;
/// Bytes a second below which writers are no load for any disk.
pub const WRITERS_BYTES_PER_SECOND_MIN: f64 = 4.0 * 1024.0 * 1024.0;
/// Part of a file system that must be free.
pub const ROOM_MIN: f64 = 0.05;

/// Milliseconds to reach a server. Zones of one region are one to two apart; what is further is another region or a
/// network that delays.
pub const ROUND_TRIP_MS: f64 = 5.0;
/// What a round trip may take without counting as lost, in milliseconds.
pub const ROUND_TRIP_FREE_MS: f64 = 1.0;
/// A server that is so many times as far away as the median of the others is an outlier.
pub const ROUND_TRIP_OUTLIER: f64 = 3.0;
/// Round trips below this many milliseconds are not compared: their differences are noise.
pub const ROUND_TRIP_NOISE_MS: f64 = 0.5;
/// Bytes a second through one connection: a tenth of a network of 1 Gbit/s.
pub const THROUGHPUT_MIN: f64 = 12.5e6;
/// Share of segments sent again.
pub const RETRANSMITS_MAX: f64 = 0.005;
/// Fewer segments sent again than this in a window prove nothing.
pub const RETRANSMITS_MIN: u64 = 3;

/// A PING that takes so many milliseconds longer than the median is a stall.
pub const STALL_MS: f64 = 5.0;
/// Share of the window that PINGs spent in stalls.
pub const STALL_SHARE_MAX: f64 = 0.01;
/// Seconds of slow log before the examination that are looked at.
pub const SLOW_LOG_SECONDS: u64 = 600;
/// A command that takes so many milliseconds is felt by every other client of the same thread.
pub const SLOW_COMMAND_MS: f64 = 100.0;
/// Share of the window that commands of the slow log took.
pub const SLOW_SHARE_MAX: f64 = 0.02;
/// Mean bytes of a reply beyond which bytes, and not commands, are the work. The usual value is below a kilobyte; the
/// mean is of all replies, so that a few large ones among many small ones are seen.
pub const REPLY_BYTES_MAX: f64 = 32.0 * 1024.0;
/// Bytes a second that one thread copies and writes into sockets, estimated; replies of 100 MB came at half of that
/// from a build without optimization.
pub const REPLY_BYTES_PER_SECOND: f64 = 1e9;
/// Share of a thread that large replies may take.
pub const REPLY_SHARE_MAX: f64 = 0.02;
/// New connections in a second. Pools connect once; a hundred a second is a client without one.
pub const CONNECTIONS_PER_SECOND_MAX: f64 = 100.0;
/// Processor time that a connection costs that is opened, used once and closed, the kernel's part included, in seconds:
/// estimated; several times that with TLS.
pub const CONNECTION_COST_SECONDS: f64 = 1e-4;
/// Bytes of a key that stall others when it is read, copied, moved or deleted as a whole.
pub const BIG_KEY_BYTES: u64 = 10 * 1024 * 1024;
/// Part of one core's time that commands on one key may take. It lies on one core, however many there are.
pub const HOT_KEY_SHARE_MAX: f64 = 0.2;
/// Calls in a second below which a key is not hot: if they take long, they are slow.
pub const HOT_KEY_CALLS_MIN: f64 = 100.0;
/// Bytes of replies that a client has not fetched: the limit at which Redis's defaults cut subscribers off.
pub const UNREAD_BYTES: u64 = 32 * 1024 * 1024;
/// Resident to used memory. MEMORY DOCTOR of Redis complains above 1.4 and beyond 10 MB; a ratio alone lies where
/// little is used.
pub const FRAGMENTATION_MAX: f64 = 1.5;
/// Bytes that must be held in vain before fragmentation is named.
pub const FRAGMENTATION_BYTES_MIN: u64 = 128 * 1024 * 1024;
/// Part of `maxmemory` beyond which the next burst is evicted or refused.
pub const MEMORY_USED_MAX: f64 = 0.95;
/// Milliseconds in which a server stands still to fork.
pub const FORK_MS: f64 = 50.0;
/// Milliseconds for a sync of a server's own log, on average.
pub const LOG_SYNC_MEAN_MS: f64 = 10.0;
/// Kilobytes of a server that may be in swap.
pub const SWAPPED_KB_MAX: u64 = 1024;
/// Length of the queue of connections that are not accepted yet; Redis asks for 511.
pub const BACKLOG_MIN: u64 = 511;
/// Part of the ports for outgoing connections that may be in TIME_WAIT.
pub const TIME_WAIT_MAX: f64 = 0.8;
/// Files that a server needs beside its clients; Redis reserves 32.
pub const FILES_RESERVED: u64 = 32;

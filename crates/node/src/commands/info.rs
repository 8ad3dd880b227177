//! INFO: what the node is and how it does.

use command::{Flag, Refusal};
use group::figures::GroupFigures;
use group::host::AppendFsync;
use group::ids::Now;
use keyspace::Removals;
use resp::{Args, Writer};

use std::collections::{BTreeMap, BTreeSet};

use super::connection::REDIS_VERSION;
use super::{Answer, ControlCommand, Figures, Local, Outcome, Question, node, overview};
use crate::catalog::catalog;
use crate::context::Context;
use crate::pubsub::Kind;
use crate::reports::SiteFollower;
use crate::stats::calls::CallFigures;
use crate::stats::counters::Statistics;
use crate::stats::timing::TimeFigures;

/// Takes a field of a section and its value.
pub(super) type Line<'a> = dyn FnMut(&str, &dyn std::fmt::Display) + 'a;

pub(super) const INFO: ControlCommand = ControlCommand {
    summary: "Shows what the node is and how it is doing.",
    syntax: "[section [section ...]]",
    flags: &[Flag::Loading, Flag::Stale],
    categories: &["@dangerous"],
    tips: &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"],
    ..node("info", -1, question, join)
};

fn question(_: &mut Local<'_>, args: Args<'_>) -> Result<Question, Refusal> {
    let shows_times = |word: &[u8]| matches!(word, b"all" | b"everything" | b"latencystats");
    let wanted = args.iter().skip(1).any(|word| shows_times(word.to_ascii_lowercase().as_slice()));
    Ok(if wanted { Question::FiguresWithTimes } else { Question::Figures })
}

/// Sections in the order in which they are told.
const SECTIONS: &[&str] = &[
    "server",
    "clients",
    "memory",
    "persistence",
    "stats",
    "replication",
    "site",
    "cpu",
    "modules",
    "commandstats",
    "errorstats",
    "latencystats",
    "cluster",
    "keyspace",
    "holdfast",
];

/// Sections shown only to a client that asks for them, or for all.
const LONG_SECTIONS: &[&str] = &["commandstats", "latencystats"];

fn join(local: &mut Local<'_>, args: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    let figures = figures_of(answers);
    let wanted: Vec<String> =
        args.iter().skip(1).map(|word| String::from_utf8_lossy(word).to_ascii_lowercase()).collect();
    let takes_all = wanted.iter().any(|word| matches!(word.as_str(), "all" | "everything"));
    let takes_usual = wanted.is_empty() || wanted.iter().any(|word| word == "default");
    let is_told = |section: &str| {
        takes_all || (takes_usual && !LONG_SECTIONS.contains(&section)) || wanted.iter().any(|word| word == section)
    };
    let mut text = String::new();
    for section in SECTIONS {
        if is_told(section) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            write_section(section, local.core, local.now, &figures, &mut text);
        }
    }
    writer.verbatim("txt", text.as_bytes());
    Ok(())
}

/// What INFO answers in these sections, by field, for figures of all cores.
pub(crate) fn fields(core: &Context, now: Now, figures: &[Figures], sections: &[&str]) -> BTreeMap<String, String> {
    let mut text = String::new();
    sections.iter().for_each(|section| write_section(section, core, now, figures, &mut text));
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// One core's counters added to another's.
fn total(figures: &[Figures]) -> Statistics {
    let mut sum = Statistics::default();
    for Figures { statistics, .. } in figures {
        sum.connection_count += statistics.connection_count;
        sum.input_bytes += statistics.input_bytes;
        sum.output_bytes += statistics.output_bytes;
        sum.not_thorough_count += statistics.not_thorough_count;
        sum.malformed_peer_count += statistics.malformed_peer_count;
        sum.cut_count += statistics.cut_count;
        sum.evicted_count += statistics.evicted_count;
        sum.unauthenticated_count += statistics.unauthenticated_count;
        sum.http_count += statistics.http_count;
        sum.replica_read_count += statistics.replica_read_count;
        sum.read_count += statistics.read_count;
        sum.write_count += statistics.write_count;
    }
    figures.iter().for_each(|figures| sum.lookups.add(figures.lookups()));
    sum
}

/// Calls of all cores, by the command's full name.
pub(crate) fn total_calls(figures: &[Figures]) -> BTreeMap<&'static str, CallFigures> {
    let mut sum: BTreeMap<_, CallFigures> = BTreeMap::new();
    for (place, figures) in figures.iter().flat_map(|figures| figures.calls.commands()) {
        sum.entry(catalog().entries()[place].full_name.as_str()).or_default().add(figures);
    }
    sum
}

/// Times of all cores, by the command's full name.
pub(crate) fn total_times(figures: &[Figures]) -> BTreeMap<&'static str, TimeFigures> {
    let mut sum: BTreeMap<_, TimeFigures> = BTreeMap::new();
    for (place, figures) in figures.iter().flat_map(|figures| &figures.times) {
        sum.entry(catalog().entries()[*place].full_name.as_str()).or_default().add(figures);
    }
    sum
}

/// Error replies of all cores, by their code.
pub(crate) fn total_errors(figures: &[Figures]) -> BTreeMap<&str, u64> {
    let mut sum = BTreeMap::new();
    for (code, count) in figures.iter().flat_map(|figures| figures.calls.errors()) {
        *sum.entry(code.as_str()).or_default() += count;
    }
    sum
}

/// A number of bytes as people read it, in Redis's form.
fn human(bytes: u64) -> String {
    let scaled = |unit: u64| bytes as f64 / unit as f64;
    match bytes {
        0..1_024 => format!("{bytes}B"),
        1_024..1_048_576 => format!("{:.2}K", scaled(1 << 10)),
        1_048_576..1_073_741_824 => format!("{:.2}M", scaled(1 << 20)),
        _ => format!("{:.2}G", scaled(1 << 30)),
    }
}

/// What is kept for a second site, who follows, and how the cluster is that this one follows.
fn write_site(core: &Context, line: &mut Line<'_>) {
    let site = &core.host.report.site;
    line("site_backlog", if site.keeps_backlog { &"on" } else { &"off" });
    if site.keeps_backlog {
        line("site_backlog_bytes", &site.backlog_bytes);
        line("site_backlog_bytes_max", &core.settings.get("site-backlog-size"));
        line("site_backlog_written_bytes", &site.written_bytes);
        line("site_backlog_moment_ms", &site.moment_ms);
        line("site_backlog_oldest_ms", &site.oldest_ms);
        line("site_backlog_fault", &site.fault);
        line("site_copies_sent", &site.copy_count);
        line("site_continued", &site.continued_count);
        line("site_followers", &site.followers.len());
        for (number, follower) in site.followers.values().enumerate() {
            let SiteFollower { address, state, raw_bytes, carried_bytes, moment_ms, pending_bytes, lag_ms } = follower;
            let ratio = ratio(*raw_bytes, *carried_bytes);
            line(
                &format!("site_follower{number}"),
                &format!(
                    "address={address},state={state},raw_bytes={raw_bytes},carried_bytes={carried_bytes},ratio={ratio},\
                     moment_ms={moment_ms},pending_bytes={pending_bytes},lag_ms={lag_ms}"
                ),
            );
        }
    }
    if let Some(following) = &site.following {
        line("site_follows", &following.address);
        line("site_state", &following.state);
        line("site_moment_ms", &following.moment_ms);
        line("site_lag_ms", &following.lag_ms);
        line("site_pending_bytes", &following.pending_bytes);
        line("site_catch_up_ms", &following.catch_up_ms);
        line("site_requests", &following.request_count);
        line("site_line_raw_bytes", &following.raw_bytes);
        line("site_line_carried_bytes", &following.carried_bytes);
        line("site_line_ratio", &ratio(following.raw_bytes, following.carried_bytes));
        line("site_line_cuts", &following.cut_count);
        line("site_last_cut", &following.last_cut);
        line("site_copies_taken", &following.copy_count);
    }
}

/// How many bytes one that was carried stands for.
fn ratio(raw_bytes: u64, carried_bytes: u64) -> String {
    format!("{:.2}", raw_bytes as f64 / carried_bytes.max(1) as f64)
}

fn write_section(section: &str, core: &Context, now: Now, figures: &[Figures], text: &mut String) {
    let mut title = section.to_owned();
    title[..1].make_ascii_uppercase();
    if section == "cpu" {
        title.make_ascii_uppercase();
    }
    text.push_str(&format!("# {title}\r\n"));
    let mut line = |name: &str, value: &dyn std::fmt::Display| text.push_str(&format!("{name}:{value}\r\n"));
    match section {
        "server" => write_server(core, now, &mut line),
        "clients" => write_clients(core, figures, &mut line),
        "memory" => write_memory(core, figures, &mut line),
        "persistence" => write_persistence(core, now, figures, &mut line),
        "stats" => write_stats(core, figures, &mut line),
        "replication" => overview::write_replication(core, figures, &mut line),
        "site" => write_site(core, &mut line),
        "cpu" => write_cpu(core, &mut line),
        "commandstats" => write_command_stats(figures, &mut line),
        "latencystats" => write_latency_stats(core, figures, &mut line),
        "errorstats" => write_error_stats(figures, &mut line),
        "cluster" => overview::write_cluster(core, figures, &mut line),
        "modules" => write_modules(&mut line),
        "keyspace" => write_keyspace(core, figures, &mut line),
        _ => write_groups(figures, &mut line),
    }
}

fn groups_of(figures: &[Figures]) -> impl Iterator<Item = &GroupFigures> {
    figures.iter().flat_map(|figures| &figures.groups)
}

fn write_server(core: &Context, now: Now, line: &mut Line<'_>) {
    let (process, settings) = (&core.process, &core.settings);
    let uptime = now.instant.since(process.started_instant).as_secs();
    line("redis_version", &REDIS_VERSION);
    line("holdfast_version", &env!("CARGO_PKG_VERSION"));
    line("redis_git_sha1", &"00000000");
    line("redis_git_dirty", &0);
    line("redis_mode", &settings.mode());
    line("os", &process.operating_system);
    line("arch_bits", &usize::BITS);
    line("monotonic_clock", &"POSIX clock_gettime");
    line("multiplexing_api", &"epoll");
    line("process_id", &process.process_id);
    line("process_supervised", &"no");
    line("run_id", &process.run_id);
    // The same for all servers that have the same keys: MIGRATE does not carry keys from one to the other.
    line("cluster_id", &format!("{:032x}", process.cluster));
    line("tcp_port", &process.tcp_port);
    line("server_time_usec", &(now.unix.0 * 1_000));
    line("uptime_in_seconds", &uptime);
    line("uptime_in_days", &(uptime / 86_400));
    line("hz", &settings.get("hz"));
    line("configured_hz", &settings.get("hz"));
    line("lru_clock", &((now.unix.0 / 1_000) & 0xFF_FFFF));
    line("executable", &process.executable);
    line("config_file", &process.config_file);
    line("io_threads_active", &0);
    line("cores", &core.core_count);
}

fn write_clients(core: &Context, figures: &[Figures], line: &mut Line<'_>) {
    let (settings, report) = (&core.settings, &core.host.report);
    let count: u64 = figures.iter().map(|figures| figures.session_count).sum();
    line("connected_clients", &count);
    line("cluster_connections", &report.links.iter().filter(|link| link.is_up).count());
    line("maxclients", &settings.get("maxclients"));
    let most = |field: fn(&Figures) -> u64| figures.iter().map(field).max().unwrap_or(0);
    line("client_recent_max_input_buffer", &most(|figures| figures.input_bytes_max));
    line("client_recent_max_output_buffer", &most(|figures| figures.output_bytes_max));
    let waiting: u64 = figures.iter().map(|figures| figures.waiting_count).sum();
    line("blocked_clients", &waiting);
    line("tracking_clients", &figures.iter().map(|figures| figures.tracking.0).sum::<usize>());
    let sum = |field: fn(&Figures) -> usize| figures.iter().map(field).sum::<usize>();
    line("pubsub_clients", &sum(|figures| figures.listening_count));
    line("watching_clients", &sum(|figures| figures.watching.0));
    line("clients_in_timeout_table", &sum(|figures| figures.waits.0));
    line("total_watched_keys", &sum(|figures| figures.watching.1));
    line("total_blocking_keys", &sum(|figures| figures.waits.1));
    line("total_blocking_keys_on_nokey", &sum(|figures| figures.waits.2));
}

fn write_memory(core: &Context, figures: &[Figures], line: &mut Line<'_>) {
    let (settings, report) = (&core.settings, &core.host.report);
    let keyspaces: u64 = figures.iter().map(|figures| figures.keyspace_bytes).sum();
    // The host measures once a second; what has changed since is known for keys.
    let reported: u64 = figures.iter().map(|figures| figures.reported_keyspace_bytes).sum();
    let used = (report.used_memory_bytes + keyspaces).saturating_sub(reported);
    line("used_memory", &used);
    line("used_memory_human", &human(used));
    line("used_memory_rss", &report.resident_bytes);
    line("used_memory_rss_human", &human(report.resident_bytes));
    let peak = core.memory.peak_bytes.max(used);
    line("used_memory_peak", &peak);
    line("used_memory_peak_human", &human(peak));
    line("used_memory_peak_perc", &format!("{:.2}%", used as f64 * 100.0 / peak.max(1) as f64));
    line("used_memory_startup", &core.memory.startup_bytes);
    line("used_memory_overhead", &used.saturating_sub(keyspaces));
    line("used_memory_dataset", &keyspaces);
    line("used_memory_dataset_perc", &format!("{:.2}%", keyspaces as f64 * 100.0 / used.max(1) as f64));
    let lua: u64 = figures.iter().map(|figures| figures.lua_bytes).sum();
    let cached = core.scripting.cache.bytes() as u64 * u64::from(core.core_count);
    line("used_memory_lua", &lua);
    line("used_memory_vm_eval", &lua);
    line("used_memory_lua_human", &human(lua));
    line("used_memory_scripts_eval", &cached);
    line("number_of_cached_scripts", &core.scripting.cache.len());
    line("used_memory_vm_functions", &0);
    line("number_of_functions", &core.scripting.libraries.function_count());
    line("number_of_libraries", &core.scripting.libraries.len());
    line("used_memory_vm_total", &lua);
    line("used_memory_vm_total_human", &human(lua));
    line("used_memory_scripts", &cached);
    line("used_memory_scripts_human", &human(cached));
    line("used_memory_functions", &0);
    line("total_system_memory", &report.system_memory_bytes);
    line("total_system_memory_human", &human(report.system_memory_bytes));
    line("maxmemory", &settings.maxmemory_bytes);
    line("maxmemory_human", &human(settings.maxmemory_bytes));
    line("maxmemory_policy", &settings.get("maxmemory-policy"));
    line("allocator_allocated", &report.used_memory_bytes);
    line("allocator_active", &report.allocator_active_bytes);
    line("allocator_resident", &report.allocator_resident_bytes);
    for (of, more, less) in [
        ("allocator_frag", report.allocator_active_bytes, report.used_memory_bytes),
        ("allocator_rss", report.allocator_resident_bytes, report.allocator_active_bytes),
        ("rss_overhead", report.resident_bytes, report.allocator_resident_bytes),
        ("mem_fragmentation", report.resident_bytes, report.used_memory_bytes),
    ] {
        line(&format!("{of}_ratio"), &format!("{:.2}", more as f64 / less.max(1) as f64));
        line(&format!("{of}_bytes"), &(more as i64 - less as i64));
    }
    line("mem_not_counted_for_evict", &0);
    let waiting: u64 = report.links.iter().map(|link| link.waiting_bytes).sum();
    line("mem_total_replication_buffers", &waiting);
    // The backlog is on disk, and followers read it there.
    line("mem_replication_backlog", &0);
    line("mem_clients_slaves", &0);
    line("mem_clients_normal", &figures.iter().map(|figures| figures.session_bytes).sum::<u64>());
    line("mem_cluster_links", &waiting);
    line("mem_aof_buffer", &report.journal.queue_bytes);
    line("mem_allocator", &"jemalloc");
    line("active_defrag_running", &0);
    let sum = |field: fn(&Removals) -> u64| groups_of(figures).map(|group| field(&group.removals)).sum::<u64>();
    line("lazyfree_pending_objects", &sum(|removals| removals.to_be_freed));
    line("lazyfreed_objects", &sum(|removals| removals.freed_later));
}

/// Of the last minutes: the part of a core's time that one key took most, and of its calls, in thousandths.
pub(crate) fn hottest_per_mille(figures: &[Figures]) -> (u64, u64) {
    let most = |part: fn(&Figures) -> u64| figures.iter().map(part).max().unwrap_or(0);
    (most(|figures| figures.hottest_per_mille.0), most(|figures| figures.hottest_per_mille.1))
}

fn write_stats(core: &Context, figures: &[Figures], line: &mut Line<'_>) {
    let report = &core.host.report;
    let sum = total(figures);
    line("total_connections_received", &sum.connection_count);
    line("total_commands_processed", &total_calls(figures).values().map(|figures| figures.calls).sum::<u64>());
    let rate = |of: usize| figures.iter().map(|figures| figures.per_second[of]).sum::<u64>();
    let kilobytes = |bytes: u64| format!("{:.2}", bytes as f64 / 1_024.0);
    line("instantaneous_ops_per_sec", &rate(0));
    line("total_net_input_bytes", &sum.input_bytes);
    line("total_net_output_bytes", &sum.output_bytes);
    line("total_net_repl_output_bytes", &report.sent_to_nodes());
    line("instantaneous_input_kbps", &kilobytes(rate(1)));
    line("instantaneous_output_kbps", &kilobytes(rate(2)));
    line("rejected_connections", &report.rejected_count);
    line("core_wakes", &report.core_wake_count);
    line("core_helps", &report.core_help_count);
    line("core_threads", &report.core_thread_count);
    let (time, calls) = hottest_per_mille(figures);
    let percent = |per_mille: u64| format!("{:.1}", per_mille as f64 / 10.0);
    line("hottest_key_core_percent", &percent(time));
    line("hottest_key_calls_percent", &percent(calls));
    // Replicas of other kinds: copies, streams that went on, and requests to go on that were answered with a copy.
    line("sync_full", &report.following.copy_count);
    line("sync_partial_ok", &report.following.continued_count);
    line("sync_partial_err", &report.following.refused_count);
    line("expired_keys", &groups_of(figures).map(|group| group.removals.expired).sum::<u64>());
    line("expired_subkeys", &groups_of(figures).map(|group| group.removals.expired_fields).sum::<u64>());
    // Keys are removed by their deadlines, in order, and not by looking at some of them for a share of the time.
    line("expired_stale_perc", &"0.00");
    line("expired_time_cap_reached_count", &0);
    line("expire_cycle_cpu_milliseconds", &0);
    line("evicted_keys", &groups_of(figures).map(|group| group.evicted_count).sum::<u64>());
    line("evicted_clients", &sum.evicted_count);
    line("request_ids", &groups_of(figures).map(|group| group.request_id_count).sum::<u64>());
    line("request_ids_bytes", &groups_of(figures).map(|group| group.request_id_bytes).sum::<u64>());
    line("request_ids_repeated", &groups_of(figures).map(|group| group.repeated_count).sum::<u64>());
    line("watch_reservations", &groups_of(figures).map(|group| group.reserved_count).sum::<u64>());
    line("watch_reservations_lapsed", &groups_of(figures).map(|group| group.reservations_lapsed_count).sum::<u64>());
    line("keyspace_hits", &sum.lookups.found);
    line("keyspace_misses", &sum.lookups.missed);
    for (title, kind) in
        [("pubsub_channels", Kind::Channel), ("pubsub_patterns", Kind::Pattern), ("pubsubshard_channels", Kind::Shard)]
    {
        let names: BTreeSet<_> = figures.iter().flat_map(|figures| &figures.names[kind as usize]).collect();
        line(title, &names.len());
    }
    line("tracking_total_keys", &figures.iter().map(|figures| figures.tracking.1).sum::<usize>());
    line("tracking_total_items", &figures.iter().map(|figures| figures.tracking.2).sum::<usize>());
    let prefixes: BTreeSet<_> = figures.iter().flat_map(|figures| &figures.prefixes).collect();
    line("tracking_total_prefixes", &prefixes.len());
    line("client_query_buffer_limit_disconnections", &0);
    line("client_output_buffer_limit_disconnections", &sum.cut_count);
    for (nth, of) in ["auth", "cmd", "key", "channel"].into_iter().enumerate() {
        let denied = figures.iter().map(|figures| figures.denials[nth]).sum::<u64>();
        line(&format!("acl_access_denied_{of}"), &denied);
    }
    line("unauthenticated_disconnections", &sum.unauthenticated_count);
    line("http_disconnections", &sum.http_count);
    line("replica_reads", &sum.replica_read_count);
    line("unexpected_error_replies", &0);
    line("latest_fork_usec", &0);
    line("total_forks", &0);
    line("migrate_cached_sockets", &core.host.report.migrate_line_count);
    line("slave_expires_tracked_keys", &0);
    for counted in ["hits", "misses", "key_hits", "key_misses"] {
        line(&format!("active_defrag_{counted}"), &0);
    }
    for of in [
        "total_eviction_exceeded_time",
        "current_eviction_exceeded_time",
        "total_active_defrag_time",
        "current_active_defrag_time",
        "dump_payload_sanitizations",
        "reply_buffer_shrinks",
        "reply_buffer_expands",
    ] {
        line(of, &0);
    }
    line("total_error_replies", &total_errors(figures).values().sum::<u64>());
    line("total_reads_processed", &sum.read_count);
    line("total_writes_processed", &sum.write_count);
    line("io_threaded_reads_processed", &0);
    line("io_threaded_writes_processed", &0);
}

fn write_cpu(core: &Context, line: &mut Line<'_>) {
    let report = &core.host.report;
    let seconds = |us: u64| format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    line("used_cpu_sys", &seconds(report.cpu_system_us));
    line("used_cpu_user", &seconds(report.cpu_user_us));
    line("used_cpu_sys_children", &seconds(0));
    line("used_cpu_user_children", &seconds(0));
}

fn write_command_stats(figures: &[Figures], line: &mut Line<'_>) {
    let times = total_times(figures);
    for (name, CallFigures { calls, rejected, failed }) in total_calls(figures) {
        let mean_us = times.get(name).map_or(0.0, TimeFigures::mean_us);
        let sum_us = (mean_us * calls as f64) as u64;
        line(
            &format!("cmdstat_{name}"),
            &format!(
                "calls={calls},usec={sum_us},usec_per_call={mean_us:.2},rejected_calls={rejected},\
                 failed_calls={failed}"
            ),
        );
    }
}

fn write_latency_stats(core: &Context, figures: &[Figures], line: &mut Line<'_>) {
    let settings = &core.settings;
    for (name, times) in total_times(figures).iter().filter(|(_, times)| times.histogram.total() > 0) {
        let percentiles = settings.get("latency-tracking-info-percentiles").split_whitespace().map(|percent| {
            let nanos = times.histogram.percentile(percent.parse().expect("checked when it was set"));
            format!("p{percent}={:.3}", nanos as f64 / 1_000.0)
        });
        let percentiles = percentiles.collect::<Vec<_>>().join(",");
        line(&format!("latency_percentiles_usec_{name}"), &percentiles);
    }
}

fn write_error_stats(figures: &[Figures], line: &mut Line<'_>) {
    for (code, count) in total_errors(figures) {
        line(&format!("errorstat_{code}"), &format!("count={count}"));
    }
}

fn write_modules(line: &mut Line<'_>) {
    for (name, version) in super::server::MODULES {
        let rest = "api=1,filters=0,usedby=[],using=[],options=[]";
        line("module", &format!("name={name},ver={version},{rest}"));
    }
}

fn write_keyspace(core: &Context, figures: &[Figures], line: &mut Line<'_>) {
    for database in 0..core.settings.databases {
        let (mut keys, mut expires, mut ttl, mut hashes) = (0, 0, 0, 0);
        for figures in figures {
            let (count, expiring, average, expiring_hashes) = figures.databases[usize::from(database)];
            keys += count;
            expires += expiring;
            ttl = ttl.max(average);
            hashes += expiring_hashes;
        }
        if keys > 0 {
            let figures = format!("keys={keys},expires={expires},avg_ttl={ttl},subexpiry={hashes}");
            line(&format!("db{database}"), &figures);
        }
    }
}

fn write_groups(figures: &[Figures], line: &mut Line<'_>) {
    for group in groups_of(figures) {
        line(
            &format!("group{}", group.group),
            &format!(
                "standing={},term={},applied={},window_bytes={},log_bytes={},changes={},locks={},loaded_perc={},\
                 staleness_ms={}",
                group.standing,
                group.term,
                group.applied,
                group.window_bytes,
                group.log_bytes,
                group.change_count,
                group.lock_count,
                group.loaded_percent,
                group.staleness_ms.map_or(-1, |staleness| staleness as i64)
            ),
        );
    }
}

fn write_persistence(core: &Context, now: Now, figures: &[Figures], line: &mut Line<'_>) {
    let not_thorough_count = total(figures).not_thorough_count;
    let journal = &core.host.report.journal;
    let groups = || figures.iter().flat_map(|figures| &figures.groups);
    let loading = groups().any(|group| group.standing == "loading");
    let began = groups().filter_map(|group| group.checkpoint_began).min();
    let last = groups().filter_map(|group| group.last_checkpoint.as_ref()).max_by_key(|last| last.ended);
    let failed = groups().any(|group| group.last_checkpoint.as_ref().is_some_and(|last| last.failure.is_some()));
    let (walked, total) = groups()
        .filter_map(|group| group.checkpoint_progress)
        .fold((0, 0), |(walked, total), (more, all)| (walked + more, total + all));
    line("loading", &u8::from(loading));
    line("async_loading", &0);
    // Nothing is forked, so nothing is copied when it is written to.
    for of in ["current_cow_peak", "current_cow_size", "current_cow_size_age", "rdb_last_cow_size", "aof_last_cow_size"]
    {
        line(of, &0);
    }
    line("current_fork_perc", &format!("{:.2}", walked as f64 * 100.0 / total.max(1) as f64));
    line("rdb_changes_since_last_save", &groups().map(|group| group.change_count).sum::<u64>());
    line("rdb_bgsave_in_progress", &u8::from(began.is_some()));
    line("rdb_last_save_time", &last_save_seconds(core.process.started.0, figures));
    line("rdb_last_bgsave_status", &if failed { "err" } else { "ok" });
    line("rdb_last_bgsave_time_sec", &last.map_or(-1, |last| last.took_seconds as i64));
    line("rdb_current_bgsave_time_sec", &began.map_or(-1, |began| (now.unix.0 - began.0) / 1_000));
    line("rdb_saves", &groups().map(|group| group.checkpoint_count).sum::<u64>());
    line("current_save_keys_processed", &walked);
    line("current_save_keys_total", &total);
    line("aof_enabled", &1);
    line("aof_rewrite_in_progress", &0);
    line("aof_rewrite_scheduled", &0);
    line("aof_last_rewrite_time_sec", &-1);
    line("aof_current_rewrite_time_sec", &-1);
    line("aof_rewrites", &0);
    line("aof_rewrites_consecutive_failures", &0);
    line("module_fork_in_progress", &0);
    line("module_fork_last_cow_size", &0);
    line("aof_last_bgrewrite_status", &"ok");
    line("aof_last_write_status", &if matches!(core.host.room, group::ids::Room::Enough) { "ok" } else { "err" });
    line("aof_current_size", &journal.kept_bytes);
    line("aof_base_size", &0);
    line("aof_pending_rewrite", &0);
    line("aof_buffer_length", &journal.queue_bytes);
    line("aof_pending_bio_fsync", &0);
    line(
        "durability",
        &match core.settings.append_fsync {
            AppendFsync::Always => "synced-before-reply",
            AppendFsync::EverySecond => "synced-within-a-second",
            AppendFsync::No => "synced-by-the-system",
        },
    );
    line("durability_all_refused", &not_thorough_count);
    line("log_writes", &journal.write_count);
    line("log_bytes_written", &journal.written_bytes);
    line("log_syncs", &journal.sync_count);
    line("log_sync_last_usec", &journal.sync_last_us);
    line("log_sync_mean_usec", &journal.sync_mean_us);
    line("log_sync_max_usec", &journal.sync_max_us);
    line("log_queue_appends", &journal.queue_count);
    line("log_queue_bytes", &journal.queue_bytes);
    line("log_segment", &journal.segment);
    line("log_held_bytes", &journal.held_bytes);
    line("log_held_bytes_max", &journal.held_bytes_max);
    line("checkpoint_bytes_written", &journal.checkpoint_bytes);
    let waiting = groups().filter(|group| group.is_checkpoint_waiting).count();
    line("checkpoint_waiting_groups", &waiting);
    let first = core.neighbours.checkpoints_first(core.node).filter(|_| waiting > 0);
    line("checkpoint_waits_for_node", &first.map(|node| node.0.to_string()).unwrap_or_default());
    if let Some(backups) = &core.host.report.backups {
        let age_s = (now.unix.0 - backups.newest_unix.0) / 1_000;
        line("backup_maker", &u8::from(backups.is_own));
        line("backup_in_progress", &u8::from(backups.is_running));
        line("backup_last_good_age_s", &if backups.newest_unix.0 == 0 { -1 } else { age_s });
        line("backups_kept", &backups.kept_count);
        line("backups_made", &backups.made_count);
        line("backups_failed", &backups.failed_count);
        line("backup_last_fault", &backups.fault.replace(['\r', '\n'], " "));
    }
    let archive = &core.host.report.archive;
    line(
        "archive_state",
        &match archive {
            None => "off",
            Some(archive) if archive.fault.is_empty() => "ok",
            Some(_) => "fault",
        },
    );
    if let Some(archive) = archive {
        line("archive_lag_ms", &archive.lag_ms);
        line("archive_lacking_entries", &archive.lacking_count);
        line("archive_lost_entries", &archive.lost_count);
        line("archive_entries_written", &archive.entry_count);
        line("archive_entry_bytes", &archive.raw_bytes);
        line("archive_bytes_written", &archive.written_bytes);
        line("archive_bases_written", &archive.base_count);
        line("archive_base_bytes_written", &archive.base_bytes);
        line("archive_faults", &archive.fault_count);
        line("archive_fault", &archive.fault);
    }
}

/// Unix time of the oldest of the groups' last successful checkpoints; before the first one, of the start.
pub(super) fn last_save_seconds(started_unix_ms: i64, figures: &[Figures]) -> i64 {
    figures
        .iter()
        .flat_map(|figures| &figures.groups)
        .map(|group| match &group.last_checkpoint {
            Some(last) if last.failure.is_none() => last.ended.0,
            _ => started_unix_ms,
        })
        .min()
        .unwrap_or(started_unix_ms)
        / 1_000
}

/// The figures in a set of answers.
pub(super) fn figures_of(answers: Vec<Answer>) -> Vec<Figures> {
    answers
        .into_iter()
        .map(|answer| match answer {
            Answer::Figures(figures) => *figures,
            other => unreachable!("a core told {other:?} for its figures"),
        })
        .collect()
}

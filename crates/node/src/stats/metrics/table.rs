//! All metrics, in the order in which they are told.

use std::collections::BTreeMap;

use group::figures::GroupFigures;
use group::group_status::{Follower, GroupStatus};
use group::ids::Lane;

use super::Kind::{self, Counter, Gauge, Histogram, Summary};
use super::Source::{Field, Own};
use super::{Metric, Samples, Seconds, View};
use crate::commands::{hottest_per_mille, total_calls, total_errors, total_times};
use crate::reports::LinkReport;

/// Bounds of histograms, as powers of two of a nanosecond: from a microsecond to nine seconds.
const BOUNDS: std::ops::RangeInclusive<u32> = 10..=33;

const fn gauge(name: &'static str, help: &'static str, field: &'static str) -> Metric {
    Metric { name, kind: Gauge, help, labels: &[], source: Field(field) }
}

const fn counter(name: &'static str, help: &'static str, field: &'static str) -> Metric {
    Metric { name, kind: Counter, help, labels: &[], source: Field(field) }
}

const fn own(
    name: &'static str,
    kind: Kind,
    help: &'static str,
    labels: &'static [&'static str],
    write: fn(&View<'_>, &mut Samples<'_>),
) -> Metric {
    Metric { name, kind, help, labels, source: Own(write) }
}

const MASTER: &[&str] = &["master_host", "master_port"];
const SLAVE: &[&str] = &["slave_ip", "slave_port", "slave_state"];
const LINK: &[&str] = &["node", "lane"];
const FOLLOWER: &[&str] = &["group", "node"];

/// All that is told.
pub const METRICS: &[Metric] = &[
    // ---- as redis_exporter names them ----
    own("redis_up", Gauge, "The server answers; always 1.", &[], |_, out| out.is(1)),
    own(
        "redis_instance_info",
        Gauge,
        "What the server is; always 1.",
        &[
            "role",
            "redis_version",
            "redis_build_id",
            "redis_mode",
            "os",
            "maxmemory_policy",
            "tcp_port",
            "run_id",
            "process_id",
            "master_replid",
        ],
        |view, out| {
            let text = |name| view.text(name);
            out.of(
                &[
                    &text("role"),
                    &text("redis_version"),
                    &text("redis_build_id"),
                    &text("redis_mode"),
                    &text("os"),
                    &text("maxmemory_policy"),
                    &text("tcp_port"),
                    &text("run_id"),
                    &text("process_id"),
                    &text("master_replid"),
                ],
                1,
            );
        },
    ),
    own("redis_start_time_seconds", Gauge, "When the process was started, in Unix time.", &[], |view, out| {
        out.is(view.facts.started_unix_ms / 1_000);
    }),
    gauge("redis_uptime_in_seconds", "Time since the process was started.", "uptime_in_seconds"),
    gauge("redis_process_id", "Number of the process.", "process_id"),
    gauge("redis_io_threads_active", "Always 0: all cores serve clients.", "io_threads_active"),
    gauge("redis_connected_clients", "Open connections of clients.", "connected_clients"),
    gauge("redis_blocked_clients", "Clients that wait for data.", "blocked_clients"),
    gauge("redis_tracking_clients", "Clients that track keys for their caches.", "tracking_clients"),
    gauge("redis_max_clients", "Most connections of clients at a time.", "maxclients"),
    gauge("redis_config_maxclients", "maxclients, under the name of its parameter.", "maxclients"),
    gauge("redis_config_maxmemory", "maxmemory in bytes; 0 is no limit.", "maxmemory"),
    gauge(
        "redis_client_recent_max_input_buffer_bytes",
        "Most bytes that a client has sent and that are not parsed.",
        "client_recent_max_input_buffer",
    ),
    gauge(
        "redis_client_recent_max_output_buffer_bytes",
        "Most bytes that wait to be sent to a client.",
        "client_recent_max_output_buffer",
    ),
    gauge("redis_memory_used_bytes", "Memory given out by the allocator.", "used_memory"),
    gauge("redis_memory_used_rss_bytes", "Resident set of the process.", "used_memory_rss"),
    gauge("redis_memory_used_peak_bytes", "Most memory given out since the start.", "used_memory_peak"),
    gauge("redis_memory_used_dataset_bytes", "Bytes of keys and values.", "used_memory_dataset"),
    gauge("redis_memory_used_overhead_bytes", "Memory given out for everything else.", "used_memory_overhead"),
    gauge("redis_memory_used_lua_bytes", "Memory of Lua.", "used_memory_lua"),
    gauge("redis_memory_used_vm_eval_bytes", "Memory of Lua.", "used_memory_vm_eval"),
    gauge("redis_memory_used_scripts_eval_bytes", "Memory of cached scripts.", "used_memory_scripts_eval"),
    gauge("redis_memory_used_scripts_bytes", "Memory of cached scripts.", "used_memory_scripts"),
    gauge("redis_memory_max_bytes", "maxmemory in bytes; 0 is no limit.", "maxmemory"),
    gauge("redis_total_system_memory_bytes", "Memory of the machine.", "total_system_memory"),
    gauge("redis_allocator_allocated_bytes", "Bytes given out by the allocator.", "allocator_allocated"),
    gauge("redis_allocator_active_bytes", "Bytes of pages that the allocator uses.", "allocator_active"),
    gauge("redis_allocator_resident_bytes", "Bytes of pages that the allocator holds.", "allocator_resident"),
    gauge("redis_allocator_frag_ratio", "Active to allocated bytes.", "allocator_frag_ratio"),
    gauge("redis_allocator_frag_bytes", "Active less allocated bytes.", "allocator_frag_bytes"),
    gauge("redis_allocator_rss_ratio", "Resident to active bytes.", "allocator_rss_ratio"),
    gauge("redis_allocator_rss_bytes", "Resident less active bytes.", "allocator_rss_bytes"),
    gauge("redis_mem_fragmentation_ratio", "Resident set to memory given out.", "mem_fragmentation_ratio"),
    gauge("redis_mem_fragmentation_bytes", "Resident set less memory given out.", "mem_fragmentation_bytes"),
    gauge("redis_mem_clients_normal", "Memory of connections of clients.", "mem_clients_normal"),
    gauge("redis_mem_cluster_links_bytes", "Bytes that wait to be sent to other nodes.", "mem_cluster_links"),
    gauge("redis_mem_aof_buffer_bytes", "Bytes that wait to be written to the log.", "mem_aof_buffer"),
    gauge(
        "redis_mem_total_replication_buffers_bytes",
        "Bytes that wait to be sent to other nodes.",
        "mem_total_replication_buffers",
    ),
    gauge("redis_number_of_cached_scripts", "Scripts known by their SHA1.", "number_of_cached_scripts"),
    gauge("redis_number_of_functions", "Functions loaded.", "number_of_functions"),
    gauge("redis_number_of_libraries", "Libraries of functions loaded.", "number_of_libraries"),
    gauge("redis_lazyfree_pending_objects", "Values that are not freed yet.", "lazyfree_pending_objects"),
    gauge("redis_lazyfreed_objects", "Values freed piece by piece.", "lazyfreed_objects"),
    gauge("redis_loading_dump_file", "1 while a group is loaded.", "loading"),
    gauge("redis_rdb_changes_since_last_save", "Writes since the last checkpoint.", "rdb_changes_since_last_save"),
    gauge("redis_rdb_bgsave_in_progress", "1 while a checkpoint is written.", "rdb_bgsave_in_progress"),
    gauge(
        "redis_rdb_last_save_timestamp_seconds",
        "Unix time of the oldest of the groups' last checkpoints.",
        "rdb_last_save_time",
    ),
    gauge(
        "redis_rdb_last_bgsave_status",
        "1 if the last checkpoint of each group succeeded.",
        "rdb_last_bgsave_status",
    ),
    gauge(
        "redis_rdb_last_bgsave_duration_sec",
        "Seconds that the last checkpoint took; -1 before the first.",
        "rdb_last_bgsave_time_sec",
    ),
    gauge(
        "redis_rdb_current_bgsave_duration_sec",
        "Seconds since the running checkpoint began; -1 if none runs.",
        "rdb_current_bgsave_time_sec",
    ),
    gauge("redis_rdb_saves_total", "Checkpoints of groups finished.", "rdb_saves"),
    gauge("redis_aof_enabled", "Always 1: the log is always on.", "aof_enabled"),
    gauge("redis_aof_current_size_bytes", "Bytes of log that a restart would read.", "aof_current_size"),
    gauge("redis_aof_buffer_length", "Bytes that wait to be written to the log.", "aof_buffer_length"),
    gauge("redis_aof_last_write_status", "1 while the disk can take what may be admitted.", "aof_last_write_status"),
    counter("redis_connections_received_total", "Connections opened.", "total_connections_received"),
    counter("redis_rejected_connections_total", "Connections refused because of maxclients.", "rejected_connections"),
    counter("redis_commands_processed_total", "Commands executed.", "total_commands_processed"),
    own("redis_commands_total", Counter, "Calls executed, by command.", &["cmd"], |view, out| {
        for (name, calls) in total_calls(view.figures) {
            out.of(&[&name], calls.calls);
        }
    }),
    own(
        "redis_commands_duration_seconds_total",
        Counter,
        "Execution time of calls, by command; of fast commands, every sixteenth call is measured and stands for the others.",
        &["cmd"],
        |view, out| {
            for (name, times) in total_times(view.figures) {
                out.of(&[&name], times.all_nanos as f64 / 1e9);
            }
        },
    ),
    own(
        "redis_commands_rejected_calls_total",
        Counter,
        "Calls refused before they were executed, by command.",
        &["cmd"],
        |view, out| {
            for (name, calls) in total_calls(view.figures) {
                out.of(&[&name], calls.rejected);
            }
        },
    ),
    own(
        "redis_commands_failed_calls_total",
        Counter,
        "Calls executed and answered with an error, by command.",
        &["cmd"],
        |view, out| {
            for (name, calls) in total_calls(view.figures) {
                out.of(&[&name], calls.failed);
            }
        },
    ),
    own(
        "redis_latency_percentiles_usec",
        Summary,
        "Execution time of calls in microseconds, by command, at the percentiles of latency-tracking-info-percentiles.",
        &["cmd"],
        |view, out| {
            for (name, times) in total_times(view.figures) {
                let count = times.histogram.total();
                if count > 0 {
                    let at = |percent: f64| (percent, times.histogram.percentile(percent) as f64 / 1e3);
                    let quantiles: Vec<_> = view.facts.percentiles.iter().map(|percent| at(*percent)).collect();
                    out.summary(&[&name], &quantiles, count, times.nanos as f64 / 1e3);
                }
            }
        },
    ),
    own("redis_errors_total", Counter, "Error replies, by their first word.", &["err"], |view, out| {
        for (code, count) in total_errors(view.figures) {
            out.of(&[&code], count);
        }
    }),
    counter("redis_total_error_replies", "Error replies.", "total_error_replies"),
    counter("redis_net_input_bytes_total", "Bytes received from clients.", "total_net_input_bytes"),
    counter("redis_net_output_bytes_total", "Bytes sent to clients.", "total_net_output_bytes"),
    counter("redis_net_repl_output_bytes_total", "Bytes sent to other nodes.", "total_net_repl_output_bytes"),
    counter("redis_total_reads_processed", "Times that something was read from a client.", "total_reads_processed"),
    counter("redis_total_writes_processed", "Times that something was written to a client.", "total_writes_processed"),
    counter("redis_expired_keys_total", "Keys removed because they had expired.", "expired_keys"),
    counter("redis_evicted_keys_total", "Keys removed because memory was short.", "evicted_keys"),
    counter("redis_evicted_clients_total", "Clients cut off because memory was short.", "evicted_clients"),
    counter("redis_keyspace_hits_total", "Keys that commands looked up and found.", "keyspace_hits"),
    counter("redis_keyspace_misses_total", "Keys that commands looked up and did not find.", "keyspace_misses"),
    counter(
        "redis_client_output_buffer_limit_disconnections_total",
        "Clients cut off because they left too much output unread.",
        "client_output_buffer_limit_disconnections",
    ),
    gauge("redis_pubsub_channels", "Channels that clients listen to.", "pubsub_channels"),
    gauge("redis_pubsub_patterns", "Patterns that clients listen to.", "pubsub_patterns"),
    gauge("redis_pubsubshard_channels", "Shard channels that clients listen to.", "pubsubshard_channels"),
    gauge("redis_tracking_total_keys", "Keys remembered for caches of clients.", "tracking_total_keys"),
    gauge("redis_tracking_total_items", "Readers remembered of these keys.", "tracking_total_items"),
    gauge("redis_tracking_total_prefixes", "Prefixes that clients are told of.", "tracking_total_prefixes"),
    gauge("redis_latest_fork_usec", "Always 0: nothing forks.", "latest_fork_usec"),
    counter("redis_cpu_sys_seconds_total", "CPU time of the process in the kernel.", "used_cpu_sys"),
    counter("redis_cpu_user_seconds_total", "CPU time of the process in user mode.", "used_cpu_user"),
    own("redis_slowlog_length", Gauge, "Commands in the slow log.", &[], |view, out| {
        out.is(view.slow.iter().map(|slow| slow.count).sum::<usize>());
    }),
    own(
        "redis_last_slow_execution_duration_seconds",
        Gauge,
        "Time that the latest command of the slow log took; 0 if there is none.",
        &[],
        |view, out| {
            let latest = view.slow.iter().filter_map(|slow| slow.latest).max();
            out.is(Seconds(latest.map_or(0, |(_, took_us)| took_us)));
        },
    ),
    own("redis_db_keys", Gauge, "Keys held by this node, by database.", &["db"], |view, out| {
        databases(view, out, |database| database.0);
    }),
    own("redis_db_keys_expiring", Gauge, "Keys with a deadline, by database.", &["db"], |view, out| {
        databases(view, out, |database| database.1);
    }),
    own("redis_db_avg_ttl_seconds", Gauge, "Mean time to live of keys with a deadline.", &["db"], |view, out| {
        for (name, (_, _, ttl_ms)) in used_databases(view) {
            out.of(&[&name], ttl_ms as f64 / 1e3);
        }
    }),
    gauge("redis_connected_slaves", "Nodes that receive what this one leads.", "connected_slaves"),
    gauge(
        "redis_master_repl_offset",
        "Offset for replicas of Redis; in a cluster, entries of the logs applied.",
        "master_repl_offset",
    ),
    gauge("redis_second_repl_offset", "Always -1.", "second_repl_offset"),
    own(
        "redis_connected_slave_offset_bytes",
        Gauge,
        "Offset of a node that receives what this one leads, in entries.",
        SLAVE,
        |view, out| slaves(view, out, "offset"),
    ),
    own("redis_connected_slave_lag_seconds", Gauge, "How long it has been silent.", SLAVE, |view, out| {
        slaves(view, out, "lag");
    }),
    own(
        "redis_slave_info",
        Gauge,
        "Leader of most of what this node replicates, if it leads nothing; always 1.",
        &["master_host", "master_port", "read_only"],
        |view, out| {
            if let Some(host) = view.field("master_host") {
                out.of(&[&host, &view.text("master_port"), &view.text("slave_read_only")], 1);
            }
        },
    ),
    own("redis_master_link_up", Gauge, "1 while the link to that node can be used.", MASTER, |view, out| {
        master(view, out, "master_link_status");
    }),
    own(
        "redis_master_last_io_seconds_ago",
        Gauge,
        "Time since that node was heard; -1 if never.",
        MASTER,
        |view, out| master(view, out, "master_last_io_seconds_ago"),
    ),
    own(
        "redis_master_sync_in_progress",
        Gauge,
        "1 while a checkpoint comes from another node.",
        MASTER,
        |view, out| master(view, out, "master_sync_in_progress"),
    ),
    own("redis_slave_repl_offset", Gauge, "Entries of the logs applied.", MASTER, |view, out| {
        master(view, out, "slave_repl_offset");
    }),
    gauge("redis_cluster_enabled", "1 if the commands of Redis Cluster are answered.", "cluster_enabled"),
    gauge("redis_cluster_state", "1 while all slots are served.", "cluster_state"),
    gauge("redis_cluster_slots_assigned", "Slots that belong to a group: all.", "cluster_slots_assigned"),
    gauge("redis_cluster_slots_ok", "Slots that are served.", "cluster_slots_ok"),
    gauge("redis_cluster_slots_pfail", "Always 0.", "cluster_slots_pfail"),
    gauge("redis_cluster_slots_fail", "Slots that are not served.", "cluster_slots_fail"),
    gauge("redis_cluster_known_nodes", "Nodes of the cluster.", "cluster_known_nodes"),
    gauge("redis_cluster_size", "Nodes that lead groups.", "cluster_size"),
    gauge("redis_cluster_current_epoch", "Highest term of a group.", "cluster_current_epoch"),
    gauge("redis_cluster_my_epoch", "Highest term of a group that this node leads.", "cluster_my_epoch"),
    gauge("redis_cluster_messages_sent_total", "Messages sent to other nodes.", "cluster_stats_messages_sent"),
    // ---- Holdfast's own ----
    own(
        "holdfast_info",
        Gauge,
        "Which node of which cluster this is; always 1.",
        &["version", "node", "cluster"],
        |view, out| {
            let cluster = format!("{:032x}", view.facts.cluster);
            out.of(&[&env!("CARGO_PKG_VERSION"), &view.facts.node.0, &cluster], 1);
        },
    ),
    own("holdfast_uptime_seconds", Gauge, "Time since the process was started.", &[], |view, out| {
        out.is(Seconds(view.facts.uptime.as_micros() as u64));
    }),
    own("holdfast_cores", Gauge, "Threads that serve clients.", &[], |view, out| out.is(view.facts.core_count)),
    own(
        "holdfast_nodes",
        Gauge,
        "Nodes of the cluster, as far as this one knows; 0 for a node by itself.",
        &[],
        |view, out| out.is(view.facts.roster.present().count()),
    ),
    own("holdfast_memory_used_bytes", Gauge, "Memory given out by the allocator.", &[], |view, out| {
        out.is(view.facts.report.used_memory_bytes);
    }),
    own("holdfast_memory_resident_bytes", Gauge, "Resident set of the process.", &[], |view, out| {
        out.is(view.facts.report.resident_bytes);
    }),
    own("holdfast_memory_max_bytes", Gauge, "maxmemory; 0 is no limit.", &[], |view, out| {
        out.is(view.facts.memory_bytes_max);
    }),
    own("holdfast_cpu_seconds_total", Counter, "CPU time of the process.", &["mode"], |view, out| {
        out.of(&[&"user"], Seconds(view.facts.report.cpu_user_us));
        out.of(&[&"system"], Seconds(view.facts.report.cpu_system_us));
    }),
    own("holdfast_connected_clients", Gauge, "Open connections of clients.", &[], |view, out| {
        out.is(view.facts.report.client_count);
    }),
    own(
        "holdfast_rejected_connections_total",
        Counter,
        "Connections refused because of maxclients.",
        &[],
        |view, out| out.is(view.facts.report.rejected_count),
    ),
    own(
        "holdfast_core_wakes_total",
        Counter,
        "How often messages of other threads woke the thread of a core.",
        &[],
        |view, out| out.is(view.facts.report.core_wake_count),
    ),
    own(
        "holdfast_core_helps_total",
        Counter,
        "How often the thread of another core stepped a core instead of waking its thread.",
        &[],
        |view, out| out.is(view.facts.report.core_help_count),
    ),
    own(
        "holdfast_core_threads",
        Gauge,
        "Threads that wait for the sockets of cores: one for all of them, or more while there is work and room for that.",
        &[],
        |view, out| out.is(view.facts.report.core_thread_count),
    ),
    own(
        "holdfast_hottest_key_core_ratio",
        Gauge,
        "Part of one core's time that its hottest key took in the last minutes.",
        &[],
        |view, out| out.is(hottest_per_mille(view.figures).0 as f64 / 1e3),
    ),
    own(
        "holdfast_hottest_key_calls_ratio",
        Gauge,
        "Part of one core's calls that were about one key in the last minutes.",
        &[],
        |view, out| out.is(hottest_per_mille(view.figures).1 as f64 / 1e3),
    ),
    own(
        "holdfast_events_total",
        Counter,
        "What this node has noted on the timeline, by kind.",
        &["kind"],
        |view, out| {
            for (kind, count) in &view.facts.happenings {
                out.of(&[kind], count);
            }
        },
    ),
    own(
        "holdfast_log_writes_total",
        Counter,
        "Writes to the log; each holds all that was waiting.",
        &[],
        |view, out| out.is(view.facts.report.journal.write_count),
    ),
    own("holdfast_log_written_bytes_total", Counter, "Bytes written to the log.", &[], |view, out| {
        out.is(view.facts.report.journal.written_bytes);
    }),
    own("holdfast_log_syncs_total", Counter, "Syncs of the log.", &[], |view, out| {
        out.is(view.facts.report.journal.sync_count);
    }),
    own("holdfast_log_sync_last_seconds", Gauge, "Duration of the last sync of the log.", &[], |view, out| {
        out.is(Seconds(view.facts.report.journal.sync_last_us));
    }),
    own("holdfast_log_sync_mean_seconds", Gauge, "Mean duration of a sync of the log.", &[], |view, out| {
        out.is(Seconds(view.facts.report.journal.sync_mean_us));
    }),
    own("holdfast_log_sync_max_seconds", Gauge, "Longest sync of the log.", &[], |view, out| {
        out.is(Seconds(view.facts.report.journal.sync_max_us));
    }),
    own("holdfast_log_queue_bytes", Gauge, "Bytes waiting to be written to the log.", &[], |view, out| {
        out.is(view.facts.report.journal.queue_bytes);
    }),
    own(
        "holdfast_log_unsynced_seconds",
        Gauge,
        "Age of the oldest write to the log that is not synced.",
        &[],
        |view, out| out.is(Seconds(view.facts.report.journal.unsynced_us)),
    ),
    own("holdfast_log_kept_bytes", Gauge, "Bytes of log that a restart would read.", &[], |view, out| {
        out.is(view.facts.report.journal.kept_bytes);
    }),
    own("holdfast_log_held_bytes", Gauge, "Bytes of log kept only for members that lack them.", &[], |view, out| {
        out.is(view.facts.report.journal.held_bytes)
    }),
    own("holdfast_log_held_bytes_max", Gauge, "Most bytes of log that are kept for members.", &[], |view, out| {
        out.is(view.facts.report.journal.held_bytes_max)
    }),
    own("holdfast_archive_up", Gauge, "1 if the archive is written, 0 if it cannot be.", &[], |view, out| {
        if let Some(archive) = &view.facts.report.archive {
            out.is(u64::from(archive.fault.is_empty()))
        }
    }),
    own("holdfast_archive_lag_seconds", Gauge, "For how long the archive has lacked something.", &[], |view, out| {
        if let Some(archive) = &view.facts.report.archive {
            out.is(archive.lag_ms as f64 / 1e3)
        }
    }),
    own("holdfast_archive_lacking_entries", Gauge, "Entries committed and not archived.", &[], |view, out| {
        if let Some(archive) = &view.facts.report.archive {
            out.is(archive.lacking_count)
        }
    }),
    own("holdfast_archive_lost_entries_total", Counter, "Entries that were never archived.", &[], |view, out| {
        if let Some(archive) = &view.facts.report.archive {
            out.is(archive.lost_count)
        }
    }),
    own("holdfast_archive_written_bytes_total", Counter, "Bytes of entries archived.", &[], |view, out| {
        if let Some(archive) = &view.facts.report.archive {
            out.is(archive.written_bytes)
        }
    }),
    own("holdfast_site_backlog_bytes", Gauge, "Bytes that are kept for a second site.", &[], |view, out| {
        if view.facts.report.site.keeps_backlog {
            out.is(view.facts.report.site.backlog_bytes)
        }
    }),
    own("holdfast_site_followers", Gauge, "Clusters that follow from this node.", &[], |view, out| {
        if view.facts.report.site.keeps_backlog {
            out.is(view.facts.report.site.followers.len() as u64)
        }
    }),
    own("holdfast_site_sent_bytes", Gauge, "Bytes sent to following clusters.", &[], |view, out| {
        if view.facts.report.site.keeps_backlog {
            out.is(view.facts.report.site.followers.values().map(|follower| follower.carried_bytes).sum::<u64>())
        }
    }),
    own("holdfast_site_lag_seconds", Gauge, "Age of the state of this second site.", &[], |view, out| {
        if let Some(following) = &view.facts.report.site.following {
            out.is(following.lag_ms as f64 / 1e3)
        }
    }),
    own("holdfast_site_pending_bytes", Gauge, "Bytes of the first site's backlog not received.", &[], |view, out| {
        if let Some(following) = &view.facts.report.site.following {
            out.is(following.pending_bytes)
        }
    }),
    own("holdfast_site_raw_bytes_total", Counter, "Bytes received, after decompression.", &[], |view, out| {
        if let Some(following) = &view.facts.report.site.following {
            out.is(following.raw_bytes)
        }
    }),
    own("holdfast_site_carried_bytes_total", Counter, "Bytes received over the line.", &[], |view, out| {
        if let Some(following) = &view.facts.report.site.following {
            out.is(following.carried_bytes)
        }
    }),
    own("holdfast_site_cuts_total", Counter, "How often the line to the first site was cut.", &[], |view, out| {
        if let Some(following) = &view.facts.report.site.following {
            out.is(following.cut_count)
        }
    }),
    own("holdfast_backup_maker", Gauge, "1 on the node that makes scheduled backups.", &[], |view, out| {
        if let Some(backups) = &view.facts.report.backups {
            out.is(u64::from(backups.is_own))
        }
    }),
    own("holdfast_backup_running", Gauge, "1 while a scheduled backup is made.", &[], |view, out| {
        if let Some(backups) = &view.facts.report.backups {
            out.is(u64::from(backups.is_running))
        }
    }),
    own(
        "holdfast_backup_last_good_timestamp_seconds",
        Gauge,
        "Unix time of the newest whole backup in backup-dir; 0 before the first.",
        &[],
        |view, out| {
            if let Some(backups) = &view.facts.report.backups {
                out.is(backups.newest_unix.0 as f64 / 1e3)
            }
        },
    ),
    own("holdfast_backups_kept", Gauge, "Whole backups in backup-dir.", &[], |view, out| {
        if let Some(backups) = &view.facts.report.backups {
            out.is(backups.kept_count)
        }
    }),
    own("holdfast_backups_made_total", Counter, "Scheduled backups made.", &[], |view, out| {
        if let Some(backups) = &view.facts.report.backups {
            out.is(backups.made_count)
        }
    }),
    own("holdfast_backups_failed_total", Counter, "Scheduled backups that failed.", &[], |view, out| {
        if let Some(backups) = &view.facts.report.backups {
            out.is(backups.failed_count)
        }
    }),
    own("holdfast_checkpoint_written_bytes_total", Counter, "Bytes of checkpoints written.", &[], |view, out| {
        out.is(view.facts.report.journal.checkpoint_bytes);
    }),
    own(
        "holdfast_disk_has_room",
        Gauge,
        "1 while the disk can take what may be admitted; writes are refused at 0.",
        &[],
        |view, out| out.is(u8::from(view.facts.has_room)),
    ),
    own("holdfast_link_up", Gauge, "1 while the link to another node can be used.", LINK, |view, out| {
        links(view, out, |link| u64::from(link.is_up));
    }),
    own("holdfast_link_waiting_bytes", Gauge, "Bytes waiting to be sent to another node.", LINK, |view, out| {
        links(view, out, |link| link.waiting_bytes);
    }),
    own("holdfast_link_made_total", Counter, "How often the link to another node came up.", LINK, |view, out| {
        links(view, out, |link| link.count)
    }),
    own("holdfast_link_sent_bytes_total", Counter, "Bytes sent to another node.", LINK, |view, out| {
        links(view, out, |link| link.sent_bytes);
    }),
    own("holdfast_link_carried_bytes_total", Counter, "The same before they were compressed.", LINK, |view, out| {
        links(view, out, |link| link.carried_bytes)
    }),
    own("holdfast_link_messages_total", Counter, "Messages sent to another node.", LINK, |view, out| {
        links(view, out, |link| link.message_count);
    }),
    own(
        "holdfast_link_dropped_messages_total",
        Counter,
        "Messages dropped because the link was down or full.",
        LINK,
        |view, out| links(view, out, |link| link.dropped_count),
    ),
    own("holdfast_blocked_clients", Gauge, "Clients that wait for data.", &[], |view, out| {
        out.is(view.sum(|core| core.waiting_count));
    }),
    own("holdfast_connections_total", Counter, "Connections opened.", &[], |view, out| {
        out.is(view.sum(|core| core.statistics.connection_count));
    }),
    own("holdfast_commands_total", Counter, "Commands executed.", &[], |view, out| {
        out.is(view.sum(|core| core.calls.total()));
    }),
    own(
        "holdfast_command_duration_seconds",
        Histogram,
        "Execution time of measured calls, by command; of fast commands, every sixteenth call is measured.",
        &["cmd"],
        |view, out| {
            for (name, times) in total_times(view.figures) {
                let count = times.histogram.total();
                if count > 0 {
                    out.histogram(&[&name], &times.histogram.below(BOUNDS), count, times.nanos);
                }
            }
        },
    ),
    own("holdfast_input_bytes_total", Counter, "Bytes received from clients.", &[], |view, out| {
        out.is(view.sum(|core| core.statistics.input_bytes));
    }),
    own("holdfast_output_bytes_total", Counter, "Bytes sent to clients.", &[], |view, out| {
        out.is(view.sum(|core| core.statistics.output_bytes));
    }),
    own("holdfast_keyspace_hits_total", Counter, "Keys that commands looked up and found.", &[], |view, out| {
        out.is(view.sum(|core| core.lookups().found))
    }),
    own(
        "holdfast_keyspace_misses_total",
        Counter,
        "Keys that commands looked up and did not find.",
        &[],
        |view, out| out.is(view.sum(|core| core.lookups().missed)),
    ),
    own(
        "holdfast_cut_clients_total",
        Counter,
        "Clients cut off because they left too much output unread.",
        &[],
        |view, out| out.is(view.sum(|core| core.statistics.cut_count)),
    ),
    own(
        "holdfast_replica_reads_total",
        Counter,
        "Reads answered by replicas of this node that do not lead (READONLY).",
        &[],
        |view, out| out.is(view.sum(|core| core.statistics.replica_read_count)),
    ),
    own(
        "holdfast_malformed_messages_total",
        Counter,
        "Messages of other nodes that could not be read, or that the sender may not send.",
        &[],
        |view, out| out.is(view.sum(|core| core.statistics.malformed_peer_count)),
    ),
    own("holdfast_error_replies_total", Counter, "Error replies, by their first word.", &["code"], |view, out| {
        for (code, count) in total_errors(view.figures) {
            out.of(&[&code], count);
        }
    }),
    own("holdfast_keyspace_bytes", Gauge, "Bytes of keys and values.", &[], |view, out| {
        out.is(view.sum(|core| core.keyspace_bytes));
    }),
    own("holdfast_keys", Gauge, "Keys held by this node, by database.", &["database"], |view, out| {
        for (name, (keys, ..)) in used_databases(view) {
            out.of(&[&&name[2..]], keys);
        }
    }),
    own(
        "holdfast_expiring_keys",
        Gauge,
        "Keys with a deadline held by this node, by database.",
        &["database"],
        |view, out| {
            for (name, (_, expiring, _)) in used_databases(view) {
                out.of(&[&&name[2..]], expiring);
            }
        },
    ),
    own("holdfast_group_leads", Gauge, "1 if this node leads the group and serves.", &["group"], |view, out| {
        groups(view, out, |group| Some(u64::from(group.group_status.is_some())));
    }),
    own("holdfast_group_term", Gauge, "Raft's term of the group.", &["group"], |view, out| {
        groups(view, out, |group| Some(group.term));
    }),
    own(
        "holdfast_group_applied_index",
        Gauge,
        "Last entry of the group's log that is applied.",
        &["group"],
        |view, out| groups(view, out, |group| Some(group.applied)),
    ),
    own(
        "holdfast_group_window_bytes",
        Gauge,
        "Bytes of writes admitted and not yet applied.",
        &["group"],
        |view, out| groups(view, out, |group| Some(group.window_bytes)),
    ),
    own("holdfast_group_lock_holders", Gauge, "Transactions that hold locks in the group.", &["group"], |view, out| {
        groups(view, out, |group| Some(group.lock_count))
    }),
    own(
        "holdfast_group_staleness_seconds",
        Gauge,
        "Maximum age of this node's data of the group.",
        &["group"],
        |view, out| {
            for group in sorted_groups(view) {
                if let Some(staleness_ms) = group.staleness_ms {
                    out.of(&[&group.group], staleness_ms as f64 / 1e3);
                }
            }
        },
    ),
    own("holdfast_group_evicted_keys_total", Counter, "Keys of the group evicted.", &["group"], |view, out| {
        groups(view, out, |group| Some(group.evicted_count))
    }),
    own("holdfast_group_checkpoints_total", Counter, "Checkpoints of the group finished.", &["group"], |view, out| {
        groups(view, out, |group| Some(group.checkpoint_count))
    }),
    own("holdfast_group_checkpoint_running", Gauge, "1 while one is written.", &["group"], |view, out| {
        groups(view, out, |group| Some(u64::from(group.checkpoint_began.is_some())));
    }),
    own(
        "holdfast_group_checkpoint_last_ok",
        Gauge,
        "1 if the last one since the start succeeded; absent before that.",
        &["group"],
        |view, out| {
            groups(view, out, |group| group.last_checkpoint.as_ref().map(|last| u64::from(last.failure.is_none())));
        },
    ),
    own(
        "holdfast_group_checkpoint_last_seconds",
        Gauge,
        "Duration of the last one since the start.",
        &["group"],
        |view, out| groups(view, out, |group| group.last_checkpoint.as_ref().map(|last| last.took_seconds)),
    ),
    own(
        "holdfast_group_log_bytes",
        Gauge,
        "Bytes of log since the last checkpoint of the group.",
        &["group"],
        |view, out| groups(view, out, |group| Some(group.log_bytes)),
    ),
    own(
        "holdfast_follower_active",
        Gauge,
        "1 if the follower was heard within an election time-out.",
        FOLLOWER,
        |view, out| followers(view, out, |_, follower| u64::from(follower.is_active)),
    ),
    own(
        "holdfast_follower_feed",
        Gauge,
        "How the log comes to the follower; always 1.",
        &["group", "node", "feed"],
        |view, out| {
            for (group_status, follower) in all_followers(view) {
                out.of(&[&group_status.group.0, &follower.node.0, &follower.feed.name()], 1);
            }
        },
    ),
    own(
        "holdfast_follower_lag_entries",
        Gauge,
        "Entries of the log that the follower lacks.",
        FOLLOWER,
        |view, out| followers(view, out, GroupStatus::behind),
    ),
    own("holdfast_follower_lag_bytes", Gauge, "Bytes of the log that the follower lacks.", FOLLOWER, |view, out| {
        followers(view, out, |_, follower| follower.behind_bytes)
    }),
    own(
        "holdfast_follower_lag_seconds",
        Gauge,
        "Age of the oldest entry that the follower lacks.",
        FOLLOWER,
        |view, out| {
            for (group_status, follower) in all_followers(view) {
                out.of(&[&group_status.group.0, &follower.node.0], Seconds(follower.lag_ms * 1_000));
            }
        },
    ),
    own("holdfast_follower_silent_seconds", Gauge, "Time since the follower was heard.", FOLLOWER, |view, out| {
        for (group_status, follower) in all_followers(view) {
            out.of(&[&group_status.group.0, &follower.node.0], Seconds(follower.silent_ms * 1_000));
        }
    }),
    own(
        "holdfast_follower_resyncs_total",
        Counter,
        "Checkpoints given to the follower by this leader.",
        FOLLOWER,
        |view, out| followers(view, out, |_, follower| follower.resync_count),
    ),
];

/// Databases that hold keys, as INFO names them: keys, keys with a deadline, and their mean time to live in
/// milliseconds.
fn used_databases(view: &View<'_>) -> BTreeMap<String, (u64, u64, u64)> {
    let mut sums: BTreeMap<usize, (u64, u64, u64)> = BTreeMap::new();
    for figures in view.figures {
        for (database, (keys, expiring, ttl_ms, _)) in figures.databases.iter().enumerate() {
            let sum = sums.entry(database).or_default();
            *sum = (sum.0 + keys, sum.1 + expiring, sum.2.max(*ttl_ms));
        }
    }
    // The first is always told, so that what is divided by it has data.
    let used = sums.into_iter().filter(|(database, (keys, ..))| *keys > 0 || *database == 0);
    used.map(|(database, sum)| (format!("db{database}"), sum)).collect()
}

fn databases(view: &View<'_>, out: &mut Samples<'_>, figure: fn(&(u64, u64, u64)) -> u64) {
    for (name, sum) in used_databases(view) {
        out.of(&[&name], figure(&sum));
    }
}

/// `slave0:ip=127.0.0.1,port=6380,state=online,offset=17,lag=0` and so on.
fn slaves(view: &View<'_>, out: &mut Samples<'_>, figure: &str) {
    let lines = (0..).map_while(|number| view.field(&format!("slave{number}")));
    for line in lines {
        let parts: BTreeMap<&str, &str> = line.split(',').filter_map(|part| part.split_once('=')).collect();
        let part = |name| parts.get(name).copied().unwrap_or_default();
        out.of(&[&part("ip"), &part("port"), &part("state")], part(figure));
    }
}

fn master(view: &View<'_>, out: &mut Samples<'_>, field: &str) {
    if let (Some(host), Some(value)) = (view.field("master_host"), view.field(field).and_then(super::number)) {
        out.of(&[&host, &view.text("master_port")], value);
    }
}

fn links(view: &View<'_>, out: &mut Samples<'_>, figure: fn(&LinkReport) -> u64) {
    for link in &view.facts.report.links {
        let lane = match link.lane {
            Lane::Vital => "vital",
            Lane::Log => "log",
            Lane::Bulk => "bulk",
        };
        out.of(&[&link.node.0, &lane], figure(link));
    }
}

fn sorted_groups<'a>(view: &View<'a>) -> Vec<&'a GroupFigures> {
    let mut groups: Vec<_> = view.figures.iter().flat_map(|figures| &figures.groups).collect();
    groups.sort_by_key(|group| group.group);
    groups
}

fn groups(view: &View<'_>, out: &mut Samples<'_>, figure: fn(&GroupFigures) -> Option<u64>) {
    for group in sorted_groups(view) {
        if let Some(value) = figure(group) {
            out.of(&[&group.group], value);
        }
    }
}

fn all_followers<'a>(view: &View<'a>) -> impl Iterator<Item = (&'a GroupStatus, &'a Follower)> {
    let led = sorted_groups(view).into_iter().filter_map(|group| group.group_status.as_ref());
    led.flat_map(|group_status| group_status.followers.iter().map(move |follower| (group_status, follower)))
}

fn followers(view: &View<'_>, out: &mut Samples<'_>, figure: fn(&GroupStatus, &Follower) -> u64) {
    for (group_status, follower) in all_followers(view) {
        out.of(&[&group_status.group.0, &follower.node.0], figure(group_status, follower));
    }
}

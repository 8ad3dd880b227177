//! The configuration: every parameter by name, and the ones the core itself obeys as plain fields.

mod rewrite;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use keyspace::{Class, Classes, Policy};
use stdx::Duration;

pub use self::rewrite::rewritten;
pub use self::table::TABLE;
use group::host::AppendFsync;

use crate::acl::Users;
use crate::entry::Durability;
use crate::roster::{ZONE_BYTES_MAX, is_zone};

/// What the name of a zone is made of.
const ZONE_RULES: &str = "letters, digits and -_./, at most 64 of them";
const _: () = assert!(ZONE_BYTES_MAX == 64);

/// `leader-zones` as it is kept: names behind commas, each once.
fn zones_line(value: &str) -> Result<String, String> {
    let mut zones: Vec<&str> = Vec::new();
    for zone in value.split([',', ' ']).filter(|zone| !zone.is_empty()) {
        if !is_zone(zone) {
            return Err(format!("'{zone}' is no zone: {ZONE_RULES}"));
        }
        if !zones.contains(&zone) {
            zones.push(zone);
        }
    }
    Ok(zones.join(","))
}

/// Which events of keys are published, and on which channels (`notify-keyspace-events`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notify {
    /// What kinds of events.
    pub classes: Classes,
    /// `K`: on the channel of the key.
    pub by_key: bool,
    /// `E`: on the channel of the event.
    pub by_event: bool,
}

/// Letters of `notify-keyspace-events` in the order in which CONFIG GET shows them; those before `n` make up `A`.
const CLASSES: &[(char, Class)] = &[
    ('g', Class::Generic),
    ('$', Class::String),
    ('l', Class::List),
    ('s', Class::Set),
    ('h', Class::Hash),
    ('z', Class::SortedSet),
    ('x', Class::Expired),
    ('e', Class::Evicted),
    ('t', Class::Stream),
    ('d', Class::Module),
    ('n', Class::New),
];

impl Notify {
    fn parse(letters: &str) -> Option<Self> {
        let mut this = Self::default();
        for letter in letters.chars() {
            match letter {
                'A' => this.classes = this.classes.and(Classes::ALL),
                'K' => this.by_key = true,
                'E' => this.by_event = true,
                'm' => this.classes = this.classes.with(Class::Miss),
                _ => this.classes = this.classes.with(CLASSES.iter().find(|(known, _)| *known == letter)?.1),
            }
        }
        Some(this)
    }

    fn letters(self) -> String {
        let all = self.classes.covers(Classes::ALL);
        let mut letters: String = if all { "A".to_owned() } else { String::new() };
        let shown = |class: Class| self.classes.has(class) && (!all || class == Class::New);
        // As Redis, which leaves `n` out once it has said `A`.
        letters.extend(CLASSES.iter().filter(|(_, class)| !all && shown(*class)).map(|(letter, _)| letter));
        letters.extend(self.by_key.then_some('K'));
        letters.extend(self.by_event.then_some('E'));
        letters.extend(self.classes.has(Class::Miss).then_some('m'));
        letters
    }

    /// What the keyspaces must note.
    pub fn noted(self) -> Classes {
        if self.by_key || self.by_event { self.classes } else { Classes::NONE }
    }
}

/// How much output a client may leave unread before it is cut off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputLimit {
    /// At once beyond this; 0: never.
    pub hard_bytes: usize,
    /// When it is beyond this for too long; 0: never.
    pub soft_bytes: usize,
    /// How long that is.
    pub soft_seconds: u64,
}

/// `client-output-buffer-limit`, by kind of client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputLimits {
    /// Ordinary clients. Their further requests wait while they do not read, so that nothing piles up.
    pub normal: OutputLimit,
    /// Clients that listen to channels.
    pub pubsub: OutputLimit,
}

impl OutputLimits {
    /// Puts what `value` says of some kinds into `present`, which says something of all.
    fn merge(present: &str, value: &str) -> Result<String, String> {
        let words: Vec<_> = value.split_whitespace().collect();
        if words.is_empty() || !words.len().is_multiple_of(4) {
            return Err("Wrong number of arguments in buffer limit configuration.".to_owned());
        }
        let mut merged: Vec<String> = present.split_whitespace().map(str::to_owned).collect();
        for four in words.chunks(4) {
            let place = match four[0].to_ascii_lowercase().as_str() {
                "normal" => 0,
                "slave" | "replica" => 4,
                "pubsub" => 8,
                _ => return Err("Invalid client class specified in buffer limit configuration.".to_owned()),
            };
            let hard = memory_bytes(four[1]);
            let soft = memory_bytes(four[2]);
            let seconds = four[3].parse::<u64>().ok();
            let (Some(hard), Some(soft), Some(seconds)) = (hard, soft, seconds) else {
                return Err("Error in hard, soft or soft_seconds setting in buffer limit configuration.".to_owned());
            };
            let figures = [hard, soft, seconds].map(|figure| figure.to_string());
            merged.splice(place + 1..place + 4, figures);
        }
        Ok(merged.join(" "))
    }

    fn parse(value: &str) -> Self {
        let figures: Vec<u64> = value.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let limit = |place: usize| OutputLimit {
            hard_bytes: figures[place] as usize,
            soft_bytes: figures[place + 1] as usize,
            soft_seconds: figures[place + 2],
        };
        Self { normal: limit(0), pubsub: limit(6) }
    }
}

/// The values of all parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    values: BTreeMap<&'static str, String>,
    /// Parameters that somebody has set, by their first names.
    said: BTreeSet<&'static str>,
    /// `appendfsync`
    pub append_fsync: AppendFsync,
    /// `client-durability-min`: connections may ask for less than the servers' level.
    pub allows_memory: bool,
    /// `databases`
    pub databases: u16,
    /// `maxmemory` in bytes; 0 is without limit.
    pub maxmemory_bytes: u64,
    /// `maxmemory-policy`
    pub maxmemory_policy: Policy,
    /// A second site may follow: what changes is kept for it (`site-backlog-size`).
    pub keeps_site_backlog: bool,
    /// This cluster follows another one, and takes no writes of clients (`site-read-only`).
    pub is_site_read_only: bool,
    /// `import-mode`: no key expires and none is evicted.
    pub import_mode: bool,
    /// `requirepass`; empty if no password is needed.
    pub password: String,
    /// All users at the start: the default user with `requirepass`, and those of the configuration or of `aclfile`.
    pub users: Arc<Users>,
    /// `acl-pubsub-default`: a new user may use all channels.
    pub all_channels: bool,
    /// `acllog-max-len`
    pub acl_log_count_max: usize,
    /// `tracking-table-max-keys`; 0 is without limit.
    pub tracking_key_count_max: usize,
    /// `protected-mode`
    pub protected_mode: bool,
    /// `proto-max-bulk-len`
    pub bulk_bytes_max: usize,
    /// `slowlog-log-slower-than` in microseconds; negative switches it off.
    pub slow_us: i64,
    /// `slowlog-max-len`
    pub slow_count_max: usize,
    /// `latency-monitor-threshold` in milliseconds; 0 switches it off.
    pub latency_threshold_ms: u64,
    /// `maxmemory-clients`: bytes of all clients of the node together; 0: any number.
    pub clients_bytes_max: u64,
    /// `latency-tracking`
    pub tracks_latency: bool,
    /// `notify-keyspace-events`
    pub notify: Notify,
    /// `client-output-buffer-limit`
    pub output_limits: OutputLimits,
    /// Nodes of the cluster that vote in each group, if there are so many (`replicas`).
    pub replica_count: usize,
    /// `replace-after`: a node that has been silent for so long is replaced; zero: never.
    pub replace_after: Duration,
    /// `leader-zones`: zones that leaders should be in, the preferred ones first.
    pub leader_zones: Vec<String>,
    /// `balance-rate-bytes`: bytes of a checkpoint that a group gives to others in a second; 0: any number.
    pub balance_rate_bytes: u64,
    /// `balance-split-bytes`: a group that holds more is split; 0: none is.
    pub balance_split_bytes: u64,
    /// `min-replicas-to-write`: other nodes that must be heard, or writes are refused.
    pub replicas_to_write: u64,
    /// `min-replicas-max-lag`: within how long.
    pub replica_lag_max: Duration,
    /// `replica-read-max-staleness-ms`: how old a replica may be that answers a session which has said READONLY.
    pub read_staleness_max: Duration,
    /// `request-id-maxmemory`: what a group keeps of answers to requests with an id.
    pub request_ids_bytes_max: usize,
    /// `request-id-ttl`: for how long.
    pub request_id_ms: u64,
    /// `cluster-enabled`; also set when there are other nodes.
    pub cluster_enabled: bool,
    /// `cluster-redirect`: clients are sent to the leader of a key, and keys of one request lie in one slot.
    pub cluster_redirect: bool,
    /// There is an archive (`archive`).
    pub is_archived: bool,
    /// Bytes of log since the last checkpoint that call for the next one (`checkpoint-log-bytes`).
    pub checkpoint_log_bytes: u64,
    /// How long a script may run before other clients are refused.
    pub busy_threshold: Duration,
}

/// A parameter as CONFIG knows it.
#[derive(Debug)]
pub struct Parameter {
    /// Its name, lower case.
    pub name: &'static str,
    /// Its value unless set, as CONFIG GET shows it.
    pub default: &'static str,
    /// What values it takes.
    pub kind: Kind,
    /// True if CONFIG SET may change it.
    pub is_mutable: bool,
    /// True if CONFIG SET changes it for the whole cluster: it belongs to the data, or to what is promised of them.
    pub is_shared: bool,
}

/// What values a parameter takes.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `yes` or `no`.
    YesNo,
    /// A whole number in a range.
    Integer(i64, i64),
    /// A number of bytes in a range, with an optional unit: `1kb` is 1,024 bytes, `1k` is 1,000.
    Memory(u64, u64),
    /// The same, or a part of `maxmemory` as `5%`.
    MemoryOrPercent,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Any of these letters (`notify-keyspace-events`).
    Letters(&'static str),
    /// Any text.
    Text,
    /// Several words, kept as they are (`save`, `bind`, `client-output-buffer-limit`).
    Words,
}

impl Default for Settings {
    fn default() -> Self {
        let mut this = Self {
            values: TABLE.iter().map(|parameter| (parameter.name, parameter.default.to_owned())).collect(),
            said: BTreeSet::new(),
            append_fsync: AppendFsync::Always,
            allows_memory: false,
            databases: 16,
            maxmemory_bytes: 0,
            maxmemory_policy: Policy::NoEviction,
            keeps_site_backlog: false,
            is_site_read_only: false,
            import_mode: false,
            password: String::new(),
            users: Arc::default(),
            all_channels: false,
            acl_log_count_max: 0,
            tracking_key_count_max: 0,
            protected_mode: true,
            bulk_bytes_max: 0,
            slow_us: 0,
            slow_count_max: 0,
            latency_threshold_ms: 0,
            clients_bytes_max: 0,
            tracks_latency: true,
            notify: Notify::default(),
            output_limits: OutputLimits::default(),
            replica_count: 0,
            replace_after: Duration::ZERO,
            leader_zones: Vec::new(),
            balance_rate_bytes: 0,
            balance_split_bytes: 0,
            replicas_to_write: 0,
            replica_lag_max: Duration::ZERO,
            read_staleness_max: Duration::ZERO,
            request_ids_bytes_max: 0,
            request_id_ms: 0,
            cluster_enabled: false,
            cluster_redirect: false,
            is_archived: false,
            checkpoint_log_bytes: 0,
            busy_threshold: Duration::ZERO,
        };
        for parameter in TABLE {
            this.obey(parameter.name);
        }
        this
    }
}

/// Parameters that have two names.
const TWINS: &[(&str, &str)] = &[
    ("busy-reply-threshold", "lua-time-limit"),
    ("min-replicas-max-lag", "min-slaves-max-lag"),
    ("min-replicas-to-write", "min-slaves-to-write"),
    ("hash-max-listpack-entries", "hash-max-ziplist-entries"),
    ("hash-max-listpack-value", "hash-max-ziplist-value"),
    ("list-max-listpack-size", "list-max-ziplist-size"),
    ("zset-max-listpack-entries", "zset-max-ziplist-entries"),
    ("zset-max-listpack-value", "zset-max-ziplist-value"),
    ("repl-ping-replica-period", "repl-ping-slave-period"),
    ("replica-priority", "slave-priority"),
];

impl Settings {
    /// What a connection gets that asks for this: no less than the servers' level, unless that is allowed.
    pub fn durability(&self, asked: Durability) -> Durability {
        match asked {
            Durability::Memory if !self.allows_memory => Durability::Server,
            asked => asked,
        }
    }

    /// The same in words: where its changes are when it is answered.
    pub fn durability_in_force(&self, asked: Durability) -> &'static str {
        match (self.durability(asked), self.append_fsync) {
            (Durability::Disk, _) | (Durability::Server, AppendFsync::Always) => "disk",
            (Durability::Memory | Durability::Server, _) => "memory",
        }
    }

    /// The parameter of this name, in whatever case.
    pub fn parameter(name: &str) -> Option<&'static Parameter> {
        TABLE.iter().find(|parameter| parameter.name.eq_ignore_ascii_case(name))
    }

    /// True if CONFIG SET changes the parameter of this name for the whole cluster.
    pub fn is_shared(name: &str) -> bool {
        Self::parameter(name).is_some_and(|parameter| parameter.is_shared)
    }

    /// True if a parameter of this name is one of TLS: the host must find that it can be carried out before it counts.
    /// What it names may have changed, so that the same value is news.
    pub(crate) fn is_of_tls(name: &str) -> bool {
        name.starts_with("tls-")
    }

    /// The first of the names of a parameter that has several.
    pub(crate) fn first_name(name: &str) -> &str {
        TWINS.iter().find(|(_, twin)| *twin == name).map_or(name, |(first, _)| first)
    }

    /// True if somebody has set this parameter: a file, the command line, or CONFIG SET.
    pub fn has_said(&self, name: &str) -> bool {
        self.said.contains(name)
    }

    /// Sets a parameter to what follows from something else, and was said by nobody.
    ///
    /// # Errors
    /// As [`Settings::set`].
    pub fn adopt(&mut self, name: &str, value: &str) -> Result<(), String> {
        let said = self.said.clone();
        self.set(name, value)?;
        self.said = said;
        Ok(())
    }

    /// Sets a parameter, whether CONFIG SET may change it or not.
    ///
    /// # Errors
    /// In Redis's words, if there is no such parameter or the value does not fit it; nothing has changed then.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let parameter = Self::parameter(name).ok_or_else(|| format!("Unknown option '{name}'"))?;
        let mut value = parameter.kind.normal(value)?;
        match parameter.name {
            "client-output-buffer-limit" => value = OutputLimits::merge(self.get(parameter.name), &value)?,
            "zone" if !is_zone(&value) => return Err(format!("'{value}' is no zone: {ZONE_RULES}")),
            "leader-zones" => value = zones_line(&value)?,
            "latency-tracking-info-percentiles" => value = percentiles_line(&value)?,
            "notify-keyspace-events" => value = Notify::parse(&value).map(Notify::letters).unwrap_or_default(),
            _ => {}
        }
        if parameter.name == "save" && value.split_whitespace().count() % 2 == 1 {
            return Err("Invalid save parameters".to_owned());
        }
        let is_one = |(name, twin): &&(&str, &str)| *name == parameter.name || *twin == parameter.name;
        if let Some((name, twin)) = TWINS.iter().find(is_one) {
            self.values.insert(name, value.clone());
            self.values.insert(twin, value.clone());
        }
        self.values.insert(parameter.name, value);
        self.said.insert(Self::first_name(parameter.name));
        self.obey(TWINS.iter().find(is_one).map_or(parameter.name, |(name, _)| name));
        Ok(())
    }

    /// True if the parameter of this name has this value already, however it is written.
    pub fn would_keep(&self, name: &str, value: &str) -> bool {
        let mut trial = self.clone();
        trial.set(name, value).is_ok() && trial.get(name) == self.get(name)
    }

    /// A parameter's value as CONFIG GET shows it. Empty if there is no such parameter.
    pub fn get(&self, name: &str) -> &str {
        self.values.get(name).map_or("", String::as_str)
    }

    /// All parameters with their values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.values.iter().map(|(name, value)| (*name, value.as_str()))
    }

    /// A parameter's value as a number; 0 if it is none.
    pub fn number(&self, name: &str) -> i64 {
        self.get(name).parse().unwrap_or(0)
    }

    /// Brings a field in line with its parameter's value, which fits the parameter's kind.
    fn obey(&mut self, name: &str) {
        let value = self.get(name).to_owned();
        let number = value.parse::<i64>().unwrap_or(0);
        match name {
            "appendfsync" => {
                self.append_fsync = match value.as_str() {
                    "no" => AppendFsync::No,
                    "everysec" => AppendFsync::EverySecond,
                    _ => AppendFsync::Always,
                };
            }
            "client-durability-min" => self.allows_memory = value == "memory",
            "databases" => self.databases = number as u16,
            "maxmemory" => {
                self.maxmemory_bytes = number as u64;
                // It may be a part of this.
                self.obey("maxmemory-clients");
            }
            "maxmemory-clients" => {
                self.clients_bytes_max = match value.strip_suffix('%') {
                    Some(percent) => self.maxmemory_bytes / 100 * percent.parse::<u64>().unwrap_or(0),
                    None => number as u64,
                };
            }
            "site-backlog-size" => self.keeps_site_backlog = number > 0,
            "site-read-only" => self.is_site_read_only = value == "yes",
            "import-mode" => self.import_mode = value == "yes",
            "maxmemory-policy" => {
                self.maxmemory_policy = match value.as_str() {
                    "allkeys-lru" => Policy::AllkeysLru,
                    "allkeys-lfu" => Policy::AllkeysLfu,
                    "allkeys-random" => Policy::AllkeysRandom,
                    "volatile-lru" => Policy::VolatileLru,
                    "volatile-lfu" => Policy::VolatileLfu,
                    "volatile-random" => Policy::VolatileRandom,
                    "volatile-ttl" => Policy::VolatileTtl,
                    _ => Policy::NoEviction,
                };
            }
            "requirepass" => {
                // A default user that has other rules keeps them when the password stays as it is.
                if self.password != value {
                    Arc::make_mut(&mut self.users).require(&value);
                }
                self.password = value;
            }
            "acl-pubsub-default" => self.all_channels = value == "allchannels",
            "tracking-table-max-keys" => self.tracking_key_count_max = number as usize,
            "acllog-max-len" => self.acl_log_count_max = number as usize,
            "protected-mode" => self.protected_mode = value == "yes",
            "proto-max-bulk-len" => self.bulk_bytes_max = number as usize,
            "slowlog-log-slower-than" => self.slow_us = number,
            "slowlog-max-len" => self.slow_count_max = number as usize,
            "latency-tracking" => self.tracks_latency = value == "yes",
            "latency-monitor-threshold" => self.latency_threshold_ms = number as u64,
            "notify-keyspace-events" => self.notify = Notify::parse(&value).unwrap_or_default(),
            "client-output-buffer-limit" => self.output_limits = OutputLimits::parse(&value),
            "replicas" => self.replica_count = number as usize,
            "replace-after" => self.replace_after = Duration::from_secs(number as u64),
            "leader-zones" => {
                self.leader_zones = value.split(',').filter(|zone| !zone.is_empty()).map(str::to_owned).collect();
            }
            "balance-rate-bytes" => self.balance_rate_bytes = number as u64,
            "balance-split-bytes" => self.balance_split_bytes = number as u64,
            "min-replicas-to-write" => self.replicas_to_write = number as u64,
            "min-replicas-max-lag" => self.replica_lag_max = Duration::from_secs(number as u64),
            "replica-read-max-staleness-ms" => self.read_staleness_max = Duration::from_millis(number as u64),
            "request-id-maxmemory" => self.request_ids_bytes_max = number as usize,
            "request-id-ttl" => self.request_id_ms = number as u64 * 1_000,
            "cluster-enabled" => self.cluster_enabled = value == "yes",
            "cluster-redirect" => self.cluster_redirect = value == "yes",
            "busy-reply-threshold" | "lua-time-limit" => {
                self.busy_threshold = Duration::from_millis(number as u64);
                // Two names for the same thing.
                self.values.insert("busy-reply-threshold", value.clone());
                self.values.insert("lua-time-limit", value);
            }
            "archive" => self.is_archived = !value.is_empty(),
            "checkpoint-log-bytes" => self.checkpoint_log_bytes = number as u64,
            _ => {}
        }
    }

    /// Groups close moments, since an archive or a second site goes by them.
    pub fn closes_moments(&self) -> bool {
        self.is_archived || self.keeps_site_backlog
    }

    /// What clients are told of the mode: they must look for leaders themselves only if they are sent there.
    pub fn mode(&self) -> &'static str {
        if self.cluster_enabled && self.cluster_redirect { "cluster" } else { "standalone" }
    }

    /// When collections change their form, and whether keys expire. Replicated data, so the keyspace hears of it
    /// through the log alone.
    pub fn limits(&self) -> keyspace::Limits {
        let count = |name| u64::try_from(self.number(name)).unwrap_or(0);
        keyspace::Limits {
            hash_entries: count("hash-max-listpack-entries"),
            hash_value_bytes: count("hash-max-listpack-value"),
            set_integers: count("set-max-intset-entries"),
            sorted_set_entries: count("zset-max-listpack-entries"),
            sorted_set_value_bytes: count("zset-max-listpack-value"),
            stream_block_bytes: count("stream-node-max-bytes"),
            stream_block_entries: count("stream-node-max-entries"),
            sparse_sketch_bytes: count("hll-sparse-max-bytes"),
            set_listpack_entries: count("set-max-listpack-entries"),
            set_listpack_value_bytes: count("set-max-listpack-value"),
            list_listpack_size: self.number("list-max-listpack-size"),
            keeps_expired: self.import_mode,
        }
    }

    /// What the keyspace obeys.
    pub fn tuning(&self) -> keyspace::Tuning {
        keyspace::Tuning {
            policy: self.maxmemory_policy,
            lfu_log_factor: self.number("lfu-log-factor") as u32,
            lfu_decay_minutes: self.number("lfu-decay-time") as u32,
            samples: self.number("maxmemory-samples") as u32,
        }
    }
}

impl Kind {
    /// The value in the form in which CONFIG GET shows it.
    fn normal(self, value: &str) -> Result<String, String> {
        match self {
            Self::YesNo => match value.to_ascii_lowercase().as_str() {
                "yes" => Ok("yes".to_owned()),
                "no" => Ok("no".to_owned()),
                _ => Err("argument must be 'yes' or 'no'".to_owned()),
            },
            Self::Integer(min, max) => {
                let number: i64 =
                    value.parse().map_err(|_| "argument couldn't be parsed into an integer".to_owned())?;
                if !(min..=max).contains(&number) {
                    return Err(format!("argument must be between {min} and {max} inclusive"));
                }
                Ok(number.to_string())
            }
            Self::Memory(min, max) => {
                let bytes = memory_bytes(value).ok_or_else(|| "argument must be a memory value".to_owned())?;
                if !(min..=max).contains(&bytes) {
                    return Err(format!("argument must be between {min} and {max} inclusive"));
                }
                Ok(bytes.to_string())
            }
            Self::MemoryOrPercent => match value.strip_suffix('%') {
                None => Self::Memory(0, i64::MAX as u64).normal(value),
                Some(percent) => match percent.parse::<u64>() {
                    Ok(percent @ 0..=100) => Ok(format!("{percent}%")),
                    Ok(_) => Err("percentage argument must be less or equal to 100".to_owned()),
                    Err(_) => Err("argument must be a memory or percent value".to_owned()),
                },
            },
            Self::Choice(words) => words
                .iter()
                .find(|word| word.eq_ignore_ascii_case(value))
                .map(|word| (*word).to_owned())
                .ok_or_else(|| format!("argument(s) must be one of the following: {}", words.join(", "))),
            Self::Letters(letters) => {
                if value.chars().all(|letter| letters.contains(letter)) {
                    Ok(value.to_owned())
                } else {
                    Err("Invalid event class character. Use 'Ag$lshzxeKEtmdn'.".to_owned())
                }
            }
            Self::Text => Ok(value.to_owned()),
            Self::Words => Ok(value.split_whitespace().collect::<Vec<_>>().join(" ")),
        }
    }
}

/// Percentiles as CONFIG GET shows them.
fn percentiles_line(value: &str) -> Result<String, String> {
    let words = value.split_whitespace().map(|word| match word.parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent.to_string()),
        _ => Err("latency-tracking-info-percentiles must consist of numbers between 0 and 100".to_owned()),
    });
    Ok(words.collect::<Result<Vec<_>, _>>()?.join(" "))
}

/// Parses a number of bytes with an optional unit, as Redis's configuration writes it.
pub fn memory_bytes(text: &str) -> Option<u64> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let unit: u64 = match text[digits..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" => 1_000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(unit)
}

//! The configuration: every parameter by name, and the ones the core itself obeys as plain fields.

mod table;

use std::collections::BTreeMap;

use keyspace::Policy;

pub use self::table::TABLE;

/// When an acknowledged write is on disk (`appendfsync`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AppendFsync {
    /// Before the acknowledgement.
    #[default]
    Always,
    /// Within a second.
    EverySecond,
    /// When the operating system likes.
    No,
}

/// The values of all parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    values: BTreeMap<&'static str, String>,
    /// `appendfsync`
    pub append_fsync: AppendFsync,
    /// `databases`
    pub databases: u16,
    /// `maxmemory` in bytes; 0 is without limit.
    pub maxmemory_bytes: u64,
    /// `maxmemory-policy`
    pub maxmemory_policy: Policy,
    /// `requirepass`; empty if no password is needed.
    pub password: String,
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
    /// Bytes of log since the last checkpoint that call for the next one (`checkpoint-log-bytes`).
    pub checkpoint_log_bytes: u64,
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
            append_fsync: AppendFsync::Always,
            databases: 16,
            maxmemory_bytes: 0,
            maxmemory_policy: Policy::NoEviction,
            password: String::new(),
            protected_mode: true,
            bulk_bytes_max: 0,
            slow_us: 0,
            slow_count_max: 0,
            latency_threshold_ms: 0,
            checkpoint_log_bytes: 0,
        };
        for parameter in TABLE {
            this.obey(parameter.name);
        }
        this
    }
}

impl Settings {
    /// The parameter of this name, in whatever case.
    pub fn parameter(name: &str) -> Option<&'static Parameter> {
        TABLE.iter().find(|parameter| parameter.name.eq_ignore_ascii_case(name))
    }

    /// Sets a parameter, whether CONFIG SET may change it or not.
    ///
    /// # Errors
    /// In Redis's words, if there is no such parameter or the value does not fit it; nothing has changed then.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let parameter = Self::parameter(name).ok_or_else(|| format!("Unknown option '{name}'"))?;
        let value = parameter.kind.normal(value)?;
        if parameter.name == "save" && value.split_whitespace().count() % 2 == 1 {
            return Err("Invalid save parameters".to_owned());
        }
        self.values.insert(parameter.name, value);
        self.obey(parameter.name);
        Ok(())
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
            "databases" => self.databases = number as u16,
            "maxmemory" => self.maxmemory_bytes = number as u64,
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
            "requirepass" => self.password = value,
            "protected-mode" => self.protected_mode = value == "yes",
            "proto-max-bulk-len" => self.bulk_bytes_max = number as usize,
            "slowlog-log-slower-than" => self.slow_us = number,
            "slowlog-max-len" => self.slow_count_max = number as usize,
            "latency-monitor-threshold" => self.latency_threshold_ms = number as u64,
            "checkpoint-log-bytes" => self.checkpoint_log_bytes = number as u64,
            _ => {}
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

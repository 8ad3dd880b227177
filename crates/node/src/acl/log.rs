//! What was denied to which user (ACL LOG).

use std::collections::VecDeque;

use stdx::UnixMillis;

use super::{Denial, Denied};

/// Entries alike within so long are one, counted.
const GROUPING_MS: i64 = 60_000;

/// Entries looked at to find one alike.
const LOOKED_AT_MAX: usize = 10;

/// Where a command was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// By itself.
    TopLevel,
    /// In a transaction.
    Transaction,
    /// In a script.
    Script,
}

impl Where {
    /// Redis's word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::TopLevel => "toplevel",
            Self::Transaction => "multi",
            Self::Script => "lua",
        }
    }
}

/// Something that was denied, once or several times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number, growing: on its core, until the entries of all cores are merged.
    pub id: u64,
    /// How many times.
    pub count: u64,
    /// What kind of thing: `command`, `key`, `channel` or `auth`.
    pub reason: &'static str,
    /// Where.
    pub place: Where,
    /// What.
    pub object: Vec<u8>,
    /// The user.
    pub user: Vec<u8>,
    /// When, the first time.
    pub created: UnixMillis,
    /// When, the last time.
    pub last: UnixMillis,
    /// The client, as CLIENT INFO describes it.
    pub client: String,
}

impl Entry {
    /// An entry about one denial.
    pub fn new(denial: Denial, place: Where, user: &[u8], last: UnixMillis, client: String) -> Self {
        let reason = match denial.what {
            Denied::Command => "command",
            Denied::Key(_) => "key",
            Denied::Channel(_) => "channel",
            Denied::Login => "auth",
        };
        Self { id: 0, count: 1, reason, place, object: denial.object, user: user.to_vec(), created: last, last, client }
    }

    fn is_like(&self, other: &Self) -> bool {
        self.reason == other.reason
            && self.place == other.place
            && (self.last.0 - other.last.0).abs() <= GROUPING_MS
            && self.object == other.object
            && self.user == other.user
    }
}

/// The latest denials of one core, the latest first.
#[derive(Clone, Debug, Default)]
pub struct AclLog {
    entries: VecDeque<Entry>,
    next_id: u64,
    counts: [u64; 4],
}

impl AclLog {
    /// Notes a denial; the oldest is forgotten when there are more than `count_max`.
    pub fn push(&mut self, entry: Entry, count_max: usize) {
        let place = ["auth", "command", "key", "channel"].iter().position(|reason| *reason == entry.reason);
        self.counts[place.expect("a reason of these")] += 1;
        join(&mut self.entries, Entry { id: self.next_id, ..entry });
        self.next_id += 1;
        self.entries.truncate(count_max);
    }

    /// How often logins, commands, keys and channels were denied since the start.
    pub fn counts(&self) -> [u64; 4] {
        self.counts
    }

    /// All that are remembered.
    pub fn entries(&self) -> Vec<Entry> {
        self.entries.iter().cloned().collect()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.entries.clear();
    }
}

/// Adds an entry at the front, joined with one alike.
fn join(entries: &mut VecDeque<Entry>, mut entry: Entry) {
    if let Some(place) = entries.iter().take(LOOKED_AT_MAX).position(|known| known.is_like(&entry)) {
        let known = entries.remove(place).expect("just found");
        entry.count += known.count;
        (entry.id, entry.created) = (known.id, known.created.min(entry.created));
    }
    entries.push_front(entry);
}

/// The entries of all cores, in their order, as one log, the latest first. Each gets a number of its own.
pub fn merge(logs: Vec<Vec<Entry>>) -> Vec<Entry> {
    let core_count = logs.len() as u64;
    let numbered = logs.into_iter().zip(0..).flat_map(|(entries, core)| {
        entries.into_iter().map(move |entry| Entry { id: entry.id * core_count + core, ..entry })
    });
    let mut entries: Vec<_> = numbered.collect();
    // Each core tells its latest first; what was denied in the same millisecond keeps its order.
    entries.reverse();
    entries.sort_by_key(|entry| entry.last);
    let mut merged = VecDeque::new();
    for entry in entries {
        join(&mut merged, entry);
    }
    merged.into()
}

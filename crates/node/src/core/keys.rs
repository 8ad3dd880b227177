//! What is told of keys and memory: figures, keys of a slot, digests; and what is evicted.

use std::collections::BTreeSet;

use group::figures::GroupFigures;
use group::group_status::GroupStatus;
use group::ids::{GroupId, Room};
use group::{Group, Standing};
use keyspace::Policy;
use keyspace::debug::{Digest, database_digest, object_line, value_digest};
use stdx::slot::{Slot, slot_of};

use super::Core;
use crate::commands::question::{DebugQuestion, Figures};
use crate::pubsub::Kind;
use crate::tracking::Mode;
use crate::{limits, redirect};

impl Core {
    /// Bytes held by the keyspaces of this core.
    pub fn keyspace_bytes(&self) -> u64 {
        self.groups().map(|group| group.state().keyspace().memory_bytes() as u64).sum()
    }

    /// Bytes in use by the process, as far as this core knows: the latest report, and what has changed here since.
    pub(crate) fn used_memory_bytes(&self) -> u64 {
        let evicting: u64 = self.groups().map(|group| group.evicting_bytes() as u64).sum();
        (self.context.host.report.used_memory_bytes + self.keyspace_bytes())
            .saturating_sub(self.context.memory.reported_bytes + evicting)
    }

    /// This core's figures.
    pub(crate) fn figures(&self, with_histograms: bool) -> Figures {
        self.figures_counting(with_histograms, |_| true)
    }

    /// The same, with the keys of these groups alone.
    fn figures_counting(&self, with_histograms: bool, counts: impl Fn(GroupId) -> bool) -> Figures {
        let hot = self.context.timings.hot_keys();
        Figures {
            statistics: self.context.statistics.clone(),
            per_second: self.context.rates.per_second,
            calls: self.sessions.calls.clone(),
            times: self.context.timings.figures(with_histograms),
            hottest_per_mille: (hot.time_per_mille(), hot.calls_per_mille()),
            session_count: self.sessions.len() as u64,
            session_bytes: self.sessions.iter().map(|session| session.memory_bytes() as u64).sum(),
            input_bytes_max: self.sessions.iter().map(|session| session.input_bytes() as u64).max().unwrap_or(0),
            output_bytes_max: self.sessions.iter().map(|session| session.output_bytes() as u64).max().unwrap_or(0),
            tracking: {
                let (keys, readers) = self.context.tracker.counts();
                (self.context.tracker.session_count(), keys, readers)
            },
            prefixes: self.prefixes(),
            names: [Kind::Channel, Kind::Pattern, Kind::Shard]
                .map(|kind| self.context.pubsub.names(kind).map(<[u8]>::to_vec).collect()),
            waiting_count: self.waiting_count() as u64,
            waits: self.waits_counted(),
            watching: {
                let watches = self.sessions.iter().flat_map(|session| &session.watches);
                let keys: BTreeSet<_> = watches.map(|watch| (watch.database, &watch.key)).collect();
                (self.sessions.iter().filter(|session| !session.watches.is_empty()).count(), keys.len())
            },
            listening_count: self.sessions.iter().filter(|session| session.is_subscribed()).count(),
            denials: self.context.access.log.counts(),
            databases: self.database_figures(counts),
            keyspace_bytes: self.keyspace_bytes(),
            reported_keyspace_bytes: self.context.memory.reported_bytes,
            lua_bytes: self.runner.memory_bytes() as u64,
            groups: self.groups().filter(|group| !self.is_buried(group)).map(|group| self.figures_of(group)).collect(),
            group_statuses: self.heard_group_statuses(),
        }
    }

    /// True if the group has gone, and nothing of it is left here.
    fn is_buried(&self, group: &Group) -> bool {
        group.is_vacant() && self.context.roster.is_gone(group.id())
    }

    pub(super) fn figures_of(&self, group: &Group) -> GroupFigures {
        let now = self.now.instant;
        let lasts = self.context.leaderless.lasts(group.id(), now);
        GroupFigures { leaderless_ms: lasts.map(|lasts| lasts.as_millis() as u64), ..group.figures(now) }
    }

    /// What leaders have said of their groups, and how many milliseconds ago.
    pub(super) fn heard_group_statuses(&self) -> Vec<(GroupStatus, u64)> {
        let age_ms = |heard| self.now.instant.since(heard).as_millis() as u64;
        self.context.group_statuses.iter().map(|(group_status, heard)| (group_status.clone(), age_ms(heard))).collect()
    }

    /// How many keys each database has in these groups of this core, how many of them have a deadline, how far the
    /// deadlines lie ahead, and how many hashes have fields with one.
    fn database_figures(&self, counts: impl Fn(GroupId) -> bool) -> Vec<(u64, u64, u64, u64)> {
        (0..self.context.settings.databases)
            .map(|database| {
                let mut sum = (0, 0, 0, 0);
                for group in self.groups().filter(|group| counts(group.id())) {
                    let expiring = group.state().keyspace().expiring_count(database) as u64;
                    let average = group.state().keyspace().average_ttl(database, group.read_moment(self.now));
                    sum.0 += group.state().keyspace().key_count(database) as u64;
                    sum.1 += expiring;
                    sum.2 = sum.2.max(average.max(0) as u64);
                    sum.3 += group.state().keyspace().expiring_hash_count(database) as u64;
                }
                sum
            })
            .collect()
    }

    /// The figures that INFO tells. Where clients ask every leader, keys are those that DBSIZE counts: a sum over the
    /// nodes counts none twice. If no leader is known, they are all that this core has.
    pub(crate) fn figures_to_tell(&self, with_histograms: bool) -> Figures {
        let asked = redirect::groups_asked(&self.context, false);
        let counts = |group| asked.as_ref().map_or(true, |asked| asked.contains(&group));
        self.figures_counting(with_histograms, counts)
    }

    /// Prefixes that broadcasting sessions of this core are told of.
    pub(super) fn prefixes(&self) -> BTreeSet<Vec<u8>> {
        let modes = self
            .context
            .tracker
            .sessions()
            .filter_map(|id| Some(&self.sessions.get(id)?.options.tracking.as_ref()?.mode));
        let prefixes = modes.filter_map(|mode| match mode {
            Mode::Broadcast(prefixes) => Some(prefixes.iter().cloned()),
            _ => None,
        });
        prefixes.flatten().collect()
    }

    /// Keys of a slot, if its group lives on this core.
    pub(crate) fn keys_of_slot(&self, slot: Slot, database: u16, count: usize) -> Vec<Vec<u8>> {
        const STEP: usize = 1_000;
        let group = self.context.slots.group_of_slot(slot);
        let Some(group) = self.groups().find(|other| other.id() == group) else { return Vec::new() };
        let view = group.state().keyspace().view(database, group.read_moment(self.now));
        let mut keys = Vec::new();
        let mut cursor = keyspace::cursor_at_slot(slot.0.into());
        loop {
            cursor = view.scan(cursor, STEP, |entry| {
                if slot_of(entry.key()) == slot && keys.len() < count {
                    keys.push(entry.key().to_vec());
                }
            });
            if cursor == 0 || keys.len() >= count || keyspace::slot_of_cursor(cursor) != slot {
                return keys;
            }
        }
    }

    /// Bytes that the keys of a slot take, if its group lives on this core.
    pub(crate) fn bytes_of_slot(&self, slot: Slot) -> u64 {
        let group = self.context.slots.group_of_slot(slot);
        let group = self.groups().find(|other| other.id() == group);
        group.map_or(0, |group| group.state().keyspace().slot_bytes(slot) as u64)
    }

    /// Keys of a slot, if this core has them.
    pub(crate) fn key_count_of_slot(&self, slot: Slot, database: u16) -> u64 {
        let group = self.context.slots.group_of_slot(slot);
        let group = self.groups().find(|other| other.id() == group);
        group.map_or(0, |group| group.state().keyspace().slot_key_count(database, slot) as u64)
    }

    /// Digests of this core's databases that are not empty.
    pub(crate) fn digests(&self) -> Vec<(u16, Digest)> {
        let mut digests = Vec::new();
        for database in 0..self.context.settings.databases {
            let mut joined: Option<Digest> = None;
            for group in self.groups() {
                let view = group.state().keyspace().view(database, group.read_moment(self.now));
                if let Some(digest) = database_digest(&view) {
                    joined.get_or_insert_with(Digest::default).join(digest);
                }
            }
            digests.extend(joined.map(|digest| (database, digest)));
        }
        digests
    }

    /// DEBUG OBJECT and DEBUG DIGEST-VALUE for the keys that live on this core.
    pub(crate) fn describe_keys(&self, kind: DebugQuestion, keys: &[(u16, Vec<u8>)]) -> Vec<(usize, String)> {
        let mut described = Vec::new();
        for (place, (database, key)) in keys.iter().enumerate() {
            let group = self.context.slots.group_of(key);
            let Some(group) = self.groups().find(|other| other.id() == group) else { continue };
            let view = group.state().keyspace().view(*database, group.read_moment(self.now));
            let text = match kind {
                DebugQuestion::Object => object_line(&view, key).ok(),
                DebugQuestion::Digest => Some(value_digest(&view, key).to_string()),
            };
            described.extend(text.map(|text| (place, text)));
        }
        described
    }

    /// Chooses victims while memory is over its limit. Their removal goes through the log, so that replicas agree.
    pub(super) fn evict(&mut self) {
        let limit = self.context.settings.maxmemory_bytes;
        let policy = self.context.settings.maxmemory_policy;
        // What is evicted is logged, for which there must be room.
        let has_room = self.context.host.room == Room::Enough;
        // Before all is loaded some keys may be counted twice: those of a group that has split off, where the split has
        // yet to be applied again.
        let may_evict = policy != Policy::NoEviction && self.unloaded.is_empty() && has_room;
        if limit == 0 || self.context.settings.import_mode || !may_evict {
            return;
        }
        let mut used = self.used_memory_bytes();
        let now = self.now;
        let started = self.context.timings.start_work();
        for group in self.groups.iter_mut().flatten() {
            if group.standing() != Standing::Serving {
                continue;
            }
            for _ in 0..limits::EVICTIONS_PER_TURN {
                if used <= limit || group.is_full() {
                    break;
                }
                let moment = group.read_moment(now);
                let Some((database, key)) = group.state().keyspace().victim(policy, &mut self.prng, moment) else {
                    break;
                };
                let entry = group.state().keyspace().view(database, moment).peek(&key);
                let byte_count = entry.map_or(1, |entry| entry.memory_bytes());
                if group.evict(database, &key, byte_count) {
                    used = used.saturating_sub(byte_count as u64);
                }
            }
        }
        self.context.timings.stop_work("eviction-cycle", started);
    }
}

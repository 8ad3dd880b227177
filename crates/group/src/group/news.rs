//! What a core asks its groups for: figures, and what has changed since it asked last.

use std::sync::Arc;

use keyspace::Lookups;
use message::libraries::Libraries;
use message::parameters::Parameters;
use message::roster::Roster;
use stdx::Instant;

use super::{Group, Standing};
use crate::figures::GroupFigures;
use crate::ids::NodeId;
use crate::requests::Route;

impl Group {
    /// Counts from zero again (CONFIG RESETSTAT).
    pub fn reset_counts(&mut self) {
        self.evictions.count = 0;
        self.counts.repeated = 0;
        self.counts.reserved = 0;
        self.counts.reservations_lapsed = 0;
        self.state.upkeep().forget_removals();
        self.state.keyspace().set_lookups(Lookups::default());
    }

    /// Figures for INFO.
    pub fn figures(&self, now: Instant) -> GroupFigures {
        GroupFigures {
            level: self.state.level(),
            group: self.id.0,
            standing: match self.standing() {
                Standing::Serving => "serving",
                Standing::Loading => "loading",
                Standing::Leaderless | Standing::Follower(_) if self.is_vacant() => "elsewhere",
                Standing::Leaderless if self.is_in_doubt() => "in-doubt",
                Standing::Follower(_) => "following",
                Standing::Leaderless => "leaderless",
            },
            leader: self.replica.leader().map(NodeId),
            leaderless_ms: None,
            voters: self.membership().voters.clone(),
            group_status: self.group_status(),
            is_taking: self.is_taking(),
            term: self.term(),
            applied: self.applied(),
            window_bytes: self.window_bytes() as u64,
            change_count: self.state.keyspace().altered_count() - self.log.altered_saved,
            log_bytes: self.log.bytes,
            checkpoint_began: self.checkpointing.began(),
            is_checkpoint_waiting: self.checkpointing.is_waiting,
            checkpoint_progress: self
                .state
                .keyspace()
                .checkpoint_progress()
                .map(|(walked, total)| (walked as u64, total as u64)),
            last_checkpoint: self.checkpointing.last.clone(),
            checkpoint_count: self.checkpointing.finished_count,
            loaded_percent: self.loaded_percent(),
            staleness_ms: self.staleness(now).map(|staleness| staleness.as_millis() as u64),
            lock_count: self.lock_count() as u64,
            evicted_count: self.evictions.count,
            request_id_count: self.state.request_ids().count() as u64,
            request_id_bytes: self.state.request_ids().byte_count() as u64,
            repeated_count: self.counts.repeated,
            reserved_count: self.counts.reserved,
            reservations_lapsed_count: self.counts.reservations_lapsed,
            removals: self.state.keyspace().removals(),
            lookups: self.state.keyspace().lookups(),
        }
    }

    /// Where the group is led, if that has changed since it was last asked.
    pub fn take_route(&mut self) -> Option<Route> {
        let leader = match self.standing() {
            Standing::Serving => Some(self.node),
            Standing::Follower(leader) => Some(leader),
            Standing::Loading | Standing::Leaderless => None,
        };
        let term = if self.is_vacant() { self.led_elsewhere().1 } else { self.replica.term() };
        let route = Route { leader, term, is_here: !self.is_vacant() };
        let is_news = self.news.route.replace(route) != Some(route);
        is_news.then_some(route)
    }

    /// The level, if it has changed since it was last asked for.
    pub fn take_level(&mut self) -> Option<stdx::Level> {
        std::mem::take(&mut self.news.has_level).then(|| self.state.level())
    }

    /// The roster, if it has changed since it was last asked for.
    pub fn take_roster(&mut self) -> Option<Roster> {
        std::mem::take(&mut self.news.has_roster).then(|| self.roster().clone())
    }

    /// The libraries, if a checkpoint has brought them since they were last asked for.
    pub fn take_libraries(&mut self) -> Option<Arc<Libraries>> {
        std::mem::take(&mut self.news.has_libraries).then(|| Arc::clone(self.state.libraries()))
    }

    /// The cluster's parameters, if a checkpoint has brought them since they were last asked for.
    pub fn take_parameters(&mut self) -> Option<Arc<Parameters>> {
        std::mem::take(&mut self.news.has_parameters).then(|| Arc::clone(self.state.parameters()))
    }
}

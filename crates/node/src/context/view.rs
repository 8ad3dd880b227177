//! What groups read of their node: [`group::output::NodeView`].

use std::collections::BTreeSet;
use std::sync::Arc;

use command::Refusal;
use group::group_status::GroupStatuses;
use group::ids::{CoreId, GroupId, NodeId, Room};
use group::levels::LevelFacts;
use group::output::NodeView;
use group::requests::Route;
use keyspace::{Classes, Tuning};
use resp::Args;
use stdx::{Duration, Instant, UnixMillis};

use crate::context::Context;
use crate::masters;
use crate::roster::{Member, Roster};
use crate::slots::SlotMap;

impl NodeView for Context {
    #[inline]
    fn node(&self) -> NodeId {
        self.node
    }

    #[inline]
    fn core(&self) -> CoreId {
        self.core
    }

    #[inline]
    fn core_count(&self) -> u16 {
        self.core_count
    }

    fn group_count(&self) -> u32 {
        self.group_count
    }

    fn is_clustered(&self) -> bool {
        self.is_clustered
    }

    fn is_expelled(&self) -> bool {
        self.is_expelled
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    fn founds_groups(&self) -> bool {
        self.founds_groups
    }

    fn own(&self) -> &Member {
        &self.own
    }

    fn roster(&self) -> &Arc<Roster> {
        &self.roster
    }

    fn slots(&self) -> &Arc<SlotMap> {
        &self.slots
    }

    fn routes(&self) -> &[Route] {
        &self.routes
    }

    fn group_statuses(&self) -> &GroupStatuses {
        &self.group_statuses
    }

    fn levels(&self) -> &LevelFacts {
        &self.levels
    }

    fn parameters_version(&self) -> u64 {
        self.parameters.version
    }

    #[inline]
    fn latest_moment(&self) -> UnixMillis {
        self.moments.latest()
    }

    #[inline]
    fn room(&self) -> &Room {
        &self.host.room
    }

    #[inline]
    fn follows_source(&self) -> bool {
        self.host.source.is_some()
    }

    fn archive_lag_ms(&self) -> Option<u64> {
        let archive = self.host.report.archive.as_ref().filter(|_| self.settings.is_archived);
        archive.map(|archive| archive.lag_ms)
    }

    fn stalled_ms_here(&self) -> u64 {
        self.host.guilt.stalled_ms
    }

    fn stalls_here(&self) -> String {
        self.host.guilt.text()
    }

    fn noted(&self) -> Classes {
        self.noted()
    }

    fn no_quorum(&self, group: GroupId, now: Instant) -> String {
        self.no_quorum(group, now)
    }

    fn groups_to_take_over(&self, node: NodeId, words: Args<'_>) -> Result<Vec<GroupId>, Refusal> {
        masters::groups_to_take_over(self, node, words)
    }

    fn can_lead(&self, node: NodeId) -> bool {
        self.neighbours.can_lead(node)
    }

    fn hears(&self, node: NodeId) -> bool {
        self.neighbours.hears(node)
    }

    fn is_steady_since(&self, node: NodeId, then: Instant) -> bool {
        self.neighbours.is_steady_since(node, then)
    }

    fn stalled_ms(&self, node: NodeId) -> Option<u64> {
        self.neighbours.stalled_ms(node)
    }

    fn silent_since(&self, node: NodeId) -> Option<Instant> {
        self.neighbours.silent_since(node)
    }

    fn cores_of(&self, node: NodeId) -> Option<u16> {
        self.neighbours.core_count(node)
    }

    fn lost(&self) -> BTreeSet<u64> {
        self.neighbours.lost()
    }

    fn reach(&self, own: NodeId, node: NodeId) -> BTreeSet<NodeId> {
        self.neighbours.reach(own, node)
    }

    fn replica_count(&self) -> usize {
        self.settings.replica_count
    }

    fn leader_zones(&self) -> &[String] {
        &self.settings.leader_zones
    }

    #[inline]
    fn replicas_to_write(&self) -> u64 {
        self.settings.replicas_to_write
    }

    fn replica_lag_max(&self) -> Duration {
        self.settings.replica_lag_max
    }

    fn is_archived(&self) -> bool {
        self.settings.is_archived
    }

    fn closes_moments(&self) -> bool {
        self.settings.closes_moments()
    }

    fn balance_rate_bytes(&self) -> u64 {
        self.settings.balance_rate_bytes
    }

    fn balance_split_bytes(&self) -> u64 {
        self.settings.balance_split_bytes
    }

    fn request_ids_bytes_max(&self) -> usize {
        self.settings.request_ids_bytes_max
    }

    fn tuning(&self) -> Tuning {
        self.settings.tuning()
    }
}

//! A group that goes: its slots have moved to another one, and its log ends.
//!
//! ```text
//!   group 0                      the group that goes                 every node
//!     │ logs: it is to go
//!     │────────── roster ──────────▶│ gives all slots away, as in any move
//!     │                             │ has nothing prepared, and nothing that anybody may ask about
//!     │                             │ logs: the end
//!     │◀──── status: ended ───────│
//!     │ logs: it has gone           │ answers those who have asked it before
//!     │────────── roster ─────────────────────────────────────────────▶│ asks it for nothing any more
//!     │                             │                                  │ gives up its replica after a while
//! ```
//!
//! The end is an entry of the group's own log. When it is applied, the group holds no slot, has prepared nothing, and
//! has forgotten the outcomes of all transactions, which it does only when all who took part have ended them. So there
//! is no transaction that anybody could ask it about, but one that it never prepared and never will: that is refused,
//! and anybody who knows that the group has gone need not ask.
//!
//! Behind the end the leader logs nothing for anybody. What it has answered is answered again, from its reply cache;
//! what comes too late is told where the slot is. Both last as long as a gateway waits for an answer. Then the replicas
//! are given up, as where a group moves to other nodes, with log and checkpoint.

use message::answer;
use message::roster::{Given, Gone};
use stdx::slot::Slot;
use stdx::{Duration, Instant};

use super::{Committed, Group, LEVEL_OF_SPLITS, Proof, Waiter};
use crate::defect::Defect;
use crate::ids::{Now, Room};
use crate::limits;
use crate::output::NodeView;
use crate::output::Output;
use crate::requests::PrepareAnswer;
use crate::requests::{Request, RequestBody, Resolution};
use crate::timeline::Kind;

/// How far a leader is with the end of its group.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// The entry that ends the group is on its way through the log.
    pub(super) is_logged: bool,
    /// Since when this leader knows that the group has ended.
    ended_at: Option<Instant>,
    /// The archive has the end, or there is none.
    is_archived: bool,
    /// Since when nothing is in the way but what should soon be over, and whether it has been told of.
    waits: Option<(Instant, bool)>,
}

impl Group {
    /// What the leader says of the end of its group: when the archive has it, if there is one.
    pub(super) fn end_told(&self) -> Option<Gone> {
        let index = self.state.ended().filter(|_| self.leader.ending.is_archived)?;
        let given = self.state.slots().moved().filter(|moved| moved.group != self.id);
        Some(Gone { index, given: Given::of(given) })
    }

    /// True if nothing is logged for anybody any more.
    pub(super) fn is_closed(&self) -> bool {
        self.leader.ending.is_logged || self.state.ended().is_some()
    }

    /// Ends the group if it is to go and has nothing any more.
    pub(super) fn look_after_end(&mut self, output: &mut impl Output) {
        if !self.is_serving {
            return;
        }
        if self.state.ended().is_some() && !self.leader.ending.is_archived {
            let since = *self.leader.ending.ended_at.get_or_insert(self.last_tick);
            let age = self.last_tick.since(since);
            // Its figures may be a moment old.
            let lags = |lag_ms: u64| age < limits::END_ARCHIVE_LAG + Duration::from_millis(lag_ms);
            self.leader.ending.is_archived = !output.view().archive_lag_ms().is_some_and(lags);
            self.due.group_status = if self.leader.ending.is_archived { Instant::ZERO } else { self.due.group_status };
        }
        if self.is_closed() || output.view().roster().merges_into(self.id).is_none() {
            return;
        }
        if let Some(why) = self.obstacle_to_end(output.view()) {
            return self.tell_of_wait(why, output);
        }
        self.leader.ending.is_logged = true;
        self.leader.builder.end();
        self.leader.waiters.push(Waiter::Silent);
    }

    /// Tells once of a group that holds no slot any more and does not end.
    fn tell_of_wait(&mut self, why: &str, output: &mut impl Output) {
        if self.state.holds_slots() {
            self.leader.ending.waits = None;
            return;
        }
        let (since, is_told) = self.leader.ending.waits.get_or_insert((self.last_tick, false));
        if !*is_told && self.last_tick.since(*since) >= limits::END_TOLD_AFTER {
            *is_told = true;
            output.happened(
                Kind::Placement,
                Some(self.id),
                format!("holds no slot any more, and does not end yet: {why}"),
            );
        }
    }

    /// Why a group that is to go cannot end now.
    pub(super) fn obstacle_to_end(&self, context: &impl NodeView) -> Option<&'static str> {
        let mut children = context.roster().children(self.id);
        if let Some(obstacle) = self.state.end_obstacle() {
            Some(obstacle)
        } else if self.leader.builder.level() < LEVEL_OF_SPLITS {
            Some("it is at a level at which none ends")
        } else if children.any(|group| self.state.split_index(group).is_none()) {
            Some("another group is to split off from it")
        } else if !self.leader.builder.is_empty()
            || !self.window.inflight.is_empty()
            || !self.leader.held.is_empty()
            || !self.leader.locks.is_empty()
            || self.is_moving_slots()
        {
            Some("requests are under way")
        } else if self.backups.is_kept() {
            Some("a backup is being read")
        } else if context.archive_lag_ms().is_some_and(|lag_ms| lag_ms > limits::END_ARCHIVE_LAG.as_millis() as u64) {
            Some("the archive is behind")
        } else if *context.room() != Room::Enough {
            Some("there is no room for an entry that says so")
        } else {
            None
        }
    }

    /// The entry that ends the group has been applied.
    pub(super) fn note_end(&mut self, output: &mut impl Output) {
        self.leader.ending.is_logged = false;
        if self.is_serving && self.state.ended().is_some() {
            self.due.group_status = Instant::ZERO;
            output.happened(Kind::Placement, Some(self.id), "holds nothing any more, and has ended".to_owned());
        }
    }

    /// Answers what comes when nothing is logged any more. None if that was all there is to say.
    pub(super) fn take_closed(&mut self, request: Request, output: &mut impl Output) -> Option<Request> {
        let is_of_cluster = request.origin.claim.is_some();
        match &request.body {
            // It is asked again when it is known what becomes of the entry.
            _ if self.leader.ending.is_logged && is_of_cluster => output.send_back(&request.origin),
            // Its gateway leaves this group out when it knows that it has gone.
            RequestBody::Lock(lock) if lock.whole && is_of_cluster => output.send_back(&request.origin),
            RequestBody::Script(_) if is_of_cluster => output.send_back(&request.origin),
            RequestBody::Resolve { resolution: Resolution::Commit | Resolution::Abort, .. } => {
                output.answer(&request.origin, Committed::of_applied(), Vec::new());
            }
            // Nothing is locked here any more.
            RequestBody::Prepare { participants, .. } if !participants.is_empty() => {
                output.answer(&request.origin, Proof::Refused, PrepareAnswer::Refused.put());
            }
            RequestBody::Write(_) | RequestBody::Exec(_) if is_of_cluster => {
                let slot = self.foreign_slot(&request).unwrap_or(Slot(0));
                let known = self.state.slots().known(slot);
                output.answer(&request.origin, Committed::of_applied(), answer::put_moved(&known));
            }
            _ => return Some(request),
        }
        None
    }

    /// True if the group has gone, and has been known to for so long that nobody asks this replica for anything.
    ///
    /// A replica that has not seen the end waits as long as anybody leads it: it is sent the end, or there is none, and
    /// somebody has lied about it.
    pub(super) fn has_gone(&mut self, now: Now, context: &impl NodeView) -> bool {
        if !context.roster().is_gone(self.id) {
            return false;
        }
        let since = *self.vacancy_gone_since(now.instant);
        let is_over = now.instant.since(since) >= limits::GONE_PATIENCE;
        let is_sure = self.state.ended().is_some() || !self.replica.is_leader() && !self.is_led_now();
        self.defect == Some(Defect::EarlyEnd) || is_over && is_sure
    }
}

//! What this core hears of other nodes. See [`crate::neighbours`].

use group::ids::{CoreId, GroupId, Lane, Room};
use std::sync::Arc;

use crate::core::Core;
use crate::core_messages::CoreMessage;
use crate::event::Action;
use crate::limits;
use crate::neighbours::Vitals;
use crate::wire;

impl Core {
    /// The first core tells the other nodes of this one, and the other cores of the other nodes.
    pub(crate) fn keep_neighbours(&mut self, actions: &mut Vec<Action>) {
        if self.context.core.0 != 0 || self.context.roster.is_empty() {
            return;
        }
        let now = self.now.instant;
        // Most turns have nothing to judge, and nothing to tell.
        if now >= self.hearing.judge_at {
            self.judge_neighbours();
        }
        let can_lead = self.context.host.room == Room::Enough && !self.context.is_stopping;
        let heard = &self.context.neighbours.heard;
        let told = &self.hearing.told;
        let checkpoint = self.hearing.own_checkpoint_stage();
        let is_told = (can_lead, checkpoint) == (told.can_lead, told.checkpoint) && heard.keys().eq(&told.hears);
        if now < self.hearing.tell_at && is_told {
            return;
        }
        let (core_count, stalled_ms) = (self.context.core_count, self.context.host.guilt.stalled_ms);
        let hears = heard.keys().copied().collect();
        let vitals = Vitals { can_lead, hears, core_count, checkpoint, stalled_ms };
        self.hearing.tell_at = now + limits::VITALS_INTERVAL;
        let mut bytes = wire::encode_vitals(&vitals);
        wire::stamp(&mut bytes, self.context.moments.latest());
        self.hearing.told = vitals;
        for (node, _) in self.context.roster.present().filter(|(node, _)| *node != self.context.node) {
            actions.push(Action::Send { to: node, group: GroupId(0), lane: Lane::Vital, bytes: bytes.clone() });
        }
    }

    fn judge_neighbours(&mut self) {
        let now = self.now.instant;
        let roster = &self.context.roster;
        let is_member = |node| roster.get(node).is_some_and(|member| !member.is_removed);
        let mut judged = self.hearing.judge(&self.context.neighbours, is_member, now);
        let staying = roster.staying().collect();
        let replace_after = self.context.settings.replace_after;
        judged.lost = self.hearing.absences.look(&judged, self.context.node, &staying, replace_after, now);
        if judged != *self.context.neighbours {
            let judged = Arc::new(judged);
            for core in (1..self.context.core_count).map(CoreId) {
                self.outbox.push(self.context.core, core, CoreMessage::Neighbours(Arc::clone(&judged)));
            }
            self.context.neighbours = judged;
        }
    }
}

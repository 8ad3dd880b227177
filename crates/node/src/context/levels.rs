//! Which features the level in force has. See [`group::levels`].

use command::Refusal;
use group::levels::{HOME, check_form, leads_and_does_not_know, not_known};
use resp::Args;
use stdx::Level;

use crate::context::Context;
use crate::event::Action;
use crate::known::Known;
use crate::roster::Member;

impl Context {
    /// Refuses to ask the leader of group 0 for what it does not know: it would take it for something else.
    pub(crate) fn check_admin(&self, verb: &[u8]) -> Result<(), Refusal> {
        let leader = self.routes[HOME.0 as usize].leader.filter(|leader| *leader != self.node);
        let is_new = verb.eq_ignore_ascii_case(b"upgrade") || verb.eq_ignore_ascii_case(b"failover");
        let Some(leader) = leader.filter(|_| is_new) else { return Ok(()) };
        match self.levels.of_nodes.get(&leader) {
            None => Err(Refusal::new(format!("TRYAGAIN node {}, which leads group 0, is not linked", leader.0))),
            Some(known) if known.highest == Level::FIRST => Err(Refusal::new(leads_and_does_not_know(leader, *known))),
            Some(_) => Ok(()),
        }
    }

    /// What this node says of itself to the others. A version that knows only level 1 takes no zone.
    pub(crate) fn own_as_announced(&self) -> Member {
        // A node that joins knows the level from those that let it in, before it has anything of group 0.
        let level =
            if self.roster.is_empty() { self.levels.in_force.max(self.levels.floor) } else { self.levels.in_force };
        self.whereabouts_to_announce().known_at(level)
    }

    /// The level of the commands that a gateway of this core takes. The leader that would log them has the last word.
    pub(crate) fn level_for_clients(&self) -> Level {
        if self.is_clustered { self.levels.in_force } else { self.levels.in_force.max(self.levels.floor) }
    }

    /// A command as it is at that level.
    #[inline]
    pub(crate) fn in_force(&self, known: Known) -> Known {
        match known {
            Known::Data(command) if self.level_for_clients() == Level::FIRST => {
                Known::Data(keyspace::as_of_level_1(command))
            }
            known => known,
        }
    }

    /// Refuses a request in a form that is newer than a level.
    #[inline]
    pub(crate) fn check_level(&self, name: &str, args: Args<'_>) -> Result<(), Refusal> {
        check_form(self.level_for_clients(), name, args)
    }

    /// An entry of this level is about to be written here, or a checkpoint taken over: the host is told first.
    ///
    /// # Errors
    /// If this program cannot read it: then nothing may be written.
    pub(crate) fn keep(&mut self, level: Level, actions: &mut Vec<Action>) -> Result<(), ()> {
        if level <= self.levels.floor {
            return Ok(());
        }
        if level > self.levels.known.highest {
            actions.push(Action::Fatal { line: not_known(level, self.levels.known) });
            return Err(());
        }
        self.levels.floor = level;
        actions.push(Action::Floor(level));
        Ok(())
    }
}

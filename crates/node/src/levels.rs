//! Which formats and semantics are in force, and which nodes must know them: see `docs/decisions/0046-levels.md`.
//!
//! ```text
//!   HOLDFAST UPGRADE ─▶ leader of group 0: does every node know the next level?
//!        │ item Rise in the log of group 0, committed by nodes that all know it
//!        ▼
//!   every core hears it ─▶ leaders of the other groups: item Rise in their own logs
//! ```
//!
//! A group is at the level that its own log says, so an item means the same on every replica and in every replay. What
//! is new with a level is gated in these places, and nowhere else:
//!
//! * a command that changes data: a line in `command::level`;
//! * an item of the log: a line in `level_of_item` of `message::entry`;
//! * a part of a group's state in checkpoints: behind the level in `parts!` of `state`;
//! * a message between nodes, or a field of one: sent if [`Context::level`] has reached the level that brought it. By
//!   then every node reads it;
//! * what an item does: `State::level`; of a command, `keyspace::as_of_level_1`, and `Keyspace::set_level` for what it
//!   answers, since groups keep answers.
//!
//! The *floor* of a node is the highest level of anything in its logs. Its host writes it into the directory before the
//! first such entry, and has no link from then on to a node that does not know it. So whatever the leader of group 0
//! believed of other nodes, nobody is given what it cannot read.

use command::Refusal;
use keyspace::{Body, DataCommand};
use resp::{Args, Protocol};
use stdx::{Level, Levels};

use crate::commands::Known;
use crate::context::Context;
use crate::defect::Defect;
use crate::entry;
use crate::event::Action;
use crate::group::Group;
use crate::group::proof::Proof;
use crate::ids::{GroupId, NodeId};
use crate::output::Output;
use crate::requests::{Request, RequestBody};
use crate::roster::Member;
use crate::timeline::Kind;

/// The group with the log that says at which level the cluster is.
pub(crate) const HOME: GroupId = GroupId(0);

/// A command as it changes data at this level. What only reads is not logged, and is the same at all levels.
pub(crate) fn body_at(level: Level, command: &'static DataCommand) -> &'static DataCommand {
    let is_logged = matches!(command.body, Body::Mutate(_));
    if is_logged && level == Level::FIRST { keyspace::as_of_level_1(command) } else { command }
}

impl Context {
    /// Refuses to ask the leader of group 0 for what it does not know: it would take it for something else.
    pub(crate) fn check_admin(&self, verb: &[u8]) -> Result<(), Refusal> {
        let leader = self.routes[HOME.0 as usize].leader.filter(|leader| *leader != self.node);
        let Some(leader) = leader.filter(|_| verb.eq_ignore_ascii_case(b"upgrade")) else { return Ok(()) };
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

/// Why a level cannot be raised that the leader of group 0 does not know.
pub(crate) fn leads_and_does_not_know(leader: NodeId, levels: Levels) -> String {
    format!("ERR node {}, which leads group 0, knows {levels}: give it a version that knows more", leader.0)
}

/// What a node says that meets a level which it does not know.
pub(crate) fn not_known(level: Level, levels: Levels) -> String {
    format!(
        "the cluster is at level {level}, and this version of Holdfast knows {levels}: nothing of it has been written \
         here. Start a version that knows level {level}"
    )
}

/// Refuses a request in a form that is newer than a level.
#[inline]
pub(crate) fn check_form(in_force: Level, name: &str, args: Args<'_>) -> Result<(), Refusal> {
    if in_force >= Levels::KNOWN.highest {
        return Ok(());
    }
    let since = command::level::level_of(name, args);
    if since <= in_force {
        return Ok(());
    }
    Err(Refusal::new(format!(
        "ERR '{name}' in this form needs level {since}, and the cluster is at level {in_force}: when every node runs a \
         version that knows level {since}, raise it (holdfast cluster upgrade)"
    )))
}

impl Group {
    /// At which level the next item is logged.
    pub(crate) fn level_to_log(&self) -> Level {
        self.wanted.level_logged.max(self.state.level())
    }

    /// What this node has in its directory, if it has the group alone; otherwise the level of the cluster.
    pub(crate) fn begin_at(&mut self, floor: Level, cluster: Level) {
        self.wanted.level = if self.is_alone() { floor.max(cluster) } else { cluster };
    }

    /// The cluster is at this level: so is the group, with the next entry.
    pub(crate) fn hear_of_level(&mut self, level: Level) {
        self.wanted.level = self.wanted.level.max(level);
        self.rise_as_wanted();
    }

    /// Raises the level of the group to that which is wanted, if this replica serves. What is asked for behind this is
    /// logged behind it.
    pub(crate) fn rise_as_wanted(&mut self) {
        if self.defect == Some(Defect::EarlyLevel) {
            self.wanted.level = Levels::KNOWN.highest;
        }
        if self.is_serving() && self.wanted.level > self.level_to_log() {
            self.rise(self.wanted.level);
        }
    }

    /// Takes `HOLDFAST UPGRADE`: raises the level of the cluster by one. `Ok(false)` if there is no higher one.
    pub(crate) fn upgrade(&mut self, word: &str, output: &mut Output<'_>) -> Result<bool, String> {
        let only_checks = match word.to_ascii_lowercase().as_str() {
            "" => false,
            "check" => true,
            _ => return Err(format!("ERR after UPGRADE stands CHECK or nothing, and not '{word}'")),
        };
        let next = self.state.level().next();
        if next > output.context.levels.known.highest {
            let is_known = |(_, known): (&NodeId, &Levels)| known.contains(next);
            return match output.context.levels.of_nodes.iter().find(|known| is_known(*known)) {
                None => Ok(false),
                Some(_) => Err(leads_and_does_not_know(output.context.node, output.context.levels.known)),
            };
        }
        if self.level_to_log() >= next {
            return Err(format!("TRYAGAIN the level is just being raised to {next}"));
        }
        self.check_all_know(next, output.context)?;
        if only_checks {
            return Ok(false);
        }
        output.happened(
            Kind::Member,
            None,
            format!("the level is raised to {next}: versions that do not know it are out"),
        );
        self.rise(next);
        Ok(true)
    }

    /// Goes on with a rise that a former leader has begun: this node has it in its log already, or had.
    pub(crate) fn go_on_rising(&mut self, output: &mut Output<'_>) {
        let next = self.level_to_log().next();
        if next <= output.context.levels.floor && self.check_all_know(next, output.context).is_ok() {
            self.rise(next);
        }
    }

    /// Whether every node of the cluster is there, and knows a level.
    fn check_all_know(&self, level: Level, context: &Context) -> Result<(), String> {
        if self.defect == Some(Defect::BlindRise) {
            return Ok(());
        }
        let others = self.roster().present().filter(|(node, _)| *node != context.node);
        let mut lacking = Vec::new();
        for (node, member) in others {
            let who = format!("node {} ({})", node.0, member.client_address);
            match context.levels.of_nodes.get(&node) {
                _ if !context.neighbours.hears(node) => lacking.push(format!("{who} is not heard")),
                None => lacking.push(format!("{who} has not said yet what it knows")),
                Some(known) if known.contains(level) => {}
                Some(known) => lacking.push(format!("{who} knows {known}")),
            }
        }
        if lacking.is_empty() {
            return Ok(());
        }
        Err(format!("ERR every node must be there and know level {level}: {}", lacking.join("; ")))
    }

    /// True if a request would log what is newer than the group; its client is told so.
    pub(crate) fn refuses_newer(&mut self, request: &Request, output: &mut Output<'_>) -> bool {
        let in_force = self.level_to_log();
        if in_force >= Levels::KNOWN.highest {
            return false;
        }
        let mut spans = Vec::new();
        let check =
            |args: Args<'_>| keyspace::resolve(args).map_or(Ok(()), |command| check_form(in_force, command.name, args));
        let checked = match &request.body {
            RequestBody::Write(words) => check(entry::Reader::new(words).words(&mut spans).1),
            RequestBody::Exec(packed) => {
                let exec = entry::Reader::new(packed).exec(Protocol::Resp2, &mut spans);
                let mut first = Ok(());
                exec.for_each(&mut spans, |_, args| {
                    if first.is_ok() {
                        first = check(args);
                    }
                });
                first
            }
            _ => Ok(()),
        };
        let Err(refusal) = checked else { return false };
        let mut writer = resp::Writer::new(request.protocol);
        writer.error(refusal.text());
        output.reply_proven(&request.origin, Proof::Refused, writer.into_bytes());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_than_the_level_in_force_is_let_through() {
        let spans = [resp::Span { start: 0, end: 3 }];
        let args = Args::new(b"get", &spans);
        for level in [1, 2, 3] {
            assert!(check_form(Level(level), "get", args).is_ok());
        }
    }

    #[test]
    fn a_node_names_the_level_that_it_does_not_know() {
        let line = not_known(Level(3), Levels::KNOWN);
        assert!(
            line.starts_with("the cluster is at level 3, and this version of Holdfast knows levels 1 to 2: "),
            "{line}"
        );
    }
}

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
//! * a message between nodes, or a field of one: sent if the level in force ([`LevelFacts`]) has reached the one that
//!   brought it. By then every node reads it;
//! * what an item does: `State::level`; of a command, `keyspace::as_of_level_1`, and `Keyspace::set_level` for what it
//!   answers, since groups keep answers.
//!
//! The *floor* of a node is the highest level of anything in its logs. Its host writes it into the directory before the
//! first such entry, and has no link from then on to a node that does not know it. So whatever the leader of group 0
//! believed of other nodes, nobody is given what it cannot read.

use std::collections::BTreeMap;

use command::Refusal;
use keyspace::{Body, DataCommand};
use resp::Args;
use stdx::{Level, Levels};

use crate::ids::{GroupId, NodeId};

/// Levels: of this program, of the cluster, and of other nodes.
pub struct LevelFacts {
    /// The levels that this program knows.
    pub known: Levels,
    /// The level of the cluster, as far as this core knows: that of group 0. Nodes may send each other what came with
    /// it.
    pub in_force: Level,
    /// The highest level of anything in the logs of this node, as far as this core has to do with them.
    pub floor: Level,
    /// The levels that other nodes know, as they have said last.
    pub of_nodes: BTreeMap<NodeId, Levels>,
}

/// The group with the log that says at which level the cluster is.
pub const HOME: GroupId = GroupId(0);

/// A command as it changes data at this level. What only reads is not logged, and is the same at all levels.
#[inline]
pub fn body_at(level: Level, command: &'static DataCommand) -> &'static DataCommand {
    let is_logged = matches!(command.body, Body::Mutate(_));
    if is_logged && level == Level::FIRST { keyspace::as_of_level_1(command) } else { command }
}

/// Why a level cannot be raised that the leader of group 0 does not know.
pub fn leads_and_does_not_know(leader: NodeId, levels: Levels) -> String {
    format!("ERR node {}, which leads group 0, knows {levels}: give it a version that knows more", leader.0)
}

/// What a node says that meets a level which it does not know.
pub fn not_known(level: Level, levels: Levels) -> String {
    format!(
        "the cluster is at level {level}, and this version of Holdfast knows {levels}: nothing of it has been written \
         here. Start a version that knows level {level}"
    )
}

/// Refuses a request in a form that is newer than a level.
#[inline]
pub fn check_form(in_force: Level, name: &str, args: Args<'_>) -> Result<(), Refusal> {
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

//! The level of a group. See [`crate::levels`].

use message::entry;
use resp::{Args, Protocol};
use stdx::{Level, Levels};

use crate::defect::Defect;
use crate::group::Group;
use crate::ids::NodeId;
use crate::levels::{check_form, leads_and_does_not_know};
use crate::output::NodeView;
use crate::output::Output;
use crate::proof::Proof;
use crate::requests::{Request, RequestBody};
use crate::timeline::Kind;

impl Group {
    /// At which level the next item is logged.
    pub fn level_to_log(&self) -> Level {
        self.wanted.level_logged.max(self.state.level())
    }

    /// What this node has in its directory, if it has the group alone; otherwise the level of the cluster.
    pub fn begin_at(&mut self, floor: Level, cluster: Level) {
        self.wanted.level = if self.is_alone() { floor.max(cluster) } else { cluster };
    }

    /// The cluster is at this level: so is the group, with the next entry.
    pub fn hear_of_level(&mut self, level: Level) {
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
    pub fn upgrade(&mut self, word: &str, output: &mut impl Output) -> Result<bool, String> {
        let only_checks = match word.to_ascii_lowercase().as_str() {
            "" => false,
            "check" => true,
            _ => return Err(format!("ERR after UPGRADE stands CHECK or nothing, and not '{word}'")),
        };
        let next = self.state.level().next();
        if next > output.view().levels().known.highest {
            let is_known = |(_, known): (&NodeId, &Levels)| known.contains(next);
            return match output.view().levels().of_nodes.iter().find(|known| is_known(*known)) {
                None => Ok(false),
                Some(_) => Err(leads_and_does_not_know(output.view().node(), output.view().levels().known)),
            };
        }
        if self.level_to_log() >= next {
            return Err(format!("TRYAGAIN the level is just being raised to {next}"));
        }
        self.check_all_know(next, output.view())?;
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
    pub(crate) fn go_on_rising(&mut self, output: &mut impl Output) {
        let next = self.level_to_log().next();
        if next <= output.view().levels().floor && self.check_all_know(next, output.view()).is_ok() {
            self.rise(next);
        }
    }

    /// Whether every node of the cluster is there, and knows a level.
    fn check_all_know(&self, level: Level, context: &impl NodeView) -> Result<(), String> {
        if self.defect == Some(Defect::BlindRise) {
            return Ok(());
        }
        let others = self.roster().present().filter(|(node, _)| *node != context.node());
        let mut lacking = Vec::new();
        for (node, member) in others {
            let who = format!("node {} ({})", node.0, member.client_address);
            match context.levels().of_nodes.get(&node) {
                _ if !context.hears(node) => lacking.push(format!("{who} is not heard")),
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
    pub(crate) fn refuses_newer(&mut self, request: &Request, output: &mut impl Output) -> bool {
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

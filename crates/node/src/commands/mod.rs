//! Commands that concern a session or the node rather than data, each declared beside its handler.
//!
//! A handler sees a [`Local`]: the session that asked and its core. What concerns every core of the node is put as a
//! [`Question`] to all of them and answered by joining their [`Answer`]s.

mod acl;
mod backup;
mod changes;
mod client;
mod cluster;
mod config;
mod connection;
mod debug;
mod describe;
mod functions;
mod hotkeys;
mod info;
mod latency;
mod migrate;
mod overview;
mod pubsub;
pub(crate) mod question;
mod record;
mod replication;
mod scripting;
mod server;
mod tracking;
mod transactions;

use command::{Command, Index, Refusal};
use resp::{Args, Writer};
use stdx::Duration;
use stdx::slot::Slot;

use crate::context::Context;
use crate::core::Core;
use crate::event::Action;
use crate::known::Known;
pub(crate) use crate::lookup::number;
use group::ids::{Now, SessionId};

use crate::session::Session;
use crate::session::ticket::OwnTicket;

pub use crate::acl::change::Change;
pub(crate) use acl::may_keep_listening;
pub(crate) use changes::{
    XREAD as XREAD_CHANGES, is_xread as is_xread_of_changes, permission as changes_permission, reads_every_key,
};
pub(crate) use cluster::info_text as cluster_info_text;
pub use connection::REDIS_VERSION;
pub(crate) use connection::describe;
pub(crate) use describe::categories_of;
pub(crate) use info::{fields as info_fields, hottest_per_mille, total_calls, total_errors, total_times};
pub use question::{Answer, DebugQuestion, Figures, Question, SessionFilter};
pub(crate) use record::{Record, source};

pub use crate::scripts::naming::{Changing, Naming, Running};

/// What runs a control command.
#[derive(Debug)]
pub enum Body {
    /// Answered by the session's own core, at once. Writes exactly one reply, or refuses with nothing written.
    Local(fn(&mut Local<'_>, Args<'_>, &mut Writer) -> Result<(), Refusal>),
    /// Asked of every core of the node.
    Node {
        /// What to ask. May refuse.
        ask: fn(&mut Local<'_>, Args<'_>) -> Result<Question, Refusal>,
        /// Writes exactly one reply from the cores' answers, which come in the order of cores, or refuses.
        join: fn(&mut Local<'_>, Args<'_>, Vec<Answer>, &mut Writer) -> Result<(), Refusal>,
    },
    /// As [`Body::Node`], but the session goes on meanwhile: what it asks for later does not depend on the answers.
    Tell {
        /// What to ask. May refuse.
        ask: fn(&mut Local<'_>, Args<'_>) -> Result<Question, Refusal>,
        /// Writes exactly one reply from the cores' answers, or refuses.
        join: fn(&mut Local<'_>, Args<'_>, Vec<Answer>, &mut Writer) -> Result<(), Refusal>,
    },
    /// A step of a transaction, carried out by the core.
    Flow(Flow),
    /// Decided by the leader of group 0.
    Admin,
    /// Begun by the core, which answers later. May refuse, and has begun nothing then.
    Driven(Drive),
    /// Runs a script, carried out by the core.
    Script {
        /// How the request names it.
        naming: Naming,
        /// It may write nothing.
        is_read_only: bool,
    },
    /// Changes the libraries of functions, carried out by the core.
    Libraries(Changing),
    /// Has subcommands, and does nothing by itself. What other servers have beside them, and what to do instead.
    Container(&'static [Absent]),
}

/// Subcommands that other servers have, in lower case, and the refusal that says what does here what they do there.
pub type Absent = (&'static [&'static str], &'static str);

impl Body {
    /// Why a subcommand is not here, if there is more to say than that.
    pub(crate) fn instead_of(&self, subcommand: &[u8]) -> Option<&'static str> {
        let Self::Container(absent) = self else { return None };
        let is_named = |name: &&str| name.as_bytes().eq_ignore_ascii_case(subcommand);
        absent.iter().find(|(names, _)| names.iter().any(is_named)).map(|(_, instead)| *instead)
    }
}

/// Steps of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// MULTI
    Multi,
    /// EXEC
    Exec,
    /// DISCARD
    Discard,
    /// WATCH
    Watch,
    /// UNWATCH
    Unwatch,
}

/// A command on the session or the node.
pub type ControlCommand = Command<Body>;

/// What a control handler may touch.
pub struct Local<'a> {
    /// The session that asked. Its output must not be written to: the reply goes to the writer.
    pub session: &'a mut Session,
    /// Its core.
    pub core: &'a mut Context,
    /// The clocks.
    pub now: Now,
    /// What the host is asked to do.
    pub actions: &'a mut Vec<Action>,
    /// True if the command is part of a transaction.
    pub is_in_transaction: bool,
    /// Set by a handler that answers with a push, which leaves whatever CLIENT REPLY says.
    pub is_pushed: bool,
    /// Set by a handler that joins answers: what to ask of all cores before its own reply leaves.
    pub follow_up: Option<Question>,
    /// Set by a handler after which the core sleeps for so long.
    pub sleeps: Option<Duration>,
}

impl Local<'_> {
    /// Carries out a command, and notes how long it takes.
    pub(crate) fn run(
        &mut self,
        command: &'static ControlCommand,
        run: fn(&mut Self, Args<'_>, &mut Writer) -> Result<(), Refusal>,
        args: Args<'_>,
        writer: &mut Writer,
    ) -> Result<(), Refusal> {
        let known = Known::Control(command);
        let watch = self.core.timings.start(known, args);
        let result = run(self, args, writer);
        match (self.sleeps, watch) {
            (Some(took), _) => self.core.timings.note(known, args, took),
            (None, Some(watch)) => self.core.timings.stop(watch, args),
            (None, None) => {}
        }
        self.core.note_slow(self.session);
        result
    }

    /// What a command asks the cores. If it refuses to ask, that is all there is of it, and how long it took is noted.
    pub(crate) fn ask(
        &mut self,
        command: &'static ControlCommand,
        ask: fn(&mut Self, Args<'_>) -> Result<Question, Refusal>,
        args: Args<'_>,
    ) -> Result<Question, Refusal> {
        let watch = self.core.timings.start(Known::Control(command), args);
        let asked = ask(self, args);
        if let (Err(_), Some(watch)) = (&asked, watch) {
            self.core.timings.stop(watch, args);
            self.core.note_slow(self.session);
        }
        asked
    }

    /// Joins answers to a command's question, and notes how long that takes.
    pub(crate) fn join(
        &mut self,
        command: &'static ControlCommand,
        join: fn(&mut Self, Args<'_>, Vec<Answer>, &mut Writer) -> Result<(), Refusal>,
        args: Args<'_>,
        answers: Vec<Answer>,
        writer: &mut Writer,
    ) -> Result<(), Refusal> {
        let watch = self.core.timings.start(Known::Control(command), args);
        let result = join(self, args, answers, writer);
        if let Some(watch) = watch {
            self.core.timings.stop(watch, args);
            self.core.note_slow(self.session);
        }
        result
    }
}

/// Every control command; the order means nothing.
pub static COMMANDS: &[&ControlCommand] = &[
    &transactions::MULTI,
    &transactions::EXEC,
    &transactions::DISCARD,
    &transactions::WATCH,
    &transactions::UNWATCH,
    &connection::PING,
    &connection::ECHO,
    &connection::SELECT,
    &connection::QUIT,
    &connection::RESET,
    &connection::AUTH,
    &connection::HELLO,
    &client::CLIENT,
    &pubsub::SUBSCRIBE,
    &pubsub::UNSUBSCRIBE,
    &pubsub::PSUBSCRIBE,
    &pubsub::PUNSUBSCRIBE,
    &pubsub::SSUBSCRIBE,
    &pubsub::SUNSUBSCRIBE,
    &pubsub::PUBLISH,
    &pubsub::SPUBLISH,
    &pubsub::PUBSUB,
    &config::CONFIG,
    &describe::COMMAND,
    &info::INFO,
    &server::MONITOR,
    &server::TIME,
    &server::LASTSAVE,
    &server::BGSAVE,
    &server::BGREWRITEAOF,
    &server::SAVE,
    &server::SHUTDOWN,
    &backup::BACKUP,
    &changes::CHANGES,
    &migrate::MIGRATE,
    &server::SLOWLOG,
    &server::COMMANDLOG,
    &latency::LATENCY,
    &hotkeys::HOTKEYS,
    &server::MEMORY,
    &server::MODULE,
    &overview::ROLE,
    &overview::HOLDFAST,
    &replication::REPLICAOF,
    &replication::REPLCONF,
    &replication::PSYNC,
    &replication::SITE,
    &replication::SYNC,
    &replication::SLAVEOF,
    &server::FAILOVER,
    &server::WAIT,
    &server::WAITAOF,
    &server::LOLWUT,
    &scripting::EVAL,
    &scripting::EVAL_RO,
    &scripting::EVALSHA,
    &scripting::EVALSHA_RO,
    &scripting::SCRIPT,
    &functions::FCALL,
    &functions::FCALL_RO,
    &functions::FUNCTION,
    &acl::ACL,
    &cluster::CLUSTER,
    &cluster::ASKING,
    &cluster::READONLY,
    &cluster::READWRITE,
    &debug::DEBUG,
];

static INDEX: Index<256> = Index::of(COMMANDS);

/// The control command of this name, in whatever case.
#[inline]
pub fn find(name: &[u8]) -> Option<&'static ControlCommand> {
    INDEX.find(COMMANDS, name)
}

/// A core's answer to a question. `None` if it cannot be answered yet; the question is put again at the next turn.
pub(crate) fn answer(core: &mut Core, question: &Question, actions: &mut Vec<Action>) -> Option<Answer> {
    Some(match question {
        Question::Whole { .. } | Question::Versions { .. } => unreachable!("answered by their own functions"),
        Question::Figures => Answer::Figures(Box::new(core.figures_to_tell(false))),
        Question::FiguresWithTimes => Answer::Figures(Box::new(core.figures_to_tell(true))),
        Question::Delays => Answer::Delays(core.context.timings.delays.clone()),
        Question::ResetDelays(causes) => Answer::Names(core.context.timings.delays.reset(causes)),
        Question::At { places, question } => {
            return if have_applied(core, places) { answer(core, question, actions) } else { None };
        }
        Question::Configure { version, .. } if core.context.parameters.version < *version => return None,
        Question::Configure { pairs, .. } => {
            core.configure(pairs, actions);
            Answer::Done
        }
        Question::Checkpoint => {
            for group in core.groups_mut() {
                group.want_checkpoint();
            }
            Answer::Done
        }
        Question::Trust => Answer::Count(core.groups_mut().map(|group| u64::from(group.trust())).sum()),
        Question::FinishCheckpoint => unreachable!("asked as two questions"),
        Question::Reload if core.groups().any(|group| group.is_checkpoint_due()) => return None,
        Question::Reload => {
            core.groups_mut().for_each(|group| group.reload());
            Answer::Done
        }
        Question::Debug { kind, keys } => Answer::Described(core.describe_keys(*kind, keys)),
        Question::CheckpointsFinished if core.groups().any(|group| group.is_checkpoint_due()) => return None,
        Question::CheckpointsFinished => checkpoints_finished(core),
        Question::Sessions(filter) => Answer::Sessions(client::describe_sessions(core, filter)),
        Question::Kill(filter) => Answer::Count(client::kill_sessions(core, filter, actions)),
        Question::Publish(message) => Answer::Count(core.deliver(message)),
        Question::Names { kind, filter } => pubsub::names(&core.context, *kind, filter.as_deref()),
        Question::Listeners { kind, names } => {
            let count = |name: &Vec<u8>| core.context.pubsub.listener_count(*kind, name) as u64;
            Answer::Counts(names.iter().map(count).collect())
        }
        Question::KeysOfSlot { slot, database, count } => {
            Answer::Names(core.keys_of_slot(Slot(*slot), *database, *count))
        }
        Question::SlotBytes { first, last } => {
            Answer::Counts((*first..=*last).map(|slot| core.bytes_of_slot(Slot(slot))).collect())
        }
        Question::SlotKeys { first, last, database } => {
            Answer::Counts((*first..=*last).map(|slot| core.key_count_of_slot(Slot(slot), *database)).collect())
        }
        Question::Unblock { serial, end } => Answer::Count(u64::from(core.unblock(*serial, *end, actions))),
        Question::Pause(pause) => {
            core.pause(*pause);
            Answer::Done
        }
        Question::Find(serial) => Answer::Found(core.find_session(*serial)),
        Question::Presence(of, presence) => {
            core.set_presence(*of, *presence);
            Answer::Done
        }
        Question::Monitoring(of) => {
            core.context.monitors.set_core(*of, true);
            Answer::Done
        }
        Question::ChangeUsers(change) => acl::change_users(core, change),
        Question::InstallUsers(users) => {
            core.install_users(users);
            Answer::Done
        }
        Question::UsersFile(step) => return acl::users_file(core, step, actions),
        Question::AclLog => Answer::AclLog(core.context.access.log.entries()),
        Question::ResetAclLog => {
            core.context.access.log.clear();
            Answer::Done
        }
        Question::ResetStatistics => {
            reset_statistics(core);
            Answer::Done
        }
        Question::SetActiveExpire(is_active) => {
            core.context.is_expiry_lazy = !is_active;
            Answer::Done
        }
        Question::LetScriptsDebug(may) => {
            core.context.scripting.may_debug = *may;
            Answer::Done
        }
        Question::StartHot(plan) if core.context.timings.start_hot((**plan).clone()) => Answer::Done,
        Question::StartHot(_) => Answer::Refused("ERR hotkey tracking session already in progress".into()),
        Question::StopHot(cpu_us) => {
            core.weigh_replies();
            Answer::Count(u64::from(core.context.timings.stop_hot(*cpu_us)))
        }
        Question::Hot => {
            core.weigh_replies();
            Answer::Hot(core.context.timings.hot())
        }
        Question::HotKeys => Answer::HotKeys(core.context.timings.hot_keys()),
        Question::ResetHot => {
            core.context.timings.reset_hot();
            Answer::Done
        }
        Question::Slowlog => Answer::Slowlog(core.context.slowlog.entries()),
        Question::Timeline => Answer::Timeline(core.context.history.timeline.iter().cloned().collect()),
        Question::ResetSlowlog => {
            core.context.slowlog.clear();
            Answer::Done
        }
        Question::Digest => Answer::Digest(core.digests()),
        Question::LoadScript(script) => match core.load_script(script) {
            Ok(()) => Answer::Done,
            Err(refusal) => Answer::Refused(refusal.text().to_owned()),
        },
        Question::ForgetScripts => {
            core.context.scripting.cache.clear();
            core.runner.forget_scripts();
            Answer::Done
        }
        Question::RunningScript => Answer::Running(core.runner.running(core.now.instant)),
        Question::KillScript { is_function } => kill_script(core, *is_function),
    })
}

/// Whether the replicas of this core have applied what is before the place that is given for their group.
fn have_applied(core: &Core, places: &[u64]) -> bool {
    core.groups().all(|group| {
        let place = places.get(group.id().0 as usize).copied().unwrap_or(0);
        group.is_vacant() || group.applied() >= place
    })
}

fn kill_script(core: &mut Core, is_function: bool) -> Answer {
    match core.runner.kill(is_function) {
        None => Answer::Count(0),
        Some(true) => Answer::Count(1),
        Some(false) => Answer::Refused(scripting::of_other_kind(is_function).to_owned()),
    }
}

fn checkpoints_finished(core: &Core) -> Answer {
    let mut groups = core.groups().filter(|group| !group.is_vacant());
    match groups.find_map(|group| group.checkpointing().last.as_ref()?.failure.clone()) {
        None => Answer::Done,
        Some(reason) => Answer::Refused(format!("ERR the checkpoint failed: {reason}")),
    }
}

fn reset_statistics(core: &mut Core) {
    core.weigh_replies();
    core.context.statistics = Default::default();
    core.sessions.calls = Default::default();
    core.context.timings.reset();
    core.groups_mut().for_each(|group| group.reset_counts());
}

/// What a handler returns.
pub(super) type Outcome = Result<(), Refusal>;
/// A handler that answers at once.
pub(super) type Run = fn(&mut Local<'_>, Args<'_>, &mut Writer) -> Outcome;
/// A handler that makes the core do something for a ticket of a session.
pub(super) type Drive = fn(&mut Core, SessionId, OwnTicket, Args<'_>, &mut Vec<Action>) -> Outcome;
/// A handler that puts a question.
pub(super) type Ask = fn(&mut Local<'_>, Args<'_>) -> Result<Question, Refusal>;
/// A handler that joins answers.
pub(super) type JoinAnswers = fn(&mut Local<'_>, Args<'_>, Vec<Answer>, &mut Writer) -> Outcome;

/// Tips of a command that a client of a cluster sends to every node.
const ON_ALL_NODES: &[&str] = &["request_policy:all_nodes", "response_policy:all_succeeded"];

/// What most control commands have in common; records override what differs.
pub(crate) const fn plain(name: &'static str, arity: i32, body: Body) -> ControlCommand {
    ControlCommand {
        name,
        since: "1.0.0",
        group: command::Group::Server,
        summary: "",
        complexity: "O(1)",
        syntax: "",
        arity,
        flags: &[],
        categories: &[],
        keys: &[],
        tips: &[],
        span: command::Span::Nothing,
        subcommands: &[],
        body,
    }
}

pub(crate) const fn local(name: &'static str, arity: i32, run: Run) -> ControlCommand {
    plain(name, arity, Body::Local(run))
}

pub(crate) const fn node(name: &'static str, arity: i32, ask: Ask, join: JoinAnswers) -> ControlCommand {
    plain(name, arity, Body::Node { ask, join })
}

pub(crate) const fn container(name: &'static str) -> ControlCommand {
    plain(name, -2, Body::Container(&[]))
}

/// Joins answers that say nothing but done.
fn join_done(_: &mut Local<'_>, _: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    all_done(answers)?;
    writer.ok();
    Ok(())
}

/// Refuses if one of the cores did.
fn all_done(answers: Vec<Answer>) -> Outcome {
    answers.into_iter().try_for_each(|answer| match answer {
        Answer::Refused(text) => Err(Refusal::new(text)),
        _ => Ok(()),
    })
}

fn sum_counts(answers: Vec<Answer>) -> u64 {
    answers
        .into_iter()
        .map(|answer| match answer {
            Answer::Count(count) => count,
            other => unreachable!("a core counted {other:?}"),
        })
        .sum()
}

/// A subcommand that takes a number of words of its own was given another, as Redis says it.
fn subcommand_syntax(args: Args<'_>) -> Refusal {
    let [container, word] = [args.at(0), args.at(1)].map(String::from_utf8_lossy);
    Refusal::new(format!(
        "ERR unknown subcommand or wrong number of arguments for '{word:.128}'. Try {} HELP.",
        container.to_uppercase()
    ))
}

/// Lists subcommands as Redis's HELP does.
fn write_help(writer: &mut Writer, name: &str, subcommands: &[ControlCommand]) {
    writer.array(1 + 2 * subcommands.len());
    writer.simple(&format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for subcommand in subcommands {
        writer.simple(format!("{} {}", subcommand.name.to_uppercase(), subcommand.syntax).trim_end());
        writer.simple(&format!("    {}", subcommand.summary));
    }
}

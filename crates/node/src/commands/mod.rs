//! Commands that concern a session or the node rather than data, each declared beside its handler.
//!
//! A handler sees a [`Local`]: the session that asked and its core. What concerns every core of the node is put as a
//! [`Question`] to all of them and answered by joining their [`Answer`]s.

mod connection;
mod question;
mod transactions;

use command::{Command, Flag, Refusal};
use keyspace::DataCommand;
use resp::{Args, Writer};

pub use question::{Answer, Figures, GroupFigures, Question};

use crate::core::{Context, Core};
use crate::event::{Action, Now};
use crate::session::Session;

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
    /// A step of a transaction, carried out by the core.
    Flow(Flow),
    /// Has subcommands, and does nothing by itself.
    Container,
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
    /// Who asked. Its output is not to be written to: the reply goes to the writer.
    pub session: &'a mut Session,
    /// Its core.
    pub core: &'a mut Context,
    /// The clocks.
    pub now: Now,
    /// What the host is asked to do.
    pub actions: &'a mut Vec<Action>,
}

/// A command of either kind.
#[derive(Clone, Copy, Debug)]
pub enum Known {
    /// On data.
    Data(&'static DataCommand),
    /// On the session or the node.
    Control(&'static ControlCommand),
}

/// A command queued by MULTI.
#[derive(Debug)]
pub struct Queued {
    /// Which.
    pub command: Known,
    /// Its words, laid out by `entry::put_words` with the database selected when it was queued.
    pub words: Vec<u8>,
}

impl Known {
    /// True if it has this flag.
    pub fn has(self, flag: Flag) -> bool {
        match self {
            Self::Data(command) => command.has(flag),
            Self::Control(command) => command.has(flag),
        }
    }

    /// True if a request of so many words has the right number.
    pub fn accepts(self, words: usize) -> bool {
        match self {
            Self::Data(command) => command.accepts(words),
            Self::Control(command) => command.accepts(words),
        }
    }

    /// Its name; a subcommand's own word only.
    pub fn name(self) -> &'static str {
        match self {
            Self::Data(command) => command.name,
            Self::Control(command) => command.name,
        }
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
    &connection::SELECT,
];

/// The control command of this name, in whatever case.
pub fn find(name: &[u8]) -> Option<&'static ControlCommand> {
    COMMANDS.iter().copied().find(|command| command.name.as_bytes().eq_ignore_ascii_case(name))
}

/// A core's answer to a question that needs no waiting.
pub(crate) fn answer(core: &mut Core, question: &Question, actions: &mut Vec<Action>) -> Answer {
    match question {
        Question::Whole { .. } | Question::Versions { .. } => unreachable!("answered where it may wait"),
        Question::Figures => Answer::Figures(Box::new(core.figures())),
        Question::Configure(pairs) => {
            core.configure(pairs, actions);
            Answer::Done
        }
        Question::Checkpoint => {
            for group in core.groups_mut() {
                group.want_checkpoint();
            }
            Answer::Done
        }
    }
}

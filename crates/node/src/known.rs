//! Commands of either kind by their records, for what need not know how a control command is carried out.

use std::any::Any;
use std::fmt::Debug;

use command::{Access, Flag, KeySpec};
use keyspace::DataCommand;
use resp::Args;

/// The record of a command on the session or the node, without its handler.
pub trait ControlRecord: Debug + Sync {
    /// Its name; a subcommand's own word only.
    fn name(&self) -> &'static str;
    /// True if it has this flag.
    fn has(&self, flag: Flag) -> bool;
    /// True if a request of so many words has the right number.
    fn accepts(&self, words: usize) -> bool;
    /// As the documentation of Redis says it.
    fn complexity(&self) -> &'static str;
    /// Where its keys are.
    fn keys(&self) -> &'static [KeySpec];
    /// Visits the places of its keys among the words of a request.
    fn for_each_key(&self, args: Args<'_>, visit: &mut dyn FnMut(usize, Access));
    /// True if it is a container of subcommands.
    fn has_subcommands(&self) -> bool;
    /// The subcommand of this name, in either case.
    fn subcommand(&self, word: &[u8]) -> Option<&'static dyn ControlRecord>;
    /// Why a subcommand is not here, if there is more to say than that.
    fn instead_of(&self, subcommand: &[u8]) -> Option<&'static str>;
    /// The whole record, for what carries it out.
    fn as_any(&self) -> &dyn Any;
}

/// A command of either kind.
#[derive(Clone, Copy, Debug)]
pub enum Known {
    /// On data.
    Data(&'static DataCommand),
    /// On the session or the node.
    Control(&'static dyn ControlRecord),
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

    /// Where its keys are.
    pub fn keys(self) -> &'static [KeySpec] {
        match self {
            Self::Data(command) => command.keys,
            Self::Control(command) => command.keys(),
        }
    }

    /// Visits the places of its keys among the words of a request.
    pub fn for_each_key(self, args: Args<'_>, mut visit: impl FnMut(usize, Access)) {
        match self {
            Self::Data(command) => command.for_each_key(args, visit),
            Self::Control(command) => command.for_each_key(args, &mut visit),
        }
    }

    /// True if it is a container of subcommands.
    pub fn has_subcommands(self) -> bool {
        match self {
            Self::Data(command) => !command.subcommands.is_empty(),
            Self::Control(command) => command.has_subcommands(),
        }
    }

    /// Where its record lies: no two commands have the same.
    #[inline]
    pub(crate) fn address(self) -> usize {
        match self {
            Self::Data(command) => std::ptr::from_ref(command).addr(),
            Self::Control(command) => std::ptr::from_ref(command).cast::<()>().addr(),
        }
    }

    /// Its name; a subcommand's own word only.
    pub fn name(self) -> &'static str {
        match self {
            Self::Data(command) => command.name,
            Self::Control(command) => command.name(),
        }
    }
}

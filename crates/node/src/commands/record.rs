//! The records of control commands with their handlers, beneath what the rest of the node sees of them.

use std::any::Any;

use command::{Access, Flag, KeySpec};
use keyspace::DataCommand;
use resp::Args;

use super::{Body, COMMANDS, ControlCommand, categories_of, find};
use crate::catalog::Source;
use crate::known::{ControlRecord, Known};
use crate::scripts::naming::Naming;

impl ControlRecord for ControlCommand {
    fn name(&self) -> &'static str {
        self.name
    }

    fn has(&self, flag: Flag) -> bool {
        self.has(flag)
    }

    fn accepts(&self, words: usize) -> bool {
        self.accepts(words)
    }

    fn complexity(&self) -> &'static str {
        self.complexity
    }

    fn keys(&self) -> &'static [KeySpec] {
        self.keys
    }

    fn for_each_key(&self, args: Args<'_>, visit: &mut dyn FnMut(usize, Access)) {
        self.for_each_key(args, visit);
    }

    fn has_subcommands(&self) -> bool {
        !self.subcommands.is_empty()
    }

    fn subcommand(&self, word: &[u8]) -> Option<&'static dyn ControlRecord> {
        let found = self.subcommands.iter().find(|subcommand| subcommand.name.as_bytes().eq_ignore_ascii_case(word))?;
        Some(found)
    }

    fn instead_of(&self, subcommand: &[u8]) -> Option<&'static str> {
        self.body.instead_of(subcommand)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A command of either kind with all that its record says.
#[derive(Clone, Copy, Debug)]
pub enum Record {
    /// On data.
    Data(&'static DataCommand),
    /// On the session or the node.
    Control(&'static ControlCommand),
}

impl Known {
    /// The record with its handler.
    #[inline]
    pub fn record(self) -> Record {
        match self {
            Self::Data(command) => Record::Data(command),
            Self::Control(record) => {
                Record::Control(record.as_any().downcast_ref().expect("every control record is one of these"))
            }
        }
    }

    /// The same of a command on the session or the node.
    #[inline]
    pub fn control(self) -> Option<&'static ControlCommand> {
        match self.record() {
            Record::Data(_) => None,
            Record::Control(command) => Some(command),
        }
    }

    /// How a script is named, and whether it may write nothing, if this runs one.
    pub fn script_naming(self) -> Option<(Naming, bool)> {
        match self.control()?.body {
            Body::Script { naming, is_read_only } => Some((naming, is_read_only)),
            _ => None,
        }
    }

    /// True if it is carried out where the data is.
    pub fn works_on_data(self) -> bool {
        matches!(self, Self::Data(_)) || self.script_naming().is_some()
    }
}

/// All control commands, for the catalog.
pub(crate) fn source() -> Source {
    Source {
        find: |name| find(name).map(|command| command as _),
        control: COMMANDS.iter().map(|command| (*command as _, subcommands(command))).collect(),
        categories: categories_of,
    }
}

fn subcommands(command: &'static ControlCommand) -> Vec<&'static dyn ControlRecord> {
    command.subcommands.iter().map(|subcommand| subcommand as _).collect()
}

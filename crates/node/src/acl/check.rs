//! Whether a user may run a command.

use command::{Access, KeySpec};
use keyspace::glob;
use resp::Args;

use super::{Selector, User};
use crate::catalog::{catalog, container_of, full_name};
use crate::commands::reads_every_key;
use crate::known::Known;

/// What a user was not allowed, in ascending order of what is told when selectors disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Denied {
    /// The command itself.
    Command,
    /// One of its keys: the word at this place.
    Key(usize),
    /// One of its channels: the word at this place.
    Channel(usize),
    /// Being that user.
    Login,
}

/// What was not allowed, with the names it takes to tell of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// What.
    pub what: Denied,
    /// The command's name, the key, the channel, or the word with which a login was tried.
    pub object: Vec<u8>,
}

impl Denial {
    /// What the client of this user reads.
    pub fn refusal(&self, user: &[u8]) -> command::Refusal {
        command::Refusal::new(match self.what {
            Denied::Login => command::Refusal::WRONG_PASS.text().to_owned(),
            _ => format!("NOPERM {}", self.reason(user)),
        })
    }

    /// What a script of this user is told.
    pub fn refusal_in_script(&self, user: &[u8]) -> command::Refusal {
        command::Refusal::new(format!("ERR ACL failure in script: {}", self.reason(user)))
    }

    /// What was not allowed, in Redis's words. Keys and channels are not named to a user who may not see them.
    fn reason(&self, user: &[u8]) -> String {
        match self.what {
            Denied::Command | Denied::Login => String::from_utf8_lossy(&self.explanation(user)).into_owned(),
            Denied::Key(_) => "No permissions to access a key".to_owned(),
            Denied::Channel(_) => "No permissions to access a channel".to_owned(),
        }
    }

    /// What the client reads at EXEC, when the rules have changed since the command was queued.
    pub fn refusal_at_exec(&self) -> String {
        let why = match self.what {
            Denied::Command | Denied::Login => "no permission to execute the command or subcommand",
            Denied::Key(_) => "no permission to touch the specified keys",
            Denied::Channel(_) => "no permission to access one of the channels used as arguments",
        };
        format!(
            "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This \
             command is no longer allowed for the following reason: {why}"
        )
    }

    /// What ACL DRYRUN answers of this user.
    pub fn explanation(&self, user: &[u8]) -> Vec<u8> {
        let (before, after) = match self.what {
            Denied::Command | Denied::Login => ("run the '", "' command"),
            Denied::Key(_) => ("access the '", "' key"),
            Denied::Channel(_) => ("access the '", "' channel"),
        };
        let who: [&[u8]; 3] = [b"User ", user, b" has no permissions to "];
        [&who.concat(), before.as_bytes(), &self.object, after.as_bytes()].concat()
    }
}

/// How a command uses channels among its words.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Channels {
    /// Word 1.
    First,
    /// All words.
    All,
    /// All words, which are patterns.
    Patterns,
}

fn channels_of(known: Known) -> Option<Channels> {
    match known.name() {
        "publish" | "spublish" => Some(Channels::First),
        "subscribe" | "ssubscribe" => Some(Channels::All),
        "psubscribe" => Some(Channels::Patterns),
        _ => None,
    }
}

impl User {
    /// Whether the user may read every key there is.
    pub fn reads_every_key(&self) -> bool {
        self.is_unrestricted || self.selectors().iter().any(Selector::reads_every_key)
    }

    /// Whether the user may run a command. Its number of words is right.
    ///
    /// # Errors
    /// With what is not allowed: of several selectors, what the one says that comes nearest to allowing it.
    pub fn check(&self, known: Known, args: Args<'_>) -> Result<(), Denial> {
        if self.is_unrestricted {
            return Ok(());
        }
        let name = full_name(known, container_of(known, args));
        let place = catalog().place_of(&name).expect("a command that was looked up is in the catalog");
        let mut told = Denied::Command;
        for selector in self.selectors() {
            match selector.check(known, place, args) {
                Ok(()) => return Ok(()),
                Err(denied) => told = told.max(denied),
            }
        }
        let object = match told {
            Denied::Command | Denied::Login => name.into_owned().into_bytes(),
            Denied::Key(word) | Denied::Channel(word) => args.at(word).to_vec(),
        };
        Err(Denial { what: told, object })
    }
}

impl Selector {
    fn reads_every_key(&self) -> bool {
        self.all_keys || self.keys.iter().any(|known| known.reads && known.pattern == b"*")
    }

    fn check(&self, known: Known, place: usize, args: Args<'_>) -> Result<(), Denied> {
        let is_subcommand = catalog().entries()[place].container.is_some();
        let argument = args.get(if is_subcommand { 2 } else { 1 });
        if !known.has(command::Flag::NoAuth) && !self.allows(place, argument) {
            return Err(Denied::Command);
        }
        if !self.all_keys {
            // What it tells of is not known before: any key there is, as `SORT … BY` may in Redis.
            if reads_every_key(container_of(known, args)) && !self.reads_every_key() {
                return Err(Denied::Key(0));
            }
            for spec in known.keys() {
                self.check_keys(known, spec, args)?;
            }
        }
        if !self.all_channels
            && let Some(channels) = channels_of(known)
        {
            let last = if channels == Channels::First { 1 } else { args.len() - 1 };
            for word in 1..=last {
                let channel = args.at(word);
                // A pattern is allowed only as it stands: what it matches is not known.
                let is_allowed = self.channels.iter().any(|pattern| {
                    if channels == Channels::Patterns { pattern == channel } else { glob::matches(pattern, channel) }
                });
                if !is_allowed {
                    return Err(Denied::Channel(word));
                }
            }
        }
        Ok(())
    }

    fn check_keys(&self, known: Known, spec: &KeySpec, args: Args<'_>) -> Result<(), Denied> {
        let mut denied = None;
        let notes = used_notes(known, spec, args);
        let reads = notes.contains(&"access");
        let writes = ["insert", "delete", "update"].iter().any(|note| notes.contains(note));
        spec.for_each(args, &mut |word, access| {
            let is_allowed = access == Access::NotKey
                || self.keys.iter().any(|known| {
                    (known.reads || !reads) && (known.writes || !writes) && glob::matches(&known.pattern, args.at(word))
                });
            if !is_allowed && denied.is_none() {
                denied = Some(Denied::Key(word));
            }
        });
        denied.map_or(Ok(()), Err)
    }
}

/// What a command does with the keys of one specification, given its words: SET without GET does not read, and
/// BITFIELD with nothing but GET does not write.
pub(crate) fn used_notes(known: Known, spec: &KeySpec, args: Args<'_>) -> Vec<&'static str> {
    let mut notes: Vec<_> = spec.notes.iter().copied().filter(|note| !note.contains(' ')).collect();
    if !notes.contains(&"variable_flags") {
        return notes;
    }
    let says = |word: &str| args.iter().skip(2).any(|given| given.eq_ignore_ascii_case(word.as_bytes()));
    notes.retain(|note| match (known.name(), *note) {
        (_, "variable_flags") => false,
        ("set", "access") => args.iter().skip(3).any(|given| given.eq_ignore_ascii_case(b"get")),
        ("bitfield", "update") => says("set") || says("incrby"),
        _ => true,
    });
    notes
}

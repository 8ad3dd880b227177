//! What one set of rules allows: commands, keys and channels.

use std::collections::BTreeMap;

use super::rules::{Wrong, has_blanks};
use crate::catalog::{CATEGORIES, catalog};

/// A pattern of keys, and what may be done to those that match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyPattern {
    pub(super) reads: bool,
    pub(super) writes: bool,
    pub(super) pattern: Vec<u8>,
}

impl KeyPattern {
    fn describe(&self) -> Vec<u8> {
        let sign: &[u8] = match (self.reads, self.writes) {
            (true, false) => b"%R~",
            (false, true) => b"%W~",
            _ => b"~",
        };
        [sign, &self.pattern].concat()
    }
}

/// Which commands of the catalog are allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Commands {
    allowed: Vec<bool>,
    /// `+@all` was said since `-@all`: what commands come with later versions is allowed as well.
    and_future: bool,
}

impl Commands {
    fn none() -> Self {
        Self { allowed: vec![false; catalog().entries().len()], and_future: false }
    }

    fn all() -> Self {
        Self { allowed: vec![true; catalog().entries().len()], and_future: true }
    }

    /// Allows or forbids a command, and the subcommands of a container with it.
    fn set(&mut self, place: usize, is_allowed: bool) {
        self.allowed[place] = is_allowed;
        for (other, entry) in catalog().entries().iter().enumerate() {
            if entry.container == Some(place) {
                self.allowed[other] = is_allowed;
            }
        }
    }

    fn set_category(&mut self, category: usize, is_allowed: bool) {
        for (place, entry) in catalog().entries().iter().enumerate() {
            if entry.is_in(category) {
                self.set(place, is_allowed);
            }
        }
    }
}

/// One set of rules. A command is allowed if the command, all its keys and all its channels are.
#[derive(Clone, Debug, PartialEq)]
pub struct Selector {
    commands: Commands,
    /// First arguments with which a command that is not allowed may be used all the same, by the command's place.
    first_arguments: BTreeMap<usize, Vec<Vec<u8>>>,
    /// The rules that made these two out of all commands or none.
    said: Vec<String>,
    pub(super) all_keys: bool,
    pub(super) keys: Vec<KeyPattern>,
    pub(super) all_channels: bool,
    pub(super) channels: Vec<Vec<u8>>,
}

impl Selector {
    pub(super) fn new(all_channels: bool) -> Self {
        Self {
            commands: Commands::none(),
            first_arguments: BTreeMap::new(),
            said: Vec::new(),
            all_keys: false,
            keys: Vec::new(),
            all_channels,
            channels: Vec::new(),
        }
    }

    /// True if it allows everything.
    pub(super) fn is_unrestricted(&self) -> bool {
        self.all_keys && self.all_channels && self.commands.allowed.iter().all(|is_allowed| *is_allowed)
    }

    /// True if it allows a command with `argument` as its first argument.
    pub(super) fn allows(&self, place: usize, argument: Option<&[u8]>) -> bool {
        self.commands.allowed[place]
            || argument.is_some_and(|argument| {
                let known = self.first_arguments.get(&place).into_iter().flatten();
                known.into_iter().any(|known| known.eq_ignore_ascii_case(argument))
            })
    }

    /// Applies one rule.
    pub(super) fn apply(&mut self, rule: &[u8]) -> Result<(), Wrong> {
        match rule.to_ascii_lowercase().as_slice() {
            b"allkeys" | b"~*" => {
                self.all_keys = true;
                self.keys.clear();
            }
            b"resetkeys" => {
                self.all_keys = false;
                self.keys.clear();
            }
            b"allchannels" | b"&*" => {
                self.all_channels = true;
                self.channels.clear();
            }
            b"resetchannels" => {
                self.all_channels = false;
                self.channels.clear();
            }
            b"allcommands" | b"+@all" => {
                self.commands = Commands::all();
                self.first_arguments.clear();
                self.said.clear();
            }
            b"nocommands" | b"-@all" => {
                self.commands = Commands::none();
                self.first_arguments.clear();
                self.said.clear();
            }
            lower => match rule {
                [b'~' | b'%', ..] => self.add_keys(rule)?,
                [b'&', pattern @ ..] => self.add_channels(pattern)?,
                [sign @ (b'+' | b'-'), b'@', ..] => {
                    let name = &lower[2..];
                    let known = CATEGORIES.iter().position(|category| category.as_bytes() == name);
                    let category = known.ok_or(Wrong::Unknown)?;
                    self.commands.set_category(category, *sign == b'+');
                    for (place, entry) in catalog().entries().iter().enumerate() {
                        if entry.is_in(category) {
                            self.first_arguments.remove(&place);
                        }
                    }
                    self.say(lower);
                }
                [b'+', ..] => {
                    self.allow(&lower[1..])?;
                    self.say(lower);
                }
                [b'-', ..] => {
                    let place = place_of(&lower[1..]).ok_or(Wrong::Unknown)?;
                    self.first_arguments.remove(&place);
                    self.commands.set(place, false);
                    self.say(lower);
                }
                _ => return Err(Wrong::Syntax),
            },
        }
        Ok(())
    }

    fn add_keys(&mut self, rule: &[u8]) -> Result<(), Wrong> {
        if self.all_keys {
            return Err(Wrong::AfterAllKeys);
        }
        let (mut reads, mut writes) = (true, true);
        let mut pattern = &rule[1..];
        if rule[0] == b'%' {
            let end = pattern.iter().position(|byte| *byte == b'~');
            let (signs, rest) = pattern.split_at(end.unwrap_or(pattern.len()));
            (reads, writes) = (false, false);
            for sign in signs {
                match sign.to_ascii_uppercase() {
                    b'R' if !reads => reads = true,
                    b'W' if !writes => writes = true,
                    _ => return Err(Wrong::Syntax),
                }
            }
            if end.is_none() || !(reads || writes) {
                return Err(Wrong::Syntax);
            }
            pattern = &rest[1..];
        }
        if has_blanks(pattern) {
            return Err(Wrong::Syntax);
        }
        match self.keys.iter_mut().find(|known| known.pattern == pattern) {
            Some(known) => {
                known.reads |= reads;
                known.writes |= writes;
            }
            None => self.keys.push(KeyPattern { reads, writes, pattern: pattern.to_vec() }),
        }
        Ok(())
    }

    fn add_channels(&mut self, pattern: &[u8]) -> Result<(), Wrong> {
        if self.all_channels {
            return Err(Wrong::AfterAllChannels);
        }
        if has_blanks(pattern) {
            return Err(Wrong::Syntax);
        }
        if !self.channels.iter().any(|known| known == pattern) {
            self.channels.push(pattern.to_vec());
        }
        Ok(())
    }

    /// `+command`, `+container|subcommand`, `+command|first-argument`.
    fn allow(&mut self, name: &[u8]) -> Result<(), Wrong> {
        let Some(bar) = name.iter().rposition(|byte| *byte == b'|') else {
            let place = place_of(name).ok_or(Wrong::Unknown)?;
            self.first_arguments.remove(&place);
            self.commands.set(place, true);
            return Ok(());
        };
        let (command, argument) = (&name[..bar], &name[bar + 1..]);
        let place = place_of(command).ok_or(Wrong::Unknown)?;
        let entry = &catalog().entries()[place];
        if entry.container.is_some() {
            return Err(Wrong::FirstArgument);
        }
        if argument.is_empty() || has_blanks(argument) || std::str::from_utf8(argument).is_err() {
            return Err(Wrong::Syntax);
        }
        if entry.known.has_subcommands() {
            self.commands.set(place_of(name).ok_or(Wrong::Unknown)?, true);
            return Ok(());
        }
        let known = self.first_arguments.entry(place).or_default();
        // What is allowed again stands last, as the rule does that says so.
        known.retain(|known| known != argument);
        known.push(argument.to_vec());
        Ok(())
    }

    /// The rules about commands: `+@all` or `-@all`, and then what was said since, in its order.
    ///
    /// Since Redis 7.2 they are told as they were given. A category so stands for what later versions put into it, and
    /// tools that compare what they have set with what is there find it.
    pub fn describe_commands(&self) -> String {
        let base = if self.commands.and_future { "+@all" } else { "-@all" };
        let text = self.said.iter().fold(base.to_owned(), |text, rule| text + " " + rule);
        debug_assert!(self.says_what_holds(&text), "{text} is not what holds");
        text
    }

    /// True if these rules make what is allowed here, no more and no less.
    fn says_what_holds(&self, rules: &str) -> bool {
        let mut copy = Self::new(false);
        let is_known = rules.split(' ').all(|rule| copy.apply(rule.as_bytes()).is_ok());
        is_known && copy.commands == self.commands && copy.first_arguments == self.first_arguments
    }

    /// Notes a rule about a command or a category, in lower case. What was said of the same before, or of parts of
    /// that command, does not count any more.
    fn say(&mut self, rule: &[u8]) {
        let rule = String::from_utf8_lossy(rule).into_owned();
        let name = &rule[1..];
        self.said.retain(|said| {
            let rest = said[1..].strip_prefix(name);
            rest.is_none_or(|rest| !(rest.is_empty() || rest.starts_with('|')))
        });
        self.said.push(rule);
    }

    /// The key patterns with their signs, parted by blanks.
    pub fn describe_keys(&self) -> Vec<u8> {
        if self.all_keys {
            return b"~*".to_vec();
        }
        self.keys.iter().map(KeyPattern::describe).collect::<Vec<_>>().join(&b' ')
    }

    /// The channel patterns with their signs, parted by blanks.
    pub fn describe_channels(&self) -> Vec<u8> {
        if self.all_channels {
            return b"&*".to_vec();
        }
        self.channels.iter().map(|pattern| [b"&", pattern.as_slice()].concat()).collect::<Vec<_>>().join(&b' ')
    }

    /// The patterns of channels; `None` if all channels are allowed.
    pub fn channel_patterns(&self) -> Option<&[Vec<u8>]> {
        (!self.all_channels).then_some(&self.channels)
    }

    pub(super) fn describe(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let mut add = |part: &[u8]| {
            if !part.is_empty() {
                text.extend_from_slice(part);
                text.push(b' ');
            }
        };
        add(&self.describe_keys());
        if !self.all_channels {
            add(b"resetchannels");
        }
        add(&self.describe_channels());
        text.extend_from_slice(self.describe_commands().as_bytes());
        text
    }
}

fn place_of(name: &[u8]) -> Option<usize> {
    catalog().place_of(std::str::from_utf8(name).ok()?)
}

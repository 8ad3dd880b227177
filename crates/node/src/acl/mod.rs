//! Users: who they are, and what they may do.
//!
//! A [`User`] has passwords and one or more [`Selector`]s; a command is allowed if any single selector allows it with
//! all of its keys and channels. Every core holds the same [`Users`]: changes are made on the first core and handed to
//! all (see `commands::acl`), so that no two of them cross.

pub(crate) mod change;
mod check;
mod cluster;
mod log;
mod rules;
mod selector;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::sha256::{hexadecimal, sha256};

pub(crate) use check::used_notes;
pub use check::{Denial, Denied};
pub(crate) use cluster::Wish;
pub use log::{AclLog, Entry as LogEntry, Where, merge as merge_logs};
pub use rules::{Wrong, merge_selectors};
pub use selector::Selector;

/// The user of every connection that has not said otherwise.
pub const DEFAULT: &[u8] = b"default";

/// One user.
#[derive(Clone, Debug, PartialEq)]
pub struct User {
    /// Its name.
    pub name: Vec<u8>,
    /// It may log in.
    pub is_on: bool,
    /// It needs no password: any will do.
    pub is_open: bool,
    /// Whether RESTORE is to check its payloads for this user. They are always checked here.
    sanitizes: bool,
    /// SHA-256 digests in hexadecimal.
    passwords: Vec<String>,
    /// The first one is the root selector, which rules outside parentheses concern.
    selectors: Vec<Selector>,
    /// May do everything: nothing need be looked at.
    pub is_unrestricted: bool,
}

impl User {
    /// A user who may do nothing yet. `all_channels` is `acl-pubsub-default`.
    pub fn new(name: &[u8], all_channels: bool) -> Self {
        Self {
            name: name.to_vec(),
            is_on: false,
            is_open: false,
            sanitizes: true,
            passwords: Vec::new(),
            selectors: vec![Selector::new(all_channels)],
            is_unrestricted: false,
        }
    }

    /// The default user as it is unless configured: it may do everything, without a password.
    pub fn default_user() -> Self {
        let mut user = Self::new(DEFAULT, true);
        for rule in ["+@all", "~*", "&*", "on", "nopass"] {
            user.apply(rule.as_bytes(), true).expect("rules of ours");
        }
        user
    }

    /// True if a client may be this user without saying anything.
    pub fn needs_no_password(&self) -> bool {
        self.is_on && self.is_open
    }

    /// True if the password is one of the user's, and the user may log in.
    pub fn accepts(&self, password: &[u8]) -> bool {
        if !self.is_on {
            return false;
        }
        if self.is_open {
            return true;
        }
        let digest = hexadecimal(&sha256(password));
        // Every digest is compared in whole, so that the time taken tells nothing.
        self.passwords.iter().fold(false, |found, known| found | is_same(known.as_bytes(), digest.as_bytes()))
    }

    /// Sets the one password, or none at all, as `requirepass` does.
    pub fn require(&mut self, password: &str) {
        self.passwords.clear();
        self.is_open = password.is_empty();
        if !password.is_empty() {
            self.passwords.push(hexadecimal(&sha256(password.as_bytes())));
        }
    }

    /// Flags in the order in which they are shown.
    pub fn flags(&self) -> Vec<&'static str> {
        let mut flags = vec![if self.is_on { "on" } else { "off" }];
        flags.extend(self.is_open.then_some("nopass"));
        flags.push(if self.sanitizes { "sanitize-payload" } else { "skip-sanitize-payload" });
        flags
    }

    /// Digests of its passwords.
    pub fn passwords(&self) -> &[String] {
        &self.passwords
    }

    /// Its selectors, the root selector first.
    pub fn selectors(&self) -> &[Selector] {
        &self.selectors
    }

    /// The rules that make this user, as ACL LIST shows them.
    pub fn describe(&self) -> Vec<u8> {
        let mut text = self.flags().join(" ").into_bytes();
        for password in &self.passwords {
            text.extend_from_slice(b" #");
            text.extend_from_slice(password.as_bytes());
        }
        for (place, selector) in self.selectors.iter().enumerate() {
            text.extend_from_slice(if place == 0 { b" " } else { b" (" });
            text.extend_from_slice(&selector.describe());
            text.extend_from_slice(if place == 0 { b"" } else { b")" });
        }
        text
    }

    fn note_restrictions(&mut self) {
        self.is_unrestricted = self.selectors.iter().any(Selector::is_unrestricted);
    }
}

/// Compares in a time that tells nothing of where the two differ.
fn is_same(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && left.iter().zip(right).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

/// All users, by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Users {
    users: BTreeMap<Vec<u8>, Arc<User>>,
    /// Grows with every change on the first core; a core keeps the latest it has been handed.
    pub version: u64,
}

impl Default for Users {
    fn default() -> Self {
        let default = Arc::new(User::default_user());
        Self { users: BTreeMap::from([(DEFAULT.to_vec(), default)]), version: 0 }
    }
}

impl Users {
    /// The user of this name.
    pub fn get(&self, name: &[u8]) -> Option<&Arc<User>> {
        self.users.get(name)
    }

    /// The user named `default`, who always exists.
    pub fn default_user(&self) -> &Arc<User> {
        &self.users[DEFAULT]
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<User>> {
        self.users.values()
    }

    /// Changes or creates a user: all rules, or none of them.
    ///
    /// # Errors
    /// In Redis's words, if a rule is none.
    pub fn set(&mut self, name: &[u8], rules: &[&[u8]], all_channels: bool) -> Result<(), String> {
        let rules = merge_selectors(rules).map_err(|opening| {
            format!("Unmatched parenthesis in acl selector starting at '{}'.", String::from_utf8_lossy(opening))
        })?;
        let mut user = match self.users.get(name) {
            Some(user) => User::clone(user),
            None => User::new(name, all_channels),
        };
        for rule in &rules {
            user.apply(rule, all_channels).map_err(|wrong| {
                format!("Error in ACL SETUSER modifier '{}': {}", String::from_utf8_lossy(rule), wrong.text())
            })?;
        }
        self.users.insert(name.to_vec(), Arc::new(user));
        self.version += 1;
        Ok(())
    }

    /// Removes a user. True if there was one.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let existed = self.users.remove(name).is_some();
        self.version += u64::from(existed);
        existed
    }

    /// Gives the default user this password, or none.
    pub fn require(&mut self, password: &str) {
        let default = self.users.get_mut(DEFAULT).expect("there is always one");
        Arc::make_mut(default).require(password);
        self.version += 1;
    }

    /// All users as lines of a file.
    pub fn to_file(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for user in self.iter() {
            text.extend_from_slice(b"user ");
            text.extend_from_slice(&user.name);
            text.push(b' ');
            text.extend_from_slice(&user.describe());
            text.push(b'\n');
        }
        text
    }

    /// The users that a file holds; `name` is the file's, for complaints.
    ///
    /// # Errors
    /// One line about everything that is wrong with it.
    pub fn from_file(name: &str, text: &[u8], all_channels: bool) -> Result<Self, String> {
        let mut users = BTreeMap::new();
        let mut complaints = String::new();
        for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let place = format!("{name}:{}", number + 1);
            let words: Vec<&[u8]> =
                line.trim_ascii().split(|byte| *byte == b' ').filter(|word| !word.is_empty()).collect();
            let [keyword, user_name, rules @ ..] = &words[..] else {
                if !words.is_empty() {
                    complaints += &format!("{place} should start with user keyword followed by the username. ");
                }
                continue;
            };
            let shown = String::from_utf8_lossy(user_name);
            if *keyword != b"user" {
                complaints += &format!("{place} should start with user keyword followed by the username. ");
            } else if rules::has_blanks(user_name) {
                complaints += &format!("'{place}: username '{shown}' contains invalid characters. ");
            } else if users.contains_key(*user_name) {
                complaints += &format!("WARNING: Duplicate user '{shown}' found on line {}. ", number + 1);
            } else {
                let user = Self::read_user(user_name, rules, all_channels, &place, &mut complaints);
                users.insert(user_name.to_vec(), Arc::new(user));
            }
        }
        if !complaints.is_empty() {
            return Err(
                complaints + "WARNING: ACL errors detected, no change to the previously active ACL rules was performed"
            );
        }
        users.entry(DEFAULT.to_vec()).or_insert_with(|| Arc::new(User::default_user()));
        Ok(Self { users, version: 0 })
    }

    fn read_user(name: &[u8], rules: &[&[u8]], all_channels: bool, place: &str, complaints: &mut String) -> User {
        let mut user = User::new(name, all_channels);
        let Ok(rules) = merge_selectors(rules) else {
            *complaints += &format!("{place}: Unmatched parenthesis in selector definition.");
            return user;
        };
        let mut is_spoilt = false;
        for rule in rules {
            match user.apply(&rule, all_channels) {
                Ok(()) => {}
                // What is unknown is shown: it holds no secret.
                Err(Wrong::Unknown) => {
                    let rule = String::from_utf8_lossy(&rule);
                    *complaints +=
                        &format!("{place}: Error in applying operation '{rule}': {}. ", Wrong::Unknown.text());
                }
                // Of the others only the first is told: it may have spoilt those behind it.
                Err(wrong) if !is_spoilt => {
                    *complaints += &format!("{place}: {}. ", wrong.text());
                    is_spoilt = true;
                }
                Err(_) => {}
            }
        }
        user
    }

    /// Adds a user from a `user` line of the configuration: the name, then rules.
    ///
    /// # Errors
    /// If the line is wrong, or the user has been configured before.
    pub fn configure(&mut self, words: &[String], all_channels: bool, is_known: bool) -> Result<(), String> {
        let [name, rules @ ..] = words else { return Err("wrong number of arguments".to_owned()) };
        if is_known {
            return Err("Duplicate user found. A user can only be defined once in config files".to_owned());
        }
        if rules::has_blanks(name.as_bytes()) {
            return Err("Spaces not allowed in ACL usernames".to_owned());
        }
        // The default user is there before: what the line says is all that counts.
        self.users.remove(name.as_bytes());
        let rules: Vec<_> = rules.iter().map(String::as_bytes).collect();
        self.set(name.as_bytes(), &rules, all_channels)
    }
}

//! The words in which users are described, as ACL SETUSER and files of users have them.

use super::{Selector, User};
use crate::sha256::{hexadecimal, sha256};

/// Why a rule is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// No such command or category.
    Unknown,
    /// It cannot be understood.
    Syntax,
    /// A key pattern behind one that takes all keys.
    AfterAllKeys,
    /// A channel pattern behind one that takes all channels.
    AfterAllChannels,
    /// The password to be removed is not there.
    NoSuchPassword,
    /// Not the digest of a password.
    Digest,
    /// A first argument of a subcommand.
    FirstArgument,
}

impl Wrong {
    /// In Redis's words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Unknown => "Unknown command or category name in ACL",
            Self::Syntax => "Syntax error",
            Self::AfterAllKeys => {
                "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any effect. \
                 Try 'resetkeys' to start with an empty list of patterns"
            }
            Self::AfterAllChannels => {
                "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any \
                 effect. Try 'resetchannels' to start with an empty list of channels"
            }
            Self::NoSuchPassword => "The password you are trying to remove from the user does not exist",
            Self::Digest => {
                "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
            }
            Self::FirstArgument => "Allowing first-arg of a subcommand is not supported",
        }
    }
}

/// True if a name or pattern holds what would break a line of rules.
pub(super) fn has_blanks(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, 0 | b' ' | b'\t' | b'\n' | b'\r' | 0x0B | 0x0C))
}

/// Puts the words of a selector together again that blanks have parted. The error is the word with the parenthesis
/// that nothing closes.
pub fn merge_selectors<'a>(words: &[&'a [u8]]) -> Result<Vec<Vec<u8>>, &'a [u8]> {
    let mut merged: Vec<Vec<u8>> = Vec::new();
    let mut open: Option<(&[u8], Vec<u8>)> = None;
    for word in words {
        match &mut open {
            None if word.first() == Some(&b'(') && word.last() != Some(&b')') => open = Some((word, word.to_vec())),
            None => merged.push(word.to_vec()),
            Some((_, text)) => {
                text.push(b' ');
                text.extend_from_slice(word);
                if word.last() == Some(&b')') {
                    merged.extend(open.take().map(|(_, text)| text));
                }
            }
        }
    }
    match open {
        Some((opening, _)) => Err(opening),
        None => Ok(merged),
    }
}

impl User {
    /// Applies one rule. What an erroneous rule leaves behind is not to be used.
    pub(super) fn apply(&mut self, rule: &[u8], all_channels: bool) -> Result<(), Wrong> {
        match rule.to_ascii_lowercase().as_slice() {
            b"" => {}
            b"on" => self.is_on = true,
            b"off" => self.is_on = false,
            b"sanitize-payload" => self.sanitizes = true,
            b"skip-sanitize-payload" => self.sanitizes = false,
            b"nopass" => {
                self.is_open = true;
                self.passwords.clear();
            }
            b"resetpass" => {
                self.is_open = false;
                self.passwords.clear();
            }
            b"clearselectors" => self.selectors.truncate(1),
            b"reset" => {
                let name = std::mem::take(&mut self.name);
                *self = Self::new(&name, all_channels);
            }
            _ => self.apply_other(rule, all_channels)?,
        }
        self.note_restrictions();
        Ok(())
    }

    fn apply_other(&mut self, rule: &[u8], all_channels: bool) -> Result<(), Wrong> {
        match rule {
            [b'>' | b'#', ..] => {
                let digest = digest_of(rule)?;
                if !self.passwords.contains(&digest) {
                    self.passwords.push(digest);
                }
                self.is_open = false;
            }
            [b'<' | b'!', ..] => {
                let digest = digest_of(rule)?;
                let place = self.passwords.iter().position(|known| *known == digest).ok_or(Wrong::NoSuchPassword)?;
                self.passwords.remove(place);
            }
            [b'(', inner @ .., b')'] => {
                let mut selector = Selector::new(all_channels);
                for rule in inner.split(|byte| *byte == b' ').filter(|rule| !rule.is_empty()) {
                    selector.apply(rule)?;
                }
                self.selectors.push(selector);
            }
            _ => self.selectors[0].apply(rule)?,
        }
        Ok(())
    }
}

/// The digest that a rule about a password means, which says either that or the password itself.
fn digest_of(rule: &[u8]) -> Result<String, Wrong> {
    let (sign, rest) = rule.split_first().expect("it has a sign");
    if matches!(sign, b'>' | b'<') {
        return Ok(hexadecimal(&sha256(rest)));
    }
    let is_digest = rest.len() == 64 && rest.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_digest { Ok(String::from_utf8_lossy(rest).into_owned()) } else { Err(Wrong::Digest) }
}

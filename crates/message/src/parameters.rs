//! Parameters that are the cluster's and not a node's: what CONFIG SET has said of them. They are part of the
//! replicated state of group 0, and every core of every node obeys them.

use std::collections::BTreeMap;

use stdx::leb128;

use crate::entry::{Reader, put_bytes, take_bytes};

/// The group that keeps the parameters in its log.
pub const HOME: u32 = 0;

/// All parameters of the cluster that have ever been set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    values: BTreeMap<String, String>,
    /// Number of changes that there have been.
    pub version: u64,
}

/// What is refused when something else has been said of a user meanwhile.
pub const USERS_CHANGED: &str = "TRYAGAIN The users were changed through another node at the same time";

/// Before the name of a user: the user's rules, or nothing if there must be no such user. No parameter has such a name.
const USER: &str = "user:";

/// Before the name of a user: what must have been said of it last, or the whole change is refused.
const SAID_OF_USER: &str = "user?";

/// Two pairs of a change that says of a user what its rules are, if what was said last is `before`.
pub fn user_change(name: &[u8], before: &str, rules: &[u8]) -> [(String, String); 2] {
    let name = text_of(name);
    [(format!("{SAID_OF_USER}{name}"), before.to_owned()), (format!("{USER}{name}"), text_of(rules))]
}

/// Bytes of any kind as a text: each is one character.
fn text_of(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

/// Reads it back.
fn bytes_of(text: &str) -> Vec<u8> {
    text.chars().map(|letter| u8::try_from(u32::from(letter)).unwrap_or(b'?')).collect()
}

/// Names with values.
pub type Pairs = Vec<(String, String)>;

/// A change, as it is asked for and logged.
pub fn encode<'a>(pairs: impl ExactSizeIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    let mut out = Vec::new();
    leb128::put(&mut out, pairs.len() as u64);
    for (name, value) in pairs {
        put_bytes(&mut out, name.as_bytes());
        put_bytes(&mut out, value.as_bytes());
    }
    out
}

/// True if another node has laid this out as [`encode`] does.
pub fn are_pairs(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    let mut check = || {
        for _ in 0..leb128::take(&mut rest)? {
            take_bytes(&mut rest)?;
            take_bytes(&mut rest)?;
        }
        rest.is_empty().then_some(())
    };
    check().is_some()
}

/// Reads what [`encode`] wrote.
pub fn read(reader: &mut Reader<'_>) -> Pairs {
    let text = |reader: &mut Reader<'_>| String::from_utf8_lossy(reader.bytes()).into_owned();
    (0..reader.number()).map(|_| (text(reader), text(reader))).collect()
}

impl Parameters {
    /// All names with their values, in the order of names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.values.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Makes a change, whole or not at all. False if it was made for what does not hold any more.
    #[must_use]
    pub fn apply(&mut self, pairs: Pairs) -> bool {
        let (conditions, changes): (Pairs, Pairs) =
            pairs.into_iter().partition(|(name, _)| name.starts_with(SAID_OF_USER));
        let holds = |(name, before): &(String, String)| {
            let name = format!("{USER}{}", &name[SAID_OF_USER.len()..]);
            self.values.get(&name).map_or("", String::as_str) == before
        };
        if !conditions.iter().all(holds) {
            return false;
        }
        self.values.extend(changes);
        self.version += 1;
        true
    }

    /// The last rules set for a user. Empty if none were set, or if there must be no such user.
    pub fn said_of_user(&self, name: &[u8]) -> &str {
        self.values.get(&format!("{USER}{}", text_of(name))).map_or("", String::as_str)
    }

    /// All users with an entry, and their rules. Empty rules mean that there must be no user of that name.
    pub fn users(&self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
        let of_user = |(name, rules): (&String, &String)| Some((bytes_of(name.strip_prefix(USER)?), bytes_of(rules)));
        self.values.iter().filter_map(of_user)
    }

    /// What has been said of users, and nothing else.
    pub fn only_users(&self) -> Self {
        let values: BTreeMap<_, _> =
            self.values.clone().into_iter().filter(|(name, _)| name.starts_with(USER)).collect();
        Self { version: u64::from(!values.is_empty()), values }
    }

    /// Appends all, for a checkpoint.
    pub fn save(&self, out: &mut Vec<u8>) {
        leb128::put(out, self.version);
        out.extend(encode(self.iter()));
    }

    /// What [`Parameters::save`] wrote.
    pub fn load(reader: &mut Reader<'_>) -> Self {
        Self { version: reader.number(), values: read(reader).into_iter().collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_last_holds_and_is_found_again() {
        let pairs = |text: &str| -> Pairs {
            text.split(' ').filter_map(|pair| pair.split_once('=')).map(|(n, v)| (n.to_owned(), v.to_owned())).collect()
        };
        let change = pairs("a=1 b=two");
        let bytes = encode(change.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        assert_eq!(read(&mut Reader::new(&bytes)), change);
        let mut parameters = Parameters::default();
        assert!(parameters.apply(change));
        assert!(parameters.apply(pairs("b=3 c=4")));
        let mut saved = Vec::new();
        parameters.save(&mut saved);
        let loaded = Parameters::load(&mut Reader::new(&saved));
        assert_eq!(loaded, parameters);
        assert_eq!((loaded.version, loaded.values["b"].as_str()), (2, "3"));
    }

    #[test]
    fn what_is_said_of_a_user_is_said_of_what_was_known() {
        let mut parameters = Parameters::default();
        let name = b"b\xFF \xC3";
        assert!(parameters.apply(user_change(name, "", b"on ~\xFE").to_vec()));
        let said = parameters.said_of_user(name).to_owned();
        let pairs: Pairs = [user_change(b"other", "", b"on"), user_change(name, "", b"off")].concat();
        assert!(!parameters.apply(pairs), "somebody has said something else");
        assert_eq!(parameters.version, 1, "and nothing of it is made");
        assert_eq!(parameters.users().collect::<Vec<_>>(), [(name.to_vec(), b"on ~\xFE".to_vec())]);
        assert!(parameters.apply([user_change(name, &said, b""), user_change(b"other", "", b"on")].concat()));
        assert_eq!(parameters.said_of_user(name), "");
        assert!(parameters.apply(vec![("import-mode".to_owned(), "yes".to_owned())]));
        assert_eq!(parameters.only_users().iter().count(), 2, "that there is none is known as well");
        assert_eq!(Parameters::default().only_users(), Parameters::default());
    }
}

//! Parameters that are the cluster's and not a node's: what CONFIG SET has said of them. They are part of the
//! replicated state of group 0, and every core of every node obeys them.

use std::collections::BTreeMap;

use stdx::leb128;

use crate::entry::{Reader, put_bytes, take_bytes};

/// The group whose log holds the parameters.
pub const HOME: u32 = 0;

/// All parameters of the cluster that have ever been set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    values: BTreeMap<String, String>,
    /// Number of changes that there have been.
    pub version: u64,
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

    /// Makes a change.
    pub fn apply(&mut self, pairs: Pairs) {
        self.values.extend(pairs);
        self.version += 1;
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
        parameters.apply(change);
        parameters.apply(pairs("b=3 c=4"));
        let mut saved = Vec::new();
        parameters.save(&mut saved);
        let loaded = Parameters::load(&mut Reader::new(&saved));
        assert_eq!(loaded, parameters);
        assert_eq!((loaded.version, loaded.values["b"].as_str()), (2, "3"));
    }
}

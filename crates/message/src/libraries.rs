//! Libraries of functions: what FUNCTION LOAD has brought. They are part of the replicated state of group 0, and every
//! core of a node has a copy.

use std::collections::BTreeMap;
use std::sync::Arc;

use keyspace::rdb::{self, Compression};
use keyspace::{Limits, Str, ValueRef};
use resp::Writer;
use script::{Flags, Library, Signature};
use stdx::crc64::crc64;
use stdx::leb128;

use crate::entry::{Reader, put_bytes, take_bytes};

/// The group that keeps the libraries in its log.
pub const HOME: u32 = 0;

/// All libraries at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Libraries {
    by_name: BTreeMap<String, Arc<Loaded>>,
    /// Number of changes that there have been.
    pub version: u64,
}

/// A library, and what it offers.
#[derive(Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The library.
    pub library: Arc<Library>,
    /// Its functions.
    pub functions: Vec<Signature>,
}

/// What becomes of libraries that are there when others come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// They stay, and none of the same name may come.
    Append,
    /// Those of the same name go.
    Replace,
    /// All go.
    Flush,
}

/// A change of the libraries, as it is logged.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// One comes.
    Load {
        /// What becomes of the one that is there.
        policy: Policy,
        /// It.
        library: Arc<Loaded>,
    },
    /// Several come at once.
    Restore {
        /// What becomes of those that are there.
        policy: Policy,
        /// They.
        libraries: Vec<Arc<Loaded>>,
    },
    /// One goes.
    Delete {
        /// Its name.
        name: String,
    },
    /// All go.
    Flush,
}

const LOAD: u8 = 1;
const RESTORE: u8 = 2;
const DELETE: u8 = 3;
const FLUSH: u8 = 4;

impl Policy {
    fn read(reader: &mut Reader<'_>) -> Self {
        match reader.byte() {
            0 => Self::Append,
            1 => Self::Replace,
            _ => Self::Flush,
        }
    }
}

impl Change {
    /// Lays it out as a log entry and a request hold it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Load { policy, library } => {
                out.extend_from_slice(&[LOAD, *policy as u8]);
                put_libraries(&mut out, std::iter::once(library));
            }
            Self::Restore { policy, libraries } => {
                out.extend_from_slice(&[RESTORE, *policy as u8]);
                put_libraries(&mut out, libraries.iter());
            }
            Self::Delete { name } => {
                out.push(DELETE);
                put_bytes(&mut out, name.as_bytes());
            }
            Self::Flush => out.push(FLUSH),
        }
        out
    }

    /// True if it is refused once it has been made.
    pub fn fails_if_repeated(&self) -> bool {
        match self {
            Self::Load { policy, .. } | Self::Restore { policy, .. } => *policy == Policy::Append,
            Self::Delete { .. } => true,
            Self::Flush => false,
        }
    }

    /// True if another node has laid this out as [`Change::encode`] does.
    pub fn is_one(bytes: &[u8]) -> bool {
        let mut rest = bytes;
        let mut check = || match take_byte(&mut rest)? {
            kind @ (LOAD | RESTORE) => {
                take_byte(&mut rest)?;
                let count = skip_libraries(&mut rest)?;
                (kind == RESTORE || count == 1).then_some(())
            }
            DELETE => take_bytes(&mut rest).map(drop),
            FLUSH => Some(()),
            _ => None,
        };
        check().is_some() && rest.is_empty()
    }

    /// Reads what [`Change::encode`] wrote.
    ///
    /// # Panics
    /// If it is of a kind that is not known.
    pub fn read(reader: &mut Reader<'_>) -> Self {
        match reader.byte() {
            LOAD => {
                let policy = Policy::read(reader);
                Self::Load { policy, library: read_libraries(reader).remove(0) }
            }
            RESTORE => Self::Restore { policy: Policy::read(reader), libraries: read_libraries(reader) },
            DELETE => Self::Delete { name: read_text(reader) },
            FLUSH => Self::Flush,
            kind => panic!("a change of libraries of kind {kind} in a log entry"),
        }
    }
}

/// Passes over libraries that can be read, and counts them.
fn skip_libraries(rest: &mut &[u8]) -> Option<u64> {
    let count = leb128::take(rest)?;
    for _ in 0..count {
        Library::parse(take_bytes(rest)?).ok()?;
        for _ in 0..leb128::take(rest)? {
            take_bytes(rest)?;
            take_byte(rest)?;
            if take_byte(rest)? == 1 {
                take_bytes(rest)?;
            }
        }
    }
    Some(count)
}

fn take_byte(rest: &mut &[u8]) -> Option<u8> {
    let (byte, behind) = rest.split_first()?;
    *rest = behind;
    Some(*byte)
}

fn read_text(reader: &mut Reader<'_>) -> String {
    String::from_utf8_lossy(reader.bytes()).into_owned()
}

fn put_libraries<'a>(out: &mut Vec<u8>, libraries: impl ExactSizeIterator<Item = &'a Arc<Loaded>>) {
    leb128::put(out, libraries.len() as u64);
    for loaded in libraries {
        put_bytes(out, &loaded.library.text);
        leb128::put(out, loaded.functions.len() as u64);
        for function in &loaded.functions {
            put_bytes(out, function.name.as_bytes());
            out.push(function.flags.bits());
            match &function.description {
                None => out.push(0),
                Some(description) => {
                    out.push(1);
                    put_bytes(out, description);
                }
            }
        }
    }
}

fn read_libraries(reader: &mut Reader<'_>) -> Vec<Arc<Loaded>> {
    (0..reader.number())
        .map(|_| {
            let library = Library::parse(reader.bytes()).expect("a library was checked before it was logged");
            let functions = (0..reader.number())
                .map(|_| Signature {
                    name: read_text(reader),
                    flags: Flags::of_bits(reader.byte()),
                    description: (reader.byte() == 1).then(|| reader.bytes().to_vec()),
                })
                .collect();
            Arc::new(Loaded { library, functions })
        })
        .collect()
}

impl Libraries {
    /// All, in the order of names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<Loaded>> {
        self.by_name.values()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// True if there is one of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// The function of this name, in whatever case, with its library.
    pub fn function(&self, name: &[u8]) -> Option<(&Arc<Loaded>, &Signature)> {
        self.iter().find_map(|loaded| {
            let functions = &mut loaded.functions.iter();
            let function = functions.find(|function| function.name.as_bytes().eq_ignore_ascii_case(name))?;
            Some((loaded, function))
        })
    }

    /// Number of functions in all libraries.
    pub fn function_count(&self) -> usize {
        self.iter().map(|loaded| loaded.functions.len()).sum()
    }

    /// True if what a change brings is there, as it brings it, and what it removes is not.
    pub fn reflect(&self, change: &Change) -> bool {
        let has = |loaded: &Arc<Loaded>| self.by_name.get(&loaded.library.name) == Some(loaded);
        match change {
            Change::Load { library, .. } => has(library),
            Change::Restore { libraries, .. } => libraries.iter().all(has),
            Change::Delete { name } => !self.contains(name),
            Change::Flush => self.is_empty(),
        }
    }

    /// Makes a change, or none of it, and writes the reply to it.
    pub fn apply(&mut self, change: Change, writer: &mut Writer) {
        let outcome = match change {
            Change::Flush => {
                self.by_name.clear();
                Ok(None)
            }
            Change::Delete { name } => {
                self.by_name.remove(&name).map(|_| None).ok_or_else(|| "ERR Library not found".to_owned())
            }
            Change::Restore { policy, libraries } => {
                self.add(policy, libraries, |name| format!("ERR Library {name} already exists")).map(|()| None)
            }
            Change::Load { policy, library } => {
                let name = library.library.name.clone();
                let taken = |name: &str| format!("ERR Library '{name}' already exists");
                self.add(policy, vec![library], taken).map(|()| Some(name))
            }
        };
        self.version += u64::from(outcome.is_ok());
        match outcome {
            Ok(Some(name)) => writer.bulk(name.as_bytes()),
            Ok(None) => writer.ok(),
            Err(text) => writer.error(&text),
        }
    }

    fn add(
        &mut self,
        policy: Policy,
        libraries: Vec<Arc<Loaded>>,
        taken: impl Fn(&str) -> String,
    ) -> Result<(), String> {
        let mut next = self.clone();
        if policy == Policy::Flush {
            next.by_name.clear();
        }
        for loaded in libraries {
            let name = &loaded.library.name;
            if policy != Policy::Replace && next.contains(name) {
                return Err(taken(name));
            }
            next.by_name.remove(name);
            let mut functions = loaded.functions.iter();
            if let Some(function) = functions.find(|function| next.function(function.name.as_bytes()).is_some()) {
                return Err(format!("ERR Function {} already exists", function.name));
            }
            next.by_name.insert(name.clone(), loaded);
        }
        *self = next;
        Ok(())
    }

    /// Appends all, for a checkpoint.
    pub fn save(&self, out: &mut Vec<u8>) {
        leb128::put(out, self.version);
        put_libraries(out, self.iter());
    }

    /// What [`Libraries::save`] wrote.
    pub fn load(reader: &mut Reader<'_>) -> Self {
        let version = reader.number();
        let by_name = read_libraries(reader).into_iter().map(|loaded| (loaded.library.name.clone(), loaded)).collect();
        Self { by_name, version }
    }
}

// ---- FUNCTION DUMP --------------------------------------------------------------------------------------------------

/// Before each library's text in a dump, as in an RDB file.
const RDB_FUNCTION: u8 = 245;
/// Version of RDB that a dump names, and the last that is understood.
const RDB_VERSION: u16 = 10;

/// The texts of all libraries, as FUNCTION DUMP gives them: as in an RDB file, then a version and a checksum.
pub fn dump(libraries: &Libraries) -> Vec<u8> {
    let mut out = Vec::new();
    for loaded in libraries.iter() {
        out.push(RDB_FUNCTION);
        put_rdb_text(&mut out, &loaded.library.text);
    }
    out.extend_from_slice(&RDB_VERSION.to_le_bytes());
    let checksum = crc64(0, &out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

/// The texts in a dump.
///
/// # Errors
/// What is wrong with it, as an error reply.
pub fn undump(payload: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    const FOOTER_BYTES: usize = 10;
    const WRONG: &str = "ERR DUMP payload version or checksum are wrong";
    let (body, footer) = payload.len().checked_sub(FOOTER_BYTES).map(|end| payload.split_at(end)).ok_or(WRONG)?;
    let version = u16::from_le_bytes([footer[0], footer[1]]);
    let checksum = u64::from_le_bytes(footer[2..].try_into().expect("eight bytes"));
    if version > RDB_VERSION || (checksum != 0 && checksum != crc64(0, &payload[..payload.len() - 8])) {
        return Err(WRONG.to_owned());
    }
    let mut rest = body;
    let mut texts = Vec::new();
    while let Some((kind, tail)) = rest.split_first() {
        if *kind != RDB_FUNCTION {
            return Err("ERR given type is not a function".to_owned());
        }
        let (text, length) = read_rdb_text(tail).ok_or("ERR Failed loading library")?;
        texts.push(text);
        rest = &tail[length..];
    }
    Ok(texts)
}

/// A string as an RDB file holds it, which is how a value of that type is written behind the byte for its kind.
fn put_rdb_text(out: &mut Vec<u8>, text: &[u8]) {
    let mut object = Vec::new();
    rdb::write_object(&mut object, ValueRef::String(Str::Bytes(text)), Compression::Lzf);
    out.extend_from_slice(&object[1..]);
}

/// Such a string at the start of `bytes`, and how many bytes it takes.
fn read_rdb_text(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    const STRING: u8 = 0;
    let object = [&[STRING], bytes].concat();
    let mut reader = rdb::Reader::new(&object);
    match rdb::read_object(&mut reader, &Limits::default()).ok()?.as_ref() {
        ValueRef::String(text) => Some((text.to_vec(), bytes.len() - reader.rest().len())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(name: &str, functions: &[&str]) -> Arc<Loaded> {
        let library = Library::parse(format!("#!lua name={name}\ncode").as_bytes()).expect("a library");
        let functions = functions
            .iter()
            .map(|name| Signature {
                name: (*name).to_owned(),
                description: Some(b"what it does".to_vec()),
                flags: Flags::NO_WRITES,
            })
            .collect();
        Arc::new(Loaded { library, functions })
    }

    fn add(policy: Policy, libraries: &[(&str, &[&str])]) -> Change {
        Change::Restore {
            policy,
            libraries: libraries.iter().map(|(name, functions)| loaded(name, functions)).collect(),
        }
    }

    fn apply(libraries: &mut Libraries, change: Change) -> String {
        let mut writer = Writer::default();
        libraries.apply(change, &mut writer);
        String::from_utf8_lossy(writer.bytes()).replace("\r\n", " ").trim_end().to_owned()
    }

    #[test]
    fn a_change_is_read_back_as_it_was_logged() {
        for change in [
            add(Policy::Replace, &[("a", &["f", "g"]), ("b", &[])]),
            Change::Load { policy: Policy::Append, library: loaded("a", &["f"]) },
            Change::Delete { name: "a".into() },
            Change::Flush,
        ] {
            let encoded = change.encode();
            assert_eq!(Change::read(&mut Reader::new(&encoded)), change);
        }
    }

    #[test]
    fn a_name_is_taken_once_and_a_refused_change_changes_nothing() {
        let mut libraries = Libraries::default();
        assert_eq!(
            apply(&mut libraries, Change::Load { policy: Policy::Append, library: loaded("a", &["f"]) }),
            "$1 a"
        );
        let before = libraries.clone();
        for (change, refusal) in [
            (add(Policy::Append, &[("a", &["g"])]), "-ERR Library a already exists"),
            (add(Policy::Append, &[("c", &["h"]), ("b", &["F"])]), "-ERR Function F already exists"),
            (Change::Delete { name: "b".into() }, "-ERR Library not found"),
        ] {
            assert_eq!(apply(&mut libraries, change), refusal);
            assert_eq!(libraries, before);
        }
        assert_eq!(apply(&mut libraries, add(Policy::Replace, &[("a", &["f", "g"])])), "+OK");
        assert_eq!(libraries.function_count(), 2);
        let mut saved = Vec::new();
        libraries.save(&mut saved);
        assert_eq!(Libraries::load(&mut Reader::new(&saved)), libraries);
        assert_eq!(apply(&mut libraries, add(Policy::Flush, &[("x", &["f"])])), "+OK");
        assert_eq!(libraries.iter().map(|loaded| loaded.library.name.as_str()).collect::<Vec<_>>(), ["x"]);
    }

    #[test]
    fn a_dump_is_understood_and_a_damaged_one_refused() {
        let mut libraries = Libraries::default();
        apply(&mut libraries, add(Policy::Append, &[("a", &["f"]), ("b", &["g"])]));
        let payload = dump(&libraries);
        let texts: Vec<_> = libraries.iter().map(|loaded| loaded.library.text.clone()).collect();
        assert_eq!(undump(&payload), Ok(texts));
        for place in 0..payload.len() {
            let mut damaged = payload.clone();
            damaged[place] ^= 1;
            assert!(undump(&damaged).is_err(), "{place}");
        }
        assert!(undump(b"short").is_err());
    }
}

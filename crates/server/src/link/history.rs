//! Which stream this is, and what an end of a link keeps of it: the names of its history, and the copy it begins with.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Characters of a replication id.
pub const ID_BYTES: usize = 40;

const STATE_FILE: &str = "state.json";
const COPY_FILE: &str = "copy.rdb";

/// The names of a history: what it is called, and what it was called up to a place before the source failed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ids {
    pub id: String,
    pub former: Option<(String, u64)>,
}

impl Ids {
    /// A history with one name.
    pub fn new(id: &str) -> Self {
        Self { id: id.to_owned(), former: None }
    }

    /// The same history by another name from this place on.
    pub fn renamed(&self, id: &str, offset: u64) -> Self {
        if id == self.id {
            return self.clone();
        }
        Self { id: id.to_owned(), former: Some((self.id.clone(), offset)) }
    }

    /// True if an end with so many bytes of a history by this name has the beginning of this one.
    pub fn covers(&self, id: &str, offset: u64) -> bool {
        id.eq_ignore_ascii_case(&self.id)
            || self.former.as_ref().is_some_and(|(former, end)| id.eq_ignore_ascii_case(former) && offset <= *end)
    }
}

/// True if that may be a replication id.
pub fn is_id(text: &str) -> bool {
    text.len() == ID_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A copy of all data, as an RDB file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// By chance, so that no other is mistaken for it.
    pub number: u64,
    /// The stream goes on behind it here.
    pub offset: u64,
    /// So much of it is in the file.
    pub bytes: u64,
    pub is_whole: bool,
}

/// What is kept beside the stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// None as long as there is no stream.
    pub ids: Option<Ids>,
    /// None if there is none, or it is no longer of use.
    pub copy: Option<Copy>,
    /// Name of the stream behind a copy that is not whole.
    pub copy_ids: Option<Ids>,
}

impl State {
    /// What a directory holds; nothing, if there is nothing in it.
    ///
    /// # Errors
    /// If the file is not what was written.
    pub fn read(directory: &Path) -> Result<Self> {
        let path = directory.join(STATE_FILE);
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            read => read.with_context(|| path.display().to_string())?,
        };
        let value: Value = serde_json::from_slice(&bytes).with_context(|| path.display().to_string())?;
        Self::parse(&value).with_context(|| format!("{} is not what was written", path.display()))
    }

    fn parse(value: &Value) -> Option<Self> {
        let ids = |value: &Value| {
            let id = value["id"].as_str().filter(|id| is_id(id))?.to_owned();
            let former = value["former_id"].as_str().filter(|id| is_id(id)).map(str::to_owned);
            Some(Ids { id, former: former.zip(value["former_end"].as_u64()) })
        };
        let copy = |value: &Value| {
            Some(Copy {
                number: value["number"].as_u64()?,
                offset: value["offset"].as_u64()?,
                bytes: value["bytes"].as_u64()?,
                is_whole: value["whole"].as_bool()?,
            })
        };
        let optional = |value: &Value| (!value.is_null()).then(|| value.clone());
        Some(Self {
            ids: match optional(&value["stream"]) {
                Some(value) => Some(ids(&value)?),
                None => None,
            },
            copy: match optional(&value["copy"]) {
                Some(value) => Some(copy(&value)?),
                None => None,
            },
            copy_ids: match optional(&value["copy_of"]) {
                Some(value) => Some(ids(&value)?),
                None => None,
            },
        })
    }

    /// Replaces what the directory holds, so that a crash leaves the one or the other.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, directory: &Path) -> Result<()> {
        let ids = |ids: &Ids| {
            let (former, end) = ids.former.clone().unzip();
            json!({ "id": ids.id, "former_id": former, "former_end": end })
        };
        let copy = |copy: &Copy| json!({ "number": copy.number, "offset": copy.offset, "bytes": copy.bytes, "whole": copy.is_whole });
        let value = json!({
            "stream": self.ids.as_ref().map(ids),
            "copy": self.copy.as_ref().map(copy),
            "copy_of": self.copy_ids.as_ref().map(ids),
        });
        let (path, new) = (directory.join(STATE_FILE), directory.join("state.json.new"));
        let written = || {
            let mut file = File::create(&new)?;
            file.write_all(value.to_string().as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(directory)?.sync_all()
        };
        written().with_context(|| path.display().to_string())
    }
}

/// Where the copy of a directory is.
pub fn copy_path(directory: &Path) -> PathBuf {
    directory.join(COPY_FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renamed_history_covers_the_former_one_up_to_its_end() {
        let (first, second, third) = ("a".repeat(40), "b".repeat(40), "c".repeat(40));
        let ids = Ids::new(&first).renamed(&second, 100);
        assert!(ids.covers(&second, 500) && ids.covers(&first, 100) && !ids.covers(&first, 101));
        assert_eq!(ids.renamed(&second, 200), ids);
        let ids = ids.renamed(&third, 300);
        assert!(ids.covers(&second, 300) && !ids.covers(&first, 50));
    }

    #[test]
    fn state_is_read_as_it_was_written() {
        let path = std::env::temp_dir().join(format!("holdfast-link-state-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        assert_eq!(State::read(&path).expect("nothing"), State::default());
        let ids = Ids::new(&"0f".repeat(20)).renamed(&"1e".repeat(20), 77);
        let copy = Copy { number: u64::MAX, offset: 5, bytes: 6, is_whole: true };
        let state = State { ids: Some(ids.clone()), copy: Some(copy), copy_ids: Some(ids) };
        state.write(&path).expect("written");
        assert_eq!(State::read(&path).expect("read"), state);
        fs::write(path.join(STATE_FILE), r#"{"stream":{"id":"short"}}"#).expect("written");
        assert!(State::read(&path).is_err());
        fs::remove_dir_all(path).expect("removed");
    }
}

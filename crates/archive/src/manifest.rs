//! The archive as a whole, and what it says of itself.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::fault::Fault;
use crate::key::Key;
use crate::place::{Name, Place};

/// Holds the manifest: a directory without it is no archive.
const MANIFEST_FILE: &str = "archive";

/// Of the directories of groups; their numbers follow.
const GROUP_PREFIX: &str = "group-";

/// The directory of what changes.
const CHANGES_DIRECTORY: &str = "changes";

const TITLE: &str = "holdfast archive";
const FORMAT_VERSION: u64 = 1;

/// The version of an archive that is encrypted.
const FORMAT_VERSION_SEALED: u64 = 2;

/// What an archive says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Random; part of every checksum in the archive, so that no file of another one verifies.
    pub name: u128,
    /// The cluster that the logs belong to.
    pub cluster: u128,
    /// How many groups that began with.
    pub groups: u32,
    /// Databases that there may be keys in.
    pub databases: u16,
    /// If it is encrypted, what tells its key from others.
    pub key: Option<u64>,
}

impl Manifest {
    fn encode(&self) -> String {
        let Self { name, cluster, groups, databases, key } = self;
        let version = if key.is_some() { FORMAT_VERSION_SEALED } else { FORMAT_VERSION };
        let mut text = format!(
            "{TITLE}\nformat {version}\nname {name:032x}\ncluster {cluster:032x}\ngroups {groups}\ndatabases \
             {databases}\n"
        );
        if let Some(key) = key {
            text.push_str(&format!("key {key:016x}\n"));
        }
        let checksum = crc32c::crc32c(text.as_bytes());
        text.push_str(&format!("checksum {checksum:08x}\n"));
        text
    }

    fn decode(bytes: &[u8]) -> Result<Self, String> {
        let Some(text) = std::str::from_utf8(bytes).ok().filter(|text| text.starts_with(TITLE)) else {
            return Err("this is no manifest of an archive".into());
        };
        let fact = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        if let Some(version) =
            fact("format").and_then(|text| text.parse::<u64>().ok()).filter(|it| *it > FORMAT_VERSION_SEALED)
        {
            return Err(format!(
                "it has format {version}, and this version of Holdfast knows formats up to {FORMAT_VERSION_SEALED}"
            ));
        }
        let wide = |name| u128::from_str_radix(fact(name)?, 16).ok();
        let read = || {
            Some(Self {
                name: wide("name")?,
                cluster: wide("cluster")?,
                groups: fact("groups")?.parse().ok()?,
                databases: fact("databases")?.parse().ok()?,
                key: fact("key").and_then(|text| u64::from_str_radix(text, 16).ok()),
            })
        };
        // Whatever differs from what we would write is damage: this covers the checksum.
        let damaged = || "it is damaged: it does not verify".to_owned();
        read().filter(|manifest| manifest.encode().as_bytes() == bytes).ok_or_else(damaged)
    }
}

/// An archive that is there.
#[derive(Clone, Debug)]
pub struct Archive {
    place: Place,
    /// What the paths of its files begin with.
    root: PathBuf,
    manifest: Manifest,
    key: Option<Key>,
}

impl Archive {
    /// Opens an archive, with its key if it is encrypted.
    ///
    /// # Errors
    /// If there is none, it cannot be read, or the key is not its.
    pub fn open(place: &Place, key: Option<&Key>) -> Result<Self, Fault> {
        let root = place.root();
        let path = root.join(MANIFEST_FILE);
        let bytes = match place.read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound && place.list(&root, "", "").is_ok() => {
                return Err(Fault::wrong(&root, format!("this is no archive: it holds no file {MANIFEST_FILE}")));
            }
            Err(error) => return Err(Fault::io("read", &path, error)),
        };
        let manifest = Manifest::decode(&bytes).map_err(|what| Fault::wrong(&path, what))?;
        match (manifest.key, key) {
            (None, None) => {}
            (Some(mark), Some(key)) if key.mark(manifest.name) == mark => {}
            (Some(_), Some(_)) => {
                return Err(Fault::wrong(&root, "it is encrypted with another key than the one given"));
            }
            (Some(_), None) => {
                let what = "it is encrypted: name the file with its key, with --archive-key-file";
                return Err(Fault::wrong(&root, what));
            }
            (None, Some(_)) => {
                let what = "it is not encrypted, and a key was given: an archive is encrypted from its beginning on, or \
                            never";
                return Err(Fault::wrong(&root, what));
            }
        }
        Ok(Self { place: place.clone(), root, manifest, key: key.cloned() })
    }

    /// Opens the archive of a cluster, or makes it in a place that is empty; with a key, one that is encrypted.
    /// `wanted.name` is random, and of `wanted.key` nothing is taken.
    ///
    /// # Errors
    /// If the directory is not there, holds something else, or is the archive of another cluster.
    pub fn open_or_make(place: &Place, wanted: &Manifest, key: Option<&Key>) -> Result<Self, Fault> {
        let root = place.root();
        let path = root.join(MANIFEST_FILE);
        match place.read(&path) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let files = place.list(&root, "", "").map_err(|error| Fault::io("list", &root, error))?;
                // Others may be about to make the same, or have died of it.
                let is_ours = |name: &str| name == MANIFEST_FILE || name.starts_with("archive.new-");
                if files.iter().any(|(path, _)| !is_ours(&path.file_name().unwrap_or_default().to_string_lossy())) {
                    let what = "it is not empty, and no archive: an archive is made in a new directory";
                    return Err(Fault::wrong(&root, what));
                }
                let content = Manifest { key: key.map(|key| key.mark(wanted.name)), ..wanted.clone() }.encode();
                let made = match place {
                    Place::Directory(_) => make_once(&path, wanted.name, |file| file.write_all(content.as_bytes())),
                    Place::Bucket(bucket) => bucket
                        .put(MANIFEST_FILE, content.as_bytes(), true)
                        .map_err(|error| Fault::io("write", &path, error)),
                };
                match made {
                    Ok(()) => {}
                    // Another node has been faster.
                    Err(fault) if fault.is_taken() => {}
                    Err(fault) => return Err(fault),
                }
            }
            Err(error) => return Err(Fault::io("read", &path, error)),
        }
        let archive = Self::open(place, key)?;
        let found = &archive.manifest;
        if (found.cluster, found.groups) != (wanted.cluster, wanted.groups) {
            let what = format!(
                "it is the archive of cluster {:032x} with {} groups, and not of this one, {:032x} with {}: give this \
                 cluster a place of its own",
                found.cluster, found.groups, wanted.cluster, wanted.groups
            );
            return Err(Fault::wrong(&root, what));
        }
        Ok(archive)
    }

    /// True if it has not been taken away meanwhile. Of a bucket that is found out by writing.
    pub fn is_there(&self) -> bool {
        match &self.place {
            Place::Directory(directory) => directory.join(MANIFEST_FILE).exists(),
            Place::Bucket(_) => true,
        }
    }

    /// Where it is.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// What its frames are sealed with.
    pub(crate) fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// What it says of itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// How many groups it holds something of, and those that the cluster began with: more may have been founded since.
    ///
    /// # Errors
    /// If the place cannot be listed.
    pub fn group_count(&self) -> Result<u32, Fault> {
        let names = self.place.folders().map_err(|error| Fault::io("list", &self.root, error))?;
        let group = |name: &String| name.strip_prefix(GROUP_PREFIX)?.parse::<u32>().ok();
        Ok(names.iter().filter_map(group).map(|group| group.saturating_add(1)).fold(self.manifest.groups, u32::max))
    }

    /// What the paths of a group's files begin with.
    pub(crate) fn group_directory(&self, group: u32) -> PathBuf {
        self.root.join(format!("{GROUP_PREFIX}{group:04}"))
    }

    /// What the paths of files with changes begin with.
    pub(crate) fn changes_directory(&self) -> PathBuf {
        self.root.join(CHANGES_DIRECTORY)
    }

    /// The path of a new file of a group.
    pub(crate) fn path_of(&self, group: u32, name: &Name) -> PathBuf {
        let mut text = name.encode();
        if !self.place.is_remote() {
            text.truncate(text.find('.').expect("a name has several numbers"));
        }
        self.group_directory(group).join(text)
    }
}

/// Makes a file that nobody has made before, with this content, durably. `mark` keeps the names of several makers
/// apart.
pub(crate) fn make_once(
    path: &Path,
    mark: u128,
    write: impl FnOnce(&mut fs::File) -> io::Result<()>,
) -> Result<(), Fault> {
    let draft = draft_of(path, mark);
    let made = (|| {
        let mut file = fs::File::create(&draft)?;
        write(&mut file)?;
        file.sync_all()
    })();
    made.map_err(|error| Fault::io("write", &draft, error)).and_then(|()| publish(&draft, path))
}

/// The name that a file has before it gets its own.
pub(crate) fn draft_of(path: &Path, mark: u128) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".new-{:08x}", mark as u32));
    PathBuf::from(name)
}

/// Gives a file that is durable its name, if nobody has that.
pub(crate) fn publish(draft: &Path, path: &Path) -> Result<(), Fault> {
    let linked = fs::hard_link(draft, path).map_err(|error| Fault::io("make", path, error));
    // What is left of it hinders nobody.
    let _ = fs::remove_file(draft);
    linked?;
    let parent = path.parent().unwrap_or(Path::new("."));
    fs::File::open(parent).and_then(|parent| parent.sync_all()).map_err(|error| Fault::io("sync", parent, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_reads_back_and_every_flipped_bit_is_refused() {
        let manifest = Manifest { name: 7 << 90, cluster: 5, groups: 3, databases: 16, key: Some(0xfeed) };
        let bytes = manifest.encode().into_bytes();
        assert_eq!(Manifest::decode(&bytes), Ok(manifest));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(&flipped).is_err(), "bit {bit} flipped");
        }
        let newer = String::from_utf8(bytes).unwrap().replace("format 2\n", "format 3\n");
        let error = Manifest::decode(newer.as_bytes()).unwrap_err();
        assert_eq!(error, "it has format 3, and this version of Holdfast knows formats up to 2");
    }
}

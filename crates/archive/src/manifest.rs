//! The archive as a directory, and what it says of itself.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::fault::Fault;

/// Holds the manifest: a directory without it is no archive.
const MANIFEST_FILE: &str = "archive";

/// Of the directories of groups; their numbers follow.
const GROUP_PREFIX: &str = "group-";

const TITLE: &str = "holdfast archive";
const FORMAT_VERSION: u64 = 1;

/// What an archive says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Random; part of every checksum in the archive, so that no file of another one verifies.
    pub name: u128,
    /// The cluster whose logs it holds.
    pub cluster: u128,
    /// How many groups that began with.
    pub groups: u32,
    /// Databases that there may be keys in.
    pub databases: u16,
}

impl Manifest {
    fn encode(&self) -> String {
        let Self { name, cluster, groups, databases } = self;
        let mut text = format!(
            "{TITLE}\nformat {FORMAT_VERSION}\nname {name:032x}\ncluster {cluster:032x}\ngroups {groups}\ndatabases \
             {databases}\n"
        );
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
            fact("format").and_then(|text| text.parse::<u64>().ok()).filter(|it| *it > FORMAT_VERSION)
        {
            return Err(format!(
                "it has format {version}, and this version of Holdfast knows formats up to {FORMAT_VERSION}"
            ));
        }
        let wide = |name| u128::from_str_radix(fact(name)?, 16).ok();
        let read = || {
            Some(Self {
                name: wide("name")?,
                cluster: wide("cluster")?,
                groups: fact("groups")?.parse().ok()?,
                databases: fact("databases")?.parse().ok()?,
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
    directory: PathBuf,
    manifest: Manifest,
}

impl Archive {
    /// Opens an archive.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub fn open(directory: &Path) -> Result<Self, Fault> {
        let path = directory.join(MANIFEST_FILE);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound && directory.is_dir() => {
                return Err(Fault::wrong(directory, format!("this is no archive: it holds no file {MANIFEST_FILE}")));
            }
            Err(error) => return Err(Fault::io("read", &path, error)),
        };
        let manifest = Manifest::decode(&bytes).map_err(|what| Fault::wrong(&path, what))?;
        Ok(Self { directory: directory.to_owned(), manifest })
    }

    /// Opens the archive of a cluster, or makes it in a directory that is empty. `name` is random.
    ///
    /// # Errors
    /// If the directory is not there, holds something else, or is the archive of another cluster.
    pub fn open_or_make(directory: &Path, wanted: &Manifest) -> Result<Self, Fault> {
        let path = directory.join(MANIFEST_FILE);
        if !path.exists() {
            let names = fs::read_dir(directory).map_err(|error| Fault::io("list", directory, error))?;
            // Others may be about to make the same, or have died of it.
            let is_ours = |name: &str| name == MANIFEST_FILE || name.starts_with("archive.new-");
            if names.flatten().any(|entry| !is_ours(&entry.file_name().to_string_lossy())) {
                return Err(Fault::wrong(
                    directory,
                    "it is not empty, and no archive: an archive is made in a new directory",
                ));
            }
            match make_once(&path, wanted.name, |file| file.write_all(wanted.encode().as_bytes())) {
                Ok(()) => {}
                // Another node has been faster.
                Err(fault) if fault.is_taken() => {}
                Err(fault) => return Err(fault),
            }
        }
        let archive = Self::open(directory)?;
        let found = &archive.manifest;
        if (found.cluster, found.groups) != (wanted.cluster, wanted.groups) {
            let what = format!(
                "it is the archive of cluster {:032x} with {} groups, and not of this one, {:032x} with {}: give this \
                 cluster a directory of its own",
                found.cluster, found.groups, wanted.cluster, wanted.groups
            );
            return Err(Fault::wrong(directory, what));
        }
        Ok(archive)
    }

    /// True if it has not been taken away meanwhile.
    pub fn is_there(&self) -> bool {
        self.directory.join(MANIFEST_FILE).exists()
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What it says of itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The directory of a group.
    /// How many groups it holds something of, and those that the cluster began with: more may have been founded since.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn group_count(&self) -> Result<u32, Fault> {
        let names = fs::read_dir(&self.directory).map_err(|error| Fault::io("list", &self.directory, error))?;
        let group = |name: &str| name.strip_prefix(GROUP_PREFIX)?.parse::<u32>().ok();
        let founded = names.flatten().filter_map(|entry| group(&entry.file_name().to_string_lossy()));
        Ok(founded.map(|group| group.saturating_add(1)).fold(self.manifest.groups, u32::max))
    }

    pub(crate) fn group_directory(&self, group: u32) -> PathBuf {
        self.directory.join(format!("{GROUP_PREFIX}{group:04}"))
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
        let manifest = Manifest { name: 7 << 90, cluster: 5, groups: 3, databases: 16 };
        let bytes = manifest.encode().into_bytes();
        assert_eq!(Manifest::decode(&bytes), Ok(manifest));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(&flipped).is_err(), "bit {bit} flipped");
        }
        let newer = String::from_utf8(bytes).unwrap().replace("format 1\n", "format 2\n");
        let error = Manifest::decode(newer.as_bytes()).unwrap_err();
        assert_eq!(error, "it has format 2, and this version of Holdfast knows formats up to 1");
    }
}

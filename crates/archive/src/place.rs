//! Where an archive is: a directory, or a bucket of an object store.
//!
//! A directory can be appended to, a bucket cannot. So a log in a bucket is written whole each time, by the one who has
//! made it, as long as it is small; and its name says what one would have to open it for.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use stdx::UnixMillis;

use crate::bucket::{Bucket, Object};

/// A log in a directory that has become so large is closed, and the next one begun.
const FILE_BYTES: u64 = 64 << 20;

/// The same in a bucket, where all of it travels again with every addition.
const OBJECT_BYTES: u64 = 1 << 20;

/// Where an archive is.
#[derive(Clone, Debug)]
pub enum Place {
    /// A directory, named from the root.
    Directory(PathBuf),
    /// Objects in a bucket.
    Bucket(Box<Bucket>),
}

impl Place {
    /// What an address names: `file:///DIRECTORY` or `s3://BUCKET/PREFIX`.
    ///
    /// # Errors
    /// If it is of another form, or the environment does not say how to reach the bucket.
    pub fn parse(address: &str) -> Result<Self, String> {
        let found = match address.split_once("://") {
            Some(("file", path)) if path.starts_with('/') => Ok(Self::Directory(PathBuf::from(path))),
            Some(("file", _)) => Err("the directory of an archive is named from the root: file:///DIRECTORY".into()),
            Some(("s3", place)) => Bucket::from_environment(place).map(|bucket| Self::Bucket(Box::new(bucket))),
            _ => {
                Err("an archive is named file:///DIRECTORY, with the whole path of a directory, or s3://BUCKET/PREFIX"
                    .to_owned())
            }
        };
        found.map_err(|why| format!("{address}: {why}"))
    }

    /// Whether there may be an archive: told before anything else is begun.
    ///
    /// # Errors
    /// If the directory is not there. A server does not make it: it might be the place where a disk is mounted that is
    /// not. A bucket that does not answer now may do so later.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::Directory(path) if !path.is_dir() => Err(format!(
                "{} is no directory: make it, or mount the disk that it is on. A server does not make it by itself",
                path.display()
            )),
            Self::Directory(_) | Self::Bucket(_) => Ok(()),
        }
    }

    /// True if it takes a message to a store to look at it.
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::Bucket(_))
    }

    /// What the paths of its files begin with.
    pub(crate) fn root(&self) -> PathBuf {
        match self {
            Self::Directory(path) => path.clone(),
            Self::Bucket(bucket) => PathBuf::from(bucket.address()),
        }
    }

    /// A log of so many bytes is closed.
    pub(crate) fn log_bytes_max(&self) -> u64 {
        if self.is_remote() { OBJECT_BYTES } else { FILE_BYTES }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.root().display())
    }
}

/// What an archive of a bucket says in the name of a file, and one of a directory only in the header.
pub(crate) enum Name {
    Log {
        first: u64,
        previous: u64,
    },
    Base {
        index: u64,
        term: u64,
        moment: UnixMillis,
    },
    /// An archive of a directory says it, too.
    Changes {
        from: UnixMillis,
        until: UnixMillis,
        closed: UnixMillis,
        writer: u64,
    },
}

impl Name {
    /// The name without the group's.
    pub(crate) fn encode(&self) -> String {
        match self {
            Self::Log { first, previous } => format!("log-{first:016x}.{previous:016x}"),
            Self::Base { index, term, moment } => {
                format!("base-{index:016x}.{term:016x}.{:016x}", moment.0.cast_unsigned())
            }
            Self::Changes { from, until, closed, writer } => {
                let [from, until, closed] = [from, until, closed].map(|moment| moment.0.cast_unsigned());
                format!("changes-{from:016x}.{until:016x}.{closed:016x}.{writer:016x}")
            }
        }
    }

    /// What a name says; none if it is not ours.
    pub(crate) fn decode(name: &str) -> Option<Self> {
        let (kind, rest) = name.split_once('-')?;
        let mut numbers = rest.split('.').map(|digits| {
            let is_exact = digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            u64::from_str_radix(digits, 16).ok().filter(|_| is_exact)
        });
        let mut next = || numbers.next().flatten();
        let found = match kind {
            "log" => Self::Log { first: next()?, previous: next()? },
            "base" => Self::Base { index: next()?, term: next()?, moment: UnixMillis(next()?.cast_signed()) },
            "changes" => {
                let mut moment = || Some(UnixMillis(next()?.cast_signed()));
                let (from, until, closed) = (moment()?, moment()?, moment()?);
                Self::Changes { from, until, closed, writer: next()? }
            }
            _ => return None,
        };
        numbers.next().is_none().then_some(found)
    }
}

/// A file that is being read.
pub(crate) enum Source {
    File(File, u64),
    Object(Box<Object>),
}

impl Source {
    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::File(_, length) => *length,
            Self::Object(object) => object.length(),
        }
    }

    /// Fills `out` with what is at `offset`.
    ///
    /// # Errors
    /// If it cannot be read, or ends before.
    pub(crate) fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Self::File(file, _) => file.read_exact_at(out, offset),
            Self::Object(object) => object.read_exact_at(out, offset),
        }
    }
}

impl Place {
    /// A file's name within the archive.
    pub(crate) fn name<'a>(&self, path: &'a Path) -> &'a str {
        path.strip_prefix(self.root()).ok().and_then(Path::to_str).expect("the archive has named the file")
    }

    /// Opens a file.
    ///
    /// # Errors
    /// If it is not there, or cannot be read.
    pub(crate) fn open(&self, path: &Path) -> io::Result<Source> {
        match self {
            Self::Directory(_) => {
                let file = File::open(path)?;
                let length = file.metadata()?.len();
                Ok(Source::File(file, length))
            }
            Self::Bucket(bucket) => bucket.open(self.name(path)).map(|object| Source::Object(Box::new(object))),
        }
    }

    /// All of a small file.
    ///
    /// # Errors
    /// If it is not there, or cannot be read.
    pub(crate) fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        match self {
            Self::Directory(_) => fs::read(path),
            Self::Bucket(bucket) => bucket.read(self.name(path)),
        }
    }

    /// Removes a file.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub(crate) fn remove(&self, path: &Path) -> io::Result<()> {
        match self {
            Self::Directory(_) => fs::remove_file(path),
            Self::Bucket(bucket) => bucket.remove(self.name(path)),
        }
    }

    /// Names of the directories that there are, or of what comes before a slash in the names of objects.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub(crate) fn folders(&self) -> io::Result<Vec<String>> {
        match self {
            Self::Directory(root) => {
                let names = fs::read_dir(root)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
                names.collect()
            }
            Self::Bucket(bucket) => bucket.folders(),
        }
    }

    /// The files with paths that begin with this, in no order, with their sizes. None for a directory that is missing,
    /// if the archive's own exists.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub(crate) fn list(&self, directory: &Path, prefix: &str, after: &str) -> io::Result<Vec<(PathBuf, u64)>> {
        match self {
            Self::Directory(root) => {
                let entries = match fs::read_dir(directory) {
                    Ok(entries) => entries,
                    Err(error) if error.kind() == ErrorKind::NotFound && directory != root && root.is_dir() => {
                        return Ok(Vec::new());
                    }
                    Err(error) => return Err(error),
                };
                let mut found = Vec::new();
                for entry in entries {
                    let entry = entry?;
                    if entry.file_name().to_string_lossy().starts_with(prefix) {
                        // One that is gone meanwhile has no bytes.
                        let bytes = entry.metadata().map_or(0, |metadata| metadata.len());
                        found.push((entry.path(), bytes));
                    }
                }
                Ok(found)
            }
            Self::Bucket(bucket) => {
                let name = self.name(directory);
                let slash = if name.is_empty() { "" } else { "/" };
                let after = if after.is_empty() { String::new() } else { format!("{name}{slash}{after}") };
                let found = bucket.list(&format!("{name}{slash}{prefix}"), &after)?;
                Ok(found.into_iter().map(|(name, bytes)| (self.root().join(name), bytes)).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_others_are_not_taken_for_ours() {
        let name = Name::Base { index: 17, term: 3, moment: UnixMillis(-5) }.encode();
        assert!(matches!(Name::decode(&name), Some(Name::Base { index: 17, term: 3, moment: UnixMillis(-5) })));
        let name = Name::Log { first: u64::MAX, previous: 0 }.encode();
        assert!(matches!(Name::decode(&name), Some(Name::Log { first: u64::MAX, previous: 0 })));
        let (from, until, closed) = (UnixMillis(1), UnixMillis(9), UnixMillis(-4));
        let name = Name::Changes { from, until, closed, writer: 7 }.encode();
        let Some(Name::Changes { writer: 7, .. }) = Name::decode(&name) else { panic!("{name}") };
        for other in ["log-0000000000000001", "log-1.2", &format!("{name}.0"), "letter-0000000000000001", "base-"] {
            assert!(Name::decode(other).is_none(), "{other}");
        }
    }

    #[test]
    fn an_address_that_names_no_place_is_refused() {
        for address in ["/somewhere", "file://relative", "http://x", "s3://"] {
            let refusal = Place::parse(address).unwrap_err();
            assert!(refusal.starts_with(address), "{refusal}");
        }
        assert_eq!(Place::parse("file:///here").unwrap().to_string(), "/here");
    }
}

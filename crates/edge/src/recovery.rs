//! How a data directory takes the place of what was there: all of it, or nothing. That is how a survivor becomes a new
//! cluster (`holdfast recover`), and how a node with damaged files becomes one that has nothing yet (`holdfast
//! repair`).
//!
//! The new directory is made in a folder within the old one, so that it needs no other permission, and no other file
//! system, than the server has. One renaming of this folder decides. What is left to do then, moving the old files into
//! a folder that is kept and the new ones to their place, is done by [`complete`], which can be cut short and begun
//! again: by the same tool, or by the next start of a server.
//!
//! ```text
//!   .recovering        .repairing        being made; worth nothing
//!   .recovered         .repaired         whole, and counts; what is beside it is old, and is being moved aside
//!   .recovered-moving  .repaired-moving  the old directory is aside; what is beside it is new
//! ```

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::contacts::{self, CONTACTS_FILE, Contact};
use crate::early;
use crate::entropy;
use crate::fault::Fault;
use crate::former::{FORMER_FILE, Former};
use crate::load;
use crate::run::system;
use crate::trust::{AUTHORITY_FILE, Authority};
use crate::{DirectoryLock, clock};

/// What makes a new directory out of an old one, and the names of the folders on the way.
#[derive(Clone, Copy, Debug)]
struct Change {
    made: &'static str,
    whole: &'static str,
    moving: &'static str,
    /// What the folder for the old files begins with.
    aside_prefix: &'static str,
    /// What tells this folder from those of other times.
    name_of: fn(&journal::Identity) -> u128,
}

const RECOVERY: Change = Change {
    made: ".recovering",
    whole: ".recovered",
    moving: ".recovered-moving",
    aside_prefix: ".before-recovery-",
    name_of: |identity| identity.cluster,
};

const REPAIR: Change = Change {
    made: ".repairing",
    whole: ".repaired",
    moving: ".repaired-moving",
    aside_prefix: ".before-repair-",
    name_of: |identity| identity.directory,
};

fn fault(path: &Path, purpose: &'static str) -> impl FnOnce(io::Error) -> Fault {
    let path = path.to_owned();
    move |cause| Fault::File { path, purpose, cause }
}

/// A new data directory that is being made beside the old one.
#[derive(Debug)]
pub struct Successor<'a> {
    directory: &'a Path,
    change: &'static Change,
    path: PathBuf,
}

impl<'a> Successor<'a> {
    /// An empty one, for a new cluster. What an attempt that was cut short has left goes.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn begin(directory: &'a Path, _lock: &DirectoryLock) -> Result<Self, Fault> {
        Self::make(directory, &RECOVERY)
    }

    /// An empty one, for the same node of the same cluster. What an attempt that was cut short has left goes.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn begin_repair(directory: &'a Path, _lock: &DirectoryLock) -> Result<Self, Fault> {
        Self::make(directory, &REPAIR)
    }

    fn make(directory: &'a Path, change: &'static Change) -> Result<Self, Fault> {
        let path = directory.join(change.made);
        remove(&path)?;
        fs::create_dir(&path).map_err(fault(&path, "make the folder"))?;
        Ok(Self { directory, change, path })
    }

    /// Where it is made.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Throws it away.
    pub fn abandon(self) {
        // What cannot be removed is removed by the next attempt.
        let _ = fs::remove_dir_all(&self.path);
    }

    /// It holds a whole data directory of a new cluster: gives it what it needs to be told from the old one, and puts
    /// it in its place. Where the old files are now.
    ///
    /// # Errors
    /// Those of the file system, or of random numbers.
    pub fn install(self, lock: &DirectoryLock) -> Result<PathBuf, Fault> {
        let old = load::read_identity(self.directory)?
            .ok_or_else(|| Fault::Data(format!("{} is no data directory of a node", self.directory.display())))?;
        let authority = Authority::read(self.directory)?;
        Former::of(old.cluster, old.node, authority.as_ref(), clock::unix_seconds()).write(&self.path)?;
        if authority.is_some() {
            Authority::make()?.write(&self.path)?;
        }
        self.decide(lock)
    }

    /// It holds a whole data directory of the same node: gives it what others know the node by, and where it finds
    /// them, and puts it in its place. Where the old files are now.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn install_repaired(self, others: &[Contact], lock: &DirectoryLock) -> Result<PathBuf, Fault> {
        if let Some(authority) = Authority::read(self.directory)? {
            authority.write(&self.path)?;
        }
        if let Some(former) = Former::read(self.directory)? {
            former.write(&self.path)?;
        }
        contacts::write(&self.path, others)?;
        self.decide(lock)
    }

    fn decide(self, lock: &DirectoryLock) -> Result<PathBuf, Fault> {
        sync(&self.path)?;
        let whole = self.directory.join(self.change.whole);
        fs::rename(&self.path, &whole).map_err(fault(&self.path, "rename"))?;
        sync(self.directory)?;
        complete(self.directory, lock)?.ok_or_else(|| Fault::Data(format!("{} has vanished", whole.display())))
    }
}

/// Ends what a recovery or a repair has begun that was cut short after it had been decided. Where the old files are
/// now; nothing if there was none.
///
/// # Errors
/// Those of the file system; it can be called again.
pub fn complete(directory: &Path, _lock: &DirectoryLock) -> Result<Option<PathBuf>, Fault> {
    let mut done = None;
    for change in [&RECOVERY, &REPAIR] {
        done = complete_change(directory, change)?.or(done);
    }
    Ok(done)
}

fn complete_change(directory: &Path, change: &Change) -> Result<Option<PathBuf>, Fault> {
    let (whole, moving) = (directory.join(change.whole), directory.join(change.moving));
    let is_there = |path: &Path| path.try_exists().map_err(fault(path, "look for"));
    if is_there(&whole)? {
        let aside = aside_of(directory, &whole, change)?;
        match fs::create_dir(&aside) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(fault(&aside, "make the folder")(error))?,
            _ => {}
        }
        move_files(directory, &aside)?;
        fs::rename(&whole, &moving).map_err(fault(&whole, "rename"))?;
        sync(directory)?;
    }
    if !is_there(&moving)? {
        return Ok(None);
    }
    // The identity comes last, so it is still in one of both places.
    let has_own = load::read_identity(&moving)?.is_some();
    let aside = aside_of(directory, if has_own { &moving } else { directory }, change)?;
    move_files(&moving, directory)?;
    fs::remove_dir(&moving).map_err(fault(&moving, "remove"))?;
    sync(directory)?;
    Ok(Some(aside))
}

/// True if [`complete`] has something to do.
pub fn is_incomplete(directory: &Path) -> bool {
    let names = [&RECOVERY, &REPAIR].into_iter().flat_map(|change| [change.whole, change.moving]);
    names.into_iter().any(|name| directory.join(name).exists())
}

/// The folder for the old files, by what tells the new ones from them.
fn aside_of(directory: &Path, new: &Path, change: &Change) -> Result<PathBuf, Fault> {
    match load::read_identity(new)? {
        Some(identity) => {
            let number = ((change.name_of)(&identity) >> 96) as u32;
            Ok(directory.join(format!("{}{number:08x}", change.aside_prefix)))
        }
        None => Err(Fault::Data(format!("{} holds no identity: it was left half made", new.display()))),
    }
}

/// Moves the files of a data directory, the identity last.
fn move_files(from: &Path, to: &Path) -> Result<(), Fault> {
    let mut names = Vec::new();
    for entry in fs::read_dir(from).map_err(fault(from, "list"))? {
        let name = entry.map_err(fault(from, "list"))?.file_name();
        let is_moved = |name: &String| {
            let own = [AUTHORITY_FILE, FORMER_FILE, early::FILE, CONTACTS_FILE];
            journal::is_own_file(name) || own.contains(&name.as_str())
        };
        names.extend(name.into_string().ok().filter(is_moved));
    }
    names.sort_by_key(|name| name == journal::IDENTITY_FILE);
    for name in names {
        if name == journal::IDENTITY_FILE {
            sync(to)?;
        }
        let path = from.join(&name);
        fs::rename(&path, to.join(name)).map_err(fault(&path, "move"))?;
    }
    // A file must not be in neither folder after a power cut: it is in its new one first.
    sync(to)?;
    sync(from)
}

fn remove(path: &Path) -> Result<(), Fault> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(fault(path, "remove what was left there")(error)),
        _ => Ok(()),
    }
}

fn sync(directory: &Path) -> Result<(), Fault> {
    File::open(directory).and_then(|file| file.sync_all()).map_err(fault(directory, "sync"))
}

/// The identity of a new cluster of one node that holds what `old` held: so many groups, in the same order.
///
/// # Errors
/// If the system has no random numbers.
pub fn successor_identity(old: &journal::Identity) -> Result<journal::Identity, Fault> {
    let wide = || entropy::random_bytes().map(u128::from_le_bytes).map_err(system("read random numbers"));
    let node = entropy::random_id().map_err(system("read random numbers"))?;
    Ok(journal::Identity {
        directory: wide()?,
        cluster: wide()?,
        // Ids stay clear of the bound that the protocol of nodes sets to numbers.
        node: (node >> 2).max(1),
        has_joined: false,
        ..*old
    })
}

/// The identity under which a node of a cluster goes on that has lost what it had: the others know it as before, and
/// nothing in the new directory verifies in the old one.
///
/// # Errors
/// If the system has no random numbers.
pub fn repaired_identity(old: &journal::Identity) -> Result<journal::Identity, Fault> {
    let directory = entropy::random_bytes().map(u128::from_le_bytes).map_err(system("read random numbers"))?;
    Ok(journal::Identity { directory, has_joined: true, ..*old })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;
    use crate::disk::tests::Scratch;
    use journal::{Identity, Journal};

    const OLD: Identity = Identity {
        directory: 1,
        cluster: 2,
        node: 3,
        group_count: 2,
        hash_seed: 4,
        has_joined: false,
        level: stdx::Level::FIRST,
    };

    fn make(path: &Path, identity: Identity) {
        let disk = RealDisk::open_directory(path).expect("a folder");
        let options = journal::Options { segment_bytes: 64 << 10, ..journal::Options::new(identity) };
        let (journal, _) = Journal::open(disk, &options).expect("an empty folder");
        journal.stop().expect("a disk");
    }

    fn names(path: &Path) -> Vec<String> {
        let entries = fs::read_dir(path).expect("a folder");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Stops the work behind each of its steps, as a crash would, and goes on as the next start does.
    #[test]
    fn a_recovery_that_is_cut_short_leaves_the_old_directory_or_the_new_one() {
        let new = successor_identity(&OLD).expect("random numbers");
        let aside = format!("{}{:08x}", RECOVERY.aside_prefix, (new.cluster >> 96) as u32);
        // The files of both directories, in the order in which they are moved.
        for (moved_aside, moved_in) in (0..=5).map(|count| (count, None)).chain((0..=5).map(|count| (9, Some(count)))) {
            let scratch = Scratch::new();
            make(&scratch.0, OLD);
            Authority::make().expect("a key").write(&scratch.0).expect("a folder");
            let old_certificate = Authority::read(&scratch.0).expect("sound").expect("it is there").name();
            let lock = DirectoryLock::acquire(&scratch.0).expect("nobody else is there");
            let successor = Successor::begin(&scratch.0, &lock).expect("a folder");
            make(successor.path(), new);
            assert!(complete(&scratch.0, &lock).expect("a folder").is_none(), "nothing has been decided");
            assert_eq!(load::read_identity(&scratch.0).expect("sound"), Some(OLD));

            // As `install` begins.
            Former::of(OLD.cluster, OLD.node, None, 1).write(successor.path()).expect("a folder");
            Authority::make().expect("a key").write(successor.path()).expect("a folder");
            let (whole, moving) = (scratch.0.join(RECOVERY.whole), scratch.0.join(RECOVERY.moving));
            fs::rename(successor.path(), &whole).expect("a folder");
            fs::create_dir(scratch.0.join(&aside)).expect("a folder");
            let step = |from: &Path, to: &Path, count: usize| {
                let mut own: Vec<String> = names(from)
                    .into_iter()
                    .filter(|name| journal::is_own_file(name) || [AUTHORITY_FILE, FORMER_FILE].contains(&name.as_str()))
                    .collect();
                own.sort_by_key(|name| name == journal::IDENTITY_FILE);
                for name in own.iter().take(count) {
                    fs::rename(from.join(name), to.join(name)).expect("a file");
                }
            };
            step(&scratch.0, &scratch.0.join(&aside), moved_aside);
            if let Some(count) = moved_in {
                fs::rename(&whole, &moving).expect("a folder");
                step(&moving, &scratch.0, count);
            }
            assert!(is_incomplete(&scratch.0));
            let found = complete(&scratch.0, &lock).expect("a folder").expect("it had been decided");
            assert_eq!(found, scratch.0.join(&aside));
            assert!(complete(&scratch.0, &lock).expect("a folder").is_none() && !is_incomplete(&scratch.0));
            assert_eq!(load::read_identity(&scratch.0).expect("sound"), Some(new));
            assert_eq!(load::read_identity(&found).expect("sound"), Some(OLD));
            let authority = |path: &Path| Authority::read(path).expect("sound").expect("it is there").name();
            assert_eq!(authority(&found), old_certificate);
            assert_ne!(authority(&scratch.0), old_certificate);
            let former = Former::read(&scratch.0).expect("sound").expect("it is there");
            assert_eq!(former.cluster, OLD.cluster);
            for path in [&scratch.0, &found] {
                let disk = RealDisk::open_directory(path).expect("a folder");
                let options = journal::Options { segment_bytes: 64 << 10, ..journal::Options::new(OLD) };
                assert!(Journal::look(&disk, &options).expect("a whole directory").was_stopped_cleanly);
            }
        }
    }
}

//! A disk that can lose power and fill up: ext4 on a loop device, with a file in memory as its medium.
//!
//! The file system is mounted with such a long commit interval that nothing reaches the medium by itself while a test
//! runs; what is there has been flushed by the program. A power cut is a copy of the medium, taken while the server is
//! stopped, mounted as another disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Folder, say};

const MEBIBYTE: u64 = 1 << 20;

/// A mounted disk, unmounted when dropped.
pub struct CrashDisk {
    folder: Folder,
    mounted: Vec<PathBuf>,
    cuts: u32,
}

impl CrashDisk {
    /// A new, empty disk; none, with a notice, where that takes rights or devices that are not there.
    pub fn try_make(size_bytes: u64) -> Option<Self> {
        let mut disk = Self { folder: Folder::new(), mounted: Vec::new(), cuts: 0 };
        match disk.make(size_bytes) {
            Ok(()) => Some(disk),
            Err(why) => {
                say(&format!("SKIPPED: no disk to cut the power of (needs root and loop devices): {why}"));
                None
            }
        }
    }

    fn make(&mut self, size_bytes: u64) -> Result<(), String> {
        let back = self.folder.path().join("back");
        let medium = back.join("disk.img");
        let size = format!("size={}m", size_bytes / MEBIBYTE * 2 + 64);
        fs::create_dir_all(&back).map_err(|error| error.to_string())?;
        self.mount(&["-t", "tmpfs", "-o", &size, "none"], &back)?;
        let file = fs::File::create(&medium).map_err(|error| error.to_string())?;
        file.set_len(size_bytes).map_err(|error| error.to_string())?;
        let features = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0", "-E", features]).arg(&medium))?;
        let place = self.folder.path().join("disk");
        self.mount(&["-o", "loop,commit=600,noatime", &medium.display().to_string()], &place)
    }

    fn mount(&mut self, options: &[&str], place: &Path) -> Result<(), String> {
        fs::create_dir_all(place).map_err(|error| error.to_string())?;
        run(Command::new("mount").args(options).arg(place))?;
        self.mounted.push(place.to_path_buf());
        Ok(())
    }

    /// Where its files are.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("disk")
    }

    /// What would be there if the power went now: the root of a disk of its own. Anyone who writes must be stopped
    /// around this, since a copy takes time that a power cut does not.
    pub fn cut_power(&mut self) -> PathBuf {
        self.cuts += 1;
        let back = self.folder.path().join("back");
        let copy = back.join(format!("cut-{}.img", self.cuts));
        run(Command::new("cp").arg("--sparse=always").arg(back.join("disk.img")).arg(&copy)).expect("a copy");
        let place = self.folder.path().join(format!("cut-{}", self.cuts));
        self.mount(&["-o", "loop", &copy.display().to_string()], &place).expect("the copy mounts");
        place
    }

    /// Goes on with what a power cut left, as the disk.
    pub fn forget_cut(&mut self, place: &Path) {
        self.unmount(place);
        let name = place.file_name().expect("a cut has a name").to_string_lossy().into_owned();
        let _ = fs::remove_file(self.folder.path().join("back").join(format!("{name}.img")));
    }

    /// Takes all the room there is.
    pub fn fill(&self) {
        let filler = self.path().join("filler");
        let _ = Command::new("dd")
            .args(["if=/dev/zero", "bs=64k"])
            .arg(format!("of={}", filler.display()))
            .stderr(Stdio::null())
            .status();
    }

    /// Gives the room back.
    pub fn drain(&self) {
        fs::remove_file(self.path().join("filler")).expect("the filler goes");
    }

    fn unmount(&mut self, place: &Path) {
        self.mounted.retain(|mounted| mounted != place);
        let plain = run(Command::new("umount").arg(place));
        if plain.is_err() {
            let _ = run(Command::new("umount").arg("-l").arg(place));
        }
    }
}

impl Drop for CrashDisk {
    fn drop(&mut self) {
        while let Some(place) = self.mounted.last().cloned() {
            self.unmount(&place);
        }
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

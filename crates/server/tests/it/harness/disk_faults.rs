//! Disk calls of one server that fail or are slow, on command: see `disk_faults.c`, which is compiled on first use.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::{Folder, ServerOptions};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/harness/disk_faults.c");

/// The weather on one server's disk.
pub struct DiskFaults {
    rules: PathBuf,
}

impl DiskFaults {
    /// Fair weather, to begin with, for a server with these options. `folder` keeps the rules.
    pub fn arrange(folder: &Folder, options: &mut ServerOptions) -> Self {
        let rules = folder.path().join("disk-faults");
        let faults = Self { rules };
        faults.clear();
        let beneath = fs::canonicalize(&options.data_folder).expect("the data folder is there");
        for (name, value) in [
            ("LD_PRELOAD", library()),
            ("DISK_FAULTS", faults.rules.as_path()),
            ("DISK_FAULTS_BENEATH", beneath.as_path()),
        ] {
            options.environment.push((name.to_owned(), value.display().to_string()));
        }
        options.data_folder = beneath;
        faults
    }

    /// From now on, this rule and no other.
    pub fn set(&self, rule: &str) {
        // In one step: the library must not read half a rule.
        let beside = self.rules.with_extension("new");
        fs::write(&beside, format!("{rule}\n")).expect("a rule");
        fs::rename(&beside, &self.rules).expect("a rule in its place");
    }

    /// From now on everything works.
    pub fn clear(&self) {
        self.set("");
    }
}

fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // Made beside its place and moved there in one step: another run may be using the one that is there.
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("disk_faults.so");
        let fresh = library.with_extension(std::process::id().to_string());
        let mut compile = Command::new("cc");
        compile.args(["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]).arg(&fresh).arg(SOURCE).arg("-ldl");
        let status = compile.status().expect("the C compiler that Rust links with");
        assert!(status.success(), "cannot compile {SOURCE}");
        fs::rename(&fresh, &library).expect("the library in its place");
        library
    })
}

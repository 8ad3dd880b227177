//! Which processor a program is for, and the tools and libraries of that processor. A program for another one than this
//! machine's comes from a cross compiler, and its libraries are where Debian's packages for cross compilers put them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::package::told;

/// A kind of processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// As Debian and container engines call it.
    pub architecture: &'static str,
    /// As Rust calls it.
    rust: &'static str,
    /// What names of its tools and folders begin with.
    triple: &'static str,
    /// In the header of a program.
    number: u16,
}

const MACHINES: [Machine; 2] = [
    Machine { architecture: "amd64", rust: "x86_64", triple: "x86_64-linux-gnu", number: 62 },
    Machine { architecture: "arm64", rust: "aarch64", triple: "aarch64-linux-gnu", number: 183 },
];

impl Machine {
    /// What a program is for.
    ///
    /// # Errors
    /// If it is no program, or for a kind of processor that nobody has packed for.
    pub fn of(program: &Path) -> Result<Self> {
        let mut head = [0; 20];
        File::open(program)
            .and_then(|mut file| file.read_exact(&mut head))
            .with_context(|| format!("cannot read {}", program.display()))?;
        ensure!(head.starts_with(b"\x7fELF"), "{} is no program of Linux", program.display());
        let number = u16::from_le_bytes([head[18], head[19]]);
        let found = MACHINES.into_iter().find(|machine| machine.number == number);
        found.with_context(|| {
            format!("{} is for a processor of kind {number}, not for amd64 or arm64", program.display())
        })
    }

    /// True for this machine's.
    pub fn is_here(self) -> bool {
        std::env::consts::ARCH == self.rust
    }

    /// A tool for programs of this kind, such as `strip`.
    pub fn tool(self, name: &str) -> String {
        if self.is_here() { name.to_owned() } else { format!("{}-{name}", self.triple) }
    }

    /// The files that the loader maps for a program, the loader among them, each with its path in the file system of a
    /// machine of this kind.
    ///
    /// # Errors
    /// If one is missing, or the tools of a cross compiler are.
    pub fn libraries(self, program: &Path) -> Result<Vec<(PathBuf, PathBuf)>> {
        if self.is_here() { here(program) } else { self.of_cross_compiler(program) }
    }

    fn of_cross_compiler(self, program: &Path) -> Result<Vec<(PathBuf, PathBuf)>> {
        let folder = Path::new("/usr").join(self.triple).join("lib");
        let readelf = |words: &[&str], file: &Path| {
            told(Command::new(self.tool("readelf")).args(words).arg(file)).with_context(|| {
                format!("the packages binutils-{0} and libc6-{1}-cross are needed", self.triple, self.architecture)
            })
        };
        let segments = readelf(&["--program-headers", "--wide"], program)?;
        let loader = interpreter(&segments).context("the program names no loader")?;
        let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let mut found = vec![(folder.join(name(&loader)), loader.clone())];
        let mut known = BTreeSet::from([name(&loader)]);
        let mut asked = vec![program.to_owned()];
        while let Some(file) = asked.pop() {
            for needed in needed(&readelf(&["--dynamic", "--wide"], &file)?) {
                if !known.insert(needed.clone()) {
                    continue;
                }
                let path = folder.join(&needed);
                ensure!(path.is_file(), "{} is missing, which {} needs", path.display(), file.display());
                // The loader of every system looks there.
                found.push((path.clone(), Path::new("/lib").join(&needed)));
                asked.push(path);
            }
        }
        Ok(found)
    }
}

fn here(program: &Path) -> Result<Vec<(PathBuf, PathBuf)>> {
    let text = told(Command::new("ldd").arg(program))?;
    let found: Vec<_> = text.lines().filter_map(library).map(|path| (path.clone(), path)).collect();
    ensure!(!found.is_empty(), "ldd names no library of {}", program.display());
    if text.contains("not found") {
        bail!("a library of {} is missing: {text}", program.display());
    }
    Ok(found)
}

/// `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)` or `/lib64/ld-linux-x86-64.so.2 (0x…)`; the kernel's own
/// library has no path.
fn library(line: &str) -> Option<PathBuf> {
    let place = line.split_once("=>").map_or(line, |(_, place)| place);
    let path = place.trim().split(" (").next()?;
    path.starts_with('/').then(|| PathBuf::from(path))
}

/// `[Requesting program interpreter: /lib/ld-linux-aarch64.so.1]`
fn interpreter(text: &str) -> Option<PathBuf> {
    let (_, rest) = text.split_once("program interpreter: ")?;
    Some(PathBuf::from(rest.split(']').next()?.trim()))
}

/// `0x0000000000000001 (NEEDED)  Shared library: [libc.so.6]`
fn needed(text: &str) -> Vec<String> {
    let of = |line: &str| Some(line.split_once("(NEEDED)")?.1.split_once('[')?.1.split(']').next()?.to_owned());
    text.lines().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_what_ldd_and_readelf_say() {
        let text = "\tlinux-vdso.so.1 (0x7ffe)\n\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x7f2a)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x7f2b)\n";
        let found: Vec<_> = text.lines().filter_map(library).collect();
        let expected = ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(found, expected.map(PathBuf::from));
        let text = "  INTERP  0x0000000000000270\n      [Requesting program interpreter: /lib/ld-linux-aarch64.so.1]\n";
        assert_eq!(interpreter(text), Some(PathBuf::from("/lib/ld-linux-aarch64.so.1")));
        let text = " 0x01 (NEEDED)             Shared library: [libc.so.6]\n 0x0c (INIT)  0x1\n \
                    0x01 (NEEDED)  Shared library: [ld-linux-aarch64.so.1]\n";
        assert_eq!(needed(text), ["libc.so.6", "ld-linux-aarch64.so.1"]);
    }

    #[test]
    fn a_program_says_what_it_is_for() {
        let own = std::env::current_exe().expect("a program");
        let machine = Machine::of(&own).expect("it runs");
        assert!(machine.is_here() && machine.tool("strip") == "strip");
        assert!(Machine::of(Path::new(file!())).is_err());
        let other = MACHINES.into_iter().find(|machine| !machine.is_here()).expect("two kinds");
        assert!(other.tool("strip").ends_with("-linux-gnu-strip"));
    }
}

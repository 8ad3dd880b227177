//! `package`: a `.deb` of the server with its unit, configuration, manual and completions.
//!
//! What goes where is declared in [`FILES`]. The package is the same, byte for byte, for the same binary and the same
//! commit: times in it are the commit's.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::process::{cargo, output, run};

/// A file of the repository, and where it goes with which permissions.
const FILES: &[(&str, &str, u32)] = &[
    ("packaging/holdfast.conf", "etc/holdfast/holdfast.conf", 0o644),
    ("packaging/systemd/holdfast.logrotate", "etc/logrotate.d/holdfast", 0o644),
    ("packaging/systemd/holdfast.service", "lib/systemd/system/holdfast.service", 0o644),
    ("packaging/grafana/holdfast-dashboard.json", "usr/share/holdfast/grafana/holdfast-dashboard.json", 0o644),
    ("packaging/grafana/holdfast-alerts.yaml", "usr/share/holdfast/grafana/holdfast-alerts.yaml", 0o644),
    ("LICENSE", "usr/share/doc/holdfast/copyright", 0o644),
    ("CHANGELOG.md", "usr/share/doc/holdfast/CHANGELOG.md", 0o644),
    ("README.md", "usr/share/doc/holdfast/README.md", 0o644),
];

/// Shells whose completions go along, and where.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "usr/share/bash-completion/completions/holdfast"),
    ("zsh", "usr/share/zsh/vendor-completions/_holdfast"),
    ("fish", "usr/share/fish/vendor_completions.d/holdfast.fish"),
];

/// Files that dpkg itself reads.
const CONTROL: &[(&str, u32)] = &[("conffiles", 0o644), ("postinst", 0o755), ("prerm", 0o755), ("postrm", 0o755)];

/// Runs `package`.
pub fn run_verb(options: &[String]) -> Result<()> {
    let mut binary = None;
    let mut version = None;
    let mut words = options.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().cloned().with_context(|| format!("{word} needs a value"));
        match word.as_str() {
            "--binary" => binary = Some(PathBuf::from(value()?)),
            "--version" => version = Some(value()?),
            _ => bail!("package takes no option '{word}'"),
        }
    }
    let root = crate::root();
    let binary = match binary {
        Some(binary) => binary,
        None => {
            let commit = told(Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).current_dir(&root))?;
            run(cargo().args(["build", "--release", "--package", "server"]).env("HOLDFAST_COMMIT", commit))?;
            crate::target().join("release/holdfast")
        }
    };
    ensure!(binary.is_file(), "there is no program {}", binary.display());
    let version = match version {
        Some(version) => version,
        None => {
            let told = told(Command::new(&binary).arg("--version"))?;
            told.split_whitespace().nth(1).context("the program does not tell its version")?.to_owned()
        }
    };
    let architecture = told(Command::new("dpkg").arg("--print-architecture"))?;
    let name = format!("holdfast_{version}_{architecture}");
    let stage = crate::target().join("package").join(&name);
    if stage.exists() {
        fs::remove_dir_all(&stage).with_context(|| format!("cannot remove {}", stage.display()))?;
    }
    fill(&root, &binary, &stage)?;
    write_control(&root, &stage, &version, &architecture)?;

    let package = crate::target().join("package").join(format!("{name}.deb"));
    let moment = told(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(&root))?;
    run(Command::new("dpkg-deb")
        .args(["--root-owner-group", "-Zxz", "--build"])
        .args([&stage, &package])
        .env("SOURCE_DATE_EPOCH", moment))?;
    println!("{}", package.display());
    Ok(())
}

/// Puts everything where it goes.
fn fill(root: &Path, binary: &Path, stage: &Path) -> Result<()> {
    let program = stage.join("usr/bin/holdfast");
    put(binary, &program, 0o755)?;
    // What a debugger wants is ten times what the server needs. Names of functions stay, for traces of a crash.
    run(Command::new("strip").arg("--strip-debug").arg(&program))?;
    for (from, to, mode) in FILES {
        put(&root.join(from), &stage.join(to), *mode)?;
    }
    let manual = root.join("docs/manual");
    for entry in fs::read_dir(&manual).with_context(|| format!("cannot read {}", manual.display()))? {
        let path = entry?.path();
        let name = path.file_name().context("a page without a name")?;
        put(&path, &stage.join("usr/share/doc/holdfast").join(name), 0o644)?;
    }
    let pages = stage.join("usr/share/man/man1");
    fs::create_dir_all(&pages)?;
    run(Command::new(binary).arg("man").arg(&pages))?;
    for entry in fs::read_dir(&pages)? {
        run(Command::new("gzip").arg("-9n").arg(entry?.path()))?;
    }
    for (shell, to) in COMPLETIONS {
        let output = Command::new(binary).args(["completions", shell]).output()?;
        ensure!(output.status.success(), "completions for {shell} were not told");
        let path = stage.join(to);
        fs::create_dir_all(path.parent().context("a path with a folder")?)?;
        fs::write(&path, output.stdout)?;
    }
    Ok(())
}

fn write_control(root: &Path, stage: &Path, version: &str, architecture: &str) -> Result<()> {
    let folder = stage.join("DEBIAN");
    fs::create_dir_all(&folder)?;
    for (name, mode) in CONTROL {
        put(&root.join("packaging/debian").join(name), &folder.join(name), *mode)?;
    }
    let kilobytes = size_of(stage)?.div_ceil(1_024);
    let control = format!(
        "Package: holdfast\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: The Holdfast project\n\
         Installed-Size: {kilobytes}\nDepends: libc6 (>= 2.34), libgcc-s1, passwd\nSuggests: redis-tools\n\
         Section: database\nPriority: optional\n\
         Description: Redis-compatible, replicated, transactional, in-memory data store\n \
         Clients of Redis talk to it. What it has acknowledged is on disk, and in a\n \
         cluster on a quorum of nodes. The package holds the server and its tools.\n"
    );
    fs::write(folder.join("control"), control)?;
    Ok(())
}

fn put(from: &Path, to: &Path, mode: u32) -> Result<()> {
    fs::create_dir_all(to.parent().context("a path with a folder")?)?;
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    Ok(())
}

fn size_of(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        sum += if metadata.is_dir() { size_of(&entry.path())? } else { metadata.len() };
    }
    Ok(sum)
}

/// What a command prints, in one line.
fn told(command: &mut Command) -> Result<String> {
    Ok(output(command)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_packed_is_there_and_configuration_is_kept() {
        let root = crate::root();
        for (from, to, _) in FILES {
            assert!(root.join(from).is_file(), "{from}");
            assert!(!to.starts_with('/'), "{to}");
        }
        let kept = fs::read_to_string(root.join("packaging/debian/conffiles")).expect("a list");
        let kept: Vec<&str> = kept.lines().collect();
        let packed = FILES.iter().filter(|(_, to, _)| to.starts_with("etc/")).map(|(_, to, _)| format!("/{to}"));
        assert_eq!(packed.collect::<Vec<_>>(), kept);
        for (name, mode) in CONTROL {
            let path = root.join("packaging/debian").join(name);
            let text = fs::read_to_string(&path).expect("a file");
            assert_eq!(text.starts_with("#!/bin/sh\nset -e\n"), *mode == 0o755, "{name}");
        }
    }

    #[test]
    fn the_unit_names_what_is_packed_and_systemd_understands_it() {
        let root = crate::root();
        let path = root.join("packaging/systemd/holdfast.service");
        let text = fs::read_to_string(&path).expect("a unit");
        let started = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("what is started");
        let words: Vec<&str> = started.split_whitespace().collect();
        assert_eq!(words[..4], ["/usr/bin/holdfast", "serve", "--config", "/etc/holdfast/holdfast.conf"]);
        // Where systemd is, it says what it does not understand; that the program is not installed here is no matter.
        if let Ok(output) = Command::new("systemd-analyze").arg("verify").arg(&path).output() {
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            let complaints: Vec<&str> = told
                .lines()
                .filter(|line| line.contains("holdfast.service"))
                .filter(|line| !line.contains("is not executable") && !line.contains("man holdfast(1)"))
                .collect();
            assert!(complaints.is_empty(), "{complaints:#?}");
        }
    }
}

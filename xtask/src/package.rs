//! `package`: a `.deb` or `.rpm` of the server with its unit, configuration, manual and completions.
//!
//! What goes where is declared in [`FILES`]; [`MOVED`] says what lies elsewhere in an `.rpm`. A package is the same,
//! byte for byte, for the same binary and the same commit: times in it are the commit's.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::machine::Machine;
use crate::process::{cargo, output, run};

/// A file of the repository, and where it goes with which permissions.
const FILES: &[(&str, &str, u32)] = &[
    ("packaging/holdfast.conf", "etc/holdfast/holdfast.conf", 0o644),
    ("packaging/systemd/holdfast.logrotate", "etc/logrotate.d/holdfast", 0o644),
    ("packaging/systemd/holdfast.service", "lib/systemd/system/holdfast.service", 0o644),
    ("packaging/systemd/holdfast-link@.service", "lib/systemd/system/holdfast-link@.service", 0o644),
    ("packaging/grafana/holdfast-dashboard.json", "usr/share/holdfast/grafana/holdfast-dashboard.json", 0o644),
    ("packaging/grafana/holdfast-alerts.yaml", "usr/share/holdfast/grafana/holdfast-alerts.yaml", 0o644),
    ("LICENSE", "usr/share/doc/holdfast/copyright", 0o644),
    ("CHANGELOG.md", "usr/share/doc/holdfast/CHANGELOG.md", 0o644),
    ("README.md", "usr/share/doc/holdfast/README.md", 0o644),
];

/// Shells that get completions in the package, and where each file goes.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "usr/share/bash-completion/completions/holdfast"),
    ("zsh", "usr/share/zsh/vendor-completions/_holdfast"),
    ("fish", "usr/share/fish/vendor_completions.d/holdfast.fish"),
];

/// Where distributions with `.rpm` look for what Debian's look for elsewhere.
const MOVED: &[(&str, &str)] = &[
    ("lib/systemd/system/holdfast.service", "usr/lib/systemd/system/holdfast.service"),
    ("lib/systemd/system/holdfast-link@.service", "usr/lib/systemd/system/holdfast-link@.service"),
    ("usr/share/zsh/vendor-completions/_holdfast", "usr/share/zsh/site-functions/_holdfast"),
];

/// Files that dpkg itself reads.
const CONTROL: &[(&str, u32)] = &[("conffiles", 0o644), ("postinst", 0o755), ("prerm", 0o755), ("postrm", 0o755)];

/// What is packed, and how it is named.
pub struct Build {
    /// The program.
    pub binary: PathBuf,
    /// The same for this machine, which prints man pages and completions.
    pub native: PathBuf,
    /// What the program is for.
    pub machine: Machine,
    /// As in `0.1.0`.
    pub version: String,
    /// When the commit was made, in seconds since 1970.
    pub moment: String,
    /// The same as RFC 3339 has it.
    pub created: String,
}

impl Build {
    /// Of the options of a verb; without `--binary` a release build is made.
    ///
    /// # Errors
    /// If an option is unknown, or there is no such program.
    pub fn of(verb: &str, options: &[String]) -> Result<Self> {
        let (mut binary, mut native, mut version) = (None, None, None);
        let mut words = options.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().cloned().with_context(|| format!("{word} needs a value"));
            match word.as_str() {
                "--binary" => binary = Some(PathBuf::from(value()?)),
                "--native" => native = Some(PathBuf::from(value()?)),
                "--version" => version = Some(value()?),
                _ => bail!("{verb} takes no option '{word}'"),
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
        let machine = Machine::of(&binary)?;
        let native = match native {
            Some(native) => native,
            None if machine.is_here() => binary.clone(),
            None => bail!(
                "{} is for {}: --native names the same program for this machine, which prints man pages and completions",
                binary.display(),
                machine.architecture
            ),
        };
        let version = match version {
            Some(version) => version,
            None => {
                let told = told(Command::new(&native).arg("--version"))?;
                told.split_whitespace().nth(1).context("the program does not tell its version")?.to_owned()
            }
        };
        let moment = told(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(&root))?;
        Ok(Self {
            binary,
            native,
            machine,
            version,
            created: told(Command::new("date").args(["--utc", &format!("--date=@{moment}"), "+%Y-%m-%dT%H:%M:%SZ"]))?,
            moment,
        })
    }

    /// Of files of this build.
    pub fn name(&self) -> String {
        format!("holdfast_{}_{}", self.version, self.machine.architecture)
    }
}

/// Runs `package`.
pub fn run_verb(options: &[String]) -> Result<()> {
    let (format, options) = match options {
        [word, format, rest @ ..] if word == "--format" => (format.as_str(), rest),
        _ => ("deb", options),
    };
    ensure!(matches!(format, "deb" | "rpm"), "--format: '{format}' is neither deb nor rpm");
    println!("{}", make(format, &Build::of("package", options)?)?.display());
    Ok(())
}

/// Makes a package of this format.
///
/// # Errors
/// If a program that packs is missing, or fails.
pub fn make(format: &str, build: &Build) -> Result<PathBuf> {
    let root = crate::root();
    let stage = crate::target().join("package").join(format!("{}-{format}", build.name()));
    if stage.exists() {
        fs::remove_dir_all(&stage).with_context(|| format!("cannot remove {}", stage.display()))?;
    }
    fill(&root, build, &stage)?;
    if format == "rpm" { make_rpm(&root, build, &stage) } else { make_deb(&root, build, &stage) }
}

fn make_deb(root: &Path, build: &Build, stage: &Path) -> Result<PathBuf> {
    write_control(root, stage, &build.version, build.machine.architecture)?;
    let package = crate::target().join("package").join(format!("{}.deb", build.name()));
    run(Command::new("dpkg-deb")
        .args(["--root-owner-group", "-Zxz", "--build"])
        .args([stage, &package])
        .env("SOURCE_DATE_EPOCH", &build.moment))?;
    Ok(package)
}

fn make_rpm(root: &Path, build: &Build, stage: &Path) -> Result<PathBuf> {
    for (from, to) in MOVED {
        let to = stage.join(to);
        fs::create_dir_all(to.parent().context("a path with a folder")?)?;
        fs::rename(stage.join(from), to)?;
    }
    let folder = crate::target().join("package");
    let stage = fs::canonicalize(stage)?;
    // A hyphen parts version and release; a tilde comes before nothing, as in 1.0~rc1.
    let version = build.version.replace('-', "~");
    let architecture = match build.machine.architecture {
        "amd64" => "x86_64",
        "arm64" => "aarch64",
        other => other,
    };
    let defined = [
        format!("version_built {version}"),
        format!("stage {}", stage.display()),
        format!("_topdir {}", stage.with_extension("rpmbuild").display()),
        format!("_rpmdir {}", fs::canonicalize(&folder)?.display()),
        "_rpmfilename %{name}-%{version}-%{release}.%{arch}.rpm".to_owned(),
        "_buildhost holdfast".to_owned(),
        "use_source_date_epoch_as_buildtime 1".to_owned(),
        "clamp_mtime_to_source_date_epoch 1".to_owned(),
    ];
    let mut command = Command::new("rpmbuild");
    command.args(["-bb", "--quiet", "--target", architecture]);
    // Its own tools would look into a program that they do not know.
    if !build.machine.is_here() {
        command.args(["--define", "__os_install_post %{nil}"]);
    }
    command.args(defined.iter().flat_map(|definition| ["--define", definition]));
    command.arg(root.join("packaging/rpm/holdfast.spec")).env("SOURCE_DATE_EPOCH", &build.moment);
    run(&mut command).context("rpmbuild, of the package rpm or rpm-build, is needed")?;
    Ok(folder.join(format!("holdfast-{version}-1.{architecture}.rpm")))
}

/// Puts everything where it goes.
pub fn fill(root: &Path, build: &Build, stage: &Path) -> Result<()> {
    let program = stage.join("usr/bin/holdfast");
    put(&build.binary, &program, 0o755)?;
    // What a debugger wants is ten times what the server needs. Names of functions stay, for traces of a crash.
    run(Command::new(build.machine.tool("strip")).arg("--strip-debug").arg(&program))?;
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
    run(Command::new(&build.native).arg("man").arg(&pages))?;
    for entry in fs::read_dir(&pages)? {
        run(Command::new("gzip").arg("-9n").arg(entry?.path()))?;
    }
    for (shell, to) in COMPLETIONS {
        let output = Command::new(&build.native).args(["completions", shell]).output()?;
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

/// Copies a file, and makes the folders on the way.
pub fn put(from: &Path, to: &Path, mode: u32) -> Result<()> {
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
pub fn told(command: &mut Command) -> Result<String> {
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
    fn both_formats_hold_the_same_files() {
        let spec = fs::read_to_string(crate::root().join("packaging/rpm/holdfast.spec")).expect("a specification");
        let (_, listed) = spec.split_once("%files\n").expect("a list");
        let listed: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().last()).collect();
        let packed = FILES.iter().map(|(_, to, _)| *to).chain(COMPLETIONS.iter().map(|(_, to)| *to));
        for to in packed {
            let to = MOVED.iter().find(|(from, _)| *from == to).map_or(to, |(_, to)| *to);
            let to = format!("/{to}");
            assert!(listed.iter().any(|listed| to == *listed || to.starts_with(&format!("{listed}/"))), "{to}");
        }
        for (from, _) in MOVED {
            assert!(
                FILES.iter().any(|(_, to, _)| to == from) || COMPLETIONS.iter().any(|(_, to)| to == from),
                "{from}"
            );
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

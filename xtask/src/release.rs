//! `release`: everything that is published of a version, in one folder.
//!
//! A `.deb`, an `.rpm`, an image for container engines, an archive with the program, man pages and completions, the
//! bill of materials, the profile that the program was built with, and the checksums of all. The same program and the
//! same commit make the same files, byte for byte: with `--check` all are made twice and compared.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::package::{self, Build};
use crate::process::{exists, run as run_program};
use crate::{bill, guided, image, needs, step, target};

/// Checksums of all other files, as `sha256sum --check` reads them.
const SUMS: &str = "SHA256SUMS";

/// Makes it. Without `--binary` the program is built first.
///
/// # Errors
/// If something cannot be made.
pub fn run(options: &[String]) -> Result<()> {
    let (mut is_checked, mut profile) = (false, None);
    let mut passed = Vec::new();
    let mut words = options.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().cloned().with_context(|| format!("{word} needs a value"));
        match word.as_str() {
            "--check" => is_checked = true,
            "--profile" => profile = Some(std::path::absolute(value()?)?),
            "--binary" | "--native" | "--version" => passed.extend([word.clone(), value()?]),
            _ => bail!("release takes no option '{word}'"),
        }
    }
    if passed.iter().any(|word| word == "--binary") {
        ensure!(profile.is_none(), "--profile says how to build, and --binary that it has been done");
    } else {
        let built = guided::build_program(profile.as_deref())?;
        passed.extend(["--binary".to_owned(), built.program.display().to_string()]);
        profile = Some(built.profile);
    }
    let build = Build::of("release", &passed)?;
    if !exists("rpmbuild") {
        needs::install(&["rpm"])?;
    }
    let folder = target().join("release-files");
    make(&build, profile.as_deref(), &folder)?;
    if is_checked {
        step("the same again");
        let again = target().join("release-files-again");
        make(&build, profile.as_deref(), &again)?;
        let sums = |folder: &Path| fs::read_to_string(folder.join(SUMS));
        let (first, second) = (sums(&folder)?, sums(&again)?);
        let differing: Vec<&str> = first.lines().filter(|line| !second.lines().any(|other| other == *line)).collect();
        ensure!(differing.is_empty(), "these came out otherwise the second time:\n{}", differing.join("\n"));
        fs::remove_dir_all(&again)?;
        eprintln!("both times the same, byte for byte");
    }
    print!("{}", fs::read_to_string(folder.join(SUMS))?);
    println!("{}", folder.display());
    Ok(())
}

fn make(build: &Build, profile: Option<&Path>, folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot clear {}", folder.display()))?;
    }
    fs::create_dir_all(folder)?;
    let keep = |path: PathBuf| -> Result<()> {
        let name = path.file_name().context("a file with a name")?;
        fs::copy(&path, folder.join(name)).with_context(|| format!("cannot copy {}", path.display()))?;
        Ok(())
    };
    for format in ["deb", "rpm"] {
        step(format);
        keep(package::make(format, build)?)?;
    }
    step("image");
    keep(image::make(build)?.archive)?;
    step("archive");
    make_archive(build, folder)?;
    step("bill of materials");
    fs::write(folder.join(format!("{}.cdx.json", build.name())), bill::of(build)?)?;
    if let Some(profile) = profile {
        fs::copy(profile, folder.join(format!("{}.profdata", build.name())))?;
    }
    write_sums(folder)
}

/// What a machine without a package manager wants: to be unpacked into `/usr/local` or a home directory.
fn make_archive(build: &Build, folder: &Path) -> Result<PathBuf> {
    let name = format!("holdfast-{}-linux-{}", build.version, build.machine.architecture);
    let stage = target().join("package").join(format!("{}-archive", build.name()));
    if stage.exists() {
        fs::remove_dir_all(&stage)?;
    }
    let (filled, tree) = (stage.join("filled"), stage.join(&name));
    package::fill(&crate::root(), build, &filled)?;
    fs::rename(filled.join("usr"), &tree)?;
    for (from, to) in [
        ("etc/holdfast/holdfast.conf", "share/holdfast/holdfast.conf"),
        ("lib/systemd/system/holdfast.service", "share/holdfast/holdfast.service"),
    ] {
        fs::create_dir_all(tree.join(to).parent().context("a path with a folder")?)?;
        fs::rename(filled.join(from), tree.join(to))?;
    }
    let archive = folder.join(format!("{name}.tar.gz"));
    let tar = archive.with_extension("");
    run_program(
        Command::new("tar")
            .args(["--create", "--sort=name", "--format=ustar", "--numeric-owner", "--owner=0", "--group=0"])
            .arg(format!("--mtime=@{}", build.moment))
            .arg("--file")
            .arg(&tar)
            .args(["--directory".as_ref(), stage.as_os_str(), name.as_ref()]),
    )?;
    run_program(Command::new("gzip").args(["--no-name", "--best", "--force"]).arg(&tar))?;
    Ok(archive)
}

fn write_sums(folder: &Path) -> Result<()> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        names.extend(entry?.file_name().into_string().ok());
    }
    names.sort();
    let sums = package::told(Command::new("sha256sum").arg("--").args(&names).current_dir(folder))?;
    fs::write(folder.join(SUMS), sums + "\n")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        let refused = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            format!("{:#}", run(&words).expect_err("it is refused"))
        };
        assert!(refused(&["--profile", "a", "--binary", "b"]).contains("--profile says how to build"));
        assert!(refused(&["--binary"]).contains("needs a value"));
        assert!(refused(&["--sign"]).contains("takes no option '--sign'"));
        assert!(refused(&["--binary", "/nowhere"]).contains("there is no program"));
    }

    #[test]
    fn checksums_are_those_that_sha256sum_reads() {
        let folder = std::env::temp_dir().join(format!("holdfast-sums-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        for name in ["b", "a"] {
            fs::write(folder.join(name), name).expect("a file");
        }
        write_sums(&folder).expect("sums");
        let check = || Command::new("sha256sum").args(["--check", "--quiet", SUMS]).current_dir(&folder).output();
        assert!(check().expect("it runs").status.success());
        fs::write(folder.join("a"), "other").expect("a file");
        assert!(!check().expect("it runs").status.success());
        fs::remove_dir_all(&folder).expect("a folder");
    }
}

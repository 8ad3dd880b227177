//! `cargo xtask advisories`: no library that we use has a known fault.
//!
//! The list of advisories is a file of the repository, so that the check needs no network: those of the database of
//! RustSec about libraries that `Cargo.lock` names, patched or not. `cargo xtask advisories DIRECTORY` makes it from a
//! checkout of that database. What applies to a version that we use is a breach, unless the review says why not.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use semver::{Version, VersionReq};

use crate::process::output;
use crate::root;

/// What the database says of libraries that we use.
pub(crate) const LIST: &str = "docs/advisories.toml";

/// The review, with a table of what does not concern us.
pub(crate) const REVIEW: &str = "docs/dependencies.md";

/// The versions of a library that an advisory does not concern.
#[derive(Debug, PartialEq, Eq)]
struct Advisory {
    id: String,
    package: String,
    fine: Vec<String>,
}

/// Without a word: checks. With the directory of the database: makes the list first.
pub(crate) fn run_verb(options: &[String]) -> Result<()> {
    let read = |path: &str| fs::read_to_string(root().join(path)).with_context(|| format!("cannot read {path}"));
    let lock = read("Cargo.lock")?;
    match options {
        [] => {}
        [directory] if !directory.starts_with('-') => {
            let list = gather(Path::new(directory), &lock)?;
            fs::write(root().join(LIST), list).with_context(|| format!("cannot write {LIST}"))?;
        }
        _ => bail!("advisories takes the directory of a checkout of the database, or nothing"),
    }
    let list = read(LIST)?;
    let breaches = breaches(&lock, &list, &read(REVIEW)?)?;
    ensure!(breaches.is_empty(), "\n  {}", breaches.join("\n  "));
    let (database, advisories, looked_up) = parse(&list)?;
    println!("{} advisories about {} libraries, as of {database}: none applies", advisories.len(), looked_up.len());
    Ok(())
}

/// What applies to a version in this `Cargo.lock` and is not in the table of the review, what is in that table and does
/// not apply, and libraries that have not been looked up.
pub(crate) fn breaches(lock: &str, list: &str, review: &str) -> Result<Vec<String>> {
    let (_, advisories, looked_up) = parse(list)?;
    let mut accepted = accepted(review);
    let mut breaches = Vec::new();
    for (package, version) in packages(lock)? {
        if !looked_up.contains(&package) {
            breaches.push(format!("{LIST}: {package} has not been looked up: cargo xtask advisories DIRECTORY"));
        }
        let parsed = Version::parse(&version).with_context(|| format!("{package} has the version {version}"))?;
        for advisory in advisories.iter().filter(|advisory| advisory.package == package) {
            let mut is_fine = false;
            for range in &advisory.fine {
                let range = VersionReq::parse(range).with_context(|| format!("{}: {range}", advisory.id))?;
                is_fine |= range.matches(&parsed);
            }
            if !is_fine && !accepted.remove(&(advisory.id.clone(), format!("{package} {version}"))) {
                breaches.push(format!("Cargo.lock: {} applies to {package} {version}", advisory.id));
            }
        }
    }
    let vain = accepted.into_iter().map(|(id, library)| format!("{REVIEW}: {id} does not apply to {library}"));
    breaches.extend(vain);
    Ok(breaches)
}

/// Libraries from outside, and their versions.
fn packages(lock: &str) -> Result<BTreeSet<(String, String)>> {
    let lock: toml::Table = lock.parse().context("Cargo.lock is no TOML")?;
    let packages = lock.get("package").and_then(toml::Value::as_array).context("Cargo.lock names no package")?;
    let field = |package: &toml::Value, name: &str| Some(package.get(name)?.as_str()?.to_owned());
    let from_outside = packages.iter().filter(|package| package.get("source").is_some());
    Ok(from_outside.filter_map(|package| Some((field(package, "name")?, field(package, "version")?))).collect())
}

/// The rows `| advisory | library version | … |`.
fn accepted(review: &str) -> BTreeSet<(String, String)> {
    let rows = review.lines().filter_map(|line| {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        Some((cells.next()?.to_owned(), cells.next()?.trim_matches('`').to_owned()))
    });
    rows.filter(|(id, _)| id.starts_with("RUSTSEC-")).collect()
}

fn texts(value: Option<&toml::Value>) -> Vec<String> {
    let values = value.and_then(toml::Value::as_array).map(Vec::as_slice).unwrap_or_default();
    values.iter().filter_map(toml::Value::as_str).map(str::to_owned).collect()
}

/// Which database it is, its advisories, and the libraries that were looked up.
fn parse(list: &str) -> Result<(String, Vec<Advisory>, BTreeSet<String>)> {
    let list: toml::Table = list.parse().with_context(|| format!("{LIST} is no TOML"))?;
    let database = list.get("database").and_then(toml::Value::as_str).context("the list names no database")?;
    let looked_up = texts(list.get("looked_up")).into_iter().collect();
    let mut advisories = Vec::new();
    for one in list.get("advisory").and_then(toml::Value::as_array).into_iter().flatten() {
        let text = |name| one.get(name).and_then(toml::Value::as_str).map(str::to_owned);
        let (Some(id), Some(package)) = (text("id"), text("package")) else { bail!("an advisory without a name") };
        advisories.push(Advisory { id, package, fine: texts(one.get("fine")) });
    }
    Ok((database.to_owned(), advisories, looked_up))
}

/// The list, from a checkout of the database.
fn gather(directory: &Path, lock: &str) -> Result<String> {
    let names: BTreeSet<String> = packages(lock)?.into_iter().map(|(name, _)| name).collect();
    let state = output(Command::new("git").arg("-C").arg(directory).args(["log", "-1", "--format=%h of %cs"]))?;
    let mut found = BTreeMap::new();
    for name in &names {
        let Ok(folder) = fs::read_dir(directory.join("crates").join(name)) else { continue };
        for file in folder {
            let path = file.context("cannot read the database")?.path();
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            if let Some(advisory) = read_advisory(&text).with_context(|| path.display().to_string())? {
                found.insert((advisory.package.clone(), advisory.id.clone()), advisory);
            }
        }
    }
    let mut list = format!(
        "# Made by `cargo xtask advisories DIRECTORY`: what the database says of libraries that we use. `fine` are the\n# \
         versions that an advisory does not concern.\n\ndatabase = \"github.com/rustsec/advisory-db, {}\"\n\n",
        state.trim()
    );
    writeln!(list, "looked_up = [")?;
    for name in &names {
        writeln!(list, "    \"{name}\",")?;
    }
    writeln!(list, "]")?;
    for Advisory { id, package, fine } in found.into_values() {
        writeln!(list, "\n[[advisory]]\nid = \"{id}\"\npackage = \"{package}\"\nfine = {fine:?}")?;
    }
    Ok(list)
}

/// An advisory as the database has it: TOML in a block at the beginning of a page. None if it was withdrawn.
fn read_advisory(page: &str) -> Result<Option<Advisory>> {
    let block = page.strip_prefix("```toml\n").and_then(|rest| rest.split_once("\n```")).context("no block of TOML")?;
    let table: toml::Table = block.0.parse().context("the block is no TOML")?;
    let section = |name: &str| table.get(name).and_then(toml::Value::as_table);
    let (head, versions) = (section("advisory").context("no head")?, section("versions").context("no versions")?);
    if head.contains_key("withdrawn") {
        return Ok(None);
    }
    let text = |name: &str| head.get(name).and_then(toml::Value::as_str).map(str::to_owned);
    let (Some(id), Some(package)) = (text("id"), text("package")) else { bail!("an advisory without a name") };
    let fine = [versions.get("patched"), versions.get("unaffected")].map(texts).concat();
    Ok(Some(Advisory { id, package, fine }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "[[package]]\nname = \"ours\"\nversion = \"0.1.0\"\n\n[[package]]\nname = \"lib\"\nversion = \
                        \"1.2.3\"\nsource = \"registry\"\n";

    fn list(fine: &str) -> String {
        format!(
            "database = \"x\"\nlooked_up = [\"lib\"]\n[[advisory]]\nid = \"RUSTSEC-1\"\npackage = \"lib\"\nfine = {fine}\n"
        )
    }

    #[test]
    fn an_advisory_that_applies_is_a_breach_unless_the_review_names_it() {
        let check = |fine: &str, review: &str| breaches(LOCK, &list(fine), review).expect("it can be read");
        assert!(check("[\">= 1.2.3\"]", "").is_empty());
        assert!(check("[\"< 1.0.0, >= 0.9.3\", \"^ 1.2\"]", "").is_empty());
        assert_eq!(check("[\">= 1.2.4\"]", ""), ["Cargo.lock: RUSTSEC-1 applies to lib 1.2.3"]);
        let row = "| RUSTSEC-1 | `lib 1.2.3` | it is not called |\n";
        assert!(check("[]", row).is_empty());
        let vain = ["docs/dependencies.md: RUSTSEC-1 does not apply to lib 1.2.3"];
        assert_eq!(check("[\">= 1.2.3\"]", row), vain);
        assert_eq!(check("[]", "| RUSTSEC-1 | `lib 1.2.2` | an older one |\n").len(), 2);
    }

    #[test]
    fn a_library_that_was_not_looked_up_is_a_breach() {
        let found = breaches(LOCK, "database = \"x\"\nlooked_up = []\n", "").expect("it can be read");
        assert_eq!(found, ["docs/advisories.toml: lib has not been looked up: cargo xtask advisories DIRECTORY"]);
    }

    #[test]
    fn a_page_of_the_database_is_read() {
        let page = "```toml\n[advisory]\nid = \"RUSTSEC-1\"\npackage = \"lib\"\n\n[versions]\npatched = [\">= 2\"]\n\
                    unaffected = [\"< 1\"]\n```\n\n# Title\n";
        let advisory = read_advisory(page).expect("it can be read").expect("it stands");
        assert_eq!(advisory.fine, [">= 2", "< 1"]);
        let withdrawn = page.replace("package", "withdrawn = \"2026-01-01\"\npackage");
        assert_eq!(read_advisory(&withdrawn).expect("it can be read"), None);
        assert!(read_advisory("# Title\n").is_err());
    }
}

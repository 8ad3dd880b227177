//! The house rules that neither the compiler nor clippy knows. An ordinary test, so that `cargo test` keeps them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process::output;
use crate::{advisories, root};

/// A file of the repository, read once for all rules.
struct Source {
    /// From the root, with slashes.
    path: String,
    size_bytes: u64,
    /// Empty for what is not text.
    text: String,
}

/// Breaches of one rule: each a place and what is wrong there.
type Rule = fn(&[Source]) -> Vec<String>;

const RULES: &[Rule] = &[
    dependencies_have_reasons,
    words_left_behind,
    words_are_of_today,
    comments_are_plain,
    tests_run,
    unsafe_is_signed_off,
    dependencies_are_reviewed,
    files_are_small,
    lines_fit,
    modules_are_listed,
    paths_are_not_of_one_machine,
    changelog_has_its_shape,
    decisions_have_their_shape,
    links_lead_somewhere,
];

/// No file is larger: what is large is generated, or belongs elsewhere.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// As in rustfmt.toml, which leaves comments and strings alone.
const LINE_COLUMNS_MAX: usize = 120;

/// Holds every rule against every file; an error that lists all breaches.
pub fn run() -> Result<()> {
    let sources = read_sources(&root())?;
    let breaches: Vec<String> = RULES.iter().flat_map(|rule| rule(&sources)).collect();
    if breaches.is_empty() {
        return Ok(());
    }
    let mut list = String::new();
    for breach in &breaches {
        write!(list, "\n  {breach}")?;
    }
    bail!("{} breaches of the house rules:{list}", breaches.len())
}

/// All files that git knows or would add.
fn read_sources(root: &Path) -> Result<Vec<Source>> {
    let list = output(Command::new("git").arg("-C").arg(root).args([
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
    ]))?;
    let mut sources = Vec::new();
    for path in list.lines().collect::<BTreeSet<_>>() {
        let full = root.join(path);
        // A file that has been removed and not committed yet is still listed; a link has no text of its own.
        let Ok(metadata) = fs::symlink_metadata(&full) else { continue };
        if !metadata.is_file() {
            continue;
        }
        let bytes = fs::read(&full).with_context(|| format!("cannot read {path}"))?;
        let text = String::from_utf8(bytes).unwrap_or_default();
        sources.push(Source { path: path.to_owned(), size_bytes: metadata.len(), text });
    }
    Ok(sources)
}

/// A rule that looks at one line at a time of files with one of these extensions.
fn each_line(sources: &[Source], extensions: &[&str], wrong: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut breaches = Vec::new();
    for source in sources.iter().filter(|source| has_extension(&source.path, extensions)) {
        for (index, line) in source.text.lines().enumerate() {
            if let Some(what) = wrong(line) {
                breaches.push(format!("{}:{}: {what}", source.path, index + 1));
            }
        }
    }
    breaches
}

fn has_extension(path: &str, extensions: &[&str]) -> bool {
    Path::new(path).extension().is_some_and(|it| extensions.iter().any(|extension| it == *extension))
}

/// A dependency from outside says why it is there, on its line or on the one above.
fn dependencies_have_reasons(sources: &[Source]) -> Vec<String> {
    let mut breaches = Vec::new();
    for source in sources.iter().filter(|source| source.path.ends_with("Cargo.toml")) {
        let mut section = "";
        let mut above = "";
        for (index, line) in source.text.lines().enumerate() {
            if line.starts_with('[') {
                section = line.trim();
            }
            let depends = section.ends_with("dependencies]") && line.contains('=') && !line.starts_with('#');
            let ours = line.contains(".workspace = true") || line.contains("path = \"crates/");
            if depends && !ours && !line.contains(" # ") && !above.starts_with('#') {
                breaches.push(format!("{}:{}: a dependency without a reason: {line}", source.path, index + 1));
            }
            above = line;
        }
    }
    breaches
}

/// Words that mark what somebody meant to do later.
fn words_left_behind(sources: &[Source]) -> Vec<String> {
    let words = [concat!("FIX", "ME"), concat!("TO", "DO"), concat!("XX", "X")];
    each_line(sources, &["rs", "toml", "md", "sh", "yml", "txt"], |line| {
        let mut parts = line.split(|character: char| !character.is_alphanumeric());
        parts.find(|part| words.contains(part)).map(|word| format!("the word {word}"))
    })
}

/// Words that nobody uses any more. There is always a plain one: "the node that", "anyone who".
fn words_are_of_today(sources: &[Source]) -> Vec<String> {
    let words = [concat!("who", "ever"), concat!("Who", "ever")];
    each_line(sources, &["rs", "md"], |line| {
        let mut parts = line.split(|character: char| !character.is_alphanumeric());
        parts.find(|part| words.contains(part)).map(|word| format!("the word {word}"))
    })
}

/// What comments of code do not say, in lower case: there is a shorter way, with the subject first. "A node with a full
/// disk", "start again", "without end", "should".
const STILTED: &[&str] = &[
    "whose",
    "whomever",
    "anew",
    "whence",
    "thence",
    "whither",
    "thither",
    "hither",
    "hence",
    "henceforth",
    "hitherto",
    "heretofore",
    "thereof",
    "whereof",
    "wherein",
    "therein",
    "thereupon",
    "whereupon",
    "lest",
    "ere",
    "nought",
    "naught",
    "aught",
    "unto",
    "upon",
    "betwixt",
    "albeit",
    "shall",
    "for ever",
    "had better",
    "of its own accord",
    "of their own accord",
];

/// Comments say things in plain words. Code may use such a word as a name.
fn comments_are_plain(sources: &[Source]) -> Vec<String> {
    let is_part_of_word = |character: char| character.is_alphanumeric() || character == '_';
    each_line(sources, &["rs"], |line| {
        let line = line.trim_start();
        let comment = if line.starts_with("//") { line } else { line.split_once(" // ")?.1 }.to_ascii_lowercase();
        let is_said = |words: &&&str| {
            comment.match_indices(**words).any(|(at, _)| {
                !comment[..at].ends_with(is_part_of_word) && !comment[at + words.len()..].starts_with(is_part_of_word)
            })
        };
        STILTED.iter().find(is_said).map(|words| format!("a comment says '{words}'"))
    })
}

/// A test that does not run, or passes by panicking anywhere at all, tests nothing.
fn tests_run(sources: &[Source]) -> Vec<String> {
    let attributes = [concat!("#[ig", "nore"), concat!("#[should", "_panic")];
    each_line(sources, &["rs"], |line| {
        attributes.iter().find(|attribute| line.contains(**attribute)).map(|attribute| format!("{attribute}]"))
    })
}

/// The table of code that the compiler cannot check.
const UNSAFE_TABLE: &str = "docs/unsafe.md";

/// Each file with such code is in the table, with as many uses as it has.
fn unsafe_is_signed_off(sources: &[Source]) -> Vec<String> {
    let table = sources.iter().find(|source| source.path == UNSAFE_TABLE).map_or("", |source| source.text.as_str());
    let rows = table.lines().filter_map(|line| {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        let path = cells.next()?.strip_prefix('`')?.strip_suffix('`')?;
        Some((path.to_owned(), cells.next()?.parse::<usize>().ok()?))
    });
    let mut signed: BTreeMap<String, usize> = rows.collect();
    let mut breaches = Vec::new();
    for source in sources.iter().filter(|source| has_extension(&source.path, &["rs"])) {
        let count = source.text.lines().map(unsafe_uses).sum::<usize>();
        let signed = signed.remove(&source.path).unwrap_or(0);
        if count != signed {
            breaches.push(format!("{}: {count} uses of unsafe, and {UNSAFE_TABLE} has {signed}", source.path));
        }
    }
    breaches.extend(signed.into_keys().map(|path| format!("{UNSAFE_TABLE}: there is no file {path}")));
    breaches
}

/// How often a line of code begins something that is not safe.
fn unsafe_uses(line: &str) -> usize {
    const WORD: &str = concat!("uns", "afe");
    let code = line.trim_start();
    if code.starts_with("//") {
        return 0;
    }
    let is_use = |(at, _): &(usize, &str)| {
        let begins = !code[..*at].ends_with(|before: char| before.is_alphanumeric() || "_\"`".contains(before));
        let rest = code[at + WORD.len()..].trim_start();
        begins && ["{", "(", "impl", "fn ", "extern", "trait"].iter().any(|next| rest.starts_with(next))
    };
    code.match_indices(WORD).filter(is_use).count()
}

/// No library that we use has a known fault, but for those that do not concern us.
fn dependencies_are_reviewed(sources: &[Source]) -> Vec<String> {
    let text = |path: &str| sources.iter().find(|source| source.path == path).map(|source| source.text.as_str());
    match (text("Cargo.lock"), text(advisories::LIST), text(advisories::REVIEW)) {
        (Some(lock), Some(list), Some(review)) => {
            advisories::breaches(lock, list, review).unwrap_or_else(|error| vec![format!("{error:#}")])
        }
        (None, ..) => Vec::new(),
        _ => vec![format!("{} or {} is missing", advisories::LIST, advisories::REVIEW)],
    }
}

fn files_are_small(sources: &[Source]) -> Vec<String> {
    let large = sources.iter().filter(|source| source.size_bytes > FILE_BYTES_MAX);
    large.map(|source| format!("{}: {} bytes", source.path, source.size_bytes)).collect()
}

/// Tables in comments, and texts that are quoted to the letter, may be as long as they are.
fn lines_fit(sources: &[Source]) -> Vec<String> {
    each_line(sources, &["rs"], |line| {
        let columns = line.chars().count();
        let comment = line.trim_start().strip_prefix("//");
        let may = match comment {
            Some(comment) => comment.trim_start_matches(['/', '!', ' ']).starts_with('|'),
            None => line.contains('"') || line.ends_with('\\'),
        };
        (columns > LINE_COLUMNS_MAX && !may).then(|| format!("{columns} columns"))
    })
}

/// A source file that no `mod` line names is not compiled, however alive it looks; a command's file least of all.
fn modules_are_listed(sources: &[Source]) -> Vec<String> {
    let text_of = |path: &Path| sources.iter().find(|source| Path::new(&source.path) == path).map(|it| &it.text);
    let mut breaches = Vec::new();
    for source in sources.iter().filter(|source| has_extension(&source.path, &["rs"])) {
        let path = PathBuf::from(&source.path);
        let inside = source.path.contains("/src/") || source.path.contains("/tests/it/");
        let (Some(folder), Some(stem)) = (path.parent(), path.file_stem().and_then(|stem| stem.to_str())) else {
            continue;
        };
        if !inside || matches!(stem, "lib" | "main") {
            continue;
        }
        let (name, folder) = if stem == "mod" {
            let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            (name, folder.parent().unwrap_or(folder))
        } else {
            (stem, folder)
        };
        let parents = ["lib.rs", "main.rs", "mod.rs"].map(|parent| folder.join(parent));
        let listed = parents.iter().chain([&folder.with_extension("rs")]).filter_map(|it| text_of(it)).any(|text| {
            text.lines().any(|line| line.trim_start().ends_with(&format!("mod {name};")) && !line.contains("//"))
        });
        if !listed {
            breaches.push(format!("{}: no 'mod {name};' names this file", source.path));
        }
    }
    breaches
}

/// What works on one machine only.
fn paths_are_not_of_one_machine(sources: &[Source]) -> Vec<String> {
    let folders = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];
    each_line(sources, &["rs", "toml", "md", "sh", "yml", "txt", "py", "c"], |line| {
        let begins_path = |at: usize| {
            let before = line[..at].chars().next_back();
            before.is_none_or(|before| !before.is_alphanumeric() && !"._-}~/".contains(before))
        };
        let found = folders.iter().find(|folder| line.match_indices(**folder).any(|(at, _)| begins_path(at)));
        found.map(|folder| format!("a path of one machine: {folder}"))
    })
}

/// Newest first; each version a heading, each change one bullet under what kind of change it is.
fn changelog_has_its_shape(sources: &[Source]) -> Vec<String> {
    let Some(source) = sources.iter().find(|source| source.path == "CHANGELOG.md") else {
        return vec!["CHANGELOG.md: is missing".to_owned()];
    };
    let mut breaches = Vec::new();
    let mut versions = 0;
    let mut in_list = false;
    for (index, line) in source.text.lines().enumerate() {
        let kinds = ["### Added", "### Changed", "### Fixed", "### Removed", "### Security"];
        let fine = match line {
            "# Changelog" => index == 0,
            "" => true,
            _ if line.starts_with("## ") => {
                versions += 1;
                in_list = false;
                let name = &line[3..];
                name == "Unreleased" && versions == 1 || name.starts_with(|first: char| first.is_ascii_digit())
            }
            _ if line.starts_with("### ") => {
                in_list = true;
                kinds.contains(&line)
            }
            _ if in_list => line.starts_with("- ") || line.starts_with("  "),
            _ => versions == 0,
        };
        if !fine {
            breaches.push(format!("CHANGELOG.md:{}: out of shape: {line}", index + 1));
        }
    }
    if versions == 0 || !source.text.starts_with("# Changelog\n") {
        breaches.push("CHANGELOG.md: begins with '# Changelog' and has a version".to_owned());
    }
    breaches
}

/// Decisions are numbered without a gap and answer the same four questions.
fn decisions_have_their_shape(sources: &[Source]) -> Vec<String> {
    let mut breaches = Vec::new();
    let decisions = sources.iter().filter(|source| source.path.starts_with("docs/decisions/"));
    for (index, source) in decisions.enumerate() {
        if !source.path.starts_with(&format!("docs/decisions/{:04}-", index + 1)) {
            breaches.push(format!("{}: expected number {:04}", source.path, index + 1));
        }
        for heading in ["## Context", "## Choice", "## Cost", "## What would change our mind"] {
            if !source.text.lines().any(|line| line == heading) {
                breaches.push(format!("{}: lacks '{heading}'", source.path));
            }
        }
    }
    breaches
}

/// Links between documents lead to files that exist.
fn links_lead_somewhere(sources: &[Source]) -> Vec<String> {
    let mut breaches = Vec::new();
    for source in sources.iter().filter(|source| has_extension(&source.path, &["md"])) {
        let folder = Path::new(&source.path).parent().unwrap_or(Path::new(""));
        for (index, line) in source.text.lines().enumerate() {
            for target in line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target) {
                let file = target.split('#').next().unwrap_or_default();
                let local = !file.is_empty() && !file.contains("://") && !file.contains(' ');
                if local && !root().join(folder).join(file).exists() {
                    breaches.push(format!("{}:{}: a link to nowhere: {target}", source.path, index + 1));
                }
            }
        }
    }
    breaches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_house_is_tidy() {
        if let Err(error) = run() {
            panic!("{error:#}");
        }
    }

    #[track_caller]
    fn check(rule: Rule, path: &str, text: &str, breaches: usize) {
        let size_bytes = text.len() as u64;
        let found = rule(&[Source { path: path.to_owned(), size_bytes, text: text.to_owned() }]);
        assert_eq!(found.len(), breaches, "{found:?}");
    }

    #[test]
    fn each_rule_finds_its_breach_and_lets_the_rest_pass() {
        let manifest = "[dependencies]\nnode.workspace = true\nmio = \"1\" # epoll\n# for lines\nmemchr = \"2\"\n";
        check(dependencies_have_reasons, "crates/a/Cargo.toml", manifest, 0);
        check(dependencies_have_reasons, "crates/a/Cargo.toml", "[dev-dependencies]\nrand = \"1\"\n", 1);
        check(words_left_behind, "a.rs", concat!("// TO", "DO: later\n// SET k v XX\n"), 1);
        check(words_are_of_today, "a.md", concat!("Ask who", "ever leads.\nAsk who leads.\n"), 1);
        check(comments_are_plain, "a.rs", concat!("/// The node who", "se log it is.\n/// It begins anew.\n"), 2);
        check(
            comments_are_plain,
            "a.rs",
            concat!("let anew = 1; /", "/ `is_anew`\nlet whose = 2; /", "/ For ever.\n"),
            1,
        );
        check(tests_run, "a.rs", concat!("#[ig", "nore]\n#[test]\n"), 1);
        let block = concat!("// uns", "afe { in words }\nlet a = uns", "afe { *b };\nuns", "afe impl Send for A {}\n");
        check(unsafe_is_signed_off, "a.rs", block, 1);
        check(unsafe_is_signed_off, "a.rs", "let unsafe_code = 1; let is_unsafe = unsafe_code;\n", 0);
        check(unsafe_is_signed_off, UNSAFE_TABLE, "| file | uses |\n| --- | --- |\n| `a.rs` | 2 |\n", 1);
        check(lines_fit, "a.rs", &"é".repeat(121), 1);
        check(lines_fit, "a.rs", &"é".repeat(120), 0);
        check(lines_fit, "a.rs", &format!("// {}\n\"{}\"", "a".repeat(120), "a".repeat(120)), 1);
        check(modules_are_listed, "crates/a/src/b.rs", "", 1);
        check(paths_are_not_of_one_machine, "a.md", concat!("see /wo", "rk/main and ~/wo", "rk/x"), 1);
        check(changelog_has_its_shape, "CHANGELOG.md", "# Changelog\n\n## Unreleased\n\n### Added\n\n- It.\n", 0);
        check(changelog_has_its_shape, "CHANGELOG.md", "# Changelog\n\n## Unreleased\n\nSome prose.\n", 1);
        check(decisions_have_their_shape, "docs/decisions/0002-x.md", "## Context\n", 4);
        check(links_lead_somewhere, "a.md", "[x](no-such-file.md) [y](Cargo.toml) [z](https://example.org/)", 1);
    }

    #[test]
    fn signed_off_is_what_has_as_many_uses_as_the_table_says() {
        let source = |path: &str, text: &str| Source { path: path.into(), size_bytes: 0, text: text.into() };
        let block = concat!("let a = uns", "afe { *b };\n");
        let table = |count| source(UNSAFE_TABLE, &format!("| `a.rs` | {count} | what for |\n"));
        assert!(unsafe_is_signed_off(&[source("a.rs", block), table(1)]).is_empty());
        let more = unsafe_is_signed_off(&[source("a.rs", &block.repeat(2)), table(1)]);
        assert_eq!(more, ["a.rs: 2 uses of unsafe, and docs/unsafe.md has 1"]);
    }

    #[test]
    fn a_listed_module_is_listed_under_its_parent() {
        let source = |path: &str, text: &str| Source { path: path.into(), size_bytes: 0, text: text.into() };
        let sources = [
            source("crates/a/src/lib.rs", "pub mod commands;\n"),
            source("crates/a/src/commands.rs", "pub(crate) mod string;\n"),
            source("crates/a/src/commands/string.rs", ""),
            source("crates/a/src/commands/forgotten.rs", ""),
        ];
        let found = modules_are_listed(&sources);
        assert_eq!(found, ["crates/a/src/commands/forgotten.rs: no 'mod forgotten;' names this file"]);
    }
}

//! Redis 7.0.15's own Tcl suite, run against a Holdfast that is started for it.
//!
//! The suite is other people's opinion of what a Redis does, so it is used as it is: fetched once from Debian's source
//! package into the cache, never committed, never patched. What it may skip stands in `tests/tcl/left-out.toml`, each
//! entry with its reason. Which tests there are to run is learnt from a stock `redis-server`, once, with the same tags:
//! a test that the reference runs and Holdfast neither runs nor leaves out counts as failed, so that an abort half-way
//! through a file cannot look like success.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::process::{Family, output, run as run_program};
use crate::{needs, root};

/// Version of Redis that the suite comes from.
const VERSION: &str = "7.0.15";

/// The files that concern what is built so far.
const FILES: &[&str] = &[
    "unit/type/string",
    "unit/type/incr",
    "unit/type/hash",
    "unit/type/set",
    "unit/type/list",
    "unit/type/list-3",
    "unit/type/zset",
    "unit/type/stream",
    "unit/type/stream-cgroups",
    "unit/geo",
    "unit/sort",
    "unit/bitops",
    "unit/bitfield",
    "unit/hyperloglog",
    "unit/expire",
    "unit/keyspace",
    "unit/multi",
    "unit/protocol",
    "unit/pause",
    "unit/replybufsize",
    "unit/dump",
    "unit/quit",
    "unit/scan",
    "unit/scripting",
    "unit/functions",
    "unit/pubsub",
    "unit/tracking",
    "unit/introspection",
    "unit/introspection-2",
    "unit/info-command",
    "unit/slowlog",
    "unit/latency-monitor",
    "unit/lazyfree",
    "unit/violations",
    "unit/other",
];

/// The files that are run on a cluster, too, through one of its nodes: of every kind of command some, and no more than
/// a few minutes.
pub const CLUSTER_FILES: &str = "string,multi,hash,dump,keyspace,pubsub,tracking,scripting,functions,introspection,\
     introspection-2,slowlog,latency-monitor,stream-cgroups";

/// Files print something at least this often, or they hang: a test of HyperLogLogs makes 40,000 writes, one after the
/// other.
const SILENCE_LIMIT: Duration = Duration::from_secs(600);

/// No file takes longer.
const FILE_LIMIT: Duration = Duration::from_secs(1_800);

/// A server that has not answered after this long will not.
const START_LIMIT: Duration = Duration::from_secs(120);

/// What starts the suite.
const START: &str = include_str!("../../tests/tcl/run.tcl");

/// Runs the suite; an error if any test failed or did not run.
pub fn run(options: &[String]) -> Result<()> {
    run_with(options, None)
}

/// Runs the suite against a server that is built already, or builds it.
pub fn run_with(options: &[String], binary: Option<&Path>) -> Result<()> {
    let options = Options::parse(options)?;
    needs::provide_programs()?;
    let suite = Suite::provide()?;
    let list = LeftOutList::read(&root().join("tests/tcl/left-out.toml"))?;
    let is_whole = options.files == FILES;
    let reference = || -> Result<Reference> {
        let reference = Reference::provide(&suite, &options.files, &list)?;
        list.check(&reference, &options.files)?;
        if is_whole {
            reference.check_empty(&suite, &list)?;
        }
        Ok(reference)
    };
    if is_whole {
        list.check_files(&suite)?;
    }
    if options.audit {
        reference()?;
        return audit(&suite, &options, &list, binary);
    }
    let subject = options.subject(binary)?;
    // The first time the reference takes as long as the subject. Each is one client that waits for one server.
    let (reference, ran) = thread::scope(|scope| {
        let reference = scope.spawn(reference);
        let ran = run_files(&suite, &options, &list, &subject);
        if let Err(error) = &ran {
            eprintln!("{error:#}");
        }
        (reference.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), ran)
    });
    let (reference, ran) = (reference?, ran?);
    let results: Vec<_> = ran
        .into_iter()
        .map(|(file, ran)| {
            let skips = options.skips(&list, file);
            Outcome::judge(file, ran, reference.tests(file), &skips)
        })
        .collect();
    report(&results)
}

/// Runs the files against a server that is started for them, and answers what each printed.
fn run_files(
    suite: &Suite,
    options: &Options,
    list: &LeftOutList,
    subject: &Subject,
) -> Result<Vec<(&'static str, Ran)>> {
    let mut server = Server::start(subject)?;
    let mut results = Vec::new();
    for &file in &options.files {
        server.prepare()?;
        eprint!("{file:<18} ");
        let skips = options.skips(list, file);
        let apart = if options.stock { Vec::new() } else { list.apart(file) };
        let mut ran = suite.run_file(file, &list.tags(), Filter::Skip(&[&skips[..], &apart[..]].concat()), &server)?;
        if !apart.is_empty() {
            ran.add(suite.run_file(file, &list.tags(), Filter::Only(&apart), &server)?, &apart);
        }
        ran.death = server.death();
        eprintln!("{} passed, {} failed", ran.passed.len(), ran.failed.len());
        results.push((file, ran));
    }
    server.stop()?;
    Ok(results)
}

struct Options {
    files: Vec<&'static str>,
    stock: bool,
    audit: bool,
    /// Nodes of the cluster that is tested, through its first.
    nodes: u16,
}

impl Options {
    fn parse(words: &[String]) -> Result<Self> {
        let mut options = Self { files: FILES.to_vec(), stock: false, audit: false, nodes: 1 };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--files" => {
                    let wanted = words.next().context("--files wants names, separated by commas")?;
                    options.files.clear();
                    for name in wanted.split(',') {
                        let known = FILES.iter().find(|file| **file == name || file.rsplit('/').next() == Some(name));
                        options.files.push(known.with_context(|| format!("no file '{name}'; there are {FILES:?}"))?);
                    }
                }
                "--redis" => options.stock = true,
                "--audit" => options.audit = true,
                "--nodes" => {
                    let count = words.next().context("--nodes wants a number")?;
                    options.nodes = count.parse().with_context(|| format!("'{count}' is no number of nodes"))?;
                }
                _ => bail!("tcl takes no option '{word}'"),
            }
        }
        Ok(options)
    }

    fn subject(&self, binary: Option<&Path>) -> Result<Subject> {
        if self.stock {
            return Ok(Subject::Redis);
        }
        let binary = match (binary, std::env::var_os("HOLDFAST_BINARY")) {
            (Some(binary), _) => binary.to_owned(),
            (None, Some(binary)) => binary.into(),
            (None, None) => crate::build_release()?,
        };
        Ok(Subject::Holdfast { binary, nodes: self.nodes })
    }

    /// The tests of a file that are left out.
    fn skips(&self, list: &LeftOutList, file: &str) -> Vec<String> {
        if self.stock { Vec::new() } else { list.names(file, self.nodes) }
    }
}

/// The unpacked source package.
struct Suite {
    tree: PathBuf,
}

impl Suite {
    /// Fetches and unpacks the source package unless that has been done.
    fn provide() -> Result<Self> {
        let cache = crate::cache().join("tcl");
        let tree = cache.join(format!("redis-{VERSION}"));
        if !tree.join("tests/test_helper.tcl").is_file() {
            fs::create_dir_all(&cache)?;
            let archive = fetch(&cache)?;
            // Unpacked beside its place and moved there in one step, so that a half-unpacked tree is never used.
            let unpacked = cache.join(format!("unpacking-{}", std::process::id()));
            fs::create_dir_all(&unpacked)?;
            run_program(Command::new("tar").arg("xzf").arg(&archive).arg("-C").arg(&unpacked))?;
            let inner = unpacked.join(format!("redis-{VERSION}"));
            for program in ["redis-cli", "redis-benchmark"] {
                symlink(find(program)?, inner.join("src").join(program))?;
            }
            if let Err(error) = fs::rename(&inner, &tree) {
                // Another run was faster.
                ensure!(tree.is_dir(), "cannot move {} into place: {error}", tree.display());
            }
            fs::remove_dir_all(&unpacked)?;
        }
        Ok(Self { tree })
    }

    /// The files of the suite that are about one server, as it lists them itself.
    fn files(&self) -> Result<Vec<String>> {
        let text = fs::read_to_string(self.tree.join("tests/test_helper.tcl"))?;
        let list = text.split_once("set ::all_tests {").and_then(|(_, rest)| rest.split_once('}'));
        let (list, _) = list.context("the suite lists its files")?;
        Ok(list.split_whitespace().filter(|file| file.starts_with("unit/")).map(str::to_owned).collect())
    }

    /// Runs one file in a process of its own, in a working copy of its own: two runs in one tree disturb each other.
    fn run_file(&self, file: &str, tags: &str, filter: Filter<'_>, server: &Server) -> Result<Ran> {
        let copy = Scratch::new("suite")?;
        run_program(Command::new("cp").arg("-r").arg(self.tree.join("tests")).arg(&copy.path))?;
        for folder in ["src", "utils"] {
            symlink(self.tree.join(folder), copy.path.join(folder))?;
        }
        fs::create_dir_all(copy.path.join("tests/tmp"))?;
        let script = copy.path.join("run.tcl");
        fs::write(&script, START)?;
        let port = server.port.to_string();
        let mut command = Command::new("tclsh");
        command.arg(&script).args(["--host", "127.0.0.1", "--port", &port, "--single", file, "--durable"]);
        // It listens a little below this port for its own client; another run on this machine must not have it.
        let own_port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().max(2_000);
        command.args(["--baseport", &own_port.to_string()]);
        if !tags.is_empty() {
            command.args(["--tags", tags]);
        }
        let (option, names) = match filter {
            Filter::Skip(names) => ("--skiptest", names),
            Filter::Only(names) => ("--only", names),
        };
        for name in names {
            command.args([option, name]);
        }
        command.current_dir(&copy.path).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let started = Instant::now();
        let mut family = Family::spawn(&mut command)?;
        let lines = follow(family.child().stdout.take().context("the suite's output is a pipe")?);
        let mut text = String::new();
        let abort = loop {
            let patience = SILENCE_LIMIT.min(FILE_LIMIT.saturating_sub(started.elapsed()));
            match lines.recv_timeout(patience) {
                Ok(line) => writeln!(text, "{line}")?,
                Err(RecvTimeoutError::Disconnected) => break None,
                Err(RecvTimeoutError::Timeout) if started.elapsed() >= FILE_LIMIT => {
                    break Some(format!("ended after {} s", FILE_LIMIT.as_secs()));
                }
                Err(RecvTimeoutError::Timeout) => break Some(format!("silent for {} s", SILENCE_LIMIT.as_secs())),
            }
        };
        drop(family);
        let stories = crate::cache().join("tcl/output");
        fs::create_dir_all(&stories)?;
        fs::write(stories.join(format!("{}-{}.txt", server.kind, file.replace('/', "-"))), &text)?;
        Ok(Ran { abort, seconds: started.elapsed().as_secs(), ..Ran::parse(&text) })
    }
}

enum Filter<'a> {
    Skip(&'a [String]),
    Only(&'a [String]),
}

/// Downloads the source package with the machine's own package sources, written once more for sources instead of
/// binaries into a list of our own. The machine's lists stay as they are, so this needs no root.
fn fetch(cache: &Path) -> Result<PathBuf> {
    eprintln!("fetching the source package redis {VERSION} from the machine's package sources");
    let scratch = Scratch::new("apt")?;
    for folder in ["parts", "lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(scratch.path.join(folder))?;
    }
    let mut found = 0;
    let parts = Path::new("/etc/apt/sources.list.d");
    for entry in fs::read_dir(parts).with_context(|| format!("cannot read {}", parts.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "sources") {
            let text = fs::read_to_string(&path)?;
            if !text.lines().any(|line| line.trim() == "Types: deb" || line.starts_with("Types: deb ")) {
                continue;
            }
            let stanza: String = text
                .lines()
                .map(|line| if line.starts_with("Types:") { "Types: deb-src\n".into() } else { format!("{line}\n") })
                .collect();
            let name = path.file_name().context("a source list has a name")?;
            fs::write(scratch.path.join("parts").join(name), stanza)?;
            found += 1;
        }
    }
    let one_line = fs::read_to_string("/etc/apt/sources.list").unwrap_or_default();
    let stanza: String =
        one_line.lines().filter_map(|line| line.strip_prefix("deb ")).map(|rest| format!("deb-src {rest}\n")).collect();
    if !stanza.is_empty() {
        fs::write(scratch.path.join("parts/one-line.list"), stanza)?;
        found += 1;
    }
    ensure!(found > 0, "no package sources found under /etc/apt: the Tcl suite comes from Debian's source package");
    let apt = || {
        let mut command = Command::new("apt-get");
        command.current_dir(cache).stdin(Stdio::null()).arg("-qq");
        let place = |name: &str| scratch.path.join(name).display().to_string();
        for (option, value) in [
            ("Dir::Etc::SourceList", "/dev/null".into()),
            ("Dir::Etc::SourceParts", place("parts")),
            ("Dir::State::Lists", place("lists")),
            ("Dir::Cache", place("cache")),
            ("APT::Sandbox::User", "root".into()),
        ] {
            command.arg("-o").arg(format!("{option}={value}"));
        }
        command
    };
    run_program(apt().arg("update"))?;
    run_program(apt().args(["source", "--download-only", "redis"]))?;
    let archive = cache.join(format!("redis_{VERSION}.orig.tar.gz"));
    ensure!(
        archive.is_file(),
        "the package sources hold another version of redis than {VERSION}; put redis_{VERSION}.orig.tar.gz into {}",
        cache.display()
    );
    Ok(archive)
}

fn find(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").context("PATH is not set")?;
    let found = std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file());
    found.with_context(|| format!("{program} is not on the path"))
}

/// Lines of a stream as they come, without colours.
fn follow(stream: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            if sender.send(without_colours(String::from_utf8_lossy(&line).trim_end_matches('\n'))).is_err() {
                return;
            }
            line.clear();
        }
    });
    receiver
}

fn without_colours(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        match after.split_once('m') {
            Some((code, text)) if code.bytes().all(|byte| byte.is_ascii_digit() || byte == b';') => rest = text,
            _ => rest = after,
        }
    }
    plain.push_str(rest);
    plain
}

/// What a run of one file printed, sorted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ran {
    passed: Vec<String>,
    /// Name and message.
    failed: Vec<(String, String)>,
    skipped: Vec<String>,
    abort: Option<String>,
    /// What is known of a server that died meanwhile.
    death: Option<String>,
    seconds: u64,
}

/// Name given to what goes wrong between tests, for example in a file's preparation.
const OUTSIDE: &str = "(outside any test)";

impl Ran {
    fn parse(text: &str) -> Self {
        let mut ran = Self::default();
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            if let Some(rest) = line.strip_prefix("[ok]: ") {
                let name = rest.rsplit_once(" (").map_or(rest, |(name, _)| name);
                ran.passed.push(name.to_owned());
            } else if let Some(name) = line.strip_prefix("[skip]: ") {
                ran.skipped.push(name.to_owned());
            } else if let Some(rest) = line.strip_prefix("[err]: ") {
                let mut message = String::new();
                let name = match rest.rsplit_once(" in tests/") {
                    Some((name, file)) if file.ends_with(".tcl") => name,
                    _ => {
                        message.push_str(rest);
                        OUTSIDE
                    }
                };
                while let Some(more) = lines.next_if(|line| !starts_status(line)) {
                    message.push_str(if message.is_empty() { "" } else { "\n" });
                    message.push_str(more);
                }
                ran.failed.push((name.to_owned(), message));
            } else if let Some(rest) = line.strip_prefix("[exception]: ") {
                ran.failed.push((OUTSIDE.to_owned(), rest.to_owned()));
            }
        }
        ran
    }
}

impl Ran {
    /// Takes in a second run of the file, of those tests alone that the first run skipped for it.
    fn add(&mut self, second: Self, apart: &[String]) {
        self.skipped.retain(|name| !apart.contains(name));
        self.passed.extend(second.passed);
        self.failed.extend(second.failed);
        self.abort = self.abort.take().or(second.abort);
        self.seconds += second.seconds;
    }
}

fn starts_status(line: &str) -> bool {
    ["[ok]", "[err]", "[skip]", "[ignore]", "[exception]", "[TIMEOUT]"].iter().any(|word| line.starts_with(word))
        || line.starts_with("[1/1 ")
        || line.is_empty()
}

/// A file's outcome, held against what the reference ran.
struct Outcome {
    file: &'static str,
    passed: usize,
    /// Name and message; a test that never ran is one of them.
    failures: Vec<(String, String)>,
    skipped: usize,
    seconds: u64,
    notes: Vec<String>,
}

impl Outcome {
    fn judge(file: &'static str, ran: Ran, expected: &[String], skips: &[String]) -> Self {
        // Some names occur twice in a file, so they are counted.
        let mut open: BTreeMap<&str, usize> = BTreeMap::new();
        for name in expected.iter().filter(|name| !skips.contains(name)) {
            *open.entry(name).or_default() += 1;
        }
        for name in ran.passed.iter().chain(ran.failed.iter().map(|(name, _)| name)) {
            if let Some(count) = open.get_mut(name.as_str()) {
                *count = count.saturating_sub(1);
            }
        }
        let mut failures = ran.failed;
        for (name, count) in open {
            for _ in 0..count {
                failures.push((name.to_owned(), "did not run".to_owned()));
            }
        }
        let notes = ran.abort.into_iter().chain(ran.death).collect();
        let skipped = ran.skipped.len();
        Self { file, passed: ran.passed.len(), failures, skipped, seconds: ran.seconds, notes }
    }
}

fn report(results: &[Outcome]) -> Result<()> {
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for result in results.iter().filter(|result| !result.failures.is_empty()) {
        println!("\n{}", result.file);
        for (name, message) in &result.failures {
            let shown: Vec<&str> = message.lines().take(6).collect();
            println!("  FAILED {name}\n         {}", shown.join("\n         "));
        }
    }
    println!("\n{:<18} {:>7} {:>7} {:>8} {:>8}", "file", "passed", "failed", "left out", "seconds");
    for result in results {
        let (file, failures) = (result.file, result.failures.len());
        let notes = result.notes.join("; ");
        println!("{file:<18} {:>7} {failures:>7} {:>8} {:>8}  {notes}", result.passed, result.skipped, result.seconds);
        passed += result.passed;
        failed += failures + usize::from(failures == 0 && !result.notes.is_empty());
        skipped += result.skipped;
    }
    println!("\n{passed} passed, {failed} failed, {skipped} skipped");
    std::io::stdout().flush()?;
    ensure!(failed == 0, "{failed} tests of the Tcl suite failed or did not run");
    ensure!(passed > 0, "no test of the Tcl suite ran");
    Ok(())
}

/// Runs what is left out, and names what passes by now.
fn audit(suite: &Suite, options: &Options, list: &LeftOutList, binary: Option<&Path>) -> Result<()> {
    let subject = options.subject(binary)?;
    let mut passing = Vec::new();
    for file in &options.files {
        let names = list.names(file, options.nodes);
        if names.is_empty() {
            continue;
        }
        let server = Server::start(&subject)?;
        let ran = suite.run_file(file, &list.tags(), Filter::Only(&names), &server)?;
        println!("{file}: {} left out, {} of them pass", names.len(), ran.passed.len());
        passing.extend(ran.passed.into_iter().map(|name| format!("{file}: {name}")));
    }
    ensure!(passing.is_empty(), "left out although they pass by now:\n  {}", passing.join("\n  "));
    Ok(())
}

/// `tests/tcl/left-out.toml`.
struct LeftOutList {
    tests: Vec<LeftOut>,
    /// Not left out, but run by themselves, since tests before them on which they rely are left out.
    apart: Vec<LeftOut>,
    /// Files of which no test can be run against a server that is already up.
    files: Vec<String>,
    /// Tags of the suite: tests with one of them are not run at all.
    tags: Vec<String>,
}

struct LeftOut {
    file: String,
    name: String,
    /// Left out only where there are so many nodes.
    nodes: u16,
}

impl LeftOutList {
    fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{}", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let table: toml::Table = text.parse()?;
        let entries = |kind: &str| -> Result<Vec<toml::Table>> {
            let array = table.get(kind).and_then(toml::Value::as_array).cloned().unwrap_or_default();
            array.into_iter().map(|value| value.try_into().context("an entry is a table")).collect()
        };
        let field = |entry: &toml::Table, name: &str| -> Result<String> {
            let text = entry.get(name).and_then(toml::Value::as_str).unwrap_or_default().trim();
            ensure!(!text.is_empty(), "an entry lacks '{name}': {entry:?}");
            Ok(text.to_owned())
        };
        let mut list = Self { tests: Vec::new(), apart: Vec::new(), files: Vec::new(), tags: Vec::new() };
        for entry in entries("file")? {
            let (name, reason) = (field(&entry, "name")?, field(&entry, "reason")?);
            ensure!(reason.split_whitespace().count() >= 3, "'{reason}' is no reason to leave out '{name}'");
            list.files.push(name);
        }
        for entry in entries("tag")? {
            field(&entry, "reason")?;
            list.tags.push(field(&entry, "name")?);
        }
        for (kind, tests) in [("test", &mut list.tests), ("apart", &mut list.apart)] {
            for entry in entries(kind)? {
                let nodes = match entry.get("nodes").map(toml::Value::as_integer) {
                    None => 1,
                    Some(nodes) => nodes.and_then(|nodes| u16::try_from(nodes).ok()).context("'nodes' is a number")?,
                };
                let left_out = LeftOut { file: field(&entry, "file")?, name: field(&entry, "name")?, nodes };
                let (name, reason) = (&left_out.name, field(&entry, "reason")?);
                ensure!(reason.split_whitespace().count() >= 3, "'{reason}' is no reason to leave out '{name}'");
                // The suite would read it as a pattern.
                ensure!(!name.starts_with('/'), "'{name}' begins with a slash");
                tests.push(left_out);
            }
        }
        Ok(list)
    }

    fn names(&self, file: &str, nodes: u16) -> Vec<String> {
        let is_meant = |test: &&LeftOut| test.file == file && test.nodes <= nodes;
        self.tests.iter().filter(is_meant).map(|test| test.name.clone()).collect()
    }

    fn apart(&self, file: &str) -> Vec<String> {
        self.apart.iter().filter(|test| test.file == file).map(|test| test.name.clone()).collect()
    }

    fn tags(&self) -> String {
        self.tags.iter().map(|tag| format!("-{tag}")).collect::<Vec<_>>().join(" ")
    }

    /// Every file of the suite is either run or left out, with a reason.
    fn check_files(&self, suite: &Suite) -> Result<()> {
        let there = suite.files()?;
        for file in &there {
            match (FILES.contains(&file.as_str()), self.files.contains(file)) {
                (true, false) | (false, true) => {}
                (true, true) => bail!("left-out list: {file} is run"),
                (false, false) => bail!("{file} is neither run nor left out"),
            }
        }
        for file in FILES.iter().copied().chain(self.files.iter().map(String::as_str)) {
            ensure!(there.iter().any(|other| other == file), "the suite has no file '{file}'");
        }
        Ok(())
    }

    /// Every entry names a test that there is.
    fn check(&self, reference: &Reference, files: &[&str]) -> Result<()> {
        for test in self.tests.iter().chain(&self.apart) {
            ensure!(FILES.contains(&test.file.as_str()), "left-out list: no file '{}'", test.file);
            if files.contains(&test.file.as_str()) {
                let exists = reference.tests(&test.file).contains(&test.name);
                ensure!(exists, "left-out list: {} has no test '{}' (any more)", test.file, test.name);
            }
        }
        Ok(())
    }
}

/// Which tests a stock server runs, and passes, under the same tags.
struct Reference {
    tests: BTreeMap<String, Vec<String>>,
}

impl Reference {
    fn provide(suite: &Suite, files: &[&str], list: &LeftOutList) -> Result<Self> {
        let mut server = None;
        let mut tests = BTreeMap::new();
        for file in files {
            let path = Self::path(list, file)?;
            if !path.is_file() {
                if server.is_none() {
                    eprintln!("learning from a stock redis-server which tests there are");
                    server = Some(Server::start(&Subject::Redis)?);
                }
                let server = server.as_mut().context("just started")?;
                server.prepare()?;
                let ran = suite.run_file(file, &list.tags(), Filter::Skip(&[]), server)?;
                ensure!(
                    ran.abort.is_none() && ran.failed.is_empty() && !ran.passed.is_empty(),
                    "the stock redis-server does not pass {file}, so the suite cannot judge: {ran:?}"
                );
                fs::write(&path, ran.passed.join("\n"))?;
            }
            tests.insert((*file).to_owned(), fs::read_to_string(&path)?.lines().map(str::to_owned).collect());
        }
        Ok(Self { tests })
    }

    /// Of files that are left out a stock server runs no test either.
    fn check_empty(&self, suite: &Suite, list: &LeftOutList) -> Result<()> {
        let mut server = None;
        for file in &list.files {
            let path = Self::path(list, file)?;
            if !path.is_file() {
                let server = server.get_or_insert(Server::start(&Subject::Redis)?);
                server.prepare()?;
                let ran = suite.run_file(file, &list.tags(), Filter::Skip(&[]), server)?;
                ensure!(
                    ran.abort.is_none() && ran.failed.is_empty(),
                    "{file} fails against a stock redis-server: {ran:?}"
                );
                fs::write(&path, ran.passed.join("\n"))?;
            }
            let ran = fs::read_to_string(&path)?;
            ensure!(ran.is_empty(), "left-out list: {file} has tests that can be run: {ran}");
        }
        Ok(())
    }

    /// Where the names of a file's tests are kept.
    fn path(list: &LeftOutList, file: &str) -> Result<PathBuf> {
        let folder = crate::cache().join("tcl/reference").join(list.tags().replace([' ', ':'], "_"));
        fs::create_dir_all(&folder)?;
        Ok(folder.join(format!("{}.txt", file.replace('/', "-"))))
    }

    fn tests(&self, file: &str) -> &[String] {
        self.tests.get(file).map_or(&[], Vec::as_slice)
    }
}

#[derive(Clone)]
enum Subject {
    Holdfast { binary: PathBuf, nodes: u16 },
    Redis,
}

impl Subject {
    /// The command that starts it, listening on a port. Every node but the first joins the one at a cluster port; that
    /// node's folder lets it in.
    fn command(&self, folder: &Path, port: u16, joins: Option<(u16, &Path)>) -> Result<Command> {
        let mut command;
        match self {
            Self::Holdfast { binary, nodes } => {
                command = Command::new(binary);
                command.arg("serve").arg("--data-dir").arg(folder.join("data"));
                // Writes of a node alone do not wait for the disk, as with a Redis, and those of a cluster do: so both
                // ways are gone.
                if *nodes == 1 {
                    command.args(["--appendfsync", "everysec"]);
                } else {
                    command.args(["--cluster-port", &(port + CLUSTER_PORT_OFFSET).to_string()]);
                    command.args(["--replicas", &nodes.to_string()]);
                }
                if let Some((first, first_folder)) = joins {
                    let mut invite = Command::new(binary);
                    invite.args(["cluster", "invite", "--data-dir"]).arg(first_folder.join("data"));
                    let token = invite.output()?;
                    ensure!(token.status.success(), "no token: {}", String::from_utf8_lossy(&token.stderr));
                    command.args(["--join", &format!("127.0.0.1:{first}")]);
                    command.env("HOLDFAST_TOKEN", String::from_utf8_lossy(&token.stdout).trim());
                }
            }
            Self::Redis => {
                command = Command::new("redis-server");
                command.args(["--save", "", "--dir"]).arg(folder);
            }
        }
        command.args(["--port", &port.to_string(), "--enable-debug-command", "yes"]);
        let log = File::create(folder.join("server.log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(command)
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Holdfast { nodes: 1, .. } => "holdfast",
            Self::Holdfast { .. } => "cluster",
            Self::Redis => "redis",
        }
    }
}

/// A node's cluster port, from its port.
const CLUSTER_PORT_OFFSET: u16 = 10_000;

/// A port that is free, and so is the cluster port that belongs to it.
fn free_port() -> Result<u16> {
    for _ in 0..1_000 {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        if let Some(other) = port.checked_add(CLUSTER_PORT_OFFSET)
            && TcpListener::bind(("127.0.0.1", other)).is_ok()
        {
            return Ok(port);
        }
        // Ephemeral ports are high: look lower down.
        let port = 10_000 + port % 20_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok()
            && TcpListener::bind(("127.0.0.1", port + CLUSTER_PORT_OFFSET)).is_ok()
        {
            return Ok(port);
        }
    }
    bail!("no free ports")
}

/// A server under test, ended when dropped.
struct Server {
    subject: Subject,
    kind: &'static str,
    family: Family,
    port: u16,
    /// The other nodes of a cluster.
    others: Vec<(Family, Scratch)>,
    configuration: BTreeMap<String, String>,
    scratch: Scratch,
}

impl Server {
    fn start(subject: &Subject) -> Result<Self> {
        let scratch = Scratch::new("server")?;
        let port = free_port()?;
        let family = Family::spawn(&mut subject.command(&scratch.path, port, None)?)?;
        let (subject, kind) = (subject.clone(), subject.kind());
        let mut server =
            Self { subject, kind, family, port, others: Vec::new(), configuration: BTreeMap::new(), scratch };
        let started = Instant::now();
        while !server.answers() {
            if let Some(death) = server.death() {
                bail!("{death}");
            }
            ensure!(
                started.elapsed() < START_LIMIT,
                "no answer after {} s{}",
                START_LIMIT.as_secs(),
                server.last_words()
            );
            thread::sleep(Duration::from_millis(20));
        }
        server.add_nodes()?;
        server.configuration = server.read_configuration()?;
        Ok(server)
    }

    /// Starts the other nodes of a cluster, and waits until all of them vote in every group.
    fn add_nodes(&mut self) -> Result<()> {
        let nodes = match self.subject {
            Subject::Holdfast { nodes, .. } if nodes > 1 => nodes,
            _ => return Ok(()),
        };
        for _ in 1..nodes {
            let scratch = Scratch::new("node")?;
            let joins = Some((self.port + CLUSTER_PORT_OFFSET, &self.scratch.path as &Path));
            let mut command = self.subject.command(&scratch.path, free_port()?, joins)?;
            self.others.push((Family::spawn(&mut command)?, scratch));
        }
        let started = Instant::now();
        loop {
            let told = self.cli(&["info", "cluster"])?;
            let groups: Vec<&str> = told.lines().filter(|line| line.starts_with("cluster_group")).collect();
            let is_whole = |line: &&str| {
                let voters = line.split(',').find_map(|field| field.strip_prefix("voters="));
                voters.is_some_and(|voters| voters.split('|').count() == usize::from(nodes))
            };
            let count = told.lines().find_map(|line| line.strip_prefix("cluster_groups:"));
            let count = count.and_then(|count| count.trim().parse::<usize>().ok());
            // The line of their number begins like theirs.
            if groups.iter().filter(|line| is_whole(line)).count() >= count.unwrap_or(usize::MAX) {
                return Ok(());
            }
            ensure!(started.elapsed() < START_LIMIT * 2, "not all nodes vote: {told}");
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn answers(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        let mut reply = [0; 2];
        stream.set_read_timeout(Some(Duration::from_secs(1))).is_ok()
            && stream.write_all(b"DBSIZE\r\n").is_ok()
            && stream.read_exact(&mut reply).is_ok()
            && &reply == b":0"
    }

    /// Puts every parameter back to what it was at the start, since one left astray sinks hundreds of later tests. A
    /// server that is gone or locked up is replaced.
    fn prepare(&mut self) -> Result<()> {
        if self.death().is_some() || self.restore_configuration().and_then(|()| self.empty()).is_err() {
            *self = Self::start(&self.subject.clone())?;
        }
        Ok(())
    }

    /// Removes what the file before has left, and waits until its memory has been given back.
    fn empty(&self) -> Result<()> {
        self.cli(&["flushall"])?;
        let started = Instant::now();
        while !self.cli(&["info", "memory"])?.lines().any(|line| line.trim() == "lazyfree_pending_objects:0") {
            ensure!(started.elapsed() < START_LIMIT, "memory is not given back");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn restore_configuration(&self) -> Result<()> {
        for (name, value) in self.read_configuration()? {
            if let Some(original) = self.configuration.get(&name).filter(|original| **original != value) {
                let reply = self.cli(&["config", "set", &name, original])?;
                ensure!(reply.trim() == "OK", "cannot restore {name}: {reply}");
            }
        }
        Ok(())
    }

    fn read_configuration(&self) -> Result<BTreeMap<String, String>> {
        let text = self.cli(&["config", "get", "*"])?;
        let mut lines = text.lines();
        let mut parameters = BTreeMap::new();
        while let (Some(name), Some(value)) = (lines.next(), lines.next()) {
            parameters.insert(name.to_owned(), value.to_owned());
        }
        ensure!(parameters.contains_key("maxmemory"), "CONFIG GET * does not answer as expected: {text}");
        Ok(parameters)
    }

    fn cli(&self, words: &[&str]) -> Result<String> {
        output(Command::new("redis-cli").args(["-p", &self.port.to_string(), "--raw"]).args(words).stdin(Stdio::null()))
    }

    fn death(&mut self) -> Option<String> {
        let status = self.family.child().try_wait().ok()??;
        Some(format!("the server died ({status}){}", self.last_words()))
    }

    /// Ends the server as an operator would; one that does not end, or not with 0, is a failure of its own.
    fn stop(mut self) -> Result<()> {
        run_program(Command::new("kill").args(["-TERM", &self.family.child().id().to_string()]))?;
        let asked = Instant::now();
        while asked.elapsed() < START_LIMIT {
            if let Some(status) = self.family.child().try_wait()? {
                ensure!(status.success(), "the server ended with {status} on SIGTERM{}", self.last_words());
                return Ok(());
            }
            thread::sleep(Duration::from_millis(20));
        }
        bail!("the server was still there {} s after SIGTERM{}", START_LIMIT.as_secs(), self.last_words())
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(self.scratch.path.join("server.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(15)..].join("\n  ");
        if tail.is_empty() { String::new() } else { format!("; its last words:\n  {tail}") }
    }
}

/// A temporary folder, removed when dropped.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new(purpose: &str) -> Result<Self> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("holdfast-xtask-{purpose}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path)?;
        Ok(Self { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_story_of_the_suite_is_sorted_into_passed_failed_and_skipped() {
        let story = "\u{1b}[1;37;49mTesting unit/x\u{1b}[0m\n\
            [\u{1b}[0;32;49mok\u{1b}[0m]: SET and GET (an item) (12 ms)\n\
            [\u{1b}[0;36;49mignore\u{1b}[0m]: Tag: slow denied\n\
            [\u{1b}[0;31;49merr\u{1b}[0m]: GETEX in tests/unit/x.tcl\nExpected '1' to be '2'\nin more words\n\
            [\u{1b}[0;33;49mskip\u{1b}[0m]: LCS\n\
            [\u{1b}[0;31;49merr\u{1b}[0m]: cannot connect\n\
            [1/1 \u{1b}[0;33;49mdone\u{1b}[0m]: unit/x (1 seconds)\n";
        let plain: Vec<String> = story.lines().map(without_colours).collect();
        let ran = Ran::parse(&plain.join("\n"));
        assert_eq!(ran.passed, names(&["SET and GET (an item)"]));
        assert_eq!(ran.skipped, names(&["LCS"]));
        let failed = [("GETEX", "Expected '1' to be '2'\nin more words"), (OUTSIDE, "cannot connect")];
        assert_eq!(ran.failed, failed.map(|(name, message)| (name.to_owned(), message.to_owned())));
    }

    #[test]
    fn a_test_that_neither_ran_nor_is_left_out_has_failed() {
        let ran = Ran { passed: names(&["a", "a"]), skipped: names(&["b"]), ..Ran::default() };
        let expected = names(&["a", "a", "b", "c", "a"]);
        let result = Outcome::judge("unit/quit", ran, &expected, &names(&["b"]));
        let failures: Vec<&str> = result.failures.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!((result.passed, result.skipped, failures), (2, 1, vec!["a", "c"]));
    }

    #[test]
    fn the_list_of_left_out_tests_can_be_read_and_gives_reasons() {
        let list = LeftOutList::read(&root().join("tests/tcl/left-out.toml")).expect("the list in the repository");
        assert!(list.tests.iter().all(|test| FILES.contains(&test.file.as_str())));
        let entry = "file = \"unit/quit\"\nname = \"a\"\nreason = \"only on several nodes\"\n";
        let list = LeftOutList::parse(&format!("[[test]]\nnodes = 3\n{entry}")).expect("it has a reason");
        assert_eq!([1, 3].map(|nodes| list.names("unit/quit", nodes).len()), [0, 1]);
        let lazy = "[[test]]\nfile = \"unit/quit\"\nname = \"QUIT returns OK\"\nreason = \"fails\"\n";
        assert!(LeftOutList::parse(lazy).is_err());
    }
}

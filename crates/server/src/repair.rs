//! `holdfast repair`: a node of a cluster that has damaged files goes on with nothing, and is given everything again.
//!
//! Damage is named, with file and offset. What is there is set aside and kept. The node keeps its number and its
//! certificates, and has in each group what one has that never was given anything, but for the memory that it had lost
//! something: it has no say before it holds all again that was committed meanwhile. See
//! `docs/decisions/0038-repair-from-the-others.md`.

mod others;

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use edge::recovery::{self, Successor};
use edge::{DirectoryLock, RealDisk};
use journal::{Append, CheckpointMark, CheckpointReader, Fault, Identity, Journal};
use stdx::log::{HardState, Membership};

use crate::backup::{Pace, counted};
use crate::cluster::door::Door;
use others::{Others, Standing};

/// Replace damaged files of one node of a cluster with the data of the other nodes.
///
/// Asks another node of the cluster, at its port for clients, whether the others have everything. The damaged files are
/// set aside and kept. Then start the node as before: it gets its data from the others. No server may use the
/// directory.
#[derive(clap::Args, Clone, Debug)]
pub struct RepairArguments {
    /// The data directory of the damaged node
    #[arg(long, value_name = "DIRECTORY", default_value = "holdfast-data")]
    data_dir: PathBuf,
    /// Only report what is damaged, and whether the others have everything
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    door: Door,
    /// Show no progress
    #[arg(long)]
    quiet: bool,
}

/// Runs `holdfast repair`.
///
/// # Errors
/// What an operator must know.
pub fn run(arguments: &RepairArguments) -> Result<()> {
    let directory = &arguments.data_dir;
    let mut pace = Pace::new(arguments.quiet);
    let found = Found::look(directory, &mut pace)?;
    pace.end();
    say!("{}", found.page());
    if found.damages.is_empty() {
        say_line!("Nothing has been changed. Start the node as it is.");
        return Ok(());
    }
    let identity = &found.identity;
    let asked = pace.during("asks the others for what they hold", || Others::ask(&arguments.door, identity));
    let others = asked.map_err(|error| {
        anyhow!(
            "{error:#}: nothing has been changed. With too many nodes lost, holdfast recover goes on with one that is \
             whole; a single server goes on from a backup (holdfast restore)"
        )
    })?;
    say_line!("The other nodes hold all of {}.", counted(others.group_count(), "group"));
    if arguments.check {
        say_line!(
            "Nothing has been changed. Without --check, node {} begins with nothing, and is filled.",
            identity.node
        );
        return Ok(());
    }
    let successor = Successor::begin_repair(directory, &found.lock).map_err(|fault| anyhow!("{fault}"))?;
    let new = recovery::repaired_identity(identity).map_err(|fault| anyhow!("{fault}"))?;
    if let Err(error) = write(&new, &others, successor.path()) {
        successor.abandon();
        return Err(error);
    }
    let aside = successor.install_repaired(&others.contacts, &found.lock).map_err(|fault| anyhow!("{fault}"))?;
    say_line!(
        "Repaired: {} holds nothing but the name of node {}. What was there before is in {}; remove it when you are sure.",
        directory.display(),
        identity.node,
        aside.display()
    );
    say_line!("Start the node as before. `holdfast cluster status` shows how far the others have filled it.");
    Ok(())
}

/// A damaged file.
#[derive(Debug)]
struct Damage {
    what: String,
    /// The group, if the file is of one; a file of the log is of all.
    group: Option<u32>,
}

/// A directory that nobody uses, and what is damaged in it.
struct Found {
    directory: PathBuf,
    lock: DirectoryLock,
    identity: Identity,
    damages: Vec<Damage>,
}

impl Found {
    fn look(directory: &Path, pace: &mut Pace) -> Result<Self> {
        let shown = directory.display();
        ensure!(
            directory.join(journal::IDENTITY_FILE).exists() || recovery::is_incomplete(directory),
            "{shown} does not say which node it belongs to: it holds no file '{}'. A node that has lost even that is \
             removed (holdfast cluster remove), and another one joins with an empty directory",
            journal::IDENTITY_FILE
        );
        let lock = DirectoryLock::acquire(directory).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => anyhow!("{shown} is in use by a server: stop that one first"),
            _ => anyhow!("cannot lock {shown}: {error}"),
        })?;
        if let Some(aside) = recovery::complete(directory, &lock).map_err(|fault| anyhow!("{fault}"))? {
            say_line!("What had been begun in {shown} is complete now. The old files are in {}.", aside.display());
        }
        let bytes = std::fs::read(directory.join(journal::IDENTITY_FILE))
            .with_context(|| format!("cannot read {shown}/{}", journal::IDENTITY_FILE))?;
        let identity = Identity::decode(&bytes).map_err(|fault| {
            anyhow!(
                "data directory {shown}: {fault}. A node that does not know who it is is removed (holdfast cluster \
                 remove), and another one joins with an empty directory"
            )
        })?;
        let disk = RealDisk::open_directory_to_read(directory).with_context(|| format!("cannot open {shown}"))?;
        let damages = damages(&disk, &identity, pace).map_err(|fault| anyhow!("data directory {shown}: {fault}"))?;
        Ok(Self { directory: directory.to_owned(), lock, identity, damages })
    }

    fn page(&self) -> String {
        let shown = self.directory.display();
        let mut page = format!("{shown}: node {} of cluster {:032x}\n", self.identity.node, self.identity.cluster);
        if self.damages.is_empty() {
            page.push_str("No file is damaged: the log and every checkpoint verify.\n");
        }
        for damage in &self.damages {
            let whose = match damage.group {
                Some(group) => format!("group {group}"),
                None => "all groups".to_owned(),
            };
            let _ = writeln!(page, "DAMAGED, {whose}: {}", damage.what);
        }
        page
    }
}

/// Reads everything that a start would read. Damage is an answer; what else keeps a directory from being read is not.
fn damages(disk: &RealDisk, identity: &Identity, pace: &mut Pace) -> Result<Vec<Damage>, Fault> {
    // What is lost of the end of a log alone is made good without a repair: the node asks the others.
    let options = journal::Options { has_peers: |_, _| true, ..journal::Options::new(*identity) };
    let recovered = match pace.during("reads the log", || Journal::look(disk, &options)) {
        Ok(recovered) => recovered,
        Err(fault) => return Ok(vec![Damage { what: described(fault)?, group: None }]),
    };
    let mut found = Vec::new();
    for (group, of_log) in &recovered.groups {
        let Some(mark) = &of_log.checkpoint else { continue };
        if let Err(fault) = read_checkpoint(disk, identity, *group, mark, pace) {
            found.push(Damage { what: described(fault)?, group: Some(*group) });
        }
    }
    Ok(found)
}

fn read_checkpoint(
    disk: &RealDisk,
    identity: &Identity,
    group: u32,
    mark: &CheckpointMark,
    pace: &mut Pace,
) -> Result<(), Fault> {
    let mut reader = CheckpointReader::open(disk.clone(), identity, group, mark)?;
    while reader.next()?.is_some() {
        let (done, total) = reader.progress();
        pace.show(|| format!("reads group {group}: {} of {} MB", done / 1_000_000, total / 1_000_000));
    }
    Ok(())
}

/// What is wrong with a file, if the file is what is wrong.
fn described(fault: Fault) -> Result<String, Fault> {
    match &fault {
        Fault::Damaged { .. } | Fault::Missing { .. } => Ok(fault.to_string()),
        // A sector that cannot be read is damage, too.
        Fault::Io { error, .. } if error.raw_os_error() == Some(EIO) => Ok(fault.to_string()),
        _ => Err(fault),
    }
}

/// The system's number for an error of the device.
const EIO: i32 = 5;

/// Writes the directory of a node that has lost everything, and knows it.
fn write(identity: &Identity, others: &Others, path: &Path) -> Result<()> {
    let told = |fault: Fault| anyhow!("{}: {fault}", path.display());
    let disk = RealDisk::open_directory(path).with_context(|| format!("cannot open {}", path.display()))?;
    let (mut journal, _) = Journal::open(disk, &journal::Options::new(*identity)).map_err(told)?;
    let appends: Vec<Append> = others
        .groups
        .iter()
        .map(|(group, standing)| {
            let (hard_state, membership) = match *standing {
                Standing::Member { term, last } => (HardState { term, vote: 0, commit: last.max(1) }, None),
                Standing::Stranger { term } => (HardState { term, vote: 0, commit: 0 }, Some(Membership::default())),
                Standing::Gone => (HardState::default(), Some(Membership::default())),
            };
            Append { group: *group, ticket: 1, hard_state: Some(hard_state), membership, entries: Vec::new() }
        })
        .collect();
    journal.append_durably(&appends).map_err(told)?;
    journal.put_in_question().map_err(told)?;
    if !journal.is_in_question() {
        bail!("{} does not remember that it lacks something", path.display());
    }
    Ok(())
}

//! `holdfast migrate`: follows a Redis or Valkey that runs, until its clients are moved over.
//!
//! ```text
//!   source ── link thread ──▶ spool on disk ── reading thread ──▶ transactions, at most some thousand requests each
//!                │                                                        │
//!                ◀── how far the target has kept it ◀── the record in the target, written by the same transaction
//! ```
//!
//! Suggested order of reading: [`source`], [`spool`], [`target`], [`follow`], then [`check`], [`verify`], [`cutover`].

mod back;
pub mod check;
mod cluster;
mod copy;
mod cutover;
mod filter;
mod follow;
pub mod replica;
pub mod source;
mod spool;
mod target;
mod verify;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use self::check::{Verdict, bytes};
use self::cluster::topology::Survey;
use self::filter::Filter;
use self::source::{Address, SourceTls, ask, info, info_field};
use self::target::{Phase, Record, TargetArguments, read_record};
use self::verify::Side;
use crate::backup::grouped;
use crate::connection::Connection;
use crate::waiting;

/// A server that says nothing for so long is not there.
const PATIENCE: Duration = Duration::from_secs(60);

/// A record that was not written for so long belongs to no running process: one writes it at least each second.
const WRITER_SILENCE: Duration = Duration::from_secs(5);

/// Migrate a running Redis or Valkey without stopping it
#[derive(clap::Args, Clone, Debug)]
pub struct MigrateArguments {
    #[command(subcommand)]
    verb: MigrateVerb,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum MigrateVerb {
    /// Check whether the migration can be done, and what to prepare; changes nothing
    Check(BothArguments),
    /// Copy the source and follow it, until the cut-over or `stop`; continues an interrupted migration
    Start(StartArguments),
    /// Show the phase and the lag of a migration
    Status(StatusArguments),
    /// Compare all keys of both sides, or those that the filter takes
    Verify(VerifyArguments),
    /// Stop writes at the source, wait until the target has everything, and end the migration
    Cutover(CutoverArguments),
    /// Go back after a cut-over: let the old server follow the new one, and cut over to it
    Back(BackArguments),
    /// Cancel a migration: the copied keys stay at the target
    Stop(StatusArguments),
}

/// The source, and how it is reached.
#[derive(clap::Args, Clone, Debug)]
struct SourceArguments {
    /// The source: redis://[USER:PASSWORD@]HOST:PORT, or rediss:// with TLS
    #[arg(long, value_name = "URL")]
    from: String,
    /// Password at the source
    #[arg(long, env = "HOLDFAST_SOURCE_PASSWORD", hide_env_values = true)]
    source_password: Option<String>,
    #[command(flatten)]
    tls: SourceTls,
}

impl SourceArguments {
    fn address(&self) -> Result<Address> {
        Address::parse(&self.from, self.source_password.as_deref(), &self.tls)
    }
}

#[derive(clap::Args, Clone, Debug)]
struct BothArguments {
    #[command(flatten)]
    source: SourceArguments,
    #[command(flatten)]
    target: TargetArguments,
}

#[derive(clap::Args, Clone, Debug)]
struct StartArguments {
    #[command(flatten)]
    both: BothArguments,
    #[command(flatten)]
    filter: Filter,
    /// Directory for what the source has sent and the target has not applied yet
    #[arg(long, value_name = "DIR", default_value = ".")]
    spool_dir: PathBuf,
    /// Limit of this directory in megabytes; while it is full, the source is not read
    #[arg(long, value_name = "MEGABYTES", default_value_t = 8_192, value_parser = clap::value_parser!(u64).range(1..))]
    spool_mb: u64,
    /// Leave out keys of modules, and name them, instead of stopping
    #[arg(long)]
    skip_modules: bool,
    /// Empty the target and copy again, if the source cannot continue its stream or the migration has failed
    #[arg(long)]
    resync: bool,
    /// Print only warnings and results
    #[arg(long, short)]
    quiet: bool,
}

#[derive(clap::Args, Clone, Debug)]
struct VerifyArguments {
    #[command(flatten)]
    both: BothArguments,
    #[command(flatten)]
    filter: Filter,
}

#[derive(clap::Args, Clone, Debug)]
struct StatusArguments {
    #[command(flatten)]
    target: TargetArguments,
}

#[derive(clap::Args, Clone, Debug)]
struct CutoverArguments {
    #[command(flatten)]
    both: BothArguments,
    /// Longest time for which writes at the source may wait, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    pause: u64,
    /// Let the source accept writes again afterwards; these do not reach the target
    #[arg(long)]
    leave_source_open: bool,
}

#[derive(clap::Args, Clone, Debug)]
struct BackArguments {
    #[command(flatten)]
    both: BothArguments,
    /// Only let the old server follow; run the command again without this option to go back
    #[arg(long)]
    prepare: bool,
    /// Address at which the old server reaches the new one [default: that of --server]
    #[arg(long, value_name = "HOST:PORT", requires = "prepare")]
    announce: Option<String>,
    /// Longest time for which both servers may refuse writes, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    pause: u64,
}

/// Runs `holdfast migrate`.
///
/// # Errors
/// What an operator must know.
pub fn run(arguments: &MigrateArguments) -> Result<()> {
    match &arguments.verb {
        MigrateVerb::Check(both) => run_check(both),
        MigrateVerb::Start(start) => run_start(start),
        MigrateVerb::Status(status) => run_status(&status.target),
        MigrateVerb::Verify(verify) => run_verify(&verify.both, &verify.filter),
        MigrateVerb::Cutover(cutover) => {
            let pause = Duration::from_secs(cutover.pause);
            let address = cutover.both.source.address()?;
            cutover::run(&address, &cutover.both.target, pause, cutover.leave_source_open)
        }
        MigrateVerb::Back(arguments) => {
            let address = arguments.both.source.address()?;
            let target = &arguments.both.target;
            if arguments.prepare {
                back::prepare(&address, target, arguments.announce.as_deref())
            } else {
                back::run(&address, target, Duration::from_secs(arguments.pause))
            }
        }
        MigrateVerb::Stop(status) => run_stop(&status.target),
    }
}

fn run_check(both: &BothArguments) -> Result<()> {
    let mut target = both.target.connect()?;
    let address = both.source.address()?;
    let report = waiting::during("examines both sides, and how fast the source changes", || {
        check::check(&address, &mut target, PATIENCE)
    })?;
    for point in &report.points {
        let verdict = match point.verdict {
            Verdict::Fine => "ok",
            Verdict::Note => "note",
            Verdict::Obstacle => "OBSTACLE",
        };
        say_line!("{verdict:<9}{:<11}{}", point.subject, point.text);
    }
    ensure!(report.is_possible(), "the migration cannot begin: remove the obstacles first");
    Ok(())
}

fn run_start(start: &StartArguments) -> Result<()> {
    let spool = &start.spool_dir;
    ensure!(spool.is_dir(), "--spool-dir {}: there is no such directory", spool.display());
    start.filter.check()?;
    let over = Arc::clone(&start.both.target.over);
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&over))?;
        signal_hook::flag::register(signal, Arc::clone(&over))?;
    }
    let plan = follow::Plan {
        address: start.both.source.address()?,
        target: &start.both.target,
        spool_directory: &start.spool_dir,
        spool_bytes_max: start.spool_mb << 20,
        skips_modules: start.skip_modules,
        filter: &start.filter,
        may_empty: start.resync,
        is_quiet: start.quiet,
        over: &over,
        writer: follow::writer_name(),
        tell: &follow::tell_as_tool,
        standing: &follow::Standing::default(),
        look_up: None,
    };
    plan.run()
}

/// How old a record is.
fn age_of(record: &Record) -> Duration {
    Duration::from_millis(u64::try_from(crate::import::now_ms() - record.written_ms).unwrap_or(0))
}

fn run_status(target: &TargetArguments) -> Result<()> {
    let mut connection = target.connect()?;
    let told = info(&mut connection, "replication")?;
    let copy = info_field(&told, follow::COPY_FIELD);
    let Some(record) = read_record(&mut connection)? else {
        if copy.is_some() {
            bail!("the server follows by REPLICAOF, and nothing has been copied yet: see INFO replication there");
        }
        bail!("no migration is under way: none was begun, or it was cut over or stopped");
    };
    let age = age_of(&record);
    let is_running = age < WRITER_SILENCE;
    let phase = match record.phase {
        Phase::Loading => "the copy is being loaded",
        Phase::Following => "the stream is followed",
        Phase::Failed => "failed",
    };
    say_line!("from          {}", record.from);
    say_line!("phase         {phase}");
    if record.streams.is_empty() {
        say_line!("offset        {} ({})", record.offset, record.id);
    }
    say_line!(
        "lag           {} and {} ms when it was written, {:.1} s ago",
        bytes(record.received.saturating_sub(record.offset)),
        record.lag_ms,
        age.as_secs_f64()
    );
    for (number, place) in record.places() {
        let waiting = bytes(place.received.saturating_sub(place.offset));
        say_line!(
            "stream {number:<6} {} at offset {} ({}), lag {waiting} and {} ms, slots {}",
            place.place,
            place.offset,
            place.id,
            place.lag_ms,
            place.slots
        );
    }
    record.filter.text().lines().for_each(|line| say_line!("takes only    {line}"));
    if !record.unsettled.is_empty() {
        say_line!("moving        slots {}: what they hold is from before", record.unsettled);
    }
    if !record.unheard.is_empty() {
        say_line!(
            "unheard       {}: replies were lost between these offsets, `migrate verify` compares",
            record.unheard
        );
    }
    if !record.error.is_empty() {
        say_line!("error         {}", record.error);
    }
    if let Some(copy) = copy {
        say_line!("by            REPLICAOF of the server itself; its copy is {copy}");
        let fault = info_field(&told, "master_link_fault").unwrap_or_default();
        ensure!(copy != "partial", "the copy is not whole, and is not continued: REPLICAOF HOST PORT begins it again");
        ensure!(fault.is_empty(), "it does not follow now: {fault}");
        return Ok(());
    }
    if !record.fault.is_empty() {
        say_line!("fault         {}", record.fault);
    }
    ensure!(record.phase != Phase::Failed, "the migration has failed: `migrate start --resync` begins again");
    ensure!(!is_running || record.fault.is_empty(), "it does not follow now, and goes on by itself when it can");
    ensure!(is_running || record.phase == Phase::Loading, "no process follows the source: `migrate start` continues");
    Ok(())
}

fn run_verify(both: &BothArguments, filter: &Filter) -> Result<()> {
    let begun = Instant::now();
    let address = both.source.address()?;
    let mut source = address.connect(PATIENCE)?;
    let mut target = both.target.connect()?;
    let filter = match read_record(&mut target)? {
        Some(record) if filter.is_all() => record.filter,
        _ => filter.clone(),
    };
    let with_keys = |connection: &mut Connection| -> Result<Vec<u64>> {
        Ok(cutover::counts(connection)?.into_iter().map(|(number, _)| number).collect())
    };
    let mut databases = with_keys(&mut target)?;
    let mut source = if info_field(&info(&mut source, "cluster")?, "cluster_enabled").as_deref() == Some("1") {
        databases = vec![0];
        Side::of_cluster(&address, &Survey::new(&address, []).look()?, PATIENCE)?
    } else {
        databases.extend(with_keys(&mut source)?);
        Side::from(source)
    };
    let mut target = Side::from(target);
    databases.sort_unstable();
    databases.dedup();
    databases.retain(|number| filter.takes_database(*number));
    let mut told = Instant::now();
    let found = verify::compare(&mut source, &mut target, (&databases, &filter), |found| {
        if begun.elapsed() > Duration::from_secs(2) && told.elapsed() > Duration::from_secs(1) {
            told = Instant::now();
            eprintln!("{}", found.progress());
        }
    })?;
    say_line!(
        "{} keys are the same, {} change too often to tell, {} differ ({:.1} s)",
        grouped(found.same),
        grouped(found.changing),
        grouped(found.different),
        begun.elapsed().as_secs_f64()
    );
    found.named.iter().for_each(|line| say_line!("  {line}"));
    if found.by_outline > 0 {
        say_line!(
            "of {} of them only type and deadline were compared, and of vector sets the number of elements",
            grouped(found.by_outline)
        );
    }
    if found.without_deadline > 0 {
        let count = grouped(found.without_deadline);
        say_line!("{count} of them were compared without their deadlines, which one side does not tell");
    }
    ensure!(found.is_whole, "source and target differ so much that the comparison was ended early");
    ensure!(found.different == 0, "source and target differ");
    Ok(())
}

fn run_stop(target: &TargetArguments) -> Result<()> {
    let mut connection = target.connect()?;
    if info_field(&info(&mut connection, "replication")?, follow::COPY_FIELD).is_some() {
        return stop_replicaof(&mut connection);
    }
    let record = read_record(&mut connection)?.context("no migration is under way")?;
    cutover::fence(&mut connection)?;
    cutover::open(&mut connection)?;
    say_line!(
        "{} is no longer followed; what was copied up to offset {} stays, and keys expire again",
        record.from,
        record.offset
    );
    if !record.unsettled.is_empty() {
        say_line!("the slots {} were being moved: what they hold is from before", record.unsettled);
    }
    Ok(())
}

/// Ends what a server follows by REPLICAOF. Only here a copy that is not whole is taken as it is: who says `stop` has
/// read that what has been copied stays.
fn stop_replicaof(connection: &mut Connection) -> Result<()> {
    let told = info(connection, "replication")?;
    let of = |name: &str| info_field(&told, name).unwrap_or_default();
    let from = format!("{}:{}", of("master_host"), of("master_port"));
    let ended = ask(connection, &["REPLICAOF", "NO", "ONE"]);
    match info_field(&info(connection, "replication")?, follow::COPY_FIELD).as_deref() {
        Some("partial") => {
            // It keeps what there is, closed to clients, until it is told that this is enough.
            ask(connection, &["SITE", "WRITER"])?;
            cutover::fence_by_record(connection)?;
            ask(connection, &["REPLICAOF", "NO", "ONE"])?;
            say_line!("{from} is no longer followed; its copy was not whole, and what had been copied stays");
        }
        Some(_) => {
            ended?;
            bail!("the server has begun to follow again");
        }
        None => match ended {
            Err(why) => say_line!("{why:#}"),
            Ok(_) => {
                let offset = of("slave_repl_offset");
                say_line!("{from} is no longer followed; what was copied up to offset {offset} stays");
            }
        },
    }
    Ok(())
}

/// True if the process must end.
fn is_over(over: &AtomicBool) -> bool {
    over.load(Ordering::Relaxed)
}

//! `holdfast site`: how a cluster follows another one, and what ends that.
//!
//! How far the far side is stands in its record, a hash that its own follower writes with the data. Promoting it is a
//! change of that record: anyone who followed finds out with its next transaction, which does nothing.

mod drill;
mod tail;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use resp::Frame;

use crate::backup::grouped;
use crate::cluster::door::Door;
use crate::connection::Connection;

/// The record of the far side.
const RECORD: &str = "{holdfast}:site";

/// That of the cluster that it follows, if that follows another one itself.
const ORIGIN: &str = "{holdfast}:origin";

/// Every reply is waited for no longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A near side that was heard in this time is taken for alive.
const HEARD_MS: i64 = 5_000;

const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// More replicas than there will ever be: a cluster that wants so many takes no writes.
const REPLICAS_NEVER_MET: &str = "1000000";

/// Show, promote and rehearse a cluster that follows another one
#[derive(clap::Args, Clone, Debug)]
pub struct SiteArguments {
    #[command(subcommand)]
    verb: SiteVerb,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum SiteVerb {
    /// Show the state and the lag of the second site, and the state of the connection
    Status(FarArguments),
    /// Let the second site accept writes after the loss of the first
    Promote(PromoteArguments),
    /// Switch to the second site without loss: stop writes at the first, wait for the rest, and promote
    Handover(HandoverArguments),
    /// Show the writes of a first site that is back which the second one was promoted without
    Tail(tail::TailArguments),
    /// Rehearse a promotion with a copy of the second site on this machine
    Drill(drill::DrillArguments),
}

#[derive(clap::Args, Clone, Debug)]
struct FarArguments {
    /// A node of the cluster that follows.
    #[command(flatten)]
    door: Door,
}

#[derive(clap::Args, Clone, Debug)]
struct PromoteArguments {
    #[command(flatten)]
    far: FarArguments,
    /// Promote even if the first site still serves, or changes of it are missing
    #[arg(long)]
    accept_loss: bool,
}

#[derive(clap::Args, Clone, Debug)]
struct HandoverArguments {
    #[command(flatten)]
    far: FarArguments,
    /// A node of the first site, with the same user and password
    #[arg(long, value_name = "HOST:PORT")]
    from: String,
    /// Longest time for which both sites may refuse writes, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    pause: u64,
}

/// Runs `holdfast site`.
///
/// # Errors
/// What an operator must know.
pub fn run(arguments: &SiteArguments) -> Result<()> {
    match &arguments.verb {
        SiteVerb::Status(far) => status(far),
        SiteVerb::Promote(promotion) => promote(&promotion.far, promotion.accept_loss),
        SiteVerb::Handover(handover) => hand_over(handover),
        SiteVerb::Tail(arguments) => tail::run(arguments),
        SiteVerb::Drill(arguments) => drill::run(arguments),
    }
}

impl FarArguments {
    fn connect(&self) -> Result<Connection> {
        self.door.connect(PATIENCE)
    }
}

/// What the record says.
struct Record(Vec<(String, String)>);

impl Record {
    fn read(connection: &mut Connection) -> Result<Self> {
        let record = Self::read_from(connection, RECORD)?;
        record.ok_or_else(|| anyhow!("this cluster follows no other one: see `holdfast serve --follow`"))
    }

    /// One of these records, if it is there.
    fn read_from(connection: &mut Connection, key: &str) -> Result<Option<Self>> {
        ask(connection, &["SELECT", "0"])?;
        let reply = ask(connection, &["HGETALL", key])?;
        let words: Vec<String> = reply
            .elements()
            .unwrap_or_default()
            .iter()
            .map(|word| String::from_utf8_lossy(word.as_bytes().unwrap_or_default()).into_owned())
            .collect();
        let is_there = !words.is_empty();
        Ok(is_there.then(|| Self(words.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())))
    }

    fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(found, _)| found == name).map_or("", |(_, value)| value)
    }

    fn number(&self, name: &str) -> i64 {
        self.text(name).parse().unwrap_or(0)
    }

    fn places(&self) -> Vec<i64> {
        self.text("places").split(',').filter_map(|place| place.parse().ok()).collect()
    }

    /// The near side was heard just now.
    fn is_heard(&self) -> bool {
        self.text("link") == "up" && now_ms() - self.number("heard-ms") < HEARD_MS
    }

    /// What was known to be lacking when the near side was heard last; none if nothing was.
    fn lack(&self) -> Option<String> {
        let (bytes, steps) = (self.number("pending-bytes"), self.number("pending-changes"));
        let lag_ms = self.number("lag-ms");
        lack_of(steps.unsigned_abs(), bytes.unsigned_abs(), lag_ms)
    }
}

/// What is lacking, in words; none if nothing is. What has not been read at the near side yet has no bytes.
fn lack_of(steps: u64, bytes: u64, lag_ms: i64) -> Option<String> {
    let changes = match steps {
        0 => None,
        1 => Some("1 change".to_owned()),
        steps => Some(format!("{} changes", grouped(steps))),
    };
    let size = (bytes > 0).then(|| format!("{} bytes", grouped(bytes)));
    let time = (lag_ms > 0).then(|| format!("what was done in the last {:.1} s", lag_ms as f64 / 1e3));
    let parts: Vec<String> = [changes, size, time].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn now_ms() -> i64 {
    crate::import::now_ms()
}

fn ask<W: AsRef<[u8]>>(connection: &mut Connection, words: &[W]) -> Result<Frame> {
    let name = String::from_utf8_lossy(words[0].as_ref()).into_owned();
    match connection.call(words).with_context(|| format!("{name} was not answered"))? {
        Frame::Error(text) => bail!("{name} is refused: {}", String::from_utf8_lossy(&text)),
        reply => Ok(reply),
    }
}

/// A moment as people read it, in UTC.
fn at(ms: i64) -> String {
    if ms == 0 { "never".to_owned() } else { edge::utc(stdx::UnixMillis(ms)) }
}

fn status(far: &FarArguments) -> Result<()> {
    let mut connection = far.connect()?;
    let info = ask(&mut connection, &["INFO", "site"])?;
    let info = String::from_utf8_lossy(info.as_bytes().unwrap_or_default()).into_owned();
    let field = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap_or("").trim().to_owned()
    };
    if field("site_backlog") == "on" {
        say_line!(
            "backlog       {} bytes, back to {}",
            field("site_backlog_bytes"),
            match field("site_backlog_oldest_ms").parse().unwrap_or(0) {
                0 => "the beginning".to_owned(),
                ms => at(ms),
            }
        );
        let followers = info.lines().filter(|line| line.starts_with("site_follower") && line.contains("address="));
        followers.for_each(|line| say_line!("follower      {}", line.split_once(':').map_or("", |(_, rest)| rest)));
    }
    let record = match Record::read(&mut connection) {
        Ok(record) => record,
        Err(_) if field("site_backlog") == "on" => return Ok(()),
        Err(error) => return Err(error),
    };
    say_line!("phase         {}", record.text("phase"));
    say_line!("follows       {}", record.text("address"));
    say_line!("link          {}", if record.is_heard() { "up" } else { "down" });
    say_line!("shows         {}", at(record.number("moment-ms")));
    if let Some(origin) = Record::read_from(&mut connection, ORIGIN)? {
        say_line!("which follows {}, and showed {} of it then", origin.text("address"), at(origin.number("moment-ms")));
    }
    let age_s = (now_ms() - record.number("heard-ms")).max(0) as f64 / 1e3;
    match record.number("heard-ms") {
        0 => say_line!("lacks         everything: the first site was never heard"),
        _ => say_line!(
            "lacks         {} as heard {age_s:.1} s ago",
            record.lack().unwrap_or_else(|| "nothing".to_owned())
        ),
    }
    let count = |name| grouped(record.number(name).unsigned_abs());
    say_line!("carried out   {} requests in {} changes", count("requests"), count("transactions"));
    if !field("site_line_raw_bytes").is_empty() {
        say_line!(
            "line          {} bytes for {}, ratio {}",
            field("site_line_carried_bytes"),
            field("site_line_raw_bytes"),
            field("site_line_ratio")
        );
        say_line!(
            "catches up    {}",
            match field("site_catch_up_ms").parse::<i64>().unwrap_or(0) {
                0 => "nothing is missing".to_owned(),
                ms if ms < 0 => "not as it goes now".to_owned(),
                ms => format!("in {:.1} s", ms as f64 / 1e3),
            }
        );
        let why = field("site_last_cut");
        let last = if why.is_empty() { String::new() } else { format!("; the last: {why}") };
        say_line!("cuts          {}{last}", field("site_line_cuts"));
    }
    Ok(())
}

fn promote(far: &FarArguments, accepts_loss: bool) -> Result<()> {
    let mut connection = far.connect()?;
    let record = Record::read(&mut connection)?;
    ensure!(record.text("phase") != "promoted", "it was promoted already");
    ensure!(record.text("phase") == "following", "its copy is not complete: there is no state that could be promoted");
    let shown = at(record.number("moment-ms"));
    let heard = at(record.number("heard-ms"));
    let lack = record.lack();
    let known = lack.clone().map_or_else(
        || format!("nothing was known to be missing at {heard}"),
        |lack| format!("missing, as heard at {heard}: {lack}"),
    );
    if !accepts_loss {
        ensure!(
            !record.is_heard(),
            "the first site still serves: `holdfast site handover` moves without loss. This one shows {shown}; {known}. \
             --accept-loss promotes it in any case"
        );
        ensure!(lack.is_none(), "this site shows {shown}; {known}. --accept-loss promotes it in any case");
    }
    open(&mut connection, None)?;
    say_line!("promoted: accepts writes, from the state of {shown}");
    say_line!("{known}; what the first site acknowledged after that is not here");
    say_line!("when the first site is back, `holdfast site tail --from` it shows what that was");
    Ok(())
}

/// Ends the following for good, if the far side is still as the record said, and lets clients write.
fn open(connection: &mut Connection, places: Option<&[i64]>) -> Result<()> {
    ask(connection, &["SITE", "WRITER"])?;
    // The follower writes the record all the time: one of the two comes first.
    let begun = Instant::now();
    loop {
        ask(connection, &["SELECT", "0"])?;
        ask(connection, &["WATCH", RECORD])?;
        let record = Record::read(connection)?;
        // It may have begun to take a new copy since it was looked at.
        ensure!(record.text("phase") == "following", "the second site is {} now: not promoted", record.text("phase"));
        if let Some(places) = places {
            let is_there = reaches(&record, places);
            ensure!(is_there, "the second site has fewer changes than before: it was not promoted");
        }
        ask(connection, &["MULTI"])?;
        ask(connection, &["HSET", RECORD, "phase", "promoted", "link", "down"])?;
        if ask(connection, &["EXEC"])? != Frame::Null {
            break;
        }
        ensure!(begun.elapsed() < PATIENCE, "the record changes all the time");
    }
    ask(connection, &["CONFIG", "SET", "site-read-only", "no"])?;
    ask(connection, &["CONFIG", "SET", "import-mode", "no"])?;
    Ok(())
}

fn reaches(record: &Record, places: &[i64]) -> bool {
    let there = record.places();
    there.len() >= places.len() && there.iter().zip(places).all(|(there, wanted)| there >= wanted)
}

fn hand_over(handover: &HandoverArguments) -> Result<()> {
    let mut far = handover.far.connect()?;
    let mut near = handover.far.door.login.connect(&handover.from, PATIENCE)?;
    let record = Record::read(&mut far)?;
    ensure!(record.text("phase") == "following", "the second site does not follow: it is {}", record.text("phase"));
    ensure!(record.is_heard(), "the second site does not hear the first one");
    let before = ask(&mut near, &["CONFIG", "GET", "min-replicas-to-write"])?;
    let before = before.elements().and_then(|words| words.get(1)).and_then(Frame::as_bytes).unwrap_or(b"0").to_vec();
    let stopped = Instant::now();
    ask(&mut near, &["CONFIG", "SET", "min-replicas-to-write", REPLICAS_NEVER_MET])?;
    let moved = drain(&mut near, &mut far, Duration::from_secs(handover.pause));
    let moved = moved.and_then(|places| open(&mut far, Some(&places)));
    if let Err(error) = moved {
        let words: [&[u8]; 4] = [b"CONFIG", b"SET", b"min-replicas-to-write", &before];
        ask(&mut near, &words).context("the first site takes no writes (min-replicas-to-write)")?;
        return Err(error.context("the first site accepts writes as before"));
    }
    say_line!("the second site accepts writes; none were accepted for {} ms", stopped.elapsed().as_millis());
    say_line!("{} refuses writes: min-replicas-to-write {REPLICAS_NEVER_MET}", handover.from);
    Ok(())
}

/// Waits until the far side has all that the near one has done; answers how far that is.
fn drain(near: &mut Connection, far: &mut Connection, pause: Duration) -> Result<Vec<i64>> {
    let begun = Instant::now();
    let (_, places) = cut(near)?;
    loop {
        let record = Record::read(far)?;
        if reaches(&record, &places) {
            return Ok(places);
        }
        ensure!(
            begun.elapsed() < pause,
            "the second site lacks something after {} s: {}",
            pause.as_secs(),
            record.lack().unwrap_or_else(|| "it is not known what".to_owned())
        );
        thread::sleep(POLL_INTERVAL);
    }
}

/// The moment by the clock of the node that is asked, and how long the logs of all groups are then.
fn cut(near: &mut Connection) -> Result<(i64, Vec<i64>)> {
    // A cut of all groups tells how long their logs are, no matter where they are led.
    let name = format!("{:032x}", u128::from(now_ms().unsigned_abs()) << 64 | u128::from(std::process::id()));
    let reply = ask(near, &["BACKUP", "BEGIN", &name])?;
    let numbers = reply.elements().unwrap_or_default().iter().map(|element| match element {
        Frame::Integer(number) => Some(*number),
        _ => None,
    });
    let numbers: Vec<i64> = numbers.collect::<Option<_>>().ok_or_else(|| anyhow!("BACKUP BEGIN answered {reply}"))?;
    let places = numbers.get(3..).ok_or_else(|| anyhow!("BACKUP BEGIN answered {reply}"))?;
    // Negative where a group has gone.
    let places: Vec<i64> = places.iter().map(|place| place.abs()).collect();
    for group in 0..places.len() {
        ask(near, &["BACKUP", "END", &name, &group.to_string()])?;
    }
    Ok((numbers[2], places))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_told_as_far_as_it_is_known() {
        assert_eq!(lack_of(0, 0, 0), None);
        assert_eq!(lack_of(1, 0, 0).as_deref(), Some("1 change"));
        let all = lack_of(1_200, 34_567, 1_500);
        assert_eq!(all.as_deref(), Some("1,200 changes, 34,567 bytes, what was done in the last 1.5 s"));
        assert_eq!(lack_of(0, 0, 300).as_deref(), Some("what was done in the last 0.3 s"));
    }
}

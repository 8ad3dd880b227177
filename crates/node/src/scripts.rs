//! Scripts on their way: which are known, what they may call, and the two places where they run.
//!
//! A script with keys in one group that this core leads runs at once, on the group's keys (`in_place`), and what it
//! has changed is logged as the commands it called. Every other script, and one that reaches for a key that it has not
//! named or takes long, is a transaction: it runs on copies of its keys, which are locked meanwhile (`on_copies`),
//! and a part of it at each turn. Nothing of a script that does not end is ever seen.

pub(crate) mod in_place;
pub(crate) mod naming;
pub(crate) mod on_copies;
pub(crate) mod route;

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use command::{Flag, Refusal};
use group::ids::Level;
use group::invocation::{Caller, Invocation};
use group::levels::{body_at, check_form};
use group::published::Published;
use keyspace::{DataCommand, Moment};
use resp::{Args, Writer};
use script::Script;
use stdx::Duration;

use crate::acl::{Denial, User};
use crate::blocking::lay_out;
use crate::entry::{Reader, put_words};
use crate::event::Action;
use crate::known::Known;
use crate::limits;
use crate::lookup::selected;
use crate::stats::calls::ScriptCalls;
use crate::stats::counters::shorten;

/// What circumstances a script runs in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Circumstances {
    /// Memory is full, and the script has not said that it does not mind.
    pub(crate) denies_growth: bool,
    /// Why nothing may be written (no room on disk, too few replicas): an error reply.
    pub(crate) write_refusal: Option<String>,
    /// Somebody watches what is called (MONITOR).
    pub(crate) is_watched: bool,
    /// Scripts may call DEBUG PROTOCOL and DEBUG SLEEP.
    pub(crate) may_debug: bool,
    /// What is newer may not be called.
    pub(crate) level: stdx::Level,
}

impl Circumstances {
    /// True if it makes no difference on which node a script runs.
    pub(crate) fn are_plain(&self) -> bool {
        !self.denies_growth && self.write_refusal.is_none() && !self.is_watched && !self.may_debug
    }
}

/// What a script does beside its keys.
#[derive(Debug, Default)]
pub struct Asides {
    /// For the host: lines for its log, and sleeps.
    pub(crate) actions: Vec<Action>,
    /// To be sent when its changes are safe.
    pub(crate) published: Vec<Published>,
    /// What its user may not do, with the user's name.
    pub(crate) denials: Vec<(Denial, Vec<u8>)>,
    /// What it has called, and what came of that.
    pub(crate) script_calls: ScriptCalls,
    /// Commands of a transaction and how long they took.
    pub(crate) times: Vec<(Vec<u8>, Duration)>,
    /// What it has called, if somebody watches: database and words, laid out by `entry::put_words`.
    pub(crate) calls: Vec<Vec<u8>>,
}

impl Asides {
    /// Notes how long a command took, laid out by `entry::put_words`.
    pub(crate) fn note_time(&mut self, words: &[u8], took: Duration) {
        /// What is longer is told in short, and not copied.
        const WORDS_BYTES_MAX: usize = 4_096;
        if words.len() <= WORDS_BYTES_MAX {
            return self.times.push((words.to_vec(), took));
        }
        let mut spans = Vec::new();
        let (database, args) = Reader::new(words).words(&mut spans);
        let known = crate::lookup::lookup(args).expect("it has been carried out");
        let words = shorten(known, args);
        let (buffer, spans) = lay_out(words.iter().map(Vec::as_slice));
        let mut brief = Vec::new();
        put_words(&mut brief, database, Args::new(&buffer, &spans));
        self.times.push((brief, took));
    }
}

/// A command that a script may call.
pub(crate) enum Permitted {
    Data(&'static DataCommand),
    Select(Result<u16, Refusal>),
    Ping,
    Echo,
    Time,
    /// PUBLISH, or SPUBLISH.
    Publish {
        is_shard: bool,
    },
    /// WAIT
    Wait,
    /// WAITAOF
    WaitAof,
    /// DEBUG PROTOCOL
    Sample,
    /// DEBUG SLEEP
    Sleep,
}

/// Finds the command that a script calls, or says why it may not.
pub(crate) fn permit(
    args: Args<'_>,
    invocation: &Invocation,
    circumstances: &Circumstances,
    databases: u16,
    asides: &mut Asides,
) -> Result<(Known, Permitted), Refusal> {
    let Ok(known) = crate::lookup::lookup(args) else {
        // Whatever CLUSTER could do for Redis that it cannot do here is nothing for scripts.
        let is_cluster = args.at(0).eq_ignore_ascii_case(b"cluster");
        let text = if is_cluster { NOT_ALLOWED } else { UNKNOWN_COMMAND };
        asides.script_calls.note_error(text.as_bytes());
        return Err(Refusal::new(text));
    };
    match permit_known(known, args, invocation, circumstances, databases, asides) {
        Ok(permitted) => Ok((known, permitted)),
        Err(refusal) => {
            asides.script_calls.note_rejected(known, args, refusal.text());
            Err(refusal)
        }
    }
}

fn permit_known(
    known: Known,
    args: Args<'_>,
    invocation: &Invocation,
    circumstances: &Circumstances,
    databases: u16,
    asides: &mut Asides,
) -> Result<Permitted, Refusal> {
    if !known.accepts(args.len()) {
        return Err(Refusal::new(WRONG_ARGUMENT_COUNT));
    }
    if let Some(user) = user_of(invocation)
        && let Err(denial) = user.check(known, args)
    {
        let refusal = denial.refusal_in_script(&user.name);
        asides.denials.push((denial, user.name.to_vec()));
        return Err(refusal);
    }
    match known {
        Known::Data(command) => {
            if command.has(Flag::Noscript) {
                return Err(Refusal::new(NOT_ALLOWED));
            }
            if invocation.is_read_only && !matches!(command.body, keyspace::Body::Query(_)) {
                return Err(Refusal::new(READ_ONLY));
            }
            // What the log would not do is not promised to a script.
            Ok(Permitted::Data(body_at(circumstances.level, command)))
        }
        Known::Control(command) => match command.name() {
            "select" => Ok(Permitted::Select(selected(args, databases))),
            "ping" => Ok(Permitted::Ping),
            "echo" => Ok(Permitted::Echo),
            "time" => Ok(Permitted::Time),
            "wait" => Ok(Permitted::Wait),
            "waitaof" => Ok(Permitted::WaitAof),
            "publish" | "spublish" if invocation.is_read_only => Err(Refusal::new(READ_ONLY)),
            "publish" | "spublish" => Ok(Permitted::Publish { is_shard: command.name() == "spublish" }),
            "protocol" if circumstances.may_debug => Ok(Permitted::Sample),
            "sleep" if circumstances.may_debug => Ok(Permitted::Sleep),
            _ => Err(Refusal::new(NOT_ALLOWED)),
        },
    }
}

/// How long a script has run, in microseconds, told by what it has done: no clock is read, and it can wait for TIME. A
/// tick is a millisecond, as for `os.clock`, and a call a microsecond.
pub(crate) fn elapsed_us(ticks: u32, calls: u32) -> i64 {
    i64::from(ticks) * 1_000 + i64::from(calls)
}

impl Permitted {
    /// Answers a command that needs no key. False if it needs data. `elapsed_us` is how long the script has run.
    pub(crate) fn answer(
        &self,
        args: Args<'_>,
        database: &mut u16,
        moment: Moment,
        elapsed_us: i64,
        asides: &mut Asides,
        writer: &mut Writer,
    ) -> bool {
        match self {
            Self::Data(_) => return false,
            Self::Select(Ok(number)) => {
                *database = *number;
                writer.ok();
            }
            Self::Select(Err(refusal)) => writer.error(refusal.text()),
            // It is sent when the script has ended, so nobody has heard it yet.
            Self::Publish { is_shard } => {
                asides.published.push(Published { is_shard: *is_shard, ..Published::new(args.at(1), args.at(2)) });
                writer.integer(0);
            }
            // No time passes within a script; who hears of its end hears so much later.
            Self::Sleep => match crate::debug_replies::sleep_duration(args) {
                Ok(duration) => {
                    asides.actions.push(Action::Sleep { duration });
                    writer.ok();
                }
                Err(refusal) => writer.error(refusal.text()),
            },
            // Nothing is waited for: of what the script does nobody else has anything yet.
            Self::Wait => writer.integer(0),
            Self::WaitAof => {
                writer.array(2);
                writer.integer(0);
                writer.integer(0);
            }
            Self::Sample => {
                if let Err(refusal) = crate::debug_replies::write_sample(args, writer) {
                    writer.error(refusal.text());
                }
            }
            Self::Ping if args.len() > 1 => writer.bulk(args.at(1)),
            Self::Ping => writer.simple("PONG"),
            Self::Echo => writer.bulk(args.at(1)),
            Self::Time => {
                let us = moment.unix.0.saturating_mul(1_000).saturating_add(elapsed_us);
                writer.array(2);
                writer.bulk(us.div_euclid(1_000_000).to_string().as_bytes());
                writer.bulk(us.rem_euclid(1_000_000).to_string().as_bytes());
            }
        }
        true
    }
}

const UNKNOWN_COMMAND: &str = "ERR Unknown Redis command called from script";
const WRONG_ARGUMENT_COUNT: &str = "ERR Wrong number of args calling Redis command from script";
const NOT_ALLOWED: &str = "ERR This Redis command is not allowed from script";
const READ_ONLY: &str = "ERR Write commands are not allowed from read-only scripts.";

impl Caller for User {}

/// The user who calls a script, unless that user may do everything.
fn user_of(invocation: &Invocation) -> Option<&User> {
    let user = invocation.user.as_deref()?;
    Some((user as &dyn Any).downcast_ref().expect("only a user calls a script"))
}

/// What `redis.acl_check_cmd` answers.
pub(crate) fn may_call(args: Args<'_>, invocation: &Invocation) -> Option<bool> {
    let known = crate::lookup::lookup(args).ok()?;
    Some(user_of(invocation).is_none_or(|user| user.check(known, args).is_ok()))
}

/// What `redis.log` asks of the host; nothing for levels that only a debugger wants.
pub(crate) fn log_action(level: u8, text: &[u8]) -> Option<Action> {
    let level = match level {
        2 => Level::Notice,
        3 => Level::Warning,
        _ => return None,
    };
    Some(Action::Log { level, line: String::from_utf8_lossy(text).into_owned() })
}

/// Why a command may not be called at this point; `has_written` exempts a script that must be let finish.
pub(crate) fn check_call(
    command: &DataCommand,
    args: Args<'_>,
    circumstances: &Circumstances,
    has_written: bool,
) -> Result<(), Refusal> {
    if !matches!(command.body, keyspace::Body::Mutate(_)) {
        return Ok(());
    }
    check_form(circumstances.level, command.name, args)?;
    crate::reserved::check(command, args)?;
    if let Some(text) = &circumstances.write_refusal {
        return Err(Refusal::new(text.clone()));
    }
    if circumstances.denies_growth && !has_written && command.has(Flag::Denyoom) {
        return Err(Refusal::OUT_OF_MEMORY);
    }
    Ok(())
}

/// The scripts that a core knows by name.
#[derive(Default)]
pub struct Cache {
    by_name: BTreeMap<[u8; 40], Cached>,
    /// Finds a script without computing its name.
    by_text: BTreeMap<ByText, ()>,
    /// Those that only EVAL has brought, in the order of their first call.
    passing: VecDeque<[u8; 40]>,
    bytes: usize,
}

struct Cached {
    script: Arc<Script>,
    /// SCRIPT LOAD has brought it: it stays.
    is_loaded: bool,
}

/// A script in the order of texts.
struct ByText(Arc<Script>);

impl PartialEq for ByText {
    fn eq(&self, other: &Self) -> bool {
        self.0.text == other.0.text
    }
}

impl Eq for ByText {}

impl PartialOrd for ByText {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByText {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.text.cmp(&other.0.text)
    }
}

impl std::borrow::Borrow<[u8]> for ByText {
    fn borrow(&self) -> &[u8] {
        &self.0.text
    }
}

impl Cache {
    /// The script of this text, if it is known.
    pub(crate) fn with_text(&self, text: &[u8]) -> Option<Arc<Script>> {
        self.by_text.get_key_value(text).map(|(known, ())| known.0.clone())
    }

    /// The script of this name, in whatever case.
    pub(crate) fn named(&self, name: &[u8]) -> Option<Arc<Script>> {
        let name: [u8; 40] = name.to_ascii_lowercase().try_into().ok()?;
        self.by_name.get(&name).map(|known| known.script.clone())
    }

    /// Remembers a script. One that EVAL brings may be forgotten when many more come.
    ///
    /// # Errors
    /// There is no room for one more that stays.
    pub(crate) fn insert(&mut self, script: Arc<Script>, is_loaded: bool) -> Result<(), Refusal> {
        if let Some(known) = self.by_name.get_mut(&script.sha) {
            if is_loaded && !known.is_loaded {
                known.is_loaded = true;
                self.passing.retain(|name| *name != script.sha);
            }
            return Ok(());
        }
        let size = size_of_entry(&script);
        while self.bytes + size > limits::SCRIPT_BYTES_MAX || self.passing.len() >= limits::PASSING_SCRIPTS_MAX {
            let Some(name) = self.passing.pop_front() else { break };
            let known = self.by_name.remove(&name).expect("what passes is known");
            self.by_text.remove(known.script.text.as_slice());
            self.bytes -= size_of_entry(&known.script);
        }
        if self.bytes + size > limits::SCRIPT_BYTES_MAX {
            return Err(Refusal::new("OOM The script cache is full"));
        }
        self.bytes += size;
        if !is_loaded {
            self.passing.push_back(script.sha);
        }
        self.by_text.insert(ByText(script.clone()), ());
        self.by_name.insert(script.sha, Cached { script, is_loaded });
        Ok(())
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// How many are known.
    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Bytes that they take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A script with its share of the trees.
fn size_of_entry(script: &Script) -> usize {
    script.text.len() + 200
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> Arc<Script> {
        Script::parse(text.as_bytes()).expect("no first line to be wrong")
    }

    #[test]
    fn scripts_that_pass_are_forgotten_and_loaded_ones_stay() {
        let mut cache = Cache::default();
        let first = script("return 'first'");
        let loaded = script("return 'loaded'");
        cache.insert(first.clone(), false).expect("room");
        cache.insert(loaded.clone(), true).expect("room");
        for number in 0..limits::PASSING_SCRIPTS_MAX {
            cache.insert(script(&format!("return {number}")), false).expect("room");
        }
        assert!(cache.named(&first.sha).is_none());
        assert!(cache.with_text(&first.text).is_none());
        assert!(cache.named(loaded.name().to_uppercase().as_bytes()).is_some());
        assert_eq!(cache.len(), limits::PASSING_SCRIPTS_MAX + 1);
    }

    #[test]
    fn the_cache_takes_no_more_than_its_bound() {
        let mut cache = Cache::default();
        let filler = "x".repeat(limits::SCRIPT_BYTES_MAX / 4);
        let results: Vec<_> =
            (0..5).map(|number| cache.insert(script(&format!("--{number}{filler}")), true).is_ok()).collect();
        assert_eq!(results, [true, true, true, false, false]);
        assert!(cache.bytes() <= limits::SCRIPT_BYTES_MAX);
    }
}

//! `holdfast archive show`: what has become of a key.

use std::fmt::Write as _;

use anyhow::Result;
use archive::{GroupReader, Next};
use keyspace::Moment;
use message::entry::{self, ExecItem, Item};
use resp::Args;
use resp::{Span, Writer};
use state::cut::moment_of_entry;
use state::{Ignored, State};
use stdx::UnixMillis;

use super::replay::{begin, beginning, born_of};
use super::view::{View, check_levels, parse_moment, told};

/// Characters of a value, or of a command, that are shown.
const SHOWN_MAX: usize = 60;

/// Show when a key was changed, by which command, and its values.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct ShowArguments {
    #[command(flatten)]
    which: super::Which,
    /// The key
    #[arg(value_name = "KEY")]
    key: String,
    /// From this moment on, in UTC: '2026-11-23 01:00:00' [default: the first]
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Up to this moment [default: the last]
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// The database
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    db: u16,
}

/// Runs `holdfast archive show`.
///
/// # Errors
/// What an operator must know.
pub(super) fn run(arguments: &ShowArguments) -> Result<()> {
    let view = arguments.which.view()?;
    let (first, last) = view.range()?;
    let from = arguments.from.as_deref().map(parse_moment).transpose()?.unwrap_or(first).max(first);
    let to = arguments.to.as_deref().map(parse_moment).transpose()?.unwrap_or(last);
    let mut changes = Vec::new();
    // Slots move between groups: any of them may have held it.
    for group in 0..view.groups.len() as u32 {
        follow(&view, group, (from, to), arguments, &mut changes)?;
    }
    changes.sort_by_key(|change| (change.moment, change.group, change.index));
    for Change { moment, group, index, by, before, after } in &changes {
        say_line!("{}  {before} -> {after}  {by}  (group {group}, entry {index})", edge::utc(*moment));
    }
    let span = format!("from {} to {}", edge::utc(from), edge::utc(to));
    match changes.len() {
        0 => say_line!("{}: not changed {span}", arguments.key),
        1 => say_line!("{}: 1 change {span}", arguments.key),
        count => say_line!("{}: {count} changes {span}", arguments.key),
    }
    Ok(())
}

struct Change {
    moment: UnixMillis,
    group: u32,
    index: u64,
    by: String,
    before: String,
    after: String,
}

/// Looks at a key before and after each item of a group's log.
fn follow(
    view: &View,
    group: u32,
    (from, to): (UnixMillis, UnixMillis),
    arguments: &ShowArguments,
    changes: &mut Vec<Change>,
) -> Result<()> {
    let listing = &view.groups[group as usize].listing;
    let base = listing.bases.iter().rev().find(|base| base.moment < from);
    let first_base = listing.logs.first().filter(|log| log.first != 1).and_then(|_| listing.bases.first());
    let mut state = begin(view, group, base.or(first_base))?;
    let mut reader = GroupReader::new(&view.archive, group, listing, state.applied().index + 1);
    let key = arguments.key.as_bytes();
    let mut known = look(&mut state, arguments.db, key);
    loop {
        let entries = match reader.next() {
            Ok(Next::Entries(entries, ..)) => entries,
            Ok(Next::End(_)) => return Ok(()),
            Err(problem) => anyhow::bail!("{}", told(group, &problem)),
        };
        check_levels(group, &entries)?;
        for entry in entries {
            if moment_of_entry(&entry).is_some_and(|moment| moment > to) {
                return Ok(());
            }
            if let Some(born) = born_of(&entry) {
                state = beginning(view, group, born)?;
                known = look(&mut state, arguments.db, key);
                continue;
            }
            let Some(mut cursor) = state.open(&entry) else { continue };
            let moment = state.moment().unix;
            let Some((_, mut items)) = entry::open(&entry.data) else { continue };
            let mut spans = Vec::new();
            while !cursor.is_done() {
                state.apply_next(&mut cursor, &mut Ignored);
                let item = items.item(&mut spans);
                let now = look(&mut state, arguments.db, key);
                if now.0 == known.0 {
                    continue;
                }
                let before = std::mem::replace(&mut known, now).1;
                if moment >= from {
                    let by = item.map(in_words).unwrap_or_default();
                    let (index, after) = (entry.index, known.1.clone());
                    changes.push(Change { moment, group, index, by, before, after });
                }
            }
        }
    }
}

/// The version of a key, and what it holds, in words.
fn look(state: &mut State, database: u16, key: &[u8]) -> (u64, String) {
    let moment = Moment { unix: state.moment().unix, seed: 0 };
    let version = state.keyspace().version(database, key, moment);
    if version == 0 {
        return (0, "nothing".into());
    }
    let mut ask = |words: &[&[u8]]| {
        let buffer = words.concat();
        let mut spans: Vec<Span> = Vec::new();
        for word in words {
            let start = spans.last().map_or(0, |span| span.end);
            spans.push(Span { start, end: start + word.len() as u32 });
        }
        let args = Args::new(&buffer, &spans);
        let mut writer = Writer::default();
        let command = keyspace::resolve(args).expect("a command of ours");
        state.read(database, command, args, moment, &mut writer);
        String::from_utf8_lossy(&writer.into_bytes()).into_owned()
    };
    let kind = ask(&[b"TYPE", key]).trim_matches(['+', '\r', '\n']).to_owned();
    let count: &[u8] = match kind.as_str() {
        "hash" => b"HLEN",
        "list" => b"LLEN",
        "set" => b"SCARD",
        "zset" => b"ZCARD",
        "stream" => b"XLEN",
        _ => {
            let reply = ask(&[b"GET", key]);
            let value = reply.split_once("\r\n").map_or("", |(_, value)| value.trim_end_matches("\r\n"));
            return (version, quoted(value));
        }
    };
    let count = ask(&[count, key]);
    (version, format!("{kind} of {}", count.trim_matches([':', '\r', '\n'])))
}

/// What an item is, in words.
fn in_words(item: Item<'_>) -> String {
    let command = |args: Args<'_>| {
        let words: Vec<String> = args.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        shortened(&words.join(" "))
    };
    let all = |name: &str, commands: ExecItem<'_>| {
        let mut told = name.to_owned();
        commands.for_each(&mut Vec::new(), |_, args| _ = write!(told, " {};", command(args)));
        shortened(&told)
    };
    match item {
        Item::Command { args, .. } => command(args),
        Item::Exec(exec) => all("MULTI:", exec),
        Item::Script { commands, .. } => all("a script:", commands),
        Item::Install { .. } | Item::Resolve { .. } => "a transaction over groups".into(),
        Item::Tick => "expiry".into(),
        _ => "the cluster".into(),
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", shortened(text))
}

fn shortened(text: &str) -> String {
    let clean: String = text.chars().map(|letter| if letter.is_control() { '.' } else { letter }).collect();
    if clean.chars().count() <= SHOWN_MAX {
        return clean;
    }
    clean.chars().take(SHOWN_MAX).chain(['…']).collect()
}

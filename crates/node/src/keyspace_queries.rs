//! Queries over a whole database inside a transaction over several groups.
//!
//! The groups answer them under their locks, as the data was before the transaction. The gateway puts right what the
//! transaction itself has done: it knows every key that the transaction names, before and after.

use std::collections::BTreeSet;

use group::ids::GroupId;
use group::one_command::run_one;
use keyspace::{Keyspace, Layout, Moment};
use resp::{Args, Writer};
use stdx::slot::{Slot, slot_of};

use crate::entry::{Effect, Reader, put_words};
use crate::frame;
use crate::transaction::database_effects_of;

/// The queries among a transaction's commands, by place, each naming the database that its keys are in before the
/// transaction begins: SWAPDB may have moved them. What a flush has emptied needs nobody's answer.
pub(crate) fn queries(commands: &[Vec<u8>], databases: u16) -> Vec<(Option<usize>, Vec<u8>)> {
    let mut origins: Vec<_> = (0..databases).map(Some).collect();
    let mut scratch = Keyspace::new(keyspace::Options {
        databases,
        hash_seed: 0,
        layout: Layout::Scratch,
        tuning: keyspace::Tuning::default(),
    });
    let mut queries = Vec::new();
    let mut spans = Vec::new();
    for (place, words) in commands.iter().enumerate() {
        let (database, args) = Reader::new(words).words(&mut spans);
        // A script's queries become known when it runs.
        let Some(command) = keyspace::resolve(args) else { continue };
        match command.span {
            command::Span::Whole(command::Join::All) => {}
            command::Span::Whole(_) => {
                if let Some(origin) = origins[usize::from(database)] {
                    let mut words = Vec::new();
                    put_words(&mut words, origin, args);
                    queries.push((Some(place), words));
                }
                continue;
            }
            _ => continue,
        }
        // Whether it will be refused depends on its words alone.
        let mut writer = Writer::default();
        run_one(&mut scratch, database, args, Moment::default(), &mut writer);
        if writer.bytes().first() == Some(&b'-') {
            continue;
        }
        for effect in database_effects_of(database, args, databases).unwrap_or_default() {
            match effect {
                Effect::Flush { database } => origins[usize::from(database)] = None,
                Effect::Swap { first, second } => origins.swap(usize::from(first), usize::from(second)),
                Effect::Key { .. } | Effect::Give(_) | Effect::Take(_) | Effect::Answer(_) => {}
            }
        }
    }
    queries
}

/// One query, at its place in the transaction.
pub(crate) struct Question<'a> {
    /// What the transaction has made of the keys it names.
    pub scratch: &'a Keyspace,
    /// The database asked about, as it is numbered now.
    pub database: u16,
    /// The transaction's moment.
    pub moment: Moment,
    /// The query.
    pub args: Args<'a>,
    /// The keys that the transaction names, of the database that the groups were asked about.
    pub named: BTreeSet<&'a [u8]>,
    /// The groups' answers, with the number of keys that are not named.
    pub replies: Vec<(GroupId, u64, Vec<u8>)>,
    /// The query as the groups saw it.
    pub words: &'a [u8],
}

impl Question<'_> {
    /// Writes the answer.
    pub(crate) fn answer(&self, writer: &mut Writer) {
        // A refusal is the same from every group.
        if let Some((_, _, error)) = self.replies.iter().find(|(_, _, bytes)| bytes.first() == Some(&b'-')) {
            return writer.raw(error);
        }
        let command = keyspace::resolve(self.args).expect("checked when it was queued");
        let own_count = self.scratch.key_count(self.database) as u64;
        let others: u64 = self.replies.iter().map(|(_, weight, _)| weight).sum();
        let mut own = Writer::default();
        self.scratch.query(self.database, command, self.args, self.moment, &mut own);
        let own = own.bytes();
        match command.span {
            command::Span::Whole(command::Join::Sum) => writer.integer((others + own_count) as i64),
            command::Span::Whole(command::Join::Concatenate) => {
                let mut found = Vec::new();
                for (_, _, bytes) in &self.replies {
                    found.extend(elements(bytes).into_iter().filter(|key| !self.named.contains(key)));
                }
                found.extend(elements(own));
                write_array(&found, writer);
            }
            command::Span::Whole(command::Join::Any) => {
                let mut place = match others + own_count {
                    0 => 0,
                    total => self.moment.seed % total,
                };
                let chosen = self.replies.iter().find(|(_, weight, _)| {
                    let here = place < *weight;
                    place = place.saturating_sub(*weight);
                    here
                });
                writer.raw(chosen.map_or(own, |(_, _, bytes)| bytes));
            }
            command::Span::Whole(command::Join::Cursor) => self.scan(writer),
            _ => unreachable!("only queries over a whole database are asked"),
        }
    }

    /// A step of SCAN. What the transaction has removed is left out; what it has created comes with the first step,
    /// since a walk owes nothing to keys that come and go while it lasts.
    fn scan(&self, writer: &mut Writer) {
        let mut step = Writer::default();
        write_scan(&self.replies, self.words, &mut step);
        let step = step.into_bytes();
        let (cursor, keys) = split_scan(&step);
        let created = match self.args.at(1) {
            b"0" => scan_all(self.scratch, self.database, self.args, self.moment),
            _ => Vec::new(),
        };
        let exists = |key: &[u8]| self.scratch.version(self.database, key, self.moment) != 0;
        let mut found: Vec<_> =
            elements(keys).into_iter().filter(|key| !self.named.contains(key) || exists(key)).collect();
        let seen: BTreeSet<&[u8]> = found.iter().copied().collect();
        found.extend(created.iter().map(Vec::as_slice).filter(|key| !seen.contains(key)));
        writer.array(2);
        writer.raw(cursor);
        write_array(&found, writer);
    }
}

/// True for SCAN.
pub(crate) fn is_scan(args: Args<'_>) -> bool {
    keyspace::resolve(args).is_some_and(|command| command.span == command::Span::Whole(command::Join::Cursor))
}

/// SCAN of a database that its own transaction has flushed: what is there now was made by the transaction, and comes
/// with the first step. The cursors of a scratch keyspace would mean nothing to the groups.
pub(crate) fn scan_emptied(scratch: &Keyspace, database: u16, args: Args<'_>, moment: Moment, writer: &mut Writer) {
    let mut own = Writer::default();
    let command = keyspace::resolve(args).expect("checked when it was queued");
    scratch.query(database, command, args, moment, &mut own);
    if own.bytes().first() == Some(&b'-') {
        return writer.raw(own.bytes());
    }
    let found = if args.at(1) == b"0" { scan_all(scratch, database, args, moment) } else { Vec::new() };
    writer.array(2);
    writer.bulk(b"0");
    write_array(&found.iter().map(Vec::as_slice).collect::<Vec<_>>(), writer);
}

/// Every key of a scratch keyspace that a SCAN asks for, in as many steps as it takes.
fn scan_all(scratch: &Keyspace, database: u16, args: Args<'_>, moment: Moment) -> Vec<Vec<u8>> {
    let command = keyspace::resolve(args).expect("checked when it was queued");
    let mut found = Vec::new();
    let mut cursor = b"0".to_vec();
    loop {
        let mut words = vec![args.at(0), &cursor[..]];
        words.extend((2..args.len()).map(|index| args.at(index)));
        let mut bytes = Vec::new();
        let mut spans = Vec::new();
        for word in words {
            let start = bytes.len() as u32;
            bytes.extend_from_slice(word);
            spans.push(resp::Span { start, end: bytes.len() as u32 });
        }
        let mut step = Writer::default();
        scratch.query(database, command, Args::new(&bytes, &spans), moment, &mut step);
        let (next, keys) = split_scan(step.bytes());
        found.extend(elements(keys).into_iter().map(<[u8]>::to_vec));
        cursor = frame::bulk_bytes(next).expect("a cursor").to_vec();
        if cursor == b"0" {
            return found;
        }
    }
}

fn split_scan(bytes: &[u8]) -> (&[u8], &[u8]) {
    let bytes = &bytes[frame::aggregate(bytes).1..];
    bytes.split_at(frame::len(bytes))
}

fn elements(bytes: &[u8]) -> Vec<&[u8]> {
    let keys = frame::elements(bytes).into_iter();
    keys.filter_map(frame::bulk_bytes).collect()
}

fn write_array(elements: &[&[u8]], writer: &mut Writer) {
    writer.array(elements.len());
    for element in elements {
        writer.bulk(element);
    }
}

/// One step of SCAN from the steps of all groups that were asked. Each has walked from the same cursor through the
/// slots that it holds. The walk goes on where the first of them has stopped: keys of the others behind that place come
/// with a later step. If there are more keys than COUNT even so, it goes on at the beginning of a slot before.
pub(crate) fn write_scan(replies: &[(GroupId, u64, Vec<u8>)], words: &[u8], writer: &mut Writer) {
    let mut spans = Vec::new();
    let (_, args) = Reader::new(words).words(&mut spans);
    if let [(_, _, reply)] = replies {
        return writer.raw(reply);
    }
    // The first place where a group has stopped, and that group; who got to the end has none.
    let mut stop: Option<(u64, GroupId)> = None;
    let mut keys: Vec<(Slot, GroupId, &[u8])> = Vec::new();
    for (group, _, reply) in replies {
        let (_, header) = frame::aggregate(reply);
        let (cursor, found) = reply[header..].split_at(frame::len(&reply[header..]));
        let cursor = frame::bulk(cursor).and_then(|text| text.parse().ok()).filter(|cursor| *cursor != 0);
        if let Some(cursor) = cursor
            && stop.is_none_or(|(first, _)| cursor < first)
        {
            stop = Some((cursor, *group));
        }
        let found = frame::elements(found).into_iter();
        keys.extend(found.filter_map(|key| Some((slot_of(frame::bulk_bytes(key)?), *group, key))));
    }
    if let Some((cursor, group)) = stop {
        let last = keyspace::slot_of_cursor(cursor);
        keys.retain(|(slot, of, _)| *slot < last || *slot == last && *of == group);
    }
    let mut next = stop.map_or(0, |(cursor, _)| cursor);
    let count = keyspace::scan_count(args).unwrap_or(usize::MAX);
    if keys.len() > count {
        keys.sort_by_key(|(slot, ..)| *slot);
        let last = keys[count - 1].0;
        if let Some(behind) = keys[count..].iter().position(|(slot, ..)| *slot > last) {
            next = keyspace::cursor_at_slot(u32::from(keys[count + behind].0.0));
            keys.truncate(count + behind);
        }
    }
    writer.array(2);
    writer.bulk(next.to_string().as_bytes());
    writer.array(keys.len());
    keys.iter().for_each(|(.., key)| writer.raw(key));
}

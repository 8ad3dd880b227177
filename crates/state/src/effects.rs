//! What a command has done, as requests that do the same at a stock Redis, whatever its clock and its chance.
//!
//! Three ways, by the command's name: the same words again, where Redis carries them out as we do; other words, from
//! the answer or from what the key holds now; and for everything else the changed keys as they are now (`SET`,
//! `RESTORE` or `DEL`), which is right for every command there is, and as large as the value.

use std::ops::Range;

use keyspace::{DataCommand, Id, Keyspace, Moment, ValueRef};
use resp::{Args, Frame, FrameDecoder};
use stdx::Level;

use crate::recorder::{Reader, Requests};

/// A command that has changed something.
pub(crate) struct Done<'a> {
    pub(crate) reader: Reader,
    pub(crate) keyspace: &'a Keyspace,
    pub(crate) database: u16,
    pub(crate) moment: Moment,
    pub(crate) args: Args<'a>,
    pub(crate) reply: &'a [u8],
    /// What it has changed.
    pub(crate) changed: &'a [(u16, &'a [u8])],
}

/// Makes a key what it is now.
pub(crate) fn put_value(
    out: &mut Requests,
    reader: Reader,
    keyspace: &Keyspace,
    (database, key): (u16, &[u8]),
    moment: Moment,
) {
    let Some(entry) = keyspace.view(database, moment).peek(key) else {
        return out.push(database, &[b"DEL", key]);
    };
    if reader < Reader::Holdfast && entry.value().is_of_module() {
        // A Redis without the module would end at the first of them.
        return out.push(database, &[b"DEL", key]);
    }
    let deadline = entry.expires_at().map(|at| at.0.to_string());
    if let ValueRef::String(string) = entry.value() {
        let mut buffer = keyspace::ItoaBuffer::new();
        let value = string.to_bytes(&mut buffer);
        return put_string(out, reader, (database, key), value, deadline.as_deref());
    }
    let dump = match reader {
        Reader::Holdfast => keyspace::rdb::dump(entry.value()),
        _ => keyspace::rdb::dump_for(entry.value(), reader.dialect(), reader.rdb_version()),
    };
    let ttl = deadline.as_deref().unwrap_or("0").as_bytes();
    let words: [&[u8]; 6] = [b"RESTORE", key, ttl, &dump, b"REPLACE", b"ABSTTL"];
    out.push(database, &words[..if deadline.is_some() { 6 } else { 5 }]);
}

fn put_string(out: &mut Requests, reader: Reader, (database, key): (u16, &[u8]), value: &[u8], deadline: Option<&str>) {
    match deadline {
        None => out.push(database, &[b"SET", key, value]),
        Some(at) if reader >= Reader::Redis7 => {
            out.push(database, &[b"SET", key, value, b"PXAT", at.as_bytes()]);
        }
        Some(at) => {
            out.push(database, &[b"SET", key, value]);
            out.push(database, &[b"PEXPIREAT", key, at.as_bytes()]);
        }
    }
}

impl Done<'_> {
    /// Appends what it has done.
    pub(crate) fn put(&self, command: &DataCommand, out: &mut Requests) {
        if self.has_untold() || self.put_by_name(command, out).is_none() {
            for place in self.changed {
                put_value(out, self.reader, self.keyspace, *place, self.moment);
            }
        }
    }

    /// A key holds now what readers are not told, such as after RENAME: they lack what it held before, too.
    fn has_untold(&self) -> bool {
        self.reader < Reader::Holdfast
            && self.changed.iter().any(|(database, key)| {
                let entry = self.keyspace.view(*database, self.moment).peek(key);
                entry.is_some_and(|entry| entry.value().is_of_module())
            })
    }

    /// The same if its name says how; nothing is appended if not.
    fn put_by_name(&self, command: &DataCommand, out: &mut Requests) -> Option<()> {
        let container = keyspace::find(self.args.at(0)).expect("it has run").name;
        if self.has_other_meaning(container, command.name) {
            return None;
        }
        match container {
            // Redis reckons as we do, and they have been the same words since 5.0 at least.
            "append" | "bitfield" | "decr" | "decrby" | "incr" | "incrby" | "mset" | "setbit" | "setrange" | "del"
            | "unlink" | "rename" | "move" | "persist" | "lpush" | "lpushx" | "rpush" | "rpushx" | "linsert"
            | "lset" | "lrem" | "ltrim" | "rpoplpush" | "hset" | "hmset" | "hsetnx" | "hdel" | "hincrby" | "sadd"
            | "srem" | "smove" | "sinterstore" | "sunionstore" | "sdiffstore" | "zincrby" | "zrem"
            | "zremrangebyrank" | "zremrangebyscore" | "zremrangebylex" | "zpopmin" | "zpopmax" | "pfadd"
            | "pfmerge" | "pfcount" | "xdel" | "xack" => self.again(out),
            "zadd" if self.since_7() || !self.has_word(2, &["gt", "lt"]) => self.again(out),
            "geoadd" if self.since_7() || !self.has_word(2, &["nx", "xx", "ch"]) => self.again(out),
            "zrangestore" | "zdiffstore" if self.since_7() => self.again(out),
            "bitop" if ["and", "or", "xor", "not"].iter().any(|name| is(self.args.at(1), name)) => self.again(out),
            "lpop" | "rpop" => self.put_pop(out),
            "renamenx" => out.push(self.database, &[b"RENAME", self.args.at(1), self.args.at(2)]),
            "msetnx" => {
                let words: Vec<&[u8]> = std::iter::once(&b"MSET"[..]).chain(self.args.iter().skip(1)).collect();
                out.push(self.database, &words);
            }
            "copy" if self.since_7() && self.changed.len() == 1 => {
                let (database, to) = self.changed[0];
                let database = database.to_string();
                let words = [b"COPY", self.args.at(1), to, b"DB", database.as_bytes(), b"REPLACE"];
                out.push(self.database, &words);
            }
            "expire" | "pexpire" | "expireat" | "pexpireat" | "getex" => self.put_deadline(out)?,
            "spop" => self.put_spop(out)?,
            "hincrbyfloat" => {
                let value = self.frame()?;
                let (key, field) = (self.args.at(1), self.args.at(2));
                out.push(self.database, &[b"HSET", key, field, value.as_bytes()?]);
                // HSET takes a deadline away, and HINCRBYFLOAT does not.
                if let Some(at) = self.deadline_of_field(key, field).filter(|_| self.knows_deadlines_of_fields()) {
                    let at = at.to_string();
                    out.push(self.database, &[b"HPEXPIREAT", key, at.as_bytes(), b"FIELDS", b"1", field]);
                }
            }
            "hexpire" | "hpexpire" | "hexpireat" | "hpexpireat" | "hpersist" | "hgetex" => {
                if self.knows_deadlines_of_fields() {
                    self.put_deadlines_of_fields(out)?;
                } else {
                    // Deadlines of fields are nothing there, as long as no field has gone.
                    self.put_fields()?;
                }
            }
            "hgetdel" => self.put_hgetdel(out)?,
            "blpop" | "brpop" => {
                let frame = self.frame()?;
                let pop = if container == "blpop" { "LPOP" } else { "RPOP" };
                out.push(self.database, &[pop.as_bytes(), frame.elements()?.first()?.as_bytes()?]);
            }
            "lmpop" | "blmpop" => self.put_lmpop(out)?,
            "lmove" | "blmove" | "brpoplpush" => self.put_lmove(container, out)?,
            "bzpopmin" | "bzpopmax" => {
                let frame = self.frame()?;
                let [key, member, _] = frame.elements()? else { return None };
                out.push(self.database, &[b"ZREM", key.as_bytes()?, member.as_bytes()?]);
            }
            "zmpop" | "bzmpop" => self.put_zmpop(out)?,
            "xadd" => self.put_xadd(out)?,
            "xtrim" if !self.has_word(2, &["delref", "acked"]) => {
                let key = self.args.at(1);
                let kept = self.stream(key)?.entry_count().to_string();
                out.push(self.database, &[b"XTRIM", key, b"MAXLEN", kept.as_bytes()]);
            }
            "xsetid" if self.since_7() || self.args.len() == 3 => self.again(out),
            "xgroup" => self.put_xgroup(command.name, out)?,
            "xreadgroup" => self.put_xreadgroup(out)?,
            "xnack" => self.put_xnack(out)?,
            "xcfgset" | "xidmprecord" => {
                // What is remembered of producers is nothing to a Redis.
                if self.reader == Reader::Holdfast {
                    self.again(out);
                }
            }
            "xclaim" => self.put_xclaim(out)?,
            "xautoclaim" => self.put_xautoclaim(out)?,
            // These reckon without chance and without a clock, and a value of theirs may be large.
            _ if self.reader == Reader::Holdfast
                && ["json.", "bf.", "cms.", "vadd", "vrem", "vsetattr"]
                    .iter()
                    .any(|name| container.starts_with(name)) =>
            {
                self.again(out)
            }
            _ => return None,
        }
        Some(())
    }

    /// A second site may be at a higher level, where the same words would do something else: it is told values. One at
    /// a lower level than this group carries nothing out.
    fn has_other_meaning(&self, container: &str, name: &str) -> bool {
        self.reader == Reader::Holdfast
            && self.keyspace.level() == Level::FIRST
            && match container {
                // It ends with the last id below that of a deleted entry, or kept what it counted in the key.
                "xsetid" | "pfcount" => true,
                // They may be told to have read more than was ever added.
                "xgroup" => matches!(name, "create" | "setid"),
                // The names of an object are in another order then.
                "json.del" | "json.forget" | "json.merge" => true,
                _ => false,
            }
    }

    fn since_7(&self) -> bool {
        self.reader >= Reader::Redis7
    }

    fn knows_deadlines_of_fields(&self) -> bool {
        self.reader >= Reader::Redis74
    }

    fn deadline_of_field(&self, key: &[u8], field: &[u8]) -> Option<i64> {
        match self.keyspace.view(self.database, self.moment).peek(key)?.value() {
            ValueRef::Hash(hash) => hash.get_with_deadline(field)?.1,
            _ => None,
        }
    }

    fn again(&self, out: &mut Requests) {
        out.push_args(self.database, self.args);
    }

    /// True if one of the words from this one on is one of these.
    fn has_word(&self, from: usize, words: &[&str]) -> bool {
        self.args.iter().skip(from).any(|arg| words.iter().any(|word| is(arg, word)))
    }

    fn frame(&self) -> Option<Frame> {
        let mut decoder = FrameDecoder::new();
        decoder.extend(self.reply);
        decoder.next_frame().ok().flatten()
    }

    fn exists(&self, key: &[u8]) -> bool {
        self.keyspace.version(self.database, key, self.moment) != 0
    }

    fn stream(&self, key: &[u8]) -> Option<&keyspace::Stream> {
        match self.keyspace.view(self.database, self.moment).peek(key)?.value() {
            ValueRef::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    fn put_deadline(&self, out: &mut Requests) -> Option<()> {
        let key = self.args.at(1);
        match self.keyspace.view(self.database, self.moment).peek(key).map(|entry| entry.expires_at()) {
            None => out.push(self.database, &[b"DEL", key]),
            Some(None) => out.push(self.database, &[b"PERSIST", key]),
            Some(Some(at)) => out.push(self.database, &[b"PEXPIREAT", key, at.0.to_string().as_bytes()]),
        }
        Some(())
    }

    fn put_pop(&self, out: &mut Requests) {
        let count: Option<usize> = self.args.get(2).and_then(number);
        match count {
            Some(_) if !self.exists(self.args.at(1)) => out.push(self.database, &[b"DEL", self.args.at(1)]),
            Some(count) if !self.since_7() => {
                let pop = [self.args.at(0), self.args.at(1)];
                (0..count).for_each(|_| out.push(self.database, &pop));
            }
            _ => self.again(out),
        }
    }

    fn put_spop(&self, out: &mut Requests) -> Option<()> {
        let key = self.args.at(1);
        if !self.exists(key) {
            out.push(self.database, &[b"DEL", key]);
            return Some(());
        }
        let frame = self.frame()?;
        let mut words: Vec<&[u8]> = vec![b"SREM", key];
        match &frame {
            Frame::Bulk(member) => words.push(member),
            Frame::Array(members) | Frame::Set(members) => words.extend(members.iter().filter_map(Frame::as_bytes)),
            _ => return None,
        }
        out.push(self.database, &words);
        Some(())
    }

    /// Makes the deadlines of the fields that are named what they are now.
    fn put_deadlines_of_fields(&self, out: &mut Requests) -> Option<()> {
        let key = self.args.at(1);
        let Some(entry) = self.keyspace.view(self.database, self.moment).peek(key) else {
            out.push(self.database, &[b"DEL", key]);
            return Some(());
        };
        let ValueRef::Hash(hash) = entry.value() else { return None };
        let places = self.places_of_fields()?;
        for field in self.args.iter().take(places.end).skip(places.start) {
            match hash.get_with_deadline(field) {
                None => out.push(self.database, &[b"HDEL", key, field]),
                Some((_, None)) => out.push(self.database, &[b"HPERSIST", key, b"FIELDS", b"1", field]),
                Some((_, Some(at))) => {
                    let at = at.to_string();
                    out.push(self.database, &[b"HPEXPIREAT", key, at.as_bytes(), b"FIELDS", b"1", field]);
                }
            }
        }
        Some(())
    }

    /// Where the fields stand: `… FIELDS count field [field ...] …`, in front of other words or behind them.
    fn places_of_fields(&self) -> Option<Range<usize>> {
        let first = (2..self.args.len()).find(|index| is(self.args.at(*index), "fields"))? + 2;
        let count: usize = number(self.args.get(first - 1)?)?;
        Some(first..first.checked_add(count)?)
    }

    /// Fields have gone if one of them was told to expire in the past.
    fn put_fields(&self) -> Option<()> {
        let frame = self.frame()?;
        let has_gone = |code: &Frame| !matches!(code, Frame::Integer(-2..=1));
        let is_told_by_codes = !is(self.args.at(0), "hgetex");
        let may_have_gone = if is_told_by_codes {
            frame.elements()?.iter().any(has_gone)
        } else {
            // A field may have the name of an option.
            let places = self.places_of_fields()?;
            let is_option = |place: usize| !places.contains(&place);
            !(2..self.args.len()).any(|place| is_option(place) && is(self.args.at(place), "persist"))
        };
        (!may_have_gone).then_some(())
    }

    fn put_hgetdel(&self, out: &mut Requests) -> Option<()> {
        // HGETDEL key FIELDS count field [field ...]
        let mut words: Vec<&[u8]> = vec![b"HDEL", self.args.at(1)];
        words.extend(self.args.iter().skip(4));
        out.push(self.database, &words);
        Some(())
    }

    fn put_lmpop(&self, out: &mut Requests) -> Option<()> {
        let frame = self.frame()?;
        let [key, popped] = frame.elements()? else { return None };
        let (key, count) = (key.as_bytes()?, popped.elements()?.len());
        let pop = if self.has_direction("left") { b"LPOP" } else { b"RPOP" };
        if !self.exists(key) {
            out.push(self.database, &[b"DEL", key]);
        } else if self.since_7() {
            out.push(self.database, &[pop, key, count.to_string().as_bytes()]);
        } else {
            (0..count).for_each(|_| out.push(self.database, &[pop, key]));
        }
        Some(())
    }

    /// The word behind the keys of LMPOP and BLMPOP.
    fn has_direction(&self, name: &str) -> bool {
        let count_at = if is(self.args.at(0), "blmpop") { 2 } else { 1 };
        let keys: usize = self.args.get(count_at).and_then(number).unwrap_or(0);
        self.args.get(count_at + 1 + keys).is_some_and(|word| is(word, name))
    }

    fn put_lmove(&self, name: &str, out: &mut Requests) -> Option<()> {
        let (from, to) = (self.args.at(1), self.args.at(2));
        let end = |index: usize| is(self.args.at(index), "left");
        let (from_left, to_left) = if name == "brpoplpush" { (false, true) } else { (end(3), end(4)) };
        if !from_left && to_left {
            out.push(self.database, &[b"RPOPLPUSH", from, to]);
        } else if self.since_7() {
            let word = |is_left: bool| -> &[u8] { if is_left { b"LEFT" } else { b"RIGHT" } };
            out.push(self.database, &[b"LMOVE", from, to, word(from_left), word(to_left)]);
        } else {
            // Put before it is taken, so that a list of one element that is moved to itself keeps its deadline.
            let element = self.frame()?;
            let push: &[u8] = if to_left { b"LPUSH" } else { b"RPUSH" };
            out.push(self.database, &[push, to, element.as_bytes()?]);
            out.push(self.database, &[if from_left { &b"LPOP"[..] } else { b"RPOP" }, from]);
        }
        Some(())
    }

    fn put_zmpop(&self, out: &mut Requests) -> Option<()> {
        let frame = self.frame()?;
        let [key, popped] = frame.elements()? else { return None };
        let mut words: Vec<&[u8]> = vec![b"ZREM", key.as_bytes()?];
        for pair in popped.elements()? {
            words.push(pair.elements()?.first()?.as_bytes()?);
        }
        out.push(self.database, &words);
        Some(())
    }

    fn put_xadd(&self, out: &mut Requests) -> Option<()> {
        let frame = self.frame()?;
        let (key, id) = (self.args.at(1), frame.as_bytes()?);
        let (mut index, mut trims, mut once) = (2, false, None);
        while let Some(word) = self.args.get(index) {
            if is(word, "nomkstream") || is(word, "keepref") {
                index += 1;
            } else if is(word, "idmp") || is(word, "idmpauto") {
                let own = if is(word, "idmp") { Some(self.args.get(index + 2)?.to_vec()) } else { None };
                once = Some((self.args.get(index + 1)?, own));
                index += if is(word, "idmp") { 3 } else { 2 };
            } else if is(word, "maxlen") || is(word, "minid") {
                trims = true;
                let has_sign = self.args.get(index + 1).is_some_and(|sign| matches!(sign, b"~" | b"="));
                index += if has_sign { 3 } else { 2 };
            } else if is(word, "limit") {
                index += 2;
            } else {
                break;
            }
        }
        // What is no id is an option. Its effect on groups cannot be expressed in these words.
        let place = self.args.get(index)?;
        if place != b"*" && !place.first()?.is_ascii_digit() {
            return None;
        }
        if once.is_some() && self.stream(key)?.has_met_duplicate() {
            // Nothing was added.
            return Some(());
        }
        let mut words: Vec<&[u8]> = vec![b"XADD", key, id];
        words.extend(self.args.iter().skip(index + 1));
        out.push(self.database, &words);
        if let Some((producer, own)) = once
            && self.reader == Reader::Holdfast
        {
            let own = own.unwrap_or_else(|| keyspace::Stream::own_id_of(self.args.iter().skip(index + 1)).to_vec());
            out.push(self.database, &[b"XIDMPRECORD", key, producer, &own, id]);
        }
        if trims {
            let kept = self.stream(key)?.entry_count().to_string();
            out.push(self.database, &[b"XTRIM", key, b"MAXLEN", kept.as_bytes()]);
        }
        Some(())
    }

    fn put_xgroup(&self, name: &str, out: &mut Requests) -> Option<()> {
        match name {
            "createconsumer" if !self.since_7() => return None,
            "create" | "setid" if !self.since_7() && self.has_word(4, &["entriesread"]) => return None,
            _ => self.again(out),
        }
        Some(())
    }

    /// Tells how far a group has read.
    fn put_place(&self, key: &[u8], group: &[u8], out: &mut Requests) -> Option<()> {
        let stream = self.stream(key)?;
        let (last, read) = stream.place_of_group(group)?;
        // Only at level 1 a group can have read more than was ever added, and no other can be told so.
        if self.reader == Reader::Holdfast && read.is_some_and(|read| read > stream.added_count()) {
            return None;
        }
        let (last, read) = (id_text(last), read.map_or("-1".to_owned(), |read| read.to_string()));
        let words: [&[u8]; 7] = [b"XGROUP", b"SETID", key, group, last.as_bytes(), b"ENTRIESREAD", read.as_bytes()];
        out.push(self.database, &words[..if self.since_7() { 7 } else { 5 }]);
        Some(())
    }

    fn put_xreadgroup(&self, out: &mut Requests) -> Option<()> {
        let (mut index, mut is_acknowledged, mut asks) = (1, false, None);
        loop {
            let word = self.args.get(index)?;
            if is(word, "group") {
                asks = Some((self.args.get(index + 1)?, self.args.get(index + 2)?));
                index += 3;
            } else if is(word, "noack") {
                is_acknowledged = true;
                index += 1;
            } else if is(word, "streams") {
                break;
            } else if is(word, "claim") {
                return None; // what was given before counts on, by how much only the group knows
            } else {
                index += 2;
            }
        }
        let (group, consumer) = asks?;
        let count = (self.args.len() - index - 1) / 2;
        let time = self.moment.unix.0.to_string();
        let frame = self.frame()?;
        let mut given: Vec<(&[u8], &[Frame])> = Vec::new();
        match &frame {
            Frame::Map(pairs) => {
                for (key, entries) in pairs {
                    given.push((key.as_bytes()?, entries.elements()?));
                }
            }
            Frame::Array(pairs) => {
                for pair in pairs {
                    let [key, entries] = pair.elements()? else { return None };
                    given.push((key.as_bytes()?, entries.elements()?));
                }
            }
            // Nothing but that the consumer is known now.
            Frame::Null => {}
            _ => return None,
        }
        for nth in 0..count {
            let (key, since) = (self.args.at(index + 1 + nth), self.args.at(index + 1 + count + nth));
            if self.since_7() {
                out.push(self.database, &[&b"XGROUP"[..], b"CREATECONSUMER", key, group, consumer]);
            }
            // What is given again, Redis counts at the node that gives it, and tells nobody.
            if since != b">" {
                continue;
            }
            let entries = given.iter().filter(|(named, _)| *named == key).flat_map(|(_, entries)| entries.iter());
            let mut ids: Vec<&[u8]> = Vec::new();
            for entry in entries {
                ids.push(entry.elements()?.first()?.as_bytes()?);
            }
            if ids.is_empty() {
                continue;
            }
            if !is_acknowledged {
                let mut words: Vec<&[u8]> = vec![b"XCLAIM", key, group, consumer, b"0"];
                words.extend(&ids);
                words.extend([&b"TIME"[..], time.as_bytes(), b"RETRYCOUNT", b"1", b"FORCE", b"JUSTID"]);
                out.push(self.database, &words);
            }
            self.put_place(key, group, out)?;
        }
        Some(())
    }

    /// One by one, with the count that each has now. Where nothing can be without an owner a consumer without a name
    /// gets it, at a time so long ago that anybody may claim it.
    fn put_xnack(&self, out: &mut Requests) -> Option<()> {
        let (key, group) = (self.args.at(1), self.args.at(2));
        let at = (4..self.args.len()).find(|index| is(self.args.at(*index), "ids"))?;
        let count: usize = number(self.args.get(at + 1)?)?;
        let stream = self.stream(key)?;
        let ids = || self.args.iter().skip(at + 2).take(count);
        // There XCLAIM forgets what is pending and no longer in the stream.
        if self.reader < Reader::Holdfast && ids().any(|id| !stream.has(id)) {
            return None;
        }
        for id in ids() {
            let Some(count) = stream.released_count_of(group, id) else { continue };
            let count = count.to_string();
            let count = count.as_bytes();
            match self.reader {
                Reader::Holdfast if stream.is_given_up(group, id) => {
                    out.push(self.database, &[b"XNACK", key, group, b"FATAL", b"IDS", b"1", id, b"FORCE"]);
                }
                Reader::Holdfast => out.push(
                    self.database,
                    &[b"XNACK", key, group, b"FAIL", b"IDS", b"1", id, b"RETRYCOUNT", count, b"FORCE"],
                ),
                _ => out.push(
                    self.database,
                    &[
                        &b"XCLAIM"[..],
                        key,
                        group,
                        b"",
                        b"0",
                        id,
                        b"TIME",
                        b"0",
                        b"RETRYCOUNT",
                        count,
                        b"FORCE",
                        b"JUSTID",
                    ],
                ),
            }
        }
        Some(())
    }

    fn put_xclaim(&self, out: &mut Requests) -> Option<()> {
        let frame = self.frame()?;
        let claimed = ids_of(frame.elements()?)?;
        let key = self.args.at(1);
        let is_id = |word: &[u8]| word.first().is_some_and(u8::is_ascii_digit);
        let asked: Vec<&[u8]> = self.args.iter().skip(5).take_while(|word| is_id(word)).collect();
        let now = self.moment.unix.0;
        let (mut time, mut rest) = (now, Vec::<&[u8]>::new());
        let mut index = 5 + asked.len();
        while let Some(word) = self.args.get(index) {
            if is(word, "force") || is(word, "justid") {
                rest.push(word);
                index += 1;
                continue;
            }
            let value = self.args.get(index + 1)?;
            match () {
                () if is(word, "idle") => time = now.wrapping_sub(number(value)?),
                () if is(word, "time") => time = number(value)?,
                () => rest.extend([word, value]),
            }
            index += 2;
        }
        let time = if (0..=now).contains(&time) { time } else { now }.to_string();
        self.put_claimed(key, &claimed, &time, &rest, out);
        let stream = self.stream(key)?;
        let gone: Vec<&[u8]> = asked.into_iter().filter(|id| !stream.has(id)).collect();
        self.put_acknowledged(key, &gone, out);
        Some(())
    }

    fn put_xautoclaim(&self, out: &mut Requests) -> Option<()> {
        let frame = self.frame()?;
        let [_, claimed, gone] = frame.elements()? else { return None };
        let (claimed, gone) = (ids_of(claimed.elements()?)?, ids_of(gone.elements()?)?);
        let time = self.moment.unix.0.to_string();
        let only_ids: &[&[u8]] = if self.has_word(6, &["justid"]) { &[b"JUSTID"] } else { &[] };
        self.put_claimed(self.args.at(1), &claimed, &time, only_ids, out);
        self.put_acknowledged(self.args.at(1), &gone, out);
        Some(())
    }

    fn put_claimed(&self, key: &[u8], ids: &[&[u8]], time: &str, rest: &[&[u8]], out: &mut Requests) {
        let (group, consumer) = (self.args.at(2), self.args.at(3));
        if self.since_7() {
            out.push(self.database, &[&b"XGROUP"[..], b"CREATECONSUMER", key, group, consumer]);
        }
        if !ids.is_empty() {
            let mut words: Vec<&[u8]> = vec![b"XCLAIM", key, group, consumer, b"0"];
            words.extend(ids);
            words.extend([&b"TIME"[..], time.as_bytes()]);
            words.extend(rest);
            out.push(self.database, &words);
        }
    }

    fn put_acknowledged(&self, key: &[u8], ids: &[&[u8]], out: &mut Requests) {
        if !ids.is_empty() {
            let mut words: Vec<&[u8]> = vec![b"XACK", key, self.args.at(2)];
            words.extend(ids);
            out.push(self.database, &words);
        }
    }
}

/// The ids among entries, or ids alone.
fn ids_of(entries: &[Frame]) -> Option<Vec<&[u8]>> {
    entries
        .iter()
        .map(|entry| match entry.elements() {
            Some(parts) => parts.first()?.as_bytes(),
            None => entry.as_bytes(),
        })
        .collect()
}

fn id_text(id: Id) -> String {
    format!("{}-{}", id.ms, id.seq)
}

fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

fn number<T: std::str::FromStr>(word: &[u8]) -> Option<T> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

//! Keys on their way from one keyspace to another: operands of transactions that run elsewhere, and what came of them.
//!
//! A collection may have millions of elements, so both ways can be gone in steps. What is on its way out is as it was
//! when it began, whatever becomes of the key: it shares the collection's nodes.

use super::{
    Corrupt, HAS_DEADLINE, IS_COLLECTION, Items, Keyspace, LargeValue, Moment, Reader, Value, flags_of, write_value,
};
use crate::Access;
use crate::collection::{self, Collection};
use crate::value::{CollectionValue, Kept};

/// Behind the deadline stand the seconds since the last use, or the counter of uses. In what replicas store there is
/// neither: it is each replica's own.
const HAS_IDLE_SECONDS: u8 = 16;
const HAS_FREQUENCY: u8 = 32;

/// A key on its way out.
#[derive(Debug)]
pub struct Exporting {
    out: Vec<u8>,
    /// A large collection, and the rank of its next element.
    rest: Option<(Box<Collection>, usize)>,
}

impl Exporting {
    /// One that is done.
    pub fn done(exported: Vec<u8>) -> Self {
        Self { out: exported, rest: None }
    }

    /// Writes about so many bytes more. True if that is all.
    pub fn step(&mut self, budget_bytes: usize) -> bool {
        let Some((collection, rank)) = &mut self.rest else { return true };
        let end = self.out.len() + budget_bytes.max(1);
        *rank = collection.write_part(*rank, &mut self.out, end);
        *rank >= collection.len()
    }

    /// Bytes written so far.
    pub fn byte_count(&self) -> usize {
        self.out.len()
    }

    /// What [`Keyspace::export`] gives. It must have been gone through to its end.
    pub fn into_bytes(self) -> Vec<u8> {
        debug_assert!(
            self.rest.as_ref().is_none_or(|(collection, rank)| *rank == collection.len()),
            "the end is missing"
        );
        self.out
    }
}

/// A key on its way in, from what [`Keyspace::export`] gave. Anyone who takes the steps keeps the bytes.
#[derive(Debug)]
pub struct Importing {
    /// Up to here they have been read.
    at: usize,
    deadline: Option<i64>,
    access: Option<Access>,
    value: Value,
    /// How many elements a large collection will have.
    len: usize,
}

/// A key that has come: a value with its deadline.
#[derive(Debug)]
pub struct Imported {
    value: Value,
    deadline: Option<i64>,
    access: Option<Access>,
}

impl Importing {
    /// Begins to read a key. Anything but a large collection is read at once.
    ///
    /// # Errors
    /// [`Corrupt`] if the bytes are not an exported key.
    pub fn new(bytes: &[u8]) -> Result<Self, Corrupt> {
        let read = |bytes: &[u8]| {
            let mut reader = Reader { bytes };
            let flags = reader.byte()?;
            let deadline = if flags & HAS_DEADLINE == 0 { None } else { Some(reader.i64()?) };
            let access = match flags & (HAS_IDLE_SECONDS | HAS_FREQUENCY) {
                0 => None,
                HAS_IDLE_SECONDS => Some(Access::IdleSeconds(reader.i64()?.try_into().ok()?)),
                HAS_FREQUENCY => Some(Access::Frequency(reader.byte()?)),
                _ => return None,
            };
            let large = (flags & IS_COLLECTION != 0).then(|| reader.items(collection::read_exact_head)).flatten();
            let (value, len) = match large {
                Some((collection, len)) => (Value::Collection(CollectionValue(Kept::Large(Box::new(collection)))), len),
                None => (reader.value(flags)?, 0),
            };
            Some(Self { at: bytes.len() - reader.bytes.len(), deadline, access, value, len })
        };
        read(bytes).ok_or(Corrupt { offset: 0 })
    }

    /// Reads about so many bytes more, of those that it began with. True if that was all.
    ///
    /// # Errors
    /// [`Corrupt`] if the bytes are not an exported key.
    pub fn step(&mut self, bytes: &[u8], budget_bytes: usize) -> Result<bool, Corrupt> {
        let rest = &bytes[self.at..];
        let Value::Collection(CollectionValue(Kept::Large(collection))) = &mut self.value else {
            return if rest.is_empty() { Ok(true) } else { Err(Corrupt { offset: self.at }) };
        };
        let mut items = Items::new(rest);
        let end = rest.len().saturating_sub(budget_bytes.max(1));
        let corrupt = Corrupt { offset: self.at };
        while collection.len() < self.len && items.rest().len() > end {
            collection.read_one(&mut items).ok_or(corrupt)?;
        }
        self.at += rest.len() - items.rest().len();
        match (collection.len() < self.len, items.is_done()) {
            // What is empty has as many elements as were announced, but is not whole.
            (false, true) if !collection.is_empty() => Ok(true),
            (true, false) => Ok(false),
            _ => Err(corrupt),
        }
    }

    /// The key as far as it has been read.
    pub fn into_imported(self) -> Imported {
        Imported { value: self.value, deadline: self.deadline, access: self.access }
    }
}

/// True for what [`Keyspace::export`] gives. It is read for that, as it is when it is stored.
pub fn is_exported(bytes: &[u8]) -> bool {
    let read = || {
        let mut importing = Importing::new(bytes)?;
        while !importing.step(bytes, usize::MAX)? {}
        Ok::<_, Corrupt>(())
    };
    read().is_ok()
}

impl Keyspace {
    /// Begins to write out a key with its deadline. `None` if it does not exist at `moment`.
    pub fn begin_export(&self, database: u16, key: &[u8], moment: Moment) -> Option<Exporting> {
        self.begin_export_with(database, key, moment, false)
    }

    /// The same, and how it was used here, for OBJECT IDLETIME and FREQ: not for what replicas store.
    pub fn begin_export_with_use(&self, database: u16, key: &[u8], moment: Moment) -> Option<Exporting> {
        self.begin_export_with(database, key, moment, true)
    }

    fn begin_export_with(&self, database: u16, key: &[u8], moment: Moment, tells_use: bool) -> Option<Exporting> {
        let now = self.view(database, moment).expired_until();
        let record = self.find(database, key).filter(|record| record.is_alive(now))?;
        let mut out = Vec::with_capacity(record.footprint());
        out.push(flags_of(record));
        if let Some(deadline) = record.deadline() {
            out.extend_from_slice(&deadline.to_le_bytes());
        }
        if tells_use && self.tuning().policy.counts_uses() {
            out[0] |= HAS_FREQUENCY;
            out.push(self.clock.frequency(record.clock(), moment));
        } else if tells_use {
            out[0] |= HAS_IDLE_SECONDS;
            out.extend_from_slice(&self.clock.idle_seconds(record.clock(), moment).to_le_bytes());
        }
        let rest = record.collection().map(|collection| {
            collection::write_large_head(&mut out, collection);
            (Box::new(collection.clone()), 0)
        });
        if rest.is_none() {
            write_value(&mut out, record);
        }
        Some(Exporting { out, rest })
    }

    /// One key as bytes, with its deadline: its operand in a transaction that runs elsewhere. `None` if it does not
    /// exist at `moment`.
    pub fn export(&self, database: u16, key: &[u8], moment: Moment) -> Option<Vec<u8>> {
        let mut exporting = self.begin_export(database, key, moment)?;
        while !exporting.step(usize::MAX / 2) {}
        Some(exporting.into_bytes())
    }

    /// Stores under `key` what [`Keyspace::export`] gave, or removes the key if that was nothing. Counts as one change
    /// at `moment`.
    ///
    /// # Errors
    /// [`Corrupt`] if the bytes are not an exported key; nothing has changed then.
    pub fn import(
        &mut self,
        database: u16,
        key: &[u8],
        exported: Option<&[u8]>,
        moment: Moment,
    ) -> Result<(), Corrupt> {
        let imported = match exported {
            Some(bytes) => {
                let mut importing = Importing::new(bytes)?;
                while !importing.step(bytes, usize::MAX)? {}
                Some(importing.into_imported())
            }
            None => None,
        };
        self.put_imported(database, key, imported, moment);
        Ok(())
    }

    /// Stores a key that has come, or removes it if there is nothing. Counts as one change at `moment`.
    pub fn put_imported(&mut self, database: u16, key: &[u8], imported: Option<Imported>, moment: Moment) {
        self.notices.touch(database, key);
        let mut edit = self.edit(database, moment);
        match imported {
            Some(Imported { value, deadline, access }) => {
                edit.put(database, key, value, deadline.map(stdx::UnixMillis), access);
            }
            None => {
                edit.remove(key);
            }
        }
    }

    /// Takes a key that has come and is not wanted any more, to be freed in steps.
    pub fn free_imported_later(&mut self, imported: Imported) {
        if let Value::Collection(CollectionValue(Kept::Large(collection))) = imported.value {
            LargeValue::Many(*collection).free_later(&mut self.lazy_free);
        }
    }

    /// Removes every key of every database. Their memory is given back by [`Keyspace::collect`].
    pub fn clear(&mut self, moment: Moment) {
        for database in 0..self.database_count() {
            self.edit(database, moment).flush(database);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Harness;

    /// A keyspace with a large value of each type.
    fn large_values() -> (Harness, Vec<String>) {
        let mut harness = Harness::new();
        harness.run("CMS.INITBYDIM counts 100000 5");
        harness.run("BF.RESERVE filter 0.001 3000");
        for number in 0..3_000 {
            harness.run(&format!("HSET hash field{number} {number}"));
            harness.run(&format!("SADD set member{number}"));
            harness.run(&format!("RPUSH list item{number}"));
            harness.run(&format!("CMS.INCRBY counts item{number} 1"));
            harness.run(&format!("BF.ADD filter item{number}"));
            if number % 10 == 0 {
                harness.run(&format!("VADD vectors VALUES 2 1 {} e{number} EF 20 SETATTR {{}}", number % 700));
            }
            harness.run(&format!("ZADD sorted {number} member{number}"));
            harness.run(&format!("XADD stream {}-1 field {number}", number + 1));
        }
        harness.run("XGROUP CREATE stream readers 0");
        harness.run("XREADGROUP GROUP readers one COUNT 700 STREAMS stream >");
        let entries: Vec<_> = (0..3_000).map(|number| format!("'name{number}':[{number},[2.5,null]]")).collect();
        harness.run(&format!("JSON.SET document $ {{{}}}", entries.join(",").replace('\'', "\"")));
        harness.run("JSON.SET page $ {\"a\":[1,true,null]}");
        harness.run("SET text abc");
        harness.run("SADD small a b c");
        harness.run("PEXPIRE hash 100000");
        harness.run("XADD drained 1-1 field 1");
        harness.run("XGROUP CREATE drained readers 0");
        harness.run("XTRIM drained MAXLEN 0");
        harness.run("TOPK.RESERVE top 3");
        harness.run("TOPK.ADD top a b c d a");
        harness.run("TDIGEST.CREATE digest");
        harness.run("TDIGEST.ADD digest 1 2 3");
        harness.run("CF.ADD cuckoo a");
        let names = [
            "counts", "filter", "top", "digest", "cuckoo", "hash", "set", "list", "sorted", "stream", "document",
            "page", "drained", "text", "small", "vectors",
        ]
        .map(str::to_owned);
        (harness, names.to_vec())
    }

    #[test]
    fn a_value_that_travels_in_steps_arrives_as_one_that_travels_whole() {
        let (harness, names) = large_values();
        let moment = Moment::at(harness.now, 42);
        for name in &names {
            let key = name.as_bytes();
            let whole = harness.keyspace.export(0, key, moment).expect("it exists");
            let mut exporting = harness.keyspace.begin_export(0, key, moment).expect("it exists");
            let mut steps = 1;
            while !exporting.step(1_000) {
                steps += 1;
            }
            assert_eq!(exporting.into_bytes(), whole, "{name}");
            assert_eq!(steps > 10, whole.len() > 10_000, "{name} took {steps} steps for {} bytes", whole.len());
            let mut there = harness.keyspace.new_like();
            let mut importing = Importing::new(&whole).expect("an exported key");
            let mut steps = 1;
            while !importing.step(&whole, 1_000).expect("an exported key") {
                steps += 1;
            }
            assert_eq!(steps > 10, whole.len() > 10_000, "{name} took {steps} steps for {} bytes", whole.len());
            there.put_imported(0, key, Some(importing.into_imported()), moment);
            assert_eq!(there.export(0, key, moment).as_ref(), Some(&whole), "{name}");
            there.clear(moment);
            while there.collect(moment, 500) {}
            assert_eq!(there.export(0, key, moment), None);
        }
    }

    #[test]
    fn what_is_on_its_way_out_does_not_see_later_changes() {
        let (mut harness, _) = large_values();
        let moment = Moment::at(harness.now, 42);
        let whole = harness.keyspace.export(0, b"set", moment);
        let mut exporting = harness.keyspace.begin_export(0, b"set", moment).expect("it exists");
        exporting.step(100);
        harness.run("SADD set another");
        harness.run("SREM set member1 member2 member3");
        harness.run("DEL set");
        while !exporting.step(100) {}
        assert_eq!(Some(exporting.into_bytes()), whole);
    }

    #[test]
    fn bytes_that_end_too_early_or_too_late_are_refused() {
        let (harness, names) = large_values();
        for name in &names {
            let whole = harness.keyspace.export(0, name.as_bytes(), Moment::at(harness.now, 42)).expect("it exists");
            let read = |bytes: &[u8]| {
                let mut importing = Importing::new(bytes)?;
                while !importing.step(bytes, 500)? {}
                Ok::<_, Corrupt>(())
            };
            assert_eq!(read(&whole), Ok(()), "{name}");
            assert!(read(&whole[..whole.len() - 1]).is_err(), "{name}");
            assert!(read(&[&whole[..], b"x"].concat()).is_err(), "{name}");
        }
    }

    #[test]
    fn a_vector_set_that_has_more_elements_than_are_announced_is_refused() {
        let mut harness = Harness::new();
        harness.run("VADD vectors VALUES 2 1 2 a");
        let whole = harness.keyspace.export(0, b"vectors", Moment::at(harness.now, 42)).expect("it exists");
        // Flags, the type, how many items follow, and the first of them, which is the head, with its length before it.
        assert_eq!(whole[2], 2);
        let mut head = whole[..4 + usize::from(whole[3])].to_vec();
        head[2] = 1;
        let mut importing = Importing::new(&head).expect("the beginning of an exported key");
        assert!(importing.step(&head, usize::MAX).is_err());
    }
}

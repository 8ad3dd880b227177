//! The data side of Redis's DEBUG: what a key looks like inside, and digests by which data sets are compared.
//!
//! The digests are Redis's own, so that a data set can be compared with a stock server's. They are built from two
//! operations on twenty bytes: *adding* exclusive-ors the SHA-1 of something, so that the order of things added does
//! not matter; *mixing* adds and then takes the SHA-1 of the result, so that it does.

use command::Refusal;

use crate::Policy;
use crate::collection::Space;
use crate::collection::hash::expiring::NEVER;
use crate::collection::stream::{Direction, Id, Stream};
use crate::context::{Entry, View};
use crate::double;
use crate::rdb;
use crate::sha1::sha1;
use crate::value::{ItoaBuffer, Str, ValueRef};

/// Numbers below this are shared objects in Redis, unless an eviction policy needs an access time for each key.
const SHARED_INTEGER_END: i64 = 10_000;

/// What Redis answers for the reference count of a shared object.
const SHARED_REFERENCE_COUNT: i64 = i32::MAX as i64;

/// The references that Redis would hold to a value. Here none is ever shared, but clients look at the number.
pub(crate) fn reference_count(view: &View<'_>, entry: &Entry<'_>) -> i64 {
    match entry.value() {
        ValueRef::String(Str::Integer(0..SHARED_INTEGER_END)) if !notes_uses(view) => SHARED_REFERENCE_COUNT,
        _ => 1,
    }
}

/// True if the policy needs every key to know when or how often it was used.
fn notes_uses(view: &View<'_>) -> bool {
    let policy = view.keyspace().tuning().policy;
    policy.counts_uses() || matches!(policy, Policy::AllkeysLru | Policy::VolatileLru)
}

/// A digest in the making, or made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest([u8; 20]);

impl Digest {
    /// Joins the keys of another group of the same database.
    pub fn join(&mut self, other: Self) {
        for (byte, other) in self.0.iter_mut().zip(other.0) {
            *byte ^= other;
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        self.join(Self(sha1(bytes)));
    }

    fn mix(&mut self, bytes: &[u8]) {
        self.add(bytes);
        self.0 = sha1(&self.0);
    }
}

/// As DEBUG DIGEST prints it: forty hexadecimal digits.
impl std::fmt::Display for Digest {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

/// What DEBUG DIGEST-VALUE says of a key: all zeros if it is absent.
pub fn value_digest(view: &View<'_>, key: &[u8]) -> Digest {
    let mut digest = Digest::default();
    if let Some(entry) = view.peek(key) {
        mix_value(&mut digest, &entry, view.moment().unix.0);
    }
    digest
}

/// The keys of this group in one database; `None` if there are none. Groups are joined by [`Digest::join`], databases
/// by [`dataset_digest`].
pub fn database_digest(view: &View<'_>) -> Option<Digest> {
    let mut joined = None;
    view.for_each(|entry| {
        let mut digest = Digest::default();
        digest.mix(entry.key());
        mix_value(&mut digest, &entry, view.moment().unix.0);
        joined.get_or_insert_with(Digest::default).add(&digest.0);
    });
    joined
}

/// What DEBUG DIGEST says of a whole data set, given its databases that are not empty in rising order.
pub fn dataset_digest(databases: impl IntoIterator<Item = (u16, Digest)>) -> Digest {
    databases.into_iter().fold(Digest::default(), |mut whole, (database, digest)| {
        whole.mix(&u32::from(database).to_be_bytes());
        whole.join(digest);
        whole
    })
}

fn mix_value(digest: &mut Digest, entry: &Entry<'_>, now: i64) {
    let value = entry.value();
    digest.mix(&type_number(value).to_be_bytes());
    match value {
        ValueRef::String(string) => digest.mix(string.to_bytes(&mut ItoaBuffer::new())),
        ValueRef::Hash(hash) => {
            for (field, value, deadline) in hash.iter_with_deadlines() {
                let mut pair = Digest::default();
                pair.mix(field);
                pair.mix(value);
                // As of keys, it counts that there is a deadline, not when.
                if deadline != NEVER {
                    pair.add(b"!!hexpire!!");
                }
                digest.add(&pair.0);
            }
        }
        ValueRef::Set(set) => {
            let mut buffer = ItoaBuffer::new();
            set.iter().for_each(|member| digest.add(member.to_bytes(&mut buffer)));
        }
        ValueRef::List(list) => list.iter().for_each(|item| digest.mix(item)),
        ValueRef::SortedSet(set) => {
            for (member, score) in set.iter() {
                let mut pair = Digest::default();
                pair.mix(member);
                pair.mix(double::print(score).as_bytes());
                digest.add(&pair.0);
            }
        }
        ValueRef::Stream(stream) => mix_stream(digest, stream, now),
        // Its text tells all but how it is kept.
        ValueRef::Json(document) => digest.mix(&document.text()),
        // Cells that hold nothing may be there or not.
        ValueRef::Sketch(_) => digest.mix(&rdb::dump(value)),
        ValueRef::Vectors(space) => mix_vectors(digest, space),
    }
    if entry.expires_at().is_some() {
        digest.add(b"!!expire!!");
    }
}

/// Entries as Redis mixes them; then, unlike there, what groups know.
fn mix_stream(digest: &mut Digest, stream: &Stream, now: i64) {
    stream.visit(Id::MIN, Id::MAX, Direction::Up, usize::MAX, |entry| {
        digest.mix(format!("{}.{}", entry.id.ms, entry.id.seq).as_bytes());
        for (field, value) in entry.pairs() {
            digest.mix(field.to_bytes(&mut ItoaBuffer::new()));
            digest.mix(value.to_bytes(&mut ItoaBuffer::new()));
        }
    });
    for group in stream.groups().iter() {
        digest.mix(&group.name);
        digest.mix(&group.last.to_bytes());
        for consumer in group.consumers.iter() {
            digest.mix(&consumer.name);
            digest.mix(&consumer.seen.to_be_bytes());
        }
        for pending in group.pending.iter() {
            digest.mix(&pending.id.to_bytes());
            digest.mix(pending.owner().map_or(b"", |owner| owner));
            digest.mix(&pending.time().to_be_bytes());
            digest.mix(&pending.count.to_be_bytes());
        }
        // In the order in which they are given out.
        group.released().for_each(|id| digest.mix(&id.to_bytes()));
    }
    let Some(idempotence) = stream.idempotence() else { return };
    digest.mix(&idempotence.duration_s.to_be_bytes());
    digest.mix(&idempotence.ids_max.to_be_bytes());
    // What has expired is nothing any more, whether it has been swept away or not.
    for (name, ids) in idempotence.producers() {
        for (own, id) in ids.filter(|(own, _)| idempotence.find(name, own, now.max(0).cast_unsigned()).is_some()) {
            digest.mix(name);
            digest.mix(own);
            digest.mix(&id.to_bytes());
        }
    }
}

/// Elements in whatever order, each with the elements that it leads to on each layer: so a graph counts, and slots do
/// not.
fn mix_vectors(digest: &mut Digest, space: Space<'_>) {
    let set = space.set();
    digest.mix(format!("{:?}", set.shape()).as_bytes());
    for slot in 0..set.len() as u32 {
        let body = set.body(slot);
        let mut element = Digest::default();
        element.mix(body.name());
        element.mix(body.direction().bytes);
        element.mix(&body.direction().range.to_bits().to_be_bytes());
        element.mix(&body.length().to_bits().to_be_bytes());
        element.mix(body.attributes().unwrap_or_default());
        for layer in 0..=set.level_of(slot) {
            let mut links = Digest::default();
            set.links(slot, layer).iter().for_each(|&link| links.add(set.body(link).name()));
            element.mix(&links.0);
        }
        digest.add(&element.0);
    }
}

/// The number of a type, as Redis counts types.
fn type_number(value: ValueRef<'_>) -> u32 {
    match value {
        ValueRef::String(_) => 0,
        ValueRef::List(_) => 1,
        ValueRef::Set(_) => 2,
        ValueRef::SortedSet(_) => 3,
        ValueRef::Hash(_) => 4,
        ValueRef::Json(_) | ValueRef::Sketch(_) | ValueRef::Vectors(_) => 5,
        ValueRef::Stream(_) => 6,
    }
}

/// The line that DEBUG OBJECT prints of a key.
///
/// # Errors
/// [`Refusal::NO_SUCH_KEY`].
pub fn object_line(view: &View<'_>, key: &[u8]) -> Result<String, Refusal> {
    let entry = view.peek(key).ok_or(Refusal::NO_SUCH_KEY)?;
    let idle_seconds = entry.idle_seconds(view.moment());
    // A number that stays while the key does takes the address's place: addresses differ from replica to replica.
    let place = sha1(key)[..6].iter().fold(0u64, |place, &byte| place << 8 | u64::from(byte));
    Ok(format!(
        "Value at:{place:#x} refcount:{} encoding:{} serializedlength:{} lru:{} lru_seconds_idle:{idle_seconds}",
        reference_count(view, &entry),
        entry.encoding(),
        rdb::payload_bytes(entry.value()),
        (view.moment().unix.0 / 1000 - idle_seconds as i64) & 0xFF_FFFF,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Harness;
    use crate::{Keyspace, Moment};

    fn view(harness: &Harness, database: u16) -> View<'_> {
        harness.keyspace.view(database, Moment::at(harness.now, 0))
    }

    fn dataset(keyspace: &Keyspace, moment: Moment) -> String {
        let databases = 0..keyspace.database_count();
        let digests = databases.filter_map(|number| Some((number, database_digest(&keyspace.view(number, moment))?)));
        dataset_digest(digests).to_string()
    }

    #[test]
    fn digests_are_those_of_a_redis_with_the_same_data() {
        let mut harness = Harness::new();
        assert_eq!(dataset(&harness.keyspace, Moment::at(harness.now, 0)), "0".repeat(40));
        for line in ["SET text abc", "SET number 12345", "SET volatile x PX 100000000"] {
            harness.run(line);
        }
        for (key, digest) in [
            ("text", "21ffcd2d36aebffca02995acb412bcb827d4c1db"),
            ("number", "e1cf90774e995ae03de66e8109dc5cb9d9c2dc83"),
            ("volatile", "0745672cb1bf060476eedeb8a28f5ffe1ff5a2be"),
            ("absent", "0000000000000000000000000000000000000000"),
        ] {
            assert_eq!(value_digest(&view(&harness, 0), key.as_bytes()).to_string(), digest, "{key}");
        }
        let moment = Moment::at(harness.now, 0);
        assert_eq!(dataset(&harness.keyspace, moment), "f8e3f2e12acd9bde9f1641e7f491a017e77092d0");
        harness.database = 3;
        harness.run("SET text abc");
        harness.run(&format!("SET huge {}", "x".repeat(5000)));
        assert_eq!(dataset(&harness.keyspace, moment), "5d103444cce26e66a9296c089cf7d2c3ffd68fa5");
    }

    #[test]
    fn groups_join_to_the_digest_of_the_whole() {
        let mut whole = Harness::new();
        let mut parts = [Harness::new(), Harness::new()];
        for number in 0..50 {
            let line = format!("SET key:{number} {number}");
            whole.run(&line);
            parts[number % 2].run(&line);
        }
        let mut joined = Digest::default();
        for part in &parts {
            joined.join(database_digest(&view(part, 0)).expect("half of the keys"));
        }
        assert_eq!(Some(joined), database_digest(&view(&whole, 0)));
        assert_eq!(database_digest(&view(&whole, 1)), None);
    }

    #[test]
    fn an_object_is_described_in_redis_words() {
        let mut harness = Harness::new();
        harness.run(&format!("SET huge {}", "x".repeat(5000)));
        harness.now += 3_000;
        let line = object_line(&view(&harness, 0), b"huge").expect("a key");
        let (place, rest) = line.split_once(' ').and_then(|(_, rest)| rest.split_once(' ')).expect("words");
        assert!(place.starts_with("at:0x"), "{line}");
        let seconds = ((harness.now / 1000) - 3) & 0xFF_FFFF;
        let expected = format!("refcount:1 encoding:raw serializedlength:67 lru:{seconds} lru_seconds_idle:3");
        assert_eq!(rest, expected);
        assert_eq!(object_line(&view(&harness, 0), b"absent"), Err(Refusal::NO_SUCH_KEY));
    }
}

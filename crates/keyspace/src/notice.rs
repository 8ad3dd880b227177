//! What happens to keys, for those who listen (`notify-keyspace-events`).
//!
//! A handler reports what it did with [`Edit::notify`](crate::Edit::notify), under Redis's name for it; that a key has
//! expired is reported by the keyspace itself. Nothing is noted that nobody has asked for, and nothing that is
//! replicated depends on it.
//!
//! Keys that somebody waits for are noted whatever happens to them, apart from that.

use std::collections::BTreeSet;

use crate::table::Gone;

/// What kind of thing happened: a letter of `notify-keyspace-events`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Class {
    /// `g`: commands on any type, such as DEL, EXPIRE and RENAME.
    Generic = 1 << 0,
    /// `$`
    String = 1 << 1,
    /// `l`
    List = 1 << 2,
    /// `s`
    Set = 1 << 3,
    /// `h`
    Hash = 1 << 4,
    /// `z`
    SortedSet = 1 << 5,
    /// `x`: a key has reached its deadline.
    Expired = 1 << 6,
    /// `e`: a key was removed because memory is full.
    Evicted = 1 << 7,
    /// `t`
    Stream = 1 << 8,
    /// `d`: what modules report, and here commands on documents, which there are a module's.
    Module = 1 << 9,
    /// `n`: a key has been created. Noticed by the code that runs the command, from the versions of its keys.
    New = 1 << 10,
    /// `m`: a key that does not exist was read. Noticed by the code that runs the command.
    Miss = 1 << 11,
    /// Not for those who listen, but for caches of clients: a key has been given another value or deadline, or was
    /// removed. Noticed by the code that runs the command.
    Changed = 1 << 12,
    /// Nor this, but for replicas of other kinds: a key, or fields of it, were removed because their time had come.
    Gone = 1 << 13,
}

/// A key of a database.
pub type DatabaseKey = (u16, Vec<u8>);

/// A set of classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Classes(u16);

impl Classes {
    /// No class.
    pub const NONE: Self = Self(0);
    /// What the letter `A` stands for: all but `n` and `m`.
    pub const ALL: Self = Self((1 << 10) - 1);

    /// True if it holds the class.
    #[inline]
    pub const fn has(self, class: Class) -> bool {
        self.0 & class as u16 != 0
    }

    /// True if it holds all of the other's classes.
    pub const fn covers(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// True if it holds none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// This set and one class more.
    #[must_use]
    pub const fn with(self, class: Class) -> Self {
        Self(self.0 | class as u16)
    }

    /// What is in either.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// One thing that happened to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Its kind.
    pub class: Class,
    /// Redis's name for it, such as `set`, `del` or `expired`.
    pub name: &'static str,
    /// The key's database.
    pub database: u16,
    /// The key.
    pub key: Box<[u8]>,
}

/// What has been noted and not yet been told.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    pub(crate) wanted: Classes,
    pub(crate) found: Vec<Notice>,
    /// Keys that somebody waits for.
    pub(crate) awaited: BTreeSet<DatabaseKey>,
    /// Those of them that something has happened to.
    pub(crate) touched: Vec<DatabaseKey>,
}

impl Notices {
    #[inline]
    pub(crate) fn wants(&self, class: Class) -> bool {
        self.wanted.has(class)
    }

    /// Notes it if it is wanted.
    #[inline]
    pub(crate) fn note(&mut self, class: Class, name: &'static str, database: u16, key: &[u8]) {
        if !self.awaited.is_empty() {
            self.touch(database, key);
        }
        if self.wants(class) {
            self.found.push(Notice { class, name, database, key: key.into() });
        }
    }

    /// Something has happened to a key: anyone who waits for it will want to know.
    pub(crate) fn touch(&mut self, database: u16, key: &[u8]) {
        let key = (database, key.to_vec());
        if self.awaited.contains(&key) && !self.touched.contains(&key) {
            self.touched.push(key);
        }
    }

    /// Something has happened to all keys of a database.
    pub(crate) fn touch_all(&mut self, database: u16) {
        let keys: Vec<_> = self.awaited.iter().filter(|(other, _)| *other == database).cloned().collect();
        for (database, key) in keys {
            self.touch(database, &key);
        }
    }

    /// Notes that a key, or fields of it, had expired when a command met them, or when they were swept away.
    #[inline]
    pub(crate) fn note_gone(&mut self, database: u16, key: &[u8], gone: Gone) {
        self.note(Class::Gone, "gone", database, key);
        if gone == Gone::Key {
            return self.note(Class::Expired, "expired", database, key);
        }
        self.note(Class::Hash, "hexpired", database, key);
        if let Gone::LastFields(_) = gone {
            self.note(Class::Generic, "del", database, key);
        }
        self.note(Class::Changed, "hexpired", database, key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Moment;
    use crate::testing::Harness;

    /// Runs a line and says what was noted: the class's letter, the name, the key, and the database if it is not 0.
    fn told(harness: &mut Harness, line: &str) -> String {
        harness.run(line);
        taken(harness)
    }

    fn taken(harness: &mut Harness) -> String {
        let letter = |class: Class| match class {
            Class::Generic => 'g',
            Class::String => '$',
            Class::Expired => 'x',
            Class::Hash => 'h',
            Class::Set => 's',
            other => panic!("{other:?} is not expected here"),
        };
        let notices = harness.keyspace.take_notices();
        let words: Vec<_> = notices
            .iter()
            .map(|notice| {
                let key = String::from_utf8_lossy(&notice.key);
                let database = if notice.database == 0 { String::new() } else { format!("@{}", notice.database) };
                format!("{}{} {key}{database}", letter(notice.class), notice.name)
            })
            .collect();
        words.join(", ")
    }

    fn listening() -> Harness {
        let mut harness = Harness::new();
        harness.keyspace.listen(Classes::ALL);
        harness
    }

    #[test]
    fn commands_report_what_they_did_in_redis_s_words() {
        let mut harness = listening();
        let cases = [
            ("SET k v", "$set k"),
            ("SET k v NX", ""),
            ("SET k v EX 100", "$set k, gexpire k"),
            ("SET k v EXAT 1", "$set k, gexpire k, xexpired k"),
            ("SETNX k v", "$set k"),
            ("SETNX k v", ""),
            ("SETEX k 100 v", "$set k, gexpire k"),
            ("PSETEX k 100000 v", "$set k, gexpire k"),
            ("GETSET k w", "$set k"),
            ("GET k", ""),
            ("APPEND k x", "$append k"),
            ("SETRANGE k 0 y", "$setrange k"),
            ("SETRANGE k 0 \"\"", ""),
            ("GETEX k", ""),
            ("GETEX k EX 100", "gexpire k"),
            ("GETEX k PERSIST", "gpersist k"),
            ("GETEX k EXAT 1", "gdel k"),
            ("GETDEL k", ""),
            ("MSET a 1 b 2", "$set a, $set b"),
            ("MSETNX a 1 c 2", ""),
            ("MSETNX c 1 d 2", "$set c, $set d"),
            ("GETDEL d", "gdel d"),
            ("SET a x IFEQ 2", ""),
            ("SET a 3 IFEQ 1 EX 100", "$set a, gexpire a"),
            ("SET a 1 IFNE 1", "$set a"),
            ("MSETEX 2 a 1 b 2 NX", ""),
            ("MSETEX 2 a 1 x 2 EX 100", "$set a, gexpire a, $set x, gexpire x"),
            ("DELEX x IFEQ 3", ""),
            ("DELEX x IFEQ 2", "gdel x"),
            ("DELIFEQ b 3", ""),
            ("INCREX a PERSIST", "$incrby a, gpersist a"),
            ("INCREX a EX 10", "$incrby a, gexpire a"),
            ("INCREX a EX 10 ENX", "$incrby a"),
            ("INCREX a UBOUND 3", ""),
            ("INCREX x EXAT 1", ""),
            ("SET a 1", "$set a"),
            ("INCR a", "$incrby a"),
            ("DECRBY a 4", "$incrby a"),
            ("INCRBYFLOAT a 0.5", "$incrbyfloat a"),
            ("INCR a", ""),
            ("SETBIT bits 3 1", "$setbit bits"),
            ("SETBIT bits 3 1", ""),
            ("BITFIELD bits SET u8 0 200", "$setbit bits"),
            ("BITFIELD bits GET u8 0", ""),
            ("BITOP NOT out bits", "$set out"),
            ("BITOP AND out none", "gdel out"),
            ("BITOP AND out none", ""),
            ("EXPIRE a 100", "gexpire a"),
            ("EXPIRE a 100 NX", ""),
            ("PERSIST a", "gpersist a"),
            ("PERSIST a", ""),
            ("EXPIRE a -1", "gdel a"),
            ("RENAME b e", "grename_from b, grename_to e"),
            ("RENAMENX e c", ""),
            ("COPY c f", "gcopy_to f"),
            ("COPY c f DB 3", "gcopy_to f@3"),
            ("MOVE e 2", "gmove_from e, gmove_to e@2"),
            ("MOVE e 2", ""),
            ("DEL c f none", "gdel c, gdel f"),
            ("SORT none STORE bits", "gdel bits"),
            ("UNLINK bits", ""),
            ("HSET h a 1 b 2", "hhset h"),
            ("HSETNX h a 2", ""),
            ("HSETNX h c 2", "hhset h"),
            ("HINCRBY h a 2", "hhincrby h"),
            ("HINCRBYFLOAT h a 2", "hhincrbyfloat h"),
            ("HINCRBY h a x", ""),
            ("HDEL h x", ""),
            ("HDEL h a", "hhdel h"),
            ("HDEL h b c", "hhdel h, gdel h"),
            ("SADD s a b c 1", "ssadd s"),
            ("SADD s a", ""),
            ("SREM s x", ""),
            ("SREM s c", "ssrem s"),
            ("SMOVE s t a", "ssrem s, ssadd t"),
            ("SMOVE s t a", ""),
            ("SMOVE t s a", "ssrem t, gdel t, ssadd s"),
            ("SPOP s", "sspop s"),
            ("SPOP s 0", ""),
            ("SPOP s 1", "sspop s"),
            ("SPOP s 5", "sspop s, gdel s"),
            ("SPOP s", ""),
            ("SADD s 1 2 3", "ssadd s"),
            ("SINTERSTORE t s", "ssinterstore t"),
            ("SUNIONSTORE t s t", "ssunionstore t"),
            ("SDIFFSTORE u t none", "ssdiffstore u"),
            ("SDIFFSTORE u t s", "gdel u"),
            ("SDIFFSTORE u t s", ""),
        ];
        for (line, expected) in cases {
            assert_eq!(told(&mut harness, line), expected, "{line}");
        }
    }

    #[test]
    fn what_was_dumped_reports_its_return() {
        let mut harness = listening();
        harness.run("SET k v");
        let moment = Moment::at(harness.now, 0);
        let dump = crate::rdb::dump(harness.keyspace.view(0, moment).peek(b"k").expect("just set").value());
        harness.keyspace.take_notices();
        harness.run_words(&[b"RESTORE", b"l", b"0", &dump]);
        assert_eq!(taken(&mut harness), "grestore l");
        harness.run_words(&[b"RESTORE", b"l", b"1", &dump, b"REPLACE", b"ABSTTL"]);
        assert_eq!(taken(&mut harness), "gdel l");
    }

    #[test]
    fn a_key_that_has_expired_is_reported_once_however_it_goes() {
        let mut harness = listening();
        for line in ["SET swept v PX 5", "SET met v PX 5", "SET removed v PX 5"] {
            harness.run(line);
        }
        harness.keyspace.take_notices();
        harness.now += 10;
        assert_eq!(told(&mut harness, "SET met w"), "xexpired met, $set met");
        assert_eq!(told(&mut harness, "DEL removed"), "xexpired removed");
        while harness.keyspace.collect(Moment::at(harness.now, 0), 64) {}
        assert_eq!(taken(&mut harness), "xexpired swept");
    }

    #[test]
    fn nothing_is_noted_that_nobody_asked_for() {
        let mut harness = Harness::new();
        assert_eq!(told(&mut harness, "SET k v"), "");
        harness.keyspace.listen(Classes::NONE.with(Class::Generic));
        assert_eq!(told(&mut harness, "SET k v EX 10"), "gexpire k");
    }
}

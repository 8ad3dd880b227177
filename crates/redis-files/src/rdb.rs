//! Reading RDB files, versions 1 to 15 of Redis and 80 of Valkey, as far as the types of their values are known.
//!
//! A value is not decoded here: it is followed by its structure alone, and given on as it stands. One that is large is
//! given in parts, each of them a value of the same type that has some of its elements.

use std::io::Read;

use keyspace::rdb as codec;

use crate::STRING_BYTES_MAX;
use crate::fault::{Fault, What};
use crate::source::Source;

/// Bytes beyond which a collection is given in parts.
pub const PART_BYTES: usize = 4 << 20;

/// Latest version of Redis with a known file structure.
const VERSION_MAX: u32 = 15;

/// From this version on Redis may put metadata of modules before a key.
const VERSION_WITH_KEY_METADATA: u32 = 13;

/// From this version on, that of Redis 8.8, there are arrays, which do not exist here.
const VERSION_WITH_ARRAYS: u32 = 14;

/// The kind of an array.
const KIND_ARRAY: u8 = 28;

/// No kind of value that is read has a higher number.
const KIND_MAX: u8 = KIND_ARRAY;

/// Versions below have no checksum.
const VERSION_WITH_CHECKSUM: u32 = 5;

/// The version that Valkey counts from.
const VERSION_OF_VALKEY: u32 = 80;

mod opcode {
    /// Of Redis Enterprise, as the next: how long a key lay in memory, and the number of a slot. Both are hints.
    pub const ENTERPRISE_IDLE: u8 = 107;
    pub const ENTERPRISE_SLOT: u8 = 121;
    /// Of Redis.
    pub const KEY_METADATA: u8 = 243;
    /// Of Valkey: slots that are on their way to the node that writes the file.
    pub const SLOT_IMPORT: u8 = 243;
    pub const SLOT_INFO: u8 = 244;
    pub const FUNCTION_2: u8 = 245;
    pub const MODULE_AUX: u8 = 247;
    pub const IDLE: u8 = 248;
    pub const FREQUENCY: u8 = 249;
    pub const AUX: u8 = 250;
    pub const RESIZE: u8 = 251;
    pub const EXPIRE_MS: u8 = 252;
    pub const EXPIRE_S: u8 = 253;
    pub const SELECT: u8 = 254;
    pub const END: u8 = 255;
}

/// What a module writes, item by item.
mod module {
    pub const END: u64 = 0;
    pub const SIGNED: u64 = 1;
    pub const UNSIGNED: u64 = 2;
    pub const FLOAT: u64 = 3;
    pub const DOUBLE: u64 = 4;
    pub const STRING: u64 = 5;
}

/// Who has written a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// `REDIS` stands at its beginning.
    Redis,
    /// `VALKEY` does.
    Valkey,
}

/// A part of a key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// The first of several.
    First,
    /// Neither the first nor the last.
    Middle,
    /// The last of several.
    Last,
}

/// A key, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Where its record begins in the file.
    pub offset: u64,
    /// The number of its database.
    pub database: u64,
    /// Its name.
    pub name: Vec<u8>,
    /// When it expires, in milliseconds of Unix time.
    pub expires_at_ms: Option<i64>,
    /// For how many seconds it had not been used.
    pub idle_seconds: Option<u64>,
    /// How often it was used, on the logarithmic scale of Redis.
    pub frequency: Option<u8>,
    /// Who has written it.
    pub vendor: Vendor,
    /// Which part of the value this is.
    pub part: Part,
    /// A value in the encoding of RDB: a byte for its type, and its payload.
    pub value: Vec<u8>,
}

/// What a file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Something about the whole file.
    Aux {
        /// Its name, as in `redis-ver`.
        name: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
    },
    /// The code of a library of functions.
    Library(Vec<u8>),
    /// A key, or a part of one.
    Key(Key),
    /// A key that was left out.
    Foreign {
        /// The number of its database.
        database: u64,
        /// Its name.
        name: Vec<u8>,
        /// What it is: `module type` and the module's name for it, or `type array`.
        what: String,
    },
    /// What a module keeps beside its keys, which was left out: its type name.
    ModuleAux(String),
    /// The end of the file.
    End {
        /// Its checksum was there, and fits.
        is_verified: bool,
    },
}

/// How the elements of a collection are laid out.
#[derive(Clone, Copy, Debug)]
enum Layout {
    /// So many strings each.
    Strings(u32),
    /// A string and a double, in eight bytes.
    Scored,
    /// A string and a double in text.
    ScoredText,
    /// A number and a string.
    Node,
}

/// A collection of which parts have been given.
#[derive(Debug)]
struct Open {
    key: Key,
    kind: u8,
    layout: Layout,
    rest: u64,
}

/// Reads a file item by item.
#[derive(Debug)]
pub struct RdbReader<'a, R> {
    source: &'a mut Source<R>,
    vendor: Vendor,
    version: u32,
    database: u64,
    open: Option<Open>,
    part_bytes: usize,
}

impl<'a, R: Read> RdbReader<'a, R> {
    /// Reads the head of a file.
    ///
    /// # Errors
    /// If it is none of an RDB file, or of a version that is not known.
    pub fn new(source: &'a mut Source<R>) -> Result<Self, Fault> {
        let magic = |fault: Fault| match fault.what {
            What::Truncated => Fault { offset: 0, what: What::Magic },
            _ => fault,
        };
        let head: [u8; 9] = source.array().map_err(magic)?;
        let (vendor, digits) = match &head {
            [b'R', b'E', b'D', b'I', b'S', digits @ ..] => (Vendor::Redis, &digits[..]),
            [b'V', b'A', b'L', b'K', b'E', b'Y', digits @ ..] => (Vendor::Valkey, &digits[..]),
            _ => return Err(Fault { offset: 0, what: What::Magic }),
        };
        let text = String::from_utf8_lossy(digits).into_owned();
        let is_number = digits.iter().all(u8::is_ascii_digit);
        let version = text.parse().unwrap_or(0);
        let is_known = match vendor {
            Vendor::Redis => (1..=VERSION_MAX).contains(&version),
            Vendor::Valkey => version == VERSION_OF_VALKEY,
        };
        if !is_number || !is_known {
            return Err(Fault { offset: 0, what: What::Version(text) });
        }
        Ok(Self { source, vendor, version, database: 0, open: None, part_bytes: PART_BYTES })
    }

    /// Gives collections in parts beyond so many bytes.
    pub fn with_part_bytes(self, part_bytes: usize) -> Self {
        Self { part_bytes, ..self }
    }

    /// Who has written the file.
    pub fn vendor(&self) -> Vendor {
        self.vendor
    }

    /// The version of its format.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Bytes that have been read.
    pub fn offset(&self) -> u64 {
        self.source.offset()
    }

    /// The next item. Behind [`Item::End`] there is none.
    ///
    /// # Errors
    /// If there is no item there that is understood.
    pub fn next_item(&mut self) -> Result<Item, Fault> {
        if let Some(open) = self.open.take() {
            return self.more(open);
        }
        let mut key = Key {
            offset: self.source.offset(),
            database: self.database,
            name: Vec::new(),
            expires_at_ms: None,
            idle_seconds: None,
            frequency: None,
            vendor: self.vendor,
            part: Part::Whole,
            value: Vec::new(),
        };
        loop {
            let place = self.source.offset();
            match self.source.byte()? {
                opcode::END => return self.end(),
                opcode::SELECT => {
                    self.database = self.length()?;
                    key.database = self.database;
                }
                opcode::EXPIRE_S => {
                    key.expires_at_ms = Some(i64::from(i32::from_le_bytes(self.source.array()?)) * 1000)
                }
                opcode::EXPIRE_MS => key.expires_at_ms = Some(i64::from_le_bytes(self.source.array()?)),
                opcode::RESIZE => {
                    // Sizes of tables, which are nothing but a hint.
                    self.length()?;
                    self.length()?;
                }
                opcode::ENTERPRISE_IDLE | opcode::ENTERPRISE_SLOT if self.vendor == Vendor::Redis => {
                    _ = self.length()?
                }
                opcode::SLOT_INFO => (0..3).try_for_each(|_| self.length().map(drop))?,
                opcode::SLOT_IMPORT if self.vendor == Vendor::Valkey => {
                    self.text()?;
                    for _ in 0..self.length()? {
                        self.length()?;
                        self.length()?;
                    }
                }
                opcode::AUX => return Ok(Item::Aux { name: self.text()?, value: self.text()? }),
                opcode::FREQUENCY => key.frequency = Some(self.source.byte()?),
                opcode::IDLE => key.idle_seconds = Some(self.length()?),
                opcode::FUNCTION_2 => return self.text().map(Item::Library),
                opcode::MODULE_AUX => {
                    let name = codec::module::name_of(self.length()?);
                    self.skip_module()?;
                    return Ok(Item::ModuleAux(name));
                }
                opcode::KEY_METADATA if self.vendor == Vendor::Redis && self.version >= VERSION_WITH_KEY_METADATA => {
                    for _ in 0..self.length()? {
                        self.source.skip(4)?;
                        self.skip_module()?;
                    }
                }
                kind => {
                    // Before anything is read that need not be a name.
                    if kind > KIND_MAX {
                        return Err(Fault { offset: place, what: What::Kind(kind) });
                    }
                    key.name = self.text()?;
                    return self.value(kind, place, key);
                }
            }
        }
    }

    fn end(&mut self) -> Result<Item, Fault> {
        if self.version < VERSION_WITH_CHECKSUM {
            return Ok(Item::End { is_verified: false });
        }
        let computed = self.source.checksum();
        let place = self.source.offset();
        let written = u64::from_le_bytes(self.source.array()?);
        if written != 0 && written != computed {
            return Err(Fault { offset: place, what: What::Checksum });
        }
        Ok(Item::End { is_verified: written != 0 })
    }

    fn value(&mut self, kind: u8, place: u64, key: Key) -> Result<Item, Fault> {
        let layout = match kind {
            1 | 2 | 14 => Layout::Strings(1),
            3 => Layout::ScoredText,
            4 => Layout::Strings(2),
            5 => Layout::Scored,
            18 => Layout::Node,
            0 | 9..=13 | 16 | 17 | 20 => {
                self.source.record();
                self.skip_string()?;
                return Ok(self.whole(kind, key));
            }
            15 | 19 | 21 | 26 | 27 if kind <= 21 || self.vendor == Vendor::Redis => {
                self.source.record();
                self.skip_stream(kind)?;
                return Ok(self.whole(kind, key));
            }
            7 => {
                self.source.record();
                let id = self.length()?;
                if codec::module::is_known(id) {
                    self.skip_module()?;
                    return Ok(self.whole(kind, key));
                }
                self.source.recording();
                let what = format!("module type {}", codec::module::name_of(id));
                self.skip_module()?;
                return Ok(Item::Foreign { database: key.database, name: key.name, what });
            }
            KIND_ARRAY if self.vendor == Vendor::Redis && self.version >= VERSION_WITH_ARRAYS => {
                self.skip_array()?;
                return Ok(Item::Foreign { database: key.database, name: key.name, what: "type array".to_owned() });
            }
            22..=25 if self.has_expiring_fields(kind) => {
                self.source.record();
                self.skip_expiring_fields(kind)?;
                return Ok(self.whole(kind, key));
            }
            _ => return Err(Fault { offset: place, what: What::Kind(kind) }),
        };
        let rest = self.length()?;
        self.more(Open { key, kind, layout, rest })
    }

    fn whole(&mut self, kind: u8, key: Key) -> Item {
        let mut value = self.source.recording();
        value.insert(0, kind);
        Item::Key(Key { value, ..key })
    }

    /// The next part of a collection, which is all of it if it is not large.
    fn more(&mut self, mut open: Open) -> Result<Item, Fault> {
        self.source.record();
        let mut count = 0;
        while open.rest > 0 && self.source.recorded() < self.part_bytes {
            match open.layout {
                Layout::Strings(strings) => (0..strings).try_for_each(|_| self.skip_string())?,
                Layout::Scored => {
                    self.skip_string()?;
                    self.source.skip(8)?;
                }
                Layout::ScoredText => {
                    self.skip_string()?;
                    // From 253 on it stands for a number that has no digits.
                    let length = self.source.byte()?;
                    self.source.skip(if length < 253 { length.into() } else { 0 })?;
                }
                Layout::Node => {
                    self.length()?;
                    self.skip_string()?;
                }
            }
            open.rest -= 1;
            count += 1;
        }
        let elements = self.source.recording();
        let mut value = vec![open.kind];
        codec::write_length(&mut value, count);
        value.extend_from_slice(&elements);
        let part = match (open.key.part, open.rest) {
            (Part::Whole, 0) => Part::Whole,
            (Part::Whole, _) => Part::First,
            (_, 0) => Part::Last,
            _ => Part::Middle,
        };
        let key = Key { part, value, ..open.key.clone() };
        if open.rest > 0 {
            open.key.part = Part::Middle;
            self.open = Some(open);
        }
        Ok(Item::Key(key))
    }

    fn has_expiring_fields(&self, kind: u8) -> bool {
        match self.vendor {
            Vendor::Redis => self.version >= 12,
            Vendor::Valkey => kind == 22,
        }
    }

    /// Hashes with fields that expire. Valkey and candidates of Redis 7.4 gave the same number to different forms.
    fn skip_expiring_fields(&mut self, kind: u8) -> Result<(), Fault> {
        match (self.vendor, kind) {
            (Vendor::Redis, 23) => return self.skip_string(),
            (Vendor::Redis, 24 | 25) => self.source.skip(8)?,
            _ => {}
        }
        if kind == 25 {
            return self.skip_string();
        }
        for _ in 0..self.length()? {
            if self.vendor == Vendor::Redis {
                self.length()?;
            }
            self.skip_string()?;
            self.skip_string()?;
            if self.vendor == Vendor::Valkey {
                self.source.skip(8)?;
            }
            self.check_size()?;
        }
        Ok(())
    }

    fn skip_stream(&mut self, kind: u8) -> Result<(), Fault> {
        for _ in 0..self.length()? {
            self.skip_string()?;
            self.skip_string()?;
            self.check_size()?;
        }
        // Entries, the last id; then the first id, the highest that was deleted, entries ever added.
        let numbers = if kind == 15 { 3 } else { 8 };
        (0..numbers).try_for_each(|_| self.length().map(drop))?;
        for _ in 0..self.length()? {
            self.skip_string()?;
            let numbers = if kind == 15 { 2 } else { 3 };
            (0..numbers).try_for_each(|_| self.length().map(drop))?;
            for _ in 0..self.length()? {
                self.source.skip(24)?;
                self.length()?;
                self.check_size()?;
            }
            for _ in 0..self.length()? {
                self.skip_string()?;
                self.source.skip(if kind >= 21 { 16 } else { 8 })?;
                for _ in 0..self.length()? {
                    self.source.skip(16)?;
                    self.check_size()?;
                }
                self.check_size()?;
            }
            if kind == 27 {
                // What was released.
                for _ in 0..self.length()? {
                    self.source.skip(16)?;
                    self.check_size()?;
                }
            }
            self.check_size()?;
        }
        if kind >= 26 { self.skip_producers() } else { Ok(()) }
    }

    /// What a stream remembers of producers: for how long and how many, each with its ids and the entries that they
    /// stand for, and two counts.
    fn skip_producers(&mut self) -> Result<(), Fault> {
        (0..2).try_for_each(|_| self.length().map(drop))?;
        for _ in 0..self.length()? {
            self.skip_string()?;
            for _ in 0..self.length()? {
                self.skip_string()?;
                (0..2).try_for_each(|_| self.length().map(drop))?;
                self.check_size()?;
            }
            self.check_size()?;
        }
        (0..2).try_for_each(|_| self.length().map(drop))
    }

    /// An array: how many elements it has, where the next one would be put if that is known, and the elements, each
    /// with its place and its form.
    fn skip_array(&mut self) -> Result<(), Fault> {
        let count = self.length()?;
        match self.length()? {
            0 => {}
            1 => _ = self.length()?,
            _ => return Err(self.source.fault(What::Malformed("an array begins with an unknown flag"))),
        }
        for _ in 0..count {
            self.length()?;
            match self.length()? {
                0 | 3 => self.skip_string()?,
                // A number, whole or not.
                1 | 2 => self.source.skip(8)?,
                _ => return Err(self.source.fault(What::Malformed("an array holds an element of an unknown form"))),
            }
        }
        Ok(())
    }

    /// What is not taken apart must not become too large.
    fn check_size(&self) -> Result<(), Fault> {
        if self.source.recorded() as u64 > STRING_BYTES_MAX { Err(self.source.fault(What::TooLong)) } else { Ok(()) }
    }

    fn skip_module(&mut self) -> Result<(), Fault> {
        loop {
            match self.length()? {
                module::END => return Ok(()),
                module::SIGNED | module::UNSIGNED => _ = self.length()?,
                module::FLOAT => self.source.skip(4)?,
                module::DOUBLE => self.source.skip(8)?,
                module::STRING => self.skip_string()?,
                _ => return Err(self.source.fault(What::Malformed("a value of a module holds an unknown item"))),
            }
            self.check_size()?;
        }
    }

    fn length(&mut self) -> Result<u64, Fault> {
        let head = self.source.byte()?;
        self.length_from(head)
    }

    fn length_from(&mut self, head: u8) -> Result<u64, Fault> {
        Ok(match head {
            0..0x40 => head.into(),
            0x40..0x80 => u16::from_be_bytes([head & 0x3F, self.source.byte()?]).into(),
            0x80 => u32::from_be_bytes(self.source.array()?).into(),
            0x81 => u64::from_be_bytes(self.source.array()?),
            _ => return Err(self.source.fault(What::Malformed("there is no length where one belongs"))),
        })
    }

    fn skip_string(&mut self) -> Result<(), Fault> {
        let head = self.source.byte()?;
        let length = match head {
            0xC0 => 1,
            0xC1 => 2,
            0xC2 => 4,
            0xC3 => {
                let compressed = self.length()?;
                if self.length()? > STRING_BYTES_MAX {
                    return Err(self.source.fault(What::TooLong));
                }
                compressed
            }
            _ => self.length_from(head)?,
        };
        if length > STRING_BYTES_MAX {
            return Err(self.source.fault(What::TooLong));
        }
        self.source.skip(length)
    }

    /// The next string, decoded.
    fn text(&mut self) -> Result<Vec<u8>, Fault> {
        self.source.record();
        let skipped = self.skip_string();
        let encoded = self.source.recording();
        skipped?;
        let text = codec::read_text(&mut codec::Reader::new(&encoded));
        text.map(std::borrow::Cow::into_owned)
            .map_err(|_| self.source.fault(What::Malformed("a compressed string cannot be read")))
    }
}

/// A value as DUMP gives it: [`Key::value`] with a version and a checksum behind it. The version tells who has written
/// it, as far as that matters: Redis and Valkey have forms of the same number.
pub fn dump_of(mut value: Vec<u8>, vendor: Vendor) -> Vec<u8> {
    let version = match vendor {
        Vendor::Redis => codec::VERSION,
        Vendor::Valkey => VERSION_OF_VALKEY as u16,
    };
    value.extend_from_slice(&version.to_le_bytes());
    let checksum = stdx::crc64::crc64(0, &value);
    value.extend_from_slice(&checksum.to_le_bytes());
    value
}

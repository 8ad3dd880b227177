//! How each part of a state is saved, loaded and cleared.

use std::collections::BTreeMap;
use std::sync::Arc;

use keyspace::Moment;
use message::TransactionId;
use message::entry::{self, Reader};
use message::libraries::Libraries;
use message::parameters::Parameters;
use message::roster::Roster;
use message::slots::SlotMap;
use stdx::{Level, UnixMillis, leb128};

use crate::echoes::Echoes;
use crate::reply_cache::ReplyCache;
use crate::request_ids::RequestIds;
use crate::{Imports, Prepared, Splits};

/// A part of what replicas agree on.
pub(crate) trait Part {
    /// Appends it to a checkpoint.
    fn save(&self, out: &mut Vec<u8>);
    /// Reads back what [`Part::save`] wrote into a part that is clear.
    fn load(&mut self, reader: &mut Reader<'_>);
    /// Makes it what it is before the first entry.
    fn clear(&mut self);
}

/// A checkpoint keeps the wall clock; the seed was for the entry alone.
impl Part for Moment {
    fn save(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.unix.0.to_le_bytes());
    }

    fn load(&mut self, reader: &mut Reader<'_>) {
        self.unix = self.unix.max(UnixMillis(reader.fixed().cast_signed()));
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Part for BTreeMap<TransactionId, Prepared> {
    fn save(&self, out: &mut Vec<u8>) {
        leb128::put(out, self.len() as u64);
        for (transaction, prepared) in self {
            transaction.put(out);
            entry::put_prepared(out, &prepared.participants, &prepared.effects);
        }
    }

    fn load(&mut self, reader: &mut Reader<'_>) {
        for _ in 0..reader.number() {
            let transaction = TransactionId::read(reader);
            let (participants, effects) = reader.prepared();
            self.insert(transaction, Prepared { participants, effects, imports: Imports::new() });
        }
    }

    fn clear(&mut self) {
        *self = Self::new();
    }
}

impl Part for Roster {
    fn save(&self, out: &mut Vec<u8>) {
        self.put(out);
    }

    fn load(&mut self, reader: &mut Reader<'_>) {
        *self = Self::read(reader);
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Part for ReplyCache {
    fn save(&self, out: &mut Vec<u8>) {
        self.put(out);
    }

    fn load(&mut self, reader: &mut Reader<'_>) {
        *self = Self::read(reader);
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Part for RequestIds {
    fn save(&self, out: &mut Vec<u8>) {
        self.put(out);
    }

    fn load(&mut self, reader: &mut Reader<'_>) {
        *self = Self::read(reader);
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Part for Arc<Libraries> {
    fn save(&self, out: &mut Vec<u8>) {
        Libraries::save(self, out);
    }

    fn load(&mut self, reader: &mut Reader<'_>) {
        *self = Self::new(Libraries::load(reader));
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Part for SlotMap {
    fn save(&self, out: &mut Vec<u8>) {
        self.put(out);
    }

    fn load(&mut self, reader: &mut Reader<'_>) {
        *self = Self::read(reader, self.first_count());
    }

    fn clear(&mut self) {
        *self = Self::even(self.first_count());
    }
}

impl Part for Echoes {
    fn save(&self, out: &mut Vec<u8>) {
        self.put(out);
    }

    fn load(&mut self, reader: &mut Reader<'_>) {
        *self = Self::read(reader);
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Part for Level {
    fn save(&self, out: &mut Vec<u8>) {
        out.push(self.0);
    }

    fn load(&mut self, reader: &mut Reader<'_>) {
        *self = Self(reader.byte());
    }

    fn clear(&mut self) {
        *self = Self::FIRST;
    }
}

impl Part for u64 {
    fn save(&self, out: &mut Vec<u8>) {
        leb128::put(out, *self);
    }

    fn load(&mut self, reader: &mut Reader<'_>) {
        *self = reader.number();
    }

    fn clear(&mut self) {
        *self = 0;
    }
}

impl Part for Splits {
    fn save(&self, out: &mut Vec<u8>) {
        leb128::put(out, self.len() as u64);
        for (group, index) in self {
            leb128::put(out, u64::from(*group));
            leb128::put(out, *index);
        }
    }

    fn load(&mut self, reader: &mut Reader<'_>) {
        *self = (0..reader.number()).map(|_| (reader.number() as u32, reader.number())).collect();
    }

    fn clear(&mut self) {
        *self = Self::new();
    }
}

impl Part for Arc<Parameters> {
    fn save(&self, out: &mut Vec<u8>) {
        Parameters::save(self, out);
    }

    fn load(&mut self, reader: &mut Reader<'_>) {
        *self = Self::new(Parameters::load(reader));
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

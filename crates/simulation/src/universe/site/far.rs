//! The far side: what it holds, and where it is.

use keyspace::debug::value_digest;
use keyspace::{Keyspace, Layout, Limits, Moment, Options, Tuning, ValueRef, View};
use resp::{FrameDecoder, Writer};
use site::{Batch, Position};
use state::State;

use super::super::follower::carry_out;
use crate::client::{account_name, list_name};
use crate::reply::{Reply, parse, with_args};

/// A far cluster.
pub(super) struct Far {
    keyspace: Keyspace,
    pub(super) position: Position,
    /// It was told last that it lacks nothing.
    pub(super) is_level: bool,
}

impl Far {
    /// One that has nothing.
    pub(super) fn new(databases: u16, position: Position) -> Self {
        let tuning = Tuning::default();
        let mut keyspace = Keyspace::new(Options { databases, hash_seed: 1, layout: Layout::Scratch, tuning });
        // It lets nothing expire unless it is told to.
        keyspace.set_limits(Limits { keeps_expired: true, ..keyspace.limits() });
        Self { keyspace, position, is_level: false }
    }

    /// One that has what these tables hold.
    pub(super) fn of(databases: u16, keyspaces: &[Keyspace], position: Position) -> Self {
        let mut far = Self::new(databases, position);
        for keyspace in keyspaces {
            for database in 0..databases {
                keyspace.for_each(database, Moment::default(), |entry| {
                    keyspace.copy_key(database, entry.key(), Moment::default(), &mut far.keyspace);
                });
            }
        }
        far
    }

    /// Carries out a batch.
    pub(super) fn take(&mut self, batch: &Batch) -> Result<(), String> {
        let behind = self.position.behind(batch).map_err(|_| "groups have gone".to_owned())?;
        let mut decoder = FrameDecoder::new();
        decoder.extend(&batch.bytes);
        let mut database = 0;
        while let Some(frame) = decoder.next_frame().map_err(|malformed| malformed.to_string())? {
            if let Some([name, number]) = frame.elements()
                && name.as_bytes() == Some(b"SELECT")
            {
                let number = number.as_bytes().and_then(|number| std::str::from_utf8(number).ok());
                database = number.and_then(|text| text.parse().ok()).ok_or("a database")?;
                continue;
            }
            carry_out(&mut self.keyspace, database, &frame)?;
        }
        self.position = behind;
        Ok(())
    }

    fn ask(&self, words: &[&[u8]]) -> Option<Reply> {
        let bytes = with_args(words, |args| {
            let mut writer = Writer::default();
            let command = keyspace::resolve(args).expect("a command of ours");
            self.keyspace.query(0, command, args, Moment::default(), &mut writer);
            writer.into_bytes()
        });
        parse(&bytes).ok().flatten().map(|(reply, _)| reply)
    }

    /// What an account holds.
    pub(super) fn balance(&self, account: u64) -> Option<i64> {
        match self.ask(&[b"GET", account_name(account).as_bytes()])? {
            Reply::Bulk(Some(text)) => std::str::from_utf8(&text).ok()?.parse().ok(),
            _ => None,
        }
    }

    /// What a list holds.
    pub(super) fn elements(&self, list: u32) -> Vec<u32> {
        match self.ask(&[b"LRANGE", list_name(list).as_bytes(), b"0", b"-1"]) {
            Some(reply) => crate::client::elements(&reply).unwrap_or_default(),
            None => Vec::new(),
        }
    }

    /// Compares what is here with what groups hold.
    pub(super) fn compare(&self, states: &[&State]) -> Result<(), String> {
        for database in 0..self.keyspace.database_count() {
            let mut count = 0;
            let latest = states.iter().map(|state| state.moment()).max_by_key(|moment| moment.unix).unwrap_or_default();
            for state in states {
                let moment = state.moment();
                let (near, far) = (state.keyspace().view(database, moment), self.keyspace.view(database, moment));
                let mut differs = None;
                near.for_each(|entry| {
                    count += u64::from(far.contains(entry.key()));
                    if !is_same(&near, &far, entry.key(), entry.value()) {
                        differs = Some(String::from_utf8_lossy(entry.key()).into_owned());
                    }
                });
                if let Some(key) = differs {
                    return Err(format!("{key} of database {database} is not at the far site what it is in its group"));
                }
            }
            let mut held = 0;
            self.keyspace.view(database, latest).for_each(|_| held += 1);
            if held > count {
                return Err(format!("the far site holds {held} keys of database {database}, and the near one {count}"));
            }
        }
        Ok(())
    }
}

/// Groups of streams carry times of deliveries, of which nobody is told.
fn is_same(near: &View<'_>, far: &View<'_>, key: &[u8], value: ValueRef<'_>) -> bool {
    match value {
        ValueRef::Stream(_) => far.contains(key),
        _ => value_digest(near, key) == value_digest(far, key),
    }
}

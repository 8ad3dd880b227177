//! Which numbered requests a group has carried out, and what it answered: replicated state.
//!
//! A gateway that has no answer asks again, the next leader if need be. A request that has been carried out is found
//! here and answered as it was then, so nothing happens twice. With every request a gateway says up to which number it
//! has its answers; those are dropped.

use std::collections::BTreeMap;

use keyspace::Moment;
use stdx::{UnixMillis, leb128};

use message::GatewayId;
use message::entry::{Reader, put_bytes};

/// How often gateways that have not asked for long are looked for, by the log's clock.
const SWEEP_INTERVAL_MS: i64 = 60_000;

/// How long the answers to a gateway that asks for nothing are kept, by the log's clock.
const KEPT_MS: i64 = 600_000;

/// What a group knows of one gateway.
#[derive(Clone, Debug, Default)]
struct Account {
    /// Below this number the gateway has all answers.
    floor: u64,
    /// When it last asked, by the log's clock.
    last: UnixMillis,
    answers: BTreeMap<u64, Vec<u8>>,
}

/// What a group knows of all gateways.
#[derive(Clone, Debug, Default)]
pub struct ReplyCache {
    accounts: BTreeMap<GatewayId, Account>,
    swept: UnixMillis,
}

/// What is known of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup<'a> {
    /// It has not been carried out.
    New,
    /// It has been, with this answer.
    Answered(&'a [u8]),
    /// It has been, and its gateway has the answer.
    Forgotten,
}

impl ReplyCache {
    /// Looks a request up.
    pub fn look(&self, gateway: GatewayId, number: u64) -> Lookup<'_> {
        match self.accounts.get(&gateway) {
            None => Lookup::New,
            Some(account) if number < account.floor => Lookup::Forgotten,
            Some(account) => account.answers.get(&number).map_or(Lookup::New, |answer| Lookup::Answered(answer)),
        }
    }

    /// A gateway has all answers below `floor`.
    pub fn settle(&mut self, gateway: GatewayId, floor: u64, moment: Moment) {
        let account = self.accounts.entry(gateway).or_default();
        account.last = moment.unix;
        if floor > account.floor {
            account.floor = floor;
            account.answers = account.answers.split_off(&floor);
        }
        // Gateways that have gone do not come back: each life of a process has its own.
        if moment.unix.0 - self.swept.0 > SWEEP_INTERVAL_MS {
            self.swept = moment.unix;
            self.accounts.retain(|_, account| moment.unix.0 - account.last.0 < KEPT_MS);
        }
    }

    /// A request has been carried out.
    pub fn note(&mut self, gateway: GatewayId, number: u64, answer: Vec<u8>) {
        self.accounts.entry(gateway).or_default().answers.insert(number, answer);
    }

    /// Answers kept for gateways that have not said that they have them.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.accounts.values().map(|account| account.answers.len()).sum()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Appends it to a checkpoint.
    pub fn put(&self, out: &mut Vec<u8>) {
        leb128::put(out, self.swept.0.cast_unsigned());
        leb128::put(out, self.accounts.len() as u64);
        for (gateway, account) in &self.accounts {
            gateway.put(out);
            leb128::put(out, account.floor);
            leb128::put(out, account.last.0.cast_unsigned());
            leb128::put(out, account.answers.len() as u64);
            for (number, answer) in &account.answers {
                leb128::put(out, *number);
                put_bytes(out, answer);
            }
        }
    }

    /// Reads it back.
    pub fn read(reader: &mut Reader<'_>) -> Self {
        let swept = UnixMillis(reader.number().cast_signed());
        let count = reader.number();
        let accounts = (0..count).map(|_| {
            let gateway = GatewayId::read(reader);
            let floor = reader.number();
            let last = UnixMillis(reader.number().cast_signed());
            let answers = (0..reader.number()).map(|_| (reader.number(), reader.bytes().to_vec())).collect();
            (gateway, Account { floor, last, answers })
        });
        let accounts = accounts.collect();
        Self { accounts, swept }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::CoreId;

    const GATEWAY: GatewayId = GatewayId { node: 1, boot: 2, core: CoreId(3) };

    fn at(ms: i64) -> Moment {
        Moment { unix: UnixMillis(ms), seed: 0 }
    }

    #[test]
    fn a_request_is_found_until_its_gateway_has_the_answer() {
        let mut cache = ReplyCache::default();
        cache.settle(GATEWAY, 1, at(1));
        assert_eq!(cache.look(GATEWAY, 1), Lookup::New);
        cache.note(GATEWAY, 1, b"+OK".to_vec());
        cache.note(GATEWAY, 3, b":3".to_vec());
        assert_eq!(cache.look(GATEWAY, 1), Lookup::Answered(b"+OK"));
        assert_eq!(cache.look(GATEWAY, 2), Lookup::New);
        cache.settle(GATEWAY, 3, at(2));
        assert_eq!(cache.look(GATEWAY, 2), Lookup::Forgotten);
        assert_eq!(cache.look(GATEWAY, 3), Lookup::Answered(b":3"));
        let mut bytes = Vec::new();
        cache.put(&mut bytes);
        let restored = ReplyCache::read(&mut Reader::new(&bytes));
        assert_eq!(restored.look(GATEWAY, 2), Lookup::Forgotten);
        assert_eq!(restored.look(GATEWAY, 3), Lookup::Answered(b":3"));
        assert_eq!(restored.len(), 1);
    }

    #[test]
    fn a_gateway_that_has_gone_is_forgotten() {
        let mut cache = ReplyCache::default();
        cache.settle(GATEWAY, 1, at(0));
        cache.note(GATEWAY, 1, Vec::new());
        let other = GatewayId { node: 9, ..GATEWAY };
        cache.settle(other, 1, at(KEPT_MS + 1));
        assert_eq!(cache.len(), 0);
    }
}

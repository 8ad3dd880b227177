//! What is asked of the server, as bytes that are made once and copied with another key each time.

use clap::ValueEnum;
use stdx::slot::{SLOT_COUNT, slot_of};

/// What each client does, over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Workload {
    /// GET of a key, then SET of it.
    GetSet,
    /// WATCH, GET, MULTI, SET, EXEC of one key: five round trips, counted as one transaction.
    Trans,
    /// The same five requests sent together: one round trip.
    TransAtOnce,
    /// WATCH and GET of one key, MULTI, SET of it and of another, EXEC: six round trips, counted as one transaction.
    /// The keys are of different halves of all slots, and so of different groups wherever there are several.
    TransPair,
    /// MULTI, DECRBY of one account, INCRBY of another, EXEC: one round trip, counted as one transaction. What all
    /// accounts hold together must be the same before and after.
    Transfer,
    /// SET.
    Set,
    /// SET, and WAIT until a replica has it: one round trip, counted as one operation.
    SetWait,
    /// GET.
    Get,
    /// GET or SET, by --read-ratio.
    Mixed,
    /// INCR of a counter.
    Incr,
    /// PING.
    Ping,
}

impl Workload {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::GetSet => "get_set",
            Self::Trans => "trans",
            Self::TransAtOnce => "trans_at_once",
            Self::TransPair => "trans_pair",
            Self::Transfer => "transfer",
            Self::Set => "set",
            Self::SetWait => "set_wait",
            Self::Get => "get",
            Self::Mixed => "mixed",
            Self::Incr => "incr",
            Self::Ping => "ping",
        }
    }

    /// True if it asks for values that must be there first.
    pub fn reads(self) -> bool {
        matches!(self, Self::GetSet | Self::Trans | Self::TransAtOnce | Self::TransPair | Self::Get | Self::Mixed)
    }

    /// True if an operation is a transaction of several requests.
    pub fn is_transactional(self) -> bool {
        matches!(self, Self::Trans | Self::TransAtOnce | Self::TransPair | Self::Transfer)
    }

    /// The requests of a transaction that are sent one by one, each when the one before has been answered.
    pub fn steps(self) -> &'static [Request] {
        match self {
            Self::Trans => &TRANSACTION,
            Self::TransPair => {
                &[Request::Watch, Request::Get, Request::Multi, Request::Set, Request::SetOther, Request::Exec]
            }
            _ => &[],
        }
    }
}

/// One request that a client can send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Get,
    Set,
    /// SET of the other key of a transaction on two.
    SetOther,
    Incr,
    Ping,
    Wait,
    Watch,
    Multi,
    Exec,
    /// DECRBY of an account.
    Debit,
    /// INCRBY of an account.
    Credit,
}

/// The requests of a transaction, in their order.
pub const TRANSACTION: [Request; 5] = [Request::Watch, Request::Get, Request::Multi, Request::Set, Request::Exec];

/// What the names of accounts begin with.
pub const ACCOUNT: &str = "account:";

/// Which half of all slots a key's is in.
pub fn half_of(key: u64) -> bool {
    usize::from(slot_of(format!("key:{key:0KEY_DIGITS$}").as_bytes()).0) < SLOT_COUNT / 2
}

/// Digits of a key's number; keys are `key:000000000001`.
pub const KEY_DIGITS: usize = 12;

/// Most keys that have a name.
pub const KEYS_MAX: u64 = 10u64.pow(KEY_DIGITS as u32);

/// All requests, ready to copy.
pub struct Requests {
    get: Template,
    set: Template,
    incr: Template,
    ping: Template,
    wait: Template,
    watch: Template,
    multi: Template,
    exec: Template,
    debit: Template,
    credit: Template,
}

struct Template {
    bytes: Vec<u8>,
    /// Where the key's digits begin, if there is a key.
    digits: Option<usize>,
}

impl Requests {
    /// Requests with values of `value_bytes`.
    pub fn new(value_bytes: usize) -> Self {
        let value: Vec<u8> = (0..value_bytes).map(|index| b'a' + (index * 7 % 26) as u8).collect();
        let zero = "0".repeat(KEY_DIGITS);
        let key = format!("key:{zero}");
        let counter = format!("counter:{zero}");
        let account = format!("{ACCOUNT}{zero}");
        Self {
            get: Template::new(&[b"GET", key.as_bytes()]),
            set: Template::new(&[b"SET", key.as_bytes(), &value]),
            incr: Template::new(&[b"INCR", counter.as_bytes()]),
            ping: Template::new(&[b"PING"]),
            wait: Template::without_key(&[b"WAIT", b"1", b"0"]),
            watch: Template::new(&[b"WATCH", key.as_bytes()]),
            multi: Template::new(&[b"MULTI"]),
            exec: Template::new(&[b"EXEC"]),
            debit: Template::new(&[b"DECRBY", account.as_bytes(), b"1"]),
            credit: Template::new(&[b"INCRBY", account.as_bytes(), b"1"]),
        }
    }

    /// Appends `request` for the key numbered `key`.
    #[inline]
    pub fn append(&self, out: &mut Vec<u8>, request: Request, key: u64) {
        let template = match request {
            Request::Get => &self.get,
            Request::Set | Request::SetOther => &self.set,
            Request::Incr => &self.incr,
            Request::Ping => &self.ping,
            Request::Wait => &self.wait,
            Request::Watch => &self.watch,
            Request::Multi => &self.multi,
            Request::Exec => &self.exec,
            Request::Debit => &self.debit,
            Request::Credit => &self.credit,
        };
        let start = out.len();
        out.extend_from_slice(&template.bytes);
        if let Some(digits) = template.digits {
            let mut rest = key;
            for digit in out[start + digits..start + digits + KEY_DIGITS].iter_mut().rev() {
                *digit = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
        }
    }
}

impl Template {
    fn without_key(words: &[&[u8]]) -> Self {
        let mut bytes = Vec::new();
        resp::encode_request(&mut bytes, words);
        Self { bytes, digits: None }
    }

    fn new(words: &[&[u8]]) -> Self {
        let mut bytes = Vec::new();
        resp::encode_request(&mut bytes, words);
        let digits = words.get(1).map(|key| {
            let mut head = Vec::new();
            resp::encode_request(&mut head, &words[..1]);
            // "$16\r\n" for the key, then the key's own prefix; the array's count has one digit in either.
            head.len() + key.len().to_string().len() + 3 + key.len() - KEY_DIGITS
        });
        Self { bytes, digits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_carries_its_key() {
        let requests = Requests::new(3);
        let mut out = b"before".to_vec();
        requests.append(&mut out, Request::Set, 987_654_321);
        requests.append(&mut out, Request::Incr, 42);
        requests.append(&mut out, Request::Exec, 7);
        requests.append(&mut out, Request::Wait, 7);
        let expected = "before*3\r\n$3\r\nSET\r\n$16\r\nkey:000987654321\r\n$3\r\naho\r\n\
            *2\r\n$4\r\nINCR\r\n$20\r\ncounter:000000000042\r\n*1\r\n$4\r\nEXEC\r\n\
            *3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$1\r\n0\r\n";
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
}

//! What is asked of the server, as bytes that are made once and copied with another key each time.

use anyhow::{Result, bail};
use clap::ValueEnum;
use resp::{Args, Limits, Parsed, RequestParser};
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
    /// The keys are of different halves of all slots, and so of different groups if there are several.
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
    /// The request of --command.
    #[value(skip)]
    Command,
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
            Self::Command => "command",
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
    /// The user's own.
    Command,
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

/// Stands for a key's digits in a request of the user's own.
const KEY_MARK: &[u8] = b"{key}";
/// Stands for a value.
const VALUE_MARK: &[u8] = b"{value}";

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
    command: Template,
}

struct Template {
    bytes: Vec<u8>,
    /// Where a key's digits begin.
    digits: Vec<usize>,
}

impl Requests {
    /// Requests with values of `value_bytes`; `command` is one that the user has thought up.
    ///
    /// # Errors
    /// If `command` is not one line of words.
    pub fn new(value_bytes: usize, command: Option<&str>) -> Result<Self> {
        let value: Vec<u8> = (0..value_bytes).map(|index| b'a' + (index * 7 % 26) as u8).collect();
        let template = |words: &[&[u8]]| Template::new(words, &value);
        let account = format!("{ACCOUNT}{{key}}");
        let command = words_of(command.unwrap_or("PING"))?;
        Ok(Self {
            get: template(&[b"GET", b"key:{key}"]),
            set: template(&[b"SET", b"key:{key}", VALUE_MARK]),
            incr: template(&[b"INCR", b"counter:{key}"]),
            ping: template(&[b"PING"]),
            wait: template(&[b"WAIT", b"1", b"0"]),
            watch: template(&[b"WATCH", b"key:{key}"]),
            multi: template(&[b"MULTI"]),
            exec: template(&[b"EXEC"]),
            debit: template(&[b"DECRBY", account.as_bytes(), b"1"]),
            credit: template(&[b"INCRBY", account.as_bytes(), b"1"]),
            command: template(&command.iter().map(Vec::as_slice).collect::<Vec<_>>()),
        })
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
            Request::Command => &self.command,
        };
        let start = out.len();
        out.extend_from_slice(&template.bytes);
        for digits in &template.digits {
            let mut rest = key;
            for digit in out[start + digits..start + digits + KEY_DIGITS].iter_mut().rev() {
                *digit = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
        }
    }
}

impl Template {
    fn new(words: &[&[u8]], value: &[u8]) -> Self {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        let mut digits = Vec::new();
        for word in words {
            let (word, keys) = filled(word, value);
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            digits.extend(keys.iter().map(|key| bytes.len() + key));
            bytes.extend_from_slice(&word);
            bytes.extend_from_slice(b"\r\n");
        }
        Self { bytes, digits }
    }
}

/// A word with its value in place and zeros for keys, and where these begin.
fn filled(mut word: &[u8], value: &[u8]) -> (Vec<u8>, Vec<usize>) {
    let (mut out, mut keys) = (Vec::new(), Vec::new());
    while let Some(first) = word.first() {
        if let Some(rest) = word.strip_prefix(KEY_MARK) {
            keys.push(out.len());
            out.extend_from_slice(&[b'0'; KEY_DIGITS]);
            word = rest;
        } else if let Some(rest) = word.strip_prefix(VALUE_MARK) {
            out.extend_from_slice(value);
            word = rest;
        } else {
            out.push(*first);
            word = &word[1..];
        }
    }
    (out, keys)
}

/// The words of a request as one types it, quoted as for redis-cli.
fn words_of(command: &str) -> Result<Vec<Vec<u8>>> {
    let line = format!("{command}\r\n");
    let (mut parser, mut spans) = (RequestParser::new(), Vec::new());
    match parser.parse(line.as_bytes(), &Limits::default(), &mut spans) {
        Ok(Parsed::Inline { consumed }) if consumed == line.len() => {
            let words = Args::new(parser.line(), &spans);
            Ok((0..words.len()).map(|at| words.at(at).to_vec()).collect())
        }
        Err(error) => bail!("--command: {error}"),
        Ok(_) => bail!("--command wants one request, as one line: {command:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_carries_its_key() {
        let requests = Requests::new(3, None).expect("nothing is asked that could be wrong");
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

    #[test]
    fn a_request_of_the_users_own_is_quoted_as_elsewhere_and_carries_keys_and_values() {
        let requests =
            Requests::new(3, Some(r#"EVAL "return 'a b'" 1 {{key}:{key}} <{value}>"#)).expect("it is a request");
        let mut out = Vec::new();
        requests.append(&mut out, Request::Command, 17);
        let expected = "*5\r\n$4\r\nEVAL\r\n$12\r\nreturn 'a b'\r\n$1\r\n1\r\n\
            $27\r\n{000000000017:000000000017}\r\n$5\r\n<aho>\r\n";
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }

    #[test]
    fn what_is_no_request_is_refused() {
        for text in ["", "   ", "GET 'a", "GET a\r\nGET b", "*1"] {
            assert!(Requests::new(3, Some(text)).is_err(), "{text:?}");
        }
    }
}

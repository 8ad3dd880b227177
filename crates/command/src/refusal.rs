//! Every refusal a client may see, in Redis's words.

use std::borrow::Cow;

/// Why a request was refused, as the client reads it: a code, then words. Clients match these texts, so they are
/// Redis 7.0's to the letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(Cow<'static, str>);

macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        impl Refusal {
            $($(#[$doc])* pub const $name: Self = Self(Cow::Borrowed($text));)*
        }
    };
}

refusals! {
    /// The value has another type than the command works on.
    WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value";
    /// The value is none of RedisJSON's, which says so without a code.
    NO_DOCUMENT = "Existing key has wrong Redis type";
    /// Options clash, or a word is not one.
    SYNTAX = "ERR syntax error";
    /// Not a 64-bit signed integer.
    NOT_AN_INTEGER = "ERR value is not an integer or out of range";
    /// Not a finite number.
    NOT_A_FLOAT = "ERR value is not a valid float";
    /// The result does not fit 64 bits.
    OVERFLOW = "ERR increment or decrement would overflow";
    /// The result is infinite or no number.
    NAN_OR_INFINITY = "ERR increment would produce NaN or Infinity";
    /// A key that must exist does not.
    NO_SUCH_KEY = "ERR no such key";
    /// An index beyond the end.
    INDEX_OUT_OF_RANGE = "ERR index out of range";
    /// A string would outgrow the protocol's limit.
    STRING_TOO_LONG = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
    /// A bit offset beyond 2³² - 1.
    BIT_OFFSET = "ERR bit offset is not an integer or out of range";
    /// A bit is neither 0 nor 1.
    BIT_VALUE = "ERR bit is not an integer or out of range";
    /// The string is no HyperLogLog.
    NOT_A_SKETCH = "WRONGTYPE Key is not a valid HyperLogLog string value.";
    /// The runs of a HyperLogLog are not as many registers as there are.
    CORRUPT_SKETCH = "INVALIDOBJ Corrupted HLL object detected";
    /// Not the id of an entry of a stream.
    STREAM_ID = "ERR Invalid stream ID specified as stream command argument";
    /// No id is left behind that of the last entry.
    STREAM_EXHAUSTED = "ERR The stream has exhausted the last possible ID, unable to add more items";
    /// Ids of a stream only rise.
    STREAM_ID_TOO_LOW = "ERR The ID specified in XADD is equal or smaller than the target stream top item";
    /// A stream is trimmed exactly, and yet not wholly.
    LIMIT_WITHOUT_ABOUT = "ERR syntax error, LIMIT cannot be used without the special ~ option";
    /// RESTORE onto an existing key.
    BUSY_KEY = "BUSYKEY Target key name already exists.";
    /// A negative index of a database, or one beyond the last.
    DATABASE_RANGE = "ERR DB index is out of range";
    /// Writes are refused because memory is full.
    OUT_OF_MEMORY = "OOM command not allowed when used memory > 'maxmemory'.";
    /// A transaction was refused because one of its commands was.
    EXEC_ABORT = "EXECABORT Transaction discarded because of previous errors.";
    /// AUTH is needed first.
    NO_AUTH = "NOAUTH Authentication required.";
    /// The password is wrong.
    WRONG_PASS = "WRONGPASS invalid username-password pair or user is disabled.";
}

impl Refusal {
    /// A refusal with words that depend on the request. `text` begins with a code such as `ERR`, unless Redis, or a
    /// module of it, has none there.
    pub fn new(text: impl Into<Cow<'static, str>>) -> Self {
        Self(text.into())
    }

    /// The right number of words was not given. `name` is lower case; a subcommand's is `config|get`.
    pub fn wrong_arity(name: &str) -> Self {
        Self::new(format!("ERR wrong number of arguments for '{name}' command"))
    }

    /// The expiry is not one that can be set.
    pub fn invalid_expire(name: &str) -> Self {
        Self::new(format!("ERR invalid expire time in '{name}' command"))
    }

    /// The code and the words, without the leading dash.
    pub fn text(&self) -> &str {
        &self.0
    }
}

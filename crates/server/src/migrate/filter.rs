//! Which keys of a source are taken: those of some databases, with names that match.
//!
//! What is taken is exact. A request of the stream about keys of which some are not taken is carried out in part where
//! that is the same, such as a DEL of several, and otherwise stops the migration: it may need what is not here.

use anyhow::{Context, Result, bail, ensure};
use keyspace::glob;
use redis_files::aof::Request;

use super::cluster::keys::Keys;
use crate::connection::named;

/// Which keys are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Filter {
    /// Take only keys with names that match one of these patterns, written as for KEYS
    #[arg(long = "match", value_name = "PATTERN")]
    matching: Vec<String>,
    /// Leave out keys with names that match one of these patterns
    #[arg(long, value_name = "PATTERN")]
    except: Vec<String>,
    /// Take only these databases
    #[arg(long = "database", value_name = "NUMBER[,NUMBER]", value_delimiter = ',')]
    databases: Vec<u64>,
}

/// Commands that write their first key, and only read the others.
const STORES: [&str; 10] = [
    "bitop",
    "geosearchstore",
    "pfmerge",
    "sdiffstore",
    "sinterstore",
    "sunionstore",
    "zdiffstore",
    "zinterstore",
    "zrangestore",
    "zunionstore",
];

/// Commands that read their first key, and write the one behind STORE or STOREDIST.
const STORES_LAST: [&str; 3] = ["georadius", "georadiusbymember", "sort"];

/// What stands in a database and is not about it.
const OF_NO_DATABASE: [&str; 6] = ["flushall", "function", "publish", "script", "select", "spublish"];

/// Commands that run scripts, which may be about other keys than they tell.
const SCRIPTS: [&str; 6] = ["eval", "eval_ro", "evalsha", "evalsha_ro", "fcall", "fcall_ro"];

impl Filter {
    /// True if every key is taken.
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }

    pub fn takes_database(&self, database: u64) -> bool {
        self.databases.is_empty() || self.databases.contains(&database)
    }

    /// True if a key of this name is taken in a database that is.
    pub fn takes_name(&self, name: &[u8]) -> bool {
        let is_one_of = |patterns: &[String]| patterns.iter().any(|pattern| glob::matches(pattern.as_bytes(), name));
        (self.matching.is_empty() || is_one_of(&self.matching)) && !is_one_of(&self.except)
    }

    /// True if no name is left out.
    fn takes_every_name(&self) -> bool {
        self.matching.is_empty() && self.except.is_empty()
    }

    pub fn takes(&self, database: u64, name: &[u8]) -> bool {
        self.takes_database(database) && self.takes_name(name)
    }

    /// As it stands in the record of a migration; nothing if every key is taken.
    pub fn text(&self) -> String {
        let databases = self.databases.iter().map(|number| format!("database {number}"));
        let matching = self.matching.iter().map(|pattern| format!("match {pattern}"));
        let except = self.except.iter().map(|pattern| format!("except {pattern}"));
        databases.chain(matching).chain(except).collect::<Vec<_>>().join("\n")
    }

    /// Reads [`Filter::text`].
    ///
    /// # Errors
    /// If it is no such text.
    pub fn read(text: &str) -> Result<Self> {
        let mut filter = Self::default();
        for line in text.lines() {
            match line.split_once(' ').context("the record of the migration has a filter that cannot be read")? {
                ("database", number) => filter.databases.push(number.parse()?),
                ("match", pattern) => filter.matching.push(pattern.to_owned()),
                ("except", pattern) => filter.except.push(pattern.to_owned()),
                _ => bail!("the record of the migration has a filter that cannot be read"),
            }
        }
        Ok(filter)
    }

    /// # Errors
    /// If it cannot be kept in the record.
    pub fn check(&self) -> Result<()> {
        let mut patterns = self.matching.iter().chain(&self.except);
        ensure!(!patterns.any(|pattern| pattern.contains(['\r', '\n'])), "a pattern has no line ends");
        Ok(())
    }

    /// What of a request is carried out that stands in this database, if anything is.
    ///
    /// # Errors
    /// If it cannot be told what it would do.
    pub fn sift(&self, keys: &Keys, database: u64, request: Request) -> Result<Option<Request>> {
        if self.is_all() {
            return Ok(Some(request));
        }
        let name = request.first().map(|name| String::from_utf8_lossy(name).to_ascii_lowercase()).unwrap_or_default();
        let number = |at: usize| request.get(at).and_then(|word| std::str::from_utf8(word).ok()?.parse::<u64>().ok());
        let unclear = || {
            let shown = named(&request).chars().take(120).collect::<String>();
            format!("{shown} is about keys of which only some are taken (--match, --except, --database)")
        };
        let positions = positions_of(keys, &name, &request);
        match name.as_str() {
            "flushdb" => return Ok(Some(request).filter(|_| self.takes_database(database))),
            "swapdb" => {
                let both = (number(1), number(2));
                let taken = [both.0, both.1].map(|number| number.is_some_and(|number| self.takes_database(number)));
                ensure!(taken[0] == taken[1], "{}", unclear());
                return Ok(Some(request).filter(|_| taken[0]));
            }
            // From the first place to the second, which may be of another database.
            "rename" | "renamenx" | "move" | "copy" => {
                let is_move = name == "move";
                let (from, Some(second)) = (request.get(1).cloned().unwrap_or_default(), request.get(2)) else {
                    return Ok(Some(request));
                };
                let at = (3..request.len()).find(|&at| name == "copy" && request[at].eq_ignore_ascii_case(b"db"));
                let to_database = if is_move { number(2) } else { at.and_then(|at| number(at + 1)) };
                let to = if is_move { &from } else { second };
                let is_taken = self.takes(database, &from);
                return match (is_taken, self.takes(to_database.unwrap_or(database), to)) {
                    (true, true) => Ok(Some(request)),
                    (true, false) if name == "copy" => Ok(None),
                    (true, false) => Ok(Some(vec![b"DEL".to_vec(), from])),
                    (false, false) => Ok(None),
                    (false, true) => bail!("{}", unclear()),
                };
            }
            name if OF_NO_DATABASE.contains(&name) => return Ok(Some(request)),
            _ if !self.takes_database(database) => return Ok(None),
            name if positions.is_empty() => {
                ensure!(!SCRIPTS.contains(&name) || self.takes_every_name(), "{}", unclear());
                return Ok(Some(request));
            }
            _ => {}
        }
        let taken: Vec<bool> = positions.iter().map(|&at| self.takes_name(&request[at])).collect();
        let written = match name.as_str() {
            name if STORES.contains(&name) => taken.first(),
            name if STORES_LAST.contains(&name) => taken.get(1),
            _ => None,
        };
        if !taken.contains(&true) || written == Some(&false) {
            return Ok(None);
        }
        // Which keys the patterns of a SORT lead to is not in the request.
        let reads_others = name == "sort" && written.is_some() && options_of(&request, 2).has_patterns;
        ensure!(!reads_others || self.takes_every_name(), "{}", unclear());
        if taken.iter().all(|is_taken| *is_taken) {
            return Ok(Some(request));
        }
        let words_each = match name.as_str() {
            "del" | "unlink" => 1,
            "mset" | "msetnx" => 2,
            _ => bail!("{}", unclear()),
        };
        let mut kept = vec![request[0].clone()];
        for (&at, _) in positions.iter().zip(&taken).filter(|(_, is_taken)| **is_taken) {
            kept.extend(request.iter().skip(at).take(words_each).cloned());
        }
        Ok(Some(kept))
    }
}

/// Where the keys of a request are, also those that COMMAND does not tell.
fn positions_of(keys: &Keys, name: &str, request: &Request) -> Vec<usize> {
    let number = |at: usize| request.get(at).and_then(|word| std::str::from_utf8(word).ok()?.parse::<usize>().ok());
    let length = request.len();
    let mut positions = match name {
        "zunionstore" | "zinterstore" | "zdiffstore" => {
            let sources = number(2).unwrap_or(0).min(length.saturating_sub(3));
            std::iter::once(1).chain(3..3 + sources).collect()
        }
        "msetex" => (0..number(1).unwrap_or(0).min(length)).map(|nth| 2 + 2 * nth).collect(),
        "sort" => std::iter::once(1).chain(options_of(request, 2).store).collect(),
        "georadius" => std::iter::once(1).chain(options_of(request, 6).store).collect(),
        "georadiusbymember" => std::iter::once(1).chain(options_of(request, 5).store).collect(),
        _ => keys.positions(request),
    };
    positions.retain(|at| *at < length);
    positions
}

/// What the options say of a request that may store what it finds.
struct Options {
    /// Where the key is that it is stored under: behind the last option that says so.
    store: Option<usize>,
    /// Values of other keys are looked up, by patterns.
    has_patterns: bool,
}

/// Reads options from this word on. A word may also be the argument of one, or a name.
fn options_of(request: &Request, begin: usize) -> Options {
    let mut options = Options { store: None, has_patterns: false };
    let mut at = begin;
    while let Some(word) = request.get(at) {
        let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
        if is("store") || is("storedist") {
            options.store = Some(at + 1).filter(|at| *at < request.len()).or(options.store);
            at += 2;
        } else if is("by") || is("get") {
            options.has_patterns |= request.get(at + 1).is_some_and(|pattern| pattern.contains(&b'*'));
            at += 2;
        } else {
            at += match () {
                () if is("limit") => 3,
                () if is("count") => 2,
                () => 1,
            };
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use resp::Frame;

    use super::*;

    fn filter(text: &str) -> Filter {
        Filter::read(text).expect("a filter")
    }

    fn keys() -> Keys {
        let about = |name: &str, [first, last, step]: [i64; 3]| {
            let mut facts = vec![Frame::Bulk(name.as_bytes().to_vec()), Frame::Integer(0), Frame::Array(Vec::new())];
            facts.extend([first, last, step].map(Frame::Integer));
            Frame::Array(facts)
        };
        Keys::told(&Frame::Array(vec![
            about("set", [1, 1, 1]),
            about("del", [1, -1, 1]),
            about("unlink", [1, -1, 1]),
            about("mset", [1, -1, 2]),
            about("sunionstore", [1, -1, 1]),
            about("lmove", [1, 2, 1]),
            about("bitop", [2, -1, 1]),
            about("flushall", [0, 0, 0]),
            about("publish", [0, 0, 0]),
        ]))
    }

    fn sifted(filter: &Filter, database: u64, line: &str) -> String {
        let request = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        match filter.sift(&keys(), database, request) {
            Ok(None) => "-".to_owned(),
            Ok(Some(request)) => String::from_utf8_lossy(&request.join(&b' ')).into_owned(),
            Err(why) => {
                let begin: Vec<&str> = line.split(' ').take(2).collect();
                assert!(why.to_string().starts_with(&begin.join(" ")), "{why}");
                "stops".to_owned()
            }
        }
    }

    #[test]
    fn a_filter_comes_back_from_the_record() {
        for text in ["", "database 3\ndatabase 5", "match a b*\nexcept a b?", "match user:*"] {
            assert_eq!(filter(text).text(), text);
        }
        assert!(Filter::read("nothing").is_err() && Filter::read("database x").is_err());
        assert!(filter("").is_all() && !filter("match *").is_all());
    }

    #[test]
    fn what_is_taken_is_exact_or_stops() {
        let users = filter("match u:*\nexcept u:tmp:*");
        for (line, expected) in [
            ("SET u:1 v", "SET u:1 v"),
            ("SET u:tmp:1 v", "-"),
            ("SET x v", "-"),
            ("FLUSHALL", "FLUSHALL"),
            ("DEL x u:1 y u:2", "DEL u:1 u:2"),
            ("UNLINK x y", "-"),
            ("MSET x 1 u:1 2", "MSET u:1 2"),
            ("SUNIONSTORE u:1 u:2 u:3", "SUNIONSTORE u:1 u:2 u:3"),
            ("SUNIONSTORE x u:2 u:3", "-"),
            ("SUNIONSTORE u:1 u:2 x", "stops"),
            ("BITOP AND x u:1 u:2", "-"),
            ("BITOP AND u:1 x", "stops"),
            ("ZUNIONSTORE u:1 2 u:2 x WEIGHTS 1 2", "stops"),
            ("ZUNIONSTORE x 1 u:2", "-"),
            ("ZUNIONSTORE u:1 1 u:2 WEIGHTS 2", "ZUNIONSTORE u:1 1 u:2 WEIGHTS 2"),
            ("MSETEX 2 u:1 a u:2 b EX 5", "MSETEX 2 u:1 a u:2 b EX 5"),
            ("MSETEX 2 u:1 a x b EX 5", "stops"),
            ("RENAME u:1 u:2", "RENAME u:1 u:2"),
            ("RENAME u:1 x", "DEL u:1"),
            ("RENAME x y", "-"),
            ("RENAME x u:1", "stops"),
            ("COPY u:1 x REPLACE", "-"),
            ("COPY x u:1", "stops"),
            ("LMOVE u:1 x LEFT LEFT", "stops"),
            ("SORT x STORE u:1", "stops"),
            ("SORT x BY w_*", "-"),
            ("SORT u:1 STORE u:2", "SORT u:1 STORE u:2"),
            ("SORT u:1 STORE x", "-"),
            ("SORT u:1 BY u:w:* STORE x", "-"),
            ("SORT u:1 BY u:w:* STORE u:2", "stops"),
            ("SORT u:1 GET # GET v_*->f STORE u:2", "stops"),
            ("SORT u:1 BY nosort GET # STORE u:2", "SORT u:1 BY nosort GET # STORE u:2"),
            ("SORT u:1 LIMIT 0 5 STORE x STORE u:2", "SORT u:1 LIMIT 0 5 STORE x STORE u:2"),
            ("SORT u:1 BY store STORE u:2", "SORT u:1 BY store STORE u:2"),
            ("GEORADIUS u:1 1 2 5 m STORE u:2", "GEORADIUS u:1 1 2 5 m STORE u:2"),
            ("GEORADIUS u:1 1 2 5 m COUNT 3 ANY STOREDIST x", "-"),
            ("GEORADIUSBYMEMBER u:1 store 5 m STORE u:2", "GEORADIUSBYMEMBER u:1 store 5 m STORE u:2"),
            ("GEORADIUSBYMEMBER u:1 store 5 m STORE x", "-"),
            ("GEORADIUSBYMEMBER x store 5 m STORE u:2", "stops"),
            ("EVAL script 1 u:1", "EVAL script 1 u:1"),
            ("EVAL script 0", "stops"),
            ("SCRIPT FLUSH", "SCRIPT FLUSH"),
            ("PUBLISH x 1", "PUBLISH x 1"),
        ] {
            assert_eq!(sifted(&users, 0, line), expected, "{line}");
        }
        let third = filter("database 3");
        for (database, line, expected) in [
            (3, "SET a v", "SET a v"),
            (0, "SET a v", "-"),
            (0, "FLUSHDB", "-"),
            (3, "FLUSHDB", "FLUSHDB"),
            (0, "FLUSHALL", "FLUSHALL"),
            (0, "SWAPDB 0 1", "-"),
            (0, "SWAPDB 0 3", "stops"),
            (3, "MOVE a 5", "DEL a"),
            (5, "MOVE a 3", "stops"),
            (5, "MOVE a 6", "-"),
            (3, "COPY a b DB 3 REPLACE", "COPY a b DB 3 REPLACE"),
            (3, "COPY a b DB 4", "-"),
            (4, "COPY a b DB 3", "stops"),
            (3, "EVAL script 0", "EVAL script 0"),
            (0, "EVAL script 0", "-"),
            (0, "FCALL f 0", "-"),
            (0, "FUNCTION DELETE library", "FUNCTION DELETE library"),
            (0, "PUBLISH x 1", "PUBLISH x 1"),
            (0, "SELECT 0", "SELECT 0"),
            (3, "SORT a BY w_* STORE b", "SORT a BY w_* STORE b"),
            (0, "SORT a BY w_* STORE b", "-"),
        ] {
            assert_eq!(sifted(&third, database, line), expected, "{database} {line}");
        }
        assert_eq!(sifted(&filter(""), 7, "RENAME x u:1"), "RENAME x u:1");
    }
}

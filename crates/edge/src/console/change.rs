//! Changes of keys, each as the user who has logged in, and none of a value that is not what the user was shown.
//!
//! A change is a transaction: the key is watched, what was shown is read again and compared, and the change is
//! executed only if the key has not changed since. A user needs permission for all of that; [`Operation::requests`]
//! lists what is asked of the rules before a change is offered.

use std::collections::BTreeMap;

use resp::Frame;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use super::sessions::{Session, Unanswered};
use super::{choose_database, error_of, read_value, text};
use crate::entropy;
use crate::host::Host;
use crate::limits::{CONSOLE_CHANGE_PATIENCE, CONSOLE_EDIT_BYTES_MAX};

/// A kind of change.
struct Operation {
    /// As the page names it.
    name: &'static str,
    /// The type of keys that it is for; empty for all.
    kind: &'static str,
    /// What a user must be permitted, beside [`ALWAYS`]. [`KEY`] stands for the key.
    requests: &'static [&'static [&'static str]],
}

/// Stands for the key in the requests that rules are asked about.
const KEY: &str = "";

/// What every change needs.
const ALWAYS: &[&[&str]] = &[&["WATCH", KEY], &["TYPE", KEY], &["MULTI"], &["EXEC"]];

const OPERATIONS: &[Operation] = &[
    Operation {
        name: "set",
        kind: "string",
        requests: &[&["GETRANGE", KEY, "0", "-1"], &["SET", KEY, "v", "KEEPTTL"]],
    },
    Operation {
        name: "set-field",
        kind: "hash",
        requests: &[&["HGET", KEY, "f"], &["HSETEX", KEY, "FXX", "KEEPTTL", "FIELDS", "1", "f", "v"]],
    },
    Operation { name: "add-field", kind: "hash", requests: &[&["HGET", KEY, "f"], &["HSETNX", KEY, "f", "v"]] },
    Operation { name: "remove-field", kind: "hash", requests: &[&["HGET", KEY, "f"], &["HDEL", KEY, "f"]] },
    Operation { name: "set-element", kind: "list", requests: &[&["LINDEX", KEY, "0"], &["LSET", KEY, "0", "v"]] },
    Operation { name: "append", kind: "list", requests: &[&["RPUSHX", KEY, "v"]] },
    Operation {
        name: "remove-element",
        kind: "list",
        requests: &[&["LINDEX", KEY, "0"], &["LSET", KEY, "0", "v"], &["LREM", KEY, "1", "v"]],
    },
    Operation { name: "add-member", kind: "set", requests: &[&["SADD", KEY, "m"]] },
    Operation { name: "remove-member", kind: "set", requests: &[&["SREM", KEY, "m"]] },
    Operation { name: "set-score", kind: "zset", requests: &[&["ZSCORE", KEY, "m"], &["ZADD", KEY, "XX", "1", "m"]] },
    Operation { name: "add-scored", kind: "zset", requests: &[&["ZSCORE", KEY, "m"], &["ZADD", KEY, "NX", "1", "m"]] },
    Operation { name: "remove-scored", kind: "zset", requests: &[&["ZSCORE", KEY, "m"], &["ZREM", KEY, "m"]] },
    Operation { name: "expire", kind: "", requests: &[&["PEXPIRETIME", KEY], &["PEXPIRE", KEY, "1"]] },
    Operation { name: "persist", kind: "", requests: &[&["PEXPIRETIME", KEY], &["PERSIST", KEY]] },
    Operation { name: "delete", kind: "", requests: &[&["DEL", KEY]] },
];

/// Names of the changes that this user may make to a key of this type. None if nobody can say.
pub fn permitted(host: &Host, user: &[u8], key: &[u8], kind: &str) -> Vec<&'static str> {
    let fitting: Vec<&Operation> = OPERATIONS.iter().filter(|it| it.kind.is_empty() || it.kind == kind).collect();
    let words = |request: &&[&'static str]| -> Vec<&[u8]> {
        let own = request.iter().map(|word| if *word == KEY { key } else { word.as_bytes() });
        [&b"ACL"[..], b"DRYRUN", user].into_iter().chain(own).collect()
    };
    let mut requests: Vec<Vec<&[u8]>> = ALWAYS.iter().map(words).collect();
    requests.extend(fitting.iter().flat_map(|operation| operation.requests.iter().map(words)));
    let replies = Session::open_of_host(host).ok().and_then(|mut session| session.ask(&requests).ok());
    let Some(replies) = replies else { return Vec::new() };
    let is_allowed = |reply: &Frame| reply.as_bytes() == Some(b"OK");
    let (always, mut rest) = replies.split_at(ALWAYS.len());
    if !always.iter().all(is_allowed) {
        return Vec::new();
    }
    let mut names = Vec::new();
    for operation in fitting {
        let (own, others) = rest.split_at(operation.requests.len());
        rest = others;
        if own.iter().all(is_allowed) {
            names.push(operation.name);
        }
    }
    names
}

/// A word for all that was shown of a key: it is the same as long as that is.
pub fn fingerprint(kind: &str, replies: &[Frame]) -> String {
    let shown = format!("{kind} {replies:?}");
    digest(&SHA256, shown.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What is read again, and what it must still be.
enum Condition<'a> {
    /// The reply to a request.
    Reply(Vec<&'a [u8]>, Frame),
    /// A score, which is compared as a number.
    Score(Vec<&'a [u8]>, Option<f64>),
    /// All that was shown of the key.
    Shown(&'a [u8]),
}

/// The words of a change.
struct Form<'a>(&'a BTreeMap<String, Vec<u8>>);

impl<'a> Form<'a> {
    fn bytes(&self, name: &str) -> Option<&'a [u8]> {
        self.0.get(name).map(Vec::as_slice)
    }

    fn required(&self, name: &str) -> Result<&'a [u8], String> {
        self.bytes(name).ok_or_else(|| format!("ERR a change of this kind needs '{name}'"))
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<T, String> {
        let text = std::str::from_utf8(self.required(name)?).ok();
        text.and_then(|text| text.parse().ok()).ok_or_else(|| format!("ERR '{name}' is not a number"))
    }

    fn score(&self, name: &str) -> Result<f64, String> {
        self.number(name).and_then(|score: f64| {
            if score.is_nan() { Err(format!("ERR '{name}' is not a number")) } else { Ok(score) }
        })
    }
}

const CONFLICT: &str = "CONFLICT what was shown has changed meanwhile: nothing was changed";
const UNKNOWN: &str = "UNKNOWN there was no answer in time: the change may have been made, or may still be";

/// Makes a change, if what was shown is still there.
///
/// # Errors
/// If the session has ended, or nothing was answered before anything could change.
pub fn change(session: &mut Session, form: &BTreeMap<String, Vec<u8>>) -> Result<Value, Unanswered> {
    let refused = |why: String| Ok(json!({ "error": why }));
    let form = Form(form);
    let name = form.bytes("do").unwrap_or_default();
    let Some(operation) = OPERATIONS.iter().find(|operation| operation.name.as_bytes() == name) else {
        return refused("ERR there is no change of this name".to_owned());
    };
    let database = std::str::from_utf8(form.bytes("db").unwrap_or_default()).unwrap_or_default();
    if let Some(refusal) = choose_database(session, database)? {
        return Ok(refusal);
    }
    // No element can be equal to it, and nobody sees it.
    let Ok(marker) = entropy::random_hex::<32>() else { return Err(Unanswered::Busy) };
    let (condition, commands) = match plan(operation.name, &form, marker.as_bytes()) {
        Ok(planned) => planned,
        Err(why) => return refused(why),
    };
    let key = form.bytes("name").unwrap_or_default();
    let facts = session.ask(&[vec![b"WATCH", key], vec![b"TYPE", key]])?;
    if let Some(refusal) = facts.iter().find_map(error_of) {
        return Ok(refusal);
    }
    let kind = text(facts[1].as_bytes().unwrap_or_default(), 64);
    let fits = if operation.kind.is_empty() { kind != "none" } else { kind == operation.kind };
    let held = match condition {
        _ if !fits => Ok(false),
        None => Ok(true),
        Some(Condition::Reply(words, was)) => session.ask_one(&words)?.into_answer().map(|reply| reply == was),
        Some(Condition::Score(words, was)) => session.ask_one(&words)?.into_answer().map(|reply| match reply {
            Frame::Double(score) => was == Some(score),
            _ => was.is_none(),
        }),
        Some(Condition::Shown(word)) => {
            let replies = read_value(session, key, &kind)?;
            Ok(fingerprint(&kind, &replies).as_bytes() == word)
        }
    };
    if !matches!(held, Ok(true)) {
        // An empty transaction ends the watch, and needs no further permission.
        session.ask(&[vec![b"MULTI"], vec![b"EXEC"]])?;
        return Ok(match held {
            Err(refusal) => refusal,
            Ok(_) => json!({ "error": CONFLICT }),
        });
    }
    let mut requests: Vec<Vec<&[u8]>> = vec![vec![b"MULTI"]];
    requests.extend(commands.iter().map(|words| words.iter().map(Vec::as_slice).collect()));
    requests.push(vec![b"EXEC"]);
    let replies = match session.ask_within(&requests, CONSOLE_CHANGE_PATIENCE) {
        Ok(replies) => replies,
        Err(_) => return Ok(json!({ "error": UNKNOWN })),
    };
    // What was refused when it was queued tells more than the transaction that was given up for it.
    if let Some(refusal) = replies.iter().find_map(error_of) {
        return Ok(refusal);
    }
    Ok(match replies.last() {
        Some(Frame::Array(answers)) => answers.iter().find_map(error_of).unwrap_or_else(|| json!({ "done": true })),
        _ => json!({ "error": CONFLICT }),
    })
}

/// What must still be so, and what is then executed.
type Planned<'a> = (Option<Condition<'a>>, Vec<Vec<Vec<u8>>>);

fn plan<'a>(name: &str, form: &Form<'a>, marker: &[u8]) -> Result<Planned<'a>, String> {
    let key = form.required("name")?;
    let own = |words: &[&[u8]]| words.iter().map(|word| word.to_vec()).collect::<Vec<_>>();
    let bulk = |name: &str| form.required(name).map(|bytes| Frame::Bulk(bytes.to_vec()));
    let value = || -> Result<&'a [u8], String> {
        let value = form.required("value")?;
        let is_short = value.len() <= CONSOLE_EDIT_BYTES_MAX;
        if is_short { Ok(value) } else { Err("ERR the value is too long to be changed here".to_owned()) }
    };
    let field = || form.required("field");
    let deadline = || -> Result<Condition<'a>, String> {
        Ok(Condition::Reply(vec![b"PEXPIRETIME", key], Frame::Integer(form.number("was")?)))
    };
    let (condition, commands) = match name {
        "set" => (
            Some(Condition::Reply(vec![b"GETRANGE", key, b"0", b"-1"], bulk("was")?)),
            vec![own(&[b"SET", key, value()?, b"KEEPTTL"])],
        ),
        "set-field" => (
            Some(Condition::Reply(vec![b"HGET", key, field()?], bulk("was")?)),
            vec![own(&[b"HSETEX", key, b"FXX", b"KEEPTTL", b"FIELDS", b"1", field()?, value()?])],
        ),
        "add-field" => (
            Some(Condition::Reply(vec![b"HGET", key, field()?], Frame::Null)),
            vec![own(&[b"HSETNX", key, field()?, value()?])],
        ),
        "remove-field" => {
            (Some(Condition::Reply(vec![b"HGET", key, field()?], bulk("was")?)), vec![own(&[b"HDEL", key, field()?])])
        }
        "set-element" | "remove-element" => {
            let place = form.required("index")?;
            form.number::<u64>("index")?;
            let commands = match name {
                "set-element" => vec![own(&[b"LSET", key, place, value()?])],
                _ => vec![own(&[b"LSET", key, place, marker]), own(&[b"LREM", key, b"1", marker])],
            };
            (Some(Condition::Reply(vec![b"LINDEX", key, place], bulk("was")?)), commands)
        }
        "append" => (None, vec![own(&[b"RPUSHX", key, value()?])]),
        "add-member" => (None, vec![own(&[b"SADD", key, value()?])]),
        "remove-member" => (None, vec![own(&[b"SREM", key, form.required("was")?])]),
        "set-score" | "add-scored" => {
            let is_new = name == "add-scored";
            let was = if is_new { None } else { Some(form.score("was")?) };
            let score = form.score("score")?.to_string();
            let way: &[u8] = if is_new { b"NX" } else { b"XX" };
            (
                Some(Condition::Score(vec![b"ZSCORE", key, field()?], was)),
                vec![own(&[b"ZADD", key, way, score.as_bytes(), field()?])],
            )
        }
        "remove-scored" => (
            Some(Condition::Score(vec![b"ZSCORE", key, field()?], Some(form.score("was")?))),
            vec![own(&[b"ZREM", key, field()?])],
        ),
        "expire" => {
            let ttl_ms: u64 = form.number("ttl_ms")?;
            if ttl_ms == 0 {
                return Err("ERR a time to live is at least a millisecond: to delete the key, delete it".to_owned());
            }
            (Some(deadline()?), vec![own(&[b"PEXPIRE", key, ttl_ms.to_string().as_bytes()])])
        }
        "persist" => (Some(deadline()?), vec![own(&[b"PERSIST", key])]),
        _ => (form.bytes("shown").map(Condition::Shown), vec![own(&[b"DEL", key])]),
    };
    Ok((condition, commands))
}

/// A reply, or the refusal that it is.
trait IntoAnswer {
    fn into_answer(self) -> Result<Frame, Value>;
}

impl IntoAnswer for Frame {
    fn into_answer(self) -> Result<Frame, Value> {
        error_of(&self).map_or(Ok(self), Err)
    }
}

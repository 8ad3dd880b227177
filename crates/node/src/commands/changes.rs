//! CHANGES: what has changed in all groups, in the order of moments, from one cursor to the next.
//!
//! Here only the words are read. The host has what has changed on disk, and a thread that reads it: no core reads a
//! file, and none waits for a client that reads changes.

use command::{Flag, Group, Refusal};
use group::ids::SessionId;
use resp::{Args, Writer};

use super::{Body, ControlCommand, container, local, number, plain};
use crate::core::Core;
use crate::event::{Action, ChangesForm, ChangesRequest, ChangesWish};
use crate::session::ChangesWait;
use crate::session::ticket::OwnTicket;

const FLAGS: &[Flag] = &[Flag::Readonly, Flag::Noscript, Flag::NoMulti, Flag::Blocking];

/// Events of one answer unless COUNT says how many.
const COUNT_DEFAULT: usize = 100;

/// Patterns and types of one request.
const FILTERS_MAX: usize = 64;

/// Types that TYPE may name.
const TYPES: [&str; 6] = ["string", "list", "set", "zset", "hash", "stream"];

const fn driven(name: &'static str, arity: i32, run: super::Drive) -> ControlCommand {
    ControlCommand {
        since: "7.0.0",
        group: Group::Generic,
        flags: FLAGS,
        categories: &["@keyspace", "@dangerous"],
        ..plain(name, arity, Body::Driven(run))
    }
}

pub(super) const CHANGES: ControlCommand = ControlCommand {
    since: "7.0.0",
    group: Group::Generic,
    summary: "Returns what has changed, transaction by transaction, from one cursor to the next.",
    subcommands: &[
        ControlCommand {
            summary: "Lists the subcommands.",
            flags: &[Flag::Loading, Flag::Stale],
            ..local("help", 2, |_, _, writer| {
                super::write_help(writer, "CHANGES", CHANGES.subcommands);
                Ok(())
            })
        },
        ControlCommand {
            summary: "Shows from which moment and up to which one this node can return changes.",
            ..driven("info", 2, info)
        },
        ControlCommand {
            summary: "Returns what has changed after a cursor, and the cursor to continue with.",
            complexity: "O(N) with N being the number of changes that are looked at.",
            syntax: "<cursor | 0 | $ | @milliseconds> [COUNT count] [BLOCK milliseconds] [MATCH pattern] [TYPE type] [EXPIRED]",
            ..driven("read", -3, read)
        },
    ],
    ..container("changes")
};

/// The stream that XREAD finds at nodes that keep what changes. No key.
const STREAM: &[u8] = b"{holdfast}:changes";

/// XREAD of that stream. It is carried out as `CHANGES READ` is, and is in no table of commands.
pub(crate) static XREAD: ControlCommand =
    ControlCommand { syntax: "[COUNT count] [BLOCK milliseconds] STREAMS key id", ..driven("xread", -4, xread) };

/// True if a request, of this command, reads changes as a stream.
pub(crate) fn is_xread(command: &str, args: Args<'_>) -> bool {
    // The name may be an option's value, too, which is refused as one.
    command == "xread" && args.iter().skip(2).any(|word| word == STREAM)
}

/// What stands for it where it is looked up who may read changes.
pub(crate) fn permission() -> (&'static [u8], [resp::Span; 3]) {
    let span = |start, end| resp::Span { start, end };
    (b"CHANGESREAD0", [span(0, 7), span(7, 11), span(11, 12)])
}

/// True for commands that tell of any key there is, whichever keys they name.
pub(crate) fn reads_every_key(container: Option<&str>) -> bool {
    container == Some("changes")
}

fn info(core: &mut Core, id: SessionId, ticket: OwnTicket, _: Args<'_>, actions: &mut Vec<Action>) -> super::Outcome {
    hand_over(core, (id, ticket), ChangesWish::Info, actions)
}

fn read(
    core: &mut Core,
    id: SessionId,
    ticket: OwnTicket,
    args: Args<'_>,
    actions: &mut Vec<Action>,
) -> Result<(), Refusal> {
    let wish = parse(args)?;
    hand_over(core, (id, ticket), wish, actions)
}

fn parse(args: Args<'_>) -> Result<ChangesWish, Refusal> {
    let mut wish = ChangesWish::Read {
        cursor: args.at(2).to_vec(),
        count: COUNT_DEFAULT,
        block_ms: None,
        patterns: Vec::new(),
        types: Vec::new(),
        wants_expired: false,
        form: ChangesForm::Events,
    };
    let ChangesWish::Read { count, block_ms, patterns, types, wants_expired, .. } = &mut wish else {
        unreachable!("just made")
    };
    let mut index = 3;
    while let Some(word) = args.get(index) {
        let word = word.to_ascii_lowercase();
        if word == b"expired" {
            *wants_expired = true;
            index += 1;
            continue;
        }
        let value = args.get(index + 1).ok_or(Refusal::SYNTAX)?;
        match word.as_slice() {
            b"count" => {
                let wanted = number(value).ok_or(Refusal::NOT_AN_INTEGER)?;
                *count = usize::try_from(wanted)
                    .ok()
                    .filter(|wanted| *wanted > 0)
                    .ok_or_else(|| Refusal::new("ERR COUNT must be > 0"))?;
            }
            b"block" => *block_ms = Some(patience(value)?),
            b"match" => patterns.push(value.to_vec()),
            b"type" => {
                let name = TYPES.into_iter().find(|name| name.as_bytes().eq_ignore_ascii_case(value));
                types.push(
                    name.ok_or_else(|| Refusal::new(format!("ERR CHANGES knows these types: {}", TYPES.join(", "))))?,
                );
            }
            _ => return Err(Refusal::SYNTAX),
        }
        index += 2;
    }
    if patterns.len() > FILTERS_MAX || types.len() > FILTERS_MAX {
        return Err(Refusal::new(format!("ERR CHANGES takes at most {FILTERS_MAX} patterns and types")));
    }
    Ok(wish)
}

fn xread(
    core: &mut Core,
    id: SessionId,
    ticket: OwnTicket,
    args: Args<'_>,
    actions: &mut Vec<Action>,
) -> super::Outcome {
    let protocol = core.sessions.get_mut(id).expect("its request is being looked at").protocol();
    let wish = parse_xread(args, protocol)?;
    hand_over(core, (id, ticket), wish, actions)
}

fn parse_xread(args: Args<'_>, protocol: resp::Protocol) -> Result<ChangesWish, Refusal> {
    let (mut count, mut block_ms, mut index) = (COUNT_DEFAULT, None, 1);
    loop {
        let word = args.get(index).ok_or(Refusal::SYNTAX)?.to_ascii_lowercase();
        if word == b"streams" {
            break;
        }
        let value = args.get(index + 1).ok_or(Refusal::SYNTAX)?;
        match word.as_slice() {
            b"count" => {
                let wanted = number(value).ok_or(Refusal::NOT_AN_INTEGER)?;
                // None and less than none are no limit for XREAD: an answer has one all the same.
                count = usize::try_from(wanted).ok().filter(|wanted| *wanted > 0).unwrap_or(usize::MAX);
            }
            b"block" => block_ms = Some(patience(value)?),
            _ => return Err(Refusal::SYNTAX),
        }
        index += 2;
    }
    let streams = args.len() - index - 1;
    if !streams.is_multiple_of(2) {
        return Err(Refusal::new(
            "ERR Unbalanced 'xread' list of streams: for each stream key an ID, '+', or '$' must be specified.",
        ));
    }
    if streams != 2 || args.at(index + 1) != STREAM {
        let name = String::from_utf8_lossy(STREAM);
        return Err(Refusal::new(format!("ERR {name} cannot be read together with other streams")));
    }
    Ok(ChangesWish::Read {
        cursor: args.at(index + 2).to_vec(),
        count,
        block_ms,
        patterns: Vec::new(),
        types: Vec::new(),
        wants_expired: false,
        form: ChangesForm::Stream(STREAM.to_vec(), protocol),
    })
}

fn patience(value: &[u8]) -> Result<u64, Refusal> {
    let wanted = number(value).ok_or_else(|| Refusal::new("ERR timeout is not an integer or out of range"))?;
    u64::try_from(wanted).map_err(|_| Refusal::new("ERR timeout is negative"))
}

fn hand_over(
    core: &mut Core,
    (session, ticket): (SessionId, OwnTicket),
    wish: ChangesWish,
    actions: &mut Vec<Action>,
) -> Result<(), Refusal> {
    if !core.context.settings.keeps_site_backlog {
        return Err(Refusal::new("ERR This node does not keep what changes: see site-backlog-size"));
    }
    if !core.context.holds_all_that_changes() {
        return Err(Refusal::new(
            "ERR This node holds only some of the groups of its cluster, and cannot tell what changes in the others",
        ));
    }
    let wait = ChangesWait::new(matches!(wish, ChangesWish::Read { block_ms: Some(_), .. }));
    let request = ChangesRequest { core: core.context.core, session, ticket, asker: wait.asker(), wish };
    core.sessions.get_mut(session).expect("its request is being looked at").changes_wait = Some(wait);
    actions.push(Action::Changes(Box::new(request)));
    Ok(())
}

impl Core {
    /// The host has read what has changed.
    pub(crate) fn answer_changes(&mut self, id: SessionId, ticket: OwnTicket, answer: Result<Vec<u8>, String>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.changes_wait = None;
        // What its user may do can have been changed meanwhile.
        let may_read = !session.is_closing && session.user.reads_every_key();
        let answer = if may_read { answer } else { Err(NO_PERMISSION.to_owned()) };
        let mut written = Writer::default();
        if let Ok(reply) = &answer {
            written.raw(reply);
        }
        self.finish_control(id, ticket, answer.map(|_| ()).map_err(Refusal::new), written);
    }
}

const NO_PERMISSION: &str = "NOPERM No permissions to access every key any more";

#[cfg(test)]
mod tests {
    use resp::Span;

    use super::*;

    fn parsed(line: &str) -> Result<ChangesWish, String> {
        let (mut spans, mut start) = (Vec::new(), 0);
        for word in line.split(' ') {
            let end = start + word.len() as u32;
            spans.push(Span { start, end });
            start = end + 1;
        }
        parse(Args::new(line.as_bytes(), &spans)).map_err(|refusal| refusal.text().to_owned())
    }

    #[test]
    fn words_in_any_order_and_case() {
        let all = "CHANGES READ $ type hash MATCH a* count 7 EXPIRED match b* BLOCK 0 TYPE zset";
        let ChangesWish::Read { cursor, count, block_ms, patterns, types, wants_expired, .. } =
            parsed(all).expect("sound")
        else {
            panic!("it reads")
        };
        assert_eq!((cursor.as_slice(), count, block_ms, wants_expired), (&b"$"[..], 7, Some(0), true));
        assert_eq!((patterns, types), (vec![b"a*".to_vec(), b"b*".to_vec()], vec!["hash", "zset"]));
    }

    #[test]
    fn xread_reads_the_stream_alone() {
        let read = |line: &str| {
            let (mut spans, mut start) = (Vec::new(), 0);
            for word in line.split(' ') {
                let end = start + word.len() as u32;
                spans.push(Span { start, end });
                start = end + 1;
            }
            let args = Args::new(line.as_bytes(), &spans);
            assert!(is_xread("xread", args) && !is_xread("xrange", args), "{line}");
            parse_xread(args, resp::Protocol::Resp3).map_err(|refusal| refusal.text().to_owned())
        };
        let ChangesWish::Read { cursor, count, block_ms, form, .. } =
            read("XREAD block 7 Count 0 STREAMS {holdfast}:changes 5-1").expect("sound")
        else {
            panic!("it reads")
        };
        assert_eq!((cursor.as_slice(), count, block_ms), (&b"5-1"[..], usize::MAX, Some(7)));
        assert_eq!(form, ChangesForm::Stream(STREAM.to_vec(), resp::Protocol::Resp3));
        for (line, text) in [
            (
                "XREAD STREAMS {holdfast}:changes",
                "ERR Unbalanced 'xread' list of streams: for each stream key an ID, '+', or '$' must be specified.",
            ),
            (
                "XREAD STREAMS {holdfast}:changes s 0 0",
                "ERR {holdfast}:changes cannot be read together with other streams",
            ),
            ("XREAD COUNT x STREAMS {holdfast}:changes 0", "ERR value is not an integer or out of range"),
            ("XREAD BLOCK -1 STREAMS {holdfast}:changes 0", "ERR timeout is negative"),
            ("XREAD COUNT {holdfast}:changes", "ERR value is not an integer or out of range"),
        ] {
            assert_eq!(read(line).expect_err("wrong"), text, "{line}");
        }
    }

    #[test]
    fn what_is_wrong_is_refused() {
        for (line, text) in [
            ("CHANGES READ 0 COUNT", "ERR syntax error"),
            ("CHANGES READ 0 NONSENSE 1", "ERR syntax error"),
            ("CHANGES READ 0 COUNT x", "ERR value is not an integer or out of range"),
            ("CHANGES READ 0 COUNT 0", "ERR COUNT must be > 0"),
            ("CHANGES READ 0 BLOCK -1", "ERR timeout is negative"),
            ("CHANGES READ 0 BLOCK x", "ERR timeout is not an integer or out of range"),
            ("CHANGES READ 0 TYPE tree", "ERR CHANGES knows these types: string, list, set, zset, hash, stream"),
        ] {
            assert_eq!(parsed(line).expect_err("wrong"), text, "{line}");
        }
        let many = format!("CHANGES READ 0{}", " MATCH a".repeat(FILTERS_MAX + 1));
        assert_eq!(parsed(&many).expect_err("too many"), "ERR CHANGES takes at most 64 patterns and types");
    }
}

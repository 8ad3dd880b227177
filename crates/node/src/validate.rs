//! Whether a request of another node is one that a gateway sends, and whether an answer is one that a group gives.
//!
//! A gateway checks what its own clients ask for, and groups rely on that: what is logged must be possible to apply, or
//! every replica would stop at it. So the same is checked of what other nodes send, before a group hears of it. Large
//! values of transactions are read in by the group before it logs them. What a slot held that moves between groups
//! (`Effect::Take`) is left to the checksums of the link: a leader says so, who is believed.
//!
//! Answers go to clients as they come, or are looked into by what has asked. So none may be less or more than one
//! reply, or lack what was asked for. Whether what they say is true, only the leader knows that gives them.

use command::{Join, Span as KeySpan};
use group::answers::LockedView;
use group::limits::SLICED_BYTES_MIN;
use group::requests::{Request, RequestBody};
use keyspace::{Body, DataCommand};
use resp::{Args, Protocol, Span};
use stdx::leb128;

use crate::entry::{self, Effect};
use crate::lookup::lookup;
use crate::roster::GROUPS_MAX;
use crate::{frame, libraries};

/// Keys, as far as groups count them: no sum over all groups is more than a number holds.
const KEYS_MAX: u64 = 1 << 48;

/// True if it is. This node knows of so many groups, and each of them has so many databases. Others may know more
/// groups: these may take part in a transaction, or get slots.
pub(crate) fn is_valid(request: &Request, group_count: u32, databases: u16) -> bool {
    let has = |database: &u16| *database < databases;
    let are_words = |words: &[u8], is_right: fn(&DataCommand) -> bool| {
        let (mut rest, mut spans) = (words, Vec::new());
        let Some((database, args)) = entry::take_words(&mut rest, &mut spans) else { return false };
        rest.is_empty() && has(&database) && command_of(args).is_some_and(is_right)
    };
    let can_be = |group: &u32| *group < GROUPS_MAX;
    if request.group.0 >= group_count {
        return false;
    }
    match &request.body {
        // A read that was given its place in the log is one, too.
        RequestBody::Write(words) => are_words(words, |command| !matches!(command.body, Body::Container)),
        RequestBody::Read(words) | RequestBody::ReadAtOnce(words) => are_words(words, is_query),
        RequestBody::Whole(words) => are_words(words, is_whole_query),
        RequestBody::Exec(packed) => {
            let mut spans = Vec::new();
            entry::check_exec(packed, &mut spans, |database, args| {
                // A watch has no words.
                has(&database) && args.is_none_or(|args| command_of(args).is_some())
            })
        }
        RequestBody::Script(script) => {
            let (mut rest, mut spans) = (&script.words[..], Vec::new());
            let key_count = script.invocation.key_count;
            entry::take_words(&mut rest, &mut spans).is_some_and(|(database, args)| {
                let is_script = lookup(args).is_ok_and(|known| known.script_naming().is_some());
                // The name, the script, the number of keys, the keys.
                let has_keys = args.len().checked_sub(3).is_some_and(|behind| key_count <= behind);
                rest.is_empty() && has(&database) && is_script && has_keys
            })
        }
        RequestBody::Admin(words) => {
            let (mut rest, mut spans) = (&words[..], Vec::<Span>::new());
            entry::take_words(&mut rest, &mut spans).is_some() && rest.is_empty()
        }
        RequestBody::Libraries(change) => libraries::Change::is_one(change),
        RequestBody::Configure(pairs) => message::parameters::are_pairs(pairs),
        RequestBody::Versions { keys, .. } => keys.iter().all(|(database, _)| has(database)),
        RequestBody::Lock(lock) => {
            lock.keys.iter().all(|(database, _)| has(database))
                && lock.watches.iter().all(|watch| has(&watch.database))
                && lock.queries.iter().all(|words| are_words(words, is_whole_query))
        }
        RequestBody::Prepare { participants, effects, .. } => {
            participants.iter().all(can_be)
                && effects.iter().all(|effect| match effect {
                    Effect::Key { database, exported, .. } => {
                        let is_value =
                            |bytes: &Vec<u8>| bytes.len() >= SLICED_BYTES_MIN || keyspace::is_exported(bytes);
                        has(database) && exported.as_ref().is_none_or(is_value)
                    }
                    Effect::Flush { database } => has(database),
                    Effect::Swap { first, second } => has(first) && has(second),
                    Effect::Give(moved) => can_be(&moved.group.0),
                    Effect::Take(_) | Effect::Answer(_) => true,
                })
        }
        RequestBody::Obey(_)
        | RequestBody::CopyCount(_)
        | RequestBody::Renew { .. }
        | RequestBody::Cut { .. }
        | RequestBody::ReadCut { .. }
        | RequestBody::EndCut { .. }
        | RequestBody::EndReservation
        | RequestBody::Resolve { .. } => true,
    }
}

/// True if another node may answer this so. It is about as many databases as each group has.
pub(crate) fn is_answer(body: &RequestBody, answer: &[u8], databases: u16) -> bool {
    let has = |(database, _): &(u16, Vec<u8>)| *database < databases;
    match body {
        RequestBody::Write(_)
        | RequestBody::Read(_)
        | RequestBody::ReadAtOnce(_)
        | RequestBody::Admin(_)
        | RequestBody::ReadCut { .. }
        | RequestBody::EndCut { .. } => frame::is_one(answer),
        RequestBody::Exec(packed) => {
            let mut spans = Vec::new();
            let count = entry::Reader::new(packed).exec(Protocol::Resp2, &mut spans).command_count();
            let is_carried_out = answer.first() == Some(&b'*') && !answer.starts_with(b"*-1");
            frame::is_one(answer) && (!is_carried_out || frame::aggregate(answer).0 == count)
        }
        RequestBody::Script(_) => match group::answers::take_declined(answer) {
            Some(declined) => declined.keys.iter().all(has),
            None => frame::is_one(answer),
        },
        RequestBody::Libraries(_) => frame::is_one(message::answer::take_changed(answer).1),
        RequestBody::Versions { keys, .. } => {
            let mut rest = answer;
            keys.iter().all(|_| leb128::take(&mut rest).is_some()) && rest.is_empty()
        }
        RequestBody::Whole(words) => {
            group::answers::take_whole(answer).is_some_and(|part| is_part(words, part.key_count, part.reply))
        }
        RequestBody::Lock(lock) => match group::answers::view_locked(answer) {
            Some(LockedView::Granted { values, answers, .. }) => {
                let mut parts = lock.queries.iter().zip(&answers);
                values.len() == lock.keys.len()
                    && answers.len() == lock.queries.len()
                    && parts.all(|(words, (count, reply))| is_part(words, *count, reply))
            }
            Some(LockedView::Answered(reply)) => frame::is_one(reply),
            Some(LockedView::Changed | LockedView::Refused(_)) => true,
            None => false,
        },
        // What does not fit is no acceptance, no place, no version, and no text.
        RequestBody::Configure(_)
        | RequestBody::Prepare { .. }
        | RequestBody::Obey(_)
        | RequestBody::CopyCount(_)
        | RequestBody::Renew { .. }
        | RequestBody::Cut { .. }
        | RequestBody::EndReservation
        | RequestBody::Resolve { .. } => true,
    }
}

/// True if a group may answer a query over all keys so, with this number of them.
fn is_part(words: &[u8], key_count: u64, reply: &[u8]) -> bool {
    let mut spans = Vec::new();
    let (_, args) = entry::Reader::new(words).words(&mut spans);
    let Some(KeySpan::Whole(join)) = command_of(args).map(|command| command.span) else { return false };
    let are_bulks = |elements: &[&[u8]]| elements.iter().all(|element| frame::bulk_bytes(element).is_some());
    let is_right = || match join {
        Join::Sum => reply[0] == b':' && u64::try_from(frame::integer(reply)).is_ok_and(|sum| sum <= KEYS_MAX),
        Join::Concatenate => reply[0] == b'*' && are_bulks(&frame::elements(reply)),
        Join::Cursor => match frame::elements(reply)[..] {
            [cursor, keys] => frame::bulk(cursor).is_some() && are_bulks(&frame::elements(keys)),
            _ => false,
        },
        Join::Any | Join::All => true,
    };
    key_count <= KEYS_MAX && frame::is_one(reply) && (reply[0] == b'-' || is_right())
}

fn command_of(args: Args<'_>) -> Option<&'static DataCommand> {
    keyspace::resolve(args).filter(|command| command.accepts(args.len()))
}

fn is_query(command: &DataCommand) -> bool {
    matches!(command.body, Body::Query(_))
}

fn is_whole_query(command: &DataCommand) -> bool {
    is_query(command) && matches!(command.span, KeySpan::Whole(_))
}

#[cfg(test)]
mod tests {
    use group::ids::{CoreId, GroupId, NodeId, SessionId};
    use group::locks::FencingToken;
    use group::requests::Origin;
    use message::{GatewayId, TransactionId};

    use super::*;

    #[test]
    fn what_no_replica_could_install_is_not_logged() {
        let is_taken = |exported: &[u8]| {
            let effect = Effect::Key { database: 0, key: b"k".to_vec(), exported: Some(exported.to_vec()) };
            let gateway = GatewayId { node: 2, boot: 1, core: CoreId(0) };
            let transaction = TransactionId { gateway, number: 1 };
            let (participants, effects) = (vec![0, 1], vec![effect]);
            let body = RequestBody::Prepare { transaction, token: FencingToken::default(), participants, effects };
            let origin = Origin::new(NodeId(2), CoreId(0), SessionId { serial: 1, index: 0 }, 1);
            is_valid(&Request::new(origin, GroupId(0), Protocol::Resp2, body), 2, 16)
        };
        let mut scratch = keyspace::Keyspace::new(keyspace::Options {
            databases: 1,
            hash_seed: 0,
            layout: keyspace::Layout::Scratch,
            tuning: keyspace::Tuning::default(),
        });
        let command = [&b"SET"[..], b"k", b"some text"];
        let (buffer, spans) = crate::blocking::lay_out(command.into_iter());
        let mut writer = resp::Writer::default();
        group::one_command::run_one(
            &mut scratch,
            0,
            Args::new(&buffer, &spans),
            keyspace::Moment::default(),
            &mut writer,
        );
        let exported = scratch.export(0, b"k", keyspace::Moment::default()).expect("just set");
        assert!(is_taken(&exported));
        for end in 0..exported.len() {
            assert!(!is_taken(&exported[..end]), "{end} bytes of {}", exported.len());
        }
        assert!(!is_taken(&[&exported[..], b"x"].concat()));
        assert!(!is_taken(&[0xFF; 20]));
    }
}

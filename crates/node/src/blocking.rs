//! Requests that wait for data: BLPOP and its kin, XREAD BLOCK.
//!
//! Such a request is tried at once, as any other is; that it found nothing, its null reply says. Then its client waits
//! at the gateway, and joins a queue for each of its keys, at the group of the key. When something happens to a key
//! its group wakes the first in the queue, which tries again:
//!
//! ```text
//!  gateway                                  group of a key
//!     │── join the queue, and first try ──────▶│
//!     │◀── null ────────────────────────────────│
//!     │                                         │◀── somebody pushes
//!     │◀── wake ────────────────────────────────│
//!     │── second try ──────────────────────────▶│
//!     │◀── an element, or null ─────────────────│
//!     │── leave, or back in the queue ─────────▶│──▶ wakes the next if the key still exists
//! ```
//!
//! One at a time, first come first served. A try is an ordinary request: logged, executed once, atomic over groups. So
//! an element goes to exactly one client or stays. A client that would claim what is pending in a stream's group is
//! woken, too, when something has been idle for long enough. Wait Queues are the leader's own state and are not
//! replicated: a waiter with groups that are not all led from here takes its place again every
//! [`group::limits::LINE_RENEWAL_INTERVAL`].

use std::collections::{BTreeMap, BTreeSet};

use group::ids::GroupId;
use group::proof::Observed;
use keyspace::{Claims, DataCommand, DatabaseKey};
use resp::{Args, Span};
use state::is_null;
use stdx::Instant;

use crate::entry::{Reader, put_words};
use crate::frame;
use crate::session::ticket::Right;

// ---- the group's side -----------------------------------------------------------------------------------------------

// ---- the gateway's side ---------------------------------------------------------------------------------------------

/// A request that has found nothing yet.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) ticket: u64,
    pub(crate) command: &'static DataCommand,
    /// Laid out by `entry::put_words`.
    pub(crate) words: Vec<u8>,
    pub(crate) keys: BTreeMap<GroupId, Vec<DatabaseKey>>,
    pub(crate) claims: Option<Claims>,
    pub(crate) until: Option<Instant>,
    pub(crate) stage: Stage,
    /// Ids that are still to be found.
    pub(crate) unresolved: Vec<Dollar>,
    /// What the try under way was answered.
    pub(crate) answer: Option<(Right, Vec<u8>)>,
    /// That the last try has found nothing.
    pub(crate) nothing: Option<Observed>,
    /// Groups that wait to hear how the try under way went.
    pub(crate) awake_at: BTreeSet<GroupId>,
    /// Groups that have woken it since the try under way began.
    pub(crate) woken_at: BTreeSet<GroupId>,
    /// Ends when the try under way has found nothing.
    pub(crate) end: Option<WaitEnd>,
    pub(crate) try_count: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It asks for the ids that `$` stands for.
    Resolving,
    /// A try is under way.
    Trying,
    /// It waits in queues.
    Standing,
}

/// Why a request waits no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// Its time is up, or somebody said so (CLIENT UNBLOCK … TIMEOUT).
    Timeout,
    /// Somebody ended it (CLIENT UNBLOCK … ERROR).
    Error,
    /// This node follows a Redis from now on, and what the request would take away is not this node's any more.
    Follows,
}

impl WaitEnd {
    pub(crate) const FOLLOWS: &str =
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";

    pub(crate) const ERROR: &str = "UNBLOCKED client unblocked via CLIENT UNBLOCK";
}

impl Waiting {
    /// True if a reply to this ticket is an answer to a try.
    #[inline]
    pub(crate) fn takes(&self, ticket: u64) -> bool {
        self.ticket == ticket && self.stage != Stage::Standing
    }

    /// True if nothing is under way for it.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.stage == Stage::Standing
    }

    /// The command, the ticket and the words of a try that has not been answered.
    pub(crate) fn try_under_way(&self) -> Option<(&'static str, u64, Vec<u8>)> {
        (self.stage == Stage::Trying).then(|| (self.command.name, self.ticket, self.words.clone()))
    }

    /// True while it is being carried out.
    pub(crate) fn is_trying(&self) -> bool {
        self.stage == Stage::Trying
    }
}

/// What a try's reply means for the wait.
pub(crate) enum Meaning {
    /// There was nothing: the wait goes on.
    Nothing,
    /// It is what the client has waited for, or a refusal.
    Answer,
}

impl Waiting {
    pub(crate) fn meaning_of(&self, reply: &[u8]) -> Meaning {
        if is_null(reply) {
            return Meaning::Nothing;
        }
        let is_first = self.try_count <= 1;
        let is_wrong_type = reply.starts_with(b"-WRONGTYPE");
        match self.command.name {
            _ if is_first => Meaning::Answer,
            // Of another type may be the destination, and then somebody has to be told. Who reads for a group waits no
            // longer either when its stream or the group has gone: as in Redis 7.2, the next try says what there is.
            "blmove" | "brpoplpush" | "xreadgroup" => Meaning::Answer,
            // A client that waits for a list is not interested in a string that has taken its name.
            _ if is_wrong_type => Meaning::Nothing,
            _ => Meaning::Answer,
        }
    }
}

/// A `$` among the words of an XREAD, and the key it belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dollar {
    pub(crate) key: usize,
    pub(crate) word: usize,
}

/// Every `$` of an XREAD: it stands for the last entry there is when the wait begins.
pub(crate) fn dollars(command: &DataCommand, args: Args<'_>) -> Vec<Dollar> {
    if command.name != "xread" {
        return Vec::new();
    }
    let mut keys = Vec::new();
    command.for_each_key(args, |index, _| keys.push(index));
    let count = keys.len();
    let all = keys.into_iter().map(|key| Dollar { key, word: key + count });
    all.filter(|dollar| args.get(dollar.word) == Some(b"$")).collect()
}

/// The id in a reply of at most one entry.
pub(crate) fn last_id(reply: &[u8]) -> &[u8] {
    let entry = frame::elements(reply).into_iter().next().map(frame::elements);
    let id = entry.and_then(|entry| frame::bulk_bytes(entry.first()?));
    id.unwrap_or(b"0-0")
}

/// The request with another word in one place.
pub(crate) fn with_id(words: &[u8], place: usize, id: &[u8]) -> Vec<u8> {
    let mut spans: Vec<Span> = Vec::new();
    let (database, args) = Reader::new(words).words(&mut spans);
    let (buffer, spans) = lay_out(args.iter().enumerate().map(|(index, word)| if index == place { id } else { word }));
    let mut out = Vec::new();
    put_words(&mut out, database, Args::new(&buffer, &spans));
    out
}

/// Words as they would have come from a client.
pub(crate) fn lay_out<'a>(words: impl Iterator<Item = &'a [u8]>) -> (Vec<u8>, Vec<Span>) {
    let mut buffer = Vec::new();
    let mut spans = Vec::new();
    for word in words {
        let start = buffer.len() as u32;
        buffer.extend_from_slice(word);
        spans.push(Span { start, end: buffer.len() as u32 });
    }
    (buffer, spans)
}

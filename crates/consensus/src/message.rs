//! What replicas of a group say to each other, and its bytes.
//!
//! ```text
//!   kind u8 · flags u8 · from · to · incarnation · term · log_term · index · commit · commit_term · hint · everywhere
//!   · context u8 + bytes · entries count, then for each: kind u8 · term (minus the last one's) · length · data
//! ```
//!
//! Of the flags 1 says no, and 2 that a vote is of one in doubt. The `index` of a yes is the last of the voter's log;
//! older versions say 0.
//!
//! A `Checkpoint` goes on with the checkpoint's members: count and nodes of those that vote, then of those that do not.
//! Its `index` and `log_term` are the checkpoint's.
//!
//! Numbers are LEB128, at most ten bytes. Entries of a message are consecutive and start at `index + 1`, so their
//! indexes do not travel. The library's own protobuf parser is never shown these bytes: it can be made to overflow the
//! stack (RUSTSEC-2024-0437).

use std::fmt;

use raft::eraftpb::{Entry, EntryType, Message as Inner, MessageType};
use stdx::log::Membership;

use crate::change::Change;
use crate::limits::{ENTRY_BYTES_MAX, MESSAGE_ENTRIES_MAX, NUMBER_MAX};
use crate::log::{conf_state_of, membership_of};
use stdx::leb128;

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MessageKind {
    /// A leader's entries, or only its commit index.
    Append = 1,
    /// What became of an append.
    AppendReply = 2,
    /// Would you vote for me? Changes no state.
    PreVote = 3,
    /// The answer to that.
    PreVoteReply = 4,
    /// Vote for me.
    Vote = 5,
    /// The answer to that.
    VoteReply = 6,
    /// A leader is alive; may carry a read confirmation's context.
    Heartbeat = 7,
    /// The answer to that.
    HeartbeatReply = 8,
    /// I have lost the unsynced end of my log: forget what I acknowledged beyond `index`.
    Rejoin = 9,
    /// The leader has forgotten; once you hold all up to `commit` you are whole again.
    Welcome = 10,
    /// A leader's checkpoint, which the member already has on its disk.
    Checkpoint = 11,
    /// Campaign at once: the leader hands over.
    HandOver = 12,
}

impl MessageKind {
    const ALL: [Self; 12] = [
        Self::Append,
        Self::AppendReply,
        Self::PreVote,
        Self::PreVoteReply,
        Self::Vote,
        Self::VoteReply,
        Self::Heartbeat,
        Self::HeartbeatReply,
        Self::Rejoin,
        Self::Welcome,
        Self::Checkpoint,
        Self::HandOver,
    ];

    /// The library's name for it, if it is the library's message.
    fn inner(self) -> Option<MessageType> {
        match self {
            Self::Append => Some(MessageType::MsgAppend),
            Self::AppendReply => Some(MessageType::MsgAppendResponse),
            Self::PreVote => Some(MessageType::MsgRequestPreVote),
            Self::PreVoteReply => Some(MessageType::MsgRequestPreVoteResponse),
            Self::Vote => Some(MessageType::MsgRequestVote),
            Self::VoteReply => Some(MessageType::MsgRequestVoteResponse),
            Self::Heartbeat => Some(MessageType::MsgHeartbeat),
            Self::HeartbeatReply => Some(MessageType::MsgHeartbeatResponse),
            Self::Checkpoint => Some(MessageType::MsgSnapshot),
            Self::HandOver => Some(MessageType::MsgTimeoutNow),
            Self::Rejoin | Self::Welcome => None,
        }
    }

    /// True for small messages that tell who lives and who leads: nothing else may delay them.
    pub fn is_vital(self) -> bool {
        !matches!(self, Self::Append | Self::AppendReply | Self::Checkpoint)
    }
}

/// One message between two replicas of a group. Made by a replica or by [`Message::decode`], never by hand.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub(crate) kind: MessageKind,
    /// Which life of the sender this comes from.
    pub(crate) incarnation: u64,
    /// An index that every member of the group is known to hold; 0 when not known.
    pub(crate) everywhere: u64,
    /// A vote of somebody who may have lost the end of its log: it counts only if all voters give theirs.
    pub(crate) is_in_doubt: bool,
    pub(crate) inner: Inner,
}

/// Bytes that are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The bytes end inside a field, or go on after the last one.
    Length,
    /// A kind or flag nobody sends.
    Kind,
    /// A number beyond its bound.
    Number,
    /// Entries with terms that run backwards or beyond the message's, or entries on a message that carries none.
    Entries,
}

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Length => "a peer's message has the wrong length",
            Self::Kind => "a peer's message is of no known kind",
            Self::Number => "a peer's message holds a number out of bounds",
            Self::Entries => "a peer's message holds entries that cannot follow each other",
        })
    }
}

impl std::error::Error for Malformed {}

const FLAG_REJECT: u8 = 1;
const FLAG_IN_DOUBT: u8 = 2;
const ENTRY_NORMAL: u8 = 0;
const ENTRY_MEMBERSHIP: u8 = 1;
const CONTEXT_BYTES_MAX: usize = 16;

impl Message {
    /// Wraps a message of the library. `None` for what has no business on the network (forwarded proposals and the
    /// like).
    pub(crate) fn wrap(inner: Inner, incarnation: u64, everywhere: u64) -> Option<Self> {
        let kind = MessageKind::ALL.into_iter().find(|kind| kind.inner() == Some(inner.get_msg_type()))?;
        for (entry, index) in inner.entries.iter().zip(inner.index + 1..) {
            assert_eq!(entry.index, index, "entries of an append follow its index");
        }
        Some(Self { kind, incarnation, everywhere, is_in_doubt: false, inner })
    }

    /// Index, term and members of a checkpoint that this message speaks of.
    pub fn checkpoint(&self) -> Option<(u64, u64, Membership)> {
        (self.kind == MessageKind::Checkpoint).then(|| {
            let metadata = self.inner.get_snapshot().get_metadata();
            (metadata.index, metadata.term, membership_of(metadata.get_conf_state()))
        })
    }

    /// One of our own kinds.
    pub(crate) fn own(kind: MessageKind, from: u64, to: u64, incarnation: u64, term: u64) -> Self {
        let mut inner = Inner::default();
        (inner.from, inner.to, inner.term) = (from, to, term);
        Self { kind, incarnation, everywhere: 0, is_in_doubt: false, inner }
    }

    /// What it is for.
    pub fn kind(&self) -> MessageKind {
        self.kind
    }

    /// The node that sent it.
    pub fn from(&self) -> u64 {
        self.inner.from
    }

    /// The node it is for.
    pub fn to(&self) -> u64 {
        self.inner.to
    }

    /// The sender's term, or for pre-votes the term it would campaign in.
    pub fn term(&self) -> u64 {
        self.inner.term
    }

    /// Bytes of entries carried.
    pub fn payload_bytes(&self) -> usize {
        self.inner.entries.iter().map(|entry| entry.data.len()).sum()
    }

    /// Appends the message's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let inner = &self.inner;
        let checkpoint = self.checkpoint();
        let (index, log_term) = match &checkpoint {
            Some((index, term, _)) => (*index, *term),
            None => (inner.index, inner.log_term),
        };
        out.push(self.kind as u8);
        let doubt = if self.is_in_doubt { FLAG_IN_DOUBT } else { 0 };
        out.push(doubt | if inner.reject { FLAG_REJECT } else { 0 });
        for number in [
            inner.from,
            inner.to,
            self.incarnation,
            inner.term,
            log_term,
            index,
            inner.commit,
            inner.commit_term,
            inner.reject_hint,
            self.everywhere,
        ] {
            leb128::put(out, number);
        }
        out.push(inner.context.len() as u8);
        out.extend_from_slice(&inner.context);
        leb128::put(out, inner.entries.len() as u64);
        let mut term = 0;
        for entry in inner.entries.iter() {
            out.push(match entry.get_entry_type() {
                EntryType::EntryNormal => ENTRY_NORMAL,
                EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => ENTRY_MEMBERSHIP,
            });
            leb128::put(out, entry.term - term);
            term = entry.term;
            leb128::put(out, entry.data.len() as u64);
            out.extend_from_slice(&entry.data);
        }
        if let Some((_, _, membership)) = checkpoint {
            for nodes in [&membership.voters, &membership.learners] {
                leb128::put(out, nodes.len() as u64);
                nodes.iter().for_each(|node| leb128::put(out, *node));
            }
        }
    }

    /// Reads one message that fills `bytes`.
    ///
    /// # Errors
    /// Anything that [`Message::encode`] would not have written. Memory is bounded by the length of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader { bytes };
        let kind_byte = reader.byte()?;
        let kind = MessageKind::ALL.into_iter().find(|kind| *kind as u8 == kind_byte).ok_or(Malformed::Kind)?;
        let flags = reader.byte()?;
        if flags & !(FLAG_REJECT | FLAG_IN_DOUBT) != 0 {
            return Err(Malformed::Kind);
        }
        let is_in_doubt = flags & FLAG_IN_DOUBT != 0;
        let mut inner = Inner::default();
        if let Some(message_type) = kind.inner() {
            inner.set_msg_type(message_type);
        }
        inner.reject = flags & FLAG_REJECT != 0;
        inner.from = reader.number()?;
        inner.to = reader.number()?;
        let incarnation = reader.number()?;
        inner.term = reader.number()?;
        inner.log_term = reader.number()?;
        inner.index = reader.number()?;
        inner.commit = reader.number()?;
        inner.commit_term = reader.number()?;
        inner.reject_hint = reader.number()?;
        let everywhere = reader.number()?;
        // Term 0 marks a message to oneself in the library: it would skip every check of terms.
        if inner.from == 0 || inner.to == 0 || inner.term == 0 {
            return Err(Malformed::Number);
        }
        let context_length = usize::from(reader.byte()?);
        // A request for a vote says so if a leader hands over.
        let may_carry_context =
            matches!(kind, MessageKind::Heartbeat | MessageKind::HeartbeatReply | MessageKind::Vote);
        if context_length > CONTEXT_BYTES_MAX || (context_length > 0 && !may_carry_context) {
            return Err(Malformed::Number);
        }
        inner.context = reader.take(context_length)?.to_vec().into();
        let count = reader.number()? as usize;
        if count > MESSAGE_ENTRIES_MAX {
            return Err(Malformed::Number);
        }
        if count > 0 && kind != MessageKind::Append {
            return Err(Malformed::Entries);
        }
        // The library answers 0 for the term of an entry it does not have: (index 9, term 0) would match any short log.
        if kind == MessageKind::Append && (inner.index == 0) != (inner.log_term == 0) {
            return Err(Malformed::Entries);
        }
        let mut entries = Vec::with_capacity(count.min(reader.bytes.len() / 3));
        let (mut term, mut index) = (0, inner.index);
        for _ in 0..count {
            let mut entry = Entry::default();
            let is_change = match reader.byte()? {
                ENTRY_NORMAL => false,
                ENTRY_MEMBERSHIP => true,
                _ => return Err(Malformed::Kind),
            };
            term += reader.number()?;
            index += 1;
            if term == 0 || term < inner.log_term || term > inner.term || index > NUMBER_MAX {
                return Err(Malformed::Entries);
            }
            let length = reader.number()? as usize;
            if length > ENTRY_BYTES_MAX {
                return Err(Malformed::Number);
            }
            (entry.term, entry.index) = (term, index);
            // A copy: a slice would pin the whole receive buffer for as long as the entry lives.
            entry.data = reader.take(length)?.to_vec().into();
            if is_change {
                Change::decode(&entry.data).ok_or(Malformed::Entries)?;
                entry.set_entry_type(EntryType::EntryConfChangeV2);
            }
            entries.push(entry);
        }
        inner.set_entries(entries.into());
        if kind == MessageKind::Checkpoint {
            let membership = Membership { voters: reader.nodes()?, learners: reader.nodes()?, ..Membership::default() };
            if inner.index == 0 || inner.log_term == 0 || inner.log_term > inner.term || membership.voters.is_empty() {
                return Err(Malformed::Number);
            }
            let (index, term) = (std::mem::take(&mut inner.index), std::mem::take(&mut inner.log_term));
            let metadata = inner.mut_snapshot().mut_metadata();
            (metadata.index, metadata.term) = (index, term);
            metadata.set_conf_state(conf_state_of(&membership));
        }
        if !reader.bytes.is_empty() {
            return Err(Malformed::Length);
        }
        Ok(Self { kind, incarnation, everywhere, is_in_doubt, inner })
    }
}

impl fmt::Display for Message {
    /// One line, for transcripts and traces.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.inner;
        write!(formatter, "{}→{} {:?} term {}", inner.from, inner.to, self.kind, inner.term)?;
        match self.kind {
            MessageKind::Append => {
                write!(formatter, " after {}@{} commit {}", inner.index, inner.log_term, inner.commit)?;
                if let (Some(first), Some(last)) = (inner.entries.first(), inner.entries.last()) {
                    write!(formatter, " entries {}..{}", first.index, last.index)?;
                }
            }
            MessageKind::AppendReply if inner.reject => {
                write!(formatter, " rejects {} hint {}@{}", inner.index, inner.reject_hint, inner.log_term)?;
            }
            MessageKind::AppendReply => write!(formatter, " holds {}", inner.index)?,
            MessageKind::PreVote | MessageKind::Vote => {
                write!(formatter, " log {}@{}", inner.index, inner.log_term)?;
            }
            MessageKind::PreVoteReply | MessageKind::VoteReply => {
                formatter.write_str(match (inner.reject, self.is_in_doubt) {
                    (true, _) => " no",
                    (false, false) => " yes",
                    (false, true) => " yes, in doubt",
                })?;
            }
            MessageKind::Heartbeat | MessageKind::Welcome => write!(formatter, " commit {}", inner.commit)?,
            MessageKind::HeartbeatReply => {}
            MessageKind::Rejoin => write!(formatter, " holds {}", inner.index)?,
            MessageKind::Checkpoint => {
                let metadata = inner.get_snapshot().get_metadata();
                write!(formatter, " at {}@{}", metadata.index, metadata.term)?;
            }
            MessageKind::HandOver => {}
        }
        if !inner.context.is_empty() {
            formatter.write_str(if self.kind == MessageKind::Vote { " handed over" } else { " read" })?;
        }
        Ok(())
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.bytes.split_at_checked(length).ok_or(Malformed::Length)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    /// Nodes in growing order, none twice.
    fn nodes(&mut self) -> Result<Vec<u64>, Malformed> {
        let count = self.number()?;
        let mut nodes: Vec<u64> = Vec::new();
        for _ in 0..count {
            let node = self.number()?;
            if node == 0 || nodes.last().is_some_and(|last| *last >= node) {
                return Err(Malformed::Number);
            }
            nodes.push(node);
        }
        Ok(nodes)
    }

    fn number(&mut self) -> Result<u64, Malformed> {
        leb128::take(&mut self.bytes).filter(|number| *number <= NUMBER_MAX).ok_or(Malformed::Number)
    }
}

//! What nodes send each other, framed by the host: one kind byte, then the kind's own form.
//!
//! ```text
//! RAFT     group:u32le  consensus message
//! REQUEST  node core serial index ticket  group protocol kind words
//! REPLY    core serial index ticket  bytes
//! PUBLISH  shard:u8 length channel  message
//! OFFER    group:u32le  consensus message, of a checkpoint
//! PULL     group index chunk
//! CHUNK    group index chunk  1 if the bytes follow, 0 at the end
//! ANNOUNCE node member
//! LINE     node core serial index ticket  group act flags, keys: database length bytes
//! WAKE     node core serial index ticket  group is_gone
//! ```
//! Numbers are LEB128 unless said otherwise. Bytes of another node are never trusted: what does not fit is dropped.

use consensus::Message;
use resp::Protocol;
use stdx::leb128;

use crate::blocking::{LineAct, LineNote};
use crate::event::{CoreId, GroupId, NodeId, SessionId};
use crate::letter::{Origin, Request, RequestBody};
use crate::pubsub;
use crate::roster::Member;

const RAFT: u8 = 1;
const REQUEST: u8 = 2;
const REPLY: u8 = 3;
const PUBLISH: u8 = 4;
const OFFER: u8 = 5;
const PULL: u8 = 6;
const CHUNK: u8 = 7;
const ANNOUNCE: u8 = 8;
const LINE: u8 = 9;
const WAKE: u8 = 10;

/// A decoded message of another node.
pub enum Wire<'a> {
    /// For a group's replica.
    Raft(GroupId, Message),
    /// A client's request, sent on by its gateway.
    Request(Request),
    /// A reply for a client of this node.
    Reply {
        /// Whose.
        origin: Origin,
        /// In the session's protocol.
        bytes: Vec<u8>,
    },
    /// For those who listen on this node.
    Publish(pubsub::Message),
    /// A leader offers a checkpoint.
    Offer(GroupId, Message),
    /// A member asks for a chunk of the checkpoint at this index.
    Pull {
        /// Whose.
        group: GroupId,
        /// Which checkpoint.
        index: u64,
        /// Which chunk, from 0.
        chunk: u64,
    },
    /// The chunk, or `None` behind the last.
    Chunk {
        /// Whose.
        group: GroupId,
        /// Which checkpoint.
        index: u64,
        /// Which chunk.
        chunk: u64,
        /// As `CheckpointStep::Chunk` gave it.
        bytes: Option<&'a [u8]>,
    },
    /// A node tells where it is found.
    Announce(NodeId, Member),
    /// A client of that node waits for data, or does no longer.
    Line(LineNote),
    /// There may be something for a client of this node that waits.
    Wake {
        /// Whose.
        waiter: Origin,
        /// Who says so.
        group: GroupId,
        /// The key is gone.
        is_gone: bool,
    },
}

/// A Raft message of a group.
pub fn encode_raft(group: GroupId, message: &Message) -> Vec<u8> {
    let mut out = vec![RAFT];
    out.extend_from_slice(&group.0.to_le_bytes());
    message.encode(&mut out);
    out
}

/// A leader's offer of a checkpoint.
pub fn encode_offer(group: GroupId, message: &Message) -> Vec<u8> {
    let mut out = encode_raft(group, message);
    out[0] = OFFER;
    out
}

/// A member's wish for a chunk.
pub fn encode_pull(group: GroupId, index: u64, chunk: u64) -> Vec<u8> {
    let mut out = vec![PULL];
    leb128::put(&mut out, u64::from(group.0));
    leb128::put(&mut out, index);
    leb128::put(&mut out, chunk);
    out
}

/// A chunk, or the end.
pub fn encode_chunk(group: GroupId, index: u64, chunk: u64, bytes: Option<&[u8]>) -> Vec<u8> {
    let mut out = Vec::with_capacity(32 + bytes.map_or(0, <[u8]>::len));
    out.push(CHUNK);
    leb128::put(&mut out, u64::from(group.0));
    leb128::put(&mut out, index);
    leb128::put(&mut out, chunk);
    out.push(u8::from(bytes.is_some()));
    out.extend_from_slice(bytes.unwrap_or_default());
    out
}

/// A node's word on itself.
pub fn encode_announce(node: NodeId, member: &Member) -> Vec<u8> {
    let mut out = vec![ANNOUNCE];
    leb128::put(&mut out, node.0);
    for address in [&member.cluster_address, &member.client_address] {
        out.push(address.len().min(ADDRESS_BYTES_MAX) as u8);
        out.extend_from_slice(&address.as_bytes()[..address.len().min(ADDRESS_BYTES_MAX)]);
    }
    out
}

const ADDRESS_BYTES_MAX: usize = 255;

/// A request sent on to the node that leads its group.
pub fn encode_request(request: &Request) -> Vec<u8> {
    let mut out = vec![REQUEST];
    put_origin(&mut out, &request.origin);
    leb128::put(&mut out, u64::from(request.group.0));
    out.push(match request.protocol {
        Protocol::Resp2 => 2,
        Protocol::Resp3 => 3,
    });
    let (kind, words) = match &request.body {
        RequestBody::Write(words) => (1, words),
        RequestBody::Read(words) => (2, words),
        RequestBody::Exec(packed) => (3, packed),
        RequestBody::ReadAtOnce(words) => (4, words),
    };
    out.push(kind);
    out.extend_from_slice(words);
    out
}

/// The answer to a request sent on.
pub fn encode_reply(origin: &Origin, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![REPLY];
    put_origin(&mut out, origin);
    out.extend_from_slice(bytes);
    out
}

/// A message for those who listen on another node.
pub fn encode_publish(message: &pubsub::Message) -> Vec<u8> {
    let mut out = vec![PUBLISH, u8::from(message.is_shard)];
    leb128::put(&mut out, message.channel.len() as u64);
    out.extend_from_slice(&message.channel);
    out.extend_from_slice(&message.body);
    out
}

/// What a waiter tells a group that another node leads.
pub fn encode_line(note: &LineNote) -> Vec<u8> {
    let mut out = vec![LINE];
    put_origin(&mut out, &note.waiter);
    leb128::put(&mut out, u64::from(note.group.0));
    out.push(match note.act {
        LineAct::Stand { is_trying, wants_end } => STAND | u8::from(is_trying) << 2 | u8::from(wants_end) << 3,
        LineAct::Tried => TRIED,
        LineAct::Leave => LEAVE,
    });
    for (database, key) in &note.keys {
        leb128::put(&mut out, u64::from(*database));
        leb128::put(&mut out, key.len() as u64);
        out.extend_from_slice(key);
    }
    out
}

const STAND: u8 = 0;
const TRIED: u8 = 1;
const LEAVE: u8 = 2;

/// The word that there may be something for a waiter.
pub fn encode_wake(waiter: &Origin, group: GroupId, is_gone: bool) -> Vec<u8> {
    let mut out = vec![WAKE];
    put_origin(&mut out, waiter);
    leb128::put(&mut out, u64::from(group.0));
    out.push(u8::from(is_gone));
    out
}

fn put_origin(out: &mut Vec<u8>, origin: &Origin) {
    leb128::put(out, origin.node.0);
    leb128::put(out, u64::from(origin.core.0));
    leb128::put(out, origin.session.serial);
    leb128::put(out, u64::from(origin.session.index));
    leb128::put(out, origin.ticket);
}

/// Decodes a message; `None` if it is not one.
pub fn decode(bytes: &[u8]) -> Option<Wire<'_>> {
    let (kind, mut rest) = bytes.split_first()?;
    match *kind {
        RAFT => {
            let (group, message) = rest.split_first_chunk()?;
            Some(Wire::Raft(GroupId(u32::from_le_bytes(*group)), Message::decode(message).ok()?))
        }
        REQUEST => {
            let origin = take_origin(&mut rest)?;
            let group = GroupId(u32::try_from(leb128::take(&mut rest)?).ok()?);
            let protocol = match take_byte(&mut rest)? {
                2 => Protocol::Resp2,
                3 => Protocol::Resp3,
                _ => return None,
            };
            let kind = take_byte(&mut rest)?;
            let words = rest.to_vec();
            let body = match kind {
                1 => RequestBody::Write(words),
                2 => RequestBody::Read(words),
                3 => RequestBody::Exec(words),
                4 => RequestBody::ReadAtOnce(words),
                _ => return None,
            };
            Some(Wire::Request(Request { origin, group, protocol, body }))
        }
        PUBLISH => {
            let is_shard = match take_byte(&mut rest)? {
                0 => false,
                1 => true,
                _ => return None,
            };
            let length = usize::try_from(leb128::take(&mut rest)?).ok()?;
            let (channel, body) = rest.split_at_checked(length)?;
            Some(Wire::Publish(pubsub::Message { is_shard, channel: channel.into(), body: body.into() }))
        }
        REPLY => Some(Wire::Reply { origin: take_origin(&mut rest)?, bytes: rest.to_vec() }),
        OFFER => {
            let (group, message) = rest.split_first_chunk()?;
            Some(Wire::Offer(GroupId(u32::from_le_bytes(*group)), Message::decode(message).ok()?))
        }
        PULL => {
            let group = take_group(&mut rest)?;
            let (index, chunk) = (leb128::take(&mut rest)?, leb128::take(&mut rest)?);
            rest.is_empty().then_some(Wire::Pull { group, index, chunk })
        }
        CHUNK => {
            let group = take_group(&mut rest)?;
            let (index, chunk) = (leb128::take(&mut rest)?, leb128::take(&mut rest)?);
            let bytes = (take_byte(&mut rest)? == 1).then_some(rest);
            Some(Wire::Chunk { group, index, chunk, bytes })
        }
        ANNOUNCE => {
            let node = NodeId(leb128::take(&mut rest)?);
            let (cluster_address, client_address) = (take_text(&mut rest)?, take_text(&mut rest)?);
            let member = Member { cluster_address, client_address, is_removed: false };
            rest.is_empty().then_some(Wire::Announce(node, member))
        }
        LINE => {
            let waiter = take_origin(&mut rest)?;
            let group = GroupId(u32::try_from(leb128::take(&mut rest)?).ok()?);
            let act = take_byte(&mut rest)?;
            let act = match act & 0b11 {
                STAND => LineAct::Stand { is_trying: act & 4 != 0, wants_end: act & 8 != 0 },
                TRIED => LineAct::Tried,
                LEAVE => LineAct::Leave,
                _ => return None,
            };
            let mut keys = Vec::new();
            while !rest.is_empty() {
                let database = u16::try_from(leb128::take(&mut rest)?).ok()?;
                let length = usize::try_from(leb128::take(&mut rest)?).ok()?;
                let (key, tail) = rest.split_at_checked(length)?;
                keys.push((database, key.to_vec()));
                rest = tail;
            }
            Some(Wire::Line(LineNote { waiter, group, keys, act }))
        }
        WAKE => {
            let waiter = take_origin(&mut rest)?;
            let group = GroupId(u32::try_from(leb128::take(&mut rest)?).ok()?);
            Some(Wire::Wake { waiter, group, is_gone: take_byte(&mut rest)? != 0 })
        }
        _ => None,
    }
}

fn take_origin(rest: &mut &[u8]) -> Option<Origin> {
    Some(Origin {
        node: NodeId(leb128::take(rest)?),
        core: CoreId(u16::try_from(leb128::take(rest)?).ok()?),
        session: SessionId { serial: leb128::take(rest)?, index: u32::try_from(leb128::take(rest)?).ok()? },
        ticket: leb128::take(rest)?,
    })
}

fn take_group(rest: &mut &[u8]) -> Option<GroupId> {
    Some(GroupId(u32::try_from(leb128::take(rest)?).ok()?))
}

fn take_text(rest: &mut &[u8]) -> Option<String> {
    let length = usize::from(take_byte(rest)?);
    let (text, tail) = rest.split_at_checked(length)?;
    *rest = tail;
    String::from_utf8(text.to_vec()).ok()
}

fn take_byte(rest: &mut &[u8]) -> Option<u8> {
    let (byte, tail) = rest.split_first()?;
    *rest = tail;
    Some(*byte)
}

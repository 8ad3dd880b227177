//! What nodes send each other, framed by the host: one kind byte, then the kind's own form.
//!
//! ```text
//! RAFT     group:u32le  consensus message
//! REQUEST  node core serial index ticket  group protocol kind words
//! REPLY    core serial index ticket  bytes
//! PUBLISH  shard:u8 length channel  message
//! ```
//! Numbers are LEB128 unless said otherwise. Bytes of another node are never trusted: what does not fit is dropped.

use consensus::Message;
use resp::Protocol;
use stdx::leb128;

use crate::event::{CoreId, GroupId, NodeId, SessionId};
use crate::letter::{Origin, Request, RequestBody};
use crate::pubsub;

const RAFT: u8 = 1;
const REQUEST: u8 = 2;
const REPLY: u8 = 3;
const PUBLISH: u8 = 4;

/// A decoded message of another node.
pub enum Wire {
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
}

/// A Raft message of a group.
pub fn encode_raft(group: GroupId, message: &Message) -> Vec<u8> {
    let mut out = vec![RAFT];
    out.extend_from_slice(&group.0.to_le_bytes());
    message.encode(&mut out);
    out
}

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

fn put_origin(out: &mut Vec<u8>, origin: &Origin) {
    leb128::put(out, origin.node.0);
    leb128::put(out, u64::from(origin.core.0));
    leb128::put(out, origin.session.serial);
    leb128::put(out, u64::from(origin.session.index));
    leb128::put(out, origin.ticket);
}

/// Decodes a message; `None` if it is not one.
pub fn decode(bytes: &[u8]) -> Option<Wire> {
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

fn take_byte(rest: &mut &[u8]) -> Option<u8> {
    let (byte, tail) = rest.split_first()?;
    *rest = tail;
    Some(*byte)
}

//! What nodes send each other, framed by the host: one kind byte, then the kind's own form.
//!
//! ```text
//! RAFT     group:u32le  consensus message
//! REQUEST  node core boot serial number floor previous  group protocol kind words
//! ANSWER   boot group number  place  cost  proof  bytes
//! REFUSED  boot group number
//! ALIVE    boot group number
//! INQUIRE  transaction  asking group  asked group  [1, if asked whether it has ended]
//! TESTIFY  transaction  asking group  asked group  status
//! ASK      gateway  asking group
//! LIFE     gateway  asking group  1 if it lives, 0 if another has taken its place
//! PUBLISH  shard:u8 length channel  message
//! OFFER    group:u32le  consensus message, of a checkpoint
//! PULL     group index chunk
//! CHUNK    group index chunk  1 if the bytes follow, 0 at the end
//! ANNOUNCE node member
//! LINE     node core serial index ticket  group act [milliseconds length group's name], keys: database length bytes
//! WAKE     node core serial index ticket  group 0
//! STATUS   a leader's word on its group: see `GroupStatus::put`
//! TIMELINE what has happened: see `timeline::put`
//! VITALS   a node's word on itself: see `Vitals::put`
//! VACANT   group, of which the sender holds nothing
//! WHERE    group cover:u64le, of the slots that the sender believes in the group
//! HELD     group count, and of each slot that has come to the group: slot group epoch
//! SOUND    group number
//! PLACE    group number place
//!
//! place = index unix:i64le
//! ```
//! Behind a REQUEST, an ANSWER, a TESTIFY, a WAKE, a PUBLISH and VITALS stands the latest moment of an entry that the
//! sender knows of (i64le): see `moments`.
//!
//! Numbers are LEB128 unless said otherwise. Bytes of another node are never trusted: what does not fit is dropped.

use std::sync::Arc;

use consensus::Message;
use group::answers::{put_keys, put_token, take_byte, take_bytes, take_keys, take_token};
use group::cost::Cost;
use group::group_status::GroupStatus;
use group::ids::{CoreId, GroupId, NodeId, SessionId};
use group::invocation::{Code, Invocation};
use group::output::PeerMessage;
use group::proof::Proof;
use group::published::Published;
use group::replica_reads::AppliedPosition;
use group::requests::{
    Claim, Lock, Origin, OutcomeQueryKind, ParticipantStatus, Request, RequestBody, Resolution, ScriptRequest,
};
use group::timeline::{self, Happening};
use group::wait_queues::{WaitQueueAct, WaitQueueNote};
use keyspace::{Claims, Moment};
use message::answer::read_moved;
use message::{GatewayId, TransactionId};
use resp::Protocol;
use script::{Flags, Library, Script};
use stdx::slot::{SLOT_COUNT, Slot};
use stdx::{Duration, UnixMillis, leb128};

use crate::core_messages::CoreMessage;
use crate::entry::{Answered, Durability, Effect, RequestId, Taken, Watch, put_bytes, put_prepared};
use crate::neighbours::Vitals;
use crate::request_ids;
use crate::roster::{Member, is_zone};
use crate::slots::Moved;

/// With a request's protocol: see `Request::is_anew`.
const IS_ANEW: u8 = 128;
/// The same: see `Request::must_return`.
const MUST_RETURN: u8 = 64;
/// The same: see `Origin::is_timed`.
const IS_TIMED: u8 = 32;
/// The same: see `Origin::is_silent`.
const IS_SILENT: u8 = 16;
/// The same: see `Origin::durability`.
const IN_MEMORY: u8 = 8;
const ON_DISK: u8 = 4;

const RAFT: u8 = 1;
const REQUEST: u8 = 2;
const ANSWER: u8 = 3;
const PUBLISH: u8 = 4;
const OFFER: u8 = 5;
const PULL: u8 = 6;
const CHUNK: u8 = 7;
const ANNOUNCE: u8 = 8;
const LINE: u8 = 9;
const WAKE: u8 = 10;
const REFUSED: u8 = 11;
const ALIVE: u8 = 12;
const INQUIRE: u8 = 13;
const TESTIFY: u8 = 14;
const ASK: u8 = 15;
/// Behind an INQUIRE.
const ENDED: u8 = 1;
const LIFE: u8 = 16;
const GROUP_STATUS: u8 = 30;
const TIMELINE: u8 = 40;
const SOUND: u8 = 41;
const PLACE: u8 = 42;
const VITALS: u8 = 43;
const VACANT: u8 = 44;
const AM_MEMBER: u8 = 45;
const NO_MEMBER: u8 = 46;
const WHERE: u8 = 47;
const HELD: u8 = 48;

/// True for kinds that make others act on what the sender knows.
fn carries_moment(kind: u8) -> bool {
    matches!(kind, REQUEST | ANSWER | TESTIFY | WAKE | PUBLISH | VITALS)
}

/// Adds the latest moment that this node's core knows of, if the message is of a kind that carries it.
pub fn stamp(message: &mut Vec<u8>, moment: UnixMillis) {
    if message.first().is_some_and(|kind| carries_moment(*kind)) {
        message.extend_from_slice(&moment.0.to_le_bytes());
    }
}

/// Takes it off again: the moment, if the message carries one, and the message; `None` if it is too short.
pub fn unstamp(message: &[u8]) -> Option<(Option<UnixMillis>, &[u8])> {
    if !carries_moment(*message.first()?) {
        return Some((None, message));
    }
    let (message, moment) = message.split_last_chunk()?;
    Some((Some(UnixMillis(i64::from_le_bytes(*moment))), message))
}

/// A decoded message of another node.
pub enum Wire<'a> {
    /// For a group's replica.
    Raft(GroupId, Message),
    /// A client's request, sent on by its gateway.
    Request(Request),
    /// The answer to a request of this gateway.
    Answer(Claim, AppliedPosition, Cost, Proof, &'a [u8]),
    /// A node does not serve the group, or misses a request.
    Refused(Claim),
    /// A request has come again and will be answered.
    Alive(Claim),
    /// What do you know of this transaction?
    OutcomeQuery {
        /// Which.
        transaction: TransactionId,
        /// The group that asks.
        from: GroupId,
        /// The group that is asked.
        group: GroupId,
        /// What is asked.
        question: OutcomeQueryKind,
    },
    /// This.
    ParticipantStatus {
        /// Which.
        transaction: TransactionId,
        /// Who had asked.
        group: GroupId,
        /// Who answers.
        from: GroupId,
        /// What it knows.
        status: ParticipantStatus,
    },
    /// Does this gateway, which holds or wants locks, live?
    Ask {
        /// Which.
        gateway: GatewayId,
        /// The group that asks.
        group: GroupId,
    },
    /// It does, or another has taken its place.
    Life {
        /// Which.
        gateway: GatewayId,
        /// Who had asked.
        group: GroupId,
        /// True if it lives.
        is_alive: bool,
    },
    /// For those who listen on this node.
    Publish(Published),
    /// A leader offers a checkpoint.
    Offer(GroupId, Message),
    /// A member asks for a chunk of the checkpoint at this index.
    Pull {
        /// The group.
        group: GroupId,
        /// Which checkpoint.
        index: u64,
        /// Which chunk, from 0.
        chunk: u64,
    },
    /// The chunk, or `None` behind the last.
    Chunk {
        /// The group.
        group: GroupId,
        /// Which checkpoint.
        index: u64,
        /// Which chunk.
        chunk: u64,
        /// As `CheckpointStep::Chunk` gave it.
        bytes: Option<&'a [u8]>,
    },
    /// A replica asks how far the group is.
    Sound {
        /// Which.
        group: GroupId,
        /// Number of the question.
        number: u64,
    },
    /// So far.
    AppliedPosition {
        /// Which.
        group: GroupId,
        /// Number of the question.
        number: u64,
        /// The answer.
        place: AppliedPosition,
    },
    /// A leader tells how its group is.
    GroupStatus(GroupStatus),
    /// A node tells how it is itself.
    Vitals(Vitals),
    /// The sender holds nothing of a group.
    Vacant(GroupId),
    /// The sender asks a member whether it is one itself.
    AmMember(GroupId),
    /// The sender believes that the slots with this cover are in the group, see [`SlotMap::cover_of`].
    ///
    /// [`SlotMap::cover_of`]: crate::slots::SlotMap::cover_of
    Where {
        /// Which group.
        group: GroupId,
        /// Over its slots.
        cover: u64,
    },
    /// The slots that a group holds and that have ever moved.
    Held {
        /// Which group.
        group: GroupId,
        /// Each of them.
        slots: Vec<Moved>,
    },
    /// It is not, by what the sender has applied.
    NoMember {
        /// Of which group.
        group: GroupId,
        /// The last entry that the sender has applied.
        index: u64,
    },
    /// What has happened.
    Timeline(Vec<Happening>),
    /// A node tells where it is found.
    Announce(NodeId, Member),
    /// A client of that node waits for data, or does no longer.
    WaitQueue(WaitQueueNote),
    /// There may be something for a client of this node that waits.
    Wake {
        /// The waiter.
        waiter: Origin,
        /// The group that says so.
        group: GroupId,
    },
}

/// A Raft message of a group.
pub fn encode_raft(group: GroupId, message: &Message) -> Vec<u8> {
    let mut out = vec![RAFT];
    out.extend_from_slice(&group.0.to_le_bytes());
    message.encode(&mut out);
    out
}

/// What has happened.
pub fn encode_timeline<'a>(happenings: impl IntoIterator<Item = &'a Happening>) -> Vec<u8> {
    let mut out = vec![TIMELINE];
    timeline::put(happenings, &mut out);
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

/// A replica's question how far its group is.
pub fn encode_sound(group: GroupId, number: u64) -> Vec<u8> {
    let mut out = vec![SOUND];
    leb128::put(&mut out, u64::from(group.0));
    leb128::put(&mut out, number);
    out
}

/// The answer to it.
pub fn encode_applied_position(group: GroupId, number: u64, place: AppliedPosition) -> Vec<u8> {
    let mut out = encode_sound(group, number);
    out[0] = PLACE;
    put_place(&mut out, place);
    out
}

fn put_place(out: &mut Vec<u8>, place: AppliedPosition) {
    leb128::put(out, place.index);
    out.extend_from_slice(&place.unix.0.to_le_bytes());
}

fn take_applied_position(rest: &mut &[u8]) -> Option<AppliedPosition> {
    let index = leb128::take(rest)?;
    let (unix, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(AppliedPosition { index, unix: UnixMillis(i64::from_le_bytes(*unix)) })
}

/// A leader's word on its group.
pub fn encode_group_status(group_status: &GroupStatus) -> Vec<u8> {
    let mut out = vec![GROUP_STATUS];
    group_status.put(&mut out);
    out
}

/// How a node is.
pub fn encode_vitals(vitals: &Vitals) -> Vec<u8> {
    let mut out = vec![VITALS];
    vitals.put(&mut out);
    out
}

/// This node holds nothing of a group.
pub fn encode_vacant(group: GroupId) -> Vec<u8> {
    let mut out = vec![VACANT];
    leb128::put(&mut out, u64::from(group.0));
    out
}

/// A replica's question to a member whether it is one itself.
pub fn encode_am_member(group: GroupId) -> Vec<u8> {
    let mut out = vec![AM_MEMBER];
    leb128::put(&mut out, u64::from(group.0));
    out
}

/// The answer that it is not, up to what has been applied here.
pub fn encode_no_member(group: GroupId, index: u64) -> Vec<u8> {
    let mut out = vec![NO_MEMBER];
    leb128::put(&mut out, u64::from(group.0));
    leb128::put(&mut out, index);
    out
}

/// A node without a replica of a group asks its leader whether it knows the slots of the group.
pub fn encode_where(group: GroupId, cover: u64) -> Vec<u8> {
    let mut out = vec![WHERE];
    leb128::put(&mut out, u64::from(group.0));
    out.extend_from_slice(&cover.to_le_bytes());
    out
}

/// The answer if it does not.
pub fn encode_held(group: GroupId, slots: &[Moved]) -> Vec<u8> {
    let mut out = vec![HELD];
    leb128::put(&mut out, u64::from(group.0));
    leb128::put(&mut out, slots.len() as u64);
    slots.iter().for_each(|moved| moved.put(&mut out));
    out
}

/// Where a node is found.
pub fn encode_announce(node: NodeId, member: &Member) -> Vec<u8> {
    let mut out = vec![ANNOUNCE];
    leb128::put(&mut out, node.0);
    for address in [&member.cluster_address, &member.client_address] {
        out.push(address.len().min(ADDRESS_BYTES_MAX) as u8);
        out.extend_from_slice(&address.as_bytes()[..address.len().min(ADDRESS_BYTES_MAX)]);
    }
    // An older version takes no message that goes on here.
    if !member.zone.is_empty() {
        out.push(member.zone.len() as u8);
        out.extend_from_slice(member.zone.as_bytes());
    }
    out
}

const ADDRESS_BYTES_MAX: usize = 255;

/// A numbered request of a gateway, for the node that leads its group.
pub fn encode_request(request: &Request) -> Vec<u8> {
    let Some(claim) = request.origin.claim else { unreachable!("requests to other nodes are numbered") };
    let mut out = Vec::with_capacity(64 + request.body.byte_count());
    out.push(REQUEST);
    for number in [
        request.origin.node.0,
        u64::from(request.origin.core.0),
        claim.boot,
        request.origin.session.serial,
        claim.number,
        request.floor,
        request.previous,
        u64::from(request.group.0),
    ] {
        leb128::put(&mut out, number);
    }
    let protocol = match request.protocol {
        Protocol::Resp2 => 2,
        Protocol::Resp3 => 3,
    };
    let anew = if request.is_anew { IS_ANEW } else { 0 };
    let returns = if request.must_return { MUST_RETURN } else { 0 };
    let timed = if request.origin.is_timed { IS_TIMED } else { 0 };
    let silent = if request.origin.is_silent { IS_SILENT } else { 0 };
    let durability = match request.origin.durability {
        Durability::Memory => IN_MEMORY,
        Durability::Server => 0,
        Durability::Disk => ON_DISK,
    };
    out.push(protocol | anew | returns | timed | silent | durability);
    match &request.body {
        RequestBody::Write(words) => put_kind(&mut out, 1, words),
        RequestBody::Read(words) => put_kind(&mut out, 2, words),
        RequestBody::Exec(packed) => put_kind(&mut out, 3, packed),
        RequestBody::ReadAtOnce(words) => put_kind(&mut out, 4, words),
        RequestBody::Whole(words) => put_kind(&mut out, 5, words),
        RequestBody::Admin(words) => put_kind(&mut out, 20, words),
        RequestBody::CopyCount(place) => {
            out.push(21);
            leb128::put(&mut out, *place);
        }
        RequestBody::Versions { keys, reserve_for: None } => {
            out.push(6);
            put_keys(&mut out, keys);
        }
        RequestBody::Versions { keys, reserve_for: Some(bound) } => {
            out.push(16);
            leb128::put(&mut out, bound.as_millis() as u64);
            put_keys(&mut out, keys);
        }
        RequestBody::EndReservation => out.push(17),
        RequestBody::Lock(lock) => {
            out.push(7);
            put_lock(&mut out, lock);
        }
        RequestBody::Prepare { transaction, token, participants, effects } => {
            out.push(8);
            transaction.put(&mut out);
            put_token(&mut out, *token);
            put_prepared(&mut out, participants, effects);
        }
        RequestBody::Resolve { transaction, resolution, low_water } => {
            out.push(9);
            transaction.put(&mut out);
            out.push(match resolution {
                Resolution::Release => 0,
                Resolution::Commit => 1,
                Resolution::Abort => 2,
            });
            leb128::put(&mut out, *low_water);
        }
        RequestBody::Cut { transaction, token, name } => {
            out.push(10);
            transaction.put(&mut out);
            put_token(&mut out, *token);
            out.extend_from_slice(&name.to_le_bytes());
        }
        RequestBody::ReadCut { name, chunk } => {
            out.push(11);
            out.extend_from_slice(&name.to_le_bytes());
            leb128::put(&mut out, *chunk);
        }
        RequestBody::EndCut { name } => {
            out.push(12);
            out.extend_from_slice(&name.to_le_bytes());
        }
        RequestBody::Script(script) => {
            out.push(13);
            put_script(&mut out, script);
        }
        RequestBody::Libraries(change) => put_kind(&mut out, 14, change),
        RequestBody::Configure(change) => put_kind(&mut out, 30, change),
        RequestBody::Obey(version) => {
            out.push(31);
            leb128::put(&mut out, *version);
        }
        RequestBody::Renew { transaction } => {
            out.push(15);
            transaction.put(&mut out);
        }
    }
    out
}

fn put_kind(out: &mut Vec<u8>, kind: u8, words: &[u8]) {
    out.push(kind);
    out.extend_from_slice(words);
}

fn put_lock(out: &mut Vec<u8>, lock: &Lock) {
    lock.transaction.put(out);
    put_keys(out, &lock.keys);
    out.push(u8::from(lock.whole));
    leb128::put(out, u64::from(lock.group_count));
    leb128::put(out, lock.watches.len() as u64);
    for watch in &lock.watches {
        leb128::put(out, u64::from(watch.database));
        put_bytes(out, &watch.key);
        leb128::put(out, watch.version);
    }
    leb128::put(out, lock.queries.len() as u64);
    lock.queries.iter().for_each(|query| put_bytes(out, query));
    leb128::put(out, lock.moment.unix.0.cast_unsigned());
    leb128::put(out, lock.moment.seed);
    out.push(u8::from(lock.cut.is_some()));
    out.extend_from_slice(&lock.cut.unwrap_or_default().to_le_bytes());
    if let Some(request) = &lock.request {
        put_request_id(out, request);
    }
}

/// What a group tells a gateway of its request; `None` if that does not travel.
pub fn encode_to_gateway(message: &CoreMessage) -> Option<Vec<u8>> {
    let (kind, claim, answer) = match message {
        CoreMessage::Answered { claim, place, cost, proof, bytes } => {
            (ANSWER, claim, Some((*place, cost, proof, &bytes[..])))
        }
        CoreMessage::Refused { claim } => (REFUSED, claim, None),
        CoreMessage::Alive { claim } => (ALIVE, claim, None),
        _ => return None,
    };
    let mut out = Vec::with_capacity(48 + answer.map_or(0, |(.., bytes)| bytes.len()));
    out.push(kind);
    leb128::put(&mut out, claim.boot);
    leb128::put(&mut out, u64::from(claim.group.0));
    leb128::put(&mut out, claim.number);
    if let Some((place, cost, proof, bytes)) = answer {
        put_place(&mut out, place);
        cost.put(&mut out);
        out.push(proof.put());
        out.extend_from_slice(bytes);
    }
    Some(out)
}

/// A question about a transaction without a gateway.
pub fn encode_outcome_query(
    transaction: TransactionId,
    from: GroupId,
    group: GroupId,
    question: OutcomeQueryKind,
) -> Vec<u8> {
    let mut out = vec![INQUIRE];
    transaction.put(&mut out);
    leb128::put(&mut out, u64::from(from.0));
    leb128::put(&mut out, u64::from(group.0));
    if question == OutcomeQueryKind::Ended {
        out.push(ENDED);
    }
    out
}

/// The answer to it.
pub fn encode_participant_status(
    transaction: TransactionId,
    group: GroupId,
    from: GroupId,
    status: ParticipantStatus,
) -> Vec<u8> {
    let mut out = vec![TESTIFY];
    transaction.put(&mut out);
    leb128::put(&mut out, u64::from(group.0));
    leb128::put(&mut out, u64::from(from.0));
    out.push(match status {
        ParticipantStatus::Prepared => 0,
        ParticipantStatus::Committed => 1,
        ParticipantStatus::Refused => 2,
        ParticipantStatus::Ended => 3,
    });
    out
}

/// A question to a gateway that holds or wants locks.
pub fn encode_ask(gateway: GatewayId, group: GroupId) -> Vec<u8> {
    let mut out = vec![ASK];
    gateway.put(&mut out);
    leb128::put(&mut out, u64::from(group.0));
    out
}

/// The answer to it.
pub fn encode_life(gateway: GatewayId, group: GroupId, is_alive: bool) -> Vec<u8> {
    let mut out = vec![LIFE];
    gateway.put(&mut out);
    leb128::put(&mut out, u64::from(group.0));
    out.push(u8::from(is_alive));
    out
}

/// What a replica of a group says to another one.
pub fn encode_peer_message(group: GroupId, message: &PeerMessage<'_>) -> Vec<u8> {
    match *message {
        PeerMessage::Raft(message) => encode_raft(group, message),
        PeerMessage::Offer(message) => encode_offer(group, message),
        PeerMessage::Pull { index, chunk } => encode_pull(group, index, chunk),
        PeerMessage::Chunk { index, chunk, bytes } => encode_chunk(group, index, chunk, bytes),
        PeerMessage::Sound(number) => encode_sound(group, number),
        PeerMessage::AppliedPosition { number, position } => encode_applied_position(group, number, position),
        PeerMessage::Vacant => encode_vacant(group),
        PeerMessage::AmMember => encode_am_member(group),
        PeerMessage::NoMember(index) => encode_no_member(group, index),
        PeerMessage::Where(cover) => encode_where(group, cover),
        PeerMessage::Held(slots) => encode_held(group, slots),
    }
}

/// A message for those who listen on another node.
pub fn encode_publish(message: &Published) -> Vec<u8> {
    let mut out = vec![PUBLISH, u8::from(message.is_shard)];
    leb128::put(&mut out, message.channel.len() as u64);
    out.extend_from_slice(&message.channel);
    out.extend_from_slice(&message.body);
    out
}

/// What a waiter tells a group that another node leads.
pub fn encode_wait_queue_note(note: &WaitQueueNote) -> Vec<u8> {
    let mut out = vec![LINE];
    put_origin(&mut out, &note.waiter);
    leb128::put(&mut out, u64::from(note.group.0));
    let act = match note.act {
        WaitQueueAct::Join { is_trying, wants_end } => STAND | u8::from(is_trying) << 2 | u8::from(wants_end) << 3,
        WaitQueueAct::Tried => TRIED,
        WaitQueueAct::Leave => LEAVE,
    };
    out.push(act | if note.claims.is_some() { CLAIMS } else { 0 });
    if let Some(claims) = &note.claims {
        leb128::put(&mut out, claims.idle_ms_min);
        leb128::put(&mut out, claims.group.len() as u64);
        out.extend_from_slice(&claims.group);
    }
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
/// Beside one of these: what the waiter would claim stands before the keys. Since level 2.
const CLAIMS: u8 = 16;

/// The word that there may be something for a waiter.
pub fn encode_wake(waiter: &Origin, group: GroupId) -> Vec<u8> {
    let mut out = vec![WAKE];
    put_origin(&mut out, waiter);
    leb128::put(&mut out, u64::from(group.0));
    // Older versions look here whether the key has gone.
    out.push(0);
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
        REQUEST => take_request(rest).map(Wire::Request),
        ANSWER => {
            let (claim, place) = (take_claim(&mut rest)?, take_applied_position(&mut rest)?);
            let cost = Cost::take(&mut rest)?;
            let (proof, bytes) = rest.split_first()?;
            Some(Wire::Answer(claim, place, cost, Proof::take(*proof)?, bytes))
        }
        REFUSED => Some(Wire::Refused(take_claim(&mut rest)?)),
        ALIVE => Some(Wire::Alive(take_claim(&mut rest)?)),
        INQUIRE => {
            let transaction = take_transaction(&mut rest)?;
            let (from, group) = (take_group(&mut rest)?, take_group(&mut rest)?);
            let question = match rest {
                [] => OutcomeQueryKind::ParticipantStatus,
                [ENDED] => OutcomeQueryKind::Ended,
                _ => return None,
            };
            Some(Wire::OutcomeQuery { transaction, from, group, question })
        }
        TESTIFY => {
            let transaction = take_transaction(&mut rest)?;
            let (group, from) = (take_group(&mut rest)?, take_group(&mut rest)?);
            let status = match take_byte(&mut rest)? {
                0 => ParticipantStatus::Prepared,
                1 => ParticipantStatus::Committed,
                2 => ParticipantStatus::Refused,
                3 => ParticipantStatus::Ended,
                _ => return None,
            };
            Some(Wire::ParticipantStatus { transaction, group, from, status })
        }
        ASK => Some(Wire::Ask { gateway: take_gateway(&mut rest)?, group: take_group(&mut rest)? }),
        LIFE => {
            let (gateway, group) = (take_gateway(&mut rest)?, take_group(&mut rest)?);
            Some(Wire::Life { gateway, group, is_alive: take_byte(&mut rest)? == 1 })
        }
        PUBLISH => {
            let is_shard = match take_byte(&mut rest)? {
                0 => false,
                1 => true,
                _ => return None,
            };
            let length = usize::try_from(leb128::take(&mut rest)?).ok()?;
            let (channel, body) = rest.split_at_checked(length)?;
            Some(Wire::Publish(Published { is_shard, channel: channel.into(), body: body.into() }))
        }
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
            let zone =
                if rest.is_empty() { String::new() } else { take_text(&mut rest).filter(|zone| is_zone(zone))? };
            let member = Member { cluster_address, client_address, zone, ..Member::default() };
            rest.is_empty().then_some(Wire::Announce(node, member))
        }
        TIMELINE => timeline::take(rest).map(Wire::Timeline),
        SOUND => {
            let (group, number) = (take_group(&mut rest)?, leb128::take(&mut rest)?);
            rest.is_empty().then_some(Wire::Sound { group, number })
        }
        PLACE => {
            let (group, number) = (take_group(&mut rest)?, leb128::take(&mut rest)?);
            let place = take_applied_position(&mut rest)?;
            rest.is_empty().then_some(Wire::AppliedPosition { group, number, place })
        }
        GROUP_STATUS => {
            let group_status = GroupStatus::take(&mut rest)?;
            rest.is_empty().then_some(Wire::GroupStatus(group_status))
        }
        VACANT => {
            let group = GroupId(u32::try_from(leb128::take(&mut rest)?).ok()?);
            rest.is_empty().then_some(Wire::Vacant(group))
        }
        AM_MEMBER => {
            let group = take_group(&mut rest)?;
            rest.is_empty().then_some(Wire::AmMember(group))
        }
        NO_MEMBER => {
            let (group, index) = (take_group(&mut rest)?, leb128::take(&mut rest)?);
            rest.is_empty().then_some(Wire::NoMember { group, index })
        }
        WHERE => {
            let group = take_group(&mut rest)?;
            Some(Wire::Where { group, cover: u64::from_le_bytes(rest.try_into().ok()?) })
        }
        HELD => take_held(rest),
        VITALS => {
            let vitals = Vitals::take(&mut rest)?;
            rest.is_empty().then_some(Wire::Vitals(vitals))
        }
        LINE => take_wait_queue_note(rest).map(Wire::WaitQueue),
        WAKE => {
            let waiter = take_origin(&mut rest)?;
            let group = GroupId(u32::try_from(leb128::take(&mut rest)?).ok()?);
            take_byte(&mut rest)?;
            Some(Wire::Wake { waiter, group })
        }
        _ => None,
    }
}

fn take_held(mut bytes: &[u8]) -> Option<Wire<'_>> {
    let rest = &mut bytes;
    let (group, count) = (take_group(rest)?, leb128::take(rest)?);
    // A group speaks for itself.
    let slot = |rest: &mut &[u8]| read_moved(rest).filter(|moved| moved.group == group);
    let slots = (0..count).map(|_| slot(rest)).collect::<Option<_>>()?;
    rest.is_empty().then_some(Wire::Held { group, slots })
}

fn take_wait_queue_note(mut bytes: &[u8]) -> Option<WaitQueueNote> {
    let rest = &mut bytes;
    let waiter = take_origin(rest)?;
    let group = GroupId(u32::try_from(leb128::take(rest)?).ok()?);
    let act = take_byte(rest)?;
    let mut claims = None;
    if act & CLAIMS != 0 {
        let idle_ms_min = leb128::take(rest)?;
        claims = Some(Claims { group: take_bytes(rest)?, idle_ms_min });
    }
    let act = match act & 0b11 {
        STAND => WaitQueueAct::Join { is_trying: act & 4 != 0, wants_end: act & 8 != 0 },
        TRIED => WaitQueueAct::Tried,
        LEAVE => WaitQueueAct::Leave,
        _ => return None,
    };
    let mut keys = Vec::new();
    while !rest.is_empty() {
        let database = u16::try_from(leb128::take(rest)?).ok()?;
        let length = usize::try_from(leb128::take(rest)?).ok()?;
        let (key, tail) = rest.split_at_checked(length)?;
        keys.push((database, key.to_vec()));
        *rest = tail;
    }
    Some(WaitQueueNote { waiter, group, keys, act, claims })
}

fn take_request(mut bytes: &[u8]) -> Option<Request> {
    let rest = &mut bytes;
    let node = NodeId(leb128::take(rest)?);
    let core = CoreId(u16::try_from(leb128::take(rest)?).ok()?);
    let (boot, serial, number) = (leb128::take(rest)?, leb128::take(rest)?, leb128::take(rest)?);
    let (floor, previous) = (leb128::take(rest)?, leb128::take(rest)?);
    let group = take_group(rest)?;
    let manner = take_byte(rest)?;
    let (is_anew, must_return) = (manner & IS_ANEW != 0, manner & MUST_RETURN != 0);
    let (is_timed, is_silent) = (manner & IS_TIMED != 0, manner & IS_SILENT != 0);
    let durability = match manner & (IN_MEMORY | ON_DISK) {
        0 => Durability::Server,
        ON_DISK => Durability::Disk,
        IN_MEMORY => Durability::Memory,
        _ => return None,
    };
    let protocol = match manner & !(IS_ANEW | MUST_RETURN | IS_TIMED | IS_SILENT | IN_MEMORY | ON_DISK) {
        2 => Protocol::Resp2,
        3 => Protocol::Resp3,
        _ => return None,
    };
    let body = match take_byte(rest)? {
        1 => RequestBody::Write(rest.to_vec()),
        2 => RequestBody::Read(rest.to_vec()),
        3 => RequestBody::Exec(rest.to_vec()),
        4 => RequestBody::ReadAtOnce(rest.to_vec()),
        5 => RequestBody::Whole(rest.to_vec()),
        20 => RequestBody::Admin(rest.to_vec()),
        21 => RequestBody::CopyCount(leb128::take(rest)?),
        6 => RequestBody::Versions { keys: take_keys(rest)?, reserve_for: None },
        16 => {
            let bound = Duration::from_millis(leb128::take(rest)?.min(u64::from(u32::MAX)));
            RequestBody::Versions { keys: take_keys(rest)?, reserve_for: Some(bound) }
        }
        17 => RequestBody::EndReservation,
        7 => RequestBody::Lock(Box::new(take_lock(rest, group)?)),
        8 => {
            let (transaction, token) = (take_transaction(rest)?, take_token(rest)?);
            let participants = (0..leb128::take(rest)?).map(|_| Some(take_group(rest)?.0)).collect::<Option<_>>()?;
            let effects = (0..leb128::take(rest)?).map(|_| take_effect(rest)).collect::<Option<_>>()?;
            RequestBody::Prepare { transaction, token, participants, effects }
        }
        9 => {
            let transaction = take_transaction(rest)?;
            let resolution = match take_byte(rest)? {
                0 => Resolution::Release,
                1 => Resolution::Commit,
                2 => Resolution::Abort,
                _ => return None,
            };
            RequestBody::Resolve { transaction, resolution, low_water: leb128::take(rest)? }
        }
        10 => {
            RequestBody::Cut { transaction: take_transaction(rest)?, token: take_token(rest)?, name: take_name(rest)? }
        }
        11 => RequestBody::ReadCut { name: take_name(rest)?, chunk: leb128::take(rest)? },
        12 => RequestBody::EndCut { name: take_name(rest)? },
        13 => RequestBody::Script(Arc::new(take_script(rest)?)),
        14 => RequestBody::Libraries(rest.to_vec()),
        30 => RequestBody::Configure(rest.to_vec()),
        31 => RequestBody::Obey(leb128::take(rest)?),
        15 => RequestBody::Renew { transaction: take_transaction(rest)? },
        _ => return None,
    };
    let claim = Some(Claim { boot, group, number });
    let origin = Origin::new(node, core, SessionId { serial, index: 0 }, 0);
    let origin = Origin { claim, is_timed, is_silent, durability, ..origin };
    Some(Request { floor, previous, is_anew, must_return, ..Request::new(origin, group, protocol, body) })
}

/// read-only:u8  keys  function name (empty: a script)  flags:u8  length text  words
fn put_script(out: &mut Vec<u8>, script: &ScriptRequest) {
    let ScriptRequest { invocation, words } = script;
    debug_assert!(invocation.user.is_none(), "the other node does not know what the user may do");
    out.push(u8::from(invocation.is_read_only));
    leb128::put(out, invocation.key_count as u64);
    let (name, flags) = match &invocation.code {
        Code::Script(_) => ("", Flags::default()),
        Code::Function { name, flags, .. } => (name.as_str(), *flags),
    };
    put_bytes(out, name.as_bytes());
    out.push(flags.bits());
    put_bytes(out, invocation.code.text());
    out.extend_from_slice(words);
}

fn take_script(rest: &mut &[u8]) -> Option<ScriptRequest> {
    let is_read_only = take_byte(rest)? != 0;
    let key_count = usize::try_from(leb128::take(rest)?).ok()?;
    let name = String::from_utf8(take_bytes(rest)?).ok()?;
    let flags = Flags::of_bits(take_byte(rest)?);
    let text = take_bytes(rest)?;
    let code = if name.is_empty() {
        Code::Script(Script::parse(&text).ok()?)
    } else {
        Code::Function { library: Library::parse(&text).ok()?, name, flags }
    };
    Some(ScriptRequest { invocation: Invocation { code, key_count, is_read_only, user: None }, words: rest.to_vec() })
}

fn take_lock(rest: &mut &[u8], group: GroupId) -> Option<Lock> {
    let transaction = take_transaction(rest)?;
    let keys = take_keys(rest)?;
    let whole = take_byte(rest)? == 1;
    let group_count = u32::try_from(leb128::take(rest)?).ok()?;
    let watch = |rest: &mut &[u8]| {
        let database = u16::try_from(leb128::take(rest)?).ok()?;
        Some(Watch { database, key: take_bytes(rest)?, version: leb128::take(rest)? })
    };
    let watches = (0..leb128::take(rest)?).map(|_| watch(rest)).collect::<Option<_>>()?;
    let queries = (0..leb128::take(rest)?).map(|_| take_bytes(rest)).collect::<Option<_>>()?;
    let moment = Moment { unix: UnixMillis(leb128::take(rest)?.cast_signed()), seed: leb128::take(rest)? };
    let is_cut = take_byte(rest)? == 1;
    let cut = Some(take_name(rest)?).filter(|_| is_cut);
    let request = if rest.is_empty() { None } else { Some(take_request_id(rest)?) };
    Some(Lock { transaction, group, keys, whole, group_count, watches, queries, moment, cut, request })
}

fn put_request_id(out: &mut Vec<u8>, request: &RequestId) {
    leb128::put(out, u64::from(request.slot.0));
    put_bytes(out, &request.id);
    out.extend_from_slice(&request.digest.to_le_bytes());
}

fn take_request_id(rest: &mut &[u8]) -> Option<RequestId> {
    let slot = take_slot(rest)?;
    let id = Some(take_bytes(rest)?).filter(|id| id.len() <= request_ids::ID_BYTES_MAX)?;
    let (digest, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(RequestId { slot, id, digest: u64::from_le_bytes(*digest) })
}

fn take_name(rest: &mut &[u8]) -> Option<u128> {
    let (bytes, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(u128::from_le_bytes(*bytes))
}

fn take_slot(rest: &mut &[u8]) -> Option<Slot> {
    let slot = u16::try_from(leb128::take(rest)?).ok().filter(|slot| usize::from(*slot) < SLOT_COUNT)?;
    Some(Slot(slot))
}

fn take_effect(rest: &mut &[u8]) -> Option<Effect> {
    let kind = take_byte(rest)?;
    let mut database = || u16::try_from(leb128::take(rest)?).ok();
    Some(match kind {
        0 | 1 => {
            let database = database()?;
            let key = take_bytes(rest)?;
            let exported = if kind == 1 { Some(take_bytes(rest)?) } else { None };
            Effect::Key { database, key, exported }
        }
        2 => Effect::Flush { database: database()? },
        3 => Effect::Swap { first: database()?, second: database()? },
        4 => Effect::Give(read_moved(rest)?),
        5 | 6 => Effect::Take(Box::new(Taken {
            slot: take_slot(rest)?,
            epoch: leb128::take(rest)?,
            sequence: leb128::take(rest)?,
            gone: leb128::take(rest)?,
            unix: {
                let (bytes, behind) = rest.split_at_checked(8)?;
                *rest = behind;
                UnixMillis(i64::from_le_bytes(bytes.try_into().expect("eight bytes")))
            },
            records: take_bytes(rest)?,
            answered: if kind == 6 { take_bytes(rest)? } else { Vec::new() },
        })),
        7 => Effect::Answer(Box::new(Answered {
            request: take_request_id(rest)?,
            ms: leb128::take(rest)?,
            reply: take_bytes(rest)?,
        })),
        _ => return None,
    })
}

fn take_claim(rest: &mut &[u8]) -> Option<Claim> {
    Some(Claim { boot: leb128::take(rest)?, group: take_group(rest)?, number: leb128::take(rest)? })
}

fn take_transaction(rest: &mut &[u8]) -> Option<TransactionId> {
    Some(TransactionId { gateway: take_gateway(rest)?, number: leb128::take(rest)? })
}

fn take_gateway(rest: &mut &[u8]) -> Option<GatewayId> {
    let (node, boot) = (leb128::take(rest)?, leb128::take(rest)?);
    Some(GatewayId { node, boot, core: CoreId(u16::try_from(leb128::take(rest)?).ok()?) })
}

fn take_origin(rest: &mut &[u8]) -> Option<Origin> {
    let node = NodeId(leb128::take(rest)?);
    let core = CoreId(u16::try_from(leb128::take(rest)?).ok()?);
    let session = SessionId { serial: leb128::take(rest)?, index: u32::try_from(leb128::take(rest)?).ok()? };
    // Whether the session tracks is known, and told, on its own node.
    Some(Origin::new(node, core, session, leb128::take(rest)?))
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

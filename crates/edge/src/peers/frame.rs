//! The bytes between nodes: see `docs/formats/peer-link.md`.

use std::fmt;

use group::ids::Lane;
use stdx::{Level, Levels};

use super::version::{Unspoken, Voice, version_of};

/// The version of a node that knows nothing of levels.
const FIRST_VERSION: u16 = version_of(Level::FIRST);

const MAGIC: &[u8; 6] = b"HFPEER";

/// What greetings of all versions begin with: that they are ours, and their version.
pub const HEAD_BYTES: usize = 8;

/// Length of a greeting in a version.
pub fn hello_bytes(version: u16) -> usize {
    if version == FIRST_VERSION { 58 } else { 58 + VOICE_BYTES }
}

/// Length of the answer to it.
pub fn welcome_bytes(version: u16) -> usize {
    if version == FIRST_VERSION { 49 } else { 49 + VOICE_BYTES }
}

/// The longest greeting.
pub const HELLO_BYTES_MAX: usize = 58 + VOICE_BYTES;

/// What a node says of levels, since it knows of them.
const VOICE_BYTES: usize = 3;

/// Before a frame's body: its length and its checksum.
pub const FRAME_HEADER_BYTES: usize = 8;

/// Before a message in a frame: the group it is for and its length.
pub const MESSAGE_HEADER_BYTES: usize = 8;

/// Longest body of a frame: the longest entry with room for its company.
pub const FRAME_BYTES_MAX: usize = 640 << 20;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Messages of a lane, from the node that dialled.
    Carry(Lane),
    /// A fresh node asks what cluster this is; the answer is all.
    Ask,
    /// A newcomer has an invitation, which follows the greeting, and asks to be let in. The answer is followed by the
    /// authority of the cluster.
    Enter,
    /// The same, to know whether it would be let in.
    Knock,
}

impl Purpose {
    fn number(self) -> u8 {
        match self {
            Self::Carry(Lane::Vital) => 0,
            Self::Carry(Lane::Log) => 1,
            Self::Carry(Lane::Bulk) => 2,
            Self::Ask => 3,
            Self::Enter => 4,
            Self::Knock => 5,
        }
    }

    fn of(number: u8) -> Option<Self> {
        let lanes = [Lane::Vital, Lane::Log, Lane::Bulk].map(Self::Carry);
        lanes.into_iter().chain([Self::Ask, Self::Enter, Self::Knock]).find(|purpose| purpose.number() == number)
    }

    /// True if an invitation follows the greeting.
    pub fn has_invitation(self) -> bool {
        matches!(self, Self::Enter | Self::Knock)
    }
}

/// Who dials which node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What for.
    pub purpose: Purpose,
    /// The cluster; 0 with [`Purpose::Ask`].
    pub cluster: u128,
    /// Who dials.
    pub from: u64,
    /// Who is expected to answer.
    pub to: u64,
    /// Groups of the cluster.
    pub group_count: u32,
    /// What follows the answer is compressed.
    pub is_compressed: bool,
    /// Drawn by the process of the node that dials when it started; 0 where it is not of interest.
    pub life: u64,
    /// The version of the protocol that it is said in.
    pub version: u16,
    /// Which levels matter to the node that dials.
    pub voice: Voice,
}

/// Who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Whether the connection may be used.
    pub verdict: Verdict,
    /// The cluster.
    pub cluster: u128,
    /// Who answers.
    pub node: u64,
    /// Groups of the cluster.
    pub group_count: u32,
    /// Seed of the keyspace's hash, on which the order of SCAN rests.
    pub hash_seed: u64,
    /// Which levels matter to the node that answers.
    pub voice: Voice,
}

/// Whether a greeting is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Yes.
    Accepted,
    /// This is another cluster.
    WrongCluster,
    /// This is another node: an address has changed hands.
    WrongNode,
    /// The number of groups differs.
    WrongGroups,
    /// The cluster has removed the node that dials.
    Removed,
    /// Here all links are encrypted.
    NeedsTls,
    /// Here no link is encrypted. Said to a node that has begun with TLS: to that node it is only not TLS.
    NoTls,
    /// The versions differ. The node that is told so sees it from the version of the answer.
    WrongVersion,
    /// The node that dials shows no certificate, and has no invitation.
    NotInvited,
    /// The certificate is that of another node.
    WrongNumber,
    /// No member of this cluster has made the invitation.
    ForgedInvitation,
    /// Its time is over.
    ExpiredInvitation,
    /// It has let in another node.
    UsedInvitation,
    /// This cluster has no authority of its own, and knows no invitations.
    NoInvitations,
    /// The node that answers looks for a cluster itself.
    Joining,
    /// The cluster has been recovered without the node that dials.
    LeftBehind,
    /// Another process was the node that dials a moment ago.
    AnotherLife,
    /// Another process is the node that dials.
    Copy,
    /// One of both has something in its logs that the other does not know.
    WrongLevel,
}

impl Verdict {
    const ALL: [Self; 19] = [
        Self::Accepted,
        Self::WrongCluster,
        Self::WrongNode,
        Self::WrongGroups,
        Self::Removed,
        Self::NeedsTls,
        Self::NoTls,
        Self::WrongVersion,
        Self::NotInvited,
        Self::WrongNumber,
        Self::ForgedInvitation,
        Self::ExpiredInvitation,
        Self::UsedInvitation,
        Self::NoInvitations,
        Self::Joining,
        Self::LeftBehind,
        Self::AnotherLife,
        Self::Copy,
        Self::WrongLevel,
    ];

    /// True if asking again will not help.
    pub fn is_final(self) -> bool {
        matches!(
            self,
            Self::Removed
                | Self::LeftBehind
                | Self::NotInvited
                | Self::WrongNumber
                | Self::ForgedInvitation
                | Self::ExpiredInvitation
                | Self::UsedInvitation
                | Self::NoInvitations
                | Self::WrongLevel
        )
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Accepted => "accepted",
            Self::WrongCluster => "the node there belongs to another cluster",
            Self::WrongNode => "another node answers there",
            Self::WrongGroups => "the node there has another number of groups",
            Self::Removed => "this node has been removed from its cluster",
            Self::LeftBehind => {
                "the cluster was recovered from another node while this one was lost (holdfast recover): what this \
                 node holds does not count any more. To take it back, start it with an empty directory and an invitation"
            }
            Self::AnotherLife => "another process was heard there a moment ago as the node that this one says it is",
            Self::Copy => {
                "another process is the node that this one says it is: the data directory is a copy of one that is in \
                 use elsewhere"
            }
            Self::WrongLevel => {
                "the cluster there is at a level that this version of Holdfast does not know: start a version that \
                 knows it"
            }
            Self::NeedsTls => "the other side takes encrypted links only, and this node speaks no TLS (tls-cluster)",
            Self::NoTls => "the other side speaks no TLS",
            Self::WrongVersion => "the node there speaks another version of the protocol",
            Self::NotInvited => "the cluster lets in only who shows its certificate or an invitation (--token)",
            Self::WrongNumber => "this node's certificate has another number than the node",
            Self::ForgedInvitation => "no member of the cluster has made this token",
            Self::ExpiredInvitation => "the token has expired",
            Self::UsedInvitation => "the token has let in another node already",
            Self::Joining => {
                "the node there looks for a cluster to join itself: one of them must be started without --join"
            }
            Self::NoInvitations => "the cluster there has no certificate authority of its own, and takes no tokens",
        })
    }
}

/// Bytes that are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Not of this program.
    Foreign,
    /// Of a version that is not spoken here.
    Version(Unspoken),
    /// The checksum does not match, or a field makes no sense.
    Damaged,
}

impl fmt::Display for Malformed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => out.write_str("the other end does not speak the protocol of nodes"),
            Self::Version(unspoken) => unspoken.fmt(out),
            Self::Damaged => out.write_str("bytes from the other end do not verify"),
        }
    }
}

impl Hello {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = head(self.version, self.purpose.number());
        out.extend_from_slice(&self.cluster.to_le_bytes());
        out.extend_from_slice(&self.from.to_le_bytes());
        out.extend_from_slice(&self.to.to_le_bytes());
        out.extend_from_slice(&self.group_count.to_le_bytes());
        out.push(u8::from(self.is_compressed));
        out.extend_from_slice(&self.life.to_le_bytes());
        put_voice(&mut out, self.version, self.voice);
        seal(out, hello_bytes(self.version))
    }

    /// Reads as many bytes as [`hello_bytes`] says of their version, which [`check_head`] has looked at.
    pub fn decode(bytes: &[u8], version: u16) -> Result<Self, Malformed> {
        let purpose = Purpose::of(unseal(bytes)?).ok_or(Malformed::Damaged)?;
        Ok(Self {
            version,
            voice: take_voice(bytes, 54, version),
            purpose,
            cluster: u128::from_le_bytes(part(bytes, 9)),
            from: u64::from_le_bytes(part(bytes, 25)),
            to: u64::from_le_bytes(part(bytes, 33)),
            group_count: u32::from_le_bytes(part(bytes, 41)),
            is_compressed: bytes[45] != 0,
            life: u64::from_le_bytes(part(bytes, 46)),
        })
    }
}

impl Welcome {
    /// A refusal that tells a stranger nothing.
    pub fn refusal(verdict: Verdict) -> Self {
        Self { verdict, cluster: 0, node: 0, group_count: 0, hash_seed: 0, voice: Voice::FIRST }
    }

    /// Its bytes in a version.
    pub fn encode(&self, version: u16) -> Vec<u8> {
        let verdict = Verdict::ALL.iter().position(|verdict| *verdict == self.verdict).expect("all are listed");
        let mut out = head(version, verdict as u8);
        out.extend_from_slice(&self.cluster.to_le_bytes());
        out.extend_from_slice(&self.node.to_le_bytes());
        out.extend_from_slice(&self.group_count.to_le_bytes());
        out.extend_from_slice(&self.hash_seed.to_le_bytes());
        put_voice(&mut out, version, self.voice);
        seal(out, welcome_bytes(version))
    }

    /// Reads as many bytes as [`welcome_bytes`] says of their version, which [`check_head`] has looked at.
    pub fn decode(bytes: &[u8], version: u16) -> Result<Self, Malformed> {
        let verdict = *Verdict::ALL.get(usize::from(unseal(bytes)?)).ok_or(Malformed::Damaged)?;
        Ok(Self {
            verdict,
            cluster: u128::from_le_bytes(part(bytes, 9)),
            node: u64::from_le_bytes(part(bytes, 25)),
            group_count: u32::from_le_bytes(part(bytes, 33)),
            hash_seed: u64::from_le_bytes(part(bytes, 37)),
            voice: take_voice(bytes, 45, version),
        })
    }
}

fn put_voice(out: &mut Vec<u8>, version: u16, voice: Voice) {
    if version > FIRST_VERSION {
        out.extend_from_slice(&[voice.levels.lowest.0, voice.levels.highest.0, voice.floor.0]);
    }
}

fn take_voice(bytes: &[u8], at: usize, version: u16) -> Voice {
    if version == FIRST_VERSION {
        return Voice::FIRST;
    }
    let [lowest, highest, floor] = part(bytes, at).map(Level);
    Voice { levels: Levels { lowest, highest }, floor }
}

fn head(version: u16, kind: u8) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&version.to_le_bytes());
    out.push(kind);
    out
}

fn seal(mut out: Vec<u8>, length: usize) -> Vec<u8> {
    let check = crc32c::crc32c(&out);
    out.extend_from_slice(&check.to_le_bytes());
    debug_assert_eq!(out.len(), length);
    out
}

/// The version of a greeting or its answer, as soon as so much of it has come. In every version it begins in the same
/// way, so that ends of different versions tell each other instead of waiting, although their greetings may differ in
/// length.
pub fn version_in(bytes: &[u8]) -> Result<Option<u16>, Malformed> {
    let seen = bytes.len().min(MAGIC.len());
    if bytes[..seen] != MAGIC[..seen] {
        return Err(Malformed::Foreign);
    }
    Ok((bytes.len() >= HEAD_BYTES).then(|| u16::from_le_bytes(part(bytes, MAGIC.len()))))
}

/// The same, if it is one that is spoken here.
pub fn check_head(bytes: &[u8], here: Voice) -> Result<Option<u16>, Malformed> {
    match version_in(bytes)? {
        Some(version) if !here.versions().contains(&version) => Err(Malformed::Version(Unspoken { version, here })),
        seen => Ok(seen),
    }
}

/// The kind byte of a greeting or its answer, if that verifies.
fn unseal(bytes: &[u8]) -> Result<u8, Malformed> {
    let (body, check) = bytes.split_at(bytes.len() - 4);
    if crc32c::crc32c(body).to_le_bytes() != *check {
        return Err(Malformed::Damaged);
    }
    Ok(bytes[8])
}

fn part<const LENGTH: usize>(bytes: &[u8], at: usize) -> [u8; LENGTH] {
    bytes[at..at + LENGTH].try_into().expect("as many as were asked for")
}

/// Begins a frame at the end of `out`; the place is for [`end_frame`].
pub fn begin_frame(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
    start
}

/// Adds a message to the frame being made.
pub fn push_message(out: &mut Vec<u8>, group: u32, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).expect("a message fits a frame");
    out.extend_from_slice(&group.to_le_bytes());
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Ends the frame begun at `start`.
pub fn end_frame(out: &mut [u8], start: usize) {
    let (header, body) = out[start..].split_at_mut(FRAME_HEADER_BYTES);
    header[..4].copy_from_slice(&u32::try_from(body.len()).expect("bounded").to_le_bytes());
    header[4..].copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
}

/// A frame of one message.
pub fn whole_frame(group: u32, bytes: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(FRAME_HEADER_BYTES + MESSAGE_HEADER_BYTES + bytes.len());
    begin_frame(&mut frame);
    push_message(&mut frame, group, bytes);
    end_frame(&mut frame, 0);
    frame
}

/// The first frame of `bytes`, once it is whole: its body, and how much it takes.
pub fn next_frame(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, Malformed> {
    if bytes.len() < FRAME_HEADER_BYTES {
        return Ok(None);
    }
    let length = u32::from_le_bytes(part(bytes, 0)) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(Malformed::Damaged);
    }
    let Some(body) = bytes.get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + length) else { return Ok(None) };
    if crc32c::crc32c(body).to_le_bytes() != bytes[4..8] {
        return Err(Malformed::Damaged);
    }
    Ok(Some((body, FRAME_HEADER_BYTES + length)))
}

/// The first message of a frame's body, and the rest.
pub fn next_message(body: &[u8]) -> Result<(u32, &[u8], &[u8]), Malformed> {
    if body.len() < MESSAGE_HEADER_BYTES {
        return Err(Malformed::Damaged);
    }
    let group = u32::from_le_bytes(part(body, 0));
    let length = u32::from_le_bytes(part(body, 4)) as usize;
    let (message, rest) = body[MESSAGE_HEADER_BYTES..].split_at_checked(length).ok_or(Malformed::Damaged)?;
    Ok((group, message, rest))
}

#[cfg(test)]
mod tests {
    use fuzzing::Fuzz;

    use super::*;

    const VOICE: Voice = Voice { levels: Levels { lowest: Level(1), highest: Level(2) }, floor: Level(1) };

    fn hello(purpose: Purpose, version: u16) -> Hello {
        let is_compressed = purpose == Purpose::Carry(Lane::Bulk);
        let voice = if version == FIRST_VERSION { Voice::FIRST } else { VOICE };
        Hello { purpose, cluster: 1 << 100, from: 7, to: 8, group_count: 9, is_compressed, life: 10, version, voice }
    }

    fn welcome(version: u16) -> Welcome {
        let voice = if version == FIRST_VERSION { Voice::FIRST } else { VOICE };
        Welcome { verdict: Verdict::WrongNode, cluster: 3, node: 4, group_count: 5, hash_seed: 6, voice }
    }

    #[test]
    fn greetings_are_read_as_they_were_written() {
        for version in VOICE.versions() {
            for purpose in [Purpose::Carry(Lane::Bulk), Purpose::Ask] {
                let hello = hello(purpose, version);
                let bytes = hello.encode();
                assert_eq!(bytes.len(), hello_bytes(version));
                assert_eq!(check_head(&bytes, VOICE), Ok(Some(version)));
                assert_eq!(Hello::decode(&bytes, version), Ok(hello));
            }
            let welcome = welcome(version);
            let mut bytes = welcome.encode(version);
            assert_eq!(bytes.len(), welcome_bytes(version));
            assert_eq!(Welcome::decode(&bytes, version), Ok(welcome));
            bytes[20] ^= 1;
            assert_eq!(Welcome::decode(&bytes, version), Err(Malformed::Damaged));
        }
    }

    /// What the version before there were levels has written, and reads.
    #[test]
    fn the_greeting_of_who_knows_no_levels_is_what_it_was() {
        let bytes = hello(Purpose::Ask, 9).encode();
        assert_eq!((bytes.len(), &bytes[..9]), (58, &b"HFPEER\x09\x00\x03"[..]));
        assert_eq!((bytes[45], &bytes[46..54]), (0, &10_u64.to_le_bytes()[..]));
        let bytes = welcome(9).encode(9);
        assert_eq!((bytes.len(), &bytes[..9]), (49, &b"HFPEER\x09\x00\x02"[..]));
        let refusal = Welcome::refusal(Verdict::WrongVersion).encode(9);
        assert_eq!((refusal.len(), refusal[8]), (49, 7));
    }

    #[test]
    fn another_version_is_known_before_a_greeting_is_whole() {
        let mut bytes = hello(Purpose::Ask, 10).encode();
        for length in 0..bytes.len() {
            let seen = (length >= HEAD_BYTES).then_some(10);
            assert_eq!(check_head(&bytes[..length], VOICE), Ok(seen));
        }
        bytes[6] += 1;
        assert_eq!(check_head(&bytes[..7], VOICE), Ok(None));
        let unspoken = Malformed::Version(Unspoken { version: 11, here: VOICE });
        assert_eq!(check_head(&bytes[..8], VOICE), Err(unspoken));
        let risen = Voice { floor: Level(2), ..VOICE };
        let unspoken = Malformed::Version(Unspoken { version: 9, here: risen });
        assert_eq!(check_head(&hello(Purpose::Ask, 9).encode(), risen), Err(unspoken));
        assert_eq!(check_head(b"GET", VOICE), Err(Malformed::Foreign));
    }

    #[test]
    fn frames_come_whole_or_not_at_all() {
        let mut out = Vec::new();
        for round in 0..2u8 {
            let start = begin_frame(&mut out);
            push_message(&mut out, 3, &[round; 5]);
            push_message(&mut out, 4, &[]);
            end_frame(&mut out, start);
        }
        let (body, taken) = next_frame(&out).expect("sound").expect("whole");
        let (group, message, rest) = next_message(body).expect("a message");
        assert_eq!((group, message), (3, &[0; 5][..]));
        let (group, message, rest) = next_message(rest).expect("a message");
        assert_eq!((group, message, rest), (4, &[][..], &[][..]));
        for cut in 0..taken {
            assert_eq!(next_frame(&out[..cut]), Ok(None));
        }
        for at in 4..taken {
            let mut damaged = out[..taken].to_vec();
            damaged[at] ^= 0x10;
            assert_eq!(next_frame(&damaged), Err(Malformed::Damaged), "byte {at}");
        }
    }

    /// Puts the checksum at the end of a greeting right.
    fn verify_greeting(bytes: &mut [u8]) {
        let Some(body_bytes) = bytes.len().checked_sub(4) else { return };
        let check = crc32c::crc32c(&bytes[..body_bytes]);
        bytes[body_bytes..].copy_from_slice(&check.to_le_bytes());
    }

    #[test]
    fn fuzz_greetings() {
        let corpus = VOICE.versions().flat_map(|version| {
            let is_compressed = true;
            [Hello { is_compressed, ..hello(Purpose::Ask, version) }.encode(), welcome(version).encode(version)]
        });
        Fuzz::new("greetings", corpus).repair(verify_greeting).run(|input| {
            let head = check_head(input, VOICE).is_ok();
            let version = version_in(input).ok().flatten().filter(|version| VOICE.versions().contains(version));
            let version = version.unwrap_or(FIRST_VERSION);
            // Anyone who reads a greeting reads all of its bytes.
            let whole = |length: usize| {
                let mut bytes = input.to_vec();
                bytes.resize(length, 0);
                if input.len() < length {
                    verify_greeting(&mut bytes);
                }
                bytes
            };
            let hello = Hello::decode(&whole(hello_bytes(version)), version);
            let welcome = Welcome::decode(&whole(welcome_bytes(version)), version);
            if let Ok(hello) = &hello {
                let again = Hello::decode(&hello.encode(), version);
                assert_eq!(again.as_ref(), Ok(hello));
            }
            if let Ok(welcome) = &welcome {
                assert_eq!(Welcome::decode(&welcome.encode(version), version).as_ref(), Ok(welcome));
            }
            let purpose = hello.map_or(0, |hello| 1 + u64::from(hello.purpose.number()));
            u64::from(head) + 2 * purpose + 1_000 * welcome.map_or(0, |welcome| 1 + welcome.verdict as u64)
        });
    }

    /// Puts the checksums of frames right, as far as they can be followed.
    fn verify_frames(bytes: &mut [u8]) {
        let mut at = 0;
        while bytes.len() - at >= FRAME_HEADER_BYTES {
            let length = u32::from_le_bytes(part(bytes, at)) as usize;
            let start = at + FRAME_HEADER_BYTES;
            let Some(body) = bytes.get(start..start.saturating_add(length)) else { return };
            let check = crc32c::crc32c(body);
            bytes[at + 4..start].copy_from_slice(&check.to_le_bytes());
            at = start + length;
        }
    }

    #[test]
    fn fuzz_frames() {
        let mut several = Vec::new();
        let start = begin_frame(&mut several);
        push_message(&mut several, 1, b"one");
        push_message(&mut several, 2, b"");
        push_message(&mut several, u32::MAX, b"three and more");
        end_frame(&mut several, start);
        several.extend(whole_frame(3, b"another"));
        Fuzz::new("link-frames", [several, whole_frame(7, &[0; 300])]).repair(verify_frames).run(|input| {
            let (mut at, mut messages, mut message_bytes) = (0, 0, 0);
            let is_sound = loop {
                match next_frame(&input[at..]) {
                    Ok(Some((mut body, taken))) => {
                        at += taken;
                        let is_sound = loop {
                            if body.is_empty() {
                                break true;
                            }
                            let Ok((_, message, rest)) = next_message(body) else { break false };
                            (messages, message_bytes) = (messages + 1, message_bytes + message.len());
                            body = rest;
                        };
                        if !is_sound {
                            break false;
                        }
                    }
                    Ok(None) => break true,
                    Err(_) => break false,
                }
            };
            assert!(at <= input.len() && message_bytes <= input.len());
            u64::from(is_sound) + 2 * messages
        });
    }
}

//! Connections that others have made: who they are, whether they may come in, and what they are told.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::io::Read;
use std::net::{Shutdown, SocketAddr};
use std::time::Instant;

use group::ids::{Lane, NodeId};
use journal::Identity;
use mio::net::TcpStream;
use mio::{Interest, Token};
use node::event::Event;
use node::lives::Judgement;
use rustls::pki_types::CertificateDer;
use socket2::{SockRef, TcpKeepalive};

use super::compression::Decompressor;
use super::frame::{self, Hello, Malformed, Purpose, Verdict, Welcome, hello_bytes};
use super::inbound::{Heard, Inbound};
use super::version::Voice;
use super::wire::Wire;
use super::{Heeded, Peers, REFUSED_MAX, TLS_HANDSHAKE};
use crate::limits::{
    LINK_CALLERS_MAX, LINK_CALLERS_SILENT_MAX, LINK_CONNECT_MAX, LINK_FAREWELL_MAX, LINK_KEEPALIVE, LINK_PAUSE_MAX,
    LINK_REFUSAL_INTERVAL,
};
use crate::mailbox::Mail;
use crate::trust::{Authority, Invalid, TOKEN_BYTES, Token as Invitation};
use crate::{clock, tls};

/// A connection that another node dialled, and that has not been let in.
pub(super) struct Caller {
    pub(super) wire: Wire,
    /// Its first byte has been seen: it is known whether it speaks TLS.
    pub(super) is_settled: bool,
    pub(super) since: Instant,
    pub(super) greeting: Vec<u8>,
    /// It has been told that it is not let in, and has time to read that.
    pub(super) is_dismissed: bool,
}

impl Caller {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self {
            wire: Wire::Plain(stream),
            is_settled: false,
            since: Instant::now(),
            greeting: Vec::new(),
            is_dismissed: false,
        }
    }
}

impl Peers {
    pub(super) fn accept(&mut self, listener: usize) {
        loop {
            match self.listeners[listener].accept() {
                Ok((mut stream, _)) => {
                    let token = self.next_token;
                    self.next_token += 1;
                    let _ = stream.set_nodelay(true);
                    // It only listens: without this it would never learn that the other end is no more.
                    let keepalive = TcpKeepalive::new().with_time(LINK_KEEPALIVE);
                    let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
                    if self.poll.registry().register(&mut stream, Token(token), Interest::READABLE).is_ok() {
                        self.callers.insert(token, Caller::new(stream));
                        self.greet(token);
                        self.bound_callers();
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // One caller that has gone again: others may wait behind it.
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(error) => {
                    if self.unaccepted_told.is_none_or(|told| told.elapsed() >= LINK_REFUSAL_INTERVAL) {
                        self.unaccepted_told = Some(Instant::now());
                        self.host.log.warning(&format!("cannot accept a connection of another node: {error}"));
                    }
                    // Nobody says a second time that somebody waits there.
                    self.unaccepted.insert(listener, Instant::now() + LINK_PAUSE_MAX);
                    return;
                }
            }
        }
    }

    /// Hears who a caller is.
    pub(super) fn greet(&mut self, token: usize) {
        if !self.settle(token) {
            return;
        }
        loop {
            let Some(caller) = self.callers.get_mut(&token) else { return };
            let read = if caller.is_dismissed {
                caller.wire.socket_mut().read(&mut self.buffer)
            } else {
                caller.wire.read(&mut self.buffer)
            };
            let count = match read {
                Ok(0) => break,
                Ok(_) if caller.is_dismissed => continue,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // What TLS does not let in; it has said so itself.
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    self.dismiss(token, None, &error.to_string());
                    continue;
                }
                Err(_) => break,
            };
            caller.greeting.extend_from_slice(&self.buffer[..count]);
            match self.let_in(token) {
                Ok(true) => {}
                Ok(false) => break,
                Err(malformed @ Malformed::Version(_)) => {
                    self.dismiss(token, Some(Verdict::WrongVersion), &malformed.to_string());
                }
                Err(malformed) => {
                    self.tell_refusal(self.address_of(token), &malformed.to_string());
                    break;
                }
            }
        }
        // It will be dialled again by the other end.
        self.callers.remove(&token);
    }

    pub(super) fn address_of(&self, caller: usize) -> Option<SocketAddr> {
        self.callers.get(&caller)?.wire.socket().peer_addr().ok()
    }

    /// Finds out whether a caller speaks TLS, and lets only those go on who do if they should, or do not if they should
    /// not. False if it cannot be heard yet, or not any more.
    pub(super) fn settle(&mut self, token: usize) -> bool {
        let Some(caller) = self.callers.get(&token) else { return false };
        if caller.is_settled {
            return true;
        }
        let mut first = [0];
        let speaks_tls = match caller.wire.socket().peek(&mut first) {
            Ok(0) => None,
            Ok(_) => Some(first[0] == TLS_HANDSHAKE),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return false,
            Err(_) => None,
        };
        let Some(mut caller) = self.callers.remove(&token) else { return false };
        let Some(speaks_tls) = speaks_tls else { return false };
        caller.is_settled = true;
        let security = self.host.security();
        let refusal = match (speaks_tls, &security.links, caller.wire) {
            (true, Some(links), Wire::Plain(socket)) => match tls::accept(&links.accept, socket) {
                Ok(stream) => {
                    caller.wire = Wire::Tls(Box::new(stream));
                    None
                }
                Err(_) => return false,
            },
            (true, None, wire) => {
                caller.wire = wire;
                Some((Verdict::NoTls, "it speaks TLS, and this node does not (tls-cluster)"))
            }
            (false, Some(_), wire) => {
                caller.wire = wire;
                Some((Verdict::NeedsTls, "it speaks no TLS, and this node takes encrypted links only (tls-cluster)"))
            }
            (_, _, wire) => {
                caller.wire = wire;
                None
            }
        };
        self.callers.insert(token, caller);
        if let Some((verdict, cause)) = refusal {
            self.dismiss(token, Some(verdict), cause);
        }
        true
    }

    /// Tells a caller that it is not let in, and keeps the connection a moment: closed at once, with bytes that nobody
    /// has read, it would be reset, and the answer be lost.
    pub(super) fn dismiss(&mut self, token: usize, verdict: Option<Verdict>, cause: &str) {
        self.tell_refusal(self.address_of(token), cause);
        let Some(caller) = self.callers.get_mut(&token) else { return };
        caller.is_dismissed = true;
        caller.since = Instant::now();
        if let Some(verdict) = verdict {
            // A node that does not take it learns nothing.
            let version = match verdict {
                // It sees from the version of the answer what is spoken here.
                Verdict::WrongVersion => self.voice.latest(),
                _ => answered_in(&caller.greeting, self.voice),
            };
            let _ = caller.wire.write_all(&Welcome::refusal(verdict).encode(version));
        }
        let _ = caller.wire.socket().shutdown(Shutdown::Write);
    }

    /// One line, but not the same one again and again: who is turned away dials on, and is counted meanwhile.
    pub(super) fn tell_refusal(&mut self, address: Option<SocketAddr>, cause: &str) {
        let Some(address) = address else { return };
        if self.refused.len() > REFUSED_MAX {
            self.refused.clear();
        }
        let entry = self.refused.entry((address.ip(), cause.to_owned()));
        let mut is_news = false;
        let (told, more) = entry.or_insert_with(|| {
            is_news = true;
            (Instant::now(), 0)
        });
        if is_news {
            self.host.log.warning(&format!("cuts the link from {address}: {cause}"));
            return;
        }
        *more += 1;
        if told.elapsed() >= LINK_REFUSAL_INTERVAL {
            let line = format!(
                "cuts the link from {address}: {cause}; {more} times in the last {} s",
                told.elapsed().as_secs()
            );
            self.host.log.warning(&line);
            (*told, *more) = (Instant::now(), 0);
        }
    }

    /// Drops the oldest callers where there are too many: descriptors are for clients, too.
    fn bound_callers(&mut self) {
        let mut silent = self.callers.iter().filter(|(_, caller)| !caller.is_settled).map(|(token, _)| *token);
        let oldest_silent = silent.next().filter(|_| silent.count() >= LINK_CALLERS_SILENT_MAX);
        let oldest = || self.callers.keys().next().copied().filter(|_| self.callers.len() > LINK_CALLERS_MAX);
        if let Some(token) = oldest_silent.or_else(oldest) {
            self.tell_refusal(self.address_of(token), "too many callers have not said who they are");
            self.callers.remove(&token);
        }
    }

    /// Drops callers that never said who they are, or have been told to go.
    pub(super) fn look_after_callers(&mut self) {
        self.callers.retain(|_, caller| {
            let is_late = caller.since.elapsed() > LINK_CONNECT_MAX + LINK_FAREWELL_MAX;
            let is_gone = caller.is_dismissed && caller.since.elapsed() > LINK_FAREWELL_MAX;
            !is_late && !is_gone
        });
    }

    /// Answers a greeting, once it is whole. False if the connection has done its work.
    pub(super) fn let_in(&mut self, token: usize) -> Result<bool, Malformed> {
        let Some(caller) = self.callers.get_mut(&token) else { return Ok(true) };
        let Some(version) = frame::check_head(&caller.greeting, self.voice)? else { return Ok(true) };
        if caller.greeting.len() < hello_bytes(version) {
            return Ok(true);
        }
        let (hello, early) = caller.greeting.split_at(hello_bytes(version));
        let hello = Hello::decode(hello, version)?;
        if hello.purpose.has_invitation() && early.len() < TOKEN_BYTES {
            return Ok(true);
        }
        // The node that dials waits for the answer.
        let is_whole = early.len() == if hello.purpose.has_invitation() { TOKEN_BYTES } else { 0 };
        if !is_whole {
            return Err(Malformed::Damaged);
        }
        let security = self.host.security();
        let authority = security.links.as_ref().and_then(|links| links.authority.as_deref());
        // First of all: the certificate of such a caller has been verified, and is good for nothing but this answer.
        if self.former.as_ref().is_some_and(|former| former.has(caller.wire.certificate(), hello.cluster)) {
            let _ = caller.wire.write_all(&Welcome::refusal(Verdict::LeftBehind).encode(version));
            let address = caller.wire.socket().peer_addr().ok();
            let cause =
                format!("node {} is of the cluster that this one was recovered from, and was given up", hello.from);
            self.tell_refusal(address, &cause);
            return Ok(false);
        }
        // What such a node holds belongs to the Redis, and others would let clients write. It is asked again.
        if self.host.replicator.follows() {
            let address = caller.wire.socket().peer_addr().ok();
            self.tell_refusal(address, "this node follows a Redis, and lets no other in until REPLICAOF NO ONE");
            return Ok(false);
        }
        if hello.purpose.has_invitation() {
            let invitation = Invitation::decode(early);
            self.admit(token, &hello, invitation.as_ref(), authority);
            return Ok(false);
        }
        let shown = authority.map(|_| caller.wire.certificate());
        let mut welcome = judge_caller(&self.identity, &self.removed, shown, &hello, self.voice);
        let address = caller.wire.socket().peer_addr().ok();
        if welcome.verdict == Verdict::Accepted && matches!(hello.purpose, Purpose::Carry(_)) {
            welcome.verdict = self.judge_life(&hello, address);
        }
        let Some(caller) = self.callers.get_mut(&token) else { return Ok(true) };
        // A fresh socket has room for so few bytes.
        let is_told = caller.wire.write_all(&welcome.encode(version)).is_ok();
        let cause = match welcome.verdict {
            Verdict::NotInvited => Some("it shows no certificate of this cluster, and has no invitation".to_owned()),
            Verdict::WrongNumber => {
                Some(format!("it calls itself node {}, and its certificate is that of another one", hello.from))
            }
            Verdict::Removed => Some(format!("node {} has been removed from the cluster", hello.from)),
            Verdict::WrongLevel => Some(unsuited(self.voice, hello.voice)),
            _ => None,
        };
        if let Some(cause) = cause {
            self.tell_refusal(address, &cause);
            return Ok(false);
        }
        if !is_told || welcome.verdict != Verdict::Accepted || hello.purpose == Purpose::Ask {
            return Ok(false);
        }
        let Ok(decompressor) = hello.is_compressed.then(Decompressor::new).transpose() else { return Ok(false) };
        let Some(caller) = self.callers.remove(&token) else { return Ok(false) };
        self.note_own_address(caller.wire.socket().local_addr());
        let is_for_core = hello.purpose == Purpose::Carry(Lane::Log);
        let inbound = Inbound::new(NodeId(hello.from), caller.wire, decompressor);
        self.inbound.insert(token, Heeded { inbound, is_for_core, life: hello.life, voice: hello.voice });
        self.callers_voices.insert(NodeId(hello.from), hello.voice);
        self.hear_version(NodeId(hello.from), version);
        self.hear(token);
        Ok(true)
    }

    /// Whether who calls is the process that is the node.
    pub(super) fn judge_life(&mut self, hello: &Hello, from: Option<SocketAddr>) -> Verdict {
        let from = from.map(|address| address.to_string()).unwrap_or_default();
        match self.lives.greet(NodeId(hello.from), hello.life, &from, clock::instant()) {
            Judgement::Welcome => Verdict::Accepted,
            Judgement::Wait => Verdict::AnotherLife,
            Judgement::Copy { address, is_news } => {
                if is_news {
                    let node = hello.from;
                    let itself = format!("node {node} itself is heard from {address}");
                    let text = format!("refuses a copy of node {node} that calls from {from}: {itself}");
                    self.host.log.warning(&text);
                    self.host.desks[0].mailbox.post(Mail::Event(Event::Imposture { text }));
                }
                Verdict::Copy
            }
        }
    }

    /// Answers a newcomer with an invitation: lets it in by giving it the cluster's authority, or says why not.
    pub(super) fn admit(
        &mut self,
        token: usize,
        hello: &Hello,
        invitation: Option<&Invitation>,
        authority: Option<&Authority>,
    ) {
        let now_s = clock::unix_seconds();
        self.used.retain(|_, (expires_s, _)| *expires_s > now_s);
        let Some(caller) = self.callers.get_mut(&token) else { return };
        let verdict = match (authority, invitation) {
            (None, _) => Verdict::NoInvitations,
            (Some(_), _) if !caller.wire.is_encrypted() => Verdict::NeedsTls,
            (Some(_), None) => Verdict::ForgedInvitation,
            (Some(_), Some(_)) if self.removed.contains(&NodeId(hello.from)) => Verdict::Removed,
            (Some(_), Some(_)) if !self.voice.suits(hello.voice) => Verdict::WrongLevel,
            (Some(authority), Some(invitation)) => match authority.verify(invitation, now_s) {
                Err(Invalid::Forged) => Verdict::ForgedInvitation,
                Err(Invalid::Expired) => Verdict::ExpiredInvitation,
                // One that has not got the answer asks again.
                Ok(()) => match self.used.get(&invitation.id()) {
                    Some((_, node)) if *node != hello.from => Verdict::UsedInvitation,
                    _ => Verdict::Accepted,
                },
            },
        };
        let address = caller.wire.socket().peer_addr().ok();
        let name = invitation.map(Invitation::name).unwrap_or_default();
        let (Verdict::Accepted, Some(authority), Some(invitation)) = (verdict, authority, invitation) else {
            let _ = caller.wire.write_all(&Welcome::refusal(verdict).encode(hello.version));
            let cause = match verdict {
                Verdict::NoInvitations => {
                    "it has an invitation, and this cluster has no authority of its own".to_owned()
                }
                Verdict::ExpiredInvitation => format!("its invitation {name} has expired"),
                Verdict::UsedInvitation => format!("its invitation {name} has let in another node"),
                Verdict::Removed => format!("node {} has been removed from the cluster", hello.from),
                Verdict::WrongLevel => unsuited(self.voice, hello.voice),
                _ => "no member of this cluster has made its invitation".to_owned(),
            };
            return self.tell_refusal(address, &cause);
        };
        let mut answer = welcome(&self.identity, Verdict::Accepted, self.voice).encode(hello.version);
        if hello.purpose == Purpose::Enter {
            let authority = authority.encode();
            answer.extend_from_slice(&u32::try_from(authority.len()).expect("a certificate and a key").to_le_bytes());
            answer.extend_from_slice(&authority);
            self.used.insert(invitation.id(), (invitation.expires_s(), hello.from));
            let from = address.map(|address| address.to_string()).unwrap_or_default();
            self.host.log.notice(&format!("invitation {name} lets in node {} from {from}", hello.from));
        }
        let _ = caller.wire.write_all(&answer);
        let called_at = caller.wire.socket().local_addr();
        self.note_own_address(called_at);
    }

    /// Reads what another node says. What is for a core goes to it with the first message, which shows which it is.
    pub(super) fn hear(&mut self, token: usize) {
        let Some(Heeded { mut inbound, is_for_core, life, voice }) = self.inbound.remove(&token) else { return };
        let from = inbound.from();
        let mut mail: Vec<Vec<Mail>> = self.host.desks.iter().map(|_| Vec::new()).collect();
        loop {
            let mut spoken_to = None;
            let heard = inbound.hear(&mut self.buffer, |group, message| {
                let core = self.host.core_of(group);
                mail[core].push(Mail::Peer { from, bytes: message.to_vec() });
                spoken_to.get_or_insert(core);
            });
            if spoken_to.is_some() {
                self.lives.hear(from, life, clock::instant());
            }
            for (desk, mail) in self.host.desks.iter().zip(&mut mail) {
                if !mail.is_empty() {
                    desk.mailbox.post_with(|box_| box_.append(mail));
                }
            }
            match (heard, spoken_to) {
                (Ok(Heard::End), _) => return self.note_end(from, life),
                (Err(cause), _) => {
                    self.note_end(from, life);
                    return self.tell_refusal(inbound.address(), &cause);
                }
                (Ok(_), Some(core)) if is_for_core => {
                    // If it cannot be taken off, it cannot be put on: it is dialled again.
                    if self.poll.registry().deregister(inbound.source()).is_ok() {
                        self.host.desks[core].mailbox.post(Mail::Inbound(Box::new(inbound)));
                    }
                    return;
                }
                (Ok(Heard::More), _) => {}
                (Ok(Heard::All), _) => break,
            }
        }
        self.inbound.insert(token, Heeded { inbound, is_for_core, life, voice });
    }

    /// A connection has ended. With its last one, but for those that cores read, a process is gone.
    pub(super) fn note_end(&mut self, from: NodeId, life: u64) {
        let is_its_own = |heeded: &Heeded| heeded.inbound.from() == from && heeded.life == life;
        if !self.inbound.values().any(is_its_own) {
            self.lives.gone(from, life);
        }
    }
}

/// Whether a caller is welcome. Where certificates name nodes, `shown` is the verified one of the caller, if any.
pub(super) fn judge_caller(
    identity: &Identity,
    removed: &BTreeSet<NodeId>,
    shown: Option<Option<&CertificateDer<'_>>>,
    hello: &Hello,
    voice: Voice,
) -> Welcome {
    match shown {
        None => judge(identity, removed, hello, voice),
        Some(None) => Welcome::refusal(Verdict::NotInvited),
        // From here on it is who it says, or holds the authority itself.
        Some(Some(certificate)) if !tls::is_of_node(certificate, hello.from) => Welcome::refusal(Verdict::WrongNumber),
        Some(Some(_)) if removed.contains(&NodeId(hello.from)) => Welcome::refusal(Verdict::Removed),
        Some(Some(_)) => judge(identity, removed, hello, voice),
    }
}

/// Whether a greeting is welcome.
pub(super) fn judge(identity: &Identity, removed: &BTreeSet<NodeId>, hello: &Hello, voice: Voice) -> Welcome {
    let verdict = match hello.purpose {
        Purpose::Ask => Verdict::Accepted,
        Purpose::Carry(_) if !voice.suits(hello.voice) => Verdict::WrongLevel,
        Purpose::Enter | Purpose::Knock => Verdict::NoInvitations,
        Purpose::Carry(_) if hello.cluster != identity.cluster => Verdict::WrongCluster,
        Purpose::Carry(_) if removed.contains(&NodeId(hello.from)) => Verdict::Removed,
        Purpose::Carry(_) if hello.to != identity.node => Verdict::WrongNode,
        Purpose::Carry(_) if hello.group_count != identity.group_count => Verdict::WrongGroups,
        Purpose::Carry(_) => Verdict::Accepted,
    };
    welcome(identity, verdict, voice)
}

/// An answer that says who this is.
pub(super) fn welcome(identity: &Identity, verdict: Verdict, voice: Voice) -> Welcome {
    Welcome {
        voice,
        verdict,
        cluster: identity.cluster,
        node: identity.node,
        group_count: identity.group_count,
        hash_seed: identity.hash_seed,
    }
}

/// Why two nodes have nothing to say to each other, at one of them.
pub(super) fn unsuited(here: Voice, there: Voice) -> String {
    if here.levels.contains(there.floor) {
        format!("the cluster is at level {}, and the node there knows {}", here.floor, there.levels)
    } else {
        format!(
            "the cluster is at level {}, and this version of Holdfast knows {}: start a version that knows level {0}",
            there.floor, here.levels
        )
    }
}

/// The version in which a caller is answered, by what has come of its greeting.
pub(super) fn answered_in(greeting: &[u8], here: Voice) -> u16 {
    frame::check_head(greeting, here).ok().flatten().unwrap_or(here.latest())
}

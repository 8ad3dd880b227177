//! Links to other nodes: made, tried in another version, kept, cut and made again.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use group::ids::{Lane, NodeId};
use mio::Token;
use node::event::Event;
use node::roster::Member;

use super::callers::unsuited;
use super::frame::{self, Hello, Purpose, Verdict};
use super::link::{Link, State, Ungreeted};
use super::version::{Unspoken, Voice};
use super::{Asker, Outgoing, Peers, Place, SharedLink, lock, place, resolve};
use crate::host::Host;
use crate::limits::{
    LINK_CONNECT_MAX, LINK_FRAME_BYTES, LINK_PACK_BYTES_MAX, LINK_PAUSE_MAX, LINK_PAUSE_MIN, LINK_REPORT_INTERVAL,
    LINK_RESOLVE_MAX,
};
use crate::mailbox::Mail;

impl Peers {
    pub(super) fn meet(&mut self, contacts: Vec<(NodeId, Member)>) {
        let own = NodeId(self.identity.node);
        let removed = contacts.iter().filter(|(_, member)| member.is_removed).map(|(node, _)| *node).collect();
        let before = std::mem::replace(&mut self.removed, removed);
        // They call again, and are told then.
        let removed = &self.removed;
        self.inbound.retain(|_, heeded| !removed.contains(&heeded.inbound.from()));
        for node in removed.difference(&before) {
            self.host.desks.iter().for_each(|desk| desk.mailbox.post(Mail::HearNoMore(*node)));
        }
        let known: BTreeMap<NodeId, String> = contacts
            .into_iter()
            .filter(|(node, member)| *node != own && !member.is_removed)
            .map(|(node, member)| (node, member.cluster_address))
            .collect();
        let gone: Vec<_> = self.tokens.keys().filter(|(node, ..)| !known.contains_key(node)).copied().collect();
        for key in gone {
            let token = self.tokens.remove(&key).expect("just seen");
            if let Some(shared) = self.links.remove(&token) {
                let sent = lock(&shared.link).report().sent_bytes;
                self.host.peers.gone_bytes.fetch_add(sent, Ordering::Relaxed);
            }
        }
        for (node, address) in known {
            let log = (0..self.core_count()).map(|core| (node, Lane::Log, core));
            for place in log.chain([(node, Lane::Vital, 0), (node, Lane::Bulk, 0)]) {
                if let Some(token) = self.tokens.get(&place).copied() {
                    if lock(&self.links[&token].link).readdress(&address) {
                        self.cut(token, "its address has changed", Duration::ZERO);
                    }
                    continue;
                }
                let token = self.next_token;
                self.next_token += 1;
                self.tokens.insert(place, token);
                self.links.insert(token, SharedLink::new(Link::new(node, address.clone(), place.1, place.2)));
            }
        }
        let shared = self.tokens.iter().map(|(key, token)| (*key, Arc::clone(&self.links[token]))).collect();
        *self.host.peers.links.write().unwrap_or_else(PoisonError::into_inner) = shared;
    }

    /// Where nodes may be beside where they are said to be.
    pub(super) fn also_try(&self, places: &BTreeMap<NodeId, Vec<String>>) {
        for ((node, ..), token) in &self.tokens {
            lock(&self.links[token].link).also_try(places.get(node).map_or(&[], |places| places));
        }
    }

    pub(super) fn queue(&mut self, messages: &mut Vec<Outgoing>) {
        let mut touched = Vec::new();
        for Outgoing { to, group, lane, bytes } in messages.drain(..) {
            let Some(token) = self.tokens.get(&place(to, lane, group, self.core_count())) else { continue };
            let shared = &self.links[token];
            let pushed = if bytes.len() > LINK_FRAME_BYTES {
                let has_room = lock(&shared.link).has_room(bytes.len());
                // Cores need not wait while it is copied and its checksum made.
                let whole = has_room.then(|| frame::whole_frame(group, &bytes));
                lock(&shared.link).push_whole(whole)
            } else {
                lock(&shared.link).push(group, &bytes)
            };
            // A link that has come in the place of another one was not handed what that one was.
            let _ =
                shared.handed_over_count.try_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
            if pushed && !touched.contains(token) {
                touched.push(*token);
            }
        }
        for token in touched {
            // What has to be compressed waits for its turn among all links.
            lock(&self.links[&token].link).write(&mut 0);
        }
    }

    pub(super) fn move_link(&mut self, token: usize, is_writable: bool, is_readable: bool) {
        let Some(shared) = self.links.get(&token).map(Arc::clone) else { return };
        let mut link = lock(&shared.link);
        if let State::Greeting { .. } = link.state {
            let (hello, node) = (self.hello(&link), link.node);
            let result = link.greet(&hello, &mut self.buffer);
            drop(link);
            match result {
                Ok(None) => {}
                Ok(Some(welcome)) if welcome.verdict == Verdict::Accepted => {
                    if self.voice.suits(welcome.voice) {
                        self.voices.insert(node, welcome.voice);
                        return self.up(token);
                    }
                    self.cut(token, &unsuited(self.voice, welcome.voice), LINK_PAUSE_MAX);
                }
                Ok(Some(welcome)) if welcome.verdict == Verdict::WrongLevel => {
                    self.cut(token, &unsuited(self.voice, welcome.voice), LINK_PAUSE_MAX);
                }
                Ok(Some(welcome)) => {
                    let is_given_up = matches!(welcome.verdict, Verdict::Removed | Verdict::LeftBehind);
                    if is_given_up && !std::mem::replace(&mut self.is_expelled, true) {
                        self.tell_all(|| Event::Expelled);
                    }
                    let pause = match welcome.verdict {
                        Verdict::Copy => {
                            self.be_a_copy();
                            LINK_PAUSE_MAX
                        }
                        Verdict::AnotherLife => LINK_PAUSE_MIN,
                        _ => LINK_PAUSE_MAX,
                    };
                    self.cut(token, &welcome.verdict.to_string(), pause);
                }
                Err(Ungreeted::Version(version)) => self.fall_back(token, node, version),
                Err(Ungreeted::Malformed(malformed)) => self.cut(token, &malformed.to_string(), LINK_PAUSE_MIN),
                Err(Ungreeted::Cut(reason)) => self.cut(token, &reason, LINK_PAUSE_MIN),
            }
            return;
        }
        if is_readable && let Err((cause, pause)) = link.listen(&mut self.buffer) {
            drop(link);
            return self.cut(token, &cause, pause);
        }
        if is_writable {
            link.is_writable = true;
            link.write(&mut 0);
        }
    }

    /// The other end has answered in another version than it was greeted in: it is greeted in that one, if that is
    /// spoken here.
    pub(super) fn fall_back(&mut self, token: usize, node: NodeId, version: u16) {
        if !self.voice.versions().contains(&version) {
            let unspoken = Unspoken { version, here: self.voice };
            self.speaks.remove(&node);
            return self.cut(token, &unspoken.to_string(), LINK_PAUSE_MAX);
        }
        if self.speaks.insert(node, version) != Some(version) {
            let latest = self.voice.latest();
            self.host.log.notice(&format!(
                "node {} speaks version {version} of the protocol, and this one up to {latest}: they talk in {version}",
                node.0
            ));
        }
        if let Some(shared) = self.links.get(&token) {
            lock(&shared.link).begin_again();
        }
    }

    /// What this node has in its logs is of a higher level than before: who does not know that is not talked to.
    pub(super) fn rise(&mut self) {
        self.voice = self.host.floor.voice();
        let voice = self.voice;
        let is_fit = |version: u16| voice.versions().contains(&version);
        self.speaks.retain(|_, version| is_fit(*version));
        self.inbound.retain(|_, heeded| voice.suits(heeded.voice));
        let unfit: Vec<usize> = self
            .links
            .iter()
            .map(|(token, shared)| (*token, lock(&shared.link)))
            .filter(|(_, link)| !matches!(link.state, State::Down { .. }) && !is_fit(link.version()))
            .map(|(token, _)| token)
            .collect();
        for token in unfit {
            let floor = self.voice.floor;
            self.cut(
                token,
                &format!("the cluster is at level {floor}, which the node there does not know"),
                LINK_PAUSE_MAX,
            );
        }
        // Cores hear some of them as well. They call again, and are told then.
        for (node, _) in self.callers_voices.extract_if(.., |_, theirs| !voice.suits(*theirs)) {
            self.host.desks.iter().for_each(|desk| desk.mailbox.post(Mail::HearNoMore(node)));
        }
    }

    /// A node has greeted in this version. If that is later than the one in which it has answered so far, it is another
    /// program now, and is greeted in the later one. The other way round its answer tells.
    pub(super) fn hear_version(&mut self, node: NodeId, version: u16) {
        if self.speaks.get(&node).is_none_or(|spoken| *spoken >= version) {
            return;
        }
        if version == self.voice.latest() {
            self.speaks.remove(&node);
        } else {
            self.speaks.insert(node, version);
        }
        let tokens: Vec<usize> =
            self.tokens.iter().filter(|((other, ..), _)| *other == node).map(|(_, token)| *token).collect();
        for token in tokens {
            let is_other = {
                let link = lock(&self.links[&token].link);
                !matches!(link.state, State::Down { .. }) && link.version() != version
            };
            if is_other {
                self.cut(
                    token,
                    "the other end speaks a later version of the protocol now, and is greeted in that",
                    Duration::ZERO,
                );
            }
        }
    }

    pub(super) fn hello(&self, link: &Link) -> Vec<u8> {
        Hello {
            purpose: Purpose::Carry(link.lane),
            cluster: self.identity.cluster,
            from: self.identity.node,
            to: link.node.0,
            group_count: self.identity.group_count,
            is_compressed: link.is_compressed(),
            life: self.life,
            version: link.version(),
            voice: self.voice,
        }
        .encode()
    }

    pub(super) fn up(&mut self, token: usize) {
        self.reported = None;
        let mut link = lock(&self.links[&token].link);
        link.up(self.started);
        let (node, lane) = (link.node, link.lane);
        let own_address = link.own_address();
        drop(link);
        // A node that is told a wrong address of this one does not call it.
        self.note_own_address(own_address);
        if lane == Lane::Log {
            // What waits for an answer is sent again then, over all of them.
            if self.log_links(node).all(|link| link.is_up()) {
                self.host.log.notice(&format!("linked to node {}", node.0));
                let levels = self.voices.get(&node).copied().unwrap_or(Voice::FIRST).levels;
                self.tell_all(|| Event::Reachable { node, levels });
            }
        }
    }

    pub(super) fn cut(&mut self, token: usize, cause: &str, pause_min: Duration) {
        let Some(shared) = self.links.get(&token) else { return };
        self.reported = None;
        let mut link = lock(&shared.link);
        let (was_up, is_news) = link.cut(cause, pause_min);
        let (node, lane, core) = (link.node, link.lane, link.core);
        drop(link);
        if was_up {
            self.tell_unreachable((node, lane, core));
            if lane == Lane::Vital {
                // Who does not take heartbeats does not read the log either, and nobody else finds that out as soon.
                let places = (node, Lane::Log, 0)..=(node, Lane::Log, u32::MAX);
                let tokens = self.tokens.range(places).map(|(_, token)| *token);
                let up: Vec<usize> = tokens.filter(|token| lock(&self.links[token].link).is_up()).collect();
                up.into_iter().for_each(|token| self.cut(token, cause, pause_min));
            }
        }
        // Of several connections that go the same way at the same time one is told of.
        let is_like = |link: &MutexGuard<'_, Link>| !link.is_up() && link.last_cause() == cause;
        if lane == Lane::Log && is_news && self.log_links(node).filter(is_like).count() == 1 {
            self.host.log.warning(&format!("no link to node {}: {cause}", node.0));
        }
    }

    /// The connections of the log's lane to a node.
    pub(super) fn log_links(&self, node: NodeId) -> impl Iterator<Item = MutexGuard<'_, Link>> {
        let places = (node, Lane::Log, 0)..=(node, Lane::Log, u32::MAX);
        self.tokens.range(places).map(|(_, token)| lock(&self.links[token].link))
    }

    /// Something has been lost on a link: the groups that it carries start over.
    pub(super) fn tell_unreachable(&self, (node, lane, core): Place) {
        if lane == Lane::Log {
            self.host.desks[core as usize].mailbox.post(Mail::Event(Event::Unreachable { node }));
        } else {
            self.tell_all(|| Event::Unreachable { node });
        }
    }

    pub(super) fn tell_drops(&mut self) {
        for shared in self.links.values() {
            let mut link = lock(&shared.link);
            let place = (link.node, link.lane, link.core);
            let has_dropped = std::mem::take(&mut link.has_dropped);
            drop(link);
            if has_dropped {
                self.tell_unreachable(place);
            }
        }
    }

    /// Dials where it is time, writes what cores have left, and gives up what is broken or does not move.
    pub(super) fn look_after_links(&mut self) {
        let now = Instant::now();
        let mut to_cut = Vec::new();
        let mut pack_bytes = LINK_PACK_BYTES_MAX;
        // Another one is first each time.
        self.turn_count += 1;
        let first = self.turn_count % self.links.len().max(1);
        for (token, shared) in self.links.iter().cycle().skip(first).take(self.links.len()) {
            let mut link = lock(&shared.link);
            let failure = match &link.state {
                State::Down { until } if *until <= now => {
                    let address = link.address().to_owned();
                    let dialled = match address.parse() {
                        Ok(address) => self.dial(*token, link, address),
                        Err(_) => {
                            link.state = State::Down { until: now + LINK_RESOLVE_MAX };
                            drop(link);
                            if self.resolving.contains(token) {
                                continue;
                            }
                            let asked = resolve_aside(Arc::clone(&self.host), *token, address);
                            if asked.is_ok() {
                                self.resolving.insert(*token);
                            }
                            asked
                        }
                    };
                    dialled.err().map(|error| error.to_string())
                }
                State::Greeting { since, .. } if since.elapsed() > LINK_CONNECT_MAX => Some("no answer".to_owned()),
                State::Up { .. } if link.is_stuck() => Some("it takes nothing".to_owned()),
                State::Up { .. } => {
                    link.write(&mut pack_bytes);
                    link.failure.take()
                }
                _ => None,
            };
            to_cut.extend(failure.map(|cause| (*token, cause)));
        }
        for (token, cause) in to_cut {
            self.cut(token, &cause, LINK_PAUSE_MIN);
        }
    }

    /// It is known now what the name of a node means, or why not.
    pub(super) fn resolved(&mut self, token: usize, address: &str, meaning: io::Result<SocketAddr>) {
        self.resolving.remove(&token);
        let Some(shared) = self.links.get(&token).map(Arc::clone) else { return };
        let mut link = lock(&shared.link);
        if !matches!(link.state, State::Down { .. }) {
            return;
        }
        if link.address() != address {
            // It is somewhere else meanwhile.
            link.state = State::Down { until: Instant::now() };
            return;
        }
        let dialled = match meaning {
            Ok(address) => self.dial(token, link, address),
            Err(error) => {
                drop(link);
                Err(error)
            }
        };
        if let Err(error) = dialled {
            self.cut(token, &error.to_string(), LINK_PAUSE_MIN);
        }
    }

    pub(super) fn dial(&self, token: usize, mut link: MutexGuard<'_, Link>, address: SocketAddr) -> io::Result<()> {
        let security = self.host.security();
        // Heartbeats are few and small, and wait for nothing.
        let lane = link.lane;
        link.compress(self.compression_level.filter(|_| lane != Lane::Vital))?;
        let version = self.speaks.get(&link.node).copied().unwrap_or(self.voice.latest());
        link.dial(address, self.poll.registry(), Token(token), security.links.as_ref(), version)
    }

    pub(super) fn publish(&mut self) {
        if self.reported.is_some_and(|reported| reported.elapsed() < LINK_REPORT_INTERVAL) {
            return;
        }
        self.reported = Some(Instant::now());
        let mut reports = lock(&self.host.peers.reports);
        reports.clear();
        for ((_, _, core), token) in &self.tokens {
            let report = lock(&self.links[token].link).report();
            match reports.last_mut() {
                Some(lane_report) if *core > 0 => lane_report.add(&report),
                _ => reports.push(report),
            }
        }
    }
}

/// Asks what a name means on a thread of its own: it may take long, and meanwhile other nodes have to be heard.
pub(super) fn resolve_aside(host: Arc<Host>, token: usize, address: String) -> io::Result<()> {
    let resolver = std::thread::Builder::new().name("resolver".into());
    resolver
        .spawn(move || {
            let meaning = resolve(&address);
            host.peers.put(|waiting| waiting.resolved.push((token, address, meaning)));
        })
        .map(drop)
}

pub(super) fn hello(purpose: Purpose, own: Asker, version: u16) -> Hello {
    let voice = Voice::fresh(own.levels);
    Hello { purpose, cluster: 0, from: own.node, to: 0, group_count: 0, is_compressed: false, life: 0, version, voice }
}

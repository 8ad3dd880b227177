//! Client-side caches: which client has read which keys, and which must be told when they change (CLIENT TRACKING).
//!
//! Each core remembers the readers of the keys that live on it, whichever core they are connected to. When a key
//! changes, the core that holds it tells the cores of the readers, which tell the readers. Letters keep their order,
//! and a push comes behind the replies made before it: so a client reads an old value before the news that it is old,
//! never after.
//!
//! Broadcasting clients are not remembered by key: what has changed goes to every core that has such clients, which
//! gather it until the end of their turn.
//!
//! A change is answered when all who had to be told have the news in their output: see [`crate::invalidation_barrier`].
//!
//! In a cluster a client's own core remembers what it has read, before the request leaves for the leader, and hears
//! of every change that the replicas of its node apply. Such a replica may be behind the reply: then the client is told
//! once too often. It may also be ahead of it: then the client is told again behind the reply.
//!
//! Every core knows which cores have tracking clients at all. While there is none, nothing is noted of changes.

pub(crate) mod news;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use group::ids::{CoreId, SessionId};

use crate::tracking::news::{Asked, Change, News, Presence};

/// What one session wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracking {
    /// Where news goes instead of the session itself.
    pub redirect: Option<Redirect>,
    /// Which reads are remembered.
    pub mode: Mode,
    /// Its own changes are no news to it.
    pub skips_own: bool,
    /// CLIENT CACHING was said, for the next command.
    pub is_caching: bool,
    /// The session that news goes to is gone.
    pub is_broken: bool,
}

/// Another session to which news is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// Its core.
    pub core: CoreId,
    /// It.
    pub session: SessionId,
}

/// Which reads are remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All.
    All,
    /// Those behind CLIENT CACHING YES.
    OptIn,
    /// All but those behind CLIENT CACHING NO.
    OptOut,
    /// None: it is told of all keys that begin with one of these.
    Broadcast(BTreeSet<Vec<u8>>),
}

impl Tracking {
    /// True if the keys that the next command reads must be remembered.
    pub fn remembers(&self) -> bool {
        match self.mode {
            Mode::All => true,
            Mode::OptIn => self.is_caching,
            Mode::OptOut => !self.is_caching,
            Mode::Broadcast(_) => false,
        }
    }

    /// True if it is told of keys it has not read.
    pub fn broadcasts(&self) -> bool {
        matches!(self.mode, Mode::Broadcast(_))
    }
}

/// A session that has read a key.
type Reader = (CoreId, SessionId);

/// What a core must know of a session that tracks, besides what the session itself does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    broadcasts: bool,
    /// The core of the session that it has named.
    redirect: Option<CoreId>,
}

/// What one core knows of caches.
#[derive(Debug, Default)]
pub struct Tracker {
    /// Readers of keys that live here, and in a cluster what sessions of this core have read anywhere.
    readers: BTreeMap<Arc<[u8]>, BTreeSet<Reader>>,
    item_count: usize,
    /// Sessions of this core that track.
    sessions: BTreeMap<SessionId, Kind>,
    broadcasting_count: usize,
    /// By core.
    presence: Vec<Presence>,
    /// Keys that have changed and are of concern to broadcasting sessions of this core, with the session that changed
    /// them last.
    changed_here: BTreeMap<Arc<[u8]>, Option<Asked>>,
    /// Keys changed here in this turn, for cores that hear of every change.
    pub(crate) changed: Vec<Change>,
    /// The key that was forgotten last for lack of room.
    hand: Option<Arc<[u8]>>,
}

impl Tracker {
    /// What this core's own sessions are.
    pub fn own_presence(&self, is_clustered: bool) -> Presence {
        let tracks = !self.sessions.is_empty();
        Presence { tracks, broadcasts: self.broadcasting_count > 0, gathers: tracks && is_clustered }
    }

    /// Notes what another core's sessions are, or this one's. Answers what they were.
    pub fn set_presence(&mut self, core: CoreId, presence: Presence) -> Presence {
        let place = usize::from(core.0);
        if self.presence.len() <= place {
            self.presence.resize(place + 1, Presence::default());
        }
        let before = std::mem::replace(&mut self.presence[place], presence);
        if !self.is_wanted() {
            self.readers.clear();
            self.item_count = 0;
            self.changed.clear();
        }
        before
    }

    /// True if any client of the node tracks anything.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.presence.iter().any(|presence| presence.tracks)
    }

    /// Cores that must hear of every change.
    pub fn hearing_cores(&self) -> impl Iterator<Item = CoreId> {
        let cores = (0..).zip(&self.presence).filter(|(_, presence)| presence.broadcasts || presence.gathers);
        cores.map(|(core, _)| CoreId(core))
    }

    /// Notes that a session of this core tracks, or what it is no longer does.
    pub fn set_session(&mut self, session: SessionId, tracking: Option<&Tracking>) {
        let before = match tracking {
            Some(tracking) => {
                self.broadcasting_count += usize::from(tracking.broadcasts());
                let redirect = tracking.redirect.map(|redirect| redirect.core);
                self.sessions.insert(session, Kind { broadcasts: tracking.broadcasts(), redirect })
            }
            None => self.sessions.remove(&session),
        };
        self.broadcasting_count -= usize::from(before.is_some_and(|before| before.broadcasts));
    }

    /// What to tell the cores because clients of this one, `own`, have gone, or because it is in a cluster now. The
    /// code that lets clients track tells when some have come.
    pub fn presence_to_announce(&self, own: CoreId, is_clustered: bool) -> Option<Presence> {
        let known = self.presence.get(usize::from(own.0)).copied().unwrap_or_default();
        let present = self.own_presence(is_clustered);
        (known.tracks && present != known).then_some(present)
    }

    /// Other cores to which news for sessions of this one, `own`, goes.
    pub(crate) fn redirect_cores(&self, own: CoreId) -> BTreeSet<CoreId> {
        self.sessions.values().filter_map(|kind| kind.redirect).filter(|core| *core != own).collect()
    }

    /// Sessions of this core that track.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.sessions.keys().copied()
    }

    /// Remembers that a session has read a key.
    pub fn remember(&mut self, core: CoreId, session: SessionId, key: &[u8]) {
        let readers = match self.readers.get_mut(key) {
            Some(readers) => readers,
            None => self.readers.entry(key.into()).or_default(),
        };
        self.item_count += usize::from(readers.insert((core, session)));
    }

    /// Takes those to be told that a key has changed.
    pub fn take_readers(&mut self, key: &[u8]) -> Option<(Arc<[u8]>, BTreeSet<Reader>)> {
        let (key, readers) = self.readers.remove_entry(key)?;
        self.item_count -= readers.len();
        Some((key, readers))
    }

    /// Forgets all readers: everybody is told that everything has changed.
    pub fn forget_readers(&mut self) {
        self.readers.clear();
        self.item_count = 0;
    }

    /// A key to be forgotten because more than `count_max` are remembered: one after the other in their order, so that
    /// each comes up in time.
    pub fn surplus(&mut self, count_max: usize) -> Option<Arc<[u8]>> {
        if count_max == 0 || self.readers.len() <= count_max {
            return None;
        }
        let behind = match &self.hand {
            Some(hand) => (Bound::Excluded(Arc::clone(hand)), Bound::Unbounded),
            None => (Bound::Unbounded, Bound::Unbounded),
        };
        let next = self.readers.range(behind).next().or_else(|| self.readers.first_key_value());
        self.hand = next.map(|(key, _)| Arc::clone(key));
        self.hand.clone()
    }

    /// Notes a change of concern to broadcasting sessions of this core.
    pub fn note_changed(&mut self, key: Arc<[u8]>, by: Option<Asked>) {
        if self.broadcasting_count > 0 {
            self.changed_here.insert(key, by);
        }
    }

    /// What to tell broadcasting sessions of this core: for each prefix the keys that begin with it. News of a
    /// session's own change is by itself, with the ticket of the reply behind which it belongs.
    pub(crate) fn take_broadcasts<'s>(
        &mut self,
        mut tracking_of: impl FnMut(SessionId) -> Option<&'s Tracking>,
    ) -> Vec<(SessionId, News, Option<u64>)> {
        let mut broadcasts = Vec::new();
        let changed = std::mem::take(&mut self.changed_here);
        if changed.is_empty() {
            return broadcasts;
        }
        for (session, _) in self.sessions.iter().filter(|(_, kind)| kind.broadcasts) {
            let Some(tracking) = tracking_of(*session) else { continue };
            let Mode::Broadcast(prefixes) = &tracking.mode else { continue };
            for prefix in prefixes {
                let from = (Bound::Included(prefix.as_slice()), Bound::Unbounded);
                let matching = changed.range::<[u8], _>(from).take_while(|(key, _)| key.starts_with(prefix));
                let (mut keys, mut own, mut behind) = (Vec::new(), Vec::new(), None);
                for (key, by) in matching {
                    match by {
                        Some((serial, ticket)) if *serial == session.serial => {
                            own.push(Arc::clone(key));
                            behind = behind.max(Some(*ticket));
                        }
                        _ => keys.push(Arc::clone(key)),
                    }
                }
                if !keys.is_empty() {
                    broadcasts.push((*session, News::Keys(keys), None));
                }
                if !own.is_empty() && !tracking.skips_own {
                    broadcasts.push((*session, News::Keys(own), behind));
                }
            }
        }
        broadcasts
    }

    /// Keys remembered here, and readers of keys.
    pub fn counts(&self) -> (usize, usize) {
        (self.readers.len(), self.item_count)
    }

    /// Sessions of this core that track.
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }
}

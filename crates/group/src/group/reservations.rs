//! Keys that are kept for a client who has watched them and failed again and again: see `docs/decisions/0063`.
//!
//! While a key is reserved, changes by others wait as they wait for locked keys. Nothing depends on it but how soon an
//! EXEC succeeds: that looks at the versions of what it has watched, whatever was reserved. So a reservation may be
//! refused, ended early, and forgotten with the leader.
//!
//! ```text
//!   WATCH ── reserved: changes that came before are applied ── versions told ── bound ── EXEC, or the end of the bound
//!            └────────────────────── changes by others wait ──────────────────────────┘
//! ```

use std::collections::BTreeMap;

use message::GatewayId;
use message::entry;
use resp::Args;
use stdx::{Duration, Instant};

use super::Group;
use crate::defect::Defect;
use crate::ids::{Now, SessionId};
use crate::limits;
use crate::requests::{Lock, Origin, Request, RequestBody};

/// Who has something reserved: a session, by node and serial.
pub(super) type Reserver = (u64, u64);

/// What a group has reserved.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    keys: BTreeMap<Vec<u8>, Reserver>,
    by_reserver: BTreeMap<Reserver, Reservation>,
    /// Some have ended since those were last let in that wait.
    has_ended: bool,
    /// How many there have been.
    made_count: u64,
}

#[derive(Debug)]
struct Reservation {
    number: u64,
    keys: Vec<Vec<u8>>,
    /// The gateway of the session.
    gateway: Option<GatewayId>,
    /// When it ends by itself.
    until: Instant,
    /// The EXEC has come, and is in this batch.
    batch: Option<u64>,
}

impl Reservations {
    /// True if nothing is reserved: the usual case, which must cost nothing.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.by_reserver.is_empty()
    }

    /// True if somebody else has this key reserved.
    fn is_against(&self, key: &[u8], session: Reserver) -> bool {
        self.keys.get(key).is_some_and(|reserver| *reserver != session)
    }

    /// True if nobody has reserved this key, or a client of this gateway.
    fn is_for(&self, key: &[u8], gateway: GatewayId) -> bool {
        let is_of = |reserver| self.by_reserver.get(reserver).is_some_and(|it| it.gateway == Some(gateway));
        self.keys.get(key).is_none_or(is_of)
    }

    fn may_reserve(&self, session: Reserver, keys: &[(u16, Vec<u8>)]) -> bool {
        let own = self.by_reserver.get(&session).map_or(0, |reservation| reservation.keys.len());
        // Those who wait for the last one come first.
        !self.has_ended
            && self.by_reserver.len() < limits::RESERVATIONS_MAX
            && own + keys.len() <= limits::RESERVED_KEYS_MAX
            && !keys.iter().any(|(_, key)| self.is_against(key, session))
    }

    /// What a session has reserved already does not last longer for it.
    fn reserve(&mut self, origin: &Origin, keys: &[(u16, Vec<u8>)], until: Instant) {
        let session = reserver(origin);
        let number = self.made_count + 1;
        let reservation = self.by_reserver.entry(session).or_insert_with(|| Reservation {
            number,
            keys: Vec::new(),
            gateway: origin.gateway(),
            until,
            batch: None,
        });
        self.made_count = self.made_count.max(reservation.number);
        for (_, key) in keys {
            if self.keys.insert(key.clone(), session).is_none() {
                reservation.keys.push(key.clone());
            }
        }
    }

    fn end(&mut self, session: Reserver) -> bool {
        let Some(reservation) = self.by_reserver.remove(&session) else { return false };
        for key in &reservation.keys {
            self.keys.remove(key);
        }
        self.has_ended = true;
        true
    }

    fn end_where(&mut self, mut is_over: impl FnMut(&Reservation) -> bool) -> u64 {
        if self.by_reserver.is_empty() {
            return 0;
        }
        let over: Vec<_> =
            self.by_reserver.iter().filter(|(_, reservation)| is_over(reservation)).map(|(who, _)| *who).collect();
        over.iter().for_each(|who| _ = self.end(*who));
        over.len() as u64
    }

    /// Everybody who waits may try again.
    pub(super) fn end_all(&mut self) {
        self.end_where(|_| true);
    }

    /// When the next one ends by itself.
    fn next_end(&self) -> Option<Instant> {
        self.by_reserver.values().map(|reservation| reservation.until).min()
    }

    /// True, once, if some have ended.
    pub(super) fn take_ended(&mut self) -> bool {
        std::mem::take(&mut self.has_ended)
    }
}

fn reserver(origin: &Origin) -> Reserver {
    (origin.node.0, origin.session.serial)
}

impl Group {
    /// Numbers of the reservations in force, in the order in which this leader has made them.
    pub fn reservations(&self) -> impl Iterator<Item = u64> {
        self.leader.reservations.by_reserver.values().map(|reservation| reservation.number)
    }

    /// When the next reservation ends by itself.
    #[inline]
    pub fn next_reservation_end(&self) -> Option<Instant> {
        if self.leader.reservations.is_empty() || self.defect == Some(Defect::EndlessReservation) {
            return None;
        }
        self.leader.reservations.next_end()
    }

    /// True if another session has one of the keys reserved that a command changes.
    #[inline]
    pub fn is_reserved(&self, session: SessionId, command: &keyspace::DataCommand, args: Args<'_>) -> bool {
        !self.leader.reservations.is_empty() && self.is_reserved_against((self.node.0, session.serial), command, args)
    }

    /// The same for a script.
    #[inline]
    pub fn is_reserved_key(&self, session: SessionId, key: &[u8]) -> bool {
        !self.leader.reservations.is_empty() && self.leader.reservations.is_against(key, (self.node.0, session.serial))
    }

    fn is_reserved_against(&self, session: Reserver, command: &keyspace::DataCommand, args: Args<'_>) -> bool {
        if !matches!(command.body, keyspace::Body::Mutate(_)) {
            return false;
        }
        let mut is_reserved = false;
        command.for_each_key(args, |index, _| {
            is_reserved |= self.leader.reservations.is_against(args.at(index), session);
        });
        is_reserved
    }

    /// True if a request changes a key that another session has reserved. Who only reads never waits.
    pub(super) fn touches_reserved(&mut self, request: &Request) -> bool {
        let session = reserver(&request.origin);
        let mut spans = std::mem::take(&mut self.spans);
        let mut is_reserved = false;
        let mut check = |args: Args<'_>| {
            let command = keyspace::resolve(args).expect("a request was checked by its gateway");
            is_reserved |= self.is_reserved_against(session, command, args);
        };
        match &request.body {
            RequestBody::Write(words) => check(entry::Reader::new(words).words(&mut spans).1),
            RequestBody::Exec(packed) => {
                entry::Reader::new(packed)
                    .exec(request.protocol, &mut spans)
                    .for_each(&mut spans, |_, args| check(args));
            }
            RequestBody::Script(script) if !script.invocation.is_read_only => {
                let (_, args) = entry::Reader::new(&script.words).words(&mut spans);
                let mut keys = script.invocation.keys(args);
                is_reserved = keys.any(|key| self.leader.reservations.is_against(key, session));
            }
            _ => {}
        }
        self.spans = spans;
        is_reserved
    }

    /// True if a transaction over groups must wait since another client has one of its keys reserved. What somebody
    /// watches who is served where the key was reserved for is taken for that client's own EXEC.
    pub(super) fn waits_for_reserved(&self, lock: &Lock) -> bool {
        if self.leader.reservations.is_empty() {
            return false;
        }
        let reservations = &self.leader.reservations;
        let is_watched = |key: &[u8]| lock.watches.iter().any(|watch| watch.key == key);
        lock.keys.iter().any(|(_, key)| {
            reservations.keys.contains_key(key)
                && !(is_watched(key) && reservations.is_for(key, lock.transaction.gateway))
        })
    }

    /// A transaction over groups has got its locks. If its client had keys reserved, the locks keep them from now on.
    pub(super) fn end_reservations_of(&mut self, lock: &Lock) {
        if self.leader.reservations.is_empty() {
            return;
        }
        let reservations = &mut self.leader.reservations;
        for watch in &lock.watches {
            let reserver = reservations.keys.get(&watch.key).copied();
            if let Some(reserver) = reserver.filter(|_| reservations.is_for(&watch.key, lock.transaction.gateway)) {
                reservations.end(reserver);
            }
        }
    }

    /// Reserves keys for a session, if nothing stands against it. Its next answer tells their versions.
    pub(super) fn reserve(&mut self, origin: &Origin, keys: &[(u16, Vec<u8>)], now: Instant) {
        if self.leader.reservations.may_reserve(reserver(origin), keys) {
            self.leader.reservations.reserve(origin, keys, now + limits::RESERVATION_BEGIN_MAX);
            self.counts.reserved += 1;
        }
    }

    /// The session is about to be told the versions of what it has reserved: from now on its time runs.
    pub(super) fn bound_reservation(&mut self, origin: &Origin, bound: Duration, now: Instant) {
        if let Some(reservation) = self.leader.reservations.by_reserver.get_mut(&reserver(origin)) {
            reservation.until = reservation.until.min(now + bound.min(limits::RESERVATION_MAX));
        }
    }

    /// The session does not need what it has reserved any more.
    pub fn end_reservation(&mut self, origin: &Origin) {
        if !self.leader.reservations.is_empty() {
            self.leader.reservations.end(reserver(origin));
        }
    }

    /// The session's EXEC is in the present batch.
    pub(super) fn note_exec_of_reserver(&mut self, origin: &Origin) {
        if self.leader.reservations.is_empty() {
            return;
        }
        if let Some(reservation) = self.leader.reservations.by_reserver.get_mut(&reserver(origin)) {
            reservation.batch = Some(self.batch.number);
        }
    }

    /// A batch has been applied. True if what was reserved until then need not be any more.
    pub(super) fn end_reservations_of_batch(&mut self, number: u64) -> bool {
        let is_done = |reservation: &Reservation| reservation.batch.is_some_and(|batch| batch <= number);
        self.leader.reservations.end_where(is_done) > 0 && self.leader.reservations.take_ended()
    }

    /// Ends what has lasted for as long as it may.
    pub(super) fn look_after_reservations(&mut self, now: Now) {
        if self.leader.reservations.is_empty() || self.defect == Some(Defect::EndlessReservation) {
            return;
        }
        let mut lapsed_count = 0;
        self.leader.reservations.end_where(|reservation| {
            let is_over = reservation.until <= now.instant;
            lapsed_count += u64::from(is_over && reservation.batch.is_none());
            is_over
        });
        self.counts.reservations_lapsed += lapsed_count;
    }
}

//! A gateway's side of exactly once: the requests of one core to the groups of a cluster.
//!
//! ```text
//!   outstanding   5̶  6  7̶  8  9 │ 10 11       a stream: the requests to one group, in order
//!                    ▲          │             struck out: answered
//!                  floor      sent            behind `sent`: not sent yet to the present leader
//! ```
//!
//! Requests to a group are numbered. They are sent in order to the leader, each naming the one sent before it, so
//! that the leader notices if one was lost. When the leader changes, a link is cut or nothing is heard, all that has no
//! answer is sent again, in order; the group finds in its reply cache what it has carried out before. So a change of
//! leader is a pause for a client, and not an error.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use group::ids::{GroupId, NodeId, SessionId};
use group::requests::{Claim, Request, RequestBody, Route, ScriptRequest, Step};
use message::TransactionId;
use resp::Protocol;
use stdx::{Duration, Instant};

use crate::limits;
use crate::quorum::Answerable;

/// What is done with an answer.
#[derive(Debug)]
pub enum Purpose {
    /// It is a client's reply.
    Client {
        /// The session that gets it.
        session: SessionId,
        /// Which of the session's replies.
        ticket: u64,
    },
    /// It is the outcome of a client's script.
    Script {
        /// The session that gets it.
        session: SessionId,
        /// Which of the session's replies.
        ticket: u64,
        /// The session's protocol.
        protocol: Protocol,
        /// What to run if the group declines.
        script: Arc<ScriptRequest>,
    },
    /// It is the outcome of a change of libraries.
    Libraries {
        /// The session that gets it.
        session: SessionId,
        /// Which of the session's replies.
        ticket: u64,
    },
    /// It says how far the leader is, and how many others are.
    AppliedPosition {
        /// The question that waits for this node to be there, too.
        id: u64,
    },
    /// It says which version of the cluster's parameters has a change.
    Parameters {
        /// The question that wants it.
        id: u64,
    },
    /// It says that a leader obeys that.
    Obeyed {
        /// The same question.
        id: u64,
    },
    /// It takes a transaction over groups further.
    Transaction {
        /// Which.
        id: TransactionId,
        /// What was asked.
        step: Step,
    },
    /// It takes a move of slots further.
    Move {
        /// The group that drives it.
        by: GroupId,
        /// Which.
        id: TransactionId,
        /// What was asked.
        step: Step,
    },
    /// It is for a session that waits for other nodes to hold its writes.
    CopyCount {
        /// Which wait.
        id: u64,
    },
    /// It is for replies that wait until every voter of a group has what they say on disk.
    Lacking,
    /// It says that a reservation has ended, which nobody wants to know.
    Reservation,
    /// It is part of an answer from all groups.
    Question {
        /// Which.
        id: u64,
        /// Which part of it.
        part: usize,
        /// Places of the keys asked about.
        places: Vec<usize>,
    },
}

impl Purpose {
    /// The client that waits for it, and which of its replies it is.
    pub(crate) fn client(&self) -> Option<(SessionId, u64)> {
        match self {
            Self::Client { session, ticket } | Self::Script { session, ticket, .. } => Some((*session, *ticket)),
            _ => None,
        }
    }
}

/// A request that has been given up.
#[derive(Debug)]
pub struct Expired {
    /// The group.
    pub group: GroupId,
    /// What it was for.
    pub purpose: Purpose,
    /// True if it may have been carried out.
    pub is_in_doubt: bool,
    /// The request.
    pub request: Request,
}

#[derive(Debug)]
struct Outstanding {
    number: u64,
    /// `None` once it has been answered.
    request: Option<(Request, Purpose)>,
    byte_count: usize,
    /// What it takes of the window.
    weight: usize,
    submitted: Instant,
    /// It may change data.
    is_change: bool,
    /// Sent to the present leader, and counted.
    is_out: bool,
    /// Sent although enough was under way.
    is_beyond: bool,
    was_sent: bool,
    /// The node that was asked last has not taken it.
    is_sent_back: bool,
}

impl Outstanding {
    /// True if it takes a transaction further that holds locks.
    fn is_step(&self) -> bool {
        self.request.as_ref().is_some_and(|(request, _)| {
            matches!(
                request.body,
                RequestBody::Prepare { .. }
                    | RequestBody::Resolve { .. }
                    | RequestBody::Renew { .. }
                    | RequestBody::Cut { .. }
            )
        })
    }
}

/// The requests to one group.
#[derive(Debug)]
struct Stream {
    route: Route,
    next: u64,
    outstanding: VecDeque<Outstanding>,
    /// Place in `outstanding` of the first that has not been sent to the present leader.
    sent: usize,
    /// Number of the last one sent to it; 0 at the start of a run.
    previous: u64,
    /// The leaders that have ever been asked, and the number of the last request sent there. Requests are sent in
    /// order, so whatever has a smaller number and no answer has been sent there, too.
    asked: Vec<(NodeId, u64)>,
    /// Bytes sent and not answered, and what they take of the window.
    out_bytes: usize,
    out_weight: usize,
    /// The same of all that have no answer.
    byte_count: usize,
    weight: usize,
    /// Not before this.
    retry_at: Instant,
    /// When something was last heard of those that change nothing and of those that may, or when there was nothing to
    /// hear. A leader with a full disk may always answer the one kind, and never the other.
    heard: [Instant; 2],
    /// How many of each kind have no answer.
    counts: [usize; 2],
    resent: Instant,
}

/// All streams of a core.
#[derive(Debug)]
pub struct Relay {
    boot: u64,
    /// Bytes of requests to a group beyond which no more are taken, and beyond which no more are under way.
    window_bytes_max: usize,
    stream_bytes_max: usize,
    streams: Vec<Stream>,
    /// Groups with streams that are not empty. A cluster has many groups, and few of them are asked by one core at a
    /// time: a turn looks at no others.
    active: BTreeSet<u32>,
}

impl Relay {
    /// Streams to so many groups. `boot` tells lives of this core apart.
    pub fn new(boot: u64, group_count: u32) -> Self {
        let mut this = Self {
            boot,
            window_bytes_max: group::limits::WINDOW_BYTES_MAX,
            stream_bytes_max: group::limits::STREAM_BYTES_MAX,
            streams: Vec::new(),
            active: BTreeSet::new(),
        };
        this.grow(group_count);
        this
    }

    /// There are at least so many groups.
    pub fn grow(&mut self, group_count: u32) {
        let stream = || Stream {
            route: Route::default(),
            next: 1,
            outstanding: VecDeque::new(),
            sent: 0,
            previous: 0,
            asked: Vec::new(),
            out_bytes: 0,
            out_weight: 0,
            byte_count: 0,
            weight: 0,
            retry_at: Instant::ZERO,
            heard: [Instant::ZERO; 2],
            counts: [0; 2],
            resent: Instant::ZERO,
        };
        let missing = (group_count as usize).saturating_sub(self.streams.len());
        self.streams.extend(std::iter::repeat_with(stream).take(missing));
    }

    /// Takes and sends fewer bytes at a time than usual.
    pub(crate) fn narrow(&mut self, window_bytes_max: usize, stream_bytes_max: usize) {
        (self.window_bytes_max, self.stream_bytes_max) = (window_bytes_max, stream_bytes_max);
    }

    /// The most bytes of windows that are taken by what is under way to one group, beside the last request sent and
    /// beside those that were sent beyond the bound, since a step of a transaction stands behind them.
    pub(crate) fn under_way_max(&self) -> usize {
        let beside_last = |stream: &Stream| {
            let sent =
                stream.outstanding.iter().rev().filter(|outstanding| outstanding.is_out && !outstanding.is_beyond);
            sent.skip(1).map(|outstanding| outstanding.weight).sum()
        };
        self.active().map(|(_, stream)| beside_last(stream)).max().unwrap_or(0)
    }

    /// The streams that are not empty, in the order of their groups.
    fn active(&self) -> impl Iterator<Item = (GroupId, &Stream)> {
        self.active.iter().map(|group| (GroupId(*group), &self.streams[*group as usize]))
    }

    /// Groups that have been asked for something and have not answered, as far as that has been looked at.
    pub(crate) fn active_count(&self) -> usize {
        self.active.len()
    }

    /// Takes a request; it leaves with the next [`Relay::flush`]. Answers its number.
    pub fn submit(&mut self, mut request: Request, purpose: Purpose, _: Answerable, now: Instant) -> u64 {
        let group = request.group;
        let stream = &mut self.streams[group.0 as usize];
        if stream.outstanding.is_empty() {
            self.active.insert(group.0);
        }
        let number = stream.next;
        stream.next += 1;
        request.origin.claim = Some(Claim { boot: self.boot, group, number });
        let byte_count = request.body.byte_count();
        // Clients are not to wait until a large value of somebody's transaction has gone all its way.
        let weight = match &purpose {
            Purpose::Transaction { .. } => byte_count.min(group::limits::SLICED_BYTES_MIN),
            _ => byte_count,
        };
        stream.byte_count += byte_count;
        stream.weight += weight;
        let is_change = matches!(
            request.body,
            RequestBody::Write(_)
                | RequestBody::Exec(_)
                | RequestBody::Script(_)
                | RequestBody::Libraries(_)
                | RequestBody::Configure(_)
        );
        if stream.counts[usize::from(is_change)] == 0 {
            stream.heard[usize::from(is_change)] = now;
        }
        stream.counts[usize::from(is_change)] += 1;
        stream.outstanding.push_back(Outstanding {
            number,
            is_change,
            request: Some((request, purpose)),
            byte_count,
            weight,
            submitted: now,
            is_out: false,
            is_beyond: false,
            was_sent: false,
            is_sent_back: false,
        });
        number
    }

    /// Gives a read its place in the log, so that no change that comes behind it is seen by it, whatever becomes of
    /// leaders. It must not have been sent.
    pub fn give_place_in_log(&mut self, group: GroupId, number: u64) {
        let Some(outstanding) = self.streams[group.0 as usize].find(number) else { return };
        let Some((request, _)) = &mut outstanding.request else { return };
        if let RequestBody::Read(words) | RequestBody::ReadAtOnce(words) = &mut request.body {
            request.body = RequestBody::Write(std::mem::take(words));
        }
    }

    /// True if a request has been sent and has no answer yet.
    pub fn is_under_way(&mut self, group: GroupId, number: u64) -> bool {
        let outstanding = self.streams[group.0 as usize].find(number);
        outstanding.is_some_and(|outstanding| outstanding.was_sent && outstanding.request.is_some())
    }

    /// True if a request has no answer yet.
    pub fn is_outstanding(&mut self, group: GroupId, number: u64) -> bool {
        self.streams[group.0 as usize].find(number).is_some_and(|outstanding| outstanding.request.is_some())
    }

    /// Sends what may be sent.
    pub fn flush(&mut self, now: Instant, mut send: impl FnMut(NodeId, Request)) {
        for group in &self.active {
            let stream = &mut self.streams[*group as usize];
            let Some(leader) = stream.route.leader else { continue };
            if stream.retry_at <= now {
                stream.flush(leader, self.stream_bytes_max, &mut send);
            }
        }
    }

    /// Where a group is led now.
    pub fn set_route(&mut self, group: GroupId, route: Route, now: Instant) {
        let stream = &mut self.streams[group.0 as usize];
        if stream.route != route {
            stream.route = route;
            stream.rewind(now);
        }
    }

    /// The link to a node has come up: what was under way to it may have been lost.
    pub fn reachable(&mut self, node: NodeId, now: Instant) {
        for stream in &mut self.streams {
            if stream.route.leader == Some(node) {
                stream.rewind(now);
            }
        }
    }

    /// The client that a read is for which has no answer yet.
    pub fn reader(&mut self, claim: Claim) -> Option<SessionId> {
        if claim.boot != self.boot {
            return None;
        }
        let outstanding = self.streams.get_mut(claim.group.0 as usize)?.find(claim.number)?;
        match &outstanding.request {
            Some((_, Purpose::Client { session, .. })) if !outstanding.is_change => Some(*session),
            _ => None,
        }
    }

    /// True if a node has been sent this request: it may answer it, and nobody else.
    pub(crate) fn has_asked(&self, node: NodeId, claim: Claim) -> bool {
        let stream = self.streams.get(claim.group.0 as usize).filter(|_| claim.boot == self.boot);
        let is_asked = |(asked, last): &(NodeId, u64)| *asked == node && claim.number <= *last;
        stream.is_some_and(|stream| stream.asked.iter().any(is_asked))
    }

    /// True if the claim is of this life of the core.
    pub(crate) fn is_own(&self, claim: Claim) -> bool {
        claim.boot == self.boot
    }

    /// The requests to a group that have no answer.
    pub(crate) fn claims_of(&self, group: GroupId) -> Vec<Claim> {
        let Some(stream) = self.streams.get(group.0 as usize) else { return Vec::new() };
        let open = stream.outstanding.iter().filter(|outstanding| outstanding.request.is_some());
        open.map(|outstanding| Claim { boot: self.boot, group, number: outstanding.number }).collect()
    }

    /// True if a request without an answer may have been carried out, and have changed something.
    pub(crate) fn may_have_changed(&mut self, claim: Claim) -> bool {
        let stream = self.streams.get_mut(claim.group.0 as usize);
        let outstanding = stream.and_then(|stream| stream.find(claim.number));
        outstanding.is_some_and(|outstanding| outstanding.was_sent && outstanding.is_change)
    }

    /// What a request without an answer is for.
    pub(crate) fn purpose(&self, claim: Claim) -> Option<&Purpose> {
        if claim.boot != self.boot {
            return None;
        }
        let outstanding = &self.streams.get(claim.group.0 as usize)?.outstanding;
        let place = outstanding.binary_search_by_key(&claim.number, |outstanding| outstanding.number).ok()?;
        outstanding[place].request.as_ref().map(|(_, purpose)| purpose)
    }

    /// True if this is the first answer to a request that has been logged and may have changed keys. What was refused
    /// may not have been logged.
    pub(crate) fn is_of_change(&mut self, claim: Claim, answer: &[u8]) -> bool {
        let stream = self.streams.get_mut(claim.group.0 as usize).filter(|_| claim.boot == self.boot);
        let outstanding = stream.and_then(|stream| stream.find(claim.number));
        outstanding.is_some_and(|outstanding| match &outstanding.request {
            Some((_, Purpose::Client { .. })) => outstanding.is_change && !answer.starts_with(b"-"),
            Some((_, Purpose::Script { .. })) => true,
            Some((request, Purpose::Transaction { .. })) => match &request.body {
                RequestBody::Prepare { participants, .. } => !participants.is_empty() && answer == [1],
                _ => false,
            },
            _ => false,
        })
    }

    /// The group that was asked does not hold the keys any more: what was asked of it, and what for.
    pub fn take_back(&mut self, claim: Claim, now: Instant) -> Option<(Request, Purpose)> {
        let stream = self.streams.get_mut(claim.group.0 as usize)?;
        stream.hear(claim.number, now);
        stream.take(claim.number)
    }

    /// A request of a client has come back from its group: what its session has sent there since must come back, too.
    pub(crate) fn let_return(&mut self, claim: Claim, session: SessionId) {
        let Some(stream) = self.streams.get_mut(claim.group.0 as usize) else { return };
        let behind = stream.outstanding.partition_point(|outstanding| outstanding.number <= claim.number);
        for outstanding in stream.outstanding.range_mut(behind..) {
            if let Some((request, Purpose::Client { session: other, .. })) = &mut outstanding.request
                && *other == session
                && !request.is_anew
            {
                request.must_return = true;
            }
        }
    }

    /// An answer has come: what was asked and what it is for, unless it is known already. If the request was carried
    /// out, others of its kind may be, too; a leader that can log nothing refuses one at once, and the others never.
    pub fn answered(&mut self, claim: Claim, is_refusal: bool, now: Instant) -> Option<(Request, Purpose)> {
        if claim.boot != self.boot {
            return None;
        }
        let stream = self.streams.get_mut(claim.group.0 as usize)?;
        if !is_refusal {
            stream.hear(claim.number, now);
        }
        stream.take(claim.number)
    }

    /// A node that was asked does not serve the group, or misses a request before this one.
    pub fn refused(&mut self, claim: Claim, now: Instant) {
        if claim.boot != self.boot {
            return;
        }
        let Some(stream) = self.streams.get_mut(claim.group.0 as usize) else { return };
        // One refusal is heard for each request under way. What has been answered meanwhile is not missed.
        let is_missed = match stream.find(claim.number) {
            Some(outstanding) if outstanding.request.is_some() => {
                outstanding.is_sent_back = true;
                true
            }
            _ => false,
        };
        if is_missed && stream.retry_at <= now && stream.sent > 0 {
            stream.rewind(now);
            stream.retry_at = now + limits::REFUSED_REST;
        }
    }

    /// A leader says that it has the requests.
    pub fn alive(&mut self, claim: Claim, now: Instant) {
        if claim.boot == self.boot
            && let Some(stream) = self.streams.get_mut(claim.group.0 as usize)
        {
            stream.heard = [now; 2];
        }
    }

    /// Time has passed: sends again where nothing was heard, and gives up what nobody answers. What a transaction has
    /// begun to write is never given up here.
    pub fn pass_time(&mut self, now: Instant) -> Vec<Expired> {
        let mut expired = Vec::new();
        self.active.retain(|group| !self.streams[*group as usize].outstanding.is_empty());
        for group in &self.active {
            let stream = &mut self.streams[*group as usize];
            let more = group::limits::patience_for(stream.out_bytes);
            let resend_after = limits::RESEND_AFTER + more;
            for (kind, is_change) in [false, true].into_iter().enumerate() {
                if stream.counts[kind] == 0 {
                    continue;
                }
                let silence = now.since(stream.heard[kind]);
                if stream.sent > 0 && silence >= resend_after && now.since(stream.resent) >= resend_after {
                    stream.rewind(now);
                }
                let is_silent = silence >= limits::HEARD_LASTS + more;
                stream.expire(GroupId(*group), (is_change, is_silent, more), now, &mut expired);
            }
        }
        expired
    }

    /// Requests of a session's own that have no answer yet.
    pub fn requests_of(&self, session: SessionId) -> impl Iterator<Item = &Request> {
        let outstanding = self.active().flat_map(|(_, stream)| &stream.outstanding);
        outstanding.filter_map(move |outstanding| match &outstanding.request {
            Some((request, Purpose::Client { session: other, .. })) if *other == session => Some(request),
            _ => None,
        })
    }

    /// Requests that have no answer yet.
    pub fn unanswered_count(&self) -> usize {
        let outstanding = self.active().flat_map(|(_, stream)| &stream.outstanding);
        outstanding.filter(|outstanding| outstanding.request.is_some()).count()
    }

    /// True if no more should be asked of a group for now.
    pub fn is_full(&self, group: GroupId) -> bool {
        self.streams[group.0 as usize].is_full(self.window_bytes_max)
    }

    /// True if one of the groups is full.
    pub fn is_any_full(&self) -> bool {
        self.active().any(|(_, stream)| stream.is_full(self.window_bytes_max))
    }

    /// The earliest instant at which there may be something to do.
    pub fn wake_at(&self, now: Instant) -> Option<Instant> {
        self.active()
            .filter(|(_, stream)| {
                stream.route.leader.is_some() && !stream.outstanding.is_empty() && stream.retry_at > now
            })
            .map(|(_, stream)| stream.retry_at)
            .min()
    }
}

impl Stream {
    /// Large values of transactions take little of the window, but not all of the memory.
    fn is_full(&self, window_bytes_max: usize) -> bool {
        self.weight > window_bytes_max || self.byte_count > group::limits::EFFECTS_BYTES_MAX
    }

    fn floor(&self) -> u64 {
        self.outstanding.front().map_or(self.next, |front| front.number)
    }

    fn flush(&mut self, leader: NodeId, bytes_max: usize, send: &mut impl FnMut(NodeId, Request)) {
        let floor = self.floor();
        // Requests under way may wait for locks. What ends those locks must not wait behind the requests.
        let steps_end = if self.weight < bytes_max {
            0
        } else {
            self.outstanding.iter().rposition(Outstanding::is_step).map_or(0, |place| place + 1)
        };
        while (self.out_weight < bytes_max || self.sent < steps_end)
            && let Some(next) = self.outstanding.get_mut(self.sent)
        {
            self.sent += 1;
            let Some((request, _)) = &next.request else { continue };
            let mut request = request.clone();
            if next.was_sent
                && let RequestBody::ReadAtOnce(words) = request.body
            {
                // Those sent with it may wait for what they must see: it must not overtake them now.
                request.body = RequestBody::Read(words);
            }
            request.floor = floor;
            request.previous = self.previous;
            self.previous = next.number;
            next.is_out = true;
            next.is_beyond = self.out_weight >= bytes_max;
            next.was_sent = true;
            next.is_sent_back = false;
            self.out_bytes += next.byte_count;
            self.out_weight += next.weight;
            send(leader, request);
        }
        if self.previous > 0 {
            match self.asked.iter_mut().find(|(asked, _)| *asked == leader) {
                Some((_, last)) => *last = self.previous.max(*last),
                None => self.asked.push((leader, self.previous)),
            }
        }
    }

    /// All that has no answer must be sent from the beginning.
    fn rewind(&mut self, now: Instant) {
        self.sent = 0;
        self.previous = 0;
        self.out_bytes = 0;
        self.out_weight = 0;
        self.resent = now;
        self.retry_at = now;
        for outstanding in &mut self.outstanding {
            outstanding.is_out = false;
        }
    }

    fn find(&mut self, number: u64) -> Option<&mut Outstanding> {
        let place = self.outstanding.binary_search_by_key(&number, |outstanding| outstanding.number).ok()?;
        Some(&mut self.outstanding[place])
    }

    /// Something has been heard of a request that has no answer yet.
    fn hear(&mut self, number: u64, now: Instant) {
        match self.find(number) {
            Some(outstanding) if outstanding.request.is_some() => {
                let kind = usize::from(outstanding.is_change);
                self.heard[kind] = now;
            }
            _ => {}
        }
    }

    fn take(&mut self, number: u64) -> Option<(Request, Purpose)> {
        let outstanding = self.find(number)?;
        let (byte_count, weight) = (outstanding.byte_count, outstanding.weight);
        let (was_out, is_change) = (outstanding.is_out, outstanding.is_change);
        let taken = outstanding.request.take();
        outstanding.is_out = outstanding.is_out && taken.is_none();
        if taken.is_some() {
            self.counts[usize::from(is_change)] -= 1;
            self.byte_count -= byte_count;
            self.weight -= weight;
            self.out_bytes -= if was_out { byte_count } else { 0 };
            self.out_weight -= if was_out { weight } else { 0 };
        }
        while self.outstanding.front().is_some_and(|front| front.request.is_none()) {
            self.outstanding.pop_front();
            self.sent = self.sent.saturating_sub(1);
        }
        taken
    }

    /// Gives up what has waited for too long (`more` longer than usual, for what is under way), if nothing has been
    /// heard of its kind (`is_silent`), or it was sent back.
    fn expire(
        &mut self,
        group: GroupId,
        (is_change, is_silent, more): (bool, bool, Duration),
        now: Instant,
        expired: &mut Vec<Expired>,
    ) {
        let is_overdue = |outstanding: &&Outstanding| {
            outstanding.is_change == is_change
                && (is_silent || outstanding.is_sent_back)
                && now.since(outstanding.submitted)
                    >= limits::REQUEST_PATIENCE + more.max(group::limits::patience_for(outstanding.byte_count))
                && outstanding.request.as_ref().is_some_and(|(request, _)| {
                    !matches!(
                        request.body,
                        RequestBody::Prepare { .. } | RequestBody::Resolve { .. } | RequestBody::Cut { .. }
                    )
                })
        };
        let overdue: Vec<(u64, bool)> = self
            .outstanding
            .iter()
            .filter(is_overdue)
            .map(|outstanding| (outstanding.number, outstanding.was_sent && outstanding.is_change))
            .collect();
        for (number, is_in_doubt) in overdue {
            let (request, purpose) = self.take(number).expect("just seen");
            expired.push(Expired { group, purpose, is_in_doubt, request });
        }
    }
}

#[cfg(test)]
mod tests {
    use group::ids::CoreId;
    use group::locks::FencingToken;
    use group::requests::{Origin, Resolution};
    use message::GatewayId;

    use super::*;
    use crate::entry::Effect;

    const SESSION: SessionId = SessionId { serial: 1, index: 0 };

    fn request(body: RequestBody) -> Request {
        let (node, core) = (NodeId(1), CoreId(0));
        let origin = Origin::new(node, core, SESSION, 0);
        Request::new(origin, GroupId(0), Protocol::Resp2, body)
    }

    fn submit(relay: &mut Relay, body: RequestBody) -> u64 {
        let purpose = Purpose::Client { session: SESSION, ticket: 0 };
        relay.submit(request(body), purpose, Answerable::UNDER_WAY, Instant::ZERO)
    }

    fn flush(relay: &mut Relay) -> usize {
        let mut sent = 0;
        relay.flush(Instant::ZERO, |_, _| sent += 1);
        sent
    }

    #[test]
    fn the_end_of_a_transaction_does_not_wait_behind_those_who_wait_for_it() {
        let mut relay = Relay::new(1, 1);
        relay.set_route(GroupId(0), Route { leader: Some(NodeId(2)), term: 1, is_here: true }, Instant::ZERO);
        let value = || RequestBody::Write(vec![0; group::limits::STREAM_BYTES_MAX]);
        submit(&mut relay, value());
        submit(&mut relay, value());
        assert_eq!(flush(&mut relay), 1, "more than enough is under way");
        let gateway = GatewayId { node: 1, boot: 1, core: CoreId(0) };
        let transaction = TransactionId { gateway, number: 1 };
        let body = RequestBody::Resolve { transaction, resolution: Resolution::Release, low_water: 1 };
        submit(&mut relay, body);
        submit(&mut relay, value());
        assert_eq!(flush(&mut relay), 2, "what stands before it, and the end, but nothing behind");
        assert_eq!(relay.under_way_max(), 0);
        assert_eq!(flush(&mut relay), 0);
    }

    #[test]
    fn a_turn_looks_only_at_groups_that_are_asked() {
        let mut relay = Relay::new(1, 1_000);
        let route = |node| Route { leader: Some(NodeId(node)), term: 1, is_here: true };
        (0..1_000).map(GroupId).for_each(|group| relay.set_route(group, route(2), Instant::ZERO));
        assert_eq!(relay.active().count(), 0);
        let (node, core) = (NodeId(1), CoreId(0));
        let ask = |relay: &mut Relay, group| {
            let origin = Origin::new(node, core, SESSION, 0);
            let request = Request::new(origin, GroupId(group), Protocol::Resp2, RequestBody::Write(vec![0]));
            let purpose = Purpose::Client { session: SESSION, ticket: 0 };
            relay.submit(request, purpose, Answerable::UNDER_WAY, Instant::ZERO)
        };
        let numbers = [ask(&mut relay, 700), ask(&mut relay, 3), ask(&mut relay, 700)];
        assert_eq!(relay.active().map(|(group, _)| group.0).collect::<Vec<_>>(), [3, 700]);
        let mut sent = Vec::new();
        relay.flush(Instant::ZERO, |_, request| sent.push(request.group.0));
        assert_eq!(sent, [3, 700, 700], "in the order of groups");
        for (group, number) in [(700, numbers[0]), (3, numbers[1])] {
            let claim = Claim { boot: 1, group: GroupId(group), number };
            assert!(relay.answered(claim, false, Instant::ZERO).is_some());
        }
        assert!(relay.pass_time(Instant::ZERO).is_empty());
        assert_eq!(relay.active().map(|(group, _)| group.0).collect::<Vec<_>>(), [700], "one is still asked");
        ask(&mut relay, 3);
        assert_eq!((relay.active().count(), relay.unanswered_count()), (2, 2));
    }

    #[test]
    fn only_who_was_asked_may_answer() {
        let mut relay = Relay::new(1, 1);
        let claim = |boot, number| Claim { boot, group: GroupId(0), number };
        let route = |node, term| Route { leader: Some(NodeId(node)), term, is_here: true };
        let first = submit(&mut relay, RequestBody::Write(vec![0]));
        assert!(!relay.has_asked(NodeId(2), claim(1, first)), "it has not left yet");
        relay.set_route(GroupId(0), route(2, 1), Instant::ZERO);
        flush(&mut relay);
        assert!(relay.has_asked(NodeId(2), claim(1, first)));
        assert!(!relay.has_asked(NodeId(3), claim(1, first)), "that one was not asked");
        assert!(!relay.has_asked(NodeId(2), claim(2, first)), "another life of the core");
        let second = submit(&mut relay, RequestBody::Write(vec![0]));
        relay.set_route(GroupId(0), route(3, 2), Instant::ZERO);
        flush(&mut relay);
        for number in [first, second] {
            assert!(relay.has_asked(NodeId(3), claim(1, number)), "{number} was sent again");
        }
        // An answer of the first leader may still be under way; it has never heard of the second request.
        assert!(relay.has_asked(NodeId(2), claim(1, first)) && !relay.has_asked(NodeId(2), claim(1, second)));
    }

    #[test]
    fn a_large_value_of_a_transaction_takes_little_of_the_window() {
        let mut relay = Relay::new(1, 1);
        relay.set_route(GroupId(0), Route { leader: Some(NodeId(2)), term: 1, is_here: true }, Instant::ZERO);
        let gateway = GatewayId { node: 1, boot: 1, core: CoreId(0) };
        let transaction = TransactionId { gateway, number: 1 };
        let exported = Some(vec![0; group::limits::WINDOW_BYTES_MAX + 1]);
        let effects = vec![Effect::Key { database: 0, key: b"large".to_vec(), exported }];
        let body = RequestBody::Prepare { transaction, token: FencingToken::default(), participants: vec![0], effects };
        let purpose = Purpose::Transaction { id: transaction, step: Step::Prepare };
        relay.submit(request(body), purpose, Answerable::UNDER_WAY, Instant::ZERO);
        assert!(!relay.is_full(GroupId(0)));
        submit(&mut relay, RequestBody::Write(vec![0; group::limits::SLICED_BYTES_MIN]));
        submit(&mut relay, RequestBody::Write(vec![0; group::limits::WINDOW_BYTES_MAX]));
        assert_eq!(flush(&mut relay), 3);
        assert!(relay.is_full(GroupId(0)));
    }

    #[test]
    fn answers_to_reads_keep_no_write_waiting_and_answers_to_writes_no_read() {
        for (waiting, answered) in [
            (RequestBody::Write(vec![0]), RequestBody::ReadAtOnce(vec![0])),
            (RequestBody::Read(vec![0]), RequestBody::Write(vec![0])),
        ] {
            let mut relay = Relay::new(1, 1);
            relay.set_route(GroupId(0), Route { leader: Some(NodeId(2)), term: 1, is_here: true }, Instant::ZERO);
            let number = submit(&mut relay, waiting.clone());
            let mut expired = Vec::new();
            let mut waited_ms = 0;
            while expired.is_empty() && waited_ms < 20_000 {
                waited_ms += 100;
                let now = Instant::ZERO + Duration::from_millis(waited_ms);
                let purpose = Purpose::Client { session: SESSION, ticket: 1 };
                let other = relay.submit(request(answered.clone()), purpose, Answerable::UNDER_WAY, now);
                relay.flush(now, |_, _| ());
                let claim = Claim { boot: 1, group: GroupId(0), number: other };
                assert!(relay.answered(claim, false, now).is_some());
                expired = relay.pass_time(now);
            }
            assert_eq!((expired.len(), waited_ms), (1, 5_000), "{waiting:?}");
            assert_eq!(expired[0].request.origin.claim.map(|claim| claim.number), Some(number));
            assert_eq!(expired[0].is_in_doubt, matches!(waiting, RequestBody::Write(_)));
        }
    }

    #[test]
    fn refusals_of_others_keep_nothing_waiting_and_a_promise_is_good_for_a_while() {
        let after = |ms| Instant::ZERO + Duration::from_millis(ms);
        let claim = |number| Claim { boot: 1, group: GroupId(0), number };
        let until_expired = |step: &mut dyn FnMut(&mut Relay, u64, u64)| {
            let mut relay = Relay::new(1, 1);
            relay.set_route(GroupId(0), Route { leader: Some(NodeId(2)), term: 1, is_here: true }, Instant::ZERO);
            let number = submit(&mut relay, RequestBody::Write(vec![0]));
            for ms in (0..20_000).step_by(100) {
                relay.flush(after(ms), |_, _| ());
                step(&mut relay, number, ms);
                if !relay.pass_time(after(ms)).is_empty() {
                    return ms;
                }
            }
            20_000
        };
        // The disk of the leader takes nothing: it refuses what comes, and never answers what it has begun.
        let refused = until_expired(&mut |relay, _, ms| {
            let purpose = Purpose::Client { session: SESSION, ticket: 1 };
            let other = relay.submit(request(RequestBody::Write(vec![0])), purpose, Answerable::UNDER_WAY, after(ms));
            relay.flush(after(ms), |_, _| ());
            assert!(relay.answered(claim(other), true, after(ms)).is_some());
        });
        assert_eq!(refused, 5_000);
        // It said that it had the request before it knew that it could not carry it out.
        let promised = until_expired(&mut |relay, number, ms| {
            if ms == 1_200 {
                relay.alive(claim(number), after(ms));
            }
        });
        assert_eq!(promised, 5_000);
        // It goes from one to the next, and nobody takes it.
        let redirected = until_expired(&mut |relay, number, ms| {
            relay.refused(claim(number), after(ms));
            let purpose = Purpose::Client { session: SESSION, ticket: 1 };
            let other = relay.submit(request(RequestBody::Write(vec![0])), purpose, Answerable::UNDER_WAY, after(ms));
            assert!(relay.answered(claim(other), false, after(ms)).is_some());
        });
        assert_eq!(redirected, 5_000);
        // It waits for locked keys, and is told so for seven seconds.
        let held = until_expired(&mut |relay, number, ms| {
            if ms <= 7_000 {
                relay.alive(claim(number), after(ms));
            }
        });
        assert_eq!(held, 9_000);
    }
}

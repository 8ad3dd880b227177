//! WAIT, WAITAOF and HOLDFAST STREAM: how many others hold what has been acknowledged.
//!
//! In a cluster, the others of WAIT and WAITAOF are its nodes. A node by itself has no others but replicas of other
//! kinds, which the host knows; HOLDFAST STREAM asks about these on any node.
//!
//! The leader of every group says up to where it has applied its log and how many members hold it up to there; it is
//! asked again, about the same place, until enough do or the time is up. Every write of the session has been answered
//! before, so it lies before that place.

use command::Refusal;
use group::ids::SessionId;
use resp::Args;
use stdx::{Duration, Instant};

use crate::event::{FollowersAnswer, FollowersForm};
use crate::session::ticket::OwnTicket;

/// Between two questions to the same leader.
pub(crate) const INTERVAL: Duration = Duration::from_millis(10);

/// The host is asked again about replicas of other kinds after this time, if somebody still waits by then.
pub(crate) const FOLLOWERS_PATIENCE: Duration = Duration::from_secs(1);

/// A session that waits for other nodes.
#[derive(Debug)]
pub(crate) struct ReplicationWait {
    pub(crate) session: SessionId,
    pub(crate) ticket: OwnTicket,
    pub(crate) form: FollowersForm,
    pub(crate) wanted: u64,
    pub(crate) until: Option<Instant>,
    /// By group: the place in its log, 0 until its leader has named it, and how many others hold it.
    pub(crate) groups: Vec<(u64, u64)>,
    /// Leaders that have not answered.
    pub(crate) outstanding: usize,
    pub(crate) again_at: Instant,
}

impl ReplicationWait {
    pub(crate) fn count(&self) -> u64 {
        self.groups.iter().map(|(_, count)| *count).min().unwrap_or(0)
    }

    pub(crate) fn answer(&self) -> FollowersAnswer {
        FollowersAnswer { count: self.count(), ..FollowersAnswer::default() }
    }
}

/// The numbers of WAIT: of others, and milliseconds.
pub(crate) fn numbers(args: Args<'_>, at: usize) -> Result<(u64, u64), Refusal> {
    let number = |place| std::str::from_utf8(args.at(place)).ok().and_then(|text| text.parse::<i64>().ok());
    let wanted = number(at).ok_or(Refusal::NOT_AN_INTEGER)?;
    match number(at + 1) {
        None => Err(Refusal::new("ERR timeout is not an integer or out of range")),
        Some(..=-1) => Err(Refusal::new("ERR timeout is negative")),
        // A negative number of others is always there.
        Some(timeout) => Ok((u64::try_from(wanted).unwrap_or(0), timeout.cast_unsigned())),
    }
}

//! A server, asked again and again, and what it did while an answer was late.
//!
//! A PING every few milliseconds shows stalls from a client's side, whatever their cause. While one is unanswered, and
//! the server runs on this host, its threads are looked at: stopped, running, waiting for a processor, or waiting for a
//! disk. So each stall gets a cause at the moment at which it happens; and an idle watch costs next to nothing.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use crate::host::Host;
use crate::probes::percentile;
use crate::talk::{Dialer, Link, is_late};
use crate::thresholds::STALL_MS;

/// An answer is late after so long: then the server is looked at for the first time, and then less and less often.
const GLANCE: Duration = Duration::from_millis(3);
/// But no more seldom than this.
const GLANCE_MAX: Duration = Duration::from_millis(40);
/// How often the network is tried with a new connection.
const REACH_EVERY: Duration = Duration::from_millis(700);
/// An answer that takes longer is not waited for.
const ANSWER_MAX: Duration = Duration::from_secs(15);

/// An answer that came late, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Late {
    /// From the request to the answer.
    pub total_ms: f64,
    /// The process was stopped.
    pub stopped_ms: f64,
    /// One of its threads ran.
    pub running_ms: f64,
    /// One of its threads waited for a processor.
    pub waiting_ms: f64,
    /// One of its threads waited for a disk.
    pub disk_ms: f64,
}

/// What the watch has seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Watch {
    /// Times of all answers in milliseconds, sorted.
    pub answers_ms: Vec<f64>,
    /// Answers that were looked into.
    pub late: Vec<Late>,
    /// Times to reach the host, in milliseconds, sorted.
    pub reach_ms: Vec<f64>,
    /// How many tries to reach it failed.
    pub unreached: u64,
    /// Requests sent.
    pub requests: u64,
    /// Seconds watched.
    pub seconds: f64,
    /// Why it ended early.
    pub failure: Option<String>,
}

/// Stalls as shares of the watched time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// How many stalls.
    pub count: u64,
    /// Their time.
    pub total: f64,
    /// See [`Late`].
    pub stopped: f64,
    /// See [`Late`].
    pub running: f64,
    /// See [`Late`].
    pub waiting: f64,
    /// See [`Late`].
    pub disk: f64,
}

impl Watch {
    /// The median of all answers, in milliseconds.
    pub fn median_ms(&self) -> f64 {
        percentile(&self.answers_ms, 50.0)
    }

    /// What is beyond the median by more than [`STALL_MS`].
    pub fn stalls(&self) -> Shares {
        let usual_ms = self.median_ms();
        let mut shares = Shares::default();
        let window_ms = self.seconds.max(1e-3) * 1e3;
        for answer_ms in self.answers_ms.iter().filter(|answer_ms| **answer_ms > usual_ms + STALL_MS) {
            shares.count += 1;
            shares.total += (answer_ms - usual_ms) / window_ms;
        }
        for late in self.late.iter().filter(|late| late.total_ms > usual_ms + STALL_MS) {
            shares.stopped += late.stopped_ms / window_ms;
            shares.running += late.running_ms / window_ms;
            shares.waiting += late.waiting_ms / window_ms;
            shares.disk += late.disk_ms / window_ms;
        }
        shares
    }
}

/// What is watched.
pub struct Watched<'a> {
    /// Its address.
    pub place: &'a str,
    /// Its process, if that is on this host.
    pub pid: Option<u32>,
    /// The host.
    pub host: &'a Host,
    /// Between two requests.
    pub pause: Duration,
}

/// Watches until `until`, over these connections in turn: a server of several cores answers each from another.
pub fn watch(watched: &Watched<'_>, dialer: &dyn Dialer, links: &mut [Box<dyn Link>], until: Instant) -> Watch {
    let mut watch = Watch::default();
    let began = Instant::now();
    let mut reached: Option<Instant> = None;
    let mut turn = 0;
    while Instant::now() < until && !links.is_empty() {
        if reached.is_none_or(|last| last.elapsed() > REACH_EVERY) {
            match dialer.reach(watched.place) {
                Ok(time) => watch.reach_ms.push(time.as_secs_f64() * 1e3),
                Err(_) => watch.unreached += 1,
            }
            reached = Some(Instant::now());
        }
        let index = turn % links.len();
        turn += 1;
        match one_answer(watched, links[index].as_mut(), &mut watch) {
            Ok(()) => thread::sleep(watched.pause.min(until.saturating_duration_since(Instant::now()))),
            Err(why) => {
                watch.failure = Some(why);
                break;
            }
        }
    }
    watch.seconds = began.elapsed().as_secs_f64();
    watch.answers_ms.sort_by(f64::total_cmp);
    watch.reach_ms.sort_by(f64::total_cmp);
    watch
}

fn one_answer(watched: &Watched<'_>, link: &mut dyn Link, watch: &mut Watch) -> Result<(), String> {
    let sent = Instant::now();
    link.send(&[b"PING"]).map_err(|error| format!("PING: {error}"))?;
    watch.requests += 1;
    let mut glances: Option<Glances> = None;
    let mut patience = GLANCE;
    loop {
        match link.receive(patience) {
            Ok(_) => break,
            Err(error) if is_late(&error) && sent.elapsed() < ANSWER_MAX => {
                if let Some(pid) = watched.pid {
                    glances.get_or_insert_with(|| Glances::begin(watched.host, pid)).look();
                }
                patience = (patience * 3 / 2).min(GLANCE_MAX);
            }
            Err(error) if is_late(&error) => {
                watch.answers_ms.push(sent.elapsed().as_secs_f64() * 1e3);
                watch.late.extend(glances.map(|glances| glances.end(sent)));
                return Err(format!("PING: no answer in {} s", ANSWER_MAX.as_secs()));
            }
            Err(error) => return Err(format!("PING: {error}")),
        }
    }
    watch.answers_ms.push(sent.elapsed().as_secs_f64() * 1e3);
    watch.late.extend(glances.map(|glances| glances.end(sent)));
    Ok(())
}

/// What a process does while an answer of it is late.
struct Glances<'a> {
    host: &'a Host,
    pid: u32,
    began: Instant,
    threads: BTreeMap<u32, crate::host::Thread>,
    ids: Vec<u32>,
    /// When it was looked at last.
    last: Instant,
    /// How long it has been seen stopped, and waiting for a disk, in milliseconds.
    stopped_ms: f64,
    disk_ms: f64,
}

/// How many threads have their states looked at in each glance.
const THREADS_GLANCED: usize = 24;

impl<'a> Glances<'a> {
    fn begin(host: &'a Host, pid: u32) -> Self {
        let threads = host.threads(pid);
        let ids = threads.keys().copied().take(THREADS_GLANCED).collect();
        let last = Instant::now();
        Self { host, pid, began: last, threads, ids, last, stopped_ms: 0.0, disk_ms: 0.0 }
    }

    fn look(&mut self) {
        // What is seen now is taken for the time since the last look, at first for that since the request.
        let passed_ms = (self.last.elapsed().as_secs_f64() * 1e3).max(GLANCE.as_secs_f64() * 1e3);
        self.last = Instant::now();
        if matches!(self.host.state(self.pid), Some('T' | 't')) {
            self.stopped_ms += passed_ms;
        } else if self.host.waits_for_disk(self.pid, &self.ids) {
            self.disk_ms += passed_ms;
        }
    }

    /// What threads did since the first look is taken for the whole time from the request on.
    fn end(self, sent: Instant) -> Late {
        let total_ms = sent.elapsed().as_secs_f64() * 1e3;
        let seen_ms = self.began.elapsed().as_secs_f64() * 1e3;
        let scale = total_ms / seen_ms.max(1e-3);
        let mut late = Late { total_ms, ..Late::default() };
        late.stopped_ms = self.stopped_ms.min(total_ms);
        late.disk_ms = self.disk_ms.min(total_ms - late.stopped_ms);
        // The thread that was on its way for longest is the one that made others wait.
        let busiest = self.threads.iter().filter_map(|(id, before)| {
            let after = self.host.thread_times(self.pid, *id)?;
            let run_ms = after.run_ns.saturating_sub(before.times.run_ns) as f64 / 1e6;
            let wait_ms = after.wait_ns.saturating_sub(before.times.wait_ns) as f64 / 1e6;
            Some((run_ms, wait_ms))
        });
        if let Some((run_ms, wait_ms)) = busiest.max_by(|a, b| (a.0 + a.1).total_cmp(&(b.0 + b.1))) {
            // A request may have waited on a thread that began to wait before: never more than the time there is.
            let rest_ms = (total_ms - late.stopped_ms).max(0.0);
            late.running_ms = (run_ms * scale).min(rest_ms);
            late.waiting_ms = (wait_ms * scale).min(rest_ms - late.running_ms);
        }
        late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_are_what_lies_far_beyond_the_median() {
        let late = |total_ms, stopped_ms| Late { total_ms, stopped_ms, ..Late::default() };
        let watch = Watch {
            answers_ms: vec![0.1, 0.1, 0.1, 4.0, 200.1],
            late: vec![late(4.0, 4.0), late(200.1, 150.0)],
            seconds: 2.0,
            ..Watch::default()
        };
        let shares = watch.stalls();
        assert_eq!((shares.count, (shares.total * 1e3).round(), shares.stopped), (1, 100.0, 0.075));
        assert_eq!(Watch::default().stalls(), Shares::default());
        // Far away is no stall: every answer takes as long.
        let far = Watch { answers_ms: vec![80.0, 80.0, 81.0], seconds: 2.0, ..Watch::default() };
        assert_eq!(far.stalls().count, 0);
    }
}

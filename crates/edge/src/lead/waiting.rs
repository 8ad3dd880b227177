//! Clients that wait until replicas have something, and what replicas are asked for that.
//!
//! A replica acknowledges once in a second. Anyone who waits is not to wait for that: `REPLCONF GETACK *` in the stream
//! is answered at once, with what has been carried out before it.

use std::time::{Duration, Instant};

use node::event::{Event, FollowersAnswer, FollowersForm, FollowersRequest};

use super::follower::Link;
use super::{Copying, Leading};
use crate::limits::FOLLOWER_END_POLL;
use crate::mailbox::Mail;

/// Somebody who waits.
pub struct Waiting {
    request: FollowersRequest,
    /// Where the stream is behind what is waited for, once it is in the stream.
    target: Option<u64>,
    /// Replicas were asked.
    has_asked: bool,
    /// It is answered then, whatever is known.
    pub until: Instant,
}

impl Leading {
    /// Somebody wants to know which replicas have what was done before.
    pub fn wait_for_followers(&mut self, mut request: FollowersRequest) {
        if self.recording.is_none() {
            return self.answer(request, FollowersAnswer::default());
        }
        if request.places.is_empty() {
            // The client has its answers, and we were told before that what it was answered about.
            request.places = self.merger.places();
        }
        let until = Instant::now() + Duration::from_millis(request.patience_ms);
        self.waiting.push(Waiting { request, target: None, has_asked: false, until });
    }

    /// Asks replicas where they are if somebody waits for that.
    pub fn ask_followers(&mut self) {
        let Some(stream) = &self.stream else { return };
        let mut is_wanted = false;
        for waiting in &mut self.waiting {
            if waiting.target.is_none() && self.merger.has_taken(&waiting.request.places) {
                waiting.target = stream.told;
            }
            let Some(target) = waiting.target.filter(|_| !waiting.has_asked) else { continue };
            let is_known = count(self.links.values(), &waiting.request, target) >= waiting.request.wanted;
            // Between a cut and what comes behind it nothing is put into the stream.
            if !is_known && self.copying != Copying::Cutting {
                (waiting.has_asked, is_wanted) = (true, true);
            }
        }
        if is_wanted {
            self.ask_all();
        }
    }

    fn ask_all(&mut self) {
        let mut question = Vec::new();
        resp::encode_request(&mut question, &["REPLCONF", "GETACK", "*"]);
        self.feed(&question);
    }

    /// Answers those who need not wait any more.
    pub fn answer_waiting(&mut self) {
        let now = Instant::now();
        let (mut waiting, links) = (std::mem::take(&mut self.waiting), &self.links);
        let is_led = self.recording.is_some();
        let is_over = |waiting: &mut Waiting| {
            let known = waiting.target.map_or(0, |target| count(links.values(), &waiting.request, target));
            !is_led || waiting.until <= now || waiting.target.is_some() && known >= waiting.request.wanted
        };
        let ended: Vec<Waiting> = waiting.extract_if(.., is_over).collect();
        self.waiting = waiting;
        for Waiting { request, target, .. } in ended {
            let count = target.map_or(0, |target| count(self.links.values(), &request, target));
            self.answer(request, FollowersAnswer { count, offset: target, is_led });
        }
    }

    /// What was waited for is in another stream, if there is one.
    pub fn forget_targets(&mut self) {
        for waiting in &mut self.waiting {
            (waiting.target, waiting.has_asked) = (None, false);
        }
    }

    fn answer(&self, request: FollowersRequest, answer: FollowersAnswer) {
        let core = usize::from(request.core.0);
        let event = Event::FollowersHeard { request: Box::new(request), answer };
        self.host.desks[core].mailbox.post(Mail::Event(event));
    }

    /// The end: replicas that follow get the rest, and may say that they have it.
    pub fn part(&mut self) {
        // Nobody waits for a copy any more, so nothing is kept out of the stream for one.
        self.copying = Copying::None;
        self.merger.thaw();
        self.take_steps();
        if self.merger.is_waiting() {
            self.host.log.warning("parts of transactions have not come: replicas lack what waits for them");
        }
        let Some(told) = self.stream.as_ref().and_then(|stream| stream.told) else { return };
        let lacks = |link: &Link| link.is_to_acknowledge() && link.is_heard() && !link.has(told);
        if self.links.values().any(lacks) {
            self.ask_all();
        }
        self.keep();
        let patience = Duration::from_secs(self.host.lead.shutdown_s());
        let begun = Instant::now();
        let mut events = mio::Events::with_capacity(crate::limits::FOLLOWERS_MAX);
        while self.links.values().any(lacks) && begun.elapsed() < patience {
            if !self.serve() {
                let _ = self.poll.poll(&mut events, Some(FOLLOWER_END_POLL));
                for event in &events {
                    if let Some(link) = self.links.get_mut(&event.token().0) {
                        link.note_edge(event);
                    }
                }
            }
        }
        for link in self.links.values().filter(|link| link.is_to_acknowledge() && link.is_heard()) {
            let (name, offset) = (link.name(), link.acknowledged());
            if link.has(told) {
                self.host.log.notice(&format!("replica {name} has everything"));
            } else {
                self.host
                    .log
                    .warning(&format!("replica {name} has {offset} of {told} bytes, and is waited for no longer"));
            }
        }
    }
}

/// How many replicas have the stream up to here.
fn count<'l>(links: impl Iterator<Item = &'l Link>, request: &FollowersRequest, target: u64) -> u64 {
    let has_it = |link: &&Link| match request.form {
        FollowersForm::OnDisk(_) => link.has_on_disk(target),
        FollowersForm::Count | FollowersForm::Stream => link.has(target),
    };
    links.filter(has_it).count() as u64
}

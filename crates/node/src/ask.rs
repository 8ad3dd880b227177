//! Questions to every core of the node, and their answers.

use std::collections::{BTreeMap, BTreeSet};

use command::{Join, Refusal};
use group::ids::{CoreId, GroupId, SessionId};
use group::refusals::LOADING;
use group::requests::{COPIES_APPLIED, Origin, Request, RequestBody};
use group::router;
use group::{Group, Standing};
use keyspace::DataCommand;
use resp::{Protocol, Span, Writer};
use stdx::slot::Slot;
use stdx::{Duration, Instant, leb128};

use crate::acl::Wish;
use crate::commands::question::{Answer, Question};
use crate::commands::{self, ControlCommand};
use crate::core::Core;
use crate::core_messages::CoreMessage;
use crate::entry::Reader;
use crate::event::Action;
use crate::keyspace_queries::write_scan;
use crate::known::Known;
use crate::parameters::Pairs;
use crate::quorum::Answerable;
use crate::relay::Purpose;
use crate::session::Session;
use crate::session::ticket::OwnTicket;
use crate::settings::Settings;
use crate::slots::SlotMap;
use crate::{frame, limits, redirect};

/// A question that still lacks answers.
#[derive(Debug)]
pub(crate) struct Pending {
    /// Of groups that were asked about all keys: the slots that they hold, summed up.
    cover: u64,
    /// How long the slowest of them took, if they have told.
    took: Option<Duration>,
    pub(crate) session: SessionId,
    pub(crate) ticket: OwnTicket,
    pub(crate) joining: Joining,
    pub(crate) words: Vec<u8>,
    pub(crate) answers: Vec<Option<Answer>>,
    /// Parameters of the node, to be set behind those of the cluster.
    pub(crate) own: Pairs,
    /// What the cluster's parameters are then.
    pub(crate) version: u64,
    /// Parameters of the cluster, to be set.
    pub(crate) shared: Pairs,
    /// What must become so of the cluster's users.
    pub(crate) wish: Option<Wish>,
    /// How many users that has removed.
    pub(crate) removed_count: u64,
    /// A question that waits until the replicas here are where their leaders are.
    awaiting: Option<Question>,
    /// Where those are, by group.
    places: Vec<u64>,
}

/// A question of some core that waits for transactions to end.
#[derive(Debug)]
pub(crate) struct Deferred {
    from: CoreId,
    question_id: u64,
    question: Question,
    /// When it was put.
    since: Instant,
    /// What the groups have answered that were free, to [`Question::Whole`].
    parts: Vec<(GroupId, u64, Vec<u8>)>,
    /// The same to [`Question::Versions`].
    versions: Vec<(usize, u64)>,
}

/// What is done with the answers.
#[derive(Debug)]
pub(crate) enum Joining {
    /// One reply from the groups' replies.
    Whole(&'static DataCommand),
    /// As the control command says.
    Control(&'static ControlCommand),
    /// The same, for a command inside a transaction: its reply goes into the transaction's.
    Composed(&'static ControlCommand),
    /// Nothing: the reply is there already, and leaves when all cores have done what they were asked.
    After {
        /// The reply.
        written: Writer,
        /// It goes into a transaction's.
        is_composed: bool,
    },
    /// Versions of watched keys.
    Watch,
}

impl Core {
    /// Puts a question to every core. This core's own answer may come at once.
    pub(crate) fn ask(
        &mut self,
        session: SessionId,
        ticket: OwnTicket,
        joining: Joining,
        words: Vec<u8>,
        question: Question,
        actions: &mut Vec<Action>,
    ) {
        let question_id = self.questions.next_id;
        self.questions.next_id += 1;
        let pending = Pending {
            session,
            ticket,
            joining,
            words,
            answers: Vec::new(),
            cover: 0,
            took: None,
            own: Pairs::new(),
            version: 0,
            shared: Pairs::new(),
            wish: None,
            removed_count: 0,
            awaiting: None,
            places: Vec::new(),
        };
        let asks_groups = match question {
            Question::Versions { reserve_for: Some(_), .. } => true,
            Question::Whole { .. } | Question::Versions { .. } => self.context.is_clustered,
            _ => false,
        };
        if asks_groups {
            return self.ask_groups(question_id, pending, question, actions);
        }
        let question = match question {
            Question::Configure { pairs, version: 0 } if pairs.iter().any(|(name, _)| Settings::is_of_tls(name)) => {
                return self.secure(question_id, pending, pairs, actions);
            }
            Question::Configure { pairs, version: 0 } if self.is_for_cluster(&pairs) => {
                return self.set_parameters(question_id, pending, pairs, actions);
            }
            Question::ChangeUsers(change) if self.context.shares_users() => {
                return self.wish_for_users(question_id, pending, Wish::Change(change), actions);
            }
            Question::InstallUsers(users) if self.context.shares_users() => {
                return self.wish_for_users(question_id, pending, Wish::All(users), actions);
            }
            question @ (Question::Debug { .. }
            | Question::Digest
            | Question::KeysOfSlot { .. }
            | Question::SlotKeys { .. })
                if self.context.is_clustered =>
            {
                return self.ask_where_leaders_are(question_id, pending, question, actions);
            }
            question => question,
        };
        self.ask_cores(question_id, pending, question, actions);
    }

    fn ask_cores(&mut self, question_id: u64, mut pending: Pending, question: Question, actions: &mut Vec<Action>) {
        pending.answers = (0..self.context.core_count).map(|_| None).collect();
        self.questions.pending.insert(question_id, pending);
        let own = self.context.core;
        for core in (0..self.context.core_count).map(CoreId).filter(|core| *core != own) {
            self.outbox.push(own, core, CoreMessage::Ask { question_id, question: question.clone() });
        }
        self.answer_or_defer(own, question_id, question, actions);
    }

    /// Lets the host find out whether it can obey parameters of TLS. They are set when it does.
    fn secure(&mut self, id: u64, mut pending: Pending, pairs: Pairs, actions: &mut Vec<Action>) {
        let mut trial = Box::new(Settings::clone(&self.context.settings));
        for (name, value) in &pairs {
            trial.set(name, value).expect("checked before the question was put");
        }
        pending.own = pairs;
        pending.answers = vec![None];
        self.questions.pending.insert(id, pending);
        actions.push(Action::Secure { id, settings: trial });
    }

    /// The host obeys, or cannot.
    pub(crate) fn secured(&mut self, id: u64, outcome: Result<(), String>, actions: &mut Vec<Action>) {
        let Some(mut pending) = self.questions.pending.remove(&id) else { return };
        let pairs = std::mem::take(&mut pending.own);
        match outcome {
            Ok(()) if self.is_for_cluster(&pairs) => self.set_parameters(id, pending, pairs, actions),
            Ok(()) => self.ask_cores(id, pending, Question::Configure { pairs, version: 0 }, actions),
            Err(why) => {
                let named = pairs.iter().map(|(name, _)| name.as_str()).find(|name| Settings::is_of_tls(name));
                let refusal = format!(
                    "ERR CONFIG SET failed (possibly related to argument '{}') - Unable to update TLS configuration: \
                     {why}",
                    named.unwrap_or_default()
                );
                pending.answers = vec![Some(Answer::Refused(refusal))];
                self.questions.pending.insert(id, pending);
                self.complete_answer(id, actions);
            }
        }
    }

    /// Puts a question to every group, on the node that leads it.
    fn ask_groups(&mut self, id: u64, mut pending: Pending, question: Question, actions: &mut Vec<Action>) {
        let group_count = self.context.slots.group_count();
        let mut asked: Vec<(GroupId, RequestBody, Protocol, Vec<usize>)> = Vec::new();
        let mut nobody = None;
        let asks_all = self.sessions.get(pending.session).is_some_and(|session| session.options.writes_for_site);
        match question {
            Question::Whole { words, protocol } => match redirect::groups_asked(&self.context, asks_all) {
                Ok(groups) => asked.extend(
                    groups.into_iter().map(|group| (group, RequestBody::Whole(words.clone()), protocol, Vec::new())),
                ),
                Err(refusal) => nobody = Some(refusal),
            },
            Question::Versions { keys, reserve_for } => {
                for group in (0..group_count).map(GroupId) {
                    let of_group = keys.iter().enumerate();
                    let (places, keys): (Vec<_>, Vec<_>) = of_group
                        .filter(|(_, (_, key))| self.context.slots.group_of(key) == group)
                        .map(|(place, key)| (place, key.clone()))
                        .unzip();
                    if !places.is_empty() {
                        asked.push((group, RequestBody::Versions { keys, reserve_for }, Protocol::Resp2, places));
                    }
                }
            }
            _ => unreachable!("only these concern groups"),
        }
        pending.answers = (0..group_count).map(|_| Some(Answer::Versions(Vec::new()))).collect();
        let admitted = match nobody {
            None => self.check_quorums(asked.iter().map(|(group, ..)| *group)),
            Some(refusal) => Err(refusal),
        };
        if let Err(refusal) = &admitted {
            pending.answers[0] = Some(Answer::Refused(refusal.text().to_owned()));
            asked.clear();
        }
        asked.iter().for_each(|(group, ..)| pending.answers[group.0 as usize] = None);
        let session = pending.session;
        self.questions.pending.insert(id, pending);
        let Some(answerable) = admitted.ok().filter(|_| !asked.is_empty()) else {
            return self.complete_answer(id, actions);
        };
        for (group, body, protocol, places) in asked {
            let is_timed = matches!(body, RequestBody::Whole(_));
            let origin = Origin { is_timed, ..self.origin_of(session) };
            let request = Request::new(origin, group, protocol, body);
            let part = group.0 as usize;
            self.relay.submit(request, Purpose::Question { id, part, places }, answerable, self.now.instant);
        }
    }

    /// A group was asked for versions of keys that it does not hold any more: asks those who do.
    pub(crate) fn ask_elsewhere(
        &mut self,
        id: u64,
        part: usize,
        places: &[usize],
        request: Request,
        actions: &mut Vec<Action>,
    ) {
        let RequestBody::Versions { keys, .. } = request.body else { unreachable!("places are those of keys") };
        let Some(pending) = self.questions.pending.get_mut(&id) else { return };
        let mut asked: BTreeMap<GroupId, Vec<_>> = BTreeMap::new();
        for (place, key) in places.iter().zip(keys) {
            asked.entry(self.context.slots.group_of(&key.1)).or_default().push((*place, key));
        }
        // The first takes the part of the one that was asked in vain.
        let first_part = std::iter::once(part);
        let more_parts = pending.answers.len()..;
        pending.answers.extend((1..asked.len()).map(|_| None));
        let origin = Origin { claim: None, ..request.origin };
        for ((group, of_group), part) in asked.into_iter().zip(first_part.chain(more_parts)) {
            let (places, keys) = of_group.into_iter().unzip();
            let body = RequestBody::Versions { keys, reserve_for: None };
            let request = Request::new(origin, group, Protocol::Resp2, body);
            self.relay.submit(request, Purpose::Question { id, part, places }, Answerable::UNDER_WAY, self.now.instant);
        }
        self.flush_relay(actions);
    }

    /// DEBUG, and questions for the keys of slots, look at the replicas of their own node. These must have applied what
    /// any node has acknowledged.
    fn ask_where_leaders_are(&mut self, id: u64, mut pending: Pending, question: Question, actions: &mut Vec<Action>) {
        let group_count = self.context.slots.group_count();
        let of_slots = |first, last| (first..=last).map(|slot| self.context.slots.group_of_slot(Slot(slot)));
        let is_led_here = |group: &GroupId| self.context.routes[group.0 as usize].leader == Some(self.context.node);
        let asked: BTreeSet<GroupId> = match question {
            Question::KeysOfSlot { slot, .. } => of_slots(slot, slot).collect(),
            // Of the others nothing is told.
            Question::SlotKeys { first, last, .. } => of_slots(first, last).filter(is_led_here).collect(),
            _ => self.context.slots.groups().collect(),
        };
        pending.answers = (0..group_count).map(|_| Some(Answer::Done)).collect();
        asked.iter().for_each(|group| pending.answers[group.0 as usize] = None);
        pending.places = vec![0; group_count as usize];
        let origin = self.origin_of(pending.session);
        if asked.is_empty() {
            return self.ask_cores(id, pending, question, actions);
        }
        let must_be_current = !matches!(question, Question::Debug { .. } | Question::Digest);
        if must_be_current && let Err(refusal) = self.check_quorums(asked.iter().copied()) {
            return self.refuse_joined(pending.session, pending.ticket, &pending.joining, refusal);
        }
        pending.awaiting = Some(question);
        self.questions.pending.insert(id, pending);
        for group in asked {
            let request = Request::new(origin, group, Protocol::Resp2, RequestBody::CopyCount(COPIES_APPLIED));
            self.relay.submit(request, Purpose::AppliedPosition { id }, Answerable::UNDER_WAY, self.now.instant);
        }
    }

    /// The leader of a group says where it is; nobody says anything if there is none. Then DEBUG tells what there is.
    pub(crate) fn leader_is_at(&mut self, id: u64, group: GroupId, mut answer: &[u8], actions: &mut Vec<Action>) {
        let Some(pending) = self.questions.pending.get_mut(&id) else { return };
        let must_be_current = !matches!(pending.awaiting, Some(Question::Debug { .. } | Question::Digest));
        if answer.is_empty() && must_be_current {
            let Pending { session, ticket, joining, .. } = self.questions.pending.remove(&id).expect("just seen");
            return self.refuse_joined(session, ticket, &joining, Refusal::new(self.no_quorum(group)));
        }
        pending.answers[group.0 as usize] = Some(Answer::Done);
        pending.places[group.0 as usize] = leb128::take(&mut answer).unwrap_or(0);
        if pending.answers.iter().any(Option::is_none) {
            return;
        }
        let Pending { session, ticket, joining, words, awaiting, places, .. } =
            self.questions.pending.remove(&id).expect("just seen");
        let question = Box::new(awaiting.expect("it waits for this"));
        self.ask(session, ticket, joining, words, Question::At { places, question }, actions);
    }

    /// A group has answered; `None` if it could not be asked.
    pub(crate) fn group_answered(
        &mut self,
        id: u64,
        (group, part): (GroupId, usize),
        places: Vec<usize>,
        bytes: Option<&[u8]>,
        actions: &mut Vec<Action>,
    ) {
        let now = self.now.instant;
        let Some(pending) = self.questions.pending.get_mut(&id) else { return };
        let refused = || Answer::Refused(self.context.no_quorum(group, now));
        let answer = match bytes {
            None => refused(),
            Some(bytes) if places.is_empty() => match group::answers::take_whole(bytes) {
                None => refused(),
                Some(part) => {
                    pending.cover ^= part.cover;
                    Answer::Whole(vec![(group, part.key_count, part.reply.to_vec())], None)
                }
            },
            Some(bytes) => {
                let mut reader = Reader::new(bytes);
                Answer::Versions(places.into_iter().map(|place| (place, reader.number())).collect())
            }
        };
        pending.answers[part] = Some(answer);
        self.complete_answer(id, actions);
    }

    /// A group that is about to answer took so long.
    pub(crate) fn note_part_time(&mut self, id: u64, took: Duration) {
        if let Some(pending) = self.questions.pending.get_mut(&id) {
            pending.took = pending.took.max(Some(took));
        }
    }

    pub(crate) fn answer_or_defer(
        &mut self,
        from: CoreId,
        question_id: u64,
        question: Question,
        actions: &mut Vec<Action>,
    ) {
        let question = if matches!(question, Question::FinishCheckpoint) {
            for group in self.groups_mut() {
                group.want_checkpoint();
            }
            Question::CheckpointsFinished
        } else {
            question
        };
        let since = self.now.instant;
        let deferred = Deferred { from, question_id, question, since, parts: Vec::new(), versions: Vec::new() };
        self.answer_deferred(deferred, actions);
    }

    fn answer_deferred(&mut self, mut deferred: Deferred, actions: &mut Vec<Action>) {
        let Deferred { from, question_id, .. } = deferred;
        self.questions.answering = (from, question_id);
        let answer = self.answer(&mut deferred, actions).or_else(|| self.give_up(&deferred));
        match answer {
            Some(answer) if from == self.context.core => self.take_answer(from, question_id, answer, actions),
            Some(answer) => self.outbox.push(self.context.core, from, CoreMessage::Answer { question_id, answer }),
            None => self.questions.deferred.push(deferred),
        }
    }

    /// The answer to a client that has waited for too long until a replica here has what its leader had. It may be cut
    /// off since.
    fn give_up(&self, deferred: &Deferred) -> Option<Answer> {
        let Question::At { places, .. } = &deferred.question else { return None };
        let is_behind =
            |group: &&Group| places.get(group.id().0 as usize).is_some_and(|place| group.applied() < *place);
        let behind = self.groups().filter(|group| !group.is_vacant()).find(is_behind)?;
        let is_over = self.now.instant.since(deferred.since) >= limits::REQUEST_PATIENCE;
        is_over.then(|| Answer::Late(self.context.behind(behind.id(), self.now.instant)))
    }

    /// Asks again those who could not answer, and lets transactions go on that have waited for that. True if some have.
    pub(crate) fn retry_deferred_questions(&mut self, actions: &mut Vec<Action>) -> bool {
        if self.questions.deferred.is_empty() {
            return false;
        }
        let mut barred = Vec::new();
        for group in self.groups.iter_mut().flatten() {
            if group.is_barred() {
                group.bar(false);
                barred.push(group.id());
            }
        }
        for deferred in std::mem::take(&mut self.questions.deferred) {
            self.answer_deferred(deferred, actions);
        }
        let now = self.now;
        let mut any = false;
        for id in barred {
            self.with_group(id, actions, |group, output| {
                if !group.is_barred() {
                    any = true;
                    group.admit_held(now, output);
                }
            });
        }
        any
    }

    /// This core's answer; `None` if it must wait for transactions to end.
    fn answer(&mut self, deferred: &mut Deferred, actions: &mut Vec<Action>) -> Option<Answer> {
        match &deferred.question {
            Question::Whole { words, protocol } => self.answer_whole(words, *protocol, &mut deferred.parts),
            Question::Versions { keys, .. } => self.answer_versions(keys, &mut deferred.versions),
            question => commands::answer(self, question, actions),
        }
    }

    /// Each group answers as soon as no transaction holds locks on it; one that is locked tokens no more locks before.
    fn answer_whole(
        &mut self,
        words: &[u8],
        protocol: Protocol,
        parts: &mut Vec<(GroupId, u64, Vec<u8>)>,
    ) -> Option<Answer> {
        let now = self.now;
        let mut spans: Vec<Span> = Vec::new();
        let (database, args) = Reader::new(words).words(&mut spans);
        let command = keyspace::resolve(args).expect("checked by its gateway");
        let stopwatch = self.context.timings.stopwatch();
        let started = stopwatch();
        let mut must_wait = false;
        // One that is only coming into being has no keys.
        let known = self.context.slots.group_count() as usize;
        let (core, core_count) = (usize::from(self.context.core.0), usize::from(self.context.core_count));
        for group in self.groups.iter_mut().take(known.saturating_sub(core).div_ceil(core_count)) {
            let Some(group) = group.as_mut().filter(|group| group.standing() == Standing::Serving) else {
                return Some(Answer::Refused(LOADING.to_owned()));
            };
            if parts.iter().any(|(answered, ..)| *answered == group.id()) {
                continue;
            }
            if group.lock_count() > 0 {
                group.bar(true);
                must_wait = true;
                continue;
            }
            let mut writer = Writer::new(protocol);
            let moment = group.read_moment(now);
            group.state().keyspace().query(database, command, args, moment, &mut writer);
            let key_count = group.state().keyspace().key_count(database) as u64;
            parts.push((group.id(), key_count, writer.into_bytes()));
        }
        (!must_wait).then(|| Answer::Whole(std::mem::take(parts), Some(stopwatch().since(started))))
    }

    fn answer_versions(&mut self, keys: &[(u16, Vec<u8>)], versions: &mut Vec<(usize, u64)>) -> Option<Answer> {
        let (core, core_count) = (self.context.core, self.context.core_count);
        let now = self.now;
        let mut must_wait = false;
        for (place, (database, key)) in keys.iter().enumerate() {
            let group = self.context.slots.group_of(key);
            if router::core_of(group, core_count) != core || versions.iter().any(|(answered, _)| *answered == place) {
                continue;
            }
            let Some(group) = self.group_mut(group).filter(|group| group.standing() == Standing::Serving) else {
                return Some(Answer::Refused(LOADING.to_owned()));
            };
            if group.holds_lock_on(key) {
                group.bar(true);
                must_wait = true;
                continue;
            }
            let moment = group.read_moment(now);
            versions.push((place, group.state().keyspace().watch(*database, key, moment)));
        }
        (!must_wait).then(|| Answer::Versions(std::mem::take(versions)))
    }

    pub(crate) fn take_answer(&mut self, from: CoreId, question_id: u64, answer: Answer, actions: &mut Vec<Action>) {
        let Some(pending) = self.questions.pending.get_mut(&question_id) else { return };
        pending.answers[usize::from(from.0)] = Some(answer);
        self.complete_answer(question_id, actions);
    }

    /// Joins the answers, when all are there.
    pub(crate) fn complete_answer(&mut self, question_id: u64, actions: &mut Vec<Action>) {
        if self.questions.pending.get(&question_id).is_none_or(|pending| pending.answers.iter().any(Option::is_none)) {
            return;
        }
        let Pending { session, ticket, joining, words, answers, cover, took, .. } =
            self.questions.pending.remove(&question_id).expect("just seen");
        let answers: Vec<_> = answers.into_iter().flatten().collect();
        let is_whole = |answer: &&Answer| matches!(answer, Answer::Whole(..));
        // With `cluster-redirect` those are left out that others lead; none is where a group cannot be asked.
        let whole = answers.iter().filter(is_whole).count();
        let are_all_asked = whole > 0 && (whole == answers.len() || !self.context.settings.cluster_redirect);
        let has_refused = answers.iter().any(|answer| matches!(answer, Answer::Refused(_)));
        if self.context.is_clustered && are_all_asked && !has_refused && cover != SlotMap::whole_cover() {
            // A slot has moved from a group that had answered to one that had not, or the other way round; or to one
            // that is not known here yet.
            let Some(protocol) = self.sessions.get(session).map(Session::protocol) else { return };
            let question = Question::Whole { words: words.clone(), protocol };
            return self.ask(session, ticket, joining, words, question, actions);
        }
        if let Some(Answer::Late(text)) = answers.iter().find(|answer| matches!(answer, Answer::Late(_))) {
            return self.refuse_joined(session, ticket, &joining, Refusal::new(text.clone()));
        }
        match joining {
            Joining::Whole(command) => {
                self.join_whole((session, ticket), command, &words, (answers, took));
            }
            Joining::Watch => self.finish_watch(session, ticket, answers),
            Joining::Control(command) | Joining::Composed(command) => {
                let is_composed = matches!(joining, Joining::Composed(_));
                let joined = self.join_control(session, command, &words, answers, actions);
                let Some((result, written, follow_up)) = joined else { return };
                match follow_up.filter(|_| result.is_ok()) {
                    Some(question) => {
                        let joining = Joining::After { written, is_composed };
                        self.ask(session, ticket, joining, Vec::new(), question, actions);
                    }
                    None => self.finish_joined(session, ticket, result, written, is_composed),
                }
            }
            Joining::After { written, is_composed } => {
                let refused = answers.into_iter().find_map(|answer| match answer {
                    Answer::Refused(text) => Some(Refusal::new(text)),
                    _ => None,
                });
                self.finish_joined(session, ticket, refused.map_or(Ok(()), Err), written, is_composed);
            }
        }
    }

    /// Refuses what a question was put for.
    fn refuse_joined(&mut self, session: SessionId, ticket: OwnTicket, joining: &Joining, refusal: Refusal) {
        let Some(protocol) = self.sessions.get(session).map(Session::protocol) else { return };
        let is_composed = matches!(joining, Joining::Composed(_));
        self.finish_joined(session, ticket, Err(refusal), Writer::new(protocol), is_composed);
    }

    fn finish_joined(
        &mut self,
        session: SessionId,
        ticket: OwnTicket,
        result: Result<(), Refusal>,
        written: Writer,
        is_composed: bool,
    ) {
        if is_composed {
            self.composed(session, result, &written);
        } else {
            self.finish_control(session, ticket, result, written);
        }
    }

    fn join_control(
        &mut self,
        id: SessionId,
        command: &'static ControlCommand,
        words: &[u8],
        answers: Vec<Answer>,
        actions: &mut Vec<Action>,
    ) -> Option<(Result<(), Refusal>, Writer, Option<Question>)> {
        let (commands::Body::Node { join, .. } | commands::Body::Tell { join, .. }) = command.body else {
            unreachable!("only these are asked")
        };
        let now = self.now;
        let session = self.sessions.get_mut(id)?;
        let mut spans = Vec::new();
        let (_, args) = Reader::new(words).words(&mut spans);
        let mut writer = Writer::new(session.protocol());
        let mut local = commands::Local {
            session,
            core: &mut self.context,
            now,
            actions,
            is_in_transaction: false,
            is_pushed: false,
            follow_up: None,
            sleeps: None,
        };
        let result = local.join(command, join, args, answers, &mut writer);
        Some((result, writer, local.follow_up))
    }

    fn join_whole(
        &mut self,
        (session, ticket): (SessionId, OwnTicket),
        command: &'static DataCommand,
        words: &[u8],
        (answers, mut longest): (Vec<Answer>, Option<Duration>),
    ) {
        let mut replies: Vec<(GroupId, u64, Vec<u8>)> = Vec::new();
        for answer in answers {
            match answer {
                Answer::Whole(part, took) => {
                    replies.extend(part);
                    longest = longest.max(took);
                }
                // Of groups that were not asked.
                Answer::Versions(_) => {}
                Answer::Refused(text) => {
                    self.sessions.refuse(session, ticket.number(), &text);
                    return;
                }
                other => unreachable!("a core answered a query with {other:?}"),
            }
        }
        replies.sort_by_key(|(group, ..)| *group);
        if let Some(longest) = longest
            && let Some(session) = self.sessions.get(session)
        {
            let mut spans = Vec::new();
            let (_, args) = Reader::new(words).words(&mut spans);
            // In a cluster a delay has been noted where it was.
            if self.context.is_clustered {
                self.context.timings.note_answered(Known::Data(command), args, longest);
            } else {
                self.context.timings.note(Known::Data(command), args, longest);
            }
            self.context.note_slow(session);
        }
        // A refusal is the same from every group.
        if let Some((_, _, error)) = replies.iter().find(|(_, _, bytes)| bytes.first() == Some(&b'-')) {
            self.sessions.reply_own(session, ticket, |writer| writer.raw(error));
            return;
        }
        let command::Span::Whole(join) = command.span else { unreachable!("only these are asked of all groups") };
        let chance = self.draw();
        self.sessions.reply_own(session, ticket, |writer| match join {
            Join::Sum => writer.integer(replies.iter().map(|(_, _, bytes)| frame::integer(bytes)).sum()),
            Join::Concatenate => {
                let count = replies.iter().map(|(_, _, bytes)| frame::aggregate(bytes).0).sum();
                writer.array(count);
                for (_, _, bytes) in &replies {
                    writer.raw(&bytes[frame::aggregate(bytes).1..]);
                }
            }
            Join::Any => {
                let total: u64 = replies.iter().map(|(_, weight, _)| weight).sum();
                let mut place = if total == 0 { 0 } else { chance % total };
                let chosen = replies.iter().find(|(_, weight, _)| {
                    let here = place < *weight;
                    place = place.saturating_sub(*weight);
                    here
                });
                match chosen.or(replies.first()) {
                    Some((_, _, bytes)) => writer.raw(bytes),
                    None => writer.null(),
                }
            }
            Join::Cursor => write_scan(&replies, words, writer),
            Join::All => unreachable!("a transaction"),
        });
    }
}

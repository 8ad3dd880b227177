//! Parameters of the cluster: changed by CONFIG SET on any node, obeyed by all. See [`crate::parameters`].

use std::sync::Arc;

use group::ids::GroupId;
use group::requests::{Request, RequestBody};
use message::parameters::{HOME, Pairs, Parameters, USERS_CHANGED, encode};
use resp::{Protocol, Writer};

use crate::acl::Wish;
use crate::acl::change::Change;
use crate::ask::{Joining, Pending};
use crate::commands::question::{Answer, Question};
use crate::context::Context;
use crate::core::Core;
use crate::event::Action;
use crate::parameters::PASSWORD;
use crate::quorum::Answerable;
use crate::relay::Purpose;
use crate::session::Session;
use crate::settings::Settings;

impl Core {
    /// True if there is a cluster, and some of these parameters are its. The password of the default user is a node's
    /// until it is set in a cluster.
    pub(crate) fn is_for_cluster(&self, pairs: &[(String, String)]) -> bool {
        let is_named = |is_it: fn(&str) -> bool| pairs.iter().any(|(name, _)| is_it(name));
        self.context.is_clustered && is_named(Settings::is_shared)
            || self.context.shares_users() && is_named(|name| name == PASSWORD)
    }

    /// Lets group 0 log what is said of the cluster's parameters. The node's own follow when that is done.
    pub(crate) fn set_parameters(&mut self, id: u64, mut pending: Pending, pairs: Pairs, actions: &mut Vec<Action>) {
        let (shared, own): (Pairs, Pairs) = pairs.into_iter().partition(|(name, _)| Settings::is_shared(name));
        let mut trial = Settings::clone(&self.context.settings);
        for (name, value) in &shared {
            trial.set(name, value).expect("checked before the question was put");
        }
        let named = shared.iter().map(|(name, _)| Settings::first_name(name));
        pending.shared = named.map(|name| (name.to_owned(), trial.get(name).to_owned())).collect();
        let password = own.iter().find(|(name, _)| name == PASSWORD);
        pending.wish = password.map(|(_, password)| Wish::Password(password.clone()));
        pending.own = own;
        self.submit_change(id, pending, actions);
    }

    /// Lets group 0 log what is said of the cluster's users.
    pub(crate) fn wish_for_users(&mut self, id: u64, mut pending: Pending, wish: Wish, actions: &mut Vec<Action>) {
        pending.wish = Some(wish);
        self.submit_change(id, pending, actions);
    }

    fn submit_change(&mut self, id: u64, mut pending: Pending, actions: &mut Vec<Action>) {
        let mut change = pending.shared.clone();
        pending.answers = vec![None];
        if let Some(wish) = &pending.wish {
            let Context { access, parameters, settings, .. } = &self.context;
            match access.users.to_wish(wish, parameters, settings.all_channels) {
                Ok((pairs, removed_count)) => {
                    change.extend(pairs);
                    pending.removed_count = removed_count;
                }
                Err(why) => {
                    self.questions.pending.insert(id, pending);
                    return self.parameters_refused(id, &format!("ERR {why}"), actions);
                }
            }
        }
        let answerable = match self.check_quorum(GroupId(HOME)) {
            Ok(answerable) => answerable,
            Err(refusal) => {
                self.questions.pending.insert(id, pending);
                return self.parameters_refused(id, refusal.text(), actions);
            }
        };
        let change = encode(change.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let origin = self.origin_of(pending.session);
        self.questions.pending.insert(id, pending);
        let request = Request::new(origin, GroupId(HOME), Protocol::Resp2, RequestBody::Configure(change));
        self.relay.submit(request, Purpose::Parameters { id }, answerable, self.now.instant);
    }

    /// Group 0 has logged it: the leaders of all groups are asked whether they obey.
    pub(crate) fn parameters_set(&mut self, id: u64, answer: &[u8], actions: &mut Vec<Action>) {
        let Some(pending) = self.questions.pending.get_mut(&id) else { return };
        let (version, refusal) = message::answer::take_changed(answer);
        if refusal == USERS_CHANGED.as_bytes() {
            self.belated.push((version, id));
            return self.submit_belated(actions);
        }
        if !refusal.is_empty() {
            let text = String::from_utf8_lossy(refusal).trim_start_matches('-').trim_end().to_owned();
            return self.parameters_refused(id, &text, actions);
        }
        pending.version = version;
        pending.answers = (0..self.context.slots.group_count()).map(|_| Some(Answer::Done)).collect();
        let (session, version) = (pending.session, pending.version);
        let groups: Vec<GroupId> = self.context.slots.groups().collect();
        groups.iter().for_each(|group| pending.answers[group.0 as usize] = None);
        for group in groups {
            let request = Request::new(self.origin_of(session), group, Protocol::Resp2, RequestBody::Obey(version));
            self.relay.submit(request, Purpose::Obeyed { id }, Answerable::UNDER_WAY, self.now.instant);
        }
    }

    /// It could not be logged, or nobody knows whether it has been.
    pub(crate) fn parameters_refused(&mut self, id: u64, text: &str, actions: &mut Vec<Action>) {
        if let Some(pending) = self.questions.pending.get_mut(&id) {
            pending.answers = vec![Some(Answer::Refused(text.to_owned()))];
            self.complete_answer(id, actions);
        }
    }

    /// The leader of a group obeys; or nobody leads it, and the next leader learns of the change with the log.
    pub(crate) fn parameters_obeyed(&mut self, id: u64, group: GroupId, actions: &mut Vec<Action>) {
        let Some(pending) = self.questions.pending.get_mut(&id) else { return };
        pending.answers[group.0 as usize] = Some(Answer::Done);
        if pending.answers.iter().any(Option::is_none) {
            return;
        }
        let Pending { session, ticket, mut joining, words, own, version, wish, removed_count, .. } =
            self.questions.pending.remove(&id).expect("just seen");
        if let Some(Wish::Change(Change::Remove(_))) = wish {
            let mut written = Writer::new(self.sessions.get(session).map(Session::protocol).unwrap_or_default());
            written.integer(removed_count as i64);
            joining = Joining::After { written, is_composed: matches!(joining, Joining::Composed(_)) };
        }
        self.ask(session, ticket, joining, words, Question::Configure { pairs: own, version }, actions);
    }

    /// Makes changes of users again that were made for users who have been changed meanwhile, when this core knows of
    /// that.
    fn submit_belated(&mut self, actions: &mut Vec<Action>) {
        let known = self.context.parameters.version;
        for (version, id) in std::mem::take(&mut self.belated) {
            if version > known {
                self.belated.push((version, id));
            } else if let Some(pending) = self.questions.pending.remove(&id) {
                self.submit_change(id, pending, actions);
            }
        }
    }

    /// The cluster's parameters are these now.
    pub(crate) fn take_parameters(&mut self, parameters: Arc<Parameters>, actions: &mut Vec<Action>) {
        if parameters.version < self.context.parameters.version {
            return;
        }
        let mut trial = Settings::clone(&self.context.settings);
        // Nodes of another version may know others.
        let mut news = Pairs::new();
        for (name, value) in parameters.iter() {
            if Settings::is_shared(name) && trial.get(name) != value && trial.set(name, value).is_ok() {
                news.push((name.to_owned(), value.to_owned()));
            }
        }
        let are_users_new = !parameters.users().eq(self.context.parameters.users());
        self.context.parameters = parameters;
        if are_users_new {
            self.overlay_users();
        }
        self.submit_belated(actions);
        if !news.is_empty() {
            self.configure(&news, actions);
        }
        if self.context.parameters.iter().any(|(name, _)| name == "import-mode") {
            let import_mode = self.context.settings.import_mode;
            for group in self.groups.iter_mut().flatten() {
                group.set_import_mode(import_mode);
            }
        }
    }
}

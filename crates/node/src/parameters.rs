//! How a core sets parameters that are the cluster's and not a node's, and obeys them.
//!
//! A client that sets one is answered when the leaders of all groups obey it, and all cores of its own node.

use std::sync::Arc;

pub use message::parameters::{HOME, Pairs, Parameters};

use message::parameters::encode;
use resp::Protocol;

use crate::ask::Pending;
use crate::commands::{Answer, Question};
use crate::core::Core;
use crate::event::{Action, GroupId};
use crate::letter::{Request, RequestBody};
use crate::relay::Purpose;
use crate::settings::Settings;

impl Core {
    /// True if there is a cluster, and some of these parameters are its.
    pub(crate) fn is_for_cluster(&self, pairs: &[(String, String)]) -> bool {
        self.context.is_clustered && pairs.iter().any(|(name, _)| Settings::is_shared(name))
    }

    /// Lets group 0 log what is said of the cluster's parameters. The node's own follow when that is done.
    pub(crate) fn set_parameters(&mut self, id: u64, mut pending: Pending, pairs: Pairs) {
        let (shared, own): (Pairs, Pairs) = pairs.into_iter().partition(|(name, _)| Settings::is_shared(name));
        let mut trial = Settings::clone(&self.context.settings);
        for (name, value) in &shared {
            trial.set(name, value).expect("checked before the question was put");
        }
        let named: Vec<_> = shared.iter().map(|(name, _)| Settings::first_name(name)).collect();
        let change = encode(named.iter().map(|name| (*name, trial.get(name))));
        let origin = self.origin_of(pending.session);
        pending.own = own;
        pending.answers = vec![None];
        self.pending.insert(id, pending);
        let request = Request::new(origin, GroupId(HOME), Protocol::Resp2, RequestBody::Configure(change));
        self.relay.submit(request, Purpose::Parameters { id }, self.now.instant);
    }

    /// Group 0 has logged it: the leaders of all groups are asked whether they obey.
    pub(crate) fn parameters_set(&mut self, id: u64, answer: &[u8], actions: &mut Vec<Action>) {
        let Some(pending) = self.pending.get_mut(&id) else { return };
        let (version, refusal) = message::answer::take_changed(answer);
        if !refusal.is_empty() {
            let text = String::from_utf8_lossy(refusal).trim_start_matches('-').trim_end().to_owned();
            return self.parameters_refused(id, &text, actions);
        }
        pending.version = version;
        pending.answers = (0..self.context.slots.group_count()).map(|_| None).collect();
        let (session, version) = (pending.session, pending.version);
        for group in (0..self.context.slots.group_count()).map(GroupId) {
            let request = Request::new(self.origin_of(session), group, Protocol::Resp2, RequestBody::Obey(version));
            self.relay.submit(request, Purpose::Obeyed { id }, self.now.instant);
        }
    }

    /// It could not be logged, or nobody knows whether it has been.
    pub(crate) fn parameters_refused(&mut self, id: u64, text: &str, actions: &mut Vec<Action>) {
        if let Some(pending) = self.pending.get_mut(&id) {
            pending.answers = vec![Some(Answer::Refused(text.to_owned()))];
            self.complete_answer(id, actions);
        }
    }

    /// The leader of a group obeys; or nobody leads it, and whoever will do so next learns of the change with the log.
    pub(crate) fn parameters_obeyed(&mut self, id: u64, group: GroupId, actions: &mut Vec<Action>) {
        let Some(pending) = self.pending.get_mut(&id) else { return };
        pending.answers[group.0 as usize] = Some(Answer::Done);
        if pending.answers.iter().any(Option::is_none) {
            return;
        }
        let Pending { session, ticket, joining, words, own, version, .. } =
            self.pending.remove(&id).expect("just seen");
        self.ask(session, ticket, joining, words, Question::Configure { pairs: own, version }, actions);
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
        self.context.parameters = parameters;
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

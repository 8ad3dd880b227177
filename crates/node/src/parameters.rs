//! Parameters that are the cluster's and not a node's: what CONFIG SET has said of them. They are part of the
//! replicated state of group 0, and every core of every node obeys them.
//!
//! A client that sets one is answered when the leaders of all groups obey it, and all cores of its own node.

use std::collections::BTreeMap;
use std::sync::Arc;

use resp::Protocol;
use stdx::leb128;

use crate::ask::Pending;
use crate::commands::{Answer, Question};
use crate::core::Core;
use crate::entry::{Reader, put_bytes};
use crate::event::{Action, GroupId};
use crate::letter::{Request, RequestBody};
use crate::relay::Purpose;
use crate::settings::Settings;
use crate::wire;

/// The group whose log holds the parameters.
pub(crate) const HOME: u32 = 0;

/// All parameters of the cluster that have ever been set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    values: BTreeMap<String, String>,
    /// Number of changes that there have been.
    pub(crate) version: u64,
}

/// Names with values.
pub type Pairs = Vec<(String, String)>;

/// A change, as it is asked for and logged.
pub(crate) fn encode<'a>(pairs: impl ExactSizeIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    let mut out = Vec::new();
    leb128::put(&mut out, pairs.len() as u64);
    for (name, value) in pairs {
        put_bytes(&mut out, name.as_bytes());
        put_bytes(&mut out, value.as_bytes());
    }
    out
}

/// Reads what [`encode`] wrote.
pub(crate) fn read(reader: &mut Reader<'_>) -> Pairs {
    let text = |reader: &mut Reader<'_>| String::from_utf8_lossy(reader.bytes()).into_owned();
    (0..reader.number()).map(|_| (text(reader), text(reader))).collect()
}

impl Parameters {
    /// Makes a change.
    pub(crate) fn apply(&mut self, pairs: Pairs) {
        self.values.extend(pairs);
        self.version += 1;
    }

    /// Appends all, for a checkpoint.
    pub(crate) fn save(&self, out: &mut Vec<u8>) {
        leb128::put(out, self.version);
        out.extend(encode(self.values.iter().map(|(name, value)| (name.as_str(), value.as_str()))));
    }

    /// What [`Parameters::save`] wrote.
    pub(crate) fn load(reader: &mut Reader<'_>) -> Self {
        Self { version: reader.number(), values: read(reader).into_iter().collect() }
    }
}

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
        let (version, refusal) = wire::take_changed(answer);
        if !refusal.is_empty() {
            let text = String::from_utf8_lossy(refusal).trim_start_matches('-').trim_end().to_owned();
            return self.parameters_refused(id, &text, actions);
        }
        pending.version = version;
        pending.answers = (0..self.context.group_count).map(|_| None).collect();
        let (session, version) = (pending.session, pending.version);
        for group in (0..self.context.group_count).map(GroupId) {
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
        for (name, value) in &parameters.values {
            if Settings::is_shared(name) && trial.get(name) != value && trial.set(name, value).is_ok() {
                news.push((name.clone(), value.clone()));
            }
        }
        self.context.parameters = parameters;
        if !news.is_empty() {
            self.configure(&news, actions);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_last_holds_and_is_found_again() {
        let pairs = |text: &str| -> Pairs {
            text.split(' ').filter_map(|pair| pair.split_once('=')).map(|(n, v)| (n.to_owned(), v.to_owned())).collect()
        };
        let change = pairs("a=1 b=two");
        let bytes = encode(change.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        assert_eq!(read(&mut Reader::new(&bytes)), change);
        let mut parameters = Parameters::default();
        parameters.apply(change);
        parameters.apply(pairs("b=3 c=4"));
        let mut saved = Vec::new();
        parameters.save(&mut saved);
        let loaded = Parameters::load(&mut Reader::new(&saved));
        assert_eq!(loaded, parameters);
        assert_eq!((loaded.version, loaded.values["b"].as_str()), (2, "3"));
    }
}

//! Looks for nodes of the cluster where `--join` says, while one of them is not linked: all may have other addresses
//! now than those that they remember of one another.
//!
//! An answer only says where a node may be. Who is called there still has to show that it is that node, with a
//! certificate of the cluster, where it has an authority.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::ToSocketAddrs as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use group::ids::{Lane, NodeId};
use node::event::Event;

use super::{Asker, Peers, Sought, Unanswered, ask, lock};
use crate::host::Host;
use crate::limits::{
    LINK_CONNECT_MAX, SEEK_AFTER, SEEK_LOOK_INTERVAL, SEEK_PAUSE_MAX, SEEK_PAUSE_MIN, SEEK_PLACES_MAX, STRANDED_AFTER,
};
use crate::mailbox::Mail;
use crate::tls::LinkSecurity;

/// Most answers that are remembered.
const FOUND_MAX: usize = 1_024;

/// See the module.
pub(super) struct Search {
    /// What the operator has said.
    joins: Vec<String>,
    begun: Instant,
    looked: Instant,
    /// Since when a node has not been linked.
    lacks_since: Option<Instant>,
    /// Not before.
    next: Instant,
    pause: Duration,
    /// A thread asks.
    is_under_way: bool,
    /// Somebody was asked since the start.
    has_asked: bool,
    /// What was last told of an address.
    told: BTreeMap<String, String>,
    /// Who has answered where, while not all were linked: several may stand behind one address.
    found: BTreeSet<(String, NodeId)>,
    has_told_stranded: bool,
}

impl Search {
    pub(super) fn new(joins: Vec<String>) -> Self {
        let now = Instant::now();
        Self {
            joins,
            begun: now,
            looked: now,
            lacks_since: None,
            next: now,
            pause: SEEK_PAUSE_MIN,
            is_under_way: false,
            has_asked: false,
            told: BTreeMap::new(),
            found: BTreeSet::new(),
            has_told_stranded: false,
        }
    }

    /// Whether it is time to ask, if a node is not linked or all are. Once it is in any case: who is where the operator
    /// has said may be of another cluster.
    fn is_due(&mut self, lacks_somebody: bool, now: Instant) -> bool {
        let is_idle = !self.joins.is_empty() && !self.is_under_way;
        if !lacks_somebody {
            (self.lacks_since, self.pause, self.next) = (None, SEEK_PAUSE_MIN, now);
            self.found.clear();
            let is_first = is_idle && !self.has_asked && now.duration_since(self.begun) >= SEEK_AFTER;
            self.has_asked |= is_first;
            return is_first;
        }
        let since = *self.lacks_since.get_or_insert(now);
        if !is_idle || now < self.next || now.duration_since(since) < SEEK_AFTER {
            return false;
        }
        self.has_asked = true;
        self.next = now + self.pause;
        self.pause = (self.pause * 2).min(SEEK_PAUSE_MAX);
        true
    }

    /// True if something is said of an address that was not the last word on it.
    fn is_news(&mut self, address: &str, word: &str) -> bool {
        if self.told.len() > SEEK_PLACES_MAX {
            self.told.clear();
        }
        self.told.insert(address.to_owned(), word.to_owned()).as_deref() != Some(word)
    }

    /// True if it is new that this node answers there. Others may be known to one that is not linked: it is asked again
    /// soon.
    fn is_found(&mut self, address: &str, node: NodeId, is_linked: bool) -> bool {
        if self.found.len() > FOUND_MAX {
            self.found.clear();
        }
        let is_new = self.found.insert((address.to_owned(), node));
        if is_new {
            self.told.remove(address);
        }
        if is_new && !is_linked {
            self.pause = SEEK_PAUSE_MIN;
        }
        is_new
    }
}

impl Peers {
    /// Asks at the addresses of `--join`, if it is time.
    pub(super) fn seek(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.search.looked) < SEEK_LOOK_INTERVAL {
            return;
        }
        self.search.looked = now;
        let lacks_somebody = self.lacks_somebody();
        if !self.is_expelled && self.search.is_due(lacks_somebody, now) {
            let own = Asker { node: self.identity.node, levels: self.voice.levels };
            let links = self.host.security().links.clone();
            // Without a thread for it nobody is asked this time.
            self.search.is_under_way =
                ask_around(Arc::clone(&self.host), self.search.joins.clone(), links, own).is_ok();
        }
        self.tell_stranded();
    }

    /// A node of the cluster is not linked, or none is known although this one has joined some.
    fn lacks_somebody(&self) -> bool {
        let mut firsts = self.tokens.iter().filter(|((_, lane, core), _)| (*lane, *core) == (Lane::Log, 0));
        let is_by_itself = self.tokens.is_empty() && self.identity.has_joined;
        !self.is_expelled && (is_by_itself || firsts.any(|(_, token)| !lock(&self.links[token].link).is_up()))
    }

    /// Nobody is where this node remembers them, and it was not told where else to look: the operator can help.
    fn tell_stranded(&mut self) {
        if self.search.has_told_stranded || self.started.elapsed() < STRANDED_AFTER {
            return;
        }
        self.search.has_told_stranded = true;
        let was_up = |token: &usize| lock(&self.links[token].link).report().count > 0;
        if self.search.joins.is_empty() && !self.tokens.is_empty() && !self.tokens.values().any(was_up) {
            self.host.log.warning(
                "no other node has answered where it was last. If all of them have other addresses now, restart this \
                 node with --join and where one of them is (HOST:PORT for other nodes)",
            );
        }
    }

    /// Who is where the operator has said.
    pub(super) fn hear_of(&mut self, (sought, is_all): (Vec<Sought>, bool)) {
        if is_all {
            self.search.is_under_way = false;
        }
        for (address, answer) in sought {
            match answer {
                Err(Unanswered { cause, .. }) => {
                    if self.search.is_news(&address, &cause) {
                        self.host.log.warning(&format!("looks for other nodes where --join says: {cause}"));
                    }
                }
                Ok(answer) if answer.cluster != self.identity.cluster => {
                    if self.search.is_news(&address, "foreign") {
                        self.host.log.warning(&format!(
                            "{address}, where --join says, is a node of another cluster: this one holds the data of \
                             its own. To join the other one, start with an empty directory"
                        ));
                    }
                }
                Ok(answer) if answer.node.0 == self.identity.node || self.removed.contains(&answer.node) => {}
                Ok(answer) => self.hear_where(answer.node, address),
            }
        }
    }

    /// A node of this cluster says that it is there.
    fn hear_where(&mut self, node: NodeId, address: String) {
        let known = self.tokens.get(&(node, Lane::Log, 0)).map(|token| lock(&self.links[token].link));
        let is_linked = known.as_ref().is_some_and(|link| link.is_up());
        let is_linked_there = is_linked && known.as_ref().is_some_and(|link| link.address() == address);
        drop(known);
        if is_linked_there || is_linked && !self.lacks_somebody() {
            return;
        }
        if self.search.is_found(&address, node, is_linked) {
            self.host.log.notice(&format!("node {} answers at {address}, where --join says", node.0));
        }
        self.host.desks[0].mailbox.post(Mail::Event(Event::Found { node, address }));
    }
}

/// Asks everybody on a thread of its own: names and nodes may be slow to answer.
fn ask_around(host: Arc<Host>, joins: Vec<String>, links: Option<LinkSecurity>, own: Asker) -> io::Result<()> {
    let asks = move || {
        for address in each_place(&joins) {
            let answer = ask(&address, links.as_ref(), own, LINK_CONNECT_MAX);
            host.peers.put(|waiting| waiting.sought.push((address, answer)));
        }
        host.peers.put(|waiting| waiting.has_sought = true);
    };
    std::thread::Builder::new().name("seeker".into()).spawn(asks).map(drop)
}

/// All that is meant by these addresses: a name may stand for several nodes.
pub fn each_place(joins: &[String]) -> Vec<String> {
    let mut places: Vec<String> = Vec::new();
    for join in joins {
        let meant: Vec<String> =
            join.to_socket_addrs().map(|meant| meant.map(|place| place.to_string()).collect()).unwrap_or_default();
        // A name that means one node outlives its address, and who asks there is told why it means nothing.
        let meant = if meant.len() > 1 { meant } else { vec![join.clone()] };
        places.extend(meant);
    }
    let mut seen = BTreeSet::new();
    places.retain(|place| seen.insert(place.clone()));
    places.truncate(SEEK_PLACES_MAX);
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_found_is_looked_for_less_and_less_often() {
        let begun = Instant::now();
        let mut search = Search::new(vec!["127.0.0.1:1".to_owned()]);
        let mut asked_s = Vec::new();
        for second in 0..600 {
            if search.is_due(true, begun + Duration::from_secs(second)) {
                asked_s.push(second);
            }
        }
        let pauses: Vec<u64> = asked_s.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(pauses[..7], [1, 2, 4, 8, 16, 32, 60], "{asked_s:?}");
        assert!(pauses[7..].iter().all(|pause| *pause == 60), "{asked_s:?}");
        // All are there, and then one is not: it begins again.
        let later = begun + Duration::from_secs(700);
        assert!(!search.is_due(false, later));
        assert!(!search.is_due(true, later), "it may only be restarting");
        assert!(search.is_due(true, later + SEEK_AFTER));
        search.is_under_way = true;
        assert!(!search.is_due(true, later + Duration::from_secs(100)), "one search at a time");
        assert!(!Search::new(Vec::new()).is_due(true, begun + Duration::from_secs(10)));
    }

    #[test]
    fn a_node_that_lacks_nobody_asks_once_at_its_start() {
        let begun = Instant::now();
        let mut search = Search::new(vec!["127.0.0.1:1".to_owned()]);
        let asks = [0, 5, 6, 700].map(|second| search.is_due(false, begun + Duration::from_secs(second)));
        assert_eq!(asks, [false, true, false, false]);
        assert!(!Search::new(Vec::new()).is_due(false, begun + Duration::from_secs(5)), "nowhere to ask");
    }

    #[test]
    fn several_nodes_behind_one_address_are_told_once_each_and_asked_less_and_less_often() {
        let mut search = Search::new(Vec::new());
        search.pause = SEEK_PAUSE_MAX;
        assert!(search.is_found("a:1", NodeId(2), true));
        assert_eq!(search.pause, SEEK_PAUSE_MAX, "it is linked");
        assert!(search.is_found("a:1", NodeId(3), false));
        assert_eq!(search.pause, SEEK_PAUSE_MIN, "it was lacking, and may know others");
        search.pause = SEEK_PAUSE_MAX;
        let told = [("a:1", 2), ("a:1", 3), ("a:1", 2), ("b:1", 2)];
        let news = told.map(|(address, node)| search.is_found(address, NodeId(node), true));
        assert_eq!(news, [false, false, false, true]);
        assert!(!search.is_found("a:1", NodeId(3), false));
        assert_eq!(search.pause, SEEK_PAUSE_MAX);
        assert!(search.is_news("a:1", "refused"), "that was before somebody answered there");
        // All are linked: what is found later is news.
        search.is_due(false, Instant::now());
        assert!(search.is_found("a:1", NodeId(2), true));
    }

    #[test]
    fn the_same_word_on_an_address_is_told_once() {
        let mut search = Search::new(Vec::new());
        let told = [("a:1", "refused"), ("b:1", "refused"), ("a:1", "refused"), ("a:1", "node 2"), ("a:1", "refused")];
        let news: Vec<bool> = told.iter().map(|(address, word)| search.is_news(address, word)).collect();
        assert_eq!(news, [true, true, false, true, true]);
    }

    #[test]
    fn addresses_are_asked_once_each_and_not_without_end() {
        let joins = ["127.0.0.1:7", "no.name.invalid:7", "127.0.0.1:7"].map(str::to_owned);
        assert_eq!(each_place(&joins), joins[..2]);
        let many: Vec<String> = (1..100).map(|port| format!("127.0.0.1:{port}")).collect();
        assert_eq!(each_place(&many).len(), SEEK_PLACES_MAX);
    }
}

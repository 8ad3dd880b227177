//! Could these transactions have run one after the other, in an order that respects the clock?
//!
//! Transactions append unique elements to lists and read whole lists. A list that is only ever appended to tells its
//! own history, so that everything can be derived from what was read (Kingsbury and Alvaro, "Elle: inferring isolation
//! anomalies from experimental observations", 2020): which write came before which (ww), which write a read saw (wr),
//! and which write a read came before (rw). If one transaction was answered before another was called, it comes first
//! as well. A circle in that graph is a proof that no such order exists; the kinds of its edges name the anomaly:
//! | circle of | name | |
//! | --- | --- | --- |
//! | ww | G0 | writes of two transactions interleave |
//! | ww, wr | G1c | information flows in a circle |
//! | and rw | G2-item | reads that cannot have been made at one moment; write skew |
//! | and time | real-time | right in itself, but not in the order of the clock |
//!
//! Besides, without a graph: lost and doubled elements, elements of transactions that did not happen (G1a), states
//! between two writes of one transaction (G1b), reads that no order of appends explains, and transactions that do not
//! see their own writes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Anomalies of one kind that are told in words.
const EXAMPLES_MAX: usize = 5;

/// What a transaction did to one list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It appended an element that nobody else has.
    Append {
        /// The list.
        list: u32,
        /// The element.
        element: u32,
        /// How many elements the list had then, this one included, if it was told.
        length: Option<u32>,
    },
    /// It read the whole list.
    Read {
        /// The list.
        list: u32,
        /// What it found.
        found: Vec<u32>,
    },
}

/// How a transaction ended, as far as its client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It happened, and was answered at this time.
    Committed(u64),
    /// No answer came.
    Unknown,
    /// It did not happen, and never will.
    Aborted,
}

/// One transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// When it was called.
    pub called: u64,
    /// How it ended.
    pub end: End,
    /// In order. Of one that has not been answered, reads are unknown and left out.
    pub steps: Vec<Step>,
}

/// What is wrong with a history.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Anomalies {
    /// How many of each kind, by name.
    pub counts: BTreeMap<&'static str, u64>,
    /// Some of them in words.
    pub examples: Vec<String>,
    /// Committed appends that are gone: when each was answered.
    pub lost: Vec<u64>,
    /// Elements that are there more than once.
    pub doubled: u64,
    /// Elements that nobody appended, or that moved.
    pub altered: u64,
    /// Unanswered transactions that have happened.
    pub unknown_in_effect: u64,
}

/// Names of anomalies, as they are counted.
pub const LOST: &str = "lost append";
/// An element is there more than once.
pub const DOUBLED: &str = "doubled append";
/// An element that nobody appended, or at another place than was told.
pub const ALTERED: &str = "altered list";
/// An element of a transaction that did not happen.
pub const ABORTED_READ: &str = "G1a aborted read";
/// A state between two writes of one transaction.
pub const INTERMEDIATE_READ: &str = "G1b intermediate read";
/// A read that is no beginning of the list.
pub const INCOMPATIBLE: &str = "incompatible read";
/// A transaction that does not see its own writes.
pub const INTERNAL: &str = "internal";
/// Half of a transaction is there.
pub const HALF: &str = "half transaction";

/// Judges a history; `lists` are all lists as they were in the end.
pub fn check(transactions: &[Transaction], lists: &BTreeMap<u32, Vec<u32>>) -> Anomalies {
    let mut judge =
        Judge { transactions, lists, writer: BTreeMap::new(), place: BTreeMap::new(), found: Anomalies::default() };
    judge.index();
    judge.look_at_lists();
    judge.look_at_transactions();
    judge.look_for_circles();
    judge.found
}

struct Judge<'a> {
    transactions: &'a [Transaction],
    lists: &'a BTreeMap<u32, Vec<u32>>,
    /// Element to transaction.
    writer: BTreeMap<u32, u32>,
    /// List and element to the element's place in the end.
    place: BTreeMap<(u32, u32), u32>,
    found: Anomalies,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    WriteWrite,
    WriteRead,
    ReadWrite,
    Time,
}

/// Edges by where they begin. Behind the transactions come the nodes of the clock.
struct Graph(Vec<Vec<(u32, Kind)>>);

impl Judge<'_> {
    fn tell(&mut self, name: &'static str, text: impl FnOnce() -> String) {
        let count = self.found.counts.entry(name).or_default();
        *count += 1;
        if *count <= EXAMPLES_MAX as u64 {
            let text = text();
            self.found.examples.push(format!("{name}: {text}"));
        }
    }

    fn index(&mut self) {
        for (number, transaction) in self.transactions.iter().enumerate() {
            for step in &transaction.steps {
                if let Step::Append { element, .. } = step {
                    self.writer.insert(*element, number as u32);
                }
            }
        }
    }

    fn look_at_lists(&mut self) {
        let lists = self.lists;
        let mut keys: Vec<u32> = lists.keys().copied().collect();
        keys.sort_unstable();
        for list in keys {
            for (place, element) in lists[&list].iter().enumerate() {
                if self.place.insert((list, *element), place as u32).is_some() {
                    self.found.doubled += 1;
                    self.tell(DOUBLED, || format!("element {element:x} of list {list}"));
                }
                match self.writer.get(element).map(|&writer| self.transactions[writer as usize].end) {
                    None => {
                        self.found.altered += 1;
                        self.tell(ALTERED, || format!("element {element:x} of list {list}, which nobody appended"));
                    }
                    Some(End::Aborted) => {
                        self.tell(ABORTED_READ, || {
                            format!("element {element:x} of list {list}, from a transaction that did not happen")
                        });
                    }
                    Some(_) => {}
                }
            }
        }
    }

    fn look_at_transactions(&mut self) {
        let transactions = self.transactions;
        for (number, transaction) in transactions.iter().enumerate() {
            self.look_at_appends(number, transaction);
            if let End::Committed(_) = transaction.end {
                self.look_at_reads(number, transaction);
            }
        }
    }

    fn look_at_appends(&mut self, number: usize, transaction: &Transaction) {
        let (mut present, mut absent) = (0, 0);
        for step in &transaction.steps {
            let Step::Append { list, element, length } = step else { continue };
            match self.place.get(&(*list, *element)) {
                Some(&place) => {
                    present += 1;
                    if length.is_some_and(|length| length != place + 1) {
                        self.found.altered += 1;
                        self.tell(ALTERED, || {
                            format!(
                                "element {element:x} of list {list} was told to be number {length:?}, and is {}",
                                place + 1
                            )
                        });
                    }
                }
                None => {
                    absent += 1;
                    if let End::Committed(answered) = transaction.end {
                        self.found.lost.push(answered);
                        self.tell(LOST, || format!("element {element:x} of list {list}, transaction {number}"));
                    }
                }
            }
        }
        if transaction.end == End::Unknown && present > 0 {
            self.found.unknown_in_effect += 1;
        }
        if present > 0 && absent > 0 {
            self.tell(HALF, || format!("of transaction {number}, {present} appends are there and {absent} are not"));
        }
    }

    fn look_at_reads(&mut self, number: usize, transaction: &Transaction) {
        let none = Vec::new();
        let lists = self.lists;
        for (at, step) in transaction.steps.iter().enumerate() {
            let Step::Read { list, found } = step else { continue };
            let own = own_appends(&transaction.steps[..at], *list);
            if !found.ends_with(&own) {
                self.tell(INTERNAL, || format!("transaction {number} does not see what it appended to list {list}"));
            }
            let last = lists.get(list).unwrap_or(&none);
            if !last.starts_with(found) {
                self.tell(INCOMPATIBLE, || {
                    let len = found.len();
                    format!("transaction {number} read {len} elements of list {list} that are no beginning of it")
                });
                continue;
            }
            // A read that ends between two appends of another.
            let outside = found.len() - own.len().min(found.len());
            let neighbours = outside.checked_sub(1).map(|before| (last[before], last.get(outside)));
            if let Some((before, Some(after))) = neighbours {
                let (one, other) = (self.writer.get(&before), self.writer.get(after));
                if one.is_some() && one == other && one != Some(&(number as u32)) {
                    self.tell(INTERMEDIATE_READ, || {
                        format!("transaction {number} saw list {list} in the middle of another")
                    });
                }
            }
        }
    }

    fn happened(&self, number: u32) -> bool {
        let transaction = &self.transactions[number as usize];
        match transaction.end {
            End::Committed(_) => true,
            End::Aborted => false,
            End::Unknown => transaction.steps.iter().any(|step| match step {
                Step::Append { list, element, .. } => self.place.contains_key(&(*list, *element)),
                Step::Read { .. } => false,
            }),
        }
    }

    fn look_for_circles(&mut self) {
        let graph = self.graph();
        let classes: [(&'static str, Kind); 4] = [
            ("G0", Kind::WriteWrite),
            ("G1c", Kind::WriteRead),
            ("G2-item", Kind::ReadWrite),
            ("real-time", Kind::Time),
        ];
        // A circle of few kinds of edges is one of more kinds, too, and is told once.
        let mut told = vec![false; graph.0.len()];
        for (name, largest) in classes {
            for component in graph.components(largest) {
                if component.iter().any(|&node| told[node as usize]) {
                    continue;
                }
                component.iter().for_each(|&node| told[node as usize] = true);
                let circle = graph.circle(&component, largest);
                let shown = self.show(&circle);
                self.tell(name, || shown);
            }
        }
    }

    fn graph(&self) -> Graph {
        let count = self.transactions.len();
        let mut graph = Graph(vec![Vec::new(); count]);
        let mut add = |from: u32, to: u32, kind: Kind| {
            if from != to && !graph.0[from as usize].contains(&(to, kind)) {
                graph.0[from as usize].push((to, kind));
            }
        };
        for list in self.lists.values() {
            let writers: Vec<u32> = list.iter().filter_map(|element| self.writer.get(element).copied()).collect();
            for pair in writers.windows(2) {
                add(pair[0], pair[1], Kind::WriteWrite);
            }
        }
        let none = Vec::new();
        for (number, transaction) in self.transactions.iter().enumerate() {
            if !matches!(transaction.end, End::Committed(_)) {
                continue;
            }
            for (at, step) in transaction.steps.iter().enumerate() {
                let Step::Read { list, found } = step else { continue };
                let last = self.lists.get(list).unwrap_or(&none);
                if !last.starts_with(found) {
                    continue;
                }
                let outside = found.len().saturating_sub(own_appends(&transaction.steps[..at], *list).len());
                let writer = |place: usize| last.get(place).and_then(|element| self.writer.get(element).copied());
                if let Some(writer) = outside.checked_sub(1).and_then(writer) {
                    add(writer, number as u32, Kind::WriteRead);
                }
                if let Some(writer) = writer(found.len()) {
                    add(number as u32, writer, Kind::ReadWrite);
                }
            }
        }
        self.add_time(&mut graph);
        graph
    }

    /// One node for each answer, in a chain: from a transaction to the node of its answer, and from the last answer
    /// before a call to the transaction called. So a few edges give the order in time of all transactions.
    fn add_time(&self, graph: &mut Graph) {
        let mut answers: Vec<(u64, u32)> = Vec::new();
        for (number, transaction) in self.transactions.iter().enumerate() {
            if let End::Committed(answered) = transaction.end {
                answers.push((answered, number as u32));
            }
        }
        answers.sort_unstable();
        let first = graph.0.len() as u32;
        for (index, (_, number)) in answers.iter().enumerate() {
            let node = first + index as u32;
            graph.0[*number as usize].push((node, Kind::Time));
            graph.0.push(Vec::new());
            if index + 1 < answers.len() {
                graph.0[node as usize].push((node + 1, Kind::Time));
            }
        }
        for (number, transaction) in self.transactions.iter().enumerate() {
            let before = answers.partition_point(|(answered, _)| *answered < transaction.called);
            if before > 0 && self.happened(number as u32) {
                graph.0[first as usize + before - 1].push((number as u32, Kind::Time));
            }
        }
    }

    /// Transactions of a circle and what leads from each to the next.
    fn show(&self, circle: &[(u32, Kind)]) -> String {
        let mut text = String::new();
        let mut was_time = false;
        for (node, kind) in circle {
            let is_transaction = (*node as usize) < self.transactions.len();
            if is_transaction {
                text.push_str(&format!("{node} "));
            }
            // The nodes of the clock between two transactions are one step.
            if *kind != Kind::Time || !was_time {
                text.push_str(match kind {
                    Kind::WriteWrite => "-ww-> ",
                    Kind::WriteRead => "-wr-> ",
                    Kind::ReadWrite => "-rw-> ",
                    Kind::Time => "-time-> ",
                });
            }
            was_time = *kind == Kind::Time;
        }
        let first = circle.iter().find(|(node, _)| (*node as usize) < self.transactions.len());
        format!("transactions {text}{}", first.map_or(0, |(node, _)| *node))
    }
}

fn own_appends(steps: &[Step], list: u32) -> Vec<u32> {
    let own = steps.iter().filter_map(|step| match step {
        Step::Append { list: other, element, .. } if *other == list => Some(*element),
        _ => None,
    });
    own.collect()
}

impl Graph {
    fn edges(&self, node: u32, largest: Kind) -> impl Iterator<Item = (u32, Kind)> + '_ {
        self.0[node as usize].iter().copied().filter(move |(_, kind)| *kind <= largest)
    }

    /// Groups of nodes that can all reach each other over edges of these kinds (Tarjan, 1972, with a stack of its own:
    /// chains of a hundred thousand transactions are too deep for the thread's).
    fn components(&self, largest: Kind) -> Vec<Vec<u32>> {
        const UNSEEN: u32 = u32::MAX;
        let count = self.0.len();
        let (mut order, mut low, mut on_stack) = (vec![UNSEEN; count], vec![0; count], vec![false; count]);
        let (mut stack, mut next, mut components) = (Vec::new(), 0, Vec::new());
        for root in 0..count as u32 {
            if order[root as usize] != UNSEEN {
                continue;
            }
            let mut path = vec![(root, 0)];
            while let Some((node, edge)) = path.last_mut() {
                let at = *node as usize;
                if *edge == 0 {
                    order[at] = next;
                    low[at] = next;
                    next += 1;
                    stack.push(*node);
                    on_stack[at] = true;
                }
                let edges = &self.0[at];
                let follow = edges.iter().enumerate().skip(*edge).find(|(_, (_, kind))| *kind <= largest);
                if let Some((index, (to, _))) = follow {
                    *edge = index + 1;
                    let to = *to;
                    if order[to as usize] == UNSEEN {
                        path.push((to, 0));
                    } else if on_stack[to as usize] {
                        low[at] = low[at].min(order[to as usize]);
                    }
                    continue;
                }
                let (node, at_low) = (*node, low[at]);
                path.pop();
                if let Some((parent, _)) = path.last() {
                    low[*parent as usize] = low[*parent as usize].min(at_low);
                }
                if at_low == order[node as usize] {
                    let begin = stack.iter().rposition(|&other| other == node).expect("it was pushed");
                    let component: Vec<u32> = stack.drain(begin..).collect();
                    component.iter().for_each(|&member| on_stack[member as usize] = false);
                    if component.len() > 1 {
                        components.push(component);
                    }
                }
            }
        }
        components
    }

    /// A shortest circle through the first node of a component.
    fn circle(&self, component: &[u32], largest: Kind) -> Vec<(u32, Kind)> {
        let members: BTreeSet<u32> = component.iter().copied().collect();
        let start = *component.iter().min().expect("a component has members");
        let mut came_from: BTreeMap<u32, (u32, Kind)> = BTreeMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(node) = queue.pop_front() {
            for (to, kind) in self.edges(node, largest).filter(|(to, _)| members.contains(to)) {
                if to == start {
                    let mut circle = vec![(node, kind)];
                    let mut at = node;
                    while at != start {
                        let (from, kind) = came_from[&at];
                        circle.push((from, kind));
                        at = from;
                    }
                    circle.reverse();
                    return circle;
                }
                came_from.entry(to).or_insert_with(|| {
                    queue.push_back(to);
                    (node, kind)
                });
            }
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::Prng;

    fn append(list: u32, element: u32) -> Step {
        Step::Append { list, element, length: None }
    }

    fn read(list: u32, found: &[u32]) -> Step {
        Step::Read { list, found: found.to_vec() }
    }

    fn committed(called: u64, answered: u64, steps: Vec<Step>) -> Transaction {
        Transaction { called, end: End::Committed(answered), steps }
    }

    fn lists(lists: &[(u32, &[u32])]) -> BTreeMap<u32, Vec<u32>> {
        lists.iter().map(|(list, elements)| (*list, elements.to_vec())).collect()
    }

    #[track_caller]
    fn finds(expected: &[&str], transactions: &[Transaction], last: &[(u32, &[u32])]) -> Anomalies {
        let anomalies = check(transactions, &lists(last));
        let names: Vec<&str> = anomalies.counts.keys().copied().collect();
        assert_eq!(names, expected, "{:?}", anomalies.examples);
        anomalies
    }

    #[test]
    fn a_serial_history_is_fine() {
        let history = [
            committed(1, 2, vec![append(1, 10), read(2, &[])]),
            committed(3, 4, vec![read(1, &[10]), append(2, 20), append(2, 21)]),
            committed(5, 6, vec![read(2, &[20, 21]), append(1, 11), read(1, &[10, 11])]),
        ];
        finds(&[], &history, &[(1, &[10, 11]), (2, &[20, 21])]);
    }

    #[test]
    fn a_lost_append_is_found_with_its_time() {
        let anomalies = finds(&[LOST], &[committed(1, 2, vec![append(1, 10)])], &[(1, &[])]);
        assert_eq!(anomalies.lost, [2]);
    }

    #[test]
    fn a_doubled_append_is_found() {
        let anomalies = finds(&[DOUBLED], &[committed(1, 2, vec![append(1, 10)])], &[(1, &[10, 10])]);
        assert_eq!(anomalies.doubled, 1);
    }

    #[test]
    fn elements_that_nobody_appended_or_that_moved_are_found() {
        finds(&[ALTERED], &[], &[(1, &[10])]);
        let told = vec![Step::Append { list: 1, element: 10, length: Some(1) }];
        let history = [committed(1, 9, told), committed(1, 9, vec![append(1, 11)])];
        finds(&[ALTERED], &history, &[(1, &[11, 10])]);
    }

    #[test]
    fn an_unknown_outcome_may_be_there_or_not_but_not_by_half() {
        let unknown = [Transaction { called: 1, end: End::Unknown, steps: vec![append(1, 10), append(2, 20)] }];
        finds(&[], &unknown, &[]);
        assert_eq!(finds(&[], &unknown, &[(1, &[10]), (2, &[20])]).unknown_in_effect, 1);
        finds(&[HALF], &unknown, &[(1, &[10])]);
    }

    #[test]
    fn g1a_an_aborted_write_is_seen() {
        let aborted = [Transaction { called: 1, end: End::Aborted, steps: vec![append(1, 10)] }];
        finds(&[], &aborted, &[]);
        finds(&[ABORTED_READ], &aborted, &[(1, &[10])]);
    }

    #[test]
    fn g1b_a_state_in_the_middle_is_seen() {
        let history = [committed(1, 9, vec![append(1, 10), append(1, 11)]), committed(2, 8, vec![read(1, &[10])])];
        // It is a circle as well: the reader comes behind the writer and before it.
        finds(&[INTERMEDIATE_READ, "G2-item"], &history, &[(1, &[10, 11])]);
    }

    #[test]
    fn a_read_that_is_no_beginning_of_the_list_is_found() {
        let history = [committed(1, 9, vec![append(1, 10), append(1, 11)]), committed(2, 8, vec![read(1, &[11])])];
        finds(&[INCOMPATIBLE], &history, &[(1, &[10, 11])]);
    }

    #[test]
    fn a_transaction_must_see_its_own_writes() {
        let history = [committed(1, 2, vec![append(1, 10), read(1, &[])])];
        let anomalies = check(&history, &lists(&[(1, &[10])]));
        assert!(anomalies.counts.contains_key(INTERNAL), "{anomalies:?}");
    }

    #[test]
    fn g0_writes_interleave() {
        let history =
            [committed(1, 9, vec![append(1, 10), append(2, 20)]), committed(1, 9, vec![append(1, 11), append(2, 21)])];
        finds(&["G0"], &history, &[(1, &[10, 11]), (2, &[21, 20])]);
    }

    #[test]
    fn g1c_information_flows_in_a_circle() {
        let history = [
            committed(1, 9, vec![append(1, 10), read(2, &[20])]),
            committed(1, 9, vec![append(2, 20), read(1, &[10])]),
        ];
        finds(&["G1c"], &history, &[(1, &[10]), (2, &[20])]);
    }

    #[test]
    fn g2_item_write_skew() {
        let history =
            [committed(1, 9, vec![read(2, &[]), append(1, 10)]), committed(1, 9, vec![read(1, &[]), append(2, 20)])];
        let anomalies = finds(&["G2-item"], &history, &[(1, &[10]), (2, &[20])]);
        assert_eq!(anomalies.examples, ["G2-item: transactions 0 -rw-> 1 -rw-> 0"]);
    }

    #[test]
    fn a_stale_read_is_right_in_itself_but_not_in_time() {
        let history = [committed(1, 2, vec![append(1, 10)]), committed(3, 4, vec![read(1, &[])])];
        let anomalies = finds(&["real-time"], &history, &[(1, &[10])]);
        assert_eq!(anomalies.examples, ["real-time: transactions 0 -time-> 1 -rw-> 0"]);
        let beside = [committed(1, 3, vec![append(1, 10)]), committed(3, 4, vec![read(1, &[])])];
        finds(&[], &beside, &[(1, &[10])]);
    }

    #[test]
    fn a_long_circle_through_many_lists_is_one_anomaly() {
        let count = 50;
        let history: Vec<Transaction> =
            (0..count).map(|at| committed(1, 9, vec![append(at, 100 + at), read((at + 1) % count, &[])])).collect();
        let last: Vec<(u32, Vec<u32>)> = (0..count).map(|at| (at, vec![100 + at])).collect();
        let last: Vec<(u32, &[u32])> = last.iter().map(|(list, elements)| (*list, &elements[..])).collect();
        assert_eq!(finds(&["G2-item"], &history, &last).counts["G2-item"], 1);
    }

    /// Transactions that did run one after the other, at a moment between call and answer, are never accused; if one
    /// read is put back to an older state, they are.
    #[test]
    fn true_histories_pass_and_forged_ones_do_not() {
        for seed in 0..300 {
            let mut prng = Prng::new(seed);
            let mut state: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
            let mut history = Vec::new();
            for number in 0..60_u32 {
                let moment = 100 + 10 * u64::from(number);
                let mut steps = Vec::new();
                for part in 0..1 + prng.below(4) as u32 {
                    let list = prng.below(4) as u32;
                    let contents = state.entry(list).or_default();
                    if prng.chance(1, 2) {
                        contents.push(number * 10 + part);
                        let length = Some(contents.len() as u32);
                        steps.push(Step::Append { list, element: number * 10 + part, length });
                    } else {
                        steps.push(read(list, contents));
                    }
                }
                let end = match prng.chance(1, 12) {
                    true => End::Unknown,
                    false => End::Committed(moment + prng.below(40)),
                };
                if end == End::Unknown {
                    steps.retain(|step| matches!(step, Step::Append { .. }));
                }
                history.push(Transaction { called: moment - prng.below(40), end, steps });
            }
            let anomalies = check(&history, &state);
            assert_eq!(anomalies.counts.len(), 0, "seed {seed}: {:?}", anomalies.examples);
            // The last read of something that was written long before it.
            let forged = history.iter_mut().rev().find_map(|it| {
                let [Step::Read { found, .. }] = &mut it.steps[..] else { return None };
                (it.end != End::Unknown && found.len() > 12).then_some(found)
            });
            if let Some(found) = forged {
                found.truncate(2);
                let anomalies = check(&history, &state);
                assert!(!anomalies.counts.is_empty(), "seed {seed}");
            }
        }
    }
}

//! Whether what is there can have come of what was recorded.

use std::collections::BTreeMap;

use super::record::{Count, History, Outcome};

/// What a server holds under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// Nothing.
    Nothing,
    /// A string.
    Text(String),
    /// Elements of a list or members of a set.
    Elements(Vec<String>),
    /// Something else: its type, or the error that it was answered with.
    Other(String),
}

/// What is wrong with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Something acknowledged is not there.
    Lost,
    /// Something is there more often than it was asked for.
    Doubled,
    /// Something refused is there.
    RefusedButThere,
    /// Something is there that the record does not explain.
    Altered,
}

impl Fault {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Doubled => "doubled",
            Self::RefusedButThere => "refused but there",
            Self::Altered => "altered",
        }
    }
}

/// Each fault of a key, with what was expected and found. A key without faults has none.
pub fn judge(history: &History, held: &Held) -> Vec<(Fault, String)> {
    match (history, held) {
        (_, Held::Other(what)) => vec![(Fault::Altered, what.clone())],
        (History::Register(values), Held::Nothing) => judge_register(values, None).into_iter().collect(),
        (History::Register(values), Held::Text(text)) => judge_register(values, Some(text)).into_iter().collect(),
        (History::Counter { acknowledged, down, up, .. }, Held::Nothing | Held::Text(_)) => {
            let found = match held {
                Held::Text(text) => text.parse::<i128>().ok(),
                _ => Some(0),
            };
            let expected = format!("expected {} to {}, found ", acknowledged - down, acknowledged + up);
            match found {
                None => vec![(Fault::Altered, format!("{expected}no number"))],
                Some(found) if found < acknowledged - down => vec![(Fault::Lost, format!("{expected}{found}"))],
                Some(found) if found > acknowledged + up => vec![(Fault::Doubled, format!("{expected}{found}"))],
                Some(_) => Vec::new(),
            }
        }
        (History::List(counts), Held::Nothing) | (History::Set(counts), Held::Nothing) => judge_elements(counts, &[]),
        (History::List(counts), Held::Elements(elements)) | (History::Set(counts), Held::Elements(elements)) => {
            // That a set holds a member which was added twice once is no loss.
            let at_most_once = matches!(history, History::Set(_));
            let counts = counts.iter().map(|(element, count)| {
                let limit = |number: u64| if at_most_once { number.min(1) } else { number };
                let acknowledged = limit(count.acknowledged);
                (element.clone(), Count { acknowledged, unknown: count.unknown })
            });
            judge_elements(&counts.collect(), elements)
        }
        (_, Held::Text(_) | Held::Elements(_)) => vec![(Fault::Altered, "the key holds another type".to_owned())],
    }
}

/// Allowed is what was acknowledged last, and everything with an unknown outcome: it may have happened at any time
/// since it was sent, also after what was acknowledged later.
fn judge_register(values: &[(Option<String>, Outcome)], found: Option<&String>) -> Option<(Fault, String)> {
    let last = values.iter().rev().find(|(_, outcome)| *outcome == Outcome::Acknowledged);
    let expected = last.and_then(|(value, _)| value.as_ref());
    let is_open =
        |(value, outcome): &(Option<String>, Outcome)| *outcome == Outcome::Unknown && value.as_ref() == found;
    if found == expected || values.iter().any(is_open) {
        return None;
    }
    let outcome = values.iter().rev().find(|(value, _)| value.as_ref() == found).map(|(_, outcome)| *outcome);
    let fault = match (found, outcome) {
        (None, _) | (Some(_), Some(Outcome::Acknowledged)) => Fault::Lost,
        (Some(_), Some(_)) => Fault::RefusedButThere,
        (Some(_), None) => Fault::Altered,
    };
    let show =
        |value: Option<&String>| value.map_or("nothing".to_owned(), |text| format!("\"{}\"", text.escape_debug()));
    Some((fault, format!("expected {}, found {}", show(expected), show(found))))
}

fn judge_elements(counts: &BTreeMap<String, Count>, elements: &[String]) -> Vec<(Fault, String)> {
    let mut found: BTreeMap<&String, u64> = BTreeMap::new();
    elements.iter().for_each(|element| *found.entry(element).or_default() += 1);
    let mut faults = Vec::new();
    for (element, count) in counts {
        let number = found.remove(element).unwrap_or(0);
        let (least, most) = (count.acknowledged, count.acknowledged + count.unknown);
        let fault = match number {
            _ if number < least => Fault::Lost,
            _ if number > most && most == 0 => Fault::RefusedButThere,
            _ if number > most => Fault::Doubled,
            _ => continue,
        };
        let text = element.escape_debug();
        faults.push((fault, format!("\"{text}\": expected {least} to {most} of it, found {number}")));
    }
    let foreign =
        found.keys().map(|element| (Fault::Altered, format!("\"{}\" was never asked for", element.escape_debug())));
    faults.extend(foreign);
    faults
}

#[cfg(test)]
mod tests {
    use super::super::record::Record;
    use super::*;

    fn faults(lines: &[(&str, &str, &str)], held: &Held) -> Vec<Fault> {
        let lines: Vec<String> = lines
            .iter()
            .map(|(operation, value, outcome)| {
                format!("{{\"op\":\"{operation}\",\"key\":\"k\",\"value\":\"{value}\",\"outcome\":\"{outcome}\"}}")
            })
            .collect();
        let record = Record::read(lines.join("\n").as_bytes()).expect("a record");
        judge(&record.keys["k"], held).into_iter().map(|(fault, _)| fault).collect()
    }

    fn text(text: &str) -> Held {
        Held::Text(text.to_owned())
    }

    fn elements(text: &str) -> Held {
        Held::Elements(text.split_whitespace().map(str::to_owned).collect())
    }

    #[test]
    fn a_register_holds_what_was_acknowledged_last_or_is_unknown() {
        let lines = [("set", "1", "ok"), ("set", "2", "unknown"), ("set", "3", "ok"), ("set", "4", "refused")];
        assert_eq!(faults(&lines, &text("3")), []);
        assert_eq!(faults(&lines, &text("2")), []);
        assert_eq!(faults(&lines, &text("1")), [Fault::Lost]);
        assert_eq!(faults(&lines, &Held::Nothing), [Fault::Lost]);
        assert_eq!(faults(&lines, &text("4")), [Fault::RefusedButThere]);
        assert_eq!(faults(&lines, &text("5")), [Fault::Altered]);
        assert_eq!(faults(&lines, &elements("3")), [Fault::Altered]);
        let deleted = [("set", "1", "ok"), ("del", "", "ok")];
        assert_eq!(faults(&deleted, &Held::Nothing), []);
        assert_eq!(faults(&deleted, &text("1")), [Fault::Lost]);
    }

    #[test]
    fn a_counter_lies_between_what_is_certain_and_what_is_possible() {
        let lines =
            [("incr", "5", "ok"), ("incr", "2", "unknown"), ("incr", "-1", "unknown"), ("incr", "9", "refused")];
        for (found, expected) in [(3, Some(Fault::Lost)), (4, None), (7, None), (8, Some(Fault::Doubled))] {
            assert_eq!(faults(&lines, &text(&found.to_string())), expected.into_iter().collect::<Vec<_>>(), "{found}");
        }
        assert_eq!(faults(&lines, &Held::Nothing), [Fault::Lost]);
        assert_eq!(faults(&lines, &text("many")), [Fault::Altered]);
    }

    #[test]
    fn elements_are_there_as_often_as_they_were_asked_for() {
        let lines = [("push", "a", "ok"), ("push", "b", "unknown"), ("push", "c", "refused")];
        assert_eq!(faults(&lines, &elements("a")), []);
        assert_eq!(faults(&lines, &elements("b a")), []);
        assert_eq!(faults(&lines, &Held::Nothing), [Fault::Lost]);
        assert_eq!(faults(&lines, &elements("a a b b")), [Fault::Doubled, Fault::Doubled]);
        assert_eq!(faults(&lines, &elements("a c d")), [Fault::RefusedButThere, Fault::Altered]);
        let members = [("add", "a", "ok"), ("add", "a", "ok")];
        assert_eq!(faults(&members, &elements("a")), []);
        assert_eq!(faults(&members, &Held::Nothing), [Fault::Lost]);
    }
}

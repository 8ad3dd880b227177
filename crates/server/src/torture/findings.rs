//! What an audit found.

use std::collections::BTreeMap;

/// Findings that are told in words.
const EXAMPLES_MAX: usize = 12;

/// Everything an audit counts.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Writes that were acknowledged: a transaction is one.
    pub acknowledged: u64,
    /// Of these, writes that are not in effect: when each was acknowledged.
    pub lost: Vec<u64>,
    /// Values that are not what was written.
    pub altered: u64,
    /// Writes in effect more than once.
    pub doubled: u64,
    /// Writes without an answer.
    pub unknown: u64,
    /// Of these, writes that are in effect.
    pub unknown_in_effect: u64,
    /// Whatever else no order of events can explain, by name.
    pub anomalies: BTreeMap<String, u64>,
    /// What was checked, in words.
    pub checks: Vec<String>,
    /// Some findings in words.
    pub examples: Vec<String>,
}

impl Findings {
    /// An acknowledged write is gone.
    pub fn lost(&mut self, acknowledged_ns: u64, what: impl FnOnce() -> String) {
        self.lost.push(acknowledged_ns);
        self.example(|| format!("lost: {}, acknowledged at {}", what(), seconds(acknowledged_ns)));
    }

    /// A value is not what was written.
    pub fn altered(&mut self, what: impl FnOnce() -> String) {
        self.altered += 1;
        self.example(|| format!("altered: {}", what()));
    }

    /// A write is in effect several times.
    pub fn doubled(&mut self, times: u64, what: impl FnOnce() -> String) {
        self.doubled += times;
        self.example(|| format!("doubled: {}", what()));
    }

    /// Something else that cannot be.
    pub fn anomaly(&mut self, name: &str, what: impl FnOnce() -> String) {
        *self.anomalies.entry(name.to_owned()).or_default() += 1;
        self.example(|| format!("{name}: {}", what()));
    }

    fn example(&mut self, text: impl FnOnce() -> String) {
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(text());
        }
    }

    /// Adds another's.
    pub fn merge(&mut self, other: Self) {
        self.acknowledged += other.acknowledged;
        self.lost.extend(other.lost);
        self.altered += other.altered;
        self.doubled += other.doubled;
        self.unknown += other.unknown;
        self.unknown_in_effect += other.unknown_in_effect;
        for (name, count) in other.anomalies {
            *self.anomalies.entry(name).or_default() += count;
        }
        self.checks.extend(other.checks);
        let room = EXAMPLES_MAX.saturating_sub(self.examples.len());
        self.examples.extend(other.examples.into_iter().take(room));
    }

    /// Acknowledged writes lost other than in one of these faults, or in the last `window_ns` before it. All, if there
    /// is no window.
    pub fn lost_beyond(&self, window_ns: u64, faults: &[(u64, u64)]) -> u64 {
        if window_ns == 0 {
            return self.lost.len() as u64;
        }
        self.lost.iter().filter(|lost| age_ns(**lost, faults).is_none_or(|age| age > window_ns)).count() as u64
    }

    /// How long before the next of these faults the oldest lost write was acknowledged; none if one was lost without.
    pub fn oldest_loss_ns(&self, faults: &[(u64, u64)]) -> Option<u64> {
        let ages: Option<Vec<u64>> = self.lost.iter().map(|lost| age_ns(*lost, faults)).collect();
        ages.and_then(|ages| ages.into_iter().max())
    }
}

fn age_ns(acknowledged_ns: u64, faults: &[(u64, u64)]) -> Option<u64> {
    let later = faults.iter().filter(|(_, until)| *until >= acknowledged_ns);
    later.map(|(from, _)| from.saturating_sub(acknowledged_ns)).min()
}

/// A moment of the run, to be read.
pub fn seconds(at_ns: u64) -> String {
    format!("{:.3} s", at_ns as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_counts_from_the_next_fault() {
        let mut findings = Findings::default();
        findings.lost(90, || "a".into());
        findings.lost(195, || "b".into());
        let faults = [(100, 110), (200, 210)];
        assert_eq!(findings.lost_beyond(0, &faults), 2);
        assert_eq!(findings.lost_beyond(5, &faults), 1);
        assert_eq!(findings.lost_beyond(10, &faults), 0);
        assert_eq!(findings.oldest_loss_ns(&faults), Some(10));
        findings.lost(205, || "read late".into());
        assert_eq!(findings.lost_beyond(0, &faults), 3);
        assert_eq!(findings.oldest_loss_ns(&faults), Some(10));
        findings.lost(211, || "nobody was killed after it".into());
        assert_eq!(findings.lost_beyond(1_000, &faults), 1);
        assert_eq!(findings.oldest_loss_ns(&faults), None);
    }
}

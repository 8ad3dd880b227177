//! The report: the verdict in the first line, then every check.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use crate::finding::{Finding, HERE, Verdict, ranked};

/// What an examination has found.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Every check, at least once each, in the order of [`crate::finding::CHECKS`].
    pub findings: Vec<Finding>,
    /// Servers that answered: address, product with version.
    pub servers: Vec<(String, String)>,
    /// How long it took.
    pub seconds: f64,
    /// Processors' worth of time that the examination itself took, beside loops.
    pub processor_share: f64,
    /// Time in loops that looked for pauses.
    pub looped: Duration,
}

/// Guilty findings that are told in full above the table.
const REASONS_SHOWN: usize = 4;

impl Report {
    /// True if something was found guilty.
    pub fn is_guilty(&self) -> bool {
        self.findings.iter().any(Finding::is_guilty)
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.findings.iter().filter(|finding| finding.verdict == verdict).count()
    }

    /// The first line: the cause that explains most, its number, the reference, and what to do.
    pub fn verdict(&self) -> String {
        let guilty = ranked(&self.findings);
        let Some(first) = guilty.first() else {
            let (fine, unknown) = (self.count(Verdict::Fine), self.count(Verdict::Unknown));
            return format!("nothing found: {fine} checks are fine, {unknown} could not be made");
        };
        let more = match guilty.len() - 1 {
            0 => String::new(),
            1 => " (one more finding below)".to_owned(),
            more => format!(" ({more} more findings below)"),
        };
        format!("{}{more}", sentence(first))
    }

    /// As people read it. A line is as long as its text: terminals wrap, and files can be searched.
    pub fn page(&self) -> String {
        let mut page = format!("{}\n", self.verdict());
        let guilty = ranked(&self.findings);
        for finding in guilty.iter().take(REASONS_SHOWN) {
            let _ = writeln!(page, "  evidence for {}: {}", finding.check, or_dash(&finding.detail));
        }
        for finding in guilty.iter().skip(1).take(REASONS_SHOWN - 1) {
            let _ = writeln!(page, "  also: {}", sentence(finding));
        }
        page.push('\n');
        let mut rows = vec![["check", "where", "verdict", "value", "reference", "detail"].map(str::to_owned)];
        // What has one reason is told in one line below.
        let mut not_made: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
        for finding in self.findings.iter().filter(|finding| finding.verdict == Verdict::Unknown) {
            not_made.entry((&finding.place, &finding.detail)).or_default().push(finding.check);
        }
        not_made.retain(|_, checks| checks.len() > 1);
        let is_told_below = |it: &&Finding| !not_made.contains_key(&(it.place.as_str(), it.detail.as_str()));
        for finding in self.findings.iter().filter(is_told_below) {
            let advice = if finding.advice.is_empty() { String::new() } else { format!("to do: {}", finding.advice) };
            let detail = [finding.detail.as_str(), advice.as_str()];
            let detail = detail.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
            let place = if finding.place == HERE { "host" } else { &finding.place };
            let [value, reference] = [or_dash(&finding.value), or_dash(&finding.reference)].map(str::to_owned);
            let verdict = finding.verdict.name().to_owned();
            rows.push([finding.check.to_owned(), place.to_owned(), verdict, value, reference, detail]);
        }
        write_table(&rows, &mut page);
        page.push('\n');
        for ((place, why), checks) in not_made {
            let _ = writeln!(page, "unknown at {place}, since {why}: {}", checks.join(", "));
        }
        for (place, product) in &self.servers {
            let _ = writeln!(page, "{place} is {product}");
        }
        let (share, looped_ms) = (self.processor_share * 100.0, self.looped.as_millis());
        let _ =
            writeln!(page, "took {:.1} s, {share:.1} % of one processor, and {looped_ms} ms of loops", self.seconds);
        page
    }

    /// As programs read it.
    pub fn json(&self) -> Value {
        let rank = |finding: &Finding| ranked(&self.findings).iter().position(|guilty| *guilty == finding);
        let findings: Vec<Value> = self
            .findings
            .iter()
            .map(|finding| {
                json!({
                    "check": finding.check,
                    "title": finding.title(),
                    "place": finding.place,
                    "verdict": finding.verdict.name(),
                    "value": finding.value,
                    "reference": finding.reference,
                    "detail": finding.detail,
                    "advice": finding.advice,
                    "stalled_share": finding.stalled,
                    "rank": rank(finding).map(|rank| rank + 1),
                })
            })
            .collect();
        let servers: Vec<Value> =
            self.servers.iter().map(|(place, product)| json!({"place": place, "product": product})).collect();
        json!({
            "verdict": self.verdict(),
            "guilty": self.count(Verdict::Guilty),
            "fine": self.count(Verdict::Fine),
            "unknown": self.count(Verdict::Unknown),
            "seconds": self.seconds,
            "processor_share": self.processor_share,
            "looped_seconds": self.looped.as_secs_f64(),
            "servers": servers,
            "checks": findings,
        })
    }
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

fn sentence(finding: &Finding) -> String {
    let share = match finding.stalled {
        share if share > 0.0 => format!(", about {:.0} % of the time lost", (share * 100.0).max(1.0)),
        _ => String::new(),
    };
    format!(
        "guilty: {} ({} at {}): {} (reference: {}){share}; to do: {}",
        finding.title(),
        finding.check,
        finding.place,
        finding.value,
        finding.reference,
        finding.advice
    )
}

fn write_table<const COLUMNS: usize>(rows: &[[String; COLUMNS]], page: &mut String) {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let _ = write!(line, "{cell:<width$}  ", width = width(column));
        }
        page.push_str(line.trim_end());
        page.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(findings: Vec<Finding>) -> Report {
        Report {
            findings,
            servers: vec![("a:1".into(), "Redis 7".into())],
            seconds: 20.0,
            processor_share: 0.005,
            looped: Duration::from_millis(100),
        }
    }

    #[test]
    fn the_first_line_is_the_verdict() {
        let sync = Finding::fine("disk.sync", "p50 80 ms", "10 ms").detail("slow").guilty_if(true, 0.8, "buy a disk");
        let risk = Finding::fine("limits.files", "64", "512").guilty_if(true, 0.0, "raise it").at("a:1");
        let unknown = Finding::unknown("cpu.quota", "no file");
        let found = report(vec![unknown.clone(), sync.clone(), risk]);
        let page = found.page();
        assert_eq!(
            page.lines().next(),
            Some(
                "guilty: writes to disk are slow (disk.sync at this host): p50 80 ms (reference: 10 ms), about 80 % of \
                 the time lost; to do: buy a disk (one more finding below)"
            )
        );
        assert!(
            page.contains("evidence for disk.sync: slow")
                && page.contains("also: guilty: the server may open too few files (limits.files at a:1)"),
            "{page}"
        );
        assert!(page.contains("took 20.0 s, 0.5 % of one processor, and 100 ms of loops"), "{page}");
        let json = found.json();
        assert_eq!((json["guilty"].as_u64(), json["checks"][1]["rank"].as_u64()), (Some(2), Some(1)));
        assert!(json["checks"][0]["rank"].is_null());
        let healthy = report(vec![unknown, Finding::fine("disk.room", "half", "5 %")]);
        assert_eq!(healthy.verdict(), "nothing found: 1 checks are fine, 1 could not be made");
        assert!(!healthy.is_guilty() && found.is_guilty());
    }
}

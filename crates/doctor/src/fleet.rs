//! Servers compared with one another: what differs, and which one is the outlier.

use std::collections::{BTreeMap, BTreeSet};

use crate::finding::{Finding, HEARSAY};
use crate::host_checks::millis;
use crate::probes::percentile;
use crate::thresholds::{ROUND_TRIP_NOISE_MS, ROUND_TRIP_OUTLIER};

/// What is compared of a server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Member {
    /// Its address.
    pub place: String,
    /// Product and version.
    pub product: String,
    /// CONFIG GET, if it was answered.
    pub configuration: Option<BTreeMap<String, String>>,
    /// Median time to reach it, in milliseconds.
    pub reach_ms: Option<f64>,
}

/// Parameters that each server has of its own: addresses, files, roles, secrets.
const OWN: &[&str] = &[
    "port",
    "bind",
    "dir",
    "data-dir",
    "logfile",
    "pidfile",
    "unixsocket",
    "dbfilename",
    "replicaof",
    "slaveof",
    "requirepass",
    "masterauth",
    "masteruser",
    "appendfilename",
    "appenddirname",
    "proc-title-template",
    "aclfile",
    "token",
    "join",
    "metrics-port",
];

fn is_own(name: &str) -> bool {
    let begins = ["cluster-", "tls-", "replica-announce", "slave-announce", "announce", "availability-zone"];
    OWN.contains(&name) || begins.iter().any(|begin| name.starts_with(begin))
}

const ALONE: &str = "a comparison takes two servers";

/// Whether all run the same.
pub fn versions(members: &[Member]) -> Finding {
    if members.len() < 2 {
        return Finding::unknown("fleet.versions", ALONE);
    }
    let mut of: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for member in members {
        of.entry(&member.product).or_default().push(&member.place);
    }
    let detail: Vec<String> = of.iter().map(|(product, places)| format!("{product}: {}", places.join(", "))).collect();
    let value = of.keys().copied().collect::<Vec<_>>().join(", ");
    Finding::fine("fleet.versions", value, "one").detail(detail.join("; ")).guilty_if(
        of.len() > 1,
        0.0,
        "finish the upgrade: run one version everywhere",
    )
}

/// Names of parameters that are told.
const DIFFERENCES_SHOWN: usize = 5;

/// Whether all are configured alike. Parameters that only one product has are not compared.
pub fn configuration(members: &[Member]) -> Finding {
    let known: Vec<(&str, &BTreeMap<String, String>)> =
        members.iter().filter_map(|it| Some((it.place.as_str(), it.configuration.as_ref()?))).collect();
    if known.len() < 2 {
        let why = if members.len() < 2 { ALONE } else { "fewer than two servers answer CONFIG GET" };
        return Finding::unknown("fleet.configuration", why);
    }
    let names: BTreeSet<&String> = known.iter().flat_map(|(_, configuration)| configuration.keys()).collect();
    let mut differences = Vec::new();
    for name in names.into_iter().filter(|name| !is_own(name)) {
        let values: Vec<(&str, &String)> =
            known.iter().filter_map(|(place, configuration)| Some((*place, configuration.get(name)?))).collect();
        if values.iter().any(|(_, value)| *value != values[0].1) {
            let told: Vec<String> = values.iter().map(|(place, value)| format!("{value:?} at {place}")).collect();
            differences.push(format!("{name}: {}", told.join(", ")));
        }
    }
    let value = format!("{} parameters differ", differences.len());
    let shown = differences.len().min(DIFFERENCES_SHOWN);
    let more = differences.len() - shown;
    let mut detail = differences[..shown].join("; ");
    if more > 0 {
        detail += &format!("; and {more} more");
    }
    Finding::fine("fleet.configuration", value, "none").detail(detail).guilty_if(
        !differences.is_empty(),
        0.0,
        "set the same with CONFIG SET and in the files, or know why not",
    )
}

/// Whether one is much further away than the others.
pub fn round_trip(members: &[Member]) -> Finding {
    let reached: Vec<(&str, f64)> =
        members.iter().filter_map(|member| Some((member.place.as_str(), member.reach_ms?))).collect();
    if reached.len() < 2 {
        return Finding::unknown(
            "fleet.round_trip",
            if members.len() < 2 { ALONE } else { "fewer than two were reached" },
        );
    }
    let compared = reached.iter().enumerate().map(|(index, (place, own_ms))| {
        let mut others: Vec<f64> = reached
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != index)
            .map(|(_, (_, other_ms))| *other_ms)
            .collect();
        others.sort_by(f64::total_cmp);
        (*place, *own_ms, percentile(&others, 50.0))
    });
    let Some((place, own_ms, others_ms)) = compared.max_by(|a, b| (a.1 - a.2).total_cmp(&(b.1 - b.2))) else {
        return Finding::unknown("fleet.round_trip", ALONE);
    };
    let is_outlier = own_ms > others_ms * ROUND_TRIP_OUTLIER && own_ms - others_ms > ROUND_TRIP_NOISE_MS;
    Finding::fine(
        "fleet.round_trip",
        format!("{} to {place}, {} to the others", millis(own_ms), millis(others_ms)),
        format!("at most {ROUND_TRIP_OUTLIER} times the median of the others"),
    )
    .guilty_if(
        is_outlier,
        (own_ms - others_ms) / own_ms.max(1e-9) * HEARSAY,
        format!("look at the way to {place}: its zone, its interface, its switch"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Verdict;

    fn member(place: &str, product: &str, setting: &str, reach_ms: f64) -> Member {
        let configuration =
            BTreeMap::from([("hz".to_owned(), setting.to_owned()), ("port".to_owned(), place.to_owned())]);
        Member {
            place: place.to_owned(),
            product: product.to_owned(),
            configuration: Some(configuration),
            reach_ms: Some(reach_ms),
        }
    }

    #[test]
    fn one_server_alone_is_compared_with_nothing() {
        let alone = [member("a", "Redis 7", "10", 1.0)];
        for finding in [versions(&alone), configuration(&alone), round_trip(&alone)] {
            assert_eq!((finding.verdict, finding.detail.as_str()), (Verdict::Unknown, ALONE));
        }
        let silent = Member { configuration: None, reach_ms: None, ..member("b", "Redis 7", "10", 1.0) };
        let two = [alone[0].clone(), silent];
        assert_eq!(configuration(&two).verdict, Verdict::Unknown);
        assert_eq!(round_trip(&two).verdict, Verdict::Unknown);
    }

    #[test]
    fn what_differs_is_named_and_what_is_each_servers_own_is_not() {
        let same = [member("a", "Redis 7", "10", 0.2), member("b", "Redis 7", "10", 0.3)];
        for finding in [versions(&same), configuration(&same), round_trip(&same)] {
            assert_eq!(finding.verdict, Verdict::Fine, "{finding:?}");
        }
        let other = [member("a", "Redis 7", "10", 0.2), member("b", "Redis 8", "50", 0.3)];
        assert!(versions(&other).is_guilty());
        let drift = configuration(&other);
        assert!(drift.is_guilty());
        assert_eq!(drift.detail, "hz: \"10\" at a, \"50\" at b");
    }

    #[test]
    fn the_one_far_away_is_named() {
        let near = |place| member(place, "Redis 7", "10", 0.4);
        let fleet = [near("a"), near("b"), member("c", "Redis 7", "10", 9.0)];
        let finding = round_trip(&fleet);
        assert!(finding.is_guilty() && finding.value.contains("to c"), "{finding:?}");
        // Noise on one machine is no distance.
        let close = [member("a", "Redis 7", "10", 0.02), member("b", "Redis 7", "10", 0.2)];
        assert!(!round_trip(&close).is_guilty());
    }
}

//! `cargo xtask fuzz`: mutated bytes for whatever reads bytes; see the crate `fuzzing`.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::process::{cargo, run};
use crate::{root, step};

/// What is thrown at: the name in reports, the package, and the test.
const TARGETS: &[(&str, &str, &str)] = &[
    ("resp-requests", "resp", "fuzz_requests"),
    ("resp-replies", "resp", "fuzz_replies"),
    ("peer-stories", "node", "fuzz_a_cluster"),
    ("entry-words", "message", "fuzz_words"),
    ("journal-segments", "journal", "fuzz_segments"),
    ("checkpoint", "keyspace", "fuzz_checkpoints"),
    ("restore", "keyspace", "fuzz_restore"),
    ("rdb", "redis-files", "fuzz_rdb"),
    ("aof", "redis-files", "fuzz_aof"),
    ("configuration", "node", "fuzz_parameters"),
    ("greetings", "edge", "fuzz_greetings"),
    ("link-frames", "edge", "fuzz_frames"),
    ("changes-cursors", "edge", "fuzz_cursors"),
    ("archive", "archive", "fuzz_files"),
];

/// How long each target is thrown at unless told otherwise.
const SECONDS_DEFAULT: u64 = 60;

struct Plan {
    seconds: u64,
    seed: Option<String>,
    input: Option<String>,
    targets: Vec<&'static (&'static str, &'static str, &'static str)>,
}

/// Throws at one target after the other. All are tried, also when one has failed.
pub fn run_verb(options: &[String]) -> Result<()> {
    let plan = parse(options)?;
    let mut failed = Vec::new();
    for (name, package, test) in &plan.targets {
        step(name);
        let mut command = cargo();
        command.args(["test", "--quiet", "--package", package, test, "--", "--nocapture"]);
        command.env("HOLDFAST_FUZZ_SECONDS", plan.seconds.to_string());
        if let Some(seed) = &plan.seed {
            command.env("HOLDFAST_FUZZ_SEED", seed);
        }
        if let Some(input) = &plan.input {
            let input = Path::new(input).canonicalize().with_context(|| format!("cannot find {input}"))?;
            command.env("HOLDFAST_FUZZ_INPUT", input);
        }
        if run(&mut command).is_err() {
            failed.push(*name);
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    bail!("{}: inputs that were not borne are in {}", failed.join(", "), root().join("target/fuzz").display())
}

fn parse(options: &[String]) -> Result<Plan> {
    let mut plan = Plan { seconds: SECONDS_DEFAULT, seed: None, input: None, targets: Vec::new() };
    let mut words = options.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value"));
        match word.as_str() {
            "--seconds" => {
                let text = value()?;
                plan.seconds = text.parse().with_context(|| format!("--seconds {text} is no number"))?;
            }
            "--seed" => plan.seed = Some(value()?.clone()),
            "--input" => plan.input = Some(value()?.clone()),
            name => match TARGETS.iter().find(|(target, ..)| *target == name) {
                Some(target) => plan.targets.push(target),
                None => {
                    let names: Vec<_> = TARGETS.iter().map(|(name, ..)| *name).collect();
                    bail!("there is no target '{name}', but {}", names.join(", "));
                }
            },
        }
    }
    if plan.input.is_some() && plan.targets.len() != 1 {
        bail!("--input is read by one target: name it");
    }
    if plan.targets.is_empty() {
        plan.targets = TARGETS.iter().collect();
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn targets_are_chosen_by_name_and_an_input_is_for_one_of_them() {
        assert_eq!(parse(&[]).expect("no options").targets.len(), TARGETS.len());
        let plan = parse(&words("--seconds 3 --seed 7 rdb aof")).expect("good options");
        assert_eq!((plan.seconds, plan.seed.as_deref(), plan.targets.len()), (3, Some("7"), 2));
        for wrong in ["rdx", "--seconds", "--seconds many", "--input x", "--input x rdb aof"] {
            assert!(parse(&words(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_target_is_a_test_of_its_package() {
        fn has(folder: &Path, test: &str) -> bool {
            fs::read_dir(folder).expect("a folder").any(|file| {
                let path = file.expect("a file").path();
                if path.is_dir() {
                    return has(&path, test);
                }
                path.extension().is_some_and(|extension| extension == "rs")
                    && fs::read_to_string(&path).expect("text").contains(&format!("fn {test}()"))
            })
        }
        for (name, package, test) in TARGETS {
            let folder = root().join("crates").join(package);
            let is_there = ["src", "tests"].iter().any(|part| {
                let part = folder.join(part);
                part.exists() && has(&part, test)
            });
            assert!(is_there, "{name}: no test {test} in {package}");
        }
    }
}

//! CLIENT TRACKING and what belongs to it: news for client-side caches.

use std::collections::BTreeSet;

use command::{Flag, Group, Refusal};
use resp::{Args, Writer};

use super::{Answer, ControlCommand, Local, Outcome, Question, local, node, number};
use crate::tracking::{Mode, Redirect, Tracking};

const FLAGS: &[Flag] = &[Flag::Noscript, Flag::Loading, Flag::Stale];

const fn client(name: &'static str, arity: i32, run: super::Run) -> ControlCommand {
    ControlCommand {
        since: "6.0.0",
        group: Group::Connection,
        flags: FLAGS,
        categories: &["@connection"],
        ..local(name, arity, run)
    }
}

pub(super) const TRACKING: ControlCommand = ControlCommand {
    since: "6.0.0",
    group: Group::Connection,
    summary: "Sets whether the client is told of changes to what it has read.",
    complexity: "O(1). Some options may introduce additional complexity.",
    syntax: "<ON | OFF> [REDIRECT client-id] [PREFIX prefix [PREFIX prefix ...]] [BCAST] [OPTIN] [OPTOUT] [NOLOOP]",
    flags: FLAGS,
    categories: &["@connection"],
    ..node("tracking", -3, ask, join)
};

/// What CLIENT TRACKING says.
#[derive(Default)]
struct Options {
    redirect: u64,
    broadcasts: bool,
    opts_in: bool,
    opts_out: bool,
    skips_own: bool,
    prefixes: Vec<Vec<u8>>,
}

impl Options {
    fn parse(args: Args<'_>) -> Result<Self, Refusal> {
        let mut options = Self::default();
        let mut at = 3;
        while let Some(word) = args.get(at) {
            let value = args.get(at + 1);
            match (word.to_ascii_lowercase().as_slice(), value) {
                (b"redirect", Some(value)) => {
                    if options.redirect != 0 {
                        return Err(Refusal::new("ERR A client can only redirect to a single other client"));
                    }
                    let id = number(value).ok_or(Refusal::NOT_AN_INTEGER)?;
                    options.redirect = u64::try_from(id).ok().filter(|id| *id > 0).ok_or_else(no_such_client)?;
                    at += 1;
                }
                (b"prefix", Some(value)) => {
                    options.prefixes.push(value.to_vec());
                    at += 1;
                }
                (b"bcast", _) => options.broadcasts = true,
                (b"optin", _) => options.opts_in = true,
                (b"optout", _) => options.opts_out = true,
                (b"noloop", _) => options.skips_own = true,
                _ => return Err(Refusal::SYNTAX),
            }
            at += 1;
        }
        Ok(options)
    }

    /// Whether these go together, and with what was said before.
    fn check(&self, present: Option<&Tracking>) -> Result<(), Refusal> {
        let refuse = |text: &'static str| Err(Refusal::new(text));
        if !self.broadcasts && !self.prefixes.is_empty() {
            return refuse("ERR PREFIX option requires BCAST mode to be enabled");
        }
        if present.is_some_and(|present| present.broadcasts() != self.broadcasts) {
            return refuse(
                "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling \
                 it with a different mode.",
            );
        }
        if self.broadcasts && (self.opts_in || self.opts_out) {
            return refuse("ERR OPTIN and OPTOUT are not compatible with BCAST");
        }
        if self.opts_in && self.opts_out {
            return refuse("ERR You can't specify both OPTIN mode and OPTOUT mode");
        }
        let mode = present.map(|present| &present.mode);
        if (self.opts_in && mode == Some(&Mode::OptOut)) || (self.opts_out && mode == Some(&Mode::OptIn)) {
            return refuse(
                "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling \
                 it with a different mode.",
            );
        }
        self.check_prefixes(mode)
    }

    fn check_prefixes(&self, mode: Option<&Mode>) -> Result<(), Refusal> {
        let known = match mode {
            Some(Mode::Broadcast(known)) => known.clone(),
            _ => BTreeSet::new(),
        };
        let overlap = |one: &[u8], other: &[u8]| one.starts_with(other) || other.starts_with(one);
        let refusal = |one: &[u8], kind: &str, other: &[u8]| {
            let [one, other] = [one, other].map(String::from_utf8_lossy);
            Refusal::new(format!(
                "ERR Prefix '{one}' overlaps with {kind} prefix '{other}'. Prefixes for a single client must not overlap."
            ))
        };
        for (place, prefix) in self.prefixes.iter().enumerate() {
            if let Some(other) = known.iter().find(|other| overlap(prefix, other)) {
                return Err(refusal(prefix, "an existing", other));
            }
            if let Some(other) = self.prefixes[place + 1..].iter().find(|other| overlap(prefix, other)) {
                return Err(refusal(prefix, "another provided", other));
            }
        }
        Ok(())
    }

    fn apply(self, present: Option<Tracking>, redirect: Option<Redirect>) -> Tracking {
        let is_caching = present.as_ref().is_some_and(|present| present.is_caching);
        let mode = if self.broadcasts {
            let mut prefixes = match present.map(|present| present.mode) {
                Some(Mode::Broadcast(known)) => known,
                _ => BTreeSet::new(),
            };
            if self.prefixes.is_empty() {
                prefixes.insert(Vec::new());
            }
            prefixes.extend(self.prefixes);
            Mode::Broadcast(prefixes)
        } else if self.opts_in {
            Mode::OptIn
        } else if self.opts_out {
            Mode::OptOut
        } else {
            Mode::All
        };
        Tracking { redirect, mode, skips_own: self.skips_own, is_caching, is_broken: false }
    }
}

fn no_such_client() -> Refusal {
    Refusal::new("ERR The client ID you want redirect to does not exist")
}

fn ask(local: &mut Local<'_>, args: Args<'_>) -> Result<Question, Refusal> {
    let options = Options::parse(args)?;
    if super::client::on_off(args.at(2))? {
        options.check(local.session.options.tracking.as_deref())?;
    }
    Ok(Question::Find(options.redirect))
}

/// The cores have said where the client is that news goes to. They are told of this core's new presence before the
/// client is answered, so that no change is missed.
fn join(local: &mut Local<'_>, args: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    let options = Options::parse(args)?;
    let redirect = answers.into_iter().find_map(|answer| match answer {
        Answer::Found(redirect) => redirect,
        other => unreachable!("a core found {other:?}"),
    });
    if options.redirect != 0 && redirect.is_none() {
        return Err(no_such_client());
    }
    let session = &mut *local.session;
    let tracking = if super::client::on_off(args.at(2))? {
        Some(Box::new(options.apply(session.options.tracking.take().map(|present| *present), redirect)))
    } else {
        None
    };
    local.core.tracker.set_session(session.id, tracking.as_deref());
    session.options.tracking = tracking;
    let presence = local.core.tracker.own_presence(local.core.is_clustered);
    local.follow_up = Some(Question::Presence(local.core.core, presence));
    writer.ok();
    Ok(())
}

pub(super) const CACHING: ControlCommand = ControlCommand {
    summary: "Sets whether the keys of the next command are remembered.",
    syntax: "<YES | NO>",
    ..client("caching", 3, |local, args, writer| {
        let refuse = |text: &'static str| Err(Refusal::new(text));
        let Some(tracking) = &mut local.session.options.tracking else {
            return refuse(
                "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode \
                 enabled",
            );
        };
        match (args.at(2).to_ascii_lowercase().as_slice(), &tracking.mode) {
            (b"yes", Mode::OptIn) | (b"no", Mode::OptOut) => tracking.is_caching = true,
            (b"yes", _) => {
                return refuse("ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.");
            }
            (b"no", _) => {
                return refuse("ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.");
            }
            _ => return Err(Refusal::SYNTAX),
        }
        writer.ok();
        Ok(())
    })
};

pub(super) const GETREDIR: ControlCommand = ControlCommand {
    summary: "Returns which client is told of changes to what this one has read; 0 is this one, -1 none.",
    ..client("getredir", 2, |local, _, writer| {
        writer.integer(redirect_id(local.session.options.tracking.as_deref()));
        Ok(())
    })
};

/// As CLIENT LIST and CLIENT GETREDIR show it.
pub(super) fn redirect_id(tracking: Option<&Tracking>) -> i64 {
    tracking.map_or(-1, |tracking| tracking.redirect.map_or(0, |redirect| redirect.session.serial as i64))
}

pub(super) const TRACKINGINFO: ControlCommand = ControlCommand {
    since: "6.2.0",
    summary: "Describes what the client is told.",
    ..client("trackinginfo", 2, |local, _, writer| {
        let tracking = local.session.options.tracking.as_deref();
        let mut flags = vec![if tracking.is_some() { "on" } else { "off" }];
        let mut prefixes = BTreeSet::new();
        if let Some(tracking) = tracking {
            match &tracking.mode {
                Mode::All => {}
                Mode::Broadcast(known) => {
                    flags.push("bcast");
                    prefixes.clone_from(known);
                }
                Mode::OptIn => {
                    flags.push("optin");
                    flags.extend(tracking.is_caching.then_some("caching-yes"));
                }
                Mode::OptOut => {
                    flags.push("optout");
                    flags.extend(tracking.is_caching.then_some("caching-no"));
                }
            }
            flags.extend(tracking.skips_own.then_some("noloop"));
            flags.extend(tracking.is_broken.then_some("broken_redirect"));
        }
        writer.map(3);
        writer.bulk(b"flags");
        writer.set(flags.len());
        flags.iter().for_each(|flag| writer.bulk(flag.as_bytes()));
        writer.bulk(b"redirect");
        writer.integer(redirect_id(tracking));
        writer.bulk(b"prefixes");
        writer.array(prefixes.len());
        prefixes.iter().for_each(|prefix| writer.bulk(prefix));
        Ok(())
    })
};

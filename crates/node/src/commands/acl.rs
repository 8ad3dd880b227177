//! ACL: users and what they may do.
//!
//! Every core holds all users. On a node by itself a change is made on the first core, in the order in which changes
//! come there, and the result is handed to all cores before the client gets its reply; so no two changes cross, and no
//! core answers by older rules after the reply. In a cluster a change is logged: see `acl::cluster`.

use std::sync::Arc;

use command::{Flag, Refusal};
use resp::{Args, Writer};

use super::{Answer, ControlCommand, Local, Outcome, Question, container, local, node, number};
use crate::acl::change::Change;
use crate::acl::{Selector, User, Users, merge_logs};
use crate::catalog::{CATEGORIES, catalog, container_of, full_name};
use crate::core::Core;
use crate::event::{Action, UsersFile};
use crate::lookup::lookup;
use crate::sha256::{hexadecimal, sha256};

const FLAGS: &[Flag] = &[Flag::Noscript, Flag::Loading, Flag::Stale];
const ADMIN: &[Flag] = &[Flag::Admin, Flag::Noscript, Flag::Loading, Flag::Stale];

const fn open(name: &'static str, arity: i32, run: super::Run) -> ControlCommand {
    ControlCommand { since: "6.0.0", flags: FLAGS, ..local(name, arity, run) }
}

const fn admin(name: &'static str, arity: i32, run: super::Run) -> ControlCommand {
    ControlCommand { since: "6.0.0", flags: ADMIN, ..local(name, arity, run) }
}

const fn change(name: &'static str, arity: i32, ask: super::Ask) -> ControlCommand {
    ControlCommand { since: "6.0.0", flags: ADMIN, ..node(name, arity, ask, install) }
}

pub(super) const ACL: ControlCommand = ControlCommand {
    since: "6.0.0",
    summary: "Commands on users and what they may do.",
    complexity: "Depends on subcommand.",
    subcommands: &[
        ControlCommand {
            summary: "Lists the categories of commands, or the commands of one.",
            complexity: "O(1) since the categories and commands are a fixed set.",
            syntax: "[category]",
            ..open("cat", -2, cat)
        },
        ControlCommand {
            summary: "Removes users and ends their connections.",
            complexity: "O(1) amortized time considering the typical user.",
            syntax: "username [username ...]",
            tips: super::ON_ALL_NODES,
            ..change("deluser", -3, deluser)
        },
        ControlCommand {
            since: "7.0.0",
            summary: "Returns whether a user may run a command, without running it.",
            syntax: "username command [arg [arg ...]]",
            ..admin("dryrun", -4, dryrun)
        },
        ControlCommand { summary: "Generates a random password.", syntax: "[bits]", ..open("genpass", -2, genpass) },
        ControlCommand {
            summary: "Shows the rules of a user.",
            complexity: "O(N). Where N is the number of password, command and pattern rules that the user has.",
            syntax: "username",
            ..admin("getuser", 3, getuser)
        },
        ControlCommand {
            summary: "Shows all users with their rules, as in a file of users.",
            complexity: "O(N). Where N is the number of configured users.",
            ..admin("list", 2, |local, _, writer| {
                let users = &local.core.access.users;
                writer.array(users.iter().len());
                for user in users.iter() {
                    writer.bulk(&[b"user ", user.name.as_slice(), b" ", &user.describe()].concat());
                }
                Ok(())
            })
        },
        ControlCommand {
            summary: "Reads the file of users again.",
            complexity: "O(N). Where N is the number of configured users.",
            ..change("load", 2, |local, _| {
                check_file(local)?;
                Ok(Question::UsersFile(UsersFile::Load))
            })
        },
        ControlCommand {
            summary: "Lists what was denied, and to which users.",
            complexity: "O(N) with N being the number of entries shown.",
            syntax: "[count | RESET]",
            since: "6.0.0",
            flags: ADMIN,
            ..node("log", -2, log_question, log_join)
        },
        ControlCommand {
            summary: "Writes all users to the file of users.",
            complexity: "O(N). Where N is the number of configured users.",
            tips: super::ON_ALL_NODES,
            ..change("save", 2, |local, _| {
                check_file(local)?;
                Ok(Question::UsersFile(UsersFile::Save(Vec::new())))
            })
        },
        ControlCommand {
            summary: "Creates or changes a user.",
            complexity: "O(N). Where N is the number of rules provided.",
            syntax: "username [rule [rule ...]]",
            tips: super::ON_ALL_NODES,
            ..change("setuser", -3, setuser)
        },
        ControlCommand {
            summary: "Lists the names of all users.",
            complexity: "O(N). Where N is the number of configured users.",
            ..admin("users", 2, |local, _, writer| {
                writer.array(local.core.access.users.iter().len());
                for user in local.core.access.users.iter() {
                    writer.bulk(&user.name);
                }
                Ok(())
            })
        },
        ControlCommand {
            summary: "Returns the connection's user.",
            ..open("whoami", 2, |local, _, writer| {
                writer.bulk(&local.session.user.name);
                Ok(())
            })
        },
        ControlCommand {
            since: "6.0.0",
            summary: "Lists the subcommands.",
            flags: &[Flag::Loading, Flag::Stale],
            ..local("help", 2, |_, _, writer| {
                super::write_help(writer, "ACL", ACL.subcommands);
                Ok(())
            })
        },
    ],
    ..container("acl")
};

fn cat(_: &mut Local<'_>, args: Args<'_>, writer: &mut Writer) -> Outcome {
    if args.len() > 3 {
        return Err(super::subcommand_syntax(args));
    }
    let Some(name) = args.get(2) else {
        writer.array(CATEGORIES.len());
        CATEGORIES.iter().for_each(|category| writer.bulk(category.as_bytes()));
        return Ok(());
    };
    let place = CATEGORIES.iter().position(|category| category.as_bytes().eq_ignore_ascii_case(name));
    let category =
        place.ok_or_else(|| Refusal::new(format!("ERR Unknown category '{:.128}'", String::from_utf8_lossy(name))))?;
    let names: Vec<_> = catalog().entries().iter().filter(|entry| entry.is_in(category)).collect();
    writer.array(names.len());
    names.iter().for_each(|entry| writer.bulk(entry.full_name.as_bytes()));
    Ok(())
}

fn genpass(local: &mut Local<'_>, args: Args<'_>, writer: &mut Writer) -> Outcome {
    const BITS_MAX: i64 = 4096;
    if args.len() > 3 {
        return Err(super::subcommand_syntax(args));
    }
    let bits = args.get(2).map_or(Some(256), number).ok_or(Refusal::NOT_AN_INTEGER)?;
    if !(1..=BITS_MAX).contains(&bits) {
        return Err(Refusal::new(format!(
            "ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to \
             {BITS_MAX}"
        )));
    }
    // Digests of a secret and a counter: without the secret nobody tells one from the others.
    let digits = (bits as usize).div_ceil(4);
    let mut password = String::new();
    while password.len() < digits {
        local.core.access.secret_count += 1;
        let (core, counter) = (local.core.core.0.to_le_bytes(), local.core.access.secret_count.to_le_bytes());
        let parts = [local.core.process.secret.as_slice(), &core, &counter];
        password += &hexadecimal(&sha256(&parts.concat()));
    }
    password.truncate(digits);
    writer.bulk(password.as_bytes());
    Ok(())
}

fn getuser(local: &mut Local<'_>, args: Args<'_>, writer: &mut Writer) -> Outcome {
    let Some(user) = local.core.access.users.get(args.at(2)) else {
        writer.null();
        return Ok(());
    };
    writer.map(6);
    writer.bulk(b"flags");
    let flags = user.flags();
    writer.set(flags.len());
    flags.iter().for_each(|flag| writer.bulk(flag.as_bytes()));
    writer.bulk(b"passwords");
    writer.array(user.passwords().len());
    user.passwords().iter().for_each(|password| writer.bulk(password.as_bytes()));
    let [root, others @ ..] = user.selectors() else { unreachable!("there is always a root selector") };
    write_selector(root, writer);
    writer.bulk(b"selectors");
    writer.array(others.len());
    for selector in others {
        writer.map(3);
        write_selector(selector, writer);
    }
    Ok(())
}

fn write_selector(selector: &Selector, writer: &mut Writer) {
    writer.bulk(b"commands");
    writer.bulk(selector.describe_commands().as_bytes());
    writer.bulk(b"keys");
    writer.bulk(&selector.describe_keys());
    writer.bulk(b"channels");
    writer.bulk(&selector.describe_channels());
}

fn dryrun(local: &mut Local<'_>, args: Args<'_>, writer: &mut Writer) -> Outcome {
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let user = local.core.access.users.get(args.at(2));
    let user = user.ok_or_else(|| Refusal::new(format!("ERR User '{}' not found", text(args.at(2)))))?;
    let command = args.from(3);
    let known =
        lookup(command).map_err(|_| Refusal::new(format!("ERR Command '{}' not found", text(command.at(0)))))?;
    if !known.accepts(command.len()) {
        return Err(Refusal::wrong_arity(&full_name(known, container_of(known, command))));
    }
    match user.check(known, command) {
        Ok(()) => writer.ok(),
        Err(denial) => writer.bulk(&denial.explanation(&user.name)),
    }
    Ok(())
}

// ---- changes ------------------------------------------------------------------------------------------------------

fn setuser(_: &mut Local<'_>, args: Args<'_>) -> Result<Question, Refusal> {
    let name = args.at(2).to_vec();
    if name.iter().any(|byte| byte.is_ascii_whitespace() || *byte == 0) {
        return Err(Refusal::new("ERR Usernames can't contain spaces or null characters"));
    }
    let rules = args.iter().skip(3).map(<[u8]>::to_vec).collect();
    Ok(Question::ChangeUsers(Change::Set { name, rules }))
}

fn deluser(_: &mut Local<'_>, args: Args<'_>) -> Result<Question, Refusal> {
    let names: Vec<_> = args.iter().skip(2).map(<[u8]>::to_vec).collect();
    if names.iter().any(|name| name == crate::acl::DEFAULT) {
        return Err(Refusal::new("ERR The 'default' user cannot be removed"));
    }
    Ok(Question::ChangeUsers(Change::Remove(names)))
}

fn check_file(local: &Local<'_>) -> Outcome {
    if local.core.settings.get("aclfile").is_empty() {
        return Err(Refusal::new(
            "ERR This Redis instance is not configured to use an ACL file. You may want to specify users via the ACL \
             SETUSER command and then issue a CONFIG REWRITE (assuming you have a Redis configuration file set) in order \
             to store users in the Redis configuration.",
        ));
    }
    Ok(())
}

/// The first core has made the change: its outcome is handed to all cores, and only then told.
fn install(local: &mut Local<'_>, args: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    for answer in answers {
        match answer {
            Answer::Refused(text) => return Err(Refusal::new(text)),
            Answer::Users { users, count } => {
                local.follow_up = Some(Question::InstallUsers(users));
                if args.at(1).eq_ignore_ascii_case(b"deluser") {
                    writer.integer(count as i64);
                    return Ok(());
                }
            }
            _ => {}
        }
    }
    writer.ok();
    Ok(())
}

/// Makes a change, on the first core; the others have nothing to say.
pub(super) fn change_users(core: &mut Core, change: &Change) -> Answer {
    if core.context.core.0 != 0 {
        return Answer::Done;
    }
    let mut users = Users::clone(&core.context.access.users);
    let mut count = 0;
    match change {
        Change::Set { name, rules } => {
            let rules: Vec<_> = rules.iter().map(Vec::as_slice).collect();
            if let Err(why) = users.set(name, &rules, core.context.settings.all_channels) {
                return Answer::Refused(format!("ERR {why}"));
            }
        }
        Change::Remove(names) => count = names.iter().filter(|name| users.remove(name)).count() as u64,
    }
    let users = Arc::new(users);
    core.install_users(&users);
    Answer::Users { users, count }
}

/// Reads or writes the file of users, or that of the configuration, on the first core. `None` until the host has done
/// it.
pub(super) fn users_file(core: &mut Core, step: &UsersFile, actions: &mut Vec<Action>) -> Option<Answer> {
    if core.context.core.0 != 0 {
        return Some(Answer::Done);
    }
    let Some(outcome) = core.take_file_outcome() else {
        if core.begin_file_work() {
            let step = match step {
                UsersFile::Save(_) => UsersFile::Save(core.context.access.users.to_file()),
                step => step.clone(),
            };
            let path = match step {
                UsersFile::Rewrite { .. } => core.context.process.config_file.clone(),
                _ => core.context.settings.get("aclfile").to_owned(),
            };
            actions.push(Action::UsersFile { path, step });
        }
        return None;
    };
    let name = core.context.settings.get("aclfile").to_owned();
    Some(match (step, outcome) {
        (UsersFile::Save(_) | UsersFile::Rewrite { .. }, Ok(_)) => Answer::Done,
        (UsersFile::Rewrite { .. }, Err(why)) => {
            let line =
                format!("the configuration file '{}' could not be written: {why}", core.context.process.config_file);
            actions.push(Action::Log { level: group::ids::Level::Warning, line });
            Answer::Refused(format!("ERR Rewriting config file: {why}"))
        }
        (UsersFile::Save(_), Err(why)) => {
            let line = format!("the file of users '{name}' could not be written: {why}");
            actions.push(Action::Log { level: group::ids::Level::Warning, line });
            Answer::Refused(
                "ERR There was an error trying to save the ACLs. Please check the server logs for more information"
                    .to_owned(),
            )
        }
        (UsersFile::Load, Err(why)) => Answer::Refused(format!("ERR Error loading ACLs, opening file '{name}': {why}")),
        (UsersFile::Load, Ok(text)) => match Users::from_file(&name, &text, core.context.settings.all_channels) {
            Err(why) => Answer::Refused(format!("ERR {why}")),
            Ok(mut users) => {
                users.version = core.context.access.users.version + 1;
                let users = Arc::new(users);
                // In a cluster it is said to all nodes, and not to this one alone.
                if !core.context.shares_users() {
                    core.install_users(&users);
                }
                Answer::Users { users, count: 0 }
            }
        },
    })
}

/// True if a session of a user who was `before` may go on listening to what it listens to now that the user is `after`.
pub(crate) fn may_keep_listening(after: &User, session: &crate::session::Session) -> bool {
    use crate::pubsub::Kind;
    let Some(subscriptions) = &session.options.subscriptions else { return true };
    let mut patterns = Vec::new();
    for selector in after.selectors() {
        match selector.channel_patterns() {
            None => return true,
            Some(of_it) => patterns.extend(of_it),
        }
    }
    let is_heard = |name: &[u8]| patterns.iter().any(|pattern| keyspace::glob::matches(pattern, name));
    subscriptions.names(Kind::Channel).iter().chain(subscriptions.names(Kind::Shard)).all(|name| is_heard(name))
        && subscriptions.names(Kind::Pattern).iter().all(|name| patterns.iter().any(|pattern| **pattern == **name))
}

// ---- the log ------------------------------------------------------------------------------------------------------

fn log_question(_: &mut Local<'_>, args: Args<'_>) -> Result<Question, Refusal> {
    match args.get(2) {
        _ if args.len() > 3 => Err(super::subcommand_syntax(args)),
        Some(word) if word.eq_ignore_ascii_case(b"reset") => Ok(Question::ResetAclLog),
        Some(word) if number(word).is_none() => Err(Refusal::NOT_AN_INTEGER),
        _ => Ok(Question::AclLog),
    }
}

fn log_join(local: &mut Local<'_>, args: Args<'_>, answers: Vec<Answer>, writer: &mut Writer) -> Outcome {
    let mut entries = Vec::new();
    for answer in answers {
        match answer {
            Answer::AclLog(of_it) => entries.push(of_it),
            _ => {
                writer.ok();
                return Ok(());
            }
        }
    }
    let mut entries = merge_logs(entries);
    entries.truncate(local.core.settings.acl_log_count_max);
    entries.truncate(args.get(2).and_then(number).unwrap_or(10).max(0) as usize);
    writer.array(entries.len());
    for entry in entries {
        writer.map(10);
        writer.bulk(b"count");
        writer.integer(entry.count as i64);
        writer.bulk(b"reason");
        writer.bulk(entry.reason.as_bytes());
        writer.bulk(b"context");
        writer.bulk(entry.place.name().as_bytes());
        writer.bulk(b"object");
        writer.bulk(&entry.object);
        writer.bulk(b"username");
        writer.bulk(&entry.user);
        writer.bulk(b"age-seconds");
        writer.double_text(&format!("{}", (local.now.unix.0 - entry.last.0) as f64 / 1_000.0));
        writer.bulk(b"client-info");
        writer.bulk(entry.client.as_bytes());
        writer.bulk(b"entry-id");
        writer.integer(entry.id as i64);
        writer.bulk(b"timestamp-created");
        writer.integer(entry.created.0);
        writer.bulk(b"timestamp-last-updated");
        writer.integer(entry.last.0);
    }
    Ok(())
}

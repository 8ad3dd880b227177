//! Whether a command may run now: who asks, in which state the session is, and whether there is room.

use command::{Flag, Refusal};
use group::ids::{Room, SessionId};
use group::refusals::{LOADING, READ_ONLY};
use group::router;
use keyspace::{Body, DataCommand, Policy};
use resp::Args;

use super::EXPELLED;
use crate::acl::{Denial, LogEntry, Where};
use crate::catalog::{container_of, full_name};
use crate::commands::{self, Flow};
use crate::core::Core;
use crate::entry::Reader;
use crate::known::Known;
use crate::{redirect, reserved};

impl Core {
    pub(super) fn is_known_to(&self, id: SessionId) -> bool {
        self.context.access.users.default_user().needs_no_password()
            || self.sessions.get(id).is_some_and(|session| session.is_authenticated)
    }

    /// Whether a request may be carried out, as far as that can be told before its keys are looked at.
    #[inline]
    pub(super) fn check(&mut self, id: SessionId, known: Known, args: Args<'_>) -> Result<(), Refusal> {
        let session = self.sessions.get(id).expect("its request is being looked at");
        if !session.is_authenticated && !known.has(Flag::NoAuth) && !self.is_known_to(id) {
            return Err(Refusal::NO_AUTH);
        }
        // Whether a request writes is read from its words: they must be there.
        if !known.accepts(args.len()) {
            return Err(Refusal::wrong_arity(&full_name(known, container_of(known, args))));
        }
        if self.may_not_write_at_site(id) && self.changes_data(known, args) {
            return Err(Refusal::new(READ_ONLY));
        }
        if self.may_not_write_beside_source(id) && self.is_write_beside_source(known, args) {
            return Err(Refusal::new(READ_ONLY));
        }
        if session.multi.is_some()
            && known.has(Flag::NoMulti)
            && !known.control().is_some_and(|command| matches!(command.body, commands::Body::Flow(_)))
        {
            return Err(Refusal::new("ERR Command not allowed inside a transaction"));
        }
        if !session.user.is_unrestricted
            && let Err(denial) = session.user.check(known, args)
        {
            let place = if session.multi.is_some() { Where::Transaction } else { Where::TopLevel };
            let refusal = denial.refusal(&session.user.name);
            self.note_denial(id, denial, place);
            return Err(refusal);
        }
        if !self.is_loaded() && !known.has(Flag::Loading) {
            return Err(Refusal::new(LOADING));
        }
        if let Some(is_function) = self.context.scripting.busy.values().next()
            && !passes_busy(known, args)
        {
            let command = if *is_function { "FUNCTION" } else { "SCRIPT" };
            return Err(Refusal::new(format!(
                "BUSY Redis is busy running a script. You can only call {command} KILL or SHUTDOWN NOSAVE."
            )));
        }
        if self.context.is_expelled && known.works_on_data() {
            return Err(Refusal::new(EXPELLED));
        }
        if let Known::Data(command) = known {
            let is_write = matches!(command.body, Body::Mutate(_));
            if is_write {
                self.check_write(command)?;
                let session = self.sessions.get(id).expect("its request is being looked at");
                if self.context.settings.keeps_site_backlog && !session.options.writes_for_site {
                    reserved::check(command, args)?;
                }
            }
            // A read may have to be answered by another node.
            if is_write || self.context.is_clustered {
                self.context.check_level(command.name, args)?;
            }
        }
        if self.context.settings.cluster_redirect {
            redirect::check(&self.context, session.options.reading.is_some(), known, args)?;
            if let Known::Data(command) = known
                && router::is_sort_by_keys(command, args)
                && let Some(option) = router::far_option_of_sort(args, &self.context.slots)
            {
                return Err(Refusal::new(format!("ERR {option} option of SORT denied in Cluster mode.")));
            }
        }
        let session = self.sessions.get(id).expect("its request is being looked at");
        if session.is_subscribed() && session.is_in_subscribed_mode() && !passes_subscribed_mode(known) {
            let name = full_name(known, container_of(known, args));
            return Err(Refusal::new(format!(
                "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in \
                 this context"
            )));
        }
        Ok(())
    }

    /// Remembers what was denied to a client (ACL LOG).
    pub(crate) fn note_denial(&mut self, id: SessionId, denial: Denial, place: Where) {
        let Some(session) = self.sessions.get(id) else { return };
        let client = commands::describe(session, &self.context, self.now);
        let entry = LogEntry::new(denial, place, &session.user.name, self.now.unix, client);
        self.context.access.log.push(entry, self.context.settings.acl_log_count_max);
    }

    #[inline]
    pub(crate) fn check_write(&self, command: &DataCommand) -> Result<(), Refusal> {
        // In a cluster the leader may have room.
        if let Room::None(reason) = &self.context.host.room
            && !self.context.is_clustered
        {
            return Err(Refusal::new(format!("MISCONF No room on disk for this write: {reason}")));
        }
        let limit = self.context.settings.maxmemory_bytes;
        if limit > 0 && command.has(Flag::Denyoom) && self.used_memory_bytes() > limit && !self.can_evict() {
            return Err(Refusal::OUT_OF_MEMORY);
        }
        Ok(())
    }

    pub(crate) fn can_evict(&self) -> bool {
        if self.context.settings.import_mode {
            return false;
        }
        let databases = 0..self.context.settings.databases;
        match self.context.settings.maxmemory_policy {
            Policy::NoEviction => false,
            Policy::AllkeysLru | Policy::AllkeysLfu | Policy::AllkeysRandom => self
                .groups()
                .any(|group| databases.clone().any(|database| group.state().keyspace().key_count(database) > 0)),
            Policy::VolatileLru | Policy::VolatileLfu | Policy::VolatileRandom | Policy::VolatileTtl => self
                .groups()
                .any(|group| databases.clone().any(|database| group.state().keyspace().expiring_count(database) > 0)),
        }
    }

    /// True if a request must wait for the end of CLIENT PAUSE.
    pub(super) fn must_pause(&self, id: SessionId, known: Known, args: Args<'_>) -> bool {
        let Some((_, only_writes)) = self.context.pause else { return false };
        if !only_writes {
            return known.name() != "client";
        }
        if !is_exec(known) {
            return self.may_change(known, args);
        }
        let multi = self.sessions.get(id).and_then(|session| session.multi.as_ref());
        let mut spans = Vec::new();
        multi.iter().flat_map(|multi| &multi.queue).any(|queued| {
            let (_, args) = Reader::new(&queued.words).words(&mut spans);
            self.may_change(queued.command, args)
        })
    }

    /// True if a request may change data, or something that Redis tells its replicas of as if it were data.
    pub(super) fn may_change(&self, known: Known, args: Args<'_>) -> bool {
        match (known, known.script_naming()) {
            (_, Some((naming, is_read_only))) => !is_read_only && self.script_may_write(naming, args),
            (Known::Data(command), None) => matches!(command.body, Body::Mutate(_)) || command.name == "pfcount",
            (Known::Control(command), None) => {
                command.has(Flag::Write) || matches!(command.name(), "publish" | "spublish")
            }
        }
    }

    /// True if this cluster follows another one, and the session is not one that writes what comes from there.
    #[inline]
    pub(crate) fn may_not_write_at_site(&self, id: SessionId) -> bool {
        self.context.settings.is_site_read_only
            && !self.sessions.get(id).is_some_and(|session| session.options.writes_for_site)
    }

    /// True if this node follows a Redis, and the session is not the one that writes what comes from there.
    #[inline]
    pub(crate) fn may_not_write_beside_source(&self, id: SessionId) -> bool {
        self.context.host.source.is_some()
            && !self.sessions.get(id).is_some_and(|session| session.options.writes_for_site)
    }

    /// True if a request is refused at once while this node follows a Redis. A script that says nothing of itself may
    /// run, as in Redis, and is refused where it writes.
    pub(crate) fn is_write_beside_source(&self, known: Known, args: Args<'_>) -> bool {
        match (known, known.script_naming()) {
            (_, Some((naming, is_read_only))) => !is_read_only && self.script_says_it_writes(naming, args),
            _ => self.changes_data(known, args),
        }
    }

    /// True if a request may change data.
    pub(crate) fn changes_data(&self, known: Known, args: Args<'_>) -> bool {
        match (known, known.script_naming()) {
            (_, Some((naming, is_read_only))) => !is_read_only && self.script_may_write(naming, args),
            (Known::Data(command), None) => matches!(command.body, Body::Mutate(_)),
            (Known::Control(command), None) => command.has(Flag::Write),
        }
    }
}

/// Commands that a RESP2 client may send while it listens to channels.
pub(super) fn passes_subscribed_mode(known: Known) -> bool {
    const NAMES: &[&str] = &[
        "ping",
        "subscribe",
        "unsubscribe",
        "psubscribe",
        "punsubscribe",
        "ssubscribe",
        "sunsubscribe",
        "quit",
        "reset",
    ];
    matches!(known, Known::Control(command) if NAMES.contains(&command.name()))
}

/// Commands that are carried out although a script has been running for long.
pub(super) fn passes_busy(known: Known, args: Args<'_>) -> bool {
    if known.name() == "shutdown" {
        return args.iter().skip(1).any(|word| word.eq_ignore_ascii_case(b"nosave"));
    }
    known.has(Flag::AllowBusy)
}

/// True for EXEC.
pub(super) fn is_exec(known: Known) -> bool {
    known.control().is_some_and(|command| matches!(command.body, commands::Body::Flow(Flow::Exec)))
}

/// Commands that act at once although MULTI has begun.
pub(super) fn passes_multi(known: Known) -> bool {
    known.control().is_some_and(|command| {
        matches!(command.body, commands::Body::Flow(Flow::Multi | Flow::Exec | Flow::Discard | Flow::Watch))
            || matches!(command.name, "quit" | "reset")
    })
}

/// True for the first words of a request, or of a header line, of HTTP that would be commands.
pub(super) fn is_http(args: Args<'_>) -> bool {
    let name = args.at(0);
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

//! EVAL and FCALL: from a request to the place where its script runs, and the scripts that take long.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use command::Refusal;
use group::Standing;
use group::ids::{CoreId, GroupId, Now, Room, SessionId};
use group::in_place::Run;
use group::invocation::{Caller, Code, Invocation};
use group::proof::{Committed, Proof};
use group::refusals::{LEADER_LOST, NO_REPLICAS, READ_ONLY, no_room};
use group::requests::{Declined, Origin, Request, RequestBody, ScriptRequest};
use group::router;
use keyspace::{Keyspace, Moment};
use message::TransactionId;
use resp::{Args, Protocol, Span};
use script::{Engine, Flags, Library, Script, Task};
use stdx::Instant;

use crate::acl::{LogEntry, User, Where};
use crate::commands::{self, Body, ControlCommand};
use crate::core::Core;
use crate::core_messages::CoreMessage;
use crate::core_messages::DeclinedScript;
use crate::dispatch::{Groups, Next};
use crate::entry::{Reader, put_words};
use crate::event::Action;
use crate::known::Known;
use crate::libraries::{self, Change, Libraries, Loaded, Policy};
use crate::limits;
use crate::output::Output;
use crate::quorum::Answerable;
use crate::relay::Purpose;
use crate::request_ids::Named;
use crate::scripts::in_place::InPlace;
use crate::scripts::naming::{Changing, Naming, Running};
use crate::scripts::on_copies::{Computation, Computed, Means};
use crate::scripts::{Asides, Circumstances};
use crate::session::{Hold, Session};
use crate::transaction::{Progress, Work};

/// What a core needs to run scripts.
#[derive(Default)]
pub(crate) struct Runner {
    /// Runs what ends soon. Absent while it runs, and before the first script.
    engine: Option<Box<Engine>>,
    /// Another one, for what takes long.
    patient: Option<Box<Engine>>,
    /// Waiting for the patient one.
    waiting: VecDeque<Box<Computation>>,
    job: Option<Job>,
    /// Copies of keys that long work has left, to be freed in steps.
    copies: Vec<Keyspace>,
    /// Scripts that become transactions when all that their clients asked for before has been answered.
    declined: Vec<DeclinedScript>,
    /// When locks are next renewed.
    renew_at: Instant,
    /// All cores of this node have the libraries of this version.
    libraries_known: u64,
    /// Changes of clients of this core that not all cores know yet: version, session, ticket and reply.
    changing: Vec<(u64, SessionId, u64, Proof, Vec<u8>)>,
}

/// What a job has come to, with what it was given.
struct Done {
    engine: Box<Engine>,
    computation: Box<Computation>,
    computed: Computed,
    /// See [`Runner::copies`].
    copies: Option<Keyspace>,
}

/// A script that takes long, or commands on large values.
struct Job {
    transaction: TransactionId,
    is_script: bool,
    task: Task<Done>,
    is_killed: Arc<AtomicBool>,
    began: Instant,
    is_function: bool,
    is_told: bool,
    name: String,
    words: Vec<Vec<u8>>,
}

impl Runner {
    /// Bytes that its engines hold.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.engine.iter().chain(&self.patient).map(|engine| engine.memory_bytes()).sum()
    }

    /// Forgets libraries that are gone.
    fn retain_libraries(&mut self, mut is_kept: impl FnMut(&str) -> bool) {
        for engine in self.engine.iter_mut().chain(&mut self.patient) {
            engine.retain_libraries(&mut is_kept);
        }
    }

    /// Forgets what has been compiled, and lets the engines go with all that they hold.
    pub(crate) fn forget_scripts(&mut self) {
        self.engine = None;
        self.patient = None;
    }

    /// What is running, if it takes long.
    pub(crate) fn running(&self, now: Instant) -> Option<Running> {
        let job = self.job.as_ref().filter(|job| job.is_script)?;
        Some(Running {
            name: job.name.clone(),
            words: job.words.clone(),
            duration_ms: now.since(job.began).as_millis() as u64,
            is_function: job.is_function,
        })
    }

    fn with_engine<R>(&mut self, act: impl FnOnce(&mut Self, &mut Engine) -> R) -> R {
        let mut engine = self.engine.take().unwrap_or_default();
        let result = act(self, &mut engine);
        self.engine = Some(engine);
        result
    }

    /// True if work is under way on a stack of its own.
    pub(crate) fn is_at_work(&self) -> bool {
        self.job.is_some() || !self.waiting.is_empty()
    }

    /// Ends the running script, if it is of this kind. `None` if there is none.
    pub(crate) fn kill(&mut self, is_function: bool) -> Option<bool> {
        let job = self.job.as_mut().filter(|job| job.is_script)?;
        if job.is_function == is_function {
            job.is_killed.store(true, Ordering::Relaxed);
        }
        Some(job.is_function == is_function)
    }
}

impl Drop for Runner {
    /// What has begun on a stack of its own is brought to its end, so that nothing is left on that stack.
    fn drop(&mut self) {
        if let Some(mut job) = self.job.take() {
            job.is_killed.store(true, Ordering::Relaxed);
            while job.task.resume().is_none() {}
        }
    }
}

impl Core {
    /// EVAL, EVALSHA, FCALL and their read-only forms.
    pub(crate) fn dispatch_script(
        &mut self,
        id: SessionId,
        command: &'static ControlCommand,
        args: Args<'_>,
        actions: &mut Vec<Action>,
    ) -> Next {
        let Body::Script { naming, is_read_only } = command.body else { unreachable!("only scripts come here") };
        let user = Arc::clone(&self.sessions.get(id).expect("its request is being looked at").user);
        let invocation = match self.invocation(&user, naming, is_read_only, args) {
            Ok(invocation) => invocation,
            Err(refusal) => return self.refuse_script(id, &refusal),
        };
        let groups = self.groups_of_script(&invocation, args);
        let home = match groups {
            Groups::One(group) => Some(group),
            Groups::None => Some(self.own_group()),
            Groups::Several => None,
        };
        let owed = self.sessions.get(id).map_or(0, |session| session.owed_count());
        let (core, core_count) = (self.context.core, self.context.core_count);
        let is_clustered = self.context.is_clustered;
        // Another node would not know what the user may do, nor tell what was read: such scripts run here, on copies of
        // their keys.
        let tracks = self.sessions.get(id).is_some_and(Session::tracks);
        let home = home.filter(|_| !is_clustered || (invocation.user.is_none() && !tracks));
        // Nor would it know what holds here: who watches, and whether this node has memory and room on disk.
        let home = home.filter(|_| !is_clustered || self.circumstances(&invocation).are_plain());
        // The answer to one with an id is kept beside what it changes.
        let request_id = self.sessions.get(id).and_then(|session| session.request_id.clone());
        let home = home.filter(|_| request_id.is_none());
        // What the script reaches for is not known: in a cluster nothing else of the same client may be under way.
        if owed > 0 && (is_clustered || home.is_none()) {
            return Next::Postponed(Hold::Answers);
        }
        if let (Some(home), Some(session)) = (home, self.sessions.get(id))
            && session.awaits_script_beside(home)
        {
            return Next::Postponed(Hold::Answers);
        }
        if let Some(home) = home
            && self.is_full(home)
        {
            self.stalled.push(id);
            return Next::Postponed(Hold::Window);
        }
        if let Some(home) = home
            && is_clustered
            && !self.reads_have_their_places(id, home)
        {
            return Next::Postponed(Hold::Answers);
        }
        if self.context.monitors.is_watched() {
            let database = self.sessions.get(id).map_or(0, |session| session.database);
            self.show_command(id, database, Known::Control(command), args);
        }
        let Some(home) = home else {
            let (origin, protocol, database) = self.script_origin(id);
            self.hold_for_answers(id);
            let declined = Declined::default();
            let script = (invocation, request_id);
            self.begin_script((origin, protocol), database, script, args, declined, None, actions);
            return Next::Taken;
        };
        let answerable = match self.check_quorum(home) {
            Ok(answerable) => answerable,
            Err(refusal) => return self.fail(id, &refusal),
        };
        let is_here = router::core_of(home, core_count) == core;
        let is_free = !is_clustered
            && is_here
            && self.group_mut(home).is_some_and(|group| {
                group.serves_at_once()
                    && !group.holds_request_of(id)
                    && invocation.keys(args).all(|key| !group.holds_lock_on(key) && !group.is_reserved_key(id, key))
            });
        if !is_free {
            let (origin, protocol, database) = self.script_origin(id);
            let origin = Origin { is_timed: self.wants_time(Known::Control(command), args), ..origin };
            let mut words = Vec::with_capacity(args.byte_count() + 5 * args.len() + 8);
            put_words(&mut words, database, args);
            let script = Arc::new(ScriptRequest { invocation, words });
            let request = Request::new(origin, home, protocol, RequestBody::Script(script.clone()));
            if is_clustered {
                // What comes later must not overtake it, should the group decline.
                self.hold_for_answers(id);
                let Origin { session, ticket, .. } = origin;
                let purpose = Purpose::Script { session, ticket, protocol, script };
                self.relay.submit(request, purpose, answerable, self.now.instant);
            } else {
                if let Some(session) = self.sessions.get_mut(id) {
                    session.note_script(home);
                }
                self.send_request(request, answerable, actions);
            }
            return Next::Taken;
        }
        let (origin, protocol, database) = self.script_origin(id);
        // Another script is likely to follow, and its keys can be looked up before.
        self.is_reading = true;
        if let Err(declined) = self.run_here(home, (origin, 0), protocol, database, &invocation, args, actions) {
            self.hold_for_answers(id);
            let mut words = Vec::with_capacity(args.byte_count() + 5 * args.len() + 8);
            put_words(&mut words, database, args);
            let script = Arc::new(ScriptRequest { invocation, words });
            self.take_declined(DeclinedScript { origin, protocol, script, declined, home: None }, actions);
        }
        Next::Taken
    }

    /// The first of this core's groups: where a script without keys runs.
    fn own_group(&self) -> GroupId {
        GroupId(u32::from(self.context.core.0) % self.context.slots.group_count())
    }

    fn script_origin(&mut self, id: SessionId) -> (Origin, Protocol, u16) {
        let origin = self.origin_of(id);
        let session = self.sessions.get_mut(id).expect("its request is being looked at");
        let (ticket, tracks) = (session.take_ticket(), session.tracks());
        (Origin { ticket, tracks, ..origin }, session.protocol(), session.database)
    }

    fn hold_for_answers(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.hold = Hold::Answers;
        }
    }

    fn refuse_script(&mut self, id: SessionId, refusal: &Refusal) -> Next {
        // What fails here has run nowhere, where it would have been counted.
        if self.sessions.get(id).is_some_and(|session| !session.asking.counts_errors()) {
            self.sessions.calls.count_error(refusal.text());
        }
        self.fail(id, refusal)
    }

    /// Finds out what a request wants to run.
    pub(crate) fn invocation(
        &mut self,
        user: &Arc<User>,
        naming: Naming,
        is_read_only: bool,
        args: Args<'_>,
    ) -> Result<Invocation, Refusal> {
        let code = match naming {
            Naming::Text => None,
            Naming::Digest => {
                Some(self.context.scripting.cache.named(args.at(1)).map(Code::Script).ok_or_else(no_script)?)
            }
            Naming::Function => Some(self.function(args.at(1))?),
        };
        let key_count = key_count(args, naming)?;
        let code = match code {
            Some(code) => code,
            None => Code::Script(self.script_of_text(args.at(1))?),
        };
        let flags = code.flags();
        if is_read_only && flags.is_some_and(|flags| !flags.has(Flags::NO_WRITES)) {
            return Err(Refusal::new("ERR Can not execute a script with write flag using *_ro command."));
        }
        let is_read_only = is_read_only || flags.is_some_and(|flags| flags.has(Flags::NO_WRITES));
        let is_harmless = flags.is_some_and(|flags| flags.has(Flags::NO_WRITES) || flags.has(Flags::ALLOW_OOM));
        if flags.is_some() && !is_harmless && self.is_memory_full() {
            return Err(Refusal::new(
                "OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'",
            ));
        }
        if flags.is_some()
            && !is_read_only
            && !self.context.is_clustered
            && let Room::None(reason) = &self.context.host.room
        {
            return Err(Refusal::new(format!("MISCONF No room on disk for this write: {reason}")));
        }
        let user = (!user.is_unrestricted).then(|| Arc::clone(user) as Arc<dyn Caller>);
        Ok(Invocation { code, key_count, is_read_only, user })
    }

    /// What a script says of itself, if it is known and says something. None for a request without the script's name.
    fn flags_said(&self, naming: Naming, args: Args<'_>) -> Option<Flags> {
        let name = args.get(1)?;
        let code = match naming {
            Naming::Text => Script::parse(name).ok().map(Code::Script),
            Naming::Digest => self.context.scripting.cache.named(name).map(Code::Script),
            Naming::Function => self.function(name).ok(),
        };
        code.and_then(|code| code.flags())
    }

    /// False for a script that says of itself that it writes nothing.
    pub(crate) fn script_may_write(&self, naming: Naming, args: Args<'_>) -> bool {
        self.flags_said(naming, args).is_none_or(|flags| !flags.has(Flags::NO_WRITES))
    }

    /// True for a script that says of itself what it does, and not that it writes nothing.
    pub(crate) fn script_says_it_writes(&self, naming: Naming, args: Args<'_>) -> bool {
        self.flags_said(naming, args).is_some_and(|flags| !flags.has(Flags::NO_WRITES))
    }

    /// The script of a text; one that is new is made known to all cores.
    fn script_of_text(&mut self, text: &[u8]) -> Result<Arc<Script>, Refusal> {
        if let Some(script) = self.context.scripting.cache.with_text(text) {
            return Ok(script);
        }
        let script = Script::parse(text).map_err(Refusal::new)?;
        self.compile(&script)?;
        // That there is no room to remember it does not keep it from running.
        let _ = self.context.scripting.cache.insert(script.clone(), false);
        let own = self.context.core;
        for core in (0..self.context.core_count).map(CoreId).filter(|core| *core != own) {
            self.outbox.push(own, core, CoreMessage::Learn(script.clone()));
        }
        Ok(script)
    }

    /// Compiles a script, to see whether that is possible.
    pub(crate) fn compile(&mut self, script: &Script) -> Result<(), Refusal> {
        self.runner.with_engine(|_, engine| engine.compile(script)).map_err(Refusal::new)
    }

    /// Remembers a script for good, if it is one.
    pub(crate) fn load_script(&mut self, script: &Arc<Script>) -> Result<(), Refusal> {
        self.compile(script)?;
        self.context.scripting.cache.insert(script.clone(), true)
    }

    fn function(&self, name: &[u8]) -> Result<Code, Refusal> {
        let (loaded, function) =
            self.context.scripting.libraries.function(name).ok_or_else(|| Refusal::new("ERR Function not found"))?;
        Ok(Code::Function { library: loaded.library.clone(), name: function.name.clone(), flags: function.flags })
    }

    /// FUNCTION LOAD, DELETE, FLUSH and RESTORE: a change that the libraries' home group logs.
    pub(crate) fn dispatch_change(
        &mut self,
        id: SessionId,
        changing: Changing,
        args: Args<'_>,
        actions: &mut Vec<Action>,
    ) -> Next {
        if self.sessions.get(id).is_some_and(|session| session.owed_count() > 0) {
            return Next::Postponed(Hold::Answers);
        }
        let change = match self.change(changing, args) {
            Ok(change) => change,
            Err(refusal) => return self.refuse_script(id, &refusal),
        };
        let answerable = match self.check_quorum(GroupId(libraries::HOME)) {
            Ok(answerable) => answerable,
            Err(refusal) => return self.refuse_script(id, &refusal),
        };
        let (origin, _, _) = self.script_origin(id);
        self.hold_for_answers(id);
        self.send_change(id, origin.ticket, &change, answerable, actions);
        Next::Taken
    }

    /// Sends a change of libraries to their home. The home's answer is the reply to this ticket.
    pub(crate) fn send_change(
        &mut self,
        id: SessionId,
        ticket: u64,
        change: &Change,
        answerable: Answerable,
        actions: &mut Vec<Action>,
    ) {
        let Some(session) = self.sessions.get(id) else { return };
        let protocol = session.protocol();
        let origin = Origin { ticket, ..self.origin_of(id) };
        let body = RequestBody::Libraries(change.encode());
        let request = Request::new(origin, GroupId(libraries::HOME), protocol, body);
        if self.context.is_clustered {
            let Origin { session, ticket, .. } = origin;
            self.relay.submit(request, Purpose::Libraries { session, ticket }, answerable, self.now.instant);
        } else {
            self.send_request(request, answerable, actions);
        }
    }

    pub(crate) fn change(&mut self, changing: Changing, args: Args<'_>) -> Result<Change, Refusal> {
        let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
        if matches!(changing, Changing::Load | Changing::Restore) && self.is_memory_full() {
            return Err(Refusal::OUT_OF_MEMORY);
        }
        match changing {
            Changing::Delete => Ok(Change::Delete { name: text(args.at(2)) }),
            Changing::Flush => {
                let is_known = |word: &[u8]| word.eq_ignore_ascii_case(b"sync") || word.eq_ignore_ascii_case(b"async");
                if args.len() > 3 {
                    return Err(wrong_function_call("flush"));
                }
                if args.get(2).is_some_and(|word| !is_known(word)) {
                    return Err(Refusal::new("ERR FUNCTION FLUSH only supports SYNC|ASYNC option"));
                }
                Ok(Change::Flush)
            }
            Changing::Load => {
                let mut policy = Policy::Append;
                for word in args.iter().take(args.len() - 1).skip(2) {
                    if !word.eq_ignore_ascii_case(b"replace") {
                        return Err(Refusal::new(format!("ERR Unknown option given: {}", text(word))));
                    }
                    policy = Policy::Replace;
                }
                let library = self.load_library(args.at(args.len() - 1))?;
                Ok(Change::Load { policy, library })
            }
            Changing::Restore => {
                if args.len() > 4 {
                    return Err(wrong_function_call("restore"));
                }
                let policy = match args.get(3) {
                    None => Policy::Append,
                    Some(word) if word.eq_ignore_ascii_case(b"append") => Policy::Append,
                    Some(word) if word.eq_ignore_ascii_case(b"replace") => Policy::Replace,
                    Some(word) if word.eq_ignore_ascii_case(b"flush") => Policy::Flush,
                    Some(_) => {
                        return Err(Refusal::new(
                            "ERR Wrong restore policy given, value should be either FLUSH, \
                                                 APPEND or REPLACE.",
                        ));
                    }
                };
                let texts = libraries::undump(args.at(2)).map_err(Refusal::new)?;
                let libraries = texts.iter().map(|text| self.load_library(text)).collect::<Result<_, _>>()?;
                Ok(Change::Restore { policy, libraries })
            }
        }
    }

    /// Runs a library's code to learn which functions it offers. Whether their names are free is found out when the
    /// change is applied, but what is taken already is not even run.
    fn load_library(&mut self, text: &[u8]) -> Result<Arc<Loaded>, Refusal> {
        let library = Library::parse(text).map_err(Refusal::new)?;
        let functions = self.runner.with_engine(|_, engine| engine.load(&library)).map_err(Refusal::new)?;
        Ok(Arc::new(Loaded { library, functions }))
    }

    /// Takes the libraries as they are now, and tells the next core; or, when all have been told, the client.
    pub(crate) fn take_libraries(
        &mut self,
        from: CoreId,
        libraries: Arc<Libraries>,
        first: CoreId,
        reply: Option<(Origin, Committed, Vec<u8>)>,
        actions: &mut Vec<Action>,
    ) {
        let own = self.context.core;
        let is_done = own == first && (from != own || self.context.core_count == 1);
        if !is_done || self.context.core_count == 1 {
            self.context.scripting.libraries = libraries.clone();
            self.runner.retain_libraries(|name| libraries.contains(name));
        }
        if !is_done {
            let next = CoreId((own.0 + 1) % self.context.core_count);
            self.outbox.push(own, next, CoreMessage::Libraries { libraries, first, reply });
            return;
        }
        for core in (0..self.context.core_count).map(CoreId) {
            self.outbox.push(own, core, CoreMessage::LibrariesKnown { version: libraries.version });
        }
        if let Some((origin, proof, bytes)) = reply
            && origin.claim.is_none()
        {
            let mut output = Self::output(&mut self.context, &mut self.sessions, &mut self.outbox, actions);
            output.reply_proven(&origin, proof.into(), bytes);
        }
    }

    /// The home of the libraries has made a client's change. The client hears of it when all cores of this node have.
    pub(crate) fn libraries_changed(&mut self, session: SessionId, ticket: u64, proof: Proof, bytes: &[u8]) {
        let (version, reply) = message::answer::take_changed(bytes);
        if version <= self.runner.libraries_known {
            self.sessions.reply_proven(session, ticket, proof, reply);
        } else {
            self.runner.changing.push((version, session, ticket, proof, reply.to_vec()));
        }
    }

    /// All cores of this node have the libraries of this version.
    pub(crate) fn know_libraries(&mut self, version: u64) {
        let known = &mut self.runner.libraries_known;
        *known = version.max(*known);
        for (version, session, ticket, proof, reply) in std::mem::take(&mut self.runner.changing) {
            if version <= self.runner.libraries_known {
                self.sessions.reply_proven(session, ticket, proof, &reply);
            } else {
                self.runner.changing.push((version, session, ticket, proof, reply));
            }
        }
    }

    fn groups_of_script(&self, invocation: &Invocation, args: Args<'_>) -> Groups {
        let slots = &self.context.slots;
        invocation.keys(args).fold(Groups::None, |groups, key| groups.with(slots.group_of(key)))
    }

    fn is_memory_full(&self) -> bool {
        let limit = self.context.settings.maxmemory_bytes;
        limit > 0 && self.used_memory_bytes() > limit && !self.can_evict()
    }

    pub(crate) fn circumstances(&self, invocation: &Invocation) -> Circumstances {
        let allows = invocation.code.flags().is_some_and(|flags| flags.has(Flags::ALLOW_OOM));
        let write_refusal = match &self.context.host.room {
            Room::None(reason) if !self.context.is_clustered => {
                Some(format!("MISCONF No room on disk for this write: {reason}"))
            }
            // In a cluster the leader says so.
            Room::None(_) | Room::Enough => None,
        };
        let may_debug = self.context.scripting.may_debug;
        Circumstances {
            denies_growth: !allows && self.is_memory_full(),
            write_refusal,
            is_watched: self.context.monitors.is_watched(),
            may_debug,
            level: self.context.level_for_clients(),
        }
    }

    /// Runs a script on the keys of a group of this core, which must be serving.
    #[expect(clippy::too_many_arguments, reason = "a request, piece by piece")]
    fn run_here(
        &mut self,
        group: GroupId,
        (origin, floor): (Origin, u64),
        protocol: Protocol,
        database: u16,
        invocation: &Invocation,
        args: Args<'_>,
        actions: &mut Vec<Action>,
    ) -> Result<(), Declined> {
        let mut circumstances = self.circumstances(invocation);
        let now = self.now;
        let seed = self.prng.draw();
        let mut engine = self.runner.engine.take().unwrap_or_default();
        let place = group.0 as usize / usize::from(self.context.core_count);
        let mut output = Self::output(&mut self.context, &mut self.sessions, &mut self.outbox, actions);
        let group = self.groups[place].as_mut().expect("it is serving");
        if group.lacks_replicas(&*output.context) {
            // Checked here and not where the request comes: a script that only reads is not known before it has run.
            circumstances.write_refusal.get_or_insert_with(|| NO_REPLICAS.to_owned());
        }
        if let Room::None(reason) = &output.context.host.room {
            circumstances.write_refusal.get_or_insert_with(|| no_room(output.context.node, reason));
        }
        if output.context.takes_no_writes_of(&origin) {
            circumstances.write_refusal = Some(READ_ONLY.to_owned());
        }
        circumstances.level = group.level_to_log();
        let level = circumstances.level;
        let run = Run { origin, floor, protocol, database, invocation, args, level };
        let (circumstances, asides) = (&circumstances, Asides::default());
        let program = InPlace { engine: &mut engine, invocation, args, circumstances, seed, asides };
        let result = group.run_script(run, program, &mut self.prng, now, &mut output);
        self.runner.engine = Some(engine);
        result
    }

    /// Makes a transaction of a script.
    #[expect(clippy::too_many_arguments, reason = "a request, piece by piece")]
    fn begin_script(
        &mut self,
        (origin, protocol): (Origin, Protocol),
        database: u16,
        (invocation, request_id): (Invocation, Option<Box<[u8]>>),
        args: Args<'_>,
        declined: Declined,
        home: Option<GroupId>,
        actions: &mut Vec<Action>,
    ) {
        let mut work = Work::new(origin, protocol, self.now.instant);
        let mut words = Vec::with_capacity(args.byte_count() + 5 * args.len() + 8);
        put_words(&mut words, database, args);
        work.commands.push(words);
        if let Some(id) = request_id {
            let named = Named::new(&id, protocol, &work.commands, self.context.settings.request_id_ms);
            work.name(named, &self.context.slots);
        }
        work.circumstances = self.circumstances(&invocation);
        if self.context.takes_no_writes_of(&origin) {
            work.circumstances.write_refusal = Some(READ_ONLY.to_owned());
        }
        let declared = invocation.keys(args).map(|key| (database, key.to_vec()));
        for (database, key) in declared.chain(declined.keys) {
            work.keys.entry(self.context.slots.group_of(&key)).or_default().push((database, key));
        }
        work.whole = declined.whole;
        work.invocations.insert(0, Ok(invocation));
        work.home = home;
        if work.keys.is_empty() && !work.whole {
            // It has asked for nothing so far, and takes long.
            work.keys.insert(home.unwrap_or(self.own_group()), Vec::new());
        }
        self.begin_work(work, actions);
    }

    /// Takes a script of this core's client that a group has declined. It becomes a transaction when all that the
    /// client asked for before has been answered: nobody knows which of it must come before the script.
    pub(crate) fn take_declined(&mut self, declined: DeclinedScript, actions: &mut Vec<Action>) {
        let DeclinedScript { origin, .. } = &declined;
        if self.sessions.get(origin.session).is_some_and(|session| !session.is_next_answer(origin.ticket)) {
            self.runner.declined.push(declined);
            return;
        }
        let DeclinedScript { origin, protocol, script, declined, home } = declined;
        let mut spans: Vec<Span> = Vec::new();
        let (database, args) = Reader::new(&script.words).words(&mut spans);
        self.begin_script(
            (origin, protocol),
            database,
            (script.invocation.clone(), None),
            args,
            declined,
            home,
            actions,
        );
    }

    /// Looks again at declined scripts. True if one has become a transaction.
    fn begin_declined(&mut self, actions: &mut Vec<Action>) -> bool {
        let waiting = std::mem::take(&mut self.runner.declined);
        let count = waiting.len();
        for declined in waiting {
            self.take_declined(declined, actions);
        }
        self.runner.declined.len() < count
    }

    /// Lets in what a client has sent behind its script to a group of this node.
    pub(crate) fn let_in(&mut self, group: GroupId, origin: Origin, actions: &mut Vec<Action>) {
        let (own, now) = (self.context.core, self.now);
        let to = router::core_of(group, self.context.core_count);
        if to == own {
            self.with_group(group, actions, |group, output| group.let_in(&origin, now, output));
        } else {
            self.outbox.push(own, to, CoreMessage::LetIn { group, origin });
        }
    }

    /// Adds a script to a transaction. One that cannot be run answers with the reason at its place.
    pub(crate) fn add_script(
        &mut self,
        work: &mut Work,
        place: usize,
        database: u16,
        naming: Naming,
        is_read_only: bool,
        args: Args<'_>,
    ) {
        let session = self.sessions.get(work.origin.session).expect("its request is being looked at");
        let user = Arc::clone(&session.user);
        let invocation = self.invocation(&user, naming, is_read_only, args);
        if let Ok(invocation) = &invocation {
            for key in invocation.keys(args) {
                let keys = work.keys.entry(self.context.slots.group_of(key)).or_default();
                keys.push((database, key.to_vec()));
            }
            let denied_before = work.circumstances.denies_growth;
            work.circumstances = self.circumstances(invocation);
            work.circumstances.denies_growth |= denied_before;
            if self.context.takes_no_writes_of(&work.origin) {
                work.circumstances.write_refusal = Some(READ_ONLY.to_owned());
            }
        }
        work.invocations.insert(place, invocation);
    }

    /// Takes a script that another core, another node or a wait has brought. `is_retry` if it has waited here: what its
    /// session has sent since waits behind it.
    pub(crate) fn take_script(&mut self, request: Request, is_retry: bool, actions: &mut Vec<Action>) {
        let now = self.now;
        let Request { origin, group, protocol, floor, .. } = request;
        let RequestBody::Script(script) = &request.body else { unreachable!("only scripts come here") };
        let script = Arc::clone(script);
        let mut is_over = false;
        self.with_group(group, actions, |group, output| {
            if is_retry {
                group.forget_kept_out(&origin);
            }
            if !group.is_script_due(&origin, output) || group.refuses_script_without_room(&request, now, output) {
                is_over = true;
                if is_retry {
                    group.admit_held(now, output);
                }
            } else if group.must_wait(&request, is_retry) {
                is_over = true;
                group.hold(request, is_retry, output);
            }
        });
        if is_over {
            return;
        }
        let mut spans: Vec<Span> = Vec::new();
        let (database, args) = Reader::new(&script.words).words(&mut spans);
        match self.run_here(group, (origin, floor), protocol, database, &script.invocation, args, actions) {
            Ok(()) if is_retry => self.with_group(group, actions, |group, output| group.admit_held(now, output)),
            Ok(()) => {}
            Err(declined) => {
                let home = Some(group);
                if let Some(group) = self.group_mut(group) {
                    group.keep_out(&origin);
                }
                let declined = DeclinedScript { origin, protocol, script, declined, home };
                self.outbox.push(self.context.core, origin.core, CoreMessage::Declined(declined));
            }
        }
    }

    /// Takes a script that has waited for locked keys in a group of this core, which may not lead any more.
    pub(crate) fn retry_script(&mut self, request: Request, actions: &mut Vec<Action>) {
        let standing = self.group_mut(request.group).map(|group| group.standing());
        if standing == Some(Standing::Serving) {
            return self.take_script(request, true, actions);
        }
        let mut output = Self::output(&mut self.context, &mut self.sessions, &mut self.outbox, actions);
        if request.origin.claim.is_some() {
            output.send_back(&request.origin);
        } else {
            output.refuse(&request.origin, request.protocol, LEADER_LOST);
        }
    }

    // ---- scripts that take long -------------------------------------------------------------------------------------

    /// Runs the commands of a transaction that holds its locks, or lets it wait for those before it.
    pub(crate) fn compute(&mut self, mut computation: Box<Computation>, actions: &mut Vec<Action>) {
        if self.context.takes_no_writes_of(&computation.work.origin) {
            // It has had to wait for its locks, and may have begun before.
            computation.work.circumstances.write_refusal = Some(READ_ONLY.to_owned());
        }
        if computation.is_large() {
            return self.runner.waiting.push_back(computation);
        }
        let (computed, _) = self.runner.with_engine(|_, engine| {
            computation.run(Some(Means { engine, pause: None, is_killed: &AtomicBool::new(false) }))
        });
        match computed {
            Computed::TooLong => self.runner.waiting.push_back(computation),
            computed => self.finish_computation(*computation, computed, actions),
        }
    }

    fn finish_computation(&mut self, computation: Computation, computed: Computed, actions: &mut Vec<Action>) {
        self.drive(actions, |coordinator, posts| coordinator.computed(computation, computed, posts));
    }

    /// Tells the groups of long scripts, of those that wait for them, and of those that change large values, that they
    /// need their locks for longer.
    fn renew_locks(&mut self, actions: &mut Vec<Action>) {
        let runner = &mut self.runner;
        if self.now.instant < runner.renew_at {
            return;
        }
        runner.renew_at = self.now.instant + limits::LOCK_RENEWAL_INTERVAL;
        let running = runner.job.iter().map(|job| job.transaction);
        let waiting = runner.waiting.iter().map(|waiting| waiting.id);
        let busy: Vec<_> = running.chain(waiting).chain(self.coordinator.lasting()).collect();
        if busy.is_empty() {
            return;
        }
        self.drive(actions, |coordinator, posts| {
            busy.iter().for_each(|transaction| coordinator.renew(*transaction, posts));
            Progress::Going
        });
    }

    /// A part of the script that takes long, if there is one. True if there is more.
    pub(crate) fn turn_scripts(&mut self, actions: &mut Vec<Action>) -> bool {
        let has_begun = self.begin_declined(actions);
        self.renew_locks(actions);
        let frees = self.free_copies();
        if self.runner.job.is_none()
            && let Some(computation) = self.runner.waiting.pop_front()
        {
            self.runner.job = Some(self.new_job(computation));
        }
        let Some(job) = &mut self.runner.job else { return has_begun || frees };
        match job.task.resume() {
            None => self.tell_if_busy(),
            Some(Done { engine, mut computation, computed, copies }) => {
                self.runner.copies.extend(copies);
                computation.work.begun = self.now.instant;
                let job = self.runner.job.take().expect("it has just ended");
                self.runner.patient = Some(engine);
                if job.is_told {
                    self.tell_busy(None);
                }
                self.finish_computation(*computation, computed, actions);
            }
        }
        frees || self.runner.job.is_some() || !self.runner.waiting.is_empty() || !self.runner.copies.is_empty()
    }

    /// Frees a part of what the last long work has left. True if there is more.
    fn free_copies(&mut self) -> bool {
        if let Some(copies) = self.runner.copies.last_mut()
            && !copies.collect(Moment::at(copies.latest().0, 0), limits::FREED_PER_TURN)
        {
            self.runner.copies.pop();
        }
        !self.runner.copies.is_empty()
    }

    fn new_job(&mut self, computation: Box<Computation>) -> Job {
        let mut engine = self.runner.patient.take().unwrap_or_default();
        let is_killed = Arc::new(AtomicBool::new(false));
        let flag = is_killed.clone();
        let transaction = computation.id;
        let work = &computation.work;
        let first = work.invocations.iter().find_map(|(place, invocation)| Some((*place, invocation.as_ref().ok()?)));
        let is_script = first.is_some();
        let (mut name, mut is_function, mut words) = (String::new(), false, Vec::new());
        if let Some((place, invocation)) = first {
            let mut spans = Vec::new();
            let (_, args) = Reader::new(&work.commands[place]).words(&mut spans);
            (name, is_function) = (invocation.code.name().to_owned(), invocation.code.is_function());
            words = args.iter().map(<[u8]>::to_vec).collect();
        }
        let task = Task::new(move |pause| {
            let means = Means { engine: &mut engine, pause: Some(pause), is_killed: &flag };
            let (computed, copies) = computation.run(Some(means));
            Done { engine, computation, computed, copies }
        });
        Job {
            transaction,
            is_script,
            task,
            is_killed,
            began: self.now.instant,
            is_function,
            is_told: false,
            name,
            words,
        }
    }

    /// Once a script has run for a while every core refuses what could be waiting for it, as Redis does.
    fn tell_if_busy(&mut self) {
        let threshold = self.context.settings.busy_threshold;
        let Some(job) = &mut self.runner.job else { return };
        if job.is_script && !job.is_told && self.now.instant.since(job.began) >= threshold {
            job.is_told = true;
            let is_function = job.is_function;
            self.tell_busy(Some(is_function));
        }
    }

    fn tell_busy(&mut self, busy: Option<bool>) {
        let own = self.context.core;
        for core in (0..self.context.core_count).map(CoreId) {
            self.outbox.push(own, core, CoreMessage::Busy { core: own, is_function: busy });
        }
    }
}

impl Output<'_> {
    /// Does what a script has done beside its keys, when its changes are safe.
    pub(crate) fn tell_asides(&mut self, origin: &Origin, asides: Asides, now: Now) {
        let Asides { actions, published, denials, calls, script_calls, times } = asides;
        let timings = &mut self.context.timings;
        self.sessions.calls.add_script(script_calls, |known, container| timings.place_within(known, || container));
        let mut spans = Vec::new();
        for (words, took) in &times {
            let (_, args) = Reader::new(words).words(&mut spans);
            let known = crate::lookup::lookup(args).expect("it has been carried out");
            self.context.timings.note(known, args, *took);
        }
        self.name_slow(origin);
        self.actions.extend(actions);
        self.show_calls(&calls, now.unix.0);
        for (denial, user) in denials {
            let client = self.sessions.get(origin.session);
            let client = client.map(|session| commands::describe(session, self.context, now));
            let entry = LogEntry::new(denial, Where::Script, &user, now.unix, client.unwrap_or_default());
            self.context.access.log.push(entry, self.context.settings.acl_log_count_max);
        }
        published.iter().for_each(|message| self.publish(message));
    }
}

fn wrong_function_call(subcommand: &str) -> Refusal {
    Refusal::new(format!("ERR unknown subcommand or wrong number of arguments for '{subcommand}'. Try FUNCTION HELP."))
}

pub(crate) fn no_script() -> Refusal {
    Refusal::new("NOSCRIPT No matching script. Please use EVAL.")
}

fn key_count(args: Args<'_>, naming: Naming) -> Result<usize, Refusal> {
    let number = std::str::from_utf8(args.at(2)).ok().and_then(|text| text.parse::<i64>().ok());
    let number = number.ok_or_else(|| match naming {
        Naming::Function => Refusal::new("ERR Bad number of keys provided"),
        _ => Refusal::NOT_AN_INTEGER,
    })?;
    if number > args.len() as i64 - 3 {
        return Err(Refusal::new("ERR Number of keys can't be greater than number of args"));
    }
    usize::try_from(number).map_err(|_| Refusal::new("ERR Number of keys can't be negative"))
}

//! Scripts that run at once on the keys of a group: what they may call, and what they do beside their keys.

use group::cost::Cost;
use group::in_place::{Live, Program};
use group::invocation::Invocation;
use group::published::Published;
use resp::{Args, Writer};
use script::{Ending, Engine, Flow, Host};

use crate::entry;
use crate::scripts::{Asides, Circumstances, Permitted, check_call, elapsed_us, log_action, may_call, permit};

/// Questions of the engine whether to go on that a script may take here.
const TICKS_MAX: u32 = 2;

/// A script to be run on a group's keys.
pub(crate) struct InPlace<'a> {
    pub(crate) engine: &'a mut Engine,
    pub(crate) invocation: &'a Invocation,
    pub(crate) args: Args<'a>,
    pub(crate) circumstances: &'a Circumstances,
    /// What its chance is drawn from.
    pub(crate) seed: u64,
    pub(crate) asides: Asides,
}

impl Program for InPlace<'_> {
    type Asides = Asides;

    fn run(&mut self, keys: &mut Live<'_>, reply: &mut Writer) -> Ending {
        let Self { engine, invocation, args, circumstances, seed, asides } = self;
        let call = invocation.call(*args, keys.moment(), *seed);
        let mut host = LiveHost { keys, invocation, circumstances, asides, ticks: 0, calls: 0 };
        invocation.code.run(engine, &call, &mut host, reply)
    }

    fn end(self, reply: &[u8], is_far: bool, cost: &mut Cost) -> (Box<[Published]>, Asides) {
        let mut asides = self.asides;
        asides.script_calls.end(reply);
        if is_far {
            std::mem::take(&mut asides.script_calls).put(&mut cost.calls);
        }
        (std::mem::take(&mut asides.published).into(), asides)
    }
}

/// What a script on a group's own keys can ask for.
struct LiveHost<'h, 'k> {
    keys: &'h mut Live<'k>,
    invocation: &'h Invocation,
    circumstances: &'h Circumstances,
    asides: &'h mut Asides,
    ticks: u32,
    calls: u32,
}

impl Host for LiveHost<'_, '_> {
    fn call(&mut self, args: Args<'_>, reply: &mut Writer) -> Flow {
        if self.keys.is_declined() {
            return Flow::Stop;
        }
        let databases = self.keys.database_count();
        let (known, permitted) = match permit(args, self.invocation, self.circumstances, databases, self.asides) {
            Ok(permitted) => permitted,
            Err(refusal) => {
                reply.error(refusal.text());
                return Flow::On;
            }
        };
        if self.circumstances.is_watched {
            let mut words = Vec::new();
            entry::put_words(&mut words, self.keys.database, args);
            self.asides.calls.push(words);
        }
        let start = reply.len();
        self.calls += 1;
        let elapsed_us = elapsed_us(self.ticks, self.calls);
        let moment = self.keys.moment();
        if permitted.answer(args, &mut self.keys.database, moment, elapsed_us, self.asides, reply) {
            self.asides.script_calls.note(known, args, &reply.bytes()[start..]);
            return Flow::On;
        }
        let Permitted::Data(command) = permitted else { unreachable!("answered above") };
        if let Err(refusal) = check_call(command, args, self.circumstances, self.keys.has_changed()) {
            self.asides.script_calls.note_rejected(known, args, refusal.text());
            reply.error(refusal.text());
            return Flow::On;
        }
        let flow = self.keys.run(command, args, reply);
        self.asides.script_calls.note(known, args, &reply.bytes()[start..]);
        flow
    }

    fn tick(&mut self) -> Flow {
        self.ticks += 1;
        if self.ticks < TICKS_MAX && !self.keys.is_declined() { Flow::On } else { Flow::Stop }
    }

    fn log(&mut self, level: u8, text: &[u8]) {
        self.asides.actions.extend(log_action(level, text));
    }

    fn may_call(&mut self, args: Args<'_>) -> Option<bool> {
        may_call(args, self.invocation)
    }
}

//! Counts what requests have cost at other cores and nodes. See [`crate::stats::cost`].

use group::cost::Cost;
use group::requests::{Request, RequestBody};
use resp::{Args, Span};

use crate::core::Core;
use crate::entry::Reader;
use crate::known::Known;
use crate::relay::Purpose;
use crate::stats::calls::FarCalls;

impl Core {
    /// True if a command must be measured for this core where it is carried out.
    pub(crate) fn wants_time(&mut self, known: Known, args: Args<'_>) -> bool {
        // Where nobody is asked by number the core that carries it out decides.
        self.context.is_clustered && self.context.timings.wants(known, args)
    }

    /// Counts what a request of this core has taken.
    pub(crate) fn count_cost(&mut self, request: &Request, purpose: &Purpose, cost: &Cost) {
        if *cost == Cost::default() {
            return;
        }
        let timings = &mut self.context.timings;
        let mut times = cost.times.iter();
        let mut note = |args: Args<'_>| {
            if let Some(took) = times.next()
                && let Ok(known) = crate::lookup::lookup(args)
            {
                timings.note_answered(known, args, *took);
            }
        };
        let mut spans: Vec<Span> = Vec::new();
        match &request.body {
            RequestBody::Write(words) | RequestBody::Read(words) | RequestBody::ReadAtOnce(words) => {
                note(Reader::new(words).words(&mut spans).1);
            }
            RequestBody::Script(script) => note(Reader::new(&script.words).words(&mut spans).1),
            RequestBody::Exec(packed) => {
                let exec = Reader::new(packed).exec(request.protocol, &mut spans);
                exec.for_each(&mut spans, |_, args| note(args));
            }
            _ => {}
        }
        if let Some(calls) = FarCalls::read(&cost.calls) {
            self.sessions.calls.add_far_script(calls);
        }
        match (purpose, cost.times.first()) {
            (Purpose::Question { id, .. }, Some(took)) => self.note_part_time(*id, *took),
            (Purpose::Client { session, .. } | Purpose::Script { session, .. }, Some(_)) => {
                let entries = self.context.timings.take_slow();
                self.take_slow(*session, entries);
            }
            _ => {}
        }
    }
}

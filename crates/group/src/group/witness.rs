//! Where the replies of an entry's commands go while it is applied, and what measures them.

use std::collections::BTreeMap;

use keyspace::DataCommand;
use message::TransactionId;
use resp::Args;
use state::{CommandRun, Effects, ExecRun, Imports, Meter};

use super::{Committed, Waiter};
use crate::cost::Cost;
use crate::output::Output;

/// What a group makes of one item.
pub(super) struct Witness<'w, O> {
    /// The waiter for it. A client is answered here; all others are left to the group.
    pub(super) waiter: Option<Waiter>,
    pub(super) output: &'w mut O,
    /// Values that have been read in ahead of their entries.
    pub(super) imports: &'w mut BTreeMap<TransactionId, Imports>,
    /// What the commands of a numbered request take.
    pub(super) cost: Cost,
    /// Nothing of a numbered request has been measured yet.
    pub(super) is_first: bool,
    /// The key that is being evicted was there.
    pub(super) existed: bool,
}

/// Measures the commands of numbered requests.
impl<O: Output> Meter for Witness<'_, O> {
    type Watch = O::Watch;

    fn start(&mut self, command: &'static DataCommand, args: Args<'_>) -> Option<O::Watch> {
        if std::mem::take(&mut self.is_first) {
            // What was done before is no part of its first command.
            self.output.break_off();
        }
        let is_timed = self.waiter.as_ref().and_then(Waiter::origin).is_some_and(|origin| origin.is_timed);
        self.output.start_for_gateway(command, args, is_timed)
    }

    fn stop(&mut self, watch: Option<O::Watch>, _: Args<'_>) {
        self.cost.times.extend(watch.map(|watch| self.output.stop_for_gateway(watch)));
    }
}

impl<O: Output> Effects for Witness<'_, O> {
    #[inline]
    fn command(&mut self, run: CommandRun<'_>) {
        let origin = match &self.waiter {
            Some(Waiter::Write(origin)) => *origin,
            Some(Waiter::Eviction(_, key, _)) => {
                self.existed = run.exists(key);
                return run.discard();
            }
            _ => return run.discard(),
        };
        let (protocol, command, args) = (run.protocol, run.command, run.args);
        let watch = self.output.start_watch(command, args);
        let mut is_done = true;
        let proof = Committed::of_applied();
        self.output.reply_committed(&origin, protocol, proof, |writer| is_done = run.run(writer));
        self.output.stop_watch(watch.filter(|_| is_done), &origin, args);
    }

    fn exec(&mut self, run: ExecRun<'_>) {
        let Some(Waiter::Write(origin)) = &self.waiter else { return run.discard() };
        let origin = *origin;
        let protocol = run.exec.protocol;
        let again = origin.tracks.then(|| run.exec.clone());
        let proof = Committed::of_applied();
        self.output.reply_exec(&origin, protocol, proof, run);
        self.output.name_slow(&origin);
        // Remembered before its own changes are told: it may have read what it then changed.
        if let Some(exec) = again {
            exec.for_each(&mut Vec::new(), |_, args| {
                let command = keyspace::resolve(args).expect("a logged command is known");
                self.output.remember_command(&origin, command, args);
            });
        }
    }

    fn is_silent(&self) -> bool {
        self.waiter.as_ref().and_then(Waiter::origin).is_some_and(|origin| origin.is_silent)
    }

    fn imports(&mut self, transaction: TransactionId) -> Imports {
        self.imports.remove(&transaction).unwrap_or_default()
    }
}

//! What a group calls: [`group::output::Output`], for the cores of a node.
//!
//! This is one list. What takes more than a few lines is a method of [`Output`](super::Output) of the same name, in the
//! file of what it is about.

use std::collections::BTreeSet;
use std::sync::Arc;

use group::cost::Cost;
use group::group_seed::NewGroup;
use group::group_status::GroupStatus;
use group::host::{ArchiveNews, CheckpointStep, Persist};
use group::ids::{CoreId, GroupId, Lane, Level, NodeId, Now};
use group::output::{Output, PeerMessage};
use group::proof::{Committed, Observed, Proof};
use group::published::Published;
use group::replica_reads::{AppliedPosition, ReplicaRead};
use group::requests::{Author, Claim, Origin, ParticipantStatus, Request, RequestBody, Step};
use group::timeline::Kind;
use journal::{Append, CheckpointMark, Span};
use keyspace::{DataCommand, Keyspace, Notice};
use message::parameters::Parameters;
use message::{GatewayId, TransactionId};
use resp::{Args, Protocol, Writer};
use state::ExecRun;
use stdx::{Duration, UnixMillis};

use crate::context::Context;
use crate::core_messages::CoreMessage;
use crate::event::Action;
use crate::known::Known;
use crate::libraries::Libraries;
use crate::scripts::Asides;
use crate::stats::cost::Measure;
use crate::stats::timing::Watch;
use crate::wire;

impl Output for super::Output<'_> {
    type View = Context;
    type Watch = Watch;
    type Asides = Asides;

    #[inline]
    fn view(&self) -> &Context {
        self.context
    }

    fn log(&mut self, level: Level, line: String) {
        self.actions.push(Action::Log { level, line });
    }

    fn fatal(&mut self, line: String) {
        self.actions.push(Action::Fatal { line });
    }

    fn append(&mut self, append: Append, persist: Persist) {
        self.actions.push(Action::Append { append, persist });
    }

    fn keep_level(&mut self, level: stdx::Level) -> bool {
        self.context.keep(level, self.actions).is_ok()
    }

    fn read_log(&mut self, span: Span) {
        self.actions.push(Action::ReadLog(span));
    }

    fn keep_log(&mut self, group: GroupId, index: u64) {
        self.actions.push(Action::KeepLog { group, index });
    }

    fn checkpoint(&mut self, group: GroupId, id: u64, step: CheckpointStep) {
        self.actions.push(Action::Checkpoint { group, id, step });
    }

    fn read_checkpoint(&mut self, group: GroupId, mark: CheckpointMark, chunk: u64, to: NodeId) {
        self.actions.push(Action::ReadCheckpoint { group, mark, chunk, to });
    }

    fn archive(&mut self, news: ArchiveNews) {
        self.actions.push(Action::Archive(news));
    }

    #[inline]
    fn applied_position(&mut self, group: GroupId) -> &mut AppliedPosition {
        &mut self.context.places[group.0 as usize]
    }

    #[inline]
    fn hear_moment(&mut self, moment: UnixMillis) {
        self.context.hear(moment);
    }

    fn free_later(&mut self, keyspace: Keyspace) {
        self.context.free_later(keyspace);
    }

    fn note(&mut self, kind: Kind, group: Option<GroupId>, text: String) {
        self.post(CoreId(0), CoreMessage::Happened { kind, group, text });
    }

    fn happened(&mut self, kind: Kind, group: Option<GroupId>, text: String) {
        self.happened(kind, group, text);
    }

    fn retry(&mut self, request: Request) {
        self.post(self.context.core, CoreMessage::Retry(request));
    }

    fn ask_for_move(&mut self, by: GroupId, id: TransactionId, group: GroupId, step: Step, body: RequestBody) {
        self.post(self.context.core, CoreMessage::Move { by, id, group, step, body });
    }

    fn split_off(&mut self, group: GroupId, new: NewGroup) {
        self.post(self.core_of(group), CoreMessage::SplitOff(Box::new(new)));
    }

    fn split_begun(&mut self, parent: GroupId, group: GroupId) {
        self.post(self.core_of(parent), CoreMessage::SplitBegun { parent, group });
    }

    fn split_kept(&mut self, parent: GroupId, group: GroupId) {
        self.post(self.core_of(parent), CoreMessage::SplitKept { parent, group });
    }

    fn splits_passed(&mut self, groups: &[GroupId]) {
        let mut cores: Vec<_> = groups.iter().map(|group| self.core_of(*group)).collect();
        cores.dedup();
        for core in cores {
            self.post(core, CoreMessage::SplitsPassed(groups.to_vec()));
        }
    }

    fn libraries_changed(&mut self, libraries: Arc<Libraries>, reply: Option<(Origin, Committed, Vec<u8>)>) {
        let first = self.context.core;
        self.post(first, CoreMessage::Libraries { libraries, first, reply });
    }

    fn parameters_changed(&mut self, parameters: &Arc<Parameters>) {
        for core in (0..self.context.core_count).map(CoreId) {
            self.post(core, CoreMessage::Parameters(Arc::clone(parameters)));
        }
    }

    fn send_to_replica(&mut self, to: NodeId, group: GroupId, message: PeerMessage<'_>) {
        self.send(to, group, message.lane(), wire::encode_peer_message(group, &message));
    }

    fn report(&mut self, status: GroupStatus, others: BTreeSet<NodeId>) {
        let bytes = wire::encode_group_status(&status);
        for node in others {
            // The first core keeps them, whichever group they are about.
            self.send(node, GroupId(0), Lane::Log, bytes.clone());
        }
        self.post(CoreId(0), CoreMessage::GroupStatus(status));
    }

    fn ask_gateway(&mut self, gateway: GatewayId, group: GroupId) {
        // The group's number only tells the receiving host which core to wake: the gateway's own.
        let core = GroupId(u32::from(gateway.core.0));
        self.send(NodeId(gateway.node), core, Lane::Vital, wire::encode_ask(gateway, group));
    }

    fn query_outcome(&mut self, transaction: TransactionId, from: GroupId, group: GroupId) {
        self.query_outcome(transaction, from, group);
    }

    fn ask_whether_ended(&mut self, transaction: TransactionId, from: GroupId, group: GroupId) {
        self.ask_whether_ended(transaction, from, group);
    }

    fn tell_status(
        &mut self,
        transaction: TransactionId,
        asker: (GroupId, NodeId),
        from: GroupId,
        status: ParticipantStatus,
    ) {
        self.tell_status(transaction, asker, from, status);
    }

    #[inline]
    fn reply_observed(
        &mut self,
        origin: &Origin,
        protocol: Protocol,
        observed: Observed,
        write: impl FnOnce(&mut Writer),
    ) {
        self.reply_observed(origin, protocol, observed, write);
    }

    #[inline]
    fn reply_to_read(
        &mut self,
        origin: &Origin,
        protocol: Protocol,
        observed: Observed,
        command: (&'static DataCommand, Args<'_>),
        write: impl FnOnce(&mut Writer) -> bool,
    ) {
        self.reply_to_read(origin, protocol, observed, command, write);
    }

    #[inline]
    fn reply_committed(
        &mut self,
        origin: &Origin,
        protocol: Protocol,
        proof: Committed,
        write: impl FnOnce(&mut Writer),
    ) {
        self.reply_timed(origin, protocol, proof, |_, writer| write(writer));
    }

    #[inline]
    fn reply_exec(&mut self, origin: &Origin, protocol: Protocol, proof: Committed, run: ExecRun<'_>) {
        self.reply_timed(origin, protocol, proof, |timings, writer| run.run(&mut Measure::Client(timings), writer));
    }

    fn reply_proven(&mut self, origin: &Origin, proof: Proof, bytes: Vec<u8>) {
        self.reply_proven(origin, proof, bytes);
    }

    fn refuse(&mut self, origin: &Origin, protocol: Protocol, text: &str) {
        self.refuse(origin, protocol, text);
    }

    fn answer(&mut self, origin: &Origin, proof: impl Into<Proof>, bytes: Vec<u8>) {
        self.answer(origin, proof, bytes);
    }

    fn answer_with(&mut self, origin: &Origin, proof: Proof, cost: Cost, bytes: Vec<u8>) {
        self.answer_with(origin, proof, cost, bytes);
    }

    fn answer_committed(&mut self, origin: &Origin, proof: Committed, cost: Cost, bytes: Vec<u8>) {
        self.answer_committed(origin, proof, cost, bytes);
    }

    fn send_back(&mut self, origin: &Origin) {
        self.send_back(origin);
    }

    fn alive(&mut self, origin: &Origin) {
        self.alive(origin);
    }

    fn decline(&mut self, read: ReplicaRead) {
        self.post(read.origin.core, CoreMessage::NotNearby(read));
    }

    fn wake(&mut self, waiter: &Origin, group: GroupId) {
        self.wake(waiter, group);
    }

    fn publish(&mut self, message: &Published) {
        self.publish(message);
    }

    fn tell(&mut self, notice: &Notice) {
        self.tell(notice);
    }

    fn remember_command(&mut self, origin: &Origin, command: &DataCommand, args: Args<'_>) {
        self.context.tracker.remember_command(origin.core, origin.session, command, args);
    }

    fn remember_reads(&mut self, origin: &Origin, keys: &[Vec<u8>]) {
        self.remember_reads(origin, keys);
    }

    fn changed(&mut self, key: &[u8], by: Option<Author>) {
        self.changed(key, by);
    }

    fn flushed(&mut self, group: GroupId) {
        self.flushed(group);
    }

    fn flush_broadcasters(&mut self) {
        self.flush_broadcasters();
    }

    fn flush_caches(&mut self) {
        self.flush_caches();
    }

    #[inline]
    fn settle(&mut self) {
        self.settle();
    }

    fn settle_told(&mut self, gateway: CoreId, claim: Claim) {
        self.settle_told(gateway, claim);
    }

    fn tell_asides(&mut self, origin: &Origin, asides: Asides, now: Now) {
        self.tell_asides(origin, asides, now);
    }

    #[inline]
    fn start_watch(&mut self, command: &'static DataCommand, args: Args<'_>) -> Option<Watch> {
        self.start_watch(command, args)
    }

    #[inline]
    fn stop_watch(&mut self, watch: Option<Watch>, origin: &Origin, args: Args<'_>) {
        self.stop_watch(watch, origin, args);
    }

    #[inline]
    fn break_off(&mut self) {
        self.context.timings.break_off();
    }

    #[inline]
    fn start_for_gateway(&mut self, command: &'static DataCommand, args: Args<'_>, is_wanted: bool) -> Option<Watch> {
        self.context.timings.start_for_gateway(Known::Data(command), args, is_wanted)
    }

    #[inline]
    fn stop_for_gateway(&mut self, watch: Watch) -> Duration {
        self.context.timings.stop_for_gateway(watch)
    }

    fn start_script(&mut self, origin: &Origin, args: Args<'_>) -> Option<Watch> {
        let known = crate::lookup::lookup(args).expect("its gateway knew it");
        let timings = &mut self.context.timings;
        match origin.claim {
            None => timings.start(known, args),
            Some(_) => {
                timings.break_off();
                timings.start_for_gateway(known, args, origin.is_timed)
            }
        }
    }

    #[inline]
    fn name_slow(&mut self, origin: &Origin) {
        self.name_slow(origin);
    }

    fn count_replica_read(&mut self) {
        self.context.statistics.replica_read_count += 1;
    }
}

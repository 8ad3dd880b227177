//! The way out of a group: replies to clients on any node or core, words to sibling cores and to other nodes, and what
//! the host is asked to do. And the way in of what a group has to know of its node.
//!
//! Both are traits. A group calls them by the type that implements them, so that nothing is called through a pointer,
//! and what is written into a session's output is inlined as if it stood here.

use std::collections::BTreeSet;
use std::sync::Arc;

use command::Refusal;
use consensus::Message;
use journal::{Append, CheckpointMark, Span};
use keyspace::{Classes, DataCommand, Keyspace, Notice, Tuning};
use message::libraries::Libraries;
use message::parameters::Parameters;
use message::roster::{Member, Roster};
use message::slots::{Moved, SlotMap};
use message::{GatewayId, TransactionId};
use resp::{Args, Protocol, Writer};
use state::ExecRun;
use stdx::{Duration, Instant, UnixMillis};

use crate::cost::Cost;
use crate::group_seed::NewGroup;
use crate::group_status::{GroupStatus, GroupStatuses};
use crate::host::{ArchiveNews, CheckpointStep, Persist};
use crate::ids::{CoreId, GroupId, Lane, Level, NodeId, Now, Room};
use crate::levels::LevelFacts;
use crate::proof::{Committed, Observed, Proof};
use crate::published::Published;
use crate::replica_reads::{AppliedPosition, ReplicaRead};
use crate::requests::{Author, Claim, Origin, ParticipantStatus, Request, RequestBody, Route, Step};
use crate::timeline::Kind;

/// What a group reads of the node that it runs on.
pub trait NodeView {
    /// This node.
    fn node(&self) -> NodeId;
    /// This core.
    fn core(&self) -> CoreId;
    /// Cores of the node.
    fn core_count(&self) -> u16;
    /// Groups of the cluster, those that nobody leads yet among them.
    fn group_count(&self) -> u32;
    /// Other nodes may lead groups.
    fn is_clustered(&self) -> bool;
    /// The cluster has removed this node.
    fn is_expelled(&self) -> bool;
    /// The process is about to stop: it should not lead.
    fn is_stopping(&self) -> bool;
    /// Groups are founded by themselves when the nodes have cores for more.
    fn founds_groups(&self) -> bool;
    /// Where this node is found.
    fn own(&self) -> &Member;
    /// Who belongs to the cluster, as far as this node knows; empty for a node by itself.
    fn roster(&self) -> &Arc<Roster>;
    /// Which group holds which slot, as far as this core knows.
    fn slots(&self) -> &Arc<SlotMap>;
    /// Where each group is led.
    fn routes(&self) -> &[Route];
    /// What leaders have said of their groups; kept by the first core.
    fn group_statuses(&self) -> &GroupStatuses;
    /// Levels: of this program, of the cluster, and of other nodes.
    fn levels(&self) -> &LevelFacts;
    /// Version of the parameters of the cluster that this core obeys.
    fn parameters_version(&self) -> u64;
    /// The latest moment of an entry that this core knows of, in whatever group.
    fn latest_moment(&self) -> UnixMillis;
    /// Whether the disk can take more.
    fn room(&self) -> &Room;
    /// This node follows a Redis, and takes no writes of clients.
    fn follows_source(&self) -> bool;
    /// How many milliseconds the archive is behind, if there is one and this node writes it.
    fn archive_lag_ms(&self) -> Option<u64>;
    /// For how long the host has kept this node from working within the last minute, in milliseconds.
    fn stalled_ms_here(&self) -> u64;
    /// What it has done, as the timeline tells it.
    fn stalls_here(&self) -> String;
    /// Which kinds of changes of keys somebody wants to know of.
    fn noted(&self) -> Classes;
    /// Why a request is refused for which no quorum was found.
    fn no_quorum(&self, group: GroupId, now: Instant) -> String;
    /// The groups of which a node that leads nothing is to become the leader by these words of CLUSTER FAILOVER.
    ///
    /// # Errors
    /// There is no node that it could take over from, or the words are wrong.
    fn groups_to_take_over(&self, node: NodeId, words: Args<'_>) -> Result<Vec<GroupId>, Refusal>;

    /// Another node is heard, and can lead.
    fn can_lead(&self, node: NodeId) -> bool;
    /// Another node is heard.
    fn hears(&self, node: NodeId) -> bool;
    /// Another node has said the same of itself since then.
    fn is_steady_since(&self, node: NodeId, then: Instant) -> bool;
    /// The same as [`NodeView::stalled_ms_here`] for another node, if it is heard.
    fn stalled_ms(&self, node: NodeId) -> Option<u64>;
    /// Since when another node has been silent, if it is and was heard before.
    fn silent_since(&self, node: NodeId) -> Option<Instant>;
    /// Cores of another node, if it is heard.
    fn cores_of(&self, node: NodeId) -> Option<u16>;
    /// Nodes that nobody has heard for long.
    fn lost(&self) -> BTreeSet<u64>;
    /// The nodes that a node can talk to, itself among them, as far as that is known at node `own`.
    fn reach(&self, own: NodeId, node: NodeId) -> BTreeSet<NodeId>;

    /// Replicas of each group (`replicas`).
    fn replica_count(&self) -> usize;
    /// Zones in which leaders should be, the best first.
    fn leader_zones(&self) -> &[String];
    /// `min-replicas-to-write`
    fn replicas_to_write(&self) -> u64;
    /// `min-replicas-max-lag`
    fn replica_lag_max(&self) -> Duration;
    /// Groups are archived.
    fn is_archived(&self) -> bool;
    /// Somebody wants to know which moments are closed.
    fn closes_moments(&self) -> bool;
    /// Bytes in a second at which a member is given a checkpoint; 0 is without limit.
    fn balance_rate_bytes(&self) -> u64;
    /// Bytes of keys from which on a group is split; 0 is never.
    fn balance_split_bytes(&self) -> u64;
    /// Bytes of answers to requests with an id that a group keeps.
    fn request_ids_bytes_max(&self) -> usize;
    /// How uses of keys are noted.
    fn tuning(&self) -> Tuning;
}

/// What a replica of a group says to another one.
#[derive(Debug)]
pub enum PeerMessage<'a> {
    /// A message of Raft.
    Raft(&'a Message),
    /// There is a checkpoint for you.
    Offer(&'a Message),
    /// Give me a chunk of a checkpoint.
    Pull {
        /// Index of the checkpoint.
        index: u64,
        /// Which chunk.
        chunk: u64,
    },
    /// Here it is.
    Chunk {
        /// Index of the checkpoint.
        index: u64,
        /// Which chunk.
        chunk: u64,
        /// The chunk; `None` behind the last.
        bytes: Option<&'a [u8]>,
    },
    /// How far is the group? The question has this number.
    Sound(u64),
    /// So far.
    AppliedPosition {
        /// Number of the question.
        number: u64,
        /// How far.
        position: AppliedPosition,
    },
    /// The sender holds nothing of the group.
    Vacant,
    /// Am I a member?
    AmMember,
    /// You are none, up to this entry.
    NoMember(u64),
    /// I hold nothing, and believe that the slots with this cover are in the group.
    Where(u64),
    /// These are the slots of the group that have ever moved.
    Held(&'a [Moved]),
}

impl PeerMessage<'_> {
    /// Which way it takes.
    pub fn lane(&self) -> Lane {
        match self {
            Self::Raft(message) if message.kind().is_vital() => Lane::Vital,
            Self::Raft(_) | Self::Vacant | Self::AmMember | Self::NoMember(_) | Self::Where(_) | Self::Held(_) => {
                Lane::Log
            }
            Self::Sound(_) | Self::AppliedPosition { .. } => Lane::Vital,
            Self::Offer(_) | Self::Pull { .. } | Self::Chunk { .. } => Lane::Bulk,
        }
    }
}

/// See the module.
pub trait Output {
    /// What is known of the node.
    type View: NodeView;
    /// A command that is being measured.
    type Watch;
    /// What a script does beside its keys.
    type Asides;

    /// What is known of the node.
    fn view(&self) -> &Self::View;

    // ---- the host --------------------------------------------------------------------------------------------------

    /// One line for the operator's log.
    fn log(&mut self, level: Level, line: String);
    /// The process cannot go on; this line says why and what to do.
    fn fatal(&mut self, line: String);
    /// Writes to the log of a group.
    fn append(&mut self, append: Append, persist: Persist);
    /// Something of this level is about to be logged. False if this program does not know the level: then the process
    /// ends.
    fn keep_level(&mut self, level: stdx::Level) -> bool;
    /// Reads entries back that are on disk.
    fn read_log(&mut self, span: Span);
    /// Entries behind `index` must stay on disk although a checkpoint covers them: members lack them.
    fn keep_log(&mut self, group: GroupId, index: u64);
    /// Works on the file of a checkpoint.
    fn checkpoint(&mut self, group: GroupId, id: u64, step: CheckpointStep);
    /// Reads a chunk of a checkpoint that is on disk, for a node.
    fn read_checkpoint(&mut self, group: GroupId, mark: CheckpointMark, chunk: u64, to: NodeId);
    /// How far a group is that is archived.
    fn archive(&mut self, news: ArchiveNews);

    // ---- the core --------------------------------------------------------------------------------------------------

    /// How far a group of this core has been applied.
    fn applied_position(&mut self, group: GroupId) -> &mut AppliedPosition;
    /// There is an entry of this moment, of a group of this core.
    fn hear_moment(&mut self, moment: UnixMillis);
    /// No group uses this keyspace any more: it is freed in steps.
    fn free_later(&mut self, keyspace: Keyspace);
    /// Notes something on the timeline of the cluster.
    fn note(&mut self, kind: Kind, group: Option<GroupId>, text: String);
    /// The same, and in the operator's log.
    fn happened(&mut self, kind: Kind, group: Option<GroupId>, text: String);
    /// Runs a script now, which has waited for locked keys on this core.
    fn retry(&mut self, request: Request);
    /// Asks a group for a step of a move that another group of this core drives.
    fn ask_for_move(&mut self, by: GroupId, id: TransactionId, group: GroupId, step: Step, body: RequestBody);
    /// A group has split off, which lives on this node.
    fn split_off(&mut self, group: GroupId, new: NewGroup);
    /// A group that has split off is there, and has told what it does.
    fn split_begun(&mut self, parent: GroupId, group: GroupId);
    /// A group that has split off does not need the log of its parent any more.
    fn split_kept(&mut self, parent: GroupId, group: GroupId);
    /// The group that these have split off from was given a checkpoint: it has nothing for them to begin with.
    fn splits_passed(&mut self, groups: &[GroupId]);
    /// The libraries have changed. When every core knows them, this client is answered.
    fn libraries_changed(&mut self, libraries: Arc<Libraries>, reply: Option<(Origin, Committed, Vec<u8>)>);
    /// The parameters of the cluster have changed.
    fn parameters_changed(&mut self, parameters: &Arc<Parameters>);

    // ---- other nodes -----------------------------------------------------------------------------------------------

    /// Says something to the replica of a group on another node.
    fn send_to_replica(&mut self, to: NodeId, group: GroupId, message: PeerMessage<'_>);
    /// A leader tells these nodes and this one how its group is.
    fn report(&mut self, status: GroupStatus, others: BTreeSet<NodeId>);
    /// Asks a gateway on another node whether it lives, on behalf of a group.
    fn ask_gateway(&mut self, gateway: GatewayId, group: GroupId);
    /// Asks another participant about a transaction without a gateway.
    fn query_outcome(&mut self, transaction: TransactionId, from: GroupId, group: GroupId);
    /// Asks another participant of a transaction that was committed whether it has ended it, too.
    fn ask_whether_ended(&mut self, transaction: TransactionId, from: GroupId, group: GroupId);
    /// Tells a participant, for which its leader on a node has asked, what another one knows of a transaction.
    fn tell_status(
        &mut self,
        transaction: TransactionId,
        asker: (GroupId, NodeId),
        from: GroupId,
        status: ParticipantStatus,
    );

    // ---- replies ---------------------------------------------------------------------------------------------------

    /// Answers a request that changed nothing.
    fn reply_observed(
        &mut self,
        origin: &Origin,
        protocol: Protocol,
        observed: Observed,
        write: impl FnOnce(&mut Writer),
    );
    /// Answers a read, and measures it. `write` says whether it has been carried out, or must wait.
    fn reply_to_read(
        &mut self,
        origin: &Origin,
        protocol: Protocol,
        observed: Observed,
        command: (&'static DataCommand, Args<'_>),
        write: impl FnOnce(&mut Writer) -> bool,
    );
    /// Answers a request that changed data, when those who cache have been told: [`Output::settle`] must follow.
    fn reply_committed(
        &mut self,
        origin: &Origin,
        protocol: Protocol,
        proof: Committed,
        write: impl FnOnce(&mut Writer),
    );
    /// The same for a transaction, with commands that are measured one by one.
    fn reply_exec(&mut self, origin: &Origin, protocol: Protocol, proof: Committed, run: ExecRun<'_>);
    /// Gives a client a reply that has been kept, in its session's protocol.
    fn reply_proven(&mut self, origin: &Origin, proof: Proof, bytes: Vec<u8>);
    /// Refuses a request.
    fn refuse(&mut self, origin: &Origin, protocol: Protocol, text: &str);
    /// Answers a numbered request.
    fn answer(&mut self, origin: &Origin, proof: impl Into<Proof>, bytes: Vec<u8>);
    /// The same, and tells what it has taken.
    fn answer_with(&mut self, origin: &Origin, proof: Proof, cost: Cost, bytes: Vec<u8>);
    /// Answers a numbered request that changed data: [`Output::settle`] must follow.
    fn answer_committed(&mut self, origin: &Origin, proof: Committed, cost: Cost, bytes: Vec<u8>);
    /// Lets a gateway send again what it has asked: it was not carried out here, and may be elsewhere.
    fn send_back(&mut self, origin: &Origin);
    /// Tells a gateway that its request has come again and will be answered.
    fn alive(&mut self, origin: &Origin);
    /// A replica is too old for a read, or not as far as its client has seen: the leader must be asked.
    fn decline(&mut self, read: ReplicaRead);
    /// Tells a waiter that it may get an answer: there may be something for it, or its stream or group has gone.
    fn wake(&mut self, waiter: &Origin, group: GroupId);

    // ---- those who listen, and those who cache ---------------------------------------------------------------------

    /// Hands a message to everybody who listens, here and on other nodes.
    fn publish(&mut self, message: &Published);
    /// Tells those who listen to a key, or to what is done to keys.
    fn tell(&mut self, notice: &Notice);
    /// A command of this session has read keys, which live here.
    fn remember_command(&mut self, origin: &Origin, command: &DataCommand, args: Args<'_>);
    /// A script of this session has read these keys, which live here.
    fn remember_reads(&mut self, origin: &Origin, keys: &[Vec<u8>]);
    /// A key has changed, by the hand of this client of the node or of none.
    fn changed(&mut self, key: &[u8], by: Option<Author>);
    /// All keys of a database are gone, in this group.
    fn flushed(&mut self, group: GroupId);
    /// Tells every client that hears of all changes to forget what it has read.
    fn flush_broadcasters(&mut self);
    /// Tells every client that tracks to forget all it has read.
    fn flush_caches(&mut self);
    /// All have been told of a change: its answer leaves, or waits until they have heard.
    fn settle(&mut self);
    /// The same for the word that this node's replica has applied a request of a gateway of its own.
    fn settle_told(&mut self, gateway: CoreId, claim: Claim);
    /// Does what a script has done beside its keys.
    fn tell_asides(&mut self, origin: &Origin, asides: Self::Asides, now: Now);

    // ---- measurements ----------------------------------------------------------------------------------------------

    /// A command begins to be carried out.
    fn start_watch(&mut self, command: &'static DataCommand, args: Args<'_>) -> Option<Self::Watch>;
    /// It has been.
    fn stop_watch(&mut self, watch: Option<Self::Watch>, origin: &Origin, args: Args<'_>);
    /// The next command does not follow on the last one measured.
    fn break_off(&mut self);
    /// A command begins that a gateway has asked for, and may want to have measured.
    fn start_for_gateway(
        &mut self,
        command: &'static DataCommand,
        args: Args<'_>,
        is_wanted: bool,
    ) -> Option<Self::Watch>;
    /// It has ended, and took so long.
    fn stop_for_gateway(&mut self, watch: Self::Watch) -> Duration;
    /// A script begins, for a client of this node or for a gateway.
    fn start_script(&mut self, origin: &Origin, args: Args<'_>) -> Option<Self::Watch>;
    /// Gives the slow commands measured last to the core of their client.
    fn name_slow(&mut self, origin: &Origin);
    /// A replica has answered a read.
    fn count_replica_read(&mut self);

    /// The core of this node on which a group lives.
    fn core_of(&self, group: GroupId) -> CoreId {
        crate::router::core_of(group, self.view().core_count())
    }
}

//! What cores ask one another for control commands.

use std::collections::BTreeSet;
use std::sync::Arc;

use group::figures::GroupFigures;
use group::group_status::GroupStatus;
use group::ids::{CoreId, GroupId};
use group::published::Published;
use group::timeline::Happening;
use keyspace::debug::Digest;
use resp::Protocol;
use script::Script;
use stdx::Duration;

use crate::acl::change::Change;
use crate::acl::{LogEntry, Users};
use crate::blocking::WaitEnd;
use crate::event::UsersFile;
use crate::parameters::Pairs;
use crate::pubsub::Kind;
use crate::scripts::naming::Running;
use crate::stats::calls::Calls;
use crate::stats::counters::{SlowEntry, Statistics};
use crate::stats::hot::{Hot, HotKeys, Plan};
use crate::stats::timing::{Delays, TimeFigures};
use crate::tracking::Redirect;
use crate::tracking::news::Presence;

/// Asked of every core of the node.
#[derive(Clone, Debug)]
pub enum Question {
    /// Execute a query over all keys of your groups.
    Whole {
        /// Its words.
        words: Vec<u8>,
        /// Form of the replies.
        protocol: Protocol,
    },
    /// What do these keys look like now? Each core answers for its own.
    Versions {
        /// Database and name.
        keys: Vec<(u16, Vec<u8>)>,
        /// Keep them for the session, for so long. Then only groups are asked.
        reserve_for: Option<Duration>,
    },
    /// What have you counted, and how are your groups?
    Figures,
    /// The same, and how long have commands taken?
    FiguresWithTimes,
    /// What has caused long delays?
    Delays,
    /// Forget delays of these causes, or of all if none is named.
    ResetDelays(Vec<Vec<u8>>),
    /// Set these parameters, which have been checked, when you obey what the cluster has said of its own.
    Configure {
        /// Names and values.
        pairs: Pairs,
        /// The version of the cluster's parameters that must be in force here; 0 if it has not been asked.
        version: u64,
    },
    /// Begin a checkpoint of every group.
    Checkpoint,
    /// Make a checkpoint of every group, and answer when all are finished.
    FinishCheckpoint,
    /// Answer when no checkpoint is under way.
    CheckpointsFinished,
    /// Take what your groups have for whole although the end of their logs may be lacking.
    Trust,
    /// Write out all data and read it back.
    Reload,
    /// Describe keys.
    Debug {
        /// How.
        kind: DebugQuestion,
        /// Database and name.
        keys: Vec<(u16, Vec<u8>)>,
    },
    /// How many bytes do the keys of these slots take, one after the other? Each core answers for its own groups.
    SlotBytes {
        /// The first slot.
        first: u16,
        /// The last.
        last: u16,
    },
    /// Answer this when your groups have applied so much.
    At {
        /// By group.
        places: Vec<u64>,
        /// What is asked then.
        question: Box<Question>,
    },
    /// Describe your sessions.
    Sessions(SessionFilter),
    /// End sessions.
    Kill(SessionFilter),
    /// Hand this to your sessions that listen, and tell how many do.
    Publish(Published),
    /// What do your sessions listen to?
    Names {
        /// To names of this kind.
        kind: Kind,
        /// Only those that match this pattern.
        filter: Option<Vec<u8>>,
    },
    /// How many of your sessions listen to these?
    Listeners {
        /// Names of this kind.
        kind: Kind,
        /// The names.
        names: Vec<Vec<u8>>,
    },
    /// Is the session with this number one of yours?
    Find(u64),
    /// Clients of this core track, or none does any more.
    Presence(CoreId, Presence),
    /// Sessions of this core watch what others send.
    Monitoring(CoreId),
    /// Name keys of a slot, if you have them.
    KeysOfSlot {
        /// Which.
        slot: u16,
        /// In which database.
        database: u16,
        /// So many at most.
        count: usize,
    },
    /// How many keys do these slots have, one after the other? Each core answers for its own groups.
    SlotKeys {
        /// The first slot.
        first: u16,
        /// The last.
        last: u16,
        /// In which database.
        database: u16,
    },
    /// Change users; only the first core does.
    ChangeUsers(Change),
    /// These are the users now.
    InstallUsers(Arc<Users>),
    /// Read or write the file of users; only the first core does.
    UsersFile(UsersFile),
    /// What was denied to your sessions?
    AclLog,
    /// Forget that.
    ResetAclLog,
    /// End the wait of one of your sessions for data, if that is where it is.
    Unblock {
        /// Its number.
        serial: u64,
        /// What it is told.
        end: WaitEnd,
    },
    /// Let clients wait for so long, or only those that write; `None`: let them go on.
    Pause(Option<(Duration, bool)>),
    /// Set your counters to zero.
    ResetStatistics,
    /// Switch the removal of expired keys that nobody asks for on or off.
    SetActiveExpire(bool),
    /// Whether scripts may call some of DEBUG's subcommands.
    LetScriptsDebug(bool),
    /// Tell the slow commands you remember.
    Slowlog,
    /// Tell what has happened in the cluster; only the first core knows.
    Timeline,
    /// Begin to count what keys take.
    StartHot(Box<Plan>),
    /// End that; the process has used so many microseconds of processors so far, for its own work and in the system.
    StopHot((u64, u64)),
    /// What have keys taken?
    Hot,
    /// Which keys have taken the most lately?
    HotKeys,
    /// Forget that.
    ResetHot,
    /// Forget them.
    ResetSlowlog,
    /// Tell the digests of your databases that are not empty.
    Digest,
    /// Remember a script for good.
    LoadScript(Arc<Script>),
    /// Forget all scripts.
    ForgetScripts,
    /// Tell of the script that has been running for a while.
    RunningScript,
    /// End the script that is running.
    KillScript {
        /// Only if it is a function, or only if it is not.
        is_function: bool,
    },
}

/// What DEBUG asks of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebugQuestion {
    /// DEBUG OBJECT
    Object,
    /// DEBUG DIGEST-VALUE
    Digest,
}

/// What a client is to CLIENT LIST TYPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// One that listens to no channel.
    Normal,
    /// One that does.
    Pubsub,
    /// A server that follows this one or is followed by it: these are no sessions.
    Server,
}

/// Which sessions are meant. What is not set does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionFilter {
    /// One of these numbers, if there are any.
    pub serials: Vec<u64>,
    /// Of this type.
    pub kind: Option<ClientKind>,
    /// From this address.
    pub address: Option<String>,
    /// To this address.
    pub local_address: Option<String>,
    /// Of this user.
    pub user: Option<Vec<u8>>,
    /// Not this number.
    pub except: Option<u64>,
    /// Connected for so long, at least.
    pub age_min: Option<Duration>,
}

/// What a core answers.
#[derive(Debug)]
pub enum Answer {
    /// To [`Question::Whole`]: each group's number of keys in the database, its reply, and how long all took if that
    /// is known.
    Whole(Vec<(GroupId, u64, Vec<u8>)>, Option<Duration>),
    /// To [`Question::Versions`]: place in the question, and version.
    Versions(Vec<(usize, u64)>),
    /// To [`Question::Figures`].
    Figures(Box<Figures>),
    /// To [`Question::Sessions`]: number and description.
    Sessions(Vec<(u64, String)>),
    /// So many.
    Count(u64),
    /// So many of each.
    Counts(Vec<u64>),
    /// To [`Question::Find`].
    Found(Option<Redirect>),
    /// To [`Question::ChangeUsers`] and [`Question::UsersFile`].
    Users {
        /// All users, as they are now on the first core.
        users: Arc<Users>,
        /// How many were removed.
        count: u64,
    },
    /// To [`Question::AclLog`].
    AclLog(Vec<LogEntry>),
    /// To [`Question::Names`].
    Names(Vec<Vec<u8>>),
    /// To [`Question::Delays`].
    Delays(Delays),
    /// To [`Question::Hot`]; nothing if nothing is or was counted.
    Hot(Option<Box<Hot>>),
    /// To [`Question::HotKeys`].
    HotKeys(HotKeys),
    /// To [`Question::Slowlog`].
    Slowlog(Vec<SlowEntry>),
    /// To [`Question::Timeline`], the oldest first.
    Timeline(Vec<Happening>),
    /// To [`Question::Digest`].
    Digest(Vec<(u16, Digest)>),
    /// To [`Question::Debug`]: place in the question, and description; keys that do not exist are left out.
    Described(Vec<(usize, String)>),
    /// To [`Question::RunningScript`].
    Running(Option<Running>),
    /// Done.
    Done,
    /// Not possible now; the text is an error reply.
    Refused(String),
    /// What the answer rests on has not come in time, with the error for the client.
    Late(String),
}

/// A core's figures.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// What it has counted.
    pub statistics: Statistics,
    /// Commands, bytes received and bytes sent, a second.
    pub per_second: [u64; 3],
    /// Calls of its sessions.
    pub calls: Calls,
    /// What it has measured of commands, by their place in the catalog.
    pub times: Vec<(usize, TimeFigures)>,
    /// Of the last minutes: the part of this core's time that its hottest key took, and of its calls, in thousandths.
    pub hottest_per_mille: (u64, u64),
    /// Open sessions.
    pub session_count: u64,
    /// Bytes of memory that they take.
    pub session_bytes: u64,
    /// The most bytes that one of them has sent and that are not yet parsed.
    pub input_bytes_max: u64,
    /// The most bytes that one of them has yet to be sent.
    pub output_bytes_max: u64,
    /// Sessions that track, keys remembered, and their readers.
    pub tracking: (usize, usize, usize),
    /// Prefixes that its sessions are told of.
    pub prefixes: BTreeSet<Vec<u8>>,
    /// Names that its sessions listen to: channels, patterns, shard channels.
    pub names: [Vec<Vec<u8>>; 3],
    /// Of these, sessions that wait for data.
    pub waiting_count: u64,
    /// Waits that end at some time, the keys that are waited for, and those of them that are waited for by consumers
    /// of a group, who are also woken if the key goes.
    pub waits: (usize, usize, usize),
    /// Sessions that watch keys, and these keys.
    pub watching: (usize, usize),
    /// Sessions that listen to channels.
    pub listening_count: usize,
    /// What was denied: logins, commands, keys, channels.
    pub denials: [u64; 4],
    /// Keys, keys with a deadline, the mean time to live in milliseconds, and hashes of which a field has a deadline,
    /// by database.
    pub databases: Vec<(u64, u64, u64, u64)>,
    /// Bytes of its keyspaces.
    pub keyspace_bytes: u64,
    /// The same when the host last measured its memory.
    pub reported_keyspace_bytes: u64,
    /// Bytes that Lua holds for it.
    pub lua_bytes: u64,
    /// Its groups.
    pub groups: Vec<GroupFigures>,
    /// What leaders have said of their groups, and how many milliseconds ago; of the first core only.
    pub group_statuses: Vec<(GroupStatus, u64)>,
}

impl Figures {
    /// Keys looked up on this core, by commands of its groups and by transactions over several.
    pub fn lookups(&self) -> keyspace::Lookups {
        self.groups.iter().fold(self.statistics.lookups, |mut sum, group| {
            sum.add(group.lookups);
            sum
        })
    }
}

//! What each step of a core costs, and what it is made of.
//!
//! The costs are those of one machine. They say how a server behaves when its cores are busy: anyone who wants to know
//! what another machine does puts other numbers in. Sums of some of them were measured, and divided among the steps by
//! judgement; the others are estimates. `docs/decisions/0055` tells which sums these are.

/// Declares, from one list, what is counted and what each of it costs.
macro_rules! steps {
    ($($(#[$doc:meta])* $name:ident = $ns:literal, $label:literal;)*) => {
        /// What something costs, in nanoseconds of a processor: for each, or for 1,024 of what is counted in bytes.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Costs {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// What has been done: by one turn of a core, or by many.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Costs {
            /// Those that stand below: of one machine, measured in part and estimated in part.
            pub const SUPPOSED: Self = Self { $($name: $ns,)* };

            /// Nothing takes any time: for worlds that are being set up.
            pub const NONE: Self = Self { $($name: 0,)* };

            /// What all of this takes, by what it is made of.
            pub fn parts(&self, counts: &Counts) -> Vec<(&'static str, u64)> {
                vec![$(($label, priced(stringify!($name), counts.$name, self.$name)),)*]
            }
        }

        impl Counts {
            /// Adds what something else has done.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

/// Bytes are priced by the KiB.
fn priced(name: &str, count: u64, ns: u64) -> u64 {
    if name.ends_with("_bytes") { count * ns / 1_024 } else { count * ns }
}

steps! {
    /// A turn: the wait for sockets, and what a core does in each turn whatever has come.
    turns = 1_800, "turns";
    /// A turn that a thread had to be woken for: the switch to it and back.
    wakes = 1_500, "wake-ups of the own thread";
    /// A replica that lives here, looked after in a turn.
    replicas = 150, "replicas looked after";
    /// A group of which this core holds a vacant replica, looked after in a turn.
    vacant_replicas = 100, "vacant replicas looked after";
    /// A stream of requests to a group of the cluster, looked through in a turn.
    streams = 8, "streams looked through";
    /// A socket of a client that is read: the system call, and its session.
    client_reads = 1_900, "reads from clients";
    /// Output of a client that is written: the system call, which wakes the client.
    client_writes = 3_100, "writes to clients";
    /// Bytes read from and written to clients.
    client_bytes = 100, "bytes of clients";
    /// A request of a client: parsed, dispatched, its reply put in its place.
    requests = 250, "requests";
    /// A request that a gateway of a cluster numbers, and keeps until it is answered.
    relayed = 900, "requests relayed";
    /// A request that a group takes: a key looked up, or words put into the batch.
    taken = 200, "requests taken by groups";
    /// A batch that a leader closes and proposes.
    proposals = 700, "entries proposed";
    /// A piece of log that is handed to the disk, by a leader or a follower.
    appends = 450, "appends";
    /// Bytes of log, copied and checksummed on the way to the disk.
    log_bytes = 400, "bytes of log";
    /// A write of the log to the page cache: the system call.
    log_writes = 3_500, "writes of the log";
    /// An entry that a replica applies.
    entries = 250, "entries applied";
    /// A command of an entry that is carried out.
    items = 220, "commands applied";
    /// An answer that a replica of a cluster remembers, so that a request that comes again is not carried out again.
    remembered = 500, "answers remembered";
    /// A transaction over several groups, at the gateway that drives it.
    transactions = 6_000, "transactions driven";
    /// An envelope to or from another core of the node.
    envelopes = 250, "envelopes";
    /// One core message in it, sent or read.
    core_messages = 200, "core messages";
    /// Ending the sleep of a core or a thread of the node.
    wakes_of_others = 1_900, "wake-ups of others";
    /// A message to another node, made and framed.
    messages_out = 500, "messages sent";
    /// A message of another node, taken from its frame and decoded.
    messages_in = 650, "messages received";
    /// A link that is written to in a turn: the system call, a frame and a record of TLS.
    link_writes = 4_000, "writes to links";
    /// A link that is read in a turn.
    link_reads = 2_200, "reads from links";
    /// Bytes of links, either way, with their encryption.
    link_bytes = 500, "bytes of links";
}

impl Costs {
    /// What all of this takes, in nanoseconds.
    pub fn of(&self, counts: &Counts) -> u64 {
        self.parts(counts).into_iter().map(|(_, ns)| ns).sum()
    }
}

/// What lies outside of the cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// Half of a round trip between two nodes, in nanoseconds.
    pub node_delay: u64,
    /// The same between a client and a node.
    pub client_delay: u64,
    /// Bytes that the network card of a node sends in a second.
    pub bytes_per_second: u64,
    /// Until a thread that is woken runs, in nanoseconds.
    pub wake_delay: u64,
    /// A flush of the disk (`fdatasync`), in nanoseconds.
    pub sync: u64,
    /// Bytes of log from which on the log's thread writes, not a core.
    pub core_write_bytes_max: usize,
}

impl Surroundings {
    /// One rack: 25 µs each way, 25 Gbit/s, a disk with a cache that survives power cuts.
    pub const RACK: Self = Self {
        node_delay: 25_000,
        client_delay: 25_000,
        bytes_per_second: 25_000_000_000 / 8,
        wake_delay: 4_000,
        sync: 120_000,
        core_write_bytes_max: 48 << 10,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_costs_the_sum_of_its_parts() {
        let costs = Costs { turns: 1_000, requests: 300, client_bytes: 64, ..Costs::NONE };
        let counts = Counts { turns: 1, requests: 16, client_bytes: 4_096, wakes: 9, ..Counts::default() };
        assert_eq!(costs.of(&counts), 1_000 + 16 * 300 + 4 * 64);
        let mut sum = counts;
        sum.add(&counts);
        assert_eq!(costs.of(&sum), 2 * costs.of(&counts));
        assert_eq!(Costs::NONE.of(&sum), 0);
    }
}

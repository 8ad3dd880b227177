//! The real world: sockets, files, clocks, entropy, signals, and one thread per core that turns the state machine of
//! `node`.
//!
//! It decides nothing. Whatever it reads it hands to a core as an event, and whatever a core asks for it carries out;
//! `simulation` does the same with a false world. It knows no command, no reply but those to a client too many and to
//! one that comes before there are cores, and nothing of what is in the log. `lead` alone speaks to others on its own
//! behalf: to replicas of other kinds, as a Redis does, and to a core of ours, as a client that makes a backup;
//! and so does `carrier`, to servers to which keys go.
//!
//! Suggested order of reading: [`run`] (the life of the process), `core_thread` (the turn), `calling` (who takes it),
//! `connection`, `mailbox`, `listener`, `tls`, `peers`, `lead`, `site`, `carrier`, `archiver`, `console`, `load`,
//! `storage` and what is below it (files).

mod archiver;
mod black_box;
mod calling;
mod carrier;
mod checkpoint_writer;
mod clock;
mod connection;
mod console;
mod contacts;
mod core_thread;
mod core_waker;
mod disk;
mod doorman;
mod early;
mod entropy;
mod fault;
mod fields;
mod floor;
mod former;
mod gathering;
mod host;
mod host_session;
mod interfaces;
mod journal_thread;
mod lead;
mod limits;
mod listener;
mod load;
mod log;
mod log_reader;
mod mailbox;
mod metrics;
mod peers;
pub mod recovery;
mod replicator;
mod report;
mod run;
mod sentinel;
mod signals;
mod site;
mod storage;
mod supervisor;
mod tls;
mod trust;
mod users_file;
mod watchdog;

pub use clock::unix_millis;
pub use console::ConsoleOptions;
pub use contacts::Contact;
pub use disk::{DirectoryLock, RealDisk};
pub use early::acknowledges_early;
pub use entropy::{random_bytes, random_id};
pub use fault::Fault;
pub use host_session::{HostSession, Inside};
pub use listener::ListenOptions;
pub use log::utc;
pub use report::{Allocated, memory_allowed_bytes};
pub use run::{ClusterOptions, Ended, Invited, Options, log_failure, run, secure_directory};
pub use sentinel::SentinelOptions;
pub use supervisor::Supervisor;
pub use tls::{
    ClientOptions, ClientSecurity, LineOptions, LineReader, LineSecurity, LineWriter, SecureStream, TlsStream,
    in_words, plain_line,
};
pub use trust::{AUTHORITY_FILE, Authority, INVITATION_DEFAULT, INVITATION_MAX, Token, invite_from_directory};

//! The life of a server process: start, load, serve, stop.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use group::host::AppendFsync;
use group::ids::{CoreId, NodeId};
use journal::Identity;
use mio::net::TcpListener;
use mio::{Poll, Waker};
use node::Core;
use node::event::{CoreOptions, Event, ProcessFacts, ReplicateRequest, SourceFigures};
use node::invitation::Inviter;
use node::roster::Member;
use node::settings::Settings;
use stdx::Levels;

use crate::black_box;
use crate::calling::{Sockets, WAKE};
use crate::carrier::Carrier;
use crate::console::{self, ConsoleOptions};
use crate::contacts;
use crate::core_thread;
use crate::core_waker::CoreWaker;
use crate::disk::DirectoryLock;
use crate::doorman;
use crate::early::EarlyMark;
use crate::fault::{Fault, file_of_redis};
use crate::floor::Floor;
use crate::former::Former;
use crate::gathering::Gathering;
use crate::host::{Desk, End, Host, Knobs, News};
use crate::host_session::Inside;
use crate::interfaces;
use crate::lead::{self, Leading};
use crate::limits::{
    FINISH_MAX, FINISH_ROUNDS, HAND_OVER_LOOK, HAND_OVER_MAX, JOIN_LOOK, JOIN_PATIENCE, JOIN_REST, JOIN_SAID_AGAIN,
    LINK_CONNECT_MAX, REPORT_INTERVAL, descriptors_reserved,
};
use crate::listener::{Acceptor, ListenOptions, listen, listen_on_all};
use crate::load;
use crate::log::{Format, Log};
use crate::mailbox::{Mail, Mailbox};
use crate::metrics;
use crate::peers::{self, Answer, Asker, Peers, Unanswered};
use crate::recovery;
use crate::report::{self, Allocated};
use crate::sentinel::{self, SentinelOptions};
use crate::site;
use crate::storage::Storage;
use crate::supervisor::Supervisor;
use crate::tls::{Credentials, LinkMode, LinkSecurity, Security};
use crate::trust::{AUTHORITY_FILE, Authority, INVITATION_MAX, RENEWAL_INTERVAL, Token};
use crate::watchdog::Watchdog;

use crate::{clock, entropy, signals};

/// What a server is started with.
pub struct Options {
    /// The whole configuration.
    pub settings: Settings,
    /// Where the data live.
    pub data_directory: PathBuf,
    /// Threads that serve clients.
    pub core_count: u16,
    /// Where clients come in.
    pub listen: ListenOptions,
    /// Where other nodes come in, and how this one comes to a cluster.
    pub cluster: ClusterOptions,
    /// TCP port at which figures are collected; 0 is none.
    pub metrics_port: u16,
    /// Where the console is served.
    pub console: ConsoleOptions,
    /// Where clients ask a Sentinel, and for what.
    pub sentinel: SentinelOptions,
    /// Where log lines go, if not to standard output.
    pub log_file: Option<PathBuf>,
    /// Where to write the process id while the server runs.
    pub pid_file: Option<PathBuf>,
    /// Path of the configuration file, for INFO.
    pub config_file: String,
    /// What its author should know of the configuration, a line each, for the log.
    pub remarks: Vec<String>,
    /// Version of the program.
    pub version: &'static str,
    /// The levels that it knows, or those that it must act as if it knew no others.
    pub levels: Levels,
    /// Asks the allocator about itself. The binary chooses the allocator.
    pub allocated: fn() -> Allocated,
    /// Makes backups into this directory from time to time (`backup-dir`), until the process ends. The binary knows how
    /// they look.
    pub back_up: fn(Inside, PathBuf),
    /// Follows a Redis as clients wish, with this data directory, until the process ends. The binary knows how.
    pub replicate: fn(Inside, &Path, &Receiver<ReplicateRequest>),
    /// The Redis that an earlier process on this data directory followed and was not told to leave: clients may not
    /// write from the start on.
    pub source: Option<SourceFigures>,
    /// What the server is started for, if that is not to serve: done on a thread of its own, while data are loaded.
    pub begin_with: Option<Box<dyn FnOnce(Inside) + Send>>,
}

/// How a node meets others.
#[derive(Clone, Debug, Default)]
pub struct ClusterOptions {
    /// TCP port for other nodes; 0 is the clients' port and 10,000, if that can be had.
    pub port: u16,
    /// A host name or address under which other nodes and clients reach this one; empty to find out.
    pub announce_host: String,
    /// Ports under which they reach it, where that is not where it listens; 0 if it is: for clients, for other nodes.
    pub announce_ports: [u16; 2],
    /// `HOST:PORT` of cluster ports: of nodes of the cluster to be joined, and of nodes that a member looks for while
    /// it is not linked to all.
    pub join: Vec<String>,
    /// What makes the node there let this one in, if its cluster has an authority of its own.
    pub token: Option<Token>,
}

/// How a server has ended in good order.
#[derive(Debug)]
pub enum Ended {
    /// It is no more.
    Stopped,
    /// It must start over, with what is in its data directory.
    Again,
    /// It must start over and join the cluster of the node at this address. What was in its data directory has been
    /// put aside.
    Joins(Invited),
}

/// Where a node must go, and why it is let in there.
#[derive(Clone, Debug)]
pub struct Invited {
    /// `HOST:PORT` of a node's cluster port.
    pub address: String,
    /// If the cluster there has an authority of its own.
    pub token: Option<Token>,
}

/// Runs a server until a signal or a client ends it in good order.
///
/// # Errors
/// Whatever keeps it from starting or from going on. Nothing acknowledged is lost by it.
pub fn run(options: Options) -> Result<Ended, Fault> {
    let format = Format::of(options.settings.get("log-format"));
    let log = Log::open(options.log_file.as_deref(), format).map_err(|cause| Fault::File {
        path: options.log_file.clone().unwrap_or_default(),
        purpose: "write to the log file",
        cause,
    })?;
    let log = Arc::new(log);
    let has_file = options.log_file.is_some();
    let outcome = run_logged(options, Arc::clone(&log));
    // On a terminal the fault is told on the standard error.
    if let (Err(fault), true) = (&outcome, has_file) {
        log.warning(&format!("ends: {fault}"));
    }
    outcome
}

/// Says in a server's log why it does not even start, if that log is a file. The caller says it on the standard error.
pub fn log_failure(settings: &Settings, why: &str) {
    let file = Some(settings.get("logfile")).filter(|file| !file.is_empty());
    let log = file.map(|file| Log::open(Some(Path::new(file)), Format::of(settings.get("log-format"))));
    // Where there is no log there is nothing to be said in it.
    if let Some(Ok(log)) = log {
        log.warning(&format!("does not start: {why}"));
    }
}

fn run_logged(mut options: Options, log: Arc<Log>) -> Result<Ended, Fault> {
    let started = clock::now();
    log.set_quiet(matches!(options.settings.get("loglevel"), "warning" | "nothing"));
    tell_start(&options, &log);
    let mut supervisor = Supervisor::of_environment();
    supervisor.status(if options.begin_with.is_some() { "prepares data" } else { "loads" });
    if options.begin_with.is_some() {
        // It does not serve, and the server that will has yet to begin.
        supervisor = Supervisor::default();
    }
    let (news, heard) = mpsc::channel();
    signals::listen(news.clone()).map_err(system("listen for signals"))?;
    limit_clients(&mut options.settings, options.core_count, &log);
    let knobs = knobs(&options.settings);
    let compression_level = options.settings.get("cluster-compression-level").parse().ok().filter(|level| *level > 0);
    let secure = |settings: &Settings, credentials: Option<&Credentials>| {
        Security::new(settings, credentials).map_err(|unfit| Fault::Setting { name: unfit.name, cause: unfit.cause })
    };
    let security = secure(&options.settings, None)?;

    // Listening comes first: a port in use must be told before anything is touched, and clients that come early learn
    // that data are being loaded.
    let listeners = listen(&options.listen)?;
    let (cluster_port, peer_listeners) = listen_for_peers(&options, &log)?;
    let console_listeners = listen_on_all(&options.listen, options.console.port, "--console-port")?;
    let metrics_listeners = listen_on_all(&options.listen, options.metrics_port, "--metrics-port")?;
    let sentinel_listeners = listen_on_all(&options.listen, options.sentinel.port, "--sentinel-port")?;
    let _pid_file = PidFile::write(options.pid_file.clone())?;
    complete_recovery(&options.data_directory, &log)?;
    let former = Former::read(&options.data_directory)?;
    let find = || identity(&options, security.links.as_ref(), former.as_ref(), &log, &heard);
    let searches = !options.cluster.join.is_empty() && load::read_identity(&options.data_directory)?.is_none();
    let beginning = if searches { doorman::stand_in(&listeners, &peer_listeners, find) } else { find() };
    let (identity, seeds, credentials) = match beginning {
        Ok(beginning) => beginning,
        Err(NoBeginning::Fault(fault)) => return Err(fault),
        Err(NoBeginning::Stopped(why)) => {
            log.notice(&format!("{why}: stops, and has not joined"));
            return Ok(Ended::Stopped);
        }
    };
    let security = secure(&options.settings, credentials.as_ref())?;
    let links = Links::of(&options.settings, &security, credentials.as_ref());
    let (own, is_own_host_unknown) = own_member(&options, cluster_port);

    let (polls, mailboxes) = prepare_cores(options.core_count)?;
    let (peer_queue, peer_poll) =
        peers::prepare(u32::from(options.core_count)).map_err(system("create an epoll instance"))?;
    let (lead, leading) = lead::prepare(&options.settings).map_err(system("create an epoll instance"))?;
    let (site, keeping) = site::prepare(&options.settings, identity.cluster);
    let early = EarlyMark::of(&options.data_directory);
    let floor = Floor::of(&options.data_directory, options.levels, identity.level);
    let host = Arc::new(Host::new(
        log,
        mailboxes,
        knobs,
        (security, credentials),
        (peer_queue, lead, site, Carrier::new(&options.settings)),
        (early, floor),
        news,
    ));
    let process = process_facts(&options, &host, &identity, started)?;
    let cores =
        start_cores(&options, &host, &identity, Arc::new(process), (own, is_own_host_unknown, seeds.clone()), polls)?;
    if let Some(source) = options.source.take() {
        host.replicator.tell(&host, Some(source));
    }
    let gathering = Gathering::new(host.desks.len());
    black_box::watch(Arc::clone(&host), gathering)?;
    metrics::serve(&host, metrics_listeners)?;
    console::serve(&host, console_listeners, &options.console)?;
    sentinel::serve(&host, sentinel_listeners, &options.sentinel)?;
    let life = entropy::random_id().map_err(system("read random numbers"))?;
    let contacts = (seeds, options.cluster.join.clone());
    let mut peers =
        Peers::new(Arc::clone(&host), (identity, former), life, peer_poll, peer_listeners, contacts, compression_level)
            .map_err(system("watch the listeners"))?;
    if is_own_host_unknown {
        peers.learn_own_host();
    }
    let peers = start("peers", move || peers.run())?;
    let leading = Leading::new(Arc::clone(&host), leading, &options.data_directory, identity);
    let leading = start("lead", move || leading.run())?;
    let keeping = start_sites(&host, &options, identity, keeping)?;
    let (acceptor, waker) = Acceptor::new(Arc::clone(&host), listeners).map_err(system("watch the listeners"))?;
    let acceptor = start("acceptor", move || acceptor.run())?;
    host.log.notice(&format!("listens on {}", listening_places(&options.listen)));
    tell_doors(&options, cluster_port, &links, &host.log);

    start_errands(&host, &mut options)?;
    let directory = options.data_directory;
    load::start(Arc::clone(&host), directory.clone(), identity, options.settings)?;
    let Identity { cluster, node, .. } = identity;
    let allocated = options.allocated;
    Server {
        host,
        heard,
        acceptor,
        waker,
        cores,
        peers,
        leading,
        keeping,
        cluster,
        node,
        directory,
        allocated,
        supervisor,
    }
    .serve()
}

/// Starts the threads that keep and send what second sites and readers of changes are told, and those that follow
/// another cluster.
fn start_sites(
    host: &Arc<Host>,
    options: &Options,
    identity: Identity,
    prepared: site::Prepared,
) -> Result<JoinHandle<()>, Fault> {
    let kept = (options.data_directory.clone(), options.settings.number("site-backlog-size").cast_unsigned());
    let keeper = Arc::clone(host);
    let keeping = start("backlog", move || site::run(&keeper, &prepared, &kept.0, &identity, kept.1))?;
    let teller = Arc::clone(host);
    // It ends with the process: anyone who waits is cut off.
    start("changes", move || site::tell_changes(&teller))?;
    let (fetcher, fetched) = (Arc::clone(host), options.data_directory.clone());
    start("shelf", move || site::fetch_changes(&fetcher, &fetched))?;
    site::start_following(host, &options.settings)?;
    Ok(keeping)
}

/// Starts what connects to this server from inside of it. It ends with the process.
fn start_errands(host: &Arc<Host>, options: &mut Options) -> Result<(), Fault> {
    let inside = || Inside::new(Arc::clone(host));
    if let Some(folder) = Some(options.settings.get("backup-dir")).filter(|folder| !folder.is_empty()) {
        let (inside, folder, back_up) = (inside(), PathBuf::from(folder), options.back_up);
        // What it has not finished is no backup.
        start("backups", move || back_up(inside, folder))?;
    }
    let inside = inside();
    if let Some(begin) = options.begin_with.take() {
        start("begin", move || begin(inside))?;
    } else {
        let (sender, wishes) = mpsc::channel();
        host.replicator.send_to(sender);
        let (replicate, directory) = (options.replicate, options.data_directory.clone());
        // The next process goes on where the data say.
        start("replicate", move || replicate(inside, &directory, &wishes))?;
    }
    Ok(())
}

/// The first lines of the log: which version, where, how durable, and what is not read.
fn tell_start(options: &Options, log: &Log) {
    log.notice(&format!(
        "Holdfast {} starts as process {} with {} cores on {}",
        options.version,
        std::process::id(),
        options.core_count,
        options.data_directory.display()
    ));
    log.notice(match options.settings.append_fsync {
        AppendFsync::Always => "durability: a write is synced to disk before it is acknowledged (appendfsync always)",
        AppendFsync::EverySecond => {
            "durability: a write is synced to disk within a second after it is acknowledged (appendfsync everysec)"
        }
        AppendFsync::No => "durability: a write is synced to disk when the system likes (appendfsync no)",
    });
    options.remarks.iter().for_each(|remark| log.notice(remark));
    if let Some(name) = file_of_redis(&options.data_directory) {
        let path = options.data_directory.join(name);
        log.notice(&format!("{0} is not read: holdfast import {0} brings it in", path.display()));
    }
}

/// What the other threads of the process have of a core.
type DeskParts = (Mailbox, Sockets);

/// What each core waits on, and what the others have of it.
fn prepare_cores(core_count: u16) -> Result<(Vec<Poll>, Vec<DeskParts>), Fault> {
    let mut polls = Vec::new();
    let mut mailboxes = Vec::new();
    for _ in 0..core_count {
        let poll = Poll::new().map_err(system("create an epoll instance"))?;
        let waker = CoreWaker::new().map_err(system("create an event descriptor"))?;
        waker.register(poll.registry(), WAKE).map_err(system("watch an event descriptor"))?;
        let sockets = Sockets::new(polls.len(), &poll).map_err(system("copy a descriptor"))?;
        polls.push(poll);
        mailboxes.push((Mailbox::new(waker), sockets));
    }
    Ok((polls, mailboxes))
}

/// Ends a recovery that was cut short behind the point from which it counts.
fn complete_recovery(directory: &Path, log: &Log) -> Result<(), Fault> {
    if !recovery::is_incomplete(directory) {
        return Ok(());
    }
    let Ok(lock) = DirectoryLock::acquire(directory) else {
        let cause = format!(
            "{} is being replaced at this moment: wait for `holdfast recover` or `repair`",
            directory.display()
        );
        return Err(Fault::Data(cause));
    };
    if let Some(aside) = recovery::complete(directory, &lock)? {
        let aside = aside.display();
        log.notice(&format!(
            "has completed a replacement of this directory that was cut short; what was here before is in {aside}"
        ));
    }
    Ok(())
}

/// Makes an error of the system a fault.
pub(crate) fn system(purpose: &'static str) -> impl FnOnce(std::io::Error) -> Fault {
    move |cause| Fault::System { purpose, cause }
}

/// Starts a named thread.
pub(crate) fn start<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Fault> {
    thread::Builder::new().name(name.to_owned()).spawn(body).map_err(system("start a thread"))
}

/// Lowers `maxclients` to what the process may open.
fn limit_clients(settings: &mut Settings, core_count: u16, log: &Log) {
    let wanted = settings.number("maxclients").cast_unsigned();
    let reserved = descriptors_reserved(usize::from(core_count));
    let allowed = report::allow_descriptors(wanted + reserved);
    if allowed < wanted + reserved {
        let fewer = allowed.saturating_sub(reserved).max(1);
        settings.adopt("maxclients", &fewer.to_string()).expect("fewer clients are as good a value");
        log.warning(&format!(
            "maxclients is {fewer} instead of {wanted}, as the process may open only {allowed} files: raise the limit \
             (ulimit -n)"
        ));
    }
}

fn knobs(settings: &Settings) -> Knobs {
    let number = |name| AtomicU64::new(u64::try_from(settings.number(name)).unwrap_or(0));
    Knobs {
        clients_max: number("maxclients"),
        idle_s: number("timeout"),
        keepalive_s: number("tcp-keepalive"),
        core_threads: number("core-threads"),
        sync_on_core: AtomicU64::new(u64::from(settings.get("sync-on-core") == "yes")),
    }
}

/// Opens the port for other nodes. If nobody asked for a certain one it may be missing: the node is then by itself.
fn listen_for_peers(options: &Options, log: &Log) -> Result<(u16, Vec<TcpListener>), Fault> {
    const DISTANCE: u16 = 10_000;
    let is_asked = options.cluster.port != 0 || !options.cluster.join.is_empty();
    let clients = client_port(options);
    let port = match (options.cluster.port, clients.checked_add(DISTANCE)) {
        (0, Some(port)) if clients != 0 => port,
        (0, _) if is_asked => {
            let cause = "needed to meet other nodes, as the clients' port leaves no room for one 10000 higher".into();
            return Err(Fault::Setting { name: "cluster-port", cause });
        }
        (port, _) => port,
    };
    if port == 0 {
        return Ok((0, Vec::new()));
    }
    match listen_on_all(&options.listen, port, "--cluster-port") {
        Ok(listeners) => Ok((port, listeners)),
        Err(fault) if is_asked => Err(fault),
        Err(fault) => {
            log.warning(&format!("other nodes cannot join this one: {fault}; see --cluster-port"));
            Ok((0, Vec::new()))
        }
    }
}

/// The port that clients are told. With TLS between nodes it is expected of clients as well, as in Redis.
fn client_port(options: &Options) -> u16 {
    let ListenOptions { port, tls_port, .. } = options.listen;
    let prefers_tls = options.settings.get("tls-cluster") == "yes" && tls_port != 0;
    if port == 0 || prefers_tls { tls_port } else { port }
}

/// Where this node is found, and whether its host is a guess that others know better.
fn own_member(options: &Options, cluster_port: u16) -> (Member, bool) {
    let (host, is_unknown) = match options.cluster.announce_host.as_str() {
        "" => own_host(&options.listen.addresses, options.cluster.join.first().map_or("", String::as_str)),
        host => (host.to_owned(), false),
    };
    let announced = |place: usize, port: u16| match options.cluster.announce_ports[place] {
        0 => port,
        announced => announced,
    };
    let member = Member {
        cluster_address: format!("{host}:{}", announced(1, cluster_port)),
        client_address: format!("{host}:{}", announced(0, client_port(options))),
        zone: options.settings.get("zone").to_owned(),
        ..Member::default()
    };
    (member, is_unknown)
}

/// The host at which other nodes reach one that listens at these addresses and joins that node, or none, as far as it
/// can be found out; and whether it is unknown.
fn own_host(addresses: &[String], join: &str) -> (String, bool) {
    let bound = addresses.iter().map(|address| address.trim_start_matches('-'));
    let bound: Vec<&str> = bound.filter(|address| !address.is_empty()).collect();
    let is_wildcard = |address: &str| matches!(address, "*" | "::*" | "0.0.0.0" | "::");
    let is_loopback = |host: &str| host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    let named = |host: &str| if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    // Other machines do not reach the loopback addresses that are commonly bound as well.
    if let Some(host) = bound.iter().find(|host| !is_wildcard(host) && !is_loopback(host)) {
        return (named(host), false);
    }
    if let Some(host) = bound.first().filter(|_| !bound.iter().any(|host| is_wildcard(host))) {
        return (named(host), false);
    }
    // Nothing is sent there: the system only says which way it would go.
    match peers::own_address_towards(if join.is_empty() { "192.0.2.1:9" } else { join }) {
        Ok(host) if !is_loopback(&host) => (named(&host), false),
        // It has no way out, or joins a node of its own machine. A node that comes from elsewhere shows the way.
        _ => ("127.0.0.1".to_owned(), true),
    }
}

/// The identity of a directory, where a node of the cluster to be joined is found, and what this node shows to others.
type Beginning = (Identity, Vec<(NodeId, Member)>, Option<Credentials>);

/// Why a node knows nothing of that.
enum NoBeginning {
    Fault(Fault),
    /// It was told to stop, by this.
    Stopped(String),
}

impl From<Fault> for NoBeginning {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Asks the cluster to be joined who it is, and to let this node in if it has an invitation and nothing better.
struct Joining<'a> {
    options: &'a Options,
    log: &'a Log,
    /// What would end the search.
    heard: &'a Receiver<News>,
    /// Of links with certificates from files.
    files: Option<&'a LinkSecurity>,
    node: u64,
}

/// What a node of the cluster to be joined says, and where it was asked.
type Told<T> = (T, String);

impl Joining<'_> {
    fn ask(&self, authority: Option<Authority>) -> Result<(Told<Answer>, Option<Authority>), NoBeginning> {
        let ClusterOptions { token, .. } = &self.options.cluster;
        let token = token.clone();
        let is_own = LinkMode::of(&self.options.settings).is_own();
        let (node, patience) = (Asker { node: self.node, levels: self.options.levels }, LINK_CONNECT_MAX);
        match (authority, token) {
            (Some(authority), _) if is_own => {
                let credentials = Credentials { authority: Arc::new(authority), node: self.node, former: None };
                let links = credentials.links();
                let answer = self.insist(move |join| peers::ask(join, Some(&links), node, patience))?;
                Ok((answer, Arc::into_inner(credentials.authority)))
            }
            (authority, _) if !is_own => {
                let files = self.files.cloned();
                Ok((self.insist(move |join| peers::ask(join, files.as_ref(), node, patience))?, authority))
            }
            (_, Some(token)) => {
                let ((answer, authority), address) =
                    self.insist(move |join| peers::enter(join, &token, node, patience))?;
                Ok(((answer, address), Some(authority)))
            }
            (_, None) => {
                let cause = "a token is needed: `holdfast cluster invite`, asked of any node there, prints one for \
                             --token, --token-file or HOLDFAST_TOKEN. To join a cluster with plain links, as before \
                             there were tokens, say --tls-cluster no";
                Err(Fault::Setting { name: "join", cause: cause.to_owned() }.into())
            }
        }
    }

    /// Asks again and again, on a thread of its own: anyone who wants this process to end does not wait for an answer.
    fn insist<T: Send + 'static>(
        &self,
        ask: impl Fn(&str) -> Result<T, Unanswered> + Send + 'static,
    ) -> Result<Told<T>, NoBeginning> {
        let begun = Instant::now();
        let (wanted, wishes) = mpsc::channel();
        let (told, answers) = mpsc::channel();
        let joins = self.options.cluster.join.clone();
        let asking = start("join", move || {
            while let Ok(()) = wishes.recv() {
                if told.send(ask_any(&joins, &ask)).is_err() {
                    return;
                }
            }
        })?;
        let mut told_last: Option<(String, Instant)> = None;
        let outcome = loop {
            let _ = wanted.send(());
            let answer = loop {
                self.look_for_end(Duration::ZERO)?;
                match answers.recv_timeout(JOIN_LOOK) {
                    Ok(answer) => break answer,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => unreachable!("it asks as long as answers are wanted"),
                }
            };
            match answer {
                Ok(answer) => break Ok(answer),
                Err(Unanswered { cause, is_final: true }) => break Err(Fault::Setting { name: "join", cause }),
                Err(Unanswered { cause, .. }) if begun.elapsed() > JOIN_PATIENCE => {
                    let cause = format!("no node to join answers: {cause}");
                    break Err(Fault::Setting { name: "join", cause });
                }
                Err(Unanswered { cause, .. }) => {
                    let is_known = |(last, at): &(String, Instant)| *last == cause && at.elapsed() < JOIN_SAID_AGAIN;
                    if !told_last.as_ref().is_some_and(is_known) {
                        self.log.warning(&format!("cannot join yet: {cause}"));
                        told_last = Some((cause, Instant::now()));
                    }
                    self.look_for_end(JOIN_REST)?;
                }
            }
        };
        // What it has asked with goes with it.
        drop(wanted);
        let _ = asking.join();
        Ok(outcome?)
    }

    /// Waits for so long, unless the process must end.
    fn look_for_end(&self, wait: Duration) -> Result<(), NoBeginning> {
        match self.heard.recv_timeout(wait) {
            Ok(News::End(End::Signal(name))) => Err(NoBeginning::Stopped(format!("received {name}"))),
            // Nothing else is there yet that could tell anything.
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

/// Asks at one address after the other until somebody answers. A refusal for good counts if nobody does.
fn ask_any<T>(joins: &[String], ask: &impl Fn(&str) -> Result<T, Unanswered>) -> Result<Told<T>, Unanswered> {
    let mut refusal: Option<Unanswered> = None;
    for address in peers::each_place(joins) {
        match ask(&address) {
            Ok(answer) => return Ok((answer, address)),
            Err(unanswered) if refusal.as_ref().is_some_and(|known| known.is_final || !unanswered.is_final) => {}
            Err(unanswered) => refusal = Some(unanswered),
        }
    }
    Err(refusal.expect("there is an address"))
}

/// Reads a directory's identity, or makes a new one. A new identity is written when the journal is opened; what the
/// node shows to others is kept before, so that no identity is ever without it.
fn identity(
    options: &Options,
    files: Option<&LinkSecurity>,
    former: Option<&Former>,
    log: &Log,
    heard: &Receiver<News>,
) -> Result<Beginning, NoBeginning> {
    let directory = &options.data_directory;
    fs::create_dir_all(directory).map_err(|cause| Fault::File {
        path: directory.clone(),
        purpose: "make the data directory",
        cause,
    })?;
    let known = load::read_identity(directory)?;
    let kept = Authority::read(directory)?;
    let had_authority = kept.is_some();
    let chance = || entropy::random_id().map_err(system("read random numbers"));
    let wide = || entropy::random_bytes().map(u128::from_le_bytes).map_err(system("read random numbers"));
    // Ids stay clear of the bound that the protocol of nodes sets to numbers.
    let node = match &known {
        Some(identity) => identity.node,
        None => (chance()? >> 2).max(1),
    };
    let mode = LinkMode::of(&options.settings);
    // A member knows who it is. Where others are is asked when they are not found.
    let (told, mut authority) = if options.cluster.join.is_empty() || known.is_some() {
        (None, kept)
    } else {
        let (told, authority) = Joining { options, log, heard, files, node }.ask(kept)?;
        (Some(told), authority)
    };
    let seed = told.as_ref().map(|(answer, cluster_address)| {
        (answer.node, Member { cluster_address: cluster_address.clone(), ..Member::default() })
    });
    let mut seeds: Vec<_> = seed.into_iter().collect();
    let remembered = contacts::read(directory)?;
    seeds.extend(remembered.into_iter().filter(|(node, _)| told.iter().all(|(answer, _)| answer.node != *node)));
    let is_new = known.is_none();
    if is_new && let Some(file) = foreign_file(directory) {
        // Said before anything else is: the journal would refuse the directory later.
        return Err(Fault::data(directory, &journal::Fault::Foreign { file }).into());
    }
    let identity = match (known, told) {
        (Some(identity), _) => identity,
        (None, None) => Identity {
            directory: wide()?,
            cluster: wide()?,
            node,
            group_count: u32::from(options.core_count),
            hash_seed: chance()?,
            has_joined: false,
            level: options.levels.highest,
        },
        (None, Some((Answer { cluster, group_count, hash_seed, level, .. }, _))) => {
            Identity { directory: wide()?, cluster, node, group_count, hash_seed, has_joined: true, level }
        }
    };
    if !options.levels.contains(identity.level) {
        let fault = journal::Fault::Level { level: identity.level, known: options.levels };
        return Err(Fault::data(directory, &fault).into());
    }
    if is_new && mode.is_own() && authority.is_none() {
        authority = Some(Authority::make()?);
    }
    if let (Some(authority), false) = (&authority, had_authority) {
        authority.write(directory)?;
        let what = if identity.has_joined { "was given" } else { "has made" };
        log.notice(&format!(
            "{what} the certificate authority {} of its cluster, and keeps it in {}",
            authority.name(),
            directory.join(AUTHORITY_FILE).display()
        ));
    }
    let credentials =
        authority.map(|authority| Credentials { authority: Arc::new(authority), node, former: former.cloned() });
    if mode == LinkMode::Own && credentials.is_none() {
        let cause = "the cluster of this directory has no certificate authority of its own: stop its nodes, make one with \
                     `holdfast cluster secure`, or name files of certificates (tls-cert-file)";
        return Err(Fault::Setting { name: "tls-cluster", cause: cause.to_owned() }.into());
    }
    Ok((identity, seeds, credentials))
}

/// Makes an authority for the cluster of a node that does not run and has a directory from before there were any.
/// Answers what logs call it.
///
/// # Errors
/// If the directory belongs to nobody, or has one already.
pub fn secure_directory(directory: &Path) -> Result<String, Fault> {
    if load::read_identity(directory)?.is_none() {
        return Err(Fault::Data(format!("{} is no data directory of a node", directory.display())));
    }
    let authority = Authority::make()?;
    authority.write(directory)?;
    Ok(authority.name())
}

/// A file that is not ours, in a directory that must be made new.
fn foreign_file(directory: &Path) -> Option<String> {
    let names = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.into_string().ok()).find(|name| journal::is_foreign_file(name))
}

/// Makes invitations, where the links of this node go by the cluster's own authority.
fn inviter(host: &Host) -> Option<Inviter> {
    let credentials = host.credentials.clone()?;
    let log = Arc::clone(&host.log);
    Some(Inviter::new(move |duration_s| {
        let duration = Duration::from_secs(duration_s).min(INVITATION_MAX);
        let token = credentials.authority.invite(clock::unix_seconds(), duration).map_err(|error| error.to_string())?;
        log.notice(&format!(
            "invitation {} is made: it lets in one node within {} s",
            token.name(),
            duration.as_secs()
        ));
        Ok(token.to_text())
    }))
}

fn process_facts(
    options: &Options,
    host: &Host,
    identity: &Identity,
    started: group::ids::Now,
) -> Result<ProcessFacts, Fault> {
    Ok(ProcessFacts {
        process_id: std::process::id(),
        cluster: identity.cluster,
        run_id: entropy::random_hex::<20>().map_err(system("read random numbers"))?,
        operating_system: report::operating_system(),
        executable: std::env::current_exe().map(|path| path.display().to_string()).unwrap_or_default(),
        config_file: options.config_file.clone(),
        // As Redis tells it.
        tcp_port: if options.listen.port == 0 { options.listen.tls_port } else { options.listen.port },
        data_directory: fs::canonicalize(&options.data_directory)
            .unwrap_or_else(|_| options.data_directory.clone())
            .display()
            .to_string(),
        client_count_max: report::descriptors_max()
            .saturating_sub(descriptors_reserved(usize::from(options.core_count)))
            .max(1),
        started: started.unix,
        started_instant: started.instant,
        secret: entropy::random_bytes().map_err(system("read random numbers"))?,
        inviter: inviter(host),
    })
}

fn start_cores(
    options: &Options,
    host: &Arc<Host>,
    identity: &Identity,
    process: Arc<ProcessFacts>,
    (own, is_own_host_unknown, seeds): (Member, bool, Vec<(NodeId, Member)>),
    polls: Vec<Poll>,
) -> Result<Vec<JoinHandle<()>>, Fault> {
    let settings = Arc::new(options.settings.clone());
    let machine_addresses: Arc<[IpAddr]> = if is_own_host_unknown { interfaces::addresses().into() } else { [].into() };
    let mut cores = Vec::new();
    for (id, poll) in (0..options.core_count).zip(polls) {
        let core_options = CoreOptions {
            node: NodeId(identity.node),
            core: CoreId(id),
            core_count: options.core_count,
            group_count: identity.group_count,
            hash_seed: identity.hash_seed,
            founds_groups: true,
            levels: options.levels,
            floor: identity.level,
            seed: entropy::random_id().map_err(system("read random numbers"))?,
            settings: Arc::clone(&settings),
            process: Arc::clone(&process),
            own: own.clone(),
            is_own_host_unknown,
            machine_addresses: Arc::clone(&machine_addresses),
            seeds: seeds.clone(),
            stopwatch: clock::instant,
        };
        let host = Arc::clone(host);
        // The core is built on its own thread, so that its memory comes from that thread's arena.
        cores.push(start(&format!("core-{id}"), move || {
            core_thread::run(CoreId(id), host, poll, Core::new(core_options));
        })?);
    }
    Ok(cores)
}

fn listening_places(options: &ListenOptions) -> String {
    let mut places: Vec<String> = Vec::new();
    for (port, what) in [(options.port, "port"), (options.tls_port, "TLS port")] {
        if port != 0 && !options.addresses.is_empty() {
            places.push(format!("{what} {port} of {}", options.addresses.join(" ")));
        }
    }
    places.extend(options.unix_socket.as_ref().map(|path| path.display().to_string()));
    if places.is_empty() { "nothing".to_owned() } else { places.join(" and ") }
}

/// What protects the port for other nodes.
enum Links {
    /// The cluster's own authority, by name.
    Own(String),
    /// Certificates from files.
    Files,
    /// Nothing, as asked for.
    Plain,
    /// Nothing, as the cluster is from before there were authorities.
    Old,
}

impl Links {
    fn of(settings: &Settings, security: &Security, credentials: Option<&Credentials>) -> Self {
        match (&security.links, credentials) {
            (Some(_), Some(credentials)) if LinkMode::of(settings).is_own() => Self::Own(credentials.authority.name()),
            (Some(_), _) => Self::Files,
            (None, _) if LinkMode::of(settings) == LinkMode::Plain => Self::Plain,
            (None, _) => Self::Old,
        }
    }
}

/// Names every socket that listens, and what protects it.
fn tell_doors(options: &Options, cluster_port: u16, links: &Links, log: &Log) {
    let settings = &options.settings;
    let addresses = options.listen.addresses.join(" ");
    let has_password = !settings.users.default_user().needs_no_password();
    let users = match (has_password, settings.get("protected-mode")) {
        (true, _) => "a password or user is asked for",
        (false, "no") => "open to anyone who reaches it: the default user has no password",
        (false, _) => "open to clients of this machine only (protected mode): the default user has no password",
    };
    let tell = |port: u16, what: &str, guard: &str| {
        if port != 0 && !addresses.is_empty() {
            log.notice(&format!("port {port} of {addresses}, for {what}: {guard}"));
        }
    };
    tell(options.listen.port, "clients", &format!("not encrypted; {users}"));
    let shown = match settings.get("tls-auth-clients") {
        "no" => "clients show no certificate",
        "optional" => "clients may show a certificate",
        _ => "clients must show a certificate",
    };
    tell(options.listen.tls_port, "clients with TLS", &format!("encrypted; {shown}; {users}"));
    match links {
        Links::Own(name) => tell(
            cluster_port,
            "other nodes",
            &format!(
                "encrypted; nodes must show a certificate of the cluster's authority {name}, newcomers an invitation"
            ),
        ),
        Links::Files => {
            tell(
                cluster_port,
                "other nodes",
                "encrypted; nodes must show a certificate of the authority in tls-ca-cert-file",
            );
        }
        Links::Plain | Links::Old => {
            tell(cluster_port, "other nodes", "open to anyone who reaches it, who can read and write everything");
        }
    }
    let guard = if options.listen.tls_port == 0 { "not encrypted" } else { "encrypted" };
    tell(options.console.port, "the console", &format!("{guard}; {users}"));
    tell(options.metrics_port, "metrics", "not encrypted; no password is asked for");
    let guard = "not encrypted; no password is asked for; tells addresses and changes nothing";
    tell(options.sentinel.port, "clients that ask a Sentinel", guard);
    if let Some(path) = &options.listen.unix_socket {
        let users = if has_password { "a password or user is asked for" } else { "the default user has no password" };
        let permissions = fs::metadata(path).map_or_else(
            |error| format!("its permissions cannot be read: {error}"),
            |found| format!("for processes that may write to the file (permissions {:03o})", found.mode() & 0o777),
        );
        log.notice(&format!("Unix socket {}, for clients: {permissions}; {users}", path.display()));
    }
    if cluster_port != 0 && matches!(links, Links::Old) {
        log.warning(
            "this data directory holds no certificate authority of its cluster, as it was made without one: links to other \
             nodes are plain, and anyone can join who reaches that port. To change that, see `holdfast cluster \
             secure`; to keep it so, say --tls-cluster no",
        );
    }
}

struct Server {
    host: Arc<Host>,
    heard: Receiver<News>,
    acceptor: JoinHandle<()>,
    waker: Waker,
    cores: Vec<JoinHandle<()>>,
    peers: JoinHandle<()>,
    leading: JoinHandle<()>,
    keeping: JoinHandle<()>,
    cluster: u128,
    node: u64,
    directory: PathBuf,
    allocated: fn() -> Allocated,
    supervisor: Supervisor,
}

impl Server {
    /// The main thread's work: reports to the cores, until the end.
    fn serve(self) -> Result<Ended, Fault> {
        let mut storage = None;
        let mut watchdogs: Vec<Watchdog> = self.host.desks.iter().map(|_| Watchdog::default()).collect();
        let mut renewed = Instant::now();
        let end = loop {
            match self.heard.recv_timeout(REPORT_INTERVAL) {
                Ok(News::Opened(opened)) => storage = Some(opened),
                Ok(News::Loaded) => self.supervisor.ready(),
                Ok(News::End(End::Join(invited))) => match self.obstacle_to_join(&invited) {
                    None => break End::Join(invited),
                    Some(why) => self.host.log.warning(&format!("does not join {}: {why}", invited.address)),
                },
                Ok(News::End(end)) => break end,
                Err(RecvTimeoutError::Timeout) => {
                    self.report(storage.as_ref(), &mut watchdogs);
                    if renewed.elapsed() > RENEWAL_INTERVAL {
                        renewed = Instant::now();
                        self.host.renew_certificate();
                    }
                }
                Err(RecvTimeoutError::Disconnected) => unreachable!("the host holds a sender"),
            }
        };
        let why = match end {
            End::Fault(fault) => return Err(fault),
            End::Signal(name) => format!("received {name}"),
            End::Command => "told to by a client".to_owned(),
            End::Join(ref invited) => format!("told to join the cluster of {}", invited.address),
        };
        self.host.log.notice(&format!("{why}: stops cleanly"));
        self.supervisor.stopping();
        self.hand_over();
        let (host, directory) = (Arc::clone(&self.host), self.directory.clone());
        self.stop(storage)?;
        match end {
            End::Join(invited) if host.has_ended_blank() => {
                put_aside(&directory, &host.log)?;
                Ok(Ended::Joins(invited))
            }
            End::Join(_) => {
                host.log.warning("it has got data of its own meanwhile: it does not join, and goes on with them");
                Ok(Ended::Again)
            }
            _ => Ok(Ended::Stopped),
        }
    }

    /// Why the cluster of the node at this address cannot be joined: to be known before anything is ended.
    fn obstacle_to_join(&self, invited: &Invited) -> Option<String> {
        if self.host.replicator.follows() {
            return Some("it follows a Redis: REPLICAOF NO ONE ends that".to_owned());
        }
        if let Some(name) = foreign_file(&self.directory) {
            return Some(format!("{} holds '{name}', which is none of its files", self.directory.display()));
        }
        let security = self.host.security();
        let links = security.links.as_ref();
        let is_own = links.is_some_and(|links| links.authority.is_some());
        let own = Asker { node: self.node, levels: self.host.floor.voice().levels };
        let answer = match &invited.token {
            Some(token) => peers::knock(&invited.address, token, own, LINK_CONNECT_MAX),
            None if is_own => return Some("no token was given (holdfast cluster invite)".to_owned()),
            None => peers::ask(&invited.address, links, own, LINK_CONNECT_MAX),
        };
        match answer {
            Ok(answer) if answer.cluster == self.cluster => Some("that is its own cluster".to_owned()),
            Ok(_) => None,
            Err(Unanswered { cause, is_final: true }) => Some(cause),
            Err(Unanswered { cause, .. }) => Some(format!("no node answers there: {cause}")),
        }
    }

    fn report(&self, storage: Option<&Storage>, watchdogs: &mut [Watchdog]) {
        let figures = storage.map(Storage::figures).unwrap_or_default();
        let mut report = report::measure(&self.host, (self.allocated)(), figures);
        report.archive = storage.and_then(Storage::archive_figures);
        let mut is_turning = false;
        for (core, (desk, watchdog)) in self.host.desks.iter().zip(watchdogs).enumerate() {
            if let Some(news) = watchdog.beat(core, desk.mailbox.collected_count()) {
                self.host.log.warning(&news);
            }
            is_turning |= watchdog.wants_report();
            if watchdog.wants_report() {
                desk.mailbox.post(Mail::Event(Event::Report(Box::new(report.clone()))));
            }
        }
        // A server of which no core turns serves nobody. One that loads is alive.
        if is_turning {
            self.supervisor.lives();
        }
    }

    /// Lets other nodes lead what is led here, before anything stops, so that their clients wait for no election.
    fn hand_over(&self) {
        let begun = Instant::now();
        let leads = |desk: &Desk| {
            let (told, answer) = mpsc::channel();
            desk.mailbox.post(Mail::Measure(told));
            // A core that does not answer is not waited for.
            answer.recv_timeout(HAND_OVER_MAX).is_ok_and(|measured| measured.can_hand_over())
        };
        let has_led = self.host.desks.iter().any(leads);
        for desk in &self.host.desks {
            desk.mailbox.post(Mail::Event(Event::Leave));
        }
        while self.host.desks.iter().any(leads) {
            if begun.elapsed() >= HAND_OVER_MAX {
                return self.host.log.warning("no other node leads yet what was led here: it stops all the same");
            }
            thread::sleep(HAND_OVER_LOOK);
        }
        if has_led {
            let ms = begun.elapsed().as_millis();
            self.host.log.notice(&format!("other nodes lead, {ms} ms after they were asked to, what was led here"));
        }
    }

    /// No new clients, no new requests; what is under way is finished, written and synced.
    fn stop(self, storage: Option<Storage>) -> Result<(), Fault> {
        self.host.stop_accepting();
        self.waker.wake().map_err(system("wake the acceptor"))?;
        // Its listeners are closed with it.
        let _ = self.acceptor.join();
        for desk in &self.host.desks {
            desk.mailbox.post(Mail::StopReading);
        }
        let deadline = Instant::now() + FINISH_MAX;
        let mut all_answer = true;
        for _ in 0..FINISH_ROUNDS {
            all_answer = all_answer && reach_fences(&self.host, deadline);
            if let Some(storage) = &storage {
                storage.flush();
            }
        }
        all_answer = all_answer && reach_fences(&self.host, deadline);
        if all_answer {
            for desk in &self.host.desks {
                desk.mailbox.post(Mail::End);
                // The thread that has been called to it may have ended already.
                desk.mailbox.wake();
            }
            for core in self.cores {
                let _ = core.join();
            }
            self.host.peers.end();
            let _ = self.peers.join();
            self.host.lead.end();
            let _ = self.leading.join();
            self.host.site.end();
            let _ = self.keeping.join();
            let is_in_doubt = self.host.has_ended_in_doubt();
            if let Some(storage) = storage {
                storage.close(!is_in_doubt)?;
            }
            // The log may have failed since nobody listened any more.
            while let Ok(news) = self.heard.try_recv() {
                if let News::End(End::Fault(fault)) = news {
                    return Err(fault);
                }
            }
            if is_in_doubt {
                self.host.log.warning("may still lack the end of its log: the next start asks the others again");
            }
            self.host.log.notice("has stopped; all data are on disk");
        } else {
            self.host.log.warning("has stopped; a core was busy, and what it had not acknowledged may be lost");
        }
        Ok(())
    }
}

/// Makes room for the data of another cluster. Nothing was there but an identity and an empty log; they are kept all
/// the same, in a folder that no start looks at.
fn put_aside(directory: &Path, log: &Log) -> Result<(), Fault> {
    let aside = directory.join(format!(".before-joining-{}", clock::now().unix.0));
    let fault = |path: &Path, purpose| {
        let path = path.to_owned();
        move |cause| Fault::File { path, purpose, cause }
    };
    fs::create_dir(&aside).map_err(fault(&aside, "make a folder for what was there"))?;
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(fault(directory, "list the data directory"))? {
        let name = entry.map_err(fault(directory, "list the data directory"))?.file_name();
        names.extend(name.into_string().ok().filter(|name| journal::is_own_file(name) || name == AUTHORITY_FILE));
    }
    // The identity goes last: without it, no start would take what is left for its own.
    names.sort_by_key(|name| name == journal::IDENTITY_FILE);
    for name in names {
        let path = directory.join(&name);
        fs::rename(&path, aside.join(name)).map_err(fault(&path, "put aside what was there"))?;
    }
    log.notice(&format!("what was in {} is in {} now", directory.display(), aside.display()));
    Ok(())
}

/// Waits until every core has carried out what it had been told before; false if one did not get there in time.
fn reach_fences(host: &Host, deadline: Instant) -> bool {
    let (reached, fences) = mpsc::channel();
    for desk in &host.desks {
        desk.mailbox.post(Mail::Fence(reached.clone()));
    }
    drop(reached);
    host.desks.iter().all(|_| fences.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok())
}

/// Removed when the process ends in good order.
struct PidFile(Option<PathBuf>);

impl PidFile {
    fn write(path: Option<PathBuf>) -> Result<Self, Fault> {
        if let Some(path) = &path {
            fs::write(path, format!("{}\n", std::process::id())).map_err(|cause| Fault::File {
                path: path.clone(),
                purpose: "write the process id to",
                cause,
            })?;
        }
        Ok(Self(path))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // Somebody may have removed it by hand.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::own_host;

    #[test]
    fn a_node_is_found_where_others_reach_it() {
        let found = |addresses: &[&str], join: &str| {
            let addresses: Vec<String> = addresses.iter().map(|address| (*address).to_owned()).collect();
            own_host(&addresses, join)
        };
        let known = |host: &str| (host.to_owned(), false);
        assert_eq!(found(&["127.0.0.1", "-::1"], ""), known("127.0.0.1"));
        assert_eq!(found(&["127.0.0.1", "-::1", "10.1.2.3"], ""), known("10.1.2.3"));
        assert_eq!(found(&["0.0.0.0", "10.1.2.3"], ""), known("10.1.2.3"));
        assert_eq!(found(&["127.0.0.1", "fd00::7"], ""), known("[fd00::7]"));
        assert_eq!(found(&["node-1.example"], ""), known("node-1.example"));
        // The node that it joins is on the same machine: that says nothing of where others are.
        assert_eq!(found(&["0.0.0.0"], "127.0.0.1:17001"), ("127.0.0.1".to_owned(), true));
        assert_eq!(found(&["*", "-::*"], "127.0.0.1:17001"), ("127.0.0.1".to_owned(), true));
    }
}

//! `holdfast doctor`: why a server stalls. What is examined and judged is in the crate `doctor`; here are its command
//! line, its connections, and the nodes of a cluster.

use std::io::{self, IsTerminal as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ::doctor::host::Host;
use ::doctor::talk::{DialError, Dialer, Link, is_late};
use ::doctor::{Plan, examine};
use anyhow::{Result, anyhow, ensure};
use clap::Args;
use resp::{Frame, encode_request};

use crate::cluster::door::{Door, ask, ask_status, list, text};
use crate::connection::Connection;
use crate::login::Login;

/// The exit code if something was found guilty.
const GUILTY: u8 = 1;
/// The exit code if nothing could be examined; clap's for a wrong command line is the same.
pub const CANNOT_RUN: u8 = 2;
/// From then on there is progress to be told.
const PROGRESS_AFTER: Duration = Duration::from_secs(2);
/// A network that takes longer to agree on a connection is not waited for.
const REACH_PATIENCE: Duration = Duration::from_secs(3);
/// Servers that are examined at once at most.
const SERVERS_MAX: usize = 64;

/// Find out why a server stalls: the host, the disk, the network, or the load.
///
/// Reads the counters of the kernel, and probes timers, processors and, with --data-dir, the disk. With --server it
/// also examines a node of Holdfast, a cluster, or a stock Redis or Valkey, and its threads if it runs on this host. It
/// changes nothing. The first line is the verdict. The exit code is 0 if nothing was found, 1 if something was, and 2
/// if the examination failed.
#[derive(Debug, Args)]
pub struct DoctorArguments {
    /// Server to examine, at its port for clients; several with commas, or repeat the option.
    #[arg(long = "server", short, value_name = "HOST:PORT", value_delimiter = ',', conflicts_with_all = ["host", "port"])]
    servers: Vec<String>,
    /// Host of the server.
    #[arg(long)]
    host: Option<String>,
    /// Its port for clients.
    #[arg(long, short)]
    port: Option<u16>,
    /// Only the named servers, not the other nodes of their cluster.
    #[arg(long)]
    alone: bool,
    #[command(flatten)]
    login: Login,
    /// Directory on the disk to probe, usually the data directory; at most 64 MiB are written to a temporary file.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Length of the examination, in seconds, from 1 to 45.
    #[arg(long, default_value_t = 20.0, value_parser = seconds)]
    seconds: f64,
    /// Print everything as JSON.
    #[arg(long, conflicts_with = "html")]
    json: bool,
    /// Print one self-contained page for browsers.
    #[arg(long)]
    html: bool,
}

/// Short enough to be waited for, long enough to see something.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text} is not a number"))?;
    if (1.0..=45.0).contains(&seconds) { Ok(seconds) } else { Err("between 1 and 45 seconds".to_owned()) }
}

/// Runs `holdfast doctor`.
///
/// # Errors
/// If nothing can be examined.
pub fn run(arguments: &DoctorArguments) -> Result<ExitCode> {
    let doors = Doors { arguments };
    let mut servers = arguments.servers.clone();
    if arguments.host.is_some() || arguments.port.is_some() {
        let host = arguments.host.as_deref().unwrap_or("127.0.0.1").trim_start_matches('[').trim_end_matches(']');
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        servers.push(format!("{host}:{}", arguments.port.unwrap_or(6379)));
    }
    if let Some(folder) = &arguments.data_dir {
        ensure!(folder.is_dir(), "{} is not a directory: name the data directory", folder.display());
    }
    // A wrong option of TLS is an error of the command line, not a finding about a server.
    arguments.login.tls.security()?;
    if !arguments.alone {
        servers.extend(servers.iter().flat_map(|place| others_of(&doors, place)).collect::<Vec<_>>());
    }
    let mut places: Vec<String> = Vec::new();
    for place in servers {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    ensure!(
        places.len() <= SERVERS_MAX,
        "{} servers are more than {SERVERS_MAX}: name some, with --alone",
        places.len()
    );
    let plan = Plan {
        servers: places,
        data_dir: arguments.data_dir.clone(),
        window: Duration::from_secs_f64(arguments.seconds),
        host: Host::here(),
    };
    let report = examine(&plan, &doors, &progress(arguments.seconds)).map_err(|why| anyhow!(why))?;
    if io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    if arguments.json {
        say_line!("{}", serde_json::to_string_pretty(&report.json())?);
    } else if arguments.html {
        say!("{}", ::doctor::html::page(&report, &edge::utc(edge::unix_millis())));
    } else {
        say!("{}", report.page());
    }
    Ok(if report.is_guilty() { GUILTY.into() } else { ExitCode::SUCCESS })
}

/// Tells how far the examination is: on a terminal in one line, otherwise in a line every five seconds.
fn progress(seconds: f64) -> impl Fn(Duration) + Sync {
    let is_terminal = io::stderr().is_terminal();
    let told = std::sync::Mutex::new(Instant::now());
    move |passed: Duration| {
        if passed < PROGRESS_AFTER {
            return;
        }
        let Ok(mut told) = told.lock() else { return };
        let text = format!("doctor: {:.0} of {seconds:.0} s", passed.as_secs_f64());
        if is_terminal {
            eprint!("\r\x1b[K{text}");
        } else if told.elapsed() >= PROGRESS_AFTER && passed.as_secs_f64() < seconds {
            eprintln!("{text}");
            // The next one not before five seconds have passed.
            *told = Instant::now() + Duration::from_secs(3);
        }
    }
}

/// The other nodes of a server's cluster, as far as it knows them.
fn others_of(doors: &Doors<'_>, place: &str) -> Vec<String> {
    let Ok(mut connection) = doors.door(place).open() else { return Vec::new() };
    if let Ok(status) = ask_status(&mut connection) {
        let nodes = list(&status, "nodes");
        let own = text(&status, "node");
        // One node alone needs no address to be found by.
        let others = nodes.iter().filter(|node| text(node, "id") != own);
        return others.map(|node| text(node, "clients").to_owned()).filter(|address| address.contains(':')).collect();
    }
    let nodes = ask(&mut connection, &["CLUSTER", "NODES"]);
    let nodes = nodes.map(|reply| String::from_utf8_lossy(reply.as_bytes().unwrap_or_default()).into_owned());
    others_in(&nodes.unwrap_or_default())
}

/// Addresses of the other nodes in CLUSTER NODES: `id address:port@port[,name] flags …`.
fn others_in(nodes: &str) -> Vec<String> {
    let address = |line: &str| {
        let mut words = line.split(' ').skip(1);
        let (address, flags) = (words.next()?, words.next()?);
        let is_other = flags.split(',').all(|flag| !matches!(flag, "myself" | "noaddr" | "handshake"));
        let address = address.split_once('@').map_or(address, |(address, _)| address);
        let (host, port) = address.rsplit_once(':')?;
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        (is_other && !host.is_empty()).then(|| format!("{host}:{port}"))
    };
    nodes.lines().filter_map(address).collect()
}

/// Connections with the options of the command line.
struct Doors<'a> {
    arguments: &'a DoctorArguments,
}

impl Doors<'_> {
    fn door(&self, place: &str) -> Door {
        Door::at(place, &self.arguments.login)
    }
}

impl Dialer for Doors<'_> {
    fn dial(&self, place: &str) -> Result<Box<dyn Link>, DialError> {
        match self.door(place).open_in_silence() {
            Ok(connection) => Ok(Box::new(Line(connection))),
            Err(error) => {
                let is_silent = error.chain().filter_map(|cause| cause.downcast_ref()).any(is_late);
                // A server that takes connections is there, and says nothing.
                let is_there = is_silent && self.reach(place).is_ok();
                let told = format!("{error:#}");
                Err(if is_there { DialError::Silent(told) } else { DialError::Refused(told) })
            }
        }
    }

    fn reach(&self, place: &str) -> io::Result<Duration> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "no address");
        for address in place.to_socket_addrs()? {
            let began = Instant::now();
            match TcpStream::connect_timeout(&address, REACH_PATIENCE) {
                Ok(_) => return Ok(began.elapsed()),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

struct Line(Connection);

impl Link for Line {
    fn send(&mut self, words: &[&[u8]]) -> io::Result<()> {
        let mut bytes = Vec::new();
        encode_request(&mut bytes, words);
        self.0.send(&bytes)
    }

    fn receive(&mut self, patience: Duration) -> io::Result<Frame> {
        self.0.wait_at_most(patience)?;
        self.0.receive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_nodes_of_a_stock_cluster_are_found() {
        let nodes = "a1 10.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-5460\n\
                     b2 10.0.0.2:7000@17000,host-b master - 0 1 2 connected\n\
                     c3 ::1:7001@17001 slave b2 0 1 2 connected\n\
                     d4 :0@0 master,noaddr - 0 1 2 disconnected\nbroken\n";
        assert_eq!(others_in(nodes), ["10.0.0.2:7000", "[::1]:7001"]);
        assert!(others_in("").is_empty());
    }

    #[test]
    fn the_window_is_bounded() {
        assert_eq!(seconds("2"), Ok(2.0));
        assert!(["0", "46", "x", "nan", "-1"].iter().all(|text| seconds(text).is_err()));
    }
}

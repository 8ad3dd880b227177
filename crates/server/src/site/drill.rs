//! `holdfast site drill`: promotes a copy of the second site for a rehearsal, and takes it back.
//!
//! The second site goes on following all the while. A backup of it is restored into a directory of its own, and a
//! server is started on that, promoted as the site itself would be.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};
use std::{io::Write as _, net::TcpListener};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use resp::Frame;

use super::{FarArguments, PATIENCE, Record, ask, at};
use crate::backup::{self, RestoreArguments};
use crate::cluster::watch_signals;
use crate::connection::Connection;
use crate::login::Login;

/// Where the command of a rehearsal finds it.
const PLACE_VARIABLE: &str = "HOLDFAST_DRILL";

const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A server that has been asked to end and has not by then is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(20);

#[derive(clap::Args, Clone, Debug)]
pub(super) struct DrillArguments {
    /// A node of the second site
    #[command(flatten)]
    far: FarArguments,
    /// Directory for the copy on this machine; it is deleted at the end
    #[arg(long, value_name = "DIRECTORY", default_value = "holdfast-drill")]
    directory: PathBuf,
    /// Port of the server of the copy, on the loopback address [default: a free one]
    #[arg(long, value_name = "PORT")]
    drill_port: Option<u16>,
    /// Command to run, with the address in $HOLDFAST_DRILL; without one the copy serves until Control-C
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(super) fn run(arguments: &DrillArguments) -> Result<()> {
    // From here on nothing can end the run without the server.
    let signals = watch_signals()?;
    let mut far = arguments.far.connect()?;
    let record = Record::read(&mut far)?;
    ensure!(record.text("phase") == "following", "the second site does not follow: it is {}", record.text("phase"));
    let begun = Instant::now();
    let folder = Folder::new(&arguments.directory)?;
    let (copy, data) = (folder.path.join("copy"), folder.path.join("data"));
    backup::take(&arguments.far.door, &copy)?;
    backup::restore::run(&RestoreArguments {
        backup: Some(copy.clone()),
        archive: None,
        archive_key_file: None,
        at: None,
        data_dir: data.clone(),
        groups: None,
        quiet: true,
    })?;
    fs::remove_dir_all(&copy).with_context(|| format!("cannot remove {}", copy.display()))?;
    let port = match arguments.drill_port {
        Some(port) => port,
        None => free_port()?,
    };
    let login = &arguments.far.door.login;
    let mut server = Server::start(port, &folder.path, &data, login)?;
    let Some(mut connection) = server.wait(login, &signals)? else { return Ok(()) };
    let record = Record::read(&mut connection)?;
    super::open(&mut connection, None)?;
    let Frame::Integer(keys) = ask(&mut connection, &["DBSIZE"])? else { bail!("DBSIZE is answered strangely") };
    let lack = record.lack().unwrap_or_else(|| "nothing".to_owned());
    say_line!(
        "the copy accepts writes at {}, {:.1} s after the start of the drill, with {} keys and the state of {}",
        server.address,
        begun.elapsed().as_secs_f64(),
        backup::grouped(keys.unsigned_abs()),
        at(record.number("moment-ms"))
    );
    say_line!("a promotion then would have lacked {lack}, as heard at {}", at(record.number("heard-ms")));
    say_line!("the second site continues to follow; all changes of the copy are deleted at the end");
    let outcome = match &arguments.command[..] {
        [] => server.watch(&signals),
        command => rehearse(command, &server.address),
    };
    drop((server, folder));
    outcome?;
    say_line!("the drill is over, and its data are deleted");
    Ok(())
}

fn rehearse(command: &[String], address: &str) -> Result<()> {
    let status = Command::new(&command[0]).args(&command[1..]).env(PLACE_VARIABLE, address).status();
    let status = status.with_context(|| format!("cannot run {}", command[0]))?;
    ensure!(status.success(), "{} has failed: {status}", command[0]);
    Ok(())
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0").context("there is no free port")?.local_addr()?.port())
}

/// A directory of ours alone. It goes when it is dropped.
struct Folder {
    path: PathBuf,
}

impl Folder {
    fn new(path: &Path) -> Result<Self> {
        fs::create_dir(path).with_context(|| format!("cannot make {}, which must be new", path.display()))?;
        Ok(Self { path: path.to_owned() })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path); // what cannot be removed is the operator's to clear
    }
}

/// The server on the copy. Ended when dropped.
struct Server {
    address: String,
    log: PathBuf,
    child: Child,
}

impl Server {
    fn start(port: u16, folder: &Path, data: &Path, login: &Login) -> Result<Self> {
        // Another server that listens there would be promoted in its place.
        TcpListener::bind(("127.0.0.1", port)).with_context(|| format!("port {port} of 127.0.0.1 is in use"))?;
        let log = folder.join("log");
        let output = File::options().create(true).append(true).open(&log)?;
        let mut command = Command::new(std::env::current_exe()?);
        // Nobody joins it: any free port does for that.
        let cluster_port = free_port()?;
        command.args(["serve", "--bind", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--cluster-port", &cluster_port.to_string(), "--data-dir"]).arg(data);
        if let Some(password) = login.password() {
            let path = folder.join("password");
            let file = File::options().write(true).create_new(true).mode(0o600).open(&path);
            file.and_then(|mut file| file.write_all(password.as_bytes())).context("cannot write a password")?;
            command.arg("--requirepass-file").arg(path);
        }
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        // Control-C on the terminal is for us alone.
        command.process_group(0);
        let child = command.spawn().context("cannot start a server")?;
        Ok(Self { address: format!("127.0.0.1:{port}"), log, child })
    }

    /// Waits until it serves, as long as that takes; none if nobody wants it any more.
    fn wait(&mut self, login: &Login, signals: &Receiver<()>) -> Result<Option<Connection>> {
        // It speaks no TLS, and knows the password alone.
        let login = Login { password: login.password(), ..Login::default() };
        loop {
            if let Ok(mut connection) = login.connect(&self.address, PATIENCE)
                && connection.call(&["GET", "probe"]).is_ok_and(|reply| !reply.is_error() || is_wrong_type(&reply))
            {
                let info = ask(&mut connection, &["INFO", "server"])?;
                let own = format!("process_id:{}\r\n", self.child.id());
                let is_ours = info.as_bytes().is_some_and(|info| String::from_utf8_lossy(info).contains(&own));
                ensure!(is_ours, "another server answers at {}", self.address);
                return Ok(Some(connection));
            }
            if self.has_ended() {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                bail!("the server on the copy has ended: {}", log.lines().last().unwrap_or_default());
            }
            if signals.recv_timeout(POLL_INTERVAL) != Err(RecvTimeoutError::Timeout) {
                return Ok(None);
            }
        }
    }

    /// Until somebody has had enough.
    fn watch(&mut self, signals: &Receiver<()>) -> Result<()> {
        say_line!("Control-C ends it");
        while signals.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            ensure!(!self.has_ended(), "the server on the copy has ended");
        }
        Ok(())
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }
}

fn is_wrong_type(reply: &Frame) -> bool {
    matches!(reply, Frame::Error(text) if text.starts_with(b"WRONGTYPE"))
}

impl Drop for Server {
    fn drop(&mut self) {
        let asked = Instant::now();
        if !self.has_ended() {
            let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        }
        while asked.elapsed() < STOP_PATIENCE && !self.has_ended() {
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! `holdfast cli`: requests from a shell or a prompt, where redis-cli is not at hand.

mod format;
mod prompt;

use std::io::{self, BufRead, ErrorKind, IsTerminal, Read, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use resp::Frame;

use crate::cluster::door::Door;
use crate::connection::Connection;
use crate::waiting;
use crate::words::split_bytes;
use format::{Style, format};

/// Time between two looks at whether Control-C was pressed, while a reply is waited for.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Send requests to a server: from the command line, the standard input, or a prompt.
///
/// Replies look as in redis-cli: with types and quotes on a terminal, raw otherwise.
#[derive(Debug, Args)]
pub struct CliArguments {
    #[command(flatten)]
    door: Door,
    /// Database to select.
    #[arg(long = "db", short = 'n', value_name = "NUMBER")]
    database: Option<u32>,
    /// Use RESP3.
    #[arg(short = '3', long)]
    resp3: bool,
    /// Print raw replies, also on a terminal.
    #[arg(long, conflicts_with_all = ["no_raw", "json"])]
    raw: bool,
    /// Print replies with types and quotes, also if the output is not a terminal.
    #[arg(long, conflicts_with = "json")]
    no_raw: bool,
    /// Print replies as JSON, one line each.
    #[arg(long)]
    json: bool,
    /// Exit with 1 if a request is answered with an error.
    #[arg(short, long)]
    exit_code: bool,
    /// Read the last word of the request from the standard input.
    #[arg(short = 'x', long)]
    stdin_word: bool,
    /// Send the request so many times; 0 repeats it until it is interrupted.
    #[arg(short, long, value_name = "COUNT", default_value_t = 1)]
    repeat: u64,
    /// Time between repetitions, in seconds.
    #[arg(short, long, value_name = "SECONDS", default_value_t = 0.0)]
    interval: f64,
    /// The request. Without one, requests are read from the standard input, a line each.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORD")]
    words: Vec<String>,
}

/// Runs `holdfast cli`.
///
/// # Errors
/// If there is no server, the connection ends, or a line is none.
pub fn run(arguments: &CliArguments) -> Result<ExitCode> {
    ensure!(arguments.interval.is_finite() && arguments.interval >= 0.0, "--interval is a number of seconds from 0 on");
    let is_terminal = io::stdout().is_terminal();
    let style = match arguments {
        CliArguments { json: true, .. } => Style::Json,
        CliArguments { raw: true, .. } => Style::Raw,
        CliArguments { no_raw: true, .. } => Style::Typed,
        _ if is_terminal => Style::Typed,
        _ => Style::Raw,
    };
    let mut words: Vec<Vec<u8>> = arguments.words.iter().map(|word| word.as_bytes().to_vec()).collect();
    if arguments.stdin_word {
        ensure!(!words.is_empty(), "-x needs a request, of which it reads the last word");
        let mut last = Vec::new();
        io::stdin().read_to_end(&mut last).context("cannot read the standard input")?;
        words.push(last);
    }
    let mut session = Session::open(arguments, style)?;
    if !words.is_empty() {
        let interval = Duration::from_secs_f64(arguments.interval);
        let mut is_well = true;
        let mut count = 0;
        loop {
            is_well &= session.request(&words)?;
            count += 1;
            if count == arguments.repeat || session.is_interrupted() {
                break;
            }
            thread::sleep(interval);
        }
        return Ok(exit_code(is_well || !arguments.exit_code));
    }
    if io::stdin().is_terminal() && is_terminal {
        prompt::run(&mut session)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut is_well = true;
    for line in io::stdin().lock().split(b'\n') {
        let line = line.context("cannot read the standard input")?;
        let Some(words) = split_bytes(&line) else { bail!("Invalid argument(s): {}", String::from_utf8_lossy(&line)) };
        if !words.is_empty() {
            is_well &= session.request(&words)?;
        }
    }
    Ok(exit_code(is_well || !arguments.exit_code))
}

fn exit_code(is_well: bool) -> ExitCode {
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A connection that is made again when it has ended, and what the server knows of it.
struct Session<'a> {
    arguments: &'a CliArguments,
    style: Style,
    connection: Option<Connection>,
    database: u32,
    /// Between MULTI and EXEC.
    is_queueing: bool,
    interrupted: Arc<AtomicBool>,
}

impl<'a> Session<'a> {
    fn open(arguments: &'a CliArguments, style: Style) -> Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        let database = arguments.database.unwrap_or(0);
        let mut session = Self { arguments, style, connection: None, database, is_queueing: false, interrupted };
        session.connect()?;
        Ok(session)
    }

    /// Requests that push without an end are ended by Control-C; others by the end of the process.
    fn watch_interrupts(&self) -> Result<()> {
        signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&self.interrupted))
            .context("cannot watch for Control-C")?;
        Ok(())
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    fn connect(&mut self) -> Result<()> {
        let door = &self.arguments.door;
        let mut connection = waiting::during(&format!("connects to {}", door.place()), || door.dial())?;
        let login = &self.arguments.door.login;
        let (user, password) = (login.user.as_deref(), login.password());
        let mut greetings: Vec<Vec<String>> = Vec::new();
        if password.is_some() || user.is_some() {
            let words = ["AUTH", user.unwrap_or("default"), password.as_deref().unwrap_or_default()];
            greetings.push(words.map(str::to_owned).to_vec());
        }
        if self.arguments.resp3 {
            greetings.push(vec!["HELLO".to_owned(), "3".to_owned()]);
        }
        if self.database != 0 {
            greetings.push(vec!["SELECT".to_owned(), self.database.to_string()]);
        }
        for words in greetings {
            let reply = connection.call(&words).context("the server hung up")?;
            ensure!(!reply.is_error(), "{} was refused: {reply}", words[0]);
        }
        connection.wait_at_most(LOOK_INTERVAL)?;
        self.is_queueing = false;
        self.connection = Some(connection);
        Ok(())
    }

    /// Sends a request and prints what comes back; false if that is an error.
    fn request(&mut self, words: &[Vec<u8>]) -> Result<bool> {
        let name = words[0].to_ascii_lowercase();
        if self.connection.is_none() {
            self.connect()?;
        }
        let mut bytes = Vec::new();
        resp::encode_request(&mut bytes, words);
        let connection = self.connection.as_mut().expect("it was just made");
        // Large requests take longer than one look.
        connection.wait_at_most(Duration::from_secs(3600))?;
        let sent = connection.send(&bytes);
        connection.wait_at_most(LOOK_INTERVAL)?;
        if let Err(error) = sent {
            self.connection = None;
            return Err(error).context("the server closed the connection");
        }
        let is_endless = matches!(&name[..], b"monitor" | b"subscribe" | b"psubscribe" | b"ssubscribe");
        let reply = match self.receive() {
            Ok(Some(reply)) => reply,
            Ok(None) => return Ok(true),
            Err(_) if name == b"shutdown" => return Ok(true),
            Err(error) => return Err(error.into()),
        };
        self.note(&name, words, &reply);
        put(&format(&reply, self.style))?;
        let is_well = !reply.is_error();
        if is_endless && is_well {
            while let Some(frame) = self.receive()? {
                put(&format(&frame, self.style))?;
            }
            // What still comes is nobody's answer.
            self.connection = None;
        }
        Ok(is_well)
    }

    /// The next reply; nothing if Control-C was pressed meanwhile. A connection is closed if its reply was given up.
    fn receive(&mut self) -> io::Result<Option<Frame>> {
        let connection = self.connection.as_mut().ok_or(ErrorKind::NotConnected)?;
        loop {
            match connection.receive() {
                Ok(frame) => return Ok(Some(frame)),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if self.interrupted.swap(false, Ordering::Relaxed) {
                        self.connection = None;
                        return Ok(None);
                    }
                }
                Err(error) => {
                    self.connection = None;
                    return Err(error);
                }
            }
        }
    }

    /// What a prompt shows of the connection.
    fn note(&mut self, name: &[u8], words: &[Vec<u8>], reply: &Frame) {
        match name {
            _ if reply.is_error() && name != b"exec" => {}
            b"select" => {
                let number = words.get(1).and_then(|word| std::str::from_utf8(word).ok());
                self.database = number.and_then(|text| text.parse().ok()).unwrap_or(self.database);
            }
            b"multi" => self.is_queueing = true,
            b"exec" | b"discard" | b"reset" => {
                self.is_queueing = false;
                if name == b"reset" {
                    self.database = 0;
                }
            }
            _ => {}
        }
    }
}

fn put(bytes: &[u8]) -> Result<()> {
    let mut output = io::stdout().lock();
    match output.write_all(bytes).and_then(|()| output.flush()) {
        // A reader who has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        outcome => outcome.context("cannot write to the standard output"),
    }
}

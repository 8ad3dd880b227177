//! A Redis to compare with: a process of our own, on a socket of our own, for as long as the test runs.

use std::ffi::OsStr;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use keyspace::DataCommand;
use resp::{Frame, FrameDecoder, encode_request};

/// How long a server may take to open its socket.
const START_TIME_MAX: Duration = Duration::from_secs(120);

/// True if the reference knows a command as old as this: what is newer than Redis 7.0 is compared with nothing there,
/// nor is what there belongs to a module.
pub fn is_in_reference(command: &DataCommand) -> bool {
    let number = |part: Option<&str>| part.and_then(|part| part.parse::<u32>().ok()).unwrap_or(0);
    let mut parts = command.since.split('.');
    !command.name.contains('.') && (number(parts.next()), number(parts.next())) <= (7, 0)
}

pub struct Reference {
    process: Child,
    directory: PathBuf,
    stream: UnixStream,
    decoder: FrameDecoder,
}

impl Reference {
    /// Starts a server. `None`, with a notice, if none is installed or it is not a Redis 7.0.
    pub fn start() -> Option<Self> {
        // A test may bring a module along.
        let started = Self::of("redis-server".as_ref(), &["--enable-module-command", "yes"]);
        let Some(mut reference) = started else {
            eprintln!("passed over: there is no redis-server to compare with");
            return None;
        };
        let info = reference.call(&["INFO", "server"]);
        if String::from_utf8_lossy(info.as_bytes().unwrap_or_default()).contains("redis_version:7.0.") {
            return Some(reference);
        }
        eprintln!("passed over: the redis-server that is installed is not of version 7.0");
        None
    }

    /// Starts a program that takes the options of Redis. `None` if there is none of that name.
    pub fn of(program: &OsStr, options: &[&str]) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("reference-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory for the reference");
        let socket = directory.join("socket");
        let mut command = Command::new(program);
        command.args(["--port", "0", "--save", "", "--appendonly", "no"]).args(options);
        command.arg("--unixsocket").arg(&socket);
        command.arg("--dir").arg(&directory).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = match command.spawn() {
            Ok(process) => process,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                std::fs::remove_dir_all(&directory).expect("the reference's directory can be removed");
                return None;
            }
            Err(error) => panic!("{} does not start: {error}", program.display()),
        };
        let started = Instant::now();
        let stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(error) => assert!(started.elapsed() < START_TIME_MAX, "the reference does not answer: {error}"),
            }
            std::thread::yield_now();
        };
        Some(Self { process, directory, stream, decoder: FrameDecoder::new() })
    }

    /// The reply to a command.
    pub fn call<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Frame {
        self.try_call(words).expect("the reference has gone")
    }

    /// The reply to a command; `None` if the server has ended instead of giving one.
    pub fn try_call<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Option<Frame> {
        let mut bytes = Vec::new();
        encode_request(&mut bytes, words);
        self.stream.write_all(&bytes).ok()?;
        self.try_receive()
    }

    /// The replies to many commands, sent at once.
    pub fn call_all<C: AsRef<[W]>, W: AsRef<[u8]>>(&mut self, commands: &[C]) -> Vec<Frame> {
        self.send(commands);
        commands.iter().map(|_| self.receive()).collect()
    }

    fn send<C: AsRef<[W]>, W: AsRef<[u8]>>(&mut self, commands: &[C]) {
        let mut bytes = Vec::new();
        for command in commands {
            encode_request(&mut bytes, command.as_ref());
        }
        self.stream.write_all(&bytes).expect("the reference listens");
    }

    fn receive(&mut self) -> Frame {
        self.try_receive().expect("the reference has gone")
    }

    fn try_receive(&mut self) -> Option<Frame> {
        let mut buffer = [0; 64 * 1024];
        loop {
            if let Some(frame) = self.decoder.next_frame().expect("the reference speaks the protocol") {
                return Some(frame);
            }
            let length = self.stream.read(&mut buffer).ok().filter(|length| *length > 0)?;
            self.decoder.extend(&buffer[..length]);
        }
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        // What is left behind by a failure here is a process that ends with the machine and an empty directory; a
        // panic while another is under way would hide the test's own.
        drop(self.process.kill());
        drop(self.process.wait());
        drop(std::fs::remove_dir_all(&self.directory));
    }
}

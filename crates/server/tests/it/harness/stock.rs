//! A stock Redis beside ours.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{Client, PATIENCE, free_port, say};

/// A stock Redis, ended when dropped.
pub struct Stock {
    child: Child,
    port: u16,
}

impl Stock {
    /// Starts one with its files in `folder`; none if there is none on this machine.
    pub fn start(folder: &Path, words: &[&str]) -> Option<Self> {
        Self::of("redis-server".as_ref(), folder, words)
    }

    /// The same with another program, which may be that of a Valkey.
    pub fn of(program: &OsStr, folder: &Path, words: &[&str]) -> Option<Self> {
        let port = free_port();
        fs::create_dir_all(folder).expect("a folder");
        let child = Command::new(program)
            .args(["--port", &port.to_string(), "--save", "", "--enable-debug-command", "yes", "--dir"])
            .arg(folder)
            .args(words)
            .stdout(Stdio::null())
            .spawn();
        let Ok(child) = child else {
            say("no redis-server here: nothing to compare with");
            return None;
        };
        let this = Self { child, port };
        let begun = Instant::now();
        loop {
            let reply = Client::try_connect(port).and_then(|mut client| client.try_call(&["DBSIZE"]));
            if reply.is_some_and(|reply| !reply.is_error() || reply.to_string().contains("NOAUTH")) {
                return Some(this);
            }
            assert!(begun.elapsed() < PATIENCE, "redis-server does not answer");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A new connection.
    pub fn client(&self) -> Client {
        Client::try_connect(self.port).expect("a connection")
    }
}

impl Drop for Stock {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! What a supervisor such as systemd is told: that the server serves, that it lives, that it stops.
//!
//! The protocol is that of sd_notify(3): datagrams with `NAME=value` lines to the socket that `NOTIFY_SOCKET` names.
//! Without that variable nothing is sent. A message that is not heard does no harm, so failures are not told.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// A way to the supervisor.
#[derive(Debug, Default)]
pub struct Supervisor {
    place: Option<(UnixDatagram, SocketAddr)>,
    /// How often it wants to hear that the process lives.
    interval: Option<Duration>,
}

impl Supervisor {
    /// The supervisor that has started this process, by its environment.
    pub fn of_environment() -> Self {
        let interval = || {
            let micros: u64 = std::env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
            let is_meant = std::env::var("WATCHDOG_PID").map_or(true, |pid| pid == std::process::id().to_string());
            (is_meant && micros > 0).then(|| Duration::from_micros(micros))
        };
        Self::at(std::env::var_os("NOTIFY_SOCKET").as_deref(), interval())
    }

    fn at(name: Option<&OsStr>, interval: Option<Duration>) -> Self {
        let place = name.and_then(|name| {
            let address = match name.as_bytes() {
                [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
                // A relative path would be no address of the supervisor's.
                [b'/', ..] => SocketAddr::from_pathname(name),
                _ => return None,
            };
            let socket = UnixDatagram::unbound().ok()?;
            // A supervisor that does not read must not hold the server up.
            socket.set_nonblocking(true).ok()?;
            Some((socket, address.ok()?))
        });
        Self { place, interval }
    }

    /// The server serves.
    pub fn ready(&self) {
        self.send("READY=1\nSTATUS=serves\n");
    }

    /// What it does before that.
    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={}\n", status.replace('\n', " ")));
    }

    /// The server stops.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=stops\n");
    }

    /// It lives; only sent if somebody waits for it.
    pub fn lives(&self) {
        if self.interval.is_some() {
            self.send("WATCHDOG=1\n");
        }
    }

    fn send(&self, text: &str) {
        if let Some((socket, address)) = &self.place {
            let _ = socket.send_to_addr(text.as_bytes(), address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 256];
        socket.set_read_timeout(Some(Duration::from_secs(120))).expect("a time-out");
        let length = socket.recv(&mut buffer).expect("a message");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn a_supervisor_hears_in_its_file_and_under_its_abstract_name() {
        let path = std::env::temp_dir().join(format!("holdfast-supervisor-{}", std::process::id()));
        let socket = UnixDatagram::bind(&path).expect("a socket");
        let supervisor = Supervisor::at(Some(path.as_os_str()), Some(Duration::from_secs(1)));
        supervisor.ready();
        supervisor.lives();
        supervisor.stopping();
        assert_eq!(heard(&socket), "READY=1\nSTATUS=serves\n");
        assert_eq!(heard(&socket), "WATCHDOG=1\n");
        assert_eq!(heard(&socket), "STOPPING=1\nSTATUS=stops\n");
        let _ = std::fs::remove_file(&path);
        let name = format!("holdfast-supervisor-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("an address");
        let socket = UnixDatagram::bind_addr(&address).expect("a socket");
        let supervisor = Supervisor::at(Some(OsStr::new(&format!("@{name}"))), None);
        supervisor.lives();
        supervisor.status("loads\n10 %");
        assert_eq!(heard(&socket), "STATUS=loads 10 %\n");
        // Nobody there, or nothing that could be: nothing happens.
        Supervisor::at(Some(OsStr::new("/nowhere/at/all")), None).ready();
        Supervisor::at(Some(OsStr::new("relative")), None).ready();
        Supervisor::at(None, None).ready();
    }
}

//! What wakes a thread that sleeps in `epoll_wait`, in whichever of its two epoll instances that is.

use std::io;
use std::os::fd::AsRawFd as _;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// An `eventfd`. Its counter is never read: every write makes an edge, and it would take centuries to fill it.
#[derive(Debug)]
pub struct CoreWaker(EventFd);

impl CoreWaker {
    /// One that wakes nobody yet.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?))
    }

    /// The thread that waits there is woken, and sees `token`.
    ///
    /// # Errors
    /// As `epoll_ctl` has them.
    pub fn register(&self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut SourceFd(&self.0.as_raw_fd()), token, Interest::READABLE)
    }

    /// The thread that waits there is no longer woken.
    ///
    /// # Errors
    /// As `epoll_ctl` has them.
    pub fn deregister(&self, registry: &Registry) -> io::Result<()> {
        registry.deregister(&mut SourceFd(&self.0.as_raw_fd()))
    }

    /// Wakes.
    pub fn wake(&self) {
        // A write fails only if the counter is full, and then the wake-up is already due.
        let _ = self.0.write(1);
    }
}

//! A transaction with control commands, and with data commands that are under way or done.

use command::Refusal;
use resp::Writer;

use crate::session::queued::Queued;
use crate::session::ticket::{OwnTicket, Right};

/// A transaction with control commands, and with data commands that are under way or done.
#[derive(Debug)]
pub(crate) struct Composition {
    pub(crate) ticket: OwnTicket,
    pub(crate) queue: Vec<Queued>,
    /// Reply to the data commands; `None` until it has come.
    pub(crate) data: Option<(Right, Vec<u8>)>,
    /// Next command to be looked at, and where the next data reply begins.
    pub(crate) next: usize,
    pub(crate) at: usize,
    pub(crate) out: Vec<u8>,
    /// A question to all cores, or to the home of the libraries, is under way.
    pub(crate) is_asking: bool,
}

impl Composition {
    /// Takes what the home of the libraries has answered.
    pub(crate) fn take_answer(&mut self, bytes: &[u8]) {
        self.is_asking = false;
        self.out.extend_from_slice(bytes);
    }

    pub(crate) fn take_reply(&mut self, result: Result<(), Refusal>, written: &Writer) {
        match result {
            Ok(()) => self.out.extend_from_slice(written.bytes()),
            Err(refusal) => {
                let mut writer = Writer::default();
                writer.error(refusal.text());
                self.out.extend_from_slice(writer.bytes());
            }
        }
    }
}

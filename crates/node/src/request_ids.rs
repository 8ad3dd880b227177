//! CLIENT REQUESTID: requests that are carried out once, however often they are sent.
//!
//! A client gives its next command, or its next MULTI up to the EXEC, an id. What it is answered is kept by the group
//! that holds the slot of its first key ([`state::RequestIds`]), in the same entries of the log as what it changes.
//! When it comes again, from whatever connection and to whatever node, it is answered as it was then.
//!
//! Such a request is always a transaction that its gateway drives ([`crate::transaction`]). The lock on its first key
//! is what keeps two copies of it apart: who gets the lock looks whether the answer is there already, and until the
//! answer has been applied nobody else gets it.

use group::invocation::Invocation;
use resp::{Protocol, Span};
use stdx::slot::slot_of;

use crate::entry::{Reader, RequestId};
use crate::known::Known;
use crate::lookup::lookup;
use crate::slots::SlotMap;
use crate::transaction::Work;

/// Bytes of an id.
pub const ID_BYTES_MAX: usize = 64;

pub(crate) const BAD_ID: &str = "ERR A request id has 1 to 64 bytes";

/// A reply that would have to be kept is too long.
pub(crate) const LONG_REPLY: &str = "ERR The reply is too long to be kept for a request id: nothing has been changed";

/// The transaction contains what is done by the client's node alone.
pub(crate) const CONTROL_IN_MULTI: &str =
    "ERR A transaction with a request id may contain commands on data and scripts only";

/// A request with its id, and for how long its answer is kept.
#[derive(Clone, Debug)]
pub struct Named {
    /// The request.
    pub request: RequestId,
    /// Milliseconds from when it is carried out.
    pub ms: u64,
}

impl Named {
    /// Names what these commands, laid out by `entry::put_words`, do together.
    pub(crate) fn new(id: &[u8], protocol: Protocol, commands: &[Vec<u8>], ms: u64) -> Box<Self> {
        // Tells a mistake of the client, and is no protection against anybody.
        let mut digest = 0xCBF2_9CE4_8422_2325_u64 ^ u64::from(protocol == Protocol::Resp3);
        for words in commands {
            let length = (words.len() as u64).to_le_bytes();
            for byte in length.iter().chain(words) {
                digest = (digest ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
            }
        }
        let slot = slot_of(first_key(commands).as_deref().unwrap_or(id));
        Box::new(Self { request: RequestId { slot, id: id.to_vec(), digest }, ms })
    }
}

/// The first key that the commands name, if they name any.
pub(crate) fn first_key(commands: &[Vec<u8>]) -> Option<Vec<u8>> {
    let mut spans: Vec<Span> = Vec::new();
    commands.iter().find_map(|words| {
        let (_, args) = Reader::new(words).words(&mut spans);
        let mut key = None;
        match lookup(args).ok()? {
            Known::Data(command) => command.for_each_key(args, |index, _| _ = key.get_or_insert(index)),
            // The number of its keys stands before them.
            Known::Control(_) if args.get(Invocation::FIRST_KEY - 1).is_some_and(|count| count != b"0") => {
                key = Some(Invocation::FIRST_KEY);
            }
            Known::Control(_) => {}
        }
        Some(args.get(key?)?.to_vec())
    })
}

impl Work {
    /// Gives it an id.
    pub(crate) fn name(&mut self, named: Box<Named>, slots: &SlotMap) {
        let request = &named.request;
        if slot_of(&request.id) == request.slot {
            // Perhaps it has no key with a lock that keeps it apart from its like: the id stands for one.
            self.keys.entry(slots.group_of_slot(request.slot)).or_default().push((0, request.id.clone()));
        }
        self.named = Some(named);
    }
}

/// True for CLIENT REQUESTID.
pub(crate) fn is_naming(known: Known) -> bool {
    matches!(known, Known::Control(command) if command.name() == "requestid")
}

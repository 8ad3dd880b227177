//! Keys in which a cluster that follows another one stores how far it is. Where changes are kept for such a cluster,
//! they would arrive there as changes of its own records, so clients may read these keys and not change them.

use command::{Access, Refusal};
use keyspace::DataCommand;
use resp::Args;

/// How far a cluster is, and how far the one was that it follows.
const KEYS: [&[u8]; 2] = [b"{holdfast}:site", b"{holdfast}:origin"];

/// Refuses a command that may change one of them.
pub(crate) fn check(command: &DataCommand, args: Args<'_>) -> Result<(), Refusal> {
    let mut found = None;
    command.for_each_key(args, |index, access| {
        if !matches!(access, Access::Read | Access::NotKey) && KEYS.contains(&args.at(index)) {
            found = Some(args.at(index));
        }
    });
    match found {
        None => Ok(()),
        Some(key) => {
            let key = String::from_utf8_lossy(key);
            Err(Refusal::new(format!(
                "ERR The key {key} belongs to sites that follow: only Holdfast itself changes it"
            )))
        }
    }
}

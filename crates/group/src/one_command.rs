//! One command of a gateway on its copies.

use keyspace::{Keyspace, Moment};
use resp::{Args, Writer};

use state::observe;

/// Executes one command, whichever kind it is, as it is at the level of the keyspace.
pub fn run_one(keyspace: &mut Keyspace, database: u16, args: Args<'_>, moment: Moment, writer: &mut Writer) {
    let command = keyspace::resolve(args).expect("a logged command is known");
    let command = crate::levels::body_at(keyspace.level(), command);
    observe::run(keyspace, database, command, args, moment, writer);
}

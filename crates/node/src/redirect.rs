//! `cluster-redirect yes`: clients are sent to the leader of their keys, in Redis's words.

use command::{Command, Refusal, Span as KeySpan};
use group::ids::{GroupId, NodeId};
use keyspace::Body;
use resp::Args;
use stdx::slot::{Slot, slot_of};

use crate::commands::Record;
use crate::context::Context;
use crate::known::Known;
use crate::masters::master_of_this;

/// The one slot of a command's keys; `None` if it has no keys.
///
/// # Errors
/// If they lie in several.
pub fn slot_of_keys<Body>(command: &Command<Body>, args: Args<'_>) -> Result<Option<Slot>, Refusal> {
    if !matches!(command.span, KeySpan::Keys) {
        return Ok(None);
    }
    let mut slot = None;
    let mut is_one = true;
    command.for_each_key(args, |index, _| {
        let other = slot_of(args.at(index));
        is_one &= *slot.get_or_insert(other) == other;
    });
    if is_one { Ok(slot) } else { Err(Refusal::new(CROSS_SLOT)) }
}

/// The same for any request: watched keys are keys, and so are those that a script declares.
pub fn slot_of_request(known: Known, args: Args<'_>) -> Result<Option<Slot>, Refusal> {
    match known.record() {
        Record::Data(command) => slot_of_keys(command, args),
        Record::Control(command) => slot_of_keys(command, args),
    }
}

/// Whether a command may be carried out here, or where else.
///
/// # Errors
/// In Redis's words.
pub fn check(context: &Context, is_read_only: bool, known: Known, args: Args<'_>) -> Result<(), Refusal> {
    if !context.settings.cluster_enabled {
        return Ok(());
    }
    let Some(slot) = slot_of_request(known, args)? else { return Ok(()) };
    let only_reads = match known {
        Known::Data(command) => matches!(command.body, Body::Query(_)),
        Known::Control(_) => known.script_naming().is_none_or(|(_, only_reads)| only_reads),
    };
    let may_be_old = is_read_only && only_reads;
    if !context.is_clustered || may_be_old {
        return Ok(());
    }
    let group = context.slots.group_of_slot(slot);
    match context.routes[group.0 as usize].leader {
        Some(leader) if leader == context.node => Ok(()),
        Some(leader) => {
            let address = context.roster.get(leader).map_or("", |member| member.client_address.as_str());
            Err(Refusal::new(format!("MOVED {} {address}", slot.0)))
        }
        None => Err(Refusal::new("CLUSTERDOWN Hash slot not served")),
    }
}

/// The groups that a query over all keys is about: all, or those that this node leads where clients ask every leader. A
/// node that leads none answers for the node that it replicates in the eyes of clients, as a replica has its master's
/// keys in Redis: nothing would be the answer of an empty database. What follows another site `asks_all`, as nobody
/// adds up its answers.
///
/// # Errors
/// If there clients ask every leader, and none is known: a sum over what nodes say would count a key more than once.
pub fn groups_asked(context: &Context, asks_all: bool) -> Result<Vec<GroupId>, Refusal> {
    let groups: Vec<GroupId> = context.slots.groups().collect();
    if asks_all || !context.settings.cluster_redirect || !context.is_clustered {
        return Ok(groups);
    }
    let leads = |node: NodeId| move |group: &GroupId| context.routes[group.0 as usize].leader == Some(node);
    let own: Vec<GroupId> = groups.iter().copied().filter(leads(context.node)).collect();
    if !own.is_empty() {
        return Ok(own);
    }
    let master = master_of_this(context).ok_or_else(|| Refusal::new("CLUSTERDOWN No leader of any group is known"))?;
    Ok(groups.into_iter().filter(leads(master)).collect())
}

/// Keys of one request, or of one transaction, lie in several slots.
pub const CROSS_SLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";

//! XPENDING: what a group has given out and got no acknowledgement of.

use command::{Access, Flag, Refusal};
use resp::{Args, Writer};

use super::{ON_STREAM, end_id, no_group, start_id, write_id};
use crate::collection::stream::Id;
use crate::collection::stream::group::{Group, Holder};
use crate::commands::arguments::{integer, is};
use crate::commands::string::first_key;
use crate::commands::{Body, DataCommand};
use crate::{ItoaBuffer, View};

pub(super) const XPENDING: DataCommand = DataCommand {
    name: "xpending",
    summary: "Shows the entries that a group has given out without an acknowledgement.",
    complexity: "O(N) where N is the number of entries that are looked at, or of consumers.",
    syntax: "key group [[IDLE min-idle-time] start end count [consumer]]",
    arity: -3,
    flags: &[Flag::Readonly],
    keys: &[first_key(Access::Read, &["access"])],
    tips: &["nondeterministic_output"],
    body: Body::Query(xpending),
    ..ON_STREAM
};

fn xpending(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let request = Request::parse(args)?;
    let (key, name) = (args.at(1), args.at(2));
    let stream = view.stream(key)?;
    let group = stream.and_then(|stream| stream.group(name)).ok_or_else(|| no_group(key, name))?;
    match request {
        None => write_summary(writer, group),
        Some(request) => request.answer(group, view.moment().unix.0, writer),
    }
    Ok(())
}

struct Request<'a> {
    idle_ms_min: i64,
    start: Id,
    end: Id,
    count: usize,
    consumer: Option<&'a [u8]>,
}

impl<'a> Request<'a> {
    /// `None` if only a summary is asked for.
    fn parse(args: Args<'a>) -> Result<Option<Self>, Refusal> {
        if args.len() == 3 {
            return Ok(None);
        }
        if !(6..=9).contains(&args.len()) {
            return Err(Refusal::SYNTAX);
        }
        let (mut at, mut idle_ms_min) = (3, 0);
        if is(args.at(3), "idle") {
            idle_ms_min = integer(args.at(4))?;
            if args.len() < 8 {
                return Err(Refusal::SYNTAX);
            }
            at = 5;
        }
        let count = usize::try_from(integer(args.at(at + 2))?).unwrap_or(0);
        let (start, end) = (start_id(args.at(at))?, end_id(args.at(at + 1))?);
        Ok(Some(Self { idle_ms_min, start, end, count, consumer: args.get(at + 3) }))
    }

    fn answer(&self, group: &Group, now: i64, writer: &mut Writer) {
        let consumer = self.consumer.map(|name| group.consumer(name));
        if let Some(None) = consumer {
            return writer.array(0);
        }
        let found: Vec<_> = group
            .pending_range(self.start, self.end, consumer.flatten())
            .filter(|pending| pending.is_idle(self.idle_ms_min, now))
            .take(self.count)
            .collect();
        writer.array(found.len());
        for pending in found {
            writer.array(4);
            write_id(writer, pending.id);
            match &pending.holder {
                Holder::Consumer(owner, time) => {
                    writer.bulk(owner);
                    writer.integer(now.saturating_sub(*time).max(0));
                }
                Holder::Nobody(_) => {
                    writer.bulk(b"");
                    writer.integer(-1);
                }
            }
            writer.integer(pending.shown_count());
        }
    }
}

fn write_summary(writer: &mut Writer, group: &Group) {
    writer.array(4);
    writer.count(group.pending.len());
    let last = group.pending.len().checked_sub(1);
    let (Some(first), Some(last)) = (group.pending.get(0), last.and_then(|rank| group.pending.get(rank))) else {
        writer.null();
        writer.null();
        return writer.null_array();
    };
    write_id(writer, first.id);
    write_id(writer, last.id);
    let busy = || group.consumers.iter().filter(|consumer| !consumer.pending.is_empty());
    writer.array(busy().count());
    for consumer in busy() {
        writer.array(2);
        writer.bulk(&consumer.name);
        writer.bulk(ItoaBuffer::new().format(consumer.pending.len() as i64));
    }
}

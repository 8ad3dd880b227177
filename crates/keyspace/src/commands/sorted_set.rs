//! Commands on sorted sets.

pub(super) mod add;
mod block;
pub(super) mod combine;
mod pop;
mod random;
mod range;
mod read;
mod remove;

use resp::{Protocol, Writer};

use super::{DataCommand, write_double};

pub(super) const COMMANDS: &[&DataCommand] = &[
    &add::ZADD,
    &add::ZINCRBY,
    &block::BZMPOP,
    &block::BZPOPMAX,
    &block::BZPOPMIN,
    &combine::ZDIFF,
    &combine::ZDIFFSTORE,
    &combine::ZINTER,
    &combine::ZINTERCARD,
    &combine::ZINTERSTORE,
    &combine::ZUNION,
    &combine::ZUNIONSTORE,
    &pop::ZMPOP,
    &pop::ZPOPMAX,
    &pop::ZPOPMIN,
    &random::ZRANDMEMBER,
    &range::ZCOUNT,
    &range::ZLEXCOUNT,
    &range::ZRANGE,
    &range::ZRANGEBYLEX,
    &range::ZRANGEBYSCORE,
    &range::ZRANGESTORE,
    &range::ZREVRANGE,
    &range::ZREVRANGEBYLEX,
    &range::ZREVRANGEBYSCORE,
    &read::ZCARD,
    &read::ZMSCORE,
    &read::ZRANK,
    &read::ZREVRANK,
    &read::ZSCAN,
    &read::ZSCORE,
    &remove::ZREM,
    &remove::ZREMRANGEBYLEX,
    &remove::ZREMRANGEBYRANK,
    &remove::ZREMRANGEBYSCORE,
];

/// Writes a score.
pub(super) fn write_score(writer: &mut Writer, score: f64) {
    write_double(writer, score);
}

/// Writes members, each with its score if that is wanted: in RESP2 in a row, in RESP3 as pairs.
pub(super) fn write_members<'a>(
    writer: &mut Writer,
    count: usize,
    members: impl Iterator<Item = (&'a [u8], f64)>,
    with_scores: bool,
) {
    let in_pairs = with_scores && writer.protocol() == Protocol::Resp3;
    writer.array(if with_scores && !in_pairs { count * 2 } else { count });
    for (member, score) in members {
        if in_pairs {
            writer.array(2);
        }
        writer.bulk(member);
        if with_scores {
            write_score(writer, score);
        }
    }
}

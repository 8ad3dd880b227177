//! Where members are, and how far from each other.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use super::cells::Point;
use super::{coordinate_text, distance_text, unit};
use crate::View;
use crate::commands::key_specs::key_at;
use crate::commands::{Body, DataCommand};

pub(super) const GEOPOS: DataCommand = DataCommand {
    name: "geopos",
    since: "3.2.0",
    group: Group::Geo,
    summary: "Returns the longitudes and latitudes of members.",
    complexity: "O(N log M) with N the number of members asked for.",
    syntax: "key [member [member ...]]",
    arity: -2,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[key_at(1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(geopos),
};

pub(super) const GEOHASH: DataCommand = DataCommand {
    name: "geohash",
    since: "3.2.0",
    group: Group::Geo,
    summary: "Returns the places of members as geohash texts.",
    complexity: "O(N log M) with N the number of members asked for.",
    syntax: "key [member [member ...]]",
    arity: -2,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[key_at(1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(geohash),
};

pub(super) const GEODIST: DataCommand = DataCommand {
    name: "geodist",
    since: "3.2.0",
    group: Group::Geo,
    summary: "Returns the distance between two members.",
    complexity: "O(log N)",
    syntax: "key member1 member2 [m | km | ft | mi]",
    arity: -4,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[key_at(1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(geodist),
};

fn geopos(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let set = view.sorted_set(args.at(1))?;
    writer.array(args.len() - 2);
    for member in args.from(2).iter() {
        match set.and_then(|set| set.score(member)) {
            Some(score) => write_point(writer, Point::of_score(score)),
            None => writer.null_array(),
        }
    }
    Ok(())
}

/// Writes a longitude and a latitude.
pub(super) fn write_point(writer: &mut Writer, point: Point) {
    writer.array(2);
    writer.double_text(&coordinate_text(point.longitude));
    writer.double_text(&coordinate_text(point.latitude));
}

fn geohash(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let set = view.sorted_set(args.at(1))?;
    writer.array(args.len() - 2);
    for member in args.from(2).iter() {
        let score = set.and_then(|set| set.score(member));
        writer.bulk_or_null(score.map(|score| Point::of_score(score).geohash()).as_ref().map(<[u8; 11]>::as_slice));
    }
    Ok(())
}

fn geodist(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    if args.len() > 5 {
        return Err(Refusal::SYNTAX);
    }
    let metres = args.get(4).map_or(Ok(1.0), unit)?;
    let set = view.sorted_set(args.at(1))?;
    let place = |at| set.and_then(|set| set.score(args.at(at))).map(Point::of_score);
    match (place(2), place(3)) {
        (Some(from), Some(to)) => writer.bulk(distance_text(from.distance(to) / metres).as_bytes()),
        _ => writer.null(),
    }
    Ok(())
}

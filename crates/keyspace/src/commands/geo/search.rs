//! GEOSEARCH and its elder kin: members near a point.

use command::{Access, Begin, Find, Flag, Group, KeySpec, Refusal, Span};
use resp::{Args, Writer};

use super::cells::{Point, Shape, middle};
use super::position::write_point;
use super::{distance_text, point, unit};
use crate::collection::sorted_set::Cut;
use crate::commands::arguments::{integer, is};
use crate::commands::key_specs::key_at;
use crate::commands::sorted_set::combine::store;
use crate::commands::{Body, DataCommand};
use crate::{Edit, SortedSet, View, double};

/// The word behind this option, which is looked for from the word `from` on, is a key.
const fn key_behind(option: &'static str, from: i32, access: Access, notes: &'static [&'static str]) -> KeySpec {
    KeySpec { access, begin: Begin::Keyword(option, from), find: Find::Range { last: 0, step: 1, limit: 0 }, notes }
}

pub(super) const GEOSEARCH: DataCommand = DataCommand {
    name: "geosearch",
    since: "6.2.0",
    group: Group::Geo,
    summary: "Finds the members within a circle, a box or a polygon.",
    complexity: "O(N+log M) with N the number of members in the cells around and M that of all.",
    syntax: "key <<FROMMEMBER member | FROMLONLAT longitude latitude> <BYRADIUS radius <m | km | ft | mi> \
             | BYBOX width height <m | km | ft | mi>> | BYPOLYGON num-vertices longitude latitude longitude \
             latitude longitude latitude [longitude latitude ...]> [ASC | DESC] [COUNT count [ANY]] [WITHCOORD] \
             [WITHDIST] [WITHHASH]",
    arity: -7,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[key_at(1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(geosearch),
};

pub(super) const GEOSEARCHSTORE: DataCommand = DataCommand {
    name: "geosearchstore",
    since: "6.2.0",
    group: Group::Geo,
    summary: "Stores the members within a circle, a box or a polygon under another key.",
    complexity: "O(N+log M) with N the number of members in the cells around and M that of all.",
    syntax: "destination source <<FROMMEMBER member | FROMLONLAT longitude latitude> <BYRADIUS radius <m | \
             km | ft | mi> | BYBOX width height <m | km | ft | mi>> | BYPOLYGON num-vertices longitude latitude \
             longitude latitude longitude latitude [longitude latitude ...]> [ASC | DESC] [COUNT count [ANY]] \
             [STOREDIST]",
    arity: -8,
    flags: &[Flag::Write, Flag::Denyoom],
    categories: &[],
    keys: &[key_at(1, Access::Overwrite, &["update"]), key_at(2, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(geosearchstore),
};

pub(super) const GEORADIUS: DataCommand = DataCommand {
    name: "georadius",
    since: "3.2.0",
    group: Group::Geo,
    summary: "Finds the members within a radius of a point.",
    complexity: "O(N+log M) with N the number of members in the cells around and M that of all.",
    syntax: "key longitude latitude radius <m | km | ft | mi> [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT \
             count [ANY]] [ASC | DESC] [STORE key] [STOREDIST key]",
    arity: -6,
    flags: &[Flag::Write, Flag::Denyoom, Flag::MovableKeys],
    categories: &[],
    keys: &[
        key_at(1, Access::Read, &["access"]),
        key_behind("STORE", 6, Access::Overwrite, &["update"]),
        key_behind("STOREDIST", 6, Access::Overwrite, &["update"]),
    ],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(georadius),
};

pub(super) const GEORADIUS_RO: DataCommand = DataCommand {
    name: "georadius_ro",
    since: "3.2.10",
    group: Group::Geo,
    summary: "Finds the members within a radius of a point, and never stores them.",
    complexity: "O(N+log M) with N the number of members in the cells around and M that of all.",
    syntax: "key longitude latitude radius <m | km | ft | mi> [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT \
             count [ANY]] [ASC | DESC]",
    arity: -6,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[key_at(1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(georadius_ro),
};

pub(super) const GEORADIUSBYMEMBER: DataCommand = DataCommand {
    name: "georadiusbymember",
    since: "3.2.0",
    group: Group::Geo,
    summary: "Finds the members within a radius of one of them.",
    complexity: "O(N+log M) with N the number of members in the cells around and M that of all.",
    syntax: "key member radius <m | km | ft | mi> [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count [ANY]] \
             [ASC | DESC] [STORE key] [STOREDIST key]",
    arity: -5,
    flags: &[Flag::Write, Flag::Denyoom, Flag::MovableKeys],
    categories: &[],
    keys: &[
        key_at(1, Access::Read, &["access"]),
        key_behind("STORE", 5, Access::Overwrite, &["update"]),
        key_behind("STOREDIST", 5, Access::Overwrite, &["update"]),
    ],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(georadiusbymember),
};

pub(super) const GEORADIUSBYMEMBER_RO: DataCommand = DataCommand {
    name: "georadiusbymember_ro",
    since: "3.2.10",
    group: Group::Geo,
    summary: "Finds the members within a radius of one of them, and never stores them.",
    complexity: "O(N+log M) with N the number of members in the cells around and M that of all.",
    syntax: "key member radius <m | km | ft | mi> [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count [ANY]] \
             [ASC | DESC]",
    arity: -5,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[key_at(1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(georadiusbymember_ro),
};

/// How a command tells where to look.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Coordinates, then a radius.
    Radius,
    /// A member, then a radius.
    RadiusByMember,
    /// Options in any order.
    Search,
    /// The same, and the first key is the destination.
    SearchAndStore,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Ascending,
    Descending,
}

/// What is asked for.
#[derive(Default)]
struct Request<'a> {
    centre: Option<Point>,
    shape: Option<Shape>,
    /// Metres of the unit in which distances are wanted.
    metres: f64,
    with_distance: bool,
    with_hash: bool,
    with_point: bool,
    order: Option<Order>,
    count: Option<usize>,
    /// The first ones found will do.
    takes_any: bool,
    destination: Option<&'a [u8]>,
    stores_distance: bool,
}

struct Found<'s> {
    member: &'s [u8],
    score: f64,
    point: Point,
    distance: f64,
}

fn radius(args: Args<'_>, first: usize) -> Result<(f64, f64), Refusal> {
    let radius = double::parse(args.at(first)).ok_or_else(|| Refusal::new("ERR need numeric radius"))?;
    if radius < 0.0 {
        return Err(Refusal::new("ERR radius cannot be negative"));
    }
    Ok((radius, unit(args.at(first + 1))?))
}

fn sides(args: Args<'_>, first: usize) -> Result<(f64, f64, f64), Refusal> {
    let width = double::parse(args.at(first)).ok_or_else(|| Refusal::new("ERR need numeric width"))?;
    let height = double::parse(args.at(first + 1)).ok_or_else(|| Refusal::new("ERR need numeric height"))?;
    if width < 0.0 || height < 0.0 {
        return Err(Refusal::new("ERR height or width cannot be negative"));
    }
    Ok((width, height, unit(args.at(first + 2))?))
}

/// The corners of a polygon, of which the word at `first` tells the number.
fn corners(args: Args<'_>, first: usize) -> Result<Vec<Point>, Refusal> {
    const COUNT_MIN: usize = 3;
    let count = integer(args.at(first)).map_err(|_| Refusal::new("ERR invalid number of vertices"))?;
    let count = usize::try_from(count).ok().filter(|&count| count >= COUNT_MIN);
    let count = count.filter(|&count| count <= (args.len() - first - 1) / 2);
    let count = count.ok_or_else(|| Refusal::new("ERR GEOSEARCH BYPOLYGON must have at least 3 vertices"))?;
    (0..count).map(|nth| point(args, first + 1 + 2 * nth)).collect()
}

fn member_point(set: SortedSet<'_>, member: &[u8]) -> Result<Point, Refusal> {
    let score = set.score(member).ok_or_else(|| Refusal::new("ERR could not decode requested zset member"))?;
    Ok(Point::of_score(score))
}

impl<'a> Request<'a> {
    /// Reads everything. Where there is no set, what only it could tell is not checked, as in Redis.
    fn parse(set: Option<SortedSet<'_>>, args: Args<'a>, form: Form, may_store: bool) -> Result<Self, Refusal> {
        let mut request = Self { metres: 1.0, ..Self::default() };
        let searches = matches!(form, Form::Search | Form::SearchAndStore);
        let mut next = match form {
            Form::Radius => {
                request.centre = Some(point(args, 2)?);
                let (radius, metres) = radius(args, 4)?;
                (request.shape, request.metres) = (Some(Shape::Circle(radius * metres)), metres);
                6
            }
            Form::RadiusByMember => {
                if let Some(set) = set {
                    request.centre = Some(member_point(set, args.at(2))?);
                    let (radius, metres) = radius(args, 3)?;
                    (request.shape, request.metres) = (Some(Shape::Circle(radius * metres)), metres);
                }
                5
            }
            Form::Search => 2,
            Form::SearchAndStore => {
                request.destination = Some(args.at(1));
                3
            }
        };
        let (mut by_member, mut by_point, mut any) = (false, false, false);
        let is_polygon = |request: &Self| matches!(request.shape, Some(Shape::Polygon(_)));
        while let Some(option) = args.get(next) {
            let left = args.len() - next - 1;
            match () {
                () if is(option, "withdist") => request.with_distance = true,
                () if is(option, "withhash") => request.with_hash = true,
                () if is(option, "withcoord") => request.with_point = true,
                () if is(option, "any") => any = true,
                () if is(option, "asc") => request.order = Some(Order::Ascending),
                () if is(option, "desc") => request.order = Some(Order::Descending),
                () if is(option, "count") && left >= 1 => {
                    let count = usize::try_from(integer(args.at(next + 1))?).ok().filter(|&count| count > 0);
                    request.count = Some(count.ok_or_else(|| Refusal::new("ERR COUNT must be > 0"))?);
                    next += 1;
                }
                () if !searches && may_store && left >= 1 && (is(option, "store") || is(option, "storedist")) => {
                    request.destination = args.get(next + 1);
                    request.stores_distance = is(option, "storedist");
                    next += 1;
                }
                () if form == Form::SearchAndStore && is(option, "storedist") => request.stores_distance = true,
                () if searches && !by_point && !is_polygon(&request) && left >= 1 && is(option, "frommember") => {
                    if let Some(set) = set {
                        request.centre = Some(member_point(set, args.at(next + 1))?);
                    }
                    by_member = true;
                    next += 1;
                }
                () if searches && !by_member && !is_polygon(&request) && left >= 2 && is(option, "fromlonlat") => {
                    request.centre = Some(point(args, next + 1)?);
                    by_point = true;
                    next += 2;
                }
                () if searches
                    && left >= 2
                    && is(option, "byradius")
                    && matches!(request.shape, None | Some(Shape::Circle(_))) =>
                {
                    let (radius, metres) = radius(args, next + 1)?;
                    (request.shape, request.metres) = (Some(Shape::Circle(radius * metres)), metres);
                    next += 2;
                }
                () if searches
                    && left >= 3
                    && is(option, "bybox")
                    && matches!(request.shape, None | Some(Shape::Box(..))) =>
                {
                    let (width, height, metres) = sides(args, next + 1)?;
                    (request.shape, request.metres) = (Some(Shape::Box(width * metres, height * metres)), metres);
                    next += 3;
                }
                () if searches
                    && left >= 2
                    && is(option, "bypolygon")
                    && !by_member
                    && !by_point
                    && (request.shape.is_none() || is_polygon(&request)) =>
                {
                    let corners = corners(args, next + 1)?;
                    next += 1 + 2 * corners.len();
                    // Distances are those from the middle, in metres.
                    request.centre = Some(middle(&corners));
                    (request.shape, request.metres) = (Some(Shape::Polygon(corners)), 1.0);
                }
                () => return Err(Refusal::SYNTAX),
            }
            next += 1;
        }
        if request.destination.is_some() && (request.with_distance || request.with_hash || request.with_point) {
            let who = if form == Form::SearchAndStore { "GEOSEARCHSTORE" } else { "STORE option in GEORADIUS" };
            return Err(Refusal::new(format!(
                "ERR {who} is not compatible with WITHDIST, WITHHASH and WITHCOORD options"
            )));
        }
        let name = String::from_utf8_lossy(args.at(0));
        if searches && !by_member && !by_point && !is_polygon(&request) {
            return Err(Refusal::new(format!(
                "ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for {name}"
            )));
        }
        if searches && request.shape.is_none() {
            return Err(Refusal::new(format!("ERR exactly one of BYRADIUS and BYBOX can be specified for {name}")));
        }
        if any && request.count.is_none() {
            return Err(Refusal::new("ERR the ANY argument requires COUNT argument"));
        }
        request.takes_any = any;
        // Without an order the nearest are meant.
        if request.count.is_some() && !any {
            request.order = request.order.or(Some(Order::Ascending));
        }
        Ok(request)
    }

    fn find<'s>(&self, set: SortedSet<'s>) -> Vec<Found<'s>> {
        let (Some(centre), Some(shape)) = (self.centre, &self.shape) else { return Vec::new() };
        let enough = self.count.filter(|_| self.takes_any).unwrap_or(usize::MAX);
        let mut found = Vec::new();
        for (low, high) in shape.score_ranges(centre) {
            let ranks = set.between(Cut::BeforeScore(low), Cut::BeforeScore(high));
            for (member, score) in set.range(ranks) {
                if found.len() >= enough {
                    break;
                }
                let point = Point::of_score(score);
                if let Some(distance) = shape.distance(centre, point) {
                    found.push(Found { member, score, point, distance: distance / self.metres });
                }
            }
        }
        let compare = |left: &Found<'_>, right: &Found<'_>| left.distance.total_cmp(&right.distance);
        match self.order {
            Some(Order::Ascending) => found.sort_by(compare),
            Some(Order::Descending) => found.sort_by(|left, right| compare(right, left)),
            None => {}
        }
        found.truncate(self.count.unwrap_or(usize::MAX));
        found
    }

    fn answer(&self, set: Option<SortedSet<'_>>, writer: &mut Writer) {
        let found = set.map_or(Vec::new(), |set| self.find(set));
        writer.array(found.len());
        let parts = 1 + usize::from(self.with_distance) + usize::from(self.with_hash) + usize::from(self.with_point);
        for Found { member, score, point, distance } in found {
            if parts > 1 {
                writer.array(parts);
            }
            writer.bulk(member);
            if self.with_distance {
                writer.bulk(distance_text(distance).as_bytes());
            }
            if self.with_hash {
                writer.integer(score as i64);
            }
            if self.with_point {
                write_point(writer, point);
            }
        }
    }
}

fn search(view: &View<'_>, args: Args<'_>, form: Form, writer: &mut Writer) -> Result<(), Refusal> {
    let set = view.sorted_set(args.at(1))?;
    Request::parse(set, args, form, false)?.answer(set, writer);
    Ok(())
}

fn search_or_store(edit: &mut Edit<'_>, args: Args<'_>, form: Form, writer: &mut Writer) -> Result<(), Refusal> {
    let (source, event) = match form {
        Form::SearchAndStore => (args.at(2), "geosearchstore"),
        _ => (args.at(1), "georadiusstore"),
    };
    let view = edit.reading();
    let set = view.sorted_set(source)?;
    let request = Request::parse(set, args, form, true)?;
    let Some(destination) = request.destination else {
        request.answer(set, writer);
        return Ok(());
    };
    let mut found: Vec<(Vec<u8>, f64)> = set
        .map_or(Vec::new(), |set| request.find(set))
        .into_iter()
        .map(|found| (found.member.to_vec(), if request.stores_distance { found.distance } else { found.score }))
        .collect();
    // The cells around a large shape may meet behind the earth and give a member twice.
    found.sort_by(|left, right| left.0.cmp(&right.0));
    found.dedup_by(|left, right| left.0 == right.0);
    store(edit, destination, &found, event, writer);
    Ok(())
}

fn geosearch(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    search(view, args, Form::Search, writer)
}

fn geosearchstore(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    search_or_store(edit, args, Form::SearchAndStore, writer)
}

fn georadius(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    search_or_store(edit, args, Form::Radius, writer)
}

fn georadius_ro(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    search(view, args, Form::Radius, writer)
}

fn georadiusbymember(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    search_or_store(edit, args, Form::RadiusByMember, writer)
}

fn georadiusbymember_ro(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    search(view, args, Form::RadiusByMember, writer)
}

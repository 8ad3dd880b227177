//! Points on the earth, and the cells of the grid that gives them scores.
//!
//! Longitude and latitude are each halved again and again, and the bits that tell which half a point is in take turns
//! (Morton: "A computer oriented geodetic data base", 1966): 26 of each make a score of 52 bits, which a double holds
//! exactly. Cells with the same leading bits lie side by side, so that the neighbourhood of a point is a few ranges of
//! scores.
//!
//! What is stored must be the same on every replica, whatever machine it runs on: angles are computed by a library that
//! comes with the program and not by the platform's.

const LONGITUDE_MAX: f64 = 180.0;
/// The grid divides the square of the Mercator projection, which does not reach beyond this latitude.
const LATITUDE_MAX: f64 = 85.051_128_78;

/// Halvings of each coordinate in a score.
const STEPS_MAX: u32 = 26;

/// Of the sphere with distances that come closest to those on the WGS 84 ellipsoid.
const EARTH_RADIUS_METRES: f64 = 6_372_797.560_856;

/// Half the equator in the projection.
const MERCATOR_MAX_METRES: f64 = 20_037_726.37;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) longitude: f64,
    pub(super) latitude: f64,
}

fn radians(degrees: f64) -> f64 {
    degrees * (std::f64::consts::PI / 180.0)
}

fn degrees(radians: f64) -> f64 {
    radians / (std::f64::consts::PI / 180.0)
}

impl Point {
    /// `None` for what the grid does not cover.
    pub(super) fn new(longitude: f64, latitude: f64) -> Option<Self> {
        let is_covered =
            (-LONGITUDE_MAX..=LONGITUDE_MAX).contains(&longitude) && (-LATITUDE_MAX..=LATITUDE_MAX).contains(&latitude);
        is_covered.then_some(Self { longitude, latitude })
    }

    /// The score of the cell that the point lies in.
    pub(super) fn score(self) -> f64 {
        Cell::around(self, STEPS_MAX).bits as f64
    }

    /// The middle of the cell of this score. Any score that ZADD gave has one; beyond the grid it is at its edge.
    pub(super) fn of_score(score: f64) -> Self {
        let bounds = Cell { bits: score as i64 as u64, steps: STEPS_MAX }.bounds();
        let middle = |low: f64, high: f64, max: f64| ((low + high) / 2.0).clamp(-max, max);
        Self {
            longitude: middle(bounds.west, bounds.east, LONGITUDE_MAX),
            latitude: middle(bounds.south, bounds.north, LATITUDE_MAX),
        }
    }

    /// Metres along the great circle, by the haversine formula.
    pub(super) fn distance(self, other: Self) -> f64 {
        let half = libm::sin((radians(other.longitude) - radians(self.longitude)) / 2.0);
        if half == 0.0 {
            return self.distance_in_latitude(other);
        }
        let (from, to) = (radians(self.latitude), radians(other.latitude));
        let rise = libm::sin((to - from) / 2.0);
        let chord = rise * rise + libm::cos(from) * libm::cos(to) * half * half;
        2.0 * EARTH_RADIUS_METRES * libm::asin(chord.sqrt())
    }

    fn distance_in_latitude(self, other: Self) -> f64 {
        EARTH_RADIUS_METRES * (radians(other.latitude) - radians(self.latitude)).abs()
    }

    /// The usual text of eleven letters for the point, of which the last tells nothing. It divides latitudes up to the
    /// poles.
    pub(super) fn geohash(self) -> [u8; 11] {
        const LETTERS: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";
        let bits = interleave(
            fixed((self.latitude + 90.0) / 180.0, STEPS_MAX),
            fixed((self.longitude + 180.0) / 360.0, STEPS_MAX),
        );
        let mut text = [LETTERS[0]; 11];
        for (nth, letter) in (1..=10).zip(&mut text) {
            *letter = LETTERS[(bits >> (52 - nth * 5)) as usize & 0x1F];
        }
        text
    }
}

/// What is looked for around a point.
#[derive(Clone, Debug)]
pub(super) enum Shape {
    /// All within a radius, in metres.
    Circle(f64),
    /// All within a width and a height, in metres.
    Box(f64, f64),
    /// All that these corners enclose, the last of which is joined to the first.
    Polygon(Vec<Point>),
}

/// The point in the middle of others: where the sum of their directions from the middle of the earth points to.
pub(super) fn middle(points: &[Point]) -> Point {
    let (mut x, mut y, mut z) = (0.0, 0.0, 0.0);
    for point in points {
        let (longitude, latitude) = (radians(point.longitude), radians(point.latitude));
        x += libm::cos(latitude) * libm::cos(longitude);
        y += libm::cos(latitude) * libm::sin(longitude);
        z += libm::sin(latitude);
    }
    let latitude = libm::atan2(z, (x * x + y * y).sqrt());
    Point { longitude: degrees(libm::atan2(y, x)), latitude: degrees(latitude) }
}

/// True if a point lies within a polygon: if a line from it to the east crosses an odd number of edges (W. Randolph
/// Franklin: "PNPOLY"). Edges are straight in degrees, and none goes around behind the earth.
fn encloses(corners: &[Point], point: Point) -> bool {
    let mut is_inside = false;
    let before = corners.iter().cycle().skip(corners.len() - 1);
    for (from, to) in corners.iter().zip(before) {
        if (from.latitude > point.latitude) != (to.latitude > point.latitude) {
            let share = (to.longitude - from.longitude) * (point.latitude - from.latitude);
            let crossing = share / (to.latitude - from.latitude) + from.longitude;
            is_inside ^= point.longitude < crossing;
        }
    }
    is_inside
}

impl Shape {
    /// The distance of a point that lies inside.
    pub(super) fn distance(&self, centre: Point, point: Point) -> Option<f64> {
        match self {
            Self::Circle(radius) => Some(centre.distance(point)).filter(|distance| distance <= radius),
            Self::Box(width, height) => {
                if point.distance_in_latitude(centre) > height / 2.0 {
                    return None;
                }
                let beside = Point { latitude: point.latitude, ..centre };
                (point.distance(beside) <= width / 2.0).then(|| centre.distance(point))
            }
            Self::Polygon(corners) => encloses(corners, point).then(|| centre.distance(point)),
        }
    }

    /// How far the shape reaches from its centre, in metres.
    fn radius(&self, centre: Point) -> f64 {
        match self {
            Self::Circle(radius) => *radius,
            Self::Box(width, height) => ((width / 2.0) * (width / 2.0) + (height / 2.0) * (height / 2.0)).sqrt(),
            Self::Polygon(_) => {
                let Bounds { west, east, south, north } = self.bounds(centre);
                [(west, north), (east, north), (west, south), (east, south)]
                    .map(|(longitude, latitude)| centre.distance(Point { longitude, latitude }))
                    .into_iter()
                    .fold(0.0, f64::max)
            }
        }
    }

    /// The least rectangle that holds the shape: for a circle or a box, at the parallel at which it is widest.
    fn bounds(&self, centre: Point) -> Bounds {
        let (half_width, half_height) = match self {
            Self::Circle(radius) => (*radius, *radius),
            Self::Box(width, height) => (width / 2.0, height / 2.0),
            Self::Polygon(corners) => return Bounds::of(corners),
        };
        let rise = degrees(half_height / EARTH_RADIUS_METRES);
        let edge = if centre.latitude < 0.0 { centre.latitude - rise } else { centre.latitude + rise };
        let reach = degrees(half_width / EARTH_RADIUS_METRES / libm::cos(radians(edge)));
        Bounds {
            west: centre.longitude - reach,
            east: centre.longitude + reach,
            south: centre.latitude - rise,
            north: centre.latitude + rise,
        }
    }

    /// The ranges of scores, the end excluded, in which everything lies that the shape holds: those of the cell of the
    /// centre and of its neighbours, as far as they are needed.
    ///
    /// The order is Redis's. So is the treatment of shapes so large that their neighbours meet behind the earth: a
    /// range that follows itself is left out, other repetitions are not.
    pub(super) fn score_ranges(&self, centre: Point) -> Vec<(f64, f64)> {
        let wanted = self.bounds(centre);
        let mut steps = steps_for(self.radius(centre), centre.latitude);
        let mut cell = Cell::around(centre, steps);
        let falls_short = cell.neighbour(0, 1).bounds().north < wanted.north
            || cell.neighbour(0, -1).bounds().south > wanted.south
            || cell.neighbour(1, 0).bounds().east < wanted.east
            || cell.neighbour(-1, 0).bounds().west > wanted.west;
        if steps > 1 && falls_short {
            steps -= 1;
            cell = Cell::around(centre, steps);
        }
        let own = cell.bounds();
        let is_needed = |(east, north): (i8, i8)| {
            steps < 2
                || !((north < 0 && own.south < wanted.south)
                    || (north > 0 && own.north > wanted.north)
                    || (east < 0 && own.west < wanted.west)
                    || (east > 0 && own.east > wanted.east))
        };
        let directions = [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1)];
        let mut cells: Vec<Cell> = Vec::new();
        for direction in directions {
            let cell = cell.neighbour(direction.0, direction.1);
            // The first is never compared with.
            let follows_itself = cells.len() > 1 && cells.last() == Some(&cell);
            if is_needed(direction) && !follows_itself {
                cells.push(cell);
            }
        }
        cells.into_iter().map(Cell::scores).collect()
    }
}

/// How fine the grid may be for its cells to be as wide as a radius.
fn steps_for(radius_metres: f64, latitude: f64) -> u32 {
    if radius_metres == 0.0 {
        return STEPS_MAX;
    }
    let (mut reach, mut steps) = (radius_metres, 1i32);
    while reach < MERCATOR_MAX_METRES {
        reach *= 2.0;
        steps += 1;
    }
    steps -= 2;
    // Cells get narrower towards the poles.
    if latitude.abs() > 66.0 {
        steps -= if latitude.abs() > 80.0 { 2 } else { 1 };
    }
    steps.clamp(1, STEPS_MAX as i32) as u32
}

/// Edges in degrees.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    west: f64,
    east: f64,
    south: f64,
    north: f64,
}

impl Bounds {
    /// Those within which all these points lie.
    fn of(points: &[Point]) -> Self {
        let least = |number: fn(&Point) -> f64| points.iter().map(number).fold(f64::INFINITY, f64::min);
        let most = |number: fn(&Point) -> f64| points.iter().map(number).fold(f64::NEG_INFINITY, f64::max);
        Self {
            west: least(|point| point.longitude),
            east: most(|point| point.longitude),
            south: least(|point| point.latitude),
            north: most(|point| point.latitude),
        }
    }
}

/// A cell of the grid that so many halvings make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    /// Bits of the latitude and the longitude in turns, the lowest that of the latitude.
    bits: u64,
    steps: u32,
}

/// A fraction as an integer of so many bits.
fn fixed(fraction: f64, bits: u32) -> u32 {
    (fraction * (1u64 << bits) as f64) as u32
}

fn interleave(low: u32, high: u32) -> u64 {
    let spread = |number: u32| (0..32).fold(0u64, |spread, bit| spread | (u64::from(number) >> bit & 1) << (2 * bit));
    spread(low) | spread(high) << 1
}

fn gather(bits: u64) -> u32 {
    (0..32).fold(0, |gathered, bit| gathered | ((bits >> (2 * bit)) as u32 & 1) << bit)
}

impl Cell {
    fn around(point: Point, steps: u32) -> Self {
        let latitude = (point.latitude + LATITUDE_MAX) / (2.0 * LATITUDE_MAX);
        let longitude = (point.longitude + LONGITUDE_MAX) / (2.0 * LONGITUDE_MAX);
        Self { bits: interleave(fixed(latitude, steps), fixed(longitude, steps)), steps }
    }

    fn bounds(self) -> Bounds {
        let count = (1u64 << self.steps) as f64;
        let edge = |index: u32, offset: f64, max: f64| -max + ((f64::from(index) + offset) / count) * (2.0 * max);
        let (latitude, longitude) = (gather(self.bits), gather(self.bits >> 1));
        Bounds {
            west: edge(longitude, 0.0, LONGITUDE_MAX),
            east: edge(longitude, 1.0, LONGITUDE_MAX),
            south: edge(latitude, 0.0, LATITUDE_MAX),
            north: edge(latitude, 1.0, LATITUDE_MAX),
        }
    }

    /// The cell so many to the east and to the north, around the earth.
    fn neighbour(self, east: i8, north: i8) -> Self {
        let mask = ((1u64 << self.steps) - 1) as u32;
        let moved = |index: u32, by: i8| index.wrapping_add_signed(by.into()) & mask;
        if (east, north) == (0, 0) {
            return self;
        }
        let (latitude, longitude) = (gather(self.bits), gather(self.bits >> 1));
        let latitude = if north == 0 { latitude } else { moved(latitude, north) };
        let longitude = if east == 0 { longitude } else { moved(longitude, east) };
        Self { bits: interleave(latitude, longitude), ..self }
    }

    /// The scores of points in the cell: from the first on, and before the second.
    fn scores(self) -> (f64, f64) {
        let shift = 2 * (STEPS_MAX - self.steps);
        ((self.bits << shift) as f64, ((self.bits + 1) << shift) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_comes_back_from_its_score_to_within_a_metre() {
        let mut prng = stdx::Prng::new(5);
        for _ in 0..10_000 {
            let mut draw = |max: f64| (prng.draw() as f64 / u64::MAX as f64 * 2.0 - 1.0) * max;
            let point = Point::new(draw(LONGITUDE_MAX), draw(LATITUDE_MAX)).unwrap();
            assert!(point.distance(Point::of_score(point.score())) < 1.0, "{point:?}");
        }
    }

    #[test]
    fn whatever_a_shape_holds_lies_in_its_ranges() {
        let mut prng = stdx::Prng::new(6);
        for round in 0..20_000 {
            let mut draw = |max: f64| (prng.draw() as f64 / u64::MAX as f64 * 2.0 - 1.0) * max;
            let centre = Point::new(draw(170.0), draw(75.0)).unwrap();
            let size = 10f64.powi(round % 6);
            let shape = if round % 2 == 0 { Shape::Circle(size) } else { Shape::Box(size, size * 1.5) };
            let spread = size / 111_000.0;
            let other = Point::new(centre.longitude + draw(spread), centre.latitude + draw(spread));
            let Some(other) = other.map(|other| Point::of_score(other.score())) else { continue };
            if shape.distance(centre, other).is_some() {
                let score = other.score();
                let ranges = shape.score_ranges(centre);
                assert!(
                    ranges.iter().any(|&(low, high)| (low..high).contains(&score)),
                    "{shape:?} around {centre:?} misses {other:?}"
                );
            }
        }
    }

    #[test]
    fn whatever_a_polygon_holds_lies_in_its_ranges() {
        let mut prng = stdx::Prng::new(7);
        let mut held = 0;
        for round in 0..20_000 {
            let mut draw = |max: f64| (prng.draw() as f64 / u64::MAX as f64 * 2.0 - 1.0) * max;
            let around = Point::new(draw(170.0), draw(75.0)).unwrap();
            let spread = 10f64.powi(round % 6 - 4);
            let mut near = || Point::new(around.longitude + draw(spread), around.latitude + draw(spread));
            let corners: Vec<Point> = (0..3 + round % 5).filter_map(|_| near()).collect();
            let Some(other) = near().map(|other| Point::of_score(other.score())) else { continue };
            if corners.len() < 3 {
                continue;
            }
            let (centre, shape) = (middle(&corners), Shape::Polygon(corners));
            if shape.distance(centre, other).is_some() {
                held += 1;
                let ranges = shape.score_ranges(centre);
                let is_in = |&(low, high): &(f64, f64)| (low..high).contains(&other.score());
                assert!(ranges.iter().any(is_in), "{shape:?} around {centre:?} misses {other:?}");
            }
        }
        assert!(held > 2_000, "{held}");
    }

    #[test]
    fn what_a_triangle_holds_lies_on_one_side_of_all_its_edges() {
        let mut prng = stdx::Prng::new(8);
        let mut held = 0;
        for _ in 0..20_000 {
            let mut draw = |max: f64| (prng.draw() as f64 / u64::MAX as f64 * 2.0 - 1.0) * max;
            let mut near = || Point::new(draw(80.0), draw(80.0)).unwrap();
            let (corners, point) = ([near(), near(), near()], near());
            let sides = [0, 1, 2].map(|nth| {
                let (from, to) = (corners[nth], corners[(nth + 1) % 3]);
                (to.longitude - from.longitude) * (point.latitude - from.latitude)
                    - (to.latitude - from.latitude) * (point.longitude - from.longitude)
            });
            // Too near to an edge to tell.
            if sides.iter().any(|side| side.abs() < 1e-6) {
                continue;
            }
            let is_inside = sides.iter().all(|&side| side > 0.0) || sides.iter().all(|&side| side < 0.0);
            assert_eq!(encloses(&corners, point), is_inside, "{corners:?} {point:?}");
            held += usize::from(is_inside);
        }
        assert!(held > 1_000, "{held}");
    }

    #[test]
    fn neighbours_go_around_the_earth() {
        let cell = Cell::around(Point::new(179.9, 0.1).unwrap(), 4);
        let back = cell.neighbour(1, 0);
        assert!(back.bounds().west < -179.0);
        assert_eq!(back.neighbour(-1, 0), cell);
    }
}

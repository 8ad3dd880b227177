//! Commands on positions. These are sorted sets with places on the earth as scores.

mod add;
mod cells;
mod position;
mod search;

use command::Refusal;
use resp::Args;

use super::DataCommand;
use super::arguments::is;
use crate::double;

use cells::Point;

pub(super) const COMMANDS: &[&DataCommand] = &[
    &add::GEOADD,
    &position::GEODIST,
    &position::GEOHASH,
    &position::GEOPOS,
    &search::GEORADIUS,
    &search::GEORADIUSBYMEMBER,
    &search::GEORADIUSBYMEMBER_RO,
    &search::GEORADIUS_RO,
    &search::GEOSEARCH,
    &search::GEOSEARCHSTORE,
];

/// The point with the word at `first` as its longitude and the next word as its latitude.
fn point(args: Args<'_>, first: usize) -> Result<Point, Refusal> {
    let number = |at| double::parse(args.at(at)).ok_or(Refusal::NOT_A_FLOAT);
    let (longitude, latitude) = (number(first)?, number(first + 1)?);
    Point::new(longitude, latitude)
        .ok_or_else(|| Refusal::new(format!("ERR invalid longitude,latitude pair {longitude:.6},{latitude:.6}")))
}

/// How many metres a unit is.
fn unit(word: &[u8]) -> Result<f64, Refusal> {
    match () {
        () if is(word, "m") => Ok(1.0),
        () if is(word, "km") => Ok(1000.0),
        () if is(word, "ft") => Ok(0.3048),
        () if is(word, "mi") => Ok(1609.34),
        () => Err(Refusal::new("ERR unsupported unit provided. please use M, KM, FT, MI")),
    }
}

/// A distance with four digits behind the point.
fn distance_text(distance: f64) -> String {
    let scaled = (distance * 10_000.0).round_ties_even() as i64;
    format!("{}{}.{:04}", if scaled < 0 { "-" } else { "" }, scaled.abs() / 10_000, scaled.abs() % 10_000)
}

/// A coordinate with up to seventeen digits behind the point.
fn coordinate_text(degrees: f64) -> String {
    let text = format!("{degrees:.17}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".into() } else { text.into() }
}

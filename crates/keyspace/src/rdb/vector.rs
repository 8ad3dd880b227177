//! Vector sets as Redis's type writes them; see [`super::module`] for what is around them. Numbers are unsigned items.
//!
//! ```text
//! dimensions, elements, quantization in bits 0 to 7 and links (M) in bits 8 to 23, flags: 1 projection, 2 attributes
//! with a projection: dimensions of given vectors; weights string, of each kept dimension those of all given ones, f32
//! each element: name string; with attributes: attributes string, empty if it has none; direction string; numbers that
//!               follow; these: id; level in bits 0 to 7, version in bits 24 to 31; for each layer from the lowest:
//!               links, room for links, ids of neighbours, and in version 1 the farthest neighbour: its place in bits
//!               0 to 31, its distance in bits 32 to 63; at the end length in bits 0 to 31, range in bits 32 to 63
//! ```
//!
//! Elements come in the order of slots, so that the set that is read is the one that was written. Searches begin at the
//! first element on the highest layer, here and there.

use std::collections::BTreeMap;

use super::module::{END, UNSIGNED, id_of, read_number, read_string_item, write_number, write_string_item};
use super::{Compression, Malformed, Reader, write_length};
use crate::collection::Space;
use crate::collection::vectors::fresh;
use crate::value::CollectionValue;
use crate::vector::codec::{Element, Maker};
use crate::vector::measure::{self, DIMENSIONS_MAX, Encoded, Quantization};
use crate::vector::{LEVEL_MAX, LINKS_DEFAULT, Shape, VectorSet};

/// What Redis calls the type, and the only version that there is.
pub(super) const NAME: &str = "vectorset";
pub(super) const VERSION: u64 = 0;

const HAS_PROJECTION: u64 = 1;
const HAS_ATTRIBUTES: u64 = 2;

/// The version of an element's numbers.
const NUMBERS_VERSION: u64 = 1;

pub(super) fn write(out: &mut Vec<u8>, space: Space<'_>, compression: Compression) {
    let set = space.set();
    let shape = set.shape();
    write_length(out, id_of(NAME, VERSION));
    let has_attributes = set.attribute_count() > 0;
    let flags =
        if shape.given_dimensions > 0 { HAS_PROJECTION } else { 0 } | if has_attributes { HAS_ATTRIBUTES } else { 0 };
    let config = shape.quantization as u64 | u64::from(shape.links) << 8;
    for number in [shape.dimensions.into(), set.len() as u64, config, flags] {
        write_number(out, UNSIGNED, number);
    }
    if shape.given_dimensions > 0 {
        write_number(out, UNSIGNED, shape.given_dimensions.into());
        write_string_item(out, &weights(&shape), compression);
    }
    for slot in 0..set.len() as u32 {
        let body = set.body(slot);
        write_string_item(out, body.name(), compression);
        if has_attributes {
            write_string_item(out, body.attributes().unwrap_or_default(), compression);
        }
        write_string_item(out, body.direction().bytes, compression);
        let numbers = numbers_of(set, slot);
        write_number(out, UNSIGNED, numbers.len() as u64);
        numbers.into_iter().for_each(|number| write_number(out, UNSIGNED, number));
    }
    write_length(out, END);
}

fn weights(shape: &Shape) -> Vec<u8> {
    let scale = measure::scale_of(shape.given_dimensions as usize);
    let row = |row| (0..shape.given_dimensions as usize).map(move |column| measure::weight(row, column, scale));
    (0..shape.dimensions as usize).flat_map(row).flat_map(f32::to_le_bytes).collect()
}

fn numbers_of(set: &VectorSet, slot: u32) -> Vec<u64> {
    let body = set.body(slot);
    let level = set.level_of(slot);
    let mut numbers = vec![body.id(), level as u64 | NUMBERS_VERSION << 24];
    for layer in 0..=level {
        let links = set.links(slot, layer);
        let room = links.len().max(set.shape().capacity(layer));
        numbers.extend([links.len() as u64, room as u64]);
        numbers.extend(links.iter().map(|&link| set.body(link).id()));
        let distances = links.iter().map(|&link| set.distance_between(slot, link));
        let farthest = distances.enumerate().max_by(|(_, left), (_, right)| left.total_cmp(right));
        let (place, distance) = farthest.unwrap_or((0, 0.0));
        numbers.push(u64::from(distance.to_bits()) << 32 | place as u64);
    }
    numbers.push(u64::from(body.direction().range.to_bits()) << 32 | u64::from(body.length().to_bits()));
    numbers
}

/// An element with ids as its links.
struct Read<'a> {
    name: std::borrow::Cow<'a, [u8]>,
    attributes: std::borrow::Cow<'a, [u8]>,
    id: u64,
    encoded: Encoded,
    layers: Vec<Vec<u64>>,
}

/// Reads what stands between the id of the type and the end. Elements are read first and joined then, since links are
/// ids of elements that may follow.
pub(super) fn read(reader: &mut Reader<'_>) -> Result<CollectionValue, Malformed> {
    let mut next = || read_number(reader, UNSIGNED);
    let (dimensions, count, config, flags) = (next()?, next()?, next()?, next()?);
    let quantization = Quantization::of(config & 0xFF).ok_or(Malformed::Value)?;
    let dimensions = dimension(dimensions)?;
    let links = Some((config >> 8 & 0xFFFF) as u32).filter(|&links| links > 0).unwrap_or(LINKS_DEFAULT);
    let mut shape = Shape { quantization, dimensions, given_dimensions: 0, links };
    if flags & HAS_PROJECTION != 0 {
        shape.given_dimensions = dimension(read_number(reader, UNSIGNED)?)?;
        let read = read_string_item(reader)?;
        let expected_len = 4 * shape.dimensions as usize * shape.given_dimensions as usize;
        // Weights of another kind are not known here.
        if shape.dimensions > shape.given_dimensions || read.len() != expected_len || *read != weights(&shape) {
            return Err(Malformed::Value);
        }
    }
    let mut maker = Maker::new(shape, count).ok_or(Malformed::Value)?;
    let mut elements = Vec::new();
    for _ in 0..count {
        elements.push(read_element(reader, &shape, flags & HAS_ATTRIBUTES != 0)?);
    }
    let mut slots = BTreeMap::new();
    for (slot, element) in elements.iter().enumerate() {
        if slots.insert(element.id, slot as u32).is_some() {
            return Err(Malformed::Value);
        }
    }
    for element in elements {
        let slots_of = |ids: &Vec<u64>| ids.iter().map(|id| slots.get(id).copied()).collect::<Option<Vec<u32>>>();
        let layers = element.layers.iter().map(slots_of).collect::<Option<_>>().ok_or(Malformed::Value)?;
        let Read { name, attributes, id, encoded, .. } = element;
        let whole = Element { id, encoded, name: &name, attributes: &attributes, layers };
        maker.push(whole).ok_or(Malformed::Value)?;
    }
    maker.finish(None).map(fresh).ok_or(Malformed::Value)
}

fn dimension(number: u64) -> Result<u32, Malformed> {
    if (1..=DIMENSIONS_MAX as u64).contains(&number) { Ok(number as u32) } else { Err(Malformed::Value) }
}

/// Most room for links on a layer: more than Redis gives (three times M), and what is made here at most.
fn room_max(shape: &Shape) -> u64 {
    4 * u64::from(shape.links)
}

fn read_element<'a>(reader: &mut Reader<'a>, shape: &Shape, has_attributes: bool) -> Result<Read<'a>, Malformed> {
    let name = read_string_item(reader)?;
    let attributes = if has_attributes { read_string_item(reader)? } else { Default::default() };
    let direction = read_string_item(reader)?;
    if direction.len() != shape.direction_bytes() {
        return Err(Malformed::Value);
    }
    let direction = direction.into_owned();
    let count = read_number(reader, UNSIGNED)?;
    let mut taken = 0;
    let mut next = || {
        taken += 1;
        if taken > count { Err(Malformed::Value) } else { read_number(reader, UNSIGNED) }
    };
    let (id, form) = (next()?, next()?);
    let (level, version) = ((form & 0xFF) as usize, form >> 24 & 0xFF);
    if !(1..=i64::MAX.cast_unsigned()).contains(&id) || level > LEVEL_MAX || version > NUMBERS_VERSION {
        return Err(Malformed::Value);
    }
    let mut layers = Vec::with_capacity(level + 1);
    for _ in 0..=level {
        let (links, room) = (next()?, next()?);
        if links > room || room > room_max(shape) {
            return Err(Malformed::Value);
        }
        layers.push((0..links).map(|_| next()).collect::<Result<_, _>>()?);
        if version > 0 {
            next()?;
        }
    }
    let last = next()?;
    if taken != count {
        return Err(Malformed::Value);
    }
    let encoded =
        Encoded { direction, range: f32::from_bits((last >> 32) as u32), length: f32::from_bits(last as u32) };
    Ok(Read { name, attributes, id, encoded, layers })
}

#[cfg(test)]
mod tests {
    use super::super::{FOOTER_BYTES, dump, restore};
    use super::*;
    use crate::testing::Harness;
    use crate::value::{Value, ValueRef};
    use crate::{Limits, Moment};

    /// What DUMP of Redis 8.2.3 answered, in hexadecimal, for a set of each quantization and one with a projection:
    ///
    /// ```text
    /// VADD k VALUES 2 3 4 a NOQUANT, VADD k VALUES 2 1 0 b NOQUANT SETATTR {"y":1}
    /// VADD k VALUES 3 1 2 3 a, VADD k VALUES 3 -1 0.5 3 bb, VADD k VALUES 3 5 1 1 c
    /// VADD k VALUES 3 1 -2 3 a BIN, VADD k VALUES 3 -1 -2 3 b BIN
    /// VADD k REDUCE 2 VALUES 3 1 2 3 a NOQUANT M 8
    /// ```
    const GOLDEN: [&str; 4] = [
        "0781bde72da2bb1eb40002020202025000020205016205077b2279223a317d05080000803f000000000207020202800100000002010220020102813ecccccc0000000002803f800000050161050005089a99193fcdcc4c3f0207020102800100000002010220020202813ecccccc0000000002813f55555540a00000000c00fc0be7099adff708",
        "0781bde72da2bb1eb40002030203025001020005016305037f191902080203028001000000020202200201020202813f8bb13e0000000102813f76560c40a646e1050262620503d6157f02080202028001000000020202200201020302813f8bb13e0000000102813f6fe205404ce66505016105032a557f02080201028001000000020202200202020302813efb8fd80000000102813f4d41b2406f7751000c003cadb46dc385fe88",
        "0781bde72da2bb1eb40002030202025002020005016205080400000000000000020a020202800100000102010220020102813f2aaaab000000000200021002000280406f7751050161050805000000000000000207020102800100000002010220020202813f2aaaab0000000002813f76560c406f7751000c00c4c533c74ad75b25",
        "0781bde72da2bb1eb400020202010248000201020305c30f18043acd133f3ae0050300bf200f003f0501610508e8dc723f9be8a13e0206020102800100000002000210020002804069b1e9000c00788273354961a415",
    ];

    fn bytes_of(digits: &str) -> Vec<u8> {
        let digit = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("two digits");
        (0..digits.len()).step_by(2).map(digit).collect()
    }

    fn read_set(bytes: &[u8]) -> Option<Value> {
        restore(bytes, &Limits::default()).ok()
    }

    fn set_of(value: &Value) -> &VectorSet {
        match value.as_ref() {
            ValueRef::Vectors(space) => space.set(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn dumps_of_redis_are_read_and_written_as_they_were() {
        for golden in GOLDEN {
            let bytes = bytes_of(golden);
            let value = read_set(&bytes).expect("a vector set");
            let set = set_of(&value);
            assert!(set.find(b"a").is_some() && set.len() == set.last_id() as usize, "{golden}");
            // But for the version and the checksum.
            let (again, end) = (dump(value.as_ref()), bytes.len() - FOOTER_BYTES);
            assert_eq!(again[..end], bytes[..end], "{golden}");
            for end in 0..bytes.len() {
                assert!(read_set(&bytes[..end]).is_none());
            }
        }
        // What Redis keeps is what is kept here.
        let kept = |golden: &str, name: &[u8]| {
            let value = read_set(&bytes_of(golden)).expect("a vector set");
            let set = set_of(&value);
            // What Redis says of the range counts for bytes alone.
            let encoded = set.body(set.find(name).expect("an element")).encoded();
            Encoded { range: if golden == GOLDEN[1] { encoded.range } else { 0.0 }, ..encoded }
        };
        let vector = [-1.0, 0.5, 3.0];
        assert_eq!(kept(GOLDEN[1], b"bb"), measure::encode(&vector, Quantization::Byte));
        assert_eq!(kept(GOLDEN[2], b"b"), measure::encode(&[-1.0, -2.0, 3.0], Quantization::Bit));
        assert_eq!(kept(GOLDEN[0], b"a"), measure::encode(&[3.0, 4.0], Quantization::Float));
        let projected = measure::encode(&measure::project(&[1.0, 2.0, 3.0], 2), Quantization::Float);
        let theirs = kept(GOLDEN[3], b"a");
        // Redis sums in another order: the last bit may differ.
        let floats = |encoded: &Encoded| -> Vec<f32> {
            let of_direction = encoded.direction.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
            of_direction.chain([encoded.length]).collect()
        };
        for (ours, theirs) in floats(&projected).iter().zip(floats(&theirs)) {
            assert!((ours - theirs).abs() <= 2e-7 * theirs.abs(), "{ours} {theirs}");
        }
    }

    #[test]
    fn sets_come_back_from_their_dumps() {
        let mut harness = Harness::new();
        for (key, form) in [("float", "NOQUANT"), ("byte", "Q8"), ("bit", "BIN M 5")] {
            for element in 0..400 {
                let attributes = if element % 7 == 0 { " SETATTR {}" } else { "" };
                harness.run(&format!("VADD {key} VALUES 3 1 {element} {} e{element} {form}{attributes}", element % 23));
                if element % 3 == 0 {
                    harness.run(&format!("VREM {key} e{}", element / 2));
                }
            }
            let view = harness.keyspace.view(0, Moment::at(harness.now, 0));
            let kept = view.entry(key.as_bytes()).expect("it is there").value();
            let value = read_set(&dump(kept)).expect("a vector set");
            assert_eq!(value.as_ref(), kept, "{key}");
        }
    }

    #[test]
    fn what_redis_refuses_is_refused() {
        let bytes = bytes_of(GOLDEN[0]);
        let value = bytes.len() - FOOTER_BYTES;
        let with = |at: usize, byte: u8| {
            let mut changed = bytes[..value].to_vec();
            changed[at] = byte;
            let mut reader = Reader::new(&changed[1..]);
            super::super::module::read(&mut reader).is_ok()
        };
        assert!(with(0, 7));
        // Whatever a byte is changed to, reading it does not fail.
        (0..value).for_each(|at| [0, 1, 0x7F, 0x80, 0xFF].into_iter().for_each(|byte| _ = with(at, byte)));
        // The id of the first element is that of the second; an element leads to nobody, or to itself.
        let place = bytes.windows(4).position(|window| window == [2, 2, 2, 0x80]).expect("the first element's id");
        assert!(!with(place + 1, 1) && !with(place + 1, 0));
        let link = bytes.windows(5).position(|window| window == [2, 0x20, 2, 1, 2]).expect("the first element's link");
        assert!(!with(link + 3, 2) && !with(link + 3, 9));
    }
}

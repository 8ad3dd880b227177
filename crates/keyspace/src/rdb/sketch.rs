//! Sketches as RedisBloom's types write them; see [`super::module`] for what is around them. Numbers are unsigned items
//! unless something else is said.
//!
//! ```text
//! MBbloom--  items, layers, options (version 2), growth (version 4); each layer: capacity, error f64, hashes, bits of
//!            an item f64, bits (version 1), logarithm (version 1), cells string, items
//! MBbloomCF  layers, buckets, items, in version 4: removed, cells of a bucket, tries, growth; each layer: in version 4
//!            its buckets; cells string
//! CMSk-TYPE  width, depth, sum, counters string
//! TopK-TYPE  k, width, depth, decay f64, counters string, places string: each print u32, length u32, 8 bytes of no
//!            meaning, count u32, 4 unused; then k items, each a string with a zero byte behind it
//! TDIS-TYPE  compression f64, minimum f64, maximum f64, capacity, merged, unmerged, compressions, merged weight f64,
//!            unmerged weight f64, means f64, weights f64
//! ```

use super::module::{END, read_double, read_number, read_string_item, write_double, write_number, write_string_item};
use super::module::{UNSIGNED, read_signed};
use super::{Compression, Malformed, Reader, write_length};
use crate::collection::Outline;
use crate::collection::sketch::fresh;
use crate::sketch::bloom::{self, Bloom};
use crate::sketch::count_min::CountMin;
use crate::sketch::cuckoo::{self, Cuckoo};
use crate::sketch::digest::{Digest, Node};
use crate::sketch::top_k::TopK;
use crate::sketch::{Sketch, Species};
use crate::value::CollectionValue;

/// Cells of a bucket, tries and growth of a cuckoo filter that does not tell them.
const CUCKOO_DEFAULTS: [u16; 3] = [2, 20, 1];

/// Bytes of a place in a top-k list's heap.
const PLACE_BYTES: usize = 24;

const SPECIES: [Species; 5] = [Species::Bloom, Species::Cuckoo, Species::CountMin, Species::TopK, Species::Digest];

/// The type of sketch that a module's type of this name and version is.
pub(super) fn species_of(name: &str, version: u64) -> Option<Species> {
    let species = SPECIES.into_iter().find(|species| species.name() == name)?;
    (version <= version_of(species)).then_some(species)
}

/// The version that is written, which is the last one that there is.
pub(super) fn version_of(species: Species) -> u64 {
    match species {
        Species::Bloom | Species::Cuckoo => 4,
        Species::CountMin | Species::TopK | Species::Digest => 0,
    }
}

pub(super) fn write(out: &mut Vec<u8>, outline: Outline<'_>, compression: Compression) {
    let sketch = outline.sketch();
    let species = sketch.species();
    write_length(out, super::module::id_of(species.name(), version_of(species)));
    match &*sketch {
        Sketch::Bloom(filter) => write_bloom(out, filter, compression),
        Sketch::Cuckoo(filter) => write_cuckoo(out, filter, compression),
        Sketch::CountMin(sketch) => {
            [sketch.width, sketch.depth, sketch.sum].into_iter().for_each(|number| write_number(out, UNSIGNED, number));
            write_string_item(out, &sketch.cells.read(0, sketch.cells.len()), compression);
        }
        Sketch::TopK(list) => write_top_k(out, list, compression),
        Sketch::Digest(digest) => write_digest(out, &digest.compressed()),
    }
    write_length(out, END);
}

fn write_bloom(out: &mut Vec<u8>, filter: &Bloom, compression: Compression) {
    for number in [filter.size, filter.layers.len() as u64, filter.options.into(), filter.growth.into()] {
        write_number(out, UNSIGNED, number);
    }
    for layer in &filter.layers {
        write_number(out, UNSIGNED, layer.capacity);
        write_double(out, layer.error);
        write_number(out, UNSIGNED, layer.hashes.into());
        write_double(out, layer.bits_per_item);
        write_number(out, UNSIGNED, layer.bits);
        write_number(out, UNSIGNED, layer.log_bits.into());
        write_string_item(out, &layer.cells.read(0, layer.cells.len()), compression);
        write_number(out, UNSIGNED, layer.size);
    }
}

fn write_cuckoo(out: &mut Vec<u8>, filter: &Cuckoo, compression: Compression) {
    let numbers = [
        filter.layers.len() as u64,
        filter.buckets,
        filter.size,
        filter.removed,
        filter.bucket_len.into(),
        filter.tries.into(),
        filter.growth.into(),
    ];
    numbers.into_iter().for_each(|number| write_number(out, UNSIGNED, number));
    for layer in &filter.layers {
        write_number(out, UNSIGNED, layer.buckets);
        write_string_item(out, &layer.cells.read(0, layer.cells.len()), compression);
    }
}

fn write_top_k(out: &mut Vec<u8>, list: &TopK, compression: Compression) {
    [list.k, list.width, list.depth].into_iter().for_each(|number| write_number(out, UNSIGNED, number.into()));
    write_double(out, list.decay);
    write_string_item(out, &list.cells.read(0, list.cells.len()), compression);
    let mut places = Vec::with_capacity(list.heap().len() * PLACE_BYTES);
    for place in list.heap() {
        let item_len = place.item.as_ref().map_or(0, |item| item.len());
        places.extend_from_slice(&place.print.to_le_bytes());
        places.extend_from_slice(&(item_len as u32).to_le_bytes());
        places.extend_from_slice(&[0; 8]);
        places.extend_from_slice(&u64::from(place.count).to_le_bytes());
    }
    write_string_item(out, &places, compression);
    for place in list.heap() {
        let mut item = place.item.as_deref().unwrap_or_default().to_vec();
        item.push(0);
        write_string_item(out, &item, compression);
    }
}

fn write_digest(out: &mut Vec<u8>, digest: &Digest) {
    [digest.compression, digest.min, digest.max].into_iter().for_each(|number| write_double(out, number));
    let numbers = [digest.capacity() as u64, digest.nodes().len() as u64, 0, digest.compressions];
    numbers.into_iter().for_each(|number| write_number(out, UNSIGNED, number));
    write_double(out, digest.merged_weight as f64);
    write_double(out, 0.0);
    digest.nodes().iter().for_each(|node| write_double(out, node.mean));
    digest.nodes().iter().for_each(|node| write_double(out, node.weight as f64));
}

/// Reads what stands between the id of a module's type and the end.
pub(super) fn read(species: Species, version: u64, reader: &mut Reader<'_>) -> Result<CollectionValue, Malformed> {
    let sketch = match species {
        Species::Bloom => Sketch::Bloom(read_bloom(version, reader)?),
        Species::Cuckoo => Sketch::Cuckoo(read_cuckoo(version, reader)?),
        Species::CountMin => Sketch::CountMin(read_count_min(reader)?),
        Species::TopK => Sketch::TopK(read_top_k(reader)?),
        Species::Digest => Sketch::Digest(read_digest(reader)?),
    };
    Ok(fresh(sketch))
}

/// A number of fewer bits.
fn read_small<T: TryFrom<u64>>(reader: &mut Reader<'_>) -> Result<T, Malformed> {
    read_number(reader, UNSIGNED)?.try_into().map_err(|_| Malformed::Value)
}

fn read_bloom(version: u64, reader: &mut Reader<'_>) -> Result<Bloom, Malformed> {
    let size = read_number(reader, UNSIGNED)?;
    let count = read_number(reader, UNSIGNED)?;
    let options = if version >= 2 { read_small(reader)? } else { 0 };
    let growth = if version >= 4 { read_small(reader)? } else { 2 };
    let mut layers = Vec::new();
    for _ in 0..count {
        let (capacity, error) = (read_number(reader, UNSIGNED)?, read_double(reader)?);
        let (hashes, bits_per_item) = (read_small(reader)?, read_double(reader)?);
        let (bits, log_bits) = match version {
            0 => ((capacity as f64 * bits_per_item) as u64, 0),
            _ => (read_number(reader, UNSIGNED)?, read_small(reader)?),
        };
        let bytes = read_string_item(reader)?;
        let mut cells = Bloom::cells_of(bytes.len() as u64).ok_or(Malformed::Value)?;
        cells.write(0, &bytes);
        let size = read_number(reader, UNSIGNED)?;
        layers.push(bloom::Layer { capacity, error, hashes, bits_per_item, bits, log_bits, size, cells });
    }
    Bloom { size, options, growth, layers }.checked().ok_or(Malformed::Value)
}

fn read_cuckoo(version: u64, reader: &mut Reader<'_>) -> Result<Cuckoo, Malformed> {
    let count = read_number(reader, UNSIGNED)?;
    let (buckets, size) = (read_number(reader, UNSIGNED)?, read_number(reader, UNSIGNED)?);
    let is_new = version >= 4;
    let removed = if is_new { read_number(reader, UNSIGNED)? } else { 0 };
    let [bucket_len, tries, growth] = match is_new {
        true => [read_small(reader)?, read_small(reader)?, read_small(reader)?],
        false => CUCKOO_DEFAULTS,
    };
    let mut layers = Vec::new();
    for _ in 0..count {
        let buckets = if is_new { read_number(reader, UNSIGNED)? } else { buckets };
        let bytes = read_string_item(reader)?;
        let mut layer: cuckoo::Layer = Cuckoo::layer_of(buckets, bucket_len).ok_or(Malformed::Value)?;
        if layer.cells.len() != bytes.len() {
            return Err(Malformed::Value);
        }
        layer.cells.write(0, &bytes);
        layers.push(layer);
    }
    Cuckoo { buckets, size, removed, bucket_len, tries, growth, layers }.checked().ok_or(Malformed::Value)
}

fn read_count_min(reader: &mut Reader<'_>) -> Result<CountMin, Malformed> {
    let (width, depth) = (read_number(reader, UNSIGNED)?, read_number(reader, UNSIGNED)?);
    let mut sketch = CountMin::new(width, depth).ok_or(Malformed::Value)?;
    sketch.sum = read_number(reader, UNSIGNED)?;
    let bytes = read_string_item(reader)?;
    if sketch.cells.len() != bytes.len() {
        return Err(Malformed::Value);
    }
    sketch.cells.write(0, &bytes);
    Ok(sketch)
}

fn read_top_k(reader: &mut Reader<'_>) -> Result<TopK, Malformed> {
    let (k, width, depth) = (read_small(reader)?, read_small(reader)?, read_small(reader)?);
    let mut list = TopK::new(k, width, depth, read_double(reader)?).ok_or(Malformed::Value)?;
    let counters = read_string_item(reader)?;
    let places = read_string_item(reader)?;
    if counters.len() != list.cells.len() || places.len() != k as usize * PLACE_BYTES {
        return Err(Malformed::Value);
    }
    list.cells.write(0, &counters);
    for (nth, place) in places.chunks_exact(PLACE_BYTES).enumerate() {
        let item = read_string_item(reader)?;
        let number = |at: usize| u32::from_le_bytes([place[at], place[at + 1], place[at + 2], place[at + 3]]);
        match item.split_last() {
            Some((0, [])) => {}
            Some((0, item)) => _ = list.set_place(nth, number(0), number(16), item),
            _ => return Err(Malformed::Value),
        }
    }
    Ok(list)
}

fn read_digest(reader: &mut Reader<'_>) -> Result<Digest, Malformed> {
    let compression = read_double(reader)?;
    let empty = Digest::new(compression as u64).filter(|empty| empty.compression == compression);
    let empty = empty.ok_or(Malformed::Value)?;
    let (min, max) = (read_double(reader)?, read_double(reader)?);
    read_signed(reader)?;
    let merged = read_signed(reader)? as u64;
    // What had not been merged is merged before it is written.
    if merged > empty.capacity() as u64 || read_signed(reader)? != 0 {
        return Err(Malformed::Value);
    }
    let compressions = read_signed(reader)? as u64;
    let merged_weight = read_double(reader)? as i64;
    read_double(reader)?;
    let means = (0..merged).map(|_| read_double(reader)).collect::<Result<Vec<_>, _>>()?;
    let mut nodes = Vec::with_capacity(means.len());
    for mean in means {
        nodes.push(Node { mean, weight: read_double(reader)? as i64 });
    }
    let merged = nodes.len();
    let digest = Digest { min, max, merged, compressions, merged_weight, unmerged_weight: 0, ..empty };
    digest.of_parts(nodes).ok_or(Malformed::Value)
}

#[cfg(test)]
mod tests {
    use stdx::Prng;

    use super::super::module::id_of;
    use super::super::{dump, kind, read_object, restore};
    use super::*;
    use crate::Limits;
    use crate::testing::Harness;
    use crate::value::{Value, ValueRef};

    /// A value of a module: its kind, its id, and items.
    fn value(species: Species, version: u64, items: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = vec![kind::MODULE_2];
        write_length(&mut out, id_of(species.name(), version));
        items(&mut out);
        write_length(&mut out, END);
        out
    }

    fn read_back(bytes: &[u8]) -> Option<Sketch> {
        let mut reader = Reader::new(bytes);
        let value = read_object(&mut reader, &Limits::default()).ok().filter(|_| reader.is_empty())?;
        match value.as_ref() {
            ValueRef::Sketch(outline) => Some(outline.sketch().into_owned()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn bloom_filters_of_every_version_are_read() {
        // Two layers of 64 bits in which everything is found that has the right hashes.
        let write = |version: u64, out: &mut Vec<u8>| {
            [2, 2].into_iter().for_each(|number| write_number(out, UNSIGNED, number));
            if version >= 2 {
                write_number(out, UNSIGNED, u64::from(bloom::FORCE_64));
            }
            if version >= 4 {
                write_number(out, UNSIGNED, 3);
            }
            for _ in 0..2 {
                write_number(out, UNSIGNED, 6);
                write_double(out, 0.01);
                write_number(out, UNSIGNED, 7);
                write_double(out, 9.585_058);
                if version >= 1 {
                    write_number(out, UNSIGNED, 64);
                    write_number(out, UNSIGNED, 6);
                }
                write_string_item(out, &[0xFF; 8], Compression::None);
                write_number(out, UNSIGNED, 1);
            }
        };
        for version in 0..=4 {
            let bytes = value(Species::Bloom, version, |out| write(version, out));
            let Some(Sketch::Bloom(filter)) = read_back(&bytes) else { panic!("version {version}") };
            assert_eq!((filter.layers.len(), filter.size), (2, 2));
            assert_eq!(filter.growth, if version >= 4 { 3 } else { 2 });
            assert!(filter.contains(b"x"));
            for end in 0..bytes.len() {
                assert!(read_back(&bytes[..end]).is_none());
            }
        }
        assert!(read_back(&value(Species::Bloom, 5, |out| write(4, out))).is_none());
    }

    #[test]
    fn cuckoo_filters_of_old_versions_are_read() {
        let bytes = value(Species::Cuckoo, 3, |out| {
            [1, 2, 4].into_iter().for_each(|number| write_number(out, UNSIGNED, number));
            write_string_item(out, &[7; 4], Compression::None);
        });
        let Some(Sketch::Cuckoo(filter)) = read_back(&bytes) else { panic!("a filter") };
        assert_eq!((filter.buckets, filter.bucket_len, filter.tries, filter.growth), (2, 2, 20, 1));
    }

    /// A keyspace with sketches of every type, small and large.
    fn sketches() -> (Harness, Vec<String>) {
        let mut harness = Harness::new();
        let mut names = Vec::new();
        for (size, count) in [(10, 20), (5_000, 4_000)] {
            harness.run(&format!("BF.RESERVE bloom{size} 0.01 {size}"));
            harness.run(&format!("CF.RESERVE cuckoo{size} {size}"));
            harness.run(&format!("CMS.INITBYDIM counts{size} {size} 3"));
            harness.run(&format!("TOPK.RESERVE top{size} 5 {size} 3 0.9"));
            harness.run(&format!("TDIGEST.CREATE digest{size} COMPRESSION 100"));
            for number in 0..count {
                harness.run(&format!("BF.ADD bloom{size} item{number}"));
                harness.run(&format!("CF.ADD cuckoo{size} item{number}"));
                harness.run(&format!("CMS.INCRBY counts{size} item{number} {number}"));
                harness.run(&format!("TOPK.ADD top{size} item{}", number % 50));
                harness.run(&format!("TDIGEST.ADD digest{size} {number}.5"));
            }
            names.extend(["bloom", "cuckoo", "counts", "top", "digest"].map(|name| format!("{name}{size}")));
        }
        (harness, names)
    }

    #[test]
    fn sketches_come_back_from_their_dumps() {
        let (harness, names) = sketches();
        let view = harness.keyspace.view(0, crate::Moment::at(harness.now, 0));
        for name in names {
            let kept = view.entry(name.as_bytes()).expect("it is there").value();
            let dumped = dump(kept);
            let Ok(Value::Collection(restored)) = restore(&dumped, &Limits::default()) else { panic!("{name}") };
            let restored = Value::Collection(restored);
            // A digest is merged when it is written.
            assert_eq!(dump(restored.as_ref()), dumped, "{name}");
            assert_eq!(restored.as_ref() == kept, !name.starts_with("digest"), "{name}");
        }
    }

    #[test]
    fn what_is_spoilt_is_refused_or_is_another_sketch() {
        let (harness, names) = sketches();
        let view = harness.keyspace.view(0, crate::Moment::at(harness.now, 0));
        let mut prng = Prng::new(1);
        for name in names {
            let mut bytes = Vec::new();
            super::super::write_object(
                &mut bytes,
                view.entry(name.as_bytes()).expect("it is there").value(),
                Compression::None,
            );
            for _ in 0..300 {
                let mut spoilt = bytes.clone();
                let at = 10 + prng.below(bytes.len().min(200) as u64 - 10) as usize;
                spoilt[at] = prng.draw() as u8;
                if let Some(Sketch::Bloom(mut filter)) = read_back(&spoilt) {
                    let _ = filter.add(b"x");
                }
            }
        }
    }
}

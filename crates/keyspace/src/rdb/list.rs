//! Lists: as listpacks of some kilobytes one after the other, which Redis calls a quicklist.

use std::borrow::Cow;

use super::{Compression, Malformed, Reader, kind, listpack, read_text, write_length, write_string, ziplist};
use crate::collection::list::{self, List};
use crate::value::CollectionValue;

/// Most bytes of a listpack, but for one that has a single item.
const LISTPACK_BYTES_MAX: usize = 8192;

/// What Redis reckons with for what surrounds an item.
const FRAME_BYTES: usize = 8;

/// How a node of a quicklist holds its items.
mod container {
    /// One item as it is.
    pub const PLAIN: u64 = 1;
    pub const PACKED: u64 = 2;
}

pub(super) fn write(out: &mut Vec<u8>, list: List<'_>, compression: Compression) {
    let mut listpacks = Vec::new();
    let mut builder = listpack::Builder::new();
    let mut is_fresh = true;
    for item in list.iter() {
        if !is_fresh && builder.len() + item.len() + FRAME_BYTES > LISTPACK_BYTES_MAX {
            listpacks.push(std::mem::replace(&mut builder, listpack::Builder::new()).finish());
        }
        builder.push(item);
        is_fresh = false;
    }
    listpacks.push(builder.finish());
    write_length(out, listpacks.len() as u64);
    for listpack in listpacks {
        write_length(out, container::PACKED);
        write_string(out, &listpack, compression);
    }
}

/// Writes a list as so many strings.
pub(super) fn write_plain(out: &mut Vec<u8>, list: List<'_>, compression: Compression) {
    write_length(out, list.len() as u64);
    for item in list.iter() {
        write_string(out, item, compression);
    }
}

pub(super) fn read(kind: u8, reader: &mut Reader<'_>) -> Result<CollectionValue, Malformed> {
    // A ziplist alone is a list of one node.
    let count = if kind == kind::LIST_ZIPLIST { 1 } else { reader.length()? };
    let mut items: Vec<Cow<'_, [u8]>> = Vec::new();
    for _ in 0..count {
        if kind == kind::LIST {
            items.push(read_text(reader)?);
            continue;
        }
        if kind != kind::LIST_QUICKLIST_2 {
            let bytes = read_text(reader)?;
            let found = ziplist::read(&bytes).ok_or(Malformed::Value)?;
            items.extend(found.iter().map(|item| Cow::Owned(item.to_vec())));
            continue;
        }
        match reader.length()? {
            container::PLAIN => items.push(read_text(reader)?),
            container::PACKED => {
                let bytes = read_text(reader)?;
                let found = listpack::read(&bytes).ok_or(Malformed::Value)?;
                items.extend(found.iter().map(|item| Cow::Owned(item.to_vec())));
            }
            _ => return Err(Malformed::Value),
        }
    }
    list::from_items(items.iter().map(|item| &**item)).ok_or(Malformed::Value)
}

#[cfg(test)]
mod tests {
    use crate::rdb::testing::{check_golden, check_refused, check_same};

    #[test]
    fn dumps_have_the_bytes_that_redis_gave_them() {
        check_golden(&[
            ("RPUSH h a", "1201020a0a0000000100816102ff0a0009b9edf594ded995"),
            (
                "RPUSH h 1 -1 5000 text 12345678901",
                "120102202000000005000101dfff02f1881303847465787405f4351cdcdf0200000009ff0a006ef5f2ca3e205c\
             35",
            ),
            (
                "RPUSH h 0 1 4 9 16 25 36 49 64 81 100 121 144 169 196 225 256 289 324 361",
                "12010237370000001400000101010401090110011901240131014001510164017901c09002c0a902c0c402c0e1\
             02c10002c12102c14402c16902ff0a0083b823d63429c941",
            ),
        ]);
    }

    #[test]
    fn the_forms_of_old_are_read() {
        check_same(
            "RPUSH h a -2",
            &[
                b"\x01\x02\x01a\xc0\xfe",
                b"\x0a\x11\x11\0\0\0\x0d\0\0\0\x02\0\0\x01a\x03\xfe\xfe\xff",
                b"\x0e\x01\x11\x11\0\0\0\x0d\0\0\0\x02\0\0\x01a\x03\xfe\xfe\xff",
                b"\x0e\x02\x0e\x0e\0\0\0\x0a\0\0\0\x01\0\0\x01a\xff\x0e\x0e\0\0\0\x0a\0\0\0\x01\0\0\xfe\xfe\xff",
            ],
        );
    }

    #[test]
    fn what_is_no_list_is_refused() {
        check_refused(&[
            (b"\x12\x00", "no item"),
            (b"\x12\x01\x03\x01a", "an unknown container"),
            (b"\x12\x01\x02\x07\x07\0\0\0\0\0\xff", "an empty listpack"),
            (b"\x12\x02\x01\x01a", "an item missing"),
            (b"\x01\x02\x01a", "an item missing in the old form"),
            (b"\x0a\x0b\x0b\0\0\0\x0a\0\0\0\0\0\xff", "an empty ziplist"),
            (b"\x0e\x00", "no ziplist"),
            (b"\x0e\x01\x07\x07\0\0\0\0\0\xff", "a listpack where a ziplist belongs"),
        ]);
    }
}

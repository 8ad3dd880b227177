//! The files of an archive: see `docs/formats/archive.md`.
//!
//! ```text
//!   DIRECTORY/archive                       the manifest: which cluster, how many groups
//!   DIRECTORY/group-0000/base-…             a checkpoint of the group: all it held behind an entry
//!   DIRECTORY/group-0000/log-…              the entries behind it, committed ones only, in compressed frames
//!   DIRECTORY/changes/changes-…             what all groups have done, as readers of changes are told it
//! ```
//!
//! Entries are committed before they come here, so all who lead a group after one another write the same. A file has
//! one writer, is made under another name, and gets its own only if nobody has it: two writers may repeat each other,
//! and never mix. [`Archive`] names the files, [`GroupWriter`] writes those of a group, [`GroupReader`] reads them in
//! the order of the log and names what is damaged or missing.
//!
//! *Invariant:* it knows neither what an entry means nor who writes.

mod bucket;
mod changes;
mod fault;
mod file;
mod frame;
mod group;
mod key;
mod manifest;
mod place;
mod writer;

pub use bucket::Bucket;
pub use changes::{ChangesInfo, ChangesSpan, has_all, told_span};
pub use fault::Fault;
pub use file::{BaseReader, FrameInfo, LogFile};
pub use group::{BaseInfo, End, GroupReader, Listing, LogInfo, Next, Problem};
pub use key::Key;
pub use manifest::{Archive, Manifest};
pub use place::Place;
pub use writer::{BaseWriter, GroupWriter};

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use bytes::Bytes;
    use fuzzing::Fuzz;
    use stdx::UnixMillis;
    use stdx::log::{Entry, EntryKind};

    use super::*;
    use crate::frame::{FILE_HEADER_BYTES, FRAME_HEADER_BYTES};

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("holdfast-archive-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn place(&self) -> Place {
            Place::Directory(self.0.clone())
        }

        fn archive(&self) -> Archive {
            let wanted = Manifest { name: 77, cluster: 5, groups: 2, databases: 16, key: None };
            Archive::open_or_make(&self.place(), &wanted, None).unwrap()
        }

        fn log(&self, first: u64) -> PathBuf {
            self.0.join(format!("group-0001/log-{first:016x}"))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn entries(first: u64, last: u64) -> Vec<Entry> {
        let entry = |index: u64| {
            let data = Bytes::from(vec![index as u8; 100]);
            Entry { term: 1 + index / 10, index, kind: EntryKind::Normal, data }
        };
        (first..=last).map(entry).collect()
    }

    fn append(writer: &mut GroupWriter, first: u64, last: u64) {
        writer.append(&entries(first, last), Some(UnixMillis(1_000 + last as i64))).unwrap();
    }

    fn read(archive: &Archive, from: u64) -> (Vec<Entry>, Result<Option<Fault>, Problem>) {
        let mut reader = GroupReader::new(archive, 1, &archive.list(1).unwrap(), from);
        let mut found = Vec::new();
        loop {
            match reader.next() {
                Ok(Next::Entries(entries, ..)) => found.extend(entries),
                Ok(Next::End(fault)) => return (found, Ok(fault)),
                Err(problem) => return (found, Err(problem)),
            }
        }
    }

    #[test]
    fn what_several_writers_wrote_is_read_once_and_in_order() {
        let scratch = Scratch::new("writers");
        let archive = scratch.archive();
        let mut first = GroupWriter::open(&archive, 1, 1, 3).unwrap();
        append(&mut first, 1, 5);
        append(&mut first, 6, 9);
        // Another node leads, and the first does not know it yet.
        let mut second = GroupWriter::open(&archive, 1, 2, 3).unwrap();
        assert_eq!((second.end().index, second.end().moment), (9, UnixMillis(1_009)));
        append(&mut first, 10, 12);
        append(&mut second, 10, 20);
        append(&mut second, 21, 22);
        let mut third = GroupWriter::open(&archive, 1, 3, 3).unwrap();
        let mut fourth = GroupWriter::open(&archive, 1, 4, 3).unwrap();
        append(&mut third, 23, 30);
        let fault = fourth.append(&entries(23, 24), None).unwrap_err();
        assert!(fault.is_taken(), "{fault}");
        let (found, end) = read(&archive, 3);
        assert_eq!(found, entries(3, 30));
        assert!(matches!(end, Ok(None)));
    }

    #[test]
    fn damage_within_the_last_file_is_told_from_a_write_that_was_cut_short() {
        let scratch = Scratch::new("end");
        let archive = scratch.archive();
        let mut writer = GroupWriter::open(&archive, 1, 1, 3).unwrap();
        (0..5).for_each(|frame| append(&mut writer, 10 * frame + 1, 10 * frame + 10));
        let path = scratch.log(1);
        let whole = fs::read(&path).unwrap();
        let frames = |upto: u64| {
            let mut log = LogFile::open(&archive, 1, &path).unwrap();
            (0..upto).map(|_| log.next().unwrap().unwrap().offset as usize).last().unwrap()
        };
        let (second, last) = (frames(2), frames(5));
        for (place, is_damage) in [(second, true), (second + FRAME_HEADER_BYTES, true), (last, false)] {
            let mut damaged = whole.clone();
            damaged[place + 3] ^= 1;
            fs::write(&path, &damaged).unwrap();
            let (found, end) = read(&archive, 1);
            assert_eq!(found.len(), if place == last { 40 } else { 10 });
            assert_eq!(matches!(end, Err(Problem::Fault(_))), is_damage, "at {place}: {end:?}");
            let is_told = archive.end_and_damage(1).unwrap().1.is_some();
            assert_eq!(is_told, place == second, "a body is only read when its entries are wanted");
            fs::write(&path, &whole).unwrap();
        }
        fs::write(&path, &whole[..whole.len() - 9]).unwrap();
        assert!(matches!(read(&archive, 1).1, Ok(Some(_))) && archive.end_and_damage(1).unwrap().1.is_none());
    }

    #[test]
    fn a_base_reads_back_and_tells_what_is_damaged() {
        let scratch = Scratch::new("base");
        let archive = scratch.archive();
        let chunks: Vec<Vec<u8>> = (1..40_u8).map(|byte| vec![byte; 100_000]).collect();
        let mut base = BaseWriter::begin(&archive, 1, (9, 2, UnixMillis(7)), 1, 3).unwrap();
        chunks.iter().for_each(|chunk| base.push(chunk).unwrap());
        base.finish().unwrap();
        let listing = archive.list(1).unwrap();
        let [info] = &listing.bases[..] else { panic!("{listing:?}") };
        assert_eq!((info.index, info.term, info.moment), (9, 2, UnixMillis(7)));
        let read = || {
            let mut reader = BaseReader::open(&archive, 1, &info.path)?;
            let mut found: Vec<Vec<u8>> = Vec::new();
            while let Some(chunks) = reader.next_chunks()? {
                found.extend(chunks.iter().map(|chunk| chunk.to_vec()));
            }
            Ok::<_, Fault>(found)
        };
        assert_eq!(read().unwrap(), chunks);
        let whole = fs::read(&info.path).unwrap();
        for place in [3, 20, 64, 70, whole.len() / 2, whole.len() - 3] {
            let mut bytes = whole.clone();
            bytes[place] ^= 4;
            fs::write(&info.path, &bytes).unwrap();
            let fault = read().unwrap_err().to_string();
            assert!(fault.contains("base-0000000000000009 at offset "), "{fault}");
        }
        fs::write(&info.path, &whole[..whole.len() - 10]).unwrap();
        assert!(read().is_err());
        let mut writer = GroupWriter::open(&archive, 1, 1, 3).unwrap();
        append(&mut writer, 10, 11);
    }

    #[test]
    fn what_is_too_old_or_too_much_goes_and_what_is_left_reads_on_from_a_base() {
        let scratch = Scratch::new("expiry");
        let archive = scratch.archive();
        for tens in 0..3 {
            let mut writer = GroupWriter::open(&archive, 1, 1, 3).unwrap();
            append(&mut writer, tens * 10 + 1, tens * 10 + 10);
            let index = tens * 10 + 10;
            let moment = UnixMillis(1_000 + index as i64);
            let mut base = BaseWriter::begin(&archive, 1, (index, 1 + index / 10, moment), 1, 3).unwrap();
            base.push(&[tens as u8; 10]).unwrap();
            base.finish().unwrap();
        }
        let left = |archive: &Archive| {
            let listing = archive.list(1).unwrap();
            let bases: Vec<u64> = listing.bases.iter().map(|base| base.index).collect();
            (bases, listing.logs.iter().map(|log| log.first).collect::<Vec<_>>())
        };
        // Nothing is that old, and there is no bound.
        assert!(archive.expire(1, None, 0).unwrap().is_empty());
        assert!(archive.expire(1, Some(UnixMillis(1_009)), 0).unwrap().is_empty());
        assert_eq!(left(&archive), (vec![10, 20, 30], vec![1, 11, 21]));
        // A moment between two bases needs the earlier one and the log behind it.
        archive.expire(1, Some(UnixMillis(1_019)), 0).unwrap();
        assert_eq!(left(&archive), (vec![10, 20, 30], vec![11, 21]));
        archive.expire(1, Some(UnixMillis(1_020)), 0).unwrap();
        assert_eq!(left(&archive), (vec![20, 30], vec![21]));
        assert_eq!(read(&archive, 21).0, entries(21, 30));
        // However few bytes are allowed, the newest base stays, and what comes behind it.
        let mut writer = GroupWriter::open(&archive, 1, 1, 3).unwrap();
        append(&mut writer, 31, 33);
        archive.expire(1, None, 1).unwrap();
        assert_eq!(left(&archive), (vec![30], vec![31]));
        assert_eq!(read(&archive, 31).0, entries(31, 33));
        // Another group's files are its own.
        assert!(archive.expire(0, Some(UnixMillis(i64::MAX)), 1).unwrap().is_empty());
    }

    #[test]
    fn what_is_damaged_or_missing_is_named_and_what_was_cut_short_is_not() {
        let scratch = Scratch::new("damage");
        let archive = scratch.archive();
        for round in 0..3 {
            let mut writer = GroupWriter::open(&archive, 1, 1, 3).unwrap();
            append(&mut writer, round * 10 + 1, round * 10 + 5);
            append(&mut writer, round * 10 + 6, round * 10 + 10);
        }
        let second = fs::read(scratch.log(11)).unwrap();
        // Its last frame was cut short, and anyone who came next wrote it again.
        fs::write(scratch.log(11), &second[..second.len() - 7]).unwrap();
        let mut again = entries(16, 20);
        let (found, end) = read(&archive, 1);
        assert_eq!(found, entries(1, 15));
        let Err(Problem::Fault(fault)) = end else { panic!("it is damaged: {end:?}") };
        assert!(fault.to_string().contains("log-000000000000000b at offset "), "{fault}");
        let moved = scratch.0.join("aside");
        fs::rename(scratch.log(21), &moved).unwrap();
        let mut writer = GroupWriter::open(&archive, 1, 1, 3).unwrap();
        assert_eq!(writer.end().index, 15);
        writer.append(&again.split_off(0), None).unwrap();
        fs::rename(&moved, scratch.log(21)).unwrap();
        let (found, end) = read(&archive, 1);
        assert_eq!(found, entries(1, 30));
        assert!(matches!(end, Ok(None)));
        // Gone as a whole.
        fs::rename(scratch.log(16), &moved).unwrap();
        fs::remove_file(scratch.log(11)).unwrap();
        let (found, end) = read(&archive, 1);
        assert_eq!(found, entries(1, 10));
        assert!(matches!(end, Err(Problem::Missing(11, 20))), "{end:?}");
        // Never written.
        let mut writer = GroupWriter::open(&archive, 1, 1, 3).unwrap();
        writer.skip_to(40, 5);
        append(&mut writer, 41, 42);
        let (found, end) = read(&archive, 21);
        assert_eq!(found, entries(21, 30));
        assert!(matches!(end, Err(Problem::Gap(31, 40))), "{end:?}");
    }

    #[test]
    fn changes_read_back_in_order_and_the_oldest_go() {
        let scratch = Scratch::new("changes");
        let archive = scratch.archive();
        assert!(archive.list_changes().unwrap().is_empty());
        for from in [20, 10, 30] {
            let [from, until, closed] = [from, from + 10, from + 9].map(UnixMillis);
            let span = ChangesSpan { from, until, closed, writer: 3 };
            let mut writer = BaseWriter::begin_changes(&archive, &span, 1, 3).unwrap();
            writer.push(&vec![from.0 as u8; 3_000_000]).unwrap();
            writer.push(b"and more").unwrap();
            assert_eq!(archive.list_changes().unwrap().iter().filter(|file| file.span == span).count(), 0);
            writer.finish().unwrap();
        }
        let files = archive.list_changes().unwrap();
        assert_eq!(files.iter().map(|file| file.span.from.0).collect::<Vec<_>>(), [10, 20, 30]);
        assert!(has_all(&files, UnixMillis(11), UnixMillis(38)));
        let mut reader = BaseReader::open_changes(&archive, &files[1].path).unwrap();
        let mut found = Vec::new();
        while let Some(chunks) = reader.next_chunks().unwrap() {
            chunks.iter().for_each(|chunk| found.extend_from_slice(chunk));
        }
        assert!(found.len() == 3_000_008 && found[0] == 20 && found.ends_with(b"and more"));
        // A file with something else is none, and none of a group.
        assert!(BaseReader::open(&archive, 0, &files[1].path).is_err());
        assert!(LogFile::open(&archive, 0, &files[1].path).is_err());
        assert!(archive.expire_changes(Some(UnixMillis(20)), 0).unwrap().is_empty());
        assert_eq!(archive.expire_changes(Some(UnixMillis(21)), 0).unwrap().len(), 1);
        assert_eq!(archive.expire_changes(None, files[1].bytes).unwrap().len(), 1);
        assert_eq!(archive.list_changes().unwrap()[0].span.from.0, 30);
    }

    #[test]
    fn another_clusters_archive_and_another_directory_are_refused() {
        let scratch = Scratch::new("foreign");
        scratch.archive();
        let other = Manifest { name: 1, cluster: 6, groups: 2, databases: 16, key: None };
        let fault = Archive::open_or_make(&scratch.place(), &other, None).unwrap_err().to_string();
        assert!(fault.contains("the archive of cluster 00000000000000000000000000000005"), "{fault}");
        fs::remove_file(scratch.0.join("archive")).unwrap();
        fs::write(scratch.0.join("letters"), "dear").unwrap();
        let fault = Archive::open_or_make(&scratch.place(), &other, None).unwrap_err().to_string();
        assert!(fault.contains("not empty"), "{fault}");
    }

    /// Puts the checksums of a file right, as far as they can be followed.
    fn verify(bytes: &mut [u8]) {
        let Some(header) = bytes.get_mut(..FILE_HEADER_BYTES) else { return };
        header[12..16].fill(0);
        let check = crc32c::crc32c(header);
        header[12..16].copy_from_slice(&check.to_le_bytes());
        let seed = crc32c::crc32c(header);
        let mut offset = FILE_HEADER_BYTES;
        while let Some(header) = bytes.get(offset..offset + FRAME_HEADER_BYTES) {
            let start = offset + FRAME_HEADER_BYTES;
            let body_bytes = u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
            let Some(body) = bytes.get(start..start + body_bytes) else { return };
            let body_check = crc32c::crc32c(body);
            let header = &mut bytes[offset..start];
            header[4..8].copy_from_slice(&body_check.to_le_bytes());
            let place = crc32c::crc32c_append(seed, &(offset as u64).to_le_bytes());
            let check = crc32c::crc32c_append(place, &header[4..]);
            header[..4].copy_from_slice(&check.to_le_bytes());
            offset = start + body_bytes;
        }
    }

    #[test]
    fn fuzz_files() {
        let scratch = Scratch::new("fuzz");
        let archive = scratch.archive();
        let mut writer = GroupWriter::open(&archive, 1, 1, 3).unwrap();
        append(&mut writer, 1, 5);
        append(&mut writer, 6, 9);
        drop(writer);
        let mut base = BaseWriter::begin(&archive, 1, (9, 2, UnixMillis(7)), 1, 3).unwrap();
        base.push(&[1; 1_000]).unwrap();
        base.push(b"the last").unwrap();
        base.finish().unwrap();
        let base = archive.list(1).unwrap().bases[0].path.clone();
        let corpus = [fs::read(scratch.log(1)).unwrap(), fs::read(base).unwrap()];
        let path = scratch.0.join("input");
        let read = |input: &[u8]| {
            fs::write(&path, input).unwrap();
            let log = || {
                let mut log = LogFile::open(&archive, 1, &path)?;
                let mut count = 0;
                while let Some(frame) = log.next()? {
                    // A frame may announce a gibibyte: only what is asked for is brought back.
                    if frame.raw_bytes <= 1 << 20 {
                        count += log.entries(&frame)?.len();
                    }
                }
                Ok::<_, Fault>(count)
            };
            let base = || {
                let mut base = BaseReader::open(&archive, 1, &path)?;
                let mut count = 0;
                while let Some(chunks) = base.next_chunks()? {
                    count += chunks.len();
                }
                Ok::<_, Fault>(count)
            };
            let outcome = |found: Result<usize, Fault>| match found {
                Ok(count) => 1 + count as u64,
                Err(fault) => 1_000 + fault.to_string().len() as u64 % 64,
            };
            outcome(log()) + 10_000 * outcome(base())
        };
        assert_eq!(corpus.each_ref().map(|input| read(input) % 10_000 < 1_000), [true, false], "a log and a base");
        Fuzz::new("archive", corpus).repair(verify).rounds(500).run(read);
    }
}

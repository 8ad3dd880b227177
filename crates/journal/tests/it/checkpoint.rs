//! Checkpoint files.

use journal::{CheckpointFile, CheckpointMark, CheckpointReader, Fault, checkpoint_file};
use stdx::Prng;
use stdx::log::Membership;

use crate::memory_disk::MemoryDisk;
use crate::model::IDENTITY;

fn mark() -> CheckpointMark {
    CheckpointMark {
        index: 31,
        term: 4,
        membership: Membership { voters: vec![1, 2, 3], learners: vec![9], ..Membership::default() },
    }
}

fn write(disk: &MemoryDisk, chunks: &[Vec<u8>]) -> Result<u64, Fault> {
    let mut file = CheckpointFile::begin(disk.clone(), &IDENTITY, 2, &mark())?;
    for (number, chunk) in chunks.iter().enumerate() {
        file.push(chunk);
        if number % 2 == 0 {
            file.write(10_000)?;
        }
    }
    file.finish()
}

fn read(disk: &MemoryDisk) -> Result<Vec<Vec<u8>>, Fault> {
    let mut reader = CheckpointReader::open(disk.clone(), &IDENTITY, 2, &mark())?;
    let mut chunks = Vec::new();
    while let Some(chunk) = reader.next()? {
        chunks.push(chunk.to_vec());
    }
    let (done, all) = reader.progress();
    assert_eq!(done, all);
    Ok(chunks)
}

fn chunks(seed: u64, count: usize, bytes_max: u64) -> Vec<Vec<u8>> {
    let mut prng = Prng::new(seed);
    (0..count).map(|_| (0..=prng.below(bytes_max)).map(|_| prng.draw() as u8).collect()).collect()
}

#[test]
fn chunks_come_back_as_they_were_given() {
    for (count, bytes_max) in [(0, 1), (1, 1), (5, 100), (50, 9000), (3, 3_000_000)] {
        let disk = MemoryDisk::default();
        let chunks = chunks(count as u64, count, bytes_max);
        let bytes = write(&disk, &chunks).unwrap();
        assert_eq!(disk.names(), [checkpoint_file(2, 31)]);
        assert_eq!(disk.content(&checkpoint_file(2, 31)).len() as u64, bytes);
        assert_eq!(read(&disk).unwrap(), chunks);
    }
}

#[test]
fn every_flipped_bit_and_every_truncation_is_told() {
    let disk = MemoryDisk::default();
    write(&disk, &chunks(1, 4, 60)).unwrap();
    let name = checkpoint_file(2, 31);
    let content = disk.content(&name);
    for bit in 0..content.len() * 8 {
        let disk = disk.copy();
        disk.flip(&name, bit);
        match read(&disk).expect_err("a flipped bit is told") {
            Fault::Damaged { file, offset, .. } => {
                assert_eq!(file, name);
                assert!(offset <= bit as u64 / 8);
            }
            Fault::Newer { .. } => assert!((8..12).contains(&(bit / 8))),
            fault => panic!("{fault}"),
        }
    }
    for length in 0..content.len() {
        let disk = disk.copy();
        disk.replace(&name, &content[..length]);
        let fault = read(&disk).expect_err("a shorter file is told");
        assert!(matches!(fault, Fault::Damaged { .. }), "{fault}");
    }
    let disk = disk.copy();
    disk.replace(&name, &[&content[..], b"x"].concat());
    assert_eq!(
        read(&disk).unwrap_err().to_string(),
        format!("{name} is damaged at offset {}: there is something behind the footer", content.len())
    );
}

#[test]
fn swapped_chunks_and_foreign_files_are_told() {
    let disk = MemoryDisk::default();
    write(&disk, &[vec![1; 100], vec![2; 100]]).unwrap();
    let name = checkpoint_file(2, 31);
    let mut content = disk.content(&name);
    let start = content.len() - 24 - 2 * 108;
    content[start..start + 216].rotate_left(108);
    disk.replace(&name, &content);
    assert_eq!(
        read(&disk).unwrap_err().to_string(),
        format!("{name} is damaged at offset {start}: a chunk does not verify")
    );

    write(&disk, &[vec![1; 100]]).unwrap();
    let other = CheckpointMark { index: 32, ..mark() };
    disk.replace(&checkpoint_file(2, 32), &disk.content(&name));
    let fault = CheckpointReader::open(disk.clone(), &IDENTITY, 2, &other).map(drop).unwrap_err();
    assert!(fault.to_string().contains("it is a checkpoint of group 2 at index 31 of directory"), "{fault}");
    let missing = CheckpointReader::open(disk, &IDENTITY, 1, &other).map(drop).unwrap_err();
    assert!(matches!(missing, Fault::Missing { .. }), "{missing}");
}

#[test]
fn a_checkpoint_is_whole_or_absent_wherever_the_power_fails() {
    let chunks = chunks(3, 20, 5000);
    for changes in 0.. {
        let disk = MemoryDisk::default();
        disk.fail_after(changes);
        let outcome = write(&disk, &chunks);
        for seed in 0..8 {
            let disk = disk.copy();
            disk.cut_power(&mut Prng::new(seed));
            if disk.names().contains(&checkpoint_file(2, 31)) {
                assert_eq!(read(&disk).unwrap(), chunks);
            } else {
                assert!(outcome.is_err(), "a finished checkpoint is gone");
            }
        }
        if outcome.is_ok() {
            assert!(changes > 5);
            break;
        }
    }
}

#[test]
fn what_is_complete_needs_no_more_room() {
    let disk = MemoryDisk::default();
    let mut file = CheckpointFile::begin(disk.clone(), &IDENTITY, 2, &mark()).unwrap();
    file.push(&[7; 100]);
    disk.limit_room(Some(0));
    let fault = file.complete().expect_err("nothing can grow");
    assert!(fault.is_full(), "{fault}");
    file.abandon().unwrap();
    assert!(disk.names().is_empty(), "no name counts, and no room is taken");

    disk.limit_room(None);
    let mut file = CheckpointFile::begin(disk.clone(), &IDENTITY, 2, &mark()).unwrap();
    file.push(&[7; 100]);
    file.complete().unwrap();
    file.complete().unwrap();
    disk.limit_room(Some(0));
    let bytes = file.finish().unwrap();
    assert_eq!(disk.content(&checkpoint_file(2, 31)).len() as u64, bytes);
    assert_eq!(read(&disk).unwrap(), [vec![7; 100]]);
}

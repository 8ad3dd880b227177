//! Power cuts and kills at every point.

use journal::{Fault, Journal};
use stdx::Prng;

use crate::memory_disk::MemoryDisk;
use crate::model::{Groups, Step, apply, draw, is_barrier, options, options_among_peers, perform};

/// What the host knows: what was asked for, and how much of it was acknowledged as durable.
struct Host {
    /// The groups after each number of steps since the last start; the first is what that start found.
    history: Vec<Groups>,
    durable_steps: usize,
    term: u64,
}

impl Host {
    fn new(found: Groups) -> Self {
        Self { history: vec![found], durable_steps: 0, term: 1 }
    }

    /// Draws and carries out steps until the disk fails or the count is reached.
    fn work(&mut self, prng: &mut Prng, journal: &mut Journal<MemoryDisk>, count: usize) -> Result<(), Fault> {
        for _ in 0..count {
            let mut groups = self.history.last().unwrap().clone();
            let step = draw(prng, &groups, &mut self.term);
            apply(&mut groups, &step);
            self.history.push(groups);
            perform(journal, &step)?;
            if is_barrier(&step) {
                self.durable_steps = self.history.len() - 1;
            } else if matches!(step, Step::SyncBeside { .. }) {
                self.durable_steps = self.history.len() - 2;
            }
        }
        Ok(())
    }

    /// Checks that what was found is what was written up to some step, and that nothing acknowledged is missing.
    fn check(&self, found: &Groups, context: &str) {
        let step = self.history.iter().rposition(|groups| groups == found);
        let Some(step) = step else {
            panic!("{context}: what was found was never written: {found:#?}\nlast: {:#?}", self.history.last())
        };
        assert!(step >= self.durable_steps, "{context}: found step {step}, acknowledged {}", self.durable_steps);
    }
}

/// One life after another on the same disk, each ended by a power cut or a kill at a random point.
fn live(seed: u64, lives: usize) -> u64 {
    let mut prng = Prng::new(seed);
    let disk = MemoryDisk::default();
    let (_, recovered) = Journal::open(disk.clone(), &options()).unwrap();
    let mut host = Host::new(recovered.groups);
    let mut cuts = 0;
    let options = if seed.is_multiple_of(2) { options } else { options_among_peers };
    for life in 0..lives {
        disk.fail_after(prng.below(60));
        if prng.chance(1, 8) {
            disk.fail_syncs(prng.draw());
        }
        let outcome = Journal::open(disk.clone(), &options()).and_then(|(mut journal, recovered)| {
            host.check(&recovered.groups, &format!("seed {seed}, life {life}"));
            host = Host { term: host.term, ..Host::new(recovered.groups) };
            host.work(&mut prng, &mut journal, 60)?;
            journal.stop()
        });
        match outcome {
            Ok(_) => disk.kill_process(),
            Err(fault) => {
                let text = fault.to_string();
                let is_sync = text.contains("a sync failed");
                assert!(is_sync || text.contains("the power is off"), "seed {seed}, life {life}: {fault}");
                if is_sync || prng.chance(1, 4) {
                    disk.kill_process();
                } else {
                    cuts += 1;
                    disk.cut_power(&mut prng);
                }
            }
        }
    }
    cuts
}

#[test]
fn nothing_acknowledged_is_lost_over_many_lives() {
    let cuts: u64 = (0..300).map(|seed| live(seed, 12)).sum();
    assert!(cuts > 1000, "only {cuts} power cuts");
}

#[test]
fn what_a_start_has_read_stays_though_a_sync_had_failed_before() {
    for seed in 0..200 {
        let mut prng = Prng::new(seed);
        let disk = MemoryDisk::default();
        let (mut journal, _) = Journal::open(disk.clone(), &options()).unwrap();
        let mut host = Host::new(Groups::new());
        host.work(&mut prng, &mut journal, 20).unwrap();
        // The page cache goes on showing what the failed flush has lost.
        disk.fail_syncs(seed);
        host.work(&mut prng, &mut journal, 60).unwrap_err();
        disk.kill_process();
        let (_, recovered) = Journal::open(disk.clone(), &options()).unwrap();
        host.check(&recovered.groups, &format!("seed {seed}"));
        disk.cut_power(&mut prng);
        let (_, again) = Journal::open(disk, &options()).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        assert_eq!(again.groups, recovered.groups, "seed {seed}");
    }
}

#[test]
fn nothing_acknowledged_is_lost_wherever_the_power_fails() {
    for seed in 0..4 {
        // The same steps again and again, each time with the power failing one change later.
        let mut points = 0;
        loop {
            let mut prng = Prng::new(seed);
            let disk = MemoryDisk::default();
            disk.fail_after(points);
            let mut host = Host::new(Groups::new());
            let mut opened = false;
            let outcome = Journal::open(disk.clone(), &options()).and_then(|(mut journal, _)| {
                opened = true;
                host.work(&mut prng, &mut journal, 80)
            });
            for cut in 0..3 {
                let disk = disk.copy();
                disk.cut_power(&mut Prng::new(seed * 1000 + cut));
                let options = if cut == 0 { options_among_peers() } else { options() };
                let (_, recovered) = Journal::open(disk, &options)
                    .unwrap_or_else(|fault| panic!("seed {seed}, point {points}, cut {cut}: {fault}"));
                assert!(
                    !recovered.tail_in_question.is_some_and(|why| why.contains("is damaged")),
                    "seed {seed}, point {points}, cut {cut}: a power cut is taken for damage"
                );
                host.check(&recovered.groups, &format!("seed {seed}, point {points}, cut {cut}"));
                assert!(opened || recovered.groups.is_empty());
            }
            if outcome.is_ok() {
                break;
            }
            points += 1;
        }
        assert!(points > 60, "only {points} points");
    }
}

#[test]
fn a_full_disk_refuses_and_loses_nothing() {
    let mut prng = Prng::new(5);
    let disk = MemoryDisk::default();
    let (mut journal, _) = Journal::open(disk.clone(), &options()).unwrap();
    journal.prepare_spare().unwrap();
    disk.limit_room(Some(0));
    let mut groups = Groups::new();
    let mut term = 1;
    let mut refused = None;
    while refused.is_none() {
        let step = draw(&mut prng, &groups, &mut term);
        if !matches!(step, Step::Append { .. }) {
            continue;
        }
        let room_bytes = journal.room_bytes();
        match perform(&mut journal, &step) {
            Ok(()) => apply(&mut groups, &step),
            Err(fault) => {
                assert!(fault.is_full(), "{fault}");
                assert!(room_bytes < 30_000, "refused with {room_bytes} bytes of room");
                assert_eq!(fault.to_string(), "no room on the disk for log-0000000000000003 of 65536 bytes");
                refused = Some(step);
            }
        }
    }
    disk.limit_room(None);
    let refused = refused.unwrap();
    perform(&mut journal, &refused).unwrap();
    apply(&mut groups, &refused);
    journal.stop().unwrap();
    let (_, recovered) = Journal::open(disk, &options()).unwrap();
    assert_eq!(recovered.groups, groups);
    assert!(recovered.was_stopped_cleanly);
}

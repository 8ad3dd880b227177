//! A copy that a source sends first, an RDB file, and how it gets into the target.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use redis_files::Source;
use redis_files::rdb::{self, RdbReader};

use super::check::bytes;
use super::follow::{RECORD_INTERVAL, Tell, Tone};
use super::is_over;
use super::source::Figures;
use super::spool::SpoolReader;
use super::target::Target;
use crate::backup::grouped;
use crate::import::files::Event;
use crate::import::now_ms;
use crate::import::sender::Sender;

/// How often it is looked at whether a copy is loaded.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// A copy of so many bytes.
pub struct Copy<'a> {
    pub is_quiet: bool,
    pub skips_modules: bool,
    pub over: &'a AtomicBool,
    pub copy_bytes: u64,
    pub tell: Tell<'a>,
}

/// How loading has ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Loaded {
    Whole,
    /// The link has broken.
    Truncated,
    /// The user has asked for it.
    Asked,
}

/// Writes the record until the copy is loaded; ends the link if that cannot be done.
fn note_until(is_loaded: &AtomicBool, mut target: Target<'_>, figures: &Figures) -> Result<()> {
    let mut noted = Instant::now();
    while !is_loaded.load(Ordering::SeqCst) {
        thread::sleep(LOOK_INTERVAL);
        if noted.elapsed() <= RECORD_INTERVAL {
            continue;
        }
        noted = Instant::now();
        target.record.written_ms = now_ms();
        target.record.fault = figures.fault();
        if let Err(why) = target.write() {
            figures.is_over.store(true, Ordering::Relaxed);
            return Err(why);
        }
    }
    Ok(())
}

impl Copy<'_> {
    /// Loads it into the target, which has nothing of it; leaves out what `wants` does not answer true to. Meanwhile
    /// another thread writes the record now and then: the source may send nothing for long.
    ///
    /// # Errors
    /// If it is damaged, or holds what cannot be copied, or the target does not take it.
    pub fn load(
        &self,
        target: &mut Target<'_>,
        copy: SpoolReader,
        figures: &Figures,
        wants: &mut dyn FnMut(&Event) -> bool,
    ) -> Result<Loaded> {
        let mut connection = target.connect()?;
        let mut sender = Sender::new(&mut connection, false);
        let is_loaded = AtomicBool::new(false);
        let (loaded, noted) = thread::scope(|scope| {
            let noting = scope.spawn(|| note_until(&is_loaded, target.again(), figures));
            let loaded = self.load_by(&mut sender, copy, figures, wants);
            is_loaded.store(true, Ordering::SeqCst);
            if !matches!(loaded, Ok(Loaded::Whole)) {
                sender.abandon();
            }
            (loaded, noting.join())
        });
        // It ends the link, so that this is why a copy is not whole.
        noted.map_err(|_| anyhow!("the thread that writes the record has panicked"))??;
        loaded
    }

    fn load_by(
        &self,
        sender: &mut Sender<'_>,
        copy: SpoolReader,
        figures: &Figures,
        wants: &mut dyn FnMut(&Event) -> bool,
    ) -> Result<Loaded> {
        let begun = Instant::now();
        let mut source = Source::new(copy);
        let (mut number, mut keys, mut skipped) = (0, 0_u64, 0_u64);
        let mut reported = Instant::now();
        let broken = |fault: redis_files::Fault| match fault.what {
            redis_files::What::Truncated => Ok(Loaded::Truncated),
            _ => Err(anyhow!("the copy {fault}")),
        };
        let mut reader = match RdbReader::new(&mut source) {
            Ok(reader) => reader,
            Err(fault) => return broken(fault),
        };
        loop {
            if is_over(self.over) {
                return Ok(Loaded::Asked);
            }
            let item = match reader.next_item() {
                Ok(item) => item,
                Err(fault) => return broken(fault),
            };
            let place = reader.offset();
            number += 1;
            let is_end = matches!(item, rdb::Item::End { .. });
            if let Some(event) = self.event_of(item, &mut skipped)?.filter(|event| wants(event)) {
                if let Event::Key(key) = &event {
                    keys += u64::from(matches!(key.part, rdb::Part::Whole | rdb::Part::First));
                }
                sender.send(number, place, event).context("the copy cannot be loaded")?;
            }
            if is_end {
                break;
            }
            if !self.is_quiet && begun.elapsed().as_secs() > 2 && reported.elapsed() > RECORD_INTERVAL {
                reported = Instant::now();
                self.report(begun, place, keys, figures);
            }
        }
        sender.finish().context("the copy cannot be loaded")?;
        let line = format!(
            "copied: {} keys, {} in {:.1} s{}",
            grouped(keys),
            bytes(self.copy_bytes),
            begun.elapsed().as_secs_f64(),
            if skipped > 0 { format!(", {} left out", grouped(skipped)) } else { String::new() }
        );
        (self.tell)(Tone::Outcome, &line);
        Ok(Loaded::Whole)
    }

    /// What is sent for an item, if anything; counts what is left out.
    fn event_of(&self, item: rdb::Item, skipped: &mut u64) -> Result<Option<Event>> {
        Ok(match item {
            rdb::Item::Key(key) => Some(Event::Key(key)),
            rdb::Item::Library(code) => Some(Event::Library(code)),
            rdb::Item::Aux { name, value } if name == b"lua" => Some(Event::Script(value)),
            rdb::Item::Aux { .. } | rdb::Item::End { .. } => None,
            rdb::Item::Foreign { database, name, what } => {
                let name = String::from_utf8_lossy(&name);
                let shown = format!("{name} (database {database}) is a key of the {what}");
                ensure!(self.skips_modules, "{shown}, which cannot be copied; --skip-modules leaves such keys out");
                (self.tell)(Tone::Going, &format!("left out: {shown}"));
                *skipped += 1;
                None
            }
            rdb::Item::ModuleAux(module) => {
                ensure!(self.skips_modules, "the module {module} keeps data, which cannot be copied: --skip-modules");
                None
            }
        })
    }

    fn report(&self, begun: Instant, place: u64, keys: u64, figures: &Figures) {
        let share = place as f64 / self.copy_bytes.max(1) as f64;
        let left = begun.elapsed().as_secs_f64() * (1.0 - share) / share.max(0.001);
        let line = format!(
            "loading: {} keys, {} of {}, {left:.0} s left; {} of the stream wait",
            grouped(keys),
            bytes(place),
            bytes(self.copy_bytes),
            bytes(figures.waiting_bytes.load(Ordering::Relaxed))
        );
        (self.tell)(Tone::Going, &line);
    }
}

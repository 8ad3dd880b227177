//! `holdfast archive verify`.

use anyhow::{Result, bail};
use archive::{BaseReader, GroupReader, Next, Problem};

use super::view::{View, told};
use crate::backup::{Pace, counted, grouped};

/// Reads all of an archive.
///
/// # Errors
/// If anything of it is damaged or missing: each is named.
pub(super) fn run(view: &View, is_quiet: bool) -> Result<()> {
    let mut pace = Pace::new(is_quiet);
    let (mut entry_count, mut bytes, mut base_count) = (0_u64, 0, 0);
    let (mut faults, mut notes) = (Vec::new(), Vec::new());
    for (number, group) in (0_u32..).zip(&view.groups) {
        faults.extend(group.listing.faults.iter().map(ToString::to_string));
        for base in &group.listing.bases {
            match read_base(view, number, &base.path) {
                Ok(()) => base_count += 1,
                Err(fault) => faults.push(fault.to_string()),
            }
            bytes += base.bytes;
            pace.show(|| format!("reads group {number}: {} MB so far", bytes / 1_000_000));
        }
        let Some(first) = group.listing.logs.first().map(|log| log.first) else { continue };
        let mut reader = GroupReader::new(&view.archive, number, &group.listing, first);
        let mut last_term = 0;
        loop {
            match reader.next() {
                Ok(Next::Entries(entries, frame, path)) => {
                    if entries.iter().any(|entry| std::mem::replace(&mut last_term, entry.term) > entry.term) {
                        faults.push(format!("group {number}: {}: terms go back", path.display()));
                    }
                    entry_count += entries.len() as u64;
                    bytes += frame.bytes;
                    pace.show(|| format!("reads group {number}: {} MB so far", bytes / 1_000_000));
                }
                Ok(Next::End(fault)) => {
                    // A write that is under way, or was cut short, is no damage; what comes next is written again.
                    notes.extend(fault.map(|fault| format!("group {number} ends here for now: {fault}")));
                    break;
                }
                Err(problem) => {
                    let told = told(number, &problem);
                    match problem {
                        Problem::Gap(..) => notes.push(told),
                        Problem::Missing(..) | Problem::Fault(_) => faults.push(told),
                    }
                    match reader.later() {
                        Some(later) => reader.skip_to(later),
                        None => break,
                    }
                }
            }
        }
        let starts_behind_base = first == 1 || group.listing.bases.iter().any(|base| base.index + 1 >= first);
        if !starts_behind_base {
            faults.push(format!("group {number}: there is no base for the log that begins with entry {first}"));
        }
    }
    for file in &view.changes {
        faults.extend(read_changes(view, &file.path).err().map(|fault| fault.to_string()));
        bytes += file.bytes;
        pace.show(|| format!("reads changes: {} MB so far", bytes / 1_000_000));
    }
    pace.end();
    for note in &notes {
        say_line!("note: {note}");
    }
    for fault in &faults {
        say_line!("damaged: {fault}");
    }
    let place = view.archive.place();
    if !faults.is_empty() {
        bail!("archive {place}: {}, see above", counted(faults.len(), "fault"));
    }
    say_line!(
        "{place}: whole, {} entries of {} and {}, {} bytes",
        grouped(entry_count),
        counted(view.groups.len(), "group"),
        counted(base_count, "base"),
        grouped(bytes)
    );
    if let Some(told) = view.told_changes() {
        say_line!("{told}");
    }
    if let Ok((first, last)) = view.range() {
        say_line!("can be restored to any moment from {} to {}", edge::utc(first), edge::utc(last));
    }
    Ok(())
}

fn read_changes(view: &View, path: &std::path::Path) -> Result<(), archive::Fault> {
    let mut reader = BaseReader::open_changes(&view.archive, path)?;
    while reader.next_chunks()?.is_some() {}
    Ok(())
}

fn read_base(view: &View, group: u32, path: &std::path::Path) -> Result<(), archive::Fault> {
    let mut reader = BaseReader::open(&view.archive, group, path)?;
    while reader.next_chunks()?.is_some() {}
    Ok(())
}

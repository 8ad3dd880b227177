//! What is in an archive, and which moments it can be restored to.

use std::path::Path;

use anyhow::{Result, anyhow, bail, ensure};
use archive::{Archive, ChangesInfo, End, Fault, GroupReader, Key, Listing, Next, Place, Problem};
use node::entry::Born;
use state::NO_LATER;
use state::cut::moment_of_entry;
use stdx::log::{Entry, EntryKind};
use stdx::{Levels, UnixMillis};

use super::replay::born_of;
use crate::backup::{counted, grouped};

/// An archive that has been looked at.
pub(super) struct View {
    pub(super) archive: Archive,
    pub(super) groups: Vec<GroupView>,
    /// Files with changes.
    pub(super) changes: Vec<ChangesInfo>,
}

/// What it holds of a group.
pub(super) struct GroupView {
    pub(super) listing: Listing,
    pub(super) end: End,
    /// The earliest moment that is held; none if there is nothing.
    pub(super) earliest: Option<UnixMillis>,
    /// All of its log is there, and what that begins with.
    is_whole: bool,
    /// Where its last log is damaged, with more behind that.
    pub(super) damage: Option<Fault>,
    /// It came into being while the archive was kept, and is whole: before its log there was no such group.
    pub(super) is_founded: bool,
    /// The group has ended: nothing of it comes any more.
    has_ended: bool,
}

impl View {
    /// Looks at the archive at an address.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub(super) fn of(address: &str, key_file: Option<&Path>) -> Result<Self> {
        let place = Place::parse(address).map_err(|why| anyhow!("{why}"))?;
        let key = key_file.map(Key::read).transpose().map_err(|why| anyhow!("{why}"))?;
        let archive = Archive::open(&place, key.as_ref())?;
        let mut groups = Vec::new();
        for group in 0..archive.group_count()? {
            let listing = archive.list(group)?;
            let (end, damage) = archive.end_and_damage(group)?;
            let mut born = None;
            let mut earliest = listing.bases.first().map(|base| base.moment);
            let begins_with_first = listing.logs.first().is_some_and(|log| log.first == 1);
            if begins_with_first {
                // A log from its first entry on needs no base.
                let mut reader = GroupReader::new(&archive, group, &listing, 1);
                earliest = loop {
                    match reader.next() {
                        Ok(Next::Entries(entries, ..)) => {
                            check_levels(group, &entries)?;
                            born = born.or_else(|| born_of(&entries[0]));
                            if let Some(moment) = entries.iter().find_map(moment_of_entry) {
                                break Some(moment);
                            }
                        }
                        Ok(Next::End(_)) | Err(_) => break earliest,
                    }
                };
            }
            // A group that split off begins with what the log of the other one, which has a lower number, has made.
            let is_whole = begins_with_first && born.is_none_or(|born| reaches_back(&groups, born));
            if !is_whole {
                earliest = listing.bases.first().map(|base| base.moment);
            }
            let is_founded = is_whole && group >= archive.manifest().groups;
            groups.push(GroupView { listing, end, earliest, damage, is_whole, is_founded, has_ended: false });
        }
        // The others close what is before their last entries within seconds.
        let latest = groups.iter().map(|group| group.end.moment.0).max().unwrap_or_default();
        for (number, group) in (0..).zip(&mut groups) {
            if group.damage.is_none() && group.end.moment.0 < latest.saturating_sub(ENDED_AFTER_MS) {
                group.has_ended = has_ended(&archive, number, &group.listing);
            }
        }
        let changes = archive.list_changes()?;
        Ok(Self { archive, groups, changes })
    }

    /// The first and the last moment that all groups can be restored to, but for what is missing between.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn range(&self) -> Result<(UnixMillis, UnixMillis)> {
        let empty: Vec<String> = self
            .groups
            .iter()
            .enumerate()
            .filter(|(_, group)| group.earliest.is_none() && !group.is_founded)
            .map(|(number, _)| number.to_string())
            .collect();
        ensure!(
            empty.is_empty(),
            "archive {}: it holds nothing yet of {} {}",
            self.archive.place(),
            if empty.len() == 1 { "group" } else { "groups" },
            empty.join(", ")
        );
        let first = self.groups.iter().filter(|group| !group.is_founded).filter_map(|group| group.earliest).max();
        let first = first.expect("there is a group that was not founded later");
        let last = self.groups.iter().map(GroupView::closed).min().expect("there is a group");
        ensure!(first <= last, "archive {}: its groups have no moment in common yet", self.archive.place());
        Ok((first, last))
    }

    /// What can be told of changes, in words; none if there are no files of them.
    pub(super) fn told_changes(&self) -> Option<String> {
        let bytes = grouped(self.changes.iter().map(|file| file.bytes).sum());
        let (first, last) = archive::told_span(&self.changes)?;
        let files = counted(self.changes.len(), "file");
        // Before the first of all changes there was no moment.
        let first = if first.0 <= 1 { "the beginning".to_owned() } else { edge::utc(first) };
        let last = edge::utc(last);
        Some(format!("{files} of changes, {bytes} bytes: all of them can be told from {first} to {last}"))
    }

    /// The moment to go back to, if it is there.
    ///
    /// # Errors
    /// If it is not, with the nearest that is.
    pub(super) fn choose(&self, wanted: Option<UnixMillis>) -> Result<UnixMillis> {
        let (first, last) = self.range()?;
        let place = self.archive.place();
        match wanted {
            None => match self.groups.iter().find_map(|group| group.damage.as_ref()) {
                // It looks as if nothing had been done since.
                Some(fault) => bail!(
                    "{fault}. What was written behind that cannot be read: to go back to the last moment before it, give \
                     --at '{}'",
                    edge::utc(last)
                ),
                None => Ok(last),
            },
            Some(wanted) if wanted < first => bail!(
                "archive {place}: it begins at {}, after {}: the nearest moment is --at '{}'",
                edge::utc(first),
                edge::utc(wanted),
                edge::utc(first)
            ),
            Some(wanted) if wanted > last => bail!(
                "archive {place}: it ends at {}, before {}: the nearest moment is --at '{}'",
                edge::utc(last),
                edge::utc(wanted),
                edge::utc(last)
            ),
            Some(wanted) => Ok(wanted),
        }
    }
}

/// True if there is enough of a group to say what another one began with that split off from it there.
fn reaches_back(groups: &[GroupView], born: Born) -> bool {
    groups
        .get(born.parent.0 as usize)
        .is_some_and(|parent| parent.is_whole || parent.listing.bases.iter().any(|base| base.index < born.index))
}

impl GroupView {
    /// Nothing of this moment or an earlier one is lacking at the end. More of the latest moment may come.
    pub(super) fn closed(&self) -> UnixMillis {
        if self.has_ended { NO_LATER } else { UnixMillis(self.end.moment.0.saturating_sub(1)) }
    }

    /// Bytes of its files.
    pub(super) fn bytes(&self) -> u64 {
        let bases = self.listing.bases.iter().map(|base| base.bytes);
        bases.chain(self.listing.logs.iter().map(|log| log.bytes)).sum()
    }

    /// How many files.
    pub(super) fn files(&self) -> String {
        let (bases, logs) = (self.listing.bases.len(), self.listing.logs.len());
        format!("{}, {}", counted(bases, "base"), counted(logs, "log"))
    }
}

/// A group that has told nothing for so long, while others have, may have ended.
const ENDED_AFTER_MS: i64 = 5_000;

/// True if the last of a group's entries that say anything is the one that ended it. Behind it stand only those with
/// which later leaders began, each perhaps in a log of its own.
fn has_ended(archive: &Archive, group: u32, listing: &Listing) -> bool {
    for log in listing.logs.iter().rev() {
        let mut reader = GroupReader::new(archive, group, listing, log.first);
        let mut is_end = None;
        while let Ok(Next::Entries(entries, ..)) = reader.next() {
            let said = entries.iter().rev().find(|entry| entry.kind == EntryKind::Normal && !entry.data.is_empty());
            is_end = said.map(|entry| message::entry::is_end(&entry.data)).or(is_end);
        }
        if let Some(is_end) = is_end {
            return is_end;
        }
    }
    false
}

/// Whether this program can read entries, by the levels at which they were written.
///
/// # Errors
/// If it cannot.
pub(super) fn check_levels(group: u32, entries: &[Entry]) -> Result<()> {
    let known = Levels::KNOWN;
    for entry in entries.iter().filter(|entry| entry.kind == EntryKind::Normal && !entry.data.is_empty()) {
        let level = message::entry::level(&entry.data);
        ensure!(
            known.contains(level),
            "group {group}: entry {} was written at level {level}, and this version of Holdfast knows {known}: use a \
             later version",
            entry.index
        );
    }
    Ok(())
}

/// Why a group's log cannot be read on, in words.
pub(super) fn told(group: u32, problem: &Problem) -> String {
    match problem {
        Problem::Gap(first, last) => format!(
            "group {group}: entries {first} to {last} were never archived, since the log did not hold them any more when \
             the archive could be written again"
        ),
        Problem::Missing(first, last) => {
            format!("group {group}: entries {first} to {last} are in no file: a file of the archive is missing")
        }
        Problem::Fault(fault) => format!("group {group}: {fault}"),
    }
}

/// A moment as people write it: date and time in UTC, with a blank or a T between, fractions of a second, and Z as they
/// like.
///
/// # Errors
/// If it is none.
pub(super) fn parse_moment(text: &str) -> Result<UnixMillis> {
    let read = || {
        let text = text.trim().trim_end_matches(['Z', 'z']);
        let (date, time) = text.split_once([' ', 'T']).unwrap_or((text, "00:00:00"));
        let numbers = |text: &str, by: char| -> Option<Vec<i64>> {
            text.split(by).map(|word| word.parse().ok().filter(|number| *number >= 0)).collect()
        };
        let [year, month, day] = numbers(date, '-')?[..] else { return None };
        let (whole, fraction) = time.split_once('.').unwrap_or((time, "0"));
        let (hour, minute, second) = match numbers(whole, ':')?[..] {
            [hour, minute, second] => (hour, minute, second),
            [hour, minute] => (hour, minute, 0),
            _ => return None,
        };
        let millis: i64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
        let fits =
            (1..=12).contains(&month) && hour < 24 && minute < 60 && second < 60 && (1970..10_000).contains(&year);
        let seconds = days_of(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
        let moment = UnixMillis(seconds * 1_000 + millis);
        // A day that the month does not have comes out as another.
        let shown = edge::utc(moment);
        (fits && shown.starts_with(&format!("{year:04}-{month:02}-{day:02}"))).then_some(moment)
    };
    read().ok_or_else(|| anyhow!("'{text}' is not a time: write it as '2026-11-23 01:00:00', in UTC"))
}

/// Days from 1970-01-01 to a day of the Gregorian calendar, after Howard Hinnant's "chrono-compatible low-level date
/// algorithms" (2013).
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year - era * 400;
    let day_of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use archive::{BaseWriter, GroupWriter, Manifest};
    use node::entry::Builder;

    use super::*;

    #[test]
    fn moments_are_read_as_they_are_shown() {
        for ms in [0, 951_782_400_000, 1_795_395_600_123, 4_102_444_799_999] {
            let shown = edge::utc(UnixMillis(ms));
            assert_eq!(parse_moment(&shown).unwrap(), UnixMillis(ms), "{shown}");
        }
        assert_eq!(parse_moment("2026-11-23 01:00").unwrap(), parse_moment("2026-11-23T01:00:00.0Z").unwrap());
        assert_eq!(parse_moment("2026-11-23").unwrap(), parse_moment("2026-11-23 00:00:00").unwrap());
        for wrong in ["", "yesterday", "2026-02-30 00:00:00", "2026-13-01", "2026-11-23 24:00:00", "2026-11-23 1"] {
            assert!(parse_moment(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_group_that_split_off_is_promised_from_where_its_beginning_can_be_had() {
        let directory = std::env::temp_dir().join(format!("holdfast-view-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let address = format!("file://{}", directory.display());
        let place = Place::parse(&address).unwrap();
        let wanted = Manifest { name: 7, cluster: 8, groups: 1, databases: 16, key: None };
        let archive = Archive::open_or_make(&place, &wanted, None).unwrap();
        let moment = |index: u64| UnixMillis(1_000 * index as i64);
        let entry = |index: u64, born: Option<Born>| {
            let mut builder = Builder::default();
            builder.set_level(stdx::Level(2));
            match born {
                Some(born) => builder.born(born),
                None => builder.tick(),
            }
            let data = builder.finish(keyspace::Moment { unix: moment(index), seed: 0 });
            Entry { term: 1, index, kind: EntryKind::Normal, data }
        };
        let log = |group, first: u64, born: Option<Born>| {
            let mut writer = GroupWriter::open(&archive, group, 1, 1).unwrap();
            if first > 1 {
                writer.skip_to(first - 1, 1);
            }
            let entries: Vec<_> = (first..=90).map(|index| entry(index, born.filter(|_| index == 1))).collect();
            writer.append(&entries, Some(moment(90))).unwrap();
        };
        let base = |group, index, at: u64| {
            let mut base = BaseWriter::begin(&archive, group, (index, 1, moment(at)), 1, 1).unwrap();
            base.push(&[0]).unwrap();
            base.finish().unwrap();
        };
        // The first group split at its entry 20, and nothing is left of what came before its entry 50.
        base(0, 50, 50);
        log(0, 51, None);
        let born = Born { parent: group::ids::GroupId(0), index: 20 };
        log(1, 1, Some(born));
        let range = || View::of(&address, None).unwrap().range();
        assert!(range().unwrap_err().to_string().contains("it holds nothing yet of group 1"));
        base(1, 60, 60);
        assert_eq!(range().unwrap(), (moment(60), UnixMillis(moment(90).0 - 1)));
        base(0, 10, 10);
        assert_eq!(range().unwrap().0, moment(10), "the beginning follows from this base");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}

//! `holdfast recover --compare`: which of several survivors has most.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use group::ids::GroupId;
use journal::RecoveredGroup;
use state::Beginnings;

use super::Found;
use crate::backup::Pace;

/// The end of a group's log: term and index of its last entry. The later term has what the earlier one had committed,
/// and in one term the longer log has what the shorter one has.
type End = (u64, u64);

/// Looks into each, and prints a table.
pub fn run(directories: &[PathBuf], pace: &mut Pace) -> Result<()> {
    ensure!(directories.len() > 1, "name two directories or more");
    let (mut all, mut ends): (Vec<Found>, Vec<Vec<End>>) = (Vec::new(), Vec::new());
    let mut cluster = None;
    for directory in directories {
        let found = Found::look(directory)?;
        let cluster = *cluster.get_or_insert(found.identity().cluster);
        ensure!(
            found.identity().cluster == cluster,
            "{} is of another cluster than {}",
            directory.display(),
            directories[0].display()
        );
        ends.push(found.groups().map(|(_, group)| group.map_or((0, 0), end_of)).collect());
        all.push(found);
    }
    // A node gives up the log of a group that was merged into another one: who still has it is not further.
    let furthest = (0..all.len()).max_by_key(|directory| ends[*directory].first().copied());
    let merged = furthest.map_or_else(|| Ok(BTreeSet::new()), |directory| all[directory].merged_groups(pace))?;
    pace.end();
    for group in &merged {
        for end in ends.iter_mut().filter_map(|ends| ends.get_mut(*group as usize)) {
            *end = (0, 0);
        }
    }
    let mut rows = vec![vec!["directory".to_owned()]];
    let group_count = ends.iter().map(Vec::len).max().unwrap_or(0);
    rows[0].extend((0..group_count).map(|group| format!("group {group}: term, last entry")));
    for (directory, ends) in directories.iter().zip(&ends) {
        let mut row = vec![directory.display().to_string()];
        row.extend((0..group_count).map(|group| match ends.get(group) {
            _ if u32::try_from(group).is_ok_and(|group| merged.contains(&group)) => "merged".to_owned(),
            Some((term, index)) => format!("{term}, {index}"),
            None => "0, 0".to_owned(),
        }));
        rows.push(row);
    }
    let mut page = String::new();
    crate::output::table(&rows, &mut page);
    say!("{page}");
    match most(&ends) {
        Most::All(first) => {
            say_line!("\n{} has most of every group: recover this one.", directories[first].display());
        }
        Most::Some(first, lacks) => {
            let lacks: Vec<String> = lacks.iter().map(ToString::to_string).collect();
            say_line!(
                "\nNo directory has most of every group. {} has most of most groups; another has more of group {}.",
                directories[first].display(),
                lacks.join(", ")
            );
        }
    }
    Ok(())
}

impl Found {
    /// The groups that have been merged into others, as far as the log of group 0 tells.
    fn merged_groups(&mut self, pace: &mut Pace) -> Result<BTreeSet<u32>> {
        let numbers: Vec<u32> = self.groups().map(|(group, _)| group).collect();
        // They are vacated, and others may be.
        if !self.groups().any(|(_, group)| group.is_some_and(RecoveredGroup::is_vacated)) {
            return Ok(BTreeSet::new());
        }
        let of_log = self.recovered.groups.remove(&0).unwrap_or_default();
        let replayed = self.replay(0, of_log, None, &mut Beginnings::default(), pace)?;
        let roster = replayed.state.roster();
        Ok(numbers.into_iter().filter(|group| roster.is_gone(GroupId(*group))).collect())
    }
}

fn end_of(group: &RecoveredGroup) -> End {
    let of_checkpoint = group.checkpoint.as_ref().map_or((0, 0), |mark| (mark.term, mark.index));
    group.entries.last().map_or(of_checkpoint, |entry| (entry.term, entry.index))
}

#[derive(Debug, PartialEq, Eq)]
enum Most {
    /// This one has as much as any other of every group.
    All(usize),
    /// This one has of the most groups, and lacks something of these.
    Some(usize, Vec<usize>),
}

fn most(ends: &[Vec<End>]) -> Most {
    let group_count = ends.iter().map(Vec::len).max().unwrap_or(0);
    let end = |directory: usize, group: usize| ends[directory].get(group).copied().unwrap_or_default();
    let furthest = |group: usize| (0..ends.len()).map(|directory| end(directory, group)).max().unwrap_or_default();
    let lacks = |directory: usize| -> Vec<usize> {
        (0..group_count).filter(|group| end(directory, *group) < furthest(*group)).collect()
    };
    let first = (0..ends.len()).min_by_key(|directory| lacks(*directory).len()).unwrap_or(0);
    match lacks(first) {
        none if none.is_empty() => Most::All(first),
        some => Most::Some(first, some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_term_has_more_and_in_one_term_the_longer_log() {
        assert_eq!(most(&[vec![(2, 90), (1, 5)], vec![(3, 70), (1, 5)]]), Most::All(1));
        assert_eq!(most(&[vec![(3, 71), (1, 5)], vec![(3, 70), (1, 5)]]), Most::All(0));
        assert_eq!(most(&[vec![(3, 71), (1, 5)], vec![(3, 70), (1, 6)], vec![(1, 1), (1, 1)]]), Most::Some(0, vec![1]));
        // Nothing at all is less than anything.
        assert_eq!(most(&[vec![(0, 0)], vec![(1, 1)]]), Most::All(1));
    }
}

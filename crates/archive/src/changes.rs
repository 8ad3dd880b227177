//! What an archive holds of changes: what all groups have done, as it is told to readers of changes.
//!
//! A file is one of a node's backlog, as it was when the next one was begun. Each node has its own backlog, and any of
//! them may have written a file, so files overlap. Anyone who reads on goes by what is in the file; its name says where
//! it is worth a look.

use std::collections::BTreeMap;
use std::path::PathBuf;

use stdx::UnixMillis;

use crate::fault::Fault;
use crate::manifest::Archive;
use crate::place::Name;

/// Which changes a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangesSpan {
    /// It has everything of later moments than this one: the latest at which a group begins in it.
    pub from: UnixMillis,
    /// It has nothing of later moments than this one: the latest at which a group ends in it.
    pub until: UnixMillis,
    /// It has everything of earlier moments than this one: the earliest at which a group ends in it.
    pub closed: UnixMillis,
    /// The node that wrote it. The next file of the same node begins at the moment `until`.
    pub writer: u64,
}

/// A file with changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangesInfo {
    /// The file.
    pub path: PathBuf,
    /// Bytes of it.
    pub bytes: u64,
    /// Which changes it has.
    pub span: ChangesSpan,
}

impl Archive {
    /// The files with changes, those that begin earlier in front.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub fn list_changes(&self) -> Result<Vec<ChangesInfo>, Fault> {
        let directory = self.changes_directory();
        let files = self.place().list(&directory, "changes-", "");
        let files = files.map_err(|error| Fault::io("list", &directory, error))?;
        let info = |(path, bytes): (PathBuf, u64)| {
            // A file that is being made has another name.
            let Some(Name::Changes { from, until, closed, writer }) = Name::decode(path.file_name()?.to_str()?) else {
                return None;
            };
            Some(ChangesInfo { path, bytes, span: ChangesSpan { from, until, closed, writer } })
        };
        let mut found: Vec<ChangesInfo> = files.into_iter().filter_map(info).collect();
        found.sort_by(|a, b| (a.span.from, a.span.until, &a.path).cmp(&(b.span.from, b.span.until, &b.path)));
        Ok(found)
    }

    /// Removes changes that are all before `horizon`, and of the rest the oldest, while all of them take up more than
    /// `bytes_max` (0 is without bound). What has been removed.
    ///
    /// # Errors
    /// If something cannot be listed or removed.
    pub fn expire_changes(&self, horizon: Option<UnixMillis>, bytes_max: u64) -> Result<Vec<PathBuf>, Fault> {
        let mut removed = Vec::new();
        let files = self.list_changes()?;
        let mut bytes: u64 = files.iter().map(|file| file.bytes).sum();
        for file in files {
            let is_old = horizon.is_some_and(|horizon| file.span.until < horizon);
            if !is_old && (bytes_max == 0 || bytes <= bytes_max) {
                continue;
            }
            self.place().remove(&file.path).map_err(|error| Fault::io("remove", &file.path, error))?;
            bytes -= file.bytes;
            removed.push(file.path);
        }
        Ok(removed)
    }
}

/// True if files have everything of the moments from `first` to `last`, both among them. They are in the order of
/// [`Archive::list_changes`].
pub fn has_all(files: &[ChangesInfo], first: UnixMillis, last: UnixMillis) -> bool {
    let mut closed = None;
    let mut ends: BTreeMap<u64, UnixMillis> = BTreeMap::new();
    for ChangesInfo { span, .. } in files {
        let goes_on = ends.get(&span.writer) == Some(&span.from);
        if span.from < first || goes_on || closed.is_some_and(|closed| span.from < closed) {
            closed = closed.max(Some(span.closed));
            ends.insert(span.writer, span.until);
        }
    }
    closed.is_some_and(|closed| closed > last)
}

/// The moments of which files have everything, up to the last: from which on, and up to which. None if there are none.
pub fn told_span(files: &[ChangesInfo]) -> Option<(UnixMillis, UnixMillis)> {
    let last = UnixMillis(files.iter().map(|file| file.span.closed).max()?.0.saturating_sub(1));
    let mut firsts = files.iter().map(|file| UnixMillis(file.span.from.0.saturating_add(1)));
    Some((firsts.find(|first| has_all(files, *first, last))?, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_one_node_follow_on_each_other_and_those_of_several_overlap() {
        let file = |from, until, closed, writer| {
            let [from, until, closed] = [from, until, closed].map(UnixMillis);
            ChangesInfo { path: PathBuf::new(), bytes: 1, span: ChangesSpan { from, until, closed, writer } }
        };
        let all = |files: &[ChangesInfo], first, last| has_all(files, UnixMillis(first), UnixMillis(last));
        let own = [file(10, 20, 18, 1), file(20, 30, 29, 1)];
        assert!(all(&own, 11, 28));
        assert!(!all(&own, 11, 29), "more of that moment may come");
        assert!(!all(&own, 10, 28), "some of that moment may be before it");
        let mixed = [file(10, 20, 18, 1), file(17, 30, 29, 2)];
        assert!(all(&mixed, 11, 28));
        let gap = [file(10, 20, 18, 1), file(19, 30, 29, 2)];
        assert!(!all(&gap, 11, 28), "what is between 18 and 19 may lack");
        assert!(all(&gap, 20, 28));
        assert_eq!(told_span(&own), Some((UnixMillis(11), UnixMillis(28))));
        assert_eq!(told_span(&gap), Some((UnixMillis(20), UnixMillis(28))));
        assert_eq!(told_span(&[]), None);
        let anew = [file(10, 20, 18, 1), file(21, 30, 29, 1)];
        assert!(!all(&anew, 11, 28), "the node has started over");
        assert!(!all(&[], 1, 1));
    }
}

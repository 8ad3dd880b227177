//! `holdfast archive list`.

use anyhow::Result;
use stdx::UnixMillis;

use super::view::View;
use crate::backup::grouped;

/// Tells what is in an archive.
///
/// # Errors
/// If what is told cannot be printed.
pub(super) fn run(view: &View) -> Result<()> {
    let shown = |moment: UnixMillis| if moment.0 == i64::MIN { "-".to_owned() } else { edge::utc(moment) };
    say_line!("{:>5} {:<25} {:<25} {:>12} {:>16} files", "group", "from", "to", "last entry", "bytes");
    for (number, group) in view.groups.iter().enumerate() {
        let (from, to) = match group.earliest {
            Some(earliest) => (shown(earliest), shown(group.closed())),
            None => ("-".to_owned(), "-".to_owned()),
        };
        let (last, bytes) = (grouped(group.end.index), grouped(group.bytes()));
        say_line!("{number:>5} {from:<25} {to:<25} {last:>12} {bytes:>16} {}", group.files());
    }
    for fault in view.groups.iter().flat_map(|group| group.listing.faults.iter().chain(&group.damage)) {
        say_line!("damaged: {fault}");
    }
    if let Some(told) = view.told_changes() {
        say_line!("{told}");
    }
    match view.range() {
        Ok((first, last)) => {
            say_line!("can be restored to any moment from {} to {}", edge::utc(first), edge::utc(last));
        }
        Err(error) => say_line!("{error:#}"),
    }
    Ok(())
}

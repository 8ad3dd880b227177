//! What an operator is told of a directory before deciding.

use std::fmt::Write as _;

use edge::utc;
use group::ids::GroupId;
use stdx::UnixMillis;

use super::{GroupFound, Recovery, counted};
use crate::backup::grouped;

/// All of it.
pub fn page(recovery: &Recovery) -> String {
    let Recovery { found, groups, unresolved } = recovery;
    let identity = found.identity();
    let mut page = format!(
        "{}: node {} of cluster {:032x}, {}\n\n",
        found.directory.display(),
        identity.node,
        identity.cluster,
        counted(groups.len(), "group")
    );
    let mut rows =
        vec![["group", "keys", "last entry", "term", "known committed", "written", "voters"].map(str::to_owned)];
    let now = edge::unix_millis();
    for group in groups {
        rows.push(row(group, now));
    }
    crate::output::table(&rows, &mut page);
    page.push('\n');
    if let Some(why) = &found.recovered.tail_in_question {
        let _ = writeln!(page, "The end of the log is in question: {why}.");
    }
    if found.may_lack_its_end() && found.recovered.tail_in_question.is_none() {
        page.push_str(
            "IN DOUBT: the node was not stopped cleanly, and acknowledged before the disk had what it\n\
             acknowledged (appendfsync everysec or no). If its machine lost power, the end of the log may be missing.\n",
        );
    }
    for group in groups {
        lines_of_group(group, identity.node, &mut page);
    }
    for (transaction, found) in unresolved {
        let names = |groups: &[GroupId]| {
            let names: Vec<String> = groups.iter().map(|group| group.0.to_string()).collect();
            names.join(", ")
        };
        let fate = match (found.is_torn(), found.is_committed()) {
            (true, _) => format!(
                "was committed, and stays so; what it changed in group {} is LOST: the log there ends before it",
                names(&found.unknown)
            ),
            (false, true) if found.committed.is_empty() => "is committed: all its groups have prepared it".to_owned(),
            (false, true) => format!("is committed, as it was in group {}", names(&found.committed)),
            (false, false) if found.aborted.is_empty() => {
                format!("is undone: group {} knows nothing of it", names(&found.unknown))
            }
            (false, false) => format!("is undone, as it was in group {}", names(&found.aborted)),
        };
        let (node, number) = (transaction.gateway.node, transaction.number);
        let prepared = names(&found.prepared);
        let _ = writeln!(page, "Transaction {number} of node {node}, prepared in group {prepared}, {fate}.");
    }
    page
}

fn row(group: &GroupFound, now: UnixMillis) -> [String; 7] {
    let applied = group.state.applied();
    let written = group.state.moment().unix;
    let keys: u64 = (0..super::DATABASES).map(|database| group.state.keyspace().key_count(database) as u64).sum();
    let written = if written == UnixMillis(0) {
        // Only leaders have been elected.
        "nothing".to_owned()
    } else {
        format!("{} ({} ago)", utc(written), ago(now.0.saturating_sub(written.0)))
    };
    [
        group.state.group().0.to_string(),
        grouped(keys),
        applied.index.to_string(),
        applied.term.to_string(),
        group.hard_state.commit.to_string(),
        written,
        group.membership.voters.len().to_string(),
    ]
}

fn lines_of_group(group: &GroupFound, node: u64, page: &mut String) {
    let (number, applied) = (group.state.group().0, group.state.applied());
    if applied.index == 0 {
        let _ = writeln!(page, "Group {number}: NOTHING of it is here. All its keys are lost.");
        return;
    }
    let voters = group.membership.voters.len();
    if !group.membership.voters.contains(&node) {
        let _ = writeln!(page, "Group {number}: the node had no vote in it, and may be far behind those that had.");
    } else if voters > 1 {
        let _ = writeln!(
            page,
            "Group {number}: what {} of the other {} acknowledged behind entry {} without this node is lost.",
            voters / 2 + 1,
            voters - 1,
            applied.index
        );
    }
    let what = match group.uncommitted_count() {
        0 => return,
        1 => "the last entry may have been acknowledged or not, and is kept".to_owned(),
        count => format!("the last {count} entries may have been acknowledged or not, and are kept"),
    };
    let _ = writeln!(page, "Group {number}: {what}.");
}

/// A time in the past as people say it.
fn ago(ms: i64) -> String {
    let seconds = ms.max(0) / 1000;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

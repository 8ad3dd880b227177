//! Where a node that has lost its roster finds the others. `holdfast repair` writes it down; once the node has been
//! given the group of the metadata, the roster knows better.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

use group::ids::NodeId;
use node::roster::Member;

use crate::fault::Fault;

/// Where a data directory keeps it. The journal takes no notice of names with a dot.
pub const CONTACTS_FILE: &str = ".other-nodes";

/// Another node, and where it is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contact {
    /// Its number.
    pub node: u64,
    /// `HOST:PORT` for other nodes.
    pub cluster_address: String,
}

/// Keeps them in a data directory.
///
/// # Errors
/// Those of the file system.
pub fn write(directory: &Path, contacts: &[Contact]) -> Result<(), Fault> {
    let path = directory.join(CONTACTS_FILE);
    let lines: String =
        contacts.iter().map(|contact| format!("{} {}\n", contact.node, contact.cluster_address)).collect();
    let written = File::create(&path).and_then(|mut file| {
        file.write_all(lines.as_bytes())?;
        file.sync_all()
    });
    written.map_err(|cause| Fault::File { path, purpose: "write", cause })
}

/// The nodes that a directory remembers, if it was repaired and has not been given the roster since ([`forget`]). A
/// file with the name of a checkpoint proves nothing: it may be half of one that was on its way when the process died.
///
/// # Errors
/// If the file cannot be read, or does not say what it should.
pub fn read(directory: &Path) -> Result<Vec<(NodeId, Member)>, Fault> {
    let path = directory.join(CONTACTS_FILE);
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.map_err(|cause| Fault::File { path: path.clone(), purpose: "read", cause })?,
    };
    let contact = |line: &str| {
        let (node, cluster_address) = line.split_once(' ')?;
        let member = Member { cluster_address: cluster_address.to_owned(), ..Member::default() };
        Some((NodeId(node.parse().ok()?), member))
    };
    text.lines().map(contact).collect::<Option<Vec<_>>>().ok_or_else(|| Fault::File {
        path,
        purpose: "read",
        cause: io::Error::new(ErrorKind::InvalidData, "it holds a line that names no node and address"),
    })
}

/// A checkpoint of group 0 counts by the log: it names the other nodes. Where the file cannot be removed it stays, and
/// what it names is greeted once more at the next start.
pub fn forget(directory: &Path) {
    let _ = fs::remove_file(directory.join(CONTACTS_FILE));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::tests::Scratch;

    #[test]
    fn contacts_are_remembered_until_they_are_forgotten() {
        let scratch = Scratch::new();
        assert_eq!(read(&scratch.0).expect("a folder"), Vec::new());
        let contacts = [(5, "127.0.0.1:16379"), (u64::MAX >> 2, "[::1]:26379")]
            .map(|(node, address)| Contact { node, cluster_address: address.to_owned() });
        write(&scratch.0, &contacts).expect("a folder");
        let found = read(&scratch.0).expect("sound");
        let shown: Vec<_> = found.iter().map(|(node, member)| (node.0, member.cluster_address.as_str())).collect();
        assert_eq!(shown, [(5, "127.0.0.1:16379"), (u64::MAX >> 2, "[::1]:26379")]);
        // Half of a checkpoint that was on its way when the process died.
        fs::write(scratch.0.join("checkpoint-00000-0000000000000007"), "").expect("a folder");
        assert_eq!(read(&scratch.0).expect("sound").len(), 2);
        fs::write(scratch.0.join(CONTACTS_FILE), "nonsense\n").expect("a folder");
        assert!(read(&scratch.0).is_err());
        forget(&scratch.0);
        assert_eq!(read(&scratch.0).expect("sound"), Vec::new());
    }
}

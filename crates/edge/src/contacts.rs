//! Where a node that has lost its roster finds the others. `holdfast repair` writes it down; once the node has been
//! given the group of the metadata, the roster knows better.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

use node::event::NodeId;
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

/// The nodes that a directory remembers, if it was repaired and has not been given a checkpoint since. The file goes
/// when it has.
///
/// # Errors
/// If it cannot be read, or does not say what it should.
pub fn read(directory: &Path) -> Result<Vec<(NodeId, Member)>, Fault> {
    let path = directory.join(CONTACTS_FILE);
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.map_err(|cause| Fault::File { path: path.clone(), purpose: "read", cause })?,
    };
    let entries =
        fs::read_dir(directory).map_err(|cause| Fault::File { path: directory.to_owned(), purpose: "list", cause })?;
    let knows_roster = |name: &str| name.starts_with("checkpoint-00000-");
    if entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).any(|name| knows_roster(&name)) {
        // It is read no more, so it does no harm where it cannot be removed.
        let _ = fs::remove_file(&path);
        return Ok(Vec::new());
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::tests::Scratch;

    #[test]
    fn contacts_are_remembered_until_there_is_a_roster() {
        let scratch = Scratch::new();
        assert_eq!(read(&scratch.0).expect("a folder"), Vec::new());
        let contacts = [(5, "127.0.0.1:16379"), (u64::MAX >> 2, "[::1]:26379")]
            .map(|(node, address)| Contact { node, cluster_address: address.to_owned() });
        write(&scratch.0, &contacts).expect("a folder");
        let found = read(&scratch.0).expect("sound");
        let shown: Vec<_> = found.iter().map(|(node, member)| (node.0, member.cluster_address.as_str())).collect();
        assert_eq!(shown, [(5, "127.0.0.1:16379"), (u64::MAX >> 2, "[::1]:26379")]);
        fs::write(scratch.0.join(CONTACTS_FILE), "nonsense\n").expect("a folder");
        assert!(read(&scratch.0).is_err());
        fs::write(scratch.0.join("checkpoint-00000-0000000000000007"), "").expect("a folder");
        assert_eq!(read(&scratch.0).expect("sound"), Vec::new());
        assert!(!scratch.0.join(CONTACTS_FILE).exists());
    }
}

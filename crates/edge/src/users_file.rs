//! The file of users (`aclfile`).

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use node::event::UsersFile;

/// Reads the file, or puts another in its place: whoever reads it meanwhile, or after a crash, finds the old one or the
/// new one.
///
/// # Errors
/// Those of the file system.
pub fn carry_out(path: &str, step: UsersFile) -> io::Result<Vec<u8>> {
    let path = Path::new(path);
    let text = match step {
        UsersFile::Load => return fs::read(path),
        UsersFile::Save(text) => text,
    };
    let beside = path.with_extension(format!("tmp-{}", std::process::id()));
    let written = write_through(&beside, &text).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // What is left behind would only be in the way; that it cannot be removed changes nothing.
        let _ = fs::remove_file(&beside);
    }
    written?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()?;
    Ok(Vec::new())
}

fn write_through(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(text)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_loaded_and_nothing_is_left_beside_it() {
        let folder = std::env::temp_dir().join(format!("holdfast-users-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("users.acl");
        let name = path.to_str().expect("a name in UTF-8");
        for text in [b"user default on\n".as_slice(), b"user other off\n"] {
            carry_out(name, UsersFile::Save(text.to_vec())).expect("a place to write");
            assert_eq!(carry_out(name, UsersFile::Load).expect("just written"), text);
        }
        assert_eq!(fs::read_dir(&folder).expect("the folder").count(), 1);
        let missing = folder.join("none");
        assert!(carry_out(missing.to_str().expect("a name"), UsersFile::Load).is_err());
        fs::remove_dir_all(&folder).expect("ours");
    }
}

//! The file of users (`aclfile`), and that of the configuration when it is written again.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use node::event::UsersFile;
use node::settings::rewritten;

/// Permissions of a file that there was not before.
const OWNER_ONLY: u32 = 0o600;

/// Reads the file, or puts another in its place: anyone who reads it meanwhile, or after a crash, finds the old one or
/// the new one.
///
/// # Errors
/// Those of the file system.
pub fn carry_out(path: &str, step: UsersFile) -> io::Result<Vec<u8>> {
    // What a link points to is put in its place, and not the link.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| PathBuf::from(path));
    let text = match step {
        UsersFile::Load => return fs::read(path),
        UsersFile::Save(text) => text,
        UsersFile::Rewrite { settings, users } => {
            let before = match fs::read_to_string(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
                before => before?,
            };
            let text = rewritten(&before, &settings, users.as_deref());
            if text == before {
                return Ok(Vec::new());
            }
            text.into_bytes()
        }
    };
    // Those that could read the file still can, and if there was none only its owner can: there may be passwords in it.
    let mode = fs::metadata(path).map_or(OWNER_ONLY, |before| before.permissions().mode() & 0o777);
    let beside = path.with_extension(format!("tmp-{}", std::process::id()));
    let written = write_through(&beside, &text, mode).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // What is left behind would only be in the way; that it cannot be removed changes nothing.
        let _ = fs::remove_file(&beside);
    }
    written?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()?;
    Ok(Vec::new())
}

fn write_through(path: &Path, text: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(OWNER_ONLY).open(path)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(text)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use node::settings::Settings;

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

    #[test]
    fn a_file_that_is_written_anew_is_read_by_whom_it_was_read_before() {
        let folder = std::env::temp_dir().join(format!("holdfast-rewrite-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let (path, link) = (folder.join("a.conf"), folder.join("link.conf"));
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        let mut settings = Settings::default();
        settings.set("timeout", "7").expect("a number");
        let step = UsersFile::Rewrite { settings: Arc::new(settings), users: None };
        carry_out(path.to_str().expect("a name"), step.clone()).expect("a place to write");
        assert_eq!(mode(&path), OWNER_ONLY);
        assert!(fs::read_to_string(&path).expect("just written").ends_with("timeout 7\n"));
        fs::write(&path, "# mine\ntimeout 5\n").expect("ours");
        fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("ours");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        carry_out(link.to_str().expect("a name"), step).expect("a place to write");
        assert_eq!(fs::read_to_string(&path).expect("just written"), "# mine\ntimeout 7\n");
        assert!(mode(&path) == 0o640 && link.is_symlink());
        assert_eq!(fs::read_dir(&folder).expect("the folder").count(), 2);
        fs::remove_dir_all(&folder).expect("ours");
    }
}

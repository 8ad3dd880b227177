//! Chance, from the operating system.

use std::fs::File;
use std::io::{self, Read};

/// So many random bytes.
///
/// # Errors
/// If the operating system has no `/dev/urandom`, as in a bare chroot.
pub fn random_bytes<const LENGTH: usize>() -> io::Result<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A random number that is not zero, since zero often means none.
///
/// # Errors
/// See [`random_bytes`].
pub fn random_id() -> io::Result<u64> {
    Ok(u64::from_le_bytes(random_bytes()?).max(1))
}

/// So many random bytes as lower-case hexadecimal digits, two each.
///
/// # Errors
/// See [`random_bytes`].
pub fn random_hex<const LENGTH: usize>() -> io::Result<String> {
    Ok(random_bytes::<LENGTH>()?.iter().map(|byte| format!("{byte:02x}")).collect())
}

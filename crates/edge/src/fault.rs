//! What an operator must act on.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why the server cannot start, or has to stop.
#[derive(Debug)]
pub enum Fault {
    /// Nobody can be listened to at this address.
    Listen {
        /// `ADDRESS:PORT` or a path.
        address: String,
        /// The option that names another one.
        option: &'static str,
        /// What the system said.
        cause: io::Error,
    },
    /// An address in `bind` is none.
    Address {
        /// As given.
        address: String,
    },
    /// A file or directory of the host cannot be used.
    File {
        /// Which.
        path: PathBuf,
        /// What it was needed for.
        purpose: &'static str,
        /// What the system said.
        cause: io::Error,
    },
    /// The operating system refused something that the server cannot do without.
    System {
        /// What was being done.
        purpose: &'static str,
        /// What the system said.
        cause: io::Error,
    },
    /// The data cannot be used. Says by itself what to do.
    Data(String),
    /// A configuration parameter has a value that cannot be carried out.
    Setting {
        /// Which.
        name: &'static str,
        /// Why.
        cause: String,
    },
}

impl Fault {
    /// What the journal found in a directory, with what to do about it.
    pub fn data(directory: &Path, fault: &journal::Fault) -> Self {
        let advice = match fault {
            journal::Fault::Damaged { .. } | journal::Fault::Missing { .. } => {
                ": nothing has been changed. If this is a node of a cluster, `holdfast repair` has the others fill it again; \
                 otherwise bring the directory back from a copy or a backup, or start with another --data-dir"
            }
            journal::Fault::Newer { .. } => ": start the version that wrote it",
            journal::Fault::Full { .. } => ": make room and start again",
            journal::Fault::Foreign { .. } if file_of_redis(directory).is_some() => {
                ". It is a directory of Redis: bring its data into a running server with holdfast import DIRECTORY, \
                 or start with an empty --data-dir and --import DIRECTORY"
            }
            journal::Fault::Io { .. } | journal::Fault::Foreign { .. } | journal::Fault::Level { .. } => "",
        };
        let whose = match fault {
            journal::Fault::Damaged { file, .. } | journal::Fault::Missing { file, .. } => {
                journal::group_of_checkpoint(file).map(|group| format!(" (group {group})")).unwrap_or_default()
            }
            _ => String::new(),
        };
        Self::Data(format!("data directory {}: {fault}{whose}{advice}", directory.display()))
    }
}

/// The file, or the directory of files, that Redis keeps its data in, if there is one.
pub fn file_of_redis(directory: &Path) -> Option<&'static str> {
    ["appendonlydir", "appendonly.aof", "dump.rdb"].into_iter().find(|name| directory.join(name).exists())
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen { address, option, cause } => {
                write!(formatter, "cannot listen on {address}: {}: ", plain(cause))?;
                match cause.kind() {
                    io::ErrorKind::AddrInUse => {
                        write!(
                            formatter,
                            "another server uses it, or another option of this one; choose another with {option}"
                        )
                    }
                    io::ErrorKind::AddrNotAvailable => {
                        formatter.write_str("this machine has no such address; correct --bind")
                    }
                    io::ErrorKind::PermissionDenied => {
                        formatter.write_str("choose a port above 1023, or a place that you may write to")
                    }
                    _ => write!(formatter, "choose another address with --bind and {option}"),
                }
            }
            Self::Address { address } => {
                write!(formatter, "\"{address}\" is not an address of this machine: correct --bind")
            }
            Self::File { path, purpose, cause } => {
                write!(formatter, "cannot {purpose} {}: {}", path.display(), plain(cause))
            }
            Self::System { purpose, cause } => write!(formatter, "cannot {purpose}: {}", plain(cause)),
            Self::Data(told) => formatter.write_str(told),
            Self::Setting { name, cause } => write!(formatter, "{name}: {cause}"),
        }
    }
}

impl std::error::Error for Fault {}

/// The system's words without the error number, which tells an operator nothing.
fn plain(cause: &io::Error) -> String {
    let text = cause.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_told_in_one_line_with_what_to_do() {
        let cause = io::Error::from_raw_os_error(98);
        assert_eq!(
            Fault::Listen { address: "127.0.0.1:6379".into(), option: "--port", cause }.to_string(),
            "cannot listen on 127.0.0.1:6379: address already in use: another server uses it, or another option of \
             this one; choose another with --port"
        );
    }
}

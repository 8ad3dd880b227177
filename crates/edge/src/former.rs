//! The cluster that a directory belonged to before `holdfast recover` made a new one of it.
//!
//! Its other nodes were lost. One that comes back dials the addresses that it knows, and must learn that the cluster
//! goes on without it. Nothing of the old cluster is trusted, so TLS would end such a link without a word. Therefore
//! this node keeps a certificate of the old authority, under the number that it had there, and uses it to answer nodes
//! that trust nobody else; its only use is to say no. The key of the old authority itself is not kept.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::fault::Fault;
use crate::tls;
use crate::trust::{self, Authority};

/// Where a data directory keeps it. The journal takes no notice of names with a dot.
pub const FORMER_FILE: &str = ".recovered-from";

/// How long the certificate is good: a node that comes back later than that is told less.
const LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

const TITLE: &str = "What this cluster was recovered from: nodes of that one are refused.";

/// See the module.
#[derive(Clone)]
pub struct Former {
    /// The cluster.
    pub cluster: u128,
    /// What to show to its nodes; none if it had no authority of its own.
    pub shown: Option<Arc<Shown>>,
}

/// A certificate of the old authority.
pub struct Shown {
    /// The certificate, with that of the authority behind it.
    pub chain: Vec<CertificateDer<'static>>,
    /// The key for it.
    pub key: PrivateKeyDer<'static>,
}

/// Not its key.
impl fmt::Debug for Former {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Former {:032x}", self.cluster)
    }
}

impl Former {
    /// Of a cluster in which this node had this number.
    pub fn of(cluster: u128, node: u64, authority: Option<&Authority>, now_s: u64) -> Self {
        let shown = authority.map(|authority| {
            let (chain, key) = authority.issue_for(node, now_s, LIFETIME);
            Arc::new(Shown { chain, key })
        });
        Self { cluster, shown }
    }

    /// True if a caller is of that cluster: by what it says, or by the certificate that it shows.
    pub fn has(&self, shown: Option<&CertificateDer<'_>>, cluster: u128) -> bool {
        let authority = self.shown.as_ref().and_then(|own| own.chain.last());
        let is_signed = shown.zip(authority).is_some_and(|(shown, authority)| tls::is_signed_by(shown, authority));
        cluster == self.cluster || is_signed
    }

    /// What a data directory remembers.
    ///
    /// # Errors
    /// If it cannot be read, or is damaged.
    pub fn read(directory: &Path) -> Result<Option<Self>, Fault> {
        let path = directory.join(FORMER_FILE);
        match fs::read(&path) {
            Ok(bytes) => Self::decode(&bytes).map(Some).map_err(|why| Fault::File {
                path,
                purpose: "read",
                cause: io::Error::new(ErrorKind::InvalidData, why),
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(Fault::File { path, purpose: "read", cause }),
        }
    }

    /// Keeps it in a data directory.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, directory: &Path) -> Result<(), Fault> {
        let path = directory.join(FORMER_FILE);
        let mut text = format!("{TITLE}\ncluster {:032x}\n", self.cluster);
        if let Some(shown) = &self.shown {
            shown.chain.iter().for_each(|certificate| text.push_str(&trust::pem("CERTIFICATE", certificate)));
            text.push_str(&trust::pem("PRIVATE KEY", shown.key.secret_der()));
        }
        trust::write_secret(&path, &trust::seal(text)).map_err(|cause| Fault::File { path, purpose: "write", cause })
    }

    fn decode(bytes: &[u8]) -> Result<Self, String> {
        let damaged = || {
            "the file is damaged: its checksum does not match; without it nodes of the cluster that this one was \
             recovered from are refused with fewer words, so it may be removed"
                .to_owned()
        };
        let content = trust::unseal(bytes).ok_or_else(damaged)?;
        let text = str::from_utf8(content).map_err(|_| damaged())?;
        let cluster = text.lines().nth(1).and_then(|line| line.strip_prefix("cluster ")).ok_or_else(damaged)?;
        let cluster = u128::from_str_radix(cluster, 16).map_err(|_| damaged())?;
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(content).collect();
        let chain = chain.map_err(|error| error.to_string())?;
        if chain.is_empty() {
            return Ok(Self { cluster, shown: None });
        }
        let key = PrivateKeyDer::from_pem_slice(content).map_err(|error| error.to_string())?;
        Ok(Self { cluster, shown: Some(Arc::new(Shown { chain, key })) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::tests::Scratch;

    #[test]
    fn what_is_kept_of_a_former_cluster_is_read_as_it_was_written_and_damage_is_named() {
        let scratch = Scratch::new();
        assert!(Former::read(&scratch.0).expect("no file").is_none());
        let authority = Authority::make().expect("a key");
        for authority in [None, Some(&authority)] {
            let former = Former::of(1 << 90, 7, authority, 1_800_000_000);
            former.write(&scratch.0).expect("a folder");
            let read = Former::read(&scratch.0).expect("sound").expect("it is there");
            assert_eq!(read.cluster, former.cluster);
            let chain = |former: &Former| former.shown.as_ref().map(|shown| shown.chain.clone());
            assert_eq!(chain(&read), chain(&former));
            let shown = authority.map(|authority| authority.issue(9, 1_800_000_000).0.remove(0));
            assert!(read.has(None, 1 << 90));
            assert_eq!(read.has(shown.as_ref(), 0), authority.is_some());
            let other = Authority::make().expect("a key").issue(9, 1_800_000_000).0.remove(0);
            assert!(!read.has(Some(&other), 5), "nobody of another cluster");
        }
        let path = scratch.0.join(FORMER_FILE);
        let mut bytes = fs::read(&path).expect("a file");
        bytes[80] ^= 1;
        fs::write(&path, &bytes).expect("a file");
        let why = Former::read(&scratch.0).expect_err("it is damaged").to_string();
        assert!(why.contains("checksum does not match"), "{why}");
    }
}

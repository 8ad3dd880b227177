//! Certificates for tests, made on the spot.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// An authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A directory with files, removed when dropped.
pub struct Files(pub PathBuf);

impl Authority {
    /// A new one.
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = named(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Its own certificate.
    pub fn write(&self, path: &Path) {
        std::fs::write(path, &self.pem).expect("a file");
    }

    /// Its own certificate and key, `NAME.pem` and `NAME.key`.
    pub fn write_pair(&self, folder: &Path, name: &str) {
        self.write(&folder.join(format!("{name}.pem")));
        std::fs::write(folder.join(format!("{name}.key")), self.issuer.key().serialize_pem()).expect("a file");
    }

    /// A certificate of its, `NAME.pem` and `NAME.key`.
    pub fn sign(&self, folder: &Path, name: &str, expires_in_year: i32) {
        let key = KeyPair::generate().expect("a key");
        let mut params = named(name);
        params.not_after = rcgen::date_time_ymd(expires_in_year, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        std::fs::write(folder.join(format!("{name}.pem")), certificate.pem()).expect("a file");
        std::fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).expect("a file");
    }
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

impl Files {
    /// A fresh one.
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("holdfast-tls-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    /// The path of a file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

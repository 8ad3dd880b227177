//! Certificates, made for one test.

use std::path::{Path, PathBuf};

use edge::{ClientOptions, ClientSecurity};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use super::Folder;

/// An authority, and a folder with what it has signed.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: Folder,
}

/// A certificate and its key.
#[derive(Clone)]
pub struct Signed {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    /// A new one; its own certificate is in `ca.pem`.
    pub fn new(name: &str) -> Self {
        let (folder, key) = (Folder::new(), KeyPair::generate().expect("a key"));
        let mut params = named(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("a certificate");
        std::fs::write(folder.path().join("ca.pem"), certificate.pem()).expect("a file");
        Self { issuer: Issuer::new(params, key), folder }
    }

    /// Where its own certificate is.
    pub fn path(&self) -> String {
        text(&self.folder.path().join("ca.pem"))
    }

    /// Signs a certificate that is good for the next centuries.
    pub fn sign(&self, name: &str) -> Signed {
        self.sign_until(name, 4000)
    }

    /// Signs one that is good until the beginning of a year.
    pub fn sign_until(&self, name: &str, year: i32) -> Signed {
        let key = KeyPair::generate().expect("a key");
        let mut params = named(name);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let file = |extension: &str| self.folder.path().join(format!("{name}.{extension}"));
        std::fs::write(file("pem"), certificate.pem()).expect("a file");
        std::fs::write(file("key"), key.serialize_pem()).expect("a file");
        Signed { certificate: text(&file("pem")), key: text(&file("key")) }
    }

    /// What a client that trusts this authority secures its connections with.
    pub fn client(&self, own: Option<&Signed>) -> ClientSecurity {
        let own = own.map(|own| (PathBuf::from(&own.certificate), PathBuf::from(&own.key)));
        let authorities = Some(PathBuf::from(self.path()));
        ClientSecurity::new(&ClientOptions { authorities, own, ..ClientOptions::default() }).expect("good files")
    }
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn text(path: &Path) -> String {
    path.to_str().expect("a name in UTF-8").to_owned()
}

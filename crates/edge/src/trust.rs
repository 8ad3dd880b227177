//! A cluster's own certificate authority, and the invitations that it makes.
//!
//! The first node of a cluster makes the authority; every member keeps it in its data directory, so that any of them
//! can let another node in, no matter who else is away. A member makes its own certificate from it, at each start and
//! once in [`RENEWAL_INTERVAL`]: a certificate names the node, and expires.
//!
//! An invitation is a token: the fingerprint of the authority, by which a newcomer knows the cluster before it says
//! anything, and a secret, by which any member knows that a member has made it. The secret is an authentication code
//! under a key that is derived from that of the authority: nothing has to be remembered where a token is made.
//!
//! See `docs/decisions/0021-who-may-join.md`.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use ring::{digest, hmac};
use rustls::RootCertStore;
use rustls::crypto::ring as ring_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use crate::entropy;
use crate::fault::Fault;

/// Where a data directory keeps the authority of its cluster. The journal takes no notice of names with a dot.
pub const AUTHORITY_FILE: &str = ".cluster-authority";

/// How long an invitation is good unless told.
pub const INVITATION_DEFAULT: Duration = Duration::from_secs(60 * 60);

/// The longest that one may be good.
pub const INVITATION_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// A certificate is replaced by a newer one so often, and at each start.
pub const RENEWAL_INTERVAL: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// How long a certificate is good: clocks of nodes may differ by eleven months before one finds another's expired.
const CERTIFICATE_LIFETIME: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The year 8307, in seconds since 1970.
const CLOCK_MAX_S: u64 = 200_000_000_000;

/// The first byte of a token's bytes.
const TOKEN_VERSION: u8 = 1;
/// Length of a token, in bytes.
pub const TOKEN_BYTES: usize = 1 + FINGERPRINT_BYTES + 8 + NAME_BYTES + CODE_BYTES;
const FINGERPRINT_BYTES: usize = 32;
const NAME_BYTES: usize = 8;
const CODE_BYTES: usize = 32;
/// What the text of a token begins with, so that people and scanners for leaked secrets know it.
const TOKEN_PREFIX: &str = "holdfast-";

/// What the last line of the file begins with.
const CHECKSUM_PREFIX: &str = "SHA-256 of the lines above: ";

/// Longest authority, as it is handed over.
pub const AUTHORITY_BYTES_MAX: usize = 16 << 10;

/// The authority of a cluster, as each member holds it.
pub struct Authority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    fingerprint: [u8; FINGERPRINT_BYTES],
    invitations: hmac::Key,
}

/// Not its key.
impl fmt::Debug for Authority {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Authority {}", self.name())
    }
}

/// What lets a node in.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    fingerprint: [u8; FINGERPRINT_BYTES],
    /// Seconds since 1970.
    expires_s: u64,
    name: [u8; NAME_BYTES],
    code: [u8; CODE_BYTES],
}

/// Not its secret.
impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Token {}", self.name())
    }
}

/// Why a token lets nobody in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// No member has made it, or it has been altered.
    Forged,
    /// Its time is over.
    Expired,
}

impl Token {
    /// Reads what [`Self::to_text`] has written.
    ///
    /// # Errors
    /// One line, if it is no token.
    pub fn parse(text: &str) -> Result<Self, String> {
        let told =
            || "this is not a token: `holdfast cluster invite` prints one, which begins with holdfast-".to_owned();
        let body = text.trim().strip_prefix(TOKEN_PREFIX).ok_or_else(told)?;
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(body).map_err(|_| told())?;
        match bytes.first() {
            Some(&TOKEN_VERSION) if bytes.len() == TOKEN_BYTES => Self::decode(&bytes).ok_or_else(told),
            Some(&TOKEN_VERSION) => {
                Err("the token is not whole: it has been cut off, or something was added".to_owned())
            }
            _ => Err("the token is of another version of Holdfast, or is not whole".to_owned()),
        }
    }

    /// One word that a shell takes as it is.
    pub fn to_text(&self) -> String {
        format!("{TOKEN_PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(self.encode()))
    }

    /// [`TOKEN_BYTES`].
    pub fn encode(&self) -> Vec<u8> {
        [&self.claims()[..], &self.code].concat()
    }

    /// Reads them. `None` if they are no token.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (version, rest) = bytes.split_first()?;
        let (fingerprint, rest) = rest.split_first_chunk()?;
        let (expires, rest) = rest.split_first_chunk()?;
        let (name, rest) = rest.split_first_chunk()?;
        let code = rest.try_into().ok()?;
        let expires_s = u64::from_le_bytes(*expires);
        (*version == TOKEN_VERSION).then_some(Self { fingerprint: *fingerprint, expires_s, name: *name, code })
    }

    /// What is no secret.
    fn claims(&self) -> Vec<u8> {
        [&[TOKEN_VERSION][..], &self.fingerprint, &self.expires_s.to_le_bytes(), &self.name].concat()
    }

    /// What logs call it.
    pub fn name(&self) -> String {
        hex(&self.name[..4])
    }

    /// What tells it from all others.
    pub fn id(&self) -> [u8; NAME_BYTES] {
        self.name
    }

    /// Until when it is good: seconds since 1970.
    pub fn expires_s(&self) -> u64 {
        self.expires_s
    }

    /// Fingerprint of the authority of the cluster that it is for.
    pub fn fingerprint(&self) -> [u8; FINGERPRINT_BYTES] {
        self.fingerprint
    }
}

/// What certificates are known by.
pub fn fingerprint(certificate: &CertificateDer<'_>) -> [u8; FINGERPRINT_BYTES] {
    digest::digest(&digest::SHA256, certificate).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// The name in the certificate of a node.
pub fn name_of_node(node: u64) -> String {
    format!("node-{node:016x}.holdfast.internal")
}

impl Authority {
    /// A new one, for a new cluster.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn make() -> Result<Self, Fault> {
        let key = KeyPair::generate().map_err(|error| Fault::System {
            purpose: "make a key for the cluster",
            cause: io::Error::other(error.to_string()),
        })?;
        let params = authority_params(&key);
        let certificate = params.self_signed(&key).expect("a key of ours signs").der().clone();
        Ok(Self::new(certificate, params, key))
    }

    fn new(certificate: CertificateDer<'static>, params: CertificateParams, key: KeyPair) -> Self {
        let master = hmac::Key::new(hmac::HMAC_SHA256, key.serialized_der());
        let derived = hmac::sign(&master, b"holdfast invitations 1");
        Self {
            fingerprint: fingerprint(&certificate),
            certificate,
            issuer: Issuer::new(params, key),
            invitations: hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref()),
        }
    }

    /// What a certificate and a key in PKCS #8 form make. They come from a file or from another node, so that a
    /// certificate that cannot be used, or that belongs to another key, is refused.
    fn of(certificate: CertificateDer<'static>, key: &[u8]) -> Result<Self, String> {
        let unusable = |error: &rustls::Error| format!("its certificate cannot be used: {error}");
        RootCertStore::empty().add(certificate.clone()).map_err(|error| unusable(&error))?;
        let key_of_certificate = PrivatePkcs8KeyDer::from(key.to_vec()).into();
        CertifiedKey::from_der(vec![certificate.clone()], key_of_certificate, &ring_provider::default_provider())
            .map_err(|error| unusable(&error))?;
        let key = KeyPair::try_from(key).map_err(|error| format!("its key cannot be used: {error}"))?;
        let params = authority_params(&key);
        Ok(Self::new(certificate, params, key))
    }

    /// The one in a data directory, if there is one.
    ///
    /// # Errors
    /// If it cannot be read, is damaged, or others may read it.
    pub fn read(directory: &Path) -> Result<Option<Self>, Fault> {
        let path = directory.join(AUTHORITY_FILE);
        let fault = |cause| Fault::File { path: path.clone(), purpose: "read", cause };
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(fault(error)),
        };
        if metadata.mode() & 0o077 != 0 {
            let cause = "others than its owner may read or write it, and anyone who has it is a member of the cluster: \
                         chmod 600 it, if nobody can have read it";
            return Err(fault(io::Error::new(ErrorKind::PermissionDenied, cause)));
        }
        let text = fs::read(&path).map_err(fault)?;
        Self::from_pem(&text).map(Some).map_err(|why| fault(io::Error::new(ErrorKind::InvalidData, why)))
    }

    /// Keeps it in a data directory that has none; it is on the disk then.
    ///
    /// # Errors
    /// Those of the file system; [`ErrorKind::AlreadyExists`] if there is one.
    pub fn write(&self, directory: &Path) -> Result<(), Fault> {
        let path = directory.join(AUTHORITY_FILE);
        let new = directory.join(format!("{AUTHORITY_FILE}.{}.new", std::process::id()));
        let put = || {
            write_secret(&new, &self.to_pem())?;
            // Unlike a renaming, this replaces nothing that another process has put there meanwhile.
            match fs::hard_link(&new, &path) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => fs::rename(&new, &path)?,
                linked => {
                    let _ = fs::remove_file(&new);
                    linked?;
                }
            }
            File::open(directory)?.sync_all()
        };
        put().map_err(|cause| Fault::File {
            path: path.clone(),
            purpose: "keep the authority of the cluster in",
            cause,
        })
    }

    fn to_pem(&self) -> String {
        seal(format!(
            "The certificate authority of a Holdfast cluster. The owner of this file is a member of the cluster.\n{}{}",
            pem("CERTIFICATE", &self.certificate),
            self.issuer.key().serialize_pem()
        ))
    }

    /// Reads what [`Self::to_pem`] has written. The checksum covers every byte before it: a flipped bit in a
    /// certificate or a key does not always make it unreadable, and an authority that differs from that of the other
    /// members would only be found out when they refuse each other.
    fn from_pem(text: &[u8]) -> Result<Self, String> {
        let content =
            unseal(text).ok_or("the file is damaged: its checksum does not match; copy it from another member")?;
        let certificate = CertificateDer::from_pem_slice(content).map_err(|error| error.to_string())?;
        let key = PrivatePkcs8KeyDer::from_pem_slice(content).map_err(|error| error.to_string())?;
        Self::of(certificate, key.secret_pkcs8_der())
    }

    /// What a newcomer is given.
    pub fn encode(&self) -> Vec<u8> {
        let length = u32::try_from(self.certificate.len()).expect("a certificate is short");
        [&length.to_le_bytes()[..], &self.certificate, self.issuer.key().serialized_der()].concat()
    }

    /// Reads it. `None` if it is no authority.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (length, rest) = bytes.split_first_chunk()?;
        let (certificate, key) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        Self::of(CertificateDer::from(certificate.to_vec()), key).ok()
    }

    /// Its own certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// What logs call it.
    pub fn name(&self) -> String {
        hex(&self.fingerprint[..8])
    }

    /// A new certificate for a node, with that of the authority behind it, and the key for it.
    pub fn issue(&self, node: u64, now_s: u64) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        self.issue_for(node, now_s, CERTIFICATE_LIFETIME)
    }

    /// The same, good for so long.
    pub fn issue_for(
        &self,
        node: u64,
        now_s: u64,
        lifetime: Duration,
    ) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let key = KeyPair::generate().expect("the system had random numbers a moment ago");
        let mut params = CertificateParams::new(vec![name_of_node(node)]).expect("letters, digits and dots");
        params.distinguished_name.push(DnType::CommonName, name_of_node(node));
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        // A clock that is slow must keep nobody out.
        params.not_before = date_time_ymd(2020, 1, 1);
        // Dates have four digits, whatever a clock says.
        let now = Duration::from_secs(now_s.min(CLOCK_MAX_S));
        params.not_after = date_time_ymd(1970, 1, 1) + now + lifetime;
        let certificate = params.signed_by(&key, &self.issuer).expect("a key of ours signs");
        let chain = vec![certificate.der().clone(), self.certificate.clone()];
        (chain, PrivatePkcs8KeyDer::from(key.serialize_der()).into())
    }

    /// Makes an invitation for so long.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn invite(&self, now_s: u64, duration: Duration) -> io::Result<Token> {
        let mut token = Token {
            fingerprint: self.fingerprint,
            expires_s: now_s + duration.as_secs(),
            name: entropy::random_bytes()?,
            code: [0; CODE_BYTES],
        };
        let code = hmac::sign(&self.invitations, &token.claims());
        token.code.copy_from_slice(code.as_ref());
        Ok(token)
    }

    /// Whether an invitation of this cluster is good now. It takes as long for a good code as for a bad one.
    ///
    /// # Errors
    /// Why not.
    pub fn verify(&self, token: &Token, now_s: u64) -> Result<(), Invalid> {
        hmac::verify(&self.invitations, &token.claims(), &token.code).map_err(|_| Invalid::Forged)?;
        if now_s >= token.expires_s { Err(Invalid::Expired) } else { Ok(()) }
    }
}

/// Writes a file that nobody but its owner may read; it is on the disk then, if its name is.
pub(crate) fn write_secret(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Adds a line with a checksum of all before it.
pub(crate) fn seal(mut text: String) -> String {
    let checksum = hex(digest::digest(&digest::SHA256, text.as_bytes()).as_ref());
    text.push_str(CHECKSUM_PREFIX);
    text.push_str(&checksum);
    text.push('\n');
    text
}

/// What is before that line; none if the checksum does not match.
pub(crate) fn unseal(text: &[u8]) -> Option<&[u8]> {
    let content_bytes = text.len().saturating_sub(CHECKSUM_PREFIX.len() + 2 * digest::SHA256_OUTPUT_LEN + 1);
    let (content, end) = text.split_at(content_bytes);
    let checksum = hex(digest::digest(&digest::SHA256, content).as_ref());
    (end == format!("{CHECKSUM_PREFIX}{checksum}\n").as_bytes()).then_some(content)
}

/// A block of a PEM file.
pub(crate) fn pem(label: &str, bytes: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}-----END {label}-----\n", lines(&BASE64_LINES.encode(bytes)))
}

/// As base64 is in files.
const BASE64_LINES: base64::engine::GeneralPurpose = base64::prelude::BASE64_STANDARD;

fn lines(text: &str) -> String {
    text.as_bytes().chunks(64).map(|line| format!("{}\n", String::from_utf8_lossy(line))).collect()
}

/// What an authority with this key is made of. Nothing in it but the key differs from that of another cluster, so that
/// it can be made again from the key.
fn authority_params(key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    let key_digest = digest::digest(&digest::SHA256, key.public_key_raw());
    params.distinguished_name.push(DnType::CommonName, format!("Holdfast cluster {}", hex(&key_digest.as_ref()[..8])));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(9999, 12, 31);
    params
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Makes an invitation to the cluster of a data directory on this machine, whether its node runs or not.
///
/// # Errors
/// If the directory holds no authority, or cannot be read; says what to do.
pub fn invite_from_directory(directory: &Path, now_s: u64, duration: Duration) -> Result<Token, Fault> {
    let path = || -> PathBuf { directory.join(AUTHORITY_FILE) };
    match Authority::read(directory)? {
        None => Err(Fault::File { path: path(), purpose: "read", cause: ErrorKind::NotFound.into() }),
        Some(authority) => authority.invite(now_s, duration).map_err(crate::run::system("read random numbers")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::testing::Files;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn an_invitation_is_good_for_its_cluster_and_its_time() {
        let (authority, other) = (Authority::make().expect("a key"), Authority::make().expect("a key"));
        let token = authority.invite(1_000, HOUR).expect("random numbers");
        assert_eq!(Token::parse(&format!(" {}\n", token.to_text())).as_ref(), Ok(&token));
        assert_eq!(authority.verify(&token, 1_000), Ok(()));
        assert_eq!(authority.verify(&token, 4_599), Ok(()));
        assert_eq!(authority.verify(&token, 4_600), Err(Invalid::Expired));
        assert_eq!(other.verify(&token, 1_000), Err(Invalid::Forged));
        let longer = Token { expires_s: 9_999, ..token.clone() };
        assert_eq!(authority.verify(&longer, 1_000), Err(Invalid::Forged), "its end is under the code");
        for at in 0..TOKEN_BYTES {
            let mut bytes = token.encode();
            bytes[at] ^= 1;
            let is_good = Token::decode(&bytes).is_some_and(|token| authority.verify(&token, 1_000).is_ok());
            assert!(!is_good, "byte {at}");
        }
    }

    #[test]
    fn what_is_no_token_is_told_from_one_that_was_cut_off() {
        let token = Authority::make().expect("a key").invite(0, HOUR).expect("random numbers").to_text();
        assert!(Token::parse("secret").is_err_and(|why| why.contains("not a token")));
        assert!(Token::parse("").is_err_and(|why| why.contains("not a token")));
        assert!(Token::parse(&token[..token.len() - 4]).is_err_and(|why| why.contains("not whole")));
        assert!(Token::parse(&format!("{token}AAAA")).is_err_and(|why| why.contains("not whole")));
        assert!(Token::parse(&format!("{TOKEN_PREFIX}Z{}", &token[10..])).is_err_and(|why| why.contains("version")));
    }

    #[test]
    fn an_authority_is_kept_from_others_and_read_as_it_was_written() {
        let files = Files::new("authority");
        assert!(Authority::read(&files.0).expect("nothing there").is_none());
        let authority = Authority::make().expect("a key");
        authority.write(&files.0).expect("written");
        let mode = fs::metadata(files.path(AUTHORITY_FILE)).expect("it is there").mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = Authority::read(&files.0).expect("sound").expect("there");
        assert_eq!(again.encode(), authority.encode());
        let given = Authority::decode(&authority.encode()).expect("whole");
        assert_eq!(given.name(), authority.name());
        let token = authority.invite(0, HOUR).expect("random numbers");
        assert_eq!((again.verify(&token, 1), given.verify(&token, 1)), (Ok(()), Ok(())));
        // It is never replaced, and a name that was left by a crash is in nobody's way.
        let other = Authority::make().expect("a key");
        assert!(other.write(&files.0).is_err());
        assert_eq!(fs::read_dir(&files.0).expect("a folder").count(), 1);
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(files.path(AUTHORITY_FILE), fs::Permissions::from_mode(0o640)).expect("ours");
        let told = Authority::read(&files.0).expect_err("others may read it").to_string();
        assert!(told.contains("chmod 600"), "{told}");
    }

    #[test]
    fn every_flipped_bit_in_the_file_of_an_authority_is_found() {
        let text = Authority::make().expect("a key").to_pem().into_bytes();
        assert!(Authority::from_pem(&text).is_ok());
        for at in 0..text.len() {
            for bit in 0..8 {
                let mut damaged = text.clone();
                damaged[at] ^= 1 << bit;
                assert!(Authority::from_pem(&damaged).is_err(), "byte {at}, bit {bit}");
            }
        }
        for length in 0..text.len() {
            assert!(Authority::from_pem(&text[..length]).is_err(), "{length} bytes");
        }
    }

    /// What is handed over within a link has no checksum of its own, and a member may lie: it is refused or works.
    #[test]
    fn no_certificate_of_an_authority_that_was_altered_stops_the_process() {
        let bytes = Authority::make().expect("a key").encode();
        for at in 4..bytes.len() {
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            if let Some(authority) = Authority::decode(&altered) {
                let mut roots = RootCertStore::empty();
                roots.add(authority.certificate().clone()).expect("it was tried when it was read");
            }
        }
        let other = Authority::make().expect("a key");
        let certificate = CertificateDer::from(other.certificate().to_vec());
        let mixed = Authority { certificate, ..Authority::decode(&bytes).expect("whole") };
        assert!(Authority::decode(&mixed.encode()).is_none(), "the key of another authority");
    }

    #[test]
    fn what_is_damaged_is_no_authority() {
        let authority = Authority::make().expect("a key");
        let bytes = authority.encode();
        for length in [0, 3, 4, bytes.len() / 2, bytes.len() - 1] {
            assert!(Authority::decode(&bytes[..length]).is_none(), "{length} bytes");
        }
    }
}

//! TLS: which certificate is shown, which authorities' certificates are taken, and in which versions.
//!
//! `rustls` speaks the protocol and touches no socket; [`TlsStream`] stands between it and one. What is configured is
//! made into a [`Security`] once, and used by every connection that begins later.
//!
//! Certificates are verified up to an authority, and not for a name: nodes and clients find one another by addresses
//! that change hands, and which certificates an authority signs is the operator's choice. So do Redis and redis-cli.

mod line;
mod stream;
#[cfg(test)]
pub(crate) mod testing;

use std::fmt;
use std::fs;
use std::io;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use node::settings::Settings;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ClientConfig, ClientConnection, Resumption, verify_server_cert_signed_by_trust_anchor, verify_server_name,
};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ParsedCertificate, ResolvesServerCert, ServerConfig, ServerSessionMemoryCache,
    WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme, StreamOwned,
    SupportedCipherSuite, SupportedProtocolVersion,
};

pub use self::line::{LineOptions, LineReader, LineSecurity, LineWriter, plain_line};
pub use self::stream::{TlsStream, cause};
use crate::clock;
use crate::former::Former;
use crate::trust::{self, Authority};

/// Sessions remembered when `tls-session-cache-size` sets no bound.
const SESSION_COUNT_MAX: usize = 1 << 20;

/// Suites of TLS 1.2 that are spoken, as OpenSSL calls them.
static CIPHERS: &[(&str, SupportedCipherSuite)] = &[
    ("ECDHE-ECDSA-AES256-GCM-SHA384", ring::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-ECDSA-AES128-GCM-SHA256", ring::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", ring::cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("ECDHE-RSA-AES256-GCM-SHA384", ring::cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-RSA-AES128-GCM-SHA256", ring::cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-RSA-CHACHA20-POLY1305", ring::cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

/// Suites of TLS 1.3.
static CIPHERSUITES: &[(&str, SupportedCipherSuite)] = &[
    ("TLS_AES_256_GCM_SHA384", ring::cipher_suite::TLS13_AES_256_GCM_SHA384),
    ("TLS_AES_128_GCM_SHA256", ring::cipher_suite::TLS13_AES_128_GCM_SHA256),
    ("TLS_CHACHA20_POLY1305_SHA256", ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256),
];

/// What connections of a server are secured with.
#[derive(Clone, Default)]
pub struct Security {
    /// Those of clients at `tls-port`, if there is one.
    pub clients: Option<Arc<ServerConfig>>,
    /// Those between nodes, with `tls-cluster`.
    pub links: Option<LinkSecurity>,
}

/// What links to other nodes are secured with. Either end must show a certificate of the authority.
#[derive(Clone)]
pub struct LinkSecurity {
    /// For who calls.
    pub accept: Arc<ServerConfig>,
    /// For who is called.
    pub dial: ClientSecurity,
    /// The cluster's own authority, if it is that: then certificates name nodes, and anyone who shows none may ask to
    /// be let in.
    pub authority: Option<Arc<Authority>>,
}

/// What a node shows to others, and takes from them, in a cluster with an authority of its own.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The cluster's.
    pub authority: Arc<Authority>,
    /// This node.
    pub node: u64,
    /// The cluster that this one was recovered from. Its nodes are told so.
    pub former: Option<Former>,
}

/// What secures links between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkMode {
    /// Nothing: `tls-cluster no`.
    Plain,
    /// Certificates from files: `tls-cluster yes` with `tls-cert-file`.
    Files,
    /// Those of the cluster's own authority: `tls-cluster yes` without files.
    Own,
    /// The same if the data directory has one, as all have that were made with this version: `tls-cluster auto`.
    OwnIfThere,
}

impl LinkMode {
    /// What the parameters ask for.
    pub fn of(settings: &Settings) -> Self {
        match settings.get("tls-cluster") {
            "no" => Self::Plain,
            "yes" if !settings.get("tls-cert-file").is_empty() => Self::Files,
            "yes" => Self::Own,
            _ => Self::OwnIfThere,
        }
    }

    /// True if the cluster's own authority is used, where there is one.
    pub fn is_own(self) -> bool {
        matches!(self, Self::Own | Self::OwnIfThere)
    }
}

impl Credentials {
    /// Links with a new certificate of this node.
    pub fn links(&self) -> LinkSecurity {
        let provider = Arc::new(ring::default_provider());
        let (chain, key) = self.authority.issue(self.node, clock::unix_seconds());
        let authorities = Authorities::only(self.authority.certificate());
        let former = self.former.as_ref().and_then(|former| former.shown.as_deref());
        let callers = match former.and_then(|shown| shown.chain.last()) {
            // They are verified to be told by name that they are not let in: see `Peers::let_in`.
            Some(former) => authorities.and(former),
            None => authorities.clone(),
        };
        let certified = |chain: &[CertificateDer<'static>], key: &PrivateKeyDer<'static>| {
            let certified = CertifiedKey::from_der(chain.to_vec(), key.clone_key(), &provider);
            Arc::new(certified.expect("they have been made for each other"))
        };
        let shown = ShownTo {
            own: certified(&chain, &key),
            former: former.map(|shown| certified(&shown.chain, &shown.key)),
            subjects: callers.0.subjects(),
        };
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&[&TLS13]);
        let mut accept = builder
            .expect("all suites are spoken")
            .with_client_cert_verifier(callers.of_clients(&provider, true))
            .with_cert_resolver(Arc::new(shown));
        accept.session_storage = Arc::new(NoServerSessionStorage {});
        accept.send_tls13_tickets = 0;
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&[&TLS13]);
        let dial = builder
            .expect("all suites are spoken")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(SignedBy::new(Some(&authorities), &provider).who_says_so()))
            .with_client_auth_cert(chain, key)
            .expect("they have been made for each other");
        let authority = Some(Arc::clone(&self.authority));
        LinkSecurity { accept: Arc::new(accept), dial: ClientSecurity::of(dial), authority }
    }
}

/// Which certificate is shown: a caller that trusts nobody but the authority of a former cluster is shown one of that.
#[derive(Debug)]
struct ShownTo {
    own: Arc<CertifiedKey>,
    former: Option<Arc<CertifiedKey>>,
    /// Names of the own authority and of the former one.
    subjects: Vec<DistinguishedName>,
}

impl ResolvesServerCert for ShownTo {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let trusted = hello.certificate_authorities().unwrap_or_default();
        let trusts = |subject: Option<&DistinguishedName>| {
            subject.is_some_and(|subject| trusted.iter().any(|name| name.as_ref() == subject.as_ref()))
        };
        let (own, former) = (self.subjects.first(), self.subjects.get(1));
        let certified = self.former.as_ref().filter(|_| trusts(former) && !trusts(own)).unwrap_or(&self.own);
        Some(Arc::clone(certified))
    }
}

/// True if an authority has signed this certificate, which has been shown.
pub fn is_signed_by(certificate: &CertificateDer<'_>, authority: &CertificateDer<'static>) -> bool {
    let Authorities(roots) = Authorities::only(authority);
    let algorithms = ring::default_provider().signature_verification_algorithms;
    ParsedCertificate::try_from(certificate).is_ok_and(|parsed| {
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots, &[], UnixTime::now(), algorithms.all).is_ok()
    })
}

impl LinkSecurity {
    /// Secures a connection to a node, and takes no other one for it where certificates name nodes.
    pub fn dial<S: io::Read + io::Write>(&self, node: u64, socket: S) -> TlsStream<S> {
        match self.authority {
            Some(_) => TlsStream::new(self.dial.connection_to(&trust::name_of_node(node)).into(), socket),
            None => self.dial.wrap(socket),
        }
    }
}

/// True if a certificate, which has been verified, is that of a node.
pub fn is_of_node(certificate: &CertificateDer<'_>, node: u64) -> bool {
    let name = ServerName::try_from(trust::name_of_node(node)).expect("letters, digits and dots");
    ParsedCertificate::try_from(certificate).is_ok_and(|parsed| verify_server_name(&parsed, &name).is_ok())
}

/// What connections to a server are secured with.
#[derive(Clone)]
pub struct ClientSecurity(Arc<ClientConfig>);

/// A connection to a server with reads and writes that wait.
pub type SecureStream = StreamOwned<ClientConnection, TcpStream>;

/// A parameter that cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// Which.
    pub name: &'static str,
    /// Why.
    pub cause: String,
}

impl fmt::Display for Unfit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.name, self.cause)
    }
}

fn unfit(name: &'static str) -> impl FnOnce(String) -> Unfit {
    move |cause| Unfit { name, cause }
}

impl Security {
    /// The same with a new certificate of this node for links. None if those of the cluster's own authority are not
    /// used.
    pub fn renewed(&self, credentials: &Credentials) -> Option<Self> {
        let is_own = self.links.as_ref().is_some_and(|links| links.authority.is_some());
        is_own.then(|| Self { links: Some(credentials.links()), ..self.clone() })
    }

    /// What the parameters ask for, with the files they name as they are now, and this node's credentials in a cluster
    /// with an authority of its own. Nothing, if neither clients nor nodes use TLS.
    ///
    /// # Errors
    /// The first parameter that cannot be carried out.
    pub fn new(settings: &Settings, credentials: Option<&Credentials>) -> Result<Self, Unfit> {
        let serves_clients = settings.number("tls-port") != 0;
        let mode = LinkMode::of(settings);
        let own = credentials.filter(|_| mode.is_own()).map(Credentials::links);
        let mut this = Self { clients: None, links: own };
        if !serves_clients && mode != LinkMode::Files {
            return Ok(this);
        }
        let common = Common::new(settings)?;
        if serves_clients {
            let mut config = common.accept(match settings.get("tls-auth-clients") {
                "no" => WebPkiClientVerifier::no_client_auth(),
                word => common.authorities()?.of_clients(&common.provider, word == "optional"),
            })?;
            match (settings.get("tls-session-caching"), settings.number("tls-session-cache-size")) {
                ("no", _) => {
                    config.session_storage = Arc::new(NoServerSessionStorage {});
                    config.send_tls13_tickets = 0;
                }
                (_, count) => {
                    let count = usize::try_from(count).ok().filter(|count| *count > 0).unwrap_or(SESSION_COUNT_MAX);
                    config.session_storage = ServerSessionMemoryCache::new(count);
                }
            }
            config.ignore_client_order = settings.get("tls-prefer-server-ciphers") == "yes";
            this.clients = Some(Arc::new(config));
        }
        if mode == LinkMode::Files {
            let authorities = common.authorities()?;
            let mut accept = common.accept(authorities.of_clients(&common.provider, false))?;
            // Links are few and last: every one of them shows its certificate.
            accept.session_storage = Arc::new(NoServerSessionStorage {});
            accept.send_tls13_tickets = 0;
            let dial = common.dial(authorities, settings)?;
            this.links = Some(LinkSecurity { accept: Arc::new(accept), dial, authority: None });
        }
        Ok(this)
    }
}

/// What all kinds of connections of a server have in common.
struct Common {
    provider: Arc<CryptoProvider>,
    versions: Vec<&'static SupportedProtocolVersion>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    authorities: Option<Authorities>,
}

impl Common {
    fn new(settings: &Settings) -> Result<Self, Unfit> {
        let path = |name: &str| Some(settings.get(name)).filter(|path| !path.is_empty()).map(Path::new);
        let needed = |name: &'static str| {
            path(name).ok_or_else(|| Unfit { name, cause: "needed for TLS, and not set".to_owned() })
        };
        for name in ["tls-key-file-pass", "tls-client-key-file-pass"] {
            if !settings.get(name).is_empty() {
                let cause = "keys with a password cannot be read: write the key out without one (openssl pkey -in KEY \
                             -out PLAIN) and keep it from others by its permissions";
                return Err(Unfit { name, cause: cause.to_owned() });
            }
        }
        let authorities = match (path("tls-ca-cert-file"), path("tls-ca-cert-dir")) {
            (None, None) => None,
            (file, directory) => Some(Authorities::read(file, directory)?),
        };
        Ok(Self {
            provider: Arc::new(provider(settings)?),
            versions: versions(settings.get("tls-protocols")).map_err(unfit("tls-protocols"))?,
            chain: read_chain(needed("tls-cert-file")?).map_err(unfit("tls-cert-file"))?,
            key: read_key(needed("tls-key-file")?).map_err(unfit("tls-key-file"))?,
            authorities,
        })
    }

    fn authorities(&self) -> Result<&Authorities, Unfit> {
        self.authorities.as_ref().ok_or_else(|| Unfit {
            name: "tls-ca-cert-file",
            cause: "this or tls-ca-cert-dir must name the authorities to trust, for clients (unless \
                    tls-auth-clients is no) and between nodes"
                .to_owned(),
        })
    }

    fn accept(&self, verifier: Arc<dyn ClientCertVerifier>) -> Result<ServerConfig, Unfit> {
        ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&self.versions)
            .map_err(no_suite)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain.clone(), self.key.clone_key())
            .map_err(|error| Unfit { name: "tls-cert-file", cause: unusable(&error) })
    }

    /// As a client of other nodes, with a certificate of its own if there is one.
    fn dial(&self, authorities: &Authorities, settings: &Settings) -> Result<ClientSecurity, Unfit> {
        let name = |name: &str| Some(settings.get(name)).filter(|path| !path.is_empty()).map(Path::new);
        let (chain, key) = match (name("tls-client-cert-file"), name("tls-client-key-file")) {
            (None, None) => (self.chain.clone(), self.key.clone_key()),
            (Some(chain), Some(key)) => (
                read_chain(chain).map_err(unfit("tls-client-cert-file"))?,
                read_key(key).map_err(unfit("tls-client-key-file"))?,
            ),
            _ => {
                let cause = "this and tls-client-key-file are set together or not at all".to_owned();
                return Err(Unfit { name: "tls-client-cert-file", cause });
            }
        };
        let config = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&self.versions)
            .map_err(no_suite)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(SignedBy::new(Some(authorities), &self.provider)))
            .with_client_auth_cert(chain, key)
            .map_err(|error| Unfit { name: "tls-client-cert-file", cause: unusable(&error) })?;
        Ok(ClientSecurity::of(config))
    }
}

fn no_suite(_: Error) -> Unfit {
    let cause = "none of these can be used with tls-protocols".to_owned();
    Unfit { name: "tls-ciphersuites", cause }
}

/// Why a certificate cannot be shown.
fn unusable(error: &Error) -> String {
    match error {
        Error::InconsistentKeys(_) => "the certificate does not belong to the private key".to_owned(),
        other => format!("cannot be used: {}", cause(other)),
    }
}

/// Authorities to trust.
#[derive(Clone)]
struct Authorities(Arc<RootCertStore>);

impl Authorities {
    /// These and one more.
    fn and(&self, certificate: &CertificateDer<'static>) -> Self {
        let mut roots = RootCertStore::clone(&self.0);
        roots.add(certificate.clone()).expect("a certificate that was made here");
        Self(Arc::new(roots))
    }

    /// A single one of our own.
    fn only(certificate: &CertificateDer<'static>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).expect("a certificate that was made here");
        Self(Arc::new(roots))
    }

    fn read(file: Option<&Path>, directory: Option<&Path>) -> Result<Self, Unfit> {
        let mut roots = RootCertStore::empty();
        if let Some(file) = file {
            let chain = read_chain(file).map_err(unfit("tls-ca-cert-file"))?;
            add(&mut roots, chain, file).map_err(unfit("tls-ca-cert-file"))?;
        }
        if let Some(directory) = directory {
            read_directory(&mut roots, directory).map_err(unfit("tls-ca-cert-dir"))?;
        }
        Ok(Self(Arc::new(roots)))
    }

    fn of_clients(&self, provider: &Arc<CryptoProvider>, is_optional: bool) -> Arc<dyn ClientCertVerifier> {
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::clone(&self.0), Arc::clone(provider));
        let builder = if is_optional { builder.allow_unauthenticated() } else { builder };
        builder.build().expect("there are authorities, and no lists of revoked certificates that could be wrong")
    }
}

fn read_directory(roots: &mut RootCertStore, directory: &Path) -> Result<(), String> {
    let told = |error: io::Error| format!("{}: {error}", directory.display());
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(directory).map_err(told)? {
        paths.push(entry.map_err(told)?.path());
    }
    paths.sort();
    for path in paths.iter().filter(|path| path.is_file()) {
        // There may be other files beside the certificates.
        if let Ok(chain) = read_chain(path) {
            add(roots, chain, path)?;
        }
    }
    if roots.is_empty() { Err(format!("{} holds no certificate", directory.display())) } else { Ok(()) }
}

fn add(roots: &mut RootCertStore, chain: Vec<CertificateDer<'static>>, path: &Path) -> Result<(), String> {
    for certificate in chain {
        roots.add(certificate).map_err(|error| format!("{}: {}", path.display(), cause(&error)))?;
    }
    Ok(())
}

fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(chain) if chain.is_empty() => Err(format!("{} holds no certificate in PEM form", path.display())),
        Ok(chain) => Ok(chain),
        Err(error) => Err(told(path, &error)),
    }
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| match error {
        pem::Error::NoItemsFound => {
            format!("{} holds no private key in PEM form without a password", path.display())
        }
        other => told(path, &other),
    })
}

fn told(path: &Path, error: &pem::Error) -> String {
    match error {
        pem::Error::Io(error) => format!("cannot read {}: {error}", path.display()),
        other => format!("{} is damaged: {other}", path.display()),
    }
}

/// The suites to speak, best first.
fn provider(settings: &Settings) -> Result<CryptoProvider, Unfit> {
    let mut suites = choose(settings.get("tls-ciphersuites"), CIPHERSUITES).map_err(unfit("tls-ciphersuites"))?;
    suites.extend(choose(settings.get("tls-ciphers"), CIPHERS).map_err(unfit("tls-ciphers"))?);
    Ok(CryptoProvider { cipher_suites: suites, ..ring::default_provider() })
}

/// Those of `known` that a list in OpenSSL's form names: names, `DEFAULT`, and with `!` what to leave out.
fn choose(list: &str, known: &[(&str, SupportedCipherSuite)]) -> Result<Vec<SupportedCipherSuite>, String> {
    let mut chosen: Vec<(&str, SupportedCipherSuite)> = Vec::new();
    let words = list.split([':', ',', ' ']).filter(|word| !word.is_empty());
    let (out, named): (Vec<&str>, Vec<&str>) = words.partition(|word| word.starts_with(['!', '-']));
    for word in named {
        match known.iter().find(|(name, _)| *name == word) {
            Some(found) => chosen.push(*found),
            None if matches!(word, "DEFAULT" | "ALL" | "HIGH") => chosen.extend(known),
            None => {
                let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
                return Err(format!("{word} is not spoken here; there are {}", names.join(", ")));
            }
        }
    }
    if chosen.is_empty() {
        chosen.extend(known);
    }
    // What is left out and not known is left out anyway.
    chosen.retain(|(name, _)| !out.iter().any(|word| &word[1..] == *name));
    let mut suites: Vec<SupportedCipherSuite> = Vec::new();
    for (_, suite) in chosen {
        if !suites.contains(&suite) {
            suites.push(suite);
        }
    }
    Ok(suites)
}

fn versions(list: &str) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    let mut versions = Vec::new();
    for word in list.split([' ', ',']).filter(|word| !word.is_empty()) {
        match word.to_ascii_lowercase().as_str() {
            "tlsv1.2" => versions.push(&TLS12),
            "tlsv1.3" => versions.push(&TLS13),
            _ => return Err(format!("{word} is not spoken here; there are TLSv1.2 and TLSv1.3")),
        }
    }
    Ok(if versions.is_empty() { vec![&TLS13, &TLS12] } else { versions })
}

/// The name that is looked for where it does not count who answers.
const ANYBODY: &str = "node";

/// Takes the certificate of anyone who has one of the authorities', or of anybody.
#[derive(Debug)]
struct SignedBy {
    roots: Option<Arc<RootCertStore>>,
    /// Fingerprint of the authority, where nothing else is known of it: its certificate must be shown as well.
    pin: Option<[u8; 32]>,
    /// The authorities that the other end is told that it trusts.
    told: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl SignedBy {
    fn new(authorities: Option<&Authorities>, provider: &CryptoProvider) -> Self {
        let roots = authorities.map(|Authorities(roots)| Arc::clone(roots));
        Self { roots, pin: None, told: Vec::new(), algorithms: provider.signature_verification_algorithms }
    }

    /// The same; the other end is told which authorities must sign its certificate.
    fn who_says_so(self) -> Self {
        let told = self.roots.as_ref().map_or_else(Vec::new, |roots| roots.subjects());
        Self { told, ..self }
    }
}

impl ServerCertVerifier for SignedBy {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let pinned;
        let roots = match (&self.roots, self.pin) {
            (Some(roots), _) => Some(roots),
            (None, None) => None,
            (None, Some(pin)) => {
                let authority = intermediates.iter().find(|certificate| trust::fingerprint(certificate) == pin);
                let authority = authority.ok_or(CertificateError::UnknownIssuer)?;
                let mut roots = RootCertStore::empty();
                roots.add(authority.clone().into_owned())?;
                pinned = Arc::new(roots);
                Some(&pinned)
            }
        };
        if let Some(roots) = roots {
            let parsed = ParsedCertificate::try_from(certificate)?;
            verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, self.algorithms.all)?;
            if name.to_str() != ANYBODY {
                verify_server_name(&parsed, name)?;
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        (!self.told.is_empty()).then_some(&self.told)
    }
}

/// Which servers a client of the command line trusts, and who it is: redis-cli's options.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// File of authorities.
    pub authorities: Option<PathBuf>,
    /// Directory of authorities.
    pub authorities_directory: Option<PathBuf>,
    /// Certificate and private key.
    pub own: Option<(PathBuf, PathBuf)>,
    /// Anybody is trusted.
    pub is_insecure: bool,
}

impl ClientSecurity {
    /// What these options ask for.
    ///
    /// # Errors
    /// One line that says what cannot be used.
    pub fn new(options: &ClientOptions) -> Result<Self, String> {
        let provider = Arc::new(ring::default_provider());
        let authorities = match (&options.authorities, &options.authorities_directory) {
            _ if options.is_insecure => None,
            (None, None) => return Err("TLS needs to know whom to trust: --cacert, --cacertdir or --insecure".into()),
            (file, directory) => {
                Some(Authorities::read(file.as_deref(), directory.as_deref()).map_err(|unfit| unfit.cause)?)
            }
        };
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13, &TLS12])
            .expect("all suites are spoken")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(SignedBy::new(authorities.as_ref(), &provider)));
        let config = match &options.own {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => builder
                .with_client_auth_cert(read_chain(chain)?, read_key(key)?)
                .map_err(|error| format!("{}: {}", chain.display(), unusable(&error)))?,
        };
        Ok(Self::of(config))
    }

    fn of(mut config: ClientConfig) -> Self {
        config.enable_sni = false;
        config.resumption = Resumption::disabled();
        Self(Arc::new(config))
    }

    /// For a newcomer: anyone who has a certificate of the authority with this fingerprint is trusted, and nothing is
    /// shown.
    pub fn pinned(fingerprint: [u8; 32]) -> Self {
        let provider = Arc::new(ring::default_provider());
        let verifier = SignedBy { pin: Some(fingerprint), ..SignedBy::new(None, &provider) };
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]);
        let builder = builder.expect("all suites are spoken").dangerous();
        Self::of(builder.with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth())
    }

    fn connection(&self) -> ClientConnection {
        self.connection_to(ANYBODY)
    }

    fn connection_to(&self, name: &str) -> ClientConnection {
        let name = ServerName::try_from(name.to_owned()).expect("letters, digits and dots");
        ClientConnection::new(Arc::clone(&self.0), name).expect("nothing in it depends on the name")
    }

    /// Secures a connection that does not wait.
    pub fn wrap<S: io::Read + io::Write>(&self, socket: S) -> TlsStream<S> {
        TlsStream::new(self.connection().into(), socket)
    }

    /// Secures a connection that waits, and agrees on keys.
    ///
    /// # Errors
    /// If that is not to be done with the other side; says why.
    pub fn connect(&self, socket: TcpStream) -> io::Result<SecureStream> {
        let mut stream = StreamOwned::new(self.connection(), socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).map_err(in_words)?;
        }
        Ok(stream)
    }
}

/// The error of a connection that waits, in words.
pub fn in_words(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match inner {
        Some(inner) => io::Error::new(error.kind(), cause(inner)),
        None => error,
    }
}

/// True if the other end speaks TLS, and one of both does not trust the other.
pub fn is_about_trust(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    matches!(inner, Some(Error::InvalidCertificate(_) | Error::AlertReceived(_)))
}

/// Secures a connection that somebody has made to this server.
pub fn accept<S: io::Read + io::Write>(config: &Arc<ServerConfig>, socket: S) -> io::Result<TlsStream<S>> {
    let connection = rustls::ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
    Ok(TlsStream::new(connection.into(), socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_are_named_as_openssl_does() {
        let names = |list: &str| choose(list, CIPHERSUITES).map(|suites| suites.len());
        assert_eq!(names(""), Ok(3));
        assert_eq!(names("TLS_AES_128_GCM_SHA256:TLS_AES_128_GCM_SHA256"), Ok(1));
        assert_eq!(names("DEFAULT:!MEDIUM"), Ok(3));
        assert_eq!(names("ALL:!TLS_AES_128_GCM_SHA256"), Ok(2));
        assert!(names("TLS_RSA_WITH_NULL").is_err_and(|why| why.starts_with("TLS_RSA_WITH_NULL is not spoken here")));
    }

    #[test]
    fn versions_that_are_broken_are_refused() {
        assert_eq!(versions("").map(|versions| versions.len()), Ok(2));
        assert_eq!(versions("tlsv1.3"), Ok(vec![&TLS13]));
        assert!(versions("TLSv1.1 TLSv1.2").is_err());
    }

    #[test]
    fn what_is_missing_is_named() {
        let missing = |pairs: &[(&str, &str)]| {
            let mut settings = Settings::default();
            for (name, value) in pairs {
                settings.set(name, value).expect("a parameter");
            }
            Security::new(&settings, None).err().map(|unfit| unfit.name)
        };
        assert_eq!(missing(&[]), None);
        assert_eq!(missing(&[("tls-cert-file", "/nowhere")]), None, "nobody uses TLS");
        assert_eq!(missing(&[("tls-port", "1")]), Some("tls-cert-file"));
        assert_eq!(missing(&[("tls-port", "1"), ("tls-cert-file", "/nowhere")]), Some("tls-cert-file"));
        assert_eq!(missing(&[("tls-cluster", "yes")]), None, "the cluster has an authority of its own");
        let files = [("tls-cluster", "yes"), ("tls-cert-file", "/nowhere")];
        assert_eq!(missing(&files), Some("tls-cert-file"));
        assert_eq!(missing(&[files[0], files[1], ("tls-protocols", "SSLv3")]), Some("tls-protocols"));
        assert_eq!(missing(&[files[0], files[1], ("tls-key-file-pass", "x")]), Some("tls-key-file-pass"));
        assert_eq!(missing(&[("tls-port", "1"), ("tls-ca-cert-dir", "/nowhere")]), Some("tls-ca-cert-dir"));
    }
}

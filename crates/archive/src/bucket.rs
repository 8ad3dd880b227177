//! Objects of a store that speaks the protocol of S3.
//!
//! What is used of it: `PutObject` (with `If-None-Match: *` where nobody may have made the object before),
//! `GetObject` of a range, `ListObjectsV2`, `DeleteObject`, and multipart uploads. Addresses and credentials come from
//! the variables that the AWS command-line interface reads.

use std::cell::RefCell;
use std::fmt;
use std::io::{self, ErrorKind};
use std::thread;
use std::time::Duration;

use rusty_s3::actions::{
    CompleteMultipartUploadResponse, CreateMultipartUpload, ListObjectsV2, ListObjectsV2Response, S3Action,
};
use rusty_s3::{Credentials, UrlStyle};
use ureq::http::{Response, StatusCode};
use ureq::tls::{PemItem, RootCerts, TlsConfig};
use ureq::{Agent, Body};

/// A signed request is good for so long.
const SIGNED_FOR: Duration = Duration::from_secs(300);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The store may take so long to begin its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// A body of [`PART_BYTES`] takes so long on a line of a megabit a second.
const BODY_TIMEOUT: Duration = Duration::from_secs(70);

/// So often a request is made that the store, or the way to it, did not answer.
const ATTEMPTS_MAX: u32 = 4;

const PAUSE: Duration = Duration::from_millis(100);

/// What is read of an object at a time, if there is so much.
const WINDOW_BYTES: u64 = 4 << 20;

/// The least that a part of an upload has; the store asks for 5 MiB.
const PART_BYTES: usize = 8 << 20;

/// Each part is larger than the one before by this: 10,000 of them, which is the store's limit, hold 870 GB.
const PART_GROWTH_BYTES: usize = 16 << 10;

/// An answer without an object in it has at most so many bytes.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// A bucket, and what the keys of an archive in it begin with.
#[derive(Clone)]
pub struct Bucket {
    bucket: rusty_s3::Bucket,
    credentials: Option<Credentials>,
    agent: Agent,
    /// Without a slash at either end.
    prefix: String,
}

impl fmt::Debug for Bucket {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "s3://{}/{}", self.bucket.name(), self.prefix)
    }
}

/// An error that the store has told.
fn refused(status: StatusCode, text: &str) -> io::Error {
    let field = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        rest.split_once(&format!("</{name}>")).map(|(value, _)| value)
    };
    let kind = match status {
        StatusCode::NOT_FOUND => ErrorKind::NotFound,
        StatusCode::PRECONDITION_FAILED => ErrorKind::AlreadyExists,
        StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => ErrorKind::PermissionDenied,
        _ => ErrorKind::Other,
    };
    let told = match (field("Code"), field("Message")) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        (Some(code), None) => code.to_owned(),
        _ => "it does not say why".to_owned(),
    };
    io::Error::new(kind, format!("the object store answers {}: {told}", status.as_u16()))
}

fn unreachable_store(error: &ureq::Error) -> io::Error {
    io::Error::new(ErrorKind::NotConnected, format!("the object store cannot be asked: {error}"))
}

fn not_understood(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("the object store's answer to {what} is not understood"))
}

impl Bucket {
    /// The bucket and prefix behind `s3://`, with what the environment says of the store.
    ///
    /// | variable | what it is |
    /// |---|---|
    /// | `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL` | the store, if it is not Amazon's |
    /// | `AWS_REGION`, `AWS_DEFAULT_REGION` | its region; `us-east-1` if there is none |
    /// | `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN` | credentials |
    /// | `AWS_CA_BUNDLE` | a file with the certificates of the authorities to trust |
    ///
    /// # Errors
    /// What is wrong, for an operator.
    pub fn from_environment(place: &str) -> Result<Self, String> {
        Self::new(place, |name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn new(place: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let (name, prefix) = place.split_once('/').unwrap_or((place, ""));
        if name.is_empty() {
            return Err("the address of a bucket is s3://BUCKET/PREFIX".into());
        }
        let prefix = prefix.trim_matches('/').to_owned();
        let region = variable("AWS_REGION").or_else(|| variable("AWS_DEFAULT_REGION"));
        let region = region.unwrap_or_else(|| "us-east-1".into());
        let endpoint = variable("AWS_ENDPOINT_URL_S3").or_else(|| variable("AWS_ENDPOINT_URL"));
        // Other stores rarely have a name in the DNS for each bucket.
        let style = if endpoint.is_some() { UrlStyle::Path } else { UrlStyle::VirtualHost };
        let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let url = endpoint.parse().map_err(|cause| format!("the address of the object store, {endpoint}: {cause}"))?;
        let bucket = rusty_s3::Bucket::new(url, style, name.to_owned(), region)
            .map_err(|cause| format!("the bucket {name} at {endpoint}: {cause}"))?;
        let credentials = match (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY")) {
            (Some(key), Some(secret)) => match variable("AWS_SESSION_TOKEN") {
                Some(token) => Credentials::new_with_token(key, secret, token),
                None => Credentials::new(key, secret),
            },
            _ => {
                return Err("an archive in a bucket needs credentials: set AWS_ACCESS_KEY_ID and \
                            AWS_SECRET_ACCESS_KEY in the server's environment"
                    .into());
            }
        };
        let mut tls = TlsConfig::builder();
        if let Some(path) = variable("AWS_CA_BUNDLE") {
            tls = tls.root_certs(authorities(&path)?);
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .tls_config(tls.build())
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_resolve(Some(CONNECT_TIMEOUT))
            .timeout_send_body(Some(BODY_TIMEOUT))
            .timeout_recv_response(Some(ANSWER_TIMEOUT))
            .timeout_recv_body(Some(BODY_TIMEOUT))
            .user_agent("holdfast")
            .build();
        Ok(Self { bucket, credentials: Some(credentials), agent: config.new_agent(), prefix })
    }

    /// Its address.
    pub fn address(&self) -> String {
        let slash = if self.prefix.is_empty() { "" } else { "/" };
        format!("s3://{}{slash}{}", self.bucket.name(), self.prefix)
    }

    fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    fn key(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.to_owned() } else { format!("{}/{name}", self.prefix) }
    }

    /// Repeats a request until it is answered, but gives up at some point. An answer that is a refusal is an error.
    fn ask(&self, request: impl Fn() -> Result<Response<Body>, ureq::Error>) -> io::Result<Response<Body>> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let error = match request() {
                Ok(answer) if answer.status().is_success() => return Ok(answer),
                Ok(mut answer) => {
                    let status = answer.status();
                    let text = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
                    let error = refused(status, &text.unwrap_or_default());
                    // 409 is the answer to two who make the same object at the same time: one of them may try again.
                    if !(status.is_server_error() || status == StatusCode::CONFLICT) {
                        return Err(error);
                    }
                    error
                }
                Err(error) => unreachable_store(&error),
            };
            if attempt == ATTEMPTS_MAX {
                return Err(error);
            }
            thread::sleep(PAUSE * 2_u32.pow(attempt));
        }
    }

    fn text(mut answer: Response<Body>) -> io::Result<String> {
        let text = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        text.map_err(|error| unreachable_store(&error))
    }

    /// Names that begin with `prefix`, in the order of bytes, with their sizes; only those that come behind `after`, if
    /// that is not empty.
    ///
    /// # Errors
    /// If the store does not answer, or refuses.
    pub(crate) fn list(&self, prefix: &str, after: &str) -> io::Result<Vec<(String, u64)>> {
        let mut found = Vec::new();
        self.list_pages(prefix, after, "", |page| {
            for object in page.contents {
                found.push((self.name(&object.key)?.to_owned(), object.size.unwrap_or(0)));
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// What comes before the first slash of names.
    ///
    /// # Errors
    /// If the store does not answer, or refuses.
    pub(crate) fn folders(&self) -> io::Result<Vec<String>> {
        let mut found = Vec::new();
        self.list_pages("", "", "/", |page| {
            for folder in page.common_prefixes {
                found.push(self.name(&folder.prefix)?.trim_end_matches('/').to_owned());
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// The name of an object with this key.
    fn name<'a>(&self, key: &'a str) -> io::Result<&'a str> {
        key.strip_prefix(&self.key("")).ok_or_else(|| not_understood("ListObjectsV2"))
    }

    fn list_pages(
        &self,
        prefix: &str,
        after: &str,
        delimiter: &str,
        mut take: impl FnMut(ListObjectsV2Response) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut token = None;
        loop {
            let answer = self.ask(|| {
                let mut action = self.bucket.list_objects_v2(self.credentials());
                action.with_prefix(self.key(prefix));
                if !after.is_empty() {
                    action.with_start_after(self.key(after));
                }
                if !delimiter.is_empty() {
                    action.with_delimiter(delimiter.to_owned());
                }
                if let Some(token) = &token {
                    action.with_continuation_token(String::clone(token));
                }
                self.agent.get(action.sign(SIGNED_FOR).as_str()).call()
            })?;
            let listed = ListObjectsV2::parse_response(&Self::text(answer)?);
            let mut listed = listed.map_err(|_| not_understood("ListObjectsV2"))?;
            token = listed.next_continuation_token.take();
            take(listed)?;
            if token.is_none() {
                return Ok(());
            }
        }
    }

    /// Writes an object; if `is_new`, only where there is none, which is an error of the kind
    /// [`AlreadyExists`](ErrorKind::AlreadyExists) otherwise.
    ///
    /// # Errors
    /// If the store does not answer, or refuses.
    pub(crate) fn put(&self, name: &str, bytes: &[u8], is_new: bool) -> io::Result<()> {
        let key = self.key(name);
        self.ask(|| {
            let mut action = self.bucket.put_object(self.credentials(), &key);
            if is_new {
                action.headers_mut().insert("if-none-match", "*");
            }
            let request = self.agent.put(action.sign(SIGNED_FOR).as_str());
            let request = if is_new { request.header("if-none-match", "*") } else { request };
            request.send(bytes)
        })?;
        Ok(())
    }

    /// Removes an object. One that is not there is no error.
    ///
    /// # Errors
    /// If the store does not answer, or refuses.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        let key = self.key(name);
        let action = || self.bucket.delete_object(self.credentials(), &key).sign(SIGNED_FOR);
        self.ask(|| self.agent.delete(action().as_str()).call())?;
        Ok(())
    }

    /// Bytes `first` to `last` of an object, or fewer where it ends, and the size of the whole.
    fn range(&self, name: &str, first: u64, last: u64) -> io::Result<(Vec<u8>, u64)> {
        let key = self.key(name);
        let mut answer = self.ask(|| {
            let url = self.bucket.get_object(self.credentials(), &key).sign(SIGNED_FOR);
            self.agent.get(url.as_str()).header("range", &format!("bytes={first}-{last}")).call()
        })?;
        let told = answer.headers().get("content-range").and_then(|value| value.to_str().ok());
        let length = told.and_then(|told| told.rsplit_once('/')?.1.parse::<u64>().ok());
        let wanted = last - first + 1;
        let body = answer.body_mut().with_config().limit(wanted + 1).read_to_vec();
        let body = body.map_err(|error| unreachable_store(&error))?;
        // A store that knows no ranges gives all of a small object.
        let length = length.or((first == 0).then_some(body.len() as u64)).ok_or_else(|| not_understood("GetObject"))?;
        let expected = wanted.min(length.saturating_sub(first));
        if body.len() as u64 != expected {
            return Err(not_understood("GetObject"));
        }
        Ok((body, length))
    }

    /// All of a small object.
    ///
    /// # Errors
    /// If there is none, the store does not answer, or refuses.
    pub(crate) fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        Ok(self.range(name, 0, WINDOW_BYTES - 1)?.0)
    }

    /// Opens an object.
    ///
    /// # Errors
    /// If there is none, the store does not answer, or refuses.
    pub(crate) fn open(&self, name: &str) -> io::Result<Object> {
        let (bytes, length) = self.range(name, 0, WINDOW_BYTES - 1)?;
        Ok(Object { bucket: self.clone(), name: name.to_owned(), length, window: RefCell::new((0, bytes)) })
    }

    /// Begins an object that is written part by part, and is not there before its end.
    ///
    /// # Errors
    /// If the store does not answer, or refuses.
    pub(crate) fn begin(&self, name: &str) -> io::Result<Upload> {
        let key = self.key(name);
        let answer = self.ask(|| {
            let url = self.bucket.create_multipart_upload(self.credentials(), &key).sign(SIGNED_FOR);
            self.agent.post(url.as_str()).send_empty()
        })?;
        let begun = CreateMultipartUpload::parse_response(&Self::text(answer)?);
        let id = begun.map_err(|_| not_understood("CreateMultipartUpload"))?.upload_id().to_owned();
        Ok(Upload { bucket: self.clone(), key, id, tags: Vec::new(), part: Vec::new() })
    }
}

/// The authorities of a file of certificates.
fn authorities(path: &str) -> Result<RootCerts, String> {
    let bytes = std::fs::read(path).map_err(|cause| format!("cannot read AWS_CA_BUNDLE, {path}: {cause}"))?;
    let mut found = Vec::new();
    for item in ureq::tls::parse_pem(&bytes) {
        match item {
            Ok(PemItem::Certificate(certificate)) => found.push(certificate),
            Ok(_) => {}
            Err(cause) => return Err(format!("cannot read AWS_CA_BUNDLE, {path}: {cause}")),
        }
    }
    if found.is_empty() {
        return Err(format!("there is no certificate in AWS_CA_BUNDLE, {path}"));
    }
    Ok(RootCerts::from(found))
}

/// An object that is being read.
#[derive(Debug)]
pub(crate) struct Object {
    bucket: Bucket,
    name: String,
    length: u64,
    /// What has been read last, and where it begins.
    window: RefCell<(u64, Vec<u8>)>,
}

impl Object {
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Fills `out` with what is at `offset`.
    ///
    /// # Errors
    /// If the object ends before, the store does not answer, or refuses.
    pub(crate) fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        let wanted = out.len() as u64;
        if offset + wanted > self.length {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let mut window = self.window.borrow_mut();
        let is_there = offset >= window.0 && offset + wanted <= window.0 + window.1.len() as u64;
        if !is_there && wanted > 0 {
            let last = (offset + wanted.max(WINDOW_BYTES)).min(self.length) - 1;
            *window = (offset, self.bucket.range(&self.name, offset, last)?.0);
        }
        let from = (offset - window.0) as usize;
        let found = window.1.get(from..from + out.len()).ok_or(ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(found);
        Ok(())
    }
}

/// An object that is being written.
pub(crate) struct Upload {
    bucket: Bucket,
    key: String,
    id: String,
    /// What the store calls the parts that it has.
    tags: Vec<String>,
    part: Vec<u8>,
}

impl Upload {
    /// Takes more of it.
    ///
    /// # Errors
    /// If the store does not answer, or refuses.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.part.extend_from_slice(bytes);
        let enough = PART_BYTES + self.tags.len() * PART_GROWTH_BYTES;
        if self.part.len() >= enough { self.send() } else { Ok(()) }
    }

    fn send(&mut self) -> io::Result<()> {
        let number = u16::try_from(self.tags.len() + 1).map_err(|_| io::Error::other("the object is too large"))?;
        let Self { bucket: Bucket { bucket, agent, .. }, key, id, part, .. } = &*self;
        let answer = self.bucket.ask(|| {
            let url = bucket.upload_part(self.bucket.credentials(), key, number, id).sign(SIGNED_FOR);
            agent.put(url.as_str()).send(part.as_slice())
        })?;
        let tag = answer.headers().get("etag").and_then(|tag| tag.to_str().ok());
        self.tags.push(tag.ok_or_else(|| not_understood("UploadPart"))?.to_owned());
        self.part.clear();
        Ok(())
    }

    /// Makes the object of its parts.
    ///
    /// # Errors
    /// If the store does not answer, or refuses.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.send()?;
        let Self { bucket: Bucket { bucket, agent, .. }, key, id, tags, .. } = &self;
        let answer = self.bucket.ask(|| {
            let tags = tags.iter().map(String::as_str);
            let action = bucket.complete_multipart_upload(self.bucket.credentials(), key, id, tags);
            let url = action.sign(SIGNED_FOR);
            agent.post(url.as_str()).send(action.body())
        })?;
        let text = Bucket::text(answer)?;
        // The store begins to answer before it has succeeded.
        match CompleteMultipartUploadResponse::parse(&text) {
            Ok(_) => Ok(()),
            Err(_) => Err(refused(StatusCode::OK, &text)),
        }
    }

    /// Throws it away.
    pub(crate) fn abandon(self) {
        let Self { bucket: Bucket { bucket, agent, .. }, key, id, .. } = &self;
        let url = bucket.abort_multipart_upload(self.bucket.credentials(), key, id).sign(SIGNED_FOR);
        // What is left of it is invisible; buckets have rules for the removal of such parts.
        let _ = agent.delete(url.as_str()).call();
    }
}

//! An object store of one bucket, in memory: as much of the protocol of S3 as an archive needs, and the faults that
//! real ones have. Signatures are asked for and not verified.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Names in one answer to a question for a list: few, so that there are several answers.
const PAGE: usize = 7;

/// How the store behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// It does what it is asked for.
    Well,
    /// It answers that it is too busy.
    Busy,
    /// It takes requests and does not answer.
    Silent,
    /// It does what it is asked for, and cuts the connection instead of saying so.
    Forgetful,
}

#[derive(Default)]
struct Shelf {
    objects: BTreeMap<String, Vec<u8>>,
    uploads: BTreeMap<String, BTreeMap<u32, Vec<u8>>>,
}

struct Shared {
    shelf: Mutex<Shelf>,
    mood: Mutex<Mood>,
    requests: AtomicU64,
    over: AtomicBool,
}

/// The store, which ends when it is dropped.
pub struct ObjectStore {
    shared: Arc<Shared>,
    port: u16,
}

struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl ObjectStore {
    /// Starts it on a port of the loopback.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared {
            shelf: Mutex::default(),
            mood: Mutex::new(Mood::Well),
            requests: AtomicU64::new(0),
            over: AtomicBool::new(false),
        });
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if serving.over.load(Ordering::Relaxed) {
                    return;
                }
                let shared = Arc::clone(&serving);
                thread::spawn(move || serve(stream, &shared));
            }
        });
        Self { shared, port }
    }

    /// What a process is told about it.
    pub fn environment(&self) -> Vec<(String, String)> {
        let own = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        vec![
            own("AWS_ENDPOINT_URL", &format!("http://127.0.0.1:{}", self.port)),
            own("AWS_ACCESS_KEY_ID", "key"),
            own("AWS_SECRET_ACCESS_KEY", "secret"),
        ]
    }

    /// It behaves so from now on.
    pub fn set_mood(&self, mood: Mood) {
        *self.shared.mood.lock().expect("no panic") = mood;
    }

    /// Names of objects, with their sizes.
    pub fn objects(&self) -> Vec<(String, usize)> {
        let shelf = self.shared.shelf.lock().expect("no panic");
        shelf.objects.iter().map(|(name, bytes)| (name.clone(), bytes.len())).collect()
    }

    /// Changes an object behind everybody's back.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        change(self.shared.shelf.lock().expect("no panic").objects.get_mut(name).expect("it is there"));
    }

    /// Requests so far.
    pub fn request_count(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }
}

impl Drop for ObjectStore {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits: Vec<u8> = rest.by_ref().take(2).collect();
            let digits = String::from_utf8(digits).expect("hexadecimal");
            bytes.push(u8::from_str_radix(&digits, 16).expect("hexadecimal"));
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).expect("UTF-8")
}

fn read(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    stream.read_line(&mut line).ok().filter(|count| *count > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(name), decode(value))
    };
    let (path, query) = (decode(path), query.split('&').filter(|it| !it.is_empty()).map(pair).collect());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").map_or(0, |length| length.parse().expect("a number"));
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(Request { method, path, query, headers, body })
}

fn serve(stream: TcpStream, shared: &Shared) {
    let mut stream = BufReader::new(stream);
    while let Some(request) = read(&mut stream) {
        shared.requests.fetch_add(1, Ordering::Relaxed);
        let mood = *shared.mood.lock().expect("no panic");
        let (status, headers, body) = match mood {
            Mood::Busy => failure(503, "SlowDown"),
            Mood::Silent => {
                while *shared.mood.lock().expect("no panic") == Mood::Silent && !shared.over.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(20));
                }
                return;
            }
            Mood::Well | Mood::Forgetful => answer(&request, &mut shared.shelf.lock().expect("no panic")),
        };
        if mood == Mood::Forgetful {
            return;
        }
        let head = format!("HTTP/1.1 {status} so\r\ncontent-length: {}\r\n{headers}\r\n", body.len());
        let stream = stream.get_mut();
        if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body)).is_err() {
            return;
        }
    }
}

type Answer = (u16, String, Vec<u8>);

fn failure(status: u16, code: &str) -> Answer {
    (status, String::new(), format!("<Error><Code>{code}</Code><Message>as told</Message></Error>").into())
}

fn document(name: &str, content: &str) -> Answer {
    let text = format!("<{name} xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{content}</{name}>");
    (200, String::new(), text.into())
}

fn answer(request: &Request, shelf: &mut Shelf) -> Answer {
    let Request { method, path, query, headers, body } = request;
    if !query.contains_key("X-Amz-Signature") {
        return failure(403, "AccessDenied");
    }
    let Some(key) = path.strip_prefix("/bucket/") else { return failure(404, "NoSuchBucket") };
    let upload = query.get("uploadId");
    match (method.as_str(), upload) {
        ("GET", _) if query.contains_key("list-type") => list(query, shelf),
        ("GET", _) => get(shelf.objects.get(key), headers.get("range")),
        ("PUT", Some(upload)) => {
            let number = query["partNumber"].parse().expect("a number");
            shelf.uploads.get_mut(upload).expect("it has begun").insert(number, body.clone());
            (200, format!("etag: \"{number}\"\r\n"), Vec::new())
        }
        ("PUT", None) if headers.contains_key("if-none-match") && shelf.objects.contains_key(key) => {
            failure(412, "PreconditionFailed")
        }
        ("PUT", None) => {
            shelf.objects.insert(key.to_owned(), body.clone());
            (200, "etag: \"it\"\r\n".into(), Vec::new())
        }
        ("POST", Some(upload)) => {
            let parts = shelf.uploads.remove(upload).expect("it has begun");
            shelf.objects.insert(key.to_owned(), parts.into_values().flatten().collect());
            document("CompleteMultipartUploadResult", "<ETag>it</ETag>")
        }
        ("POST", None) => {
            let name = format!("upload-{}", shelf.uploads.len());
            shelf.uploads.insert(name.clone(), BTreeMap::new());
            document("InitiateMultipartUploadResult", &format!("<UploadId>{name}</UploadId>"))
        }
        ("DELETE", Some(upload)) => {
            shelf.uploads.remove(upload);
            (204, String::new(), Vec::new())
        }
        ("DELETE", None) => {
            shelf.objects.remove(key);
            (204, String::new(), Vec::new())
        }
        _ => failure(405, "MethodNotAllowed"),
    }
}

fn list(query: &BTreeMap<String, String>, shelf: &Shelf) -> Answer {
    let prefix = query.get("prefix").cloned().unwrap_or_default();
    let after = query.get("continuation-token").or_else(|| query.get("start-after")).cloned().unwrap_or_default();
    if query.contains_key("delimiter") {
        let folder = |name: &String| name.strip_prefix(&prefix)?.split_once('/').map(|(folder, _)| folder.to_owned());
        let folders: BTreeSet<String> = shelf.objects.keys().filter_map(folder).collect();
        let told =
            folders.iter().map(|folder| format!("<CommonPrefixes><Prefix>{prefix}{folder}/</Prefix></CommonPrefixes>"));
        let content = "<IsTruncated>false</IsTruncated>".to_owned() + &told.collect::<String>();
        return document("ListBucketResult", &content);
    }
    let behind = shelf.objects.range((Bound::Excluded(after), Bound::Unbounded));
    let found: Vec<_> = behind.filter(|(name, _)| name.starts_with(&prefix)).take(PAGE + 1).collect();
    let is_cut = found.len() > PAGE;
    let mut content = format!("<IsTruncated>{is_cut}</IsTruncated>");
    for (name, bytes) in found.iter().take(PAGE) {
        content += &format!("<Contents><Key>{name}</Key><Size>{}</Size></Contents>", bytes.len());
    }
    if is_cut {
        content += &format!("<NextContinuationToken>{}</NextContinuationToken>", found[PAGE - 1].0);
    }
    document("ListBucketResult", &content)
}

fn get(object: Option<&Vec<u8>>, range: Option<&String>) -> Answer {
    let Some(bytes) = object else { return failure(404, "NoSuchKey") };
    let (first, last) = range.and_then(|it| it.strip_prefix("bytes=")?.split_once('-')).expect("a range is asked for");
    let first: usize = first.parse().expect("a number");
    let end = (last.parse::<usize>().expect("a number") + 1).min(bytes.len());
    if first >= bytes.len() {
        return failure(416, "InvalidRange");
    }
    let told = format!("content-range: bytes {first}-{}/{}\r\n", end - 1, bytes.len());
    (206, told, bytes[first..end].to_vec())
}

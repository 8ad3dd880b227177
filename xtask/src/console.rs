//! `console`: the console in a real browser. Every page is opened in the light, in the dark and on a phone, with a
//! screenshot of each for people to look at; then keys are changed, and the node is examined, by clicks.
//!
//! The browser is Chromium without a window. It is told what to do over WebDriver, which is HTTP with JSON.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::needs;
use crate::process::exists;

/// Longer nothing is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// How the page is looked at: name, width, height, whether it is dark.
const VIEWS: [(&str, u32, u32, bool); 4] = [
    ("light", 1_300, 900, false),
    ("dark", 1_300, 900, true),
    ("narrow", 390, 800, false),
    ("narrow-dark", 390, 800, true),
];

/// A value that is no text, which an editor must return as it was.
const BINARY: &[u8] = b"\xff\0\r\n\\x41";

/// Runs the verb.
pub fn run(options: &[String]) -> Result<()> {
    let (mut binary, mut directory) = (None, crate::target().join("console"));
    let mut words = options.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().map(PathBuf::from).with_context(|| format!("{word} wants a value"));
        match word.as_str() {
            "--binary" => binary = Some(value()?),
            "--directory" => directory = value()?,
            _ => bail!("console takes no option '{word}'"),
        }
    }
    if !exists("chromium") || !exists("chromedriver") {
        needs::install(&["chromium", "chromium-driver"])?;
    }
    let binary = binary.map_or_else(crate::build_release, Ok)?;
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let stage = Stage::new(&binary)?;
    let browser = Browser::new(&stage.scratch)?;
    see_pages(&stage, &browser, &directory)?;
    change_keys(&stage, &browser)?;
    examine(&stage, &browser)?;
    watch_only(&stage, &browser)?;
    let complaints = browser.complaints()?;
    ensure!(complaints.is_empty(), "the browser complains: {}", complaints.join("; "));
    println!("the console works; look at the screenshots in {}", directory.display());
    Ok(())
}

/// Opens every page in every view.
fn see_pages(stage: &Stage, browser: &Browser, directory: &Path) -> Result<()> {
    browser.go(&format!("http://127.0.0.1:{}/", stage.console_port))?;
    browser.wait("state.user && state.history && state.cluster")?;
    let pages = browser.script("return PAGES.map((page) => page[0])")?;
    let pages: Vec<&str> = pages.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    ensure!(pages.len() >= 10, "there are only the pages {pages:?}");
    for (view, width, height, is_dark) in VIEWS {
        browser.view(width, height, is_dark)?;
        for page in &pages {
            browser.script(&format!("location.hash = '#{page}'"))?;
            browser.wait(&format!("state.page === '{page}'"))?;
            if *page == "keys" {
                browser.click("Find")?;
                browser.wait("document.querySelectorAll('#keys-list tbody tr').length === 3")?;
            }
            thread::sleep(Duration::from_millis(300));
            let is_wide = browser.script("return document.documentElement.scrollWidth > innerWidth")?;
            ensure!(is_wide == false, "the page {page} is wider than its window ({view})");
            browser.shot(&directory.join(format!("{page}-{view}.png")))?;
        }
    }
    browser.view(1_300, 900, false)
}

fn change_keys(stage: &Stage, browser: &Browser) -> Result<()> {
    let is_done = |word: &str| browser.wait(&format!("document.getElementById('done')?.textContent === '{word}'"));
    browser.script("location.hash = '#keys'")?;
    browser.click("Find")?;
    browser.click("bin\\xff")?;
    browser.click("Change value")?;
    browser.click("Save")?;
    is_done("Saved.")?;
    ensure!(stage.call(&[b"GET", b"bin\xff"])?.ends_with(&[BINARY, b"\r\n"].concat()), "bytes were damaged");
    browser.click("Close")?;

    browser.click("text")?;
    browser.click("Change value")?;
    stage.call(&[b"SET", b"text", b"theirs"])?;
    browser.write("#edit textarea", "mine")?;
    browser.click("Save")?;
    browser.wait("document.querySelector('#edit .warn')?.textContent.includes('has changed')")?;
    ensure!(stage.call(&[b"GET", b"text"])?.ends_with(b"theirs\r\n"), "a change of somebody else was overwritten");
    browser.click("Change value")?;
    browser.write("#edit textarea", "line 1\nline 2")?;
    browser.click("Save")?;
    is_done("Saved.")?;
    ensure!(stage.call(&[b"GET", b"text"])?.ends_with(b"line 1\nline 2\r\n"), "the value was not saved");
    browser.click("Delete key")?;
    ensure!(stage.call(&[b"EXISTS", b"text"])? == b":1\r\n", "it was deleted without a question");
    browser.click("Delete")?;
    browser.wait("!document.getElementById('detail').open")?;
    ensure!(stage.call(&[b"EXISTS", b"text"])? == b":0\r\n", "it was not deleted");

    browser.click("hash")?;
    browser.click("Add field")?;
    browser.write("#edit textarea", "added")?;
    browser.click("Add")?;
    is_done("Added.")?;
    ensure!(stage.call(&[b"HLEN", b"hash"])? == b":2\r\n", "no field was added");
    browser.click("Close")
}

fn examine(stage: &Stage, browser: &Browser) -> Result<()> {
    browser.script("location.hash = '#doctor'")?;
    browser.click("Examine this node")?;
    browser.wait("document.querySelector('progress')")?;
    stage.call(&[b"DEBUG", b"SLEEP", b"1"])?;
    browser.wait("document.getElementById('diagnosis')")?;
    let verdict = browser.script("return document.getElementById('diagnosis').textContent")?;
    ensure!(verdict.as_str().is_some_and(|line| line.starts_with("guilty: ")), "a stall was not found: {verdict}");
    Ok(())
}

/// A user who may only look is offered nothing else.
fn watch_only(stage: &Stage, browser: &Browser) -> Result<()> {
    let look = "ACL SETUSER watcher on >look -@all +holdfast|cluster +scan +type +pttl +hlen +hscan ~*";
    stage.call(&look.split(' ').map(str::as_bytes).collect::<Vec<_>>())?;
    stage.call(&[b"CONFIG", b"SET", b"requirepass", b"secret"])?;
    browser.script("$('logout').hidden = false; $('logout').click()")?;
    browser.wait("$('login').open")?;
    browser.write("#login [name=user]", "watcher")?;
    browser.write("#login [name=password]", "look")?;
    browser.click("Log in")?;
    browser.wait("state.user === 'watcher'")?;
    browser.script("location.hash = '#keys'")?;
    browser.click("Find")?;
    browser.click("hash")?;
    browser.wait("document.querySelector('#detail tbody tr')")?;
    let buttons = browser.script("return document.querySelectorAll('#detail-body button').length")?;
    ensure!(buttons == 0, "who may only look is offered {buttons} changes");
    browser.click("Close")
}

/// A server with a few keys.
struct Stage {
    server: Child,
    port: u16,
    console_port: u16,
    scratch: PathBuf,
}

impl Stage {
    fn new(binary: &Path) -> Result<Self> {
        let scratch = std::env::temp_dir().join(format!("holdfast-console-{}", std::process::id()));
        fs::create_dir_all(&scratch)?;
        let (port, console_port) = (free_port()?, free_port()?);
        let server = Command::new(binary)
            .args(["serve", "--port", &port.to_string(), "--console-port", &console_port.to_string()])
            .args(["--cores", "1", "--data-dir"])
            .arg(scratch.join("data"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| binary.display().to_string())?;
        let stage = Self { server, port, console_port, scratch };
        let began = Instant::now();
        while !stage.call(&[b"SET", b"text", b"x"]).is_ok_and(|reply| reply == b"+OK\r\n") {
            ensure!(began.elapsed() < PATIENCE, "the server does not begin to serve");
            thread::sleep(Duration::from_millis(100));
        }
        stage.call(&[b"SET", b"bin\xff", BINARY])?;
        stage.call(&[b"HSET", b"hash", b"field", b"value"])?;
        Ok(stage)
    }

    /// The bytes of a short reply.
    fn call(&self, words: &[&[u8]]) -> Result<Vec<u8>> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        // A connection that is to end says so, and then all that comes is the reply.
        request.extend_from_slice(b"*1\r\n$4\r\nQUIT\r\n");
        stream.write_all(&request)?;
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply)?;
        let end = reply.strip_suffix(b"+OK\r\n").map(<[u8]>::len);
        Ok(reply[..end.unwrap_or(reply.len())].to_vec())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// A browser, and the program that hands it orders.
struct Browser {
    driver: Child,
    port: u16,
    session: String,
}

impl Browser {
    fn new(scratch: &Path) -> Result<Self> {
        let port = free_port()?;
        let driver = Command::new("chromedriver")
            .arg(format!("--port={port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("chromedriver")?;
        let mut browser = Self { driver, port, session: String::new() };
        let profile = format!("--user-data-dir={}", scratch.join("browser").display());
        let arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", &profile];
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": { "args": arguments }, "goog:loggingPrefs": { "browser": "WARNING" } } } });
        let began = Instant::now();
        let opened = loop {
            match browser.order("POST", "/session", &wanted) {
                Ok(opened) => break opened,
                Err(why) if began.elapsed() > PATIENCE => return Err(why),
                Err(_) => thread::sleep(Duration::from_millis(200)),
            }
        };
        browser.session = format!("/session/{}", opened["sessionId"].as_str().context("no session")?);
        Ok(browser)
    }

    fn order(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let body = body.to_string();
        let request = format!(
            "{method} {}{path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.session,
            self.port,
            body.len()
        );
        stream.write_all(request.as_bytes())?;
        // The driver does not end the connection, whatever it is asked to do.
        let mut reader = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            match line.split_once(':') {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => length = value.trim().parse()?,
                Some(_) => {}
                None if line.starts_with("HTTP/") => {}
                None => break,
            }
        }
        let mut answer = vec![0; length];
        reader.read_exact(&mut answer)?;
        let value: Value = serde_json::from_slice(&answer).context("no JSON of the driver")?;
        match value["value"].get("error") {
            Some(error) if error.is_string() => bail!("{path}: {}", value["value"]["message"]),
            _ => Ok(value["value"].clone()),
        }
    }

    fn go(&self, address: &str) -> Result<()> {
        self.order("POST", "/url", &json!({ "url": address })).map(drop)
    }

    fn script(&self, text: &str) -> Result<Value> {
        self.order("POST", "/execute/sync", &json!({ "script": text, "args": [] }))
    }

    /// Waits until an expression is true.
    fn wait(&self, condition: &str) -> Result<()> {
        let began = Instant::now();
        while self.script(&format!("return Boolean({condition})"))? != true {
            if began.elapsed() > PATIENCE {
                let shown = self.script("return document.body.innerText.slice(0, 2000)")?;
                bail!("it never came true: {condition}; shown was {shown}");
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Clicks the button with this text as a person would: it must be there, and nothing may cover it.
    fn click(&self, text: &str) -> Result<()> {
        let button = format!(
            "[...document.querySelectorAll('button')].find((it) => it.textContent.trim() === {} && it.offsetParent !== null)",
            json!(text)
        );
        let began = Instant::now();
        loop {
            self.wait(&button)?;
            let element = self.script(&format!("return {button}"))?;
            match self.element(&element, "click", &json!({})) {
                // What is shown has been replaced meanwhile.
                Err(why) if why.to_string().contains("stale element") && began.elapsed() < PATIENCE => {}
                done => return done,
            }
        }
    }

    fn write(&self, selector: &str, text: &str) -> Result<()> {
        let element = self.script(&format!("return document.querySelector({})", json!(selector)))?;
        self.element(&element, "clear", &json!({}))?;
        self.element(&element, "value", &json!({ "text": text }))
    }

    fn element(&self, element: &Value, what: &str, body: &Value) -> Result<()> {
        let id = element.as_object().and_then(|fields| fields.values().next()).and_then(Value::as_str);
        let id = id.context("there is no such element")?;
        self.order("POST", &format!("/element/{id}/{what}"), body).map(drop)
    }

    fn view(&self, width: u32, height: u32, is_dark: bool) -> Result<()> {
        let tool = |name: &str, parameters: Value| {
            self.order("POST", "/goog/cdp/execute", &json!({ "cmd": name, "params": parameters })).map(drop)
        };
        let is_phone = width < 600;
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone });
        tool("Emulation.setDeviceMetricsOverride", size)?;
        let scheme = if is_dark { "dark" } else { "light" };
        let feature = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        tool("Emulation.setEmulatedMedia", feature)
    }

    fn shot(&self, path: &Path) -> Result<()> {
        let answer = self.order("GET", "/screenshot", &json!({}))?;
        let text = answer.as_str().context("no screenshot")?;
        fs::write(path, from_base64(text)).with_context(|| path.display().to_string())
    }

    /// What the browser has to say of the page: errors of its scripts, and what its policy forbids. That a question was
    /// refused, as the console expects, is not among it.
    fn complaints(&self) -> Result<Vec<String>> {
        let entries = self.order("POST", "/se/log", &json!({ "type": "browser" }))?;
        let told = entries.as_array().into_iter().flatten().filter_map(|entry| entry["message"].as_str());
        Ok(told.filter(|text| !text.contains("Failed to load resource")).map(str::to_owned).collect())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            let _ = self.order("DELETE", "", &json!({}));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

fn from_base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let (mut bytes, mut bits, mut bit_count) = (Vec::with_capacity(text.len() / 4 * 3), 0_u32, 0);
    for value in text.bytes().filter_map(digit) {
        (bits, bit_count) = (bits << 6 | u32::from(value), bit_count + 6);
        if bit_count >= 8 {
            bit_count -= 8;
            bytes.push((bits >> bit_count & 0xff) as u8);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_decoded() {
        assert_eq!(from_base64("aG9sZGZhc3Q="), b"holdfast");
        assert_eq!(from_base64("/+8A"), [0xff, 0xef, 0]);
        assert_eq!(from_base64(""), b"");
    }
}

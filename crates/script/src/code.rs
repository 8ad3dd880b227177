//! What clients hand in: scripts and libraries, with what their first line says.

use std::sync::Arc;

use stdx::sha1::sha1;

/// What a script or function says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    bits: u8,
}

const FLAG_NAMES: [&str; 5] = ["no-writes", "allow-oom", "allow-stale", "no-cluster", "allow-cross-slot-keys"];

impl Flags {
    /// It may write nothing.
    pub const NO_WRITES: Self = Self { bits: 1 };
    /// It may run when memory is full.
    pub const ALLOW_OOM: Self = Self { bits: 2 };

    /// The flag of this name.
    pub fn named(name: &str) -> Option<Self> {
        let place = FLAG_NAMES.iter().position(|other| *other == name)?;
        Some(Self { bits: 1 << place })
    }

    /// All flags as one number, for what is kept.
    pub fn bits(self) -> u8 {
        self.bits
    }

    /// The flags that [`Flags::bits`] gave.
    pub fn of_bits(bits: u8) -> Self {
        Self { bits }
    }

    /// Both together.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self { bits: self.bits | other.bits }
    }

    /// True if it has all flags of the other.
    pub fn has(self, other: Self) -> bool {
        self.bits & other.bits == other.bits
    }

    /// Their names.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        FLAG_NAMES.into_iter().enumerate().filter(move |(place, _)| self.bits >> place & 1 == 1).map(|(_, name)| name)
    }
}

/// A script that EVAL can run.
#[derive(Debug, PartialEq, Eq)]
pub struct Script {
    /// SHA-1 of the text, in lower-case hexadecimal digits: its name.
    pub sha: [u8; 40],
    /// The text, its first line included.
    pub text: Vec<u8>,
    /// What the first line says; `None` if there is no such line, and the script may do what scripts could before there
    /// were such lines.
    pub flags: Option<Flags>,
    /// Where the Lua code begins.
    pub(crate) code_start: usize,
}

impl Script {
    /// Reads a script's first line.
    ///
    /// # Errors
    /// What is wrong with it, as an error reply.
    pub fn parse(text: &[u8]) -> Result<Arc<Self>, String> {
        let (flags, code_start) = match text.strip_prefix(b"#!") {
            None => (None, 0),
            Some(_) => {
                let end = text.iter().position(|byte| *byte == b'\n').ok_or("ERR Invalid script shebang")?;
                let line = String::from_utf8_lossy(&text[..end]).into_owned();
                (Some(parse_script_line(&line)?), end)
            }
        };
        Ok(Arc::new(Self { sha: name_of(text), text: text.to_vec(), flags, code_start }))
    }

    /// Its name as text.
    pub fn name(&self) -> &str {
        std::str::from_utf8(&self.sha).expect("digits are ASCII")
    }

    pub(crate) fn code(&self) -> &[u8] {
        &self.text[self.code_start..]
    }
}

/// SHA-1 in lower-case hexadecimal digits.
pub(crate) fn name_of(text: &[u8]) -> [u8; 40] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut name = [0; 40];
    for (pair, byte) in name.chunks_exact_mut(2).zip(sha1(text)) {
        pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    name
}

fn parse_script_line(line: &str) -> Result<Flags, String> {
    let mut words = line.split_ascii_whitespace();
    let engine = words.next().unwrap_or_default();
    if engine != "#!lua" {
        return Err(format!("ERR Unexpected engine in script shebang: {engine}"));
    }
    let mut flags = Flags::default();
    for word in words {
        let Some(names) = word.strip_prefix("flags=") else {
            return Err(format!("ERR Unknown lua shebang option: {word}"));
        };
        for name in names.split(',').filter(|name| !name.is_empty()) {
            let flag = Flags::named(name).ok_or_else(|| format!("ERR Unexpected flag in script shebang: {name}"))?;
            flags = flags.with(flag);
        }
    }
    Ok(flags)
}

/// What a library offers under one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The function's name.
    pub name: String,
    /// In its author's words.
    pub description: Option<Vec<u8>>,
    /// What it says of itself.
    pub flags: Flags,
}

/// A library of functions.
#[derive(Debug, PartialEq, Eq)]
pub struct Library {
    /// Its name.
    pub name: String,
    /// Its text, the first line included.
    pub text: Vec<u8>,
    /// SHA-1 of the text.
    pub(crate) sha: [u8; 40],
    pub(crate) code_start: usize,
}

impl Library {
    /// Reads a library's first line, as `#!lua name=mine`.
    ///
    /// # Errors
    /// What is wrong with it, as an error reply.
    pub fn parse(text: &[u8]) -> Result<Arc<Self>, String> {
        if !text.starts_with(b"#!") {
            return Err("ERR Missing library metadata".to_owned());
        }
        let end = text.iter().position(|byte| *byte == b'\n').ok_or("ERR Invalid library metadata")?;
        let line = String::from_utf8_lossy(&text[2..end]).into_owned();
        let mut words = split(&line).ok_or("ERR Invalid library metadata")?;
        // `#! name=mine` names no engine.
        let engine = if line.starts_with(|first: char| first.is_ascii_whitespace()) || words.is_empty() {
            String::new()
        } else {
            words.remove(0)
        };
        let mut name = None;
        for word in words {
            let Some(value) = word.strip_prefix("name=").or_else(|| word.strip_prefix("NAME=")) else {
                return Err(format!("ERR Invalid metadata value given: {word}"));
            };
            if name.replace(value.to_owned()).is_some() {
                return Err("ERR Invalid metadata value, name argument was given multiple times".to_owned());
            }
        }
        let name = name.ok_or("ERR Library name was not given")?;
        if !is_name(&name) {
            return Err(format!("ERR {NAME_RULE}"));
        }
        if !engine.eq_ignore_ascii_case("lua") {
            return Err(format!("ERR Engine '{engine}' not found"));
        }
        Ok(Arc::new(Self { name, text: text.to_vec(), sha: name_of(text), code_start: end }))
    }

    pub(crate) fn code(&self) -> &[u8] {
        &self.text[self.code_start..]
    }
}

/// Words as `redis-cli` reads them, some of them with parts in quotes. Nothing if a quote is not closed.
fn split(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut rest = line.trim_ascii_start();
    while !rest.is_empty() {
        let mut word = String::new();
        while let Some(first) = rest.chars().next().filter(|first| !first.is_ascii_whitespace()) {
            if first == '"' || first == '\'' {
                let (inside, behind) = rest[1..].split_once(first)?;
                word.push_str(inside);
                rest = behind;
            } else {
                word.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
        words.push(word);
        rest = rest.trim_ascii_start();
    }
    Some(words)
}

pub(crate) const NAME_RULE: &str =
    "Library names can only contain letters, numbers, or underscores(_) and must be at least one character long";

pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

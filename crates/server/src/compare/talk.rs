//! A few words with a server that is being compared, and a look at its process.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use resp::{Frame, FrameDecoder};

/// Longest wait for one answer: a SAVE of all data may take minutes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);

/// A connection on which one request at a time is made.
pub struct Talk {
    stream: TcpStream,
    decoder: FrameDecoder,
}

impl Talk {
    pub fn new(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Self { stream, decoder: FrameDecoder::new() })
    }

    /// The answer to a request, which must not be an error.
    pub fn ask<W: AsRef<str> + AsRef<[u8]>>(&mut self, words: &[W]) -> Result<Frame> {
        let mut bytes = Vec::new();
        resp::encode_request(&mut bytes, words);
        self.stream.write_all(&bytes)?;
        let mut chunk = [0; 16 << 10];
        loop {
            match self.decoder.next_frame()? {
                Some(Frame::Error(text)) => bail!("{}: {}", named(words), String::from_utf8_lossy(&text)),
                Some(frame) => return Ok(frame),
                None => {
                    let len = self.stream.read(&mut chunk).with_context(|| format!("no answer to {}", named(words)))?;
                    if len == 0 {
                        bail!("{}: the server closed the connection", named(words));
                    }
                    self.decoder.extend(&chunk[..len]);
                }
            }
        }
    }

    /// True while a snapshot is being written in the background.
    pub fn is_saving(&mut self) -> Result<bool> {
        Ok(self.info("persistence", "rdb_bgsave_in_progress")? == "1")
    }

    /// What INFO says of something.
    pub fn info(&mut self, section: &str, name: &str) -> Result<String> {
        let text = match self.ask(&["INFO", section])? {
            Frame::Bulk(text) | Frame::Verbatim { text, .. } => text,
            other => bail!("INFO was answered with {other:?}"),
        };
        let text = String::from_utf8_lossy(&text);
        let mut lines = text.lines().filter_map(|line| line.trim_end().split_once(':'));
        let found = lines.find(|(field, _)| *field == name).map(|(_, value)| value.to_owned());
        found.with_context(|| format!("INFO {section} does not say {name}"))
    }
}

/// A request as errors name it, without the many values that may be in it.
fn named<W: AsRef<str>>(words: &[W]) -> String {
    const SHOWN_COUNT_MAX: usize = 4;
    let shown: Vec<&str> = words.iter().take(SHOWN_COUNT_MAX).map(AsRef::as_ref).collect();
    shown.join(" ")
}

/// Memory of a process and of its children in bytes, what they share counted once (the sum of their proportional set
/// sizes): a snapshot by fork shares pages with its parent until one of them writes. None if there is no such process.
pub fn memory_bytes(pid: u32) -> Option<u64> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| proportional_bytes(child.parse().ok()?));
    Some(proportional_bytes(pid)? + children.sum::<u64>())
}

fn proportional_bytes(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_memory_and_one_that_is_not_there_has_none() {
        assert!(memory_bytes(std::process::id()).is_some_and(|bytes| bytes > 1 << 20));
        assert_eq!(memory_bytes(u32::MAX), None);
    }
}

//! Copies files of the backlog into the archive, once nothing is added to them.
//!
//! Every node has a backlog, and they tell the same; one copy is enough. The node that leads the first group copies its
//! files as soon as they are complete. Any other one copies what is about to leave its backlog, if it finds that the
//! archive lacks it. Two that copy at the same time repeat each other.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;

use archive::{Archive, BaseWriter, ChangesInfo, ChangesSpan, has_all};
use site::Place;
use stdx::UnixMillis;

use super::backlog::segment_path;
use super::trail::first_moment;
use super::{Site, lock};
use crate::host::Host;

/// How hard is compressed: what a core can do while others serve.
const LEVEL: i32 = 1;

/// Bytes that are read at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// A file of the backlog to which nothing is added.
#[derive(Clone, Debug)]
pub(crate) struct Sealed {
    sequence: u64,
    path: PathBuf,
    begin: Vec<Place>,
    end: Vec<Place>,
    bytes: u64,
    /// It is in the older half of what may be kept.
    is_old: bool,
}

impl Sealed {
    fn span(&self, writer: u64) -> ChangesSpan {
        let closed = self.end.iter().map(|place| place.moment).min().unwrap_or_default();
        ChangesSpan { from: first_moment(&self.begin), until: first_moment(&self.end), closed, writer }
    }

    /// The earliest moment that may be in it.
    fn first(&self) -> UnixMillis {
        self.begin.iter().map(|place| place.moment).min().unwrap_or_default()
    }
}

impl Site {
    /// True if what changes is kept here.
    pub(crate) fn keeps_changes(&self) -> bool {
        self.is_on
    }

    /// Files of the backlog that are complete, from this number on.
    fn sealed(&self, from: u64) -> Vec<Sealed> {
        let kept = lock(&self.kept);
        let mut behind: u64 = kept.segments.last().map_or(0, |last| last.bytes);
        let mut found = Vec::new();
        for pair in kept.segments.windows(2).rev() {
            let [segment, next] = pair else { unreachable!("two at a time") };
            if segment.sequence < from {
                break;
            }
            found.push(Sealed {
                sequence: segment.sequence,
                path: segment_path(&kept.directory, segment.sequence),
                begin: segment.places.clone(),
                end: next.places.clone(),
                bytes: segment.bytes,
                is_old: behind >= kept.size_max / 2,
            });
            behind += segment.bytes;
        }
        found.reverse();
        found
    }
}

/// Which files are in the archive, and which are on their way there.
#[derive(Default)]
pub(crate) struct Copying {
    /// All before are in the archive, or gone.
    next: u64,
    job: Option<Receiver<Copied>>,
}

/// What has been copied: the file behind the last one, and bytes that were written. With why it is not more.
struct Copied {
    next: u64,
    bytes: u64,
    fault: Option<String>,
}

impl Copying {
    /// Goes on. Bytes that were written since the last time.
    ///
    /// # Errors
    /// If a file could not be copied: it is tried again.
    pub(crate) fn turn(
        &mut self,
        archive: &Archive,
        host: &Arc<Host>,
        (writer, mark): (u64, u128),
        is_leading: bool,
    ) -> Result<u64, String> {
        let mut written = 0;
        if let Some(outcome) = self.job.take() {
            match outcome.try_recv() {
                Ok(Copied { next, bytes, fault }) => {
                    (self.next, written) = (self.next.max(next), bytes);
                    if let Some(fault) = fault {
                        return Err(fault);
                    }
                }
                Err(TryRecvError::Empty) => {
                    self.job = Some(outcome);
                    return Ok(0);
                }
                Err(TryRecvError::Disconnected) => return Err("the copy of what changed was cut short".to_owned()),
            }
        }
        let mut sealed = host.site.sealed(self.next);
        sealed.retain(|file| is_leading || file.is_old);
        if sealed.is_empty() {
            return Ok(written);
        }
        let files = archive.list_changes().map_err(|fault| fault.to_string())?;
        let is_there = |file: &Sealed| {
            let span = file.span(writer);
            has_all(&files, file.first(), span.until) || files.iter().any(|other| other.span == span)
        };
        let lacking = sealed.iter().position(|file| !is_there(file)).unwrap_or(sealed.len());
        self.next = sealed.get(lacking).map_or_else(|| sealed[lacking - 1].sequence + 1, |file| file.sequence);
        sealed.drain(..lacking);
        if let Some(file) = sealed.first() {
            tell_gap(&files, file, &file.span(writer), host);
            self.begin(archive, sealed, (writer, mark))?;
        }
        Ok(written)
    }

    fn begin(&mut self, archive: &Archive, files: Vec<Sealed>, (writer, mark): (u64, u128)) -> Result<(), String> {
        let archive = archive.clone();
        let (done, outcome) = mpsc::channel();
        let copy = move || {
            let mut copied = Copied { next: 0, bytes: 0, fault: None };
            for file in files {
                match copy(&archive, &file.path, file.bytes, &file.span(writer), mark) {
                    Ok(bytes) => (copied.next, copied.bytes) = (file.sequence + 1, copied.bytes + bytes),
                    Err(why) => {
                        copied.fault = Some(why);
                        break;
                    }
                }
            }
            // Nobody listens when the server stops.
            let _ = done.send(copied);
        };
        thread::Builder::new().name("archive changes".into()).spawn(copy).map_err(|error| error.to_string())?;
        self.job = Some(outcome);
        Ok(())
    }
}

/// Says so if what was before a file has left the backlog, and is not in the archive either.
fn tell_gap(files: &[ChangesInfo], file: &Sealed, span: &ChangesSpan, host: &Host) {
    let Some(last) = files.iter().map(|other| other.span.until).max() else { return };
    let goes_on = |other: &ChangesInfo| {
        other.span.closed > file.first() || (other.span.writer, other.span.until) == (span.writer, span.from)
    };
    if !files.iter().any(goes_on) && last < span.from {
        host.log.warning(&format!(
            "what changed from {} to {} is neither in the backlog of this node any more nor in the archive",
            crate::utc(last),
            crate::utc(span.from)
        ));
    }
}

fn copy(archive: &Archive, path: &Path, length: u64, span: &ChangesSpan, mark: u128) -> Result<u64, String> {
    let own = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
    let mut file = match File::open(path) {
        Ok(file) => file.take(length),
        // It has left the backlog.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(own(error)),
    };
    let mut writer = BaseWriter::begin_changes(archive, span, mark, LEVEL).map_err(|fault| fault.to_string())?;
    let mut chunk = vec![0; CHUNK_BYTES];
    let copied = (|| {
        loop {
            match file.read(&mut chunk).map_err(own)? {
                0 => return Ok(()),
                count => writer.push(&chunk[..count]).map_err(|fault| fault.to_string())?,
            }
        }
    })();
    match copied {
        Ok(()) => writer.finish().map_err(|fault| fault.to_string()),
        Err(why) => {
            writer.abandon();
            Err(why)
        }
    }
}

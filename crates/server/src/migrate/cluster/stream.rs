//! The thread that has a link with one node of a source, and tells the one that follows what comes over it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, SyncSender, channel};
use std::{io, thread};

use anyhow::{Result, anyhow};

use super::topology::Topology;
use crate::migrate::follow::{Step, read_stream};
use crate::migrate::source::{Address, Beginning, Figures, Line, Link, VALKEY_VERSION};
use crate::migrate::spool::{SpoolReader, ensure_room, spool};

/// What the one that follows hears of.
pub enum Event {
    /// The nodes were asked who has which slots.
    Topology(Topology),
    /// Of a stream's link.
    Link { stream: u32, generation: u64, news: News },
}

/// What happens on a link.
pub enum News {
    /// It is there. The stream is read once `go` is sent, and never if it is dropped.
    Opened {
        beginning: Beginning,
        copy: Option<OpenedCopy>,
        go: Sender<()>,
    },
    Step(Step),
    /// Nothing more comes: the link was not opened, or has broken.
    Ended {
        why: anyhow::Error,
        /// What has come cannot be read, nor will it be the next time.
        is_unreadable: bool,
    },
}

/// A copy that comes over a link.
pub struct OpenedCopy {
    pub bytes: u64,
    pub reader: SpoolReader,
}

/// A link to be opened.
pub struct Opening {
    pub stream: u32,
    /// Tells links of one stream apart.
    pub generation: u64,
    pub address: Address,
    /// The place behind which the stream is asked for.
    pub behind: Option<(String, u64)>,
    /// A copy is kept; otherwise it is passed over.
    pub keeps_copy: bool,
    pub spool_directory: PathBuf,
    pub spool_bytes_max: u64,
    pub figures: Arc<Figures>,
    pub events: SyncSender<Event>,
}

impl Opening {
    /// Opens it, and passes on what comes, in a thread of its own, until [`Figures::is_over`] or it breaks.
    ///
    /// # Errors
    /// If there is no thread.
    pub fn start(self) -> io::Result<()> {
        let work = move || {
            let (why, is_unreadable) = match self.work() {
                Ok(why) => (why, false),
                Err(why) => (why, true),
            };
            self.tell(News::Ended { why, is_unreadable });
        };
        thread::Builder::new().name("stream".to_owned()).spawn(work).map(|_| ())
    }

    fn tell(&self, news: News) -> bool {
        self.events.send(Event::Link { stream: self.stream, generation: self.generation, news }).is_ok()
    }

    /// Why the link has ended; an error if what came over it cannot be read.
    fn work(&self) -> Result<anyhow::Error> {
        let behind = self.behind.as_ref().map(|(id, offset)| (&**id, *offset));
        if let Err(error) = ensure_room(&self.spool_directory) {
            return Ok(anyhow!("what the source sends cannot be kept: {error}"));
        }
        let (mut link, beginning) = match Link::open(&Line::default(), &self.address, behind, Some(VALKEY_VERSION)) {
            Ok(opened) => opened,
            Err(why) => return Ok(why),
        };
        let (base, copy_bytes) = match &beginning {
            Beginning::Continued { .. } => (behind.map_or(0, |(_, offset)| offset), 0),
            Beginning::Copy { offset, .. } => match link.copy_bytes(|| {}) {
                Ok(bytes) => (*offset, bytes),
                Err(why) => return Ok(why),
            },
        };
        self.figures.received.store(base, Ordering::Relaxed);
        self.figures.kept.store(base, Ordering::Relaxed);
        let (writer, reader) = spool(&self.spool_directory, self.spool_bytes_max);
        let is_kept = self.keeps_copy && matches!(beginning, Beginning::Copy { .. });
        let (copy_writer, copy) = is_kept
            .then(|| spool(&self.spool_directory, self.spool_bytes_max))
            .map(|(writer, reader)| (writer, OpenedCopy { bytes: copy_bytes, reader }))
            .unzip();
        let figures = Arc::clone(&self.figures);
        let run = move || link.run(copy_bytes, copy_writer, &writer, &figures);
        let linked = match thread::Builder::new().name("link".to_owned()).spawn(run) {
            Ok(thread) => thread,
            Err(error) => return Ok(error.into()),
        };
        let (go, gone) = channel();
        self.tell(News::Opened { beginning, copy, go });
        let read = match gone.recv() {
            Ok(()) => read_stream(reader, &mut |step| {
                !self.figures.is_over.load(Ordering::Relaxed) && self.tell(News::Step(step))
            }),
            Err(_) => {
                drop(reader);
                Ok(())
            }
        };
        self.figures.is_over.store(true, Ordering::Relaxed);
        let linked = linked.join().map_err(|_| anyhow!("the thread of the link has panicked"))?;
        read?;
        Ok(linked.err().unwrap_or_else(|| anyhow!("{} sends nothing more", self.address.place)))
    }
}

//! The one thread that reads entries back from the log, for members that are behind. It stands in nobody's way: it
//! takes no lock but that of the map, and reads segments that are mostly full.

use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use group::ids::GroupId;
use journal::{LogReader, Span, Unread};
use node::event::Event;

use crate::checkpoint_writer::NewsListener;
use crate::disk::RealDisk;
use crate::journal_thread::JournalQueue;

/// Where cores ask. Clones are handles of the same queue.
#[derive(Clone)]
pub struct ReadQueue(Sender<Option<Span>>);

/// The thread.
pub struct ReadThread {
    queue: ReadQueue,
    thread: JoinHandle<()>,
}

impl ReadThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(disk: RealDisk, journal: JournalQueue, listener: NewsListener) -> std::io::Result<Self> {
        let (wanted, spans) = mpsc::channel::<Option<Span>>();
        let mut reader = LogReader::new(disk);
        let work = move || {
            while let Ok(Some(span)) = spans.recv() {
                let (group, first) = (GroupId(span.group), span.first);
                let read = reader.read(&journal.map(), &span).map_err(|unread| match unread {
                    Unread::Gone => "the log on disk does not reach back so far".to_owned(),
                    Unread::Fault(fault) => fault.to_string(),
                });
                listener(group, Event::LogRead { group, first, read });
            }
        };
        let thread = thread::Builder::new().name("log reader".into()).spawn(work)?;
        Ok(Self { queue: ReadQueue(wanted), thread })
    }

    /// A handle for asking.
    pub fn queue(&self) -> &ReadQueue {
        &self.queue
    }

    /// Ends the thread.
    pub fn stop(self) {
        // The thread lives until it is told this.
        let _ = self.queue.0.send(None);
        assert!(self.thread.join().is_ok(), "the log reader does not panic");
    }
}

impl ReadQueue {
    /// Asks for entries.
    pub fn read(&self, span: Span) {
        // After the end nobody listens for an answer either.
        let _ = self.0.send(Some(span));
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use journal::{Append, Identity, Journal, Options};
    use std::sync::{Arc, Mutex};
    use stdx::log::{Entry, EntryKind};

    use super::*;
    use crate::disk::tests::Scratch;
    use crate::journal_thread::{JournalThread, LazySync};

    #[test]
    fn what_was_written_is_read_back_while_more_is_written() {
        let scratch = Scratch::new();
        let identity = Identity {
            directory: 5,
            cluster: 1,
            node: 1,
            group_count: 2,
            hash_seed: 1,
            has_joined: false,
            level: stdx::Level::FIRST,
        };
        let options = Options { segment_bytes: 1 << 20, ..Options::new(identity) };
        let (journal, _) = Journal::open(scratch.disk(), &options).unwrap();
        let journal = JournalThread::start(journal, 1, LazySync::Never, Box::new(|_| {})).unwrap();
        let (told, news) = mpsc::channel();
        let told = Mutex::new(told);
        let listener: NewsListener = Arc::new(move |_, event| {
            let Event::LogRead { first, read, .. } = event else { panic!("nothing else was asked for") };
            told.lock().unwrap().send((first, read)).unwrap();
        });
        let thread = ReadThread::start(scratch.disk(), journal.queue().clone(), listener).unwrap();
        let append = |index: u64| {
            let data = Bytes::from(vec![index as u8; 10_000]);
            let entries = vec![Entry { term: 1, index, kind: EntryKind::Normal, data }];
            vec![(Append { group: 1, entries, ..Append::default() }, true)]
        };
        let mut next = 1;
        for index in 1..=400 {
            journal.queue().submit(0, &mut append(index));
            if index % 50 == 0 {
                journal.queue().flush();
            }
            // Some of these are asked for before they are written.
            let span = Span { group: 1, first: next, last: 400, terms: vec![(1, 1)], bytes_max: 100_000 };
            thread.queue().read(span);
            let (first, read) = news.recv().unwrap();
            assert_eq!(first, next);
            for entry in read.unwrap() {
                assert_eq!((entry.index, entry.data[0]), (next, next as u8));
                next += 1;
            }
        }
        assert!(next > 350, "{next}");
        thread.stop();
        journal.stop(true).unwrap();
    }
}

//! `serve --import FILE`: fills a data directory that is new, before anybody is served.
//!
//! The server runs on the directory without a socket that others could find, takes the file in over a session of the
//! host, and stops; then the process starts over and serves. A mark in the directory says that this has begun. Until
//! the mark is gone the directory holds a part of the data, which nobody may take for the whole: an import that was
//! interrupted begins again from the start.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use edge::{DirectoryLock, Ended, Inside, ListenOptions, Options};
use resp::Frame;

use crate::connection::Connection;
use crate::import;
use crate::tls::Stream;

/// In a data directory: the file that is being brought in.
const MARK: &str = ".import";

/// What a server puts there beside its log.
const LEFT_OVER: [&str; 2] = [edge::AUTHORITY_FILE, ".acknowledges-early"];

/// What was brought in is on disk by then.
const SYNC_PATIENCE: Duration = Duration::from_secs(120);

/// A key that is not there.
const NO_KEY: &str = "{holdfast}:import";

/// A server on an empty directory has loaded it by then.
const LOAD_PATIENCE: Duration = Duration::from_secs(60);

/// A file to be brought in before clients are served.
#[derive(Debug)]
pub struct BringIn {
    path: PathBuf,
    directory: PathBuf,
}

impl BringIn {
    /// What is to be done before this directory is served: nothing if it has data already, or no file was named.
    ///
    /// # Errors
    /// If an earlier import has not come to its end, and is not asked for again.
    pub fn planned(directory: &Path, path: Option<PathBuf>) -> Result<Option<Self>, String> {
        let mark = directory.join(MARK);
        let begun = match fs::read_to_string(&mark) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(format!("cannot read {}: {error}", mark.display())),
        };
        match (path, begun) {
            (None, None) => Ok(None),
            (None, Some(file)) => Err(format!(
                "data directory {}: the import of {file} has not come to its end, so this is a part of the data: start \
                 with --import {file} to begin it again, or remove the directory",
                directory.display()
            )),
            (Some(_), None) if directory.join(journal::IDENTITY_FILE).exists() => Ok(None),
            (Some(path), _) => {
                let path = std::path::absolute(&path).unwrap_or(path);
                Ok(Some(Self { path, directory: directory.to_owned() }))
            }
        }
    }

    /// Brings the file in, on a server with these options, of which it takes what concerns data. False if it was told
    /// to stop.
    ///
    /// # Errors
    /// If the file is none, or does not fit. The directory is not served before an import has come to its end.
    pub fn run(self, mut options: Options) -> Result<bool> {
        // Before anything is written: a file that is damaged is no reason to begin.
        let files = import::find(&self.path)?;
        let checked = import::check(&files).with_context(|| format!("cannot import {}", self.path.display()))?;
        self.prepare()?;
        options.listen =
            ListenOptions { addresses: Vec::new(), port: 0, tls_port: 0, unix_socket: None, ..options.listen };
        options.cluster = edge::ClusterOptions::default();
        (options.metrics_port, options.console.port, options.sentinel.port) = (0, 0, 0);
        (options.pid_file, options.remarks) = (None, Vec::new());
        for (name, value) in [
            ("appendfsync", "everysec"),
            ("archive", ""),
            ("backup-dir", ""),
            ("cluster-port", "0"),
            ("maxmemory-policy", "noeviction"),
            ("min-replicas-to-write", "0"),
            ("port", "0"),
            ("site-backlog-size", "0"),
            ("tls-port", "0"),
        ] {
            let set = options.settings.set(name, value);
            set.map_err(|why| anyhow::anyhow!("{name}: {why}"))?;
        }
        let outcome = Arc::new(Mutex::new(None));
        let told = Arc::clone(&outcome);
        let path = self.path.clone();
        options.begin_with = Some(Box::new(move |inside: Inside| {
            let result = bring_in(&inside, &files, &checked, &path);
            *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            // What it has brought in, or nothing: the process goes on without this server.
            let _ = inside.connect().and_then(|mut session| session.call(&["SHUTDOWN"]));
        }));
        let ended = edge::run(options).map_err(|fault| anyhow::anyhow!("{fault}"))?;
        ensure!(matches!(ended, Ended::Stopped), "the server that took in the file has been sent elsewhere");
        let outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
        match outcome {
            None => Ok(false),
            Some(Err(error)) => Err(error.context(format!("cannot import {}", self.path.display()))),
            Some(Ok(())) => {
                let mark = self.directory.join(MARK);
                fs::remove_file(&mark).with_context(|| format!("cannot remove {}", mark.display()))?;
                sync_directory(&self.directory)?;
                Ok(true)
            }
        }
    }

    /// Marks the directory, and clears what an earlier attempt has left there.
    fn prepare(&self) -> Result<()> {
        let Self { path, directory } = self;
        let names = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name());
        if let Some(name) = names.filter_map(|name| name.into_string().ok()).find(|name| journal::is_foreign_file(name))
        {
            bail!(
                "data directory {} holds {name}, which is none of Holdfast's: give an empty one",
                directory.display()
            );
        }
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        // Another process may be at the same work.
        let lock = DirectoryLock::acquire(directory).map_err(|fault| anyhow::anyhow!("{fault}"))?;
        let mark = directory.join(MARK);
        if mark.exists() {
            for entry in fs::read_dir(directory).with_context(|| format!("cannot look into {}", directory.display()))? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                if journal::is_own_file(&name) || LEFT_OVER.contains(&name.as_str()) {
                    fs::remove_file(entry.path())
                        .with_context(|| format!("cannot remove {}", entry.path().display()))?;
                }
            }
        }
        let mut file = File::create(&mark).with_context(|| format!("cannot make {}", mark.display()))?;
        write!(file, "{}", path.display())?;
        file.sync_all()?;
        sync_directory(directory)?;
        drop(lock);
        Ok(())
    }
}

fn sync_directory(directory: &Path) -> Result<()> {
    File::open(directory)
        .and_then(|file| file.sync_all())
        .with_context(|| format!("cannot sync {}", directory.display()))
}

fn bring_in(inside: &Inside, files: &import::Files, checked: &import::Checked, path: &Path) -> Result<()> {
    inside.notice(&format!("imports {}: clients are served when it is done", path.display()));
    let mut connection = Connection::over(Stream::Local(inside.connect()?.into_stream()));
    wait_until_loaded(&mut connection)?;
    let lines = import::into_new(files, checked, &mut connection)?;
    // The mark goes when this server has ended, and must not go before what it stands for has come to the disk.
    // The log of all groups is one: a change that is synced has synced all before it.
    connection.wait_at_most(SYNC_PATIENCE)?;
    for words in [&["CLIENT", "DURABILITY", "disk"][..], &["SELECT", "0"], &["DEL", NO_KEY]] {
        let reply = connection.call(words)?;
        ensure!(!reply.is_error(), "what was imported does not come to the disk: {reply}");
    }
    lines.iter().for_each(|line| inside.notice(line));
    Ok(())
}

fn wait_until_loaded(connection: &mut Connection) -> Result<()> {
    let begun = Instant::now();
    loop {
        match connection.call(&["DBSIZE"])? {
            Frame::Integer(_) => return Ok(()),
            reply if begun.elapsed() > LOAD_PATIENCE => bail!("the server does not serve: {reply}"),
            _ => thread::sleep(Duration::from_millis(20)),
        }
    }
}

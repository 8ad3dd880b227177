//! One server, read from the beginning to the end of the window.

use std::collections::BTreeMap;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use resp::Frame;

use crate::finding::Finding;
use crate::fleet::Member;
use crate::host::{Host, Thread, Window};
use crate::host_checks;
use crate::parse::{self, Throttling};
use crate::probes::percentile;
use crate::server_checks::{self as checks, Commands, NOT_HERE};
use crate::talk::{
    self, Client, DialError, Dialer, HotKey, Info, KeySample, Link, PATIENCE, PastStall, SlowCommand, ask, is_late,
    shortened,
};
use crate::watch::{Watch, Watched, watch};

/// Connections over which a server is asked in turn.
const LINKS_MAX: usize = 4;
/// Above so many clients their list is not asked for: it would itself be a long reply.
const CLIENTS_LISTED_MAX: u64 = 5_000;
/// A process that began so many seconds away from what the server tells is another one.
const AGE_TOLERANCE_SECONDS: f64 = 3.0;

/// A link that says nothing more once an answer has stayed away: a later one would belong to an earlier request.
struct Once {
    link: Box<dyn Link>,
    is_silent: bool,
}

impl Link for Once {
    fn send(&mut self, words: &[&[u8]]) -> io::Result<()> {
        if self.is_silent { Err(io::ErrorKind::TimedOut.into()) } else { self.link.send(words) }
    }

    fn receive(&mut self, patience: Duration) -> io::Result<Frame> {
        let outcome = self.link.receive(patience);
        self.is_silent |= patience >= PATIENCE && outcome.as_ref().is_err_and(is_late);
        outcome
    }
}

/// Times of commands by INFO commandstats.
type Times = BTreeMap<String, (u64, u64)>;

/// The server's process on this host.
#[derive(Debug)]
struct Local {
    pid: u32,
    threads: (BTreeMap<u32, Thread>, BTreeMap<u32, Thread>),
    throttling: (Result<Throttling, String>, Result<Throttling, String>),
    status: Result<String, String>,
    limits: Result<String, String>,
}

/// All that was read of a server.
#[derive(Debug)]
pub struct Reading {
    place: String,
    first: Info,
    last: Info,
    local: Option<Local>,
    watch: Watch,
    slow: Result<Vec<SlowCommand>, String>,
    past: Result<Vec<PastStall>, String>,
    times: (Times, Times),
    clients: Result<Vec<Client>, String>,
    configuration: Result<BTreeMap<String, String>, String>,
    keys: Result<KeySample, String>,
    hot: Result<Vec<HotKey>, String>,
    throughput: Result<f64, String>,
    events: String,
    connections: u64,
}

/// What is examined, and for how long.
pub struct Examination<'a> {
    /// Its address.
    pub place: &'a str,
    /// This host.
    pub host: &'a Host,
    /// When the window began.
    pub began: Instant,
    /// When it ends.
    pub until: Instant,
    /// Between two requests.
    pub pause: Duration,
}

fn times(link: &mut dyn Link) -> Times {
    let reply = ask(link, &["INFO", "commandstats"]).map(|reply| talk::text(&reply)).unwrap_or_default();
    checks::command_times(&parse::info(&reply))
}

/// The number of the server's process, if it runs on this host: there is a process of that number, as old as the
/// server.
fn process_of(host: &Host, info: &Info) -> Option<u32> {
    let pid = u32::try_from(info.count("process_id")?).ok()?;
    let (age, up) = (host.age_seconds(pid)?, info.number("uptime_in_seconds")?);
    ((age - up).abs() <= AGE_TOLERANCE_SECONDS).then_some(pid)
}

/// What the server has noted as delays, the latest of each kind.
fn delays(link: &mut dyn Link) -> String {
    let Ok(reply) = ask(link, &["LATENCY", "LATEST"]) else { return String::new() };
    let event = |entry: &Frame| match entry.elements()? {
        [name, _, latest, worst, ..] => {
            Some(format!("{} {} ms (worst {} ms)", shortened(&talk::text(name)), talk::text(latest), talk::text(worst)))
        }
        _ => None,
    };
    reply.elements().unwrap_or_default().iter().filter_map(event).collect::<Vec<_>>().join(", ")
}

impl Reading {
    /// Reads a server until the window ends, and a little beyond.
    ///
    /// # Errors
    /// If it cannot be talked to at the beginning.
    pub fn of(examination: &Examination<'_>, dialer: &dyn Dialer) -> Result<Self, DialError> {
        let Examination { place, host, began, until, pause } = *examination;
        let mut link = Once { link: dialer.dial(place)?, is_silent: false };
        let told = |why: String| {
            let text = format!("{place}: {why}");
            if why.contains("no answer") { DialError::Silent(text) } else { DialError::Refused(text) }
        };
        let first = Info::of(&mut link).map_err(told)?;
        let before = times(&mut link);
        let configuration = talk::configuration(&mut link);
        let pid = process_of(host, &first);
        let local = pid.map(|pid| (pid, host.threads(pid), host.throttling(pid)));
        let cores = usize::try_from(first.count("cores").unwrap_or(1)).unwrap_or(1);
        let mut links: Vec<Box<dyn Link>> =
            (0..cores.clamp(1, LINKS_MAX)).filter_map(|_| dialer.dial(place).ok()).collect();
        let connections = 2 + links.len() as u64;
        let part = |share: f64| began + (until.saturating_duration_since(began)).mul_f64(share);
        let (watch, keys, throughput) = thread::scope(|scope| {
            let watched = Watched { place, pid, host, pause };
            let watching = scope.spawn(move || watch(&watched, dialer, &mut links, until));
            let sampling = scope.spawn(|| {
                thread::sleep(part(0.2).saturating_duration_since(Instant::now()));
                let link = dialer.dial(place).map_err(|error| match error {
                    DialError::Refused(why) | DialError::Silent(why) => why,
                })?;
                let mut link = Once { link, is_silent: false };
                talk::sample_keys(&mut link, &first, part(0.8))
            });
            thread::sleep(part(0.5).saturating_duration_since(Instant::now()));
            let sent = Instant::now();
            let round_trip = ask(&mut link, &["PING"]).map(|_| sent.elapsed());
            let throughput = round_trip.and_then(|round_trip| talk::throughput(&mut link, round_trip));
            let watch = watching.join().unwrap_or_default();
            let keys = sampling.join().unwrap_or_else(|_| Err("the sampling of keys ended".to_owned()));
            (watch, keys, throughput)
        });
        // A server that says nothing at the end has counted nothing that could be known.
        let unchanged = |_| Info { moment: Instant::now(), fields: first.fields.clone() };
        let last = Info::of(&mut link).unwrap_or_else(unchanged);
        let local = local.map(|(pid, threads, throttling)| Local {
            pid,
            threads: (threads, host.threads(pid)),
            throttling: (throttling, host.throttling(pid)),
            status: host.read(&format!("proc/{pid}/status")),
            limits: host.read(&format!("proc/{pid}/limits")),
        });
        let clients = match last.count("connected_clients") {
            Some(count) if count > CLIENTS_LISTED_MAX => Err(format!("{count} clients are too many to list")),
            _ => talk::clients(&mut link),
        };
        Ok(Self {
            place: place.to_owned(),
            slow: talk::slow_log(&mut link),
            past: match first.is_holdfast() {
                true => talk::black_box(&mut link),
                false => Err("only Holdfast has a stall recorder".to_owned()),
            },
            hot: match first.is_holdfast() {
                true => talk::hot_keys(&mut link),
                false => Err("only Holdfast counts them all the time; in Redis 8.6 see HOTKEYS".to_owned()),
            },
            times: (before, times(&mut link)),
            events: delays(&mut link),
            connections: connections + watch.reach_ms.len() as u64 + watch.unreached,
            first,
            last,
            local,
            watch,
            clients,
            configuration,
            keys,
            throughput,
        })
    }

    /// Its process, if that is on this host.
    pub fn pid(&self) -> Option<u32> {
        self.local.as_ref().map(|local| local.pid)
    }

    /// What it is.
    pub fn product(&self) -> String {
        self.first.product()
    }

    /// Its address.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The folder of its data, if it is on this host and tells.
    pub fn data_folder(&self) -> Option<&str> {
        self.local.as_ref()?;
        let configuration = self.configuration.as_ref().ok()?;
        let folder = configuration.get("data-dir").or_else(|| configuration.get("dir"))?;
        folder.starts_with('/').then_some(folder)
    }

    /// True if its process lets the kernel use huge pages; `None` if it is not here.
    pub fn uses_huge_pages(&self) -> Option<bool> {
        let status = self.local.as_ref()?.status.as_ref().ok()?;
        Some(parse::status_number(status, "THP_enabled") != Some(0))
    }

    /// True if it runs here and forks to save.
    pub fn forks_here(&self) -> bool {
        let saves = |configuration: &BTreeMap<String, String>| {
            let value = |name: &str| configuration.get(name).map_or("", String::as_str);
            value("appendonly") == "yes" || !value("save").is_empty()
        };
        self.local.is_some() && !self.first.is_holdfast() && self.configuration.as_ref().is_ok_and(saves)
    }

    /// What is compared with other servers.
    pub fn member(&self) -> Member {
        let reach = &self.watch.reach_ms;
        Member {
            place: self.place.clone(),
            product: self.product(),
            configuration: self.configuration.clone().ok(),
            reach_ms: (!reach.is_empty()).then(|| percentile(reach, 50.0)),
        }
    }

    /// All checks of it. `explained` is the share of time that findings about the host account for.
    pub fn judge(&self, window: &Window<'_>, own_pid: u32, explained: f64) -> Vec<Finding> {
        let local = self.local.as_ref();
        let busy: Vec<u32> = local.map(|local| local.pid).into_iter().chain([own_pid]).collect();
        let consumers = window.busiest(&busy);
        let seconds = (self.last.moment - self.first.moment).as_secs_f64().max(1e-3);
        let shares = self.watch.stalls();
        let quota = match local {
            Some(Local { throttling: (before, after), .. }) => {
                host_checks::quota(before.clone(), after.clone(), seconds)
            }
            None => Finding::unknown("cpu.quota", NOT_HERE),
        };
        let of_local = |text: fn(&Local) -> &Result<String, String>| match local {
            Some(local) => text(local).as_deref().map_err(String::as_str),
            None => Err(NOT_HERE),
        };
        let rise = |name: &str| self.last.number(name).unwrap_or(0.0) - self.first.number(name).unwrap_or(0.0);
        let wanted = (rise("total_net_output_bytes") + rise("total_net_input_bytes")).max(0.0) / seconds;
        let configuration = self.configuration.as_ref().map_err(String::as_str);
        let requests = self.watch.requests + self.keys.as_ref().map_or(0, |keys| keys.count + keys.count / 100) + 20;
        let keys = self.keys.as_ref().ok().and_then(|keys| keys.largest.first());
        let largest_key = keys.map_or(0, |key| key.bytes);
        let commands = Commands {
            slow: self.slow.as_deref().map_err(String::as_str),
            now: self.last.count("server_time_usec").map_or(u64::MAX, |micros| micros / 1_000_000),
            seconds,
            before: &self.times.0,
            after: &self.times.1,
        };
        let slow = checks::slow_commands(&commands);
        let now_seconds = self.last.count("server_time_usec").unwrap_or(0) / 1_000_000;
        let up_seconds = self.last.count("uptime_in_seconds").unwrap_or(0);
        let past = self.past.as_deref().map_err(String::as_str);
        let mut findings = vec![
            checks::past_stalls(past, now_seconds, up_seconds),
            checks::stops(local.map(|_| &shares)),
            checks::waiting(local.map(|it| (&it.threads.0, &it.threads.1)), seconds, quota.stalled, &consumers),
            quota,
            checks::swapped(of_local(|local| &local.status)),
            checks::files(of_local(|local| &local.limits), self.last.count("maxclients")),
            checks::memory_limit(&self.first, &self.last),
            checks::fragmentation(&self.last),
            checks::own_syncs(&self.first, &self.last, shares.disk),
            checks::fork(&self.first, &self.last),
            checks::durability(&self.last, configuration),
            checks::round_trip(&self.watch),
            checks::throughput(
                self.throughput.as_ref().map(|rate| *rate).map_err(String::as_str),
                wanted,
                shares.total,
            ),
            checks::large_replies(&self.first, &self.last, requests, largest_key, slow.stalled),
            slow,
            checks::connections(&self.first, &self.last, self.connections),
            checks::big_keys(self.keys.as_ref().map_err(String::as_str)),
            checks::hot_keys(self.hot.as_deref().map_err(String::as_str)),
            checks::client_buffers(self.clients.as_deref().map_err(String::as_str)),
        ];
        let explained = explained + findings.iter().map(|it| it.stalled).sum::<f64>();
        findings.push(checks::answers(&self.watch, explained, local.is_some(), &self.events));
        findings.into_iter().map(|finding| finding.at(&self.place)).collect()
    }
}

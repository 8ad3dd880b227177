//! The faults, and a healthy server beside them.

use std::io::Read as _;
use std::net::TcpStream;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::stage::{Case, Client, Continued, ControlGroup, Ground, Load, Network, Setting, not_possible, slow_sync};
use crate::interrupt;
use crate::process::{Family, run};

/// Something that is wrong with a server or its host.
pub struct Fault {
    /// As `--only` names it.
    pub name: &'static str,
    /// Checks of which one must be on the first line.
    pub expected: &'static [&'static str],
    /// Makes it, until the case is dropped.
    pub inject: fn(&Ground) -> Result<Case>,
}

/// All of them.
pub const FAULTS: &[Fault] = &[
    Fault { name: "neighbour", expected: &["cpu.waiting"], inject: neighbour },
    Fault { name: "quota", expected: &["cpu.quota"], inject: quota },
    Fault { name: "stop", expected: &["server.stops"], inject: stop },
    Fault { name: "slow-sync", expected: &["persistence.sync", "disk.sync"], inject: slow_syncs },
    Fault { name: "disk-hog", expected: &["disk.writers"], inject: disk_hog },
    Fault { name: "delay", expected: &["network.round_trip"], inject: delay },
    Fault { name: "loss", expected: &["network.loss"], inject: loss },
    Fault { name: "rate", expected: &["network.throughput"], inject: rate },
    Fault { name: "memory", expected: &["memory.pressure", "memory.reclaim", "memory.swap"], inject: memory },
    Fault { name: "huge-pages", expected: &["memory.huge_pages"], inject: huge_pages },
    Fault { name: "large-reply", expected: &["load.large_replies"], inject: large_reply },
    Fault { name: "slow-script", expected: &["load.slow_commands"], inject: slow_script },
    Fault { name: "connections", expected: &["load.connections"], inject: connections },
];

/// A server with a little to do.
pub fn healthy(ground: &Ground) -> Result<Case> {
    let mut case = ground.start(&[], &[])?;
    case.keep(writers(&case.place, 1, Duration::from_millis(10)));
    Ok(case)
}

/// So many clients, each of which writes, and rests after each answer.
fn writers(place: &str, count: usize, rest: Duration) -> Load {
    Load::start(count, place, move |client| {
        client.call(&["SET", "load", "value"])?;
        thread::sleep(rest);
        Ok(())
    })
}

/// Clients that give a server all that it can do.
fn busy_clients(place: &str) -> Load {
    Load::start(2, place, |client| client.pipeline(&["SET", "load", "value"], 100))
}

/// Two programs that do nothing but compute, on the one processor that the server may use.
fn neighbour(ground: &Ground) -> Result<Case> {
    let processor = ground.last_processor()?;
    let pinned = ["taskset", "--cpu-list", &processor];
    let mut case = ground.start(&pinned, &[])?;
    case.keep(writers(&case.place, 1, Duration::from_millis(1)));
    for _ in 0..2 {
        let mut spin = super::shell("exec taskset --cpu-list \"$1\" sh -c 'while :; do :; done'", &[&processor]);
        case.keep(Family::spawn(spin.stdout(Stdio::null()))?);
    }
    Ok(case)
}

/// A quarter of a processor for a server that could use one.
fn quota(ground: &Ground) -> Result<Case> {
    let group = ControlGroup::with_quota(25)?;
    let mut case = ground.start(&group.enter(), &[])?;
    case.keep(busy_clients(&case.place));
    case.keep_group(group);
    Ok(case)
}

/// Bursts of SIGSTOP.
fn stop(ground: &Ground) -> Result<Case> {
    let mut case = ground.start(&[], &[])?;
    case.keep(writers(&case.place, 1, Duration::from_millis(5)));
    let server = case.process_id()?;
    let script = "while :; do kill -STOP \"$1\"; sleep 0.2; kill -CONT \"$1\"; sleep 0.4; done";
    let stops = Family::spawn(&mut super::shell(script, &[&server.to_string()]))?;
    case.keep(Continued(server));
    case.keep(stops);
    Ok(case)
}

/// Each sync of the server takes 40 ms longer. Nothing else that is on the disk is slow.
fn slow_syncs(ground: &Ground) -> Result<Case> {
    let library = slow_sync(ground, 40)?;
    let mut case = ground.start(&["env", &format!("LD_PRELOAD={}", library.display())], &[])?;
    case.keep(writers(&case.place, 4, Duration::ZERO));
    Ok(case)
}

/// Others write as much as the disk takes, and sync it.
fn disk_hog(ground: &Ground) -> Result<Case> {
    let mut case = ground.start(&[], &[])?;
    case.keep(writers(&case.place, 4, Duration::ZERO));
    for nth in 0..4 {
        let file = ground.file(&format!("hog-{nth}")).display().to_string();
        let script = "while :; do dd if=/dev/zero of=\"$1\" bs=4M count=64 conv=fsync 2>/dev/null; done";
        case.keep(Family::spawn(&mut super::shell(script, &[&file]))?);
    }
    Ok(case)
}

fn behind(ground: &Ground, network: Network) -> Result<Case> {
    let mut case = ground.start_behind(&network)?;
    case.keep(network);
    Ok(case)
}

/// 30 ms each way.
fn delay(ground: &Ground) -> Result<Case> {
    behind(ground, Network::start(ground, 30, 0, 0)?)
}

/// A tenth of all packets.
fn loss(ground: &Ground) -> Result<Case> {
    behind(ground, Network::start(ground, 0, 10, 0)?)
}

/// 1 MB/s.
fn rate(ground: &Ground) -> Result<Case> {
    behind(ground, Network::start(ground, 0, 0, 1_000_000)?)
}

/// The server shares a limit of memory with programs that read more than is left.
fn memory(ground: &Ground) -> Result<Case> {
    const LIMIT_MB: u64 = 160;
    let group = ControlGroup::with_memory(LIMIT_MB << 20)?;
    let mut case = ground.start(&group.enter(), &[])?;
    let mut client = Client::connect(&case.place)?;
    for nth in 0..40 {
        interrupt::check()?;
        client.call(&["SETRANGE", &format!("filling:{nth}"), "1048575", "x"])?;
    }
    case.keep(writers(&case.place, 1, Duration::from_millis(5)));
    let file = ground.file("read-again").display().to_string();
    // Nothing is written any more when doctor begins.
    run(&mut super::shell("head -c 400000000 /dev/zero > \"$1\" && sync \"$1\"", &[&file]))?;
    let script = "echo $$ > \"$1/cgroup.procs\" && while :; do cat \"$2\"; done";
    for _ in 0..3 {
        let mut read = super::shell(script, &[&group.path(), &file]);
        case.keep(Family::spawn(read.stdout(Stdio::null()).stderr(Stdio::null()))?);
    }
    case.keep_group(group);
    Ok(case)
}

/// A setting of the whole host, which is as it was afterwards.
fn huge_pages(ground: &Ground) -> Result<Case> {
    let setting = Setting::write("/sys/kernel/mm/transparent_hugepage/enabled", "always")?;
    let mut case = healthy(ground)?;
    case.keep(setting);
    Ok(case)
}

/// A client that asks for 100 MB, twice a second.
fn large_reply(ground: &Ground) -> Result<Case> {
    let mut case = ground.start(&[], &[])?;
    Client::connect(&case.place)?.call(&["SETRANGE", "whale", "99999999", "x"])?;
    case.keep(Load::start(1, &case.place, |client| {
        client.call(&["GET", "whale"])?;
        thread::sleep(Duration::from_millis(500));
        Ok(())
    }));
    Ok(case)
}

/// A script that looks at all elements of a large list, each time.
fn slow_script(ground: &Ground) -> Result<Case> {
    const SCRIPT: &str = "local n = 0 for i = 1, 30 do for _, v in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do \
                          n = n + #v end end return n";
    let mut case = ground.start(&[], &[])?;
    let mut client = Client::connect(&case.place)?;
    let elements: Vec<String> = (0..1_000).map(|nth| format!("element:{nth}")).collect();
    let words: Vec<&str> = ["RPUSH", "list"].into_iter().chain(elements.iter().map(String::as_str)).collect();
    for _ in 0..20 {
        client.call(&words)?;
    }
    case.keep(Load::start(1, &case.place, |client| {
        client.call(&["EVAL", SCRIPT, "1", "list"])?;
        thread::sleep(Duration::from_millis(300));
        Ok(())
    }));
    Ok(case)
}

/// Clients that connect for one request each.
fn connections(ground: &Ground) -> Result<Case> {
    let mut case = ground.start(&[], &[])?;
    let place = case.place.clone();
    case.keep(Load::repeat(4, move || {
        if let Ok(mut stream) = TcpStream::connect(&place) {
            let _ = std::io::Write::write_all(&mut stream, b"PING\r\n");
            let _ = stream.read(&mut [0; 16]);
        }
    }));
    Ok(case)
}

/// A program that a fault needs.
pub fn needs(program: &str) -> Result<()> {
    ensure!(crate::process::exists(program), not_possible(format!("there is no program '{program}'")));
    Ok(())
}

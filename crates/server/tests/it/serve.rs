//! What an operator or a stranger does to a server, and what it answers.

use std::fs;
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{
    Audit, Client, Folder, Load, LoadOptions, PATIENCE, Policy, Server, ServerOptions, binary, new_ledgers, say,
    wait_for,
};
use stdx::Prng;

const MEBIBYTE: u64 = 1 << 20;

fn options(folder: &Folder) -> ServerOptions {
    ServerOptions::new(&folder.path().join("data"))
}

#[track_caller]
fn refuses_to_start(options: &ServerOptions, words: &[&str]) {
    match Server::try_start(options) {
        Ok(_) => panic!("it started"),
        Err(exit) => {
            assert!(!exit.status.success(), "ended with {}", exit.status);
            for word in words {
                assert!(exit.log.contains(word), "no word of '{word}':\n{}", exit.log);
            }
        }
    }
}

#[test]
fn a_port_in_use_is_named() {
    let folder = Folder::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port to take");
    let mut options = options(&folder);
    options.port = listener.local_addr().expect("its address").port();
    // The stranger on the port never answers, so the harness cannot mistake it for the server.
    refuses_to_start(&options, &[&options.port.to_string()]);
}

#[test]
fn a_folder_with_other_peoples_files_is_left_alone() {
    let folder = Folder::new();
    let options = options(&folder);
    fs::create_dir_all(&options.data_folder).expect("a folder");
    let notes = options.data_folder.join("notes.txt");
    fs::write(&notes, "not yours").expect("a file");
    refuses_to_start(&options, &["notes.txt"]);
    assert_eq!(fs::read_to_string(&notes).expect("the file"), "not yours");
    let left = fs::read_dir(&options.data_folder).expect("the folder").count();
    assert_eq!(left, 1, "it left something behind in a folder that is not its own");
}

#[test]
fn a_second_server_on_the_same_folder_is_refused() {
    let folder = Folder::new();
    let options = options(&folder);
    let first = Server::start(&options);
    let mut second = options.clone();
    second.port = crate::harness::free_port();
    refuses_to_start(&second, &["data"]);
    assert_eq!(first.client().show("SET city Lisbon"), "OK", "the first one goes on");
}

#[test]
fn a_folder_made_for_other_options_still_opens() {
    let folder = Folder::new();
    let options = options(&folder);
    let first = Server::start(&options.clone().extra(&["--cores", "2"]));
    first.client().call(&["MSET", "a", "1", "b", "2", "c", "3", "d", "4"]);
    assert!(first.stop().status.success());
    let second = Server::start(&options.clone().extra(&["--cores", "1"]));
    assert_eq!(second.client().show("MGET a b c d"), "[\"1\", \"2\", \"3\", \"4\"]");
}

#[test]
fn a_termination_keeps_everything_under_every_policy() {
    for policy in [Policy::Always, Policy::Everysec, Policy::No] {
        let folder = Folder::new();
        let options = options(&folder).policy(policy);
        let server = Server::start(&options);
        let load = Load::start(&LoadOptions { port: options.port, pipeline_max: 16, seed: 8 }, new_ledgers(4));
        load.wait_for(200);
        let asked = Instant::now();
        let exit = server.stop();
        assert!(exit.status.success(), "{policy:?}: ended with {}:\n{}", exit.status, exit.log);
        let mut ledgers = load.join();
        let survivor = Server::start(&options);
        let mut audit = Audit::default();
        for ledger in &mut ledgers {
            ledger.audit(&mut survivor.client(), Instant::now(), asked, &mut audit);
        }
        assert!(audit.violations.is_empty(), "{policy:?}: {}", audit.violations.join("\n"));
        assert!(audit.acknowledged > 0 && audit.lost == 0, "{policy:?}: {audit:?}");
    }
}

#[test]
fn an_interrupt_stops_and_a_second_one_does_not_wait() {
    let folder = Folder::new();
    let options = options(&folder);
    let mut server = Server::start(&options);
    server.client().call(&["SET", "city", "Lisbon"]);
    server.signal("INT");
    assert!(server.wait().status.success());
    let mut server = Server::start(&options);
    server.signal("INT");
    if server.is_running() {
        server.signal("INT");
    }
    server.wait();
    let server = Server::start(&options);
    assert_eq!(server.client().show("GET city"), "\"Lisbon\"");
}

#[test]
fn a_length_beyond_the_limit_gets_an_error_and_costs_no_memory() {
    let folder = Folder::new();
    let server = Server::start(&options(&folder));
    let before = server.resident_bytes();
    let mut client = server.client();
    client.send_bytes(b"*2\r\n$3\r\nGET\r\n$629145600\r\n").expect("a connection");
    let reply = client.receive().expect("an error").to_string();
    assert_eq!(reply, "(error) ERR Protocol error: invalid bulk length");
    assert!(client.is_closed_within(PATIENCE));
    let mut client = server.client();
    client.send_bytes(b"*2147483648\r\n").expect("a connection");
    let reply = client.receive().expect("an error").to_string();
    assert_eq!(reply, "(error) ERR Protocol error: invalid multibulk length");
    assert!(client.is_closed_within(PATIENCE));
    assert!(server.resident_bytes() < before + 32 * MEBIBYTE, "from {before} to {} bytes", server.resident_bytes());
}

#[test]
fn half_a_frame_holds_up_nobody_and_costs_no_memory() {
    let folder = Folder::new();
    let server = Server::start(&options(&folder));
    let before = server.resident_bytes();
    let mut idle: Vec<Client> = (0..50).map(|_| server.client()).collect();
    for client in &mut idle {
        // Announces as much as is allowed, and sends next to nothing of it.
        client.send_bytes(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\nabc").expect("a connection");
    }
    let mut client = server.client();
    assert_eq!(client.show("SET city Lisbon"), "OK");
    for chunk in [b"*2\r\n$3\r\nGE".as_slice(), b"T\r\n$4\r\nci", b"ty\r", b"\n"] {
        client.send_bytes(chunk).expect("a connection");
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(client.receive().expect("a reply").to_string(), "\"Lisbon\"");
    assert!(server.resident_bytes() < before + 64 * MEBIBYTE, "from {before} to {} bytes", server.resident_bytes());
    drop(idle);
    assert_eq!(client.show("EXISTS k"), "(integer) 0");
}

#[test]
fn a_client_that_does_not_read_its_replies_costs_bounded_memory() {
    let folder = Folder::new();
    let server = Server::start(&options(&folder));
    let mut client = server.client();
    client.call(&[b"SET".as_slice(), b"large", &vec![b'x'; MEBIBYTE as usize]]);
    let before = server.resident_bytes();
    let mut greedy = server.client();
    for _ in 0..2_000 {
        if greedy.send(&["GET", "large"]).is_err() {
            break;
        }
    }
    thread::sleep(Duration::from_millis(300));
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 256 * MEBIBYTE, "2,000 replies of 1 MiB that nobody reads grew it by {grown} bytes");
    assert_eq!(client.show("STRLEN large"), "(integer) 1048576", "others are served");
}

/// Without the bound twenty of them held 763 MB. How much it is for a moment depends on what they ask for before the
/// server looks at what they take, which it does now and then, and on when the allocator gives back what is free.
#[test]
fn clients_that_never_read_cost_bounded_memory_together() {
    let folder = Folder::new();
    let bound = 16 * MEBIBYTE;
    let server = Server::start(&options(&folder).extra(&["--maxmemory-clients", "16mb"]));
    let mut client = server.client();
    client.call(&[b"SET".as_slice(), b"large", &vec![b'x'; MEBIBYTE as usize]]);
    // Measured once a second.
    wait_for("the memory in use is told", || figure(&mut client, "memory", "used_memory") > MEBIBYTE);
    let before = figure(&mut client, "memory", "used_memory");
    let mut greedy: Vec<Client> = (0..20).map(|_| server.client()).collect();
    for _ in 0..60 {
        for one in &mut greedy {
            // A client that has been cut off comes again.
            if one.send_bytes(&b"*2\r\n$3\r\nGET\r\n$5\r\nlarge\r\n".repeat(4)).is_err() {
                *one = server.client();
            }
        }
        assert_eq!(client.show("STRLEN large"), "(integer) 1048576", "others are served");
        wait_for("clients take no more than they may", || figure(&mut client, "memory", "mem_clients_normal") <= bound);
    }
    wait_for("somebody is cut off", || figure(&mut client, "stats", "evicted_clients") > 0);
    let evicted = figure(&mut client, "stats", "evicted_clients");
    // They are still there, and not much more is in use than what they may take.
    let mut grown = 0;
    wait_for("what is in use is what clients may take", || {
        grown = figure(&mut client, "memory", "used_memory").saturating_sub(before);
        grown < bound + 100_000_000
    });
    say(&format!("{evicted} clients were cut off, and the others cost {} MB", grown / 1_000_000));
    assert_eq!(client.show("PING"), "PONG", "who takes little stays");
    drop(greedy);
}

/// A figure of INFO.
fn figure(client: &mut Client, section: &str, name: &str) -> u64 {
    let info = client.call(&["INFO", section]);
    let text = String::from_utf8_lossy(info.as_bytes().expect("a text")).into_owned();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
}

#[test]
fn all_clients_together_take_a_tenth_of_the_memory_unless_told() {
    let folder = Folder::new();
    let server = Server::start(&options(&folder));
    let told = server.client().show("CONFIG GET maxmemory-clients");
    assert_eq!(told, format!("[\"maxmemory-clients\", \"{}\"]", edge::memory_allowed_bytes() / 10));
}

#[test]
fn random_bytes_end_their_connection_and_nothing_else() {
    let folder = Folder::new();
    let mut server = Server::start(&options(&folder));
    let mut prng = Prng::new(9);
    let seeds: [&[u8]; 4] = [b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n", b"GET k\r\n", b"*1\r\n$4\r\nPING\r\n", b""];
    for _ in 0..400 {
        let mut bytes = seeds[(prng.draw() % 4) as usize].repeat((prng.draw() % 4) as usize);
        for _ in 0..1 + prng.draw() % 40 {
            let at = prng.draw() as usize % (bytes.len() + 1);
            match prng.draw() % 3 {
                0 if at < bytes.len() => bytes[at] = prng.draw() as u8,
                1 if at < bytes.len() => drop(bytes.remove(at)),
                _ => bytes.insert(at, b"*$:+-\r\n0123456789 \"'\x00\xff"[prng.draw() as usize % 22]),
            }
        }
        let mut client = server.client();
        let _ = client.send_bytes(&bytes);
        client.close();
    }
    assert!(server.is_running(), "{}", server.log());
    assert_eq!(server.client().show("PING"), "PONG");
}

#[test]
fn a_password_is_asked_for() {
    let folder = Folder::new();
    let server = Server::start(&options(&folder).extra(&["--requirepass", "open sesame"]));
    let mut client = server.client();
    assert_eq!(client.show("GET city"), "(error) NOAUTH Authentication required.");
    let wrong = client.call(&["AUTH", "wrong"]).to_string();
    assert_eq!(wrong, "(error) WRONGPASS invalid username-password pair or user is disabled.");
    assert_eq!(client.call(&["AUTH", "open sesame"]).to_string(), "OK");
    // Behind the password it may still be loading, which is not what this is about.
    while client.show("GET city").contains("LOADING") {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(client.show("GET city"), "(nil)");
}

#[test]
fn parameters_come_from_a_file_and_the_command_line_wins() {
    let folder = Folder::new();
    let file = folder.path().join("holdfast.conf");
    fs::write(&file, "# a comment\nmaxmemory 100mb\ntimeout 30\n").expect("a configuration file");
    let path = file.display().to_string();
    let server = Server::start(&options(&folder).extra(&["--config", &path, "--timeout", "60"]));
    assert_eq!(server.client().show("CONFIG GET maxmemory"), "[\"maxmemory\", \"104857600\"]");
    assert_eq!(server.client().show("CONFIG GET timeout"), "[\"timeout\", \"60\"]");
}

#[test]
fn the_binary_says_what_it_is() {
    let output = std::process::Command::new(binary()).arg("--version").output().expect("the binary runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains(env!("CARGO_PKG_VERSION")), "{text}");
}

#[test]
fn more_clients_can_be_allowed_while_serving_as_far_as_the_system_can() {
    let folder = Folder::new();
    let server = Server::start(&options(&folder).extra(&["--maxclients", "10", "--cores", "2"]));
    // Set aside, for two cores.
    let reserved = 128 + 2 * 32;
    let mut client = server.client();
    let open_files = || {
        let limits = fs::read_to_string(format!("/proc/{}/limits", server.pid())).expect("the limits of a child");
        let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit").to_owned();
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        (numbers[0], numbers[1])
    };
    let wanted = open_files().1 - reserved;
    assert_eq!(client.show(&format!("CONFIG SET maxclients {wanted}")), "OK");
    assert!(open_files().0 >= wanted + reserved);
    let refusal = client.show("CONFIG SET maxclients 4294967295");
    assert!(refusal.contains("not able to handle the specified number of clients, try with "), "{refusal}");
    assert_eq!(client.show("CONFIG GET maxclients"), format!("[\"maxclients\", \"{wanted}\"]"));
}

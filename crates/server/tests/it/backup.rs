//! `holdfast backup` and `holdfast restore`: all data at one moment, while clients go on, onto another number of
//! groups.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use resp::Frame;

use crate::harness::{
    Client, Folder, Server, ServerOptions, binary, fail, files_beneath, free_port, succeed, text, wait_for,
};

const ACCOUNTS: i64 = 40;
const BALANCE: i64 = 1_000;

fn create(server: u16, backup: &Path) -> String {
    succeed(&["backup", "create", "--quiet", "--server", &format!("127.0.0.1:{server}"), text(backup)])
}

fn restore(backup: &Path, data: &Path, groups: u32) -> String {
    succeed(&["restore", "--quiet", text(backup), "--data-dir", text(data), "--groups", &groups.to_string()])
}

fn serve(data: &Path, cores: u32) -> Server {
    Server::start(&ServerOptions::new(data).extra(&["--cores", &cores.to_string()]))
}

fn fill_accounts(client: &mut Client) {
    for account in 0..ACCOUNTS {
        assert_eq!(client.show(&format!("SET account:{account} {BALANCE}")), "OK");
    }
}

/// What all accounts hold together.
#[track_caller]
fn total(client: &mut Client) -> i64 {
    let keys: Vec<String> = (0..ACCOUNTS).map(|account| format!("account:{account}")).collect();
    let words: Vec<&str> = std::iter::once("MGET").chain(keys.iter().map(String::as_str)).collect();
    let reply = client.call(&words);
    let balances = reply.elements().unwrap_or_else(|| panic!("MGET answered {reply}"));
    let balance = |frame: &Frame| String::from_utf8_lossy(frame.as_bytes().unwrap_or_default()).parse::<i64>();
    balances.iter().map(|frame| balance(frame).expect("every account has a balance")).sum()
}

/// Clients that move money between accounts until told to stop; how many transfers were acknowledged.
struct Transfers {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Transfers {
    fn start(ports: &[u16]) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads = (0..4)
            .map(|player: i64| {
                let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
                let port = ports[player as usize % ports.len()];
                thread::spawn(move || {
                    let mut client = Client::try_connect(port).expect("a connection");
                    for step in 0.. {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        let (from, to) = ((player * 7 + step * 13) % ACCOUNTS, (player + step * 5 + 1) % ACCOUNTS);
                        client.call(&["MULTI"]);
                        client.call(&["DECRBY", &format!("account:{from}"), "3"]);
                        client.call(&["INCRBY", &format!("account:{to}"), "3"]);
                        let is_done = client.call(&["EXEC"]).elements().is_some();
                        done.fetch_add(u64::from(is_done), Ordering::Relaxed);
                    }
                })
            })
            .collect();
        Self { stop, done, threads }
    }

    /// Waits until some have been acknowledged.
    fn wait_for_some(&self) {
        wait_for("transfers are made", || self.done.load(Ordering::Relaxed) > 20);
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("a client"));
    }
}

#[test]
fn a_backup_taken_during_transfers_holds_one_moment_and_restores_to_another_number_of_groups() {
    let folder = Folder::new();
    let server = serve(&folder.path().join("data"), 3);
    let mut client = server.client();
    fill_accounts(&mut client);
    client.show("RPUSH list a b c");
    client.show("HSET hash field value");
    client.show("ZADD zset 1.5 member");
    client.show("XADD stream 1-1 field value");
    client.show("SET fleeting value EX 5000");
    client.show("SET gone value PX 1");
    client.call(&["SET".as_bytes(), b"long", &vec![b'x'; 3 << 20]]);
    for hundred in 0..20 {
        let members = (0..100).map(|member| format!("member:{}", hundred * 100 + member));
        client.show(&format!("SADD set {}", members.collect::<Vec<_>>().join(" ")));
    }
    let library = "#!lua name=lib\nredis.register_function{function_name='answer', callback=function() return 42 end}";
    client.call(&["FUNCTION", "LOAD", library]);
    client.show("SELECT 3");
    client.show("SET other database");
    client.show("SELECT 0");
    thread::sleep(Duration::from_millis(5));

    let transfers = Transfers::start(&[server.port()]);
    transfers.wait_for_some();
    let backups = folder.path().join("backups");
    for number in 0..3 {
        let told = create(server.port(), &backups.join(number.to_string()));
        assert!(told.contains("3 groups as of 20"), "{told}");
    }
    transfers.stop();
    let count = client.show("DBSIZE");
    drop(client);
    server.kill();

    let list = succeed(&["backup", "list", text(&backups)]);
    assert_eq!(list.lines().count(), 4, "{list}");
    for (number, groups) in [("0", 5), ("1", 1), ("2", 2)] {
        let backup = backups.join(number);
        assert!(succeed(&["backup", "verify", text(&backup)]).contains("whole, 3 groups"));
        let data = folder.path().join(format!("restored-{number}"));
        let told = restore(&backup, &data, groups);
        assert!(told.contains(&format!("in {groups} group")), "{told}");
        let server = serve(&data, 2);
        let mut client = server.client();
        assert_eq!(total(&mut client), ACCOUNTS * BALANCE);
        assert_eq!(client.show("DBSIZE"), count);
        assert_eq!(client.show("LINDEX list 2"), "\"c\"");
        assert_eq!(client.show("HGET hash field"), "\"value\"");
        assert_eq!(client.show("ZSCORE zset member"), "\"1.5\"");
        assert_eq!(client.show("XLEN stream"), "(integer) 1");
        assert_eq!(client.show("STRLEN long"), format!("(integer) {}", 3 << 20));
        assert_eq!(client.show("SCARD set"), "(integer) 2000");
        assert_eq!(client.show("EXISTS gone"), "(integer) 0");
        assert_eq!(client.show("FCALL answer 0"), "(integer) 42");
        let Frame::Integer(left) = client.call(&["TTL", "fleeting"]) else { panic!("TTL is a number") };
        assert!((4_000..=5_000).contains(&left), "{left}");
        client.show("SELECT 3");
        assert_eq!(client.show("GET other"), "\"database\"");
        client.show("SELECT 0");
        // What is written from now on is kept like anywhere else.
        assert_eq!(client.show("MSET a 1 b 2 c 3"), "OK");
        assert_eq!(client.show("WATCH account:1"), "OK");
        drop(client);
        server.kill();
        let server = serve(&data, 1);
        assert_eq!(server.client().show("MGET a b c"), "[\"1\", \"2\", \"3\"]");
        assert_eq!(total(&mut server.client()), ACCOUNTS * BALANCE);
    }
}

#[test]
fn a_cluster_is_backed_up_through_any_node_and_restored_as_another_cluster() {
    let folder = Folder::new();
    let ports: Vec<u16> = (0..6).map(|_| free_port()).collect();
    let node = |number: usize| {
        let (cluster_port, first) = (ports[number].to_string(), format!("127.0.0.1:{}", ports[0]));
        let mut words = vec!["--cores", "3", "--cluster-port", &cluster_port];
        if number > 0 {
            words.extend(["--join", &first]);
        }
        let options = ServerOptions::new(&folder.path().join(format!("node-{number}"))).extra(&words);
        Server::start(&options.invited_by([folder.path().join("node-0").as_path()]))
    };
    let nodes: Vec<Server> = (0..3).map(node).collect();
    let mut client = nodes[0].client();
    fill_accounts(&mut client);
    let transfers = Transfers::start(&nodes.iter().map(Server::port).collect::<Vec<_>>());
    transfers.wait_for_some();
    let backup = folder.path().join("backup");
    create(nodes[2].port(), &backup);
    transfers.stop();
    drop(client);
    nodes.into_iter().for_each(Server::kill);

    let data = folder.path().join("restored");
    restore(&backup, &data, 2);
    let cluster_port = ports[3].to_string();
    let first = Server::start(&ServerOptions::new(&data).extra(&["--cores", "2", "--cluster-port", &cluster_port]));
    assert_eq!(total(&mut first.client()), ACCOUNTS * BALANCE);
    let (join, cluster_port) = (format!("127.0.0.1:{}", ports[3]), ports[4].to_string());
    let second = ServerOptions::new(&folder.path().join("second")).invited_by([data.as_path()]);
    let second = Server::start(&second.extra(&["--cores", "1", "--cluster-port", &cluster_port, "--join", &join]));
    assert_eq!(total(&mut second.client()), ACCOUNTS * BALANCE);
    assert_eq!(second.client().show("INCRBY account:1 5"), first.client().show("INCRBY account:1 0"));
}

/// A server that makes no backup now, again and again. Its address.
fn busy_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 1024];
        while stream.read(&mut request).is_ok_and(|count| count > 0) {
            if stream.write_all(b"-TRYAGAIN Group 0 is writing a checkpoint\r\n").is_err() {
                return;
            }
        }
    });
    address
}

#[test]
fn what_a_killed_process_has_left_unfinished_hinders_nobody() {
    let folder = Folder::new();
    let backup = folder.path().join("backup");
    let unfinished = folder.path().join("backup.unfinished");
    let mut command = Command::new(binary());
    command.args(["backup", "create", "--quiet", "--server", &busy_server(), text(&backup)]);
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for("the backup begins", || unfinished.exists());
    let server = serve(&folder.path().join("data"), 1);
    let address = format!("127.0.0.1:{}", server.port());
    wait_for("it is seen to be made", || {
        succeed(&["backup", "list", text(folder.path())]).contains("backup.unfinished                being made")
    });
    let told = fail(&["backup", "create", "--server", &address, text(&backup)]);
    assert!(told.contains("backup.unfinished is being made at this moment, by another process"), "{told}");
    process.kill().unwrap();
    process.wait().unwrap();
    fs::write(unfinished.join("rest"), "of what was being made").unwrap();
    let told = succeed(&["backup", "list", text(folder.path())]);
    assert!(told.contains("backup.unfinished                left unfinished"), "{told}");
    create(server.port(), &backup);
    succeed(&["backup", "verify", "--quiet", text(&backup)]);
    assert!(!backup.join("rest").exists() && !unfinished.exists());
}

#[test]
fn what_a_killed_export_has_left_goes_with_the_next_one() {
    let folder = Folder::new();
    let file = folder.path().join("data.rdb");
    let (behind, unfinished) =
        (folder.path().join("data.rdb.backup.unfinished"), folder.path().join("data.rdb.unfinished"));
    let mut command = Command::new(binary());
    command.args(["export", "--quiet", "--server", &busy_server(), text(&file)]);
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for("the export begins", || behind.exists());
    let server = serve(&folder.path().join("data"), 1);
    server.client().show("SET key value");
    let address = format!("127.0.0.1:{}", server.port());
    let told = fail(&["export", "--server", &address, text(&file)]);
    assert!(told.contains("data.rdb.backup.unfinished is being made at this moment, by another process"), "{told}");
    process.kill().unwrap();
    process.wait().unwrap();
    // It may have been killed later.
    fs::write(behind.join("rest"), "of the backup").unwrap();
    fs::write(&unfinished, "half of a file").unwrap();
    succeed(&["export", "--quiet", "--server", &address, text(&file)]);
    assert!(!behind.exists() && !unfinished.exists());
    let written = fs::read(&file).unwrap();
    assert!(written.starts_with(b"REDIS") && written.windows(5).any(|bytes| bytes == b"value"));
    let told = fail(&["export", "--server", &address, text(&file)]);
    assert!(told.contains("data.rdb already exists"), "{told}");
}

#[test]
fn what_cannot_be_backed_up_or_restored_is_refused_with_the_reason() {
    let folder = Folder::new();
    let server = serve(&folder.path().join("data"), 2);
    let mut client = server.client();
    for number in 0..200 {
        client.show(&format!("SET key:{number} {}", "x".repeat(1_000)));
    }
    let backup = folder.path().join("backup");
    create(server.port(), &backup);
    let address = format!("127.0.0.1:{}", server.port());

    // Where something is already, nothing is put.
    let told = fail(&["backup", "create", "--server", &address, text(&backup)]);
    assert!(told.contains("already exists: a backup is made in a directory that is new or empty"), "{told}");
    let told = fail(&["restore", text(&backup), "--data-dir", text(&folder.path().join("data"))]);
    assert!(told.contains("already exists: a data directory is made in a directory that is new or empty"), "{told}");

    // A password is asked for, and nobody else may.
    client.show("ACL SETUSER reader on >secret ~* +@read");
    let words = ["backup", "create", "--server", &address, "--user", "reader", "--password", "secret"];
    let told = fail(&[&words[..], &[text(&folder.path().join("second"))]].concat());
    assert!(told.contains("NOPERM"), "{told}");
    let told = fail(&[&words[..], &["--password", "wrong", text(&folder.path().join("second"))]].concat());
    assert!(told.contains("cannot be used multiple times") || told.contains("refuses the user reader"), "{told}");
    assert_eq!(client.show("BACKUP BEGIN x"), "(error) ERR The name of a backup is 32 hexadecimal digits");
    assert_eq!(client.show("MULTI"), "OK");
    let told = client.show(&format!("BACKUP BEGIN {:032x}", 1));
    assert!(told.starts_with("(error) ERR Command not allowed inside a transaction"), "{told}");
    client.show("DISCARD");
    assert_eq!(client.show(&format!("BACKUP READ {:032x} 7 0", 1)), "(error) ERR There is no such group");
    let told = client.show(&format!("BACKUP READ {:032x} 1 0", 1));
    assert!(told.starts_with("(error) ERR Group 1 does not keep this backup"), "{told}");
    drop(client);
    server.kill();
    let told = fail(&["backup", "create", "--server", &address, text(&folder.path().join("second"))]);
    assert!(told.contains("no server answers at"), "{told}");
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");

    // Every file is checked, and what is wrong is named with file and offset.
    let target = folder.path().join("restored");
    let refused = |words: &str| {
        for verb in [&["backup", "verify", text(&backup)][..], &["restore", text(&backup), "--data-dir", text(&target)]]
        {
            let told = fail(verb);
            assert!(told.contains(words), "{verb:?}: {told}");
        }
        assert!(!target.exists());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "something is left");
    };
    let files = files_beneath(&backup);
    assert_eq!(files.len(), 3, "{files:?}");
    for (file, length) in &files {
        let whole = fs::read(file).unwrap();
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let mut damaged = whole.clone();
        damaged[*length as usize / 2] ^= 1;
        fs::write(file, &damaged).unwrap();
        refused(if name == "backup" { "it is damaged" } else { "is damaged at offset" });
        fs::write(file, &whole[..whole.len() - 10]).unwrap();
        refused(if name == "backup" { "it is damaged" } else { "is damaged at offset" });
        fs::remove_file(file).unwrap();
        refused(if name == "backup" { "is not a backup: it has no file 'backup'" } else { "is missing" });
        fs::write(file, &whole).unwrap();
    }
    let manifest = fs::read_to_string(backup.join("backup")).unwrap();
    fs::write(backup.join("backup"), manifest.replace("format 2\n", "format 9\n")).unwrap();
    refused("it has format 9, and this version of Holdfast knows formats up to 2");
    fs::write(backup.join("backup"), manifest).unwrap();
    restore(&backup, &target, 4);
}

//! Users of a real server: their file, and lines of the configuration.

use std::fs;

use crate::cluster::Cluster;
use crate::harness::{Client, Folder, Server, ServerOptions, files_beneath, succeed, text};

fn options(folder: &Folder) -> ServerOptions {
    ServerOptions::new(&folder.path().join("data"))
}

#[test]
fn a_file_of_users_is_saved_loaded_and_read_at_the_start() {
    let folder = Folder::new();
    let file = folder.path().join("users.acl");
    let name = file.to_str().expect("a name in UTF-8");
    fs::write(&file, "user alice on >wonder ~a* +@all\n\nuser default on nopass ~* &* +@all\n").expect("a file");
    let options = options(&folder).extra(&["--cores", "2", "--aclfile", name]);
    let server = Server::start(&options);
    let (mut admin, mut alice) = (server.client(), server.client());
    assert_eq!(alice.show("AUTH alice wonder"), "OK");
    assert_eq!(alice.show("SET a1 x"), "OK");
    assert!(alice.show("SET b1 x").contains("NOPERM"));

    assert_eq!(admin.show("ACL SETUSER bob on >builder +get ~b*"), "OK");
    assert_eq!(admin.show("ACL SAVE"), "OK");
    let saved = fs::read_to_string(&file).expect("the file");
    assert!(
        saved.starts_with("user alice on sanitize-payload #") && saved.contains("\nuser bob on sanitize-payload #"),
        "{saved}"
    );
    assert!(!saved.contains("builder"), "{saved}");
    let left: Vec<_> =
        fs::read_dir(folder.path()).expect("the folder").map(|entry| entry.expect("one").file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");

    assert!(server.stop().status.success());
    let server = Server::start(&options);
    let (mut admin, mut bob) = (server.client(), server.client());
    assert_eq!(bob.show("AUTH bob builder"), "OK");
    assert_eq!(bob.show("GET b"), "(nil)");

    // A file with errors changes nothing, and says all that is wrong.
    fs::write(&file, "user carol +nosuch\nuser carol on\nnobody on\n").expect("a file");
    let told = admin.show("ACL LOAD");
    for words in [
        "users.acl:1: Error in applying operation '+nosuch'",
        "Duplicate user 'carol' found on line 2",
        "users.acl:3 should start with user",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert_eq!(bob.show("GET b"), "(nil)");

    fs::write(&file, "user carol on nopass +@all ~*\n").expect("a file");
    assert_eq!(admin.show("ACL LOAD"), "OK");
    assert_eq!(admin.show("ACL USERS"), "[\"carol\", \"default\"]");
    assert!(bob.try_call(&["GET", "b"]).is_none(), "a user that is gone loses its connection");
    fs::remove_file(&file).expect("it is there");
    assert!(admin.show("ACL LOAD").contains("Error loading ACLs, opening file"));
}

#[test]
fn lines_of_the_configuration_make_users() {
    let folder = Folder::new();
    let config = folder.path().join("holdfast.conf");
    let text = "requirepass sesame\nuser alice on >wonder +@all ~* &*\nuser bob on nopass +get (+set ~b)\n";
    fs::write(&config, text).expect("a file");
    let server = Server::start(&options(&folder).extra(&["--config", config.to_str().expect("a name")]));
    let mut client = server.client();
    assert!(client.show("GET a").contains("NOAUTH"));
    assert_eq!(client.show("AUTH alice wonder"), "OK");
    assert_eq!(client.show("ACL USERS"), "[\"alice\", \"bob\", \"default\"]");
    assert_eq!(client.show("AUTH bob x"), "OK");
    // The harness cannot see behind the password whether the data have been loaded.
    let set = std::iter::repeat_with(|| client.show("SET b 1")).find(|reply| !reply.contains("LOADING"));
    assert_eq!(set.as_deref(), Some("OK"));
    assert_eq!(client.show("AUTH sesame"), "OK");
    drop(server);
    for (text, words) in [
        ("user alice on +nosuch\n", "line 1"),
        ("user alice on\nuser alice off\n", "A user can only be defined once"),
        ("user alice on\naclfile users.acl\n", "not in both"),
    ] {
        fs::write(&config, text).expect("a file");
        match Server::try_start(&options(&folder).extra(&["--config", config.to_str().expect("a name")])) {
            Ok(_) => panic!("it started with {text}"),
            Err(exit) => assert!(exit.log.contains(words), "{words}: {}", exit.log),
        }
    }
}

/// True if one can log in at a node.
fn lets_in(cluster: &Cluster, node: usize, words: &str) -> bool {
    cluster.try_client(node).is_some_and(|mut client| client.show(&format!("AUTH {words}")) == "OK")
}

#[test]
fn users_of_a_cluster_are_on_every_node_and_survive_kills_joins_and_backups() {
    // Each node of an older cluster had users of its own.
    let own = ["--user", "local", "on", ">mine", "~*", "+@all"].to_vec();
    let mut cluster = Cluster::start_as(&[Vec::new(), own, Vec::new()]);
    assert!(lets_in(&cluster, 1, "local mine") && !lets_in(&cluster, 0, "local mine"));
    let mut admin = cluster.client(0);
    assert_eq!(cluster.ask(&mut admin, "ACL SETUSER alice on >wonder ~* &* +@all"), "OK");
    assert_eq!(cluster.ask(&mut admin, "ACL SETUSER bob on >builder ~b* +@all"), "OK");
    cluster.wait_until("all nodes know her", |this| (0..3).all(|node| lets_in(this, node, "alice wonder")));
    assert!(lets_in(&cluster, 1, "local mine"), "who has not been spoken of is a node's own");

    // One that is away learns of it when it is back, also if all have been killed meanwhile.
    cluster.kill(2);
    let mut alice = cluster.client(1);
    assert_eq!(alice.show("AUTH alice wonder"), "OK");
    assert_eq!(cluster.ask(&mut admin, "ACL DELUSER alice local"), "(integer) 1");
    cluster.wait_until("she is gone", |this| !lets_in(this, 1, "alice wonder"));
    cluster.wait_until("her connections as well", |_| alice.try_call(&["GET", "a"]).is_none());
    let mut other = cluster.client(1);
    assert_eq!(cluster.ask(&mut other, "ACL DELUSER local"), "(integer) 1");
    cluster.kill(0);
    cluster.kill(1);
    (0..3).for_each(|node| cluster.respawn(node));
    (0..3).for_each(|node| cluster.wait_for_answer(node));
    cluster.wait_until("all know the same", |this| {
        (0..3).all(|node| {
            let is_gone = !lets_in(this, node, "alice wonder") && !lets_in(this, node, "local mine");
            is_gone && lets_in(this, node, "bob builder")
        })
    });
    cluster.join();
    cluster.wait_for_answer(3);
    cluster.wait_until("who joins knows him", |this| lets_in(this, 3, "bob builder"));
    for node in 0..3 {
        for (file, _) in files_beneath(&cluster.data_folder(node)) {
            let bytes = fs::read(&file).unwrap_or_default();
            assert!(!bytes.windows(7).any(|seven| seven == b"builder"), "{} knows a password", file.display());
        }
        assert!(!cluster.node(node).log().contains("builder"));
    }

    let folder = Folder::new();
    let (backup, data) = (folder.path().join("backup"), folder.path().join("data"));
    succeed(&["backup", "create", "--quiet", "--server", &cluster.address(0), text(&backup)]);
    succeed(&["restore", "--quiet", text(&backup), "--data-dir", text(&data), "--groups", "2"]);
    let options = ServerOptions::new(&data).extra(&["--cores", "2"]);
    let server = Server::start(&options);
    let log_in = |client: &mut Client| client.show("AUTH bob builder");
    assert_eq!(log_in(&mut server.client()), "OK");
    assert_eq!(server.client().show("ACL SETUSER bob resetpass >other"), "OK");
    assert!(log_in(&mut server.client()).contains("WRONGPASS"));
    server.kill();
    let server = Server::start(&options);
    assert!(log_in(&mut server.client()).contains("WRONGPASS"), "what a cluster has spoken of stays in the log");
    assert_eq!(server.client().show("AUTH bob other"), "OK");
    assert_eq!(server.client().show("ACL SETUSER default off"), "OK");
    server.kill();
    // An operator who has locked himself out asks a node to go by its own users.
    let server = Server::start(&options.extra(&["--cluster-users", "ignore"]));
    assert_eq!(server.client().show("ACL USERS"), "[\"default\"]");
}

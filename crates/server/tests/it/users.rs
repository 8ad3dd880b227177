//! Users of a real server: their file, and lines of the configuration.

use std::fs;

use crate::harness::{Folder, Server, ServerOptions};

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
    assert!(saved.starts_with("user alice on #") && saved.contains("\nuser bob on #"), "{saved}");
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

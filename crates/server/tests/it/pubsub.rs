//! Publishing between real clients of a real server.

use crate::harness::{Folder, PATIENCE, Server, ServerOptions};

#[test]
fn a_listener_that_never_reads_is_cut_off_and_memory_stays_bounded() {
    const MESSAGES: usize = 600;
    const BODY_BYTES: usize = 512 << 10;
    let folder = Folder::new();
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")).extra(&["--cores", "2"]));
    let mut slow = server.client();
    assert_eq!(slow.show("SUBSCRIBE flood"), "[\"subscribe\", \"flood\", (integer) 1]");
    let mut quick = server.client();
    quick.show("SUBSCRIBE flood");
    let mut publisher = server.client();
    let body = "x".repeat(BODY_BYTES);
    let used = |client: &mut crate::harness::Client| -> u64 {
        let info = client.show("INFO memory");
        let figure = info.split("used_memory:").nth(1).expect("a figure");
        figure.split(|letter: char| !letter.is_ascii_digit()).next().expect("digits").parse().expect("a number")
    };
    let before = used(&mut publisher);
    let mut most = 0;
    let mut cut_after = None;
    for message in 0..MESSAGES {
        let heard = publisher.show(&format!("PUBLISH flood {body}"));
        quick.receive().expect("the one that reads hears everything");
        if heard == "(integer) 1" && cut_after.is_none() {
            cut_after = Some(message);
        }
        if message % 20 == 0 {
            most = most.max(used(&mut publisher).saturating_sub(before));
        }
    }
    // The default limit, and what the kernel's buffers take.
    let cut_after = cut_after.expect("it was cut off");
    assert!(cut_after * BODY_BYTES < 64 << 20, "cut off after {cut_after} messages");
    assert!(most < 64 << 20, "{most} bytes of memory more");
    assert!(slow.is_patient_for(PATIENCE));
    while slow.receive().is_ok() {}
    assert!(publisher.show("INFO stats").contains("client_output_buffer_limit_disconnections:1"));
}

#[test]
fn who_only_listens_is_not_idle() {
    let folder = Folder::new();
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")).extra(&["--timeout", "1"]));
    let mut listener = server.client();
    listener.show("SUBSCRIBE a");
    let mut idle = server.client();
    idle.show("PING");
    assert!(idle.is_closed_within(PATIENCE));
    assert_eq!(server.client().show("PUBLISH a hi"), "(integer) 1");
    assert_eq!(listener.receive().expect("it is still there").to_string(), "[\"message\", \"a\", \"hi\"]");
}

//! What a shell, a supervisor and a measurement ask of the binary.

use std::process::{Command, Output};

use crate::harness::{Folder, Server, ServerOptions, binary};

fn run(words: &[&str], environment: &[(&str, &str)]) -> Output {
    Command::new(binary()).args(words).envs(environment.iter().copied()).output().expect("it can be run")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn version_completions_and_man_pages_come_from_the_command_line_itself() {
    let told = run(&["version"], &[]);
    assert!(told.status.success());
    assert_eq!(told.stdout, run(&["--version"], &[]).stdout);
    assert!(text(&told).starts_with(&format!("holdfast {}", env!("CARGO_PKG_VERSION"))), "{told:?}");
    for (shell, sign) in
        [("bash", "complete -F _holdfast"), ("zsh", "#compdef holdfast"), ("fish", "complete -c holdfast")]
    {
        let script = run(&["completions", shell], &[]);
        assert!(script.status.success() && text(&script).contains(sign), "{shell}");
        assert!(text(&script).contains("rebalance"), "{shell}");
    }
    assert!(!run(&["completions", "nosuchshell"], &[]).status.success());
    let folder = Folder::new();
    let pages = folder.path().join("man1");
    assert!(run(&["man", &pages.display().to_string()], &[]).status.success());
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap_or_else(|cause| panic!("{name}: {cause}"));
    assert!(page("holdfast.1").contains(".TH holdfast 1"));
    assert!(page("holdfast-cluster-status.1").contains("\\-\\-server"));
    assert!(page("holdfast-bench.1").contains("NAME") && page("holdfast-serve.1").contains("NAME"));
}

#[test]
fn health_is_an_exit_code() {
    let folder = Folder::new();
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")));
    assert_eq!(server.client().call(&["CONFIG", "SET", "requirepass", "open sesame"]).to_string(), "OK");
    let (port, place) = (server.port().to_string(), format!("127.0.0.1:{}", server.port()));
    let refused = run(&["health", "-p", &port], &[]);
    assert!(!refused.status.success() && text(&refused).contains("NOAUTH"), "{refused:?}");
    for (words, environment) in [
        (&["health", "-p", &port, "-a", "open sesame"][..], &[][..]),
        (&["health", "-s", &place], &[("REDISCLI_AUTH", "open sesame")]),
        (&["health", "-s", &place, "--caught-up"], &[("HOLDFAST_PASSWORD", "open sesame"), ("REDISCLI_AUTH", "wrong")]),
    ] {
        let told = run(words, environment);
        assert!(told.status.success() && text(&told).starts_with("serves: Holdfast "), "{words:?}: {told:?}");
    }
    let quiet = run(&["health", "-q", "-p", &port, "--pass", "open sesame"], &[]);
    assert!(quiet.status.success() && text(&quiet).is_empty(), "{quiet:?}");
    assert!(server.stop().status.success());
    let gone = run(&["health", "-p", &port], &[]);
    assert!(!gone.status.success() && text(&gone).contains("no answer from"), "{gone:?}");
}

#[test]
fn a_measurement_says_of_what_it_is() {
    let folder = Folder::new();
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")));
    let port = server.port().to_string();
    let words = ["bench", "-p", &port, "--seconds", "0.2", "--warmup", "0", "--keys", "10", "--clients", "1"];
    let told = text(&run(&words, &[]));
    let expected = format!("server:               Holdfast {}, synced-before-reply", env!("CARGO_PKG_VERSION"));
    assert!(told.contains(&expected), "{told}");
    let words = [&words[..], &["--json", "-"]].concat();
    let told: serde_json::Value = serde_json::from_slice(&run(&words, &[]).stdout).expect("JSON");
    assert_eq!(told["servers"].as_array().map(Vec::len), Some(1), "{told}");
    assert!(server.stop().status.success());
}

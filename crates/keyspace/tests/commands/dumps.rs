//! Streams with groups go from Redis to here and back as dumps.

use resp::Frame;

use crate::conversation::without_newer;
use crate::local::Local;
use crate::reference::Reference;
use crate::words;

#[test]
fn dumps_of_streams_go_both_ways() {
    let Some(mut reference) = Reference::start() else { return };
    let mut lines: Vec<String> =
        (0..500).map(|nth| format!("XADD s {}-{} n {nth} m text", nth / 3, 1 + nth % 3)).collect();
    for line in [
        "XDEL s 5-1 5-2 5-3 166-2",
        "XTRIM s MAXLEN 450",
        "XGROUP CREATE s g 0",
        "XGROUP CREATE s other 100-1 ENTRIESREAD 7",
        "XREADGROUP GROUP g alice COUNT 120 STREAMS s >",
        "XREADGROUP GROUP g \"a consumer with a name that is quite a bit longer\" COUNT 30 STREAMS s >",
        "XGROUP CREATECONSUMER s other 12345",
        "XCLAIM s g alice 0 60-1 RETRYCOUNT 300 TIME 5",
        "XACK s g 40-1 40-2",
    ] {
        lines.push(line.into());
    }
    for line in &lines {
        let reply = reference.call(&words::split(line));
        assert!(!reply.is_error(), "{line} => {reply}");
    }
    let Frame::Bulk(theirs) = reference.call(&["DUMP", "s"]) else { panic!("a dump") };
    let mut local = Local::new();
    let restore = |key: &str, dump: &[u8]| [b"RESTORE".to_vec(), key.into(), b"0".to_vec(), dump.to_vec()];
    assert_eq!(local.call(&restore("s", &theirs)).to_string(), "OK");
    let Frame::Bulk(ours) = local.call(&["DUMP", "s"]) else { panic!("a dump") };
    assert!(ours == theirs);
    assert_eq!(reference.call(&restore("t", &ours)).to_string(), "OK");
    for key in ["s", "t"] {
        let told = reference.call(&["XINFO", "STREAM", key, "FULL", "COUNT", "0"]);
        let ours = local.call(&["XINFO", "STREAM", "s", "FULL", "COUNT", "0"]);
        assert_eq!(without_newer(&ours), without_newer(&told), "{key}");
    }
}

use std::sync::Arc;

use node::acl::Users;

use super::*;

fn landscape(leader: Option<u64>, heard: &[u64]) -> Landscape {
    let sight = |node: u64| Sight {
        node: NodeId(node),
        address: format!("10.0.0.{node}:6379"),
        is_heard: heard.contains(&node),
    };
    Landscape {
        own: NodeId(1),
        nodes: (1..=3).map(sight).collect(),
        leader: leader.map(NodeId),
        term: 7,
        users: Arc::new(Users::default()),
    }
}

fn view() -> View {
    let landscape = landscape(Some(2), &[1, 2, 3]);
    View { name: "mymaster".to_owned(), port: 26_379, master: landscape.leader, landscape }
}

fn ask(view: &View, talk: &mut Talk, writer: &mut Writer, line: &str) -> String {
    let mut bytes = Vec::new();
    let mut spans = Vec::new();
    let mut parser = resp::RequestParser::new();
    let mut request = line.as_bytes().to_vec();
    request.extend_from_slice(b"\r\n");
    parser.parse(&request, &resp::Limits::default(), &mut spans).expect("a line");
    bytes.extend_from_slice(parser.line());
    view.answer(talk, Args::new(&bytes, &spans), writer);
    String::from_utf8_lossy(&writer.take()).replace("\r\n", "|")
}

#[track_caller]
fn says(view: &View, line: &str, expected: &str) {
    let told = ask(view, &mut Talk::default(), &mut Writer::new(Protocol::Resp2), line);
    assert!(told.contains(expected), "{line}: {told}");
}

#[test]
fn clients_are_sent_to_the_leader_and_told_of_the_others() {
    let view = view();
    says(&view, "SENTINEL get-master-addr-by-name mymaster", "*2|$8|10.0.0.2|$4|6379|");
    says(&view, "sentinel GET-MASTER-ADDR-BY-NAME other", "*-1|");
    says(&view, "SENTINEL MASTER other", "-ERR No such master with that name|");
    says(&view, "SENTINEL MASTERS", "$5|flags|$6|master|");
    says(&view, "SENTINEL MASTERS", "$10|num-slaves|$1|2|");
    says(&view, "SENTINEL REPLICAS mymaster", "*2|");
    says(&view, "SENTINEL SLAVES mymaster", "$13|10.0.0.1:6379|");
    says(&view, "SENTINEL SENTINELS mymaster", "$5|26379|");
    says(&view, "SENTINEL CKQUORUM mymaster", "+OK 3 usable Sentinels");
    says(&view, "SENTINEL FAILOVER mymaster", "holdfast cluster prefer");
    says(&view, "SENTINEL MYID", "0000000001|");
    says(&view, "SENTINEL HELP", "|+GET-MASTER-ADDR-BY-NAME name|");
    says(&view, "SENTINEL nonsense", "-ERR unknown subcommand 'nonsense'");
    says(&view, "SENTINEL", "-ERR wrong number of arguments for 'sentinel' command|");
    says(&view, "SENTINEL MASTER", "wrong number");
    says(&view, "ROLE", "*2|$8|sentinel|*1|$8|mymaster|");
    says(&view, "INFO sentinel", "master0:name=mymaster,status=ok,address=10.0.0.2:6379,slaves=2,sentinels=3");
    says(&view, "GET a", "-ERR unknown command 'GET', with args beginning with: 'a' ");
    says(&view, "PING", "+PONG|");
}

#[test]
fn passwords_are_those_of_the_node() {
    let mut view = view();
    says(&view, "AUTH secret", "-ERR AUTH <password> called without any password");
    Arc::make_mut(&mut view.landscape.users).require("secret");
    says(&view, "AUTH secret", "+OK|");
    says(&view, "AUTH wrong", "-WRONGPASS");
    says(&view, "AUTH nobody secret", "-WRONGPASS");
    says(&view, "HELLO 3 AUTH default wrong", "-WRONGPASS");
    says(&view, "HELLO 3 AUTH default secret SETNAME a", "%6|$6|server|");
    says(&view, "HELLO 4", "-NOPROTO");
    says(&view, "HELLO 3 NONSENSE", "-ERR Syntax error");
}

#[test]
fn who_listens_hears_of_a_change_of_leader_once() {
    let mut view = view();
    let (mut talk, mut writer) = (Talk::default(), Writer::new(Protocol::Resp2));
    let told = ask(&view, &mut talk, &mut writer, "SUBSCRIBE +switch-master");
    assert_eq!(told, "*3|$9|subscribe|$14|+switch-master|:1|");
    assert_eq!(ask(&view, &mut talk, &mut writer, "PSUBSCRIBE *"), "*3|$10|psubscribe|$1|*|:2|");
    assert_eq!(ask(&view, &mut talk, &mut writer, "PING"), "*2|$4|pong|$0||");

    let channels = |news: &[News]| news.iter().map(|one| one.channel).collect::<Vec<_>>();
    assert_eq!(view.look(landscape(Some(2), &[1, 2, 3])), []);
    // The leader is silent: it is still the one that clients are sent to, and they are told that it is down.
    assert_eq!(channels(&view.look(landscape(None, &[1, 3]))), ["+sdown", "+odown"]);
    says(&view, "SENTINEL MASTERS", "s_down,o_down,master");
    says(&view, "SENTINEL get-master-addr-by-name mymaster", "10.0.0.2");
    says(&view, "SENTINEL CKQUORUM mymaster", "-NOQUORUM 2 usable Sentinels of 3");
    let news = view.look(landscape(Some(3), &[1, 3]));
    assert_eq!(channels(&news), ["+switch-master"]);
    assert_eq!(news[0].text, "mymaster 10.0.0.2 6379 10.0.0.3 6379");
    talk.tell(&news[0], &mut writer);
    let heard = String::from_utf8_lossy(&writer.take()).into_owned();
    assert!(
        heard.starts_with("*3\r\n$7\r\nmessage\r\n") && heard.contains("*4\r\n$8\r\npmessage\r\n$1\r\n*\r\n"),
        "{heard}"
    );
    says(&view, "SENTINEL get-master-addr-by-name mymaster", "10.0.0.3");
    says(&view, "SENTINEL REPLICAS mymaster", "s_down,slave,disconnected");
    assert_eq!(channels(&view.look(landscape(Some(3), &[1, 2, 3]))), ["-sdown"]);

    assert_eq!(ask(&view, &mut talk, &mut writer, "UNSUBSCRIBE"), "*3|$11|unsubscribe|$14|+switch-master|:1|");
    assert_eq!(ask(&view, &mut talk, &mut writer, "PUNSUBSCRIBE nothing"), "*3|$12|punsubscribe|$7|nothing|:1|");
    assert_eq!(ask(&view, &mut talk, &mut writer, "UNSUBSCRIBE"), "*3|$11|unsubscribe|$-1|:1|");
    assert_eq!(ask(&view, &mut talk, &mut writer, "RESET"), "+RESET|");
    talk.tell(&news[0], &mut writer);
    assert!(writer.is_empty(), "who has reset listens no more");
}

#[test]
fn a_client_is_not_let_listen_to_everything_there_is() {
    let view = view();
    let (mut talk, mut writer) = (Talk::default(), Writer::new(Protocol::Resp3));
    for number in 0..super::super::SUBSCRIPTIONS_MAX {
        let told = ask(&view, &mut talk, &mut writer, &format!("SUBSCRIBE c{number}"));
        assert!(told.starts_with(">3|"), "{told}");
    }
    assert!(ask(&view, &mut talk, &mut writer, "SUBSCRIBE one-more").starts_with("-ERR too many"));
}

//! What a Sentinel answers, from what this node sees of its cluster. Pure: no socket, no clock.

use std::collections::BTreeSet;

use group::ids::NodeId;
use keyspace::glob;
use node::landscape::{Landscape, Sight};
use resp::{Args, Protocol, Writer};

/// What SENTINEL HELP answers, a line each.
const HELP: &[&str] = &[
    "SENTINEL <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "CKQUORUM name",
    "    Checks whether a majority of the nodes is heard.",
    "GET-MASTER-ADDR-BY-NAME name",
    "    Returns host and port of the node that leads group 0.",
    "MASTER name",
    "    Describes that node.",
    "MASTERS",
    "    Describes that node, in a list.",
    "MYID",
    "    Returns the id of this node.",
    "REPLICAS name",
    "    Describes the other nodes.",
    "SENTINELS name",
    "    Describes the other nodes at this port.",
    "HELP",
    "    Lists the subcommands.",
];

/// What Redis says its version is where ours is asked for.
const VERSION: &str = node::commands::REDIS_VERSION;

/// Milliseconds after which a node that is not heard counts as down.
const DOWN_AFTER_MS: &str = "700";

/// All that answers are made of.
pub struct View {
    /// The name under which clients ask for the cluster.
    pub name: String,
    /// The port that is talked to.
    pub port: u16,
    /// What was seen last.
    pub landscape: Landscape,
    /// The latest leader that was known.
    pub master: Option<NodeId>,
}

/// What a Sentinel remembers of a client.
#[derive(Debug, Default)]
pub struct Talk {
    /// Its number.
    id: i64,
    channels: BTreeSet<Vec<u8>>,
    patterns: BTreeSet<Vec<u8>>,
    name: Vec<u8>,
}

/// What becomes of the connection behind an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It stays.
    Stay,
    /// It ends when the answer has been sent.
    Close,
}

/// Something to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// Where.
    pub channel: &'static str,
    /// What.
    pub text: String,
}

impl View {
    fn master(&self) -> Option<&Sight> {
        self.landscape.sight(self.master?)
    }

    fn others(&self) -> impl Iterator<Item = &Sight> {
        self.landscape.nodes.iter().filter(|sight| Some(sight.node) != self.master)
    }

    /// Nodes that answer as this one does. Their port is taken to be this one's, so one at the same address is none.
    fn sentinels(&self) -> impl Iterator<Item = &Sight> {
        let own = self.landscape.sight(self.landscape.own).map_or("", |own| split(&own.address).0);
        self.landscape
            .nodes
            .iter()
            .filter(move |sight| sight.node != self.landscape.own && split(&sight.address).0 != own)
    }

    /// True if there is a leader now, so a majority is behind it.
    fn has_leader(&self) -> bool {
        self.landscape.leader.is_some()
    }

    /// Takes what is seen now; what has changed is news.
    pub fn look(&mut self, now: Landscape) -> Vec<News> {
        let before = std::mem::replace(&mut self.landscape, now);
        let old = self.master;
        let had_leader = before.leader.is_some();
        if let Some(leader) = self.landscape.leader {
            self.master = Some(leader);
        }
        let mut news = Vec::new();
        let name = &self.name;
        let pair = |sight: &Sight| {
            let (host, port) = split(&sight.address);
            format!("{host} {port}")
        };
        if let (Some(old), Some(new)) = (old, self.master)
            && old != new
            && let Some(to) = self.landscape.sight(new)
            && let Some(from) = before.sight(old).or_else(|| self.landscape.sight(old))
        {
            news.push(News { channel: "+switch-master", text: format!("{name} {} {}", pair(from), pair(to)) });
        }
        let Some(master) = self.master() else { return news };
        if had_leader != self.has_leader() && old == self.master {
            let channels: &[&'static str] = if had_leader { &["+sdown", "+odown"] } else { &["-sdown", "-odown"] };
            news.extend(
                channels.iter().map(|&channel| News { channel, text: format!("master {name} {}", pair(master)) }),
            );
        }
        for sight in self.others() {
            let channel = match before.sight(sight.node) {
                None => "+slave",
                Some(was) if was.is_heard && !sight.is_heard => "+sdown",
                Some(was) if !was.is_heard && sight.is_heard => "-sdown",
                Some(_) => continue,
            };
            let text = format!("slave {} {} @ {name} {}", sight.address, pair(sight), pair(master));
            news.push(News { channel, text });
        }
        news
    }

    /// Answers one request.
    pub fn answer(&self, talk: &mut Talk, args: Args<'_>, writer: &mut Writer) -> Next {
        let command = String::from_utf8_lossy(args.at(0)).to_ascii_lowercase();
        let arity = |least: usize| args.len() >= least;
        match command.as_str() {
            "sentinel" if arity(2) => self.sentinel(args, writer),
            "ping" => match args.get(1) {
                _ if talk.listens() && writer.protocol() == Protocol::Resp2 => {
                    writer.array(2);
                    writer.bulk(b"pong");
                    writer.bulk(args.get(1).unwrap_or_default());
                }
                Some(text) => writer.bulk(text),
                None => writer.simple("PONG"),
            },
            "echo" if arity(2) => writer.bulk(args.at(1)),
            "auth" if arity(2) => _ = self.authenticate(args.from(1), writer).then(|| writer.ok()),
            "hello" => self.hello(talk, args, writer),
            "client" if arity(2) => client(talk, args, writer),
            "subscribe" | "psubscribe" if arity(2) => talk.subscribe(&command, args, writer),
            "unsubscribe" | "punsubscribe" => talk.unsubscribe(&command, args, writer),
            "publish" if arity(3) => writer.integer(0),
            "info" => writer.verbatim("txt", self.info().as_bytes()),
            "role" => {
                writer.array(2);
                writer.bulk(b"sentinel");
                writer.array(1);
                writer.bulk(self.name.as_bytes());
            }
            "command" => writer.array(0),
            "reset" => {
                *talk = Talk::new(talk.id);
                writer.set_protocol(Protocol::Resp2);
                writer.simple("RESET");
            }
            "quit" => {
                writer.ok();
                return Next::Close;
            }
            "sentinel" | "echo" | "auth" | "client" | "subscribe" | "psubscribe" | "publish" => {
                writer.error(&format!("ERR wrong number of arguments for '{command}' command"));
            }
            _ => {
                let shown: String = args.iter().skip(1).map(|word| format!("'{}' ", show(word))).collect();
                let name = show(args.at(0));
                writer.error(&format!("ERR unknown command '{name}', with args beginning with: {shown}"));
            }
        }
        Next::Stay
    }

    fn sentinel(&self, args: Args<'_>, writer: &mut Writer) {
        let verb = String::from_utf8_lossy(args.at(1)).to_ascii_lowercase();
        let about = match verb.as_str() {
            "master" | "replicas" | "slaves" | "sentinels" | "get-master-addr-by-name" | "ckquorum" | "failover" => 3,
            "is-master-down-by-addr" => 6,
            "reset" | "remove" => 3,
            "set" | "monitor" => 4,
            _ => 2,
        };
        if args.len() < about {
            return writer.error(&format!("ERR wrong number of arguments for 'sentinel|{verb}' command"));
        }
        let is_ours = args.get(2).is_some_and(|name| name == self.name.as_bytes());
        let master = self.master().filter(|_| is_ours);
        match (verb.as_str(), master) {
            ("masters", _) => match self.master() {
                Some(master) => {
                    writer.array(1);
                    self.write_master(master, writer);
                }
                None => writer.array(0),
            },
            ("get-master-addr-by-name", Some(master)) => {
                let (host, port) = split(&master.address);
                writer.array(2);
                writer.bulk(host.as_bytes());
                writer.bulk(port.as_bytes());
            }
            ("get-master-addr-by-name", None) => writer.null_array(),
            ("master", Some(master)) => self.write_master(master, writer),
            ("replicas" | "slaves", Some(master)) => {
                writer.array(self.others().count());
                self.others().for_each(|sight| self.write_replica(sight, master, writer));
            }
            ("sentinels", Some(_)) => {
                writer.array(self.sentinels().count());
                self.sentinels().for_each(|sight| self.write_sentinel(sight, writer));
            }
            ("ckquorum", Some(_)) => {
                let (heard, all) = (self.heard_count(), self.landscape.nodes.len());
                if self.has_leader() {
                    writer.simple(&format!(
                        "OK {heard} usable Sentinels. Quorum and failover authorization can be reached"
                    ));
                } else {
                    writer.error(&format!(
                        "NOQUORUM {heard} usable Sentinels of {all}. Not enough available Sentinels to reach the \
                         majority and authorize a failover"
                    ));
                }
            }
            ("failover", Some(_)) => writer.error(
                "NOGOODSLAVE Leaders are elected, and not appointed from here: `holdfast cluster prefer 0 NODE` \
                 chooses the leader that clients are sent to",
            ),
            ("master" | "replicas" | "slaves" | "sentinels" | "ckquorum" | "failover", None) => {
                writer.error("ERR No such master with that name");
            }
            ("is-master-down-by-addr", _) => {
                writer.array(3);
                writer.integer(i64::from(!self.has_leader()));
                writer.bulk(b"*");
                writer.integer(0);
            }
            ("myid", _) => writer.bulk(run_id(self.landscape.own).as_bytes()),
            ("reset", _) => writer.integer(i64::from(glob::matches(args.at(2), self.name.as_bytes()))),
            ("info-cache" | "pending-scripts", _) => writer.array(0),
            ("flushconfig", _) => writer.ok(),
            ("monitor" | "remove" | "set", _) => writer.error(
                "ERR A Holdfast finds its nodes by itself and is not told whom to watch: `--sentinel-master-name` \
                 names what it answers for",
            ),
            ("help", _) => {
                writer.array(HELP.len());
                HELP.iter().for_each(|line| writer.simple(line));
            }
            _ => writer.error(&format!("ERR unknown subcommand '{}'. Try SENTINEL HELP.", show(args.at(1)))),
        }
    }

    fn heard_count(&self) -> usize {
        self.landscape.nodes.iter().filter(|sight| sight.is_heard).count()
    }

    /// Those of the others that must agree.
    fn quorum(&self) -> String {
        (self.landscape.nodes.len() / 2 + 1).to_string()
    }

    fn write_master(&self, master: &Sight, writer: &mut Writer) {
        let flags = if self.has_leader() { "master" } else { "s_down,o_down,master" };
        let (replicas, sentinels) = (self.others().count().to_string(), self.sentinels().count().to_string());
        let mut fields = self.common(master, flags, "master");
        fields[0].1.clone_from(&self.name);
        fields.extend([
            ("config-epoch", self.landscape.term.to_string()),
            ("num-slaves", replicas),
            ("num-other-sentinels", sentinels),
            ("quorum", self.quorum()),
            ("failover-timeout", "180000".to_owned()),
            ("parallel-syncs", "1".to_owned()),
        ]);
        write_map(&fields, writer);
    }

    fn write_replica(&self, sight: &Sight, master: &Sight, writer: &mut Writer) {
        let (host, port) = split(&master.address);
        let flags = if sight.is_heard { "slave" } else { "s_down,slave,disconnected" };
        let mut fields = self.common(sight, flags, "slave");
        fields.extend([
            ("master-link-down-time", "0".to_owned()),
            ("master-link-status", if sight.is_heard { "ok" } else { "err" }.to_owned()),
            ("master-host", host.to_owned()),
            ("master-port", port.to_owned()),
            ("slave-priority", "100".to_owned()),
            ("slave-repl-offset", "0".to_owned()),
            ("replica-announced", "1".to_owned()),
        ]);
        write_map(&fields, writer);
    }

    fn write_sentinel(&self, sight: &Sight, writer: &mut Writer) {
        let flags = if sight.is_heard { "sentinel" } else { "s_down,sentinel" };
        let mut fields = self.common(sight, flags, "sentinel");
        let (host, port) = (split(&sight.address).0, self.port);
        fields[0].1 = run_id(sight.node);
        fields[2].1 = port.to_string();
        fields[1].1 = host.to_owned();
        fields.retain(|(name, _)| !matches!(*name, "role-reported" | "role-reported-time" | "info-refresh"));
        fields.extend([
            ("last-hello-message", "0".to_owned()),
            ("voted-leader", "?".to_owned()),
            ("voted-leader-epoch", "0".to_owned()),
        ]);
        write_map(&fields, writer);
    }

    /// The fields that all kinds have, the name, the host and the port first.
    fn common(&self, sight: &Sight, flags: &str, role: &str) -> Vec<(&'static str, String)> {
        let (host, port) = split(&sight.address);
        let mut fields = vec![
            ("name", sight.address.clone()),
            ("ip", host.to_owned()),
            ("port", port.to_owned()),
            ("runid", run_id(sight.node)),
            ("flags", flags.to_owned()),
            ("link-pending-commands", "0".to_owned()),
            ("link-refcount", "1".to_owned()),
            ("last-ping-sent", "0".to_owned()),
            ("last-ok-ping-reply", "0".to_owned()),
            ("last-ping-reply", "0".to_owned()),
        ];
        if flags.contains("s_down") {
            fields.push(("s-down-time", "0".to_owned()));
        }
        fields.extend([
            ("down-after-milliseconds", DOWN_AFTER_MS.to_owned()),
            ("info-refresh", "0".to_owned()),
            ("role-reported", role.to_owned()),
            ("role-reported-time", "0".to_owned()),
        ]);
        fields
    }

    /// Looks at a password, alone or behind a name. Writes why not if it is wrong.
    fn authenticate(&self, words: Args<'_>, writer: &mut Writer) -> bool {
        let users = &self.landscape.users;
        let (name, password) = match words.get(1) {
            Some(password) => (words.at(0), password),
            None if users.default_user().needs_no_password() => {
                writer.error(
                    "ERR AUTH <password> called without any password configured for the default user. Are you sure \
                     your configuration is correct?",
                );
                return false;
            }
            None => (node::acl::DEFAULT, words.at(0)),
        };
        let is_right = users.get(name).is_some_and(|user| user.accepts(password));
        if !is_right {
            writer.error("WRONGPASS invalid username-password pair or user is disabled.");
        }
        is_right
    }

    fn hello(&self, talk: &mut Talk, args: Args<'_>, writer: &mut Writer) {
        let mut protocol = writer.protocol();
        let mut at = 1;
        if let Some(version) = args.get(1) {
            protocol = match version {
                b"2" => Protocol::Resp2,
                b"3" => Protocol::Resp3,
                _ => return writer.error("NOPROTO unsupported protocol version"),
            };
            at = 2;
        }
        while let Some(option) = args.get(at) {
            let is = |word: &str| option.eq_ignore_ascii_case(word.as_bytes());
            if is("auth") && args.len() > at + 2 {
                if !self.authenticate(args.from(at + 1), writer) {
                    return;
                }
                at += 3;
            } else if is("setname") && args.len() > at + 1 {
                talk.name = args.at(at + 1).to_vec();
                at += 2;
            } else {
                return writer.error(&format!("ERR Syntax error in HELLO option '{}'", show(option)));
            }
        }
        writer.set_protocol(protocol);
        writer.map(6);
        let texts = [("server", "redis"), ("version", VERSION)];
        for (name, value) in texts {
            writer.bulk(name.as_bytes());
            writer.bulk(value.as_bytes());
        }
        writer.bulk(b"proto");
        writer.integer(if protocol == Protocol::Resp3 { 3 } else { 2 });
        writer.bulk(b"id");
        writer.integer(talk.id);
        writer.bulk(b"mode");
        writer.bulk(b"sentinel");
        writer.bulk(b"modules");
        writer.array(0);
    }

    fn info(&self) -> String {
        let run_id = run_id(self.landscape.own);
        let mut text = format!(
            "# Server\r\nredis_version:{VERSION}\r\nredis_mode:sentinel\r\nrun_id:{run_id}\r\ntcp_port:{}\r\n\r\n\
             # Sentinel\r\nsentinel_masters:{}\r\nsentinel_tilt:0\r\nsentinel_running_scripts:0\r\n\
             sentinel_scripts_queue_length:0\r\nsentinel_simulate_failure_flags:0\r\n",
            self.port,
            usize::from(self.master().is_some()),
        );
        if let Some(master) = self.master() {
            let status = if self.has_leader() { "ok" } else { "odown" };
            text += &format!(
                "master0:name={},status={status},address={},slaves={},sentinels={}\r\n",
                self.name,
                master.address,
                self.others().count(),
                self.landscape.nodes.len()
            );
        }
        text
    }
}

impl Talk {
    /// Of a client with this number.
    pub fn new(id: i64) -> Self {
        Self { id, ..Self::default() }
    }

    fn listens(&self) -> bool {
        !self.channels.is_empty() || !self.patterns.is_empty()
    }

    fn count(&self) -> i64 {
        (self.channels.len() + self.patterns.len()) as i64
    }

    fn subscribe(&mut self, command: &str, args: Args<'_>, writer: &mut Writer) {
        for name in args.iter().skip(1) {
            let set = if command == "subscribe" { &mut self.channels } else { &mut self.patterns };
            if set.len() < super::SUBSCRIPTIONS_MAX || set.contains(name) {
                set.insert(name.to_vec());
            } else {
                writer.error("ERR too many subscriptions");
                return;
            }
            writer.push(3);
            writer.bulk(command.as_bytes());
            writer.bulk(name);
            writer.integer(self.count());
        }
    }

    fn unsubscribe(&mut self, command: &str, args: Args<'_>, writer: &mut Writer) {
        let set = if command == "unsubscribe" { &mut self.channels } else { &mut self.patterns };
        let mut names: Vec<Option<Vec<u8>>> = match args.len() {
            1 => set.iter().cloned().map(Some).collect(),
            _ => args.iter().skip(1).map(|name| Some(name.to_vec())).collect(),
        };
        if names.is_empty() {
            names.push(None);
        }
        for name in names {
            let set = if command == "unsubscribe" { &mut self.channels } else { &mut self.patterns };
            if let Some(name) = &name {
                set.remove(name);
            }
            writer.push(3);
            writer.bulk(command.as_bytes());
            writer.bulk_or_null(name.as_deref());
            writer.integer(self.count());
        }
    }

    /// Writes a message to a client that listens to it.
    pub fn tell(&self, news: &News, writer: &mut Writer) {
        let channel = news.channel.as_bytes();
        if self.channels.contains(channel) {
            writer.push(3);
            writer.bulk(b"message");
            writer.bulk(channel);
            writer.bulk(news.text.as_bytes());
        }
        for pattern in self.patterns.iter().filter(|pattern| glob::matches(pattern, channel)) {
            writer.push(4);
            writer.bulk(b"pmessage");
            writer.bulk(pattern);
            writer.bulk(channel);
            writer.bulk(news.text.as_bytes());
        }
    }
}

fn client(talk: &mut Talk, args: Args<'_>, writer: &mut Writer) {
    match String::from_utf8_lossy(args.at(1)).to_ascii_lowercase().as_str() {
        "id" => writer.integer(talk.id),
        "getname" if talk.name.is_empty() => writer.null(),
        "getname" => writer.bulk(&talk.name),
        "setname" if args.len() == 3 => {
            talk.name = args.at(2).to_vec();
            writer.ok();
        }
        "setinfo" if args.len() == 4 => writer.ok(),
        _ => writer.error(&format!("ERR unknown subcommand '{}'. Try CLIENT HELP.", show(args.at(1)))),
    }
}

fn write_map(fields: &[(&str, String)], writer: &mut Writer) {
    writer.map(fields.len());
    for (name, value) in fields {
        writer.bulk(name.as_bytes());
        writer.bulk(value.as_bytes());
    }
}

/// Forty digits that stay a node's own.
fn run_id(NodeId(number): NodeId) -> String {
    format!("{number:040x}")
}

/// Host and port of an address. A host in brackets is told without them.
fn split(address: &str) -> (&str, &str) {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "0"));
    (host.trim_start_matches('[').trim_end_matches(']'), port)
}

/// What a client has sent, in a message: its beginning.
fn show(word: &[u8]) -> String {
    format!("{:.64}", String::from_utf8_lossy(word).replace(['\r', '\n'], " "))
}

#[cfg(test)]
mod tests;

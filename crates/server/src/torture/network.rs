//! Several hosts on one machine: each node in a network namespace of its own, the clients in another, all on one bridge
//! in a third. Nothing leaves the machine, and its own interfaces are not touched. Needs root.
//!
//! A line is cut by lying to the sender about who has the receiver's address: its frames go to nobody. That is silent,
//! as a broken cable is, works one way or both, and needs nothing but `ip`.

use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns};

use super::process;

/// A network card that no host has.
const NOBODY: &str = "02:00:00:00:00:01";
/// Lines are this narrow when they are slow.
const SLOW_MBIT: u32 = 10;
const CLIENTS: &str = "clients";

/// Hosts on a bridge. Removed when dropped.
pub struct Network {
    prefix: String,
    nodes: usize,
}

impl Network {
    /// Makes the hosts and moves the calling thread, and so all threads and processes it will start, to the clients'.
    pub fn make(nodes: usize) -> Result<Self> {
        let network = Self { prefix: format!("holdfast-{}", std::process::id()), nodes };
        network.build().context("partitions and slow links need network namespaces, which need root and 'ip'")?;
        Ok(network)
    }

    fn build(&self) -> Result<()> {
        let switch = self.name("switch");
        add_namespace(&switch)?;
        ip(&["-n", &switch, "link", "add", "br0", "type", "bridge"])?;
        ip(&["-n", &switch, "link", "set", "br0", "up"])?;
        for host in self.hosts() {
            let name = self.name(&host);
            add_namespace(&name)?;
            ip(&["-n", &switch, "link", "add", &host, "type", "veth", "peer", "name", "eth0", "netns", &name])?;
            ip(&["-n", &switch, "link", "set", &host, "master", "br0", "up"])?;
            let address = format!("{}/24", self.address_of(&host));
            ip(&["-n", &name, "address", "add", &address, "dev", "eth0"])?;
            ip(&["-n", &name, "link", "set", "eth0", "up"])?;
            ip(&["-n", &name, "link", "set", "lo", "up"])?;
        }
        let path = format!("/run/netns/{}", self.name(CLIENTS));
        let namespace = std::fs::File::open(&path).with_context(|| format!("cannot open {path}"))?;
        setns(namespace, CloneFlags::CLONE_NEWNET).context("cannot enter the clients' namespace")
    }

    fn hosts(&self) -> Vec<String> {
        (0..self.nodes).map(host_of).chain([CLIENTS.to_owned()]).collect()
    }

    fn name(&self, host: &str) -> String {
        format!("{}-{host}", self.prefix)
    }

    fn address_of(&self, host: &str) -> Ipv4Addr {
        let last = (0..self.nodes).find(|node| host_of(*node) == host).map_or(100, |node| node as u8 + 1);
        Ipv4Addr::new(10, 77, 0, last)
    }

    /// Where a node listens.
    pub fn address(&self, node: usize) -> IpAddr {
        IpAddr::V4(self.address_of(&host_of(node)))
    }

    /// A command that runs a program on a node's host, as the very process that is started.
    pub fn command(&self, node: usize, program: &std::path::Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(&host_of(node))]).arg(program);
        command
    }

    /// What a node sends reaches none of these nodes.
    pub fn mute(&self, node: usize) -> Result<()> {
        let peers = (0..self.nodes).filter(|peer| *peer != node);
        peers.map(host_of).try_for_each(|peer| self.cut(&host_of(node), &peer))
    }

    /// A node and its peers do not reach each other.
    pub fn cut_from_peers(&self, node: usize) -> Result<()> {
        let peers = (0..self.nodes).filter(|peer| *peer != node);
        peers.map(host_of).try_for_each(|peer| self.cut_both_ways(&host_of(node), &peer))
    }

    /// A node and the next one do not reach each other.
    pub fn cut_pair(&self, node: usize) -> Result<()> {
        self.cut_both_ways(&host_of(node), &host_of((node + 1) % self.nodes))
    }

    /// A node reaches nobody and is reached by nobody.
    pub fn cut_off(&self, node: usize) -> Result<()> {
        self.cut_from_peers(node)?;
        self.cut_both_ways(&host_of(node), CLIENTS)
    }

    /// A node's line becomes narrow.
    pub fn slow_down(&self, node: usize) -> Result<()> {
        let rate = format!("{SLOW_MBIT}mbit");
        let rule = ["root", "tbf", "rate", &rate, "burst", "32kb", "latency", "100ms"];
        let name = self.name(&host_of(node));
        run("tc", &[&["-n", &name, "qdisc", "replace", "dev", "eth0"], &rule[..]].concat())
    }

    /// Everything is as it was.
    pub fn heal(&self) -> Result<()> {
        for host in self.hosts() {
            let name = self.name(&host);
            ip(&["-n", &name, "neighbour", "flush", "dev", "eth0", "nud", "permanent"])?;
            // There may be none to remove.
            let _ = run("tc", &["-n", &name, "qdisc", "delete", "dev", "eth0", "root"]);
        }
        Ok(())
    }

    fn cut_both_ways(&self, one: &str, other: &str) -> Result<()> {
        self.cut(one, other)?;
        self.cut(other, one)
    }

    fn cut(&self, from: &str, to: &str) -> Result<()> {
        let address = self.address_of(to).to_string();
        let lie = ["neighbour", "replace", &address, "lladdr", NOBODY, "nud", "permanent", "dev", "eth0"];
        ip(&[&["-n", &self.name(from)], &lie[..]].concat())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for host in self.hosts().into_iter().chain(["switch".to_owned()]) {
            remove_namespace(&self.name(&host));
        }
    }
}

fn host_of(node: usize) -> String {
    format!("h{}", node + 1)
}

fn add_namespace(name: &str) -> Result<()> {
    process::remember_namespace(name);
    ip(&["netns", "add", name])
}

/// Removes a namespace with its cables.
pub fn remove_namespace(name: &str) {
    // One that was never made cannot be removed.
    let _ = ip(&["netns", "delete", name]);
}

fn ip(words: &[&str]) -> Result<()> {
    run("ip", words)
}

fn run(program: &str, words: &[&str]) -> Result<()> {
    let output = Command::new(program).args(words).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        bail!("{program} {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

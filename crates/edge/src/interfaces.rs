//! The addresses of this machine, as the kernel tells them without privileges: where it is not told, none.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};

/// All of this machine, or of the container, loopback addresses among them.
pub fn addresses() -> Vec<IpAddr> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut addresses = of_trie(&read("/proc/net/fib_trie"));
    addresses.extend(of_table(&read("/proc/net/if_inet6")));
    addresses.sort();
    addresses.dedup();
    addresses
}

/// IPv4: a line with an address, and below it one that says what it is.
fn of_trie(text: &str) -> Vec<IpAddr> {
    let mut last: Option<IpAddr> = None;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        match line.strip_prefix("|-- ") {
            Some(address) => last = address.parse().ok(),
            None if line.starts_with("/32 ") && line.ends_with(" LOCAL") => found.extend(last),
            None => {}
        }
    }
    found
}

/// IPv6: a line for each, with the address in front.
fn of_table(text: &str) -> Vec<IpAddr> {
    let address = |line: &str| u128::from_str_radix(line.split(' ').next()?, 16).ok().map(Ipv6Addr::from_bits);
    text.lines().filter_map(address).map(IpAddr::V6).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_from_networks() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     \
                    +-- 10.0.0.0/24 2 0 2\n        |-- 10.0.0.0\n           /24 link UNICAST\n        \
                    |-- 10.0.0.9\n           /32 host LOCAL\n        |-- 10.0.0.255\n           /32 link BROADCAST\n";
        assert_eq!(of_trie(trie), [IpAddr::from([10, 0, 0, 9])]);
        let table = "fe8000000000000000fc00fffe000001 04 40 20 80     eth0\n";
        assert_eq!(of_table(table), ["fe80::fc:ff:fe00:1".parse::<IpAddr>().unwrap()]);
        assert_eq!((of_trie("no such\ntext"), of_table("none")), (Vec::new(), Vec::new()));
        assert!(addresses().contains(&IpAddr::from([127, 0, 0, 1])), "every machine has that one");
    }
}

//! XADD with IDMP or IDMPAUTO as Redis from 8.6 on tells its replicas, and writes into its log.
//!
//! Such an entry is added once, however often its producer sends it, so a client may not choose its id. But what Redis
//! tells names the id that the entry has got there, which no server takes from a client. Here it becomes what a client
//! may say, with the same effect:
//!
//! ```text
//! XADD s IDMP p i MAXLEN = 5 1-1 f v   →   XADD s 1-1 f v
//!                                          XIDMPRECORD s p i 1-1
//!                                          XTRIM s MAXLEN = 5
//! ```
//!
//! What was not added, as it was there, is told with `*`, as its producer has sent it. It has changed nothing but a
//! count, and is left out: at another moment it might be added.

use keyspace::Stream;

use crate::aof::Request;

/// The requests that stand for one; that one itself if it is none of these.
pub fn told_to_clients(request: Request) -> Vec<Request> {
    match Parts::of(&request) {
        None => vec![request],
        Some(Parts { id, .. }) if request[id] == b"*" => Vec::new(),
        Some(parts) => parts.requests(&request),
    }
}

/// Where what is what in an XADD of a producer.
struct Parts {
    producer: usize,
    /// The producer's own id of the entry; none if it is made of what is in the entry.
    own: Option<usize>,
    id: usize,
    only_existing: bool,
    /// Words about what is trimmed afterwards.
    trimming: Vec<usize>,
    trims: bool,
}

impl Parts {
    fn of(request: &Request) -> Option<Self> {
        let is = |index: usize, name: &str| {
            request.get(index).is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes()))
        };
        if !is(0, "xadd") {
            return None;
        }
        let mut parts =
            Self { producer: 0, own: None, id: 0, only_existing: false, trimming: Vec::new(), trims: false };
        let mut index = 2;
        loop {
            let length = if is(index, "nomkstream") {
                parts.only_existing = true;
                1
            } else if is(index, "idmpauto") {
                parts.producer = index + 1;
                2
            } else if is(index, "idmp") {
                (parts.producer, parts.own) = (index + 1, Some(index + 2));
                3
            } else if is(index, "maxlen") || is(index, "minid") {
                parts.trims = true;
                if is(index + 1, "=") || is(index + 1, "~") { 3 } else { 2 }
            } else if is(index, "limit") {
                2
            } else if ["keepref", "delref", "acked"].iter().any(|name| is(index, name)) {
                1
            } else {
                break;
            };
            let is_trimming = !is(index, "nomkstream") && !is(index, "idmp") && !is(index, "idmpauto");
            if is_trimming {
                parts.trimming.extend(index..index + length);
            }
            index += length;
        }
        parts.id = index;
        // An id, and at least a field and a value.
        (parts.producer > 0 && request.len() > index + 2).then_some(parts)
    }

    fn requests(&self, request: &Request) -> Vec<Request> {
        let (key, id, fields) = (&request[1], &request[self.id], &request[self.id + 1..]);
        let mut add = vec![b"XADD".to_vec(), key.clone()];
        add.extend(self.only_existing.then(|| b"NOMKSTREAM".to_vec()));
        add.push(id.clone());
        add.extend_from_slice(fields);
        let own = match self.own {
            Some(own) => request[own].clone(),
            None => Stream::own_id_of(fields.iter().map(Vec::as_slice)).to_vec(),
        };
        let record = vec![b"XIDMPRECORD".to_vec(), key.clone(), request[self.producer].clone(), own, id.clone()];
        let mut requests = vec![add, record];
        if self.trims {
            let mut trim = vec![b"XTRIM".to_vec(), key.clone()];
            trim.extend(self.trimming.iter().map(|&index| request[index].clone()));
            requests.push(trim);
        }
        requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &str) -> Vec<String> {
        let request = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        let shown = |request: &Request| String::from_utf8_lossy(&request.join(&b' ')).into_owned();
        told_to_clients(request).iter().map(shown).collect()
    }

    #[test]
    fn an_entry_of_a_producer_gets_the_id_that_it_has_there() {
        let lines = told("XADD s IDMP p i 5-1 f v");
        assert_eq!(lines, ["XADD s 5-1 f v", "XIDMPRECORD s p i 5-1"]);
        let lines = told("xadd s nomkstream keepref idmp p i maxlen = 3 5-1 f v");
        assert_eq!(lines, ["XADD s NOMKSTREAM 5-1 f v", "XIDMPRECORD s p i 5-1", "XTRIM s keepref maxlen = 3"]);
        let lines = told("XADD s IDMP maxlen idmp MINID ~ 4 LIMIT 7 5-1 idmp v");
        assert_eq!(lines, ["XADD s 5-1 idmp v", "XIDMPRECORD s maxlen idmp 5-1", "XTRIM s MINID ~ 4 LIMIT 7"]);
        let words = |words: &[&[u8]]| words.iter().map(|word| word.to_vec()).collect::<Request>();
        let requests = told_to_clients(words(&[b"XADD", b"s", b"IDMPAUTO", b"p", b"5-1", b"f", b"v"]));
        let own = Stream::own_id_of([&b"f"[..], b"v"].into_iter());
        assert_eq!(requests[1], words(&[b"XIDMPRECORD", b"s", b"p", &own, b"5-1"]));
    }

    #[test]
    fn what_was_there_is_not_added_and_others_stay_as_they_are() {
        assert!(told("XADD s IDMP p i * f v").is_empty());
        assert!(told("XADD s IDMPAUTO p MAXLEN 5 * f v").is_empty());
        for line in [
            "XADD s 5-1 idmp v",
            "XADD s * f v",
            "XADD s MAXLEN ~ 5 LIMIT 5 5-1 f v",
            "XADD s IDMP p i 5-1",
            "XADD s IDMP",
            "XADD s",
            "XADD",
            "SET s IDMP",
        ] {
            assert_eq!(told(line), [line]);
        }
    }
}

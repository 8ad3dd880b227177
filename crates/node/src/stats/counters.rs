//! What a core counts.

use keyspace::Lookups;
use stdx::Instant;

use crate::known::Known;
use crate::redaction::is_secret;

/// Counters of one core since its start, and what they are derived from. Nothing replicated depends on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Connections opened.
    pub connection_count: u64,
    /// Requests taken from clients.
    pub request_count: u64,
    /// Bytes received from clients.
    pub input_bytes: u64,
    /// Bytes sent to clients.
    pub output_bytes: u64,
    /// Messages of other nodes that were none.
    pub malformed_peer_count: u64,
    /// Clients cut off because they left too much output unread.
    pub cut_count: u64,
    /// Clients cut off because all clients together took too much memory.
    pub evicted_count: u64,
    /// Clients cut off because they had not authenticated while places were scarce.
    pub unauthenticated_count: u64,
    /// Connections ended because their client spoke HTTP.
    pub http_count: u64,
    /// Changes refused, or not confirmed, because not every voter had what was asked for (CLIENT DURABILITY ALL).
    pub not_thorough_count: u64,
    /// Reads answered by a replica that does not lead (READONLY).
    pub replica_read_count: u64,
    /// Times that something was read from a client, and written to one.
    pub read_count: u64,
    /// See above.
    pub write_count: u64,
    /// Keys looked up by transactions over several groups; each group counts its own.
    pub lookups: Lookups,
}

/// What a core does in a second, measured over the last one and a bit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    since: Instant,
    /// Counts at that time.
    before: [u64; 3],
    /// Commands, bytes received and bytes sent.
    pub per_second: [u64; 3],
}

impl Rates {
    /// It is so late, and so much has been counted. Counts that were set back start over.
    pub fn note(&mut self, now: Instant, counts: [u64; 3]) {
        let took_ms = now.since(self.since).as_millis() as u64;
        if took_ms < 1_000 {
            return;
        }
        for ((rate, before), count) in self.per_second.iter_mut().zip(self.before).zip(counts) {
            *rate = count.saturating_sub(before) * 1_000 / took_ms;
        }
        (self.since, self.before) = (now, counts);
    }
}

/// A command that took long (SLOWLOG).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowEntry {
    /// Number on its core, growing.
    pub number: u64,
    /// When it had been executed, for the order among cores.
    pub ended: Instant,
    /// The same by the wall clock, in seconds.
    pub unix_seconds: i64,
    /// How long it took, in microseconds.
    pub took_us: u64,
    /// Its words, shortened.
    pub words: Vec<Vec<u8>>,
    /// The client's address.
    pub address: String,
    /// The client's name.
    pub name: Vec<u8>,
}

/// Slow commands of one core, the latest first.
#[derive(Clone, Debug, Default)]
pub struct Slowlog {
    entries: std::collections::VecDeque<SlowEntry>,
    next_number: u64,
}

impl Slowlog {
    /// Remembers a command; the oldest is forgotten when there are more than `count_max`.
    pub fn push(&mut self, mut entry: SlowEntry, count_max: usize) {
        entry.number = self.next_number;
        self.next_number += 1;
        self.entries.push_front(entry);
        self.entries.truncate(count_max);
    }

    /// All that are remembered, the latest first.
    pub fn entries(&self) -> Vec<SlowEntry> {
        self.entries.iter().cloned().collect()
    }

    /// The latest that is remembered.
    pub fn latest(&self) -> Option<&SlowEntry> {
        self.entries.front()
    }

    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if none is remembered.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Forgets all. Numbers go on.
    pub fn clear(&mut self) {
        self.entries.clear();
    }
}

/// The words of a request as SLOWLOG keeps them: at most 32 of at most 128 bytes, saying what is left out.
/// Passwords are not told.
pub fn shorten(known: Known, args: resp::Args<'_>) -> Vec<Vec<u8>> {
    const WORDS_MAX: usize = 32;
    const BYTES_MAX: usize = 128;
    let kept = if args.len() > WORDS_MAX { WORDS_MAX - 1 } else { args.len() };
    let mut words: Vec<Vec<u8>> = args
        .iter()
        .take(kept)
        .enumerate()
        .map(|(place, word)| if is_secret(known, args, place) { &b"(redacted)"[..] } else { word })
        .map(|word| match word.len().checked_sub(BYTES_MAX) {
            None | Some(0) => word.to_vec(),
            Some(more) => {
                let mut short = word[..BYTES_MAX].to_vec();
                short.extend_from_slice(format!("... ({more} more bytes)").as_bytes());
                short
            }
        })
        .collect();
    if args.len() > WORDS_MAX {
        words.push(format!("... ({} more arguments)", args.len() - kept).into_bytes());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_last_second_and_survive_a_reset() {
        let at = |ms| Instant::ZERO + stdx::Duration::from_millis(ms);
        let mut rates = Rates::default();
        rates.note(at(1_000), [500, 5_000, 50]);
        assert_eq!(rates.per_second, [500, 5_000, 50]);
        rates.note(at(1_900), [10_000, 0, 0]);
        assert_eq!(rates.per_second, [500, 5_000, 50]);
        rates.note(at(3_000), [700, 5_000, 1_050]);
        assert_eq!(rates.per_second, [100, 0, 500]);
        rates.note(at(4_000), [3, 0, 0]);
        assert_eq!(rates.per_second, [0, 0, 0]);
    }
}

//! What it has taken to carry out a request. It travels with the answer to the gateway, which counts it: who looks at
//! the figures of a node sees what the node's own clients have asked for, no matter who has carried it out.

use message::entry::put_bytes;
use stdx::{Duration, leb128};

/// What a request has taken. Of one that has been carried out before nothing is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The times of its commands in their order, if they were measured: of a transaction those in its queue.
    pub times: Vec<Duration>,
    /// What a script has called, laid out by `ScriptCalls::put`; nothing if its client's own node has counted that.
    pub calls: Vec<u8>,
}

impl Cost {
    /// Lays it out for another node.
    ///
    /// ```text
    /// cost = 0 | length (count nanoseconds* calls)
    /// ```
    pub fn put(&self, out: &mut Vec<u8>) {
        let mut bytes = Vec::new();
        if !self.times.is_empty() || !self.calls.is_empty() {
            leb128::put(&mut bytes, self.times.len() as u64);
            self.times.iter().for_each(|took| leb128::put(&mut bytes, took.as_nanos() as u64));
            bytes.extend_from_slice(&self.calls);
        }
        put_bytes(out, &bytes);
    }

    /// Reads it back; nothing if it is something else.
    pub fn take(rest: &mut &[u8]) -> Option<Self> {
        let length = usize::try_from(leb128::take(rest)?).ok()?;
        let (mut bytes, behind) = rest.split_at_checked(length)?;
        *rest = behind;
        if bytes.is_empty() {
            return Some(Self::default());
        }
        let count = leb128::take(&mut bytes)?;
        let time = |_| Some(Duration::from_nanos(leb128::take(&mut bytes)?.min(NANOS_MAX)));
        let times = (0..count).map(time).collect::<Option<_>>()?;
        Some(Self { times, calls: bytes.to_vec() })
    }
}

/// No command takes longer, so that times of another node cannot overflow a sum.
pub const NANOS_MAX: u64 = 1 << 48;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_comes_back_as_it_was_sent() {
        let times = vec![Duration::from_nanos(300), Duration::ZERO];
        for cost in [
            Cost::default(),
            Cost { times: times.clone(), calls: Vec::new() },
            Cost { times: Vec::new(), calls: vec![0, 0] },
            Cost { times, calls: vec![1, 2, 3] },
        ] {
            let mut bytes = Vec::new();
            cost.put(&mut bytes);
            for end in 0..bytes.len() {
                assert_eq!(Cost::take(&mut &bytes[..end]), None, "{end} bytes of {cost:?}");
            }
            bytes.extend_from_slice(b"+OK");
            let rest = &mut &bytes[..];
            assert_eq!(Cost::take(rest), Some(cost));
            assert_eq!(*rest, b"+OK");
        }
        let mut endless = vec![11, 1];
        endless.extend([0xff; 9]);
        endless.push(1);
        let cost = Cost::take(&mut &endless[..]).expect("a number");
        assert_eq!(cost.times, [Duration::from_nanos(NANOS_MAX)]);
        assert_eq!(Cost::take(&mut &[3, 200, 1, 0][..]), None, "more times than there are");
    }
}

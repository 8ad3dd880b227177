//! Whether leadership is better off on the host of another node.

use crate::limits;

/// True if leadership is better off on a host that has stalled for so long than on this one.
pub fn outweighs(own_ms: u64, other_ms: u64) -> bool {
    own_ms >= limits::GUILT_STALLED.as_millis() as u64 && own_ms / limits::GUILT_RATIO >= other_ms
}

/// True if a host has been good enough for so long that leadership may come back to it.
pub fn is_innocent(stalled_ms: u64) -> bool {
    stalled_ms < limits::GUILT_STALLED.as_millis() as u64 / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_host_that_is_much_worse_than_another_gives_up() {
        assert!(!outweighs(999, 0) && outweighs(1_000, 0) && outweighs(4_000, 1_000));
        assert!(!outweighs(4_000, 1_001), "the other is hardly better");
        assert!(!outweighs(60_000, 20_000), "they share a machine");
        assert!(is_innocent(0) && is_innocent(499) && !is_innocent(500));
    }
}

//! The allocator, and what it tells of itself.

use edge::Allocated;
use tikv_jemalloc_ctl::{epoch, stats};

/// The system's allocator keeps freed pages of a long-lived, many-sized heap far longer and says little about it;
/// memory is what this server sells. What is written in C calls this one, too, where the platform lets it: Lua is
/// faster by it, and what scripts hold is seen.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Asks the allocator about itself. All zero if it does not answer.
pub fn allocated() -> Allocated {
    // Figures are those of the last epoch.
    let _ = epoch::advance();
    let bytes = |figure: Result<usize, _>| figure.map_or(0, |bytes| bytes as u64);
    Allocated {
        allocated_bytes: bytes(stats::allocated::read()),
        active_bytes: bytes(stats::active::read()),
        resident_bytes: bytes(stats::resident::read()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allocated_is_seen() {
        let before = allocated().allocated_bytes;
        let block = vec![1u8; 64 << 20];
        let after = allocated().allocated_bytes;
        assert!(after >= before + (block.len() as u64) / 2);
    }
}

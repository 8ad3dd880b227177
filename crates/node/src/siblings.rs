//! Other cores of the same node, while nobody steps them.
//!
//! Half of what the clients of one core of two read is in groups of the other. To send each read there and its reply
//! back takes more than to look up the value. While another core rests, the thread that steps this core may borrow it,
//! and reads of its groups are answered as those of this core's own groups. What meets a hindrance (a locked key, a
//! group that is not alone, a change of the same client that is on its way) travels in an envelope, as writes do. See
//! decision 0074.

use group::ids::CoreId;

use crate::core::Core;

/// How the core that is stepped reaches the others.
pub trait Siblings {
    /// Calls `act`, which must leave nothing to be done, with another core of this node, unless somebody steps
    /// that core now or it must be left alone: then answers false. `is_quick` says that `act` takes no longer
    /// than a look at a few keys; otherwise the other core may be better off working beside this one. Every call
    /// may be refused.
    fn borrow(&mut self, core: CoreId, is_quick: bool, act: &mut dyn FnMut(&mut Core)) -> bool;
}

/// Of a core that reaches no other.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSiblings;

impl Siblings for NoSiblings {
    fn borrow(&mut self, _: CoreId, _: bool, _: &mut dyn FnMut(&mut Core)) -> bool {
        false
    }
}

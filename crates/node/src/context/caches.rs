//! Who has read what must be told of changes. See [`crate::caches`].

use keyspace::{Class, Classes};

use crate::context::Context;

impl Context {
    /// What the keyspaces of this core must note.
    pub(crate) fn noted(&self) -> Classes {
        let told = self.settings.notify.noted();
        if self.tracker.is_wanted() { told.with(Class::Changed).with(Class::Expired) } else { told }
    }
}

//! Where the keys of commands stand.

use command::{Access, Begin, Find, KeySpec};

/// The word at `index` is a key.
pub(super) const fn key_at(index: usize, access: Access, notes: &'static [&'static str]) -> KeySpec {
    KeySpec { access, begin: Begin::Index(index), find: Find::Range { last: 0, step: 1, limit: 0 }, notes }
}

/// The first word is a key that is read.
pub(super) const READ_KEY: &[KeySpec] = &[key_at(1, Access::Read, &["access"])];

/// The first word is a key that is read and changed.
pub(super) const CHANGED_KEY: &[KeySpec] = &[key_at(1, Access::ReadWrite, &["access", "update"])];

/// The word at `index` tells how many keys follow it.
pub(super) const fn counted_keys(index: usize, access: Access, notes: &'static [&'static str]) -> KeySpec {
    let find = Find::Counted { count: 0, first: 1, step: 1 };
    KeySpec { access, begin: Begin::Index(index), find, notes }
}

/// The words from `index` on are keys, up to `last`: counted from the end.
pub(super) const fn keys_from(index: usize, last: i32, access: Access, notes: &'static [&'static str]) -> KeySpec {
    let find = Find::Range { last, step: 1, limit: 0 };
    KeySpec { access, begin: Begin::Index(index), find, notes }
}

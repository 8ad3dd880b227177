//! Which versions of the protocol two nodes may speak, and which of them they do.
//!
//! Each level has its version. A node speaks those of the levels that its program knows, except those below what it has
//! in its logs: a node that knows nothing of that must not be given it. The node that dials begins with the latest
//! version, and falls back to the one in which the other end has refused that.

use std::fmt;
use std::ops::RangeInclusive;

use stdx::{Level, Levels};

/// The version of the protocol that nodes of a level speak. It grows with every change to the bytes of greetings and
/// frames. `docs/formats/peer-link.md` says what changed.
pub const fn version_of(level: Level) -> u16 {
    // Eight versions came before there were levels.
    level.0 as u16 + 8
}

/// The level that speaks this version.
fn level_of(version: u16) -> Level {
    Level(u8::try_from(version.saturating_sub(8)).unwrap_or(u8::MAX))
}

/// What a node brings to a greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Voice {
    /// The levels that its program knows.
    pub levels: Levels,
    /// The highest of anything in its logs.
    pub floor: Level,
}

impl Voice {
    /// One that knows nothing of levels.
    pub const FIRST: Self = Self { levels: Levels::FIRST, floor: Level::FIRST };

    /// One without a log.
    pub fn fresh(levels: Levels) -> Self {
        Self { levels, floor: levels.lowest }
    }

    /// The versions that it speaks.
    pub fn versions(self) -> RangeInclusive<u16> {
        version_of(self.levels.lowest.max(self.floor))..=version_of(self.levels.highest)
    }

    /// The latest version that it speaks.
    pub fn latest(self) -> u16 {
        version_of(self.levels.highest)
    }

    /// True if neither has anything in its logs that the other does not know.
    pub fn suits(self, other: Self) -> bool {
        self.levels.contains(other.floor) && other.levels.contains(self.floor)
    }
}

/// A version that is not spoken here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unspoken {
    /// It.
    pub version: u16,
    /// Who does not speak it.
    pub here: Voice,
}

impl fmt::Display for Unspoken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, here } = self;
        let (first, last) = (here.versions().start().to_owned(), here.latest());
        write!(out, "the other end speaks version {version} of the protocol, and this node ")?;
        if first == last { write!(out, "version {last}") } else { write!(out, "versions {first} to {last}") }?;
        if *version < first && here.floor > level_of(*version) {
            let floor = here.floor;
            return write!(out, ": the cluster is at level {floor}; start a version there that knows level {floor}");
        }
        if *version > last {
            return write!(out, ": this version of Holdfast knows {}", here.levels);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voice(lowest: u8, highest: u8, floor: u8) -> Voice {
        let levels = Levels { lowest: Level(lowest), highest: Level(highest) };
        Voice { levels, floor: Level(floor) }
    }

    #[test]
    fn what_is_in_the_logs_bounds_what_is_spoken() {
        assert_eq!(voice(1, 2, 1).versions(), 9..=10, "the version before this one spoke 9");
        assert_eq!(voice(1, 2, 2).versions(), 10..=10);
        assert_eq!(Voice::FIRST.versions(), 9..=9);
        let told = |version, here| Unspoken { version, here }.to_string();
        let too_old = told(9, voice(1, 2, 2));
        assert!(too_old.contains("version 9 ") && too_old.contains("the cluster is at level 2"), "{too_old}");
        let too_new = told(10, Voice::FIRST);
        assert!(too_new.ends_with("and this node version 9: this version of Holdfast knows level 1"), "{too_new}");
    }

    #[test]
    fn nodes_suit_each_other_if_each_knows_what_the_other_has() {
        assert!(voice(1, 2, 1).suits(Voice::FIRST) && Voice::FIRST.suits(voice(1, 2, 1)));
        assert!(!voice(1, 2, 2).suits(Voice::FIRST) && !Voice::FIRST.suits(voice(1, 2, 2)));
        assert!(voice(1, 2, 2).suits(voice(2, 3, 2)));
        assert!(!voice(1, 2, 1).suits(voice(2, 3, 3)));
    }
}

//! Levels: which formats and semantics are in force where versions of the program run side by side.
//!
//! A level is a number that a cluster agrees on. It rises only when every node runs a version that knows the next one,
//! and never falls. What is logged, sent or kept in another way than before belongs to the level that it came with. See
//! `docs/decisions/0046-levels.md`.

use std::fmt;

/// A level, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(pub u8);

impl Level {
    /// What clusters have that know nothing of levels.
    pub const FIRST: Self = Self(1);

    /// The highest number that the first byte of an entry has room for.
    pub const MAX: Self = Self(63);

    /// The level above.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Default for Level {
    fn default() -> Self {
        Self::FIRST
    }
}

impl fmt::Display for Level {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0)
    }
}

/// The levels that a version of the program knows: from one to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// The lowest.
    pub lowest: Level,
    /// The highest.
    pub highest: Level,
}

impl Levels {
    /// Those of this version.
    pub const KNOWN: Self = Self { lowest: Level(1), highest: Level(2) };

    /// Those of versions that know nothing of levels.
    pub const FIRST: Self = Self { lowest: Level::FIRST, highest: Level::FIRST };

    /// True if a cluster of this level can have such a node.
    pub fn contains(self, level: Level) -> bool {
        (self.lowest..=self.highest).contains(&level)
    }

    /// The same, but none above `highest`.
    #[must_use]
    pub fn up_to(self, highest: Level) -> Self {
        Self { highest: self.highest.min(highest), ..self }
    }
}

impl Default for Levels {
    fn default() -> Self {
        Self::KNOWN
    }
}

/// `level 1`, or `levels 1 to 2`.
impl fmt::Display for Levels {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lowest == self.highest {
            write!(out, "level {}", self.lowest)
        } else {
            write!(out, "levels {} to {}", self.lowest, self.highest)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_an_interval() {
        let levels = Levels { lowest: Level(2), highest: Level(3) };
        let contained: Vec<u8> = (0..6).filter(|level| levels.contains(Level(*level))).collect();
        assert_eq!(contained, [2, 3]);
        assert_eq!(levels.to_string(), "levels 2 to 3");
        assert_eq!(levels.up_to(Level(2)).to_string(), "level 2");
        assert_eq!(levels.up_to(Level(9)), levels);
        assert!(Levels::KNOWN.contains(Level::FIRST), "the version before this one knows no other");
        assert!(Levels::KNOWN.highest <= Level::MAX);
    }
}

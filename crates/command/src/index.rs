//! Finds a command by its name without looking at every record.

use crate::Command;

/// An index of a list of commands, built by the compiler. `SIZE` is at least twice the number of commands, so that
/// probes are short.
pub struct Index<const SIZE: usize> {
    /// Position in the list plus one, by hash of the name with linear probing.
    places: [u16; SIZE],
}

impl<const SIZE: usize> Index<SIZE> {
    /// Indexes a list. A name given twice does not build.
    pub const fn of<Body>(commands: &[&Command<Body>]) -> Self {
        assert!(commands.len() * 2 <= SIZE, "the index of names is more than half full");
        let mut places = [0; SIZE];
        let mut nth = 0;
        while nth < commands.len() {
            let name = commands[nth].name.as_bytes();
            let mut place = name_hash(name) % SIZE;
            while places[place] != 0 {
                let other = commands[places[place] as usize - 1].name.as_bytes();
                assert!(!other.eq_ignore_ascii_case(name), "a command is listed twice");
                place = (place + 1) % SIZE;
            }
            places[place] = nth as u16 + 1;
            nth += 1;
        }
        Self { places }
    }

    /// The command of this name, in whatever case, in the list that was indexed.
    #[inline]
    pub fn find<Body>(&self, commands: &[&'static Command<Body>], name: &[u8]) -> Option<&'static Command<Body>> {
        let mut place = name_hash(name) % SIZE;
        loop {
            let command = commands[usize::from(self.places[place]).checked_sub(1)?];
            if command.name.as_bytes().eq_ignore_ascii_case(name) {
                return Some(command);
            }
            place = (place + 1) % SIZE;
        }
    }
}

/// FNV-1a (Fowler, Noll, Vo) of the name in lower case, folded.
#[inline]
const fn name_hash(name: &[u8]) -> usize {
    let mut hash = 0x811C_9DC5u32;
    let mut at = 0;
    while at < name.len() {
        hash = (hash ^ name[at].to_ascii_lowercase() as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    (hash ^ (hash >> 15)) as usize
}

//! How far a far cluster is: what it stores together with the data.

use stdx::UnixMillis;

use crate::merge::{Batch, reaches};
use crate::wire::State;

/// A place in what the near cluster has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Of all groups: up to which index of its log it reaches.
    pub places: Vec<u64>,
    /// The moment of that state.
    pub moment: UnixMillis,
}

/// A batch of a cluster with fewer groups than were known: groups are founded, and never go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherGroups;

/// What a [`State`] says to a follower.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Nothing is lacking.
    pub is_level: bool,
    /// Where the follower is now.
    pub position: Position,
}

impl Position {
    /// Where it is when a batch has been carried out.
    ///
    /// # Errors
    /// If the batch is of a cluster with other groups.
    pub fn behind(&self, batch: &Batch) -> Result<Self, OtherGroups> {
        if batch.places.len() < self.places.len() {
            return Err(OtherGroups);
        }
        Ok(Self { places: batch.places.clone(), moment: batch.moment })
    }

    /// What it means that the near side is so far.
    pub fn hear(&self, state: &State) -> Heard {
        // A near node that is behind this cluster cannot tell what it lacks, and nothing is done a second time.
        let has_all_groups = !state.places.is_empty() && state.places.len() >= self.places.len();
        let is_level = has_all_groups && reaches(&state.places, &self.places);
        // Nothing was done meanwhile, and that is so up to there.
        let position = match is_level {
            true => Self { places: state.places.clone(), moment: state.moment.max(self.moment) },
            false => self.clone(),
        };
        Heard { is_level, position }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(places: &[u64], moment: i64) -> Position {
        Position { places: places.to_vec(), moment: UnixMillis(moment) }
    }

    #[test]
    fn a_follower_moves_on_only_where_nothing_is_lacking() {
        let position = at(&[5, 7], 100);
        let state =
            |places: &[u64], moment| State { places: places.to_vec(), moment: UnixMillis(moment), ..State::default() };
        let hear = |places: &[u64], moment| {
            let Heard { is_level, position } = position.hear(&state(places, moment));
            (is_level, position)
        };
        assert_eq!(hear(&[6, 7], 120), (true, at(&[6, 7], 120)));
        assert_eq!(hear(&[5, 7, 1], 120), (true, at(&[5, 7, 1], 120)));
        // Its clock may be behind that of the node before it.
        assert_eq!(hear(&[5, 7], 90), (true, at(&[5, 7], 100)));
        for (places, why) in [(&[][..], "something is under way"), (&[9, 6], "it is behind"), (&[9], "it is behind")] {
            assert_eq!(hear(places, 120), (false, position.clone()), "{why}");
        }
    }

    #[test]
    fn groups_never_go() {
        let batch = |places: &[u64]| Batch { places: places.to_vec(), moment: UnixMillis(8), ..Batch::default() };
        assert_eq!(at(&[5, 7], 1).behind(&batch(&[6, 7, 2])), Ok(at(&[6, 7, 2], 8)));
        assert_eq!(at(&[5, 7], 1).behind(&batch(&[9])), Err(OtherGroups));
    }
}

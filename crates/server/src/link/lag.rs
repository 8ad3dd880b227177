//! How old what the far Redis lacks is, by the clock of the near end alone.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Most marks; beyond that every second one goes.
const MARKS_MAX: usize = 20_000;

/// Between two marks, at first.
const MARK_INTERVAL: Duration = Duration::from_millis(50);

/// Where the stream was, and when.
#[derive(Default)]
pub struct Marks {
    marks: VecDeque<(Instant, u64)>,
    interval: Duration,
}

impl Marks {
    /// The stream has come so far.
    pub fn note(&mut self, end: u64) {
        if self.marks.is_empty() {
            self.interval = MARK_INTERVAL;
        }
        if self.marks.back().is_some_and(|(at, _)| at.elapsed() < self.interval) {
            return;
        }
        if self.marks.len() == MARKS_MAX {
            let mut number = 0;
            self.marks.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.interval *= 2;
        }
        self.marks.push_back((Instant::now(), end));
    }

    /// How long ago the first byte came that is not among so many.
    pub fn lag(&mut self, applied: u64) -> Duration {
        while self.marks.front().is_some_and(|(_, end)| *end <= applied) {
            self.marks.pop_front();
        }
        self.marks.front().map_or(Duration::ZERO, |(at, _)| at.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_carried_out_is_not_late() {
        let mut marks = Marks::default();
        marks.note(10);
        marks.interval = Duration::ZERO;
        std::thread::sleep(Duration::from_millis(2));
        marks.note(20);
        let (noted_first, _) = marks.marks[0];
        assert!(marks.lag(5) >= Duration::from_millis(2));
        // It goes by the next mark, however long this thread may have been stopped meanwhile.
        assert!(marks.lag(10) <= noted_first.elapsed() - Duration::from_millis(2));
        assert_eq!(marks.lag(20), Duration::ZERO);
    }

    #[test]
    fn marks_are_thinned_out_and_the_oldest_stays_about_as_old() {
        let mut marks = Marks::default();
        for end in 1..=3 * MARKS_MAX as u64 {
            marks.note(end);
            marks.interval = Duration::ZERO;
        }
        assert!(marks.marks.len() <= MARKS_MAX);
        assert!(marks.marks.front().is_some_and(|(_, end)| *end < 10));
    }
}

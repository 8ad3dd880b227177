//! Whether a core still turns. One that does not, whatever the reason, serves nobody, and its groups are led by others
//! as soon as those notice; an operator must be able to read why.

use crate::limits::{REPORT_INTERVAL, TURN_LONG};

/// How many reports a core may leave unread before that is told.
const REPORTS_MAX: u64 = (TURN_LONG.as_millis() / REPORT_INTERVAL.as_millis()) as u64;

/// What is known of one core. It counts reports and not time: a process that was stopped as a whole is not to blame.
#[derive(Debug, Default)]
pub struct Watchdog {
    collected_count: u64,
    /// Beats since it last took its mail.
    unread_count: u64,
}

impl Watchdog {
    /// A report is about to be sent, and by now the core has taken its mail so often. Something to tell, if that is
    /// news: after [`TURN_LONG`], then each time that it has lasted twice as long, and when it is over.
    pub fn beat(&mut self, core: usize, collected_count: u64) -> Option<String> {
        let seconds = REPORT_INTERVAL.as_secs_f64() * self.unread_count as f64;
        if self.collected_count != collected_count {
            let was_told = self.unread_count >= REPORTS_MAX;
            *self = Self { collected_count, unread_count: 1 };
            return was_told.then(|| format!("core {core} goes on, after {seconds:.0} s"));
        }
        let is_news = self.unread_count >= REPORTS_MAX && (self.unread_count / REPORTS_MAX).is_power_of_two();
        let is_news = is_news && self.unread_count.is_multiple_of(REPORTS_MAX);
        self.unread_count += 1;
        is_news.then(|| {
            format!("core {core} has been at one thing for {seconds:.0} s: its clients and its groups wait meanwhile")
        })
    }

    /// True if the core has taken the last report: another one is of use.
    pub fn wants_report(&self) -> bool {
        self.unread_count <= 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_takes_no_mail_is_told_of_and_so_is_its_return() {
        let mut watchdog = Watchdog::default();
        for turn in 1..100 {
            assert_eq!(watchdog.beat(1, turn), None);
            assert!(watchdog.wants_report());
        }
        let told: Vec<_> = (0..=4 * REPORTS_MAX).filter_map(|_| watchdog.beat(1, 99)).collect();
        let text = |seconds| {
            format!("core 1 has been at one thing for {seconds} s: its clients and its groups wait meanwhile")
        };
        assert_eq!(told, [text(5), text(10), text(20)]);
        assert!(!watchdog.wants_report());
        assert_eq!(watchdog.beat(1, 100), Some("core 1 goes on, after 20 s".to_owned()));
        assert!(watchdog.wants_report());
        assert_eq!(watchdog.beat(1, 101), None);
    }
}

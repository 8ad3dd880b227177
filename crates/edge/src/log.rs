//! The operator's log: one line an event, to standard output or to a file.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use group::ids::Level;
use stdx::UnixMillis;

use crate::clock::unix_millis;

/// How a line is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Moment, level and message, for people.
    #[default]
    Text,
    /// One object of JSON a line, with `time`, `level`, `pid` and `message`.
    Json,
}

impl Format {
    /// By the value of `log-format`.
    pub fn of(name: &str) -> Self {
        if name == "json" { Self::Json } else { Self::Text }
    }
}

/// Where lines for the operator go.
pub struct Log {
    file: Option<PathBuf>,
    format: Format,
    // Keeps lines whole when threads write at once.
    turn: Mutex<()>,
    is_quiet: AtomicBool,
}

impl Log {
    /// A log that goes to `file`, or to standard output.
    ///
    /// # Errors
    /// If the file cannot be opened for appending.
    pub fn open(file: Option<&Path>, format: Format) -> io::Result<Self> {
        if let Some(path) = file {
            append_to(path)?;
        }
        let file = file.map(Path::to_path_buf);
        Ok(Self { file, format, turn: Mutex::default(), is_quiet: AtomicBool::new(false) })
    }

    /// Whether only warnings are written (`loglevel warning`).
    pub fn set_quiet(&self, is_quiet: bool) {
        self.is_quiet.store(is_quiet, Ordering::Relaxed);
    }

    /// Writes a notice.
    pub fn notice(&self, line: &str) {
        self.write(Level::Notice, line);
    }

    /// Writes a warning.
    pub fn warning(&self, line: &str) {
        self.write(Level::Warning, line);
    }

    /// Writes a line. The file is opened again for each, as Redis does, so that it can be rotated at any time; a log
    /// that cannot be written never stops the server.
    pub fn write(&self, level: Level, line: &str) {
        if level < Level::Warning && self.is_quiet.load(Ordering::Relaxed) {
            return;
        }
        let whole = match self.format {
            Format::Text => render(unix_millis(), level, line),
            Format::Json => render_json(unix_millis(), level, line),
        };
        let _turn = self.turn.lock();
        let _ = match &self.file {
            Some(path) => append_to(path).and_then(|mut file| file.write_all(whole.as_bytes())),
            None => io::stdout().lock().write_all(whole.as_bytes()),
        };
    }
}

fn append_to(path: &Path) -> io::Result<std::fs::File> {
    OpenOptions::new().append(true).create(true).open(path)
}

fn render(moment: UnixMillis, level: Level, line: &str) -> String {
    let level = match level {
        Level::Notice => "notice ",
        Level::Warning => "warning",
    };
    format!("{} {level} {line}\n", utc(moment))
}

fn render_json(moment: UnixMillis, level: Level, line: &str) -> String {
    let level = match level {
        Level::Notice => "notice",
        Level::Warning => "warning",
    };
    // RFC 3339 wants a T between day and time.
    let time = utc(moment).replace(' ', "T");
    let mut message = String::new();
    for letter in line.chars() {
        match letter {
            '"' => message.push_str("\\\""),
            '\\' => message.push_str("\\\\"),
            '\n' => message.push_str("\\n"),
            control if control < ' ' => message.push_str(&format!("\\u{:04x}", u32::from(control))),
            other => message.push(other),
        }
    }
    format!("{{\"time\":\"{time}\",\"level\":\"{level}\",\"pid\":{},\"message\":\"{message}\"}}\n", std::process::id())
}

/// A moment as the calendar has it: `2026-11-21 03:15:09.042Z`.
pub fn utc(UnixMillis(millis): UnixMillis) -> String {
    let (day, in_day) = (millis.div_euclid(86_400_000), millis.rem_euclid(86_400_000));
    let (year, month, day) = civil(day);
    let (seconds, millis) = (in_day / 1000, in_day % 1000);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}.{millis:03}Z",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

/// Year, month and day in the Gregorian calendar of a day counted from 1970-01-01, after Howard Hinnant's
/// "chrono-compatible low-level date algorithms" (2013): years are counted from March, so that the leap day comes last.
fn civil(day: i64) -> (i64, i64, i64) {
    let day = day + 719_468;
    let era = day.div_euclid(146_097);
    let day_of_era = day.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_read_as_the_calendar_has_them() {
        let cases = [
            (0, "1970-01-01 00:00:00.000Z"),
            (951_782_399_999, "2000-02-28 23:59:59.999Z"),
            (951_782_400_000, "2000-02-29 00:00:00.000Z"),
            (951_868_800_000, "2000-03-01 00:00:00.000Z"),
            (4_107_542_400_000, "2100-03-01 00:00:00.000Z"),
            (-1, "1969-12-31 23:59:59.999Z"),
        ];
        for (millis, expected) in cases {
            assert_eq!(utc(UnixMillis(millis)), expected);
        }
    }

    #[test]
    fn a_line_of_json_is_one_object() {
        let line = render_json(UnixMillis(42), Level::Notice, "a \"file\" C:\\x\n\u{1}ü");
        let pid = std::process::id();
        let expected = format!(
            r#"{{"time":"1970-01-01T00:00:00.042Z","level":"notice","pid":{pid},"message":"a \"file\" C:\\x\n\u0001ü"}}"#
        );
        assert_eq!(line, expected + "\n");
    }

    #[test]
    fn a_line_has_its_time_and_level() {
        assert_eq!(render(UnixMillis(0), Level::Warning, "disk full"), "1970-01-01 00:00:00.000Z warning disk full\n");
    }
}

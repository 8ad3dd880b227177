//! `holdfast cluster invite`: a token that lets another node in.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use edge::{AUTHORITY_FILE, INVITATION_DEFAULT, INVITATION_MAX, Token};

use super::door::{Door, ask};

/// Print a token that lets one node into the cluster, for `holdfast serve --join HOST:PORT --token TOKEN`.
#[derive(Debug, Args)]
pub struct InviteArguments {
    #[command(flatten)]
    door: Door,
    /// How long it is valid, as in 90s, 30m, 1h or 2d; 30 days at most.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_time)]
    expires: Duration,
    /// Make it from the data directory of a node on this machine, whether that runs or not, instead of asking one.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["server", "host", "port", "user", "password"])]
    data_dir: Option<PathBuf>,
}

/// Asks a node, or makes it from a directory.
pub fn run(arguments: &InviteArguments) -> Result<()> {
    let token = match &arguments.data_dir {
        Some(directory) => from_directory(directory, arguments.expires)?.to_text(),
        None => ask_for(&arguments.door, arguments.expires)?,
    };
    say_line!("{token}");
    Ok(())
}

/// A token of the cluster behind a door.
pub fn ask_for(door: &Door, duration: Duration) -> Result<String> {
    let reply = ask(&mut door.open()?, &["HOLDFAST", "INVITE", &duration.as_secs().to_string()])?;
    let text = String::from_utf8_lossy(reply.as_bytes().unwrap_or_default()).into_owned();
    Token::parse(&text).map(|token| token.to_text()).map_err(|_| anyhow!("the answer is no token"))
}

/// A token that is good for the usual time, or `None` as long as there is no authority in the directory.
pub fn if_possible(directory: &Path) -> Result<Option<Token>> {
    if directory.join(AUTHORITY_FILE).exists() {
        from_directory(directory, INVITATION_DEFAULT).map(Some)
    } else {
        Ok(None)
    }
}

fn from_directory(directory: &Path, duration: Duration) -> Result<Token> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
    edge::invite_from_directory(directory, now.as_secs(), duration).map_err(|fault| anyhow!("{fault}"))
}

/// A number with a unit, in seconds without one.
fn parse_time(text: &str) -> Result<Duration, String> {
    let (number, unit_s) = match text.char_indices().last() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 60 * 60),
        Some((at, 'd')) => (&text[..at], 24 * 60 * 60),
        _ => (text, 1),
    };
    let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_s));
    let duration = seconds.map(Duration::from_secs).ok_or("a number with s, m, h or d is needed, as in 30m")?;
    if duration.is_zero() || duration > INVITATION_MAX {
        return Err("from one second to 30 days are possible".to_owned());
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let seconds = |text| parse_time(text).map(|duration| duration.as_secs());
        assert_eq!(seconds("90"), Ok(90));
        assert_eq!(seconds("90s"), Ok(90));
        assert_eq!(seconds("30m"), Ok(1_800));
        assert_eq!(seconds("1h"), Ok(3_600));
        assert_eq!(seconds("30d"), Ok(2_592_000));
        for wrong in ["", "h", "-1", "1w", "31d", "0", "1.5h", "99999999999999999999d"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}

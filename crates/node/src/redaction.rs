//! Words of commands that nobody may be shown.

use resp::Args;

use crate::known::Known;

/// True for a word that is a password.
pub(crate) fn is_secret(known: Known, args: Args<'_>, place: usize) -> bool {
    let word = |place: usize| args.get(place).unwrap_or_default();
    match known.name() {
        "auth" => place > 0,
        "hello" => {
            (place >= 1 && word(place - 1).eq_ignore_ascii_case(b"auth"))
                || (place >= 2 && word(place - 2).eq_ignore_ascii_case(b"auth"))
        }
        "migrate" => {
            let is_login =
                |before: usize, name: &[u8]| place >= 6 + before && word(place - before).eq_ignore_ascii_case(name);
            is_login(1, b"auth") || is_login(1, b"auth2") || is_login(2, b"auth2")
        }
        "setuser" => place > 1,
        "set" if word(0).eq_ignore_ascii_case(b"config") => {
            let name = word(place.saturating_sub(1)).to_ascii_lowercase();
            place > 2 && matches!(name.as_slice(), b"requirepass" | b"masterauth" | b"masteruser")
        }
        _ => false,
    }
}

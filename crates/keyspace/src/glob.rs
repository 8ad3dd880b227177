//! Glob patterns as Redis understands them (`stringmatchlen`), down to their corner cases.
//!
//! ```text
//! *       any number of bytes
//! ?       one byte
//! [ab]    one of these; [^ab] none of these; [a-c] one of a range, whichever end comes first
//! \x      the byte x itself, also inside brackets
//! ```
//!
//! Corner cases that patterns in the field may lean on: brackets need not be closed; `]` after a dash is the end of a
//! range; a backslash at the very end stands for itself; bytes from 0x80 on sort *before* the others in a range,
//! because they are negative there; and a pattern of nothing but stars does not match the empty string, so KEYS and
//! SCAN treat a lone star apart ([`Filter`]).

/// What MATCH and KEYS select.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter<'a> {
    /// Everything: the pattern was exactly `*`, or there was none.
    All,
    /// What fits the pattern.
    Pattern(&'a [u8]),
}

impl<'a> Filter<'a> {
    /// The filter that `pattern` asks for.
    pub fn new(pattern: &'a [u8]) -> Self {
        if pattern == b"*" { Self::All } else { Self::Pattern(pattern) }
    }

    /// True if `text` is selected.
    pub fn selects(self, text: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Pattern(pattern) => matches(pattern, text),
        }
    }
}

/// True if the whole of `text` fits `pattern`.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    search(pattern, text, |byte| byte)
}

/// The same without regard to the case of ASCII letters, as names of parameters and commands are matched.
pub fn matches_ignoring_case(pattern: &[u8], text: &[u8]) -> bool {
    search(pattern, text, |byte| byte.to_ascii_lowercase())
}

/// Walks pattern and text together. When they part ways, the latest star takes one byte more and the walk resumes
/// behind it; earlier stars are never revisited, because whatever a longer match for them would leave over, the latest
/// star has tried already. That keeps the cost at pattern times text and needs no recursion, so that no pattern
/// exhausts the stack.
fn search(pattern: &[u8], text: &[u8], fold: impl Fn(u8) -> u8 + Copy) -> bool {
    let (mut at, mut seen) = (0, 0);
    let mut latest_star = None;
    loop {
        while at < pattern.len() && seen < text.len() {
            if pattern[at] == b'*' {
                at += stars(&pattern[at..]);
                if at == pattern.len() {
                    return true;
                }
                latest_star = Some((at, seen));
                continue;
            }
            let Some(length) = match_one(&pattern[at..], text[seen], fold) else { break };
            at += length;
            seen += 1;
            if seen == text.len() {
                at += stars(&pattern[at..]);
            }
        }
        if at == pattern.len() && seen == text.len() {
            return true;
        }
        match latest_star {
            Some((behind_star, taken)) if taken + 1 < text.len() => {
                (at, seen) = (behind_star, taken + 1);
                latest_star = Some((at, seen));
            }
            _ => return false,
        }
    }
}

fn stars(pattern: &[u8]) -> usize {
    pattern.iter().take_while(|&&byte| byte == b'*').count()
}

/// If the first item of `pattern`, which is no star, fits `byte`: how long that item is.
fn match_one(pattern: &[u8], byte: u8, fold: impl Fn(u8) -> u8 + Copy) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => match_class(class, byte, fold).map(|length| length + 1),
        [b'\\', escaped, ..] => (fold(*escaped) == fold(byte)).then_some(2),
        [literal, ..] => (fold(*literal) == fold(byte)).then_some(1),
        [] => None,
    }
}

/// `class` starts behind the opening bracket; the length includes the closing one, if there is one.
fn match_class(class: &[u8], byte: u8, fold: impl Fn(u8) -> u8 + Copy) -> Option<usize> {
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut found = false;
    loop {
        match &class[at..] {
            // Escaped bytes keep their case, whatever `fold` says: so they do in Redis.
            [b'\\', escaped, ..] => {
                found |= *escaped == byte;
                at += 2;
            }
            [b']', ..] => {
                at += 1;
                break;
            }
            [] => break,
            [start, b'-', end, ..] => {
                // The ends are put in order before they are folded, and compared as signed.
                let signed = |byte: u8| byte as i8;
                let (low, high) = if signed(*start) <= signed(*end) { (*start, *end) } else { (*end, *start) };
                found |= (signed(fold(low))..=signed(fold(high))).contains(&signed(fold(byte)));
                at += 3;
            }
            [literal, ..] => {
                found |= fold(*literal) == fold(byte);
                at += 1;
            }
        }
    }
    (found != negated).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        // (pattern, text, matches, ignoring case)
        for (pattern, text, exact, folded) in [
            ("", "", true, true),
            ("", "a", false, false),
            ("a", "", false, false),
            ("*", "", false, false),
            ("**", "", false, false),
            ("*", "a", true, true),
            ("***", "abc", true, true),
            ("foo*", "foo", true, true),
            ("foo**", "foo", true, true),
            ("foo*", "FOObar", false, true),
            ("*a", "a", true, true),
            ("*a", "ba", true, true),
            ("*a*", "bab", true, true),
            ("*a*b*c", "a-b-b-c-c", true, true),
            ("*a*b*c", "a-b-b-c-d", false, false),
            ("*ab*ab", "abab", true, true),
            ("*ab*ab", "aab", false, false),
            ("h?llo", "hello", true, true),
            ("h?llo", "hllo", false, false),
            ("?", "", false, false),
            ("h[ae]llo", "hallo", true, true),
            ("h[ae]llo", "hillo", false, false),
            ("h[^e]llo", "hello", false, false),
            ("h[^e]llo", "hbllo", true, true),
            ("h[a-c]llo", "hbllo", true, true),
            ("h[c-a]llo", "hbllo", true, true),
            ("h[a-c]llo", "hBllo", false, true),
            ("[A-z]", "_", true, false), // ignoring case the range runs from a to z
            ("[a-]", "b", false, false), // a range that ends at ]; ] sorts before a
            ("[a-]", "_", true, true),
            ("[a-]x", "_x", false, false),
            ("[]", "a", false, false),
            ("[^]", "a", true, true),
            ("[a", "a", true, true),
            ("[ab", "b", true, true),
            ("x[", "xa", false, false),
            ("x[^", "xa", true, true),
            ("[a\\]b]", "]", true, true),
            ("[\\A]", "a", false, false),
            ("[\\", "\\", true, true),
            ("\\*", "*", true, true),
            ("\\*", "a", false, false),
            ("\\", "\\", true, true),
            ("a\\", "a\\", true, true),
            ("\\a", "A", false, true),
            ("a*", "a", true, true),
            ("a?*", "a", false, false),
            ("*?", "a", true, true),
            ("foo[bar", "foob", true, true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), exact, "{pattern:?} on {text:?}");
            let ignoring_case = matches_ignoring_case(pattern.as_bytes(), text.as_bytes());
            assert_eq!(ignoring_case, folded, "{pattern:?} on {text:?} ignoring case");
        }
    }

    #[test]
    fn bytes_beyond_ascii_are_negative_in_ranges() {
        assert!(matches(b"[\x80-\xff]", b"\x90"));
        assert!(matches(b"[a-\xff]", b"Z"), "from -1 to 97");
        assert!(!matches(b"[a-\xff]", b"b"));
        assert!(matches("?\u{e9}*".as_bytes(), "-école".as_bytes()));
    }

    #[test]
    fn a_lone_star_selects_even_the_empty_key() {
        assert!(Filter::new(b"*").selects(b""));
        assert!(!Filter::new(b"**").selects(b""));
    }

    #[test]
    fn patterns_made_to_explode_do_not() {
        // tests/unit/keyspace.tcl: "Regression for pattern matching with very long nested loops".
        let text = b"a".repeat(50_000);
        let pattern = [b"*?".repeat(50_000), b"b".to_vec()].concat();
        assert!(!matches(&pattern, &text));
        let pattern = [b"a*".repeat(50_000), b"b".to_vec()].concat();
        assert!(!matches(&pattern, &text));
    }
}

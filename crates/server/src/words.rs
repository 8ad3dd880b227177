//! Words of a configuration line, cut as Redis cuts them.

/// Cuts a line into words. In double quotes `\n`, `\r`, `\t`, `\b`, `\a`, `\xHH` and `\` before any other character are
/// escapes; in single quotes only `\'` is. `None` if quotes do not balance, or if something follows a closing quote
/// directly.
pub fn split_words(line: &str) -> Option<Vec<String>> {
    let words = split_bytes(line.as_bytes())?;
    Some(words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect())
}

/// The same for words that need not be text.
pub fn split_bytes(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut rest = line.trim_ascii_start();
    while !rest.is_empty() {
        let mut word = Vec::new();
        rest = take_word(rest, &mut word)?;
        words.push(word);
        rest = rest.trim_ascii_start();
    }
    Some(words)
}

fn take_word<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        match *rest {
            [] => return Some(rest),
            [byte, ..] if byte.is_ascii_whitespace() => return Some(rest),
            [quote @ (b'"' | b'\''), ref quoted @ ..] => {
                let behind =
                    if quote == b'"' { take_double_quoted(quoted, word)? } else { take_single_quoted(quoted, word)? };
                let ends_here = behind.first().is_none_or(u8::is_ascii_whitespace);
                return ends_here.then_some(behind);
            }
            [byte, ref behind @ ..] => {
                word.push(byte);
                rest = behind;
            }
        }
    }
}

fn take_double_quoted<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        match *rest {
            [] => return None,
            [b'"', ref behind @ ..] => return Some(behind),
            [b'\\', b'x', high, low, ref behind @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                word.push(digit(high)? * 16 + digit(low)?);
                rest = behind;
            }
            [b'\\', escaped, ref behind @ ..] => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => other,
                });
                rest = behind;
            }
            [byte, ref behind @ ..] => {
                word.push(byte);
                rest = behind;
            }
        }
    }
}

fn take_single_quoted<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        match *rest {
            [] => return None,
            [b'\'', ref behind @ ..] => return Some(behind),
            [b'\\', b'\'', ref behind @ ..] => {
                word.push(b'\'');
                rest = behind;
            }
            [byte, ref behind @ ..] => {
                word.push(byte);
                rest = behind;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_as_redis_cuts_them() {
        let cases: [(&str, Option<&[&str]>); 10] = [
            ("", Some(&[])),
            ("port 6379", Some(&["port", "6379"])),
            ("  save \t 900   1 ", Some(&["save", "900", "1"])),
            (r#"save """#, Some(&["save", ""])),
            (r#"requirepass "a b\x41\n""#, Some(&["requirepass", "a bA\n"])),
            (r"requirepass 'it\'s \n'", Some(&["requirepass", r"it's \n"])),
            (r#"logfile a"b""#, Some(&["logfile", "ab"])),
            (r#"a "b"#, None),
            ("a 'b", None),
            (r#"a "b"c"#, None),
        ];
        for (line, expected) in cases {
            let expected = expected.map(|words| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
            assert_eq!(split_words(line), expected, "{line}");
        }
    }
}

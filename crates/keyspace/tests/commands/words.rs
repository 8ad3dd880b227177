//! Command lines as people write them.

/// The words of a line: separated by blanks; `"…"` quotes a word, with `\n`, `\r`, `\t`, `\"`, `\\` and `\xHH` in it.
pub fn split(line: &str) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let (word, behind) = match rest.strip_prefix('"') {
            Some(quoted) => unquote(quoted),
            None => {
                let (word, behind) = rest.split_at(rest.find(' ').unwrap_or(rest.len()));
                (word.as_bytes().to_vec(), behind)
            }
        };
        words.push(word);
        rest = behind.trim_start();
    }
    words
}

/// Reads up to the closing quote: the word, and what stands behind it.
fn unquote(text: &str) -> (Vec<u8>, &str) {
    let mut word = Vec::new();
    let mut rest = text;
    loop {
        let mut characters = rest.chars();
        let character = characters.next().unwrap_or_else(|| panic!("a quote is not closed: {text}"));
        rest = characters.as_str();
        match character {
            '"' => return (word, rest),
            '\\' => {
                let (byte, length) = escape(rest);
                word.push(byte);
                rest = &rest[length..];
            }
            other => word.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// The byte that an escape stands for, and the length of what follows its backslash.
fn escape(text: &str) -> (u8, usize) {
    match text.as_bytes() {
        [b'x', ..] => (u8::from_str_radix(&text[1..3], 16).expect("two hexadecimal digits"), 3),
        [b'n', ..] => (b'\n', 1),
        [b'r', ..] => (b'\r', 1),
        [b't', ..] => (b'\t', 1),
        [other, ..] => (*other, 1),
        [] => panic!("a line ends behind a backslash"),
    }
}

/// The words as a line that [`split`] reads back.
pub fn join<W: AsRef<[u8]>>(words: &[W]) -> String {
    let quote = |word: &W| {
        let word = word.as_ref();
        let plain = !word.is_empty() && word.iter().all(|byte| byte.is_ascii_graphic() && !b"\"\\".contains(byte));
        if plain { String::from_utf8_lossy(word).into_owned() } else { format!("\"{}\"", word.escape_ascii()) }
    };
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

#[test]
fn words_survive_being_written_as_a_line() {
    for words in [vec!["SET", "a b", "", "\"q\"\\\n\0"], vec!["GET", "it's"]] {
        let bytes: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        assert_eq!(split(&join(&words)), bytes);
    }
    assert_eq!(split(r#"  a "b\x41\t"  c"#), [b"a".to_vec(), b"bA\t".to_vec(), b"c".to_vec()]);
}

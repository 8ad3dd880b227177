//! The manifest of an AOF in several files: `file NAME seq N type b|h|i`, a line for each.

/// A file that the manifest names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name, in the directory of the manifest.
    pub name: String,
    /// Its number.
    pub sequence: u64,
    /// It is the base, an RDB file or an AOF of its own; otherwise it continues what comes before.
    pub is_base: bool,
}

/// The files in the order in which they count. Those of the past are left out.
///
/// # Errors
/// What is wrong with the manifest.
pub fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let mut entries: Vec<Entry> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let wrong = |why: &str| format!("line {}: {why}", number + 1);
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let words = words(line).ok_or_else(|| wrong("quotes do not balance"))?;
        if !words.len().is_multiple_of(2) {
            return Err(wrong("a name without a value"));
        }
        let value = |name: &str| words.chunks(2).find(|pair| pair[0].eq_ignore_ascii_case(name)).map(|pair| &*pair[1]);
        let (Some(name), Some(sequence), Some(kind)) = (value("file"), value("seq"), value("type")) else {
            return Err(wrong("file, seq and type are needed"));
        };
        let sequence = sequence.parse().map_err(|_| wrong("seq is no number"))?;
        if name.is_empty() || name.contains('/') {
            return Err(wrong("a file must lie in the directory of the manifest"));
        }
        let is_base = match kind {
            "b" => true,
            "i" => false,
            "h" => continue,
            _ => return Err(wrong("the type is none of b, h and i")),
        };
        let last = entries.iter().rfind(|entry| !entry.is_base).map_or(0, |entry| entry.sequence);
        if is_base && entries.iter().any(|entry| entry.is_base) {
            return Err(wrong("there is a second base"));
        }
        if !is_base && sequence <= last {
            return Err(wrong("the files are out of order"));
        }
        entries.push(Entry { name: name.to_owned(), sequence, is_base });
    }
    entries.sort_by_key(|entry| (!entry.is_base, entry.sequence));
    if entries.is_empty() { Err("it names no file".to_owned()) } else { Ok(entries) }
}

/// Words, of which those in double quotes may hold spaces, and characters behind a backslash.
fn words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            ' ' | '\t' => {}
            '"' => {
                let mut word = String::new();
                loop {
                    match letters.next()? {
                        '"' => break,
                        '\\' => word.push(letters.next()?),
                        other => word.push(other),
                    }
                }
                words.push(word);
            }
            first => {
                let mut word = String::from(first);
                while let Some(letter) = letters.next_if(|letter| !letter.is_whitespace()) {
                    word.push(letter);
                }
                words.push(word);
            }
        }
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_in_the_order_in_which_they_count() {
        let text = "file a.aof.1.incr.aof seq 1 type i\nfile old seq 1 type h\n\
                    file \"a b\\\".aof\" seq 2 type i\nfile a.aof.1.base.rdb seq 1 type b\n";
        let names: Vec<_> = parse(text).expect("a manifest").into_iter().map(|entry| entry.name).collect();
        assert_eq!(names, ["a.aof.1.base.rdb", "a.aof.1.incr.aof", "a b\".aof"]);
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        for (text, expected) in [
            ("", "it names no file"),
            ("file a seq 1", "line 1: file, seq and type are needed"),
            ("file a seq x type b", "line 1: seq is no number"),
            ("file ../a seq 1 type b", "line 1: a file must lie in the directory of the manifest"),
            ("file a seq 1 type b\nfile b seq 2 type b", "line 2: there is a second base"),
            ("file a seq 2 type i\nfile b seq 1 type i", "line 2: the files are out of order"),
            ("file \"a seq 1 type b", "line 1: quotes do not balance"),
        ] {
            assert_eq!(parse(text).expect_err(text), expected);
        }
    }
}

//! Values that tell where they belong, and whether they are whole.

use stdx::Prng;

/// The value that `key` is given by the write `number`: names both, so that a value in the wrong place is seen, and
/// has bytes up to its end that follow from the number, so that a damaged one is. As long as asked for, but never too
/// short for its names.
pub fn value_of(key: &str, number: u64, bytes: usize) -> Vec<u8> {
    let mut value = format!("{key}={number};").into_bytes();
    let mut prng = Prng::new(number);
    while value.len() < bytes {
        let room = (bytes - value.len()).min(8);
        value.extend_from_slice(&prng.draw().to_le_bytes()[..room]);
    }
    value
}

/// The number of the write that gave `key` this value; none if no write did.
pub fn number_of(key: &str, value: &[u8], bytes: usize) -> Option<u64> {
    let rest = value.strip_prefix(key.as_bytes())?.strip_prefix(b"=")?;
    let end = rest.iter().position(|&byte| byte == b';')?;
    let number = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
    (value_of(key, number, bytes) == value).then_some(number)
}

/// A value as it is shown: its beginning.
pub fn shown(value: &[u8]) -> String {
    let beginning = &value[..value.len().min(48)];
    format!("\"{}\"{}", beginning.escape_ascii(), if value.len() > beginning.len() { "…" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_known_again_only_as_it_was_and_where_it_belongs() {
        for bytes in [0, 20, 128, 1_001] {
            let value = value_of("e:1:2", 77, bytes);
            assert_eq!(value.len(), bytes.max("e:1:2=77;".len()));
            assert_eq!(number_of("e:1:2", &value, bytes), Some(77));
            assert_eq!(number_of("e:1:3", &value, bytes), None);
            for at in 0..value.len() {
                let mut damaged = value.clone();
                damaged[at] ^= 1;
                assert_ne!(number_of("e:1:2", &damaged, bytes), Some(77), "byte {at}");
            }
            assert_eq!(number_of("e:1:2", &value[..value.len() - 1], bytes), None);
        }
    }
}

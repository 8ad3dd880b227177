//! What a syntax in the reference's notation says, as a tree of arguments: the form in which clients that are generated
//! from `COMMAND DOCS` read it.
//!
//! ```text
//! words in capitals and signs   tokens, typed as they stand
//! other words                   placeholders
//! [ ]                           may be left out
//! < | >                         one of several; the bars may also stand in square brackets
//! x [x ...]                     one or more
//! ```

/// One argument of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Argument {
    /// What the reference calls it.
    pub name: String,
    /// The token in front of it, or that it consists of.
    pub token: Option<String>,
    /// What it is made of.
    pub kind: ArgumentKind,
    /// It may be left out.
    pub is_optional: bool,
    /// It may be repeated.
    pub is_multiple: bool,
    /// Its token is repeated with it.
    pub repeats_token: bool,
}

/// What an argument is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ArgumentKind {
    /// The token alone.
    #[default]
    Token,
    /// A value. Its type follows from its name.
    Value,
    /// One of these.
    OneOf(Vec<Argument>),
    /// All of these, in order.
    Block(Vec<Argument>),
}

impl Argument {
    /// The type of a value, as the reference names types. Keys are told apart by their names alone.
    pub fn value_type(&self) -> &'static str {
        match self.name.as_str() {
            "key" | "newkey" | "source" | "destination" | "destkey" | "key1" | "key2" => "key",
            "pattern" => "pattern",
            "unix-time-seconds" | "unix-time-milliseconds" => "unix-time",
            "score" | "longitude" | "latitude" | "radius" | "width" | "height" | "weight" => "double",
            "count" | "numkeys" | "seconds" | "milliseconds" | "offset" | "index" | "cursor" | "timeout" | "db"
            | "decrement" | "len" | "rank" | "num-matches" | "maxlen" | "numreplicas" | "numlocal"
            | "destination-db" | "index1" | "index2" | "limit" | "slot" | "client-id" | "protover"
            | "min-idle-time" | "ms" | "frequency" | "entries-added" | "entries-read" | "bit" | "ttl" | "numids"
            | "exactly" | "start-slot" | "end-slot" => "integer",
            _ => "string",
        }
    }
}

/// One piece of a syntax.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Word(String),
    Group { alternatives: Vec<Vec<Piece>>, is_optional: bool, is_repeated: bool },
}

/// The arguments that a syntax describes.
pub fn arguments(syntax: &str) -> Vec<Argument> {
    let spaced =
        ["[", "]", "<", ">", "|"].iter().fold(syntax.to_owned(), |text, mark| text.replace(mark, &format!(" {mark} ")));
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let (mut alternatives, _, _) = read(&mut words.as_slice());
    sequence(&alternatives.remove(0))
}

/// Reads up to the end of a group: its alternatives, and whether it is repeated.
fn read(words: &mut &[&str]) -> (Vec<Vec<Piece>>, bool, &'static str) {
    let mut alternatives = vec![Vec::new()];
    let mut is_repeated = false;
    while let Some((word, rest)) = words.split_first() {
        *words = rest;
        let current = alternatives.last_mut().expect("there is always one");
        match *word {
            "|" => alternatives.push(Vec::new()),
            "]" => return (alternatives, is_repeated, "]"),
            ">" => return (alternatives, is_repeated, ">"),
            "..." => is_repeated = true,
            "[" | "<" => {
                let (inner, is_repeated, _) = read(words);
                current.push(Piece::Group { alternatives: inner, is_optional: *word == "[", is_repeated });
            }
            word => current.push(Piece::Word(word.to_owned())),
        }
    }
    (alternatives, is_repeated, "")
}

fn is_token(word: &str) -> bool {
    !word.bytes().any(|byte| byte.is_ascii_lowercase())
}

/// The arguments of pieces that follow one another.
fn sequence(pieces: &[Piece]) -> Vec<Argument> {
    let mut arguments: Vec<Argument> = Vec::new();
    // How many pieces each argument is made of.
    let mut lengths: Vec<usize> = Vec::new();
    let mut at = 0;
    while let Some(piece) = pieces.get(at) {
        match piece {
            Piece::Group { alternatives, is_optional: true, is_repeated: true }
                if alternatives.len() == 1 && pieces[..at].ends_with(&alternatives[0]) =>
            {
                // What was there before may come again.
                let (mut pieces, mut first) = (alternatives[0].len(), arguments.len());
                while pieces > 0 && first > 0 {
                    first -= 1;
                    pieces = pieces.saturating_sub(lengths[first]);
                }
                let mut repeated: Vec<_> = arguments.drain(first..).collect();
                lengths.truncate(first);
                let argument = match repeated.len() {
                    1 => repeated.remove(0),
                    _ => block(None, repeated),
                };
                let repeats_token = argument.token.is_some();
                arguments.push(Argument { is_multiple: true, repeats_token, ..argument });
                lengths.push(2 * alternatives[0].len());
                at += 1;
                continue;
            }
            Piece::Group { alternatives, is_optional, is_repeated } => {
                let argument = one_of(alternatives);
                arguments.push(Argument {
                    is_optional: argument.is_optional || *is_optional,
                    is_multiple: argument.is_multiple || *is_repeated,
                    ..argument
                });
                lengths.push(1);
            }
            Piece::Word(word) if is_token(word) => {
                // A token goes with the value behind it.
                let name = word.to_ascii_lowercase();
                let token = Some(word.clone());
                if let Some(Piece::Word(value)) = pieces.get(at + 1).filter(|next| is_value(next)) {
                    let name = value.clone();
                    arguments.push(Argument { name, token, kind: ArgumentKind::Value, ..Argument::default() });
                    lengths.push(2);
                    at += 1;
                } else {
                    arguments.push(Argument { name, token, ..Argument::default() });
                    lengths.push(1);
                }
            }
            Piece::Word(word) => {
                arguments.push(Argument { name: word.clone(), kind: ArgumentKind::Value, ..Argument::default() });
                lengths.push(1);
            }
        }
        at += 1;
    }
    arguments
}

fn is_value(piece: &Piece) -> bool {
    matches!(piece, Piece::Word(word) if !is_token(word))
}

/// One of several sequences; of one that begins with a token and goes on with more than one argument, the token is that
/// of the whole.
fn one_of(alternatives: &[Vec<Piece>]) -> Argument {
    let mut choices: Vec<Argument> = alternatives
        .iter()
        .map(|pieces| {
            let is_led = matches!(&pieces[..], [Piece::Word(word), rest @ ..] if is_token(word) && rest.len() > 1);
            let mut arguments = sequence(pieces);
            match &pieces[..] {
                _ if arguments.len() == 1 => arguments.remove(0),
                [Piece::Word(token), rest @ ..] if is_led => block(Some(token.clone()), sequence(rest)),
                _ => block(None, arguments),
            }
        })
        .collect();
    if choices.len() == 1 {
        return choices.remove(0);
    }
    let names: Vec<_> = choices.iter().map(|choice| choice.name.as_str()).collect();
    Argument { name: names.join("_"), kind: ArgumentKind::OneOf(choices), ..Argument::default() }
}

fn block(token: Option<String>, arguments: Vec<Argument>) -> Argument {
    let names: Vec<_> = arguments.iter().map(|argument| argument.name.as_str()).collect();
    let name = token.as_ref().map_or_else(|| names.join("_"), |token| token.to_ascii_lowercase());
    Argument { name, token, kind: ArgumentKind::Block(arguments), ..Argument::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree on one line: `name`, `TOKEN`, `TOKEN name`, `(a b)`, `{a|b}`; `?` may be left out, `+` may be repeated.
    fn text(argument: &Argument) -> String {
        let all = |arguments: &[Argument], between: &str| arguments.iter().map(text).collect::<Vec<_>>().join(between);
        let what = match &argument.kind {
            ArgumentKind::Token => String::new(),
            ArgumentKind::Value => argument.name.clone(),
            ArgumentKind::OneOf(choices) => format!("{{{}}}", all(choices, "|")),
            ArgumentKind::Block(parts) => format!("({})", all(parts, " ")),
        };
        let token = argument.token.clone().unwrap_or_default();
        let between = if token.is_empty() || what.is_empty() { "" } else { " " };
        let marks = [(argument.is_optional, "?"), (argument.is_multiple, "+"), (argument.repeats_token, "+")];
        let marks: String = marks.iter().filter(|(is_so, _)| *is_so).map(|(_, mark)| *mark).collect();
        format!("{token}{between}{what}{marks}")
    }

    #[test]
    fn a_syntax_becomes_a_tree_of_arguments() {
        for (syntax, expected) in [
            ("", ""),
            ("key", "key"),
            ("key [key ...]", "key+"),
            ("key field value [field value ...]", "key (field value)+"),
            ("[message]", "message?"),
            (
                "key value [NX | XX] [GET] [EX seconds | PX milliseconds | KEEPTTL]",
                "key value {NX|XX}? GET? {EX seconds|PX milliseconds|KEEPTTL}?",
            ),
            (
                "key [BY pattern] [LIMIT offset count] [GET pattern [GET pattern ...]]",
                "key BY pattern? LIMIT (offset count)? GET pattern?++",
            ),
            ("numkeys key [key ...] <MIN | MAX> [COUNT count]", "numkeys key+ {MIN|MAX} COUNT count?"),
            ("script numkeys [key [key ...]] [arg [arg ...]]", "script numkeys key?+ arg?+"),
            (
                "key [<MAXLEN | MINID> <[=] threshold | ~ threshold [LIMIT count]>] <* | id>",
                "key ({MAXLEN|MINID} {(=? threshold)|~ (threshold LIMIT count?)})? {*|id}",
            ),
        ] {
            let found = arguments(syntax).iter().map(text).collect::<Vec<_>>().join(" ");
            assert_eq!(found, expected, "{syntax}");
        }
    }
}

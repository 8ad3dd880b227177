//! Documents and their parts as text, and as replies of the protocol.

use command::{Access, Flag, Refusal, Span};
use resp::{Args, Writer};

use super::{READING, is_resp3, no_path, path_in, write_double};
use crate::View;
use crate::commands::arguments::is;
use crate::commands::key_specs::{key_at, keys_from};
use crate::commands::{Body, DataCommand};
use crate::json::path::Path;
use crate::json::print::Style;
use crate::json::{Json, Text, parse::utf8};

pub(super) const GET: DataCommand = DataCommand {
    name: "json.get",
    summary: "Returns the values at paths, as text.",
    complexity: "O(N) where N is the number of values that the paths look at, and the length of the answer.",
    syntax: "key [INDENT indent] [NEWLINE newline] [SPACE space] [FORMAT <STRING | EXPAND1 | EXPAND>] \
             [path [path ...]]",
    body: Body::Query(get),
    ..READING
};

pub(super) const MGET: DataCommand = DataCommand {
    name: "json.mget",
    summary: "Returns values of several documents, as text.",
    complexity: "O(N) where N is the number of values that the path looks at, and the length of the answers.",
    syntax: "key [key ...] path",
    arity: -3,
    keys: &[keys_from(1, -2, Access::Read, &["access"])],
    body: Body::Query(mget),
    ..READING
};

pub(super) const TYPE: DataCommand =
    DataCommand { name: "json.type", summary: "Returns types of values.", body: Body::Query(type_of), ..READING };

pub(super) const RESP: DataCommand = DataCommand {
    name: "json.resp",
    summary: "Returns values as replies of the protocol.",
    body: Body::Query(resp),
    ..READING
};

pub(super) const DEBUG: DataCommand = DataCommand {
    name: "json.debug",
    summary: "Shows the memory of documents.",
    complexity: "Depends on subcommand.",
    syntax: "",
    flags: &[],
    keys: &[],
    span: Span::Nothing,
    subcommands: &[DEBUG_HELP, DEBUG_MEMORY],
    ..READING
};

const DEBUG_MEMORY: DataCommand = DataCommand {
    name: "memory",
    summary: "Returns how many bytes values take.",
    syntax: "key [path]",
    arity: -3,
    keys: &[key_at(2, Access::Read, &[])],
    body: Body::Query(memory),
    ..READING
};

const DEBUG_HELP: DataCommand = DataCommand {
    name: "help",
    summary: "Shows what JSON.DEBUG can do.",
    complexity: "O(1)",
    syntax: "",
    arity: 2,
    flags: &[Flag::Loading, Flag::Stale],
    keys: &[],
    span: Span::Nothing,
    body: Body::Query(help),
    ..READING
};

/// How much of a value is said in replies of the protocol, and how much as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expansion {
    /// All of it as text.
    Text,
    /// Arrays and objects as text.
    Scalars,
    /// Nothing.
    All,
}

impl Expansion {
    /// What a word behind FORMAT means that does not mean text.
    pub(super) fn named(word: &[u8]) -> Result<Self, Refusal> {
        if is(word, "expand1") {
            Ok(Self::Scalars)
        } else if is(word, "expand") {
            Ok(Self::All)
        } else {
            Err(Refusal::new("ERR wrong reply format"))
        }
    }

    pub(super) fn write(self, value: &Json, writer: &mut Writer) -> Result<(), Refusal> {
        match value {
            _ if self == Self::Text => writer.bulk(&value.print(Style::default())?),
            Json::Null => writer.null(),
            Json::Bool(truth) => writer.boolean(*truth),
            Json::Integer(number) => writer.integer(*number),
            Json::Unsigned(number) => write_double(writer, *number as f64),
            Json::Double(number) => write_double(writer, *number),
            Json::Array(_) | Json::Object(_) | Json::String(_) if self == Self::Scalars => {
                writer.bulk(&value.print(Style::default())?);
            }
            Json::String(text) => writer.bulk(text.as_bytes()),
            Json::Array(_) => {
                let items = value.as_array().unwrap_or_default();
                writer.array(items.len());
                items.iter().try_for_each(|item| self.write(item, writer))?;
            }
            Json::Object(object) => {
                writer.map(object.len());
                for (name, value) in object.iter() {
                    writer.bulk(name.as_bytes());
                    self.write(value, writer)?;
                }
            }
        }
        Ok(())
    }
}

fn get(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let mut style = Style::default();
    let mut expansion = Expansion::Text;
    let mut paths: Vec<(&[u8], Path)> = Vec::new();
    let mut next = 2;
    while let Some(word) = args.get(next) {
        let value = || args.get(next + 1).ok_or_else(|| Refusal::wrong_arity("json.get"));
        let is_option = if is(word, "indent") {
            style.indent = utf8(value()?)?.as_bytes();
            true
        } else if is(word, "newline") {
            style.newline = utf8(value()?)?.as_bytes();
            true
        } else if is(word, "space") {
            style.space = utf8(value()?)?.as_bytes();
            true
        } else if is(word, "format") {
            if !is_resp3(writer) && paths.is_empty() {
                return Err(Refusal::new("ERR FORMAT argument is not supported on RESP2"));
            }
            expansion = if is(value()?, "string") { Expansion::Text } else { Expansion::named(value()?)? };
            true
        } else {
            // NOESCAPE was a word of the first version, and has no effect.
            if !is(word, "noescape") {
                paths.push((word, Path::read(word)?));
            }
            false
        };
        next += if is_option { 2 } else { 1 };
    }
    let Some(document) = view.json(args.at(1))? else {
        writer.null();
        return Ok(());
    };
    if paths.is_empty() {
        paths.push((b".", Path::legacy_root()));
    }
    if expansion != Expansion::Text && is_resp3(writer) {
        writer.array(paths.len());
        for (_, path) in &paths {
            let values = path.values(&document)?;
            writer.array(values.len());
            values.into_iter().try_for_each(|value| expansion.write(value, writer))?;
        }
        return Ok(());
    }
    let is_legacy = paths.iter().all(|(_, path)| path.is_legacy());
    let answer = |path: &Path| -> Result<Json, Refusal> {
        let values = path.values(&document)?;
        if is_legacy {
            return values.first().map(|value| (*value).clone()).ok_or_else(no_path);
        }
        Ok(Json::array(values.into_iter().cloned().collect()))
    };
    let answer = match &paths[..] {
        [(_, path)] => answer(path)?,
        paths => {
            let named = |(word, path): &(&[u8], Path)| Ok((Text::from(utf8(word)?), answer(path)?));
            Json::object(paths.iter().map(named).collect::<Result<_, Refusal>>()?)
        }
    };
    writer.bulk(&answer.print(style)?);
    Ok(())
}

fn mget(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let path = Path::read(args.at(args.len() - 1))?;
    let keys = || args.iter().take(args.len() - 1).skip(1);
    let mut answers = Vec::new();
    for key in keys() {
        // A key of another type counts as none.
        let document = view.json(key).ok().flatten();
        answers.push(match document {
            None => None,
            Some(document) => {
                let values = path.values(&document)?;
                let answer = match path.is_legacy() {
                    true => values.first().map(|value| (*value).clone()),
                    false => Some(Json::array(values.into_iter().cloned().collect())),
                };
                answer.map(|answer| answer.print(Style::default())).transpose()?
            }
        });
    }
    writer.array(answers.len());
    answers.iter().for_each(|answer| writer.bulk_or_null(answer.as_deref()));
    Ok(())
}

fn type_of(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let path = path_in(args.get(2))?;
    let document = view.json(args.at(1))?;
    let values = document.as_ref().map(|document| path.values(document)).transpose()?;
    if is_resp3(writer) {
        writer.array(1);
    }
    match values {
        None => writer.null(),
        Some(values) if path.is_legacy() => {
            writer.bulk_or_null(values.first().map(|value| value.type_name().as_bytes()));
        }
        Some(values) => {
            writer.array(values.len());
            values.iter().for_each(|value| writer.bulk(value.type_name().as_bytes()));
        }
    }
    Ok(())
}

fn resp(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let path = path_in(args.get(2))?;
    let Some(document) = view.json(args.at(1))? else {
        writer.null();
        return Ok(());
    };
    let values = path.values(&document)?;
    if path.is_legacy() {
        write_resp(values.first().ok_or_else(no_path)?, writer);
        return Ok(());
    }
    writer.array(values.len());
    values.iter().for_each(|value| write_resp(value, writer));
    Ok(())
}

fn write_resp(value: &Json, writer: &mut Writer) {
    match value {
        Json::Null => writer.null(),
        Json::Bool(true) => writer.simple("true"),
        Json::Bool(false) => writer.simple("false"),
        Json::Integer(number) => writer.integer(*number),
        Json::Unsigned(number) => write_double(writer, *number as f64),
        Json::Double(number) => write_double(writer, *number),
        Json::String(text) => writer.bulk(text.as_bytes()),
        Json::Array(_) => {
            let items = value.as_array().unwrap_or_default();
            writer.array(1 + items.len());
            writer.simple("[");
            items.iter().for_each(|item| write_resp(item, writer));
        }
        Json::Object(object) => {
            writer.array(1 + 2 * object.len());
            writer.simple("{");
            for (name, value) in object.iter() {
                writer.bulk(name.as_bytes());
                write_resp(value, writer);
            }
        }
    }
}

fn memory(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let path = path_in(args.get(3))?;
    let document = view.json(args.at(2))?;
    let values = match &document {
        Some(document) => path.values(document)?,
        None => Vec::new(),
    };
    if path.is_legacy() {
        match (values.first(), &document) {
            (Some(value), _) => writer.count(value.bytes()),
            (None, Some(_)) => return Err(no_path()),
            (None, None) => writer.integer(0),
        }
        return Ok(());
    }
    writer.array(values.len());
    values.iter().for_each(|value| writer.count(value.bytes()));
    Ok(())
}

fn help(_: &View<'_>, _: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let lines = ["MEMORY <key> [path] - reports memory usage", "HELP                - this message"];
    writer.array(lines.len());
    lines.iter().for_each(|line| writer.bulk(line.as_bytes()));
    Ok(())
}

//! Texts.

use command::Refusal;
use resp::{Args, Writer};

use super::{
    CHANGING, Effect, GROWING, READING, change_lengths, document, no_document, no_path, path_in, targets,
    write_integers, wrong_type,
};
use crate::commands::{Body, DataCommand};
use crate::json::limits::DOCUMENT_BYTES_MAX;
use crate::json::parse::{parse, too_large};
use crate::json::path::Path;
use crate::json::{Json, Text};
use crate::{Edit, View};

pub(super) const STRAPPEND: DataCommand = DataCommand {
    name: "json.strappend",
    summary: "Appends a text to those at a path.",
    syntax: "key [path] value",
    arity: -3,
    flags: GROWING,
    body: Body::Mutate(append),
    ..CHANGING
};

pub(super) const STRLEN: DataCommand = DataCommand {
    name: "json.strlen",
    summary: "Returns lengths of texts in bytes.",
    body: Body::Query(length),
    ..READING
};

fn append(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (path, value) = match args.get(3) {
        Some(value) => (Path::read(args.at(2))?, value),
        None => (Path::legacy_root(), args.at(2)),
    };
    if args.len() > 4 {
        return Err(Refusal::wrong_arity("json.strappend"));
    }
    let document = edit.view().json(args.at(1))?.ok_or_else(no_document)?;
    let targets = targets(&document, &path, |value| value.as_str().is_some(), "not a string")?;
    let Json::String(suffix) = parse(value)? else { return Err(wrong_type("string")) };
    let added = targets.iter().flatten().count().saturating_mul(suffix.len());
    if document.bytes().saturating_add(added) > DOCUMENT_BYTES_MAX {
        return Err(too_large());
    }
    drop(document);
    change_lengths(edit, args, &path, &targets, (Effect::Keeps, "json.strappend"), writer, |value, _| {
        let Json::String(text) = value else { return 0 };
        *text = Text::from([&text[..], &suffix[..]].concat());
        text.len()
    })
}

fn length(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let path = path_in(args.get(2))?;
    if path.is_legacy() {
        let Some(document) = view.json(args.at(1))? else {
            writer.null();
            return Ok(());
        };
        let first = path.values(&document)?.first().copied().ok_or_else(no_path)?;
        writer.count(first.as_str().ok_or_else(|| wrong_type("string"))?.len());
        return Ok(());
    }
    let document = document(view, args.at(1))?;
    let lengths: Vec<_> = path.values(&document)?.iter().map(|value| value.as_str().map(str::len)).collect();
    write_integers(writer, &lengths);
    Ok(())
}

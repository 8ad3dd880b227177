//! Objects.

use command::Refusal;
use resp::{Args, Writer};

use super::{READING, document, no_path_or, path_in, write_integers, wrong_type};
use crate::View;
use crate::commands::{Body, DataCommand};
use crate::json::{Json, Object};

pub(super) const OBJKEYS: DataCommand =
    DataCommand { name: "json.objkeys", summary: "Returns the names in objects.", body: Body::Query(names), ..READING };

pub(super) const OBJLEN: DataCommand = DataCommand {
    name: "json.objlen",
    summary: "Returns the number of names in objects.",
    body: Body::Query(length),
    ..READING
};

fn names(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let path = path_in(args.get(2))?;
    let write = |writer: &mut Writer, object: &Object| {
        writer.array(object.len());
        object.iter().for_each(|(name, _)| writer.bulk(name.as_bytes()));
    };
    if path.is_legacy() {
        let document = view.json(args.at(1))?;
        let first = match &document {
            Some(document) => path.values(document)?.first().copied(),
            None => None,
        };
        match first {
            Some(value) => write(writer, value.as_object().ok_or_else(|| no_path_or("not an object"))?),
            None => writer.null_array(),
        }
        return Ok(());
    }
    let document = document(view, args.at(1))?;
    let values = path.values(&document)?;
    writer.array(values.len());
    for value in values {
        match value.as_object() {
            Some(object) => write(writer, object),
            None => writer.null(),
        }
    }
    Ok(())
}

fn length(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let path = path_in(args.get(2))?;
    let document = view.json(args.at(1))?;
    if path.is_legacy() {
        let first = match &document {
            Some(document) => path.values(document)?.first().copied(),
            None => None,
        };
        match first {
            Some(value) => writer.count(value.as_object().ok_or_else(|| wrong_type("object"))?.len()),
            None => writer.null(),
        }
        return Ok(());
    }
    let document = document.ok_or_else(|| no_path_or("not an object"))?;
    let len = |value: &&Json| value.as_object().map(Object::len);
    let lengths: Vec<_> = path.values(&document)?.iter().map(len).collect();
    write_integers(writer, &lengths);
    Ok(())
}

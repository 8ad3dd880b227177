//! Commands that change vector sets.

use command::{Flag, Refusal};
use resp::{Args, Writer};

use super::{CHANGED_KEY, CHANGING, Given, element, option, wrong_dimensions, wrong_given_dimensions};
use crate::commands::arguments::is;
use crate::commands::{Body, DataCommand};
use crate::vector::graph::BUILD_EFFORT_DEFAULT;
use crate::vector::measure::{self, Quantization};
use crate::vector::{LINKS_DEFAULT, LINKS_MAX, LINKS_MIN, Shape, VectorSet};
use crate::{Class, Edit};

/// Largest `EF`.
pub(super) const EFFORT_WORD_MAX: usize = 1_000_000;

pub(super) const VADD: DataCommand = DataCommand {
    name: "vadd",
    summary: "Adds an element with its vector to a vector set, or changes its vector.",
    complexity: "O(log(N)) where N is the number of elements of the set.",
    syntax: "key [REDUCE dim] <FP32 vector | VALUES num value [value ...]> element [CAS] [NOQUANT | Q8 | BIN] \
             [EF build-exploration-factor] [SETATTR attributes] [M numlinks]",
    arity: -5,
    flags: &[Flag::Write, Flag::Denyoom],
    keys: CHANGED_KEY,
    body: Body::Mutate(add),
    ..CHANGING
};

struct Options<'a> {
    quantization: Quantization,
    effort: usize,
    links: u32,
    attributes: Option<&'a [u8]>,
}

impl<'a> Options<'a> {
    fn read(args: Args<'a>, first: usize) -> Result<Self, Refusal> {
        let mut options = Self {
            quantization: Quantization::Byte,
            effort: BUILD_EFFORT_DEFAULT,
            links: LINKS_DEFAULT,
            attributes: None,
        };
        let mut at = first;
        while let Some(word) = args.get(at) {
            at += 1;
            match () {
                // Whether others are served meanwhile is not for the client to say.
                () if is(word, "cas") => {}
                () if is(word, "noquant") => options.quantization = Quantization::Float,
                () if is(word, "q8") => options.quantization = Quantization::Byte,
                () if is(word, "bin") => options.quantization = Quantization::Bit,
                () => {
                    let value = args.get(at).ok_or(Refusal::new("ERR invalid option after element"))?;
                    at += 1;
                    if is(word, "ef") {
                        options.effort = option(value, 1, EFFORT_WORD_MAX, "ERR invalid EF")?;
                    } else if is(word, "m") {
                        options.links = option(value, LINKS_MIN as usize, LINKS_MAX as usize, "ERR invalid M")? as u32;
                    } else if is(word, "setattr") {
                        options.attributes = Some(value);
                    } else {
                        return Err(Refusal::new("ERR invalid option after element"));
                    }
                }
            }
        }
        Ok(options)
    }
}

/// Refuses what does not fit a set that is there.
fn check(given: &Given, options: &Options<'_>, set: &VectorSet) -> Result<(), Refusal> {
    let shape = set.shape();
    let kept = shape.dimensions as usize;
    if shape.quantization != options.quantization {
        return Err(Refusal::new("ERR asked quantization mismatch with existing vector set"));
    }
    if shape.links != options.links {
        return Err(Refusal::new("ERR asked M value mismatch with existing vector set"));
    }
    match (shape.given_dimensions, given.reduced) {
        (0, _) if given.vector.len() != kept => Err(wrong_dimensions(given.vector.len(), shape.dimensions)),
        (0, 0) => Ok(()),
        (0, _) => Err(Refusal::new("ERR cannot add projection to existing set without projection")),
        (_, reduced) if reduced != kept => Err(wrong_dimensions(given.vector.len(), shape.dimensions)),
        (expected, _) if given.vector.len() != expected as usize => {
            Err(wrong_given_dimensions(given.vector.len(), expected))
        }
        _ => Ok(()),
    }
}

fn add(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let given = Given::read(args, 2, true)?;
    let name_at = 2 + given.words;
    let name = args.get(name_at).ok_or_else(|| Refusal::wrong_arity("vadd"))?;
    let options = Options::read(args, name_at + 1)?;
    let key = args.at(1);
    let view = edit.view();
    let kept = view.vectors(key)?;
    let shape = match kept {
        Some(set) => {
            check(&given, &options, set)?;
            set.shape()
        }
        None => Shape {
            quantization: options.quantization,
            dimensions: if given.reduced > 0 { given.reduced } else { given.vector.len() } as u32,
            given_dimensions: if given.reduced > 0 { given.vector.len() as u32 } else { 0 },
            links: options.links,
        },
    };
    let vector = if shape.given_dimensions > 0 {
        measure::project(&given.vector, shape.dimensions as usize)
    } else {
        given.vector
    };
    let encoded = measure::encode(&vector, shape.quantization);
    // What an element has already changes nothing.
    let is_same = kept.and_then(|set| set.find(name).map(|slot| set.body(slot))).is_some_and(|body| {
        let attributes = body.attributes().unwrap_or_default();
        body.encoded() == encoded && options.attributes.is_none_or(|wanted| wanted == attributes)
    });
    if is_same {
        writer.boolean(false);
        return Ok(());
    }
    let is_new = edit.change_vectors(
        key,
        || VectorSet::new(shape),
        |set| match set.find(name) {
            None => {
                set.add(name, &encoded, options.attributes.unwrap_or_default(), options.effort);
                true
            }
            Some(slot) => {
                let body = set.body(slot);
                let kept = body.attributes().unwrap_or_default();
                let attributes = options.attributes.unwrap_or(kept).to_vec();
                if body.encoded() == encoded {
                    set.set_attributes(slot, &attributes);
                } else {
                    set.remove(slot);
                    set.add(name, &encoded, &attributes, options.effort);
                }
                false
            }
        },
    )?;
    edit.notify(Class::Module, "vadd", key);
    writer.boolean(is_new);
    Ok(())
}

pub(super) const VREM: DataCommand = DataCommand {
    name: "vrem",
    summary: "Removes an element from a vector set.",
    complexity: "O(log(N)) where N is the number of elements of the set.",
    syntax: "key element",
    arity: 3,
    keys: &[super::super::key_specs::key_at(1, command::Access::ReadWrite, &["access", "delete"])],
    body: Body::Mutate(|edit, args, writer| {
        let key = args.at(1);
        let Some((_, slot)) = element(&edit.view(), args)? else {
            writer.boolean(false);
            return Ok(());
        };
        edit.change_vectors(key, || unreachable!("it is there"), |set| set.remove(slot))?;
        edit.notify(Class::Module, "vrem", key);
        if !edit.contains(key) {
            edit.notify(Class::Generic, "del", key);
        }
        writer.boolean(true);
        Ok(())
    }),
    ..CHANGING
};

pub(super) const VSETATTR: DataCommand = DataCommand {
    name: "vsetattr",
    summary: "Sets or removes the attributes of an element of a vector set.",
    syntax: "key element json",
    arity: 4,
    flags: &[Flag::Write, Flag::Fast],
    body: Body::Mutate(|edit, args, writer| {
        let (key, attributes) = (args.at(1), args.at(3));
        let view = edit.view();
        let Some((set, slot)) = element(&view, args)? else {
            writer.boolean(false);
            return Ok(());
        };
        if set.body(slot).attributes().unwrap_or_default() != attributes {
            edit.change_vectors(key, || unreachable!("it is there"), |set| set.set_attributes(slot, attributes))?;
            edit.notify(Class::Module, "vsetattr", key);
        }
        writer.boolean(true);
        Ok(())
    }),
    ..CHANGING
};

//! Replies of commands to values of Lua, and the value that a script returns to a reply.

use resp::Writer;

use crate::lua::{Kind, Stack};

/// Pushes the reply at the start of `bytes` and answers how long it is. It was written by this process.
pub(crate) fn push_reply(stack: Stack, bytes: &[u8]) -> usize {
    let end = bytes.iter().position(|byte| *byte == b'\n').expect("a reply ends with a line end");
    let line = &bytes[1..end - 1];
    let after = end + 1;
    let number = || std::str::from_utf8(line).ok().and_then(|text| text.parse::<i64>().ok()).unwrap_or(-1);
    match bytes[0] {
        b'+' => push_field(stack, "ok", line),
        b'-' => push_field(stack, "err", line),
        b':' => stack.push_number(number() as f64),
        b'$' => match usize::try_from(number()) {
            Ok(length) => {
                stack.push_bytes(&bytes[after..after + length]);
                return after + length + 2;
            }
            Err(_) => stack.push_boolean(false),
        },
        b'*' | b'>' => match usize::try_from(number()) {
            Ok(count) => return after + push_array(stack, &bytes[after..], count),
            Err(_) => stack.push_boolean(false),
        },
        b'%' => {
            stack.push_table(0, 1);
            let length = push_pairs(stack, &bytes[after..], number().max(0) as usize, false);
            stack.raw_set_field(-2, "map");
            return after + length;
        }
        b'~' => {
            stack.push_table(0, 1);
            let length = push_pairs(stack, &bytes[after..], number().max(0) as usize, true);
            stack.raw_set_field(-2, "set");
            return after + length;
        }
        b',' => {
            let text = std::str::from_utf8(line).unwrap_or("0");
            stack.push_table(0, 1);
            stack.push_number(text.parse().unwrap_or(0.0));
            stack.raw_set_field(-2, "double");
        }
        b'#' => stack.push_boolean(line == b"t"),
        // What is said about a reply is nothing for scripts.
        b'|' => {
            let mut at = after;
            for _ in 0..number().max(0) * 2 {
                at += push_reply(stack, &bytes[at..]);
                stack.pop(1);
            }
            return at + push_reply(stack, &bytes[at..]);
        }
        b'(' => push_field(stack, "big_number", line),
        b'=' => {
            let length = number().max(0) as usize;
            let text = &bytes[after..after + length];
            stack.push_table(0, 1);
            stack.push_table(0, 2);
            stack.push_bytes(&text[..3]);
            stack.raw_set_field(-2, "format");
            stack.push_bytes(&text[4..]);
            stack.raw_set_field(-2, "string");
            stack.raw_set_field(-2, "verbatim_string");
            return after + length + 2;
        }
        _ => stack.push_nil(),
    }
    after
}

fn push_field(stack: Stack, name: &str, bytes: &[u8]) {
    stack.push_table(0, 1);
    stack.push_bytes(bytes);
    stack.raw_set_field(-2, name);
}

fn push_array(stack: Stack, bytes: &[u8], count: usize) -> usize {
    stack.push_table(count, 0);
    let mut at = 0;
    for place in 1..=count {
        if !stack.reserve(8) {
            break;
        }
        at += push_reply(stack, &bytes[at..]);
        stack.raw_set_at(-2, place as i32);
    }
    at
}

/// A map's pairs, or a set's elements as keys with the value true.
fn push_pairs(stack: Stack, bytes: &[u8], count: usize, is_set: bool) -> usize {
    stack.push_table(0, count);
    let mut at = 0;
    for _ in 0..count {
        at += push_reply(stack, &bytes[at..]);
        if is_set {
            stack.push_boolean(true);
        } else {
            at += push_reply(stack, &bytes[at..]);
        }
        // Null is no key.
        if stack.kind(-2) == Kind::Nil { stack.pop(2) } else { stack.raw_set(-3) }
    }
    at
}

/// Tables within tables that become a reply. Each takes a part of the thread's stack.
const DEPTH_MAX: u32 = 1_000;

/// Writes the value on top as a reply, and takes it away.
pub(crate) fn write_value(stack: Stack, writer: &mut Writer) {
    write_nested(stack, 0, writer);
}

fn write_nested(stack: Stack, depth: u32, writer: &mut Writer) {
    if depth > DEPTH_MAX || !stack.reserve(4) {
        writer.error("ERR reached lua stack limit");
        stack.pop(1);
        return;
    }
    match stack.kind(-1) {
        Kind::String => writer.bulk(stack.bytes(-1)),
        // What false means is for the script to choose, by redis.setresp: nothing, or false.
        Kind::Boolean => match (stack.shared().protocol.get(), stack.boolean(-1)) {
            (resp::Protocol::Resp3, value) => writer.boolean(value),
            (resp::Protocol::Resp2, true) => writer.integer(1),
            (resp::Protocol::Resp2, false) => writer.null(),
        },
        Kind::Number => writer.integer(stack.number(-1) as i64),
        Kind::Table => write_table(stack, depth + 1, writer),
        _ => writer.null(),
    }
    stack.pop(1);
}

fn write_table(stack: Stack, depth: u32, writer: &mut Writer) {
    if stack.raw_field(-1, "err") == Kind::String {
        let text = String::from_utf8_lossy(stack.bytes(-1)).into_owned();
        writer.error(text.strip_prefix('-').unwrap_or(&text));
        return stack.pop(1);
    }
    stack.pop(1);
    if stack.raw_field(-1, "ok") == Kind::String {
        let text = String::from_utf8_lossy(stack.bytes(-1)).replace(['\r', '\n'], " ");
        writer.simple(&text);
        return stack.pop(1);
    }
    stack.pop(1);
    if stack.raw_field(-1, "double") == Kind::Number {
        writer.double_text(&stdx::decimal::shortest(stack.number(-1)));
        return stack.pop(1);
    }
    stack.pop(1);
    if stack.raw_field(-1, "map") == Kind::Table {
        writer.map(count_pairs(stack));
        stack.push_nil();
        while stack.next(-2) {
            stack.push_copy(-2);
            write_nested(stack, depth, writer);
            write_nested(stack, depth, writer);
        }
        return stack.pop(1);
    }
    stack.pop(1);
    if stack.raw_field(-1, "set") == Kind::Table {
        writer.set(count_pairs(stack));
        stack.push_nil();
        while stack.next(-2) {
            stack.pop(1);
            stack.push_copy(-1);
            write_nested(stack, depth, writer);
        }
        return stack.pop(1);
    }
    stack.pop(1);
    if stack.raw_field(-1, "big_number") == Kind::String {
        let text = String::from_utf8_lossy(stack.bytes(-1)).replace(['\r', '\n'], " ");
        match writer.protocol() {
            resp::Protocol::Resp3 => writer.raw(format!("({text}\r\n").as_bytes()),
            resp::Protocol::Resp2 => writer.bulk(text.as_bytes()),
        }
        return stack.pop(1);
    }
    stack.pop(1);
    if stack.raw_field(-1, "verbatim_string") == Kind::Table {
        let format_kind = stack.raw_field(-1, "format");
        let text_kind = stack.raw_field(-2, "string");
        if format_kind == Kind::String && text_kind == Kind::String {
            let format: String =
                String::from_utf8_lossy(stack.bytes(-2)).chars().filter(char::is_ascii).take(3).collect();
            writer.verbatim(&format!("{format:<3}"), stack.bytes(-1));
            return stack.pop(3);
        }
        stack.pop(2);
    }
    stack.pop(1);
    write_elements(stack, depth, writer);
}

fn count_pairs(stack: Stack) -> usize {
    let mut count = 0;
    stack.push_nil();
    while stack.next(-2) {
        count += 1;
        stack.pop(1);
    }
    count
}

/// An array ends before its first nil.
fn write_elements(stack: Stack, depth: u32, writer: &mut Writer) {
    let mut count = 0;
    loop {
        stack.raw_get_at(-1, count + 1);
        let is_nil = stack.kind(-1) == Kind::Nil;
        stack.pop(1);
        if is_nil {
            break;
        }
        count += 1;
    }
    writer.array(count as usize);
    for place in 1..=count {
        stack.raw_get_at(-1, place);
        write_nested(stack, depth, writer);
    }
}

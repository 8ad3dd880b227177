//! The table `redis`, and what stands in for the parts of Lua's libraries that would look at the world.

use resp::{Args, Protocol, Span};

use crate::code::name_of;
use crate::convert::push_reply;
use crate::lua::{Entry, Failure, Kind, Results, Stack};
use crate::number;
use crate::{Flow, library};

/// Raises a table with the text in its field `err`, as commands' errors are.
pub(crate) fn refuse(stack: Stack, text: &str) -> Failure {
    push_error(stack, format!("ERR {text}").as_bytes());
    Failure::Raised
}

fn push_error(stack: Stack, text: &[u8]) {
    stack.push_table(0, 1);
    stack.push_bytes(text);
    stack.raw_set_field(-2, "err");
}

/// Fills the table on top with the functions and numbers that scripts see as `redis`.
pub(crate) fn fill_redis(stack: Stack) {
    let functions: &[Entry] = &[
        ("call", |stack| stack.push_function(call)),
        ("pcall", |stack| stack.push_function(pcall)),
        ("error_reply", |stack| stack.push_function(error_reply)),
        ("status_reply", |stack| stack.push_function(status_reply)),
        ("sha1hex", |stack| stack.push_function(sha1hex)),
        ("setresp", |stack| stack.push_function(setresp)),
        ("set_repl", |stack| stack.push_function(set_repl)),
        ("replicate_commands", |stack| stack.push_function(replicate_commands)),
        ("breakpoint", |stack| stack.push_function(breakpoint)),
        ("debug", |stack| stack.push_function(debug)),
        ("acl_check_cmd", |stack| stack.push_function(acl_check_cmd)),
        ("log", |stack| stack.push_function(log)),
    ];
    for (name, push) in functions {
        push(stack);
        stack.raw_set_field(-2, name);
    }
    for (name, value) in [("REPL_NONE", 0), ("REPL_AOF", 1), ("REPL_SLAVE", 2), ("REPL_REPLICA", 2), ("REPL_ALL", 3)] {
        stack.push_number(f64::from(value));
        stack.raw_set_field(-2, name);
    }
    fill_constants(stack);
}

/// Fills the table on top with what a library sees as `redis` while it is loaded.
pub(crate) fn fill_loading(stack: Stack) {
    stack.push_function(library::register_function);
    stack.raw_set_field(-2, "register_function");
    stack.push_function(log);
    stack.raw_set_field(-2, "log");
    fill_constants(stack);
}

fn fill_constants(stack: Stack) {
    let numbers = [
        ("LOG_DEBUG", 0),
        ("LOG_VERBOSE", 1),
        ("LOG_NOTICE", 2),
        ("LOG_WARNING", 3),
        ("REDIS_VERSION_NUM", crate::REDIS_VERSION_NUMBER),
    ];
    for (name, value) in numbers {
        stack.push_number(f64::from(value));
        stack.raw_set_field(-2, name);
    }
    stack.push_bytes(crate::REDIS_VERSION.as_bytes());
    stack.raw_set_field(-2, "REDIS_VERSION");
}

/// Gathers the arguments as words of a command and hands them over.
fn with_words<R>(stack: Stack, act: impl FnOnce(Args<'_>) -> R) -> Result<R, Failure> {
    let count = stack.top();
    if count == 0 {
        return Err(refuse(stack, "Please specify at least one argument for this redis lib call"));
    }
    let shared = stack.shared();
    let mut words = shared.words.borrow_mut();
    let mut spans = shared.spans.borrow_mut();
    words.clear();
    spans.clear();
    for index in 1..=count {
        let start = words.len() as u32;
        match stack.kind(index) {
            Kind::String => words.extend_from_slice(stack.bytes(index)),
            Kind::Number => {
                let value = stack.number(index);
                // Whole numbers are the usual case, and this form is the same for them.
                const EXACT_MAX: f64 = 1e15;
                if value.fract() == 0.0 && value.abs() < EXACT_MAX && !(value == 0.0 && value.is_sign_negative()) {
                    put_integer(&mut words, value as i64);
                } else {
                    words.extend_from_slice(number::general(value, 17).as_bytes());
                }
            }
            _ => {
                drop((words, spans));
                return Err(refuse(stack, "Lua redis lib command arguments must be strings or integers"));
            }
        }
        spans.push(Span { start, end: words.len() as u32 });
    }
    Ok(act(Args::new(&words, &spans)))
}

fn put_integer(out: &mut Vec<u8>, value: i64) {
    use std::io::Write as _;
    write!(out, "{value}").expect("a vector takes everything");
}

fn call(stack: Stack) -> Results {
    carry_out(stack, true)
}

fn pcall(stack: Stack) -> Results {
    match carry_out(stack, false) {
        // What is wrong with the arguments is an error to be caught, too: its table is on top.
        Err(Failure::Raised) => Ok(1),
        other => other,
    }
}

fn carry_out(stack: Stack, raises: bool) -> Results {
    let shared = stack.shared();
    let flow = with_words(stack, |args| {
        let mut reply = shared.reply.borrow_mut();
        reply.truncate(0);
        reply.set_protocol(shared.protocol.get());
        shared.with_host(|host| host.call(args, &mut reply))
    })?;
    match flow {
        Some(Flow::On) => {}
        Some(Flow::Stop) => return Err(Failure::Stop),
        None => return Err(refuse(stack, "redis.call/pcall can only be called inside a script invocation")),
    }
    stack.set_top(0);
    let mut reply = shared.reply.borrow_mut();
    let is_error = reply.bytes()[0] == b'-';
    push_reply(stack, reply.bytes());
    // What was large once should not stay.
    if reply.len() > KEPT_BYTES_MAX {
        *reply = resp::Writer::default();
    }
    if is_error && raises { Err(Failure::Raised) } else { Ok(1) }
}

const KEPT_BYTES_MAX: usize = 64 << 10;

fn error_reply(stack: Stack) -> Results {
    if stack.top() != 1 || stack.kind(1) != Kind::String {
        push_error(stack, b"ERR wrong number or type of arguments");
        return Ok(1);
    }
    let text = stack.bytes(1);
    let text = text.strip_prefix(b"-").unwrap_or(text).trim_ascii_end();
    if text.contains(&b' ') {
        push_error(stack, text);
    } else {
        push_error(stack, &[b"ERR ", text].concat());
    }
    Ok(1)
}

fn status_reply(stack: Stack) -> Results {
    if stack.top() != 1 || stack.kind(1) != Kind::String {
        push_error(stack, b"ERR wrong number or type of arguments");
        return Ok(1);
    }
    stack.push_table(0, 1);
    stack.push_copy(1);
    stack.raw_set_field(-2, "ok");
    Ok(1)
}

fn sha1hex(stack: Stack) -> Results {
    if stack.top() != 1 {
        return Err(refuse(stack, "wrong number of arguments"));
    }
    let name = name_of(stack.bytes(1));
    stack.push_bytes(&name);
    Ok(1)
}

fn setresp(stack: Stack) -> Results {
    if stack.top() != 1 {
        return Err(refuse(stack, "redis.setresp() requires one argument."));
    }
    let protocol = match stack.number(1) {
        2.0 => Protocol::Resp2,
        3.0 => Protocol::Resp3,
        _ => return Err(refuse(stack, "RESP version must be 2 or 3.")),
    };
    stack.shared().protocol.set(protocol);
    Ok(0)
}

/// Every change is logged, whatever the script wishes.
fn set_repl(stack: Stack) -> Results {
    if stack.top() != 1 {
        return Err(refuse(stack, "redis.set_repl() requires two arguments."));
    }
    let flags = stack.number(1) as i64;
    if flags & !3 != 0 {
        return Err(refuse(stack, "Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE."));
    }
    Ok(0)
}

fn replicate_commands(stack: Stack) -> Results {
    stack.push_boolean(true);
    Ok(1)
}

fn breakpoint(stack: Stack) -> Results {
    stack.push_boolean(false);
    Ok(1)
}

fn debug(_: Stack) -> Results {
    Ok(0)
}

fn acl_check_cmd(stack: Stack) -> Results {
    let shared = stack.shared();
    match with_words(stack, |args| shared.with_host(|host| host.may_call(args)))? {
        Some(Some(may)) => stack.push_boolean(may),
        _ => return Err(refuse(stack, "Invalid command passed to redis.acl_check_cmd()")),
    }
    Ok(1)
}

fn log(stack: Stack) -> Results {
    if stack.top() < 2 {
        return Err(refuse(stack, "redis.log() requires two arguments or more."));
    }
    if stack.kind(1) != Kind::Number && !stack.is_number(1) {
        return Err(refuse(stack, "First argument must be a number (log level)."));
    }
    let level = stack.number(1);
    if !(0.0..=3.0).contains(&level) {
        return Err(refuse(stack, "Invalid debug level."));
    }
    let mut text = Vec::new();
    for index in 2..=stack.top() {
        if matches!(stack.kind(index), Kind::String | Kind::Number) {
            if index > 2 {
                text.push(b' ');
            }
            text.extend_from_slice(stack.bytes(index));
        }
    }
    stack.shared().with_host(|host| host.log(level as u8, &text));
    Ok(0)
}

/// `math.random`, from the call's seed.
pub(crate) fn random(stack: Stack) -> Results {
    let drawn = (stack.shared().chance.borrow_mut().draw() >> 11) as f64 / (1u64 << 53) as f64;
    let bound = |index: i32| {
        if stack.is_number(index) {
            return Ok(stack.number(index).floor());
        }
        let found = stack.kind(index).name();
        Err(Failure::from(format!("bad argument #{index} to 'random' (number expected, got {found})")))
    };
    let (low, high) = match stack.top() {
        0 => {
            stack.push_number(drawn);
            return Ok(1);
        }
        1 => (1.0, bound(1)?),
        2 => (bound(1)?, bound(2)?),
        _ => return Err("wrong number of arguments".into()),
    };
    if low > high {
        return Err(format!("bad argument #{} to 'random' (interval is empty)", stack.top()).into());
    }
    stack.push_number((drawn * (high - low + 1.0)).floor() + low);
    Ok(1)
}

/// `math.randomseed`.
pub(crate) fn random_seed(stack: Stack) -> Results {
    *stack.shared().chance.borrow_mut() = stdx::Prng::new(stack.number(1) as i64 as u64);
    Ok(0)
}

/// `os.clock`: the moment of the call, in seconds, and a millisecond for every [`crate::lua::TICK_INSTRUCTIONS`] that
/// the script has carried out since. So a script that waits for it ends, and what it sees still follows from what it is
/// and does: no clock is read. An interpreter needs about that long for so many.
pub(crate) fn clock(stack: Stack) -> Results {
    let shared = stack.shared();
    let ms = shared.unix_ms.get().saturating_add(shared.ticks.get().into());
    stack.push_number(ms as f64 / 1_000.0);
    Ok(1)
}

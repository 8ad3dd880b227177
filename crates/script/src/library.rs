//! Loading a library: its code runs once and registers functions.

use crate::api::refuse;
use crate::code::{Flags, NAME_RULE, Signature, is_name};
use crate::lua::{Failure, Kind, Results, Stack};

/// A function that a library has registered.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) signature: Signature,
    /// Place of the function in the registry.
    pub(crate) function: i32,
}

/// `redis.register_function(name, function)` or `redis.register_function{function_name = …, callback = …, …}`.
pub(crate) fn register_function(stack: Stack) -> Results {
    if stack.shared().registering.borrow().is_none() {
        return Err(refuse(stack, "redis.register_function can only be called on FUNCTION LOAD command"));
    }
    let registered = match (stack.top(), stack.kind(1)) {
        (1, Kind::Table) => read_named(stack)?,
        (1, _) => {
            let text = "calling redis.register_function with a single argument is only applicable to Lua table \
                        (representing named arguments).";
            return Err(refuse(stack, text));
        }
        (2, _) => read_pair(stack)?,
        _ => return Err(refuse(stack, "wrong number of arguments to redis.register_function")),
    };
    if !is_name(&registered.signature.name) {
        return Err(refuse(stack, NAME_RULE));
    }
    let mut registering = stack.shared().registering.borrow_mut();
    let functions = registering.as_mut().expect("seen above");
    if functions.iter().any(|other| other.signature.name == registered.signature.name) {
        drop(registering);
        return Err(refuse(stack, "Function already exists in the library"));
    }
    functions.push(registered);
    Ok(0)
}

fn text(stack: Stack, index: i32) -> String {
    String::from_utf8_lossy(stack.bytes(index)).into_owned()
}

fn read_pair(stack: Stack) -> Result<Registered, Failure> {
    if stack.kind(1) != Kind::String {
        return Err(refuse(stack, "first argument to redis.register_function must be a string"));
    }
    if stack.kind(2) != Kind::Function {
        return Err(refuse(stack, "second argument to redis.register_function must be a function"));
    }
    let name = text(stack, 1);
    let function = stack.keep();
    Ok(Registered { signature: Signature { name, description: None, flags: Flags::default() }, function })
}

fn read_named(stack: Stack) -> Result<Registered, Failure> {
    let mut name = None;
    let mut description = None;
    let mut flags = Flags::default();
    let mut function = None;
    stack.push_nil();
    while stack.next(1) {
        if stack.kind(-2) != Kind::String {
            return Err(refuse(stack, "named argument key given to redis.register_function is not a string"));
        }
        let key = text(stack, -2);
        match key.to_ascii_lowercase().as_str() {
            "function_name" if stack.kind(-1) == Kind::String => name = Some(text(stack, -1)),
            "description" if stack.kind(-1) == Kind::String => description = Some(stack.bytes(-1).to_vec()),
            "callback" if stack.kind(-1) == Kind::Function => {
                stack.push_copy(-1);
                function = Some(stack.keep());
            }
            "flags" if stack.kind(-1) == Kind::Table => flags = read_flags(stack)?,
            "flags" => {
                let text = "flags argument to redis.register_function must be a table representing function flags";
                return Err(refuse(stack, text));
            }
            "function_name" | "description" => {
                let text = format!("{key} argument given to redis.register_function must be a string");
                return Err(refuse(stack, &text));
            }
            "callback" => {
                return Err(refuse(stack, "callback argument given to redis.register_function must be a function"));
            }
            _ => return Err(refuse(stack, "unknown argument given to redis.register_function")),
        }
        stack.pop(1);
    }
    let Some(name) = name else {
        return Err(refuse(stack, "redis.register_function must get a function name argument"));
    };
    let Some(function) = function else {
        return Err(refuse(stack, "redis.register_function must get a callback argument"));
    };
    Ok(Registered { signature: Signature { name, description, flags }, function })
}

fn read_flags(stack: Stack) -> Result<Flags, Failure> {
    let mut flags = Flags::default();
    for place in 1.. {
        stack.raw_get_at(-1, place);
        match stack.kind(-1) {
            Kind::Nil => break,
            Kind::String => match Flags::named(&text(stack, -1)) {
                Some(flag) => flags = flags.with(flag),
                None => return Err(refuse(stack, "unknown flag given")),
            },
            _ => return Err(refuse(stack, "unknown flag given")),
        }
        stack.pop(1);
    }
    stack.pop(1);
    Ok(flags)
}

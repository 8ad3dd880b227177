//! One Lua, ready to run scripts and functions.

use std::collections::BTreeMap;

use resp::{Args, Protocol, Writer};
use stdx::Prng;

use crate::code::{Library, Script, Signature};
use crate::convert::write_value;
use crate::library::Registered;
use crate::lua::{CallError, Entry, Kind, Results, Stack, State};
use crate::{Flow, Host, api, bits, cjson, cmsgpack, structs};

/// What a script is called with.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// All words of the request.
    pub args: Args<'a>,
    /// The first key among them.
    pub first_key: usize,
    /// How many keys there are; what follows are arguments.
    pub key_count: usize,
    /// The time, in milliseconds since the epoch.
    pub unix_ms: i64,
    /// What its chance is drawn from.
    pub seed: u64,
}

/// How a script ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It wrote its reply, which may be an error.
    Replied,
    /// The host stopped it, and nothing was written.
    Stopped,
}

/// See the module.
pub struct Engine {
    state: State,
    /// Compiled scripts by name, as places in the registry.
    scripts: BTreeMap<[u8; 40], i32>,
    /// Loaded libraries by name of library.
    libraries: BTreeMap<String, Loaded>,
    /// Places in the registry.
    handler: i32,
    hidden: i32,
    loading: i32,
    view: i32,
}

struct Loaded {
    sha: [u8; 40],
    functions: Vec<Registered>,
}

/// Compiled scripts kept; beyond that all are forgotten and compiled again when they are called.
const COMPILED_COUNT_MAX: usize = 1_000;

impl Default for Engine {
    fn default() -> Self {
        Self::new()
    }
}

impl Engine {
    /// A new Lua.
    pub fn new() -> Self {
        let mut state = State::new();
        let mut kept = [0; 4];
        let ok = state.protect(&mut |stack| {
            kept = set_up(stack);
            Ok(0)
        });
        assert!(ok, "the prelude failed");
        let [handler, hidden, loading, view] = kept;
        Self { state, scripts: BTreeMap::new(), libraries: BTreeMap::new(), handler, hidden, loading, view }
    }

    /// Bytes that Lua holds.
    pub fn memory_bytes(&self) -> usize {
        self.state.memory_bytes()
    }

    /// Compiles a script and keeps it.
    ///
    /// # Errors
    /// What is wrong with it, as an error reply.
    pub fn compile(&mut self, script: &Script) -> Result<(), String> {
        if self.scripts.contains_key(&script.sha) {
            return Ok(());
        }
        if self.scripts.len() >= COMPILED_COUNT_MAX {
            self.forget_scripts();
        }
        let mut compiled = Err("not enough memory".to_owned());
        self.state.protect(&mut |stack| {
            compiled = if stack.compile(script.code(), c"@user_script") {
                Ok(stack.keep())
            } else {
                Err(String::from_utf8_lossy(stack.bytes(-1)).into_owned())
            };
            Ok(0)
        });
        let place = compiled.map_err(|text| format!("ERR Error compiling script (new function): {text}"))?;
        self.scripts.insert(script.sha, place);
        Ok(())
    }

    /// Forgets all compiled scripts.
    pub fn forget_scripts(&mut self) {
        let scripts = std::mem::take(&mut self.scripts);
        self.state.protect(&mut |stack| {
            scripts.values().for_each(|place| stack.forget(*place));
            Ok(0)
        });
    }

    /// Runs a script.
    pub fn run_script(&mut self, script: &Script, call: &Call<'_>, host: &mut dyn Host, writer: &mut Writer) -> Ending {
        if let Err(text) = self.compile(script) {
            writer.error(&text);
            return Ending::Replied;
        }
        let function = self.scripts[&script.sha];
        self.run(function, script.name(), true, call, host, writer)
    }

    /// Runs a function of a library.
    pub fn run_function(
        &mut self,
        library: &Library,
        name: &str,
        call: &Call<'_>,
        host: &mut dyn Host,
        writer: &mut Writer,
    ) -> Ending {
        let is_loaded = self.libraries.get(&library.name).is_some_and(|loaded| loaded.sha == library.sha);
        if !is_loaded && let Err(text) = self.load(library) {
            writer.error(&text);
            return Ending::Replied;
        }
        let functions = &self.libraries[&library.name].functions;
        let Some(function) = functions.iter().find(|function| function.signature.name == name) else {
            writer.error("ERR Function not found");
            return Ending::Replied;
        };
        let function = function.function;
        self.run(function, name, false, call, host, writer)
    }

    /// Runs a library's code and keeps the functions that it registers.
    ///
    /// # Errors
    /// What is wrong with it, as an error reply.
    pub fn load(&mut self, library: &Library) -> Result<Vec<Signature>, String> {
        let (handler, hidden, loading, view) = (self.handler, self.hidden, self.loading, self.view);
        *self.state.shared().registering.borrow_mut() = Some(Vec::new());
        let mut outcome = Err("ERR not enough memory".to_owned());
        let mut budget = Budget { ticks: LOAD_TICKS_MAX };
        let ended = self.state.lend(&mut budget, &mut |stack| {
            stack.push_kept(handler);
            if !stack.compile(library.code(), c"@user_function") {
                outcome = Err(format!("ERR Error compiling function: {}", String::from_utf8_lossy(stack.bytes(-1))));
                return Ok(0);
            }
            show(stack, view, loading);
            let called = stack.call(0, 0, 1);
            outcome = called.map_err(|error| format!("ERR Error registering functions: {}", error_text(stack, error)));
            show(stack, view, hidden);
            Ok(0)
        });
        let functions = self.state.shared().registering.borrow_mut().take().unwrap_or_default();
        if !ended || self.state.shared().is_stopped.get() {
            // It was stopped between the two views at worst.
            self.state.protect(&mut |stack| {
                show(stack, view, hidden);
                Ok(0)
            });
            outcome = Err("ERR Error registering functions: ERR FUNCTION LOAD timeout".to_owned());
        } else if outcome.is_ok() && functions.is_empty() {
            outcome = Err("ERR No functions registered".to_owned());
        }
        if let Err(text) = outcome {
            self.forget_functions(&functions);
            return Err(text);
        }
        let signatures = functions.iter().map(|function| function.signature.clone()).collect();
        let loaded = Loaded { sha: library.sha, functions };
        if let Some(old) = self.libraries.insert(library.name.clone(), loaded) {
            self.forget_functions(&old.functions);
        }
        Ok(signatures)
    }

    /// Forgets the libraries that are not among those that `is_kept` says yes to.
    pub fn retain_libraries(&mut self, mut is_kept: impl FnMut(&str) -> bool) {
        let gone: Vec<_> = self.libraries.keys().filter(|name| !is_kept(name)).cloned().collect();
        for name in gone {
            let loaded = self.libraries.remove(&name).expect("just seen");
            self.forget_functions(&loaded.functions);
        }
    }

    fn forget_functions(&mut self, functions: &[Registered]) {
        self.state.protect(&mut |stack| {
            functions.iter().for_each(|function| stack.forget(function.function));
            Ok(0)
        });
    }

    fn run(
        &mut self,
        function: i32,
        name: &str,
        is_script: bool,
        call: &Call<'_>,
        host: &mut dyn Host,
        writer: &mut Writer,
    ) -> Ending {
        let shared = self.state.shared();
        shared.protocol.set(Protocol::Resp2);
        *shared.chance.borrow_mut() = Prng::new(call.seed);
        shared.unix_ms.set(call.unix_ms);
        shared.ticks.set(0);
        shared.json.set(cjson::Config::default());
        let (handler, hidden) = (self.handler, self.hidden);
        let start = writer.len();
        let ended = self.state.lend(host, &mut |stack| {
            stack.push_kept(handler);
            stack.push_kept(function);
            let keys = call.first_key..call.first_key + call.key_count;
            let rest = keys.end..call.args.len();
            if is_script {
                stack.push_kept(hidden);
                for (name, words) in [("KEYS", keys), ("ARGV", rest)] {
                    stack.push_bytes(name.as_bytes());
                    push_words(stack, call.args, words);
                    stack.raw_set(-3);
                }
                stack.pop(1);
            } else {
                push_words(stack, call.args, keys);
                push_words(stack, call.args, rest);
            }
            match stack.call(if is_script { 0 } else { 2 }, 1, 1) {
                Ok(()) => write_value(stack, writer),
                Err(error) => write_error(stack, error, name, writer),
            }
            if is_script {
                stack.push_kept(hidden);
                for name in ["KEYS", "ARGV"] {
                    stack.push_bytes(name.as_bytes());
                    stack.push_nil();
                    stack.raw_set(-3);
                }
            }
            Ok(0)
        });
        if self.state.shared().is_stopped.get() {
            writer.truncate(start);
            return Ending::Stopped;
        }
        if !ended {
            writer.truncate(start);
            writer.error(&format!("ERR Error running script {name}, not enough memory"));
        }
        Ending::Replied
    }
}

/// Questions that a library may take while it is loaded: about as many instructions as Redis grants time for.
const LOAD_TICKS_MAX: u32 = 500;

/// The host of a library being loaded.
struct Budget {
    ticks: u32,
}

impl Host for Budget {
    fn call(&mut self, _: Args<'_>, reply: &mut Writer) -> Flow {
        reply.error("ERR redis.call/pcall can only be called inside a script invocation");
        Flow::On
    }

    fn tick(&mut self) -> Flow {
        match self.ticks.checked_sub(1) {
            Some(rest) => {
                self.ticks = rest;
                Flow::On
            }
            None => Flow::Stop,
        }
    }

    fn log(&mut self, _: u8, _: &[u8]) {}

    fn may_call(&mut self, _: Args<'_>) -> Option<bool> {
        None
    }
}

/// Lets reads of globals go to another table.
fn show(stack: Stack, view: i32, table: i32) {
    stack.push_kept(view);
    stack.push_kept(table);
    stack.raw_set_field(-2, "__index");
    stack.pop(1);
}

fn push_words(stack: Stack, args: Args<'_>, words: std::ops::Range<usize>) {
    stack.push_table(words.len(), 0);
    for (place, word) in (1..).zip(words) {
        stack.push_bytes(args.at(word));
        stack.raw_set_at(-2, place);
    }
}

/// The text of an error on top, as the handler has left it.
fn error_text(stack: Stack, error: CallError) -> String {
    if error == CallError::Raised && stack.kind(-1) == Kind::Table {
        stack.raw_field(-1, "err");
        let text = String::from_utf8_lossy(stack.bytes(-1)).into_owned();
        stack.pop(1);
        return text;
    }
    String::from_utf8_lossy(stack.bytes(-1)).into_owned()
}

fn write_error(stack: Stack, error: CallError, name: &str, writer: &mut Writer) {
    let text = error_text(stack, error);
    if error == CallError::Fatal {
        return writer.error(&format!("ERR Error running script {name}, {text}"));
    }
    let text = text.strip_prefix('-').unwrap_or(&text);
    stack.raw_field(-1, "source");
    stack.raw_field(-2, "line");
    if stack.kind(-2) == Kind::String && stack.kind(-1) == Kind::Number {
        let source = String::from_utf8_lossy(stack.bytes(-2));
        writer.error(&format!("{text} script: {name}, on {source}:{}.", stack.number(-1)));
    } else {
        writer.error(text);
    }
}

const PRELUDE: &[u8] = include_bytes!("prelude.lua");

/// Name of the prelude among sources. Nobody wants to hear that an error happened there.
const PRELUDE_SOURCE: &str = "=holdfast";

/// Runs when an error is raised: makes it a table that says where it happened.
fn handle_error(stack: Stack) -> Results {
    if stack.kind(1) == Kind::Table {
        stack.set_top(1);
        if stack.raw_field(1, "err") != Kind::String {
            stack.push_bytes(b"ERR unknown error");
            stack.raw_set_field(1, "err");
        }
        stack.set_top(1);
    } else {
        let text = match stack.kind(1) {
            Kind::String | Kind::Number => stack.bytes(1),
            kind => kind.name().as_bytes(),
        };
        stack.push_table(0, 3);
        stack.push_bytes(&[b"ERR ", text].concat());
        stack.raw_set_field(-2, "err");
    }
    const LEVELS_MAX: i32 = 8;
    let mut sites = (1..LEVELS_MAX).map_while(|level| stack.site(level));
    if let Some(site) = sites.find(|site| !site.is_ours && site.source != PRELUDE_SOURCE) {
        stack.push_bytes(site.source.as_bytes());
        stack.raw_set_field(-2, "source");
        stack.push_number(f64::from(site.line));
        stack.raw_set_field(-2, "line");
    }
    Ok(1)
}

/// Builds what scripts see; answers the places of the handler, the true globals, the globals of a library being loaded,
/// and the metatable that decides between the two.
fn set_up(stack: Stack) -> [i32; 4] {
    stack.push_function(handle_error);
    let handler = stack.keep();
    stack.push_table(0, 64);
    let hidden = stack.keep();
    stack.push_table(0, 4);
    let loading = stack.keep();
    assert!(stack.compile(PRELUDE, c"=holdfast"), "{}", String::from_utf8_lossy(stack.bytes(-1)));
    stack.push_copy(crate::lua::GLOBALS);
    stack.push_kept(hidden);
    stack.push_kept(loading);
    push_native(stack);
    if let Err(error) = stack.call(4, 1, 0) {
        panic!("{error:?}: {}", String::from_utf8_lossy(stack.bytes(-1)));
    }
    [handler, hidden, loading, stack.keep()]
}

/// The table of what is not written in Lua.
fn push_native(stack: Stack) {
    let libraries: &[Entry] = &[
        ("base", |_| {}),
        ("redis", api::fill_redis),
        ("loading", api::fill_loading),
        ("cjson", cjson::fill),
        ("cmsgpack", cmsgpack::fill),
        ("struct", structs::fill),
        ("bit", bits::fill),
        ("math", |stack| {
            stack.push_function(api::random);
            stack.raw_set_field(-2, "random");
            stack.push_function(api::random_seed);
            stack.raw_set_field(-2, "randomseed");
        }),
        ("os", |stack| {
            stack.push_function(api::clock);
            stack.raw_set_field(-2, "clock");
        }),
    ];
    stack.push_table(0, libraries.len());
    for (name, fill) in libraries {
        stack.push_table(0, 16);
        fill(stack);
        stack.raw_set_field(-2, name);
    }
}

//! The one place that talks to Lua's C interface, behind a face that cannot be misused by accident.
//!
//! Lua raises an error by a long jump, which must not cross a frame with something to drop. So every function offered
//! to Lua is a plain Rust function that returns a [`Failure`]; only [`enter`], when nothing is left to drop, raises it.
//! The functions here that could themselves raise an error are those that allocate, and they do so only if the process
//! has run out of memory.
#![expect(unsafe_code, reason = "Lua is a library in C")]

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;

use mlua_sys as ffi;
use mlua_sys::{lua_CFunction, lua_Debug, lua_State};
use resp::{Protocol, Span, Writer};
use stdx::Prng;

use crate::{Flow, Host};

/// Why a function offered to Lua has not done its work.
pub(crate) enum Failure {
    /// Raise this text, with the place of the caller before it.
    Text(Vec<u8>),
    /// Raise the value on top of the stack.
    Raised,
    /// End the script, whatever it would catch.
    Stop,
}

impl From<&str> for Failure {
    fn from(text: &str) -> Self {
        Self::Text(text.as_bytes().to_vec())
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self::Text(text.into_bytes())
    }
}

/// What functions offered to Lua return: how many values they have left on the stack.
pub(crate) type Results = Result<i32, Failure>;

/// What the functions of one Lua share. Its address does not change while Lua lives.
pub(crate) struct Shared {
    main: Cell<*mut lua_State>,
    host: Cell<Option<NonNull<dyn Host>>>,
    pub(crate) is_stopped: Cell<bool>,
    /// Words of the command being called.
    pub(crate) words: RefCell<Vec<u8>>,
    pub(crate) spans: RefCell<Vec<Span>>,
    pub(crate) reply: RefCell<Writer>,
    /// The protocol in which the script wants replies.
    pub(crate) protocol: Cell<Protocol>,
    pub(crate) chance: RefCell<Prng>,
    pub(crate) unix_ms: Cell<i64>,
    /// How often the running script has been asked whether it may go on: see [`TICK_INSTRUCTIONS`].
    pub(crate) ticks: Cell<u32>,
    pub(crate) json: Cell<crate::cjson::Config>,
    /// Functions that the library being loaded has registered.
    pub(crate) registering: RefCell<Option<Vec<crate::library::Registered>>>,
}

impl Shared {
    fn new() -> Self {
        Self {
            main: Cell::new(std::ptr::null_mut()),
            host: Cell::new(None),
            is_stopped: Cell::new(false),
            words: RefCell::default(),
            spans: RefCell::default(),
            reply: RefCell::default(),
            protocol: Cell::default(),
            chance: RefCell::new(Prng::new(0)),
            unix_ms: Cell::new(0),
            ticks: Cell::new(0),
            json: Cell::default(),
            registering: RefCell::new(None),
        }
    }

    /// Asks the host of the running script. `None` if no script runs.
    pub(crate) fn with_host<R>(&self, ask: impl FnOnce(&mut dyn Host) -> R) -> Option<R> {
        let mut host = self.host.take()?;
        // SAFETY: `State::lend` put it there and takes it away before the host's borrow ends; while it is in use here
        // the cell is empty, so there is no second reference.
        let result = ask(unsafe { host.as_mut() });
        self.host.set(Some(host));
        Some(result)
    }
}

/// One Lua with everything in it.
pub(crate) struct State {
    stack: Stack,
    shared: Box<Shared>,
    /// Place of [`trampoline`] in the registry.
    trampoline: i32,
}

// SAFETY: Lua keeps everything in what `luaL_newstate` has made, and nothing in its threads; anyone who has this has
// all of it, since scripts get no pointer out. What the functions share is reached through it alone, and the host that
// they ask is there only within `lend`.
unsafe impl Send for State {}

impl Drop for State {
    fn drop(&mut self) {
        // SAFETY: made by `luaL_newstate` in `State::new`, closed here only; no script of it is running, since that
        // would hold a borrow of this state.
        unsafe { ffi::lua_close(self.stack.0) }
    }
}

/// Instructions between two questions to the host whether the script may go on.
pub(crate) const TICK_INSTRUCTIONS: i32 = 100_000;

impl State {
    /// A new Lua with the libraries that scripts may see.
    pub(crate) fn new() -> Self {
        // SAFETY: the state is new and belongs to us alone; the openers want to be called as functions of Lua.
        unsafe {
            let raw = ffi::luaL_newstate();
            assert!(!raw.is_null(), "no memory for Lua");
            for (name, opener) in [
                (c"", ffi::luaopen_base as lua_CFunction),
                (c"table", ffi::luaopen_table as lua_CFunction),
                (c"string", ffi::luaopen_string as lua_CFunction),
                (c"math", ffi::luaopen_math as lua_CFunction),
            ] {
                ffi::lua_pushcclosure(raw, opener, 0);
                ffi::lua_pushstring(raw, name.as_ptr());
                ffi::lua_call(raw, 1, 0);
            }
            bound_patterns(Stack(raw));
            let shared = Box::new(Shared::new());
            shared.main.set(raw);
            // Of the pointer that Lua hands to its allocator Lua's own makes no use.
            let mut unused = std::ptr::null_mut();
            let allocate = ffi::lua_getallocf(raw, &raw mut unused);
            ffi::lua_setallocf(raw, allocate, (&raw const *shared).cast_mut().cast());
            ffi::lua_pushcclosure(raw, trampoline, 0);
            let trampoline = ffi::luaL_ref(raw, ffi::LUA_REGISTRYINDEX);
            ffi::lua_sethook(raw, Some(hook), ffi::LUA_MASKCOUNT, TICK_INSTRUCTIONS);
            Self { stack: Stack(raw), shared, trampoline }
        }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Runs `work` with a host that the script's functions can ask. False if Lua ran out of memory meanwhile.
    pub(crate) fn lend(&mut self, host: &mut dyn Host, work: &mut dyn FnMut(Stack) -> Results) -> bool {
        let host: NonNull<dyn Host + '_> = NonNull::from(host);
        // SAFETY: only the lifetime changes, and the pointer is taken away below, before the borrow ends.
        let host = unsafe { std::mem::transmute::<NonNull<dyn Host + '_>, NonNull<dyn Host>>(host) };
        self.shared.host.set(Some(host));
        let ended = self.protect(work);
        self.shared.host.set(None);
        ended
    }

    /// Runs `work` so that an error within it ends it and nothing else. False if there was one.
    pub(crate) fn protect(&mut self, mut work: &mut dyn FnMut(Stack) -> Results) -> bool {
        if self.shared.is_stopped.replace(false) {
            // SAFETY: the state is alive.
            unsafe { ffi::lua_sethook(self.stack.0, Some(hook), ffi::LUA_MASKCOUNT, TICK_INSTRUCTIONS) };
        }
        let raw = self.stack.0;
        // SAFETY: the trampoline reads the pointer as what it is, within this call.
        unsafe {
            ffi::lua_settop(raw, 0);
            ffi::lua_rawgeti(raw, ffi::LUA_REGISTRYINDEX, self.trampoline.into());
            ffi::lua_pushlightuserdata(raw, (&raw mut work).cast());
            let status = ffi::lua_pcall(raw, 1, 0, 0);
            ffi::lua_settop(raw, 0);
            status == ffi::LUA_OK
        }
    }

    /// Bytes that Lua holds.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.stack.memory_bytes()
    }
}

unsafe extern "C-unwind" fn trampoline(raw: *mut lua_State) -> c_int {
    // SAFETY: `State::protect` passes exactly this pointer, to a reference that outlives the call.
    let work = unsafe { &mut *ffi::lua_touserdata(raw, 1).cast::<&mut dyn FnMut(Stack) -> Results>() };
    // SAFETY: an index of the own frame.
    unsafe { ffi::lua_settop(raw, 0) };
    // SAFETY: the state is alive, and nothing here has anything to drop.
    unsafe { enter(raw, work) }
}

/// Calls a function and raises its failure.
unsafe fn enter(raw: *mut lua_State, function: &mut dyn FnMut(Stack) -> Results) -> c_int {
    let stack = Stack(raw);
    match function(stack) {
        Ok(count) => return count,
        Err(Failure::Text(text)) => {
            let mut message = stack.place(1);
            message.extend_from_slice(&text);
            stack.push_bytes(&message);
        }
        Err(Failure::Raised) => {}
        Err(Failure::Stop) => stack.stop(),
    }
    // SAFETY: there is an error value on top; the arms above have dropped what they held.
    unsafe { ffi::lua_error(raw) }
}

unsafe extern "C-unwind" fn thunk<F: Fn(Stack) -> Results + Copy>(raw: *mut lua_State) -> c_int {
    // SAFETY: `Stack::push_function` has made sure that F has no content, so that there is nothing to read.
    let function = unsafe { std::mem::transmute_copy::<(), F>(&()) };
    // SAFETY: Lua calls this with its own state.
    unsafe { enter(raw, &mut |stack| function(stack)) }
}

/// Puts a [`guard`] before each function that matches patterns.
fn bound_patterns(stack: Stack) {
    stack.raw_field(GLOBALS, "string");
    for name in ["find", "gmatch", "gsub", "match"] {
        stack.raw_field(-1, name);
        let guard = if name == "find" { guard::<true> } else { guard::<false> };
        // SAFETY: the function beneath is the one value that the closure takes along.
        unsafe { ffi::lua_pushcclosure(stack.0, guard, 1) };
        stack.raw_set_field(-2, name);
    }
    // Its name in Lua 5.0, under which the library has it as well.
    stack.raw_field(-1, "gmatch");
    stack.raw_set_field(-2, "gfind");
    stack.pop(1);
}

/// Refuses a pattern that is too deep, and else becomes the function that it stands before: the frame is the same, so
/// that errors name the function and the place as they would without this.
unsafe extern "C-unwind" fn guard<const IS_FIND: bool>(raw: *mut lua_State) -> c_int {
    let stack = Stack(raw);
    let is_plain = IS_FIND && stack.boolean(4);
    if !is_plain && stack.kind(2) == Kind::String && depth(stack.bytes(2)) > PATTERN_DEPTH_MAX {
        // SAFETY: Lua calls this with its own state, and nothing here has anything to drop.
        return unsafe { enter(raw, &mut |_| Err("pattern too complex".into())) };
    }
    // SAFETY: `bound_patterns` has put a function of Lua's own library there, which uses no values of a closure. It may
    // leave by a long jump, and nothing here has anything to drop.
    unsafe {
        let function = ffi::lua_tocfunction(raw, ffi::lua_upvalueindex(1));
        function.expect("a function in C")(raw)
    }
}

/// Lua matches what stands behind each `?`, `*`, `+` and `-` of a pattern by calling itself, and has no bound for that.
/// Later versions of it have one of 200.
const PATTERN_DEPTH_MAX: usize = 1_000;

/// How often Lua calls itself at most to match a pattern, but for its captures, of which there are at most 32.
fn depth(pattern: &[u8]) -> usize {
    if pattern.len() <= PATTERN_DEPTH_MAX {
        return 0;
    }
    let at = |place: usize| pattern.get(place).copied();
    let (mut place, mut depth) = (usize::from(at(0) == Some(b'^')), 0);
    while let Some(byte) = at(place) {
        place += 1;
        match (byte, at(place)) {
            (b'(' | b')', _) => continue,
            (b'%', Some(b'b')) => {
                place += 3;
                continue;
            }
            (b'%', Some(b'f' | b'0'..=b'9')) => {
                place += 1;
                continue;
            }
            (b'%', _) => place += 1,
            (b'[', _) => {
                place += usize::from(at(place) == Some(b'^'));
                // The first one in a set stands for itself.
                loop {
                    let of_set = at(place);
                    place += if of_set == Some(b'%') { 2 } else { 1 };
                    if of_set.is_none() || at(place) == Some(b']') {
                        break;
                    }
                }
                place += 1;
            }
            _ => {}
        }
        if matches!(at(place), Some(b'?' | b'*' | b'+' | b'-')) {
            (place, depth) = (place + 1, depth + 1);
        }
    }
    depth
}

/// Runs every so many instructions.
unsafe extern "C-unwind" fn hook(raw: *mut lua_State, _: *mut lua_Debug) {
    let stack = Stack(raw);
    let shared = stack.shared();
    shared.ticks.set(shared.ticks.get().saturating_add(1));
    let may_go_on = !shared.is_stopped.get()
        && stack.memory_bytes() <= crate::MEMORY_BYTES_MAX
        && shared.with_host(|host| host.tick()).unwrap_or(Flow::On) == Flow::On;
    if !may_go_on {
        stack.stop();
        // SAFETY: an error value is on top, and nothing here needs to be dropped.
        unsafe { ffi::lua_error(raw) };
    }
}

/// The values that a function of Lua works on: its arguments at 1, 2, …, what it pushes behind them; -1 is the last.
#[derive(Clone, Copy)]
pub(crate) struct Stack(*mut lua_State);

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    None,
    Nil,
    Boolean,
    Pointer,
    Number,
    String,
    Table,
    Function,
    Userdata,
    Thread,
}

impl Kind {
    /// As Lua names it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "no value",
            Self::Nil => "nil",
            Self::Boolean => "boolean",
            Self::Pointer | Self::Userdata => "userdata",
            Self::Number => "number",
            Self::String => "string",
            Self::Table => "table",
            Self::Function => "function",
            Self::Thread => "thread",
        }
    }
}

/// A name, and what pushes the value that it stands for, or fills the table on top.
pub(crate) type Entry = (&'static str, fn(Stack));

/// The globals as an index.
pub(crate) const GLOBALS: i32 = ffi::LUA_GLOBALSINDEX;

// SAFETY for all below: the state is alive, since a stack is only handed to functions that Lua is calling; indices are
// those of values that exist, as the callers see from what they pushed.
#[expect(clippy::undocumented_unsafe_blocks, reason = "the one argument above is that of all of them")]
impl Stack {
    /// What [`State::new`] has left where Lua keeps its allocator: unlike the registry, that is looked at at once.
    pub(crate) fn shared<'a>(self) -> &'a Shared {
        unsafe {
            let mut shared = std::ptr::null_mut();
            ffi::lua_getallocf(self.0, &raw mut shared);
            &*shared.cast::<Shared>()
        }
    }

    pub(crate) fn top(self) -> i32 {
        unsafe { ffi::lua_gettop(self.0) }
    }

    pub(crate) fn set_top(self, top: i32) {
        unsafe { ffi::lua_settop(self.0, top) }
    }

    pub(crate) fn pop(self, count: i32) {
        self.set_top(-count - 1);
    }

    /// Room for so many more values; false if the script has nested too deeply.
    pub(crate) fn reserve(self, count: i32) -> bool {
        unsafe { ffi::lua_checkstack(self.0, count) != 0 }
    }

    pub(crate) fn kind(self, index: i32) -> Kind {
        match unsafe { ffi::lua_type(self.0, index) } {
            ffi::LUA_TNIL => Kind::Nil,
            ffi::LUA_TBOOLEAN => Kind::Boolean,
            ffi::LUA_TLIGHTUSERDATA => Kind::Pointer,
            ffi::LUA_TNUMBER => Kind::Number,
            ffi::LUA_TSTRING => Kind::String,
            ffi::LUA_TTABLE => Kind::Table,
            ffi::LUA_TFUNCTION => Kind::Function,
            ffi::LUA_TUSERDATA => Kind::Userdata,
            ffi::LUA_TTHREAD => Kind::Thread,
            _ => Kind::None,
        }
    }

    pub(crate) fn boolean(self, index: i32) -> bool {
        unsafe { ffi::lua_toboolean(self.0, index) != 0 }
    }

    /// A number, or a string that reads as one; otherwise 0.
    pub(crate) fn number(self, index: i32) -> f64 {
        unsafe { ffi::lua_tonumber(self.0, index) }
    }

    /// True for a number, and for a string that reads as one.
    pub(crate) fn is_number(self, index: i32) -> bool {
        unsafe { ffi::lua_isnumber(self.0, index) != 0 }
    }

    /// The bytes of a string; a number becomes a string where it is. Empty for other values. Valid while the value is
    /// on the stack.
    pub(crate) fn bytes<'a>(self, index: i32) -> &'a [u8] {
        let mut length = 0;
        unsafe {
            let start = ffi::lua_tolstring(self.0, index, &raw mut length);
            if start.is_null() { &[] } else { std::slice::from_raw_parts(start.cast(), length) }
        }
    }

    pub(crate) fn push_nil(self) {
        unsafe { ffi::lua_pushnil(self.0) }
    }

    pub(crate) fn push_boolean(self, value: bool) {
        unsafe { ffi::lua_pushboolean(self.0, value.into()) }
    }

    pub(crate) fn push_number(self, value: f64) {
        unsafe { ffi::lua_pushnumber(self.0, value) }
    }

    pub(crate) fn push_bytes(self, bytes: &[u8]) {
        unsafe { ffi::lua_pushlstring_(self.0, bytes.as_ptr().cast::<c_char>(), bytes.len()) };
    }

    /// A pointer to nowhere: `cjson.null`.
    pub(crate) fn push_null(self) {
        unsafe { ffi::lua_pushlightuserdata(self.0, std::ptr::null_mut::<c_void>()) }
    }

    /// Copies the value at an index to the top.
    pub(crate) fn push_copy(self, index: i32) {
        unsafe { ffi::lua_pushvalue(self.0, index) }
    }

    /// Moves the value on top to an index, and what was there and above it one further.
    pub(crate) fn insert(self, index: i32) {
        unsafe { ffi::lua_insert(self.0, index) }
    }

    /// A function of ours.
    pub(crate) fn push_function<F: Fn(Self) -> Results + Copy>(self, _: F) {
        const { assert!(size_of::<F>() == 0, "a function offered to Lua may capture nothing") };
        unsafe { ffi::lua_pushcclosure(self.0, thunk::<F>, 0) }
    }

    pub(crate) fn push_table(self, element_count: usize, field_count: usize) {
        let clamp = |count: usize| count.min(1 << 20) as c_int;
        unsafe { ffi::lua_createtable(self.0, clamp(element_count), clamp(field_count)) }
    }

    /// Replaces the key on top by its value in the table at an index. Metatables are not asked.
    pub(crate) fn raw_get(self, table: i32) {
        unsafe { ffi::lua_rawget(self.0, table) };
    }

    pub(crate) fn raw_get_at(self, table: i32, place: i32) {
        unsafe { ffi::lua_rawgeti_(self.0, table, place) }
    }

    /// Pushes a field of the table at an index. Metatables are not asked.
    pub(crate) fn raw_field(self, table: i32, name: &str) -> Kind {
        let table = if table < 0 && table > ffi::LUA_REGISTRYINDEX { table - 1 } else { table };
        self.push_bytes(name.as_bytes());
        self.raw_get(table);
        self.kind(-1)
    }

    /// Takes a value from the top, and the key beneath it, into the table at an index.
    pub(crate) fn raw_set(self, table: i32) {
        unsafe { ffi::lua_rawset(self.0, table) }
    }

    pub(crate) fn raw_set_at(self, table: i32, place: i32) {
        unsafe { ffi::lua_rawseti_(self.0, table, place) }
    }

    /// Takes the value on top into a field of the table at an index.
    pub(crate) fn raw_set_field(self, table: i32, name: &str) {
        self.push_bytes(name.as_bytes());
        self.insert(-2);
        let table = if table < 0 && table > ffi::LUA_REGISTRYINDEX { table - 1 } else { table };
        self.raw_set(table);
    }

    /// Replaces the key on top by the next key and its value. At the end there is nothing left, and the answer is
    /// false.
    pub(crate) fn next(self, table: i32) -> bool {
        unsafe { ffi::lua_next(self.0, table) != 0 }
    }

    /// Keeps the value on top in the registry, and answers its place there.
    pub(crate) fn keep(self) -> i32 {
        unsafe { ffi::luaL_ref(self.0, ffi::LUA_REGISTRYINDEX) }
    }

    pub(crate) fn push_kept(self, place: i32) {
        unsafe { ffi::lua_rawgeti_(self.0, ffi::LUA_REGISTRYINDEX, place) }
    }

    pub(crate) fn forget(self, place: i32) {
        unsafe { ffi::luaL_unref(self.0, ffi::LUA_REGISTRYINDEX, place) }
    }

    /// Compiles text to a function on top. If that fails there is an error text instead, and the answer is false.
    ///
    /// Text only: Lua would take what begins with an escape character for compiled code, which it believes without
    /// looking. Such code can read and write any memory of the process.
    pub(crate) fn compile(self, text: &[u8], name: &CStr) -> bool {
        if text.first() == Some(&COMPILED) {
            let name = name.to_string_lossy();
            let name = name.trim_start_matches(['@', '=']);
            self.push_bytes(format!("{name}:1: unexpected symbol near 'char(27)'").as_bytes());
            return false;
        }
        unsafe { ffi::luaL_loadbuffer(self.0, text.as_ptr().cast(), text.len(), name.as_ptr()) == ffi::LUA_OK }
    }

    /// Calls the function beneath so many arguments. An error is handed to the function at `handler`; its result is
    /// then on top, and the answer is an error.
    pub(crate) fn call(self, argument_count: i32, result_count: i32, handler: i32) -> Result<(), CallError> {
        match unsafe { ffi::lua_pcall(self.0, argument_count, result_count, handler) } {
            ffi::LUA_OK => Ok(()),
            ffi::LUA_ERRRUN => Err(CallError::Raised),
            _ => Err(CallError::Fatal),
        }
    }

    /// `user_script:1: ` for the function at a level of calls, 0 being the present one.
    pub(crate) fn place(self, level: i32) -> Vec<u8> {
        match self.site(level) {
            Some(site) if site.line > 0 => format!("{}:{}: ", site.short_source, site.line).into_bytes(),
            _ => Vec::new(),
        }
    }

    /// Where a level of calls is.
    pub(crate) fn site(self, level: i32) -> Option<Site> {
        unsafe {
            let mut debug: lua_Debug = std::mem::zeroed();
            if ffi::lua_getstack(self.0, level, &raw mut debug) == 0 {
                return None;
            }
            ffi::lua_getinfo(self.0, c"Sl".as_ptr(), &raw mut debug);
            let text = |start: *const c_char| CStr::from_ptr(start).to_string_lossy().into_owned();
            Some(Site {
                source: text(debug.source),
                short_source: text(debug.short_src.as_ptr()),
                line: debug.currentline,
                is_ours: *debug.what == b'C' as c_char,
            })
        }
    }

    /// Bytes that Lua holds.
    pub(crate) fn memory_bytes(self) -> usize {
        unsafe {
            ffi::lua_gc(self.0, ffi::LUA_GCCOUNT, 0) as usize * 1024
                + ffi::lua_gc(self.0, ffi::LUA_GCCOUNTB, 0) as usize
        }
    }

    /// Makes every further instruction fail, so that nothing that the script catches keeps it alive.
    fn stop(self) {
        let shared = self.shared();
        shared.is_stopped.set(true);
        unsafe {
            ffi::lua_sethook(self.0, Some(hook), ffi::LUA_MASKCOUNT, 1);
            ffi::lua_sethook(shared.main.get(), Some(hook), ffi::LUA_MASKCOUNT, 1);
        }
        self.push_bytes(b"stopped");
    }
}

/// What compiled code begins with.
const COMPILED: u8 = 0x1b;

/// How a protected call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallError {
    /// An error was raised, and the handler has seen it.
    Raised,
    /// Memory or the handler failed: there is a bare text.
    Fatal,
}

/// A place in a script.
pub(crate) struct Site {
    pub(crate) source: String,
    pub(crate) short_source: String,
    pub(crate) line: i32,
    /// True for a function that is not written in Lua.
    pub(crate) is_ours: bool,
}

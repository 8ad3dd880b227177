//! Scripts as their authors see them: text in, reply out. What is expected was read off Redis 7.0.15.

use resp::{Args, Protocol, Span, Writer};
use script::{Call, Ending, Engine, Flow, Host, Library, Pause, Script, Task};

/// A host with one value under every key, and little patience.
#[derive(Default)]
struct Store {
    value: Vec<u8>,
    logged: Vec<(u8, Vec<u8>)>,
    ticks_left: u32,
}

impl Host for Store {
    fn call(&mut self, args: Args<'_>, reply: &mut Writer) -> Flow {
        match args.at(0) {
            b"get" => reply.bulk(&self.value),
            b"set" => {
                self.value = args.at(2).to_vec();
                reply.ok();
            }
            b"count" => reply.integer(7),
            b"list" => {
                reply.array(3);
                reply.integer(1);
                reply.null();
                reply.bulk(b"b");
            }
            b"map" => {
                reply.map(1);
                reply.bulk(b"field");
                reply.double_text("1.5");
            }
            b"words" => {
                let words: Vec<_> = args.iter().skip(1).collect();
                reply.bulk(&words.join(&b'|'));
            }
            b"fail" => reply.error("WRONGTYPE Operation against a key holding the wrong kind of value"),
            b"stop" => return Flow::Stop,
            _ => reply.error("ERR Unknown Redis command called from script"),
        }
        Flow::On
    }

    fn tick(&mut self) -> Flow {
        self.ticks_left = self.ticks_left.saturating_sub(1);
        if self.ticks_left > 0 { Flow::On } else { Flow::Stop }
    }

    fn log(&mut self, level: u8, text: &[u8]) {
        self.logged.push((level, text.to_vec()));
    }

    fn may_call(&mut self, args: Args<'_>) -> Option<bool> {
        (args.at(0) == b"get").then_some(true)
    }
}

fn with_words<R>(words: &[&[u8]], run: impl FnOnce(Args<'_>) -> R) -> R {
    let mut buffer = Vec::new();
    let mut spans = Vec::new();
    for word in words {
        let start = buffer.len() as u32;
        buffer.extend_from_slice(word);
        spans.push(Span { start, end: buffer.len() as u32 });
    }
    run(Args::new(&buffer, &spans))
}

fn evaluate_with(engine: &mut Engine, host: &mut Store, protocol: Protocol, text: &str, words: &[&[u8]]) -> String {
    let script = match Script::parse(text.as_bytes()) {
        Ok(script) => script,
        Err(error) => return format!("-{error}\r\n"),
    };
    let mut writer = Writer::new(protocol);
    let ending = with_words(words, |args| {
        let call = Call { args, first_key: 0, key_count: words.len().min(1), unix_ms: 1_500, seed: 42 };
        engine.run_script(&script, &call, host, &mut writer)
    });
    if ending == Ending::Stopped {
        return "stopped".to_owned();
    }
    String::from_utf8_lossy(writer.bytes()).replace(script.name(), "<sha>")
}

fn evaluate(text: &str) -> String {
    let mut host = Store { ticks_left: 50, ..Store::default() };
    evaluate_with(&mut Engine::new(), &mut host, Protocol::Resp2, text, &[b"key", b"one", b"two"])
}

/// Every line a script, and what it answers.
fn check(table: &[(&str, &str)]) {
    let mut engine = Engine::new();
    for (text, expected) in table {
        let mut host = Store { ticks_left: 50, value: b"10".to_vec(), ..Store::default() };
        let answer = evaluate_with(&mut engine, &mut host, Protocol::Resp2, text, &[b"key", b"one", b"two"])
            .replace("\r\n", " ");
        assert_eq!(without_lengths(&answer), *expected, "{text}");
    }
}

/// Strings without the lengths before them.
fn without_lengths(answer: &str) -> String {
    let is_length = |word: &&str| word.strip_prefix('$').is_some_and(|digits| digits.parse::<u32>().is_ok());
    answer.trim_end().split(' ').filter(|word| !is_length(word)).collect::<Vec<_>>().join(" ")
}

#[test]
fn values_become_replies() {
    check(&[
        ("return 1", ":1"),
        ("return 2.9", ":2"),
        ("return 'a'", "a"),
        ("return true", ":1"),
        ("return false", "$-1"),
        ("return nil", "$-1"),
        ("return {1,2.7,'a',true,false,nil,4}", "*5 :1 :2 a :1 $-1"),
        ("return {ok='fine'}", "+fine"),
        ("return {err='boo'}", "-boo"),
        ("return {double=0.1}", "0.1"),
        ("return {map={a=1}}", "*2 a :1"),
        ("return {set={a=true}}", "*1 a"),
        ("return KEYS", "*1 key"),
        ("return ARGV", "*2 one two"),
        ("return redis.error_reply('boo')", "-ERR boo"),
        ("return redis.error_reply('-boo bar')", "-boo bar"),
        ("return redis.error_reply('My Err')", "-My Err"),
        ("return redis.error_reply()", "-ERR wrong number or type of arguments"),
        ("return redis.status_reply('a')", "+a"),
        ("return redis.sha1hex('')", "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
        ("return redis.REDIS_VERSION", "7.4.0"),
        ("return string.format('%x', redis.REDIS_VERSION_NUM)", "70400"),
        ("return _VERSION", "Lua 5.1"),
        ("return error", "$-1"),
    ]);
}

#[test]
fn replies_become_values() {
    check(&[
        ("return redis.call('get','x')", "10"),
        ("return redis.call('get','x') + 1", ":11"),
        ("redis.call('set','x','new') return redis.call('get','x')", "new"),
        ("return redis.call('set','x','y').ok", "OK"),
        ("return type(redis.call('list')[2])", "boolean"),
        ("return redis.call('list')", "*3 :1 $-1 b"),
        ("redis.setresp(3) return tostring(redis.call('list')[2])", "nil"),
        ("redis.setresp(3) return tostring(redis.call('map').map.field.double)", "1.5"),
        ("return redis.call('map')", "*2 field 1.5"),
        ("return redis.pcall('fail').err", "WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("return redis.call('words', 1, 0.1, 1e20, -3, 'a')", "1|0.10000000000000001|1e+20|-3|a"),
        ("return redis.call('words', 100000000000000000000)", "1e+20"),
        ("return redis.call('words', 9007199254740991)", "9007199254740991"),
    ]);
}

#[test]
fn errors_say_what_and_where() {
    let read_only = "-ERR user_script:1: Attempt to modify a readonly table script: <sha>, on @user_script:1.";
    let arguments =
        "-ERR Lua redis lib command arguments must be strings or integers script: <sha>, on @user_script:1.";
    check(&[
        (
            "return foo",
            "-ERR user_script:1: Script attempted to access nonexistent global variable 'foo' script: <sha>, on \
             @user_script:1.",
        ),
        ("foo=1", read_only),
        ("redis.call=1", read_only),
        ("cjson.encode=1", read_only),
        ("string.len=1", read_only),
        ("getmetatable(_G).__index=1", read_only),
        ("getmetatable(redis).__index=1", read_only),
        ("getmetatable('').__index=1", read_only),
        ("setmetatable(_G,{})", "-ERR Attempt to modify a readonly table script: <sha>, on @user_script:1."),
        ("rawset(redis,'x',1)", "-ERR Attempt to modify a readonly table script: <sha>, on @user_script:1."),
        (
            "return redis.call('nosuch')",
            "-ERR Unknown Redis command called from script script: <sha>, on @user_script:1.",
        ),
        ("return redis.pcall('nosuch')", "-ERR Unknown Redis command called from script"),
        (
            "return redis.call()",
            "-ERR Please specify at least one argument for this redis lib call script: <sha>, on @user_script:1.",
        ),
        ("return redis.call({})", arguments),
        ("return redis.call('set','x',nil)", arguments),
        (
            "\n\nredis.call('fail')",
            "-WRONGTYPE Operation against a key holding the wrong kind of value script: <sha>, on @user_script:3.",
        ),
        ("error('boo')", "-ERR user_script:1: boo script: <sha>, on @user_script:1."),
        ("error({err='My err'})", "-My err script: <sha>, on @user_script:1."),
        ("error({x=1})", "-ERR unknown error script: <sha>, on @user_script:1."),
        ("syntax error", "-ERR Error compiling script (new function): user_script:1: '=' expected near 'error'"),
        (
            "local f = loadstring('foo = 1') f()",
            "-ERR [string \"foo = 1\"]:1: Attempt to modify a readonly table script: <sha>, on foo = 1:1.",
        ),
        (
            "return loadstring(string.dump(function() return 1 end))()",
            "-ERR user_script:1: attempt to call a nil value script: <sha>, on @user_script:1.",
        ),
        ("return redis.setresp(4)", "-ERR RESP version must be 2 or 3. script: <sha>, on @user_script:1."),
        ("redis.log(10,'x')", "-ERR Invalid debug level. script: <sha>, on @user_script:1."),
        (
            "return cjson.decode('{')",
            "-ERR user_script:1: Expected object key string but found T_END at character 2 script: <sha>, on \
             @user_script:1.",
        ),
        (
            "return bit.tobit('a')",
            "-ERR user_script:1: bad argument #1 to 'tobit' (number expected, got string) script: <sha>, on \
             @user_script:1.",
        ),
    ]);
}

#[test]
fn the_first_line_may_state_flags() {
    check(&[
        ("#!lua\nreturn 1", ":1"),
        ("#!lua flags=no-writes,allow-oom\nreturn 1", ":1"),
        ("#!lua", "-ERR Invalid script shebang"),
        ("#!lua flags=foo\nreturn 1", "-ERR Unexpected flag in script shebang: foo"),
        ("#!lua foo=bar\nreturn 1", "-ERR Unknown lua shebang option: foo=bar"),
        ("#!python\nreturn 1", "-ERR Unexpected engine in script shebang: #!python"),
        (
            "#!lua\nlocal a = 1\nreturn foo",
            "-ERR user_script:3: Script attempted to access nonexistent global variable 'foo' script: <sha>, on \
             @user_script:3.",
        ),
    ]);
}

#[test]
fn nothing_of_the_world_is_within_reach() {
    for name in
        ["io", "require", "module", "package", "debug", "dofile", "loadfile", "print", "newproxy", "getfenv", "setfenv"]
    {
        let text = format!("return {name}");
        assert!(evaluate(&text).contains("nonexistent global variable"), "{name}");
    }
    check(&[
        ("return {pcall(function() return os.time end)}", "*1 :1"),
        ("return tostring(os.clock())", "1.5"),
        ("local t = {} for name in pairs(redis) do t[#t+1] = name end return #t > 15", ":1"),
        ("local f, t = pairs(redis) return tostring(t)", "nil"),
        ("return rawget(redis, 'nosuch')", "$-1"),
        ("return ('x'):rep(3)", "xxx"),
        ("local t = setmetatable({}, {__index = function() return 5 end}) return t.x", ":5"),
        (
            "return #pcall",
            "-ERR user_script:1: attempt to get length of global 'pcall' (a function value) script: <sha>, on @user_script:1.",
        ),
    ]);
}

/// Compiled code is believed without a look: it could reach any memory. No way of handing over a script takes it.
#[test]
fn compiled_code_is_no_script() {
    let compiled = "\u{1b}LuaQ\0\u{1}\u{4}\u{8}\u{4}\u{8}\0";
    for text in [compiled.to_owned(), "\u{1b}".to_owned(), format!("#!lua\n{compiled}")] {
        let answer = evaluate(&text);
        assert!(answer.contains("unexpected symbol near 'char(27)'"), "{text:?}: {answer}");
    }
    for load in ["loadstring(rest)", "load(function() local text = rest rest = nil return text end)"] {
        let mut store = Store { ticks_left: 50, ..Store::default() };
        let text = format!("local rest = KEYS[1] local f, why = {load} return tostring(f) .. ' ' .. why");
        let answer = evaluate_with(&mut Engine::new(), &mut store, Protocol::Resp2, &text, &[compiled.as_bytes()]);
        assert!(answer.contains("nil truncated precompiled chunk"), "{load}: {answer}");
    }
}

/// Lua matches a pattern by calling itself, and would end the process by an overflow of its stack. Threads of tests
/// have as much of one as those that serve clients.
#[test]
fn a_pattern_is_refused_that_would_take_the_stack() {
    let refusal = "-ERR user_script:1: pattern too complex";
    for call in [
        "string.find(s, p)",
        "string.match(s, p)",
        "string.gmatch(s, p)()",
        "string.gfind(s, p)()",
        "string.gsub(s, p, '')",
        "s:match(p)",
        "string.match(s, '(' .. p .. ')')",
        "string.match(s, '^' .. p)",
    ] {
        for item in [".-", "a*", "%a+", "a?", "[^]x]*", "%d-", "[%]]*", "()a-"] {
            let text = format!("local s, p = ('a'):rep(300000), ('{item}'):rep(250000) return {{{call}}}");
            assert!(evaluate(&text).starts_with(refusal), "{call} {item}: {}", evaluate(&text));
        }
    }
    // At most so deep, and what is not deep may be as long as it likes.
    check(&[
        ("return string.match(('a'):rep(2000), ('a-'):rep(1000) .. '$') ~= nil", ":1"),
        ("return #string.match(('a'):rep(2000), ('a?'):rep(1000))", ":1000"),
        ("return {string.find(('a'):rep(9000), ('a'):rep(5000))}", "*2 :1 :5000"),
        ("return {string.find(('%-a'):rep(5000), ('%%%-a'):rep(5000))}", "*2 :1 :15000"),
        ("return {string.find(('-'):rep(5000), ('-'):rep(5000), 1, true)}", "*2 :1 :5000"),
        ("return {string.match('x', ('[' .. ('*-'):rep(5000) .. ']'))}", "*0"),
        ("return {string.find('b(a)', '%b()' .. ('%b()'):rep(0) .. ('%%1'):rep(0))}", "*2 :2 :4"),
        ("return {string.gsub('hello world', 'o', '0', 1)}", "*2 hell0 world :1"),
        ("local t = {} for w in ('a bc'):gmatch('%a+') do t[#t + 1] = w end return t", "*2 a bc"),
    ]);
    // What is wrong with other arguments is said in the words of Lua.
    for (call, expected) in [
        ("string.match()", "bad argument #1 to 'match' (string expected, got no value)"),
        ("string.match('a')", "bad argument #2 to 'match' (string expected, got no value)"),
        ("string.find('a', {})", "bad argument #2 to 'find' (string expected, got table)"),
        ("string.find('a', 'a', 'x')", "bad argument #3 to 'find' (number expected, got string)"),
        ("string.gsub('a', 'a')", "bad argument #3 to 'gsub' (string/function/table expected)"),
        ("string.gsub('a', 'a', '', 'x')", "bad argument #4 to 'gsub' (number expected, got string)"),
        ("string.gmatch(nil, 'a')", "bad argument #1 to 'gmatch' (string expected, got nil)"),
        ("('a'):match()", "bad argument #1 to 'match' (string expected, got no value)"),
        ("string.match('a', '%')", "malformed pattern (ends with '%')"),
        ("string.match('a', '(a')", "unfinished capture"),
    ] {
        let answer = evaluate(&format!("return {{{call}}}"));
        assert!(answer.starts_with(&format!("-ERR user_script:1: {expected}")), "{call}: {answer}");
    }
}

/// A function that replaces what is found may itself replace, as often as Lua lets functions in C nest; each time takes
/// ten kilobytes.
#[test]
fn replacements_within_replacements_have_room() {
    let text = "local function nest(n) \
                    if n == 0 then return string.match(('a'):rep(2000), ('a-'):rep(1000) .. '$') and 'x' end \
                    return (string.gsub('a', 'a', function() return nest(n - 1) end)) \
                end \
                return nest(190)";
    assert_eq!(evaluate(text), "$1\r\nx\r\n");
    let answer = evaluate(&text.replace("190", "250"));
    assert!(answer.starts_with("-ERR") && answer.contains("C stack overflow"), "{answer}");
}

/// Lua's own counts in numbers that overflow, and then writes behind its stack.
#[test]
fn no_more_is_unpacked_than_there_is_room_for() {
    for range in [
        "-2147483648, 2147483647",
        "1, 2147483647",
        "1, 8001",
        "-1/0, 1",
        "1, 1/0",
        "0/0, 5",
        "1, 0/0",
        "-4294967296, 1",
    ] {
        let answer = evaluate(&format!("return {{unpack({{1, 2, 3}}, {range})}}"));
        assert!(answer.starts_with("-ERR user_script:1: too many results to unpack"), "{range}: {answer}");
    }
    check(&[
        ("return {unpack({1, 2, 3})}", "*3 :1 :2 :3"),
        ("return {unpack({1, 2, 3}, 2)}", "*2 :2 :3"),
        ("return {unpack({1, 2, 3}, 2, 2)}", "*1 :2"),
        ("return {unpack({1, 2, 3}, '3', '3')}", "*1 :3"),
        ("return {unpack({1, 2, 3}, 3, 2)}", "*0"),
        ("return {unpack({1, 2, 3}, 2147483648, 2147483647)}", "*0"),
        ("return {unpack({}, 2147483647, 2147483647)}", "*0"),
        ("local t = {} for i = 1, 7999 do t[i] = i end return select('#', unpack(t))", ":7999"),
    ]);
    let answer = evaluate("return {unpack(nil)}");
    assert!(
        answer.starts_with("-ERR user_script:1: bad argument #1 to 'unpack' (table expected, got no value)"),
        "{answer}"
    );
    let answer = evaluate("return {unpack({}, 'x')}");
    assert!(
        answer.starts_with("-ERR user_script:1: bad argument #2 to 'unpack' (number expected, got string)"),
        "{answer}"
    );
}

#[test]
fn a_script_that_waits_for_its_clock_ends() {
    let waits = "local start = os.clock() repeat local now = os.clock() until now - start >= 0.02 return 'done'";
    check(&[(waits, "done"), (waits, "done"), ("return tostring(os.clock())", "1.5")]);
    let seen = "local sum = 0 for i = 1, 1000000 do sum = sum + i end return tostring(os.clock())";
    let first = evaluate(seen);
    assert_eq!(first, evaluate(seen), "what a script sees follows from what it does");
    assert_ne!(first, evaluate("return tostring(os.clock())"));
}

#[test]
fn chance_follows_from_the_seed() {
    let first = evaluate("return {math.random(1000000), math.random(5, 6)}");
    assert_eq!(first, evaluate("return {math.random(1000000), math.random(5, 6)}"));
    check(&[("local x = math.random() return x >= 0 and x < 1", ":1")]);
}

#[test]
fn json_is_written_and_read_as_by_lua_cjson() {
    check(&[
        ("return cjson.encode({1,2,{a=1}})", "[1,2,{\"a\":1}]"),
        ("return cjson.encode({})", "{}"),
        (
            "return cjson.encode({1.5,100000000000000000000,3.14159265358979,1e15,12345678901234567,-0.1})",
            "[1.5,1e+20,3.1415926535898,1e+15,1.2345678901235e+16,-0.1]",
        ),
        (r#"return cjson.encode('"/\\ \t\1\127')"#, r#""\"\/\\ \t\u0001\u007f""#),
        ("return cjson.decode('[1,[2,{\"a\":\"b\"}],null,true]')[2][2].a", "b"),
        ("return tostring(cjson.decode('null') == cjson.null)", "true"),
        (r#"return cjson.decode('"\\ud83d\\ude00\\u00e9\\n"')"#, "😀é"),
        ("return tostring(cjson.decode('[-1.5e2]')[1])", "-150"),
        ("return cjson.encode(cjson.decode('{\"a\":[]}'))", "{\"a\":{}}"),
        ("return select(2, pcall(cjson.encode, {[1]=1,[100]=2}))", "Cannot serialise table: excessively sparse array"),
        ("return select(2, pcall(cjson.encode, {0/0}))", "Cannot serialise number: must not be NaN or Inf"),
        ("return select(2, pcall(cjson.decode, '[1,]'))", "Expected value but found T_ARR_END at character 4"),
        (
            "return select(2, pcall(cjson.decode, '[1 2]'))",
            "Expected comma or array end but found T_NUMBER at character 4",
        ),
        ("return select(2, pcall(cjson.decode, 'nul'))", "Expected value but found invalid token at character 1"),
        (
            "return select(2, pcall(cjson.decode, '[\"a'))",
            "Expected value but found unexpected end of string at character 4",
        ),
        (
            r#"return select(2, pcall(cjson.decode, '["\\x"]'))"#,
            "Expected value but found invalid escape code at character 3",
        ),
    ]);
}

#[test]
fn messagepack_comes_back_as_it_went() {
    check(&[
        (
            "local t = {1,-1,300,-300,70000,-70000,5e9,-5e9,1.5,0.1,'x',('y'):rep(40),true,false,{a={1,2}}} \
             return cjson.encode(cmsgpack.unpack(cmsgpack.pack(t))) == cjson.encode(t)",
            ":1",
        ),
        ("return cmsgpack.pack({1,2,3}):byte(1)", ":147"),
        ("return {cmsgpack.unpack(cmsgpack.pack(1,'a',2))}", "*3 :1 a :2"),
        ("return {cmsgpack.unpack_one(cmsgpack.pack(1,2))}", "*2 :1 :1"),
        ("return {cmsgpack.unpack_limit(cmsgpack.pack(1,2,3), 2)}", "*3 :2 :1 :2"),
        ("return {cmsgpack.unpack_limit(cmsgpack.pack(1,2,3), 1, 2)}", "*2 :-1 :3"),
        ("return select(2, pcall(cmsgpack.unpack, '\\146\\001'))", "Missing bytes in input."),
        ("return select(2, pcall(cmsgpack.unpack, '\\193'))", "Bad data format in input."),
        ("return select(2, pcall(cmsgpack.pack))", "bad argument #0 to 'pack' (MessagePack pack needs input.)"),
    ]);
}

#[test]
fn structures_are_laid_out_as_in_c() {
    check(&[
        ("return {struct.unpack('HH', struct.pack('HH', 1, 2))}", "*3 :1 :2 :5"),
        ("return struct.pack('>I2', 258)", "\u{1}\u{2}"),
        ("return {struct.unpack('<i4>i4', struct.pack('<i4>i4', -5, -6))}", "*3 :-5 :-6 :9"),
        ("return {struct.unpack('s', struct.pack('s', 'abc'))}", "*2 abc :5"),
        ("return {struct.unpack('Bc0', struct.pack('Bc0', 3, 'abc'))}", "*2 abc :5"),
        ("return struct.size('!4 b i4')", ":8"),
        ("return select(2, pcall(struct.unpack, '<i8', 'abc'))", "bad argument #2 to 'unpack' (data string too short)"),
        ("return select(2, pcall(struct.pack, 'i33', 1))", "integral size 33 is larger than limit of 32"),
        ("return tostring(select(1, struct.unpack('d', struct.pack('d', 1.25))))", "1.25"),
    ]);
}

#[test]
fn words_have_thirty_two_bits() {
    check(&[
        ("return bit.bor(1, 2, 4)", ":7"),
        ("return bit.band(255, 15)", ":15"),
        ("return bit.bnot(0)", ":-1"),
        ("return bit.tobit(4294967295)", ":-1"),
        ("return bit.lshift(1, 31)", ":-2147483648"),
        ("return bit.arshift(-8, 1)", ":-4"),
        ("return bit.tohex(255, -4)", "00FF"),
        ("return bit.tohex(255)", "000000ff"),
        ("return bit.bswap(1)", ":16777216"),
        ("return bit.rol(0x12345678, 12) == 0x45678123", ":1"),
    ]);
}

#[test]
fn a_script_without_an_end_is_stopped_whatever_it_catches() {
    for text in [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "while true do pcall(redis.call, 'stop') end",
        "local t = {} for i = 1, 50 do t[i] = i end table.sort(t, function() while true do end end)",
        "coroutine.wrap(function() while true do pcall(function() while true do end end) end end)()",
    ] {
        assert_eq!(evaluate(text), "stopped", "{text}");
    }
    let mut engine = Engine::new();
    let mut host = Store { ticks_left: 3, ..Store::default() };
    assert_eq!(evaluate_with(&mut engine, &mut host, Protocol::Resp2, "while true do end", &[]), "stopped");
    host.ticks_left = 3;
    assert_eq!(evaluate_with(&mut engine, &mut host, Protocol::Resp2, "return 1", &[]), ":1\r\n");
}

#[test]
fn deep_values_and_deep_calls_are_refused() {
    assert!(evaluate("local a = {} a[1] = a return a").ends_with("-ERR reached lua stack limit\r\n"));
    assert!(evaluate("return cmsgpack.unpack(('\\145'):rep(100000))").contains("Bad data format in input."));
    assert!(evaluate("local function f() return f() + 1 end return f()").contains("stack overflow"));
    assert!(
        evaluate("local t = {} for i = 1, 2000 do t = {t} end return cjson.encode(t)")
            .contains("excessive depth (1001)")
    );
}

#[test]
fn a_log_line_reaches_the_host() {
    let mut host = Store { ticks_left: 50, ..Store::default() };
    let mut engine = Engine::new();
    evaluate_with(&mut engine, &mut host, Protocol::Resp2, "redis.log(redis.LOG_WARNING, 'so', 'it', 5)", &[]);
    assert_eq!(host.logged, [(3, b"so it 5".to_vec())]);
}

#[test]
fn the_newer_protocol_has_more_kinds_of_replies() {
    let mut engine = Engine::new();
    for (text, expected) in [
        ("return true", ":1\r\n"),
        ("return false", "_\r\n"),
        ("redis.setresp(3) return {true, false}", "*2\r\n#t\r\n#f\r\n"),
        ("return nil", "_\r\n"),
        ("return {double=1.5}", ",1.5\r\n"),
        ("return {map={a=1}}", "%1\r\n$1\r\na\r\n:1\r\n"),
        ("return {set={a=true}}", "~1\r\n$1\r\na\r\n"),
        ("return {big_number='123'}", "(123\r\n"),
        ("return {verbatim_string={format='txt',string='hi'}}", "=6\r\ntxt:hi\r\n"),
    ] {
        let mut host = Store { ticks_left: 50, ..Store::default() };
        assert_eq!(evaluate_with(&mut engine, &mut host, Protocol::Resp3, text, &[]), expected, "{text}");
    }
}

fn load(engine: &mut Engine, text: &str) -> Result<String, String> {
    let library = Library::parse(text.as_bytes())?;
    let names: Vec<_> = engine.load(&library)?.into_iter().map(|function| function.name).collect();
    Ok(names.join(" "))
}

#[test]
fn a_library_registers_functions_and_does_little_else() {
    let cases = [
        ("redis.register_function('f', function() end)", Ok("f")),
        ("redis.register_function{function_name='f', callback=function() end, flags={'no-writes'}}", Ok("f")),
        ("local x = redis.LOG_DEBUG", Err("ERR No functions registered")),
        ("bad syntax", Err("ERR Error compiling function: user_function:2: '=' expected near 'syntax'")),
        (
            "redis.call('set', 'a', 'b')",
            Err("ERR Error registering functions: ERR user_function:2: Script attempted to access nonexistent global \
                 variable 'call'"),
        ),
        (
            "redis.register_function('a b', function() end)",
            Err("ERR Error registering functions: ERR Library names can only contain letters, numbers, or \
                 underscores(_) and must be at least one character long"),
        ),
        (
            "redis.register_function('a', 1)",
            Err("ERR Error registering functions: ERR second argument to redis.register_function must be a function"),
        ),
        (
            "redis.register_function(1, 2, 3)",
            Err("ERR Error registering functions: ERR wrong number of arguments to redis.register_function"),
        ),
        ("while 1 do end", Err("ERR Error registering functions: ERR FUNCTION LOAD timeout")),
        ("a = 1", Err("ERR Error registering functions: ERR user_function:2: Attempt to modify a readonly table")),
    ];
    let mut engine = Engine::new();
    for (code, expected) in cases {
        let loaded = load(&mut engine, &format!("#!lua name=lib\n{code}"));
        assert_eq!(loaded.as_deref().map_err(String::as_str), expected, "{code}");
    }
    for (text, expected) in [
        ("a", "ERR Missing library metadata"),
        ("#!lua\nx", "ERR Library name was not given"),
        ("#!lua name=li b\nx", "ERR Invalid metadata value given: b"),
        ("#!foo name=lib\nx", "ERR Engine 'foo' not found"),
    ] {
        assert_eq!(load(&mut engine, text), Err(expected.to_owned()));
    }
}

#[test]
fn a_function_is_called_with_keys_and_arguments() {
    let text = "#!lua name=lib\nlocal n = 0\nlocal function f(keys, args) n = n + 1 return {keys, args, n, cjson.encode({}), \
                redis.call('get', 'x')} end\nredis.register_function('f', f)\nredis.register_function('g', function() \
                error('x') end)";
    let library = Library::parse(text.as_bytes()).expect("a library");
    let mut engine = Engine::new();
    let mut host = Store { ticks_left: 50, value: b"v".to_vec(), ..Store::default() };
    let mut run = |name: &str| {
        let mut writer = Writer::default();
        with_words(&[b"k", b"a"], |args| {
            let call = Call { args, first_key: 0, key_count: 1, unix_ms: 0, seed: 0 };
            engine.run_function(&library, name, &call, &mut host, &mut writer);
        });
        without_lengths(&String::from_utf8_lossy(writer.bytes()).replace("\r\n", " "))
    };
    assert_eq!(run("f"), "*5 *1 k *1 a :1 {} v");
    assert_eq!(run("g"), "-ERR user_function:5: x script: g, on @user_function:5.");
    assert_eq!(run("h"), "-ERR Function not found");
}

/// A host that pauses at every tick.
struct Patient<'a> {
    pause: &'a Pause<'a>,
}

impl Host for Patient<'_> {
    fn call(&mut self, _: Args<'_>, reply: &mut Writer) -> Flow {
        reply.ok();
        Flow::On
    }

    fn tick(&mut self) -> Flow {
        self.pause.pause();
        Flow::On
    }

    fn log(&mut self, _: u8, _: &[u8]) {}

    fn may_call(&mut self, _: Args<'_>) -> Option<bool> {
        None
    }
}

#[test]
fn a_long_script_can_be_left_half_way_even_inside_pcall() {
    let mut task = Task::new(|pause| {
        let mut engine = Engine::new();
        let text = b"local s = 0 pcall(function() for i = 1, 200000 do s = s + 1 end end) return s";
        let script = Script::parse(text).expect("no first line to be wrong");
        let mut writer = Writer::default();
        with_words(&[], |args| {
            let call = Call { args, first_key: 0, key_count: 0, unix_ms: 0, seed: 0 };
            engine.run_script(&script, &call, &mut Patient { pause }, &mut writer);
        });
        writer.into_bytes()
    });
    let mut pauses = 0;
    let reply = loop {
        match task.resume() {
            Some(reply) => break reply,
            None => pauses += 1,
        }
    };
    assert_eq!(reply, b":200000\r\n");
    assert!(pauses > 2, "{pauses}");
}

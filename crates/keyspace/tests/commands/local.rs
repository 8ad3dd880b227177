//! A keyspace to talk to.

use keyspace::{Body, Keyspace, Layout, Moment, Options, Tuning, as_of_level_1, resolve};
use resp::{Args, Frame, FrameDecoder, Protocol, Span, Writer};
use stdx::Level;

/// A keyspace, and the clock by which it lives.
pub struct Local {
    keyspace: Keyspace,
    /// The database that commands run on.
    pub database: u16,
    /// Milliseconds since the Unix epoch at which commands run.
    pub now_ms: i64,
    /// In which replies come.
    pub protocol: Protocol,
    seed: u64,
}

impl Local {
    /// One that is compared with Redis 7.0: it is at level 1, where replies are like that.
    pub fn new() -> Self {
        let mut local = Self::newer();
        local.keyspace.set_level(Level::FIRST);
        local
    }

    /// One with all that is newer.
    pub fn newer() -> Self {
        let options = Options { databases: 16, hash_seed: 7, layout: Layout::Slots, tuning: Tuning::default() };
        Self {
            keyspace: Keyspace::new(options),
            database: 0,
            now_ms: 1_800_000_000_000,
            protocol: Protocol::Resp2,
            seed: 0,
        }
    }

    /// What commands work on.
    pub fn keyspace(&mut self) -> &mut Keyspace {
        &mut self.keyspace
    }

    /// The version of a key, by which WATCH knows that it has changed; 0 if it is not there.
    pub fn version(&self, key: &str) -> u64 {
        self.keyspace.version(0, key.as_bytes(), Moment::at(self.now_ms, 0))
    }

    /// The reply to a command.
    pub fn call<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Frame {
        let mut buffer = Vec::new();
        let mut spans = Vec::new();
        for word in words {
            let start = buffer.len() as u32;
            buffer.extend_from_slice(word.as_ref());
            spans.push(Span { start, end: buffer.len() as u32 });
        }
        let args = Args::new(&buffer, &spans);
        let mut writer = Writer::new(self.protocol);
        let command = resolve(args).unwrap_or_else(|| panic!("no such command: {args:?}"));
        let command = if self.keyspace.level() == Level::FIRST { as_of_level_1(command) } else { command };
        self.seed += 1;
        let moment = Moment::at(self.now_ms, self.seed);
        match command.body {
            _ if !command.accepts(args.len()) => {
                let container = keyspace::find(args.at(0)).filter(|container| container.name != command.name);
                let name = container.map_or(command.name.into(), |it| format!("{}|{}", it.name, command.name));
                writer.error(command::Refusal::wrong_arity(&name).text());
            }
            Body::Query(_) => self.keyspace.query(self.database, command, args, moment, &mut writer),
            Body::Mutate(_) | Body::Container => {
                self.keyspace.mutate(self.database, command, args, moment, &mut writer)
            }
        }
        one_frame(writer.bytes())
            .unwrap_or_else(|| panic!("{args:?}: less than a reply: {}", writer.bytes().escape_ascii()))
    }
}

/// The only reply in `bytes`; `None` if it is not complete.
fn one_frame(bytes: &[u8]) -> Option<Frame> {
    let mut decoder = FrameDecoder::new();
    decoder.extend(bytes);
    let frame = decoder.next_frame().expect("a well-formed reply")?;
    assert_eq!(decoder.pending_bytes(), 0, "one reply and no more: {}", bytes.escape_ascii());
    Some(frame)
}
